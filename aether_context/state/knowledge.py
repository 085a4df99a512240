"""Writes notes, decisions, entities and evidence into a session's state, where `aether_context.state.read_state` reads
them.

    add_note(state, "The changelog starts at 1.7.", time=now, ttl_seconds=3600)
    add_decision(state, "Tables, not lists", reason="the reviewers compare rows", time=now)
    add_evidence(state, uri="artifact://tasks/42/report.md", summary="14 commits touch the API", covers=["a1"])

``state["knowledge"]`` is assigned anew each time, as plain JSON, since a session records assignments. It records each
value whole, so notes and summaries should be short. Unknown fields stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import ValidationError

from aether_context.canonical import hash_text, short
from aether_context.errors import KnowledgeError, listed
from aether_context.plans import PlanShape, parse_plan
from aether_context.plans.schema import EvidenceShape, KnowledgeShape, NoteShape, Problems, Shape, read_shape
from aether_context.state.board import WRITING, SessionState, acceptance_of, current_step, done_steps
from aether_context.state.candidates import read_state

_Shape = TypeVar("_Shape", bound=Shape)


def append_note(
    state: SessionState,
    text: str,
    *,
    time: float | None = None,
    ttl_seconds: float | None = None,
    step_id: str | None = None,
) -> NoteShape:
    """Writes a working note, in the place of one with the same text.

    Args:
        time: when it was made, seconds since 1970 UTC.
        ttl_seconds: how long it is true after that time.
        step_id: the step it belongs to. When that step is done, the note moves to it and is in no later pack.

    Returns:
        The note as it is in the state.

    Raises:
        KnowledgeError: the text is empty or too long, a time to live has no time to count from, or the step is not in
            the plan or is done.
    """
    if ttl_seconds is not None and time is None:
        raise KnowledgeError("ttl_seconds counts from the note's time: give time, too", field="ttl_seconds")
    if step_id and text.strip():
        plan = _plan(state)
        step_ids = dict.fromkeys(step.id for step in (*plan.steps, *filter(None, [plan.step])) if step.id)
        if step_id not in step_ids or step_id in done_steps(plan.steps):
            problem = "is done: leave step_id out, or name an open step"
            unknown = f"there is no step {step_id!r}: the steps are {listed(step_ids)}"
            raise KnowledgeError(f"step {step_id!r} {problem}" if step_id in step_ids else unknown, field="step_id")
    return _put_note(state, "note", text, time=time, ttl_seconds=ttl_seconds, step_id=step_id)


def add_decision(state: SessionState, text: str, *, reason: str = "", time: float | None = None) -> NoteShape:
    """Writes a decision into the log of decisions. It is kept when the step that it was made in is done.

    Raises:
        KnowledgeError: the text is empty or too long.
    """
    because = f" (because: {reason})" if text.strip() and reason.strip() else ""
    return _put_note(state, "decision", text + because, time=time)


def add_entity(state: SessionState, name: str, text: str, *, time: float | None = None) -> NoteShape:
    """Writes facts about somebody or something, in the place of earlier ones under that name.

    Raises:
        KnowledgeError: name or text is empty or too long.
    """
    _check_not_empty("an entity", name=name, text=text)
    id = f"entity_{short(hash_text(name.strip().casefold()))}"
    return _put_note(state, "entity", f"{name.strip()}: {text}", id=id, time=time)


def find_note(state: SessionState, id: str) -> NoteShape:
    """The working note with that id: one of the task, or one kept with a step.

    Raises:
        KnowledgeError: there is none.
    """
    plan = _plan(state)
    step_notes = [text for step in (*plan.steps, *filter(None, [plan.step])) for text in step.notes]
    notes = [*_listed(state, "notes")[1], *step_notes]
    named = [read_shape(NoteShape, note, "", Problems()) for note in notes if id and _id(NoteShape, note) == id]
    if not named or named[0] is None:
        names = listed(filter(None, (_id(NoteShape, note) for note in notes)))
        raise KnowledgeError(f"there is no note {id!r}: the notes are {names}", field="id")
    return named[0]


def add_evidence(
    state: SessionState, *, uri: str, summary: str, covers: Sequence[str] = (), time: float | None = None
) -> EvidenceShape:
    """Writes an evidence record, in the place of one with the same address and summary.

    Args:
        uri: address of its whole content.
        summary: what it shows, in a line or two.
        covers: ids of the acceptance items that it proves.
        time: when it was made, seconds since 1970 UTC.

    Returns:
        The record as it is in the state.

    Raises:
        KnowledgeError: address or summary is missing or too long, or ``covers`` names an item that no checklist has.
    """
    _check_not_empty("evidence", uri=uri, summary=summary)
    record = _shape(EvidenceShape, uri=uri, summary=summary, covers=covers, time=time)
    record = record.model_copy(update={"id": record.stable_id()})
    with WRITING:
        plan = _plan(state)
        # Items of the current step's checklist, then those of the other steps'.
        steps = [*filter(None, [current_step(plan)]), *plan.steps]
        item_ids = dict.fromkeys(item.id for step in steps for item in acceptance_of(plan, step))
        for unknown in (item for item in record.covers if item not in item_ids):
            choice = f"covers takes {listed(item_ids)}"
            message = f"no acceptance item is named {unknown!r}: {choice}" if item_ids else ""
            raise KnowledgeError(message or "the plan has no acceptance items: leave covers empty", field="covers")
        _put(state, "evidence", record)
    return record


def covered(state: SessionState) -> frozenset[str]:
    """Ids of the acceptance items that some evidence record in the state covers."""
    candidates = read_state({"knowledge": state.get("knowledge")}).candidates
    return frozenset(item for candidate in candidates for item in candidate.covers)


def _plan(state: SessionState) -> PlanShape:
    return parse_plan(state.get("plan")).plan or PlanShape()


def _check_not_empty(subject: str, **texts: str) -> None:
    for field, text in texts.items():
        if not text.strip():
            raise KnowledgeError(f"{subject} needs a {field}: give one that says something", field=field)


def _shape(kind: type[_Shape], **fields: Any) -> _Shape:
    try:
        return kind.model_validate({name: value for name, value in fields.items() if value is not None})
    except ValidationError as error:
        fault = error.errors()[0]
        field = str(fault["loc"][0])
        raise KnowledgeError(f"{field}: {fault['msg']}", field=field) from error


def _listed(state: SessionState, key: str) -> tuple[dict[str, Any], list[Any]]:
    """The knowledge in a state, and one of its lists."""
    knowledge = state.get("knowledge")
    if knowledge is not None and not isinstance(knowledge, Mapping):
        raise KnowledgeError("state['knowledge'] is not a mapping: replace it with one", field="knowledge")
    items = (knowledge or {}).get(key)
    if items is not None and not isinstance(items, (list, tuple)):
        raise KnowledgeError(f"state['knowledge']['{key}'] is not a list: replace it with one", field=key)
    return dict(knowledge or {}), list(items or ())


def _put_note(state: SessionState, kind: str, text: str, **fields: Any) -> NoteShape:
    _check_not_empty(f"{'an' if kind == 'entity' else 'a'} {kind}", text=text)
    note = _shape(NoteShape, text=text, **fields)
    note = note.model_copy(update={"id": note.stable_id(kind)})
    _put(state, KnowledgeShape.note_fields[kind], note)
    return note


def _put(state: SessionState, key: str, shape: Shape) -> None:
    """Replaces the item with the same id in a list, or adds one at its end."""
    with WRITING:
        knowledge, items = _listed(state, key)
        value = shape.model_dump(mode="json", exclude_defaults=True)
        ids = [_id(type(shape), item) for item in items]
        at = ids.index(value["id"]) if value["id"] in ids else len(items)
        state["knowledge"] = {**knowledge, key: [*items[:at], value, *items[at + 1 :]]}


def _id(kind: type[Shape], item: object) -> str:
    """The id of a note or a record as it stands in a state, one made from its text where it has none."""
    shape = read_shape(kind, item, "", Problems())
    return shape.stable_id() if isinstance(shape, (NoteShape, EvidenceShape)) else ""
