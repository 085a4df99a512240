"""The outgoing request, normalized at the very end, and the account of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from aether_context.canonical import JSON, fold, hash_json, hash_text, short
from aether_context.conversation import Normal, normalize
from aether_context.conversation.summary import summary_message
from aether_context.conversation.turns import as_ranges, live_positions
from aether_context.pack import (
    Accuracy,
    Allocation,
    Block,
    Candidate,
    CandidateOutcome,
    Content,
    Epoch,
    EpochReason,
    Layer,
    Outgoing,
    Pack,
    PackedMessage,
    PackInput,
    Prefix,
    PrefixBreak,
    Reason,
    RunningHashes,
    Sent,
    State,
    TruncationEvent,
)
from aether_context.packing import payload
from aether_context.packing.allocation import spend
from aether_context.packing.carryover import Carried, explains_in_payload, packed_text, plan_digest, summary_tokens
from aether_context.packing.choice import Chosen
from aether_context.packing.early_strategies import by_hand, content_id
from aether_context.packing.fit import Fitted
from aether_context.packing.payload import addresses_in, covered_by, missing_evidence, validity_of
from aether_context.packing.rewrites import packed_message, summary_content
from aether_context.packing.shares import Shares, Tight
from aether_context.policy import PackPolicy, StablePrefixSettings
from aether_context.text.compression import extract
from aether_context.tokens.cache import CachedCounter
from aether_context.usage.calibration import estimated

# The outgoing contents, normalized at the very end, so that every stage before sees the host's own.


def normalized(
    contents: Sequence[Outgoing], settings: StablePrefixSettings, counter: CachedCounter
) -> tuple[Outgoing, ...]:
    """The contents with same-kind neighbours merged, each call answered once, and tags stripped.

    One that needs none of it stays the same object.
    """
    found = normalize([item.content for item in contents], strip_tags=settings.strip_tags, empty=settings.placeholder)
    return tuple(_outgoing(contents, one, counter) for one in found)


def _outgoing(contents: Sequence[Outgoing], normal: Normal, counter: CachedCounter) -> Outgoing:
    first = contents[normal.sources[0]]
    if normal.content is first.content:
        return first
    return Outgoing(
        content=normal.content,
        raw=first.raw,
        origin=first.origin,
        outcome="merged",
        tokens=counter.content(normal.content),
        members=tuple(_member(contents[index], place) for index, place in normal.members),
    )


def _member(item: Outgoing, place: int) -> tuple[int, int]:
    """Where a part of an outgoing content comes from: origin and place there, -1 for what was made here."""
    if item.members:
        return item.members[place]
    if item.origin < 0:
        return (-1, -1)
    if item.outcome != "payload":
        return (item.origin, place)
    others = [at for at, part in enumerate(item.raw.parts) if part.kind != "text"]
    return (item.origin, others[place - 1] if place else -1)


# What the layers of a pack cost by another counter; nothing of the pack is decided anew.

_SECTIONS: tuple[tuple[Layer, tuple[str, ...]], ...] = (
    ("evidence", ("EVIDENCE", "TOP EVIDENCE")),
    ("memory", ("MEMORY",)),
    ("conversation", ("CONVERSATION SUMMARY",)),
)
"""The sections of a payload that belong to another layer than the task."""


def recount(pack: Pack, counter: CachedCounter) -> dict[Layer, int]:
    """Tokens of each layer as it is sent; they sum to those of the whole request."""
    other = pack.source.request.other_tools
    layers: dict[Layer, int] = {
        "system": counter.system(pack.system, declares=bool(pack.tools or other)),
        "task": 0,
        "tools": sum(counter.tools(pack.tools)) + sum(counter.count_all(other)),
        "evidence": 0,
        "memory": 0,
        "conversation": 0,
    }
    counts = counter.contents([one.content for one in pack.contents])
    for one, tokens in zip(pack.contents, counts, strict=True):
        if one.origin != pack.source.request.human:
            layers["conversation"] += tokens
            continue
        for layer, inside in _inside(one, counter).items():
            layers[layer] += inside
            tokens -= inside
        layers["task"] += tokens
    return layers


def _inside(message: Outgoing, counter: CachedCounter) -> dict[Layer, int]:
    """What a packed message holds of other layers."""
    found = payload.sections(message.content.text) if message.outcome == "payload" else {}
    layers = [(layer, "".join(found.get(name, "") for name in names)) for layer, names in _SECTIONS]
    counts = counter.count_all([text for _, text in layers])
    return {layer: tokens for (layer, _), tokens in zip(layers, counts, strict=True)}


# The outgoing request and the account of it.

_NEW_ANCHORS = 4
_MOST_ANCHORS = 8
_LEAST_HEAD = 32
_CUTS: Mapping[Reason, EpochReason] = {"byte_net": "byte_net", "strategy": "strategy"}
"""Why an epoch begins with a cut for a reason, where that is not that a mark was passed."""


def assemble(
    source: PackInput,
    policy: PackPolicy,
    tight: Tight,
    chosen: Chosen,
    shares: Shares,
    fitted: Fitted,
    counter: CachedCounter,
) -> Pack:
    """Renders the payload, puts the contents in order, and writes down what became of every candidate."""
    scope, carried = tight.scope, tight.carried
    packed = _packed(source, policy, tight, chosen, fitted, counter)
    plain = _contents(source, policy, carried, fitted, packed, counter)
    contents = normalized(plain, policy.conversation.stable_prefix, counter) if fitted.normalize else plain
    sent = Sent(
        system=Block(hash_text(carried.system), carried.measured["system"] - carried.unseen),
        tools=tuple(
            Block(tool.digest, tokens) for tool, tokens in zip(scope.tools, counter.tools(scope.tools), strict=True)
        )
        + tuple(Block(hash_text(wire), counter.count(wire)) for wire in source.request.other_tools),
        contents=tuple(Block(one.content.digest, one.tokens) for one in contents),
    )
    reason = _reason(source, tight, fitted)
    epoch = _epoch(source, policy, tight, fitted, packed, reason)
    outcomes = _outcomes(source, carried, chosen, fitted, _by_origin(plain, contents), epoch, counter)
    running_hashes = RunningHashes(
        read=fold(item.raw.digest for item in carried.items),
        count=fold(str(outcome.tokens) for outcome in outcomes[: len(carried.items)]),
        sent=fold(block.digest for block in sent.contents),
    )
    counted = sum(block.tokens for block in (sent.system, *sent.tools, *sent.contents))
    validity, invalid_reason = validity_of(source, packed)
    return Pack(
        source=source,
        system=carried.system,
        tools=scope.tools,
        contents=contents,
        made=tuple(at for at, one in enumerate(contents) if one.outcome != "verbatim"),
        appended=None,
        chose=not carried.keeps,
        allowed_tools=scope.allowed,
        tools_left_out=scope.left_out,
        tools_kept=scope.kept,
        tool_scores=scope.scores,
        tool_encoder=scope.encoder,
        scope_mode=scope.mode,
        scope_problem=scope.problem,
        signals=shares.signals,
        allocation=_spent(source, policy, carried, fitted, shares, plain, contents, counter),
        outcomes=outcomes,
        events=_named_events(source, fitted),
        acts=fitted.acts,
        epoch=epoch,
        epoch_reason=reason,
        prefix=_prefix(
            source, sent, fitted.made_cut or bool(fitted.acts), _grown_head(source, policy, fitted, counter)
        ),
        validity=validity,
        invalid_reason=invalid_reason,
        artifact_uris=addresses_in(
            source,
            carried.system,
            (*(tool.wire for tool in scope.tools), *source.request.other_tools),
            contents,
            _text(packed, fitted.summary, policy),
        ),
        evidence_needed=missing_evidence(source, _covered(epoch, plain), contents, source.request.contents),
        degradations=tuple(
            filter(None, (*source.problems, scope.problem, *_faults(shares, fitted, counted + carried.unseen)))
        ),
        request_tokens=request_tokens(source, counted),
        over_window=max(0, counted + carried.unseen - shares.allocation.overcounted - source.window),
        counted_tokens=counted,
        method=method(source, counter),
        saved=fitted.saved,
        summary_requests=fitted.summary_requests,
        counts=counter.counts,
        running_hashes=running_hashes,
        stages=_stages(carried, chosen, shares, fitted, packed),
        checksum=checksum(scope.allowed, sent, running_hashes),
        sent=sent,
    )


def request_tokens(source: PackInput, counted: int) -> int:
    """Tokens that the provider is expected to count."""
    return estimated(source.calibration, counted) if source.calibration is not None else counted


def method(source: PackInput, counter: CachedCounter) -> Accuracy:
    """How the request's tokens were obtained."""
    anchored = source.calibration is not None and source.calibration.anchored
    return "anchored" if anchored and counter.method != "exact" else counter.method


