"""Vectors that were costly to make, kept for the user whose texts they are of."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

from aether_context.pack import Identity
from aether_context.policy import PackPolicy
from aether_context.retrieval.embedders import CachedEmbedder, Embedder, StoredVectors
from aether_context.store import PackStore
from aether_context.store.vectors import UserVectors

_MOST_VECTORS, _MOST_SHELVES = 50_000, 512
_MOST_QUERIES = 64
_SHARE_OF_DEADLINE = 0.25


class Shelves:
    """Embedders by user. What one user's texts led to is kept apart from every other user's.

    In memory 50,000 vectors of 512 users are kept, those of the user in use aside; where a policy records texts, the
    store keeps them, too.

    Args:
        later: carries out a write to the store, off this path.
    """

    def __init__(self, store: PackStore, later: Callable[[Callable[[], None]], None]) -> None:
        self._store = store
        self._later = later
        self._held: OrderedDict[tuple[str, ...], tuple[UserVectors, Embedder]] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, embedder: Embedder, identity: Identity, policy: PackPolicy) -> Embedder:
        """An embedder as it is where it remembers nothing, else one that remembers for this user alone."""
        if not isinstance(embedder, CachedEmbedder):
            return embedder
        key = (identity.app, identity.user, embedder.name, policy.record)
        with self._lock:
            shelf = self._held.pop(key, None) or self._made(embedder.embedder, identity, policy)
            self._held[key] = shelf
            while len(self._held) > 1 and self._is_full():
                self._held.popitem(last=False)
        return shelf[1]

    def _is_full(self) -> bool:
        count = sum(len(vectors) for vectors, _ in self._held.values())
        return count > _MOST_VECTORS or len(self._held) > _MOST_SHELVES

    def _made(self, embedder: Embedder, identity: Identity, policy: PackPolicy) -> tuple[UserVectors, Embedder]:
        vectors = UserVectors(
            identity.app,
            identity.user,
            embedder.name,
            self._store if policy.record == "full" else None,
            self._later,
            wait_seconds=_SHARE_OF_DEADLINE * policy.retrieval.memory_timeout_seconds,
        )
        return vectors, StoredVectors(CachedEmbedder(embedder, max_texts=_MOST_QUERIES), vectors)
