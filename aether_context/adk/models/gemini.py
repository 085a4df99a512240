"""Gemini's local tokenizer and embeddings, through google-genai."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any

from google.genai import Client, types

from aether_context.errors import EmbeddingError
from aether_context.tokens.counters import Tokenizer, sound
from aether_context.tokens.model_limits import bare_model_name

if TYPE_CHECKING:
    from aether_context.retrieval.embedders import Purpose, Vectors


def local_tokenizer(model: str) -> Tokenizer:
    """Counts by `google.genai.local_tokenizer`, which fetches its vocabulary and keeps it in the temporary folder."""
    from google.genai.local_tokenizer import LocalTokenizer

    bare = bare_model_name(model)
    tokenizer = LocalTokenizer(model_name=bare)
    return Tokenizer(
        f"gemini-local/{bare}", lambda texts: [tokenizer.count_tokens(text).total_tokens or 0 for text in texts]
    )


def register_embedders() -> None:
    """Puts Google's embeddings on offer as ``gemini`` and ``gemini:MODEL``."""
    from aether_context.retrieval.embedders import CachedEmbedder, register

    register("gemini", lambda model: CachedEmbedder(GeminiEmbedder(model or _EMBEDDING_MODEL)))


_EMBEDDING_MODEL = "gemini-embedding-001"
_DIMENSIONS = 768
_BATCH = 100
_TASKS = {"entry": "RETRIEVAL_DOCUMENT", "query": "RETRIEVAL_QUERY"}


class GeminiEmbedder:
    """Texts embedded by Google's API, within one deadline for all that are asked for together.

    Args:
        models: those of a client; None makes a client as the environment describes (``GOOGLE_API_KEY``).

    Raises:
        EmbeddingError: there is no key.
    """

    local = False

    def __init__(self, model: str = _EMBEDDING_MODEL, *, timeout_seconds: float = 5.0, models: Any = None) -> None:
        self.name = f"gemini:{model}-{_DIMENSIONS}"
        self._model = model
        self._timeout_seconds = timeout_seconds
        try:
            options = types.HttpOptions(timeout=int(1000 * timeout_seconds))
            self._models = models or Client(http_options=options).models
        except ValueError as error:
            raise EmbeddingError(self.name, f"it needs a key, set GOOGLE_API_KEY: {error}") from error

    def embed(self, texts: Sequence[str], *, purpose: Purpose = "entry") -> Vectors:
        import numpy as np

        from aether_context.retrieval.embedders import unit

        batches = [list(map(sound, texts[first : first + _BATCH])) for first in range(0, len(texts), _BATCH)]
        pool = ThreadPoolExecutor(4, thread_name_prefix="aether-context-embedding")
        try:
            asked = [pool.submit(self._ask, batch, purpose) for batch in batches]
            _, late = wait(asked, timeout=self._timeout_seconds)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
        if late:
            reason = f"{len(late)} of {len(asked)} requests took over {self._timeout_seconds:g} s"
            raise EmbeddingError(self.name, reason)
        try:
            found = [vector for future in asked for vector in future.result()]
        except Exception as error:  # whatever the client raises
            raise EmbeddingError(self.name, f"{type(error).__name__}: {error}") from error
        return unit(np.array(found, dtype=np.float64).reshape(len(texts), -1 if texts else _DIMENSIONS))

    def _ask(self, texts: list[str], purpose: Purpose) -> list[list[float]]:
        config = types.EmbedContentConfig(task_type=_TASKS[purpose], output_dimensionality=_DIMENSIONS)
        asked: list[types.ContentUnion] = [text if text.strip() else "." for text in texts]  # an empty text is refused
        embeddings = self._models.embed_content(model=self._model, contents=asked, config=config).embeddings or []
        if len(embeddings) != len(texts):
            raise EmbeddingError(self.name, f"{len(embeddings)} vectors came back for {len(texts)} texts")
        return [list(embedding.values or []) for embedding in embeddings]
