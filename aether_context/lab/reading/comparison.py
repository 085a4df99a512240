"""What a session's calls read and cost with their packs, and what they would have without."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from aether_context.pack import OBSERVE
from aether_context.store import Manifest
from aether_context.usage import CallUsage, Totals, dollars
from aether_context.usage.calibration import estimated


@dataclass(slots=True, kw_only=True)
class Reading:
    """Calls on one side of a comparison.

    Attributes:
        totals: what they used and cost.
        shared: input tokens of the prefix in common with the call before, the most that a provider's cache can serve.
        largest: input tokens of the largest call.
        over_window: number of calls whose input is larger than the window.
    """

    totals: Totals = field(default_factory=Totals)
    shared: int = 0
    largest: int = 0
    over_window: int = 0

    def add(self, call: CallUsage, window: int) -> None:
        """Adds one call."""
        self.totals = self.totals.plus(Totals.of(call))
        self.shared += min(call.shared_tokens, call.input_tokens)
        self.largest = max(self.largest, call.input_tokens)
        self.over_window += call.input_tokens > window


class Comparison:
    """The same calls with their packs and without, each added in the order in which they were built.

    What was sent is as reported, or estimated where nothing was. The other side is estimated on the same footing: with
    the same answers, and of the shared beginnings as much from a cache. Without packs a call reads the whole history,
    all declarations, and whole results in the place of extracts, without the tools that read evidence, their calls and
    what they gave. It is assumed that the model would have made the same other calls.

    Args:
        calls: manifests with the usage of their calls, None where none is on record.

    Attributes:
        observed: whether requests were sent without their packs, so that those are what is estimated.
    """

    def __init__(self, calls: Iterable[tuple[Manifest, CallUsage | None]] = ()) -> None:
        self.packed, self.unpacked, self.observed = Reading(), Reading(), False
        self._whole: dict[tuple[str, ...], int] = {}
        for manifest, call in calls:
            self.add(manifest, call)

    def add(self, manifest: Manifest, call: CallUsage | None) -> None:
        """Adds one call; one without usage counts on neither side."""
        key, whole = (*manifest.session_key, manifest.agent, manifest.branch), manifest.whole_history_tokens
        whole_shared = 0 if manifest.whole_history_breaks else min(whole, self._whole.get(key, 0))
        self._whole[key] = whole
        if call is None:
            return
        tokens = estimated(manifest.calibration, whole)
        pack_side = self.packed, manifest.request_tokens, manifest.expected(manifest.prefix.shared_tokens or 0)
        whole_side = self.unpacked, tokens, whole_shared * tokens // whole if whole else 0
        self.observed = self.observed or manifest.arm == OBSERVE
        sides = (whole_side, pack_side) if manifest.arm == OBSERVE else (pack_side, whole_side)
        (sent_side, sent_tokens, _), (other_side, other_tokens, shared) = sides
        other = call.instead(call.input_tokens * other_tokens // max(1, sent_tokens), shared)
        sent_side.add(call, manifest.window)
        other_side.add(other.priced(manifest.model, manifest.last_event_time), manifest.window)

    @property
    def saved(self) -> str:
        """``$0.0270, 48% of the cost of the same calls without``; in tokens where no price is known."""
        with_packs, unpacked = self.packed.totals, self.unpacked.totals
        if unpacked.cost_usd:
            less = unpacked.cost_usd - with_packs.cost_usd
            return f"{dollars(less)}, {less / unpacked.cost_usd:.0%} of the cost of the same calls without"
        fewer = unpacked.input_tokens - with_packs.input_tokens
        return f"{fewer:,} tokens, {fewer / max(1, unpacked.input_tokens):.0%} of those of the same calls without"

    def headline(self, window: int) -> str:
        """The result in one sentence, for calls in a window of so many tokens."""
        with_packs, unpacked = self.packed.totals, self.unpacked.totals
        ratios = [_ratio(unpacked.input_tokens, with_packs.input_tokens, "fewer tokens", "more tokens")]
        if with_packs.cost_usd and unpacked.cost_usd:
            ratios.append(_ratio(float(unpacked.cost_usd), float(with_packs.cost_usd), "cheaper", "dearer"))
        text = f"{with_packs.calls} calls in a window of {window:,} tokens: {', '.join(ratios)}"
        over = self.unpacked.over_window - self.packed.over_window
        return f"{text}; {over} would not have fitted" if over > 0 else text


def _ratio(without: float, with_packs: float, less: str, more: str) -> str:
    ratio = without / with_packs if with_packs else 1.0
    return f"{ratio:.1f} × {less}" if ratio >= 1 else f"{1 / ratio:.2f} × {more}"
