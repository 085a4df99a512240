"""`sliding_turns`: whole turns under a ceiling, kept nowhere, with a cut-off that anyone can compute."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.tools.agent_tool import AgentTool
from hypothesis import given, settings
from hypothesis import strategies as st
from packs import Session, answered, called, lines, said, tool, trim, turns
from scripted import Chat, Scripted, call, inside, look_up, new_store

from aether_context import PackPolicy
from aether_context.adk import cutoff
from aether_context.adk.packer import RequestPacker
from aether_context.conversation import Conversation, Decision, units
from aether_context.conversation.turns import torn
from aether_context.errors import PolicyError
from aether_context.pack import Content
from aether_context.policy import ConversationSettings, SlidingTurnsSettings
from aether_context.tokens import counter_for

POLICY = PackPolicy(max_input_tokens=20_000, conversation={"strategy": "sliding_turns"}, usage={"gate": 0})


def sliding(tokens: int) -> ConversationSettings:
    return ConversationSettings(strategy=("sliding_turns",), sliding_turns=SlidingTurnsSettings(tokens=tokens))


def conversation(contents: Sequence[Content], **more: Any) -> Conversation:
    return Conversation.of(contents, window=200_000, **more)


def slid(contents: Sequence[Content], tokens: int, **more: Any) -> Decision:
    return trim(conversation(contents, **more), sliding(tokens))


def first_kept(result: Decision) -> int:
    return result.kept[0]


# what goes


def test_only_whole_turns_go() -> None:
    contents = turns(10)
    for tokens in range(100, 3_000, 150):
        kept = set(slid(contents, tokens).kept)
        for turn in {unit.turn for unit in units(contents)}:
            members = {index for unit in units(contents) if unit.turn == turn for index in unit.indices}
            assert members <= kept or not members & kept


def test_no_call_and_no_result_is_orphaned() -> None:
    contents = turns(10)
    for tokens in range(100, 3_000, 150):
        assert torn([contents[at] for at in slid(contents, tokens).kept]) == ()


def test_the_oldest_go_first() -> None:
    result = slid(turns(10), 1_000)
    assert [one.index for one in result.removed] == list(range(first_kept(result)))
    assert {one.reason for one in result.removed} == {"turn_budget"}


def test_the_budget_is_a_ceiling_and_not_a_target() -> None:
    contents = turns(10)
    before = conversation(contents)
    for tokens in range(400, 3_000, 150):
        result = slid(contents, tokens)
        assert result.tokens_after <= tokens
        if result.removed:
            turn = sum(before.tokens[at] for at in range(first_kept(result) - 4, first_kept(result)))
            assert result.tokens_after + before.budget.fixed + turn > tokens


def test_at_the_ceiling_nothing_goes() -> None:
    contents = turns(10)
    whole = conversation(contents).used + conversation(contents).budget.fixed
    assert slid(contents, whole).act is None
    assert slid(contents, whole - 1).act is not None


def test_the_latest_turn_stays_even_where_it_alone_is_above() -> None:
    contents = [*turns(4), called("look_up", "x", key="x"), answered("look_up", "x", lines("x", 90))]
    result = slid(contents, 50)
    assert result.kept == tuple(range(len(contents) - 3, len(contents)))


def test_the_window_is_never_left_empty() -> None:
    assert slid([said("x" * 9_000)], 1).kept == (0,)


def test_zero_is_off() -> None:
    assert slid(turns(40), 0).removed == ()


def test_the_default_is_a_hundred_thousand() -> None:
    assert SlidingTurnsSettings().tokens == 100_000


def test_no_ceiling_is_above_what_the_window_takes() -> None:
    result = trim(Conversation.of(turns(20), window=2_000), sliding(100_000))
    assert result.tokens_after <= 1_800


def test_each_first_call_of_an_invocation_is_at_or_under_the_ceiling() -> None:
    chat = chatted(700)
    chat.say(*messages(10))
    counted = [one.counted_tokens for one in chat.manifests() if one.call == 1]
    assert all(tokens <= 700 for tokens in counted)
    assert any(act.strategy == "sliding_turns" for one in chat.manifests() for act in one.strategy_acts)


def test_a_turn_that_was_broken_off_goes_as_a_whole_too() -> None:
    """A message without an answer, and an exchange without its last words, belong to turns like any other."""
    contents = [
        said("question 0"),
        called("look_up", "c0", key="k0"),
        answered("look_up", "c0", lines("result 0", 30)),
        said("question 1"),
        *turns(4),
    ]
    gone = {one.index for one in slid(contents, 900).removed}
    assert gone >= {0, 1, 2, 3}
    assert gone == set(range(len(gone)))


def test_a_ceiling_below_zero_is_named() -> None:
    with pytest.raises(PolicyError, match="tokens"):
        PackPolicy(conversation={"sliding_turns": {"tokens": -1}})


# what counts


def test_the_system_instruction_counts() -> None:
    contents = turns(10)
    assert len(slid(contents, 2_000, system="rule " * 500).removed) > len(slid(contents, 2_000).removed)


def test_declarations_count() -> None:
    contents = turns(10)
    tools = [tool(f"tool_{at}", "does what it says " * 20) for at in range(6)]
    assert len(slid(contents, 2_000, tools=tools).removed) > len(slid(contents, 2_000).removed)


def test_calls_results_and_roles_count() -> None:
    contents = turns(3)
    said_alone = sum(counter_for("").count(content.text) for content in contents)
    assert conversation(contents).used > 2 * said_alone


@pytest.mark.parametrize("model", ["gemini-2.5-flash", "claude-sonnet-4-5", "gpt-4o", "unheard-of"])
def test_each_provider_counts_its_own_way_and_the_cut_stays_the_same_code(model: str) -> None:
    result = slid(turns(10), 1_200, model=model)
    assert 0 < len(result.removed) < 40
    assert result.tokens_after <= 1_200


# when


def test_a_turn_that_grows_prunes_nothing_more_until_the_next_message() -> None:
    store = new_store()
    host = Session(store, PackPolicy(conversation={"strategy": "sliding_turns", "sliding_turns": {"tokens": 900}}))
    for at in range(6):
        host.ask(f"question {at}: {lines('refunds', 6)}")
        host.answer(f"answer {at}: {lines('approval', 6)}")
    host.ask("And who signs?")
    hidden = [row.id for row in host.manifests[-1].rows if row.form == "left_out"]
    for at in range(6):
        host.use("look_up", lines(f"r{at}", 10))
        assert len(host.packs[-1].contents) == len(host.packs[-2].contents) + 2
        assert host.packs[-1].acts == ()
    host.answer("The manager.")
    host.ask("Thanks. And where?")
    assert host.packs[-1].acts[0].strategy == "sliding_turns"
    assert hidden


def test_within_an_invocation_each_request_extends_the_one_before() -> None:
    chat = chatted(4_000, script=[*answers(8), *(call("look_up", key=f"k{at}") for at in range(6)), "done"])
    chat.say(*messages(8))
    before = len(chat.sent)
    chat.say("look it all up")
    loop = chat.sent[before:]
    assert len(loop) == 7
    for one, other in zip(loop, loop[1:], strict=False):
        assert other.wires[: len(one.wires)] == one.wires


# kept nowhere


def test_nothing_of_it_is_in_the_sessions_state() -> None:
    chat = chatted(600)
    chat.say(*messages(10))
    held = asyncio.run(chat.held()).state
    (epoch,) = (value for key, value in held.items() if key.startswith("aether:epoch:"))
    assert "strategies" not in epoch
    assert "cut_count" not in epoch
    assert epoch["number"] == 1
    assert any(act.strategy == "sliding_turns" for one in chat.manifests() for act in one.strategy_acts)


def test_the_session_keeps_every_event() -> None:
    chat = chatted(600)
    chat.say(*messages(10))
    assert len(asyncio.run(chat.held()).events) == 20


def test_a_higher_ceiling_brings_the_turns_back() -> None:
    chat = chatted(600)
    chat.say(*messages(10))
    assert len(chat.sent[-1].contents) < 10
    wide = Chat(policy=POLICY, tools=[look_up], sessions=chat.sessions, script=["fine"], store=chat.store, agent=None)
    wide.say("and now?")
    assert wide.sent[-1].wires == wide.raw[-1].wires


def test_history_replays_from_the_store() -> None:
    chat = chatted(600)
    chat.say(*messages(10))
    chat.replays()


def test_a_long_session_costs_each_content_once() -> None:
    chat = chatted(600)
    chat.say(*messages(12))
    first = [one for one in chat.manifests() if one.contents.added]
    added = [digest for one in first for digest in one.contents.added]
    assert len(added) == len(set(added)) == 23


def test_other_workers_come_to_the_same_bytes() -> None:
    def sent(restart: bool) -> list[tuple[str, ...]]:
        chat = chatted(700)
        for at, message in enumerate(messages(10)):
            if restart and at % 3 == 2:
                chat.restart()
            chat.say(message)
        return [one.wires for one in chat.sent]

    assert sent(restart=True) == sent(restart=False)


# where the model begins to read


def test_the_cutoff_is_the_event_before_the_first_turn_that_is_read() -> None:
    chat = chatted(600)
    chat.say(*messages(10))
    session = asyncio.run(chat.held())
    event = cutoff(session, chat.plugin.policy, system="You help.", tools=[look_up])
    assert event is not None
    at = session.events.index(event)
    assert event.author == "clerk"
    assert session.events[at + 1].author == "user"
    chat.say("and now?")
    assert session.events[at + 1].content.parts[0].text == chat.sent[-1].contents[0].parts[0].text


def test_events_without_words_are_no_turns_and_move_no_cutoff() -> None:
    """State that changed, and other events that a model is never sent."""
    chat = chatted(600)
    chat.say(*messages(10))
    session = asyncio.run(chat.held())
    before = cutoff(session, chat.plugin.policy)
    quiet = Event(author="user", invocation_id="quiet", actions=EventActions(state_delta={"mark": 1}))
    places = range(0, len(session.events), 3)
    for place in reversed(places):
        session.events.insert(place, quiet.model_copy(update={"id": f"quiet-{place}"}))
    assert before is not None
    assert cutoff(session, chat.plugin.policy) == before


def test_there_is_no_cutoff_where_everything_is_read() -> None:
    chat = chatted(20_000)
    chat.say(*messages(3))
    assert cutoff(asyncio.run(chat.held()), chat.plugin.policy) is None


def test_the_cutoff_moves_forward_as_turns_go() -> None:
    chat = chatted(600)
    places = []
    for message in messages(12):
        chat.say(message)
        session = asyncio.run(chat.held())
        event = cutoff(session, chat.plugin.policy)
        places.append(session.events.index(event) if event is not None else -1)
    assert places == sorted(places)
    assert places[0] == -1
    assert places[-1] > places[len(places) // 2] > 0


def test_the_cutoff_is_the_same_each_time_and_stored_nowhere() -> None:
    chat = chatted(600)
    chat.say(*messages(8))
    session = asyncio.run(chat.held())
    before = session.model_dump_json()
    assert cutoff(session, chat.plugin.policy) == cutoff(session, chat.plugin.policy)
    assert session.model_dump_json() == before
    assert "cutoff" not in str(session.state)


def test_the_cutoff_is_not_sent_and_stands_in_the_events_metadata() -> None:
    chat = chatted(600)
    events = chat.say(*messages(8))
    noted = events[-1].custom_metadata["aether_context"]["cutoff"]
    session = asyncio.run(chat.held())
    at = next(at for at, event in enumerate(session.events) if event.id == noted)
    assert session.events[at + 1].content.parts[0].text == chat.sent[-1].contents[0].parts[0].text
    assert noted not in chat.sent[-1].text
    assert "cutoff" not in events[0].custom_metadata["aether_context"]


# configuration


def test_the_environment_overrides_the_ceiling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AETHER_CONTEXT_SLIDING_TOKENS", "200000")
    assert RequestPacker(POLICY, new_store()).policy.conversation.sliding_turns.tokens == 200_000
    assert RequestPacker(POLICY, new_store()).policy.max_input_tokens == 20_000


def test_without_the_variable_the_policy_stands() -> None:
    assert RequestPacker(POLICY, new_store()).policy is POLICY


@pytest.mark.parametrize("value", ["many", "-1", "1e5", "1.5"])
def test_a_wrong_value_in_the_environment_is_named(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("AETHER_CONTEXT_SLIDING_TOKENS", value)
    with pytest.raises(PolicyError, match=rf"AETHER_CONTEXT_SLIDING_TOKENS = '{value}'"):
        RequestPacker(POLICY, new_store())


def test_sub_agents_inherit_the_ceiling_and_slide_on_their_own() -> None:
    """A sub-agent in a session of its own works under its parent's policy, on its own history."""
    helper_script = [*(call("look_up", key=f"h{at}") for at in range(2)), "found"]
    helper = LlmAgent(
        name="helper",
        model=Scripted(model="gemini-2.5-flash", script=helper_script, sent=[]),
        instruction="You look things up.",
        tools=[look_up],
    )
    chat = chatted(600, tools=[AgentTool(agent=helper)], script=answers(6))
    chat.say(*messages(6))
    chat.llm.script = [call("helper", request="find it"), "done"]
    chat.say("ask the helper")
    parent = [one for one in chat.manifests() if one.agent == "clerk"]
    child = [one for one in chat.manifests() if one.agent == "helper"]
    assert child[0].policy == parent[-1].policy
    assert child[0].session != parent[0].session
    assert any(act.strategy == "sliding_turns" for one in parent for act in one.strategy_acts)
    assert all(one.strategy_acts == () for one in child)
    chat.replays()


