"""The beginning and the end of a conversation are frozen, the middle goes from the oldest.

Nothing is torn: an exchange counts as one message and stays or goes whole, and the message that opens a turn outlives
the turn's answers. Anchors in the middle stay. It acts above the high-water mark and goes down to the low-water mark in
one act, so that the next one is far away. Where head and tail are so large that hardly any room would be left, the tail
holds fewer messages; the head does only where it does not fit at all. Those nearest to the middle go first.
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
            stay=self._frozen(conversation, parts),
            target=budget.low,
            summary_ceiling=summary,
            last_turns=self.settings.last_turns,
            worthwhile=budget.high - budget.low,
            reason=conversation.reason(budget.high, "middle"),
        )

    def _frozen(self, conversation: Conversation, parts: Sequence[Unit]) -> frozenset[int]:
        """The places of head and tail, from both ends towards the middle while they have room.

        The head comes first, since its loss is for good. Both may take all that fits; the summary gets what they leave.
        """
        settings, budget = self.settings.heads_tails, conversation.budget
        sizes = [sum(conversation.tokens[index] for index in unit.indices) for unit in parts]
        taken = set(protected(parts, conversation.human))
        used = sum(sizes[at] for at in taken)
        head = range(min(settings.head, len(parts)))
        tail = range(len(parts) - 1, max(len(parts) - settings.tail, 0) - 1, -1)
        for at in (*head, *tail):
            cost = sizes[at] if at not in taken else 0
            if used + cost > budget.ceiling:
                break
            taken.add(at)
            used += cost
        return frozenset(taken)
