"""Files below an fsspec URL: written once or replaced, whole or not at all, and never outside of their folder.

Whatever a backend's client raises becomes a `StoreError`, so that callers need not know each client's exceptions.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from datetime import datetime
from functools import lru_cache, partial
from typing import Any, NamedTuple, TypeVar

from aether_context.canonical import canonical_json, hash_text, short
from aether_context.errors import AetherContextError, MissingExtra, StoreError

_T = TypeVar("_T")
_R = TypeVar("_R")

_SAFE = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_RESERVED = re.compile(
    r"(con|prn|aux|nul|com\d|lpt\d|packs|turns|messages|summaries|calibration|evidence|artifacts|index|name\.json)(\..*)?"
)
_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs"}
_CACHING = ("s3", "s3a", "gs", "gcs", "az", "abfs")
"""Protocols whose file systems cache listings, though other processes write there, too."""
_NO_BUCKET = re.compile(r"(?:bucket|container) does(?: not|n't) exist|NoSuchBucket|ContainerNotFound")
"""Words of a 404 that is about a bucket, not about a file."""
_CONFLICTS = (errno.EINVAL, errno.EBUSY)
"""What s3fs raises for a precondition that failed, and for two writers at the same moment."""
_AT_ONCE = 16
DRAFT = ".draft-"
_DRAFT_FLAGS = os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_BINARY", 0)
LATE_SECONDS = 0.3
"""So long may a run wait for what is done at once by a store that works."""
_LOOK_SECONDS = 0.05
_MOST_HANGING, _HANGING_SECONDS = 8, 60.0
_MOST_SESSIONS = 512

_memory_lock = threading.Lock()


class File(NamedTuple):
    """A file of a store: its path, size in bytes, and when it was written, seconds since 1970 UTC, where known."""

    path: str
    size: int
    modified: float | None

    @property
    def name(self) -> str:
        return self.path.rsplit("/", 1)[-1]


class TimedCalls:
    """Calls of one file system, each in a thread that is left behind where the call hangs.

    While one hangs the others fail at once; each minute one is tried all the same, until eight threads hang. None of
    them keeps the process from ending.
    """

    def __init__(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self.hanging: set[Future[Any]] = set()
        self._try_at = 0.0

    def run(self, act: Callable[[], _R], seconds: float) -> _R:
        """Returns the result of ``act``; `StoreError` where that takes longer, or takes long while another call
        hangs."""
        if self._process != os.getpid():  # a forked process has no threads of its parent
            TimedCalls.__init__(self)
        began = time.monotonic()
        answer = Future[_R]()
        with self._lock:
            if self.hanging and (len(self.hanging) >= _MOST_HANGING or began < self._try_at):
                raise StoreError("the store does not answer: calls before this one hang")
            self._try_at = began + _HANGING_SECONDS
        try:
            threading.Thread(target=self._work, args=(act, answer), name="aether-context-store", daemon=True).start()
        except RuntimeError as error:  # what is refused now can be tried again
            raise StoreError(f"the store cannot be called: {error}") from error
        while not wait([answer], _LOOK_SECONDS).done:
            passed = time.monotonic() - began
            with self._lock:
                if not answer.done() and (passed > seconds or (self.hanging and passed > LATE_SECONDS)):
                    self.hanging.add(answer)
                    raise StoreError(f"the store does not answer within {passed:.1f} s")
        return answer.result()

    def _work(self, act: Callable[[], _R], answer: Future[_R]) -> None:
        try:
            answer.set_result(act())
        except Exception as error:
            answer.set_exception(error)
        except BaseException as error:  # here it would not end the program, but silently end the thread
            answer.set_exception(StoreError(f"the store's client raised {type(error).__name__}: {error}"))
        with self._lock:
            self.hanging.discard(answer)


class Files:
    """Reads and writes files below a base URL, each with `StoreError` where the store cannot do it.

    A call may take ``timeout_seconds``, and a write a second more for each megabyte; None leaves that to the client,
    which may try for half a minute, or for ever. ``refuses`` is whether the remote file system itself refuses to create
    a file that exists; it is None until the first file was created, which tries it. Where it does not refuse, each
    write first asks whether the file exists.
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
        self.calls = TimedCalls()
        self.refuses: bool | None = None
        self._torn: set[str] = set()
        self.options = dict(options or {})
        self._written: dict[str, dict[str, None]] = {}
        self._writing = threading.Lock()
        self._open()

    def __deepcopy__(self, memo: object) -> Files:
        """Itself: copies of a store share what is known of it."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Without the options, which may hold credentials: where a pickle is read, the environment has to name them."""
        return Files, (self.url, None, self.timeout_seconds)

    def _open(self) -> None:
        import fsspec
        from fsspec.asyn import AsyncFileSystem
        from fsspec.implementations.local import LocalFileSystem
        from fsspec.implementations.memory import MemoryFileSystem

        protocol = self.url.split("://", 1)[0] if "://" in self.url else "file"
        try:
            options = {**({"use_listings_cache": False} if protocol in _CACHING else {}), **self.options}
            if protocol in ("s3", "s3a"):
                options.setdefault("session", _s3_session(self.options.get("profile")))
            self._fs, root = fsspec.core.url_to_fs(self.url, **options)
        except ImportError as error:
            if protocol in _EXTRAS:
                raise MissingExtra(_EXTRAS[protocol], f"a store on {protocol}://") from error
            raise StoreError(f"a store on {protocol}:// needs a package that is not installed: {error}") from error
        except ValueError as error:
            is_offered = protocol in fsspec.available_protocols()
            reason = error if is_offered else f"{protocol}:// is none of fsspec's protocols"
            cure = "give a folder, or a URL such as s3://bucket/path, gs://bucket/path or memory://name"
            raise StoreError(f"store {self.url!r} cannot be opened: {reason}: {cure}") from error
        self.root: str = root.rstrip("/")
        self.is_local = isinstance(self._fs, LocalFileSystem)
        self.is_in_memory = isinstance(self._fs, MemoryFileSystem)
        self._is_async = isinstance(self._fs, AsyncFileSystem)
        self._real_root = os.path.realpath(self.root) if self.is_local else ""
        self._process = os.getpid()

    @property
    def fs(self) -> Any:
        """The file system; another one in a forked process, since a client's connections do not outlive a fork."""
        if self._process != os.getpid():
            self._open()
        return self._fs

    def place(self, *names: str) -> str:
        """The folder that names lead to: of an app, a user, a session."""
        return "/".join([self.root, *map(segment, names)])

    def below_base(self, path: str) -> str:
        """A path without that of the base."""
        return path.removeprefix(f"{self.root}/")

    def name_files(self, *names: str) -> dict[str, bytes]:
        """The paths of the ``name.json`` files on the way to a folder, for segments that differ from their names, and
        their contents."""
        return {
            f"{self.place(*names[:depth])}/name.json": canonical_json({"name": name}).encode()
            for depth, name in enumerate(names, 1)
            if segment(name) != name
        }

    # what was written to a session, for the manifest that comes next

    def note_written(self, folder: str, name: str) -> None:
        """Notes that something was written to a session's folder, by an address or the like."""
        with self._writing:
            self._written.setdefault(folder, {})[name] = None
            while len(self._written) > _MOST_SESSIONS:
                del self._written[next(iter(self._written))]

    def written(self, folder: str) -> tuple[str, ...]:
        """The notes of a session's folder, in order."""
        with self._writing:
            return tuple(self._written.get(folder, ()))

    def settle_written(self, folder: str, names: Iterable[str]) -> None:
        """Takes out what a manifest names, or what is not there any more."""
        with self._writing:
            for name in names:
                self._written.get(folder, {}).pop(name, None)

    # writing

    def create(self, path: str, data: bytes) -> bool:
        """Writes a file that is not there yet, whole or not at all; False where it is there already."""
        return self._perform(partial(self._create, path, data), path, "written", len(data))

    def _create(self, path: str, data: bytes) -> bool:
        if self.is_local:
            return write_local(path, data, is_new=True)
        if self.is_in_memory:  # fsspec's own `pipe_file` walks over all files for each parent folder
            from fsspec.implementations.memory import MemoryFile

            with _memory_lock:
                if path in self.fs.store:
                    return False
                self.fs.store[path] = MemoryFile(self.fs, path, data)
                return True
        is_torn = path in self._torn
        self._torn.add(path)  # a call that fails may leave the beginning of the data
        created = (bool(self.refuses) or not self._call("exists", path)) and self._put(path, data)
        if created and self.refuses is None:
            self.refuses = not self._put(path, data)
        elif is_torn and not created:
            created = bool(self.complete(path, data))
        self._torn.discard(path)
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

    def try_writing(self, size: int = 0) -> None:
        """Writes a file of so many bytes and deletes it again."""
        self.is_there()
        path = f"{self.root}/{DRAFT}{os.getpid()}"
        Files.replace(self, path, secrets.token_bytes(size))
        with suppress(StoreError):
            self.delete(path)

    def replace(self, path: str, data: bytes) -> None:
        """Writes a file in the place of another, whole or not at all."""
        act: Callable[[], object] = partial(write_local, path, data, is_new=False)
        if not self.is_local:
            act = partial(self._call, "pipe_file", path, data, size=len(data))
        self._perform(act, path, "written", len(data))

    def complete(self, path: str, data: bytes) -> bool | None:
        """Replaces a file by data that begins with its content, as a write that failed may have left it. Nothing is
        written where it has other content, which is False, or where there is no file, which is None."""
        try:  # a class with other ways to read and write is asked for none of them here
            stored = Files.read(self, path, 0, len(data) + 1)
        except FileNotFoundError:
            return None
        if len(stored) < len(data) and data.startswith(stored):
            Files.replace(self, path, data)
            return True
        return stored.startswith(data)  # another process may have been faster, with more

    def delete(self, path: str) -> None:
        """Deletes a file, and the folders that this leaves empty; one that is not there is passed over."""
        self._perform(partial(self._delete, path), path, "deleted", 0)

    def _delete(self, path: str) -> None:
        with suppress(FileNotFoundError):
            self._call("rm_file", path)
        folder = os.path.dirname(path)
        while self.is_local and folder.startswith(f"{self.root}/"):
            try:
                os.rmdir(folder)
            except OSError:
                return
            folder = os.path.dirname(folder)

    # reading

    def read(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        """The bytes of a file, or those from ``start`` up to ``end``; `FileNotFoundError` where it is not there."""
        return self._perform(partial(self._read_bytes, path, start, end), path, "read", None if end is None else 0)

    def _read_bytes(self, path: str, start: int | None, end: int | None) -> bytes:
        if self.is_local:
            with open(path, "rb") as file:
                file.seek(start or 0)
                return file.read(-1 if end is None else end - (start or 0))
        data: bytes = self._call("cat_file", path, start=start, end=end)
        return data

    def get(self, path: str, end: int | None = None) -> bytes | None:
        """The bytes of a file, or those up to ``end``; None where it is not there."""
        try:
            return self.read(path, end=end)
        except FileNotFoundError:
            return None

    def is_there(self) -> bool:
        """Tells whether the base folder exists; `StoreError` where it is a file.

        In an object store a folder exists only while there is a file in it.
        """
        try:
            kind = self._perform(partial(self._call, "info", self.root), self.root, "read", 0)["type"]
        except FileNotFoundError:
            return False
        if kind != "directory":
            raise StoreError(f"{self.url} is a file: a store is a folder, or the URL of one")
        return True

    def folders(self, path: str, size: int | None = None) -> list[str]:
        """The folders in a folder, symbolic links left out; ``size`` is 0 where a run waits."""
        return [entry["name"].rstrip("/") for entry in self._entries(path, size=size) if entry["type"] == "directory"]

    def files(self, path: str, size: int | None = None) -> list[File]:
        """The files in a folder without symbolic links and unfinished ones; ``size`` is 0 where a write waits."""
        return list(_files_of(self._entries(path, size=size)))

    def below(self, path: str) -> list[File]:
        """All files below a folder, by path, symbolic links and unfinished ones left out."""
        entries: list[Mapping[str, Any]] = []
        if self.is_in_memory or self._is_async:
            entries = self._entries(path, find=True)
        else:  # `find` of other file systems passes over folders that cannot be listed
            folders = [path]
            while folders:
                inside = self._entries(folders.pop())
                entries += inside
                folders += [entry["name"].rstrip("/") for entry in inside if entry["type"] == "directory"]
        return sorted(_files_of(entries), key=lambda file: file.path)

    def _entries(self, path: str, *, find: bool = False, size: int | None = None) -> list[Mapping[str, Any]]:
        """The entries of a folder, as fsspec describes them, or all files below it."""
        entries = self._perform(partial(self._list, path, find), path, "listed", size)
        # Object stores find by prefix, which may be the beginning of another folder's name; a file lists itself.
        return [entry for entry in entries if entry["name"].startswith(f"{path}/")]

    def _list(self, path: str, find: bool) -> list[Mapping[str, Any]]:
        try:
            if self.is_local:
                return _scanned(path)
            if not find:
                return list(self._call("ls", path, detail=True))
            if self.is_in_memory:  # its own `find` walks over all files for each folder
                return [
                    {"name": name, "type": "file", "size": file.size, "created": file.created}
                    for name, file in self.fs.store.copy().items()
                    if name.startswith(path)
                ]
            return list(self._call("find", path, detail=True).values())
        except (FileNotFoundError, NotADirectoryError):
            return []

    def at_once(self, act: Callable[[_T], _R], items: Iterable[_T]) -> list[_R]:
        """The results of ``act`` for each item, in order; several at a time where each is a request over the
        network."""
        items = list(items)
        if len(items) < 2 or not self._is_async:
            return [act(item) for item in items]
        with ThreadPoolExecutor(min(_AT_ONCE, len(items)), thread_name_prefix="aether-context-store") as pool:
            return list(pool.map(act, items))

    def url_of(self, path: str) -> str:
        """The URL of a file."""
        return str(self.fs.unstrip_protocol(path))

    def _call(self, name: str, *args: Any, size: int = 0, **options: Any) -> Any:
        """Calls the file system, an asynchronous one within the time limit. ``size`` is what is written, in bytes."""
        fs = self.fs
        try:
            if self.timeout_seconds is None or not self._is_async:
                return getattr(fs, name)(*args, **options)
            from fsspec.asyn import sync

            return sync(fs.loop, getattr(fs, f"_{name}"), *args, timeout=Files.seconds(self, size), **options)
        except FileNotFoundError as error:
            if _NO_BUCKET.search(f"{error} {error.__cause__}"):  # an outage: nothing says what the bucket holds
                raise StoreError(f"{self.url}: {error}") from error
            raise

    def seconds(self, size: int | None) -> float:
        """The time that a call may take that writes so many bytes; None is for what may be long to read."""
        return (self.timeout_seconds or 0.0) + (size or 0) / 1_000_000

    def _perform(self, act: Callable[[], _R], path: str, action: str, size: int | None) -> _R:
        """Returns the result of ``act``, within the time limit where there is one.

        Raises `StoreError` for whatever goes wrong, and for a local path that leaves the folder by ``..`` or a link.
        ``action`` is what is done with the path, for the message.
        """

        def guarded() -> _R:
            try:
                if self.is_local:
                    expected = self._real_root + path[len(self.root) :].rstrip("/").replace("/", os.sep)
                    if not path.startswith(self.root) or os.path.realpath(path) != expected:
                        raise StoreError(
                            f"{self.url}: {path} leads out of its folder: remove the symbolic link on the way to it"
                        )
                return act()
            except AetherContextError:
                raise
            except Exception as error:  # clients of object stores raise kinds of their own
                if action == "read" and isinstance(error, (FileNotFoundError, NotADirectoryError)):
                    raise FileNotFoundError(path) from error
                reason = str(error) or type(error).__name__
                raise StoreError(f"{self.url}: {path} could not be {action}: {reason}") from error

        if self.timeout_seconds is None or self.is_in_memory:
            return guarded()
        return self.calls.run(guarded, self.seconds(size))


@lru_cache
def _s3_session(profile: str | None) -> Any:
    """A session of the S3 client, as s3fs makes one for a profile, that reads times by the standard library.

    botocore's own reader, which goes on with the forms that this one does not know, takes more than half of the
    processor's time of a long listing.
    """
    from aiobotocore.session import AioSession
    from botocore.utils import parse_timestamp

    def parse(value: Any) -> Any:
        try:
            return datetime.fromisoformat(value)
        except (TypeError, ValueError):
            return parse_timestamp(value)

    session = AioSession(profile=profile)
    session.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=parse)
    return session


