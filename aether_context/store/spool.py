"""A local queue for writes that the store could not take. They are written in order as soon as it can.

The queue is an SQLite file: a write is on the disk when the call returns, and the next process goes on with what this
one left. A write that the store refuses while it takes others goes on waiting behind these. One that is damaged, or
whose path another file has taken, is moved to the table ``aside`` of the same file.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from aether_context.canonical import hash_bytes, hash_json, plain, short
from aether_context.errors import StoreError
from aether_context.store.files import LATE_SECONDS, Files

if TYPE_CHECKING:
    import sqlite3

_R = TypeVar("_R")

logger = logging.getLogger("aether_context")

FOLDER = "AETHER_CONTEXT_SPOOL"
"""The environment variable that names the folder of spools; ``off`` turns them off."""

_LEAST_FREE_BYTES = 256 * 2**20
_MOST_DELIVERED = 32
_BUSY_SECONDS = 10.0
TIMEOUT_SECONDS = 5.0
"""So long may a call of the store take that no run waits for, and so long what the model itself asks the store for."""
_FIRST_PAUSE_SECONDS, _REFUSED_PAUSE_SECONDS, _LAST_PAUSE_SECONDS = 0.5, 4.0, 10.0
_SPARE_SECONDS = 30.0
_CALM_SECONDS = 60.0

_TABLES = """
CREATE TABLE IF NOT EXISTS waiting (
    number INTEGER PRIMARY KEY AUTOINCREMENT, path TEXT NOT NULL UNIQUE, exclusive INTEGER NOT NULL,
    hash TEXT NOT NULL, refused INTEGER NOT NULL DEFAULT 0, data BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS turn ON waiting (refused, number);
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

    def holds_back(self) -> bool:
        """Whether a write waits that later ones wait behind."""
        return bool(self.ask("SELECT 1 FROM waiting WHERE refused = 0 LIMIT 1"))

    def paths(self) -> dict[str, int]:
        """The paths of the writes that wait or were set aside, each with its size in bytes."""
        held = "SELECT path, data FROM waiting UNION ALL SELECT path, data FROM aside"
        return dict(self.ask(f"SELECT path, max(length(data)) FROM ({held}) GROUP BY path"))

    def drop(self, path: str) -> None:
        """Removes the writes to a path from the queue and from what was set aside."""
        self.ask("DELETE FROM waiting WHERE path = ?", path)
        self.ask("DELETE FROM aside WHERE path = ?", path)

    def remove(self, delivered: Sequence[tuple[int, str]]) -> None:
        """Removes writes from the queue, by number and hash: one whose data was replaced meanwhile stays."""
        if delivered:
            with self._open() as database:
                database.executemany("DELETE FROM waiting WHERE number = ? AND hash = ?", delivered)

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
    One that took longer than ``LATE_SECONDS`` is spared for half a minute: what is to be written goes to the spool,
    and nobody waits for the thread that delivers it. A write that neither store nor spool takes is a `StoreError`.
    """

    def __init__(self, files: Files, spool: Spool) -> None:
        super().__init__(files.url, files.options, TIMEOUT_SECONDS)
        self.spool = spool
        self._is_down = False
        self._told = self._warned = False
        self._tell_at = self._direct_at = 0.0
        self._pause = _FIRST_PAUSE_SECONDS
        self._rounds = 0
        self._nudge = threading.Event()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    def seconds(self, size: int | None) -> float:
        """As of `Files` for the thread that delivers, and for whole files that are read: a model asked for them."""
        is_awaited = size is not None and threading.current_thread() is not self._thread
        return LATE_SECONDS if is_awaited else super().seconds(size)

    def create(self, path: str, data: bytes) -> bool:
        return self._write(super().create, path, data, Write.CREATE) is not False

    def replace(self, path: str, data: bytes) -> None:
        self._write(super().replace, path, data, Write.REPLACE)

    def extend(self, path: str, data: bytes) -> bool | None:
        return self._write(super().extend, path, data, Write.EXTEND)

    def _write(self, operation: Callable[[str, bytes], _R], path: str, data: bytes, write: Write) -> _R | bool:
        began = time.monotonic()
        if began > self._direct_at and not self._holds_back():
            try:
                result = operation(path, data)
            except StoreError as error:
                if time.monotonic() - began < LATE_SECONDS:
                    self._mark_down(error)
                else:
                    self.spare()
            else:
                if self._is_down and self._is_empty():
                    self._mark_up()
                return result
        added = self.spool.add(path, data, write)
        self.deliver()
        return added

    def spare(self) -> None:
        """Lets the spool take for a while what comes."""
        self._direct_at = time.monotonic() + _SPARE_SECONDS

    def read(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        waiting = [] if self._is_empty() else self.spool.ask("SELECT data FROM waiting WHERE path = ?", path)
        data: bytes = waiting[0][0][start:end] if waiting else super().read(path, start, end)
        return data

    def lacks(self, path: str) -> bool:
        return time.monotonic() > self._direct_at and super().lacks(path)

    def deliver(self) -> None:
        """Starts a thread that writes what waits to the store."""
        if self._is_empty():
            return
        with self._starting:
            if self._thread is None or not self._thread.is_alive():  # a forked process has no threads of its parent
                self._thread = threading.Thread(target=self._run, name="aether-context-spool", daemon=True)
                self._thread.start()
        if not self._is_down:
            self._nudge.set()

    def flush(self, timeout_seconds: float) -> bool:
        """Blocks until no write waits that the store takes; False where that took too long or the store is down."""
        deadline, rounds = time.monotonic() + timeout_seconds, self._rounds
        self._nudge.set()
        self.deliver()
        while self._holds_back():
            is_away = self.calls.hanging or (self._is_down and self._rounds > rounds)
            if is_away or time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        return True

    def missing(self) -> int:
        """How many writes were set aside or are refused; 0 where the spool cannot be read."""
        refused = "SELECT number FROM waiting WHERE refused > 0"
        with suppress(StoreError):
            return len(self.spool.ask(f"{refused} UNION ALL SELECT number FROM aside"))
        return 0

    def _holds_back(self) -> bool:
        return not self._is_empty() and self.spool.holds_back()

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
        self._is_down = True
        self._direct_at = max(self._direct_at, time.monotonic() + self._pause)
        self._tell(error)

    def _tell(self, error: Exception) -> None:
        """A line in the log for the first failure of an outage; one less than a minute later is of the same outage."""
        if not self._told and time.monotonic() >= self._tell_at:
            logger.warning("packs wait in %s: %s", self.spool.path, error)
            self._told = True

    def _mark_up(self) -> None:
        self._is_down = False
        self._pause = _FIRST_PAUSE_SECONDS
        if self._told:
            logger.info("what waited in %s is in %s", self.spool.path, self.url)
            self._told, self._tell_at = False, time.monotonic() + _CALM_SECONDS

    def _run(self) -> None:
        while True:
            with self._starting:  # what is added from now on starts another thread
                if self._is_empty():
                    self._thread = None
                    return
            delivered = False
            try:
                delivered = self._deliver_all()
            except StoreError as error:
                self._mark_down(error)
            self._rounds += 1
            if delivered:
                self._mark_up()
            else:
                self._nudge.clear()
                self._nudge.wait(self._pause)
                self._pause = min(2 * self._pause, _LAST_PAUSE_SECONDS)

    def _deliver_all(self) -> bool:
        """Writes all that waits to the store, the oldest first; False where it has to be tried again after a pause."""
        following = (
            "SELECT refused, number, path, exclusive, data, hash FROM waiting "
            "WHERE (refused, number) > (?, ?) ORDER BY refused, number LIMIT 1"
        )
        delivered: list[tuple[int, str]] = []
        last = (0, 0)
        try:
            while waiting := self.spool.ask(following, *last):
                refused, number, path, write, data, digest = waiting[0]
                try:
                    fault = self._deliver(path, write, data, digest)
                except StoreError as error:
                    if not self._is_refused(len(data), error):
                        return False
                    self.spool.ask("UPDATE waiting SET refused = refused + 1 WHERE number = ?", number)
                    if refused:
                        return False
                    continue
                if fault:
                    logger.error("%s is set aside in %s: %s", path, self.spool.path, fault)
                    self.spool.ask("INSERT OR REPLACE INTO aside VALUES (?, ?, ?, ?)", number, path, data, fault)
                delivered.append((number, digest))
                self._pause, last = _FIRST_PAUSE_SECONDS, (refused, number)
                if len(delivered) >= _MOST_DELIVERED:
                    self.spool.remove(delivered)
                    delivered, last = [], (0, 0)
        finally:
            self.spool.remove(delivered)
        return self.spool.is_empty()

    def _deliver(self, path: str, write: int, data: bytes, digest: str) -> str:
        """Writes to the store itself what waited; why that can never be, or nothing where it is there.

        A write that fails is tried once more at once: many a store fails now and then.
        """
        if hash_bytes(data) != digest:
            return "it was damaged"
        for is_last in (False, True):
            try:
                if write == Write.REPLACE:
                    super().replace(path, data)
                elif write == Write.EXTEND or not super().create(path, data):
                    extended = super().extend(path, data)
                    if extended is False:
                        return "another file is in its place"
                    if extended is None and write == Write.CREATE:
                        raise StoreError(f"{path} was deleted in the moment when it was written")
                break
            except StoreError:
                if is_last:
                    raise
        return ""

    def _is_refused(self, size: int, error: StoreError) -> bool:
        """Whether a write that failed goes on waiting behind all others: the store takes others of its size.

        That is told by a write, since a full disk can be read. The first one is tried until the pauses have grown, so
        that for a store that fails now and then it does not come after what follows on it.
        """
        try:
            self.try_writing(size)
        except StoreError:
            self._mark_down(error)
            return False
        self._tell(error)
        others = self.spool.ask("SELECT 1 FROM waiting WHERE refused > 0 LIMIT 1")
        return bool(others) or self._pause >= _REFUSED_PAUSE_SECONDS
