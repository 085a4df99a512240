"""The strategies: rows of parameters over the one cut, a table of them by name, and those registered from outside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Literal, NamedTuple, TypeAlias, get_args

from aether_context.canonical import canonical_json
from aether_context.conversation.anchors import hold
from aether_context.conversation.extracts import LEAST_EXTRACT, part_tokens, response_tokens
from aether_context.conversation.stable_prefix import StablePrefix
from aether_context.conversation.strategy import Budget, Conversation, Decision, Strategy, summary_tokens
from aether_context.conversation.summary import MOST_TOKENS, can_be_read, least_summary
from aether_context.conversation.turns import Cut, Unit, cut, is_human, latest_answer, protected
from aether_context.errors import PolicyError, near_names
from aether_context.pack import ContentForm, Reason
from aether_context.policy import ConversationSettings
from aether_context.text.shorten import level

RECAP_SHARE = 0.3
"""The recap's most beside turns that were recalled, as a share of what a cut leaves."""
_FREES_NOTHING = "the cut that was asked for was not made: its summary takes as much as it frees"
_BULLET = "- a"
_WORTHWHILE = 0.9
"""Share of the tokens that are asked for under which a cut is made only where the window or a hand demands it."""


class _Levels(NamedTuple):
    """The tokens of one cut: it goes down to ``target``, what may stay takes at most ``most_kept``, a summary at most
    ``most_summary``. One that frees less than ``least_freed`` is not made, but where the window is full (``is_over``).
    """

    target: int
    most_kept: int
    most_summary: int
    least_freed: float
    is_over: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CutStrategy:
    """A strategy that leaves out whole units for good, from the oldest, in one act, with a summary in their place.

    The rule, one method a step:

    1. It is due where the conversation has passed a mark, or a hand asks; without a mark of the policy, where it pays
       (`_is_due`).
    2. It goes down to a target, its summary included (`_levels`).
    3. Media that people sent before the latest turns go first, since they can be shown again; where that frees enough,
       nothing else goes (`_media_forms`).
    4. What the model has yet to answer stays, and what tells it what to do (`protected`).
    5. Anchors stay by priority, then the model's last answer with what it answers, as far as they fit (`_staying`).
    6. Of the rest whole units leave, the oldest first; a question outlives its answers, and the words of the last
       turns outlive all exchanges (`cut`).
    7. The unit that leaves last stays as an extract, where that frees as much as is asked for (`_shortened`).
    8. A summary tells of what left, in its share of the budget or in all that is free; in less where turns are recalled
       beside it (`_summary_room`).
    9. A cut that frees less than nine tenths of what is asked for is not made, unless the window is full, a hand asks,
       or the mark is the policy's, which holds whatever a cut costs (``least_freed``).
    10. What then is above the window is the last resort's (`packing.last_resort`).

    Args:
        summary_share: the most of the summary, as a share of the input budget; 0 for none.
        cut_at: share of the input budget above which it cuts, whatever that costs. None for the policy's
            ``compact_at``.
        to: share that it goes down to; None for the policy's ``compact_to``.
        rise: how much less deep it cuts, as a share of the way from there to what fits.
        keep_first: number of units at the beginning that stay while they find room.
        keep_last: number of units at the end that do, which give way before those at the beginning.
        frozen: whether these may take all that fits, and not only what a cut leaves.
        by_age: whether the latest result of a tool is no anchor. One of long ago may be so large that it would leave
            the latest turns no room.
        last_turns: number of turns, the latest among them, whose messages leave after all exchanges.
        reason: why it cuts, where neither the window, the byte net nor a hand says so.
    """

    name: str
    summary_share: float
    cut_at: float | None = None
    to: float | None = None
    rise: float = 0.0
    keep_first: int = 0
    keep_last: int = 0
    frozen: bool = False
    by_age: bool = False
    last_turns: int = 1
    reason: Reason = "high_water"
    early: ClassVar[bool] = False

    def mark(self, budget: Budget) -> int:
        """Tokens of the conversation above which it cuts."""
        return budget.cut_above if self.cut_at is None else budget.mark(self.cut_at)

    def trim(self, conversation: Conversation, target_tokens: int) -> Decision:
        levels = self._levels(conversation, target_tokens)
        if not self._is_due(conversation, levels.target):
            return Decision()
        # What people sent is a thousand tokens each, and can be shown again, so that it gives way before words.
        media_forms = self._media_forms(conversation)
        original, conversation = conversation, conversation.apply(Decision(media_forms))
        reason = self._reason(original)
        staying, notes = self._staying(conversation, levels)
        summary, forms = conversation.recap.summary, dict[int, ContentForm]()
        enough = min(levels.most_kept, original.used - _WORTHWHILE * (original.used - levels.target))
        if not media_forms or conversation.used > enough:
            summary, forms = self._cut(conversation, levels, staying, reason)
        forms = {at: form._replace(reason=reason) for at, form in media_forms.items()} | forms
        if not (forms or original.budget.payload_tokens):
            return Decision()
        decision = Decision(forms, summary, note="; ".join(notes))
        if levels.is_over or original.effect(decision).freed_tokens >= levels.least_freed:
            return decision
        return Decision(note=_FREES_NOTHING if original.pressure == "by_hand" else "")

    def _levels(self, conversation: Conversation, target_tokens: int) -> _Levels:
        budget, by_hand = conversation.budget, conversation.pressure == "by_hand"
        target = target_tokens if self.to is None else budget.mark(self.to)
        target = min(target, target_tokens) if by_hand else target + int(self.rise * (budget.mark(1) - target))
        # What may stay is held to the policy's mark, since the next call would pass it again; a summary has its room.
        promised = self.cut_at is None and not budget.weighs
        most_kept = min(budget.most, max(budget.cut_above, least_summary(budget.input))) if promised else budget.most
        most_summary = min(int(self.summary_share * budget.input), MOST_TOKENS)
        if conversation.recap.sent_text:
            most_summary = min(most_summary, max(int(RECAP_SHARE * target), least_summary(budget.input)))
        least_freed = 1 if by_hand or promised else _WORTHWHILE * (conversation.used - target)
        return _Levels(target, most_kept, most_summary, least_freed, conversation.is_over(budget.mark(1)))

    def _is_due(self, conversation: Conversation, target: int) -> bool:
        """Tells whether a cut is made: where its mark is passed, and where the policy has none, also where it pays."""
        budget = conversation.budget
        if not conversation.passes(self.mark(budget)):
            return False
        is_demanded = conversation.pressure == "by_hand" or conversation.is_over(budget.mark(1))
        is_weighed = self.cut_at is None and budget.weighs and not is_demanded
        return not is_weighed or conversation.pays(target)

    def _reason(self, conversation: Conversation) -> Reason:
        budget = conversation.budget
        if conversation.pressure == "by_hand":
            return "by_hand"
        if self.reason == "high_water" and conversation.used > budget.most:
            return "window"
        return self.reason if budget.net is None else "byte_net"

    def _staying(self, conversation: Conversation, levels: _Levels) -> tuple[frozenset[int], Sequence[str]]:
        """The units that no cut takes, and what is to be said of anchors that find no room: what the model has yet to
        answer, anchors, and its last answer, as far as they fit."""
        parts, tokens, room = conversation.units, conversation.tokens, levels.most_kept - levels.most_summary
        stay = protected(parts, conversation.request_index)
        anchors = [
            anchor for anchor in conversation.anchors if not (self.by_age and anchor.kind == "latest_tool_result")
        ]
        anchored, notes = hold(anchors, parts, conversation.positions, tokens, max_tokens=room, stay=stay)
        staying = stay | anchored
        with_answer = staying | latest_answer(parts)
        # A cut that only saves is not made where the answer would keep it from what it goes down to.
        most_held = room if levels.is_over else levels.target
        is_held = sum(tokens[index] for at in with_answer for index in parts[at].indices) <= most_held
        return with_answer if is_held else staying, notes

    def _cut(
        self, conversation: Conversation, levels: _Levels, staying: Collection[int], reason: Reason
    ) -> tuple[str, dict[int, ContentForm]]:
        """The summary of a cut, and the forms of the contents that it takes.

        The second round knows how long the summary is; a model is asked for one there alone. Where it takes the same,
        the summary is that of the first.
        """
        summary, result, forms = conversation.recap.summary, Cut(), dict[int, ContentForm]()
        summarized: tuple[object, ...] = ()
        for reserved in (levels.most_summary, None):
            needed = summary_tokens(conversation.counter, summary) if reserved is None else reserved
            room = max(0, levels.target - needed)
            result = cut(
                conversation.units,
                conversation.tokens,
                target=room,
                max_tokens=levels.most_kept,
                keep_first=self.keep_first,
                keep_last=self.keep_last,
                room=levels.most_kept if self.frozen else levels.target,
                stay=staying,
                last_turns=self.last_turns,
            )
            result, forms = self._forms(conversation, result, reason)
            if levels.most_summary:
                summary_room = _summary_room(conversation, levels, room + result.over)
                if (forms, summary_room) != summarized or conversation.recap.written.has_model:
                    summary = conversation.summarized(forms, summary_room, in_own_words=reserved is not None)
                summarized = forms, summary_room
        # An epoch in which nothing was left out keeps no summary for the next call.
        return summary if result.leaving or conversation.recap.summary else "", forms

    def _media_forms(self, conversation: Conversation) -> dict[int, ContentForm]:
        """The forms of messages before the latest turns, which the model has answered, that lack their media."""
        parts = conversation.units if conversation.gives_media else ()
        first = max((unit.turn for unit in parts), default=0) - max(self.last_turns, 2) + 1
        return {
            at: ContentForm("extract", self.reason, 0, self.name)
            for at in (at for unit in parts if unit.kind == "human" and unit.turn < first for at in unit.indices)
            if at not in conversation.anchored and can_be_read(conversation.contents[at], conversation.recap.media)
        }

    def _forms(self, conversation: Conversation, result: Cut, reason: Reason) -> tuple[Cut, dict[int, ContentForm]]:
        """The forms of a cut's contents, and the cut without the unit that only becomes shorter."""
        result, extracts = _shortened(conversation, result, reason)
        forms = {at: ContentForm("left_out", reason) for at in result.indices} | extracts
        return result, {at: form._replace(strategy=self.name) for at, form in forms.items()}


