"""The shapes of what an application puts into a session's state: ``plan``, ``tools`` and ``knowledge``.

    state["plan"] = {"task_id": "42", "goal": "…", "step": {"id": "3", "text": "…", "acceptance": ["…"]}}
    state["plan"] = {"task_id": "42", "goal": "…", "steps": [{"id": "1", …}, {"id": "2", "depends_on": ["1"], …}]}
    state["tools"] = ["search_web", "file_read"]
    state["knowledge"] = {"notes": ["…"], "evidence": [{"uri": "artifact://…", "summary": "…"}]}

Much of it is written by models. So the words of words.toml stand for the fields, and what does not fit a field is
ignored and its place reported; it never stops a run.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, TypeVar, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from aether_context.canonical import canonical_json, hash_text, plain, short
from aether_context.pack import NOTHING, describe
from aether_context.plans import spellings
from aether_context.plans.spellings import field_of, folded, is_empty, means_nothing
from aether_context.plans.texts import bulleted, json_in, marked

MOST_ITEMS = 1_000
_MOST_TEXT = 20_000
_MOST_PROBLEMS = 50
_MOST_KEY = 60
_MOST_ENTRIES = 200
_MOST_DEPTH = 24
LONG_AGO = -62_135_596_800.0
_LISTS = frozenset(
    ["acceptance", "tools", "constraints", "depends_on", "notes", "open_questions", "next", "stop_when", "covers"]
)
"""Fields of which several words are joined."""
_NAME_KEYS = ("name", "tool_name", "function_name", "tool", "function", "id")
_ALL_TOOLS = frozenset(["", "*", "all", "any", "all tools"])
_ARGUMENTS = re.compile(r"\([^()]*\)")

# Values, before pydantic checks them.


def model_data(value: object, parents: tuple[int, ...] = ()) -> Any:
    """A value as mappings with keys that are texts, as lists and single values. What contains itself, or is nested
    deeper than any plan, is None."""
    if isinstance(value, BaseModel):
        value = {**dict(value), **(value.model_extra or {})}
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    elif isinstance(value, (set, frozenset)):
        value = sorted(value, key=str)
    if not isinstance(value, (Mapping, list, tuple)):
        return value
    if len(parents) > _MOST_DEPTH or id(value) in parents:
        return None
    inside = (*parents, id(value))
    if isinstance(value, Mapping):
        return {str(key): model_data(item, inside) for key, item in value.items()}
    return [model_data(item, inside) for item in value]


def opened(value: object) -> Any:
    """The object or list that a JSON text is, also in a fence; any other value as it is."""
    text = value.strip() if isinstance(value, str) else ""
    if not text.startswith(("{", "[", "```")):
        return value
    parsed, ends_early = json_in(text.strip("`").removeprefix("json") if text.startswith("```") else text)
    return value if parsed is None or ends_early else model_data(parsed)


def entries(value: object) -> list[tuple[str, Any]] | None:
    """The items of a list, of a text whose lines are bullets, or of a mapping with their keys; else None."""
    value = opened(value)
    value = bulleted(value) if isinstance(value, str) else value
    if isinstance(value, Mapping):
        return list(value.items())
    return [("", item) for item in value] if isinstance(value, list) else None


def each(values: Iterable[object]) -> list[Any]:
    """The items of several values, one after another; what is no list is one item."""
    return [item for value in values for _, item in entries(value) or [("", value)]]


def _as_text(value: object, fields: Sequence[str] = ("text", "title", "id")) -> object:
    """A text: empty for None, the items of a list as lines, what a mapping has in the first of its fields."""
    if value is None or isinstance(value, bool):
        return "" if value is None else str(value).lower()
    if isinstance(value, list):
        texts = [_as_text(item) for item in value]
        return "\n".join(map(str, texts)) if all(isinstance(text, (str, int, float)) for text in texts) else value
    if isinstance(value, Mapping):
        step_fields, _ = known_fields("step", value)
        values = [item for name in fields for item in step_fields.get(name, ())]
        return next((item for item in values if isinstance(item, (str, int))), value)
    return value


def _as_name(value: object) -> object:
    """A name: a text without blanks at its ends, or the id or name in a mapping."""
    value = _as_text(value, ("id", "title", "text"))
    return value.strip() if isinstance(value, str) else value


def _as_lines(value: object) -> object:
    """A list of texts; a single text is a list of one."""
    if means_nothing(value) or isinstance(value, (bool, int, float)):
        return () if means_nothing(value) else (str(value),)
    items = entries(value)
    if items is None:
        return value
    texts = [(name, _as_text(item)) for name, item in items if item is not None]
    return tuple(f"{name}: {text}" if name and isinstance(text, str) else text for name, text in texts)


def _as_names(value: object) -> object:
    """A list of names; a text may hold several, separated by commas."""
    value = opened(value)
    if isinstance(value, (str, int, float)) and not isinstance(value, bool):
        value = re.split("[,，、;；\n]", str(value))
    items = entries(value) if value is not None else []
    names = [_as_name(name or item) for name, item in items or ()]
    return value if items is None else tuple(name for name in names if not means_nothing(name))


class Shape(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="ignore", json_schema_extra=describe, coerce_numbers_to_str=True, defer_build=True
    )

    words: ClassVar[str] = ""
    """The table of words.toml that has the words for its fields."""
    lists: ClassVar[Mapping[str, type[Shape]]] = {}
    """The shapes of the items of lists."""
    short_for: ClassVar[str] = "text"
    """The field that a plain text is read as, where it is given in the place of a mapping."""


_Any = TypeVar("_Any", bound=Shape)
Time = Annotated[float, Field(ge=LONG_AGO, le=253_402_300_799, allow_inf_nan=False), BeforeValidator(spellings.as_time)]
Text = Annotated[str, Field(max_length=_MOST_TEXT), BeforeValidator(_as_text)]
Name = Annotated[str, BeforeValidator(_as_name)]
Count = Annotated[int | None, Field(ge=0), BeforeValidator(spellings.as_count)]
Lines = Annotated[tuple[Annotated[str, Field(max_length=_MOST_TEXT)], ...], BeforeValidator(_as_lines)]
Names = Annotated[tuple[str, ...], BeforeValidator(_as_names)]
Kind = Annotated[Literal["preference", "episode"] | None, BeforeValidator(spellings.as_kind)]
ProfileName: TypeAlias = Literal["chat", "coding", "research", "requirements", "test_cases"]
Profile = Annotated[ProfileName | None, BeforeValidator(spellings.as_choice)]


class AcceptanceShape(Shape):
    """One item of a checklist; a string is read as its text."""

    words = "acceptance"

    id: Name = ""
    """Id of the item; ``a1``, ``a2``, … by position where it has none."""
    text: Text
    """What has to be true."""
    needs_evidence: Annotated[bool, BeforeValidator(spellings.as_flag)] = False
    """Whether only proof completes it."""


class ConstraintShape(Shape):
    """Limits of the work; a list of strings is read as ``notes``, and so is any other field, with its key."""

    words = "constraints"
    short_for = "notes"

    risk: Annotated[Literal["low", "medium", "high"] | None, BeforeValidator(spellings.as_risk)] = None
    """How much harm a mistake would do."""
    notes: Lines = ()
    """Any other limits."""


class StepShape(Shape):
    """A step of the plan; a string is read as its text."""

    words = "step"
    lists = {"acceptance": AcceptanceShape}

    id: Name = ""
    """Id of the step, unique among ``steps``."""
    text: Text = ""
    """What is to be done."""
    role: Text = ""
    """Who does it: Planner, Operator, Reviewer, or a name of your own."""
    acceptance: tuple[AcceptanceShape, ...] = ()
    """The checklist: what has to be true for the step to be done."""
    constraints: ConstraintShape = ConstraintShape.model_construct()
    """Limits of it, beside the plan's."""
    tools: Names | None = None
    """The tools it needs, by name. Where tools are given but none can be read, it has no tools, rather than all."""
    depends_on: Names = ()
    """Ids of the steps that have to be done before it."""
    status: Annotated[Literal["ready", "blocked", "claimed", "done"], BeforeValidator(spellings.as_status)] = "ready"
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
    """What comes after it; without it, the plan's, else the first step of the board that can then be claimed."""
    profile: Profile = None
    """The policy profile for it; without it, the plan's."""


