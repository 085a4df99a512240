"""A local queue for writes that the store could not take. They are written in order as soon as it can.

The queue is an SQLite file: a write is on the disk when the call returns, and the next process goes on with what this
one left. A write that is damaged, or whose path another file has taken, is moved to the table ``aside`` of the same
file, so that it does not block those behind it.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from aether_context.canonical import hash_bytes, hash_json, plain, short
from aether_context.errors import StoreError
from aether_context.store.files import Files

if TYPE_CHECKING:
    import sqlite3

_R = TypeVar("_R")

logger = logging.getLogger("aether_context")

FOLDER = "AETHER_CONTEXT_SPOOL"
"""The environment variable that names the folder of spools; ``off`` turns them off."""

_LEAST_FREE_BYTES = 256 * 2**20
_MOST_TRIES = 3
_BUSY_SECONDS = 10.0
_TIMEOUT_SECONDS = 5.0
_FIRST_PAUSE_SECONDS, _LAST_PAUSE_SECONDS = 0.5, 10.0
_OUTAGE_FLUSH_SECONDS = 0.5

_TABLES = """
CREATE TABLE IF NOT EXISTS waiting (
    number INTEGER PRIMARY KEY AUTOINCREMENT, path TEXT NOT NULL UNIQUE, exclusive INTEGER NOT NULL,
    data BLOB NOT NULL, hash TEXT NOT NULL, tries INTEGER NOT NULL DEFAULT 0);
CREATE TABLE IF NOT EXISTS aside (
    number INTEGER PRIMARY KEY, path TEXT NOT NULL, data BLOB NOT NULL, reason TEXT NOT NULL);
"""


class Write(IntEnum):
    """What a write does where its path exists: replace the file, leave it, or extend it where the data begins with it.

    A write with ``CREATE`` that waited also extends the file.
    """

    REPLACE = 0
    CREATE = 1
    EXTEND = 2


class Spool:
    """Writes that wait for one store, in a file that processes may share. It leaves 256 MB of its disk free.

    Each method raises `StoreError` where the file cannot be used.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, path: str, data: bytes, write: Write) -> bool:
        """Adds a write to the end of the queue; False where a write to the same path waits, which then stays.

        One that replaces or extends a file gives its data to the write that waits.
        """
        with self._open() as database:
            free = shutil.disk_usage(self.path.parent).free
            if free - len(data) < _LEAST_FREE_BYTES:
                raise StoreError(f"{self.path}: its disk is full, with {free:,} bytes left: free some, or {FOLDER}")
            on_conflict = (
                "NOTHING" if write is Write.CREATE else "UPDATE SET data = excluded.data, hash = excluded.hash"
            )
            added = database.execute(
                "INSERT INTO waiting (path, exclusive, data, hash) VALUES (?, ?, ?, ?) "
                f"ON CONFLICT (path) DO {on_conflict}",
                (path, write, data, hash_bytes(data)),
            )
            return added.rowcount > 0

    def is_empty(self) -> bool:
        return not self.ask("SELECT 1 FROM waiting LIMIT 1")

    def paths(self) -> dict[str, int]:
        """The paths of the writes that wait or were set aside, each with its size in bytes."""
        held = "SELECT path, data FROM waiting UNION ALL SELECT path, data FROM aside"
        return dict(self.ask(f"SELECT path, max(length(data)) FROM ({held}) GROUP BY path"))

    def drop(self, path: str) -> None:
        """Removes the writes to a path from the queue and from what was set aside."""
        self.ask("DELETE FROM waiting WHERE path = ?", path)
        self.ask("DELETE FROM aside WHERE path = ?", path)

    def aside(self) -> list[tuple[str, str]]:
        """The paths of the writes that were set aside, each with the reason."""
        return self.ask("SELECT path, reason FROM aside ORDER BY number")

    def ask(self, statement: str, *values: object) -> list[Any]:
        """The rows that an SQL statement returns; none where there is no file yet."""
        if not self.path.exists():
            return []
        with self._open() as database:
            return database.execute(statement, values).fetchall()

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """A transaction, committed at the end."""
        import sqlite3

        try:
            with closing(self._connect()) as database, database:
                yield database
        except (sqlite3.DatabaseError, OSError) as error:
            raise StoreError(f"{self.path} cannot be used: {error}") from error

    def _connect(self) -> sqlite3.Connection:
        import sqlite3

        if not self.path.exists():
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))
        database = sqlite3.connect(self.path, timeout=_BUSY_SECONDS)
        try:
            database.execute("PRAGMA secure_delete = ON")
            database.executescript(_TABLES)
        except sqlite3.DatabaseError as error:
            database.close()
            if isinstance(error, sqlite3.OperationalError):  # it is in use, or cannot be written
                raise
            aside = self.path.with_suffix(".damaged")
            os.replace(self.path, aside)
            logger.error("%s was damaged: what waited in it is in %s", self.path, aside)
            return self._connect()
        return database


