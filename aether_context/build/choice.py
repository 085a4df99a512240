"""Which notes, memories and evidence could enter this pack, and what each would cost."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from aether_context import retrieval
from aether_context.build.carry import Carried
from aether_context.build.ladder import render_line
from aether_context.canonical import strings
from aether_context.counting import Tally
from aether_context.pack import Candidate, Ingredients, Outgoing, Part, recalled_id
from aether_context.policy import PackPolicy

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
        kept: the contents that are sent; a candidate that stands in them verbatim is left out.
        summary: what stands for those that were cut; the same holds for it.
    """
    if carried.keeps or source.hands_off or not source.candidates:
        return Chosen()
    if source.request.human is None:
        return Chosen(memory=_nowhere(source, "memory"), evidence=_nowhere(source, "evidence"))
    query = retrieval.query_for(source)
    tail = "\n".join([*(_readable(part) for item in kept for part in _parts(item)), summary])
    standing = {
        recalled_id(source.request.positions[item.origin], item.raw) for item in kept if item.outcome != "placeholder"
    }

    def found(layer: str, k: int, more: int = 0) -> retrieval.Found:
        result = retrieval.retrieve(
            [one for one in source.candidates if one.layer == layer],
            query,
            k=k,
            more=more,
            settings=policy.retrieval,
            tail=tail,
            standing=standing,
            now=source.identity.last_event_time,
        )
        return replace(result, chosen=_priced(result.chosen, tally))

    most = policy.retrieval.memory_k
    return Chosen(
        query=query,
        memory=found("memory", most, policy.retrieval.most_memories(source.window) - most),
        evidence=found("evidence", policy.retrieval.evidence_k),
    )


def _nowhere(source: Ingredients, layer: str) -> retrieval.Found:
    """Nothing of a layer: there is no human message to write a payload into."""
    left = (one for one in source.candidates if one.layer == layer)
    return retrieval.Found(chosen=(), left=tuple(retrieval.Left(candidate=one, reason="no_message") for one in left))


def _parts(item: Outgoing) -> tuple[Part, ...]:
    """What is sent of a content, and what it says itself where that is part of it."""
    return (*item.raw.parts, *item.content.parts) if item.outcome == "payload" else item.raw.parts


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
