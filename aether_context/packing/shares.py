"""The allocation of a pack, and what is always sent made shorter where it leaves others too little."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from aether_context.errors import StepTooLarge
from aether_context.pack import Allocation, Candidate, Layer, PackInput, Signals, Step, Tool, TruncationEvent
from aether_context.packing import payload
from aether_context.packing.allocation import input_budget
from aether_context.packing.carryover import Carried
from aether_context.packing.choice import Chosen, Demand, Press, allocated, briefest, demand, least_tokens
from aether_context.packing.tools import ToolSelection, trimmed
from aether_context.policy import PackPolicy
from aether_context.text.compression import Summaries, level, shorten
from aether_context.tokens.cache import CachedCounter

# Rungs three and four: what is always sent becomes shorter where it leaves others too little.
#
# Tool declarations lose their examples and long descriptions, the largest first; then the step's own words are
# tightened. This happens where system, task and tools alone exceed the input budget, and at an epoch's beginning also
# before a memory or a piece of evidence is dropped, but then no layer inside its floor is touched. The acceptance
# list and the user's request stay word for word.

_LEAST_LINE = 8
_BRIEF_LINE = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Tight:
    """Declarations, step and measured layers after the last two compressing rungs.

    ``least`` holds the tokens of candidates at their briefest, by id, where these had to be known.
    """

    scope: ToolSelection
    step: Step
    carried: Carried
    events: tuple[TruncationEvent, ...] = ()
    least: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Aim:
    """Tokens to be freed: ``must`` so that the given layers fit, ``wish`` so that nothing is dropped either.

    ``spare`` is what layers hold above their floors; what only ``wish`` asks for is taken from that. ``least`` is as in
    `Tight`.
    """

    must: int
    wish: int
    spare: Mapping[Layer, int]
    least: Mapping[str, int] = field(default_factory=dict)

    def less(self, layer: Layer, saved: int) -> _Aim:
        """What is left to be freed when a layer has given some."""
        spare = {**self.spare, layer: self.spare[layer] - saved}
        return replace(self, must=self.must - saved, wish=self.wish - saved, spare=spare)

    def reached(self, layer: Layer) -> bool:
        """Whether a layer has given enough."""
        return self.must <= 0 and (self.wish <= 0 or self.spare[layer] <= 0)


def tighten(
    source: PackInput,
    policy: PackPolicy,
    scope: ToolSelection,
    carried: Carried,
    chosen: Chosen,
    counter: CachedCounter,
    *,
    at_cut: bool = False,
) -> Tight:
    """Shortens declarations, then the step, only as far as is asked for.

    Args:
        at_cut: whether the conversation is being cut; see `demand`.
    """
    tight = Tight(scope=scope, step=source.step, carried=carried)
    if not policy.compress.enabled or source.passthrough_reason or carried.keeps:
        return tight
    aim = _aim(source, policy, carried, chosen, counter, at_cut)
    tight = _trim_tools(replace(tight, least=aim.least), aim, counter)
    saved = carried.measured["tools"] - tight.carried.measured["tools"]
    return _tighten_step(tight, aim.less("tools", saved), counter)


def _aim(
    source: PackInput, policy: PackPolicy, carried: Carried, chosen: Chosen, counter: CachedCounter, at_cut: bool
) -> _Aim:
    """What has to be freed. An epoch under way keeps its declarations and drops rather than break its prefix."""
    held = carried.measured
    must = max(0, sum(held.values()) - input_budget(source, policy))
    floors: Mapping[Layer, float] = {"tools": policy.budget.floors.tools, "task": policy.budget.floors.task}
    spare = {layer: max(0, held[layer] - int(source.window * share)) for layer, share in floors.items()}
    aim = _Aim(must=must, wish=must, spare=spare)
    if not carried.begins or not (chosen.memory.chosen or chosen.evidence.chosen):
        return aim
    press = Press(settings=policy.compress, query=chosen.query, summaries=Summaries("", {}), counter=counter)
    asked = demand(source, policy, carried, chosen, at_cut=at_cut)
    suffices = partial(_suffices, source, policy, asked, spare)
    layers: Mapping[Layer, tuple[Candidate, ...]] = {"memory": chosen.memory.chosen, "evidence": chosen.evidence.chosen}
    counter.count_all([one.text for some in layers.values() for one in some])  # at once, since each will be asked for
    if suffices({layer: sum(least_tokens(one, press) for one in some) for layer, some in layers.items()}, must):
        return aim
    least = {one.id: briefest(one, press).tokens for some in layers.values() for one in some}
    needed = {layer: sum(least[one.id] for one in some) for layer, some in layers.items()}
    most = max(must, sum(spare.values()))
    wish = must + bisect_left(range(must, most), True, key=partial(suffices, needed))
    return replace(aim, wish=wish, least=least)


def _suffices(
    source: PackInput,
    policy: PackPolicy,
    asked: Demand,
    spare: Mapping[Layer, int],
    least: Mapping[Layer, int],
    freed: int,
) -> bool:
    """Whether memory and evidence get at least so much once so many tokens of tools and task are freed."""
    tools = min(freed, spare["tools"])
    task = min(freed - tools, spare["task"])
    measured = {**asked.measured, "tools": asked.measured["tools"] - tools, "task": asked.measured["task"] - task}
    if sum(measured.values()) > input_budget(source, policy):
        return False
    layers = allocated(source, policy, replace(asked, measured=measured)).layers
    return all(layers[layer].final >= tokens for layer, tokens in least.items())


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


def _trim_tools(tight: Tight, aim: _Aim, counter: CachedCounter) -> Tight:
    made: dict[str, Tool] = {}
    saved = 0
    for tool in sorted(tight.scope.tools, key=lambda one: (-counter.tool(one), one.name)):
        if aim.less("tools", saved).reached("tools"):
            break
        brief = trimmed(tool)
        gain = counter.tool(tool) - counter.tool(brief)
        if gain > 0:
            made[tool.name] = brief
            saved += gain
    if not made:
        return tight
    tools = tuple(made.get(tool.name, tool) for tool in tight.scope.tools)
    tokens = tight.carried.measured["tools"] - saved
    scope = replace(tight.scope, tools=tools, trimmed=tight.scope.trimmed | made.keys())
    return _with(tight, "tools", tokens, sorted(made), scope=scope)


def _tighten_step(tight: Tight, aim: _Aim, counter: CachedCounter) -> Tight:
    """Shortens the step's longest lines; only where the step would not fit else are they cut to a few words."""
    if aim.reached("task"):
        return tight
    step = tight.step
    names = [name for name in ("task", "goal", "text") if getattr(step, name)]
    lists = [(name, at) for name in ("constraints", "next", "stop_when") for at in range(len(getattr(step, name)))]
    texts = [getattr(step, name) for name in names] + [getattr(step, name)[at] for name, at in lists]
    sizes = [counter.count(text) for text in texts]

    def ceiling(over: int, least: int) -> int:
        return max(least, level(sizes, max(0, sum(sizes) - over)))

    most = min(ceiling(aim.must, _LEAST_LINE), ceiling(min(aim.wish, aim.spare["task"]), _BRIEF_LINE))
    short = [
        shorten(text, max_tokens=most, counter=counter) if size > most else text
        for text, size in zip(texts, sizes, strict=True)
    ]
    changes: dict[str, Any] = dict(zip(names, short, strict=False))
    for (name, _), text in zip(lists, short[len(names) :], strict=True):
        changes[name] = (*changes.get(name, ()), text)
    changed = replace(step, **changes)
    gain = counter.count(payload.step_text(step)) - counter.count(payload.step_text(changed))
    if gain <= 0:
        return tight
    touched = [
        name
        for name in (*names, *dict.fromkeys(name for name, _ in lists))
        if getattr(step, name) != getattr(changed, name)
    ]
    return _with(tight, "task", tight.carried.measured["task"] - gain, touched, step=changed)


