"""What stands behind every strategy: whatever is left of a conversation goes out within the input budget.

From the mildest act to the hardest, each only as far as needed: responses that the model has yet to read become
extracts, then whatever else is long; messages beside the request go, and what strategies chose to keep; the request's
own middle, its media, the summary and the plan's text; what other agents handed over; and of an exchange with more
calls than there is room for, all but the first and the last ones. System instruction and declarations stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from aether_context.canonical import short
from aether_context.conversation import turns
from aether_context.conversation.quotes import requoted
from aether_context.conversation.turns import Unit
from aether_context.pack import Content, Outgoing, PackInput, TruncationEvent
from aether_context.packing import payload
from aether_context.packing.carryover import Carried
from aether_context.packing.early_strategies import content_id
from aether_context.packing.fit import LEAST_EXTRACT, Fitted, Marks, spoken, unpack
from aether_context.packing.rewrites import asked, part_tokens, reduced, response_tokens, shortened
from aether_context.policy import PackPolicy
from aether_context.text.compression import extract, level
from aether_context.tokens.cache import CachedCounter

NET = "emergency"
"""What the net behind the strategies is called among them in a manifest."""

_LEAST_REQUEST = 96
_LEAST_QUOTE = 8
_ROUNDS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scene:
    """What every act needs: the input, the policy, the given layers, the marks and the counts."""

    source: PackInput
    policy: PackPolicy
    carried: Carried
    budget: Marks
    counter: CachedCounter

    def over(self, fitted: Fitted) -> int:
        """Tokens over the input budget."""
        return self.spoken(fitted) + self.budget.fixed - self.budget.budget

    def spoken(self, fitted: Fitted) -> int:
        return spoken(self.source, self.policy, fitted, self.counter)

    @property
    def human(self) -> int | None:
        return self.source.request.human

    @property
    def raw_human(self) -> Content | None:
        return self.source.request.contents[self.human] if self.human is not None else None

    def event(self, fitted: Fitted, changed: Fitted, origins: Iterable[int], *, cut: bool = False) -> TruncationEvent:
        return TruncationEvent(
            layer="conversation",
            stage="cut" if cut else "emergency",
            reason="window",
            item_ids=tuple(content_id(self.source, origin) for origin in origins),
            tokens_before=self.spoken(fitted),
            tokens_after=self.spoken(changed),
            strategy=NET if cut else "",
        )


def within_window(
    source: PackInput, policy: PackPolicy, carried: Carried, fitted: Fitted, counter: CachedCounter
) -> Fitted:
    """The pack's contents within the input budget, wherever anything that may give way holds enough."""
    if fitted.marks is None:
        return fitted
    scene = _Scene(source=source, policy=policy, carried=carried, budget=fitted.marks, counter=counter)
    for act in (_shorten_responses, _shorten_parts, _leave_out_neighbours):
        if scene.over(fitted) <= 0:
            return fitted
        fitted = act(scene, fitted)
    left = scene.over(fitted)
    for ease in (_shorten_request, _leave_out_media, _leave_out_summary, _shorten_task):
        if left <= 0:
            return fitted
        fitted, left = ease(scene, fitted, left)
    if left > 0:
        fitted, left = _leave_out(scene, fitted, left, _handed)
    return _thin(scene, fitted, left) if left > 0 else fitted


def _shorten_responses(scene: _Scene, fitted: Fitted) -> Fitted:
    """Responses of the exchange that the model has yet to read become extracts."""
    counter, budget = scene.counter, scene.budget
    if not fitted.items:
        return fitted
    parts = turns.units([item.content for item in fitted.items])
    last = max(parts, key=lambda unit: unit.indices[-1])
    targets = [at for at in last.indices if response_tokens(fitted.items[at].content, counter)]
    sizes = [tokens for at in targets for tokens in response_tokens(fitted.items[at].content, counter)]
    if not sizes:
        return fitted
    beside = scene.spoken(fitted) - sum(sizes)
    enough = budget.high - beside >= LEAST_EXTRACT * len(sizes)
    room = (budget.high if enough else budget.budget - budget.fixed) - beside
    ceiling = max(LEAST_EXTRACT, level(sizes, room))
    changed = _with_extracts(scene, fitted, targets, ceiling)
    while ceiling > LEAST_EXTRACT and (over := scene.spoken(changed) - room - beside) > 0:
        ceiling = max(LEAST_EXTRACT, ceiling - over)
        changed = _with_extracts(scene, fitted, targets, ceiling)
    return _noted(scene, fitted, changed)


