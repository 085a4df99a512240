"""The ledger of what an agent did: a line in the summary for each call that a cut took, with the short result of it.

An act is a call whose name or result tells of a change, or whose tool the policy says acts. Acts and failed calls stay
while there is room, of other calls those with a short result. The oldest leave first, and other calls before acts.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from aether_context.canonical import JSON, canonical_json
from aether_context.conversation.orders import rule
from aether_context.pack import Content, Part, Quote, with_content
from aether_context.text import Counts
from aether_context.text.decoding import decoded
from aether_context.text.json_lines import read
from aether_context.text.pairing import pair_results

_DID, _FAILED, _RETURNED = TITLES = ("- did: ", "- failed: ", "- returned: ")
"""How the lines of acts, of failed calls and of others begin."""
_SHORT = 400
"""Characters of a short result, which is quoted whole."""
_LONGEST_RESULT, _LONGEST_ARGUMENTS, _LONGEST_TEXT = 120, 160, 80
"""Characters that are quoted of an act's or a failed call's longer result, of arguments, and of each text in either."""
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
"""A word of a name, also of one in camel case."""


def acts_of(contents: Sequence[Content], acting: Collection[str] = ()) -> list[str]:
    """The lines of the calls in contents that were answered there, in the order of their results.

    Args:
        acting: tools that act, whatever they are called.
    """
    lines = (
        _line(content, part, call.part.text, part.name in acting)
        for content, results in zip(contents, pair_results(contents), strict=True)
        for part, call in results
        if call is not None and not _is_silent(part)
    )
    return list(dict.fromkeys(filter(None, lines)))


def fitting(lines: Sequence[str], most_acts: int, most_others: int, *, counter: Counts) -> str:
    """The lines of a ledger for which there is room, in their order: the latest acts and errors, and the latest of the
    others.

    Args:
        most_acts: most tokens of acts and errors.
        most_others: most tokens of the others.
    """
    places, room = list[int](), {True: most_others, False: most_acts}
    for at, tokens in reversed([*enumerate(counter.count_all(lines))]):
        is_other = lines[at].startswith(_RETURNED)
        if tokens < room[is_other]:
            places.append(at)
            room[is_other] -= tokens + 1
    return "\n".join(lines[at] for at in sorted(places))


def is_act(bullet: str) -> bool:
    """Tells whether a bullet is a line of a ledger."""
    return bullet.startswith(TITLES)


def _is_silent(part: Part | Quote) -> bool:
    """Tells whether a result has another place in a summary or a request, or is none of the world outside."""
    is_other = any(rule(use).fullmatch(part.name) for use in ("todo_tools", "silent"))
    return is_other or getattr(part, "is_instruction", False)


@with_content
def _line(_: Content, part: Part | Quote, arguments: str, is_acting: bool) -> str:
    """The line of a call, by a result in a content; empty where it is neither an act nor an error, and its result is
    long."""
    tool, agent, response = part.name, getattr(part, "agent", ""), part.text
    is_short = len(response) <= _SHORT
    result = _written(response, *((_SHORT, _SHORT) if is_short else (_LONGEST_RESULT, _LONGEST_TEXT)))
    if rule("fails").search(result):
        title = _FAILED
    elif is_acting or _tells_of_change(tool, result if is_short else ""):
        title = _DID
    elif is_short:
        title = _RETURNED
    else:
        return ""
    call = f"{agent}'s {tool}" if agent else tool
    call += f"({_written(arguments, _LONGEST_ARGUMENTS, _LONGEST_TEXT)})"
    return f"{title}{call} → {result}" if result else f"{title}{call}"


def _tells_of_change(tool: str, result: str) -> bool:
    """Tells whether a tool's name, or else a short result of it, tells of a change."""
    kinds = (use for word in _WORD.findall(tool) for use in ("acts", "reads") if rule(use).fullmatch(word))
    kind = next(kinds, "")
    return kind == "acts" or (not kind and rule("changed").search(result) is not None)


def _written(text: str, max_characters: int, longest_text: int) -> str:
    """JSON, or another text, on one line without the signs of JSON: all of it and each text in it without its middle
    where it is longer."""
    value = read(decoded(text))
    line = _plain(text if value is None else value, longest_text)
    return _clipped(line.removeprefix("{").removesuffix("}"), max_characters)


def _plain(value: JSON, longest_text: int) -> str:
    if isinstance(value, dict):
        # What is nested, and long, stands behind the rest.
        fields = [(key, item) for key, item in value.items() if item is not None]
        fields.sort(key=lambda field: isinstance(field[1], (dict, list)))
        if [key for key, _ in fields] == ["result"]:
            return _plain(value["result"], longest_text)
        if value.get("type") == "text" and "text" in value:  # a text of the Model Context Protocol
            return _plain(value["text"], longest_text)
        return f"{{{', '.join(f'{key}: {_plain(item, longest_text)}' for key, item in fields)}}}"
    if isinstance(value, list):
        items = [_plain(item, longest_text) for item in value]
        return items[0] if len(items) == 1 else f"[{', '.join(items)}]"
    if isinstance(value, str):
        inner = read(text := decoded(value))
        return _clipped(" ".join(text.split()), longest_text) if inner is None else _plain(inner, longest_text)
    return "" if value is None else canonical_json(value)


def _clipped(text: str, max_characters: int) -> str:
    """A text without its middle where it is longer: an error says at its end what it is."""
    head, tail = 2 * max_characters // 3, max_characters // 3
    return text if len(text) <= max_characters else f"{text[:head]} … {text[-tail:]}"
