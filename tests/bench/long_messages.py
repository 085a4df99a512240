"""What one message of a megabyte, or one tool's result of five, takes of a process: nobody else waits for it.

    python tests/bench/long_messages.py [--rounds 3] [--kinds prose,log,code,json,words]

Each row is a session of ADK's with services in memory and a scripted model, behind twenty short turns. The figures are
the least of the rounds: milliseconds of processor time of all threads to the end of the run and up to the last file, of
ADK alone, with the plugin, and the difference; and the longest single calls of regular expressions, each of which
holds the interpreter while it lasts, seen by a run of its own under `sys.setprofile`.

message     a user's message of so many KB, by what it is made of: each a pasted text with a question before and behind
result      a tool's result of so many MB of JSON
later       the second short message behind it, with the plugin and of ADK alone
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import random
import sys
import tempfile
import threading
import time
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.apps import App
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import InMemoryRunner
from google.genai import types

from aether_context import PackPolicy
from aether_context.adk import ContextPackPlugin

TURNS = 20
_LIBRARY = "".join(path.read_text("utf-8", "replace") for path in sorted(Path(argparse.__file__).parent.glob("*.py")))
_WORDS = sorted({word for word in _LIBRARY.split() if word.isalpha()})


def pasted(kind: str, size: int) -> str:
    """A text of so many characters, the same every time."""
    random_ = random.Random(kind)

    def pieces() -> Iterator[str]:
        at = 0
        while True:
            at += 1
            if kind == "prose":
                yield " ".join(random_.choices(_WORDS, k=random_.randint(6, 20))).capitalize() + ". "
            elif kind == "log":
                yield (
                    f"2026-03-{at % 28 + 1:02} 10:{at % 60:02}:01,{at % 1000:03} INFO worker-{at % 16} "
                    f"[req-{random_.getrandbits(48):012x}] {random_.choice(_WORDS)} took {random_.random():.4f} s\n"
                )
            elif kind == "json":
                yield (
                    json.dumps(
                        {
                            "id": at,
                            "name": " ".join(random_.choices(_WORDS, k=3)),
                            "total": round(random_.random() * 1000, 2),
                            "sha": f"{random_.getrandbits(160):040x}",
                            "tags": random_.choices(_WORDS, k=4),
                        }
                    )
                    + ",\n"
                )
            elif kind == "code":
                yield _LIBRARY[at * 4_001 % len(_LIBRARY) :][:4_000] + "\n"
            else:
                yield f"w{random_.getrandbits(40)} "

    parts: list[str] = []
    length = 0
    for piece in pieces():
        parts.append(piece)
        length += len(piece)
        if length >= size:
            break
    return "".join(parts)[:size]


def rows(size: int) -> str:
    """A JSON text of so many characters."""
    return "[" + pasted("json", size).rstrip().rstrip(",").rpartition(",\n")[0] + "]"


class Scripted(BaseLlm):
    """Calls the tool where the message says so, then answers, and reports usage."""

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        last = llm_request.contents[-1].parts or []
        part = types.Part(text="The order was shipped on Monday, and it costs 13.50 euros.")
        if any("Fetch" in (one.text or "") for one in last):
            part = types.Part(function_call=types.FunctionCall(name="fetch", args={}))
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


class Session:
    """One conversation, whose messages are timed."""

    def __init__(self, folder: str | None, result: str, window: int) -> None:
        def fetch() -> dict[str, str]:
            """Fetches all orders."""
            return {"result": result}

        policy = PackPolicy(max_input_tokens=window) if window else None
        self.plugin = ContextPackPlugin(policy=policy, store=folder) if folder is not None else None
        agent = LlmAgent(name="clerk", model=Scripted(model="gemini-2.5-flash"), instruction="You help.", tools=[fetch])
        plugins: list[Any] = [self.plugin] if self.plugin is not None else []
        self.runner = InMemoryRunner(app=App(name="long", root_agent=agent, plugins=plugins))

    async def begin(self) -> None:
        await self.runner.session_service.create_session(app_name="long", user_id="ann", session_id="s1")
        for turn in range(TURNS):
            await self.say(f"Question {turn}: what about the order A{turn * 37}, and what does {_WORDS[turn]} cost?")

    async def say(self, message: str) -> float:
        """Milliseconds of processor time."""
        gc.collect()
        began = time.process_time()
        content = types.UserContent(message)
        async for _ in self.runner.run_async(user_id="ann", session_id="s1", new_message=content):
            pass
        if self.plugin is not None:
            await self.plugin.flush() if hasattr(self.plugin, "flush") else None
        return 1_000 * (time.process_time() - began)


class Longest:
    """The longest calls of regular expressions, in milliseconds by their names, of all threads."""

    def __init__(self) -> None:
        self.calls: dict[str, float] = {}
        self.began = threading.local()

    def __call__(self, frame: Any, event: str, argument: Any) -> None:
        if event == "c_call":
            self.began.__dict__.setdefault("stack", []).append(time.thread_time())
        elif event in ("c_return", "c_exception") and (stack := self.began.__dict__.get("stack")):
            taken = 1_000 * (time.thread_time() - stack.pop())
            name = getattr(argument, "__qualname__", "")
            if name.startswith(("Pattern.", "SRE_Scanner.", "Scanner.")) or "iterator" in name or name == "next":
                name = f"{name} in {frame.f_code.co_qualname}"
                self.calls[name] = max(taken, self.calls.get(name, 0.0))

    def __enter__(self) -> Longest:
        threading.setprofile(self)
        sys.setprofile(self)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]

    def most(self) -> str:
        best = sorted(((taken, name) for name, taken in self.calls.items()), reverse=True)
        return ", ".join(f"{taken:.0f} {name}" for taken, name in best[:4])


async def measured(messages: list[str], result: str, *, window: int, folder: str | None) -> list[float]:
    session = Session(folder, result, window)
    await session.begin()
    return [await session.say(message) for message in messages]


async def watched(messages: list[str], result: str, *, window: int, folder: str) -> list[str]:
    with Longest() as longest:  # from the first thread on
        session = Session(folder, result, window)
        await session.begin()
        found = []
        for message in messages:
            longest.calls.clear()
            await session.say(message)
            found.append(longest.most())
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--window", type=int, default=0)
    parser.add_argument("--kinds", default="prose,log,code,json,words")
    parser.add_argument("--sizes", default="600,3000")
    parser.add_argument("--no-result", action="store_true")
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    later = "And what about the order A37, is it shipped?"
    scenarios: dict[str, tuple[list[str], str]] = {}
    for size in map(int, given.sizes.split(",") if given.sizes else []):
        for kind in given.kinds.split(","):
            text = f"Which order of Anna's is late? I paste all of it:\n{pasted(kind, 1000 * size)}\nWhat does it cost?"
            scenarios[f"message {size:,} KB of {kind}"] = [text, later, later], ""
    if not given.no_result:
        scenarios["result 5 MB"] = ["Fetch all orders.", later, later], rows(5_000_000)
    print("| | ADK alone | with the plugin | more | later | longest call |\n| --- | --- | --- | --- | --- | --- |")
    for name, (messages, result) in scenarios.items():
        alone, packed = [], []
        for _ in range(given.rounds):
            alone.append(asyncio.run(measured(messages, result, window=0, folder=None)))
            with tempfile.TemporaryDirectory() as folder:
                packed.append(asyncio.run(measured(messages, result, window=given.window, folder=folder)))
        with tempfile.TemporaryDirectory() as folder:
            longest = asyncio.run(watched(messages, result, window=given.window, folder=folder))
        (adk, adk_later), (plugin, later_plugin) = (
            (min(run[0] for run in runs), min(run[-1] for run in runs)) for runs in (alone, packed)
        )
        figures = f"{adk:.0f} | {plugin:.0f} | {plugin - adk:.0f} | {later_plugin:.1f} of {adk_later:.1f}"
        print(f"| {name} | {figures} | {longest[0]} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
