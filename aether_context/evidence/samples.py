"""The lines of a long text that are worth a look, found without reading all of it line by line.

Nothing here copies the text: it is searched as it is, and only what is found is cut out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from itertools import accumulate

from aether_context.text.compression import LONG_LINE, PIECE, lines_of

HEAD_CHARACTERS = 12_000
TAIL_CHARACTERS = 4_000
_HITS_A_WORD = 4
_MOST_WORDS, _MOST_QUERY_WORDS = 12, 200
_AFTER = 4
_WORD = re.compile(r"[\w./@-]{4,60}")


@dataclass(frozen=True, slots=True)
class Sample:
    """Some lines of a text in their order, with their numbers from 0, and how many lines there are in all."""

    texts: Sequence[str]
    numbers: Sequence[int]
    total: int


def sampled(text: str, words: Iterable[str]) -> Sample:
    """The head, the tail, and lines with the first and the last places of words.

    Args:
        words: those looked for, the most telling first; at most 12 of them, each as it is and in lower case. The lines
            after each place come with it.
    """
    long = long_lines(text)
    index = Numbers(text, long)
    head = _ended(text, HEAD_CHARACTERS, long)
    tail = max(head, _begun(text, len(text) - TAIL_CHARACTERS, long))
    wanted = list(dict.fromkeys(words))[:_MOST_WORDS]
    spans: set[tuple[int, int]] = set()
    for at in (at for word in wanted for at in _places(text, word, head, tail)):
        spans.update(index.spans(at, _AFTER, tail))
    texts = _within(text, 0, head, long)
    numbers = list(range(len(texts)))
    last = -1
    for start, stop in sorted(spans):
        number = index.number(start)
        if number > max(last, numbers[-1] if numbers else -1):
            texts.append(text[start:stop])
            numbers.append(number)
            last = number
    total = index.number(len(text)) + 1
    if tail < len(text):
        ending = _within(text, tail, len(text), long)
        texts += ending
        numbers += range(total - len(ending), total)
    return Sample(texts, numbers, total)


def _within(text: str, begin: int, end: int, long: Sequence[tuple[int, int]]) -> list[str]:
    """The lines and pieces between two places where such begin."""
    for start, stop in long:
        if start < begin < stop:
            pieces = [text[at : min(at + PIECE, stop)] for at in range(begin, stop, PIECE)]
            return pieces + (lines_of(text[stop + 1 : end]) if stop < end else [])
        if begin <= start < end < stop:
            before = lines_of(text[begin : start - 1]) if start > begin else []
            return before + [text[at : at + PIECE] for at in range(start, end, PIECE)]
    if end < len(text):
        end -= text[end - 1] == "\n"
    return lines_of(text[begin:end]) if end > begin else []


def line_count(text: str) -> int:
    """The lines and pieces of a text."""
    return Numbers(text, long_lines(text)).number(len(text)) + 1


def query_words(query: str) -> list[str]:
    """The words of a query, at most 200, the longest first: they tell the most."""
    return nsmallest(_MOST_QUERY_WORDS, set(_WORD.findall(query)), key=lambda word: (-len(word), word))


def long_lines(text: str) -> list[tuple[int, int]]:
    """Where the lines begin and end that are taken in pieces."""
    found: list[tuple[int, int]] = []
    at = 0
    while at < len(text):
        ended = text.rfind("\n", at, at + LONG_LINE + 1)
        if ended >= 0:
            at = ended + 1
            continue
        ended = text.find("\n", at)
        ended = len(text) if ended < 0 else ended
        if ended - at > LONG_LINE:
            found.append((at, ended))
        at = ended + 1
    return found


class Numbers:
    """The numbers of lines by their places; places are asked for in ascending order, or anew."""

    def __init__(self, text: str, long: Sequence[tuple[int, int]]) -> None:
        self._text = text
        self._long = long
        extra = (-(-(stop - start) // PIECE) - 1 for start, stop in long)
        self._pieces = [0, *accumulate(extra)]
        self._at = self._before = 0

    def number(self, place: int) -> int:
        """The number of the line or piece at a place."""
        if place < self._at:
            self._at = self._before = 0
        self._before += self._text.count("\n", self._at, place)
        self._at = place
        passed = 0
        inside = 0
        for at, (start, stop) in enumerate(self._long):
            if stop < place or (stop == place == len(self._text)):
                passed = at + 1
            elif start <= place:
                inside = (place - start) // PIECE
        return self._before + self._pieces[passed] + inside

    def spans(self, place: int, after: int, limit: int) -> list[tuple[int, int]]:
        """Where the line or piece at a place begins and ends, and those after it, up to a limit."""
        found = [self._span(place)]
        while len(found) <= after:
            end = found[-1][1]
            begin = end + 1 if self._text[end : end + 1] == "\n" else end
            if begin >= limit:
                break
            found.append(self._span(begin))
        return found

    def _span(self, place: int) -> tuple[int, int]:
        for start, stop in self._long:
            if start <= place < stop:
                begin = start + (place - start) // PIECE * PIECE
                return begin, min(begin + PIECE, stop)
        begin = self._text.rfind("\n", 0, place) + 1
        end = self._text.find("\n", place)
        return begin, len(self._text) if end < 0 else end


def _ended(text: str, place: int, long: Sequence[tuple[int, int]]) -> int:
    """The end of the last line or piece that ends by a place."""
    for start, stop in long:
        if start <= place < stop:
            return start + (place - start) // PIECE * PIECE
    return text.rfind("\n", 0, place) + 1


def _begun(text: str, place: int, long: Sequence[tuple[int, int]]) -> int:
    """The beginning of the first line or piece that begins from a place on."""
    for start, stop in long:
        if start < place < stop:
            begin = start + -(-(place - start) // PIECE) * PIECE
            return begin if begin < stop else min(stop + 1, len(text))
    found = text.find("\n", place)
    return len(text) if found < 0 else found + 1


def _places(text: str, word: str, start: int, stop: int) -> list[int]:
    """The first places of a word between two others, and its last one, in either form."""
    found: list[int] = []
    for form in _forms(text, word, start, stop):
        at = start
        while len(found) < _HITS_A_WORD and (at := text.find(form, at, stop)) >= 0:
            found.append(at)
            at += len(form)
        last = text.rfind(form, start, stop) if found else -1
        if last >= 0:
            found.append(last)
    return found


def _forms(text: str, word: str, start: int, stop: int) -> Sequence[str]:
    """A word as it is and in lower case, as far as the text has their characters; neither where it lacks all after a
    capital, which the two share.

    Looking for a word through a megabyte takes half a millisecond, for a character a twentieth of that, and most words
    are not there.
    """
    lower = word.lower()
    if word != lower and word[1:] == lower[1:] and text.find(word[1:], start, stop) < 0:
        return ()
    forms = dict.fromkeys((word, lower))
    return [form for form in forms if all(text.find(mark, start, stop) >= 0 for mark in form)]
