"""Rows of long JSON, found and read one by one: the rest of it is never parsed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from aether_context.canonical import JSON
from aether_context.evidence.outline import compact
from aether_context.evidence.sampling import Numbers, long_lines
from aether_context.text.compression import Counts, span
from aether_context.text.decoding import closing

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
