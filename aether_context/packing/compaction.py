"""What of the conversation is sent: the policy's strategies, and the cut behind all of them.

Early strategies look at what the host sent alone, before the window is allocated; late ones at the water marks. A
strategy may pass its own budget. Where what it leaves would still pass the window, units go from the oldest, as under
the default strategy. That net stops a quarter of the way above the low-water mark: of what a strategy chose to keep,
more stays, and the next such cut is still far away.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from aether_context.conversation import (
    Budget,
    Conversation,
    Removed,
    Replaced,
    Trimmed,
    hold,
    lost_tokens,
    ranked,
    standing_anchors,
    strategies_of,
    turns,
    units,
)
from aether_context.conversation.rewrites import asked, response_tokens, shortened
from aether_context.conversation.summary import MOST_TOKENS, recap
from aether_context.conversation.turns import protected
from aether_context.pack import RECALLED, Act, Allocation, Content, Outgoing, Reason, Stage, TruncationEvent
from aether_context.packing.draft import Draft, gain
from aether_context.packing.selection import RECAP_SHARE
from aether_context.policy import PackPolicy
from aether_context.text.compression import Summaries, level

NET = "emergency"
"""What the net behind the strategies is called among them in a manifest."""
LEAST_EXTRACT = 48
"""Tokens under which a response is not shortened."""
_NET_SHARE = 0.25
"""How far above the low-water mark the net stops, as a share of the way to the ceiling."""
_SCARCE_SHARE = 0.02
_BULLET = "- a"

# The policy's strategies.


def settle(draft: Draft) -> None:
    """Applies the policy's early strategies, in their order."""
    early = [strategy for strategy in strategies_of(draft.policy.conversation) if strategy.early]
    if not early or draft.input.passthrough_reason:
        return
    conversation = _as_sent_by_host(draft)
    for strategy in early:
        result = strategy.trim(conversation)
        before = {item.origin: item for item in draft.incoming}
        _apply(draft, result, lasting=False)
        before |= {item.origin: item for item in draft.items}
        draft.incoming = tuple(before.values())
        conversation = conversation.after(result)


def compact(draft: Draft) -> None:
    """Applies the policy's late strategies in their order, then the net where too much is left.

    A cut by hand goes down to the low-water mark, or to that share of what there is where that is less.
    """
    if draft.input.passthrough_reason:
        draft.degradations, draft.states = (draft.input.passthrough_reason,), {}
        return
    budget = _budget(draft)
    after = budget
    late = [strategy for strategy in strategies_of(draft.policy.conversation) if not strategy.early]
    if draft.by_hand:
        share = int(draft.policy.conversation.compact_to * draft.spoken(draft.items, draft.summary))
        budget = replace(budget, high=-1, low=min(budget.low, share))
    for strategy in late:
        if strategy.name == "epochs":
            _cut(draft, budget, strategy.name)
        else:
            result = strategy.trim(_conversation(draft, budget))
            _apply(draft, result, lasting=result.lasting)
    if draft.by_hand and not draft.acts:
        _cut(draft, budget, NET)
    elif not (late and late[-1].name == "epochs"):
        low = budget.low + int(_NET_SHARE * (budget.ceiling - budget.low))
        _cut(draft, replace(budget, high=budget.ceiling, low=low), NET)
    draft.budget = after


