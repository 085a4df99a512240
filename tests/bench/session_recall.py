"""Asks an agent about what was said earlier in its own session, and looks for the evidence in the request.

    python session_recall.py locomo.json [--window N] [--every N] [--set SECTION.FIELD=VALUE ...]

The file is that of LoCoMo (Maharana et al., 2024). Each conversation is one running session of 16,000 to 26,000 tokens,
one speaker the user and the other the agent, and there is no memory service. Each question that has an answer there is
asked in a copy of the session, through an ADK `Runner` with the plugin. Printed are the figures of
`memory_recall.py`; and how often the request was estimated beyond the window.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import time
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


def events(conversation: dict[str, Any]) -> list[Event]:
    """A conversation as the events of a session."""
    found = []
    for number, turn in enumerate(turns(conversation)):
        user = turn.speaker == conversation["speaker_a"]
        content = types.Content(role="user" if user else "model", parts=[types.Part(text=turn.text)])
        author = "user" if user else "agent"
        found.append(Event(invocation_id=f"i{number}", author=author, timestamp=turn.time or 0.0, content=content))
    return found


async def measure(samples: list[dict[str, Any]], every: int, policy: PackPolicy) -> str:
    store, sink = PackStore("memory://session-recall"), Sink(seen=[])
    service = InMemorySessionService()
    agent = LlmAgent(name="agent", model=sink, static_instruction="You are a friend in a long conversation.")
    app = App(name="bench", root_agent=agent, plugins=[ContextPackPlugin(policy=policy, store=store)])
    runner = Runner(app=app, session_service=service)
    rows: list[tuple[float, int, float]] = []
    for sample in samples:
        history = events(sample["conversation"])
        held = (one for some in sample["conversation"].values() if isinstance(some, list) for one in some)
        texts = {turn["dia_id"]: turn["text"] for turn in held}
        for question in sample["qa"][::every]:
            evidence = [one for raw in question["evidence"] for one in re.findall(r"D\d+:\d+", raw) if one in texts]
            if question["category"] == _UNANSWERABLE or not evidence:
                continue
            session = await service.create_session(app_name="bench", user_id="u")
            service.sessions["bench"]["u"][session.id].events.extend(one.model_copy() for one in history)
            began = time.process_time()
            asked = types.UserContent(question["question"])
            async for _ in runner.run_async(user_id="u", session_id=session.id, new_message=asked):
                pass
            spent = time.process_time() - began
            request = " ".join(" ".join(sink.seen).split())
            recall = sum(present(texts[one], request) for one in evidence) / len(evidence)
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
    print(asyncio.run(measure(json.loads(given.path.read_text()), given.every, chosen)))
