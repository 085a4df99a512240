"""What of the conversation is sent: the policy's strategies, the cut behind all of them, and the last resort.

Early strategies look at what the host sent alone, before the window is allocated; late ones at the water marks. A
strategy may pass its own budget. Where what it leaves would still pass the window, units go from the oldest, as under
the default strategy. That net stops a quarter of the way above the low-water mark: of what a strategy chose to keep,
more stays, and the next such cut is still far away.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from aether_context.canonical import short
from aether_context.conversation import (
    Budget,
    Conversation,
    Removed,
    Replaced,
    Trimmed,
    ranked,
    standing_anchors,
    strategies_of,
    units,
)
from aether_context.conversation.quotes import requoted
from aether_context.conversation.rewrites import (
    LEAST_EXTRACT,
    part_tokens,
    query_of,
    reduced,
    response_tokens,
    shortened,
)
from aether_context.conversation.strategies import SUMMARIZE_TRIGGER, Epochs
from aether_context.conversation.turns import Unit, as_ranges, protected
from aether_context.evidence.extracts import unshown_names
from aether_context.pack import RECALLED, Allocation, Content, Outcome, Outgoing, Reason, Stage, TruncationEvent
from aether_context.packing import payload
from aether_context.packing.draft import Draft
from aether_context.packing.selection import latest_need, leaves_latest
from aether_context.policy import PackPolicy
from aether_context.text.compression import extract, level
from aether_context.text.entities import entities_of
from aether_context.tokens.cache import PackCounter

NET = "emergency"
"""What the net behind the strategies is called among them in a manifest."""
_NET_SHARE = 0.25
"""How far above the low-water mark the net stops, as a share of the way to the ceiling."""

# The policy's strategies.


def settle(draft: Draft) -> None:
    """Applies the policy's early strategies, in their order."""
    early = [strategy for strategy in strategies_of(draft.policy.conversation) if strategy.early]
    if not early or draft.input.passthrough_reason:
        return
    conversation = _as_sent_by_host(draft)
    for strategy in early:
        result = strategy.trim(conversation)._replace(lasting=False)
        before = {item.origin: item for item in draft.incoming}
        _apply(draft, result)
        before |= {item.origin: item for item in draft.items}
        draft.incoming = tuple(before.values())
        conversation = conversation.after(result)


def compact(draft: Draft) -> None:
    """Applies the policy's late strategies in their order, then the net where too much is left.

    A cut by hand goes down to the low-water mark, or to that share of what there is where that is less.
    """
    if draft.input.passthrough_reason:
        draft.degradations, draft.states = (draft.input.passthrough_reason,), {}
        return
    draft.budget = budget = _budget(draft)
    settings, forced = draft.policy.conversation, draft.by_hand
    if forced:
        share = int(settings.compact_to * draft.spoken(draft.items, draft.summary))
        budget = budget._replace(low=min(budget.low, share))
    elif is_quiet(draft, budget, draft.spoken(draft.items, draft.summary)):
        return
    for strategy in strategies_of(settings):
        if not strategy.early:
            _apply(draft, strategy.trim(_as_sent(draft, budget, forced=forced)))
    forced = forced and not draft.acts
    conversation = _as_sent(draft, budget, forced=forced)
    if not forced:
        most = budget.mark(1)
        low = budget.low + int(_NET_SHARE * (most - budget.low))
        conversation = replace(conversation, budget=budget._replace(high=most, low=low))
    _apply(draft, Epochs(settings=settings, name=NET).trim(conversation))


