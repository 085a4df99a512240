"""Memories in one SQLite file, or in this process alone.

Each user's rows have numbers that only grow: what is written anew gets a new one, so that the rows above a number are
the changes since, and the index that a process keeps of a user follows them. Of what is deleted the name stays, without
a word of its content, so that an index elsewhere learns of it and a session that is added again does not bring it back.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from aether_context.canonical import canonical_json
from aether_context.errors import StoreError
from aether_context.memory.records import (
    EMBEDDED_AT_ONCE,
    FIELDS,
    LONGEST_PREFERENCE,
    MOST_PREFERENCES,
    Found,
    Make,
    Memory,
    Searched,
    batches,
    entry_of,
    is_change,
    made_by,
    table_of,
    tables,
    thread_of,
)
from aether_context.retrieval import Entry
from aether_context.retrieval.embedders import Embedder
from aether_context.retrieval.pool import Places, Pool, Rows
from aether_context.text.spellings import is_preference
from aether_context.tokens.counters import sound

T = TypeVar("T")
logger = logging.getLogger("aether_context")

FILE_NAME = "memories.sqlite"
"""The file's name where a folder is given."""
MANY = 100_000
"""A user with more memories than this is better served by PostgreSQL than by a file."""

_FORMAT = 5
_TIMEOUT_SECONDS = 30.0
_MOST_KEPT = 1_000_000
"""Memories in the indexes of all users that a process keeps, of 450 to 750 bytes each."""
_ATTEMPTS = 5
_READ_AT_ONCE, _NAMED_AT_ONCE = 8_192, 500
"""Rows. SQLite of before 2020 takes 999 values a statement."""
_TABLES = """
CREATE TABLE owners (
    owner text PRIMARY KEY, app text NOT NULL, user_id text NOT NULL, memories int NOT NULL, last int NOT NULL);
CREATE TABLE memories (
    owner text NOT NULL, number int NOT NULL, key text NOT NULL, digest text,
    session text NOT NULL, name text NOT NULL, text text, role text, author text, timestamp text, metadata text,
    standing int NOT NULL, thread int, said_at real, terms blob, embedder text, vector blob,
    PRIMARY KEY (owner, number), UNIQUE (owner, key));
CREATE INDEX memories_standing ON memories (owner, number) WHERE standing = 1;
CREATE INDEX memories_by_name ON memories (owner, name);
"""
_MEMORY = ", ".join(FIELDS)
_COLUMNS = ("owner", "number", "key", "digest", *FIELDS, "standing", "thread", "said_at", *Searched._fields)
_CHANGED = ", ".join(f"{column} = excluded.{column}" for column in _COLUMNS)
_WRITE = f"""INSERT INTO memories ({", ".join(_COLUMNS)}) VALUES ({", ".join("?" * len(_COLUMNS))})
    ON CONFLICT (owner, key) DO UPDATE SET {_CHANGED}"""
_KEEP = "UPDATE memories SET embedder = ?, vector = ? WHERE owner = ? AND number = ?"


def located(path: str | os.PathLike[str]) -> Path:
    """The file that a path means: itself, or the one in the folder that it is or, having no suffix, is going to be."""
    found = Path(os.path.expanduser(path))
    return found / FILE_NAME if os.path.isdir(found) or not (found.suffix or os.path.exists(found)) else found


