"""The task board: steps that go from ready to claimed to done, one worker a step, dependencies first.

The board is ``state["plan"]["steps"]``. `TaskBoard` is a frozen view of it, and each change gives a new one;
`change_plan` makes a change in a session's state:

    change_plan(state, lambda board: board.claim("draft", by="writer"))

Of two workers of one process that share a state and claim the same step, one gets it and the other an error. Workers
in different processes each have a copy of the session; there a SQL session service refuses the second one's event as
stale, so that one runs again and then finds the step claimed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError

from aether_context.errors import BoardError
from aether_context.pack import AcceptanceItem, valid
from aether_context.state.schema import (
    WRITING,
    NoteShape,
    PlanShape,
    Problems,
    SessionState,
    StepShape,
    acceptance_of,
    done_steps,
    plan_mapping,
    read_plan,
    ready_steps,
)

_NOTE = TypeAdapter(NoteShape)
_BOARD = ("plan.steps", "plan.current_step")
"""Where a plan has to be readable to be changed as a board."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskBoard:
    """The steps of one plan, in order."""

    plan: PlanShape

    @classmethod
    def read(cls, plan: object) -> TaskBoard:
        """The board in a plan as it stands in a session's state; None is an empty one.

        Raises:
            BoardError: it is not a plan, one of its steps cannot be read in all its fields, two steps share a name, or
                dependencies are unknown or go in a circle.
        """
        problems = Problems()
        shape = PlanShape() if plan is None else read_plan(plan, problems).plan
        wrong = next((place for place in problems.lost if place.startswith(_BOARD) or shape is None), None)
        if shape is None or wrong is not None:
            place = wrong or "plan"
            raise BoardError(f"state['plan'] is not a plan: {place.removeprefix('plan.')}: {problems.lost[place]}")
        _check(shape.steps)
        return cls(plan=shape)

    @property
    def steps(self) -> tuple[StepShape, ...]:
        return self.plan.steps

    def step(self, name: str) -> StepShape:
        """The step of that name.

        Raises:
            BoardError: there is none.
        """
        found = next((step for step in self.steps if step.id == name), None)
        if found is None:
            known = _names(step.id for step in self.steps)
            raise BoardError(f"there is no step {name!r}: the steps are {known}", step=name)
        return found

    def ready(self) -> tuple[StepShape, ...]:
        """Steps that can be claimed: nobody has them, and all they depend on is done."""
        return ready_steps(self.steps)

    def waiting(self, name: str) -> tuple[str, ...]:
        """Names of the steps that a step still waits for."""
        done = done_steps(self.steps)
        return tuple(other for other in self.step(name).depends_on if other not in done)

    def acceptance(self, name: str) -> tuple[AcceptanceItem, ...]:
        """The checklist of a step."""
        return acceptance_of(self.plan, self.step(name))

    def unproven(self, name: str, covered: Collection[str]) -> tuple[AcceptanceItem, ...]:
        """Items of a step's checklist that need evidence and are not among the ids of those ``covered`` by some."""
        return tuple(item for item in self.acceptance(name) if item.needs_evidence and item.id not in covered)

    def add(self, step: StepShape | Mapping[str, object]) -> TaskBoard:
        """The board with one more step at its end.

        Raises:
            BoardError: it is not a step, its name is taken, or it depends on a step that is not there.
        """
        try:
            added = StepShape.model_validate(step)
        except ValidationError as error:
            raise BoardError(f"this is not a step: {_first(error)}") from error
        steps = (*self.steps, added)
        _check(steps)
        return replace(self, plan=self.plan.model_copy(update={"steps": steps}))

    def claim(self, name: str, by: str) -> TaskBoard:
        """The board with a step taken by a worker, and made the plan's current one. Claiming one's own again is fine.

        Raises:
            BoardError: somebody else has it, it is done, or it waits for another step.
        """
        step = self.step(name)
        if step.status == "done":
            raise BoardError(f"step {name!r} is done: {self._open()}", step=name)
        if step.status == "claimed" and step.claimed_by != by:
            raise BoardError(f"step {name!r} is claimed by {step.claimed_by!r}: {self._open()}", step=name)
        if waiting := self.waiting(name):
            raise BoardError(f"step {name!r} waits for {_names(waiting)}: {self._open()}", step=name)
        return self._with(step.model_copy(update={"status": "claimed", "claimed_by": by}), current=name)

    def release(self, name: str, by: str) -> TaskBoard:
        """The board with a claimed step ready again.

        Raises:
            BoardError: the worker does not have it.
        """
        step = self._held(name, by)
        return self._with(step.model_copy(update={"status": "ready", "claimed_by": ""}), current=None)

    def complete(self, name: str, by: str, notes: Sequence[str] = ()) -> TaskBoard:
        """The board with a step done and working notes kept with it.

        Raises:
            BoardError: the worker does not have it.
        """
        step = self._held(name, by)
        said = (notes,) if isinstance(notes, str) else tuple(notes)
        return self._with(step.model_copy(update={"status": "done", "notes": _merged(step.notes, said)}), current=None)

    def _held(self, name: str, by: str) -> StepShape:
        step = self.step(name)
        if step.status == "claimed" and step.claimed_by == by:
            return step
        if step.status == "done":
            raise BoardError(f"step {name!r} is done already", step=name)
        if step.status == "claimed":
            raise BoardError(f"step {name!r} is claimed by {step.claimed_by!r}, not by {by!r}", step=name)
        raise BoardError(f"step {name!r} is not claimed: claim it first", step=name)

    def _open(self) -> str:
        ready = self.ready()
        return f"claim one of {_names(step.id for step in ready)}" if ready else "no step can be claimed now"

    def _with(self, changed: StepShape, current: str | None) -> TaskBoard:
        """The board with a step changed; it becomes the current one, or (``current`` None) stops being it."""
        steps = tuple(changed if step.id == changed.id else step for step in self.steps)
        at = self.plan.current_step if current is None else current
        if current is None and at == changed.id:
            at = ""
        return replace(self, plan=self.plan.model_copy(update={"steps": steps, "current_step": at}))


