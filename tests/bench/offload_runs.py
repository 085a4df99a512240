"""What offload does to recorded agent runs: rows in Markdown, without it and with it.

    python tests/bench/offload_runs.py RUNS.jsonl [--window 16000 ...] [--policy FILE.toml ...] [--limit N]

The file and the columns are those of tool_runs.py. ``offloaded`` are the tokens of tool results that are not sent when
a result is first shown, in percent of all. ``read`` are lines, too: those in the request, and those that one call of
``search_artifact`` with the line as its query brings back by an address that stands in the request; ``cost`` with
``read`` pays for what those calls answer, once a result and request.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tool_runs import COLUMNS, Request, Run, long_lines, play, score, tokens
from tool_runs import Score as Sums

from aether_context import PackPolicy, PackStore
from aether_context.adk import ContextPackPlugin
from aether_context.adk.packer import READ_TOKENS
from aether_context.evidence.lines import view_of
from aether_context.evidence.passages import Searcher
from aether_context.tokens import counter_for

MODES = {"off": {}, "session": {"mode": "session"}, "request": {"mode": "request"}}


@dataclass
class Read:
    """Sums over requests: tokens of results as they are and as they are shown first, lines needed, in the request and
    read back, and tokens that reading them takes."""

    whole: int = 0
    shown: int = 0
    lines: int = 0
    kept: int = 0
    answered: int = 0

    def add(self, other: Read) -> None:
        self.whole += other.whole
        self.shown += other.shown
        self.lines += other.lines
        self.kept += other.kept
        self.answered += other.answered


def read_back(run: Run, requests: Sequence[Request], store: PackStore) -> Read:
    """What an agent could have read back at each request, and what that would have cost."""
    total = Read()
    manifest = next(store.manifests())
    scope = (manifest.app, manifest.user, manifest.session)
    stored = [one for one in store.evidence(*scope) if one.form == "extract"]
    searchers = {one.uri: Searcher(view_of(store.evidence_data(*scope[:2], one.digest).decode())) for one in stored}
    said = run["system"]
    steps = [(turn["user"] if at == 0 else "", step) for turn in run["turns"] for at, step in enumerate(turn["steps"])]
    for at, ((user, step), request) in enumerate(zip(steps, requests, strict=False)):
        said += f"\n{user}"
        needed = sorted(line for line in long_lines(step) if line in said)
        here = [searchers[uri] for uri in searchers if uri in request.said]
        total.add(_found(needed, request, here))
        results = [call["result"] for call in step["calls"]]
        said += "\n".join(["", step["text"], *(json_text(call["args"]) for call in step["calls"]), *results])
        if results and at + 1 < len(requests):
            blocks = [one for one in requests[at + 1].blocks if one.startswith("user:response:")][-len(results) :]
            total.whole += sum(tokens(json.dumps({"result": text}, ensure_ascii=False)) for text in results)
            total.shown += sum(tokens(one.split(":", 3)[3]) for one in blocks)
    return total


def _found(needed: Sequence[str], request: Request, here: Sequence[Searcher]) -> Read:
    read = Read(lines=len(needed))
    answers: dict[int, str] = {}
    counter = counter_for("")
    for line in needed:
        if line in request.said or any(line in text for text in answers.values()):
            read.kept += 1
            continue
        for at, searcher in enumerate(here):
            if line not in "\n".join(searcher.view.lines):
                continue
            found = searcher.search(line, max_tokens=READ_TOKENS, counter=counter)
            answer = "\n".join(one.text for one in found.excerpts)
            if line in answer:
                read.kept += 1
                read.answered += tokens(answer)
                answers[at] = answers.get(at, "") + answer
                break
    return read


def json_text(value: object) -> str:
    """The texts and numbers of a value, a line each."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return "\n".join(map(json_text, value))
    return str(value)


def measure(runs: Sequence[Run], policy: PackPolicy, window: int) -> list[str]:
    """A row for all runs, each in a session and a store of its own."""
    sums, read = Sums(), Read()
    for at, run in enumerate(runs):
        store = PackStore(f"memory://offload-runs-{policy.offload.mode}-{at}")
        requests = asyncio.run(play(run, ContextPackPlugin(policy=policy, store=store)))
        sums.add(score(run, requests, window))
        read.add(read_back(run, requests, store, policy.offload))
        store.files.fs.rm(store.files.root, recursive=True)
    full = sums.full - 0.9 * sums.full_cached
    cost = (sums.tokens - 0.9 * sums.cached + read.answered) / full
    offloaded = 100 * (1 - read.shown / max(1, read.whole))
    return [f"{offloaded:.1f}", *sums.row(), f"{100 * read.kept / max(1, read.lines):.1f}", f"{cost:.3f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, help="a .jsonl file of recorded runs")
    parser.add_argument("--window", type=int, action="append", help="tokens of the window (default: 16000 and 8000)")
    parser.add_argument("--policy", action="append", help="a TOML file, in the place of the three modes")
    parser.add_argument("--limit", type=int, help="only the first runs of the file")
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    runs = [json.loads(line) for line in given.runs.read_text(encoding="utf-8").splitlines() if line][: given.limit]
    columns = ("window", "offload", "offloaded", *COLUMNS, "read", "cost with `read`")
    print("| " + " | ".join(columns) + " |")
    print("|" + " --- |" * len(columns))
    for window in given.window or (16_000, 8_000):
        named = {path: PackPolicy.load(path, max_input_tokens=window) for path in given.policy or ()}
        modes = {mode: PackPolicy(max_input_tokens=window, offload=changes) for mode, changes in MODES.items()}
        for name, policy in (named or modes).items():
            print(f"| {window:,} | {name} | " + " | ".join(measure(runs, policy, window)) + " |", flush=True)


if __name__ == "__main__":
    main()
