"""What tuning comes to on recorded agent runs, how long it takes and how much memory.

    python tests/bench/tuning.py RUNS.jsonl [MORE.jsonl ...] [--window 16000] [--jobs N] [--times 1]

Each run is played as in tool_runs.py, and its packs are recorded; then `aether-context tune` searches on one half of
the sessions and tests on the other. ``--times`` records every run so often, for a larger store. It prints the
command's own tables, then packs, seconds of the clock, and the largest memory of one of its processes.

    python tests/bench/tuning.py --made 60

records sessions of 30 calls that read files and quote lines of earlier ones, in a window of 2,000 tokens.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import sys
import tempfile
import time
from pathlib import Path

from sessions import rows_of
from tool_runs import play

from aether_context import PackPolicy, PackStore
from aether_context.adk import ContextPackPlugin
from aether_context.cli import main as command


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="*", help=".jsonl files of recorded runs")
    parser.add_argument("--made", type=int, default=0, help="sessions that are made in the place of recorded runs")
    parser.add_argument("--window", type=int, default=16_000, help="tokens (default: 16000)")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default: 2)")
    parser.add_argument("--times", type=int, default=1, help="sessions of each run (default: 1)")
    given = parser.parse_args()
    policy = PackPolicy(max_input_tokens=given.window)
    with tempfile.TemporaryDirectory() as folder:
        for run in [run for path in given.runs for run in rows_of(path)] * given.times:
            asyncio.run(play(run, ContextPackPlugin(policy=policy, store=folder)))
        if given.made:
            sys.path.append(str(Path(__file__).parents[1]))
            from recorded_sessions import record

            record(PackStore(folder), given.made)
        began = time.perf_counter()
        command(["tune", folder, "--jobs", str(given.jobs)], standalone_mode=False)
        seconds = time.perf_counter() - began
        largest = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        print(f"{len(PackStore(folder).places())} packs, {seconds:.0f} s, {largest // 1024} MB")


if __name__ == "__main__":
    main()
