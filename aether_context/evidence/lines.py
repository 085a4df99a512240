"""The lines in which an output is shown, read and searched, by what kind of text it is."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from aether_context.evidence.outline import Line, compact, outlined, pieces, rendered, tabled
from aether_context.text.compression import lines_of
from aether_context.text.decoding import decoded, printable, read_json

# What kind of text a tool's output is, told from its beginning.

Kind: TypeAlias = Literal["json", "table", "log", "code", "text", "data"]
"""``data`` is binary data written as text."""

MEDIA_TYPES: dict[Kind, tuple[str, str]] = {
    "json": ("application/json", "json"),
    "table": ("text/csv", "csv"),
    "log": ("text/plain", "log"),
    "code": ("text/plain", "txt"),
    "text": ("text/plain", "txt"),
    "data": ("application/octet-stream", "bin"),
}
"""The media type of a kind, and the ending of its name."""

_TEXT = re.compile(r"text/.+|application/(?:[\w.+-]+\+)?(?:json|xml|yaml|x-yaml|toml|javascript|sql|x-sh|x-ndjson)")
_LOOKED_AT = 20_000
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


# The lines in which an output is shown, read and searched: the same ones, by the same numbers, everywhere.

MOST_DECODED = 40_000
"""Characters of the longest output that is decoded; longer ones are shown in their own lines."""

_LONGEST, _PIECE = 240, 200


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """An output in lines, numbered from 1. ``outline`` holds them where they are JSON, ``whole`` the shortest text that
    says the same as the output; it is empty where that is the output itself. ``ends_early`` says that the JSON was cut
    off before it came here."""

    kind: Kind
    lines: Sequence[str]
    outline: Sequence[Line] = field(default=())
    whole: str = ""
    ends_early: bool = False

    def line(self, at: int) -> str:
        """A line as it is shown; the first one is 0."""
        return printable(self.lines[at])


def view_of(text: str) -> View:
    """An output in lines: those of the JSON or the text that it holds, long ones in pieces."""
    if len(text) > MOST_DECODED:
        return View(kind=kind_of(text), lines=lines_of(text))
    inside = decoded(text)
    found = read_json(inside)
    if found is None:
        lines = [
            piece for line in inside.split("\n") for piece in (pieces(line, _PIECE) if len(line) > _LONGEST else [line])
        ]
        return View(kind=kind_of(inside), lines=lines, whole=inside if inside != text else "")
    value, is_complete = found
    outline = outlined(value)
    shortest = min(compact(value), compact(tabled(value)), key=len)
    lines = rendered(outline, range(len(outline))).split("\n")
    return View(
        kind="json",
        lines=lines,
        outline=outline,
        whole=shortest if len(shortest) < len(text) else "",
        ends_early=not is_complete,
    )
