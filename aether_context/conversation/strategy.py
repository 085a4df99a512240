"""Input and output of a strategy: plain values, so that each works alone and inside a pack.

    conversation = Conversation.of(contents, window=16_000)
    (strategy,) = strategies_of(ConversationSettings(strategy=("heads_tails",)))
    result = strategy.trim(conversation)
    result.kept, result.removed, result.freed_tokens, result.anchors

Indices are places in ``Conversation.contents``. Nothing is changed in place.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NamedTuple, Protocol

from aether_context.canonical import JSON
from aether_context.conversation.content_json import content_of_parts, part_of
from aether_context.conversation.summary import Summaries, recap, summary_message
from aether_context.conversation.todo import latest_list
from aether_context.conversation.turns import is_human, is_instruction
from aether_context.pack import Act, Anchor, Content, Reason, Tool
from aether_context.tokens import counter_for
from aether_context.tokens.cache import PackCounter
from aether_context.tokens.framing import framing_of


class Budget(NamedTuple):
    """The tokens that there are. ``window`` is W, ``slack`` what is kept free for the answer, ``fixed`` what is sent
    beside the contents.

    The marks are tokens of the conversation alone: above ``cut_above`` a cut is made, it goes down to ``cut_to``, and
    more than ``most`` do not fit. ``net`` are those that the byte net takes, None where it takes all; marks are below
    it.
    """

    window: int
    slack: int
    fixed: int
    cut_above: int
    cut_to: int
    most: int
    net: int | None = None

    @classmethod
    def of(
        cls, window: int, *, slack: int | None = None, fixed: int = 0, compact_at: float = 0.8, compact_to: float = 0.5
    ) -> Budget:
        """The budget of a window.

        Args:
            slack: tokens; a tenth of the window by default.
            compact_at: share of the input budget, 0 to 1, like ``compact_to``.
        """
        free = window // 10 if slack is None else slack
        room = window - free
        return cls(
            window=window,
            slack=free,
            fixed=fixed,
            cut_above=max(0, int(compact_at * room) - fixed),
            cut_to=max(0, int(compact_to * room) - fixed),
            most=max(0, room - fixed),
        )

    @property
    def input(self) -> int:
        """The input budget ``B = W - S``."""
        return self.window - self.slack

    def mark(self, share: float) -> int:
        """A share of the input budget as tokens of the conversation, at least that share of what there is for it, at
        most that of what the byte net takes."""
        tokens = max(int(share * self.input) - self.fixed, int(share * self.most))
        return tokens if self.net is None else min(tokens, int(share * self.net))


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """A conversation as a strategy sees it.

    ``raws`` are the contents as the host gave them. ``tokens`` are those of each content, 0 for one that
    ``budget.fixed`` counts. ``request_index`` is the index of the final human message, None where there is none, and
    ``request_tokens`` are its tokens where ``fixed`` counts them. ``positions`` are the places of the contents in the
    host's list; anchors name those. ``state`` is what each strategy kept from call to call, by its name. ``summary`` is
    that of what earlier calls cut, with its own tokens, and ``payload_tokens`` are those of earlier payloads, which any
    cut frees. ``opens`` is set at the first model call after the human message. ``forced`` is set where a cut was asked
    for by hand: marks and thresholds are not waited for. ``gated`` is set where reported usage says that the window
    is far from full, which `passes` heeds. ``verbatim`` is set where the policy allows no shorter form of a
    content. ``recalled`` is the text of cut turns that are sent beside it. ``can_read`` is set where a tool reads
    the past. ``cached_price`` is that of cached input as a share of other input's, 1 where nothing is cached.
    ``media`` are the marks of what people sent, by the hashes of its bytes. ``summaries`` holds a model's; without
    one they are quotes.
    """

    contents: tuple[Content, ...]
    raws: tuple[Content, ...]
    tokens: tuple[int, ...]
    request_index: int | None
    positions: tuple[int, ...]
    budget: Budget
    counter: PackCounter
    request_tokens: int = 0
    system: str = ""
    tools: tuple[Tool, ...] = ()
    anchors: tuple[Anchor, ...] = ()
    state: Mapping[str, Mapping[str, JSON]] = field(default_factory=dict)
    summary: str = ""
    summary_tokens: int = 0
    payload_tokens: int = 0
    opens: bool = True
    forced: bool = False
    gated: bool = False
    verbatim: bool = False
    recalled: str = ""
    can_read: bool = False
    media: Mapping[str, str] = field(default_factory=dict)
    cached_price: float = 1.0
    summaries: Summaries = field(default_factory=lambda: Summaries("", {}))

    @classmethod
    def of(
        cls,
        contents: Sequence[Content],
        *,
        window: int,
        budget: Budget | None = None,
        system: str = "",
        tools: Sequence[Tool] = (),
        anchors: Sequence[Anchor] = (),
        state: Mapping[str, Mapping[str, JSON]] | None = None,
    ) -> Conversation:
        """A conversation outside any pack, counted by the built-in estimate.

        Args:
            window: the most input tokens.
            budget: its division; by default a tenth is slack and the water marks are 0.8 and 0.5.
        """
        counter = PackCounter(counter_for(""), framing=framing_of(""))
        fixed = counter.system(system, declares=bool(tools)) + sum(counter.tools(tools))
        humans = (at for at in range(len(contents) - 1, -1, -1) if is_human(contents[at]))
        return cls(
            contents=tuple(contents),
            raws=tuple(contents),
            tokens=tuple(counter.contents(contents)),
            request_index=next(humans, None),
            positions=tuple(range(len(contents))),
            budget=budget or Budget.of(window, fixed=fixed),
            counter=counter,
            system=system,
            tools=tuple(tools),
            anchors=tuple(anchors),
            state=state or {},
        )

    @property
    def used(self) -> int:
        """Tokens of the contents, of the summary, and of earlier payloads."""
        return sum(self.tokens) + self.summary_tokens + self.payload_tokens

    def summarized(
        self, gone: Collection[int], max_tokens: int, *, shorter: Mapping[int, Content] | None = None, own: bool = False
    ) -> str:
        """The summary of contents that are cut now and were cut before; empty where there is no room.

        Args:
            shorter: the contents that are shortened now, by index.
            own: whether the summary has the conversation's own words, although a model could write it.
        """
        if max_tokens <= 0:
            return ""
        state = latest_list(self.raws)
        sent = {at: (shorter or {}).get(at, content) for at, content in enumerate(self.contents) if at not in gone}
        return recap(
            [
                raw
                for at, raw in enumerate(self.raws)
                if at not in sent or (sent[at].digest != raw.digest and at != self.request_index)
            ],
            list(sent.values()),
            max_tokens=max_tokens,
            counter=self.counter,
            summaries=None if own else self.summaries,
            earlier=self.summary,
            beside=self.recalled,
            names_past=self.can_read,
            media=self.media,
            todo=state and (("", []) if sent.get(state[0]) == self.raws[state[0]] else state[1:]),
        )

    def passes(self, mark: int) -> bool:
        """Tells whether the conversation has passed a mark, in tokens, and a strategy may act on it."""
        return self.forced or (self.used > mark and not self.gated)

    def pays(self, target: int) -> bool:
        """Tells whether a cut down to ``target`` tokens saves more than sending what stays once more without the cache.

        A cut is judged like an order in stock-keeping (Wilson's rule for its size). What it frees lasts for as many
        calls as the conversation takes to grow by it, half of it on average, each call at the cached price; what it
        keeps costs the difference between both prices once.
        """
        freed = self.used - target
        growth = self.used / max(1, sum(content.role == "model" for content in self.contents))
        calls = freed / max(1.0, growth)
        return gain(saved=freed / 2, calls=calls, resent=target, cached_price=self.cached_price) >= 0

    @property
    def anchored(self) -> frozenset[int]:
        """The indices of anchors, and of the agent's instruction."""
        places = {anchor.place for anchor in self.anchors}
        known = enumerate(zip(self.positions, self.contents, strict=True))
        return frozenset(at for at, (place, content) in known if place in places or is_instruction(content))

    def after(self, result: Decision) -> Conversation:
        """The conversation that a result leaves."""
        summary = self.summary if result.summary is None else result.summary
        if not result.changes and result.summary is None and len(result.kept) == len(self.contents):
            return self if result.state is None else replace(self, state=result.state)
        replaced = {change.index: change.content for change in result.replaced}
        return replace(
            self,
            contents=tuple(replaced.get(at, self.contents[at]) for at in result.kept),
            raws=tuple(self.raws[at] for at in result.kept),
            tokens=tuple(
                self.counter.content(replaced[at]) if at in replaced and self.tokens[at] else self.tokens[at]
                for at in result.kept
            ),
            positions=tuple(self.positions[at] for at in result.kept),
            request_index=next((new for new, at in enumerate(result.kept) if at == self.request_index), None),
            state=result.state if result.state is not None else self.state,
            summary=summary,
            summary_tokens=self.summary_tokens if result.summary is None else summary_tokens(self.counter, summary),
            payload_tokens=0 if result.cuts else self.payload_tokens,
        )


def gain(*, saved: float, calls: float, resent: float, cached_price: float) -> float:
    """The worth of breaking the cached prefix, in tokens at the price of uncached input.

    Args:
        saved: tokens that each later call sends less, at the cached price.
        calls: how many calls that lasts.
        resent: tokens behind the break, which cost the difference between both prices once.
        cached_price: price of cached input as a share of that of uncached input, over 0 and up to 1.
    """
    return cached_price * saved * calls - (1 - cached_price) * resent


def summary_tokens(counter: PackCounter, summary: str) -> int:
    """The tokens of a summary as a message of its own."""
    return counter.content(summary_content(summary)) if summary else 0


@lru_cache(maxsize=64)
def summary_content(summary: str) -> Content:
    """The message that holds a summary, before the turns that are kept."""
    return content_of_parts("user", [part_of({"text": summary_message(summary)})])


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """A content that is left out, by index, and why. ``new`` is set where it was there until now."""

    index: int
    reason: Reason
    new: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Replaced:
    """A content that another one replaces, by index, and why. ``new`` is set where this call decided it.

    ``ceiling`` are the tokens that its parts are cut down to where it is an extract, None where it is not.
    """

    index: int
    content: Content
    reason: Reason
    new: bool = True
    ceiling: int | None = None


class Decision(NamedTuple):
    """The decision of a strategy.

    ``summary`` is the new summary of what was cut, None where it stays as it was; contents before the index
    ``summary_at`` stand before it, and fewer where an earlier summary stands further up, which stays in its place.
    ``state`` is what the strategies keep from now on, by name, None where it stays. ``lasting`` says whether what is
    removed stays away at later calls, or is decided anew at each. ``normalize`` says that what is sent is to be
    normalized. ``note`` says what could not be done as asked. ``act`` is the effect in numbers, None where there was
    none.
    """

    kept: tuple[int, ...]
    removed: tuple[Removed, ...] = ()
    replaced: tuple[Replaced, ...] = ()
    anchors: tuple[Anchor, ...] = ()
    summary: str | None = None
    summary_at: int | None = None
    state: Mapping[str, Mapping[str, JSON]] | None = None
    lasting: bool = True
    normalize: bool = False
    note: str = ""
    tokens_before: int = 0
    tokens_after: int = 0
    act: Act | None = None

    @property
    def freed_tokens(self) -> int:
        return self.tokens_before - self.tokens_after

    @property
    def cuts(self) -> bool:
        """Tells whether something leaves for good."""
        return self.lasting and (bool(self.removed) or self.summary is not None)

    @property
    def changes(self) -> bool:
        return bool(self.replaced or self.removed or self.cuts)


class Strategy(Protocol):
    """Decides what of a conversation is still sent."""

    @property
    def name(self) -> str:
        """The name that policies give."""

    @property
    def early(self) -> bool:
        """Tells whether it looks at what the host sent alone, and not at the water marks, which are known only once the
        window is allocated. Early ones come before others."""

    def trim(self, conversation: Conversation) -> Decision:
        """Decides which contents stay, go, or are replaced. The input stays as it is."""


def decided(
    conversation: Conversation,
    strategy: str,
    *,
    removed: Sequence[Removed] = (),
    replaced: Sequence[Replaced] = (),
    summary: str | None = None,
    summary_at: int | None = None,
    state: Mapping[str, JSON] | None = None,
    lasting: bool = True,
    normalize: bool = False,
    note: str = "",
) -> Decision:
    """A strategy's decision with its account.

    Args:
        state: what the strategy keeps from now on; None where that stays as it was.
    """
    gone = {change.index for change in removed}
    result = Decision(
        kept=tuple(at for at in range(len(conversation.contents)) if at not in gone),
        removed=tuple(removed),
        replaced=tuple(replaced),
        summary=summary,
        summary_at=summary_at,
        state=None if state is None else {**conversation.state, strategy: state},
        lasting=lasting,
        normalize=normalize,
        note=note,
    )
    after = conversation.after(result)
    tokens_before, left = conversation.used, list(conversation.tokens)
    if conversation.request_index is not None:
        left[conversation.request_index] = left[conversation.request_index] or conversation.request_tokens
    changes: tuple[Removed | Replaced, ...] = (*removed, *replaced)
    for change in changes:
        left[change.index] = 0
        tokens = conversation.tokens[change.index]
        if not change.new:  # What earlier calls decided saves nothing now.
            tokens_before -= tokens
            if isinstance(change, Replaced) and tokens:
                tokens_before += conversation.counter.content(change.content)
    new = [change.index for change in changes if change.new]
    act = None
    if new or result.cuts:
        # A prefix cache held what comes after the first change and before the model's last answer.
        fresh = max((at for at, content in enumerate(conversation.contents) if content.role == "model"), default=0)
        act = Act(
            strategy=strategy,
            removed=sum(change.new for change in removed),
            replaced=sum(change.new for change in replaced),
            freed_tokens=tokens_before - after.used,
            lost_tokens=sum(left[min(new, default=len(left)) + 1 : fresh]),
        )
    places = {conversation.positions[at] for at in result.kept}
    return result._replace(
        anchors=tuple(anchor for anchor in conversation.anchors if anchor.place in places),
        tokens_before=tokens_before,
        tokens_after=after.used,
        act=act,
    )
