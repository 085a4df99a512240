"""Strategies that leave out whole units: the cut that they have in common, and each of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from aether_context.conversation.anchors import hold
from aether_context.conversation.rewrites import LEAST_EXTRACT, query_of, response_tokens, shorten_content
from aether_context.conversation.strategy import (
    Conversation,
    Decision,
    Removed,
    Replaced,
    decided,
    summary_tokens,
)
from aether_context.conversation.summary import MOST_TOKENS
from aether_context.conversation.turns import Unit, cut, is_human, protected, units
from aether_context.pack import Anchor, Reason
from aether_context.policy import ConversationSettings
from aether_context.text.shorten import level

RECAP_SHARE = 0.5
"""The recap's most beside turns that were recalled, as a share of what a cut leaves."""
_FREES_NOTHING = "the cut that was asked for was not made: its summary takes as much as it frees"
_BULLET = "- a"
_WORTHWHILE = 0.9
"""Share of the tokens that are asked for under which a cut is made only where the window or a hand demands it."""
_SUMMARY_SHARE = 0.12
"""The ceiling of the summary that ``summarize`` writes, as a share of the input budget."""


def cut_to(
    conversation: Conversation,
    strategy: str,
    parts: Sequence[Unit],
    *,
    target: int,
    summary_share: float,
    reason: Reason,
    anchors: Iterable[Anchor],
    stay: Collection[int] = (),
) -> Decision:
    """The cut of every strategy that cuts for good: whole units from the oldest, in one act, with a summary.

    What stays takes at most ``target`` tokens, summary included, where what may leave holds enough. The unit that would
    free more than is asked for stays with its responses as extracts. Anchors stay, by priority, while they fit under
    the ceiling with what stays anyway. Messages beside the final one go only where the ceiling demands it. A cut that
    frees less than nine tenths of what is asked for is made only where the window, the byte net, or a hand demands it.

    Args:
        parts: the conversation's units; ``stay`` are places in it.
        summary_share: the most of the summary, as a share of the input budget; 0 for none.
    """
    budget, counter, tokens, human = conversation.budget, conversation.counter, conversation.tokens, conversation.human
    summary_ceiling = min(int(summary_share * budget.input), MOST_TOKENS)
    if conversation.recalls:
        summary_ceiling = min(summary_ceiling, int(RECAP_SHARE * budget.low))
    frame_tokens = summary_tokens(counter, _BULLET) - counter.count(_BULLET)

    def responses(index: int) -> list[int]:
        return response_tokens(conversation.contents[index], counter)

    def spare(at: int) -> int:
        return sum(max(0, sum(sizes) - LEAST_EXTRACT * len(sizes)) for sizes in map(responses, parts[at].indices))

    ends_in_results = any(map(responses, parts[-1].indices)) if parts else False
    anchored, notes = hold(
        anchors,
        parts,
        conversation.positions,
        tokens,
        ceiling=budget.ceiling - summary_ceiling,
        stay=protected(parts, human).union(stay),
    )
    cut_reason: Reason = "by_hand" if conversation.forced else reason
    summary = ""
    gone: tuple[int, ...] = ()
    replaced_by_index: dict[int, Replaced] = {}
    # The second round knows how long the summary is; a model is asked for one there alone.
    for reserved in (summary_ceiling, None):
        room = target - (summary_tokens(counter, summary) if reserved is None else reserved)
        for neighbours in (True, False):
            leaving = cut(
                parts,
                tokens,
                target=max(0, room),
                human=human,
                neighbours=neighbours,
                spare=spare,
                stay=anchored.union(stay),
            )
            kept_tokens = sum(tokens) - sum(tokens[at] for at in leaving.gone) - leaving.excess
            if kept_tokens <= budget.ceiling:
                break
        sizes = [size for at in leaving.shortened for size in responses(at)]
        ceiling = max(LEAST_EXTRACT, level(sizes, sum(sizes) - leaving.excess))
        gone, replaced_by_index = leaving.gone, {}
        for at in leaving.shortened:
            if not responses(at):
                continue
            extract = shorten_content(
                conversation.raws[at], ceiling, counter=counter, query=query_of(conversation.raws, at)
            )
            replaced_by_index[at] = Replaced(index=at, content=extract, reason=cut_reason, ceiling=ceiling)
        room_for_summary = budget.ceiling - kept_tokens - frame_tokens
        # Results that alone pass the window, or nearly, are shortened later, so the summary keeps its room.
        gives_way = ends_in_results and room_for_summary < summary_ceiling // 2
        summary = conversation.summarized(
            frozenset(gone),
            summary_ceiling if gives_way else min(summary_ceiling, room_for_summary),
            shorter={at: replaced.content for at, replaced in replaced_by_index.items()},
            own=reserved is not None,
        )
    if not (gone or replaced_by_index or conversation.payload_tokens):
        return decided(conversation, strategy)
    result = decided(
        conversation,
        strategy,
        removed=[Removed(index=at, reason=cut_reason) for at in gone],
        replaced=tuple(replaced_by_index.values()),
        summary=summary,
        summary_at=min((*gone, *replaced_by_index), default=None),
        note="; ".join(notes),
    )
    if conversation.used > budget.mark(1):
        return result
    if conversation.forced:
        return result if result.freed_tokens > 0 else decided(conversation, strategy, note=_FREES_NOTHING)
    worthwhile = result.freed_tokens >= _WORTHWHILE * (conversation.used - target)
    return result if worthwhile else decided(conversation, strategy)


