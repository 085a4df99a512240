"""What conversation strategies do to recorded agent runs, by the shape of the run: rows in Markdown.

    python tests/bench/strategy_runs.py RUNS.jsonl [--window 16000 ...] [--strategy NAME[,NAME...] ...]

The file and the columns are those of tool_runs.py. Shapes are those that `aether_context.strategies.shape_of` tells
apart, read off each run's whole history; ``all`` are all runs. ``cuts`` are acts of strategies, ``freed`` the tokens
that an act freed and ``lost`` those of the cached prefix that it broke, on average.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from tool_runs import COLUMNS, Run, Score, play, score

from aether_context import PackPolicy, PackStore
from aether_context.adk import ContextPackPlugin
from aether_context.pack import Content
from aether_context.strategies import Conversation, shape_of, strategy_names
from aether_context.wire import content_of_parts, part_of

ACTS = ("cuts", "freed", "lost")


def history(run: Run) -> list[Content]:
    """The run as one conversation."""
    contents = []
    for turn in run["turns"]:
        contents.append(content_of_parts("user", [part_of({"text": turn["user"]})]))
        for step in turn["steps"]:
            said = [part_of({"text": step["text"]})] if step["text"] else []
            calls = [part_of({"function_call": {"name": c["name"], "args": c["args"]}}) for c in step["calls"]]
            results = [
                part_of({"function_response": {"name": c["name"], "response": {"result": c["result"]}}})
                for c in step["calls"]
            ]
            contents.append(content_of_parts("model", [*said, *calls]))
            if results:
                contents.append(content_of_parts("user", results))
    return contents


def measure(runs: Sequence[Run], policy: PackPolicy, window: int, shapes: Sequence[str]) -> dict[str, list[str]]:
    """A row for all runs and for each shape."""
    scores: dict[str, Score] = defaultdict(Score)
    acts: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for at, (run, shape) in enumerate(zip(runs, shapes, strict=True)):
        store = PackStore(f"memory://strategy-runs-{hash_of(policy)}-{at}")
        one = score(run, asyncio.run(play(run, ContextPackPlugin(policy=policy, store=store))), window)
        done = [(act.freed_tokens, act.lost_tokens) for m in store.manifests() for act in m.strategy_acts]
        for row in ("all", shape):
            scores[row].add(one)
            acts[row] += done
    return {row: [*scores[row].row(), *averages(acts[row])] for row in sorted(scores)}


def averages(acts: Sequence[tuple[int, int]]) -> list[str]:
    number = max(1, len(acts))
    freed, lost = (sum(column) // number for column in zip(*acts, strict=True)) if acts else (0, 0)
    return [f"{len(acts)}", f"{freed}", f"{lost}"]


def hash_of(policy: PackPolicy) -> str:
    return policy.digest.removeprefix("sha256:")[:12]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, help="a .jsonl file of recorded runs")
    parser.add_argument("--window", type=int, action="append", help="tokens; may be repeated (default: 16000)")
    parser.add_argument("--strategy", action="append", help="a name, or several with commas; may be repeated")
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    runs = [json.loads(line) for line in given.runs.read_text(encoding="utf-8").splitlines() if line]
    print("| window | runs | strategy | " + " | ".join((*COLUMNS, *ACTS)) + " |")
    print("| --- | --- | --- |" + " --- |" * (len(COLUMNS) + len(ACTS)))
    for window in given.window or [16_000]:
        shapes = [shape_of(Conversation.of(history(run), window=window, system=run["system"])).kind for run in runs]
        for name in given.strategy or strategy_names():
            policy = PackPolicy(max_input_tokens=window, conversation={"strategy": name.split(",")})
            for row, cells in measure(runs, policy, window, shapes).items():
                print(f"| {window} | {row} | {name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
