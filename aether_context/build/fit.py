"""Making a pack fit: the drop ladder, the cut to the low-water mark, and emergency truncation behind both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from aether_context import conversation, payload
from aether_context.build.carry import Carried, frame_tokens, summary_tokens
from aether_context.build.choice import Chosen
from aether_context.build.cutting import LEAST_EXTRACT, cut_to, pays
from aether_context.build.ladder import Press, reduce_evidence, reduce_memory
from aether_context.build.rewriting import asked, response_tokens, shortened
from aether_context.build.shares import Shares
from aether_context.build.tightening import Tight
from aether_context.canonical import short
from aether_context.compression import Summaries, extract, level
from aether_context.counting import Tally
from aether_context.pack import (
    Allocation,
    Candidate,
    Content,
    Ingredients,
    Outgoing,
    Reason,
    TruncationEvent,
    Wish,
)
from aether_context.policy import PackPolicy

_LEAST_REQUEST = 96
_SCARCE_SHARE = 0.02
_BULLET = "- a"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """What is sent and what is not.

    ``items`` are the contents that are still sent; ``cut`` those left out by this act, and ``unpacked`` says that
    earlier messages returned to their own text with it. ``summaries`` are the ids of candidates that are sent
    shortened. ``request`` is the shortened user request, None where it is whole; ``saved`` holds what was taken out of
    it, by URI. ``task_ceiling`` are the tokens that the payload before the request is cut down to, None where it is
    whole. ``wishes`` are the summaries that a model could write.
    """

    items: tuple[Outgoing, ...]
    cut: tuple[Outgoing, ...] = ()
    cut_reason: Reason = "high_water"
    unpacked: bool = False
    memory: tuple[Candidate, ...] = ()
    evidence: tuple[Candidate, ...] = ()
    summaries: frozenset[str] = frozenset()
    dropped: tuple[Candidate, ...] = ()
    summary: str = ""
    extracts: Mapping[str, int] = field(default_factory=dict)
    request: str | None = None
    task_ceiling: int | None = None
    saved: Mapping[str, str] = field(default_factory=dict)
    events: tuple[TruncationEvent, ...] = ()
    degradations: tuple[str, ...] = ()
    wishes: tuple[Wish, ...] = ()

    @property
    def made_cut(self) -> bool:
        """Whether the conversation was cut, be it that contents only became shorter."""
        return any(event.stage == "cut" for event in self.events)


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """Tokens that are spent whatever the conversation does, and the marks for the rest."""

    fixed: int
    budget: int
    ceiling: int
    high: int
    low: int


def fit(source: Ingredients, policy: PackPolicy, tight: Tight, chosen: Chosen, shares: Shares, tally: Tally) -> Fitted:
    """Leaves out only what must be: each layer inside its allocation stays as it is."""
    carried = tight.carried
    if source.hands_off:
        return Fitted(items=carried.items, degradations=(source.hands_off,))
    layers = shares.allocation.layers
    summaries = Summaries(policy.compress.summarizer if policy.compress.enabled else "", source.summaries)
    press = Press(settings=policy.compress, query=chosen.query, summaries=summaries, tally=tally, least=tight.least)
    memory = reduce_memory(chosen.memory.chosen, layers["memory"].final, press)
    evidence = reduce_evidence(chosen.evidence.chosen, layers["evidence"].final, source.step, press)
    fitted = Fitted(
        items=carried.items,
        memory=memory.kept,
        evidence=evidence.kept,
        summaries=memory.summaries | evidence.summaries,
        dropped=memory.lost + evidence.lost,
        summary=source.epoch.summary,
        extracts=source.epoch.extracts,
        events=(*memory.compressed, *evidence.compressed, *tight.events, *memory.dropped, *evidence.dropped),
    )
    used = carried.packed.used if carried.packed is not None else {}
    fixed = (
        sum(carried.measured.values()) + sum(used.values()) + sum(one.tokens for one in (*memory.kept, *evidence.kept))
    )
    budget = marks(policy, shares.allocation, fixed)
    fitted = _cut(source, policy, summaries, budget, fitted, tally)
    fitted = replace(fitted, wishes=summaries.wishes)
    if _first_payload(source, policy, carried, fitted):
        budget = replace(budget, fixed=budget.fixed + frame_tokens(policy, tally))
    fitted = _shorten_responses(source, policy, budget, fitted, tally)
    return _shorten_request(source, policy, carried, budget, fitted, tally)


def _first_payload(source: Ingredients, policy: PackPolicy, carried: Carried, fitted: Fitted) -> bool:
    """Whether a summary puts a payload into a message that would have none, so that its frame was not measured."""
    inside = bool(fitted.summary) and policy.conversation.summary == "payload" and source.request.human is not None
    packed = carried.packed is not None and bool(carried.packed.before)
    return inside and not packed and not carried.measures_frame


def marks(policy: PackPolicy, allocation: Allocation, fixed: int) -> Marks:
    """The marks of the conversation: what the water marks leave beside the other layers, or its own share of them.

    Args:
        fixed: tokens of all other layers as they are sent.
    """
    budget = allocation.budget
    ceiling = max(allocation.layers["conversation"].final, budget - fixed)
    settings = policy.conversation
    return Marks(
        fixed=fixed,
        budget=budget,
        ceiling=ceiling,
        high=max(int(settings.high_water * budget) - fixed, int(settings.high_water * ceiling)),
        low=max(int(settings.low_water * budget) - fixed, int(settings.low_water * ceiling)),
    )


def _spoken(source: Ingredients, policy: PackPolicy, fitted: Fitted, tally: Tally) -> int:
    """Tokens of the conversation layer: every content but the human message, and the summary."""
    human = source.request.human
    items = sum(item.tokens for item in fitted.items if item.origin != human)
    return items + summary_tokens(fitted.summary, policy, tally)


def _cut(
    source: Ingredients, policy: PackPolicy, summaries: Summaries, budget: Marks, fitted: Fitted, tally: Tally
) -> Fitted:
    """One act down to the low-water mark, where the high-water mark is passed and it pays or the window demands it."""
    before = _spoken(source, policy, fitted, tally)
    if not _pressed(source, policy, budget, before, fitted):
        return fitted
    demanded = before > budget.ceiling
    settings = policy.conversation
    human = source.request.human
    items = [_unpacked(item, human, tally) for item in fitted.items]
    left = cut_to(
        budget.low,
        items,
        human,
        policy,
        tally,
        ceiling=budget.ceiling,
        room=int(settings.summary_share * budget.budget) if settings.summary != "off" else 0,
        earlier=source.epoch.summary,
        summaries=summaries,
    )
    changed = replace(
        fitted,
        items=left.items,
        cut=left.cut,
        cut_reason="window" if demanded else "high_water",
        summary=left.summary,
        unpacked=any(one is not other for one, other in zip(items, fitted.items, strict=True)),
        extracts={**fitted.extracts, **left.extracts},
    )
    after = _spoken(source, policy, changed, tally)
    if changed.items == fitted.items or (not demanded and before - after < _SCARCE_SHARE * budget.budget):
        return fitted
    event = TruncationEvent(
        layer="conversation",
        stage="cut",
        reason=changed.cut_reason,
        item_ids=(),
        tokens_before=before,
        tokens_after=after,
    )
    return replace(changed, events=(*fitted.events, event))


def _pressed(source: Ingredients, policy: PackPolicy, budget: Marks, spoken: int, fitted: Fitted) -> bool:
    """Whether the conversation calls for a cut: past the high-water mark and the gate, or past the byte net."""
    if spoken > budget.ceiling:
        return True
    if spoken > budget.high:
        return not gated(source, policy, spoken + budget.fixed, budget.budget) and _pays(
            source, policy, budget, fitted, spoken
        )
    net = policy.usage.net_bytes_per_token * source.window
    return source.first_call and 0 < net < sum(len(item.content.wire) for item in fitted.items)


def gated(source: Ingredients, policy: PackPolicy, counted: int, budget: int) -> bool:
    """Whether reported usage says that the window is far from full, though the count is past its high-water mark.

    Args:
        counted: tokens of the whole request and what is unseen of it.
        budget: the input budget, which the count may not pass.
    """
    known = source.calibration
    if known is None or known.beyond is None or counted > budget:
        return False
    mark = min(policy.usage.gate * source.window, policy.conversation.high_water * budget)
    return counted - known.unseen + known.beyond < mark


def _pays(source: Ingredients, policy: PackPolicy, budget: Marks, fitted: Fitted, spoken: int) -> bool:
    """Whether a cut to the low-water mark saves more than the cached prefix that it breaks."""
    calls = sum(item.content.role == "model" for item in fitted.items)
    price = policy.conversation.cached_price or source.cached_price
    return pays(freed=spoken - budget.low, kept=budget.low, growth=spoken / max(1, calls), cached_price=price)


def _unpacked(item: Outgoing, human: int | None, tally: Tally) -> Outgoing:
    """An earlier invocation's message with its own text again; a cut breaks the prefix that its packed text kept."""
    if item.outcome != "payload" or item.origin == human:
        return item
    return replace(item, content=item.raw, outcome="verbatim", tokens=tally.content(item.raw))


