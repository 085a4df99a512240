"""JSON in lines, and the scalar values (leaves) of JSON, each number with its key and the record that it belongs to.

JSON has a line for each value that is short enough, and tables for uniform rows. A line belongs to the object or array
that it stands in; what is chosen of the lines is written with every object and array around it, and with a note in the
place of what is missing, so that the result is JSON, whatever was chosen.

``total: 19.5`` is a fact only with the order whose total it is. A record is an object that one of its fields names: an
id, else a text that looks like one, else a name. The records of a list are named by a field that differs in all of
them. A text that is JSON is read as JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, islice, pairwise
from typing import NamedTuple

from aether_context.canonical import JSON, in_pieces
from aether_context.text.decoding import decoded, read_inside, read_json, read_python
from aether_context.text.patterns import pattern

_COMPACT = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_MOST_CHARACTERS = 400_000
_DEEPEST = 40

# Texts that are JSON.


def read(text: str) -> JSON:
    """The object or list in a text, in JSON or in Python notation; None where it is neither.

    Numbers of JSON are texts of their digits. A text that was cut off is read where most of it can be. Texts of more
    than 400,000 characters are not read.
    """
    text = text.strip()
    is_complete = text.endswith(("}", "]"))
    if len(text) > _MOST_CHARACTERS:
        return None
    if not text.startswith(("{", "[")) or not (is_complete or _JSON_START.match(text)):
        return read_inside(text, as_written=True)
    # A number at the cut may have lost digits.
    value = read_json(text if is_complete else text.rstrip("0123456789.+-eE"), as_written=True)
    if value is None or (not value[1] and (is_complete or 3 * len(json.dumps(value[0])) < len(text))):
        return read_python(text) if is_complete else None
    return value[0]


# JSON in lines.

LONGEST, PIECE = 240, 200
"""Characters of the longest line of an output, and of a piece of a longer one."""
_LONG_TEXT = 400
_MOST_COLUMNS = 40
LEAST_ROWS, _FEW_LINES = 3, 40
_LEAST_COLUMN = 24
"""Values of a column, such as a day's hours: shorter lists are as long as each other by chance."""
_SENTENCE_END = pattern("[。！？；]")
CLOSING = ("}", "]")
"""The texts of lines that close what another one opens."""


class LinePiece(str):
    """A piece of a longer line, which goes on in the next one."""


class Line(NamedTuple):
    """A line of an outline. ``parent`` is the index of the line that opens what it stands in, -1 at the top.

    ``end`` is, for a line that opens something, the index of the one that closes it.
    """

    text: str
    parent: int
    key: str | None = None
    end: int = -1


def unfolded(value: JSON, depth: int = 0) -> JSON:
    """A value with what its long texts hold in their place where that is JSON, such as the body of an answer."""
    if isinstance(value, str) and len(value) > _LONG_TEXT and (inside := read_json(value)) is not None and inside[1]:
        value = inside[0]
    if depth > _DEEPEST or not isinstance(value, (dict, list)):
        return value
    if isinstance(value, list):
        return [unfolded(item, depth + 1) for item in value]
    return {name: unfolded(item, depth + 1) for name, item in value.items()}


def outlined(value: JSON) -> list[Line]:
    """The lines of a value.

    An array of objects with the same keys, or an object of columns of one length, becomes ``{"columns": […], "rows":
    [[…], …]}``; a text of more than 400 characters becomes an array of its lines, long ones in pieces.
    """
    lines: list[Line] = []
    _add(lines, value, None, -1, 0)
    return lines


def _add(lines: list[Line], value: JSON, key: str | None, parent: int, depth: int) -> None:
    if isinstance(value, str) and len(value) > _LONG_TEXT:
        value = [text_piece for line in value.split("\n") for text_piece in pieces(line, LONGEST)]
    is_open = isinstance(value, (dict, list)) and depth <= _DEEPEST
    whole = "" if is_open and _is_long(value) else compact_json(value)
    if whole and (not is_open or len(whole) <= LONGEST):
        lines.append(Line(LinePiece(whole) if isinstance(value, LinePiece) else whole, parent, key))
        return
    value = _as_table(value) or _by_rows(value) or value
    at = len(lines)
    opening, ending = "{}" if isinstance(value, dict) else "[]"
    lines.append(Line(opening, parent, key))
    for name, item in value.items() if isinstance(value, dict) else ((None, item) for item in value):
        _add(lines, item, name, at, depth + 1)
    lines[at] = lines[at]._replace(end=len(lines))
    lines.append(Line(ending, at))


