"""What the first model call of a long session costs in a process that has not seen it, in milliseconds of CPU time.

    AETHER_CONTEXT_DATA=/path/to/data python tests/bench/cold_start.py [--tokens 134000] [--window 16000] [--rounds 3]

Each row is a recorded session up to so many tokens, in a new process with a new plugin, and a user's next question. The
first call counts the whole session, cuts it down to the window, and writes the recap of what it cuts.

before_model  all threads' time while the plugin's callback runs
plugin        the whole run's, less the same run without the plugin; packs are written to a store in memory
second        the callback's time for the question after that
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.apps import App
from google.adk.events.event import Event
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import InMemoryRunner
from google.genai import types

from aether_context import PackPolicy
from aether_context.adk import ContextPackPlugin
from aether_context.tokens import counter_for

MODEL = "gemini-2.5-flash"
DATA = Path(os.environ.get("AETHER_CONTEXT_DATA", "data"))
SESSIONS = ("run", "chat")
QUESTIONS = ("What did we decide at the beginning, and what is still open?", "And after that?")


class Answers(BaseLlm):
    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        yield LlmResponse(content=types.ModelContent("Yes."))


class Timed(ContextPackPlugin):
    """Keeps the milliseconds that all threads take while its callback before each model call runs."""

    spent: list[float]

    async def before_model_callback(self, **given: Any) -> LlmResponse | None:
        began = time.process_time()
        try:
            return await super().before_model_callback(**given)
        finally:
            self.spent.append(1_000 * (time.process_time() - began))


def contents(session: str) -> Iterator[types.Content]:
    """A recorded session: an agent's longest run with its calls, or a chat of words alone."""
    if session == "chat":
        for batch in json.loads((DATA / "chats" / "11" / "chat.json").read_text()):
            for message in (message for turn in batch["turns"] for message in turn):
                role = "user" if message["role"] == "user" else "model"
                yield types.Content(role=role, parts=[types.Part(text=message["content"])])
        return
    runs = map(json.loads, (DATA / "runs.jsonl").read_text().splitlines())
    for asked in max(runs, key=lambda run: sum(len(turn["steps"]) for turn in run["turns"]))["turns"]:
        yield types.UserContent(asked["user"] or ".")
        for step in asked["steps"]:
            calls, answers = [], []
            for call in step["calls"]:
                calls.append(types.Part(function_call=types.FunctionCall(name=call["name"], args=call["args"])))
                response = types.FunctionResponse(name=call["name"], response={"result": call["result"]})
                answers.append(types.Part(function_response=response))
            said = [types.Part(text=step["text"])] if step["text"] or not calls else []
            yield types.Content(role="model", parts=[*said, *calls])
            if answers:
                yield types.Content(role="user", parts=answers)


def is_asked(content: types.Content) -> bool:
    return content.role == "user" and not any(part.function_response for part in content.parts or ())


def count(session: str, tokens: int) -> int:
    """How many contents of a session hold so many tokens, and end no exchange too early."""
    counter, left, at = counter_for(MODEL), tokens, 0
    for at, content in enumerate(contents(session)):
        if left <= 0 and is_asked(content):
            return at
        parts = (part.model_dump(mode="json", exclude_none=True) for part in content.parts or ())
        left -= sum(counter.count_all([part.get("text") or json.dumps(part) for part in parts]))
    return at + 1


async def run(recorded: list[types.Content], window: int, with_plugin: bool) -> list[float]:
    """Milliseconds of the first run, of its callback before the model, and of that of the second one."""
    plugins = []
    if with_plugin:
        plugin = Timed(policy=PackPolicy(max_input_tokens=window), store="memory://cold")
        plugin.spent = []
        plugins.append(plugin)
    agent = LlmAgent(name="assistant", model=Answers(model=MODEL), instruction="You help.")
    runner = InMemoryRunner(app=App(name="cold", root_agent=agent, plugins=plugins))
    service = runner.session_service
    session = await service.create_session(app_name="cold", user_id="u", session_id="s")
    turn = 0
    for at, content in enumerate(recorded):
        turn += is_asked(content)
        author = "user" if is_asked(content) else "assistant"
        event = Event(author=author, invocation_id=f"i{turn}", content=content, timestamp=1_700_000_000.0 + at)
        await service.append_event(session, event)
    for thread in threading.enumerate():
        if thread.name == "aether-context-warm-up":  # a server has long been up when the first request comes
            thread.join()
    gc.collect()
    gc.freeze()  # to look through what was imported takes 100 ms, in whatever call that falls
    took = []
    for question in QUESTIONS:
        began = time.process_time()
        async for _ in runner.run_async(user_id="u", session_id="s", new_message=types.UserContent(question)):
            pass
        took.append(1_000 * (time.process_time() - began))
    return [took[0], *(plugin.spent if with_plugin else (0.0, 0.0))]


def measured(command: list[str]) -> list[float]:
    made = subprocess.run(command, check=True, capture_output=True, text=True)
    return [float(figure) for figure in json.loads(made.stdout)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=134_000, help="tokens of each session (default: 134000)")
    parser.add_argument("--window", type=int, default=16_000, help="the most input tokens (default: 16000)")
    parser.add_argument("--rounds", type=int, default=3, help="new processes for each row (default: 3)")
    parser.add_argument("--once", choices=SESSIONS, help=argparse.SUPPRESS)
    parser.add_argument("--contents", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--plain", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.once:
        logging.disable(logging.WARNING)
        recorded = list(islice(contents(given.once), given.contents))
        print(json.dumps(asyncio.run(run(recorded, given.window, not given.plain))))
        return
    print("| session | contents | before_model | plugin | second |\n| --- | --- | --- | --- | --- |")
    for session in SESSIONS:
        held = count(session, given.tokens)
        command = [sys.executable, __file__, "--once", session, "--contents", str(held), "--window", str(given.window)]
        with_plugin = [measured(command) for _ in range(given.rounds)]
        without = [measured([*command, "--plain"])[0] for _ in range(given.rounds)]
        whole, callback, second = (statistics.median(column) for column in zip(*with_plugin, strict=True))
        print(f"| {session} | {held} | {callback:.0f} | {whole - statistics.median(without):.0f} | {second:.0f} |")


if __name__ == "__main__":
    main()
