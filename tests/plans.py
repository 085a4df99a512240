"""Plans, policies and messages that conversations in many test files are made of."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any
from unittest.mock import patch

from scripted import call

from aether_context import PackPolicy

PLAN = {
    "task_id": "42",
    "task": "File the tax report",
    "goal": "The report is filed on time",
    "step": {"id": "3", "text": "Find the tax rate", "acceptance": ["The rate is named", "Its source is cited"]},
}
NARROW = {**PLAN, "step": {**PLAN["step"], "tools": ["look_up"]}}  # type: ignore[dict-item]
NO_ACCEPTANCE = {"task": "t", "step": {"text": "do it"}}


def cached_input_costs(share: float) -> Any:
    """A patch by which cached input costs so much of other input, whatever the model: at 1.0 nothing is gained by a
    prefix, and at next to nothing packed messages stay as they are until a cut, so that requests only grow."""
    return patch("aether_context.adk.request.host_request.cached_share", lambda model, time: share)


def planned(plan: Mapping[str, Any] = PLAN, **state: Any) -> dict[str, Any]:
    return {"plan": copy.deepcopy(dict(plan)), **state}


def small(tokens: int = 2_000, **settings: Any) -> PackPolicy:
    return PackPolicy.load("chat", max_input_tokens=tokens, **settings)


def words(number: int, seed: str = "word") -> str:
    return " ".join(f"{seed}{at}" for at in range(number))


def turns(count: int, size: int = 120) -> list[str]:
    return [f"question {at}: {words(size, f'q{at}w')}" for at in range(count)]


def loop(count: int) -> list[Any]:
    return [call("look_up", key=f"k{at}") for at in range(count)]


def aether(state: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in state.items() if key.startswith("aether:")}


def messages(manifest_degradations: tuple[str, ...]) -> str:
    return "; ".join(manifest_degradations)
