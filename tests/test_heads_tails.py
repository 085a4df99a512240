"""Anchors, frozen heads and tails, and summaries; budgets and errors are in `test_token_budget`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from google.adk.sessions.database_session_service import DatabaseSessionService
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from hypothesis import given, settings
from hypothesis import strategies as st
from packs import answered, called, is_human, rendered, said, staying, torn, trim, turns
from scripted import Chat, call, inside, look_up
from timing import lines_of

from aether_context import Manifest, PackPolicy
from aether_context.adk import context_tools, cut_now
from aether_context.conversation import (
    Conversation,
    Decision,
    identify,
    register_anchor,
    register_strategy,
    select_strategy,
    strategy_names,
    units,
    unregister_anchor,
    unregister_strategy,
    validate,
)
from aether_context.errors import AetherContextError, AnchorPreservationError, PolicyError
from aether_context.pack import Anchor, Content, ContentForm
from aether_context.policy import ConversationSettings

POLICY = PackPolicy(max_input_tokens=3_000, conversation={"strategy": "heads_tails"}, usage={"gate": 0})


def options(strategy: str = "heads_tails", **more: Any) -> ConversationSettings:
    return ConversationSettings(strategy=(strategy,), **more)


def talk(count: int = 14, size: int = 8) -> list[Content]:
    return turns(count, size)


def conversation(contents: Sequence[Content], window: int = 3_000, **more: Any) -> Conversation:
    return Conversation.of(contents, window=window, **more)


def cut(contents: Sequence[Content], window: int = 3_000, strategy: str = "heads_tails", **more: Any) -> Decision:
    return trim(conversation(contents, window, **more), options(strategy))


def anchored(contents: Sequence[Content], marked: Mapping[int, str] | None = None) -> tuple[Anchor, ...]:
    return identify(contents, marked=marked)


# anchors are found


def exchange(size: int) -> list[Content]:
    return [called("look_up", "c"), answered("look_up", "c", "word " * size)]


@pytest.mark.parametrize(
    ("contents", "shape", "strategy"),
    [
        (talk(4), "short", "epochs"),
        ([said("word " * 60, role) for role in ("user", "model") * 40], "dialogue", "heads_tails"),
        ([said("Look."), *exchange(4_000)], "loop", "epochs"),
        ([one for _ in range(8) for one in (said("Look."), *exchange(600))], "session", "epochs"),
    ],
)
def test_a_strategy_is_chosen_by_the_shape_of_a_conversation(
    contents: Sequence[Content], shape: str, strategy: str
) -> None:
    found = select_strategy(conversation(contents))
    assert (found.shape, found.strategy) == (shape, strategy)
    assert found.rule.startswith(f"{shape}: ")


def test_anchors_come_by_priority_then_by_place_and_a_content_is_one_once() -> None:
    contents = [said("rules", "system"), *talk(2)]
    found = identify(contents, marked={0: "again", 1: "first"})
    assert [(anchor.place, anchor.kind) for anchor in found] == [
        (0, "system_message"),
        (7, "latest_tool_result"),
        (1, "instruction_anchor"),
    ]


def test_priorities_are_configurable_and_0_switches_a_kind_off() -> None:
    contents = [said("rules", "system"), *talk(2)]
    found = identify(
        contents,
        settings=ConversationSettings(anchors={"system_message": 0, "latest_tool_result": 5, "instruction_anchor": 9}),
        marked={1: "first"},
    )
    kinds = [(anchor.kind, anchor.priority) for anchor in found]
    assert kinds == [("instruction_anchor", 9), ("latest_tool_result", 5)]


# anchors are preserved


def test_anchors_in_the_middle_survive_a_cut() -> None:
    contents = talk()
    anchors = anchored(contents, {20: "the limit", 21: "how it was found"})
    held = conversation(contents, anchors=anchors)
    result = trim(held, options())
    assert {20, 21, 22} <= set(staying(held, result))
    assert held.effect(result).anchors == anchors
    assert len(result.removed) > 8


def test_where_not_all_fit_the_lowest_priority_goes_and_is_named() -> None:
    contents = talk(14, size=20)
    marked = {at: f"note {at}" for at in range(6, 46, 4)}
    held = conversation(contents, 3_000, anchors=anchored(contents, marked))
    result = trim(held, options())
    effect = held.effect(result)
    assert 0 < len(effect.anchors) < len(marked) + 1
    assert "no room for the anchor note" in result.note
    assert effect.tokens_after <= conversation(contents).budget.most


def test_preservation_is_validated() -> None:
    contents = talk()
    held = conversation(contents, anchors=anchored(contents, {20: "the limit"}))
    validate(held, trim(held, options()))
    broken = Decision({20: ContentForm("left_out", "strategy")})
    with pytest.raises(AnchorPreservationError, match=r"the limit \(content 20, priority 60\)") as caught:
        validate(held, broken)
    assert caught.value.anchors == ("the limit (content 20, priority 60)",)
    assert (caught.value.needed, caught.value.budget) == (held.tokens[20] + held.tokens[54], held.budget.most)
    assert isinstance(caught.value, AetherContextError)


@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=14),
    st.sets(st.integers(0, 40), max_size=3),
    st.integers(600, 6_000),
    st.sampled_from(["heads_tails", "summarize", "epochs"]),
)
@settings(max_examples=80)
def test_anchors_that_fit_are_always_preserved(sizes: list[int], marks: set[int], window: int, strategy: str) -> None:
    contents = [one for at, size in enumerate(sizes) for one in talk(1, size)[:4]] + [said("now?")]
    anchors = anchored(contents, {at: f"m{at}" for at in marks if at < len(contents)})
    if strategy == "epochs":
        anchors = tuple(anchor for anchor in anchors if anchor.kind != "latest_tool_result")
    held = conversation(contents, window, anchors=anchors)
    result = trim(held, options(strategy))
    kept = staying(held, result)
    assert torn([contents[at] for at in kept]) == []
    assert is_human(contents[kept[0]])
    assert contents[-1] is contents[kept[-1]]
    if not result.note:
        validate(held, result)
    assert held.effect(result).freed_tokens >= 0 or result.summary


# heads and tails


def test_the_middle_goes_first_and_from_the_oldest() -> None:
    contents = talk()
    gone = cut(contents, 3_500).removed
    assert gone
    assert all(contents[at].role == "model" or contents[at].responses or at < max(gone) for at in gone)
    assert max(gone) < len(contents) - 5
    assert max(gone) + 1 < len(contents) - 5


def test_heads_and_tails_are_configurable() -> None:
    contents = talk()
    for head, tail in ((1, 1), (6, 2), (2, 8), (0, 0)):
        held = conversation(contents)
        kept = staying(held, trim(held, options(heads_tails={"head": head, "tail": tail})))
        parts = units(contents)
        stay = {index for unit in (*parts[:head], *parts[len(parts) - tail :]) for index in unit.indices}
        assert stay <= set(kept)


def test_the_summary_stands_behind_the_head_so_that_the_head_stays_cached() -> None:
    contents = talk()
    held = conversation(contents)
    left = rendered(held, trim(held, options()))
    assert list(left[:3]) == contents[:3]
    summary = next(at for at, content in enumerate(left) if "SUMMARY" in content.text)
    assert 3 <= summary < len(left) - 5


@pytest.mark.parametrize("count", [0, 1, 2, 8, 9])
def test_short_conversations_stay_as_they_are(count: int) -> None:
    contents = talk(4)[:count]
    assert not cut(contents, 1_000).forms
    squeezed = [contents[at] for at in staying(conversation(contents), cut(contents, 256))]
    assert torn(squeezed) == []
    assert squeezed[-1:] == contents[-1:]


# summaries


def test_the_last_messages_are_kept_word_for_word() -> None:
    contents = talk(30)
    held = conversation(contents)
    assert set(units(contents)[-10].indices) <= set(staying(held, trim(held, options("summarize"))))


def test_summaries_need_a_place() -> None:
    with pytest.raises(PolicyError, match="leaves the strategy 'summarize' no place"):
        PackPolicy(conversation={"strategy": "summarize", "summary_share": 0})


# choosing and registering


class Latest:
    """Keeps the first message and the latest ones, without a share of those between."""

    name = "latest"
    early = False

    def __init__(self, share: float) -> None:
        self.share = share

    def trim(self, conversation: Conversation, target_tokens: int) -> Decision:
        parts = units(conversation.contents)
        gone = [index for unit in parts[1 : 1 + int(self.share * len(parts))] for index in unit.indices]
        forms = {at: ContentForm("left_out", "strategy") for at in sorted(gone)} if len(parts) > 6 else {}
        return Decision(forms, summary="- half of it" if forms else None)


@pytest.fixture
def latest() -> Iterator[None]:
    register_strategy("latest", lambda settings: Latest(settings.custom.get("latest", {}).get("share", 0.5)))
    yield
    unregister_strategy("latest")


@pytest.mark.usefixtures("latest")
def test_a_strategy_of_ones_own_runs_in_a_pack_and_replays() -> None:
    policy = PackPolicy(conversation={"strategy": "latest", "custom": {"latest": {"share": 0.25}}}, usage={"gate": 0})
    chat = Chat(policy=policy, tools=[look_up], script=[*(call("look_up", key=f"k{at}") for at in range(9)), "done"])
    chat.say("hello")
    acts = [act for one in chat.manifests() for act in one.strategy_acts]
    assert {act.strategy for act in acts} == {"latest"}
    rows = [row for one in chat.manifests() for row in one.rows if row.reason == "strategy"]
    assert {row.form for row in rows} == {"summarized"}
    chat.replays()


def test_an_unknown_strategy_is_named_with_its_cure_at_the_start() -> None:
    with pytest.raises(PolicyError, match="'heads_tail' is unknown: did you mean 'heads_tails'"):
        Chat(policy=PackPolicy(conversation={"strategy": "heads_tail"}))


# in sessions


def chatted(**more: Any) -> Chat:
    return Chat(**{"policy": POLICY, "tools": [look_up], **more})


def loop(count: int) -> list[Any]:
    return [*(call("look_up", key=f"k{at}") for at in range(count)), "done"]


def check(chat: Chat, window: int = 3_000) -> None:
    assert all(inside(one, window) for one in chat.manifests())
    chat.replays()


@pytest.mark.parametrize(
    "strategy",
    ["heads_tails", "summarize", "epochs", "none", "stable_prefix", "sliding_turns", ["stable_prefix", "heads_tails"]],
)
@pytest.mark.rows(3)
def test_every_strategy_stays_valid_inside_the_window_and_replays(strategy: Any) -> None:
    policy = PackPolicy(max_input_tokens=3_000, conversation={"strategy": strategy}, usage={"gate": 0})
    chat = chatted(policy=policy, script=[*loop(8), *loop(9), "ok", *loop(14)])
    chat.say("hello", "again " * 50, "quickly", "and once more")
    assert len(chat.sent) == 35
    assert any(one.strategy_acts for one in chat.manifests())
    check(chat)


@pytest.mark.parametrize("strategy", ["epochs", "sliding_turns", "stable_prefix", "summarize", "none"])
@pytest.mark.rows(2)
def test_marks_hold_under_every_strategy_and_in_the_net(strategy: str) -> None:
    chat = chatted(
        policy=PackPolicy(max_input_tokens=3_000, conversation={"strategy": strategy}, usage={"gate": 0}),
        state={"aether:anchors": [{"contains": "never touch the ledger"}]},
        script=["ok", "ok", *loop(14)],
    )
    chat.say("hello", "Please never touch the ledger.", "now look it all up")
    assert "never touch the ledger" in "".join(chat.sent[-1].wires)
    check(chat)


def test_one_mark_needs_no_list_and_what_is_none_is_named() -> None:
    for marks, told in (
        ({"contains": "the ledger"}, ()),
        ([{"contains": "the ledger"}, {"contains": "x", "priority": "high"}], ("state aether:anchors.1 was ignored",)),
        (7, ("state aether:anchors.0 was ignored",)),
    ):
        chat = chatted(state={"aether:anchors": marks})
        chat.say("Never touch the ledger.")
        (manifest,) = chat.manifests()
        assert [anchor.kind for anchor in manifest.anchors] == ["instruction_anchor"] * (marks != 7)
        assert [text.rpartition(": ")[0] for text in manifest.degradations] == list(told)


def test_rules_registered_from_outside_hold_and_a_failing_one_ends_no_run() -> None:
    register_anchor("prices", lambda content, at, contents: "euros" in content.text)
    register_anchor("broken", lambda content, at, contents: 1 / 0 > at)
    try:
        chat = chatted(script=["ok", "ok", *loop(14)])
        chat.say("hello", "It costs 90 euros.", "now look it all up")
        last = chat.latest()
        assert [(anchor.kind, anchor.description) for anchor in last.anchors] == [("custom", "prices")]
        assert "anchor rule 'broken' failed: ZeroDivisionError" in last.degradations
        assert "90 euros" in "".join(chat.sent[-1].wires)
    finally:
        unregister_anchor("prices")
        unregister_anchor("broken")
    check(chat)


def test_anchors_without_room_are_named_and_the_request_still_fits() -> None:
    note = "Remember this: " + "all of it matters a great deal to everyone involved " * 30
    chat = chatted(
        policy=PackPolicy(max_input_tokens=1_500, conversation={"strategy": "heads_tails"}, usage={"gate": 0}),
        state={"aether:anchors": [{"contains": f"number {at}", "description": f"note {at}"} for at in range(6)]},
    )
    chat.say(*(f"number {at}. {note}" for at in range(6)), "and now?")
    notes = [text for one in chat.manifests() for text in one.degradations]
    assert any("no room for the anchor note" in text for text in notes)
    check(chat, 1_500)


# by hand


@pytest.mark.parametrize("kind", ["database", "sqlite"])
def test_a_cut_by_hand_is_made_on_every_backend_and_by_another_process(tmp_path: Path, kind: str) -> None:
    async def converse() -> list[Manifest]:
        url = f"sqlite+aiosqlite:///{tmp_path / 'sessions.db'}"
        service = DatabaseSessionService(url) if kind == "database" else SqliteSessionService(str(tmp_path / "own.db"))
        chat = Chat(policy=PackPolicy(), tools=[look_up], script=loop(6), sessions=service)
        await chat.tell("hello")
        await service.append_event(await chat.held(), cut_now(await chat.held()))
        other = Chat(policy=PackPolicy(), tools=[look_up], script=["ok", "ok"], sessions=service, store=chat.store)
        await other.tell("go on")
        await other.tell("and on")
        if isinstance(service, DatabaseSessionService):
            await service.close()
        return chat.manifests()

    before, after, later = asyncio.run(converse())[-3:]
    assert before.strategy_acts == later.strategy_acts == ()
    assert after.epoch_reason == "by_hand"
    assert {event.reason for event in after.truncation_events} == {"by_hand"}
    assert later.epoch.cut_count == after.epoch.cut_count > 0


def test_the_model_can_ask_for_a_cut_itself_once() -> None:
    chat = chatted(
        policy=PackPolicy(),
        tools=[look_up, *context_tools()],
        script=[*loop(6)[:-1], call("cut_now"), call("look_up", key="later"), "done", "bye"],
    )
    chat.say("hello", "and now?")
    cut = [one for one in chat.manifests() if one.strategy_acts]
    assert [[act.strategy for act in one.strategy_acts] for one in cut] == [["epochs"]]
    assert cut[0].pack_id == chat.manifests()[-3].pack_id
    assert {event.reason for event in cut[0].truncation_events} == {"by_hand"}
    assert len(chat.sent[-3].contents) < len(chat.raw[-3].contents)
    chat.replays()


# speed


@pytest.mark.parametrize("name", strategy_names())
@pytest.mark.rows(2)
def test_twice_as_many_messages_are_cut_in_about_twice_as_many_lines(name: str) -> None:
    lines = []
    for count in (150, 300):
        held = conversation(talk(count), 16_000)
        trim(held, options(name))  # what is remembered of texts is in place then
        lines.append(lines_of(lambda held=held: trim(held, options(name))))
    assert 0 < lines[1] < 2.5 * lines[0]
