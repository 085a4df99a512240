"""What the plugin takes of a process that many sessions share on one event loop, none of which ever waits.

    python tests/bench/saturated.py [--sessions 200] [--turns 4] [--rounds 5]

All sessions talk at once through one runner of ADK's, with its services in memory and a scripted model that answers at
once. A turn has two model calls: one calls a plain function, the other answers. A round is the same without the plugin
and with it, with a store in a new temporary folder; rounds alternate in one process after a small one that warms up.
Printed are milliseconds of processor time a model call, all threads together and up to the last file: medians of the
rounds. The script fails where a call has no receipt, or a request holds a text of another session.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import re
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.apps import App
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import InMemoryRunner
from google.genai import types

from aether_context import PackStore
from aether_context.adk import ContextPackPlugin

CALLS = 2
_MARK = re.compile(r"session-\d+-")
_OWNER: ContextVar[str] = ContextVar("owner")


class Scripted(BaseLlm):
    """Calls the tool, then answers, and reports usage; keeps marks of other sessions that stand in a request."""

    foreign: list[str] = []

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        owner, size = _OWNER.get(), 0
        for content in llm_request.contents:
            for part in content.parts or ():
                answer = part.function_response
                text = part.text or (str(answer.response) if answer is not None else "")
                size += len(text)
                self.foreign.extend(mark for mark in _MARK.findall(text) if mark != owner)
        if any(part.function_response for part in llm_request.contents[-1].parts or ()):
            part = types.Part(text=f"The order {owner} was shipped on Monday, and it costs 13.50 euros.")
        else:
            part = types.Part(function_call=types.FunctionCall(name="look_up", args={"key": f"{owner}A"}))
        usage = types.GenerateContentResponseUsageMetadata(
            prompt_token_count=100 + size // 3, candidates_token_count=20, total_token_count=120 + size // 3
        )
        yield LlmResponse(content=types.Content(role="model", parts=[part]), usage_metadata=usage)


def look_up(key: str) -> dict[str, str]:
    """Looks an order up."""
    return {"result": "\n".join(f"row {row}: {key} total={row * 13}.50 status=shipped" for row in range(12))}


@dataclass
class Round:
    """Seconds of processor time of one round, and what it did."""

    cpu: float = 0.0
    calls: int = 0
    receipts: int = 0
    foreign: int = 0


def run(sessions: int, turns: int, plugins: list[Any]) -> Round:
    """All sessions at once, in a process that has nothing else to do."""
    model = Scripted(model="gemini-2.5-flash", foreign=[])
    agent = LlmAgent(name="clerk", model=model, instruction="You look things up.", tools=[look_up])
    runner = InMemoryRunner(app=App(name="saturated", root_agent=agent, plugins=plugins))

    async def converse(number: int) -> None:
        owner, session = f"session-{number}-", f"s{number}"
        _OWNER.set(owner)
        await runner.session_service.create_session(app_name="saturated", user_id=f"u{number % 7}", session_id=session)
        for turn in range(turns):
            message = types.UserContent(f"Question {turn}: what about the order {owner}A{turn}, and what does it cost?")
            async for _ in runner.run_async(user_id=f"u{number % 7}", session_id=session, new_message=message):
                pass

    async def all_of_them() -> None:
        await asyncio.gather(*(converse(number) for number in range(sessions)))
        await runner.close()

    gc.collect()
    began = time.process_time()
    asyncio.run(all_of_them())
    spent = time.process_time() - began
    return Round(cpu=spent, calls=sessions * turns * CALLS, foreign=len(model.foreign))


def alone(sessions: int, turns: int) -> Round:
    """A round without the plugin."""
    return run(sessions, turns, [])


def packed(sessions: int, turns: int) -> Round:
    """The same with the plugin."""
    with tempfile.TemporaryDirectory() as folder:
        found = run(sessions, turns, [ContextPackPlugin(store=folder)])
        found.receipts = sum(1 for _ in PackStore(folder).manifests())
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=200, help="sessions at once (default: 200)")
    parser.add_argument("--turns", type=int, default=4, help="turns of each (default: 4)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds (default: 5)")
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    ways: dict[str, Callable[[int, int], Round]] = {"ADK alone": alone, "with plugin": packed}
    rounds: dict[str, list[Round]] = {name: [] for name in ways}
    for number in range(given.rounds + 1):
        for name, way in ways.items():
            done = way(given.sessions if number else 10, given.turns)
            rounds[name] += [done] if number else []
    for name, done in rounds.items():
        print(f"{name}: {1_000 * statistics.median(one.cpu / one.calls for one in done):.2f} ms")
    calls, receipts, foreign = (
        sum(getattr(one, name) for one in rounds["with plugin"]) for name in ("calls", "receipts", "foreign")
    )
    print(f"{receipts:,} receipts of {calls:,} calls; texts of other sessions in requests: {foreign}")
    return int(receipts != calls or foreign > 0)


if __name__ == "__main__":
    sys.exit(main())
