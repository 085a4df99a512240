"""JSON as lines: one for each value that is short enough, tables for uniform rows, and JSON again of any of the lines.

A line belongs to the object or array that it stands in. What is chosen of the lines is written with every object and
array around it, and with a note in the place of what is missing, so that the result is JSON, whatever was chosen.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from aether_context.canonical import JSON
from aether_context.evidence.samples import Numbers, long_lines
from aether_context.text.compression import Counts, span
from aether_context.text.decoding import closing

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


@dataclass(frozen=True, slots=True, order=True)
class _Row:
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
    prefix = text[: array.end()].strip()
    prefix = prefix if len(prefix) <= _LONGEST_PREFIX else "["
    first = _following(text, array.end())
    if not first:
        return None
    last = _before(text, opening.group(), len(text), first[0])
    found = [*_with_words(text, words, opening.group(), first[0]), *first[:2], *last, *first[2:]]
    left = max_tokens - counter.count(prefix) - _NOTE_TOKENS
    chosen: set[_Row] = set()
    for row in dict.fromkeys(found):
        cost = counter.count(row.text) + _NOTE_TOKENS
        if cost <= left:
            chosen.add(row)
            left -= cost
    rows = _apart(sorted(chosen))
    if not rows:
        return None
    said = f"{prefix}\n" + ",\n".join(_with_gaps(text, rows, array.end())) + f"\n{closing(prefix)}"
    try:
        json.loads(said)
    except ValueError:
        return None
    return said, len(rows)


def _following(text: str, at: int) -> list[_Row]:
    rows: list[_Row] = []
    while len(rows) < _FIRST_ROWS and (found := _at(text, at)):
        rows += found
        between = _BETWEEN.match(text, found[0].stop)
        at = between.end() if between is not None else found[0].stop
    return rows


def _with_words(text: str, words: Iterable[str], opening: str, first: _Row) -> Iterable[_Row]:
    for word in list(dict.fromkeys(words))[:_MOST_WORDS]:
        place = text.find(word, first.start)
        if place >= 0:
            yield from (row for row in _before(text, opening, place + 1, first) if row.stop > place)


def _before(text: str, opening: str, place: int, first: _Row) -> list[_Row]:
    """The row that begins last before a place: an object with the keys of the first one."""
    for _ in range(_MOST_TRIES):
        place = text.rfind(opening, first.start, place)
        if place < 0:
            break
        found = _at(text, place)
        if found and found[0].keys == first.keys:
            return found
    return []


def _at(text: str, start: int) -> list[_Row]:
    """The object that begins at a place, where one does that is not too long."""
    if start < 0 or text[start : start + 1] != "{":
        return []
    try:
        value: JSON
        value, stop = _DECODER.raw_decode(text[start : start + _LOOKED_AT])
    except (ValueError, RecursionError):
        return []
    return [_Row(start, start + stop, compact(value), tuple(value))]


def _apart(rows: Sequence[_Row]) -> list[_Row]:
    """Rows that do not lie inside each other; the outer ones stay."""
    kept: list[_Row] = []
    for row in rows:
        if not kept or row.start >= kept[-1].stop:
            kept.append(row)
    return kept


def _with_gaps(text: str, rows: Sequence[_Row], start: int) -> Iterable[str]:
    index = Numbers(text, long_lines(text))
    end = start
    for row in rows:
        yield from _gap(text, index, end, row.start)
        yield row.text
        end = row.stop
    yield from _gap(text, index, end, len(text))


def _gap(text: str, index: Numbers, start: int, stop: int) -> Iterable[str]:
    between = _BETWEEN.match(text, start)
    if between is None or between.end() < stop:
        note = f"… {span(index.number(start), index.number(stop) + 1)} …"
        yield json.dumps(note, ensure_ascii=False)
