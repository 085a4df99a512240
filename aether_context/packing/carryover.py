"""What the epoch carries into this call: shortened responses and packed messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aether_context.canonical import hash_text, short
from aether_context.conversation import units
from aether_context.conversation.rewrites import (
    packed_message,
    query_of,
    sent_places,
    shorten_content,
    told,
    words_before,
)
from aether_context.conversation.strategy import gain
from aether_context.conversation.turns import is_human
from aether_context.pack import Content, EpochReason, Outcome, Outgoing, PackedMessage, PackInput
from aether_context.packing import payload
from aether_context.packing.draft import Draft, occurrence_keys

_REASONS: Mapping[str, EpochReason] = {
    "step": "step_changed",
    "role": "role_changed",
    "acceptance": "acceptance_changed",
    "system": "system_changed",
    "tools": "tools_changed",
}
"""Why a new epoch begins where one of these marks is another than the epoch's, in this order."""


def restore_forms(draft: Draft) -> None:
    """Applies what the epoch has decided: the contents in the form in which they would be sent."""
    source = draft.input
    epoch, request = source.epoch, source.request
    explains = draft.policy.payload.contract == "system" and request.system_is_text and not source.passthrough_reason
    standing = epoch.contract and explains
    marks = _marks(draft, _system(request.system, standing))
    if not epoch.number:
        draft.changed = "first_call"
    elif source.rewritten:
        draft.changed = "history_rewritten"
    else:
        differs = (reason for mark, reason in _REASONS.items() if marks[mark] != epoch.marks.get(mark, ""))
        draft.changed = next(differs, None)
    new_step = draft.changed in ("first_call", "step_changed", "role_changed", "acceptance_changed")
    draft.keeps = not draft.at_cut and not source.first_call and not new_step
    # The system instruction explains the pack from now on where there is a plan, and no prefix to keep. Elsewhere a
    # payload explains itself, in as many words as its sections need.
    new_head = any(marks[mark] != epoch.marks.get(mark, "") for mark in ("system", "tools"))
    breaks = not epoch.number or source.rewritten or new_head
    may_begin = explains and not draft.keeps and source.validity != "unplanned"
    draft.contract = standing or (may_begin and breaks)
    draft.system = _system(request.system, draft.contract)
    draft.epoch_marks = {**marks, "system": short(hash_text(draft.system))}
    if draft.keeps and draft.raw_human is not None:
        key = (draft.raw_human.digest, source.identity.invocation)
        draft.packed = next((packed for packed in epoch.payloads if (packed.of, packed.invocation) == key), None)
    draft.keys = occurrence_keys(request.contents)
    packed_by_index = _packed_messages(draft)
    draft.incoming = draft.items = _items(draft, packed_by_index)
    draft.states = epoch.strategies
    draft.summary, draft.summary_place = epoch.summary, epoch.summary_place
    draft.extracts, draft.told = epoch.extracts, epoch.told
    draft.largest = draft.packed.largest if draft.packed is not None else None
    draft.step = source.step
    for unit in units(request.contents) if epoch.told else ():
        origins = [at for at in unit.indices if at != draft.human and at not in packed_by_index]
        if origins and draft.keys[origins[-1]] in epoch.told:
            tell(draft, origins, epoch.told[draft.keys[origins[-1]]])


def _system(text: str, contract: bool) -> str:
    if not contract:
        return text
    return f"{text}\n\n{payload.SYSTEM_CONTRACT}" if text else payload.SYSTEM_CONTRACT


def _marks(draft: Draft, system: str) -> dict[str, str]:
    """Short digests of what an epoch begins with."""
    source, scope = draft.input, draft.scope
    step = source.step
    planned = source.validity != "unplanned"
    sent = {tool.name for tool in scope.tools}
    digests = [tool.digest for tool in source.request.tools if tool.name in sent]
    chosen = {"scope": scope.key} if scope.key else {}
    return {
        **chosen,
        "system": short(hash_text(system)),
        "tools": short(hash_text("\n".join([*digests, *source.request.other_tools]))),
        "step": short(hash_text("\n".join([step.task_id, step.step_id, step.text]))) if planned else "",
        "role": short(hash_text(step.role)) if planned else "",
        "acceptance": short(hash_text(payload.checklist(step))) if planned else "",
    }


def _items(draft: Draft, packed_by_index: Mapping[int, PackedMessage]) -> tuple[Outgoing, ...]:
    epoch, request, counter = draft.input.epoch, draft.input.request, draft.counter
    forms: list[tuple[Content, Outcome, tuple[tuple[int, int], ...]]] = []
    for index, raw in enumerate(request.contents):
        if (packed := packed_by_index.get(index)) is not None:
            content, members = packed_message(raw, index, packed, counter)
            forms.append((content, "payload", members))
        elif (ceiling := epoch.extracts.get(draft.keys[index])) is not None:
            content, members = extract(draft, index, raw, ceiling, query_of(request.contents, index))
            forms.append((content, "extract", members))
        else:
            forms.append((raw, "verbatim", ()))
    counts = counter.contents([content for content, _, _ in forms])
    return tuple(
        Outgoing(content=content, raw=raw, origin=index, outcome=outcome, tokens=tokens, members=members)
        for index, (raw, (content, outcome, members), tokens) in enumerate(
            zip(request.contents, forms, counts, strict=True)
        )
    )


def extract(
    draft: Draft, origin: int, raw: Content, ceiling: int, query: str
) -> tuple[Content, tuple[tuple[int, int], ...]]:
    """A content of the host's with parts of at most ``ceiling`` tokens, with the members of `Outgoing`."""
    is_over = is_past(draft, origin)
    content = shorten_content(raw, ceiling, counter=draft.counter, query=query, is_over=is_over)
    places = sent_places(raw, is_over=is_over)
    return content, () if len(places) == len(raw.parts) else tuple((origin, at) for at in places)


