"""The task board: steps that go from ready to claimed to done, each by one worker, dependencies first.

The board is ``state["plan"]["steps"]``. `TaskBoard` is a frozen view of it; a change returns a new one, and
`change_plan` makes the change in a session's state:

    change_plan(state, lambda board: board.claim("draft", by="writer"))

When two workers in one process share a state and claim the same step, one gets it and the other an error. Workers in
different processes each have a copy of the session: a SQL session service refuses the second one's event as stale, and
when that worker runs again it finds the step claimed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from itertools import chain, repeat
from threading import RLock
from typing import Any, Protocol

from aether_context.canonical import plain
from aether_context.errors import BoardError, listed
from aether_context.pack import NOTHING, AcceptanceItem
from aether_context.plans import ParsedPlan, PlanShape, StepShape, parse_plan
from aether_context.plans.parsing import read_step
from aether_context.plans.schema import NoteShape, Problems, read_shape

WRITING = RLock()
"""A lock for reading a key of a state and writing it back, so that no change made in this process is lost."""


class SessionState(Protocol):
    """The part of a session's state that is used here: a dict, or ADK's ``State``."""

    def get(self, key: str, default: Any = None, /) -> Any: ...

    def __setitem__(self, key: str, value: Any, /) -> None: ...


def current_step(plan: PlanShape, worker: str = "") -> StepShape | None:
    """The current step, None where none is left.

    It is the plan's ``step``; else a step that the worker has claimed; else the one that ``current_step`` names, the
    first claimed one, the first ready one whose dependencies are done, or the first that is not done.
    """
    if plan.step is not None:
        return plan.step
    current = [step for step in plan.steps if plan.current_step and step.id == plan.current_step]
    claimed = [step for step in plan.steps if step.status == "claimed"]
    own_steps = [step for step in claimed if worker and step.claimed_by == worker]
    if own_steps:
        return next((step for step in current if step in own_steps), own_steps[0])
    unclaimed = [step for status in ("ready", "blocked") for step in plan.steps if step.status == status]
    return next(iter([*current, *claimed, *ready_steps(plan.steps), *unclaimed]), None)


def done_steps(steps: Iterable[StepShape]) -> frozenset[str]:
    """The ids of the steps that are done."""
    return frozenset(step.id for step in steps if step.status == "done" and step.id)


def ready_steps(steps: Sequence[StepShape]) -> tuple[StepShape, ...]:
    """The steps that can be claimed: their status is ``ready`` and all steps they depend on are done."""
    done = done_steps(steps)
    return tuple(step for step in steps if step.status == "ready" and done.issuperset(step.depends_on))


def next_step(plan: PlanShape, current: StepShape) -> str:
    """The first step behind the current one that can be claimed once that is done, else the first before it, as one
    line; empty where none can."""
    done, name = done_steps(plan.steps) | {current.id}, current.id or current.text
    at = next((at for at, step in enumerate(plan.steps) if (step.id or step.text) == name), 0)
    in_order = [*plan.steps[at:], *plan.steps[:at]]
    later = [step for step in in_order if step.status == "ready" and (step.id or step.text) != name]
    step = next((step for step in later if done.issuperset(step.depends_on)), StepShape())
    return ": ".join(filter(None, (step.id, *step.text.splitlines()[:1])))


def acceptance_of(plan: PlanShape, step: StepShape) -> tuple[AcceptanceItem, ...]:
    """A step's checklist, or the plan's where the step has none."""
    return tuple(
        AcceptanceItem(id=item.id or f"a{number}", text=item.text, needs_evidence=item.needs_evidence)
        for number, item in enumerate(step.acceptance or plan.acceptance, start=1)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskBoard:
    """The steps of one plan, in order."""

    plan: PlanShape

    @classmethod
    def read(cls, plan: object) -> TaskBoard:
        """The board in a plan from a session's state; None is an empty one.

        Raises:
            BoardError: it is not a plan, a field of a step cannot be read, two steps have the same id, or dependencies
                are unknown or circular.
        """
        return cls(plan=_parse(plan).plan or PlanShape())

    @property
    def steps(self) -> tuple[StepShape, ...]:
        return self.plan.steps

    def step(self, name: str) -> StepShape:
        """The step of that name.

        Raises:
            BoardError: there is none.
        """
        match = next((step for step in self.steps if step.id == name), None)
        if match is None:
            names = listed(step.id for step in self.steps)
            raise BoardError(f"there is no step {name!r}: the steps are {names}", step=name)
        return match

    def ready(self) -> tuple[StepShape, ...]:
        """The steps that can be claimed: their status is ``ready`` and all steps they depend on are done."""
        return ready_steps(self.steps)

    def waiting(self, name: str) -> tuple[str, ...]:
        """Ids of the unfinished steps that a step depends on."""
        done = done_steps(self.steps)
        return tuple(dependency for dependency in self.step(name).depends_on if dependency not in done)

    def acceptance(self, name: str) -> tuple[AcceptanceItem, ...]:
        """The checklist of a step."""
        return acceptance_of(self.plan, self.step(name))

    def unproven(self, name: str, covered: Collection[str]) -> tuple[AcceptanceItem, ...]:
        """Items of a step's checklist that need evidence and whose ids are not among those ``covered`` by evidence."""
        return tuple(item for item in self.acceptance(name) if item.needs_evidence and item.id not in covered)

    def add(self, step: StepShape | Mapping[str, object]) -> TaskBoard:
        """The board with one more step at its end.

        Raises:
            BoardError: it is not a step, its id is taken, or it depends on a step that does not exist.
        """
        problems = Problems()
        added = step if isinstance(step, StepShape) else read_step(step, "step", problems)
        if added is None or problems.rejected:
            path, reason = next(iter(problems.rejected.items()))
            raise BoardError(f"this is not a step: {path.removeprefix('step.')}: {reason}")
        steps = (*self.steps, added)
        _check(steps)
        return replace(self, plan=self.plan.model_copy(update={"steps": steps}))

    def claim(self, name: str, by: str) -> TaskBoard:
        """The board with a step claimed by a worker and made the plan's current one. A worker may claim its step again.

        Raises:
            BoardError: another worker has claimed it, it is done, or a step it depends on is not.
        """
        step, waiting = self.step(name), self.waiting(name)
        problems = {
            "is done": step.status == "done",
            f"is claimed by {step.claimed_by!r}": step.status == "claimed" and step.claimed_by != by,
            f"waits for {listed(waiting)}": bool(waiting),
        }
        for problem in (problem for problem, holds in problems.items() if holds):
            ready = [step.id for step in self.ready()]
            advice = f"claim one of {listed(ready)}" if ready else "no step can be claimed now"
            raise BoardError(f"step {name!r} {problem}: {advice}", step=name)
        return self._with_step(step.model_copy(update={"status": "claimed", "claimed_by": by}))

    def release(self, name: str, by: str) -> TaskBoard:
        """The board with a claimed step ready again.

        Raises:
            BoardError: the worker has not claimed it.
        """
        return self._with_step(self._claimed(name, by).model_copy(update={"status": "ready", "claimed_by": ""}))

    def complete(self, name: str, by: str, notes: Sequence[str] = ()) -> TaskBoard:
        """The board with a step done, and working notes added to it.

        Raises:
            BoardError: the worker has not claimed it.
        """
        step = self._claimed(name, by)
        new_notes = (notes,) if isinstance(notes, str) else notes
        return self._with_step(step.model_copy(update={"status": "done", "notes": _merged(step.notes, new_notes)}))

    def _claimed(self, name: str, by: str) -> StepShape:
        step = self.step(name)
        if step.status == "claimed" and step.claimed_by == by:
            return step
        problems = {"done": "done already", "claimed": f"claimed by {step.claimed_by!r}, not by {by!r}"}
        raise BoardError(f"step {name!r} is {problems.get(step.status, 'not claimed: claim it first')}", step=name)

    def _with_step(self, new_step: StepShape) -> TaskBoard:
        """The board with a changed step. A claimed step becomes the current one; any other stops being it."""
        steps = tuple(new_step if step.id == new_step.id else step for step in self.steps)
        other = "" if self.plan.current_step == new_step.id else self.plan.current_step
        current = new_step.id if new_step.status == "claimed" else other
        return replace(self, plan=self.plan.model_copy(update={"steps": steps, "current_step": current}))


