"""Token counters: the protocol, and counters by estimate, by a model's own vocabulary or by its provider."""

from __future__ import annotations

import base64
import functools
import hashlib
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence, Sized
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Generic, Protocol, TypeAlias, TypeVar

from aether_context.canonical import digest_of
from aether_context.errors import MissingExtra, TokenCountingError
from aether_context.pack import Accuracy
from aether_context.tokens.model_limits import bare_model_name

if TYPE_CHECKING:
    import httpx

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class TokenCounter(Protocol):
    """Counts the tokens of a text for one model or family of models."""

    @property
    def name(self) -> str:
        """The name that manifests record. Counters with the same name give the same counts."""

    @property
    def accuracy(self) -> Accuracy:
        """How accurate the counts are.

        `exact`: by the model's own tokenizer or its provider; `approximate`: by a table of its vocabulary; `heuristic`:
        by the vocabulary of other models.
        """

    def count(self, text: str) -> int:
        """Tokens of the text, without those that a provider adds around a message. 0 only for the empty text."""

    def count_all(self, texts: Sequence[str]) -> list[int]:
        """The tokens of many texts, the same as by `count`."""
        return [self.count(text) for text in texts]


class SharedLRU(Generic[_Key, _Value]):
    """A bounded cache that threads may share; the least recently used entry is forgotten first."""

    def __init__(self, size: int) -> None:
        self._entries: OrderedDict[_Key, _Value] = OrderedDict()
        self._size = size
        self._lock = threading.Lock()

    def get(self, key: _Key) -> _Value | None:
        with self._lock:
            value = self._entries.get(key)
            if value is not None:
                self._entries.move_to_end(key)
            return value

    def put(self, key: _Key, value: _Value) -> None:
        with self._lock:
            self._entries[key] = value
            self._entries.move_to_end(key)
            if len(self._entries) > self._size:
                self._entries.popitem(last=False)


def _key(text: str) -> str | bytes:
    """The key of a text in a cache: of a long one a hash, so that memory stays bounded."""
    if len(text) <= 1_024:
        return text
    return digest_of(text)


