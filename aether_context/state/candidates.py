"""A session's state as values of the pipeline: the step that its plan is at, and candidates for a pack."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from aether_context.canonical import hash_text
from aether_context.pack import Candidate, Step, Validity, values_of
from aether_context.plans import PlanShape, StepShape, parse_plan
from aether_context.plans.parsing import lists_tools
from aether_context.plans.schema import LONG_AGO, KnowledgeShape, NoteShape, Problems, opened, read_shape, read_tools
from aether_context.state.board import acceptance_of, current_step, done_steps, next_step

_ROLES = Path(__file__).with_name("roles.json").read_text(encoding="utf-8")
ROLES: Mapping[str, tuple[str, ...]] = {role: tuple(lines) for role, lines in json.loads(_ROLES).items()}
"""What three common roles are told, by name in lower case; any other role is passed on in its own words."""
_CONTENT_NAME = re.compile(r"c\d+_[0-9a-f]{8}")


class PlannedCall(NamedTuple):
    """A session's state as a model call uses it. ``problems`` name the places of ignored values, not the values."""

    step: Step = Step()
    validity: Validity = "unplanned"
    invalid_reason: str = ""
    profile: str | None = None
    candidates: tuple[Candidate, ...] = ()
    problems: tuple[str, ...] = ()


def read_state(state: Mapping[str, Any], worker: str = "", *, plans: bool = False, completed: str = "") -> PlannedCall:
    """The step and the candidates in a session's state. Each field is read on its own, so a wrong one affects no other.

    Where the step, its acceptance list or its tools are given but cannot be read, the plan is invalid. Where the tools,
    or a value that may hold them, cannot be read, the step has no tools. What a plan says under other keys, or a text
    that is no plan, is a candidate of the memory layer.

    Args:
        worker: the agent that asks. A step that it has claimed is preferred to steps that others have claimed.
        plans: whether it writes the plan. Then it is given no step, but what cannot be read of the plan that is there.
        completed: the id of a step that is done, and that the agent keeps all the same, since it has yet to answer.
    """
    if plans:
        old, knowledge_only = read_state({"plan": state.get("plan")}), read_state({"knowledge": state.get("knowledge")})
        lacks = [old.invalid_reason, *(problem.removeprefix("state ") for problem in old.problems)]
        notice = _extra_text("plan", f"the plan that is there cannot be read in full: {'; '.join(lacks)}")
        candidates = (*knowledge_only.candidates, notice) if old.invalid_reason else knowledge_only.candidates
        return knowledge_only._replace(candidates=candidates)
    parsed = parse_plan(state.get("plan"))
    problems = Problems(parsed.problems, parsed.rejected)
    tools = read_tools([state.get("tools")], "tools", problems)
    knowledge = KnowledgeShape()
    if isinstance(opened(state.get("knowledge")), Mapping):
        knowledge = read_shape(KnowledgeShape, state["knowledge"], "knowledge", problems) or knowledge
    elif state.get("knowledge") is not None:
        problems.reject("knowledge", "it is not a mapping")
    plan, faults = parsed.plan, list(parsed.faults)
    extra_texts = [_extra_text(key, text) for key, text in parsed.extra_text]
    if plan is None:
        return PlannedCall(
            step=Step(tools=() if parsed.may_list_tools else tools),
            validity="invalid" if faults else "unplanned",
            invalid_reason="; ".join(faults),
            candidates=unique([*_candidates(knowledge), *extra_texts]),
            problems=problems.messages,
        )
    active = next((step for step in plan.steps if completed and step.id == completed), current_step(plan, worker))
    current = active or StepShape()
    skipped: list[str] = []
    if plan.step is None and not plan.current_step and current.status not in ("claimed", "done"):
        # The step is current only by its position: an unreadable item before it may be the current one.
        position = plan.steps.index(active) if active is not None else len(plan.steps)
        skipped = [path for path, steps_before in parsed.skipped_steps if steps_before <= position]
    step = _step(plan, current, tools)
    finished = bool(plan.steps) and plan.step is None and all(step.status == "done" for step in plan.steps)
    may_list_tools = parsed.may_list_tools or (skipped and active is None)
    if step.tools is None and (may_list_tools or (not step.text and not finished and lists_tools(state.get("plan")))):
        step = replace(step, tools=())
    if step.tools == () and any(path.endswith("tools") for path in problems.rejected):
        faults.append("the step's tools cannot be read")
    faults += [f"{path} cannot be read" for path in skipped]
    lacking = [name for name, value in (("step", step.text), ("acceptance list", step.acceptance)) if not value]
    if lacking and not (finished and not step.text):
        faults.append("the plan has no " + " and no ".join(lacking))
    checkpoints = [current, *(step for step in plan.steps if step.id in current.depends_on)]
    notes = [_text_candidate(text, "note") for step in checkpoints for text in step.notes]
    return PlannedCall(
        step=step,
        validity="invalid" if faults else "valid",
        invalid_reason="; ".join(dict.fromkeys(faults)),
        profile=current.profile or plan.profile,
        candidates=unique([*_candidates(knowledge, done_steps(plan.steps)), *notes, *extra_texts]),
        problems=problems.messages,
    )


