"""Questions that take many small look-ups: does every value still stand in the request when it is used?

    python tests/bench/lookups.py LOOKUPS.jsonl [--window 8000 ...] [--policy NAME|TOML|SETTINGS ...] [--peers]
                                  [--limit N]

A line of the file is ``{"run": …, "need": [[NUMBER, [[TEXT, …], …]], …]}``: a run in the form of tool_runs.py, here of
a scripted solver over the files of people, pets, addresses and accounts of Letta's Context-Bench (letta-evals,
Apache-2.0), and what has to stand in the request of that number: values, each with the person that it belongs to.

complete  questions of which every value stands in its request, in percent
values    values that do, in percent
paid      tokens outside the prefix shared with the request before, and a tenth of those inside, in thousands a question

The other columns are those of tool_runs.py; cells are means over questions, see sessions.py.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from peers import PEERS
from sessions import PERCENT, Figures, policy_of, print_table, rows_of
from tool_runs import COLUMNS, Request, play, plugin, price, score

OWN = {"complete": PERCENT, "values": PERCENT, "paid": (0.001, 1)}
SHARED = ("cost", "over", "invalid", "reuse")


def figures(question: Mapping[str, Any], requests: Sequence[Request], window: int) -> Figures:
    """The columns of a question."""
    total = score(question["run"], requests, window)
    kept = [all(text in requests[at].said for text in texts) for at, needed in question["need"] for texts in needed]
    return {
        "complete": (all(kept), 1),
        "values": (sum(kept), len(kept)),
        "paid": (price(total.tokens, total.cached), 1),
        **total.figures(window),
    }


def measured(
    questions: Sequence[Mapping[str, Any]], names: Sequence[str], windows: Sequence[int]
) -> Iterator[tuple[list[str], list[Figures]]]:
    """A row for each window and policy."""
    for window in windows:
        for name in names:
            made = None if name in PEERS else policy_of(name, window)
            sessions = []
            for at, question in enumerate(questions):
                plugins = PEERS[name](window) if made is None else plugin(made, at)
                sessions.append(figures(question, asyncio.run(play(question["run"], *plugins)), window))
            yield [f"{window:,}", name if made is None else f"`{name}`"], sessions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--window", type=int, nargs="+", default=[8_000], help="tokens (default: 8000)")
    parser.add_argument("--policy", nargs="*", default=["balanced"], help="presets, profiles, TOML files or settings")
    parser.add_argument("--peers", action="store_true", help="what a user could pick instead, too")
    parser.add_argument("--limit", type=int, help="only the first questions")
    given = parser.parse_args()
    names = [*given.policy, *(PEERS if given.peers else ())]
    columns = OWN | {name: COLUMNS[name] for name in SHARED}
    print_table(("window", "what"), columns, measured(rows_of(given.path)[: given.limit], names, given.window))


if __name__ == "__main__":
    main()
