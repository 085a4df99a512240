"""The cache witness: the input that a provider's prefix cache had and did not serve, and by whose act."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Final, Literal, NamedTuple, TypeAlias

from aether_context.pack import Prefix, PrefixBreak
from aether_context.tokens.model_limits import cache_terms
from aether_context.usage import CallUsage

Breaker: TypeAlias = Literal["instruction", "tools", "callback", "cut", "pack", "time", "provider"]
"""Who broke it: the app's instruction or declarations, a callback that changed history, a cut, the pack's own message
or tools, a pause longer than the cache is kept, or the provider, which did not serve what was the same."""
MENDABLE: Final[frozenset[Breaker]] = frozenset({"instruction", "tools", "callback"})
"""The breakers that the app can mend."""
_BREAKERS: Mapping[PrefixBreak, Breaker] = {
    "system_changed": "instruction", "tools_changed": "tools", "history_rewritten": "callback", "cut": "cut",
}  # fmt: skip
_LEAST_TOKENS, _LEAST_SHARE = 256, 0.1
"""The smallest loss that is told: providers serve in steps of 128 tokens and count messages in their own way."""


class CachedCall(NamedTuple):
    """An answered call, as the cache has it: its model, time, names of declarations, and usage."""

    model: str
    time: float
    tools: tuple[str, ...]
    usage: CallUsage


class CacheLoss(NamedTuple):
    """Input tokens of one call that a cache had, from the call before, and did not serve."""

    breaker: Breaker
    tokens: int


def cache_loss(earlier: CachedCall, call: CachedCall, prefix: Prefix, readers: Set[str]) -> CacheLoss | None:
    """The loss of a call; None where there is none, or it is too small to tell.

    Where the provider does not report what its cache served, that is taken to be all that both requests share.

    Args:
        earlier: the call before, of the same agent.
        readers: names of the tools that the plugin declares of its own.
    """
    (least_cached, seconds), usage = cache_terms(call.model), call.usage
    cached = min(earlier.usage.input_tokens, usage.input_tokens)
    shared = min(usage.shared_tokens, cached)
    served_tokens = shared if usage.cached_tokens is None else usage.cached_tokens
    tokens, tolerance = cached - served_tokens, max(_LEAST_TOKENS, int(_LEAST_SHARE * cached))
    if earlier.model != call.model or prefix.shared_tokens is None or cached < least_cached or tokens < tolerance:
        return None
    breaker: Breaker = _BREAKERS.get(prefix.broken_by, "pack") if prefix.broken_by else "provider"
    new_tools = {*earlier.tools} ^ {*call.tools}
    if breaker == "tools" and new_tools and new_tools <= readers:
        breaker = "pack"
    if shared - served_tokens >= tolerance and shared >= least_cached and call.time - earlier.time > seconds:
        breaker = "time"
    return CacheLoss(breaker, tokens)
