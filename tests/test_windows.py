"""What a model can hold, in every spelling of its name."""

from __future__ import annotations

import logging
import subprocess
import sys
from typing import Any

import pytest
from click.testing import CliRunner
from google.adk.agents import LlmAgent
from google.adk.models import FallbackModel
from google.adk.models.base_llm import BaseLlm
from hypothesis import given
from hypothesis import strategies as st
from pydantic import PrivateAttr
from scripted import Chat, Scripted, new_store

from aether_context import Manifest, PackPolicy
from aether_context.adk.windows import served_models
from aether_context.cli import main
from aether_context.tokens.model_limits import (
    DEFAULT_INPUT_TOKENS,
    OLLAMA_INPUT_TOKENS,
    bare_model_name,
    known_window,
    model_window,
    shares_window,
)


@pytest.mark.parametrize(
    ("spelling", "bare"),
    [
        ("gemini-2.5-flash", "gemini-2.5-flash"),
        (" Gemini-2.5-Flash ", "gemini-2.5-flash"),
        ("models/gemini-2.5-flash", "gemini-2.5-flash"),
        ("projects/p/locations/us-central1/publishers/google/models/gemini-2.5-pro", "gemini-2.5-pro"),
        ("vertex_ai/claude-sonnet-4@20250514", "claude-sonnet-4-20250514"),
        ("claude-opus-4-5@default", "claude-opus-4-5"),
        ("openrouter/anthropic/claude-3.5-sonnet:beta", "claude-3.5-sonnet"),
        ("bedrock/us.anthropic.claude-sonnet-4-5-20250929-v1:0", "claude-sonnet-4-5-20250929"),
        ("anthropic.claude-3-5-sonnet-20241022-v2:0", "claude-3-5-sonnet-20241022"),
        ("ollama_chat/llama3.1:8b", "llama3.1:8b"),
        ("apigee/gemini/v1/gemini-2.5-flash", "gemini-2.5-flash"),
        ("", ""),
    ],
)
def test_the_bare_name_is_what_the_model_is_called(spelling: str, bare: str) -> None:
    assert bare_model_name(spelling) == bare


WINDOWS = """
gemini-2.5-flash 1048576
models/gemini-2.5-flash 1048576
gemini/gemini-2.5-pro 1048576
vertex_ai/gemini-2.5-pro 1048576
gemini-flash-latest 1048576
gemini-3.1-pro-preview 1048576
projects/p/locations/l/publishers/google/models/gemini-3-pro-preview 1048576
gemini-2.5-flash-image 32768
models/gemini-2.5-flash-image-preview 32768
gemini-3-pro-image-preview 65536
gemini-2.5-flash-preview-tts 8192
gemini-2.0-flash-live-001 131072
gemini-2.5-computer-use-preview-10-2025 128000
gemma-3-27b-it 131072
openrouter/google/gemini-2.5-pro 1048576
gpt-4o 128000
openai/gpt-4o 128000
azure/gpt-4o 128000
gpt-4.1 1000000
azure/gpt-4.1-mini 1000000
gpt-4 8192
gpt-3.5-turbo 16385
chatgpt-4o-latest 128000
o1 200000
o3 200000
openai/o4-mini 200000
gpt-5 272000
gpt-5-2025-08-07 272000
openai/gpt-5-mini 272000
azure/gpt-5-nano 272000
openrouter/openai/gpt-5 272000
gpt-5.1 272000
gpt-5.1-codex 272000
gpt-5.2-pro 272000
gpt-5.4 922000
gpt-5.4-mini 272000
gpt-5.5 922000
gpt-5-chat-latest 128000
gpt-5.1-chat-latest 128000
groq/openai/gpt-oss-120b 131072
claude-haiku-4-5 200000
claude-haiku-4.5 200000
claude-sonnet-4.5 200000
claude-sonnet-4-5-20250929 200000
anthropic/claude-sonnet-4-5 200000
claude-3-5-sonnet-latest 200000
claude-3.7-sonnet 200000
claude-opus-4-6 1000000
claude-opus-4.6 1000000
openrouter/anthropic/claude-opus-4.6 1000000
openrouter/anthropic/claude-3.5-sonnet:beta 200000
anthropic.claude-3-5-sonnet-20241022-v2:0 200000
us.anthropic.claude-sonnet-4-20250514-v1:0 200000
us-gov.anthropic.claude-3-5-sonnet-20240620-v1:0 200000
anthropic.claude-opus-4-6-v1 1000000
bedrock/us.anthropic.claude-sonnet-4-5-20250929-v1:0 200000
bedrock/converse/eu.anthropic.claude-opus-4-1-20250805-v1:0 200000
vertex_ai/claude-sonnet-4@20250514 200000
vertex_ai/claude-opus-4-6@default 1000000
projects/p/locations/us-east5/publishers/anthropic/models/claude-sonnet-4-5@20250929 200000
azure_ai/claude-sonnet-4-5 200000
databricks/databricks-claude-sonnet-4 200000
databricks-claude-3-7-sonnet 200000
databricks/databricks-claude-opus-4-6 1000000
fireworks_ai/accounts/fireworks/models/llama-v3p1-405b-instruct 131072
fireworks_ai/accounts/fireworks/models/llama-v3p3-70b-instruct 131072
fireworks_ai/accounts/fireworks/models/llama-v3-70b-instruct 8192
fireworks_ai/accounts/fireworks/models/llama4-maverick-instruct-basic 131072
groq/llama-3.3-70b-versatile 131072
groq/meta-llama/llama-4-scout-17b-16e-instruct 131072
together_ai/meta-llama/Llama-3.3-70B-Instruct-Turbo 131072
bedrock/us.meta.llama3-3-70b-instruct-v1:0 128000
bedrock/us.amazon.nova-lite-v1:0 300000
mistral/mistral-large-latest 131072
mistral/ministral-8b-latest 131072
deepseek/deepseek-chat 131072
deepseek/deepseek-reasoner 131072
xai/grok-4-0709 256000
xai/grok-3-mini 131072
cohere/command-a-03-2025 256000
command-r-plus 128000
dashscope/qwen-plus 129024
moonshot/kimi-k2-0905-preview 262144
zai/glm-4.6 200000
perplexity/sonar-pro 200000
"""
"""Names as apps give them, with what the providers' pages and LiteLLM's list say that the models take."""


