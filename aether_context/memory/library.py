"""Memories of many users, each user's found by an index that follows the file."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress

from cachetools import LRUCache

from aether_context.canonical import digest_of
from aether_context.errors import EmbeddingError
from aether_context.memory.database import Change, Memory, MemoryFile, seconds
from aether_context.retrieval import Entry, Hit, newest_first
from aether_context.retrieval.corrections import Statement, corrections, raised
from aether_context.retrieval.embedders import Embedder, StoredVectors, embedder_for
from aether_context.retrieval.index import HybridIndex
from aether_context.retrieval.ranking import similarity

logger = logging.getLogger("aether_context")

MANY = 100_000
"""A user with more memories than this is better served by PostgreSQL than by a file."""

COMPARED = 20
"""So many of the best are held against each other at least, however few are wanted."""
_ATTEMPTS = 5
_LISTED_AT_ONCE = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """A memory that was found, with the score it is ranked by and what that was made of, as of `Hit`.

    ``superseded_by`` is the name of a later one that may contradict it; that one stands before it.
    """

    memory: Memory
    score: float
    scores: Mapping[str, float] = field(default_factory=dict)
    superseded_by: str = ""


class UserMemories:
    """The memories of one user of one app, in an index that follows the file. Threads may share it."""

    def __init__(self, app: str, user: str, file: MemoryFile, index: HybridIndex, redact: Callable[[str], str]) -> None:
        self._app, self._user = app, user
        self._file = file
        self._index = index
        self._redact = redact
        self._last = 0
        self._lock = threading.Lock()

    def search(self, query: str, limit: int) -> list[Remembered]:
        """As `Memories.search`. What another process writes meanwhile is found as it was before or as it is after."""
        with self._lock:
            for _ in range(_ATTEMPTS):
                self._follow()
                hits = self._index.search(query, max(limit, COMPARED) if limit > 0 else 0)
                rows = self._file.read(self._app, self._user, [_named(hit.id) for hit in hits])
                places = {entry_of(memory).id: number for number, memory in rows if number <= self._last}
                if len(places) == len(hits):
                    break
        memories = {entry_of(memory).id: memory for _, memory in rows}
        there = [hit for hit in hits if hit.id in places]
        return remembered(there, memories, places, query, self._redact)[:limit]

    def follow(self) -> None:
        """Brings the index up to the file."""
        with self._lock:
            self._follow()

    def _follow(self) -> None:
        """Takes in what changed. Where an embedder fails, the rest is left for the next time."""
        count = len(self._index)
        while changes := self._file.changes(self._app, self._user, self._last):
            entries = [entry_of(change) for change in changes]
            there = [change.text is not None for change in changes]
            self._index.add(compress(entries, there))
            self._index.remove(entry.id for entry, is_there in zip(entries, there, strict=True) if not is_there)
            self._last = changes[-1].number
        if count <= MANY < len(self._index) and self._file.path is not None:
            logger.warning(
                "a user has %d memories in %s: past %d a file takes long to open; "
                'HybridMemoryService("postgresql://...") has nothing to open',
                len(self._index),
                self._file.path,
                MANY,
            )


def remembered(
    hits: Sequence[Hit],
    memories: Mapping[str, Memory],
    places: Mapping[str, int],
    query: str,
    redact: Callable[[str], str],
) -> list[Remembered]:
    """What was found, each behind the later one that may contradict it.

    Args:
        hits: best first, `COMPARED` of them at least where there are so many.
        memories: by the ids of the hits; so are ``places``, which say what came later where times do not tell.
    """
    said = [
        Statement(
            text=redact(hit.text),
            speaker=hit.entry.speaker or "",
            time=hit.entry.time,
            place=places[hit.id],
            score=similarity(hit.score),
        )
        for hit in hits
    ]
    corrected = corrections(said, redact(query))
    scores = raised([hit.score for hit in hits], corrected)
    superseded = {hits[at].id: hits[later].id for at, later in corrected.items()}
    found = {
        hit.id: Remembered(
            memory=memories[hit.id],
            score=score,
            scores=hit.scores,
            superseded_by=memories[superseded[hit.id]].name if hit.id in superseded else "",
        )
        for hit, score in zip(hits, scores, strict=True)
    }
    return [found[name] for name in newest_first(found, superseded)]


def entry_of(memory: Memory | Change) -> Entry:
    return Entry(
        id=f"{len(memory.session)}:{memory.session}{memory.name}",
        text=memory.text or "",
        time=seconds(memory.timestamp),
        speaker=memory.author,
        thread=memory.session or None,
    )


def _named(id_: str) -> tuple[str, str]:
    """The session and the name of a memory, by its id."""
    length, _, rest = id_.partition(":")
    return rest[: int(length)], rest[int(length) :]


class Memories:
    """The memories of all users; nothing of one is ever found for another. Threads and processes may share the file.

    Every method raises `StoreError` where the file cannot be read or written.

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
        chosen = embedder_for(embedder)
        self._redact = redact or str
        self.file = MemoryFile(path, lambda memory: digest_of(self._searched(memory)))
        self._embedder: Embedder | str = "none" if chosen is None else chosen
        if self.file.path is not None and chosen is not None:
            self._embedder = StoredVectors(chosen, self.file)
        self._users: LRUCache[tuple[str, str], UserMemories] = LRUCache(max_users)
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
        """
        new = list(memories)
        changed = self.file.add(app, user, new, revive=revive) if new else 0
        if changed:
            # What fails here is tried again by the next search.
            with contextlib.suppress(EmbeddingError):
                if (app, user) in self._users:
                    self._of(app, user).follow()
                elif isinstance(self._embedder, StoredVectors):
                    self._embedder.embed([self._searched(memory) for memory in new])
        return changed

    def delete(self, app: str, user: str, *, name: str | None = None, session: str | None = None) -> int:
        """Deletes a user's memories of a name, of a session, of both, or all; the number of those there were."""
        deleted = self.file.delete(app, user, name=name, session=session)
        if deleted and (app, user) in self._users:
            self._of(app, user).follow()
        return deleted

    def search(self, app: str, user: str, query: str, limit: int = 10) -> list[Remembered]:
        """A user's best memories for a query, best first; as `HybridIndex.search` finds them."""
        return self._of(app, user).search(query, limit)

    def preferences(self, app: str, user: str) -> list[Memory]:
        """A user's preferences, the newest first; the longest are passed over."""
        return self.file.preferences(app, user)

    def all(self, app: str, user: str) -> Iterator[Memory]:
        """A user's memories in the order in which they were added or last changed."""
        last = 0
        while changes := self.file.changes(app, user, last, limit=_LISTED_AT_ONCE):
            names = [(change.session, change.name) for change in changes if change.text is not None]
            yield from (memory for _, memory in self.file.read(app, user, names))
            last = changes[-1].number

    def users(self) -> list[tuple[str, str, int]]:
        """App, user and number of memories of all that have any, in order."""
        return self.file.users()

    def close(self) -> None:
        """Closes the file."""
        self.file.close()

    def _searched(self, memory: Memory) -> str:
        """What a memory is found by."""
        return self._redact(entry_of(memory).searched)

    def _of(self, app: str, user: str) -> UserMemories:
        with self._lock:
            of_user = self._users.get((app, user))
            if of_user is None:
                index = HybridIndex(self._embedder, redact=self._redact, passages=False)
                of_user = self._users[app, user] = UserMemories(app, user, self.file, index, self._redact)
            return of_user
