"""Whole turns are left out from the oldest until the request is under a ceiling; nothing is kept of that anywhere.

What is left out follows from the host's own history up to the message that the model answers, what a payload adds to
that message, the system instruction, the declarations and the ceiling. Every call of an invocation therefore comes to
the same result as its first one, any reader can compute it, and a higher ceiling brings the turns back. The ceiling is
not a target, and the latest turn stays even where it alone is above it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar

from aether_context.conversation import is_human, units
from aether_context.policy import ConversationSettings
from aether_context.strategies.strategy import Conversation, Removed, Trimmed, decided


@dataclass(frozen=True, slots=True, kw_only=True)
class SlidingTurns:
    """The strategy ``sliding_turns``."""

    settings: ConversationSettings
    name: ClassVar[str] = "sliding_turns"
    early: ClassVar[bool] = True

    def trim(self, conversation: Conversation) -> Trimmed:
        tokens = self.settings.sliding_turns.tokens
        last = conversation.human if conversation.human is not None else len(conversation.contents) - 1
        if not tokens or last < 0:
            return decided(conversation, self.name)
        ceiling = min(tokens, conversation.budget.input)
        gone = beyond(conversation, ceiling, last)
        earlier = _earlier(conversation, ceiling, last) if gone and conversation.opens else gone
        removed = [Removed(index=at, reason="turn_budget", new=at not in earlier) for at in sorted(gone)]
        return decided(conversation, self.name, removed=removed, lasting=False)


def beyond(conversation: Conversation, ceiling: int, last: int) -> Collection[int]:
    """The indices of the oldest whole turns that have to go so that the request up to a content is under the ceiling.

    Turns with an anchor stay.

    Args:
        last: index of the last content that counts; its turn stays.
    """
    used = conversation.budget.fixed + sum(conversation.tokens[: last + 1])
    if used <= ceiling:
        return ()
    turns: dict[int, list[int]] = {}
    for unit in units(conversation.contents):
        turns.setdefault(unit.turn, []).extend(unit.indices)
    anchored = conversation.anchored
    gone: set[int] = set()
    for indices in turns.values():
        if used <= ceiling or max(indices) >= last:
            break
        if anchored.isdisjoint(indices):
            gone.update(indices)
            used -= sum(conversation.tokens[at] for at in indices)
    return gone


def _earlier(conversation: Conversation, ceiling: int, last: int) -> Collection[int]:
    """What was beyond the ceiling when the human message before was answered."""
    before = (at for at in range(last - 1, -1, -1) if is_human(conversation.contents[at]))
    return beyond(conversation, ceiling, next(before, 0))
