"""The beginning and the end of a conversation are frozen, the middle goes from the oldest.

Nothing is torn: an exchange counts as one message and stays or goes whole, and the message that opens a turn outlives
the turn's answers. Anchors in the middle stay. It acts above the high-water mark and goes down to the low-water mark in
one act, so that the next one is far away.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from aether_context.conversation import units
from aether_context.policy import ConversationSettings
from aether_context.strategies.cutting import cut_units, summary_room
from aether_context.strategies.strategy import Conversation, Trimmed, decided


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadsTails:
    """The strategy ``heads_tails``."""

    settings: ConversationSettings
    name: ClassVar[str] = "heads_tails"
    early: ClassVar[bool] = False

    def trim(self, conversation: Conversation) -> Trimmed:
        budget = conversation.budget
        if not conversation.passes(budget.high):
            return decided(conversation, self.name)
        parts = units(conversation.contents)
        head, tail = self.settings.heads_tails.head, self.settings.heads_tails.tail
        stay = frozenset(range(min(head, len(parts)))) | frozenset(range(max(0, len(parts) - tail), len(parts)))
        return cut_units(
            conversation,
            self.name,
            parts,
            stay=stay,
            target=budget.low,
            summary_ceiling=summary_room(conversation, self.settings),
            last_turns=self.settings.last_turns,
            worthwhile=(budget.high - budget.low) // 2,
            reason="middle",
        )
