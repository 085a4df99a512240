"""What an application keeps in a session's state: its plan, tools and knowledge, the task board, acceptance."""

from __future__ import annotations

from aether_context.state.schema import (
    WRITING,
    EvidenceShape,
    NoteShape,
    Planned,
    PlanShape,
    Problems,
    SessionState,
    StepShape,
    acceptance_of,
    current_step,
    done_steps,
    evidence_id,
    note_id,
    plan_mapping,
    read_plan,
    read_state,
    ready_steps,
    state_schema,
    unique,
)

__all__ = [
    "WRITING",
    "EvidenceShape",
    "NoteShape",
    "PlanShape",
    "Planned",
    "Problems",
    "SessionState",
    "StepShape",
    "acceptance_of",
    "current_step",
    "done_steps",
    "evidence_id",
    "note_id",
    "plan_mapping",
    "read_plan",
    "read_state",
    "ready_steps",
    "state_schema",
    "unique",
]