class MemoryFile:
    """A `Backend` in one file, which threads and processes may share.

    Args:
        path: None keeps all in this process.
        max_users: so many users' indexes are kept, fewer where they hold more than a million memories together.

    Raises:
        StoreError: the file cannot be opened, or is none of this format.
    """

    def __init__(self, path: Path | None, embedder: Embedder | None, max_users: int) -> None:
        self.path = path
        self.name = "this process" if path is None else str(path)
        self._embedder, self._max_users = embedder, max_users
        self._indexes: dict[str, _Index] = {}  # the one that was asked last at the end
        self._indexes_lock = threading.Lock()
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._inherited: list[sqlite3.Connection] = []
        self._connection = self._opened()

    def digests(self, owner: str, keys: Sequence[str]) -> dict[str, str | None]:
        found: dict[str, str | None] = {}
        for some in batches(keys, _NAMED_AT_ONCE):
            query = f"SELECT key, digest FROM memories WHERE owner = ? AND key IN ({_marks(some)})"
            found.update(self._read(query, owner, *some))
        return found

    def put(self, owner: str, app: str, user: str, memories: Sequence[tuple[Memory, Searched]], *, revive: bool) -> int:
        def write(connection: sqlite3.Connection) -> int:
            names = (owner, sound(app), sound(user))
            connection.execute("INSERT INTO owners VALUES (?, ?, ?, 0, 0) ON CONFLICT DO NOTHING", names)
            last, count = _counted(connection, owner)
            given = {memory.key: (memory, searched) for memory, searched in memories}
            known = self.digests(owner, list(given))
            rows = []
            for key, (memory, searched) in given.items():
                if is_change(memory, known, revive=revive):
                    count += known.get(key) is None
                    texts = [getattr(memory, name) for name in FIELDS[:-1]] + [canonical_json(dict(memory.metadata))]
                    standing = int(is_preference(memory.metadata))
                    number = last + 1 + len(rows)
                    times = (thread_of(memory), memory.time)
                    rows.append((owner, number, key, memory.digest, *texts, standing, *times, *searched))
            _write(connection, owner, rows, last, count)
            return len(rows)

        return self._run(write, writes=True)

    def delete(self, owner: str, *, name: str | None, session: str | None) -> int:
        given = {column: sound(value) for column, value in (("name", name), ("session", session)) if value is not None}
        where = "".join(f" AND {column} = ?" for column in given)
        query = f"SELECT key, session, name FROM memories WHERE owner = ? AND text IS NOT NULL{where} ORDER BY number"

        def forget(connection: sqlite3.Connection) -> int:
            last, count = _counted(connection, owner)
            gone = connection.execute(query, (owner, *given.values())).fetchall()
            rows = []
            for number, kept in enumerate(gone, last + 1):
                row = {"owner": owner, "number": number, "standing": 0}
                row |= dict(zip(("key", "session", "name"), kept, strict=True))
                rows.append([row.get(column) for column in _COLUMNS])
            _write(connection, owner, rows, last, count - len(rows))
            return len(rows)

        if deleted := self._run(forget, writes=True):
            self._purge()
        return deleted

    def search(self, owner: str, asked: str, vectors: Sequence[Rows | None], limit: int, make: Make) -> list[Found]:
        index = self._index(owner)
        with index.lock:
            for _ in range(_ATTEMPTS):
                self._follow(owner, index)
                if vectors and vectors[0] is not None:
                    self._complete(owner, index, make)
                found: dict[str, tuple[int, Memory]] = {}

                def entries(places: Places, found: dict[str, tuple[int, Memory]] = found) -> list[Entry]:
                    numbers = index.numbers[places].tolist()
                    there = index.same(self._named(owner, numbers))
                    found.update({entry_of(memory).id: (number, memory) for number, memory in there.items()})
                    return [entry_of(there[number]) if number in there else Entry(id="", text="") for number in numbers]

                alone, scores = index.pool.answers(asked, vectors)
                hits = index.pool.ranked(asked, limit, entries, alone, scores)
                if all(hit.id for hit in hits):
                    break
            else:  # changed too fast, or the rows are those of a backup
                with self._indexes_lock:
                    self._indexes.pop(owner, None)
        return [Found(hit, *found[hit.id]) for hit in hits if hit.id]

    def preferences(self, owner: str) -> list[Memory]:
        query = f"""SELECT {_MEMORY} FROM memories WHERE owner = ? AND standing = 1 AND length(text) <= ?
            ORDER BY number DESC LIMIT ?"""
        return list(map(_memory, self._read(query, owner, LONGEST_PREFERENCE, MOST_PREFERENCES)))

    def page(self, owner: str, since: int) -> list[tuple[int, Memory]]:
        query = f"""SELECT number, {_MEMORY} FROM memories
            WHERE owner = ? AND number > ? AND text IS NOT NULL ORDER BY number LIMIT 1000"""
        return [(row[0], _memory(row[1:])) for row in self._read(query, owner, since)]

    def users(self) -> list[tuple[str, str, int]]:
        return self._read("SELECT app, user_id, memories FROM owners WHERE memories > 0")

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def _index(self, owner: str) -> _Index:
        """An owner's index; those of others that were asked longest ago make room for it."""
        with self._indexes_lock:
            index = self._indexes.pop(owner, None) or _Index(self._embedder)
            kept = sum(len(other.numbers) for other in (*self._indexes.values(), index))
            while self._indexes and (len(self._indexes) >= self._max_users or kept > _MOST_KEPT):
                kept -= len(self._indexes.pop(next(iter(self._indexes))).numbers)
            self._indexes[owner] = index
        return index

    def _follow(self, owner: str, index: _Index) -> None:
        """Brings an index up to the rows."""
        query = """SELECT number, key, thread, said_at, terms, embedder, vector FROM memories
            WHERE owner = ? AND number > ? ORDER BY number LIMIT ?"""
        count = len(index.numbers)
        while changes := self._read(query, owner, index.last, _READ_AT_ONCE):
            index.take(changes)
        if count <= MANY < len(index.numbers) and self.path:
            logger.warning(
                "a user has %d memories in %s: past %d a file is slow to open and to search; "
                'HybridMemoryService("postgresql://...") serves more machines',
                len(index.numbers),
                self.name,
                MANY,
            )

    def _complete(self, owner: str, index: _Index, make: Make) -> None:
        """Embeds what has no vector of this embedder; what a service cannot embed now is left for the next time."""
        for places in batches(np.flatnonzero(~index.embedded).tolist(), EMBEDDED_AT_ONCE):
            found = self._named(owner, index.numbers[places].tolist())
            searched = dict(zip(found, make(list(found.values())), strict=True))
            made = [(of.embedder, of.vector, owner, number) for number, of in searched.items() if of.vector is not None]
            if not made:
                return
            index.embed([(number, vector) for _, vector, _, number in made])
            with contextlib.suppress(StoreError):  # where it cannot be kept it is made again
                self._run(lambda connection, rows=made: connection.executemany(_KEEP, rows), writes=True)

    def _named(self, owner: str, numbers: Sequence[int]) -> dict[int, Memory]:
        """Those of some memories that are there, by number."""
        found = {}
        for some in batches(numbers, _NAMED_AT_ONCE):
            query = f"""SELECT number, {_MEMORY} FROM memories
                WHERE owner = ? AND text IS NOT NULL AND number IN ({_marks(some)})"""
            found.update({row[0]: _memory(row[1:]) for row in self._read(query, owner, *some)})
        return found

    def _read(self, query: str, *values: object) -> list[Any]:
        return self._run(lambda connection: connection.execute(query, values).fetchall())

    def _run(self, work: Callable[[sqlite3.Connection], T], *, writes: bool = False) -> T:
        """What work in one transaction gives; what it wrote is on the disk when this returns.

        Raises:
            StoreError: the rows cannot be read or written.
        """
        with self._lock:
            if self.path is not None and self._process != os.getpid():
                # A fork must not use its parent's connection, nor close it, which would drop the parent's locks.
                self._inherited.append(self._connection)
                self._connection, self._process = self._opened(), os.getpid()
            try:
                return _written(self._connection, work) if writes else work(self._connection)
            except sqlite3.Error as error:
                raise StoreError(f"the memories in {self.name} cannot be used: {error}") from error

    def _purge(self) -> None:
        """Takes deleted words out of the log; while others read it, the next one who can will."""
        if self.path is None:
            return

        def truncate(connection: sqlite3.Connection) -> None:
            connection.execute("PRAGMA busy_timeout = 0")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            connection.execute(f"PRAGMA busy_timeout = {int(1000 * _TIMEOUT_SECONDS)}")

        self._run(truncate)

    def _opened(self) -> sqlite3.Connection:
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        while True:
            try:
                return self._connected()
            except (sqlite3.Error, OSError) as error:
                # Turning the log on does not wait for another process that does so, too.
                if "locked" not in str(error) or time.monotonic() > deadline:
                    raise StoreError(f"the memories in {self.name} cannot be opened: {error}") from error
                time.sleep(0.01)

    def _connected(self) -> sqlite3.Connection:
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o666))  # SQLite itself takes no more than 0644
        connection = sqlite3.connect(
            self.path or ":memory:",
            timeout=_TIMEOUT_SECONDS,
            isolation_level=None,
            check_same_thread=False,
            factory=_Connection,
        )
        with contextlib.ExitStack() as failed:
            failed.callback(connection.close)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA secure_delete = ON")
            if _format(connection) != _FORMAT:
                _written(connection, self._prepare)
            failed.pop_all()
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        """Makes the tables."""
        found = _format(connection)  # another process may have been faster
        if found == _FORMAT:
            return
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if found or tables:
            raise StoreError(
                f"{self.name} holds something else than memories of format {_FORMAT}: give a file of its own"
            )
        for statement in _TABLES.split(";"):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {_FORMAT}")


