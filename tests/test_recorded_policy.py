"""Policies as manifests hold them: the settings that differ from the recorded defaults, which never change."""

from __future__ import annotations

import json
from itertools import product
from unittest.mock import patch

import pytest
from plans import small
from scripted import Chat

from aether_context import PackPolicy
from aether_context.policy import PRESETS, PROFILES, _recorded_defaults

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
