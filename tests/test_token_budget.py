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
from packs import pack_input, said, trim, turns
from plans import cached_input_costs
from scripted import Chat, call, faults, look_up
from timing import best_of

from aether_context import PackPolicy
from aether_context.adk import ContextPackPlugin
from aether_context.adk.preview import preview_strategies
from aether_context.conversation import (
    Conversation,
    Decision,
    register_strategy,
    strategy_names,
    unregister_strategy,
)
from aether_context.conversation.turns import torn
from aether_context.errors import (
    AetherContextError,
    AnchorPreservationError,
    BudgetExceededError,
    ContextOptimizationError,
    PolicyError,
    StepTooLarge,
    TokenCountingError,
)
from aether_context.pack import Content
from aether_context.packing import build_pack
from aether_context.tokens import counter_for
from aether_context.tokens.cache import PackCounter
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


def test_overhead_is_told_apart_into_system_declarations_and_formatting() -> None:
    chat = Chat(policy=SMALL, tools=[look_up], script=loop(3), instruction="Look things up. " * 20)
    chat.say("hello")
    totals = report(chat).session.totals
    assert totals.system_tokens > 4 * 60
    assert totals.tool_tokens > 0
    assert totals.formatting_tokens > 0
    assert totals.system_tokens + totals.tool_tokens + totals.formatting_tokens < totals.input_tokens


def test_each_count_says_how_it_was_obtained() -> None:
    chat = Chat(policy=SMALL, tools=[look_up], script=loop(3))
    chat.say("hello")
    methods = [one.request_tokens_method for one in chat.manifests()]
    assert methods[0] in ("approximate", "heuristic")
    assert set(methods[1:]) == {"anchored"}


def test_the_accuracy_of_estimates_is_tracked_over_time() -> None:
    chat = Chat(policy=SMALL, tools=[look_up], script=[*loop(3), *loop(3)])
    chat.say("hello")
    assert report(chat).accuracy.calls == 4
    chat.say("again")
    assert report(chat).accuracy.calls == 8
    assert report(chat).accuracy.p50 is not None


# what would pass a limit


@pytest.mark.parametrize(("measure", "limit"), [("input_tokens", 400), ("output_tokens", 10), ("total_tokens", 400)])
def test_a_call_that_would_pass_a_limit_is_not_made(measure: str, limit: int) -> None:
    policy = PackPolicy(limits={"session": {measure: limit}, "on_budget": "raise"})
    chat = Chat(policy=policy, tools=[look_up], script=loop(12))
    with pytest.raises(RuntimeError) as caught:
        chat.say("hello")
    error = caught.value.__cause__
    assert isinstance(error, BudgetExceededError)
    assert error.measure == measure.removesuffix("_tokens")
    assert error.limit == limit
    assert error.used + error.planned > limit
    assert str(limit) in str(error)
    assert error.suggestion
    assert len(chat.llm.sent) == report(chat).session.totals.calls


