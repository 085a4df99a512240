"""The usage gate in front of every strategy: no cut while reported usage says that the window is far from full."""

from __future__ import annotations

from collections.abc import Iterable

from aether_context.pack import Content, Ingredients
from aether_context.policy import PackPolicy

_MOST_BYTES = 4
"""Bytes of one character in UTF-8, at most."""


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


def past_byte_net(source: Ingredients, policy: PackPolicy, contents: Iterable[Content]) -> bool:
    """Whether contents are so large that they are cut as if they had passed the high-water mark.

    The net is there for calls before which nothing was reported in the invocation: the first one, or all of them where
    a provider reports nothing.
    """
    net = _net_bytes(source, policy)
    if not net:
        return False
    held = list(contents)
    characters = sum([len(one.wire) for one in held])
    return characters > net or (_MOST_BYTES * characters > net and sent_bytes(held) > net)


def net_share(source: Ingredients, policy: PackPolicy, contents: Iterable[Content]) -> float:
    """The share of contents that the byte net takes; 1.0 where it takes all of them."""
    net = _net_bytes(source, policy)
    size = sent_bytes(contents) if net > 0 else 0
    return net / size if size > net else 1.0


def sent_bytes(contents: Iterable[Content]) -> int:
    """Bytes of contents as JSON in UTF-8."""
    return sum(
        len(one.wire) if one.wire.isascii() else len(one.wire.encode("utf-8", "surrogatepass")) for one in contents
    )


def _net_bytes(source: Ingredients, policy: PackPolicy) -> float:
    """The size of the net in bytes; 0.0 where usage was reported in this invocation."""
    known = source.calibration
    unreported = known is None or known.beyond is None
    return policy.usage.net_bytes_per_token * source.window if unreported else 0.0


def by_hand(source: Ingredients) -> bool:
    """Whether a cut was asked for that has not been made."""
    return bool(source.asked) and source.asked != source.epoch.asked
