"""Anchors, frozen heads and tails, and summaries; budgets and errors are in `test_token_budget`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from google.adk.events.event import Event
from google.adk.sessions.database_session_service import DatabaseSessionService
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from google.genai import types
from hypothesis import given, settings
from hypothesis import strategies as st
from packs import rendered, said, trim, turns
from scripted import Chat, big_file, call, inside, look_up
from timing import best_of

from aether_context import Manifest, PackPolicy, PackStore
from aether_context.adk import context_tools, cut_now
from aether_context.cli import main
from aether_context.conversation import (
    AnchorDefinition,
    Conversation,
    Decision,
    Removed,
    Selection,
    decided,
    identify,
    register_anchor,
    register_strategy,
    select_strategy,
    strategies_of,
    strategy_names,
    units,
    unregister_anchor,
    unregister_strategy,
    validate,
)
from aether_context.conversation.turns import is_human, torn
from aether_context.errors import AetherContextError, AnchorPreservationError, PolicyError
from aether_context.pack import Anchor, Content
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


def test_messages_of_the_system_are_anchors() -> None:
    found = identify([said("rules", "system"), said("hi"), said("more rules", "system")])
    assert [(anchor.place, anchor.kind) for anchor in found] == [(0, "system_message"), (2, "system_message")]


def test_the_latest_tool_result_is_an_anchor() -> None:
    found = identify(talk(3))
    assert [(anchor.place, anchor.kind) for anchor in found] == [(10, "latest_tool_result")]


def test_marked_messages_are_instruction_anchors() -> None:
    (found,) = identify([said("a"), said("b")], marked={1: "the tone"})
    assert (found.place, found.kind, found.description) == (1, "instruction_anchor", "the tone")


def test_a_selector_of_ones_own_finds_custom_anchors() -> None:
    rule = AnchorDefinition(
        kind="custom",
        priority=7,
        selector=lambda content, at, contents: "error" in content.text and at < len(contents) - 1,
        description="errors",
    )
    found = identify([said("error one"), said("fine"), said("error two")], rules=[rule])
    assert [(anchor.place, anchor.priority, anchor.description) for anchor in found] == [(0, 7, "errors")]


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
    result = cut(contents, anchors=anchors)
    assert {20, 21, 22} <= set(result.kept)
    assert result.anchors == anchors
    assert len(result.removed) > 8


def test_an_anchor_keeps_its_exchange_whole_and_its_turn_opened() -> None:
    contents = talk()
    result = cut(contents, anchors=anchored(contents, {22: "a result"}))
    assert {20, 21, 22} <= set(result.kept)
    assert 23 not in result.kept
    assert torn([contents[at] for at in result.kept]) == ()


def test_where_not_all_fit_the_lowest_priority_goes_and_is_named() -> None:
    contents = talk(14, size=20)
    marked = {at: f"note {at}" for at in range(6, 46, 4)}
    result = cut(contents, 3_000, anchors=anchored(contents, marked))
    assert 0 < len(result.anchors) < len(marked) + 1
    assert "no room for the anchor note" in result.note
    assert result.tokens_after <= conversation(contents).budget.most


def test_the_highest_priority_is_the_last_to_go() -> None:
    contents = talk(14, size=60)
    anchors = [
        Anchor(place=10, kind="custom", priority=1, description="low"),
        Anchor(place=22, kind="custom", priority=9, description="high"),
        Anchor(place=34, kind="custom", priority=5, description="middle"),
    ]
    for window in range(6_000, 1_500, -500):
        left = [anchor.description for anchor in cut(contents, window, anchors=anchors).anchors]
        assert left == [name for name in ("high", "middle", "low") if name in left]
        assert left in ([], ["high"], ["high", "middle"], ["high", "middle", "low"])


def test_preservation_is_validated() -> None:
    contents = talk()
    held = conversation(contents, anchors=anchored(contents, {20: "the limit"}))
    validate(held, trim(held, options()))
    broken = decided(held, "mine", removed=[Removed(index=20, reason="strategy")])
    with pytest.raises(AnchorPreservationError) as caught:
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
    assert torn([contents[at] for at in result.kept]) == ()
    assert is_human(contents[result.kept[0]])
    assert contents[-1] is contents[result.kept[-1]]
    if not result.note:
        validate(held, result)
    assert result.tokens_after <= result.tokens_before or result.summary


# heads and tails


def test_the_first_messages_stay() -> None:
    assert set(range(3)) <= set(cut(talk()).kept)


def test_the_last_messages_stay() -> None:
    contents = talk()
    assert set(range(len(contents) - 5, len(contents))) <= set(cut(contents).kept)


def test_the_middle_goes_first_and_from_the_oldest() -> None:
    contents = talk()
    gone = [one.index for one in cut(contents, 3_500).removed]
    assert gone
    assert all(contents[at].role == "model" or contents[at].responses or at < max(gone) for at in gone)
    assert max(gone) < len(contents) - 5
    assert max(gone) + 1 < len(contents) - 5


def test_heads_and_tails_are_configurable() -> None:
    contents = talk()
    for head, tail in ((1, 1), (6, 2), (2, 8), (0, 0)):
        result = trim(conversation(contents), options(heads_tails={"head": head, "tail": tail}))
        parts = units(contents)
        stay = {index for unit in (*parts[:head], *parts[len(parts) - tail :]) for index in unit.indices}
        assert stay <= set(result.kept)


def test_nothing_breaks_the_flow_of_a_conversation() -> None:
    """No exchange is torn, and no answer stands without the message that opened its turn."""
    contents = talk(20)
    for window in range(1_200, 6_000, 300):
        result = cut(contents, window)
        assert torn([contents[at] for at in result.kept]) == ()
        kept = set(result.kept)
        for unit in units(contents):
            if kept.issuperset(unit.indices) and unit.kind != "human":
                opening = next(one for one in units(contents) if one.turn == unit.turn and one.kind == "human")
                assert kept.issuperset(opening.indices)


def test_under_the_high_water_mark_nothing_goes() -> None:
    result = cut(talk(), 100_000)
    assert not result.changes
    assert result.act is None


def test_a_cut_goes_down_to_the_low_water_mark_in_one_act() -> None:
    held = conversation(talk(40), 8_000)
    result = trim(held, options())
    assert held.used > held.budget.cut_above
    assert result.tokens_after <= held.budget.cut_to + 40


def test_a_result_says_what_went_and_what_it_saved() -> None:
    held = conversation(talk())
    result = trim(held, options())
    assert len(result.kept) + len(result.removed) == len(held.contents)
    assert {one.reason for one in result.removed} == {"middle"}
    assert result.freed_tokens == result.tokens_before - result.tokens_after > 0
    assert result.act.removed == len(result.removed)
    assert result.act.lost_tokens > 0
    assert "question 2" in result.summary


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
    assert cut(contents, 1_000).kept == tuple(range(count))
    squeezed = [contents[at] for at in cut(contents, 256).kept]
    assert torn(squeezed) == ()
    assert squeezed[-1:] == contents[-1:]


def test_a_conversation_of_two_thousand_messages_is_cut() -> None:
    contents = talk(500)
    result = cut(contents, 16_000)
    assert result.tokens_after <= 8_000
    assert torn([contents[at] for at in result.kept]) == ()


def test_the_defaults_are_a_head_of_three_and_a_tail_of_five() -> None:
    settings = ConversationSettings().heads_tails
    assert (settings.head, settings.tail) == (3, 5)


def test_an_estimate_of_the_savings_is_what_is_saved() -> None:
    """What a result says it freed is the difference that counting what is left again gives."""
    held = conversation(talk())
    result = trim(held, options())
    again = conversation(rendered(held, result))
    assert abs(result.freed_tokens - (held.used - again.used)) <= 8


def test_nothing_is_changed_in_place() -> None:
    contents = talk()
    before = [content.digest for content in contents]
    cut(contents)
    assert [content.digest for content in contents] == before


def test_anchors_survive_all_cuts_of_a_long_session() -> None:
    chat = chatted(
        state={"aether:anchors": [{"contains": "never touch the ledger"}]},
        script=["ok", "ok", *(one for _ in range(6) for one in loop(12))],
    )
    chat.say("hello", "Please never touch the ledger.", *(f"look up more, part {at}" for at in range(6)))
    assert sum(bool(one.strategy_acts) for one in chat.manifests()) > 3
    assert all("never touch the ledger" in "".join(one.wires) for one in chat.sent[1:])
    check(chat)


# summaries


def test_the_last_messages_are_kept_word_for_word() -> None:
    contents = talk(30)
    result = trim(conversation(contents), options("summarize"))
    assert set(units(contents)[-10].indices) <= set(result.kept)


def test_summaries_are_bounded_and_go_on_from_the_one_before() -> None:
    contents = talk(30)
    held = conversation(contents, 4_000, summary="- user: my name is Ada")
    result = trim(held, options("summarize"))
    assert "my name is Ada" in result.summary
    assert held.counter.count(result.summary) <= 0.12 * held.budget.input


def test_summaries_need_a_place() -> None:
    with pytest.raises(PolicyError, match="leaves the strategy 'summarize' no place"):
        PackPolicy(conversation={"strategy": "summarize", "summary_share": 0})


def test_heads_and_tails_work_together_with_summaries() -> None:
    contents = talk(40)
    settings = ConversationSettings(strategy=("heads_tails", "summarize"), heads_tails={"head": 4, "tail": 12})
    held = conversation(contents, 1_000)
    heads_tails, summarize = strategies_of(settings)
    alone = heads_tails.trim(held)
    left = held.after(alone)
    both = summarize.trim(left)
    assert both.tokens_after < alone.tokens_after
    assert torn(left.after(both).contents) == ()


# choosing and registering


def test_a_strategy_is_selected_by_the_conversations_shape() -> None:
    loop = [said("go")] + [one for at in range(40) for one in talk(1, 12)[1:3]]
    dialogue = [one for at in range(80) for one in (said(f"question {at} " * 9), said(f"answer {at} " * 9, "model"))]

    def chosen(contents: Sequence[Content], window: int = 3_000) -> Selection:
        return select_strategy(conversation(contents, window))

    assert [chosen(one).shape.kind for one in (talk(3), loop, talk(30), dialogue)] == [
        "short",
        "loop",
        "session",
        "dialogue",
    ]
    for one in (talk(3), loop, talk(30), dialogue):
        assert chosen(one).strategy in strategy_names()
        assert chosen(one).rule.startswith(f"{chosen(one).shape.kind}: ")
    assert chosen(loop, 200_000).shape.kind == "short"


class Latest:
    """Keeps the first message and the latest ones, without a share of those between."""

    name = "latest"
    early = False

    def __init__(self, share: float) -> None:
        self.share = share

    def trim(self, conversation: Conversation) -> Decision:
        parts = units(conversation.contents)
        gone = [index for unit in parts[1 : 1 + int(self.share * len(parts))] for index in unit.indices]
        removed = [Removed(index=at, reason="strategy") for at in sorted(gone)] if len(parts) > 6 else []
        return decided(conversation, self.name, removed=removed, summary="- half of it" if removed else None)


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


@dataclass(frozen=True)
class Wrong:
    """Takes what it is told to."""

    takes: Callable[[Conversation], Iterable[int]]
    early: bool
    name: str = "wrong"

    def trim(self, conversation: Conversation) -> Decision:
        gone = [Removed(index=at, reason="strategy") for at in self.takes(conversation)]
        return decided(conversation, self.name, removed=gone, lasting=not self.early)


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize(
    ("takes", "said"),
    [
        (lambda held: [at for at, one in enumerate(held.contents) if one.calls][:1], "would tear the exchange"),
        (lambda held: range(len(held.contents)), "which the model has yet to answer"),
        (lambda held: [0] if len(held.contents) > 2 else [], "which is not a person's"),
    ],
)
def test_a_strategy_of_ones_own_never_leaves_a_request_that_no_provider_takes(
    takes: Any, said: str, early: bool
) -> None:
    register_strategy("wrong", lambda settings: Wrong(takes, early))
    try:
        chat = Chat(policy=PackPolicy(conversation={"strategy": "wrong"}), tools=[look_up], script=["hi", *loop(4)])
        chat.say("hello", "look it up")
        notes = [note for one in chat.manifests() for note in one.degradations]
        assert any(note.startswith("strategy 'wrong' changed nothing: ") and said in note for note in notes)
        assert all(one.strategy_acts == () for one in chat.manifests())
        chat.replays()
    finally:
        unregister_strategy("wrong")


def test_an_unknown_strategy_is_named_with_its_cure_at_the_start() -> None:
    with pytest.raises(PolicyError, match="'heads_tail' is unknown: did you mean 'heads_tails'"):
        Chat(policy=PackPolicy(conversation={"strategy": "heads_tail"}))


@pytest.mark.parametrize("name", ["", "epochs", "none"])
def test_names_of_the_package_cannot_be_taken(name: str) -> None:
    with pytest.raises(PolicyError, match="empty or taken"):
        register_strategy(name, lambda settings: Latest(0.5))


def test_what_looks_at_what_the_host_sent_comes_first() -> None:
    with pytest.raises(PolicyError, match="'sliding_turns' looks at what the host sent"):
        Chat(policy=PackPolicy(conversation={"strategy": ["heads_tails", "sliding_turns"]}))


@pytest.mark.parametrize("strategy", [[], ["epochs", "epochs"]])
def test_a_strategy_is_named_once(strategy: list[str]) -> None:
    with pytest.raises(PolicyError, match="needs one name or more"):
        PackPolicy(conversation={"strategy": strategy})


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
def test_every_strategy_stays_valid_inside_the_window_and_replays(strategy: Any) -> None:
    policy = PackPolicy(max_input_tokens=3_000, conversation={"strategy": strategy}, usage={"gate": 0})
    chat = chatted(policy=policy, script=[*loop(8), *loop(9), "ok", *loop(14)])
    chat.say("hello", "again " * 50, "quickly", "and once more")
    assert len(chat.sent) == 35
    assert any(one.strategy_acts for one in chat.manifests())
    check(chat)


def test_the_first_message_stands_before_the_summary_in_every_request() -> None:
    chat = chatted(script=[*loop(14), *loop(14)])
    chat.say("my name is Ada", "and now?")
    assert all(one.contents[0].parts[0].text == "my name is Ada" for one in chat.sent)
    assert any(act.strategy == "heads_tails" for one in chat.manifests() for act in one.strategy_acts)
    check(chat)


def test_other_workers_come_to_the_same_bytes() -> None:
    def sent(restart: bool) -> list[tuple[str, ...]]:
        chat = chatted(script=[*loop(9), *loop(9), *loop(9)])
        for message in ("one", "two", "three"):
            if restart:
                chat.restart()
            chat.say(message)
        return [one.wires for one in chat.sent]

    assert sent(restart=True) == sent(restart=False)


def test_a_message_marked_in_state_by_its_text_survives() -> None:
    chat = chatted(
        state={"aether:anchors": [{"contains": "never touch the ledger", "priority": 90}]},
        script=["ok", "ok", *loop(25)],
    )
    chat.say("hello", "Please never touch the ledger.", "now look it all up")
    assert "never touch the ledger" in chat.sent[-1].text
    assert [anchor.kind for anchor in chat.manifests()[-1].anchors] == ["instruction_anchor"]
    check(chat)


def marked_event(chat: Chat, metadata: Any) -> str:
    """Puts an event with a message and metadata into the session; returns the event's id."""
    event = Event(
        author="user",
        invocation_id="before",
        content=types.UserContent(parts=[types.Part(text="The limit is 200 euros.")]),
        custom_metadata=metadata,
    )

    async def put() -> None:
        session = await chat.held()
        await chat.sessions.append_event(session, event)

    asyncio.run(put())
    return event.id


