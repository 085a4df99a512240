"""BM25 over an inverted index that grows and forgets, entry by entry.

Postings lie in two parts: sorted by term, and in the order in which entries were added since. When the latter outgrow a
share of the former, both become one sorted part, so that adding costs a constant amount on average. What is removed
leaves every count at once and its postings at the next merge.

Terms are known by a hash of 64 bits, so that parts of an index come together without a look at a word.
"""

from __future__ import annotations

import hashlib
import math
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from aether_context.retrieval.arrays import Rows

Scores: TypeAlias = NDArray[np.float64]
Numbers: TypeAlias = NDArray[np.int32]
Slots: TypeAlias = NDArray[np.int64]
Keys: TypeAlias = NDArray[np.uint64]
Counts: TypeAlias = NDArray[np.integer]

K1, B = 1.5, 0.75
_FULL_WORDS = 8
_MERGE_ABOVE = 50_000
_MERGED_SHARE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Postings:
    """What some entries say, by term.

    Attributes:
        terms: `key_of` each term once, sorted.
        sizes: how many of the entries hold each term.
        slots: the entries that hold the first term, then those of the second; ascending within a term, from 0.
        counts: how often each of these does.
        lengths: how many terms each entry has.
    """

    terms: Keys
    sizes: Counts
    slots: Counts
    counts: Counts
    lengths: Counts


@dataclass(frozen=True, slots=True)
class _Run:
    """Postings side by side: of each term, by its key, so many entries and how often they say it."""

    terms: Keys
    sizes: NDArray[np.int64]
    slots: Numbers
    counts: Counts


