"""BM25 over an inverted index that grows and forgets, entry by entry.

Postings lie in runs, each sorted by term. What is added becomes a run of its own; a run and all behind it become one as
soon as those hold half as much, so that there are never many and adding costs little on average. A removed entry leaves
every count at once.

Terms are known by a hash of 64 bits, so that parts of an index come together without a look at a word.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from aether_context.retrieval.arrays import Array, Floats, Rows, Slots, smallest

K1, B = 1.5, 0.75
_FULL_WORDS = 8


@dataclass(frozen=True, slots=True)
class _Run:
    """What some entries say, by term.

    Attributes:
        terms: `key_of` each term once, sorted.
        starts: where the entries of each term begin, and where those of the last one end.
        slots: the entries that hold the first term, then those of the second, and so on.
        counts: how often each of these does.
    """

    terms: NDArray[np.uint64]
    starts: NDArray[np.int64]
    slots: NDArray[np.int32]
    counts: NDArray[np.integer]


class InvertedIndex:
    """BM25 of numbered entries, as ``BM25Plus`` of rank-bm25 with ``delta=0`` scores them.

    The weight of a term is ``log((N + 1) / n)``, which stays positive in small pools. Entries are numbered from 0 in
    the order they are added; numbers are not given again.
    """

    def __init__(self) -> None:
        self._lengths = Rows(np.empty(0, dtype=np.int32))
        self._alive = Rows(np.empty(0, dtype=np.bool_))
        self.live = 0
        """How many entries there are, removed ones not counted."""
        self._total_length = 0
        self._runs: list[_Run] = []

    def __len__(self) -> int:
        return len(self._lengths)

    @property
    def alive(self) -> NDArray[np.bool_]:
        """Of each entry whether it is there."""
        return self._alive.values

    def add(self, documents: Iterable[Sequence[str]]) -> None:
        """Adds the next entries, by their terms."""
        keys: list[int] = []
        counts: list[int] = []
        sizes: list[int] = []
        lengths: list[int] = []
        for terms in documents:
            counted = Counter(terms)
            keys.extend(map(key_of, counted))
            counts.extend(counted.values())
            sizes.append(len(counted))
            lengths.append(len(terms))
        slots = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
        part = grouped(np.array(keys, dtype=np.uint64), slots, np.array(counts, dtype=np.int64))
        self.extend({**part, "lengths": np.array(lengths, dtype=np.int32)})
        self._settle()

    def extend(self, part: Mapping[str, Array]) -> None:
        """Adds the next entries, as `part` gave them."""
        slots = part["slots"].astype(np.int32) + np.int32(len(self))
        # Copies, since arrays that were unpacked would keep all of the bytes that they were unpacked from.
        self._runs.append(_Run(part["terms"].copy(), part["starts"].astype(np.int64), slots, part["counts"].copy()))
        lengths = part["lengths"]
        self._lengths.extend(lengths)
        self._alive.extend(np.ones(len(lengths), dtype=np.bool_))
        self.live += len(lengths)
        self._total_length += int(lengths.sum(dtype=np.int64))

    def remove(self, slots: Slots) -> None:
        """Forgets entries, each of them once."""
        self._alive.values[slots] = False
        self.live -= len(slots)
        self._total_length -= int(self._lengths.values[slots].sum(dtype=np.int64))

    def scores(self, query: Sequence[str]) -> tuple[Floats, float]:
        """BM25 of every entry for the terms of a query, each once, removed entries 0; and what any entry can reach.

        That is what one reaches that says the eight rarest of the terms over and over.
        """
        found = np.zeros(len(self))
        if not self.live or not self._total_length:
            return found, 0.0
        self._settle()
        norms = K1 * (1 - B) + (K1 * B * self.live / self._total_length) * self._lengths.values
        weights = []
        for term in sorted(query):
            key = np.uint64(key_of(term))
            holders = 0
            postings = []
            for run in self._runs:
                number = int(run.terms.searchsorted(key))
                if number < len(run.terms) and run.terms[number] == key:
                    slots = run.slots[run.starts[number] : run.starts[number + 1]]
                    postings.append((slots, run.counts[run.starts[number] : run.starts[number + 1]]))
                    holders += len(slots) if self.live == len(self) else int(np.count_nonzero(self.alive[slots]))
            weights.append(math.log((self.live + 1) / max(1, holders)))
            factor = weights[-1] * (K1 + 1)
            for slots, counts in postings:
                found[slots] += factor * counts / (norms[slots] + counts)
        if self.live < len(self):
            found[~self.alive] = 0.0
        return found, (K1 + 1) * sum(sorted(weights, reverse=True)[:_FULL_WORDS])

    def part(self, slots: Slots) -> dict[str, Array]:
        """What some entries say, by the names of `_Run`, numbered by their places among these.

        ``lengths`` says how many terms each has.
        """
        self._settle()
        places = np.full(len(self), -1, dtype=np.int32)
        places[slots] = np.arange(len(slots), dtype=np.int32)
        keys: list[Array] = [np.empty(0, dtype=np.uint64)]
        found: list[Array] = [np.empty(0, dtype=np.int32)]
        counts: list[Array] = [np.empty(0, dtype=np.uint8)]
        for run in self._runs:
            inside = np.flatnonzero(places[run.slots] >= 0)
            keys.append(run.terms[np.searchsorted(run.starts, inside, side="right") - 1])
            found.append(places[run.slots[inside]])
            counts.append(run.counts[inside])
        part = grouped(np.concatenate(keys), np.concatenate(found), np.concatenate(counts))
        return {**part, "lengths": smallest(self._lengths.values[slots])}

    def _settle(self) -> None:
        """Makes one run of the last ones where they have grown."""
        runs = self._runs
        first, behind = len(runs), 0
        for place, run in reversed(list(enumerate(runs))):
            if len(run.slots) <= 2 * behind:
                first = place
            behind += len(run.slots)
        if first < len(runs) - 1:
            # A new list, since another thread may read the old one.
            self._runs = [*runs[:first], _merged(runs[first:])]


@lru_cache(maxsize=100_000)
def key_of(term: str) -> int:
    """What a term is known by: 64 bits."""
    digest = hashlib.blake2b(term.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def grouped(keys: NDArray[np.uint64], slots: Array, counts: Array) -> dict[str, Array]:
    """A run, by its names, of pairs of a term and an entry in any order."""
    order = np.argsort(keys, kind="stable")
    terms, starts = np.unique(keys[order], return_index=True)
    starts = np.append(starts, len(keys))
    return {
        "terms": terms,
        "starts": smallest(starts),
        "slots": smallest(slots[order]),
        "counts": smallest(counts[order]),
    }


def _merged(runs: Sequence[_Run]) -> _Run:
    """Runs as one, in time in proportion to their length."""
    terms, numbers = np.unique(np.concatenate([run.terms for run in runs]), return_inverse=True)
    sizes = np.concatenate([np.diff(run.starts) for run in runs])
    starts = np.zeros(len(terms) + 1, dtype=np.int64)
    np.add.at(starts, numbers + 1, sizes)
    np.cumsum(starts, out=starts)
    slots = np.empty(starts[-1], dtype=np.int32)
    counts = np.empty(starts[-1], dtype=np.result_type(*(run.counts for run in runs)))
    free = starts[:-1].copy()
    done = 0
    for run in runs:
        known = numbers[done : done + len(run.terms)]
        run_sizes = sizes[done : done + len(run.terms)]
        done += len(run.terms)
        places = np.repeat(free[known] - run.starts[:-1], run_sizes) + np.arange(len(run.slots))
        slots[places], counts[places] = run.slots, run.counts
        free[known] += run_sizes
    return _Run(terms, starts, slots, counts)
