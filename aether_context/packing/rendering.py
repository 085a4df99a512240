"""The outgoing request, normalized at the very end, and the account of it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import compress
from operator import attrgetter

from aether_context.canonical import hash_text, short
from aether_context.conversation import normalize, strategies_of
from aether_context.conversation.content_json import content_of_parts
from aether_context.conversation.epoch import as_ranges, is_live
from aether_context.conversation.strategy import summary_content
from aether_context.conversation.summary import summary_message
from aether_context.conversation.turns import units
from aether_context.evidence.record import READERS
from aether_context.pack import (
    Accuracy,
    Block,
    Candidate,
    Content,
    ContentForm,
    Epoch,
    EpochReason,
    Form,
    Outgoing,
    Pack,
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
    values_of,
)
from aether_context.packing.allocation import spend
from aether_context.packing.draft import Draft, occurrence_keys
from aether_context.packing.epoch_state import without_unseen
from aether_context.packing.payload import addresses_in, missing_evidence, offloaded_to, validity_of
from aether_context.tokens.cache import PackCounter, shared_length
from aether_context.usage.calibration import estimated

_TOKENS, _DIGEST, _ORIGIN, _FORM = map(attrgetter, ("tokens", "digest", "origin", "form"))

# The outgoing contents, normalized at the very end, so that every stage before sees the host's own.


def _normalized(contents: Sequence[Outgoing], counter: PackCounter) -> tuple[Outgoing, ...]:
    """The contents with same-kind neighbours merged, each call answered once, and tags stripped; the summary stays.

    One that needs none of it stays the same object.
    """
    at = next((at for at, item in enumerate(contents) if item.form == "summary"), None)
    if at is not None:
        return (*_normalized(contents[:at], counter), contents[at], *_normalized(contents[at + 1 :], counter))
    outgoing = []
    for normal in normalize([item.content for item in contents]):
        first = contents[normal.sources[0]]
        if normal.content is not first.content:
            first = first._replace(
                content=normal.content,
                form="merged",
                tokens=counter.content(normal.content),
                members=tuple(_member(contents[index], part_at) for index, part_at in normal.members),
            )
        outgoing.append(first)
    return tuple(outgoing)


def _member(item: Outgoing, part_at: int) -> tuple[int, int]:
    """The content and the part that a part of an outgoing content comes from."""
    return item.members[part_at] if item.members else (item.origin, part_at)


_NEW_ANCHORS = 4
_MOST_ANCHORS = 8
_CUTS: Mapping[Reason, EpochReason] = {"byte_net": "byte_net", "strategy": "strategy"}
"""Why an epoch begins with a cut for a reason, where that is not that a mark was passed."""


def render_pack(draft: Draft) -> Pack:
    """Puts the contents in order, and writes down what became of each of them and of every candidate."""
    source, counter, account = draft.input, draft.counter, draft.account
    plain = _contents(draft)
    contents = _normalized(plain, counter) if draft.history.normalize else plain
    sent_request = _in_blocks(draft, contents)
    reason = _reason(draft)
    last_request = sent_request.beginning() if source.binds_thoughts else (0, "")
    epoch = replace(_epoch(draft, reason), last_request=last_request)
    # What is sent of each content that came in, before it was merged with its neighbours.
    present = plain
    if draft.history.normalize:
        origins = {origin for item in contents for origin in (item.origin, *(origin for origin, _ in item.members))}
        present = tuple(item for item in plain if item.origin in origins)
    rows = _rows(draft, present)
    if draft.history.cut:
        # What a strategy leaves out of this request alone does not come back either where a cut passed it.
        raws, positions = source.request.contents, source.request.positions
        dead = [at for at, position in enumerate(positions) if not is_live(epoch, position)]
        newly_cut_tokens = sum(rows[at].tokens for at in dead if not _of_readers(raws[at]))
        epoch = replace(epoch, cut_tokens=source.epoch.cut_tokens + newly_cut_tokens)
    # The human message is of the task layer, and merged with a neighbour it is no item of its own any more.
    request_index = source.request.request_index
    request_tokens = next((item.tokens for item in reversed(plain) if item.origin == request_index), 0)
    conversation_tokens = sum(map(_TOKENS, contents)) - request_tokens
    tokens = _request_tokens(draft, sent_request)
    excess = tokens.counted + source.usage.uncounted_tokens - draft.allocation.budget
    return Pack(
        source=source,
        system=draft.epoch.system,
        tools=draft.tools,
        contents=contents,
        sent=sent_request,
        allocation=spend(
            draft.allocation, {**draft.measured, **draft.payload_tokens, "conversation": conversation_tokens}
        ),
        rows=rows,
        events=account.events,
        acts=account.acts,
        epoch=epoch,
        epoch_reason=reason,
        prefix=_prefix(draft, sent_request, contents),
        verdict=_verdict(draft, contents, epoch, excess),
        tokens=tokens,
        framing_tokens=sum(draft.columns.extend("framing", counter.frames, contents)),
        to_store=_to_store(draft, plain),
    )


def _in_blocks(draft: Draft, contents: tuple[Outgoing, ...]) -> Sent:
    """The request in blocks, each with its tokens."""
    scope, counter = draft.tools, draft.counter
    return Sent(
        system=Block(hash_text(draft.epoch.system), draft.measured["system"] - draft.input.usage.uncounted_tokens),
        tools=(
            *map(Block, (tool.digest for tool in scope.sent), counter.tools(scope.sent)),
            *(Block(hash_text(wire), counter.count(wire)) for wire in draft.input.request.other_tools),
        ),
        contents=draft.columns.extend(
            "block", lambda new: [Block(item.content.digest, item.tokens) for item in new], contents
        ),
    )


def _request_tokens(draft: Draft, sent_request: Sent) -> RequestTokens:
    counted = sum(map(_TOKENS, sent_request.blocks))
    calibration, method = draft.input.usage.calibration, draft.counter.method
    expected = estimated(calibration, counted)
    anchored = calibration is not None and calibration.anchored and method != "exact"
    return RequestTokens(
        counted=counted,
        expected=expected,
        whole_history=_whole_history_tokens(draft),
        over_window=max(0, expected - draft.input.window),
        method="anchored" if anchored else method,
    )


def _to_store(draft: Draft, plain: Sequence[Outgoing]) -> ToStore:
    """What the store keeps of how a pack was made, by its stages."""
    history, raws, packed_form = draft.history, draft.input.request.contents, draft.message.packed_form
    rankings = (draft.rankings.memory, draft.rankings.evidence)
    return ToStore(
        chose=not draft.epoch.has_chosen,
        saved=draft.message.saved,
        summary_requests=draft.account.summaries.summary_requests,
        counts=draft.counter.counts,
        stages={
            "count": dict(draft.measured),
            "retrieve": [[candidate.id for candidate in ranking.chosen] for ranking in rankings],
            "allocate": [layer.final for layer in draft.allocation.layers.values()],
            "trim": [
                as_ranges((history.forms.keys() - history.cut).difference(map(_ORIGIN, plain))),
                history.states,
            ],
            "fit": [
                history.summary,
                [candidate.id for candidate in draft.selected.dropped],
                [raws[at].digest for at in sorted(history.cut)],
            ],
            "render": [packed_form.before, packed_form.after] if packed_form is not None else None,
        },
    )


def _verdict(draft: Draft, contents: tuple[Outgoing, ...], epoch: Epoch, excess: int) -> Verdict:
    """Judges the request for its step, and lists what was not done as asked; ``excess`` are tokens over the budget."""
    source, account, packed_form = draft.input, draft.account, draft.message.packed_form
    validity, invalid_reason = validity_of(source, packed_form)
    # The acceptance items whose proof the sent payloads hold.
    written = {item.raw.digest for item in draft.history.items if item.form == "payload"}
    covered = frozenset(item for message in epoch.payloads if message.of in written for item in message.covers)
    problems = [*source.problems, draft.tools.problem, account.too_large, *account.degradations]
    if excess > 0 and not account.degradations:
        problems.append(f"{excess} tokens over the input budget")
    return Verdict(
        validity=validity,
        invalid_reason=invalid_reason,
        evidence_needed=missing_evidence(source, covered, contents),
        artifact_uris=addresses_in(draft, contents),
        problems=tuple(filter(None, problems)),
    )


def _whole_history_tokens(draft: Draft) -> int:
    """Counted tokens of what the host would have sent by itself: the whole history with whole results, and all
    declarations, but for the tools that read evidence, their calls and what they gave."""
    # A sum, since every content is counted and an epoch keeps the tokens of what cuts took; to add it up later would
    # take the texts of every pack of the session.
    source, counter = draft.input, draft.counter
    request = source.request
    tools = [tool for tool in request.tools if tool.name not in READERS]
    head = sum(counter.head(request.system, tools, request.other_tools))

    def without_reading(contents: Sequence[Content], sizes: Sequence[int]) -> list[int]:
        pairs = zip(contents, sizes, strict=True)
        return [0 if _of_readers(content) else tokens for content, tokens in pairs]

    contents = sum(draft.columns.extend("host tokens", without_reading, request.contents, draft.raw_tokens))
    return head + source.epoch.cut_tokens + contents + source.usage.offloaded_tokens


def _of_readers(content: Content) -> bool:
    """Tells whether a content is calls of the tools that read evidence, or what they gave, and nothing else."""
    names = {part.name for part in (*content.calls, *content.responses)} | {quote.name for quote in content.quotes}
    return bool(names) and names <= READERS


def _reason(draft: Draft) -> EpochReason | None:
    """The reason why an epoch begins with this pack, None where none does."""
    # With an agent's first cut come the tools that read what it takes.
    may_be_reader_tools = draft.epoch.epoch_reason == "tools_changed" and not draft.input.epoch.cut_count
    if draft.epoch.epoch_reason is not None and not (draft.was_compacted and may_be_reader_tools):
        return draft.epoch.epoch_reason
    if draft.tools.trimmed != frozenset(draft.input.epoch.trimmed):
        return "tools_changed"
    if draft.manual_cut and (draft.was_compacted or draft.account.acts):
        return "by_hand"
    if draft.was_compacted or draft.starts_epoch:
        cuts = [event.reason for event in draft.account.events if event.stage == "cut"]
        return _CUTS.get(cuts[-1], "high_water") if cuts else "high_water"
    media = any(event.reason == "provider_limit" for event in draft.account.events)
    return "replaced" if media or any(act.replaced for act in draft.account.acts) else None


def _contents(draft: Draft) -> tuple[Outgoing, ...]:
    """The contents that are sent: the summary in its place, and payloads behind what other agents have handed over
    since. Neighbours of one role that the host does not have are joined: templates of Mistral's, Gemma's and other
    models refuse them."""
    # Where the turns went that it is of, it is written once a cut and stays inside the cached prefix. In the human
    # message it would be sent anew with every invocation; before all else, each cut would end the prefix there.
    unseen, counter = draft.input.host.unseen, draft.counter
    outgoing = [*draft.history.items]
    if unseen:
        outgoing = [without_unseen(draft, item, unseen) for item in outgoing]
    positions, summary_at = draft.input.request.positions, None
    if draft.history.sent_summary and draft.policy.conversation.summary_share:
        at = bisect_left(outgoing, draft.history.summary_place, key=lambda item: positions[item.origin])
        has_calls = any(item.content.calls or item.content.quotes for item in draft.history.items[:at])
        for unit in reversed(units([item.content for item in draft.history.items])) if has_calls else ():
            if unit.indices[0] < at <= unit.indices[-1]:  # an exchange is never parted
                at = unit.indices[0]
        summary_at = at
    if draft.input.host.passthrough_reason:
        return tuple(outgoing)
    outgoing = _joined(draft, outgoing if summary_at == 0 else _begun_by_user(draft, outgoing))
    if summary_at is not None:
        content = summary_content(draft.history.summary)
        summary = Outgoing(content, content, origin=-1, form="summary", tokens=counter.content(content))
        # A part of the user's message behind it, which is the same at later calls; never before a tool's result.
        if summary_at < len(outgoing) and _is_users(outgoing[summary_at].content):
            summary = summary._replace(joined=outgoing[summary_at].joined)
            outgoing[summary_at] = outgoing[summary_at]._replace(joined=True)
        elif summary_at and _is_users(outgoing[summary_at - 1].content):
            summary = summary._replace(joined=True)
        elif summary_at < len(outgoing):
            outgoing[summary_at] = outgoing[summary_at]._replace(joined=False)
        outgoing.insert(summary_at, summary)
    for at in range(len(outgoing) - 2, -1, -1):
        if outgoing[at].form == "payload" and outgoing[at + 1].raw.agent:
            behind = next((end for end in range(at + 1, len(outgoing)) if not outgoing[end].raw.agent), len(outgoing))
            message, follower = outgoing[at], outgoing[at + 1]
            moved = message._replace(joined=follower.joined)
            outgoing[at:behind] = [follower._replace(joined=message.joined), *outgoing[at + 2 : behind], moved]
    return tuple(outgoing)


def _is_users(content: Content) -> bool:
    """Tells whether a content is of the user's role and holds no result of a tool."""
    return content.role == "user" and not content.responses


