"""What counts tokens, and how sure it is."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from typing import Protocol

from aether_context.pack import Accuracy


class TokenCounter(Protocol):
    """Counts the tokens of a text for one model or family of models."""

    @property
    def name(self) -> str:
        """What a manifest records: enough to tell whether another count was made the same way."""

    @property
    def accuracy(self) -> Accuracy:
        """How the counts are obtained: `approximate` by the model's own vocabulary, `heuristic` by that of others."""

    def count(self, text: str) -> int:
        """Tokens in the text, without any that a provider adds around a message. 0 only for the empty text."""


class CachedCounter:
    """A counter that remembers texts, by content, the least recently used forgotten first. Threads may share it."""

    def __init__(self, counter: TokenCounter, *, max_texts: int = 8192, max_key_characters: int = 1_024) -> None:
        """Texts longer than `max_key_characters` are remembered by their 16-byte hash, so that memory stays bounded."""
        self.counter = counter
        self._max_texts = max_texts
        self._max_key_characters = max_key_characters
        self._counts: OrderedDict[str | bytes, int] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        return self.counter.name

    @property
    def accuracy(self) -> Accuracy:
        return self.counter.accuracy

    def count(self, text: str) -> int:
        key = text if len(text) <= self._max_key_characters else _digest(text)
        with self._lock:
            found = self._counts.get(key)
            if found is not None:
                self._counts.move_to_end(key)
                return found
        counted = self.counter.count(text)
        with self._lock:
            self._counts[key] = counted
            if len(self._counts) > self._max_texts:
                self._counts.popitem(last=False)
        return counted


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
