"""The texts of all users in one SQLite file, and what changed in it since it was last read.

Each write is one transaction and durable when it returns. Every row has a number that only grows: what is written
anew gets a new one, so the rows above a number are the changes since. Of what is deleted the name stays, without a
word of its content, so that an index elsewhere learns of it and a session that is added again does not bring it back.
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
from pathlib import Path
from typing import Any

from aether_context.canonical import JSON, canonical_json
from aether_context.errors import StoreError
from aether_context.tokens.vocabulary import sound

FILE_NAME = "memories.sqlite"
"""The file's name where a folder is given."""

_FORMAT = 1
_TIMEOUT_SECONDS = 30.0
_AT_ONCE = 500
_TABLES = (
    """CREATE TABLE IF NOT EXISTS memories (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        app TEXT NOT NULL, user TEXT NOT NULL, session TEXT NOT NULL, name TEXT NOT NULL,
        text TEXT, role TEXT, author TEXT, timestamp TEXT, metadata TEXT, digest BLOB,
        UNIQUE (app, user, session, name))""",
    "CREATE INDEX IF NOT EXISTS memories_by_change ON memories (app, user, number)",
    "CREATE INDEX IF NOT EXISTS memories_by_name ON memories (app, user, name)",
    "CREATE INDEX IF NOT EXISTS memories_by_digest ON memories (digest) WHERE digest IS NOT NULL",
    """CREATE TABLE IF NOT EXISTS vectors (
        digest BLOB NOT NULL, embedder TEXT NOT NULL, vector BLOB NOT NULL, PRIMARY KEY (digest, embedder))
        WITHOUT ROWID""",
)


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
    """What became of one memory: its content now, or None where it was deleted."""

    number: int
    session: str
    name: str
    memory: Memory | None


_COLUMNS = ", ".join(one.name for one in fields(Memory))
_KEY = "app = ? AND user = ? AND session = ? AND name = ?"


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
        with self._writing() as database:
            return sum(self._put(database, app, user, _sound(one), revive) for one in memories)

    def delete(self, app: str, user: str, *, name: str | None = None, session: str | None = None) -> int:
        """Deletes a user's memories of a name, of a session, of both, or all; the number of those there were."""
        wanted = {"app": app, "user": user, "name": name, "session": session}
        given = {column: sound(value) for column, value in wanted.items() if value is not None}
        where = " AND ".join(f"{column} = ?" for column in given) + " AND text IS NOT NULL"
        with self._writing() as database:
            rows = database.execute(
                f"SELECT session, name, digest FROM memories WHERE {where}", tuple(given.values())
            ).fetchall()
            for held, called, digest in rows:
                database.execute(
                    "REPLACE INTO memories (app, user, session, name) VALUES (?, ?, ?, ?)",
                    (given["app"], given["user"], held, called),
                )
                _forget_vectors(database, digest)
        if rows and self.path is not None:
            self._clear_log()
        return len(rows)

    def changes(self, app: str, user: str, since: int) -> list[Change]:
        """What changed after a number, in the order in which it did."""
        with self._reading() as database:
            rows = database.execute(
                f"SELECT number, {_COLUMNS} FROM memories WHERE app = ? AND user = ? AND number > ? ORDER BY number",
                (sound(app), sound(user), since),
            ).fetchall()
        return [
            Change(number=number, name=row[0], session=row[2], memory=None if row[1] is None else _memory(row))
            for number, *row in rows
        ]

    def read(self, app: str, user: str, keys: Sequence[tuple[str, str]]) -> dict[tuple[str, str], Memory]:
        """Those of some memories, by session and name, that are there."""
        with self._reading() as database:
            rows = [
                database.execute(
                    f"SELECT {_COLUMNS} FROM memories WHERE {_KEY} AND text IS NOT NULL",
                    (sound(app), sound(user), *key),
                ).fetchone()
                for key in keys
            ]
        return {key: _memory(row) for key, row in zip(keys, rows, strict=True) if row is not None}

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
                marks = ", ".join("?" * len(some))
                query = f"SELECT digest, vector FROM vectors WHERE embedder = ? AND digest IN ({marks})"
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

    def close(self) -> None:
        with self._lock:
            self._database.close()

    def _put(self, database: sqlite3.Connection, app: str, user: str, memory: Memory, revive: bool) -> bool:
        key = (app, user, memory.session, memory.name)
        held = database.execute(f"SELECT {_COLUMNS}, digest FROM memories WHERE {_KEY}", key).fetchone()
        row = _row(memory)
        if held is not None and (list(held[:-1]) == row or (held[1] is None and not revive)):
            return False
        marks = ", ".join("?" * (len(row) + 3))
        database.execute(
            f"REPLACE INTO memories (app, user, {_COLUMNS}, digest) VALUES ({marks})",
            (app, user, *row, self._digest(memory)),
        )
        if held is not None:
            _forget_vectors(database, held[-1])
        return True

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

    def _clear_log(self) -> None:
        """Takes deleted words out of the log; while others read it, the next one who can will."""
        with self._reading() as database:
            database.execute("PRAGMA busy_timeout = 0")
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            database.execute(f"PRAGMA busy_timeout = {int(1000 * _TIMEOUT_SECONDS)}")


def located(path: str | os.PathLike[str]) -> Path:
    """The file that a path means: itself, or the one in the folder that it is or, having no suffix, is going to be."""
    found = Path(path).expanduser()
    return found / FILE_NAME if found.is_dir() or not (found.suffix or found.exists()) else found


def _connected(path: Path | None) -> sqlite3.Connection:
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
    database = sqlite3.connect(
        path or ":memory:", timeout=_TIMEOUT_SECONDS, isolation_level=None, check_same_thread=False
    )
    try:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        database.execute("PRAGMA secure_delete = ON")
        _prepare(database, path)
    except BaseException:
        database.close()
        raise
    return database


def _prepare(database: sqlite3.Connection, path: Path | None) -> None:
    """Makes the tables of a new file.

    Raises:
        StoreError: the file is of another format.
    """
    (held,) = database.execute("PRAGMA user_version").fetchone()
    if held == _FORMAT:
        return
    tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if held or tables - {"memories", "vectors", "sqlite_sequence"}:
        raise StoreError(f"{path} holds something else than memories of format {_FORMAT}: give a file of its own")
    database.execute("BEGIN IMMEDIATE")
    for table in _TABLES:
        database.execute(table)
    database.execute(f"PRAGMA user_version = {_FORMAT}")
    database.execute("COMMIT")


def _forget_vectors(database: sqlite3.Connection, digest: bytes | None) -> None:
    """Deletes the vectors of a content that no memory has any more."""
    database.execute(
        "DELETE FROM vectors WHERE digest = ?1 AND NOT EXISTS (SELECT 1 FROM memories WHERE digest = ?1)", (digest,)
    )


def _row(memory: Memory) -> list[str | None]:
    return [
        memory.name,
        memory.text,
        memory.session,
        memory.role,
        memory.author,
        memory.timestamp,
        canonical_json(dict(memory.metadata)),
    ]


def _memory(row: Sequence[Any]) -> Memory:
    name, text, session, role, author, timestamp, metadata = row
    return Memory(
        name=name,
        text=text,
        session=session,
        role=role,
        author=author,
        timestamp=timestamp,
        metadata=json.loads(metadata),
    )


def _sound(memory: Memory) -> Memory:
    """The memory without lone surrogates, which the file cannot hold."""
    return replace(
        memory,
        name=sound(memory.name),
        text=sound(memory.text),
        session=sound(memory.session),
        author=None if memory.author is None else sound(memory.author),
    )
