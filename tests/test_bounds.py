"""What comes from outside is bounded in number and size; histories of few equal parts stay valid in any window."""

from __future__ import annotations

import asyncio
import os
import random
import threading
from itertools import product
from typing import Any

import pytest
from failing import short_waits
from google.adk.tools.tool_context import ToolContext
from google.genai import types
from matrix import but_slow
from plans import PLAN, planned, words
from scripted import Chat, Memories, call, faults, look_up, remembered
from timing import lines_of

from aether_context import PackPolicy
from aether_context.adk import bounds, packer
from aether_context.conversation import normalize, strategy_names, units
from aether_context.conversation.content_json import content_of_parts, part_of
from aether_context.errors import StepTooLarge
from aether_context.pack import Content, Pack, PackInput
from aether_context.packing import build_pack


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


@short_waits()
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
def test_pairing_takes_steps_in_proportion(together: bool, reverse: bool) -> None:
    def steps(count: int) -> int:
        contents = one_id(count, together=together)
        if reverse:
            contents = [*contents[::2], *reversed(contents[1::2])]
        return lines_of(lambda: (units(contents), normalize(contents)))

    # Ten times the calls; a walk over all that wait for each answer would take a hundred times as many.
    assert steps(2_000) < 15 * steps(200)


def look_many(key: str, tool_context: ToolContext) -> dict[str, str]:
    """Looks a key up."""
    return {"key": key, "value": "v" * 40}


@pytest.mark.parametrize(("strategy", "id"), list(product(strategy_names(), ["x", None])))
@pytest.mark.rows(1, slow=4)
def test_hundreds_of_calls_with_one_id_stay_valid(strategy: str, id: str | None) -> None:
    def asked(key: str) -> types.Part:
        return types.Part(function_call=types.FunctionCall(name="look_many", args={"key": key}, id=id))

    script = [[asked(f"{turn}-{n}") for n in range(70)] for turn in range(3)]
    chat = Chat(
        script=[script[0], "one", script[1], script[2], "two", "three"],
        tools=[look_many],
        policy=PackPolicy(max_input_tokens=4_000, conversation={"strategy": (strategy,)}, offload={"mode": "off"}),
    )
    chat.say("first", "second", "third")
    assert len(chat.sent) == 6
    assert [faults(one.contents) for one in chat.sent] == [[]] * 6
    chat.replays()


WINDOWS = (256, 300, 400, 500, 700, 1_000, 1_500, 2_000, 3_000)
FIRST = {*range(1, 8), 229, 238, 273, 385, 461, 640, 713, 752}
"""Seeds of the default run: some, and those in which exchanges that are cut short stand beside equal ones."""


def fetch(key: str) -> dict[str, str]:
    """Fetches a value."""
    return {"result": f"value {key} " * 30}


def ping() -> dict[str, str]:
    """Pings."""
    return {"result": "ok"}


def tell(n: int) -> str:
    """Tells something."""
    return "told " * n


def some_call(draw: random.Random, has_ids: bool) -> types.Part:
    arguments: dict[str, Any] = {}
    name = draw.choice(["ping", "ping", "fetch", "tell"])
    if name == "fetch":
        arguments = {"key": draw.choice("ab")}
    elif name == "tell":
        arguments = {"n": draw.choice([1, 40])}
    part = call(name, **arguments)
    assert part.function_call is not None
    if has_ids:
        part.function_call.id = draw.choice(["x", "y", f"id{draw.random()}"])
    return part


def reply(draw: random.Random, has_ids: bool) -> list[types.Part]:
    if draw.random() < 0.25:
        return [types.Part(text="fine " * draw.choice([1, 60]))]
    parts = [some_call(draw, has_ids) for _ in range(draw.choice([1, 1, 1, 2, 3]))]
    if draw.random() < 0.3:
        parts.insert(0, types.Part(text="I look " * draw.choice([1, 30])))
    return parts