class PlanShape(Shape):
    """``state["plan"]``: the task, and the step the agent is at."""

    words = "plan"
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
    constraints: ConstraintShape = ConstraintShape.model_construct()
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


class NoteShape(Shape):
    """A working note; a string is read as its text."""

    words = "note"

    id: Name = ""
    """Id of the note."""
    text: Text
    """The note itself."""
    time: Time | None = None
    """When it was made, seconds since 1970 UTC."""
    expires: Time | None = None
    """When it stops being true, seconds since 1970 UTC."""
    ttl_seconds: Annotated[float | None, Field(gt=0, allow_inf_nan=False)] = None
    """How long it is true after ``time``; ignored without a ``time``."""
    step_id: Name = ""
    """Id of the step that it belongs to; the note expires once that step is done."""
    kind: Kind = None
    """``preference`` for a preference of the user that applies to every request; it comes first among the memories."""

    def stable_id(self, source: str = "note") -> str:
        """Its own id, else one from its text."""
        return self.id or f"{source}_{short(hash_text(self.text))}"


class EvidenceShape(Shape):
    """A piece of proof; a string is read as its URI."""

    words = "evidence"
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
    hash: Name = ""
    """Tagged hash of its whole content, ``sha256:…``."""

    @property
    def digest(self) -> str:
        """Hash of its address and its summary."""
        return hash_text(f"{self.uri}\n{self.summary}")

    def stable_id(self) -> str:
        """Its own id, else one from its address and summary."""
        return self.id or f"ev_{short(self.digest)}"


