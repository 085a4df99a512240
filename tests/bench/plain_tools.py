"""What the plugin takes of each model call of one long run, with plain functions as tools and with `FunctionTool`s.

    python tests/bench/plain_tools.py [--calls 200] [--tools 3]

ADK wraps a plain function in a new tool at each call. Figures are CPU milliseconds of the plugin's callbacks a model
call: the mean of all, the median, and the mean of the last twenty.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
from collections.abc import AsyncGenerator, Callable
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.apps import App
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import InMemoryRunner
from google.adk.tools import FunctionTool
from google.genai import types
from session_growth import Timed, look_up

from aether_context import PackPolicy


class Loops(BaseLlm):
    """Calls the tool so many times, then answers."""

    left: int = 0

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        self.left -= 1
        call = types.Part(function_call=types.FunctionCall(name="look_up", args={"key": f"A-{self.left}"}))
        part = call if self.left > 0 else types.Part(text="All are shipped.")
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


def others(count: int) -> list[Callable[..., Any]]:
    """Further functions that an agent has."""

    def made(number: int) -> Callable[..., Any]:
        def act(order: str, quantity: int = 1, note: str | None = None) -> str:
            return order

        act.__name__ = f"act_{number}"
        act.__doc__ = f"Does step {number} of an order.\n\nArgs:\n    order: its number.\n    quantity: how many."
        return act

    return [made(number) for number in range(count)]


async def spent(calls: int, tools: list[Any]) -> list[float]:
    plugin = Timed(PackPolicy(max_input_tokens=1_000_000))
    agent = LlmAgent(name="clerk", model=Loops(model="gemini-2.5-flash", left=calls), tools=tools)
    runner = InMemoryRunner(app=App(name="growth", root_agent=agent, plugins=[plugin]))
    await runner.session_service.create_session(app_name="growth", user_id="u", session_id="s")
    message = types.UserContent(parts=[types.Part(text="Where are they?")])
    async for _ in runner.run_async(user_id="u", session_id="s", new_message=message):
        pass
    await plugin.close()
    return plugin.spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--tools", type=int, default=3)
    given = parser.parse_args()
    functions = [look_up, *others(given.tools - 1)]
    asyncio.run(spent(20, functions))
    print(f"{'':16}{'mean':>8}{'median':>8}{'last 20':>9}   ms a call, {given.calls} calls, {given.tools} tools")
    for name, tools in (("plain functions", functions), ("FunctionTools", [FunctionTool(one) for one in functions])):
        times = asyncio.run(spent(given.calls, tools))
        last = statistics.mean(times[-20:])
        print(f"{name:16}{statistics.mean(times):8.2f}{statistics.median(times):8.2f}{last:9.2f}")


if __name__ == "__main__":
    main()
