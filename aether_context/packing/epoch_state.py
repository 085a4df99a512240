"""State that the epoch carries into this call: shortened responses and packed messages."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import count, takewhile
from typing import Any

from aether_context.canonical import hash_text, short
from aether_context.conversation import units
from aether_context.conversation.content_json import content_of_parts, part_of, text_part
from aether_context.conversation.extracts import (
    query_of,
    quoted_alone,
    sent_places,
    shorten_content,
    without_media,
    words_before,
)
from aether_context.conversation.quotes import attributed, requoted
from aether_context.conversation.strategy import gain
from aether_context.conversation.summary import without_past
from aether_context.conversation.turns import bare_transfers, turn_start
from aether_context.evidence.record import evidence_uri
from aether_context.pack import (
    NOTHING,
    Content,
    ContentForm,
    EpochReason,
    Outgoing,
    PackedMessage,
    Part,
    Reason,
    Unseen,
    is_unseen,
    medium_place,
)
from aether_context.packing import payload
from aether_context.packing.draft import Draft, EpochState, History, Message, occurrence_keys
from aether_context.packing.instructions import protect_instructions
from aether_context.plans import without_plan
from aether_context.text.pairing import pair_results
from aether_context.text.shorten import lines_view, shorten
from aether_context.tokens.cache import PackCounter

_REASONS: Mapping[str, EpochReason] = {
    "step": "step_changed",
    "role": "role_changed",
    "acceptance": "acceptance_changed",
    "system": "system_changed",
    "tools": "tools_changed",
}
"""Why a new epoch begins where one of these marks is another than the epoch's, in this order."""


def apply_epoch(draft: Draft) -> None:
    """Applies what the epoch has decided: the contents in the form in which they would be sent."""
    request, epoch = draft.input.request, draft.input.epoch
    draft.epoch = _epoch_state(draft)
    protect_instructions(draft)
    request = draft.input.request
    draft.thoughts_end = bisect_left(request.positions, epoch.thoughts) if draft.input.binds_thoughts else 0
    draft.past_end = max(draft.thoughts_end, turn_start(request.contents, request.request_index))
    packed_by_index = _earlier_messages(draft)
    draft.epoch = draft.epoch._replace(earlier=tuple(packed_by_index.values()))
    packed_form = draft.epoch.packed_form
    if packed_form is not None and packed_form.before and request.request_index is not None:
        packed_by_index[request.request_index] = packed_form
    draft.message = Message(largest=packed_form.largest if packed_form is not None else None)
    keys = occurrence_keys(request.contents) if epoch.forms else ()
    draft.history = _history(draft, keys, packed_by_index)
    told_tokens = {key: tokens for key, (form, tokens) in epoch.forms.items() if form == "told"}
    # Without the request, which may be another agent's turn in that exchange, and without packed messages.
    free = {item.origin for item in draft.history.items if told_tokens} - {*packed_by_index, request.request_index}
    for unit in units(request.contents) if told_tokens else ():
        origins = [at for at in unit.indices if at in free]
        if origins and keys[origins[-1]] in told_tokens:
            flatten_exchange(draft, origins, told_tokens[keys[origins[-1]]])


def _epoch_state(draft: Draft) -> EpochState:
    """Decides which epoch goes on, and with which system instruction; without the packed messages before this
    invocation."""
    source, epoch, request = draft.input, draft.input.epoch, draft.input.request
    explains = (
        draft.policy.payload.contract == "system" and request.system_is_text and not source.host.passthrough_reason
    )
    # The first call of a session decides, as long as its state is there: what is added to the instruction later, or
    # taken from it, would have the provider read all again. A later plan is explained by its payloads.
    contract = explains and (epoch.contract if epoch.number else source.validity != "unplanned")
    system = "\n\n".join(filter(None, (request.system, payload.contract_of(source) if contract else "")))
    marks = _marks(draft, system)
    differing = {mark for mark, digest in marks.items() if digest != epoch.marks.get(mark, "")}
    epoch_reason = next((reason for mark, reason in _REASONS.items() if mark in differing), None)
    if not epoch.number or request.rewritten:
        epoch_reason = "history_rewritten" if epoch.number else "first_call"
    new_step = epoch_reason in ("first_call", "step_changed", "role_changed", "acceptance_changed")
    # An invocation chooses once, at its first call, unless its step changes. What is chosen stands in the human
    # message, before all calls and results, so that another choice would have a provider read all of these again.
    has_chosen = not draft.at_cut and not request.first_call and not new_step
    human, packed_form = draft.request_content, None
    if has_chosen and human is not None:
        key = (human.digest, source.identity.invocation)
        packed_form = next((message for message in epoch.payloads if (message.of, message.invocation) == key), None)
    # Payloads of different plans differ in it.
    plan = short(hash_text(payload.step_text(source.step)))
    return EpochState(system, contract, plan, marks, epoch_reason, has_chosen, packed_form)


