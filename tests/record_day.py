"""Records seventy sessions of a scripted agent into the folder artifacts, for `aether-context tune`."""

import asyncio
import random
from collections.abc import AsyncGenerator

from google.adk.agents import LlmAgent
from google.adk.apps import App
from google.adk.models import BaseLlm, LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import InMemoryRunner
from google.genai import types

from aether_context import PackPolicy
from aether_context.adk import ContextPackPlugin


def read_file(name: str) -> str:
    """Reads a file."""
    numbers = random.Random(name)
    return "\n".join(f"{at}: value_{numbers.randrange(10**6)} = load('{name}/part_{at}')" for at in range(10))


def edit(name: str, line: str) -> str:
    """Edits a line of a file."""
    return f"edited {name}"


class Scripted(BaseLlm):
    """Reads a file and edits a line of it, sixteen times."""

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        self.__dict__["calls"] = calls = self.__dict__.get("calls", -1) + 1
        name = f"{self.model}_{calls // 2}.py"
        if calls >= 32:
            part = types.Part(text="done")
        elif calls % 2:
            arguments = {"name": name, "line": random.Random(calls).choice(read_file(name).splitlines())}
            part = types.Part(function_call=types.FunctionCall(name="edit", args=arguments))
        else:
            part = types.Part(function_call=types.FunctionCall(name="read_file", args={"name": name}))
        yield LlmResponse(content=types.ModelContent([part]))


async def main() -> None:
    plugin = ContextPackPlugin(policy=PackPolicy(max_input_tokens=2_000), store="artifacts")
    for number in range(70):
        agent = LlmAgent(name="clerk", model=Scripted(model=f"file{number}"), tools=[read_file, edit])
        runner = InMemoryRunner(app=App(name="clerk", root_agent=agent, plugins=[plugin]))
        await runner.run_debug([f"Work through task {number}."], quiet=True, session_id=f"s{number}")


if __name__ == "__main__":
    asyncio.run(main())
