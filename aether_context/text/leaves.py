"""The scalar values in JSON, each number with the key and the record that it stands in.

A number alone says nothing: ``total: 19.5`` is a fact only with the order whose total it is. A record is an object that
one of its own fields names: an id, else a text that looks like one, else a name. Where a list holds several, the field
that tells them apart names them. An object that has no such field is named by the key that it stands under, within the
record around it. Tables of columns and rows, and objects of equally long columns, are read as the records they stand
for, and a text that is JSON is read as JSON.
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

# JSON values as lines, so that whoever picks lines picks whole records.

_WIDEST, _NARROW = 1_500, 120
"""Characters up to which a record, and another value, stands on one line."""
_LONG_TEXT = 200
_DEEPEST = 40
_LEAST_RECORDS = 3


def laid_out(value: JSON) -> str:
    """A JSON value in lines: each entry of a list or of objects by name on one, each field of a larger object on one.

    A record that is wider than 1,500 characters has its long texts cut short; one that is still wider takes several
    lines.
    """
    return "\n".join(_lines(value, 0, False))


def _lines(value: JSON, depth: int, entry: bool) -> list[str]:
    indent = " " * depth
    text = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, (dict, list)) or len(text) <= (_WIDEST if entry else _NARROW) or depth > _DEEPEST:
        return [indent + text]
    if entry and isinstance(value, dict):
        brief = json.dumps(_brief(value), ensure_ascii=False)
        if len(brief) <= _WIDEST:
            return [indent + brief]
    if isinstance(value, list):
        return [f"{indent}[", *(line for item in value for line in _lines(item, depth + 1, True)), f"{indent}]"]
    lines: list[str] = []
    records = len(value) >= _LEAST_RECORDS and all(isinstance(item, dict) for item in value.values())
    for key, item in value.items():
        first, *rest = _lines(item, depth + 1, records)
        lines += [f"{indent} {json.dumps(key, ensure_ascii=False)}: {first.lstrip()}", *rest]
    return [f"{indent}{{", *lines, f"{indent}}}"]


def _brief(value: JSON) -> JSON:
    """A value whose long texts end early, and say so."""
    if isinstance(value, dict):
        return {key: _brief(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_brief(item) for item in value]
    if isinstance(value, str) and len(value) > _LONG_TEXT:
        return f"{value[:_LONG_TEXT]}[… {len(value) - _LONG_TEXT} characters left out]"
    return value


def parsed(text: str) -> JSON:
    """The object or list that a text is written as, in JSON or as Python writes it; None where it is neither.

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
    """The object or list that a text is written as, its numbers as they are written; None where it is neither.

    A text that was cut off counts where most of it can be read.
    """
    text = text.strip()
    whole = text.endswith(("}", "]"))
    if len(text) > _MOST_CHARACTERS or not text.startswith(("{", "[")) or not (whole or _JSON_START.match(text)):
        return None
    # A number at the cut may have lost digits.
    found = read_json(text if whole else text.rstrip("0123456789.+-eE"), as_written=True)
    if found is None or (not found[1] and (whole or 3 * len(json.dumps(found[0])) < len(text))):
        return parsed(text)
    return found[0]


def texts(value: JSON) -> Iterator[str]:
    """The texts in a value, as they stand."""
    if isinstance(value, str):
        yield value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from texts(item)


# Scalars with the records that they stand in.

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
"""Characters of a number that is worth a place."""
_MOST_LISTED, _MOST_FIELDS, _LEAVES_DEEPEST = 8, 200, 60


class Leaf(NamedTuple):
    """A scalar value. ``key`` is set where it is a number; ``record`` names what it stands in, where that is known."""

    text: str
    key: str = ""
    record: str = ""


class _Place(NamedTuple):
    """Where a value stands: the record around it, and the key of what holds it within that record."""

    record: str = ""
    key: str = ""

    @property
    def label(self) -> str:
        return _joined(self.record, self.key)

    def under(self, key: str) -> _Place:
        return self if _WRAPPER.fullmatch(key) or key.isdecimal() else _Place(self.record, _line(key))