class _Index:
    """What one user's memories are found by, as far as the rows were read."""

    def __init__(self, embedder: Embedder | None) -> None:
        self.lock = threading.Lock()
        self.pool = Pool(embedder)
        self.numbers: Places = np.empty(0, dtype=np.int64)
        """Of each place in the pool the number of its row; they grow."""
        self.embedded = np.empty(0, dtype=np.bool_)
        """Of each place whether it has a vector, if there is anything to make one."""
        self.last = 0
        self._known: dict[str, int] = {}
        self._made_by = made_by(embedder)

    def take(self, changes: Sequence[tuple[Any, ...]]) -> None:
        """Takes in what changed."""
        there = [change for change in changes if change[4] is not None]
        gone = [self._known[key] for _, key, *_ in changes if key in self._known]
        if gone:
            kept = ~np.isin(self.numbers, gone)
            self.pool.keep(kept)
            self.numbers, self.embedded = self.numbers[kept], self.embedded[kept]
        for _, key, *_ in changes:
            self._known.pop(key, None)
        self.last = changes[-1][0]
        if not there:
            return
        numbers, keys, threads, times, said, makers, made = zip(*there, strict=True)
        width = sum(table.shape[1] for table in self.pool.vectors)
        vectors, has = table_of(
            [vector if maker == self._made_by else None for vector, maker in zip(made, makers, strict=True)], width
        )
        self.pool.extend(said, tables(vectors, self.pool), times, threads)
        self.numbers = np.concatenate([self.numbers, np.array(numbers, dtype=np.int64)])
        self.embedded = np.concatenate([self.embedded, has | (not self._made_by)])
        self._known |= dict(zip(keys, numbers, strict=True))

    def same(self, found: Mapping[int, Memory]) -> dict[int, Memory]:
        """Those of some rows that are the ones that were taken in; a backup that was restored gives numbers again."""
        return {number: memory for number, memory in found.items() if self._known.get(memory.key) == number}

    def embed(self, made: Sequence[tuple[int, bytes]]) -> None:
        """Takes in the vectors of rows that had none, by number."""
        places = np.searchsorted(self.numbers, [number for number, _ in made])
        self.pool.fill(places, tables(table_of([vector for _, vector in made])[0], self.pool))
        self.embedded[places] = True


