"""Reads values as models and people write them: in any case, in several languages, with units behind numbers.

Each function that begins with ``as_`` takes a raw value and returns what it means, or the value itself where it is not
understood; pydantic runs them before its own checks. Which words stand for which field or value is in words.toml.
"""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, date, datetime
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

_MOST_NAME = 200
_FOLDED = re.compile(r"[\W_]+")
_ACCENT = re.compile(r"[\u0300-\u036f]+")
_TOOLS_KEY = re.compile(
    r"(?:allowed|available|required|needed|suggested|recommended|permitted|necessary|useful)?tools?(?:names?|list|set|scope|needed|required|touse|used)?|tool[sz]?|to+l+s"
)
"""A key, folded, under which models give a list of tools. None of them may be overlooked, since a step without a list
may use all tools."""
_BESIDE = re.compile(r"^(?:the|my|our|your|plan|overall|all)|(?:list|items)$")
_NUMBER = re.compile(r"[<>=≤≥~≈ ]{0,4}(\d[\d,]{0,24}(?:\.\d{1,12})?) ?([a-z]{0,16})(?: [a-z]{1,16})?\.?")
_SIZES = {"k": 1_000, "thousand": 1_000, "m": 1_000_000, "million": 1_000_000}
_LATEST_SECONDS = 253_402_300_799
_NOTHING = ("", "none", "null", "na", "nil")


def folded(name: str) -> str:
    """A name in lower case without blanks and punctuation, to compare spellings."""
    return _FOLDED.sub("", name.casefold())


def _plain(word: str) -> str:
    """A word as the table has it: folded and without accents, or a sign alone."""
    word = _ACCENT.sub("", unicodedata.normalize("NFKD", word[:_MOST_NAME]))
    return folded(word) or "".join(word.split()).replace("\ufe0f", "")


@cache
def words(kind: str) -> Mapping[str, tuple[str, int]]:
    """The words of a table: what each stands for, and its place among the words for that."""
    import tomllib  # takes longer to load than a chat without a plan may wait

    tables = tomllib.loads(Path(__file__).with_name("words.toml").read_text(encoding="utf-8"))
    meanings: dict[str, tuple[str, int]] = {}
    for field, listed in tables[kind].items():
        for rank, word in enumerate([field, *(listed or tables["plan"].get(field, "")).split(",")]):
            meanings.setdefault(_plain(word), (field, rank))
    return meanings


@lru_cache(maxsize=4_096)
def field_of(kind: str, key: str) -> tuple[str, int] | None:
    """The field that a key stands for, and how likely: the lower the number, the likelier. None for none."""
    table, word = words(kind), _plain(key)
    bare = _BESIDE.sub("", word)
    for spelling in (word, f"{word}s", word.removesuffix("s"), bare, f"{bare}s", bare.removesuffix("s")):
        if spelling and (meaning := table.get(spelling)):
            return meaning
    if kind == "plan" and word.endswith(("index", "idx")):
        return "index", 0
    return ("tools", 0) if "tools" in table and _TOOLS_KEY.fullmatch(word) else None


def near_field(kind: str, key: str) -> str:
    """The field that a key with a slip in it may mean; empty where none is near."""
    table = words(kind)
    near = difflib.get_close_matches(_plain(key), table, n=1, cutoff=0.8)
    return table[near[0]][0] if near else ""


def means_nothing(value: object) -> bool:
    """Tells whether a value is None, or a text such as ``none`` or ``n/a``."""
    return value is None or (isinstance(value, str) and len(value) < 16 and folded(value) in _NOTHING)


def is_empty(value: object) -> bool:
    return means_nothing(value) or (isinstance(value, (list, tuple, dict, set, frozenset)) and not value)


# Single values.


def _meaning(kind: str, value: object) -> object:
    """Looks a word's meaning up in a table; a value that is not in it unchanged."""
    meaning = words(kind).get(_plain(value)) if isinstance(value, str) and len(value) <= _MOST_NAME else None
    return meaning[0] if meaning else value