def _apply(draft: Draft, result: Trimmed) -> None:
    """Writes a strategy's decision into the draft."""
    items = draft.items
    draft.normalize = draft.normalize or result.normalize
    if result.state is not None:
        draft.states = result.state
    if result.note and result.note not in draft.degradations:
        draft.degradations = (*draft.degradations, result.note)
    if not result.changes:
        return
    gone = {items[removed.index].origin: removed.reason for removed in result.removed}
    replaced_by_origin = {items[replaced.index].origin: replaced for replaced in result.replaced}
    reasons = {origin: replaced.reason for origin, replaced in replaced_by_origin.items() if replaced.ceiling is None}
    draft.reasons = {**draft.reasons, **gone, **reasons}
    changed: list[Outgoing] = []
    extracts = dict(draft.extracts)
    for item in items:
        if (replaced := replaced_by_origin.get(item.origin)) is not None:
            outcome: Outcome = "placeholder" if replaced.ceiling is None else "extract"
            tokens = draft.counter.content(replaced.content)
            item = item._replace(content=replaced.content, outcome=outcome, tokens=tokens)
            if replaced.ceiling is not None:
                extracts[draft.key(item)] = replaced.ceiling
        changed.append(item)
    draft.items, draft.extracts = tuple(changed), extracts
    if result.act is not None:
        draft.acts = (*draft.acts, result.act)
        placeholders = [change for change in result.replaced if change.new and change.ceiling is None]
        left: list[Removed | Replaced] = [change for change in result.removed if change.new]
        left += [change for change in result.replaced if change.ceiling is not None]
        stages: tuple[tuple[Stage, Sequence[Removed | Replaced]], ...] = (
            ("replace", placeholders),
            ("cut" if result.lasting else "hide", left),
        )
        for stage, changes in stages:
            if changes or (stage == "cut" and result.cuts):
                event = TruncationEvent(
                    layer="conversation",
                    stage=stage,
                    reason=changes[0].reason if changes else "window",
                    item_ids=tuple(draft.content_id(items[change.index].origin) for change in changes),
                    tokens_before=result.tokens_before,
                    tokens_after=result.tokens_after,
                    strategy=result.act.strategy,
                )
                draft.events = (*draft.events, event)
    if not result.cuts:
        draft.items = tuple(item for item in draft.items if item.origin not in gone)
        draft.hidden = draft.hidden.union(gone)
        return
    if result.summary_at is not None:
        place = draft.input.request.positions[items[result.summary_at].origin]
        draft.summary_place = min(place, draft.summary_place) if draft.summary else place
    if result.summary is not None:
        draft.summary = result.summary
    _take_out(draft, gone)


def _conversation(draft: Draft, items: Sequence[Outgoing], tokens: Sequence[int], budget: Budget) -> Conversation:
    """These contents as a conversation; its summary and what else came of earlier calls aside."""
    request = draft.input.request
    return Conversation(
        contents=tuple(item.content for item in items),
        raws=tuple(item.raw for item in items),
        tokens=tuple(tokens),
        human=next((at for at, item in enumerate(items) if item.origin == draft.human), None),
        positions=tuple(request.positions[item.origin] for item in items),
        budget=budget,
        counter=draft.counter,
        system=request.system,
        tools=request.tools,
        opens=draft.input.first_call,
    )


def _as_sent_by_host(draft: Draft) -> Conversation:
    """The conversation for early strategies: packed messages in their own words, extracts as they are sent.

    The tokens of packed messages are those of what is sent.
    """
    source, counter, settings = draft.input, draft.counter, draft.policy.conversation
    request = source.request
    items = [
        item if item.outcome == "extract" or item.content is item.raw else item._replace(content=item.raw)
        for item in draft.items
    ]
    counts = counter.contents([item.content for item in items])
    tokens = [
        item.tokens if item.outcome == "payload" else count + draft.payload_tokens * (item.origin == draft.human)
        for item, count in zip(items, counts, strict=True)
    ]
    declares = bool(request.tools or request.other_tools)
    fixed = counter.system(draft.system, declares=declares) + sum(counter.tools(request.tools)) + draft.unseen
    fixed += sum(counter.count_all(request.other_tools))
    budget = Budget.of(
        source.window,
        slack=draft.slack,
        fixed=fixed,
        compact_at=settings.compact_at,
        compact_to=settings.compact_to,
    )
    budget = budget._replace(ceiling=max(0, budget.ceiling + draft.overcounted))
    return replace(
        _conversation(draft, items, tokens, budget),
        anchors=ranked(source.anchors),
        state=source.epoch.strategies,
        forced=draft.by_hand,
        gated=draft.gated(fixed + sum(tokens), draft.input_budget + draft.overcounted),
    )


