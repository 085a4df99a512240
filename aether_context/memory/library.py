"""Memories of many users, each user's found by an index that follows the file."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.metadata import version
from typing import TypeAlias

import numpy as np
from cachetools import LRUCache
from numpy.typing import NDArray

from aether_context.canonical import canonical_json
from aether_context.errors import EmbeddingError, StoreError
from aether_context.memory.database import Change, Memory, MemoryFile, Span
from aether_context.retrieval import Entry, Hit
from aether_context.retrieval.arrays import Rows
from aether_context.retrieval.embedders import Embedder, StaticEmbedder, StoredVectors, digest_of, embedder_for
from aether_context.retrieval.index import SlotIndex
from aether_context.retrieval.storage import Part, packed, unpacked
from aether_context.retrieval.terms import RULES

# One user's memories: an index that follows the file, opens from blocks that are kept there, and keeps new ones.

Numbers = NDArray[np.int64]

BLOCK_ROWS = 1_024
"""So many memories make a whole block."""

_FORMAT = 2
_ATTEMPTS = 5
_READ_AT_ONCE = 8_192
_COMPACT_ABOVE = 1_000
_WORTH_SAVING = 64
_MOST_HELD, _MOST_HELD_CHARACTERS = 1_024, 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """A memory that was found, with the score it is ranked by and what that was made of, as of `Hit`."""

    memory: Memory
    score: float
    scores: Mapping[str, float] = field(default_factory=dict)


class UserMemories:
    """The memories of one user of one app. Threads may share it.

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
        self._held: _Held = LRUCache(_MOST_HELD)
        self._last = -1
        self._unsaved = 0
        self._lock = threading.Lock()
        self._saving = threading.Lock()
        keeps = masked is not None and file.path is not None
        self._made = canonical_json([_format(), masked, list(index.embedders)]) if keeps else None

    @property
    def due(self) -> bool:
        """Whether a block's worth of memories is in no block, and nobody is keeping any."""
        return self._made is not None and self._unsaved >= BLOCK_ROWS and not self._saving.locked()

    @property
    def unsaved(self) -> bool:
        """Whether it is worth the while to keep blocks before the file is closed."""
        return self._made is not None and (self._unsaved >= _WORTH_SAVING or self._saving.locked())

    def search(self, query: str, limit: int) -> list[Remembered]:
        """As `Memories.search`. What another process writes meanwhile is found as it was before or as it is after."""
        with self._lock:
            for _ in range(_ATTEMPTS):
                self._follow()
                rows = _Rows(self._app, self._user, self._file, self._numbers.values, self._held)
                hits = self._index.search(query, limit, rows)
                if not any(hit.entry is _GONE for hit in hits):
                    break
            return [rows.remembered(hit) for hit in hits if hit.entry is not _GONE]

    def follow(self) -> None:
        """Brings the index up to the file."""
        with self._lock:
            self._follow()

    def save(self) -> None:
        """Keeps blocks of what is in none, after any other thread that does so.

        Raises:
            StoreError: the file could not be written.
        """
        if self._made is None:
            return
        with self._saving, contextlib.closing(self._file.again()) as file:
            self._save(file, self._made)

    def _save(self, file: MemoryFile, made: str) -> None:
        file.drop_blocks(self._app, self._user, canonical_json([_format()])[:-1])
        spans = file.spans(self._app, self._user, made)
        with self._lock:
            living = self._numbers.values[self._index.living]
            self._unsaved = 0
        for numbers in uncovered(living, spans):
            if (data := self._block(numbers)) is not None:
                span = Span(first=int(numbers[0]), last=int(numbers[-1]), rows=len(numbers))
                file.keep_block(self._app, self._user, made, span, data)

    def _block(self, numbers: Numbers) -> bytes | None:
        """The block of some memories; None where one has gone, or has no vector that it should have."""
        with self._lock:
            slots = np.searchsorted(self._numbers.values, numbers)
            if len(self._numbers) == 0 or not np.isin(numbers, self._numbers.values[self._index.living]).all():
                return None
            part = self._index.part(slots)
            origins = self._origins.values[slots]
        return packed({**part.arrays(), "numbers": numbers, "origins": origins}) if _complete(part) else None

    def _follow(self) -> None:
        if self._last < 0:
            self._open()
        while changes := self._file.changes(self._app, self._user, self._last, limit=_READ_AT_ONCE):
            self._take(changes)

    def _open(self) -> None:
        """Takes the blocks that are kept, and in between the rows that are in none."""
        self._last = 0
        spans = deque([] if self._made is None else self._file.spans(self._app, self._user, self._made))
        self._index.reserve(sum(span.rows for span in spans))
        while spans:
            self._index.extend(block.part for block in self._run(spans))
            if spans:
                self._take(self._file.changes(self._app, self._user, self._last, before=spans[0].first))

    def _run(self, spans: deque[Span]) -> Iterator[_Block]:
        """The blocks of the first spans, taken out of these, up to one that rows stand before which are in none."""
        while spans:
            span = spans[0]
            block = self._read(span) if span.first > self._last else None
            if block is not None:
                if self._file.changes(self._app, self._user, self._last, before=span.first, limit=1):
                    return
                self._numbers.extend(block.numbers)
                self._origins.extend(block.origins)
                self._last = span.last
                yield block
            spans.popleft()

    def _read(self, span: Span) -> _Block | None:
        data = self._file.block(self._app, self._user, self._made or "", span)
        return None if data is None else _unpacked(data, span, len(self._index.embedders))

    def _take(self, changes: Sequence[Change]) -> None:
        """Takes in what changed. Where an embedder fails, nothing was."""
        if not changes:
            return
        before = self._index.slots
        new = [one for one in changes if one.memory is not None]
        if new:
            self._index.add([_entry(one.memory) for one in new if one.memory is not None])
        anew = [one.origin for one in changes if one.origin != one.number]
        gone = np.flatnonzero(np.isin(self._origins.values, anew)) if anew else np.empty(0, dtype=np.int64)
        self._numbers.extend(np.array([one.number for one in new], dtype=np.int64))
        self._origins.extend(np.array([one.origin for one in new], dtype=np.int64))
        if len(gone):
            for number in self._numbers.values[gone].tolist():
                self._held.pop(number, None)
            self._index.remove(gone)
            self._origins.values[gone] = -1
            self._unsaved += BLOCK_ROWS
        self._last = changes[-1].number
        self._unsaved += self._index.slots - before
        if self._index.slots > _COMPACT_ABOVE + 2 * len(self._index):
            kept = self._index.compact()
            self._numbers, self._origins = Rows(self._numbers.values[kept]), Rows(self._origins.values[kept])


