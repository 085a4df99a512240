"""The beginning and the end of a conversation are frozen, the middle goes from the oldest.

Nothing is torn: an exchange counts as one message and stays or goes whole, and the message that opens a turn outlives
the turn's answers. Anchors in the middle stay. It acts above the high-water mark and goes down to the low-water mark in
one act, so that the next one is far away. Where head and tail are so large that hardly any room would be left, they
hold fewer messages: those nearest to the middle go first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from aether_context.conversation import Unit, protected, units
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
        summary = summary_room(conversation, self.settings)
        return cut_units(
            conversation,
            self.name,
            parts,
            stay=self._frozen(conversation, parts, (budget.low + budget.ceiling) // 2 - summary),
            target=budget.low,
            summary_ceiling=summary,
            last_turns=self.settings.last_turns,
            worthwhile=budget.high - budget.low,
            reason="middle",
        )

    def _frozen(self, conversation: Conversation, parts: Sequence[Unit], room: int) -> frozenset[int]:
        """The places of head and tail, from both ends towards the middle while they have room; half of it for each."""
        settings = self.settings.heads_tails
        sizes = [sum(conversation.tokens[index] for index in unit.indices) for unit in parts]
        always = protected(parts, conversation.human)
        left = room - sum(sizes[at] for at in always)
        head = range(min(settings.head, len(parts)))
        tail = range(len(parts) - 1, max(len(parts) - settings.tail, 0) - 1, -1)
        taken = set(always)
        for order, share in ((head, left // 2), (tail, left)):
            for at in order:
                cost = sizes[at] if at not in taken else 0
                if cost > min(share, left):
                    break
                taken.add(at)
                share -= cost
                left -= cost
        return frozenset(taken)
