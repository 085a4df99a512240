"""The cache witness over recorded calls."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from decimal import Decimal
from typing import NamedTuple

from aether_context.canonical import JSON
from aether_context.evidence.record import READERS
from aether_context.pack import OBSERVE
from aether_context.store import Manifest
from aether_context.usage import CallUsage, dollars
from aether_context.usage.cache import Breaker, CachedCall, cache_loss


class PricedLoss(NamedTuple):
    """The loss of one call, with what it cost above cached input in US dollars; None where the price is unknown."""

    breaker: Breaker
    tokens: int
    cost_usd: Decimal | None

    def __str__(self) -> str:
        return f"{self.tokens:,} to {self.breaker}"

    def to_json(self) -> JSON:
        """The loss for JSON."""
        return {**self._asdict(), "cost_usd": None if self.cost_usd is None else float(self.cost_usd)}


class CacheWitness:
    """The losses of calls, each added in the order in which they were built; sums by who broke the cache.

    Attributes:
        costs: in US dollars above cached input, as far as prices are known.
    """

    def __init__(self) -> None:
        self.calls, self.tokens = Counter[Breaker](), Counter[Breaker]()
        self.costs: defaultdict[Breaker, Decimal] = defaultdict(Decimal)
        self._earlier: dict[tuple[str, ...], CachedCall] = {}

    def add(self, manifest: Manifest, call: CallUsage | None) -> PricedLoss | None:
        """Adds one call; returns its loss. One without usage, or that was only observed, has none."""
        key, time = (*manifest.session_key, manifest.agent, manifest.branch), manifest.last_event_time
        earlier = self._earlier.pop(key, None)
        if call is None or manifest.arm == OBSERVE:
            return None
        cached = self._earlier[key] = CachedCall(manifest.model, time, manifest.tools.sent, call)
        if earlier is None or (loss := cache_loss(earlier, cached, manifest.prefix, READERS)) is None:
            return None
        written, could = max(0, call.cache_write_tokens - loss.tokens), (earlier.usage.input_tokens, call.input_tokens)
        served_call = replace(call, cached_tokens=min(could), cache_write_tokens=written)
        cost, least_cost = call.cost_usd, served_call.priced(manifest.model, time).cost_usd
        priced = PricedLoss(*loss, None if cost is None or least_cost is None else cost - least_cost)
        self.calls[loss.breaker] += 1
        self.tokens[loss.breaker] += loss.tokens
        self.costs[loss.breaker] += priced.cost_usd or 0
        return priced

    @property
    def rows(self) -> list[tuple[str, int, int, str]]:
        """Who broke caches, the most tokens first: calls, tokens, and what these cost above cached input."""
        sums = self.tokens.most_common()
        return [(name, self.calls[name], tokens, dollars(self.costs[name])) for name, tokens in sums]

    def to_json(self) -> JSON:
        """The sums by who broke the cache."""
        return {
            name: {"calls": self.calls[name], "tokens": tokens, "cost_usd": float(self.costs[name])}
            for name, tokens in self.tokens.items()
        }
