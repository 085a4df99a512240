"""The context windows of models, from a public list, with a small table for models that the list lacks."""

from __future__ import annotations

import contextlib
import fnmatch
import functools
import logging
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo

logger = logging.getLogger("aether_context")

DEFAULT_INPUT_TOKENS = 32_768
"""The window that is assumed for an unknown model: small enough for nearly every model in use."""

SERVED_LOCALLY = frozenset({"ollama", "ollama_chat", "llamafile", "lm_studio", "hosted_vllm", "vllm", "xinference"})
"""LiteLLM providers whose window depends on how the server was started, not on the model."""

INPUT_TOKENS = (
    ("gemini*-tts*", 8_192),
    ("gemini*-live*", 131_072),
    ("gemini*-image*", 32_768),
    ("gemini-embedding*", 2_048),
    ("gemini-[2-9]*", 1_048_576),
    ("gemini-pro-latest", 1_048_576),
    ("gemini-flash-latest", 1_048_576),
    ("gemma-3n*", 32_768),
    ("gemma-3*", 131_072),
    ("gemma-2*", 8_192),
    ("claude-*", 200_000),
    ("gpt-4.5*", 128_000),
    ("gpt-chat-latest", 128_000),
    ("*llama-3[.-][123]*", 131_072),
    ("llama3.[123]*", 131_072),
    ("*llama-4*", 131_072),
    ("*llama-3*", 8_192),
    ("grok-*", 131_072),
    ("mistral-small-24b*", 32_768),
    ("mistral-large*", 131_072),
    ("mistral-medium*", 131_072),
    ("mistral-small*", 131_072),
    ("*mistral-nemo*", 131_072),
    ("ministral*", 131_072),
    ("pixtral*", 131_072),
    ("devstral*", 131_072),
    ("magistral*", 40_000),
    ("*mixtral-8x22b*", 65_536),
    ("command-a*", 256_000),
    ("command-r*", 128_000),
    ("qwen3-max*", 258_048),
    ("qwen3*", 40_960),
    ("kimi-k2*", 131_072),
    ("phi-4*", 16_384),
)
"""Input windows of models for which genai-prices 0.2.3 has none, by name pattern; the first that matches.

From the providers' model pages, checked against LiteLLM 1.109.1's list. Where several versions match a pattern, it has
the smallest of their windows.
"""


@functools.lru_cache(maxsize=4096)
def bare_model_name(model: str) -> str:
    """The model's own name, in lower case, from `models/x`, Vertex resource paths, `provider/x` or a Bedrock id.

    A Vertex version `x@20250514` becomes `x-20250514`.
    """
    name = model.strip().lower().rsplit("/", 1)[-1]
    name = re.sub(r"^(?:[a-z]{2,6}\.)?(?:anthropic|meta|mistral|cohere|deepseek|google|openai)\.", "", name)
    name = re.sub(r"-v\d+:\d+$|:(?:free|beta|latest|thinking|nitro)$", "", name)
    return re.sub(r"@(?:default|latest)$", "", re.sub(r"@(\d+)$", r"-\1", name))


@functools.lru_cache(maxsize=4096)
def model_window(model: str | None) -> int:
    """The most tokens that a model can read; where `shares_window` holds, those of its answer are included.

    They are from the list, else from the table, else a small default with one warning for each name.
    """
    name = model or ""
    listed_window = next((info.context_window for info in listed_models(name) if info.context_window is not None), None)
    if listed_window is not None:
        return int(listed_window)
    bare_name = bare_model_name(name)
    for pattern, tokens in INPUT_TOKENS if _provider(name) not in SERVED_LOCALLY else ():
        if fnmatch.fnmatchcase(bare_name, pattern):
            return tokens
    logger.warning("No context window is known for model %r: %d tokens are assumed.", name, DEFAULT_INPUT_TOKENS)
    return DEFAULT_INPUT_TOKENS


def shares_window(model: str | None) -> bool:
    """Whether the model's answer takes tokens of the window that it reads from."""
    return not bare_model_name(model or "").startswith(("gemini", "learnlm"))


def listed_models(model: str, *, any_provider: bool = True) -> Iterator[ModelInfo]:
    """The entries of a model in the list of `genai-prices`, best match first; none for models that are served locally.

    Args:
        any_provider: whether to look for the model at its maker where the provider in its name does not have it.
    """
    from genai_prices.data_snapshot import get_snapshot

    name, bare_name, provider = model.strip().lower(), bare_model_name(model), _provider(model)
    if not bare_name or provider in SERVED_LOCALLY:
        return
    attempts: list[tuple[str, str | None]] = []
    if provider not in ("", "models", "projects", "publishers"):  # as Google's resource names begin
        attempts += [(name.split("/", 1)[-1], provider), (bare_name, provider)]
    if any_provider or not attempts:
        attempts.append((bare_name, None))
    for reference, provider_id in attempts:
        with contextlib.suppress(LookupError):
            yield get_snapshot().find_provider_model(reference, None, provider_id, None)[1]


def _provider(model: str) -> str:
    """The part of a name before its first slash, in lower case; empty where it has none."""
    return model.strip().lower().rpartition("/")[0].partition("/")[0]