# The allocation of a pack, or the refusal of a step that is too large, with the texts that make it so.


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Signals and allocation; ``too_large`` is set where the given layers exceed the budget and have to shrink."""

    signals: Signals
    allocation: Allocation
    too_large: StepTooLarge | None


def share(
    source: PackInput, policy: PackPolicy, tight: Tight, chosen: Chosen, counter: CachedCounter, *, at_cut: bool = False
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
        too_large = error.naming(_texts(source, tight, counter))
        if policy.on_invalid != "warn":
            raise too_large from None
    squeezed = replace(asked, measured=_squeezed(source, policy, asked.measured))
    return Shares(signals=asked.signals, allocation=allocated(source, policy, squeezed), too_large=too_large)


def _squeezed(source: PackInput, policy: PackPolicy, measured: Mapping[Layer, int]) -> dict[Layer, int]:
    """Layers as large as the budget can hold: the task gives way first, then the tools, then the system layer."""
    left = input_budget(source, policy)
    squeezed: dict[Layer, int] = {}
    for layer in ("system", "tools", "task"):
        squeezed[layer] = min(measured[layer], left)
        left -= squeezed[layer]
    return squeezed


def _texts(source: PackInput, tight: Tight, counter: CachedCounter) -> dict[str, int]:
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
    sizes = {name: counter.count(text) for name, text in texts.items() if text}
    sizes |= {f"acceptance item {item.id}": counter.count(item.text) for item in step.acceptance}
    return sizes | {f"tool {tool.name}": counter.tool(tool) for tool in tight.scope.tools}
