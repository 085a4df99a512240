"""The estimate against two vocabularies for eleven kinds of text, as the table in docs/tokens.md.

    python language_table.py token-counts.jsonl --gemma tokenizer.json --o200k tokenizer.json

Each line of the first file is {"kind", "text", "gemma3", "o200k"}; texts in six languages are taken from it. Python is
the standard library's own source; JSON, logs, base64 and emoji are made here, always the same. The vocabularies are
files as `tokens.files` takes them. A figure is the count divided by the exact one.
"""

from __future__ import annotations

import argparse
import base64
import inspect
import json
import random
import time
from collections.abc import Iterator
from json import decoder, encoder
from pathlib import Path
from types import ModuleType
from typing import Any

from aether_context.policy import TokenSettings
from aether_context.tokens import Counters, counter_for

LANGUAGES = {
    "English": "chat",
    "German": "text de_DE",
    "Russian": "text ru_RU",
    "Chinese": "text zh_CN",
    "Japanese": "text ja_JP",
    "Arabic": "text ar_AA",
}
MODELS = ("gemini-2.5-flash", "gpt-4o")
_WORDS = ("harbour", "ledger", "vessel", "berth", "cargo", "master", "quay", "crane", "pilot", "tide", "anchor", "salt")
_EMOJI = [*range(0x1F600, 0x1F640), *range(0x1F300, 0x1F320), *range(0x1F680, 0x1F6B0)]


def python_source() -> str:
    modules: tuple[ModuleType, ...] = (decoder, encoder, argparse)
    return "\n".join(inspect.getsource(module) for module in modules)


def minified_json(chance: random.Random) -> str:
    return json.dumps([_record(chance) for _ in range(200)], separators=(",", ":"))


def _record(chance: random.Random) -> dict[str, Any]:
    return {
        "id": chance.randrange(10**6),
        "name": " ".join(chance.choices(_WORDS, k=2)),
        "weight": round(chance.uniform(1, 900), 2),
        "tags": chance.choices(_WORDS, k=3),
        "paid": chance.random() < 0.5,
        "owner": None,
    }


def log_lines(chance: random.Random) -> str:
    return "\n".join(_line(chance, at) for at in range(300))


def _line(chance: random.Random, at: int) -> str:
    level = chance.choice(["INFO", "DEBUG", "WARNING", "ERROR"])
    address = ".".join(str(chance.randrange(256)) for _ in range(4))
    words = " ".join(chance.choices(_WORDS, k=5))
    return (
        f"2026-03-{1 + at // 24:02d}T{at % 24:02d}:17:{at % 60:02d}.{at:06d}Z {level} [{address}] {words} took={at}ms"
    )


def emoji(chance: random.Random) -> str:
    return " ".join("".join(chr(one) for one in chance.choices(_EMOJI, k=3)) for _ in range(300))


def texts(rows: list[dict[str, Any]]) -> Iterator[tuple[str, list[str]]]:
    """Each kind of text and its samples."""
    chance = random.Random(7)
    for name, kind in LANGUAGES.items():
        yield name, [row["text"] for row in rows if row["kind"] == kind]
    yield "Python", [python_source()]
    yield "minified JSON", [minified_json(chance)]
    yield "logs", [log_lines(chance)]
    yield "base64", [base64.b64encode(chance.randbytes(9_000)).decode()]
    yield "emoji", [emoji(chance)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("counts", type=Path)
    parser.add_argument("--gemma", required=True, help="Gemma 3's vocabulary")
    parser.add_argument("--o200k", required=True, help="the vocabulary of GPT-4o")
    given = parser.parse_args()
    rows = [json.loads(line) for line in given.counts.read_text(encoding="utf-8").splitlines()]
    files = dict(zip(MODELS, (given.gemma, given.o200k), strict=True))
    counters = Counters(TokenSettings(counter="file", files=files), clock=time.monotonic)
    exact = [counters.pick(model).counter for model in MODELS]
    heads = ["text"]
    for vocabulary in ("Gemma 3", "o200k"):
        heads += [f"characters a token, {vocabulary}", "estimate", "characters / 4"]
    print(f"| {' | '.join(heads)} |")
    print("| --- " * len(heads) + "|")
    for name, samples in texts(rows):
        characters = sum(map(len, samples))
        cells = []
        for counter, model in zip(exact, MODELS, strict=True):
            tokens = sum(counter.count_all(samples))
            estimate = sum(counter_for(model).count_all(samples))
            cells += [f"{characters / tokens:.2f}", f"{estimate / tokens:.2f}", f"{characters / 4 / tokens:.2f}"]
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
