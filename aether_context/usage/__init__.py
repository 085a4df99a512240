"""The token ledger: what model calls used, what they may still use, and what the next call is expected to use.

It does not depend on ADK. Limits are passed with each call and not kept, so they can change at any time.
"""

from __future__ import annotations

import math
import operator
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Annotated, Literal, NamedTuple, TypeAlias

from cachetools import LRUCache
from pydantic import ConfigDict, Field, Strict, TypeAdapter

from aether_context.canonical import JSON
from aether_context.errors import BudgetExceededError
from aether_context.pack import valid, values_of
from aether_context.policy import Amount, Limit, LimitSettings, Measure
from aether_context.usage.prices import prices_of

Scope: TypeAlias = Literal["session", "invocation", "agent"]

_MOST = 10**18
_Tokens = Annotated[int, Strict(), Field(ge=0, le=_MOST)]
_Dollars = Annotated[Decimal, Field(ge=0, le=_MOST)]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallUsage:
    """The usage of one model call.

    Attributes:
        input_tokens: the whole input, cached tokens and the results of tools that the provider ran included.
        output_tokens: the whole output, thoughts included.
        cached_tokens, cache_write_tokens: parts of the input; None where the provider did not report them.
        shared_tokens: those of the beginning that the call before had, too. The cost takes it that a cache served them
            all, where no cached tokens are reported.
        estimate: the input as estimated before the call; None where it was not estimated.
        input_estimated, output_estimated: whether the provider did not report it.
        cost_usd: None where the price is unknown.
        system_tokens, tool_tokens, formatting_tokens: parts of the estimate; the last is the framing of messages.
    """

    input_tokens: int
    output_tokens: int
    cached_tokens: int | None = None
    cache_write_tokens: int = 0
    shared_tokens: int = 0
    estimate: int | None = None
    input_estimated: bool = False
    output_estimated: bool = False
    cost_usd: Decimal | None = None
    system_tokens: int = 0
    tool_tokens: int = 0
    formatting_tokens: int = 0

    def priced(self, model: str, time: float) -> CallUsage:
        """The call with its cost by the model's prices at a time, in seconds since 1970 UTC."""
        prices = prices_of(model, time)
        if prices is None:
            return self
        cost = prices.cost(
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            cached_tokens=self.shared_tokens if self.cached_tokens is None else self.cached_tokens,
            cache_write_tokens=self.cache_write_tokens,
        )
        return replace(self, cost_usd=cost)

    def instead(self, tokens: int, shared_tokens: int) -> CallUsage:
        """An estimate, without its cost, of the same call with a request of other tokens, of which a cache serves and
        stores the same shares as of this one's."""
        cached, shared, uncached = self.cached_tokens, self.shared_tokens, self.input_tokens - (self.cached_tokens or 0)
        if cached is not None:
            cached = cached * shared_tokens // shared if cached < shared else cached - shared + shared_tokens
        written = self.cache_write_tokens * max(0, tokens - (cached or 0)) // max(1, uncached)
        call = replace(self, input_tokens=tokens, cached_tokens=cached, cache_write_tokens=written)
        return replace(call, shared_tokens=shared_tokens, input_estimated=True)

    @classmethod
    def of_outcome(cls, outcome: Mapping[str, JSON], estimate: int, shared_tokens: int = 0) -> CallUsage | None:
        """A call, without its cost, from the outcome recorded with its pack; None where the call failed without usage.

        Args:
            estimate: the tokens of its request, used where the provider reported no input.
        """
        numbers = {name: value for name, value in outcome.items() if type(value) is int and 0 <= value <= _MOST}
        if "input_tokens" not in numbers and outcome.get("error_code") is not None:
            return None
        return cls(
            input_tokens=numbers.get("input_tokens", estimate) + numbers.get("tool_use_tokens", 0),
            output_tokens=numbers.get("output_tokens", 0),
            cached_tokens=numbers.get("cached_tokens"),
            cache_write_tokens=numbers.get("cache_write_tokens", 0),
            shared_tokens=shared_tokens,
            estimate=estimate,
            input_estimated="input_tokens" not in numbers,
            output_estimated="output_tokens" not in numbers,
        )


