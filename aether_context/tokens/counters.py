"""Token counters: the protocol, the built-in estimate, and tokenizers; and the choice of one by policy and model."""

from __future__ import annotations

import functools
import hashlib
import math
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from aether_context.canonical import digest_of
from aether_context.errors import PolicyError, TokenCountingError, near_names
from aether_context.pack import NOTHING, Accuracy
from aether_context.policy import TokenSettings
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
    """A bounded cache that threads may share; the least recently used entry is forgotten first."""

    def __init__(self, size: int) -> None:
        self._entries: OrderedDict[_Key, _Value] = OrderedDict()
        self._size = size
        self._lock = threading.RLock()

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
            return self._entries.pop(key, None)


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
        self, family: str, tables: tuple[str, ...], *, accuracy: Accuracy, percent: int = 100, max_texts: int = 8_192
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
        TokenCountingError: the file cannot be read, or is none.
    """
    from tokenizers import Tokenizer as FileTokenizer

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


# The choice of a model's counter: the estimate, or what the policy asks for, as long as it works.

RETRY_SECONDS = 30.0
"""How long a counter that failed is not used."""

_MOST_ADDED = 32
"""Tokens that a counter may put around a text."""
_MANY_CHARACTERS = 16
"""So many characters a token are rare: the estimate has a say then."""
_FAR_TOO_FEW = 8

_BUILT_IN = ("auto", "estimate", "file", "tiktoken", "gemini-local")
_REGISTERED: dict[str, Tokenizer] = {}

MakeTokenizer: TypeAlias = Callable[[str], Tokenizer]
"""Makes the tokenizer of a model; may raise anything."""


class CountsTexts(Protocol):
    """All that a counter of an app's own has to have."""

    def count(self, text: str) -> int:
        """Tokens of a text."""


class Pick(NamedTuple):
    """The counter of a model.

    Attributes:
        name: its name in the policy's `tokens.counter`.
        may_wait: whether it is an app's own, which may be slow or ask somebody over the network.
        problems: why another one is not used, a sentence each.
    """

    counter: TokenCounter
    name: str
    may_wait: bool = False
    problems: tuple[str, ...] = ()


def register_counter(name: str, counter: CountsTexts) -> None:
    """Makes a counter available to policies as ``tokens.counter``; one of that name is replaced.

    It is called from any thread, with texts without lone surrogates. Where it raises, takes longer than ten seconds or
    gives a number that cannot be, the estimate counts for `RETRY_SECONDS`, and the manifest says so.

    Args:
        counter: has ``count(text)``. What else it may have: ``count_all(texts)``, for many at once; ``name``, which
            manifests record and which changes when counts do; ``accuracy``, as a `TokenCounter` has it, else
            ``heuristic``.

    Raises:
        PolicyError: the name is empty or one of the package's own, or the counter cannot be used.
    """
    if not name.strip() or name in _BUILT_IN:
        raise PolicyError(f"counter name {name!r} is empty or taken: choose another one", field="name")
    if not callable(getattr(counter, "count", None)):
        raise PolicyError(f"counter {counter!r} cannot count: give it a method count(text)", field="counter")
    accuracy: Accuracy = getattr(counter, "accuracy", "heuristic")
    if accuracy not in ("exact", "approximate", "heuristic"):
        hint = "give it 'exact', 'approximate' or 'heuristic'"
        raise PolicyError(f"counter {name!r} has accuracy = {accuracy!r}: {hint}", field="accuracy")
    count_all = getattr(counter, "count_all", None) or (lambda texts: [counter.count(text) for text in texts])
    _REGISTERED[name] = Tokenizer(str(getattr(counter, "name", name)), count_all, accuracy)


