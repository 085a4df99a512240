"""The two ladders for memory and evidence: compress first, oldest or least worth first, then drop by rank.

Order and rules are those of the founding document: memory to a summary, older evidence to a query-focused summary, then
memory out by lowest score and evidence by lowest coverage and age. A layer inside its ceiling is never touched, and
each rung goes only as far as needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from aether_context import payload
from aether_context.pack import RECALLED, Candidate, Layer, Step, TruncationEvent
from aether_context.policy import CompressSettings
from aether_context.retrieval import rank
from aether_context.text.compression import Summaries, level, shorten
from aether_context.tokens.cache import Tally


@dataclass(frozen=True, slots=True, kw_only=True)
class Press:
    """What both ladders shorten with: settings, the query that candidates were ranked by, summaries, counts.

    ``least`` holds the tokens of candidates at their briefest, by id, where they are known.
    """

    settings: CompressSettings
    query: str
    summaries: Summaries
    tally: Tally
    least: Mapping[str, int] = field(default_factory=dict)


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
    """Memories within ``room`` tokens: the longest are shortened to one ceiling, then the lowest scores go.

    Of what a search found all goes before any of what the app put there.
    """
    ranked = sorted(chosen, key=lambda one: (rank(one), -one.score, one.id))
    if sum(one.tokens for one in ranked) <= room:
        return Reduced(kept=tuple(chosen))
    least = _staying(ranked, room, press)
    ceiling = level([one.tokens for one in ranked[: len(least)]], room)
    made = [_within(one, max(ceiling, floor), press) for one, floor in zip(ranked, least, strict=False)]
    over = sum(one.tokens for one in made) - room
    for at in range(len(made) - 1, -1, -1):
        if over <= 0:
            break
        over += least[at] - made[at].tokens
        made[at] = _within(ranked[at], least[at], press)
    return _reduced("memory", chosen, ranked, made, room)


def reduce_evidence(chosen: Sequence[Candidate], room: int, step: Step, press: Press) -> Reduced:
    """Evidence within ``room`` tokens: older pieces become query-focused summaries, then the least worth go.

    Worth is the number of the step's acceptance items that a piece covers, then its time.
    """
    items = {item.id for item in step.acceptance}
    ranked = sorted(chosen, key=lambda one: (-len(items.intersection(one.covers)), -(one.time or 0.0), one.id))
    if sum(one.tokens for one in ranked) <= room:
        return Reduced(kept=tuple(chosen))
    least = _staying(ranked, room, press)
    made = ranked[: len(least)]
    over = sum(one.tokens for one in made) - room
    for at in sorted(range(len(made)), key=lambda at: (made[at].time or 0.0, made[at].id)):
        if over <= 0:
            break
        whole = made[at]
        made[at] = _within(whole, max(least[at], whole.tokens - over), press)
        over -= whole.tokens - made[at].tokens
    return _reduced("evidence", chosen, ranked, made, room)


def least_tokens(candidate: Candidate, press: Press) -> int:
    """Tokens that a candidate always can be shortened to; `briefest` may be a little less.

    What was said in the conversation, and a wish that holds always, is sent word for word or not at all.
    """
    if not press.settings.enabled or candidate.source == RECALLED or candidate.kind == "standing":
        return candidate.tokens
    return min(candidate.tokens, _overhead(candidate, press.tally) + press.settings.least_tokens)


def briefest(candidate: Candidate, press: Press) -> Candidate:
    """A candidate in its own words and as short as the settings let it become, whatever a model could write."""
    least = least_tokens(candidate, press)
    return candidate if candidate.tokens <= least else _extracted(candidate, least, press)


def _staying(ranked: Sequence[Candidate], room: int, press: Press) -> list[int]:
    """The least tokens of as many of ``ranked``, from the beginning, as find room at these."""
    least = [least_tokens(one, press) for one in ranked]
    if sum(least) > room:
        least = [_known_least(one, press) for one in ranked]
    return least[: _fitting(least, room)]


def _known_least(candidate: Candidate, press: Press) -> int:
    found = press.least.get(candidate.id)
    return briefest(candidate, press).tokens if found is None else found


def _within(candidate: Candidate, ceiling: int, press: Press) -> Candidate:
    """A candidate of at most ``ceiling`` tokens, which is no less than its least."""
    if candidate.tokens <= ceiling:
        return candidate
    made = shortened(candidate, ceiling, press)
    return made if made.tokens < candidate.tokens else briefest(candidate, press)


def shortened(candidate: Candidate, ceiling: int, press: Press) -> Candidate:
    """A candidate whose line holds at most ``ceiling`` tokens: a model's summary of it, else sentences of its own."""
    room = ceiling - _overhead(candidate, press.tally)
    kind: Literal["memory", "evidence"] = "memory" if candidate.layer == "memory" else "evidence"
    written = press.summaries.line(kind, candidate.text, max_tokens=room, query=press.query)
    if written is not None and (made := _reworded(candidate, written, press.tally)).tokens <= ceiling:
        return made
    return _extracted(candidate, ceiling, press)


def _extracted(candidate: Candidate, ceiling: int, press: Press) -> Candidate:
    """A candidate of at most ``ceiling`` tokens in sentences of its own; itself where not a word fits."""
    room = max(1, ceiling - _overhead(candidate, press.tally))
    while room > 0:
        text = shorten(candidate.text, max_tokens=room, counter=press.tally, query=press.query)
        made = _reworded(candidate, text, press.tally)
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


def _fitting(sizes: Sequence[int], room: int) -> int:
    """How many from the beginning fit."""
    used = 0
    for at, size in enumerate(sizes):
        used += size
        if used > room:
            return at
    return len(sizes)


def _reduced(
    layer: Layer, chosen: Sequence[Candidate], ranked: Sequence[Candidate], made: Sequence[Candidate], room: int
) -> Reduced:
    """What was made of ``ranked`` from its beginning, with the events of both ladders; the rest is lost."""
    made = made[: _fitting([one.tokens for one in made], room)]
    lost = tuple(reversed(ranked[len(made) :]))
    short = tuple(one.id for one, other in zip(ranked, made, strict=False) if other.tokens < one.tokens)
    before = sum(one.tokens for one in ranked)
    after = sum(one.tokens for one in made)
    middle = after + sum(one.tokens for one in lost)
    staying = {one.id: one for one in made}
    return Reduced(
        kept=tuple(staying[one.id] for one in chosen if one.id in staying),
        summaries=frozenset(short),
        lost=lost,
        compressed=_event(layer, "compress", short, before, middle),
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