def _is_long(value: JSON) -> bool:
    """Tells of JSON that surely takes more than a line, without writing it, which each of its parts would do again."""
    size, waiting = 0, [value]
    while waiting and size <= LONGEST:
        item = waiting.pop()
        size += len(item) if isinstance(item, str) else 1
        if isinstance(item, dict):
            waiting += islice(item, LONGEST)
        if isinstance(item, (dict, list)):
            waiting += islice(item.values() if isinstance(item, dict) else item, LONGEST)
    return size > LONGEST


def rendered(lines: Sequence[Line], chosen_lines: Iterable[int], places: Sequence[int] = ()) -> str:
    """The JSON of chosen lines, each on a line of its own, with notes of what is missing.

    Args:
        places: the lines of another outline that these stand for, and its length; those of a note are numbered there.
    """
    kept_lines: set[int] = set()  # the chosen lines, and those that open and close what they stand in
    for at in chosen_lines:
        at = lines[at].parent if lines[at].text in CLOSING else at
        while at >= 0 and at not in kept_lines:
            kept_lines.update((at, lines[at].end) if lines[at].end >= 0 else (at,))
            if lines[at].key == "rows" and lines[columns := lines[at].parent + 1].key == "columns":
                kept_lines.update(range(columns, max(columns, lines[columns].end) + 1))
            at = lines[at].parent
    out: list[str] = []

    def write(text: str, key: str | None, closes: bool) -> None:
        if out and not closes and out[-1] not in ("{", "[") and not out[-1].endswith((":{", ":[")):
            out[-1] += ","
        out.append(text if key is None else f"{json.dumps(key, ensure_ascii=False)}:{text}")

    following, marked = 0, -1
    for at in (*sorted(kept_lines), len(lines)):
        parent = lines[following].parent if following < len(lines) else -1
        named = parent >= 0 and lines[parent].text == "{"
        if named and 0 < at - following <= _FEW_LINES and lines[lines[parent].parent].text == "[" and parent >= 1:
            # Of the fields of one record among many it is enough that there are more.
            if parent != marked:
                write('"…"', "…", False)
            marked = parent
        elif at > following:
            size = 0 if named else sum(line.parent == parent for line in lines[following:at] if line.text[:1] in "[{")
            records = f": {size} records" if size >= LEAST_ROWS else ""
            start, stop = (places[following], places[at]) if places else (following, at)
            write(f'"… {span(start, stop)}{records} …"', f"…{start + 1}" if named else None, False)
        if at < len(lines):
            write(lines[at].text, lines[at].key, lines[at].text in CLOSING)
        following = at + 1
    return "\n".join(out)


def span(start: int, stop: int) -> str:
    """Words for lines by their numbers from 1: ``line 3``, ``lines 3-7``."""
    return f"line {start + 1}" if stop - start == 1 else f"lines {start + 1}-{stop}"


_NEXT_ELEMENT = pattern(r"</([A-Za-z][\w.:-]{0,40})>\s*(?=<\1[\s>])")
"""The end of an element behind which another one of its name begins, such as a row of a table."""


_MOST_NESTED = 8
"""So often pieces are cut by elements inside of others."""


