"""Maximal marginal relevance, exact, without comparing every candidate with every choice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

_FIRST_BLOCK = 128


class Overlap(Protocol):
    """How alike candidates are, 0 to 1, by their places."""

    def __call__(self, places: NDArray[np.int64], chosen: NDArray[np.int64]) -> NDArray[np.float64]:
        """Of shape ``(places, chosen)``."""


def mmr(
    relevance: NDArray[np.float64], overlap: Overlap, *, weight: float, k: int, names: Sequence[str]
) -> list[tuple[int, float]]:
    """Places of at most ``k`` candidates, best first, each with its marginal relevance.

    ``weight * relevance - (1 - weight) * overlap`` with overlap the highest with one already chosen, at least 0
    (Carbonell and Goldstein, 1998). A marginal only falls while more is chosen, so a candidate whose relevance alone is
    too small for the next place is not compared at all; the result is that of comparing all. Ties go to the name that
    sorts first.
    """
    order = np.argsort(-relevance, kind="stable")
    bound = weight * relevance[order]
    covered = np.zeros(len(order))
    reached, compared = 0, min(_FIRST_BLOCK, len(order))
    chosen: list[tuple[int, float]] = []
    taken = np.zeros(len(order), dtype=bool)
    while len(chosen) < min(k, len(order)):
        while True:
            _compare(covered, overlap, order, slice(reached, compared), [place for place, _ in chosen])
            reached = compared
            marginal = bound[:reached] - (1 - weight) * covered[:reached]
            marginal[taken[:reached]] = -np.inf
            best = marginal.max()
            if reached == len(order) or bound[reached] < best:
                break
            compared = min(2 * reached, len(order))
        equal = np.flatnonzero(marginal == best)
        spot = min(equal.tolist(), key=lambda one: names[int(order[one])])
        taken[spot] = True
        chosen.append((int(order[spot]), float(best)))
        _compare(covered, overlap, order, slice(0, reached), [int(order[spot])])
    return chosen


def _compare(
    covered: NDArray[np.float64], overlap: Overlap, order: NDArray[np.int64], part: slice, chosen: Sequence[int]
) -> None:
    """Raises what is covered of some candidates by their overlap with some choices."""
    if chosen and part.start < part.stop:
        found = overlap(order[part], np.array(chosen, dtype=np.int64)).max(axis=1)
        covered[part] = np.maximum(covered[part], found)
