"""The conversation as it is sent: the policy's strategies, the cut behind all of them, and the last resort.

Early strategies look at what the host sent alone, before the window is allocated; late ones at the water marks. A
strategy may pass its own budget. Where what it leaves would still pass the window, units go from the oldest, as under
the default strategy.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Literal

from aether_context.canonical import short
from aether_context.conversation import (
    Budget,
    Conversation,
    Decision,
    Removed,
    Replaced,
    ranked,
    standing_anchors,
    strategies_of,
    units,
)
from aether_context.conversation.extracts import (
    LEAST_EXTRACT,
    part_tokens,
    query_of,
    quoted_alone,
    response_tokens,
    shorten_content,
)
from aether_context.conversation.strategies import NET, Cutting, net
from aether_context.conversation.strategy import summary_content
from aether_context.conversation.summary import recap
from aether_context.conversation.turns import is_instruction, protected, unread
from aether_context.pack import (
    LEAST_WINDOW_READ,
    RECALLED,
    Content,
    Layer,
    Outgoing,
    Reason,
    Stage,
    TruncationEvent,
    content_name,
)
from aether_context.packing import payload
from aether_context.packing.carryover import extract, is_past, tell, without_unseen
from aether_context.packing.draft import Changed, Chosen, Draft, History
from aether_context.packing.selection import latest_need, leaves_latest
from aether_context.text.shorten import level, shorten
from aether_context.tokens.cache import PackCounter


def trim_early(draft: Draft) -> None:
    """Applies the policy's early strategies, in their order."""
    early = [strategy for strategy in strategies_of(draft.policy.conversation) if strategy.early]
    if not early or draft.input.host.passthrough_reason:
        return
    conversation = _as_sent_by_host(draft)
    for strategy in early:
        # Decided anew at each call, from what the host sends then; what they keep between calls is their state.
        result = strategy.trim(conversation)._replace(lasting=False)
        _apply(draft, result)
        conversation = conversation.after(result)


def leave_out_media(draft: Draft) -> None:
    """Puts notes in the place of media that the provider takes no more of; what an earlier call left out stays so."""
    items, before, unseen = draft.history.items, draft.spoken(), draft.input.host.unseen
    earlier = [without_unseen(draft, item, draft.input.epoch.unseen) for item in items]
    draft.history = draft.history._replace(items=tuple(without_unseen(draft, item, unseen) for item in items))
    pairs = zip(draft.history.items, earlier, strict=True)
    if new := [item.origin for item, known in pairs if item.content.wire != known.content.wire]:
        _note(draft, "replace", new, before, reason="provider_limit")


def compact(draft: Draft) -> None:
    """Applies the policy's late strategies in their order, then the net where too much is left.

    A cut by hand goes down to the low-water mark, or to that share of what there is where that is less.
    """
    if reason := draft.input.host.passthrough_reason:
        draft.account = draft.account._replace(degradations=(reason,))
        draft.history = draft.history._replace(states={})
        return
    draft.budget = budget = _budget(draft)
    settings, forced, spoken = draft.policy.conversation, draft.by_hand, draft.spoken()
    late = [strategy for strategy in strategies_of(settings) if not strategy.early]
    if forced:
        budget = budget._replace(cut_to=min(budget.cut_to, int(settings.compact_to * spoken)))
    elif all(
        isinstance(strategy, Cutting)
        and (spoken <= strategy.mark(budget) or _is_gated(draft, spoken + budget.fixed, budget.input))
        for strategy in (*late, net(settings))
    ):
        return  # No mark is passed, as at most calls, which need not read the history for that.
    for strategy in late:
        _apply(draft, strategy.trim(_as_sent(draft, budget, forced=forced)))
    # What was asked for by hand is done once: by the net where no strategy did it.
    _apply(draft, net(settings).trim(_as_sent(draft, budget, forced=forced and not draft.account.acts)))
    # A cut counts tokens, and what it leaves may have more bytes a token than what went: it is made again until the
    # bytes fit, and where it cannot, the oldest goes that may go. The current request and what answers it stay.
    for _ in range(_ROUNDS + len(draft.history.items)):
        if (most := _byte_net(draft)) is None:
            break
        before, budget = draft.history.items, budget._replace(net=most, cut_to=min(budget.cut_to, most))
        _apply(draft, net(settings).trim(_as_sent(draft, budget, forced=False)))
        if draft.history.items == before and not _leave_out_oldest(draft):
            break


