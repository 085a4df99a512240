"""What turns texts into vectors, and the memory of what it has turned."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

Vectors: TypeAlias = NDArray[np.float32]
"""Of shape ``(texts, dimensions)``; a row has length 1, or 0 where the text says nothing that the model knows."""

Purpose: TypeAlias = Literal["entry", "query"]
"""Whether a text is found or finds; some models want to know."""


class Embedder(Protocol):
    """Turns texts into vectors whose products say how alike the texts are."""

    @property
    def name(self) -> str:
        """What an index and a manifest record: equal names give equal vectors."""

    @property
    def local(self) -> bool:
        """Whether texts stay in this process."""

    def embed(self, texts: Sequence[str], *, purpose: Purpose = "entry") -> Vectors:
        """The vectors of the texts, in their order.

        Raises:
            EmbeddingError: the model failed, could not be reached or took too long.
        """


def unit(vectors: NDArray[np.generic]) -> Vectors:
    """The rows at length 1, rows of zeros as they are. The division is of doubles, so that machines agree."""
    doubles = vectors.astype(np.float64)
    lengths = np.sqrt((doubles * doubles).sum(axis=1, keepdims=True))
    result: Vectors = np.divide(doubles, lengths, out=np.zeros_like(doubles), where=lengths > 0).astype(np.float32)
    return result


class CachedEmbedder:
    """An embedder that remembers vectors by content, the least recently used forgotten first. Threads may share it.

    Args:
        max_texts: so many are kept; of 384 dimensions, 10,000 take 15 MB.
    """

    def __init__(self, embedder: Embedder, *, max_texts: int = 10_000) -> None:
        self.embedder = embedder
        self._max_texts = max_texts
        self._held: OrderedDict[bytes, Vectors] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        return self.embedder.name

    @property
    def local(self) -> bool:
        return self.embedder.local

    def embed(self, texts: Sequence[str], *, purpose: Purpose = "entry") -> Vectors:
        keys = [
            hashlib.blake2b(f"{purpose}\n{text}".encode("utf-8", "surrogatepass"), digest_size=16).digest()
            for text in texts
        ]
        with self._lock:
            known = {key: self._held[key] for key in keys if key in self._held}
            for key in known:
                self._held.move_to_end(key)
        new = {key: text for key, text in zip(keys, texts, strict=True) if key not in known}
        if new or not texts:
            fresh = self.embedder.embed(list(new.values()), purpose=purpose)
            if not texts:
                return fresh
            known |= dict(zip(new, fresh, strict=True))
            with self._lock:
                self._held.update((key, known[key].copy()) for key in new)
                while len(self._held) > self._max_texts:
                    self._held.popitem(last=False)
        return np.stack([known[key] for key in keys])