def run(seed: int) -> Chat:
    draw = random.Random(seed)
    window, has_ids = draw.choice(WINDOWS), draw.random() < 0.3
    policy = PackPolicy(
        max_input_tokens=window,
        conversation={"strategy": (draw.choice(strategy_names()),)},
        offload={"mode": draw.choice(["auto", "off"])},
        tools={"scope": "off"} if draw.random() < 0.5 else {},
    )
    chat = Chat(
        tools=[fetch, ping, tell],
        instruction="Rule. " * (draw.randint(0, int(0.9 * window)) // 2),
        policy=policy,
        state=planned(PLAN) if draw.random() < 0.3 else {},
    )
    chat.llm.usage = draw.random() < 0.3
    pattern = [reply(draw, has_ids) for _ in range(draw.randint(1, 3))]
    for _ in range(draw.randint(1, 4)):
        chat.llm.script[:] = [[part.model_copy(deep=True) for part in parts] for parts in pattern * draw.randint(1, 3)]
        try:
            chat.say(draw.choice(["go", f"go on {words(40)}", f"go {words(200)}"]))
        except RuntimeError as error:
            assert isinstance(error.__cause__, StepTooLarge)
    return chat


@pytest.mark.parametrize("seed", but_slow(sorted({*range(1, 200), *FIRST}), *({*range(200)} - FIRST), most=20))
def test_requests_of_equal_parts_are_valid_in_any_window(seed: int) -> None:
    chat = run(seed)
    assert chat.sent
    assert [sent.faults for sent in chat.sent if sent.faults] == []


def test_messages_and_cuts_are_packed_off_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    builds: list[tuple[str, bool]] = []

    def build(source: PackInput, *arguments: Any, **settings: Any) -> Pack:
        pack = build_pack(source, *arguments, **settings)
        cuts = any(event.stage == "cut" for event in pack.events)
        kind = "cut" if cuts else "message" if source.request.first_call else "append"
        builds.append((kind, threading.current_thread() is threading.main_thread()))
        return pack

    monkeypatch.setattr(packer, "build_pack", build)
    looks = [[call("look_up", key=f"key-{turn}-{at}") for at in range(14)] for turn in range(4)]
    script = [reply for turn, calls in enumerate(looks) for reply in (*calls, f"That was question {turn}.")]
    chat = Chat(policy=PackPolicy(max_input_tokens=6_000), tools=[look_up], script=script)
    chat.say(*(f"Question {at}?" for at in range(4)))
    assert {kind for kind, _ in builds} == {"cut", "message", "append"}
    assert {kind for kind, is_on_loop in builds if is_on_loop} == {"append"}
    assert sum(not is_on_loop for kind, is_on_loop in builds if kind == "append") < len(builds) / 10


def test_a_host_that_keeps_the_threads_of_the_event_loop_busy_holds_up_no_message() -> None:
    async def run() -> None:
        chat, free = Chat(), threading.Event()
        waiting = [
            asyncio.ensure_future(asyncio.to_thread(free.wait, 60)) for _ in range(2 * (os.cpu_count() or 1) + 40)
        ]
        try:
            await asyncio.wait_for(chat.tell("When does the ferry leave?"), 30)
        finally:
            free.set()
        await asyncio.gather(*waiting)

    asyncio.run(run())


def test_where_no_thread_can_be_had_a_message_is_packed_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "_MOST_THREADS", 0)
    chat = Chat()
    chat.say("When does the ferry leave?", "And back?")
    assert [manifest.degradations for manifest in chat.manifests()] == [(), ()]


def test_who_is_cancelled_while_it_waits_for_its_turn_holds_up_nobody() -> None:
    async def run() -> list[int]:
        went_on = list[int]()

        async def go(number: int) -> None:
            await bounds.take_turn()
            went_on.append(number)

        tasks = [asyncio.ensure_future(go(number)) for number in range(6)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        tasks[4].cancel()
        await asyncio.wait(tasks, timeout=10)
        return went_on

    assert asyncio.run(run()) == [0, 2, 3, 5]
