"""Memories of many users, each user's found by an index that follows the file."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.metadata import version

import numpy as np
from cachetools import LRUCache
from numpy.typing import NDArray

from aether_context.canonical import canonical_json, digest_of
from aether_context.errors import EmbeddingError, StoreError
from aether_context.memory.database import Change, Memory, MemoryFile, Span
from aether_context.retrieval import Entry, Hit, newest_first
from aether_context.retrieval.arrays import Rows, packed, unpacked
from aether_context.retrieval.corrections import Statement, corrections, raised
from aether_context.retrieval.embedders import Embedder, StaticEmbedder, StoredVectors, embedder_for
from aether_context.retrieval.index import SlotIndex
from aether_context.retrieval.ranking import similarity
from aether_context.retrieval.terms import RULES

Numbers = NDArray[np.int64]

BLOCK_ROWS = 1_024
"""So many memories make a whole block."""

_FORMAT = 3
_ATTEMPTS = 5
_READ_AT_ONCE = 8_192
_LISTED_AT_ONCE = 1_000
_COMPACT_ABOVE = 1_000
COMPARED = 20
"""So many of the best are held against each other at least, however few are wanted."""
_WORTH_SAVING = 64


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
    """The memories of one user of one app: an index that follows the file, and opens from blocks that are kept there.

    Threads may share it.

    Args:
        masked: names what masks the texts, empty where nothing does; None where that has no name, and no block is
            kept, since another process could not tell whether it masks alike.
    """

    def __init__(self, app: str, user: str, file: MemoryFile, index: SlotIndex, masked: str | None) -> None:
        self._app, self._user = app, user
        self._file = file
        self._index = index
        self._numbers = Rows(np.empty(0, dtype=np.int64))
        self._origins = Rows(np.empty(0, dtype=np.int64))
        self._last = -1
        self._unsaved = 0
        self._saver: threading.Thread | None = None
        self._lock = threading.Lock()
        keeps = masked is not None and file.path is not None
        self._made = canonical_json([_format(), masked, list(index.embedders)]) if keeps else None

    def search(self, query: str, limit: int) -> list[Remembered]:
        """As `Memories.search`. What another process writes meanwhile is found as it was before or as it is after."""
        memories: dict[str, Memory] = {}
        places: dict[str, int] = {}
        gone = Entry(id="", text="")

        def entries(slots: Numbers) -> list[Entry]:
            numbers: list[int] = self._numbers.values[slots].tolist()
            there = self._file.read(self._app, self._user, numbers)
            found = {number: entry_of(memory) for number, memory in there.items()}
            memories.update((found[number].id, memory) for number, memory in there.items())
            places.update((found[number].id, number) for number in there)
            return [found.get(number, gone) for number in numbers]

        with self._lock:
            for _ in range(_ATTEMPTS):
                self._follow()
                hits = self._index.search(query, max(limit, COMPARED) if limit > 0 else 0, entries)
                if not any(hit.entry is gone for hit in hits):
                    break
        there = [hit for hit in hits if hit.entry is not gone]
        return remembered(there, memories, places, query, self._index.redact)[:limit]

    def follow(self) -> None:
        """Brings the index up to the file."""
        with self._lock:
            self._follow()

    def save_soon(self) -> None:
        """Keeps blocks in a thread of its own, where a block's worth of memories is in none."""
        if self._made is None or self._unsaved < BLOCK_ROWS:
            return
        if self._saver is None or not self._saver.is_alive():
            self._saver = threading.Thread(target=self.save, name="aether-memory-blocks", daemon=True)
            self._saver.start()

    def close(self) -> None:
        """Keeps blocks of what is in none, where that is worth the while."""
        if self._saver:
            self._saver.join()
        if self._unsaved >= _WORTH_SAVING:
            self.save()

    def save(self) -> None:
        """Keeps blocks of what is in none; where the file cannot take them, the index is made from rows next time."""
        if self._made is None:
            return
        with contextlib.suppress(StoreError), contextlib.closing(self._file.again()) as file:
            spans = file.spans(self._app, self._user, self._made)
            with self._lock:
                living = self._numbers.values[self._index.living]
                self._unsaved = 0
            for numbers in uncovered(living, spans):
                if (data := self._block(numbers)) is not None:
                    span = Span(first=int(numbers[0]), last=int(numbers[-1]), rows=len(numbers))
                    file.keep_block(self._app, self._user, self._made, span, data)

    def _block(self, numbers: Numbers) -> bytes | None:
        """The block of some memories; None where one has gone, or has no vector that it should have."""
        with self._lock:
            if not np.isin(numbers, self._numbers.values[self._index.living]).all():
                return None
            slots = np.searchsorted(self._numbers.values, numbers)
            part = self._index.part(slots)
            origins = self._origins.values[slots]
        vectors = [part.get(f"vectors{number}") for number in range(len(self._index.embedders))]
        embedded = [np.zeros(len(numbers)) if rows is None else rows.any(axis=1) for rows in vectors]
        if not all((has == embedded[0]).all() for has in embedded):
            return None  # a service was away: what it could not embed is given to it again
        return packed({**part, "numbers": numbers, "origins": origins})

    def _follow(self) -> None:
        if self._last < 0:
            self._open()
        while changes := self._file.changes(self._app, self._user, self._last, limit=_READ_AT_ONCE):
            self._take(changes)

    def _open(self) -> None:
        """Takes the blocks that are kept, and in between the rows that are in none."""
        self._last = 0
        if self._made is None:
            return
        for span in self._file.spans(self._app, self._user, self._made):
            data = self._file.block(self._app, self._user, self._made, span) if span.first > self._last else None
            if data is None:
                continue
            if between := self._file.changes(self._app, self._user, self._last, before=span.first):
                self._take(between)
            arrays = unpacked(data)
            self._index.extend(arrays)
            self._numbers.extend(arrays["numbers"])
            self._origins.extend(arrays["origins"])
            self._last = span.last

    def _take(self, changes: Sequence[Change]) -> None:
        """Takes in what changed. Where an embedder fails, nothing was."""
        new = [(change, change.memory) for change in changes if change.memory is not None]
        if new:
            self._index.add([entry_of(memory) for _, memory in new])
        if anew := [change.origin for change in changes if change.origin != change.number]:
            gone = np.flatnonzero(np.isin(self._origins.values, anew))
            self._index.remove(gone)
            self._origins.values[gone] = -1
            self._unsaved += BLOCK_ROWS if len(gone) else 0  # the blocks that they were in are gone, too
        self._numbers.extend(np.array([change.number for change, _ in new], dtype=np.int64))
        self._origins.extend(np.array([change.origin for change, _ in new], dtype=np.int64))
        self._unsaved += len(new)
        self._last = changes[-1].number
        if self._index.slots > _COMPACT_ABOVE + 2 * len(self._index):
            kept = self._index.compact()
            self._numbers, self._origins = Rows(self._numbers.values[kept]), Rows(self._origins.values[kept])