class CachedCounter:
    """A counter with a cache. Threads may share it.

    Args:
        counter: counts the texts that are not in the cache.
        max_texts: the most texts in the cache; the least recently used are forgotten.
    """

    def __init__(self, counter: TokenCounter, *, max_texts: int = 8192) -> None:
        self.counter = counter
        self.accuracy: Accuracy = counter.accuracy
        self._counts: SharedLRU[str | bytes, int] = SharedLRU(max_texts)

    @property
    def name(self) -> str:
        """The counter's name."""
        return self.counter.name

    def count(self, text: str) -> int:
        """Tokens of the text."""
        return self.count_all((text,))[0]

    def count_all(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each text; those that are not in the cache are counted in one call.

        Raises:
            TokenCountingError: the counter could not count them.
        """
        keys = {text: _key(text) for text in texts}
        counts = {text: known for text, key in keys.items() if (known := self._counts.get(key)) is not None}
        if missing := [text for text in keys if text not in counts]:
            for text, tokens in zip(missing, self.counter.count_all(missing), strict=True):
                counts[text] = tokens
                self._counts.put(keys[text], tokens)
        return [counts[text] for text in texts]


# The built-in estimate, by family of models.


class EstimateCounter:
    """Counts by the named tables; with several, by the highest costs in them and by the words that all know.

    Args:
        family: the name of the family that it counts for, as `family_of` returns it.
        tables: names of the tables in this package, one or more.
        accuracy: how close the counts are.
        percent: scales the count: 110 counts a tenth more than the tables say.
    """

    def __init__(self, family: str, tables: tuple[str, ...], *, accuracy: Accuracy, percent: int = 100) -> None:
        self.family = family
        self.accuracy: Accuracy = accuracy
        self._tables = tables
        self._percent = percent

    @functools.cached_property
    def name(self) -> str:
        """The family, the scale in percent, and a hash over the bytes of the tables."""
        from aether_context.tokens.estimate import table_bytes

        digest = hashlib.sha256(b"".join(map(table_bytes, self._tables))).hexdigest()
        return f"estimate/{self.family}@{self._percent}%-{digest[:12]}"

    def count(self, text: str) -> int:
        """Tokens of the text, rounded to the nearest whole one and at least 1; 0 for the empty text."""
        return self.count_all((text,))[0]

    def count_all(self, texts: Sequence[str]) -> list[int]:
        """Tokens of many texts, in a few passes over all of them; a pass costs about as much as a short text."""
        from aether_context.tokens.estimate import UNIT, text_costs  # it loads numpy

        costs = text_costs(texts, self._tables)
        return [
            max(1, (cost * self._percent // 50 + UNIT) // (2 * UNIT)) if text else 0
            for text, cost in zip(texts, costs, strict=True)
        ]


FAMILIES = (
    (r"gemini-(?:[3-9]|flash-|pro-)", EstimateCounter("gemini-3", ("gemini",), accuracy="approximate")),
    (r"gemini|gemma|learnlm", EstimateCounter("gemini", ("gemini",), accuracy="approximate")),
    (
        r"gpt-(?:4o|4\.|[5-9]|oss|chat|realtime|audio)|chatgpt|o[1-9](?:-|$)|codex|computer-use",
        EstimateCounter("openai", ("openai",), accuracy="approximate"),
    ),
    (
        r"claude-(?:v?[12]|instant|3|(?:opus|sonnet|haiku)-4(?:-[0-6])?(?:[-@]\d{8}|$)|4-)",
        EstimateCounter("claude", ("claude",), accuracy="heuristic", percent=110),
    ),
    (r"claude", EstimateCounter("claude-4.7", ("claude",), accuracy="heuristic", percent=148)),
    (r"", EstimateCounter("generic", ("gemini", "openai", "claude"), accuracy="heuristic")),
)
"""Patterns of bare model names and their counters; the first pattern that matches from the beginning decides.

Gemini counts by Gemma 3's vocabulary, which Google's SDK uses for it too (`google.genai.local_tokenizer`); for some
versions from 3.1 on that names Gemma 4's, which may differ. Media differ from 3 on. OpenAI's models from GPT-4o on
share the vocabulary o200k. Anthropic publishes only the vocabulary of Claude 2: 110% of it matches the usage reported
in a recorded session of Claude Sonnet 4.5, and models from 4.7 on are documented to need up to 1.35 times the tokens of
those before (platform.claude.com, "What's new in Claude Opus 4.7"). A model with an unknown vocabulary is counted by
the highest of the three, which its own count rarely exceeds.
"""

_CACHED = {counter.family: CachedCounter(counter) for _, counter in FAMILIES}


@functools.lru_cache(maxsize=1024)
def family_of(model: str) -> str:
    """The name of the family whose rules count the model's text and media, `generic` for an unknown model."""
    name = bare_model_name(model)
    return next(counter.family for pattern, counter in FAMILIES if re.match(pattern, name))


def estimate_for(model: str) -> TokenCounter:
    """The built-in estimate of a model; models of one family share it and its cache."""
    return _CACHED[family_of(model)]


# Counters by a model's own vocabulary, read from a file.

PATTERNS = {
    "o200k_base": (
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
        r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
        r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
    "cl100k_base": (
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]"
        r"|\s+(?!\S)|\s"
    ),
}
"""How tiktoken splits a text before it looks up the vocabulary; its files do not hold that. From `tiktoken_ext`."""


class TokenizerCounter:
    """Counts by a tokenizer that encodes many texts at once; whatever it raises becomes a `TokenCountingError`.

    Args:
        lengths: the number of tokens of each text. The texts hold no lone surrogates.
    """

    def __init__(self, name: str, lengths: Callable[[list[str]], list[int]], *, accuracy: Accuracy) -> None:
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
    return text if text.isascii() else re.sub("[\ud800-\udfff]", "\ufffd", text)


def file_counter(path: str, model: str) -> TokenizerCounter:
    """The counter of a vocabulary file: a Hugging Face ``tokenizer.json``, a tiktoken file or a SentencePiece model.

    Args:
        model: decides how a text is split before it is looked up, where the file is tiktoken's.

    Raises:
        MissingExtra: the package that reads such a file is not installed.
        TokenCountingError: the file cannot be read, or is none of the three.
    """
    file = Path(path).expanduser()
    try:
        stamp = file.stat()
        return _file_counter(file, encoding_name(model), stamp.st_size, stamp.st_mtime_ns)
    except OSError as error:
        reason = f"{path} cannot be read ({error.strerror or error}): set tokens.files to the path of a vocabulary file"
        raise TokenCountingError("file", reason) from error


def encoding_name(model: str) -> str:
    """tiktoken's name for how the model's texts are split."""
    return "cl100k_base" if re.match(r"gpt-(?:4(?:-|$)|3)", bare_model_name(model)) else "o200k_base"


@functools.lru_cache(maxsize=8)
def _file_counter(file: Path, encoding: str, size_bytes: int, changed_ns: int) -> TokenizerCounter:
    """The counter of a vocabulary file; another size or time in the key reads the file again."""
    data = file.read_bytes()
    encode: Callable[[list[str]], Sequence[Sized]]
    extra = "tiktoken"
    try:
        if data.lstrip()[:1] == b"{":
            from tokenizers import Tokenizer

            kind, tokenizer = "tokenizer.json", Tokenizer.from_str(data.decode())
            tokenizer.no_truncation()
            tokenizer.no_padding()

            def encode_json(texts: list[str]) -> Sequence[Sized]:
                if len(texts) == 1:  # a quarter faster than a batch of one
                    return [tokenizer.encode(texts[0], add_special_tokens=False)]
                return tokenizer.encode_batch_fast(texts, add_special_tokens=False)

            encode = encode_json
        elif re.match(rb"[A-Za-z0-9+/]+=* \d+\r?\n", data):
            from tiktoken import Encoding

            kind, lines = encoding, (line.split() for line in data.splitlines() if line)
            ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
            encode = Encoding(
                encoding, pat_str=PATTERNS[encoding], mergeable_ranks=ranks, special_tokens={}
            ).encode_ordinary_batch
        else:
            kind, extra = "sentencepiece", "sentencepiece"
            from sentencepiece import SentencePieceProcessor

            if not data:
                raise ValueError("it is empty")
            encode = functools.partial(SentencePieceProcessor(model_proto=data).encode, out_type=int)
    except ImportError as error:
        raise MissingExtra(extra, "counting by such a vocabulary file") from error
    except Exception as error:  # whatever the packages raise for a file that they cannot read
        reason = f"{file} is no tokenizer.json, tiktoken file or SentencePiece model: {error}"
        raise TokenCountingError("file", reason) from error
    name = f"{kind}-{hashlib.sha256(data).hexdigest()[:12]}"
    return TokenizerCounter(name, lambda texts: [len(tokens) for tokens in encode(texts)], accuracy="exact")


# Counters that ask a provider over the network.

Ask: TypeAlias = Callable[[str], int]
"""A provider's count of one text without any framing; called from several threads."""

REMOTE_SECONDS = 2.0
"""Deadline for asking a provider about all new texts of one request."""


class RemoteCounter:
    """Asks a provider for the counts of many texts at once, within one deadline for all of them.

    `count` estimates a text that was not counted before, since it is mostly called with the many versions of a text
    that is being shortened. Counts that arrive before the deadline are kept. No connection is kept.

    Args:
        connect: opens a connection for one batch of texts.
        estimate: counts single texts.
    """

    accuracy: Accuracy = "exact"

    def __init__(
        self,
        name: str,
        connect: Callable[[], AbstractContextManager[Ask]],
        *,
        estimate: TokenCounter,
        timeout_seconds: float = REMOTE_SECONDS,
    ) -> None:
        self.name = name
        self._connect = connect
        self._estimate = estimate
        self._timeout_seconds = timeout_seconds
        self._counts: SharedLRU[str | bytes, int] = SharedLRU(8192)

    def count(self, text: str) -> int:
        tokens = self._counts.get(_key(text))
        return self._estimate.count(text) if tokens is None else tokens

    def count_all(self, texts: Sequence[str]) -> list[int]:
        """Tokens of the texts, as the provider counts them.

        Raises:
            TokenCountingError: the provider refused, could not be reached, or took too long.
        """
        known = {text: self._counts.get(_key(text)) for text in texts} | {"": 0}
        counts = {text: tokens for text, tokens in known.items() if tokens is not None}
        if missing := [text for text in known if text not in counts]:
            with self._connect() as ask:
                counts |= self._counted_remotely(missing, ask)
        return [counts[text] for text in texts]

    def _counted_remotely(self, texts: Sequence[str], ask: Ask) -> dict[str, int]:
        pool = ThreadPoolExecutor(8, thread_name_prefix="aether-context-tokens")
        try:
            futures = {pool.submit(ask, text): text for text in texts}
            done, _ = wait(futures, timeout=self._timeout_seconds, return_when=FIRST_EXCEPTION)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
        errors = [error for future in done if (error := future.exception()) is not None]
        counts = {futures[future]: max(1, future.result()) for future in done if future.exception() is None}
        for text, tokens in counts.items():
            self._counts.put(_key(text), tokens)
        for fault in errors:
            if not isinstance(fault, Exception):  # an exit ends the program, in whatever thread it was raised
                raise fault
        if errors:
            raise TokenCountingError(self.name, f"{type(errors[0]).__name__}: {errors[0]}") from errors[0]
        if len(counts) < len(texts):
            uncounted = f"{len(texts) - len(counts)} of {len(texts)} texts were not counted"
            raise TokenCountingError(self.name, f"{uncounted} within {self._timeout_seconds:g} s")
        return counts


def anthropic_counter(model: str, estimate: TokenCounter) -> RemoteCounter:
    """Anthropic's count of texts, by ``POST /v1/messages/count_tokens``, without the tokens that it adds to a message.

    The environment variable ``ANTHROPIC_API_KEY`` holds the key; ``ANTHROPIC_BASE_URL`` may hold another address.

    Raises:
        TokenCountingError: there is no key.
    """
    key = os.environ.get("ANTHROPIC_API_KEY")
    if not key:
        raise TokenCountingError("anthropic-api", "it needs a key: set the environment variable ANTHROPIC_API_KEY")
    url = os.environ.get("ANTHROPIC_BASE_URL") or "https://api.anthropic.com"
    headers = {"x-api-key": key, "anthropic-version": "2023-06-01"}
    model_id, lock = bare_model_name(model), threading.Lock()
    framing_tokens: int | None = None

    def request_tokens(text: str, client: httpx.Client) -> int:
        message = {"role": "user", "content": sound(text)}
        response = client.post("/v1/messages/count_tokens", json={"model": model_id, "messages": [message]})
        return int(response.raise_for_status().json()["input_tokens"])

    def text_tokens(text: str, client: httpx.Client) -> int:
        nonlocal framing_tokens
        with lock:
            if framing_tokens is None:  # the tokens added to a message, from one that is a single token
                framing_tokens = request_tokens("a", client) - 1
        if text.strip():
            return request_tokens(text, client) - framing_tokens
        # The API refuses a message of only white space.
        return request_tokens(f"a{text}", client) - framing_tokens - 1

    @contextmanager
    def connect() -> Iterator[Ask]:
        import httpx

        with httpx.Client(base_url=url, headers=headers, timeout=REMOTE_SECONDS) as client:
            yield lambda text: text_tokens(text, client)

    return RemoteCounter(f"anthropic-api/{model_id}", connect, estimate=estimate)
