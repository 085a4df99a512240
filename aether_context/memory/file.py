"""Memories in one SQLite file, or in this process alone.

A process keeps an index of each user it is asked about. What is written anew gets a number above all that there were,
so that an index takes in what lies above its last; and where it holds more then than the file, something was deleted.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from aether_context.errors import StoreError
from aether_context.memory.backend import Backend
from aether_context.memory.records import Candidates, MemoryRow, Remembered, made_by
from aether_context.retrieval.embedders import Embedder, Rows

logger = logging.getLogger("aether_context")

MANY = 100_000
"""A user with more memories than this is better served by PostgreSQL than by a file."""

_FORMAT = 1
_TIMEOUT_SECONDS = 30
_MOST_KEPT = 1_000_000
"""Memories in the indexes of all users that a process keeps, of 450 to 750 bytes each."""
_TABLES = f"""
CREATE TABLE owners (owner text PRIMARY KEY, who text NOT NULL);
CREATE TABLE memories (
    number integer PRIMARY KEY AUTOINCREMENT, owner text NOT NULL, named int NOT NULL, thread int NOT NULL,
    standing int NOT NULL, said_at real, record text NOT NULL, terms blob NOT NULL, embedder int NOT NULL, vector blob,
    UNIQUE (owner, named, thread));
