"""The policy's strategies that look at the water marks, and the net behind all of them.

A strategy may pass its own budget. Where what it leaves would still pass the window, units go from the oldest, as under
the default strategy. The net stops a quarter of the way above the low-water mark: of what a strategy chose to keep,
more stays, and the next such cut is still far away.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from aether_context.conversation import (
    Budget,
    Conversation,
    Strategy,
    Trimmed,
    hold,
    lost_tokens,
    ranked,
    standing_anchors,
    strategies_of,
    units,
)
from aether_context.conversation.summary import recap
from aether_context.conversation.turns import protected
from aether_context.pack import Act, Content, Outgoing, PackInput, Reason
from aether_context.packing import allocation
from aether_context.packing.carryover import summary_tokens
from aether_context.packing.early_strategies import by_hand, content_id, gated, past_byte_net, truncations
from aether_context.packing.emergency import NET
from aether_context.packing.fit import Fitted, Marks, cut_to_low_water, spoken, unpack
from aether_context.policy import PackPolicy
from aether_context.text.compression import Summaries
from aether_context.tokens.cache import CachedCounter

_NET_SHARE = 0.25
"""How far above the low-water mark the net stops, as a share of the way to the ceiling."""


def trim(
    source: PackInput, policy: PackPolicy, summaries: Summaries, budget: Marks, fitted: Fitted, counter: CachedCounter
) -> Fitted:
    """Applies the policy's late strategies in their order, then the net where too much is left.

    A cut by hand goes down to the low-water mark, or to that share of what there is where that is less.
    """
    late = [one for one in strategies_of(policy.conversation) if not one.early]
    forced = by_hand(source)
    if forced:
        share = int(policy.conversation.compact_to * spoken(source, policy, fitted, counter))
        budget = replace(budget, high=-1, low=min(budget.low, share))
    for strategy in late:
        if strategy.name == "epochs":
            fitted = _cut(source, policy, summaries, budget, fitted, counter, strategy.name)
        else:
            fitted = _applied(source, policy, summaries, budget, fitted, counter, strategy)
    if forced and not fitted.acts:
        return _cut(source, policy, summaries, budget, fitted, counter, NET)
    if late and late[-1].name == "epochs":
        return fitted
    net = replace(budget, high=budget.ceiling, low=budget.low + int(_NET_SHARE * (budget.ceiling - budget.low)))
    return _cut(source, policy, summaries, net, fitted, counter, NET)


def _applied(
    source: PackInput,
    policy: PackPolicy,
    summaries: Summaries,
    budget: Marks,
    fitted: Fitted,
    counter: CachedCounter,
    strategy: Strategy,
) -> Fitted:
    """One strategy's decision, written into what is sent."""
    conversation = _conversation(source, policy, summaries, budget, fitted, counter)
    result = strategy.trim(conversation)
    if result.state is not None:
        fitted = replace(fitted, states=result.state)
    if result.note:
        fitted = replace(fitted, degradations=(*fitted.degradations, result.note))
    if not result.changes:
        return replace(fitted, normalize=fitted.normalize or result.normalize)
    origins = [item.origin for item in fitted.items]
    gone = {origins[one.index]: one.reason for one in result.removed}
    made = {origins[one.index]: one for one in result.replaced}
    items = [_made(item, made[item.origin].content, counter) if item.origin in made else item for item in fitted.items]
    reasons: Mapping[int, Reason] = {
        **fitted.reasons,
        **gone,
        **{origin: one.reason for origin, one in made.items()},
    }
    kept = tuple(item for item in items if item.origin not in gone)
    fitted = replace(
        fitted,
        reasons=reasons,
        normalize=fitted.normalize or result.normalize,
        acts=fitted.acts if result.act is None else (*fitted.acts, result.act),
        events=fitted.events + truncations(source, result, origins),
    )
    if not result.removed or not result.lasting:
        return replace(fitted, items=kept, hidden=fitted.hidden.union(gone))
    return replace(
        fitted,
        items=tuple(unpack(item, source.request.human, counter) for item in kept),
        cut=(*fitted.cut, *(item for item in items if item.origin in gone)),
        summary=fitted.summary if result.summary is None else result.summary,
        summary_place=_place(source, fitted, origins, result),
    )


def _place(source: PackInput, fitted: Fitted, origins: Sequence[int], result: Trimmed) -> int:
    """The place in the host's list before which the summary stands."""
    if result.summary is None:
        return fitted.summary_place
    return source.request.positions[origins[result.summary_at]] if result.summary_at else 0


def _made(item: Outgoing, content: Content, counter: CachedCounter) -> Outgoing:
    return replace(item, content=content, outcome="placeholder", tokens=counter.content(content))


