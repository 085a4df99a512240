"""A file system that fails in the ways that stores do, as ``failing://``, and short waits for services that hang."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import fsspec
from fsspec import AbstractFileSystem

LATE_SECONDS = 1.0


class FailingFileSystem(AbstractFileSystem):
    """Files of this process, all instances together: synchronous, as SFTP and SMB are.

    ``down`` makes every call fail; ``refused`` are parts of paths that cannot be written; ``exits`` so many next
    calls out of the library's own threads raise SystemExit; each call takes ``delay_seconds``. `begin` and `end` are
    of a fault by its name, of which calls that hang wait for the end; a write that is ``late`` fails, and arrives a
    second later, behind what was written in its place meanwhile.
    """

    protocol = "failing"
    cachable = False
    down = False
    exits = 0
    delay_seconds = 0.0
    refused: tuple[str, ...] = ()
    fault = ""
    ends = threading.Event()
    held: dict[str, bytes] = {}
    calls = 0

    @classmethod
    def begin(cls, fault: str) -> None:
        cls.fault = fault
        cls.down, cls.delay_seconds = fault == "down", 0.2 * (fault == "slow")
        cls.refused = ("",) * (fault == "refuses")
        cls.ends.clear()

    @classmethod
    def end(cls) -> None:
        cls.begin("")
        cls.exits = 0
        cls.ends.set()

    def _check(self, path: str = "", value: bytes | None = None) -> None:
        cls = type(self)
        cls.calls += 1
        if self.exits and threading.current_thread().name.startswith("aether-context"):
            cls.exits -= 1
            raise SystemExit(3)
        if self.delay_seconds:
            time.sleep(self.delay_seconds)
        if self.down:
            raise ConnectionAbortedError("the store is down")
        if self.fault == "hangs":
            self.ends.wait(600)
        if self.fault == "third" and cls.calls % 3 == 0:
            raise ConnectionResetError("reset by peer")
        if value is None:
            return
        if any(part in path for part in self.refused):
            raise PermissionError(path)
        if value and self.fault == "full":  # an empty file takes no room
            raise OSError(errno.ENOSPC, "No space left on device")
        if self.fault == "torn":
            self.held[path] = value[: len(value) // 2]
            raise ConnectionResetError("reset by peer")

    def exists(self, path: str, **_: Any) -> bool:
        self._check()
        return path in self.held

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        self._check()
        return {"name": path, "type": "file" if path in self.held else "directory", "size": 0}

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        if mode == "create" and path in self.held and not self.down:
            raise FileExistsError(path)
        self._check(path, value)
        if self.fault == "late":
            arrives = self.held.setdefault if mode == "create" else self.held.__setitem__
            timer = threading.Timer(LATE_SECONDS, arrives, (path, value))
            timer.daemon = True
            timer.start()
            raise TimeoutError("no answer to the PUT, which arrives later")
        self.held[path] = value

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        self._check()
        if path not in self.held:
            raise FileNotFoundError(path)
        return self.held[path][start:end]

    def rm_file(self, path: str) -> None:
        self._check()
        if self.held.pop(path, None) is None:
            raise FileNotFoundError(path)

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[dict[str, Any]]:
        self._check()
        begin = f"{path.rstrip('/')}/"
        inside = {name.removeprefix(begin) for name in list(self.held) if name.startswith(begin)}
        found = {one.split("/", 1)[0]: "directory" if "/" in one else "file" for one in inside}
        return [{"name": begin + name, "type": kind, "size": 0} for name, kind in sorted(found.items())]


fsspec.register_implementation("failing", FailingFileSystem, clobber=True)


@contextmanager
def short_waits(seconds: float = 0.05) -> Iterator[None]:
    """For so many seconds a call waits for its memory search, its embedder, and the model of its summaries."""
    with (
        patch("aether_context.adk.bounds.Waits.seconds", seconds),
        patch("aether_context.adk.models.texts.ModelSummarizer.seconds", seconds),
    ):
        yield


def wait_until(found: Callable[[], object], seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while not found():
        assert time.monotonic() < until
        time.sleep(0.01)
