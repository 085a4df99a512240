"""Memories of many users, each user's found in an index that follows the rows of a file or a database."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

import numpy as np

from aether_context.errors import EmbeddingError, MissingExtra, StoreError
from aether_context.memory import rows
from aether_context.memory.file import MemoryFile
from aether_context.memory.places import is_postgres, located
from aether_context.memory.rows import Change, Connection, Memory, Searched, owner_of
from aether_context.redaction import masker
from aether_context.retrieval import Entry
from aether_context.retrieval.embedders import Embedder, embedder_for, vectors_of
from aether_context.retrieval.pool import Places, Pool
from aether_context.retrieval.terms import hashed

if TYPE_CHECKING:
    from aether_context.memory.postgres import PostgresRows

logger = logging.getLogger("aether_context")

P = ParamSpec("P")
T = TypeVar("T")

MANY = 100_000
"""A user with more memories than this is better served by PostgreSQL than by a file."""

_MOST_KEPT = 1_000_000
"""Memories in the indexes of all users that a process keeps, of 450 to 750 bytes each."""
_ATTEMPTS = 5
_EMBEDDED_AT_ONCE = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """A memory that was found, with the score it is ranked by and what that was made of, as of `Hit`."""

    memory: Memory
    score: float
    scores: Mapping[str, float] = field(default_factory=dict)


class Memories:
    """The memories of all users; nothing of one is ever found for another.

    Threads and processes may share a file, and machines a database. Every method raises `StoreError` where rows cannot
    be read or written, and `StoreUnavailable` where a server is away or too late: nothing of the call was written then.

    Args:
        place: a file, a folder for one, or the URI of a PostgreSQL database; None keeps all in this process.
        embedder: a name, an embedder, or None for the default; ``"none"`` finds by words alone. All who use a place
            give the same one: what another one has made is made anew by whoever finds it.
        redact: names of rules or groups, or regular expressions, as in a policy: what is masked in texts and metadata
            that are added from then on, in queries, and in what is embedded.
        max_users: so many users' indexes are kept, fewer where they hold more than a million memories together; another
            one is made from the rows when it is asked for.

    Raises:
        StoreError: the file cannot be opened, or is none of this format; the database cannot be used.
        PolicyError: no embedder of that name is known.
        MissingExtra: the database or the embedder needs a package that is not installed.
    """

    def __init__(
        self,
        place: str | os.PathLike[str] | None = None,
        *,
        embedder: str | Embedder | None = None,
        redact: Sequence[str] = (),
        max_users: int = 64,
    ) -> None:
        self._embedder = embedder_for(embedder)
        self.mask = masker(redact)
        """A mask that masks nothing may be replaced by another."""
        self.database: MemoryFile | PostgresRows = self._opened(place)
        self._max_users = max_users
        self._indexes: dict[str, _Index] = {}  # the one that was asked last at the end
        self._lock = threading.Lock()

    def _opened(self, place: str | os.PathLike[str] | None) -> MemoryFile | PostgresRows:
        if isinstance(place, str) and is_postgres(place):
            if find_spec("psycopg") is None:
                raise MissingExtra("postgres", "a memory service on PostgreSQL")
            from aether_context.memory.postgres import PostgresRows

            return PostgresRows(place)
        return MemoryFile(None if place is None else located(place))

    @property
    def encoder(self) -> str:
        """Identity of the embedder whose vectors memories are found by, ``none`` without one."""
        return "none" if self._embedder is None else self._embedder.name

    def add(self, app: str, user: str, memories: Iterable[Memory], *, revive: bool = False) -> int:
        """Writes memories, all or none; the number of those that were new or other than before.

        When it returns they are kept, whatever becomes of the process. What could not be embedded is embedded when
        the user is searched.

        Args:
            revive: whether what was deleted may be written again.
        """
        owner = owner_of(app, user)
        given = {memory.key: memory for memory in map(self._masked, map(rows.cleaned, memories))}
        if not given:
            return 0
        known = self._run(rows.digests, owner, list(given))
        # What another process writes in between is embedded in vain, and no more.
        wanted = [memory for memory in given.values() if rows.is_change(memory, known, revive=revive)]
        if not wanted:
            return 0
        searched = list(zip(wanted, self._searched(wanted), strict=True))
        return self._write(rows.put, owner, app, user, searched, revive=revive)

    def _masked(self, memory: Memory) -> Memory:
        mask = self.mask
        return replace(memory, text=mask(memory.text), metadata=mask.json(dict(memory.metadata))) if mask else memory

    def delete(self, app: str, user: str, *, name: str | None = None, session: str | None = None) -> int:
        """Deletes a user's memories of a name, of a session, of both, or all; the number of those there were."""
        deleted = self._write(rows.delete, owner_of(app, user), name=name, session=session)
        if deleted:
            self.database.purge()
        return deleted

    def search(self, app: str, user: str, query: str, limit: int = 10) -> list[Remembered]:
        """A user's best memories for a query, best first; as `HybridIndex.search` finds them.

        What another process writes meanwhile is found as it was before or as it is after.
        """
        if limit <= 0:
            return []
        owner, asked = owner_of(app, user), self.mask(query)
        index = self._index(owner)
        with index.lock:
            vector = vectors_of(None, [asked])
            with contextlib.suppress(EmbeddingError):  # words alone find then
                vector = vectors_of(self._embedder, [asked], "query")
            for _ in range(_ATTEMPTS):
                self._follow(owner, index)
                if vector.size:
                    self._complete(owner, index)
                memories: dict[str, Memory] = {}

                def entries(places: Places, memories: dict[str, Memory] = memories) -> list[Entry]:
                    numbers = index.numbers[places].tolist()
                    found = index.same(self._run(rows.read, owner, numbers))
                    memories.update({entry_of(memory).id: memory for memory in found.values()})
                    return [entry_of(found[number]) if number in found else Entry(id="", text="") for number in numbers]

                alone, scores = index.pool.answers(asked, vector)
                hits = index.pool.ranked(asked, limit, entries, alone, scores)
                if all(hit.id for hit in hits):
                    break
            else:  # changed too fast, or the rows are those of a backup
                with self._lock:
                    self._indexes.pop(owner, None)
        return [Remembered(memory=memories[hit.id], score=hit.score, scores=hit.scores) for hit in hits if hit.id]

    def preferences(self, app: str, user: str) -> list[Memory]:
        """A user's preferences, the newest first; the longest are passed over."""
        return self._run(rows.preferences, owner_of(app, user))

    def all(self, app: str, user: str) -> Iterator[Memory]:
        """A user's memories in the order in which they were added or last changed."""
        owner, last = owner_of(app, user), 0
        while page := self._run(rows.page, owner, last):
            yield from (memory for _, memory in page)
            last = page[-1][0]

    def users(self) -> list[tuple[str, str, int]]:
        """App, user and number of memories of all that have any, in order."""
        return self.database.run(rows.users)

    def close(self) -> None:
        """Closes the file, or the connections to the database."""
        self.database.close()

    def _run(
        self, work: Callable[Concatenate[Connection, str, P], T], owner: str, *args: P.args, **options: P.kwargs
    ) -> T:
        return self.database.run(lambda connection: work(connection, owner, *args, **options), owner=owner)

    def _write(
        self, work: Callable[Concatenate[Connection, str, P], T], owner: str, *args: P.args, **options: P.kwargs
    ) -> T:
        return self.database.run(lambda connection: work(connection, owner, *args, **options), owner=owner, writes=True)

    def _index(self, owner: str) -> _Index:
        """An owner's index; those of others that were asked longest ago make room for it."""
        with self._lock:
            index = self._indexes.pop(owner, None) or _Index(self._embedder)
            kept = sum(len(other.numbers) for other in (*self._indexes.values(), index))
            while self._indexes and (len(self._indexes) >= self._max_users or kept > _MOST_KEPT):
                kept -= len(self._indexes.pop(next(iter(self._indexes))).numbers)
            self._indexes[owner] = index
        return index

    def _follow(self, owner: str, index: _Index) -> None:
        """Brings an index up to the rows."""
        count = len(index.numbers)
        while changes := self._run(rows.changes, owner, index.last):
            index.take(changes)
        if count <= MANY < len(index.numbers) and isinstance(self.database, MemoryFile) and self.database.path:
            logger.warning(
                "a user has %d memories in %s: past %d a file is slow to open and to search; "
                'HybridMemoryService("postgresql://...") serves more machines',
                len(index.numbers),
                self.database.name,
                MANY,
            )

    def _complete(self, owner: str, index: _Index) -> None:
        """Embeds what has no vector of this embedder; what a service cannot embed now is left for the next time."""
        lacking = np.flatnonzero(~index.embedded)
        for first in range(0, len(lacking), _EMBEDDED_AT_ONCE):
            places = lacking[first : first + _EMBEDDED_AT_ONCE]
            found = self._run(rows.read, owner, index.numbers[places].tolist())
            searched = dict(zip(found, self._searched(list(found.values())), strict=True))
            made = [(number, of.embedder, of.vector) for number, of in searched.items() if of.vector is not None]
            if not made:
                return
            index.embed(made)
            with contextlib.suppress(StoreError):  # where it cannot be kept it is made again
                self._write(rows.keep_vectors, owner, made)

    def _searched(self, memories: Sequence[Memory]) -> list[Searched]:
        """What memories are searched by; without vectors where these cannot be made now."""
        texts = [self.mask(entry_of(memory).searched) for memory in memories]
        said = list(map(hashed, texts))
        with contextlib.suppress(EmbeddingError):
            if (vectors := vectors_of(self._embedder, texts)).shape[1]:
                made_by = _made_by(self._embedder)
                return [Searched(of, made_by, row.tobytes()) for of, row in zip(said, vectors, strict=True)]
        return list(map(Searched, said))


