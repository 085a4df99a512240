"""A file system that can be switched off, as ``failing://``."""

from __future__ import annotations

import threading
import time
from typing import Any

import fsspec
from fsspec import AbstractFileSystem


class FailingFileSystem(AbstractFileSystem):
    """Files of this process, all instances together.

    ``down`` makes every call fail; ``refused`` are parts of paths that cannot be written; ``exits`` so many next
    calls out of the library's own threads raise SystemExit; each call takes ``delay_seconds``.
    """

    protocol = "failing"
    cachable = False
    down = False
    exits = 0
    delay_seconds = 0.0
    refused: tuple[str, ...] = ()
    held: dict[str, bytes] = {}
    calls = 0

    def _check(self) -> None:
        type(self).calls += 1
        if self.exits and threading.current_thread().name.startswith("aether-context"):
            type(self).exits -= 1
            raise SystemExit(3)
        if self.delay_seconds:
            time.sleep(self.delay_seconds)
        if self.down:
            raise ConnectionAbortedError("the store is down")

    def exists(self, path: str, **_: Any) -> bool:
        self._check()
        return path in self.held

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        self._check()
        if any(part in path for part in self.refused):
            raise PermissionError(path)
        if mode == "create" and path in self.held:
            raise FileExistsError(path)
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
        inside = {name.removeprefix(begin) for name in self.held if name.startswith(begin)}
        found = {one.split("/", 1)[0]: "directory" if "/" in one else "file" for one in inside}
        return [{"name": begin + name, "type": kind, "size": 0} for name, kind in sorted(found.items())]


fsspec.register_implementation("failing", FailingFileSystem, clobber=True)