class Counters:
    """The counters of one policy. Threads may share them.

    A counter that fails is not used for `RETRY_SECONDS` and then tried again; meanwhile the estimate counts.

    Args:
        clock: seconds, from any beginning.
        tokenizers: more that the policy may name.

    Raises:
        PolicyError: the policy names a counter that nobody has registered.
    """

    def __init__(
        self, settings: TokenSettings, *, clock: Callable[[], float], tokenizers: Mapping[str, MakeTokenizer] = NOTHING
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._tokenizers = {"file": self._tokenizer_of_file, "tiktoken": tiktoken_tokenizer, **tokenizers}
        names = ("auto", "estimate", *self._tokenizers, *_REGISTERED)
        if settings.counter not in names:
            hint = near_names(settings.counter, names)
            raise PolicyError(f"tokens.counter = {settings.counter!r}: {hint}", field="tokens.counter")
        self._picks: dict[str, Pick] = {}
        self._failed: dict[str, tuple[float, str]] = {}
        """The time until which a model's counter is not used, and why."""
        self._lock = threading.Lock()

    def ready(self, model: str) -> Pick | None:
        """The model's counter where it is available at once; None where `pick` may have to load something."""
        estimate = Pick(counter_for(model), "estimate")
        if self._name(model) == "estimate":
            return estimate
        failed_until, problem = self._failed.get(model, (-math.inf, ""))
        if self._clock() < failed_until:
            return estimate._replace(problems=(problem,))
        return self._picks.get(model)

    def pick(self, model: str) -> Pick:
        """The model's counter; the estimate where it cannot be had."""
        with self._lock:
            if self.ready(model) is None:
                try:
                    self._picks[model] = self._make(model)
                except TokenCountingError as error:
                    self.fail(model, error)
        return self.ready(model) or Pick(counter_for(model), "estimate")

    def fail(self, model: str, error: TokenCountingError) -> None:
        """Records that the model's counter could not count, so that it is not used for `RETRY_SECONDS`."""
        self._failed[model] = self._clock() + RETRY_SECONDS, str(error)

    def _name(self, model: str) -> str:
        if self._settings.counter != "auto":
            return self._settings.counter
        return "file" if self._file(model) else "estimate"

    def _file(self, model: str) -> str:
        """The vocabulary file that the settings name for a model or its family; empty where they name none."""
        names, files = (model, bare_model_name(model), family_of(model)), self._settings.files
        return next((files[name] for name in names if name in files), "")

    def _tokenizer_of_file(self, model: str) -> Tokenizer:
        if path := self._file(model):
            return tokenizer_of_file(path)
        raise TokenCountingError("file", f"tokens.files names none for {model!r} or its family {family_of(model)!r}")

    def _make(self, model: str) -> Pick:
        name = self._name(model)
        try:
            make = self._tokenizers.get(name)
            tokenizer = _REGISTERED[name] if make is None else make(model)
        except TokenCountingError:
            raise
        except ImportError as error:
            cure = f"pip install {error.name}" if error.name else ""
            raise TokenCountingError(name, str(error), suggestion=cure) from error
        except Exception as error:  # a model that it does not know, a download that fails
            raise TokenCountingError(name, f"{type(error).__name__}: {error}") from error
        return Pick(_Checked(name, tokenizer, counter_for(model)), name, may_wait=make is None)


class _Checked:
    """A tokenizer whose every failure is a `TokenCountingError`, and so is a number that no tokenizer gives.

    Args:
        called: its name in the policy's `tokens.counter`.
        estimate: tells a number that is far too small.
    """

    def __init__(self, called: str, tokenizer: Tokenizer, estimate: TokenCounter) -> None:
        self.name, self.accuracy = tokenizer.name, tokenizer.accuracy
        self._called = called
        self._lengths = tokenizer.lengths
        self._estimate = estimate

    def count(self, text: str) -> int:
        return self.count_all((text,))[0]

    def count_all(self, texts: Sequence[str]) -> list[int]:
        try:
            counts = list(self._lengths([sound(text) for text in texts]))
        except (TokenCountingError, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic in a tokenizer written in Rust is no Exception
            raise TokenCountingError(self._called, f"it raised {type(error).__name__}: {error}") from error
        if len(counts) != len(texts) or not all(map(self._is_sound, texts, counts)):
            raise TokenCountingError(self._called, "it gave numbers that cannot be, such as none or far too few tokens")
        return [max(1, tokens) if text else 0 for text, tokens in zip(texts, counts, strict=True)]

    def _is_sound(self, text: str, tokens: object) -> bool:
        """Tells whether a text can have so many tokens: four a character at most, and not far fewer than estimated."""
        if type(tokens) is not int or not bool(text.strip()) <= tokens <= 4 * len(text) + _MOST_ADDED:
            return False
        tokens = max(tokens, bool(text))  # some leave out white space
        return tokens * _MANY_CHARACTERS >= len(text) or tokens * _FAR_TOO_FEW >= self._estimate.count(text)