def _joined(draft: Draft, contents: list[Outgoing]) -> list[Outgoing]:
    """The contents, each joined to the one before it where both are the user's or the model's and the host has
    something between them, or has one of them in another role."""
    positions, roles = draft.input.request.positions, [item.content.role for item in contents]
    for at in range(1, len(contents)):
        if roles[at] != roles[at - 1]:
            continue
        pair = contents[at - 1], contents[at]
        if any(item.content.responses for item in pair):
            continue
        first, second = (positions[item.origin] for item in pair)
        kinds = {(item.raw.role, bool(item.raw.responses)) for item in pair}
        if draft.history.normalize or second - first > 1 or len(kinds) > 1:
            contents[at] = contents[at]._replace(joined=True)
    return contents


def _begun_by_user(draft: Draft, contents: list[Outgoing]) -> list[Outgoing]:
    """The contents, the first of them a user's message: Gemini and Claude refuse a request that the model begins.

    ADK's own compaction puts its summary first, as the model's.
    """
    first = contents[0] if contents else None
    texts = [at for at, part in enumerate(first.content.parts) if part.kind == "text"] if first is not None else []
    if first is None or first.content.role != "model" or first.content.calls or not texts:
        return contents
    content = content_of_parts("user", [first.content.parts[at] for at in texts])
    members = tuple(_member(first, at) for at in texts)
    message = first._replace(content=content, form="merged", tokens=draft.counter.content(content), members=members)
    return [message, *contents[1:]]