class Totals(NamedTuple):
    """Sums over calls.

    Attributes:
        unknown_cache_tokens: input of the calls whose provider did not report how much its cache served.
        cost_usd: cost of the calls whose price is known.
        unpriced_calls: number of calls whose price is unknown.
        estimated_inputs, estimated_outputs: number of calls whose input or output the provider did not report.
    """

    calls: _Tokens = 0
    input_tokens: _Tokens = 0
    output_tokens: _Tokens = 0
    cost_usd: _Dollars = Decimal(0)
    cached_tokens: _Tokens = 0
    unknown_cache_tokens: _Tokens = 0
    system_tokens: _Tokens = 0
    tool_tokens: _Tokens = 0
    formatting_tokens: _Tokens = 0
    cache_write_tokens: _Tokens = 0
    unpriced_calls: _Tokens = 0
    estimated_inputs: _Tokens = 0
    estimated_outputs: _Tokens = 0

    @classmethod
    def of(cls, call: CallUsage | None) -> Totals:
        """The sums over one call; None is none."""
        if call is None:
            return cls()
        return cls(
            calls=1,
            input_tokens=max(0, call.input_tokens),
            output_tokens=max(0, call.output_tokens),
            cost_usd=call.cost_usd or Decimal(0),
            cached_tokens=call.cached_tokens or 0,
            unknown_cache_tokens=max(0, call.input_tokens) if call.cached_tokens is None else 0,
            **values_of(call, "system_tokens", "tool_tokens", "formatting_tokens", "cache_write_tokens"),
            unpriced_calls=int(call.cost_usd is None),
            estimated_inputs=int(call.input_estimated),
            estimated_outputs=int(call.output_estimated),
        )

    @property
    def total_tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    @property
    def cached_share(self) -> float | None:
        """Cached tokens as a share of the input of the calls whose provider reported them; None without such calls."""
        reported_tokens = self.input_tokens - self.unknown_cache_tokens
        return self.cached_tokens / reported_tokens if reported_tokens > 0 else None

    @property
    def known_cost_usd(self) -> Decimal | None:
        """The cost, None where no call has a known price."""
        return None if self.unpriced_calls == self.calls else self.cost_usd

    @property
    def cost_estimated(self) -> bool:
        """Tells whether a provider left out some of what the cost is made of."""
        return any((self.unknown_cache_tokens, self.estimated_inputs, self.estimated_outputs))

    @property
    def cost_text(self) -> str | None:
        """``$0.0676 estimated``, with a ``+`` where it lacks calls without a known price; None where all are."""
        cost, marks = self.known_cost_usd, "+" * bool(self.unpriced_calls) + " estimated" * self.cost_estimated
        return None if cost is None else dollars(cost) + marks

    @property
    def cost_fields(self) -> dict[str, JSON]:
        """The cost for JSON."""
        cost = self.known_cost_usd
        return {"cost_usd": None if cost is None else float(cost), "cost_estimated": self.cost_estimated}

    @property
    def amounts(self) -> dict[Measure, Amount]:
        """The used tokens and cost, by measure."""
        tokens: dict[Measure, Amount] = {"input": self.input_tokens, "output": self.output_tokens}
        return tokens | {"total": self.total_tokens, "cost": self.cost_usd}

    def plus(self, other: Totals) -> Totals:
        return Totals._make(map(operator.add, self, other))

    def record(self) -> dict[str, JSON]:
        """The sums that are not 0, by name."""
        sums = self._asdict().items()
        return {name: float(value) if isinstance(value, Decimal) else value for name, value in sums if value}

    @classmethod
    def from_record(cls, value: object) -> Totals | None:
        """Sums from their record; None where it is none."""
        return valid(_TOTALS, value) if isinstance(value, Mapping) else None


_TOTALS = TypeAdapter(Totals, config=ConfigDict(defer_build=True))


