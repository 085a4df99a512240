"""The lines in which an output is shown, read and searched: the same ones, by the same numbers, everywhere.

JSON has a line for each value that is short enough, and tables for uniform rows. A line belongs to the object or array
that it stands in; what is chosen of the lines is written with every object and array around it, and with a note in the
place of what is missing, so that the result is JSON, whatever was chosen.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, TypeAlias

from aether_context.canonical import JSON
from aether_context.text.compression import lines_of, span
from aether_context.text.decoding import decoded, printable, read_json

# What kind of text a tool's output is, told from its beginning.

Kind: TypeAlias = Literal["json", "table", "list", "log", "code", "text", "data"]
"""``list`` has a path or an address at the head of each line, or records of lines with keys; ``data`` is binary data
written as text."""

MEDIA_TYPES: dict[Kind, tuple[str, str]] = {
    "json": ("application/json", "json"),
    "table": ("text/csv", "csv"),
    "list": ("text/plain", "txt"),
    "log": ("text/plain", "log"),
    "code": ("text/plain", "txt"),
    "text": ("text/plain", "txt"),
    "data": ("application/octet-stream", "bin"),
}
"""The media type of a kind, and the ending of its name."""

_TEXT = re.compile(r"text/.+|application/(?:[\w.+-]+\+)?(?:json|xml|yaml|x-yaml|toml|javascript|sql|x-sh|x-ndjson)")
_LOOKED_AT = 20_000
LEAST_ROWS, _LEAST_KEYS = 3, 3
_LEAST_DATA = 400
_DATA_URI = re.compile(r"data:([\w.+-]+/[\w.+-]+)?(;[\w=.-]+)*;base64,")
_ENCODED = re.compile(r"[A-Za-z0-9+/_\s-]{400,}={0,2}")
_LOG_LINE = re.compile(
    r"""\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d                                  # 2025-01-31T10:00
      | \[?\d\d:\d\d:\d\d
      | (?:Mon|Tue|Wed|Thu|Fri|Sat|Sun|Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)\ +\d
      | \[?(?:TRACE|DEBUG|INFO|WARN|WARNING|ERROR|FATAL|CRITICAL)\b
      | \S+\ -\ -\ \[\d""",
    re.VERBOSE,
)
KEYED = re.compile(r"""\s*(?:[-*]\s+)?["']?([^\W\d][\w .-]{0,30}?)["']?\s?[:=]\s*\S""")
_LISTED = re.compile(r"\s*(?:[-*] )?(?=\S*[^\W\d])(?:https?:/|[\w.~@-]*)(?:/[\w.~@+%-]+)+(?:[\s:,(]|$)")
_CODE_LINE = re.compile(
    r"\s*(?:(?:import|from|def|class|return|const|let|var|function|export|public|private|static|package|using|fn|pub|"
    r"impl|struct|func|if|for|while|else|try|catch|except|elif|#include)\b|[})\]]+[;,]?\s*$|//|/\*|\*)"
)


def is_text(media_type: str) -> bool:
    """Whether bytes of a media type are read and searched as text."""
    return _TEXT.fullmatch(media_type.partition(";")[0].strip().lower()) is not None


def kind_of(text: str) -> Kind:
    """The kind of a text that has been decoded."""
    head = text[:_LOOKED_AT]
    start = head.lstrip()[:1]
    if is_data(head):
        return "data"
    if start in ("{", "[") and re.match(r'\s*[{\[]\s*["{\[\]}\d-]', head):
        return "json"
    lines = [line for line in head.split("\n")[:60] if line.strip()]
    if len(lines) < 3:
        return "text"
    for mark in ("|", "\t", ",", ";"):
        columns = Counter(line.count(mark) for line in lines)
        ((usual, count),) = columns.most_common(1)
        if usual >= (1 if mark in "|\t" else 2) and count * 4 >= len(lines) * 3:
            return "table"
    if sum(_LOG_LINE.match(line) is not None for line in lines) * 2 >= len(lines):
        return "log"
    keys = Counter(found[1].casefold() for line in lines if (found := KEYED.match(line)) is not None)
    repeated = [count for count in keys.values() if count >= LEAST_ROWS]
    in_records = sum(repeated) if len(repeated) >= _LEAST_KEYS else 0
    if max(in_records, sum(_LISTED.match(line) is not None for line in lines)) * 4 >= len(lines) * 3:
        return "list"
    if sum(_CODE_LINE.match(line) is not None for line in lines) * 3 >= len(lines):
        return "code"
    return "text"


def is_data(text: str) -> bool:
    """Whether a text is binary data in base64, in hexadecimal, or as it came."""
    if _DATA_URI.match(text):
        return True
    if len(text) >= _LEAST_DATA and _ENCODED.fullmatch(text.rstrip()):
        longest = max(map(len, text.split(None, 200)[:200]))
        return longest >= 60 and len(set(text)) > 9 and not text.isdigit()
    strange = text.count("\0") + text.count("\ufffd")
    return strange * 20 > len(text) > 0


def data_type(text: str) -> str:
    """The media type that a data URI names; of unknown data otherwise."""
    found = _DATA_URI.match(text)
    return (found.group(1) if found is not None else None) or MEDIA_TYPES["data"][0]


# The lines of an output.

_MOST_DECODED, _MOST_JSON = 40_000, 1_000_000
"""Characters of the longest output that is decoded, and of the longest JSON that is read; others are shown in their own
lines."""
_LONGEST, _PIECE = 240, 200


class View(NamedTuple):
    """An output in lines, numbered from 1. ``outline`` holds them where they are JSON, ``whole`` the shortest text that
    says the same as the output; it is empty where that is the output itself. ``ends_early`` says that the JSON was cut
    off before it came here."""

    kind: Kind
    lines: Sequence[str]
    outline: Sequence[Line] = ()
    whole: str = ""
    ends_early: bool = False

    def line(self, at: int) -> str:
        """A line as it is shown; the first one is 0."""
        return printable(self.lines[at])


def view_of(text: str) -> View:
    """An output in lines: those of the JSON or the text that it holds, long ones in pieces."""
    is_long = len(text) > _MOST_DECODED
    inside = text if is_long else decoded(text)
    kind = kind_of(inside)
    found = read_json(inside) if not is_long or (kind == "json" and len(text) <= _MOST_JSON) else None
    if found is None and is_long:
        return View(kind=kind, lines=lines_of(text))
    if found is None:
        lines = [
            piece for line in inside.split("\n") for piece in (pieces(line, _PIECE) if len(line) > _LONGEST else [line])
        ]
        return View(kind=kind, lines=lines, whole=inside if inside != text else "")
    value, is_complete = found
    outline = outlined(value)
    whole = "" if is_long else min(compact(value), compact(tabled(value)), key=len)
    return View(
        kind="json",
        lines=rendered(outline, range(len(outline))).split("\n"),
        outline=outline,
        whole=whole if len(whole) < len(text) else "",
        ends_early=not is_complete,
    )


# JSON in lines.

_LONG_TEXT = 400
_MOST_COLUMNS = 40
_DEEPEST = 60


class Line(NamedTuple):
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
        value = [piece for line in value.split("\n") for piece in pieces(line, _LONGEST)]
    whole = compact(value)
    if not isinstance(value, (dict, list)) or depth > _DEEPEST or len(whole) <= _LONGEST:
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
    start = 0
    while len(line) - start > width:
        cut = line.rfind(" ", start + width // 2, start + width) + 1 or start + width
        found.append(line[start:cut])
        start = cut
    return [*found, line[start:]]


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
    if not isinstance(value, list) or len(value) < LEAST_ROWS or not isinstance(value[0], dict):
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
