"""Which declarations are sent: all, the step's, or all with calls restricted to the step's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from aether_context.pack import Ingredients, Reason, Tool
from aether_context.policy import ToolSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Declarations sent, names left out with the reason, the mode used, and the names that calls are restricted to.

    ``problem`` says why the policy's mode could not be used.
    """

    tools: tuple[Tool, ...]
    mode: str = "off"
    left_out: Mapping[str, Reason] = field(default_factory=dict)
    allowed: tuple[str, ...] | None = None
    problem: str = ""


def narrow(source: Ingredients, settings: ToolSettings) -> Scope:
    """The scope of one pack. A step whose tools are all unknown to the host narrows nothing."""
    tools, named = source.request.tools, source.step.tools
    mode = ("prune" if named else "off") if settings.scope == "auto" else settings.scope
    wanted = {*(named or ()), *settings.always}
    if mode == "off" or source.hands_off or not any(tool.name in wanted for tool in tools):
        return Scope(tools=tools)
    inside = tuple(tool for tool in tools if tool.essential or tool.name in wanted)
    if mode == "mask" and not source.can_mask:
        return Scope(tools=tools, problem="tool scope mask: this model or request takes no list of allowed names")
    if mode == "mask":
        return Scope(tools=tools, mode="mask", allowed=tuple(tool.name for tool in inside))
    left_out: dict[str, Reason] = {tool.name: "not_in_scope" for tool in tools if tool not in inside}
    return Scope(tools=inside, mode="prune", left_out=left_out)
