"""Tools and step, memory and evidence, shortened to what the window has room for."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, Literal

from aether_context.conversation.summary import Summaries
from aether_context.errors import StepTooLarge
from aether_context.pack import RECALLED, STEP_WORDS, Candidate, Layer, Stage, Tool, TruncationEvent
from aether_context.packing import payload
from aether_context.packing.demand import allocation_of
from aether_context.packing.draft import Draft
from aether_context.packing.selection import render_line
from aether_context.packing.tools import trimmed
from aether_context.retrieval import rank
from aether_context.text.shorten import beginning, level, shorten_line
from aether_context.tokens.cache import PackCounter

# Rungs three and four: what is always sent becomes shorter where it leaves others too little.
#
# Tool declarations lose their examples and long descriptions, the largest first; then the step's own words are
# tightened. This happens where system, task and tools alone exceed the input budget, and at an epoch's beginning also
# before a memory or a piece of evidence is dropped, but then no layer inside its floor is touched. The acceptance
# list and the user's request stay word for word.

_LEAST_LINE = 8
_BRIEF_LINE = 32


def trim_tools_and_step(draft: Draft) -> None:
    """Shortens declarations, then the step, only as far as is asked for.

    An epoch under way keeps its declarations and drops rather than break its prefix: they stand at the head of it.
    """
    if not draft.policy.compress.enabled or draft.input.host.passthrough_reason or draft.epoch.has_chosen:
        return
    floors, window, measured = draft.policy.budget.floors, draft.input.window, draft.measured
    spare = [
        max(0, measured["tools"] - int(window * floors.tools)),
        max(0, measured["task"] - int(window * floors.task)),
    ]
    over = max(0, sum(measured.values()) - draft.countable_budget)
    lacking = over + _lacking(draft, over, spare) if draft.starts_epoch else over
    if not lacking:
        return
    _trim_tools(draft, max(over, min(lacking, spare[0])))
    freed = measured["tools"] - draft.measured["tools"]
    _tighten_step(draft, over - freed, min(lacking - freed, spare[1]))


def _lacking(draft: Draft, over: int, spare: Sequence[int]) -> int:
    """Tokens that have to be freed beside those over the budget so that no memory and no evidence is dropped; ``spare``
    is what declarations and task hold above their floors."""
    by_layer = draft.selected.by_layer
    # Counted in one pass, since a counter may be behind a network.
    draft.counter.count_all([candidate.text for candidates in by_layer.values() for candidate in candidates])
    floors = {layer: sum(_least_tokens(draft, entry) for entry in candidates) for layer, candidates in by_layer.items()}
    if not any(floors.values()):
        return 0
    divided = allocation_of(draft)

    def suffices(freed: int) -> bool:
        tools, task = min(freed, spare[0]), min(max(0, freed - spare[0]), spare[1])
        measured = {"tools": draft.measured["tools"] - tools, "task": draft.measured["task"] - task}
        try:
            layers = divided(measured={**draft.measured, **measured}).layers
        except StepTooLarge:
            return False
        return all(layers[layer].final >= tokens for layer, tokens in floors.items())

    return bisect_left(range(over, max(over, sum(spare))), True, key=suffices)


def _note_shorter(draft: Draft, layer: Layer, tokens: int, names: Sequence[str]) -> None:
    events = _event(layer, "compress", names, draft.measured[layer], tokens)
    draft.account = draft.account._replace(tightened=(*draft.account.tightened, *events))
    draft.measured = {**draft.measured, layer: tokens}


def _trim_tools(draft: Draft, tokens: int) -> None:
    """Trims declarations, the largest first, until so many tokens are free."""
    counter, scope = draft.counter, draft.tools
    trimmed_tools: dict[str, Tool] = {}
    saved = 0
    sized_tools = zip(counter.tools(scope.sent), scope.sent, strict=True)
    for size, tool in sorted(sized_tools, key=lambda sized: (-sized[0], sized[1].name)):
        if saved >= tokens:
            break
        brief = trimmed(tool)
        freed = size - sum(counter.tools((brief,)))
        if freed > 0:
            trimmed_tools[tool.name] = brief
            saved += freed
    if trimmed_tools:
        tools = tuple(trimmed_tools.get(tool.name, tool) for tool in scope.sent)
        draft.tools = replace(scope, sent=tools, trimmed=scope.trimmed | trimmed_tools.keys())
        _note_shorter(draft, "tools", draft.measured["tools"] - saved, sorted(trimmed_tools))


def _tighten_step(draft: Draft, over: int, lacking: int) -> None:
    """Shortens the step's longest lines; only where the step would not fit else are they cut to a few words."""
    if over <= 0 and lacking <= 0:
        return
    step, counter = draft.step, draft.counter
    fields = {name: text for name in STEP_WORDS if (text := getattr(step, name))}
    sizes = [counter.count(line) for text in fields.values() for line in ([text] if isinstance(text, str) else text)]

    def ceiling(tokens: int, min_tokens: int) -> int:
        return max(min_tokens, level(sizes, max(0, sum(sizes) - tokens)))

    max_line_tokens = min(ceiling(over, _LEAST_LINE), ceiling(lacking, _BRIEF_LINE))

    def shorter(line: str) -> str:
        return shorten_line(line, max_line_tokens, counter=counter) if counter.count(line) > max_line_tokens else line

    changes: dict[str, Any] = {
        name: shorter(text) if isinstance(text, str) else tuple(map(shorter, text)) for name, text in fields.items()
    }
    shortened_step = replace(step, **changes)
    freed = counter.count(payload.step_text(step)) - counter.count(payload.step_text(shortened_step))
    if freed > 0:
        draft.step = shortened_step
        touched = [name for name, text in fields.items() if text != changes[name]]
        _note_shorter(draft, "task", draft.measured["task"] - freed, touched)