def _summary_room(conversation: Conversation, levels: _Levels, remainder: int) -> int:
    """Tokens for the summary beside a remainder of what it goes with: its share, or all that is free."""
    counter, contents, parts = conversation.counter, conversation.contents, conversation.units
    frame_tokens = summary_tokens(counter, _BULLET) - counter.count(_BULLET)
    room = levels.most_kept - remainder - frame_tokens
    # Results that alone pass the window, or nearly, are shortened later, so the summary keeps its room.
    if room < levels.most_summary // 2 and any(
        response_tokens(contents[at], counter) for unit in parts[-1:] for at in unit.indices
    ):
        return levels.most_summary
    free = min(levels.target - remainder - frame_tokens, MOST_TOKENS)
    return min(max(levels.most_summary, free), room)


def _shortened(conversation: Conversation, result: Cut, reason: Reason) -> tuple[Cut, dict[int, ContentForm]]:
    """The cut without the unit that leaves last, where extracts of it free as much as has to leave: of the responses of
    an exchange, else of the message."""
    if not result.leaving or conversation.verbatim:
        return result, {}
    contents, counter, edge = conversation.contents, conversation.counter, result.leaving[-1]
    over = result.over + sum(conversation.tokens[at] for at in edge)
    long = {at: response_tokens(contents[at], counter) for at in edge}
    if not any(long.values()):
        long = {at: part_tokens(contents[at], counter) for at in edge if not is_human(contents[at])}
    sizes = {at: tokens for at, tokens in long.items() if tokens}
    all_sizes = [size for tokens in sizes.values() for size in tokens]
    if over > sum(max(0, sum(tokens) - LEAST_EXTRACT * len(tokens)) for tokens in sizes.values()):
        return result, {}
    ceiling = max(LEAST_EXTRACT, level(all_sizes, sum(all_sizes) - over))
    return Cut(leaving=result.leaving[:-1]), {at: ContentForm("extract", reason, ceiling) for at in sizes}


