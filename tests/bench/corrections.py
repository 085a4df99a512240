"""Asks an agent with a memory service for facts that a later memory contradicts, and looks at the lines of its request.

    python corrections.py [core_memory_update.jsonl] [--every N] [--undated]

The file is that of Letta's core-memory update set (letta-evals, Apache-2.0) or of the older letta-leaderboard. A line
of the first has ``input``, the question, and under ``agent_args.extra`` the ``facts``, the ``contradicting_fact`` and
``supporting_fact_indices``, which of the facts answered before; a line of the second has several questions, as lists
under ``question``, ``contradicting_facts`` and ``supporting_fact_indices``. Without a file the material beside this
script is asked: a line of it is a question, the fact that answers it, and ``corrections`` of it, each of which makes a
case of its own among nine facts of other lines, or a statement that stands ``besides`` and contradicts nothing. Names
and values take the places of ``{a}``, ``{b}``, ``{c}``, ``{x}`` and ``{y}``.

The facts go into a `HybridMemoryService` a day apart, the later one last; ``--undated`` leaves out the dates. The
question is asked through an ADK `Runner` with the plugin. Printed are the share of cases in whose request the later
fact stands before every fact that it contradicts, the share in which none of those is marked or absent (and, where
there are several, any is not), and the other facts marked as a share of all lines. Of statements that contradict
nothing, the share of requests in which the earlier one is marked. Cells are means over statements, each of which counts
once, however many names it is asked with, and over the lines of a file; see sessions.py.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.apps import App
from google.adk.memory.memory_entry import MemoryEntry
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.genai import types
from memory_recall import Sink, asked
from sessions import print_table

from aether_context import PackPolicy
from aether_context.adk import ContextPackPlugin, HybridMemoryService
from aether_context.packing.payload import SUPERSEDED, sections

_OWN = Path(__file__).with_suffix(".jsonl")
_OTHERS = 9
COLUMNS = dict.fromkeys(("later first", "unmarked", "any unmarked", "others marked", "both hold"), (1.0, 3))
NAMES = (
    "Nora Fischer", "Tyler Okafor", "Eliza Wood", "Joren Maas", "Priya Raman", "Samuel Boateng", "Lucía Ferrer",
    "Wei Zhang", "Hanna Virtanen", "Omar Haddad", "Grace Ellery", "Dmitri Volkov", "Aiko Tanabe", "Carl Lindqvist",
    "Bea Montoya", "Rufus Thorne",
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """Facts in their order, a later one, and the places of those that it contradicts, or stands beside."""

    question: str
    facts: tuple[str, ...]
    later: str
    earlier: tuple[int, ...]
    source: str
    contradicts: bool = True


def cases(path: Path) -> Iterator[Case]:
    """The cases of a file of either form."""
    for line in path.read_text().splitlines():
        row = json.loads(line)
        extra = row.get("agent_args", {}).get("extra", row)
        one = "contradicting_fact" in extra
        questions = [row["input"]] if one else row["question"]
        later = [extra["contradicting_fact"]] if one else extra["contradicting_facts"]
        places = [extra["supporting_fact_indices"]] if one else extra["supporting_fact_indices"]
        for question, fact, at in zip(questions, later, places, strict=True):
            yield Case(question, tuple(extra["facts"]), fact.strip('"'), tuple(map(int, at)), line + question)


def own_cases(path: Path = _OWN, seed: int = 1) -> Iterator[Case]:
    """The cases of the material beside this script, each among facts of other lines about the same people."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    plain = [row for row in rows if "corrections" in row]
    dice = random.Random(seed)
    for row in rows:
        for text in row.get("corrections", [row.get("besides")]):
            for _ in range(3):
                names = dict(zip("abc", dice.sample(NAMES, 3), strict=True))
                x, y = dice.sample(row.get("values") or ["", " "], 2)
                facts = [row["fact"].format(x=x, **names)]
                for other in dice.sample([other for other in plain if other is not row], _OTHERS):
                    facts.append(other["fact"].format(x=dice.choice(other["values"] or [""]), **names))
                first = facts[0]
                dice.shuffle(facts)
                question, later = row["question"].format(x=x, y=y, **names), text.format(x=x, y=y, **names)
                yield Case(question, tuple(facts), later, (facts.index(first),), text, "corrections" in row)


def dated(texts: Sequence[str], dates: bool) -> list[MemoryEntry]:
    """Memories, a day apart."""
    return [
        MemoryEntry(
            content=types.UserContent(text),
            timestamp=f"2026-01-{day:02}T10:00:00+00:00" if dates else None,
            id=f"m{day}",
        )
        for day, text in enumerate(texts, start=1)
    ]


async def lines(runner: Runner, sink: Sink, service: Any, user: str, case: Case, dates: bool) -> list[str]:
    """The lines of memory in the request that a case's question makes."""
    for entry in dated((*case.facts, case.later), dates):
        await service.add_memory(app_name="bench", user_id=user, memories=[entry])
    seen, _ = await asked(runner, sink, user, case.question)
    return next((sections(text)["MEMORY"] for text in seen if "MEMORY" in sections(text)), "").splitlines()


def place(held: Sequence[str], text: str) -> int | None:
    """The place of a text among lines."""
    return next((at for at, line in enumerate(held) if line.startswith(f"- {text}")), None)


async def measure(asked_cases: Sequence[Case], dates: bool) -> None:
    service, sink = HybridMemoryService(), Sink(seen=[])
    plugin = ContextPackPlugin(policy=PackPolicy(max_input_tokens=8_000), store="memory://corrections")
    agent = LlmAgent(name="agent", model=sink, static_instruction="Answer from what you remember.")
    app = App(name="bench", root_agent=agent, plugins=[plugin])
    runner = Runner(app=app, session_service=InMemorySessionService(), memory_service=service)
    sums: dict[str, Counter[str]] = defaultdict(Counter)
    for number, case in enumerate(asked_cases):
        held = await lines(runner, sink, service, f"user{number}", case, dates)
        later = place(held, case.later)
        found = [at for index in case.earlier if (at := place(held, case.facts[index])) is not None]
        marked = {at for at, line in enumerate(held) if line.endswith(f"{SUPERSEDED})")}
        total = sums[case.source]
        if not case.contradicts:
            total.update({"both": 1, "both hold": bool(marked.intersection(found))})
            continue
        total["cases"] += 1
        total["later first"] += later is not None and all(later < at for at in found)
        total["unmarked"] += len(found) == len(case.earlier) and not marked.intersection(found)
        total["any unmarked"] += not marked.issuperset(found)
        total.update({"others marked": len(marked.difference(found)), "lines": len(held)})
    wholes = {"others marked": "lines", "both hold": "both"}
    sessions = [{name: (one[name], one[wholes.get(name, "cases")]) for name in COLUMNS} for one in sums.values()]
    print_table(["what"], COLUMNS, [(["with the plugin"], sessions)])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path, nargs="?")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--undated", action="store_true")
    given = parser.parse_args()
    chosen = list(cases(given.path) if given.path else own_cases())[:: given.every]
    asyncio.run(measure(chosen, not given.undated))
