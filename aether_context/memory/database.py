"""The texts of all users in one SQLite file, and what changed in it since it was last read.

Each write is one transaction and durable when it returns. Every row has a number that only grows: what is written
anew gets a new one, so the rows above a number are the changes since, and remembers its first one, by which an index
knows it. Of what is deleted the name stays, without a word of its content, so that an index elsewhere learns of it and
a session that is added again does not bring it back.

Beside the rows lie blocks: what an index made of runs of rows, so that it need not be made again. A row that goes, by
whatever statement, takes the blocks along that it is part of.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

from aether_context.canonical import JSON, canonical_json, hash_bytes
from aether_context.errors import StoreError
from aether_context.text.spellings import is_preference
from aether_context.tokens.counters import sound

FILE_NAME = "memories.sqlite"
"""The file's name where a folder is given."""

_FORMAT = 2
_TIMEOUT_SECONDS = 30.0
_AT_ONCE = 500
_NEVER = 2**63 - 1
_MOST_NAMED, _MOST_PREFERENCES, _LONGEST_PREFERENCE = 20_000, 20, 2_000
_NAMED = "(instr(lower(metadata), 'pref') > 0 OR instr(lower(metadata), 'standing') > 0)"
"""What the metadata of a preference cannot lack; SQLite uses an index only by the same words."""
_SCHEMA = f"""
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS memories (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    app TEXT NOT NULL, user TEXT NOT NULL, session TEXT NOT NULL, name TEXT NOT NULL,
    text TEXT, role TEXT, author TEXT, timestamp TEXT, metadata TEXT, digest BLOB, origin INTEGER,
    UNIQUE (app, user, session, name));
CREATE INDEX IF NOT EXISTS memories_by_change ON memories (app, user, number);
CREATE INDEX IF NOT EXISTS memories_by_name ON memories (app, user, name);
CREATE INDEX IF NOT EXISTS memories_by_digest ON memories (digest) WHERE digest IS NOT NULL;
CREATE INDEX IF NOT EXISTS memories_preferred ON memories (app, user, number) WHERE {_NAMED};
CREATE TABLE IF NOT EXISTS vectors (
    digest BLOB NOT NULL, embedder TEXT NOT NULL, vector BLOB NOT NULL, PRIMARY KEY (digest, embedder)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS blocks (
    id INTEGER PRIMARY KEY, app TEXT NOT NULL, user TEXT NOT NULL, made TEXT NOT NULL,
    first INTEGER NOT NULL, last INTEGER NOT NULL, rows INTEGER NOT NULL, digest TEXT NOT NULL, data BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS blocks_by_rows ON blocks (app, user, first, last, made, rows);
CREATE TRIGGER IF NOT EXISTS memories_gone AFTER DELETE ON memories BEGIN
    DELETE FROM blocks WHERE app = old.app AND user = old.user AND first <= old.number AND last >= old.number;
    END;
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
        """Seconds since 1970, in UTC where the timestamp names no zone; None where it is no time."""
        try:
            moment = datetime.fromisoformat(self.timestamp or "")
            return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What became of a memory: its row's number, that of its first row, and its content, None where it was deleted."""

    number: int
    origin: int
    memory: Memory | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Where a block lies: how many rows it is made of, and the numbers of the first and the last."""

    first: int
    last: int
    rows: int


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
                    f"""SELECT COALESCE(origin, number), digest, text, {_COLUMNS} FROM memories
                    WHERE app = ? AND user = ? AND session = ? AND name = ?""",
                    (app, user, memory.session, memory.name),
                ).fetchone()
                origin, digest, text, *before = there or (None, None, None)
                if there and (before == values or (text is None and not revive)):
                    continue
                database.execute(
                    f"REPLACE INTO memories (app, user, origin, digest, {_COLUMNS}) VALUES ({_marks(4 + len(values))})",
                    (app, user, origin, self._digest(memory), *values),
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
                f"""SELECT app, user, session, name, COALESCE(origin, number), digest FROM memories
                WHERE {where} AND text IS NOT NULL""",
                tuple(given.values()),
            ).fetchall()
            for *kept, digest in rows:
                database.execute(
                    "REPLACE INTO memories (app, user, session, name, origin) VALUES (?, ?, ?, ?, ?)", kept
                )
                _forget_vectors(database, digest)
        if rows and self.path is not None:
            with self._reading() as database:
                # Takes deleted words out of the log; while others read it, the next one who can will.
                database.execute("PRAGMA busy_timeout = 0")
                database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                database.execute(f"PRAGMA busy_timeout = {int(1000 * _TIMEOUT_SECONDS)}")
        return len(rows)

    def changes(self, app: str, user: str, since: int, *, before: int = _NEVER, limit: int = _NEVER) -> list[Change]:
        """What changed after a number and before another one, in the order in which it did; at most so much."""
        query = f"""SELECT number, COALESCE(origin, number), {_COLUMNS} FROM memories
            WHERE app = ? AND user = ? AND number > ? AND number < ? ORDER BY number LIMIT ?"""
        with self._reading() as database:
            rows = database.execute(query, (sound(app), sound(user), since, before, limit)).fetchall()
        return [
            Change(number=number, origin=origin, memory=None if row[1] is None else _memory(row))
            for number, origin, *row in rows
        ]

    def read(self, app: str, user: str, numbers: Sequence[int]) -> dict[int, Memory]:
        """Those of some memories, by the numbers of their rows, that are there."""
        query = f"""SELECT number, {_COLUMNS} FROM memories
            WHERE number IN (SELECT value FROM json_each(?)) AND app = ? AND user = ? AND text IS NOT NULL"""
        with self._reading() as database:
            rows = database.execute(query, (json.dumps(numbers), sound(app), sound(user))).fetchall()
        return {number: _memory(row) for number, *row in rows}

    def preferences(self, app: str, user: str) -> list[Memory]:
        """A user's preferences, the newest 20 first: what was written with a `kind` that says so; the longest lack."""
        query = f"""SELECT {_COLUMNS} FROM memories
            WHERE app = ? AND user = ? AND {_NAMED} AND length(text) <= ? ORDER BY number DESC LIMIT ?"""
        with self._reading() as database:
            rows = database.execute(query, (sound(app), sound(user), _LONGEST_PREFERENCE, _MOST_NAMED))
            preferences = (memory for memory in map(_memory, rows) if is_preference(memory.metadata))
            return list(islice(preferences, _MOST_PREFERENCES))

    def holds_more(self, app: str, user: str, count: int) -> bool:
        """Whether there are more rows of a user than so many."""
        query = "SELECT 1 FROM memories WHERE app = ? AND user = ? LIMIT 1 OFFSET ?"
        with self._reading() as database:
            return database.execute(query, (sound(app), sound(user), count)).fetchone() is not None

    def spans(self, app: str, user: str, made: str) -> list[Span]:
        """Where blocks lie, in the order of their rows.

        Args:
            made: names what made them.
        """
        query = "SELECT first, last, rows FROM blocks WHERE app = ? AND user = ? AND made = ? ORDER BY first, last"
        with self._reading() as database:
            rows = database.execute(query, (sound(app), sound(user), made)).fetchall()
        return [Span(first=first, last=last, rows=count) for first, last, count in rows]

    def block(self, app: str, user: str, made: str, span: Span) -> bytes | None:
        """The data of a block; None where it is not there any more, or is not what was written."""
        query = "SELECT data, digest FROM blocks WHERE app = ? AND user = ? AND made = ? AND first = ? AND last = ?"
        with self._reading() as database:
            row = database.execute(query, (sound(app), sound(user), made, span.first, span.last)).fetchone()
        return row[0] if row is not None and hash_bytes(row[0]) == row[1] else None

    def keep_block(self, app: str, user: str, made: str, span: Span, data: bytes) -> bool:
        """Keeps a block in the place of those that share rows with it; whether it was kept.

        It is not where one of its rows has gone.

        Args:
            made: names what made it: a JSON array that begins with the format. Blocks of other makings but of the same
                format stay beside it.
        """
        format_ = made.partition(",")[0]
        whose = (sound(app), sound(user), span.first, span.last)
        with self._writing() as database:
            (rows,) = database.execute(
                "SELECT count(text) FROM memories WHERE app = ? AND user = ? AND number BETWEEN ? AND ?", whose
            ).fetchone()
            if rows != span.rows:
                return False
            database.execute(
                """DELETE FROM blocks WHERE app = ? AND user = ? AND last >= ? AND first <= ?
                AND (made = ? OR substr(made, 1, ?) != ?)""",
                (*whose, made, len(format_), format_),
            )
            database.execute(
                "INSERT INTO blocks (app, user, first, last, made, rows, digest, data) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (*whose, made, span.rows, hash_bytes(data), data),
            )
        return True

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
        """Keeps vectors of memories that are still there."""
        with self._writing() as database:
            database.executemany(
                "INSERT OR IGNORE INTO vectors SELECT ?1, ?2, ?3"
                " WHERE EXISTS (SELECT 1 FROM memories WHERE digest = ?1)",
                [(digest, embedder, vector) for digest, vector in vectors.items()],
            )

    def again(self) -> MemoryFile:
        """The same file, opened once more."""
        return MemoryFile(self.path, self._digest)

    def close(self) -> None:
        with self._lock:
            self._database.close()

    @contextmanager
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

    @contextmanager
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
        database.execute("PRAGMA recursive_triggers = ON")  # else a row that is replaced goes without its trigger
        (format_,) = database.execute("PRAGMA user_version").fetchone()
        if format_ == _FORMAT:
            return database
        tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if format_ or tables - {"memories", "vectors", "blocks", "sqlite_sequence"}:
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
