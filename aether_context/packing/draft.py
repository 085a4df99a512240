"""The pack in the making: one mutable value that each stage reads and fills, and that never leaves `build_pack`."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

from aether_context.canonical import JSON
from aether_context.conversation import Budget
from aether_context.conversation.strategy import summary_tokens
from aether_context.conversation.summary import Summaries
from aether_context.pack import (
    NOTHING,
    Act,
    Allocation,
    Calibration,
    Candidate,
    Content,
    ContentForm,
    EpochReason,
    Form,
    Layer,
    Outgoing,
    PackedMessage,
    PackInput,
    Reason,
    Step,
    ToolSelection,
    TruncationEvent,
)
from aether_context.packing.allocation import slack_tokens
from aether_context.policy import PackPolicy
from aether_context.retrieval import Ranking
from aether_context.tokens.cache import DerivedColumns, PackCounter
from aether_context.usage.calibration import countable


class EpochState(NamedTuple):
    """State that the epoch carries into this call; `apply_epoch` fills it.

    ``system`` is the instruction as it is sent, and ``contract`` says whether it explains the pack. ``plan`` is a short
    hash of what the payload says of the step, ``marks`` are those of `Epoch`. ``epoch_reason`` is why a new epoch has
    to begin, None where nothing calls for one. ``has_chosen`` is set where this invocation made its choices at an
    earlier call, and ``packed_form`` is what it then made of the human message, if anything. ``earlier`` are the
    messages of earlier invocations that stay packed.
    """

    system: str
    contract: bool
    plan: str
    marks: Mapping[str, str]
    epoch_reason: EpochReason | None
    has_chosen: bool
    packed_form: PackedMessage | None
    earlier: tuple[PackedMessage, ...] = ()


class History(NamedTuple):
    """The conversation as it will be sent. `apply_epoch` fills it; strategies and the last resort shorten it.

    ``items`` are the contents that are sent, ``cut`` the origins of those that are left out for good. ``forms`` says
    what became of a content, by origin, where it is not sent whole. ``summary_place`` is that of `Epoch`. ``states`` is
    what strategies keep from call to call, and ``normalize`` whether one of them has the contents normalized.
    ``hides_summary`` is set where this request alone has no room for the summary.
    """

    items: tuple[Outgoing, ...]
    forms: Mapping[int, ContentForm]
    summary: str
    summary_place: int
    states: Mapping[str, Mapping[str, JSON]]
    cut: frozenset[int] = frozenset()
    normalize: bool = False
    hides_summary: bool = False

    @property
    def sent_summary(self) -> str:
        return "" if self.hides_summary else self.summary

    def with_form(self, form: Form, reason: Reason, origins: Iterable[int], tokens: int | None = None) -> History:
        """The history with these contents in a form from now on."""
        return self._replace(forms={**self.forms, **dict.fromkeys(origins, ContentForm(form, reason, tokens))})


_NOTHING = Ranking(chosen=(), left=())


class Rankings(NamedTuple):
    """The results of a search for ``query``; `choose` writes them."""

    query: str = ""
    memory: Ranking = _NOTHING
    evidence: Ranking = _NOTHING

    @property
    def has_no_duplicates(self) -> bool:
        """Tells whether nothing was left out for what the conversation says, so that a cut would change no choice."""
        return all(drop.reason != "already_in_conversation" for drop in (*self.memory.left, *self.evidence.left))


class SelectedCandidates(NamedTuple):
    """The candidates that enter the payload; `compress` shortens them. ``shortened`` are ids."""

    memory: tuple[Candidate, ...] = ()
    evidence: tuple[Candidate, ...] = ()
    shortened: frozenset[str] = frozenset()
    dropped: tuple[Candidate, ...] = ()

    @property
    def by_layer(self) -> dict[Layer, tuple[Candidate, ...]]:
        return {"memory": self.memory, "evidence": self.evidence}


class Message(NamedTuple):
    """The human message as this call writes it.

    ``packed_form`` is what `write_payload` last wrote, None for a message that is sent as it is, and ``cache_key`` what
    it wrote that of. The others are what the last resort takes from it: ``request`` is the shortened user request, None
    where it is whole; ``saved`` holds what was taken out of it, by URI; ``largest`` is that of `PackedMessage`;
    ``max_preamble_tokens`` are the tokens that the payload before the request is cut down to; ``is_anew`` is set where
    what an earlier call of the invocation chose is left out.
    """

    packed_form: PackedMessage | None = None
    cache_key: tuple[object, ...] = ()
    request: str | None = None
    saved: Mapping[str, str] = NOTHING
    largest: int | None = None
    max_preamble_tokens: int | None = None
    is_anew: bool = False


class Account(NamedTuple):
    """The record of what was done, for the manifest.

    ``tightened`` are the events of tools and step that became shorter, which `compress` puts into ``events`` in the
    order of its ladder. ``too_large`` says by what system, task and tools exceed the input budget, empty where they do
    not. ``summaries`` collects what a model could write.
    """

    acts: tuple[Act, ...] = ()
    events: tuple[TruncationEvent, ...] = ()
    tightened: tuple[TruncationEvent, ...] = ()
    degradations: tuple[str, ...] = ()
    too_large: str = ""
    summaries: Summaries = Summaries("", NOTHING)


_SHORT_PREFIX = 0.02
"""Share of the window up to which it costs next to nothing that a provider reads a beginning once more."""


@dataclass(slots=True, kw_only=True)
class Draft:
    """A pack in the making.

    Its fields hold immutable values that stages replace and never change in place, so that a copy is a second draft
    from there on. They stand in the order in which stages fill them; those without a value are filled at every call.

    Args:
        columns: what earlier calls derived of the conversation's contents.
        raw_tokens: tokens of each content as the host gave it.
        at_cut: whether the conversation is being cut, so that everything is chosen again.
        past_end: the index before which contents belong to turns of the model that are over, or their signed thoughts
            have left.
        thoughts_end: the index before which signed thoughts have left.
        is_cut_due: whether this is built again, without thoughts, for a pack that cut: its marks are lower then.
        step: the plan's, in the words that are sent of it.
        whole: ids of the active instructions that are sent whole.
        instructs: ids of those that the payload holds, or names where they are not whole.
        kept_results: those that `results_to_keep` finds.
        measured: tokens of the layers that are always sent, as they are sent.
        budget: the water marks of the conversation beside all other layers.
    """

    input: PackInput
    policy: PackPolicy
    counter: PackCounter
    columns: DerivedColumns
    raw_tokens: tuple[int, ...] = field(init=False)
    at_cut: bool = False
    is_cut_due: bool = False
    past_end: int = 0
    thoughts_end: int = 0
    tools: ToolSelection = field(init=False)
    epoch: EpochState = field(init=False)
    history: History = field(init=False)
    rankings: Rankings = field(default_factory=Rankings)
    selected: SelectedCandidates = field(default_factory=SelectedCandidates)
    step: Step
    message: Message = field(init=False)
    kept_results: tuple[tuple[int, str, str, bool], ...] = ()
    whole: frozenset[str] = frozenset()
    instructs: tuple[str, ...] = ()
    measured: Mapping[Layer, int] = field(init=False)
    allocation: Allocation = field(init=False)
    budget: Budget = field(init=False)
    account: Account = field(default_factory=Account)

    @property
    def request_content(self) -> Content | None:
        """The final human message, None where there is none."""
        request = self.input.request
        return request.contents[request.request_index] if request.request_index is not None else None

    @property
    def starts_epoch(self) -> bool:
        """Tells whether an epoch begins with this pack, whatever is chosen for it."""
        return self.at_cut or self.epoch.epoch_reason is not None

    @property
    def was_compacted(self) -> bool:
        """Tells whether the conversation was cut, be it that contents only became shorter."""
        return any(event.stage == "cut" for event in self.account.events)

    @property
    def manual_cut(self) -> bool:
        """Tells whether a cut was asked for that has not been made."""
        return bool(self.input.host.asked) and self.input.host.asked != self.input.epoch.asked

    @property
    def is_worth_choosing_again(self) -> bool:
        """Tells whether a cut in the middle of a loop calls for another choice of candidates.

        For stored results alone it does so where little is in front of what the cut rewrites. They would be listed in
        the loop's first message, and a provider would read that, and the summary behind it, once more; the summary
        names most of them until the user's next message. Recorded runs at 8,000 tokens cost .174 with a list at each
        cut, and .165 so, with lists of twice today's size.
        """
        source, raw = self.input, self.request_content
        waiting = all(entry.layer == "evidence" and not entry.kind for entry in source.candidates)
        if not waiting or source.request.first_call or source.validity != "unplanned" or raw is None:
            return bool(source.candidates)
        prefix_tokens = self.counter.content(raw) + summary_tokens(self.counter, source.epoch.summary)
        return bool(source.candidates) and prefix_tokens <= _SHORT_PREFIX * source.window

    def position(self, item: Outgoing) -> int:
        """The place of a content in the host's list."""
        return self.input.request.positions[item.origin]

    def note(self, *events: TruncationEvent) -> None:
        self.account = self.account._replace(events=(*self.account.events, *events))

    # Tokens.

    @property
    def input_budget(self) -> int:
        """``W - S`` in tokens: the window without what is kept free for the answer."""
        return self.input.window - slack_tokens(self.input.window, self.policy.budget, self.input.output_tokens)

    @property
    def spare_tokens(self) -> int:
        """Those of the calibration's `spare_tokens` for the input budget."""
        return spare_tokens(self.input.usage.calibration, self.input_budget)

    @property
    def countable_budget(self) -> int:
        """Tokens that may be counted within the input budget: less where a provider is expected to count more."""
        return self.input_budget + min(0, self.spare_tokens)

    @property
    def needed_tokens(self) -> int:
        """Tokens of system instruction and request as the host gives them, and of the declarations that are sent."""
        request = self.input.request
        head = self.counter.head(request.system, self.tools.sent, request.other_tools)
        tokens = self.raw_tokens[request.request_index] if request.request_index is not None else 0
        return self.input.usage.uncounted_tokens + sum(head) + tokens

    @property
    def payload_tokens(self) -> dict[Layer, int]:
        """Tokens of the memories and of the evidence in the payload: those chosen now, or at an earlier call of this
        invocation."""
        used = self.epoch.packed_form.used if self.epoch.packed_form is not None else NOTHING
        return {
            layer: sum(candidate.tokens for candidate in candidates) + used.get(layer, 0)
            for layer, candidates in self.selected.by_layer.items()
        }

    @property
    def other_layer_tokens(self) -> int:
        """Tokens of all layers but the conversation, as they are sent."""
        return sum(self.measured.values()) + sum(self.payload_tokens.values())

    @property
    def summary_tokens(self) -> int:
        """The tokens of the summary as a message of its own."""
        summary = self.history.sent_summary if self.policy.conversation.summary_share else ""
        return summary_tokens(self.counter, summary) if summary else 0

    def conversation_tokens(self, items: Sequence[Outgoing] | None = None) -> int:
        """Tokens of the conversation layer: of what is sent, or of ``items`` in its place, but for the human message,
        and of the summary."""
        items = self.history.items if items is None else items
        tokens, request_at = sum(map(_TOKENS, items)), item_place(items, self.input.request.request_index)
        return tokens - (items[request_at].tokens if request_at is not None else 0) + self.summary_tokens