def _reason(source: PackInput, tight: Tight, fitted: Fitted) -> EpochReason | None:
    """Why an epoch begins with this pack, None where none does."""
    changed = tight.carried.changed
    chosen = changed == "tools_changed" and bool(tight.scope.scores)
    if changed is not None and not (fitted.made_cut and chosen):
        return changed
    if tight.scope.trimmed != frozenset(source.epoch.trimmed):
        return "tools_changed"
    if by_hand(source) and (fitted.made_cut or fitted.acts):
        return "by_hand"
    if fitted.made_cut or tight.carried.begins:
        cuts = [event.reason for event in fitted.events if event.stage == "cut"]
        return _CUTS.get(cuts[-1], "high_water") if cuts else "high_water"
    return "replaced" if any(act.replaced for act in fitted.acts) else None


def checksum(allowed: tuple[str, ...] | None, sent: Sent, running_hashes: RunningHashes) -> str:
    """The hash over a request: system, declarations, contents, and the names that calls are restricted to."""
    fixed = [sent.system.digest, *(block.digest for block in sent.tools)]
    return hash_json({"allowed": allowed, "contents": running_hashes.sent, "fixed": fixed})


def _within(rendered: payload.Payload, request: str, ceiling: int | None, counter: CachedCounter) -> tuple[str, str]:
    """The payload's two halves; all before the request as an extract of at most ``ceiling`` tokens.

    The second half, where the acceptance list stands, stays whole while anything of the first finds room beside it.
    """
    if ceiling is None:
        return rendered.before, rendered.after
    checklist = rendered.after.removesuffix(request)
    room = ceiling - counter.count(checklist)
    if room >= _LEAST_HEAD:
        return f"{extract(rendered.before.rstrip(), max_tokens=room, counter=counter).text}\n", rendered.after
    said = f"{rendered.before}{checklist}".rstrip()
    return f"{extract(said, max_tokens=ceiling, counter=counter).text}\n", request


