"""Runs through a real Runner whose manifests stay what they are, but for ids.

A file a run in tests/golden_runs/: a chain of calls under each strategy, offloaded results, limits that usage moves,
memories, and a team. Each manifest's ``checksum`` is the hash over the request that left, so a byte that changes there
shows, too. ``python tests/test_golden_runs.py`` writes the files anew; a change that makes this necessary either is a
mistake, or changes what is sent or recorded on purpose.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.events.event import Event
from google.adk.sessions import InMemorySessionService, Session
from google.genai import types
from scripted import Chat, Memories, Scripted, remembered

from aether_context import PackPolicy
from aether_context.canonical import canonical_json

FOLDER = Path(__file__).parent / "golden_runs"
STRATEGIES = ("epochs", "stable_prefix", "sliding_turns", "heads_tails", "summarize", "none")
SETTINGS = {"sliding_turns": {"tokens": 1_400}, "stable_prefix": {"keep_last_messages": 2}}
_BEGAN = 1_767_225_600.0
PLAN = {
    "plan": {
        "task_id": "claims-7",
        "goal": "Settle the open claims",
        "step": {
            "step_id": "read",
            "text": "Read the claims and name what is missing",
            "acceptance": ["Each claim has an amount", {"text": "The report is cited", "needs_evidence": True}],
        },
        "tools": ["read_claim"],
        "constraints": {"risk": "medium"},
    },
    "knowledge": {
        "notes": ["The report is due on Friday", "Amounts are in crowns"],
        "decisions": ["Only claims of this year count"],
    },
}


class Clocked(InMemorySessionService):
    """Each event of a session is a minute after the one before, whenever the test runs."""

    async def append_event(self, session: Session, event: Event) -> Event:
        event.timestamp = _BEGAN + 60.0 * len(session.events)
        return await super().append_event(session, event)


def read_claim(claim: str) -> dict[str, Any]:
    """Reads a claim with its lines."""
    lines = [{"line": f"{claim}-{at}", "amount": at * 37 % 101, "state": "open"} for at in range(14)]
    return {"claim": claim, "lines": lines}


def write_mail(to: str, text: str) -> str:
    """Writes a mail."""
    return f"sent to {to}"


def reading(claim: str) -> types.Part:
    """A call with an id of its own: ids that ADK makes are different in each run."""
    return types.Part(function_call=types.FunctionCall(id=f"call-{claim}", name="read_claim", args={"claim": claim}))


def script(turns: int, calls: int) -> list[Any]:
    replies: list[Any] = []
    for turn in range(turns):
        replies += [reading(f"K-{turn}{at}") for at in range(calls)]
        replies.append(f"Claims K-{turn}0 to K-{turn}{calls - 1} are read; {turn + 2} amounts are missing. " * 3)
    return replies


def chain(**conversation: Any) -> Chat:
    """Three messages at a step with three calls each, in a window that they pass."""
    policy = PackPolicy(max_input_tokens=2_000, conversation=conversation, offload={"mode": "off"})
    chat = Chat(sessions=Clocked(), script=script(3, 3), tools=[read_claim, write_mail], policy=policy, state=PLAN)
    chat.say(*(f"Please read the claims K-{turn}0 to K-{turn}2 and say what is missing." for turn in range(3)))
    return chat


def offloaded() -> Chat:
    policy = PackPolicy(max_input_tokens=4_000, offload={"extract_tokens": 160})
    chat = Chat(sessions=Clocked(), script=script(2, 2), tools=[read_claim], policy=policy, state=PLAN)
    chat.say("Please read two claims.", "And two more.")
    return chat


def limited() -> Chat:
    """Reported usage is less than what is counted, and a limit of the session comes near."""
    policy = PackPolicy(max_input_tokens=3_000, limits={"session": {"input_tokens": 9_000}}, offload={"mode": "off"})
    chat = Chat(sessions=Clocked(), script=script(4, 2), tools=[read_claim], policy=policy)
    chat.say(*(f"Please read the claims of file {turn}." for turn in range(4)))
    return chat


def with_memories() -> Chat:
    march = "2025-03-09T10:00:00+00:00"
    texts = ("Ann wants short reports", "The claims of file K are from March 2025")
    memory = Memories(*(remembered(text, timestamp=march) for text in texts))
    policy = PackPolicy.load("research", max_input_tokens=6_000)
    chat = Chat(sessions=Clocked(), script=script(2, 1), tools=[read_claim], policy=policy, state=PLAN, memory=memory)
    chat.say("Which claims of file K are from March?", "And what does Ann want?")
    return chat


def team() -> Chat:
    """A desk that reads, hands over to a writer, and gets the conversation back."""
    model = Scripted(script=[reading("W-1"), "The letter to claim W-1 is written: 14 lines, all open."], sent=[])
    writer = LlmAgent(name="writer", description="Writes.", model=model, tools=[read_claim], instruction="You write.")
    hand_over = types.Part(
        function_call=types.FunctionCall(id="call-over", name="transfer_to_agent", args={"agent_name": "writer"})
    )
    llm = Scripted(
        script=[*script(2, 2), reading("D-1"), [types.Part(text="The writer takes over."), hand_over]], sent=[]
    )
    desk = LlmAgent(name="desk", model=llm, tools=[read_claim], instruction="You decide.", sub_agents=[writer])
    chat = Chat(sessions=Clocked(), agent=desk, policy=PackPolicy(max_input_tokens=2_400, offload={"mode": "off"}))
    chat.say("Please read file 0.", "Please read file 1.", "Please have a letter written.")
    return chat


RUNS: dict[str, Callable[[], Chat]] = {
    **{name: (lambda name=name: chain(strategy=name, **SETTINGS)) for name in STRATEGIES},
    "offloaded": offloaded,
    "limited": limited,
    "with_memories": with_memories,
    "team": team,
}

_ID = re.compile(
    r"e-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|pack_[\w.-]+"
)
_LEFT_OUT = (
    "before", "counts", "digest", "extends", "masked", "offered", "outcome_before", "policy", "record", "setting",
    "stored", "texts",
)  # fmt: skip
"""Fields that hash ids or every setting there is, the counts of single texts, which rows have too, and what was written
beside packs meanwhile."""


def settled(chat: Chat) -> str:
    """The manifests in their order as indented JSON, a fact a line, each id replaced by its number."""
    lines = []
    for manifest in chat.manifests():
        fields = json.loads(manifest.to_json()) | json.loads(manifest.record_line())
        plain = json.loads(canonical_json({name: fields[name] for name in sorted(fields) if name not in _LEFT_OUT}))
        lines.append(json.dumps(plain, indent=1, sort_keys=True, ensure_ascii=False))
        lines.append("")
    text = "\n".join(lines)
    numbers: dict[str, int] = {}
    return _ID.sub(lambda found: f"id-{numbers.setdefault(found.group(), len(numbers) + 1)}", text)


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.rows(5)
def test_the_same_run_leaves_the_same_manifests(name: str) -> None:
    chat = RUNS[name]()
    chat.replays()
    assert settled(chat) == (FOLDER / f"{name}.txt").read_text(encoding="utf-8")


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, run in RUNS.items():
        (FOLDER / f"{name}.txt").write_text(settled(run()), encoding="utf-8")
