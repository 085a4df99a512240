"""Contents in the form that every provider takes: tags stripped, duplicate responses gone, neighbours of one role
merged.

Three kinds of contents are kept apart, whatever their role is called: people's words, the model's, and responses of
tools.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from aether_context.conversation.content_json import content_of_parts, part_of
from aether_context.pack import Content, Part
from aether_context.text.pairing import pair_results

PLACEHOLDER = "[trimmed]"
"""What stands in a message with nothing left in it, and in the place of a text or a tool's response."""
STRIPPED_TAG = "checkpoint_id"
"""The name of the XML element that is taken out of every message, with its content."""
_OPENER, _CLOSER = f"<{STRIPPED_TAG}>", f"</{STRIPPED_TAG}>"


class Normal(NamedTuple):
    """A normalized content, and the indices of the ``sources`` that went into it.

    ``members`` says for each of its parts the index of the content that it comes from, and the part's index there.
    """

    content: Content
    sources: tuple[int, ...]
    members: tuple[tuple[int, int], ...]


def normalize(contents: Sequence[Content]) -> list[Normal]:
    """The contents with same-kind neighbours merged, each call answered once, and tags stripped.

    A content that needs none of it comes back as the same object. Of several responses to one call the last stays, at
    the place of the first. What goes beyond the calls answers them over again.
    """
    stripped = [*map(_stripped, contents)]
    normal: list[Normal] = []
    calls: Sequence[Content] = ()
    for _, members in groupby(range(len(stripped)), key=lambda at: _kind(stripped[at])):
        group = tuple(members)
        pieces = [(at, position, part) for at in group for position, part in enumerate(stripped[at].parts)]
        if stripped[group[0]].responses:
            pieces = _answered_once(pieces, calls, [stripped[at] for at in group])
        elif stripped[group[-1]].calls:
            calls = [stripped[at] for at in group]
        merged = stripped[group[0]]
        if len(group) > 1 or len(pieces) < len(merged.parts):
            merged = content_of_parts(merged.role, [part for _, _, part in pieces])
        normal.append(
            Normal(content=merged, sources=group, members=tuple((at, position) for at, position, _ in pieces))
        )
    return normal


def _kind(content: Content) -> tuple[str, str]:
    if content.responses:
        return ("tool", content.role)
    return ("human" if content.role == "user" and not content.calls else "model", content.role)


def _answered_once(
    pieces: Sequence[tuple[int, int, Part]], calls: Sequence[Content], results: Sequence[Content]
) -> list[tuple[int, int, Part]]:
    """The pieces with the last response to each call only, at the place of the first."""
    paired = (answer for pairs in pair_results([*calls, *results], again=True)[len(calls) :] for answer in pairs)
    # Other parts are known by where they stand, so that each of them is kept.
    answered: dict[tuple[str, int], tuple[int, int, Part]] = {}
    for at, number in enumerate(pieces):
        call = next(paired).call if number[2].kind == "response" else None
        answered[("at", at) if call is None else ("call", call.number)] = number
    return [*answered.values()]


def _stripped(content: Content) -> Content:
    parts = list(content.parts)
    for at, part in enumerate(parts):
        if part.kind == "text" and (text := _without_elements(part.text)) != part.text:
            parts[at] = part_of({"text": text if text.strip() else PLACEHOLDER})
    return content if tuple(parts) == content.parts else content_of_parts(content.role, parts)


def _without_elements(text: str) -> str:
    """A text without the elements that are closed; from a tag that opens one, the next that closes it counts."""
    texts: list[str] = []
    position = 0
    while (start := text.find(_OPENER, position)) >= 0 and (end := text.find(_CLOSER, start)) >= 0:
        texts.append(text[position:start])
        position = end + len(_CLOSER)
    return "".join([*texts, text[position:]])
