"""What the plugin adds to model calls, as ratios inside one run, each held to a bound.

    PYTHONPATH=tests python tests/bench/gate.py [--rounds 5] [--events 10000]

A session of turns (a question, a call of a plain function, its result, an answer) is filled with ``--events`` events;
another has a hundred. A scripted model is then asked questions, each with eight calls of the tool, and the processor
time of all of the plugin's callbacks is taken for each model call. The floor is what a call has to do that only
appends: to hash, count and note two new contents, written plainly in `floor`. Ratios hold on slow and busy machines,
milliseconds do not. Where one passes its bound the script exits with 1.

append         a further call of an invocation, by the floor; median
append, long   the same in the long session, by that in the short one
message        the first call for a new user message in the long session, by that in the short one
cut            a call that cuts, by the floor; median of both sessions, the first cut of each aside
cold           the first call for a long session in a new plugin, by a later first call
import         processor time of importing `aether_context.adk`, by that of ADK's own agents, runners and plugins
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import hashlib
import json
import logging
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Sequence
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
CALLS = 8
SHORT = 100
BOUNDS = {"append": 25.0, "append, long": 2.0, "message": 14.0, "cut": 200.0, "cold": 110.0, "import": 1.7}
"""About half as much again as two noisy cores show; they go down with the figures."""
IMPORT = """
import time
began = time.process_time()
import google.adk.agents, google.adk.apps, google.adk.plugins.base_plugin, google.adk.runners
between = time.process_time()
import aether_context.adk
print((time.process_time() - between) / (between - began))
"""


class Looks(BaseLlm):
    """Calls the tool `CALLS` times for each user message, then answers."""

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        made = 0
        for content in reversed(llm_request.contents):
            if content.role == "user" and not any(part.function_response for part in content.parts or ()):
                break
            made += content.role == "model"
        call = types.Part(function_call=types.FunctionCall(name="look_up", args={"key": f"A-{made}"}))
        part = call if made < CALLS else types.Part(text="All of them were shipped.")
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


def look_up(key: str) -> dict[str, str]:
    """Looks an order up."""
    return {"result": "\n".join(f"row {row}: {key} total={row * 13}.50 status=shipped" for row in range(12))}


class Timed(ContextPackPlugin):
    """Keeps the milliseconds that its callbacks take of each model call, and whether it cuts."""

    def __init__(self) -> None:
        super().__init__(policy=PackPolicy(max_input_tokens=16_000), store="memory://gate")
        self.spent: list[float] = []
        self.cut: list[bool] = []

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if not name.endswith("_callback"):
            return found

        async def timed(**given: Any) -> Any:
            began = time.thread_time()
            try:
                return await found(**given)
            finally:
                taken = 1_000 * (time.thread_time() - began)
                if name == "before_model_callback":
                    self.spent.append(taken)
                    last = self._packer.last(given["callback_context"])
                    self.cut.append(last is not None and any(event.stage == "cut" for event in last.pack.events))
                elif self.spent:
                    self.spent[-1] += taken

        return timed


class Conversation:
    """A session of so many events, and what its calls take."""

    def __init__(self, events: int) -> None:
        self.events = events
        self.cuts: list[float] = []
        self.plugin = Timed()
        agent = LlmAgent(name="clerk", model=Looks(model=MODEL), instruction="You look things up.", tools=[look_up])
        self.runner = InMemoryRunner(app=App(name="gate", root_agent=agent, plugins=[self.plugin]))

    async def fill(self) -> None:
        service = self.runner.session_service
        session = await service.create_session(app_name="gate", user_id="u", session_id="s")
        for at in range(self.events // 4):
            call = types.FunctionCall(name="look_up", args={"key": f"A-{at}"}, id=f"c{at}")
            response = types.FunctionResponse(name="look_up", response=look_up(f"A-{at}"), id=f"c{at}")
            turn = [
                ("user", types.UserContent(f"Question {at}: what about order A-{at}?")),
                ("clerk", types.Content(role="model", parts=[types.Part(function_call=call)])),
                ("clerk", types.Content(role="user", parts=[types.Part(function_response=response)])),
                ("clerk", types.ModelContent(f"Order A-{at} was shipped on day {at % 28}; it cost {at * 3} euros.")),
            ]
            for author, content in turn:
                await service.append_event(session, Event(author=author, invocation_id=f"i{at}", content=content))

    async def ask(self) -> tuple[float, list[float]]:
        """Milliseconds of a question's first call, and of each further one."""
        self.plugin.spent.clear()
        self.plugin.cut.clear()
        gc.collect()
        message = types.UserContent("And what about the ones after it?")
        async for _ in self.runner.run_async(user_id="u", session_id="s", new_message=message):
            pass
        self.cuts += [taken for taken, cut in zip(self.plugin.spent, self.plugin.cut, strict=True) if cut]
        return self.plugin.spent[0], self.plugin.spent[1:-1]


def floor(at: int) -> float:
    """Milliseconds to hash, count and note two contents that nobody has seen."""
    call = {"function_call": {"args": {"key": f"A-{at}"}, "name": "look_up"}}
    response = {"function_response": {"name": "look_up", "response": look_up(f"A-{at} {at * 7}")}}
    counter = counter_for(MODEL)
    noted: list[tuple[str, int]] = []
    running = hashlib.sha256()
    began = time.thread_time()
    for part in (call, response):
        wire = json.dumps(part, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
        digest = hashlib.sha256(wire.encode()).hexdigest()
        running.update(digest.encode())
        noted.append((digest, counter.count(wire)))
    return 1_000 * (time.thread_time() - began)


async def measured(rounds: int, events: int) -> dict[str, tuple[float, float]]:
    """The figure of each row, and what it is a ratio of."""
    short, long = Conversation(SHORT), Conversation(events)
    for conversation in (short, long):
        await conversation.fill()
    cold = (await long.ask())[0]
    await short.ask()
    floors: list[float] = []
    firsts: dict[Conversation, list[float]] = {short: [], long: []}
    appends: dict[Conversation, list[float]] = {short: [], long: []}
    for round_ in range(rounds):
        for conversation in (short, long):
            first, further = await conversation.ask()
            firsts[conversation].append(first)
            appends[conversation] += further
            floors += [floor(1_000 * round_ + at) for at in range(CALLS)]
    median = statistics.median
    return {
        "append": (median(appends[short]), median(floors)),
        "append, long": (median(appends[long]), median(appends[short])),
        "message": (median(firsts[long]), median(firsts[short])),
        "cut": (median([*short.cuts[1:], *long.cuts[1:]]), median(floors)),
        "cold": (cold, median(firsts[long])),
    }


def imported(rounds: int) -> float:
    runs: Sequence[str] = [
        subprocess.run([sys.executable, "-c", IMPORT], check=True, capture_output=True, text=True).stdout
        for _ in range(rounds)
    ]
    return statistics.median(map(float, runs))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="questions that are timed (default: 5)")
    parser.add_argument("--events", type=int, default=10_000, help="events in the long session (default: 10000)")
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    rows = {
        name: (taken / base, f"{taken:.2f} ms")
        for name, (taken, base) in asyncio.run(measured(given.rounds, given.events)).items()
    }
    rows["import"] = (imported(given.rounds), "")
    print("| | taken | ratio | bound |\n| --- | --- | --- | --- |")
    for name, (ratio, taken) in rows.items():
        print(f"| {name} | {taken} | {ratio:.2f} | {BOUNDS[name]:g} |")
    return int(any(ratio > BOUNDS[name] for name, (ratio, _) in rows.items()))


if __name__ == "__main__":
    sys.exit(main())