@lru_cache(maxsize=10_000)
def segment(name: str) -> str:
    """A safe path segment of at most 64 characters: lower-case names as they are, others as a stub and a hash."""
    if _SAFE.fullmatch(name) and not _RESERVED.fullmatch(name) and not name.endswith("."):
        return name
    stub = re.sub(r"[^a-z0-9]+", "-", name.lower())[:40].strip("-")
    return f"{stub}~{short(hash_text(name), 16)}"


def _scanned(path: str) -> list[Mapping[str, Any]]:
    """The entries of a local folder without symbolic links; fsspec's own listing takes a multiple of the time."""
    listing: list[Mapping[str, Any]] = []
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                listing.append({"name": entry.path, "type": "directory"})
            elif entry.is_file(follow_symlinks=False):
                with suppress(FileNotFoundError):  # deleted meanwhile
                    stat = entry.stat(follow_symlinks=False)
                    listing.append({"name": entry.path, "type": "file", "size": stat.st_size, "mtime": stat.st_mtime})
    return listing


def _files_of(entries: Iterable[Mapping[str, Any]]) -> Iterator[File]:
    """The files among fsspec's entries; folders, symbolic links and drafts are left out."""
    for entry in entries:
        name = entry["name"].rsplit("/", 1)[-1]
        if entry["type"] == "file" and name and not name.startswith(DRAFT):
            yield File(path=entry["name"], size=int(entry.get("size") or 0), modified=_modified(entry))


