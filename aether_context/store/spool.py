"""A local queue for writes that the store could not take. They are written in order as soon as it can.

A write is on the disk when the call returns, and the next process goes on with what this one left. Each is a file, with
a line that holds the hash of the data and the path before the data, and its place in the queue is its name:

    {store}/waiting/{number}-{create or replace}-{hash of the path}.write

Writes that the store refuses while it takes others are in ``refused``, behind all that waits, and in ``aside`` what is
damaged, or finds another file in its place. A manifest waits for its own segment of the log; those of packs before it,
which it names, too, may still be refused. What is about to be written is in ``batches``, for the next process that
starts. A file in ``forgotten`` holds a folder: what was added for it before is not delivered any more.
Nothing is locked: no name is given twice, and what two processes deliver at the same moment finds itself there.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote, unquote_to_bytes

from aether_context.canonical import hash_bytes, hash_json, hash_text, plain, short
from aether_context.errors import StoreError
from aether_context.store.files import DRAFT, LATE_SECONDS, Files, make_folder, write_local
from aether_context.store.pack_file import LOG, MANIFEST, numbers_of

_R = TypeVar("_R")

logger = logging.getLogger("aether_context")

FOLDER = "AETHER_CONTEXT_SPOOL"
"""The environment variable that names the folder of spools; ``off`` turns them off."""

WAITING, REFUSED, ASIDE, BATCHES, FORGOTTEN = "waiting", "refused", "aside", "batches", "forgotten"
_ENDING = ".write"
_DIGITS = 32
_NAME = re.compile(r"\d{20}-(replace|create)-[0-9a-f]{32}\.write")
_LEAST_FREE_BYTES = 256 * 2**20
TIMEOUT_SECONDS = 5.0
"""So long may a call of the store take that no run waits for, and so long what the model itself asks the store for."""
_FIRST_PAUSE_SECONDS, _REFUSED_PAUSE_SECONDS, _LAST_PAUSE_SECONDS = 0.5, 4.0, 10.0
_SPARE_SECONDS = 30.0
_CALM_SECONDS = 60.0


class Write(StrEnum):
    """The act of a write where its path exists: replace the file, leave it, or extend it where the data begins with
    it."""

    REPLACE, CREATE = "replace", "create"


class Spool:
    """Writes that wait for one store, in a folder that processes may share. It leaves 256 MB of its disk free.

    What changes it raises `StoreError` where the folder cannot be used.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._kept: dict[str, str] = {}
        """The files of what this process holds, by the ends of their names."""
        self._added: dict[str, str] = {}
        """The last writes of this process, by path, since nothing waited: with many that wait, listing takes long."""
        self._last = 0
        self._warned = False

    def add(self, path: str, data: bytes, write: Write) -> bool:
        """Adds a write to the end of the queue; False for one that creates a file for which another write waits."""
        if self.is_empty():
            self._added.clear()
        if write is Write.CREATE and path in self._added and self._find(path):
            return False
        self._added[path] = self._put(WAITING, write, path, data)
        return True

    def keep(self, path: str, data: bytes) -> str:
        """Keeps what is about to be written, for the next process where this one is killed; the name of the file."""
        name = self._kept[_key(path)] = self._put(BATCHES, Write.CREATE, path, data)
        return name

    def release(self) -> None:
        """Lets the batches of processes wait, of those included that go on: what is written twice is the same."""
        for name in sorted(self.listed(BATCHES)):
            with suppress(OSError):
                os.replace(self.path / name, self.path / WAITING / name.partition("/")[2])

    def _put(self, folder: str, write: Write, path: str, data: bytes) -> str:
        """Writes a file of the spool, and gives its name."""
        with self._usable():
            for name in (WAITING, REFUSED, ASIDE, BATCHES):
                make_folder(f"{self.path}/{name}")
            free = shutil.disk_usage(self.path).free
            if free - len(data) < _LEAST_FREE_BYTES:
                raise StoreError(f"{self.path}: its disk is full, with {free:,} bytes left: free some, or {FOLDER}")
            self._last = max(time.time_ns(), self._last + 1)  # a clock may be set back
            name = f"{folder}/{self._last:020}-{write}-{_key(path)}"
            if not write_local(f"{self.path}/{name}", _head(path, data) + data, is_new=True, sync=True):
                return self._put(folder, write, path, data)  # another process took the name
            if os.name == "posix":  # a file that is synced may still lose its name with the machine's power
                handle = os.open(self.path / folder, os.O_RDONLY)
                os.fsync(handle)
                os.close(handle)
        return name

    def get(self, path: str) -> bytes | None:
        """The data of the write to a path that waits."""
        while name := self._find(path):
            with suppress(FileNotFoundError):
                _, data, is_sound = self.read(name)
                return data if is_sound else None
        return None

    def _find(self, path: str) -> str:
        """The name of the newest write to a path that waits; empty where none does."""
        key = _key(path)
        for name in filter(None, (self._added.get(path), self._kept.get(key))):
            if (self.path / name).exists():
                return name
        return max((name for name in self.listed(WAITING, REFUSED) if name.endswith(key)), default="")

    def read(self, name: str) -> tuple[str, bytes, bool]:
        """Path and data of a write, and whether they are what was written; `FileNotFoundError` where it is gone."""
        try:
            line, _, data = (self.path / name).read_bytes().partition(b"\n")
        except FileNotFoundError:
            raise
        except OSError:
            line = data = b""
        path = _path(line)
        return path, data, name.endswith(_key(path)) and line + b"\n" == _head(path, data)

    def listed(self, *folders: str) -> Iterator[str]:
        """The names of writes, in no order; none of a folder that cannot be read, so that it blocks no write."""
        for folder in folders:
            try:
                with os.scandir(self.path / folder) as entries:
                    for entry in entries:
                        if _NAME.fullmatch(entry.name):
                            yield f"{folder}/{entry.name}"
            except FileNotFoundError:
                pass
            except OSError as error:
                if not self._warned:
                    logger.error("the spool is left alone: %s", error)
                self._warned = True

    def is_empty(self) -> bool:
        return not any(self.listed(WAITING, REFUSED))

    def holds_back(self, path: str = "", data: bytes = b"") -> bool:
        """Tells whether a write waits that later ones wait behind, or later ones to this path or of this data."""
        refused = any(name.endswith(_key(path)) for name in self.listed(REFUSED))
        return refused or any(self.listed(WAITING)) or self.precedes(REFUSED, path, data)

    def precedes(self, folder: str, path: str, data: bytes) -> bool:
        """Tells whether data are a manifest's, and a segment is in a folder that may hold its record."""
        waiting = self.paths(folder) if path.endswith(f"/{MANIFEST}") else {}
        log = f"{path.rpartition('/packs/')[0]}/{LOG}/"
        names = [other.removeprefix(log) for other in waiting if other.startswith(log)]
        return bool(names) and any(json.loads(data)["number"] in numbers_of(name) for name in names)

    def missing(self) -> int:
        """Counts the writes that are refused or were set aside."""
        return sum(1 for _ in self.listed(REFUSED, ASIDE))

    def paths(self, *folders: str) -> dict[str, int]:
        """The paths of the writes in folders, in all where none is named, each with the size of its file in bytes."""
        sizes: dict[str, int] = {}
        for name in self.listed(*(folders or (WAITING, REFUSED, ASIDE, BATCHES))):
            with self._usable(), suppress(FileNotFoundError), (self.path / name).open("rb") as file:
                sizes[_path(file.readline())] = os.fstat(file.fileno()).st_size
        return sizes

    def forget(self, folders: Sequence[str]) -> None:
        """Removes the writes to files in folders, and those that are on their way to the store just now."""
        if not self.path.exists():
            return
        with self._usable():
            for folder in folders:
                name = f"{FORGOTTEN}/{time.time_ns():020}-{short(hash_text(folder), 16)}"
                write_local(f"{self.path}/{name}", os.fsencode(folder), is_new=True, sync=True)
        inside = tuple(f"{folder}/" for folder in folders)
        self.drop(path for path in self.paths() if path.startswith(inside))

    def is_forgotten(self, name: str, path: str) -> bool:
        """Tells whether a write was added before the folder of its path was forgotten."""
        added = int(name.split("/")[1].split("-")[0])
        with self._usable():
            for mark in (self.path / FORGOTTEN).glob("*-*"):
                folder = os.fsdecode(mark.read_bytes())
                if added <= int(mark.name.split("-")[0]) and path.startswith(f"{folder}/"):
                    return True
        return False

    def drop(self, paths: Iterable[str]) -> None:
        """Removes the writes to paths, those set aside as well, and what a killed process left of any write."""
        with self._usable():
            for draft in self.path.glob(f"*/{DRAFT}*"):  # a process that is just writing one tries again
                draft.unlink(missing_ok=True)
        keys = set(map(_key, paths))
        for name in list(self.listed(WAITING, REFUSED, ASIDE, BATCHES)):
            if name.rpartition("-")[2] in keys:
                self.take_out(name)

    def take_out(self, *names: str, folder: str = "") -> None:
        """Removes writes from their folder, to the end of another one where that is given."""
        for name in names:
            self._kept.pop(name.rpartition("-")[2], None)
            with self._usable(), suppress(FileNotFoundError):
                if folder:
                    os.replace(self.path / name, self.path / folder / f"{time.time_ns():020}-{name.split('-', 1)[1]}")
                else:
                    os.unlink(self.path / name)

    @contextmanager
    def _usable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StoreError(f"{self.path} cannot be used: {error}") from error


