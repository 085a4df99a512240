"""How long packing takes and what lending keeps, on the working sessions of tests/scenarios.py.

    python tests/bench/scenarios.py [--rounds N]

Two tables in Markdown. The first has milliseconds of `build_pack` by window, warm: counts are remembered, as they are
from the second model call of a process on. It gives the median and the slowest of the sessions' medians. The second has
the evidence that covers an item of the step's checklist and is still in the request, whole or shortened, with lending
and without: pieces, and tokens of what is sent.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import scenarios

from aether_context import PackPolicy, build_pack
from aether_context.counting import Memo
from aether_context.pack import Ingredients, Pack
from aether_context.tokens import counter_for


def sessions(window: int) -> Iterator[tuple[Ingredients, scenarios.Scenario, str]]:
    """Every session with every preset."""
    for name in scenarios.NAMES:
        scenario = scenarios.load(name)
        for preset in scenarios.PRESETS:
            yield scenario.ingredients(window), scenario, preset


def warm_ms(source: Ingredients, policy: PackPolicy, rounds: int) -> float:
    """The median of so many builds after a first one."""
    counter, memo = counter_for(source.request.model), Memo()
    build_pack(source, policy, counter=counter, memo=memo)
    spent = []
    for _ in range(rounds):
        began = time.perf_counter()
        build_pack(source, policy, counter=counter, memo=memo)
        spent.append(time.perf_counter() - began)
    return 1000 * statistics.median(spent)


def covered(pack: Pack) -> tuple[int, int]:
    """Pieces and sent tokens of the evidence in a pack that covers an item of the step's checklist."""
    items = {item.id for item in pack.source.step.acceptance}
    sent = [
        fate.tokens if fate.sent_tokens is None else fate.sent_tokens
        for fate in pack.fates
        if fate.layer == "evidence" and fate.state in ("kept", "summary") and items.intersection(fate.covers)
    ]
    return len(sent), sum(sent)


def pack_times(rounds: int) -> Iterator[Sequence[str]]:
    every = []
    for window in scenarios.WINDOWS:
        found = [warm_ms(source, scenario.policy(preset), rounds) for source, scenario, preset in sessions(window)]
        every += found
        yield f"{window:,}", f"{statistics.median(found):.1f}", f"{max(found):.1f}"
    yield "all", f"{statistics.median(every):.1f}", f"{max(every):.1f}"


def lending() -> Iterator[Sequence[str]]:
    for window in scenarios.WINDOWS:
        sums = {True: (0, 0), False: (0, 0)}
        for source, scenario, preset in sessions(window):
            for lends, (pieces, tokens) in sums.items():
                more = covered(build_pack(source, scenario.policy(preset, budget={"lending": lends})))
                sums[lends] = (pieces + more[0], tokens + more[1])
        yield f"{window:,}", *(f"{number:,}" for number in (*sums[True], *sums[False]))


def print_table(heads: Sequence[str], rows: Iterator[Sequence[str]]) -> None:
    for row in (heads, ["---"] * len(heads), *rows):
        print("| " + " | ".join(row) + " |")
    print()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=21, help="builds of each pack that are timed (default: 21)")
    rounds = parser.parse_args().rounds
    print_table(("window", "median ms", "slowest session ms"), pack_times(rounds))
    print_table(("window", "pieces, lending", "tokens, lending", "pieces, none", "tokens, none"), lending())


if __name__ == "__main__":
    main()
