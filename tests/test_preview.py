"""Previews: the request that the session's next call would really be sent, and nothing touched on the way."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from google.adk.sessions.session import Session
from scripted import Chat, big_file, call, look_up

from aether_context import PackPolicy
from aether_context.adk import preview_strategies
from aether_context.adk.preview import preview, read_session
from aether_context.adk.services.recorder import Recorder
from aether_context.cli import main
from aether_context.errors import SessionError
from aether_context.store.recording import request_json
from aether_context.store.replay import Replayer

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


def run(*arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(main, ["preview", *arguments])
    assert result.exit_code == code, result.output
    return result


@pytest.mark.parametrize("state", [{}, {"plan": PLAN, "knowledge": {"notes": ["Rules are in the rules folder"]}}])
def test_the_next_message_is_packed_as_it_then_is(state: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    messages = [f"question {at}: " + "some words to fill the window " * 30 for at in range(8)]
    chat, session = chatted(*messages, state=state, script=["hi", call("look_up", key="a"), "found"])
    queued: list[object] = []
    with monkeypatch.context() as patched:
        patched.setattr(Recorder, "later", lambda _, job: queued.append(job))
        called = {"system": "You help.", "tools": [look_up, big_file]}
        pack, _ = preview(session, policy=POLICY, message="Which rules?", **called)
    assert not queued
    chat.say("Which rules?")
    manifest = chat.manifests()[-1]
    assert pack.checksum == manifest.checksum
    assert abs(pack.tokens.expected - manifest.request_tokens) <= 0.03 * manifest.request_tokens
    sent = Replayer(chat.store).replay(manifest)
    assert request_json(pack) == sent.request


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
        session, policy=chat.policy, strategies=[strategy], message=LONG, system="You help.", tools=[look_up]
    )
    assert chat.manifests()[-1].strategy_acts == ()
    chat.say(LONG)
    acts = chat.manifests()[-1].strategy_acts
    assert acts
    assert found.strategy == (strategy,)
    assert found.removed + found.replaced > 0
    assert found.freed_tokens == sum(act.freed_tokens for act in acts)
    assert found.removed == sum(act.removed for act in acts)
    assert found.replaced == sum(act.replaced for act in acts)
    assert found.lost_tokens == max(act.lost_tokens for act in acts)
    assert found.pack.checksum == chat.manifests()[-1].checksum


def test_a_file_that_is_no_session_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "session.json"
    with pytest.raises(SessionError, match="cannot be read"):
        read_session(path)
    for text in ("{}", "not json", "[]"):
        path.write_text(text)
        with pytest.raises(SessionError, match="is not an exported ADK session"):
            read_session(path)


@pytest.mark.parametrize(
    ("arguments", "code"), [([], 2), (["gone.json"], 3), (["gone.json", "--policy", "gone.toml"], 3)]
)
def test_the_command_says_what_is_wrong_by_its_exit_code(arguments: list[str], code: int) -> None:
    assert "Error" in run(*arguments, code=code).output