def _apply(draft: Draft, result: Decision) -> None:
    history, account = draft.history, draft.account
    draft.history = history = history._replace(
        normalize=history.normalize or result.normalize,
        states=history.states if result.state is None else result.state,
    )
    if result.note and result.note not in account.degradations:
        draft.account = account = account._replace(degradations=(*account.degradations, result.note))
    if not result.changes:
        return
    items, forms = list(history.items), dict(history.forms)
    for removed in result.removed:
        forms[items[removed.index].origin] = Changed("left_out", removed.reason)
    for replaced in result.replaced:
        item, content = items[replaced.index], replaced.content
        form: Literal["placeholder", "extract"] = "placeholder" if replaced.ceiling is None else "extract"
        forms[item.origin] = Changed(form, replaced.reason, replaced.ceiling)
        items[replaced.index] = item._replace(content=content, form=form, tokens=draft.counter.content(content))
    if result.act is not None:
        draft.account = account._replace(acts=(*account.acts, result.act))
        placeholders = [change for change in result.replaced if change.new and change.ceiling is None]
        left: list[Removed | Replaced] = [change for change in result.removed if change.new]
        left += [change for change in result.replaced if change.ceiling is not None]
        stages: tuple[tuple[Stage, Sequence[Removed | Replaced]], ...] = (
            ("replace", placeholders),
            ("cut" if result.lasting else "hide", left),
        )
        for stage, changes in stages:
            if changes or (stage == "cut" and result.cuts):
                reason = changes[0].reason if changes else "window"
                origins = [items[change.index].origin for change in changes]
                after, name = result.tokens_after, result.act.strategy
                _note(draft, stage, origins, result.tokens_before, after, reason=reason, strategy=name)
    gone = {items[removed.index].origin for removed in result.removed}
    if not result.cuts:
        draft.history = history._replace(items=tuple(item for item in items if item.origin not in gone), forms=forms)
        return
    summary, place = history.summary if result.summary is None else result.summary, history.summary_place
    if result.summary_at is not None:
        at = draft.input.request.positions[items[result.summary_at].origin]
        place = min(at, place) if history.summary else at
    draft.history = history._replace(items=tuple(items), forms=forms, summary=summary, summary_place=place)
    _take_out(draft, gone)


def _note(
    draft: Draft,
    stage: Stage,
    origins: Iterable[int],
    before: int,
    after: int | None = None,
    *,
    layer: Layer = "conversation",
    reason: Reason = "window",
    strategy: str = "",
) -> None:
    """Adds the event of an act on contents; the conversation's tokens ``after`` it are those that are there."""
    request = draft.input.request
    event = TruncationEvent(
        layer=layer,
        stage=stage,
        reason=reason,
        item_ids=tuple(content_name(request.positions[at], request.contents[at].digest) for at in origins),
        tokens_before=before,
        tokens_after=draft.spoken() if after is None else after,
        strategy=strategy,
    )
    draft.note(event)


def _conversation(draft: Draft, items: Sequence[Outgoing], tokens: Sequence[int], budget: Budget) -> Conversation:
    """These contents as a conversation; its summary and what else came of earlier calls aside."""
    request = draft.input.request
    return Conversation(
        contents=tuple(item.content for item in items),
        raws=tuple(item.raw for item in items),
        tokens=tuple(tokens),
        request_index=next((at for at, item in enumerate(items) if item.origin == draft.request_index), None),
        positions=tuple(request.positions[item.origin] for item in items),
        budget=budget,
        counter=draft.counter,
        system=request.system,
        tools=request.tools,
        opens=draft.input.request.first_call,
    )


def _as_sent_by_host(draft: Draft) -> Conversation:
    """The conversation for early strategies: packed messages in their own words, extracts as they are sent.

    The tokens of packed messages are those of what is sent.
    """
    source, counter, settings = draft.input, draft.counter, draft.policy.conversation
    request, spare = source.request, source.usage.spare_tokens
    items = [item._replace(content=item.raw) if item.form == "payload" else item for item in draft.history.items]
    tokens = [item.tokens for item in items]
    # All that the host declares, not what is sent of it: declarations that become shorter at an invocation's first call
    # would move the ceiling at the second, and with it what `sliding_turns` leaves out, which ends the cached prefix.
    fixed = source.usage.uncounted_tokens + sum(counter.tools(request.tools))
    fixed += sum(counter.count_all(request.other_tools))
    fixed += counter.system(draft.carried.system, declares=bool(request.tools or request.other_tools))
    budget = Budget.of(
        source.window,
        slack=source.window - draft.input_budget,
        fixed=fixed,
        compact_at=settings.compact_at,
        compact_to=settings.compact_to,
    )
    budget = budget._replace(most=max(0, budget.most + spare))
    return replace(
        _conversation(draft, items, tokens, budget),
        anchors=ranked(source.host.anchors),
        state=source.epoch.strategies,
        forced=draft.by_hand,
        gated=_is_gated(draft, fixed + sum(tokens), draft.input_budget + spare),
    )


