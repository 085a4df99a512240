"""Rungs three and four: what is always sent becomes shorter where it alone exceeds the input budget.

Tool declarations lose their examples and long descriptions, the largest first; then the step's own words are
tightened. The acceptance list and the user's request stay word for word.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from aether_context import payload
from aether_context.allocation import slack_tokens
from aether_context.build.carry import Carried
from aether_context.build.scope import Scope, trimmed
from aether_context.compression import level, shorten
from aether_context.counting import Tally
from aether_context.pack import Ingredients, Layer, Step, Tool, TruncationEvent
from aether_context.policy import PackPolicy

_LEAST_LINE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Tight:
    """Declarations, step and measured layers after the last two compressing rungs."""

    scope: Scope
    step: Step
    carried: Carried
    events: tuple[TruncationEvent, ...] = ()


def tighten(source: Ingredients, policy: PackPolicy, scope: Scope, carried: Carried, tally: Tally) -> Tight:
    """Shortens declarations, then the step, only as far as the input budget asks for."""
    tight = Tight(scope=scope, step=source.step, carried=carried)
    budget = source.window - slack_tokens(source.window, policy.budget, source.output_tokens)
    if not policy.compress.enabled or source.hands_off or carried.keeps:
        return tight
    return _tighten_step(_trim_tools(tight, budget, tally), budget, tally)


def _over(tight: Tight, budget: int) -> int:
    return sum(tight.carried.measured.values()) - budget


def _with(tight: Tight, layer: Layer, tokens: int, names: Sequence[str], **changes: object) -> Tight:
    before = tight.carried.measured[layer]
    event = TruncationEvent(
        layer=layer,
        stage="compress",
        reason="over_allocation",
        item_ids=tuple(names),
        tokens_before=before,
        tokens_after=tokens,
    )
    carried = replace(tight.carried, measured={**tight.carried.measured, layer: tokens})
    changed = replace(tight, carried=carried, events=(*tight.events, event))
    return replace(changed, **changes)  # type: ignore[arg-type]


def _trim_tools(tight: Tight, budget: int, tally: Tally) -> Tight:
    over = _over(tight, budget)
    made: dict[str, Tool] = {}
    saved = 0
    for tool in sorted(tight.scope.tools, key=lambda one: (-tally.tool(one), one.name)):
        if saved >= over:
            break
        brief = trimmed(tool)
        gain = tally.tool(tool) - tally.tool(brief)
        if gain > 0:
            made[tool.name] = brief
            saved += gain
    if not made:
        return tight
    tools = tuple(made.get(tool.name, tool) for tool in tight.scope.tools)
    tokens = tight.carried.measured["tools"] - saved
    scope = replace(tight.scope, tools=tools, trimmed=tight.scope.trimmed | made.keys())
    return _with(tight, "tools", tokens, sorted(made), scope=scope)


def _tighten_step(tight: Tight, budget: int, tally: Tally) -> Tight:
    over = _over(tight, budget)
    if over <= 0:
        return tight
    step = tight.step
    names = [name for name in ("task", "goal", "text") if getattr(step, name)]
    lists = [(name, at) for name in ("constraints", "next", "stop_when") for at in range(len(getattr(step, name)))]
    texts = [getattr(step, name) for name in names] + [getattr(step, name)[at] for name, at in lists]
    sizes = [tally.count(text) for text in texts]
    ceiling = max(_LEAST_LINE, level(sizes, max(0, sum(sizes) - over)))
    short = [
        shorten(text, max_tokens=ceiling, counter=tally) if size > ceiling else text
        for text, size in zip(texts, sizes, strict=True)
    ]
    changes: dict[str, Any] = dict(zip(names, short, strict=False))
    for (name, _), text in zip(lists, short[len(names) :], strict=True):
        changes[name] = (*changes.get(name, ()), text)
    changed = replace(step, **changes)
    gain = tally.count(payload.step_text(step)) - tally.count(payload.step_text(changed))
    if gain <= 0:
        return tight
    touched = [
        name
        for name in (*names, *dict.fromkeys(name for name, _ in lists))
        if getattr(step, name) != getattr(changed, name)
    ]
    return _with(tight, "task", tight.carried.measured["task"] - gain, touched, step=changed)
