"""The part of a session's state that an application writes: its plan, tools and knowledge, the task board,
acceptance."""

from aether_context.state.candidates import Plan, read_state, unique
from aether_context.state.plans import acceptance_of, current_step, read_plan
from aether_context.state.schema import EvidenceShape, Problems, StepShape

__all__ = [
    "EvidenceShape",
    "Plan",
    "Problems",
    "StepShape",
    "acceptance_of",
    "current_step",
    "read_plan",
    "read_state",
    "unique",
]