def _fitting(
    conversation: Conversation, parts: Sequence[Unit], order: Iterable[int], room: int, stay: Collection[int] = ()
) -> frozenset[int]:
    """Places that ``stay``, and those in this order while all of them fit."""
    chosen = set(stay)
    room -= sum(conversation.tokens[index] for at in chosen for index in parts[at].indices)
    for at in order:
        if at not in chosen:
            room -= sum(conversation.tokens[index] for index in parts[at].indices)
            if room < 0:
                break
            chosen.add(at)
    return frozenset(chosen)


# The default: units go from the oldest, from the high-water mark down to the low-water mark, with a summary, where that
# pays or the window demands it.


@dataclass(frozen=True, slots=True, kw_only=True)
class Epochs:
    """The strategy ``epochs``, and under another name the net behind every strategy."""

    settings: ConversationSettings
    name: str = "epochs"
    early: ClassVar[bool] = False

    def trim(self, conversation: Conversation) -> Decision:
        budget = conversation.budget
        demanded = conversation.forced or conversation.used > budget.mark(1)
        if not conversation.passes(budget.high) or not (demanded or conversation.pays(budget.low)):
            return decided(conversation, self.name)
        return cut_to(
            conversation,
            self.name,
            units(conversation.contents),
            # Here age decides: a large result of long ago would leave the latest turns no room.
            anchors=[anchor for anchor in conversation.anchors if anchor.kind != "latest_tool_result"],
            target=budget.low,
            summary_share=self.settings.summary_share,
            reason="window" if conversation.used > budget.ceiling else conversation.reason("high_water"),
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

    def trim(self, conversation: Conversation) -> Decision:
        budget = conversation.budget
        if not conversation.passes(budget.high):
            return decided(conversation, self.name)
        parts, settings = units(conversation.contents), self.settings.heads_tails
        # The head comes first, since its loss is for good. Both may take all that fits; the summary gets what is left.
        head = range(min(settings.head, len(parts)))
        tail = range(len(parts) - 1, max(len(parts) - settings.tail, 0) - 1, -1)
        return cut_to(
            conversation,
            self.name,
            parts,
            anchors=conversation.anchors,
            stay=_fitting(conversation, parts, (*head, *tail), budget.ceiling, protected(parts, conversation.human)),
            target=budget.low,
            summary_share=self.settings.summary_share,
            reason=conversation.reason("middle"),
        )


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

    def trim(self, conversation: Conversation) -> Decision:
        tokens = self.settings.sliding_turns.tokens
        last = conversation.human if conversation.human is not None else len(conversation.contents) - 1
        if not tokens or last < 0:
            return decided(conversation, self.name)
        ceiling = min(tokens, conversation.budget.input)
        gone = earlier = _beyond(conversation, ceiling, last)
        if gone and conversation.opens:
            # What was beyond the ceiling when the human message before was answered.
            before = (at for at in range(last - 1, -1, -1) if is_human(conversation.contents[at]))
            earlier = _beyond(conversation, ceiling, next(before, 0))
        removed = [Removed(index=at, reason="turn_budget", new=at not in earlier) for at in sorted(gone)]
        return decided(conversation, self.name, removed=removed, lasting=False)


def _beyond(conversation: Conversation, ceiling: int, last: int) -> Collection[int]:
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


# Older messages become a running summary, made of the conversation's own lines and bounded.

SUMMARIZE_TRIGGER = 0.8
"""Share of the input budget above which messages are summarized."""
_SUMMARIZE_TARGET = 0.5
"""Share that the request goes down to, the summary included."""
_SUMMARIZE_KEEPS = 10
"""Last messages that stay verbatim; a tool call and its response count as one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summarize:
    """The strategy ``summarize``."""

    settings: ConversationSettings
    name: ClassVar[str] = "summarize"
    early: ClassVar[bool] = False

    def trim(self, conversation: Conversation) -> Decision:
        budget = conversation.budget
        if not conversation.passes(budget.mark(SUMMARIZE_TRIGGER)):
            return decided(conversation, self.name)
        parts = units(conversation.contents)
        target = budget.mark(_SUMMARIZE_TARGET)
        latest = range(len(parts) - 1, max(-1, len(parts) - 1 - _SUMMARIZE_KEEPS), -1)
        return cut_to(
            conversation,
            self.name,
            parts,
            anchors=conversation.anchors,
            stay=_fitting(conversation, parts, latest, target),
            target=min(target, budget.low) if conversation.forced else target,
            summary_share=_SUMMARY_SHARE,
            reason=conversation.reason("high_water"),
        )


# Nothing is left out: contents are normalized and recorded, and the window is all that limits them.


@dataclass(frozen=True, slots=True, kw_only=True)
class Untouched:
    """The strategy ``none``."""

    settings: ConversationSettings
    name: ClassVar[str] = "none"
    early: ClassVar[bool] = True

    def trim(self, conversation: Conversation) -> Decision:
        return decided(conversation, self.name, normalize=True)
