"""The cache witness over recorded calls."""

from __future__ import annotations

from collections import Counter, defaultdict
from decimal import Decimal

from aether_context.canonical import JSON
from aether_context.evidence.record import READERS
from aether_context.pack import OBSERVE
from aether_context.store import Manifest
from aether_context.usage import CallUsage, dollars
from aether_context.usage.cache import Breaker, CachedCall, CacheLoss, cache_loss


class CacheWitness:
    """The losses of calls, each added in the order in which they were built.

    Attributes:
        calls, tokens: the number of losses and the tokens lost, by who broke the cache.
        costs: their cost in US dollars above cached input, as far as prices are known.
    """

    def __init__(self) -> None:
        self.calls, self.tokens = Counter[Breaker](), Counter[Breaker]()
        self.costs: defaultdict[Breaker, Decimal] = defaultdict(Decimal)
        self._before: dict[tuple[str, ...], CachedCall] = {}

    def add(self, manifest: Manifest, call: CallUsage | None) -> CacheLoss | None:
        """Adds one call; returns its loss. One without usage, or that was only observed, has none."""
        key = (*manifest.session_key, manifest.agent, manifest.branch)
        before = self._before.pop(key, None)
        if call is None or manifest.arm == OBSERVE:
            return None
        cached = CachedCall(manifest.model, manifest.last_event_time, manifest.tools.sent, call.input_tokens)
        self._before[key] = cached
        loss = cache_loss(before, cached, manifest.prefix, call, READERS) if before is not None else None
        if loss is not None:
            self.calls[loss.breaker] += 1
            self.tokens[loss.breaker] += loss.tokens
            self.costs[loss.breaker] += loss.cost_usd or 0
        return loss

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
