"""Sizes as people write them: ``10GB``, ``500MiB``, ``1.5 TB``, or plain bytes."""

from __future__ import annotations

import re
from decimal import Decimal

import click

_UNITS = {
    "": 1,
    "b": 1,
    **{f"{letter}b": 1_000**power for power, letter in enumerate("kmgtp", 1)},
    **{f"{letter}ib": 1_024**power for power, letter in enumerate("kmgtp", 1)},
}
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,6})?)\s*([a-z]{0,3})", re.IGNORECASE)


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