class InvertedIndex:
    """BM25 of numbered entries, as ``BM25Plus`` of rank-bm25 with ``delta=0`` scores them.

    The weight of a term is ``log((N + 1) / n)``, which stays positive in small pools. Entries are numbered from 0 in
    the order they are added; numbers are not given again.
    """

    def __init__(self) -> None:
        self._lengths = Rows(np.empty(0, dtype=np.int32))
        self._alive = Rows(np.empty(0, dtype=np.bool_))
        self._live = 0
        self._total_length = 0
        self._sorted = _Run(
            np.empty(0, dtype=np.uint64),
            np.empty(0, dtype=np.int64),
            np.empty(0, dtype=np.int32),
            np.empty(0, dtype=np.uint8),
        )
        self._starts: NDArray[np.int64] = np.zeros(1, dtype=np.int64)
        self._recent: dict[int, array[int]] = {}
        self._recent_size = 0

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
        recent = self._recent
        for slot, terms in enumerate(documents, start=len(self._lengths)):
            counted = Counter(terms)
            for term, count in counted.items():
                key = key_of(term)
                held = recent.get(key)
                if held is None:
                    held = recent[key] = array("i")
                held.extend((slot, count))
            self._recent_size += len(counted)
        self._count(np.array([len(terms) for terms in documents], dtype=np.int32))
        if self._recent_size > _MERGE_ABOVE + len(self._sorted.slots) // _MERGED_SHARE:
            self._merge()

    def remove(self, slots: Slots) -> None:
        """Forgets entries, each of them once."""
        self._alive.values[slots] = False
        self._live -= len(slots)
        self._total_length -= int(self._lengths.values[slots].sum(dtype=np.int64))

    def scores(self, query: Sequence[str]) -> Scores:
        """BM25 of every entry for the terms of a query, each once; removed entries 0."""
        found = np.zeros(len(self._lengths))
        if not self._live or not self._total_length:
            return found
        norms = K1 * (1 - B) + (K1 * B * self._live / self._total_length) * self._lengths.values
        for term in sorted(query):
            postings = list(self._postings(term))
            holders = sum(self._holders(slots) for slots, _ in postings)
            factor = self._weight(holders) * (K1 + 1)
            for slots, counts in postings:
                found[slots] += factor * counts / (norms[slots] + counts)
        if self._live < len(found):
            found[~self._alive.values] = 0.0
        return found

    def ceiling(self, query: Sequence[str]) -> float:
        """What an entry reaches that says the eight rarest terms of a query over and over."""
        holders = (sum(self._holders(slots) for slots, _ in self._postings(term)) for term in query)
        weights = sorted(map(self._weight, holders), reverse=True)
        return (K1 + 1) * sum(weights[:_FULL_WORDS])

    def keep(self, slots: Slots) -> None:
        """Forgets the postings of removed entries, with the terms that no other holds, and numbers the others anew.

        Args:
            slots: those that are not removed, sorted.
        """
        self._merge()
        places = np.full(len(self._lengths), -1, dtype=np.int32)
        places[slots] = np.arange(len(slots), dtype=np.int32)
        held = self._sorted
        self._sorted = _Run(held.terms, held.sizes, places[held.slots], held.counts)
        self._lengths = Rows(self._lengths.values[slots])
        self._alive = Rows(np.ones(len(slots), dtype=np.bool_))

    def part(self, slots: Slots) -> Postings:
        """The postings of some entries, numbered by their places among these.

        Args:
            slots: sorted, none of them removed.
        """
        first, last = (int(slots[0]), int(slots[-1]) + 1) if len(slots) else (0, 0)
        places = np.full(last - first, -1, dtype=np.int32)
        places[slots - first] = np.arange(len(slots), dtype=np.int32)
        held, recent = self._sorted, self._grouped()
        inside = np.flatnonzero((held.slots >= first) & (held.slots < last))
        near = np.flatnonzero((recent.slots >= first) & (recent.slots < last))
        terms = np.concatenate(
            [
                held.terms[np.searchsorted(self._starts, inside, side="right") - 1],
                recent.terms[np.searchsorted(_starts(recent.sizes), near, side="right") - 1],
            ]
        )
        found = places[np.concatenate([held.slots[inside], recent.slots[near]]) - first]
        counts = np.concatenate([held.counts[inside], recent.counts[near]])
        kept = np.flatnonzero(found >= 0)
        kept = kept[np.argsort(terms[kept], kind="stable")]
        keys, sizes = np.unique(terms[kept], return_counts=True)
        return Postings(
            terms=keys, sizes=sizes, slots=found[kept], counts=counts[kept], lengths=self._lengths.values[slots]
        )

    def reserve(self, count: int) -> None:
        """Makes room for so many entries in all."""
        self._lengths.reserve(count)
        self._alive.reserve(count)

    def extend(self, parts: Iterable[Postings]) -> None:
        """Adds the next entries, as they were in an index."""
        runs: list[_Run] = []
        try:
            for part in parts:
                slots = part.slots.astype(np.int32) + np.int32(len(self._lengths))
                runs.append(_Run(part.terms.copy(), part.sizes.astype(np.int64), slots, part.counts.copy()))
                self._count(part.lengths.astype(np.int32))
        finally:
            self._merge(runs)

    def _count(self, lengths: Numbers) -> None:
        """Makes room for the next entries."""
        self._lengths.extend(lengths)
        self._alive.extend(np.ones(len(lengths), dtype=np.bool_))
        self._live += len(lengths)
        self._total_length += int(lengths.sum(dtype=np.int64))

    def _weight(self, holders: int) -> float:
        return math.log((self._live + 1) / max(1, holders)) if self._live else 0.0

    def _holders(self, slots: Numbers) -> int:
        """How many of some entries are there."""
        return len(slots) if self._live == len(self._lengths) else int(np.count_nonzero(self._alive.values[slots]))

    def _postings(self, term: str) -> Iterator[tuple[Numbers, Counts]]:
        """The entries that hold a term, removed ones too, and how often each does: sorted ones, then recent ones."""
        key = key_of(term)
        held = self._sorted
        number = int(np.searchsorted(held.terms, np.uint64(key)))
        if number < len(held.terms) and int(held.terms[number]) == key:
            part = slice(self._starts[number], self._starts[number + 1])
            yield held.slots[part], held.counts[part]
        if key in self._recent:
            pairs = np.array(self._recent[key], dtype=np.int32)
            yield pairs[0::2], pairs[1::2]

    def _merge(self, runs: Sequence[_Run] = ()) -> None:
        """Puts all postings of live entries, and those of entries that come behind them, into the sorted part."""
        all_ = [self._living(run) for run in (self._sorted, self._grouped())] + list(runs)
        terms, numbers = np.unique(np.concatenate([run.terms for run in all_]), return_inverse=True)
        totals = np.zeros(len(terms), dtype=np.int64)
        np.add.at(totals, numbers, np.concatenate([run.sizes for run in all_]))
        self._starts = _starts(totals)
        slots = np.empty(self._starts[-1], dtype=np.int32)
        counts = np.empty(self._starts[-1], dtype=np.result_type(*(run.counts for run in all_)))
        next_ = self._starts[:-1].copy()
        at = 0
        for run in all_:
            mine = numbers[at : at + len(run.terms)]
            at += len(run.terms)
            places = np.repeat(next_[mine] - _starts(run.sizes)[:-1], run.sizes) + np.arange(len(run.slots))
            slots[places], counts[places] = run.slots, run.counts
            next_[mine] += run.sizes
        self._sorted = _Run(terms, totals, slots, counts)
        self._recent, self._recent_size = {}, 0

    def _grouped(self) -> _Run:
        """What was added since the last merge."""
        pairs = np.frombuffer(b"".join(held.tobytes() for held in self._recent.values()), dtype=np.int32)
        sizes = np.fromiter((len(held) // 2 for held in self._recent.values()), np.int64, len(self._recent))
        terms = np.fromiter(self._recent, np.uint64, len(self._recent))
        counts = pairs[1::2]
        return _Run(terms, sizes, pairs[0::2], counts.astype(np.min_scalar_type(int(counts.max(initial=0)))))

    def _living(self, run: _Run) -> _Run:
        """A run without the entries that were removed, and without terms that no other holds."""
        kept = self._alive.values[run.slots]
        if kept.all():
            return run
        sums = np.concatenate([[0], np.cumsum(kept)])
        ends = np.cumsum(run.sizes)
        sizes = sums[ends] - sums[ends - run.sizes]
        said = sizes > 0
        return _Run(run.terms[said], sizes[said], run.slots[kept], run.counts[kept])


@lru_cache(maxsize=100_000)
def key_of(term: str) -> int:
    """What a term is known by: 64 bits."""
    digest = hashlib.blake2b(term.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def _starts(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where the items of each group begin, and where the last one ends."""
    starts: NDArray[np.int64] = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    return starts