def _as_sent(draft: Draft, budget: Budget, *, forced: bool) -> Conversation:
    """The conversation for late strategies, as it would be sent after a cut.

    The human message's tokens are counted elsewhere, and so is what earlier messages have beside their own words.
    """
    items = [_unpacked(draft, item) for item in draft.items]
    spoken = draft.spoken(draft.items, draft.summary)
    conversation = _conversation(
        draft, items, [0 if item.origin == draft.human else item.tokens for item in items], budget
    )
    standing = standing_anchors(conversation.contents, conversation.positions, draft.policy.conversation)
    return replace(
        conversation,
        human_tokens=0 if conversation.human is None else items[conversation.human].tokens,
        anchors=ranked([*draft.input.anchors, *standing]),
        state=draft.states,
        summary=draft.summary,
        summary_tokens=draft.summary_tokens(draft.summary),
        surplus=spoken - draft.spoken(items, draft.summary),
        forced=forced,
        gated=draft.gated(spoken + budget.fixed, budget.input),
        recalls=any(candidate.source == RECALLED for candidate in draft.memory),
        cached_price=draft.input.cached_price,
        summaries=draft.summaries,
    )


# The water marks.


def _budget(draft: Draft) -> Budget:
    """The marks of the conversation beside what the other layers are to hold."""
    fixed = (
        sum(draft.measured.values())
        + sum(draft.packed_tokens.values())
        + sum(candidate.tokens for candidate in (*draft.memory, *draft.evidence))
        + draft.reserve
    )
    net = draft.byte_net((item.content for item in draft.items), draft.spoken(draft.items, draft.summary))
    budget = marks(draft.policy, draft.shares, fixed, net)
    if leaves_latest(draft, draft.memory):
        latest = min(budget.ceiling, latest_need(draft)) - draft.input.kept_free
        most = latest if net is None else int(draft.policy.conversation.compact_to * net)
        budget = budget._replace(low=max(budget.low, min(latest, most)))
    return budget


def marks(policy: PackPolicy, allocation: Allocation, fixed: int, net: int | None) -> Budget:
    """The marks of the conversation: what the water marks leave beside the other layers, or its own share of them.

    Args:
        fixed: tokens of all other layers as they are sent.
        net: tokens that the byte net takes, None where it takes all.
    """
    room = allocation.budget
    budget = Budget(
        window=room + allocation.slack,
        slack=allocation.slack,
        fixed=fixed,
        ceiling=max(allocation.layers["conversation"].final, room - fixed),
        high=0,
        low=0,
        net=net,
    )
    settings = policy.conversation
    return budget._replace(high=budget.mark(settings.compact_at), low=budget.mark(settings.compact_to))


_GROWING = frozenset({"epochs", "sliding_turns", "heads_tails", "summarize"})
"""Strategies that do nothing below a mark to contents that are appended."""


def is_quiet(draft: Draft, budget: Budget, spoken: int) -> bool:
    """Whether a conversation of so many tokens is below every mark above which a strategy acts on it."""
    settings = draft.policy.conversation
    if draft.by_hand or not _GROWING.issuperset(settings.strategy):
        return False
    quiet = budget.high
    if "summarize" in settings.strategy:
        quiet = min(quiet, budget.mark(SUMMARIZE_TRIGGER))
    return spoken <= quiet or draft.gated(spoken + budget.fixed, budget.input)


def _take_out(draft: Draft, gone: Mapping[int, Reason]) -> None:
    """Cuts contents for good, by origin; earlier messages return to their own text with it."""
    draft.cut += tuple(item for item in draft.items if item.origin in gone)
    draft.items = tuple(_unpacked(draft, item) for item in draft.items if item.origin not in gone)
    draft.reasons = {**draft.reasons, **gone}


