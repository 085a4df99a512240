"""Tables that forget what was longest unused."""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeVar

_K = TypeVar("_K")
_V = TypeVar("_V")


def keep(table: OrderedDict[_K, _V], key: _K, value: _V, most: int) -> _V:
    """Puts a value at the end of a table, and takes the first one out where it holds more than ``most``."""
    table[key] = value
    table.move_to_end(key)
    if len(table) > most:
        table.popitem(last=False)
    return value
