"""What one model call used, sums of many, and how close the estimates made before them came."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple

from aether_context.canonical import JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class CallUsage:
    """What one model call used.

    Attributes:
        input_tokens: all that was read, cached tokens and the results of tools that the provider ran included.
        output_tokens: all that was answered, thoughts included.
        cached_tokens: of the input, what the provider's cache served; None where the provider did not say.
        cache_write_tokens: of the input, what the provider wrote into its cache and says so.
        estimate: the input as it was estimated before the call; None where it was not.
        input_estimated: whether the provider reported no input, so that the estimate stands for it.
        output_estimated: whether the output is counted from the answer's text, likewise.
        cost_usd: None where the price is unknown.
        system_tokens, tool_tokens, formatting_tokens: of the estimate, what the system instruction, the declarations,
            and the framing of messages and calls take.
    """

    input_tokens: int
    output_tokens: int
    cached_tokens: int | None = None
    cache_write_tokens: int = 0
    estimate: int | None = None
    input_estimated: bool = False
    output_estimated: bool = False
    cost_usd: Decimal | None = None
    system_tokens: int = 0
    tool_tokens: int = 0
    formatting_tokens: int = 0

    def least_zero(self) -> CallUsage:
        """The call without negative amounts: what a provider reports wrongly never makes an account smaller."""
        amounts = {
            name: value * 0
            for name in ("input_tokens", "output_tokens", "cached_tokens", "cache_write_tokens", "cost_usd")
            if (value := getattr(self, name)) is not None and value < 0
        }
        return replace(self, **amounts) if amounts else self

    def record(self) -> dict[str, JSON]:
        """The call as JSON; None is unknown."""
        return {
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "cached_tokens": self.cached_tokens,
            "estimate": self.estimate,
            "input_estimated": self.input_estimated,
            "output_estimated": self.output_estimated,
            "cost_usd": None if self.cost_usd is None else float(self.cost_usd),
        }

    @classmethod
    def from_record(cls, value: object) -> CallUsage | None:
        """A call from its JSON, None where it is not that of a call."""
        if not isinstance(value, Mapping):
            return None
        counts = {name: value.get(name) for name in ("input_tokens", "output_tokens", "cached_tokens", "estimate")}
        if not all(_is_count(one) for one in (counts["input_tokens"], counts["output_tokens"])):
            return None
        return cls(
            input_tokens=counts["input_tokens"] or 0,
            output_tokens=counts["output_tokens"] or 0,
            cached_tokens=counts["cached_tokens"] if _is_count(counts["cached_tokens"]) else None,
            estimate=counts["estimate"] if _is_count(counts["estimate"]) else None,
            input_estimated=value.get("input_estimated") is True,
            output_estimated=value.get("output_estimated") is True,
            cost_usd=_dollars(value.get("cost_usd")),
        )


class Totals(NamedTuple):
    """Sums over calls.

    Attributes:
        cached_tokens: of `known_cache_tokens`, what a cache served.
        known_cache_tokens: input of the calls whose provider said how much its cache served.
        cost_usd: of the calls whose price is known.
        unpriced_calls: the others.
        estimated_inputs, estimated_outputs: calls whose input or output no provider reported.
    """

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    known_cache_tokens: int = 0
    cache_write_tokens: int = 0
    cost_usd: Decimal = Decimal(0)
    unpriced_calls: int = 0
    estimated_inputs: int = 0
    estimated_outputs: int = 0
    system_tokens: int = 0
    tool_tokens: int = 0
    formatting_tokens: int = 0

    @classmethod
    def of(cls, call: CallUsage) -> Totals:
        return cls(
            calls=1,
            input_tokens=call.input_tokens,
            output_tokens=call.output_tokens,
            cached_tokens=call.cached_tokens or 0,
            known_cache_tokens=call.input_tokens if call.cached_tokens is not None else 0,
            cache_write_tokens=call.cache_write_tokens,
            cost_usd=call.cost_usd or Decimal(0),
            unpriced_calls=int(call.cost_usd is None),
            estimated_inputs=int(call.input_estimated),
            estimated_outputs=int(call.output_estimated),
            system_tokens=call.system_tokens,
            tool_tokens=call.tool_tokens,
            formatting_tokens=call.formatting_tokens,
        )

    @property
    def total_tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    @property
    def cached_share(self) -> float | None:
        """Cached tokens over the input of which it is known; None where it is of none."""
        return self.cached_tokens / self.known_cache_tokens if self.known_cache_tokens else None

    @property
    def known_cost_usd(self) -> Decimal | None:
        """The cost, None where no call has a known price."""
        return None if self.unpriced_calls == self.calls else self.cost_usd

    def plus(self, other: Totals) -> Totals:
        return Totals._make(map(operator.add, self, other))

    def minus(self, other: Totals) -> Totals:
        return Totals._make(map(operator.sub, self, other))

    def larger(self, other: Totals) -> Totals:
        """The larger of each number: what is known from two sides of the same calls."""
        return Totals._make(map(max, self, other))

    def record(self) -> dict[str, JSON]:
        """The sums as JSON; besides the total, those that are 0 are left out."""
        values = {name: value for name, value in zip(self._fields, self, strict=True) if value}
        if self.cost_usd:
            values["cost_usd"] = float(self.cost_usd)
        return {"total_tokens": self.total_tokens, **values}

    @classmethod
    def from_record(cls, value: object) -> Totals | None:
        """Sums from their JSON, None where it is not that of sums."""
        if not isinstance(value, Mapping):
            return None
        counts = {name: value.get(name, 0) for name in cls._fields if name != "cost_usd"}
        cost = _dollars(value.get("cost_usd", 0))
        if cost is None or not all(map(_is_count, counts.values())):
            return None
        return cls(**counts, cost_usd=cost)


_MOST = 10**18


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= _MOST


def _dollars(value: Any) -> Decimal | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        cost = Decimal(str(value))
    except InvalidOperation:
        return None
    return cost if cost.is_finite() and 0 <= cost <= _MOST else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """How close estimates came to what providers reported; None where there is nothing to compare.

    Attributes:
        p50, p95: of the absolute errors, as shares of what was reported.
        bias: all that was estimated over all that was reported, less one: negative where estimates are low.
        under: the share of calls whose estimate was low by more than one percent.
    """

    calls: int
    p50: float | None = None
    p95: float | None = None
    bias: float | None = None
    under: float | None = None


def accuracy(pairs: Sequence[tuple[int, int]]) -> Accuracy:
    """The accuracy of (estimated, reported) tokens. Pairs of which nothing was reported are left out."""
    known = [(estimated, reported) for estimated, reported in pairs if reported > 0]
    if not known:
        return Accuracy(calls=0)
    errors = [(estimated - reported) / reported for estimated, reported in known]
    sizes = sorted(map(abs, errors))
    return Accuracy(
        calls=len(known),
        p50=percentile(sizes, 0.5),
        p95=percentile(sizes, 0.95),
        bias=sum(estimated for estimated, _ in known) / sum(reported for _, reported in known) - 1,
        under=sum(error < -0.01 for error in errors) / len(errors),
    )


def percentile(ascending: Sequence[float], share: float) -> float:
    """The nearest-rank percentile of values that ascend; there is at least one."""
    return ascending[max(0, math.ceil(share * len(ascending)) - 1)]
