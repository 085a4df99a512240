"""Tests whether the difference between two policies is more than chance, over sessions that both were played on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

ROUNDS = 10_000
_CONFIDENCE = 0.95
_Z_ALPHA, _Z_POWER = 1.645, 0.842
"""One-sided 5%, and a power of 80%."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The mean of paired differences with its 95% interval, by bootstrap over sessions.

    Attributes:
        sessions: number of differences.
        means: the means of the bootstrap samples, in the order in which they were drawn.
    """

    mean: float
    low: float
    high: float
    sessions: int
    deviation: float
    means: Sequence[float] = ()

    def chance_of(self, *, below: float | None = None, above: float | None = None) -> float:
        """The share of samples whose mean is at or below a bound, or at or above one; never 0."""
        means = np.asarray(self.means)
        if not len(means):
            return 1.0
        beyond = means <= below if below is not None else means >= above
        return (int(beyond.sum()) + 1) / (len(means) + 1)


def difference(values: Sequence[float], seed: int) -> Difference:
    """The mean of differences, one per session, with its interval; without values the interval is infinite."""
    if not values:
        return Difference(mean=0.0, low=-math.inf, high=math.inf, sessions=0, deviation=0.0)
    samples = np.asarray(values, dtype=np.float64)
    generator = np.random.default_rng(seed)
    means = np.concatenate(
        [samples[generator.integers(0, len(samples), (500, len(samples)))].mean(axis=1) for _ in range(ROUNDS // 500)]
    )
    tail = (1 - _CONFIDENCE) / 2
    low, high = np.quantile(means, (tail, 1 - tail))
    deviation = float(samples.std(ddof=1)) if len(samples) > 1 else 0.0
    return Difference(
        mean=float(samples.mean()),
        low=float(low),
        high=float(high),
        sessions=len(samples),
        deviation=deviation,
        means=tuple(means.tolist()),
    )


def effective(weights: Sequence[float]) -> float:
    """Kish's effective number of sessions: their number where all have equal weights, fewer where a few dominate.

    https://en.wikipedia.org/wiki/Effective_sample_size
    """
    squares = sum(weight * weight for weight in weights)
    return sum(weights) ** 2 / squares if squares else 0.0


def needed_sessions(deviation: float, effect: float) -> int:
    """The number of sessions that shows an effect at 5% (one-sided) with a power of 80%."""
    return math.ceil(((_Z_ALPHA + _Z_POWER) * deviation / effect) ** 2) if effect else 0


def holm(chances: Sequence[float]) -> list[float]:
    """The p-values of several tests, adjusted for their number by Holm's step-down method.

    https://www.jstor.org/stable/4615733
    """
    adjusted = [0.0] * len(chances)
    highest = 0.0
    for rank, index in enumerate(sorted(range(len(chances)), key=lambda index: chances[index])):
        highest = max(highest, min(1.0, (len(chances) - rank) * chances[index]))
        adjusted[index] = highest
    return adjusted
