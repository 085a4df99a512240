"""What a session costs and finds of which the host loads the last events alone, against one that is loaded whole.

    python long_sessions.py recall locomo.json [--every N] [--window N]
    python long_sessions.py cost [--url SQLALCHEMY_URL] [--events N]

``recall`` says each conversation of LoCoMo (Maharana et al., 2024) through an ADK `Runner` with the plugin, one speaker
the user and the other the agent, then asks each question in that session: the share of its labelled turns that stands
in the request, and the request's tokens.

``cost`` is the time from a user message to the end of its run, ADK, session service and plugin together and the model
none, the median of 15 messages, in sessions of 100 and of so many events; what a restart takes first; the memory of the
process after each; and the bytes that are kept of a turn, of the bytes of its text.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import json
import re
import resource
import statistics
import tempfile
import time
from collections.abc import AsyncGenerator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.agents.run_config import RunConfig
from google.adk.apps import App
from google.adk.events.event import Event
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.adk.sessions import DatabaseSessionService, InMemorySessionService
from google.adk.sessions.base_session_service import BaseSessionService, GetSessionConfig
from google.genai import types
from turn_recall import questions, turns

from aether_context import PackPolicy, PackStore
from aether_context.adk import ContextPackPlugin
from aether_context.tokens import counter_for

LOADED = 50
_MESSAGES = 15
_COUNTER = counter_for("gemini-2.5-flash")


class Saying(BaseLlm):
    """Answers with what it is given; keeps the text of the last request."""

    model: str = "gemini-2.5-flash"
    replies: list[str] = []
    text: str = ""

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        parts = (part for content in llm_request.contents for part in content.parts or ())
        self.text = "\n".join(part.text for part in parts if part.text)
        reply = self.replies.pop(0) if self.replies else "I see."
        yield LlmResponse(content=types.Content(role="model", parts=[types.Part(text=reply)]))


class Talk:
    """A session with one agent, with or without the plugin."""

    def __init__(
        self, service: BaseSessionService, store: PackStore, loaded: int | None, *, window: int, packs: bool = True
    ) -> None:
        self.llm, self.service, self.loaded = Saying(), service, loaded
        plugins = [ContextPackPlugin(policy=PackPolicy(max_input_tokens=window), store=store)] if packs else []
        agent = LlmAgent(name="agent", model=self.llm, instruction="You are a friend of the user.")
        self.runner = Runner(app=App(name="bench", root_agent=agent, plugins=plugins), session_service=service)

    async def say(self, message: str, session: str = "s") -> str:
        config = RunConfig(get_session_config=GetSessionConfig(num_recent_events=self.loaded) if self.loaded else None)
        content = types.UserContent(parts=[types.Part(text=message)])
        async for _ in self.runner.run_async(user_id="ann", session_id=session, new_message=content, run_config=config):
            pass
        return self.llm.text


def spaced(text: str) -> str:
    return re.sub(r"\s+", " ", text)


async def found(sample: dict[str, Any], loaded: int | None, args: argparse.Namespace, number: int) -> list[Any]:
    """Of each question the share of its turns that is in its request, and the request's tokens."""
    service = InMemorySessionService()
    await service.create_session(app_name="bench", user_id="ann", session_id="s")
    talk = Talk(service, PackStore(f"memory://long-{number}-{loaded}"), loaded, window=args.window)
    user = sample["conversation"]["speaker_a"]
    runs = groupby(turns(sample["conversation"]), key=lambda turn: turn.speaker == user)
    said = [(is_users, "\n".join(turn.text for turn in run)) for is_users, run in runs]
    said = said if said[0][0] else [(True, "Hello."), *said]
    for (_, message), (_, reply) in zip(said[::2], said[1::2], strict=False):
        talk.llm.replies = [reply]
        await talk.say(message)
    rows, kept = [], copy.deepcopy(service.sessions)
    for question, _ in list(questions(sample))[:: args.every]:
        service.sessions = copy.deepcopy(kept)
        text = await talk.say(question.text)
        held = [spaced(evidence) in spaced(text) for evidence in question.evidence]
        rows.append((sum(held) / len(held), _COUNTER.count(text)))
    return rows


