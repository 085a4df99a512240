"""From counted tokens to the provider's: an anchor on the last reported usage, and ratios learned from its growth.

A provider reports one number a call, the tokens of the whole request. What it counts beyond the count here (its own
framing, instructions that a host adds later) is the anchor's offset; how counted tokens of each kind of text become
reported ones is learned from growth alone, request against request, since totals hold what was never seen here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from aether_context.canonical import JSON
from aether_context.pack import Calibration, Content, Mix

_KINDS = 5
_PRIOR = (1.0, 1.0, 1.0, 0.0, 0.0)
_LEAST = (0.6, 0.6, 0.6, -60.0, -60.0)
_MOST = (1.7, 1.7, 1.7, 200.0, 200.0)
_VARIANCE = (0.02, 0.02, 0.02, 900.0, 200.0)
"""How far ratios and tokens a call or message are expected to lie from the prior: about 14%, 30 and 14 tokens."""

_FORGETTING = 0.995
_NOISE_TOKENS = 30.0
_NOISE_SHARE = 0.1
_CLIP_OVER, _CLIP_UNDER = 2.0, 4.0
"""Standard deviations at which a surprise stops to count in full; estimates that were too low count for longer."""

_DRIFT_MEMORY = 0.8
_DRIFT = 1.0
"""Surprises of this many standard deviations on average, all to one side, begin the learning anew from where it is."""

_LEAST_BELIEVED = 0.25
"""The share of the count under which a report is not one of the whole request; digits alone are counted four times as
many as a provider may report."""

_FALLEN = 0.75
"""The share of the report before under which the report of a larger request is one of its uncached tokens."""

_LARGEST_GROWTH = 60_000
_JUMP_SHARE = 0.5
_JUMP_TOKENS = 8_000


def mix_of(contents: Iterable[tuple[Content, int]], fixed: int = 0) -> Mix:
    """What contents with these tokens are made of.

    Args:
        fixed: tokens of the system instruction and the declarations.
    """
    said = called = answered = calls = messages = 0
    for content, tokens in contents:
        if content.responses:
            answered += tokens
        elif content.calls:
            called += tokens
            calls += len(content.calls)
        else:
            said += tokens
            messages += 1
    return Mix(fixed=fixed, said=said, called=called, answered=answered, calls=calls, messages=messages)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratios:
    """Weights of a `Mix`, learned by recursive least squares that forgets slowly, bounds each surprise and notes drift.

    ``weights`` are reported tokens per counted one of what is said, called and answered, then tokens per call and per
    message on top. ``spread`` is the upper triangle of their covariance, row by row. ``drift`` is the running mean of
    surprises in standard deviations. ``samples`` counts what was learned from.
    """

    weights: tuple[float, ...] = _PRIOR
    spread: tuple[float, ...] = tuple(
        _VARIANCE[row] if row == column else 0.0 for row in range(_KINDS) for column in range(row, _KINDS)
    )
    drift: float = 0.0
    samples: int = 0

    def learned(self, growth: Mix, reported: int) -> Ratios:
        """The ratios after a request grew by ``growth`` and its reported tokens by ``reported``.

        Growth that shrinks anything, changes the fixed part or is beyond 60,000 tokens teaches nothing.
        """
        x = _features(growth)
        if growth.fixed or min(x) < 0 or not any(x) or not 0 <= reported <= _LARGEST_GROWTH:
            return self
        expected = sum(weight * value for weight, value in zip(self.weights, x, strict=True))
        surprise = reported - expected
        noise = _NOISE_TOKENS + _NOISE_SHARE * max(0.0, expected)
        drift = _DRIFT_MEMORY * self.drift + (1 - _DRIFT_MEMORY) * max(-3.0, min(3.0, surprise / noise))
        drifted = abs(drift) > _DRIFT
        covariance = _square(Ratios().spread if drifted else self.spread)
        clip = (_CLIP_UNDER if surprise > 0 else _CLIP_OVER) * noise
        trust = min(1.0, clip / abs(surprise)) if surprise else 1.0
        seen = [sum(row[at] * x[at] for at in range(_KINDS)) for row in covariance]
        scale = sum(x[at] * seen[at] for at in range(_KINDS)) + noise * noise / trust
        gain = [value / scale for value in seen]
        weights = tuple(
            min(most, max(least, weight + step * surprise))
            for weight, step, least, most in zip(self.weights, gain, _LEAST, _MOST, strict=True)
        )
        spread = tuple(
            _bounded((covariance[row][column] - gain[row] * seen[column]) / _FORGETTING, row, column)
            for row in range(_KINDS)
            for column in range(row, _KINDS)
        )
        return Ratios(
            weights=_rounded(weights),
            spread=_rounded(spread),
            drift=0.0 if drifted else round(drift, 4),
            samples=self.samples + 1,
        )

    def estimate(self, mix: Mix) -> float:
        """Tokens that a provider would report for this, the offset aside; the fixed part counts as said."""
        return weigh(self.weights, mix)

    def moved(self, before: Ratios | None) -> bool:
        """Whether an estimate would now differ by a percent, or two tokens a call, from what it was."""
        old = before.weights if before is not None else _PRIOR
        steps = (0.01, 0.01, 0.01, 2.0, 2.0)
        return any(abs(new - held) > step for new, held, step in zip(self.weights, old, steps, strict=True))

    def to_json(self) -> JSON:
        return {
            "weights": list(self.weights),
            "spread": list(self.spread),
            "drift": self.drift,
            "samples": self.samples,
        }

    @classmethod
    def from_json(cls, value: JSON) -> Ratios | None:
        """What `to_json` gave, None for anything else: state and store are not trusted."""
        if not isinstance(value, Mapping):
            return None
        weights, held = _numbers(value.get("weights"), _KINDS), _numbers(value.get("spread"), len(cls().spread))
        samples, drift = value.get("samples"), _numbers([value.get("drift")], 1)
        if weights is None or held is None or drift is None or not isinstance(samples, int):
            return None
        kept = [min(most, max(least, one)) for one, least, most in zip(weights, _LEAST, _MOST, strict=True)]
        diagonal = [held[at] for at in _DIAGONAL]
        if min(diagonal) <= 0 or any(one > most for one, most in zip(diagonal, _VARIANCE, strict=True)):
            return cls(weights=_rounded(kept), samples=max(0, samples))
        return cls(
            weights=_rounded(kept),
            spread=_rounded(held),
            drift=max(-_DRIFT, min(_DRIFT, drift[0])),
            samples=max(0, samples),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor:
    """A usage that a provider reported for a request that was sent here.

    ``epoch`` is the number of the request's epoch; growth is learned from within one only. ``doubted`` is a report so
    far off that it is believed only when the next one confirms it: a sum over several calls, or of another request.
    ``whole`` says that every report since the first one was of a whole request, as far as can be told: none of them
    fell while requests grew.
    """

    model: str
    epoch: int
    mix: Mix
    reported: int
    doubted: tuple[int, Mix] | None = None
    whole: bool = False

    @property
    def beyond(self) -> int:
        """Tokens by which the report passed the count."""
        return self.reported - self.mix.tokens

    def overcounted(self, epoch: int) -> int:
        """Tokens by which the report fell short of the count, half of them where an epoch began since.

        0 where it fell so short that it is not believed: some report only what their cache did not hold.
        """
        if self.reported < (_LEAST_BELIEVED if self.whole else _LEAST[0]) * self.mix.tokens:
            return 0
        return max(0, -self.beyond) // (1 if self.epoch == epoch else 2)

    def to_json(self) -> JSON:
        doubted = {"doubted": [self.doubted[0], list(self.doubted[1])]} if self.doubted is not None else {}
        return {
            "model": self.model,
            "epoch": self.epoch,
            "mix": list(self.mix),
            "reported": self.reported,
            **doubted,
            **({"whole": True} if self.whole else {}),
        }

    @classmethod
    def from_json(cls, value: JSON) -> Anchor | None:
        """What `to_json` gave, None for anything else."""
        if not isinstance(value, Mapping):
            return None
        model, epoch, reported = value.get("model"), value.get("epoch"), value.get("reported")
        mix, doubted = _mix(value.get("mix")), value.get("doubted")
        if mix is None or not isinstance(model, str) or type(epoch) is not int or type(reported) is not int:
            return None
        held = None
        if isinstance(doubted, (list, tuple)) and len(doubted) == 2 and type(doubted[0]) is int:
            of = _mix(doubted[1])
            held = (doubted[0], of) if of is not None else None
        whole = value.get("whole") is True
        return cls(model=model, epoch=epoch, mix=mix, reported=reported, doubted=held, whole=whole)


def report(
    anchor: Anchor | None, ratios: Ratios, *, model: str, epoch: int, mix: Mix, reported: int, learns: bool = True
) -> tuple[Anchor, Ratios]:
    """The anchor and the ratios after a provider reported ``reported`` input tokens for a request made of ``mix``."""
    fresh = Anchor(model=model, epoch=epoch, mix=mix, reported=reported, whole=True)
    if anchor is None or anchor.model != model:
        return fresh, ratios
    fell = mix.tokens >= anchor.mix.tokens and reported < _FALLEN * anchor.reported
    fresh = replace(fresh, whole=anchor.whole and not fell)
    expected = anchor.reported + mix.tokens - anchor.mix.tokens
    if abs(reported - expected) > max(_JUMP_TOKENS, _JUMP_SHARE * abs(expected)):
        confirmed = anchor.doubted is not None and _confirms(anchor.doubted, mix, reported)
        return (fresh if confirmed else replace(anchor, doubted=(reported, mix))), ratios
    if learns and anchor.epoch == epoch:
        ratios = ratios.learned(mix.minus(anchor.mix), reported - anchor.reported)
    return fresh, ratios


def calibration(
    anchor: Anchor | None, ratios: Ratios, *, model: str, epoch: int, here: bool, unseen: int
) -> Calibration | None:
    """What a pack is estimated by; None where nothing is known.

    Args:
        epoch: the number of the epoch that the request belongs to, or begins after.
        here: whether the anchor's usage was reported in the running invocation.
        unseen: see `Calibration`.
    """
    if anchor is None and not ratios.samples:
        return None
    anchored = anchor is not None and anchor.model == model
    return Calibration(
        weights=ratios.weights,
        offset=round(anchor.reported - ratios.estimate(anchor.mix), 2) if anchor is not None else 0.0,
        samples=ratios.samples,
        anchored=anchored,
        beyond=anchor.beyond if anchor is not None and anchored and here else None,
        unseen=unseen,
        overcounted=anchor.overcounted(epoch) if anchor is not None and anchored else 0,
    )


def estimated(calibration: Calibration, mix: Mix) -> int:
    """Tokens that a provider would report for a request made of ``mix``; never under a quarter of the count."""
    counted = mix.tokens
    return max(int(_LEAST_BELIEVED * counted), round(calibration.offset + weigh(calibration.weights, mix)))


def weigh(weights: Sequence[float], mix: Mix) -> float:
    return weights[0] * mix.fixed + sum(weight * value for weight, value in zip(weights, _features(mix), strict=True))


def _features(mix: Mix) -> tuple[int, ...]:
    return (mix.said, mix.called, mix.answered, mix.calls, mix.messages)


def _confirms(doubted: tuple[int, Mix], mix: Mix, reported: int) -> bool:
    """Whether a report follows from the doubted one before it."""
    expected = doubted[0] + mix.tokens - doubted[1].tokens
    return abs(reported - expected) <= max(_JUMP_TOKENS / 4, _JUMP_SHARE / 4 * abs(expected))


_DIAGONAL = tuple(sum(_KINDS - row for row in range(at)) for at in range(_KINDS))


def _square(triangle: Sequence[float]) -> list[list[float]]:
    return [
        [triangle[_DIAGONAL[min(row, column)] + abs(row - column)] for column in range(_KINDS)] for row in range(_KINDS)
    ]


def _bounded(value: float, row: int, column: int) -> float:
    """A variance that forgetting lets grow no further than it began."""
    if row != column:
        return value
    return min(_VARIANCE[row], max(value, 1e-9))


def _rounded(values: Iterable[float]) -> tuple[float, ...]:
    """Seven significant digits: small in a session's state, and the same after it was read back."""
    return tuple(float(f"{value:.7g}") for value in values)


def _mix(value: object) -> Mix | None:
    found = _numbers(value, len(Mix()))
    return Mix(*map(int, found)) if found is not None and min(found) >= 0 else None


def _numbers(value: object, count: int) -> list[float] | None:
    """So many finite numbers, None for anything else."""
    if not isinstance(value, (list, tuple)) or len(value) != count:
        return None
    if any(isinstance(one, bool) or not isinstance(one, (int, float)) or not abs(one) < 1e12 for one in value):
        return None
    return [float(one) for one in value]