def _conversation(
    source: PackInput, policy: PackPolicy, summaries: Summaries, budget: Marks, fitted: Fitted, counter: CachedCounter
) -> Conversation:
    """The conversation as it would be sent, the human message's tokens counted elsewhere."""
    request = source.request
    items = fitted.items
    contents = tuple(item.content for item in items)
    positions = tuple(request.positions[item.origin] for item in items)
    slack = allocation.slack(source, policy)

    def write(gone: Sequence[Content], kept: Sequence[Content], /, *, max_tokens: int, earlier: str) -> str:
        return recap(gone, kept, max_tokens=max_tokens, counter=counter, summaries=summaries, earlier=earlier)

    standing = standing_anchors(contents, positions, policy.conversation.anchors)
    return Conversation(
        contents=contents,
        tokens=tuple(0 if item.origin == request.human else item.tokens for item in items),
        human=next((at for at, item in enumerate(items) if item.origin == request.human), None),
        positions=positions,
        digests=tuple(item.raw.digest for item in items),
        budget=Budget(
            window=budget.budget + slack,
            slack=slack,
            fixed=budget.fixed,
            high=budget.high,
            low=budget.low,
            ceiling=budget.ceiling,
        ),
        counter=counter,
        system=request.system,
        tools=request.tools,
        anchors=ranked([*source.anchors, *standing]),
        state=fitted.states,
        summary=fitted.summary,
        summary_tokens=summary_tokens(fitted.summary, policy, counter),
        opens=source.first_call,
        forced=by_hand(source),
        gated=gated(source, policy, spoken(source, policy, fitted, counter) + budget.fixed, budget.budget),
        heavy=past_byte_net(source, policy, contents),
        summarize=write,
    )


def _cut(
    source: PackInput,
    policy: PackPolicy,
    summaries: Summaries,
    budget: Marks,
    fitted: Fitted,
    counter: CachedCounter,
    strategy: str,
) -> Fitted:
    """A cut to the low-water mark around the anchors, with an act that names the strategy."""
    held, lost = _anchored(source, policy, budget, fitted)
    aside = sum(item.tokens for item in held)
    apart = {item.origin for item in held}
    rest = tuple(item for item in fitted.items if item.origin not in apart) if held else fitted.items
    marks = replace(
        budget,
        fixed=budget.fixed + aside,
        high=budget.high - aside,
        low=max(0, budget.low - aside),
        ceiling=budget.ceiling - aside,
    )
    after = cut_to_low_water(source, policy, summaries, marks, replace(fitted, items=rest), counter)
    if len(after.events) == len(fitted.events):
        return fitted
    gone = after.cut[len(fitted.cut) :]
    before = {item.origin: item.content for item in fitted.items}
    shortened = [one for one in after.items if one.outcome == "extract" and one.content is not before[one.origin]]
    reason: Reason = "by_hand" if by_hand(source) else after.cut_reason
    events = [
        replace(
            event,
            reason=reason,
            item_ids=tuple(content_id(source, item.origin) for item in (*gone, *shortened)),
            tokens_before=event.tokens_before + aside,
            tokens_after=event.tokens_after + aside,
            strategy=strategy,
        )
        if event.stage == "cut"
        else event
        for event in after.events[len(fitted.events) :]
    ]
    freed = events[0].tokens_before - events[-1].tokens_after
    items = (*after.items, *(unpack(item, source.request.human, counter) for item in held))
    return replace(
        after,
        items=tuple(sorted(items, key=lambda item: item.origin)),
        reasons={**after.reasons, **{item.origin: reason for item in gone}},
        events=(*fitted.events, *events),
        acts=(*after.acts, _act(fitted.items, gone, shortened, freed, strategy)),
        degradations=(*after.degradations, *lost),
    )


def _anchored(
    source: PackInput, policy: PackPolicy, budget: Marks, fitted: Fitted
) -> tuple[tuple[Outgoing, ...], tuple[str, ...]]:
    """The contents that anchors hold, and a note for each anchor that there is no room for."""
    if not source.anchors:
        return (), ()
    items = fitted.items
    parts = units([item.content for item in items])
    human = next((at for at, item in enumerate(items) if item.origin == source.request.human), None)
    stay = protected(parts, human)
    tokens = [0 if item.origin == source.request.human else item.tokens for item in items]
    least = sum(tokens[index] for at in stay for index in parts[at].indices)
    room = budget.ceiling - least
    positions = [source.request.positions[item.origin] for item in items]
    held = hold(source.anchors, parts, positions, tokens, room=room, stay=stay)
    notes = tuple(f"no room for the anchor {one.description} (content {one.place})" for one in held.lost)
    return tuple(items[index] for at in sorted(held.units) for index in parts[at].indices), notes


def _act(
    before: Sequence[Outgoing], gone: Sequence[Outgoing], shortened: Sequence[Outgoing], freed: int, strategy: str
) -> Act:
    touched = {item.origin for item in (*gone, *shortened)}
    said = [at for at, item in enumerate(before) if item.raw.role == "model"]
    changed = {at for at, item in enumerate(before) if item.origin in touched}
    return Act(
        strategy=strategy,
        removed=len(gone),
        replaced=len(shortened),
        freed_tokens=freed,
        lost_tokens=lost_tokens([item.tokens for item in before], changed, said[-1] if said else 0),
    )
