"""Making a pack fit: the drop ladder, and one cut of the conversation to the low-water mark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from aether_context.canonical import JSON
from aether_context.conversation import turns
from aether_context.conversation.summary import MOST_TOKENS, recap
from aether_context.pack import (
    RECALLED,
    Act,
    Allocation,
    Candidate,
    Outgoing,
    PackInput,
    Reason,
    SummaryRequest,
    TruncationEvent,
)
from aether_context.packing.carryover import Carried, frame_tokens, summary_tokens
from aether_context.packing.choice import RECAP_SHARE, Chosen, Press, reduce_evidence, reduce_memory
from aether_context.packing.early_strategies import gated, net_share, past_byte_net
from aether_context.packing.rewrites import asked, gain, price_of_cached, response_tokens, shortened
from aether_context.packing.shares import Shares, Tight
from aether_context.policy import PackPolicy
from aether_context.text.compression import Summaries, level
from aether_context.tokens.cache import CachedCounter

# One cut of the conversation: which contents go, which of those that stay are shortened, and what stands for the
# rest.
#
# Sizes are tokens. A cut is judged like an order in stock-keeping: it costs what has to be sent uncached again, and
# saves the cached price of what it frees for as long as that room lasts.

_BULLET = "- a"
LEAST_EXTRACT = 48
"""Tokens under which a response is not shortened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remainder:
    """What a cut leaves: contents that stay, contents that go, the recap that stands for those, and the token ceilings
    of responses that it shortened, by digest."""

    items: tuple[Outgoing, ...]
    cut: tuple[Outgoing, ...] = ()
    summary: str = ""
    extracts: Mapping[str, int] = field(default_factory=dict)


def cut_to(
    low: int,
    items: Sequence[Outgoing],
    human: int | None,
    policy: PackPolicy,
    counter: CachedCounter,
    *,
    ceiling: int,
    room: int,
    earlier: str,
    summaries: Summaries,
) -> Remainder:
    """The conversation within ``low``, recap included, where what may leave holds enough.

    Args:
        items: all contents that are sent so far, in the host's order.
        human: index of the final human message, which is not counted.
        ceiling: what the conversation may hold at most.
        room: the recap's most, within ``low``.
        earlier: the recap of earlier cuts.
        summaries: a model's, for the recap.
    """
    room = min(room, MOST_TOKENS)
    responses = [response_tokens(item.content, counter) for item in items]
    tokens = [0 if at == human else item.tokens for at, item in enumerate(items)]
    parts = turns.units([item.content for item in items])
    worth = turns.Worth(
        superseded=turns.superseded(parts, [item.raw for item in items]),
        stands_at=turns.outliving(parts, [item.raw for item in items], tokens),
        spare={at: sum(_spare(responses[index]) for index in unit.indices) for at, unit in enumerate(parts)},
    )

    def chosen(target: int, neighbours: bool) -> turns.Cut:
        return turns.cut(
            parts,
            tokens,
            target=target,
            human=human,
            last_turns=policy.conversation.last_turns,
            neighbours=neighbours,
            worth=worth,
        )

    left = Remainder(items=tuple(items))
    for reserved in (room, None):
        target = max(0, low - (summary_tokens(left.summary, policy, counter) if reserved is None else reserved))
        made = chosen(target, True)
        if sum(tokens) - sum(tokens[index] for index in made.gone) - made.excess > ceiling:
            made = chosen(target, False)
        kept = sum(tokens) - sum(tokens[index] for index in made.gone) - made.excess
        left = _left(
            items,
            responses,
            made,
            counter,
            room=min(room, ceiling - kept - _frame(policy, counter)),
            earlier=earlier,
            summaries=summaries if reserved is None else Summaries("", {}),
        )
    return left


def _frame(policy: PackPolicy, counter: CachedCounter) -> int:
    """Tokens of a recap besides its own words."""
    return summary_tokens(_BULLET, policy, counter) - counter.count(_BULLET)