def _modified(entry: Mapping[str, Any]) -> float | None:
    """When a file was written, under whatever name and in whatever form the backend gives it."""
    names = ("mtime", "LastModified", "updated", "last_modified", "created")
    value = next((entry[name] for name in names if entry.get(name) is not None), None)
    value = datetime.fromisoformat(value) if isinstance(value, str) else value
    return value.timestamp() if isinstance(value, datetime) else value


def make_folder(path: str) -> None:
    """Makes a local folder and those above it that are not there, each for its owner alone."""
    if path and not os.path.isdir(path):
        make_folder(os.path.dirname(path))
        with suppress(FileExistsError):
            os.mkdir(path, 0o700)


def write_local(path: str, data: bytes, *, is_new: bool, sync: bool = False) -> bool:
    """Writes a draft, then links or renames it, so that a file is whole when it appears, and with ``sync`` on the disk.

    The file is for its owner alone. False where it exists.
    """
    if is_new and os.path.exists(path):
        return False
    draft = f"{os.path.dirname(path)}/{DRAFT}{secrets.token_hex(8)}"
    try:
        handle = os.open(draft, _DRAFT_FLAGS, 0o600)
    except FileNotFoundError:
        make_folder(os.path.dirname(path))
        handle = os.open(draft, _DRAFT_FLAGS, 0o600)
    try:
        with open(handle, "wb") as file:
            file.write(data)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        if is_new:
            try:
                os.link(draft, path)
                return True
            except FileExistsError:
                return False
            except OSError:  # a file system without hard links
                pass
        os.replace(draft, path)
        return True
    finally:
        with suppress(FileNotFoundError):
            os.unlink(draft)