def _packed(
    source: PackInput, policy: PackPolicy, tight: Tight, chosen: Chosen, fitted: Fitted, counter: CachedCounter
) -> PackedMessage | None:
    """What this invocation makes of its human message, None where it is sent as it is."""
    human, scope, carried = source.request.human, tight.scope, tight.carried
    if human is None or source.passthrough_reason:
        return None
    raw = source.request.contents[human]
    inside = bool(fitted.summary) and policy.conversation.summary == "payload"
    written = carried.packed is not None and bool(carried.packed.before)
    if carried.keeps and carried.packed is not None and written:
        return _shorter(carried.packed, fitted)
    if carried.keeps and fitted.request is None and not (inside and fitted.cut):
        return carried.packed
    request = raw.text if fitted.request is None else fitted.request
    rendered = payload.render(
        step=tight.step,
        request=request,
        tools=scope.listed,
        evidence=fitted.evidence,
        memory=fitted.memory,
        summary=inside,
        settings=policy.payload,
        explains=explains_in_payload(policy, carried.contract),
        handed=source.request.handed,
    )
    used = {"memory": _cost(fitted.memory), "evidence": _cost(fitted.evidence)}
    made = PackedMessage(
        of=raw.digest,
        invocation=source.identity.invocation,
        text="",
        split=0,
        used=used,
        place=source.request.positions[human],
        plan=plan_digest(source),
    )
    if rendered is not None:
        before, after = _within(rendered, request, fitted.task_ceiling, counter)
        standing = [one.candidate for one in chosen.evidence.left if one.reason == "already_in_conversation"]
        text = before + after
        return replace(made, text=text, split=len(before), covers=covered_by(text, fitted.evidence, standing))
    if fitted.request is not None:
        return replace(made, text=request, split=len(request), used={})
    # What was handed over may change within an invocation: this says that the choice for it is made.
    return replace(made, used={}) if raw.agent else None


def _shorter(packed: PackedMessage, fitted: Fitted) -> PackedMessage:
    """What an earlier call of this invocation made of the human message, with a request that is shortened since.

    The rest of it stays as it was: what was chosen and tightened then is not chosen anew here.
    """
    if fitted.request is None:
        return packed
    if not packed.after:
        return replace(packed, text=fitted.request, split=len(fitted.request))
    said = payload.answered(packed.after) or packed.after
    return replace(packed, text=packed.before + packed.after.removesuffix(said) + fitted.request)