def change_plan(state: SessionState, change: Callable[[TaskBoard], TaskBoard]) -> TaskBoard:
    """Reads the board from a state, changes it and writes it back, under a lock of this process.

    Working notes in ``state["knowledge"]`` that belong to a step which is done now move to that step. Both keys are
    assigned anew, the plan in this package's own words; what stands under other keys stays as it is.

    Args:
        change: returns the changed board; it must not wait for another change.

    Returns:
        The board as it is in the state.

    Raises:
        BoardError: the plan is no board, or the change is not allowed; the state is then as it was.
    """
    with WRITING:
        parsed = _parse(state.get("plan"))
        old_board = TaskBoard(plan=parsed.plan or PlanShape())
        new_board = change(old_board)
        done = done_steps(new_board.steps) - done_steps(old_board.steps)
        knowledge = state.get("knowledge")
        notes = knowledge.get("notes") if done and isinstance(knowledge, Mapping) else ()
        kept_notes: list[object] = []
        moved: dict[str, list[str]] = {}
        for item in notes if isinstance(notes, (list, tuple)) else ():
            note = read_shape(NoteShape, item, "", Problems())
            if note is None or note.step_id not in done:
                kept_notes.append(item)
            else:
                moved.setdefault(note.step_id, []).append(note.text)
        steps = tuple(
            step.model_copy(update={"notes": _merged(step.notes, moved[step.id])}) if step.id in moved else step
            for step in new_board.steps
        )
        plan = _as_json(parsed, new_board.plan.model_copy(update={"steps": steps}))
        board = TaskBoard.read(plan)
        if old_board.plan != board.plan:
            state["plan"] = plan
        if moved and isinstance(knowledge, Mapping):
            state["knowledge"] = {**knowledge, "notes": kept_notes}
        return board


