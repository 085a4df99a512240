"""Writes that a store could not take wait in a local file, in their order, until it can.

The file is SQLite: what was added to it is on the disk, whole, when the call returns, in whatever process, and the next
process goes on with what one left behind. A write that arrives damaged, or finds another file in its place, is set
aside in the same file (table ``aside``), so that it holds nothing back.
"""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from aether_context.canonical import canonical_json, hash_bytes, hash_text, plain, short
from aether_context.errors import StoreError
from aether_context.store.files import Files

logger = logging.getLogger("aether_context")

FOLDER = "AETHER_CONTEXT_SPOOL"
"""The environment variable that names the folder of spools; ``off`` is none."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A write that waits. ``exclusive`` is whether the file must be new, ``tries`` how often it failed for itself."""

    number: int
    path: str
    exclusive: bool
    data: bytes
    hash: str
    tries: int


class Spool:
    """Writes that wait for one store. Any number of processes may share the file.

    Args:
        path: the file; its folder is made with the first write.
        most_bytes: it takes no more than this; None takes what the disk has, but for its last 256 MB.
    """

    def __init__(self, path: Path, most_bytes: int | None = None) -> None:
        self.path = path
        self._most_bytes = most_bytes

    def add(self, path: str, data: bytes, *, exclusive: bool) -> bool:
        """Puts a write behind the others; False where the same new file waits already.

        Raises:
            StoreError: the spool is full, or cannot be written.
        """
        with self._open() as database:
            self._check_room(database, len(data))
            instead = "NOTHING" if exclusive else "UPDATE SET data = excluded.data, hash = excluded.hash"
            added = database.execute(
                "INSERT INTO waiting (path, exclusive, data, hash) VALUES (?, ?, ?, ?) "
                f"ON CONFLICT (path) DO {instead}",
                (path, exclusive, data, hash_bytes(data)),
            )
            return added.rowcount > 0

    def _check_room(self, database: sqlite3.Connection, size: int) -> None:
        if self._most_bytes is None:
            free = shutil.disk_usage(self.path.parent).free
            if free - size < _LEAST_FREE_BYTES:
                raise StoreError(f"{self.path}: its disk is full, with {free:,} bytes left: free some, or {FOLDER}")
            return
        (taken,) = database.execute("SELECT COALESCE(SUM(LENGTH(data)), 0) FROM waiting").fetchone()
        if taken + size > self._most_bytes:
            raise StoreError(f"{self.path} is full with {taken:,} bytes: bring the store back, or free {FOLDER}")

    def read(self, path: str) -> bytes | None:
        """What waits to be written to a path; None where nothing does."""
        if not self.path.exists():
            return None
        with self._open() as database:
            found = database.execute("SELECT data FROM waiting WHERE path = ?", (path,)).fetchone()
        return None if found is None else bytes(found[0])

    def first(self) -> Waiting | None:
        """The write that waits longest; None where none does."""
        if not self.path.exists():
            return None
        with self._open() as database:
            found = database.execute(
                "SELECT number, path, exclusive, data, hash, tries FROM waiting ORDER BY number LIMIT 1"
            ).fetchone()
        if found is None:
            return None
        number, path, exclusive, data, digest, tries = found
        return Waiting(number=number, path=path, exclusive=bool(exclusive), data=bytes(data), hash=digest, tries=tries)

    def is_empty(self) -> bool:
        if not self.path.exists():
            return True
        with self._open() as database:
            return database.execute("SELECT 1 FROM waiting LIMIT 1").fetchone() is None

    def done(self, write: Waiting) -> None:
        """Takes out a write that arrived, unless it was replaced meanwhile."""
        with self._open() as database:
            database.execute("DELETE FROM waiting WHERE number = ? AND hash = ?", (write.number, write.hash))

    def failed(self, write: Waiting) -> None:
        """Counts a failure of this write while the store took others."""
        with self._open() as database:
            database.execute("UPDATE waiting SET tries = tries + 1 WHERE number = ?", (write.number,))

    def set_aside(self, write: Waiting, reason: str) -> None:
        """Takes a write out of the queue and keeps it, with the reason."""
        with self._open() as database:
            database.execute(
                "INSERT OR REPLACE INTO aside VALUES (?, ?, ?, ?)", (write.number, write.path, write.data, reason)
            )
            database.execute("DELETE FROM waiting WHERE number = ?", (write.number,))

    def drop(self, path: str) -> None:
        """Takes out what waits to be written to a path."""
        if self.path.exists():
            with self._open() as database:
                database.execute("DELETE FROM waiting WHERE path = ?", (path,))

    def aside(self) -> list[tuple[str, str]]:
        """Paths of what was set aside, each with the reason."""
        if not self.path.exists():
            return []
        with self._open() as database:
            found: list[tuple[str, str]] = database.execute("SELECT path, reason FROM aside ORDER BY number").fetchall()
        return found

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """A transaction, committed at the end. A file that is no database makes place for a new one."""
        try:
            with closing(self._connect()) as database, database:
                yield database
        except (sqlite3.DatabaseError, OSError) as error:
            raise StoreError(f"{self.path} cannot be used: {error}") from error

    def _connect(self) -> sqlite3.Connection:
        try:
            return self._connected()
        except sqlite3.OperationalError:
            raise
        except sqlite3.DatabaseError:
            aside = self.path.with_suffix(".damaged")
            os.replace(self.path, aside)
            logger.error("%s was damaged: what waited in it is in %s", self.path, aside)
            return self._connected()

    def _connected(self) -> sqlite3.Connection:
        if not self.path.exists():
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))
        database = sqlite3.connect(self.path, timeout=_BUSY_SECONDS)
        try:
            database.executescript(_TABLES)
        except sqlite3.DatabaseError:
            database.close()
            raise
        return database


