"""What a budget says where it cannot be kept, and that no log holds what was said."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from packs import pack_input, said
from scripted import Chat, call, look_up

from aether_context import PackPolicy
from aether_context.errors import ContextOptimizationError
from aether_context.packing import build_pack

SMALL = PackPolicy(max_input_tokens=3_000, usage={"gate": 0})


def loop(count: int) -> list[Any]:
    return [*(call("look_up", key=f"k{at}") for at in range(count)), "done"]


def test_what_cannot_be_brought_down_to_its_budget_fails_with_the_numbers() -> None:
    policy = PackPolicy(on_invalid="raise")
    with pytest.raises(ContextOptimizationError) as caught:
        build_pack(pack_input([said("hi")], window=1_000, system="rule " * 3_000), policy)
    assert caught.value.needed > caught.value.budget == 900


def test_nothing_that_was_said_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="aether_context"):
        chat = Chat(policy=SMALL, tools=[look_up], script=loop(25))
        chat.say("the secret word is xylophone")
    told = "\n".join(one.getMessage() for one in caplog.records if one.name.startswith("aether_context"))
    assert told
    assert "xylophone" not in told
