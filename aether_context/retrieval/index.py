"""An index of texts that finds them by words and by meaning.

    index = HybridIndex.from_texts(["a", "b"], ["the red door", "the blue door"])
    [hit.id for hit in index.search("crimson entrance", limit=1)]

An index may be read by several threads while none writes to it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from aether_context.errors import SearchIndexError
from aether_context.retrieval import storage
from aether_context.retrieval.arrays import Rows, Slots
from aether_context.retrieval.embedders import Embedder, embedder_for
from aether_context.retrieval.lexical import InvertedIndex, Postings
from aether_context.retrieval.semantic import Asked, SemanticIndex
from aether_context.retrieval.terms import (
    asks_for_recent,
    closeness,
    freshness,
    identifiers,
    named_times,
    query_terms,
    terms,
)


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


# Numbered entries, found by words and by meaning; what they say is kept elsewhere.

Lookup = Callable[[Slots], Sequence[Entry]]
"""The entries of some slots, in the order of these."""

_CANDIDATES = 1_000
"""So many of each list, words and meaning, are looked at."""
_TIME_WEIGHT, _RECENCY_WEIGHT = 0.2, 0.1
"""Added in full where a time agrees with one that the question names, and to what is of now where it asks for that."""
_EXHAUSTIVE = 200_000
"""Up to so many entries are compared with a query one by one."""
_NEARER, _NEAR_SHARE = 8, 32


class SlotIndex:
    """Finds entries by BM25 and vectors together, and knows them by slot: 0, 1, … in the order they were added.

    The arguments are those of `HybridIndex`.
    """

    def __init__(
        self,
        embedder: str | Embedder | None = None,
        *,
        redact: Callable[[str], str] | None = None,
    ) -> None:
        chosen = embedder_for(embedder) if embedder is None or isinstance(embedder, str) else embedder
        self._redact = redact or str
        self._lexical = InvertedIndex()
        self._semantic = SemanticIndex(chosen)
        self._times = Rows(np.empty(0, dtype=np.float64))
        self._before = Rows(np.empty(0, dtype=np.int64))
        self._after = Rows(np.empty(0, dtype=np.int64))
        self._threads: dict[str, int] = {}
        self._thread_of = Rows(np.empty(0, dtype=np.int32))
        self._last = Rows(np.empty(0, dtype=np.int64))

    def __len__(self) -> int:
        """How many entries there are, removed ones not counted."""
        return self._lexical.live

    @property
    def slots(self) -> int:
        """How many slots were given, those of removed entries counted."""
        return len(self._lexical)

    @property
    def living(self) -> Slots:
        """The slots of the entries that are there, sorted."""
        return np.flatnonzero(self._lexical.alive)

    @property
    def embedders(self) -> tuple[str, ...]:
        """What made the vectors, by the names that a manifest records."""
        return self._semantic.names

    def add(self, entries: Sequence[Entry]) -> None:
        """Gives entries the next slots, each behind the last one of its thread.

        Raises:
            EmbeddingError: a local embedder failed; nothing was added.
        """
        searched = [self._redact(entry.searched) for entry in entries]
        self._semantic.add(searched)
        self._lexical.add([terms(text) for text in searched])
        self._times.extend(np.array([math.nan if entry.time is None else entry.time for entry in entries], dtype=float))
        self._link(self._numbers([entry.thread for entry in entries]))

    def reserve(self, count: int) -> None:
        """Makes room for so many entries more."""
        total = self.slots + count
        self._lexical.reserve(total)
        self._semantic.reserve(total)
        for rows in (self._times, self._before, self._after, self._thread_of):
            rows.reserve(total)

    def extend(self, parts: Iterable[storage.Part]) -> None:
        """Gives the entries of parts the next slots, as they were in an index with the same embedders."""
        self._lexical.extend(map(self._taken, parts))

    def _taken(self, part: storage.Part) -> Postings:
        """Takes all of a part but its postings."""
        self._semantic.extend(part.vectors, len(part))
        self._times.extend(part.times)
        numbers = np.append(self._numbers(part.threads), np.int32(-1))
        self._link(numbers[part.thread_of])
        return part.postings

    def part(self, slots: Slots) -> storage.Part:
        """What is known of some entries.

        Args:
            slots: sorted, none of them removed.
        """
        used, thread_of = np.unique(self._thread_of.values[slots], return_inverse=True)
        names = list(self._threads)
        nameless = int(len(used) > 0 and used[0] < 0)
        return storage.Part(
            postings=self._lexical.part(slots),
            vectors=self._semantic.part(slots),
            times=self._times.values[slots],
            threads=[names[number] for number in used[nameless:]],
            thread_of=(thread_of - nameless).astype(np.int32),
        )

    def remove(self, slots: Slots) -> None:
        """Forgets entries, each of them once."""
        self._lexical.remove(slots)
        for slot in slots.tolist():
            self._unlink(slot)

    def compact(self) -> Slots:
        """Numbers the entries anew, without those that were removed; the slots that they had."""
        kept = self.living
        if len(kept) == self.slots:
            return kept
        places = np.full(self.slots + 1, -1, dtype=np.int64)
        places[kept] = np.arange(len(kept))
        self._lexical.keep(kept)
        self._semantic.keep(kept)
        self._before, self._after = Rows(places[self._before.values[kept]]), Rows(places[self._after.values[kept]])
        self._times = Rows(self._times.values[kept])
        used, thread_of = np.unique(np.append(self._thread_of.values[kept], np.int32(-1)), return_inverse=True)
        names = list(self._threads)
        self._threads = {names[number]: place for place, number in enumerate(used[1:].tolist())}
        self._thread_of = Rows((thread_of[:-1] - 1).astype(np.int32))
        self._last = Rows(places[self._last.values[used[1:]]])
        return kept

    def search(
        self,
        query: str,
        limit: int,
        entries: Lookup,
        *,
        asked: float | None = None,
    ) -> list[Hit]:
        """As `HybridIndex.search`.

        Args:
            entries: says what stands in slots.
        """
        if not len(self) or limit <= 0:
            return []
        pool = self._ranked(self._redact(query), asked)
        kept = pool.part(np.flatnonzero(pool.total > 0))
        kept = kept.part(kept.best(limit))
        held = entries(kept.slots)
        total = kept.total.tolist()
        order = sorted(range(len(held)), key=lambda place: (-total[place], held[place].id))[:limit]
        return _hits(kept, order, held)

    def _ranked(self, query: str, asked: float | None) -> _Pool:
        """The candidates of a query with every score."""
        alive = np.flatnonzero(self._lexical.alive)
        words = query_terms(query)
        bm25 = self._lexical.scores(words)
        cosine = self._compared(self._semantic.asked(query), bm25, alive)
        lexical = told_by_words(bm25, self._lexical.ceiling(words))
        semantic = told_by_meaning(cosine, alive)
        share = semantic_share(query) if self._semantic.names else 0.0
        total = (1 - share) * lexical + share * semantic
        slots = self._candidates([lexical, semantic])
        scores = {"bm25": bm25, "cosine": cosine, "lexical": lexical, "semantic": semantic}
        scores = {name: values[slots] for name, values in scores.items()}
        lent = smoothed(total, slots, self._steps(slots))
        scores["neighbours"] = lent - total[slots]
        for name, bonus in self._timely(query, slots, asked).items():
            scores[name] = bonus
            lent = lent + bonus
        return _Pool(slots=slots, scores=scores, total=np.round(lent, 9))

    def _compared(self, asked: Asked, bm25: Floats, alive: Slots) -> Floats:
        """The cosine of every entry with a query; in a large index of those that may be candidates, 0 of the others.

        These are the best by words, and many times as many as can be candidates by the signs of their vectors; what
        stands around the candidates that those give; and some of all, by which a median is told.
        """
        if len(self) <= _EXHAUSTIVE:
            return np.round(asked.similarities(), 6)
        found = np.zeros(len(bm25))
        done = np.zeros(len(bm25), dtype=bool)

        def compare(wanted: Slots) -> None:
            asked_for = np.zeros(len(done), dtype=bool)
            asked_for[wanted] = True
            new = np.flatnonzero(asked_for & ~done)
            found[new] = np.round(asked.similarities(new), 6)
            done[new] = True

        most = max(_NEARER * _CANDIDATES, len(bm25) // _NEAR_SHARE)
        compare(np.concatenate([sampled(alive), asked.near(most), _best(bm25, _CANDIDATES)]))
        candidates = self._candidates([bm25, found])
        compare(np.concatenate([candidates, *(places[places >= 0] for places in chain(*self._steps(candidates)))]))
        return found

    def _candidates(self, lists: Sequence[Floats]) -> Slots:
        """The best of each list and their neighbours; all that live where there are few."""
        alive = self._lexical.alive
        if len(self) <= 2 * _CANDIDATES:
            return np.flatnonzero(alive)
        chosen = np.zeros(len(alive), dtype=bool)
        for scores in lists:
            chosen[_best(scores, _CANDIDATES)] = True
        found = np.flatnonzero(chosen)
        for sides in self._steps(found):
            for places in sides:
                chosen[places[places >= 0]] = True
        return np.flatnonzero(chosen & alive)

    def _steps(self, slots: Slots) -> list[tuple[Slots, Slots]]:
        """For each distance of the kernel the slots before and after these in their threads, -1 where there is none."""
        before = after = slots
        steps = []
        for _ in NEIGHBOURS:
            before = np.where(before >= 0, self._before.values[before], -1)
            after = np.where(after >= 0, self._after.values[after], -1)
            steps.append((before, after))
        return steps

    def _timely(self, query: str, slots: Slots, asked: float | None) -> dict[str, Floats]:
        """What agrees with the times that a question names, and what is recent where it asks for that."""
        times = self._times.values[slots]
        if np.isnan(times).all():
            return {}
        now = float(np.nanmax(times)) if asked is None else asked
        found = {}
        if spans := named_times(query, asked=now):
            found["time"] = _TIME_WEIGHT * closeness(times, spans)
        if asks_for_recent(query):
            found["recency"] = _RECENCY_WEIGHT * freshness(times, now=now)
        return found

    def _numbers(self, threads: Sequence[str | None]) -> NDArray[np.int32]:
        """The numbers of threads, -1 of none; a new one gets the next."""
        found = [-1 if name is None else self._threads.setdefault(name, len(self._threads)) for name in threads]
        self._last.extend(np.full(len(self._threads) - len(self._last), -1, dtype=np.int64))
        return np.array(found, dtype=np.int32)

    def _link(self, threads: NDArray[np.int32]) -> None:
        """Puts the next entries behind the last ones of their threads."""
        first = len(self._thread_of)
        order = np.argsort(threads, kind="stable")
        order = order[threads[order] >= 0]
        sorted_ = threads[order]
        begins = np.diff(sorted_, prepend=-1) != 0
        ends = np.diff(sorted_, append=-1) != 0
        before, after = (np.full(len(threads), -1, dtype=np.int64) for _ in range(2))
        before[order[1:][~begins[1:]]] = order[:-1][~ends[:-1]] + first
        after[order[:-1][~ends[:-1]]] = order[1:][~begins[1:]] + first
        last = self._last.values
        before[order[begins]] = last[sorted_[begins]]
        self._thread_of.extend(threads)
        self._before.extend(before)
        self._after.extend(after)
        known = begins & (last[sorted_] >= 0)
        self._after.values[last[sorted_[known]]] = order[known] + first
        last[sorted_[ends]] = order[ends] + first

    def _unlink(self, slot: int) -> None:
        """Makes the neighbours of an entry each other's."""
        before, after = int(self._before.values[slot]), int(self._after.values[slot])
        if before >= 0:
            self._after.values[before] = after
        if after >= 0:
            self._before.values[after] = before
        elif (thread := int(self._thread_of.values[slot])) >= 0:
            self._last.values[thread] = before


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pool:
    """Candidates by slot, their scores by name, and their score in all."""

    slots: Slots
    scores: Mapping[str, Floats]
    total: Floats

    def part(self, places: Slots) -> _Pool:
        scores = {name: values[places] for name, values in self.scores.items()}
        return _Pool(slots=self.slots[places], scores=scores, total=self.total[places])

    def best(self, most: int) -> Slots:
        """The places of the highest scores, and of those that equal the last of them."""
        if most >= len(self.slots):
            return np.arange(len(self.slots))
        return np.flatnonzero(self.total >= -np.partition(-self.total, most - 1)[most - 1])


