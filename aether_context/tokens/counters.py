"""What counts tokens: the port, and counters by a model's own vocabulary or by its provider."""

from __future__ import annotations

import base64
import binascii
import functools
import hashlib
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

from cachetools import LRUCache

from aether_context.errors import MissingExtra, TokenCountingError
from aether_context.pack import Accuracy
from aether_context.tokens.model_limits import bare_model_name

if TYPE_CHECKING:
    import httpx


# What counts tokens, and how sure it is.


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
        self._max_key_characters = max_key_characters
        self._counts: LRUCache[str | bytes, int] = LRUCache(max_texts)
        self._lock = threading.Lock()

    def known(self, texts: Sequence[str]) -> dict[str, int]:
        """The counts of those among the texts that are remembered."""
        keys = [self._key(text) for text in texts]
        found: dict[str, int] = {}
        with self._lock:
            for text, key in zip(texts, keys, strict=True):
                if (tokens := self._counts.get(key)) is not None:
                    found[text] = tokens
        return found

    def put(self, counts: Mapping[str, int]) -> None:
        keys = [self._key(text) for text in counts]
        with self._lock:
            for key, tokens in zip(keys, counts.values(), strict=True):
                self._counts[key] = tokens

    def _key(self, text: str) -> str | bytes:
        return text if len(text) <= self._max_key_characters else _digest(text)


