"""An index of texts that finds them by words and by meaning.

    index = HybridIndex.from_texts(["a", "b"], ["the red door", "the blue door"])
    [hit.id for hit in index.search("crimson entrance", limit=1)]

An index may be read by several threads while none writes to it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict

import numpy as np

from aether_context.errors import SearchIndexError
from aether_context.retrieval import storage
from aether_context.retrieval.embedders import Embedder
from aether_context.retrieval.entries import Entry, Hit, Slots
from aether_context.retrieval.slots import SlotIndex

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
