"""The last resort: whatever is left of a conversation goes out within the input budget.

From the mildest act to the hardest, each only as far as needed: signed thoughts of turns that are over go; responses
that the model has yet to read become extracts, then whatever else is long but media there; messages beside the request
go, and what strategies chose to keep; of the summary of older cuts what has no other place stays; the memories and the
evidence that the payload holds go. Then media go that the model has yet to read, and what other agents handed over; an
exchange with more calls than there is room for becomes one text; the summary is not sent with this request; the plan's
text is cut down; and last of all the request gives way. Only a request that passes the
window with nothing but system instruction and declarations beside it shares the room with what it is answered from,
and gives way before that. System instruction and declarations stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Literal

from aether_context.conversation import units
from aether_context.conversation.extracts import (
    LEAST_EXTRACT,
    part_tokens,
    query_of,
    quoted_alone,
    response_tokens,
    shorten_content,
)
from aether_context.conversation.orders import MOST_REQUESTS, requests_in
from aether_context.conversation.turns import is_instruction, protected, turn_start, unread_exchange
from aether_context.evidence.record import message_uri
from aether_context.pack import RECALLED, Content, ContentForm, Reason
from aether_context.packing import payload
from aether_context.packing.compaction import (
    excess_tokens,
    hide_summary,
    leave_out,
    note_contents,
    request_place,
    shorten_summary,
)
from aether_context.packing.draft import Draft, History, SelectedCandidates, item_place
from aether_context.packing.epoch_state import extract, flatten_exchange, is_past
from aether_context.text.shorten import level, shorten
from aether_context.tokens.cache import PackCounter

_LEAST_REQUEST = 96
_MOST_REQUEST = 0.77
"""The share of a request that finds no room whole, of what system instruction and declarations leave, where there are
tools: the calls and their results have to stand beside it. A tenth of it is for the names in what is left out; six and
eight tenths for the words are as good at one window and worse at another."""
_MOST_NAMED = 8
_LEAST_QUOTE = 8
_ROUNDS = 12
_MOST_TRIES = 3
"""So often an act is tried: what is cut down to a number of tokens takes a few more or less."""
_NO_SUMMARY = "nothing tells of what was cut: a summary of it found no room"


def bring_within_window(draft: Draft) -> None:
    """Brings the pack within the input budget, wherever anything that may give way holds enough."""
    if draft.input.host.passthrough_reason:
        return
    is_too_long = (excess := excess_tokens(draft)) > 0 and draft.needed_tokens > draft.budget.input
    last = (
        (_shorten_request, _flatten_last_exchange, hide_summary)
        if is_too_long
        else (_flatten_last_exchange, hide_summary, _shorten_request)
    )
    for act in (
        _leave_out_thoughts,
        _shorten_responses,
        _shorten_parts,
        _drop_other_messages,
        shorten_summary,
        _leave_out_candidates,
        partial(_shorten_parts, spares_media=False),
        *last,
    ):
        if excess <= 0:
            break
        act(draft)
        excess = excess_tokens(draft)
    _tell_thoughtless(draft)
    if draft.policy.offload.tools:
        _tell_unkept(draft)
    # A window may be too small even for a summary that a cut has just written; who reads the manifest is told.
    cut = draft.history.cut or draft.input.epoch.summary
    is_summarized = draft.history.sent_summary or any(
        candidate.source == RECALLED for candidate in draft.selected.memory
    )
    if cut and not is_summarized and draft.policy.conversation.summary_share:
        draft.account = draft.account._replace(degradations=(*draft.account.degradations, _NO_SUMMARY))


def _leave_out_thoughts(draft: Draft) -> None:
    """Signed thoughts of turns that are over go; the rest of their contents stays as it is.

    They go first, since providers ignore or refuse them anyway.
    """
    thoughtful = [
        at
        for at, item in enumerate(draft.history.items)
        if item.form in ("whole", "extract") and is_past(draft, item.origin) and item.content.signed_thoughts
    ]
    # A ceiling of the whole window: thoughts go by the rule for what is signed, and nothing else is long enough.
    _shorten_to(draft, _with_extracts(draft, thoughtful, draft.budget.window))


def _tell_thoughtless(draft: Draft) -> None:
    """Exchanges of the model's present turn that are sent without their signed thoughts become one text each.

    A cut of what stood behind them puts them there: their turn was over before it.
    """
    items = draft.history.items
    lacking = {
        at
        for at, item in enumerate(items)
        if item.content.calls and item.content.signed_thoughts < item.raw.signed_thoughts
    }
    if not lacking:
        return
    contents = [item.content for item in items]
    start = turn_start(contents, request_place(draft))
    for unit in units(contents):
        if unit.indices[0] >= start and lacking.intersection(unit.indices):
            tokens_before, origins = draft.conversation_tokens(), [items[at].origin for at in unit.indices]
            flatten_exchange(draft, origins, sum(items[at].tokens for at in unit.indices))
            note_contents(draft, "emergency", origins, tokens_before)


def _tell_unkept(draft: Draft) -> None:
    """Notes each tool under ``keep`` of which a result is not whole in the request any more, with the reason."""
    items, notes = draft.history.items, list[str]()
    for at, name, text, fits in draft.kept_results:
        place = item_place(items, at)
        if place is None or not any(text in part.text for part in items[place].content.parts):
            why = "the window has no room for it" if fits else "later ones fill a quarter of the window"
            notes.append(f"offload.tools: a result of {name!r}, whose rule is keep, left the request: {why}")
    draft.account = draft.account._replace(degradations=(*draft.account.degradations, *dict.fromkeys(notes)))


def _shorten_responses(draft: Draft) -> None:
    """Responses of the exchange that the model has yet to read become extracts."""
    items, counter, budget = draft.history.items, draft.counter, draft.budget
    last = unread_exchange(units([item.content for item in items]), request_place(draft))
    tokens = {at: response_tokens(items[at].content, counter) for at in (last.indices if last is not None else ())}
    targets, sizes = [at for at in tokens if tokens[at]], [size for inside in tokens.values() for size in inside]
    if not sizes:
        return
    remainder = draft.conversation_tokens(items) - sum(sizes)
    enough = budget.cut_above - remainder >= LEAST_EXTRACT * len(sizes)
    room = (budget.cut_above if enough else budget.input - budget.fixed) - remainder
    ceiling = max(LEAST_EXTRACT, level(sizes, room))
    shorter = _with_extracts(draft, targets, ceiling)
    while ceiling > LEAST_EXTRACT and (excess := draft.conversation_tokens(shorter.items) - room - remainder) > 0:
        ceiling = max(LEAST_EXTRACT, ceiling - excess)
        shorter = _with_extracts(draft, targets, ceiling)
    _shorten_to(draft, shorter)


def _shorten_parts(draft: Draft, *, spares_media: bool = True) -> None:
    """Whatever is long becomes an extract: texts, arguments, code, media, whoever's they are.

    Media that the model has yet to read have no shorter form, so that they stay for as long as anything else may give
    way (``spares_media``). A request that cannot stay whole is measured with them, so that it gives way before what is
    shorter than it.
    """
    items, request = draft.history.items, _request_tokens(draft) if draft.needed_tokens > draft.budget.input else 0
    last = unread_exchange(units([item.content for item in items]), request_place(draft)) if spares_media else None
    spared = {at for at in (last.indices if last else ()) if any(map(draft.counter.media, items[at].content.parts))}
    places = set(_removable_contents(draft)) - spared
    targets = sorted(at for at in places if items[at].form not in ("payload", "told"))
    sizes = {
        at: part_tokens(items[at].content, draft.counter, is_over=is_past(draft, items[at].origin)) for at in targets
    }
    all_sizes = [request, *(size for part_sizes in sizes.values() for size in part_sizes)]
    ceiling = max(LEAST_EXTRACT, level(all_sizes, sum(all_sizes) - excess_tokens(draft)))
    for _ in range(_ROUNDS):
        long = [at for at in targets if max(sizes[at], default=0) > ceiling]
        shorter = _with_extracts(draft, long, ceiling)
        if excess_tokens(draft, shorter.items) <= max(0, request - ceiling) or ceiling == LEAST_EXTRACT:
            break
        ceiling = max(LEAST_EXTRACT, ceiling * 4 // 5)
    _shorten_to(draft, shorter)


def _with_extracts(draft: Draft, targets: Sequence[int], ceiling: int) -> History:
    """The history, its contents at ``targets`` with parts of at most ``ceiling`` tokens each."""
    history, items, forms = draft.history, list(draft.history.items), dict(draft.history.forms)
    raws, request_at = [item.raw for item in items], request_place(draft)
    for at in targets:
        item, change = items[at], forms.get(items[at].origin)
        # An extract only becomes shorter.
        max_tokens = ceiling if change is None or change.tokens is None else min(ceiling, change.tokens)
        stands_in = item.form == "placeholder"
        raw, query = item.content if stands_in else item.raw, query_of(raws, at, request_at)
        content, members = extract(draft, item.origin, raw, max_tokens, query)
        if content.digest != item.content.digest:
            form: Literal["placeholder", "extract"] = "placeholder" if stands_in else "extract"
            tokens = draft.counter.content(content)
            members = (() if stands_in else members) or item.members
            items[at] = item._replace(content=content, form=form, tokens=tokens, members=members)
            reason: Reason = change.reason if change is not None and stands_in else "window"
            forms[item.origin] = ContentForm(form, reason, max_tokens)
    return history._replace(items=tuple(items), forms=forms)


def _shorten_to(draft: Draft, shorter: History) -> None:
    """Takes over a history with shorter contents, with their event."""
    pairs = zip(draft.history.items, shorter.items, strict=True)
    touched = [new_item.origin for old_item, new_item in pairs if old_item.content is not new_item.content]
    if touched:
        tokens_before, draft.history = draft.conversation_tokens(), shorter
        note_contents(draft, "emergency", touched, tokens_before)


def _drop_other_messages(draft: Draft) -> None:
    """Whatever strategies and anchors hold goes, then messages beside the request, the oldest first."""
    parts = units([item.content for item in draft.history.items])
    protected_units = protected(parts, request_place(draft))
    going = [at for at in range(len(parts)) if at not in protected_units]
    # A turn's human message outlives its answers, so that what stays begins with the words of a person.
    going.sort(key=lambda at: (parts[at].kind == "human", at))
    leave_out(draft, [parts[at].indices for at in going])


def _removable_contents(draft: Draft) -> list[int]:
    """The places of the contents beside the request that may give way: all but the agent's instruction."""
    items, request_index = draft.history.items, draft.input.request.request_index
    return [at for at, item in enumerate(items) if item.origin != request_index and not is_instruction(item.raw)]


