"""What an index holds and what it finds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

_WORD = re.compile(r"\w+(?:[.,]\d+)*")
_REPEATED_SHARE = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A text in an index.

    Attributes:
        time: seconds since 1970 UTC, None where it is unknown.
        speaker: who said it; found by name.
        thread: the conversation it belongs to; entries of one thread are neighbours in the order they were added.
    """

    id: str
    text: str
    time: float | None = None
    speaker: str | None = None
    thread: str | None = None

    @property
    def searched(self) -> str:
        """The text with its speaker."""
        return f"{self.speaker}: {self.text}" if self.speaker else self.text


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """An entry that was found.

    Attributes:
        score: the one it is ranked by.
        scores: what that was made of: ``bm25`` (0 and more) and its share ``lexical`` (0 to 1), ``cosine`` (-1 to 1)
            and what it exceeds the pool's median by, ``semantic``; then ``neighbours``, ``time``, ``recency``,
            ``repeated`` and ``mmr`` where they played a part.
    """

    entry: Entry
    score: float
    scores: Mapping[str, float] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return self.entry.id

    @property
    def text(self) -> str:
        return self.entry.text


def repeats(entry: Entry, other: Entry) -> bool:
    """Whether an entry says what another one says: by the same speaker, the same numbers, nine in ten words alike."""
    words, numbers = _words(entry.text)
    others, other_numbers = _words(other.text)
    if entry.speaker != other.speaker or numbers != other_numbers:
        return False
    fewer, more = sorted((len(words), len(others)))
    return fewer >= _REPEATED_SHARE * more and len(words & others) >= _REPEATED_SHARE * len(words | others)


@lru_cache(maxsize=1_000)
def _words(text: str) -> tuple[frozenset[str], frozenset[str]]:
    """The words of a text, and those among them that are not of letters alone."""
    words = frozenset(_WORD.findall(text.casefold()))
    return words, frozenset(word for word in words if not word.isalpha())
