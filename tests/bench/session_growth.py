"""What a model call takes as its session grows, by ADK itself and by the plugin: a table, and both curves in one plot.

    python tests/bench/session_growth.py [--window 16000] [--rounds 5] [--svg docs/session_growth.svg]

A session of turns (a question, a call, its result of twelve lines, an answer) in ADK's in-memory service is filled up
to each size; then a scripted model is asked through ADK's runner, two model calls a question. Figures are medians of
CPU milliseconds a model call, after two questions that warm up.

ADK alone          everything that ADK does for the call, without the plugin
plugin             what the plugin's callbacks take of the call
ADK with plugin    the whole call, recording included: the plugin hands on fewer contents
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import math
import statistics
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cut_speed import turn
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
from aether_context.pack import Content

SIZES = (100, 200, 500, 1_000, 2_000, 5_000, 10_000)
WARM_UP = 2
CALLS = 2
CURVES = {"ADK alone": "#8a8a8a", "plugin": "#c2410c", "ADK with plugin": "#1d4ed8"}


class Scripted(BaseLlm):
    """Calls the tool, then answers."""

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        answered = any(part.function_response for part in llm_request.contents[-1].parts or ())
        call = types.Part(function_call=types.FunctionCall(name="look_up", args={"key": "A-1"}))
        yield LlmResponse(
            content=types.Content(role="model", parts=[types.Part(text="It was shipped.") if answered else call])
        )


def look_up(key: str) -> dict[str, str]:
    """Looks an order up."""
    return {"result": "\n".join(f"row {row}: {key} total={row * 13}.50 status=shipped" for row in range(12))}


class Timed(ContextPackPlugin):
    """Keeps what its callbacks take."""

    def __init__(self, policy: PackPolicy) -> None:
        super().__init__(policy=policy, store="memory://growth")
        self.spent: list[float] = []

    async def before_model_callback(self, **given: Any) -> LlmResponse | None:
        began = time.thread_time()
        try:
            return await super().before_model_callback(**given)
        finally:
            self.spent.append(1_000 * (time.thread_time() - began))

    async def after_model_callback(self, **given: Any) -> LlmResponse | None:
        began = time.thread_time()
        try:
            return await super().after_model_callback(**given)
        finally:
            self.spent[-1] += 1_000 * (time.thread_time() - began)


class Host:
    """A session that grows, with the plugin or without."""

    def __init__(self, plugin: Timed | None) -> None:
        agent = LlmAgent(
            name="clerk", model=Scripted(model="gemini-2.5-flash"), instruction="You look things up.", tools=[look_up]
        )
        self.runner = InMemoryRunner(app=App(name="growth", root_agent=agent, plugins=[plugin] if plugin else []))
        self.plugin = plugin
        self.turns = 0

    async def fill(self, size: int) -> None:
        """Appends turns up to so many events."""
        service = self.runner.session_service
        session = await service.get_session(app_name="growth", user_id="u", session_id="s")
        session = session or await service.create_session(app_name="growth", user_id="u", session_id="s")
        while len(session.events) < size:
            for content in turn(self.turns):
                author = "clerk" if content.role == "model" or content.responses else "user"
                event = Event(author=author, invocation_id=f"i{self.turns}", content=as_sent(content))
                await service.append_event(session, event)
            self.turns += 1

    async def ask(self) -> float:
        """A question; CPU milliseconds a model call."""
        began = time.process_time()
        message = types.UserContent("And what about this one?")
        async for _ in self.runner.run_async(user_id="u", session_id="s", new_message=message):
            pass
        return 1_000 * (time.process_time() - began) / CALLS


def as_sent(content: Content) -> types.Content:
    parts = [types.Part.model_validate_json(part.wire) for part in content.parts]
    return types.Content(role=content.role, parts=parts)


async def measure(rounds: int, window: int) -> dict[int, Mapping[str, float]]:
    """Milliseconds of each curve by the session's size."""
    plugin = Timed(PackPolicy(max_input_tokens=window))
    alone, packed = Host(None), Host(plugin)
    found: dict[int, Mapping[str, float]] = {}
    for size in SIZES:
        spent: dict[Host, float] = {}
        for host in (alone, packed):
            await host.fill(size)
            for _ in range(WARM_UP):
                await host.ask()
            plugin.spent.clear()
            spent[host] = statistics.median([await host.ask() for _ in range(rounds)])
        found[size] = {
            "ADK alone": spent[alone],
            "plugin": statistics.fmean(sorted(plugin.spent)[: len(plugin.spent) * 9 // 10]),
            "ADK with plugin": spent[packed],
        }
    return found


def plot(found: Mapping[int, Mapping[str, float]]) -> str:
    """The curves as SVG, both axes logarithmic."""
    width, height, left, bottom, top, right = 640, 360, 64, 48, 16, 150
    low, high = -1, math.ceil(math.log10(max(value for row in found.values() for value in row.values())))

    def x(size: float) -> float:
        return left + (width - left - right) * (math.log10(size) - 2) / 2

    def y(milliseconds: float) -> float:
        share = (math.log10(max(milliseconds, 10**low)) - low) / (high - low)
        return height - bottom - (height - bottom - top) * share

    def text(at_x: float, at_y: float, said: str, anchor: str = "middle", colour: str = "#777") -> str:
        return f'<text x="{at_x:.0f}" y="{at_y:.0f}" text-anchor="{anchor}" fill="{colour}">{said}</text>'

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        'font-size="12" role="img" aria-label="Milliseconds a model call by events in the session">'
    ]
    for power in range(low, high + 1):
        at = y(10**power)
        lines.append(f'<path d="M{left} {at:.0f}H{width - right}" stroke="#9994"/>')
        lines.append(text(left - 8, at + 4, f"{10**power:g}", "end"))
    for size in SIZES:
        if math.log10(size).is_integer():
            lines.append(text(x(size), height - bottom + 18, f"{size:,}"))
    lines.append(text((left + width - right) / 2, height - 10, "events in the session"))
    lines.append(text(left, top - 4, "ms a model call", "start"))
    ends = _apart({name: y(found[SIZES[-1]][name]) for name in CURVES})
    for name, colour in CURVES.items():
        points = " ".join(f"{x(size):.1f},{y(row[name]):.1f}" for size, row in found.items())
        lines.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        lines.append(text(width - right + 8, ends[name] + 4, name, "start", colour))
    return "\n".join([*lines, "</svg>", ""])


def _apart(places: Mapping[str, float], distance: float = 15) -> dict[str, float]:
    """Heights of labels, so far apart that they can be read."""
    moved: dict[str, float] = {}
    above = -distance
    for name, place in sorted(places.items(), key=lambda one: one[1]):
        above = moved[name] = max(place, above + distance)
    return moved


def rows(found: Mapping[int, Mapping[str, float]]) -> list[Sequence[str]]:
    table: list[Sequence[str]] = [
        [f"{size:,}", *(f"{row[name]:.1f}" for name in CURVES)] for size, row in found.items()
    ]
    first, last = found[SIZES[0]], found[SIZES[-1]]
    return [*table, ["growth", *(f"{last[name] / first[name]:.1f}×" for name in CURVES)]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--window", type=int, default=16_000, help="tokens (default: 16000)")
    parser.add_argument("--rounds", type=int, default=5, help="questions that are timed at each size (default: 5)")
    parser.add_argument("--svg", type=Path, help="where to write the plot")
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    found = asyncio.run(measure(given.rounds, given.window))
    for row in (["events", *CURVES], ["---"] * (1 + len(CURVES)), *rows(found)):
        print("| " + " | ".join(row) + " |")
    if given.svg:
        given.svg.write_text(plot(found), encoding="utf-8")


if __name__ == "__main__":
    main()