@dataclass(frozen=True, slots=True, kw_only=True)
class SlidingTurns:
    """Whole turns are left out from the oldest until the request is under a ceiling; nothing is kept of that anywhere.

    What is left out follows from the host's own history up to the message that the model answers, what a payload adds
    to that message, the system instruction, the declarations and the ceiling. Every call of an invocation therefore
    comes to the same result as its first one, any reader can compute it, and a higher ceiling brings the turns back.
    The ceiling is not a target: the latest turn that is complete stays, which the question is likely to go on from,
    even where it alone is above it. A ceiling of 0 is none.
    """

    tokens: int
    name: ClassVar[str] = "sliding_turns"
    early: ClassVar[bool] = True

    def trim(self, conversation: Conversation, target_tokens: int) -> Decision:
        contents, request_index = conversation.contents, conversation.request_index
        last = request_index if request_index is not None else len(contents) - 1
        if not self.tokens or last < 0:
            return Decision()
        ceiling = min(self.tokens, conversation.budget.input)
        dropped = earlier = _beyond(conversation, ceiling, last)
        if dropped and conversation.request.first_call:
            # What was beyond the ceiling when the human message before was answered.
            humans = (at for at in range(last - 1, -1, -1) if is_human(contents[at]))
            earlier = _beyond(conversation, ceiling, next(humans, 0))
        forms = {at: ContentForm("left_out", "turn_budget", strategy=self.name) for at in sorted(dropped)}
        return Decision(forms, earlier=frozenset(earlier))


