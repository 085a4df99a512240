"""Entries by meaning: vectors of one embedder, and of the static one where the first may be out of reach."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from aether_context.errors import EmbeddingError
from aether_context.retrieval.arrays import Similarities, Slots, VectorTable, quantized
from aether_context.retrieval.embedders import Embedder, Purpose, StaticEmbedder, Vectors


class Asked:
    """One query, by each embedder that has a vector of it, and what it is compared with."""

    def __init__(self, told: Sequence[tuple[VectorTable, NDArray[np.float32]]], length: int) -> None:
        self._told = told
        self._length = length

    def similarities(self, slots: Slots | None = None) -> Similarities:
        """The cosine of every entry, or of some, by the first embedder that has a vector of it; else 0."""
        found = np.zeros(self._length if slots is None else len(slots))
        open_ = np.ones(len(found), dtype=bool)
        for table, vector in self._told:
            if not open_.any():
                break
            lengths = table.lengths if slots is None else table.lengths[slots]
            here = open_ & (lengths > 0)
            found[here] = table.similarities(vector, slots)[here]
            open_ &= ~here
        return found

    def near(self, most: int) -> Slots:
        """Entries that may be the nearest, sorted: about so many by each embedder."""
        found = [table.near(vector, most) for table, vector in self._told]
        return np.unique(np.concatenate(found)) if found else np.empty(0, dtype=np.int64)


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
        self._reserved = 0

    @property
    def names(self) -> tuple[str, ...]:
        """The embedders, by what they record."""
        return tuple(embedder.name for embedder in self._embedders)

    def add(self, texts: Sequence[str]) -> None:
        """Adds the next entries.

        Raises:
            EmbeddingError: a local embedder failed; nothing was added.
        """
        found = [self._vectors(number, texts, "entry") for number in range(len(self._embedders))]
        for number, vectors in enumerate(found):
            self._extend(number, None if vectors is None else quantized(vectors), len(texts))
        self._length += len(texts)

    def asked(self, query: str) -> Asked:
        """What compares entries with a query.

        Raises:
            EmbeddingError: a local embedder failed.
        """
        told = []
        for number, table in enumerate(self._tables):
            vectors = None if table is None else self._vectors(number, [query], "query")
            if table is not None and vectors is not None and vectors.any():
                told.append((table, vectors[0]))
        return Asked(told, self._length)

    def keep(self, slots: NDArray[np.int64]) -> None:
        """Forgets all but some entries and numbers those anew."""
        self._length = len(slots)
        self._tables = [None if table is None else VectorTable(table.rows[slots]) for table in self._tables]

    def part(self, slots: NDArray[np.int64]) -> list[NDArray[np.int8] | None]:
        """The vectors of some entries by each embedder, None where it has given none yet."""
        return [None if table is None else table.rows[slots] for table in self._tables]

    def reserve(self, length: int) -> None:
        """Makes room for so many entries in all."""
        self._reserved = length
        for table in self._tables:
            if table is not None:
                table.reserve(length)

    def extend(self, part: Sequence[NDArray[np.int8] | None], length: int) -> None:
        """Adds vectors of the next entries, as an index with the same embedders gave them."""
        for number, rows in enumerate(part):
            self._extend(number, rows, length)
        self._length += length

    def _extend(self, number: int, rows: NDArray[np.int8] | None, length: int) -> None:
        table = self._tables[number]
        if table is None and rows is not None:
            table = self._tables[number] = VectorTable(np.zeros((self._length, rows.shape[1]), dtype=np.int8))
            table.reserve(self._reserved)
        if table is not None:
            width = table.rows.shape[1]
            table.extend(np.zeros((length, width), dtype=np.int8) if rows is None else rows)

    def _vectors(self, number: int, texts: Sequence[str], purpose: Purpose) -> Vectors | None:
        embedder = self._embedders[number]
        try:
            return embedder.embed(texts, purpose=purpose)
        except EmbeddingError:
            if embedder.local:
                raise
            return None