class _Rows:
    """Looks up what stands in slots, and remembers it.

    Args:
        held: rows that were looked up before, the latest last; a row of a number never changes.
    """

    def __init__(self, app: str, user: str, file: MemoryFile, numbers: Numbers, held: _Held) -> None:
        self._app, self._user = app, user
        self._file = file
        self._numbers = numbers
        self._held = held
        self._memories: dict[str, Memory] = {}

    def __call__(self, slots: Numbers) -> list[Entry]:
        numbers: list[int] = self._numbers[slots].tolist()
        found = {number: row for number in numbers if (row := self._held.get(number)) is not None}
        read = self._file.read(self._app, self._user, [number for number in numbers if number not in found])
        found |= {number: (_entry(memory), memory) for number, memory in read.items()}
        self._hold(found)
        self._memories |= {entry.id: memory for entry, memory in found.values()}
        return [found[number][0] if number in found else _GONE for number in numbers]

    def remembered(self, hit: Hit) -> Remembered:
        return Remembered(memory=self._memories[hit.id], score=hit.score, scores=hit.scores)

    def _hold(self, rows: Mapping[int, tuple[Entry, Memory]]) -> None:
        for number, row in rows.items():
            if len(row[0].text) <= _MOST_HELD_CHARACTERS:
                self._held[number] = row


_Held: TypeAlias = LRUCache[int, tuple[Entry, Memory]]
"""Rows by their numbers."""


