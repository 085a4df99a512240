"""Means over sessions with their intervals, and how many sessions a sum over all of them is worth.

In a sum a session weighs by its length, and one of hundreds of calls decides it. So the tables count each session once:
a cell is the mean over sessions and, in brackets, its 95% interval: 2.5th and 97.5th percentile of the means of 2,000
samples drawn from the same sessions with replacement. The last two rows say how many ``sessions`` have such a figure,
and how many of equal size a sum over them would be worth (``effective``; Kish 1965): (Σw)²/Σw², w being a session's
share of what is divided by.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from aether_context import PackPolicy

SAMPLES = 2_000
PERCENT = (100.0, 1)

Figures = Mapping[str, tuple[float, float]]
"""A session's figures, each a part and the whole that it is divided by, which is 0 where the session has none."""
Columns = Mapping[str, tuple[float, int]]
"""What a column is multiplied by, and its digits."""


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """The mean, and the two ends of its interval."""
    held = np.asarray(values, dtype=float)
    drawn = np.random.default_rng(0).integers(len(held), size=(SAMPLES, len(held)))
    low, high = np.percentile(held[drawn].mean(axis=1), [2.5, 97.5])
    return float(held.mean()), float(low), float(high)


def cell(sessions: Sequence[Figures], name: str, scale: float, digits: int) -> str:
    """A mean with its interval, which is left out where all sessions agree."""
    values = [scale * part / whole for part, whole in (one[name] for one in sessions) if whole]
    if not values:
        return ""
    mean, low, high = (f"{value:,.{digits}f}" for value in interval(values))
    return mean if low == high else f"{mean} [{low}, {high}]"


def print_table(
    heads: Sequence[str], columns: Columns, rows: Iterable[tuple[Sequence[str], Sequence[Figures]]]
) -> None:
    """A table in Markdown, a row as soon as it is measured. A row's last label names what is compared; rows that have
    the others in common are about the same sessions, which the last rows count."""
    logging.disable(logging.WARNING)
    print_row([*heads, *columns])
    print_row(["---"] * (len(heads) + len(columns)))
    groups: dict[tuple[str, ...], Sequence[Figures]] = {}
    for labels, sessions in rows:
        *group, name = labels
        groups.setdefault(tuple(group), sessions)
        print_row([*group, name, *(cell(sessions, column, *form) for column, form in columns.items())])
    counts = {in_common: list(counted(sessions, columns)) for in_common, sessions in groups.items()}
    if all(one == next(iter(counts.values())) for one in counts.values()):
        counts = {("",) * (len(heads) - 1): one for one in counts.values()}
    for in_common, lines in counts.items():
        for line in lines:
            print_row([*in_common, *line])


def counted(sessions: Sequence[Figures], columns: Columns) -> Iterator[list[str]]:
    """How many sessions have a figure, and how many of equal size a sum over them would be worth."""
    wholes = [[one[column][1] for one in sessions if one[column][1]] for column in columns]
    yield ["sessions", *(f"{len(held)}" for held in wholes)]
    worth = [sum(held) ** 2 / sum(size * size for size in held) if held else None for held in wholes]
    yield ["effective", *("" if sessions is None else f"{sessions:.1f}" for sessions in worth)]


def print_row(cells: Iterable[str]) -> None:
    print("| " + " | ".join(cells) + " |", flush=True)


def policy_of(text: str, window: int) -> PackPolicy:
    """A preset, a profile, a TOML file, or the defaults with settings as ``offload.mode=off recall.k=4``."""
    if "=" in text or not text:
        return PackPolicy(**settings(text.split()), max_input_tokens=window)
    return PackPolicy.load(text, max_input_tokens=window)


def settings(words: Iterable[str]) -> dict[str, Any]:
    """Settings of a policy; a value is JSON, or a plain word."""
    made: dict[str, Any] = {}
    for word in words:
        name, _, value = word.partition("=")
        *sections, field = name.split(".")
        held = made
        for section in sections:
            held = held.setdefault(section, {})
        try:
            held[field] = json.loads(value)
        except ValueError:
            held[field] = value
    return made


def rows_of(path: Path) -> list[dict[str, Any]]:
    """The lines of a .jsonl file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
