"""Gemini's token counters and embeddings, through google-genai."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from google.genai import Client, types

from aether_context.errors import EmbeddingError, MissingExtra, TokenCountingError
from aether_context.policy import TokenSettings
from aether_context.tokens import CachedCounter, Offer, TokenCounter, counter_for, family_of, register
from aether_context.tokens.choice import require_network
from aether_context.tokens.counters import REMOTE_SECONDS, Ask, RemoteCounter, TokenizerCounter, sound
from aether_context.tokens.model_limits import bare_model_name

if TYPE_CHECKING:
    from aether_context.retrieval.embedders import Purpose, Vectors


def register_counters() -> None:
    """Puts Google's counters on offer."""
    register(
        Offer(
            name="gemini-local",
            about="The local tokenizer of google-genai, for the Gemini models that it knows. Downloads its vocabulary.",
            suits=lambda model, settings: family_of(model).startswith("gemini"),
            make=_local_counter,
            network="once",
        )
    )
    register(
        Offer(
            name="gemini-api",
            about="Google's `count_tokens`, for Gemini models. Sends every new text there.",
            suits=lambda model, settings: family_of(model).startswith("gemini"),
            make=_api_counter,
            network="always",
        )
    )


def _local_counter(model: str, settings: TokenSettings) -> TokenCounter:
    """By `google.genai.local_tokenizer`, which fetches its vocabulary and keeps it in the temporary folder."""
    require_network("gemini-local", "downloads Gemma's vocabulary from raw.githubusercontent.com", settings)
    try:
        from google.genai.local_tokenizer import LocalTokenizer
    except ImportError as error:
        raise MissingExtra("sentencepiece", "Google's local tokenizer") from error
    bare = bare_model_name(model)
    try:
        tokenizer = LocalTokenizer(model_name=bare)
    except Exception as error:  # a model it does not know, a download that fails, a package it lacks
        raise TokenCountingError("gemini-local", f"it cannot count for {bare}: {error}") from error

    def lengths(texts: list[str]) -> list[int]:
        return [tokenizer.count_tokens(text).total_tokens or 0 for text in texts]

    return CachedCounter(TokenizerCounter(f"gemini-local/{bare}", lengths, accuracy="exact"))


def _api_counter(model: str, settings: TokenSettings) -> TokenCounter:
    """By Google's `count_tokens`, with a client as the environment describes it. It adds nothing to a text."""
    bare = bare_model_name(model)

    def new_client() -> Client:
        try:
            return _client(REMOTE_SECONDS)
        except ValueError as error:
            raise TokenCountingError("gemini-api", f"it needs a key, set GOOGLE_API_KEY: {error}") from error

    @contextmanager
    def connect() -> Iterator[Ask]:
        with new_client() as client:

            def count(text: str) -> int:
                total = client.models.count_tokens(model=bare, contents=sound(text)).total_tokens
                if total is None:
                    raise TokenCountingError("gemini-api", "the answer has no total_tokens")
                return total

            yield count

    new_client().close()
    return RemoteCounter(f"gemini-api/{bare}", connect, estimate=counter_for(model))


def _client(timeout_seconds: float) -> Client:
    """A client; raises ValueError where there is no key."""
    return Client(http_options=types.HttpOptions(timeout=int(1000 * timeout_seconds)))


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
            self._models = models or _client(timeout_seconds).models
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
