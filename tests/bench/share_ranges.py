"""How many splits of the window random signals lead to, in the ranges of the design's first draft and in the profile's.

``python tests/bench/share_ranges.py`` prints, for each, the share of 4,000 sets with the commonest split, and how many
splits there are, in whole percents of the remainder.
"""

from __future__ import annotations

import random
from collections import Counter

from aether_context import PackPolicy
from aether_context.pack import Signals
from aether_context.packing.allocation import project, weigh
from aether_context.policy import Range

SETS = 4_000
FIRST = [Range(low=0.55, high=0.65), Range(low=0.20, high=0.25), Range(low=0.10, high=0.15)]
"""Evidence, memory and conversation in research."""


def draw(source: random.Random) -> Signals:
    return Signals(
        checklist_evidence_ratio=source.random(),
        expected_tool_calls=source.randrange(12),
        risk=source.choice(["low", "medium", "high"]),
        retrieval_hit_rate=source.random(),
        similarity=source.random(),
        freshness_days=source.uniform(0, 60),
        unresolved_questions=source.randrange(8),
        dialogue_depth=source.randrange(30),
    )


def first_draft(source: random.Random) -> list[float]:
    """Weights that are sums of signals, three, three and two of them from 0 to 1, clamped into the ranges."""
    sums = [sum(source.random() for _ in range(count)) for count in (3, 3, 2)]
    return project([weight / sum(sums) for weight in sums], FIRST)


def main() -> None:
    source, shares = random.Random(7), PackPolicy.load("research").budget
    splits = {
        "first draft": [first_draft(source) for _ in range(SETS)],
        "research": [[*weigh(draw(source), shares).values()] for _ in range(SETS)],
    }
    for name, rows in splits.items():
        counts = Counter(tuple(round(100 * share) for share in row) for row in rows)
        print(f"{name}: {counts.most_common(1)[0][1] / SETS:.0%} of {SETS:,} have one split, of {len(counts)}")


if __name__ == "__main__":
    main()
