"""The rows of memories in one SQLite file, or in this process alone."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from aether_context.errors import StoreError
from aether_context.memory.rows import TABLES, Connection

T = TypeVar("T")

_FORMAT = 4
_TIMEOUT_SECONDS = 30.0


class MemoryFile:
    """One file. Threads and processes may share it.

    Args:
        path: None keeps all in this process.

    Raises:
        StoreError: the file cannot be opened, or is none of this format.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.name = "this process" if path is None else str(path)
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._inherited: list[sqlite3.Connection] = []
        self._connection = self._opened()

    def run(self, work: Callable[[Connection], T], *, owner: str = "", writes: bool = False) -> T:
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

    def purge(self) -> None:
        """Takes deleted words out of the log; while others read it, the next one who can will."""
        if self.path is None:
            return

        def truncate(connection: Connection) -> None:
            connection.execute("PRAGMA busy_timeout = 0")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            connection.execute(f"PRAGMA busy_timeout = {int(1000 * _TIMEOUT_SECONDS)}")

        self.run(truncate)

    def close(self) -> None:
        """Closes the file."""
        with self._lock:
            self._connection.close()

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

    def _prepare(self, connection: Connection) -> None:
        """Makes the tables."""
        found = _format(connection)  # another process may have been faster
        if found == _FORMAT:
            return
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if found or tables:
            raise StoreError(
                f"{self.name} holds something else than memories of format {_FORMAT}: give a file of its own"
            )
        for statement in TABLES.format(bytes="blob").split(";"):
            connection.execute(statement)
        connection.execute("CREATE INDEX memories_by_name ON memories (owner, name)")
        connection.execute(f"PRAGMA user_version = {_FORMAT}")


class _Connection(sqlite3.Connection):
    """Closed with the last reference to it: services of an app that ends are not all closed by hand."""

    def __del__(self) -> None:
        self.close()


def _written(connection: sqlite3.Connection, work: Callable[[Connection], T]) -> T:
    """What work in a transaction gives, which is durable when it ends, and has not been where it fails."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        found = work(connection)
        connection.execute("COMMIT")
        return found
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _format(connection: Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])