def _marks(draft: Draft, system: str) -> dict[str, str]:
    """Short digests of what an epoch begins with."""
    source, scope = draft.input, draft.tools
    step = source.step
    planned = source.validity != "unplanned"
    sent_names = {tool.name for tool in scope.sent}
    # As the host declares them: a declaration that a pack shortens has not changed.
    digests = [tool.digest for tool in source.request.tools if tool.name in sent_names]
    return {
        "system": short(hash_text(system)),
        "tools": short(hash_text("\n".join([*digests, *source.request.other_tools]))),
        "step": short(hash_text("\n".join([step.task_id, step.step_id, step.text]))) if planned else "",
        "role": short(hash_text(step.role)) if planned else "",
        "acceptance": short(hash_text(payload.checklist(step))) if planned else "",
    }


def _history(draft: Draft, keys: Sequence[str], packed_by_index: Mapping[int, PackedMessage]) -> History:
    """The history with packed messages and extracts as they were sent, each content by its `occurrence_keys`."""
    source, epoch, request, counter = draft.input, draft.input.epoch, draft.input.request, draft.counter
    raws, forms = request.contents, dict[int, ContentForm]()
    planners = source.host.planners if source.validity == "valid" and request.request_index is not None else ()

    def whole(*new: Sequence[Any]) -> Iterable[Outgoing]:
        return [Outgoing(raw, raw, index, "whole", tokens) for raw, index, tokens in zip(*new, strict=True)]

    # Nearly all are sent as they are. Of the others the epoch names most.
    items = list(draft.columns.extend("whole", whole, raws, tuple(range(len(raws))), draft.raw_tokens))
    thoughtful = {index for index, raw in enumerate(raws[: draft.thoughts_end]) if raw.signed_thoughts}
    changed_indices = {*thoughtful, *packed_by_index, *(index for index, key in enumerate(keys) if key in epoch.forms)}
    unformed = ("whole", source.window)  # a ceiling that takes signed thoughts alone
    quoting = [] if source.host.passthrough_reason else [index for index, raw in enumerate(raws) if raw.quotes]
    transfers = bare_transfers(raws, request.positions) if quoting else {}
    changed_indices.update(transfers, quoting if planners else ())
    for index in sorted(changed_indices):
        raw, is_other = raws[index], index != request.request_index and index not in packed_by_index
        parts = _remainder(raw, planners, transfers.get(index, ())) if is_other and raw.quotes else NOTHING
        form, tokens = epoch.forms.get(keys[index], unformed) if keys else unformed
        members = tuple((index, at) for at in parts)
        if parts:
            # The first part only explains the quotes.
            reason: Reason = "transfer" if index in transfers else "in_payload"
            forms[index] = ContentForm("extract" if len(parts) > 1 else "left_out", reason)
            if len(parts) == 1:
                continue
            # A cut shortens, and sums up, what is beside them.
            raw = attributed(content_of_parts(raw.role, list(parts.values())))
        if (packed_form := packed_by_index.get(index)) is not None:
            content, members = payload.packed_message(raw, index, packed_form, draft)
            items[index] = Outgoing(content, raw, index, "payload", counter.content(content), members)
        elif raw.signed_thoughts == len(raw.parts) and index in thoughtful:
            forms[index] = ContentForm("left_out", "provider_limit")
        elif form == "extract" or index in thoughtful:
            forms |= {index: ContentForm("extract", "window", tokens)} if form == "extract" else {}
            content, places = extract(draft, index, raw, tokens, query_of(raws, index, request.request_index))
            items[index] = Outgoing(content, raw, index, "extract", counter.content(content), places or members)
        elif parts:
            items[index] = Outgoing(raw, raw, index, "extract", counter.content(raw), members)
    left_out = {index for index, change in forms.items() if change.form == "left_out"}
    return History(
        tuple(item for item in items if item.origin not in left_out) if left_out else tuple(items),
        forms=forms,
        summary=epoch.summary if source.host.can_read else without_past(epoch.summary),
        summary_place=epoch.summary_place,
        states=epoch.strategies,
    )


