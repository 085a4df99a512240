"""What strategies decide before the window is allocated, and the gate in front of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from aether_context.canonical import JSON
from aether_context.conversation import Budget, Conversation, Removed, Replaced, Trimmed, ranked, strategies_of
from aether_context.pack import Act, Content, Outgoing, PackInput, Reason, Stage, TruncationEvent, content_name
from aether_context.packing import allocation
from aether_context.policy import PackPolicy
from aether_context.tokens.cache import CachedCounter

# The usage gate in front of every strategy: no cut while reported usage says that the window is far from full.

_MOST_BYTES = 4
"""Bytes of one character in UTF-8, at most."""


def gated(source: PackInput, policy: PackPolicy, counted: int, budget: int) -> bool:
    """Whether reported usage says that the window is far from full, though the count is past its high-water mark.

    Args:
        counted: tokens of the whole request and what is unseen of it.
        budget: the input budget, which the count may not pass.
    """
    known = source.calibration
    if known is None or known.beyond is None or counted > budget:
        return False
    mark = min(policy.usage.gate * source.window, policy.conversation.compact_at * budget)
    return counted - known.unseen + known.beyond < mark


def past_byte_net(source: PackInput, policy: PackPolicy, contents: Iterable[Content]) -> bool:
    """Whether contents are so large that they are cut as if they had passed the high-water mark.

    The net is there for calls before which nothing was reported in the invocation: the first one, or all of them where
    a provider reports nothing.
    """
    net = _net_bytes(source, policy)
    if not net:
        return False
    held = list(contents)
    characters = sum([len(one.wire) for one in held])
    return characters > net or (_MOST_BYTES * characters > net and sent_bytes(held) > net)


def net_share(source: PackInput, policy: PackPolicy, contents: Iterable[Content]) -> float:
    """The share of contents that the byte net takes; 1.0 where it takes all of them."""
    net = _net_bytes(source, policy)
    size = sent_bytes(contents) if net > 0 else 0
    return net / size if size > net else 1.0


def sent_bytes(contents: Iterable[Content]) -> int:
    """Bytes of contents as JSON in UTF-8."""
    return sum(
        len(one.wire) if one.wire.isascii() else len(one.wire.encode("utf-8", "surrogatepass")) for one in contents
    )


def _net_bytes(source: PackInput, policy: PackPolicy) -> float:
    """The size of the net in bytes; 0.0 where usage was reported in this invocation."""
    known = source.calibration
    unreported = known is None or known.beyond is None
    return policy.usage.net_bytes_per_token * source.window if unreported else 0.0


def by_hand(source: PackInput) -> bool:
    """Whether a cut was asked for that has not been made."""
    return bool(source.asked) and source.asked != source.epoch.asked


# What strategies decide from what the host sent alone, before the window is allocated.


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """The contents after those strategies.

    ``items`` are all contents that came in, some of them replaced. ``hidden`` are the origins of those that are not
    sent this time. ``reasons`` say why each of both is so. ``states`` is what strategies keep from call to call.
    ``notes`` say what could not be done as asked.
    """

    items: tuple[Outgoing, ...]
    hidden: frozenset[int] = frozenset()
    reasons: Mapping[int, Reason] = field(default_factory=dict)
    states: Mapping[str, Mapping[str, JSON]] = field(default_factory=dict)
    normalize: bool = False
    acts: tuple[Act, ...] = ()
    events: tuple[TruncationEvent, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def sent(self) -> tuple[Outgoing, ...]:
        """The items that are sent."""
        if not self.hidden:
            return self.items
        return tuple(item for item in self.items if item.origin not in self.hidden)


def settle(
    source: PackInput,
    policy: PackPolicy,
    items: tuple[Outgoing, ...],
    counter: CachedCounter,
    *,
    system: str,
    payload_tokens: int = 0,
) -> Settled:
    """Applies the policy's early strategies, in their order.

    Args:
        system: the system instruction as it is sent.
        payload_tokens: what a payload adds to the human message, where that is not packed yet.
    """
    settled = Settled(items=items, states=source.epoch.strategies)
    early = [one for one in strategies_of(policy.conversation) if one.early]
    if not early or source.passthrough_reason:
        return settled
    conversation = _conversation(source, policy, items, counter, system, payload_tokens)
    origins = tuple(range(len(items)))
    for strategy in early:
        result = strategy.trim(conversation)
        settled = _settled(source, settled, result, origins, counter)
        origins = tuple(origins[at] for at in result.kept)
        conversation = conversation.after(result)
    return settled


def _settled(
    source: PackInput, before: Settled, result: Trimmed, origins: Sequence[int], counter: CachedCounter
) -> Settled:
    items = list(before.items)
    reasons = dict(before.reasons)
    for one in result.replaced:
        origin = origins[one.index]
        reasons[origin] = one.reason
        items[origin] = replace(
            items[origin], content=one.content, outcome="placeholder", tokens=counter.content(one.content)
        )
    for gone in result.removed:
        reasons[origins[gone.index]] = gone.reason
    return replace(
        before,
        items=tuple(items),
        hidden=before.hidden.union(origins[gone.index] for gone in result.removed),
        reasons=reasons,
        states=before.states if result.state is None else result.state,
        normalize=before.normalize or result.normalize,
        acts=before.acts if result.act is None else (*before.acts, result.act),
        events=before.events + truncations(source, result, origins),
        notes=(*before.notes, result.note) if result.note else before.notes,
    )


def _conversation(
    source: PackInput,
    policy: PackPolicy,
    items: Sequence[Outgoing],
    counter: CachedCounter,
    system: str,
    payload_tokens: int,
) -> Conversation:
    """The conversation as the host sent it: packed messages in their own words, extracts as they are sent.

    The tokens of packed messages are those of what is sent.
    """
    request, water = source.request, policy.conversation
    contents = tuple(item.content if item.outcome == "extract" else item.raw for item in items)
    packed = {item.origin: item.tokens for item in items if item.outcome == "payload"}
    tokens = tuple(
        packed.get(item.origin, count) for item, count in zip(items, counter.contents(contents), strict=True)
    )
    if request.human is not None and request.human not in packed:
        tokens = tuple(count + payload_tokens * (at == request.human) for at, count in enumerate(tokens))
    slack = allocation.slack(source, policy)
    known = source.calibration
    unseen, overcounted = (known.unseen, known.overcounted) if known is not None else (0, 0)
    declares = bool(request.tools or request.other_tools)
    fixed = counter.system(system, declares=declares) + sum(counter.tools(request.tools)) + unseen
    fixed += sum(counter.count_all(request.other_tools))
    budget = Budget.of(
        source.window,
        slack=slack,
        fixed=fixed,
        compact_at=water.compact_at,
        compact_to=water.compact_to,
    )
    return Conversation(
        contents=contents,
        tokens=tokens,
        human=request.human,
        positions=request.positions,
        digests=tuple(item.raw.digest for item in items),
        budget=replace(budget, ceiling=max(0, budget.ceiling + overcounted)),
        counter=counter,
        system=request.system,
        tools=request.tools,
        anchors=ranked(source.anchors),
        state=source.epoch.strategies,
        opens=source.first_call,
        forced=by_hand(source),
        gated=gated(source, policy, fixed + sum(tokens), source.window - slack + overcounted),
    )


def truncations(source: PackInput, result: Trimmed, origins: Sequence[int]) -> tuple[TruncationEvent, ...]:
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
            item_ids=tuple(content_id(source, origins[one.index]) for one in new),
            tokens_before=result.tokens_before,
            tokens_after=result.tokens_after,
            strategy=act.strategy,
        )
        for stage, ones in made
        if (new := [one for one in ones if one.new])
    )


def content_id(source: PackInput, index: int) -> str:
    """The name of a content: its place in the host's list and the beginning of its hash."""
    return content_name(source.request.positions[index], source.request.contents[index])