def _key(path: str) -> str:
    """The end of the name of each write to a path, the hash of that."""
    return f"{short(hash_text(path), _DIGITS)}{_ENDING}"


def _head(path: str, data: bytes) -> bytes:
    return f"{hash_bytes(data)} {quote(os.fsencode(path))}\n".encode()


def _path(head: bytes) -> str:
    return os.fsdecode(unquote_to_bytes(head.strip().partition(b" ")[2]))


def spool_of(files: Files) -> Spool | None:
    """The spool of a store, by its URL and options; None for a store in memory, or where spools are off."""
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    folder = os.environ.get(FOLDER) or f"{state}/aether-context/spool"
    if files.is_in_memory or folder == "off":
        return None
    name = short(hash_json([files.root if files.is_local else files.url, plain(files.options)]), 16)
    return Spool(Path(folder).expanduser() / name)


class SpooledFiles(Files):
    """Files that take every write: a write that the store cannot take waits in the spool until it can.

    While any write waits, all later ones wait behind it, so that a manifest never arrives before what it names. A store
    that failed is tried again after half a second, then after longer and longer pauses of up to ten. One that took
    longer than ``LATE_SECONDS`` is spared for half a minute: what is to be written goes to the spool, and nobody waits
    for the thread that delivers it. A write that neither store nor spool takes is a `StoreError`.
    """

    def __init__(self, files: Files, spool: Spool) -> None:
        super().__init__(files.url, files.options, TIMEOUT_SECONDS)
        self.spool = spool
        self._is_down = self._told = False
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

    def _write(self, operation: Callable[[str, bytes], _R], path: str, data: bytes, write: Write) -> _R | bool:
        began = time.monotonic()
        if began > self._direct_at and not self.spool.holds_back(path, data):
            try:
                result = operation(path, data)
            except StoreError as error:
                if time.monotonic() - began < LATE_SECONDS:
                    self._mark_down(error)
                else:
                    self.spare()
            else:
                if self._is_down and self.spool.is_empty():
                    self._mark_up()
                return result
        added = self.spool.add(path, data, write)
        self.deliver()
        return added

    def spare(self) -> None:
        """Lets the spool take for a while what comes."""
        self._direct_at = time.monotonic() + _SPARE_SECONDS

    def read(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        data = self.spool.get(path)
        return super().read(path, start, end) if data is None else data[start:end]

    def deliver(self) -> None:
        """Starts a thread that writes what waits to the store."""
        if self.spool.is_empty():
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
        while self.spool.holds_back():
            is_away = self.calls.hanging or (self._is_down and self._rounds > rounds)
            if is_away or time.monotonic() > deadline:
                return False
            time.sleep(0.01)
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
                if self.spool.is_empty():
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
        while names := [name for folder in (WAITING, REFUSED) for name in sorted(self.spool.listed(folder))]:
            for name in names:
                try:
                    write = self.spool.read(name)
                except FileNotFoundError:  # it was delivered, or has a later form, which comes before what follows
                    break
                if not self._deliver(name, *write):
                    return False
        return True

    def _deliver(self, name: str, path: str, data: bytes, is_sound: bool) -> bool:
        if self.spool.is_forgotten(name, path):
            self.spool.take_out(name)
            return True
        for folder in (REFUSED, ASIDE) if is_sound else ():
            if self.spool.precedes(folder, path, data):
                self.spool.take_out(name, folder=folder)
                return name.startswith(WAITING) or folder == ASIDE
        try:
            fault = self._send(path, data, name.split("-")[1]) if is_sound else "it was damaged"
        except StoreError as error:
            if not self._is_refused(len(data), error):
                return False
            self.spool.take_out(name, folder="" if self.spool.is_forgotten(name, path) else REFUSED)
            return name.startswith(WAITING)
        if self.spool.is_forgotten(name, path):  # meanwhile
            self.delete(path)
        elif fault:
            logger.error("%s is set aside in %s: %s", path or name, self.spool.path, fault)
        self.spool.take_out(name, folder=ASIDE if fault else "")
        self._pause = _FIRST_PAUSE_SECONDS
        return True

    def _send(self, path: str, data: bytes, write: str, *, is_last: bool = False) -> str:
        """Writes to the store itself, at a failure twice; why that can never be, or nothing where it is there."""
        try:
            if write == Write.REPLACE:
                super().replace(path, data)
            elif not super().create(path, data) and self.complete(path, data) is False:
                return "another file is in its place"
        except StoreError:
            if is_last:
                raise
            return self._send(path, data, write, is_last=True)
        return ""

    def _is_refused(self, size: int, error: StoreError) -> bool:
        """Tells whether a write that failed goes on waiting behind all others: the store takes others of its size.

        That is told by a write, since a full disk can be read. The first one is tried until the pauses have grown, so
        that for a store that fails now and then it does not come after what follows on it.
        """
        try:
            self.try_writing(size)
        except StoreError as outage:
            self._mark_down(outage)
            return False
        self._tell(error)
        return any(self.spool.listed(REFUSED)) or self._pause >= _REFUSED_PAUSE_SECONDS