def _shorten_request(draft: Draft) -> None:
    """Shortens the human message until the pack is within the budget or nothing more may go."""
    raw, index = draft.request_content, draft.input.request.request_index
    if raw is None or index is None:
        return
    task, over = draft.measured["task"], excess_tokens(draft)
    for _ in range(_MOST_TRIES):
        _shorten_message(draft, raw, task, over)
        payload.write_payload(draft)
        if (excess := excess_tokens(draft)) <= 0:
            break
        over += excess
    if draft.measured["task"] != task:
        note_contents(draft, "emergency", [index], task, draft.measured["task"], layer="task")


def _shorten_message(draft: Draft, raw: Content, task: int, over: int) -> None:
    """Decides how a human message of ``task`` tokens loses about ``over`` of them.

    The plan's own text is cut down first, where the request finds room without it. The middle of an oversized request,
    or of what was handed over, leaves a note, and goes to the store. Where that would not be enough, its media go
    first, the largest first, since words without them say more than they do without words; and where it is not, the
    plan's own text is cut down, too.
    """
    counter, message, freed, note = draft.counter, draft.message, 0, ""
    size, min_request_tokens = _request_tokens(draft), _least_request(raw, counter)
    request, largest, max_preamble_tokens = message.request, message.largest, message.max_preamble_tokens
    instructions = counter.count(payload.instruction_section(draft, draft.instructs))
    plan = task - size - instructions - sum(map(counter.media, raw.parts))
    cuts_plan = plan >= 2 * LEAST_EXTRACT and (not draft.epoch.has_chosen or message.is_anew)
    if cuts_plan and draft.needed_tokens <= draft.budget.input:
        max_preamble_tokens = max(LEAST_EXTRACT, plan - over)
        over -= plan - max_preamble_tokens
    sizes = payload.sizes_beside_text(raw, counter)
    max_size = draft.epoch.packed_form.largest if draft.epoch.packed_form is not None else None
    part_sizes = [tokens for tokens in sizes.values() if max_size is None or tokens <= max_size]
    if part_sizes and (more := over - max(0, size - min_request_tokens)) > 0:
        fitting = (cap for cap in (*part_sizes, 0) if sum(tokens for tokens in part_sizes if tokens > cap) >= more)
        largest = max(fitting, default=0)
        freed = sum(tokens for tokens in part_sizes if tokens > largest)
    out = [at for at, tokens in sizes.items() if largest is not None and tokens > largest]
    if out:
        names = ", ".join(f"{raw.parts[at].mime_type or 'a part'} of {sizes[at]} tokens" for at in out[:_MOST_NAMED])
        and_more = f" and {len(out) - _MOST_NAMED} more" if len(out) > _MOST_NAMED else ""
        note = f"\n[Left out of this message: {names}{and_more}]"
    if freed:
        freed -= counter.count(note)
        request = f"{raw.text}{note}".lstrip("\n")
    if over > freed and size > min_request_tokens:
        text = _shorter_request(draft, raw, size - (over - freed), min_request_tokens)
        freed += size - counter.count(text)
        request = f"{text}{note}"
    if (lack := over - freed) > 0 and cuts_plan:
        max_preamble_tokens = max(LEAST_EXTRACT, (plan if max_preamble_tokens is None else max_preamble_tokens) - lack)
    draft.message = draft.message._replace(request=request, largest=largest, max_preamble_tokens=max_preamble_tokens)


