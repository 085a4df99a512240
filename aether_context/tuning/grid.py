"""The policies that tuning tries in the place of another one."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import permutations
from typing import Any, TypeAlias

from aether_context.errors import PolicyError
from aether_context.pack import FLEXIBLE_LAYERS, Layer
from aether_context.policy import PackPolicy

_Trial: TypeAlias = tuple[tuple[Layer, Layer] | None, tuple[float, float] | None, int | None]
"""A layer whose share rises and one whose share falls; ``compact_at`` and ``compact_to``; ``memory_k``."""

# One factor at a time comes first, so that what each does can be told apart: every pair of layers both ways, the depth
# of a cut alone, earlier cuts at two depths each, and fewer and more memories. 1.0 and 0.42 are the defaults, which
# mend a policy that was set too tight. Combined are factors that make room for each other: memories with the layers
# that take or give their place, and the conversation's share with the depth of its cuts. The last two save and keep
# most.
_TRIALS: tuple[_Trial, ...] = (
    *((move, None, None) for move in permutations(FLEXIBLE_LAYERS, 2)),
    *((None, (1.0, compact_to), None) for compact_to in (0.2, 0.3, 0.42, 0.55, 0.7)),
    *((None, marks, None) for marks in ((0.8, 0.3), (0.8, 0.5), (0.6, 0.25), (0.6, 0.42))),
    *((None, None, memories) for memories in (4, 24)),
    (("evidence", "conversation"), (1.0, 0.3), None),
    (("evidence", "conversation"), None, 4),
    (("evidence", "memory"), None, 4),
    (("memory", "conversation"), None, 24),
    (("conversation", "memory"), (1.0, 0.55), 4),
    (("conversation", "evidence"), (1.0, 0.7), None),
    (None, (0.6, 0.25), 4),
    (None, (1.0, 0.7), 24),
)

_PART = 2 / 3
"""How far a share moves, as a part of the way to the end of its range or the other's, whichever is nearer: for
``research`` evidence to 65%, at the conversation's expense. What is left of the ranges is for signals to move it in."""


def grid(base: PackPolicy) -> Mapping[str, PackPolicy]:
    """The policies to try by name, 24 for the usual ones, each once and none equal to the base."""
    policies: dict[str, PackPolicy] = {}
    digests = {base.digest}
    for move, marks, memories in _TRIALS:
        names: list[str] = []
        settings: dict[str, Any] = {}
        if move is not None:
            names.append(f"{move[0]} for {move[1]}")
            settings["budget"] = {"shares": _moved(base, *move)}
        if marks is not None:
            names.append("cut at {:g} to {:g}".format(*marks))
            settings["conversation"] = dict(zip(("compact_at", "compact_to"), marks, strict=True))
        if memories is not None:
            names.append(f"{memories} memories")
            settings["retrieval"] = {"memory_k": memories}
        try:
            policy = base.changed(**settings)
        except PolicyError:  # the base's own ranges leave no room for it
            continue
        if policy.digest not in digests:
            digests.add(policy.digest)
            policies[", ".join(names)] = policy
    return policies


def _moved(base: PackPolicy, to: Layer, source: Layer) -> dict[str, Any]:
    """The ranges of two layers with their middles moved by the same amount, each inside the range that it had."""
    rising, falling = (getattr(base.budget.shares, layer) for layer in (to, source))
    cut = _PART * min(rising.high - rising.low, falling.high - falling.low)
    return {
        to: {"low": round(rising.low + cut, 4), "high": rising.high},
        source: {"low": falling.low, "high": round(falling.high - cut, 4)},
    }
