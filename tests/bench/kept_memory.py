"""What a process keeps of sessions that their host has deleted, with the plugin and without it.

    python tests/bench/kept_memory.py [--sessions 200] [--messages 38]

Each session has so many messages of a user; a scripted model calls a plain function for each and answers, which makes
four contents. Then the host deletes the session. Printed is the peak of the process's memory after every tenth part of
the sessions, in MB above what it was after the first two, and beside it the same without the plugin.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import resource
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator

from google.adk.agents import LlmAgent
from google.adk.apps import App
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.genai import types

from aether_context import PackPolicy
from aether_context.adk import ContextPackPlugin

SYLLABLES = [
    "mer",
    "tal",
    "vos",
    "kin",
    "dra",
    "pol",
    "shu",
    "bre",
    "fin",
    "gor",
    "an",
    "ei",
    "os",
    "ut",
    "ra",
    "lim",
    "dek",
    "wo",
]
OWNER = {"app_name": "archive", "user_id": "ann"}
BYTES = 1 if sys.platform == "darwin" else 1_024


def prose(seed: object, count: int) -> str:
    draw = random.Random(repr(seed))
    return " ".join(draw.choice(SYLLABLES) + draw.choice(SYLLABLES) for _ in range(count))


class Reader(BaseLlm):
    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        last = llm_request.contents[-1]
        if any(part.function_response for part in last.parts or ()):
            part = types.Part(text=prose(last.model_dump_json()[-200:], 60))
        else:
            query = prose(last.model_dump_json()[-200:], 3)
            part = types.Part(function_call=types.FunctionCall(name="look_up", args={"query": query}))
        usage = types.GenerateContentResponseUsageMetadata(prompt_token_count=0)
        yield LlmResponse(content=types.ModelContent([part]), usage_metadata=usage)


def look_up(query: str) -> list[dict[str, str]]:
    """Looks something up."""
    return [{"name": prose((query, at), 4), "text": prose((query, -at), 20)} for at in range(4)]


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * BYTES / 1e6


async def serve(sessions: int, messages: int, *, with_plugin: bool) -> None:
    service = InMemorySessionService()
    agent = LlmAgent(name="clerk", model=Reader(model="scripted"), tools=[look_up])
    with tempfile.TemporaryDirectory() as store:
        plugins = [ContextPackPlugin(policy=PackPolicy(max_input_tokens=32_000), store=store)] if with_plugin else []
        runner = Runner(app=App(name="archive", root_agent=agent, plugins=plugins), session_service=service)
        start = 0.0
        for number in range(sessions):
            name = f"s{number}"
            await service.create_session(**OWNER, session_id=name)
            for at in range(messages):
                message = types.UserContent(prose((number, at), 25))
                async for _ in runner.run_async(user_id="ann", session_id=name, new_message=message):
                    pass
            await service.delete_session(**OWNER, session_id=name)
            if number == 1:
                start = peak()
            if number % max(1, sessions // 10) == max(1, sessions // 10) - 1:
                print(f"{number + 1}\t{peak() - start:.1f}", flush=True)
        await runner.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="What a process keeps of deleted sessions.")
    parser.add_argument("--sessions", type=int, default=200)
    parser.add_argument("--messages", type=int, default=38)
    parser.add_argument("--part", choices=("with", "without"))
    options = parser.parse_args()
    if options.part:
        asyncio.run(serve(options.sessions, options.messages, with_plugin=options.part == "with"))
        return
    measured = []
    for part in ("without", "with"):
        command = [sys.executable, __file__, "--part", part, f"--sessions={options.sessions}"]
        done = subprocess.run([*command, f"--messages={options.messages}"], capture_output=True, text=True, check=True)
        measured.append([line.split("\t") for line in done.stdout.splitlines()])
    print("| sessions | MB without the plugin | MB with it |\n| --- | --- | --- |")
    for (number, without), (_, with_plugin) in zip(*measured, strict=True):
        print(f"| {number} | {without} | {with_plugin} |")


if __name__ == "__main__":
    main()
