"""Arrays that grow by rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class Rows:
    """An array that doubles its room when it is full, so that appending costs a constant amount on average.

    Args:
        values: the first rows, of shape ``(n, ...)``; they say type and width.
    """

    def __init__(self, values: Array) -> None:
        self._held = values
        self._length = len(values)

    def __len__(self) -> int:
        return self._length

    @property
    def values(self) -> Array:
        """The rows, a view that is valid until the next one is appended."""
        return self._held[: self._length]

    def reserve(self, length: int) -> None:
        """Makes room for so many rows in all."""
        if length > len(self._held):
            room = np.empty((length, *self._held.shape[1:]), dtype=self._held.dtype)
            room[: self._length] = self.values
            self._held = room

    def extend(self, rows: Array) -> None:
        wanted = self._length + len(rows)
        if wanted > len(self._held):
            self.reserve(max(wanted, 2 * len(self._held), 64))
        self._held[self._length : wanted] = rows
        self._length = wanted
