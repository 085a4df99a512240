"""Writes that a store could not take wait in a local file, in their order, until it can.

The file is SQLite: what was added to it is on the disk, whole, when the call returns, in whatever process, and the next
process goes on with what one left behind. A write that arrives damaged, or finds another file in its place, is set
aside in the same file (table ``aside``), so that it holds nothing back.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
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


class Write(IntEnum):
    """How a write meets what the store has in its place, which for the last two may be its own beginning."""

    REPLACE = 0
    CREATE = 1
    EXTEND = 2


class Spool:
    """Writes that wait for one store, in a file that processes may share and that leaves 256 MB of its disk free.

    Each method raises `StoreError` where the file cannot be used.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, path: str, data: bytes, write: Write) -> bool:
        """Puts a write behind the others; False where one waits for the same place already.

        What replaces or extends a file takes the data's place in a write that waits.
        """
        with self._open() as database:
            free = shutil.disk_usage(self.path.parent).free
            if free - len(data) < _LEAST_FREE_BYTES:
                raise StoreError(f"{self.path}: its disk is full, with {free:,} bytes left: free some, or {FOLDER}")
            then = "NOTHING" if write is Write.CREATE else "UPDATE SET data = excluded.data, hash = excluded.hash"
            added = database.execute(
                f"INSERT INTO waiting (path, exclusive, data, hash) VALUES (?, ?, ?, ?) ON CONFLICT (path) DO {then}",
                (path, write, data, hash_bytes(data)),
            )
            return added.rowcount > 0

    def is_empty(self) -> bool:
        return not self.ask("SELECT 1 FROM waiting LIMIT 1")

    def drop(self, path: str) -> None:
        """Takes out what waits to be written to a path."""
        self.ask("DELETE FROM waiting WHERE path = ?", path)

    def aside(self) -> list[tuple[str, str]]:
        """Paths of what was set aside, each with the reason."""
        return self.ask("SELECT path, reason FROM aside ORDER BY number")

    def ask(self, statement: str, *values: object) -> list[Any]:
        """What a statement gives; nothing where there is no file yet."""
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
    """The spool of a store, by its URL and options; None for one in memory, or where there is to be none."""
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    folder = os.environ.get(FOLDER) or f"{state}/aether-context/spool"
    if files.is_in_memory or folder == "off":
        return None
    name = short(hash_json([files.root if files.is_local else files.url, plain(files.options)]), 16)
    return Spool(Path(folder).expanduser() / f"{name}.sqlite")


class SpooledFiles(Files):
    """Files that take every write: what the store cannot take now waits in the spool, and is written when it can.

    While anything waits, all that follows waits behind it, so that what names something arrives after it. A store that
    failed is asked again after half a second, then after ever longer pauses of up to ten. A store that is too slow for
    what comes is spared in the same way: while ``spares_store`` is set, writes go to the spool at once. A write that
    neither takes is a `StoreError`.
    """

    def __init__(self, files: Files, spool: Spool) -> None:
        super().__init__(files.url, files.options, _TIMEOUT_SECONDS)
        self.spool = spool
        self.spares_store = False
        self._is_down = False
        self._warned = False
        self._ask_again = 0.0
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
        """`extend` in the store itself; False where another file is in its place, None where none is."""
        there = self._there(path)
        if there is None:
            return None
        if len(there) < len(data) and data.startswith(there):
            super().replace(path, data)
            return True
        return there.startswith(data)  # another process may have been faster, with more

    def _write(self, act: Callable[[str, bytes], _R], path: str, data: bytes, write: Write) -> _R | bool:
        may_ask = not self.spares_store and (not self._is_down or time.monotonic() > self._ask_again)
        if may_ask and self._is_empty():
            try:
                with _contained():
                    done = act(path, data)
            except StoreError as error:
                self._fell(error)
            else:
                self._is_down = False
                return done
        added = self.spool.add(path, data, write)
        self.deliver()
        return added

    def read(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        waits = [] if self._is_empty() else self.spool.ask("SELECT data FROM waiting WHERE path = ?", path)
        data: bytes = waits[0][0][start:end] if waits else super().read(path, start, end)
        return data

    def deliver(self) -> None:
        """Begins to write what waits, in a thread of its own."""
        if self._is_empty():
            return
        with self._starting:
            if self._thread is None or not self._thread.is_alive():  # a forked process has no threads of its parent
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

    def _is_empty(self) -> bool:
        """Whether nothing waits; a spool that cannot be read stands in nobody's way."""
        try:
            return self.spool.is_empty()
        except StoreError as error:
            if not self._warned:
                logger.error("the spool is left alone: %s", error)
            self._warned = True
            return True

    def _fell(self, error: Exception) -> None:
        if not self._is_down:
            logger.warning("packs wait in %s: %s", self.spool.path, error)
        self._is_down = True
        self._ask_again = time.monotonic() + self._pause

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
        """Writes what waits, the oldest first; False where the store is down."""
        first = "SELECT number, path, exclusive, data, hash, tries FROM waiting ORDER BY number LIMIT 1"
        while waiting := self.spool.ask(first):
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
                    self._fell(error)
                    return False
                if tries < _MOST_TRIES:
                    self.spool.ask("UPDATE waiting SET tries = tries + 1 WHERE number = ?", number)
                    continue
                fault = str(error)
            if fault:
                logger.error("%s is set aside in %s: %s", path, self.spool.path, fault)
                self.spool.ask("INSERT OR REPLACE INTO aside VALUES (?, ?, ?, ?)", number, path, data, fault)
            # One that was replaced meanwhile waits on.
            self.spool.ask("DELETE FROM waiting WHERE number = ? AND hash = ?", number, digest)
            self._pause = _FIRST_PAUSE_SECONDS
        self._is_down = False
        return True

    def _answers(self) -> bool:
        """Whether the store can be asked at all."""
        try:
            with _contained():
                self._there(f"{self.root}/.asked")
        except StoreError:
            return False
        return True

    def _there(self, path: str) -> bytes | None:
        """What the store itself has in a place."""
        try:
            return super().read(path)
        except FileNotFoundError:
            return None


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