def _as_sent(draft: Draft, budget: Budget, *, forced: bool) -> Conversation:
    """The conversation for late strategies, as it would be sent after a cut.

    The human message's tokens are counted elsewhere, and so is what earlier messages have beside their own words.
    """
    items = [_unpacked(draft, item) for item in draft.history.items]
    spoken = draft.spoken()
    conversation = _conversation(
        draft, items, [0 if item.origin == draft.request_index else item.tokens for item in items], budget
    )
    standing = standing_anchors(conversation.contents, conversation.positions, draft.policy.conversation)
    recalled = [candidate.line for candidate in draft.chosen.memory if candidate.source == RECALLED]
    return replace(
        conversation,
        request_tokens=0 if conversation.request_index is None else items[conversation.request_index].tokens,
        anchors=ranked([*draft.input.host.anchors, *standing]),
        state=draft.history.states,
        summary=draft.history.summary,
        summary_tokens=draft.summary_tokens,
        payload_tokens=spoken - draft.spoken(items),
        forced=forced,
        gated=_is_gated(draft, spoken + budget.fixed, budget.input),
        verbatim=not draft.policy.compress.enabled,
        recalled=" ".join(word for line in recalled for word in line.split()),
        media=draft.input.host.media,
        can_read=draft.input.host.can_read and draft.input.window >= LEAST_WINDOW_READ,
        cached_price=draft.input.host.cached_price,
        summaries=draft.account.summaries,
    )


def _budget(draft: Draft) -> Budget:
    """The marks of the conversation: what the water marks leave beside the other layers, or its own share of them."""
    allocation, fixed, settings, net = draft.allocation, draft.fixed, draft.policy.conversation, _byte_net(draft)
    # At least the shares of the conversation's own ceiling: where evidence and memory alone pass the marks, a cut could
    # never get below them, and would be made again at every call.
    budget = Budget(
        window=allocation.budget + allocation.slack,
        slack=allocation.slack,
        fixed=fixed,
        most=max(allocation.layers["conversation"].final, allocation.budget - fixed),
        cut_above=0,
        cut_to=0,
        net=net,
    )
    cut_to = budget.mark(settings.compact_to)
    # Recalled turns say what a cut took, so that they are of the share that it leaves, and the conversation keeps what
    # its latest turns need beside them.
    if leaves_latest(draft):
        recalled = sum(memory.tokens for memory in draft.chosen.memory if memory.source == RECALLED)
        both = budget._replace(fixed=fixed - recalled, most=budget.most + recalled)
        latest = min(budget.most, latest_need(draft)) - draft.input.growth_reserve
        latest = min(latest, budget.most if net is None else int(settings.compact_to * net))
        cut_to = max(both.mark(settings.compact_to) - recalled, latest)
    return budget._replace(cut_above=budget.mark(settings.compact_at), cut_to=cut_to)


_NET_BYTES_PER_TOKEN = 3.6
"""The size of the byte net, by the tokens of the window."""


def _byte_net(draft: Draft) -> int | None:
    """The tokens of the conversation that the byte net lets through; None where it lets all of them through.

    The net is there for calls before which nothing was reported in the invocation: the first one, or all of them where
    a provider reports nothing. It catches what the count lets pass.
    """
    known = draft.input.usage.calibration
    if not draft.policy.usage.gate or (known is not None and known.report_minus_count is not None):
        return None
    contents = [item.content for item in draft.history.items]
    contents += [summary_content(draft.history.summary)] if draft.history.summary else []
    most, size = _NET_BYTES_PER_TOKEN * draft.input.window, sent_bytes(contents)
    return int(most / size * draft.spoken()) if size > most else None


def sent_bytes(contents: Iterable[Content]) -> int:
    """Bytes of contents as JSON in UTF-8."""
    wires = (content.wire for content in contents)
    return sum(len(wire) if wire.isascii() else len(wire.encode("utf-8", "surrogatepass")) for wire in wires)


