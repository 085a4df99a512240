"""Tokens per layer: floors, slack, a remainder split by signals inside a profile's ranges, and lending.

The split is window-proportional: floors first, the remainder by weights, weights from eight signals. The weighted
shares are *projected* onto the ranges, so that they sum to one without leaking at a clamp, and unspent tokens are lent:
a budget is a ceiling, not a target. Signals move a weight up and down around the middle of its range, so that where
nothing is known the middles decide. Ranges are narrow, and weights made of signals alone would nearly always stand at
their ends.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from operator import sub

from aether_context.errors import StepTooLarge
from aether_context.pack import FIXED_LAYERS, FLEXIBLE_LAYERS, Allocation, Layer, LayerTokens, Signals
from aether_context.policy import BudgetSettings, Range

_RISK = {"low": 0.0, "medium": 0.5, "high": 1.0}
_NEUTRAL = 0.5
_GAIN = 0.3
"""How far all signals of a layer together raise or lower its weight, as a share of it."""
_TOOL_CALLS_HALF = 4
_QUESTIONS_HALF = 3
_TURNS_HALF = 6
_FULL_SIMILARITY = 0.4
"""About what the best match reaches."""
_HALF_LIFE_DAYS = 14


def allocate(
    window: int,
    *,
    measured: Mapping[Layer, int],
    demand: Mapping[Layer, int],
    signals: Signals,
    settings: BudgetSettings,
    output_tokens: int | None = None,
    spare_tokens: int = 0,
) -> Allocation:
    """Whole tokens per layer.

    Args:
        window: the window ``W`` in tokens.
        measured: tokens of the system, task and tools layers as they are.
        demand: tokens that the evidence, memory and conversation layers would use if nothing limited them.
        output_tokens: the answer's limit where answer and input share the window; it raises the slack.
        spare_tokens: tokens that may be counted beyond the window; they are lent. Below 0 as many are nobody's.

    Returns:
        An allocation whose finals, slack included, sum to at most ``window + spare_tokens``.

    Raises:
        StepTooLarge: the measured layers alone exceed the input budget.
    """
    slack = slack_tokens(window, settings, output_tokens)
    room = window - slack + min(0, spare_tokens)
    floors = {layer: int(window * getattr(settings.floors, layer)) for layer in FIXED_LAYERS}
    # Floors are promises, not walls: a step is refused only where the three layers together really exceed the budget.
    fixed: dict[str, int] = {layer: measured[layer] for layer in FIXED_LAYERS}
    needed = sum(fixed.values())
    if needed > room:
        raise StepTooLarge(window=window, slack=window - room, measured=fixed)
    promised = sum(max(floors[layer], measured[layer]) for layer in FIXED_LAYERS)
    remainder = max(0, room - promised)
    weights = weigh(signals, settings)
    shares = whole(remainder, [weights[layer] for layer in FLEXIBLE_LAYERS])
    nominal: dict[Layer, int] = dict(zip(FLEXIBLE_LAYERS, shares, strict=True))
    floor_room = room - needed - remainder
    for layer in FIXED_LAYERS:
        nominal[layer] = min(max(floors[layer], measured[layer]), measured[layer] + floor_room)
        floor_room -= nominal[layer] - measured[layer]
    demand_by_layer = {**demand, **{layer: measured[layer] for layer in FIXED_LAYERS}}
    final = lend(nominal, demand_by_layer, weights, max(0, spare_tokens))
    layers: dict[Layer, LayerTokens] = {
        layer: LayerTokens(
            floor=floors.get(layer, 0),
            nominal=nominal[layer],
            lent=final[layer] - nominal[layer],
            final=final[layer],
            used=min(demand_by_layer[layer], final[layer]),
        )
        for layer in (*FIXED_LAYERS, *FLEXIBLE_LAYERS)
    }
    layers["slack"] = LayerTokens(floor=slack, nominal=slack, lent=0, final=slack, used=0)
    return Allocation(
        window=window, slack=slack, spare_tokens=spare_tokens, layers=layers, weights=weights, signals=signals
    )


def slack_tokens(window: int, settings: BudgetSettings, output_tokens: int | None = None) -> int:
    """Tokens kept free for the answer: the floor, or the answer's limit where that is more, but under half of ``W``."""
    floor = math.ceil(window * settings.floors.slack)
    return max(floor, min(output_tokens or 0, window // 2))


_SPARE_OF_DEFAULT = 4


def exceeding(needed: int, window: int, max_window: int, settings: BudgetSettings, output_tokens: int | None) -> int:
    """The window of a call that needs so many tokens, where nobody set one: the default, or for a call that passes it
    as much as it needs with a quarter of the default, for its calls and results, at most what the model takes."""
    if max_window <= window or needed <= window - slack_tokens(window, settings, output_tokens):
        return window
    needed += window // _SPARE_OF_DEFAULT
    slack = max(math.ceil(needed * settings.floors.slack / (1 - settings.floors.slack)), output_tokens or 0)
    return min(max_window, needed + slack)


@lru_cache(maxsize=1_000)
def weigh(signals: Signals, settings: BudgetSettings) -> dict[Layer, float]:
    """Shares of the remainder that sum to 1, each inside its range.

    Each signal has a strength of 0 to 1, unknown ones the neutral one half. Shares stay as they are, counts follow
    ``x / (x + half)``, age halves every half-life, risk is 0, ½ or 1. A similarity that was found counts from one half
    up, so never less than one that is unknown. A layer's weight is the middle of its range, raised or lowered by up to
    30% of it by the mean of its signals; the weights are scaled to sum to 1 and projected.
    """
    days = signals.freshness_days
    strengths: dict[Layer, tuple[float, ...]] = {
        "evidence": (
            _share(signals.checklist_evidence_ratio),
            _count(signals.expected_tool_calls, _TOOL_CALLS_HALF),
            _NEUTRAL if signals.risk is None else _RISK[signals.risk],
        ),
        "memory": (
            _share(signals.retrieval_hit_rate),
            _NEUTRAL + _NEUTRAL * _share((signals.similarity or 0.0) / _FULL_SIMILARITY),
            _NEUTRAL if days is None else 0.5 ** (max(0.0, days) / _HALF_LIFE_DAYS),
        ),
        "conversation": (
            _count(signals.unresolved_questions, _QUESTIONS_HALF),
            _count(signals.dialogue_depth, _TURNS_HALF),
        ),
    }
    ranges = [getattr(settings.shares, layer) for layer in FLEXIBLE_LAYERS]
    weights = []
    for layer, allowed in zip(FLEXIBLE_LAYERS, ranges, strict=True):
        lean = 2 * sum(strengths[layer]) / len(strengths[layer]) - 1
        weights.append(allowed.middle * max(0.0, 1 + _GAIN * lean))
    total = sum(weights) or 1.0
    return dict(zip(FLEXIBLE_LAYERS, project([weight / total for weight in weights], ranges), strict=True))


def project(shares: Sequence[float], ranges: Sequence[Range]) -> list[float]:
    """The nearest point (Euclidean) to ``shares`` on {sum 1, each inside its range}.

    It is ``clip(share - t, low, high)`` for the one ``t`` that makes the sum 1. The sum falls with ``t`` along straight
    lines between the points where a share meets an end of its range, so ``t`` lies on the line that crosses 1.
    """
    pairs = list(zip(shares, ranges, strict=True))

    def total(t: float) -> float:
        return sum(_clip(share - t, allowed) for share, allowed in pairs)

    points = sorted({share - end for share, allowed in pairs for end in (allowed.low, allowed.high)})
    t_above_one = max((t for t in points if total(t) >= 1), default=points[0])
    t_below_one = min((t for t in points if total(t) < 1), default=t_above_one)
    drop = total(t_above_one) - total(t_below_one)
    t = t_above_one + (t_below_one - t_above_one) * (total(t_above_one) - 1) / drop if drop else t_above_one
    return [_clip(share - t, allowed) for share, allowed in pairs]


def whole(total: int, shares: Sequence[float]) -> list[int]:
    """``total`` in whole numbers by shares: rounded down, and what is left by largest remainder, then by position."""
    scale = sum(shares) or 1.0
    exact = [total * share / scale for share in shares]
    parts = [int(value) for value in exact]
    order = sorted(range(len(parts)), key=lambda index: (parts[index] - exact[index], index))
    for index in order[: total - sum(parts)]:
        parts[index] += 1
    return parts


def lend(
    nominal: Mapping[Layer, int], demand: Mapping[Layer, int], weights: Mapping[Layer, float], unspent: int
) -> dict[Layer, int]:
    """Budgets after lending: unspent tokens go to the flexible layers that want more, by weight, while any want.

    A layer gives only what it does not want itself, and only what another one takes, so that what nobody takes stays in
    its budget. Those that give do so in the proportion of what they have left.

    Args:
        unspent: tokens beside those of the layers; they are lent last.
    """
    spare = {layer: max(0, nominal[layer] - demand[layer]) for layer in nominal}
    final = dict(nominal)
    pool = lendable = sum(spare.values()) + unspent
    while pool > 0:
        eager = [layer for layer in FLEXIBLE_LAYERS if demand[layer] > final[layer]]
        if not eager:
            break
        for layer, part in zip(eager, whole(pool, [max(weights[layer], 1e-9) for layer in eager]), strict=True):
            loan = min(part, demand[layer] - final[layer])
            final[layer] += loan
            pool -= loan
    taken = min(lendable - pool, sum(spare.values()))
    if taken:
        for layer, part in zip(spare, whole(taken, list(spare.values())), strict=True):
            final[layer] -= part
    return final


def spend(allocation: Allocation, used: Mapping[Layer, int]) -> Allocation:
    """The allocation with what each layer really used; what one of them has left is lent to those that took more."""
    layers = {layer: account for layer, account in allocation.layers.items() if layer != "slack"}
    if all(account.used == used[layer] for layer, account in layers.items()):
        return allocation
    over = [max(0, used[layer] - account.final) for layer, account in layers.items()]
    spare = [max(0, account.final - used[layer]) for layer, account in layers.items()]
    loan = min(sum(over), sum(spare))
    moved = dict(zip(layers, map(sub, whole(loan, over), whole(loan, spare)), strict=True))
    spent: dict[Layer, LayerTokens] = {
        layer: replace(account, lent=account.lent + moved[layer], final=account.final + moved[layer], used=used[layer])
        for layer, account in layers.items()
    }
    return allocation._replace(layers={**allocation.layers, **spent})


def _share(value: float | None) -> float:
    return _NEUTRAL if value is None else min(1.0, max(0.0, value))


def _count(value: int | None, half: float) -> float:
    return _NEUTRAL if value is None else max(0, value) / (max(0, value) + half)


def _clip(value: float, allowed: Range) -> float:
    return min(allowed.high, max(allowed.low, value))
