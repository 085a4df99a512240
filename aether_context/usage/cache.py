"""The cache witness: the input that a provider's prefix cache had and did not serve, and by whose act."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace
from decimal import Decimal
from typing import Final, Literal, NamedTuple, TypeAlias

from aether_context.canonical import JSON
from aether_context.pack import Prefix, PrefixBreak
from aether_context.tokens.model_limits import cache_terms
from aether_context.usage import CallUsage

Breaker: TypeAlias = Literal["instruction", "tools", "callback", "cut", "pack", "time", "provider"]
"""Who broke it: the app's instruction or declarations, a callback that changed history, a cut, the pack's own message
or tools, a pause longer than the cache is kept, or the provider, which did not serve what was the same."""
MENDABLE: Final[frozenset[Breaker]] = frozenset({"instruction", "tools", "callback"})
"""The breakers that the app can mend."""
_BREAKERS: Mapping[PrefixBreak, Breaker] = {
    "system_changed": "instruction",
    "tools_changed": "tools",
    "history_rewritten": "callback",
    "cut": "cut",
}
_LEAST_TOKENS, _LEAST_SHARE = 256, 0.1
"""The smallest loss that is told: providers serve in steps of 128 tokens and count messages in their own way."""


class CachedCall(NamedTuple):
    """An answered call, as the cache has it: its model, time, names of declarations, and input tokens."""

    model: str
    time: float
    tools: tuple[str, ...]
    input_tokens: int


class CacheLoss(NamedTuple):
    """The input of one call that a cache had, from the call before, and did not serve.

    ``cost_usd`` is what it cost above cached input; None where the price is unknown.
    """

    breaker: Breaker
    tokens: int
    cost_usd: Decimal | None = None

    def __str__(self) -> str:
        return f"{self.tokens:,} to {self.breaker}"

    def to_json(self) -> dict[str, JSON]:
        """The loss for JSON."""
        return {**self._asdict(), "cost_usd": None if self.cost_usd is None else float(self.cost_usd)}


def cache_loss(
    before: CachedCall, call: CachedCall, prefix: Prefix, usage: CallUsage, readers: Set[str]
) -> CacheLoss | None:
    """The loss of a call; None where there is none, or it is too small to tell.

    Where the provider does not report what its cache served, that is taken to be all that both requests share.

    Args:
        before: the call before, of the same agent.
        usage: the call's, with its price.
        readers: names of the tools that the plugin declares of its own.
    """
    least_tokens, seconds = cache_terms(call.model)
    could = min(before.input_tokens, usage.input_tokens)
    shared = min(usage.shared_tokens, could)
    served = shared if usage.cached_tokens is None else usage.cached_tokens
    lost, least = could - served, max(_LEAST_TOKENS, int(_LEAST_SHARE * could))
    if before.model != call.model or prefix.shared_tokens is None or could < least_tokens or lost < least:
        return None
    breaker: Breaker = _BREAKERS.get(prefix.broken_by, "pack") if prefix.broken_by else "provider"
    if breaker == "tools" and (changed := {*before.tools} ^ {*call.tools}) and changed <= readers:
        breaker = "pack"
    if shared - served >= least and shared >= least_tokens and call.time - before.time > seconds:
        breaker = "time"
    written = max(0, usage.cache_write_tokens - lost)
    whole = replace(usage, cached_tokens=served + lost, cache_write_tokens=written).priced(call.model, call.time)
    if usage.cost_usd is None or whole.cost_usd is None:
        return CacheLoss(breaker, lost)
    return CacheLoss(breaker, lost, usage.cost_usd - whole.cost_usd)
