"""The next pack where nothing but new contents was added: one step instead of a walk over the history.

`extend_pack` gives what `build_pack` would give, or nothing.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

from aether_context.canonical import fold
from aether_context.conversation import Budget
from aether_context.conversation.turns import is_human
from aether_context.errors import StepTooLarge
from aether_context.pack import Block, Layer, Outgoing, Pack, PackInput, Prefix, RunningHashes, Sent
from aether_context.packing.allocation import spend
from aether_context.packing.compaction import marks
from aether_context.packing.compression import allocation_of
from aether_context.packing.draft import Draft
from aether_context.packing.payload import addresses_of, missing_evidence
from aether_context.packing.rendering import checksum, content_outcome, method, request_tokens, speaker
from aether_context.packing.tools import asks
from aether_context.policy import PackPolicy
from aether_context.tokens import TokenCounter, framing_of
from aether_context.tokens.cache import CachedCounter, TokenCache


def extend_pack(
    before: Pack, source: PackInput, policy: PackPolicy, *, counter: TokenCounter, cache: TokenCache | None = None
) -> Pack | None:
    """The pack of a request that continues the one before it, None where it has to be built anew.

    Args:
        before: the pack before it, of the same invocation, agent, policy, step, system instruction and declarations.
        source: what it is built from; its contents begin with those of ``before.source``.
    """
    cached = CachedCounter(counter, cache, framing=framing_of(source.request.model))
    draft = Draft(input=source, policy=policy, counter=cached)
    have = len(before.source.request.contents)
    added = source.request.contents[have:]
    # What was shortened or thinned is known by its digest, so that an added content can bear on it, or be it.
    if (
        any(event.stage == "cut" for event in before.events)
        or any(is_human(one) or one.agent or one.digest in before.epoch.extracts for one in added)
        or before.epoch.parts
        or source.passthrough_reason
    ):
        return None
    if not _append_only(policy) or draft.by_hand or source.anchors != before.source.anchors:
        return None
    if before.scope_mode == "relevant" and asks(before.tools_kept, added):
        return None
    if _request_was_shortened(before, source):
        return None
    tokens = cached.contents(added)
    used = {layer: account.used for layer, account in before.allocation.layers.items()}
    spoken = used["conversation"] + sum(tokens)
    signals = before.signals
    if before.appended is None:
        signals = replace(signals, retrieval_hit_rate=None, similarity=None, freshness_days=None)
    measured: dict[Layer, int] = {layer: used[layer] for layer in ("system", "task", "tools")}
    wanted: dict[Layer, int] = {"evidence": used["evidence"], "memory": used["memory"], "conversation": spoken}
    try:
        allocation = allocation_of(source, policy, signals=signals, measured=measured, wanted=wanted)
    except StepTooLarge:
        return None
    fixed = sum(used.values()) - used["conversation"]
    counted = before.counted_tokens + sum(tokens)
    if spoken > allocation.budget - fixed:
        return None
    quiet = _quiet(policy, marks(policy, allocation, fixed))
    if spoken > quiet and not draft.gated(spoken + fixed, allocation.budget):
        return None
    if draft.past_byte_net(chain((one.content for one in before.contents), added)):
        return None
    allocation = spend(allocation, {**used, "conversation": spoken}, lending=policy.budget.lending)
    sent = Sent(
        system=before.sent.system,
        tools=before.sent.tools,
        contents=before.sent.contents
        + tuple(Block(content.digest, cost) for content, cost in zip(added, tokens, strict=True)),
    )
    running_hashes = RunningHashes(
        read=fold((content.digest for content in added), before.running_hashes.read),
        count=fold(map(str, tokens), before.running_hashes.count),
        sent=fold((content.digest for content in added), before.running_hashes.sent),
    )
    outgoing = tuple(
        Outgoing(content=content, raw=content, origin=have + at, outcome="verbatim", tokens=cost)
        for at, (content, cost) in enumerate(zip(added, tokens, strict=True))
    )
    rows = before.outcomes if before.appended is not None else before.outcomes[:have]
    return replace(
        before,
        source=source,
        contents=before.contents + outgoing,
        appended=len(added),
        chose=False,
        tool_scores={},
        tool_encoder="",
        signals=signals,
        allocation=allocation,
        outcomes=rows
        + tuple(
            content_outcome(
                draft.content_id(have + at),
                "conversation",
                speaker(content),
                cost,
                cached.method,
                content.digest,
                "kept",
                None,
                None,
            )
            for at, (content, cost) in enumerate(zip(added, tokens, strict=True))
        ),
        events=(),
        acts=(),
        epoch_reason=None,
        artifact_uris=before.artifact_uris.union(*map(addresses_of, added)),
        evidence_needed=missing_evidence(source, (), outgoing, added, before.evidence_needed),
        prefix=Prefix(shared_tokens=before.counted_tokens, broken_by=None),
        degradations=tuple(filter(None, (*source.problems, before.scope_problem))),
        request_tokens=request_tokens(source, counted),
        over_window=0,
        counted_tokens=counted,
        method=method(source, cached),
        saved={},
        summary_requests=(),
        counts=cached.counts,
        running_hashes=running_hashes,
        stages={
            "count": measured,
            "retrieve": [[], []],
            "allocate": [account.final for account in allocation.layers.values()],
            "trim": before.stages["trim"],
            "fit": [before.epoch.summary, [], []],
            "render": before.stages["render"],
        },
        checksum=checksum(before.allowed_tools, sent, running_hashes),
        sent=sent,
    )


def _request_was_shortened(before: Pack, source: PackInput) -> bool:
    """Whether the user's request is sent in part: what it may hold is then measured anew as the conversation grows."""
    human = source.request.human
    payload = next((one for one in before.contents if one.origin == human and one.outcome == "payload"), None)
    return (
        human is not None
        and payload is not None
        and not payload.content.text.endswith(source.request.contents[human].text)
    )


_GROWING = frozenset({"epochs", "sliding_turns", "heads_tails", "summarize"})
"""Strategies that do nothing to appended contents below a mark."""


def _append_only(policy: PackPolicy) -> bool:
    return _GROWING.issuperset(policy.conversation.strategy)


def _quiet(policy: PackPolicy, budget: Budget) -> int:
    """Tokens of the conversation up to which no strategy acts."""
    settings = policy.conversation
    if "summarize" not in settings.strategy:
        return budget.high
    trigger = settings.summarize.trigger
    return min(budget.high, max(int(trigger * budget.input) - budget.fixed, int(trigger * budget.ceiling)))
