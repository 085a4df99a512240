"""Which notes, memories and evidence could enter this pack, and what each would cost."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from aether_context import retrieval
from aether_context.build.carry import Carried
from aether_context.build.ladder import render_line
from aether_context.canonical import strings
from aether_context.pack import Candidate, Ingredients, Outgoing, Part, recalled_id
from aether_context.policy import PackPolicy
from aether_context.tokens.cache import Tally

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
    source: Ingredients, policy: PackPolicy, carried: Carried, kept: Sequence[Outgoing], summary: str, tally: Tally
) -> Chosen:
    """Ranks the candidates, once an invocation: later calls keep what was chosen then.

    Args:
        kept: the contents that are sent, in the form in which they are; a candidate that stands there verbatim is left
            out.
        summary: what stands for those that were cut; the same holds for it.
    """
    if carried.keeps or source.hands_off or not source.candidates:
        return Chosen()
    if source.request.human is None:
        return Chosen(memory=_nowhere(source, "memory"), evidence=_nowhere(source, "evidence"))
    query = retrieval.query_for(source)
    candidates = _placed(source, tally)
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
        return replace(result, chosen=_priced(result.chosen, tally), more=_priced(result.more, tally))

    most = policy.retrieval.memory_k
    return Chosen(
        query=query,
        memory=found("memory", most, policy.retrieval.most_memories(source.window) - most),
        evidence=found("evidence", policy.retrieval.evidence_k),
    )


def _placed(source: Ingredients, tally: Tally) -> list[Candidate]:
    """The candidates. Of the wishes that hold always the newest have a place, the others are memories like any."""
    now = source.identity.last_event_time
    standing = [one for one in source.candidates if one.kind == "standing" and not (one.expires or now) < now]
    standing.sort(key=lambda one: (-(one.time if one.time is not None else math.inf), one.id))
    room, placed = int(source.window * _STANDING_SHARE), set()
    for one in _priced(standing[:_MOST_STANDING], tally):
        if one.tokens <= room:
            room -= one.tokens
            placed.add(one.id)
    return [
        replace(one, kind="own") if one.kind == "standing" and one.id not in placed else one
        for one in source.candidates
    ]


def _nowhere(source: Ingredients, layer: str) -> retrieval.Found:
    """Nothing of a layer: there is no human message to write a payload into."""
    left = (one for one in source.candidates if one.layer == layer)
    return retrieval.Found(chosen=(), left=tuple(retrieval.Left(candidate=one, reason="no_message") for one in left))


def _readable(part: Part) -> str:
    """What a part says, without the escapes of JSON."""
    if part.kind != "response":
        return part.text
    return "\n".join(text for _, text in strings(json.loads(part.text)))


def _priced(candidates: Sequence[Candidate], tally: Tally) -> tuple[Candidate, ...]:
    """Candidates with their lines, and what each costs with the line break behind it."""
    lines = [render_line(one) for one in candidates]
    counts = tally.count_all(lines)
    return tuple(
        replace(one, line=line, tokens=tokens + 1) for one, line, tokens in zip(candidates, lines, counts, strict=True)
    )
