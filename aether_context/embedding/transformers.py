"""Models of the sentence-transformers library, by name or from a folder."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from aether_context.embedding.embedder import Purpose, Vectors, unit
from aether_context.errors import EmbeddingError, MissingExtra

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


_TRANSFORMER_BATCH = 64
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
        if find_spec("sentence_transformers") is None:
            raise MissingExtra("sentence-transformers", f"the embedder sentence-transformers:{model}")
        self.name = f"sentence-transformers:{identity(model)}"
        self._model = model
        self._loaded: SentenceTransformer | None = None
        self._lock = threading.Lock()

    def embed(self, texts: Sequence[str], *, purpose: Purpose = "entry") -> Vectors:
        if not texts:
            return np.zeros((0, 0), dtype=np.float32)
        try:
            with self._lock:
                if self._loaded is None:
                    from sentence_transformers import SentenceTransformer

                    self._loaded = SentenceTransformer(self._model)
                encode = self._loaded.encode_query if purpose == "query" else self._loaded.encode_document
                found = encode(
                    list(texts), batch_size=_TRANSFORMER_BATCH, show_progress_bar=False, convert_to_numpy=True
                )
        except Exception as error:  # whatever the library, its backend or the hub raises
            raise EmbeddingError(self.name, f"{type(error).__name__}: {error}") from error
        return unit(np.asarray(found))


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
