"""Matrices of parameters, of which the default run and the slow one take a part."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import pytest


def part_slow(one_in: int, *axes: Iterable[Any]) -> list[Any]:
    """Each combination of one value an axis, all but every ``one_in``-th slow; of three axes every second is a soak.

    Of three axes, of which one has ``one_in`` values or more, each pair of values of the other two is in one that is
    not slow; with ``one_in`` 2 each pair of values of any two. With an even ``one_in`` no pair is in soaks alone.
    """
    placed = [list(enumerate(axis)) for axis in axes]

    def mark(at: int) -> Any:
        if at % one_in == 0:
            return ()
        return pytest.mark.soak if at % 2 and len(axes) > 2 and one_in > 2 else pytest.mark.slow

    return [
        pytest.param(*(value for _, value in combination), marks=mark(sum(place for place, _ in combination)))
        for combination in itertools.product(*placed)
    ]


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
