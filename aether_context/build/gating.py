"""The usage gate in front of every strategy: no cut while reported usage says that the window is far from full."""

from __future__ import annotations

from aether_context.pack import Ingredients
from aether_context.policy import PackPolicy


def gated(source: Ingredients, policy: PackPolicy, counted: int, budget: int) -> bool:
    """Whether reported usage says that the window is far from full, though the count is past its high-water mark.

    Args:
        counted: tokens of the whole request and what is unseen of it.
        budget: the input budget, which the count may not pass.
    """
    known = source.calibration
    if known is None or known.beyond is None or counted > budget:
        return False
    mark = min(policy.usage.gate * source.window, policy.conversation.high_water * budget)
    return counted - known.unseen + known.beyond < mark


def past_byte_net(source: Ingredients, policy: PackPolicy, sent_bytes: int) -> bool:
    """Whether a request is so large that it is cut as if it had passed the high-water mark, nothing being reported."""
    net = policy.usage.net_bytes_per_token * source.window
    return source.first_call and 0 < net < sent_bytes


def by_hand(source: Ingredients) -> bool:
    """Whether a cut was asked for that has not been made."""
    return bool(source.asked) and source.asked != source.epoch.asked
