"""What an application puts into a session's state: ``plan``, ``tools`` and ``knowledge``.

    state["plan"] = {"task_id": "42", "goal": "…", "step": {"id": "3", "text": "…", "acceptance": ["…"]}}
    state["tools"] = ["search_web", "file_read"]
    state["knowledge"] = {"notes": ["…"], "evidence": [{"uri": "artifact://…", "summary": "…"}]}

What does not fit these models is reported and ignored; it never stops a run. Fields that are not named here belong to
the application and are left alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from aether_context.canonical import hash_text, short
from aether_context.pack import AcceptanceItem, Candidate, Step, Validity

_T = TypeVar("_T")
_MOST_TEXT = 20_000


class _Shape(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True, coerce_numbers_to_str=True)


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _as_text(value: object) -> object:
    return {"text": value} if isinstance(value, str) else value


def _as_names(value: object) -> object:
    return value["names"] if isinstance(value, Mapping) and "names" in value else value


Time = Annotated[float, Field(ge=-62_135_596_800, le=253_402_300_799, allow_inf_nan=False)]
Text = Annotated[str, Field(max_length=_MOST_TEXT)]
Lines = Annotated[tuple[Text, ...], BeforeValidator(_as_list)]


class AcceptanceShape(_Shape):
    """One line of a checklist; a string stands for its text."""

    id: str = ""
    """Name of the item; ``a1``, ``a2``, … by position where it has none."""
    text: Text
    """What has to be true."""
    needs_evidence: bool = False
    """Whether only proof completes it."""


Acceptance = Annotated[tuple[Annotated[AcceptanceShape, BeforeValidator(_as_text)], ...], BeforeValidator(_as_list)]


class StepShape(_Shape):
    """The current step; a string stands for its text."""

    id: str = ""
    """Name of the step."""
    text: Text = ""
    """What is to be done now."""
    role: str = ""
    """Who does it: Planner, Operator, Reviewer, or a name of your own."""
    acceptance: Acceptance = ()
    """When it is done."""
    tools: Annotated[tuple[str, ...] | None, BeforeValidator(_as_list)] = None
    """The tools it needs, by name."""


class ConstraintShape(_Shape):
    """Limits of the work; a list of strings stands for ``notes``."""

    token_budget: int | None = Field(default=None, ge=0)
    """Tokens that the step may cost."""
    latency_seconds: float | None = Field(default=None, ge=0)
    """Time that the step may take."""
    risk: Literal["low", "medium", "high"] | None = None
    """What a mistake would cost."""
    notes: Lines = ()
    """Anything else."""


def _as_constraints(value: object) -> object:
    return {"notes": value} if isinstance(value, (str, list, tuple)) else value


class PlanShape(_Shape):
    """``state["plan"]``: the task, and the step the agent is at."""

    task_id: str = ""
    """Name of the task."""
    task: Text = ""
    """The task in a line or two."""
    goal: Text = ""
    """What the whole plan is for."""
    step: Annotated[StepShape | None, BeforeValidator(_as_text)] = None
    """The current step."""
    acceptance: Acceptance = ()
    """The current step's checklist, where the step does not carry it."""
    role: str = ""
    """The current role, where the step does not carry it."""
    constraints: Annotated[ConstraintShape, BeforeValidator(_as_constraints)] = ConstraintShape()
    """Limits of the work."""
    expected_tool_calls: int | None = Field(default=None, ge=0)
    """Tool calls that the step is expected to take."""
    open_questions: Annotated[tuple[Text, ...] | None, BeforeValidator(_as_list)] = None
    """What is still to be clarified."""
    next: Lines = ()
    """What comes after this step."""
    stop_when: Lines = ()
    """Conditions that end it."""
    profile: Literal["chat", "coding", "research", "requirements", "test_cases"] | None = None
    """The policy profile for this plan."""


class NoteShape(_Shape):
    """A working note; a string stands for its text."""

    id: str = ""
    """Name of the note."""
    text: Text
    """What it says."""
    time: Time | None = None
    """When it was made, seconds since 1970 UTC."""
    expires: Time | None = None
    """When it stops being true, seconds since 1970 UTC."""


class EvidenceShape(_Shape):
    """A piece of proof; a string stands for its URI."""

    id: str = ""
    """Name of the record."""
    uri: str = ""
    """Where the whole of it is kept."""
    summary: Text = ""
    """What it shows."""
    covers: Annotated[tuple[str, ...], BeforeValidator(_as_list)] = ()
    """Ids of the acceptance items it proves."""
    time: Time | None = None
    """When it was made, seconds since 1970 UTC."""


def _as_uri(value: object) -> object:
    return {"uri": value} if isinstance(value, str) else value


class KnowledgeShape(_Shape):
    """``state["knowledge"]``: notes, memories and evidence."""

    notes: tuple[Annotated[NoteShape, BeforeValidator(_as_text)], ...] = ()
    """Working notes."""
    memories: tuple[Annotated[NoteShape, BeforeValidator(_as_text)], ...] = ()
    """Memories that the application found itself."""
    evidence: tuple[Annotated[EvidenceShape, BeforeValidator(_as_uri)], ...] = ()
    """Evidence records."""


class StateShape(_Shape):
    """The keys of a session's state that this package reads."""

    plan: PlanShape | None = None
    """The task and the current step."""
    tools: Annotated[tuple[str, ...] | None, BeforeValidator(_as_names)] = None
    """Names of the step's tools, where the step does not name them."""
    knowledge: KnowledgeShape = KnowledgeShape()
    """Notes, memories and evidence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A session's state as the pipeline reads it. ``problems`` name what was ignored, never what it held."""

    step: Step = field(default_factory=Step)
    validity: Validity = "unplanned"
    invalid_reason: str = ""
    profile: str | None = None
    candidates: tuple[Candidate, ...] = ()
    problems: tuple[str, ...] = ()


