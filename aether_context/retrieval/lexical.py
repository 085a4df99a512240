"""BM25 over an inverted index that grows and forgets, entry by entry.

Postings lie in two parts: sorted by term, and in the order in which entries were added since. When the latter outgrow a
share of the former, both become one sorted part, so that adding costs a constant amount on average. What is removed
leaves every count at once and its postings at the next merge.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from .rows import Rows

Scores: TypeAlias = NDArray[np.float64]
Numbers: TypeAlias = NDArray[np.int32]
Slots: TypeAlias = NDArray[np.int64]

K1, B = 1.5, 0.75
_FULL_WORDS = 8
_MERGE_ABOVE = 50_000
_MERGED_SHARE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Postings:
    """What some entries say, by term.

    Attributes:
        words: each term once.
        sizes: how many of the entries hold each term.
        slots: the entries that hold the first term, then those of the second; ascending within a term, from 0.
        counts: how often each of these does.
        lengths: how many terms each entry has.
    """

    words: Sequence[str]
    sizes: NDArray[np.integer]
    slots: NDArray[np.integer]
    counts: NDArray[np.integer]
    lengths: NDArray[np.integer]


@dataclass(frozen=True, slots=True)
class _Run:
    """Postings side by side: of each term, by number, so many entries and how often they say it."""

    terms: NDArray[np.int64]
    sizes: NDArray[np.int64]
    slots: Numbers
    counts: Numbers


class InvertedIndex:
    """BM25 of numbered entries, as ``BM25Plus`` of rank-bm25 with ``delta=0`` scores them.

    The weight of a term is ``log((N + 1) / n)``, which stays positive in small pools. Entries are numbered from 0 in
    the order they are added; numbers are not given again.
    """

    def __init__(self) -> None:
        self._vocabulary: dict[str, int] = {}
        self._words: list[str] = []
        self._holders = Rows(np.empty(0, dtype=np.int64))
        self._lengths = Rows(np.empty(0, dtype=np.int32))
        self._alive = Rows(np.empty(0, dtype=np.bool_))
        self._live = 0
        self._total_length = 0
        self._starts: NDArray[np.int64] = np.zeros(1, dtype=np.int64)
        self._slots: Numbers = np.empty(0, dtype=np.int32)
        self._counts: Numbers = np.empty(0, dtype=np.int32)
        self._recent = Rows(np.empty((0, 3), dtype=np.int32))

    def __len__(self) -> int:
        return len(self._lengths)

    @property
    def live(self) -> int:
        """How many entries there are, removed ones not counted."""
        return self._live

    @property
    def alive(self) -> NDArray[np.bool_]:
        """Of each entry whether it is there."""
        held: NDArray[np.bool_] = self._alive.values
        return held

    def add(self, documents: Sequence[Sequence[str]]) -> None:
        """Adds the next entries.

        Args:
            documents: the terms of each.
        """
        rows = array("i")
        for slot, terms in enumerate(documents, start=len(self._lengths)):
            counted = Counter(terms)
            for number, count in zip(self._numbers(counted), counted.values(), strict=True):
                rows.extend((number, slot, count))
        added = np.array(rows, dtype=np.int32).reshape(-1, 3)
        self._count(np.array([len(terms) for terms in documents], dtype=np.int32))
        np.add.at(self._holders.values, added[:, 0], 1)
        self._recent.extend(added)
        if len(self._recent) > _MERGE_ABOVE + len(self._slots) // _MERGED_SHARE:
            self._merge()

    def remove(self, slots: Slots) -> None:
        """Forgets entries, each of them once."""
        gone = np.zeros(len(self._lengths), dtype=np.bool_)
        gone[slots] = True
        places = np.flatnonzero(gone[self._slots])
        held = np.searchsorted(self._starts, places, side="right") - 1
        recent = self._recent.values
        np.subtract.at(self._holders.values, np.concatenate([held, recent[gone[recent[:, 1]], 0]]), 1)
        self._alive.values[slots] = False
        self._live -= len(slots)
        self._total_length -= int(self._lengths.values[slots].sum(dtype=np.int64))

    def weight(self, term: str) -> float:
        """How much a term tells: 0 where every entry holds it, and that of an unseen one where none does."""
        number = self._vocabulary.get(term)
        holders = int(self._holders.values[number]) if number is not None else 0
        return math.log((self._live + 1) / max(1, holders)) if self._live else 0.0

    def scores(self, weights: Mapping[str, float]) -> Scores:
        """BM25 of every entry, removed ones 0.

        Args:
            weights: how often each term of the query counts, 1 for a term that stands in it once.
        """
        if not self._live or not self._total_length:
            return np.zeros(len(self._lengths))
        mean = self._total_length / self._live
        lengths = self._lengths.values
        known = [term for term in sorted(weights) if term in self._vocabulary]
        factors = np.array([self.weight(term) * weights[term] * (K1 + 1) for term in known])
        slots, counts, places = self._postings([self._vocabulary[term] for term in known])
        told = factors[places] * counts / (K1 * (1 - B + B * lengths[slots] / mean) + counts)
        found = np.asarray(np.bincount(slots, told, minlength=len(lengths)), dtype=np.float64)
        if self._live < len(found):
            found[~self._alive.values] = 0.0
        return found

    def ceiling(self, weights: Mapping[str, float]) -> float:
        """What an entry reaches that says the eight rarest terms of a query over and over."""
        told = sorted((self.weight(term) * weights[term] for term in weights), reverse=True)
        return (K1 + 1) * sum(told[:_FULL_WORDS])

    def keep(self, slots: Slots) -> None:
        """Forgets all but some entries, with the terms that none of those holds, and numbers those anew.

        Args:
            slots: sorted, none of them removed.
        """
        self._merge()
        places = np.full(len(self._lengths), -1, dtype=np.int32)
        places[slots] = np.arange(len(slots), dtype=np.int32)
        self._slots = places[self._slots]
        self._lengths = Rows(self._lengths.values[slots])
        self._alive = Rows(np.ones(len(slots), dtype=np.bool_))
        sizes = np.diff(self._starts)
        used = np.flatnonzero(sizes)
        self._words = [self._words[number] for number in used]
        self._vocabulary = {word: number for number, word in enumerate(self._words)}
        self._holders = Rows(sizes[used])
        self._starts = _starts(sizes[used])

    def part(self, slots: Slots) -> Postings:
        """The postings of some entries, numbered by their places among these.

        Args:
            slots: sorted, none of them removed.
        """
        first, last = (int(slots[0]), int(slots[-1]) + 1) if len(slots) else (0, 0)
        places = np.full(last - first, -1, dtype=np.int32)
        places[slots - first] = np.arange(len(slots), dtype=np.int32)
        inside = np.flatnonzero((self._slots >= first) & (self._slots < last))
        terms = np.searchsorted(self._starts, inside, side="right") - 1
        recent = self._recent.values
        recent = recent[(recent[:, 1] >= first) & (recent[:, 1] < last)]
        terms = np.concatenate([terms, recent[:, 0]])
        held = places[np.concatenate([self._slots[inside], recent[:, 1]]) - first]
        counts = np.concatenate([self._counts[inside], recent[:, 2]])
        kept = np.flatnonzero(held >= 0)
        kept = kept[np.argsort(terms[kept], kind="stable")]
        numbers, sizes = np.unique(terms[kept], return_counts=True)
        return Postings(
            words=[self._words[number] for number in numbers],
            sizes=sizes,
            slots=held[kept],
            counts=counts[kept],
            lengths=self._lengths.values[slots],
        )

    def extend(self, parts: Sequence[Postings]) -> None:
        """Adds the next entries, as they were in an index."""
        runs = []
        for part in parts:
            first = len(self._lengths)
            terms = np.array(self._numbers(part.words), dtype=np.int64)
            sizes = part.sizes.astype(np.int64)
            runs.append(_Run(terms, sizes, part.slots.astype(np.int32) + np.int32(first), part.counts.astype(np.int32)))
            self._count(part.lengths.astype(np.int32))
            self._holders.values[terms] += sizes
        self._merge(runs)

    def _numbers(self, terms: Collection[str]) -> list[int]:
        """The numbers of different terms; new ones get the next."""
        held = self._vocabulary
        found = list(map(held.get, terms))
        new = [term for term, number in zip(terms, found, strict=True) if number is None]
        if new:
            held.update(zip(new, range(len(held), len(held) + len(new)), strict=True))
            self._words += new
        return [held[term] if number is None else number for term, number in zip(terms, found, strict=True)]

    def _count(self, lengths: Numbers) -> None:
        """Makes room for the next entries and for the terms that are new."""
        self._lengths.extend(lengths)
        self._alive.extend(np.ones(len(lengths), dtype=np.bool_))
        self._holders.extend(np.zeros(len(self._words) - len(self._holders), dtype=np.int64))
        self._live += len(lengths)
        self._total_length += int(lengths.sum(dtype=np.int64))

    def _postings(self, numbers: Sequence[int]) -> tuple[Numbers, Numbers, NDArray[np.int64]]:
        """The slots and counts of some terms, one term after the other, and which of the terms each belongs to.

        What an entry holds of them stands in their order, so that its score is always added up alike.
        """
        parts = [self._sorted(number) for number in numbers]
        order = np.full(len(self._words), -1, dtype=np.int64)
        order[list(numbers)] = np.arange(len(numbers))
        recent = self._recent.values
        places = order[recent[:, 0]]
        wanted = np.flatnonzero(places >= 0)
        wanted = wanted[np.argsort(places[wanted], kind="stable")]
        return (
            np.concatenate([*(self._slots[part] for part in parts), recent[wanted, 1]]),
            np.concatenate([*(self._counts[part] for part in parts), recent[wanted, 2]]),
            np.concatenate(
                [np.repeat(np.arange(len(numbers)), [part.stop - part.start for part in parts]), places[wanted]]
            ),
        )

    def _sorted(self, number: int) -> slice:
        """Where the sorted postings of a term lie."""
        if number + 1 >= len(self._starts):
            return slice(0, 0)
        return slice(int(self._starts[number]), int(self._starts[number + 1]))

    def _merge(self, runs: Sequence[_Run] = ()) -> None:
        """Puts all postings of live entries, and those of entries that come behind them, into the sorted part."""
        sizes = np.diff(self._starts)
        before = _Run(np.arange(len(sizes)), sizes, self._slots, self._counts)
        all_ = [self._living(run) for run in (before, self._grouped())] + list(runs)
        totals = np.zeros(len(self._words), dtype=np.int64)
        for run in all_:
            totals[run.terms] += run.sizes
        self._starts = _starts(totals)
        self._slots = np.empty(self._starts[-1], dtype=np.int32)
        self._counts = np.empty(self._starts[-1], dtype=np.int32)
        next_ = self._starts[:-1].copy()
        for run in all_:
            shift = next_[run.terms] - _starts(run.sizes)[:-1]
            places = np.repeat(shift, run.sizes) + np.arange(len(run.slots))
            self._slots[places], self._counts[places] = run.slots, run.counts
            next_[run.terms] += run.sizes
        self._recent = Rows(np.empty((0, 3), dtype=np.int32))

    def _grouped(self) -> _Run:
        """What was added since the last merge."""
        recent = self._recent.values
        recent = recent[np.argsort(recent[:, 0], kind="stable")]
        terms, sizes = np.unique(recent[:, 0], return_counts=True)
        return _Run(terms.astype(np.int64), sizes, recent[:, 1], recent[:, 2])

    def _living(self, run: _Run) -> _Run:
        """A run without the entries that were removed."""
        kept = self._alive.values[run.slots]
        if kept.all():
            return run
        sums = np.concatenate([[0], np.cumsum(kept)])
        ends = np.cumsum(run.sizes)
        sizes = sums[ends] - sums[ends - run.sizes]
        return _Run(run.terms, sizes, run.slots[kept], run.counts[kept])


def _starts(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where the items of each group begin, and where the last one ends."""
    starts: NDArray[np.int64] = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    return starts
