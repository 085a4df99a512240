"""Previews: the request that the session's next call would really be sent, and nothing touched on the way."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from google.adk.evaluation.eval_case import (
    EvalCase,
    IntermediateData,
    Invocation,
    InvocationEvent,
    InvocationEvents,
    SessionInput,
)
from google.adk.evaluation.eval_set import EvalSet
from google.adk.sessions.session import Session
from google.genai import types
from scripted import Chat, big_file, call, look_up
from terminal import run, told

from aether_context import PackPolicy
from aether_context.adk import preview_strategies

PLAN = {
    "task": "Write the guide",
    "steps": [{"id": "s1", "text": "Find the rules", "acceptance": ["The rules are listed"]}],
}
POLICY = PackPolicy.load("chat", max_input_tokens=2_000)


def chatted(*messages: str, **more: Any) -> tuple[Chat, Session]:
    """A conversation, and a copy of its session."""
    chat = Chat(policy=POLICY, tools=[look_up, big_file], **more)
    chat.say(*messages)
    return chat, asyncio.run(chat.held()).model_copy(deep=True)


@pytest.fixture
def evalset_path(tmp_path: Path) -> Path:
    """An evalset as ADK writes it: a case with ids and one that somebody wrote by hand, without any."""
    part = types.Part
    ask, answer = types.UserContent(part(text="Where is order 7?")), types.ModelContent(part(text="It left on Friday."))
    wrote = InvocationEvents(
        invocation_events=[
            InvocationEvent(author="clerk", content=types.ModelContent([call("look_up", key="order 7")])),
            InvocationEvent(
                author="clerk",
                content=types.UserContent(part.from_function_response(name="look_up", response={"left": "Friday"})),
            ),
        ]
    )
    by_hand = IntermediateData(
        tool_uses=[types.FunctionCall(name="look_up", args={"key": key}) for key in "ab"],
        tool_responses=[
            types.FunctionResponse(name="look_up", response={"left": day}) for day in ("Monday", "Tuesday")
        ],
    )
    cases = [
        EvalCase(
            eval_id=name,
            conversation=[
                Invocation(user_content=ask, intermediate_data=data, final_response=answer),
                Invocation(user_content=types.UserContent(part(text="And the bill?"))),
            ],
            session_input=SessionInput(app_name="shop", user_id="ann", state={"city": "Oslo"}),
        )
        for name, data in (("recorded", wrote), ("by_hand", by_hand))
    ]
    path = tmp_path / "orders.evalset.json"
    path.write_text(EvalSet(eval_set_id="orders", eval_cases=cases).model_dump_json(by_alias=True), encoding="utf-8")
    return path


def test_a_case_of_an_evalset_is_packed_like_a_session(evalset_path: Path) -> None:
    manifest = told("preview", evalset_path)
    assert (manifest["app"], manifest["session"], manifest["agent"]) == ("shop", "recorded", "clerk")
    request = told("preview", evalset_path, "--system", "You help in {city}.", "--request")
    assert "Oslo" in json.dumps(request)
    texts = [json.dumps(content) for content in request["contents"]]
    assert [part in text for part, text in zip(("order 7", "look_up", "Friday", "Friday", "bill"), texts, strict=True)]
    request = told("preview", evalset_path, "--case", "by_hand", "--request")
    calls, responses = (
        [text for text in map(json.dumps, request["contents"]) if kind in text]
        for kind in ("function_call", "function_response")
    )
    assert len(calls) == len(responses) == 2
    assert [("Monday" in text, "Tuesday" in text) for text in responses] == [(True, False), (False, True)]


def test_the_command_takes_an_evalset_and_names_the_cases_that_it_has(evalset_path: Path) -> None:
    assert "by_hand" in run("preview", evalset_path, "--case", "by_hand").output
    assert "it has 'recorded', 'by_hand'" in run("preview", evalset_path, "--case", "lost", code=3).output


def files(chat: Chat) -> list[str]:
    chat.manifests()  # waits for what is queued
    return sorted(file.path for file in chat.store.files.below(chat.store.files.root))


@pytest.mark.parametrize("state", [{}, {"plan": PLAN, "knowledge": {"notes": ["Rules are in the rules folder"]}}])
def test_the_next_message_is_packed_as_it_then_is(state: dict[str, Any]) -> None:
    messages = [f"question {at}: " + "some words to fill the window " * 30 for at in range(6)]
    chat, session = chatted(*messages, state=state, script=["hi", call("look_up", key="a"), "found"])
    called: Any = {"system": "You help.", "tools": [look_up, big_file]}
    before = files(chat)
    strategies = [POLICY.conversation.strategy]
    (found,) = preview_strategies(
        session, policy=POLICY, strategies=strategies, message="Which rules?", model=chat.model, **called
    )
    pack = found.pack
    assert files(chat) == before
    chat.say("Which rules?")
    manifest = chat.latest()
    assert pack.checksum == manifest.checksum
    assert abs(pack.tokens.expected - manifest.request_tokens) <= 0.03 * manifest.request_tokens
    chat.replays()


def long_session(**more: Any) -> tuple[Chat, Session]:
    """A conversation that its next message takes over the window, and a copy of its session."""
    chat = Chat(
        policy=PackPolicy(max_input_tokens=3_000, usage={"gate": 0}, **more),
        tools=[look_up],
        script=[*(call("look_up", key=f"k{at}") for at in range(4)), "found", "noted"],
    )
    chat.say("Look it all up", "Thank you. " * 40)
    return chat, asyncio.run(chat.held()).model_copy(deep=True)


LONG = "And this is what I know of it: " + "the order was shipped on time, as agreed. " * 160


@pytest.mark.parametrize("strategy", ["epochs", "heads_tails", "summarize", "stable_prefix", "sliding_turns"])
def test_what_a_preview_says_is_what_the_strategy_then_does(strategy: str) -> None:
    chat, session = long_session(conversation={"strategy": strategy, "compact_at": 0.8})
    (found,) = preview_strategies(
        session,
        policy=chat.policy,
        strategies=[strategy],
        message=LONG,
        model=chat.model,
        system="You help.",
        tools=[look_up],
    )
    assert chat.latest().strategy_acts == ()
    chat.say(LONG)
    acts = chat.latest().strategy_acts
    assert acts
    assert found.strategy == (strategy,)
    assert found.removed + found.replaced > 0
    assert found.freed_tokens == sum(act.freed_tokens for act in acts)
    assert found.removed == sum(act.removed for act in acts)
    assert found.replaced == sum(act.replaced for act in acts)
    assert found.lost_tokens == max(act.lost_tokens for act in acts)
    assert found.pack.checksum == chat.latest().checksum


def test_a_file_that_is_no_session_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "session.json"
    assert "cannot be read" in run("preview", path, code=3).output
    for text in ("{}", "not json", "[]"):
        path.write_text(text)
        assert "is neither an exported ADK session nor an evalset" in run("preview", path, code=3).output


@pytest.mark.parametrize(
    ("arguments", "code"), [([], 2), (["gone.json"], 3), (["gone.json", "--policy", "gone.toml"], 3)]
)
def test_the_command_says_what_is_wrong_by_its_exit_code(arguments: list[str], code: int) -> None:
    assert "Error" in run("preview", *arguments, code=code).output
