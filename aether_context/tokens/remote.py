"""Counters that ask a provider over the network."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, TypeAlias

from aether_context.errors import TokenCountingError
from aether_context.pack import Accuracy
from aether_context.windows import bare_model_name

from .counter import Remembered, TokenCounter
from .vocabulary import sound

if TYPE_CHECKING:
    import httpx

Ask: TypeAlias = Callable[[str], int]
"""A provider's count of one text without any framing; called from several threads."""

ANTHROPIC_URL = "https://api.anthropic.com"
ANTHROPIC_VERSION = "2023-06-01"

_MOST_AT_ONCE = 8


class RemoteCounter:
    """Counts by asking a provider, for many texts at once and within one deadline for all of them.

    A text on its own is estimated unless it was counted before: such are the many that are tried out while something is
    made shorter, and none of them is worth a round trip. What the provider has answered is kept when the deadline
    passes. No connection is kept.

    Args:
        connect: a connection for one batch of texts.
        estimate: counts texts on their own.
        timeout_seconds: the deadline.
    """

    accuracy: Accuracy = "exact"

    def __init__(
        self,
        name: str,
        connect: Callable[[], AbstractContextManager[Ask]],
        *,
        estimate: TokenCounter,
        timeout_seconds: float,
    ) -> None:
        self.name = name
        self._connect = connect
        self._estimate = estimate
        self._timeout_seconds = timeout_seconds
        self._remembered = Remembered()

    def count(self, text: str) -> int:
        known = self._remembered.known((text,))
        return known[text] if text in known else self._estimate.count(text)

    def count_all(self, texts: Sequence[str]) -> list[int]:
        """Tokens of the texts, as the provider counts them.

        Raises:
            TokenCountingError: the provider refused, could not be reached, or took too long.
        """
        counts = {"": 0} | self._remembered.known(texts)
        new = [text for text in dict.fromkeys(texts) if text not in counts]
        if new:
            with self._connect() as ask:
                counts |= self._asked(new, ask)
        return [counts[text] for text in texts]

    def _asked(self, texts: Sequence[str], ask: Ask) -> dict[str, int]:
        pool = ThreadPoolExecutor(_MOST_AT_ONCE, thread_name_prefix="aether-context-tokens")
        try:
            asked = {pool.submit(ask, text): text for text in texts}
            done, _ = wait(asked, timeout=self._timeout_seconds, return_when=FIRST_EXCEPTION)
            faults = [error for one in done if (error := one.exception()) is not None]
            counts = {asked[one]: max(1, one.result()) for one in done if one.exception() is None}
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
        self._remembered.put(counts)
        for fault in faults:
            if not isinstance(fault, Exception):  # an exit ends the program, in whatever thread it was raised
                raise fault
        if faults:
            raise TokenCountingError(self.name, f"{type(faults[0]).__name__}: {faults[0]}") from faults[0]
        if len(counts) < len(texts):
            left = f"{len(texts) - len(counts)} of {len(texts)} texts were not counted"
            raise TokenCountingError(self.name, f"{left} within {self._timeout_seconds:g} s: tokens.timeout_seconds")
        return counts


class AnthropicTokens:
    """Anthropic's count of texts, by ``POST /v1/messages/count_tokens``, without what it adds to a message."""

    def __init__(self, model: str, *, key: str, url: str, timeout_seconds: float) -> None:
        self._model = model
        self._key = key
        self._url = url
        self._timeout_seconds = timeout_seconds
        self._frame: int | None = None
        self._lock = threading.Lock()

    @contextmanager
    def connect(self) -> Iterator[Ask]:
        import httpx

        headers = {"x-api-key": self._key, "anthropic-version": ANTHROPIC_VERSION}
        with httpx.Client(base_url=self._url, headers=headers, timeout=self._timeout_seconds) as client:
            yield lambda text: self._tokens(text, client)

    def _tokens(self, text: str, client: httpx.Client) -> int:
        with self._lock:
            if self._frame is None:  # what is added to a message, from one that is a single token
                self._frame = self._total("a", client) - 1
        if text.strip():
            return self._total(text, client) - self._frame
        # A message of white space alone is refused.
        return self._total(f"a{text}", client) - self._frame - 1

    def _total(self, text: str, client: httpx.Client) -> int:
        message = {"role": "user", "content": sound(text)}
        body = {"model": self._model, "messages": [message]}
        response = client.post("/v1/messages/count_tokens", json=body).raise_for_status()
        return int(response.json()["input_tokens"])


def anthropic_counter(model: str, *, estimate: TokenCounter, timeout_seconds: float) -> RemoteCounter:
    """The counter of a Claude model, with the key in ``ANTHROPIC_API_KEY``; ``ANTHROPIC_BASE_URL`` is another address.

    Raises:
        TokenCountingError: there is no key.
    """
    key = os.environ.get("ANTHROPIC_API_KEY")
    if not key:
        raise TokenCountingError("anthropic-api", "it needs a key: set the environment variable ANTHROPIC_API_KEY")
    bare = bare_model_name(model)
    url = os.environ.get("ANTHROPIC_BASE_URL") or ANTHROPIC_URL
    tokens = AnthropicTokens(bare, key=key, url=url, timeout_seconds=timeout_seconds)
    return RemoteCounter(f"anthropic-api/{bare}", tokens.connect, estimate=estimate, timeout_seconds=timeout_seconds)
