"""A long chat without the plugin and with it, offline: how many characters its model gets to read at each question.

    python samples/quickstart.py

The packs of the chat with the plugin are in ``artifacts``: ``aether-context list`` shows them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from google.adk.agents import LlmAgent
from google.adk.apps import App
from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.runners import InMemoryRunner
from google.genai import types
from pydantic import Field

from aether_context import PackPolicy
from aether_context.adk import ContextPackPlugin

QUESTIONS = [f"What did meeting {number} decide?" for number in range(1, 7)]


class Secretary(BaseLlm):
    """Stands in for a model: answers every question with a page, and notes how much it got to read."""

    read: list[int] = Field(default_factory=list)

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        parts = [part for content in llm_request.contents for part in content.parts or ()]
        self.read.append(sum(len(part.text or "") for part in parts))
        page = "The members talked about the roof, the budget and the summer fair, and agreed on most of it. " * 30
        usage = types.GenerateContentResponseUsageMetadata(prompt_token_count=0)  # 0 stands for no data
        yield LlmResponse(content=types.ModelContent(page), usage_metadata=usage)


async def chat(plugins: list[BasePlugin]) -> list[int]:
    """Asks all questions in one session; returns how much the model read at each."""
    model = Secretary(model="gemini-flash-latest-offline")
    agent = LlmAgent(name="secretary", model=model, instruction="Answer from the minutes.")
    runner = InMemoryRunner(app=App(name="minutes", root_agent=agent, plugins=plugins))
    await runner.run_debug(QUESTIONS, quiet=True)
    await runner.close()
    return model.read


async def main() -> None:
    without = await chat([])
    plugin = ContextPackPlugin(policy=PackPolicy(max_input_tokens=3_000), store="artifacts")
    packed = await chat([plugin])
    print("Characters that the model reads at each question; the window is 3,000 tokens.")
    print("question  without     with")
    for number, (plain, sent) in enumerate(zip(without, packed, strict=True), start=1):
        print(f"{number:8}  {plain:7,}  {sent:7,}")


if __name__ == "__main__":
    asyncio.run(main())
