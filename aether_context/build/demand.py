"""What the layers ask for: the allocator's inputs, read off the pack so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from aether_context.allocation import allocate
from aether_context.build.carry import Carried
from aether_context.build.choice import Chosen
from aether_context.build.room import input_budget
from aether_context.conversation import units
from aether_context.conversation.turns import is_human
from aether_context.pack import Allocation, Candidate, Ingredients, Layer, Signals
from aether_context.policy import PackPolicy
from aether_context.retrieval import answers

_DAY_SECONDS = 86_400
RECAP_SHARE = 0.5
"""The recap's most beside turns that were recalled, as a share of what a cut leaves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Signals, the tokens of the given layers, and those that the others would use if nothing limited them."""

    signals: Signals
    measured: Mapping[Layer, int]
    wanted: Mapping[Layer, int]


def demand(
    source: Ingredients, policy: PackPolicy, carried: Carried, chosen: Chosen, *, at_cut: bool = False
) -> Demand:
    """What a pack's layers ask for.

    Args:
        at_cut: whether the conversation is being cut and asks for no more than its low-water mark, or than its latest
            turns need where that is more.
    """
    used = carried.packed.used if carried.packed is not None else {}
    total = sum(item.tokens for item in carried.settled.sent)
    spoken = total - carried.human_tokens(source.request.human) + carried.summary_tokens
    if at_cut:
        low = int(policy.conversation.low_water * (input_budget(source, policy) - sum(carried.measured.values())))
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


def latest_need(source: Ingredients, policy: PackPolicy, carried: Carried) -> int:
    """What the conversation has to be given so that its latest turns outlive a cut.

    A cut leaves it the low-water share of that, half of which may go to the recap.
    """
    items, human = carried.settled.sent, source.request.human
    parts = units([item.content for item in items])
    first = max((unit.turn for unit in parts), default=0) - policy.conversation.last_turns + 1
    latest = [items[at] for unit in parts if unit.turn >= first for at in unit.indices]
    tokens = sum(item.tokens for item in latest if item.origin != human)
    return int(tokens / (policy.conversation.low_water * (1 - RECAP_SHARE)))


def allocated(source: Ingredients, policy: PackPolicy, asked: Demand) -> Allocation:
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


def _signals(source: Ingredients, policy: PackPolicy, carried: Carried, chosen: Chosen) -> Signals:
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
