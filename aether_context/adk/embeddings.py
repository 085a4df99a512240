"""Gemini's embeddings through google-genai."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Protocol

import numpy as np
from google.genai import Client, types

from aether_context.errors import EmbeddingError
from aether_context.retrieval.embedders import CachedEmbedder, Purpose, Vectors, unit
from aether_context.retrieval.embedders import register as register_embedder
from aether_context.tokens.counters import sound

DEFAULT_MODEL = "gemini-embedding-001"
_DIMENSIONS = 768
_BATCH = 100
_MOST_AT_ONCE = 4
_TASKS = {"entry": "RETRIEVAL_DOCUMENT", "query": "RETRIEVAL_QUERY"}


class EmbedContent(Protocol):
    """What is needed of a client's `models`."""

    def embed_content(
        self, *, model: str, contents: list[str], config: types.EmbedContentConfig
    ) -> types.EmbedContentResponse: ...


class GeminiEmbedder:
    """Texts embedded by Google's API, within one deadline for all that are asked for together.

    Args:
        model: its name in the API.
        timeout_seconds: the deadline.
        models: stands in for a client's, which the environment describes (``GOOGLE_API_KEY``).

    Raises:
        EmbeddingError: there is no key.
    """

    local = False

    def __init__(
        self, model: str = DEFAULT_MODEL, *, timeout_seconds: float = 5.0, models: EmbedContent | None = None
    ) -> None:
        self.name = f"gemini:{model}-{_DIMENSIONS}"
        self._model = model
        self._timeout_seconds = timeout_seconds
        self._models = models or self._client().models

    def embed(self, texts: Sequence[str], *, purpose: Purpose = "entry") -> Vectors:
        batches = [list(map(sound, texts[first : first + _BATCH])) for first in range(0, len(texts), _BATCH)]
        pool = ThreadPoolExecutor(_MOST_AT_ONCE, thread_name_prefix="aether-context-embedding")
        try:
            asked = [pool.submit(self._ask, batch, purpose) for batch in batches]
            _, late = wait(asked, timeout=self._timeout_seconds)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
        if late:
            raise EmbeddingError(
                self.name, f"{len(late)} of {len(asked)} requests took over {self._timeout_seconds:g} s"
            )
        try:
            found = [vector for one in asked for vector in one.result()]
        except Exception as error:  # whatever the client raises
            raise EmbeddingError(self.name, f"{type(error).__name__}: {error}") from error
        return unit(np.array(found, dtype=np.float64).reshape(len(texts), -1 if texts else _DIMENSIONS))

    def _ask(self, texts: list[str], purpose: Purpose) -> list[list[float]]:
        config = types.EmbedContentConfig(task_type=_TASKS[purpose], output_dimensionality=_DIMENSIONS)
        asked = [text if text.strip() else "." for text in texts]  # an empty text is refused
        embeddings = self._models.embed_content(model=self._model, contents=asked, config=config).embeddings or []
        if len(embeddings) != len(texts):
            raise EmbeddingError(self.name, f"{len(embeddings)} vectors came back for {len(texts)} texts")
        return [list(one.values or []) for one in embeddings]

    def _client(self) -> Client:
        try:
            return Client(http_options=types.HttpOptions(timeout=int(1000 * self._timeout_seconds)))
        except ValueError as error:
            raise EmbeddingError(self.name, f"it needs a key, set GOOGLE_API_KEY: {error}") from error


def register_embedders() -> None:
    """Puts Google's embeddings on offer as ``gemini`` and ``gemini:MODEL``."""
    register_embedder("gemini", lambda model: CachedEmbedder(GeminiEmbedder(model)), default_model=DEFAULT_MODEL)
