"""Which notes, memories and evidence could enter a pack, what they cost, and how much room they ask for."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from aether_context import retrieval
from aether_context.canonical import strings
from aether_context.conversation import units
from aether_context.conversation.turns import is_human
from aether_context.pack import (
    RECALLED,
    Allocation,
    Candidate,
    Layer,
    Outgoing,
    PackInput,
    Part,
    Signals,
    Step,
    TruncationEvent,
    recalled_id,
)
from aether_context.packing import payload
from aether_context.packing.allocation import allocate, input_budget
from aether_context.packing.carryover import Carried
from aether_context.policy import MEMORY_FILL, CompressSettings, PackPolicy
from aether_context.retrieval import Left, answers, rank, weakest
from aether_context.text.compression import Summaries, level, shorten
from aether_context.tokens.cache import CachedCounter

# The two ladders for memory and evidence: compress first, oldest or least worth first, then drop by rank.
#
# Order and rules are those of the founding document: memory to a summary, older evidence to a query-focused summary,
# then memory out by lowest score and evidence by lowest coverage and age. A layer inside its ceiling is never
# touched, and each rung goes only as far as needed.


@dataclass(frozen=True, slots=True, kw_only=True)
class Press:
    """What both ladders shorten with: settings, the query that candidates were ranked by, summaries, counts.

    ``least`` holds the tokens of candidates at their briefest, by id, where they are known.
    """

    settings: CompressSettings
    query: str
    summaries: Summaries
    counter: CachedCounter
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


LEAST_TOKENS = 16
"""What a shortened memory or piece of evidence keeps at least, besides its date or URI."""


def least_tokens(candidate: Candidate, press: Press) -> int:
    """Tokens that a candidate always can be shortened to; `briefest` may be a little less.

    What was said in the conversation, and a wish that holds always, is sent word for word or not at all.
    """
    if not press.settings.enabled or candidate.source == RECALLED or candidate.kind == "standing":
        return candidate.tokens
    return min(candidate.tokens, _overhead(candidate, press.counter) + LEAST_TOKENS)


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
    room = ceiling - _overhead(candidate, press.counter)
    kind: Literal["memory", "evidence"] = "memory" if candidate.layer == "memory" else "evidence"
    written = press.summaries.line(kind, candidate.text, max_tokens=room, query=press.query)
    if written is not None and (made := _reworded(candidate, written, press.counter)).tokens <= ceiling:
        return made
    return _extracted(candidate, ceiling, press)


def _extracted(candidate: Candidate, ceiling: int, press: Press) -> Candidate:
    """A candidate of at most ``ceiling`` tokens in sentences of its own; itself where not a word fits."""
    room = max(1, ceiling - _overhead(candidate, press.counter))
    while room > 0:
        text = shorten(candidate.text, max_tokens=room, counter=press.counter, query=press.query)
        made = _reworded(candidate, text, press.counter)
        if made.tokens <= ceiling:
            return made
        room -= max(made.tokens - ceiling, 1 + room // 8)
    return candidate


def _reworded(candidate: Candidate, text: str, counter: CachedCounter) -> Candidate:
    line = render_line(replace(candidate, text=text))
    return replace(candidate, line=line, tokens=counter.count(line) + 1)


def render_line(candidate: Candidate) -> str:
    return payload.memory_line(candidate) if candidate.layer == "memory" else payload.evidence_line(candidate)


def _overhead(candidate: Candidate, counter: CachedCounter) -> int:
    """Tokens of a line besides its text: bullet, date, URI."""
    return max(0, candidate.tokens - counter.count(candidate.text))


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


# Which notes, memories and evidence could enter this pack, and what each would cost.

_MOST_STANDING, _STANDING_SHARE = 20, 0.1
_NOTHING = retrieval.Found(chosen=(), left=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """Candidates per layer, best first, as ``query`` ranked them; those chosen carry their line and its tokens."""

    query: str = ""
    memory: retrieval.Found = _NOTHING
    evidence: retrieval.Found = _NOTHING

    @property
    def stands_alone(self) -> bool:
        """Whether nothing was left out for what the conversation says, so that a cut would change no choice."""
        left = (*self.memory.left, *self.evidence.left)
        return all(one.reason != "already_in_conversation" for one in left)


def choose(
    source: PackInput,
    policy: PackPolicy,
    carried: Carried,
    kept: Sequence[Outgoing],
    summary: str,
    counter: CachedCounter,
) -> Chosen:
    """Ranks the candidates, once an invocation: later calls keep what was chosen then.

    Args:
        kept: the contents that are sent, in the form in which they are; a candidate that stands there verbatim is left
            out.
        summary: what stands for those that were cut; the same holds for it.
    """
    if carried.keeps or source.passthrough_reason or not source.candidates:
        return Chosen()
    if source.request.human is None:
        return Chosen(memory=_nowhere(source, "memory"), evidence=_nowhere(source, "evidence"))
    query = retrieval.query_for(source)
    candidates = _placed(source, counter)
    tail = "\n".join([*(_readable(part) for item in kept for part in item.content.parts), summary])
    sent = {
        recalled_id(source.request.positions[item.origin], item.raw) for item in kept if item.outcome != "placeholder"
    }

    def found(layer: str, k: int, more: int = 0) -> retrieval.Found:
        result = retrieval.retrieve(
            [one for one in candidates if one.layer == layer],
            query,
            k=k,
            more=more,
            settings=policy.retrieval,
            tail=tail,
            sent=sent,
            now=source.identity.last_event_time,
        )
        return replace(result, chosen=_priced(result.chosen, counter), more=_priced(result.more, counter))

    most = policy.retrieval.memory_k
    return Chosen(
        query=query,
        memory=found("memory", most, policy.retrieval.most_memories(source.window) - most),
        evidence=found("evidence", policy.retrieval.evidence_k),
    )


def _placed(source: PackInput, counter: CachedCounter) -> list[Candidate]:
    """The candidates. Of the wishes that hold always the newest have a place, the others are memories like any."""
    now = source.identity.last_event_time
    standing = [one for one in source.candidates if one.kind == "standing" and not (one.expires or now) < now]
    standing.sort(key=lambda one: (-(one.time if one.time is not None else math.inf), one.id))
    room, placed = int(source.window * _STANDING_SHARE), set()
    for one in _priced(standing[:_MOST_STANDING], counter):
        if one.tokens <= room:
            room -= one.tokens
            placed.add(one.id)
    return [
        replace(one, kind="own") if one.kind == "standing" and one.id not in placed else one
        for one in source.candidates
    ]


def _nowhere(source: PackInput, layer: str) -> retrieval.Found:
    """Nothing of a layer: there is no human message to write a payload into."""
    left = (one for one in source.candidates if one.layer == layer)
    return retrieval.Found(chosen=(), left=tuple(retrieval.Left(candidate=one, reason="no_message") for one in left))


def _readable(part: Part) -> str:
    """What a part says, without the escapes of JSON."""
    if part.kind != "response":
        return part.text
    return "\n".join(text for _, text in strings(json.loads(part.text)))


def _priced(candidates: Sequence[Candidate], counter: CachedCounter) -> tuple[Candidate, ...]:
    """Candidates with their lines, and what each costs with the line break behind it."""
    lines = [render_line(one) for one in candidates]
    counts = counter.count_all(lines)
    return tuple(
        replace(one, line=line, tokens=tokens + 1) for one, line, tokens in zip(candidates, lines, counts, strict=True)
    )


# What the layers ask for: the allocator's inputs, read off the pack so far.

_DAY_SECONDS = 86_400
RECAP_SHARE = 0.5
"""The recap's most beside turns that were recalled, as a share of what a cut leaves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Signals, the tokens of the given layers, and those that the others would use if nothing limited them."""

    signals: Signals
    measured: Mapping[Layer, int]
    wanted: Mapping[Layer, int]


