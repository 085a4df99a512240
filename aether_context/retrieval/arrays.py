"""Arrays that grow by rows, and arrays as bytes."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
Floats: TypeAlias = NDArray[np.float64]
Slots: TypeAlias = NDArray[np.int64]
"""Numbers of entries: 0, 1, … in the order they were added."""


class Rows:
    """An array that doubles its room when it is full, so that appending costs a constant amount on average.

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
            room = np.empty((max(length, 2 * len(self._room), 64), *self._room.shape[1:]), dtype=self._room.dtype)
            room[: self._length] = self.values
            self._room = room
        self._room[self._length : length] = rows
        self._length = length


def smallest(values: Array) -> Array:
    """Whole numbers from 0 in the smallest type that holds them."""
    return values.astype(np.min_scalar_type(values.max(initial=0)))


def packed(arrays: Mapping[str, Array]) -> bytes:
    """Arrays as bytes, the same for the same arrays: a line of JSON with their names, types and shapes, then each.

    Opening a hundred ``.npz`` files takes longer than reading what is in them.
    """
    head = [[name, values.dtype.str, list(values.shape)] for name, values in arrays.items()]
    return b"".join([json.dumps(head).encode(), b"\n", *(values.tobytes() for values in arrays.values())])


def unpacked(data: bytes) -> dict[str, Array]:
    """The arrays that were packed, to be read only.

    Raises:
        ValueError, TypeError: the bytes are others.
    """
    head, _, _ = data.partition(b"\n")
    offset = len(head) + 1
    found = {}
    for name, kind, shape in json.loads(head):
        count = math.prod(shape)
        found[name] = np.frombuffer(data, dtype=np.dtype(kind), count=count, offset=offset).reshape(shape)
        offset += found[name].nbytes
    return found
