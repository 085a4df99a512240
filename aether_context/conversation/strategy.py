"""Input and output of a strategy: plain values, so that each works alone and inside a pack.

    conversation = Conversation.of(contents, window=16_000)
    (strategy,) = strategies_of(ConversationSettings(strategy=("heads_tails",)))
    decision = strategy.trim(conversation, conversation.budget.cut_to)
    decision.forms, decision.summary, conversation.effect(decision).freed_tokens

Indices are places in ``Conversation.items``. Nothing is changed in place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Literal, NamedTuple, Protocol, TypeAlias

from aether_context.canonical import JSON
from aether_context.conversation.content_json import content_of_parts, part_of
from aether_context.conversation.extracts import placeholder, query_of, shorten_content, without_media
from aether_context.conversation.summary import Recap, Summaries, least_summary, recap, summary_message
from aether_context.conversation.todo import latest_list
from aether_context.conversation.turns import Unit, is_human, is_instruction, units
from aether_context.pack import NOTHING, Act, Anchor, Content, ContentForm, Outgoing, Request, Tool
from aether_context.tokens import counter_for
from aether_context.tokens.cache import PackCounter
from aether_context.tokens.framing import framing_of


class Budget(NamedTuple):
    """The tokens that there are. ``window`` is W, ``slack`` what is kept free for the answer, ``fixed`` what is sent
    beside the contents.

    The marks are tokens of the conversation alone: above ``cut_above`` a cut is made, it goes down to ``cut_to``, and
    more than ``most`` do not fit. ``net`` are those that the byte net takes, None where it takes all; marks are below
    it. ``weighs`` is set where a cut that the window does not demand has to pay. ``payload_tokens`` are those of
    earlier payloads, which any cut frees, and ``request_tokens`` those of the human message where ``fixed`` counts
    them. ``cached_price`` is that of cached input as a share of other input's, 1 where nothing is cached.
    """

    window: int
    slack: int
    fixed: int
    cut_above: int
    cut_to: int
    most: int
    net: int | None = None
    weighs: bool = False
    payload_tokens: int = 0
    request_tokens: int = 0
    cached_price: float = 1.0

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


Pressure: TypeAlias = Literal["marks", "by_hand", "usage_is_low"]
"""When a strategy may act: where its mark is passed; at once, since a cut was asked for by hand; not at all, since
reported usage says that the window is far from full."""


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """A conversation as a strategy sees it.

    ``items`` are the contents as they are sent, each with the host's own; one that ``budget.fixed`` counts has 0
    tokens. Their origins are places in ``request.contents``, whose positions anchors name. ``state`` is what each
    strategy kept from call to call, by its name. ``verbatim`` is set where the policy allows no shorter form, and
    ``gives_media`` where what people sent can be read back by its mark. ``is_due`` is set where signed thoughts have
    just left in the place of a cut, which is made all the same unless they freed a quarter of its mark: the next one
    would follow soon.
    """

    items: tuple[Outgoing, ...]
    request: Request
    budget: Budget
    counter: PackCounter
    anchors: tuple[Anchor, ...] = ()
    state: Mapping[str, Mapping[str, JSON]] = field(default_factory=dict)
    recap: Recap = field(default_factory=Recap)
    pressure: Pressure = "marks"
    verbatim: bool = False
    gives_media: bool = False
    is_due: bool = False

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
        sizes = enumerate(zip(contents, counter.contents(contents), strict=True))
        return cls(
            items=tuple(Outgoing(content, content, at, "whole", tokens) for at, (content, tokens) in sizes),
            request=Request(
                model="",
                system=system,
                tools=tuple(tools),
                contents=tuple(contents),
                positions=tuple(range(len(contents))),
                request_index=next(humans, None),
            ),
            budget=budget or Budget.of(window, fixed=fixed),
            counter=counter,
            anchors=tuple(anchors),
            state=state or {},
        )

    @cached_property
    def contents(self) -> tuple[Content, ...]:
        return tuple(item.content for item in self.items)

    @cached_property
    def raws(self) -> tuple[Content, ...]:
        """The contents as the host gave them."""
        return tuple(item.raw for item in self.items)

    @cached_property
    def tokens(self) -> tuple[int, ...]:
        return tuple(item.tokens for item in self.items)

    @cached_property
    def units(self) -> tuple[Unit, ...]:
        """What stays or goes together."""
        return units(self.contents)

    @cached_property
    def positions(self) -> tuple[int, ...]:
        """The places of the contents in the host's list."""
        return tuple(self.request.positions[item.origin] for item in self.items)

    @cached_property
    def request_index(self) -> int | None:
        """The index of the final human message, None where there is none."""
        origin = self.request.request_index
        return next((at for at, item in enumerate(self.items) if item.origin == origin), None)

    @cached_property
    def used(self) -> int:
        """Tokens of the contents, of the summary, and of earlier payloads."""
        return sum(self.tokens) + summary_tokens(self.counter, self.recap.summary) + self.budget.payload_tokens

    def formed(self, at: int, form: ContentForm) -> Content:
        """A content in a form: an extract of the host's own, of 0 tokens one without its media, or a placeholder for
        what is sent of it now."""
        if form.form != "extract" or form.tokens is None:
            return placeholder(self.contents[at])
        if not form.tokens:
            return without_media(self.raws[at], self.recap.media)
        query, raw = query_of(self.raws, at, self.request_index), self.raws[at]
        # Thoughts that have left do not come back with an extract.
        raw = self.contents[at] if self.contents[at].signed_thoughts < raw.signed_thoughts else raw
        return shorten_content(raw, form.tokens, counter=self.counter, query=query)

    def summarized(self, forms: Mapping[int, ContentForm], max_tokens: int, *, in_own_words: bool = False) -> str:
        """The summary of contents that are cut now and were cut before; in no room, what has no other place.

        Args:
            forms: the contents that leave or become shorter now, by index.
            in_own_words: whether the summary has the conversation's own words, although a model could write it.
        """
        listed = latest_list(self.raws)
        contents = {
            at: self.formed(at, forms[at]) if at in forms else content
            for at, content in enumerate(self.contents)
            if at not in forms or forms[at].form != "left_out"
        }
        return recap(
            [
                raw
                for at, raw in enumerate(self.raws)
                if at not in contents
                or (at != self.request_index and contents[at] not in (raw, without_media(raw, self.recap.media)))
            ],
            list(contents.values()),
            self.recap._replace(written=Summaries("", NOTHING)) if in_own_words else self.recap,
            max_tokens=max_tokens,
            least_tokens=least_summary(self.budget.input),
            counter=self.counter,
            prepare=self.counter.prepare,
            todo=listed and (("", []) if all(contents.get(at) == self.raws[at] for at in listed[0]) else listed[1:]),
        )

    def is_over(self, mark: int) -> bool:
        """Tells whether the conversation is over a mark, in tokens, or over three quarters of it where a cut is due."""
        return self.used > (mark * 3 // 4 if self.is_due else mark)

    def passes(self, mark: int) -> bool:
        """Tells whether the conversation has passed a mark, in tokens, and a strategy may act on it."""
        return self.pressure == "by_hand" or (self.is_over(mark) and self.pressure == "marks")

    def pays(self, target: int) -> bool:
        """Tells whether a cut down to ``target`` tokens saves more than sending what stays once more without the cache.

        A cut is judged like an order in stock-keeping (Wilson's rule for its size). What it frees lasts for as many
        calls as the conversation takes to grow by it, half of it on average, each call at the cached price; what it
        keeps costs the difference between both prices once.
        """
        freed = self.used - target
        growth = self.used / max(1, sum(content.role == "model" for content in self.contents))
        calls = freed / max(1.0, growth)
        return gain(saved=freed / 2, calls=calls, resent=target, cached_price=self.budget.cached_price) >= 0

    @property
    def anchored(self) -> frozenset[int]:
        """The indices of anchors, and of the agent's instruction."""
        places = {anchor.place for anchor in self.anchors}
        items = enumerate(zip(self.positions, self.contents, strict=True))
        return frozenset(at for at, (position, content) in items if position in places or is_instruction(content))

    def apply(self, decision: Decision, *, lasting: bool = True) -> Conversation:
        """The conversation that a decision leaves.

        Args:
            lasting: whether what leaves stays away at later calls, or is decided anew at each.
        """
        forms, cuts = decision.forms, lasting and decision.takes_anything
        items = []
        for at, item in enumerate(self.items):
            if at in forms and forms[at].form == "left_out":
                continue
            if at in forms:
                content = self.formed(at, forms[at])
                item = item._replace(content=content, tokens=self.counter.content(content) if item.tokens else 0)
            items.append(item)
        summary = self.recap.summary if decision.summary is None else decision.summary
        return replace(
            self,
            items=tuple(items),
            recap=self.recap._replace(summary=summary),
            budget=self.budget._replace(payload_tokens=0) if cuts else self.budget,
        )

    def effect(self, decision: Decision, strategy: str = "", *, lasting: bool = True) -> Effect:
        """The effect of a decision in numbers.

        Args:
            strategy: who decided it, where its forms do not say so.
            lasting: as for `apply`.
        """
        result, forms, earlier = self.apply(decision, lasting=lasting), decision.forms, decision.earlier
        tokens_before, sizes = self.used, list(self.tokens)
        if self.request_index is not None:
            sizes[self.request_index] = sizes[self.request_index] or self.budget.request_tokens
        for at, form in forms.items():
            sizes[at] = 0
            if at in earlier:  # What earlier calls decided saves nothing now.
                tokens_before -= self.tokens[at]
                if form.form != "left_out" and self.tokens[at]:
                    tokens_before += self.counter.content(self.formed(at, form))
        new = [form.form for at, form in forms.items() if at not in earlier]
        act = None
        if new or (lasting and decision.takes_anything):
            # A prefix cache held what comes after the first change and before the model's last answer.
            fresh = max((at for at, content in enumerate(self.contents) if content.role == "model"), default=0)
            first = min(forms.keys() - earlier, default=len(sizes))
            act = Act(
                strategy=next((form.strategy for form in forms.values() if form.strategy), strategy),
                removed=new.count("left_out"),
                replaced=len(new) - new.count("left_out"),
                freed_tokens=tokens_before - result.used,
                lost_tokens=sum(sizes[first + 1 : fresh]),
            )
        places = set(result.positions)
        return Effect(
            after=result,
            anchors=tuple(anchor for anchor in self.anchors if anchor.place in places),
            tokens_before=tokens_before,
            tokens_after=result.used,
            act=act,
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
    """The tokens of a summary, counted as a message of its own: as a part of another one it takes a few less."""
    return counter.content(summary_content(summary)) if summary else 0


@lru_cache(maxsize=64)
def summary_content(summary: str) -> Content:
    """The content that holds a summary. It is sent as a part of the message beside it where that is the user's."""
    return content_of_parts("user", [part_of({"text": summary_message(summary)})])


class Decision(NamedTuple):
    """The decision of a strategy.

    ``forms`` are those of the contents that leave or become shorter, by index: ``left_out``, ``placeholder``, or
    ``extract`` with its tokens. ``summary`` is the new summary of what was cut, None where it stays as it was, and
    ``state`` what the strategy keeps from now on, None where that stays. ``note`` says what could not be done as asked.
    ``earlier`` are the indices in ``forms`` that earlier calls decided.
    """

    forms: Mapping[int, ContentForm] = NOTHING
    summary: str | None = None
    state: Mapping[str, JSON] | None = None
    note: str = ""
    earlier: frozenset[int] = frozenset()

    @property
    def removed(self) -> tuple[int, ...]:
        """The indices of the contents that leave."""
        return tuple(at for at, form in self.forms.items() if form.form == "left_out")

    @property
    def takes_anything(self) -> bool:
        """Tells whether something leaves, or a summary stands for what left before."""
        return self.summary is not None or bool(self.removed)


class Effect(NamedTuple):
    """The effect of a decision: the conversation ``after`` it, the anchors in that, and the tokens.

    ``act`` are the numbers for the manifest, None where nothing changed.
    """

    after: Conversation
    anchors: tuple[Anchor, ...]
    tokens_before: int
    tokens_after: int
    act: Act | None

    @property
    def freed_tokens(self) -> int:
        return self.tokens_before - self.tokens_after


class Strategy(Protocol):
    """Decides what of a conversation is still sent."""

    @property
    def name(self) -> str:
        """The name that policies give."""

    @property
    def early(self) -> bool:
        """Tells whether it runs before the window is allocated, on what the host sent, and before those that are not
        early. Its budget has water marks, too, but counted beside all declarations of the host, since what is sent of
        them is decided later."""

    def trim(self, conversation: Conversation, target_tokens: int) -> Decision:
        """Decides which contents leave or become shorter. The input stays as it is.

        The host sends each content anew at each call, in its own words. So an early strategy has to name at each call
        what it replaces, placeholders of earlier calls included: `Conversation.state` holds what it kept for that. What
        a late one removed stays away.

        Args:
            target_tokens: those that a cut goes down to, as the policy says.
        """
