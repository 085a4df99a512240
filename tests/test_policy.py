"""Policies: profiles, TOML, overrides, and errors that name the field, the file and the cure."""

from __future__ import annotations

import pytest

from aether_context import PackPolicy
from aether_context.errors import PolicyError
from aether_context.policy import PROFILES


@pytest.mark.parametrize("profile", sorted(PROFILES))
def test_every_profile_loads_and_its_middles_are_feasible(profile):
    policy = PackPolicy.load(profile)
    assert policy.profile == profile
    shares = policy.budget.shares
    assert shares.evidence.low + shares.memory.low + shares.conversation.low <= 1
    assert shares.evidence.high + shares.memory.high + shares.conversation.high >= 1


def test_overrides_are_merged_into_sections(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('profile = "coding"\nmax_input_tokens = 9000\n[conversation]\nlast_turns = 7\n')
    policy = PackPolicy.load(file, conversation={"compact_at": 0.9})
    assert (policy.profile, policy.max_input_tokens) == ("coding", 9_000)
    assert (policy.conversation.last_turns, policy.conversation.compact_at) == (7, 0.9)
    assert policy.budget.shares == PackPolicy.load("coding").budget.shares


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
        ({"conversation": {"compact_to": 0.9, "compact_at": 0.8}}, ("compact_to 0.9 is above compact_at 0.8",)),
        ({"conversation": {"stable_prefix": {"threshold": 0}}}, ("threshold",)),
        ({"conversation": {"stable_prefix": {"threshold": 1.1}}}, ("threshold",)),
        ({"conversation": {"stable_prefix": {"keep_last_messages": -1}}}, ("keep_last_messages",)),
        ({"budget": {"floors": {"system": 0.9, "task": 0.2}}}, ("floors sum to",)),
        ({"budget": {"shares": {"evidence": {"low": 0.9, "high": 0.95}}}}, ("lows sum to",)),
        ({"record": "some"}, ("record = 'some'", "'full'")),
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
