"""A digest of JSON that is mostly one long list of records: of each record the fields that tell it from others.

An application's answer often is a list of objects of fifty fields each, of which most are empty, the same in all, or
say again what another one says. Of such a list a model needs each record with what names it and what is its own; all
records with these fields alone take the room of two or three whole ones.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from aether_context.canonical import JSON
from aether_context.text import Counts
from aether_context.text.json_lines import LONGEST, Line, compact_json, is_id, is_name, is_number

_LEAST_SHARE, _MOST_PROSE, _PROSE = 0.6, 0.5, 100
"""Of a text's lines, those of the list at least, and of its characters those in values of more than a hundred at most:
of prose any sentence may be asked for."""
_DEEPEST, _LONGEST_CELL, _LONGEST_ROW = 5, 60, LONGEST - 20
_FEWEST_COLUMNS, _LEAST_TOLD_APART = 3, 2
"""So many columns there are whatever room there is, where rows are left out for it; and so many at least."""
_KEYS_OF_FIELDS = ("key", "name", "field", "label")
"""What names a field that is an entry of a list, as in ``{"key": "colour", "value": "red"}``."""
_OF_VALUES = frozenset({"content", "number", "plain_text", "string", "text", "value"})
"""Keys that say of what kind a value is, and the key before them what it is."""
_RANDOM = re.compile(r"[0-9a-f-]{20,}|(?=\S*\d)(?=\S*[a-z])(?=\S*[A-Z])[\w+/=-]{20,}")
"""An id that was drawn at random, which no person types."""
_MOST_COLUMNS, _MOST_CELLS, _COUNTED, _MOST_AROUND = 1_000, 200_000, 50, 20_000
"""Columns that are looked at, cells of all of them, those of one that are counted, and characters beside the list that
are."""
_NO_WORD, _INNER_CAPITAL = re.compile(r"\W+|_"), re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_TRACEBACK = "Traceback (most recent call last)"
"""What says nothing of an error, which the last line behind it names."""
_SHORT_QUERY, _FEW_RECORDS = 24, 20
"""Words of a question; a task of more of them names nearly every field. Of so many records a word of it that tells some
apart stands in one at most."""
_RARE, _FOR_RARE = 3, 0.1
"""Of so many records at most one has a rare field, and the share of the room for all such fields, which tell the most
of the few records that have them: without it the one stack trace of a log is missing in its record."""


class Digest(NamedTuple):
    """An outline with shorter records in the place of a list's, and for each of its lines that of the whole outline for
    which it stands; the last one is the end of that. ``left_out_fields`` are the fields that no record has any more."""

    outline: Sequence[Line]
    places: Sequence[int]
    left_out_fields: Sequence[str]


class _Column(NamedTuple):
    """A field of the records. ``tokens`` are those of its mean cell, ``length`` the characters of the longest."""

    path: str
    cells: Sequence[JSON]
    worth: float
    tokens: float
    length: int


def digest(
    value: JSON, whole: Sequence[Line], records: Sequence[int], *, max_tokens: int, counter: Counts, query: str
) -> Digest | None:
    """The digest of a value; None where it is not mostly a list of objects, or these are a table already or prose.

    Args:
        whole: the value's outline; ``records`` are the lines in it that begin the records of its longest list.
        max_tokens: the tokens that its rows should have room in.
        query: what is looked for: a field that it names, or whose values it names, comes before others.
    """
    parent = whole[records[0]].parent
    end, items = whole[parent].end, _opened(value, whole, parent)
    is_list = isinstance(items, list) and all(isinstance(item, dict) for item in items)
    if not is_list or end - parent < _LEAST_SHARE * len(whole):
        return None
    sizes = [len(line.text) for line in whole]
    if sum(size for size, line in zip(sizes, whole, strict=True) if _is_prose(line.text)) > _MOST_PROSE * sum(sizes):
        return None
    outside = (*whole[: parent + 1], *whole[end:])
    around = counter.count("\n".join(line.text for line in outside)[:_MOST_AROUND])
    columns = _columns(items, query, counter)
    shown_columns = _with_room(columns, len(items), max_tokens - around)
    if len(shown_columns) < _LEAST_TOLD_APART:
        return None
    named = dict(zip(_short_names([column.path for column in shown_columns]), shown_columns, strict=True))
    rows = [
        {name: column.cells[at] for name, column in named.items() if column.cells[at] is not None}
        for at in range(len(items))
    ]
    shift = parent + 1 + len(rows) - end

    def moved(at: int) -> int:
        return at + shift if at > parent else at

    outline = [line._replace(parent=moved(line.parent), end=moved(line.end)) for line in outside]
    outline[parent + 1 : parent + 1] = [Line(compact_json(row), parent) for row in rows]
    shown_paths = {column.path for column in shown_columns}
    left_out_fields = [column.path for column in columns if column.path not in shown_paths]
    return Digest(outline, [*range(parent + 1), *records, *range(end, len(whole) + 1)], left_out_fields)


def _is_prose(text: str) -> bool:
    return len(text) > _PROSE and text[0] == '"' and " " in text[:_PROSE]


def _opened(value: JSON, whole: Sequence[Line], at: int) -> JSON:
    """The part of a value that a line of its outline opens; None where it stands in a list or a table."""
    if at == 0:
        return value
    outer = _opened(value, whole, whole[at].parent)
    return outer.get(whole[at].key) if isinstance(outer, dict) else None


def _cells(value: JSON, path: str = "", depth: int = 0) -> Iterator[tuple[str, JSON]]:
    """The scalars of a record, each with the keys that lead to it; those of a list under the same keys."""
    if isinstance(value, dict) and depth < _DEEPEST:
        for name, item in value.items():
            yield from _cells(item, f"{path}.{name}" if path else name, depth + 1)
    elif isinstance(value, list) and depth < 2 * _DEEPEST:
        for item in value:
            key = next((item[key] for key in _KEYS_OF_FIELDS if key in item), "") if isinstance(item, dict) else ""
            is_field = isinstance(key, str) and key and "value" in item
            yield from _cells(item["value"] if is_field else item, f"{path}.{key}" if is_field else path, depth + 1)
    elif not isinstance(value, (dict, list)):
        yield path, value


def _columns(items: Sequence[Mapping[str, JSON]], query: str, counter: Counts) -> list[_Column]:
    """The fields that are not the same in all records, without those that say what one before them says."""
    by_path: dict[str, dict[int, list[JSON]]] = {}
    for at, item in enumerate(items):
        for path, scalar in _cells(item):
            by_path.setdefault(path, {}).setdefault(at, []).append(scalar)
    # Objects that have a key of their own each are no records of the same fields.
    usual = sorted(by_path, key=lambda path: -len(by_path[path]))[: min(_MOST_COLUMNS, _MOST_CELLS // len(items))]
    query_words = {*_NO_WORD.split(query.casefold())} - {""}
    columns, known_columns = list[_Column](), set[tuple[str, ...]]()
    for path in filter({*usual}.__contains__, by_path):
        cells = [_cell(by_path[path].get(at, ())) for at in range(len(items))]
        # What parts words says nothing, but a minus does, and a mark that has no word beside it.
        words = (_NO_WORD.sub("", cell).casefold() if isinstance(cell, str) else "" for cell in cells)
        same = tuple(word or str(cell) for word, cell in zip(words, cells, strict=True))
        if len({*same}) > 1 and same not in known_columns:
            known_columns.add(same)
            key = path.rpartition(".")[2]
            texts = [compact_json({key: cell}) for cell in cells if cell is not None]
            sample = texts[:_COUNTED]
            tokens = counter.count(",".join(sample)) / len(sample) * len(texts) / len(cells)
            columns.append(_Column(path, cells, _worth(path, cells, query_words), tokens, max(map(len, texts))))
    return columns


def _cell(scalars: Sequence[JSON]) -> JSON:
    """What a digest says of a record's field: its value, or several of them one after the other, and no long text."""
    values = [scalar for scalar in dict.fromkeys(scalars) if scalar not in ("", None)]
    if len(values) == 1 and not isinstance(values[0], str):
        return values[0]
    text = ", ".join(map(str, values)).strip()
    text = " ".join((text.rpartition("\n")[2] if _TRACEBACK in text else text).split())
    return f"{text[:_LONGEST_CELL]}…" if len(text) > _LONGEST_CELL else text or None


