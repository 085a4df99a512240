"""How a pool of texts answers a query: words and meaning together, neighbours, times, and the best of all.

A pool is arrays over slots, one a text; where these come from, an index in this process or a database, does not matter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from aether_context.retrieval import terms
from aether_context.retrieval.arrays import Floats, Slots


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
            and what it exceeds the pool's median by, ``semantic``; then ``passages``, ``neighbours``, ``time`` and
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


Links: TypeAlias = tuple[Slots, Slots]
"""The slot before each one in its thread, and the one behind it; -1 where there is none."""

_SEMANTIC_WEIGHT = 0.4
"""The share of meaning in the sum; words have the rest. Anything from 0.3 to 0.5 finds as much."""
_NEIGHBOURS = (0.5, 0.25, 0.125)
"""How much of its score an entry lends to those one, two and three places from it in its thread."""
_SMALL_POOL = 10
CANDIDATES = 1_000
"""So many of each list, words and meaning, are looked at."""
_TIME_WEIGHT, _RECENCY_WEIGHT = 0.2, 0.1
"""Added in full where a time agrees with one that the question names, and to what is of now where it asks for that."""


def combined(
    query: str, bm25: Floats, ceiling: float, cosine: Floats, *, usual: float, count: int, compared: bool
) -> tuple[Floats, dict[str, Floats]]:
    """How well each entry answers a masked query without its neighbours and its time; and what that is made of.

    Args:
        ceiling: what any entry can reach in words.
        usual: the median of the pool's cosines.
        count: how many entries there are in the pool.
        compared: whether anything compares meanings.
    """
    # A share of what the best entry reaches alone makes the best of a poor lot look good, a share of what any
    # entry can reach makes every entry of a long query look poor: taken is the geometric mean of the two.
    most = float(bm25.max(initial=0.0))
    lexical = bm25 / math.sqrt(most * max(most, ceiling)) if most > 0 else bm25
    # In a pool about one subject everything is a little alike, and neighbours would add that up, so that what is
    # usual is taken off. The median of a small pool says little and counts for less.
    semantic = np.maximum(0.0, cosine - max(0.0, usual) * count / (count + _SMALL_POOL))
    # The more of the words are identifiers, the less meaning tells.
    named = min(1.0, len(terms.identifiers(query)) / max(1, len(query.split())))
    weight = _SEMANTIC_WEIGHT * (1.0 - named) if compared else 0.0
    alone = (1 - weight) * lexical + weight * semantic
    return alone, {"bm25": bm25, "cosine": cosine, "lexical": lexical, "semantic": semantic}


def ranked(
    query: str,
    limit: int,
    entries: Callable[[Slots], Sequence[Entry]],
    *,
    slots: Slots,
    alone: Floats,
    scores: Mapping[str, Floats],
    times: Floats,
    links: Links,
    asked: float | None = None,
) -> list[Hit]:
    """The best entries for a masked query, best first; ties go to the id that sorts first.

    Args:
        entries: says what stands in slots, in their order.
        slots: those that may be found.
        alone: how well each entry of the pool answers by itself; ``scores`` is what that is made of.
        times: seconds since 1970 UTC, NaN where they are unknown.
        asked: when the query is asked; None takes the latest time of any entry.
    """
    total = alone[slots]
    for sides, share in zip(around(links, slots), _NEIGHBOURS, strict=True):
        for near in sides:
            total = total + np.where(near >= 0, share * alone[near], 0.0)
    scores = {name: values[slots] for name, values in scores.items()}
    scores["neighbours"] = total - alone[slots]
    times = times[slots]
    if not np.isnan(times).all():
        now = float(np.nanmax(times)) if asked is None else asked
        if spans := terms.named_times(query, asked=now):
            scores["time"] = _TIME_WEIGHT * terms.closeness(times, spans)
            total = total + scores["time"]
        if terms.asks_for_recent(query):
            scores["recency"] = _RECENCY_WEIGHT * terms.freshness(times, now=now)
            total = total + scores["recency"]
    total = np.round(total, 9)

    places = best(total, limit)
    found = entries(slots[places])
    ranks = total[places].tolist()
    order = sorted(range(len(found)), key=lambda rank: (-ranks[rank], found[rank].id))[:limit]
    rounded = [np.round(values[places[order]], 6).tolist() for values in scores.values()]
    return [
        Hit(entry=found[rank], score=ranks[rank], scores=dict(zip(scores, row, strict=True)))
        for rank, row in zip(order, zip(*rounded, strict=True), strict=True)
    ]


def candidates(lists: Sequence[Floats], links: Links, alive: NDArray[np.bool_]) -> Slots:
    """The best of each list and their neighbours; all that live where there are few."""
    living = np.flatnonzero(alive)
    if len(living) <= 2 * CANDIDATES:
        return living
    chosen = np.zeros(len(alive), dtype=bool)
    for scores in lists:
        chosen[best(scores, CANDIDATES)] = True
    for places in chain(*around(links, np.flatnonzero(chosen))):
        chosen[places[places >= 0]] = True
    return np.flatnonzero(chosen & alive)


def linked(threads: NDArray[np.integer], alive: NDArray[np.bool_]) -> Links:
    """Which entries stand next to which.

    Args:
        threads: the number of each entry's thread, below 0 where it has none.
    """
    order = np.flatnonzero(alive & (threads >= 0))
    order = order[np.argsort(threads[order], kind="stable")]
    same = threads[order[1:]] == threads[order[:-1]]
    earlier, later = np.full((2, len(threads)), -1, dtype=np.int64)
    earlier[order[1:][same]] = order[:-1][same]
    later[order[:-1][same]] = order[1:][same]
    return earlier, later


def around(links: Links, slots: Slots) -> list[Links]:
    """The slots one, two and three places before and behind these in their threads, -1 where there is none."""
    earlier, later = links
    before = behind = slots
    steps = []
    for _ in _NEIGHBOURS:
        before = np.where(before >= 0, earlier[before], -1)
        behind = np.where(behind >= 0, later[behind], -1)
        steps.append((before, behind))
    return steps


def best(scores: Floats, most: int) -> Slots:
    """The places of the highest scores above 0, and of those that equal the last of them."""
    places = np.flatnonzero(scores > 0)
    if len(places) > most:
        above = scores[places]
        places = places[above >= np.partition(above, -most)[-most]]
    return places