def demand(source: PackInput, policy: PackPolicy, carried: Carried, chosen: Chosen, *, at_cut: bool = False) -> Demand:
    """What a pack's layers ask for.

    Args:
        at_cut: whether the conversation is being cut and asks for no more than its low-water mark, or than its latest
            turns need where that is more.
    """
    used = carried.packed.used if carried.packed is not None else {}
    total = sum(item.tokens for item in carried.settled.sent)
    spoken = total - carried.human_tokens(source.request.human) + carried.summary_tokens
    if at_cut:
        low = int(policy.conversation.compact_to * (input_budget(source, policy) - sum(carried.measured.values())))
        spoken = min(spoken, max(low, latest_need(source, policy, carried)))
    return Demand(
        signals=_signals(source, policy, carried, chosen),
        measured=carried.measured,
        wanted={
            "evidence": sum(one.tokens for one in chosen.evidence.chosen) + used.get("evidence", 0),
            "memory": sum(one.tokens for one in chosen.memory.chosen) + used.get("memory", 0),
            "conversation": spoken,
        },
    )


def latest_need(source: PackInput, policy: PackPolicy, carried: Carried) -> int:
    """What the conversation has to be given so that its latest turns outlive a cut.

    A cut leaves it the low-water share of that, half of which may go to the recap.
    """
    items, human = carried.settled.sent, source.request.human
    parts = units([item.content for item in items])
    first = max((unit.turn for unit in parts), default=0) - policy.conversation.last_turns + 1
    latest = [items[at] for unit in parts if unit.turn >= first for at in unit.indices]
    tokens = sum(item.tokens for item in latest if item.origin != human)
    return int(tokens / (policy.conversation.compact_to * (1 - RECAP_SHARE)))


