"""Which strategy suits a conversation, by its shape."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from aether_context.conversation import is_human
from aether_context.strategies.strategy import Conversation

ShapeKind: TypeAlias = Literal["short", "loop", "dialogue", "session"]

TALK_SHARE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a conversation looks like.

    ``tokens`` are those of all contents, ``tool_tokens`` those of calls and responses among them, ``largest_turn``
    those of its largest turn.
    """

    kind: ShapeKind
    contents: int
    turns: int
    tokens: int
    tool_tokens: int
    largest_turn: int


def shape_of(conversation: Conversation) -> Shape:
    """The shape of a conversation, from the tokens of its contents alone.

    ``short`` fits under the high-water mark. Of the others, ``loop`` has a turn that alone is above it, ``dialogue``
    consists of words for more than half, and ``session`` is everything else.
    """
    tokens, contents = conversation.tokens, conversation.contents
    total = sum(tokens)
    tools = sum(size for size, content in zip(tokens, contents, strict=True) if content.calls or content.responses)
    turns: list[int] = [0]
    spoke = True
    for size, content in zip(tokens, contents, strict=True):
        human = is_human(content)
        if human and not spoke:
            turns.append(0)
        spoke = human
        turns[-1] += size
    return Shape(
        kind=_kind(conversation, total, tools, max(turns)),
        contents=len(contents),
        turns=len(turns),
        tokens=total,
        tool_tokens=tools,
        largest_turn=max(turns),
    )


def _kind(conversation: Conversation, total: int, tools: int, largest: int) -> ShapeKind:
    high = conversation.budget.high
    if total <= high:
        return "short"
    if largest > high:
        return "loop"
    return "dialogue" if tools < (1 - TALK_SHARE) * total else "session"


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
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
    tests/bench/strategy_runs.py gives the figures, docs/benchmarks.md has them.
    """
    shape = shape_of(conversation)
    strategy, rule = _RULES[shape.kind]
    return Selection(strategy=strategy, rule=f"{shape.kind}: {rule}", shape=shape)
