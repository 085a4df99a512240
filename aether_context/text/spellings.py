"""Reads a plan's values as models and people write them: in any case, with units behind numbers, as JSON in a text.

Each function takes a raw value and returns what it means, or raises a `ValueError` that says what was expected, never
what was given. pydantic runs them before its own checks.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime
from typing import Any

from pydantic import BaseModel
from pydantic_core import from_json

from aether_context.text.decoding import read_python

_MOST_JSON = 1_000_000
_MOST_NAME = 200
_FOLDED = re.compile(r"[\W_]+")
_NUMBER = re.compile(r"[<>=≤≥~≈ ]{0,4}(\d[\d,_]{0,24}(?:\.\d{1,12})?) ?([a-z]{0,16})(?: [a-z]{1,16})?\.?")
_SECONDS = {
    "": 1, "ms": 0.001, "msec": 0.001, "millisecond": 0.001, "s": 1, "sec": 1, "second": 1, "m": 60, "min": 60,
    "minute": 60, "h": 3_600, "hr": 3_600, "hour": 3_600, "d": 86_400, "day": 86_400, "w": 604_800, "week": 604_800,
}  # fmt: skip
_SIZES = {"k": 1_000, "thousand": 1_000, "m": 1_000_000, "million": 1_000_000}


def _by_word(words: Mapping[str, str]) -> Mapping[str, str]:
    return {word: name for name, synonyms in words.items() for word in synonyms.split()}


_RISKS = _by_word(
    {
        "high": "high hi severe critical major",
        "medium": "medium med mid moderate middle",
        "low": "low lo minimal minor",
    }
)
_STATUSES = _by_word(
    {
        "ready": "ready todo pending open notstarted new planned queued",
        "claimed": "claimed inprogress doing active started running ongoing current",
        "done": "done completed complete finished closed",
    }
)
_KINDS = _by_word(
    {
        "preference": "preference preferences pref prefs userpreference userpreferences standing standingpreference "
        "standingpreferences standinginstruction",
        "episode": "episode episodes episodic event fact memory",
    }
)
_NAME_KEYS = ("name", "tool_name", "function_name", "tool", "function", "id")
_JSON = re.compile(r"\s{0,100}(?:```(?:json)?\s{0,100})?(?:\{\s{0,100}[\"'}]|\[\s{0,100}[\"'{\]])", re.IGNORECASE)
_BULLET = re.compile(r"[ \t]{0,16}(?:[-*•]|\d{1,3}[.)])[ \t]{1,16}(?:\[[ xX]\][ \t]{1,16})?")
_LATEST_SECONDS = 253_402_300_799


def folded(name: str) -> str:
    """A name in lower case without blanks and punctuation, to compare spellings."""
    return _FOLDED.sub("", name.casefold())


def means_nothing(value: object) -> bool:
    """Whether a value is None, or a text such as ``none`` or ``n/a``."""
    return value is None or (
        isinstance(value, str) and len(value) < 16 and folded(value) in ("", "none", "null", "na", "nil")
    )


# Containers.


def as_mapping(value: object) -> Mapping[str, Any] | None:
    """A mapping, the fields of a pydantic model or a dataclass, or the JSON object in a text; else None."""
    if isinstance(value, str):
        value = as_json(value)[0]
    if isinstance(value, BaseModel):
        return {**dict(value), **(value.model_extra or {})}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return value if isinstance(value, Mapping) else None


def as_items(value: object) -> list[tuple[str, Any]] | None:
    """The items of a list, or of a mapping with their keys; None for a value without items.

    A text whose lines are bullets is a list of these.
    """
    if isinstance(value, str):
        parsed = as_json(value)[0]
        value = parsed if parsed is not None else bulleted(value)
    if (fields := as_mapping(value)) is not None:
        return [(str(name), item) for name, item in fields.items()]
    if isinstance(value, (set, frozenset)):
        return [("", item) for item in sorted(value, key=str)]
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
        return [("", item) for item in value]
    return None


def bulleted(text: str) -> list[str]:
    """The lines of a text in which each line is a bullet, without the bullets; else the text alone."""
    lines = [line for line in text.splitlines() if line.strip()]
    bullets = [match for line in lines if (match := _BULLET.match(line)) is not None]
    if len(lines) < 2 or len(bullets) < len(lines):
        return [text]
    return [bullet.string[bullet.end() :].strip() for bullet in bullets]


def as_json(text: str, *, only_json: bool = True) -> tuple[Any, bool]:
    """The object or list in a text, None where there is none; and whether the text ends before it is complete.

    Models put JSON into a Markdown fence, write it in Python notation, or stop before its end.

    Args:
        only_json: whether the text must hold nothing else. If not, there may be words around the JSON.
    """
    content, fence = text[:_MOST_JSON].strip(), text.find("```")
    if fence == 0 or (fence > 0 and not only_json) or content.startswith("```"):
        content = content[content.find("```") + 3 :].split("```", 1)[0].lstrip()
        content = content[4:].strip() if content[:4].casefold() == "json" else content.strip()
    elif not only_json and not content.startswith(("{", "[")) and "{" in content:
        content = content[content.index("{") :]
    if not content.startswith(("{", "[")):
        return None, False
    with suppress(ValueError, RecursionError):
        value, end = json.JSONDecoder().raw_decode(content)
        if not only_json or end == len(content):
            return value, False
    if (value := read_python(content)) is not None:
        return value, False
    with suppress(ValueError):
        # pydantic-core reads UTF-8 only, which cannot hold half of a surrogate pair.
        value = from_json(content.encode("utf-8", "replace"), allow_partial=True)
        return (value, True) if value else (None, False)
    return None, False


def looks_like_json(text: str) -> bool:
    """Whether a text is meant as JSON, readable or not."""
    return _JSON.match(text) is not None


# Single values.


def as_text(value: object) -> object:
    """A text: empty for None, the items of a list as lines, the text or name in a mapping."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)) and all(isinstance(item, (str, int, float)) for item in value):
        return "\n".join(str(item) for item in value)
    if isinstance(value, Mapping):
        return next(
            (value[key] for key in ("text", "name", "title", "id") if isinstance(value.get(key), (str, int))), value
        )
    return value


