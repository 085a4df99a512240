"""Chooses the token counter of a model: the registered counters, the order in which they are tried, and what follows
when one fails.

Counters are registered by name, those that need google-genai by `aether_context.adk.models.gemini`.
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

from aether_context.errors import AetherContextError, MissingExtra, PolicyError, TokenCountingError, near_names
from aether_context.policy import TokenSettings
from aether_context.tokens.counters import (
    CachedCounter,
    TokenCounter,
    TokenizerCounter,
    anthropic_counter,
    encoding_name,
    estimate_for,
    family_of,
    file_counter,
)
from aether_context.tokens.framing import through_litellm
from aether_context.tokens.model_limits import bare_model_name

RETRY_SECONDS = 30.0
"""How long a counter that failed is not used."""

_MOST_ADDED = 32
"""Tokens that a counter may put around a text."""
_MANY_CHARACTERS = 16
"""So many characters a token are rare: the estimate has a say then."""
_FAR_TOO_FEW = 8

CHAIN = ("file", "gemini-local", "tiktoken", "anthropic-api", "gemini-api", "litellm", "estimate")
"""The order of ``auto``: a vocabulary given as a file, one that is downloaded, the provider's own count, LiteLLM's
counter, the built-in estimate. Those that need the network are used only where the policy allows it."""


class Offer(NamedTuple):
    """A registered counter.

    Attributes:
        name: its name in the policy's `tokens.counter`.
        about: how it counts and for which models, in a line.
        suits: whether ``auto`` may take it for a model.
        make: creates the counter of a model; raises `MissingExtra` or `TokenCountingError` where it cannot.
        network: when it uses the network: never, to fetch its vocabulary, or for every new text.
    """

    name: str
    about: str
    suits: Callable[[str, TokenSettings], bool]
    make: Callable[[str, TokenSettings], TokenCounter]
    network: Literal["none", "once", "always"] = "none"


class Pick(NamedTuple):
    """The counter of a model.

    Attributes:
        offer: the name under which it is registered.
        remote: whether it uses the network for every new text.
        problems: why the counters before it are not used, a sentence each.
    """

    counter: TokenCounter
    offer: str
    remote: bool
    problems: tuple[str, ...] = ()


def register(offer: Offer) -> None:
    """Registers a counter, in the place of one with the same name."""
    OFFERS[offer.name] = offer


class Counters:
    """The counters of one policy. Threads may share them.

    A counter that fails is not used for `RETRY_SECONDS` and then tried again; meanwhile the next one counts.

    Args:
        clock: seconds, from any beginning.

    Raises:
        PolicyError: the policy names a counter that is not registered.
    """

    def __init__(self, settings: TokenSettings, *, clock: Callable[[], float]) -> None:
        if settings.counter != "auto" and settings.counter not in OFFERS:
            hint = near_names(settings.counter, ["auto", *OFFERS])
            raise PolicyError(f"tokens.counter = {settings.counter!r}: {hint}", field="tokens.counter")
        self._settings = settings
        self._clock = clock
        self._counters: dict[tuple[str, str], TokenCounter] = {}
        self._failed: dict[tuple[str, str], tuple[float, str]] = {}
        """The time until which a counter is not used, and why; "" where it was not requested by name."""
        self._ready: dict[str, tuple[float, Pick]] = {}
        """A model's counter, and the time until which it is used: when one before it is tried again."""
        self._lock = threading.Lock()

    def ready(self, model: str) -> Pick | None:
        """The model's counter where it is available at once; None where `pick` may have to load something."""
        valid_until, pick = self._ready.get(model, (-math.inf, None))
        return pick if self._clock() < valid_until else self._first(model, load=False)

    def pick(self, model: str) -> Pick:
        """The first counter in the model's chain that works."""
        with self._lock:
            pick = self._first(model, load=True)
        assert pick is not None, "the estimate always counts"
        return pick

    def fail(self, model: str, pick: Pick, error: TokenCountingError) -> None:
        """Records that a counter could not count, so that it is not used for `RETRY_SECONDS`."""
        self._failed[pick.offer, model] = self._clock() + RETRY_SECONDS, str(error)
        self._ready.pop(model, None)

    def _first(self, model: str, *, load: bool) -> Pick | None:
        problems: list[str] = []
        retry_at = math.inf
        for offer in self._chain(model):
            key = offer.name, model
            failed_until, reason = self._failed.get(key, (-math.inf, ""))
            if self._clock() >= failed_until:
                if key not in self._counters and not load and offer.name != "estimate":
                    return None
                try:
                    if key not in self._counters:
                        self._counters[key] = _create(offer, model, self._settings)
                    counter, remote = self._counters[key], offer.network == "always"
                    pick = Pick(counter=counter, offer=offer.name, remote=remote, problems=tuple(problems))
                    self._ready[model] = retry_at, pick
                    return pick
                except AetherContextError as error:
                    is_requested = self._settings.counter != "auto" or offer.name == "file"
                    reason = str(error) if is_requested or not isinstance(error, MissingExtra) else ""
                    failed_until = self._clock() + RETRY_SECONDS
                    self._failed[key] = failed_until, reason
            retry_at = min(retry_at, failed_until)
            if reason:
                problems.append(reason)
        return None

    def _chain(self, model: str) -> Iterator[Offer]:
        settings = self._settings
        if settings.counter != "auto":
            yield OFFERS[settings.counter]
            yield OFFERS["estimate"]
            return
        for offer in (OFFERS[name] for name in CHAIN if name in OFFERS):
            if (settings.network or offer.network == "none") and offer.suits(model, settings):
                yield offer