def _shorter_request(draft: Draft, raw: Content, room: int, min_tokens: int) -> str:
    """The request, or what was handed over, with a note in the place of its middle, in about ``room`` tokens."""
    counter = draft.counter
    uri = message_uri(raw.digest)
    records = draft.policy.record == "full"
    where = f"; the whole of it is {uri}" if records and draft.input.host.can_read else ""
    note = f"[The middle of this message is left out{where}]"
    if tools := draft.measured["tools"]:
        room = min(room, int(_MOST_REQUEST * (draft.budget.input - draft.measured["system"] - tools)))
    room = max(min_tokens, room) - counter.count(note) - 4
    draft.message = draft.message._replace(saved={uri: raw.text} if records else {})
    if raw.quotes:
        # Each thing that is quoted is cut down; where there are too many of them, only what was said last stays.
        sizes = counter.count_all([quote.text for quote in raw.quotes])
        quote_room = room - (counter.count(raw.text) - sum(sizes))
        if quote_room >= _LEAST_QUOTE * len(sizes):
            return f"{note}\n{shorten_content(raw, level(sizes, quote_room), counter=counter).text}"
        return f"{note}\n{quoted_alone(raw, room, '', counter).text}"
    requests = requests_in(raw.text)
    # Of a text full of questions none is the user's more than others.
    query = "\n".join(requests) if len(requests) < MOST_REQUESTS else ""
    brief = shorten(raw.text, max(8, room), counter=counter, query=query, names=True, pinned=requests)
    return f"{note[:-1]}; it names {brief.names}]\n{brief.text}" if brief.names else f"{note}\n{brief.text}"


