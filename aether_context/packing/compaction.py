"""The conversation as it is sent: the policy's strategies, and the cut behind all of them.

Early strategies look at what the host sent alone, before the window is allocated; late ones at the water marks. A
strategy may pass its own budget. Where what it leaves would still pass the window, units go from the oldest, as under
the default strategy.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from aether_context.canonical import utf8_size
from aether_context.conversation import (
    Budget,
    Conversation,
    Strategy,
    policy_anchors,
    ranked_anchors,
    strategies_of,
    units,
)
from aether_context.conversation.strategies import NET, NORMALIZING, CutStrategy, net
from aether_context.conversation.strategy import Decision, Effect, summary_content
from aether_context.conversation.summary import Recap, least_summary, recap
from aether_context.conversation.turns import protected
from aether_context.pack import (
    LEAST_WINDOW_READ,
    RECALLED,
    Anchor,
    Calibration,
    Content,
    Layer,
    Outgoing,
    Reason,
    SentForm,
    Stage,
    TruncationEvent,
    content_name,
)
from aether_context.packing.demand import latest_turn_tokens, reserves_latest_turns
from aether_context.packing.draft import Draft, item_place
from aether_context.packing.epoch_state import without_unseen
from aether_context.packing.payload import results_in
from aether_context.policy import KEPT_PRIORITY
from aether_context.tokens.counters import takes_media
from aether_context.usage.calibration import countable, estimated


def trim_early(draft: Draft) -> None:
    """Applies the policy's early strategies, in their order."""
    early_strategies = [strategy for strategy in strategies_of(draft.policy.conversation) if strategy.early]
    if not early_strategies or draft.input.host.passthrough_reason:
        return
    conversation = _host_conversation(draft)
    for strategy in early_strategies:
        # Decided anew at each call, from what the host sends then; what they keep between calls is their state.
        conversation = _trim(draft, strategy, conversation)
        if strategy.name in NORMALIZING:
            draft.history = draft.history._replace(normalize=True)


def leave_out_media(draft: Draft) -> None:
    """Puts notes in the place of media that the provider takes no more of; what an earlier call left out stays so."""
    items, unseen = draft.history.items, draft.input.host.unseen
    if not (unseen or draft.input.epoch.unseen):
        return
    tokens_before = draft.conversation_tokens()
    earlier = [without_unseen(draft, item, draft.input.epoch.unseen) for item in items]
    draft.history = draft.history._replace(items=tuple(without_unseen(draft, item, unseen) for item in items))
    pairs = zip(draft.history.items, earlier, strict=True)
    if new := [item.origin for item, earlier_item in pairs if item.content.wire != earlier_item.content.wire]:
        note_contents(draft, "replace", new, tokens_before, reason="provider_limit")


def compact_conversation(draft: Draft) -> None:
    """Applies the policy's late strategies in their order, then the net where too much is left.

    A cut by hand goes down to the low-water mark, or to that share of what there is where that is less.
    """
    if reason := draft.input.host.passthrough_reason:
        draft.account = draft.account._replace(degradations=(reason,))
        draft.history = draft.history._replace(states={})
        return
    draft.budget = budget = _budget(draft)
    settings, tokens = draft.policy.conversation, draft.conversation_tokens()
    late_strategies = [strategy for strategy in strategies_of(settings) if not strategy.early]
    if not (draft.manual_cut or draft.is_cut_due) and all(
        isinstance(strategy, CutStrategy)
        and (tokens <= strategy.mark(budget) or _usage_is_low(draft, tokens + budget.fixed, budget.input))
        for strategy in (*late_strategies, net(settings))
    ):
        _tell_broken_mark(draft, budget, tokens)
        return  # No mark is passed, as at most calls, which need not read the history for that.
    if reserves_latest_turns(draft):
        draft.budget = budget = _beside_recalled(draft, budget)
    if draft.manual_cut:
        budget = budget._replace(cut_to=min(budget.cut_to, int(settings.compact_to * tokens)))
    for strategy in late_strategies:
        _trim(draft, strategy, _packed_conversation(draft, budget, by_hand=draft.manual_cut))
    # What was asked for by hand is done once: by the net where no strategy did it.
    _trim(
        draft, net(settings), _packed_conversation(draft, budget, by_hand=draft.manual_cut and not draft.account.acts)
    )
    # A cut counts tokens, and what it leaves may have more bytes a token than what went: it is made again until the
    # bytes fit, and where it cannot, the oldest goes that may go. The current request and what answers it stay.
    for _ in range(_NET_ROUNDS + len(draft.history.items)):
        if (room := _byte_net(draft)) is None:
            break
        previous, budget = draft.history.items, budget._replace(net=room, cut_to=min(budget.cut_to, room))
        _trim(draft, net(settings), _packed_conversation(draft, budget, by_hand=False))
        if draft.history.items == previous and not _leave_out_oldest(draft):
            break
    _tell_broken_mark(draft, budget, draft.conversation_tokens())


