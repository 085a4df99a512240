"""JSON as lines: one for each value that is short enough, tables for uniform rows, and JSON again of any of the lines.

A line belongs to the object or array that it stands in. What is chosen of the lines is written with every object and
array around it, and with a note in the place of what is missing, so that the result is JSON, whatever was chosen.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from aether_context.canonical import JSON
from aether_context.text.compression import span

Role: TypeAlias = Literal["value", "open", "close"]
_WIDE = 240
_LONG_TEXT = 400
_LEAST_ROWS = 3
_MOST_COLUMNS = 40
_DEEPEST = 60
COLUMNS, ROWS = "columns", "rows"


@dataclass(frozen=True, slots=True)
class Line:
    """A line of an outline. ``parent`` is the index of the line that opens what it stands in, -1 at the top.

    ``end`` is, for a line that opens something, the index of the one that closes it.
    """

    text: str
    role: Role
    parent: int
    key: str | None = None
    end: int = -1


def outlined(value: JSON) -> list[Line]:
    """The lines of a value.

    An array of objects with the same keys becomes ``{"columns": […], "rows": [[…], …]}``; a text of more than 400
    characters becomes an array of its lines, long ones in pieces.
    """
    lines: list[Line] = []
    _add(lines, value, None, -1, 0)
    return lines


def rendered(lines: Sequence[Line], chosen: Iterable[int]) -> str:
    """The JSON of chosen lines, each on a line of its own, with notes of what is missing."""
    kept = _with_parents(lines, chosen)
    out: list[str] = []
    at = 0
    while at < len(lines):
        if at in kept:
            _write(out, lines[at])
            at += 1
            continue
        start = at
        while at < len(lines) and at not in kept:
            at += 1
        said = f"… {span(start, at)} …"
        inside = lines[start].parent
        named = inside >= 0 and lines[inside].text == "{"
        _write(out, Line(json.dumps(said, ensure_ascii=False), "value", inside, f"…{start + 1}" if named else None))
    return "\n".join(out)


def _write(out: list[str], line: Line) -> None:
    """Adds a line, and a comma behind the one before it where it needs one."""
    if out and line.role != "close" and out[-1] not in ("{", "[") and not out[-1].endswith((":{", ":[")):
        out[-1] += ","
    key = "" if line.key is None else f"{json.dumps(line.key, ensure_ascii=False)}:"
    out.append(key + line.text)


def _with_parents(lines: Sequence[Line], chosen: Iterable[int]) -> set[int]:
    """The chosen lines, and those that open and close what they stand in."""
    kept: set[int] = set()
    for at in chosen:
        at = lines[at].parent if lines[at].role == "close" else at
        while at >= 0 and at not in kept:
            kept.add(at)
            if lines[at].end >= 0:
                kept.add(lines[at].end)
            at = lines[at].parent
    return kept


def _add(lines: list[Line], value: JSON, key: str | None, parent: int, depth: int) -> None:
    value = _as_lines(value)
    if not isinstance(value, (dict, list)) or not value or depth > _DEEPEST:
        lines.append(Line(compact(value), "value", parent, key))
        return
    table = _as_table(value)
    whole = compact(value)
    if len(whole) <= _WIDE:
        lines.append(Line(whole, "value", parent, key))
        return
    value = table if table is not None else value
    at = len(lines)
    opening, closing = ("{", "}") if isinstance(value, dict) else ("[", "]")
    lines.append(Line(opening, "open", parent, key))
    for name, item in value.items() if isinstance(value, dict) else ((None, one) for one in value):
        _add(lines, item, name, at, depth + 1)
    lines.append(Line(closing, "close", at))
    lines[at] = Line(opening, "open", parent, key, len(lines) - 1)


def _as_lines(value: JSON) -> JSON:
    if isinstance(value, str) and len(value) > _LONG_TEXT:
        return [piece for line in value.split("\n") for piece in pieces(line, _WIDE)]
    return value


def pieces(line: str, width: int) -> list[str]:
    """A line in pieces of at most ``width`` characters, cut at spaces where there are any."""
    found: list[str] = []
    while len(line) > width:
        cut = line.rfind(" ", width // 2, width) + 1 or width
        found.append(line[:cut])
        line = line[cut:]
    return [*found, line]


def tabled(value: JSON, depth: int = 0) -> JSON:
    """A value with every array of uniform objects as columns and rows."""
    if not isinstance(value, (dict, list)) or depth > _DEEPEST:
        return value
    table = _as_table(value)
    if table is not None:
        return table
    if isinstance(value, dict):
        return {name: tabled(one, depth + 1) for name, one in value.items()}
    return [tabled(one, depth + 1) for one in value]


def compact(value: JSON) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _as_table(value: JSON) -> JSON | None:
    """An array of objects that have the same keys and flat values, as columns and rows."""
    if not isinstance(value, list) or len(value) < _LEAST_ROWS or not isinstance(value[0], dict):
        return None
    columns = list(value[0])
    if not 1 < len(columns) <= _MOST_COLUMNS:
        return None
    for row in value:
        if not isinstance(row, dict) or row.keys() != value[0].keys():
            return None
        if any(isinstance(one, (dict, list)) for one in row.values()):
            return None
    return {COLUMNS: columns, ROWS: [[row[name] for name in columns] for row in value]}