def _beyond(conversation: Conversation, ceiling: int, last: int) -> Collection[int]:
    """The indices of the oldest whole turns that have to go so that the request up to ``last`` is under the ceiling.

    Turns with an anchor stay, that of ``last``, and the turn before it as far as the window takes it.
    """
    turns: dict[int, list[int]] = {}
    for unit in conversation.units:
        turns.setdefault(unit.turn, []).extend(unit.indices)
    parts = [Unit("message", tuple(indices), turn) for turn, indices in turns.items() if min(indices) <= last]
    tokens = [size if at <= last else 0 for at, size in enumerate(conversation.tokens)]
    anchored = conversation.anchored
    stay = [at for at, part in enumerate(parts) if max(part.indices) >= last or not anchored.isdisjoint(part.indices)]
    budget = conversation.budget
    return cut(
        parts, tokens, target=ceiling - budget.fixed, keep_last=2, room=budget.input - budget.fixed, stay=stay
    ).indices


@dataclass(frozen=True, slots=True, kw_only=True)
class Untouched:
    """Nothing is left out: contents are normalized and recorded, and the window is all that limits them."""

    name: ClassVar[str] = "none"
    early: ClassVar[bool] = True

    def trim(self, conversation: Conversation, target_tokens: int) -> Decision:
        return Decision()


# All strategies by name: the package's own, and those that are registered from outside.

Factory: TypeAlias = Callable[[ConversationSettings], Strategy]

_STRATEGIES: dict[str, Factory] = {
    # Units go from the oldest, from the high-water mark down to the low-water mark.
    "epochs": lambda settings: CutStrategy(
        name="epochs", summary_share=settings.summary_share, by_age=True, last_turns=settings.last_turns
    ),
    "stable_prefix": lambda settings: StablePrefix(settings=settings.stable_prefix),
    "sliding_turns": lambda settings: SlidingTurns(tokens=settings.sliding_turns.tokens),
    # The beginning and the end are frozen, the middle goes.
    "heads_tails": lambda settings: CutStrategy(
        name="heads_tails",
        summary_share=settings.summary_share,
        keep_first=settings.heads_tails.head,
        keep_last=settings.heads_tails.tail,
        frozen=True,
        reason="middle",
    ),
    # Older messages become a running summary.
    "summarize": lambda settings: CutStrategy(name="summarize", summary_share=0.12, cut_at=0.8, to=0.5, keep_last=10),
    "none": lambda settings: Untouched(),
}
_PACKAGED = tuple(_STRATEGIES)
NORMALIZING = ("stable_prefix", "none")
"""Strategies under which the contents that are sent are normalized."""

