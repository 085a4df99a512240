"""Entries by meaning: vectors in one byte a dimension, of one embedder and of the static one where that may be away."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from aether_context.errors import EmbeddingError
from aether_context.retrieval.arrays import Array, Floats, Rows, Slots
from aether_context.retrieval.embedders import Embedder, Purpose, StaticEmbedder, Vectors, quantized

_CACHED_ROWS = 256
"""So many rows, as floats, stay in a processor's cache, and are multiplied by one thread."""
_SIGNED_ROWS = 65_536
"""So many rows' signs are looked at together, a word of 64 at a time."""
_LOUDEST = 0.95
"""Dimensions above this share of a query's count in full."""


class VectorTable:
    """Vectors of numbered entries, `quantized`, all of the same width, and products that every machine gives alike.

    Sums of products of whole numbers from -127 to 127 stay below 2**24, so that 32-bit floats hold them exactly in
    whatever order a machine's linear algebra adds them up.
    """

    def __init__(self, rows: NDArray[np.int8]) -> None:
        self._rows = Rows(rows)
        self._lengths = Rows(_lengths(rows))
        self._signs = np.empty((-(-rows.shape[1] // 64), 0), dtype=np.uint64)

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

    def similarities(self, query: NDArray[np.float32], slots: Slots | None = None) -> Floats:
        """The cosine of every entry, or of some, with a vector, 0 where either is none."""
        wanted = quantized(query[None, :])
        rows, lengths = self.rows, self.lengths
        if slots is not None:
            rows, lengths = rows[slots], lengths[slots]
        column = wanted[0].astype(np.float32)
        products = np.empty(len(rows), dtype=np.float32)
        room = np.empty((min(len(rows), _CACHED_ROWS), rows.shape[1]), dtype=np.float32)
        for first in range(0, len(rows), _CACHED_ROWS):
            some = rows[first : first + _CACHED_ROWS]
            floats = room[: len(some)]
            np.copyto(floats, some)
            np.dot(floats, column, out=products[first : first + len(some)])
        found = products.astype(np.float64)
        lengths = lengths * _lengths(wanted)[0]
        np.divide(found, lengths, out=found, where=lengths > 0)  # the product with no vector is 0 as it is
        return found

    def near(self, query: NDArray[np.float32], most: int) -> Slots:
        """The entries that may be nearest to a vector: so many, and those as near as the last of them.

        Nearness is told by the signs of the rows, an eighth of their size: a dimension in which query and row differ
        counts 0 to 3, by how much the query says in it.
        """
        rows = self.rows
        signed = range(self._signs.shape[1], len(rows), _SIGNED_ROWS)
        if new := [_words(rows[first : first + _SIGNED_ROWS] > 0).T for first in signed]:
            self._signs = np.concatenate([self._signs, *new], axis=1)
        wanted = quantized(query[None, :])
        loudness = np.abs(wanted.astype(np.int64))
        loudest = max(1, int(np.sort(loudness[0])[int(_LOUDEST * loudness.size)]))
        weights = np.minimum(3, (3 * loudness + loudest // 2) // loudest)
        query_signs, once, twice = _words(np.concatenate([wanted > 0, weights & 1 > 0, weights & 2 > 0]))
        distances = np.zeros(len(rows), dtype=np.uint16)
        for first in range(0, len(rows), _SIGNED_ROWS):
            here = slice(first, first + _SIGNED_ROWS)
            for row_signs, query_sign, one, two in zip(self._signs, query_signs, once, twice, strict=True):
                differ = row_signs[here] ^ query_sign
                distances[here] += np.bitwise_count(differ & one)
                double = np.bitwise_count(differ & two)
                distances[here] += double
                distances[here] += double
        reached = np.flatnonzero(np.cumsum(np.bincount(distances)) >= most)
        return np.flatnonzero(distances <= reached[0]) if len(reached) else np.arange(len(rows))


def _lengths(rows: NDArray[np.int8]) -> Floats:
    lengths: Floats = np.sqrt(np.einsum("ij,ij->i", rows, rows, dtype=np.int32))
    return lengths


def _words(bits: NDArray[np.bool_]) -> NDArray[np.uint64]:
    """Bits, a row each, in words of 64; those that fill up the last word are 0."""
    packed = np.packbits(bits, axis=1)
    return np.pad(packed, ((0, 0), (0, -packed.shape[1] % 8))).view(np.uint64)


Asked: TypeAlias = Sequence[tuple[VectorTable, NDArray[np.float32]]]
"""A query's vector by each embedder that has one, beside the table of that embedder."""


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
        part = {f"vectors{at}": quantized(vectors) for at, vectors in enumerate(made) if vectors is not None}
        self.extend(part, len(texts))

    def extend(self, part: Mapping[str, Array], length: int) -> None:
        """Adds the next entries, so many, with vectors as `part` gives them."""
        for at, table in enumerate(self._tables):
            rows = part.get(f"vectors{at}")
            if table is None and rows is not None:
                table = self._tables[at] = VectorTable(np.zeros((self._length, rows.shape[1]), dtype=np.int8))
            if table is not None:
                table.extend(np.zeros((length, table.rows.shape[1]), dtype=np.int8) if rows is None else rows)
        self._length += length

    def part(self, slots: Slots) -> dict[str, Array]:
        """Vectors of some entries, ``vectors0`` by the first embedder and so on; those of one that gave none lack."""
        return {f"vectors{at}": table.rows[slots] for at, table in enumerate(self._tables) if table is not None}

    def asked(self, query: str) -> Asked:
        """What compares entries with a query.

        Raises:
            EmbeddingError: a local embedder failed.
        """
        found = []
        for table, embedder in zip(self._tables, self._embedders, strict=True):
            vectors = None if table is None else _vectors(embedder, [query], "query")
            if table is not None and vectors is not None and vectors.any():
                found.append((table, vectors[0]))
        return found

    def similarities(self, asked: Asked, slots: Slots | None = None) -> Floats:
        """The cosine of every entry, or of some, by the first embedder that has a vector of it; else 0."""
        found = np.zeros(self._length if slots is None else len(slots))
        missing = np.ones(len(found), dtype=bool)
        for table, vector in asked:
            here = missing & ((table.lengths if slots is None else table.lengths[slots]) > 0)
            if here.any():
                found[here] = table.similarities(vector, slots)[here]
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
