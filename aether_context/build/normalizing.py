"""The outgoing contents, normalized at the very end, so that every stage before sees the host's own."""

from __future__ import annotations

from collections.abc import Sequence

from aether_context.conversation import Normal, normalize
from aether_context.pack import Outgoing
from aether_context.policy import StablePrefixSettings
from aether_context.tokens.cache import Tally


def normalized(contents: Sequence[Outgoing], settings: StablePrefixSettings, tally: Tally) -> tuple[Outgoing, ...]:
    """The contents with same-kind neighbours merged, each call answered once, and tags stripped.

    One that needs none of it stays the same object.
    """
    found = normalize([item.content for item in contents], strip_tags=settings.strip_tags, empty=settings.placeholder)
    return tuple(_outgoing(contents, one, tally) for one in found)


def _outgoing(contents: Sequence[Outgoing], normal: Normal, tally: Tally) -> Outgoing:
    first = contents[normal.sources[0]]
    if normal.content is first.content:
        return first
    return Outgoing(
        content=normal.content,
        raw=first.raw,
        origin=first.origin,
        outcome="merged",
        tokens=tally.content(normal.content),
        members=tuple(_member(contents[index], place) for index, place in normal.members),
    )


def _member(item: Outgoing, place: int) -> tuple[int, int]:
    """Where a part of an outgoing content comes from: origin and place there, -1 for what was made here."""
    if item.members:
        return item.members[place]
    if item.origin < 0:
        return (-1, -1)
    if item.outcome != "payload":
        return (item.origin, place)
    others = [at for at, part in enumerate(item.raw.parts) if part.kind != "text"]
    return (item.origin, others[place - 1] if place else -1)
