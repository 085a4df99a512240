"""Memories of many users, each user's found by an index of their own that follows the file."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from aether_context.canonical import canonical_json
from aether_context.embedding import Embedder, Purpose, Vectors, embedder_for, unit
from aether_context.errors import EmbeddingError
from aether_context.retrieval import Entry, Hit, HybridIndex, SearchSettings
from aether_context.retrieval.vectors import quantized

from .file import Memory, MemoryFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """A memory that was found, with the score it is ranked by and what that was made of, as of `Hit`."""

    memory: Memory
    score: float
    scores: Mapping[str, float] = field(default_factory=dict)


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
        settings: SearchSettings | None = None,
        redact: Callable[[str], str] | None = None,
        max_users: int = 64,
    ) -> None:
        chosen = embedder_for(embedder) if embedder is None or isinstance(embedder, str) else embedder
        self._redact = redact or str
        self._settings = settings
        self._max_users = max_users
        self.file = MemoryFile(path, lambda memory: _digest(self._redact(_entry(memory).searched)))
        self._embedder: Embedder | str = "none" if chosen is None else chosen
        if chosen is not None and self.file.path is not None:
            self._embedder = StoredVectors(chosen, self.file)
        self._scopes: OrderedDict[tuple[str, str], _Scope] = OrderedDict()
        self._lock = threading.Lock()

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
        if changed and isinstance(self._embedder, StoredVectors):
            self._embedder.prepare([self._redact(_entry(memory).searched) for memory in new])
        return changed

    def delete(self, app: str, user: str, *, name: str | None = None, session: str | None = None) -> int:
        """Deletes a user's memories of a name, of a session, of both, or all; the number of those there were.

        Raises:
            StoreError: the file could not be written.
        """
        deleted = self.file.delete(app, user, name=name, session=session)
        scope = self._scopes.get((app, user))
        if deleted and scope is not None:
            scope.follow(self.file)
        return deleted

    def search(
        self, app: str, user: str, query: str, limit: int = 10, *, asked: float | None = None, mmr_lambda: float = 1.0
    ) -> list[Remembered]:
        """A user's best memories for a query, best first; the arguments are those of `HybridIndex.search`.

        Raises:
            StoreError: the file could not be read.
        """
        hits = self._scope(app, user).search(self.file, query, limit, asked=asked, mmr_lambda=mmr_lambda)
        found = self.file.read(app, user, [_key(hit.id) for hit in hits])
        return [
            Remembered(memory=found[_key(hit.id)], score=hit.score, scores=hit.scores)
            for hit in hits
            if _key(hit.id) in found
        ]

    def users(self) -> list[tuple[str, str, int]]:
        """App, user and number of memories of all that have any, in order."""
        return self.file.users()

    def close(self) -> None:
        self.file.close()

    def _scope(self, app: str, user: str) -> _Scope:
        with self._lock:
            scope = self._scopes.get((app, user))
            if scope is None:
                index = HybridIndex(self._embedder, settings=self._settings, redact=self._redact)
                scope = self._scopes[app, user] = _Scope(app, user, index)
            self._scopes.move_to_end((app, user))
            while len(self._scopes) > self._max_users:
                self._scopes.popitem(last=False)
            return scope


class _Scope:
    """One user's index and the number of the last change that it holds."""

    def __init__(self, app: str, user: str, index: HybridIndex) -> None:
        self._app, self._user = app, user
        self._index = index
        self._number = 0
        self._lock = threading.Lock()

    def search(self, file: MemoryFile, query: str, limit: int, *, asked: float | None, mmr_lambda: float) -> list[Hit]:
        with self._lock:
            self._follow(file)
            return self._index.search(query, limit, asked=asked, mmr_lambda=mmr_lambda)

    def follow(self, file: MemoryFile) -> None:
        """Brings the index up to the file."""
        with self._lock:
            self._follow(file)

    def _follow(self, file: MemoryFile) -> None:
        changes = file.changes(self._app, self._user, self._number)
        if changes:
            self._index.remove(_id(one.session, one.name) for one in changes)
            self._index.add(_entry(one.memory) for one in changes if one.memory is not None)
            self._number = changes[-1].number


class StoredVectors:
    """An embedder whose vectors are kept in the file of the memories that they are of, by content.

    Args:
        embedder: makes those that are not there.
    """

    def __init__(self, embedder: Embedder, file: MemoryFile) -> None:
        self._embedder = embedder
        self._file = file

    @property
    def name(self) -> str:
        return self._embedder.name

    @property
    def local(self) -> bool:
        return self._embedder.local

    def prepare(self, texts: Sequence[str]) -> None:
        """Embeds texts that will be searched; where that fails, the search tries again."""
        try:
            self.embed(texts)
        except EmbeddingError:
            return

    def embed(self, texts: Sequence[str], *, purpose: Purpose = "entry") -> Vectors:
        if purpose == "query" or not texts:
            return self._embedder.embed(texts, purpose=purpose)
        digests = [_digest(text) for text in texts]
        known = self._file.vectors(self.name, digests)
        missing = {digest: text for digest, text in zip(digests, texts, strict=True) if digest not in known}
        if missing:
            made = quantized(self._embedder.embed(list(missing.values())))
            fresh = {digest: row.tobytes() for digest, row in zip(missing, made, strict=True)}
            self._file.keep_vectors(self.name, fresh)
            known |= fresh
        return unit(np.stack([np.frombuffer(known[digest], dtype=np.int8) for digest in digests]))


def _entry(memory: Memory) -> Entry:
    return Entry(
        id=_id(memory.session, memory.name),
        text=memory.text,
        time=memory.time,
        speaker=memory.author,
        thread=memory.session or None,
    )


def _id(session: str, name: str) -> str:
    return canonical_json([session, name])


def _key(id: str) -> tuple[str, str]:
    session, name = json.loads(id)
    return session, name


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
