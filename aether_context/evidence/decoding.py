"""The text inside a tool's output: without envelopes, escapes and terminal codes, which carry nothing a model needs.

A tool's output often is a text in the Python notation of a protocol's result object, in which stands the JSON of
another, in which stands the text that the tool meant. Every layer escapes the one inside it. Outputs that somebody cut
off at a number of characters are read as far as they go.
"""

from __future__ import annotations

import json
import re
from json.decoder import scanstring  # type: ignore[attr-defined]

from aether_context.canonical import JSON

MOST_LAYERS = 4
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]{0,2000}(?:\x07|\x1b\\)|[@-Z\\-_])")
_REDRAWN = re.compile(r"[^\n]*\r(?=[^\n\r])")
_TEXT_CONTENT = re.compile(r"TextContent\(type='text', text=")
_ENVELOPE = re.compile(r"(?:meta=\S+ )?(?:structuredContent=\S+ )?content=\[TextContent\(type='text', text=")
_LITERAL = re.compile(r"""'((?:[^'\\]|\\.)*)(?:'|\\?\Z)|"((?:[^"\\]|\\.)*)(?:"|\\?\Z)""", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
_LETTERS = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "0": "\0"}
_SPACE = re.compile(r"[ \t\n\r]*")
_ATOM = re.compile(r"-?\d[\d.eE+-]*|true|false|null|NaN|-?Infinity")
_DEEPEST = 60


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
        text = _REDRAWN.sub("", text.replace("\r\n", "\n"))
    return text


def read_json(text: str) -> tuple[JSON, bool] | None:
    """The value of a JSON text, and whether it is whole; None where it is not JSON.

    Of a text that was cut off, everything up to the cut is read.
    """
    stripped = text.strip()
    if stripped[:1] not in ("{", "["):
        return None
    try:
        return json.loads(stripped), True
    except (ValueError, RecursionError):
        pass
    if stripped[-1:] in ("}", "]") and stripped.count("\n") > 1 and not stripped.startswith(('{"', "[{", "{\n", "[\n")):
        return None
    reader = _CutOff(stripped)
    try:
        value = reader.value(0)
    except (ValueError, IndexError, RecursionError):
        return None
    return (value, False) if reader.reached_end else None


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
    found = [_LITERAL.match(text, one.end()) for one in _TEXT_CONTENT.finditer(text)]
    texts = [_unescaped(one.group(1) if one.group(1) is not None else one.group(2)) for one in found if one is not None]
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


def _unescaped(literal: str) -> str:
    return _ESCAPE.sub(_character, literal) if "\\" in literal else literal


def _character(found: re.Match[str]) -> str:
    code = found.group(1) or found.group(2) or found.group(3)
    if code is not None:
        number = int(code, 16)
        return chr(number) if number <= 0x10FFFF else found.group()
    letter = found.group(4)
    if letter == "\n":
        return ""
    return _LETTERS.get(letter, letter)


class _CutOff:
    """Reads JSON that ends before its end; what is open there is closed."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    @property
    def reached_end(self) -> bool:
        return _SPACE.match(self._text, self._at).end() >= len(self._text)  # type: ignore[union-attr]

    def value(self, depth: int) -> JSON:
        if depth > _DEEPEST:
            raise ValueError("too deep")
        mark = self._peek()
        if mark == "{":
            return self._members(depth)
        if mark == "[":
            return self._elements(depth)
        if mark == '"':
            return self._string()
        found = _ATOM.match(self._text, self._at)
        if found is None:
            if self._is_cut_word():
                self._at = len(self._text)
                return None
            raise ValueError("not JSON")
        self._at = found.end()
        try:
            return json.loads(found.group())
        except ValueError:
            if self.reached_end:
                return found.group()
            raise

    def _members(self, depth: int) -> JSON:
        self._at += 1
        held: dict[str, JSON] = {}
        while not self._closes("}"):
            if self._peek() != '"':
                raise ValueError("not a key")
            key = self._string()
            if self.reached_end:
                held[key] = None
                break
            if self._peek() != ":":
                raise ValueError("no colon")
            self._at += 1
            held[key] = None if self.reached_end else self.value(depth + 1)
            self._comma("}")
        return held

    def _elements(self, depth: int) -> JSON:
        self._at += 1
        held: list[JSON] = []
        while not self._closes("]"):
            held.append(self.value(depth + 1))
            self._comma("]")
        return held

    def _string(self) -> str:
        try:
            said, self._at = scanstring(self._text, self._at + 1, False)
        except ValueError:
            if re.compile(r'(?:[^"\\]|\\.)*"', re.DOTALL).match(self._text, self._at + 1):
                raise
            said = self._text[self._at + 1 :]
            self._at = len(self._text)
            said = re.sub(r"\\u[0-9a-fA-F]{0,3}\Z|(?<!\\)(\\\\)*\\\Z", r"\1", said)
            return str(json.loads(f'"{said}"', strict=False))
        return str(said)

    def _closes(self, mark: str) -> bool:
        if self.reached_end:
            return True
        if self._peek() == mark:
            self._at += 1
            return True
        return False

    def _comma(self, closing: str) -> None:
        if self.reached_end or self._peek() == closing:
            return
        if self._peek() != ",":
            raise ValueError("no comma")
        self._at += 1

    def _is_cut_word(self) -> bool:
        rest = self._text[self._at :]
        return len(rest) < 6 and any(word.startswith(rest) for word in ("true", "false", "null", "-"))

    def _peek(self) -> str:
        self._at = _SPACE.match(self._text, self._at).end()  # type: ignore[union-attr]
        return self._text[self._at]