def _unpacked(draft: Draft, item: Outgoing) -> Outgoing:
    """An earlier invocation's message with its own text again; a cut breaks the prefix that its packed text kept."""
    if item.outcome != "payload" or item.origin == draft.human:
        return item
    return item._replace(content=item.raw, outcome="verbatim", tokens=draft.counter.content(item.raw), members=())


# The last resort: whatever is left of a conversation goes out within the input budget.
#
# From the mildest act to the hardest, each only as far as needed: responses that the model has yet to read become
# extracts, then whatever else is long; messages beside the request go, and what strategies chose to keep; the request's
# own middle, its media, the summary and the plan's text; what other agents handed over; and of an exchange with more
# calls than there is room for, all but the first and the last ones. System instruction and declarations stay as they
# are.

_LEAST_REQUEST = 96
_MOST_REQUEST = 0.77
"""The share of a request that finds no room whole, of what system instruction and declarations leave, where there are
tools: the calls and their results have to stand beside it."""
_NAMES_SHARE = 0.1
"""The share of a request in part for the identifiers of what is left out."""
_LEAST_QUOTE = 8
_ROUNDS = 12
_NO_SUMMARY = "nothing tells of what was cut: a summary of it found no room"


def bring_within_window(draft: Draft) -> None:
    """Brings the pack within the input budget, wherever anything that may give way holds enough."""
    if draft.budget is None:
        return
    for act in (
        _shorten_responses,
        _shorten_parts,
        _leave_out_neighbours,
        _shorten_request,
        _leave_out_media,
        _leave_out_summary,
        _shorten_task,
        _leave_out_handed,
        _thin,
    ):
        over = _over(draft, draft.items)
        if over <= 0:
            break
        act(draft, over, draft.budget)
    if not draft.summary and (draft.cut or draft.input.epoch.summary) and draft.policy.conversation.summary_share:
        draft.degradations = (*draft.degradations, _NO_SUMMARY)


def _over(draft: Draft, items: Sequence[Outgoing]) -> int:
    """Tokens over the input budget with these contents."""
    assert draft.budget is not None
    return draft.spoken(items, draft.summary) + draft.budget.fixed - draft.budget.input


def _note(draft: Draft, before: int, origins: Iterable[int], *, cut: bool = False) -> None:
    """Adds the event of an act on the conversation, which held so many tokens before it."""
    event = TruncationEvent(
        layer="conversation",
        stage="cut" if cut else "emergency",
        reason="window",
        item_ids=tuple(draft.content_id(origin) for origin in origins),
        tokens_before=before,
        tokens_after=draft.spoken(draft.items, draft.summary),
        strategy=NET if cut else "",
    )
    draft.events = (*draft.events, event)


def _note_task(draft: Draft, before: int, after: int, freed: int) -> None:
    """Adds the event of an act on the human message, which frees tokens that are counted beside the conversation."""
    assert draft.budget is not None
    event = TruncationEvent(
        layer="task",
        stage="emergency",
        reason="window",
        item_ids=(draft.content_id(draft.human),) if draft.human is not None else (),
        tokens_before=before,
        tokens_after=after,
    )
    draft.events = (*draft.events, event)
    draft.budget = draft.budget._replace(fixed=draft.budget.fixed - freed)


