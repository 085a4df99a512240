"""The scalar values in JSON, each number with the key and the record that it stands in.

A number alone says nothing: ``total: 19.5`` is a fact only with the order whose total it is. A record is an object that
one of its own fields names: an id, else a text that looks like one, else a name. Where a list holds several, the field
that tells them apart names them. An object that has no such field is named by the key that it stands under, within the
record around it. Tables of columns and rows, and objects of equally long columns, are read as the records they stand
for, and a text that is JSON is read as JSON.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from aether_context.canonical import JSON, canonical_json, plain
from aether_context.text.decoding import decoded, read_json

# JSON values as lines, so that whoever picks lines picks whole records.

_WIDEST = 1_500
"""Characters up to which a record stands on one line."""
_NARROW = 120
_LONG_TEXT = 200
_MOST_CHARACTERS = 400_000
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
    if not isinstance(value, (dict, list)) or not value or len(text) <= (_WIDEST if entry else _NARROW):
        return [indent + text]
    if depth > _DEEPEST:
        return [indent + text]
    if entry and isinstance(value, dict):
        brief = json.dumps(_brief(value), ensure_ascii=False)
        if len(brief) <= _WIDEST:
            return [indent + brief]
    lines: list[str] = []
    if isinstance(value, dict):
        records = len(value) >= _LEAST_RECORDS and all(isinstance(held, dict) for held in value.values())
        for key, held in value.items():
            first, *rest = _lines(held, depth + 1, records)
            lines += [f"{indent} {json.dumps(key, ensure_ascii=False)}: {first.lstrip()}", *rest]
        return [f"{indent}{{", *lines, f"{indent}}}"]
    for held in value:
        lines += _lines(held, depth + 1, True)
    return [f"{indent}[", *lines, f"{indent}]"]


def _brief(value: JSON) -> JSON:
    """A value whose long texts end early, and say so."""
    if isinstance(value, dict):
        return {key: _brief(held) for key, held in value.items()}
    if isinstance(value, list):
        return [_brief(held) for held in value]
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
        value = json.loads(text)
    except (ValueError, RecursionError):
        try:
            value = plain(ast.literal_eval(text))
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            return None
    try:
        canonical_json(value)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, (dict, list)) else None


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
_LONGEST_LABEL = 60
_LONGEST_KEY = 40
_LONG_PATH = 24
_LONGEST_JOINED = 100
_LONGEST_SOLE = 40
_FEWEST, _MOST = 3, 60
"""Characters of a number that is worth a place."""
_MOST_LISTED = 8
_MOST_FIELDS = 200
_LONGEST_JSON = 400_000
_JSON_START = re.compile(r"\{\s*\"|\[\s*[\[{\"]")
_LEAVES_DEEPEST = 60


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
    """The texts and numbers in a value, in their order; numbers too short to be worth a place are left out.

    Args:
        record: what the whole value belongs to.
    """
    yield from _of_value(value, "", _Place(record), 0)


def read(text: str) -> JSON:
    """The object or list that a text is written as, its numbers as they are written; None where it is neither.

    A text that was cut off counts where most of it can be read.
    """
    text = text.strip()
    if len(text) > _LONGEST_JSON or not text.startswith(("{", "[")):
        return None
    whole = text.endswith(("}", "]"))
    if not whole and not _JSON_START.match(text):
        return None
    # A number at the cut may have lost digits.
    found = read_json(text if whole else text.rstrip("0123456789.+-eE"), as_written=True)
    if found is None:
        return parsed(text)
    value, ended = found
    if not ended and (whole or 3 * len(json.dumps(value)) < len(text)):
        return parsed(text)
    return value


def texts(value: JSON) -> Iterator[str]:
    """The texts in a value, as they stand."""
    if isinstance(value, dict):
        for held in value.values():
            yield from texts(held)
    elif isinstance(value, list):
        for held in value:
            yield from texts(held)
    elif isinstance(value, str):
        yield value


def label_of(arguments: JSON) -> str:
    """What a call asks about: the field of its arguments that names a record, else the only one there is."""
    if not isinstance(arguments, dict):
        return ""
    key = _naming([arguments], "")
    if key:
        return _within(key, arguments[key], _Place()).record
    scalars = [held for held in arguments.values() if isinstance(held, (str, int)) and not isinstance(held, bool)]
    if len(arguments) == 1 and len(scalars) == 1:
        (name,) = arguments
        sole = _line(str(scalars[0]))
        if 0 < len(sole) <= _LONGEST_SOLE and sole.count(" ") < 2:
            return f"{_line(name)} {sole}" if is_number(sole) else sole
    return ""


def is_number(text: str) -> bool:
    """Whether a text is nothing but a number, with its currency, sign or percent."""
    return len(text) <= _MOST and _NUMERIC.fullmatch(text) is not None


@lru_cache(maxsize=4_096)
def is_id(key: str) -> bool:
    """Whether a key says that its value names something."""
    if len(key) > _LONGEST_KEY:
        return False
    return bool(_ID.fullmatch(key) or _CAMEL_ID.fullmatch(key)) and not _NO_ID.fullmatch(key)


def is_label(word: str) -> bool:
    """Whether a word looks like the name of one thing: with a digit, a slash or an at sign, and no number or date."""
    return bool(
        len(word) <= _LONGEST_LABEL
        and _TELLING.search(word)
        and not any(map(str.isspace, word))
        and not is_number(word)
        and not _DATE.fullmatch(word)
        and not _COLOUR.fullmatch(word)
    )


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
    if name and is_id(name):
        inside = _within(name, value[name], around)
    elif is_label(key):
        name, inside = "", _Place(_joined(place.record, _line(key)))
    elif name:
        inside = _within(name, value[name], around)
    else:
        inside = around
    for field, held in value.items():
        # A number that names the record belongs to what is around it.
        yield from _of_value(held, field, around if field == name else inside, depth + 1)


def _of_list(value: Sequence[JSON], key: str, place: _Place, depth: int) -> Iterator[Leaf]:
    table = _with_header(value)
    if table is not None:
        value = table
    numbers = [_scalar(held) for held in value]
    if value and all(numbers):
        if is_id(key):
            for number in numbers:
                yield from _of_number(number, key, place)
        elif len(numbers) <= _MOST_LISTED:
            yield from _of_number(" ".join(numbers), key, place)
        return
    objects = [held for held in value if isinstance(held, dict)]
    naming = _naming(objects, key) if objects else ""
    if not objects:
        label = next((held for held in value if isinstance(held, str) and is_label(held)), "")
        place = _Place(short_label(label), place.under(key).key) if label and any(numbers) else place
    for held in value:
        if isinstance(held, dict):
            yield from _of_object(held, key, place, depth + 1, naming)
        else:
            yield from _of_value(held, key, place, depth + 1)


def _of_number(number: str, key: str, place: _Place) -> Iterator[Leaf]:
    if not _FEWEST <= len(number) <= _MOST or not any(map(str.isdigit, number)):
        return
    key = _line(key)
    if key.isdecimal():
        if not place.label or (len(key) < 4 and not place.record):
            return  # a place in a list names nothing
        key, place = f"{place.key} {key}".strip(), place._replace(key="")
    if not key:
        return
    record = place.record if is_id(key) and not _GENERIC_ID.fullmatch(key) else place.label
    yield Leaf(number, key, record)


def _scalar(value: JSON) -> str:
    """A number as text; empty for anything else."""
    if isinstance(value, bool) or value is None or isinstance(value, (dict, list)):
        return ""
    text = value.strip() if isinstance(value, str) else str(value)
    return _line(text) if is_number(text) else ""


# what names a record


def _naming(records: Sequence[_Record], container: str) -> str:
    """The field that names the records of one container; empty where none does.

    Among fields that could, the first one that tells the records apart; else the first that looks like an id.
    """
    fields = list(records[0])[:_MOST_FIELDS]
    stem = container.casefold().rstrip("s")
    ids = sorted((field for field in fields if is_id(field)), key=lambda field: _closeness(field, stem))
    rest = [field for field in fields if field not in ids]
    ids = [field for field in ids if _usable(records[0][field])]
    strong = [field for field in rest if isinstance(held := records[0][field], str) and is_label(held)]
    names = [field for field in rest if _NAME.fullmatch(field[:_LONGEST_KEY])]
    candidates = [*ids, *strong, *names]
    if len(records) > 1:
        candidates += [field for field in rest if _PERIOD.fullmatch(field)]
        candidates += [field for field in rest if isinstance(records[0][field], str) and not _STATE.fullmatch(field)]
    for field in dict.fromkeys(candidates):
        values = [record.get(field) for record in records]
        if all(map(_usable, values)) and len(set(map(str, values))) == len(values):
            return field
    return next((field for field in (*ids, *strong)), "")


def _closeness(field: str, stem: str) -> int:
    """Where an id stands among the ids of a record: its own before those of others it points to."""
    folded = field.casefold()
    if folded in ("id", "_id"):
        return 0
    if stem and folded.startswith(stem):
        return 1
    if _OWN_ID.fullmatch(field):
        return 2
    return 4 if _WEAK_ID.search(folded) else 3


def _usable(value: JSON) -> bool:
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        return False
    return isinstance(value, int) or 0 < len(value.strip()) <= _LONGEST_LABEL


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
    if not outer or not inner:
        return outer or inner
    both = f"{outer} {inner}"
    return both if len(both) <= _LONGEST_JOINED else inner


def _line(text: str) -> str:
    """A text on one line, and without what separates the entries of a table."""
    return " ".join(text[: 4 * _LONGEST_LABEL].split()).replace(", ", " ")[:_LONGEST_LABEL].rstrip(" ,:")


# tables


def _as_records(value: _Record) -> list[JSON] | None:
    """The records of an object that holds column names and rows, or nothing but columns of one length."""
    lists = {field: held for field, held in value.items() if isinstance(held, list) and len(held) > 1}
    rows = [held for held in lists.values() if any(isinstance(one, list) for one in held)]
    rows += [held for held in value.values() if isinstance(held, list) and len(held) == 1 and isinstance(held[0], list)]
    heads = [held for held in lists.values() if all(isinstance(one, str) for one in held)]
    if len(rows) == 1 and len(heads) == 1:
        return _zipped(heads[0], rows[0])
    if not 2 <= len(lists) == len(value) or len({len(held) for held in lists.values()}) != 1:
        return None
    if any(isinstance(one, (dict, list)) for held in lists.values() for one in held):
        return None
    return [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]


def _with_header(value: Sequence[JSON]) -> list[JSON] | None:
    """The records of a list of rows whose first one holds the column names."""
    if len(value) < 2 or not all(isinstance(row, list) for row in value):
        return None
    head = value[0]
    if not isinstance(head, list) or not 1 < len(head) == len(set(map(str, head))):
        return None
    if not all(isinstance(one, str) and not is_number(one) and not is_label(one) for one in head):
        return None
    return _zipped(head, value[1:])


def _zipped(head: Sequence[JSON], rows: Sequence[JSON]) -> list[JSON]:
    return [
        {str(name): held for name, held in zip(head, row, strict=True)}
        if isinstance(row, list) and len(row) == len(head)
        else row
        for row in rows
    ]