def _apply(draft: Draft, result: Trimmed, *, lasting: bool) -> None:
    """Writes a strategy's decision into the draft.

    Args:
        lasting: whether what is removed is cut for good.
    """
    counter, items = draft.counter, draft.items
    draft.normalize = draft.normalize or result.normalize
    if result.state is not None:
        draft.states = result.state
    if result.note:
        draft.degradations = (*draft.degradations, result.note)
    if not result.changes:
        return
    gone = {items[removed.index].origin: removed.reason for removed in result.removed}
    made = {items[replaced.index].origin: replaced for replaced in result.replaced}
    draft.reasons = {**draft.reasons, **gone, **{origin: replaced.reason for origin, replaced in made.items()}}
    draft.acts = draft.acts if result.act is None else (*draft.acts, result.act)
    draft.events += _truncations(draft, result)
    contents = {origin: replaced.content for origin, replaced in made.items()}
    items = tuple(
        replace(
            item,
            content=contents[item.origin],
            outcome="placeholder",
            tokens=counter.content(contents[item.origin]),
        )
        if item.origin in contents
        else item
        for item in items
    )
    kept = tuple(item for item in items if item.origin not in gone)
    if not result.removed or not lasting:
        draft.items, draft.hidden = kept, draft.hidden.union(gone)
        return
    if result.summary is not None:
        first = items[result.summary_at].origin
        draft.summary = result.summary
        draft.summary_place = draft.input.request.positions[first] if result.summary_at else 0
    draft.items = tuple(unpack(draft, item) for item in kept)
    draft.cut = (*draft.cut, *(item for item in items if item.origin in gone))


def _truncations(draft: Draft, result: Trimmed) -> tuple[TruncationEvent, ...]:
    """A strategy's decision as events: one for what it replaced now, one for what it removed."""
    act = result.act
    if act is None:
        return ()
    gone: Stage = "cut" if result.lasting else "hide"
    made: list[tuple[Stage, Sequence[Removed | Replaced]]] = [("replace", result.replaced), (gone, result.removed)]
    return tuple(
        TruncationEvent(
            layer="conversation",
            stage=stage,
            reason=new[0].reason,
            item_ids=tuple(draft.content_id(draft.items[change.index].origin) for change in new),
            tokens_before=result.tokens_before,
            tokens_after=result.tokens_after,
            strategy=act.strategy,
        )
        for stage, changes in made
        if (new := [change for change in changes if change.new])
    )


def _as_sent_by_host(draft: Draft) -> Conversation:
    """The conversation for early strategies: packed messages in their own words, extracts as they are sent.

    The tokens of packed messages are those of what is sent.
    """
    source, counter, items = draft.input, draft.counter, draft.items
    request, settings = source.request, draft.policy.conversation
    contents = tuple(item.content if item.outcome == "extract" else item.raw for item in items)
    packed = {item.origin: item.tokens for item in items if item.outcome == "payload"}
    tokens = tuple(
        packed.get(item.origin, count) for item, count in zip(items, counter.contents(contents), strict=True)
    )
    if request.human is not None and request.human not in packed:
        tokens = tuple(count + draft.payload_tokens * (at == request.human) for at, count in enumerate(tokens))
    unseen = source.calibration.unseen if source.calibration is not None else 0
    declares = bool(request.tools or request.other_tools)
    fixed = counter.system(draft.system, declares=declares) + sum(counter.tools(request.tools)) + unseen
    fixed += sum(counter.count_all(request.other_tools))
    budget = Budget.of(
        source.window,
        slack=draft.slack,
        fixed=fixed,
        compact_at=settings.compact_at,
        compact_to=settings.compact_to,
    )
    return Conversation(
        contents=contents,
        tokens=tokens,
        human=request.human,
        positions=request.positions,
        digests=tuple(item.raw.digest for item in items),
        budget=replace(budget, ceiling=max(0, budget.ceiling + draft.overcounted)),
        counter=counter,
        system=request.system,
        tools=request.tools,
        anchors=ranked(source.anchors),
        state=source.epoch.strategies,
        opens=source.first_call,
        forced=draft.by_hand,
        gated=draft.gated(fixed + sum(tokens), draft.input_budget + draft.overcounted),
    )


