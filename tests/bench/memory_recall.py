"""Asks an agent with a memory service about long conversations, and looks for the evidence in the request.

    python memory_recall.py locomo.json [--window N] [--every N] [--file PATH]

The file is that of LoCoMo (Maharana et al., 2024). Each conversation goes into a `HybridMemoryService`; each question
that has an answer there is asked in a session of its own, through an ADK `Runner` with the plugin. A labelled turn
counts where sentences of at least 90% of its characters stand in the request word for word. Printed are the mean
share of labelled turns, the mean tokens of a request (UTF-8 bytes / 4, system instruction and question included) and
the processor time of a question, with the plugin and without. ``--every 5`` asks every fifth question.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.apps import App
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.genai import types
from turn_recall import turns

from aether_context import PackPolicy
from aether_context.adk import ContextPackPlugin, HybridMemoryService
from aether_context.memory import Memory

_UNANSWERABLE = 5
_ENOUGH = 0.9


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


def remember(service: HybridMemoryService, conversation: dict[str, Any], user: str) -> None:
    for number, turn in enumerate(turns(conversation)):
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(turn.time))
        memory = Memory(
            name=f"{number}", text=turn.text, session=turn.thread or "", author=turn.speaker, timestamp=stamp
        )
        service.memories.add("bench", user, [memory])


async def asked(runner: Runner, sink: Sink, user: str, question: str) -> tuple[list[str], float]:
    """The texts of the request that a question made, and the processor's seconds."""
    session = await runner.session_service.create_session(app_name="bench", user_id=user)
    began = time.process_time()
    async for _ in runner.run_async(user_id=user, session_id=session.id, new_message=types.UserContent(question)):
        pass
    return sink.seen, time.process_time() - began


async def measure(samples: list[dict[str, Any]], args: argparse.Namespace, plugins: list[BasePlugin]) -> str:
    service = HybridMemoryService(args.file or "")
    sink = Sink(seen=[])
    agent = LlmAgent(name="agent", model=sink, static_instruction="Answer from what you remember.")
    app = App(name="bench", root_agent=agent, plugins=plugins)
    runner = Runner(app=app, session_service=InMemorySessionService(), memory_service=service)
    rows: list[tuple[float, int, float]] = []
    for number, sample in enumerate(samples):
        remember(service, sample["conversation"], f"user{number}")
        held = (one for some in sample["conversation"].values() if isinstance(some, list) for one in some)
        texts = {turn["dia_id"]: turn["text"] for turn in held}
        for question in sample["qa"][:: args.every]:
            evidence = [one for raw in question["evidence"] for one in re.findall(r"D\d+:\d+", raw) if one in texts]
            if question["category"] == _UNANSWERABLE or not evidence:
                continue
            seen, spent = await asked(runner, sink, f"user{number}", question["question"])
            request = " ".join(" ".join(seen).split())
            recall = sum(present(texts[one], request) for one in evidence) / len(evidence)
            rows.append((recall, sum((len(text.encode()) + 3) // 4 for text in seen), spent))
    recalls, tokens, times = zip(*rows, strict=True)
    ordered = sorted(times)
    return (
        f"{len(rows)} questions: recall {sum(recalls) / len(rows):.3f}, "
        f"{sum(tokens) / len(rows):,.0f} tokens a request, "
        f"{1000 * ordered[len(rows) // 2]:.1f} ms, 95th percentile {1000 * ordered[int(0.95 * len(rows))]:.1f} ms"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--window", type=int, default=4_600)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--file", help="a file for the memories; without one they are kept in the process")
    given = parser.parse_args()
    conversations = json.loads(given.path.read_text())
    plugin = ContextPackPlugin(policy=PackPolicy(max_input_tokens=given.window), store="memory://bench")
    print("without the plugin:", asyncio.run(measure(conversations[:1], given, [])))
    print("with it:", asyncio.run(measure(conversations, given, [plugin])))
