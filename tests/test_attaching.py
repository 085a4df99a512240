"""Ways to attach the plugin, the environment it reads, and which profile holds for a call."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.tools.agent_tool import AgentTool
from plans import NARROW, PLAN, cached_input_costs, planned
from scripted import Chat, Scripted, call, grow, look_up, new_store, send_mail

from aether_context import PackPolicy, PackStore
from aether_context.adk import ContextPackPlugin, context_pack_callbacks
from aether_context.errors import PolicyError
from aether_context.store.replay import Replayer


def test_what_is_no_policy_is_told_what_to_write() -> None:
    with pytest.raises(PolicyError, match="write policy='research'"):
        ContextPackPlugin("research")
    with pytest.raises(PolicyError, match=r'PackPolicy.load\("chat", max_input_tokens='):
        ContextPackPlugin(policy={"max_input_tokens": 4_000})  # type: ignore[arg-type]


def test_agent_callbacks_do_what_the_plugin_does() -> None:
    store = new_store()
    chat = Chat(
        script=[call("look_up", key="a"), "done"],
        tools=[look_up, send_mail],
        state=planned(NARROW),
        store=store,
        settings=dict(context_pack_callbacks(store=store, on_error="raise")),
        use_plugin=False,
    )
    events = chat.say("go")
    model = chat.llm
    assert [one.declared for one in model.sent] == [("look_up",), ("look_up",)]
    assert all("CONTEXT PACK" in one.text for one in model.sent)
    manifests = list(store.manifests())
    assert len(manifests) == 2
    assert all(store.outcome(manifest) for manifest in manifests)
    named = [event.custom_metadata["aether_context"]["pack_id"] for event in events if event.custom_metadata]
    assert named == [manifest.pack_id for manifest in manifests]


def test_it_is_built_from_a_name_alone_and_reads_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AETHER_CONTEXT_POLICY", "research")
    monkeypatch.setenv("AETHER_CONTEXT_STORE", str(tmp_path / "packs"))
    plugin = ContextPackPlugin(name="aether_context.adk.ContextPackPlugin")
    assert plugin.name == "aether_context.adk.ContextPackPlugin"
    assert plugin.policy.profile == "research"
    chat = Chat(plugin=plugin)
    chat.say("hello")
    assert len(list(PackStore(tmp_path / "packs").manifests())) == 1


def test_adk_loads_it_by_its_qualified_name(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("AETHER_CONTEXT_STORE", "memory://extra")
    from google.adk.cli.api_server import ApiServer

    server = object.__new__(ApiServer)
    server.extra_plugins = ["aether_context.adk.ContextPackPlugin"]
    (plugin,) = server._instantiate_extra_plugins()
    assert isinstance(plugin, ContextPackPlugin)
    assert plugin.store.url == "memory://extra"


@pytest.mark.parametrize(
    ("step", "plan", "agent", "profile"),
    [
        ("test_cases", "requirements", "coding", "test_cases"),
        (None, "requirements", "coding", "requirements"),
        (None, None, "coding", "coding"),
        (None, None, None, "research"),
        ("research", "requirements", "coding", "research"),
    ],
)
def test_the_steps_profile_wins_over_the_plans_the_agents_and_the_policys(
    step: str | None, plan: str | None, agent: str | None, profile: str
) -> None:
    policy = PackPolicy.load("research", agents={"clerk": agent} if agent else {}, conversation={"last_turns": 5})
    state = planned({**PLAN, "profile": plan, "step": {**PLAN["step"], "profile": step}})  # type: ignore[dict-item]
    chat = Chat(state=state, policy=policy)
    chat.say("go")
    (manifest,) = chat.manifests()
    assert manifest.profile == profile
    used = Replayer(chat.store).policy(manifest)
    assert used.budget.shares == PackPolicy.load(profile).budget.shares
    assert used.conversation.last_turns == 5


@cached_input_costs(0.001)
@pytest.mark.parametrize("shared", [True, False], ids=["one store", "two stores"])
@pytest.mark.parametrize("place", ["agent", "plugins", "sub-agent", "agent tool"])
def test_of_two_that_would_pack_a_call_the_first_one_does(
    place: str, shared: bool, caplog: pytest.LogCaptureFixture
) -> None:
    store, other = new_store(), new_store()
    callbacks: Any = context_pack_callbacks(store=store if shared else other)
    plan: dict[str, Any] = {"tools": [look_up], "instruction": "You help."}
    second = LlmAgent(
        name="second", model=Scripted(script=[call("look_up", key="s"), "found"], sent=[]), **plan, **callbacks
    )
    settings: dict[str, Any] = {}
    begin: list[Any] = []
    if place == "agent":
        settings = callbacks
    elif place == "sub-agent":
        settings, begin = {"sub_agents": [second]}, []
    elif place == "agent tool":
        plan["tools"], begin = [look_up, AgentTool(agent=second)], [call("second", request="go on")]
    model = Scripted(script=[*begin, *(call("look_up", key=f"k{at}") for at in range(4)), "done"], sent=[])
    if place == "sub-agent":
        model.script.append(call("transfer_to_agent", agent_name="second"))
    agent = LlmAgent(name="clerk", model=model, **plan, **settings)
    policy = PackPolicy(on_invalid="warn")
    chat = Chat(agent=agent, store=store, policy=policy, state=planned(PLAN))
    if place == "plugins":
        late = ContextPackPlugin(name="late", policy=policy, store=store if shared else other)
        chat.runner.plugin_manager.register_plugin(late)
    with caplog.at_level(logging.WARNING, logger="aether_context"):
        chat.say("first question")
        model.script.extend([call("look_up", key="k9"), "done"] if place != "sub-agent" else [])
        chat.say("second question")
    calls = len(chat.sent)
    manifests = chat.manifests()
    assert len(manifests) == calls
    assert all(store.outcome(manifest) for manifest in manifests)
    assert list(other.manifests()) == []
    if place != "sub-agent":  # whose agents see each other's turns retold
        for agent in {one.agent for one in chat.sent}:
            assert grow([one for one in chat.sent if one.agent == agent])
    assert isinstance(chat.plugin, ContextPackPlugin)
    usage = chat.plugin.usage(app="shop", user="ann", session="s1")
    assert usage is not None
    assert usage.session.totals.calls == calls
    told = [record.getMessage() for record in caplog.records if "stands back" in record.getMessage()]
    assert len(told) == 1
    assert "remove one of the two" in told[0]
