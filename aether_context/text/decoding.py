"""The text inside a tool's output: without envelopes, escapes and terminal codes, which carry nothing a model needs.

A tool's output often is a text in the Python notation of a protocol's result object, in which stands the JSON of
another, in which stands the text that the tool meant. Every layer escapes the one inside it. Outputs that somebody cut
off at a number of characters are read as far as they go.
"""

from __future__ import annotations

import ast
import json
import re
from contextlib import suppress

from pydantic_core import from_json

from aether_context.canonical import JSON, plain

_MOST_LAYERS = 4
_MOST_PYTHON = 400_000
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]{0,2000}(?:\x07|\x1b\\)|[@-Z\\-_])")
_TEXT_CONTENT = re.compile(r"TextContent\(type='text', text=")
_ENVELOPE = re.compile(r"(?:meta=\S+ )?(?:structuredContent=\S+ )?content=\[TextContent\(type='text', text=")
_LITERAL = re.compile(r"""'((?:[^'\\]|\\.)*)(?:'|\\?\Z)|"((?:[^"\\]|\\.)*)(?:"|\\?\Z)""", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
_LETTERS = {"\n": "", "n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "0": "\0"}
_ODD_ESCAPE = re.compile(r"\\[^\\'\"nrtuxU]")
_NUMBER = re.compile(r'("[^"\\]*(?:\\.[^"\\]*)*"?)|-?\d[\d.eE+-]*', re.DOTALL)
"""A string, as it stands, or a number."""


def decoded(text: str) -> str:
    """The innermost text of an output; the output itself where it has no envelope.

    An envelope that says more than its text, such as that the call failed, stays.
    """
    for _ in range(_MOST_LAYERS):
        start = text[:200].lstrip()
        inside = None
        if _ENVELOPE.match(start):
            inside = _of_notation(text)
        elif start[:1] == "{" and '"content"' in text[:200]:
            inside = _of_protocol(text)
        if inside is None:
            break
        text = inside
    return printable(text)


def printable(text: str) -> str:
    """A text without terminal codes and without what a progress bar wrote over."""
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    if "\r" in text:
        # A line shows what stands behind its last carriage return that anything follows.
        lines = text.replace("\r\n", "\n").split("\n")
        text = "\n".join(line[line.rfind("\r", 0, len(line.rstrip("\r"))) + 1 :] for line in lines)
    return text


def read_json(text: str, *, as_written: bool = False) -> tuple[JSON, bool] | None:
    """The value of a JSON text, and whether it is whole; None where it is not JSON.

    Of a text that was cut off, everything up to the cut is read.

    Args:
        as_written: whether numbers are read as texts, with the digits that they are written with.
    """
    number = str if as_written else None
    stripped = text.strip()
    if stripped[:1] not in ("{", "["):
        return None
    try:
        return json.loads(stripped, parse_float=number, parse_int=number), True
    except (ValueError, RecursionError):
        pass
    if as_written:
        stripped = _NUMBER.sub(lambda found: found.group(1) or f'"{found.group()}"', stripped)
    # pydantic-core reads nothing that UTF-8 cannot say, such as half of a surrogate pair.
    readable = stripped.encode("utf-8", "replace")
    try:
        from_json(readable)
    except ValueError as error:
        # Where a comma is missing, partial reading would end without a word, although more follows.
        if not str(error).startswith("EOF while parsing"):
            return None
    return from_json(readable, allow_partial="trailing-strings"), False


def read_python(text: str) -> JSON:
    """The object or list that a text is written as in Python; None where it is neither."""
    if len(text) > _MOST_PYTHON or _ODD_ESCAPE.search(text):  # an odd escape makes Python warn
        return None
    with suppress(ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        value = ast.literal_eval(text)
        return plain(value) if isinstance(value, (dict, list)) else None
    return None


def _of_notation(text: str) -> str | None:
    """The texts of a result in Python's notation."""
    if "isError=True" in text[-200:]:
        return None
    literals = [_LITERAL.match(text, start.end()) for start in _TEXT_CONTENT.finditer(text)]
    texts = [_ESCAPE.sub(_character, found[1] or found[2] or "") for found in literals if found is not None]
    return "\n".join(texts) if texts else None


def _character(found: re.Match[str]) -> str:
    if code := found[1] or found[2] or found[3]:
        return chr(int(code, 16)) if int(code, 16) <= 0x10FFFF else found[0]
    return _LETTERS.get(found[4], found[4])


def _of_protocol(text: str) -> str | None:
    """The texts of a result in the JSON of the Model Context Protocol, where that says nothing more."""
    found = read_json(text)
    value = found[0] if found is not None else None
    if not isinstance(value, dict) or not value.keys() <= {"_meta", "meta", "content", "isError", "structuredContent"}:
        return None
    items = value.get("content")
    if not isinstance(items, list) or not items or any(item for key, item in value.items() if key != "content"):
        return None
    return "\n".join(
        str(item["text"])
        if isinstance(item, dict) and item.get("type") == "text" and isinstance(item.get("text"), str)
        else json.dumps(item, ensure_ascii=False)
        for item in items
    )