def _shorten_responses(source: Ingredients, policy: PackPolicy, budget: Marks, fitted: Fitted, tally: Tally) -> Fitted:
    """Emergency: responses of the exchange that the model has yet to read become extracts."""
    over = _spoken(source, policy, fitted, tally) + budget.fixed - budget.budget
    if over <= 0 or not fitted.items:
        return fitted
    parts = conversation.units([item.content for item in fitted.items])
    last = max(parts, key=lambda unit: unit.indices[-1])
    targets = [at for at in last.indices if fitted.items[at].content.responses]
    sizes = [tokens for at in targets for tokens in response_tokens(fitted.items[at].content, tally)]
    if not sizes:
        return fitted
    beside = _spoken(source, policy, fitted, tally) - sum(sizes)
    enough = budget.high - beside >= LEAST_EXTRACT * len(sizes)
    room = (budget.high if enough else budget.budget - budget.fixed) - beside
    ceiling = max(LEAST_EXTRACT, level(sizes, room))
    changed = _with_extracts(fitted, targets, ceiling, tally)
    while ceiling > LEAST_EXTRACT and (over := _spoken(source, policy, changed, tally) - room - beside) > 0:
        ceiling = max(LEAST_EXTRACT, ceiling - over)
        changed = _with_extracts(fitted, targets, ceiling, tally)
    if changed.items == fitted.items:
        return fitted
    event = TruncationEvent(
        layer="conversation",
        stage="emergency",
        reason="window",
        item_ids=(),
        tokens_before=_spoken(source, policy, fitted, tally),
        tokens_after=_spoken(source, policy, changed, tally),
    )
    return replace(changed, events=(*fitted.events, event))


