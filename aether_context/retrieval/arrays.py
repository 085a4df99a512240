"""Arrays that grow by rows."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
Floats: TypeAlias = NDArray[np.float64]
Slots: TypeAlias = NDArray[np.int64]
"""Numbers of entries: 0, 1, … in the order they were added."""


class Rows:
    """An array that takes a quarter more room when it is full, so that appending costs a constant amount on average.

    Args:
        values: the first rows, of shape ``(n, ...)``; they say type and width.
    """

    def __init__(self, values: Array) -> None:
        self._room = values
        self._length = len(values)

    def __len__(self) -> int:
        return self._length

    @property
    def values(self) -> Array:
        """The rows, a view that is valid until the next one is appended."""
        return self._room[: self._length]

    def extend(self, rows: Array) -> None:
        length = self._length + len(rows)
        if length > len(self._room):
            room = np.empty((max(length, len(self._room) * 5 // 4, 64), *self._room.shape[1:]), dtype=self._room.dtype)
            room[: self._length] = self.values
            self._room = room
        self._room[self._length : length] = rows
        self._length = length
