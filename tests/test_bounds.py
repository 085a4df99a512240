"""What comes from outside is bounded in number and size before anything looks at it, and deadlines hold."""

from __future__ import annotations

import asyncio
import time
from typing import Any
from unittest.mock import patch

import pytest
from google.adk.tools.tool_context import ToolContext
from google.genai import types
from matrix import part_slow
from scripted import Chat, Memories, faults, remembered

from aether_context import PackPolicy
from aether_context.adk.bounds import Waits
from aether_context.conversation import strategy_names, units
from aether_context.conversation.content_json import content_of_parts, part_of
from aether_context.conversation.normalization import normalize
from aether_context.pack import Content


class Stubborn(Memories):
    """Goes on when it is cancelled, until it is let go."""

    def __init__(self) -> None:
        super().__init__(remembered("late"))
        self.free = asyncio.Event()
        self.cancelled = 0

    async def go_on(self) -> None:
        while not self.free.is_set():
            try:
                await self.free.wait()
            except asyncio.CancelledError:
                self.cancelled += 1

    async def search_memory(self, **query: Any) -> Any:
        await self.go_on()
        return await super().search_memory(**query)

    async def add_memory(self, **given: Any) -> None:
        await self.go_on()


@patch.object(Waits, "seconds", 0.05)
def test_a_memory_service_that_swallows_its_cancellation_costs_its_deadline() -> None:
    async def run() -> None:
        memory = Stubborn()
        chat = Chat(memory=memory)
        await asyncio.wait_for(chat.tell("When does the ferry leave?"), 20)
        assert memory.cancelled == 1
        assert "memory search failed: TimeoutError" in chat.manifests()[0].degradations
        memory.free.set()

    asyncio.run(run())


def one_id(count: int, *, together: bool, id: str = "x") -> list[Content]:
    """So many calls of one tool with one id, with their answers: of one message, or one after another."""
    calls = [part_of({"function_call": {"name": "look_up", "id": id, "args": {"key": str(n)}}}) for n in range(count)]
    answers = [
        part_of({"function_response": {"name": "look_up", "id": id, "response": {"n": n}}}) for n in range(count)
    ]
    if together:
        return [content_of_parts("model", calls), content_of_parts("user", answers)]
    pairs = zip(calls, answers, strict=True)
    return [
        content_of_parts(role, [part]) for pair in pairs for role, part in zip(("model", "user"), pair, strict=True)
    ]


@pytest.mark.parametrize("together", [True, False], ids=["together", "apart"])
@pytest.mark.parametrize("reverse", [True, False], ids=["last first", "in order"])
def test_pairing_takes_time_in_proportion(together: bool, reverse: bool) -> None:
    def seconds(count: int) -> float:
        contents = one_id(count, together=together)
        if reverse:
            contents = [*contents[::2], *reversed(contents[1::2])]
        began = time.thread_time()
        units(contents)
        normalize(contents)
        return time.thread_time() - began

    seconds(10)
    tries = [(seconds(500), seconds(5_000)) for _ in range(2)]
    # Ten times the calls; a walk over all that wait for each answer would take a hundred times as long.
    assert min(long for _, long in tries) < 40 * min(short for short, _ in tries)


def look_many(key: str, tool_context: ToolContext) -> dict[str, str]:
    """Looks a key up."""
    return {"key": key, "value": "v" * 40}


@pytest.mark.parametrize(("strategy", "id"), part_slow(4, strategy_names(), ["x", None]))
def test_hundreds_of_calls_with_one_id_stay_valid(strategy: str, id: str | None) -> None:
    def asked(key: str) -> types.Part:
        return types.Part(function_call=types.FunctionCall(name="look_many", args={"key": key}, id=id))

    script = [[asked(f"{turn}-{n}") for n in range(120)] for turn in range(3)]
    chat = Chat(
        script=[script[0], "one", script[1], script[2], "two", "three"],
        tools=[look_many],
        policy=PackPolicy(max_input_tokens=4_000, conversation={"strategy": (strategy,)}, offload={"mode": "off"}),
    )
    chat.say("first", "second", "third")
    assert len(chat.sent) == 6
    assert [faults(one.contents) for one in chat.sent] == [[]] * 6
    chat.replays()
