"""What a model can hold, in every spelling of its name."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.models.base_llm import BaseLlm
from pydantic import PrivateAttr
from scripted import Chat, Scripted

from aether_context import Manifest, PackPolicy
from aether_context.tokens.model_limits import (
    DEFAULT_INPUT_TOKENS,
    OLLAMA_INPUT_TOKENS,
    known_window,
    model_window,
)

WINDOWS = {
    1_048_576: (
        "gemini-2.5-flash models/gemini-2.5-flash gemini/gemini-2.5-pro vertex_ai/gemini-2.5-pro "
        "Gemini-Flash-Latest gemini-3.1-pro-preview apigee/gemini/v1/gemini-2.5-flash "
        "projects/p/locations/l/publishers/google/models/gemini-3-pro-preview "
        "openrouter/google/gemini-2.5-pro"
    ),
    32_768: "gemini-2.5-flash-image models/gemini-2.5-flash-image-preview",
    65_536: "gemini-3-pro-image-preview",
    8_192: "gemini-2.5-flash-preview-tts gpt-4 fireworks_ai/accounts/fireworks/models/llama-v3-70b-instruct",
    131_072: (
        "gemini-2.0-flash-live-001 gemma-3-27b-it groq/openai/gpt-oss-120b bedrock/openai.gpt-oss-120b-1:0 "
        "fireworks_ai/accounts/fireworks/models/llama-v3p1-405b-instruct "
        "fireworks_ai/accounts/fireworks/models/llama-v3p3-70b-instruct "
        "fireworks_ai/accounts/fireworks/models/llama4-maverick-instruct-basic groq/llama-3.3-70b-versatile "
        "groq/meta-llama/llama-4-scout-17b-16e-instruct together_ai/meta-llama/Llama-3.3-70B-Instruct-Turbo "
        "mistral/mistral-large-latest mistral/ministral-8b-latest deepseek/deepseek-chat "
        "deepseek/deepseek-reasoner xai/grok-3-mini"
    ),
    128_000: (
        "gemini-2.5-computer-use-preview-10-2025 gpt-4o openai/gpt-4o azure/gpt-4o chatgpt-4o-latest "
        "gpt-5-chat-latest gpt-5.1-chat-latest bedrock/us.meta.llama3-3-70b-instruct-v1:0 command-r-plus "
        "openai/ft:gpt-4o-2024-08-06:acme::b1x9"
    ),
    1_000_000: (
        "gpt-4.1 azure/gpt-4.1-mini claude-opus-4-6 claude-opus-4.6 openrouter/anthropic/claude-opus-4.6 "
        "anthropic.claude-opus-4-6-v1 vertex_ai/claude-opus-4-6@default databricks/databricks-claude-opus-4-6"
    ),
    16_385: "gpt-3.5-turbo",
    200_000: (
        "o1 o3 openai/o4-mini claude-haiku-4-5 claude-haiku-4.5 claude-sonnet-4.5 claude-sonnet-4-5-20250929 "
        "anthropic/claude-sonnet-4-5 claude-3-5-sonnet-latest claude-3.7-sonnet "
        "openrouter/anthropic/claude-3.5-sonnet:beta anthropic.claude-3-5-sonnet-20241022-v2:0 "
        "us.anthropic.claude-sonnet-4-20250514-v1:0 us-gov.anthropic.claude-3-5-sonnet-20240620-v1:0 "
        "bedrock/us.anthropic.claude-sonnet-4-5-20250929-v1:0 "
        "bedrock/converse/eu.anthropic.claude-opus-4-1-20250805-v1:0 vertex_ai/claude-sonnet-4@20250514 "
        "projects/p/locations/us-east5/publishers/anthropic/models/claude-sonnet-4-5@20250929 "
        "azure_ai/claude-sonnet-4-5 databricks/databricks-claude-sonnet-4 databricks-claude-3-7-sonnet "
        "zai/glm-4.6 bedrock/zai.glm-4.6 perplexity/sonar-pro "
        "bedrock/arn:aws:bedrock:us-east-1:123456789012:inference-profile/us.anthropic.claude-sonnet-4-5-20250929-v1:0"
    ),
    272_000: (
        "gpt-5 gpt-5-2025-08-07 openai/gpt-5-mini azure/gpt-5-nano openrouter/openai/gpt-5 gpt-5.1 "
        "gpt-5.1-codex gpt-5.2-pro gpt-5.4-mini"
    ),
    922_000: "gpt-5.4 gpt-5.5",
    300_000: "bedrock/us.amazon.nova-lite-v1:0",
    256_000: "xai/grok-4-0709 cohere/command-a-03-2025",
    129_024: "dashscope/qwen-plus",
    262_144: "moonshot/kimi-k2-0905-preview bedrock/moonshot.kimi-k2-thinking",
}
"""Names as apps give them, with what the providers' pages and LiteLLM's list say that the models take."""


@pytest.mark.parametrize(
    ("model", "tokens"), [(model, tokens) for tokens, models in WINDOWS.items() for model in models.split()]
)
def test_known_models_have_their_window(model: str, tokens: int) -> None:
    assert known_window(model) == tokens


@pytest.mark.parametrize(
    "model",
    ["no-such-model-17", "hosted_vllm/llama3.1", "azure/a-deployment", "projects/p/locations/l/endpoints/123", None],
)
def test_an_unknown_model_gets_a_small_window_and_one_warning(
    model: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    model_window.cache_clear()
    with caplog.at_level(logging.WARNING, logger="aether_context"):
        windows = [model_window(model) for _ in range(3)]
    assert windows == [DEFAULT_INPUT_TOKENS] * 3
    assert [record.name for record in caplog.records] == ["aether_context"]
    assert f"set max_input_tokens = {{{model or ''!r}: …}} in the policy" in caplog.text


class Wrapped(Scripted):
    """A model with settings for its client, as ``LiteLlm`` keeps them."""

    _additional_args: dict[str, Any] = PrivateAttr(default_factory=dict)

    def given(self, **settings: Any) -> Wrapped:
        self._additional_args = settings
        return self


def manifest_of(llm: BaseLlm, **settings: Any) -> Manifest:
    """The manifest of one call of an agent with this model."""
    chat = Chat(agent=LlmAgent(name="clerk", model=llm, instruction="You help."), **settings)
    chat.say("Hello?")
    return chat.manifests()[-1]


def test_the_context_that_ollama_is_asked_for_is_the_window() -> None:
    def ollama(**settings: Any) -> Wrapped:
        return Wrapped(model="ollama_chat/llama3.1", sent=[]).given(**settings)

    manifest = manifest_of(ollama(num_ctx=16_384))
    assert (manifest.window, manifest.window_mark) == (16_384, "")
    manifest = manifest_of(ollama(num_ctx="much"))
    assert (manifest.window, manifest.window_mark) == (OLLAMA_INPUT_TOKENS, "assumed")
    manifest = manifest_of(ollama(num_ctx=16_384), policy=PackPolicy(max_input_tokens=9_000))
    assert (manifest.window, manifest.window_mark) == (9_000, "")
