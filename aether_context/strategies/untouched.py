"""Nothing is left out: contents are normalized and recorded, and the window is all that limits them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from aether_context.policy import ConversationSettings
from aether_context.strategies.strategy import Conversation, Trimmed, decided


@dataclass(frozen=True, slots=True, kw_only=True)
class Untouched:
    """The strategy ``none``."""

    settings: ConversationSettings
    name: ClassVar[str] = "none"
    early: ClassVar[bool] = True

    def trim(self, conversation: Conversation) -> Trimmed:
        return decided(conversation, self.name, normalize=True)
