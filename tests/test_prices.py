"""Prices: those of the list, cached input priced as such, and unknown where nobody knows."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from genai_prices.data_snapshot import get_snapshot
from genai_prices.types import Usage

from aether_context.usage.prices import prices_of

TIME = 1_763_700_000.0


def test_costs_are_those_of_the_list_for_every_model_that_is_paid_by_tokens() -> None:
    chance = random.Random(7)
    compared = 0
    for provider in get_snapshot().providers:
        for model in provider.models:
            prices = prices_of(f"{provider.id}/{model.id}", TIME)
            if prices is None:
                continue
            read = chance.randint(1, 500_000)
            cached = chance.randint(0, read // 2)
            written = chance.randint(0, (read - cached) // 2)
            usage = Usage(
                input_tokens=read, cache_read_tokens=cached, cache_write_tokens=written, output_tokens=read // 9
            )
            moment = datetime.fromtimestamp(TIME, UTC)
            expected = model.calc_price(usage, provider, genai_request_timestamp=moment).total_price
            found = prices.cost(
                input_tokens=read, cached_tokens=cached, cache_write_tokens=written, output_tokens=read // 9
            )
            assert found == expected, f"{provider.id}/{model.id}"
            compared += 1
    assert compared > 1_000


@pytest.mark.parametrize(
    "name",
    [
        "gemini-2.5-flash",
        "models/gemini-2.5-flash",
        "projects/p/locations/l/publishers/google/models/gemini-2.5-flash",
        "gemini/gemini-2.5-flash",
    ],
)
def test_one_model_has_one_price_whatever_it_is_called(name: str) -> None:
    prices = prices_of(name, TIME)
    assert prices is not None
    assert prices.cost(input_tokens=1_000_000, output_tokens=0) == Decimal("0.3")
    assert prices.cost(input_tokens=1_000_000, cached_tokens=1_000_000, output_tokens=0) == Decimal("0.03")


def test_a_higher_tier_holds_for_the_whole_call() -> None:
    prices = prices_of("gemini-2.5-pro", TIME)
    assert prices is not None
    assert prices.cost(input_tokens=200_000, output_tokens=0) == Decimal("0.25")
    assert prices.cost(input_tokens=200_001, output_tokens=0) == Decimal("0.5000025")


def test_more_cached_tokens_than_input_cost_no_more_than_all_of_it() -> None:
    prices = prices_of("claude-sonnet-4-5", TIME)
    assert prices is not None
    whole = prices.cost(input_tokens=100, cached_tokens=100, output_tokens=0)
    assert prices.cost(input_tokens=100, cached_tokens=500, cache_write_tokens=50, output_tokens=0) == whole
