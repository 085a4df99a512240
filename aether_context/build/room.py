"""What a window holds besides what is measured: slack for the answer, and the input budget."""

from __future__ import annotations

from aether_context.allocation import slack_tokens
from aether_context.pack import Ingredients
from aether_context.policy import PackPolicy


def slack(source: Ingredients, policy: PackPolicy) -> int:
    """Tokens kept free for the answer, ``S``."""
    return slack_tokens(source.window, policy.budget, source.output_tokens)


def input_budget(source: Ingredients, policy: PackPolicy) -> int:
    """``W - S`` in tokens."""
    return source.window - slack(source, policy)
