"""What an application puts into a session's state: ``plan``, ``tools`` and ``knowledge``.

    state["plan"] = {"task_id": "42", "goal": "…", "step": {"id": "3", "text": "…", "acceptance": ["…"]}}
    state["plan"] = {"task_id": "42", "goal": "…", "steps": [{"id": "1", …}, {"id": "2", "depends_on": ["1"], …}]}
    state["tools"] = ["search_web", "file_read"]
    state["knowledge"] = {"notes": ["…"], "evidence": [{"uri": "artifact://…", "summary": "…"}]}

What does not fit these models is reported and ignored; it never stops a run. Fields that are not named here belong to
the application and are left alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import RLock
from typing import Annotated, Any, Literal, Protocol, TypeAlias, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from aether_context.canonical import hash_text, short
from aether_context.pack import AcceptanceItem, Candidate, Step, Validity

_T = TypeVar("_T")
_MOST_TEXT = 20_000
_LOGS = ("decisions", "entities")
_MOST_ENTRIES = 200
_LONG_AGO = -62_135_596_800.0

WRITING = RLock()
"""Held by whoever reads a key of a state and writes it back, so that no change made in this process is lost."""


class SessionState(Protocol):
    """What is used of a session's state: a dict is one, and ADK's ``State``."""

    def get(self, key: str, default: Any = None, /) -> Any: ...

    def __setitem__(self, key: str, value: Any, /) -> None: ...


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
Profile: TypeAlias = Literal["chat", "coding", "research", "requirements", "test_cases"]


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
    """A step of the plan; a string stands for its text."""

    id: str = ""
    """Name of the step. Among ``steps`` each needs one of its own."""
    text: Text = ""
    """What is to be done."""
    role: str = ""
    """Who does it: Planner, Operator, Reviewer, or a name of your own."""
    acceptance: Acceptance = ()
    """When it is done."""
    tools: Annotated[tuple[str, ...] | None, BeforeValidator(_as_list)] = None
    """The tools it needs, by name."""
    depends_on: Annotated[tuple[str, ...], BeforeValidator(_as_list)] = ()
    """Names of the steps that have to be done before it."""
    status: Literal["ready", "claimed", "done"] = "ready"
    """Where it stands on the task board."""
    claimed_by: str = ""
    """Who has claimed it, or did it."""
    notes: Lines = ()
    """Its working notes, kept with it when it is done. Steps that depend on it can read them."""
    expected_tool_calls: int | None = Field(default=None, ge=0)
    """Tool calls that it is expected to take; the plan's where it does not say."""
    open_questions: Annotated[tuple[Text, ...] | None, BeforeValidator(_as_list)] = None
    """What is still to be clarified for it; the plan's where it does not say."""
    next: Lines = ()
    """What comes after it; the plan's where it does not say."""
    profile: Profile | None = None
    """The policy profile for it; the plan's where it does not say."""


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
    """The current step; it comes before the task board."""
    steps: tuple[Annotated[StepShape, BeforeValidator(_as_text)], ...] = ()
    """The task board: all steps, in order."""
    current_step: str = ""
    """Name of the current one of ``steps``. Without it, it is the first claimed one, else the first ready one whose
    dependencies are done."""
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
    profile: Profile | None = None
    """The policy profile for this plan. It comes before the one that the policy has for an agent."""


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
    ttl_seconds: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """How long it stays true after ``time``; without a time it is ignored."""
    step_id: str = ""
    """Name of the step that it belongs to; it expires once that one is done."""


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
    tokens: int | None = Field(default=None, ge=0)
    """Tokens of the whole of it."""
    hash: str = ""
    """Tagged hash of the whole of it, ``sha256:…``."""


def _as_uri(value: object) -> object:
    return {"uri": value} if isinstance(value, str) else value


class KnowledgeShape(_Shape):
    """``state["knowledge"]``: notes, memories, decisions, entities and evidence."""

    notes: tuple[Annotated[NoteShape, BeforeValidator(_as_text)], ...] = ()
    """Working notes."""
    memories: tuple[Annotated[NoteShape, BeforeValidator(_as_text)], ...] = ()
    """Memories that the application found itself."""
    decisions: tuple[Annotated[NoteShape, BeforeValidator(_as_text)], ...] = ()
    """What was decided, and why."""
    entities: tuple[Annotated[NoteShape, BeforeValidator(_as_text)], ...] = ()
    """What is known of people, systems and other things by name."""
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


