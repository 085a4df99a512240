"""Retention: which earlier texts the answers used, and whether these were in the request at that time.

It is measured by the recorded answers: quoted lines, and identifiers, paths, values and addresses in calls and answers.
Only texts count that a model cannot make up. Texts in the system instruction or a declaration do not count, since these
are always sent. Whether an agent does its task is not measured: a recorded answer says nothing about the answer to
another request.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from aether_context.evidence.record import READERS
from aether_context.lab.exam.questions import texts
from aether_context.lab.exam.recordings import RecordedCall, RecordedSession
from aether_context.pack import Content, Pack

_WORD = re.compile(r"[A-Za-z0-9_./@:-]{5,}")
_TELLING = re.compile(r"[\d/_@]")
_TRIMMED = "./:-"
_SHORTEST, _SHORTEST_LINE = 5, 30


@dataclass(frozen=True, slots=True)
class Used:
    """The parts of a request that the answer to one call used.

    ``places`` has for each text the indices of the contents that hold it, none where only a memory or evidence does.
    ``read_back`` is the number of the answer's calls that read a shortened result again.
    """

    places: Mapping[str, frozenset[int]]
    read_back: int = 0

    @property
    def count(self) -> int:
        return len(self.places) + self.read_back

    def kept(self, pack: Pack) -> int:
        """The number of these texts that were in a pack for the call."""
        whole_places = {pack.source.request.positions[index] for index in pack.whole}
        uncertain = [text for text, places in self.places.items() if whole_places.isdisjoint(places)]
        if not uncertain:
            return len(self.places)
        altered = "\n".join(text for item in pack.contents if item.form != "whole" for text in texts(item.content))
        return len(self.places) - sum(text not in altered for text in uncertain)


def used(session: RecordedSession) -> list[Used]:
    """The parts of each request that its answer used, in the order of the calls."""
    found: list[Used] = []
    history: Sequence[Content] = ()
    places: dict[str, set[int]] = {}
    read = 0
    for call in session.calls:
        if call.history is not history:
            history, places, read = call.history, {}, 0
        for place in range(read, call.length):
            for text in _telling(texts(history[place])):
                places.setdefault(text, set()).add(place)
        read = max(read, call.length)
        found.append(_used(call, places))
    return found


def _used(call: RecordedCall, places: Mapping[str, set[int]]) -> Used:
    request = call.source.request
    standing = _standing(request.system, tuple(tool.wire for tool in request.tools))
    candidates = [candidate.text + candidate.uri for candidate in call.source.candidates]
    answered = _telling(text for content in call.answer for text in texts(content))
    return Used(
        {
            text: frozenset(places.get(text, ()))
            for text in dict.fromkeys(answered)
            if text not in standing and (text in places or any(text in candidate for candidate in candidates))
        },
        sum(part.name in READERS for content in call.answer for part in content.calls),
    )


@lru_cache(maxsize=16)
def _standing(system: str, declarations: tuple[str, ...]) -> frozenset[str]:
    return frozenset(_telling((system, *declarations)))


def _telling(texts: Iterable[str]) -> Iterator[str]:
    """Identifiers, paths and values, and lines that are long enough to be quotes."""
    for text in texts:
        for word in _WORD.findall(text):
            for part in dict.fromkeys((word, *word.split(":"))):
                part = part.strip(_TRIMMED)
                if len(part) >= _SHORTEST and _TELLING.search(part):
                    yield part
        yield from (line for line in map(str.strip, text.splitlines()) if len(line) >= _SHORTEST_LINE)
