"""The texts of all users in one SQLite file, and what changed in it since it was last read.

Each write is one transaction and durable when it returns. Every row has a number that only grows: what is written
anew gets a new one, so the rows above a number are the changes since. Of what is deleted the name stays, without a word
of its content, so that an index elsewhere learns of it and a session that is added again does not bring it back.

Vectors lie beside the rows, by what they were made of, until no row says that any more.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from aether_context.canonical import JSON, canonical_json
from aether_context.errors import StoreError
from aether_context.text.spellings import is_preference
from aether_context.tokens.counters import sound

FILE_NAME = "memories.sqlite"
"""The file's name where a folder is given."""

_FORMAT = 3
_FORMER = 2
"""A format that is read, too: the file becomes one of this format when it is opened."""
_TIMEOUT_SECONDS = 30.0
_AT_ONCE, _READ_AT_ONCE = 500, 8_192
_MOST_NAMED, _MOST_PREFERENCES, _LONGEST_PREFERENCE = 20_000, 20, 2_000
_NAMED = "(instr(lower(metadata), 'pref') > 0 OR instr(lower(metadata), 'standing') > 0)"
"""What the metadata of a preference cannot lack; SQLite uses an index only by the same words."""
_SCHEMA = f"""
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS memories (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    app TEXT NOT NULL, user TEXT NOT NULL, session TEXT NOT NULL, name TEXT NOT NULL,
    text TEXT, role TEXT, author TEXT, timestamp TEXT, metadata TEXT, digest BLOB,
    UNIQUE (app, user, session, name));
CREATE INDEX IF NOT EXISTS memories_by_change ON memories (app, user, number);
CREATE INDEX IF NOT EXISTS memories_by_name ON memories (app, user, name);
CREATE INDEX IF NOT EXISTS memories_by_digest ON memories (digest) WHERE digest IS NOT NULL;
CREATE INDEX IF NOT EXISTS memories_preferred ON memories (app, user, number) WHERE {_NAMED};
CREATE TABLE IF NOT EXISTS vectors (
    digest BLOB NOT NULL, embedder TEXT NOT NULL, vector BLOB NOT NULL, PRIMARY KEY (digest, embedder)) WITHOUT ROWID;
DROP TRIGGER IF EXISTS memories_gone;
DROP TABLE IF EXISTS blocks;
PRAGMA user_version = {_FORMAT};
COMMIT;
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """A remembered text.

    Attributes:
        name: unique among those of its user and session.
        session: the conversation it was said in, empty where it belongs to none.
        timestamp: ISO 8601.
        metadata: plain JSON that goes with it.
    """

    name: str
    text: str
    session: str = ""
    role: str = "user"
    author: str | None = None
    timestamp: str | None = None
    metadata: Mapping[str, JSON] = field(default_factory=dict)

    @property
    def time(self) -> float | None:
        """Seconds since 1970."""
        return seconds(self.timestamp)


def seconds(timestamp: str | None) -> float | None:
    """A time in seconds since 1970, in UTC where it names no zone; None where it is no time."""
    try:
        moment = datetime.fromisoformat(timestamp or "")
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


class Change(NamedTuple):
    """What became of a memory: the number of its row, and what it is found by; of a deleted one no text is left."""

    number: int
    session: str
    name: str
    text: str | None
    author: str | None
    timestamp: str | None


_FIELDS = tuple(field.name for field in fields(Memory))
_COLUMNS = ", ".join(_FIELDS)


class MemoryFile:
    """One file of memories. Threads and processes may share it.

    Args:
        path: a file, or a folder to hold one of the name `FILE_NAME`; None keeps all in this process.
        digest: of a memory, what its vectors are kept by.

    Raises:
        StoreError: the file cannot be opened, or is none of this format.
    """

    def __init__(self, path: str | os.PathLike[str] | None, digest: Callable[[Memory], bytes]) -> None:
        self.path = None if path is None else located(path)
        self._digest = digest
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._inherited: list[sqlite3.Connection] = []
        self._database = self._opened()

    def add(self, app: str, user: str, memories: Sequence[Memory], *, revive: bool = False) -> int:
        """Writes memories, all or none; the number of those that were new or other than before.

        Args:
            revive: whether what was deleted may be written again.
        """
        app, user = sound(app), sound(user)
        changed = 0
        with self._writing() as database:
            for memory in map(_sound, memories):
                values = [*(getattr(memory, name) for name in _FIELDS[:-1]), canonical_json(dict(memory.metadata))]
                there = database.execute(
                    f"""SELECT digest, text, {_COLUMNS} FROM memories
                    WHERE app = ? AND user = ? AND session = ? AND name = ?""",
                    (app, user, memory.session, memory.name),
                ).fetchone()
                digest, text, *before = there or (None, None)
                if there and (before == values or (text is None and not revive)):
                    continue
                database.execute(
                    f"REPLACE INTO memories (app, user, digest, {_COLUMNS}) VALUES ({_marks(3 + len(values))})",
                    (app, user, self._digest(memory), *values),
                )
                _forget_vectors(database, digest)
                changed += 1
        return changed

    def delete(self, app: str, user: str, *, name: str | None = None, session: str | None = None) -> int:
        """Deletes a user's memories of a name, of a session, of both, or all; the number of those there were."""
        wanted = {"app": app, "user": user, "name": name, "session": session}
        given = {column: sound(value) for column, value in wanted.items() if value is not None}
        where = " AND ".join(f"{column} = ?" for column in given)
        with self._writing() as database:
            rows = database.execute(
                f"SELECT app, user, session, name, digest FROM memories WHERE {where} AND text IS NOT NULL",
                tuple(given.values()),
            ).fetchall()
            for *kept, digest in rows:
                database.execute("REPLACE INTO memories (app, user, session, name) VALUES (?, ?, ?, ?)", kept)
                _forget_vectors(database, digest)
        if rows and self.path is not None:
            with self._reading() as database:
                # Takes deleted words out of the log; while others read it, the next one who can will.
                database.execute("PRAGMA busy_timeout = 0")
                database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                database.execute(f"PRAGMA busy_timeout = {int(1000 * _TIMEOUT_SECONDS)}")
        return len(rows)

    def changes(self, app: str, user: str, since: int, *, limit: int = _READ_AT_ONCE) -> list[Change]:
        """What changed after a number, in the order in which it did; at most so much."""
        query = f"""SELECT {", ".join(Change._fields)} FROM memories
            WHERE app = ? AND user = ? AND number > ? ORDER BY number LIMIT ?"""
        with self._reading() as database:
            return [Change._make(row) for row in database.execute(query, (sound(app), sound(user), since, limit))]

    def read(self, app: str, user: str, names: Iterable[tuple[str, str]]) -> list[tuple[int, Memory]]:
        """Those of some memories that are there, by session and name, each behind the number of its row."""
        query = f"""SELECT number, {_COLUMNS} FROM memories
            WHERE app = ? AND user = ? AND session = ? AND name = ? AND text IS NOT NULL"""
        whose = (sound(app), sound(user))
        with self._reading() as database:
            rows = [database.execute(query, (*whose, *name)).fetchone() for name in names]
        return [(row[0], _memory(row[1:])) for row in rows if row is not None]

    def preferences(self, app: str, user: str) -> list[Memory]:
        """A user's preferences, the newest 20 first: what was written with a `kind` that says so; the longest lack."""
        query = f"""SELECT {_COLUMNS} FROM memories
            WHERE app = ? AND user = ? AND {_NAMED} AND length(text) <= ? ORDER BY number DESC LIMIT ?"""
        with self._reading() as database:
            rows = database.execute(query, (sound(app), sound(user), _LONGEST_PREFERENCE, _MOST_NAMED))
            preferences = (memory for memory in map(_memory, rows) if is_preference(memory.metadata))
            return list(islice(preferences, _MOST_PREFERENCES))

    def users(self) -> list[tuple[str, str, int]]:
        """App, user and number of memories of all that have any, in order."""
        with self._reading() as database:
            return database.execute(
                "SELECT app, user, count(*) FROM memories WHERE text IS NOT NULL GROUP BY app, user ORDER BY app, user"
            ).fetchall()

    def vectors(self, embedder: str, digests: Sequence[bytes]) -> dict[bytes, bytes]:
        """The vectors that are kept, by digest."""
        found: dict[bytes, bytes] = {}
        with self._reading() as database:
            for first in range(0, len(digests), _AT_ONCE):
                some = digests[first : first + _AT_ONCE]
                query = f"SELECT digest, vector FROM vectors WHERE embedder = ? AND digest IN ({_marks(len(some))})"
                found.update(database.execute(query, (embedder, *some)))
        return found

    def keep_vectors(self, embedder: str, vectors: Mapping[bytes, bytes]) -> None:
        """Keeps vectors of memories that are still there; those that the file cannot take are made again."""
        with contextlib.suppress(StoreError), self._reading() as connection:
            connection.execute("PRAGMA synchronous = NORMAL")  # a vector that a power cut takes is made again
            try:
                with self._writing() as database:
                    database.executemany(
                        "INSERT OR IGNORE INTO vectors SELECT ?1, ?2, ?3"
                        " WHERE EXISTS (SELECT 1 FROM memories WHERE digest = ?1)",
                        [(digest, embedder, vector) for digest, vector in vectors.items()],
                    )
            finally:
                connection.execute("PRAGMA synchronous = FULL")

    def close(self) -> None:
        with self._lock:
            self._database.close()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction that is durable when it ends, and has not been where it fails."""
        with self._reading() as database:
            database.execute("BEGIN IMMEDIATE")
            try:
                yield database
                database.execute("COMMIT")
            finally:
                if database.in_transaction:
                    database.execute("ROLLBACK")

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            if self.path is not None and self._process != os.getpid():
                # A fork must not use its parent's connection, nor close it, which would drop the parent's locks.
                self._inherited.append(self._database)
                self._database, self._process = self._opened(), os.getpid()
            try:
                yield self._database
            except sqlite3.Error as error:
                raise StoreError(f"the memories in {self.path or 'this process'} cannot be used: {error}") from error

    def _opened(self) -> sqlite3.Connection:
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        while True:
            try:
                return _connected(self.path)
            except (sqlite3.Error, OSError) as error:
                # Turning the log on does not wait for another process that does so, too.
                if "locked" not in str(error) or time.monotonic() > deadline:
                    raise StoreError(f"the memories in {self.path} cannot be opened: {error}") from error
                time.sleep(0.01)


def located(path: str | os.PathLike[str]) -> Path:
    """The file that a path means: itself, or the one in the folder that it is or, having no suffix, is going to be."""
    found = Path(path).expanduser()
    return found / FILE_NAME if found.is_dir() or not (found.suffix or found.exists()) else found


class _Connection(sqlite3.Connection):
    """Closed with the last reference to it: services of an app that ends are not all closed by hand."""

    def __del__(self) -> None:
        self.close()


def _connected(path: Path | None) -> sqlite3.Connection:
    """A connection to the file, with its tables made.

    Raises:
        StoreError: the file is of another format.
    """
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
    database = sqlite3.connect(
        path or ":memory:",
        timeout=_TIMEOUT_SECONDS,
        isolation_level=None,
        check_same_thread=False,
        factory=_Connection,
    )
    try:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        database.execute("PRAGMA secure_delete = ON")
        (format_,) = database.execute("PRAGMA user_version").fetchone()
        if format_ == _FORMAT:
            return database
        tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if format_ not in (0, _FORMER) or tables - {"memories", "vectors", "blocks", "sqlite_sequence"}:
            raise StoreError(f"{path} holds something else than memories of format {_FORMAT}: give a file of its own")
        database.executescript(_SCHEMA)
    except BaseException:
        database.close()
        raise
    return database


def _forget_vectors(database: sqlite3.Connection, digest: bytes | None) -> None:
    """Deletes the vectors of a content that no memory has any more."""
    database.execute(
        "DELETE FROM vectors WHERE digest = ?1 AND NOT EXISTS (SELECT 1 FROM memories WHERE digest = ?1)", (digest,)
    )


def _marks(count: int) -> str:
    return ", ".join("?" * count)


def _memory(row: Sequence[Any]) -> Memory:
    *values, metadata = row
    return Memory(**dict(zip(_FIELDS, (*values, json.loads(metadata)), strict=True)))


def _sound(memory: Memory) -> Memory:
    """The memory without lone surrogates, which the file cannot hold."""
    author = None if memory.author is None else sound(memory.author)
    name, text, session = sound(memory.name), sound(memory.text), sound(memory.session)
    return replace(memory, name=name, text=text, session=session, author=author)