def read_state(state: Mapping[str, Any], worker: str = "") -> Planned:
    """The step and the candidates in a session's state. Each item is read for itself, so a wrong one costs no other.

    Args:
        worker: who asks. A step that this one has claimed comes before what others have.
    """
    problems: list[str] = []
    plan = read_plan(state.get("plan"), problems)
    tools = _read(_TOOLS, state.get("tools"), "tools", problems)
    knowledge = _knowledge(state.get("knowledge"), problems)
    if plan is None:
        return Planned(step=Step(tools=tools), candidates=unique(_candidates(knowledge)), problems=tuple(problems))
    current = current_step(plan, worker) or StepShape()
    step = _step(plan, current, tools)
    finished = bool(plan.steps) and plan.step is None and all(one.status == "done" for one in plan.steps)
    lacking = [name for name, held in (("step", step.text), ("acceptance list", step.acceptance)) if not held]
    if finished and not step.text:
        lacking = []
    return Planned(
        step=step,
        validity="invalid" if lacking else "valid",
        invalid_reason="the plan has no " + " and no ".join(lacking) if lacking else "",
        profile=current.profile or plan.profile,
        candidates=unique([*_candidates(knowledge, done_steps(plan.steps)), *_checkpoints(plan, current)]),
        problems=tuple(problems),
    )


def read_plan(value: object, problems: list[str]) -> PlanShape | None:
    """What can be read of a plan, step by step; None where there is none. ``problems`` gains what was ignored."""
    if not isinstance(value, Mapping) or "steps" not in value:
        return _read(_PLAN, value, "plan", problems)
    plan = _read(_PLAN, {name: held for name, held in value.items() if name != "steps"}, "plan", problems)
    if plan is None:
        return None
    steps = tuple(_items(_STEP, value["steps"], "plan.steps", problems))
    names = {step.id for step in steps}
    if plan.current_step and plan.current_step not in names:
        problems.append("state plan.current_step was ignored: no step has that name")
    for at, step in enumerate(steps):
        if not names.issuperset(step.depends_on):
            problems.append(f"state plan.steps.{at} never gets ready: it depends on a step that is not there")
    return plan.model_copy(update={"steps": steps})


def current_step(plan: PlanShape, worker: str = "") -> StepShape | None:
    """The step that the plan is at, None where none is left.

    It is the plan's own ``step``; else one that the worker has claimed; else that of ``current_step``, the first
    claimed one, or the first ready one whose dependencies are done.
    """
    if plan.step is not None:
        return plan.step
    named = [step for step in plan.steps if plan.current_step and step.id == plan.current_step]
    claimed = [step for step in plan.steps if step.status == "claimed"]
    own = [step for step in claimed if worker and step.claimed_by == worker]
    if own:
        return next((step for step in named if step in own), own[0])
    return next(iter([*named, *claimed, *ready_steps(plan.steps)]), None)


def done_steps(steps: Iterable[StepShape]) -> frozenset[str]:
    """The names of the steps that are done."""
    return frozenset(step.id for step in steps if step.status == "done" and step.id)


def ready_steps(steps: Sequence[StepShape]) -> tuple[StepShape, ...]:
    """The steps that can be claimed: nobody has them, and all they depend on is done."""
    done = done_steps(steps)
    return tuple(step for step in steps if step.status == "ready" and done.issuperset(step.depends_on))


def acceptance_of(plan: PlanShape, step: StepShape) -> tuple[AcceptanceItem, ...]:
    """A step's checklist, the plan's where the step carries none."""
    return tuple(
        AcceptanceItem(id=item.id or f"a{at}", text=item.text, needs_evidence=item.needs_evidence)
        for at, item in enumerate(step.acceptance or plan.acceptance, start=1)
    )