CREATE INDEX by_owner ON memories (owner);
CREATE INDEX by_embedder ON memories (owner, embedder);
CREATE INDEX by_standing ON memories (owner) WHERE standing;
CREATE TABLE forgotten (owner text, named int, thread int, PRIMARY KEY (owner, named, thread));
PRAGMA user_version = {_FORMAT}
"""
_INSERT = f"""INSERT INTO memories (number, owner, {", ".join(MemoryRow._fields)})
    VALUES (?, ?{", ?" * len(MemoryRow._fields)})"""


class MemoryFile(Backend):
    """One file, which threads and processes may share.

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
        self._indexes: dict[str, Candidates] = {}  # the one that was asked last at the end
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._inherited: list[sqlite3.Connection] = []
        self._connection = self._opened()

    @contextlib.contextmanager
    def transaction(self, owner: str = "") -> Iterator[sqlite3.Cursor]:
        """Groups writes; all of them are on the disk when it ends."""
        with self._lock:
            if self.path is not None and self._process != os.getpid():
                # A fork must not use its parent's connection, nor close it, which would drop the parent's locks.
                self._inherited.append(self._connection)
                self._indexes.clear()
                self._connection, self._process = self._opened(), os.getpid()
            try:
                with _transaction(self._connection, "IMMEDIATE" if owner else "DEFERRED") as cursor:
                    yield cursor
            except sqlite3.Error as error:
                raise StoreError(f"the memories in {self.name} cannot be used: {error}") from error

    def insert(self, cursor: sqlite3.Cursor, owner: str, rows: Sequence[MemoryRow]) -> None:
        # By the clock, a backup that was put back does not give numbers again that indexes know.
        (last,) = cursor.execute("SELECT max(seq, 0) FROM sqlite_sequence").fetchone() or (0,)
        first = max(last + 1, time.time_ns())
        cursor.executemany(_INSERT, [(number, owner, *row) for number, row in enumerate(rows, first)])

    def delete(self, owner: str, *, named: int | None, thread: int | None) -> int:
        deleted = super().delete(owner, named=named, thread=thread)
        if deleted and self.path:
            with self._lock:  # out of the log, too; while others read it, the next one who can will
                for pragma in ("busy_timeout = 0", "wal_checkpoint(TRUNCATE)", f"busy_timeout = {_TIMEOUT_SECONDS}000"):
                    self._connection.execute(f"PRAGMA {pragma}").fetchall()
        return deleted

    def search(
        self, owner: str, question: str, vector: Rows, limit: int, without_thread: int | None = None
    ) -> list[Remembered]:
        """The best memories for a masked query, as of `Candidates.ranked`."""
        query = f"SELECT number, record FROM memories WHERE owner = ? AND number IN ({self.numbers})"

        def records_of(numbers: list[int]) -> dict[int, str]:
            return dict(self.read(query, owner, json.dumps(numbers)))

        with self.transaction():
            return self._index(owner).ranked(question, vector, limit, without_thread, records_of)

    def close(self) -> None:
        """Closes the file."""
        with self._lock:
            self._connection.close()

    def _index(self, owner: str) -> Candidates:
        """An owner's index as the rows are now; those of others that were asked longest ago make room for it."""
        version = (*self.read("PRAGMA data_version"), self._connection.total_changes)
        index = self._indexes.pop(owner, None)
        if index is None or index.version != version:
            counts = "SELECT count(*), total(embedder <> ?) FROM memories WHERE owner = ?"
            ((count, lacking),) = self.read(counts, made_by(self._embedder), owner)
            index = self._followed(index or Candidates(self._embedder), owner, count)
            if index.lacking != lacking:  # vectors were written to rows that it knows
                index = self._followed(Candidates(self._embedder), owner, count)
            index.version = version
        total = sum(len(other.numbers) for other in (index, *self._indexes.values()))
        while self._indexes and (len(self._indexes) >= self._max_users or total > _MOST_KEPT):
            total -= len(self._indexes.pop(next(iter(self._indexes))).numbers)
        self._indexes[owner] = index
        return index

    def _followed(self, index: Candidates, owner: str, count: int) -> Candidates:
        columns = "number, thread, said_at, terms, embedder, vector"
        query = f"SELECT {columns} FROM memories WHERE owner = ? AND number > ? ORDER BY number"
        size = len(index.numbers)
        index.take(self.read(query, owner, int(index.numbers[-1]) if size else 0))
        if len(index.numbers) > count:
            there = [number for (number,) in self.read("SELECT number FROM memories WHERE owner = ?", owner)]
            index.keep(np.isin(index.numbers, there))
        if size <= MANY < count and self.path:
            logger.warning(
                "a user has %d memories in %s: past %d a file is slow to open and to search; "
                'HybridMemoryService("postgresql://...") serves more machines',
                *(count, self.name, MANY),
            )
        return index

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
            for folder in (*reversed(self.path.parent.parents), self.path.parent):
                if not folder.exists():
                    folder.mkdir(mode=0o700, exist_ok=True)
            os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))  # what SQLite puts beside it has the same mode
        connection = sqlite3.connect(
            self.path or ":memory:",
            timeout=_TIMEOUT_SECONDS,
            isolation_level=None,
            check_same_thread=False,
            factory=_Connection,
        )
        for pragma in ("journal_mode = WAL", "synchronous = FULL", "secure_delete = ON"):
            connection.execute(f"PRAGMA {pragma}")
        version = "PRAGMA user_version"
        if connection.execute(version).fetchone() != (_FORMAT,):  # else nobody has to wait for another's writes
            with _transaction(connection, "IMMEDIATE") as cursor:
                is_new = not cursor.execute("SELECT 1 FROM sqlite_master WHERE type = 'table'").fetchone()
                if not is_new and cursor.execute(version).fetchone() != (_FORMAT,):
                    raise StoreError(f"{self.name} holds something else than memories: give a file of its own")
                for statement in _TABLES.split(";") if is_new else ():
                    cursor.execute(statement)
        return connection


class _Connection(sqlite3.Connection):
    """Closed with the last reference to it: services of an app that ends are not all closed by hand."""

    def __del__(self) -> None:
        self.close()


def memory_path(path: str | os.PathLike[str]) -> Path:
    """The file that a path means: itself, or the one in the folder that it is or, having no suffix, is going to be."""
    file = Path(os.path.expanduser(path))
    return file / "memories.sqlite" if os.path.isdir(file) or not (file.suffix or os.path.exists(file)) else file


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection, kind: str) -> Iterator[sqlite3.Cursor]:
    if connection.in_transaction:
        yield connection.cursor()
        return
    connection.execute(f"BEGIN {kind}")
    try:
        yield connection.cursor()
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
