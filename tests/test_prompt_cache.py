"""What Claude's prompt cache serves of a session, by the rules that Anthropic documents, over ADK's own client."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.agents.context_cache_config import ContextCacheConfig
from google.adk.models import FallbackModel
from google.adk.models.llm_request import LlmRequest
from scripted import Chat, Scripted, look_up, set_state

from aether_context import PackPolicy


class Keeping(Scripted):
    """A model that keeps what it is to cache by."""

    model: str = "claude-sonnet-4-5"
    configs: list[Any] = []

    def see(self, llm_request: LlmRequest) -> None:
        self.configs.append(llm_request.cache_config)


class AnthropicLlm(Keeping):
    """Known by the names of their classes: ADK's client of Claude, on Vertex AI, of LiteLLM, and of Gemini."""


class Claude(AnthropicLlm): ...


class LiteLlm(Keeping): ...


class Gemini(Keeping): ...


def marked(llm: Any, turns: int = 3, tools: Any = (look_up,), **settings: Any) -> list[bool]:
    """Which of the calls of a session have a cache configuration."""
    configs: list[Any] = []
    for model in getattr(llm, "models", [llm]):
        model.configs = configs
    chat = Chat(agent=LlmAgent(name="clerk", model=llm, instruction="You help.", tools=list(tools)), **settings)
    chat.say(*(f"Question {number}?" for number in range(turns)))
    return [config is not None for config in configs]


@pytest.mark.parametrize(
    "llm",
    [
        AnthropicLlm(),
        Claude(model="projects/p/locations/us-east5/publishers/anthropic/models/claude-sonnet-4-5"),
        LiteLlm(model="anthropic/claude-sonnet-4-5"),
        LiteLlm(model="bedrock/us.anthropic.claude-sonnet-4-5-20250929-v1:0"),
        LiteLlm(model="vertex_ai/claude-sonnet-4@20250514"),
        LiteLlm(model="openrouter/anthropic/claude-sonnet-4.5"),
    ],
    ids=lambda llm: f"{type(llm).__name__}-{llm.model}",
)
def test_requests_of_claude_are_marked(llm: Any) -> None:
    assert marked(llm) == [True, True, True]


@pytest.mark.filterwarnings("ignore:.*EXPERIMENTAL:UserWarning")
@pytest.mark.parametrize(
    "llm",
    [
        Gemini(model="gemini-2.5-flash"),
        LiteLlm(model="gemini/gemini-2.5-flash"),
        LiteLlm(model="openai/gpt-4o"),
        LiteLlm(model="openai/claude-at-a-proxy"),
        FallbackModel(models=[AnthropicLlm(), Gemini(model="gemini-2.5-flash")]),
    ],
    ids=lambda llm: f"{type(llm).__name__}-{llm.model}",
)
def test_requests_that_another_model_may_get_are_not(llm: Any) -> None:
    assert marked(llm) == [False, False, False]


def test_the_setting_and_the_apps_own_configuration_come_first() -> None:
    assert marked(AnthropicLlm(), policy=PackPolicy(cache="off")) == [False, False, False]
    own = ContextCacheConfig(ttl_seconds=7_200)
    llm = AnthropicLlm()
    assert marked(llm, app_settings={"context_cache_config": own}) == [True, True, True]
    assert llm.configs == [own] * 3


def test_a_state_update_is_no_answer_that_a_cache_could_serve() -> None:
    llm = AnthropicLlm()
    chat = Chat(agent=LlmAgent(name="clerk", model=llm, instruction="You help."))
    llm.configs = []
    asyncio.run(chat._begin("ann", "s1"))
    asyncio.run(set_state(chat, theme="dark"))
    chat.say("Question 1?", "Question 2?")
    assert [config is not None for config in llm.configs] == [False, True]
