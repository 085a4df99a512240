"""Output for people, through rich, and for programs, as UTF-8 JSON; and the exit codes of commands.

Names and texts in a manifest come from users, models and tools. They are printed as plain text, never as markup, and
characters that move the cursor, hide or reorder text are printed as escapes, so that a name cannot forge output.
"""

from __future__ import annotations

import codecs
import datetime
import io
import sys
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click
from rich.console import Console
from rich.progress import Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from aether_context import errors
from aether_context.canonical import JSON, canonical_json

FAILED, WRONG_USAGE, NOT_THERE = 1, 2, 3
"""Exit codes; 0 is fine."""

PIPED_WIDTH = 160
"""Columns where the output is not a terminal."""

_UNPRINTABLE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_ASCII = {"█": "#", "░": ".", "½": "1/2", "→": "->", "…": "...", "·": "|", "−": "-", "━": "-", "─": "-"}


def exit_code(error: errors.AetherContextError) -> int:
    if isinstance(error, errors.PolicyError):
        return WRONG_USAGE
    if isinstance(error, errors.ReplayIncomplete):
        return NOT_THERE
    failures = errors.BudgetExceededError, errors.ChecksumMismatch, errors.ContextOptimizationError, errors.ReplayError
    return FAILED if isinstance(error, failures) else NOT_THERE


class Screen(Console):
    """Stdout or stderr; where that is not a terminal, without colour and with a fixed width."""

    def __init__(self, *, stderr: bool = False) -> None:
        stream = sys.stderr if stderr else sys.stdout
        if isinstance(stream, io.TextIOWrapper):
            codecs.register_error("aether_context.ascii", _in_ascii)
            stream.reconfigure(errors="aether_context.ascii")
        width, height = (None, None) if stream.isatty() else (PIPED_WIDTH, 50)
        super().__init__(file=stream, width=width, height=height, markup=False, highlight=False, emoji=False)

    def print_line(self, text: object, style: str = "") -> None:
        """Prints a text from a manifest on one line, however long it is."""
        self.print(cell(text, style), soft_wrap=True)

    def print_heading(self, text: object) -> None:
        self.print_line(text, "bold")


def _in_ascii(error: UnicodeError) -> tuple[str, int]:
    """The replacement of characters that the terminal's encoding lacks."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    unencodable: str = error.object[error.start : error.end]
    return "".join(_ASCII.get(character) or ascii(character)[1:-1] for character in unencodable), error.end


def tell(text: object, style: str = "") -> None:
    """Prints a line on stderr."""
    Screen(stderr=True).print_line(text, style)


def print_json(value: JSON) -> None:
    """Canonical JSON in UTF-8, whatever the terminal's encoding."""
    click.echo(canonical_json(value).encode())


def plain(text: object, limit: int | None = None) -> str:
    """A text on one line: control, format and line break characters as escapes, cut to ``limit`` characters."""
    line = str(text)
    if limit is not None and len(line) > limit:
        line = line[: limit - 1] + "…"
    if line.isascii() and line.isprintable():
        return line
    return "".join(
        ascii(character)[1:-1] if unicodedata.category(character) in _UNPRINTABLE else character for character in line
    )


def cell(text: object, style: str = "", limit: int | None = None) -> Text:
    """A text from a manifest, ready to be printed."""
    return Text(plain(text, limit), style=style, overflow="fold")


def grid(*columns: str) -> Table:
    """A table without lines, and without a header where no column has a name. ``>`` before a name marks numbers.

    On a narrow screen the last column of words is wrapped; all others stay on one line, so that no word is broken.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", show_header=any(columns))
    last_text = max((index for index, name in enumerate(columns) if not name.startswith(">")), default=None)
    for index, name in enumerate(columns):
        if index == last_text:
            table.add_column(name, overflow="fold", min_width=10)
        else:
            table.add_column(name.removeprefix(">"), justify="right" if name[:1] == ">" else "left", no_wrap=True)
    return table


def increase(before: int, after: int) -> str:
    """The difference with its sign; 0 has none."""
    return f"{after - before:+,}" if after != before else "0"


def percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f}%" if whole else "0%"


def moment(time: float | None) -> str:
    """A time in UTC, to the second."""
    if time is None:
        return ""
    try:
        return datetime.datetime.fromtimestamp(time, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, OSError, ValueError):
        return f"{time:g} s"


def bar(used: int, ceiling: int, whole: int, cells: int = 32) -> str:
    """A bar of ``used`` within ``ceiling``, both as shares of ``whole``; what is not 0 has at least one cell."""
    filled, total = (
        min(cells, max(1, round(cells * tokens / whole))) if tokens > 0 and whole > 0 else 0
        for tokens in (used, ceiling)
    )
    return "█" * filled + "░" * (total - filled)


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[object], None]]:
    """A bar on a terminal's stderr."""
    screen = Screen(stderr=True)
    if not screen.is_terminal:
        yield lambda _: None
        return
    with Progress(console=screen, transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda _: bar.advance(task)


@contextmanager
def counted_progress(what: str) -> Iterator[Callable[[object], None]]:
    """A count on a terminal's stderr, where the total is unknown."""
    screen = Screen(stderr=True)
    if not screen.is_terminal:
        yield lambda _: None
        return
    columns = TextColumn("{task.description}"), TextColumn("{task.completed}"), TimeElapsedColumn()
    with Progress(*columns, console=screen, transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda _: bar.advance(task)
