"""Entries by meaning: vectors in one byte a dimension, of one embedder and of the static one where that may be away."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from aether_context.errors import EmbeddingError
from aether_context.retrieval.arrays import Floats, Rows, Slots
from aether_context.retrieval.embedders import Embedder, Purpose, StaticEmbedder, Vectors, quantized

_CACHED_ROWS = 256
"""So many rows, as floats, stay in a processor's cache, and are multiplied by one thread."""


class VectorTable:
    """Vectors of numbered entries, `quantized`, all of the same width, and products that every machine gives alike.

    Sums of products of whole numbers from -127 to 127 stay below 2**24, so that 32-bit floats hold them exactly in
    whatever order a machine's linear algebra adds them up.
    """

    def __init__(self, rows: NDArray[np.int8]) -> None:
        self._rows = Rows(rows)
        self._lengths = Rows(_lengths(rows))

    @property
    def rows(self) -> NDArray[np.int8]:
        """Of shape ``(entries, dimensions)``."""
        return self._rows.values

    @property
    def lengths(self) -> Floats:
        """Of each row, 0 where there is no vector."""
        return self._lengths.values

    def extend(self, rows: NDArray[np.int8]) -> None:
        """Adds vectors of the next entries; a row of zeros is no vector."""
        self._rows.extend(rows)
        self._lengths.extend(_lengths(rows))

    def similarities(self, query: NDArray[np.float32]) -> Floats:
        """The cosine of every entry with a vector, 0 where either is none."""
        wanted = quantized(query[None, :])
        column = wanted[0].astype(np.float32)
        rows = self.rows
        products = np.empty(len(rows), dtype=np.float32)
        room = np.empty((min(len(rows), _CACHED_ROWS), rows.shape[1]), dtype=np.float32)
        for first in range(0, len(rows), _CACHED_ROWS):
            some = rows[first : first + _CACHED_ROWS]
            floats = room[: len(some)]
            np.copyto(floats, some)
            np.dot(floats, column, out=products[first : first + len(some)])
        found = products.astype(np.float64)
        lengths = self.lengths * _lengths(wanted)[0]
        np.divide(found, lengths, out=found, where=lengths > 0)  # the product with no vector is 0 as it is
        return found


def _lengths(rows: NDArray[np.int8]) -> Floats:
    lengths: Floats = np.sqrt(np.einsum("ij,ij->i", rows, rows, dtype=np.int32))
    return lengths


class SemanticIndex:
    """Vectors of numbered entries.

    Beside those of an embedder that is not local, each entry has one of the static model: where the embedder fails for
    a query, the static vectors answer; where it failed for an entry, they answer for that entry.

    Args:
        embedder: None compares nothing.
    """

    def __init__(self, embedder: Embedder | None) -> None:
        self._embedders: tuple[Embedder, ...] = ()
        if embedder is not None:
            self._embedders = (embedder,) if embedder.local else (embedder, StaticEmbedder())
        self._tables: list[VectorTable | None] = [None for _ in self._embedders]
        self._length = 0

    @property
    def names(self) -> tuple[str, ...]:
        """The embedders, by what they record."""
        return tuple(embedder.name for embedder in self._embedders)

    def add(self, texts: Sequence[str]) -> None:
        """Adds the next entries.

        Raises:
            EmbeddingError: a local embedder failed; nothing was added.
        """
        made = [_vectors(embedder, texts, "entry") for embedder in self._embedders]
        for at, vectors in enumerate(made):
            table = self._tables[at]
            if table is None and vectors is not None:
                table = VectorTable(np.zeros((self._length, vectors.shape[1]), dtype=np.int8))
                self._tables[at] = table
            if table is not None:
                none = np.zeros((len(texts), table.rows.shape[1]), dtype=np.int8)
                table.extend(none if vectors is None else quantized(vectors))
        self._length += len(texts)

    def keep(self, slots: Slots) -> None:
        """Numbers entries anew, and lets go of all others."""
        self._tables = [None if table is None else VectorTable(table.rows[slots]) for table in self._tables]
        self._length = len(slots)

    def similarities(self, query: str) -> Floats:
        """The cosine of every entry with a query, by the first embedder that has vectors of both; else 0.

        Raises:
            EmbeddingError: a local embedder failed.
        """
        found = np.zeros(self._length)
        missing = np.ones(self._length, dtype=bool)
        for table, embedder in zip(self._tables, self._embedders, strict=True):
            vectors = None if table is None else _vectors(embedder, [query], "query")
            if table is not None and vectors is not None and vectors.any():
                here = missing & (table.lengths > 0)
                if here.any():
                    found[here] = table.similarities(vectors[0])[here]
                    missing &= ~here
        return found


def _vectors(embedder: Embedder, texts: Sequence[str], purpose: Purpose) -> Vectors | None:
    """None where an embedder that is not local failed."""
    try:
        return embedder.embed(texts, purpose=purpose)
    except EmbeddingError:
        if embedder.local:
            raise
        return None
