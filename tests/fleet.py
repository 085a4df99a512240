"""Many worker processes that serve the same sessions: for `test_fleet`.

A worker is one Runner with one plugin, as a server has them. It takes turns from its pipe and tells through it what
each model call was sent, in the moment before the model answers, and how each turn ended.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.agents.callback_context import CallbackContext
from google.adk.apps import App
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.platform.time import set_time_provider
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.runners import Runner
from google.adk.sessions.database_session_service import DatabaseSessionService
from google.genai import types
from scripted import call, size

from aether_context import PackPolicy, PackStore
from aether_context.adk import ContextPackPlugin
from aether_context.store.spool import FOLDER

APP = "shop"
POLICY = PackPolicy(max_input_tokens=2_500)
_PRELOADED = ("fleet", "asyncpg", "s3fs", "sqlalchemy.dialects.postgresql.asyncpg", "aether_context.adk.plugin")


@dataclass(frozen=True)
class Turn:
    """One user message of a session; its last word is the page to be read, and to read "hangs" never ends."""

    user: str
    session: str
    text: str

    @property
    def key(self) -> tuple[str, str]:
        return self.user, self.session


@dataclass(frozen=True)
class Place:
    """Where workers keep sessions and packs. ``skew_seconds`` is what a worker's clock is ahead."""

    sessions: str
    store: str
    options: Mapping[str, Any]
    spool: str
    skew_seconds: float = 0.0


# in a worker


class Reader(BaseLlm):
    """Reads the page that the user names, then answers with a line of it."""

    model: str = "gemini-2.5-flash"

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        parts = llm_request.contents[-1].parts or [types.Part(text="")]
        response = parts[-1].function_response
        if response is None:
            part = call("read_page", name=(parts[-1].text or "").split()[-1])
        else:
            part = types.Part(text=f"answer: {str(response.response)[:60]}")
        read = size(llm_request)
        usage = types.GenerateContentResponseUsageMetadata(
            prompt_token_count=read, candidates_token_count=7, total_token_count=read + 7
        )
        content = types.Content(role="model", parts=[part])
        yield LlmResponse(content=content, usage_metadata=usage, finish_reason=types.FinishReason.STOP)


class Witness(BasePlugin):
    """Tells what each model call is sent, after all other plugins."""

    def __init__(self, tell: Callable[..., None]) -> None:
        super().__init__(name="witness")
        self.tell = tell

    async def before_model_callback(self, *, callback_context: CallbackContext, llm_request: LlmRequest) -> None:
        session = callback_context.session
        contents = [json.loads(one.model_dump_json(exclude_none=True)) for one in llm_request.contents]
        self.tell("sent", (session.user_id, session.id), contents)


def _work(connection: Connection, place: Place) -> None:
    os.environ[FOLDER] = place.spool

    async def serve() -> None:
        set_time_provider(lambda: time.time() + place.skew_seconds)

        def read_page(name: str) -> str:
            """Reads a page."""
            if name == "hangs":
                connection.send(("hangs", None, None))
                time.sleep(600)
            return "\n".join(f"{name} line {at}: rivers rise and fall with rain" for at in range(40))

        store = PackStore(place.store, **place.options)
        plugin = ContextPackPlugin(policy=POLICY, store=store, on_error="raise")
        agent = LlmAgent(name="clerk", model=Reader(), instruction="You help.", tools=[read_page])
        witness = Witness(lambda *told: connection.send(told))
        async with DatabaseSessionService(db_url=place.sessions) as sessions:
            app = App(name=APP, root_agent=agent, plugins=[plugin, witness])
            async with Runner(app=app, session_service=sessions) as runner:
                while (turn := await asyncio.to_thread(connection.recv)) is not None:
                    where = {"user_id": turn.user, "session_id": turn.session}
                    fault = ""
                    try:
                        if await sessions.get_session(app_name=APP, **where) is None:
                            await sessions.create_session(app_name=APP, **where)
                        async for _ in runner.run_async(**where, new_message=types.UserContent(turn.text)):
                            pass
                    except Exception as error:
                        fault = f"{type(error).__name__}: {error}"
                    connection.send(("done", turn.key, fault))

    asyncio.run(serve())


# in the test


@dataclass
class Fleet:
    """Workers, and what they told: for each session what its model calls were sent, and the turns that failed."""

    workers: dict[Connection, Any] = field(default_factory=dict)
    busy: dict[Connection, Turn] = field(default_factory=dict)
    sent: dict[tuple[str, str], list[Any]] = field(default_factory=dict)
    faults: list[tuple[Turn, str]] = field(default_factory=list)
    killed: list[Turn] = field(default_factory=list)

    def play(self, turns: Sequence[Turn], *, at_once: int = 1) -> None:
        """Gives each turn to the worker that was idle longest, ``at_once`` of a session at a time, in their order."""
        idle = [connection for connection in self.workers if connection not in self.busy]
        left = list(turns)
        while left or self.busy:
            for connection in list(idle):
                going = [turn.key for turn in self.busy.values()]
                first: dict[tuple[str, str], Turn] = {}
                for turn in left:
                    first.setdefault(turn.key, turn)
                next_one = next((turn for key, turn in first.items() if going.count(key) < at_once), None)
                if next_one is None:
                    break
                left.remove(next_one)
                idle.remove(connection)
                self.busy[connection] = next_one
                connection.send(next_one)
            idle += self._hear()

    def _hear(self) -> Iterator[Connection]:
        """Takes in what workers tell; those that are done."""
        for connection in wait(list(self.busy), timeout=300) or [None]:
            assert isinstance(connection, Connection), "no worker told anything for five minutes"
            what, key, value = connection.recv()
            if what == "sent":
                self.sent.setdefault(key, []).append(value)
                continue
            turn = self.busy.pop(connection)
            if what == "hangs":
                process = self.workers.pop(connection)
                process.kill()
                process.join()
                self.killed.append(turn)
                continue
            if value:
                self.faults.append((turn, value))
            yield connection


@contextmanager
def fleet(places: Sequence[Place]) -> Iterator[Fleet]:
    """A worker for each place, forked from a process that has imported all they need; they end by themselves."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(_PRELOADED))
    found = Fleet()
    try:
        for place in places:
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs, place), daemon=True)
            process.start()
            theirs.close()
            found.workers[ours] = process
        yield found
        for connection in found.workers:
            connection.send(None)
        for process in found.workers.values():
            process.join(300)
            assert process.exitcode == 0
    finally:
        for process in found.workers.values():
            process.kill()
