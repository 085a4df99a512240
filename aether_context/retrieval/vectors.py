"""Vectors in one byte a dimension, and products of them that every machine gives alike.

Each row is scaled to whole numbers from -127 to 127. Sums of products of those stay below 2**24, so that 32-bit floats
hold them exactly in whatever order a machine's linear algebra adds them up.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from .rows import Rows

Similarities: TypeAlias = NDArray[np.float64]
_BLOCK_ROWS = 1_024
ONE_THREAD = 2**18
"""So many products a linear algebra library sums up without other threads."""


class VectorTable:
    """Vectors of numbered entries, all of the same width."""

    def __init__(self, rows: NDArray[np.int8]) -> None:
        self._rows = Rows(rows)
        self._lengths = Rows(lengths_of(rows))

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def rows(self) -> NDArray[np.int8]:
        """Of shape ``(entries, dimensions)``."""
        return self._rows.values

    def extend(self, rows: NDArray[np.int8]) -> None:
        """Adds vectors of the next entries, `quantized`; a row of zeros is no vector."""
        self._rows.extend(rows)
        self._lengths.extend(lengths_of(rows))

    def similarities(self, query: NDArray[np.float32]) -> Similarities:
        """The cosine of every entry with a vector, 0 where either is none."""
        wanted = quantized(query[None, :])
        found = np.empty(len(self), dtype=np.float64)
        held = self._rows.values
        column = wanted[0].astype(np.float32)
        step = max(1, ONE_THREAD // max(1, held.shape[1]))
        for first in range(0, len(held), step):
            found[first : first + step] = held[first : first + step].astype(np.float32) @ column
        return _divided(found, self._lengths.values * lengths_of(wanted)[0])

    @property
    def lengths(self) -> NDArray[np.float64]:
        """The length of each row, 0 where there is no vector."""
        held: NDArray[np.float64] = self._lengths.values
        return held


def quantized(vectors: NDArray[np.float32]) -> NDArray[np.int8]:
    """Each row as whole numbers, the largest of them 127."""
    doubles = vectors.astype(np.float64)
    largest = np.abs(doubles).max(axis=1, keepdims=True, initial=0.0)
    scaled = np.divide(doubles * 127, largest, out=np.zeros_like(doubles), where=largest > 0)
    rows: NDArray[np.int8] = np.rint(scaled).astype(np.int8)
    return rows


def lengths_of(rows: NDArray[np.int8]) -> NDArray[np.float64]:
    """The length of each row."""
    squares = np.empty(len(rows), dtype=np.float64)
    for first in range(0, len(rows), _BLOCK_ROWS):
        block = rows[first : first + _BLOCK_ROWS].astype(np.float32)
        squares[first : first + _BLOCK_ROWS] = np.einsum("ij,ij->i", block, block)
    lengths: NDArray[np.float64] = np.sqrt(squares)
    return lengths


def product(rows: NDArray[np.float32], columns: NDArray[np.float32]) -> NDArray[np.float32]:
    """``rows @ columns`` in steps too small to be shared out.

    A linear algebra library that spreads so little work over threads mostly waits for them.
    """
    step = max(1, ONE_THREAD // max(1, columns.size))
    return np.concatenate([rows[first : first + step] @ columns for first in range(0, max(1, len(rows)), step)])


def _divided(products: Similarities, lengths: Similarities) -> Similarities:
    return np.divide(products, lengths, out=np.zeros_like(products), where=lengths > 0)