def status_of(value: object) -> str:
    """``ready``, ``blocked``, ``claimed`` or ``done``, also with words behind (``done on Monday``), in an enumeration's
    notation or with a sign before it; empty where none of these is said."""
    if not isinstance(value, str) or len(value) > _MOST_NAME:
        return ""
    table, parts = words("status"), value.rsplit(".", 1)[-1].split()
    for count in range(min(len(parts), 4), 0, -1):
        for spelling in (" ".join(parts[:count]), re.split(r"[(,:;–—-]", " ".join(parts[:count]))[0]):
            if (meaning := table.get(_plain(spelling))) is not None:
                return meaning[0]
    return ""


def spoken_status(sentence: str) -> str:
    """The status that a short sentence says, ``done`` for ``This has been completed.``; empty where it says none,
    denies it, or makes it a condition."""
    sentence_words = re.findall(r"[^\W\d_]+(?:['’]t\b)?", sentence[:_MOST_NAME])
    marks = [words("spoken").get(_plain(word), ("",))[0] for word in sentence_words]
    unmarked = " ".join(word for word, mark in zip(sentence_words, marks, strict=True) if not mark)
    default = "claimed" if "here" in marks and not unmarked else ""
    return "" if "denies" in marks else words("status").get(_plain(unmarked), (default,))[0]


def as_status(value: object) -> object:
    return "ready" if means_nothing(value) else status_of(value) or value


def as_kind(value: object) -> object:
    """``preference`` or ``episode``, or a synonym of one."""
    return None if means_nothing(value) else _meaning("kind", value)


def is_preference(metadata: Mapping[str, Any] | None) -> bool:
    """Tells whether a memory's metadata says that it is a preference."""
    kinds = [value for key, value in (metadata or {}).items() if isinstance(key, str) and folded(key) == "kind"]
    return any(as_kind(kind) == "preference" for kind in kinds)


def as_risk(value: object) -> object:
    """``low``, ``medium`` or ``high`` for a text that begins with a synonym; of several the highest."""
    if means_nothing(value) or not isinstance(value, str) or len(value) > _MOST_NAME:
        return value or None
    parts = [part for part in _FOLDED.split(value.casefold()) if part]
    risks = [_meaning("risk", part) for part in parts if part not in ("risk", "level", "very", "to", "or", "impact")]
    named_risks = [risk for risk in ("high", "medium", "low") if risk in risks]
    return named_risks[0] if named_risks and risks[0] in named_risks else value


def as_choice(value: object) -> object:
    """A choice in lower case, with underscores between its words."""
    if means_nothing(value):
        return None
    return "_".join(_FOLDED.split(value.strip().casefold())) if isinstance(value, str) else value


def as_flag(value: object) -> object:
    return False if means_nothing(value) else value.strip() if isinstance(value, str) else value


def as_count(value: object) -> object:
    """A whole number of tokens or calls: ``"40k"``, ``"40,000 tokens"``, ``"3 calls"``."""
    if means_nothing(value) or not isinstance(value, str) or len(value) > _MOST_NAME:
        return None if means_nothing(value) else value
    match = _NUMBER.fullmatch(" ".join(value.casefold().split()))
    if match is None:
        return value
    size = float(match[1].replace(",", "")) * _SIZES.get(match[2], 1)
    return int(size) if size.is_integer() else size


def as_time(value: object) -> object:
    """Seconds since 1970 UTC, from seconds, milliseconds, a date or a text in ISO 8601."""
    if means_nothing(value):
        return None
    if isinstance(value, str) and len(value) <= 64:
        with suppress(ValueError):
            value = datetime.fromisoformat(value.strip())
    if isinstance(value, date):
        time = value if isinstance(value, datetime) else datetime(value.year, value.month, value.day)
        return (time if time.tzinfo is not None else time.replace(tzinfo=UTC)).timestamp()
    if isinstance(value, (int, float)) and not isinstance(value, bool) and _LATEST_SECONDS < value <= 1e15:
        return value / 1_000
    return value