def _least_request(raw: Content, counter: PackCounter) -> int:
    """Tokens that are left of a request at least; of another agent's turn as many beside the host's own words."""
    return _LEAST_REQUEST + (counter.content(quoted_alone(raw, 0, "", counter)) if raw.quotes else 0)


def _request_tokens(draft: Draft) -> int:
    """Tokens of the request, or of what was handed over, as it is sent now: an earlier call may have shortened it."""
    raw, packed_form = draft.request_content, draft.epoch.packed_form
    if raw is None:
        return 0
    if packed_form is None or not packed_form.before:
        return draft.counter.count(raw.text)
    return draft.counter.count(payload.answered(packed_form.after) if packed_form.after else packed_form.before)


def _leave_out_candidates(draft: Draft) -> None:
    """Memories and evidence go from the payload, those that an earlier call of this invocation chose among them."""
    sizes, selected = {layer: tokens for layer, tokens in draft.payload_tokens.items() if tokens}, draft.selected
    if not sizes:
        return
    draft.selected = SelectedCandidates(dropped=(*selected.dropped, *selected.memory, *selected.evidence))
    draft.epoch = draft.epoch._replace(packed_form=None)
    draft.message = draft.message._replace(is_anew=True)
    payload.write_payload(draft)
    for layer, tokens in sizes.items():
        note_contents(draft, "emergency", (), tokens, 0, layer=layer)


def _flatten_last_exchange(draft: Draft) -> None:
    """Leaves out other agents' messages, the oldest first, then writes the last exchange as one text.

    Messages go after what answers them: an answer does not come first. One text, since sending some of its calls would
    need a record of which of them stay, kept right through whatever a host makes of its history: a call without its
    response gets the request refused.
    """
    parts = sorted(units([item.content for item in draft.history.items]), key=lambda unit: unit.kind == "human")
    last, removable = unread_exchange(parts, request_place(draft)), _removable_contents(draft)
    origins = [draft.history.items[at].origin for at in (last.indices if last is not None else ()) if at in removable]
    leave_out(draft, [[at for at in unit.indices if at in removable] for unit in parts if unit is not last])
    over = excess_tokens(draft)
    if over <= 0 or not origins:
        return
    tokens_before = draft.conversation_tokens()
    max_tokens = tokens_before - draft.summary_tokens
    for _ in range(_MOST_TRIES):
        max_tokens = max(LEAST_EXTRACT, max_tokens - over)
        flatten_exchange(draft, origins, max_tokens)
        if (over := excess_tokens(draft)) <= 0:
            break
    note_contents(draft, "emergency", origins, tokens_before)
