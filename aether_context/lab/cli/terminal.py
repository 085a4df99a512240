"""Output for people, as lines and aligned columns, and for programs, as UTF-8 JSON; and the exit codes of commands.

Names and texts in a manifest come from users, models and tools. Whatever is printed goes through `one_line`: characters
that move the cursor, hide or reorder text become escapes, so that a name cannot forge output.
"""

from __future__ import annotations

import datetime
import sys
import time
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TypeVar

import click

from aether_context import errors
from aether_context.canonical import JSON, canonical_json
from aether_context.text.decoding import escaped

FAILED, WRONG_USAGE, NOT_THERE, STOPPED = 1, 2, 3, 130
"""Exit codes; 0 is fine."""

_MOST_IN_CELL = 80
_SECONDS = 0.1
"""Between two figures of `progress`."""
_Item = TypeVar("_Item")


def exit_code(error: errors.AetherContextError) -> int:
    if isinstance(error, errors.PolicyError):
        return WRONG_USAGE
    failures = errors.BudgetExceededError, errors.ChecksumMismatch, errors.ContextOptimizationError, errors.ReplayError
    return FAILED if isinstance(error, failures) and not isinstance(error, errors.ReplayIncomplete) else NOT_THERE


def one_line(text: object, limit: int | None = None) -> str:
    """A text on one line: control, format and line break characters as escapes, cut to ``limit`` characters."""
    line = str(text)
    if limit is not None and len(line) > limit:
        line = line[: limit - 1] + "…"
    return escaped(line)


def say(text: object = "", colour: str | None = None) -> None:
    """Prints a line, in a colour on a terminal."""
    click.secho(one_line(text), fg=colour)


def head(text: object) -> None:
    click.secho(one_line(text), bold=True)


def say_error(text: object, colour: str | None = None) -> None:
    """Prints a line on stderr."""
    click.secho(one_line(text), fg=colour, err=True)


class _Progress:
    """The way that a command has come, on a line of a terminal's stderr; ``reached`` says it, empty at the end."""

    reached, _shown_at = "", 0.0

    def __call__(self, done: int, total: int, noun: str = "packs") -> None:
        self.reached = f"{done:,} of {total:,} {noun}" if done < total else ""
        if sys.stderr.isatty() and (not self.reached or time.monotonic() > self._shown_at + _SECONDS):
            self._shown_at = time.monotonic()
            click.echo(f"\r\033[K{self.reached}", err=True, nl=False)


progress = _Progress()


def watched(items: Iterable[_Item], total: int) -> Iterator[_Item]:
    """The items, of which `progress` counts those that are done."""
    for done, item in enumerate(items):
        progress(done, total)
        yield item
    progress(total, total)


def print_json(value: JSON) -> None:
    """Canonical JSON in UTF-8, whatever the terminal's encoding."""
    click.echo(canonical_json(value).encode())


def aligned(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Rows as lines in aligned columns, below the names of the columns where they have any.

    ``>`` before a name marks a column of numbers. None is unknown. Long cells are cut, except in the last column.
    """
    names = [name.removeprefix(">") for name in columns]
    table = [[*(_cell(value, _MOST_IN_CELL) for value in row[:-1]), _cell(row[-1])] for row in rows]
    table = [names, *table] if any(names) else table
    widths = [max(map(_width, column)) for column in zip(*table, strict=True)]
    lines = []
    for row in table:
        gaps = [" " * (width - _width(cell)) for cell, width in zip(row, widths, strict=True)]
        parts = zip(columns, row, gaps, strict=True)
        lines.append("  ".join(gap + cell if name[:1] == ">" else cell + gap for name, cell, gap in parts).rstrip())
    return lines


def _cell(value: object, limit: int | None = None) -> str:
    return "unknown" if value is None else f"{value:,}" if type(value) is int else one_line(value, limit)


def _width(text: str) -> int:
    """Columns that a text takes on a terminal."""
    return len(text) if text.isascii() else sum(1 + (unicodedata.east_asian_width(char) in "FW") for char in text)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], indent: str = "") -> None:
    for line in aligned(columns, rows):
        say(indent + line)


def increase(old_value: int, new_value: int) -> str:
    """The difference with its sign; 0 has none."""
    return f"{new_value - old_value:+,}" if new_value != old_value else "0"


def percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f}%" if whole else "0%"


def moment(time: float | None) -> str:
    """A time in UTC, to the second."""
    if time is None:
        return ""
    with suppress(OverflowError, OSError, ValueError):
        return datetime.datetime.fromtimestamp(time, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S")
    return f"{time:g} s"
