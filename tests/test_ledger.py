"""The ledger of a session without ADK: accounts, limits, estimates, and what history may change."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aether_context import PackPolicy
from aether_context.errors import AetherContextError, BudgetExceededError, PolicyError
from aether_context.policy import LimitSettings
from aether_context.usage import Accuracy, CallUsage, TokenLedger, Totals, accuracy
from aether_context.usage.prices import prices_of

FLASH = prices_of("gemini-2.5-flash", 1_763_700_000.0)
NO_LIMITS = PackPolicy().limits
HERE: Any = {"invocation": "i1", "agent": "writer"}


def limits(**settings: Any) -> LimitSettings:
    return PackPolicy(limits=settings).limits


def used(read: int, answered: int = 0, **more: Any) -> CallUsage:
    return CallUsage(input_tokens=read, output_tokens=answered, **more)


def spent(ledger: TokenLedger, scope: Any = "session", name: str = "") -> tuple[int, int, int]:
    """Calls, input and output of one account."""
    totals = ledger.budget(scope, name, NO_LIMITS).totals
    return totals.calls, totals.input_tokens, totals.output_tokens


# accounts


def test_a_call_is_booked_for_session_invocation_and_agent() -> None:
    ledger = TokenLedger()
    ledger.track(used(100, 10), invocation="i1", agent="a")
    ledger.track(used(200, 20), invocation="i1", agent="b")
    ledger.track(used(400, 40), invocation="i2", agent="a")
    assert spent(ledger) == (3, 700, 70)
    assert spent(ledger, "invocation", "i1") == (2, 300, 30)
    assert spent(ledger, "agent", "a") == (2, 500, 50)


def test_a_budget_has_limit_used_and_remaining_of_each_measure() -> None:
    ledger = TokenLedger()
    ledger.track(used(600, 30, cost_usd=Decimal("0.25")), **HERE)
    budget = ledger.budget("session", "", limits(session={"input_tokens": 1_000, "output_tokens": 20, "cost_usd": 1.5}))
    assert (budget.input.limit, budget.input.used, budget.input.remaining) == (1_000, 600, 400)
    assert (budget.output.used, budget.output.remaining) == (30, 0)
    assert (budget.total.limit, budget.total.used, budget.total.remaining) == (None, 630, None)
    assert budget.cost.remaining == Decimal("1.25")


def test_what_was_not_reported_makes_a_budget_approximate() -> None:
    ledger = TokenLedger()
    ledger.track(used(10, 5, cost_usd=Decimal(1)), **HERE)
    exact = ledger.budget("session", "", NO_LIMITS)
    assert not any(gauge.approximate for gauge in (exact.input, exact.output, exact.total, exact.cost))
    ledger.track(used(10, 5, cost_usd=Decimal(1), output_estimated=True), **HERE)
    vague = ledger.budget("session", "", NO_LIMITS)
    assert [vague.input.approximate, vague.output.approximate, vague.total.approximate] == [False, True, True]
    unpriced = TokenLedger()
    unpriced.track(used(10, 5), **HERE)
    assert unpriced.budget("session", "", NO_LIMITS).cost.approximate


def test_unknown_costs_and_cache_shares_are_unknown_and_not_zero() -> None:
    unknown = Totals.of(used(10, 5))
    assert unknown.known_cost_usd is None
    assert unknown.cached_share is None
    both = unknown.plus(Totals.of(used(30, 5, cost_usd=Decimal("0.5"), cached_tokens=15)))
    assert both.known_cost_usd == Decimal("0.5")
    assert both.unpriced_calls == 1
    assert both.cached_share == 0.5


def test_overhead_is_summed_over_calls() -> None:
    ledger = TokenLedger()
    for _ in range(3):
        ledger.track(used(100, system_tokens=20, tool_tokens=30, formatting_tokens=4), **HERE)
    totals = ledger.budget("agent", "writer", NO_LIMITS).totals
    assert (totals.system_tokens, totals.tool_tokens, totals.formatting_tokens) == (60, 90, 12)


def test_a_second_report_of_a_call_takes_the_place_of_the_first() -> None:
    ledger = TokenLedger()
    ledger.begin(ledger.estimate(90), **HERE)
    ledger.track(used(100, 3, estimate=90), **HERE)
    ledger.track(used(101, 30, estimate=90), **HERE)
    assert spent(ledger) == (1, 101, 30)
    assert ledger.output_p90 == 30
    assert ledger.report(NO_LIMITS).accuracy.calls == 1
    ledger.begin(ledger.estimate(120), **HERE)
    ledger.track(used(120, 5), **HERE)
    assert spent(ledger) == (2, 221, 35)


def test_a_report_for_another_invocation_is_a_call_of_its_own() -> None:
    ledger = TokenLedger()
    ledger.begin(None, invocation="i1", agent="writer")
    ledger.track(used(100), invocation="i1", agent="writer")
    ledger.track(used(100), invocation="i2", agent="writer")
    assert spent(ledger) == (2, 200, 0)


def test_memory_stays_bounded_while_the_session_counts_on() -> None:
    ledger = TokenLedger()
    for at in range(3_000):
        ledger.begin(ledger.estimate(10), invocation=f"i{at}", agent=f"a{at}", branch=f"b{at}")
        ledger.track(used(10, 1, estimate=10), invocation=f"i{at}", agent=f"a{at}", branch=f"b{at}")
    report = ledger.report(NO_LIMITS)
    assert report.session.totals.calls == 3_000
    assert len(report.invocations) == 64
    assert len(report.agents) == 1_024
    assert report.accuracy.calls == 256


# estimates


def test_the_output_expected_is_the_limit_else_the_p90_else_nothing() -> None:
    ledger = TokenLedger()
    first = ledger.estimate(500)
    assert (first.output_tokens, Totals.of(first).total_tokens) == (0, 500)
    for answer in range(1, 11):
        ledger.track(used(500, 10 * answer), **HERE)
    later = ledger.estimate(500)
    assert later.output_tokens == 90
    limited = ledger.estimate(500, output_limit=4_096)
    assert limited.output_tokens == 4_096


def test_the_cost_expected_takes_no_cache_for_granted() -> None:
    assert FLASH is not None
    estimate = TokenLedger().estimate(1_000_000, output_limit=1_000_000, prices=FLASH)
    assert estimate.cost_usd == FLASH.cost(input_tokens=1_000_000, output_tokens=1_000_000) == Decimal("2.8")
    assert TokenLedger().estimate(10).cost_usd is None


# the check


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
    fits = ledger.estimate(400, output_limit=10, prices=FLASH)
    assert ledger.check(fits, held, **HERE) is None
    violation = ledger.check(ledger.estimate(3_000, output_limit=11, prices=FLASH), held, **HERE)
    assert violation is not None
    assert (violation.scope, violation.measure) == (scope, measure)


def test_a_limit_holds_to_the_token() -> None:
    ledger = TokenLedger()
    ledger.track(used(500), **HERE)
    held = limits(session={"total_tokens": 1_000})
    assert ledger.check(ledger.estimate(500, output_limit=0), held, **HERE) is None
    assert ledger.check(ledger.estimate(501, output_limit=0), held, **HERE) is not None


def test_a_limit_of_which_nothing_is_left_is_passed_by_any_call() -> None:
    ledger = TokenLedger()
    ledger.track(used(500, 100), **HERE)
    violation = ledger.check(ledger.estimate(1, output_limit=0), limits(session={"output_tokens": 100}), **HERE)
    assert violation is not None
    assert (violation.limit, violation.used, violation.planned) == (100, 100, 0)


def test_of_several_limits_the_one_that_is_passed_by_most_is_named() -> None:
    ledger = TokenLedger()
    held = limits(session={"total_tokens": 100}, invocation={"total_tokens": 10}, agents={"*": {"total_tokens": 50}})
    violation = ledger.check(ledger.estimate(200, output_limit=0), held, **HERE)
    assert violation is not None
    assert violation.scope == "invocation"


def test_a_named_agent_has_its_own_limit_in_place_of_every_agents() -> None:
    held = limits(agents={"*": {"total_tokens": 10}, "writer": {"total_tokens": 1_000}})
    ledger = TokenLedger()
    assert ledger.check(ledger.estimate(500), held, invocation="i1", agent="writer") is None
    assert ledger.check(ledger.estimate(500), held, invocation="i1", agent="other") is not None


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


def test_an_agents_limit_sees_only_its_own_calls_under_way() -> None:
    ledger = TokenLedger()
    held = limits(agents={"*": {"total_tokens": 1_000}})
    ledger.begin(ledger.estimate(700), invocation="i1", agent="a", branch="one")
    assert ledger.check(ledger.estimate(400), held, invocation="i1", agent="b", branch="two") is None
    assert ledger.check(ledger.estimate(400), held, invocation="i1", agent="a", branch="two") is not None


def test_an_error_carries_the_numbers_and_what_to_do() -> None:
    ledger = TokenLedger()
    ledger.track(used(95_000), **HERE)
    error = ledger.check(ledger.estimate(12_000), limits(session={"total_tokens": 100_000}), **HERE)
    assert isinstance(error, AetherContextError)
    assert (error.scope, error.measure, error.limit, error.used, error.planned) == (
        "session",
        "total",
        100_000,
        95_000,
        12_000,
    )
    assert str(error) == (
        "the next call would take 12,000 tokens, and the session has used 95,000 tokens of 100,000 tokens: "
        "raise limits.session.total_tokens, or go on in a new session"
    )
    assert error.suggestion in str(error)


def test_an_error_about_costs_speaks_of_dollars() -> None:
    error = BudgetExceededError(
        scope="agent", name="writer", measure="cost", limit=Decimal(1), used=Decimal("0.99"), planned=Decimal("0.0213")
    )
    assert "agent 'writer' has used 0.9900 US dollars of 1.0000 US dollars" in str(error)
    assert "limits.agent.cost_usd" in error.suggestion


@given(
    calls=st.lists(st.tuples(st.integers(1, 5_000), st.integers(0, 500)), max_size=40),
    most=st.integers(1, 50_000),
)
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


# near a limit


@pytest.mark.parametrize(("read", "level"), [(799, 0), (800, 1), (999, 1), (1_000, 2), (5_000, 2)])
def test_a_limit_is_near_from_a_share_of_it_on_and_then_reached(read: int, level: int) -> None:
    ledger = TokenLedger()
    ledger.track(used(read), **HERE)
    near = ledger.near_limit(limits(session={"total_tokens": 1_000}), **HERE)
    assert (near.level if near is not None else 0) == level


def test_the_near_limit_is_the_one_of_which_most_is_used() -> None:
    ledger = TokenLedger()
    ledger.track(used(900, 99), **HERE)
    near = ledger.near_limit(limits(session={"input_tokens": 1_000}, agents={"*": {"output_tokens": 100}}), **HERE)
    assert near is not None
    assert (near.scope, near.measure, near.limit) == ("agent", "output", 100)


def test_an_economical_policy_is_never_looser_than_the_one_it_comes_from() -> None:
    policy = PackPolicy(conversation={"compact_at": 0.4, "compact_to": 0.35}, retrieval={"memory_k": 2, "floor": 0.4})
    near, reached = policy.economical(1), policy.economical(2)
    assert policy.economical(0) is policy
    assert (near.conversation.compact_at, near.conversation.compact_to) == (0.4, 0.25)
    assert (reached.conversation.compact_at, reached.conversation.compact_to) == (0.2, 0.125)
    assert (near.retrieval.memory_k, near.retrieval.evidence_k, near.retrieval.floor) == (2, 6, 0.4)
    assert near.max_input_tokens is policy.max_input_tokens
    default = PackPolicy().economical(1)
    assert default.conversation == PackPolicy.load("cost_first").conversation
    assert default.retrieval == PackPolicy.load("cost_first").retrieval
    assert default.payload == PackPolicy.load("cost_first").payload


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"session": {"total_tokens": 0}}, "limits.session.total_tokens = 0"),
        ({"agents": {"a": {"cost_usd": float("nan")}}}, "limits.agents.a.cost_usd"),
        ({"agents": {"writer": {"tokens": 5}}}, "limits.agents.writer.tokens"),
        ({"on_budget": "explode"}, "'degrade', 'warn', 'stop' or 'raise'"),
    ],
)
def test_a_wrong_limit_is_named(section: Any, words: str) -> None:
    with pytest.raises(PolicyError, match=words.replace(".", r"\.")):
        limits(**section)


# history


def test_a_ledger_goes_on_from_the_last_totals() -> None:
    first, second = TokenLedger(), TokenLedger()
    for _ in range(9):
        first.track(used(100, 10), **HERE)
    second.resume(first.standing(**HERE), **HERE)
    for account in ACCOUNTS:
        assert second.budget(*account, NO_LIMITS) == first.budget(*account, NO_LIMITS)
    second.resume(first.standing(**HERE), **HERE)
    second.track(used(100, 10), **HERE)
    assert spent(second) == (10, 1_000, 100)


FORGERIES = (
    [[1, 1]],
    [[-3, -5_000]],
    [[1, 1e9, 0, "free"]],
    [[1, True]],
    [[1, 1, 1, float("nan")]],
    ["nothing", None, []],
    [{"input_tokens": 1}],
    [],
)


@pytest.mark.parametrize("forged", FORGERIES)
def test_forged_totals_never_make_an_account_smaller(forged: Any) -> None:
    ledger = TokenLedger()
    ledger.track(used(5_000, 100, cost_usd=Decimal(1)), **HERE)
    before = ledger.report(NO_LIMITS)
    ledger.resume(forged, **HERE)
    assert ledger.report(NO_LIMITS) == before


_AMOUNTS = st.integers(0, 10**6)
_ANY = st.one_of(st.integers(), st.floats(), st.text(max_size=3), st.none(), st.booleans())
ACCOUNTS: Any = (("session", ""), ("invocation", HERE["invocation"]), ("agent", HERE["agent"]))


@given(
    booked=st.lists(st.tuples(_AMOUNTS, _AMOUNTS), max_size=8),
    told=st.lists(st.lists(st.one_of(_ANY, st.lists(_ANY, max_size=14)), max_size=4), max_size=8),
)
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


@given(st.lists(_ANY, max_size=15))
def test_totals_are_none_or_sound_whatever_their_record_is(record: list[Any]) -> None:
    totals = Totals.from_record(record)
    assert totals is None or all(value >= 0 for value in totals)


def test_a_standing_has_the_totals_of_session_invocation_and_agent() -> None:
    ledger = TokenLedger()
    ledger.track(used(100, 10, system_tokens=5), **HERE)
    ledger.track(used(50, 5, system_tokens=5), invocation="i2", agent=HERE["agent"])
    standing = ledger.standing(invocation="i2", agent=HERE["agent"])
    assert [record[:3] for record in standing] == [[2, 150, 15], [1, 50, 5], []]
    assert ledger.standing(invocation="i3", agent="other")[1:] == [[0], [0]]
    other = TokenLedger()
    here: Any = {"invocation": "i2", "agent": HERE["agent"]}
    other.resume(standing, **here)
    assert other.standing(**here) == standing


# accuracy


def test_accuracy_of_estimates_against_reports() -> None:
    found = accuracy([(110, 100), (95, 100), (100, 100), (98, 100), (5, 0)])
    assert found.calls == 4
    assert found.p50 == 0.02
    assert found.p95 == 0.1
    assert found.bias == pytest.approx(0.0075)


def test_accuracy_of_nothing_is_unknown() -> None:
    assert accuracy([]) == accuracy([(5, 0)]) == Accuracy(calls=0)


def test_accuracy_leaves_out_calls_without_a_report() -> None:
    ledger = TokenLedger()
    for _ in range(30):
        ledger.track(used(100, estimate=150), **HERE)
    for _ in range(20):
        ledger.track(used(100, estimate=100), **HERE)
    ledger.track(used(100, estimate=100, input_estimated=True), **HERE)
    report = ledger.report(NO_LIMITS)
    assert (report.accuracy.calls, report.accuracy.p50) == (50, 0.5)


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 10**6)), min_size=1))
def test_percentiles_are_errors_that_occurred(pairs: list[tuple[int, int]]) -> None:
    found = accuracy(pairs)
    errors = sorted(abs(estimated - reported) / reported for estimated, reported in pairs)
    assert found.p50 in errors
    assert found.p95 in errors
    assert found.p50 is not None
    assert found.p95 is not None
    assert sum(error <= found.p50 for error in errors) >= len(errors) / 2
    assert sum(error <= found.p95 for error in errors) >= math.floor(0.95 * len(errors))
