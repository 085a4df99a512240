"""Strategies: what of a conversation is still sent.

    from aether_context.strategies import Conversation, strategies_of
    strategy, = strategies_of(PackPolicy(conversation={"strategy": "heads_tails"}).conversation)
    result = strategy.trim(Conversation.of(contents, window=16_000))

A policy names one or several; each also works alone, on plain contents.
"""

from aether_context.strategies.anchors import (
    AnchorDefinition,
    hold,
    identify,
    ranked,
    register_anchor,
    registered_anchors,
    selected,
    standing_anchors,
    unregister_anchor,
    validate,
)
from aether_context.strategies.composition import trim
from aether_context.strategies.normalization import Normal, normalize
from aether_context.strategies.registry import register_strategy, strategies_of, strategy_names, unregister_strategy
from aether_context.strategies.selection import Selection, Shape, select_strategy, shape_of
from aether_context.strategies.strategy import (
    Budget,
    Conversation,
    Removed,
    Replaced,
    Strategy,
    Trimmed,
    decided,
    lost_tokens,
    rendered,
)

__all__ = [
    "AnchorDefinition",
    "Budget",
    "Conversation",
    "Normal",
    "Removed",
    "Replaced",
    "Selection",
    "Shape",
    "Strategy",
    "Trimmed",
    "decided",
    "hold",
    "identify",
    "lost_tokens",
    "normalize",
    "ranked",
    "register_anchor",
    "register_strategy",
    "registered_anchors",
    "rendered",
    "select_strategy",
    "selected",
    "shape_of",
    "standing_anchors",
    "strategies_of",
    "strategy_names",
    "trim",
    "unregister_anchor",
    "unregister_strategy",
    "validate",
]