def is_past(draft: Draft, origin: int) -> bool:
    """Whether a content belongs to a turn that is over: it stands before the final human message."""
    return draft.human is not None and origin < draft.human


def tell(draft: Draft, origins: Sequence[int], max_tokens: int) -> None:
    """Sends these contents as one text of about ``max_tokens`` tokens, in the place of the last of them.

    So a call goes with its response, whatever the host makes of its history later.
    """
    contents, last = draft.input.request.contents, origins[-1]
    words = words_before(contents, origins[0])
    text = told([contents[origin] for origin in origins], max_tokens, words, draft.counter)
    made = Outgoing(
        content=text,
        raw=contents[last],
        origin=last,
        outcome="told",
        tokens=draft.counter.content(text),
        members=tuple((last, -1) for _ in text.parts),
    )
    gone = frozenset(origins[:-1])
    draft.items = tuple(made if item.origin == last else item for item in draft.items if item.origin not in gone)
    draft.hidden, draft.reasons = draft.hidden | gone, {**draft.reasons, **dict.fromkeys(gone, "window")}
    draft.told = {**draft.told, draft.keys[last]: max_tokens}


def _packed_messages(draft: Draft) -> dict[int, PackedMessage]:
    """The packed form of each human message that is sent in one, by index; the earlier ones among them are ``past``.

    Which earlier messages return to their own words is decided once an invocation, and where the prefix ends.
    """
    source, human = draft.input, draft.human
    packed_by_index = _matched(source)
    past = {index: packed for index, packed in packed_by_index.items() if index != human}
    if draft.begins:
        past = {}
    elif not draft.keeps:
        sent = {
            index: packed_message(source.request.contents[index], index, packed, draft.counter)[0]
            for index, packed in past.items()
        }
        past = {index: past[index] for index in _still_packed(draft, past, sent)}
    draft.past = tuple(past[index] for index in sorted(past))
    return {
        index: packed for index, packed in packed_by_index.items() if index in past or (draft.keeps and index == human)
    }


def plan_digest(source: PackInput) -> str:
    """A short digest of all that the step says. Payloads of different plans differ in it."""
    return short(hash_text(payload.step_text(source.step)))


# Which messages of earlier invocations go on in their packed text, and which return to the user's own words.
#
# A request needs one pack, the current one. An earlier message that returns to its own words is shorter in every
# request from then on, but the provider has to read all that comes after it once more. Where the prefix ends
# anyway, or the pack speaks of another plan, there is nothing to weigh.

_LEAST_CALLS = 20
"""Model calls that a conversation is expected to go on for; one that had more is expected to have as many again."""


def _matched(source: PackInput) -> dict[int, PackedMessage]:
    """The packed form of each human message that has one, by index.

    A message that others equal takes the one that was made at its own place; where history moved since, the latest take
    theirs first.
    """
    request, invocation = source.request, source.identity.invocation
    unmatched = [packed for packed in source.epoch.payloads if packed.before]
    packed_by_index: dict[int, PackedMessage] = {}
    for in_place in (True, False):
        for index in range(len(request.contents) - 1, -1, -1):
            raw = request.contents[index]
            current = index == request.human
            if not unmatched or index in packed_by_index or not (current or is_human(raw)):
                continue
            match = next(
                (
                    packed
                    for packed in reversed(unmatched)
                    if packed.of == raw.digest
                    and (packed.invocation == invocation) == current
                    and (not in_place or packed.place == request.positions[index])
                ),
                None,
            )
            if match is not None:
                unmatched.remove(match)
                packed_by_index[index] = match
    return packed_by_index


def _still_packed(draft: Draft, past: Mapping[int, PackedMessage], sent: Mapping[int, Content]) -> Sequence[int]:
    """The indices in ``past`` of earlier messages that keep their packed text, where the prefix goes on.

    A break costs nothing before its place, so the messages that keep their packed text are the earliest ones. It is
    made where it gains most, for as many calls as the conversation is expected to have before it is cut.

    Args:
        past: earlier messages that were sent packed last.
        sent: those messages in their packed form.
    """
    counter, plan = draft.counter, plan_digest(draft.input)
    places = sorted(past)
    if not places:
        return ()
    first_of_other_plan = next((at for at, index in enumerate(places) if past[index].plan != plan), len(places))
    candidates = places[:first_of_other_plan]
    if not candidates:
        return candidates
    contents, human = draft.input.request.contents, draft.human
    raw = counter.contents(contents)
    payload_tokens = {index: counter.content(sent[index]) - raw[index] for index in places}
    # No earlier request held what comes after the model's last answer.
    last = len(contents) if human is None else human
    unsent = next((at for at in range(last - 1, -1, -1) if contents[at].role == "model"), last)
    end = places[first_of_other_plan] if first_of_other_plan < len(places) else unsent
    spoken = sum(raw) + sum(payload_tokens.values())
    replies = max(1, sum(content.role == "model" for content in contents))
    room = max(0, draft.input_budget - spoken)
    calls = min(max(_LEAST_CALLS, replies), room * replies / max(1, spoken))

    def gained(start: int) -> float:
        return gain(
            saved=sum(payload_tokens[index] for index in candidates[start:]),
            calls=calls,
            resent=sum(raw[candidates[start] : end]),
            cached_price=draft.input.cached_price,
        )

    best = max(range(len(candidates)), key=gained)
    return candidates[:best] if gained(best) > 0 else candidates
