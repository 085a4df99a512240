"""Plans as models and applications write them, read by one function: `parse_plan`.

``schema`` has the fields, ``spellings`` and words.toml the words that stand for them, ``texts`` finds the data that a
text holds, and ``parsing`` finds the plan in the data.
"""

from aether_context.plans.parsing import ParsedPlan, lists_tools, parse_plan, read_step, without_plan
from aether_context.plans.schema import (
    LONG_AGO,
    EvidenceShape,
    KnowledgeShape,
    NoteShape,
    PlanShape,
    Problems,
    Shape,
    StepShape,
    opened,
    read_shape,
    read_tools,
)

__all__ = [
    "LONG_AGO",
    "EvidenceShape",
    "KnowledgeShape",
    "NoteShape",
    "ParsedPlan",
    "PlanShape",
    "Problems",
    "Shape",
    "StepShape",
    "lists_tools",
    "opened",
    "parse_plan",
    "read_shape",
    "read_step",
    "read_tools",
    "without_plan",
]