def _rows(draft: Draft, present: Sequence[Outgoing]) -> tuple[Row, ...]:
    """A row for each content that came in, in order, then one for each other candidate.

    Args:
        present: the contents that are sent, before they are merged with their neighbours.
    """
    request, counter, selected = draft.input.request, draft.counter, draft.selected

    def whole_rows(raws: Sequence[Content], places: Sequence[int], sizes: Sequence[int]) -> list[Row]:
        contents = zip(raws, places, sizes, strict=True)
        return [_whole_row(raw, position, tokens, counter.method) for raw, position, tokens in contents]

    # Most contents are sent as they are, and were so at the call before.
    rows = list(draft.columns.extend("row", whole_rows, request.contents, request.positions, draft.raw_tokens))
    items = dict(zip(map(_ORIGIN, present), present, strict=True))
    is_whole = map("whole".__eq__, map(_FORM, present))
    changed_indices = {*range(len(rows))}.difference(compress(map(_ORIGIN, present), is_whole))
    changed_indices |= {request.request_index} - {None}
    for at in sorted(changed_indices):
        rows[at] = _changed_row(draft, at, rows[at], items.get(at))
    tokens_by_id = {candidate.id: candidate.tokens for candidate in (*selected.memory, *selected.evidence)}
    for ranking in (draft.rankings.memory, draft.rankings.evidence):
        for candidate in ranking.chosen:
            tokens = tokens_by_id.get(candidate.id)
            if tokens is not None and candidate.id not in selected.shortened:
                rows.append(_candidate_row(candidate, "whole", None, counter))
            else:
                form: Form = "left_out" if tokens is None else "extract"
                rows.append(_candidate_row(candidate, form, "over_allocation", counter, tokens))
        rows += [_candidate_row(drop.candidate, "left_out", drop.reason, counter) for drop in ranking.left]
    for instruction in draft.input.instructions:
        why: Reason = "active_skill" if instruction.kind == "active_skill" else "instructs"
        whole = instruction.id in draft.whole
        rows.append(_candidate_row(instruction, "whole" if whole else "left_out", why if whole else "window", counter))
    return tuple(rows)