async def recall(args: argparse.Namespace) -> None:
    print("| loaded | questions | recall | tokens |\n| --- | --- | --- | --- |")
    samples = json.loads(Path(args.file).read_text())
    for loaded in (None, LOADED):
        rows = [row for at, sample in enumerate(samples) for row in await found(sample, loaded, args, at)]
        shares, tokens = zip(*rows, strict=True)
        name = f"the last {loaded}" if loaded else "all"
        print(
            f"| {name} | {len(rows):,} | {statistics.mean(shares):.3f} | {statistics.mean(tokens):,.0f} |", flush=True
        )


def history(count: int) -> list[Event]:
    """Events of a chat about many things."""
    things = ("the garden", "a train to Lisbon", "the roof", "Ada's bees", "the blue door", "a letter from Oslo")
    text = "Number {at} is about {thing}: it takes {days} days, costs {cost} euros, and {name} knows more about it."
    found = []
    for at in range(count):
        said = text.format(at=at, thing=things[at % 6], days=at % 97, cost=at * 37 % 1_009, name=f"N{at * 7 % 613}")
        is_users = at % 2 == 0
        content = types.Content(role="user" if is_users else "model", parts=[types.Part(text=said)])
        author = "user" if is_users else "agent"
        found.append(Event(author=author, invocation_id=f"i{at // 2}", content=content, timestamp=1.7e9 + 60 * at))
    return found


async def timed(talk: Talk, session: str, messages: Sequence[str]) -> float:
    """The median of the milliseconds of messages."""
    took = []
    for message in messages:
        began = time.perf_counter()
        await talk.say(message, session)
        took.append(1_000 * (time.perf_counter() - began))
    return statistics.median(took)


async def cost(args: argparse.Namespace) -> None:
    asked = [f"What was number {at * 31} about, and who knows more about it?" for at in range(_MESSAGES)]
    with tempfile.TemporaryDirectory() as folder:
        service = DatabaseSessionService(args.url or f"sqlite+aiosqlite:///{folder}/sessions.db")
        store = PackStore(f"{folder}/packs")
        for count in (100, args.events):
            name = f"of-{count}"
            session = await service.create_session(app_name="bench", user_id="ann", session_id=name)
            for event in history(count):
                await service.append_event(session, event)
            await Talk(service, store, None, window=args.window).say("Hello.", name)  # the plugin sees all of it once
        print("| events | loaded | with the plugin, ms | ADK alone, ms | first after a restart, ms | memory, MB |")
        print("| --- | --- | --- | --- | --- | --- |")
        for loaded in (LOADED, None):
            for count in (100, args.events):
                talk, name = Talk(service, store, loaded, window=args.window), f"of-{count}"
                first = await timed(talk, name, asked[:1])
                packed = await timed(talk, name, asked)
                alone = Talk(service, store, loaded, window=args.window, packs=False)
                plain = await timed(alone, name, asked)
                memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1_024
                words = f"the last {loaded}" if loaded else "all"
                print(f"| {count:,} | {words} | {packed:.0f} | {plain:.0f} | {first:.0f} | {memory:,} |", flush=True)
        files = [
            file
            for file in store.files.below(store.files.root)
            if "/turns/" in file.path and "/of-100/" not in file.path
        ]
        texts = sum(len(event.content.parts[0].text) for event in history(args.events))  # type: ignore[union-attr]
        size = sum(file.size for file in files)
        print(f"\n{len(files)} files, {size:,} bytes, {size / texts:.2f} of the bytes of the text")
        await service.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    modes = parser.add_subparsers(required=True)
    one = modes.add_parser("recall")
    one.add_argument("file")
    one.add_argument("--every", type=int, default=1)
    one.add_argument("--window", type=int, default=4_000)
    one.set_defaults(run=recall)
    one = modes.add_parser("cost")
    one.add_argument("--url", default="")
    one.add_argument("--events", type=int, default=10_000)
    one.add_argument("--window", type=int, default=16_000)
    one.set_defaults(run=cost)
    args = parser.parse_args()
    asyncio.run(args.run(args))


if __name__ == "__main__":
    main()
