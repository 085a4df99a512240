"""One score from what words, meaning, neighbours and time say."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from .words import identifiers

Floats: TypeAlias = NDArray[np.float64]
Slots: TypeAlias = NDArray[np.int64]

_SMALL_POOL = 10
_SAMPLED = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSettings:
    """How an index ranks; the defaults are the same for every kind of material.

    Attributes:
        semantic_weight: the share of meaning in the sum, 0 to 1; words have the rest. A query that is full of
            identifiers leans on words, by up to all of it.
        neighbours: how much of its score an entry lends to those one, two, three places from it in its thread.
        time_weight: added in full where an entry's time agrees with a time that the question names.
        recency_weight: added in full to what is of now, where a question asks for the latest.
        half_life_days: after which recency has fallen to one half.
        floor: the share of the best score under which nothing is found, 0 to 1.
        repeated: what the score of an entry is multiplied by that nearly repeats a better one, 0 to 1; 1 is off.
        candidates: how many of each list, words and meaning, are looked at.
    """

    semantic_weight: float = 0.4
    neighbours: tuple[float, ...] = (0.5, 0.25, 0.125)
    time_weight: float = 0.2
    recency_weight: float = 0.1
    half_life_days: float = 30.0
    floor: float = 0.0
    repeated: float = 0.5
    candidates: int = 1_000


def semantic_share(query: str, weight: float) -> float:
    """The share of meaning for a query: less, the more of its words are identifiers."""
    words = query.split()
    share = len(identifiers(query)) / len(words) if words else 0.0
    return weight * (1.0 - min(1.0, share))


def told_by_words(bm25: Floats, ceiling: float) -> Floats:
    """BM25 as a share, 0 to 1: the geometric mean of its shares of the best entry's and of what any entry can reach.

    The one alone makes the best of a poor lot look good, the other makes every entry of a long query look poor.
    """
    best = float(bm25.max(initial=0.0))
    return bm25 / math.sqrt(best * max(best, ceiling)) if best > 0 else bm25


def told_by_meaning(cosines: Floats, alive: Slots) -> Floats:
    """Cosines as what they exceed the pool's median by, at least 0.

    In a pool about one subject everything is a little alike, and neighbours would add that up. The median of a small
    pool says little and counts for less; that of a large one is taken of some, evenly spaced.
    """
    if not cosines.any():
        return cosines
    usual = max(0.0, float(np.median(cosines[sampled(alive)]))) * len(alive) / (len(alive) + _SMALL_POOL)
    return np.maximum(0.0, cosines - usual)


def sampled(alive: Slots) -> Slots:
    """Entries that stand for all of them, evenly spaced: at most 10,000."""
    return alive[:: 1 + len(alive) // _SAMPLED]


def smoothed(scores: Floats, slots: Slots, steps: Sequence[tuple[Slots, Slots]], kernel: Sequence[float]) -> Floats:
    """The scores of some entries with what neighbours lend them.

    Args:
        scores: of all entries.
        steps: for each distance the slots before and after ``slots``, -1 where there is none.
    """
    result = scores[slots]
    for sides, weight in zip(steps, kernel, strict=True):
        for places in sides:
            result = result + np.where(places >= 0, weight * scores[places], 0.0)
    return result