def dollars(cost: Decimal) -> str:
    """``$0.0676``, with more decimal places below a cent and fewer from ten dollars on."""
    return f"${cost:,.{2 if cost >= 10 else 6 if 0 < cost < 0.01 else 4}f}"


class Accuracy(NamedTuple):
    """The error of estimates against what providers reported. Values are None where there is nothing to compare.

    Attributes:
        p50, p95: nearest-rank percentiles of the absolute error, as a share of what was reported.
        bias: sum of the estimates over the sum of the reports, minus 1: negative where estimates are low.
    """

    calls: int
    p50: float | None = None
    p95: float | None = None
    bias: float | None = None


def accuracy(pairs: Sequence[tuple[int, int]]) -> Accuracy:
    """The accuracy of (estimated, reported) tokens. Pairs in which 0 tokens are reported are left out."""
    reported_pairs = [(estimated, reported) for estimated, reported in pairs if reported > 0]
    if not reported_pairs:
        return Accuracy(calls=0)
    sizes = sorted(abs(estimated - reported) / reported for estimated, reported in reported_pairs)
    bias = sum(estimated for estimated, _ in reported_pairs) / sum(reported for _, reported in reported_pairs) - 1
    return Accuracy(calls=len(reported_pairs), p50=_percentile(sizes, 0.5), p95=_percentile(sizes, 0.95), bias=bias)


def _percentile(ascending: Sequence[float], share: float) -> float:
    return ascending[max(0, math.ceil(share * len(ascending)) - 1)]


class LimitUse(NamedTuple):
    """One measure of an account: what is used of its limit, which is None where there is none."""

    limit: Amount | None
    used: Amount
    approximate: bool

    @property
    def remaining(self) -> Amount | None:
        """The tokens or the money left, never below 0; None where there is no limit."""
        return None if self.limit is None else max(self.limit - self.used, 0)


class TokenBudget(NamedTuple):
    """One account with its limits. ``name`` is the invocation's or agent's, empty for the session.

    ``cost`` is approximate where a call's price is unknown: it does not include that call.
    """

    scope: Scope
    name: str
    input: LimitUse
    output: LimitUse
    total: LimitUse
    cost: LimitUse
    totals: Totals


class NearLimit(NamedTuple):
    """A limit that an account is near to, with ``level`` 1, or has reached, with ``level`` 2."""

    level: Literal[1, 2]
    scope: Scope
    measure: Measure
    limit: Amount

    @property
    def note(self) -> str:
        """The manifest's note on a pack that was made economically. It stays the same while the level does."""
        unit = {"cost": "US dollars", "total": "tokens"}.get(self.measure, f"{self.measure} tokens")
        state = "reached" if self.level == 2 else "near"
        return f"packed economically: the {self.scope}'s limit of {self.limit:,} {unit} is {state}"


class LedgerReport(NamedTuple):
    """All accounts of a session. ``accuracy`` is over the latest 256 calls."""

    session: TokenBudget
    invocations: tuple[TokenBudget, ...]
    agents: tuple[TokenBudget, ...]
    accuracy: Accuracy
    output_p90: int | None


@dataclass(slots=True)
class _Open:
    """A call that began. ``counted`` is the usage that was tracked for it so far."""

    invocation: str
    agent: str
    planned: CallUsage | None
    counted: CallUsage | None = None


class _Counted(NamedTuple):
    """What a ledger keeps of a call: its input beside the ``estimate``, which is None where either is not known."""

    input_tokens: int
    estimate: int | None
    output_tokens: int

    @classmethod
    def of(cls, call: CallUsage) -> _Counted:
        return cls(call.input_tokens, None if call.input_estimated else call.estimate, call.output_tokens)