def read_state(state: Mapping[str, Any]) -> Planned:
    """The step and the candidates in a session's state. Each key is read for itself, so a wrong one costs no other."""
    problems: list[str] = []
    plan = _read(_PLAN, state.get("plan"), "plan", problems)
    tools = _read(_TOOLS, state.get("tools"), "tools", problems)
    candidates = unique(_candidates(_knowledge(state.get("knowledge"), problems)))
    if plan is None:
        return Planned(step=Step(tools=tools), candidates=candidates, problems=tuple(problems))
    step = _step(plan, tools)
    lacking = [name for name, held in (("step", step.text), ("acceptance list", step.acceptance)) if not held]
    return Planned(
        step=step,
        validity="invalid" if lacking else "valid",
        invalid_reason="the plan has no " + " and no ".join(lacking) if lacking else "",
        profile=plan.profile,
        candidates=candidates,
        problems=tuple(problems),
    )


_PLAN: TypeAdapter[PlanShape] = TypeAdapter(PlanShape)
_TOOLS: TypeAdapter[tuple[str, ...]] = TypeAdapter(Annotated[tuple[str, ...], BeforeValidator(_as_names)])
_ITEMS: Mapping[str, TypeAdapter[Any]] = {
    "notes": TypeAdapter(Annotated[NoteShape, BeforeValidator(_as_text)]),
    "memories": TypeAdapter(Annotated[NoteShape, BeforeValidator(_as_text)]),
    "evidence": TypeAdapter(Annotated[EvidenceShape, BeforeValidator(_as_uri)]),
}


def _read(adapter: TypeAdapter[_T], value: object, where: str, problems: list[str]) -> _T | None:
    """A validated value, None where there is none; what does not fit is reported by its place, not by what it holds."""
    if value is None:
        return None
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join([where, *(str(piece) for piece in first["loc"])])
        problems.append(f"state {place} was ignored: {first['type'].replace('_', ' ')}")
        return None


def _knowledge(value: object, problems: list[str]) -> KnowledgeShape:
    """The knowledge that can be read, item by item."""
    if value is None:
        return KnowledgeShape()
    if not isinstance(value, Mapping):
        problems.append("state knowledge was ignored: it is not a mapping")
        return KnowledgeShape()
    held: dict[str, tuple[Any, ...]] = {}
    for name, adapter in _ITEMS.items():
        items = value.get(name) or ()
        if isinstance(items, (str, Mapping)) or not isinstance(items, Sequence):
            problems.append(f"state knowledge.{name} was ignored: it is not a list")
            continue
        read = (_read(adapter, item, f"knowledge.{name}.{at}", problems) for at, item in enumerate(items))
        held[name] = tuple(item for item in read if item is not None)
    return KnowledgeShape.model_construct(None, **held)


def _step(plan: PlanShape, tools: tuple[str, ...] | None) -> Step:
    step = plan.step or StepShape()
    limits = plan.constraints
    constraints = list(limits.notes)
    if limits.token_budget is not None:
        constraints.append(f"token budget: {limits.token_budget}")
    if limits.latency_seconds is not None:
        constraints.append(f"latency: at most {limits.latency_seconds:g} s")
    if limits.risk is not None:
        constraints.append(f"risk: {limits.risk}")
    items = step.acceptance or plan.acceptance
    return Step(
        task_id=plan.task_id,
        task=plan.task,
        goal=plan.goal,
        step_id=step.id,
        text=step.text,
        role=step.role or plan.role,
        acceptance=tuple(
            AcceptanceItem(id=item.id or f"a{at}", text=item.text, needs_evidence=item.needs_evidence)
            for at, item in enumerate(items, start=1)
        ),
        constraints=tuple(constraints),
        expected_tool_calls=plan.expected_tool_calls,
        risk=limits.risk,
        open_questions=plan.open_questions,
        next=plan.next,
        stop_when=plan.stop_when,
        tools=step.tools if step.tools is not None else tools,
    )


def _candidates(knowledge: KnowledgeShape) -> list[Candidate]:
    found = []
    for source, notes in (("note", knowledge.notes), ("memory", knowledge.memories)):
        for note in notes:
            digest = hash_text(note.text)
            found.append(
                Candidate(
                    id=note.id or f"{source}_{short(digest)}",
                    layer="memory",
                    source=source,
                    text=note.text,
                    digest=digest,
                    time=note.time,
                    expires=note.expires,
                )
            )
    for record in knowledge.evidence:
        digest = hash_text(f"{record.uri}\n{record.summary}")
        found.append(
            Candidate(
                id=record.id or f"ev_{short(digest)}",
                layer="evidence",
                source="state",
                text=record.summary,
                digest=digest,
                time=record.time,
                uri=record.uri,
                covers=record.covers,
            )
        )
    return found


_CONTENT_NAME = re.compile(r"c\d+_[0-9a-f]{8}")


def unique(candidates: Iterable[Candidate]) -> tuple[Candidate, ...]:
    """The candidates with a name of their own each; one that says the same under the same name is left out."""
    named: dict[str, Candidate] = {}
    for one in candidates:
        name = f"{one.source}_{one.id}" if _CONTENT_NAME.fullmatch(one.id) else one.id
        number = 1
        while name in named and named[name].digest != one.digest:
            number += 1
            name = f"{one.id}_{number}"
        named.setdefault(name, replace(one, id=name))
    return tuple(named.values())


def state_schema() -> dict[str, Any]:
    """The JSON Schema of the state that this package reads."""
    return StateShape.model_json_schema() | {"$schema": "https://json-schema.org/draft/2020-12/schema"}
