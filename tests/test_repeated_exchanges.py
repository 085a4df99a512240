"""Histories of few equal parts, said again and again, in windows that leave next to nothing: requests are valid."""

from __future__ import annotations

import random
from typing import Any

import pytest
from google.genai import types
from matrix import but_slow
from plans import PLAN, planned, words
from scripted import Chat, call

from aether_context import PackPolicy
from aether_context.conversation import strategy_names
from aether_context.errors import StepTooLarge

WINDOWS = (256, 300, 400, 500, 700, 1_000, 1_500, 2_000, 3_000)
FIRST = {*range(1, 20), 229, 238, 273, 385, 461, 640, 713, 752}
"""Seeds of the default run: some, and those in which exchanges that are cut short stand beside equal ones."""


def fetch(key: str) -> dict[str, str]:
    """Fetches a value."""
    return {"result": f"value {key} " * 30}


def ping() -> dict[str, str]:
    """Pings."""
    return {"result": "ok"}


def tell(n: int) -> str:
    """Tells something."""
    return "told " * n


def some_call(draw: random.Random, has_ids: bool) -> types.Part:
    arguments: dict[str, Any] = {}
    name = draw.choice(["ping", "ping", "fetch", "tell"])
    if name == "fetch":
        arguments = {"key": draw.choice("ab")}
    elif name == "tell":
        arguments = {"n": draw.choice([1, 40])}
    part = call(name, **arguments)
    assert part.function_call is not None
    if has_ids:
        part.function_call.id = draw.choice(["x", "y", f"id{draw.random()}"])
    return part


def reply(draw: random.Random, has_ids: bool) -> list[types.Part]:
    if draw.random() < 0.25:
        return [types.Part(text="fine " * draw.choice([1, 60]))]
    parts = [some_call(draw, has_ids) for _ in range(draw.choice([1, 1, 1, 2, 3]))]
    if draw.random() < 0.3:
        parts.insert(0, types.Part(text="I look " * draw.choice([1, 30])))
    return parts


def run(seed: int) -> Chat:
    draw = random.Random(seed)
    window, has_ids = draw.choice(WINDOWS), draw.random() < 0.3
    policy = PackPolicy(
        max_input_tokens=window,
        conversation={"strategy": (draw.choice(strategy_names()),)},
        offload={"mode": draw.choice(["auto", "off"])},
        tools={"scope": "off"} if draw.random() < 0.5 else {},
    )
    chat = Chat(
        tools=[fetch, ping, tell],
        instruction="Rule. " * (draw.randint(0, int(0.9 * window)) // 2),
        policy=policy,
        state=planned(PLAN) if draw.random() < 0.3 else {},
    )
    chat.llm.usage = draw.random() < 0.3
    pattern = [reply(draw, has_ids) for _ in range(draw.randint(1, 3))]
    for _ in range(draw.randint(1, 4)):
        chat.llm.script[:] = [[part.model_copy(deep=True) for part in parts] for parts in pattern * draw.randint(1, 3)]
        try:
            chat.say(draw.choice(["go", f"go on {words(40)}", f"go {words(200)}"]))
        except RuntimeError as error:
            assert isinstance(error.__cause__, StepTooLarge)
    return chat


@pytest.mark.parametrize("seed", but_slow(range(1, 200), *(set(range(1, 800)) - FIRST)))
def test_requests_of_equal_parts_are_valid_in_any_window(seed: int) -> None:
    chat = run(seed)
    assert chat.sent
    assert [sent.faults for sent in chat.sent if sent.faults] == []