@lru_cache(maxsize=1_024)
def _remainder(raw: Content, planners: Sequence[str], transfers: Sequence[int]) -> Mapping[int, Part]:
    """The parts of another agent's turn without a planner's JSON of a plan and without transfers, by their places;
    nothing where there is none of these in it."""
    quotes = [quote for quote in raw.quotes if quote.kind == "said" and quote.agent in planners]
    texts = {quote.at: text for quote in quotes if (text := without_plan(quote.text)) != quote.text}
    texts |= dict.fromkeys(transfers, "")
    parts = ((at, text_part(requoted(part, texts[at])) if at in texts else part) for at, part in enumerate(raw.parts))
    return {at: part for at, part in parts if texts and texts.get(at) != ""}


def extract(
    draft: Draft, origin: int, raw: Content, ceiling: int, query: str
) -> tuple[Content, tuple[tuple[int, int], ...]]:
    """A content of the host's with parts of at most ``ceiling`` tokens, with the members of `Outgoing`."""
    # Made again at each call, from the ceiling in the session's state: lines are chosen alike, and known by digest. The
    # text itself would put kilobytes into every event that writes the state.
    if not ceiling:
        return without_media(raw, draft.input.host.media), ()
    is_over = is_past(draft, origin)
    content = shorten_content(raw, ceiling, counter=draft.counter, query=query, is_over=is_over)
    places = sent_places(raw, is_over=is_over)
    return content, () if len(places) == len(raw.parts) else tuple((origin, at) for at in places)


def without_unseen(draft: Draft, item: Outgoing, unseen: Unseen) -> Outgoing:
    """A content with notes in the place of the media that give way; itself where it has none."""
    positions = draft.input.request.positions
    if not unseen or item.origin < 0:
        return item
    members = item.members or tuple((item.origin, at) for at in range(len(item.content.parts)))
    parts = [
        _with_note(part, is_stored=draft.policy.record == "full")
        if at >= 0 and is_unseen(medium_place(positions[origin], at), unseen)
        else part
        for part, (origin, at) in zip(item.content.parts, members, strict=True)
    ]
    content = content_of_parts(item.content.role, parts)
    if content.wire == item.content.wire:
        return item
    content, form = attributed(content) if item.content.agent else content, item.form
    tokens = draft.counter.content(content)
    return item._replace(content=content, form="extract" if form == "whole" else form, tokens=tokens, members=members)


def _with_note(part: Part, *, is_stored: bool) -> Part:
    """A part with a note in the place of its media, with their address where that is known."""
    wire = json.loads(part.wire)
    answer = wire.get("function_response") or {}
    media = [wire] if part.kind == "media" else answer.pop("parts", None) or []
    notes = []
    for medium in media:
        blob = medium.get("inline_data") or medium.get("file_data") or {}
        stored = evidence_uri(blob["data"], "bin") if is_stored and blob.get("data") else "no copy of it is kept"
        where = blob.get("file_uri") or stored
        notes.append(f"[{blob.get('mime_type') or 'a medium'} is left out, the request holds too many: {where}]")
    if part.kind == "media":
        return text_part(notes[0])
    if notes:
        answer["response"] = {**(answer.get("response") or {}), "left_out": notes}
        return part_of(wire)
    return part


def is_past(draft: Draft, origin: int) -> bool:
    """Tells whether a content belongs to a turn of the model that is over, see `turn_start`."""
    return origin < draft.past_end


def flatten_exchange(draft: Draft, origins: Sequence[int], max_tokens: int) -> None:
    """Sends these contents as one text of about ``max_tokens`` tokens, in the place of the last of them.

    So a call goes with its response, whatever the host makes of its history later.
    """
    request, last = draft.input.request, origins[-1]
    contents, words = request.contents, words_before(request.contents, origins[0], request.request_index)
    text = flattened([contents[origin] for origin in origins], max_tokens, words, draft.counter)
    flat = Outgoing(
        content=text,
        raw=contents[last],
        origin=last,
        form="told",
        tokens=draft.counter.content(text),
        members=tuple((last, -1) for _ in text.parts),
    )
    earlier = frozenset(origins[:-1])
    items = tuple(flat if item.origin == last else item for item in draft.history.items if item.origin not in earlier)
    draft.history = draft.history.with_form("told", "window", origins, max_tokens)._replace(items=items)