class TokenLedger:
    """The usage of one session. Memory is bounded: accounts of old invocations are forgotten, the session's is not.

    Not safe to use from several threads at once.
    """

    def __init__(self) -> None:
        # Of each scope, the accounts that were not used for longest are forgotten first.
        sizes: dict[Scope, int] = {"session": 1, "invocation": 16, "agent": 1_024}
        self._spent: dict[Scope, LRUCache[str, Totals]] = {scope: LRUCache(size) for scope, size in sizes.items()}
        self._open: LRUCache[tuple[str, str], _Open] = LRUCache(256)
        self._latest: deque[_Counted] = deque(maxlen=256)

    @property
    def size(self) -> int:
        """The bytes that it takes, about."""
        return 3_000 + 150 * len(self._latest) + 500 * sum(map(len, self._spent.values()))

    def estimate(self, input_tokens: int, *, output_limit: int | None = None) -> CallUsage:
        """The expected usage of a call, without its cost: without an ``output_limit`` the session's p90 of output, 0
        before the first answer; all input is uncached."""
        output = output_limit if output_limit is not None else self.output_p90 or 0
        return CallUsage(input_tokens=input_tokens, output_tokens=output, input_estimated=True, output_estimated=True)

    @property
    def output_p90(self) -> int | None:
        """The p90 of the output tokens of the latest 256 calls, None before the first."""
        outputs = sorted(call.output_tokens for call in self._latest)
        return int(_percentile(outputs, 0.9)) if outputs else None

    def check(
        self, planned: CallUsage, limits: LimitSettings, *, invocation: str, agent: str, branch: str = ""
    ) -> BudgetExceededError | None:
        """The error for the limit that a call would exceed by the largest share; None where it exceeds none.

        Any call exceeds a limit that is used up. The estimates of other calls of the invocation that are under way
        count as used.
        """
        under_way = [
            (call.agent, Totals.of(call.planned).amounts)
            for slot, call in self._open.items()
            if slot != (branch, agent) and call.planned is not None and call.invocation == invocation
        ]
        amounts, worst_share, error = Totals.of(planned).amounts, 0.0, None
        for scope, name, measure, limit, used in self._bounds(limits, invocation, agent):
            needed = amounts[measure]
            for caller, expected in under_way:
                if scope != "agent" or caller == agent:
                    used += expected[measure]
            share = float((used + needed) / limit)
            if (used >= limit or used + needed > limit) and share > worst_share:
                worst_share = share
                error = BudgetExceededError(
                    scope=scope, name=name, measure=measure, limit=limit, used=used, planned=needed
                )
        return error

    def near_limit(self, limits: LimitSettings, *, invocation: str, agent: str) -> NearLimit | None:
        """The limit with the largest used share, where that is 80% or more; None otherwise.

        Plan calls do not count, so that the share never falls.
        """
        bounds = self._bounds(limits, invocation, agent)
        shares = [(float(used / limit), scope, measure, limit) for scope, _, measure, limit, used in bounds]
        near = max(shares, key=lambda entry: entry[0], default=None)
        if near is None or near[0] < 0.8:
            return None
        share, scope, measure, limit = near
        return NearLimit(level=2 if share >= 1 else 1, scope=scope, measure=measure, limit=limit)

    def begin(self, planned: CallUsage | None, *, invocation: str, agent: str, branch: str = "") -> None:
        """A call is made. Until it is tracked or fails, its estimate counts in the checks of other calls."""
        self._open.pop((branch, agent), None)  # moves it to the end: `check` touches all entries, in their order
        self._open[branch, agent] = _Open(invocation=invocation, agent=agent, planned=planned)

    def track(self, call: CallUsage, *, invocation: str, agent: str, branch: str = "") -> None:
        """Adds what a call used to its accounts. A second report of the same call replaces the first.

        Negative amounts count as 0. A lower input in the second report is ignored.
        """
        opened, earlier_totals = self._opened(invocation, agent, branch), Totals()
        if opened is not None and (counted := opened.counted) is not None:
            if not counted.input_estimated and call.input_tokens < counted.input_tokens:
                call = replace(call, input_tokens=counted.input_tokens)
            earlier_totals = Totals.of(counted)
            with suppress(ValueError):
                self._latest.remove(_Counted.of(counted))
        if opened is not None:
            opened.counted, opened.planned = call, None
        change = Totals._make(map(operator.sub, Totals.of(call), earlier_totals))
        for scope, name in _names(invocation, agent):
            self._spent[scope][name] = self._totals(scope, name).plus(change)
        self._latest.append(_Counted.of(call))

    def counted(self, *, invocation: str, agent: str, branch: str = "") -> CallUsage | None:
        """The tracked usage of the call that began last; None before its first report."""
        return opened.counted if (opened := self._opened(invocation, agent, branch)) is not None else None

    def fail(self, *, invocation: str, agent: str, branch: str = "") -> None:
        """Records that a call failed without usage: its estimate no longer counts."""
        if (opened := self._opened(invocation, agent, branch)) is not None:
            opened.planned = None

    def standing(self, *, invocation: str, agent: str) -> dict[str, JSON]:
        """The records of the totals of session, invocation and agent, to be kept with a call of this agent. One that
        equals the session's is left out."""
        session = self._totals("session", "")
        named = {scope: self._totals(scope, name) for scope, name in _names(invocation, agent)}
        return {scope: totals.record() for scope, totals in named.items() if scope == "session" or totals != session}

    def resume(self, recorded_totals: Mapping[str, JSON], *, invocation: str, agent: str) -> None:
        """Goes on from what `standing` gave. No number of an account becomes smaller by it."""
        for scope, name in _names(invocation, agent):
            record = recorded_totals.get(scope, recorded_totals.get("session"))
            if (recorded := Totals.from_record(record)) is not None:
                self._spent[scope][name] = Totals._make(map(max, self._totals(scope, name), recorded))

    def budget(self, scope: Scope, name: str, limits: LimitSettings) -> TokenBudget:
        """One account with its limits."""
        totals, limit = self._totals(scope, name), _limit(limits, scope, name).by_measure
        inputs, outputs = totals.estimated_inputs, totals.estimated_outputs
        approximate = {"input": inputs, "output": outputs, "cost": inputs + outputs + totals.unpriced_calls}
        uses = {
            measure: LimitUse(limit.get(measure), used, approximate.get(measure, inputs + outputs) > 0)
            for measure, used in totals.amounts.items()
        }
        return TokenBudget(scope=scope, name=name, totals=totals, **uses)

    def report(self, limits: LimitSettings) -> LedgerReport:
        """All accounts; invocations from the oldest to the newest, agents by name."""
        pairs = [(call.estimate, call.input_tokens) for call in self._latest if call.estimate is not None]
        return LedgerReport(
            session=self.budget("session", "", limits),
            invocations=tuple(self.budget("invocation", name, limits) for name in self._spent["invocation"]),
            agents=tuple(self.budget("agent", name, limits) for name in sorted(self._spent["agent"])),
            accuracy=accuracy(pairs),
            output_p90=self.output_p90,
        )

    def _totals(self, scope: Scope, name: str) -> Totals:
        return self._spent[scope].get(name, Totals())

    def _opened(self, invocation: str, agent: str, branch: str) -> _Open | None:
        """The call that an agent began last, None where that was in another invocation."""
        opened = self._open.get((branch, agent))
        return opened if opened is not None and opened.invocation == invocation else None

    def _bounds(
        self, limits: LimitSettings, invocation: str, agent: str
    ) -> Iterator[tuple[Scope, str, Measure, Amount, Amount]]:
        """The limits that apply to a call, with what is used of each."""
        for scope, name in _names(invocation, agent):
            used = self._totals(scope, name).amounts
            for measure, limit in _limit(limits, scope, name).by_measure.items():
                yield scope, name, measure, limit, used[measure]


def _names(invocation: str, agent: str) -> tuple[tuple[Scope, str], ...]:
    return ("session", ""), ("invocation", invocation), ("agent", agent)


def _limit(limits: LimitSettings, scope: Scope, name: str) -> Limit:
    if scope == "agent":
        return limits.of_agent(name)
    return limits.session if scope == "session" else limits.invocation
