"""The scalar values (leaves) of JSON, each number with its key and the record that it belongs to.

``total: 19.5`` is a fact only with the order whose total it is. A record is an object that one of its fields names: an
id, else a text that looks like one, else a name. The records of a list are named by a field that differs in all of
them. A text that is JSON is read as JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from aether_context.canonical import JSON, canonical_json
from aether_context.text.decoding import decoded, read_json, read_python

_MOST_CHARACTERS = 400_000

# JSON values as lines, so that code that chooses lines chooses whole records.

_WIDEST, _NARROW = 1_500, 120
"""Most characters of a record, and of another value, that is written on one line."""
_LONG_TEXT = 200
_DEEPEST = 40
_LEAST_RECORDS = 3


def laid_out(value: JSON) -> str:
    """A JSON value in lines: one for each entry of a list, or of an object of objects, or field of a larger object.

    In a record of more than 1,500 characters long texts are shortened; one that is still longer takes several lines.
    """
    return "\n".join(_lines(value, 0, False))


def _lines(value: JSON, depth: int, is_entry: bool) -> list[str]:
    indent = " " * depth
    text = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, (dict, list)) or len(text) <= (_WIDEST if is_entry else _NARROW) or depth > _DEEPEST:
        return [indent + text]
    if is_entry and isinstance(value, dict):
        brief = json.dumps(_brief(value), ensure_ascii=False)
        if len(brief) <= _WIDEST:
            return [indent + brief]
    if isinstance(value, list):
        return [f"{indent}[", *(line for item in value for line in _lines(item, depth + 1, True)), f"{indent}]"]
    lines: list[str] = []
    are_records = len(value) >= _LEAST_RECORDS and all(isinstance(item, dict) for item in value.values())
    for key, item in value.items():
        first_line, *other_lines = _lines(item, depth + 1, are_records)
        lines += [f"{indent} {json.dumps(key, ensure_ascii=False)}: {first_line.lstrip()}", *other_lines]
    return [f"{indent}{{", *lines, f"{indent}}}"]


def _brief(value: JSON) -> JSON:
    """A value with its long texts shortened, and a note in each of how much is left out."""
    if isinstance(value, dict):
        return {key: _brief(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_brief(item) for item in value]
    if isinstance(value, str) and len(value) > _LONG_TEXT:
        return f"{value[:_LONG_TEXT]}[… {len(value) - _LONG_TEXT} characters left out]"
    return value


def parsed(text: str) -> JSON:
    """The object or list in a text, in JSON or in Python notation; None where it is neither.

    Texts of more than 400,000 characters are not read.
    """
    text = text.strip()
    if len(text) > _MOST_CHARACTERS or not text.startswith(("{", "[")) or not text.endswith(("}", "]")):
        return None
    try:
        value: JSON = json.loads(text)
    except (ValueError, RecursionError):
        value = read_python(text)
    try:
        canonical_json(value)
    except (ValueError, RecursionError):
        return None
    return value


def read(text: str) -> JSON:
    """The object or list in a text, with numbers as texts of their digits; None where it is neither.

    A text that was cut off is read where most of it can be.
    """
    text = text.strip()
    is_complete = text.endswith(("}", "]"))
    if len(text) > _MOST_CHARACTERS or not text.startswith(("{", "[")) or not (is_complete or _JSON_START.match(text)):
        return None
    # A number at the cut may have lost digits.
    parsed_json = read_json(text if is_complete else text.rstrip("0123456789.+-eE"), as_written=True)
    if parsed_json is None or (not parsed_json[1] and (is_complete or 3 * len(json.dumps(parsed_json[0])) < len(text))):
        return parsed(text)
    return parsed_json[0]


# Scalars with the records that they belong to.

NUMBER = r"(?:\d{1,3}(?:[.,]\d{3})+(?:[.,]\d+)?|\d+(?:[.,]\d+)?(?:[eE][+-]?\d+)?)"
_NUMERIC = re.compile(rf"[+-]?[$€£¥]?\s?{NUMBER}\s?(?:%|[A-Z]{{3}}|[$€£¥])?|[A-Z]{{3}}\s[+-]?{NUMBER}")
_DATE = re.compile(r"\d{4}-\d\d(?:-\d\d)?(?:[T ].*)?|\d{1,4}[./]\d{1,2}[./]\d{1,4}|\d{1,2}:\d\d(?::\d\d)?.*")
_COLOUR = re.compile(r"#[0-9a-fA-F]{6}")
_TELLING = re.compile(r"[\d/@]")
_ID = re.compile(
    r"(?:.*[_\-. ])?(?:id|uuid|guid|key|number|num|no|nr|code|sku|ref|reference|symbol|ticker|slug|path|file|filename"
    r"|url|uri|email|isbn|iban|login|username)s?",
    re.IGNORECASE,
)
_CAMEL_ID = re.compile(r".*[a-z0-9](?:Id|ID|Uuid|Key|Number|No|Code|Sku|Ref|Path|File|Url|Uri|Email)s?")
_NO_ID = re.compile(
    r"(?:status|error|exit|return|response|country|currency|language|lang|postal|zip|area|page|line|total|phone)"
    r"[_\-. ]?(?:code|number|no|key|num)s?",
    re.IGNORECASE,
)
_NAME = re.compile(r"(?:.*[_\-. ])?(?:name|title|label|subject)|.*[a-z](?:Name|Title)", re.IGNORECASE)
_JSON_START = re.compile(r"\{\s*\"|\[\s*[\[{\"]")
_LONGEST_LABEL, _LONGEST_KEY, _LONGEST_RECORD = 60, 40, 100
_FEWEST, _MOST = 3, 60
"""Fewest and most characters of a number that is listed."""
_MOST_FIELDS = 200


class Leaf(NamedTuple):
    """A scalar value. ``key`` is set where it is a number; ``record`` names its record, where that is known."""

    text: str
    key: str = ""
    record: str = ""


def leaves(value: JSON, record: str = "") -> Iterator[Leaf]:
    """The texts and numbers in a value that belongs to a ``record``, in order, without numbers of fewer than three
    characters."""
    yield from _leaves(value, "", record, "", 0)


def _leaves(value: JSON, key: str, record: str, naming: str, depth: int) -> Iterator[Leaf]:
    """The leaves of the value at a key in a record; ``naming`` is the field that names the records of a list."""
    if depth > _DEEPEST:
        return
    if isinstance(value, dict):
        naming = naming if _can_name(value.get(naming)) else _naming_field([value], key)
        inner = record
        if naming:
            inner = _record_name(naming, value[naming], record)
        elif is_label(key):
            inner = f"{record} {_line(key)}".lstrip()
        for field, item in value.items():
            # The field that names the record belongs to what is around it.
            yield from _leaves(item, field, record if field == naming else inner, "", depth + 1)
    elif isinstance(value, list):
        naming = _naming_field([item for item in value if isinstance(item, dict)], key)
        for item in value:
            is_nameless = not is_id(key) and not isinstance(item, (dict, list))  # a number of many has no name
            yield from _leaves(item, "" if is_nameless else key, record, naming, depth + 1)
    elif value is not None and not isinstance(value, bool):
        text = decoded(value) if isinstance(value, str) else str(value)
        parsed_value = read(text)
        if parsed_value is not None:
            yield from _leaves(parsed_value, key, record, "", depth + 1)
        elif not is_number(text.strip()):
            yield Leaf(text, "", record)
        elif key and not key.isdecimal() and len(number := _line(text)) >= _FEWEST:  # an index names nothing
            yield Leaf(number, _line(key), record)


def is_number(text: str) -> bool:
    """Whether a text is only a number, with its currency, sign or percent."""
    return len(text) <= _MOST and _NUMERIC.fullmatch(text) is not None


@lru_cache(maxsize=4_096)
def is_id(key: str) -> bool:
    """Whether a key says that its value is an id."""
    if len(key) > _LONGEST_KEY or _NO_ID.fullmatch(key):
        return False
    return bool(_ID.fullmatch(key) or _CAMEL_ID.fullmatch(key))


def is_label(word: str) -> bool:
    """Whether a word looks like an id: it has a digit, a slash or an at sign, and is no number, date or colour."""
    if len(word) > _LONGEST_LABEL or not _TELLING.search(word) or any(map(str.isspace, word)):
        return False
    return not (is_number(word) or _DATE.fullmatch(word) or _COLOUR.fullmatch(word))


def _naming_field(records: Sequence[Mapping[str, JSON]], container: str) -> str:
    """The field that names the records of one container; empty where none does.

    It is the first of the ids, then of the texts that look like one, then of the names, whose values differ in all
    records. A record's own id comes before those of others.
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
    candidates += [field for field in fields if isinstance(text := records[0][field], str) and is_label(text)]
    candidates += [field for field in fields if _NAME.fullmatch(field[:_LONGEST_KEY])]
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
    return " ".join(text[: 4 * _LONGEST_LABEL].split()).replace(", ", " ")[:_LONGEST_LABEL].rstrip(" ,:")