def _whole_row(raw: Content, position: int, tokens: int, method: Accuracy) -> Row:
    """The row of a content that is sent as the host gave it."""
    uri = offloaded_to(raw)
    return Row(
        id=content_name(position, raw.digest),
        layer="conversation",
        source=raw.agent or ("tool" if raw.responses else "calls" if raw.calls else raw.role),
        tokens=tokens,
        method=method,
        hash=raw.digest,
        form="offloaded" if uri else "whole",
        uri=uri,
    )


def _changed_row(draft: Draft, origin: int, row: Row, sent_item: Outgoing | None) -> Row:
    """The row of a content that is not, or not at every call, sent as the host gave it."""
    change = draft.history.forms.get(origin)
    form: Form = row.form if change is None else change.form
    reason: Reason | None = None if change is None else change.reason
    if origin in draft.history.cut and draft.history.summary:
        form = "summarized"
    elif sent_item is None and form != "told":
        # What was not left out for another reason repeats an answer to the same call.
        form, reason = "left_out", reason or "duplicate"
    elif (
        sent_item is not None
        and sent_item.form == "payload"
        and not _is_all_in(draft.input.request.contents[origin], sent_item.content)
    ):
        form, reason = "extract", "window"
    elif form == "whole" and sent_item is not None and sent_item.form == "extract":
        form, reason = "extract", "provider_limit"
    return replace(
        row,
        layer="task" if origin == draft.input.request.request_index else "conversation",
        form=form,
        reason=reason,
        sent_tokens=sent_item.tokens if sent_item is not None and sent_item.tokens != row.tokens else None,
        uri=row.uri if form == "offloaded" else "",
    )


