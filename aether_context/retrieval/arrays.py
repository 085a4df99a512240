"""Arrays that grow by rows, and vectors in one byte a dimension."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

# Arrays that grow by rows.

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


# Vectors in one byte a dimension, and products of them that every machine gives alike.
#
# Each row is scaled to whole numbers from -127 to 127. Sums of products of those stay below 2**24, so that 32-bit
# floats hold them exactly in whatever order a machine's linear algebra adds them up.
#
# Beside a large table lie the signs of its numbers, an eighth of its size. Where a query and a row differ in sign,
# each dimension counted by how much the query says in it, tells which rows may be near without a look at the rows.

Similarities: TypeAlias = NDArray[np.float64]
Slots: TypeAlias = NDArray[np.int64]
_BLOCK_ROWS = 1_024
_CACHED_ROWS = 256
"""So many rows, as floats, stay in a processor's cache, and are multiplied by one thread."""
_SIGNED_ROWS = 65_536
"""So many rows' signs are looked at together, a word of 64 at a time."""
_WORD_BITS = 64
_LOUDEST = 0.95
"""Dimensions above this share of a query's count in full."""


class VectorTable:
    """Vectors of numbered entries, all of the same width."""

    def __init__(self, rows: NDArray[np.int8]) -> None:
        self._rows = Rows(rows)
        self._lengths = Rows(lengths_of(rows))
        self._signs = [Rows(np.empty(0, dtype=np.uint64)) for _ in range(-(-rows.shape[1] // _WORD_BITS))]

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def rows(self) -> NDArray[np.int8]:
        """Of shape ``(entries, dimensions)``."""
        return self._rows.values

    def reserve(self, length: int) -> None:
        """Makes room for so many entries in all."""
        self._rows.reserve(length)
        self._lengths.reserve(length)

    def extend(self, rows: NDArray[np.int8]) -> None:
        """Adds vectors of the next entries, `quantized`; a row of zeros is no vector."""
        self._rows.extend(rows)
        self._lengths.extend(lengths_of(rows))

    def similarities(self, query: NDArray[np.float32], slots: Slots | None = None) -> Similarities:
        """The cosine of every entry, or of some, with a vector, 0 where either is none."""
        wanted = quantized(query[None, :])
        rows, lengths = self._rows.values, self._lengths.values
        if slots is not None:
            rows, lengths = rows[slots], lengths[slots]
        found, lengths = products(rows, wanted[0]), lengths * lengths_of(wanted)[0]
        np.divide(found, lengths, out=found, where=lengths > 0)  # the product with no vector is 0 as it is
        return found

    def near(self, query: NDArray[np.float32], most: int) -> Slots:
        """The entries that may be nearest to a vector, by the signs: so many, and those as near as the last of them."""
        self._sign()
        found = np.zeros(len(self), dtype=np.uint16)
        wanted = quantized(query[None, :])
        against = _words(wanted > 0)[0]
        once, twice = _planes(wanted[0])
        for first in range(0, len(found), _SIGNED_ROWS):
            some = found[first : first + _SIGNED_ROWS]
            for signs, sign, one, two in zip(self._signs, against, once, twice, strict=True):
                differ = signs.values[first : first + _SIGNED_ROWS] ^ sign
                some += np.bitwise_count(differ & one)
                more = np.bitwise_count(differ & two)
                some += more
                some += more
        reached = np.flatnonzero(np.cumsum(np.bincount(found)) >= most)
        return np.flatnonzero(found <= reached[0]) if len(reached) else np.arange(len(self))

    def _sign(self) -> None:
        """Brings the signs up to the rows."""
        rows = self._rows.values
        for first in range(len(self._signs[0]), len(rows), _SIGNED_ROWS):
            for signs, words in zip(self._signs, _words(rows[first : first + _SIGNED_ROWS] > 0).T, strict=True):
                signs.extend(words)

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


def products(rows: NDArray[np.int8], column: NDArray[np.int8]) -> Similarities:
    """The product of each row with a vector, exactly."""
    floats = column.astype(np.float32)
    found = np.empty(len(rows), dtype=np.float32)
    room = np.empty((min(len(rows), _CACHED_ROWS), rows.shape[1]), dtype=np.float32)
    for first in range(0, len(rows), _CACHED_ROWS):
        some = rows[first : first + _CACHED_ROWS]
        here = room[: len(some)]
        np.copyto(here, some)
        np.dot(here, floats, out=found[first : first + len(some)])
    return found.astype(np.float64)


def _words(bits: NDArray[np.bool_]) -> NDArray[np.uint64]:
    """Bits, a row each, in words; those that fill up the last word are 0."""
    packed = np.packbits(bits, axis=1)
    filled = np.zeros((len(bits), 8 * -(-bits.shape[1] // _WORD_BITS)), dtype=np.uint8)
    filled[:, : packed.shape[1]] = packed
    return filled.view(np.uint64)


def _planes(query: NDArray[np.int8]) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """How much a query says in each dimension, 0 to 3: those whose number has the lower bit, and the higher one."""
    said = np.abs(query.astype(np.int64))
    loudest = max(1, int(np.sort(said)[int(_LOUDEST * len(said))]))
    weights = np.minimum(3, (3 * said + loudest // 2) // loudest)
    lower, higher = _words(np.stack([weights & 1 > 0, weights & 2 > 0]))
    return lower, higher