@pytest.mark.parametrize("value", [True, {"priority": 70, "description": "the limit"}])
def test_a_message_marked_in_its_events_metadata_survives(value: Any) -> None:
    chat = chatted(script=["ok", *loop(25)])
    chat.say("hello")
    marked_event(chat, {"aether:anchors": value})
    chat.say("now look it all up")
    assert "The limit is 200 euros." in "".join(chat.sent[-1].wires)
    check(chat)


def test_a_message_marked_in_state_by_its_events_id_survives() -> None:
    chat = chatted(script=["ok", *loop(25)])
    chat.say("hello")
    name = marked_event(chat, None)
    marked_event(chat, None)

    async def mark() -> None:
        session = await chat.held()
        change = Event(author="user", actions={"state_delta": {"aether:anchors": [name, "no-such-event", 7]}})
        await chat.sessions.append_event(session, change)

    asyncio.run(mark())
    chat.say("now look it all up")
    assert len(chat.manifests()[-1].anchors) == 1
    check(chat)


def test_marks_hold_under_every_strategy_and_in_the_net() -> None:
    for strategy in ("epochs", "sliding_turns", "stable_prefix", "summarize", "none"):
        chat = chatted(
            policy=PackPolicy(max_input_tokens=3_000, conversation={"strategy": strategy}, usage={"gate": 0}),
            state={"aether:anchors": [{"contains": "never touch the ledger"}]},
            script=["ok", "ok", *loop(25)],
        )
        chat.say("hello", "Please never touch the ledger.", "now look it all up")
        assert "never touch the ledger" in "".join(chat.sent[-1].wires), strategy
        check(chat)


