"""An index of texts that finds them by words and by meaning.

    index = HybridIndex.from_texts(["a", "b"], ["the red door", "the blue door"])
    [hit.id for hit in index.search("crimson entrance", limit=1)]

An index may be read by several threads while none writes to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import chain

import numpy as np

from aether_context.errors import EmbeddingError, SearchIndexError
from aether_context.retrieval import terms
from aether_context.retrieval.arrays import Floats, Rows, Slots
from aether_context.retrieval.embedders import Embedder, embedder_for
from aether_context.retrieval.lexical import InvertedIndex
from aether_context.retrieval.passages import LONGEST, titled_passages
from aether_context.retrieval.scoring import Entry, Hit, Links, candidates, combined, linked, ranked
from aether_context.retrieval.semantic import SemanticIndex

_PASSAGES_WEIGHT = 0.5
"""The share of an entry's passages in its score where texts are long; the whole text has the rest."""
_NEXT_BEST = (1.0, 0.1, 0.01)
"""How much the best passage of a text counts, the second and the third."""
_SAMPLED = 10_000
_COMPACT_ABOVE = 1_000


class TextIndex:
    """Texts by their words and their meaning, known by slot: 0, 1, … in the order in which they were added.

    Args:
        embedder: None compares no meanings.
    """

    def __init__(self, embedder: Embedder | None) -> None:
        self.lexical = InvertedIndex()
        self.semantic = SemanticIndex(embedder)

    def __len__(self) -> int:
        """How many texts there are, removed ones not counted."""
        return self.lexical.live

    @property
    def slots(self) -> int:
        """How many slots were given, those of removed texts counted."""
        return len(self.lexical)

    @property
    def living(self) -> Slots:
        """The slots of the texts that are there, sorted."""
        return np.flatnonzero(self.lexical.alive)

    def add(self, texts: Sequence[str]) -> None:
        """Gives masked texts the next slots.

        Raises:
            EmbeddingError: a local embedder failed; nothing was added.
        """
        self.semantic.add(texts)
        self.lexical.add_hashed(list(map(terms.hashed, texts)))

    def remove(self, slots: Slots) -> None:
        """Forgets texts, each of them once."""
        self.lexical.remove(slots)

    def keep(self, slots: Slots) -> None:
        """Numbers texts anew, and lets go of the removed ones.

        Args:
            slots: those that are there, sorted.
        """
        self.lexical.keep(slots)
        self.semantic.keep(slots)

    def answers(self, query: str) -> tuple[Floats, dict[str, Floats]]:
        """How well each text answers a masked query, alone; and what that is made of.

        Raises:
            EmbeddingError: a local embedder failed.
        """
        bm25, ceiling = self.lexical.scores(terms.query_terms(query))
        cosine = np.where(self.lexical.alive, np.round(self.semantic.similarities(query), 6), 0.0)
        usual = float(np.median(cosine[self.living[:: 1 + len(self) // _SAMPLED]])) if len(self) else 0.0
        return combined(query, bm25, ceiling, cosine, usual=usual, count=len(self), compared=bool(self.semantic.names))


class PassageIndex:
    """The texts of an index in passages, so that a long one is found by what it says in one place.

    The passage of a short text is the text.
    """

    def __init__(self, embedder: Embedder | None) -> None:
        self._index = TextIndex(embedder)
        self._texts = Rows(np.empty(0, dtype=np.int64))

    def __len__(self) -> int:
        """How many passages there are, those of removed texts not counted."""
        return len(self._index)

    def add(self, slots: Slots, texts: Sequence[Sequence[str]]) -> None:
        """Adds texts that stand in slots of an index, each in its passages.

        Raises:
            EmbeddingError: a local embedder failed; nothing was added.
        """
        self._index.add(list(chain.from_iterable(texts)))
        self._texts.extend(np.repeat(slots, [len(text) for text in texts]))

    def remove(self, slots: Slots) -> None:
        """Forgets the texts in some slots."""
        living = self._index.living
        self._index.remove(living[np.isin(self._texts.values[living], slots)])

    def keep(self, slots: Slots) -> None:
        """Numbers texts anew, and lets go of the removed ones."""
        living = self._index.living
        self._index.keep(living)
        self._texts = Rows(np.searchsorted(slots, self._texts.values[living]))

    def scores(self, query: str, texts: int) -> Floats:
        """How well each of so many texts answers a masked query: as its best passage does, and a share of the next.

        Raises:
            EmbeddingError: a local embedder failed.
        """
        alone, _ = self._index.answers(query)
        places = np.flatnonzero(alone > 0)
        owners, values = self._texts.values[places], alone[places]
        order = np.lexsort((-values, owners))
        owners, values = owners[order], values[order]
        found = np.zeros(texts)
        for share in _NEXT_BEST:
            first = np.ones(len(owners), dtype=np.bool_)
            first[1:] = owners[1:] != owners[:-1]
            found[owners[first]] += share * values[first]
            owners, values = owners[~first], values[~first]
        return found


class HybridIndex:
    """Entries found by BM25 and vectors together, long ones also by their passages.

    Args:
        embedder: a name, an embedder, or None for the default; ``"none"`` finds by words alone.
        redact: masks what must be neither searched by, nor embedded, nor sent to an embedding service.
        passages: False finds long texts as a whole alone, for an index that is made in a moment and soon forgotten.

    Raises:
        PolicyError: no embedder of that name is known.
        MissingExtra: the embedder needs a package that is not installed.
    """

    def __init__(
        self,
        embedder: str | Embedder | None = None,
        *,
        redact: Callable[[str], str] | None = None,
        passages: bool = True,
    ) -> None:
        self._embedder = embedder_for(embedder)
        self.redact: Callable[[str], str] = redact or str
        self._cuts = passages
        self._texts = TextIndex(self._embedder)
        self._passages: PassageIndex | None = None  # where a text is long
        self._entries: list[Entry | None] = []
        self._slots: dict[str, int] = {}
        self._times = Rows(np.empty(0, dtype=np.float64))
        self._threads: dict[str | None, int] = {None: -1}
        self._thread_of = Rows(np.empty(0, dtype=np.int32))
        self._neighbours: Links | None = None

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
        return self._texts.semantic.names

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
        new: dict[str, Entry] = {}
        for entry in entries:
            if entry.id in new:
                raise SearchIndexError(f"id {entry.id!r} is there twice: give each entry its own")
            if entry.time is not None and not math.isfinite(entry.time):
                raise SearchIndexError(
                    f"time {entry.time} of entry {entry.id!r} is not finite: None is an unknown time"
                )
            new[entry.id] = entry
        if new:
            entries = list(new.values())
            slots = np.arange(self._texts.slots, self._texts.slots + len(entries))
            self._texts.add([self.redact(entry.searched) for entry in entries])
            self._keep(entries)
            try:
                if self._cuts:
                    self._cut(slots)
            except EmbeddingError:
                self._remove(slots)
                raise
            self._forget(new)
            self._slots |= zip(new, slots.tolist(), strict=True)
            self._compact()

    def _keep(self, entries: Sequence[Entry]) -> None:
        """Keeps the entries of the last slots."""
        self._entries += entries
        self._times.extend(np.array([math.nan if entry.time is None else entry.time for entry in entries], dtype=float))
        threads = [self._threads.setdefault(entry.thread, len(self._threads)) for entry in entries]
        self._thread_of.extend(np.array(threads, dtype=np.int32))
        self._neighbours = None

    def _cut(self, slots: Slots) -> None:
        """Adds the passages of new entries; at the first long text also those of the entries that are there.

        Raises:
            EmbeddingError: a local embedder failed; nothing was added.
        """
        passages = self._passages
        if passages is None and all(len(entry.text) <= LONGEST for entry in self._at(slots)):
            return
        if passages is None:
            passages = PassageIndex(self._embedder)
            slots = self._texts.living
        passages.add(slots, [self._pieces(entry) for entry in self._at(slots)])
        self._passages = passages

    def _pieces(self, entry: Entry) -> list[str]:
        text = self.redact(entry.searched)
        return [text] if len(entry.text) <= LONGEST else titled_passages(text)

    def remove(self, ids: Iterable[str]) -> None:
        """Forgets entries in every part of the index; ids that are not there are passed over."""
        self._forget(ids)
        self._compact()

    def _forget(self, ids: Iterable[str]) -> None:
        if gone := [self._slots.pop(id) for id in dict.fromkeys(ids) if id in self._slots]:
            self._remove(np.array(gone, dtype=np.int64))

    def _remove(self, slots: Slots) -> None:
        for slot in slots.tolist():
            self._entries[slot] = None
        self._texts.remove(slots)
        if self._passages is not None:
            self._passages.remove(slots)
        self._neighbours = None

    def _compact(self) -> None:
        """Lets go of what was removed, where that is most."""
        if len(self._entries) <= _COMPACT_ABOVE + 2 * len(self._slots):
            return
        slots = self._texts.living
        self._texts.keep(slots)
        if self._passages is not None:
            self._passages.keep(slots)
        kept = self._at(slots)
        self._entries, self._slots = [*kept], {entry.id: slot for slot, entry in enumerate(kept)}
        self._times, self._thread_of = Rows(self._times.values[slots]), Rows(self._thread_of.values[slots])
        self._neighbours = None

    def search(self, query: str, limit: int = 10, *, asked: float | None = None) -> list[Hit]:
        """The best entries for a query, best first; ties go to the id that sorts first.

        Args:
            asked: when the query is asked, seconds since 1970 UTC; None takes the latest time of any entry.
        """
        if not len(self) or limit <= 0:
            return []
        query = self.redact(query)
        alone, scores = self._texts.answers(query)
        lists = [scores["lexical"], scores["semantic"]]
        if self._passages is not None and len(self._passages) > len(self):
            scores["passages"] = self._passages.scores(query, self._texts.slots)
            lists.append(scores["passages"])
            alone = (1 - _PASSAGES_WEIGHT) * alone + _PASSAGES_WEIGHT * scores["passages"]
        if self._neighbours is None:
            self._neighbours = linked(self._thread_of.values, self._texts.lexical.alive)
        return ranked(
            query,
            limit,
            self._at,
            slots=candidates(lists, self._neighbours, self._texts.lexical.alive),
            alone=alone,
            scores=scores,
            times=self._times.values,
            links=self._neighbours,
            asked=asked,
        )

    def _at(self, slots: Slots) -> list[Entry]:
        return [entry for slot in slots.tolist() if (entry := self._entries[slot]) is not None]