def _extra_text(key: str, text: str) -> Candidate:
    """A plan's text beside its fields, as a memory that every pack has."""
    return replace(_text_candidate(text, "plan"), speaker=key)


def _step(plan: PlanShape, step: StepShape, tools: tuple[str, ...] | None) -> Step:
    step_limits, plan_limits = step.constraints, plan.constraints
    risk, role = step_limits.risk or plan_limits.risk, step.role or plan.role
    constraints = [*dict.fromkeys([*step_limits.notes, *plan_limits.notes])]
    constraints += [f"risk: {risk}"] if risk is not None else []
    calls, questions = step.expected_tool_calls, step.open_questions
    return Step(
        **values_of(plan, "task_id", "task", "goal", "stop_when"),
        step_id=step.id,
        text=step.text,
        role=role,
        role_lines=ROLES.get(role.strip().lower(), ()),
        acceptance=acceptance_of(plan, step),
        constraints=tuple(constraints),
        expected_tool_calls=calls if calls is not None else plan.expected_tool_calls,
        risk=risk,
        open_questions=questions if questions is not None else plan.open_questions,
        next=step.next or plan.next or tuple(filter(None, [next_step(plan, step)])),
        tools=next((names for names in (step.tools, plan.tools, tools) if names is not None), None),
    )


def _candidates(knowledge: KnowledgeShape, done: frozenset[str] = frozenset()) -> list[Candidate]:
    sources = {source: getattr(knowledge, name) for source, name in KnowledgeShape.note_fields.items()}
    notes = (_note_candidate(note, source, done) for source, shapes in sources.items() for note in shapes)
    evidence = [
        Candidate(
            id=record.stable_id(),
            layer="evidence",
            source="state",
            text=record.summary,
            **values_of(record, "digest", "time", "uri", "covers"),
            content_hash=record.hash,
            kind="app_note",
        )
        for record in knowledge.evidence
    ]
    return [*notes, *evidence]


def _text_candidate(text: str, source: str) -> Candidate:
    """A text as a memory, like a note that says nothing else."""
    return _note_candidate(NoteShape.model_construct(None, text=text), source)


def _note_candidate(note: NoteShape, source: str, done: frozenset[str] = frozenset()) -> Candidate:
    """A note as a candidate. It expires with its step, at its time ``expires``, or after its ``ttl_seconds``."""
    ttl_end = note.time + note.ttl_seconds if note.time is not None and note.ttl_seconds is not None else None
    expires = min((time for time in (note.expires, ttl_end) if time is not None), default=None)
    return Candidate(
        id=note.stable_id(source),
        layer="memory",
        source=source,
        text=note.text,
        digest=hash_text(note.text),
        time=note.time,
        expires=LONG_AGO if note.step_id in done else expires,
        kind="preference" if note.kind == "preference" else "app_note",
    )


def unique(candidates: Iterable[Candidate]) -> tuple[Candidate, ...]:
    """The candidates with unique ids. One with the same id and text as another is left out."""
    by_name: dict[str, Candidate] = {}
    taken: set[tuple[str, str]] = set()
    numbers: dict[str, int] = {}
    for candidate in candidates:
        name = f"{candidate.source}_{candidate.id}" if _CONTENT_NAME.fullmatch(candidate.id) else candidate.id
        if (name, candidate.digest) in taken:
            continue
        taken.add((name, candidate.digest))
        number = numbers.get(candidate.id, 1)
        while name in by_name and by_name[name].digest != candidate.digest:
            number += 1
            name = f"{candidate.id}_{number}"
        numbers[candidate.id] = number
        by_name.setdefault(name, candidate if candidate.id == name else replace(candidate, id=name))
    return tuple(by_name.values())
