"""To-do lists that agents keep with a tool: the latest state of one, which stands at the end of a summary.

The state is the list in the call's arguments, else that in the response. Names of such tools are in orders.toml.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from aether_context.conversation.orders import rule
from aether_context.pack import Content
from aether_context.plans.spellings import status_of
from aether_context.text import Counts
from aether_context.text.pairing import pair_results

TITLE = "- the to-do list as it is, of "
_SIGNS = {"done": "x", "claimed": "~"}
_TEXTS = ("content", "task", "title", "text", "step", "subject", "description", "name", "item", "todo")
_STATUSES = ("status", "state", "done", "completed", "checked")
_CHANGES = re.compile(r"(?:\w*_)?(?:add|complete|finish|check|remove|delete|mark)_?", re.IGNORECASE)
"""The names of tools that change one entry, whose arguments are not the list."""
_WRITTEN = re.compile(r"(?m)^\s*(?:[-*]|\d{1,3}[.)])?\s*(\[[ xX~-]\].{1,300})$")
_LONGEST = 200


def latest_list(contents: Sequence[Content]) -> tuple[frozenset[int], str, list[str]] | None:
    """The latest state of a to-do list: the indices of the contents that tell it, the tool's name, and the items, none
    for a list that was emptied.

    A tool that writes the list says it in its arguments, else in its response. One that changes an entry says all of
    it in its response, or nothing that counts here.
    """
    results = pair_results(contents)
    for at in range(len(contents) - 1, -1, -1):
        for part, call in reversed(results[at]):
            if not rule("todo_tools").fullmatch(part.name):
                continue
            response, arguments = _value(part.text), _value(call.part.text if call is not None else "{}")
            if isinstance(response, dict) and response.get("error"):
                continue
            places = frozenset((at, *([call.at] if call is not None else ())))
            if not _CHANGES.match(part.name):
                items = _items(arguments)
                if items or _is_emptied(arguments):
                    return places, part.name, items
            items = _items(response)
            if len(items) > bool(_CHANGES.match(part.name)):
                return places, part.name, items
    return None


def _is_emptied(arguments: Any) -> bool:
    """Tells whether a call writes a list without entries."""
    values = arguments.items() if isinstance(arguments, Mapping) else ()
    return any(value == [] and rule("todo_keys").fullmatch(str(name)) for name, value in values)


def _value(text: str) -> Any:
    """The value of JSON; another agent's, as ADK quotes it, is a text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _items(value: Any, key: str = "", depth: int = 0) -> list[str]:
    """The items of the first list of tasks in a value, a line each; empty where there is none."""
    if isinstance(value, str):
        return _WRITTEN.findall(value)
    if isinstance(value, Mapping):
        inside = (_items(entry, str(name), depth + 1) for name, entry in value.items() if depth < 4)
        return next(filter(None, inside), [])
    if not isinstance(value, list):
        return []
    is_named = rule("todo_keys").fullmatch(key) is not None
    return [item for entry in value if (is_named or isinstance(entry, Mapping)) and (item := _item(entry))]


def _item(value: Any) -> str:
    if isinstance(value, str):
        return " ".join(value[:_LONGEST].split())
    if not isinstance(value, Mapping):
        return ""
    text = next((str(value[key]) for key in _TEXTS if isinstance(value.get(key), str) and value[key].strip()), "")
    state = next((value[key] for key in _STATUSES if key in value), "")
    sign = _SIGNS.get("done" if state is True else status_of(state), " ")
    return f"[{sign}] {' '.join(text[:_LONGEST].split())}" if text else ""


def split_list(summary: str) -> tuple[str, str]:
    """A summary without the list at its end, and the list."""
    at = summary.rfind(f"\n{TITLE}")
    at = 0 if summary.startswith(TITLE) else at
    return (summary, "") if at < 0 else (summary[:at], summary[at:].lstrip("\n"))


def list_text(tool: str, items: Sequence[str], *, max_tokens: int, counter: Counts) -> str:
    """A list as the last lines of a summary: where there is no room for all, what is done is counted, and of the rest
    the first stays."""
    lines = list(items)
    if counter.count("\n".join(lines)) + 12 > max_tokens:
        lines = [item for item in items if not item.startswith("[x]")]
    while lines and counter.count("\n".join(lines)) + 2 * len(lines) + 24 > max_tokens:
        lines.pop()
    if not lines and counter.count(TITLE) + 24 > max_tokens:
        return ""
    note = f" ({len(items) - len(lines)} of {len(items)} items are not shown)" if len(lines) < len(items) else ""
    return "\n".join([f"{TITLE}{tool}{note}:", *(f"  {item}" for item in lines)])
