"""What the plugin costs, as ratios inside one run: a session to one without it, a further call to a pack built anew.

Both sides of a ratio are measured in turn, by processor time, and the median of the rounds counts, so that a slow or
busy machine changes both alike. Each bound is three times what a quiet machine shows: no noise reaches it, and what
takes time in proportion to the square of a session does. `tests/bench/` has the figures themselves.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.apps import App
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import InMemoryRunner
from google.adk.tools import FunctionTool
from google.genai import types
from packs import MODEL
from scripted import call, look_up, new_store, send_mail

from aether_context.adk import ContextPackPlugin

pytestmark = pytest.mark.slow

ROUNDS = 3


def ratio(work: Callable[[], object], base: Callable[[], object], rounds: int = ROUNDS) -> float:
    """Processor time of the one in shares of the other's, both once to warm up and then in turn."""
    spent: dict[Callable[[], object], list[float]] = {work: [], base: []}
    for number in range(rounds + 1):
        for one, times in spent.items():
            gc.collect()
            began = time.process_time()
            one()
            if number:
                times.append(time.process_time() - began)
    return statistics.median(spent[work]) / statistics.median(spent[base])


class Asks(BaseLlm):
    """A model that asks a tool so many times for each message, then answers."""

    times: int

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        contents = llm_request.contents
        human = max(at for at, content in enumerate(contents) if content.role == "user" and content.parts[0].text)
        asked = sum(content.role == "model" for content in contents[human:])
        part = call("look_up", key=f"A-{asked}") if asked < self.times else types.Part(text="All of them are shipped.")
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


def session(
    messages: int, times: int, *, plugin: bool = True, tools: Sequence[Any] = (look_up, send_mail)
) -> Callable[[], int]:
    """A whole session through ADK's Runner; returns the number of its events."""

    async def run() -> int:
        plugins = [ContextPackPlugin(store=new_store(), on_error="raise")] if plugin else []
        agent = LlmAgent(name="clerk", model=Asks(model=MODEL, times=times), instruction="You help.", tools=[*tools])
        runner = InMemoryRunner(app=App(name="shop", root_agent=agent, plugins=plugins))
        made = await runner.session_service.create_session(app_name="shop", user_id="ann")
        for at in range(messages):
            message = types.UserContent(f"Question {at}: where is order A-{at}, and what does it owe?")
            async for _ in runner.run_async(user_id="ann", session_id=made.id, new_message=message):
                pass
        await runner.close()
        held = await runner.session_service.get_session(app_name="shop", user_id="ann", session_id=made.id)
        return len(held.events)

    return lambda: asyncio.run(run())


@pytest.mark.parametrize(("messages", "bound"), [(8, 5.0), (24, 5.0)])
def test_a_session_with_the_plugin_costs_a_few_times_one_without(messages: int, bound: float) -> None:
    """1.65 times with few messages, less with more: the plugin hands on fewer contents than it gets."""
    assert session(messages, 2)() == session(messages, 2, plugin=False)() == messages * 6
    assert ratio(session(messages, 2), session(messages, 2, plugin=False)) < bound


def test_plain_functions_cost_what_tool_objects_do() -> None:
    """1.05 times: ADK wraps a plain function anew at each call, and nothing of it is read anew for that."""
    objects = [FunctionTool(look_up), FunctionTool(send_mail)]
    assert ratio(session(1, 40), session(1, 40, tools=objects)) < 3.2
