"""Strategies that leave out whole units: what they have in common, and each of them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar

from aether_context.conversation.anchors import hold
from aether_context.conversation.strategy import Budget, Conversation, Removed, Trimmed, decided, summary_tokens
from aether_context.conversation.summary import MOST_TOKENS
from aether_context.conversation.turns import Unit, Worth, cut, is_human, outliving, protected, superseded, units
from aether_context.pack import Reason
from aether_context.policy import ConversationSettings

# What strategies that cut for good have in common: whole units from the oldest, in one act, with a summary.

_BULLET = "- x"
_SUMMARY_SHARE = 0.12
"""The ceiling of the summary that ``summarize`` writes, as a share of the input budget."""


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
    held = hold(
        conversation.anchors,
        parts,
        conversation.positions,
        conversation.tokens,
        ceiling=conversation.budget.ceiling - summary_ceiling,
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
    note = "; ".join(held.notes)
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


# The default: units go from the oldest, from the high-water mark down to the low-water mark, with a summary.

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


# The beginning and the end of a conversation are frozen, the middle goes from the oldest.
#
# Nothing is torn: an exchange counts as one message and stays or goes whole, and the message that opens a turn
# outlives the turn's answers. Anchors in the middle stay. It acts above the high-water mark and goes down to the low-
# water mark in one act, so that the next one is far away. Where head and tail are so large that hardly any room would
# be left, the tail holds fewer messages; the head does only where it does not fit at all. Those nearest to the middle
# go first.


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


# Whole turns are left out from the oldest until the request is under a ceiling; nothing is kept of that anywhere.
#
# What is left out follows from the host's own history up to the message that the model answers, what a payload adds
# to that message, the system instruction, the declarations and the ceiling. Every call of an invocation therefore
# comes to the same result as its first one, any reader can compute it, and a higher ceiling brings the turns back.
# The ceiling is not a target, and the latest turn stays even where it alone is above it.


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


# Older messages become a running summary, made of the conversation's own lines and bounded.


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
            summary_ceiling=min(int(_SUMMARY_SHARE * budget.input), MOST_TOKENS),
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


# Nothing is left out: contents are normalized and recorded, and the window is all that limits them.


@dataclass(frozen=True, slots=True, kw_only=True)
class Untouched:
    """The strategy ``none``."""

    settings: ConversationSettings
    name: ClassVar[str] = "none"
    early: ClassVar[bool] = True

    def trim(self, conversation: Conversation) -> Trimmed:
        return decided(conversation, self.name, normalize=True)
