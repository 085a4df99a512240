"""Chooses the token counter of a model: the estimate, or what the policy asks for, as long as it works."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from aether_context.errors import PolicyError, TokenCountingError, near_names
from aether_context.pack import NOTHING, Accuracy
from aether_context.policy import TokenSettings
from aether_context.tokens.counters import (
    TokenCounter,
    Tokenizer,
    counter_for,
    family_of,
    sound,
    tiktoken_tokenizer,
    tokenizer_of_file,
)
from aether_context.tokens.model_limits import bare_model_name

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
        family, files = family_of(model), self._settings.files
        names = (model, bare_model_name(model), family, family.partition("-")[0])
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
