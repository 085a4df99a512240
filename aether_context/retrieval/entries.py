"""What an index holds, what it finds, and how its scores become one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from aether_context.retrieval.terms import identifiers

# What an index holds and what it finds.


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A text in an index.

    Attributes:
        time: seconds since 1970 UTC, None where it is unknown.
        speaker: who said it; found by name.
        thread: the conversation it belongs to; entries of one thread are neighbours in the order they were added.
    """

    id: str
    text: str
    time: float | None = None
    speaker: str | None = None
    thread: str | None = None

    @property
    def searched(self) -> str:
        """The text with its speaker."""
        return f"{self.speaker}: {self.text}" if self.speaker else self.text


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """An entry that was found.

    Attributes:
        score: the one it is ranked by.
        scores: what that was made of: ``bm25`` (0 and more) and its share ``lexical`` (0 to 1), ``cosine`` (-1 to 1)
            and what it exceeds the pool's median by, ``semantic``; then ``neighbours``, ``time`` and
            ``recency`` where they played a part.
    """

    entry: Entry
    score: float
    scores: Mapping[str, float] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """The entry's."""
        return self.entry.id

    @property
    def text(self) -> str:
        """The entry's, whole."""
        return self.entry.text


# One score from what words, meaning, neighbours and time say.

Floats: TypeAlias = NDArray[np.float64]
Slots: TypeAlias = NDArray[np.int64]

_SEMANTIC_WEIGHT = 0.4
"""The share of meaning in the sum; words have the rest. Anything from 0.3 to 0.5 finds as much."""
NEIGHBOURS = (0.5, 0.25, 0.125)
"""How much of its score an entry lends to those one, two and three places from it in its thread."""
_SMALL_POOL = 10
_SAMPLED = 10_000


def semantic_share(query: str) -> float:
    """The share of meaning for a query: less, the more of its words are identifiers."""
    words = query.split()
    share = len(identifiers(query)) / len(words) if words else 0.0
    return _SEMANTIC_WEIGHT * (1.0 - min(1.0, share))


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


def smoothed(scores: Floats, slots: Slots, steps: Sequence[tuple[Slots, Slots]]) -> Floats:
    """The scores of some entries with what neighbours lend them.

    Args:
        scores: of all entries.
        steps: for each distance the slots before and after ``slots``, -1 where there is none.
    """
    result = scores[slots]
    for sides, weight in zip(steps, NEIGHBOURS, strict=True):
        for places in sides:
            result = result + np.where(places >= 0, weight * scores[places], 0.0)
    return result
