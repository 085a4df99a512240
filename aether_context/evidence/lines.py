"""The kind of text that a tool's output is, told from its beginning."""

from __future__ import annotations

import re
from collections import Counter
from typing import Literal, TypeAlias

from aether_context.text.json_lines import LEAST_ROWS

Kind: TypeAlias = Literal["json", "table", "list", "text", "data"]
"""``list`` has a path or an address at the head of each line, or records of lines with keys; ``data`` is binary data
written as text."""

MEDIA_TYPES: dict[Kind, tuple[str, str]] = {
    "json": ("application/json", "json"),
    "table": ("text/csv", "csv"),
    "list": ("text/plain", "txt"),
    "text": ("text/plain", "txt"),
    "data": ("application/octet-stream", "bin"),
}
"""The media type of a kind, and the ending of its name."""

_TEXT = re.compile(
    r"text/.+|image/svg\+xml|application/(?:[\w.+-]+\+)?(?:json|xml|yaml|x-yaml|toml|javascript|sql|x-sh|x-ndjson)"
)
_LOOKED_AT = 20_000
_LEAST_KEYS = 3
_LEAST_DATA = 400
_DATA_URI = re.compile(r"data:([\w.+-]+/[\w.+-]+)?(;[\w=.-]+)*;base64,")
_ENCODED = re.compile(r"[A-Za-z0-9+/_\s-]{400,}={0,2}")
_KEYED = re.compile(r"""\s*(?:[-*]\s+)?["']?([^\W\d][\w .-]{0,30}?)["']?\s?[:=]\s*\S""")
_LISTED = re.compile(r"\s*(?:[-*] )?(?=\S*[^\W\d])(?:https?:/|[\w.~@-]*)(?:/[\w.~@+%-]+)+(?:[\s:,(]|$)")


def is_text(media_type: str) -> bool:
    """Tells whether bytes of a media type are read and searched as text."""
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
    keys = Counter(keyed[1].casefold() for line in lines if (keyed := _KEYED.match(line)) is not None)
    repeated = [count for count in keys.values() if count >= LEAST_ROWS]
    in_records = sum(repeated) if len(repeated) >= _LEAST_KEYS else 0
    if max(in_records, sum(_LISTED.match(line) is not None for line in lines)) * 4 >= len(lines) * 3:
        return "list"
    return "text"


def is_data(text: str) -> bool:
    """Tells whether a text is binary data in base64, in hexadecimal, or as it came."""
    if _DATA_URI.match(text):
        return True
    if len(text) >= _LEAST_DATA and _ENCODED.fullmatch(text.rstrip()):
        longest = max(map(len, text.split(None, 200)[:200]))
        return longest >= 60 and len(set(text)) > 9 and not text.isdigit()
    strange = text.count("\0") + text.count("\ufffd")
    return strange * 20 > len(text) > 0


def data_type(text: str) -> str:
    """The media type that a data URI names; of unknown data otherwise."""
    match = _DATA_URI.match(text)
    return (match.group(1) if match is not None else None) or MEDIA_TYPES["data"][0]