def pays(*, freed: int, kept: int, growth: float, cached_price: float) -> bool:
    """Whether freeing tokens saves more than sending those that stay once more without the cache.

    ``freed`` tokens last for ``freed / growth`` calls, half of them on average, each call at the cached price; what is
    ``kept`` costs the difference between both prices once. (Wilson's rule for the size of an order.)

    Args:
        growth: tokens that a model call adds.
        cached_price: price of cached input as a share of that of uncached input, over 0 and up to 1.
    """
    if not growth:
        return True
    return gain(saved=freed / 2, calls=freed / growth, resent=kept, cached_price=cached_price) >= 0


def _spare(responses: Sequence[int]) -> int:
    return max(0, sum(responses) - LEAST_EXTRACT * len(responses))


def _left(
    items: Sequence[Outgoing],
    responses: Sequence[Sequence[int]],
    made: turns.Cut,
    counter: CachedCounter,
    *,
    room: int,
    earlier: str,
    summaries: Summaries,
) -> Remainder:
    out = set(made.gone)
    ceiling = _ceiling([tokens for index in made.shortened for tokens in responses[index]], made.excess)
    raws = [item.raw for item in items]
    short = {
        index: shortened(
            items[index].content if items[index].members else raws[index], ceiling, asked(raws, index), counter
        )
        for index in made.shortened
        if responses[index]
    }
    stay = tuple(
        replace(item, content=short[index], outcome="extract", tokens=counter.content(short[index]))
        if index in short
        else item
        for index, item in enumerate(items)
        if index not in out
    )
    reduced = {item.raw.digest for item in stay if item.outcome == "extract"}
    lost = [raw for index, raw in enumerate(raws) if index in out or raw.digest in reduced]
    said = ""
    if room > 0:
        still = [item.content for item in stay]
        said = recap(lost, still, max_tokens=room, counter=counter, summaries=summaries, earlier=earlier)
    return Remainder(
        items=stay,
        cut=tuple(items[index] for index in made.gone),
        summary=said,
        extracts={raws[index].digest: ceiling for index in short},
    )


def _ceiling(sizes: Sequence[int], excess: int) -> int:
    return max(LEAST_EXTRACT, level(sizes, sum(sizes) - excess))


# Making a pack fit: the drop ladder, and the cut to the low-water mark. What still does not is `emergency`'s.