def _covered(epoch: Epoch, contents: Sequence[Outgoing]) -> frozenset[str]:
    """The acceptance items whose proof stands in the payloads that are sent."""
    sent = {item.raw.digest for item in contents if item.outcome == "payload"}
    return frozenset(item for one in epoch.payloads if one.of in sent for item in one.covers)


def _text(packed: PackedMessage | None, summary: str, policy: PackPolicy) -> str:
    """The payload as it is sent; nothing where there is none."""
    return packed_text(packed, summary, policy) if packed is not None and packed.before else ""


def _cost(candidates: Sequence[Candidate]) -> int:
    return sum(one.tokens for one in candidates)


def _contents(
    source: PackInput,
    policy: PackPolicy,
    carried: Carried,
    fitted: Fitted,
    packed: PackedMessage | None,
    counter: CachedCounter,
) -> tuple[Outgoing, ...]:
    out: list[Outgoing] = []
    for item in fitted.items:
        if item.origin == source.request.human and packed is not None and packed.before:
            text = packed_text(packed, fitted.summary, policy)
            content, members = packed_message(item.raw, item.origin, text, fitted.parts)
            item = replace(item, content=content, outcome="payload", tokens=counter.content(content), members=members)
        out.append(item)
    if fitted.summary and policy.conversation.summary == "head":
        content = summary_content(summary_message(fitted.summary))
        made = Outgoing(content=content, raw=content, origin=-1, outcome="summary", tokens=counter.content(content))
        out.insert(_summary_index(source, fitted), made)
    return tuple(out)


def _summary_index(source: PackInput, fitted: Fitted) -> int:
    """Where the summary stands among the contents."""
    place, positions = fitted.summary_place, source.request.positions
    return sum(positions[item.origin] < place for item in fitted.items) if place else 0


def _outcomes(
    source: PackInput,
    carried: Carried,
    chosen: Chosen,
    fitted: Fitted,
    sent: Mapping[int, Outgoing],
    epoch: Epoch,
    counter: CachedCounter,
) -> tuple[CandidateOutcome, ...]:
    """A row for each content that came in, in order, then one for each other candidate."""
    human = source.request.human
    live = _live(source, fitted, epoch)
    outcomes = [
        _content_outcome(source, before, sent.get(before.origin), before.origin in live, human, fitted, counter)
        for before in carried.items
    ]
    lost = {one.id for one in fitted.dropped}
    made = {one.id: one.tokens for one in (*fitted.memory, *fitted.evidence) if one.id in fitted.summaries}
    for found in (chosen.memory, chosen.evidence):
        for one in found.chosen:
            state: State = "dropped" if one.id in lost else "summary" if one.id in fitted.summaries else "kept"
            outcomes.append(
                _candidate_outcome(
                    one, state, "over_allocation" if state != "kept" else None, counter, made.get(one.id)
                )
            )
        for left in found.left:
            state = "in_tail" if left.reason == "already_in_conversation" else "dropped"
            outcomes.append(_candidate_outcome(left.candidate, state, left.reason, counter))
    return tuple(outcomes)


def _by_origin(plain: Sequence[Outgoing], contents: Sequence[Outgoing]) -> dict[int, Outgoing]:
    """What is sent of each content that came in, before it was merged with its neighbours."""
    if plain is contents:
        return {item.origin: item for item in plain}
    whole = {item.origin for item in contents}
    left = whole.union(origin for item in contents for origin, _ in item.members)
    return {item.origin: item for item in plain if item.origin in left}


def _live(source: PackInput, fitted: Fitted, epoch: Epoch) -> Collection[int]:
    """The origins of the contents that a later call can still send."""
    positions = source.request.positions
    if not fitted.cut:
        return range(len(positions))
    live = frozenset(live_positions(epoch, positions[-1] + 1))
    return frozenset(at for at, position in enumerate(positions) if position in live)


def _content_outcome(
    source: PackInput,
    before: Outgoing,
    after: Outgoing | None,
    live: bool,
    human: int | None,
    fitted: Fitted,
    counter: CachedCounter,
) -> CandidateOutcome:
    raw = before.raw
    whole = before.tokens if before.content is raw else counter.content(raw)
    state, why = _became(before, after, live, fitted)
    sent = after.tokens if after is not None and after.tokens != whole else None
    layer: Layer = "task" if before.origin == human else "conversation"
    return content_outcome(
        content_id(source, before.origin), layer, speaker(raw), whole, counter.method, raw.digest, state, why, sent
    )