_TOKENS: Callable[[Outgoing], int] = attrgetter("tokens")
_ORIGIN: Callable[[Outgoing], int] = attrgetter("origin")


def spare_tokens(calibration: Calibration | None, budget: int) -> int:
    """Tokens that may be counted beyond an input budget; below 0 where a provider is expected to count more than is
    counted here, at most by half of it."""
    if calibration is None:
        return 0
    room = max(countable(calibration, budget), budget // 2) + calibration.uncounted_tokens
    return min(calibration.spare_tokens, room - budget)


def item_place(items: Sequence[Outgoing], origin: int | None) -> int | None:
    """The place of the host's content with this index among items, which are in its order; None where it has none."""
    at = bisect_left(items, origin, key=_ORIGIN) if origin is not None else len(items)
    return at if at < len(items) and items[at].origin == origin else None


def occurrence_keys(contents: Sequence[Content]) -> tuple[str, ...]:
    """A key for each content: its digest, from the second one of a digest on with its number.

    A result that is read again is judged anew, whatever became of the reading before it.
    """
    counts: Counter[str] = Counter()
    keys = []
    for content in contents:
        counts[content.digest] += 1
        number = counts[content.digest]
        keys.append(content.digest if number == 1 else f"{content.digest}#{number}")
    return tuple(keys)
