"""What recorded agent runs leave in a store, and what writing it takes: rows in Markdown.

    python tests/bench/store_bytes.py RUNS.jsonl [MORE.jsonl ...] [--window 16000] [--limit N] [--check]

The files are those of tool_runs.py; each run is a session in one store, a folder. Figures are by model call. ``bytes``
are those of the files, ``texts`` what of them is the conversation itself, the texts of messages, calls and results that
no earlier call held; ``on disk`` counts blocks of 4 KB. ``CPU ms`` is the processor time of the thread that writes.
``--check`` verifies and replays every pack.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tool_runs import Run, play

from aether_context import PackPolicy, PackStore
from aether_context.adk import ContextPackPlugin
from aether_context.adk.services.recorder import Recorder
from aether_context.store.files import File
from aether_context.store.replay import Replayer

BLOCK = 4_096
BATCH = 32
"""Runs that are played before anything is looked at."""


class Timed(Recorder):
    """Keeps the processor time that its jobs take, in seconds."""

    spent = 0.0

    def _attempt(self, job: Callable[[], object]) -> bool:
        began = time.thread_time()
        try:
            return super()._attempt(job)
        finally:
            Timed.spent += time.thread_time() - began


def texts(runs: list[Run]) -> int:
    """Bytes of what the runs said, called and returned."""
    size = 0
    for run in runs:
        for turn in run["turns"]:
            size += len(turn["user"].encode())
            for step in turn["steps"]:
                size += len(step["text"].encode())
                for call in step["calls"]:
                    size += len(json.dumps(call["args"], ensure_ascii=False).encode()) + len(call["result"].encode())
    return size


def kind(file: File) -> str:
    """The last part of a path that is no hash, id or hour."""
    if "/hours/" in file.path:
        return "hours"
    name = file.name
    if re.match(r"[0-9a-f]{16,}|pack_", name):
        folders = [piece for piece in file.path.split("/")[:-1] if len(piece) > 1]
        return folders[-1] if not folders[-1].startswith("pack_") else folders[-2]
    return name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--window", type=int, default=16_000)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    runs = [json.loads(line) for path in given.paths for line in path.read_text().splitlines() if line.strip()]
    runs = runs[: given.limit]
    with tempfile.TemporaryDirectory() as folder:
        measure(runs, PackStore(folder), given.window, given.check)


def measure(runs: list[Run], store: PackStore, window: int, check: bool) -> None:
    recorder = Timed(store)
    policy = PackPolicy(max_input_tokens=window)
    calls = 0
    for run in runs:
        plugin = ContextPackPlugin(policy=policy, store=store)
        plugin._packer._recorder = recorder
        calls += len(asyncio.run(play(run, plugin)))
    asyncio.run(recorder.flush(60))
    files = store.files.below(store.files.root)
    sizes, numbers = Counter[str](), Counter[str]()
    for file in files:
        sizes[kind(file)] += file.size
        numbers[kind(file)] += 1
    on_disk = sum(-(-file.size // BLOCK) * BLOCK for file in files)
    said = texts(runs)
    print(f"{calls:,} calls of {len(runs)} runs\n")
    print("| | files | bytes |\n| --- | ---: | ---: |")
    for name, size in sizes.most_common():
        print(f"| {name} | {numbers[name] / calls:.2f} | {size / calls:,.0f} |")
    print(f"| all | {len(files) / calls:.2f} | {sum(sizes.values()) / calls:,.0f} |")
    print(f"| texts | | {said / calls:,.0f} |")
    print(f"| without the texts | | {(sum(sizes.values()) - said) / calls:,.0f} |")
    print(f"| on disk | | {on_disk / calls:,.0f} |")
    print(f"\nCPU ms of the recorder: {1_000 * Timed.spent / calls:.2f} a call")
    if check:
        replayer, packs, outcomes = Replayer(store), 0, 0
        for manifest in store.manifests():
            manifest.verify()
            assert replayer.replay(manifest).matches
            packs += 1
            outcomes += store.outcome(manifest) is not None
        print(f"{packs:,} packs verify and replay, {outcomes:,} outcomes")


if __name__ == "__main__":
    main()