class KnowledgeShape(Shape):
    """``state["knowledge"]``: notes, memories, decisions, entities and evidence."""

    words = "knowledge"
    note_fields: ClassVar = {"note": "notes", "memory": "memories", "decision": "decisions", "entity": "entities"}
    """The fields that hold notes, by the name of such a note."""
    lists = {**dict.fromkeys(note_fields.values(), NoteShape), "evidence": EvidenceShape}

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


class Problems:
    """The values of a state that were ignored or are unknown, in order. Messages name places, never values.

    ``rejected`` are the places of values that could not be read, or not completely, with the reasons.
    """

    def __init__(self, recorded: Iterable[str] = (), rejected: Mapping[str, str] = NOTHING) -> None:
        self.rejected = dict(rejected)
        self._messages = dict.fromkeys(recorded)
        self._unknown: set[tuple[str, str]] = set()

    @property
    def recorded(self) -> tuple[str, ...]:
        """Every message."""
        return tuple(self._messages)

    @property
    def messages(self) -> tuple[str, ...]:
        """The first messages, and the number of the others."""
        messages = self.recorded
        excess = len(messages) - _MOST_PROBLEMS
        return messages if excess <= 0 else (*messages[:_MOST_PROBLEMS], f"state: {excess} more problems")

    def reject(self, path: str, reason: str, outcome: str = "was ignored") -> None:
        """Reports a value that could not be read."""
        self.rejected[path] = reason
        self.note(f"state {path} {outcome}: {reason}")

    def note(self, text: str) -> None:
        self._messages[text] = None

    def unknown(self, words: str, fields: Mapping[str, object], path: str) -> None:
        """Reports keys that stand for no field, each once for each kind of shape."""
        for key in (" ".join(key[:_MOST_KEY].split()) for key, value in fields.items() if value is not None):
            if (words, key) not in self._unknown and len(self._unknown) <= _MOST_PROBLEMS:
                self._unknown.add((words, key))
                near = spellings.near_field(words, key)
                advice = f": did you mean {near!r}?" if near else " and was not read"
                self.note(f"state {path}.{key} is unknown{advice}")


# Shapes, read by their words.

KnownFields: TypeAlias = dict[str, list[Any]]
"""By field what is given for it, the likeliest first."""


def known_fields(words: str, fields: Mapping[str, Any]) -> tuple[KnownFields, dict[str, Any]]:
    """Reads a mapping by field, without what is empty; and returns the values under keys that stand for no field."""
    ranked_values: dict[str, list[tuple[int, Any]]] = {}
    unknown: dict[str, Any] = {}
    for key, value in fields.items():
        name, rank = field_of(words, key) or ("", 0)
        if not name:
            unknown[key] = value
        elif not is_empty(value) or _says_none(words, name, value):
            if name in ("risk", "limit") and words != "constraints":
                name, value = "constraints", {key: value}
            ranked_values.setdefault(name, []).append((rank, value))
    ordered = {name: sorted(ranked, key=itemgetter(0)) for name, ranked in ranked_values.items()}
    return {name: [value for _, value in ranked] for name, ranked in ordered.items()}, unknown


def _says_none(words: str, name: str, value: object) -> bool:
    """Tells whether an empty value says something: no tools, no questions, or what somebody noted in a word or a
    sign."""
    is_text = isinstance(value, str) and bool(value.strip())
    return is_text if name == "tools" or words not in ("plan", "step") else name == "open_questions" and value == []


def read_shape(kind: type[_Any], value: object, path: str, problems: Problems) -> _Any | None:
    """A shape with the fields that can be read; None where it is no mapping or text, or lacks a required text."""
    value = opened(model_data(value))
    value = {kind.short_for: value} if isinstance(value, str) else value
    if not isinstance(value, Mapping):
        problems.reject(path, "it is neither a mapping nor a text")
        return None
    fields, unknown = known_fields(kind.words, value)
    problems.unknown(kind.words, unknown, path)
    if kind is AcceptanceShape and "text" not in fields:
        clauses = [f"{name} {text_of(fields[name][0])}" for name in ("given", "when", "then") if name in fields]
        fields |= {"text": [", ".join(clauses)]} if clauses else {}
    return shape_of(kind, fields, path, problems)


