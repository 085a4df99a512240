"""Google's counters of Gemini's tokens, by its SDK's local tokenizer and by its `count_tokens` API."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from google.genai import Client, types

from aether_context.errors import MissingExtra, TokenCountingError
from aether_context.policy import TokenSettings
from aether_context.tokens import CachedCounter, Offer, TokenCounter, counter_for, family_of, register
from aether_context.tokens.choice import require_network
from aether_context.tokens.counters import Ask, RemoteCounter, TokenizerCounter, sound
from aether_context.tokens.model_limits import bare_model_name


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
    options = types.HttpOptions(timeout=int(1000 * settings.timeout_seconds))

    @contextmanager
    def connect() -> Iterator[Ask]:
        with _client(options) as client:
            yield lambda text: _total(client, bare, text)

    _client(options).close()
    return RemoteCounter(
        f"gemini-api/{bare}", connect, estimate=counter_for(model), timeout_seconds=settings.timeout_seconds
    )


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
