"""Demand: the tokens that layers ask for, the signals that weigh them, and the window allocated by these."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from aether_context.conversation import units
from aether_context.conversation.strategies import RECAP_SHARE
from aether_context.conversation.summary import least_summary
from aether_context.conversation.turns import is_human
from aether_context.errors import StepTooLarge
from aether_context.pack import FIXED_LAYERS, Allocation, Layer, Outgoing, Pack, Signals
from aether_context.packing import payload
from aether_context.packing.allocation import allocate
from aether_context.packing.draft import Draft
from aether_context.policy import ConversationSettings
from aether_context.retrieval import answers

_DAY_SECONDS = 86_400


def demand(draft: Draft) -> dict[Layer, int]:
    """The tokens that memory, evidence and conversation would use if nothing limited them."""
    tokens = draft.conversation_tokens()
    if draft.at_cut:
        # A conversation that asks for everything is given nearly all by lending, and a cut has no room for memories
        # then. So it asks for what is left of it after a cut, or for what its latest turns need, where that is more.
        low_mark = int(draft.policy.conversation.compact_to * (draft.countable_budget - sum(draft.measured.values())))
        tokens = min(tokens, max(0 if reserves_latest_turns(draft) else low_mark, latest_turn_tokens(draft)))
    return {**draft.payload_tokens, "conversation": tokens}


def latest_turn_tokens(draft: Draft) -> int:
    """The tokens that the conversation needs so that its latest turns outlive a cut, beside a recap, and the session
    can grow."""
    items, settings = draft.history.items, draft.policy.conversation
    parts = units([item.content for item in items])
    # Whatever is asked for, the turn before the request is among them: a cut keeps the model's last answer.
    first = max((unit.turn for unit in parts), default=0) - max(settings.last_turns, 2) + 1
    latest = [items[at] for unit in parts if unit.turn >= first for at in unit.indices]
    tokens = sum(item.tokens for item in latest if item.origin != draft.input.request.request_index)
    share_left = 1.0 if _wants_all(settings) else settings.compact_to
    return int(tokens / (share_left * (1 - RECAP_SHARE))) + draft.input.growth_reserve


def reserves_latest_turns(draft: Draft) -> bool:
    """Tells whether a cut leaves the conversation what its latest turns need, since turns come back into the rest."""
    may_return = draft.input.search.room > 0 and not draft.epoch.has_chosen
    return may_return and _wants_all(draft.policy.conversation)


def _wants_all(settings: ConversationSettings) -> bool:
    """Tells whether all of the window is wanted, and nothing but the latest turns outlives a cut."""
    return settings.compact_at == 1 and settings.strategy == ("epochs",)


def _are_human(items: Sequence[Outgoing]) -> list[bool]:
    return [item.content.role == "user" and is_human(item.raw) for item in items]


def signals(draft: Draft) -> Signals:
    source, step, settings = draft.input, draft.input.step, draft.policy.retrieval
    memory = tuple(candidate for candidate in draft.rankings.memory.chosen if answers(candidate, settings))
    pool = [candidate.layer for candidate in source.candidates].count("memory")
    proofs = [item.needs_evidence for item in step.acceptance]
    newest = max((candidate.time for candidate in memory if candidate.time is not None), default=None)
    return Signals(
        checklist_evidence_ratio=sum(proofs) / len(proofs) if proofs else None,
        expected_tool_calls=step.expected_tool_calls,
        risk=step.risk,
        retrieval_hit_rate=(
            len(memory) / max(1, min(pool, settings.memory_k)) if pool and not draft.epoch.has_chosen else None
        ),
        similarity=max((candidate.score for candidate in memory), default=None),
        freshness_days=None if newest is None else max(0.0, source.identity.last_event_time - newest) / _DAY_SECONDS,
        unresolved_questions=None if step.open_questions is None else len(step.open_questions),
        dialogue_depth=sum(draft.columns.extend("human", _are_human, draft.history.items)),
    )


def allocate_window(draft: Draft) -> None:
    """Allocates the window.

    Raises:
        StepTooLarge: the given layers exceed the input budget and the policy's ``on_invalid`` is not ``warn``; it names
            the largest texts among them.
    """
    divided = allocation_of(draft)
    try:
        draft.allocation = divided(measured=draft.measured)
    except StepTooLarge as error:
        too_large = StepTooLarge(window=error.window, slack=error.slack, measured=error.measured, texts=_texts(draft))
        if draft.policy.on_invalid != "warn":
            raise too_large from None
        draft.account = draft.account._replace(too_large=f"step_too_large: {too_large}")
        # Layers as large as the budget can hold: the task gives way first, then the tools, then the system layer, of
        # which the last resort can shorten the task alone.
        room = draft.countable_budget
        squeezed: dict[Layer, int] = {}
        for layer in ("system", "tools", "task"):
            squeezed[layer] = min(draft.measured[layer], room)
            room -= squeezed[layer]
        draft.allocation = divided(measured=squeezed)


def allocation_of(draft: Draft) -> Callable[..., Allocation]:
    """The allocation of a draft's window, by what is measured."""
    source = draft.input
    return partial(
        allocate,
        source.window,
        demand=demand(draft),
        signals=signals(draft),
        settings=draft.policy.budget,
        output_tokens=source.output_tokens,
        spare_tokens=draft.spare_tokens,
    )


def _texts(draft: Draft) -> dict[str, int]:
    """The parts of the given layers in tokens, each by a name that says no word of it."""
    step, counter, source = draft.step, draft.counter, draft.input
    request_name = "what was handed over" if source.request.from_agent else "the user's request"
    texts = {
        "the system instruction": source.request.system,
        request_name: draft.request_content.text if draft.request_content is not None else "",
        "the task": step.task,
        "the goal": step.goal,
        "the step's text": step.text,
        "the role": "\n".join(payload.role_lines(step)),
        "the constraints": "\n".join((*step.constraints, *(step.open_questions or ()), *step.next, *step.stop_when)),
    }
    sizes = {name: counter.count(text) for name, text in texts.items() if text}
    if media := sum(map(counter.media, draft.request_content.parts)) if draft.request_content is not None else 0:
        sizes["the files beside it"] = media
    sizes |= {f"acceptance item {item.id}": counter.count(item.text) for item in step.acceptance}
    tools = draft.tools.sent
    return sizes | {f"tool {tool.name}": size for tool, size in zip(tools, counter.tools(tools), strict=True)}


READ_TOKENS = 2_000
"""The most that one call of ``read_artifact`` or ``search_artifact`` answers with."""
_CALL_TOKENS = 100
"""Tokens of one such call, with what stands beside the medium in its answer."""


def room_to_read(pack: Pack | None, calls: int) -> tuple[int, int]:
    """Tokens for the text that each of so many reader calls answers: half of what the window has left, and a tenth of
    it at least; and for a medium, which is whole or absent: half of what may give way at the next call, or as much as a
    text may take where that is more."""
    if pack is None:
        return READ_TOKENS, READ_TOKENS
    allocation = pack.allocation
    free = allocation.budget - sum(layer.used for layer in allocation.layers.values())
    text = max(1, min(READ_TOKENS, max(free // 2, allocation.budget // 10) // calls))
    # What may be counted beyond the window is another number after the next report.
    budget = min(allocation.budget, allocation.window - allocation.slack)
    staying = sum(allocation.layers[layer].used for layer in FIXED_LAYERS) + least_summary(budget)
    staying += sum(item.tokens for item in pack.contents if any(part.is_instruction for part in item.content.parts))
    room = max(0, (budget - staying) // calls - _CALL_TOKENS)
    return text, min(room, max(READ_TOKENS, room // 2))