def leaves(value: JSON, record: str = "") -> Iterator[Leaf]:
    """The texts and numbers in a value of a ``record``, in their order, without numbers of one or two characters."""
    yield from _of_value(value, "", _Place(record), 0)


def label_of(arguments: JSON) -> str:
    """What a call asks about: the field of its arguments that names a record, else the only one there is."""
    if not isinstance(arguments, dict):
        return ""
    key = _naming([arguments], "")
    if key:
        return _within(key, arguments[key], _Place()).record
    for name, value in arguments.items() if len(arguments) == 1 else ():
        sole = _line(str(value)) if isinstance(value, (str, int)) and not isinstance(value, bool) else ""
        if 0 < len(sole) <= _LONGEST_SOLE and sole.count(" ") < 2:
            return f"{_line(name)} {sole}" if is_number(sole) else sole
    return ""


def is_number(text: str) -> bool:
    """Whether a text is nothing but a number, with its currency, sign or percent."""
    return len(text) <= _MOST and _NUMERIC.fullmatch(text) is not None


@lru_cache(maxsize=4_096)
def is_id(key: str) -> bool:
    """Whether a key says that its value names something."""
    if len(key) > _LONGEST_KEY or _NO_ID.fullmatch(key):
        return False
    return bool(_ID.fullmatch(key) or _CAMEL_ID.fullmatch(key))


def is_label(word: str) -> bool:
    """Whether a word looks like the name of one thing: with a digit, a slash or an at sign, and no number or date."""
    if len(word) > _LONGEST_LABEL or not _TELLING.search(word) or any(map(str.isspace, word)):
        return False
    return not (is_number(word) or _DATE.fullmatch(word) or _COLOUR.fullmatch(word))


def short_label(label: str) -> str:
    """A label as it stands before a number: of a long path or address the last part."""
    if len(label) <= _LONG_PATH or "/" not in label:
        return label
    return label.rstrip("/").rpartition("/")[2] or label


def _of_value(value: JSON, key: str, place: _Place, depth: int) -> Iterator[Leaf]:
    if depth > _LEAVES_DEEPEST:
        return
    if isinstance(value, str):
        inner = decoded(value)
        inside = read(inner)
        if inside is not None:
            yield from _of_value(inside, key, place, depth + 1)
        elif is_number(line := inner.strip()):
            yield from _of_number(_line(line), key, place)
        else:
            yield Leaf(inner, "", place.record)
    elif isinstance(value, dict):
        yield from _of_object(value, key, place, depth)
    elif isinstance(value, list):
        yield from _of_list(value, key, place, depth)
    elif value is not None and not isinstance(value, bool):
        yield from _of_number(str(value), key, place)


def _of_object(value: _Record, key: str, place: _Place, depth: int, naming: str = "") -> Iterator[Leaf]:
    table = _as_records(value)
    if table is not None:
        yield from _of_list(table, key, place, depth)
        return
    name = naming if naming and _usable(value.get(naming)) else _naming([value], key)
    around = place.under(key)
    inside = _within(name, value[name], around) if name else around
    if is_label(key) and not (name and is_id(name)):
        name, inside = "", _Place(_joined(place.record, _line(key)))
    for field, item in value.items():
        # A number that names the record belongs to what is around it.
        yield from _of_value(item, field, around if field == name else inside, depth + 1)


def _of_list(value: Sequence[JSON], key: str, place: _Place, depth: int) -> Iterator[Leaf]:
    value = _with_header(value) or value
    numbers = [_scalar(item) for item in value]
    if value and all(numbers):
        if is_id(key):
            for number in numbers:
                yield from _of_number(number, key, place)
        elif len(numbers) <= _MOST_LISTED:
            yield from _of_number(" ".join(numbers), key, place)
        return
    objects = [item for item in value if isinstance(item, dict)]
    naming = _naming(objects, key) if objects else ""
    if not objects and any(numbers):
        label = next((item for item in value if isinstance(item, str) and is_label(item)), "")
        place = _Place(short_label(label), place.under(key).key) if label else place
    for item in value:
        if isinstance(item, dict):
            yield from _of_object(item, key, place, depth + 1, naming)
        else:
            yield from _of_value(item, key, place, depth + 1)


