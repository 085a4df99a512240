"""What a model can hold, in every spelling of its name."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aether_context.tokens.model_limits import DEFAULT_INPUT_TOKENS, bare_model_name, model_window, shares_window


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


@pytest.mark.parametrize(
    ("model", "tokens"),
    [
        ("gemini-2.5-flash", 1_048_576),
        ("models/gemini-2.5-flash", 1_048_576),
        ("gemini-2.5-pro", 1_048_576),
        ("projects/p/locations/l/publishers/google/models/gemini-3-pro-preview", 1_048_576),
        ("gpt-4o", 128_000),
        ("openai/gpt-4o", 128_000),
        ("anthropic/claude-sonnet-4-5", 200_000),
        ("vertex_ai/claude-sonnet-4@20250514", 200_000),
        ("bedrock/us.anthropic.claude-sonnet-4-5-20250929-v1:0", 200_000),
        ("xai/grok-4-0709", 256_000),
        ("mistral/mistral-large-latest", 131_072),
        ("command-r-plus", 128_000),
        ("gemma-3-27b-it", 131_072),
    ],
)
def test_known_models_have_their_window(model: str, tokens: int) -> None:
    assert model_window(model) == tokens


def test_output_shares_the_window_except_for_gemini() -> None:
    assert not shares_window("gemini-2.5-flash")
    assert shares_window("claude-sonnet-4-5")
    assert shares_window(None)


@pytest.mark.parametrize(
    "model", ["no-such-model-17", "ollama_chat/llama3.1", "projects/p/locations/l/endpoints/123", None]
)
def test_an_unknown_model_gets_a_small_window_and_one_warning(
    model: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    model_window.cache_clear()
    with caplog.at_level(logging.WARNING, logger="aether_context"):
        windows = [model_window(model) for _ in range(3)]
    assert windows == [DEFAULT_INPUT_TOKENS] * 3
    assert [record.name for record in caplog.records] == ["aether_context"]


@given(st.text(max_size=60))
def test_no_name_raises(name: str) -> None:
    assert model_window(name) > 0


def test_importing_does_not_load_the_list() -> None:
    program = "import sys, aether_context.tokens.model_limits; assert 'genai_prices' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
