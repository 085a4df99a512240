"""`sliding_turns`: whole turns under a ceiling, kept nowhere, with a cut-off that anyone can compute."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.tools.agent_tool import AgentTool
from hypothesis import given, settings
from hypothesis import strategies as st
from packs import Session, answered, called, lines, said, staying, tool, trim, turns
from scripted import Chat, Scripted, call, look_up, new_store

from aether_context import PackPolicy
from aether_context.adk import ContextPackPlugin, cutoff
from aether_context.conversation import Conversation, units
from aether_context.errors import PolicyError
from aether_context.pack import Content
from aether_context.policy import ConversationSettings, SlidingTurnsSettings
from aether_context.store.replay import Replayer

POLICY = PackPolicy(max_input_tokens=20_000, conversation={"strategy": "sliding_turns"}, usage={"gate": 0})


def sliding(tokens: int) -> ConversationSettings:
    return ConversationSettings(strategy=("sliding_turns",), sliding_turns=SlidingTurnsSettings(tokens=tokens))


def conversation(contents: Sequence[Content], **more: Any) -> Conversation:
    return Conversation.of(contents, window=200_000, **more)


def slid(contents: Sequence[Content], tokens: int, **more: Any) -> tuple[int, ...]:
    """The indices of the contents that stay."""
    held = conversation(contents, **more)
    return staying(held, trim(held, sliding(tokens)))


# what goes


def test_only_whole_turns_go() -> None:
    contents = turns(10)
    for tokens in range(100, 3_000, 150):
        kept = set(slid(contents, tokens))
        for turn in {unit.turn for unit in units(contents)}:
            members = {index for unit in units(contents) if unit.turn == turn for index in unit.indices}
            assert members <= kept or not members & kept


def test_the_budget_is_a_ceiling_and_not_a_target() -> None:
    contents = turns(10)
    before = conversation(contents)
    for tokens in range(400, 3_000, 150):
        decision = trim(before, sliding(tokens))
        after = before.effect(decision).tokens_after
        assert after <= tokens
        if decision.removed:
            first = staying(before, decision)[0]
            turn = sum(before.tokens[at] for at in range(first - 4, first))
            assert after + before.budget.fixed + turn > tokens


def test_the_latest_complete_turn_stays_even_where_it_alone_is_above() -> None:
    contents = [*turns(4), called("look_up", "x", key="x"), answered("look_up", "x", lines("x", 90))]
    result = slid(contents, 50)
    assert result == tuple(range(12, len(contents)))


def test_a_question_is_never_left_alone() -> None:
    """What was last done stays beside it, even where that alone is above the ceiling, as far as the window takes it."""
    contents = turns(4)
    assert slid(contents, 50) == tuple(range(12, 17))
    chat = Chat(
        policy=PackPolicy(
            max_input_tokens=20_000,
            conversation={"strategy": "sliding_turns", "sliding_turns": {"tokens": 300}},
        ),
        tools=[look_up],
        script=[*(f"answer {at} " * 200 for at in range(3)), call("look_up", key="k"), "done"],
    )
    chat.say("one", "two", "three", "four")
    assert [len(one.contents) for one in chat.sent] == [1, 3, 3, 3, 5]
    chat.replays()


def test_zero_is_off() -> None:
    assert len(slid(turns(40), 0)) == len(turns(40))


# what counts


def test_declarations_count() -> None:
    contents = turns(10)
    tools = [tool(f"tool_{at}", "does what it says " * 20) for at in range(6)]
    assert len(slid(contents, 2_000, tools=tools)) < len(slid(contents, 2_000))


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


def test_the_cutoff_moves_forward_as_turns_go() -> None:
    chat = chatted(600, offload={"mode": "off"})
    places, unsent = [], []
    for message in messages(12):
        chat.say(message)
        session = asyncio.run(chat.held())
        event = cutoff(session, chat.plugin.policy)
        places.append(session.events.index(event) if event is not None else -1)
        unsent.append(len(chat.raw[-1].contents) - len(chat.sent[-1].contents))
    # Without instruction and declarations, and with a short message to come, a turn more is under the ceiling.
    assert places == [-1, -1, -1, -1, -1, -1, 3, 3, 7, 7, 11, 11]
    assert unsent == [0, 0, 0, 0, 0, 4, 4, 8, 8, 12, 12, 16]


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
    chat = Chat(policy=POLICY)
    chat.say("Hello.")
    policy = Replayer(chat.store).policy(chat.manifests()[0])
    assert (policy.conversation.sliding_turns.tokens, policy.max_input_tokens) == (200_000, 20_000)


@pytest.mark.parametrize("value", ["many", "-1", "1e5", "1.5"])
def test_a_wrong_value_in_the_environment_is_named(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("AETHER_CONTEXT_SLIDING_TOKENS", value)
    with pytest.raises(PolicyError, match=rf"AETHER_CONTEXT_SLIDING_TOKENS = '{value}'"):
        ContextPackPlugin(policy=POLICY)


# the window


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


def messages(count: int) -> list[str]:
    return [f"question {at}: " + "some words to fill the window " * 10 for at in range(count)]


def answers(count: int) -> list[str]:
    return [f"answer {at}" for at in range(count)]


def chatted(tokens: int, offload: dict[str, str] | None = None, **more: Any) -> Chat:
    policy = PackPolicy(
        max_input_tokens=20_000,
        conversation={"strategy": "sliding_turns", "sliding_turns": {"tokens": tokens}},
        usage={"gate": 0},
        offload=offload or {},
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
        assert result[0] >= first
        assert contents[-1] is contents[result[-1]]
        first = result[0]
        contents += [called("a", f"c{at}"), answered("a", f"c{at}", "word " * size), said("well", "model")]


@pytest.mark.parametrize("ceiling", [1_500, 2_000, 4_000])
@pytest.mark.parametrize("known", ["plan", "memories", "both"])
@pytest.mark.rows(2)
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
        latest = 5  # a turn of four contents, and the question
        assert manifest.request_tokens <= ceiling or not manifest.first_call or len(request.contents) <= latest
        assert len(request.contents) >= min(latest, manifest.turn)
    assert len(chat.sent[-2].contents) < len(chat.raw[-2].contents)
    chat.replays()
