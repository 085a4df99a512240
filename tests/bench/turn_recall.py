"""Ranks the turns of long conversations for questions about them.

    python turn_recall.py locomo.json [--embedder NAME]

The file is that of LoCoMo (Maharana et al., 2024). Each conversation is an index with a thread for each session, its
speakers and its times. For each question that has an answer in the conversation, turns are taken in the order of the
index until a budget is full, and the share of the labelled turns among them is printed, the mean over all questions.
Tokens are UTF-8 bytes / 4 of a turn's text.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.adk.events.event import Event
from google.genai import types

from aether_context.retrieval import Entry, Hit, HybridIndex

BUDGETS = (512, 1_024, 2_048, 4_096)
_TURN_SECONDS = 30
_UNANSWERABLE = 5
_KINDS = {1: "several turns", 2: "time", 3: "open", 4: "one turn"}


def turns(conversation: dict[str, Any]) -> list[Entry]:
    """The turns of all sessions; what a shared photo shows stands behind the text."""
    found = []
    names = (name for name in conversation if re.fullmatch(r"session_\d+", name))
    for session in sorted(names, key=lambda name: int(name.split("_")[1])):
        said = datetime.datetime.strptime(conversation[f"{session}_date_time"], "%I:%M %p on %d %B, %Y")
        begun = said.replace(tzinfo=datetime.UTC).timestamp()
        for number, turn in enumerate(conversation[session]):
            photo = f" [shares a photo: {turn['blip_caption']}]" if turn.get("blip_caption") else ""
            found.append(
                Entry(
                    id=turn["dia_id"],
                    text=turn["text"] + photo,
                    time=begun + _TURN_SECONDS * number,
                    speaker=turn["speaker"],
                    thread=session,
                )
            )
    return found


@dataclass(frozen=True)
class Question:
    """What is asked, and the texts that hold the answer; ``told`` are their sentences that do, where only those count,
    and ``answered`` those of what the assistant said."""

    text: str
    kind: str
    evidence: tuple[str, ...]
    told: tuple[str, ...] = ()
    answered: tuple[str, ...] = ()


def questions(sample: dict[str, Any]) -> Iterator[tuple[Question, list[str]]]:
    """The questions that have an answer in a conversation of LoCoMo, with the names of the turns that hold it."""
    held = (turn for some in sample["conversation"].values() if isinstance(some, list) for turn in some)
    texts = {turn["dia_id"]: turn["text"] for turn in held}
    for asked in sample["qa"]:
        names = [one for raw in asked["evidence"] for one in re.findall(r"D\d+:\d+", raw) if one in texts]
        if asked["category"] != _UNANSWERABLE and names:
            evidence = tuple(texts[name] for name in names)
            yield Question(asked["question"], _KINDS[asked["category"]], evidence), names


def said(number: int, turn: Entry, user: str = "user") -> Event:
    """The event in which a turn was said, by the user or by the agent."""
    author = "user" if turn.speaker == user else "agent"
    content = types.Content(role="user" if author == "user" else "model", parts=[types.Part(text=turn.text)])
    return Event(invocation_id=f"i{number}", author=author, timestamp=turn.time or 0.0, content=content)


def within(hits: Sequence[Hit], sizes: dict[str, int], budget: int) -> set[str]:
    """The turns that fit, in their order; one that does not is passed over."""
    taken = set()
    for hit in hits:
        if sizes[hit.id] <= budget:
            taken.add(hit.id)
            budget -= sizes[hit.id]
    return taken


def measure(sample: dict[str, Any], args: argparse.Namespace) -> list[tuple[list[float], float]]:
    """For each question the recall at each budget, and the seconds that the search took."""
    entries = turns(sample["conversation"])
    texts = [turn for held in sample["conversation"].values() if isinstance(held, list) for turn in held]
    sizes = {turn["dia_id"]: (len(turn["text"].encode()) + 3) // 4 for turn in texts}
    index = HybridIndex(entries, args.embedder)
    rows = []
    for question, evidence in questions(sample):
        began = time.perf_counter()
        hits = index.search(question.text, len(entries))
        spent = time.perf_counter() - began
        found = [within(hits, sizes, budget) for budget in BUDGETS]
        rows.append(([sum(one in held for one in evidence) / len(evidence) for held in found], spent))
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--embedder")
    arguments = parser.parse_args()
    measured = [row for sample in json.loads(arguments.path.read_text()) for row in measure(sample, arguments)]
    recall = [sum(found[at] for found, _ in measured) / len(measured) for at in range(len(BUDGETS))]
    spent = sorted(seconds for _, seconds in measured)
    print(
        json.dumps(
            {"questions": len(measured)}
            | {f"recall at {budget}": round(value, 4) for budget, value in zip(BUDGETS, recall, strict=True)}
            | {
                "p50 ms": round(1000 * spent[len(spent) // 2], 1),
                "p95 ms": round(1000 * spent[int(len(spent) * 0.95)], 1),
            }
        )
    )
