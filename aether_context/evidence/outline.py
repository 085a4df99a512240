"""JSON as lines: one for each value that is short enough, tables for uniform rows, and JSON again of any of the lines.

A line belongs to the object or array that it stands in. What is chosen of the lines is written with every object and
array around it, and with a note in the place of what is missing, so that the result is JSON, whatever was chosen.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from aether_context.canonical import JSON
from aether_context.text.compression import Counts, line_starts, span
from aether_context.text.decoding import closing

_WIDE = 240
_LONG_TEXT = 400
_LEAST_ROWS = 3
_MOST_COLUMNS = 40
_DEEPEST = 60


@dataclass(frozen=True, slots=True)
class Line:
    """A line of an outline. ``parent`` is the index of the line that opens what it stands in, -1 at the top.

    ``end`` is, for a line that opens something, the index of the one that closes it.
    """

    text: str
    role: Literal["value", "open", "close"]
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


def _add(lines: list[Line], value: JSON, key: str | None, parent: int, depth: int) -> None:
    if isinstance(value, str) and len(value) > _LONG_TEXT:
        value = [piece for line in value.split("\n") for piece in pieces(line, _WIDE)]
    whole = compact(value)
    if not isinstance(value, (dict, list)) or depth > _DEEPEST or len(whole) <= _WIDE:
        lines.append(Line(whole, "value", parent, key))
        return
    value = _as_table(value) or value
    at = len(lines)
    opening, ending = "{}" if isinstance(value, dict) else "[]"
    lines.append(Line(opening, "open", parent, key))
    for name, item in value.items() if isinstance(value, dict) else ((None, item) for item in value):
        _add(lines, item, name, at, depth + 1)
    lines.append(Line(ending, "close", at))
    lines[at] = Line(opening, "open", parent, key, len(lines) - 1)


def rendered(lines: Sequence[Line], chosen: Iterable[int]) -> str:
    """The JSON of chosen lines, each on a line of its own, with notes of what is missing."""
    kept: set[int] = set()  # the chosen lines, and those that open and close what they stand in
    for at in chosen:
        at = lines[at].parent if lines[at].role == "close" else at
        while at >= 0 and at not in kept:
            kept.update((at, lines[at].end) if lines[at].end >= 0 else (at,))
            at = lines[at].parent
    out: list[str] = []

    def write(text: str, key: str | None, closes: bool) -> None:
        if out and not closes and out[-1] not in ("{", "[") and not out[-1].endswith((":{", ":[")):
            out[-1] += ","
        out.append(text if key is None else f"{json.dumps(key, ensure_ascii=False)}:{text}")

    following = 0
    for at in (*sorted(kept), len(lines)):
        if at > following:
            parent = lines[following].parent
            named = parent >= 0 and lines[parent].text == "{"
            write(f'"… {span(following, at)} …"', f"…{following + 1}" if named else None, False)
        if at < len(lines):
            write(lines[at].text, lines[at].key, lines[at].role == "close")
        following = at + 1
    return "\n".join(out)


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
    if (table := _as_table(value)) is not None:
        return table
    if isinstance(value, dict):
        return {name: tabled(item, depth + 1) for name, item in value.items()}
    return [tabled(item, depth + 1) for item in value]


def compact(value: JSON) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _as_table(value: JSON) -> dict[str, JSON] | None:
    """An array of objects that have the same keys and flat values, as columns and rows."""
    if not isinstance(value, list) or len(value) < _LEAST_ROWS or not isinstance(value[0], dict):
        return None
    columns: list[JSON] = list(value[0])
    rows: list[JSON] = []
    if not 1 < len(columns) <= _MOST_COLUMNS:
        return None
    for row in value:
        if not isinstance(row, dict) or row.keys() != value[0].keys():
            return None
        if any(isinstance(item, (dict, list)) for item in row.values()):
            return None
        rows.append([row[str(name)] for name in columns])
    return {"columns": columns, "rows": rows}


# Rows of long JSON, found and read one by one: the rest of it is never parsed.

_LOOKED_AT = 20_000
_LONGEST_PREFIX = 400
_FIRST_ROWS = 6
_MOST_WORDS = 12
_NOTE_TOKENS = 10
_MOST_TRIES = 20
_ARRAY = re.compile(r"\[\s*(?=\{)")
_OPENING = re.compile(r'\{\s*"[^"\\]{1,80}"\s*:')
_BETWEEN = re.compile(r"[\s,]*")
_DECODER = json.JSONDecoder()


class _Row(NamedTuple):
    """An object of an array, where in the text it begins and ends, and its keys."""

    start: int
    stop: int
    text: str
    keys: tuple[str, ...]


def sampled_rows(text: str, words: Iterable[str], *, max_tokens: int, counter: Counts) -> tuple[str, int] | None:
    """The first array of objects with some of its rows, as JSON, and how many rows these are; None where there is none.

    Rows with one of the words come first, then the first ones and the last one. Strings in the array say which lines of
    the text stand between two rows.
    """
    array = _ARRAY.search(text[:_LOOKED_AT])
    opening = _OPENING.match(text, array.end()) if array is not None else None
    if array is None or opening is None:
        return None
    start = array.end()
    prefix = text[:start].strip()
    prefix = prefix if len(prefix) <= _LONGEST_PREFIX else "["
    first: list[_Row] = []
    at = start
    while len(first) < _FIRST_ROWS and (row := _row_at(text, at)) is not None:
        first.append(row)
        at = _end_of_gap(text, row.stop)
    if not first:
        return None

    def last_before(place: int) -> _Row | None:
        """The row that begins last before a place: an object with the keys of the first one."""
        for _ in range(_MOST_TRIES):
            place = text.rfind(opening.group(), start, place)
            row = _row_at(text, place) if place >= 0 else None
            if place < 0 or (row is not None and row.keys == first[0].keys):
                return row
        return None

    places = [text.find(word, start) for word in list(dict.fromkeys(words))[:_MOST_WORDS]]
    found = [row for at in places if at >= 0 and (row := last_before(at + 1)) is not None and row.stop > at]
    last = last_before(len(text))
    found += [*first[:2], *([last] if last is not None else []), *first[2:]]
    left = max_tokens - counter.count(prefix) - _NOTE_TOKENS
    chosen: list[_Row] = []
    for row in dict.fromkeys(found):
        cost = counter.count(row.text) + _NOTE_TOKENS
        if cost <= left:
            chosen.append(row)
            left -= cost
    starts = line_starts(text)
    items: list[str] = []
    kept, end = 0, start
    for row in (*sorted(chosen), _Row(len(text), len(text), "", ())):
        if row.start < end:
            continue  # it lies inside the one before it
        if _end_of_gap(text, end) < row.start:
            lines = span(bisect_right(starts, end) - 1, bisect_right(starts, row.start))
            items.append(f'"… {lines} …"')
        if row.text:
            items.append(row.text)
            kept += 1
        end = row.stop
    made = f"{prefix}\n" + ",\n".join(items) + f"\n{closing(prefix)}"
    try:
        json.loads(made)
    except ValueError:
        return None
    return (made, kept) if kept else None


def _row_at(text: str, start: int) -> _Row | None:
    """The object that begins at a place, where one does that is not too long."""
    if text[start : start + 1] != "{":
        return None
    try:
        value, stop = _DECODER.raw_decode(text[start : start + _LOOKED_AT])
    except (ValueError, RecursionError):
        return None
    return _Row(start, start + stop, compact(value), tuple(value))


def _end_of_gap(text: str, start: int) -> int:
    found = _BETWEEN.match(text, start)
    return found.end() if found is not None else start
