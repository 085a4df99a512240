"""The marks of people and tools in a session: contents that outlive others, and cuts asked for by hand.

state["aether:anchors"] = ["event-id", {"contains": "Never touch the ledger", "priority": 90}]
event.custom_metadata = {"aether:anchors": True}
state["aether:cut"] = {"session": "…", "id": "…"}
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.sessions.session import Session
from pydantic import BaseModel, ConfigDict, TypeAdapter

from aether_context.adk.call import ModelCall
from aether_context.adk.request.entries import Entries
from aether_context.adk.request.reader import Reader, without_client_ids
from aether_context.adk.session import ANCHORS, Records
from aether_context.conversation import ranked_anchors, registered_anchors, selected
from aether_context.conversation.turns import is_human
from aether_context.pack import Anchor, Content, Pack, valid
from aether_context.policy import KEPT_PRIORITY

CUT = "aether:cut"
_MOST_MARKS = 200


class _Mark(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    event: str = ""
    contains: str = ""
    priority: int | None = None
    description: str = ""


_MARK = TypeAdapter(_Mark)
_FORM = "give the id of an event, or contains, and a whole number for priority"


def cut_now(session: Session) -> Event:
    """The event that asks for a cut at the session's next model call, whatever its size.

        await service.append_event(session, cut_now(session))

    Every agent of the session cuts once. Asking twice without an event in between is asking once.
    """
    last = session.events[-1].id if session.events else "start"
    return Event(author="user", actions=EventActions(state_delta={CUT: {"session": session.id, "id": last}}))


def pin(session: Session, what: Event | str, priority: int = KEPT_PRIORITY) -> Event:
    """The event that keeps a message of a session through cuts, as far as the window has room for it.

        await service.append_event(session, pin(session, "Never touch the ledger"))

    Args:
        what: the event of the message, or words that it contains; of several messages the latest is meant.
        priority: pinned messages of lower priorities give way first.

    Raises:
        ValueError: the words are empty, or the event holds no content.
    """
    if isinstance(what, Event) and (what.content is None or not what.content.parts):
        raise ValueError(f"what = the event {what.id!r}: it holds no content that could be kept")
    if isinstance(what, str) and not what.strip():
        raise ValueError(f"what = {what!r}: give words that the message contains, or its event")
    mark = {"event": what.id} if isinstance(what, Event) else {"contains": what}
    marks = session.state.get(ANCHORS)
    earlier = [*marks] if isinstance(marks, (list, tuple)) else [marks] if marks else []
    return Event(author="user", actions=EventActions(state_delta={ANCHORS: [*earlier, {**mark, "priority": priority}]}))


def first_read(pack: Pack) -> int | None:
    """The index of the first human message that a pack sends, where the model begins to read; None where nothing before
    that message is missing."""
    request = pack.source.request
    sent_at = {origin for item in pack.contents for origin in (item.origin, *(origin for origin, _ in item.members))}
    first = next((at for at, content in enumerate(request.contents) if at in sent_at and is_human(content)), None)
    is_first = first is not None and request.positions[first] == first and sent_at.issuperset(range(first))
    return None if is_first else first


def anchors_of(
    call: ModelCall,
    records: Records,
    reader: Reader,
    contents: Sequence[Content],
    positions: Sequence[int],
    earlier: Entries,
    problems: list[str],
) -> tuple[Anchor, ...]:
    """The contents that the session's state, an event's metadata or a registered rule marks.

    A content is an event's where it holds all of the event's parts; of several the latest. An event whose content
    is not in the request as it was said, another agent's for example, marks nothing. A rule that raises is noted
    among the problems.

    Args:
        earlier: the entries before those that the host loaded.
    """
    settings, anchors = call.policy.conversation, list[Anchor]()
    priority = settings.anchor_priority("instruction_anchor")

    def add(mark: _Mark, is_meant: Callable[[Content], bool]) -> None:
        at = next((at for at in range(len(contents) - 1, -1, -1) if is_meant(contents[at])), None)
        if at is not None:
            rank = priority if mark.priority is None else mark.priority
            words = mark.description or mark.contains[:80] or "marked message"
            anchors.append(Anchor(place=positions[at], kind="instruction_anchor", priority=rank, description=words))

    values = call.state.get(ANCHORS) if priority else None
    items = values[-_MOST_MARKS:] if isinstance(values, (list, tuple)) else [values] if values else []
    marks = [valid(_MARK, {"event": item} if isinstance(item, str) else item) for item in items]
    problems += [f"state {ANCHORS}.{at} was ignored: {_FORM}" for at, mark in enumerate(marks) if mark is None]
    for mark in filter(None, marks):
        if text := mark.contains:
            add(mark, lambda content, text=text: text in content.text)  # type: ignore[misc]
    by_event = {mark.event: mark for mark in filter(None, marks) if mark.event}
    marked = by_event.keys() | records.marked if priority else ()
    for event in call.context.session.events if marked else ():
        if event.id in marked and event.content is not None and event.content.parts:
            mark_of = by_event.get(event.id) or valid(_MARK, (event.custom_metadata or {}).get(ANCHORS)) or _Mark()
            frozen = reader.content(without_client_ids(event.content), call.model)
            wires = {part.wire for part in frozen.parts}
            add(mark_of, lambda content, wires=wires: wires.issubset(part.wire for part in content.parts))  # type: ignore[misc]
    for at, position in enumerate(positions if priority else ()):
        entry = earlier[position] if position < len(earlier) else None
        if entry and (origin := entry.origin) and (origin.event in by_event or origin.mark):
            mark_of = by_event.get(origin.event) or valid(_MARK, origin.mark) or _Mark()
            add(mark_of, lambda content, marked_content=contents[at]: content == marked_content)  # type: ignore[misc]
    for rule in registered_anchors(settings):
        try:
            anchors += selected(rule, contents, positions)
        except Exception as error:
            problems.append(f"anchor rule {rule.description!r} failed: {type(error).__name__}")
    return ranked_anchors(anchors)
