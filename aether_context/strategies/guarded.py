"""Strategies from outside, kept from leaving a request that no provider takes."""

from __future__ import annotations

from dataclasses import dataclass

from aether_context.conversation import is_human, protected, units
from aether_context.strategies.strategy import Conversation, Strategy, Trimmed, decided


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarded:
    """A strategy whose unsound decisions are not taken; what is wrong with them is its note."""

    strategy: Strategy

    @property
    def name(self) -> str:
        return self.strategy.name

    @property
    def early(self) -> bool:
        return self.strategy.early

    def trim(self, conversation: Conversation) -> Trimmed:
        result = self.strategy.trim(conversation)
        fault = _fault(conversation, result)
        if not fault:
            return result
        return decided(conversation, self.name, note=f"strategy {self.name!r} changed nothing: {fault}")


def _fault(conversation: Conversation, result: Trimmed) -> str:
    """What is wrong with what a result removes; empty where nothing is."""
    gone = {one.index for one in result.removed}
    if not gone:
        return ""
    parts = units(conversation.contents)
    torn = next((unit for unit in parts if 0 < len(gone.intersection(unit.indices)) < len(unit.indices)), None)
    if torn is not None:
        return f"it would tear the exchange of the contents {', '.join(map(str, torn.indices))}"
    kept = protected(parts, conversation.human, neighbours=False)
    lost = sorted(gone.intersection(index for at in kept for index in parts[at].indices))
    if lost:
        return f"it would take content {lost[0]}, which the model has yet to answer"
    first = next(at for at in range(len(conversation.contents)) if at not in gone)
    summary = conversation.summary if result.summary is None else result.summary
    if not summary and is_human(conversation.contents[0]) and not is_human(conversation.contents[first]):
        return f"content {first} would come first, which is not a person's"
    return ""
