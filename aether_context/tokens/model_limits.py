"""The input windows of models: from a small table of our own, ``model_windows.toml``, and from a public list."""

from __future__ import annotations

import contextlib
import fnmatch
import functools
import logging
import re
from collections.abc import Mapping
from importlib import resources
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo

logger = logging.getLogger("aether_context")

DEFAULT_INPUT_TOKENS = 32_768
"""The window that is assumed for an unknown model: small enough for nearly every model in use."""

OLLAMA_INPUT_TOKENS = 4_096
"""The window that is assumed for a model of Ollama, which cuts what is longer without a word: its ``num_ctx`` unless
the server or the request says otherwise."""

_VENDORS = "anthropic|meta|mistral|cohere|deepseek|google|openai|qwen|moonshot|xai|zai"
"""Whose models Bedrock serves under names that begin with theirs."""

SERVED_LOCALLY = frozenset({"ollama", "ollama_chat", "llamafile", "lm_studio", "hosted_vllm", "vllm", "xinference"})
"""LiteLLM providers whose window depends on how the server was started, not on the model."""


@functools.lru_cache(maxsize=4096)
def bare_model_name(model: str) -> str:
    """The model's own name, in lower case, from `models/x`, Vertex resource paths, `provider/x` or a Bedrock id.

    A Vertex version `x@20250514` becomes `x-20250514`; a scripted model `x-scripted` has the name that it stands for.
    """
    name = model.strip().lower().rsplit("/", 1)[-1].removeprefix("databricks-").removesuffix("-scripted")
    name = re.sub(rf"^(?:[a-z-]{{2,6}}\.)?(?:{_VENDORS})\.", "", name)
    name = re.sub(r"-v?\d+:\d+$|(?<=\d)-v\d+$|:(?:free|beta|latest|thinking|nitro)$", "", name)
    return re.sub(r"@(?:default|latest)$", "", re.sub(r"@(\d+)$", r"-\1", name))


@functools.lru_cache(maxsize=4096)
def known_window(model: str) -> int | None:
    """The most tokens that a model can read; where `shares_window` holds, those of its answer are included.

    They are from the own table, else from the list, else those of the model's family. None where nobody knows, as for
    models whose window depends on how their server was started.
    """
    if provider_of(model) in SERVED_LOCALLY:
        return None
    name = bare_model_name(model)
    if name.startswith("ft:"):  # a fine-tuned model of OpenAI's, ft:model:organization::id
        return known_window(name.split(":")[1])
    tokens = _matching("models", name)
    if tokens is None:
        tokens = next((info.context_window for info in listed_models(model) if info.context_window is not None), None)
    return int(tokens) if tokens is not None else _matching("families", name)


@functools.lru_cache(maxsize=4096)
def model_window(model: str | None) -> int:
    """The window of a model; where it is not known, a small one is assumed, with one warning for each name."""
    window = known_window(model or "")
    if window is not None:
        return window
    name, is_ollama = model or "", provider_of(model or "").startswith("ollama")
    assumed = OLLAMA_INPUT_TOKENS if is_ollama else DEFAULT_INPUT_TOKENS
    cure = f"{'give LiteLlm num_ctx=…, or ' if is_ollama else ''}set max_input_tokens = {{{name!r}: …}} in the policy"
    logger.warning(
        "No window is known for model %r: %d tokens are assumed. Where it has another, %s.", name, assumed, cure
    )
    return assumed


LimitKind: TypeAlias = Literal["tokens", "bytes", "media", "pages"]


class RequestLimits(NamedTuple):
    """The most that a provider takes in one request beside tokens; None where no limit is known.

    Attributes:
        bytes: of the request's JSON, in which media are base64.
        media: images and documents, by whatever way they are sent.
        pages: of all PDF documents that are sent inline.
    """

    bytes: int | None = None
    media: int | None = None
    pages: int | None = None


@functools.lru_cache(maxsize=4096)
def request_limits(model: str) -> RequestLimits:
    """The limits of a model's requests, from the own table."""
    name = bare_model_name(model)
    return RequestLimits(*(_matching(table, name) for table in RequestLimits._fields))


def cache_terms(model: str) -> tuple[int, int]:
    """The smallest request in tokens that a provider caches, and the seconds for which it keeps that at least."""
    name = bare_model_name(model)
    return _matching("cached_tokens", name) or 0, _matching("cached_seconds", name) or 0


def calls_functions(model: str) -> bool:
    """Tells whether a model takes declarations of functions, as nearly all do."""
    return not _matching("without_functions", bare_model_name(model))


def shares_window(model: str | None) -> bool:
    """Tells whether the model's answer takes tokens of the window that it reads from."""
    name = bare_model_name(model or "")
    return not name.startswith(("gemini", "learnlm")) and not re.match(r"gpt-[56](?!.*-chat)", name)


@functools.lru_cache(maxsize=1024)
def listed_models(model: str, *, any_provider: bool = True) -> tuple[ModelInfo, ...]:
    """The entries of a model in the list of `genai-prices`, best match first; none for models that are served locally.

    Args:
        any_provider: whether to look for the model at its maker where the provider in its name does not have it.
    """
    from genai_prices.data_snapshot import get_snapshot

    name, bare_name, provider = model.strip().lower(), bare_model_name(model), provider_of(model)
    if not bare_name or provider in SERVED_LOCALLY:
        return ()
    attempts: list[tuple[str, str | None]] = []
    if provider not in ("", "models", "projects", "publishers"):  # as Google's resource names begin
        attempts += [(name.split("/", 1)[-1], provider), (bare_name, provider)]
    if any_provider or not attempts:
        attempts.append((bare_name, None))
    if "." in bare_name and bare_name.startswith("claude-"):
        attempts += [(reference.replace(".", "-"), provider_id) for reference, provider_id in attempts]
    models = []
    for reference, provider_id in attempts:
        with contextlib.suppress(LookupError):
            models.append(get_snapshot().find_provider_model(reference, None, provider_id, None)[1])
    return tuple(models)


def _matching(table: str, name: str) -> int | None:
    return next((tokens for pattern, tokens in _tables()[table].items() if fnmatch.fnmatchcase(name, pattern)), None)


@functools.cache
def _tables() -> Mapping[str, Mapping[str, int]]:
    import tomllib

    return tomllib.loads(resources.files(__package__).joinpath("model_windows.toml").read_text("utf-8"))


def provider_of(model: str) -> str:
    """The part of a name before its first slash, in lower case; empty where it has none."""
    return model.strip().lower().rpartition("/")[0].partition("/")[0]