def _with_extracts(fitted: Fitted, targets: Sequence[int], ceiling: int, tally: Tally) -> Fitted:
    """The responses at ``targets`` as extracts of at most ``ceiling`` tokens each."""
    raws = [item.raw for item in fitted.items]
    items = list(fitted.items)
    extracts = dict(fitted.extracts)
    for at in targets:
        made = shortened(raws[at], ceiling, asked(raws, at), tally)
        if made.digest != items[at].content.digest:
            items[at] = replace(items[at], content=made, outcome="extract", tokens=tally.content(made))
            extracts[raws[at].digest] = ceiling
    return replace(fitted, items=tuple(items), extracts=extracts)


def _shorten_request(
    source: Ingredients, policy: PackPolicy, carried: Carried, budget: Marks, fitted: Fitted, tally: Tally
) -> Fitted:
    """Emergency: the middle of an oversized request leaves a note, and goes to the store."""
    over = _spoken(source, policy, fitted, tally) + budget.fixed - budget.budget
    human = source.request.human
    if over <= 0:
        return fitted
    raw = source.request.contents[human] if human is not None else None
    size = _request_tokens(carried, raw, tally) if raw is not None else 0
    if raw is None or size <= _LEAST_REQUEST:
        return _shorten_task(carried, fitted, over, size)
    uri = f"artifact://messages/{short(raw.digest, 16)}.txt"
    kept = "" if policy.record != "full" else f"; the whole of it is {uri}"
    note = f"[The middle of this message is left out{kept}]"
    room = max(_LEAST_REQUEST, size - over) - tally.count(note) - 4
    text = f"{note}\n{extract(raw.text, max_tokens=max(8, room), counter=tally).text}"
    made = tally.count(text)
    event = TruncationEvent(
        layer="task",
        stage="emergency",
        reason="window",
        item_ids=(),
        tokens_before=size,
        tokens_after=made,
    )
    saved = {uri: raw.text} if policy.record == "full" else {}
    fitted = replace(fitted, request=text, saved=saved, events=(*fitted.events, event))
    left = over - (size - made)
    return _shorten_task(carried, fitted, left, made) if left > 0 else fitted


def _request_tokens(carried: Carried, raw: Content, tally: Tally) -> int:
    """Tokens of the user's request as it is sent now: an earlier call of the invocation may have shortened it."""
    packed = carried.packed
    if packed is None or not packed.before:
        return tally.count(raw.text)
    said = packed.after.partition(payload.REQUEST)[2] if packed.after else packed.before
    return tally.count(said or packed.after)


def _shorten_task(carried: Carried, fitted: Fitted, over: int, request: int) -> Fitted:
    """Last of all: the plan's own text is cut down, where there is one."""
    room = carried.measured["task"] - request - over
    if carried.keeps or carried.measured["task"] - request < 2 * LEAST_EXTRACT:
        return fitted
    event = TruncationEvent(
        layer="task",
        stage="emergency",
        reason="window",
        item_ids=(),
        tokens_before=carried.measured["task"],
        tokens_after=max(LEAST_EXTRACT, room) + request,
    )
    return replace(fitted, task_ceiling=max(LEAST_EXTRACT, room), events=(*fitted.events, event))