def _of_number(number: str, key: str, place: _Place) -> Iterator[Leaf]:
    if not _FEWEST <= len(number) <= _MOST or not any(map(str.isdigit, number)):
        return
    key = _line(key)
    if key.isdecimal():
        if not place.label or (len(key) < 4 and not place.record):
            return  # a place in a list names nothing
        key, place = f"{place.key} {key}".strip(), _Place(place.record)
    if key:
        yield Leaf(number, key, place.record if is_id(key) and not _GENERIC_ID.fullmatch(key) else place.label)


def _scalar(value: JSON) -> str:
    """A number as text; empty for anything else."""
    if value is None or isinstance(value, (bool, dict, list)):
        return ""
    text = str(value).strip()
    return _line(text) if is_number(text) else ""


def _naming(records: Sequence[_Record], container: str) -> str:
    """The field that names the records of one container; empty where none does.

    Among fields that could, the first one that tells the records apart; else the first that looks like an id.
    """
    first = records[0]
    fields = list(first)[:_MOST_FIELDS]
    stem = container.casefold().rstrip("s")

    def closeness(field: str) -> int:
        """Where an id stands among the ids of a record: its own before those of others it points to."""
        lower = field.casefold()
        if lower in ("id", "_id"):
            return 0
        if stem and lower.startswith(stem):
            return 1
        return 2 if _OWN_ID.fullmatch(field) else 4 if _WEAK_ID.search(lower) else 3

    ids = sorted(filter(is_id, fields), key=closeness)
    rest = [field for field in fields if field not in ids]
    ids = [field for field in ids if _usable(first[field])]
    strong = [field for field in rest if isinstance(value := first[field], str) and is_label(value)]
    candidates = [*ids, *strong, *(field for field in rest if _NAME.fullmatch(field[:_LONGEST_KEY]))]
    if len(records) > 1:
        candidates += [field for field in rest if _PERIOD.fullmatch(field)]
        candidates += [field for field in rest if isinstance(first[field], str) and not _STATE.fullmatch(field)]
    for field in dict.fromkeys(candidates):
        values = [record.get(field) for record in records]
        if all(map(_usable, values)) and len(set(map(str, values))) == len(values):
            return field
    return next(iter([*ids, *strong]), "")


def _usable(value: JSON) -> bool:
    if isinstance(value, str):
        return 0 < len(value.strip()) <= _LONGEST_LABEL
    return isinstance(value, int) and not isinstance(value, bool)


def _within(field: str, value: JSON, around: _Place) -> _Place:
    """The place inside a record that a field names: an id that could stand alone does, others within what is around."""
    text = _line(str(value))
    if is_label(text):
        return _Place(short_label(text))
    if is_number(text):
        text = f"{_line(field)} {text}"
        if _GENERIC_ID.fullmatch(field) and not around.record:
            return _Place(_joined(around.key, text))
    return _Place(_joined(around.record, text))


def _joined(outer: str, inner: str) -> str:
    both = f"{outer} {inner}".strip()
    return both if len(both) <= _LONGEST_JOINED else inner or outer


def _line(text: str) -> str:
    """A text on one line, and without what separates the entries of a table."""
    return " ".join(text[: 4 * _LONGEST_LABEL].split()).replace(", ", " ")[:_LONGEST_LABEL].rstrip(" ,:")


def _as_records(value: _Record) -> list[JSON] | None:
    """The records of an object that holds column names and rows, or nothing but columns of one length."""
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
    """The records of a list of rows whose first one holds the column names."""
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