def _is_all_in(raw: Content, sent_content: Content) -> bool:
    """Tells whether a message is whole in its packed form: the last resort takes the middle of its text, and media."""
    other_part_counts = [sum(part.kind != "text" for part in content.parts) for content in (raw, sent_content)]
    return raw.text in sent_content.text and other_part_counts[0] == other_part_counts[1]


def _candidate_row(
    candidate: Candidate, form: Form, reason: Reason | None, counter: PackCounter, sent_tokens: int | None = None
) -> Row:
    return Row(
        **values_of(candidate, "id", "layer", "source", "scores", "time", "uri", "covers", "content_hash"),
        tokens=candidate.tokens or counter.count(candidate.text),
        method=counter.method,
        hash=candidate.digest,
        form=form,
        reason=reason,
        sent_tokens=sent_tokens,
    )


def _forms(draft: Draft) -> dict[str, ShortForm]:
    """The short forms of contents that are still sent; where contents are cut, those after them are counted anew."""
    if not draft.history.forms:
        return {}
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
    previous, request, packed_form = draft.input.epoch, draft.input.request, draft.message.packed_form
    # Packed messages that later calls send again: this invocation's, and earlier ones up to the next cut.
    live = {item.raw.digest for item in draft.history.items} if draft.epoch.earlier and not draft.was_compacted else ()
    earlier = tuple(message for message in draft.epoch.earlier if message.of in live)
    next_epoch = replace(
        previous,
        number=previous.number + (reason is not None),
        summary=draft.history.summary,
        summary_place=draft.history.summary_place if draft.history.summary else 0,
        contract=draft.epoch.contract,
        trimmed=tuple(sorted(draft.tools.trimmed)),
        payloads=(*earlier, packed_form) if packed_form is not None else earlier,
        marks=draft.epoch.marks,
        strategies=draft.history.states,
        asked=draft.input.host.asked,
        tools=draft.tools.kept or previous.tools,
        unseen=draft.input.host.unseen,
        forms=_forms(draft),
    )
    if not draft.history.cut:
        return next_epoch
    last = max(draft.history.cut)
    # A transfer directly behind it is left out for what stood before it.
    while draft.history.forms.get(last + 1) == ContentForm("left_out", "transfer"):
        last += 1
    count = max(previous.cut_count, request.positions[last] + 1)
    flat = {item.origin for item in draft.history.items if item.form == "told"}
    exchanges = [unit.indices for unit in units(request.contents) if not flat.isdisjoint(unit.indices)] if flat else []
    live_origins = {item.origin for item in draft.history.items}.union(*exchanges)
    kept_positions = (position for origin in live_origins if (position := request.positions[origin]) < count)
    next_epoch = replace(next_epoch, kept=as_ranges(kept_positions))
    if request.positions[last] + 1 < count:
        return next_epoch
    # The last content cut may be a short answer that occurs twice, so a few before it are remembered, too.
    places = zip(request.positions, request.contents, strict=True)
    cut_anchors = [(at, short(content.digest)) for at, content in places if at < count]
    anchors = previous.anchors or tuple(cut_anchors[:1])
    anchors = (*anchors, *(anchor for anchor in cut_anchors[-_NEW_ANCHORS:] if anchor not in anchors))[-_MOST_ANCHORS:]
    return replace(next_epoch, cut_count=count, cut_hash=request.contents[last].digest, anchors=anchors)


