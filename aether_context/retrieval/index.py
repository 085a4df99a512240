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

from aether_context.errors import SearchIndexError
from aether_context.retrieval import terms
from aether_context.retrieval.embedders import Embedder, embedder_for
from aether_context.retrieval.passages import LONGEST, titled_passages
from aether_context.retrieval.pool import Entry, Floats, Hit, Places, Pool

_PASSAGES_WEIGHT = 0.5
"""The share of an entry's passages in its score where texts are long; the whole text has the rest."""
_NEXT_BEST = (1.0, 0.1, 0.01)
"""How much the best passage of a text counts, the second and the third."""


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
        chosen = embedder_for(embedder)
        self._redact: Callable[[str], str] = redact or str
        self._cuts = passages
        self._entries: list[Entry] = []
        self._ids: dict[str, int] = {}
        self._threads: dict[str | None, int] = {None: -1}
        self._texts = Pool(chosen)
        self._passages = Pool(chosen)  # of all entries where one is long, else of none; of a short text it is the text
        self._owners = np.empty(0, dtype=np.int64)
        """The place of each passage's entry."""

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
        return len(self._entries)

    @property
    def entries(self) -> list[Entry]:
        """The entries in the order in which they were added."""
        return list(self._entries)

    @property
    def embedders(self) -> tuple[str, ...]:
        """What made the vectors, by the names that a manifest records."""
        return tuple(embedder.name for embedder in self._texts.embedders)

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
        if not new:
            return
        added = list(new.values())
        texts = [self._redact(entry.searched) for entry in added]
        vectors = self._texts.embedded(texts)
        cut: list[Entry] = []
        if self._cuts and (len(self._passages) or any(len(entry.text) > LONGEST for entry in added)):
            there = [] if len(self._passages) else [entry for entry in self._entries if entry.id not in new]
            cut = [*there, *added]
        pieces = list(map(self._pieces, cut))
        passages = list(chain.from_iterable(pieces))
        of_passages = self._passages.embedded(passages) if passages else []

        self.remove(new)
        self._entries += added
        self._ids |= {entry.id: at for at, entry in enumerate(added, len(self._ids))}
        threads = [self._threads.setdefault(entry.thread, len(self._threads)) for entry in added]
        self._texts.extend(list(map(terms.hashed, texts)), vectors, [entry.time for entry in added], threads)
        if passages:
            unknown, none = [None] * len(passages), [-1] * len(passages)
            self._passages.extend(list(map(terms.hashed, passages)), of_passages, unknown, none)
            owners = np.arange(len(self) - len(cut), len(self))
            self._owners = np.concatenate([self._owners, np.repeat(owners, list(map(len, pieces)))])

    def _pieces(self, entry: Entry) -> list[str]:
        text = self._redact(entry.searched)
        return [text] if len(entry.text) <= LONGEST else titled_passages(text)

    def remove(self, ids: Iterable[str]) -> None:
        """Forgets entries in every part of the index; ids that are not there are passed over."""
        gone = [self._ids[id] for id in set(ids) if id in self._ids]
        if gone:
            kept = np.ones(len(self), dtype=np.bool_)
            kept[gone] = False
            self._texts.keep(kept)
            self._passages.keep(kept[self._owners])
            self._owners = (np.cumsum(kept) - 1)[self._owners[kept[self._owners]]]
            self._entries = [self._entries[at] for at in np.flatnonzero(kept)]
            self._ids = {entry.id: at for at, entry in enumerate(self._entries)}

    def search(self, query: str, limit: int = 10, *, asked: float | None = None) -> list[Hit]:
        """The best entries for a query, best first; ties go to the id that sorts first.

        Args:
            asked: when the query is asked, seconds since 1970 UTC; None takes the latest time of any entry.
        """
        if not len(self) or limit <= 0:
            return []
        query = self._redact(query)
        vectors = self._texts.embedded([query], "query")
        alone, scores = self._texts.answers(query, vectors)
        if len(self._passages) > len(self):
            scores["passages"] = self._by_passages(self._passages.answers(query, vectors)[0])
            alone = (1 - _PASSAGES_WEIGHT) * alone + _PASSAGES_WEIGHT * scores["passages"]

        def entries(places: Places) -> list[Entry]:
            return [self._entries[place] for place in places.tolist()]

        return self._texts.ranked(query, limit, entries, alone, scores, asked=asked)

    def _by_passages(self, alone: Floats) -> Floats:
        """How well each entry answers by how well passages do: as its best one does, and a share of the next."""
        places = np.flatnonzero(alone > 0)
        owners, values = self._owners[places], alone[places]
        order = np.lexsort((-values, owners))
        owners, values = owners[order], values[order]
        found = np.zeros(len(self))
        for share in _NEXT_BEST:
            first = np.diff(owners, prepend=-1) != 0
            found[owners[first]] += share * values[first]
            owners, values = owners[~first], values[~first]
        return found
