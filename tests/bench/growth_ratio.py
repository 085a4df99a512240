"""How close the growth of requests is estimated once a ratio is learned from what a provider reports.

    python growth_ratio.py token-counts.jsonl

Each line of the file is a text with exact counts: {"kind", "text", "gemma3", "o200k"}. Requests grow by a call's
arguments and a result, drawn from the texts; the provider reports their exact counts, with the framing that is counted
here. Printed are all errors as a share of all growth, without and with the ratio: over 3 sessions of 300 calls whose
results are of all kinds, and over sessions of 60 calls with results of one kind.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from aether_context.tokens import counter_for
from aether_context.usage.calibration import TokenRatio

_FRAMING = 12
_ARGUMENTS = "call arguments"

Row = Mapping[str, Any]


def session(
    rows: Sequence[Row], counted: Sequence[int], field: str, *, calls: int, seed: int
) -> Iterator[tuple[int, int]]:
    """Counted and reported tokens of each growth."""
    source = random.Random(seed)
    arguments = [at for at, row in enumerate(rows) if row["kind"] == _ARGUMENTS]
    results = [at for at, row in enumerate(rows) if row["kind"] != _ARGUMENTS]
    for _ in range(calls):
        pair = source.choice(arguments), source.choice(results)
        yield sum(counted[at] for at in pair) + _FRAMING, sum(rows[at][field] for at in pair) + _FRAMING


def errors(sessions: Sequence[Sequence[tuple[int, int]]], *, learns: bool) -> float:
    """All errors over all growth."""
    off = grown = 0.0
    for steps in sessions:
        ratio = TokenRatio()
        for counted, reported in steps:
            off += abs(ratio.value * counted - reported)
            grown += reported
            ratio = ratio.learned(counted, reported) if learns else ratio
    return off / grown


def main() -> None:
    rows = [json.loads(line) for line in Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()]
    kinds = sorted({row["kind"] for row in rows} - {_ARGUMENTS})
    for model, field in (
        ("gemini-2.5-flash", "gemma3"),
        ("gpt-4o", "o200k"),
        ("unknown", "gemma3"),
        ("unknown", "o200k"),
    ):
        counted = [counter_for(model).count(row["text"]) for row in rows]
        mixed = [list(session(rows, counted, field, calls=300, seed=seed)) for seed in range(3)]
        alike = []
        for kind in kinds:
            places = [at for at, row in enumerate(rows) if row["kind"] in (_ARGUMENTS, kind)]
            own = [rows[at] for at in places], [counted[at] for at in places]
            alike.append(list(session(*own, field, calls=60, seed=0)))
        for name, sessions in (("all kinds", mixed), ("one kind each", alike)):
            plain, learned = (errors(sessions, learns=learns) for learns in (False, True))
            print(f"{field} by the table for {model}, {name}: {plain:.1%} without, {learned:.1%} with the ratio")


if __name__ == "__main__":
    main()
