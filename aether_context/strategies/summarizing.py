"""Older messages become a running summary, made of the conversation's own lines and bounded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from aether_context.conversation import Unit, units
from aether_context.policy import ConversationSettings
from aether_context.strategies.cutting import cut_units
from aether_context.strategies.recap import MOST_TOKENS
from aether_context.strategies.strategy import Budget, Conversation, Trimmed, decided


@dataclass(frozen=True, slots=True, kw_only=True)
class Summarize:
    """The strategy ``summarize``."""

    settings: ConversationSettings
    name: ClassVar[str] = "summarize"
    early: ClassVar[bool] = False

    def trim(self, conversation: Conversation) -> Trimmed:
        settings, budget = self.settings.summarize, conversation.budget
        if not conversation.passes(mark(budget, settings.trigger)):
            return decided(conversation, self.name)
        parts = units(conversation.contents)
        target = mark(budget, settings.target)
        return cut_units(
            conversation,
            self.name,
            parts,
            stay=self._latest(conversation, parts, target),
            target=min(target, budget.low) if conversation.forced else target,
            summary_ceiling=min(int(settings.summary_share * budget.input), MOST_TOKENS),
            last_turns=1,
            worthwhile=mark(budget, settings.trigger) - target,
            reason=conversation.reason(mark(budget, settings.trigger), "high_water"),
        )

    def _latest(self, conversation: Conversation, parts: Sequence[Unit], room: int) -> frozenset[int]:
        """The latest units that stay, while they fit."""
        stay: set[int] = set()
        for at in range(len(parts) - 1, max(-1, len(parts) - 1 - self.settings.summarize.keep_last), -1):
            room -= sum(conversation.tokens[index] for index in parts[at].indices)
            if room < 0:
                break
            stay.add(at)
        return frozenset(stay)


def mark(budget: Budget, share: float) -> int:
    """A share of the input budget as tokens of the conversation, at least that share of what there is for it."""
    return max(int(share * budget.input) - budget.fixed, int(share * budget.ceiling))