def _parse(plan: object) -> ParsedPlan:
    """A plan that is a board in every part."""
    parsed = parse_plan(plan)
    parts = ("plan.steps", "plan.current_step")
    broken = plan is not None and parsed.plan is None
    for path, reason in parsed.rejected.items():
        if broken or path.startswith(parts):
            raise BoardError(f"state['plan'] is not a plan: {path.removeprefix('plan.')}: {reason}")
    _check(parsed.plan.steps if parsed.plan is not None else ())
    return parsed


def _check(steps: Sequence[StepShape]) -> None:
    counts = Counter(step.id for step in steps)
    for name, count in counts.items():
        if not name:
            raise BoardError("a step on the board has no name: give each an 'id'", step=name)
        if count > 1:
            raise BoardError(f"{count} steps are named {name!r}: give each a name of its own", step=name)
    for step in steps:
        if unknown := [dependency for dependency in step.depends_on if dependency not in counts]:
            problem = f"depends on {listed(unknown)}, not on the board: its steps are {listed(counts)}"
            raise BoardError(f"step {step.id!r} {problem}", step=step.id)
    try:
        TopologicalSorter({step.id: step.depends_on for step in steps}).prepare()
    except CycleError as error:
        circle = sorted(set(error.args[1]))
        raise BoardError(f"steps {listed(circle)} wait for each other", step=circle[0]) from error


def _merged(notes: Sequence[str], new_notes: Sequence[str]) -> tuple[str, ...]:
    """Both lists of notes in order, each text once."""
    return tuple(dict.fromkeys([*notes, *new_notes]))


def _as_json(parsed: ParsedPlan, plan: PlanShape) -> dict[str, Any]:
    """A plan as plain JSON, in this package's words; what it holds under other keys stays."""
    unknown = chain(parsed.unknown_step_fields, repeat(NOTHING))  # a step that was added has no such keys
    steps = [_written(step, fields) for step, fields in zip(plan.steps, unknown, strict=False)]
    return _written(plan, parsed.unknown_fields) | ({"steps": steps} if steps else {})


def _written(shape: PlanShape | StepShape, unknown: Mapping[str, Any]) -> dict[str, Any]:
    # An empty list of tools is read as no restriction.
    tools = {"tools": "none"} if shape.tools == () else {}
    unknown_values = {key: plain(value) for key, value in unknown.items()}
    return unknown_values | shape.model_dump(mode="json", exclude_defaults=True) | tools
