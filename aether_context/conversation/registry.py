"""Strategies by name: the package's own and others, and which suits a conversation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple, TypeAlias

from aether_context.canonical import canonical_json
from aether_context.conversation.stable_prefix import StablePrefix
from aether_context.conversation.strategies import Epochs, HeadsTails, SlidingTurns, Summarize, Untouched
from aether_context.conversation.strategy import Conversation, Decision, Strategy, decided
from aether_context.conversation.turns import is_human, protected, units
from aether_context.errors import PolicyError, near_names
from aether_context.pack import Content
from aether_context.policy import ConversationSettings

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

    def trim(self, conversation: Conversation) -> Decision:
        try:
            result = self.strategy.trim(conversation)
            fault = _fault(conversation, result)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # whatever others raise, and whatever reading their result does
            fault = f"{type(error).__name__}: {error}"[:_MOST_FAULT]
            if not self.early:
                note = f"strategy {self.name!r} gave way to 'epochs': {fault}"
                return Epochs(settings=self.settings).trim(conversation)._replace(note=note)
        if not fault:
            return result
        return decided(conversation, self.name, note=f"strategy {self.name!r} changed nothing: {fault}")


def _fault(conversation: Conversation, result: Decision) -> str:
    """What is wrong with what a result changes; empty where nothing is."""
    gone = {removed.index for removed in result.removed}
    everything = range(len(conversation.contents))
    indices = [*(removed.index for removed in result.removed), *(replaced.index for replaced in result.replaced)]
    if len(set(indices)) < len(indices) or not set(everything).issuperset(indices):
        return "it names a content that is not there, or one twice"
    if list(result.kept) != [at for at in everything if at not in gone]:
        return "what it keeps is not all that it does not remove"
    canonical_json([result.summary, result.note, result.state])  # raises where they cannot be kept
    for replaced in result.replaced:
        at = replaced.index
        if at == conversation.human or _form(replaced.content) != _form(conversation.contents[at]):
            return f"it would change what content {at} asks, calls or answers"
    if not gone:
        return ""
    parts = units(conversation.contents)
    torn = next((unit for unit in parts if 0 < len(gone.intersection(unit.indices)) < len(unit.indices)), None)
    if torn is not None:
        return f"it would tear the exchange of the contents {', '.join(map(str, torn.indices))}"
    protected_units = protected(parts, conversation.human, neighbours=False)
    lost_indices = sorted(gone.intersection(index for at in protected_units for index in parts[at].indices))
    if lost_indices:
        return f"it would take content {lost_indices[0]}, which the model has yet to answer"
    first = next(at for at in range(len(conversation.contents)) if at not in gone)
    summary = conversation.summary if result.summary is None else result.summary
    if not summary and is_human(conversation.contents[0]) and not is_human(conversation.contents[first]):
        return f"content {first} would come first, which is not a person's"
    return ""


def _form(content: Content) -> tuple[object, ...]:
    """What a content has to keep where another one replaces it."""
    return (
        content.role,
        bool(content.parts),
        [(part.kind, part.call_id, part.name) for part in content.calls],
        [(part.call_id, part.name) for part in content.responses],
    )


# Strategies by name: the package's own, and those that are registered from outside.

Factory: TypeAlias = Callable[[ConversationSettings], Strategy]


_BUILT_IN: dict[str, Factory] = {
    "epochs": lambda settings: Epochs(settings=settings),
    "stable_prefix": lambda settings: StablePrefix(settings=settings),
    "sliding_turns": lambda settings: SlidingTurns(settings=settings),
    "heads_tails": lambda settings: HeadsTails(settings=settings),
    "summarize": lambda settings: Summarize(settings=settings),
    "none": lambda settings: Untouched(settings=settings),
}
_REGISTERED: dict[str, Factory] = {}


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
    if not name.strip() or name in _BUILT_IN:
        raise PolicyError(f"strategy name {name!r} is empty or taken: choose another one", field="name")
    _REGISTERED[name] = factory


def unregister_strategy(name: str) -> None:
    """Takes a registered strategy away again; one that is not there is no error."""
    _REGISTERED.pop(name, None)


def strategy_names() -> tuple[str, ...]:
    """The names that policies can give, the package's own first."""
    return (*_BUILT_IN, *sorted(_REGISTERED))


def strategies_of(settings: ConversationSettings) -> tuple[Strategy, ...]:
    """A policy's strategies in their order.

    Raises:
        PolicyError: a name is unknown, or one that looks at what the host sent stands after one that waits for the
            water marks.
    """
    strategies: list[Strategy] = []
    for name in settings.strategy:
        if name in _BUILT_IN:
            strategies.append(_BUILT_IN[name](settings))
        elif name in _REGISTERED:
            strategies.append(_Guarded(strategy=_REGISTERED[name](settings), settings=settings))
        else:
            raise PolicyError(
                f"conversation.strategy = {name!r} is unknown: {near_names(name, strategy_names())} (one of your own "
                "needs register_strategy first)",
                field="conversation.strategy",
            )
    for previous, strategy in pairwise(strategies):
        if strategy.early and not previous.early:
            raise PolicyError(
                f"conversation.strategy = {list(settings.strategy)}: {strategy.name!r} looks at what the host sent, so "
                f"it has to stand before {previous.name!r}",
                field="conversation.strategy",
            )
    return tuple(strategies)


# Which strategy suits a conversation, by its shape.

ShapeKind: TypeAlias = Literal["short", "loop", "dialogue", "session"]

_TALK_SHARE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a conversation looks like, and how many turns it has."""

    kind: ShapeKind
    turns: int


def shape_of(conversation: Conversation) -> Shape:
    """The shape of a conversation, from the tokens of its contents alone.

    ``short`` fits under the high-water mark. Of the others, ``loop`` has a turn that alone is above it, ``dialogue``
    consists of words for more than half, and ``session`` is everything else.
    """
    tokens, contents, high = conversation.tokens, conversation.contents, conversation.budget.high
    total = sum(tokens)
    tools = sum(size for size, content in zip(tokens, contents, strict=True) if content.calls or content.responses)
    turns: Counter[int] = Counter({0: 0})
    for unit in units(contents):
        turns[unit.turn] += sum(tokens[at] for at in unit.indices)
    kind: ShapeKind = "session"
    if total <= high:
        kind = "short"
    elif max(turns.values()) > high:
        kind = "loop"
    elif tools < (1 - _TALK_SHARE) * total:
        kind = "dialogue"
    return Shape(kind=kind, turns=len(turns))


class Selection(NamedTuple):
    """The strategy that suits a conversation, the rule that says so, and the shape that it looks at."""

    strategy: str
    rule: str
    shape: Shape


_RULES: Mapping[ShapeKind, tuple[str, str]] = {
    "short": ("epochs", "it fits, and nothing is cut"),
    "loop": (
        "epochs",
        "one turn alone passes the high-water mark: the cut goes through it, and the entity table counts",
    ),
    "session": ("epochs", "each turn fits and tools fill most of it: deep, rare cuts keep the most in the cache"),
    "dialogue": ("heads_tails", "words fill most of it: how it began stays word for word, at hardly more cost"),
}


def select_strategy(conversation: Conversation) -> Selection:
    """The strategy that suits a conversation, by its shape.

    The rules follow from what the strategies did to recorded runs of each shape, in tokens kept for what they cost:
    tests/bench/tool_runs.py gives the figures, docs/benchmarks.md has them.
    """
    shape = shape_of(conversation)
    strategy, rule = _RULES[shape.kind]
    return Selection(strategy=strategy, rule=f"{shape.kind}: {rule}", shape=shape)
