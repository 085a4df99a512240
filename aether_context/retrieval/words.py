"""The terms that lexical search compares: words and their stems, identifiers whole and in parts, pairs of characters.

A run of letters and digits is a word; words of a script that one language writes are stemmed by that language's
Snowball stemmer, Latin ones by the English one. What is written as one name (``snake_case``, ``camelCase``, a path, a
UUID, an address) is a term as a whole and by its parts. Scripts that put no spaces between words (Chinese, Japanese,
Korean syllables, Thai, Lao, Khmer, Burmese) give every pair of neighbouring characters.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from typing import Protocol

RULES = 1
"""Goes up whenever a text gives other terms than before, so that what was indexed by older rules is indexed anew."""

STOP_WORDS = frozenset(
    re.findall(
        r"\w+",
        """a about all am an and any are as at be been but by can could did do does don for from had has have he her him
        his how i if in into is it its ll me my no not of on or our s she so t than that the their them then there these
        they this to us ve was we were what when where which who whom whose why will with would you your""",
    )
)
"""English words that say too little to search by; a query of nothing else keeps them."""

_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Burmese, Khmer
    "\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uac00-\ud7af\U00020000-\U0003ffff"
)
_SPAN = re.compile(rf"(?P<run>[{_UNSPACED}]+)|(?P<name>[^\W{_UNSPACED}]+(?:[./\\:@#~-]+[^\W{_UNSPACED}]+)*)")
_WORD = re.compile(r"[^\W_]+")
_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\dA-Za-z_]+")
_TELLING = re.compile(r"[\d_/\\@#]|[a-z][A-Z]|\w\.\w")
_HEX = re.compile(r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}")
_LANGUAGES = (
    (re.compile(r"[a-zA-Z\u00c0-\u024f]"), "english"),
    (re.compile(r"[\u0400-\u04ff]"), "russian"),
    (re.compile(r"[\u0370-\u03ff]"), "greek"),
    (re.compile(r"[\u0600-\u06ff]"), "arabic"),
    (re.compile(r"[\u0900-\u097f]"), "hindi"),
    (re.compile(r"[\u0b80-\u0bff]"), "tamil"),
    (re.compile(r"[\u0530-\u058f]"), "armenian"),
)
_LONGEST_STEMMED = 40


class _Stemmer(Protocol):
    def stemWord(self, word: str) -> str: ...  # noqa: N802


_local = threading.local()


def terms(text: str) -> list[str]:
    """The terms of a text in its order, repeated as they are."""
    return list(_terms(text))


def query_terms(text: str) -> list[str]:
    """The different terms of a query, sorted, without stop words unless there are no others."""
    found = set(_terms(text))
    return sorted(found - _stop_terms() or found)


def identifiers(text: str) -> list[str]:
    """What is written as a name rather than as words, as it stands."""
    return [span["name"] for span in _SPAN.finditer(text) if span["name"] and _is_identifier(span["name"])]


def _terms(text: str) -> Iterator[str]:
    for span in _SPAN.finditer(text):
        if span["run"]:
            yield from _pairs(span["run"])
        else:
            yield from _of_name(span["name"])


def _pairs(run: str) -> Iterator[str]:
    if len(run) == 1:
        yield run
    for first, second in pairwise(run):
        yield first + second


@lru_cache(maxsize=50_000)
def _of_name(name: str) -> tuple[str, ...]:
    """The terms of one name: the whole where it is an identifier, its words, and the parts of those."""
    words = _WORD.findall(name)
    found = [name.casefold()] if len(words) > 1 and _is_identifier(name) else []
    for word in words:
        parts = [] if _HEX.fullmatch(name) else _PART.findall(word)
        if len(parts) > 1:
            found.append(word.casefold())
            found += [stem(part.casefold()) for part in parts if len(part) > 1 or part.isdigit()]
        else:
            found.append(stem(word.casefold()))
    return tuple(found)


def _is_identifier(name: str) -> bool:
    return bool(_TELLING.search(name)) and not name.isdigit()


@lru_cache(maxsize=100_000)
def stem(word: str) -> str:
    """The stem of a lower-case word, by the language that its script tells; the word itself where none does."""
    if len(word) > _LONGEST_STEMMED:
        return word
    for script, language in _LANGUAGES:
        if script.match(word):
            return _stemmer(language).stemWord(word)
    return word


def _stemmer(language: str) -> _Stemmer:
    """This thread's stemmer: one holds the word it works on."""
    held: dict[str, _Stemmer] = _local.__dict__.setdefault("stemmers", {})
    if language not in held:
        import snowballstemmer

        held[language] = snowballstemmer.stemmer(language)
    return held[language]


@lru_cache(maxsize=1)
def _stop_terms() -> frozenset[str]:
    return frozenset(stem(word) for word in STOP_WORDS) | STOP_WORDS
