"""What a process keeps of sessions that their host has deleted, with the plugin and without it.

    python tests/bench/kept_memory.py [--sessions 200] [--messages 38]
    python tests/bench/kept_memory.py --turns 500 1000 2000

Each session has so many messages of a user; a scripted model calls a plain function for each and answers, which makes
four contents. Then the host deletes the session. Printed is the peak of the process's memory after every tenth part of
the sessions, in MB above what it was after the first two, and beside it the same without the plugin.

With ``--turns``: what is kept of each turn of one session of so many, a message and an answer of 20 words each, beside
the host's events: its entries, the index that finds them, and what caches took meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import resource
import subprocess
import sys
import tempfile
import tracemalloc
from collections.abc import AsyncGenerator
from pathlib import Path

from google.adk.agents import LlmAgent
from google.adk.apps import App
from google.adk.events.event import Event
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.genai import types

from aether_context import PackPolicy
from aether_context.adk import ContextPackPlugin
from aether_context.adk.request.entries import Entries, extended, turns_of
from aether_context.adk.request.reader import Reader as HostReader
from aether_context.retrieval.call_indexes import TurnIndex
from aether_context.retrieval.embedders import embedder_for

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


CONTENTS = (types.UserContent, types.ModelContent)
_CONTENTS_A_CALL = 20


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


def kept_of_turns(count: int) -> float:
    """Bytes a turn of a session of so many turns, which its agent's entries and index follow."""
    reader, mask, embedder = HostReader(), PackPolicy().mask, embedder_for()
    contents = [content_of(prose((at, content_of.__name__), 20)) for at in range(count) for content_of in CONTENTS]
    events = [
        Event(author=content.role or "", timestamp=float(at), content=content) for at, content in enumerate(contents)
    ]
    TurnIndex().over(turns_of(extended([], contents[:2], events[:2], 0, reader), mask), embedder, ())  # loads the model
    tracemalloc.start()
    before, index = tracemalloc.get_traced_memory()[0], TurnIndex()
    entries: Entries = ()
    for end in range(_CONTENTS_A_CALL, len(contents) + 1, _CONTENTS_A_CALL):
        entries = extended(entries, contents[:end], events[:end], len(entries), reader)
        index.over(turns_of(entries, mask), embedder, ())
    kept = (tracemalloc.get_traced_memory()[0] - before) / count
    tracemalloc.stop()
    return kept


def main() -> None:
    parser = argparse.ArgumentParser(description="What a process keeps of deleted sessions.")
    parser.add_argument("--sessions", type=int, default=200)
    parser.add_argument("--messages", type=int, default=38)
    parser.add_argument("--turns", type=int, nargs="+", default=())
    parser.add_argument("--part", choices=("with", "without"))
    options = parser.parse_args()
    if options.part:
        asyncio.run(serve(options.sessions, options.messages, with_plugin=options.part == "with"))
        return
    for count in options.turns:
        command = [sys.executable, "-c", f"import kept_memory; print(f'{{kept_memory.kept_of_turns({count}):,.0f}}')"]
        done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
        print(f"{count:,} turns: {done.stdout.strip()} bytes a turn")
    if options.turns:
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