def _became(before: Outgoing, after: Outgoing | None, live: bool, fitted: Fitted) -> tuple[State, Reason | None]:
    """What became of a content, and why."""
    if after is None and live:
        return "hidden", fitted.reasons.get(before.origin, "duplicate")
    if after is None:
        return "dropped", fitted.reasons.get(before.origin, fitted.cut_reason)
    if before.origin in fitted.reasons:
        return "placeholder", fitted.reasons[before.origin]
    return ("extract", "window") if after.outcome == "extract" else ("kept", None)


@lru_cache(maxsize=20_000)
def content_outcome(
    name: str,
    layer: Layer,
    source: str,
    tokens: int,
    method: Accuracy,
    digest: str,
    state: State,
    reason: Reason | None,
    sent_tokens: int | None,
) -> CandidateOutcome:
    return CandidateOutcome(
        id=name,
        layer=layer,
        source=source,
        tokens=tokens,
        method=method,
        hash=digest,
        state=state,
        reason=reason,
        sent_tokens=sent_tokens,
    )


def speaker(content: Content) -> str:
    """Who said a content: ``user``, ``model``, a ``tool``, the model with ``calls``, or another agent by its name."""
    if content.agent:
        return content.agent
    if content.responses:
        return "tool"
    return "calls" if content.calls else content.role


def _candidate_outcome(
    candidate: Candidate, state: State, reason: Reason | None, counter: CachedCounter, sent_tokens: int | None = None
) -> CandidateOutcome:
    return CandidateOutcome(
        id=candidate.id,
        layer=candidate.layer,
        source=candidate.source,
        tokens=candidate.tokens or counter.count(candidate.text),
        method=counter.method,
        hash=candidate.digest,
        state=state,
        reason=reason,
        sent_tokens=sent_tokens,
        scores=candidate.scores,
        time=candidate.time,
        uri=candidate.uri,
        covers=candidate.covers,
        content_hash=candidate.content_hash,
    )


def _named_events(source: PackInput, fitted: Fitted) -> tuple[TruncationEvent, ...]:
    """The events with the names of the contents they concern."""
    extracts = tuple(content_id(source, item.origin) for item in fitted.items if item.outcome == "extract")
    human = source.request.human
    task = (content_id(source, human),) if human is not None else ()
    names = {("conversation", "emergency"): extracts, ("task", "emergency"): task}
    return tuple(
        event if event.item_ids else replace(event, item_ids=names.get((event.layer, event.stage), ()))
        for event in fitted.events
    )


def _spent(
    source: PackInput,
    policy: PackPolicy,
    carried: Carried,
    fitted: Fitted,
    shares: Shares,
    plain: Sequence[Outgoing],
    contents: Sequence[Outgoing],
    counter: CachedCounter,
) -> Allocation:
    """The allocation with what each layer really used.

    Args:
        plain: the contents before neighbours were merged.
    """
    used = carried.packed.used if carried.packed is not None else {}
    memory = _cost(fitted.memory) + used.get("memory", 0)
    evidence = _cost(fitted.evidence) + used.get("evidence", 0)
    human = source.request.human
    message_tokens = sum(one.tokens for one in plain if one.origin == human)
    said = sum(one.tokens for one in contents) - message_tokens
    packed = any(one.origin == human and one.outcome == "payload" for one in plain)
    inside = (
        summary_tokens(fitted.summary, policy, counter) if packed and policy.conversation.summary == "payload" else 0
    )
    real: dict[Layer, int] = {
        "system": carried.measured["system"],
        "tools": carried.measured["tools"],
        "task": max(0, message_tokens - memory - evidence - inside),
        "evidence": evidence,
        "memory": memory,
        "conversation": said + inside,
    }
    return spend(shares.allocation, real, lending=policy.budget.lending)


