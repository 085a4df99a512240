"""Numbers as people write them: sizes such as ``10GB``, ``500MiB`` or plain bytes, amounts and shares."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Any

import click

_UNITS = {
    "": 1,
    "b": 1,
    **{f"{letter}b": 1_000**power for power, letter in enumerate("kmgtp", 1)},
    **{f"{letter}ib": 1_024**power for power, letter in enumerate("kmgtp", 1)},
}
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,6})?)\s*([a-z]{0,3})", re.IGNORECASE)


class _Number(click.FloatRange):
    """A number in a range. What is no number ("nan") is in none, though it compares as false with both ends."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value!r} is not a number", param, ctx)
        return number


AMOUNT = _Number(min=0)
SHARE = _Number(0, 1)


def size(said: str) -> int:
    """The whole bytes of a size, rounded down. Units of thousands end in ``B``, those of 1,024 in ``iB``, in any case.

    Raises:
        click.BadParameter: it is not a size.
    """
    found = _SIZE.fullmatch(said.strip())
    if found is None:
        raise click.BadParameter(f"{said!r} is no size: give bytes, or a number with a unit, such as 10GB or 500MiB")
    number, unit = found.groups()
    if unit.lower() not in _UNITS:
        known = "B, kB, MB, GB, TB, PB, KiB, MiB, GiB, TiB, PiB"
        raise click.BadParameter(f"{said!r} has a unit {unit!r} that is not known: it is one of {known}")
    return int(Decimal(number) * _UNITS[unit.lower()])
