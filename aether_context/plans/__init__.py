"""Plans as models and applications write them, read by one function: `parse_plan`.

``schema`` has the fields, ``spellings`` and words.toml the words that stand for them, ``texts`` finds the data that a
text holds, and ``parsing`` finds the plan in the data.
"""

from aether_context.plans.parsing import ParsedPlan, parse_plan, without_plan
from aether_context.plans.schema import PlanShape, StepShape

__all__ = ["ParsedPlan", "PlanShape", "StepShape", "parse_plan", "without_plan"]