_PLAN: TypeAdapter[PlanShape] = TypeAdapter(PlanShape)
_STEP: TypeAdapter[StepShape] = TypeAdapter(Annotated[StepShape, BeforeValidator(_as_text)])
_TOOLS: TypeAdapter[tuple[str, ...]] = TypeAdapter(Annotated[tuple[str, ...], BeforeValidator(_as_names)])
_ITEMS: Mapping[str, TypeAdapter[Any]] = {
    "notes": TypeAdapter(Annotated[NoteShape, BeforeValidator(_as_text)]),
    "memories": TypeAdapter(Annotated[NoteShape, BeforeValidator(_as_text)]),
    "decisions": TypeAdapter(Annotated[NoteShape, BeforeValidator(_as_text)]),
    "entities": TypeAdapter(Annotated[NoteShape, BeforeValidator(_as_text)]),
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
        place = f"knowledge.{name}"
        found = _items(adapter, value.get(name), place, problems)
        held[name] = tuple(_latest(found, place, problems) if name in _LOGS else found)
    return KnowledgeShape.model_construct(None, **held)


def _latest(entries: list[_T], where: str, problems: list[str]) -> list[_T]:
    """The latest entries of a log."""
    if len(entries) > _MOST_ENTRIES:
        problems.append(f"state {where}: only the {_MOST_ENTRIES} latest of {len(entries)} entries were read")
    return entries[-_MOST_ENTRIES:]


def _items(adapter: TypeAdapter[_T], value: object, where: str, problems: list[str]) -> list[_T]:
    """The items of a list that can be read."""
    items = value or ()
    if isinstance(items, (str, Mapping)) or not isinstance(items, Sequence):
        problems.append(f"state {where} was ignored: it is not a list")
        return []
    found = []
    for at, item in enumerate(items):
        read = _read(adapter, item, f"{where}.{at}", problems)
        if read is None:
            continue
        if isinstance(read, NoteShape) and read.ttl_seconds is not None and read.time is None:
            problems.append(f"state {where}.{at}.ttl_seconds was ignored: the note has no time")
        found.append(read)
    return found


def _step(plan: PlanShape, step: StepShape, tools: tuple[str, ...] | None) -> Step:
    limits = plan.constraints
    constraints = list(limits.notes)
    if limits.token_budget is not None:
        constraints.append(f"token budget: {limits.token_budget}")
    if limits.latency_seconds is not None:
        constraints.append(f"latency: at most {limits.latency_seconds:g} s")
    if limits.risk is not None:
        constraints.append(f"risk: {limits.risk}")
    calls, questions = step.expected_tool_calls, step.open_questions
    return Step(
        task_id=plan.task_id,
        task=plan.task,
        goal=plan.goal,
        step_id=step.id,
        text=step.text,
        role=step.role or plan.role,
        acceptance=acceptance_of(plan, step),
        constraints=tuple(constraints),
        expected_tool_calls=calls if calls is not None else plan.expected_tool_calls,
        risk=limits.risk,
        open_questions=questions if questions is not None else plan.open_questions,
        next=step.next or plan.next,
        stop_when=plan.stop_when,
        tools=step.tools if step.tools is not None else tools,
    )


def note_id(note: NoteShape, source: str = "note") -> str:
    """A note's own id, else one from its text."""
    return note.id or f"{source}_{short(hash_text(note.text))}"


def evidence_id(record: EvidenceShape) -> str:
    """A record's own id, else one from its address and summary."""
    return record.id or f"ev_{short(_evidence_digest(record))}"


def _evidence_digest(record: EvidenceShape) -> str:
    return hash_text(f"{record.uri}\n{record.summary}")


def _candidates(knowledge: KnowledgeShape, done: frozenset[str] = frozenset()) -> list[Candidate]:
    kinds = (
        ("note", knowledge.notes),
        ("memory", knowledge.memories),
        ("decision", knowledge.decisions),
        ("entity", knowledge.entities),
    )
    notes = [_note_candidate(note, source, done) for source, held in kinds for note in held]
    evidence = [
        Candidate(
            id=evidence_id(record),
            layer="evidence",
            source="state",
            text=record.summary,
            digest=_evidence_digest(record),
            time=record.time,
            uri=record.uri,
            covers=record.covers,
        )
        for record in knowledge.evidence
    ]
    return [*notes, *evidence]


def _note_candidate(note: NoteShape, source: str, done: frozenset[str]) -> Candidate:
    return Candidate(
        id=note_id(note, source),
        layer="memory",
        source=source,
        text=note.text,
        digest=hash_text(note.text),
        time=note.time,
        expires=_LONG_AGO if note.step_id in done else _end(note),
    )


def _end(note: NoteShape) -> float | None:
    """When a note stops being true, by ``expires`` or by its time to live, whichever is first."""
    lives = note.time + note.ttl_seconds if note.time is not None and note.ttl_seconds is not None else None
    return min((moment for moment in (note.expires, lives) if moment is not None), default=None)


def _checkpoints(plan: PlanShape, current: StepShape) -> list[Candidate]:
    """The working notes kept with the current step and with those that it depends on."""
    wanted = [current, *(step for step in plan.steps if step.id in current.depends_on)]
    notes = [NoteShape.model_construct(None, text=text) for step in wanted for text in step.notes]
    return [_note_candidate(note, "note", frozenset()) for note in notes]


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
        named.setdefault(name, one if one.id == name else replace(one, id=name))
    return tuple(named.values())


def state_schema() -> dict[str, Any]:
    """The JSON Schema of the state that this package reads."""
    return StateShape.model_json_schema() | {"$schema": "https://json-schema.org/draft/2020-12/schema"}
