"""What conversation strategies do to recorded agent runs, by the shape of the run: rows in Markdown.

    python tests/bench/strategy_runs.py RUNS.jsonl [--window 16000 ...] [--strategy NAME[,NAME...] ...] [--peers]
                                        [--shapes]

The file and the columns are those of tool_runs.py; ``usable`` are the lines kept in requests that a provider takes,
within the window and valid, in percent of all. ``cuts`` are acts of strategies, ``freed`` the tokens that an act freed
and ``lost`` those of the cached prefix that it broke, on average. Shapes are those that
`aether_context.conversation.shape_of` tells apart, read off each run's whole history. A run that fits is the same under
every strategy and is played once.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from peers import PEERS
from tool_runs import COLUMNS, Run, Score, play, score

from aether_context import PackPolicy, PackStore
from aether_context.adk import ContextPackPlugin
from aether_context.conversation import Conversation, shape_of, strategy_names
from aether_context.conversation.content_json import content_of_parts, part_of
from aether_context.pack import Content

ACTS = ("cuts", "freed", "lost")
SHOWN = ("over", "invalid", "grounded", "lines", "usable", "cost", "reuse")
_FITTING: dict[tuple[int, int], Score] = {}


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


def measure(runs: Sequence[Run], policy: PackPolicy, window: int, shapes: Sequence[str]) -> Mapping[str, list[str]]:
    """A row for all runs and for each shape."""
    scores: dict[str, Score] = defaultdict(Score)
    acts: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for at, (run, shape) in enumerate(zip(runs, shapes, strict=True)):
        store = PackStore(f"memory://strategy-runs-{hash_of(policy)}-{at}")
        one = _FITTING.get((window, at))
        if one is None:
            one = score(run, asyncio.run(play(run, ContextPackPlugin(policy=policy, store=store))), window)
        done = [(act.freed_tokens, act.lost_tokens) for m in store.manifests() for act in m.strategy_acts]
        if shape == "short" and not done:
            _FITTING[window, at] = one
        for row in ("all", shape):
            scores[row].add(one)
            acts[row] += done
    return {row: [*cells(scores[row]), *averages(acts[row])] for row in sorted(scores)}


def measure_peer(runs: Sequence[Run], name: str, window: int) -> list[str]:
    """The row of something else."""
    total = Score()
    for run in runs:
        total.add(score(run, asyncio.run(play(run, *PEERS[name](window))), window))
    return [*cells(total), *("" for _ in ACTS)]


def cells(total: Score) -> list[str]:
    usable = f"{100 * total.lines_usable / max(total.lines, 1):.1f}"
    row = dict(zip(COLUMNS, total.row(), strict=True))
    return [usable if name == "usable" else row[name] for name in SHOWN]


def averages(acts: Sequence[tuple[int, int]]) -> list[str]:
    number = max(1, len(acts))
    freed, lost = (sum(column) // number for column in zip(*acts, strict=True)) if acts else (0, 0)
    return [f"{len(acts)}", f"{freed}", f"{lost}"]


def hash_of(policy: PackPolicy) -> str:
    return policy.digest.removeprefix("sha256:")[:12]


def print_rows(rows: Iterable[Sequence[str]]) -> None:
    for row in rows:
        print("| " + " | ".join(row) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, help="a .jsonl file of recorded runs")
    parser.add_argument("--window", type=int, action="append", help="tokens; may be repeated (default: 16000)")
    parser.add_argument("--strategy", action="append", help="a name, or several with commas; may be repeated")
    parser.add_argument("--peers", action="store_true", help="what a user could pick instead, too")
    parser.add_argument("--shapes", action="store_true", help="a row for each shape, too")
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    runs = [json.loads(line) for line in given.runs.read_text(encoding="utf-8").splitlines() if line]
    heads = ("window", "runs", "strategy", *SHOWN, *ACTS)
    print_rows([heads, ["---"] * len(heads)])
    for window in given.window or [16_000]:
        shapes = [shape_of(Conversation.of(history(run), window=window, system=run["system"])).kind for run in runs]
        for name in given.strategy or strategy_names():
            policy = PackPolicy(max_input_tokens=window, conversation={"strategy": name.split(",")})
            found = measure(runs, policy, window, shapes).items()
            print_rows([f"{window}", row, f"`{name}`", *one] for row, one in found if given.shapes or row == "all")
        for name in PEERS if given.peers else ():
            print_rows([[f"{window}", "all", name, *measure_peer(runs, name, window)]])


if __name__ == "__main__":
    main()