_SCARCE_SHARE = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """What is sent and what is not.

    ``items`` are the contents that are still sent; ``cut`` those left out by this act, and ``unpacked`` says that
    earlier messages returned to their own text with it. ``hidden`` are the origins of those that strategies leave out
    this time. ``reasons`` say why, for those and for what is cut or replaced, where it is not ``cut_reason``.
    ``states`` is what strategies keep from call to call, ``acts`` what they did at this one. ``normalize`` says that
    contents are to be normalized. ``summary_place`` is that of `Epoch`. ``summaries`` are the ids of candidates that
    are sent shortened. ``request`` is the shortened user request, None where it is whole; ``saved`` holds what was
    taken out of it, by URI. ``task_ceiling`` are the tokens that the payload before the request is cut down to, None
    where it is whole. ``summary_requests`` are the summaries that a model could write. ``parts`` are those of `Epoch`.
    ``marks`` are what the conversation was to fit.
    """

    items: tuple[Outgoing, ...]
    hidden: frozenset[int] = frozenset()
    reasons: Mapping[int, Reason] = field(default_factory=dict)
    states: Mapping[str, Mapping[str, JSON]] = field(default_factory=dict)
    normalize: bool = False
    acts: tuple[Act, ...] = ()
    cut: tuple[Outgoing, ...] = ()
    cut_reason: Reason = "high_water"
    unpacked: bool = False
    memory: tuple[Candidate, ...] = ()
    evidence: tuple[Candidate, ...] = ()
    summaries: frozenset[str] = frozenset()
    dropped: tuple[Candidate, ...] = ()
    summary: str = ""
    summary_place: int = 0
    extracts: Mapping[str, int] = field(default_factory=dict)
    request: str | None = None
    task_ceiling: int | None = None
    saved: Mapping[str, str] = field(default_factory=dict)
    events: tuple[TruncationEvent, ...] = ()
    degradations: tuple[str, ...] = ()
    summary_requests: tuple[SummaryRequest, ...] = ()
    parts: Mapping[str, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    marks: Marks | None = None

    @property
    def made_cut(self) -> bool:
        """Whether the conversation was cut, be it that contents only became shorter."""
        return any(event.stage == "cut" for event in self.events)


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """Tokens that are spent whatever the conversation does, and the marks for the rest."""

    fixed: int
    budget: int
    ceiling: int
    high: int
    low: int


class Trimmer(Protocol):
    """Takes out of the conversation what its strategies ask for."""

    def __call__(
        self,
        source: PackInput,
        policy: PackPolicy,
        summaries: Summaries,
        budget: Marks,
        fitted: Fitted,
        counter: CachedCounter,
        /,
    ) -> Fitted: ...


def fit(
    source: PackInput,
    policy: PackPolicy,
    tight: Tight,
    chosen: Chosen,
    shares: Shares,
    counter: CachedCounter,
    *,
    trim: Trimmer,
    reserve: int = 0,
) -> Fitted:
    """Leaves out only what must be: each layer inside its allocation stays as it is.

    Args:
        reserve: tokens that are spent besides what is measured.
    """
    carried, settled = tight.carried, tight.carried.settled
    if source.passthrough_reason:
        return Fitted(items=carried.items, degradations=(source.passthrough_reason,))
    layers = shares.allocation.layers
    summaries = Summaries(policy.compress.summarizer if policy.compress.enabled else "", source.summaries)
    press = Press(settings=policy.compress, query=chosen.query, summaries=summaries, counter=counter, least=tight.least)
    memory = reduce_memory(chosen.memory.chosen, layers["memory"].final, press)
    evidence = reduce_evidence(chosen.evidence.chosen, layers["evidence"].final, source.step, press)
    fitted = Fitted(
        items=settled.sent,
        hidden=settled.hidden,
        reasons=settled.reasons,
        states=settled.states,
        normalize=settled.normalize,
        acts=settled.acts,
        memory=memory.kept,
        evidence=evidence.kept,
        summaries=memory.summaries | evidence.summaries,
        dropped=memory.lost + evidence.lost,
        summary=source.epoch.summary,
        summary_place=source.epoch.summary_place,
        extracts=source.epoch.extracts,
        parts=source.epoch.parts,
        events=(
            *settled.events,
            *memory.compressed,
            *evidence.compressed,
            *tight.events,
            *memory.dropped,
            *evidence.dropped,
        ),
        degradations=settled.notes,
    )
    used = carried.packed.used if carried.packed is not None else {}
    fixed = (
        sum(carried.measured.values())
        + sum(used.values())
        + sum(one.tokens for one in (*memory.kept, *evidence.kept))
        + reserve
    )
    budget = _netted(source, policy, marks(policy, shares.allocation, fixed), fitted, counter)
    fitted = trim(source, policy, summaries, budget, fitted, counter)
    if _first_payload(source, policy, carried, fitted):
        frame = frame_tokens(source, policy, counter, contract=carried.contract)
        budget = replace(budget, fixed=budget.fixed + frame)
    return replace(fitted, summary_requests=summaries.summary_requests, marks=budget)


def _first_payload(source: PackInput, policy: PackPolicy, carried: Carried, fitted: Fitted) -> bool:
    """Whether a summary puts a payload into a message that would have none, so that its frame was not measured."""
    inside = bool(fitted.summary) and policy.conversation.summary == "payload" and source.request.human is not None
    packed = carried.packed is not None and bool(carried.packed.before)
    return inside and not packed and not carried.measures_frame


def marks(policy: PackPolicy, allocation: Allocation, fixed: int) -> Marks:
    """The marks of the conversation: what the water marks leave beside the other layers, or its own share of them.

    Args:
        fixed: tokens of all other layers as they are sent.
    """
    budget = allocation.budget
    ceiling = max(allocation.layers["conversation"].final, budget - fixed)
    settings = policy.conversation
    return Marks(
        fixed=fixed,
        budget=budget,
        ceiling=ceiling,
        high=max(int(settings.compact_at * budget) - fixed, int(settings.compact_at * ceiling)),
        low=max(int(settings.compact_to * budget) - fixed, int(settings.compact_to * ceiling)),
    )


def _netted(source: PackInput, policy: PackPolicy, budget: Marks, fitted: Fitted, counter: CachedCounter) -> Marks:
    """The marks with a low one that brings contents past the byte net under it again, however few tokens they count."""
    share = net_share(source, policy, (item.content for item in fitted.items))
    if share == 1:
        return budget
    low = int(policy.conversation.compact_to * share * spoken(source, policy, fitted, counter))
    return replace(budget, low=min(budget.low, low))


def spoken(source: PackInput, policy: PackPolicy, fitted: Fitted, counter: CachedCounter) -> int:
    """Tokens of the conversation layer: every content but the human message, and the summary."""
    human = source.request.human
    items = sum(item.tokens for item in fitted.items if item.origin != human)
    return items + summary_tokens(fitted.summary, policy, counter)


def cut_to_low_water(
    source: PackInput, policy: PackPolicy, summaries: Summaries, budget: Marks, fitted: Fitted, counter: CachedCounter
) -> Fitted:
    """One act down to the low-water mark, where the high-water mark is passed and it pays or the window demands it."""
    before = spoken(source, policy, fitted, counter)
    if not pressed(source, policy, budget, before, fitted):
        return fitted
    demanded = before > budget.ceiling or budget.high < 0
    items = [unpack(item, source.request.human, counter) for item in fitted.items]
    human = next((at for at, item in enumerate(items) if item.origin == source.request.human), None)
    left = cut_to(
        budget.low,
        items,
        human,
        policy,
        counter,
        ceiling=budget.ceiling,
        room=_recap_room(policy, budget, fitted),
        earlier=fitted.summary,
        summaries=summaries,
    )
    changed = replace(
        fitted,
        items=left.items,
        cut=(*fitted.cut, *left.cut),
        cut_reason=_cut_reason(before, budget),
        summary=left.summary,
        unpacked=any(one is not other for one, other in zip(items, fitted.items, strict=True)),
        extracts={**fitted.extracts, **left.extracts},
    )
    after = spoken(source, policy, changed, counter)
    if changed.items == fitted.items or (not demanded and before - after < _SCARCE_SHARE * budget.budget):
        return fitted
    event = TruncationEvent(
        layer="conversation",
        stage="cut",
        reason=changed.cut_reason,
        item_ids=(),
        tokens_before=before,
        tokens_after=after,
    )
    return replace(changed, events=(*fitted.events, event))


def _cut_reason(tokens: int, budget: Marks) -> Reason:
    """Why a conversation of so many tokens is cut: only the byte net asks for it below the high-water mark."""
    if tokens > budget.ceiling:
        return "window"
    return "high_water" if tokens > budget.high else "byte_net"


def _recap_room(policy: PackPolicy, budget: Marks, fitted: Fitted) -> int:
    """The recap's most. Beside turns that were recalled it leaves the latest turns their part."""
    settings = policy.conversation
    if settings.summary == "off":
        return 0
    room = int(settings.summary_share * budget.budget)
    recalled = any(one.source == RECALLED for one in fitted.memory)
    return min(room, int(RECAP_SHARE * budget.low)) if recalled else room


def pressed(source: PackInput, policy: PackPolicy, budget: Marks, tokens: int, fitted: Fitted) -> bool:
    """Whether the conversation calls for a cut: past the high-water mark and the gate, or past the byte net.

    A mark below zero is always passed.
    """
    if tokens > budget.ceiling or budget.high < 0:
        return True
    if tokens > budget.high:
        return not gated(source, policy, tokens + budget.fixed, budget.budget) and _pays(
            source, policy, budget, fitted, tokens
        )
    return past_byte_net(source, policy, (item.content for item in fitted.items))


def _pays(source: PackInput, policy: PackPolicy, budget: Marks, fitted: Fitted, tokens: int) -> bool:
    """Whether a cut to the low-water mark saves more than the cached prefix that it breaks."""
    calls = sum(item.content.role == "model" for item in fitted.items)
    return pays(
        freed=tokens - budget.low,
        kept=budget.low,
        growth=tokens / max(1, calls),
        cached_price=price_of_cached(source, policy),
    )


def unpack(item: Outgoing, human: int | None, counter: CachedCounter) -> Outgoing:
    """An earlier invocation's message with its own text again; a cut breaks the prefix that its packed text kept."""
    if item.outcome != "payload" or item.origin == human:
        return item
    return replace(item, content=item.raw, outcome="verbatim", tokens=counter.content(item.raw), members=())
