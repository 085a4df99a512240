"""JSON values as lines, so that whoever picks lines picks whole records."""

from __future__ import annotations

import ast
import json

from aether_context.canonical import JSON, canonical_json, plain

_WIDEST = 1_500
"""Characters up to which a record stands on one line."""
_NARROW = 120
_LONG_TEXT = 200
_MOST_CHARACTERS = 400_000
_DEEPEST = 40
_LEAST_RECORDS = 3


def laid_out(value: JSON) -> str:
    """A JSON value in lines: each entry of a list or of objects by name on one, each field of a larger object on one.

    A record that is wider than 1,500 characters has its long texts cut short; one that is still wider takes several
    lines.
    """
    return "\n".join(_lines(value, 0, False))


def _lines(value: JSON, depth: int, entry: bool) -> list[str]:
    indent = " " * depth
    text = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, (dict, list)) or not value or len(text) <= (_WIDEST if entry else _NARROW):
        return [indent + text]
    if depth > _DEEPEST:
        return [indent + text]
    if entry and isinstance(value, dict):
        brief = json.dumps(_brief(value), ensure_ascii=False)
        if len(brief) <= _WIDEST:
            return [indent + brief]
    lines: list[str] = []
    if isinstance(value, dict):
        records = len(value) >= _LEAST_RECORDS and all(isinstance(held, dict) for held in value.values())
        for key, held in value.items():
            first, *rest = _lines(held, depth + 1, records)
            lines += [f"{indent} {json.dumps(key, ensure_ascii=False)}: {first.lstrip()}", *rest]
        return [f"{indent}{{", *lines, f"{indent}}}"]
    for held in value:
        lines += _lines(held, depth + 1, True)
    return [f"{indent}[", *lines, f"{indent}]"]


def _brief(value: JSON) -> JSON:
    """A value whose long texts end early, and say so."""
    if isinstance(value, dict):
        return {key: _brief(held) for key, held in value.items()}
    if isinstance(value, list):
        return [_brief(held) for held in value]
    if isinstance(value, str) and len(value) > _LONG_TEXT:
        return f"{value[:_LONG_TEXT]}[… {len(value) - _LONG_TEXT} characters left out]"
    return value


def parsed(text: str) -> JSON:
    """The object or list that a text is written as, in JSON or as Python writes it; None where it is neither.

    Texts of more than 400,000 characters are not read.
    """
    text = text.strip()
    if len(text) > _MOST_CHARACTERS or not text.startswith(("{", "[")) or not text.endswith(("}", "]")):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        try:
            value = plain(ast.literal_eval(text))
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            return None
    try:
        canonical_json(value)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, (dict, list)) else None
