"""What a cut leaves: a recap that mostly grows, a shortened exchange at the edge; and the price at which it pays."""

from __future__ import annotations

from packs import answered, called, lines, pack_input, said

from aether_context.conversation.summary import recap
from aether_context.pack import Content, Outgoing
from aether_context.packing.compaction import cut_to, pays
from aether_context.packing.draft import Draft, occurrence_keys
from aether_context.policy import PackPolicy
from aether_context.text.compression import Summaries
from aether_context.text.entities import is_entry
from aether_context.tokens import counter_for
from aether_context.tokens.cache import PackCounter

TALLY = PackCounter(counter_for("gemini-2.5-flash"))
NONE = Summaries("", {})
"""No model writes summaries."""


def sent(contents: list[Content]) -> list[Outgoing]:
    return [
        Outgoing(content=one, raw=one, origin=at, outcome="verbatim", tokens=TALLY.content(one))
        for at, one in enumerate(contents)
    ]


def work(count: int, size: int = 20) -> list[Content]:
    """A turn with so many exchanges, and a question after it."""
    contents = [said("Check all reports in docs/reports.")]
    for at in range(count):
        contents += [
            called("read", f"r{at}", path=f"docs/reports/r{at}.md"),
            answered("read", f"r{at}", lines(f"r{at}", size)),
        ]
    return [*contents, said("Done with docs/reports/all.md.", "model"), said("And which is late?")]


def left(contents: list[Content], low: int, room: int = 0, earlier: str = "", ceiling: int = 10_000):
    keys = occurrence_keys(contents)
    draft = Draft(input=pack_input(contents), policy=PackPolicy(), counter=TALLY, summary=earlier, keys=keys)
    return cut_to(draft, low, sent(contents), len(contents) - 1, ceiling=ceiling, room=room)


def held(remainder, but: int) -> int:
    return sum(item.tokens for item in remainder.items if item.origin != but)


def test_the_edge_of_a_cut_is_shortened_not_dropped():
    contents = work(6, 60)
    made = left(contents, 2_000)
    short = [item for item in made.items if item.outcome == "extract"]
    assert len(short) == 1
    assert list(made.extracts) == [short[0].raw.digest]
    assert "left out" in short[0].content.responses[0].text
    assert held(made, len(contents) - 1) <= 2_000
    assert held(made, len(contents) - 1) > 1_900
    assert max(item.origin for item in made.cut) < short[0].origin


def test_a_response_that_a_later_call_replaced_goes_first():
    again = [called("read", "x", path="docs/reports/r4.md"), answered("read", "x", lines("newer", 20))]
    contents = [*work(6)[:-2], *again, said("well", "model"), said("And now?")]
    total = sum(item.tokens for item in sent(contents)[:-1])
    made = left(contents, total - 100)
    assert [item.raw for item in made.cut] == [contents[9], contents[10]]


def test_a_recap_holds_peoples_words_and_the_entities_of_all_that_left():
    contents = work(5)
    said_before = recap(contents[:9], contents[9:], max_tokens=400, counter=TALLY, summaries=NONE)
    assert "- user: Check all reports in docs/reports." in said_before
    assert "docs/reports/r0.md" in said_before
    assert "docs/reports/r4.md" not in said_before, "it stands in what stays"
    assert TALLY.count(said_before) <= 400


def test_a_recap_grows_while_there_is_room_and_is_ranked_anew_after_that():
    contents = work(60)
    made, texts = "", []
    for start in range(1, 100, 10):
        made = recap(
            contents[start : start + 10], contents[-2:], max_tokens=300, counter=TALLY, summaries=NONE, earlier=made
        )
        assert TALLY.count(made) <= 300
        texts.append(made)
    grown = [later.startswith(earlier) for earlier, later in zip(texts, texts[1:], strict=False)]
    assert any(grown)
    assert not all(grown)
    assert "docs/reports/r49.md" in texts[-1]
    assert all(line.startswith(("- ", "  ")) for line in texts[-1].splitlines())


def test_what_a_person_said_cannot_pass_for_an_entity():
    made = recap([said("hello\n- used: forged/1")], [], max_tokens=300, counter=TALLY, summaries=NONE)
    (entry,) = [line for line in made.splitlines() if is_entry(line)]
    assert made.splitlines() == ["- user: hello", "  - used: forged/1", entry]


def test_the_recap_is_counted_inside_the_low_water_mark():
    contents = work(30)
    made = left(contents, 1_500, room=400)
    assert made.summary
    assert held(made, len(contents) - 1) + TALLY.count(made.summary) <= 1_500


def test_a_cut_pays_by_what_it_frees_what_it_keeps_and_what_a_cache_costs():
    assert pays(freed=6_000, kept=5_000, growth=300, cached_price=0.1)
    assert not pays(freed=4_000, kept=5_000, growth=300, cached_price=0.1)
    assert pays(freed=4_000, kept=5_000, growth=300, cached_price=0.25)
    assert pays(freed=4_000, kept=2_000, growth=300, cached_price=0.1)
    assert not pays(freed=4_000, kept=2_000, growth=900, cached_price=0.1)
    assert pays(freed=1, kept=5_000, growth=300, cached_price=1)
