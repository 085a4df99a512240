"""How models and people spell what a plan holds: other capitals, units behind numbers, JSON inside a text.

Each function takes one value as it came and gives what it means, or raises a `ValueError` that says what was expected
and never what was given. pydantic runs them before its own checks.
"""

from __future__ import annotations

import ast
import dataclasses
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from typing import Any

from pydantic import BaseModel
from pydantic_core import from_json

_MOST_JSON = 1_000_000
_MOST_PYTHON = 50_000
_MOST_NAME = 200
_FOLDED = re.compile(r"[\W_]+")
_NUMBER = re.compile(r"[<>=≤≥~≈ ]{0,4}(\d[\d,_]{0,24}(?:\.\d{1,12})?) ?([a-z]{0,16})(?: [a-z]{1,16})?\.?")
_UNITS = {
    "ms": 0.001, "msec": 0.001, "millisecond": 0.001, "s": 1, "sec": 1, "second": 1, "m": 60, "min": 60, "minute": 60,
    "h": 3_600, "hr": 3_600, "hour": 3_600, "d": 86_400, "day": 86_400, "w": 604_800, "week": 604_800,
}  # fmt: skip
_SIZES = {"k": 1_000, "thousand": 1_000, "m": 1_000_000, "million": 1_000_000}
_RISKS = {
    "low": "low", "lo": "low", "minimal": "low", "minor": "low",
    "medium": "medium", "med": "medium", "mid": "medium", "moderate": "medium", "middle": "medium",
    "high": "high", "hi": "high", "severe": "high", "critical": "high", "major": "high",
}  # fmt: skip
_RISK_ORDER = ("low", "medium", "high")
_RISK_FILLERS = frozenset(("risk", "level", "very", "to", "or", "impact"))
_STATUSES = {
    "ready": "ready", "todo": "ready", "pending": "ready", "open": "ready", "notstarted": "ready", "new": "ready",
    "planned": "ready", "queued": "ready", "claimed": "claimed", "inprogress": "claimed", "doing": "claimed",
    "active": "claimed", "started": "claimed", "running": "claimed", "ongoing": "claimed", "current": "claimed",
    "done": "done", "completed": "done", "complete": "done", "finished": "done", "closed": "done",
}  # fmt: skip
_KINDS = {
    "preference": "preference", "preferences": "preference", "pref": "preference", "prefs": "preference",
    "userpreference": "preference", "userpreferences": "preference", "standing": "preference",
    "standingpreference": "preference", "standingpreferences": "preference", "standinginstruction": "preference",
    "episode": "episode", "episodes": "episode", "episodic": "episode", "event": "episode", "fact": "episode",
    "memory": "episode",
}  # fmt: skip
_ALL = frozenset(("", "*", "all", "any", "all tools"))
_NOTHING = frozenset(("", "none", "null", "na", "nil"))
_NAME_KEYS = ("name", "tool_name", "function_name", "tool", "function", "id")
_LIST_KEYS = ("names", "tools", "allowed")
_JSON = re.compile(r"\s{0,100}(?:```(?:json)?\s{0,100})?(?:\{\s{0,100}[\"'}]|\[\s{0,100}[\"'{\]])", re.IGNORECASE)
_ODD_ESCAPE = re.compile(r"\\[^\\'\"nrtuxU]")
_BULLET = re.compile(r"[ \t]{0,16}(?:[-*•]|\d{1,3}[.)])[ \t]{1,16}(?:\[[ xX]\][ \t]{1,16})?")
_COMMA = re.compile("[,，、]")
_TOOL_LINE = re.compile(r"(?im)^[^\w\n]{0,8}(?:\w{1,16}[ _])?tools?\b[^\w\n]{0,4}(?:[:=]|$)")
"""A line of a text that names tools after it: ``tools: …``, ``## Tools``, ``- **Allowed tools**:``."""
_MOST_NODES = 2_000
_LATEST_SECONDS = 253_402_300_799


def folded(name: str) -> str:
    """A name without capitals, blanks and punctuation, by which two spellings of it are the same."""
    return _FOLDED.sub("", name.casefold())


