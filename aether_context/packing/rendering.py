"""The outgoing request, normalized at the very end, and the account of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from aether_context.canonical import hash_text, short
from aether_context.conversation import Normal, normalize
from aether_context.conversation.content_json import content_of_parts
from aether_context.conversation.epoch import as_ranges, is_live
from aether_context.conversation.stable_prefix import PLACEHOLDER, STRIPPED_TAGS
from aether_context.conversation.strategy import summary_content
from aether_context.conversation.summary import summary_message
from aether_context.conversation.turns import units
from aether_context.evidence.record import READ, SEARCH
from aether_context.pack import (
    Accuracy,
    Allocation,
    Block,
    Candidate,
    Content,
    Epoch,
    EpochReason,
    Form,
    Layer,
    Outgoing,
    Pack,
    PackedMessage,
    Prefix,
    PrefixBreak,
    Reason,
    RequestTokens,
    Row,
    Sent,
    ShortForm,
    ToStore,
    Verdict,
    content_name,
)
from aether_context.packing import payload
from aether_context.packing.allocation import spend
from aether_context.packing.carryover import indented, packed_message, plan_digest
from aether_context.packing.draft import Draft, occurrence_keys
from aether_context.packing.payload import addresses_in, covered_by, missing_evidence, offloaded_to, validity_of
from aether_context.text.shorten import shorten
from aether_context.tokens.cache import PackCounter
from aether_context.usage.calibration import estimated

# The outgoing contents, normalized at the very end, so that every stage before sees the host's own.


def normalized(contents: Sequence[Outgoing], counter: PackCounter) -> tuple[Outgoing, ...]:
    """The contents with same-kind neighbours merged, each call answered once, and tags stripped.

    One that needs none of it stays the same object.
    """
    normal_contents = normalize([item.content for item in contents], strip_tags=STRIPPED_TAGS, empty=PLACEHOLDER)
    return tuple(_outgoing(contents, normal, counter) for normal in normal_contents)


def _outgoing(contents: Sequence[Outgoing], normal: Normal, counter: PackCounter) -> Outgoing:
    first = contents[normal.sources[0]]
    if normal.content is first.content:
        return first
    return Outgoing(
        content=normal.content,
        raw=first.raw,
        origin=first.origin,
        form="merged",
        tokens=counter.content(normal.content),
        members=tuple(_member(contents[index], place) for index, place in normal.members),
    )


def _member(item: Outgoing, place: int) -> tuple[int, int]:
    """Where a part of an outgoing content comes from."""
    return item.members[place] if item.members else (item.origin, place)


# The outgoing request and the account of it.

_NEW_ANCHORS = 4
_MOST_ANCHORS = 8
_LEAST_HEAD = 32
_CUTS: Mapping[Reason, EpochReason] = {"byte_net": "byte_net", "strategy": "strategy"}
"""Why an epoch begins with a cut for a reason, where that is not that a mark was passed."""


def render(draft: Draft) -> Pack:
    """Puts the contents in order, and writes down what became of each of them and of every candidate."""
    source, scope, counter = draft.input, draft.tools, draft.counter
    packed = draft.message
    plain = _contents(draft)
    contents = _begun_by_user(draft, normalized(plain, counter) if draft.normalize else plain)
    sent = Sent(
        system=Block(hash_text(draft.system), draft.measured["system"] - draft.uncounted_tokens),
        tools=tuple(
            Block(tool.digest, tokens) for tool, tokens in zip(scope.sent, counter.tools(scope.sent), strict=True)
        )
        + tuple(Block(hash_text(wire), counter.count(wire)) for wire in source.request.other_tools),
        contents=tuple(Block(item.content.digest, item.tokens) for item in contents),
    )
    reason = _reason(draft)
    epoch = _epoch(draft, packed, reason)
    # What is sent of each content that came in, before it was merged with its neighbours.
    present_origins = {origin for item in contents for origin in (item.origin, *(origin for origin, _ in item.members))}
    rows = _rows(draft, {item.origin: item for item in plain if item.origin in present_origins})
    if draft.cut:
        # What a strategy leaves out of this request alone does not come back either where a cut passed it.
        positions = source.request.positions
        gone = sum(rows[at].tokens for at, place in enumerate(positions) if not is_live(epoch, place))
        epoch = replace(epoch, cut_tokens=source.epoch.cut_tokens + gone)
    counted = sum(block.tokens for block in (sent.system, *sent.tools, *sent.contents))
    validity, invalid_reason = validity_of(source, packed)
    # The acceptance items whose proof the sent payloads hold.
    written = {item.raw.digest for item in plain if item.form == "payload"}
    covered = frozenset(item for message in epoch.payloads if message.of in written for item in message.covers)
    excess_tokens = counted + draft.uncounted_tokens - draft.shares.budget
    excess = f"{excess_tokens} tokens over the input budget" if excess_tokens > 0 and not draft.degradations else ""
    too_large = f"step_too_large: {draft.too_large}" if draft.too_large is not None else ""
    payload_text = packed.text if packed is not None and packed.before else ""
    wires = (*(tool.wire for tool in scope.sent), *source.request.other_tools)
    calibration = source.usage.calibration
    anchored = calibration is not None and calibration.anchored and counter.method != "exact"
    return Pack(
        source=source,
        system=draft.system,
        tools=scope,
        contents=contents,
        sent=sent,
        allocation=_spent(draft, plain, contents),
        rows=rows,
        events=draft.events,
        acts=draft.acts,
        epoch=epoch,
        epoch_reason=reason,
        prefix=_prefix(draft, sent, contents),
        verdict=Verdict(
            validity=validity,
            invalid_reason=invalid_reason,
            evidence_needed=missing_evidence(source, covered, contents, source.request.contents),
            artifact_uris=addresses_in(source, draft.system, wires, contents, payload_text),
            problems=tuple(filter(None, (*source.problems, scope.problem, too_large, *draft.degradations, excess))),
        ),
        tokens=RequestTokens(
            counted=counted,
            expected=counted if calibration is None else estimated(calibration, counted),
            whole_history=_whole_history_tokens(draft, rows),
            over_window=max(0, counted + draft.uncounted_tokens - draft.shares.spare_tokens - source.window),
            method="anchored" if anchored else counter.method,
        ),
        to_store=ToStore(
            chose=not draft.keeps,
            saved=draft.saved,
            summary_requests=draft.summaries.summary_requests,
            counts=counter.counts,
            read=hash_text("\n".join([item.raw.digest for item in draft.incoming])),
            sizes=hash_text("\n".join([str(row.tokens) for row in rows[: len(draft.incoming)]])),
            stages={
                "count": dict(draft.measured),
                "retrieve": [
                    [candidate.id for candidate in found.chosen] for found in (draft.found_memory, draft.found_evidence)
                ],
                "allocate": [layer.final for layer in draft.shares.layers.values()],
                "trim": [
                    as_ranges(sorted(draft.forms.keys() - draft.cut - {item.origin for item in plain})),
                    draft.states,
                ],
                "fit": [
                    draft.summary,
                    [candidate.id for candidate in draft.dropped],
                    [draft.incoming[at].raw.digest for at in sorted(draft.cut)],
                ],
                "render": [packed.before, packed.after] if packed is not None else None,
            },
        ),
    )


def _whole_history_tokens(draft: Draft, rows: Sequence[Row]) -> int:
    """Counted tokens of what the host would have sent by itself: the whole history with whole results, and all
    declarations but those that read evidence."""
    source, counter = draft.input, draft.counter
    request = source.request
    tools = [tool for tool in request.tools if tool.name not in (READ, SEARCH)]
    system = counter.system(request.system, declares=bool(tools or request.other_tools))
    declarations = sum(counter.tools(tools)) + sum(counter.count_all(request.other_tools))
    contents = sum(row.tokens for row in rows[: len(request.contents)])
    return system + declarations + source.epoch.cut_tokens + contents + source.usage.offloaded_tokens


def _reason(draft: Draft) -> EpochReason | None:
    """Why an epoch begins with this pack, None where none does."""
    chosen = draft.changed == "tools_changed" and bool(draft.tools.scores)
    if draft.changed is not None and not (draft.made_cut and chosen):
        return draft.changed
    if draft.tools.trimmed != frozenset(draft.input.epoch.trimmed):
        return "tools_changed"
    if draft.by_hand and (draft.made_cut or draft.acts):
        return "by_hand"
    if draft.made_cut or draft.begins:
        cuts = [event.reason for event in draft.events if event.stage == "cut"]
        return _CUTS.get(cuts[-1], "high_water") if cuts else "high_water"
    return "replaced" if any(act.replaced for act in draft.acts) else None


def _within(rendered: payload.Payload, request: str, ceiling: int | None, counter: PackCounter) -> tuple[str, str]:
    """The payload's two halves; all before the request as an extract of at most ``ceiling`` tokens.

    The second half, with the acceptance list, stays whole while anything of the first finds room beside it.
    """
    if ceiling is None:
        return rendered.before, rendered.after

    def cut(text: str, tokens: int, query: str = "") -> str:
        # Pieces of a long line are indented, too: none of them can stand for a header.
        fenced = "\n".join(map(indented, text.rstrip().split("\n")))
        # What is counted in pieces takes a token or two more as one text.
        return f"{shorten(fenced, tokens - 2, counter=counter, query=query).text}\n"

    checklist = rendered.after.removesuffix(request)
    room = ceiling - counter.count(checklist)
    if room >= _LEAST_HEAD:
        return cut(rendered.before, room), rendered.after
    return cut(rendered.before + checklist, ceiling, query=checklist), request


def write_payload(draft: Draft) -> None:
    """Writes the payload of what is chosen into the human message, and measures the layers that are given with it.

    What is counted is the message as it is sent, so nothing of a payload has to be foreseen: the task layer is all of
    it but its memories and its evidence. Where all that it is made of is as it was, the message stands.
    """
    made_of = (
        draft.memory, draft.evidence, draft.step, draft.tools, draft.request, draft.largest, draft.task_ceiling,
    )  # fmt: skip
    if draft.message_of == made_of:
        return
    draft.message_of = made_of
    source, scope, counter, request_index = draft.input, draft.tools, draft.counter, draft.request_index
    draft.message = message = _message(draft)
    tokens = 0
    if request_index is not None:
        raw = source.request.contents[request_index]
        written = Outgoing(content=raw, raw=raw, origin=request_index, form="whole", tokens=counter.content(raw))
        if message is not None and message.before:
            content, members = packed_message(raw, request_index, message, counter)
            written = written._replace(
                content=content, form="payload", tokens=counter.content(content), members=members
            )
        draft.items = tuple(written if item.origin == request_index else item for item in draft.items)
        tokens = written.tokens
    other_tools = source.request.other_tools
    draft.measured = {
        "system": counter.system(draft.system, declares=bool(scope.sent or other_tools)) + draft.uncounted_tokens,
        "task": max(0, tokens - sum(draft.payload_tokens.values())),
        "tools": sum(counter.tools(scope.sent)) + sum(counter.count_all(other_tools)),
    }


def _message(draft: Draft) -> PackedMessage | None:
    """What this invocation makes of its human message, None where it is sent as it is."""
    source, policy, raw, packed = draft.input, draft.policy, draft.raw_human, draft.packed
    if raw is None or source.host.passthrough_reason:
        return None
    if draft.keeps and packed is not None and packed.before:
        return replace(_shorter(packed, draft.request), largest=draft.largest)
    if draft.keeps and draft.request is None:
        return packed
    request = raw.text if draft.request is None else draft.request
    rendered = payload.render(
        step=draft.step,
        request=request,
        tools=draft.tools.listed,
        evidence=draft.evidence,
        memory=draft.memory,
        settings=policy.payload,
        explains=draft.explains_in_payload,
        from_agent=source.request.from_agent,
    )
    message = PackedMessage(
        of=raw.digest,
        invocation=source.identity.invocation,
        text="",
        split=0,
        used=draft.payload_tokens,
        place=source.request.positions[draft.request_index or 0],
        plan=plan_digest(source),
        largest=draft.largest,
    )
    if rendered is not None:
        before, after = _within(rendered, request, draft.task_ceiling, draft.counter)
        standing = [left.candidate for left in draft.found_evidence.left if left.reason == "already_in_conversation"]
        text = before + after
        return replace(message, text=text, split=len(before), covers=covered_by(text, draft.evidence, standing))
    if draft.request is not None:
        return replace(message, text=request, split=len(request), used={})
    # What was handed over may change within an invocation: this says that the choice for it is made.
    return replace(message, used={}) if raw.agent else None


def _shorter(packed: PackedMessage, request: str | None) -> PackedMessage:
    """What an earlier call of this invocation made of the human message, with a request that is shortened since.

    The rest of it stays as it was: what was chosen and tightened then is not chosen anew here.
    """
    if request is None:
        return packed
    if not packed.after:
        return replace(packed, text=request, split=len(request))
    answered = payload.answered(packed.after) or packed.after
    return replace(packed, text=packed.before + packed.after.removesuffix(answered) + request)


def _contents(draft: Draft) -> tuple[Outgoing, ...]:
    """What is sent, the summary in its place."""
    counter, outgoing = draft.counter, list(draft.items)
    if draft.summary and draft.policy.conversation.summary_share:
        content = summary_content(draft.summary)
        summary_message_out = Outgoing(
            content=content, raw=content, origin=-1, form="summary", tokens=counter.content(content)
        )
        positions = draft.input.request.positions
        at = sum(positions[item.origin] < draft.summary_place for item in draft.items)
        for unit in reversed(units([item.content for item in draft.items])):
            if unit.indices[0] < at <= unit.indices[-1]:  # an exchange is never parted
                at = unit.indices[0]
        outgoing.insert(at, summary_message_out)
    return tuple(outgoing)


def _begun_by_user(draft: Draft, contents: tuple[Outgoing, ...]) -> tuple[Outgoing, ...]:
    """The contents, the first of them a user's message: Gemini and Claude refuse a request that the model begins.

    ADK's own compaction puts its summary first, as the model's.
    """
    first = contents[0] if contents and not draft.input.host.passthrough_reason else None
    texts = [at for at, part in enumerate(first.content.parts) if part.kind == "text"] if first is not None else []
    if first is None or first.content.role != "model" or first.content.calls or not texts:
        return contents
    content = content_of_parts("user", [first.content.parts[at] for at in texts])
    members = tuple(_member(first, at) for at in texts)
    made = first._replace(content=content, form="merged", tokens=draft.counter.content(content), members=members)
    return (made, *contents[1:])


def _rows(draft: Draft, sent: Mapping[int, Outgoing]) -> tuple[Row, ...]:
    """A row for each content that came in, in order, then one for each other candidate."""
    rows = [_content_row(draft, before, sent.get(before.origin)) for before in draft.incoming]
    counter, dropped_ids = draft.counter, {candidate.id for candidate in draft.dropped}
    shortened_tokens = {
        candidate.id: candidate.tokens
        for candidate in (*draft.memory, *draft.evidence)
        if candidate.id in draft.shortened
    }
    for found in (draft.found_memory, draft.found_evidence):
        for candidate in found.chosen:
            form: Form = (
                "left_out" if candidate.id in dropped_ids else "extract" if candidate.id in draft.shortened else "whole"
            )
            reason: Reason | None = "over_allocation" if form != "whole" else None
            rows.append(_candidate_row(candidate, form, reason, counter, shortened_tokens.get(candidate.id)))
        rows += [_candidate_row(left.candidate, "left_out", left.reason, counter) for left in found.left]
    return tuple(rows)


def _content_row(draft: Draft, incoming: Outgoing, sent: Outgoing | None) -> Row:
    raw, origin, counter = incoming.raw, incoming.origin, draft.counter
    tokens = incoming.tokens if incoming.content is raw else counter.content(raw)
    change = draft.forms.get(origin)
    form: Form = "whole" if change is None else change.form
    reason: Reason | None = None if change is None else change.reason
    uri = ""
    if origin in draft.cut and draft.summary:
        form = "summarized"
    elif sent is None and form != "told":
        # What was not left out for another reason repeats an answer to the same call.
        form, reason = "left_out", reason or "duplicate"
    elif change is None and (uri := offloaded_to(raw)):
        form = "offloaded"
    layer: Layer = "task" if origin == draft.input.request.request_index else "conversation"
    sent_tokens = sent.tokens if sent is not None and sent.tokens != tokens else None
    place = draft.input.request.positions[origin]
    return _row(place, raw.digest, speaker(raw), tokens, counter.method, layer, form, reason, sent_tokens, uri)


@lru_cache(maxsize=20_000)  # the rows of a session are made again at each of its calls
def _row(
    place: int,
    digest: str,
    source: str,
    tokens: int,
    method: Accuracy,
    layer: Layer,
    form: Form,
    reason: Reason | None,
    sent_tokens: int | None,
    uri: str,
) -> Row:
    return Row(
        id=content_name(place, digest),
        layer=layer,
        source=source,
        tokens=tokens,
        method=method,
        hash=digest,
        form=form,
        reason=reason,
        sent_tokens=sent_tokens,
        uri=uri,
    )


def speaker(content: Content) -> str:
    """Who said a content: ``user``, ``model``, a ``tool``, the model with ``calls``, or another agent by its name."""
    if content.agent:
        return content.agent
    if content.responses:
        return "tool"
    return "calls" if content.calls else content.role


def _candidate_row(
    candidate: Candidate, form: Form, reason: Reason | None, counter: PackCounter, sent_tokens: int | None = None
) -> Row:
    return Row(
        id=candidate.id,
        layer=candidate.layer,
        source=candidate.source,
        tokens=candidate.tokens or counter.count(candidate.text),
        method=counter.method,
        hash=candidate.digest,
        form=form,
        reason=reason,
        sent_tokens=sent_tokens,
        scores=candidate.scores,
        time=candidate.time,
        uri=candidate.uri,
        covers=candidate.covers,
        content_hash=candidate.content_hash,
    )


def _spent(draft: Draft, plain: Sequence[Outgoing], contents: Sequence[Outgoing]) -> Allocation:
    """The allocation with what each layer really used.

    Args:
        plain: the contents before neighbours were merged.
    """
    request_tokens = sum(item.tokens for item in plain if item.origin == draft.request_index)
    spoken = sum(item.tokens for item in contents) - request_tokens
    return spend(draft.shares, {**draft.measured, **draft.payload_tokens, "conversation": spoken})


def _forms(draft: Draft) -> dict[str, ShortForm]:
    """What stands for contents that are still sent; where contents are cut, those after them are counted anew."""
    forms = {item.origin: draft.forms.get(item.origin) for item in draft.items}
    live = [at for at in range(len(draft.incoming)) if at not in draft.cut]
    keys = (
        dict(zip(live, occurrence_keys([draft.incoming[at].raw for at in live]), strict=True))
        if any(forms.values())
        else {}
    )
    return {
        keys[origin]: ("told" if change.form == "told" else "extract", change.tokens)
        for origin, change in forms.items()
        if change is not None and change.tokens is not None
    }


def _epoch(draft: Draft, packed: PackedMessage | None, reason: EpochReason | None) -> Epoch:
    before, request = draft.input.epoch, draft.input.request
    live = {item.raw.digest for item in draft.items}
    # Packed messages that later calls send again: this invocation's, and earlier ones up to the next cut.
    past = () if draft.made_cut else tuple(message for message in draft.past if message.of in live)
    changed = replace(
        before,
        number=before.number + (reason is not None),
        summary=draft.summary,
        summary_place=draft.summary_place if draft.summary else 0,
        contract=draft.contract,
        trimmed=tuple(sorted(draft.tools.trimmed)),
        payloads=(*past, packed) if packed is not None else past,
        marks=draft.epoch_marks,
        strategies=draft.states,
        asked=draft.input.host.asked,
        tools=draft.tools.kept or before.tools,
        forms=_forms(draft),
    )
    if not draft.cut:
        return changed
    last = max(draft.cut)
    count = max(before.cut_count, request.positions[last] + 1)
    kept_positions = [request.positions[item.origin] for item in draft.items if request.positions[item.origin] < count]
    if request.positions[last] + 1 < count:
        return replace(changed, kept=as_ranges(kept_positions))
    places = [(request.positions[item.origin], item) for item in draft.incoming]
    known = [(at, short(item.raw.digest)) for at, item in places if at < count]
    anchors = before.anchors or tuple(known[:1])
    return replace(
        changed,
        cut_count=count,
        cut_hash=request.contents[last].digest,
        anchors=(*anchors, *(anchor for anchor in known[-_NEW_ANCHORS:] if anchor not in anchors))[-_MOST_ANCHORS:],
        kept=as_ranges(kept_positions),
    )


def _prefix(draft: Draft, sent: Sent, contents: Sequence[Outgoing]) -> Prefix:
    """What is in common with the request before, and what ended that."""
    source, previous = draft.input, draft.input.previous.sent
    if previous is None:
        return Prefix(shared_tokens=None, broken_by=None if source.epoch.number == 0 else "unknown")
    was_cut = draft.made_cut or bool(draft.acts)
    before, after = previous.blocks, sent.blocks
    pairs = enumerate(zip(before, after, strict=False))
    shared_blocks = next((at for at, (a, b) in pairs if a.digest != b.digest), min(len(before), len(after)))
    shared = sum(block.tokens for block in after[:shared_blocks])
    summary, head = source.epoch.summary, len(after) - len(sent.contents)
    grown = bool(summary) and draft.summary.startswith(summary) and source.epoch.summary_place == draft.summary_place
    if was_cut and grown and head <= shared_blocks < len(after) and contents[shared_blocks - head].form == "summary":
        # What ends the common prefix is a summary that only grew.
        shared += draft.counter.count(summary_message(summary))
    broken_by: PrefixBreak | None = None
    if shared_blocks < len(before):
        if previous.system.digest != sent.system.digest:
            broken_by = "system_changed"
        elif [tool.digest for tool in previous.tools] != [tool.digest for tool in sent.tools]:
            broken_by = "tools_changed"
        elif was_cut:
            broken_by = "cut"
        elif source.request.rewritten:
            broken_by = "history_rewritten"
        else:
            broken_by = "new_invocation" if source.request.first_call else "payload_changed"
    return Prefix(shared_tokens=shared, broken_by=broken_by)
