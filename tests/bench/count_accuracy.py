"""How close token counts are to exact ones, by kind of text.

    python count_accuracy.py token-counts.jsonl

Each line of the file is {"kind", "text", "gemma3", "o200k"}, the last two being exact counts by those vocabularies.
Without an argument the file is looked for in the folder that AETHER_CONTEXT_DATA names.
"""

from __future__ import annotations

import argparse
import json
import os
from collections import defaultdict
from pathlib import Path
from typing import Any

from aether_context.tokens import TokenCounter, counter_for

VOCABULARIES = (("gemini-2.5-flash", "gemma3"), ("gpt-4o", "o200k"))


def ratios(rows: list[dict[str, Any]], counter: TokenCounter, field: str) -> dict[str, float]:
    """Estimated over exact tokens, by kind and in all."""
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for row in rows:
        counted = counter.count(row["text"])
        for kind in (row["kind"], "total"):
            sums[kind][0] += counted
            sums[kind][1] += row[field]
    return {kind: estimated / exact for kind, (estimated, exact) in sorted(sums.items())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("counts", type=Path, nargs="?")
    given = parser.parse_args()
    path = given.counts or Path(os.environ["AETHER_CONTEXT_DATA"], "token-counts.jsonl")
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    columns = {f"{model}/{field}": ratios(rows, counter_for(model), field) for model, field in VOCABULARIES}
    columns |= {f"generic/{field}": ratios(rows, counter_for("unknown"), field) for _, field in VOCABULARIES}
    print(f"{'kind':22s}", *(f"{head:>24s}" for head in columns))
    for kind in columns[f"generic/{VOCABULARIES[0][1]}"]:
        print(f"{kind:22s}", *(f"{column[kind]:24.3f}" for column in columns.values()))


if __name__ == "__main__":
    main()