def spool_of(files: Files) -> Spool | None:
    """The spool of a store, by its URL and options; None for one in memory, or where there is to be none."""
    folder = os.environ.get(FOLDER) or Path(
        os.environ.get("XDG_STATE_HOME") or "~/.local/state", "aether-context", "spool"
    )
    if files.is_in_memory or str(folder) == "off":
        return None
    place = canonical_json([files.url if not files.is_local else files.root, plain(files.options)])
    return Spool(Path(folder).expanduser() / f"{short(hash_text(place), 16)}.sqlite")


class SpooledFiles(Files):
    """Files that take every write: what the store cannot take now waits in the spool, and is written when it can.

    While anything waits, all that follows waits behind it, so that what names something arrives after it. A store that
    failed is asked again after half a second, then after ever longer pauses of up to ten. A store that is too slow for
    what comes is spared in the same way: while ``spares_store`` is set, writes go to the spool at once.

    Raises:
        StoreError: neither the store nor the spool takes a write.
    """

    def __init__(self, files: Files, spool: Spool) -> None:
        super().__init__(files.url, files.options, _TIMEOUT_SECONDS)
        self.spool = spool
        self.spares_store = False
        self._is_down = False
        self._told = False
        self._ask_again = 0.0
        self._pause = _FIRST_PAUSE_SECONDS
        self._rounds = 0
        self._nudge = threading.Event()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._thread_process = 0

    def create(self, path: str, data: bytes) -> bool:
        if self._is_free():
            try:
                with _contained():
                    created = super().create(path, data)
            except StoreError as error:
                self._fell(error)
            else:
                self._is_down = False
                return created
        added = self.spool.add(path, data, exclusive=True)
        self.deliver()
        return added

    def replace(self, path: str, data: bytes) -> None:
        if self._is_free():
            try:
                with _contained():
                    super().replace(path, data)
            except StoreError as error:
                self._fell(error)
            else:
                self._is_down = False
                return
        self.spool.add(path, data, exclusive=False)
        self.deliver()

    def read(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        waits = None if self._is_empty() else self.spool.read(path)
        return super().read(path, start, end) if waits is None else waits[start:end]

    def deliver(self) -> None:
        """Begins to write what waits, in a thread of its own."""
        if self._is_empty():
            return
        with self._starting:
            alive = self._thread is not None and self._thread_process == os.getpid() and self._thread.is_alive()
            if not alive:
                self._thread_process = os.getpid()
                self._thread = threading.Thread(target=self._run, name="aether-context-spool", daemon=True)
                self._thread.start()

    def flush(self, timeout_seconds: float) -> bool:
        """Waits until nothing waits any more; False where that took too long or the store is down."""
        if self._is_down:
            timeout_seconds = min(timeout_seconds, _OUTAGE_FLUSH_SECONDS)
        until, rounds = time.monotonic() + timeout_seconds, self._rounds
        self._nudge.set()
        self.deliver()
        while not (empty := self._is_empty()):
            if time.monotonic() > until or (self._is_down and self._rounds > rounds):
                break
            time.sleep(0.01)
        return empty

    def _is_free(self) -> bool:
        """Whether a write may go to the store: nothing waits, and the store is up or may be asked once more."""
        if self.spares_store or (self._is_down and time.monotonic() <= self._ask_again):
            return False
        return self._is_empty()

    def _is_empty(self) -> bool:
        """Whether nothing waits; a spool that cannot be read stands in nobody's way."""
        try:
            return self.spool.is_empty()
        except StoreError as error:
            if not self._told:
                logger.error("the spool is left alone: %s", error)
            self._told = True
            return True

    def _fell(self, error: StoreError) -> None:
        if not self._is_down:
            logger.warning("packs wait in %s: %s", self.spool.path, error)
        self._is_down = True
        self._ask_again = time.monotonic() + self._pause

    def _run(self) -> None:
        while not self._is_over():
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

    def _is_over(self) -> bool:
        """Whether the thread may end; what is added from now on starts another one."""
        with self._starting:
            if self._is_empty():
                self._thread = None
                return True
        return False

    def _deliver_all(self) -> bool:
        """Writes what waits, the oldest first; False where the store is down."""
        while (write := self.spool.first()) is not None:
            try:
                with _contained():
                    reason = self._deliver(write)
            except StoreError as error:
                if not self._answers():
                    self._fell(error)
                    return False
                reason = str(error) if write.tries >= _MOST_TRIES else ""
                if not reason:
                    self.spool.failed(write)
                    continue
            if reason:
                logger.error("%s is set aside in %s: %s", write.path, self.spool.path, reason)
                self.spool.set_aside(write, reason)
            else:
                self.spool.done(write)
            self._pause = _FIRST_PAUSE_SECONDS
        self._is_down = False
        return True

    def _deliver(self, write: Waiting) -> str:
        """Writes one; why it has to be set aside, empty where it arrived."""
        if hash_bytes(write.data) != write.hash:
            return "it was damaged"
        if not write.exclusive:
            super().replace(write.path, write.data)
        elif not super().create(write.path, write.data) and super().read(write.path) != write.data:
            return "another file is in its place"
        return ""

    def _answers(self) -> bool:
        """Whether the store can be asked at all."""
        try:
            with _contained():
                super().exists(f"{self.root}/.asked")
        except StoreError:
            return False
        return True


@contextmanager
def _contained() -> Iterator[None]:
    """An exit that a store's client raises in a thread of ours fails its own write: there it would end no program,
    only the thread, and silently."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as error:
        if threading.current_thread() is threading.main_thread():
            raise
        raise StoreError(f"the store's client raised {type(error).__name__}: {error}") from error