_FLATTENED = "[Calls and what they returned, in one text, since they find no room one by one]"


def flattened(contents: Sequence[Content], max_tokens: int, query: str, counter: PackCounter) -> Content:
    """Writes contents, their calls and results as one text of about ``max_tokens`` tokens, in a message of the user.

    Of other agents' turns it is the last quote alone. Each call stands with what it returned. Lines are indented, so
    that none of them can stand for a header.
    """
    quoting = next((content for content in reversed(contents) if content.quotes), None)
    if quoting is not None:
        return quoted_alone(quoting, max_tokens, query, counter)
    results = [answer for content_results in pair_results(contents) for answer in content_results]
    returned = {answer.call.number: "\n".join(lines_view(answer.part.text).lines) for answer in results if answer.call}
    numbers, texts_told = count(), list[str]()
    for part in (part for content in contents for part in content.parts if part.kind != "response"):
        text = returned.get(next(numbers)) if part.kind == "call" else None
        call = f"{part.name}({part.text})" if part.kind == "call" else part.text or f"[{part.mime_type} is left out]"
        if not part.is_thought:
            texts_told.append(call if text is None else f"{call}: {text}")
    texts_told += ["\n".join(lines_view(answer.part.text).lines) for answer in results if answer.call is None]
    text = "\n".join("- " + payload.indented(told_text) for told_text in texts_told)
    shortened = shorten(text, max_tokens - counter.count(_FLATTENED), counter=counter, query=query).text
    return content_of_parts("user", [text_part(f"{_FLATTENED}\n{shortened}")])


def _earlier_messages(draft: Draft) -> dict[int, PackedMessage]:
    """The packed form of each message of an earlier invocation that keeps it, by index.

    Which of them return to their own words is decided once an invocation, and where the prefix ends.
    """
    source, messages = draft.input, dict[int, PackedMessage]()
    if draft.starts_epoch:  # The prefix ends anyway, so nothing is saved by an earlier pack in the request.
        return messages
    # By its place, too: of equal messages each has a form of its own.
    by_place = {(message.place, message.of): message for message in source.epoch.payloads if message.before}
    request, positions = source.request, source.request.positions
    for (position, digest), message in sorted(by_place.items(), key=lambda item: item[0]):
        index = bisect_left(positions, position)
        is_there = positions[index : index + 1] == (position,) and request.contents[index].digest == digest
        if is_there and index != request.request_index and message.invocation != source.identity.invocation:
            messages[index] = message
    return messages if draft.epoch.has_chosen else {index: messages[index] for index in _still_packed(draft, messages)}


_CALLS = 20
"""Model calls that a shorter prefix is expected to serve at most. From 5 to 80 the cost of recorded runs changes by
.001."""


def _still_packed(draft: Draft, messages: Mapping[int, PackedMessage]) -> Sequence[int]:
    """The indices in ``messages`` of earlier messages that keep their packed text, where the prefix goes on.

    A request needs one pack, the current one. An earlier message that returns to its own words is shorter in every
    request from then on, but the provider has to read all that comes after it once more. So the latest one is weighed;
    those before it were in their turn. A message whose pack speaks of another plan returns, with all after it.
    """
    counter, request, contents = draft.counter, draft.input.request, draft.input.request.contents
    staying = list(takewhile(lambda index: messages[index].plan == draft.epoch.plan, messages))
    if not staying or len(staying) < len(messages):
        return staying
    latest, request_index = staying[-1], len(contents) if request.request_index is None else request.request_index
    tokens = draft.raw_tokens
    packed_content = payload.packed_message(contents[latest], latest, messages[latest], draft)[0]
    # No earlier request held what comes after the model's last answer.
    unsent = next((at for at in range(request_index - 1, -1, -1) if contents[at].role == "model"), request_index)
    # What instructs would have to be sent with the current message instead.
    instructing = counter.count(payload.instruction_section(draft, messages[latest].instructs))
    # A cut frees the rest anyway: at the pace so far it comes after so many calls.
    conversation_tokens, replies = max(1, sum(tokens)), sum(content.role == "model" for content in contents)
    gained = gain(
        saved=counter.content(packed_content) - tokens[latest] - instructing,
        calls=min(_CALLS, max(0, draft.input_budget - conversation_tokens) * replies / conversation_tokens),
        resent=sum(tokens[latest:unsent]) + instructing,
        cached_price=draft.input.host.cached_price,
    )
    return staying[:-1] if gained > 0 else staying
