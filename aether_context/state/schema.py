"""What an application puts into a session's state: ``plan``, ``tools`` and ``knowledge``.

    state["plan"] = {"task_id": "42", "goal": "…", "step": {"id": "3", "text": "…", "acceptance": ["…"]}}
    state["plan"] = {"task_id": "42", "goal": "…", "steps": [{"id": "1", …}, {"id": "2", "depends_on": ["1"], …}]}
    state["tools"] = ["search_web", "file_read"]
    state["knowledge"] = {"notes": ["…"], "evidence": [{"uri": "artifact://…", "summary": "…"}]}

Much of it is written by models. So each field is read for itself, in the spellings that models use: what fits is kept,
what does not is reported by its place and ignored, and never stops a run. Fields that are not named here belong to the
application and are left alone.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from threading import RLock
from typing import Annotated, Any, ClassVar, Literal, Protocol, TypeAlias, TypeVar, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from aether_context.canonical import canonical_json, hash_text, plain, short
from aether_context.pack import AcceptanceItem, Candidate, Step, Validity, describe
from aether_context.text import spellings
from aether_context.text.spellings import as_mapping, folded, means_nothing

_MOST_TEXT = 20_000
_MOST_PROBLEMS = 50
_MOST_KEY = 60
_MOST_ENTRIES = 200
_MOST_ITEMS = 1_000
_MOST_VALUES = 2_000
_TOOLS_KEY = re.compile(
    r"(?:allowed|available|required|needed)?tools?(?:names?|list|set|scope|needed|required|touse)?|tool[sz]|to+l+s"
)
"""A key, folded, by which models name a list of tools; none of them may be taken for no list at all."""
_NAMES_TOOLS = re.compile(
    r"""(?im)(?:^[^\w\n]{0,8}|["'])(?:\w{1,16}[ _-]?)?tool[sz]?"""
    r"""(?:[ _-]?(?:names?|list|set|scope|needed|required|to[ _-]?use))?[^\w\n]{0,4}"""
    r"""(?:[:=](?!\s{0,4}(?:(?:None|null)\b|\[\]|\{\}|""|''))|$)"""
)
"""Where a text names tools after it: ``tools: …``, ``"tools": […]``, ``## Tools``, ``- **Allowed tools**:``."""
_MEANT = {
    "description": "text", "title": "text", "instruction": "text", "instructions": "text", "content": "text",
    "summary": "text", "objective": "goal", "criteria": "acceptance", "checklist": "acceptance",
    "donewhen": "acceptance", "definitionofdone": "acceptance", "requirements": "acceptance",
    "dependencies": "depends_on", "requires": "depends_on", "after": "depends_on", "state": "status",
    "questions": "open_questions", "stopconditions": "stop_when", "url": "uri", "timestamp": "time",
    "ttl": "ttl_seconds",
}  # fmt: skip
"""What other words for a field are likely to mean, folded."""
_ITEM_TEXTS = (
    "description", "criterion", "criteria", "condition", "requirement", "check", "item", "title", "content", "summary",
    "name",
)  # fmt: skip
"""Keys, folded, under which models write the text of an acceptance item, the most telling first."""
_STEP_NUMBER = re.compile(r"(?i)(?:step|task|number|no\.?|#)?[ _#-]{0,3}0{0,3}(\d{1,4})\.?")
_LONG_AGO = -62_135_596_800.0
_CONTENT_NAME = re.compile(r"c\d+_[0-9a-f]{8}")

WRITING = RLock()
"""Held by whoever reads a key of a state and writes it back, so that no change made in this process is lost."""


class SessionState(Protocol):
    """What is used of a session's state: a dict is one, and ADK's ``State``."""

    def get(self, key: str, default: Any = None, /) -> Any: ...

    def __setitem__(self, key: str, value: Any, /) -> None: ...


class _Shape(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", json_schema_extra=describe, coerce_numbers_to_str=True)

    lists: ClassVar[Mapping[str, type[_Shape]]] = {}
    """The shapes of the items of lists."""
    short_for: ClassVar[str] = "text"
    """The field that a text stands for, where there is nothing but a text."""


_Any = TypeVar("_Any", bound=_Shape)
Time = Annotated[
    float, Field(ge=_LONG_AGO, le=253_402_300_799, allow_inf_nan=False), BeforeValidator(spellings.as_time)
]
Text = Annotated[str, Field(max_length=_MOST_TEXT), BeforeValidator(spellings.as_text)]
Name = Annotated[str, BeforeValidator(spellings.as_name)]
Count = Annotated[int | None, Field(ge=0), BeforeValidator(spellings.as_count)]
Lines = Annotated[tuple[Annotated[str, Field(max_length=_MOST_TEXT)], ...], BeforeValidator(spellings.as_lines)]
Names = Annotated[tuple[str, ...], BeforeValidator(spellings.as_names)]
Kind = Annotated[Literal["preference", "episode"] | None, BeforeValidator(spellings.as_kind)]
ProfileName: TypeAlias = Literal["chat", "coding", "research", "requirements", "test_cases"]
Profile = Annotated[ProfileName | None, BeforeValidator(spellings.as_choice)]


class AcceptanceShape(_Shape):
    """One line of a checklist; a string stands for its text."""

    id: Name = ""
    """Name of the item; ``a1``, ``a2``, … by position where it has none."""
    text: Text
    """What has to be true."""
    needs_evidence: Annotated[bool, BeforeValidator(spellings.as_flag)] = False
    """Whether only proof completes it."""


class StepShape(_Shape):
    """A step of the plan; a string stands for its text."""

    lists = {"acceptance": AcceptanceShape}

    id: Name = ""
    """Name of the step. Among ``steps`` each needs one of its own."""
    text: Text = ""
    """What is to be done."""
    role: Text = ""
    """Who does it: Planner, Operator, Reviewer, or a name of your own."""
    acceptance: tuple[AcceptanceShape, ...] = ()
    """When it is done."""
    tools: Names | None = None
    """The tools it needs, by name. Where none of what is given names one, it has no tools, rather than all."""
    depends_on: Names = ()
    """Names of the steps that have to be done before it."""
    status: Annotated[Literal["ready", "claimed", "done"], BeforeValidator(spellings.as_status)] = "ready"
    """Where it stands on the task board."""
    claimed_by: Name = ""
    """Who has claimed it, or did it."""
    notes: Lines = ()
    """Its working notes, kept with it when it is done. Steps that depend on it can read them."""
    expected_tool_calls: Count = None
    """Tool calls that it is expected to take; the plan's where it does not say."""
    open_questions: Lines | None = None
    """What is still to be clarified for it; the plan's where it does not say."""
    next: Lines = ()
    """What comes after it; the plan's where it does not say."""
    profile: Profile = None
    """The policy profile for it; the plan's where it does not say."""


class ConstraintShape(_Shape):
    """Limits of the work; a list of strings stands for ``notes``. The model is shown any other field as it stands."""

    short_for = "notes"

    token_budget: Count = None
    """Tokens that the step may cost."""
    latency_seconds: Annotated[
        float | None, Field(ge=0, allow_inf_nan=False), BeforeValidator(spellings.as_seconds)
    ] = None
    """Time that the step may take."""
    risk: Annotated[Literal["low", "medium", "high"] | None, BeforeValidator(spellings.as_risk)] = None
    """What a mistake would cost."""
    notes: Lines = ()
    """Anything else."""


class PlanShape(_Shape):
    """``state["plan"]``: the task, and the step the agent is at."""

    lists = {"steps": StepShape, "acceptance": AcceptanceShape}

    task_id: Name = ""
    """Name of the task."""
    task: Text = ""
    """The task in a line or two."""
    goal: Text = ""
    """What the whole plan is for."""
    step: StepShape | None = None
    """The current step; it comes before the task board."""
    steps: tuple[StepShape, ...] = ()
    """The task board: all steps, in order."""
    current_step: Name = ""
    """Name of the current one of ``steps``. Without it, it is the first claimed one, else the first ready one whose
    dependencies are done."""
    acceptance: tuple[AcceptanceShape, ...] = ()
    """The current step's checklist, where the step does not carry it."""
    role: Text = ""
    """The current role, where the step does not carry it."""
    constraints: ConstraintShape = ConstraintShape()
    """Limits of the work."""
    tools: Names | None = None
    """Names of the step's tools, where the step does not name them."""
    expected_tool_calls: Count = None
    """Tool calls that the step is expected to take."""
    open_questions: Lines | None = None
    """What is still to be clarified."""
    next: Lines = ()
    """What comes after this step."""
    stop_when: Lines = ()
    """Conditions that end it."""
    profile: Profile = None
    """The policy profile for this plan. It comes before the one that the policy has for an agent."""


class NoteShape(_Shape):
    """A working note; a string stands for its text."""

    id: Name = ""
    """Name of the note."""
    text: Text
    """What it says."""
    time: Time | None = None
    """When it was made, seconds since 1970 UTC."""
    expires: Time | None = None
    """When it stops being true, seconds since 1970 UTC."""
    ttl_seconds: Annotated[float | None, Field(gt=0, allow_inf_nan=False), BeforeValidator(spellings.as_seconds)] = None
    """How long it stays true after ``time``; without a time it is ignored."""
    step_id: Name = ""
    """Name of the step that it belongs to; it expires once that one is done."""
    kind: Kind = None
    """``preference`` for a wish of the user that holds for every request; it stands first among the memories."""


class EvidenceShape(_Shape):
    """A piece of proof; a string stands for its URI."""

    short_for = "uri"

    id: Name = ""
    """Name of the record."""
    uri: Name = ""
    """Where the whole of it is kept."""
    summary: Text = ""
    """What it shows."""
    covers: Names = ()
    """Ids of the acceptance items it proves."""
    time: Time | None = None
    """When it was made, seconds since 1970 UTC."""
    tokens: Count = None
    """Tokens of the whole of it."""
    hash: Name = ""
    """Tagged hash of the whole of it, ``sha256:…``."""


class KnowledgeShape(_Shape):
    """``state["knowledge"]``: notes, memories, decisions, entities and evidence."""

    lists = {
        "notes": NoteShape,
        "memories": NoteShape,
        "decisions": NoteShape,
        "entities": NoteShape,
        "evidence": EvidenceShape,
    }

    notes: tuple[NoteShape, ...] = ()
    """Working notes."""
    memories: tuple[NoteShape, ...] = ()
    """Memories that the application found itself."""
    decisions: tuple[NoteShape, ...] = ()
    """What was decided, and why."""
    entities: tuple[NoteShape, ...] = ()
    """What is known of people, systems and other things by name."""
    evidence: tuple[EvidenceShape, ...] = ()
    """Evidence records."""


class StateShape(_Shape):
    """The keys of a session's state that this package reads."""

    plan: PlanShape | None = None
    """The task and the current step."""
    tools: Names | None = None
    """Names of the step's tools, where neither the step nor the plan names them."""
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
    """The step and the candidates in a session's state. Each field is read for itself, so a wrong one costs no other.

    Where the step, its acceptance list or its tools are there and cannot be read, the plan is invalid; where the tools
    cannot be read, alone or with what they stand in, the step has none.

    Args:
        worker: who asks. A step that this one has claimed comes before what others have.
    """
    problems = Problems()
    reading = read_plan(state.get("plan"), problems)
    tools = _tools(state.get("tools"), "tools", problems)
    given = state.get("knowledge")
    knowledge = None
    if given is not None and as_mapping(given) is None:
        problems.lose("knowledge", "it is not a mapping")
    elif given is not None:
        knowledge = read_shape(KnowledgeShape, given, "knowledge", problems)
    knowledge = knowledge or KnowledgeShape()
    plan, faults = reading.plan, list(reading.faults)
    if plan is None:
        return Planned(
            step=Step(tools=() if reading.closed else tools),
            validity="invalid" if faults else "unplanned",
            invalid_reason="; ".join(faults),
            candidates=unique(_candidates(knowledge)),
            problems=problems.told,
        )
    found = current_step(plan, worker)
    current = found or StepShape()
    skipped: list[str] = []
    if plan.step is None and not plan.current_step and current.status != "claimed":
        # Nothing but its place made the step the current one: an unreadable one before it may be that.
        at = reading.positions[plan.steps.index(found)] if found is not None else _MOST_ITEMS
        skipped = [f"plan.steps.{unread}" for unread in reading.unread if unread < at]
    step = _step(plan, current, tools)
    finished = bool(plan.steps) and plan.step is None and all(step.status == "done" for step in plan.steps)
    unread = reading.closed or (skipped and found is None)
    if step.tools is None and (unread or (not step.text and not finished and _lists_tools(state.get("plan")))):
        step = replace(step, tools=())
    if step.tools == () and any(place.endswith("tools") for place in problems.lost):
        faults.append("the step's tools cannot be read")
    faults += [f"{place} cannot be read" for place in skipped]
    lacking = [name for name, value in (("step", step.text), ("acceptance list", step.acceptance)) if not value]
    if lacking and not (finished and not step.text):
        faults.append("the plan has no " + " and no ".join(lacking))
    checkpoints = [current, *(step for step in plan.steps if step.id in current.depends_on)]
    notes = [NoteShape.model_construct(None, text=text) for step in checkpoints for text in step.notes]
    return Planned(
        step=step,
        validity="invalid" if faults else "valid",
        invalid_reason="; ".join(dict.fromkeys(faults)),
        profile=current.profile or plan.profile,
        candidates=unique(
            [*_candidates(knowledge, done_steps(plan.steps)), *(_note_candidate(note, "note") for note in notes)]
        ),
        problems=problems.told,
    )


class Problems:
    """What of a state was ignored or is unknown, in order: by its place, never by what stood there.

    ``lost`` are the places of values that could not be read, or not whole.
    """

    def __init__(self) -> None:
        self.lost: dict[str, str] = {}
        self._told: dict[str, None] = {}
        self._unknown: set[tuple[type, str]] = set()

    @property
    def told(self) -> tuple[str, ...]:
        told = tuple(self._told)
        more = len(told) - _MOST_PROBLEMS
        return told if more <= 0 else (*told[:_MOST_PROBLEMS], f"state: {more} more problems")

    def lose(self, place: str, reason: str, became: str = "was ignored") -> None:
        self.lost[place] = reason
        self.note(f"state {place} {became}: {reason}")

    def note(self, text: str) -> None:
        self._told[text] = None

    def unknown(self, kind: type[_Shape], key: str, place: str, given: Collection[str]) -> None:
        """Notes a key that is no field but near to one: of those that are given as well, only to one spelled alike.

        Others are the application's own. It is noted once for each kind of shape.
        """
        key = " ".join(key.split())[:_MOST_KEY]
        if (kind, key) in self._unknown or len(self._unknown) > _MOST_PROBLEMS:
            return
        near = _nearest(kind, key)
        if near and (near not in given or difflib.get_close_matches(folded(key), [folded(near)], cutoff=0.8)):
            self._unknown.add((kind, key))
            beside = ", which is given as well" if near in given else ""
            self.note(f"state {place}.{key} is unknown: did you mean {near!r}{beside}?")


@lru_cache(maxsize=500)
def _nearest(kind: type[_Shape], key: str) -> str:
    """The field that a key is likely to mean; empty where none is near."""
    names = {folded(name): name for name in kind.model_fields}
    if kind is PlanShape:
        names |= {folded(name): f"constraints.{name}" for name in ConstraintShape.model_fields if name != "notes"}
    if (meant := _MEANT.get(folded(key), "")) in kind.model_fields:
        return meant
    words = [word for word in map(folded, re.split(r"[\W_]+", key)) if len(word) > 3 and word in names]
    near = difflib.get_close_matches(folded(key), names, n=1) or words
    return names[near[0]] if near else ""


# The plan.


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A plan as far as it can be read, None where there is none.

    ``faults`` say what is broken so that the step is not certain. ``closed`` is set where what is broken may have named
    tools. ``positions`` are those of the steps in what was given, ``unread`` of the items that are no steps.
    """

    plan: PlanShape | None = None
    faults: tuple[str, ...] = ()
    closed: bool = False
    positions: tuple[int, ...] = ()
    unread: tuple[int, ...] = ()


def read_plan(value: object, problems: Problems) -> Reading:
    """What can be read of a plan, field by field: a mapping, a model, a list of steps, or one of these as JSON text."""
    if value is None:
        return Reading()
    fields, ends_early = _plan_fields(value)
    if fields is None:
        broken = spellings.looks_like_json(value) if isinstance(value, str) else bool(value) and isinstance(value, list)
        problems.lose("plan", "its JSON cannot be read" if isinstance(value, str) and broken else "it is not a mapping")
        # What may have named tools keeps the scope closed; other words and numbers do not.
        return Reading(faults=("the plan cannot be read",) if value else (), closed=broken or _lists_tools(value))
    faults = []
    if ends_early:
        problems.note("state plan: its JSON text ends before it is complete")
        faults.append("the plan's JSON text is not complete")
    plan = read_shape(PlanShape, fields, "plan", problems, apart="steps") or PlanShape()
    placed, unread = _placed(StepShape, fields.get("steps"), "plan.steps", problems)
    positions = tuple(at for at, _ in placed)
    lost = [place for place in ("plan.step", "plan.steps") if place in problems.lost]
    faults += [f"{place} cannot be read" for place in lost]
    plan = _linked(plan, [step for _, step in placed], positions, problems)
    if "plan.current_step" in problems.lost:
        faults.append("plan.current_step names no step")
    return Reading(plan=plan, faults=tuple(faults), closed=ends_early or bool(lost), positions=positions, unread=unread)


def plan_mapping(value: object) -> dict[str, Any]:
    """A plan as a mapping by the names of its fields, its steps a list of mappings; what is unknown stays as it is."""
    fields = dict(_plan_fields(value)[0] or {})
    if "steps" in fields:
        items = _raw_items(StepShape, fields["steps"]) or []
        fields["steps"] = [dict(_fields_of(StepShape, item) or {}) for item in items]
    return fields


def _lists_tools(plan: object) -> bool:
    """Whether a plan without a step that can be read lists tools somewhere, by whatever name models give the list.

    Of what is large 2,000 values are looked at, and it is taken to list some in the rest.
    """
    left = [plan]
    for _ in range(_MOST_VALUES):
        if not left:
            return False
        value = left.pop()
        if isinstance(value, str):
            if _NAMES_TOOLS.search(value):
                return True
            value = spellings.as_json(value, whole=False)[0] if "{" in value or "[" in value else None
        fields = as_mapping(value)
        for key, listed in fields.items() if fields is not None else ():
            if _TOOLS_KEY.fullmatch(folded(str(key))) and listed not in (None, "", [], {}):
                return True
            left.append(listed)
        if isinstance(value, (list, tuple)):
            left += value[:_MOST_VALUES]
    return bool(left)


def _plan_fields(value: object, *, wrapped: bool = True) -> tuple[dict[str, Any] | None, bool]:
    """A plan's fields, be it ``wrapped`` under a key ``plan``, and whether it is a text that ends early."""
    ends_early = False
    if isinstance(value, str):
        value, ends_early = spellings.as_json(value, whole=False)
    if isinstance(value, (list, tuple)) and value:
        value = {"steps": value}
    fields = as_mapping(value)
    if fields is None:
        return None, ends_early
    named = _named(PlanShape, fields)
    if wrapped and not PlanShape.model_fields.keys() & named.keys():
        inside = next((item for key, item in fields.items() if folded(str(key)) == "plan"), None)
        found, cut_off = _plan_fields(inside, wrapped=False)
        if found is not None:
            return found, ends_early or cut_off
    return named, ends_early


def _linked(plan: PlanShape, steps: list[StepShape], positions: Sequence[int], problems: Problems) -> PlanShape:
    """A plan with its steps, whose current step and dependencies have the names that their steps have.

    Models name a step by its number, its title, or its name in other capitals.
    """
    own, name = plan.step, plan.current_step
    if own is not None and steps and not own.acceptance:
        wanted = own.id if not own.text else own.text if not own.id else ""
        if wanted and _find(wanted, steps, positions) is not None:
            own, name = None, wanted
    if name and own is None:
        found = _find(name, steps, positions)
        if found is None:
            problems.lose("plan.current_step", "no step has that name")
            name = ""
        else:
            name = steps[found].id or name
            steps[found] = steps[found].model_copy(update={"id": name})
    for at, step in enumerate(steps):
        if step.depends_on:
            places = {other: _find(other, steps, positions) for other in step.depends_on}
            names = [(steps[place].id or other) if place is not None else other for other, place in places.items()]
            steps[at] = step.model_copy(update={"depends_on": tuple(names)})
            if not {step.id for step in steps}.issuperset(names):
                problems.note(
                    f"state plan.steps.{positions[at]} never gets ready: it depends on a step that is not there"
                )
    return plan.model_copy(update={"steps": tuple(steps), "step": own, "current_step": name})


def _find(name: str, steps: Sequence[StepShape], positions: Sequence[int]) -> int | None:
    """The index of the step that a name means: its own, its text, or its number."""
    wanted = folded(name)
    ids = [step.id for step in steps]
    for known, spelled in (
        (ids, name),
        ([folded(id) for id in ids], wanted),
        ([folded(step.text) for step in steps], wanted),
    ):
        if spelled and spelled in known:
            return known.index(spelled)
    number = _STEP_NUMBER.fullmatch(name.strip())
    if number is None:
        head = name.split(":", 1)[0]
        return _find(head, steps, positions) if head != name else None
    numbers = [re.sub(r"\D", "", id[:_MOST_KEY]) for id in ids]
    if numbers.count(number[1]) == 1:
        return numbers.index(number[1])
    place = int(number[1]) - 1
    return positions.index(place) if place in positions else None


# Shapes, field by field.


def _named(kind: type[_Shape], fields: Mapping[Any, Any]) -> dict[str, Any]:
    """Fields under the names that a shape has for them, however these are capitalized or joined; others as they are."""
    names = {folded(name): name for name in kind.model_fields}
    named = {str(key): value for key, value in fields.items() if key in kind.model_fields and value is not None}
    for key, value in fields.items():
        if key not in kind.model_fields:
            key, bare = str(key), folded(str(key))
            name = names.get(bare) or names.get(f"{bare}s", key)
            if name == key and "tools" in kind.model_fields and _TOOLS_KEY.fullmatch(bare):
                name = "tools"
            named[key if name in named else name] = value
    return named


def _fields_of(kind: type[_Shape], value: object) -> dict[str, Any] | None:
    """The fields of a value that stands for a shape, by their names; None where it stands for none."""
    if isinstance(value, str) and not spellings.looks_like_json(value):
        return {kind.short_for: value}
    fields = as_mapping(value)
    return None if fields is None else _named(kind, fields)


def read_shape(kind: type[_Any], value: object, place: str, problems: Problems, apart: str = "") -> _Any | None:
    """A shape with the fields that can be read, but for the one that is read ``apart``; None where it is none or lacks
    the text that makes it one."""
    fields = _fields_of(kind, value)
    if fields is None:
        problems.lose(place, "it is neither a mapping nor a text")
        return None
    if kind is AcceptanceShape and means_nothing(fields.get("text")):
        texts = {folded(key): key for key, raw in fields.items() if isinstance(raw, str) and raw.strip()}
        if (key := next((texts[word] for word in _ITEM_TEXTS if word in texts), None)) is not None:
            problems.note(f"state {place} has no 'text': its {key!r} was read as that")
            fields = {"text": fields[key]} | {name: raw for name, raw in fields.items() if name not in ("text", key)}
    found: dict[str, Any] = {}
    for name, raw in fields.items():
        where = f"{place}.{name}"
        if name not in kind.model_fields:
            problems.unknown(kind, name, place, fields)
        elif raw is None or name == apart:
            continue
        elif name in kind.lists:
            found[name] = tuple(shape for _, shape in _placed(kind.lists[name], raw, where, problems)[0])
        elif name == "tools":
            found[name] = _tools(raw, where, problems)
        elif name == "step":
            found[name] = read_shape(StepShape, raw, where, problems) if raw not in ("", {}) else None
        elif name == "constraints":
            found[name] = _constraints(raw, where, problems)
        elif (read := _field(kind, name, raw, where, problems)) is not None:
            found[name] = read
    if (text := kind.model_fields.get("text")) and text.is_required() and not found.get("text", "").strip():
        problems.lose(place, "it has no text")
        return None
    return cast(_Any, kind.model_construct(None, **found))


def _field(kind: type[_Shape], name: str, raw: object, place: str, problems: Problems) -> Any:
    """One field's value, of a list the items that can be read, of a text as much as may be; None for nothing of it."""
    try:
        return _adapter(kind, name).validate_python(raw)
    except ValidationError as error:
        first = error.errors()[0]
    items = spellings.as_lines(raw)
    if first["loc"] and isinstance(items, tuple):
        kept = [_field(_Item, "text", item, f"{place}.{at}", problems) for at, item in enumerate(items)]
        return _adapter(kind, name).validate_python([item for item in kept if item is not None]) or None
    # pydantic's messages say what was expected, not what was given.
    reason = first["msg"].removeprefix("Value error, ")
    reason = f"{reason[:1].lower()}{reason[1:]}".replace("input should", "it should")
    is_long = first["type"] == "string_too_long"
    problems.lose(place, reason, "was cut" if is_long else "was ignored")
    return _shown(raw) if is_long else None


@lru_cache(maxsize=128)
def _adapter(kind: type[_Shape], name: str) -> TypeAdapter[Any]:
    found = kind.model_fields[name]
    annotation: Any = Annotated[(found.annotation, Field(), *found.metadata)]
    return TypeAdapter(annotation, config=ConfigDict(coerce_numbers_to_str=True))


class _Item(_Shape):
    """An item of a list of texts."""

    text: Text


def _shown(value: object) -> str:
    """A value in its own words, as much of them as may be."""
    text = spellings.as_text(value)
    return (text if isinstance(text, str) else canonical_json(plain(value)))[:_MOST_TEXT]


def _placed(
    kind: type[_Any], value: object, place: str, problems: Problems
) -> tuple[list[tuple[int, _Any]], tuple[int, ...]]:
    """The items of a list that can be read, with their positions; and the positions of those that cannot."""
    if means_nothing(value):
        return [], ()
    items = _raw_items(kind, value)
    if items is None:
        problems.lose(place, "it is not a list")
        return [], ()
    most = _MOST_ENTRIES if place in ("knowledge.decisions", "knowledge.entities") else _MOST_ITEMS
    if len(items) > most:
        end = "latest" if place.startswith("knowledge") else "first"
        problems.note(f"state {place}: only the {most} {end} of {len(items)} entries were read")
        items = items[-most:] if end == "latest" else items[:most]
    found: list[tuple[int, _Any]] = []
    unread = []
    for at, item in enumerate(items):
        where = f"{place}.{at}"
        shape = read_shape(kind, item, where, problems)
        if shape is None or (place == "plan.steps" and f"{where}.status" in problems.lost):
            unread.append(at)
            continue
        if isinstance(shape, AcceptanceShape) and not shape.id and unread:
            shape = shape.model_copy(update={"id": f"a{at + 1}"})
        if isinstance(shape, NoteShape) and shape.ttl_seconds is not None and shape.time is None:
            problems.note(f"state {where}.ttl_seconds was ignored: the note has no time")
        found.append((at, shape))
    return found, tuple(unread)


def _raw_items(kind: type[_Shape], value: object) -> list[Any] | None:
    """The items of a list as they came; of a mapping each with its name, or the mapping itself where it is an item."""
    fields = as_mapping(value)
    if fields is not None and kind.short_for in _named(kind, fields):
        return [fields]
    if isinstance(value, str) and not spellings.looks_like_json(value):
        return list(spellings.bulleted(value)) if kind is AcceptanceShape else [value]
    items = spellings.as_items(value)
    if items is None:
        return None
    found: list[Any] = []
    for name, item in items:
        if not name:
            found.append(item)
        elif isinstance(item, bool) and kind is AcceptanceShape:
            found.append(name)  # what a checklist says by name is whether it is done
        elif isinstance(item, str):
            is_note = issubclass(kind, NoteShape)
            found.append({"text": f"{name}: {item}"} if is_note else {"id": name, kind.short_for: item})
        else:
            fields = as_mapping(item)
            found.append(item if fields is None else {"id": name, **fields})
    return found


def _tools(value: object, place: str, problems: Problems) -> tuple[str, ...] | None:
    """The names of tools in whatever lists them; of a list that names none, none at all rather than no limit."""
    names, unread = spellings.tool_names(value)
    if names == () and unread:
        problems.lose(place, "it names no tools, so that only those that no step leaves out are declared")
    elif unread:
        problems.note(f"state {place}: {unread} of its items name no tool")
    return names


def _constraints(value: object, place: str, problems: Problems) -> ConstraintShape:
    """Limits, and beside them what is no field of theirs, or cannot be read as one, in the words that it came in."""
    limits: dict[str, Any] = {}
    lines: list[str] = []
    items = [("", value)] if as_mapping(value) is not None else spellings.as_items(value)
    if items is None:
        problems.lose(place, "it is neither a mapping nor a list")
    for _, item in items or ():
        fields = as_mapping(item)
        if fields is None:
            lines += [] if means_nothing(item) else [_shown(item)]
            continue
        named = _named(ConstraintShape, fields)
        labels = (named.get(key) for key in ("name", "type", "key", "constraint"))
        label = next((label for label in labels if label and isinstance(label, str)), None)
        content = next((named[key] for key in ("value", "text", "description", "limit") if key in named), None)
        if label is not None and content is not None:
            named = _named(ConstraintShape, {label: content})
        for name, raw in named.items():
            if raw is None:
                continue
            if name not in ConstraintShape.model_fields:
                problems.unknown(ConstraintShape, name, place, named)
                lines.append(f"{_shown(name)}: {_shown(raw)}")
                continue
            found = _field(ConstraintShape, name, raw, f"{place}.{name}", problems)
            if found is not None and name == "notes":
                lines += found
            elif found is not None:
                limits[name] = found
            elif not means_nothing(raw):
                lines.append(f"{_shown(name)}: {_shown(raw)}")
    return ConstraintShape.model_construct(None, **limits, notes=tuple(line for line in lines if line.strip()))


# The step that the plan is at.


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
        tools=next((named for named in (step.tools, plan.tools, tools) if named is not None), None),
    )


# What could enter a pack.


def note_id(note: NoteShape, source: str = "note") -> str:
    """A note's own id, else one from its text."""
    return note.id or f"{source}_{short(hash_text(note.text))}"


def evidence_id(record: EvidenceShape) -> str:
    """A record's own id, else one from its address and summary."""
    return record.id or "ev_" + short(hash_text(f"{record.uri}\n{record.summary}"))


def _candidates(knowledge: KnowledgeShape, done: frozenset[str] = frozenset()) -> list[Candidate]:
    notes = {
        "note": knowledge.notes,
        "memory": knowledge.memories,
        "decision": knowledge.decisions,
        "entity": knowledge.entities,
    }
    evidence = [
        Candidate(
            id=evidence_id(record),
            layer="evidence",
            source="state",
            text=record.summary,
            digest=hash_text(f"{record.uri}\n{record.summary}"),
            time=record.time,
            uri=record.uri,
            covers=record.covers,
            content_hash=record.hash,
        )
        for record in knowledge.evidence
    ]
    return [*(_note_candidate(note, source, done) for source, found in notes.items() for note in found), *evidence]


def _note_candidate(note: NoteShape, source: str, done: frozenset[str] = frozenset()) -> Candidate:
    """A note, which stops being true with its step, when it ``expires``, or by its time to live."""
    lives = note.time + note.ttl_seconds if note.time is not None and note.ttl_seconds is not None else None
    end = min((moment for moment in (note.expires, lives) if moment is not None), default=None)
    return Candidate(
        id=note_id(note, source),
        layer="memory",
        source=source,
        text=note.text,
        digest=hash_text(note.text),
        time=note.time,
        expires=_LONG_AGO if note.step_id in done else end,
        kind="standing" if note.kind == "preference" else "own",
    )


def unique(candidates: Iterable[Candidate]) -> tuple[Candidate, ...]:
    """The candidates with a name of their own each; one that says the same under the same name is left out."""
    named: dict[str, Candidate] = {}
    known: set[tuple[str, str]] = set()
    numbers: dict[str, int] = {}
    for candidate in candidates:
        name = f"{candidate.source}_{candidate.id}" if _CONTENT_NAME.fullmatch(candidate.id) else candidate.id
        if (name, candidate.digest) in known:
            continue
        known.add((name, candidate.digest))
        number = numbers.get(candidate.id, 1)
        while name in named and named[name].digest != candidate.digest:
            number += 1
            name = f"{candidate.id}_{number}"
        numbers[candidate.id] = number
        named.setdefault(name, candidate if candidate.id == name else replace(candidate, id=name))
    return tuple(named.values())


def state_schema() -> dict[str, Any]:
    """The JSON Schema of the state that this package reads."""
    return StateShape.model_json_schema() | {"$schema": "https://json-schema.org/draft/2020-12/schema"}
