"""Hundreds of sessions that wake together, as after a restart: the event loop serves others between their packs."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.apps import App
from google.adk.events.event import Event
from google.adk.models.llm_request import LlmRequest
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.genai import types
from scripted import Scripted, new_store

from aether_context import PackPolicy
from aether_context.adk import ContextPackPlugin
from aether_context.adk.bounds import take_turn


class Unseen(Scripted):
    """A model that keeps no copies of requests, which would take as long as packs."""

    def see(self, llm_request: LlmRequest) -> None:
        return None


class Noting(ContextPackPlugin):
    """Notes in which round of the event loop each pack was finished."""

    beats: list[int]
    rounds: list[int]

    async def before_model_callback(self, **given: Any) -> Any:
        answer = await super().before_model_callback(**given)
        self.rounds.append(self.beats[0])
        return answer


async def fill(sessions: InMemorySessionService, count: int) -> None:
    """Makes so many sessions of thirty turns."""
    for at in range(count):
        session = await sessions.create_session(app_name="shop", user_id=f"u{at}", session_id="s")
        for turn in range(60):
            author, role = ("user", "user") if turn % 2 == 0 else ("clerk", "model")
            text = f"turn {turn} of {at}: " + " ".join(f"word{(at * 31 + turn * 7 + n) % 997}" for n in range(60))
            content = types.Content(role=role, parts=[types.Part(text=text)])
            await sessions.append_event(session, Event(author=author, invocation_id=f"i{turn // 2}", content=content))


async def most_packs_in_a_round(plugin: Noting, count: int) -> int:
    """Returns how many packs one round of the loop finished at most, while so many sessions answer at once."""
    sessions, llm = InMemorySessionService(), Unseen(sent=[])
    agent = LlmAgent(name="clerk", model=llm, instruction="You help.")
    runner = Runner(app=App(name="shop", root_agent=agent, plugins=[plugin]), session_service=sessions)
    await fill(sessions, count)
    plugin.beats, plugin.rounds = [0], []

    async def beat() -> None:
        while True:
            plugin.beats[0] += 1
            await asyncio.sleep(0)

    async def ask(at: int) -> None:
        message = types.UserContent(f"What was word{at}?")
        async for _ in runner.run_async(user_id=f"u{at}", session_id="s", new_message=message):
            pass

    heart = asyncio.create_task(beat())
    await asyncio.gather(*map(ask, range(count)))
    heart.cancel()
    assert len(plugin.rounds) == count
    return max(Counter(plugin.rounds).values())


@pytest.mark.parametrize("count", [20, pytest.param(60, marks=pytest.mark.slow)])
def test_sessions_that_wake_together_leave_the_loop_to_others(count: int, figure: Callable[[str, float], None]) -> None:
    plugin = Noting(policy=PackPolicy(max_input_tokens=3_000), store=new_store(), on_error="raise")
    packs = asyncio.run(most_packs_in_a_round(plugin, count))
    figure("packs_in_a_round", packs)
    assert packs <= 5


async def longest_stall(plugins: list[ContextPackPlugin], count: int) -> float:
    """Returns the most seconds of the loop's own thread between two beats, while so many sessions wake together."""
    sessions, llm = InMemorySessionService(), Unseen(sent=[])
    agent = LlmAgent(name="clerk", model=llm, instruction="You help.")
    runner = Runner(app=App(name="shop", root_agent=agent, plugins=plugins), session_service=sessions)
    await fill(sessions, count)
    longest = 0.0

    async def beat() -> None:
        nonlocal longest
        while True:
            began = time.thread_time()
            await asyncio.sleep(0)
            longest = max(longest, time.thread_time() - began)

    async def ask(at: int) -> None:
        message = types.UserContent(f"What was word{at}?")
        async for _ in runner.run_async(user_id=f"u{at}", session_id="s", new_message=message):
            pass

    heart = asyncio.create_task(beat())
    await asyncio.gather(*map(ask, range(count)))
    heart.cancel()
    await runner.close()
    return longest


@pytest.mark.slow
def test_two_hundred_sessions_that_wake_together(figure: Callable[[str, float], None]) -> None:
    """ADK itself takes one round of the loop for all that it does before the first model call; packs add little."""
    alone = asyncio.run(longest_stall([], 200))
    plugin = ContextPackPlugin(policy=PackPolicy(max_input_tokens=3_000), store=new_store(), on_error="raise")
    beside = asyncio.run(longest_stall([plugin], 200))
    figure("woken_alone_seconds", alone)
    figure("woken_seconds", beside)
    # Without turns a round takes 3.7 times as long; with them 0.8, since sessions come to their models one by one.
    assert beside < 2 * alone


def test_turns_go_on_where_one_that_waits_is_cancelled() -> None:
    order: list[int] = []

    async def go() -> None:
        async def act(at: int) -> None:
            await take_turn()
            order.append(at)

        tasks = [asyncio.create_task(act(at)) for at in range(20)]
        await asyncio.sleep(0)
        for task in tasks[3:9]:
            task.cancel()
        await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 5)

    for _ in range(3):  # each in an event loop of its own
        asyncio.run(go())
    assert order == [0, 1, 2, *range(9, 20)] * 3


@pytest.mark.parametrize("callers", [1, 5])
def test_a_turn_is_given_once_a_round(callers: int) -> None:
    rounds: list[int] = []

    async def go() -> None:
        now = [0]

        async def count() -> None:
            while True:
                now[0] += 1
                await asyncio.sleep(0)

        async def act() -> None:
            await take_turn()
            rounds.append(now[0])

        counting = asyncio.create_task(count())
        await asyncio.gather(*(act() for _ in range(callers)))
        counting.cancel()

    asyncio.run(go())
    assert len(set(rounds)) == callers
