"""Recorded sessions to tune on: agents that read files and later quote lines of them, in windows that pass."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from scripted import Chat, call

from aether_context import PackPolicy, PackStore

SMALL = PackPolicy(max_input_tokens=2_000)

STARVED = PackPolicy(
    max_input_tokens=2_000,
    conversation={"compact_at": 0.3, "compact_to": 0.15},
    retrieval={"memory_k": 1, "evidence_k": 1},
)


def read_file(name: str) -> str:
    """Reads a file."""
    return "\n".join(lines_of(name))


def edit(name: str, line: str) -> str:
    """Edits a line of a file."""
    return f"edited {name}"


def lines_of(name: str, count: int = 10) -> list[str]:
    numbers = random.Random(name)
    return [f"{at}: value_{numbers.randrange(10**6)} = load('{name}/part_{at}')" for at in range(count)]


def record(
    store: PackStore, count: int, *, policy: PackPolicy = SMALL, steps: int = 14, reach: int = 4, app: str = "shop"
) -> None:
    """Records sessions that each read files, and after each quote a line of one of the last few.

    Args:
        reach: how many files back a quote may lie; 0 quotes the file that was read last.
    """
    for number in range(count):
        session_of(
            number, store=store, policy=policy, script=script_of(number, steps=steps, reach=reach, app=app), app=app
        )


def script_of(number: int, *, steps: int = 14, reach: int = 4, app: str = "shop") -> list[object]:
    """What the model of a recorded session answers."""
    chance, script = random.Random(f"{app} {number}"), list[object]()
    for step in range(steps):
        name = f"src/{app}_{number}_{step}.py"
        script.append(call("read_file", name=name))
        back = f"src/{app}_{number}_{max(0, step - chance.randint(min(1, reach), reach))}.py"
        script.append(call("edit", name=back, line=chance.choice(lines_of(back))))
    return [*script, "done"]


def session_of(number: int, *, app: str = "shop", more_plugins: Sequence[Any] = (), **settings: Any) -> Chat:
    """A session that was played to its end, with other plugins behind the package's."""
    chat = Chat(tools=[read_file, edit], session=f"s{number}", app_name=app, **settings)
    chat.runner.plugin_manager.plugins.extend(more_plugins)
    chat.say(f"Work through the files of task {number}, please.")
    return chat


RESEARCH = PackPolicy.load("research", max_input_tokens=3_000)


def record_research(store: PackStore, count: int) -> None:
    """Records sessions whose answers name sites of ten findings, of which the share of evidence holds a part. Four long
    memories, which no answer uses, take all of theirs."""
    for number in range(count):
        chance = random.Random(f"research {number}")
        wishes = "in short words and without any tables, please. " * 28
        memories = [
            {"id": f"m{at}", "text": f"The user wants report {at} of plan {number} {wishes}"} for at in range(4)
        ]
        findings = [{"uri": f"artifact://plan/{number}/{at}.md", "summary": finding(number, at)} for at in range(10)]
        state = {"knowledge": {"evidence": findings, "memories": memories}}
        names = [f"site_{number}_{chance.randrange(10)}_{chance.randrange(14)}" for _ in range(20)]
        script = [f"The flow is high at {', '.join(some)}." for some in (names[:10], names[10:])]
        chat = Chat(store=store, policy=RESEARCH, state=state, script=script, session=f"s{number}")
        chat.say(f"Which sites of plan {number} report most flow?", "And which of them are new?", "thanks")


def finding(plan: int, at: int) -> str:
    numbers = random.Random(f"{plan} {at}")
    return " ".join(
        f"Site site_{plan}_{at}_{row} reports {numbers.randrange(10**6)} units of flow." for row in range(14)
    )
