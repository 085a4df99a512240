"""An embedder whose vectors are kept by content, wherever there is room for them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from aether_context.embedding import Embedder, Purpose, Vectors, unit
from aether_context.retrieval.vectors import quantized


class VectorKeep(Protocol):
    """Keeps vectors in one byte a dimension by `digest_of` their texts."""

    def vectors(self, embedder: str, digests: Sequence[bytes]) -> dict[bytes, bytes]:
        """Those that are kept."""

    def keep_vectors(self, embedder: str, vectors: Mapping[bytes, bytes]) -> None:
        """Keeps some."""


class StoredVectors:
    """An embedder that makes the vectors of entries once; those of queries it makes each time.

    What comes back is whole numbers at length 1, new or kept, so that a vector that was kept ranks as a new one does.

    Args:
        embedder: makes those that are not kept.
    """

    def __init__(self, embedder: Embedder, keep: VectorKeep) -> None:
        self._embedder = embedder
        self._keep = keep

    @property
    def name(self) -> str:
        return self._embedder.name

    @property
    def local(self) -> bool:
        return self._embedder.local

    def embed(self, texts: Sequence[str], *, purpose: Purpose = "entry") -> Vectors:
        if purpose == "query" or not texts:
            return self._embedder.embed(texts, purpose=purpose)
        digests = [digest_of(text) for text in texts]
        known = self._keep.vectors(self.name, digests)
        missing = {digest: text for digest, text in zip(digests, texts, strict=True) if digest not in known}
        if missing:
            made = quantized(self._embedder.embed(list(missing.values())))
            fresh = {digest: row.tobytes() for digest, row in zip(missing, made, strict=True)}
            self._keep.keep_vectors(self.name, fresh)
            known |= fresh
        return unit(np.stack([np.frombuffer(known[digest], dtype=np.int8) for digest in digests]))


def digest_of(text: str) -> bytes:
    """What a text's vectors are kept by: 16 bytes."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
