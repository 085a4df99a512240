"""What counts tokens, and how sure it is."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Protocol

from aether_context.pack import Accuracy


class TokenCounter(Protocol):
    """Counts the tokens of a text for one model or family of models."""

    @property
    def name(self) -> str:
        """What a manifest records: enough to tell whether another count was made the same way."""

    @property
    def accuracy(self) -> Accuracy:
        """How the counts are obtained.

        `exact` by the model's own tokenizer or its provider, `approximate` by a table of its vocabulary, `heuristic` by
        the vocabulary of others.
        """

    def count(self, text: str) -> int:
        """Tokens in the text, without any that a provider adds around a message. 0 only for the empty text."""

    def count_all(self, texts: Sequence[str]) -> list[int]:
        """The tokens of many texts, as `count` gives them one by one."""
        return [self.count(text) for text in texts]


class Remembered:
    """Counts by text, the least recently used forgotten first. Threads may share it.

    Args:
        max_texts: so many are kept.
        max_key_characters: longer texts are kept by their 16-byte hash, so that memory stays bounded.
    """

    def __init__(self, *, max_texts: int = 8192, max_key_characters: int = 1_024) -> None:
        self._max_texts = max_texts
        self._max_key_characters = max_key_characters
        self._counts: OrderedDict[str | bytes, int] = OrderedDict()
        self._lock = threading.Lock()

    def known(self, texts: Sequence[str]) -> dict[str, int]:
        """The counts of those among the texts that are remembered."""
        keys = [self._key(text) for text in texts]
        found: dict[str, int] = {}
        with self._lock:
            for text, key in zip(texts, keys, strict=True):
                if (tokens := self._counts.get(key)) is not None:
                    self._counts.move_to_end(key)
                    found[text] = tokens
        return found

    def put(self, counts: Mapping[str, int]) -> None:
        keys = [self._key(text) for text in counts]
        with self._lock:
            for key, tokens in zip(keys, counts.values(), strict=True):
                self._counts[key] = tokens
                if len(self._counts) > self._max_texts:
                    self._counts.popitem(last=False)

    def _key(self, text: str) -> str | bytes:
        return text if len(text) <= self._max_key_characters else _digest(text)


class CachedCounter:
    """A counter that remembers what it counted. Threads may share it."""

    def __init__(self, counter: TokenCounter, *, max_texts: int = 8192, max_key_characters: int = 1_024) -> None:
        """The limits are those of `Remembered`."""
        self.counter = counter
        self._remembered = Remembered(max_texts=max_texts, max_key_characters=max_key_characters)

    @property
    def name(self) -> str:
        return self.counter.name

    @property
    def accuracy(self) -> Accuracy:
        return self.counter.accuracy

    def count(self, text: str) -> int:
        return self.count_all((text,))[0]

    def count_all(self, texts: Sequence[str]) -> list[int]:
        counts = self._remembered.known(texts)
        new = [text for text in dict.fromkeys(texts) if text not in counts]
        if new:
            fresh = dict(zip(new, self.counter.count_all(new), strict=True))
            self._remembered.put(fresh)
            counts |= fresh
        return [counts[text] for text in texts]


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
