"""The scalar values (leaves) of JSON, each number with its key and the record that it belongs to.

``total: 19.5`` is a fact only with the order whose total it is. A record is an object that one of its fields names: an
id, else a text that looks like one, else a name. The records of a list are named by the field that differs in all of
them. An object without such a field is named by its key, within the record around it. Tables of columns and rows, and
objects of equally long columns, are read as records, and a text that is JSON is read as JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeAlias

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


def texts(value: JSON) -> Iterator[str]:
    """All texts in a value."""
    if isinstance(value, str):
        yield value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from texts(item)


# Scalars with the records that they belong to.

_Record: TypeAlias = Mapping[str, JSON]

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
_GENERIC_ID = re.compile(r"_?(?:id|uuid|guid|key|number|num|no|nr|code|ref|reference)", re.IGNORECASE)
_OWN_ID = re.compile(r"_?(?:key|number|no|nr|code|ref|reference|symbol|ticker|sku|isbn|iban|slug)", re.IGNORECASE)
_WEAK_ID = re.compile(r"(?:uuid|guid|key|code|path|file|filename|url|uri|email|login|username)s?$")
_NAME = re.compile(r"(?:.*[_\-. ])?(?:name|title|label|subject)|.*[a-z](?:Name|Title)", re.IGNORECASE)
_PERIOD = re.compile(r"date|day|week|month|quarter|year|period|time|timestamp", re.IGNORECASE)
_STATE = re.compile(
    r"(?:.*_)?(?:status|state|type|kind|priority|level|severity|result|message|text|description|note|comment|unit)s?"
    r"|currency",
    re.IGNORECASE,
)
_WRAPPER = re.compile(
    r"result|results|response|output|outputs|content|contents|data|value|values|text|body|payload|structuredContent|rows"
    r"|records|items_list|hits|json",
    re.IGNORECASE,
)
_JSON_START = re.compile(r"\{\s*\"|\[\s*[\[{\"]")
_LONGEST_LABEL, _LONGEST_KEY, _LONGEST_JOINED, _LONGEST_SOLE, _LONG_PATH = 60, 40, 100, 40, 24
_FEWEST, _MOST = 3, 60
"""Fewest and most characters of a number that is listed."""
_MOST_LISTED, _MOST_FIELDS, _LEAVES_DEEPEST = 8, 200, 60


class Leaf(NamedTuple):
    """A scalar value. ``key`` is set where it is a number; ``record`` names its record, where that is known."""

    text: str
    key: str = ""
    record: str = ""


class _Place(NamedTuple):
    """The position of a value: the record around it, and the key of its container within that record."""

    record: str = ""
    key: str = ""

    @property
    def label(self) -> str:
        return _joined(self.record, self.key)

    def under(self, key: str) -> _Place:
        return self if _WRAPPER.fullmatch(key) or key.isdecimal() else _Place(self.record, _line(key))


def leaves(value: JSON, record: str = "") -> Iterator[Leaf]:
    """The texts and numbers in a value that belongs to a ``record``, in order, without numbers of fewer than three
    characters."""
    yield from _value_leaves(value, "", _Place(record), 0)


def label_of(arguments: JSON) -> str:
    """The label of what a call asks about: the argument that names a record, else a short single argument."""
    if not isinstance(arguments, dict):
        return ""
    key = _naming_field([arguments], "")
    if key:
        return _record_place(key, arguments[key], _Place()).record
    for name, value in arguments.items() if len(arguments) == 1 else ():
        label = _line(str(value)) if isinstance(value, (str, int)) and not isinstance(value, bool) else ""
        if 0 < len(label) <= _LONGEST_SOLE and label.count(" ") < 2:
            return f"{_line(name)} {label}" if is_number(label) else label
    return ""


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


def short_label(label: str) -> str:
    """A label as it is put before a number: the last part of a long path or address."""
    if len(label) <= _LONG_PATH or "/" not in label:
        return label
    return label.rstrip("/").rpartition("/")[2] or label


def _value_leaves(value: JSON, key: str, around: _Place, depth: int) -> Iterator[Leaf]:
    if depth > _LEAVES_DEEPEST:
        return
    if isinstance(value, str):
        text = decoded(value)
        parsed_value = read(text)
        if parsed_value is not None:
            yield from _value_leaves(parsed_value, key, around, depth + 1)
        elif is_number(line := text.strip()):
            yield from _number_leaves(_line(line), key, around)
        else:
            yield Leaf(text, "", around.record)
    elif isinstance(value, dict):
        yield from _object_leaves(value, key, around, depth)
    elif isinstance(value, list):
        yield from _list_leaves(value, key, around, depth)
    elif value is not None and not isinstance(value, bool):
        yield from _number_leaves(str(value), key, around)


def _object_leaves(value: _Record, key: str, around: _Place, depth: int, naming: str = "") -> Iterator[Leaf]:
    table = _as_records(value)
    if table is not None:
        yield from _list_leaves(table, key, around, depth)
        return
    name = naming if naming and _can_name(value.get(naming)) else _naming_field([value], key)
    outside = around.under(key)
    inside = _record_place(name, value[name], outside) if name else outside
    if is_label(key) and not (name and is_id(name)):
        name, inside = "", _Place(_joined(around.record, _line(key)))
    for field, item in value.items():
        # The field that names the record belongs to what is around it.
        yield from _value_leaves(item, field, outside if field == name else inside, depth + 1)


def _list_leaves(value: Sequence[JSON], key: str, around: _Place, depth: int) -> Iterator[Leaf]:
    value = _with_header(value) or value
    numbers = [_scalar(item) for item in value]
    if value and all(numbers):
        if is_id(key):
            for number in numbers:
                yield from _number_leaves(number, key, around)
        elif len(numbers) <= _MOST_LISTED:
            yield from _number_leaves(" ".join(numbers), key, around)
        return
    objects = [item for item in value if isinstance(item, dict)]
    naming = _naming_field(objects, key) if objects else ""
    if not objects and any(numbers):
        label = next((item for item in value if isinstance(item, str) and is_label(item)), "")
        around = _Place(short_label(label), around.under(key).key) if label else around
    for item in value:
        if isinstance(item, dict):
            yield from _object_leaves(item, key, around, depth + 1, naming)
        else:
            yield from _value_leaves(item, key, around, depth + 1)


def _number_leaves(number: str, key: str, around: _Place) -> Iterator[Leaf]:
    if not _FEWEST <= len(number) <= _MOST or not any(map(str.isdigit, number)):
        return
    key = _line(key)
    if key.isdecimal():
        if not around.label or (len(key) < 4 and not around.record):
            return  # an index in a list names nothing
        key, around = f"{around.key} {key}".strip(), _Place(around.record)
    if key:
        yield Leaf(number, key, around.record if is_id(key) and not _GENERIC_ID.fullmatch(key) else around.label)


def _scalar(value: JSON) -> str:
    """A number as text; empty for anything else."""
    if value is None or isinstance(value, (bool, dict, list)):
        return ""
    text = str(value).strip()
    return _line(text) if is_number(text) else ""


def _naming_field(records: Sequence[_Record], container: str) -> str:
    """The field that names the records of one container; empty where none does.

    It is the first candidate whose values differ in all records; else the first one that looks like an id.
    """
    first_record = records[0]
    fields = list(first_record)[:_MOST_FIELDS]
    stem = container.casefold().rstrip("s")

    def closeness(field: str) -> int:
        """The rank of an id field among those of a record: its own id comes before those of other records."""
        lower = field.casefold()
        if lower in ("id", "_id"):
            return 0
        if stem and lower.startswith(stem):
            return 1
        return 2 if _OWN_ID.fullmatch(field) else 4 if _WEAK_ID.search(lower) else 3

    id_fields = sorted(filter(is_id, fields), key=closeness)
    other_fields = [field for field in fields if field not in id_fields]
    id_fields = [field for field in id_fields if _can_name(first_record[field])]
    label_fields = [
        field for field in other_fields if isinstance(value := first_record[field], str) and is_label(value)
    ]
    candidates = [
        *id_fields,
        *label_fields,
        *(field for field in other_fields if _NAME.fullmatch(field[:_LONGEST_KEY])),
    ]
    if len(records) > 1:
        candidates += [field for field in other_fields if _PERIOD.fullmatch(field)]
        candidates += [
            field for field in other_fields if isinstance(first_record[field], str) and not _STATE.fullmatch(field)
        ]
    for field in dict.fromkeys(candidates):
        values = [record.get(field) for record in records]
        if all(map(_can_name, values)) and len(set(map(str, values))) == len(values):
            return field
    return next(iter([*id_fields, *label_fields]), "")


def _can_name(value: JSON) -> bool:
    if isinstance(value, str):
        return 0 < len(value.strip()) <= _LONGEST_LABEL
    return isinstance(value, int) and not isinstance(value, bool)


def _record_place(field: str, value: JSON, around: _Place) -> _Place:
    """The place inside a record that a field names. A unique label is used alone, others with what is around."""
    text = _line(str(value))
    if is_label(text):
        return _Place(short_label(text))
    if is_number(text):
        text = f"{_line(field)} {text}"
        if _GENERIC_ID.fullmatch(field) and not around.record:
            return _Place(_joined(around.key, text))
    return _Place(_joined(around.record, text))


def _joined(outer: str, inner: str) -> str:
    joined = f"{outer} {inner}".strip()
    return joined if len(joined) <= _LONGEST_JOINED else inner or outer


def _line(text: str) -> str:
    """A text shortened to one line, without the separators of the entity table."""
    return " ".join(text[: 4 * _LONGEST_LABEL].split()).replace(", ", " ")[:_LONGEST_LABEL].rstrip(" ,:")


def _as_records(value: _Record) -> list[JSON] | None:
    """The records of an object that holds column names and rows, or only columns of equal length; else None."""
    lists = {field: item for field, item in value.items() if isinstance(item, list) and item}
    rows = [item for item in lists.values() if isinstance(item[0], list) or any(isinstance(row, list) for row in item)]
    columns = {field: item for field, item in lists.items() if len(item) > 1}
    heads = [item for item in columns.values() if all(isinstance(name, str) for name in item)]
    if len(rows) == 1 and len(heads) == 1:
        return _zipped(heads[0], rows[0])
    if not 2 <= len(columns) == len(value) or len({len(item) for item in columns.values()}) != 1:
        return None
    if any(isinstance(cell, (dict, list)) for item in columns.values() for cell in item):
        return None
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _with_header(value: Sequence[JSON]) -> list[JSON] | None:
    """The records of a list of rows whose first one holds the column names; None for other lists."""
    if len(value) < 2 or not all(isinstance(row, list) for row in value):
        return None
    head = value[0]
    if not isinstance(head, list) or not 1 < len(head) == len(set(map(str, head))):
        return None
    if not all(isinstance(name, str) and not is_number(name) and not is_label(name) for name in head):
        return None
    return _zipped(head, value[1:])


def _zipped(head: Sequence[JSON], rows: Sequence[JSON]) -> list[JSON]:
    return [
        dict(zip(map(str, head), row, strict=True)) if isinstance(row, list) and len(row) == len(head) else row
        for row in rows
    ]
