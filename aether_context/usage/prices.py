"""Prices of tokens, from the list in the `genai-prices` package, without network.

What has no price by tokens alone in it costs an unknown amount, not zero. Rates are those for text, not for media.
"""

from __future__ import annotations

import datetime
import functools
from decimal import Decimal
from typing import TYPE_CHECKING, NamedTuple

from aether_context.policy import PackPolicy
from aether_context.tokens.model_limits import listed_models, model_window

if TYPE_CHECKING:
    from genai_prices.types import ModelPrice


WORKING_TOKENS = 128_000
"""The window of a model that nobody set one for, at most. Computed over 2,000 turns, a window of 1,048,576 tokens costs
47 times as much a call as one of 8,000."""


@functools.lru_cache(maxsize=1024)
def working_window(model: str) -> int:
    """The window in tokens of a model that nobody set one for: no more than it takes, nor than is charged at its first
    price."""
    latest = datetime.datetime(9999, 1, 1, tzinfo=datetime.UTC)
    prices = (info.get_prices(latest).input_mtok for info in listed_models(model)[:1])
    tiers = [int(tier.start) for price in prices for tier in getattr(price, "tiers", ())]
    return min([WORKING_TOKENS, model_window(model), *tiers])


def window_under(policy: PackPolicy, model: str, recorded: int) -> int:
    """The window of a recorded call under a policy: the ``recorded`` one unless the policy names one for the model."""
    return model_window(model) if policy.takes_all(model) else policy.window_of(model) or recorded


class Prices(NamedTuple):
    rates: ModelPrice

    def cost(
        self, *, input_tokens: int, output_tokens: int = 0, cached_tokens: int = 0, cache_write_tokens: int = 0
    ) -> Decimal:
        """US dollars for one call; the input includes cached and written tokens, the output thoughts."""
        cached = min(cached_tokens, input_tokens)
        counts = (input_tokens, cached, min(cache_write_tokens, input_tokens - cached), output_tokens)
        if any(hasattr(rate, "tiers") for rate in vars(self.rates).values()):
            return _list_price(self.rates, *counts)
        # Without tiers a price is linear, and the package takes longer for it than all else of `usage` for a call.
        if id(self.rates) not in _PRICES_OF_MILLION:
            whole = _list_price(self.rates, _MILLION)
            kinds = ((_MILLION, _MILLION), (_MILLION, 0, _MILLION), (_MILLION, 0, 0, _MILLION))
            added = (_list_price(self.rates, *kind) - whole for kind in kinds)
            _PRICES_OF_MILLION[id(self.rates)] = self.rates, (whole, *added)
        _, prices = _PRICES_OF_MILLION[id(self.rates)]
        return sum((price * count for price, count in zip(prices, counts, strict=True)), Decimal()) / _MILLION


_MILLION = 1_000_000
_PRICES_OF_MILLION: dict[int, tuple[ModelPrice, tuple[Decimal, ...]]] = {}
"""By the identity of rates, which are kept beside it: the price of a million input tokens, and what is added where
they are cached, where they are written to the cache, and for a million output tokens."""


def _list_price(rates: ModelPrice, whole: int, cached: int = 0, written: int = 0, output: int = 0) -> Decimal:
    from genai_prices import Usage

    tokens = {"input_tokens": whole, "cache_read_tokens": cached, "cache_write_tokens": written}
    return rates.calc_price(Usage(**tokens, output_tokens=output))["total_price"]


def prices_of(model: str, time: float = 0.0) -> Prices | None:
    """The rates of a model, its maker's where its name has no provider, at a time in seconds since 1970 UTC."""
    listed = listed_models(model, any_provider=False)
    moment = datetime.datetime.fromtimestamp(min(max(time, 0), 2e11), datetime.UTC)
    rates = listed[0].get_prices(moment) if listed else None
    if rates is None or rates.input_mtok is None or rates.output_mtok is None or rates.requests_kcount is not None:
        return None
    return Prices(rates)


@functools.lru_cache(maxsize=1024)
def cached_share(model: str, day: int) -> float | None:
    """The price of cached input as a share of that of other input, on a day since 1970 UTC; None where unknown."""
    prices = prices_of(model, 86_400 * day)
    if prices is None or not prices.rates.cache_read_mtok or not (whole := prices.cost(input_tokens=1)):
        return None
    return min(1.0, float(prices.cost(input_tokens=1, cached_tokens=1) / whole))
