"""How much a model can read, from a public list of models, with a small table for what the list lacks."""

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
"""Assumed for a model that nothing is known about: small enough for nearly every model in use."""

SERVED_LOCALLY = frozenset({"ollama", "ollama_chat", "llamafile", "lm_studio", "hosted_vllm", "vllm", "xinference"})
"""LiteLLM providers whose window is what the server was started with, not what the model could read."""

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
"""Input windows of models that genai-prices 0.2.3 has none for, by name pattern, the first that matches.

From the providers' model pages, checked against LiteLLM 1.109.1's list. Of several versions under one pattern the
smallest window stands.
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
    """The most tokens that a model can read, where `shares_window` those of its answer included.

    By the list, else the table, else a small default with one warning for each name.
    """
    name = model or ""
    listed = next((info.context_window for info in listed_models(name) if info.context_window is not None), None)
    if listed is not None:
        return int(listed)
    bare = bare_model_name(name)
    for pattern, tokens in INPUT_TOKENS if _provider(name) not in SERVED_LOCALLY else ():
        if fnmatch.fnmatchcase(bare, pattern):
            return tokens
    logger.warning("No context window is known for model %r: %d tokens are assumed.", name, DEFAULT_INPUT_TOKENS)
    return DEFAULT_INPUT_TOKENS


def shares_window(model: str | None) -> bool:
    """Whether an answer takes room in the window that the model reads from."""
    return not bare_model_name(model or "").startswith(("gemini", "learnlm"))


def listed_models(model: str, *, any_provider: bool = True) -> Iterator[ModelInfo]:
    """What the list of `genai-prices` says of a model, best match first; nothing for models that are served locally.

    Args:
        any_provider: where the provider that the name begins with does not have the model, asks whoever makes it.
    """
    from genai_prices.data_snapshot import get_snapshot

    name, bare, provider = model.strip().lower(), bare_model_name(model), _provider(model)
    if not bare or provider in SERVED_LOCALLY:
        return
    attempts: list[tuple[str, str | None]] = []
    if provider not in ("", "models", "projects", "publishers"):  # as Google's resource names begin
        attempts += [(name.split("/", 1)[-1], provider), (bare, provider)]
    if any_provider or not attempts:
        attempts.append((bare, None))
    for reference, provider_id in attempts:
        with contextlib.suppress(LookupError):
            yield get_snapshot().find_provider_model(reference, None, provider_id, None)[1]


def _provider(model: str) -> str:
    """What stands before the first slash of a name."""
    return model.strip().lower().rpartition("/")[0].partition("/")[0]