def pieces(line: str, width: int, depth: int = 0) -> list[str]:
    """A line in pieces of at most ``width`` characters, cut where elements of markup follow each other, the outer ones
    first, else at spaces where there are any, else behind a sentence of Chinese or Japanese, of whose characters each
    takes about as many tokens as a word's four."""
    if len(line) <= width:
        return [line]
    ends: dict[str, list[int]] = {}
    for match in _NEXT_ELEMENT.finditer(line) if depth < _MOST_NESTED else ():
        ends.setdefault(match[1], []).append(match.end())
    if ends:  # rows reach as far as cells do, and are fewer
        widest = max(places[-1] - places[0] for places in ends.values())
        outer = min((places for places in ends.values() if 2 * (places[-1] - places[0]) >= widest), key=len)
        parts = [line[start:end] for start, end in pairwise((0, *outer, len(line)))]
        text_pieces = list(chain.from_iterable(pieces(part, width, depth + 1) for part in parts))
        return [*map(LinePiece, text_pieces[:-1]), text_pieces[-1]]
    text_pieces, start = list[str](), 0
    while len(line) - start > width:
        sentence = _SENTENCE_END.search(line, start + width // 4, start + width)
        cut = line.rfind(" ", start + width // 2, start + width) + 1 or (sentence.end() if sentence else start + width)
        text_pieces.append(LinePiece(line[start:cut]))
        start = cut
    return [*text_pieces, line[start:]]


def text_lines(text: str) -> list[str]:
    """The lines of a text; of more than 240 characters in pieces of 200."""
    lines = text.split("\n")
    return [piece for line in lines for piece in (pieces(line, PIECE) if len(line) > LONGEST else [line])]


def tabled(value: JSON, depth: int = 0) -> JSON:
    """A value with every array of uniform objects as columns and rows."""
    if not isinstance(value, (dict, list)) or depth > _DEEPEST:
        return value
    if (table := _as_table(value)) is not None:
        return table
    if isinstance(value, dict):
        return {name: tabled(item, depth + 1) for name, item in value.items()}
    return [tabled(item, depth + 1) for item in value]


def compact_json(value: JSON) -> str:
    return in_pieces(value, _COMPACT)


def _as_table(value: JSON) -> dict[str, JSON] | None:
    """An array of objects that have the same keys and flat values, as columns and rows."""
    if not isinstance(value, list) or len(value) < LEAST_ROWS or not isinstance(value[0], dict):
        return None
    columns = list(value[0])

    def is_row(row: JSON) -> bool:
        has_keys = isinstance(row, dict) and row.keys() == value[0].keys()
        return has_keys and not any(isinstance(item, (dict, list)) for item in row.values())

    if not (1 < len(columns) <= _MOST_COLUMNS and all(map(is_row, value))):
        return None
    return {"columns": columns, "rows": [[row[name] for name in columns] for row in value]}


def _by_rows(value: JSON) -> dict[str, JSON] | None:
    """Columns of many flat values each, as data frames are written, in rows: a value of one column says little without
    those beside it."""
    if not isinstance(value, dict) or not 1 < len(value) <= _MOST_COLUMNS:
        return None
    columns, names = list(value.values()), list(value)
    if all(isinstance(column, dict) and column.keys() == columns[0].keys() for column in columns):
        columns, names = [[*columns[0]], *([*column.values()] for column in columns)], ["index", *names]
    if not all(isinstance(column, list) and len(column) == len(columns[0]) >= _LEAST_COLUMN for column in columns):
        return None
    if any(isinstance(cell, (dict, list)) for column in columns for cell in column):
        return None
    return {"columns": names, "rows": [[*row] for row in zip(*columns, strict=True)]}


# Scalars with the records that they belong to.

NUMBER = r"(?:\d{1,3}(?:[.,]\d{3})+(?:[.,]\d+)?|\d+(?:[.,]\d+)?(?:[eE][+-]?\d+)?)"
_NUMERIC = pattern(rf"[+-]?[$€£¥]?\s?{NUMBER}\s?(?:%|[A-Z]{{3}}|[$€£¥])?|[A-Z]{{3}}\s[+-]?{NUMBER}")
_DATE = pattern(r"\d{4}-\d\d(?:-\d\d)?(?:[T ].*)?|\d{1,4}[./]\d{1,2}[./]\d{1,4}|\d{1,2}:\d\d(?::\d\d)?.*")
_COLOUR = pattern(r"#[0-9a-fA-F]{6}")
_TELLING = pattern(r"[\d/@]")
_ID = pattern(
    r"(?:.*[_\-. ])?(?:id|uuid|guid|key|number|num|no|nr|code|sku|ref|reference|symbol|ticker|slug|path|file|filename"
    r"|url|uri|email|isbn|iban|login|username)s?",
    re.IGNORECASE,
)
_CAMEL_ID = pattern(r".*[a-z0-9](?:Id|ID|Uuid|Key|Number|No|Code|Sku|Ref|Path|File|Url|Uri|Email)s?")
_NO_ID = pattern(
    r"(?:status|error|exit|return|response|country|currency|language|lang|postal|zip|area|page|line|total|phone)"
    r"[_\-. ]?(?:code|number|no|key|num)s?",
    re.IGNORECASE,
)
_NAME = pattern(r"(?:.*[_\-. ])?(?:name|title|label|subject)|.*[a-z](?:Name|Title)", re.IGNORECASE)
_ANSWERS = ("", "result")
"""Where a call's answer stands in its response."""
_JSON_START = pattern(r"\{\s*\"|\[\s*[\[{\"]")
_LONGEST_LABEL, _LONGEST_KEY, _LONGEST_RECORD = 60, 40, 100
_FEWEST, _MOST = 3, 60
"""Fewest and most characters of a number that is listed."""
_MOST_FIELDS = 200


class Leaf(NamedTuple):
    """A scalar value with its key, and the name of its record where that is known."""

    text: str
    key: str = ""
    record: str = ""


def leaves(value: JSON, record: str = "", key: str = "", naming: str = "", depth: int = 0) -> Iterator[Leaf]:
    """The texts and numbers in the value at a key in a record, in order, without numbers of fewer than three
    characters; ``naming`` is the field that names the records of a list."""
    if depth > _DEEPEST:
        return
    if isinstance(value, dict):
        naming = naming if _can_name(value.get(naming)) else _naming_field([value], key, answers=bool(record))
        inner = record
        if naming:
            inner = _record_name(naming, value[naming], record)
        elif is_label(key):
            inner = f"{record} {_line(key)}".lstrip()
        for field, item in value.items():
            # The field that names the record belongs to what is around it.
            yield from leaves(item, record if field == naming else inner, field, "", depth + 1)
    elif isinstance(value, list):
        naming = _naming_field([item for item in value if isinstance(item, dict)], key)
        for item in value:
            is_nameless = not is_id(key) and not isinstance(item, (dict, list))  # a number of many has no name
            yield from leaves(item, record, "" if is_nameless else key, naming, depth + 1)
    elif value is not None and not isinstance(value, bool):
        text = decoded(value) if isinstance(value, str) else str(value)
        parsed_value = read(text)
        if parsed_value is not None:
            yield from leaves(parsed_value, record, key, "", depth + 1)
        elif not is_number(text.strip()):
            yield Leaf(text, _line(key), record)
        elif key and not key.isdecimal() and (record or len(text) >= _FEWEST):  # an index names nothing
            yield Leaf(_line(text), _line(key), record)


def is_number(text: str) -> bool:
    """Tells whether a text is only a number, with its currency, sign or percent."""
    return len(text) <= _MOST and _NUMERIC.fullmatch(text) is not None


@lru_cache(maxsize=4_096)
def is_id(key: str) -> bool:
    """Tells whether a key says that its value is an id."""
    if len(key) > _LONGEST_KEY or _NO_ID.fullmatch(key):
        return False
    return bool(_ID.fullmatch(key) or _CAMEL_ID.fullmatch(key))


@lru_cache(maxsize=4_096)
def is_name(key: str) -> bool:
    """Tells whether a key says that its value is a name."""
    return _NAME.fullmatch(key[:_LONGEST_KEY]) is not None


def is_label(word: str) -> bool:
    """Tells whether a word looks like an id: it has a digit, a slash or an at sign, and is no number, date or
    colour."""
    if len(word) > _LONGEST_LABEL or not _TELLING.search(word) or any(map(str.isspace, word)):
        return False
    return not (is_number(word) or _DATE.fullmatch(word) or _COLOUR.fullmatch(word))


def _naming_field(records: Sequence[Mapping[str, JSON]], container: str, answers: bool = False) -> str:
    """The field that names the records of one container; empty where none does.

    It is the first of the ids, then of the texts that look like one, then of the names, whose values differ in all
    records. A record's own id comes before those of others. What ``answers`` a call about a record is that record,
    unless it has an id of its own.
    """
    if not records:
        return ""
    fields = list(records[0])[:_MOST_FIELDS]
    stem = container.casefold().rstrip("s")

    def closeness(field: str) -> int:
        if field.casefold() in ("id", "_id"):
            return 0
        return 1 if stem and field.casefold().startswith(stem) else 2

    candidates = sorted(filter(is_id, fields), key=closeness)
    if not (answers and container in _ANSWERS):
        candidates += [field for field in fields if isinstance(text := records[0][field], str) and is_label(text)]
        candidates += [*filter(is_name, fields)]
    for field in candidates:
        values = [record.get(field) for record in records]
        if all(map(_can_name, values)) and len(set(map(str, values))) == len(values):
            return field
    return ""


def _can_name(value: JSON) -> bool:
    if isinstance(value, str):
        return 0 < len(value.strip()) <= _LONGEST_LABEL
    return isinstance(value, int) and not isinstance(value, bool)


def _record_name(field: str, value: JSON, around: str) -> str:
    """The name of a record: a label stands alone, anything else behind the record around it."""
    text = _line(str(value))
    if is_label(text):
        return text
    name = f"{_line(field)} {text}" if is_number(text) else text
    return f"{around} {name}".lstrip() if len(around) + len(name) < _LONGEST_RECORD else name


def _line(text: str) -> str:
    """A text shortened to one line, without the separators of the entity table."""
    line = " ".join(text[: 4 * _LONGEST_LABEL].split()).replace(", ", " ").replace("; ", " ")
    return line[:_LONGEST_LABEL].rstrip(" ,:")