# the window


def test_the_window_holds_where_the_latest_turn_alone_passes_it() -> None:
    policy = PackPolicy(max_input_tokens=3_000, conversation={"strategy": "sliding_turns"}, usage={"gate": 0})
    chat = Chat(policy=policy, tools=[look_up], script=[*(call("look_up", key=f"k{at}") for at in range(25)), "done"])
    chat.say("hello")
    assert all(inside(one, 3_000) for one in chat.manifests())
    assert any(act.strategy == "emergency" for one in chat.manifests() for act in one.strategy_acts)
    chat.replays()


def messages(count: int) -> list[str]:
    return [f"question {at}: " + "some words to fill the window " * 10 for at in range(count)]


def answers(count: int) -> list[str]:
    return [f"answer {at}" for at in range(count)]


def chatted(tokens: int, **more: Any) -> Chat:
    policy = PackPolicy(
        max_input_tokens=20_000,
        conversation={"strategy": "sliding_turns", "sliding_turns": {"tokens": tokens}},
        usage={"gate": 0},
    )
    return Chat(**{"policy": policy, "tools": [look_up], "script": answers(12), **more})


@given(st.lists(st.integers(0, 40), min_size=1, max_size=20), st.integers(50, 4_000))
@settings(max_examples=80)
def test_a_longer_history_never_brings_a_turn_back(sizes: list[int], tokens: int) -> None:
    contents: list[Content] = []
    first = 0
    for at, size in enumerate(sizes):
        contents += [said(f"question {at} " * size or "?")]
        result = slid(contents, tokens)
        assert first_kept(result) >= first
        assert contents[-1] is contents[result.kept[-1]]
        first = first_kept(result)
        contents += [called("a", f"c{at}"), answered("a", f"c{at}", "word " * size), said("well", "model")]