class CachedCounter:
    """A counter that remembers what it counted. Threads may share it.

    Args:
        counter: counts the texts that are not remembered.
        max_texts: texts that are remembered at most; those asked for last stay.
        max_key_characters: a longer text is remembered by a hash instead of itself.
    """

    def __init__(self, counter: TokenCounter, *, max_texts: int = 8192, max_key_characters: int = 1_024) -> None:
        self.counter = counter
        self._remembered = Remembered(max_texts=max_texts, max_key_characters=max_key_characters)

    @property
    def name(self) -> str:
        """The counter's."""
        return self.counter.name

    @property
    def accuracy(self) -> Accuracy:
        """The counter's."""
        return self.counter.accuracy

    def count(self, text: str) -> int:
        """Tokens of the text."""
        return self.count_all((text,))[0]

    def count_all(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each text; those that are not remembered are counted in one call.

        Raises:
            TokenCountingError: the counter could not count them.
        """
        counts = self._remembered.known(texts)
        new = [text for text in dict.fromkeys(texts) if text not in counts]
        if new:
            fresh = dict(zip(new, self.counter.count_all(new), strict=True))
            self._remembered.put(fresh)
            counts |= fresh
        return [counts[text] for text in texts]


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


# Counters by a model's own vocabulary, read from a file.

Lengths: TypeAlias = Callable[[Sequence[str]], list[int]]
"""The number of tokens of each text. The texts hold no lone surrogates."""

O200K = "o200k_base"

PATTERNS = {
    O200K: (
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
        r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
        r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
    "cl100k_base": (
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]"
        r"|\s+(?!\S)|\s"
    ),
}
"""How tiktoken parts a text before it looks into the vocabulary, which its files do not say. From `tiktoken_ext`."""

_TIKTOKEN_LINE = re.compile(rb"[A-Za-z0-9+/]+=* \d+\r?\n")
_SURROGATES = re.compile("[\ud800-\udfff]")


class TokenizerCounter:
    """Counts by a tokenizer that encodes many texts at once; whatever it raises becomes a `TokenCountingError`."""

    def __init__(self, name: str, lengths: Lengths, *, accuracy: Accuracy) -> None:
        self.name = name
        self.accuracy: Accuracy = accuracy
        self._lengths = lengths

    def count(self, text: str) -> int:
        return self.count_all((text,))[0]

    def count_all(self, texts: Sequence[str]) -> list[int]:
        try:
            counts = self._lengths([sound(text) for text in texts])
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic in a tokenizer written in Rust is no Exception
            raise TokenCountingError(self.name, f"{type(error).__name__}: {error}") from error
        return [max(1, tokens) if text else 0 for text, tokens in zip(texts, counts, strict=True)]


def sound(text: str) -> str:
    """The text with U+FFFD for each lone surrogate, which no tokenizer takes."""
    return text if text.isascii() else _SURROGATES.sub("\ufffd", text)


def file_counter(path: str, model: str) -> TokenizerCounter:
    """The counter of a vocabulary file: a Hugging Face ``tokenizer.json``, a tiktoken file or a SentencePiece model.

    Args:
        model: decides how a text is parted before it is looked up, where the file is tiktoken's.

    Raises:
        MissingExtra: the package that reads such a file is not installed.
        TokenCountingError: the file cannot be read, or is none of the three.
    """
    place = Path(path).expanduser()
    try:
        stamp = place.stat()
        return _file_counter(place, encoding_name(model), stamp.st_size, stamp.st_mtime_ns)
    except OSError as error:
        reason = f"{path} cannot be read ({error.strerror or error}): set tokens.files to the path of a vocabulary file"
        raise TokenCountingError("file", reason) from error


def encoding_name(model: str) -> str:
    """tiktoken's name for how the model parts a text."""
    return "cl100k_base" if re.match(r"gpt-(?:4(?:-|$)|3)", bare_model_name(model)) else O200K


@functools.lru_cache(maxsize=8)
def _file_counter(place: Path, encoding: str, size_bytes: int, changed_ns: int) -> TokenizerCounter:
    """The counter of a file as it was at that size and time."""
    data = place.read_bytes()
    mark = hashlib.sha256(data).hexdigest()[:12]
    try:
        if data.lstrip()[:1] == b"{":
            return TokenizerCounter(f"tokenizer.json-{mark}", _tokenizer_json(data), accuracy="exact")
        if _TIKTOKEN_LINE.match(data):
            return TokenizerCounter(f"{encoding}-{mark}", _tiktoken(data, encoding), accuracy="exact")
        return TokenizerCounter(f"sentencepiece-{mark}", _sentencepiece(data), accuracy="exact")
    except (ValueError, RuntimeError, binascii.Error) as error:
        reason = f"{place} is no tokenizer.json, tiktoken file or SentencePiece model: {error}"
        raise TokenCountingError("file", reason) from error


def _tokenizer_json(data: bytes) -> Lengths:
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_str(data.decode())
    except Exception as error:  # the package raises no narrower class
        raise ValueError(error) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def lengths(texts: Sequence[str]) -> list[int]:
        if len(texts) == 1:
            return [len(tokenizer.encode(texts[0], add_special_tokens=False))]
        return [len(one) for one in tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]

    return lengths


def _tiktoken(data: bytes, encoding: str) -> Lengths:
    try:
        from tiktoken import Encoding
    except ImportError as error:
        raise MissingExtra("tiktoken", "counting by a tiktoken file") from error
    lines = (line.split() for line in data.splitlines() if line)
    ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
    tokenizer = Encoding(encoding, pat_str=PATTERNS[encoding], mergeable_ranks=ranks, special_tokens={})
    return lambda texts: [len(one) for one in tokenizer.encode_ordinary_batch(list(texts))]


def _sentencepiece(data: bytes) -> Lengths:
    try:
        from sentencepiece import SentencePieceProcessor
    except ImportError as error:
        raise MissingExtra("sentencepiece", "counting by a SentencePiece model") from error
    if not data:
        raise ValueError("it is empty")
    tokenizer = SentencePieceProcessor(model_proto=data)
    return lambda texts: [len(one) for one in tokenizer.encode(list(texts), out_type=int)]


# Counters that ask a provider over the network.

Ask: TypeAlias = Callable[[str], int]
"""A provider's count of one text without any framing; called from several threads."""

ANTHROPIC_URL = "https://api.anthropic.com"
ANTHROPIC_VERSION = "2023-06-01"

REMOTE_SECONDS = 2.0
"""Deadline for asking a provider about all new texts of one request."""

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
            raise TokenCountingError(self.name, f"{left} within {self._timeout_seconds:g} s")
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
