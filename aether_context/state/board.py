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
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from typing import Any

from aether_context.canonical import plain
from aether_context.errors import BoardError, listed
from aether_context.pack import AcceptanceItem
from aether_context.state.plans import Reading, acceptance_of, done_steps, read_plan, read_step, ready_steps
from aether_context.state.schema import WRITING, NoteShape, PlanShape, Problems, SessionState, StepShape, read_shape


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
        return cls(plan=_read(plan).plan or PlanShape())

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
            known = listed(step.id for step in self.steps)
            raise BoardError(f"there is no step {name!r}: the steps are {known}", step=name)
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
        if added is None or problems.lost:
            place, reason = next(iter(problems.lost.items()))
            raise BoardError(f"this is not a step: {place.removeprefix('step.')}: {reason}")
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
        step = self._claimed(name, by)
        return self._with_step(step.model_copy(update={"status": "ready", "claimed_by": ""}))

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

    def _with_step(self, changed: StepShape) -> TaskBoard:
        """The board with a changed step. A claimed step becomes the current one; any other stops being it."""
        steps = tuple(changed if step.id == changed.id else step for step in self.steps)
        other = "" if self.plan.current_step == changed.id else self.plan.current_step
        current = changed.id if changed.status == "claimed" else other
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
        reading = _read(state.get("plan"))
        before = TaskBoard(plan=reading.plan or PlanShape())
        after = change(before)
        done = done_steps(after.steps) - done_steps(before.steps)
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
            for step in after.steps
        )
        plan = _as_json(reading, after.plan.model_copy(update={"steps": steps}))
        board = TaskBoard.read(plan)
        if before.plan != board.plan:
            state["plan"] = plan
        if moved and isinstance(knowledge, Mapping):
            state["knowledge"] = {**knowledge, "notes": kept_notes}
        return board


def _read(plan: object) -> Reading:
    """A plan that is a board in every part."""
    problems = Problems()
    reading = read_plan(plan, problems)
    parts = ("plan.steps", "plan.current_step")
    broken = plan is not None and reading.plan is None
    for place in (place for place in problems.lost if broken or place.startswith(parts)):
        raise BoardError(f"state['plan'] is not a plan: {place.removeprefix('plan.')}: {problems.lost[place]}")
    _check(reading.plan.steps if reading.plan is not None else ())
    return reading


def _check(steps: Sequence[StepShape]) -> None:
    counts = Counter(step.id for step in steps)
    for name, count in counts.items():
        if not name:
            raise BoardError("a step on the board has no name: give each an 'id'", step=name)
        if count > 1:
            raise BoardError(f"{count} steps are named {name!r}: give each a name of its own", step=name)
    for step in steps:
        if unknown := [dependency for dependency in step.depends_on if dependency not in counts]:
            raise BoardError(
                f"step {step.id!r} depends on {listed(unknown)}, not on the board: its steps are {listed(counts)}",
                step=step.id,
            )
    try:
        TopologicalSorter({step.id: step.depends_on for step in steps}).prepare()
    except CycleError as error:
        circle = sorted(set(error.args[1]))
        raise BoardError(f"steps {listed(circle)} wait for each other", step=circle[0]) from error


def _merged(notes: Sequence[str], new_notes: Sequence[str]) -> tuple[str, ...]:
    """Both lists of notes in order, each text once."""
    return tuple(dict.fromkeys([*notes, *new_notes]))


def _as_json(reading: Reading, plan: PlanShape) -> dict[str, Any]:
    """A plan as plain JSON, in this package's words; what it holds under other keys stays."""
    left = [*reading.steps_left, *[{}] * (len(plan.steps) - len(reading.steps_left))]
    steps = [_written(step, beside) for step, beside in zip(plan.steps, left, strict=True)]
    return _written(plan, reading.left) | ({"steps": steps} if steps else {})


def _written(shape: PlanShape | StepShape, left: Mapping[str, Any]) -> dict[str, Any]:
    # An empty list of tools is read as no restriction.
    tools = {"tools": "none"} if shape.tools == () else {}
    return (
        {key: plain(value) for key, value in left.items()}
        | shape.model_dump(mode="json", exclude_defaults=True)
        | tools
    )