def test_rules_registered_from_outside_hold_and_a_failing_one_ends_no_run() -> None:
    register_anchor("prices", lambda content, at, contents: "euros" in content.text)
    register_anchor("broken", lambda content, at, contents: 1 / 0 > at)
    try:
        chat = chatted(script=["ok", "ok", *loop(25)])
        chat.say("hello", "It costs 90 euros.", "now look it all up")
        last = chat.manifests()[-1]
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


@pytest.mark.parametrize("strategy", ["epochs", "stable_prefix", "sliding_turns", "heads_tails", "summarize", "none"])
def test_a_cut_by_hand_is_made_once_at_the_next_call(strategy: str) -> None:
    chat = chatted(policy=PackPolicy(conversation={"strategy": strategy}), script=loop(6))
    chat.say("hello")
    chat.llm.script = ["ok", "ok"]

    async def ask() -> None:
        session = await chat.held()
        await chat.sessions.append_event(session, cut_now(session))

    asyncio.run(ask())
    chat.say("go on", "and on")
    before, after, later = chat.manifests()[-3:]
    assert before.strategy_acts == ()
    assert after.epoch_reason == "by_hand"
    assert {event.reason for event in after.truncation_events} == {"by_hand"}
    assert sum(act.freed_tokens for act in after.strategy_acts) > 0
    assert later.strategy_acts == ()
    assert later.epoch.asked == after.asked != ""
    chat.replays()


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