def _conversation(draft: Draft, budget: Budget) -> Conversation:
    """The conversation for late strategies, as it would be sent, the human message's tokens counted elsewhere."""
    source, items, human = draft.input, draft.items, draft.human
    contents = tuple(item.content for item in items)
    positions = tuple(source.request.positions[item.origin] for item in items)

    def write(gone: Sequence[Content], kept: Sequence[Content], /, *, max_tokens: int, earlier: str) -> str:
        return recap(
            gone, kept, max_tokens=max_tokens, counter=draft.counter, summaries=draft.summaries, earlier=earlier
        )

    standing = standing_anchors(contents, positions, draft.policy.conversation.anchors)
    return Conversation(
        contents=contents,
        tokens=tuple(0 if item.origin == human else item.tokens for item in items),
        human=next((at for at, item in enumerate(items) if item.origin == human), None),
        positions=positions,
        digests=tuple(item.raw.digest for item in items),
        budget=budget,
        counter=draft.counter,
        system=source.request.system,
        tools=source.request.tools,
        anchors=ranked([*source.anchors, *standing]),
        state=draft.states,
        summary=draft.summary,
        summary_tokens=draft.summary_tokens(draft.summary),
        opens=source.first_call,
        forced=draft.by_hand,
        gated=draft.gated(draft.spoken(items, draft.summary) + budget.fixed, budget.input),
        heavy=draft.past_byte_net(contents),
        summarize=write,
    )


# The water marks.


def _budget(draft: Draft) -> Budget:
    """The marks of the conversation, with a low one that brings contents past the byte net under it again, however few
    tokens they count."""
    fixed = (
        sum(draft.measured.values())
        + sum(draft.packed_tokens.values())
        + sum(candidate.tokens for candidate in (*draft.memory, *draft.evidence))
        + draft.reserve
    )
    budget = marks(draft.policy, draft.shares, fixed)
    share = draft.net_share(item.content for item in draft.items)
    if share == 1:
        return budget
    low = int(draft.policy.conversation.compact_to * share * draft.spoken(draft.items, draft.summary))
    return replace(budget, low=min(budget.low, low))


def marks(policy: PackPolicy, allocation: Allocation, fixed: int) -> Budget:
    """The marks of the conversation: what the water marks leave beside the other layers, or its own share of them.

    Args:
        fixed: tokens of all other layers as they are sent.
    """
    room = allocation.budget
    ceiling = max(allocation.layers["conversation"].final, room - fixed)
    settings = policy.conversation
    return Budget(
        window=room + allocation.slack,
        slack=allocation.slack,
        fixed=fixed,
        ceiling=ceiling,
        high=max(int(settings.compact_at * room) - fixed, int(settings.compact_at * ceiling)),
        low=max(int(settings.compact_to * room) - fixed, int(settings.compact_to * ceiling)),
    )


# The cut of the default strategy and of the net.
#
# A cut is judged like an order in stock-keeping: it costs what has to be sent uncached again, and saves the cached
# price of what it frees for as long as that room lasts.


