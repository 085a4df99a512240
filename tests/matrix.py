"""Matrices of parameters, of which the default run takes a part."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import pytest


def part_slow(one_in: int, *axes: Iterable[Any]) -> list[Any]:
    """Each combination of one value an axis, all but every ``one_in``-th slow.

    Of three axes, of which one has ``one_in`` values or more, each pair of values of the other two is in one that is
    not slow; with ``one_in`` 2 each pair of values of any two.
    """
    placed = [list(enumerate(axis)) for axis in axes]
    return [
        pytest.param(
            *(value for _, value in combination),
            marks=pytest.mark.slow if sum(place for place, _ in combination) % one_in else (),
        )
        for combination in itertools.product(*placed)
    ]


def but_slow(values: Iterable[Any], *slow: Any) -> list[Any]:
    """The values of one parameter, those named after them slow."""
    return [pytest.param(value, marks=pytest.mark.slow if value in slow else ()) for value in values]
