"""What strategies that cut for good have in common: whole units from the oldest, in one act, with a summary."""

from __future__ import annotations

from collections.abc import Sequence

from aether_context.conversation import Unit, Worth, cut, outliving, protected, superseded
from aether_context.pack import Reason
from aether_context.policy import ConversationSettings
from aether_context.strategies.anchors import hold
from aether_context.strategies.recap import MOST_TOKENS
from aether_context.strategies.strategy import Conversation, Removed, Trimmed, decided, summary_tokens

_BULLET = "- x"


def cut_units(
    conversation: Conversation,
    strategy: str,
    parts: Sequence[Unit],
    *,
    stay: frozenset[int],
    target: int,
    summary_ceiling: int,
    last_turns: int,
    worthwhile: int,
    reason: Reason,
) -> Trimmed:
    """Leaves out units from the oldest down to ``target`` tokens, anchors and those that stay excepted.

    Anchors stay, by priority, while they fit under the ceiling with what stays anyway.

    Args:
        parts: the conversation's units; ``stay`` are places in it.
        summary_ceiling: tokens of the summary, which ``target`` includes; 0 for none.
        worthwhile: tokens; a cut that frees fewer is made only where the window or a hand demands it.
    """
    always = stay | protected(parts, conversation.human)
    least = sum(conversation.tokens[index] for at in always for index in parts[at].indices) + summary_ceiling
    held = hold(
        conversation.anchors,
        parts,
        conversation.positions,
        conversation.tokens,
        room=conversation.budget.ceiling - least,
        stay=always,
    )
    gone = cut(
        parts,
        conversation.tokens,
        target=max(0, target - summary_ceiling),
        human=conversation.human,
        last_turns=last_turns,
        worth=Worth(
            superseded=superseded(parts, conversation.contents),
            stands_at=outliving(parts, conversation.contents, conversation.tokens),
        ),
        stay=stay | held.units,
    ).gone
    freed = sum(conversation.tokens[at] for at in gone)
    demanded = conversation.used > conversation.budget.ceiling or conversation.forced
    if not gone or (not demanded and freed < worthwhile):
        return decided(conversation, strategy)
    room = min(summary_ceiling, conversation.budget.ceiling - sum(conversation.tokens) + freed) - _frame(conversation)
    text = conversation.summarized(gone, room)
    why: Reason = "by_hand" if conversation.forced else reason
    removed = [Removed(index=at, reason=why) for at in gone]
    note = "; ".join(f"no room for the anchor {anchor.description} (content {anchor.place})" for anchor in held.lost)
    return decided(conversation, strategy, removed=removed, summary=text, summary_at=_opening(parts, gone), note=note)


def _opening(parts: Sequence[Unit], gone: Sequence[int]) -> int:
    """The first index that is gone: what stands before it stays as it was, in front of the summary.

    It is the beginning where an exchange with late answers reaches across.
    """
    first = min(gone)
    return 0 if any(part.indices[0] < first < part.indices[-1] for part in parts) else first


def _frame(conversation: Conversation) -> int:
    """Tokens of a summary besides its own words."""
    return summary_tokens(conversation.counter, _BULLET) - conversation.counter.count(_BULLET)


def summary_room(conversation: Conversation, settings: ConversationSettings) -> int:
    """Tokens of a summary under a policy."""
    room = int(settings.summary_share * conversation.budget.input) if settings.summary != "off" else 0
    return min(room, MOST_TOKENS)