def means_nothing(value: object) -> bool:
    """Whether a value is none, or a word for it."""
    return value is None or (isinstance(value, str) and len(value) < 16 and folded(value) in _NOTHING)


def as_mapping(value: object) -> Mapping[str, Any] | None:
    """A mapping, the fields of a pydantic model or a dataclass, or the JSON object in a text; else None."""
    if isinstance(value, Mapping):
        return value
    if isinstance(value, BaseModel):
        return {**dict(value), **(value.model_extra or {})}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}
    found = as_json(value)[0] if isinstance(value, str) else None
    return found if isinstance(found, Mapping) else None


def as_items(value: object) -> list[tuple[str, Any]] | None:
    """The items of a list, each with its name where a mapping gives them names; None for what holds no items.

    A text of bullets, a line each, holds one an item.
    """
    if isinstance(value, str):
        found = as_json(value)[0]
        value = found if found is not None else bulleted(value)
    elif (fields := as_mapping(value)) is not None:
        value = fields
    if isinstance(value, Mapping):
        return [(str(name), item) for name, item in value.items()]
    if isinstance(value, (set, frozenset)):
        return [("", item) for item in sorted(value, key=str)]
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray)):
        return [("", item) for item in value]
    return None


def bulleted(text: str) -> list[str]:
    """The lines of a text that is nothing but bullets, without these; else the text itself."""
    lines = [line for line in text.splitlines() if line.strip()]
    found = [_BULLET.match(line) for line in lines]
    if len(lines) < 2 or not all(found):
        return [text]
    return [line[one.end() :].strip() for line, one in zip(lines, found, strict=True) if one is not None]


def as_json(text: str, *, whole: bool = True) -> tuple[Any, bool]:
    """The object or list that a text holds, None where it holds neither; and whether the text ends inside it.

    Models put JSON into a fence, write it as Python does, or stop before its end.

    Args:
        whole: whether nothing else may stand in the text. If not, words may stand around it.
    """
    held, fence = text[:_MOST_JSON].strip(), text.find("```")
    if fence == 0 or (fence > 0 and not whole) or held.startswith("```"):
        held = held[held.find("```") + 3 :].split("```", 1)[0].lstrip()
        held = held[4:].strip() if held[:4].casefold() == "json" else held.strip()
    elif not whole and not held.startswith(("{", "[")) and "{" in held:
        held = held[held.index("{") :]
    if not held.startswith(("{", "[")):
        return None, False
    try:
        found, end = json.JSONDecoder().raw_decode(held)
        if not whole or end == len(held):
            return found, False
    except (ValueError, RecursionError):
        pass
    try:
        return _literal(held), False
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        pass
    try:
        # pydantic-core reads nothing that UTF-8 cannot say, such as half of a surrogate pair.
        found = from_json(held.encode("utf-8", "replace"), allow_partial=True)
    except ValueError:
        return None, False
    return (found, True) if found else (None, False)


def _literal(text: str) -> Any:
    readable = len(text) <= _MOST_PYTHON and not _ODD_ESCAPE.search(text)  # an odd escape makes Python warn
    found = ast.literal_eval(text) if readable else None
    if not isinstance(found, (dict, list)):
        raise ValueError("no object and no list")
    return found


def looks_like_json(text: str) -> bool:
    """Whether a text was meant as JSON, be it readable or not."""
    return _JSON.match(text) is not None


