"""Many sessions at once in one process: each has its own texts and its own receipts, and none waits for another's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

from google.adk.agents import LlmAgent
from google.adk.apps import App
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import InMemoryRunner
from google.genai import types
from scripted import call, look_up

from aether_context import PackStore
from aether_context.adk import ContextPackPlugin


class Echoes(BaseLlm):
    """Calls the tool, then answers with all that it was sent."""

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        await asyncio.sleep(0)
        parts = [part for content in llm_request.contents for part in content.parts or ()]
        said = " ".join(part.text for part in parts if part.text)
        part = types.Part(text=said) if parts[-1].function_response else call("look_up", key=said[-40:])
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


def test_each_of_many_sessions_has_its_receipts_when_its_run_ends(tmp_path: Path):
    store = PackStore(tmp_path)
    agent = LlmAgent(name="clerk", model=Echoes(model="gemini-2.5-flash"), tools=[look_up])
    plugin = ContextPackPlugin(store=store, on_error="raise")
    runner = InMemoryRunner(app=App(name="shop", root_agent=agent, plugins=[plugin]))

    async def converse(number: int) -> None:
        own = f"<{number}>"
        session = await runner.session_service.create_session(app_name="shop", user_id="ann", session_id=f"s{number}")
        for turn in range(1, 4):
            message = types.UserContent(f"What about {own}?")
            run = runner.run_async(user_id="ann", session_id=session.id, new_message=message)
            answer = [event async for event in run][-1].content.parts[0].text
            assert answer.count("<") == answer.count(own) > 0
            manifests = list(store.manifests("shop", "ann", session.id))
            assert len(manifests) == 2 * turn
            assert all(store.outcome(manifest) is not None for manifest in manifests)

    async def all_of_them() -> None:
        await asyncio.gather(*map(converse, range(20)))

    asyncio.run(all_of_them())
