"""What was said in sessions, found again: an index for each session, kept while it is in use.

An index holds nothing that its session's history does not say, so any process that is given the history finds the same.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence

from aether_context.embedding import Embedder
from aether_context.retrieval.entries import Entry, Hit
from aether_context.retrieval.index import HybridIndex


class SessionIndexes:
    """Indexes by session, the least recently used forgotten first. Threads may share it.

    Args:
        max_entries: so many entries are kept in all, those of the session in use aside.
    """

    def __init__(self, *, max_entries: int = 50_000) -> None:
        self._max_entries = max_entries
        self._held: OrderedDict[Hashable, _SessionIndex] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._held)

    def search(
        self,
        session: Hashable,
        history: Sequence[Entry],
        query: str,
        limit: int,
        *,
        asked: float,
        embedder: Embedder | str,
        redact: Callable[[str], str],
    ) -> list[Hit]:
        """The best entries of a session's history for a query, best first.

        Args:
            session: all that tells it from others: whose it is, and what is masked and embedded.
            history: every entry, in order.

        Raises:
            EmbeddingError: a local embedder failed.
        """
        with self._lock:
            index = self._held.pop(session, None) or _SessionIndex(lambda: HybridIndex(embedder, redact=redact))
            self._held[session] = index
        found = index.search(history, query, limit, asked)
        with self._lock:
            while len(self._held) > 1 and sum(len(one) for one in self._held.values()) > self._max_entries:
                self._held.popitem(last=False)
        return found


class _SessionIndex:
    """The index of one history, which mostly grows."""

    def __init__(self, make: Callable[[], HybridIndex]) -> None:
        self._make = make
        self._index = make()
        self._history: list[Entry] = []
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._history)

    def search(self, history: Sequence[Entry], query: str, limit: int, asked: float) -> list[Hit]:
        """Adds what is new; where history is not what it was, begins anew."""
        with self._lock:
            have = len(self._history)
            if list(history[:have]) != self._history:
                self._index, self._history, have = self._make(), [], 0
            self._index.add(history[have:])
            self._history = list(history)
            return self._index.search(query, limit, asked=asked)
