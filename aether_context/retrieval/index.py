"""An index of texts that finds them by words and by meaning.

    index = HybridIndex.from_texts(["a", "b"], ["the red door", "the blue door"])
    [hit.id for hit in index.search("crimson entrance", limit=1)]

An index may be read by several threads while none writes to it.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

import numpy as np
from numpy.typing import NDArray

from aether_context.embedding import Embedder, embedder_for
from aether_context.errors import SearchIndexError

from . import saving
from .dates import asks_for_recent, closeness, freshness, named_times
from .diversity import mmr
from .fusion import (
    Expander,
    Floats,
    Reranker,
    SearchSettings,
    Slots,
    reciprocal_ranks,
    semantic_share,
    smoothed,
    told_by_meaning,
    told_by_words,
)
from .lexical import InvertedIndex
from .rows import Rows
from .semantic import SemanticIndex
from .words import query_terms, terms

_COMPACT_ABOVE = 1_000
_FEEDBACK_TERMS, _FEEDBACK_WEIGHT = 10, 0.3


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
            and what it exceeds the pool's median by, ``semantic``; then ``neighbours``, ``time``, ``recency``, ``mmr``
            and ``rerank`` where they played a part.
    """

    entry: Entry
    score: float
    scores: Mapping[str, float] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return self.entry.id

    @property
    def text(self) -> str:
        return self.entry.text