def as_text(value: object) -> object:
    """A text: none is an empty one, a list of texts is a line each, and what carries a name or a text is that."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)) and all(isinstance(one, (str, int, float)) for one in value):
        return "\n".join(str(one) for one in value)
    if isinstance(value, Mapping):
        for key in ("text", "name", "title", "id"):
            if isinstance(value.get(key), (str, int)):
                return value[key]
    return value


def as_name(value: object) -> object:
    """A name: a text without blanks at its ends, or the name of what has one."""
    if isinstance(value, Mapping):
        value = next((value[key] for key in ("id", "name", "title", "text") if value.get(key)), value)
    value = as_text(value)
    return value.strip() if isinstance(value, str) else value


def as_number(value: object) -> object:
    """A number of tokens or calls: ``"40k"``, ``"40,000 tokens"``, ``"3 calls"``."""
    return _number(value, {}, _SIZES)


def as_count(value: object) -> object:
    """The same as a whole number."""
    found = as_number(value)
    return int(found) if isinstance(found, float) and found.is_integer() else found


def as_seconds(value: object) -> object:
    """A time in seconds: ``"8s"``, ``"500 ms"``, ``"<= 2 min"``; a number stands as it is."""
    return _number(value, _UNITS, {})


def _number(value: object, units: Mapping[str, float], sizes: Mapping[str, float]) -> object:
    if means_nothing(value):
        return None
    if not isinstance(value, str) or len(value) > _MOST_NAME:
        return value
    found = _NUMBER.fullmatch(" ".join(value.casefold().split()))
    if found is None:
        return value
    number, unit = float(found[1].replace(",", "").replace("_", "")), found[2]
    if units:
        factor = units.get(unit) or units.get(unit.removesuffix("s")) if unit else 1
        if factor is None:
            raise ValueError("it is not a time: give a number of seconds")
        return number * factor
    return number * sizes.get(unit, 1)


def as_risk(value: object) -> object:
    """``low``, ``medium`` or ``high`` where a text begins with a word for it; of several the highest."""
    if means_nothing(value):
        return None
    if not isinstance(value, str) or len(value) > _MOST_NAME:
        return value
    words = [word for word in _FOLDED.split(value.casefold()) if word and word not in _RISK_FILLERS]
    if not words or words[0] not in _RISKS:
        return value
    return max((_RISKS[word] for word in words if word in _RISKS), key=_RISK_ORDER.index)


def as_status(value: object) -> object:
    """``ready``, ``claimed`` or ``done``, by the words that are used for them."""
    if means_nothing(value):
        return "ready"
    return _STATUSES.get(folded(value), value) if isinstance(value, str) and len(value) <= _MOST_NAME else value


def as_kind(value: object) -> object:
    """``preference`` or ``episode``, by the words that are used for them."""
    if means_nothing(value):
        return None
    return _KINDS.get(folded(value), value) if isinstance(value, str) and len(value) <= _MOST_NAME else value


def is_preference(metadata: Mapping[str, Any] | None) -> bool:
    """Whether what an app wrote beside a memory says that it is a preference."""
    kinds = [value for key, value in (metadata or {}).items() if isinstance(key, str) and folded(key) == "kind"]
    return any(as_kind(kind) == "preference" for kind in kinds)


def as_choice(value: object) -> object:
    """One of a few lower-case names."""
    if means_nothing(value):
        return None
    return "_".join(_FOLDED.split(value.strip().casefold())) if isinstance(value, str) else value


def as_flag(value: object) -> object:
    return False if means_nothing(value) else value.strip() if isinstance(value, str) else value


def as_time(value: object) -> object:
    """Seconds since 1970: a number of these or of milliseconds, a date, or a text in ISO 8601."""
    if means_nothing(value):
        return None
    if isinstance(value, date):
        moment = value if isinstance(value, datetime) else datetime(value.year, value.month, value.day, tzinfo=UTC)
        return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()
    if isinstance(value, (int, float)) and not isinstance(value, bool) and _LATEST_SECONDS < value <= 1e15:
        return value / 1_000
    if not isinstance(value, str) or len(value) > 64:
        return value
    try:
        moment = datetime.fromisoformat(value.strip())
    except ValueError:
        return value
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()


def as_lines(value: object) -> object:
    """A list of texts; one text stands for a list of it."""
    if means_nothing(value):
        return ()
    if isinstance(value, (bool, int, float)):
        return (str(value),)
    items = as_items(value)
    if items is None:
        return value
    return tuple(_line(name, item) for name, item in items if item is not None)


def _line(name: str, item: object) -> object:
    text = as_text(item)
    return f"{name}: {text}" if name and isinstance(text, str) else text


def as_names(value: object) -> object:
    """A list of names; one text holds several with commas between them."""
    if isinstance(value, str) and not looks_like_json(value):
        value = _COMMA.split(value)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        value = [value]
    items = None if value is None else as_items(value)
    if items is None:
        return () if value is None else value
    names = (as_name(name or item) for name, item in items)
    return tuple(name for name in names if not means_nothing(name))


def tool_names(value: object) -> tuple[tuple[str, ...] | None, int]:
    """The names of tools in whatever lists them, and how many items of it name none.

    None is no limit: nothing was given, an empty list, or a word for all. An empty tuple is a list of none: a word for
    that, or a list of which nothing could be read.
    """
    if value is None or (isinstance(value, (str, list, tuple, dict, set, frozenset)) and not value):
        return None, 0
    if isinstance(value, str) and value.strip().casefold() in _ALL:
        return None, 0
    if means_nothing(value):
        return (), 0
    found: list[str] = []
    unread = 0
    for item in _tool_items(value):
        names = list(_tool_name(item))
        found += names
        unread += not names
    return tuple(dict.fromkeys(found)), unread


def lists_tools(value: object, keys: Collection[str]) -> bool:
    """Whether something somewhere in a value lists tools: a field by one of these folded names, or a line of a text.

    Of what is large 2,000 values are looked at, and it is taken to list some in the rest.
    """
    left = [value]
    for _ in range(_MOST_NODES):
        if not left:
            return False
        held = left.pop()
        if isinstance(held, str):
            inside = as_json(held, whole=False)[0] if "{" in held or "[" in held else None
            if inside is None and _TOOL_LINE.search(held[:_MOST_PYTHON]):
                return True
            held = inside
        fields = as_mapping(held) if not isinstance(held, str) else None
        if fields is not None:
            if any(folded(str(key)) in keys and named not in (None, "", [], {}) for key, named in fields.items()):
                return True
            left += list(fields.values())
        elif isinstance(held, (list, tuple)):
            left += held[:_MOST_NODES]
    return bool(left)


def _tool_items(value: object) -> Iterator[object]:
    if isinstance(value, str) and not looks_like_json(value):
        yield value
        return
    if isinstance(value, (str, BaseModel, Mapping)):
        fields = as_mapping(value)
        if fields is not None:
            named = next((fields[key] for key in _LIST_KEYS if key in fields), None)
            if named is not None:
                yield from _tool_items(named)
            elif any(isinstance(fields.get(key), (str, Mapping)) for key in _NAME_KEYS):
                yield fields
            else:
                yield from (name for name, wanted in fields.items() if wanted not in (False, "false", "no"))
            return
    items = as_items(value)
    yield from (value,) if items is None else (item for _, item in items)


def _tool_name(item: object, depth: int = 0) -> Iterator[str]:
    """The names in one item: a text, or something that carries a name."""
    if isinstance(item, str):
        yield from (piece.strip() for piece in _pieces(item) if folded(piece) and len(piece) <= _MOST_NAME)
        return
    fields = as_mapping(item) if not isinstance(item, (int, float)) else None
    held = next((fields[key] for key in _NAME_KEYS if fields.get(key)), None) if fields is not None else None
    if held is None:
        held = getattr(item, "name", None) or getattr(item, "__name__", None)
    if isinstance(held, (str, Mapping, BaseModel)) and depth < 3:
        yield from _tool_name(held, depth + 1)


def _pieces(text: str) -> Iterator[str]:
    """A text cut at commas, semicolons and line breaks that stand outside brackets: ``search(query, limit), read``."""
    start, depth = 0, 0
    for at, mark in enumerate(text):
        depth += (mark in "([{") - (mark in ")]}")
        if (mark in ",;，；、" and depth <= 0) or mark == "\n":
            yield text[start:at]
            start, depth = at + 1, 0
    yield text[start:]


def spellings_of(name: str) -> Iterator[str]:
    """What a tool may be meant by: its name as it was written, without arguments, without what is said of it, without
    what stands before its last dot or slash; folded."""
    bare = name.split("(", 1)[0]
    short = bare.split(":", 1)[0].split(" - ", 1)[0].split(" – ", 1)[0].split(" — ", 1)[0]
    for one in (name, bare, short, short.strip("`'\"*- ").replace("/", ".").rsplit(".", 1)[-1]):
        if one := folded(one):
            yield one
