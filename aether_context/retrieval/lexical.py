"""BM25 over an inverted index that grows and forgets, entry by entry.

Postings lie in two parts: sorted arrays, and what was added since in a dictionary. When the latter outgrows a share of
the former, both become new sorted arrays, so that adding costs a constant amount on average. What is removed leaves
every count at once and its postings at the next merge.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from .rows import Rows

Scores: TypeAlias = NDArray[np.float64]
Numbers: TypeAlias = NDArray[np.int32]

K1, B = 1.5, 0.75
_FULL_WORDS = 8
_MERGE_ABOVE = 50_000


class InvertedIndex:
    """BM25 of numbered entries, as ``BM25Plus`` of rank-bm25 with ``delta=0`` scores them.

    The weight of a term is ``log((N + 1) / n)``, which stays positive in small pools. Entries are numbered from 0 in
    the order they are added; numbers are not given again.
    """

    def __init__(self) -> None:
        self._vocabulary: dict[str, int] = {}
        self._holders = array("i")
        self._lengths = Rows(np.empty(0, dtype=np.int32))
        self._live = 0
        self._total_length = 0
        self._starts: NDArray[np.int64] = np.zeros(1, dtype=np.int64)
        self._slots: Numbers = np.empty(0, dtype=np.int32)
        self._counts: Numbers = np.empty(0, dtype=np.int32)
        self._recent: dict[int, tuple[array[int], array[int]]] = {}
        self._recent_postings = 0
        self._dead: set[int] = set()

    def __len__(self) -> int:
        return len(self._lengths)

    def add(self, terms: Sequence[str]) -> None:
        """Adds the next entry."""
        slot = len(self._lengths)
        self._lengths.extend(np.array([len(terms)], dtype=np.int32))
        self._live += 1
        self._total_length += len(terms)
        for term, count in Counter(terms).items():
            number = self._vocabulary.setdefault(term, len(self._vocabulary))
            if number == len(self._holders):
                self._holders.append(0)
            self._holders[number] += 1
            slots, counts = self._recent.setdefault(number, (array("i"), array("i")))
            slots.append(slot)
            counts.append(count)
            self._recent_postings += 1
        if self._recent_postings > _MERGE_ABOVE + len(self._slots) // 2:
            self._merge()

    def remove(self, slot: int, terms: Sequence[str]) -> None:
        """Forgets an entry.

        Args:
            terms: those it was added with.
        """
        self._dead.add(slot)
        self._live -= 1
        self._total_length -= len(terms)
        for term in set(terms):
            self._holders[self._vocabulary[term]] -= 1

    def weight(self, term: str) -> float:
        """How much a term tells: 0 where every entry holds it, and that of an unseen one where none does."""
        number = self._vocabulary.get(term)
        holders = self._holders[number] if number is not None else 0
        return math.log((self._live + 1) / max(1, holders)) if self._live else 0.0

    def scores(self, weights: Mapping[str, float]) -> Scores:
        """BM25 of every entry, removed ones 0.

        Args:
            weights: how often each term of the query counts, 1 for a term that stands in it once.
        """
        found = np.zeros(len(self._lengths))
        if not self._live or not self._total_length:
            return found
        mean = self._total_length / self._live
        lengths = self._lengths.values
        for term in sorted(weights):
            number = self._vocabulary.get(term)
            if number is None or not self._holders[number]:
                continue
            factor = self.weight(term) * weights[term] * (K1 + 1)
            for slots, counts in self._postings(number):
                found[slots] += factor * counts / (K1 * (1 - B + B * lengths[slots] / mean) + counts)
        if self._dead:
            found[np.fromiter(self._dead, dtype=np.int64, count=len(self._dead))] = 0.0
        return found

    def ceiling(self, weights: Mapping[str, float]) -> float:
        """What an entry reaches that says the eight rarest terms of a query over and over."""
        told = sorted((self.weight(term) * weights[term] for term in weights), reverse=True)
        return (K1 + 1) * sum(told[:_FULL_WORDS])

    def _postings(self, number: int) -> list[tuple[Numbers, Numbers]]:
        found = []
        if number + 1 < len(self._starts):
            part = slice(self._starts[number], self._starts[number + 1])
            found.append((self._slots[part], self._counts[part]))
        if number in self._recent:
            slots, counts = self._recent[number]
            found.append((np.array(slots, dtype=np.int32), np.array(counts, dtype=np.int32)))
        return found

    def _merge(self) -> None:
        """All postings of live entries in sorted arrays."""
        terms, slots, counts = self._flat()
        if self._dead:
            kept = ~np.isin(slots, np.fromiter(self._dead, dtype=np.int32))
            terms, slots, counts = terms[kept], slots[kept], counts[kept]
        order = np.lexsort((slots, terms))
        self._slots, self._counts = slots[order], counts[order]
        sizes = np.bincount(terms, minlength=len(self._vocabulary))
        self._starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        self._recent = {}
        self._recent_postings = 0

    def _flat(self) -> tuple[Numbers, Numbers, Numbers]:
        """The term, the entry and the count of every posting."""
        sizes = np.diff(self._starts)
        terms = [np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)]
        slots, counts = [self._slots], [self._counts]
        for number, (more, times) in self._recent.items():
            terms.append(np.full(len(more), number, dtype=np.int32))
            slots.append(np.array(more, dtype=np.int32))
            counts.append(np.array(times, dtype=np.int32))
        return np.concatenate(terms), np.concatenate(slots), np.concatenate(counts)

    def keep(self, slots: NDArray[np.int64]) -> None:
        """Forgets all but some entries and numbers those anew.

        Args:
            slots: sorted, none of them removed.
        """
        self._merge()
        places = np.full(len(self._lengths), -1, dtype=np.int32)
        places[slots] = np.arange(len(slots), dtype=np.int32)
        self._slots = places[self._slots]
        self._lengths = Rows(self._lengths.values[slots])
        self._dead = set()

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """Everything but the words, for `from_arrays`. Removed entries are to be forgotten first."""
        self._merge()
        return {
            "starts": self._starts,
            "slots": self._slots,
            "counts": self._counts,
            "lengths": self._lengths.values,
            "holders": np.array(self._holders, dtype=np.int32),
        }

    @property
    def words(self) -> list[str]:
        """Every term that was ever added, in the order of their first entries."""
        return list(self._vocabulary)

    @classmethod
    def from_arrays(cls, words: Sequence[str], arrays: Mapping[str, NDArray[np.generic]]) -> InvertedIndex:
        """The index that gave these words and arrays."""
        index = cls()
        index._vocabulary = {word: number for number, word in enumerate(words)}
        index._starts = arrays["starts"].astype(np.int64)
        index._slots, index._counts = arrays["slots"].astype(np.int32), arrays["counts"].astype(np.int32)
        index._lengths = Rows(arrays["lengths"].astype(np.int32))
        index._holders = array("i", arrays["holders"].astype(np.int32).tolist())
        index._live = len(index._lengths)
        index._total_length = int(index._lengths.values.sum(dtype=np.int64))
        return index