@cached_input_costs(1.0)
def test_near_a_limit_requests_are_trimmed_before_it_is_passed() -> None:
    def inputs(limits: dict[str, Any]) -> list[int]:
        policy = PackPolicy(max_input_tokens=6_000, limits=limits)
        chat = Chat(policy=policy, tools=[look_up], script=loop(25))
        chat.say("hello")
        return [chat.store.outcome(one)["input_tokens"] for one in chat.manifests()]

    free = inputs({})
    held = inputs({"session": {"input_tokens": sum(free) // 2}, "on_budget": "degrade"})
    assert len(held) == len(free)
    assert sum(held) < sum(free)


def test_what_was_done_about_a_budget_is_told_to_the_user() -> None:
    policy = PackPolicy(limits={"session": {"input_tokens": 400}, "on_budget": "stop"})
    chat = Chat(policy=policy, tools=[look_up], script=loop(12))
    last = chat.say("hello")[-1]
    assert last.error_code == "budget_exceeded"
    assert "limits.session.input_tokens" in last.content.parts[0].text
    assert last.custom_metadata["aether_context"]["budget"]["limit"] == 400


def test_malformed_reports_cannot_make_room_in_a_budget() -> None:
    policy = PackPolicy(limits={"session": {"input_tokens": 400}, "on_budget": "stop"})
    chat = Chat(policy=policy, tools=[look_up], script=loop(12), state={"aether:usage": {"input_tokens": -10_000}})
    chat.say("hello")
    assert report(chat).session.input.used <= 400
    assert len(chat.llm.sent) < 13


# errors


def test_every_error_is_typed_and_names_a_cure() -> None:
    errors = [
        BudgetExceededError(scope="session", name="", measure="input", limit=10, used=9, planned=5),
        ContextOptimizationError("it is too large", needed=9, budget=5, suggestion="split it"),
        StepTooLarge(window=100, slack=10, measured={"system": 80, "task": 20, "tools": 0}),
        AnchorPreservationError(anchors=["the limit"], needed=9, budget=5),
        TokenCountingError("tiktoken", "no vocabulary"),
    ]
    for error in errors:
        assert isinstance(error, AetherContextError)
        assert error.suggestion
    assert isinstance(errors[2], ContextOptimizationError)
    assert isinstance(errors[3], ContextOptimizationError)


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


def test_a_failure_is_reported_with_its_reason(broken: PackPolicy, caplog: pytest.LogCaptureFixture) -> None:
    chat = Chat(policy=broken, tools=[look_up], script=loop(2), on_error="passthrough")
    chat.say("hello")
    told = [one.message for one in caplog.records if one.name == "aether_context" and one.levelno == logging.WARNING]
    (line,) = told
    assert line.startswith("a request could not be packed in full: strategy 'broken'")
    assert "KeyError: 'no such turn'" in line


# previews


@pytest.fixture(scope="module")
def session() -> AdkSession:
    chat = Chat(policy=PackPolicy(), tools=[look_up], script=[*loop(20), *loop(8)])
    chat.say("hello", "and again")
    held: AdkSession = asyncio.run(chat.held())
    return held


@pytest.mark.parametrize("strategy", ["epochs", "heads_tails", "sliding_turns", "stable_prefix", "summarize"])
def test_a_preview_of_a_strategy_is_what_it_then_does(session: AdkSession, strategy: str) -> None:
    policy = SMALL.changed(conversation={"strategy": (strategy,)})
    (seen,) = preview_strategies(session, policy=policy, strategies=[strategy], message="and now?", tools=[look_up])
    acts = seen.pack.acts
    assert seen.strategy == (strategy,)
    assert seen.removed + seen.replaced == sum(act.removed + act.replaced for act in acts) > 0
    assert seen.freed_tokens > 0
    assert seen.lost_tokens >= 0
    assert seen.pack.request_tokens <= 3_000
    assert torn([one.content for one in seen.pack.contents]) == ()


def test_by_default_every_strategy_is_previewed_the_policys_own_first(session: AdkSession) -> None:
    policy = SMALL.changed(conversation={"strategy": ("heads_tails",)})
    found = preview_strategies(session, policy=policy, message="and now?", tools=[look_up])
    assert found[0].strategy == ("heads_tails",)
    assert sorted(one.strategy for one in found) == sorted((name,) for name in strategy_names())


def test_a_preview_by_hand_shows_a_cut_that_is_not_due(session: AdkSession) -> None:
    policy = PackPolicy()
    due = preview_strategies(session, policy=policy, strategies=["epochs"], message="and now?")
    asked = preview_strategies(session, policy=policy, strategies=["epochs"], message="and now?", by_hand=True)
    assert (due[0].removed, due[0].freed_tokens) == (0, 0)
    assert asked[0].removed > 0
    assert asked[0].lost_tokens > 0


def test_a_preview_changes_nothing(session: AdkSession) -> None:
    before = session.model_dump_json()
    preview_strategies(session, policy=SMALL, message="and now?", by_hand=True)
    assert session.model_dump_json() == before


def test_an_unknown_strategy_has_no_preview(session: AdkSession) -> None:
    with pytest.raises(PolicyError, match="'heads' is unknown"):
        preview_strategies(session, policy=SMALL, strategies=["heads"])


# summaries


def test_summaries_are_optional() -> None:
    held = Conversation.of(talk(), window=3_000)
    with_one = trim(held, SMALL.changed(conversation={"strategy": ("heads_tails",)}).conversation)
    without = SMALL.changed(conversation={"strategy": ("heads_tails",), "summary_share": 0})
    chat = Chat(policy=without, tools=[look_up], script=loop(25))
    chat.say("hello")
    assert with_one.summary
    assert any(one.strategy_acts for one in chat.manifests())
    assert not any("SUMMARY" in one.text for one in chat.sent)


# speed


def test_a_hundred_messages_are_counted_in_well_under_100_milliseconds() -> None:
    contents = talk(25)[:100]
    assert best_of(3, lambda: PackCounter(counter_for("gemini-2.5-flash")).contents(contents)) < 100


def test_counts_of_repeated_contents_are_remembered() -> None:
    contents = talk(250)
    counter = PackCounter(counter_for("gemini-2.5-flash"))
    fresh = best_of(1, lambda: counter.contents(contents))
    again = best_of(3, lambda: counter.contents(contents))
    assert again < fresh
    assert counter.contents(contents) == counter.contents(contents)


def test_a_budget_is_calculated_and_checked_within_20_milliseconds() -> None:
    chat = Chat(policy=SMALL, tools=[look_up], script=loop(30))
    chat.say("hello")
    assert best_of(3, lambda: report(chat)) < 20


def test_nothing_that_was_said_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="aether_context"):
        chat = Chat(policy=SMALL, tools=[look_up], script=loop(25))
        chat.say("the secret word is xylophone")
    told = "\n".join(one.getMessage() for one in caplog.records if one.name.startswith("aether_context"))
    assert told
    assert "xylophone" not in told
