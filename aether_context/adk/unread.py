"""Where the model begins to read: for the rule that a front end draws through a conversation."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from google.adk.events.event import Event
from google.genai import types

from aether_context.conversation.turns import is_human
from aether_context.pack import Content, Pack


def last_unread(pack: Pack, events: Sequence[Event], read: Callable[[types.Content], Content]) -> Event | None:
    """The event before the first human message that a pack sends; None where it is the session's first one.

    Args:
        read: the frozen form of an event's content.
    """
    first = _first_sent(pack)
    if first is None:
        return None
    contents = pack.source.request.contents
    digest = contents[first].digest
    left = sum(content.digest == digest for content in contents[first:])
    before: Event | None = None
    found = False
    for event in reversed(events):
        if found and event.content is not None:
            before = event
            break
        if not found and _is_message(event) and event.content is not None and read(event.content).digest == digest:
            left -= 1
            found = left == 0
    return before


def _first_sent(pack: Pack) -> int | None:
    """The index of the first human message that is sent; None where nothing before it is missing."""
    request = pack.source.request
    sent = {origin for one in pack.contents for origin in (one.origin, *(origin for origin, _ in one.members))}
    first = next((at for at, content in enumerate(request.contents) if at in sent and is_human(content)), None)
    if first is None or (request.positions[first] == first and sent.issuperset(range(first))):
        return None
    return first


def _is_message(event: Event) -> bool:
    return event.author == "user" and not event.get_function_responses()