@pytest.mark.parametrize(("model", "tokens"), [line.split() for line in WINDOWS.split("\n") if line])
def test_known_models_have_their_window(model: str, tokens: str) -> None:
    assert known_window(model) == int(tokens)


def test_output_shares_the_window_except_where_the_limit_is_of_the_input_alone() -> None:
    assert not shares_window("gemini-2.5-flash")
    assert not shares_window("azure/gpt-5-mini")
    assert shares_window("gpt-5-chat-latest")
    assert shares_window("claude-sonnet-4-5")
    assert shares_window(None)


@pytest.mark.parametrize(
    "model", ["no-such-model-17", "hosted_vllm/llama3.1", "projects/p/locations/l/endpoints/123", None]
)
def test_an_unknown_model_gets_a_small_window_and_one_warning(
    model: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    model_window.cache_clear()
    with caplog.at_level(logging.WARNING, logger="aether_context"):
        windows = [model_window(model) for _ in range(3)]
    assert windows == [DEFAULT_INPUT_TOKENS] * 3
    assert [record.name for record in caplog.records] == ["aether_context"]
    assert "set max_input_tokens" in caplog.text


# what the model object says


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


@pytest.mark.filterwarnings("ignore:.*EXPERIMENTAL:UserWarning")
def test_a_fallback_is_packed_for_its_smallest_model() -> None:
    large, small = (Scripted(model=name, sent=[]) for name in ("gemini-2.5-flash", "gpt-4o"))
    manifest = manifest_of(FallbackModel(models=[large, small]))
    assert (manifest.model, manifest.window) == ("gemini-2.5-flash", 128_000)


def test_an_assumed_window_is_marked_where_people_look() -> None:
    store = new_store()
    manifest = manifest_of(Scripted(model="no-such-model-18", sent=[]), store=store)
    assert (manifest.window, manifest.window_mark) == (DEFAULT_INPUT_TOKENS, "assumed")
    shown = CliRunner().invoke(main, ["inspect", manifest.pack_id, "--store", store.url])
    assert "window 32,768 (assumed)" in shown.output


@given(st.text(max_size=60))
def test_no_name_raises(name: str) -> None:
    assert model_window(name) > 0


def test_importing_does_not_load_the_list() -> None:
    program = "import sys, aether_context.tokens.model_limits; assert 'genai_prices' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_model_that_adk_has_no_class_for_has_the_window_of_its_name() -> None:
    """A callback may answer in its place, so that nothing else of the run needs the class."""
    agent = LlmAgent(name="clerk", model="no-such-model")
    assert [served.name for served in served_models(agent, "no-such-model")] == ["no-such-model"]
