"""What the plugin does in model calls, counted: no figure depends on how fast or busy a machine is.

    python tests/bench/steps.py

The sessions are those of `gate.py`: a scripted model calls a plain function five times for each question. Counted are
the functions of the package that all callbacks of a model call enter and the lines of it that they execute, in threads
that they wait for, too; and what an object store gets to do for a call. Where a figure passes its bound, the script
exits with 1. `gate.py` tells the time of the same calls.

append                 a call that only appends to the one before it; medians
message, cut           the first call for a new user message; a call that cuts the conversation
live content           what each content more adds to a call that only appends: 1,000 in the window beside 100
bytes, writes, reads   what a call brings to the store, those of its answer included; means of all
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import statistics
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from types import FrameType
from typing import Any

import fsspec
import gate
from fsspec import AbstractFileSystem

from aether_context import PackPolicy
from aether_context.adk import ContextPackPlugin

BOUNDS = {
    "append: functions": 2_600, "append: lines": 17_500,
    "message: functions": 9_200, "message: lines": 38_000,
    "cut: functions": 62_000, "cut: lines": 280_000,
    "live content: functions": 3, "live content: lines": 69,
    "bytes": 6_620, "writes": 1.48, "reads": 0.46,
}  # fmt: skip
"""A tenth above the figures; they go down with them. These sessions recall turns: their rows are in each receipt,
and a cut chooses them anew."""
QUESTIONS = 12
LIVE = (100, 1_000)
_numbers = itertools.count(1)
_PACKAGE = gate.aether_context.__path__[0]


class Counted(ContextPackPlugin):
    """Counts functions and lines of the package that the callbacks of a model call run, by what the call is."""

    def __init__(self, window: int = gate.WINDOW) -> None:
        store = f"counted://steps-{next(_numbers)}"
        super().__init__(policy=PackPolicy(max_input_tokens=window), store=store, on_error="raise")
        self.counts: dict[str, list[Counter[str]]] = defaultdict(list)
        self._of_call: Counter[str] = Counter()

    def __getattribute__(self, name: str) -> Any:
        attribute = super().__getattribute__(name)
        if not name.endswith("_callback"):
            return attribute

        async def counted(**arguments: Any) -> Any:
            counts: Counter[str] = Counter()
            with counting(counts):
                result = await attribute(**arguments)
            if name == "before_model_callback":
                pack = self._packer.last(arguments["callback_context"]).pack
                is_cut = any(event.stage == "cut" for event in pack.events)
                kind = "cut" if is_cut else "message" if pack.source.request.first_call else "append"
                self._of_call = Counter()
                self.counts[kind].append(self._of_call)
            self._of_call.update(counts)
            return result

        return counted


class counting:  # noqa: N801 - a context manager that reads as a verb
    """Counts functions and lines of the package that run meanwhile, in this thread and in those that begin."""

    def __init__(self, counts: Counter[str]) -> None:
        def of_function(frame: FrameType, event: str, _: object) -> Callable[..., Any]:
            counts["lines"] += event == "line"
            return of_function

        def of_call(frame: FrameType, event: str, _: object) -> Callable[..., Any] | None:
            if not frame.f_code.co_filename.startswith(_PACKAGE):
                return None
            counts["functions"] += 1
            return of_function

        self.trace = of_call

    def __enter__(self) -> None:
        sys.settrace(self.trace)
        threading.settrace(self.trace)

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]


class CountedFileSystem(AbstractFileSystem):
    """Files of this process, as an object store has them; ``counts`` are what was asked of it."""

    protocol = "counted"
    cachable = False
    objects: dict[str, bytes] = {}
    counts: Counter[str] = Counter()

    def exists(self, path: str, **_: Any) -> bool:
        self.counts["reads"] += 1
        return path in self.objects

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        self.counts["reads"] += 1
        return {"name": path, "type": "file" if path in self.objects else "directory", "size": 0}

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        self.counts.update(writes=1, bytes=len(value))
        if mode == "create" and path in self.objects:
            raise FileExistsError(path)
        self.objects[path] = value

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        self.counts["reads"] += 1
        if path not in self.objects:
            raise FileNotFoundError(path)
        return self.objects[path][start:end]

    def rm_file(self, path: str) -> None:
        del self.objects[path]

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[dict[str, Any]]:
        self.counts["reads"] += 1
        begin = f"{path.rstrip('/')}/"
        names = {name.removeprefix(begin) for name in list(self.objects) if name.startswith(begin)}
        kinds = {name.split("/", 1)[0]: "directory" if "/" in name else "file" for name in names}
        return [{"name": begin + name, "type": kind, "size": 0} for name, kind in sorted(kinds.items())]


fsspec.register_implementation("counted", CountedFileSystem, clobber=True)


async def asked(events: int, window: int, questions: int) -> tuple[Counted, int]:
    """A session of so many events with questions asked of it, and its model calls."""
    plugin = Counted(window)
    conversation = gate.Conversation(plugin)
    await conversation.fill(events)
    await conversation.ask()
    plugin.counts.clear()
    CountedFileSystem.counts.clear()
    for _ in range(questions):
        await conversation.ask()
    await plugin.close()
    return plugin, questions * (len(gate.SIZES) + 1)


async def measured() -> dict[str, float]:
    plugin, calls = await asked(gate.SHORT, gate.WINDOW, QUESTIONS)
    stored = {name: CountedFileSystem.counts[name] / calls for name in ("bytes", "writes", "reads")}
    rows: dict[str, float] = {}
    for kind in ("append", "message", "cut"):
        for what in ("functions", "lines"):
            rows[f"{kind}: {what}"] = statistics.median(counts[what] for counts in plugin.counts[kind])
    few, many = [(await asked(events, 1_000_000, 1))[0] for events in LIVE]
    for what in ("functions", "lines"):
        more = [statistics.median(counts[what] for counts in plugin.counts["append"]) for plugin in (few, many)]
        rows[f"live content: {what}"] = (more[1] - more[0]) / (LIVE[1] - LIVE[0])
    return rows | stored


def main() -> int:
    logging.disable(logging.WARNING)
    rows = asyncio.run(measured())
    print("| a model call | counted | bound |\n| --- | --- | --- |")
    for name, figure in rows.items():
        print(f"| {name} | {figure:,.1f} | {BOUNDS[name]:,g} |")
    over = [name for name, figure in rows.items() if figure > BOUNDS[name]]
    print(f"over its bound: {', '.join(over) or 'none'}")
    return int(bool(over))


if __name__ == "__main__":
    sys.exit(main())
