"""Several strategies as one, and what each would do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from aether_context.pack import Act, Anchor
from aether_context.policy import ConversationSettings
from aether_context.strategies.registry import strategies_of
from aether_context.strategies.strategy import Conversation, Removed, Trimmed


def trim(conversation: Conversation, settings: ConversationSettings) -> Trimmed:
    """What a policy's strategies do to a conversation together, each to what the one before it leaves.

    Nothing is changed, so this is the preview, too: what would go, the tokens that it frees, and those of the cached
    prefix that it breaks.

    Raises:
        PolicyError: a strategy is unknown, or stands where it cannot.
    """
    first, *others = strategies_of(settings)
    whole = result = first.trim(conversation)
    left = conversation
    for strategy in others:
        left = left.after(result)
        result = strategy.trim(left)
        whole = _joined(whole, result)
    return whole


def _joined(whole: Trimmed, result: Trimmed) -> Trimmed:
    """A result of what another one left, in the places of the whole."""
    place = whole.kept
    replaced = {one.index: one for one in whole.replaced}
    replaced |= {place[one.index]: replace(one, index=place[one.index]) for one in result.replaced}
    summarized = result.summary is not None
    return Trimmed(
        kept=tuple(place[at] for at in result.kept),
        removed=_sorted(*whole.removed, *(replace(one, index=place[one.index]) for one in result.removed)),
        replaced=tuple(replaced[at] for at in sorted(replaced)),
        anchors=_both(whole.anchors, result.anchors),
        summary=result.summary if summarized else whole.summary,
        summary_at=(place[result.summary_at] if result.summary_at else 0) if summarized else whole.summary_at,
        state=result.state if result.state is not None else whole.state,
        lasting=whole.lasting and result.lasting,
        normalize=whole.normalize or result.normalize,
        note="; ".join(filter(None, (whole.note, result.note))),
        tokens_before=whole.tokens_before,
        tokens_after=result.tokens_after,
        act=_added(whole.act, result.act),
    )


def _sorted(*removed: Removed) -> tuple[Removed, ...]:
    return tuple(sorted(removed, key=lambda one: one.index))


def _both(one: Sequence[Anchor], other: Sequence[Anchor]) -> tuple[Anchor, ...]:
    return tuple(anchor for anchor in one if anchor in other)


def _added(one: Act | None, other: Act | None) -> Act | None:
    if one is None or other is None:
        return one or other
    return Act(
        strategy=f"{one.strategy}, {other.strategy}",
        removed=one.removed + other.removed,
        replaced=one.replaced + other.replaced,
        freed_tokens=one.freed_tokens + other.freed_tokens,
        lost_tokens=max(one.lost_tokens, other.lost_tokens),
    )