def shape_of(kind: type[_Any], fields: KnownFields, path: str, problems: Problems) -> _Any | None:
    """A shape from what is given by field: several values of a list are joined, of others the likeliest is taken."""
    values: dict[str, Any] = {}
    forbidden = [f"do not: {text_of(item)}" for item in each(fields.get("forbidden", ()))]
    fields = {**fields, "constraints": [*fields.get("constraints", []), *([forbidden] if forbidden else [])]}
    for name in kind.model_fields:
        field_values, field_path = fields.get(name, []), f"{path}.{name}"
        if not field_values:
            continue
        if name in kind.lists:
            listed = (read_items(kind.lists[name], value, field_path, problems) for value in field_values)
            values[name] = tuple(item for items in listed for item in items)
        elif name == "tools":
            values[name] = read_tools(field_values, field_path, problems)
        elif name == "constraints":
            values[name] = _constraints(field_values, field_path, problems)
        else:
            values[name] = each(field_values) if name in _LISTS and len(field_values) > 1 else field_values[0]
    return _validated(kind, values, path, problems)


def _validated(kind: type[_Any], values: dict[str, Any], path: str, problems: Problems) -> _Any | None:
    """The shape of the values that fit; of a list the items that fit, and a long text cut to its limit."""
    while True:
        try:
            return kind.model_validate(values)
        except ValidationError as error:
            fault = error.errors(include_url=False)[-1]
        name, index = str(fault["loc"][0]), next((at for at in fault["loc"][1:] if isinstance(at, int)), None)
        if name not in values:
            problems.reject(path, "it has no text")
            return None
        # pydantic's messages say what was expected, not what was given.
        reason = fault["msg"].removeprefix("Value error, ").replace("Input should", "it should")
        is_long = fault["type"] == "string_too_long"
        at_item = f"{path}.{name}" if index is None else f"{path}.{name}.{index}"
        problems.reject(at_item, f"{reason[:1].lower()}{reason[1:]}", "was cut" if is_long else "was ignored")
        if index is not None:
            items = list(cast("Sequence[Any]", _as_lines(values[name])))
            items[index : index + 1] = [text_of(items[index])] if is_long else []
            values[name] = items
        elif is_long:
            values[name] = text_of(values[name])
        else:
            del values[name]


def words_in(value: object) -> str:
    """The words of a value; empty where it is data."""
    text = _as_text(opened(value))
    return str(text).strip() if isinstance(text, (str, int, float)) and not isinstance(value, bool) else ""


def text_of(value: object) -> str:
    """A value as text, cut to the longest allowed."""
    text = _as_text(value)
    return (text if isinstance(text, str) else canonical_json(plain(value)))[:_MOST_TEXT]


def read_items(kind: type[_Any], value: object, path: str, problems: Problems) -> list[_Any]:
    """The items of a list that can be read."""
    items = raw_items(kind, value)
    if items is None:
        problems.reject(path, "it is not a list")
        return []
    limit = _MOST_ENTRIES if path in ("knowledge.decisions", "knowledge.entities") else MOST_ITEMS
    if len(items) > limit:
        kept_end = "latest" if path.startswith("knowledge") else "first"
        problems.note(f"state {path}: only the {limit} {kept_end} of {len(items)} entries were read")
        items = items[-limit:] if kept_end == "latest" else items[:limit]
    shapes: list[_Any] = []
    for index, item in enumerate(items):
        shape = read_shape(kind, item, f"{path}.{index}", problems)
        if isinstance(shape, AcceptanceShape) and not shape.id and len(shapes) < index:
            shape = shape.model_copy(update={"id": f"a{index + 1}"})
        if isinstance(shape, NoteShape) and shape.ttl_seconds is not None and shape.time is None:
            problems.note(f"state {path}.{index}.ttl_seconds was ignored: the note has no time")
        shapes += [shape] if shape is not None else []
    return shapes