def _best(scores: Floats, most: int) -> Slots:
    """The slots of the highest scores above 0, and of those that equal the last of them."""
    there = np.flatnonzero(scores > 0)
    if len(there) <= most:
        return there
    held = scores[there]
    best: Slots = there[held >= np.partition(held, -most)[-most]]
    return best


def _hits(pool: _Pool, places: Sequence[int], held: Sequence[Entry]) -> list[Hit]:
    """Some of a pool's candidates, with the entries that stand there."""
    chosen = pool.part(np.array(places, dtype=np.int64))
    rows = zip(*(np.round(values, 6).tolist() for values in chosen.scores.values()), strict=True)
    return [
        Hit(entry=held[place], score=total, scores=dict(zip(chosen.scores, row, strict=True)))
        for place, total, row in zip(places, chosen.total.tolist(), rows, strict=True)
    ]


# Entries with their texts.

_COMPACT_ABOVE = 1_000


class HybridIndex:
    """Entries found by BM25 and vectors together.

    Args:
        embedder: a name, an embedder, or None for the default; ``"none"`` finds by words alone.
        redact: masks what must be neither searched by, nor embedded, nor sent to an embedding service.

    Raises:
        PolicyError: no embedder of that name is known.
        MissingExtra: the embedder needs a package that is not installed.
    """

    def __init__(
        self,
        embedder: str | Embedder | None = None,
        *,
        redact: Callable[[str], str] | None = None,
    ) -> None:
        self._index = SlotIndex(embedder, redact=redact)
        self._entries: list[Entry | None] = []
        self._slots: dict[str, int] = {}

    @classmethod
    def from_texts(
        cls,
        ids: Sequence[str],
        texts: Sequence[str],
        times: Sequence[float | None] | None = None,
        embedder: str | Embedder | None = None,
    ) -> HybridIndex:
        """An index of these texts; the other arguments are those of `HybridIndex` and `add_texts`."""
        index = cls(embedder)
        index.add_texts(ids, texts, times)
        return index

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def embedders(self) -> tuple[str, ...]:
        """What made the vectors, by the names that a manifest records."""
        return self._index.embedders

    def add_texts(self, ids: Sequence[str], texts: Sequence[str], times: Sequence[float | None] | None = None) -> None:
        """Adds texts without speaker or thread; see `add`.

        Raises:
            SearchIndexError: there are not as many ids, texts and times, or `add` does not take them.
        """
        times = [None] * len(ids) if times is None else times
        if not len(ids) == len(texts) == len(times):
            raise SearchIndexError(
                f"ids, texts and times have {len(ids)}, {len(texts)} and {len(times)} items: give one of each an entry"
            )
        self.add(Entry(id=id, text=text, time=time) for id, text, time in zip(ids, texts, times, strict=True))

    def add(self, entries: Iterable[Entry]) -> None:
        """Adds entries, each in the place of one of the same id.

        Raises:
            SearchIndexError: an id is there twice among them, or a time is no finite number; nothing was added.
            EmbeddingError: a local embedder failed; nothing was added.
        """
        new = list(entries)
        _check(new)
        if not new:
            return
        self._index.add(new)
        self._forget(entry.id for entry in new)
        self._hold(new)

    def remove(self, ids: Iterable[str]) -> None:
        """Forgets entries in every part of the index; ids that are not there are passed over."""
        self._forget(ids)
        if len(self._entries) > _COMPACT_ABOVE + 2 * len(self._slots):
            self._compact()

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Writes the index into a folder of its own, in the place of what it held.

        Raises:
            SearchIndexError: the folder cannot be written.
        """
        self._compact()
        slots = self._index.living
        rows = [asdict(entry) for entry in self._held(slots)]
        storage.write(folder, self.embedders, rows, self._index.part(slots))

    @classmethod
    def load(
        cls,
        folder: str | os.PathLike[str],
        embedder: str | Embedder | None = None,
        *,
        redact: Callable[[str], str] | None = None,
    ) -> HybridIndex:
        """The index that was saved in a folder. Where its vectors are of another embedder, it is made anew.

        Raises:
            SearchIndexError: there is none, it is of another format, or a byte changed since it was written.
        """
        index = cls(embedder, redact=redact)
        embedders, rows, part = storage.read(folder)
        entries = [Entry(**row) for row in rows]
        if embedders == index.embedders:
            index._index.extend([part])
            index._hold(entries)
        else:
            index.add(entries)
        return index

    def search(
        self,
        query: str,
        limit: int = 10,
        *,
        asked: float | None = None,
    ) -> list[Hit]:
        """The best entries for a query, best first; ties go to the id that sorts first.

        Args:
            asked: when the query is asked, seconds since 1970 UTC; None takes the latest time of any entry.
        """
        return self._index.search(query, limit, self._held, asked=asked)

    def _forget(self, ids: Iterable[str]) -> None:
        gone = [self._slots.pop(id) for id in dict.fromkeys(ids) if id in self._slots]
        for slot in gone:
            self._entries[slot] = None
        if gone:
            self._index.remove(np.array(gone, dtype=np.int64))

    def _hold(self, entries: Sequence[Entry]) -> None:
        """Keeps the entries of the last slots."""
        for slot, entry in enumerate(entries, start=len(self._entries)):
            self._slots[entry.id] = slot
        self._entries += entries

    def _held(self, slots: Slots) -> list[Entry]:
        return [entry for slot in slots.tolist() if (entry := self._entries[slot]) is not None]

    def _compact(self) -> None:
        """Numbers the entries anew, without those that were removed."""
        kept = self._held(self._index.compact())
        self._entries, self._slots = [], {}
        self._hold(kept)


def _check(entries: Sequence[Entry]) -> None:
    seen: set[str] = set()
    for entry in entries:
        if entry.id in seen:
            raise SearchIndexError(f"id {entry.id!r} is there twice: give each entry its own")
        if entry.time is not None and not math.isfinite(entry.time):
            raise SearchIndexError(f"time {entry.time} of entry {entry.id!r} is not finite: None is an unknown time")
        seen.add(entry.id)
