"""Estimates the provider's tokens from counted ones, by an offset and a ratio learned from reported usage.

The offset comes from the last report of a whole request, the *baseline*: it covers what is not counted here, such as
the provider's framing. The ratio is learned from the growth between two requests, in which that is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

from pydantic import Field, Strict, TypeAdapter

from aether_context.pack import Calibration

_LEAST, _MOST = 0.6, 1.7
"""Bounds of a ratio, which also hold for wrong reports and for what is written into a session's state."""
_PRIOR_TOKENS, _MEMORY_TOKENS = 1_000, 50_000
"""Weights in counted tokens: that of the initial ratio, 1, and the most that what was learned before can have."""
_LARGEST_GROWTH = 60_000
_USUAL = 1.25
"""Growth of so many times the expected one is believed at once; of `_MOST` times where the next report confirms it."""
_LEAST_BELIEVED = 0.25
"""A report below this share of the count is not believed to be of the whole request. It is this low since of digits
four times as many tokens may be counted as a provider reports."""

Count = Annotated[int, Strict(), Field(ge=0, lt=10**12)]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRatio:
    """Reported tokens per counted one: a running mean over the latest 50,000 counted tokens that requests grew by.

    ``counted_tokens`` is the weight of ``value``. ``samples`` is the number of requests that it was learned from.
    """

    __pydantic_config__: ClassVar[Mapping[str, object]] = {"defer_build": True}

    value: Annotated[float, Strict(), Field(ge=_LEAST, le=_MOST)] = 1.0
    counted_tokens: Annotated[int, Strict(), Field(ge=_PRIOR_TOKENS, le=_MEMORY_TOKENS)] = _PRIOR_TOKENS
    samples: Count = 0

    def learned(self, counted: int, reported: int) -> TokenRatio:
        """The ratio after a request grew by so many counted and reported tokens.

        The reported growth is clipped to between 2/3 and 1.5 times the expected one. A request that shrank, or grew by
        more than 60,000 tokens, teaches nothing.
        """
        if not 0 < counted <= _LARGEST_GROWTH or not 0 <= reported <= _LARGEST_GROWTH:
            return self
        expected = self.value * counted
        clipped = min(max(reported, expected / 1.5), expected * 1.5)
        value = (self.value * self.counted_tokens + clipped) / (self.counted_tokens + counted)
        return TokenRatio(
            # Rounded, so that it stays the same when it is read back from a session's state.
            value=round(min(_MOST, max(_LEAST, value)), 6),
            counted_tokens=min(_MEMORY_TOKENS, self.counted_tokens + counted),
            samples=self.samples + 1,
        )

    def moved(self, previous: TokenRatio | None) -> bool:
        """Tells whether estimates differ by more than a percent from those with the ratio before."""
        return abs(self.value - (previous or TokenRatio()).value) > 0.01


class UsageBaseline(NamedTuple):
    """The usage that a provider reported for a request, and the tokens that were counted of it.

    Growth is learned within one ``epoch`` only. ``doubted`` is a later report, with its count, so far off that it is
    believed only when the next one confirms it: it may be a sum over several calls. ``whole`` says that all reports
    seem to be of whole requests: none of them fell while the requests grew.
    """

    model: str
    epoch: Count
    counted: Count
    reported: Count
    doubted: tuple[Count, Count] | None = None
    whole: bool = False

    @property
    def report_minus_count(self) -> int:
        """Tokens by which the report exceeds the count."""
        return self.reported - self.counted

    def spare_tokens(self, epoch: int) -> int:
        """Tokens by which the report is below the count, half of them where a new epoch began since.

        0 where it is so low that it is not believed: some providers report only uncached tokens.
        """
        if self.reported < (_LEAST_BELIEVED if self.whole else _LEAST) * self.counted:
            return 0
        return max(0, -self.report_minus_count) // (1 if self.epoch == epoch else 2)


class Reports(NamedTuple):
    """The basis of one conversation's estimates in an invocation: the last baseline and the ratio then, whether usage
    was reported in this invocation, and the uncounted tokens of `Calibration`."""

    baseline: UsageBaseline | None = None
    ratio: TokenRatio | None = None
    here: bool = False
    uncounted_tokens: Count = 0


RATIO = TypeAdapter(TokenRatio)
"""Reads and writes ratios in session state and the store."""


def learn_report(
    baseline: UsageBaseline | None, ratio: TokenRatio, *, model: str, epoch: int, counted: int, reported: int
) -> tuple[UsageBaseline, TokenRatio]:
    """The baseline and the ratio after a provider reported ``reported`` input tokens for a request of ``counted``."""
    fresh = UsageBaseline(model=model, epoch=epoch, counted=counted, reported=reported, whole=True)
    if baseline is None or baseline.model != model:
        return fresh, ratio
    # The request is larger and its report less than three quarters of the one before: only uncached tokens.
    is_partial = counted >= baseline.counted and reported < 0.75 * baseline.reported
    fresh = fresh._replace(whole=baseline.whole and not is_partial)
    slope = _USUAL * max(1.0, ratio.value)
    if not _follows(baseline.reported, baseline.counted, counted, reported, slope):
        confirmed = baseline.doubted and _follows(*baseline.doubted, counted, reported, _MOST, closeness=4)
        return (fresh if confirmed else baseline._replace(doubted=(reported, counted))), ratio
    if baseline.epoch == epoch:
        ratio = ratio.learned(counted - baseline.counted, reported - baseline.reported)
    return fresh, ratio


def calibration(
    baseline: UsageBaseline | None, ratio: TokenRatio, *, model: str, epoch: int, here: bool, uncounted_tokens: int
) -> Calibration | None:
    """The calibration that a pack of an epoch is estimated by; None where nothing is known.

    ``here`` says that the baseline's usage was reported in the running invocation; ``uncounted_tokens`` are those of
    `Calibration`.
    """
    if baseline is None and not ratio.samples:
        return None
    anchored = baseline is not None and baseline.model == model
    return Calibration(
        ratio=ratio.value,
        offset=round(baseline.reported - ratio.value * baseline.counted, 2) if baseline is not None else 0.0,
        samples=ratio.samples,
        anchored=anchored,
        report_minus_count=baseline.report_minus_count if baseline is not None and anchored and here else None,
        uncounted_tokens=uncounted_tokens,
        spare_tokens=baseline.spare_tokens(epoch) if baseline is not None and anchored else 0,
    )


def estimated(calibration: Calibration | None, counted: int) -> int:
    """Tokens that a provider is expected to report for ``counted`` tokens; at least a quarter of these, and as many
    where no usage is known."""
    if calibration is None:
        return counted
    return max(int(_LEAST_BELIEVED * counted), round(calibration.offset + calibration.ratio * counted))


def countable(calibration: Calibration, expected: float) -> int:
    """Counted tokens of which a provider is expected to report ``expected``: the inverse of `estimated`."""
    return int((expected - calibration.offset) / calibration.ratio)


def _follows(
    reported_before: int, counted_before: int, counted: int, reported: int, slope: float, closeness: int = 1
) -> bool:
    """Tells whether a report is expected after the one before, within half of it or 8,000 tokens, over ``closeness``.

    One that grew by more than ``slope`` times the counted growth and a tenth of the count is not: in a sum over calls
    the whole request comes on top of the report before.
    """
    growth = counted - counted_before
    is_sum = reported - reported_before > slope * max(0, growth) + 0.1 * counted
    expected = reported_before + growth
    return not is_sum and closeness * abs(reported - expected) <= max(8_000, 0.5 * abs(expected))
