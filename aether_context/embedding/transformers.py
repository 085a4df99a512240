"""Models of the sentence-transformers library, by name or from a folder."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from aether_context.errors import EmbeddingError, MissingExtra

from .embedder import Purpose, Vectors, unit

if TYPE_CHECKING:
    from sentence_transformers import CrossEncoder, SentenceTransformer

_BATCH = 64
_READ_BYTES = 2**20


class TransformerEmbedder:
    """A sentence-transformers model, loaded at the first text. Threads may share it; one embeds at a time.

    Args:
        model: a name on the hub, or the path of a folder.

    Raises:
        MissingExtra: the library is not installed.
    """

    local = True

    def __init__(self, model: str) -> None:
        require_transformers(f"the embedder sentence-transformers:{model}")
        self.name = f"sentence-transformers:{identity(model)}"
        self._model = model
        self._loaded: SentenceTransformer | None = None
        self._lock = threading.Lock()

    def embed(self, texts: Sequence[str], *, purpose: Purpose = "entry") -> Vectors:
        if not texts:
            return np.zeros((0, 0), dtype=np.float32)
        try:
            with self._lock:
                model = self._loaded = self._loaded or self._load()
                encode = model.encode_query if purpose == "query" else model.encode_document
                found = encode(list(texts), batch_size=_BATCH, show_progress_bar=False, convert_to_numpy=True)
        except Exception as error:  # whatever the library, its backend or the hub raises
            raise EmbeddingError(self.name, f"{type(error).__name__}: {error}") from error
        return unit(np.asarray(found))

    def _load(self) -> SentenceTransformer:
        from sentence_transformers import SentenceTransformer

        return SentenceTransformer(self._model)


class CrossEncoderReranker:
    """A cross-encoder that reads query and text together: the most exact and the slowest.

    Args:
        model: a name on the hub, or the path of a folder.

    Raises:
        MissingExtra: the library is not installed.
    """

    def __init__(self, model: str) -> None:
        require_transformers(f"the reranker {model}")
        self.name = f"cross-encoder:{model}"
        self._model = model
        self._loaded: CrossEncoder | None = None
        self._lock = threading.Lock()

    def scores(self, query: str, texts: Sequence[str]) -> list[float]:
        """How well each text answers the query, higher is better.

        Raises:
            EmbeddingError: the model failed.
        """
        if not texts:
            return []
        try:
            with self._lock:
                model = self._loaded = self._loaded or self._load()
                found = model.predict([(query, text) for text in texts], batch_size=_BATCH, show_progress_bar=False)
        except Exception as error:  # whatever the library, its backend or the hub raises
            raise EmbeddingError(self.name, f"{type(error).__name__}: {error}") from error
        return [float(value) for value in found]

    def _load(self) -> CrossEncoder:
        from sentence_transformers import CrossEncoder

        model: CrossEncoder = CrossEncoder(self._model)
        return model


def identity(model: str) -> str:
    """What a model is told from others by: its name or, of a folder, the folder's name and a hash of what is in it.

    Of each file its path, its length, its beginning and its end count, so that weights need not be read whole.
    """
    folder = Path(model).expanduser()
    if not folder.is_dir():
        return model
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        size = path.stat().st_size
        digest.update(f"{path.relative_to(folder).as_posix()} {size}\n".encode())
        with path.open("rb") as file:
            digest.update(file.read(_READ_BYTES))
            file.seek(max(_READ_BYTES, size - _READ_BYTES))
            digest.update(file.read(_READ_BYTES))
    return f"{folder.resolve().name}@{digest.hexdigest()[:12]}"


@lru_cache(maxsize=1)
def _installed() -> bool:
    from importlib.util import find_spec

    return find_spec("sentence_transformers") is not None


def require_transformers(purpose: str) -> None:
    """Raises `MissingExtra` where the library is not installed."""
    if not _installed():
        raise MissingExtra("sentence-transformers", purpose)