def _tell_broken_mark(draft: Draft, budget: Budget, tokens: int) -> None:
    """Notes, in expected tokens, where the request stays above a mark of the policy, since nothing more can be cut."""
    mark, calibration = draft.policy.conversation.compact_at or 1, draft.input.usage.calibration
    whole, mark_tokens = tokens + budget.fixed, _mark_tokens(draft, budget.input)
    if mark < 1 and whole > mark_tokens:
        over = estimated(calibration, whole) - estimated(calibration, mark_tokens)
        others_note = f"the other layers take {estimated(calibration, budget.fixed):,} tokens"
        note = f"the request is {over:,} tokens above compact_at = {mark}: nothing more can be cut, and {others_note}"
        draft.account = draft.account._replace(degradations=(*draft.account.degradations, note))


def _mark_tokens(draft: Draft, budget: int) -> int:
    """The policy's mark, by `mark_tokens`."""
    share = draft.policy.conversation.compact_at or 1
    return mark_tokens(draft.input.usage.calibration, share, budget, draft.input_budget)


def mark_tokens(calibration: Calibration | None, share: float, budget: int, input_budget: int) -> int:
    """Counted tokens of the whole request above which a cut is made: those of which a share of the input budget is
    expected. Before anything is reported in the invocation it is a share of what may be counted.

    Args:
        share: ``compact_at``, 0 to 1.
        budget: the most that may be counted.
    """
    if share == 1 or calibration is None or calibration.report_minus_count is None:
        return int(share * budget)
    return min(budget, countable(calibration, share * input_budget) + calibration.uncounted_tokens)


def _trim(draft: Draft, strategy: Strategy, conversation: Conversation) -> Conversation:
    """Has a strategy decide, and writes its decision into the draft; returns the conversation that it leaves."""
    decision, lasting = strategy.trim(conversation, conversation.budget.cut_to), not strategy.early
    history, account = draft.history, draft.account
    if decision.state is not None:
        history = draft.history = history._replace(states={**history.states, strategy.name: decision.state})
        conversation = replace(conversation, state=history.states)
    if decision.note and decision.note not in account.degradations:
        account = draft.account = account._replace(degradations=(*account.degradations, decision.note))
    cuts = lasting and decision.takes_anything
    if not (decision.forms or cuts):
        return conversation
    effect = conversation.effect(decision, strategy.name, lasting=lasting)
    items, forms = list(history.items), {**history.forms}
    formed = {item.origin: item.content for item in effect.after.items}
    for at, form in decision.forms.items():
        forms[items[at].origin] = form
        if form.form != "left_out":
            content = formed[items[at].origin]
            how: SentForm = "extract" if form.form == "extract" else "placeholder"
            tokens = draft.counter.content(content)
            items[at] = _unpacked(draft, items[at])._replace(content=content, form=how, tokens=tokens)
    draft.history = history._replace(forms=forms)
    _note_effect(draft, conversation, decision, effect, lasting=lasting)
    removed_origins = {items[at].origin for at in decision.removed}
    if not cuts:
        draft.history = draft.history._replace(
            items=tuple(item for item in items if item.origin not in removed_origins)
        )
        return effect.after
    summary_place = _summary_place(draft, conversation, decision)
    summary = history.summary if decision.summary is None else decision.summary
    draft.history = draft.history._replace(items=tuple(items), summary=summary, summary_place=summary_place)
    _take_out(draft, removed_origins)
    return effect.after


def _note_effect(
    draft: Draft, conversation: Conversation, decision: Decision, effect: Effect, *, lasting: bool
) -> None:
    """Notes what a decision did: an act, and an event for what became blank and for what left or got shorter."""
    if effect.act is None:
        return
    draft.account = draft.account._replace(acts=(*draft.account.acts, effect.act))
    forms = decision.forms
    blank = [at for at, form in forms.items() if form.form == "placeholder" and at not in decision.earlier]
    shorter = [
        at for at, form in forms.items() if form.form == "extract" or not (at in decision.earlier or at in blank)
    ]
    stages: tuple[tuple[Stage, Sequence[int]], ...] = (("replace", blank), ("cut" if lasting else "hide", shorter))
    for stage, affected in stages:
        if affected or (stage == "cut" and decision.takes_anything):
            note_contents(
                draft,
                stage,
                [conversation.items[at].origin for at in affected],
                effect.tokens_before,
                effect.tokens_after,
                reason=forms[affected[0]].reason if affected else "window",
                strategy=effect.act.strategy,
            )


