"""Asks an agent with a memory service about long conversations, and looks for the evidence in the request.

    python memory_recall.py locomo.json [--window N ...] [--policy NAME|TOML|SETTINGS ...] [--peers] [--by kind|talk]
                                        [--every N] [--file PATH]

The file is that of LoCoMo (Maharana et al., 2024). Each conversation goes into a `HybridMemoryService`; each question
that has an answer there is asked in a session of its own, through an ADK `Runner` with the plugin. Printed are the
share of labelled turns that stand in the request: those of which sentences of at least 90% of the characters do, word
for word; the requests of more tokens than the window (UTF-8 bytes / 4, system instruction and question included), in
percent; their mean tokens; and milliseconds of processor time a question. Cells are means over questions; see
sessions.py. ``--peers`` asks ADK's `preload_memory`, too, over the same service and over ADK's own. ``--every 5`` asks
every fifth question.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import time
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.apps import App
from google.adk.memory import BaseMemoryService, InMemoryMemoryService
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService, Session
from google.adk.tools.preload_memory_tool import PreloadMemoryTool
from google.genai import types
from sessions import PERCENT, Figures, policy_of, print_table
from turn_recall import Question, questions, said, turns

from aether_context.adk import ContextPackPlugin, HybridMemoryService
from aether_context.memory import Memory

COLUMNS = {"recall": (1.0, 3), "over": PERCENT, "tokens": (1.0, 0), "ms": (1.0, 1)}
_ENOUGH = 0.9
_PEERS = {
    "`preload_memory`, the same service": HybridMemoryService,
    "`preload_memory`, ADK's service": InMemoryMemoryService,
}


class Sink(BaseLlm):
    """Keeps the latest request's texts and answers with one word."""

    model: str = "gemini-2.5-flash"
    seen: list[str] = []

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        contents = [part.text or "" for one in llm_request.contents for part in one.parts or ()]
        self.seen[:] = [str(llm_request.config.system_instruction or ""), *contents]
        yield LlmResponse(content=types.Content(role="model", parts=[types.Part(text="noted")]))


def present(turn: str, request: str) -> bool:
    whole = " ".join(turn.split())
    found = sum(len(one) for one in re.split(r"(?<=[.!?])\s+", whole) if one and one in request)
    return found >= _ENOUGH * len(whole)


async def asked(runner: Runner, sink: Sink, user: str, question: str, session: str = "") -> tuple[list[str], float]:
    """The texts of the request that a question made, in a session or one of its own, and the processor's seconds."""
    session = session or (await runner.session_service.create_session(app_name="bench", user_id=user)).id
    began = time.process_time()
    async for _ in runner.run_async(user_id=user, session_id=session, new_message=types.UserContent(question)):
        pass
    return sink.seen, time.process_time() - began


def figures(question: Question, seen: Sequence[str], seconds: float, window: int) -> Figures:
    """The columns of a question, for both scripts."""
    request = " ".join(" ".join(seen).split())
    size = sum((len(text.encode()) + 3) // 4 for text in seen)
    return {
        "recall": share(question.evidence, request),
        "sentence": share(question.told, request),
        "assistant's": share(question.answered, request),
        "over": (size > window, 1),
        "tokens": (size, 1),
        "ms": (1_000 * seconds, 1),
    }


def share(texts: Sequence[str], request: str) -> tuple[int, int]:
    return sum(present(text, request) for text in texts), len(texts)


async def remember(service: BaseMemoryService, conversation: dict[str, Any], user: str) -> None:
    if not isinstance(service, HybridMemoryService):
        events = [said(number, turn) for number, turn in enumerate(turns(conversation))]
        await service.add_session_to_memory(Session(id="talk", app_name="bench", user_id=user, events=events))
        return
    for number, turn in enumerate(turns(conversation)):
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(turn.time))
        memory = Memory(
            name=f"{number}", text=turn.text, session=turn.thread or "", author=turn.speaker, timestamp=stamp
        )
        service.memories.add("bench", user, [memory])


async def measure(
    samples: Iterable[dict[str, Any]], args: argparse.Namespace, name: str, window: int
) -> Iterator[tuple[str, Figures]]:
    """The figures of each question, by its group."""
    plugins = [] if name in _PEERS else [ContextPackPlugin(policy=policy_of(name, window), store="memory://bench")]
    service = _PEERS[name]() if name in _PEERS else HybridMemoryService(args.file or "")
    tools = [PreloadMemoryTool()] if name in _PEERS else []
    sink = Sink(seen=[])
    agent = LlmAgent(name="agent", model=sink, tools=tools, static_instruction="Answer from what you remember.")
    app = App(name="bench", root_agent=agent, plugins=plugins)
    runner = Runner(app=app, session_service=InMemorySessionService(), memory_service=service)
    rows = []
    for number, sample in enumerate(samples):
        await remember(service, sample["conversation"], f"user{number}")
        for question in [one for one, _ in questions(sample)][:: args.every]:
            seen, spent = await asked(runner, sink, f"user{number}", question.text)
            group = {"kind": question.kind, "talk": f"{number}"}.get(args.by, "")
            rows.append((group, figures(question, seen, spent, window)))
    return iter(rows)


def rows(args: argparse.Namespace, peers: Iterable[str], measure: Any) -> Iterator[tuple[list[str], list[Figures]]]:
    """A row for each window and policy, and each group."""
    for window in args.window:
        for name in [*args.policy, *(peers if args.peers and window == args.window[0] else ())]:
            groups: dict[str, list[Figures]] = {}
            for group, found in asyncio.run(measure(name, window)):
                groups.setdefault(group, []).append(found)
            for group, sessions in sorted(groups.items()):
                yield [f"{window:,}", *filter(None, [group]), name], sessions


def heads(args: argparse.Namespace) -> list[str]:
    return ["window", args.by, "what"] if args.by else ["window", "what"]


def arguments(doc: str | None, window: int) -> argparse.ArgumentParser:
    """What both scripts take."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--window", type=int, nargs="+", default=[window], help=f"tokens (default: {window})")
    parser.add_argument("--policy", nargs="*", default=["balanced"], help="presets, profiles, TOML files or settings")
    parser.add_argument("--peers", action="store_true", help="what a user could pick instead, too, at the first window")
    parser.add_argument("--by", choices=["kind", "talk"], help="a row for each kind of question, or conversation")
    parser.add_argument("--every", type=int, default=1, help="only every so many-th question")
    return parser


if __name__ == "__main__":
    parser = arguments(__doc__, 4_600)
    parser.add_argument("--file", help="a file for the memories; without one they are kept in the process")
    given = parser.parse_args()
    conversations = json.loads(given.path.read_text())
    found = rows(given, _PEERS, lambda name, window: measure(conversations, given, name, window))
    print_table(heads(given), COLUMNS, found)
