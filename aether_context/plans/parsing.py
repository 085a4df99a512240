"""Reads plans as models write them.

One reading for session state and for the task board: the shallowest mapping that holds steps is the plan, what stands
beside it belongs to it, and its leaves are the steps.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from aether_context.canonical import canonical_json, plain
from aether_context.pack import NOTHING
from aether_context.plans.schema import (
    MOST_ITEMS,
    KnownFields,
    PlanShape,
    Problems,
    StepShape,
    each,
    entries,
    known_fields,
    model_data,
    opened,
    raw_items,
    shape_of,
    text_of,
    words_in,
)
from aether_context.plans.spellings import field_of, folded, status_of
from aether_context.plans.texts import bulleted, json_in, marked, progress_in, readings
from aether_context.text.patterns import pattern

_MOST_PLACES, _MOST_DEPTH = 400, 8
_MOST_SEARCHED = 100_000
_MOST_NEAR = 200
_MOST_EXTRA_TEXT, _MOST_EXTRA_TEXTS = 4_000, 20
_NAMES_TOOLS = pattern(
    r"""(?im)(?:^[^\w\n]{0,8}|["'])(?:\w{1,16}[ _-]?)?to+l+[sz]?"""
    r"""(?:[ _-]?(?:names?|list|set|scope|needed|required|to[ _-]?use))?[^\w\n]{0,4}"""
    r"""(?:[:=](?!\s{0,4}(?:(?:None|null)\b|\[\]|\{\}|""|''))|$)"""
)
"""A place in a text where a list of tools begins: ``tools: …``, ``"tools": […]``, ``## Tools``,
``- **Allowed tools**:``."""
_BESIDE_STEPS = frozenset(["done", "done_index", "results", "statuses", "index", "forbidden"])
_AROUND = _BESIDE_STEPS | PlanShape.model_fields.keys() - {"steps"}
"""Fields of the plan that may stand in the mappings around it."""
_NUMBERED_KEY = pattern(r"(?i)(?:step|task|phase|schritt|aufgabe|etape|étape|paso|步骤|ステップ|手順)?[ _-]?(\d{1,3})")
_NUMBER = pattern(
    r"(?i)(?:[^\W\d_]{1,12}\.?|#)?[ _#-]{0,3}0{0,3}(\d{1,4})(?:\.|[ ]?(?:of|von|de|sur|/)[ ]?\d{1,4})?(?:[ ]?:.*)?"
)
_SHARE = pattern(
    r"(?i)(?!.*\b(?:remain|left|open|to go|offen))\D{0,20}?\b(step )?(\d{1,4}) ?"
    r"(?:(?:/|of|out of|von|de|sur) ?(\d{1,4})\b|(?:\.0+)?(?:[%％]| percent| prozent))(?: ?\(\d+ ?%\))?\D{0,30}"
)
_TOOL_KEYS = frozenset(["tool", "toolname", "function", "functionname", "functioncall", "toolcall"])
_ARGUMENT_KEYS = frozenset(["args", "arguments", "parameters", "params", "kwargs", "input", "toolinput", "actioninput"])
_REFERENCE = pattern(r"[A-Za-z0-9_.#/-]{1,60}")


class ParsedPlan(NamedTuple):
    """A plan as far as it can be read.

    Attributes:
        plan: its fields; None where there is no plan.
        faults: what could not be read, which makes the current step uncertain.
        may_list_tools: set where what could not be read may have named tools.
        skipped_steps: the places of items that are no steps, with the number of steps before each.
        extra_text: texts under keys that stand for no field, by key. A model may need them all the same.
        unknown_fields, unknown_step_fields: the values of the plan and of each of its steps under such keys.
        problems: a message for each value that was ignored or is unknown.
        rejected: the places of values that could not be read, with the reasons.
    """

    plan: PlanShape | None = None
    faults: tuple[str, ...] = ()
    may_list_tools: bool = False
    skipped_steps: tuple[tuple[str, int], ...] = ()
    extra_text: tuple[tuple[str, str], ...] = ()
    unknown_fields: Mapping[str, Any] = NOTHING
    unknown_step_fields: tuple[Mapping[str, Any], ...] = ()
    problems: tuple[str, ...] = ()
    rejected: Mapping[str, str] = NOTHING


def parse_plan(value: object) -> ParsedPlan:
    """Reads a plan of any form: a mapping, a model, a list of steps, or a text that holds one or says it in lines."""
    problems = Problems()
    parsed = _parse(value, problems)
    return parsed._replace(problems=problems.recorded, rejected=problems.rejected)


def _parse(value: object, problems: Problems) -> ParsedPlan:
    raw = opened(model_data(value))
    if raw in (None, "", []):
        return ParsedPlan()
    if not isinstance(raw, str):
        located = _locate(raw) or (({}, raw) if isinstance(raw, Mapping) else None)
        if located is not None:
            return _Reader(problems).read(*located)
        problems.reject("plan", "it is not a mapping")
        return ParsedPlan(faults=("the plan cannot be read",), may_list_tools=isinstance(raw, list) or lists_tools(raw))
    for data, ends_early in readings(raw):
        located = _locate(model_data(data))
        if located is not None and (ends_early or located[0].keys() & {"step", "steps", "open", "doing"}):
            return _Reader(problems).read(*located, ends_early)
    is_broken = raw.lstrip().startswith(("{", "[", "```"))
    problems.reject("plan", "its JSON cannot be read" if is_broken else "it is not a mapping")
    return ParsedPlan(
        faults=("the plan cannot be read",),
        may_list_tools=is_broken or lists_tools(raw),
        extra_text=(("plan", raw[:_MOST_EXTRA_TEXT]),) if not is_broken and _says_much(raw) else (),
    )


def read_step(value: object, path: str, problems: Problems) -> StepShape | None:
    """A single step; None where it cannot be read."""
    leaf = _Reader(problems).leaf(model_data(value), path)
    return leaf.step if leaf is not None else None


def _says_much(text: str) -> bool:
    """Tells whether a text is more than a name or a number."""
    return len(text.split()) > 3 or (not text.isascii() and len(folded(text)) > 5)


def without_plan(text: str) -> str:
    """The text without the JSON of a plan with steps in it, and its fence; as it is where other brackets stand around
    that, or it is not complete."""
    first, stop = re.search(r"[{\[]", text), max(text.rfind("}"), text.rfind("]")) + 1
    value, ends_early = json_in(text[first.start() : stop]) if first is not None else (None, False)
    plan = parse_plan(value).plan if not ends_early else None
    if first is None or plan is None or not (plan.steps or plan.step):
        return text
    return re.sub(r"```\w{0,20}\s{0,20}```", "", text[: first.start()] + text[stop:]).strip()


def lists_tools(plan: object) -> bool:
    """Tells whether a plan without a readable step lists tools anywhere, under any name that models use for such a
    list. One too large to be searched is assumed to list some."""
    text = plan if isinstance(plan, str) else canonical_json(plain(model_data(plan)))
    text = re.sub(r"\\+n", "\n", text).replace("\\", "")  # JSON in a text is escaped once for each text around it
    return len(text) > _MOST_SEARCHED or _NAMES_TOOLS.search(text) is not None


# Where in a value the plan is.


def _locate(value: object) -> tuple[KnownFields, dict[str, Any]] | None:
    """The fields of the plan in a value, and what it has under other keys; None where no field is known.

    The shallowest mapping that holds steps is the plan, and what stands in the mappings around it belongs to it. Where
    none holds steps, it is the shallowest that holds a current step, reads as a step itself, or says what is next.
    """
    items = value if isinstance(value, list) else []
    is_wrapper = len(items) == 1 and isinstance(items[0], Mapping) and _holds_steps(items[0])
    if not is_wrapper and any(isinstance(item, str) or _reads_as_step(item) for item in items):
        value = {"steps": value}
    queue: deque[tuple[Any, tuple[Mapping[str, Any], ...]]] = deque([(value, ())])
    candidates: list[tuple[int, tuple[Mapping[str, Any], ...]]] = []
    for _ in range(_MOST_PLACES):
        if not queue or (candidates and candidates[-1][0] == 0):
            break
        node, parents = queue.popleft()
        node = opened(node)
        if isinstance(node, list):
            queue.extend((item, parents) for item in node)
        elif isinstance(node, str) and "\n" in node:
            queue.extend([(data, parents) for data, _ in readings(node) if isinstance(data, dict)][:1])
        elif isinstance(node, Mapping) and len(parents) < _MOST_DEPTH:
            fields, _ = known_fields("plan", node)
            candidates.append((_rank(node, fields), (*parents, node)))
            skipped = {id(item) for name in ("step", "tools", "acceptance") for item in fields.get(name, ())}
            queue.extend((item, (*parents, node)) for item in node.values() if id(item) not in skipped)
    rank, mappings = min(candidates, key=lambda place: place[0], default=(5, ()))
    if rank == 5:
        return None
    fields, unknown = known_fields("plan", mappings[-1]) if rank != 2 else ({"step": [mappings[-1]]}, {})
    if numbered := _numbered(unknown):
        fields.setdefault("steps", [numbered])
        unknown = {key: item for key, item in unknown.items() if key not in numbered}
    if not fields.keys() & {"steps", "step", "open", "doing", "next"}:  # a checklist that says what is done
        checked = [item for item in each(fields.get("acceptance", ())) if isinstance(item, Mapping)]
        if any(known_fields("step", item)[0].keys() & {"flag", "status"} for item in checked):
            fields["steps"] = fields.pop("acceptance")
    for mapping in reversed(mappings[:-1]):
        outer_fields, others_unknown = known_fields("plan", mapping)
        for name in (outer_fields.keys() & _AROUND) - ({"step"} & fields.keys()):
            outer_values = [item for item in outer_fields[name] if name != "task" or not isinstance(item, Mapping)]
            fields |= {name: [*fields.get(name, []), *outer_values]}
        unknown |= {key: item for key, item in others_unknown.items() if not isinstance(item, Mapping)}
    return fields, unknown


def _rank(mapping: Mapping[str, Any], fields: KnownFields) -> int:
    """Ranks a mapping as a plan: 0 where it holds steps, 5 where it says nothing of one."""
    is_at_step = any(not isinstance(item, bool) for item in fields.get("step", ()))
    says_next = bool(fields.keys() & {"next", "open", "doing"})
    return [_holds_steps(mapping), is_at_step, _is_only_step(mapping), says_next, bool(fields), True].index(True)


def _holds_steps(mapping: Mapping[str, Any]) -> bool:
    fields, unknown = known_fields("plan", mapping)
    return any(map(_are_steps, fields.get("steps", ()))) or len(_numbered(unknown)) > 1


def _numbered(unknown: Mapping[str, Any]) -> dict[str, Any]:
    """The values under keys such as ``step_1``."""
    return {key: item for key, item in unknown.items() if _NUMBERED_KEY.fullmatch(key)}


def _are_steps(value: object) -> bool:
    """Tells whether what stands under a word for steps are steps, not a plan with steps of its own, a title or a
    count."""
    value = opened(value)
    if isinstance(value, Mapping):
        return 2 * sum(field_of("plan", name) is not None for name in value) < len(value)
    return bool(value) if isinstance(value, list) else isinstance(value, str) and len(bulleted(value)) > 1


def _reads_as_step(value: object) -> bool:
    """Tells whether an item of a list is a step."""
    value = opened(value)
    if not isinstance(value, Mapping):
        return False
    fields, unknown = known_fields("step", value)
    names = [item for name in ("text", "title") for item in fields.get(name, ()) if isinstance(item, (str, int))]
    return bool(names) or len(value) == len(_numbered(unknown)) == 1


def _is_only_step(value: Mapping[str, Any]) -> bool:
    """Tells whether a mapping is a step rather than a plan: it has a text under a word that no plan has for its task,
    and a checklist, tools or a status."""
    fields, _ = known_fields("step", value)
    own_keys = [key for key in value if folded(key) == "description" or field_of("plan", key) is None]
    has_text = any((field_of("step", key) or ("",))[0] == "text" and isinstance(value[key], str) for key in own_keys)
    return has_text and not fields.keys().isdisjoint({"acceptance", "tools", "status"})


# The steps.


@dataclass(slots=True, eq=False)
class _Leaf:
    """A step without steps of its own: its values by field, and those under keys that stand for no field."""

    step: StepShape
    path: str
    titles: list[str]
    fields: KnownFields
    unknown: Mapping[str, Any]

    def set(self, **values: Any) -> None:
        self.step = self.step.model_copy(update=values)


@dataclass(slots=True)
class _Reader:
    """Reads one plan."""

    problems: Problems
    leaves: list[_Leaf] = field(default_factory=list)
    skipped: list[tuple[str, int]] = field(default_factory=list)
    named: dict[str, list[_Leaf]] = field(default_factory=dict)
    """The steps by their paths, ids and texts, those of a group by the group's."""
    numbers: dict[str, list[_Leaf]] = field(default_factory=dict)
    """The steps by the digits of their ids."""

    def read(self, fields: KnownFields, unknown: Mapping[str, Any], ends_early: bool = False) -> ParsedPlan:
        problems = self.problems
        step_values = fields.pop("steps", [])
        lists = [value for value in step_values if _are_steps(value)]
        titles = [value for value in step_values if isinstance(value, str) and value not in lists]
        fields.setdefault("task", []).extend(titles)
        listed = [value for value in lists if not isinstance(value, str)] or lists or fields.get("open", [])
        for value in listed or ([] if "step" in fields else fields.pop("next", [])):
            self.collect(value, "plan.steps")
        if not lists and any(not isinstance(opened(value), (str, list, Mapping)) for value in step_values):
            problems.reject("plan.steps", "it is not a list")
        orders = {leaf.path: str(leaf.fields.get("order", [""])[0]) for leaf in self.leaves}
        if all(order.isdecimal() for order in orders.values()):
            self.leaves.sort(key=lambda leaf: int(orders[leaf.path]))
        self._say_done(fields)
        self._distribute(fields)
        self._connect(fields)
        current, step = self._current(fields)
        values_by_field = {name: values for name, values in fields.items() if values}
        plan = shape_of(PlanShape, values_by_field, "plan", problems) or PlanShape()
        problems.unknown("plan", unknown, "plan")
        unreadable = [name for name in ("plan.step", "plan.steps") if name in problems.rejected]
        faults = ["the plan's JSON text is not complete"] if ends_early else []
        faults += [f"{name} cannot be read" for name in unreadable]
        faults += ["plan.current_step names no step"] if "plan.current_step" in problems.rejected else []
        extra = {**unknown, **(current.unknown if current is not None else {})}
        texts = {key: words_in(item)[:_MOST_EXTRA_TEXT] for key, item in extra.items() if not isinstance(item, Mapping)}
        extra_text = [(key, text) for key, text in texts.items() if _says_much(text)]
        name = current.step.id if current is not None and step is None else ""
        steps = tuple(leaf.step for leaf in self.leaves)
        due = sorted((item for item in steps if item.status != "done"), key=lambda item: item.status != "claimed")[:1]
        is_due_cut = ends_early and (step is not None or (not self.skipped and due == [*steps[-1:]]))
        return ParsedPlan(
            plan=plan.model_copy(update={"steps": steps, "step": step, "current_step": name}),
            faults=tuple(faults),
            may_list_tools=is_due_cut or bool(unreadable),
            skipped_steps=tuple(self.skipped),
            extra_text=tuple(extra_text[:_MOST_EXTRA_TEXTS]),
            unknown_fields=unknown,
            unknown_step_fields=tuple(leaf.unknown for leaf in self.leaves),
        )

    def collect(self, value: object, path: str, group: _Leaf | None = None, depth: int = 0) -> list[_Leaf]:
        """The leaves of a list of steps, in order. What a step does not say itself holds from the one above it."""
        items = raw_items(StepShape, value) if depth < _MOST_DEPTH else None
        if items is None:
            self.problems.reject(path, "it is not a list")
        elif len(items) > MOST_ITEMS:
            self.problems.note(f"state {path}: only the {MOST_ITEMS} first of {len(items)} entries were read")
        leaves: list[_Leaf] = []
        for index, item in enumerate((items or [])[:MOST_ITEMS]):
            leaf = self.leaf(item, f"{path}.{index}", group)
            if leaf is None:
                self.skipped.append((f"{path}.{index}", len(self.leaves)))
                continue
            parts = _steps_below(leaf)
            inner = [below for part in parts for below in self.collect(part, leaf.path, leaf, depth + 1)]
            for name in (leaf.path, leaf.step.id, leaf.step.text, *leaf.titles):
                self.named.setdefault(name, inner or [leaf])
                self.named.setdefault(folded(name), inner or [leaf])
            self.numbers.setdefault(re.sub(r"\D", "", leaf.step.id[:60]), []).append(leaf)
            ready = [below for below in inner if below.step.status == "ready"]
            is_unclaimed = all(below.step.status != "claimed" for below in inner)
            if leaf.step.status == "claimed" and ready and is_unclaimed:
                ready[0].set(status="claimed")
            self.leaves += [leaf] if not inner and len(self.leaves) < MOST_ITEMS else []
            leaves += inner or [leaf]
        return leaves

    def leaf(self, item: object, path: str, group: _Leaf | None = None) -> _Leaf | None:
        """A step as it stands; None where it cannot be read."""
        raw = opened(item)
        if isinstance(raw, list) and len(raw) == 2:  # a step, and its status or its result
            raw = {"text": raw[0], "status" if status_of(raw[1]) else "result": raw[1]}
        if not isinstance(raw, (str, Mapping)):
            self.problems.reject(path, "it is neither a mapping nor a text")
            return None
        raw_fields = {"text": raw} if isinstance(raw, str) else raw
        fields, unknown = known_fields("step", raw_fields)
        if len(unknown) == 1 and not fields:  # {"Step one": {…}} or {"1": "Count"}
            key, inner = next((key, opened(value)) for key, value in unknown.items())
            raw_fields = {"id": key, **(inner if isinstance(inner, Mapping) else {"text": inner})}
            fields, unknown = known_fields("step", raw_fields)
        text_values = fields.get("text", ())
        numbers = [text for text in text_values if str(text).isdecimal() and text is not raw_fields.get("text")]
        texts = list(filter(None, (words_in(text) for text in text_values if text not in numbers)))
        titles = [str(title) for title in fields.get("title", ()) if isinstance(title, (str, int))]
        mark = marked((texts or titles or [""])[0])
        # A title in words says more than its text alone, and so does a second text; a single word is a name.
        heads = [title for title in titles[:1] if " " in title and texts and not _has(mark.text, title)]
        lines = [": ".join([*heads, mark.text])]
        lines += [text for text in texts[1:] if " " in text and not _has(mark.text, text)]
        lines += [f"- {words_in(part)}" for part in each(fields.get("parts", ())) if isinstance(part, str)]
        status = _status(fields) or mark.status
        calls = _calls_in(raw_fields)
        unknown = {key: value for key, value in unknown.items() if opened(value) not in calls}
        lines = lines if any(lines) or not calls else [text_of(calls[0])]
        values = {**fields, "text": ["\n".join(filter(None, lines))]}
        values["id"] = [*fields.get("id", []), *numbers, *filter(None, [mark.id])]
        values["tools"] = [*fields.get("tools", []), *calls]
        values["status"] = [status] if status else [*map(words_in, fields.get("status", ()))]
        step = shape_of(StepShape, values, path, self.problems)
        if step is None or not (step.text or step.id or fields.keys() & {"steps", "acceptance", "tools"}):
            self.problems.reject(path, "it has no text")
            return None
        self.problems.unknown("step", unknown, path)
        if group is not None:
            outer = group.step
            names = ("acceptance", "role", "depends_on", "profile")
            notes = tuple(dict.fromkeys([*step.constraints.notes, *outer.constraints.notes]))
            inherited: dict[str, Any] = {name: getattr(step, name) or getattr(outer, name) for name in names}
            inherited |= {"constraints": step.constraints.model_copy(update={"notes": notes})}
            inherited |= {"tools": outer.tools} if step.tools is None else {}
            inherited |= {"status": "done"} if outer.status == "done" else {}
            step = step.model_copy(update=inherited)
        return _Leaf(step, path, titles, fields, unknown)

    # What the plan says of its steps beside them.

    def _say_done(self, fields: KnownFields) -> None:
        for name in ("statuses", "done"):
            values = [opened(value) for value in fields.pop(name, [])]
            counts = [_count_done(value, len(self.leaves)) for value in values]
            fields[name] = [value for value, count in zip(values, counts, strict=True) if count is None]
            if all(leaf.step.status == "ready" for leaf in self.leaves):
                for leaf in self.leaves[: max(filter(None, counts), default=0)]:
                    leaf.set(status="done")
        for progress in [progress_in(value)[1] for value in fields["statuses"] if isinstance(value, str)]:
            for name, values in known_fields("plan", progress)[0].items():
                fields.setdefault(name, []).extend(values)
        lists = [(name, opened(value)) for name in ("done", "results", "done_index") for value in fields.pop(name, [])]
        for name, value in lists:
            items: list[Any] = each([value])
            if isinstance(value, Mapping):  # what came of each
                items = [key for key, item in value.items() if item not in (False, None, "")]
            elif type(value) is int and name != "done_index":  # how many; a flag says nothing of a step
                items = [leaf.path for leaf in self.leaves[:value]]
            elif isinstance(value, str) and not self.find(value):
                items = re.split(r"[,;&]|\band\b", value)
            items = [item[0] if isinstance(item, list) and item else item for item in items]
            from_zero = name == "done_index" or any(str(item) == "0" for item in items)
            for leaf in (leaf for item in items for leaf in self.find(item, from_zero=from_zero)):
                leaf.set(status="done")

    def _distribute(self, fields: KnownFields) -> None:
        """Gives each step its part of a mapping by step, or its status of a list beside the steps."""
        for name, target in (("statuses", "status"), ("acceptance", "acceptance"), ("tools", "tools")):
            for value in fields.pop(name, []):
                raw = opened(value)
                targets = [(self.find(key), item) for key, item in raw.items()] if isinstance(raw, Mapping) else []
                if name == "statuses" and isinstance(raw, list) and len(raw) == len(self.leaves):
                    targets = [([leaf], item) for leaf, item in zip(self.leaves, raw, strict=True)]
                if not targets or not all(leaves for leaves, _ in targets):
                    fields.setdefault(name, []).append(value)
                    if name == "statuses" and re.search(r"\d", str(raw)) and not progress_in(str(raw))[1]:
                        self.problems.note("state plan.progress was ignored: it names no step")
                    continue
                for leaves, item in targets:
                    item = (_status({"status": [item]}) or "ready") if target == "status" else item
                    step = shape_of(StepShape, {target: [item]}, leaves[0].path, self.problems) or StepShape()
                    for leaf in leaves:
                        leaf.set(**{target: getattr(step, target)})

    def _connect(self, fields: KnownFields) -> None:
        """Dependencies, as ids of steps; a step that another depends on is named by its number where it has no id."""
        edges = []
        for name, raw in [pair for value in fields.pop("edges", []) for pair in entries(value) or ()]:
            ends = raw.split("->") if isinstance(raw, str) else raw
            if isinstance(raw, Mapping):
                ends = [raw.get("from", raw.get("source")), raw.get("to", raw.get("target"))]
            edges += [(earlier, name) for earlier in each([raw])] if name else []
            edges += [tuple(ends)] if not name and isinstance(ends, list) and len(ends) == 2 else []
        edges += [(leaf.step.text, name) for leaf in self.leaves for name in each(leaf.fields.get("blocks", ()))]
        for earlier, later in edges:
            for leaf in self.find(later):
                leaf.set(depends_on=(*leaf.step.depends_on, str(earlier)))
        for leaf in self.leaves:
            matches = {name: self.find(name) for name in leaf.step.depends_on}
            needed = [other for leaves in matches.values() for other in leaves if other is not leaf or leaves == [leaf]]
            names = [self._name(other) for other in needed]
            if missing := [name for name, leaves in matches.items() if not leaves]:
                self.problems.note(f"state {leaf.path} never gets ready: it depends on a step that is not there")
            leaf.set(depends_on=tuple(dict.fromkeys([*names, *missing])))

    def _name(self, leaf: _Leaf) -> str:
        if not leaf.step.id:
            leaf.set(id=str(self.leaves.index(leaf) + 1))
        return leaf.step.id

    def find(self, name: object, *, from_zero: bool = False) -> list[_Leaf]:
        """The steps that a name refers to: by id, by text, or by number; those of a group for the group's."""
        name = opened(name)
        if isinstance(name, Mapping):
            fields, _ = known_fields("step", name)
            labels = [label for key in ("id", "text", "title") for label in fields.get(key, ())]
            matches = (self.find(label) for label in labels if isinstance(label, (str, int)))
            return next(filter(None, matches), [])
        if isinstance(name, bool) or not isinstance(name, (str, int, float)):
            return []
        text = str(int(name)) if isinstance(name, float) and name.is_integer() else str(name).strip()
        number = _NUMBER.fullmatch(text) if len(text) < 200 else None
        if number is not None and from_zero:
            return self.leaves[int(number[1]) :][:1]
        mark = marked(text[:500])
        for spelling in (text, folded(text), folded(mark.text), folded(text.split(":", 1)[0]), mark.id):
            if spelling and spelling in self.named:
                return self.named[spelling]
        if number is not None:
            alike = self.numbers.get(number[1], [])
            at = max(int(number[1]) - 1, 0)
            there = self.named.get(f"plan.steps.{at}", [])
            return alike if len(alike) == 1 else there or ([] if self.skipped else self.leaves[at : at + 1])
        near = [leaf for leaf in self.leaves[:_MOST_NEAR] if _has(leaf.step.text, text) or _has(text, leaf.step.text)]
        return near if len(near) == 1 else []

    def _current(self, fields: KnownFields) -> tuple[_Leaf | None, StepShape | None]:
        """The step that the plan's references make the current one, and that step where it is none of the list."""
        ids, named = fields.pop("step_id", []), fields.pop("current_step", [])
        references = [(item, "plan.step", False) for item in fields.pop("step", [])]
        references += [(item, "plan.current_step", False) for item in each(fields.pop("doing", []))]
        references += [(item, "plan.current_step", True) for item in fields.pop("index", [])]
        references += [(item, "plan.current_step", False) for item in [*named, *(ids if self.leaves else [])]]
        for item, path, from_zero in references:
            raw = opened(item)
            raw = raw[0] if isinstance(raw, list) and len(raw) == 1 else raw
            if isinstance(raw, bool):
                continue
            matches = self.find(raw, from_zero=from_zero)
            if open_steps := [leaf for leaf in matches if leaf.step.status != "done"]:
                return self._completed(open_steps[0], raw), None
            if matches:
                continue
            is_name = isinstance(raw, str) and self.leaves and _REFERENCE.fullmatch(raw.strip())
            if is_name or isinstance(raw, (int, float, list)):
                is_name = is_name or self.leaves
                path = "plan.current_step" if is_name else path
                self.problems.reject(path, "no step has that name" if is_name else "it is neither a mapping nor a text")
            elif (leaf := self._single(raw, path)) is not None and not (leaf.step.status == "done" and self.leaves):
                if ids and not leaf.step.id:
                    leaf.set(id=str(ids[0]))
                return leaf, leaf.step
        return None, None

    def _completed(self, leaf: _Leaf, reference: object) -> _Leaf:
        """A step of the list, with an id, and with what a reference to it says more."""
        self._name(leaf)
        extra_leaf = self._single(reference, "plan.step") if isinstance(reference, Mapping) else None
        if extra_leaf is not None:
            unset = {"id", "status", *(() if extra_leaf.step.text else ("text",))}
            added = extra_leaf.step.model_fields_set - unset
            leaf.set(**{name: getattr(extra_leaf.step, name) for name in added})
            leaf.unknown = {**leaf.unknown, **extra_leaf.unknown}
        return leaf

    def _single(self, raw: object, path: str) -> _Leaf | None:
        """A step that stands in no list, its parts in its text. One in a mapping of its own is that."""
        for _ in range(_MOST_DEPTH):
            values = raw.values() if isinstance(raw, Mapping) and not _reads_as_step(raw) else ()
            inner = [inner_step for inner_step in map(opened, values) if isinstance(inner_step, Mapping)]
            if len(inner) != 1:
                break
            raw = inner[0]
        if isinstance(raw, str) and "\n" in raw:
            raw = next((data for data, _ in readings(raw) if _reads_as_step(data)), raw)
        leaf = self.leaf(raw, path)
        if leaf is not None:
            parts = _Reader(Problems())
            for value in _steps_below(leaf):
                parts.collect(value, path)
            lines = [f"- [{'x' if part.step.status == 'done' else ' '}] {part.step.text}" for part in parts.leaves]
            leaf.set(text="\n".join([leaf.step.text, *lines]))
        return leaf


def _calls_in(fields: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The calls of tools that a step holds, as in ``{"action": {"tool": "look_up", "args": {}}}``."""
    # Beside the fields of a step that may hold a call there are keys that stand for no field.
    fields_of_calls = ("", "text", "parts", "expected_tool_calls")
    holders = [opened(value) for key, value in fields.items() if (field_of("step", key) or ("",))[0] in fields_of_calls]
    items = [opened(item) for value in holders for item in (value if isinstance(value, list) else [value])]
    action = fields.get("action")
    if isinstance(action, str) and _REFERENCE.fullmatch(action) and _ARGUMENT_KEYS.intersection(map(folded, fields)):
        items.append({"tool": action})
    return [item for item in items if _is_call(item)]


def _is_call(value: object) -> bool:
    """Tells whether a value names a tool to be called."""
    keys = {folded(key) for key in value} if isinstance(value, Mapping) else set()
    return bool(keys & _TOOL_KEYS or ("name" in keys and keys & _ARGUMENT_KEYS))


def _is_part(value: object) -> bool:
    """Tells whether an item is a step of a step, and not the call of a tool without a text."""
    return isinstance(value, Mapping) and (not _is_call(value) or "text" in known_fields("step", value)[0])


def _steps_below(leaf: _Leaf) -> list[Any]:
    """The lists of steps in a step; parts that are texts or calls belong to the step itself."""
    parts = leaf.fields.get("parts", [])
    in_parts = [part for part in parts if any(map(_is_part, each([part])))]
    return [*leaf.fields.get("steps", []), *in_parts]


def _has(text: str, part: str) -> bool:
    """Tells whether a text contains another; short ones stand in any by chance."""
    return len(folded(part)) > (9 if part.isascii() else 3) and folded(part) in folded(text)


def _share(value: object) -> tuple[int, int] | None:
    """The part that is done and the whole, of ``3/5``, ``3 of 5``, ``60%`` or ``0.6``; None of anything else."""
    text = f"{100 * value:g}%" if isinstance(value, float) else value
    match = _SHARE.fullmatch(text.strip()) if isinstance(text, str) and len(text) < _MOST_NEAR else None
    return (int(match[2]) - bool(match[1]), int(match[3] or 100)) if match is not None else None


def _count_done(value: object, steps: int) -> int | None:
    """The number of steps that a value says are done; None where it says that of no such number of steps."""
    if isinstance(value, Mapping):
        counts = [count for count in known_fields("plan", value)[0].get("done", ()) if type(count) is int]
        value = f"{counts[0]}/{steps}" if counts and steps in value.values() else None
    done, whole = _share(value) or (1, 0)
    is_count = steps and whole in (steps, 100) and done <= whole and done * steps % whole == 0
    return done * steps // whole if is_count else None


def _status(fields: KnownFields) -> str:
    """A step's status by its words, its flags or its result; empty where none says it."""
    for value in fields.get("status", ()):
        if status := _status(known_fields("step", value)[0]) if isinstance(value, Mapping) else status_of(str(value)):
            return status
    for done, whole in filter(None, (_share(value) for value in (*fields.get("status", ()), *fields.get("flag", ())))):
        return "claimed" if 0 < done < whole else "done" if done else "ready"
    for name, meaning in (("flag", "done"), ("active", "claimed")):
        for value in fields.get(name, ()):
            if value is True or (isinstance(value, str) and (status_of(value) == "done" or value[:1].isdigit())):
                return meaning
    has_result = any(not isinstance(value, bool) for value in fields.get("result", ()))
    return "done" if has_result and "status" not in fields else ""
