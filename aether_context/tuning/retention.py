"""Retention: which earlier texts the answers used, and whether these were in the request at that time.

It is measured by the recorded answers: quoted lines, and identifiers, paths, values and addresses in calls and answers.
Only texts count that a model cannot make up. Texts in the system instruction or a declaration do not count, since these
are always sent. Whether an agent does its task is not measured: a recorded answer says nothing about the answer to
another request.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from aether_context.canonical import JSON
from aether_context.evidence.record import READ, SEARCH
from aether_context.pack import Content, Pack
from aether_context.tuning.recordings import RecordedCall, RecordedSession

_WORD = re.compile(r"[A-Za-z0-9_./@:-]{5,}")
_TELLING = re.compile(r"[\d/_@]")
_TRIMMED = "./:-"
_SHORTEST, _SHORTEST_LINE = 5, 30


@dataclass(frozen=True, slots=True)
class Use:
    """A text that an answer used, and the indices of contents that hold it; none where only a memory or evidence
    does."""

    text: str
    places: frozenset[int]


@dataclass(frozen=True, slots=True)
class Used:
    """What the answer to one call used. ``read_back`` is the number of its calls that read a shortened result again."""

    uses: tuple[Use, ...]
    read_back: int = 0


def used(session: RecordedSession) -> tuple[Used, ...]:
    """What the answer to each call used, in the order of the calls."""
    known = _Index()
    uses: list[Used] = []
    for call in session.calls:
        known.read(call)
        uses.append(_used(call, known))
    return tuple(uses)


def kept(used: Used, pack: Pack) -> int:
    """The number of texts an answer used that were in a pack for its call."""
    positions = pack.source.request.positions
    whole_places = {positions[index] for index in pack.whole}
    uncertain = [use for use in used.uses if whole_places.isdisjoint(use.places)]
    if not uncertain:
        return len(used.uses)
    altered_text = "\n".join(
        text for item in pack.contents if item.outcome != "verbatim" for text in strings(item.content)
    )
    return len(used.uses) - sum(use.text not in altered_text for use in uncertain)


class _Index:
    """Maps words and lines to the indices of the contents of a history that hold them."""

    def __init__(self) -> None:
        self._history: Sequence[Content] | None = None
        self._length = 0
        self._places: dict[str, set[int]] = {}

    def read(self, call: RecordedCall) -> None:
        if call.history is not self._history:
            self._history, self._length, self._places = call.history, 0, {}
        for place in range(self._length, call.length):
            for text in strings(call.history[place]):
                for word in (*_words(text), *_lines(text)):
                    self._places.setdefault(word, set()).add(place)
        self._length = max(self._length, call.length)

    def places(self, text: str) -> frozenset[int]:
        return frozenset(self._places.get(text, ()))


def _used(call: RecordedCall, known: _Index) -> Used:
    source = call.source
    standing = _standing(source.request.system, tuple(tool.wire for tool in source.request.tools))
    texts = [candidate.text + candidate.uri for candidate in source.candidates]
    uses: dict[str, Use] = {}
    read_back = 0
    for content in call.answer:
        read_back += sum(part.name in (READ, SEARCH) for part in content.calls)
        for text in strings(content):
            for word in (*_words(text), *_lines(text)):
                if word in uses or word in standing:
                    continue
                places = known.places(word)
                if places or any(word in candidate for candidate in texts):
                    uses[word] = Use(word, places)
    return Used(tuple(uses.values()), read_back)


@lru_cache(maxsize=16)
def _standing(system: str, declarations: tuple[str, ...]) -> frozenset[str]:
    return frozenset(word for text in (system, *declarations) for word in (*_words(text), *_lines(text)))


def strings(content: Content) -> Iterator[str]:
    """All texts in a content: its text parts, and the strings and numbers in calls and responses."""
    for part in content.parts:
        if part.kind in ("call", "response"):
            yield from _leaves(_parsed(part.text))
        elif part.kind == "text":
            yield part.text


@lru_cache(maxsize=4_096)
def _parsed(text: str) -> JSON:
    try:
        value: JSON = json.loads(text)
    except ValueError:
        return text
    return value


def _leaves(value: JSON) -> Iterator[str]:
    if isinstance(value, dict):
        for item in value.values():
            yield from _leaves(item)
    elif isinstance(value, list):
        for item in value:
            yield from _leaves(item)
    elif value is not None and not isinstance(value, bool):
        yield str(value)


def _words(text: str) -> Iterator[str]:
    """Identifiers, paths and values."""
    for word in _WORD.findall(text):
        for part in {word, *word.split(":")}:
            part = part.strip(_TRIMMED)
            if len(part) >= _SHORTEST and _TELLING.search(part):
                yield part


def _lines(text: str) -> Iterator[str]:
    """Lines that are long enough to be quotes."""
    for line in text.splitlines():
        line = line.strip()
        if len(line) >= _SHORTEST_LINE:
            yield line
