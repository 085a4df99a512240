"""Strategies: what of a conversation is still sent.

    from aether_context.conversation import Conversation, strategies_of
    strategy, = strategies_of(PackPolicy(conversation={"strategy": "heads_tails"}).conversation)
    conversation = Conversation.of(contents, window=16_000)
    decision = strategy.trim(conversation, conversation.budget.cut_to)

A policy names one or several; each also works alone, on plain contents.
"""

from aether_context.conversation.anchors import (
    AnchorDefinition,
    identify,
    policy_anchors,
    ranked_anchors,
    register_anchor,
    registered_anchors,
    selected,
    unregister_anchor,
    validate,
)
from aether_context.conversation.normalization import normalize
from aether_context.conversation.strategies import (
    Selection,
    register_strategy,
    select_strategy,
    strategies_of,
    strategy_names,
    unregister_strategy,
)
from aether_context.conversation.strategy import Budget, Conversation, Decision, Effect, Strategy
from aether_context.conversation.turns import units

__all__ = [
    "AnchorDefinition",
    "Budget",
    "Conversation",
    "Decision",
    "Effect",
    "Selection",
    "Strategy",
    "identify",
    "normalize",
    "policy_anchors",
    "ranked_anchors",
    "register_anchor",
    "register_strategy",
    "registered_anchors",
    "select_strategy",
    "selected",
    "strategies_of",
    "strategy_names",
    "units",
    "unregister_anchor",
    "unregister_strategy",
    "validate",
]
