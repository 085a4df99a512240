"""What an application keeps in a session's state: its plan, tools and knowledge, the task board, acceptance."""

from aether_context.state.schema import (
    EvidenceShape,
    NoteShape,
    Plan,
    Problems,
    StepShape,
    acceptance_of,
    current_step,
    note_id,
    read_plan,
    read_state,
    state_schema,
    unique,
)

__all__ = [
    "EvidenceShape",
    "NoteShape",
    "Plan",
    "Problems",
    "StepShape",
    "acceptance_of",
    "current_step",
    "note_id",
    "read_plan",
    "read_state",
    "state_schema",
    "unique",
]
