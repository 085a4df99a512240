"""The outgoing request, normalized at the very end, and the account of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from aether_context.canonical import hash_text, short
from aether_context.conversation import normalize
from aether_context.conversation.content_json import content_of_parts
from aether_context.conversation.epoch import as_ranges, is_live
from aether_context.conversation.stable_prefix import PLACEHOLDER, STRIPPED_TAGS
from aether_context.conversation.strategy import summary_content
from aether_context.conversation.summary import summary_message
from aether_context.conversation.turns import units
from aether_context.evidence.record import READ, SEARCH
from aether_context.pack import (
    Block,
    Candidate,
    Content,
    Epoch,
    EpochReason,
    Form,
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


def _normalized(contents: Sequence[Outgoing], counter: PackCounter) -> tuple[Outgoing, ...]:
    """The contents with same-kind neighbours merged, each call answered once, and tags stripped.

    One that needs none of it stays the same object.
    """
    outgoing = []
    for normal in normalize([item.content for item in contents], strip_tags=STRIPPED_TAGS, empty=PLACEHOLDER):
        first = contents[normal.sources[0]]
        if normal.content is not first.content:
            first = Outgoing(
                content=normal.content,
                raw=first.raw,
                origin=first.origin,
                form="merged",
                tokens=counter.content(normal.content),
                members=tuple(_member(contents[index], place) for index, place in normal.members),
            )
        outgoing.append(first)
    return tuple(outgoing)


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
    source, scope, counter, packed = draft.input, draft.tools, draft.counter, draft.message.packed
    carried, history, account, uncounted = draft.carried, draft.history, draft.account, source.usage.uncounted_tokens
    raws = source.request.contents
    plain = _contents(draft)
    contents = _begun_by_user(draft, _normalized(plain, counter) if history.normalize else plain)
    sent = Sent(
        system=Block(hash_text(carried.system), draft.measured["system"] - uncounted),
        tools=tuple(
            Block(tool.digest, tokens) for tool, tokens in zip(scope.sent, counter.tools(scope.sent), strict=True)
        )
        + tuple(Block(hash_text(wire), counter.count(wire)) for wire in source.request.other_tools),
        contents=tuple(Block(item.content.digest, item.tokens) for item in contents),
    )
    reason = _reason(draft)
    epoch = _epoch(draft, reason)
    # What is sent of each content that came in, before it was merged with its neighbours.
    present_origins = {origin for item in contents for origin in (item.origin, *(origin for origin, _ in item.members))}
    rows = _rows(draft, {item.origin: item for item in plain if item.origin in present_origins})
    if history.cut:
        # What a strategy leaves out of this request alone does not come back either where a cut passed it.
        positions = source.request.positions
        gone = sum(rows[at].tokens for at, place in enumerate(positions) if not is_live(epoch, place))
        epoch = replace(epoch, cut_tokens=source.epoch.cut_tokens + gone)
    # The human message is of the task layer, and merged with a neighbour it is no item of its own any more.
    request_tokens = sum(item.tokens for item in plain if item.origin == draft.request_index)
    spoken = sum(item.tokens for item in contents) - request_tokens
    counted = sum(block.tokens for block in (sent.system, *sent.tools, *sent.contents))
    validity, invalid_reason = validity_of(source, packed)
    # The acceptance items whose proof the sent payloads hold.
    written = {item.raw.digest for item in plain if item.form == "payload"}
    covered = frozenset(item for message in epoch.payloads if message.of in written for item in message.covers)
    excess_tokens = counted + uncounted - draft.allocation.budget
    excess = f"{excess_tokens} tokens over the input budget" if excess_tokens > 0 and not account.degradations else ""
    problems = (*source.problems, scope.problem, account.too_large, *account.degradations, excess)
    payload_text = packed.text if packed is not None and packed.before else ""
    wires = (*(tool.wire for tool in scope.sent), *source.request.other_tools)
    calibration = source.usage.calibration
    anchored = calibration is not None and calibration.anchored and counter.method != "exact"
    return Pack(
        source=source,
        system=carried.system,
        tools=scope,
        contents=contents,
        sent=sent,
        allocation=spend(draft.allocation, {**draft.measured, **draft.payload_tokens, "conversation": spoken}),
        rows=rows,
        events=account.events,
        acts=account.acts,
        epoch=epoch,
        epoch_reason=reason,
        prefix=_prefix(draft, sent, contents),
        verdict=Verdict(
            validity=validity,
            invalid_reason=invalid_reason,
            evidence_needed=missing_evidence(source, covered, contents, raws),
            artifact_uris=addresses_in(source, carried.system, wires, contents, payload_text),
            problems=tuple(filter(None, problems)),
        ),
        tokens=RequestTokens(
            counted=counted,
            expected=counted if calibration is None else estimated(calibration, counted),
            whole_history=_whole_history_tokens(draft, rows),
            over_window=max(0, counted + uncounted - draft.allocation.spare_tokens - source.window),
            method="anchored" if anchored else counter.method,
        ),
        to_store=ToStore(
            chose=not carried.has_chosen,
            saved=draft.message.saved,
            summary_requests=account.summaries.summary_requests,
            counts=counter.counts,
            read=hash_text("\n".join([raw.digest for raw in raws])),
            sizes=hash_text("\n".join([str(row.tokens) for row in rows[: len(raws)]])),
            stages={
                "count": dict(draft.measured),
                "retrieve": [
                    [candidate.id for candidate in found.chosen] for found in (draft.found.memory, draft.found.evidence)
                ],
                "allocate": [layer.final for layer in draft.allocation.layers.values()],
                "trim": [
                    as_ranges(sorted(history.forms.keys() - history.cut - {item.origin for item in plain})),
                    history.states,
                ],
                "fit": [
                    history.summary,
                    [candidate.id for candidate in draft.chosen.dropped],
                    [raws[at].digest for at in sorted(history.cut)],
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
    chosen = draft.carried.changed == "tools_changed" and bool(draft.tools.scores)
    if draft.carried.changed is not None and not (draft.made_cut and chosen):
        return draft.carried.changed
    if draft.tools.trimmed != frozenset(draft.input.epoch.trimmed):
        return "tools_changed"
    if draft.by_hand and (draft.made_cut or draft.account.acts):
        return "by_hand"
    if draft.made_cut or draft.begins:
        cuts = [event.reason for event in draft.account.events if event.stage == "cut"]
        return _CUTS.get(cuts[-1], "high_water") if cuts else "high_water"
    return "replaced" if any(act.replaced for act in draft.account.acts) else None


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
    message = draft.message
    made_of = (draft.chosen, draft.step, draft.tools, message.request, message.largest, message.most_before)
    if message.made_of == made_of:
        return
    source, scope, counter, request_index = draft.input, draft.tools, draft.counter, draft.request_index
    packed, tokens = _message(draft), 0
    draft.message = message._replace(packed=packed, made_of=made_of)
    if request_index is not None:
        raw = source.request.contents[request_index]
        written = Outgoing(content=raw, raw=raw, origin=request_index, form="whole", tokens=counter.content(raw))
        if packed is not None and packed.before:
            content, members = packed_message(raw, request_index, packed, counter)
            written = written._replace(
                content=content, form="payload", tokens=counter.content(content), members=members
            )
        items = tuple(written if item.origin == request_index else item for item in draft.history.items)
        draft.history, tokens = draft.history._replace(items=items), written.tokens
    other_tools = source.request.other_tools
    system = counter.system(draft.carried.system, declares=bool(scope.sent or other_tools))
    draft.measured = {
        "system": system + source.usage.uncounted_tokens,
        "task": max(0, tokens - sum(draft.payload_tokens.values())),
        "tools": sum(counter.tools(scope.sent)) + sum(counter.count_all(other_tools)),
    }


def _message(draft: Draft) -> PackedMessage | None:
    """What this invocation makes of its human message, None where it is sent as it is."""
    source, policy, raw, packed = draft.input, draft.policy, draft.raw_human, draft.carried.packed
    if raw is None or source.host.passthrough_reason:
        return None
    if draft.carried.has_chosen and packed is not None and packed.before:
        return replace(_shorter(packed, draft.message.request), largest=draft.message.largest)
    if draft.carried.has_chosen and draft.message.request is None:
        return packed
    request = raw.text if draft.message.request is None else draft.message.request
    rendered = payload.render(
        step=draft.step,
        request=request,
        tools=draft.tools.listed,
        evidence=draft.chosen.evidence,
        memory=draft.chosen.memory,
        settings=policy.payload,
        explains=policy.payload.contract == "system" and not draft.carried.contract,
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
        largest=draft.message.largest,
    )
    if rendered is not None:
        before, after = _within(rendered, request, draft.message.most_before, draft.counter)
        standing = [left.candidate for left in draft.found.evidence.left if left.reason == "already_in_conversation"]
        text = before + after
        return replace(message, text=text, split=len(before), covers=covered_by(text, draft.chosen.evidence, standing))
    if draft.message.request is not None:
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
    counter, outgoing = draft.counter, list(draft.history.items)
    if draft.history.summary and draft.policy.conversation.summary_share:
        content = summary_content(draft.history.summary)
        summary_message_out = Outgoing(
            content=content, raw=content, origin=-1, form="summary", tokens=counter.content(content)
        )
        positions = draft.input.request.positions
        at = sum(positions[item.origin] < draft.history.summary_place for item in draft.history.items)
        for unit in reversed(units([item.content for item in draft.history.items])):
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
    sizes, counter, chosen = draft.counter.contents(draft.input.request.contents), draft.counter, draft.chosen
    rows = [_content_row(draft, at, tokens, sent.get(at)) for at, tokens in enumerate(sizes)]
    dropped_ids = {candidate.id for candidate in chosen.dropped}
    sent_tokens = {candidate.id: candidate.tokens for candidate in (*chosen.memory, *chosen.evidence)}
    for found in (draft.found.memory, draft.found.evidence):
        for candidate in found.chosen:
            if candidate.id in dropped_ids:
                rows.append(_candidate_row(candidate, "left_out", "over_allocation", counter))
            elif candidate.id in chosen.shortened:
                rows.append(_candidate_row(candidate, "extract", "over_allocation", counter, sent_tokens[candidate.id]))
            else:
                rows.append(_candidate_row(candidate, "whole", None, counter))
        rows += [_candidate_row(left.candidate, "left_out", left.reason, counter) for left in found.left]
    return tuple(rows)


_known_row = lru_cache(maxsize=20_000)(Row)  # the rows of a session are made again at each of its calls


def _content_row(draft: Draft, origin: int, tokens: int, sent: Outgoing | None) -> Row:
    raw, change, request = draft.input.request.contents[origin], draft.history.forms.get(origin), draft.input.request
    form: Form = "whole" if change is None else change.form
    reason: Reason | None = None if change is None else change.reason
    uri = ""
    if origin in draft.history.cut and draft.history.summary:
        form = "summarized"
    elif sent is None and form != "told":
        # What was not left out for another reason repeats an answer to the same call.
        form, reason = "left_out", reason or "duplicate"
    elif change is None and (uri := offloaded_to(raw)):
        form = "offloaded"
    return _known_row(
        id=content_name(request.positions[origin], raw.digest),
        layer="task" if origin == request.request_index else "conversation",
        source=speaker(raw),
        tokens=tokens,
        method=draft.counter.method,
        hash=raw.digest,
        form=form,
        reason=reason,
        sent_tokens=sent.tokens if sent is not None and sent.tokens != tokens else None,
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


def _forms(draft: Draft) -> dict[str, ShortForm]:
    """What stands for contents that are still sent; where contents are cut, those after them are counted anew."""
    forms = {item.origin: draft.history.forms.get(item.origin) for item in draft.history.items}
    contents = draft.input.request.contents
    live = [at for at in range(len(contents)) if at not in draft.history.cut] if any(forms.values()) else []
    keys = dict(zip(live, occurrence_keys([contents[at] for at in live]), strict=True))
    return {
        keys[origin]: ("told" if change.form == "told" else "extract", change.tokens)
        for origin, change in forms.items()
        if change is not None and change.tokens is not None
    }


def _epoch(draft: Draft, reason: EpochReason | None) -> Epoch:
    before, request, packed = draft.input.epoch, draft.input.request, draft.message.packed
    live = {item.raw.digest for item in draft.history.items}
    # Packed messages that later calls send again: this invocation's, and earlier ones up to the next cut.
    past = () if draft.made_cut else tuple(message for message in draft.carried.past if message.of in live)
    changed = replace(
        before,
        number=before.number + (reason is not None),
        summary=draft.history.summary,
        summary_place=draft.history.summary_place if draft.history.summary else 0,
        contract=draft.carried.contract,
        trimmed=tuple(sorted(draft.tools.trimmed)),
        payloads=(*past, packed) if packed is not None else past,
        marks=draft.carried.marks,
        strategies=draft.history.states,
        asked=draft.input.host.asked,
        tools=draft.tools.kept or before.tools,
        forms=_forms(draft),
    )
    if not draft.history.cut:
        return changed
    last = max(draft.history.cut)
    count = max(before.cut_count, request.positions[last] + 1)
    kept_positions = [
        request.positions[item.origin] for item in draft.history.items if request.positions[item.origin] < count
    ]
    if request.positions[last] + 1 < count:
        return replace(changed, kept=as_ranges(kept_positions))
    places = zip(request.positions, request.contents, strict=True)
    known = [(at, short(content.digest)) for at, content in places if at < count]
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
    was_cut = draft.made_cut or bool(draft.account.acts)
    before, after = previous.blocks, sent.blocks
    pairs = enumerate(zip(before, after, strict=False))
    shared_blocks = next((at for at, (a, b) in pairs if a.digest != b.digest), min(len(before), len(after)))
    shared = sum(block.tokens for block in after[:shared_blocks])
    summary, head = source.epoch.summary, len(after) - len(sent.contents)
    grown = (
        bool(summary)
        and draft.history.summary.startswith(summary)
        and source.epoch.summary_place == draft.history.summary_place
    )
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
