"""What an application puts into a session's state: ``plan``, ``tools`` and ``knowledge``.

    state["plan"] = {"task_id": "42", "goal": "…", "step": {"id": "3", "text": "…", "acceptance": ["…"]}}
    state["plan"] = {"task_id": "42", "goal": "…", "steps": [{"id": "1", …}, {"id": "2", "depends_on": ["1"], …}]}
    state["tools"] = ["search_web", "file_read"]
    state["knowledge"] = {"notes": ["…"], "evidence": [{"uri": "artifact://…", "summary": "…"}]}

Much of it is written by models. So each field is read on its own, in the spellings that models use. A value that does
not fit is ignored and its place reported; it never stops a run. Fields that are not defined here belong to the
application and are left alone.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from threading import RLock
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Protocol, TypeAlias, TypeVar, cast

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
"""A key, folded, under which models give a list of tools. None of them may be overlooked, since a step without a list
may use all tools."""
_NAMES_TOOLS = re.compile(
    r"""(?im)(?:^[^\w\n]{0,8}|["'])(?:\w{1,16}[ _-]?)?tool[sz]?"""
    r"""(?:[ _-]?(?:names?|list|set|scope|needed|required|to[ _-]?use))?[^\w\n]{0,4}"""
    r"""(?:[:=](?!\s{0,4}(?:(?:None|null)\b|\[\]|\{\}|""|''))|$)"""
)
"""A place in a text where a list of tools begins: ``tools: …``, ``"tools": […]``, ``## Tools``,
``- **Allowed tools**:``."""
_SYNONYMS = {
    "description": "text", "title": "text", "instruction": "text", "instructions": "text", "content": "text",
    "summary": "text", "objective": "goal", "criteria": "acceptance", "checklist": "acceptance",
    "donewhen": "acceptance", "definitionofdone": "acceptance", "requirements": "acceptance",
    "dependencies": "depends_on", "requires": "depends_on", "after": "depends_on", "state": "status",
    "questions": "open_questions", "stopconditions": "stop_when", "url": "uri", "timestamp": "time",
    "ttl": "ttl_seconds",
}  # fmt: skip
"""Other words that models use for a field, folded, and the field."""
_ITEM_TEXTS = (
    "description", "criterion", "criteria", "condition", "requirement", "check", "item", "title", "content", "summary",
    "name",
)  # fmt: skip
"""Keys, folded, under which models write the text of an acceptance item, the most likely first."""
_STEP_NUMBER = re.compile(r"(?i)(?:step|task|number|no\.?|#)?[ _#-]{0,3}0{0,3}(\d{1,4})\.?")
_LONG_AGO = -62_135_596_800.0
_CONTENT_NAME = re.compile(r"c\d+_[0-9a-f]{8}")

WRITING = RLock()
"""A lock for reading a key of a state and writing it back, so that no change made in this process is lost."""


class SessionState(Protocol):
    """The part of a session's state that is used here: a dict, or ADK's ``State``."""

    def get(self, key: str, default: Any = None, /) -> Any: ...

    def __setitem__(self, key: str, value: Any, /) -> None: ...


class _Shape(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="ignore", json_schema_extra=describe, coerce_numbers_to_str=True, defer_build=True
    )

    lists: ClassVar[Mapping[str, type[_Shape]]] = {}
    """The shapes of the items of lists."""
    short_for: ClassVar[str] = "text"
    """The field that a plain text is read as, where it is given in the place of a mapping."""


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
    """One item of a checklist; a string is read as its text."""

    id: Name = ""
    """Id of the item; ``a1``, ``a2``, … by position where it has none."""
    text: Text
    """What has to be true."""
    needs_evidence: Annotated[bool, BeforeValidator(spellings.as_flag)] = False
    """Whether only proof completes it."""


class StepShape(_Shape):
    """A step of the plan; a string is read as its text."""

    lists = {"acceptance": AcceptanceShape}

    id: Name = ""
    """Id of the step, unique among ``steps``."""
    text: Text = ""
    """What is to be done."""
    role: Text = ""
    """Who does it: Planner, Operator, Reviewer, or a name of your own."""
    acceptance: tuple[AcceptanceShape, ...] = ()
    """The checklist: what has to be true for the step to be done."""
    tools: Names | None = None
    """The tools it needs, by name. Where tools are given but none can be read, it has no tools, rather than all."""
    depends_on: Names = ()
    """Ids of the steps that have to be done before it."""
    status: Annotated[Literal["ready", "claimed", "done"], BeforeValidator(spellings.as_status)] = "ready"
    """Its status on the task board."""
    claimed_by: Name = ""
    """Who has claimed it, or did it."""
    notes: Lines = ()
    """Its working notes, kept with it when it is done. Steps that depend on it can read them."""
    expected_tool_calls: Count = None
    """Number of tool calls that it is expected to take; without it, the plan's."""
    open_questions: Lines | None = None
    """What is still to be clarified for it; without it, the plan's."""
    next: Lines = ()
    """What comes after it; without it, the plan's."""
    profile: Profile = None
    """The policy profile for it; without it, the plan's."""


class ConstraintShape(_Shape):
    """Limits of the work; a list of strings is read as ``notes``. Any other field is shown to the model as it is."""

    short_for = "notes"

    token_budget: Count = None
    """Tokens that the step may use."""
    latency_seconds: Annotated[
        float | None, Field(ge=0, allow_inf_nan=False), BeforeValidator(spellings.as_seconds)
    ] = None
    """Time that the step may take."""
    risk: Annotated[Literal["low", "medium", "high"] | None, BeforeValidator(spellings.as_risk)] = None
    """How much harm a mistake would do."""
    notes: Lines = ()
    """Any other limits."""


class PlanShape(_Shape):
    """``state["plan"]``: the task, and the step the agent is at."""

    lists = {"steps": StepShape, "acceptance": AcceptanceShape}

    task_id: Name = ""
    """Id of the task."""
    task: Text = ""
    """The task in a line or two."""
    goal: Text = ""
    """The goal of the whole plan."""
    step: StepShape | None = None
    """The current step; it takes precedence over the task board."""
    steps: tuple[StepShape, ...] = ()
    """The task board: all steps, in order."""
    current_step: Name = ""
    """Id of the current one of ``steps``. Without it, the current step is the first claimed one, else the first ready
    one whose dependencies are done."""
    acceptance: tuple[AcceptanceShape, ...] = ()
    """The current step's checklist, where the step has none."""
    role: Text = ""
    """The current role, where the step has none."""
    constraints: ConstraintShape = ConstraintShape()
    """Limits of the work."""
    tools: Names | None = None
    """Names of the step's tools, where the step names none."""
    expected_tool_calls: Count = None
    """Number of tool calls that the step is expected to take."""
    open_questions: Lines | None = None
    """What is still to be clarified."""
    next: Lines = ()
    """What comes after this step."""
    stop_when: Lines = ()
    """Conditions that end the plan."""
    profile: Profile = None
    """The policy profile for this plan. It takes precedence over the one that the policy has for an agent."""


class NoteShape(_Shape):
    """A working note; a string is read as its text."""

    id: Name = ""
    """Id of the note."""
    text: Text
    """The note itself."""
    time: Time | None = None
    """When it was made, seconds since 1970 UTC."""
    expires: Time | None = None
    """When it stops being true, seconds since 1970 UTC."""
    ttl_seconds: Annotated[float | None, Field(gt=0, allow_inf_nan=False), BeforeValidator(spellings.as_seconds)] = None
    """How long it is true after ``time``; ignored without a ``time``."""
    step_id: Name = ""
    """Id of the step that it belongs to; the note expires once that step is done."""
    kind: Kind = None
    """``preference`` for a preference of the user that applies to every request; it comes first among the memories."""


class EvidenceShape(_Shape):
    """A piece of proof; a string is read as its URI."""

    short_for = "uri"

    id: Name = ""
    """Id of the record."""
    uri: Name = ""
    """Address of its whole content."""
    summary: Text = ""
    """What it shows."""
    covers: Names = ()
    """Ids of the acceptance items that it proves."""
    time: Time | None = None
    """When it was made, seconds since 1970 UTC."""
    tokens: Count = None
    """Tokens of its whole content."""
    hash: Name = ""
    """Tagged hash of its whole content, ``sha256:…``."""


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
    """Memories that the application itself provides."""
    decisions: tuple[NoteShape, ...] = ()
    """Decisions and their reasons."""
    entities: tuple[NoteShape, ...] = ()
    """Facts about people, systems and other things that have names."""
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


class Plan(NamedTuple):
    """A session's state as the pipeline reads it. ``problems`` name the places of ignored values, not the values."""

    step: Step = Step()
    validity: Validity = "unplanned"
    invalid_reason: str = ""
    profile: str | None = None
    candidates: tuple[Candidate, ...] = ()
    problems: tuple[str, ...] = ()


def read_state(state: Mapping[str, Any], worker: str = "") -> Plan:
    """The step and the candidates in a session's state. Each field is read on its own, so a wrong one affects no other.

    Where the step, its acceptance list or its tools are given but cannot be read, the plan is invalid. Where the tools,
    or a value that may hold them, cannot be read, the step has no tools.

    Args:
        worker: the agent that asks. A step that it has claimed is preferred to steps that others have claimed.
    """
    problems = Problems()
    reading = read_plan(state.get("plan"), problems)
    tools = _tools(state.get("tools"), "tools", problems)
    raw_knowledge = state.get("knowledge")
    knowledge = None
    if raw_knowledge is not None and as_mapping(raw_knowledge) is None:
        problems.lose("knowledge", "it is not a mapping")
    elif raw_knowledge is not None:
        knowledge = read_shape(KnowledgeShape, raw_knowledge, "knowledge", problems)
    knowledge = knowledge or KnowledgeShape()
    plan, faults = reading.plan, list(reading.faults)
    if plan is None:
        return Plan(
            step=Step(tools=() if reading.closed else tools),
            validity="invalid" if faults else "unplanned",
            invalid_reason="; ".join(faults),
            candidates=unique(_candidates(knowledge)),
            problems=problems.messages,
        )
    active = current_step(plan, worker)
    current = active or StepShape()
    skipped: list[str] = []
    if plan.step is None and not plan.current_step and current.status != "claimed":
        # The step is current only by its position: an unreadable item before it may be the current one.
        position = reading.positions[plan.steps.index(active)] if active is not None else _MOST_ITEMS
        skipped = [f"plan.steps.{unread}" for unread in reading.unread if unread < position]
    step = _step(plan, current, tools)
    finished = bool(plan.steps) and plan.step is None and all(step.status == "done" for step in plan.steps)
    unread = reading.closed or (skipped and active is None)
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
    return Plan(
        step=step,
        validity="invalid" if faults else "valid",
        invalid_reason="; ".join(dict.fromkeys(faults)),
        profile=current.profile or plan.profile,
        candidates=unique(
            [*_candidates(knowledge, done_steps(plan.steps)), *(_note_candidate(note, "note") for note in notes)]
        ),
        problems=problems.messages,
    )


class Problems:
    """What was ignored or is unknown in a state, in order. Messages name places, never values.

    ``lost`` are the places of values that could not be read, or not completely.
    """

    def __init__(self) -> None:
        self.lost: dict[str, str] = {}
        self._messages: dict[str, None] = {}
        self._unknown: set[tuple[type, str]] = set()

    @property
    def messages(self) -> tuple[str, ...]:
        messages = tuple(self._messages)
        excess = len(messages) - _MOST_PROBLEMS
        return messages if excess <= 0 else (*messages[:_MOST_PROBLEMS], f"state: {excess} more problems")

    def lose(self, place: str, reason: str, outcome: str = "was ignored") -> None:
        self.lost[place] = reason
        self.note(f"state {place} {outcome}: {reason}")

    def note(self, text: str) -> None:
        self._messages[text] = None

    def unknown(self, kind: type[_Shape], key: str, place: str, given_keys: Collection[str]) -> None:
        """Reports a key that is not a field but resembles one, once for each kind of shape.

        Where the field that it resembles is given as well, the spelling has to be close. All other keys are taken for
        the application's own.
        """
        key = " ".join(key.split())[:_MOST_KEY]
        if (kind, key) in self._unknown or len(self._unknown) > _MOST_PROBLEMS:
            return
        field = _likely_field(kind, key)
        if field and (field not in given_keys or difflib.get_close_matches(folded(key), [folded(field)], cutoff=0.8)):
            self._unknown.add((kind, key))
            beside = ", which is given as well" if field in given_keys else ""
            self.note(f"state {place}.{key} is unknown: did you mean {field!r}{beside}?")


@lru_cache(maxsize=500)
def _likely_field(kind: type[_Shape], key: str) -> str:
    """The field that a key is likely to mean; empty where none is similar."""
    names = {folded(name): name for name in kind.model_fields}
    if kind is PlanShape:
        names |= {folded(name): f"constraints.{name}" for name in ConstraintShape.model_fields if name != "notes"}
    if (synonym := _SYNONYMS.get(folded(key), "")) in kind.model_fields:
        return synonym
    words = [word for word in map(folded, re.split(r"[\W_]+", key)) if len(word) > 3 and word in names]
    matches = difflib.get_close_matches(folded(key), names, n=1) or words
    return names[matches[0]] if matches else ""


# The plan.


class Reading(NamedTuple):
    """A plan as far as it can be read, None where there is none.

    ``faults`` say what could not be read, which makes the current step uncertain. ``closed`` is set where that may have
    named tools. ``positions`` are the indices in the given list of the steps, ``unread`` those of items that are no
    steps.
    """

    plan: PlanShape | None = None
    faults: tuple[str, ...] = ()
    closed: bool = False
    positions: tuple[int, ...] = ()
    unread: tuple[int, ...] = ()


def read_plan(value: object, problems: Problems) -> Reading:
    """Reads a plan field by field: a mapping, a pydantic model, a list of steps, or one of these as JSON text."""
    if value is None:
        return Reading()
    fields, ends_early = _plan_fields(value)
    if fields is None:
        broken = spellings.looks_like_json(value) if isinstance(value, str) else bool(value) and isinstance(value, list)
        problems.lose("plan", "its JSON cannot be read" if isinstance(value, str) and broken else "it is not a mapping")
        # A value that may have named tools allows none; other texts and numbers change nothing.
        return Reading(faults=("the plan cannot be read",) if value else (), closed=broken or _lists_tools(value))
    faults = []
    if ends_early:
        problems.note("state plan: its JSON text ends before it is complete")
        faults.append("the plan's JSON text is not complete")
    plan = read_shape(PlanShape, fields, "plan", problems, skip="steps") or PlanShape()
    items, unread = _read_items(StepShape, fields.get("steps"), "plan.steps", problems)
    positions = tuple(position for position, _ in items)
    unreadable = [place for place in ("plan.step", "plan.steps") if place in problems.lost]
    faults += [f"{place} cannot be read" for place in unreadable]
    plan = _with_resolved_names(plan, [step for _, step in items], positions, problems)
    if "plan.current_step" in problems.lost:
        faults.append("plan.current_step names no step")
    return Reading(
        plan=plan, faults=tuple(faults), closed=ends_early or bool(unreadable), positions=positions, unread=unread
    )


def plan_mapping(value: object) -> dict[str, Any]:
    """A plan as a mapping by field name, its steps as a list of mappings. Unknown fields stay as they are."""
    fields = dict(_plan_fields(value)[0] or {})
    if "steps" in fields:
        items = _raw_items(StepShape, fields["steps"]) or []
        fields["steps"] = [dict(_fields_of(StepShape, item) or {}) for item in items]
    return fields


def _lists_tools(plan: object) -> bool:
    """Whether a plan without a readable step lists tools anywhere, under any name that models use for such a list.

    At most 2,000 values are searched. A larger plan is assumed to list tools in the rest.
    """
    queue = [plan]
    for _ in range(_MOST_VALUES):
        if not queue:
            return False
        value = queue.pop()
        if isinstance(value, str):
            if _NAMES_TOOLS.search(value):
                return True
            value = spellings.as_json(value, only_json=False)[0] if "{" in value or "[" in value else None
        fields = as_mapping(value)
        for key, item in fields.items() if fields is not None else ():
            if _TOOLS_KEY.fullmatch(folded(str(key))) and item not in (None, "", [], {}):
                return True
            queue.append(item)
        if isinstance(value, (list, tuple)):
            queue += value[:_MOST_VALUES]
    return bool(queue)


def _plan_fields(value: object, *, wrapped: bool = True) -> tuple[dict[str, Any] | None, bool]:
    """A plan's fields, which may be wrapped in a key ``plan``, and whether its JSON text ends before it is complete."""
    ends_early = False
    if isinstance(value, str):
        value, ends_early = spellings.as_json(value, only_json=False)
    if isinstance(value, (list, tuple)) and value:
        value = {"steps": value}
    fields = as_mapping(value)
    if fields is None:
        return None, ends_early
    by_name = _by_field_name(PlanShape, fields)
    if wrapped and not PlanShape.model_fields.keys() & by_name.keys():
        wrapped_value = next((item for key, item in fields.items() if folded(str(key)) == "plan"), None)
        inner_fields, cut_off = _plan_fields(wrapped_value, wrapped=False)
        if inner_fields is not None:
            return inner_fields, ends_early or cut_off
    return by_name, ends_early


def _with_resolved_names(
    plan: PlanShape, steps: list[StepShape], positions: Sequence[int], problems: Problems
) -> PlanShape:
    """A plan with its steps, in which ``current_step`` and ``depends_on`` hold the ids of steps.

    Models also refer to a step by its number, its text, or its id in another case.
    """
    current, name = plan.step, plan.current_step
    if current is not None and steps and not current.acceptance:
        reference = current.id if not current.text else current.text if not current.id else ""
        if reference and _find(reference, steps, positions) is not None:
            current, name = None, reference
    if name and current is None:
        index = _find(name, steps, positions)
        if index is None:
            problems.lose("plan.current_step", "no step has that name")
            name = ""
        else:
            name = steps[index].id or name
            steps[index] = steps[index].model_copy(update={"id": name})
    for position, step in enumerate(steps):
        if step.depends_on:
            indices = {dependency: _find(dependency, steps, positions) for dependency in step.depends_on}
            names = [
                (steps[index].id or dependency) if index is not None else dependency
                for dependency, index in indices.items()
            ]
            steps[position] = step.model_copy(update={"depends_on": tuple(names)})
            if not {step.id for step in steps}.issuperset(names):
                problems.note(
                    f"state plan.steps.{positions[position]} never gets ready: it depends on a step that is not there"
                )
    return plan.model_copy(update={"steps": tuple(steps), "step": current, "current_step": name})


def _find(name: str, steps: Sequence[StepShape], positions: Sequence[int]) -> int | None:
    """The index of the step that a name refers to: by its id, its text, or its number."""
    folded_name = folded(name)
    ids = [step.id for step in steps]
    for candidates, spelling in (
        (ids, name),
        ([folded(id) for id in ids], folded_name),
        ([folded(step.text) for step in steps], folded_name),
    ):
        if spelling and spelling in candidates:
            return candidates.index(spelling)
    number = _STEP_NUMBER.fullmatch(name.strip())
    if number is None:
        head = name.split(":", 1)[0]
        return _find(head, steps, positions) if head != name else None
    numbers = [re.sub(r"\D", "", id[:_MOST_KEY]) for id in ids]
    if numbers.count(number[1]) == 1:
        return numbers.index(number[1])
    position = int(number[1]) - 1
    return positions.index(position) if position in positions else None


# Shapes, field by field.


def _by_field_name(kind: type[_Shape], fields: Mapping[Any, Any]) -> dict[str, Any]:
    """Fields under the names that a shape has for them, whatever their case and separators; others as they are."""
    names = {folded(name): name for name in kind.model_fields}
    result = {str(key): value for key, value in fields.items() if key in kind.model_fields and value is not None}
    for key, value in fields.items():
        if key not in kind.model_fields:
            key, folded_key = str(key), folded(str(key))
            name = names.get(folded_key) or names.get(f"{folded_key}s", key)
            if name == key and "tools" in kind.model_fields and _TOOLS_KEY.fullmatch(folded_key):
                name = "tools"
            result[key if name in result else name] = value
    return result


def _fields_of(kind: type[_Shape], value: object) -> dict[str, Any] | None:
    """The fields in a value, by their names in a shape; None where the value is neither a mapping nor a text."""
    if isinstance(value, str) and not spellings.looks_like_json(value):
        return {kind.short_for: value}
    fields = as_mapping(value)
    return None if fields is None else _by_field_name(kind, fields)


def read_shape(kind: type[_Any], value: object, place: str, problems: Problems, skip: str = "") -> _Any | None:
    """A shape with the fields that can be read, without the field ``skip``. None where the value is no mapping or text,
    or lacks a required text."""
    fields = _fields_of(kind, value)
    if fields is None:
        problems.lose(place, "it is neither a mapping nor a text")
        return None
    if kind is AcceptanceShape and means_nothing(fields.get("text")):
        texts = {folded(key): key for key, raw in fields.items() if isinstance(raw, str) and raw.strip()}
        if (key := next((texts[word] for word in _ITEM_TEXTS if word in texts), None)) is not None:
            problems.note(f"state {place} has no 'text': its {key!r} was read as that")
            fields = {"text": fields[key]} | {name: raw for name, raw in fields.items() if name not in ("text", key)}
    values: dict[str, Any] = {}
    for name, raw in fields.items():
        field_place = f"{place}.{name}"
        if name not in kind.model_fields:
            problems.unknown(kind, name, place, fields)
        elif raw is None or name == skip:
            continue
        elif name in kind.lists:
            values[name] = tuple(shape for _, shape in _read_items(kind.lists[name], raw, field_place, problems)[0])
        elif name == "tools":
            values[name] = _tools(raw, field_place, problems)
        elif name == "step":
            values[name] = read_shape(StepShape, raw, field_place, problems) if raw not in ("", {}) else None
        elif name == "constraints":
            values[name] = _constraints(raw, field_place, problems)
        elif (field_value := _field(kind, name, raw, field_place, problems)) is not None:
            values[name] = field_value
    if (text := kind.model_fields.get("text")) and text.is_required() and not values.get("text", "").strip():
        problems.lose(place, "it has no text")
        return None
    return cast(_Any, kind.model_construct(None, **values))


def _field(kind: type[_Shape], name: str, raw: object, place: str, problems: Problems) -> Any:
    """One field's value: of a list the items that can be read, a long text cut to its limit; None where unreadable."""
    try:
        return _adapter(kind, name).validate_python(raw)
    except ValidationError as error:
        fault = error.errors()[0]
    items = spellings.as_lines(raw)
    if fault["loc"] and isinstance(items, tuple):
        read_items = [_field(_Item, "text", item, f"{place}.{index}", problems) for index, item in enumerate(items)]
        return _adapter(kind, name).validate_python([item for item in read_items if item is not None]) or None
    # pydantic's messages say what was expected, not what was given.
    reason = fault["msg"].removeprefix("Value error, ")
    reason = f"{reason[:1].lower()}{reason[1:]}".replace("input should", "it should")
    is_long = fault["type"] == "string_too_long"
    problems.lose(place, reason, "was cut" if is_long else "was ignored")
    return _as_text(raw) if is_long else None


@lru_cache(maxsize=128)
def _adapter(kind: type[_Shape], name: str) -> TypeAdapter[Any]:
    field = kind.model_fields[name]
    annotation: Any = Annotated[(field.annotation, Field(), *field.metadata)]
    return TypeAdapter(annotation, config=ConfigDict(coerce_numbers_to_str=True))


class _Item(_Shape):
    """An item of a list of texts."""

    text: Text


def _as_text(value: object) -> str:
    """A value as text, cut to the longest allowed."""
    text = spellings.as_text(value)
    return (text if isinstance(text, str) else canonical_json(plain(value)))[:_MOST_TEXT]


def _read_items(
    kind: type[_Any], value: object, place: str, problems: Problems
) -> tuple[list[tuple[int, _Any]], tuple[int, ...]]:
    """The items of a list that can be read, with their indices; and the indices of those that cannot."""
    if means_nothing(value):
        return [], ()
    items = _raw_items(kind, value)
    if items is None:
        problems.lose(place, "it is not a list")
        return [], ()
    limit = _MOST_ENTRIES if place in ("knowledge.decisions", "knowledge.entities") else _MOST_ITEMS
    if len(items) > limit:
        kept_end = "latest" if place.startswith("knowledge") else "first"
        problems.note(f"state {place}: only the {limit} {kept_end} of {len(items)} entries were read")
        items = items[-limit:] if kept_end == "latest" else items[:limit]
    shapes: list[tuple[int, _Any]] = []
    unread = []
    for index, item in enumerate(items):
        item_place = f"{place}.{index}"
        shape = read_shape(kind, item, item_place, problems)
        if shape is None or (place == "plan.steps" and f"{item_place}.status" in problems.lost):
            unread.append(index)
            continue
        if isinstance(shape, AcceptanceShape) and not shape.id and unread:
            shape = shape.model_copy(update={"id": f"a{index + 1}"})
        if isinstance(shape, NoteShape) and shape.ttl_seconds is not None and shape.time is None:
            problems.note(f"state {item_place}.ttl_seconds was ignored: the note has no time")
        shapes.append((index, shape))
    return shapes, tuple(unread)


def _raw_items(kind: type[_Shape], value: object) -> list[Any] | None:
    """The items of a list as given; the values of a mapping with their keys, or the mapping itself where it is an
    item."""
    fields = as_mapping(value)
    if fields is not None and kind.short_for in _by_field_name(kind, fields):
        return [fields]
    if isinstance(value, str) and not spellings.looks_like_json(value):
        return list(spellings.bulleted(value)) if kind is AcceptanceShape else [value]
    items = spellings.as_items(value)
    if items is None:
        return None
    result: list[Any] = []
    for name, item in items:
        if not name:
            result.append(item)
        elif isinstance(item, bool) and kind is AcceptanceShape:
            result.append(name)  # a checklist as a mapping: whether each item is done
        elif isinstance(item, str):
            is_note = issubclass(kind, NoteShape)
            result.append({"text": f"{name}: {item}"} if is_note else {"id": name, kind.short_for: item})
        else:
            fields = as_mapping(item)
            result.append(item if fields is None else {"id": name, **fields})
    return result


def _tools(value: object, place: str, problems: Problems) -> tuple[str, ...] | None:
    """The names of tools in a list of any form. A list without readable names means no tools, rather than all."""
    names, unread = spellings.tool_names(value)
    if names == () and unread:
        problems.lose(place, "it names no tools, so that only those that no step leaves out are declared")
    elif unread:
        problems.note(f"state {place}: {unread} of its items name no tool")
    return names


def _constraints(value: object, place: str, problems: Problems) -> ConstraintShape:
    """Constraints from a mapping or a list. What is no field, or cannot be read as one, becomes a line of ``notes``."""
    limits: dict[str, Any] = {}
    lines: list[str] = []
    items = [("", value)] if as_mapping(value) is not None else spellings.as_items(value)
    if items is None:
        problems.lose(place, "it is neither a mapping nor a list")
    for _, item in items or ():
        fields = as_mapping(item)
        if fields is None:
            lines += [] if means_nothing(item) else [_as_text(item)]
            continue
        values = _by_field_name(ConstraintShape, fields)
        labels = (values.get(key) for key in ("name", "type", "key", "constraint"))
        label = next((label for label in labels if label and isinstance(label, str)), None)
        content = next((values[key] for key in ("value", "text", "description", "limit") if key in values), None)
        if label is not None and content is not None:
            values = _by_field_name(ConstraintShape, {label: content})
        for name, raw in values.items():
            if raw is None:
                continue
            if name not in ConstraintShape.model_fields:
                problems.unknown(ConstraintShape, name, place, values)
                lines.append(f"{_as_text(name)}: {_as_text(raw)}")
                continue
            limit = _field(ConstraintShape, name, raw, f"{place}.{name}", problems)
            if limit is not None and name == "notes":
                lines += limit
            elif limit is not None:
                limits[name] = limit
            elif not means_nothing(raw):
                lines.append(f"{_as_text(name)}: {_as_text(raw)}")
    return ConstraintShape.model_construct(None, **limits, notes=tuple(line for line in lines if line.strip()))


# The step that the plan is at.


def current_step(plan: PlanShape, worker: str = "") -> StepShape | None:
    """The current step, None where none is left.

    It is the plan's ``step``; else a step that the worker has claimed; else the one that ``current_step`` names, the
    first claimed one, or the first ready one whose dependencies are done.
    """
    if plan.step is not None:
        return plan.step
    current = [step for step in plan.steps if plan.current_step and step.id == plan.current_step]
    claimed = [step for step in plan.steps if step.status == "claimed"]
    own_steps = [step for step in claimed if worker and step.claimed_by == worker]
    if own_steps:
        return next((step for step in current if step in own_steps), own_steps[0])
    return next(iter([*current, *claimed, *ready_steps(plan.steps)]), None)


def done_steps(steps: Iterable[StepShape]) -> frozenset[str]:
    """The ids of the steps that are done."""
    return frozenset(step.id for step in steps if step.status == "done" and step.id)


def ready_steps(steps: Sequence[StepShape]) -> tuple[StepShape, ...]:
    """The steps that can be claimed: their status is ``ready`` and all steps they depend on are done."""
    done = done_steps(steps)
    return tuple(step for step in steps if step.status == "ready" and done.issuperset(step.depends_on))


def acceptance_of(plan: PlanShape, step: StepShape) -> tuple[AcceptanceItem, ...]:
    """A step's checklist, or the plan's where the step has none."""
    return tuple(
        AcceptanceItem(id=item.id or f"a{number}", text=item.text, needs_evidence=item.needs_evidence)
        for number, item in enumerate(step.acceptance or plan.acceptance, start=1)
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
        tools=next((names for names in (step.tools, plan.tools, tools) if names is not None), None),
    )


# Candidates for a pack.


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
    return [*(_note_candidate(note, source, done) for source, listed in notes.items() for note in listed), *evidence]


def _note_candidate(note: NoteShape, source: str, done: frozenset[str] = frozenset()) -> Candidate:
    """A note as a candidate. It expires with its step, at its time ``expires``, or after its ``ttl_seconds``."""
    ttl_end = note.time + note.ttl_seconds if note.time is not None and note.ttl_seconds is not None else None
    expires = min((time for time in (note.expires, ttl_end) if time is not None), default=None)
    return Candidate(
        id=note_id(note, source),
        layer="memory",
        source=source,
        text=note.text,
        digest=hash_text(note.text),
        time=note.time,
        expires=_LONG_AGO if note.step_id in done else expires,
        kind="preference" if note.kind == "preference" else "app_note",
    )


def unique(candidates: Iterable[Candidate]) -> tuple[Candidate, ...]:
    """The candidates with unique ids. One with the same id and text as another is left out."""
    by_name: dict[str, Candidate] = {}
    seen: set[tuple[str, str]] = set()
    numbers: dict[str, int] = {}
    for candidate in candidates:
        name = f"{candidate.source}_{candidate.id}" if _CONTENT_NAME.fullmatch(candidate.id) else candidate.id
        if (name, candidate.digest) in seen:
            continue
        seen.add((name, candidate.digest))
        number = numbers.get(candidate.id, 1)
        while name in by_name and by_name[name].digest != candidate.digest:
            number += 1
            name = f"{candidate.id}_{number}"
        numbers[candidate.id] = number
        by_name.setdefault(name, candidate if candidate.id == name else replace(candidate, id=name))
    return tuple(by_name.values())


def state_schema() -> dict[str, Any]:
    """The JSON Schema of the state that this package reads."""
    return StateShape.model_json_schema() | {"$schema": "https://json-schema.org/draft/2020-12/schema"}