def _counted(connection: sqlite3.Connection, owner: str) -> tuple[int, int]:
    """The last number of an owner's rows, and how many memories there are."""
    row = connection.execute("SELECT last, memories FROM owners WHERE owner = ?", (owner,)).fetchone()
    return row or (0, 0)


def _write(connection: sqlite3.Connection, owner: str, rows: Sequence[Sequence[Any]], last: int, count: int) -> None:
    connection.executemany(_WRITE, rows)
    values = (last + len(rows), count, owner)
    connection.execute("UPDATE owners SET last = ?, memories = ? WHERE owner = ?", values)


def _memory(row: Sequence[Any]) -> Memory:
    return Memory(**{**dict(zip(FIELDS, row, strict=True)), "metadata": json.loads(row[-1])})


def _marks(values: Sequence[object]) -> str:
    return ", ".join("?" * len(values))


class _Connection(sqlite3.Connection):
    """Closed with the last reference to it: services of an app that ends are not all closed by hand."""

    def __del__(self) -> None:
        self.close()


def _written(connection: sqlite3.Connection, work: Callable[[sqlite3.Connection], T]) -> T:
    """What work in a transaction gives, which is durable when it ends, and has not been where it fails."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        found = work(connection)
        connection.execute("COMMIT")
        return found
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _format(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])