def _is_gated(draft: Draft, counted: int, budget: int) -> bool:
    """Tells whether reported usage says that the window is far from full, though the count is past its high-water mark.

    Args:
        counted: tokens of the whole request and what is unseen of it.
        budget: the input budget, which the count may not pass.
    """
    # Estimates rather count too much, so a report of this invocation, with what was added since, is heard before a cut.
    known = draft.input.usage.calibration
    if known is None or known.report_minus_count is None or counted > budget:
        return False
    mark = min(draft.policy.usage.gate * draft.input.window, draft.policy.conversation.compact_at * budget)
    return counted - known.uncounted_tokens + known.report_minus_count < mark


def _take_out(draft: Draft, gone: Collection[int]) -> None:
    """Cuts contents for good, by origin; earlier messages return to their own text with it."""
    items = tuple(_unpacked(draft, item) for item in draft.history.items if item.origin not in gone)
    draft.history = draft.history._replace(items=items, cut=draft.history.cut.union(gone))


def _unpacked(draft: Draft, item: Outgoing) -> Outgoing:
    """An earlier invocation's message with its own text again; a cut breaks the prefix that its packed text kept."""
    if item.form != "payload" or item.origin == draft.request_index:
        return item
    return item._replace(content=item.raw, form="whole", tokens=draft.counter.content(item.raw), members=())


# The last resort: whatever is left of a conversation goes out within the input budget.
#
# From the mildest act to the hardest, each only as far as needed: signed thoughts of turns that are over go; responses
# that the model has yet to read become extracts, then whatever else is long; messages beside the request go, and what
# strategies chose to keep; the summary of older cuts becomes shorter or goes; so do the memories and the evidence that
# the payload holds. Then what other agents handed over goes, and an exchange with more calls than there is room for
# becomes one text; the plan's text is cut down; and last of all the request gives way. Only a request that passes the
# window with nothing but system instruction and declarations beside it shares the room with what it is answered from,
# and gives way before that. System instruction and declarations stay as they are.

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
    last = (
        (_tell_last, _shorten_request) if draft.needed_tokens <= draft.budget.input else (_shorten_request, _tell_last)
    )
    for act in (
        _leave_out_thoughts,
        _shorten_responses,
        _shorten_parts,
        _leave_out_neighbours,
        _shorten_summary,
        _leave_out_candidates,
        *last,
    ):
        if _over(draft) <= 0:
            break
        act(draft)
    # A window may be too small even for a summary that a cut has just written; who reads the manifest is told.
    cut = draft.history.cut or draft.input.epoch.summary
    told = draft.history.summary or any(one.source == RECALLED for one in draft.chosen.memory)
    if cut and not told and draft.policy.conversation.summary_share:
        draft.account = draft.account._replace(degradations=(*draft.account.degradations, _NO_SUMMARY))


def _over(draft: Draft, items: Sequence[Outgoing] | None = None) -> int:
    """Tokens over the input budget, with these contents in the place of those that are sent."""
    return draft.spoken(items) + draft.fixed - draft.budget.input


def _leave_out_thoughts(draft: Draft) -> None:
    """Signed thoughts of turns that are over go; the rest of their contents stays as it is.

    They go first, since providers ignore or refuse them anyway.
    """
    thoughtful = [
        at
        for at, item in enumerate(draft.history.items)
        if item.form in ("whole", "extract")
        and is_past(draft, item.origin)
        and any(part.is_thought and part.is_signed for part in item.content.parts)
    ]
    # A ceiling of the whole window: thoughts go by the rule for what is signed, and nothing else is long enough.
    _shorten_to(draft, _with_extracts(draft, thoughtful, draft.budget.window))


def _shorten_responses(draft: Draft) -> None:
    """Responses of the exchange that the model has yet to read become extracts."""
    items, counter, budget = draft.history.items, draft.counter, draft.budget
    last = unread(units([item.content for item in items]), _request_place(draft))
    tokens = {at: response_tokens(items[at].content, counter) for at in (last.indices if last is not None else ())}
    targets, sizes = [at for at in tokens if tokens[at]], [size for inside in tokens.values() for size in inside]
    if not sizes:
        return
    beside = draft.spoken(items) - sum(sizes)
    enough = budget.cut_above - beside >= LEAST_EXTRACT * len(sizes)
    room = (budget.cut_above if enough else budget.input - budget.fixed) - beside
    ceiling = max(LEAST_EXTRACT, level(sizes, room))
    changed = _with_extracts(draft, targets, ceiling)
    while ceiling > LEAST_EXTRACT and (excess := draft.spoken(changed.items) - room - beside) > 0:
        ceiling = max(LEAST_EXTRACT, ceiling - excess)
        changed = _with_extracts(draft, targets, ceiling)
    _shorten_to(draft, changed)


