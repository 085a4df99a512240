"""Token counters: the protocol, the built-in estimate, and tokenizers that count many texts at once."""

from __future__ import annotations

import functools
import hashlib
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, NamedTuple, Protocol, TypeVar

from aether_context.canonical import digest_of
from aether_context.errors import MissingExtra, TokenCountingError
from aether_context.pack import Accuracy
from aether_context.tokens.model_limits import bare_model_name

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class TokenCounter(Protocol):
    """Counts the tokens of a text for one model or family of models."""

    @property
    def name(self) -> str:
        """The name that manifests record. Counters with the same name give the same counts."""

    @property
    def accuracy(self) -> Accuracy:
        """The accuracy of the counts.

        `exact`: by the model's own tokenizer; `approximate`: by a table of its vocabulary; `heuristic`: by that of
        other models.
        """

    def count(self, text: str) -> int:
        """Tokens of the text, without those that a provider adds around a message. 0 only for the empty text."""

    def count_all(self, texts: Sequence[str]) -> list[int]:
        """The tokens of many texts, the same as by `count`."""
        return [self.count(text) for text in texts]


class SharedLRU(Generic[_Key, _Value]):
    """A bounded cache that threads may share; the least recently used entries are forgotten first.

    Args:
        size: the most that all values weigh together.
        weigh: the weight of a value that is put there; by default each weighs 1.
    """

    def __init__(self, size: int, weigh: Callable[[_Value], int] = lambda _: 1) -> None:
        self._entries: OrderedDict[_Key, _Value] = OrderedDict()
        self._size, self._weigh = size, weigh
        self._weight = 0
        self._lock = threading.RLock()

    def get(self, key: _Key) -> _Value | None:
        with self._lock:
            value = self._entries.get(key)
            if value is not None:
                self._entries.move_to_end(key)
            return value

    def put(self, key: _Key, value: _Value) -> None:
        with self._lock:
            self.pop(key)
            self._entries[key] = value
            self._weight += self._weigh(value)
            while self._weight > self._size and len(self._entries) > 1:
                self.pop(next(iter(self._entries)))

    def get_or_put(self, key: _Key, make: Callable[[_Key], _Value]) -> _Value:
        """The value of a key, which is made where there is none."""
        with self._lock:
            value = self.get(key)
            if value is None:
                value = make(key)
                self.put(key, value)
            return value

    def values(self) -> list[_Value]:
        """All values, the least recently used first."""
        with self._lock:
            return list(self._entries.values())

    def pop(self, key: _Key) -> _Value | None:
        with self._lock:
            value = self._entries.pop(key, None)
            self._weight -= self._weigh(value) if value is not None else 0
            return value


def _key(text: str) -> str | bytes:
    """The key of a text in a cache: of a long one a hash, so that memory stays bounded."""
    return text if len(text) <= 1_024 else digest_of(text)


# The built-in estimate, by family of models.


