"""Small results of a tool stay in a recap as lines: what was asked, and what came of it."""

from __future__ import annotations

from itertools import chain

from packs import answered, called, said
from scripted import Chat, call

from aether_context import PackPolicy
from aether_context.conversation.summary import is_lookup, lookup_lines, recap
from aether_context.pack import Content
from aether_context.tokens import counter_for

COUNTER = counter_for("gemini-2.5-flash")
NAMES = ["Ada Reyes", "Bo Lindqvist", "Chidi Okafor", "Dana Petrov", "Eun-ji Park", "Farid Aziz", "Gwen Morgan"]


def asked(name: str, result: str, call_id: str = "", **arguments: object) -> list[Content]:
    return [called(name, call_id, **arguments), answered(name, call_id, result)]


def looked_up(names: list[str] = NAMES) -> list[Content]:
    found = (asked("find", f"### {name}\nborn: {1950 + at}", id=f"pers-{at:04}") for at, name in enumerate(names))
    return [*chain.from_iterable(found)]


def lines(contents, room=1_000, earlier=()):
    return lookup_lines(contents, max_tokens=room, counter=COUNTER, earlier=earlier)


def test_a_line_says_what_was_asked_and_all_values_of_what_came() -> None:
    found = lines(looked_up())
    assert found[0] == "- found by find pers-0000: ### Ada Reyes; born: 1950"
    assert len(found) == len(NAMES)
    assert all(map(is_lookup, found))


def test_few_small_results_and_long_ones_are_no_table() -> None:
    assert lines(looked_up(NAMES[:3])) == []
    long = asked("find", "word " * 400) * 12
    assert lines(long) == []
    assert lines([*long, *looked_up(NAMES[:4])]) == []
    assert lines([*long[:8], *looked_up(NAMES[:4])])


def test_the_latest_stay_where_room_is_short_in_their_order() -> None:
    found = lines(looked_up(), room=60)
    assert 0 < len(found) < len(NAMES)
    assert found == lines(looked_up())[-len(found) :]
    assert sum(COUNTER.count(line) + 1 for line in found) <= 60


def test_results_belong_to_their_own_calls() -> None:
    contents = [called("find", "1", id="a"), called("find", "2", id="b")]
    contents += [answered("find", "2", "second"), answered("find", "1", "first"), *looked_up()]
    assert lines(contents)[:2] == ["- found by find b: second", "- found by find a: first"]


def test_an_earlier_recap_goes_on_and_says_nothing_twice() -> None:
    first = recap(looked_up(), [], max_tokens=900, counter=COUNTER)
    later = asked("find", "### Hana Sato\nborn: 1980", id="pers-0009")
    second = recap([said("go on"), *later * 5], [], max_tokens=900, counter=COUNTER, earlier=first)
    held = [line for line in second.splitlines() if is_lookup(line)]
    assert len(held) == len(set(held)) == len(NAMES) + 1
    tight = recap(looked_up(), [], max_tokens=400, counter=COUNTER, earlier=second)
    assert any(map(is_lookup, tight.splitlines()))
    assert COUNTER.count(tight) <= 400


def find(key: str) -> dict[str, str]:
    """Finds a person."""
    return {"result": f"### {NAMES[int(key) % len(NAMES)]} the {key}th\nborn: {1900 + int(key)}"}


def test_an_agent_that_looks_much_up_still_has_every_value_after_cuts() -> None:
    script = [*(call("find", key=str(at)) for at in range(90)), "done"]
    chat = Chat(script=script, tools=[find], policy=PackPolicy(max_input_tokens=4_000))
    chat.say("Who of them is the oldest? Find them one by one.")
    assert any(event.stage == "cut" for manifest in chat.manifests() for event in manifest.truncation_events)
    told = [line for line in chat.sent[-1].text.splitlines() if is_lookup(line)]
    assert len(told) >= 4
    for line in told:
        key = line.removeprefix("- found by find ").partition(":")[0]
        assert f"the {key}th; born: {1900 + int(key)}" in line
    chat.replays()