class HybridIndex:
    """Entries found by BM25 and vectors together.

    Args:
        embedder: a name, an embedder, or None for the default; ``"none"`` finds by words alone.
        redact: masks what must be neither searched by, nor embedded, nor sent to an embedding service.
        expander: gives more texts to search by; the scores of all count alike.
        reranker: orders the best anew.

    Raises:
        PolicyError: no embedder of that name is known.
        MissingExtra: the embedder needs a package that is not installed.
    """

    def __init__(
        self,
        embedder: str | Embedder | None = None,
        *,
        settings: SearchSettings | None = None,
        redact: Callable[[str], str] | None = None,
        expander: Expander | None = None,
        reranker: Reranker | None = None,
    ) -> None:
        chosen = embedder_for(embedder) if embedder is None or isinstance(embedder, str) else embedder
        self.settings = settings or SearchSettings()
        self._redact = redact or str
        self._expander = expander
        self._reranker = reranker
        self._lexical = InvertedIndex()
        self._semantic = SemanticIndex(chosen)
        self._entries: list[Entry | None] = []
        self._slots: dict[str, int] = {}
        self._times = Rows(np.empty(0, dtype=np.float64))
        self._before = Rows(np.empty(0, dtype=np.int64))
        self._after = Rows(np.empty(0, dtype=np.int64))
        self._last: dict[str, int] = {}
        self._dead: list[int] = []

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

    def __contains__(self, id: object) -> bool:
        return id in self._slots

    def __getitem__(self, id: str) -> Entry:
        """The entry of that id. Raises KeyError."""
        entry = self._entries[self._slots[id]]
        assert entry is not None
        return entry

    @property
    def embedders(self) -> tuple[str, ...]:
        """What made the vectors, by the names that a manifest records."""
        return self._semantic.names

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
        searched = [self._redact(entry.searched) for entry in new]
        self._semantic.add(searched)
        self._forget(entry.id for entry in new)
        for entry, text in zip(new, searched, strict=True):
            self._link(entry)
            self._lexical.add(terms(text))

    def remove(self, ids: Iterable[str]) -> None:
        """Forgets entries in every part of the index; ids that are not there are passed over."""
        self._forget(ids)
        if len(self._dead) > _COMPACT_ABOVE + len(self._slots):
            self._compact()

    def _forget(self, ids: Iterable[str]) -> None:
        for id in dict.fromkeys(ids):
            slot = self._slots.pop(id, None)
            if slot is None:
                continue
            entry = self._entries[slot]
            assert entry is not None
            self._lexical.remove(slot, self._terms(entry))
            self._unlink(slot, entry)
            self._entries[slot] = None

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Writes the index into a folder of its own, in the place of what it held.

        Raises:
            SearchIndexError: the folder cannot be written.
        """
        self._compact()
        vectors = {f"vectors{number}": rows for number, rows in enumerate(self._semantic.rows) if rows is not None}
        links = {"before": self._before.values, "after": self._after.values}
        rows = [asdict(self._entry(slot)) for slot in range(len(self._entries))]
        saved = saving.Saved(
            embedders=self.embedders,
            rows=rows,
            words=self._lexical.words,
            arrays={**self._lexical.arrays(), **vectors, **links},
        )
        saving.write(saved, folder)

    @classmethod
    def load(
        cls,
        folder: str | os.PathLike[str],
        embedder: str | Embedder | None = None,
        *,
        settings: SearchSettings | None = None,
        redact: Callable[[str], str] | None = None,
    ) -> HybridIndex:
        """The index that was saved in a folder. Where its vectors are of another embedder, they are made anew.

        Raises:
            SearchIndexError: there is none, it is of another format, or a byte changed since it was written.
        """
        index = cls(embedder, settings=settings, redact=redact)
        saved = saving.read(folder)
        for row in saved.rows:
            index._append(Entry(**row))
        index._times = Rows(_times([index._entry(slot) for slot in range(len(saved.rows))]))
        index._before, index._after = Rows(saved.arrays["before"]), Rows(saved.arrays["after"])
        index._lexical = InvertedIndex.from_arrays(saved.words, saved.arrays)
        if saved.embedders == index.embedders:
            count = len(index.embedders)
            index._semantic.restore([saved.arrays.get(f"vectors{n}") for n in range(count)], len(saved.rows))
        elif saved.rows:
            index._semantic.add([index._redact(index._entry(slot).searched) for slot in range(len(saved.rows))])
        return index

    def search(
        self,
        query: str,
        limit: int = 10,
        *,
        asked: float | None = None,
        mmr_lambda: float = 1.0,
    ) -> list[Hit]:
        """The best entries for a query, best first; ties go to the id that sorts first.

        Args:
            asked: when the query is asked, seconds since 1970 UTC; None takes the latest time of any entry.
            mmr_lambda: weight of relevance against diversity, 0 to 1; 1 is relevance alone.
        """
        if not self._slots or limit <= 0:
            return []
        pool = self._ranked(self._redact(query), asked)
        best = pool.total.max(initial=0.0)
        kept = pool.part(np.flatnonzero((pool.total > 0) & (pool.total >= self.settings.floor * best)))
        if self._reranker is not None:
            kept = self._reranked(query, kept, self._reranker)
        if mmr_lambda < 1:
            return self._diverse(kept, limit, mmr_lambda)
        if limit < len(kept.slots):
            kept = kept.part(np.flatnonzero(kept.total >= -np.partition(-kept.total, limit - 1)[limit - 1]))
        order = sorted(
            range(len(kept.slots)), key=lambda place: (-kept.total[place], self._entry(int(kept.slots[place])).id)
        )
        return [self._hit(kept, place) for place in order[:limit]]

    def _ranked(self, query: str, asked: float | None) -> _Pool:
        """The candidates of a query with every score."""
        alive = np.ones(len(self._entries), dtype=bool)
        alive[self._dead] = False
        first = self._fused(query, dict.fromkeys(query_terms(query), 1.0), np.flatnonzero(alive))
        fused = [
            first,
            *(self._fused(text, dict.fromkeys(query_terms(text), 1.0), first.alive) for text in self._other(query)),
        ]
        if self.settings.feedback:
            fused.append(self._fused(query, self._fed_back(query, first), first.alive))
        total = sum((one.total for one in fused[1:]), start=first.total) / len(fused)
        slots = self._candidates([one.lexical for one in fused] + [one.semantic for one in fused], alive)
        scores = {name: values[slots] for name, values in first.parts.items()}
        lent = smoothed(total, slots, self._steps(slots), self.settings.neighbours)
        scores["neighbours"] = lent - total[slots]
        for name, bonus in self._timely(query, slots, asked).items():
            scores[name] = bonus
            lent = lent + bonus
        return _Pool(slots=slots, scores=scores, total=np.round(lent, 9))

    def _fused(self, query: str, weights: Mapping[str, float], alive: Slots) -> _Fused:
        """The scores of every entry by words and by meaning."""
        bm25 = self._lexical.scores(weights)
        cosine = np.round(self._semantic.similarities(query), 6)
        lexical = told_by_words(bm25, self._lexical.ceiling(weights))
        semantic = told_by_meaning(cosine, alive)
        share = semantic_share(query, self.settings.semantic_weight) if self._semantic.names else 0.0
        if self.settings.fusion == "rrf":
            lexical = reciprocal_ranks(lexical, self.settings.rrf_k)
            semantic = reciprocal_ranks(semantic, self.settings.rrf_k)
        return _Fused(bm25=bm25, cosine=cosine, lexical=lexical, semantic=semantic, share=share, alive=alive)

    def _other(self, query: str) -> list[str]:
        """What else to search by, masked as the query is."""
        return [] if self._expander is None else [self._redact(text) for text in self._expander.expand(query)]

    def _fed_back(self, query: str, first: _Fused) -> dict[str, float]:
        """The query's terms, and those that tell most of the best entries (Rocchio, 1971)."""
        weights = dict.fromkeys(query_terms(query), 1.0)
        best = first.alive[np.argsort(-first.total[first.alive], kind="stable")[: self.settings.feedback]]
        counts = Counter(term for slot in best for term in set(self._terms(self._entry(slot))))
        told = sorted(counts, key=lambda term: (-counts[term] * self._lexical.weight(term), term))
        for term in [term for term in told if term not in weights and counts[term] > 1][:_FEEDBACK_TERMS]:
            weights[term] = _FEEDBACK_WEIGHT * counts[term] / len(best)
        return weights

    def _candidates(self, lists: Sequence[Floats], alive: NDArray[np.bool_]) -> Slots:
        """The best of each list and their neighbours; all that live where there are few."""
        most = self.settings.candidates
        if len(self._slots) <= 2 * most:
            return np.flatnonzero(alive)
        chosen = np.zeros(len(self._entries), dtype=bool)
        for scores in lists:
            best = np.argpartition(-scores, most)[:most]
            chosen[best[scores[best] > 0]] = True
        found = np.flatnonzero(chosen)
        for sides in self._steps(found):
            for places in sides:
                chosen[places[places >= 0]] = True
        return np.flatnonzero(chosen & alive)

    def _steps(self, slots: Slots) -> list[tuple[Slots, Slots]]:
        """For each distance of the kernel the slots before and after these in their threads, -1 where there is none."""
        before = after = slots
        steps = []
        for _ in self.settings.neighbours:
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
            found["time"] = self.settings.time_weight * closeness(times, spans)
        if asks_for_recent(query):
            recency = freshness(times, now=now, half_life_days=self.settings.half_life_days)
            found["recency"] = self.settings.recency_weight * recency
        return found

    def _reranked(self, query: str, pool: _Pool, reranker: Reranker) -> _Pool:
        """The best of a pool, scored by a reranker: shares between the worst of them and the best."""
        most = min(self.settings.reranked, len(pool.slots))
        best = pool.part(np.argsort(-pool.total, kind="stable")[:most])
        found = np.array(
            reranker.scores(self._redact(query), [self._redact(self._entry(slot).searched) for slot in best.slots])
        )
        width = np.ptp(found) if most else 0.0
        total = (found - found.min()) / width if width > 0 else np.ones(most)
        return _Pool(slots=best.slots, scores={**best.scores, "rerank": found}, total=np.round(total, 9))

    def _diverse(self, pool: _Pool, limit: int, weight: float) -> list[Hit]:
        units = self._semantic.units(pool.slots)
        ids = [self._entry(slot).id for slot in pool.slots]

        def overlap(places: Slots, chosen: Slots) -> Floats:
            alike = (units[places] @ units[chosen].T).astype(np.float64)
            return np.asarray(np.round(alike, 6), dtype=np.float64)

        picked = mmr(pool.total, overlap, weight=weight, k=limit, names=ids)
        return [self._hit(pool, place, mmr=marginal) for place, marginal in picked]

    def _hit(self, pool: _Pool, place: int, **more: float) -> Hit:
        scores = {name: round(float(values[place]), 6) for name, values in pool.scores.items()}
        entry = self._entry(pool.slots[place])
        return Hit(entry=entry, score=float(pool.total[place]), scores={**scores, **more})

    def _terms(self, entry: Entry) -> list[str]:
        return terms(self._redact(entry.searched))

    def _entry(self, slot: int) -> Entry:
        entry = self._entries[slot]
        assert entry is not None
        return entry

    def _append(self, entry: Entry) -> None:
        """Gives an entry the next slot."""
        slot = len(self._entries)
        self._entries.append(entry)
        self._slots[entry.id] = slot
        if entry.thread is not None:
            self._last[entry.thread] = slot

    def _link(self, entry: Entry) -> None:
        """Gives an entry the next slot, behind the last one of its thread."""
        slot = len(self._entries)
        before = self._last.get(entry.thread, -1) if entry.thread is not None else -1
        self._append(entry)
        self._times.extend(_times([entry]))
        self._before.extend(np.array([before], dtype=np.int64))
        self._after.extend(np.array([-1], dtype=np.int64))
        if before >= 0:
            self._after.values[before] = slot

    def _unlink(self, slot: int, entry: Entry) -> None:
        """Makes the neighbours of an entry each other's."""
        before, after = int(self._before.values[slot]), int(self._after.values[slot])
        if before >= 0:
            self._after.values[before] = after
        if after >= 0:
            self._before.values[after] = before
        elif entry.thread is not None and before >= 0:
            self._last[entry.thread] = before
        elif entry.thread is not None:
            del self._last[entry.thread]
        self._dead.append(slot)

    def _compact(self) -> None:
        """Numbers the entries anew, without those that were removed."""
        if not self._dead:
            return
        kept = np.array(sorted(self._slots.values()), dtype=np.int64)
        places = np.full(len(self._entries) + 1, -1, dtype=np.int64)
        places[kept] = np.arange(len(kept))
        self._lexical.keep(kept)
        self._semantic.keep(kept)
        self._before, self._after = Rows(places[self._before.values[kept]]), Rows(places[self._after.values[kept]])
        self._times = Rows(self._times.values[kept])
        self._entries = [self._entries[slot] for slot in kept]
        self._slots = {id: int(places[slot]) for id, slot in self._slots.items()}
        self._last = {thread: int(places[slot]) for thread, slot in self._last.items()}
        self._dead = []


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fused:
    """The scores of every entry for one query; ``alive`` are the slots of those that are there."""

    bm25: Floats
    cosine: Floats
    lexical: Floats
    semantic: Floats
    share: float
    alive: Slots

    @property
    def total(self) -> Floats:
        return (1 - self.share) * self.lexical + self.share * self.semantic

    @property
    def parts(self) -> dict[str, Floats]:
        return {"bm25": self.bm25, "cosine": self.cosine, "lexical": self.lexical, "semantic": self.semantic}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pool:
    """Candidates by slot, their scores by name, and their score in all."""

    slots: Slots
    scores: Mapping[str, Floats]
    total: Floats

    def part(self, places: Slots) -> _Pool:
        scores = {name: values[places] for name, values in self.scores.items()}
        return _Pool(slots=self.slots[places], scores=scores, total=self.total[places])


def _times(entries: Sequence[Entry]) -> Floats:
    """When each was said, NaN where that is unknown."""
    return np.array([math.nan if entry.time is None else entry.time for entry in entries], dtype=np.float64)


def _check(entries: Sequence[Entry]) -> None:
    seen: set[str] = set()
    for entry in entries:
        if entry.id in seen:
            raise SearchIndexError(f"id {entry.id!r} is there twice: give each entry its own")
        if entry.time is not None and not math.isfinite(entry.time):
            raise SearchIndexError(f"time {entry.time} of entry {entry.id!r} is not finite: None is an unknown time")
        seen.add(entry.id)
