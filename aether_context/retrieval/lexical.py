"""BM25 over an inverted index that grows and forgets, entry by entry.

A posting says how often an entry holds a term. Postings are sorted by term, but for the last ones, which are looked
through; once these are a quarter as many, they are sorted in. A removed entry leaves every count at once.

Terms are known by hashes of 32 bits, so that no word is held. Of 200,000 terms about five share a hash with another.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from aether_context.retrieval.arrays import Floats, Rows, Slots
from aether_context.retrieval.terms import hash_of

K1, B = 1.5, 0.75
_FULL_WORDS = 8
_UNSORTED = 10_000
"""So many postings may be unsorted at least."""
_TERM, _ENTRY = np.uint64(32), np.uint64(2**32 - 1)
"""A posting is the hash of its term and, in 32 bits behind it, the number of its entry."""


class InvertedIndex:
    """BM25 of numbered entries, as ``BM25Plus`` of rank-bm25 with ``delta=0`` scores them.

    The weight of a term is ``log((N + 1) / n)``, which stays positive in small pools. Entries are numbered from 0 in
    the order they are added.
    """

    def __init__(self) -> None:
        self._postings = Rows(np.empty(0, dtype=np.uint64))
        self._counts = Rows(np.empty(0, dtype=np.int32))
        self._sorted = 0
        self._lengths = Rows(np.empty(0, dtype=np.int32))
        self._alive = Rows(np.empty(0, dtype=np.bool_))
        self.live = 0
        """How many entries there are, removed ones not counted."""
        self._total_length = 0

    def __len__(self) -> int:
        return len(self._lengths)

    @property
    def alive(self) -> NDArray[np.bool_]:
        """Of each entry whether it is there."""
        return self._alive.values

    def add(self, documents: Iterable[Sequence[str]]) -> None:
        """Adds the next entries, by their terms."""
        self.add_hashed([b"".join(map(hash_of, terms)) for terms in documents])

    def add_hashed(self, documents: Sequence[bytes]) -> None:
        """Adds the next entries, by what `hashed` gives."""
        lengths = np.array([len(entry) // 4 for entry in documents], dtype=np.int32)
        keys = np.frombuffer(b"".join(documents), dtype="<u4")
        self.extend(keys, np.repeat(np.arange(len(documents)), lengths), lengths)

    def extend(self, keys: NDArray[np.uint32], entries: Slots, lengths: NDArray[np.int32]) -> None:
        """Adds the next entries.

        Args:
            keys: hashes of terms, all of them or those that will be asked for.
            entries: which entry says each of them, 0 for the first new one.
            lengths: how many terms each entry has.
        """
        new = keys.astype(np.uint64) << _TERM | (entries + len(self)).astype(np.uint64)
        postings, counts = np.unique(new, return_counts=True)
        self._postings.extend(postings)
        self._counts.extend(counts)
        self._lengths.extend(lengths)
        self._alive.extend(np.ones(len(lengths), dtype=np.bool_))
        self.live += len(lengths)
        self._total_length += int(lengths.sum(dtype=np.int64))
        if len(self._postings) - self._sorted > max(_UNSORTED, self._sorted // 4):
            self._sort(self._postings.values, self._counts.values)

    def _sort(self, postings: NDArray[np.uint64], counts: NDArray[np.int32]) -> None:
        order = np.argsort(postings, kind="stable")  # fast where most is sorted
        self._postings, self._counts = Rows(postings[order]), Rows(counts[order])
        self._sorted = len(order)

    def remove(self, slots: Slots) -> None:
        """Forgets entries, each of them once."""
        self._alive.values[slots] = False
        self.live -= len(slots)
        self._total_length -= int(self._lengths.values[slots].sum(dtype=np.int64))

    def keep(self, slots: Slots) -> None:
        """Numbers entries anew and lets go of all others.

        Args:
            slots: those that are there, sorted.
        """
        places = np.full(len(self), -1)
        places[slots] = np.arange(len(slots))
        moved = places[self._postings.values & _ENTRY]
        kept = moved >= 0
        terms = self._postings.values[kept] >> _TERM << _TERM
        self._sort(terms | moved[kept].astype(np.uint64), self._counts.values[kept])
        self._lengths, self._alive = Rows(self._lengths.values[slots]), Rows(self.alive[slots])

    def scores(self, query: Sequence[str]) -> tuple[Floats, float]:
        """BM25 of every entry for the terms of a query, each once, removed entries 0; and what any entry can reach.

        That is what one reaches that says the eight rarest of the terms over and over.
        """
        found = np.zeros(len(self))
        if not self.live or not self._total_length:
            return found, 0.0
        norms = K1 * (1 - B) + (K1 * B * self.live / self._total_length) * self._lengths.values
        known = self._postings.values[: self._sorted]
        late = self._postings.values[self._sorted :] >> _TERM
        weights = []
        for term in sorted(query):
            key = np.uint64(int.from_bytes(hash_of(term), "little"))
            first, last = key << _TERM, key << _TERM | _ENTRY
            places = np.arange(known.searchsorted(first), known.searchsorted(last, side="right"))
            places = np.concatenate([places, self._sorted + np.flatnonzero(late == key)])
            slots = (self._postings.values[places] & _ENTRY).astype(np.int64)  # others are turned into it at each use
            counts = self._counts.values[places]
            holders = len(slots) if self.live == len(self) else int(np.count_nonzero(self.alive[slots]))
            weights.append(math.log((self.live + 1) / max(1, holders)))
            found[slots] += weights[-1] * (K1 + 1) * counts / (norms[slots] + counts)
        if self.live < len(self):
            found[~self.alive] = 0.0
        return found, (K1 + 1) * sum(sorted(weights, reverse=True)[:_FULL_WORDS])
