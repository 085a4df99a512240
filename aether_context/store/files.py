"""Files below an fsspec URL: written once or replaced, whole or not at all, and never outside of their folder.

Whatever a backend's client raises becomes a `StoreError`, so that no caller has to know the kinds of each of them.
"""

from __future__ import annotations

import errno
import os
import re
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import fsspec
from fsspec.asyn import AsyncFileSystem, sync
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFile, MemoryFileSystem

from aether_context.canonical import hash_text, short
from aether_context.errors import AetherContextError, MissingExtra, StoreError

_T = TypeVar("_T")
_R = TypeVar("_R")

_SAFE = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_RESERVED = re.compile(
    r"(con|prn|aux|nul|com\d|lpt\d|blobs|packs|messages|summaries|vectors|calibration|evidence|artifacts|hours|name\.json)(\..*)?"
)
_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs"}
_CACHING = ("s3", "s3a", "gs", "gcs", "az", "abfs")
"""Protocols whose file systems remember listings, though other processes write there, too."""
_CONFLICTS = (errno.EINVAL, errno.EBUSY)
"""What s3fs makes of a precondition that failed, and of two writers at the same moment."""
_BYTES_PER_SECOND = 1_000_000
_AT_ONCE = 16
_DRAFT = ".draft-"


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """A file that a store holds: its path, size in bytes, and when it was written, in seconds since 1970 UTC.

    ``modified`` is None where the backend does not say.
    """

    path: str
    size: int
    modified: float | None


