"""An index of texts that finds them by words and by meaning.

    index = HybridIndex.from_texts(["a", "b"], ["the red door", "the blue door"])
    [hit.id for hit in index.search("crimson entrance", limit=1)]

Threads may share an index that does not change.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from aether_context.errors import SearchIndexError
from aether_context.retrieval import terms
from aether_context.retrieval.embedders import Embedder, embedder_for, vectors_of
from aether_context.retrieval.pool import Entry, Hit, Places, Pool


class HybridIndex:
    """Entries found by BM25 and vectors together.

    Args:
        embedder: a name, an embedder, or None for the default; ``"none"`` finds by words alone.
        redact: masks what must be neither searched by, nor embedded, nor sent to an embedding service.

    Raises:
        SearchIndexError: an id is there twice, or a time is no finite number.
        PolicyError: no embedder of that name is known.
        MissingExtra: the embedder needs a package that is not installed.
        EmbeddingError: the embedder failed.
    """

    def __init__(
        self,
        entries: Iterable[Entry],
        embedder: str | Embedder | None = None,
        *,
        redact: Callable[[str], str] | None = None,
    ) -> None:
        self._embedder = embedder_for(embedder)
        self._redact: Callable[[str], str] = redact or str
        self._entries: list[Entry] = []
        self._said: list[str] = []
        self._ids: set[str] = set()
        self._threads: dict[str | None, int] = {None: -1}
        self._texts = Pool(self._embedder)
        self.extend(entries)

    def __len__(self) -> int:
        return len(self._entries)

    def extend(self, entries: Iterable[Entry]) -> None:
        """Adds entries. Errors as of `HybridIndex`, and nothing is added then."""
        new, ids = list(entries), set(self._ids)
        for entry in new:
            if entry.id in ids:
                raise SearchIndexError(f"id {entry.id!r} is there twice: give each entry its own")
            if entry.time is not None and not math.isfinite(entry.time):
                raise SearchIndexError(
                    f"time {entry.time} of entry {entry.id!r} is not finite: None is an unknown time"
                )
            ids.add(entry.id)
        numbers = [self._threads.setdefault(entry.thread, len(self._threads)) for entry in new]
        texts = [self._redact(entry.text) for entry in new]
        hashes = [terms.hash_terms(text, entry.speaker) for text, entry in zip(texts, new, strict=True)]
        self._texts.extend(hashes, vectors_of(self._embedder, texts), [entry.time for entry in new], numbers)
        self._ids, self._entries, self._said = ids, self._entries + new, self._said + texts

    @classmethod
    def from_texts(
        cls,
        ids: Sequence[str],
        texts: Sequence[str],
        times: Sequence[float | None] | None = None,
        embedder: str | Embedder | None = None,
        speakers: Sequence[str | None] | None = None,
    ) -> HybridIndex:
        """An index of these texts, with their times in seconds since 1970 UTC and who said them; with speakers they are
        one conversation in its order.

        Raises:
            SearchIndexError: there are not as many ids, texts, times and speakers, or `HybridIndex` does not take them.
        """
        thread = None if speakers is None else ""
        times, speakers = times or [None] * len(ids), speakers or [None] * len(ids)
        if not len(ids) == len(texts) == len(times) == len(speakers):
            counts = f"{len(ids)}, {len(texts)}, {len(times)} and {len(speakers)}"
            raise SearchIndexError(f"ids, texts, times and speakers have {counts} items: give one of each an entry")
        rows = zip(ids, texts, times, speakers, strict=True)
        entries = (
            Entry(id=id, text=text, time=time, speaker=speaker, thread=thread) for id, text, time, speaker in rows
        )
        return cls(entries, embedder)

    def search(self, query: str, limit: int = 10, *, asked: float | None = None, every: bool = False) -> list[Hit]:
        """The best entries for a query, best first; ties go to the id that sorts first.

        Args:
            asked: when the query is asked, seconds since 1970 UTC; None takes the latest time of any entry.
            every: whether entries that answer nothing of it are hits, too, with their scores.
        """
        if not self._entries or limit <= 0:
            return []
        query = self._redact(query)
        plain = self._texts.named(query)[0]
        vector = vectors_of(self._embedder, [plain], "query")

        def entries(places: Places) -> list[Entry]:
            return [self._entries[row] for row in places.tolist()]

        base, scores = self._texts.score(plain, vector, lambda places: [self._said[at] for at in places.tolist()])
        return self._texts.ranked(query, limit, entries, base, scores, asked=asked, every=every)