class _Index:
    """What one user's memories are found by, as far as the rows were read."""

    def __init__(self, embedder: Embedder | None) -> None:
        self.lock = threading.Lock()
        self.pool = Pool()
        self.numbers: Places = np.empty(0, dtype=np.int64)
        """Of each place in the pool the number of its row; they grow."""
        self.embedded = np.empty(0, dtype=np.bool_)
        """Of each place whether it has a vector, if there is anything to make one."""
        self.last = 0
        self._known: dict[str, int] = {}
        self._made_by = _made_by(embedder)

    def take(self, changes: Sequence[Change]) -> None:
        """Takes in what changed."""
        there = [change for change in changes if change.terms is not None]
        widths = (len(change.vector or b"") for change in there if change.embedder == self._made_by)
        width = self.pool.vectors.shape[1] or max(widths, default=0)
        made = [change.vector if change.embedder == self._made_by else None for change in there]
        has_vector = [vector is not None and 0 < len(vector) == width for vector in made]
        table = np.zeros((len(there), width), dtype=np.int8)
        kept_vectors = b"".join(vector or b"" for vector, has in zip(made, has_vector, strict=True) if has)
        table[has_vector] = np.frombuffer(kept_vectors, dtype=np.int8).reshape(sum(has_vector), width)
        gone = [self._known[change.key] for change in changes if change.key in self._known]
        if gone:
            kept = ~np.isin(self.numbers, gone)
            self.pool.keep(kept)
            self.numbers, self.embedded = self.numbers[kept], self.embedded[kept]
        self.pool.extend(
            [change.terms or b"" for change in there],
            table,
            [change.said_at for change in there],
            [-1 if change.thread is None else change.thread for change in there],
        )
        self.numbers = np.concatenate([self.numbers, np.array([change.number for change in there], dtype=np.int64)])
        self.embedded = np.concatenate([self.embedded, np.array(has_vector, dtype=np.bool_) | (not self._made_by)])
        for change in changes:
            self._known.pop(change.key, None)
        self._known |= {change.key: change.number for change in there}
        self.last = changes[-1].number

    def same(self, found: Mapping[int, Memory]) -> dict[int, Memory]:
        """Those of some rows that are the ones that were taken in; a backup that was restored gives numbers again."""
        return {number: memory for number, memory in found.items() if self._known.get(memory.key) == number}

    def embed(self, made: Sequence[tuple[int, str, bytes]]) -> None:
        """Takes in the vectors of rows that had none, by number."""
        places = np.searchsorted(self.numbers, [number for number, _, _ in made])
        table = np.frombuffer(b"".join(vector for _, _, vector in made), dtype=np.int8).reshape(len(made), -1)
        self.pool.fill(places, table)
        self.embedded[places] = True


def _made_by(embedder: Embedder | None) -> str:
    """What rows name as the maker of their vectors, empty where there is none."""
    return "" if embedder is None else embedder.name


def entry_of(memory: Memory) -> Entry:
    """A memory as it is ranked."""
    return Entry(
        id=f"{len(memory.session)}:{memory.session}{memory.name}",
        text=memory.text,
        time=memory.time,
        speaker=memory.author,
        thread=memory.session or None,
    )