# The two ladders for memory and evidence: compress first, oldest or least worth first, then drop by rank.
#
# Their rungs, in the order of the events: memory to a summary, older evidence to a query-focused summary, examples of
# tools and words of the step, which `trim_tools_and_step` has shortened; then memory out by lowest score, and evidence
# by lowest coverage and age. A layer inside its ceiling is never touched, and each rung goes only as far as needed.
# Nothing is paraphrased but by a model that the policy names, so that what is shortened can still be cited.


def compress(draft: Draft) -> None:
    """Brings memory and evidence inside their shares; a layer inside its allocation stays as it is.

    Of memory the longest are shortened to one ceiling, then the lowest scores go; of what a search found all goes
    before any of what the app put there. Of evidence older pieces become query-focused summaries, then the least worth
    go: by the number of the step's acceptance items that a piece covers, stored results before what was recorded on
    purpose, then by its time.
    """
    policy, items = draft.policy.compress, {item.id for item in draft.input.step.acceptance}
    summaries = Summaries(policy.summarizer if policy.enabled else "", draft.input.summaries)
    draft.account = draft.account._replace(summaries=summaries)
    if draft.input.host.passthrough_reason:
        return
    memory = sorted(draft.selected.memory, key=lambda memory: (rank(memory), -memory.score, memory.id))
    evidence = sorted(
        draft.selected.evidence,
        key=lambda entry: (-len(items.intersection(entry.covers)), rank(entry), -(entry.time or 0.0), entry.id),
    )
    dropped = _reduce(draft, "memory", memory, _shorten_longest)
    dropped += _reduce(draft, "evidence", evidence, _shorten_oldest)
    draft.note(*draft.account.tightened, *dropped)


def _reduce(
    draft: Draft,
    layer: Literal["memory", "evidence"],
    ranked: Sequence[Candidate],
    shorten: Callable[[Draft, Sequence[Candidate], Sequence[int], int], Sequence[Candidate]],
) -> tuple[TruncationEvent, ...]:
    """Brings a layer inside its share: notes what becomes shorter, and returns the event of what is dropped.

    Args:
        ranked: its candidates, the first to go last.
        shorten: makes as many of them shorter as there are, by their least tokens and the room for all.
    """
    room, tokens_before = draft.allocation.layers[layer].final, sum(candidate.tokens for candidate in ranked)
    if tokens_before <= room:
        return ()
    # How many stay is decided before how long they are. To shorten first and drop what is over would let the kept set
    # depend on where sentences end, and a larger window could lose what a smaller one kept.
    floors = [_least_tokens(draft, candidate) for candidate in ranked]
    floors = floors[: _fitting(floors, room)]
    staying = [candidate for candidate in shorten(draft, ranked[: len(floors)], floors, room) if candidate.tokens]
    staying = staying[: _fitting((candidate.tokens for candidate in staying), room)]
    sizes = {candidate.id: candidate.tokens for candidate in staying}
    dropped = tuple(candidate for candidate in reversed(ranked) if candidate.id not in sizes)
    shortened = tuple(whole.id for whole in ranked if sizes.get(whole.id, whole.tokens) < whole.tokens)
    tokens_after = sum(sizes.values())
    compressed = tokens_after + sum(candidate.tokens for candidate in dropped)
    draft.note(*_event(layer, "compress", shortened, tokens_before, compressed))
    by_id, order = {candidate.id: candidate for candidate in staying}, getattr(draft.selected, layer)
    changes: dict[str, Any] = {layer: tuple(by_id[candidate.id] for candidate in order if candidate.id in by_id)}
    draft.selected = draft.selected._replace(
        shortened=draft.selected.shortened.union(shortened), dropped=draft.selected.dropped + dropped, **changes
    )
    return _event(layer, "drop", [candidate.id for candidate in dropped], compressed, tokens_after)