def _cut(draft: Draft, budget: Budget, strategy: str) -> None:
    """One act down to the low-water mark around the anchors, where the high-water mark is passed and it pays or the
    window demands it."""
    policy, human = draft.policy, draft.human
    anchored, notes = _anchored(draft, budget)
    aside = sum(item.tokens for item in anchored)
    apart = {item.origin for item in anchored}
    rest = tuple(item for item in draft.items if item.origin not in apart) if anchored else draft.items
    budget = replace(
        budget,
        fixed=budget.fixed + aside,
        high=budget.high - aside,
        low=max(0, budget.low - aside),
        ceiling=budget.ceiling - aside,
    )
    before = draft.spoken(rest, draft.summary)
    if not _pressed(draft, budget, before, rest):
        return
    room = int(policy.conversation.summary_share * budget.input) if policy.conversation.summary != "off" else 0
    if any(candidate.source == RECALLED for candidate in draft.memory):
        # Beside turns that were recalled the recap leaves the latest turns their part.
        room = min(room, int(RECAP_SHARE * budget.low))
    items = [unpack(draft, item) for item in rest]
    left = cut_to(
        draft,
        budget.low,
        items,
        next((at for at, item in enumerate(items) if item.origin == human), None),
        ceiling=budget.ceiling,
        room=room,
    )
    after = draft.spoken(left.items, left.summary)
    demanded = before > budget.ceiling or budget.high < 0
    if left.items == rest or (not demanded and before - after < _SCARCE_SHARE * budget.input):
        return
    contents = {item.origin: item.content for item in draft.items}
    short = [item for item in left.items if item.outcome == "extract" and item.content is not contents[item.origin]]
    touched = {item.origin for item in (*left.cut, *short)}
    reason: Reason = "window" if before > budget.ceiling else "high_water" if before > budget.high else "byte_net"
    reason = "by_hand" if draft.by_hand else reason
    event = TruncationEvent(
        layer="conversation",
        stage="cut",
        reason=reason,
        item_ids=tuple(draft.content_id(item.origin) for item in (*left.cut, *short)),
        tokens_before=before + aside,
        tokens_after=after + aside,
        strategy=strategy,
    )
    replies = [at for at, item in enumerate(draft.items) if item.raw.role == "model"]
    changed = {at for at, item in enumerate(draft.items) if item.origin in touched}
    act = Act(
        strategy=strategy,
        removed=len(left.cut),
        replaced=len(short),
        freed_tokens=before - after,
        lost_tokens=lost_tokens([item.tokens for item in draft.items], changed, replies[-1] if replies else 0),
    )
    kept = (*left.items, *(unpack(draft, item) for item in anchored))
    draft.items = tuple(sorted(kept, key=lambda item: item.origin))
    draft.cut = (*draft.cut, *left.cut)
    draft.reasons = {**draft.reasons, **{item.origin: reason for item in left.cut}}
    draft.summary = left.summary
    draft.extracts = {**draft.extracts, **left.extracts}
    draft.events = (*draft.events, event)
    draft.acts = (*draft.acts, act)
    draft.degradations = (*draft.degradations, *notes)


def _anchored(draft: Draft, budget: Budget) -> tuple[tuple[Outgoing, ...], tuple[str, ...]]:
    """The contents that anchors hold, and a note for each anchor that there is no room for."""
    anchors, items = draft.input.anchors, draft.items
    if not anchors:
        return (), ()
    parts = units([item.content for item in items])
    human = next((at for at, item in enumerate(items) if item.origin == draft.human), None)
    stay = protected(parts, human)
    tokens = [0 if item.origin == draft.human else item.tokens for item in items]
    room = budget.ceiling - sum(tokens[index] for at in stay for index in parts[at].indices)
    positions = [draft.input.request.positions[item.origin] for item in items]
    held = hold(anchors, parts, positions, tokens, room=room, stay=stay)
    notes = tuple(f"no room for the anchor {anchor.description} (content {anchor.place})" for anchor in held.lost)
    return tuple(items[index] for at in sorted(held.units) for index in parts[at].indices), notes


def _pressed(draft: Draft, budget: Budget, tokens: int, items: Sequence[Outgoing]) -> bool:
    """Whether the conversation calls for a cut: past the high-water mark and the gate, or past the byte net.

    A mark below zero is always passed.
    """
    if tokens > budget.ceiling or budget.high < 0:
        return True
    if tokens <= budget.high:
        return draft.past_byte_net(item.content for item in items)
    calls = sum(item.content.role == "model" for item in items)
    return not draft.gated(tokens + budget.fixed, budget.input) and pays(
        freed=tokens - budget.low,
        kept=budget.low,
        growth=tokens / max(1, calls),
        cached_price=draft.cached_price,
    )


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Remainder:
    """What a cut leaves: contents that stay, contents that go, the recap that stands for those, and the token ceilings
    of responses that it shortened, by digest."""

    items: tuple[Outgoing, ...]
    cut: tuple[Outgoing, ...] = ()
    summary: str = ""
    extracts: Mapping[str, int] = field(default_factory=dict)


