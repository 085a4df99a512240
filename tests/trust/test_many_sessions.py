"""Hundreds of sessions that wake together, as after a restart: the event loop serves others between their packs."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Generator, Sequence
from itertools import pairwise
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


class Unseen(Scripted):
    """A model that keeps no copies of requests, which would take as long as packs."""

    def see(self, llm_request: LlmRequest) -> None:
        return None


class Counted:
    """Work, with the number of times that the event loop resumed it."""

    def __init__(self, work: Coroutine[Any, Any, Any]) -> None:
        self.work, self.steps = work, 0

    def __await__(self) -> Generator[Any, Any, Any]:
        while True:
            try:
                future = self.work.send(None)
            except StopIteration as end:
                return end.value
            self.steps += 1
            yield future


class Noting(ContextPackPlugin):
    """Notes in which round of the event loop each pack was finished, and how often its work was resumed."""

    beats: list[int]
    rounds: list[int]
    steps: list[int]

    async def before_model_callback(self, **given: Any) -> Any:
        answer = await (counted := Counted(super().before_model_callback(**given)))
        self.rounds.append(self.beats[0])
        self.steps.append(counted.steps)
        return answer


Tasks = Sequence["asyncio.Task[None]"]


async def wake(plugins: Sequence[ContextPackPlugin], count: int, beat: Callable[[Tasks], None]) -> None:
    """Has so many sessions of thirty turns answer at once, and hands them to ``beat`` in each round of the loop."""
    sessions, llm = InMemorySessionService(), Unseen(sent=[])
    agent = LlmAgent(name="clerk", model=llm, instruction="You help.")
    runner = Runner(app=App(name="shop", root_agent=agent, plugins=[*plugins]), session_service=sessions)
    for at in range(count):
        session = await sessions.create_session(app_name="shop", user_id=f"u{at}", session_id="s")
        for turn in range(60):
            author, role = ("user", "user") if turn % 2 == 0 else ("clerk", "model")
            text = f"turn {turn} of {at}: " + " ".join(f"word{(at * 31 + turn * 7 + n) % 997}" for n in range(60))
            content = types.Content(role=role, parts=[types.Part(text=text)])
            await sessions.append_event(session, Event(author=author, invocation_id=f"i{turn // 2}", content=content))

    async def go_on() -> None:
        while True:
            beat(tasks)
            await asyncio.sleep(0)

    async def ask(at: int) -> None:
        message = types.UserContent(f"What was word{at}?")
        async for _ in runner.run_async(user_id=f"u{at}", session_id="s", new_message=message):
            pass

    tasks = [asyncio.create_task(ask(at)) for at in range(count)]
    heart = asyncio.create_task(go_on())
    _, waiting = await asyncio.wait(tasks, timeout=300)
    assert not waiting
    assert not any(task.exception() for task in tasks if not task.cancelled())
    heart.cancel()
    await runner.close()


@pytest.mark.parametrize(
    ("count", "cancelled"),
    [(12, range(4, 8)), pytest.param(60, (), marks=pytest.mark.slow)],
    ids=["some are cancelled", "sixty"],
)
def test_sessions_that_wake_together_leave_the_loop_to_others(
    figure: Callable[[str, float], None], count: int, cancelled: Collection[int]
) -> None:
    plugin = Noting(policy=PackPolicy(max_input_tokens=3_000), store=new_store(), on_error="raise")
    plugin.beats, plugin.rounds, plugin.steps = [0], [], []
    leaving = [*cancelled]

    def beat(tasks: Tasks) -> None:
        plugin.beats[0] += 1
        while plugin.rounds and leaving:
            tasks[leaving.pop()].cancel()

    asyncio.run(wake([plugin], count, beat))
    packs = max(Counter(plugin.rounds).values())
    if not cancelled:
        figure("packs_in_a_round", packs)
    # One that is cancelled may have had its turn before, where the machine is busy.
    assert count - len(cancelled) <= len(plugin.rounds) <= count
    assert packs <= 5
    assert max(plugin.steps) < 15, "who waits for a turn sleeps until it comes"


def longest_stall(plugins: Sequence[ContextPackPlugin], count: int) -> float:
    """Returns the most seconds of the loop's own thread between two beats, while so many sessions wake together."""
    beats: list[float] = []

    def beat(_: Tasks) -> None:
        beats.append(time.thread_time())

    asyncio.run(wake(plugins, count, beat))
    return max(later - earlier for earlier, later in pairwise(beats))


@pytest.mark.soak
def test_two_hundred_sessions_that_wake_together(figure: Callable[[str, float], None]) -> None:
    """ADK itself takes one round of the loop for all that it does before the first model call; packs add little."""
    alone = longest_stall([], 200)
    plugin = ContextPackPlugin(policy=PackPolicy(max_input_tokens=3_000), store=new_store(), on_error="raise")
    beside = longest_stall([plugin], 200)
    figure("woken_alone_seconds", alone)
    figure("woken_seconds", beside)
    # Without turns a round takes 3.7 times as long; with them 0.8, since sessions come to their models one by one.
    assert beside < 2 * alone
