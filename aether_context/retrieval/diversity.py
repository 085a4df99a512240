"""Maximal marginal relevance, exact, without comparing every candidate with every choice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

_BLOCK = 32


class Overlap(Protocol):
    """How alike candidates are, 0 to 1, by their places."""

    def __call__(self, places: NDArray[np.int64], chosen: NDArray[np.int64]) -> NDArray[np.float64]:
        """Of shape ``(places, chosen)``."""


def mmr(
    relevance: NDArray[np.float64], overlap: Overlap, *, weight: float, k: int, names: Sequence[str]
) -> list[tuple[int, float]]:
    """Places of at most ``k`` candidates, best first, each with its marginal relevance.

    ``weight * relevance - (1 - weight) * overlap`` with overlap the highest with one already chosen, at least 0
    (Carbonell and Goldstein, 1998). A marginal only falls while more is chosen, so what it was once bounds what it is:
    only candidates whose bound is the highest are compared with what was chosen since (Minoux, 1978). The result is
    that of comparing all. Ties go to the name that sorts first.
    """
    bound = weight * relevance
    covered = np.zeros(len(bound))
    compared = np.zeros(len(bound), dtype=np.int64)
    chosen: list[int] = []
    marginals: list[float] = []
    while len(chosen) < min(k, len(bound)):
        best = np.flatnonzero(bound == bound.max())
        stale = best[compared[best] < len(chosen)]
        if len(stale):
            block = _block(bound, compared, stale, len(chosen))
            since = np.array(chosen[compared[block].min() :], dtype=np.int64)
            covered[block] = np.maximum(covered[block], overlap(block, since).max(axis=1))
            bound[block] = weight * relevance[block] - (1 - weight) * covered[block]
            compared[block] = len(chosen)
            continue
        place = min(best.tolist(), key=lambda one: names[one])
        chosen.append(place)
        marginals.append(float(bound[place]))
        bound[place] = -np.inf
    return list(zip(chosen, marginals, strict=True))


def _block(
    bound: NDArray[np.float64], compared: NDArray[np.int64], stale: NDArray[np.int64], count: int
) -> NDArray[np.int64]:
    """The candidates to compare next: those that are due, and others of high bounds that soon will be."""
    high = np.arange(len(bound)) if len(bound) <= _BLOCK else np.argpartition(-bound, _BLOCK)[:_BLOCK]
    due = high[(compared[high] < count) & (bound[high] > -np.inf)]
    return np.union1d(due, stale)