def as_name(value: object) -> object:
    """A name: a text without blanks at its ends, or the id or name in a mapping."""
    if isinstance(value, Mapping):
        value = next((value[key] for key in ("id", "name", "title", "text") if value.get(key)), value)
    value = as_text(value)
    return value.strip() if isinstance(value, str) else value


def as_count(value: object) -> object:
    """A whole number of tokens or calls: ``"40k"``, ``"40,000 tokens"``, ``"3 calls"``."""
    number, unit = _number(value)
    if unit is None:
        return number
    size = float(number) * _SIZES.get(unit, 1)
    return int(size) if size.is_integer() else size


def as_seconds(value: object) -> object:
    """A time in seconds: ``"8s"``, ``"500 ms"``, ``"<= 2 min"``; a number is in seconds already."""
    number, unit = _number(value)
    if unit is None:
        return number
    factor = _SECONDS.get(unit) or _SECONDS.get(unit.removesuffix("s"))
    if factor is None:
        raise ValueError("it is not a time: give a number of seconds")
    return float(number) * factor


def _number(value: object) -> tuple[Any, str | None]:
    """The number in a text, and its unit; any other value unchanged, and None."""
    if means_nothing(value):
        return None, None
    if not isinstance(value, str) or len(value) > _MOST_NAME:
        return value, None
    match = _NUMBER.fullmatch(" ".join(value.casefold().split()))
    return (match[1].replace(",", "").replace("_", ""), match[2]) if match is not None else (value, None)


def as_risk(value: object) -> object:
    """``low``, ``medium`` or ``high`` for a text that begins with a synonym; of several the highest."""
    if means_nothing(value):
        return None
    parts = _FOLDED.split(value.casefold()) if isinstance(value, str) and len(value) <= _MOST_NAME else ()
    parts = [part for part in parts if part and part not in ("risk", "level", "very", "to", "or", "impact")]
    if not parts or parts[0] not in _RISKS:
        return value
    risks = {_RISKS[part] for part in parts if part in _RISKS}
    return next(risk for risk in ("high", "medium", "low") if risk in risks)


def as_status(value: object) -> object:
    """``ready``, ``claimed`` or ``done``, or a synonym of one."""
    return "ready" if means_nothing(value) else _word(value, _STATUSES)


def as_kind(value: object) -> object:
    """``preference`` or ``episode``, or a synonym of one."""
    return None if means_nothing(value) else _word(value, _KINDS)


