"""Asks an agent about what was said earlier in its own session, and looks for the evidence in the request.

    python session_recall.py locomo.json [--window N] [--every N] [--set SECTION.FIELD=VALUE ...]
    python session_recall.py chats --window 16000

The file is that of LoCoMo (Maharana et al., 2024). Each conversation is one running session of 16,000 to 26,000 tokens,
one speaker the user and the other the agent, and there is no memory service. A folder is one of BEAM's chats of about
120,000 tokens (Tavakoli et al., 2025), each with `chat.json` and `probing_questions.json`; what is looked for are the
user's messages that a question's answer is in. Each question that has an answer in its session is asked in a copy of
that, through an ADK `Runner` with the plugin. Printed are the figures of `memory_recall.py`; and how often the request
was estimated beyond the window.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.apps import App
from google.adk.events.event import Event
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.genai import types
from memory_recall import Sink, present
from recorded_runs import settings, size
from turn_recall import turns

from aether_context import PackPolicy, PackStore
from aether_context.adk import ContextPackPlugin

_UNANSWERABLE = 5
_KINDS = (
    "information_extraction", "knowledge_update", "multi_session_reasoning", "temporal_reasoning",
    "contradiction_resolution", "event_ordering",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Talk:
    """A session's events, and questions with the texts that hold their answers."""

    events: list[Event]
    questions: list[tuple[str, list[str]]]


def said(number: int, text: str, time: float, *, user: bool) -> Event:
    content = types.Content(role="user" if user else "model", parts=[types.Part(text=text)])
    return Event(invocation_id=f"i{number}", author="user" if user else "agent", timestamp=time, content=content)


def of_locomo(sample: dict[str, Any]) -> Talk:
    conversation = sample["conversation"]
    held = (one for some in conversation.values() if isinstance(some, list) for one in some)
    texts = {turn["dia_id"]: turn["text"] for turn in held}
    questions = []
    for question in sample["qa"]:
        evidence = [one for raw in question["evidence"] for one in re.findall(r"D\d+:\d+", raw) if one in texts]
        if question["category"] != _UNANSWERABLE and evidence:
            questions.append((question["question"], [texts[one] for one in evidence]))
    events = [
        said(number, turn.text, turn.time or 0.0, user=turn.speaker == conversation["speaker_a"])
        for number, turn in enumerate(turns(conversation))
    ]
    return Talk(events=events, questions=questions)


def of_beam(folder: Path) -> Talk:
    batches = json.loads((folder / "chat.json").read_text())
    messages = [message for batch in batches for turn in batch["turns"] for message in turn]
    texts = {message["id"]: re.sub(r"\s*->->.*$", "", message["content"]).strip() for message in messages}
    users = {message["id"] for message in messages if message["role"] == "user"}
    questions = []
    for kind, asked in json.loads((folder / "probing_questions.json").read_text()).items():
        for question in asked if kind in _KINDS else ():
            sources = sorted(
                {int(one) for one in re.findall(r"\d+", json.dumps(question.get("source_chat_ids")))} & users
            )
            if sources:
                questions.append((question["question"], [texts[one] for one in sources]))
    events = [
        said(number // 2, texts[message["id"]], 1.7e9 + 60.0 * number, user=message["role"] == "user")
        for number, message in enumerate(messages)
    ]
    return Talk(events=events, questions=questions)


async def measure(talks: Iterable[Talk], every: int, policy: PackPolicy) -> str:
    store, sink = PackStore("memory://session-recall"), Sink(seen=[])
    service = InMemorySessionService()
    agent = LlmAgent(name="agent", model=sink, static_instruction="You are a friend in a long conversation.")
    app = App(name="bench", root_agent=agent, plugins=[ContextPackPlugin(policy=policy, store=store)])
    runner = Runner(app=app, session_service=service)
    rows: list[tuple[float, int, float]] = []
    for talk in talks:
        for question, evidence in talk.questions[::every]:
            session = await service.create_session(app_name="bench", user_id="u")
            service.sessions["bench"]["u"][session.id].events.extend(one.model_copy() for one in talk.events)
            began = time.process_time()
            asked = types.UserContent(question)
            async for _ in runner.run_async(user_id="u", session_id=session.id, new_message=asked):
                pass
            spent = time.process_time() - began
            request = " ".join(" ".join(sink.seen).split())
            recall = sum(present(text, request) for text in evidence) / len(evidence)
            rows.append((recall, sum(map(size, sink.seen)), spent))
            await service.delete_session(app_name="bench", user_id="u", session_id=session.id)
    recalls, tokens, times = zip(*rows, strict=True)
    ordered = sorted(times)
    over = sum(one.request_tokens > one.window for one in store.manifests())
    return (
        f"{len(rows)} questions: recall {sum(recalls) / len(rows):.3f}, "
        f"{sum(tokens) / len(rows):,.0f} tokens a request, {max(tokens):,} at most, {over} over the window, "
        f"{1000 * ordered[len(rows) // 2]:.0f} ms, 95th percentile {1000 * ordered[int(0.95 * len(rows))]:.0f} ms"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--window", type=int, default=4_000)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.FIELD=VALUE", help="a setting, in JSON")
    given = parser.parse_args()
    chosen = PackPolicy(**settings(given.set), max_input_tokens=given.window)
    if given.path.is_dir():
        talks = [of_beam(folder) for folder in sorted(given.path.iterdir())]
    else:
        talks = [of_locomo(sample) for sample in json.loads(given.path.read_text())]
    print(asyncio.run(measure(talks, given.every, chosen)))