def _worth(path: str, cells: Sequence[JSON], query_words: set[str]) -> float:
    """How much a field tells of its records: a name most, then an id, a number or a date, then other words."""
    texts = [str(cell) for cell in cells if cell is not None]
    keys = path.split(".")
    key = next((key for key in reversed(keys) if key.casefold() not in _OF_VALUES), keys[-1])
    is_own_id = path.casefold() in ("id", "_id")
    worth = 5.0 if is_name(key) else 4.0 if is_own_id else 3.5 if is_id(key) else 2.5
    worth += 0.5 * all(any(map(str.isdecimal, text)) for text in texts)
    is_short = len(query_words) <= _SHORT_QUERY
    asked = _INNER_CAPITAL.sub(" ", path) if is_short else key
    worth += (3.0 if is_short else 2.0) * (not query_words.isdisjoint(_NO_WORD.split(asked.casefold())))
    named = Counter(word for text in texts for word in query_words.intersection(_NO_WORD.split(text.casefold())))
    tells_apart = is_short and min(named.values(), default=len(cells)) <= max(1, len(cells) // _FEW_RECORDS)
    worth += bool(named) + 2.0 * tells_apart
    worth -= 0.4 * (len(keys) - 1) + (_RARE * len(texts) < len(cells))
    worth -= 1.5 * (2 * sum(", " in text and text[0].isdecimal() for text in texts) > len(texts))
    worth -= 2.0 * any(text.endswith("…") for text in texts) + 1.5 * any("://" in text for text in texts)
    is_random = any(_RANDOM.fullmatch(text) is not None and not is_number(text) for text in texts[:3])
    return worth - is_random * (1.0 if is_own_id else 2.5)


def _with_room(columns: Sequence[_Column], count: int, max_tokens: float) -> list[_Column]:
    """The columns that so many rows have room for, the most telling ones, in their order."""
    shown_columns, length, tokens, for_rare = set[int](), 0, float(count), _FOR_RARE * max_tokens
    for at in sorted(range(len(columns)), key=lambda at: (-columns[at].worth, columns[at].tokens, at)):
        column = columns[at]
        of_all, is_rare = column.tokens * count, _RARE * sum(cell is not None for cell in column.cells) < count
        has_room = tokens + of_all <= max_tokens or len(shown_columns) < _FEWEST_COLUMNS
        if is_rare and not has_room and of_all <= for_rare:
            has_room, for_rare = True, for_rare - of_all
        if has_room and length + column.length < _LONGEST_ROW:
            shown_columns.add(at)
            length, tokens = length + column.length, tokens + column.tokens * count
    return [columns[at] for at in sorted(shown_columns)]


def _short_names(paths: Sequence[str]) -> list[str]:
    """The ends of paths, as short as they tell what a value is and differ from each other."""
    names = list[str]()
    for path in paths:
        keys = path.split(".")
        ends = (".".join(keys[at:]) for at in range(len(keys) - 1, -1, -1) if keys[at].casefold() not in _OF_VALUES)
        names.append(next((end for end in ends if sum(f".{other}".endswith(f".{end}") for other in paths) == 1), path))
    return names
