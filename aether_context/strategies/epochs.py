"""The default: units go from the oldest, from the high-water mark down to the low-water mark, with a summary."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from aether_context.conversation import units
from aether_context.policy import ConversationSettings
from aether_context.strategies.cutting import cut_units, summary_room
from aether_context.strategies.strategy import Conversation, Trimmed, decided

SCARCE_SHARE = 0.02
"""A cut that frees less than this share of the input budget is made only where the window demands it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Epochs:
    """The strategy ``epochs``.

    Inside a pack the same cut also shortens responses where that frees enough, which needs what a pack alone knows.
    """

    settings: ConversationSettings
    name: ClassVar[str] = "epochs"
    early: ClassVar[bool] = False

    def trim(self, conversation: Conversation) -> Trimmed:
        budget = conversation.budget
        if not conversation.passes(budget.high):
            return decided(conversation, self.name)
        return cut_units(
            conversation,
            self.name,
            units(conversation.contents),
            stay=frozenset(),
            target=budget.low,
            summary_ceiling=summary_room(conversation, self.settings),
            last_turns=self.settings.last_turns,
            worthwhile=int(SCARCE_SHARE * budget.input),
            reason="window" if conversation.used > budget.ceiling else conversation.reason(budget.high, "high_water"),
        )