def _word(value: object, words: Mapping[str, str]) -> object:
    return words.get(folded(value), value) if isinstance(value, str) and len(value) <= _MOST_NAME else value


def is_preference(metadata: Mapping[str, Any] | None) -> bool:
    """Whether a memory's metadata says that it is a preference."""
    kinds = [value for key, value in (metadata or {}).items() if isinstance(key, str) and folded(key) == "kind"]
    return any(as_kind(kind) == "preference" for kind in kinds)


def as_choice(value: object) -> object:
    """A choice in lower case, with underscores between its words."""
    if means_nothing(value):
        return None
    return "_".join(_FOLDED.split(value.strip().casefold())) if isinstance(value, str) else value


def as_flag(value: object) -> object:
    return False if means_nothing(value) else value.strip() if isinstance(value, str) else value


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


# Lists of texts and of names.


def as_lines(value: object) -> object:
    """A list of texts; a single text is a list of one."""
    if means_nothing(value):
        return ()
    if isinstance(value, (bool, int, float)):
        return (str(value),)
    items = as_items(value)
    if items is None:
        return value
    texts = [(name, as_text(item)) for name, item in items if item is not None]
    return tuple(f"{name}: {text}" if name and isinstance(text, str) else text for name, text in texts)


def as_names(value: object) -> object:
    """A list of names; a text may hold several, separated by commas."""
    if isinstance(value, str) and not looks_like_json(value):
        value = re.split("[,，、]", value)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        value = [value]
    items = None if value is None else as_items(value)
    if items is None:
        return () if value is None else value
    names = (as_name(name or item) for name, item in items)
    return tuple(name for name in names if not means_nothing(name))


def tool_names(value: object) -> tuple[tuple[str, ...] | None, int]:
    """The names of tools in a list of any form, and how many of its items name no tool.

    The names are None, for no restriction, where nothing, an empty list or a word for all is given. They are empty, for
    no tools, where a word for none is given, or a list in which nothing can be read.
    """
    if value is None or (isinstance(value, (str, list, tuple, dict, set, frozenset)) and not value):
        return None, 0
    if isinstance(value, str) and value.strip().casefold() in ("", "*", "all", "any", "all tools"):
        return None, 0
    if means_nothing(value):
        return (), 0
    names_by_item = [_tool_name(item) for item in _tool_items(value)]
    return tuple(dict.fromkeys(name for names in names_by_item for name in names)), names_by_item.count([])


def _tool_items(value: object) -> list[object]:
    if isinstance(value, str) and not looks_like_json(value):
        return [value]
    fields = as_mapping(value)
    if fields is None:
        items = as_items(value)
        return [value] if items is None else [item for _, item in items]
    tools = next((fields[key] for key in ("names", "tools", "allowed") if key in fields), None)
    if tools is not None:
        return _tool_items(tools)
    if any(isinstance(fields.get(key), (str, Mapping)) for key in _NAME_KEYS):
        return [fields]
    return [name for name, is_allowed in fields.items() if is_allowed not in (False, "false", "no")]


def _tool_name(item: object, depth: int = 0) -> list[str]:
    """The names in one item: a text, or an object with a name."""
    if isinstance(item, str):
        return [part.strip() for part in _pieces(item) if folded(part) and len(part) <= _MOST_NAME]
    fields = as_mapping(item) or {}
    name = next((fields[key] for key in _NAME_KEYS if fields.get(key)), None)
    name = name or getattr(item, "name", None) or getattr(item, "__name__", None)
    return _tool_name(name, depth + 1) if isinstance(name, (str, Mapping, BaseModel)) and depth < 3 else []


def _pieces(text: str) -> Iterator[str]:
    """A text split at commas and semicolons outside brackets and at line breaks: ``search(query, limit), read``."""
    start, depth = 0, 0
    for index, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if (character in ",;，；、" and depth <= 0) or character == "\n":
            yield text[start:index]
            start, depth = index + 1, 0
    yield text[start:]


def spellings_of(name: str) -> Iterator[str]:
    """The folded spellings to look a tool's name up by: as written, without arguments, without a description, and
    without what comes before its last dot or slash."""
    without_arguments = name.split("(", 1)[0]
    short = re.split(":| - | – | — ", without_arguments, maxsplit=1)[0]
    for spelling in (name, without_arguments, short, short.strip("`'\"*- ").replace("/", ".").rsplit(".", 1)[-1]):
        if spelling := folded(spelling):
            yield spelling
