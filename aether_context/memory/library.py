"""Memories of many users, each user's found by an index of their own that follows the file."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

from aether_context.errors import EmbeddingError, StoreError
from aether_context.memory.file import Memory, MemoryFile
from aether_context.memory.scope import Remembered, Scope, searched
from aether_context.retrieval.embedders import Embedder, StaticEmbedder, StoredVectors, digest_of, embedder_for
from aether_context.retrieval.slots import SlotIndex

_LONGEST_PREFERENCE = 2_000


class Memories:
    """The memories of all users; nothing of one is ever found for another. Threads and processes may share the file.

    Args:
        path: a file, or a folder for one; None keeps all in this process.
        embedder: a name, an embedder, or None for the default; ``"none"`` finds by words alone.
        redact: masks what must be neither searched by, nor embedded, nor sent to an embedding service.
        max_users: so many users' indexes are kept; another one is made from the file when it is asked for.

    Raises:
        StoreError: the file cannot be opened, or is none of this format.
        PolicyError: no embedder of that name is known.
        MissingExtra: the embedder needs a package that is not installed.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        embedder: str | Embedder | None = None,
        redact: Callable[[str], str] | None = None,
        max_users: int = 64,
    ) -> None:
        chosen = embedder_for(embedder) if embedder is None or isinstance(embedder, str) else embedder
        self._redact = redact or str
        self._masked = "" if redact is None else getattr(redact, "name", None)
        self._max_users = max_users
        self.file = MemoryFile(path, lambda memory: digest_of(self._redact(searched(memory))))
        self._embedder: Embedder | str = "none" if chosen is None else chosen
        if self.file.path is not None and chosen is not None and not isinstance(chosen, StaticEmbedder):
            self._embedder = StoredVectors(chosen, self.file)
        self._scopes: OrderedDict[tuple[str, str], Scope] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def encoder(self) -> str:
        """Identity of the embedder whose vectors memories are found by, ``none`` without one."""
        return self._embedder if isinstance(self._embedder, str) else self._embedder.name

    def add(self, app: str, user: str, memories: Iterable[Memory], *, revive: bool = False) -> int:
        """Writes memories, all or none; the number of those that were new or other than before.

        When it returns they are in the file, whatever becomes of the process.

        Args:
            revive: whether what was deleted may be written again.

        Raises:
            StoreError: the file could not be written.
        """
        new = list(memories)
        changed = self.file.add(app, user, new, revive=revive) if new else 0
        if changed:
            self._prepare(app, user, new)
        return changed

    def delete(self, app: str, user: str, *, name: str | None = None, session: str | None = None) -> int:
        """Deletes a user's memories of a name, of a session, of both, or all; the number of those there were.

        Raises:
            StoreError: the file could not be written.
        """
        deleted = self.file.delete(app, user, name=name, session=session)
        scope = self._scopes.get((app, user))
        if deleted and scope is not None:
            scope.follow()
            self._save_soon(scope)
        return deleted

    def search(self, app: str, user: str, query: str, limit: int = 10, *, mmr_lambda: float = 1.0) -> list[Remembered]:
        """A user's best memories for a query, best first; the arguments are those of `HybridIndex.search`.

        Raises:
            StoreError: the file could not be read.
        """
        scope = self._scope(app, user)
        found = scope.search(query, limit, mmr_lambda)
        self._save_soon(scope)
        return found

    def preferences(self, app: str, user: str, limit: int = 20) -> list[Memory]:
        """A user's preferences, the newest first; the longest are passed over.

        Raises:
            StoreError: the file could not be read.
        """
        return self.file.preferences(app, user, limit, longest=_LONGEST_PREFERENCE)

    def users(self) -> list[tuple[str, str, int]]:
        """App, user and number of memories of all that have any, in order."""
        return self.file.users()

    def close(self) -> None:
        """Keeps what of the indexes is not kept yet, and closes the file."""
        with self._lock:
            scopes = list(self._scopes.values())
        for scope in scopes:
            if scope.unsaved:
                _save(scope)
        self.file.close()

    def _prepare(self, app: str, user: str, new: Sequence[Memory]) -> None:
        """Indexes what was written, where the user's index is at hand; else embeds it. What fails is tried again."""
        try:
            if (app, user) in self._scopes or not self.file.holds_more(app, user, len(new)):
                scope = self._scope(app, user)
                scope.follow()
                self._save_soon(scope)
            elif isinstance(self._embedder, StoredVectors):
                self._embedder.embed([self._redact(searched(memory)) for memory in new])
        except EmbeddingError:
            return

    def _scope(self, app: str, user: str) -> Scope:
        with self._lock:
            scope = self._scopes.get((app, user))
            if scope is None:
                index = SlotIndex(self._embedder, redact=self._redact)
                scope = self._scopes[app, user] = Scope(app, user, self.file, index, self._masked)
            self._scopes.move_to_end((app, user))
            while len(self._scopes) > self._max_users:
                self._scopes.popitem(last=False)
            return scope

    def _save_soon(self, scope: Scope) -> None:
        """Keeps what of an index is worth it, in a thread of its own."""
        if scope.due:
            threading.Thread(target=_save, args=(scope,), name="aether-memory-blocks", daemon=True).start()


def _save(scope: Scope) -> None:
    """Keeps blocks; where the file cannot take them, the index is made from the rows next time."""
    with contextlib.suppress(StoreError):
        scope.save()
