"""The allocator's inputs, read off the pack so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from aether_context.allocation import allocate, slack_tokens
from aether_context.build.carry import Carried
from aether_context.build.choice import Chosen
from aether_context.errors import StepTooLarge
from aether_context.pack import Allocation, Candidate, Ingredients, Layer, Signals
from aether_context.policy import PackPolicy

_DAY_SECONDS = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Signals and allocation; ``too_large`` is set where the given layers exceed the budget and have to shrink."""

    signals: Signals
    allocation: Allocation
    too_large: StepTooLarge | None


def share(source: Ingredients, policy: PackPolicy, carried: Carried, chosen: Chosen) -> Shares:
    """Allocates the window.

    Raises:
        StepTooLarge: the given layers exceed the input budget and the policy's ``on_invalid`` is not ``warn``.
    """
    signals = _signals(source, policy, carried, chosen)
    wanted = _wanted(source, carried, chosen)
    measured = dict(carried.measured)
    too_large = None
    try:
        allocation = allocated(source, policy, measured, wanted, signals)
    except StepTooLarge as error:
        if policy.on_invalid != "warn":
            raise
        too_large = error
        allocation = allocated(source, policy, _squeezed(source, policy, measured), wanted, signals)
    return Shares(signals=signals, allocation=allocation, too_large=too_large)


def allocated(
    source: Ingredients,
    policy: PackPolicy,
    measured: Mapping[Layer, int],
    wanted: Mapping[Layer, int],
    signals: Signals,
) -> Allocation:
    return allocate(
        source.window,
        measured=measured,
        wanted=wanted,
        signals=signals,
        settings=policy.budget,
        output_tokens=source.output_tokens,
    )


def _wanted(source: Ingredients, carried: Carried, chosen: Chosen) -> dict[Layer, int]:
    used = carried.packed.used if carried.packed is not None else {}
    total = sum(item.tokens for item in carried.settled.sent)
    return {
        "evidence": sum(one.tokens for one in chosen.evidence.chosen) + used.get("evidence", 0),
        "memory": sum(one.tokens for one in chosen.memory.chosen) + used.get("memory", 0),
        "conversation": total - carried.human_tokens(source.request.human) + carried.summary_tokens,
    }


def _squeezed(source: Ingredients, policy: PackPolicy, measured: dict[Layer, int]) -> dict[Layer, int]:
    """Layers as large as the budget can hold: the task gives way first, then the tools, then the system layer."""
    left = source.window - slack_tokens(source.window, policy.budget, source.output_tokens)
    squeezed: dict[Layer, int] = {}
    for layer in ("system", "tools", "task"):
        squeezed[layer] = min(measured[layer], left)
        left -= squeezed[layer]
    return squeezed


def _signals(source: Ingredients, policy: PackPolicy, carried: Carried, chosen: Chosen) -> Signals:
    step, memory = source.step, chosen.memory.chosen
    pool = sum(one.layer == "memory" for one in source.candidates)
    humans = [item for item in carried.settled.sent if item.content.role == "user" and not item.content.responses]
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
