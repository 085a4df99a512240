"""The two ladders for memory and evidence: compress first, oldest or least worth first, then drop by rank.

Order and rules are those of the founding document: memory to a summary, older evidence to a query-focused summary, then
memory out by lowest score and evidence by lowest coverage and age. A layer inside its ceiling is never touched, and
each rung goes only as far as needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from aether_context import payload
from aether_context.compression import Summaries, level, shorten
from aether_context.counting import Tally
from aether_context.pack import Candidate, Layer, Step, TruncationEvent
from aether_context.policy import CompressSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Press:
    """What both ladders shorten with: settings, the query that candidates were ranked by, summaries, counts."""

    settings: CompressSettings
    query: str
    summaries: Summaries
    tally: Tally


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduced:
    """One layer's candidates after both ladders.

    ``kept`` are in the order given, some of them shortened (`summaries` are their ids); ``lost`` have no room, the
    first to go first.
    """

    kept: tuple[Candidate, ...]
    summaries: frozenset[str] = frozenset()
    lost: tuple[Candidate, ...] = ()
    compressed: tuple[TruncationEvent, ...] = ()
    dropped: tuple[TruncationEvent, ...] = ()


def reduce_memory(chosen: Sequence[Candidate], room: int, press: Press) -> Reduced:
    """Memories within ``room`` tokens: the longest are shortened to one ceiling, then the lowest scores go."""
    ranked = sorted(chosen, key=lambda one: (-one.score, one.id))
    if sum(one.tokens for one in ranked) <= room:
        return Reduced(kept=tuple(chosen))
    staying = ranked
    short: dict[str, Candidate] = {}
    if press.settings.enabled:
        least = [_least(one, press) for one in ranked]
        staying = ranked[: _fitting(least, room)]
        ceiling = level([one.tokens for one in staying], room)
        short = {
            one.id: made
            for one in staying
            if one.tokens > ceiling and (made := shortened(one, ceiling, press)).tokens < one.tokens
        }
    return _reduced("memory", chosen, ranked, short, room)


def reduce_evidence(chosen: Sequence[Candidate], room: int, step: Step, press: Press) -> Reduced:
    """Evidence within ``room`` tokens: older pieces become query-focused summaries, then the least worth go.

    Worth is the number of the step's acceptance items that a piece covers, then its time.
    """
    items = {item.id for item in step.acceptance}
    ranked = sorted(chosen, key=lambda one: (-len(items.intersection(one.covers)), -(one.time or 0.0), one.id))
    over = sum(one.tokens for one in ranked) - room
    if over <= 0:
        return Reduced(kept=tuple(chosen))
    short: dict[str, Candidate] = {}
    if press.settings.enabled:
        least = [_least(one, press) for one in ranked]
        staying = ranked[: _fitting(least, room)]
        over = sum(one.tokens for one in staying) - room
        floors = {one.id: floor for one, floor in zip(ranked, least, strict=True)}
        for one in sorted(staying, key=lambda one: (one.time or 0.0, one.id)):
            if over <= 0:
                break
            made = shortened(one, max(floors[one.id], one.tokens - over), press)
            if made.tokens < one.tokens:
                short[one.id] = made
                over -= one.tokens - made.tokens
    return _reduced("evidence", chosen, ranked, short, room)


def least_tokens(chosen: Sequence[Candidate], settings: CompressSettings, tally: Tally) -> int:
    """The room in which none of ``chosen`` has to be dropped."""
    if not settings.enabled:
        return sum(one.tokens for one in chosen)
    return sum(min(one.tokens, _overhead(one, tally) + settings.least_tokens) for one in chosen)


def shortened(candidate: Candidate, ceiling: int, press: Press) -> Candidate:
    """A candidate whose line holds at most ``ceiling`` tokens: a model's summary of it, else sentences of its own."""
    tally, query = press.tally, press.query
    room = ceiling - _overhead(candidate, tally)
    kind: Literal["memory", "evidence"] = "memory" if candidate.layer == "memory" else "evidence"
    written = press.summaries.line(kind, candidate.text, max_tokens=room, query=query)
    if written is not None and (made := _reworded(candidate, written, tally)).tokens <= ceiling:
        return made
    room = max(1, room)
    while room > 0:
        text = shorten(candidate.text, max_tokens=room, counter=tally, query=query)
        made = _reworded(candidate, text, tally)
        if made.tokens <= ceiling:
            return made
        room -= max(made.tokens - ceiling, 1 + room // 8)
    return candidate


def _reworded(candidate: Candidate, text: str, tally: Tally) -> Candidate:
    line = render_line(replace(candidate, text=text))
    return replace(candidate, line=line, tokens=tally.count(line) + 1)


def render_line(candidate: Candidate) -> str:
    return payload.memory_line(candidate) if candidate.layer == "memory" else payload.evidence_line(candidate)


def _overhead(candidate: Candidate, tally: Tally) -> int:
    """Tokens of a line besides its text: bullet, date, URI."""
    return max(0, candidate.tokens - tally.count(candidate.text))


def _least(candidate: Candidate, press: Press) -> int:
    return min(candidate.tokens, _overhead(candidate, press.tally) + press.settings.least_tokens)


def _fitting(sizes: Sequence[int], room: int) -> int:
    """How many from the beginning fit."""
    used = 0
    for at, size in enumerate(sizes):
        used += size
        if used > room:
            return at
    return len(sizes)


def _reduced(
    layer: Layer, chosen: Sequence[Candidate], ranked: Sequence[Candidate], short: dict[str, Candidate], room: int
) -> Reduced:
    """What stays of ``ranked`` from its beginning, with the events of both ladders."""
    before = sum(one.tokens for one in ranked)
    made = [short.get(one.id, one) for one in ranked]
    middle = sum(one.tokens for one in made)
    count = _fitting([one.tokens for one in made], room)
    staying = {one.id: one for one in made[:count]}
    summaries = frozenset(name for name in short if name in staying)
    after = sum(one.tokens for one in staying.values())
    compressed = _event(layer, "compress", tuple(one.id for one in ranked if one.id in short), before, middle)
    lost = tuple(reversed(ranked[count:]))
    return Reduced(
        kept=tuple(staying[one.id] for one in chosen if one.id in staying),
        summaries=summaries,
        lost=lost,
        compressed=compressed,
        dropped=_event(layer, "drop", tuple(one.id for one in lost), middle, after),
    )


def _event(layer: Layer, stage: str, names: tuple[str, ...], before: int, after: int) -> tuple[TruncationEvent, ...]:
    if not names:
        return ()
    return (
        TruncationEvent(
            layer=layer,
            stage="compress" if stage == "compress" else "drop",
            reason="over_allocation",
            item_ids=names,
            tokens_before=before,
            tokens_after=after,
        ),
    )
