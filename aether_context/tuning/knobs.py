"""Knobs, the settings that tuning changes, and policies with other values for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aether_context.errors import PolicyError, near_names
from aether_context.policy import PackPolicy, merged

Values = Mapping[str, float]
"""The value of each knob by its name."""

_SHARES = "budget.shares."
_CONVERSATION = "conversation"


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """A setting with the range of its values. ``budget.shares.LAYER`` is the middle of a layer's range of shares."""

    name: str
    low: float
    high: float
    whole: bool = False

    @property
    def is_share(self) -> bool:
        return self.name.startswith(_SHARES)

    def value(self, policy: PackPolicy) -> float:
        """The knob's value in a policy."""
        value: Any = policy
        for name in self.name.split("."):
            value = getattr(value, name)
        return float(value.middle if self.is_share else value)


KNOBS: tuple[Knob, ...] = (
    Knob(name="conversation.compact_at", low=0.5, high=1.0),
    Knob(name="conversation.compact_to", low=0.2, high=0.8),
    Knob(name="conversation.summary_share", low=0.05, high=0.35),
    Knob(name="retrieval.memory_k", low=2, high=40, whole=True),
    Knob(name="retrieval.floor", low=0.0, high=0.5),
    Knob(name="budget.shares.evidence", low=0.1, high=0.7),
)
"""The default knobs."""


def knob_named(text: str) -> Knob:
    """A knob from ``NAME=LOW:HIGH``, or from the name of one of `KNOBS`.

    Raises:
        PolicyError: there is no such setting, it is no number, or the range is empty.
    """
    name, _, span = text.partition("=")
    knobs = {knob.name: knob for knob in KNOBS}
    if not span:
        if name not in knobs:
            raise PolicyError(f"knob {name!r} needs a range, as in {name}=0.1:0.5", field=name)
        return knobs[name]
    try:
        low, high = (float(bound) for bound in span.split(":"))
    except ValueError:
        raise PolicyError(f"knob {text!r}: a range is LOW:HIGH, as in {name}=0.1:0.5", field=name) from None
    knob = Knob(name=name, low=low, high=high)
    try:
        value: Any = PackPolicy()
        for part in name.split("."):
            value = getattr(value, part)
    except AttributeError:
        raise PolicyError(f"knob {name!r} is no setting: {near_names(name, list(knobs))}", field=name) from None
    if not knob.is_share and (isinstance(value, bool) or not isinstance(value, (int, float))):
        raise PolicyError(f"knob {name!r} is no number", field=name)
    if not low < high:
        raise PolicyError(f"knob {text!r}: {low:g} is not below {high:g}", field=name)
    knob = Knob(name=name, low=low, high=high, whole=isinstance(value, int))
    for bound in (low, high):
        with_values(PackPolicy(), {name: bound})
    return knob


def settings(policy: PackPolicy, values: Values) -> dict[str, Any]:
    """The settings, as in a policy file, that give a policy other values for knobs."""
    changed: dict[str, Any] = {}
    for name, value in values.items():
        if name.startswith(_SHARES):
            changed = merged(changed, _shares(policy, name.removeprefix(_SHARES), value))
        else:
            *sections, last = name.split(".")
            section = changed
            for inner in sections:
                section = section.setdefault(inner, {})
            section[last] = value
    conversation = changed.get(_CONVERSATION, {})
    # A cut cannot end above where it begins.
    compact_at = conversation.get("compact_at", policy.conversation.compact_at)
    if conversation.get("compact_to", policy.conversation.compact_to) > compact_at:
        changed.setdefault(_CONVERSATION, {})["compact_to"] = compact_at
    return changed


def with_values(policy: PackPolicy, values: Values) -> PackPolicy:
    """A policy with other values for knobs; `PolicyError` where they are not valid."""
    return policy.changed(**settings(policy, values)) if values else policy


def _shares(policy: PackPolicy, layer: str, middle: float) -> dict[str, Any]:
    """Shares with a layer's range moved to another middle, and the conversation's, or else the evidence's, moved by the
    same amount in the other direction."""
    shares = policy.budget.shares
    counterpart = _CONVERSATION if layer != _CONVERSATION else "evidence"
    change = middle - getattr(shares, layer).middle
    changed = {}
    for name, shift in ((layer, change), (counterpart, -change)):
        current = getattr(shares, name)
        low, high = (min(1.0, max(0.0, round(bound + shift, 4))) for bound in (current.low, current.high))
        changed[name] = {"low": low, "high": high}
    # The lows must not sum to more than 1, nor the highs to less.
    third = next(name for name in ("evidence", "memory", _CONVERSATION) if name not in changed)
    low_sum = sum(bounds["low"] for bounds in changed.values()) + getattr(shares, third).low
    high_sum = sum(bounds["high"] for bounds in changed.values()) + getattr(shares, third).high
    if low_sum > 1:
        changed[counterpart]["low"] = max(0.0, round(changed[counterpart]["low"] - (low_sum - 1), 4))
    if high_sum < 1:
        changed[counterpart]["high"] = min(1.0, round(changed[counterpart]["high"] + (1 - high_sum), 4))
    return {"budget": {"shares": changed}}