def _epoch(
    source: PackInput,
    policy: PackPolicy,
    tight: Tight,
    fitted: Fitted,
    packed: PackedMessage | None,
    reason: EpochReason | None,
) -> Epoch:
    before, request, carried = source.epoch, source.request, tight.carried
    changed = replace(
        before,
        number=before.number + (reason is not None),
        summary=fitted.summary,
        summary_place=fitted.summary_place if fitted.summary else 0,
        contract=carried.contract,
        trimmed=tuple(sorted(tight.scope.trimmed)),
        payloads=_payloads(carried, fitted, packed),
        marks=carried.marks,
        strategies=fitted.states,
        asked=source.asked,
        tools=tight.scope.kept or before.tools,
    )
    live = {item.raw.digest for item in fitted.items}
    extracts = {digest: ceiling for digest, ceiling in fitted.extracts.items() if digest in live}
    parts = {digest: kept for digest, kept in fitted.parts.items() if digest in live}
    changed = replace(changed, extracts=extracts, parts=parts)
    if not fitted.cut:
        return changed
    last = max(item.origin for item in fitted.cut)
    count = max(before.cut_count, request.positions[last] + 1)
    kept = [request.positions[item.origin] for item in fitted.items if request.positions[item.origin] < count]
    if request.positions[last] + 1 < count:
        return replace(changed, kept=as_ranges(kept))
    places = [(request.positions[item.origin], item) for item in carried.items]
    known = [(at, short(item.raw.digest)) for at, item in places if at < count]
    anchors = before.anchors or tuple(known[:1])
    return replace(
        changed,
        cut_count=count,
        cut_hash=request.contents[last].digest,
        anchors=(*anchors, *(one for one in known[-_NEW_ANCHORS:] if one not in anchors))[-_MOST_ANCHORS:],
        kept=as_ranges(kept),
    )


def _payloads(carried: Carried, fitted: Fitted, packed: PackedMessage | None) -> tuple[PackedMessage, ...]:
    """The packed messages that later calls send again: this invocation's, and earlier ones up to the next cut."""
    live = {item.raw.digest for item in fitted.items}
    past = () if fitted.made_cut else tuple(one for one in carried.past if one.of in live)
    return (*past, packed) if packed is not None else past


def _grown_head(source: PackInput, policy: PackPolicy, fitted: Fitted, counter: CachedCounter) -> int:
    """Tokens that the head of the request before begins with and this one's does, too: a summary that only grew."""
    before = source.epoch.summary
    if policy.conversation.summary != "head" or not before or not fitted.summary.startswith(before):
        return 0
    return counter.count(summary_message(before))


def _prefix(source: PackInput, sent: Sent, cut: bool, grown_head: int) -> Prefix:
    """What is in common with the request before.

    Args:
        grown_head: tokens in common within the first content, where that is a summary that grew.
    """
    if source.previous is None:
        return Prefix(shared_tokens=None, broken_by=None if source.epoch.number == 0 else "unknown")
    before, after = source.previous.blocks, sent.blocks
    pairs = enumerate(zip(before, after, strict=False))
    same = next((at for at, (a, b) in pairs if a.digest != b.digest), min(len(before), len(after)))
    shared = sum(block.tokens for block in after[:same])
    if cut and same == len(after) - len(sent.contents):
        shared += grown_head
    return Prefix(shared_tokens=shared, broken_by=_breaker(source, sent, cut) if same < len(before) else None)


def _breaker(source: PackInput, sent: Sent, cut: bool) -> PrefixBreak:
    before = source.previous
    assert before is not None
    if before.system.digest != sent.system.digest:
        return "system_changed"
    if [one.digest for one in before.tools] != [one.digest for one in sent.tools]:
        return "tools_changed"
    if cut:
        return "cut"
    if source.rewritten:
        return "history_rewritten"
    return "new_invocation" if source.first_call else "payload_changed"


def _faults(shares: Shares, fitted: Fitted, total: int) -> tuple[str, ...]:
    """What could not be done as asked."""
    over = total - shares.allocation.budget
    large = f"step_too_large: {shares.too_large}" if shares.too_large is not None else ""
    excess = f"{over} tokens over the input budget" if over > 0 and not fitted.degradations else ""
    return (large, *fitted.degradations, excess)


def _stages(
    carried: Carried, chosen: Chosen, shares: Shares, fitted: Fitted, packed: PackedMessage | None
) -> dict[str, JSON]:
    """What each stage gave besides the contents, whose part is in the running_hashes."""
    return {
        "count": dict(carried.measured),
        "retrieve": [[one.id for one in found.chosen] for found in (chosen.memory, chosen.evidence)],
        "allocate": [layer.final for layer in shares.allocation.layers.values()],
        "trim": [as_ranges(sorted(fitted.hidden)), fitted.states],
        "fit": [fitted.summary, [one.id for one in fitted.dropped], [item.raw.digest for item in fitted.cut]],
        "render": [packed.before, packed.after] if packed is not None else None,
    }
