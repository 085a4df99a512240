"""The text inside a tool's output: without envelopes, escapes and terminal codes, which a model does not need.

A tool's output often is a protocol's result object in Python notation, which contains the JSON of another result, which
contains the tool's own text. Every layer escapes the one inside it. Outputs that were cut off at a number of characters
are read as far as they go.
"""

from __future__ import annotations

import ast
import json
import re
import unicodedata
from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from typing import cast

from pydantic_core import from_json

from aether_context.canonical import JSON, plain
from aether_context.text.patterns import pattern

_NOT_PLAIN = pattern(r"[^ -~]")
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_MOST_LAYERS = 4
_MOST_PYTHON = 400_000
_ANSI = pattern(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]{0,2000}(?:\x07|\x1b\\)|[@-Z\\-_])")
_TEXT_CONTENT = pattern(r"TextContent\(type='text', text=")
_ENVELOPE = pattern(r"(?:meta=\S+ )?(?:structuredContent=\S+ )?content=\[TextContent\(type='text', text=")
_TEXT_ITEM = pattern(r'\{\s?"type":\s?"text",\s?"text":\s?(?=")')
_JSON_TEXT = pattern(r'"(?:[^"\\\n]|\\.)*')
_CUT_ESCAPE = pattern(r'(?<!\\)\\(?:u[0-9a-fA-F]{0,3}|[^"\\/bfnrtu].*)?$')
_LITERAL = pattern(r"""'((?:[^'\\]|\\.)*)(?:'|\\?\Z)|"((?:[^"\\]|\\.)*)(?:"|\\?\Z)""", re.DOTALL)
_ESCAPE = pattern(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
_LETTERS = {"\n": "", "n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "0": "\0"}
_ODD_ESCAPE = pattern(r"\\[^\\'\"nrtuxU]")
_STRING_LINE = pattern(r'^([ \t]*(?:"[^"\n]*"[ ]?:[ ]?)?")(.*)("[ ]?,?)$', re.MULTILINE)
_QUOTE = pattern(r'(?<!\\)"')
"""A line of JSON that is a text, and in it what its writer forgot to escape: a quote, as of inches."""
_JSON_LINE = pattern(r"^[ \t]*(?=[\[{])", re.MULTILINE)
"""Where JSON may begin that has words around it."""
_FENCE = pattern(r"^[ \t]*`{3,}\w*[ \t]*$", re.MULTILINE)
_MOST_STARTS = 8
_NUMBER = pattern(r'("[^"\\]*(?:\\.[^"\\]*)*"?)|-?\d[\d.eE+-]*', re.DOTALL)
"""A string, which is left as it is, or a number."""


def decoded(text: str) -> str:
    """The innermost text of an output; the output itself where it has no envelope.

    An envelope with further information, such as that the call failed, is kept.
    """
    for _ in range(_MOST_LAYERS):
        beginning = text[:200].lstrip()
        inner = None
        if _ENVELOPE.match(beginning):
            inner = _from_python_notation(text)
        elif (item := _TEXT_ITEM.match(beginning)) is not None:
            inner = _from_text_item(text.lstrip(), item.end())
        elif beginning[:1] == "{" and '"content"' in text[:200]:
            inner = _from_mcp_json(text)
        if inner is None:
            break
        text = inner
    return printable(text)


def printable(text: str) -> str:
    """A text without terminal codes and without the characters that a progress bar overwrote."""
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    if "\r" in text:
        # A terminal shows what follows a line's last carriage return, if anything does.
        lines = text.replace("\r\n", "\n").split("\n")
        text = "\n".join(line[line.rfind("\r", 0, len(line.rstrip("\r"))) + 1 :] for line in lines)
    return text


def escaped(text: str, kept: str = "") -> str:
    """A text with escapes for characters that move a cursor, hide or reorder text, but for those that are kept."""

    def escape(match: re.Match[str]) -> str:
        is_shown = match[0] in kept or unicodedata.category(match[0]) not in _UNSEEN
        return match[0] if is_shown else ascii(match[0])[1:-1]

    return _NOT_PLAIN.sub(escape, text)


_FLAG = "\U0001f3f4[\U000e0030-\U000e0039\U000e0061-\U000e007a]{3,6}\U000e007f"
_CONTROLS = "\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f"
_HIDDEN = pattern(f"{_FLAG}|[{_CONTROLS}\u202a-\u202e\u2066-\u2069\ud800-\udfff\U000e0000-\U000e007f]")
"""Flags of regions, which are left; else a control, a mark that reorders text, half of a surrogate pair, or a tag that
nobody sees."""


def visible(text: str) -> str:
    """A text with escapes for what a model reads and a person does not see: controls but tab and line ends, marks that
    embed, override or isolate a direction, lone surrogates, and tags outside of flags.

    Letters of any script, joiners of emoji and the marks of Arabic and Hebrew stay.
    """
    return _HIDDEN.sub(lambda match: match[0] if len(match[0]) > 1 else ascii(match[0])[1:-1], text)


def read_json(text: str, *, as_written: bool = False) -> tuple[JSON, bool] | None:
    """The value of a JSON text, and whether the text is complete; None where it is not JSON.

    A text that was cut off is read up to the cut.

    Args:
        as_written: whether numbers are read as texts, which keeps their digits.
    """
    number = str if as_written else None
    stripped = text.strip()
    if stripped[:1] not in ("{", "["):
        return None
    with suppress(ValueError, RecursionError):
        return json.loads(stripped, parse_float=number, parse_int=number), True
    if as_written:
        stripped = _NUMBER.sub(lambda match: match.group(1) or f'"{match.group()}"', stripped)
    # pydantic-core reads UTF-8 only, which cannot hold half of a surrogate pair.
    readable = stripped.encode("utf-8", "replace")
    try:
        from_json(readable)
    except ValueError as error:
        # Partial reading would silently stop at a missing comma, although more follows.
        if not str(error).startswith("EOF while parsing"):
            mended = _STRING_LINE.sub(lambda match: match[1] + _QUOTE.sub(r'\\"', match[2]) + match[3], stripped)
            return read_json(mended, as_written=as_written) if mended != stripped else None
    return from_json(readable, allow_partial="trailing-strings"), False


def read_inside(text: str, *, as_written: bool = False) -> JSON:
    """The JSON that a text mostly consists of, with the words around it; None where there is none.

    Args:
        as_written: as for `read_json`.
    """
    number = str if as_written else None
    decoder = json.JSONDecoder(parse_float=number, parse_int=number)
    for match in islice(_JSON_LINE.finditer(text[: len(text) // 5]), _MOST_STARTS):
        with suppress(ValueError, RecursionError):
            value, end = decoder.raw_decode(text, match.end())
            if 5 * (end - match.end()) < 4 * len(text):
                continue
            around = [_FENCE.sub("", words).strip() for words in (text[: match.end()], text[end:])]
            if not any(around):
                return cast(JSON, value)
            named: dict[str, JSON] = {"before": around[0], "json": value, "after": around[1]}
            return {name: item for name, item in named.items() if item != ""}
    return None


def read_python(text: str) -> JSON:
    """The object or list that a text is in Python notation; None where it is neither."""
    if len(text) > _MOST_PYTHON or _ODD_ESCAPE.search(text):  # an odd escape makes Python warn
        return None
    # Python 3.11 raises a SystemError where two threads read at the same moment.
    with suppress(ValueError, SyntaxError, TypeError, RecursionError, MemoryError, SystemError):
        value = ast.literal_eval(text)
        return plain(value) if isinstance(value, (dict, list)) else None
    return None


def _from_python_notation(text: str) -> str | None:
    """The texts of a result in Python notation; None where it is an error or has none."""
    if "isError=True" in text[-200:]:
        return None
    literals = [_LITERAL.match(text, start.end()) for start in _TEXT_CONTENT.finditer(text)]
    texts = [_ESCAPE.sub(_unescaped, match[1] or match[2] or "") for match in literals if match is not None]
    return "\n".join(texts) if texts else None


def _unescaped(match: re.Match[str]) -> str:
    if code := match[1] or match[2] or match[3]:
        return chr(int(code, 16)) if int(code, 16) <= 0x10FFFF else match[0]
    return _LETTERS.get(match[4], match[4])


def _from_mcp_json(text: str) -> str | None:
    """The texts of a result in the JSON of the Model Context Protocol; None where it holds anything else."""
    parsed = read_json(text)
    value = parsed[0] if parsed is not None else None
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


def _from_text_item(text: str, start: int) -> str | None:
    """The text of one item of such a result, with what stands behind it where that was cut off; None where the text is
    not one."""
    literal = _JSON_TEXT.match(text, start)
    behind = text[literal.end() :].strip() if literal is not None else ""
    if literal is None or (behind[:1] == '"' and behind[1:].strip() != "}"):
        return None
    with suppress(ValueError):
        inner: str = json.loads(f'{_CUT_ESCAPE.sub("", literal[0])}"')
        return inner if behind[:1] == '"' else "\n".join(filter(None, [inner, behind]))
    return None


def said_once(response: Mapping[str, JSON]) -> Mapping[str, JSON]:
    """A response without MCP's ``structuredContent``, where its texts say the same: an object, or what a server makes
    one of as ``result``."""
    structured, content = response.get("structuredContent"), response.get("content")
    if not isinstance(structured, dict) or not isinstance(content, list) or not content:
        return response
    texts = [item["text"] for item in content if isinstance(item, dict) and isinstance(item.get("text"), str)]
    if len(texts) < len(content):
        return response
    values: list[JSON] = []
    for text in texts:
        with suppress(ValueError, RecursionError):
            values.append(json.loads(text))
    same: list[JSON] = [*values[:1], {"result": texts[0]}, *({"result": value} for value in values[:1])]
    if len(texts) > 1:
        same = [{"result": list[JSON](texts)}, {"result": values}]
    if structured not in same:
        return response
    return {name: value for name, value in response.items() if name != "structuredContent"}