def _prefix(draft: Draft, sent_request: Sent, contents: Sequence[Outgoing]) -> Prefix:
    """Compares the request with the one before: what they share, and what ended that."""
    source, previous = draft.input, draft.input.previous.sent
    if previous is None:
        return Prefix(shared_tokens=None, broken_by=None if source.epoch.number == 0 else "unknown")
    was_cut = draft.was_compacted or bool(draft.account.acts)
    previous_blocks, current_blocks = previous.blocks, sent_request.blocks
    shared_blocks = len(previous_blocks)
    if current_blocks[: len(previous_blocks)] != previous_blocks:  # a block that is only counted otherwise is the same
        shared_blocks = shared_length(*(tuple(map(_DIGEST, blocks)) for blocks in (previous_blocks, current_blocks)))
    shared = sum(map(_TOKENS, current_blocks[:shared_blocks]))
    summary, head = source.epoch.summary, len(current_blocks) - len(sent_request.contents)
    grown = draft.history.summary.startswith(summary) and source.epoch.summary_place == draft.history.summary_place
    at_summary = head <= shared_blocks < len(current_blocks) and contents[shared_blocks - head].form == "summary"
    if was_cut and summary and grown and at_summary:
        # What ends the common prefix is a summary that only grew: a cache serves all of it that was there before.
        shared += draft.counter.count(summary_message(summary))
    if shared_blocks == len(previous_blocks):
        return Prefix(shared_tokens=shared, broken_by=None)
    # A content before the request that goes out whole, and was never a packed message, is as the host has it: then the
    # host changed it, unless a strategy hides turns that may come back.
    hides = any(strategy.early for strategy in strategies_of(draft.policy.conversation))
    differing = contents[max(0, shared_blocks - head) :][: not hides]
    end = source.request.request_index or 0
    packed_messages = {message.of for message in source.epoch.payloads}
    causes: dict[PrefixBreak, bool] = {
        "system_changed": previous.system.digest != sent_request.system.digest,
        "tools_changed": [tool.digest for tool in previous.tools] != [tool.digest for tool in sent_request.tools],
        "cut": was_cut,
        # An agent that is shown its request alone has no history.
        "history_rewritten": (source.request.rewritten and end > 0)
        or any(
            item.form == "whole" and 0 <= item.origin < end and item.raw.digest not in packed_messages
            for item in differing
        ),
        "new_invocation": source.request.first_call,
        "payload_changed": True,
    }
    return Prefix(shared_tokens=shared, broken_by=next(cause for cause, holds in causes.items() if holds))
