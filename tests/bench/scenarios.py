"""How long packing takes, and what lending and tightening keep, on the working sessions of tests/scenarios.py.

    python tests/bench/scenarios.py [--rounds N]

Three tables in Markdown, each over all sessions with the presets quality_first and cost_first.

pack time    milliseconds of `build_pack` by window, warm: counts are remembered, as they are from the second model call
             of a process on. Processor time, which is all the time there is where nothing else runs. The median of the
             sessions' medians, and the slowest session's.
lending      evidence that covers an item of the step's checklist and is in the request, whole or shortened, with
             lending and without: pieces and tokens sent, after forty turns and at a session's first call.
tightening   the same at a session's first call and right after it: an epoch that begins shortens declarations and the
             step before it drops anything, one under way does not.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import scenarios

from aether_context import PackPolicy, build_pack
from aether_context.pack import Pack, PackInput
from aether_context.tokens import counter_for
from aether_context.tokens.cache import TokenCache

SCARCE = (2_000, 2_500, 3_000, 3_500, 4_000, 5_000, 6_000, 8_000)
"""Windows in which these sessions have to leave something out beside the conversation, and the first in which not."""


def sessions(window: int, turns: int = scenarios.TURNS) -> Iterator[tuple[PackInput, scenarios.Scenario, str]]:
    """Every session with every preset."""
    for name in scenarios.NAMES:
        scenario = scenarios.load(name)
        for preset in scenarios.PRESETS:
            yield scenario.pack_input(window, turns=turns), scenario, preset


def warm_ms(source: PackInput, policy: PackPolicy, rounds: int) -> float:
    """The median of so many builds after a first one."""
    counter, cache = counter_for(source.request.model), TokenCache()
    build_pack(source, policy, counter=counter, cache=cache)
    spent = []
    for _ in range(rounds):
        began = time.process_time()
        build_pack(source, policy, counter=counter, cache=cache)
        spent.append(time.process_time() - began)
    return 1000 * statistics.median(spent)


def covering(packs: Iterable[Pack]) -> tuple[str, str]:
    """Pieces and sent tokens of the evidence in packs that covers an item of the step's checklist."""
    sent = []
    for pack in packs:
        items = {item.id for item in pack.source.step.acceptance}
        sent += [
            fate.tokens if fate.sent_tokens is None else fate.sent_tokens
            for fate in pack.outcomes
            if fate.layer == "evidence" and fate.state in ("kept", "summary") and items.intersection(fate.covers)
        ]
    return f"{len(sent):,}", f"{sum(sent):,}"


def pack_times(rounds: int) -> Iterator[Sequence[str]]:
    every = []
    for window in scenarios.WINDOWS:
        found = [warm_ms(source, scenario.policy(preset), rounds) for source, scenario, preset in sessions(window)]
        every += found
        yield f"{window:,}", f"{statistics.median(found):.1f}", f"{max(found):.1f}"
    yield "all", f"{statistics.median(every):.1f}", f"{max(every):.1f}"


def lending() -> Iterator[Sequence[str]]:
    for window in SCARCE:
        row = [f"{window:,}"]
        for turns in (scenarios.TURNS, 0):
            for lends in (True, False):
                row += covering(
                    build_pack(source, scenario.policy(preset, budget={"lending": lends}))
                    for source, scenario, preset in sessions(window, turns)
                )
        yield row


def tightening() -> Iterator[Sequence[str]]:
    for window in SCARCE:
        begun, under_way = [], []
        for source, scenario, preset in sessions(window, 0):
            policy = scenario.policy(preset)
            begun.append(build_pack(source, policy))
            roomy = build_pack(source._replace(window=64_000), policy)
            under_way.append(build_pack(source._replace(epoch=roomy.epoch, previous=roomy.sent), policy))
        yield f"{window:,}", *covering(begun), *covering(under_way)


def print_table(name: str, heads: Sequence[str], rows: Iterator[Sequence[str]]) -> None:
    print(f"{name}\n")
    for row in (heads, ["---"] * len(heads), *rows):
        print("| " + " | ".join(row) + " |")
    print()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=21, help="builds of each pack that are timed (default: 21)")
    rounds = parser.parse_args().rounds
    print_table("pack time", ("window", "median ms", "slowest ms"), pack_times(rounds))
    columns = [f"{turns}, {way}: {what}" for turns in ("40 turns", "first call") for way in ("lending", "none")
               for what in ("pieces", "tokens")]  # fmt: skip
    print_table("lending", ("window", *columns), lending())
    columns = [f"{way}: {what}" for way in ("beginning", "under way") for what in ("pieces", "tokens")]
    print_table("tightening", ("window", *columns), tightening())


if __name__ == "__main__":
    main()
