"""Contents in the form that every provider takes: tags stripped, duplicate responses gone, neighbours of one role
merged.

Three kinds of contents are kept apart, whatever their role is called: people's words, the model's, and responses of
tools.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from aether_context.conversation import is_human
from aether_context.pack import Content, Part
from aether_context.wire import content_of_parts, part_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Normal:
    """A normalized content, and the indices of the ``sources`` that went into it.

    ``members`` says for each of its parts the index of the content that it comes from, and the part's index there.
    """

    content: Content
    sources: tuple[int, ...]
    members: tuple[tuple[int, int], ...]


def normalize(contents: Sequence[Content], *, strip_tags: Sequence[str] = (), empty: str = "[trimmed]") -> list[Normal]:
    """The contents with same-kind neighbours merged, each call answered once, and tags stripped.

    A content that needs none of it comes back as the same object. Of several responses to one call the last stays, at
    the place of the first. The call is known by the response's id; without one, by name and position: the n-th response
    of a name answers the n-th call of that name before it, and what goes beyond the calls answers them over again.

    Args:
        strip_tags: names of XML elements that are taken out, with what is between their tags.
        empty: what stands for a message with nothing left in it.
    """
    stripped = [_stripped(content, tuple(strip_tags), empty) for content in contents]
    normal: list[Normal] = []
    asked: Sequence[Part] = ()
    for group in _groups(stripped):
        pieces = [(at, place, part) for at in group for place, part in enumerate(stripped[at].parts)]
        if stripped[group[0]].responses:
            pieces = _answered_once(pieces, asked)
        elif stripped[group[-1]].calls:
            asked = [part for at in group for part in stripped[at].calls]
        whole = stripped[group[0]]
        if len(group) > 1 or len(pieces) < len(whole.parts):
            whole = content_of_parts(whole.role, [part for _, _, part in pieces])
        members = tuple((at, place) for at, place, _ in pieces)
        normal.append(Normal(content=whole, sources=tuple(group), members=members))
    return normal


def _groups(contents: Sequence[Content]) -> Iterable[list[int]]:
    """Runs of neighbours of one kind and role."""
    group: list[int] = []
    for at, content in enumerate(contents):
        if group and _kind(content) != _kind(contents[at - 1]):
            yield group
            group = []
        group.append(at)
    if group:
        yield group


def _kind(content: Content) -> tuple[str, str]:
    if content.responses:
        return ("tool", content.role)
    return ("human" if is_human(content) else "model", content.role)


def _answered_once(pieces: Sequence[tuple[int, int, Part]], asked: Sequence[Part]) -> list[tuple[int, int, Part]]:
    """The pieces with the last response to each call only, at the place of the first."""
    calls: dict[str, int] = defaultdict(int)
    for call in asked:
        calls[call.name] += not call.call_id
    seen: dict[str, int] = defaultdict(int)
    places: dict[tuple[str, str, int], int] = {}
    out: list[tuple[int, int, Part]] = []
    for piece in pieces:
        part = piece[2]
        if part.kind != "response":
            out.append(piece)
            continue
        key = ("id", part.call_id, 0)
        if not part.call_id:
            number = seen[part.name]
            seen[part.name] += 1
            key = ("name", part.name, number % calls[part.name] if calls[part.name] else number)
        if key in places:
            out[places[key]] = piece
        else:
            places[key] = len(out)
            out.append(piece)
    return out


def _stripped(content: Content, tags: tuple[str, ...], empty: str) -> Content:
    if not any(f"<{tag}>" in part.text for part in content.parts for tag in tags if part.kind == "text"):
        return content
    parts = [_without(part, tags, empty) if part.kind == "text" else part for part in content.parts]
    changed = any(one is not other for one, other in zip(parts, content.parts, strict=True))
    return content_of_parts(content.role, parts) if changed else content


def _without(part: Part, tags: tuple[str, ...], empty: str) -> Part:
    text = _elements(tags).sub("", part.text)
    return part if text == part.text else part_of({"text": text if text.strip() else empty})


@lru_cache(maxsize=64)
def _elements(tags: tuple[str, ...]) -> re.Pattern[str]:
    names = "|".join(re.escape(tag) for tag in tags)
    return re.compile(rf"<({names})>.*?</\1>", re.DOTALL)