def _shorten_parts(scene: _Scene, fitted: Fitted) -> Fitted:
    """Whatever is long becomes an extract: texts, arguments, code, media, whoever's they are.

    The request is measured with them, so that it gives way before what is shorter than it.
    """
    counter, human = scene.counter, scene.human
    targets = [
        at
        for at, item in enumerate(fitted.items)
        if item.origin != human and item.outcome not in ("payload", "summary")
    ]
    sizes = {at: part_tokens(fitted.items[at].content, counter) for at in targets}
    raw = scene.raw_human
    request = _request_tokens(scene.carried, raw, counter) if raw is not None else 0
    every = [size for found in sizes.values() for size in found]
    beside = scene.spoken(fitted) + scene.budget.fixed - sum(every) - request
    ceiling = max(LEAST_EXTRACT, level([*every, request], scene.budget.budget - beside))
    changed = fitted
    for _ in range(_ROUNDS):
        long = [at for at in targets if max(sizes[at], default=0) > ceiling]
        changed = _with_extracts(scene, fitted, long, ceiling)
        if scene.over(changed) <= max(0, request - ceiling) or ceiling == LEAST_EXTRACT:
            break
        ceiling = max(LEAST_EXTRACT, ceiling * 4 // 5)
    return _noted(scene, fitted, changed)


def _with_extracts(scene: _Scene, fitted: Fitted, targets: Sequence[int], ceiling: int) -> Fitted:
    """The contents at ``targets`` with parts of at most ``ceiling`` tokens each."""
    raws = [item.raw for item in fitted.items]
    items = list(fitted.items)
    extracts = dict(fitted.extracts)
    for at in targets:
        item = items[at]
        most = min(ceiling, extracts.get(item.raw.digest, ceiling))
        query = asked(raws, at)
        if item.outcome == "placeholder":
            made = replace(item, content=shortened(item.content, most, query, scene.counter))
        else:
            made = reduced(item, most, fitted.parts if item.members else {}, query, scene.counter)
        if made.content.digest != item.content.digest:
            items[at] = replace(made, tokens=scene.counter.content(made.content))
            extracts[item.raw.digest] = most
    return replace(fitted, items=tuple(items), extracts=extracts)


def _noted(scene: _Scene, fitted: Fitted, changed: Fitted) -> Fitted:
    """The change with its event; none where nothing changed."""
    pairs = zip(fitted.items, changed.items, strict=True)
    touched = [other.origin for one, other in pairs if one.content is not other.content]
    if not touched:
        return fitted
    return replace(changed, events=(*changed.events, scene.event(fitted, changed, touched)))


# whole units


def _leave_out_neighbours(scene: _Scene, fitted: Fitted) -> Fitted:
    """Whatever strategies and anchors hold goes, then messages beside the request, the oldest first."""
    fitted, _ = _leave_out(scene, fitted, _beyond_request(scene, fitted), _unasked)
    return fitted


def _beyond_request(scene: _Scene, fitted: Fitted) -> int:
    """Tokens over the budget that shortening the request cannot free."""
    raw = scene.raw_human
    if raw is None:
        return scene.over(fitted)
    size = _request_tokens(scene.carried, raw, scene.counter)
    return scene.over(fitted) - max(0, size - _least_request(raw, scene.counter))


_Order = Callable[[Sequence[Unit], int | None], list[int]]
"""The places of units that may go, the first to go first."""


def _unasked(parts: Sequence[Unit], human: int | None) -> list[int]:
    stay = turns.protected(parts, human, neighbours=False)
    going = [at for at in range(len(parts)) if at not in stay]
    return sorted(going, key=lambda at: (parts[at].kind == "human", at))


def _handed(parts: Sequence[Unit], human: int | None) -> list[int]:
    last = max(range(len(parts)), key=lambda at: parts[at].indices[-1], default=None)
    return [at for at, unit in enumerate(parts) if at != last and (human is None or human not in unit.indices)]


def _leave_out(scene: _Scene, fitted: Fitted, over: int, order: _Order) -> tuple[Fitted, int]:
    """The pack without units until ``over`` tokens are free; what is left of those."""
    if over <= 0:
        return fitted, over
    items = fitted.items
    human = next((at for at, item in enumerate(items) if item.origin == scene.human), None)
    parts = turns.units([item.content for item in items])
    gone: set[int] = set()
    for at in order(parts, human):
        if over <= 0:
            break
        gone.update(parts[at].indices)
        over -= sum(items[index].tokens for index in parts[at].indices)
    return (_without(scene, fitted, gone) if gone else fitted), over


def _without(scene: _Scene, fitted: Fitted, gone: Collection[int]) -> Fitted:
    """The pack without the items at these places, cut for good; earlier messages return to their own text with it."""
    out = [item for at, item in enumerate(fitted.items) if at in gone]
    stay = [unpack(item, scene.human, scene.counter) for at, item in enumerate(fitted.items) if at not in gone]
    changed = replace(
        fitted,
        items=tuple(stay),
        cut=(*fitted.cut, *out),
        reasons={**fitted.reasons, **{item.origin: "window" for item in out}},
        unpacked=True,
    )
    event = scene.event(fitted, changed, [item.origin for item in out], cut=True)
    return replace(changed, events=(*changed.events, event))


def _thin(scene: _Scene, fitted: Fitted, over: int) -> Fitted:
    """Of the exchange that the model has yet to read, the first call and the last ones, as many as have room.

    A call and its response go together, and contents of which nothing stays go whole. So do the first and the last
    parts of any other content that comes last.
    """
    items, counter = fitted.items, scene.counter
    parts = turns.units([item.content for item in items])
    last = max(parts, key=lambda unit: unit.indices[-1], default=None)
    if last is None:
        return fitted
    indices = [index for index in last.indices if items[index].origin != scene.human and not items[index].members]
    raws = [items[index].raw for index in indices]
    fixed, groups = _groups(raws)
    # A text before the calls is no call: kept alone, it would leave the contents that answer with no parts.
    first = next((group for group in groups if len(group) > 1), groups[0])
    others = [group for group in groups if group is not first]
    room = sum(items[index].tokens for index in indices) - over

    def thinned(count: int) -> list[Outgoing]:
        chosen = [*fixed, *first, *(one for group in others[len(others) - count :] for one in group)]
        made = []
        for number, index in enumerate(indices):
            item = items[index]
            kept = turns.as_ranges({at for which, at in chosen if which == number})
            ceiling = fitted.extracts.get(item.raw.digest)
            found = reduced(item, ceiling, {item.raw.digest: kept}, asked([one.raw for one in items], index), counter)
            made.append(replace(found, tokens=counter.content(found.content) if kept else 0))
        return made

    low, high = 0, len(others)
    while low < high:
        middle = (low + high + 1) // 2
        if sum(one.tokens for one in thinned(middle)) <= room:
            low = middle
        else:
            high = middle - 1
    if low >= len(others):
        return fitted
    made = thinned(low)
    whole = list(items)
    for index, item in zip(indices, made, strict=True):
        whole[index] = item
    kept = {item.raw.digest: _ranges(item) for item in made if item.members}
    changed = replace(fitted, items=tuple(whole), parts={**fitted.parts, **kept})
    event = scene.event(fitted, changed, [item.origin for item in made])
    changed = replace(changed, events=(*changed.events, event))
    empty = [index for index, item in zip(indices, made, strict=True) if not item.members]
    return _without(scene, changed, empty) if empty else changed


def _ranges(item: Outgoing) -> tuple[tuple[int, int], ...]:
    return turns.as_ranges(at for _, at in item.members)


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


# the request, the summary and the plan


def _shorten_request(scene: _Scene, fitted: Fitted, over: int) -> tuple[Fitted, int]:
    """The middle of an oversized request, or of what was handed over, leaves a note, and goes to the store."""
    raw, counter = scene.raw_human, scene.counter
    size = _request_tokens(scene.carried, raw, counter) if raw is not None else 0
    least = _least_request(raw, counter) if raw is not None else 0
    if raw is None or size <= least:
        return fitted, over
    uri = f"artifact://messages/{short(raw.digest, 16)}.txt"
    shown = scene.policy.record == "full" and scene.source.can_read
    kept = f"; the whole of it is {uri}" if shown else ""
    note = f"[The middle of this message is left out{kept}]"
    room = max(least, size - over) - counter.count(note) - 4
    if raw.agent:
        text = f"{note}\n{_handed_within(raw, room, counter)}"
    else:
        text = f"{note}\n{extract(raw.text, max_tokens=max(8, room), counter=counter).text}"
    made = counter.count(text)
    event = TruncationEvent(
        layer="task", stage="emergency", reason="window", item_ids=(), tokens_before=size, tokens_after=made
    )
    saved = {uri: raw.text} if scene.policy.record == "full" else {}
    return replace(fitted, request=text, saved=saved, events=(*fitted.events, event)), over - (size - made)


def _least_request(raw: Content, counter: CachedCounter) -> int:
    """Tokens that are left of a request at least; of another agent's turn as many beside the host's own words."""
    quoted = max(raw.quotes, key=lambda quote: (quote.kind == "said", quote.at), default=None)
    return _LEAST_REQUEST + (counter.count(_quoted_alone(raw, quoted.at, "")) if quoted is not None else 0)


def _handed_within(raw: Content, room: int, counter: CachedCounter) -> str:
    """Another agent's turn in about ``room`` tokens, between the host's marks.

    Each thing that is quoted is cut to an extract; where there are too many of them, only what was said last stays.
    """
    sizes = counter.count_all([quote.text for quote in raw.quotes])
    left = room - (counter.count(raw.text) - sum(sizes))
    if left >= _LEAST_QUOTE * len(sizes):
        ceiling = level(sizes, left)
        whole = {quote.at: quote.text for quote in raw.quotes}
        parts = []
        for at, part in enumerate(raw.parts):
            if at in whole and counter.count(whole[at]) > ceiling:
                parts.append(requoted(part, extract(whole[at], max_tokens=ceiling, counter=counter).text))
            elif part.kind == "text":
                parts.append(part.text)
        return "\n".join(parts)
    quoted = max(raw.quotes, key=lambda quote: (quote.kind == "said", quote.at))
    room -= counter.count(_quoted_alone(raw, quoted.at, ""))
    return _quoted_alone(raw, quoted.at, extract(quoted.text, max_tokens=max(8, room), counter=counter).text)


def _quoted_alone(raw: Content, at: int, text: str) -> str:
    """What explains the marks, then one part of another agent's turn with this text between them."""
    return f"{raw.parts[0].text}\n{requoted(raw.parts[at], text)}"


def _request_tokens(carried: Carried, raw: Content, counter: CachedCounter) -> int:
    """Tokens of the request, or of what was handed over, as it is sent now: an earlier call may have shortened it."""
    packed = carried.packed
    if packed is None or not packed.before:
        return counter.count(raw.text)
    said = payload.answered(packed.after) if packed.after else packed.before
    return counter.count(said or packed.after)


def _leave_out_media(scene: _Scene, fitted: Fitted, over: int) -> tuple[Fitted, int]:
    """Media of the request go, the largest first, and what the request says names them."""
    raw = scene.raw_human
    if raw is None:
        return fitted, over
    kept = fitted.parts.get(raw.digest, ((0, len(raw.parts)),))
    there = {at for start, stop in kept for at in range(start, stop)}
    counter = scene.counter
    sizes = {at: max(counter.media(part), counter.count(part.text)) for at, part in enumerate(raw.parts) if at in there}
    loose = sorted((at for at in sizes if raw.parts[at].kind != "text"), key=lambda at: (-sizes[at], at))
    gone: list[int] = []
    before = over
    for at in loose:
        if over <= 0 or not sizes[at]:
            break
        gone.append(at)
        over -= sizes[at]
    if not gone:
        return fitted, over
    names = ", ".join(f"{raw.parts[at].mime_type or 'a part'} of {sizes[at]} tokens" for at in sorted(gone)[:8])
    more = f" and {len(gone) - 8} more" if len(gone) > 8 else ""
    note = f"[Left out of this message: {names}{more}]"
    text = raw.text if fitted.request is None else fitted.request
    over += counter.count(note) + 1
    event = TruncationEvent(
        layer="task",
        stage="emergency",
        reason="window",
        item_ids=(),
        tokens_before=scene.carried.measured["task"],
        tokens_after=max(0, scene.carried.measured["task"] - (before - over)),
    )
    request = f"{text}\n{note}" if text else note
    ranges = turns.as_ranges(there - set(gone))
    parts = {**fitted.parts, raw.digest: ranges}
    return replace(fitted, request=request, parts=parts, events=(*fitted.events, event)), over


def _leave_out_summary(scene: _Scene, fitted: Fitted, over: int) -> tuple[Fitted, int]:
    """The summary of earlier cuts goes."""
    if not fitted.summary:
        return fitted, over
    changed = replace(fitted, summary="", summary_place=0)
    freed = scene.spoken(fitted) - scene.spoken(changed)
    event = scene.event(fitted, changed, ())
    return replace(changed, events=(*changed.events, event)), over - freed


def _shorten_task(scene: _Scene, fitted: Fitted, over: int) -> tuple[Fitted, int]:
    """The plan's own text is cut down, where there is one."""
    carried = scene.carried
    raw = scene.raw_human
    size = _request_tokens(carried, raw, scene.counter) if raw is not None else 0
    request = size if fitted.request is None else scene.counter.count(fitted.request)
    media = sum(map(scene.counter.media, raw.parts)) if raw is not None else 0
    task = carried.measured["task"] - size - media
    if carried.keeps or task < 2 * LEAST_EXTRACT:
        return fitted, over
    room = max(LEAST_EXTRACT, task - over)
    event = TruncationEvent(
        layer="task",
        stage="emergency",
        reason="window",
        item_ids=(),
        tokens_before=carried.measured["task"],
        tokens_after=room + request,
    )
    return replace(fitted, task_ceiling=room, events=(*fitted.events, event)), over - (task - room)