def spool_of(files: Files) -> Spool | None:
    """The spool of a store, by its URL and options; None for a store in memory, or where spools are off."""
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    folder = os.environ.get(FOLDER) or f"{state}/aether-context/spool"
    if files.is_in_memory or folder == "off":
        return None
    name = short(hash_json([files.root if files.is_local else files.url, plain(files.options)]), 16)
    return Spool(Path(folder).expanduser() / f"{name}.sqlite")


class SpooledFiles(Files):
    """Files that take every write: a write that the store cannot take waits in the spool until it can.

    While any write waits, all later ones wait behind it, so that a manifest never arrives before the blobs that it
    names. A store that failed is tried again after half a second, then after longer and longer pauses of up to ten.
    While ``spares_store`` is set, for a store that is too slow, writes go to the spool at once. A write that neither
    store nor spool takes is a `StoreError`.
    """

    def __init__(self, files: Files, spool: Spool) -> None:
        super().__init__(files.url, files.options, _TIMEOUT_SECONDS)
        self.spool = spool
        self.spares_store = False
        self._is_down = False
        self._warned = False
        self._retry_at = 0.0
        self._pause = _FIRST_PAUSE_SECONDS
        self._rounds = 0
        self._nudge = threading.Event()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    def create(self, path: str, data: bytes) -> bool:
        return self._write(super().create, path, data, Write.CREATE) is not False

    def replace(self, path: str, data: bytes) -> None:
        self._write(super().replace, path, data, Write.REPLACE)

    def extend(self, path: str, data: bytes) -> None:
        self._write(self._extend, path, data, Write.EXTEND)

    def _extend(self, path: str, data: bytes) -> bool | None:
        """`extend` in the store itself; False where the path has other content, None where there is no file."""
        stored = self._stored(path)
        if stored is None:
            return None
        if len(stored) < len(data) and data.startswith(stored):
            super().replace(path, data)
            return True
        return stored.startswith(data)  # another process may have been faster, with more

    def _write(self, operation: Callable[[str, bytes], _R], path: str, data: bytes, write: Write) -> _R | bool:
        may_try = not self.spares_store and (not self._is_down or time.monotonic() > self._retry_at)
        if may_try and self._is_empty():
            try:
                with _contained():
                    result = operation(path, data)
            except StoreError as error:
                self._mark_down(error)
            else:
                self._is_down = False
                return result
        added = self.spool.add(path, data, write)
        self.deliver()
        return added

    def read(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        waiting = [] if self._is_empty() else self.spool.ask("SELECT data FROM waiting WHERE path = ?", path)
        data: bytes = waiting[0][0][start:end] if waiting else super().read(path, start, end)
        return data

    def lacks(self, path: str) -> bool:
        return not self._is_down and not self.spares_store and super().lacks(path)

    def deliver(self) -> None:
        """Starts a thread that writes what waits to the store."""
        if self._is_empty():
            return
        with self._starting:
            if self._thread is None or not self._thread.is_alive():  # a forked process has no threads of its parent
                self._thread = threading.Thread(target=self._run, name="aether-context-spool", daemon=True)
                self._thread.start()

    def flush(self, timeout_seconds: float) -> bool:
        """Blocks until the spool is empty; False where that took too long or the store is down."""
        if self._is_down:
            timeout_seconds = min(timeout_seconds, _OUTAGE_FLUSH_SECONDS)
        deadline, rounds = time.monotonic() + timeout_seconds, self._rounds
        self._nudge.set()
        self.deliver()
        while not (empty := self._is_empty()):
            if time.monotonic() > deadline or (self._is_down and self._rounds > rounds):
                break
            time.sleep(0.01)
        return empty

    def set_aside(self) -> int:
        """How many writes were set aside; 0 where the spool cannot be read."""
        with suppress(StoreError):
            return sum(count for (count,) in self.spool.ask("SELECT count(*) FROM aside"))
        return 0

    def _is_empty(self) -> bool:
        """Whether nothing waits. A spool that cannot be read counts as empty, so that it blocks no write."""
        try:
            return self.spool.is_empty()
        except StoreError as error:
            if not self._warned:
                logger.error("the spool is left alone: %s", error)
            self._warned = True
            return True

    def _mark_down(self, error: Exception) -> None:
        if not self._is_down:
            logger.warning("packs wait in %s: %s", self.spool.path, error)
        self._is_down = True
        self._retry_at = time.monotonic() + self._pause

    def _run(self) -> None:
        while True:
            with self._starting:  # what is added from now on starts another thread
                if self._is_empty():
                    self._thread = None
                    return
            try:
                delivered = self._deliver_all()
            except StoreError as error:
                logger.error("what waits in %s cannot be written: %s", self.spool.path, error)
                delivered = False
            self._rounds += 1
            if delivered:
                logger.info("what waited in %s is in %s", self.spool.path, self.url)
            else:
                self._nudge.clear()
                self._nudge.wait(self._pause)
                self._pause = min(2 * self._pause, _LAST_PAUSE_SECONDS)

    def _deliver_all(self) -> bool:
        """Writes all that waits to the store, the oldest first; False where the store is down."""
        oldest = "SELECT number, path, exclusive, data, hash, tries FROM waiting ORDER BY number LIMIT 1"
        while waiting := self.spool.ask(oldest):
            number, path, write, data, digest, tries = waiting[0]
            fault = ""
            try:
                with _contained():
                    if hash_bytes(data) != digest:
                        fault = "it was damaged"
                    elif write == Write.REPLACE:
                        super().replace(path, data)
                    elif write == Write.EXTEND or not super().create(path, data):
                        extended = self._extend(path, data)
                        if extended is False:
                            fault = "another file is in its place"
                        elif extended is None and write == Write.CREATE:
                            raise StoreError(f"{path} was deleted in the moment when it was written")
            except StoreError as error:
                if not self._answers():
                    self._mark_down(error)
                    return False
                if tries < _MOST_TRIES:
                    self.spool.ask("UPDATE waiting SET tries = tries + 1 WHERE number = ?", number)
                    continue
                fault = str(error)
            if fault:
                logger.error("%s is set aside in %s: %s", path, self.spool.path, fault)
                self.spool.ask("INSERT OR REPLACE INTO aside VALUES (?, ?, ?, ?)", number, path, data, fault)
            # A write whose data was replaced meanwhile stays in the queue.
            self.spool.ask("DELETE FROM waiting WHERE number = ? AND hash = ?", number, digest)
            self._pause = _FIRST_PAUSE_SECONDS
        self._is_down = False
        return True

    def _answers(self) -> bool:
        """Whether the store can be read at all."""
        try:
            with _contained():
                self._stored(f"{self.root}/.asked")
        except StoreError:
            return False
        return True

    def _stored(self, path: str) -> bytes | None:
        """The bytes that the store itself has at a path, None where it has no file there."""
        try:
            return super().read(path)
        except FileNotFoundError:
            return None


@contextmanager
def _contained() -> Iterator[None]:
    """Turns `SystemExit` and `KeyboardInterrupt` in a thread of ours into `StoreError`. There they would not end the
    program, but silently end the thread."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as error:
        if threading.current_thread() is threading.main_thread():
            raise
        raise StoreError(f"the store's client raised {type(error).__name__}: {error}") from error
