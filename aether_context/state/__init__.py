"""The part of a session's state that an application writes: the step that its plan is at, the task board, knowledge,
acceptance."""

from aether_context.plans.schema import EvidenceShape, StepShape
from aether_context.state.board import acceptance_of, current_step
from aether_context.state.candidates import PlannedCall, read_state, unique

__all__ = ["EvidenceShape", "PlannedCall", "StepShape", "acceptance_of", "current_step", "read_state", "unique"]
