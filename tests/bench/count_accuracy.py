"""How close token counts are to exact ones, by kind of text, and how fast they are made.

    python count_accuracy.py token-counts.jsonl [--gemma tokenizer.json] [--o200k tokenizer.json]

Each line of the file is {"kind", "text", "gemma3", "o200k"}, the last two being exact counts by those vocabularies.
Without an argument the file is looked for in the folder that AETHER_CONTEXT_DATA names. Vocabularies that are given are
counted by, too.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aether_context.conversation.content_json import content_of_parts, part_of
from aether_context.policy import TokenSettings
from aether_context.tokens import Counters, EstimateCounter, TokenCounter, counter_for, framing_of
from aether_context.tokens.cache import PackCounter, TokenCache

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


def median_ms(act: Callable[[], object], times: int = 21) -> float:
    spent = []
    for _ in range(times):
        began = time.perf_counter()
        act()
        spent.append(time.perf_counter() - began)
    return 1000 * statistics.median(spent)


def speeds(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Medians in milliseconds over 21 rounds."""
    joined = "\n".join(row["text"] for row in rows)
    messages = [joined[start : start + 1_000] for start in range(0, 100_000, 1_000)]
    english = "".join(text for row in rows if (text := row["text"]).isascii())
    megabyte = (english * (1_000_000 // len(english) + 1))[:1_000_000]
    chinese = "".join(row["text"] for row in rows if "zh" in row["kind"]) or "\u5728\u8fd9"
    han = (chinese * (333_000 // len(chinese) + 1))[:333_000]

    def cold() -> EstimateCounter:
        return EstimateCounter("gemini", ("gemini",), accuracy="approximate")

    framing = framing_of("gemini-2.5-flash")
    contents = [content_of_parts("user", [part_of({"text": text})]) for text in messages]
    cache = TokenCache()
    PackCounter(cold(), cache, framing=framing).contents(contents)
    return {
        "100 messages of 1,000 characters, cold": median_ms(
            lambda: PackCounter(cold(), framing=framing).contents(contents)
        ),
        "the same, one by one": median_ms(lambda: [cold().count(text) for text in messages]),
        "the same, remembered": median_ms(lambda: PackCounter(cold(), cache, framing=framing).contents(contents)),
        "1 MB of ASCII": median_ms(lambda: cold().count(megabyte)),
        "1 MB of Chinese": median_ms(lambda: cold().count(han)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("counts", type=Path, nargs="?")
    parser.add_argument("--gemma", help="Gemma 3's vocabulary")
    parser.add_argument("--o200k", help="the vocabulary of GPT-4o")
    given = parser.parse_args()
    path = given.counts or Path(os.environ["AETHER_CONTEXT_DATA"], "token-counts.jsonl")
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    columns = {f"{model}/{field}": ratios(rows, counter_for(model), field) for model, field in VOCABULARIES}
    columns |= {f"generic/{field}": ratios(rows, counter_for("unknown"), field) for _, field in VOCABULARIES}
    for file, (model, field) in zip((given.gemma, given.o200k), VOCABULARIES, strict=True):
        if file:
            counters = Counters(TokenSettings(counter="file", files={model: file}), clock=time.monotonic)
            columns[f"file/{field}"] = ratios(rows, counters.pick(model).counter, field)
    print(f"{'kind':22s}", *(f"{head:>24s}" for head in columns))
    for kind in columns[f"generic/{VOCABULARIES[0][1]}"]:
        print(f"{kind:22s}", *(f"{column[kind]:24.3f}" for column in columns.values()))
    for name, spent in speeds(rows).items():
        print(f"{name:42s} {spent:8.2f} ms")


if __name__ == "__main__":
    main()
