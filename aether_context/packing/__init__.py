"""One pack from its input: the stages in order, pure and synchronous.

I/O happens before it (the edge gathers memory hits, evidence, state) and after it (the store writes).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from itertools import chain

from aether_context.canonical import fold
from aether_context.conversation import strategies_of
from aether_context.conversation.turns import is_human
from aether_context.errors import StepTooLarge
from aether_context.pack import Block, Layer, Outgoing, Pack, PackInput, Prefix, RunningHashes, Sent
from aether_context.packing.allocation import reallocate, spend
from aether_context.packing.carryover import carry, measure
from aether_context.packing.compaction import bring_within_window, compact, is_quiet, marks, settle
from aether_context.packing.compression import allocate, allocation_of, compress, tighten
from aether_context.packing.draft import Draft
from aether_context.packing.payload import addresses_of, missing_evidence
from aether_context.packing.rendering import checksum, content_outcome, method, recount, render, request_tokens
from aether_context.packing.selection import choose, fill
from aether_context.packing.tools import asks, select_tools
from aether_context.policy import PackPolicy
from aether_context.tokens import TokenCounter, counter_for, framing_of
from aether_context.tokens.cache import PackCounter, TokenCache

__all__ = ["build_pack", "extend_pack", "recount"]

_MOST_ROUNDS = 3


def build_pack(
    source: PackInput,
    policy: PackPolicy,
    *,
    counter: TokenCounter | None = None,
    cache: TokenCache | None = None,
    recorded: Mapping[str, int] | None = None,
) -> Pack:
    """Builds the request of one model call, with the account of it.

    Equal arguments give equal packs, byte for byte, on every machine. Where a cut is made, candidates are chosen once
    more: what stood in the conversation may not stand there any longer; and again where those that are chosen push
    more of it out. So are relevant tools: the prefix ends anyway. Where a content is shortened without a cut, what was
    left out because it stood there is chosen once more, too. Strategies that look at what the host sent do so before
    there is a payload; where they decide otherwise with what it takes, the pack is built with that. What leaves is
    counted once more: where it is over the input budget, the pack is built again with so much less room.

    Args:
        counter: counts tokens; the built-in estimate for the request's model by default.
        cache: counts and shortened contents by digest, kept between packs for speed.
        recorded: counts of an earlier build, by short digest; they come before the counter's.

    Raises:
        StepTooLarge: system, task and tools alone exceed the input budget, and the policy's ``on_invalid`` is not
            ``warn``.
    """
    model = source.request.model
    cached = PackCounter(counter or counter_for(model), cache, recorded, framing=framing_of(model))
    draft = Draft(input=source, policy=policy, counter=cached)
    pack = _built(draft)
    for _ in range(_MOST_ROUNDS):
        payload_tokens = _payload_tokens(pack)
        if payload_tokens <= draft.payload_tokens or not _matters(draft, payload_tokens):
            break
        draft.payload_tokens = payload_tokens
        pack = _built(draft)
    while (over := _over(pack)) > 0 and draft.reserve < 2 * source.window:
        draft.reserve += over
        again = _built(draft)
        if _over(again) >= over:
            break
        pack = again
    return pack


def _built(draft: Draft) -> Pack:
    """The pack of a draft; made anew where what it leaves out is no longer in the conversation."""
    source = draft.input
    given = _given(draft)
    made = _fitted(given, given.items, source.epoch.summary)
    chosen_alone = given.begins and not given.keeps and made.stands_alone
    at_cut = bool(made.cut) and (given.scope.stands or (bool(source.candidates) and not chosen_alone))
    if at_cut:
        draft = copy(draft)
        draft.at_cut = True
        given = _given(draft)
    judged: Sequence[Outgoing] = given.items
    for at in range(_MOST_ROUNDS):
        if not (at_cut and at == 0) and (made.stands_alone or not _lost(judged, made.items)):
            break
        judged = made.items
        made = _fitted(given, judged, "" if at_cut else source.epoch.summary)
    return render(made)


def _given(draft: Draft) -> Draft:
    """What the call and its epoch determine, before anything is chosen."""
    draft = copy(draft)
    select_tools(draft)
    carry(draft)
    settle(draft)
    measure(draft)
    return draft


def _fitted(draft: Draft, judged: Sequence[Outgoing], summary: str) -> Draft:
    """What is chosen beside these contents and this summary, and all of it within the window."""
    draft = copy(draft)
    choose(draft, judged, summary)
    fill(draft)
    tighten(draft)
    allocate(draft)
    compress(draft)
    compact(draft)
    bring_within_window(draft)
    return draft


def _over(pack: Pack) -> int:
    """Tokens by which what leaves passes the input budget, after everything."""
    used = sum(layer.used for layer in pack.allocation.layers.values())
    return 0 if pack.source.passthrough_reason else used - pack.allocation.budget


def _payload_tokens(pack: Pack) -> int:
    """What the payload that a pack makes adds to the human message, where early strategies have yet to count it.

    They decide at an invocation's first call; a payload that a later one makes changes nothing of that.
    """
    human = pack.source.request.human
    if human is None or not pack.chose or not pack.source.first_call:
        return 0
    outcome = pack.outcomes[human]
    return outcome.sent_tokens - outcome.tokens if outcome.sent_tokens is not None else 0


def _matters(draft: Draft, payload_tokens: int) -> bool:
    """Whether early strategies decide otherwise with a payload of so many tokens."""
    early = any(strategy.early for strategy in strategies_of(draft.policy.conversation))
    if draft.input.passthrough_reason or not early:
        return False
    before = _given(draft)
    other = copy(draft)
    other.payload_tokens = payload_tokens
    after = _given(other)
    return before.hidden != after.hidden or _lost(before.incoming, after.incoming)


def _lost(before: Sequence[Outgoing], after: Sequence[Outgoing]) -> bool:
    """Whether contents that stood in the conversation do not stand there any longer, or in another form."""
    sent = {item.origin: item.content.digest for item in after}
    return any(sent.get(item.origin) != item.content.digest for item in before)


# The next pack where nothing but new contents was added: one step instead of a walk over the history.


def extend_pack(
    before: Pack,
    source: PackInput,
    policy: PackPolicy,
    *,
    counter: TokenCounter,
    cache: TokenCache | None = None,
    recorded: Mapping[str, int] | None = None,
) -> Pack | None:
    """The pack of a request that continues the one before it, None where it has to be built anew.

    Args:
        before: the pack before it, of the same invocation, agent, policy, step, system instruction and declarations.
        source: what it is built from; its contents begin with those of ``before.source``.
        recorded: counts by short digest that come before the counter's.
    """
    cached = PackCounter(counter, cache, recorded, framing=framing_of(source.request.model))
    draft = Draft(input=source, policy=policy, counter=cached)
    have = len(before.source.request.contents)
    added = source.request.contents[have:]
    # What was shortened or told is known by its digest, so that an added content can bear on it, or be it.
    if (
        any(event.stage == "cut" for event in before.events)
        or any(is_human(content) or content.agent or content.digest in before.epoch.extracts for content in added)
        or before.epoch.told
        or source.passthrough_reason
    ):
        return None
    if source.anchors != before.source.anchors:
        return None
    if before.scope_mode == "relevant" and asks(before.tools_kept, added):
        return None
    if before.appended is None and _request_was_shortened(before, source):
        return None
    tokens = cached.contents(added)
    used = {layer: account.used for layer, account in before.allocation.layers.items()}
    spoken = used["conversation"] + sum(tokens)
    signals = before.signals
    if before.appended is None:
        signals = signals._replace(retrieval_hit_rate=None, similarity=None, freshness_days=None)
    measured: dict[Layer, int] = {layer: used[layer] for layer in ("system", "task", "tools")}
    if before.appended is not None:
        allocation = reallocate(before.allocation, spoken, overcounted=draft.overcounted)
    else:
        wanted: dict[Layer, int] = {"evidence": used["evidence"], "memory": used["memory"], "conversation": spoken}
        try:
            allocation = allocation_of(source, policy, signals=signals, measured=measured, wanted=wanted)
        except StepTooLarge:
            return None
    fixed = sum(used.values()) - used["conversation"]
    counted = before.counted_tokens + sum(tokens)
    if spoken > allocation.budget - fixed:
        return None
    net = draft.byte_net(chain((item.content for item in before.contents), added), spoken)
    if not is_quiet(draft, marks(policy, allocation, fixed, net), spoken):
        return None
    allocation = spend(allocation, {**used, "conversation": spoken})
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
    return before._replace(
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
            content_outcome(draft.content_id(have + at), content, cost, cached.method)
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
        whole_history_tokens=before.whole_history_tokens
        + sum(tokens)
        + source.offloaded_tokens
        - before.source.offloaded_tokens,
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
    made = (before.contents[at] for at in before.made)
    payload = next((item for item in made if item.origin == human and item.outcome == "payload"), None)
    return (
        human is not None
        and payload is not None
        and not payload.content.text.endswith(source.request.contents[human].text)
    )
