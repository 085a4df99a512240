"""Prices of tokens, from the list in the `genai-prices` package, without network.

A model that is not in the list, or that is not priced by tokens alone, has no price here: its cost is unknown, not
zero. Rates are those for text; some providers charge more for audio and images.
"""

from __future__ import annotations

import datetime
import functools
from decimal import Decimal
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from aether_context.tokens.model_limits import listed_models

if TYPE_CHECKING:
    from genai_prices.types import TieredPrices

    Rate: TypeAlias = Decimal | TieredPrices


class Prices(NamedTuple):
    """One model's rates at one moment, in US dollars per million tokens. Some have tiers by the size of the input.

    Attributes:
        cached: for input that the provider's cache served; None where it costs as much as other input.
        cache_write: for input that the provider wrote into its cache; None as for ``cached``.
    """

    input: Rate
    output: Rate
    cached: Rate | None = None
    cache_write: Rate | None = None

    def cost(
        self, *, input_tokens: int, output_tokens: int = 0, cached_tokens: int = 0, cache_write_tokens: int = 0
    ) -> Decimal:
        """US dollars for one call.

        Args:
            input_tokens: the whole input, tokens read from and written to the cache included.
            output_tokens: the whole output, thoughts included.
        """
        cached = min(cached_tokens, input_tokens)
        cache_written = min(cache_write_tokens, input_tokens - cached)
        parts = (
            (self.input, input_tokens - cached - cache_written),
            (self.input if self.cached is None else self.cached, cached),
            (self.input if self.cache_write is None else self.cache_write, cache_written),
            (self.output, output_tokens),
        )
        return sum((_rate(rate, input_tokens) * tokens for rate, tokens in parts), Decimal(0)) / 1_000_000


def _rate(rate: Rate, input_tokens: int) -> Decimal:
    """The rate of the highest tier whose start the input exceeds."""
    if isinstance(rate, Decimal):
        return rate
    return next((tier.price for tier in reversed(rate.tiers) if input_tokens > tier.start), rate.base)


def prices_of(model: str, time: float = 0.0) -> Prices | None:
    """The rates of a model, those of its maker where its name has no provider; None where the list has none.

    Args:
        time: time of the call, seconds since 1970 UTC; some rates depend on the day or the hour.
    """
    return _prices(model, int(time // 60))


@functools.lru_cache(maxsize=1024)
def _prices(model: str, minute: int) -> Prices | None:
    info = next(listed_models(model, any_provider=False), None)
    if info is None:
        return None
    try:
        moment = datetime.datetime.fromtimestamp(minute * 60, datetime.UTC)
    except (OverflowError, OSError, ValueError):
        moment = datetime.datetime.fromtimestamp(0, datetime.UTC)
    rates = info.get_prices(moment)
    if rates.input_mtok is None or rates.output_mtok is None or rates.requests_kcount is not None:
        return None
    return Prices(
        input=rates.input_mtok,
        output=rates.output_mtok,
        cached=rates.cache_read_mtok,
        cache_write=rates.cache_write_mtok,
    )


def cached_share(model: str, time: float = 0.0) -> float | None:
    """The price of cached input as a share of that of other input; None where unknown.

    Args:
        time: seconds since 1970 UTC; the price is that at the beginning of the day.
    """
    prices = prices_of(model, time // 86_400 * 86_400)
    if prices is None or prices.cached is None:
        return None
    cached, uncached = _rate(prices.cached, 0), _rate(prices.input, 0)
    return min(1.0, float(cached / uncached)) if cached > 0 and uncached > 0 else None
