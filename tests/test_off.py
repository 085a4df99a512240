"""An agent with ``enabled = false``: its requests stay as they came, without a record, and all else goes on."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner
from google.adk.agents import LlmAgent
from scripted import Chat, Scripted, big_file, call

from aether_context import PackPolicy, PackStore
from aether_context.lab.cli import main

READERS = ("read_artifact", "search_artifact")
LONG = " ".join(f"The house number {at} has {at * 7} windows." for at in range(300))


def moved(name: str) -> Any:
    return call("transfer_to_agent", agent_name=name)


def team(*script: Any, travel: tuple[Any, ...] = (), store: PackStore | None = None, **settings: Any) -> Chat:
    """A lead and, off, an agent for travel."""
    off = LlmAgent(
        name="travel", model=Scripted(script=list(travel), sent=[]), description="Travels.", tools=[big_file]
    )
    root = Scripted(script=list(script), sent=[])
    lead = LlmAgent(name="lead", model=root, instruction="You lead.", tools=[big_file], sub_agents=[off])
    policy = PackPolicy(max_input_tokens=8_000, agents={"travel": {"enabled": False}}, **settings)
    return Chat(agent=lead, policy=policy, **({"store": store} if store else {}))


def of_travel(chat: Chat) -> list[int]:
    return [at for at, sent in enumerate(chat.sent) if sent.agent == "travel"]


def test_its_requests_are_untouched_without_a_record_and_others_go_on():
    back = [LONG, call("big_file", name="rome"), "Rome is booked.", moved("lead")]
    chat = team(moved("travel"), "All is done.", "Bye.", travel=tuple(back))
    chat.say("To Rome. " + LONG, "And back. " + LONG, "Well?", "Thanks.")
    assert len(of_travel(chat)) >= 4
    for at in of_travel(chat):
        assert (chat.raw[at].wires, chat.raw[at].system) == (chat.sent[at].wires, chat.sent[at].system)
        assert chat.sent[at].readers == ()
    manifests = chat.manifests()
    assert {manifest.agent for manifest in manifests} == {"lead"}
    assert [manifest.number for manifest in manifests] == [*range(1, len(manifests) + 1)]
    last = chat.sent[-1]
    assert last.agent == "lead"
    assert "Rome is booked." in last.text
    assert "artifact://evidence/" in last.text, "what its tools gave is stored as what others' gave"
    assert not any(manifest.over_window for manifest in manifests)
    assert CliRunner().invoke(main, ["verify", "--store", chat.store.url]).exit_code == 0
    chat.replays()


def test_a_window_says_nothing_of_it(caplog: pytest.LogCaptureFixture):
    chat = Chat(policy=PackPolicy(enabled=False, max_input_tokens=1_000))
    chat.say(LONG * 20)
    assert "too small" not in caplog.text


def test_its_usage_counts_and_its_limits_hold():
    limits = {"agents": {"travel": {"total_tokens": 1_000}}, "on_budget": "stop"}
    chat = team(moved("travel"), travel=("one", "two"), limits=limits)
    chat.say("Hello.", "Go on.")
    report = chat.plugin.usage(app="shop", user="ann", session="s1")  # type: ignore[union-attr]
    used = {account.name: account.total.used for account in report.agents}
    assert used["travel"] > 0
    assert report.session.total.used == sum(used.values())
    assert chat.say("And this: " + LONG)[-1].error_code == "budget_exceeded"


def test_it_has_the_readers_where_an_address_can_be_seen():
    chat = team(call("big_file", name="rome"), "Look at artifact://evidence/0123456789abcdef.txt", moved("travel"))
    chat.say("Read it.", "Travel.")
    (at,) = of_travel(chat)
    assert chat.sent[at].readers == READERS
    assert chat.raw[at].wires == chat.sent[at].wires


def test_a_refusal_is_the_apps_own():
    chat = team(moved("travel"), travel=(ValueError("input is too long: 9000 tokens > 8000 maximum"),))
    with pytest.raises(ValueError, match="too long"):
        chat.say("Hello.")
    assert len(of_travel(chat)) == 1


def test_list_says_off(tmp_path: Any):
    chat = team(moved("travel"), travel=("one",), store=PackStore(tmp_path))
    chat.say("Hello.")
    shown = CliRunner().invoke(main, ["list", "--store", str(tmp_path)])
    assert shown.exit_code == 0
    assert "travel of shop is off (enabled = false)" in shown.stdout
    values = json.loads(CliRunner().invoke(main, ["list", "--json", "--store", str(tmp_path)]).stdout)
    assert [value["off"] for value in values] == [["travel"]]
