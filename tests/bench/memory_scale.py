"""Writes, opens and searches the memories of one user, by how many there are.

    python memory_scale.py locomo.json [--sizes 1000 10000 100000] [--embedder NAME] [--folder PATH]

The file is that of LoCoMo (Maharana et al., 2024). A memory is the beginning of one turn, the end of another one
and a reference of its own, 20 of them a session and a write; what is asked are other turns. One process writes them
into a `HybridMemoryService`; another one opens the file, searches it 200 times and says what it takes. Milliseconds are
of processor time, all threads together, and of elapsed time behind a slash.

add        ms a memory, blocks that are kept in the background included
reopen     seconds from opening the file to the first answer, models loaded in between
again      seconds of the same once more in that process, in which the models are loaded
p50, p95   ms a search, through ADK's interface
resident   MB of the process that searches, ADK included
file       MB
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from turn_recall import turns

COLUMNS = ("memories", "add", "reopen", "again", "p50", "p95", "resident", "file")
SEARCHES = 200
AT_ONCE = 20
WHO = ("bench", "ann")


class Clock:
    """Processor and elapsed seconds since it was made."""

    def __init__(self) -> None:
        self._began = (time.process_time(), time.perf_counter())

    def read(self) -> tuple[float, float]:
        return time.process_time() - self._began[0], time.perf_counter() - self._began[1]


def said(path: Path) -> list[list[str]]:
    """The words of every turn."""
    samples = json.loads(path.read_text())
    return [turn.text.split() for sample in samples for turn in turns(sample["conversation"])]


def memories(spoken: list[list[str]], count: int) -> Iterator[str]:
    choice = random.Random(0)
    for number in range(count):
        begin, end = choice.choice(spoken), choice.choice(spoken)
        yield " ".join([*begin[: len(begin) // 2 + 1], *end[len(end) // 2 :], f"ref{number}"])


def write(args: argparse.Namespace) -> dict[str, float]:
    from aether_context.adk import HybridMemoryService
    from aether_context.memory import Memory

    service = HybridMemoryService(args.file, embedder=args.embedder)
    texts = list(memories(said(args.path), args.count))
    clock = Clock()
    for first in range(0, len(texts), AT_ONCE):
        some = [
            Memory(
                name=f"m{number}",
                text=texts[number],
                session=f"s{first}",
                author="Ann",
                timestamp=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(1_600_000_000 + 60 * number)),
            )
            for number in range(first, min(first + AT_ONCE, len(texts)))
        ]
        service.memories.add(*WHO, some)
    asyncio.run(service.close())
    spent, elapsed = clock.read()
    return {"cpu": 1_000 * spent / len(texts), "elapsed": 1_000 * elapsed / len(texts)}


def read(args: argparse.Namespace) -> dict[str, object]:
    from aether_context.adk import HybridMemoryService

    questions = [" ".join(words) for words in said(args.path)]
    random.Random(1).shuffle(questions)

    async def run() -> dict[str, object]:
        async def open_() -> tuple[HybridMemoryService, tuple[float, float]]:
            clock = Clock()
            service = HybridMemoryService(args.file, embedder=args.embedder)
            found = await service.search_memory(app_name=WHO[0], user_id=WHO[1], query=questions[0])
            assert found.memories
            return service, clock.read()

        service, first = await open_()
        spent = []
        for question in questions[1 : 1 + SEARCHES]:
            clock = Clock()
            await service.search_memory(app_name=WHO[0], user_id=WHO[1], query=question)
            spent.append(clock.read())
        held = resident()
        _, second = await open_()
        return {"opened": [first, second], "spent": spent, "resident": held}

    return asyncio.run(run())


def resident() -> float:
    """MB of this process that are in memory."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) / 1_024


def measure(args: argparse.Namespace, count: int, folder: str) -> list[str]:
    file = os.path.join(folder, f"{count}.sqlite")
    common = [sys.executable, __file__, str(args.path), "--file", file, "--count", str(count)]
    common += ["--embedder", args.embedder] if args.embedder else []
    written, found = (
        json.loads(subprocess.run([*common, "--act", act], check=True, capture_output=True, text=True).stdout)
        for act in ("write", "read")
    )
    ranked = [sorted(1_000 * one[kind] for one in found["spent"]) for kind in (0, 1)]
    p50, p95 = ("{:.1f} / {:.1f}".format(*(one[int(len(one) * share)] for one in ranked)) for share in (0.5, 0.95))
    (spent, elapsed), (spent_again, elapsed_again) = found["opened"]
    return [
        f"{count:,}",
        f"{written['cpu']:.2f} / {written['elapsed']:.2f}",
        f"{spent:.2f} / {elapsed:.2f}",
        f"{spent_again:.2f} / {elapsed_again:.2f}",
        p50,
        p95,
        f"{found['resident']:.0f}",
        f"{os.path.getsize(file) / 2**20:.1f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--embedder", help="by name; the default is the service's")
    parser.add_argument("--folder", help="where files are made and left (default: a temporary one)")
    parser.add_argument("--act", choices=["write", "read"], help=argparse.SUPPRESS)
    parser.add_argument("--file", help=argparse.SUPPRESS)
    parser.add_argument("--count", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.act:
        print(json.dumps({"write": write, "read": read}[args.act](args)))
        return
    for row in (COLUMNS, ["---"] * len(COLUMNS)):
        print("| " + " | ".join(row) + " |")
    with tempfile.TemporaryDirectory() as folder:
        for count in args.sizes:
            print("| " + " | ".join(measure(args, count, args.folder or folder)) + " |", flush=True)


if __name__ == "__main__":
    main()