def _summary_place(draft: Draft, conversation: Conversation, decision: Decision) -> int:
    """The place of the summary: where the first content stood whose words it tells, or further up."""
    history = draft.history
    # A message without its media still has all of its words.
    worded = [at for at, form in decision.forms.items() if form.tokens != 0]
    if decision.summary is None or not worded:
        return history.summary_place
    at = conversation.positions[min(worded)]
    return min(at, history.summary_place) if history.summary else at


def note_contents(
    draft: Draft,
    stage: Stage,
    origins: Iterable[int],
    tokens_before: int,
    tokens_after: int | None = None,
    *,
    layer: Layer = "conversation",
    reason: Reason = "window",
    strategy: str = "",
) -> None:
    """Adds the event of an act on contents; without ``tokens_after`` the conversation's tokens are counted as it is."""
    request = draft.input.request
    event = TruncationEvent(
        layer=layer,
        stage=stage,
        reason=reason,
        item_ids=tuple(content_name(request.positions[at], request.contents[at].digest) for at in origins),
        tokens_before=tokens_before,
        tokens_after=draft.conversation_tokens() if tokens_after is None else tokens_after,
        strategy=strategy,
    )
    draft.note(event)


def results_to_keep(draft: Draft) -> Iterator[tuple[int, str, str, bool]]:
    """The results of tools under ``keep``, the latest first: the index of the content, the tool, the text, and whether
    a quarter of the window holds it beside those behind it."""
    names, room = draft.policy.offload.tools_under("keep"), draft.input.window // 4
    contents = draft.input.request.contents if names else ()
    for at in reversed(range(len(contents))):
        results = [(name, text) for name, text in results_in(contents[at]) if name in names]
        fits = draft.raw_tokens[at] <= room
        room -= draft.raw_tokens[at] if results and fits else 0
        yield from ((at, name, text, fits) for name, text in results)


def _anchors(draft: Draft) -> tuple[Anchor, ...]:
    """The contents that the host or its user marked, and the results that the policy keeps."""
    places = {draft.input.request.positions[at] for at, _, _, fits in draft.kept_results if fits}
    results = [Anchor(place=at, kind="custom", priority=KEPT_PRIORITY, description="kept result") for at in places]
    return ranked_anchors([*draft.input.host.anchors, *results])


def _host_conversation(draft: Draft) -> Conversation:
    """The conversation for early strategies: packed messages in their own words, extracts as they are sent.

    The tokens of packed messages are those of what is sent.
    """
    source, counter, settings = draft.input, draft.counter, draft.policy.conversation
    request, spare = source.request, source.usage.spare_tokens
    items = [item._replace(content=item.raw) if item.form == "payload" else item for item in draft.history.items]
    # All that the host declares, not what is sent of it: declarations that become shorter at an invocation's first call
    # would move the ceiling at the second, and with it what `sliding_turns` leaves out, which ends the cached prefix.
    head = counter.head(draft.epoch.system, request.tools, request.other_tools)
    fixed = source.usage.uncounted_tokens + sum(head)
    budget = Budget.of(
        source.window,
        slack=source.window - draft.input_budget,
        fixed=fixed,
        compact_at=settings.compact_at or 1.0,
        compact_to=settings.compact_to,
    )
    is_low = _usage_is_low(draft, fixed + sum(item.tokens for item in items), draft.input_budget + spare)
    return Conversation(
        items=tuple(items),
        request=request,
        budget=budget._replace(most=max(0, budget.most + spare)),
        counter=counter,
        anchors=_anchors(draft),
        state=source.epoch.strategies,
        pressure="by_hand" if draft.manual_cut else "usage_is_low" if is_low else "marks",
    )