@pytest.mark.parametrize("strategy", ["epochs", "stable_prefix", "sliding_turns", "summarize", "none"])
def test_a_cut_by_hand_that_would_free_nothing_is_not_made_and_says_so(strategy: str) -> None:
    chat = chatted(policy=PackPolicy(conversation={"strategy": strategy, "last_turns": 1}), script=["yes", "no", "ok"])
    chat.say("Is O-41 open?", "And O-42?")

    async def ask() -> None:
        await chat.sessions.append_event(await chat.held(), cut_now(await chat.held()))

    asyncio.run(ask())
    chat.say("go on", "and on")
    after, later = chat.manifests()[-2:]
    assert all(act.freed_tokens > 0 for act in after.strategy_acts)
    if not after.strategy_acts:
        assert len(after.degradations) == 1
        assert "the cut that was asked for was not made" in after.degradations[0]
        assert len(chat.sent[-2].contents) == len(chat.raw[-2].contents)
    assert later.degradations == ()
    assert later.strategy_acts == ()
    chat.replays()


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


def test_the_tool_stays_declared_where_a_step_names_its_tools() -> None:
    plan = {"step": {"text": "Look it up", "acceptance": ["it is known"], "tools": ["look_up"]}}
    chat = chatted(
        policy=PackPolicy(), tools=[look_up, big_file, *context_tools()], state={"plan": plan}, script=["ok"]
    )
    chat.say("hello")
    assert set(chat.manifests()[-1].tools.sent) == {"look_up", "cut_now"}


