"""Which remembered statements a later one on the same subject takes the place of.

Told without a model, by what two statements share and where they part. Both are short, and neither asks nor exclaims;
the same one speaks; they name the same subject. Beside the subject's name they are about the same: in words, the rarer
the more they count, and in meaning. And both answer what is asked. Where two statements part in one place, as in two
favourite teas or two cities visited, nothing tells whether the later one corrects the earlier one or stands beside it,
so what follows from this must be right either way.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from aether_context.retrieval.embedders import StaticEmbedder, quantized
from aether_context.retrieval.pool import Floats
from aether_context.retrieval.terms import STOP_TERMS, query_terms, terms

_WORD = re.compile(r"[^\W_]+")
_NO_STATEMENT = re.compile(r"[?!\u037e\u055c\u055e\u061f\uff01\uff1f](?:\s|$)")
_FOREIGN = re.compile(r"[^\W\d_\u0000-\u024f]")
_LONGEST = 240
"""Characters; what is longer says more than one thing."""
_MOST = 60
_SMALL_POOL = 10
_LEAST_ALIKE = 0.3
"""Alikeness in meaning, above what is usual, and in words, each up to 1, together."""
_CORRECTS = 1.2
"""The same, and how well both answer what is asked, up to 1."""
_NEAR = 0.3
"""So much less is as good as the best."""
_WEIGHT = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """A remembered text.

    Attributes:
        speaker: who said it, empty where that is unknown.
        time: when it was said, seconds since 1970 UTC; None where it is unknown.
        place: which of two came later where their times do not tell; 0 where that is unknown, too.
        score: how well it answers what is asked, 0 and more.
    """

    text: str
    speaker: str = ""
    time: float | None = None
    place: int = 0
    score: float = 0.0


def is_later(statement: Statement, other: Statement) -> bool:
    """Whether a statement is known to be later than another one."""
    if statement.time is not None and other.time is not None and statement.time != other.time:
        return statement.time > other.time
    return bool(other.place) and statement.place > other.place


def corrections(statements: Sequence[Statement], query: str) -> dict[int, int]:
    """The places of statements that a later one takes the place of, each with that of the later one.

    Args:
        statements: looked at are the first 60, the best for the query.
        query: what is asked; who is named in it and in the earlier statement, but not in the later one, tells them
            apart.
    """
    told = [
        at
        for at, statement in enumerate(statements[:_MOST])
        if len(statement.text) <= _LONGEST and not _NO_STATEMENT.search(statement.text)
    ]
    if len(told) < 2:
        return {}
    said = [statements[at] for at in told]
    words = [frozenset(query_terms(statement.text)) for statement in said]
    names = [_names(statement.text) for statement in said]
    named = [_opening(statement.text) for statement in said]
    subjects = [opening or _first(statement.text) for opening, statement in zip(named, said, strict=True)]
    folded = [_WORD.findall(statement.text.casefold()) for statement in said]
    known = frozenset(word for of_text in folded for word in of_text)
    in_query = _names(" ".join(word for word in set(_WORD.findall(query)) if word.casefold() in known))
    asked = [in_query & of_text for of_text in names]
    counts = Counter(name for opening in named for name in opening)
    common = frozenset(name for name, count in counts.items() if count > 1)
    holders = Counter(word for held in words for word in held)
    weights = {word: round(_WEIGHT * math.log((len(said) + 1) / count)) for word, count in holders.items()}
    about = [held - common for held in words]
    sizes = [sum(weights[word] for word in held) for held in about]
    near = _alike([_without(statement.text, common) for statement in said])
    # Statements about one thing are all a little alike; the median of a few says little and counts for less.
    pairs = near[np.triu_indices(len(said), 1)]
    usual = float(np.nanmedian(pairs)) if not np.isnan(pairs).all() else 0.0
    usual = max(0.0, usual) * len(said) / (len(said) + _SMALL_POOL)
    best = max(statement.score for statement in statements) or 1.0

    def alike(earlier: int, later: int) -> float:
        shared = sum(weights[word] for word in about[earlier] & about[later])
        in_words = 2 * shared / max(1, sizes[earlier] + sizes[later])
        answering = (said[earlier].score + said[later].score) / (2 * best)
        meaning = float(near[earlier, later]) - usual
        same = in_words + (in_words if math.isnan(meaning) else meaning)
        return round(same + answering, 6) if same >= _LEAST_ALIKE else 0.0

    found: dict[int, dict[int, float]] = {}
    for later, statement in enumerate(said):
        scores = {
            at: alike(at, later)
            for at, other in enumerate(said)
            if other.speaker == statement.speaker
            and is_later(statement, other)
            and (subjects[at] & words[later] or subjects[later] & words[at] or names[at] & names[later])
            and asked[at] <= words[later]
            and folded[at] != folded[later]
        }
        least = max(_CORRECTS, max(scores.values(), default=0.0) - _NEAR)
        for at, score in scores.items():
            if score >= least:
                found.setdefault(at, {})[later] = score
    superseded: dict[int, int] = {}
    for at, later_ones in found.items():
        # What takes the place of the same thing is about the same thing, and the latest of it holds.
        least = max(later_ones.values()) - _NEAR
        same = [later for later, score in later_ones.items() if score >= least]
        same.sort(key=lambda later: sum(is_later(said[later], said[other]) for other in same))
        for earlier, later in pairwise([at, *same]):
            superseded[told[earlier]] = told[later]
    return superseded


def raised(scores: Sequence[float], superseded: Mapping[int, int]) -> list[float]:
    """Scores, none of them below that of a statement whose place it takes.

    Args:
        superseded: as of `corrections`.
    """
    found = list(scores)
    for at in superseded:
        seen = {at}
        while (later := superseded.get(at)) is not None and later not in seen:
            found[later] = max(found[later], found[at])
            seen.add(later)
            at = later
    return found


def _names(text: str) -> frozenset[str]:
    """The terms of what is written with a capital, words that say too little aside."""
    return frozenset(term for word in _WORD.findall(text) if word[0].isupper() for term in _telling(word))


def _opening(text: str) -> frozenset[str]:
    """The names that a text begins with, before its first telling word that is none."""
    found: list[str] = []
    for word in _WORD.findall(text):
        if word[0].isupper():
            found += _telling(word)
        elif _telling(word):
            break
    return frozenset(found)


def _first(text: str) -> frozenset[str]:
    """The first word of a text that tells something."""
    return frozenset(next(filter(None, map(_telling, _WORD.findall(text))), ()))


def _telling(word: str) -> tuple[str, ...]:
    """The terms of a word, none where it says too little or is no more than a letter."""
    return () if len(word) == 1 and word.isascii() else tuple(term for term in terms(word) if term not in STOP_TERMS)


def _without(text: str, names: frozenset[str]) -> str:
    """A text without some names."""

    def kept(word: re.Match[str]) -> str:
        named = _telling(word[0]) if word[0][0].isupper() else ()
        return "" if named and names.issuperset(named) else word[0]

    return _WORD.sub(kept, text)


def _alike(texts: Sequence[str]) -> Floats:
    """The cosine of each two texts, by the static model; NaN where it does not know what one of them says.

    It knows Latin letters: in its eyes all texts of another script are alike.
    """
    rows = quantized(StaticEmbedder().embed(texts)).astype(np.float32)
    rows[[bool(_FOREIGN.search(text)) for text in texts]] = 0
    products = (rows @ rows.T).astype(np.float64)  # whole numbers below 2**24, which any order of sums gives exactly
    lengths = np.sqrt(np.diag(products))
    both = np.outer(lengths, lengths)
    cosines: Floats = np.divide(products, both, out=np.full_like(products, math.nan), where=both > 0)
    return cosines