class EstimateCounter:
    """Counts by the named tables; with several, by the highest costs in them and by the words that all know.

    It remembers the texts counted last. Threads may share it.

    Args:
        family: the name of the family that it counts for, as `family_of` returns it.
        tables: names of the tables in this package, one or more.
        accuracy: how close the counts are.
        percent: scales the count: 110 counts a tenth more than the tables say.
        max_texts: the most texts that it remembers; the least recently used are forgotten.
    """

    def __init__(
        self, family: str, tables: tuple[str, ...], *, accuracy: Accuracy, percent: int = 100, max_texts: int = 2_048
    ) -> None:
        self.family = family
        self.accuracy: Accuracy = accuracy
        self._tables = tables
        self._percent = percent
        self._counts: SharedLRU[str | bytes, int] = SharedLRU(max_texts)

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
        """Tokens of many texts, in a few passes over all that are new; a pass costs about as much as a short text."""
        from aether_context.tokens.estimate import UNIT, text_costs  # it loads numpy

        keys = {text: _key(text) for text in texts}
        counts = {text: count for text, key in keys.items() if (count := self._counts.get(key)) is not None}
        if missing := [text for text in keys if text not in counts]:
            for text, cost in zip(missing, text_costs(missing, self._tables), strict=True):
                counts[text] = max(1, (cost * self._percent // 50 + UNIT) // (2 * UNIT)) if text else 0
                self._counts.put(keys[text], counts[text])
        return [counts[text] for text in texts]


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
    (r"grok", EstimateCounter("xai", ("openai",), accuracy="heuristic")),
    (r"", EstimateCounter("generic", ("gemini", "openai", "claude"), accuracy="heuristic")),
)
"""Patterns of bare model names and their counters; the first pattern that matches from the beginning decides.

Gemini counts by Gemma 3's vocabulary, which Google's SDK uses for it too (`google.genai.local_tokenizer`); for some
versions from 3.1 on that names Gemma 4's, which may differ. Media differ from 3 on. OpenAI's models from GPT-4o on
share the vocabulary o200k. Anthropic publishes only the vocabulary of Claude 2: 110% of it matches the usage reported
in a recorded session of Claude Sonnet 4.5, and models from 4.7 on are documented to need up to 1.35 times the tokens of
those before (platform.claude.com, "What's new in Claude Opus 4.7"). Texts for xAI's models are counted as OpenAI's, and
their media, of which no rule is known here, by the highest of all. A model with an unknown vocabulary is counted by the
highest of the three, which its own count rarely exceeds.
"""


@functools.lru_cache(maxsize=1024)
def counter_for(model: str) -> EstimateCounter:
    """The built-in estimate of a model, in any of ADK's spellings; models of one family share it and its memory."""
    name = bare_model_name(model)
    return next(counter for pattern, counter in FAMILIES if re.match(pattern, name))


def family_of(model: str) -> str:
    """The name of the family whose rules count the model's text and media, `generic` for an unknown model."""
    return counter_for(model).family


def takes_media(model: str) -> bool:
    """Tells whether a model takes media in the answers of tools: Gemini up to 2.5 does not."""
    return family_of(model) != "gemini"


# Counters by a model's own vocabulary.


class Tokenizer(NamedTuple):
    """A counter of many texts at once. It may raise anything: `Counters` checks what it gives.

    Attributes:
        name: the name that manifests record.
        lengths: the number of tokens of each text. The texts hold no lone surrogates.
    """

    name: str
    lengths: Callable[[list[str]], Sequence[int]]
    accuracy: Accuracy = "exact"


def sound(text: str) -> str:
    """The text with U+FFFD for each lone surrogate, which no tokenizer takes."""
    return text if text.isascii() else re.sub("[\ud800-\udfff]", "\ufffd", text)


@functools.lru_cache(maxsize=8)
def tokenizer_of_file(path: str) -> Tokenizer:
    """Counts by a Hugging Face ``tokenizer.json``, which is read once a process.

    Raises:
        TokenCountingError: the file cannot be read, or is none, or the extra ``tokenizers`` is not installed.
    """
    try:
        from tokenizers import Tokenizer as FileTokenizer
    except ImportError as error:
        raise TokenCountingError("file", str(MissingExtra("tokenizers", "a tokenizer.json"))) from error
    try:
        data = Path(path).expanduser().read_bytes()
    except OSError as error:
        reason = f"{path} cannot be read ({error.strerror or error})"
        cure = "set tokens.files to the path of a tokenizer.json"
        raise TokenCountingError("file", reason, suggestion=cure) from error
    try:
        tokenizer = FileTokenizer.from_str(data.decode())
    except Exception as error:  # whatever the package raises for a file that it cannot read
        raise TokenCountingError("file", f"{path} is no tokenizer.json: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def lengths(texts: list[str]) -> list[int]:
        if len(texts) == 1:  # a quarter faster than a batch of one
            return [len(tokenizer.encode(texts[0], add_special_tokens=False))]
        return [len(tokens) for tokens in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]

    return Tokenizer(f"tokenizer.json-{hashlib.sha256(data).hexdigest()[:12]}", lengths)


def tiktoken_tokenizer(model: str) -> Tokenizer:
    """Counts by tiktoken, which downloads OpenAI's vocabularies; other models are counted by that of GPT-4o."""
    import tiktoken

    is_old = re.match(r"gpt-(?:4(?:-|$)|3)", bare_model_name(model))
    encoding = tiktoken.get_encoding("cl100k_base" if is_old else "o200k_base")
    return Tokenizer(
        f"tiktoken/{encoding.name}",
        lambda texts: [len(tokens) for tokens in encoding.encode_ordinary_batch(texts)],
        accuracy="exact" if is_old or family_of(model) == "openai" else "heuristic",
    )
