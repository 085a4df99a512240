"""The input of a session's calls with their packs and without, by what the manifests recorded."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal

from aether_context.store import Manifest
from aether_context.usage import CallUsage
from aether_context.usage.calibration import estimated
from aether_context.usage.prices import prices_of


@dataclass(slots=True, kw_only=True)
class Reading:
    """The input of calls.

    Attributes:
        tokens: input tokens as the provider is expected to count them.
        shared: those of the prefix in common with the call before, the most that a provider's cache can serve.
        largest: input tokens of the largest call.
        over_window: number of calls whose input is larger than the window.
        cost_usd: list price of the input, of whose shared tokens a cache served as many as the provider reported for
            the packs, all of them where it reported nothing; None where no price is known.
    """

    calls: int = 0
    tokens: int = 0
    shared: int = 0
    largest: int = 0
    over_window: int = 0
    cost_usd: Decimal | None = None

    def add(self, manifest: Manifest, model: str, counted: int, counted_shared: int, served_share: float) -> None:
        """Adds one call's counted tokens, as the provider is expected to count them.

        Args:
            served_share: the share of the shared tokens that a cache serves, 0 to 1.
        """
        tokens = estimated(manifest.calibration, counted)
        shared = min(tokens, counted_shared * tokens // counted) if counted else 0
        self.calls += 1
        self.tokens += tokens
        self.shared += shared
        self.largest = max(self.largest, tokens)
        self.over_window += tokens > manifest.window
        prices = prices_of(model, manifest.last_event_time)
        if prices is not None:
            cost = prices.cost(input_tokens=tokens, cached_tokens=int(served_share * shared))
            self.cost_usd = cost if self.cost_usd is None else self.cost_usd + cost


class Comparison:
    """The same calls with their packs and without, each added in the order in which they were built.

    What it reads without is an estimate: the whole history, all declarations, and whole results in the place of
    extracts, without the tools that read evidence, their calls and what they gave. It is assumed that the model would
    have given the same answers and made the same other calls.

    Args:
        priced_as: the model whose prices are used; None uses that of each pack.
    """

    def __init__(self, manifests: Iterable[Manifest] = (), *, priced_as: str | None = None) -> None:
        self._priced_as = priced_as
        self.packed, self.unpacked = Reading(), Reading()
        self._whole: dict[tuple[str, ...], int] = {}
        for manifest in manifests:
            self.add(manifest)

    def add(self, manifest: Manifest, answer: CallUsage | None = None) -> None:
        """Adds one call, with its usage where that is on record."""
        model, prefix = self._priced_as or manifest.model, manifest.prefix.shared_tokens or 0
        served_share, shared = 1.0, manifest.expected(prefix)
        if shared > 0 and answer is not None and answer.cached_tokens is not None and not answer.input_estimated:
            served_share = max(0, min(answer.cached_tokens, shared)) / shared
        self.packed.add(manifest, model, manifest.counted_tokens, prefix, served_share)
        key, whole = (*manifest.session_key, manifest.agent, manifest.branch), manifest.whole_history_tokens
        whole_shared = 0 if manifest.whole_history_breaks else min(whole, self._whole.get(key, 0))
        self.unpacked.add(manifest, model, whole, whole_shared, served_share)
        self._whole[key] = whole

    @property
    def saved(self) -> str:
        """``$0.0270, 48% of the cost of the same calls without``; in tokens where no price is known."""
        with_packs, unpacked = self.packed, self.unpacked
        if with_packs.cost_usd is not None and unpacked.cost_usd:
            less = unpacked.cost_usd - with_packs.cost_usd
            return f"${less:,.4f}, {less / unpacked.cost_usd:.0%} of the cost of the same calls without"
        fewer = unpacked.tokens - with_packs.tokens
        return f"{fewer:,} tokens, {fewer / max(1, unpacked.tokens):.0%} of those of the same calls without"

    def headline(self, window: int) -> str:
        """The result in one sentence, for calls in a window of so many tokens."""
        with_packs, unpacked = self.packed, self.unpacked
        ratios = [_ratio(unpacked.tokens, with_packs.tokens, "fewer tokens", "more tokens")]
        if with_packs.cost_usd and unpacked.cost_usd:
            ratios.append(_ratio(unpacked.cost_usd, with_packs.cost_usd, "cheaper", "dearer"))
        text = f"{with_packs.calls} calls in a window of {window:,} tokens: {', '.join(ratios)}"
        over = unpacked.over_window - with_packs.over_window
        return f"{text}; {over} would not have fitted" if over > 0 else text


def _ratio(without: float | Decimal, with_packs: float | Decimal, less: str, more: str) -> str:
    ratio = float(without) / float(with_packs) if with_packs else 1.0
    return f"{ratio:.1f} × {less}" if ratio >= 1 else f"{1 / ratio:.2f} × {more}"
