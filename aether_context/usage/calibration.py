"""From counted tokens to the provider's: an anchor on the last reported usage, and a ratio learned from its growth.

A provider reports one number a call, the tokens of the whole request. What it counts beyond the count here (its own
framing, instructions that a host adds later) is the anchor's offset; how many tokens it reports for a counted one is
learned from growth alone, request against request, since totals hold what was never seen here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

from pydantic import Field, Strict, TypeAdapter

from aether_context.pack import Calibration

_LEAST, _MOST = 0.6, 1.7
"""Bounds of a ratio: whatever is reported, or written into a session's state, distorts no estimate beyond them."""

_PRIOR_TOKENS = 1_000
_MEMORY_TOKENS = 50_000
"""Counted tokens that the first ratio, 1, stands for, and those after which what was learned is forgotten."""

_LARGEST_GROWTH = 60_000

_LEAST_BELIEVED = 0.25
"""The share of the count under which a report is not one of the whole request; digits alone are counted four times as
many as a provider may report."""

Count = Annotated[int, Strict(), Field(ge=0, lt=10**12)]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRatio:
    """Reported tokens per counted one: a running mean over the latest 50,000 counted tokens that requests grew by.

    ``counted_tokens`` are those that ``value`` stands for. ``samples`` counts what was learned from.
    """

    __pydantic_config__: ClassVar[Mapping[str, object]] = {"defer_build": True}

    value: Annotated[float, Strict(), Field(ge=_LEAST, le=_MOST)] = 1.0
    counted_tokens: Annotated[int, Strict(), Field(ge=_PRIOR_TOKENS, le=_MEMORY_TOKENS)] = _PRIOR_TOKENS
    samples: Count = 0

    def learned(self, counted: int, reported: int) -> TokenRatio:
        """The ratio after a request grew by so many counted and reported tokens.

        A growth counts for at most 1.5 times what was expected of it, and for at least the inverse. A request that
        shrank and growth beyond 60,000 tokens teach nothing.
        """
        if not 0 < counted <= _LARGEST_GROWTH or not 0 <= reported <= _LARGEST_GROWTH:
            return self
        expected = self.value * counted
        clipped = min(max(reported, expected / 1.5), expected * 1.5)
        value = (self.value * self.counted_tokens + clipped) / (self.counted_tokens + counted)
        return TokenRatio(
            # Rounded, so that it is the same after it was read back from a session's state.
            value=round(min(_MOST, max(_LEAST, value)), 6),
            counted_tokens=min(_MEMORY_TOKENS, self.counted_tokens + counted),
            samples=self.samples + 1,
        )

    def moved(self, before: TokenRatio | None) -> bool:
        """Whether an estimate would now differ by a percent from what it was."""
        return abs(self.value - (before or TokenRatio()).value) > 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageAnchor:
    """A usage that a provider reported for a request that was sent here, and what was counted of it.

    ``epoch`` is the number of the request's epoch; growth is learned from within one only. ``doubted`` is a report so
    far off, with its count, that it is believed only when the next one confirms it: a sum over several calls, or of
    another request. ``whole`` says that every report since the first one was of a whole request, as far as can be
    told: none of them fell while requests grew.
    """

    __pydantic_config__: ClassVar[Mapping[str, object]] = {"defer_build": True}

    model: str
    epoch: Count
    counted: Count
    reported: Count
    doubted: tuple[Count, Count] | None = None
    whole: bool = False

    @property
    def beyond(self) -> int:
        """Tokens by which the report passed the count."""
        return self.reported - self.counted

    def overcounted(self, epoch: int) -> int:
        """Tokens by which the report fell short of the count, half of them where an epoch began since.

        0 where it fell so short that it is not believed: some report only what their cache did not hold.
        """
        if self.reported < (_LEAST_BELIEVED if self.whole else _LEAST) * self.counted:
            return 0
        return max(0, -self.beyond) // (1 if self.epoch == epoch else 2)


RATIO, ANCHOR = TypeAdapter(TokenRatio), TypeAdapter(UsageAnchor)
"""How both are written to state, events and the store, and read."""


def report(
    anchor: UsageAnchor | None, ratio: TokenRatio, *, model: str, epoch: int, counted: int, reported: int
) -> tuple[UsageAnchor, TokenRatio]:
    """The anchor and the ratio after a provider reported ``reported`` input tokens for a request of ``counted``."""
    fresh = UsageAnchor(model=model, epoch=epoch, counted=counted, reported=reported, whole=True)
    if anchor is None or anchor.model != model:
        return fresh, ratio
    # A larger request with under three quarters of the report before: one of its uncached tokens.
    fell = counted >= anchor.counted and reported < 0.75 * anchor.reported
    fresh = replace(fresh, whole=anchor.whole and not fell)
    if not _follows(anchor.reported, anchor.counted, counted, reported):
        confirmed = anchor.doubted is not None and _follows(*anchor.doubted, counted, reported, closeness=4)
        return (fresh if confirmed else replace(anchor, doubted=(reported, counted))), ratio
    if anchor.epoch == epoch:
        ratio = ratio.learned(counted - anchor.counted, reported - anchor.reported)
    return fresh, ratio


def calibration(
    anchor: UsageAnchor | None, ratio: TokenRatio, *, model: str, epoch: int, here: bool, unseen: int
) -> Calibration | None:
    """What a pack is estimated by; None where nothing is known.

    Args:
        epoch: the number of the epoch that the request belongs to, or begins after.
        here: whether the anchor's usage was reported in the running invocation.
        unseen: see `Calibration`.
    """
    if anchor is None and not ratio.samples:
        return None
    anchored = anchor is not None and anchor.model == model
    return Calibration(
        ratio=ratio.value,
        offset=round(anchor.reported - ratio.value * anchor.counted, 2) if anchor is not None else 0.0,
        samples=ratio.samples,
        anchored=anchored,
        beyond=anchor.beyond if anchor is not None and anchored and here else None,
        unseen=unseen,
        overcounted=anchor.overcounted(epoch) if anchor is not None and anchored else 0,
    )


def estimated(calibration: Calibration, counted: int) -> int:
    """Tokens that a provider would report for a request of so many; never under a quarter of the count."""
    return max(int(_LEAST_BELIEVED * counted), round(calibration.offset + calibration.ratio * counted))


def _follows(before: int, counted_before: int, counted: int, reported: int, closeness: int = 1) -> bool:
    """Whether a report follows from the one before it and what was added since, within a half or 8,000 tokens."""
    expected = before + counted - counted_before
    return closeness * abs(reported - expected) <= max(8_000, 0.5 * abs(expected))
