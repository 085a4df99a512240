"""Means over sessions with their intervals, and whether a difference is more than chance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from aether_context.canonical import JSON

_ROUNDS = 10_000
_TAIL = 0.025
_POWER = 0.8
LEAST_SESSIONS = 30
"""The smallest number of sessions, of each side where two are compared, for a difference to be one."""
MOST_CHANCE = 0.05
"""Below this chance in two tails, adjusted for the number of comparisons, a difference is one: of arms, and of policies
that are tuned. The numbers of sessions that are asked for are those that this test needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """The mean of paired differences, one per session, with its 95% interval; ``means`` are those of the bootstrap."""

    mean: float = 0.0
    low: float = -math.inf
    high: float = math.inf
    sessions: int = 0
    deviation: float = 0.0
    means: Sequence[float] = ()

    def text(self, unit: str) -> str:
        """The mean with its interval, which one session does not have."""
        if self.sessions < 2:
            return f"{self.mean:+.2f}{unit}" if self.sessions else "unknown"
        return f"{self.mean:+.2f}{unit} [{self.low:+.2f}, {self.high:+.2f}]"

    def to_json(self) -> dict[str, JSON]:
        """The mean, its interval where several sessions give one, and their number."""
        ends = {"low": self.low, "high": self.high} if self.sessions > 1 else {}
        return {**({"mean": self.mean} if self.sessions else {}), **ends, "sessions": self.sessions}

    def chance_of(self, *, below: float | None = None, above: float | None = None) -> float:
        """The chance in two tails that the mean is at or below a bound, or at or above one; never 0."""
        means = np.asarray(self.means)
        beyond = means <= below if below is not None else means >= above
        return min(1.0, 2 * (int(beyond.sum()) + 1) / (len(means) + 1))


def paired_difference(values: Sequence[float], seed: int) -> Interval:
    """The mean with its interval by bootstrap over sessions; without values the interval is infinite."""
    if not values:
        return Interval()
    samples = np.asarray(values, dtype=np.float64)
    generator = np.random.default_rng(seed)
    means = np.concatenate(
        [samples[generator.integers(0, len(samples), (500, len(samples)))].mean(axis=1) for _ in range(_ROUNDS // 500)]
    )
    deviation = float(samples.std(ddof=1)) if len(samples) > 1 else 0.0
    return _interval(float(samples.mean()), len(samples), deviation, means)


def between(arm: Interval, other: Interval) -> Interval:
    """The difference of two means over different sessions, with its interval; the deviation is that of one of each."""
    means = np.asarray(arm.means) - np.asarray(other.means)
    deviation = math.hypot(arm.deviation, other.deviation)
    return _interval(arm.mean - other.mean, arm.sessions + other.sessions, deviation, means)


def _interval(mean: float, sessions: int, deviation: float, means: NDArray[np.float64]) -> Interval:
    low, high = np.quantile(means, (_TAIL, 1 - _TAIL)).tolist()
    samples = tuple(means.tolist())
    return Interval(mean=mean, low=low, high=high, sessions=sessions, deviation=deviation, means=samples)


def effective(weights: Sequence[float]) -> float:
    """Kish's effective number of sessions: their number where all have equal weights, fewer where a few dominate.

    https://en.wikipedia.org/wiki/Effective_sample_size
    """
    squares = sum(weight * weight for weight in weights)
    return sum(weights) ** 2 / squares if squares else 0.0


def needed_sessions(deviation: float, effect: float, comparisons: int = 1) -> int:
    """The number of sessions in which the test shows an effect with a power of 80%; 0 where there is no effect.

    Args:
        comparisons: number of those that are tested together.
    """
    quantiles = NormalDist().inv_cdf(1 - MOST_CHANCE / 2 / comparisons) + NormalDist().inv_cdf(_POWER)
    return math.ceil((quantiles * deviation / effect) ** 2) if effect else 0


def holm(chances: Sequence[float]) -> list[float]:
    """The p-values of several tests, adjusted for their number by Holm's step-down method.

    https://www.jstor.org/stable/4615733
    """
    order = np.argsort(chances, kind="stable")
    adjusted = np.empty(len(chances))
    adjusted[order] = np.maximum.accumulate(np.minimum(1, np.sort(chances) * np.arange(len(chances), 0, -1)))
    return list(map(float, adjusted))
