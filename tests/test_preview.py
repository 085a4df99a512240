"""Previews: the request that the session's next call would really be sent, and nothing touched on the way."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from google.adk.sessions.session import Session
from scripted import Chat, Failure, big_file, call, look_up, new_store

from aether_context import PackPolicy
from aether_context.adk import preview_strategies
from aether_context.adk.preview import PLACEHOLDER, preview, read_session
from aether_context.adk.services.recorder import Recorder
from aether_context.canonical import canonical_json
from aether_context.cli import main
from aether_context.conversation import (
    Conversation,
    Decision,
    Removed,
    decided,
    register_strategy,
    strategy_names,
    units,
    unregister_strategy,
)
from aether_context.errors import PolicyError, SessionError
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


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    """A file with a planned session that waits for a message."""
    told = "what the rules say of late orders " * 20
    _, session = chatted("hello", "and then?", state={"plan": PLAN}, script=[told, "more"])
    path = tmp_path / "session.json"
    path.write_text(session.model_dump_json(), encoding="utf-8")
    return path


# what is previewed is what is sent


@pytest.mark.parametrize("state", [{}, {"plan": PLAN, "knowledge": {"notes": ["Rules are in the rules folder"]}}])
def test_the_next_message_is_packed_as_it_then_is(state: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    messages = [f"question {at}: " + "some words to fill the window " * 30 for at in range(8)]
    chat, session = chatted(*messages, state=state, script=["hi", call("look_up", key="a"), "found"])
    queued: list[object] = []
    with monkeypatch.context() as patched:
        patched.setattr(Recorder, "later", lambda _, job: queued.append(job))
        pack = preview(
            session, policy=POLICY, message="Which rules?", system="You help.", tools=[look_up, big_file]
        ).pack
    assert not queued
    chat.say("Which rules?")
    manifest = chat.manifests()[-1]
    assert pack.checksum == manifest.checksum
    assert abs(pack.request_tokens - manifest.request_tokens) <= 0.03 * manifest.request_tokens
    sent = Replayer(chat.store).replay(manifest)
    assert request_json(pack) == sent.request


def test_a_run_that_was_cut_short_goes_on() -> None:
    chat, _ = chatted("hello", script=["hi"], state={"plan": PLAN})
    chat.llm.script = [call("look_up", key="a"), Failure("down")]
    with pytest.raises(Failure):
        chat.say("Look a up")
    session = asyncio.run(chat.held())
    pack = preview(session, policy=POLICY, system="You help.", tools=[look_up, big_file]).pack
    assert pack.checksum == chat.manifests()[-1].checksum
    assert pack.contents[-1].content.responses[0].name == "look_up"


def test_a_session_that_waits_for_a_message_gets_a_stand_in() -> None:
    _, session = chatted("hello", script=["hi"])
    for waiting in (session, Session(id="s", app_name="a", user_id="u")):
        assert preview(waiting, policy=POLICY).pack.contents[-1].content.text == PLACEHOLDER


def test_a_cut_that_the_session_holds_stays() -> None:
    messages = [f"question {at}: " + "some words to fill the window " * 60 for at in range(12)]
    _, session = chatted(*messages, script=["answer"] * 12)
    pack = preview(session, policy=POLICY, message="And now?").pack
    assert pack.source.epoch.cut_count > 0
    assert len(pack.contents) < len(messages)
    assert pack.request_tokens <= 2_000


# what each strategy would do


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


def test_all_strategies_are_previewed_the_policys_first_and_registered_ones_too() -> None:
    class Later:
        name = "later"
        early = False

        def trim(self, conversation: Conversation) -> Decision:
            parts = units(conversation.contents)
            gone = sorted(index for unit in parts if unit.turn == 0 for index in unit.indices)
            return decided(conversation, self.name, removed=[Removed(index=at, reason="strategy") for at in gone])

    chat, session = long_session(conversation={"strategy": "heads_tails"})
    register_strategy("later", lambda settings: Later())
    try:
        found = preview_strategies(session, policy=chat.policy, message="And now?")
        assert [one.strategy for one in found] == [
            ("heads_tails",),
            *((n,) for n in strategy_names() if n != "heads_tails"),
        ]
        later = next(one for one in found if one.strategy == ("later",))
        assert later.removed > 0
        together = preview_strategies(
            session, policy=chat.policy, message="And now?", strategies=[["stable_prefix", "later"]]
        )
        assert together[0].strategy == ("stable_prefix", "later")
    finally:
        unregister_strategy("later")
    with pytest.raises(PolicyError, match="'later' is unknown"):
        preview_strategies(session, policy=chat.policy, strategies=["later"])


def test_a_preview_of_a_cut_by_hand_asks_nothing_of_the_session() -> None:
    chat, session = long_session()
    before = session.model_dump_json()
    plain = preview_strategies(session, policy=chat.policy, strategies=["epochs"], message="And now?")
    by_hand = preview_strategies(session, policy=chat.policy, strategies=["epochs"], message="And now?", by_hand=True)
    assert plain[0].freed_tokens == 0
    assert by_hand[0].freed_tokens > 0
    assert {event.reason for event in by_hand[0].pack.events} == {"by_hand"}
    assert session.model_dump_json() == before


# nothing is touched


def test_a_preview_is_the_same_each_time_and_changes_nothing() -> None:
    _, session = chatted("hello", script=["hi"], state={"plan": PLAN})
    before = session.model_dump_json()
    first, second = (preview(session, policy=POLICY, message="Go on.") for _ in range(2))
    assert session.model_dump_json() == before
    assert first.pack == second.pack
    assert first.recording.data == second.recording.data


def test_a_preview_writes_nothing_and_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _, session = chatted("hello", script=["hi"])
    store = new_store()
    made = preview(session, policy=POLICY)
    assert list(tmp_path.iterdir()) == []
    store.write(made.recording)
    (manifest,) = store.manifests()
    assert manifest.checksum == made.pack.checksum
    assert Replayer(store).replay(manifest).matches


def test_a_preview_can_be_made_inside_an_event_loop() -> None:
    _, session = chatted("hello", script=["hi"])

    async def made() -> int:
        return preview(session, policy=POLICY).pack.request_tokens

    assert asyncio.run(made()) > 0


def test_no_model_is_called() -> None:
    chat, session = chatted("hello", script=["hi"])
    calls = len(chat.llm.sent)
    preview(session, policy=POLICY, model=chat.llm, message="Go on.")
    assert len(chat.llm.sent) == calls


# what goes wrong


def test_a_policy_that_would_send_nothing_is_an_error_that_says_why() -> None:
    _, session = chatted("hello", script=["hi"], state={"plan": {"task": "Write"}})
    for choice in ("respond", "raise"):
        with pytest.raises(PolicyError, match="the plan has no step"):
            preview(session, policy=POLICY.model_copy(update={"on_invalid": choice}))


def test_an_agent_that_adk_does_not_take_is_an_error() -> None:
    _, session = chatted("hello", script=["hi"])
    with pytest.raises(SessionError, match="no agent named 'a b'"):
        preview(session, policy=POLICY, agent_name="a b")
    with pytest.raises(SessionError, match="state lacks"):
        preview(session, policy=POLICY, system="You serve {customer}.")


def test_a_file_that_is_no_session_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "session.json"
    with pytest.raises(SessionError, match="cannot be read"):
        read_session(path)
    for text in ("{}", "not json", "[]"):
        path.write_text(text)
        with pytest.raises(SessionError, match="is not an exported ADK session"):
            read_session(path)


# the command line


def test_the_command_prints_what_inspect_prints(exported: Path) -> None:
    output = run(str(exported), "--window", "4000", "--message", "Go on.", "--system", "You help.").stdout
    assert "“hello”" in output  # what a candidate says, as inspect shows it
    for heading in ("LAYERS", "SIGNALS", "CACHE", "CANDIDATES", "TRUNCATION EVENTS"):
        assert f"\n{heading}\n" in output
    assert "window 4,000" in output
    assert "step s1" in output
    assert "agent clerk" in output


def test_the_command_prints_json_and_the_request(exported: Path) -> None:
    manifest = json.loads(run(str(exported), "--json").stdout)
    assert manifest["step_id"] == "s1"
    request = json.loads(run(str(exported), "--json", "--request", "--message", "Go on.").stdout)
    assert canonical_json(request).count("Go on.") == 1
    assert "Go on." in run(str(exported), "--request", "--message", "Go on.").stdout


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ([], 2),
        (["gone.json"], 3),
        (["gone.json", "--policy", "gone.toml"], 3),
    ],
)
def test_the_command_says_what_is_wrong_by_its_exit_code(arguments: list[str], code: int) -> None:
    assert "Error" in run(*arguments, code=code).output