def change_plan(state: SessionState, change: Callable[[TaskBoard], TaskBoard]) -> TaskBoard:
    """Reads the board from a state, changes it and writes it back, before anybody else in this process can.

    Working notes in ``state["knowledge"]`` that belong to a step which is done now move to that step. Both keys are
    assigned anew, and what this package does not know in them stays as it is.

    Args:
        change: gives the changed board; it must not wait for another change.

    Returns:
        The board as it is in the state.

    Raises:
        BoardError: the plan is no board, or the change is not allowed; the state is then as it was.
    """
    with WRITING:
        held = state.get("plan")
        before = TaskBoard.read(held)
        after = change(before)
        done = done_steps(after.steps) - done_steps(before.steps)
        knowledge, taken = _split(state.get("knowledge"), done)
        steps = tuple(
            step.model_copy(update={"notes": _merged(step.notes, taken[step.id])}) if step.id in taken else step
            for step in after.steps
        )
        plan = _raw(held, before.plan, after.plan.model_copy(update={"steps": steps}))
        board = TaskBoard.read(plan)
        if plan != held:
            state["plan"] = plan
        if taken:
            state["knowledge"] = knowledge
        return board


def _check(steps: Sequence[StepShape]) -> None:
    counts = Counter(step.id for step in steps)
    for name, count in counts.items():
        if not name:
            raise BoardError("a step on the board has no name: give each an 'id'", step=name)
        if count > 1:
            raise BoardError(f"{count} steps are named {name!r}: give each a name of its own", step=name)
    for step in steps:
        if unknown := [other for other in step.depends_on if other not in counts]:
            raise BoardError(
                f"step {step.id!r} depends on {_names(unknown)}, not on the board: its steps are {_names(counts)}",
                step=step.id,
            )
    left = {step.id: set(step.depends_on) for step in steps}
    while free := [name for name, others in left.items() if not others & left.keys()]:
        for name in free:
            del left[name]
    if left:
        raise BoardError(f"steps {_names(left)} wait for each other", step=next(iter(left)))


def _split(knowledge: object, done: frozenset[str]) -> tuple[dict[str, Any], dict[str, tuple[str, ...]]]:
    """Knowledge without the notes of steps that are done, and those notes' texts by step."""
    if not done or not isinstance(knowledge, Mapping) or not isinstance(knowledge.get("notes"), (list, tuple)):
        return {}, {}
    taken: dict[str, tuple[str, ...]] = {}
    kept = []
    for item in knowledge["notes"]:
        note = valid(_NOTE, item)
        if note is None or note.step_id not in done:
            kept.append(item)
        else:
            taken[note.step_id] = (*taken.get(note.step_id, ()), note.text)
    return {**knowledge, "notes": kept}, taken


def _merged(notes: Sequence[str], more: Sequence[str]) -> tuple[str, ...]:
    """Both in order, each text once."""
    return tuple(dict.fromkeys([*notes, *more]))


def _raw(held: object, before: PlanShape, after: PlanShape) -> dict[str, Any]:
    """A plan as it stands in a state, with what changed of it as plain JSON."""
    raw = plan_mapping(held)
    known = {step.id: (step, one) for step, one in zip(before.steps, raw.get("steps") or (), strict=True)}
    steps = []
    for step in after.steps:
        if step.id in known:
            old, one = known[step.id]
            steps.append({**one, **_difference(old, step)})
        else:
            steps.append(step.model_dump(mode="json", exclude_defaults=True))
    return {**raw, **_difference(before, after, exclude={"steps"}), **({"steps": steps} if steps or known else {})}


def _difference(before: BaseModel, after: BaseModel, exclude: set[str] | None = None) -> dict[str, Any]:
    """The fields that changed, as plain JSON."""
    old, new = (one.model_dump(mode="json", exclude=exclude) for one in (before, after))
    return {name: value for name, value in new.items() if value != old[name]}


def _names(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names) or "none"


def _first(error: ValidationError) -> str:
    """Where a value does not fit and why, not what it holds."""
    first = error.errors()[0]
    place = ".".join(str(piece) for piece in first["loc"])
    return f"{place}: {first['msg']}" if place else str(first["msg"])
