"""A context manager with a token budget: budgets, counting, errors, degradation, previews, summaries.

Anchors, heads and tails themselves are in `test_heads_tails`; the arithmetic of accounts is in `test_ledger`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from google.adk.sessions.session import Session as AdkSession
from packs import pack_input, said, turns
from scripted import Chat, call, faults, look_up

from aether_context import PackPolicy
from aether_context.adk import ContextPackPlugin
from aether_context.conversation import Conversation, Decision, register_strategy, unregister_strategy
from aether_context.errors import ContextOptimizationError
from aether_context.pack import Content
from aether_context.packing import build_pack
from aether_context.usage import LedgerReport

SMALL = PackPolicy(max_input_tokens=3_000, usage={"gate": 0})


def loop(count: int) -> list[Any]:
    return [*(call("look_up", key=f"k{at}") for at in range(count)), "done"]


def report(chat: Chat) -> LedgerReport:
    assert isinstance(chat.plugin, ContextPackPlugin)
    found = chat.plugin.usage(app="shop", user="ann", session="s1")
    assert found is not None
    return found


def talk(count: int = 25, size: int = 8) -> list[Content]:
    return turns(count, size)


# what is used


def test_usage_that_the_provider_reports_is_what_a_budget_has_used() -> None:
    chat = Chat(policy=SMALL, tools=[look_up], script=loop(3))
    chat.say("hello")
    outcomes = [chat.store.outcome(one) for one in chat.manifests()]
    session = report(chat).session
    assert session.input.used == sum(one["input_tokens"] for one in outcomes)
    assert session.output.used == sum(one["output_tokens"] for one in outcomes)
    assert session.total.used == session.input.used + session.output.used
    assert not session.input.approximate


def test_without_reports_the_estimate_stands_and_is_flagged() -> None:
    chat = Chat(policy=SMALL, tools=[look_up], script=loop(3))
    chat.llm.usage = False
    chat.say("hello")
    session = report(chat).session
    assert session.input.used == sum(one.request_tokens for one in chat.manifests())
    assert session.input.approximate
    assert session.output.approximate


# what would pass a limit


# errors


def test_what_cannot_be_brought_down_to_its_budget_fails_with_the_numbers() -> None:
    policy = PackPolicy(on_invalid="raise")
    with pytest.raises(ContextOptimizationError) as caught:
        build_pack(pack_input([said("hi")], window=1_000, system="rule " * 3_000), policy)
    assert caught.value.needed > caught.value.budget == 900


# degradation


class Broken:
    """Fails at each call."""

    name = "broken"

    def __init__(self, early: bool) -> None:
        self.early = early

    def trim(self, conversation: Conversation) -> Decision:
        raise KeyError("no such turn")


@pytest.fixture(params=[True, False], ids=["early", "late"])
def broken(request: pytest.FixtureRequest) -> Iterator[PackPolicy]:
    register_strategy("broken", lambda settings: Broken(request.param))
    yield PackPolicy(max_input_tokens=3_000, conversation={"strategy": "broken"}, usage={"gate": 0})
    unregister_strategy("broken")


def test_a_strategy_that_fails_gives_way_to_a_simpler_one(broken: PackPolicy) -> None:
    chat = Chat(policy=broken, tools=[look_up], script=loop(20), on_error="passthrough")
    chat.say("hello")
    manifests = chat.manifests()
    assert len(manifests) == 21
    assert all(one.request_tokens <= 3_000 for one in manifests)
    assert {act.strategy for one in manifests for act in one.strategy_acts} <= {"epochs", "emergency"}
    assert all("KeyError" in "; ".join(one.degradations) for one in manifests if one.strategy_acts)
    chat.replays()


def test_where_even_that_is_not_enough_the_emergency_truncation_holds_the_window() -> None:
    policy = PackPolicy(max_input_tokens=1_500, conversation={"strategy": "none"})
    chat = Chat(policy=policy, tools=[look_up], script=loop(20))
    chat.say("hello " * 2_000, "and on")
    assert all(one.request_tokens <= 1_350 for one in chat.manifests())
    assert any(event.stage == "emergency" for one in chat.manifests() for event in one.truncation_events)
    assert all(faults(one.contents) == [] for one in chat.sent)


# previews


@pytest.fixture(scope="module")
def session() -> AdkSession:
    chat = Chat(policy=PackPolicy(), tools=[look_up], script=[*loop(20), *loop(8)])
    chat.say("hello", "and again")
    held: AdkSession = asyncio.run(chat.held())
    return held


# summaries


# speed


def test_nothing_that_was_said_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="aether_context"):
        chat = Chat(policy=SMALL, tools=[look_up], script=loop(25))
        chat.say("the secret word is xylophone")
    told = "\n".join(one.getMessage() for one in caplog.records if one.name.startswith("aether_context"))
    assert told
    assert "xylophone" not in told
