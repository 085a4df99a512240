"""A process that talks with default settings until it is killed: ``python tests/default_life.py FOLDER``."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from google.adk.agents import LlmAgent
from google.adk.apps import App
from google.adk.runners import Runner
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from google.genai import types
from scripted import Scripted, call

from aether_context.adk import ContextPackPlugin


def read_log(day: int) -> str:
    """Reads a log of a day."""
    return "\n".join(f"day {day} line {at}: gauge {at * 53 % 997} ok" for at in range(600))


async def live(folder: Path) -> None:
    llm = Scripted(sent=[], script=[])
    agent = LlmAgent(name="clerk", model=llm, instruction="You help.", tools=[read_log])
    sessions = SqliteSessionService(str(folder / "sessions.db"))
    plugin = ContextPackPlugin(store=str(folder / "store"))
    runner = Runner(app=App(name="shop", root_agent=agent, plugins=[plugin]), session_service=sessions)
    known = {"app_name": "shop", "user_id": "ann", "session_id": "s"}
    session = await sessions.get_session(**known) or await sessions.create_session(**known)
    turn = sum(event.author == "user" for event in session.events)
    print("begun", flush=True)
    while True:
        llm.script[:] = [call("read_log", day=turn), f"answer {turn}"]
        message = types.UserContent(f"Question {turn}: " + "what of the gauge " * 200)
        events = [event async for event in runner.run_async(user_id="ann", session_id="s", new_message=message)]
        assert events[-1].content is not None
        print(f"turn {turn}", flush=True)
        turn += 1


if __name__ == "__main__":
    asyncio.run(live(Path(sys.argv[1])))