def _packed_conversation(draft: Draft, budget: Budget, *, by_hand: bool) -> Conversation:
    """The conversation for late strategies, as it would be sent after a cut.

    The human message's tokens are counted elsewhere, and so is what earlier messages have beside their own words.
    """
    source, settings = draft.input, draft.policy.conversation
    items = [_unpacked(draft, item) for item in draft.history.items]
    conversation_tokens, request_at = draft.conversation_tokens(), request_place(draft)
    payload_tokens, request_tokens = conversation_tokens - draft.conversation_tokens(items), 0
    if request_at is not None:
        request_tokens, items[request_at] = items[request_at].tokens, items[request_at]._replace(tokens=0)
    positions = [source.request.positions[item.origin] for item in items]
    anchors_of_policy = policy_anchors([item.content for item in items], positions, settings)
    recalled = [candidate.line for candidate in draft.selected.memory if candidate.source == RECALLED]
    is_low = _usage_is_low(draft, conversation_tokens + budget.fixed, budget.input)
    return Conversation(
        items=tuple(items),
        request=source.request,
        budget=budget._replace(
            payload_tokens=payload_tokens, request_tokens=request_tokens, cached_price=source.host.cached_price
        ),
        counter=draft.counter,
        anchors=ranked_anchors([*_anchors(draft), *anchors_of_policy]),
        state=draft.history.states,
        recap=Recap(
            summary=draft.history.summary if settings.summary_share else "",
            sent_text=" ".join(word for line in recalled for word in line.split()),
            written=draft.account.summaries,
            names_past=source.host.can_read and source.window >= LEAST_WINDOW_READ,
            media=source.host.media,
            acting=draft.policy.offload.tools_under("acts"),
        ),
        pressure="by_hand" if by_hand else "usage_is_low" if is_low else "marks",
        verbatim=not draft.policy.compress.enabled,
        gives_media=draft.policy.record == "full" and source.host.can_read and takes_media(source.request.model),
        is_due=draft.is_cut_due,
    )


def _budget(draft: Draft) -> Budget:
    """The marks of the conversation: what the water marks leave beside the other layers, or its own share of them."""
    allocation, fixed, settings = draft.allocation, draft.other_layer_tokens, draft.policy.conversation
    net = _byte_net(draft)
    # At least the shares of the conversation's own ceiling: where evidence and memory alone pass the marks, a cut could
    # never get below them, and would be made again at every call.
    budget = Budget(
        window=allocation.budget + allocation.slack,
        slack=allocation.slack,
        fixed=fixed,
        most=max(0, allocation.budget - fixed),
        cut_above=0,
        cut_to=0,
        net=net,
    )
    cut_to = budget.mark(settings.compact_to)
    mark = settings.compact_at
    if mark is None:
        return budget._replace(weighs=True, cut_above=cut_to, cut_to=cut_to)
    cut_above = budget.mark(1)
    if mark < 1:
        # The mark is one of the whole request, so that what the other layers take comes off the conversation.
        cut_above = min(cut_above, max(0, _mark_tokens(draft, budget.input) - fixed))
        cut_to = min(cut_to, int(cut_above * settings.compact_to / mark))
    return budget._replace(cut_above=cut_above, cut_to=cut_to)


def _beside_recalled(draft: Draft, budget: Budget) -> Budget:
    """The marks beside turns that come back.

    These say what a cut took, so that they are of the share that it leaves, and the conversation keeps what its latest
    turns need beside them. All of their room is left, whichever they are: they are chosen of what the cut has taken.
    """
    share = draft.policy.conversation.compact_to
    recalled = sum(memory.tokens for memory in draft.selected.memory if memory.source == RECALLED)
    both = budget._replace(fixed=budget.fixed - recalled, most=budget.most + recalled)
    latest = min(budget.most, latest_turn_tokens(draft)) - draft.input.growth_reserve
    latest = min(latest, budget.most if budget.net is None else int(share * budget.net))
    return budget._replace(cut_to=max(both.mark(share) - max(recalled, draft.input.search.room), latest))


_NET_ROUNDS = 12
_NET_BYTES_PER_TOKEN = 3.6
"""The size of the byte net, by the tokens of the window."""


def _byte_net(draft: Draft) -> int | None:
    """The tokens of the conversation that the byte net lets through; None where it lets all of them through.

    The net is there for calls before which nothing was reported in the invocation: the first one, or all of them where
    a provider reports nothing. It catches what the count lets pass.
    """
    calibration = draft.input.usage.calibration
    if not draft.policy.usage.gate or (calibration is not None and calibration.report_minus_count is not None):
        return None
    contents = [item.content for item in draft.history.items]
    contents += [summary_content(draft.history.summary)] if draft.history.sent_summary else []
    max_bytes, size = _NET_BYTES_PER_TOKEN * draft.input.window, sent_bytes(contents)
    return int(max_bytes / size * draft.conversation_tokens()) if size > max_bytes else None


def sent_bytes(contents: Iterable[Content]) -> int:
    """Bytes of contents as JSON in UTF-8."""
    return sum(utf8_size(content.wire) for content in contents)


