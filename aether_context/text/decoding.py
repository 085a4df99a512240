"""The text inside a tool's output: without envelopes, escapes and terminal codes, which carry nothing a model needs.

A tool's output often is a text in the Python notation of a protocol's result object, in which stands the JSON of
another, in which stands the text that the tool meant. Every layer escapes the one inside it. Outputs that somebody cut
off at a number of characters are read as far as they go.
"""

from __future__ import annotations

import json
import re

from pydantic_core import from_json

from aether_context.canonical import JSON

MOST_LAYERS = 4
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]{0,2000}(?:\x07|\x1b\\)|[@-Z\\-_])")
_TEXT_CONTENT = re.compile(r"TextContent\(type='text', text=")
_ENVELOPE = re.compile(r"(?:meta=\S+ )?(?:structuredContent=\S+ )?content=\[TextContent\(type='text', text=")
_LITERAL = re.compile(r"""'((?:[^'\\]|\\.)*)(?:'|\\?\Z)|"((?:[^"\\]|\\.)*)(?:"|\\?\Z)""", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
_LETTERS = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "0": "\0"}
_NUMBER = re.compile(r'("[^"\\]*(?:\\.[^"\\]*)*"?)|-?\d[\d.eE+-]*', re.DOTALL)
"""A string, as it stands, or a number."""


def decoded(text: str) -> str:
    """The innermost text of an output; the output itself where it has no envelope.

    An envelope that says more than its text, such as that the call failed, stays.
    """
    for _ in range(MOST_LAYERS):
        inside = _unwrapped(text)
        if inside is None:
            break
        text = inside
    return printable(text)


def printable(text: str) -> str:
    """A text without terminal codes and without what a progress bar wrote over."""
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    if "\r" in text:
        text = "\n".join(map(_redrawn, text.replace("\r\n", "\n").split("\n")))
    return text


def _redrawn(line: str) -> str:
    """What a line shows last: what stands behind its last carriage return that anything follows."""
    return line[line.rfind("\r", 0, len(line.rstrip("\r"))) + 1 :]


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


def _unwrapped(text: str) -> str | None:
    """The text inside the outermost layer, None where there is none to be taken off."""
    start = text[:200].lstrip()
    if _ENVELOPE.match(start):
        return _of_notation(text)
    if start[:1] == "{" and '"content"' in text[:200]:
        return _of_protocol(text)
    return None


def _of_notation(text: str) -> str | None:
    """The texts of a result in Python's notation."""
    if "isError=True" in text[-200:]:
        return None
    literals = [_LITERAL.match(text, start.end()) for start in _TEXT_CONTENT.finditer(text)]
    texts = [_ESCAPE.sub(_character, found.group(1) or found.group(2) or "") for found in literals if found is not None]
    return "\n".join(texts) if texts else None


def _of_protocol(text: str) -> str | None:
    """The texts of a result in the JSON of the Model Context Protocol, where that says nothing more."""
    found = read_json(text)
    value = found[0] if found is not None else None
    if not isinstance(value, dict) or not value.keys() <= {"_meta", "meta", "content", "isError", "structuredContent"}:
        return None
    if value.get("isError") or value.get("structuredContent") or value.get("_meta") or value.get("meta"):
        return None
    items = value.get("content")
    if not isinstance(items, list) or not items:
        return None
    return "\n".join(_item_text(one) for one in items)


def _item_text(item: JSON) -> str:
    """What an item of a result says: its text, or its JSON."""
    if isinstance(item, dict) and item.get("type") == "text" and isinstance(item.get("text"), str):
        return str(item["text"])
    return json.dumps(item, ensure_ascii=False)


def _character(found: re.Match[str]) -> str:
    code = found.group(1) or found.group(2) or found.group(3)
    if code is not None:
        number = int(code, 16)
        return chr(number) if number <= 0x10FFFF else found.group()
    letter = found.group(4)
    if letter == "\n":
        return ""
    return _LETTERS.get(letter, letter)
