"""Gemini's token counters and embeddings, through google-genai."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
from google.genai import Client, types

from aether_context.errors import EmbeddingError, MissingExtra, TokenCountingError
from aether_context.policy import TokenSettings
from aether_context.retrieval.embedders import CachedEmbedder, Purpose, Vectors, unit
from aether_context.retrieval.embedders import register as register_embedder
from aether_context.tokens import CachedCounter, Offer, TokenCounter, counter_for, family_of, register
from aether_context.tokens.choice import require_network
from aether_context.tokens.counters import REMOTE_SECONDS, Ask, RemoteCounter, TokenizerCounter, sound
from aether_context.tokens.model_limits import bare_model_name

# Google's counters of Gemini's tokens, by its SDK's local tokenizer and by its `count_tokens` API.


def local_counter(model: str, settings: TokenSettings) -> TokenCounter:
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

    def lengths(texts: Any) -> list[int]:
        return [tokenizer.count_tokens(text).total_tokens or 0 for text in texts]

    return CachedCounter(TokenizerCounter(f"gemini-local/{bare}", lengths, accuracy="exact"))


def api_counter(model: str, settings: TokenSettings) -> TokenCounter:
    """By Google's `count_tokens`, with a client as the environment describes it. It adds nothing to a text."""
    bare = bare_model_name(model)
    options = types.HttpOptions(timeout=int(1000 * REMOTE_SECONDS))

    @contextmanager
    def connect() -> Iterator[Ask]:
        with _client(options) as client:
            yield lambda text: _total(client, bare, text)

    _client(options).close()
    return RemoteCounter(f"gemini-api/{bare}", connect, estimate=counter_for(model), timeout_seconds=REMOTE_SECONDS)


def _client(options: types.HttpOptions) -> Client:
    try:
        return Client(http_options=options)
    except ValueError as error:
        raise TokenCountingError("gemini-api", f"it needs a key, set GOOGLE_API_KEY: {error}") from error


def _total(client: Client, model: str, text: str) -> int:
    total = client.models.count_tokens(model=model, contents=sound(text)).total_tokens
    if total is None:
        raise TokenCountingError("gemini-api", "the answer has no total_tokens")
    return total


def _is_gemini(model: str, settings: TokenSettings) -> bool:
    return family_of(model).startswith("gemini")


def register_counters() -> None:
    """Puts Google's counters on offer."""
    for offer in _OFFERS:
        register(offer)


_OFFERS = (
    Offer(
        name="gemini-local",
        about="The local tokenizer of google-genai, for the Gemini models that it knows. Downloads its vocabulary.",
        suits=_is_gemini,
        make=local_counter,
        network="once",
    ),
    Offer(
        name="gemini-api",
        about="Google's `count_tokens`, for Gemini models. Sends every new text there.",
        suits=_is_gemini,
        make=api_counter,
        network="always",
    ),
)


# Gemini's embeddings through google-genai.

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