NET = "emergency"
"""What the net behind the strategies is called among them in a manifest."""


def net(settings: ConversationSettings) -> CutStrategy:
    """The cut behind all strategies, where what they leave would pass the window.

    It cuts a quarter of the way less deep than ``epochs``: of what a strategy chose to keep, more stays, and the next
    such cut is still far away.
    """
    return CutStrategy(name=NET, summary_share=settings.summary_share, cut_at=1.0, rise=0.25, by_age=True)


def register_strategy(name: str, factory: Factory) -> None:
    """Makes a strategy available to policies under a name; one of that name is replaced.

    A replay needs the same registration, since a policy holds the name only. A decision that would tear an exchange,
    take what the model has yet to answer, or leave a request that begins with the model's words is not taken, and
    ``epochs`` decides in place of a strategy that raises; the manifest says so.

    Args:
        factory: makes the strategy from the policy's settings; its own are in ``settings.custom[name]``.

    Raises:
        PolicyError: the name is empty or one of the package's own.
    """
    if not name.strip() or name in _PACKAGED:
        raise PolicyError(f"strategy name {name!r} is empty or taken: choose another one", field="name")
    _STRATEGIES[name] = lambda settings: _Guarded(strategy=factory(settings), settings=settings)


def unregister_strategy(name: str) -> None:
    """Takes a registered strategy away again; one that is not there is no error."""
    if name not in _PACKAGED:
        _STRATEGIES.pop(name, None)


def strategy_names() -> tuple[str, ...]:
    """The names that policies can give, the package's own first."""
    return (*_PACKAGED, *sorted(_STRATEGIES.keys() - _PACKAGED))


def strategies_of(settings: ConversationSettings) -> tuple[Strategy, ...]:
    """A policy's strategies in their order.

    Raises:
        PolicyError: a name is unknown, or one that looks at what the host sent stands after one that waits for the
            water marks.
    """
    unknown = next((name for name in settings.strategy if name not in _STRATEGIES), None)
    if unknown is not None:
        raise PolicyError(
            f"conversation.strategy = {unknown!r} is unknown: {near_names(unknown, strategy_names())} (one of your own "
            "needs register_strategy first)",
            field="conversation.strategy",
        )
    strategies = tuple(_STRATEGIES[name](settings) for name in settings.strategy)
    for previous, strategy in pairwise(strategies):
        if strategy.early and not previous.early:
            raise PolicyError(
                f"conversation.strategy = {list(settings.strategy)}: {strategy.name!r} looks at what the host sent, so "
                f"it has to stand before {previous.name!r}",
                field="conversation.strategy",
            )
    return strategies


_MOST_FAULT = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class _Guarded:
    """A strategy from outside whose unsound decisions are not taken; what is wrong with them is its note.

    Where it fails, ``epochs`` decides in its place, or nothing is changed where it was to look at what the host sent.
    """

    strategy: Strategy
    settings: ConversationSettings

    @property
    def name(self) -> str:
        return self.strategy.name

    @property
    def early(self) -> bool:
        return self.strategy.early

    def trim(self, conversation: Conversation, target_tokens: int) -> Decision:
        try:
            decision = self.strategy.trim(conversation, target_tokens)
            fault = _fault(conversation, decision)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # whatever others raise, and whatever reading their result does
            fault = f"{type(error).__name__}: {error}"[:_MOST_FAULT]
            if not self.early:
                note = f"strategy {self.name!r} gave way to 'epochs': {fault}"
                return _STRATEGIES["epochs"](self.settings).trim(conversation, target_tokens)._replace(note=note)
        if not fault:
            return decision
        return Decision(note=f"strategy {self.name!r} changed nothing: {fault}")


