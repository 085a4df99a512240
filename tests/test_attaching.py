"""Ways to attach the plugin, the environment it reads, its policies, and which profile holds for a call."""

from __future__ import annotations

import json
import logging
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from google.adk.agents import LlmAgent
from google.adk.tools.agent_tool import AgentTool
from plans import NARROW, PLAN, cached_input_costs, planned, small
from scripted import Chat, Scripted, call, grow, look_up, new_store, send_mail

from aether_context import PackPolicy, PackStore
from aether_context.adk import ContextPackPlugin, context_pack_callbacks
from aether_context.errors import PolicyError
from aether_context.policy import PRESETS, PROFILES, _recorded_defaults
from aether_context.store.replay import Replayer


def test_what_is_no_policy_is_told_what_to_write() -> None:
    with pytest.raises(PolicyError, match="write policy='research'"):
        ContextPackPlugin("research")
    with pytest.raises(PolicyError, match=r'PackPolicy.load\("chat", max_input_tokens='):
        ContextPackPlugin(policy={"max_input_tokens": 4_000})  # type: ignore[arg-type]


def test_a_policy_by_position_and_models_by_name_are_understood() -> None:
    plugin = ContextPackPlugin(
        PackPolicy(max_input_tokens=4_000), summarizer="gemini-2.5-flash", critic="gemini-2.5-pro"
    )
    assert plugin.name == "context_pack"
    assert plugin.policy.max_input_tokens == 4_000
    assert plugin.policy.compress.summarizer == "gemini-2.5-flash"
    assert plugin.policy.acceptance.critic == "gemini-2.5-pro"
    with pytest.raises(PolicyError, match="the plugin's name in ADK"):
        ContextPackPlugin(PackPolicy(), policy="chat")  # type: ignore[arg-type]
    with pytest.raises(PolicyError, match="no such model"):
        ContextPackPlugin(summarizer="no-such-model")


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


def test_adk_loads_it_by_its_qualified_name(monkeypatch: pytest.MonkeyPatch) -> None:
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
    told = [record.getMessage() for record in caplog.records if "does nothing, since" in record.getMessage()]
    assert len(told) == 1
    assert "remove one of the two" in told[0]


@pytest.mark.parametrize("profile", sorted(PROFILES))
def test_every_profile_loads_and_its_middles_are_feasible(profile):
    policy = PackPolicy.load(profile)
    assert policy.profile == profile
    shares = policy.budget.shares
    assert shares.evidence.low + shares.memory.low + shares.conversation.low <= 1
    assert shares.evidence.high + shares.memory.high + shares.conversation.high >= 1


def test_overrides_are_merged_into_sections(tmp_path):
    file = tmp_path / "mine.toml"
    text = 'profile = "coding"\nmax_input_tokens = 9000\n[conversation]\nlast_turns = 7\n'
    file.write_text(text, encoding="utf-8-sig")  # as some editors do
    policy = PackPolicy.load(file, conversation={"compact_at": 0.9})
    assert (policy.profile, policy.max_input_tokens) == ("coding", 9_000)
    assert (policy.conversation.last_turns, policy.conversation.compact_at) == (7, 0.9)
    assert policy.budget.shares == PackPolicy.load("coding").budget.shares


def test_another_profile_or_preset_leaves_nothing_of_the_one_before():
    policy = PackPolicy.load("research", preset="cost_first", conversation={"last_turns": 7})
    changed = policy.changed(profile="coding", preset="quality_first")
    assert changed == PackPolicy.load("coding", preset="quality_first", conversation={"last_turns": 7})
    assert policy.changed(max_input_tokens=9_000) == PackPolicy.load(
        "research", preset="cost_first", conversation={"last_turns": 7}, max_input_tokens=9_000
    )


def test_a_range_that_shares_an_end_with_the_profile_before_stays_whole():
    shares = {"shares": {"memory": {"low": 0.05, "high": 0.3}}}  # the profile's begins at 0.05, too
    changed = PackPolicy.load("coding", budget=shares).changed(profile="requirements")
    assert changed == PackPolicy.load("requirements", budget=shares)


def test_the_hash_is_stable_and_tells_policies_apart():
    assert PackPolicy(max_input_tokens=5_000).digest == PackPolicy.load("chat", max_input_tokens=5_000).digest
    assert PackPolicy().digest != PackPolicy(max_input_tokens=5_000).digest
    again = PackPolicy.model_validate_json(PackPolicy.load("research").canonical)
    assert again.digest == PackPolicy.load("research").digest