class Files:
    """Reads and writes files below a base URL.

    Args:
        url: any fsspec URL or a local path.
        options: storage options of the protocol.
        timeout_seconds: longest that one file may take on a remote file system, plus a second for each megabyte;
            None leaves that to its client, which may try for half a minute.

    Raises:
        MissingExtra: the protocol needs a package that is not installed.
        StoreError: the protocol is unknown.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        options: Mapping[str, Any] | None = None,
        timeout_seconds: float | None = None,
    ) -> None:
        self.url = os.fspath(url)
        if not self.url:
            raise StoreError("the URL of a store is empty: give a folder or any fsspec URL")
        self.timeout_seconds = timeout_seconds
        self._refuses: bool | None = None
        self.options = dict(options or {})
        self._open()

    def _open(self) -> None:
        protocol = self.url.split("://", 1)[0] if "://" in self.url else "file"
        try:
            options = {**({"use_listings_cache": False} if protocol in _CACHING else {}), **self.options}
            self._fs, root = fsspec.core.url_to_fs(self.url, **options)
        except ImportError as error:
            if protocol in _EXTRAS:
                raise MissingExtra(_EXTRAS[protocol], f"a store on {protocol}://") from error
            raise StoreError(f"a store on {protocol}:// needs a package that is not installed: {error}") from error
        except ValueError as error:
            raise StoreError(f"store {self.url!r} cannot be opened: {error}") from error
        self.root: str = root.rstrip("/")
        self._real_root = os.path.realpath(self.root) if self.is_local else ""
        self._process = os.getpid()

    @property
    def fs(self) -> Any:
        """The file system; another one in a forked process, since a client's connections do not outlive a fork."""
        if self._process != os.getpid():
            self._open()
        return self._fs

    @property
    def is_local(self) -> bool:
        return isinstance(self._fs, LocalFileSystem)

    @property
    def refuses(self) -> bool | None:
        """Whether a remote file system itself refuses to create what is there already, tried with the first file.

        None where nothing was created yet. One that does not is asked before each file.
        """
        return self._refuses

    @property
    def is_in_memory(self) -> bool:
        return isinstance(self._fs, MemoryFileSystem)

    # writing

    def create(self, path: str, data: bytes) -> bool:
        """Writes a file that is not there yet, whole or not at all; False where it is there already.

        Raises:
            StoreError: it could not be written.
        """
        with self._guarded(path, "written"):
            fs = self.fs
            if isinstance(fs, LocalFileSystem):
                self._stay_inside(path)
                return _create_local(Path(path), data)
            if isinstance(fs, MemoryFileSystem):
                return _create_in_memory(fs, path, data)
            if not self._refuses and self._call("exists", path):
                return False
            created = self._put(path, data)
            if created and self._refuses is None:
                self._refuses = not self._put(path, data)
            return created

    def _put(self, path: str, data: bytes) -> bool:
        try:
            self._call("pipe_file", path, data, mode="create", size=len(data))
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno in _CONFLICTS and self._call("exists", path):
                return False
            raise
        return True

    def try_writing(self) -> None:
        """Writes a file and deletes it again.

        Raises:
            StoreError: files cannot be written here.
        """
        self.is_there()
        path = f"{self.root}/{_DRAFT}{os.getpid()}"
        self.create(path, b"")
        self.delete(path)

    def replace(self, path: str, data: bytes) -> None:
        """Writes a file in the place of another, whole or not at all.

        Raises:
            StoreError: it could not be written.
        """
        with self._guarded(path, "written"):
            if self.is_local:
                self._stay_inside(path)
                Path(path).parent.mkdir(parents=True, exist_ok=True)
                with _draft(Path(path), data) as draft:
                    os.replace(draft, path)
            else:
                self._call("pipe_file", path, data, size=len(data))

    def delete(self, path: str) -> None:
        """Deletes a file, and the folders that this leaves empty; one that is not there is passed over.

        Raises:
            StoreError: it could not be deleted.
        """
        with self._guarded(path, "deleted"):
            if self.is_local:
                self._stay_inside(path)
                Path(path).unlink(missing_ok=True)
                self._prune(Path(path).parent)
            else:
                try:
                    self._call("rm_file", path)
                except FileNotFoundError:
                    return

    def _prune(self, folder: Path) -> None:
        while str(folder) != self.root and str(folder).startswith(f"{self.root}/"):
            try:
                folder.rmdir()
            except OSError:
                return
            folder = folder.parent

    # reading

    def read(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        """The bytes of a file, or those from ``start`` up to ``end``.

        Raises:
            FileNotFoundError: it is not there.
            StoreError: it could not be read.
        """
        with self._guarded(path, "read"):
            self._stay_inside(path)
            data: bytes = self._call("cat_file", path, start=start, end=end)
            return data

    def exists(self, path: str) -> bool:
        """Whether a file is there.

        Raises:
            StoreError: that could not be found out.
        """
        with self._guarded(path, "read"):
            self._stay_inside(path)
            return bool(self._call("exists", path))

    def is_there(self) -> bool:
        """Whether the base is a folder that is there. An object store has none without a file in it.

        Raises:
            StoreError: it is a file, or that could not be found out.
        """
        with self._guarded(self.root, "read"):
            if self.is_local:
                is_folder, is_file = os.path.isdir(self.root), os.path.exists(self.root)
            else:
                try:
                    is_folder = self._call("info", self.root)["type"] == "directory"
                except FileNotFoundError:
                    return False
                is_file = not is_folder
        if is_file and not is_folder:
            raise StoreError(f"{self.url} is a file: a store is a folder, or the URL of one")
        return is_folder

    def folders(self, path: str) -> list[str]:
        """The folders in a folder, symbolic links left out; none where it is not there.

        Raises:
            StoreError: it could not be listed.
        """
        if self.is_local:
            return [entry.path for entry in self._scanned(path) if entry.is_dir(follow_symlinks=False)]
        return [entry["name"].rstrip("/") for entry in self._listed(path) if entry["type"] == "directory"]

    def files(self, path: str) -> list[File]:
        """The files in a folder, symbolic links and unfinished ones left out; none where it is not there.

        Raises:
            StoreError: it could not be listed.
        """
        if self.is_local:
            return [_local_file(entry) for entry in self._scanned(path) if _is_local_file(entry)]
        return [_file(entry) for entry in self._listed(path) if _is_file(entry)]

    def below(self, path: str) -> list[File]:
        """All files below a folder, by path, symbolic links and unfinished ones left out.

        Raises:
            StoreError: it could not be listed.
        """
        if self.is_local:
            found = list(self._walked(path))
        else:
            with self._guarded(path, "listed"):
                # Object stores find by prefix, which may be the beginning of another folder's name.
                inside = [entry for entry in self._found(path) if entry["name"].startswith(f"{path}/")]
            found = [_file(entry) for entry in inside if _is_file(entry)]
        return sorted(found, key=lambda one: one.path)

    def _found(self, path: str) -> Iterable[dict[str, Any]]:
        fs = self.fs
        if isinstance(fs, MemoryFileSystem):  # its own `find` walks over all files for each folder
            return [fs.info(name) for name in tuple(fs.store) if name.startswith(path)]
        try:
            found: dict[str, dict[str, Any]] = self._call("find", path, detail=True)
        except FileNotFoundError:
            return []
        return found.values()

    def _walked(self, path: str) -> Iterator[File]:
        for entry in self._scanned(path):
            if entry.is_dir(follow_symlinks=False):
                yield from self._walked(entry.path)
            elif _is_local_file(entry):
                yield _local_file(entry)

    def _scanned(self, path: str) -> list[os.DirEntry[str]]:
        with self._guarded(path, "listed"):
            self._stay_inside(path)
            try:
                with os.scandir(path) as entries:
                    return list(entries)
            except (FileNotFoundError, NotADirectoryError):
                return []

    def _listed(self, path: str) -> list[dict[str, Any]]:
        with self._guarded(path, "listed"):
            try:
                found: list[dict[str, Any]] = self._call("ls", path, detail=True)
            except FileNotFoundError:
                return []
        return found

    def at_once(self, act: Callable[[_T], _R], items: Iterable[_T]) -> list[_R]:
        """What ``act`` gives for each item, in order; several at a time where each is a request over the network."""
        items = list(items)
        if len(items) < 2 or not isinstance(self.fs, AsyncFileSystem):
            return [act(one) for one in items]
        with ThreadPoolExecutor(min(_AT_ONCE, len(items)), thread_name_prefix="aether-context-store") as pool:
            return list(pool.map(act, items))

    def url_of(self, path: str) -> str:
        return str(self.fs.unstrip_protocol(path))

    # the backend

    def _call(self, name: str, *args: Any, size: int = 0, **options: Any) -> Any:
        """Calls the file system, within the time limit where there is one."""
        fs = self.fs
        if self.timeout_seconds is None or not isinstance(fs, AsyncFileSystem):
            return getattr(fs, name)(*args, **options)
        seconds = self.timeout_seconds + size / _BYTES_PER_SECOND
        return sync(fs.loop, getattr(fs, f"_{name}"), *args, timeout=seconds, **options)

    @contextmanager
    def _guarded(self, path: str, what: str) -> Iterator[None]:
        try:
            yield
        except AetherContextError:
            raise
        except Exception as error:  # clients of object stores raise kinds of their own
            if isinstance(error, FileNotFoundError) and what == "read":
                raise
            told = str(error) or type(error).__name__
            raise StoreError(f"{self.url}: {path} could not be {what}: {told}") from error

    def _stay_inside(self, path: str) -> None:
        """Refuses a local path that leaves the folder, by ``..`` or through a symbolic link."""
        if not self.is_local:
            return
        wanted = self._real_root + path[len(self.root) :].rstrip("/").replace("/", os.sep)
        if not path.startswith(self.root) or os.path.realpath(path) != wanted:
            raise StoreError(f"{self.url}: {path} leads out of its folder: remove the symbolic link on the way to it")


def segment(name: str) -> str:
    """A safe path segment of at most 64 characters: lower-case names as they are, others as a stub and a hash."""
    if _SAFE.fullmatch(name) and not _RESERVED.fullmatch(name) and not name.endswith("."):
        return name
    stub = re.sub(r"[^a-z0-9]+", "-", name.lower())[:40].strip("-")
    return f"{stub}~{short(hash_text(name), 16)}"


def _is_file(entry: Mapping[str, Any]) -> bool:
    return entry["type"] == "file" and not entry["name"].endswith("/")


def _is_local_file(entry: os.DirEntry[str]) -> bool:
    return entry.is_file(follow_symlinks=False) and not entry.name.startswith(_DRAFT)


def _local_file(entry: os.DirEntry[str]) -> File:
    held = entry.stat(follow_symlinks=False)
    return File(path=entry.path, size=held.st_size, modified=held.st_mtime)


def _file(entry: Mapping[str, Any]) -> File:
    return File(path=entry["name"], size=int(entry.get("size") or 0), modified=_modified(entry))


def _modified(entry: Mapping[str, Any]) -> float | None:
    """When a file was written, by whatever name and in whatever form the backend says it."""
    for key in ("mtime", "LastModified", "updated", "last_modified", "created"):
        value = entry.get(key)
        if isinstance(value, str):
            value = datetime.fromisoformat(value)
        if isinstance(value, datetime):
            return value.timestamp()
        if isinstance(value, (int, float)):
            return float(value)
    return None


_memory_lock = threading.Lock()


def _create_in_memory(fs: MemoryFileSystem, path: str, data: bytes) -> bool:
    """What the in-memory file system does for a new file, without its walk over all files for each parent folder."""
    with _memory_lock:
        if path in fs.store:
            return False
        fs.store[path] = MemoryFile(fs, path, data)
    return True


def _create_local(path: Path, data: bytes) -> bool:
    """A new file with these bytes, complete the moment it appears."""
    if path.exists():
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    with _draft(path, data) as draft:
        try:
            os.link(draft, path)
        except FileExistsError:
            return False
        except OSError:  # a file system without hard links
            os.replace(draft, path)
    return True


@contextmanager
def _draft(path: Path, data: bytes) -> Iterator[str]:
    """A file with these bytes beside ``path``, gone afterwards where it is still there."""
    handle, draft = tempfile.mkstemp(dir=path.parent, prefix=_DRAFT)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(draft, 0o644)
        yield draft
    finally:
        Path(draft).unlink(missing_ok=True)