def _shorten_longest(
    draft: Draft, memories: Sequence[Candidate], floors: Sequence[int], room: int
) -> Sequence[Candidate]:
    """Memories shortened to one ceiling; where sentences leave them over the room, the last ones to their least."""
    ceiling = level([memory.tokens for memory in memories], room)
    shortened = [_within(draft, memory, max(ceiling, floor)) for memory, floor in zip(memories, floors, strict=True)]
    over = sum(memory.tokens for memory in shortened) - room
    for at in range(len(shortened) - 1, -1, -1):
        if over <= 0:
            break
        over -= shortened[at].tokens
        shortened[at] = _within(draft, memories[at], floors[at])
        over += shortened[at].tokens
    return shortened


def _shorten_oldest(draft: Draft, pieces: Sequence[Candidate], floors: Sequence[int], room: int) -> Sequence[Candidate]:
    """Evidence shortened from the oldest, each piece only as far as needed."""
    shortened = list(pieces)
    over = sum(candidate.tokens for candidate in pieces) - room
    for at in sorted(range(len(pieces)), key=lambda at: (pieces[at].time or 0.0, pieces[at].id)):
        if over <= 0:
            break
        shortened[at] = _within(draft, pieces[at], max(floors[at], pieces[at].tokens - over))
        over -= pieces[at].tokens - shortened[at].tokens
    return shortened


_LEAST_EVIDENCE, _LEAST_NOTE, _LEAST_FOUND = 12, 24, 60
"""Tokens that a shortened piece of evidence, a note and a memory that a search found keep at least, besides date or
URI. Evidence has an address, by which the rest of it is read; what was found keeps a sentence or two, so that in little
room the best stay whole rather than all of them in part."""
_LEAST_WORDS = 12
"""Fewer of a longer memory are a stub that takes room and says nothing."""
_WRITTEN_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]{1,2}|[^\W_]+(?:[.'’-][^\W_]+)*")
"""A word, or as many characters of Chinese, Japanese or Korean as say about as much."""


def _least_tokens(draft: Draft, candidate: Candidate) -> int:
    """Tokens that a candidate always can be shortened to.

    What was said in the conversation, a wish that holds always, and what is a dozen words anyway is sent word for word
    or not at all: cut to its first words a turn takes room and says nothing.
    """
    is_whole = candidate.source == RECALLED or candidate.kind == "preference" or _is_stub(candidate, candidate.text)
    if not draft.policy.compress.enabled or is_whole:
        return candidate.tokens
    floor = _LEAST_EVIDENCE if candidate.layer == "evidence" else _LEAST_NOTE if candidate.kind else _LEAST_FOUND
    return min(candidate.tokens, _overhead(candidate, draft.counter) + floor)


def _is_stub(candidate: Candidate, text: str) -> bool:
    """Tells whether a memory with this text would have fewer than a dozen words."""
    return candidate.layer == "memory" and len(_WRITTEN_WORD.findall(text)) < _LEAST_WORDS


def _within(draft: Draft, candidate: Candidate, ceiling: int) -> Candidate:
    """A candidate of at most ``ceiling`` tokens, which is no less than its least: a model's summary of it, else
    sentences of its own, else its beginning; of no tokens where that would be a stub."""
    if candidate.tokens <= ceiling:
        return candidate
    room = ceiling - _overhead(candidate, draft.counter)
    kind: Literal["memory", "evidence"] = "memory" if candidate.layer == "memory" else "evidence"
    written = draft.account.summaries.line(kind, candidate.text, max_tokens=room, query=draft.rankings.query)
    if written is not None and (summarized := _reworded(candidate, written, draft.counter)).tokens <= ceiling:
        return summarized
    room = max(1, room)
    while room > 0:
        text = shorten_line(candidate.text, room, counter=draft.counter, query=draft.rankings.query)
        text = beginning(candidate.text, room, draft.counter) if _is_stub(candidate, text) else text
        extracted = _reworded(candidate, text, draft.counter)
        if extracted.tokens <= ceiling and not _is_stub(candidate, text):
            return extracted
        # A text and the line around it are counted otherwise together than apart.
        room -= max(extracted.tokens - ceiling, 1 + room // 8)
    # Evidence of which not a word fits is left to the drop ladder.
    return candidate if candidate.layer == "evidence" else replace(candidate, line="", tokens=0)


def _reworded(candidate: Candidate, text: str, counter: PackCounter) -> Candidate:
    line = render_line(replace(candidate, text=text))
    return replace(candidate, line=line, tokens=counter.count(line) + 1)


def _overhead(candidate: Candidate, counter: PackCounter) -> int:
    """Tokens of a line besides its text: bullet, date, URI."""
    return max(0, candidate.tokens - counter.count(candidate.text))


def _fitting(sizes: Iterable[int], room: int) -> int:
    """Counts the sizes from the beginning that fit into the room."""
    return bisect_right(list(accumulate(sizes)), room)


def _event(layer: Layer, stage: Stage, names: Sequence[str], tokens: int, reduced: int) -> tuple[TruncationEvent, ...]:
    """The event of what was shortened or dropped; none where nothing was."""
    event = TruncationEvent(
        layer=layer,
        stage=stage,
        reason="over_allocation",
        item_ids=tuple(names),
        tokens_before=tokens,
        tokens_after=reduced,
    )
    return (event,) if names else ()