def test_a_typo_names_field_file_and_nearest_name(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text("[conversation]\ncompct_at = 0.9\n")
    with pytest.raises(PolicyError) as caught:
        PackPolicy.load(file)
    assert "conversation.compct_at" in str(caught.value)
    assert str(file) in str(caught.value)
    assert "did you mean 'compact_at'" in str(caught.value)
    assert caught.value.field == "conversation.compct_at"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"max_input_tokens": 3}, ("max_input_tokens = 3", "256")),
        (
            {"conversation": {"compact_to": 0.9, "compact_at": 0.8}},
            ("compact_to 0.9 is above compact_at 0.8", "lower it, too"),
        ),
        ({"conversation": {"stable_prefix": {"threshold": 0}}}, ("threshold",)),
        ({"conversation": {"stable_prefix": {"threshold": 1.1}}}, ("threshold",)),
        ({"conversation": {"stable_prefix": {"keep_last_messages": -1}}}, ("keep_last_messages",)),
        ({"budget": {"floors": {"system": 0.9, "task": 0.2}}}, ("floors sum to",)),
        ({"budget": {"shares": {"evidence": {"low": 0.9, "high": 0.95}}}}, ("lows sum to", "the other layers")),
        ({"record": "some"}, ("record = 'some'", "'full'")),
        ({"redact": "secrets"}, ("redact = 'secrets'", "a list")),
        ({"profile": "reserch"}, ("profile = 'reserch'",)),
        ({"limits": {"session": {"total_tokens": 0}}}, ("limits.session.total_tokens = 0",)),
        ({"limits": {"agents": {"a": {"cost_usd": float("nan")}}}}, ("limits.agents.a.cost_usd",)),
        ({"limits": {"agents": {"writer": {"tokens": 5}}}}, ("limits.agents.writer.tokens",)),
        ({"limits": {"on_budget": "explode"}}, ("'degrade', 'warn', 'stop' or 'raise'",)),
    ],
)
def test_a_wrong_value_is_named(settings, words):
    with pytest.raises(PolicyError) as caught:
        PackPolicy(**settings)
    for word in words:
        assert word in str(caught.value)


def test_an_unknown_profile_suggests_one():
    with pytest.raises(PolicyError, match="did you mean 'research'"):
        PackPolicy.load("reserch")


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"max_input_tokens": 10**24}, "max_input_tokens"),
        ({"max_input_tokens": 10**5_000}, "max_input_tokens"),
        ({"max_input_tokens": -1}, "max_input_tokens"),
        ({"max_input_tokens": True}, "max_input_tokens"),
        ({"max_input_tokens": "16000"}, "max_input_tokens"),
        ({"max_input_tokens": {"m": 10**24}}, "max_input_tokens.m"),
        ({"max_input_tokens": {"m": 0}}, "max_input_tokens.m"),
        ({"max_input_tokens": {"m": True}}, "max_input_tokens.m"),
        ({"retrieval": {"floor": True}}, "retrieval.floor"),
        ({"retrieval": {"floor": float("nan")}}, "retrieval.floor"),
        ({"retrieval": {"floor": float("inf")}}, "retrieval.floor"),
        ({"offload": {"extract_tokens": 10**12}}, "offload.extract_tokens"),
        ({"limits": {"session": {"total_tokens": 10**13}}}, "limits.session.total_tokens"),
        ({"limits": {"agents": {"a": {"cost_usd": "5"}}}}, "limits.agents.a.cost_usd"),
        ({"redact": ("(" * 3_000 + ")" * 3_000,)}, "redact"),
        ({"redact": ("a{99999999999}",)}, "redact"),
    ],
)
def test_numbers_and_patterns_have_bounds(settings, field):
    with pytest.raises(PolicyError) as caught:
        PackPolicy(**settings)
    assert caught.value.field == field
    assert str(caught.value).startswith(field)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "text",
    [
        "a = " + "[" * 5_000 + "]" * 5_000,
        "max_input_tokens = " + "9" * 5_000,
        "max_input_tokens = 0x" + "f" * 5_000,
        "max_input_tokens = 1e400",
        "conversation.custom." + ".".join("a" * 5_000) + " = 1",
        ".".join("a" * 5_000) + " = 1",
    ],
)
def test_a_file_that_is_too_deep_or_too_large_is_a_bad_policy(tmp_path, text):
    path = tmp_path / "policy.toml"
    path.write_text(text)
    with pytest.raises(PolicyError):
        PackPolicy.load(path)


SETTINGS = [
    {},
    {"conversation": {"compact_at": 0.7, "sliding_turns": {"tokens": 0}}, "redact": ("email",)},
    {"budget": {"shares": _recorded_defaults()["budget"]["shares"]}, "max_input_tokens": {"m": 4_000}},
    {
        "agents": {"clerk": "research"},
        "limits": {"session": {"input_tokens": 9_000}},
        "offload": {"tools": {"a": "keep"}},
    },
]


@pytest.mark.parametrize(("profile", "preset", "settings"), list(product(PROFILES, PRESETS, SETTINGS)))
def test_a_policy_comes_back_as_it_was_recorded(profile: str, preset: str, settings: dict) -> None:
    policy = PackPolicy.load(profile, preset=preset, **settings)
    recorded = PackPolicy.from_recorded(json.loads(policy.canonical))
    assert recorded.model_dump() == policy.model_dump()
    assert recorded.digest == policy.digest
    assert recorded.economical(2).model_dump() == policy.economical(2).model_dump()


def test_what_is_as_usual_is_not_recorded() -> None:
    assert PackPolicy().canonical == "{}"
    assert json.loads(PackPolicy(conversation={"compact_at": 0.5}).canonical) == {"conversation": {"compact_at": 0.5}}


def test_a_pack_replays_under_the_default_that_it_was_built_with() -> None:
    chat = Chat(policy=small(4_000, conversation={"compact_at": 0.5}))
    chat.say("hello")
    later = {**_recorded_defaults(), "cache": "off", "on_invalid": "raise"}
    with patch("aether_context.policy._recorded_defaults", lambda: later):
        # As if these had been the defaults once: what this version does otherwise is recorded.
        assert json.loads(PackPolicy().canonical) == {"cache": "auto", "on_invalid": "warn"}
        assert PackPolicy.from_recorded({}).on_invalid == "raise"
    chat.replays()
