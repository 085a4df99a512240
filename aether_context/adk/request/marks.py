"""What people and tools mark in a session, and where the model begins to read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.sessions.session import Session
from google.genai import types
from pydantic import BaseModel, ConfigDict, TypeAdapter

from aether_context.adk.request.reader import structure
from aether_context.conversation import registered_anchors, selected
from aether_context.conversation.turns import is_human
from aether_context.pack import Anchor, Content, Pack, valid
from aether_context.policy import AnchorSettings

# What people and tools mark in a session: contents that outlive others, and cuts asked for by hand.
#
#     state["aether:anchors"] = ["event-id", {"contains": "Never touch the ledger", "priority": 90}]
#     event.custom_metadata = {"aether:anchors": True}
#     state["aether:cut"] = {"session": "…", "id": "…"}
#
# What does not fit these forms is ignored.

ANCHORS = "aether:anchors"
CUT = "aether:cut"
_MOST_MARKS = 200
_CLIENT_ID = "adk-"


class _Mark(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    event: str = ""
    contains: str = ""
    priority: int | None = None
    description: str = ""


_MARK = TypeAdapter(_Mark)


def marks_of(state: Mapping[str, Any]) -> object:
    """A comparable stand-in for what the state says of anchors and cuts."""
    held = state.get(ANCHORS), state.get(CUT)
    return None if held == (None, None) else structure(list(held))


def is_marked(event: Event) -> bool:
    return bool(event.custom_metadata) and bool((event.custom_metadata or {}).get(ANCHORS))


def has_rules() -> bool:
    """Whether rules are registered, which have to see every content."""
    return bool(registered_anchors(AnchorSettings()))


def marked(
    session: Session,
    contents: Sequence[Content],
    positions: Sequence[int],
    settings: AnchorSettings,
    read: Callable[[types.Content], Content],
) -> list[Anchor]:
    """The contents that the session's state or an event's metadata marks.

    A content is an event's where it holds all of the event's parts; of several the latest. An event whose content is
    not in the request as it was said, another agent's for example, marks nothing.
    """
    if not settings.instruction_anchor:
        return []
    marks = list(_state_marks(session.state.get(ANCHORS)))
    named = {mark.event: mark for mark in marks if mark.event}
    found = [(mark, _containing(contents, mark.contains)) for mark in marks if mark.contains]
    for event in session.events:
        mark = named.get(event.id) or (_event_mark(event) if is_marked(event) else None)
        if mark is not None and event.content is not None and event.content.parts:
            found.append((mark, _holding(contents, read(_without_client_ids(event.content)))))
    return [
        Anchor(
            place=positions[at],
            kind="instruction_anchor",
            priority=settings.instruction_anchor if mark.priority is None else mark.priority,
            description=mark.description or mark.contains[:80] or "marked message",
        )
        for mark, at in found
        if at is not None
    ]


def ruled(
    contents: Sequence[Content], positions: Sequence[int], settings: AnchorSettings, problems: list[str]
) -> list[Anchor]:
    """What registered rules find; one that raises is noted among the problems."""
    found: list[Anchor] = []
    for rule in registered_anchors(settings):
        try:
            found += selected(rule, contents, positions)
        except Exception as error:
            problems.append(f"anchor rule {rule.description!r} failed: {type(error).__name__}")
    return found


def asked_of(state: Mapping[str, Any], session: str) -> str:
    """The name of the last cut that was asked for in this session by hand; empty where none was."""
    held = state.get(CUT)
    if not isinstance(held, Mapping) or held.get("session") != session or not isinstance(held.get("id"), str):
        return ""
    return str(held["id"])[:200]


def cut_request(session: str, name: str) -> dict[str, dict[str, str]]:
    """The change of a session's state that asks for a cut."""
    return {CUT: {"session": session, "id": name}}


def cut_now(session: Session) -> Event:
    """The event that asks for a cut at the session's next model call, whatever its size.

        await service.append_event(session, cut_now(session))

    Every agent of the session cuts once. Asking twice without an event in between is asking once.
    """
    last = session.events[-1].id if session.events else "start"
    return Event(author="user", actions=EventActions(state_delta=dict(cut_request(session.id, last))))


def _state_marks(value: object) -> Iterable[_Mark]:
    items = list(value)[:_MOST_MARKS] if isinstance(value, (list, tuple)) else []
    marks = (valid(_MARK, {"event": item} if isinstance(item, str) else item) for item in items)
    return (mark for mark in marks if mark is not None)


def _event_mark(event: Event) -> _Mark:
    return valid(_MARK, (event.custom_metadata or {})[ANCHORS]) or _Mark()


def _containing(contents: Sequence[Content], text: str) -> int | None:
    places = (at for at in range(len(contents) - 1, -1, -1) if text in contents[at].text)
    return next(places, None)


def _holding(contents: Sequence[Content], wanted: Content) -> int | None:
    wires = {part.wire for part in wanted.parts}
    places = (at for at in range(len(contents) - 1, -1, -1) if wires.issubset(part.wire for part in contents[at].parts))
    return next(places, None)


def _without_client_ids(content: types.Content) -> types.Content:
    """The content as most models are sent it: without the ids that ADK itself gave to calls."""
    return types.Content(role=content.role, parts=[_without_client_id(part) for part in content.parts or ()])


def _without_client_id(part: types.Part) -> types.Part:
    for name in ("function_call", "function_response"):
        held = getattr(part, name)
        if held is not None and (held.id or "").startswith(_CLIENT_ID):
            return part.model_copy(update={name: held.model_copy(update={"id": None})})
    return part


# Where the model begins to read: for the rule that a front end draws through a conversation.


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
        is_message = event.author == "user" and not event.get_function_responses()
        if not found and is_message and event.content is not None and read(event.content).digest == digest:
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
