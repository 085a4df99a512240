"""Matrices of parameters, of which the default run and the slow one take a part."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest


def but_slow(values: Iterable[Any], *slow: Any, most: int | None = None) -> list[Any]:
    """The values of one parameter, those named after them slow, of these all but the first ``most`` soaks."""
    first = [value for value in values if value in slow][:most]

    def mark(value: Any) -> Any:
        if value not in slow:
            return ()
        return pytest.mark.slow if value in first else pytest.mark.soak

    return [pytest.param(value, marks=mark(value)) for value in values]


def spread(values: Sequence[Any], count: int) -> list[Any]:
    """So many of the values, evenly spread, the first among them."""
    count = min(count, len(values))
    return [values[at * len(values) // count] for at in range(count)]