@dataclass(frozen=True, slots=True)
class _Block:
    """Part of an index, with the number of each row and of the first one of the same memory."""

    part: Part
    numbers: Numbers
    origins: Numbers


_GONE = Entry(id="", text="")


def uncovered(living: Numbers, spans: Sequence[Span]) -> Iterator[Numbers]:
    """The rows that are in no block, or in a small one, cut into blocks.

    Args:
        living: the numbers of all rows, sorted.
        spans: the blocks that there are, in order.
    """
    begin = 0
    for span in spans:
        first, last = np.searchsorted(living, [span.first, span.last + 1]).tolist()
        if span.rows >= BLOCK_ROWS // 2 and last - first == span.rows and first >= begin:
            yield from _cut(living[begin:first])
            begin = last
    yield from _cut(living[begin:])


def _cut(numbers: Numbers) -> Iterator[Numbers]:
    for first in range(0, len(numbers), BLOCK_ROWS):
        yield numbers[first : first + BLOCK_ROWS]


def _complete(part: Part) -> bool:
    """Whether each entry has a vector of every embedder, or of none."""
    there = [np.zeros(len(part)) if rows is None else rows.any(axis=1) for rows in part.vectors]
    return all((one == there[0]).all() for one in there)


def _unpacked(data: bytes, span: Span, embedders: int) -> _Block | None:
    """What a block holds; None where it is none of this span."""
    try:
        arrays = unpacked(data)
        block = _Block(Part.from_arrays(arrays, embedders), arrays["numbers"], arrays["origins"])
    except (ValueError, KeyError, TypeError):
        return None
    fits = len(block.numbers) == len(block.origins) == len(block.part) == span.rows
    return block if fits and block.numbers[0] == span.first and block.numbers[-1] == span.last else None


@lru_cache(maxsize=1)
def _format() -> str:
    """What a block must have been made by."""
    return f"{_FORMAT}.{RULES}.{version('snowballstemmer')}"


def _entry(memory: Memory) -> Entry:
    return Entry(
        id=f"{len(memory.session)}:{memory.session}{memory.name}",
        text=memory.text,
        time=memory.time,
        speaker=memory.author,
        thread=memory.session or None,
    )


def searched(memory: Memory) -> str:
    """What a memory is found by."""
    return _entry(memory).searched


# Memories of many users, each user's found by an index of their own that follows the file.

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
        self.file = MemoryFile(path, lambda memory: digest_of(self._redact(searched(memory))))
        self._embedder: Embedder | str = "none" if chosen is None else chosen
        if self.file.path is not None and chosen is not None and not isinstance(chosen, StaticEmbedder):
            self._embedder = StoredVectors(chosen, self.file)
        self._scopes: LRUCache[tuple[str, str], UserMemories] = LRUCache(max_users)
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
        with self._lock:
            scope = self._scopes.get((app, user))
        if deleted and scope is not None:
            scope.follow()
            self._save_soon(scope)
        return deleted

    def search(self, app: str, user: str, query: str, limit: int = 10) -> list[Remembered]:
        """A user's best memories for a query, best first; as `HybridIndex.search` finds them.

        Raises:
            StoreError: the file could not be read.
        """
        scope = self._scope(app, user)
        found = scope.search(query, limit)
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

    def _scope(self, app: str, user: str) -> UserMemories:
        with self._lock:
            scope = self._scopes.get((app, user))
            if scope is None:
                index = SlotIndex(self._embedder, redact=self._redact)
                scope = self._scopes[app, user] = UserMemories(app, user, self.file, index, self._masked)
            return scope

    def _save_soon(self, scope: UserMemories) -> None:
        """Keeps what of an index is worth it, in a thread of its own."""
        if scope.due:
            threading.Thread(target=_save, args=(scope,), name="aether-memory-blocks", daemon=True).start()


def _save(scope: UserMemories) -> None:
    """Keeps blocks; where the file cannot take them, the index is made from the rows next time."""
    with contextlib.suppress(StoreError):
        scope.save()