def raw_items(kind: type[Shape], value: object) -> list[Any] | None:
    """The items of a list as given; the values of a mapping with their keys, or the mapping itself where it is an
    item."""
    value = opened(value)
    is_checklist = kind is AcceptanceShape
    if isinstance(value, Mapping):
        inner_fields, _ = known_fields(kind.words, value)
        if is_checklist and isinstance(inner := opened(inner_fields.get("items", [None])[0]), (list, Mapping)):
            return raw_items(kind, inner)
        if inner_fields.keys() & {kind.short_for, "then", "title"}:
            return [value]
    if isinstance(value, str):
        lines = [value] if kind is NoteShape else bulleted(value)
        return [part for line in lines for part in re.split(r"[;；]\s+", line)] if is_checklist else lines
    items = entries(value)
    result: list[Any] = []
    for name, item in items or ():
        fields = opened(item)
        status = str(item) if isinstance(item, bool) else spellings.status_of(item) if kind is StepShape else ""
        if is_checklist and isinstance(fields, list):
            result += raw_items(kind, fields) or []
        elif not name:
            result.append(marked(item).text if is_checklist and isinstance(item, str) else item)
        elif status:  # a mapping that says of each item whether it is done
            result.append({"text": name, "status": status} if kind is StepShape else name)
        elif isinstance(fields, str):
            result.append({"text": f"{name}: {item}"} if kind is NoteShape else {"id": name, kind.short_for: item})
        else:
            result.append({"id": name, **fields} if isinstance(fields, Mapping) else item)
    return None if items is None else result


def _constraints(constraint_values: Iterable[object], path: str, problems: Problems) -> ConstraintShape:
    """Constraints from mappings and lists: a line for each, with its key where it has one, beside the risk."""
    risk: object = None
    lines: list[str] = []
    for value in map(opened, constraint_values):
        items = [("", value)] if isinstance(value, Mapping) else entries(value)
        if items is None:
            problems.reject(path, "it is neither a mapping nor a list")
        for _, item in items or ():
            fields = opened(item)
            if not isinstance(fields, Mapping):
                lines += [] if means_nothing(item) else [text_of(item)]
                continue
            label = next((fields[key] for key in ("name", "type", "key", "constraint") if fields.get(key)), None)
            content = next((fields[key] for key in ("value", "text", "description", "limit") if key in fields), None)
            fields = {label: content} if isinstance(label, str) and content is not None else fields
            for key, raw in fields.items():
                name = (field_of("constraints", key) or ("",))[0]
                if name == "risk" and (risk_word := spellings.as_risk(raw)) in ("low", "medium", "high"):
                    risk = risk_word
                elif name == "notes":
                    lines += map(text_of, each([raw]))
                elif not is_empty(raw):
                    lines.append(f"{key.replace('_', ' ')}: {text_of(raw)}")
                    if name == "risk":
                        problems.reject(f"{path}.risk", "it should be 'low', 'medium' or 'high'", "is a line of text")
    return ConstraintShape.model_validate({"risk": risk, "notes": tuple(filter(str.strip, lines))})


def read_tools(tool_values: Iterable[object], path: str, problems: Problems) -> tuple[str, ...] | None:
    """The names of tools in lists of any form; None, for no restriction, where nothing, an empty list or a word for all
    is given. A list in which nothing can be read, or a word for none, is no tools, rather than all."""
    named: list[str] | None = None
    unread = 0
    for value in map(model_data, tool_values):
        if value in (None, [], {}) or (isinstance(value, str) and value.strip().casefold() in _ALL_TOOLS):
            continue
        names = [] if means_nothing(value) else [_tool_names(item) for item in _tool_items(value)]
        unread += names.count([])
        named = [*(named or []), *(name for listed in names for name in listed)]
    if unread and not named:
        problems.reject(path, "it names no tools, so that only those that no step leaves out are declared")
    elif unread:
        problems.note(f"state {path}: {unread} of its items name no tool")
    return None if named is None else tuple(dict.fromkeys(named))


def _tool_items(value: object) -> list[Any]:
    value = opened(value)
    if not isinstance(value, Mapping):
        return value if isinstance(value, list) else [value]
    inner = known_fields("step", value)[0].get("tools") or [value[key] for key in ("names", "allowed") if key in value]
    if inner and "name" not in value and isinstance(opened(inner[0]), (list, str)):
        return _tool_items(inner[0])
    if any(isinstance(value.get(key), (str, Mapping)) for key in _NAME_KEYS):
        return [value]
    return [name for name, is_allowed in value.items() if is_allowed not in (False, "false", "no")]


def _tool_names(item: object) -> list[str]:
    """The names in one item: a text, without arguments, or an object with a name."""
    item = opened(item)
    if isinstance(item, Mapping):
        return _tool_names(next((item[key] for key in _NAME_KEYS if item.get(key)), None))
    parts = re.split("[,;，；、\n]", _ARGUMENTS.sub("", item[:_MOST_TEXT])) if isinstance(item, str) else []
    return [part.strip() for part in parts if folded(part) and len(part) <= 200]