def _create(offer: Offer, model: str, settings: TokenSettings) -> TokenCounter:
    if offer.network == "always":
        require_network(offer.name, "sends every text over the network", settings)
    try:
        counter = offer.make(model, settings)
        return counter if offer.name == "estimate" else _Checked(offer.name, counter, estimate_for(model))
    except AetherContextError:
        raise
    except Exception as error:  # a registered counter may fail in any way
        raise TokenCountingError(offer.name, f"{type(error).__name__}: {error}") from error


class _Checked:
    """A counter whose every failure is a `TokenCountingError`, and so is a number that no tokenizer gives.

    Args:
        offer: the name under which it is registered.
        estimate: tells a number that is far too small.
    """

    def __init__(self, offer: str, counter: TokenCounter, estimate: TokenCounter) -> None:
        self.name, self.accuracy = counter.name, counter.accuracy
        self._offer = offer
        self._counter = counter
        self._estimate = estimate

    def count(self, text: str) -> int:
        return self.count_all((text,))[0]

    def count_all(self, texts: Sequence[str]) -> list[int]:
        try:
            counts = list(self._counter.count_all(texts))
        except (AetherContextError, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            raise TokenCountingError(self._offer, f"it raised {type(error).__name__}: {error}") from error
        if len(counts) != len(texts) or not all(map(self._is_sound, texts, counts)):
            raise TokenCountingError(self._offer, "it gave numbers that cannot be, such as none or far too few tokens")
        return counts

    def _is_sound(self, text: str, tokens: object) -> bool:
        """Whether a text can have so many tokens: four a character at most, and not far fewer than estimated."""
        if type(tokens) is not int or not bool(text.strip()) <= tokens <= 4 * len(text) + _MOST_ADDED:
            return False
        return tokens * _MANY_CHARACTERS >= len(text) or tokens * _FAR_TOO_FEW >= self._estimate.count(text)


def counter_for(model: str, settings: TokenSettings | None = None) -> TokenCounter:
    """The counter of a model, in any of ADK's spellings; the built-in estimate where no settings are given.

    Models of one family share their estimate and its cache.

    Raises:
        MissingExtra: the counter that the settings name needs a package that is not installed.
        PolicyError: it is not registered.
        TokenCountingError: it cannot be created.
    """
    if settings is None:
        return estimate_for(model)
    counters = Counters(settings, clock=lambda: 0.0)
    if settings.counter != "auto":
        return _create(OFFERS[settings.counter], model, settings)
    return counters.pick(model).counter


def file_of(model: str, settings: TokenSettings) -> str | None:
    """The vocabulary file that the settings name for a model or its family."""
    names = (model, bare_model_name(model), family_of(model))
    return next((settings.files[name] for name in names if name in settings.files), None)


def require_network(name: str, why: str, settings: TokenSettings) -> None:
    """Refuses a counter that uses the network where the policy does not allow it."""
    if not settings.network:
        raise TokenCountingError(name, f"it {why}: set tokens.network = true to allow that, or give tokens.files")


def _from_file(model: str, settings: TokenSettings) -> TokenCounter:
    path = file_of(model, settings)
    if path is None:
        raise TokenCountingError("file", f"tokens.files names none for {model!r} or its family {family_of(model)!r}")
    return CachedCounter(file_counter(path, model))


def _by_tiktoken(model: str, settings: TokenSettings) -> TokenCounter:
    """Counts by tiktoken's vocabularies. xAI publishes none, so its models are counted by OpenAI's."""
    path = file_of(model, settings)
    if path is not None:
        return CachedCounter(file_counter(path, model))
    try:
        import tiktoken
    except ImportError as error:
        raise MissingExtra("tiktoken", "counting by tiktoken") from error
    name = encoding_name(model)
    require_network("tiktoken", f"downloads the vocabulary {name} from openaipublic.blob.core.windows.net", settings)
    try:
        encoding = tiktoken.get_encoding(name)
    except Exception as error:  # whatever the download raises
        raise TokenCountingError("tiktoken", f"{name} could not be downloaded: {error}") from error
    counter = TokenizerCounter(
        f"tiktoken/{name}",
        lambda texts: [len(tokens) for tokens in encoding.encode_ordinary_batch(texts)],
        accuracy="exact" if _is_openai(model) else "heuristic",
    )
    return CachedCounter(counter)


def _by_litellm(model: str, settings: TokenSettings) -> TokenCounter:
    """Counts by LiteLLM's choice: OpenAI's vocabulary for most models, on pieces of 1,024 characters."""
    if any(name in model.lower() for name in ("llama-2", "llama-3", "replicate", "command-r")):
        require_network("litellm", "downloads this model's tokenizer from huggingface.co", settings)
    try:
        import litellm
    except ImportError as error:
        raise MissingExtra("litellm", "LiteLLM's counter") from error
    counter = TokenizerCounter(
        f"litellm/{bare_model_name(model)}",
        lambda texts: [litellm.token_counter(model=model, text=text) for text in texts],
        accuracy="approximate" if _is_openai(model) else "heuristic",
    )
    return CachedCounter(counter)


def _is_openai(model: str) -> bool:
    return family_of(model) == "openai" or bare_model_name(model).startswith(("gpt-4", "gpt-3"))


OFFERS: dict[str, Offer] = {
    offer.name: offer
    for offer in (
        Offer(
            name="file",
            about="The vocabulary file that `tokens.files` names for the model or its family.",
            suits=lambda model, settings: file_of(model, settings) is not None,
            make=_from_file,
        ),
        Offer(
            name="tiktoken",
            about="OpenAI's vocabularies, for OpenAI's models, and as a stand-in for xAI's, which are not published. "
            "Downloads them, unless a file is given.",
            suits=lambda model, settings: _is_openai(model) or bare_model_name(model).startswith("grok"),
            make=_by_tiktoken,
            network="once",
        ),
        Offer(
            name="anthropic-api",
            about="Anthropic's `count_tokens`, for Claude models. Sends every new text there.",
            # Claude called at Anthropic itself, not at another provider.
            suits=lambda model, settings: (
                family_of(model).startswith("claude") and (model.startswith("anthropic/") or not through_litellm(model))
            ),
            make=lambda model, settings: anthropic_counter(model, estimate_for(model)),
            network="always",
        ),
        Offer(
            name="litellm",
            about="LiteLLM's `token_counter`, for OpenAI's models that ADK calls through LiteLLM, once that is loaded; "
            "by name for any model.",
            suits=lambda model, settings: "litellm" in sys.modules and through_litellm(model) and _is_openai(model),
            make=_by_litellm,
        ),
        Offer(
            name="estimate",
            about="A table per family of models. Needs nothing, and never fails.",
            suits=lambda model, settings: True,
            make=lambda model, settings: estimate_for(model),
        ),
    )
}
"""The registered counters by name."""