def allocated(source: PackInput, policy: PackPolicy, asked: Demand) -> Allocation:
    """The allocation of a window by what its layers ask for.

    Raises:
        StepTooLarge: the given layers exceed the input budget.
    """
    return allocate(
        source.window,
        measured=asked.measured,
        wanted=asked.wanted,
        signals=asked.signals,
        settings=policy.budget,
        output_tokens=source.output_tokens,
        overcounted=source.calibration.overcounted if source.calibration is not None else 0,
    )


def _signals(source: PackInput, policy: PackPolicy, carried: Carried, chosen: Chosen) -> Signals:
    step = source.step
    memory = tuple(one for one in chosen.memory.chosen if answers(one, policy.retrieval))
    pool = [one.layer for one in source.candidates].count("memory")
    humans = [item for item in carried.settled.sent if item.content.role == "user" and is_human(item.raw)]
    proofs = [item.needs_evidence for item in step.acceptance]
    return Signals(
        checklist_evidence_ratio=sum(proofs) / len(proofs) if proofs else None,
        expected_tool_calls=step.expected_tool_calls,
        risk=step.risk,
        retrieval_hit_rate=(
            len(memory) / max(1, min(pool, policy.retrieval.memory_k)) if pool and not carried.keeps else None
        ),
        similarity=max((one.score for one in memory), default=None),
        freshness_days=_age_days(memory, source.identity.last_event_time),
        unresolved_questions=None if step.open_questions is None else len(step.open_questions),
        dialogue_depth=len(humans),
    )


def _age_days(memory: tuple[Candidate, ...], now: float) -> float | None:
    newest = max((one.time for one in memory if one.time is not None), default=None)
    return None if newest is None else max(0.0, now - newest) / _DAY_SECONDS


# Memories by the room that there is: fewer where it is short, more where nothing else asks for it.


def fill(source: PackInput, policy: PackPolicy, carried: Carried, chosen: Chosen, *, at_cut: bool = False) -> Chosen:
    """The choice without memories under the floor where room is short, and with those beyond ``memory_k`` where they
    find room whole.

    Room is short where not all that the layers ask for finds some, and at every cut. For further memories room is what
    all layers together leave of half of the window, so a further memory takes nothing from another layer and
    shortens nothing. At a cut memories alone may take as much, and the conversation's latest turns find room beside
    them: how much more of it stays follows from what the other layers leave.
    """
    first, more = chosen.memory.chosen, chosen.memory.more
    weak = weakest(first, policy.retrieval)
    if not (more or weak):
        return chosen
    asked = demand(source, policy, carried, chosen)
    others = sum(asked.measured.values()) + sum(asked.wanted.values()) - asked.wanted["conversation"]
    left: list[Left] = []
    if weak and (at_cut or others + asked.wanted["conversation"] > input_budget(source, policy)):
        names = {one.id for one in weak}
        first = tuple(one for one in first if one.id not in names)
        left += [Left(candidate=one, reason="below_floor") for one in weak]
        asked = demand(source, policy, carried, replace(chosen, memory=replace(chosen.memory, chosen=first)))
        others = sum(asked.measured.values()) + sum(asked.wanted.values()) - asked.wanted["conversation"]
    if at_cut:
        beside = input_budget(source, policy) - others - latest_need(source, policy, carried)
        room = min(_free(source, policy) - asked.wanted["memory"], beside)
    else:
        room = _free(source, policy) - others - asked.wanted["conversation"]
    taken = _that_fit(more, room)
    names = {one.id for one in taken}
    left += [Left(candidate=one, reason="beyond_k") for one in more if one.id not in names]
    memory = replace(chosen.memory, chosen=(*first, *taken), more=(), left=(*chosen.memory.left, *left))
    return replace(chosen, memory=memory)


def _free(source: PackInput, policy: PackPolicy) -> int:
    """Tokens up to which the window may be filled; none where layers do not lend."""
    if not policy.budget.lending:
        return 0
    return min(input_budget(source, policy), int(source.window * MEMORY_FILL))


def _that_fit(candidates: Sequence[Candidate], room: int) -> list[Candidate]:
    """Those that fit, in their order; one that does not is passed over."""
    taken = []
    for one in candidates:
        if one.tokens <= room:
            taken.append(one)
            room -= one.tokens
    return taken