def uncovered(living: Numbers, spans: Sequence[Span]) -> Iterator[Numbers]:
    """The rows that are in no block, or in a small one, cut into blocks.

    Args:
        living: the numbers of all rows, sorted.
        spans: the blocks that there are, in order.
    """
    begin = 0
    gaps: list[Numbers] = []
    for span in spans:
        first, last = np.searchsorted(living, [span.first, span.last + 1]).tolist()
        if span.rows >= BLOCK_ROWS // 2 and last - first == span.rows and first >= begin:
            gaps.append(living[begin:first])
            begin = last
    for gap in (*gaps, living[begin:]):
        for first in range(0, len(gap), BLOCK_ROWS):
            yield gap[first : first + BLOCK_ROWS]


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


@lru_cache(maxsize=1)
def _format() -> str:
    """What a block must have been made by."""
    return f"{_FORMAT}.{RULES}.{version('snowballstemmer')}"


def entry_of(memory: Memory) -> Entry:
    return Entry(
        id=f"{len(memory.session)}:{memory.session}{memory.name}",
        text=memory.text,
        time=memory.time,
        speaker=memory.author,
        thread=memory.session or None,
    )


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
        self._masked = "" if redact is None else getattr(redact, "name", None)
        self.file = MemoryFile(path, lambda memory: digest_of(self._searched(memory)))
        self._embedder: Embedder | str = "none" if chosen is None else chosen
        if self.file.path is not None and chosen is not None and not isinstance(chosen, StaticEmbedder):
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
                if (app, user) in self._users or not self.file.holds_more(app, user, len(new)):
                    of_user = self._of(app, user)
                    of_user.follow()
                    of_user.save_soon()
                elif isinstance(self._embedder, StoredVectors):
                    self._embedder.embed([self._searched(memory) for memory in new])
        return changed

    def delete(self, app: str, user: str, *, name: str | None = None, session: str | None = None) -> int:
        """Deletes a user's memories of a name, of a session, of both, or all; the number of those there were."""
        deleted = self.file.delete(app, user, name=name, session=session)
        with self._lock:
            of_user = self._users.get((app, user))
        if deleted and of_user is not None:
            of_user.follow()
            of_user.save_soon()
        return deleted

    def search(self, app: str, user: str, query: str, limit: int = 10) -> list[Remembered]:
        """A user's best memories for a query, best first; as `HybridIndex.search` finds them."""
        of_user = self._of(app, user)
        found = of_user.search(query, limit)
        of_user.save_soon()
        return found

    def preferences(self, app: str, user: str) -> list[Memory]:
        """A user's preferences, the newest first; the longest are passed over."""
        return self.file.preferences(app, user)

    def all(self, app: str, user: str) -> Iterator[Memory]:
        """A user's memories in the order in which they were added or last changed."""
        last = 0
        while changes := self.file.changes(app, user, last, limit=_LISTED_AT_ONCE):
            yield from (change.memory for change in changes if change.memory is not None)
            last = changes[-1].number

    def users(self) -> list[tuple[str, str, int]]:
        """App, user and number of memories of all that have any, in order."""
        return self.file.users()

    def close(self) -> None:
        """Keeps what of the indexes is not kept yet, and closes the file."""
        with self._lock:
            users = list(self._users.values())
        for of_user in users:
            of_user.close()
        self.file.close()

    def _searched(self, memory: Memory) -> str:
        """What a memory is found by."""
        return self._redact(entry_of(memory).searched)

    def _of(self, app: str, user: str) -> UserMemories:
        with self._lock:
            of_user = self._users.get((app, user))
            if of_user is None:
                index = SlotIndex(self._embedder, redact=self._redact)
                of_user = self._users[app, user] = UserMemories(app, user, self.file, index, self._masked)
            return of_user
