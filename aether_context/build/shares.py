"""The allocation of a pack, or the refusal of a step that is too large, with the texts that make it so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from aether_context import payload
from aether_context.build.choice import Chosen
from aether_context.build.demand import allocated, demand
from aether_context.build.room import input_budget
from aether_context.build.tightening import Tight
from aether_context.errors import StepTooLarge
from aether_context.pack import Allocation, Ingredients, Layer, Signals
from aether_context.policy import PackPolicy
from aether_context.tokens.cache import Tally


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Signals and allocation; ``too_large`` is set where the given layers exceed the budget and have to shrink."""

    signals: Signals
    allocation: Allocation
    too_large: StepTooLarge | None


def share(
    source: Ingredients, policy: PackPolicy, tight: Tight, chosen: Chosen, tally: Tally, *, at_cut: bool = False
) -> Shares:
    """Allocates the window.

    Args:
        at_cut: whether the conversation is being cut; see `demand`.

    Raises:
        StepTooLarge: the given layers exceed the input budget and the policy's ``on_invalid`` is not ``warn``; it names
            the largest texts among them.
    """
    asked = demand(source, policy, tight.carried, chosen, at_cut=at_cut)
    try:
        return Shares(signals=asked.signals, allocation=allocated(source, policy, asked), too_large=None)
    except StepTooLarge as error:
        too_large = error.naming(_texts(source, tight, tally))
        if policy.on_invalid != "warn":
            raise too_large from None
    squeezed = replace(asked, measured=_squeezed(source, policy, asked.measured))
    return Shares(signals=asked.signals, allocation=allocated(source, policy, squeezed), too_large=too_large)


def _squeezed(source: Ingredients, policy: PackPolicy, measured: Mapping[Layer, int]) -> dict[Layer, int]:
    """Layers as large as the budget can hold: the task gives way first, then the tools, then the system layer."""
    left = input_budget(source, policy)
    squeezed: dict[Layer, int] = {}
    for layer in ("system", "tools", "task"):
        squeezed[layer] = min(measured[layer], left)
        left -= squeezed[layer]
    return squeezed


def _texts(source: Ingredients, tight: Tight, tally: Tally) -> dict[str, int]:
    """What the given layers consist of, by a name that says no word of it, in tokens."""
    step, human = tight.step, source.request.human
    asked = "what was handed over" if source.request.handed else "the user's request"
    texts = {
        "the system instruction": source.request.system,
        asked: source.request.contents[human].text if human is not None else "",
        "the task": step.task,
        "the goal": step.goal,
        "the step's text": step.text,
        "the role": "\n".join(payload.role_lines(step)),
        "the constraints": "\n".join((*step.constraints, *step.next, *step.stop_when)),
    }
    sizes = {name: tally.count(text) for name, text in texts.items() if text}
    sizes |= {f"acceptance item {item.id}": tally.count(item.text) for item in step.acceptance}
    return sizes | {f"tool {tool.name}": tally.tool(tool) for tool in tight.scope.tools}