def _usage_is_low(draft: Draft, counted: int, budget: int) -> bool:
    """Tells whether reported usage says that the window is far from full, though the count is past its high-water mark.

    Args:
        counted: tokens of the whole request and what is unseen of it.
        budget: the input budget, which the count may not pass.
    """
    # Estimates rather count too much, so a report of this invocation, with what was added since, is heard before a cut.
    calibration = draft.input.usage.calibration
    if calibration is None or calibration.report_minus_count is None or counted > _mark_tokens(draft, budget):
        return False
    mark = min(draft.policy.usage.gate * draft.input.window, budget)
    return counted - calibration.uncounted_tokens + calibration.report_minus_count < mark


def _take_out(draft: Draft, origins: Collection[int]) -> None:
    """Cuts contents for good, by origin; earlier messages return to their own text with it."""
    items = tuple(_unpacked(draft, item) for item in draft.history.items if item.origin not in origins)
    draft.history = draft.history._replace(items=items, cut=draft.history.cut.union(origins))


def _unpacked(draft: Draft, item: Outgoing) -> Outgoing:
    """An earlier invocation's message with its own text again; a cut breaks the prefix that its packed text kept."""
    if item.form != "payload" or item.origin == draft.input.request.request_index:
        return item
    return item._replace(content=item.raw, form="whole", tokens=draft.counter.content(item.raw), members=())


def excess_tokens(draft: Draft, items: Sequence[Outgoing] | None = None) -> int:
    """Tokens over the input budget, with these contents in the place of those that are sent."""
    return draft.conversation_tokens(items) + draft.other_layer_tokens - draft.budget.input


def _leave_out_oldest(draft: Draft) -> bool:
    """Leaves out the oldest exchange or message that may go, else shortens the summary; tells whether there was any."""
    parts = units([item.content for item in draft.history.items])
    stay = protected(parts, request_place(draft))
    going = sorted((parts[at].kind == "human", at) for at in range(len(parts)) if at not in stay)
    if going:
        leave_out(draft, [parts[going[0][1]].indices], excess_tokens(draft) - 1)
    else:
        shorten_summary(draft, 0)
    return bool(going)


def shorten_summary(draft: Draft, room: int | None = None) -> None:
    """The summary of older cuts keeps the bullets that it would keep at a cut, as many as find room; whatever the room,
    the user's orders, the address of the past, the marks of what people sent and the list of tasks.

    Args:
        room: the tokens for it; by default what the input budget leaves.
    """
    if not draft.history.summary:
        return
    history, counter, tokens = draft.history, draft.counter, draft.conversation_tokens()
    summary = recap(
        [],
        [item.content for item in history.items],
        Recap(history.summary),
        max_tokens=max(0, draft.summary_tokens - excess_tokens(draft) if room is None else room),
        least_tokens=least_summary(draft.budget.input),
        counter=counter,
        prepare=counter.prepare,
    )
    if summary != history.summary:
        draft.history = history._replace(summary=summary, summary_place=history.summary_place if summary else 0)
        note_contents(draft, "emergency", (), tokens)


def hide_summary(draft: Draft) -> None:
    """Sends no summary with this request. Later ones have it: it holds what the user ordered, and addresses."""
    if draft.history.sent_summary:
        tokens_before = draft.conversation_tokens()
        draft.history = draft.history._replace(hides_summary=True)
        note_contents(draft, "emergency", (), tokens_before)


def request_place(draft: Draft) -> int | None:
    """The place of the request among the contents that are sent."""
    return item_place(draft.history.items, draft.input.request.request_index)


def leave_out(draft: Draft, groups: Iterable[Sequence[int]], spare: int = 0) -> None:
    """Cuts the items at these places for good, group by group, until no more than ``spare`` tokens are over.

    Earlier messages return to their own text with it, which may be longer than their packed one.
    """
    # Whole groups, an exchange each: providers refuse a call without its response, and a response without its call.
    removed_places: set[int] = set()
    unpacked_items = [_unpacked(draft, item) for item in draft.history.items]
    over = excess_tokens(draft, unpacked_items) - spare
    for places in groups:
        if over <= 0:
            break
        removed_places.update(places)
        over -= sum(unpacked_items[at].tokens for at in places)
    if not removed_places:
        return
    tokens_before = draft.conversation_tokens()
    origins = [item.origin for at, item in enumerate(draft.history.items) if at in removed_places]
    draft.history = draft.history.with_form("left_out", "window", origins)
    _take_out(draft, origins)
    note_contents(draft, "cut", origins, tokens_before, strategy=NET)