def _shorten_parts(draft: Draft) -> None:
    """Whatever is long becomes an extract: texts, arguments, code, media, whoever's they are.

    A request that cannot stay whole is measured with them, so that it gives way before what is shorter than it.
    """
    items, request = draft.history.items, _request_tokens(draft) if draft.needed_tokens > draft.budget.input else 0
    targets = [at for at in _beside(draft) if items[at].form not in ("payload", "told")]
    sizes = {
        at: part_tokens(items[at].content, draft.counter, is_over=is_past(draft, items[at].origin)) for at in targets
    }
    all_sizes = [request, *(size for part_sizes in sizes.values() for size in part_sizes)]
    ceiling = max(LEAST_EXTRACT, level(all_sizes, sum(all_sizes) - _over(draft)))
    for _ in range(_ROUNDS):
        long = [at for at in targets if max(sizes[at], default=0) > ceiling]
        changed = _with_extracts(draft, long, ceiling)
        if _over(draft, changed.items) <= max(0, request - ceiling) or ceiling == LEAST_EXTRACT:
            break
        ceiling = max(LEAST_EXTRACT, ceiling * 4 // 5)
    _shorten_to(draft, changed)


def _with_extracts(draft: Draft, targets: Sequence[int], ceiling: int) -> History:
    """The history, its contents at ``targets`` with parts of at most ``ceiling`` tokens each."""
    history, items, forms = draft.history, list(draft.history.items), dict(draft.history.forms)
    raws, place = [item.raw for item in items], _request_place(draft)
    for at in targets:
        item, change = items[at], forms.get(items[at].origin)
        # An extract only becomes shorter.
        most = ceiling if change is None or change.tokens is None else min(ceiling, change.tokens)
        stands_in = item.form == "placeholder"
        raw, query = item.content if stands_in else item.raw, query_of(raws, at, place)
        content, members = extract(draft, item.origin, raw, most, query)
        if content.digest != item.content.digest:
            form: Literal["placeholder", "extract"] = "placeholder" if stands_in else "extract"
            tokens = draft.counter.content(content)
            items[at] = item._replace(content=content, form=form, tokens=tokens, members=members)
            reason: Reason = change.reason if change is not None and stands_in else "window"
            forms[item.origin] = Changed(form, reason, most)
    return history._replace(items=tuple(items), forms=forms)


def _shorten_to(draft: Draft, changed: History) -> None:
    """Takes over a history with shorter contents, with their event."""
    pairs = zip(draft.history.items, changed.items, strict=True)
    touched = [after.origin for before, after in pairs if before.content is not after.content]
    if touched:
        before, draft.history = draft.spoken(), changed
        _note(draft, "emergency", touched, before)


def _leave_out_neighbours(draft: Draft) -> None:
    """Whatever strategies and anchors hold goes, then messages beside the request, the oldest first."""
    parts = units([item.content for item in draft.history.items])
    protected_units = protected(parts, _request_place(draft))
    going = [at for at in range(len(parts)) if at not in protected_units]
    # A turn's human message outlives its answers, so that what stays begins with the words of a person.
    going.sort(key=lambda at: (parts[at].kind == "human", at))
    _leave_out(draft, [parts[at].indices for at in going])


def _leave_out_oldest(draft: Draft) -> bool:
    """Leaves out the oldest exchange or message that may go, else the summary; tells whether there was any."""
    parts = units([item.content for item in draft.history.items])
    stay = protected(parts, _request_place(draft))
    going = sorted((parts[at].kind == "human", at) for at in range(len(parts)) if at not in stay)
    if going:
        _leave_out(draft, [parts[going[0][1]].indices], _over(draft) - 1)
    elif draft.history.summary:
        before = draft.spoken()
        draft.history = draft.history._replace(summary="", summary_place=0)
        _note(draft, "emergency", (), before)
    return bool(going)


def _request_place(draft: Draft) -> int | None:
    """The place of the request among the contents that are sent."""
    return next((at for at, item in enumerate(draft.history.items) if item.origin == draft.request_index), None)


def _beside(draft: Draft) -> list[int]:
    """The places of the contents beside the request that may give way: all but the agent's instruction."""
    items, asked = draft.history.items, draft.request_index
    return [at for at, item in enumerate(items) if item.origin != asked and not is_instruction(item.raw)]


def _leave_out(draft: Draft, groups: Iterable[Sequence[int]], spare: int = 0) -> None:
    """Cuts the items at these places for good, group by group, until no more than ``spare`` tokens are over.

    Earlier messages return to their own text with it, which may be longer than their packed one.
    """
    # Whole groups, an exchange each: providers refuse a call without its response, and a response without its call.
    gone: set[int] = set()
    after = [_unpacked(draft, item) for item in draft.history.items]
    over = _over(draft, after) - spare
    for places in groups:
        if over <= 0:
            break
        gone.update(places)
        over -= sum(after[at].tokens for at in places)
    if not gone:
        return
    before = draft.spoken()
    origins = [item.origin for at, item in enumerate(draft.history.items) if at in gone]
    draft.history = draft.history.changed("left_out", "window", origins)
    _take_out(draft, origins)
    _note(draft, "cut", origins, before, strategy=NET)


def _shorten_request(draft: Draft) -> None:
    """Shortens the human message until the pack is within the budget or nothing more may go."""
    raw, index = draft.raw_human, draft.request_index
    if raw is None or index is None:
        return
    task, over = draft.measured["task"], _over(draft)
    for _ in range(_MOST_TRIES):
        _shorten_message(draft, raw, task, over)
        payload.write_payload(draft)
        if (rest := _over(draft)) <= 0:
            break
        over += rest
    if draft.measured["task"] != task:
        _note(draft, "emergency", [index], task, draft.measured["task"], layer="task")


def _shorten_message(draft: Draft, raw: Content, task: int, over: int) -> None:
    """Decides how a human message of ``task`` tokens loses about ``over`` of them.

    The plan's own text is cut down first, where the request finds room without it. The middle of an oversized request,
    or of what was handed over, leaves a note, and goes to the store. Where that would not be enough, its media go
    first, the largest first, since words without them say more than they do without words; and where it is not, the
    plan's own text is cut down, too.
    """
    counter, message, freed, note = draft.counter, draft.message, 0, ""
    size, least = _request_tokens(draft), _least_request(raw, counter)
    request, largest, most_before = message.request, message.largest, message.most_before
    instructions = counter.count(payload.instruction_section(draft, draft.instructs))
    plan = task - size - instructions - sum(map(counter.media, raw.parts))
    cuts_plan = plan >= 2 * LEAST_EXTRACT and (not draft.carried.has_chosen or message.is_anew)
    if cuts_plan and draft.needed_tokens <= draft.budget.input:
        most_before = max(LEAST_EXTRACT, plan - over)
        over -= plan - most_before
    sizes = payload.sizes_beside_text(raw, counter)
    most = draft.carried.packed.largest if draft.carried.packed is not None else None
    sent = [tokens for tokens in sizes.values() if most is None or tokens <= most]
    if sent and (more := over - max(0, size - least)) > 0:
        fitting = (most for most in (*sent, 0) if sum(tokens for tokens in sent if tokens > most) >= more)
        largest = max(fitting, default=0)
        freed = sum(tokens for tokens in sent if tokens > largest)
    out = [at for at, tokens in sizes.items() if largest is not None and tokens > largest]
    if out:
        names = ", ".join(f"{raw.parts[at].mime_type or 'a part'} of {sizes[at]} tokens" for at in out[:_MOST_NAMED])
        others = f" and {len(out) - _MOST_NAMED} more" if len(out) > _MOST_NAMED else ""
        note = f"\n[Left out of this message: {names}{others}]"
    if freed:
        freed -= counter.count(note)
        request = f"{raw.text}{note}".lstrip("\n")
    if over > freed and size > least:
        text = _shorter_request(draft, raw, size - (over - freed), least)
        freed += size - counter.count(text)
        request = f"{text}{note}"
    if (rest := over - freed) > 0 and cuts_plan:
        most_before = max(LEAST_EXTRACT, (plan if most_before is None else most_before) - rest)
    draft.message = draft.message._replace(request=request, largest=largest, most_before=most_before)


def _shorter_request(draft: Draft, raw: Content, room: int, least: int) -> str:
    """The request, or what was handed over, with a note in the place of its middle, in about ``room`` tokens."""
    counter = draft.counter
    uri = f"artifact://messages/{short(raw.digest, 16)}.txt"
    records = draft.policy.record == "full"
    where = f"; the whole of it is {uri}" if records and draft.input.host.can_read else ""
    note = f"[The middle of this message is left out{where}]"
    if tools := draft.measured["tools"]:
        room = min(room, int(_MOST_REQUEST * (draft.budget.input - draft.measured["system"] - tools)))
    room = max(least, room) - counter.count(note) - 4
    draft.message = draft.message._replace(saved={uri: raw.text} if records else {})
    if raw.quotes:
        # Each thing that is quoted is cut down; where there are too many of them, only what was said last stays.
        sizes = counter.count_all([quote.text for quote in raw.quotes])
        left = room - (counter.count(raw.text) - sum(sizes))
        if left >= _LEAST_QUOTE * len(sizes):
            return f"{note}\n{shorten_content(raw, level(sizes, left), counter=counter).text}"
        return f"{note}\n{quoted_alone(raw, room, '', counter).text}"
    found = shorten(raw.text, max(8, room), counter=counter, names=True)
    return f"{note[:-1]}; it names {found.names}]\n{found.text}" if found.names else f"{note}\n{found.text}"


def _least_request(raw: Content, counter: PackCounter) -> int:
    """Tokens that are left of a request at least; of another agent's turn as many beside the host's own words."""
    return _LEAST_REQUEST + (counter.content(quoted_alone(raw, 0, "", counter)) if raw.quotes else 0)


def _request_tokens(draft: Draft) -> int:
    """Tokens of the request, or of what was handed over, as it is sent now: an earlier call may have shortened it."""
    raw, packed = draft.raw_human, draft.carried.packed
    if raw is None:
        return 0
    if packed is None or not packed.before:
        return draft.counter.count(raw.text)
    return draft.counter.count(payload.answered(packed.after) if packed.after else packed.before)


def _shorten_summary(draft: Draft) -> None:
    """The summary of older cuts keeps the bullets that it would keep at a cut, as many as find room; none of them where
    that is next to nothing."""
    history, before, room = draft.history, draft.spoken(), draft.summary_tokens - _over(draft)
    if not history.summary:
        return
    sent, summary = [item.content for item in history.items], ""
    if room >= LEAST_EXTRACT:
        summary = recap([], sent, max_tokens=room, counter=draft.counter, earlier=history.summary)
    draft.history = history._replace(summary=summary, summary_place=history.summary_place if summary else 0)
    _note(draft, "emergency", (), before)


def _leave_out_candidates(draft: Draft) -> None:
    """Memories and evidence go from the payload, those that an earlier call of this invocation chose among them."""
    gone, chosen = {layer: tokens for layer, tokens in draft.payload_tokens.items() if tokens}, draft.chosen
    if not gone:
        return
    draft.chosen = Chosen(dropped=(*chosen.dropped, *chosen.memory, *chosen.evidence))
    draft.carried = draft.carried._replace(packed=None)
    draft.message = draft.message._replace(is_anew=True)
    payload.write_payload(draft)
    for layer, tokens in gone.items():
        _note(draft, "emergency", (), tokens, 0, layer=layer)


def _tell_last(draft: Draft) -> None:
    """Leaves out other agents' messages, the oldest first, then writes the last exchange as one text.

    Messages go after what answers them: an answer does not come first. One text, since sending some of its calls would
    need a record of which of them stay, kept right through whatever a host makes of its history: a call without its
    response gets the request refused.
    """
    parts = sorted(units([item.content for item in draft.history.items]), key=lambda unit: unit.kind == "human")
    last, beside = unread(parts, _request_place(draft)), _beside(draft)
    origins = [draft.history.items[at].origin for at in (last.indices if last is not None else ()) if at in beside]
    _leave_out(draft, [[at for at in unit.indices if at in beside] for unit in parts if unit is not last])
    over = _over(draft)
    if over <= 0 or not origins:
        return
    before = draft.spoken()
    most = before - draft.summary_tokens
    for _ in range(_MOST_TRIES):
        most = max(LEAST_EXTRACT, most - over)
        tell(draft, origins, most)
        if (over := _over(draft)) <= 0:
            break
    _note(draft, "emergency", origins, before)