def test_a_cut_asked_for_in_another_session_is_not_this_ones() -> None:
    chat = chatted(policy=PackPolicy(), state={"aether:cut": {"session": "other", "id": "e1"}}, script=loop(4))
    chat.say("hello")
    assert all(one.asked == "" and one.strategy_acts == () for one in chat.manifests())


# effectiveness


def test_what_each_strategy_did_is_in_the_manifest() -> None:
    chat = chatted(script=loop(25))
    chat.say("hello")
    for one in chat.manifests():
        events = [event for event in one.truncation_events if event.strategy]
        assert {event.strategy for event in events} == {act.strategy for act in one.strategy_acts}
        for act in one.strategy_acts:
            assert act.freed_tokens > 0
            named = sum(len(event.item_ids) for event in events if event.strategy == act.strategy)
            assert act.removed + act.replaced == named


def test_usage_says_what_each_strategy_did(tmp_path: Path) -> None:
    store = PackStore(str(tmp_path / "packs"))
    chat = chatted(store=store, script=[*loop(25), "ok"])
    chat.say("hello")

    async def ask() -> None:
        await chat.sessions.append_event(await chat.held(), cut_now(await chat.held()))

    asyncio.run(ask())
    chat.say("go on")
    acts = [act for one in chat.manifests() for act in one.strategy_acts]
    result = CliRunner().invoke(main, ["usage", "--json", "--store", store.url])
    found = json.loads(result.stdout)["strategies"]
    assert set(found) == {act.strategy for act in acts} == {"heads_tails"}
    assert found["heads_tails"] == {
        "cuts": len(acts),
        "removed": sum(act.removed for act in acts),
        "replaced": 0,
        "freed_tokens": sum(act.freed_tokens for act in acts),
        "lost_tokens": sum(act.lost_tokens for act in acts),
    }
    assert found["heads_tails"]["lost_tokens"] > 0
    lines = [line.split() for line in CliRunner().invoke(main, ["usage", "--store", store.url]).stdout.splitlines()]
    assert ["strategy", "cuts", "removed", "replaced", "freed", "read", "anew"] in lines
    columns = ("cuts", "removed", "replaced", "freed_tokens", "lost_tokens")
    assert ["heads_tails", *(f"{found['heads_tails'][column]:,}" for column in columns)] in lines


# speed


def test_a_thousand_messages_are_cut_in_well_under_half_a_second() -> None:
    held = conversation(talk(250), 16_000)
    for name in strategy_names():
        assert best_of(3, lambda name=name: trim(held, options(name))) < 500


def test_strategies_are_selected_and_anchors_found_at_once() -> None:
    contents = talk(250)
    held = conversation(contents, 16_000)
    assert best_of(5, lambda: select_strategy(held)) < 10
    assert best_of(5, lambda: identify(contents, marked={9: "m"})) < 50
