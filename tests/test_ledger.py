"""The ledger of a session without ADK: accounts, limits, estimates, what history may change, and prices."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from genai_prices.data_snapshot import get_snapshot
from genai_prices.types import Usage
from hypothesis import given, settings
from hypothesis import strategies as st

from aether_context import PackPolicy
from aether_context.policy import LimitSettings
from aether_context.usage import CallUsage, TokenLedger, Totals

FLASH = ("gemini-2.5-flash", 1_763_700_000.0)
NO_LIMITS = PackPolicy().limits
HERE: Any = {"invocation": "i1", "agent": "writer"}


def limits(**settings: Any) -> LimitSettings:
    return PackPolicy(limits=settings).limits


def used(read: int, answered: int = 0, **more: Any) -> CallUsage:
    return CallUsage(input_tokens=read, output_tokens=answered, **more)


@pytest.mark.parametrize(
    ("section", "scope", "measure"),
    [
        ({"session": {"input_tokens": 1_000}}, "session", "input"),
        ({"invocation": {"output_tokens": 60}}, "invocation", "output"),
        ({"agents": {"*": {"total_tokens": 1_000}}}, "agent", "total"),
        ({"session": {"cost_usd": 0.002}}, "session", "cost"),
        ({"agents": {"writer": {"total_tokens": 1_000}}}, "agent", "total"),
    ],
)
def test_a_call_that_would_pass_a_limit_is_found_and_one_that_fits_is_not(
    section: Any, scope: str, measure: str
) -> None:
    ledger = TokenLedger()
    ledger.track(used(500, 50, cost_usd=Decimal("0.0015")), **HERE)
    held = limits(**section)
    fits = ledger.estimate(400, output_limit=10).priced(*FLASH)
    assert ledger.check(fits, held, **HERE) is None
    violation = ledger.check(ledger.estimate(3_000, output_limit=11).priced(*FLASH), held, **HERE)
    assert violation is not None
    assert (violation.scope, violation.measure) == (scope, measure)


def test_calls_under_way_are_held_against_the_limit_until_they_end() -> None:
    ledger = TokenLedger()
    held = limits(invocation={"total_tokens": 1_000})
    ledger.begin(ledger.estimate(700), invocation="i1", agent="a", branch="p.a")
    planned = ledger.estimate(400)
    violation = ledger.check(planned, held, invocation="i1", agent="b", branch="p.b")
    assert violation is not None
    assert violation.used == 700
    assert ledger.check(planned, held, invocation="i2", agent="b", branch="p.b") is None
    ledger.fail(invocation="i1", agent="a", branch="p.a")
    assert ledger.check(planned, held, invocation="i1", agent="b", branch="p.b") is None
    ledger.begin(ledger.estimate(700), invocation="i1", agent="a", branch="p.a")
    ledger.track(used(300), invocation="i1", agent="a", branch="p.a")
    assert ledger.check(planned, held, invocation="i1", agent="b", branch="p.b") is None


@given(calls=st.lists(st.tuples(st.integers(1, 5_000), st.integers(0, 500)), max_size=40), most=st.integers(1, 50_000))
def test_with_true_estimates_a_checked_limit_is_never_passed(calls: list[tuple[int, int]], most: int) -> None:
    ledger, held = TokenLedger(), limits(session={"total_tokens": most})
    for read, answered in calls:
        planned = ledger.estimate(read, output_limit=answered)
        if ledger.check(planned, held, **HERE) is None:
            ledger.begin(planned, **HERE)
            ledger.track(used(read, answered), **HERE)
    assert ledger.budget("session", "", held).total.used <= most


@given(calls=st.lists(st.tuples(st.integers(1, 9_999), st.integers(0, 999), st.sampled_from("ab"), st.integers(1, 3))))
def test_the_accounts_of_agents_and_of_invocations_sum_to_the_sessions(calls: list[tuple[int, int, str, int]]) -> None:
    ledger = TokenLedger()
    for read, answered, agent, invocation in calls:
        ledger.begin(ledger.estimate(read), invocation=str(invocation), agent=agent)
        ledger.track(used(1, 1), invocation=str(invocation), agent=agent)
        ledger.track(used(read, answered), invocation=str(invocation), agent=agent)
    report = ledger.report(NO_LIMITS)
    assert report.session.totals.total_tokens == sum(read + answered for read, answered, _, _ in calls)
    for parts in (report.agents, report.invocations):
        whole = Totals()
        for one in parts:
            whole = whole.plus(one.totals)
        assert whole == report.session.totals


@pytest.mark.parametrize(("read", "level"), [(799, 0), (800, 1), (999, 1), (1_000, 2), (5_000, 2)])
def test_a_limit_is_near_from_a_share_of_it_on_and_then_reached(read: int, level: int) -> None:
    ledger = TokenLedger()
    ledger.track(used(read), **HERE)
    near = ledger.near_limit(limits(session={"total_tokens": 1_000}), **HERE)
    assert (near.level if near is not None else 0) == level


_AMOUNTS = st.integers(0, 10**6)
_ANY = st.one_of(
    st.integers(), st.floats(), st.text(max_size=3), st.none(), st.booleans(), st.just({"input_tokens": 1})
)
_RECORD = st.one_of(_ANY, st.dictionaries(st.sampled_from([*Totals._fields, "other"]), _ANY, max_size=4))
ACCOUNTS: Any = (("session", ""), ("invocation", HERE["invocation"]), ("agent", HERE["agent"]))


@given(
    booked=st.lists(st.tuples(_AMOUNTS, _AMOUNTS), max_size=8),
    told=st.lists(st.dictionaries(st.sampled_from([*(scope for scope, _ in ACCOUNTS), "other"]), _RECORD), max_size=8),
)
@settings(max_examples=40)
def test_no_history_makes_any_number_smaller(booked: list[tuple[int, int]], told: list[Any]) -> None:
    ledger = TokenLedger()
    for read, answered in booked:
        ledger.track(used(read, answered), **HERE)
    for standing in told:
        before = [ledger.budget(*account, NO_LIMITS).totals for account in ACCOUNTS]
        ledger.resume(standing, **HERE)
        after = [ledger.budget(*account, NO_LIMITS).totals for account in ACCOUNTS]
        for earlier, later in zip(before, after, strict=True):
            assert all(one <= other for one, other in zip(earlier, later, strict=True))


@given(st.builds(Totals, *[_AMOUNTS] * 3, st.decimals(0, 1_000, places=6), *[_AMOUNTS] * 9))
def test_totals_survive_their_record(totals: Totals) -> None:
    assert Totals.from_record(totals.record()) == totals
    assert Totals.from_record(json.loads(json.dumps(totals.record()))) == totals


TIME = 1_763_700_000.0


def cost(model: str, read: int, answered: int = 0, cached: int | None = None, written: int = 0) -> Decimal | None:
    """What a call costs; None where nobody knows."""
    return used(read, answered, cached_tokens=cached, cache_write_tokens=written).priced(model, TIME).cost_usd


def test_costs_are_those_of_the_list_for_models_that_are_paid_by_tokens() -> None:
    chance = random.Random(7)
    moment = datetime.fromtimestamp(TIME, UTC)
    compared = 0
    for provider in get_snapshot().providers:
        for model in provider.models:
            if chance.random() > 0.3:
                continue
            read = chance.randint(1, 500_000)
            cached = chance.randint(0, read // 2)
            written = chance.randint(0, (read - cached) // 2)
            found = cost(f"{provider.id}/{model.id}", read, read // 9, cached, written)
            if found is None:
                continue
            usage = Usage(
                input_tokens=read, cache_read_tokens=cached, cache_write_tokens=written, output_tokens=read // 9
            )
            expected = model.calc_price(usage, provider, genai_request_timestamp=moment).total_price
            assert found == expected, f"{provider.id}/{model.id}"
            compared += 1
    assert compared > 300


@pytest.mark.parametrize(
    "name",
    [
        "gemini-2.5-flash",
        "models/gemini-2.5-flash",
        "projects/p/locations/l/publishers/google/models/gemini-2.5-flash",
        "gemini/gemini-2.5-flash",
    ],
)
def test_one_model_has_one_price_whatever_it_is_called(name: str) -> None:
    assert cost(name, 1_000_000) == Decimal("0.3")
    assert cost(name, 1_000_000, cached=1_000_000) == Decimal("0.03")


def test_a_higher_tier_holds_for_the_whole_call() -> None:
    assert cost("gemini-2.5-pro", 200_000) == Decimal("0.25")
    assert cost("gemini-2.5-pro", 200_001) == Decimal("0.5000025")


def test_more_cached_tokens_than_input_cost_no_more_than_all_of_it() -> None:
    whole = cost("claude-sonnet-4-5", 100, cached=100)
    assert cost("claude-sonnet-4-5", 100, cached=500, written=50) == whole != cost("claude-sonnet-4-5", 100)