@pytest.mark.parametrize("ceiling", [1_500, 2_000, 4_000])
@pytest.mark.parametrize("known", ["plan", "memories", "both"])
def test_the_payload_counts_against_the_ceiling(ceiling: int, known: str) -> None:
    plan = {
        "task_id": "42",
        "goal": "Say where every ship is berthed.",
        "step": {"id": "3", "text": "Read the ledger.", "acceptance": [{"id": "a1", "text": "every ship is named"}]},
    }
    notes = [{"id": f"m{at}", "text": f"berth {at}: {lines(f'ship {at} answer', 8)}"} for at in range(12)]
    state = {
        **({"plan": plan} if known != "memories" else {}),
        **({"knowledge": {"memories": notes}} if known != "plan" else {}),
    }
    policy = PackPolicy(
        max_input_tokens=200_000,
        conversation={"strategy": "sliding_turns", "sliding_turns": {"tokens": ceiling}},
        retrieval={"recall": False},
    )
    script: list[Any] = []
    for at in range(12):
        script += [call("look_up", key=f"k{at}"), f"answer {at} {lines(f'a{at}', 12)}"]
    chat = Chat(script=script, state=state, tools=[look_up], policy=policy)
    chat.llm.usage = False
    chat.say(*(f"Which ship is at berth {at}?" for at in range(12)))
    assert all("CONTEXT PACK" in one.text for one in chat.sent)
    for manifest, request in zip(chat.manifests(), chat.sent, strict=True):
        assert manifest.request_tokens <= ceiling or not manifest.first_call or len(request.contents) == 1
    assert len(chat.sent[-2].contents) < len(chat.raw[-2].contents)
    chat.replays()