def cut_to(
    draft: Draft, low: int, items: Sequence[Outgoing], human: int | None, *, ceiling: int, room: int
) -> Remainder:
    """The conversation within ``low`` tokens, recap included, where what may leave holds enough.

    Args:
        items: all contents that are sent so far, in the host's order.
        human: index of the final human message, which is not counted.
        ceiling: what the conversation may hold at most.
        room: the recap's most, within ``low``.
    """
    counter = draft.counter
    room = min(room, MOST_TOKENS)
    frame = draft.summary_tokens(_BULLET) - counter.count(_BULLET)
    raws = [item.raw for item in items]
    responses = [response_tokens(item.content, counter) for item in items]
    tokens = [0 if at == human else item.tokens for at, item in enumerate(items)]
    total = sum(tokens)
    parts = turns.units([item.content for item in items])

    def spare(sizes: Sequence[int]) -> int:
        return max(0, sum(sizes) - LEAST_EXTRACT * len(sizes))

    worth = turns.Worth(
        superseded=turns.superseded(parts, raws),
        stands_at=turns.outliving(parts, raws, tokens),
        spare={at: sum(spare(responses[index]) for index in unit.indices) for at, unit in enumerate(parts)},
    )
    left = Remainder(items=tuple(items))
    # The second round knows how long the recap is; a model is asked for one there alone.
    for reserved, summaries in ((room, Summaries("", {})), (None, draft.summaries)):
        target = max(0, low - (draft.summary_tokens(left.summary) if reserved is None else reserved))
        for neighbours in (True, False):
            made = turns.cut(
                parts,
                tokens,
                target=target,
                human=human,
                last_turns=draft.policy.conversation.last_turns,
                neighbours=neighbours,
                worth=worth,
            )
            kept = total - sum(tokens[index] for index in made.gone) - made.excess
            if kept <= ceiling:
                break
        left = _left(draft, items, responses, made, room=min(room, ceiling - kept - frame), summaries=summaries)
    return left


def _left(
    draft: Draft,
    items: Sequence[Outgoing],
    responses: Sequence[Sequence[int]],
    made: turns.Cut,
    *,
    room: int,
    summaries: Summaries,
) -> Remainder:
    counter, raws = draft.counter, [item.raw for item in items]
    out = set(made.gone)
    sizes = [tokens for index in made.shortened for tokens in responses[index]]
    most = max(LEAST_EXTRACT, level(sizes, sum(sizes) - made.excess))
    stay: list[Outgoing] = []
    extracts: dict[str, int] = {}
    for index, item in enumerate(items):
        if index in made.shortened and responses[index]:
            whole = item.content if item.members else item.raw
            content = shortened(whole, most, asked(raws, index), counter)
            stay.append(replace(item, content=content, outcome="extract", tokens=counter.content(content)))
            extracts[item.raw.digest] = most
        elif index not in out:
            stay.append(item)
    summary = ""
    if room > 0:
        reduced = {item.raw.digest for item in stay if item.outcome == "extract"}
        lost = [raw for index, raw in enumerate(raws) if index in out or raw.digest in reduced]
        kept = [item.content for item in stay]
        summary = recap(lost, kept, max_tokens=room, counter=counter, summaries=summaries, earlier=draft.summary)
    return Remainder(
        items=tuple(stay), cut=tuple(items[index] for index in made.gone), summary=summary, extracts=extracts
    )


def unpack(draft: Draft, item: Outgoing) -> Outgoing:
    """An earlier invocation's message with its own text again; a cut breaks the prefix that its packed text kept."""
    if item.outcome != "payload" or item.origin == draft.human:
        return item
    return replace(item, content=item.raw, outcome="verbatim", tokens=draft.counter.content(item.raw), members=())