def _shorten_responses(draft: Draft, over: int, budget: Budget) -> None:
    """Responses of the exchange that the model has yet to read become extracts."""
    items, counter = draft.items, draft.counter
    last = max(units([item.content for item in items]), key=lambda unit: unit.indices[-1], default=None)
    tokens_by_index = {
        at: response_tokens(items[at].content, counter) for at in (last.indices if last is not None else ())
    }
    targets = [at for at, tokens in tokens_by_index.items() if tokens]
    sizes = [size for tokens in tokens_by_index.values() for size in tokens]
    if not sizes:
        return
    beside = draft.spoken(items, draft.summary) - sum(sizes)
    enough = budget.high - beside >= LEAST_EXTRACT * len(sizes)
    room = (budget.high if enough else budget.input - budget.fixed) - beside
    ceiling = max(LEAST_EXTRACT, level(sizes, room))
    changed = _with_extracts(draft, targets, ceiling)
    while ceiling > LEAST_EXTRACT and (excess := draft.spoken(changed, draft.summary) - room - beside) > 0:
        ceiling = max(LEAST_EXTRACT, ceiling - excess)
        changed = _with_extracts(draft, targets, ceiling)
    _shorten_to(draft, changed, ceiling)


def _shorten_parts(draft: Draft, over: int, budget: Budget) -> None:
    """Whatever is long becomes an extract: texts, arguments, code, media, whoever's they are.

    The request is measured with them, so that it gives way before what is shorter than it.
    """
    items = draft.items
    targets = [
        at for at, item in enumerate(items) if item.origin != draft.human and item.outcome not in ("payload", "summary")
    ]
    sizes = {at: part_tokens(items[at].content, draft.counter) for at in targets}
    request = _request_tokens(draft)
    all_sizes = [size for part_sizes in sizes.values() for size in part_sizes]
    beside = budget.input + over - sum(all_sizes) - request
    ceiling = max(LEAST_EXTRACT, level([*all_sizes, request], budget.input - beside))
    changed: tuple[Outgoing, ...] = items
    used_ceiling = ceiling
    for _ in range(_ROUNDS):
        long = [at for at in targets if max(sizes[at], default=0) > ceiling]
        changed, used_ceiling = _with_extracts(draft, long, ceiling), ceiling
        if _over(draft, changed) <= max(0, request - ceiling) or ceiling == LEAST_EXTRACT:
            break
        ceiling = max(LEAST_EXTRACT, ceiling * 4 // 5)
    _shorten_to(draft, changed, used_ceiling)


def _with_extracts(draft: Draft, targets: Sequence[int], ceiling: int) -> tuple[Outgoing, ...]:
    """The contents, those at ``targets`` with parts of at most ``ceiling`` tokens each."""
    raws = [item.raw for item in draft.items]
    items = list(draft.items)
    for at in targets:
        item = items[at]
        key = draft.key(item)
        most = min(ceiling, draft.extracts.get(key, ceiling))
        query = query_of(raws, at)
        if item.outcome == "placeholder":
            shorter = item._replace(content=shortened(item.content, most, query, draft.counter))
        else:
            shorter = reduced(item, most, draft.parts.get(key) if item.members else None, query, draft.counter)
        if shorter.content.digest != item.content.digest:
            items[at] = shorter._replace(tokens=draft.counter.content(shorter.content))
    return tuple(items)


def _shorten_to(draft: Draft, changed: tuple[Outgoing, ...], ceiling: int) -> None:
    """Takes contents over that are cut down to a ceiling, with their event."""
    pairs = zip(draft.items, changed, strict=True)
    touched = [after for before, after in pairs if before.content is not after.content]
    if not touched:
        return
    before = draft.spoken(draft.items, draft.summary)
    extracts = {key: min(ceiling, draft.extracts.get(key, ceiling)) for key in map(draft.key, touched)}
    draft.items, draft.extracts = changed, {**draft.extracts, **extracts}
    _note(draft, before, [item.origin for item in touched])


def _leave_out_neighbours(draft: Draft, over: int, budget: Budget) -> None:
    """Whatever strategies and anchors hold goes, then messages beside the request, the oldest first."""
    raw, items = draft.raw_human, draft.items
    shrinks = max(0, _request_tokens(draft) - _least_request(raw, draft.counter)) if raw is not None else 0
    parts = units([item.content for item in items])
    human = next((at for at, item in enumerate(items) if item.origin == draft.human), None)
    protected_units = protected(parts, human, neighbours=False)
    going = [at for at in range(len(parts)) if at not in protected_units]
    going.sort(key=lambda at: (parts[at].kind == "human", at))
    _leave_out(draft, over - shrinks, [parts[at] for at in going])


def _leave_out_handed(draft: Draft, over: int, budget: Budget) -> None:
    """What other agents handed over goes, the oldest first; all but the request and what comes last.

    So do answers before the messages that they are to, where a cut has made those longer again: an answer does not
    come first.
    """
    parts = sorted(units([item.content for item in draft.items]), key=lambda unit: unit.kind == "human")
    last = max(parts, key=lambda unit: unit.indices[-1], default=None)
    _leave_out(draft, over, [unit for unit in parts if unit is not last and not _asks(draft, unit)])


def _leave_out(draft: Draft, over: int, parts: Iterable[Unit]) -> None:
    """Leaves out units, in this order, until ``over`` tokens are free."""
    gone: set[int] = set()
    for unit in parts:
        if over <= 0:
            break
        gone.update(unit.indices)
        over -= sum(draft.items[at].tokens for at in unit.indices)
    _without(draft, gone)


def _without(draft: Draft, gone: Collection[int]) -> None:
    """Cuts the items at these places for good; earlier messages return to their own text with it."""
    if not gone:
        return
    before = draft.spoken(draft.items, draft.summary)
    origins = [item.origin for at, item in enumerate(draft.items) if at in gone]
    _take_out(draft, dict.fromkeys(origins, "window"))
    _note(draft, before, origins, cut=True)


def _thin(draft: Draft, over: int, budget: Budget) -> None:
    """Of the exchange that the model has yet to read, the first call and the last ones, as many as have room.

    A call and its response go together, and contents of which nothing stays go whole. So do the first and the last
    parts of any other content that comes last, and then of what another agent did in the turn that holds the request.
    """
    parts = units([item.content for item in draft.items])
    last = max(parts, key=lambda unit: unit.indices[-1], default=None)
    for unit in (last, next((unit for unit in parts if _asks(draft, unit)), None)):
        if unit is not None and over > 0:
            _thin_unit(draft, over, [draft.items[index].origin for index in unit.indices])
            over = _over(draft, draft.items)


def _asks(draft: Draft, unit: Unit) -> bool:
    """Whether a unit holds the request."""
    return any(draft.items[index].origin == draft.human for index in unit.indices)


def _thin_unit(draft: Draft, over: int, origins: Collection[int]) -> None:
    """Of these contents, the first parts that go together and the last ones, as many as have room."""
    items, counter = draft.items, draft.counter
    indices = [
        index
        for index, item in enumerate(items)
        if item.origin in origins and item.origin != draft.human and not item.members
    ]
    if not indices:
        return
    raws = [item.raw for item in items]
    fixed, groups = _groups([raws[index] for index in indices])
    # A text before the calls is no call: kept alone, it would leave the contents that answer with no parts.
    first = next((group for group in groups if len(group) > 1), groups[0])
    others = [group for group in groups if group is not first]
    room = sum(items[index].tokens for index in indices) - over

    def thinned(count: int) -> list[Outgoing]:
        chosen = [*fixed, *first, *(part for group in others[len(others) - count :] for part in group)]
        thinned_items = []
        for number, index in enumerate(indices):
            item = items[index]
            kept_ranges = as_ranges({at for which, at in chosen if which == number})
            ceiling = draft.extracts.get(draft.key(item))
            thinned_item = reduced(item, ceiling, kept_ranges, query_of(raws, index), counter)
            thinned_items.append(
                thinned_item._replace(tokens=counter.content(thinned_item.content) if kept_ranges else 0)
            )
        return thinned_items

    # The most of the last groups that fit; more of them never take less.
    fitting = bisect_right(
        range(1, len(others) + 1), room, key=lambda count: sum(item.tokens for item in thinned(count))
    )
    if fitting >= len(others):
        return
    thinned_items = thinned(fitting)
    before = draft.spoken(items, draft.summary)
    item_by_index = dict(zip(indices, thinned_items, strict=True))
    draft.items = tuple(item_by_index.get(at, item) for at, item in enumerate(items))
    kept_ranges = {draft.key(item): as_ranges(at for _, at in item.members) for item in thinned_items if item.members}
    draft.parts = {**draft.parts, **kept_ranges}
    _note(draft, before, [item.origin for item in thinned_items])
    _without(draft, [index for index, item in item_by_index.items() if not item.members])


def _groups(contents: Sequence[Content]) -> tuple[list[tuple[int, int]], list[list[tuple[int, int]]]]:
    """Parts, as content and index, that always stay, and those that stay or go together, in their order."""
    fixed: list[tuple[int, int]] = []
    groups: list[list[tuple[int, int]]] = []
    waiting: dict[tuple[str, str, str], list[int]] = {}
    for number, content in enumerate(contents):
        quotes = {quote.at: quote for quote in content.quotes}
        for at, part in enumerate(content.parts):
            quote = quotes.get(at)
            kind = quote.kind if quote is not None else part.kind
            key = (quote.agent, "", quote.name) if quote is not None else ("", part.call_id, part.name)
            if content.agent and at == 0:
                fixed.append((number, at))
            elif kind == "response" and (homes := waiting.get(key)):
                groups[homes.pop(0) if len(homes) > 1 else homes[0]].append((number, at))
            else:
                if kind == "call":
                    waiting.setdefault(key, []).append(len(groups))
                groups.append([(number, at)])
    return fixed, groups or [[]]


def _shorten_request(draft: Draft, over: int, budget: Budget) -> None:
    """The middle of an oversized request, or of what was handed over, leaves a note, and goes to the store.

    Where that would not be enough, its media go first, since words without them say more than they do without words.
    """
    raw, counter = draft.raw_human, draft.counter
    size = _request_tokens(draft)
    if raw is None or size <= (least := _least_request(raw, counter)):
        return
    if over > size - least:
        _leave_out_media(draft, over, budget)
        over = _over(draft, draft.items)
    if over <= 0:
        return
    after = draft.request.removeprefix(raw.text) if draft.request is not None else ""
    uri = f"artifact://messages/{short(raw.digest, 16)}.txt"
    records = draft.policy.record == "full"
    where = f"; the whole of it is {uri}" if records and draft.input.can_read else ""
    note = f"[The middle of this message is left out{where}]"
    room = size - over
    if tools := draft.measured["tools"]:
        room = min(room, int(_MOST_REQUEST * (budget.input - draft.measured["system"] - tools)))
    room = max(least, room) - counter.count(note) - 4
    if raw.agent:
        text = f"{note}\n{_handed_within(raw, room, counter)}"
    else:
        for_names = int(_NAMES_SHARE * room)
        shown = extract(raw.text, max_tokens=max(8, room - for_names), counter=counter)
        names = unshown_names(entities_of(raw.text), shown, max_tokens=for_names, count_all=counter.count_all)
        text = f"{note[:-1]}; it names {names}]\n{shown}" if names else f"{note}\n{shown}"
    used = counter.count(text)
    draft.request, draft.saved = text + after, {uri: raw.text} if records else {}
    _note_task(draft, size, used, size - used)


def _least_request(raw: Content, counter: PackCounter) -> int:
    """Tokens that are left of a request at least; of another agent's turn as many beside the host's own words."""
    quoted = max(raw.quotes, key=lambda quote: (quote.kind == "said", quote.at), default=None)
    return _LEAST_REQUEST + (counter.count(_quoted_alone(raw, quoted.at, "")) if quoted is not None else 0)


def _handed_within(raw: Content, room: int, counter: PackCounter) -> str:
    """Another agent's turn in about ``room`` tokens, between the host's marks.

    Each thing that is quoted is cut to an extract; where there are too many of them, only what was said last stays.
    """
    sizes = counter.count_all([quote.text for quote in raw.quotes])
    left = room - (counter.count(raw.text) - sum(sizes))
    if left >= _LEAST_QUOTE * len(sizes):
        ceiling = level(sizes, left)
        text_by_index = {quote.at: quote.text for quote in raw.quotes}
        parts = []
        for at, part in enumerate(raw.parts):
            if at in text_by_index and counter.count(text_by_index[at]) > ceiling:
                parts.append(requoted(part, extract(text_by_index[at], max_tokens=ceiling, counter=counter)))
            elif part.kind == "text":
                parts.append(part.text)
        return "\n".join(parts)
    quoted = max(raw.quotes, key=lambda quote: (quote.kind == "said", quote.at))
    room -= counter.count(_quoted_alone(raw, quoted.at, ""))
    return _quoted_alone(raw, quoted.at, extract(quoted.text, max_tokens=max(8, room), counter=counter))


def _quoted_alone(raw: Content, at: int, text: str) -> str:
    """What explains the marks, then one part of another agent's turn with this text between them."""
    return f"{raw.parts[0].text}\n{requoted(raw.parts[at], text)}"


def _request_tokens(draft: Draft) -> int:
    """Tokens of the request, or of what was handed over, as it is sent now: an earlier call may have shortened it."""
    raw, packed = draft.raw_human, draft.packed
    if raw is None:
        return 0
    if packed is None or not packed.before:
        return draft.counter.count(raw.text)
    text = payload.answered(packed.after) if packed.after else packed.before
    return draft.counter.count(text or packed.after)


def _leave_out_media(draft: Draft, over: int, budget: Budget) -> None:
    """Media of the request go, the largest first, and what the request says names them."""
    raw, counter = draft.raw_human, draft.counter
    if raw is None or draft.human is None:
        return
    key = draft.keys[draft.human]
    kept_ranges = draft.parts.get(key, ((0, len(raw.parts)),))
    sent_indices = {at for start, stop in kept_ranges for at in range(start, stop)}
    sizes = {
        at: max(counter.media(part), counter.count(part.text))
        for at, part in enumerate(raw.parts)
        if at in sent_indices
    }
    loose = [at for at, size in sizes.items() if raw.parts[at].kind != "text" and size]
    gone: list[int] = []
    freed = 0
    for at in sorted(loose, key=lambda at: (-sizes[at], at)):
        if freed >= over:
            break
        gone.append(at)
        freed += sizes[at]
    if not gone:
        return
    names = ", ".join(f"{raw.parts[at].mime_type or 'a part'} of {sizes[at]} tokens" for at in sorted(gone)[:8])
    more = f" and {len(gone) - 8} more" if len(gone) > 8 else ""
    note = f"[Left out of this message: {names}{more}]"
    text = raw.text if draft.request is None else draft.request
    freed -= counter.count(note) + 1
    task = draft.measured["task"]
    _note_task(draft, task, max(0, task - freed), freed)
    draft.request = f"{text}\n{note}" if text else note
    draft.parts = {**draft.parts, key: as_ranges(sent_indices - set(gone))}


def _leave_out_summary(draft: Draft, over: int, budget: Budget) -> None:
    """The summary of earlier cuts goes."""
    if draft.summary:
        before = draft.spoken(draft.items, draft.summary)
        draft.summary, draft.summary_place = "", 0
        _note(draft, before, ())


def _shorten_task(draft: Draft, over: int, budget: Budget) -> None:
    """The plan's own text is cut down, where there is one."""
    raw, counter, measured = draft.raw_human, draft.counter, draft.measured["task"]
    size = _request_tokens(draft)
    request = size if draft.request is None else counter.count(draft.request)
    media = sum(map(counter.media, raw.parts)) if raw is not None else 0
    task = measured - size - media
    if draft.keeps or task < 2 * LEAST_EXTRACT:
        return
    draft.task_ceiling = max(LEAST_EXTRACT, task - over)
    _note_task(draft, measured, draft.task_ceiling + request, task - draft.task_ceiling)
