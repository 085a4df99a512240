"""Matrices of parameters, of which the default run takes half."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import pytest


def half_slow(*axes: Iterable[Any]) -> list[Any]:
    """Each combination of one value an axis, every other one slow; each pair of values is in one that is not.

    Needs two values or more on each of three or more axes; of two axes, each value has a combination that is not slow.
    """
    placed = [list(enumerate(axis)) for axis in axes]
    return [
        pytest.param(
            *(value for _, value in combination),
            marks=pytest.mark.slow if sum(place for place, _ in combination) % 2 else (),
        )
        for combination in itertools.product(*placed)
    ]