_FORMS = ("left_out", "placeholder", "extract")


def _fault(conversation: Conversation, decision: Decision) -> str:
    """Describes a fault in a decision; empty where there is none."""
    dropped = set(decision.removed)
    if not set(range(len(conversation.items))).issuperset(decision.forms):
        return "it names a content that is not there"
    for at, form in decision.forms.items():
        if form.form not in _FORMS or form.reason not in get_args(Reason):
            return f"content {at} cannot have the form {form.form!r} for the reason {form.reason!r}"
        has_tokens = type(form.tokens) is int and form.tokens > 0
        if has_tokens != (form.form == "extract") or not (has_tokens or form.tokens is None):
            return f"an extract has tokens, a whole number, and nothing else has: content {at}"
        if at == conversation.request_index and at not in dropped:
            return f"it would change what content {at} asks"
    # Raises where they cannot be kept.
    canonical_json([decision.summary, decision.note, decision.state, sorted(decision.earlier)])
    if not dropped:
        return ""
    parts = conversation.units
    torn = next((unit for unit in parts if 0 < len(dropped.intersection(unit.indices)) < len(unit.indices)), None)
    if torn is not None:
        return f"it would tear the exchange of the contents {', '.join(map(str, torn.indices))}"
    protected_units = protected(parts, conversation.request_index)
    lost_indices = sorted(dropped.intersection(index for at in protected_units for index in parts[at].indices))
    if lost_indices:
        return f"it would take content {lost_indices[0]}, which the model has yet to answer"
    first = next(at for at in range(len(conversation.contents)) if at not in dropped)
    summary = conversation.recap.summary if decision.summary is None else decision.summary
    if not summary and is_human(conversation.contents[0]) and not is_human(conversation.contents[first]):
        return f"content {first} would come first, which is not a person's"
    return ""


# Which strategy suits a conversation, by its shape.

Shape: TypeAlias = Literal["short", "loop", "dialogue", "session"]


def _shape(conversation: Conversation) -> Shape:
    """The shape of a conversation, from the tokens of its contents alone.

    ``short`` fits under the mark for cuts. Of the others, ``loop`` has a turn that alone is above it, ``dialogue``
    consists of words for more than half, and ``session`` is everything else.
    """
    tokens, contents, mark = conversation.tokens, conversation.contents, conversation.budget.cut_above
    total = sum(tokens)
    tools = sum(size for size, content in zip(tokens, contents, strict=True) if content.calls or content.responses)
    turns = Counter({0: 0})
    for unit in conversation.units:
        turns[unit.turn] += sum(tokens[at] for at in unit.indices)
    if total <= mark:
        return "short"
    if max(turns.values()) > mark:
        return "loop"
    return "dialogue" if tools < total / 2 else "session"


class Selection(NamedTuple):
    """The strategy that suits a conversation, the rule that says so, and the shape that it looks at."""

    strategy: str
    rule: str
    shape: Shape


_RULES: Mapping[Shape, tuple[str, str]] = {
    "short": ("epochs", "it fits, and nothing is cut"),
    "loop": ("epochs", "one turn alone passes the mark: the cut goes through it, and the entity table counts"),
    "session": ("epochs", "each turn fits and tools fill most of it: deep, rare cuts keep the most in the cache"),
    "dialogue": ("heads_tails", "words fill most of it: how it began stays word for word, at hardly more cost"),
}


def select_strategy(conversation: Conversation) -> Selection:
    """The strategy that suits a conversation, by what the strategies did to recorded runs of each shape, in tokens kept
    for what they cost: tests/bench/tool_runs.py gives the figures, docs/benchmarks.md has them."""
    shape = _shape(conversation)
    strategy, rule = _RULES[shape]
    return Selection(strategy=strategy, rule=f"{shape}: {rule}", shape=shape)
