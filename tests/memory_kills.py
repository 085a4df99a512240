"""Kills a process that writes memories, again and again, and looks at what it leaves.

    python memory_kills.py [--kills 100] [--seed 0]

A process writes memories into one file, some of them anew, deletes others, and searches. It says what it is about to do
and what is done, and is killed (``kill -9``) at a moment of chance. Then the file must be sound; what was done must be
there, what was about to be done wholly or not at all; what is found by the vectors that the file keeps must be what is
found by vectors made anew; and no vector may be kept of what no memory says. Only where ``os.fork`` is.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sqlite3
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from aether_context.memory import Memories, Memory
from aether_context.retrieval.embedders import Purpose, Vectors, unit

WHO = ("app", "ann")
NAMES = 400
QUESTION = "the badge of guest 7, a3b"

State = dict[str, str]


class Letters:
    """A dimension a letter."""

    name = "letters"

    def embed(self, texts: Sequence[str], *, purpose: Purpose = "entry") -> Vectors:
        return unit(np.array([[text.count(one) for one in "abcdefgh0123"] for text in texts], dtype=np.float64))


@dataclass
class Outcome:
    """What the kills met."""

    amid: int = 0
    done: int = 0
    vectors: int = 0
    wrong: list[str] = field(default_factory=list)


def write(path: Path, seed: int, out: int) -> None:
    """Writes until it is killed."""
    choice = random.Random(seed)
    memories = Memories(path, embedder=Letters())
    while True:
        names = [f"m{choice.randrange(NAMES)}" for _ in range(choice.randint(1, 5))]
        act = {name: f"badge of guest {choice.randrange(99)} a{choice.randrange(9)}b" for name in names}
        if choice.random() < 0.2:
            act = dict.fromkeys(names[:1], "")
        _say(out, act)
        if all(act.values()):
            new = [Memory(name=name, text=text, session=name[-1]) for name, text in act.items()]
            memories.add(*WHO, new, revive=True)
        else:
            memories.delete(*WHO, name=names[0])
        _say(out, "done")
        if choice.random() < 0.3:
            memories.search(*WHO, QUESTION, 5)
        if choice.random() < 0.03:
            memories.close()
            memories = Memories(path, embedder=Letters())


def _say(out: int, what: object) -> None:
    os.write(out, json.dumps(what).encode() + b"\n")


def killed(path: Path, seed: int) -> list[object]:
    """What a process said until it was killed."""
    into, out = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(into)
        try:
            write(path, seed, out)
        finally:
            os._exit(1)
    os.close(out)
    with open(into, "rb") as said:
        first = said.readline()
        time.sleep(random.Random(seed).uniform(0.0, 0.15))
        os.kill(child, signal.SIGKILL)
        lines = [first, *said.read().split(b"\n")]
    _, status = os.waitpid(child, 0)
    if not os.WIFSIGNALED(status):
        raise SystemExit("the process that writes ended by itself")
    return [json.loads(line) for line in lines if line.strip()]


def after(state: State, act: State) -> State:
    return {name: text for name, text in {**state, **act}.items() if text}


def held(path: Path) -> State:
    with closing(sqlite3.connect(path)) as database:
        return dict(database.execute("SELECT record ->> 'name', record ->> 'text' FROM memories"))


def found(memories: Memories) -> list[tuple[str, str, float]]:
    """All that a question finds."""
    with closing(memories):
        return [(one.memory.name, one.memory.text, one.score) for one in memories.search(*WHO, QUESTION, NAMES)]


def made_anew(path: Path) -> list[tuple[str, str, float]]:
    """The same in this process alone."""
    with closing(Memories(path)) as memories:
        rows = list(memories.all(*WHO))
    plain = Memories(embedder=Letters())
    plain.add(*WHO, rows)
    return found(plain)


def check(path: Path, said: Sequence[object], state: State, outcome: Outcome) -> State:
    """Adds what is wrong to the outcome; what the file holds."""
    acts = [one for one in said if isinstance(one, dict)]
    done = len([one for one in said if one == "done"])
    for act in acts[:done]:
        state = after(state, act)
    possible = [state, *(after(state, act) for act in acts[done:])]
    outcome.amid += len(acts) > done
    outcome.done += done
    with closing(sqlite3.connect(path)) as database:
        (sound,) = database.execute("PRAGMA integrity_check").fetchone()
        (vectors,) = database.execute("SELECT count(vector) FROM memories").fetchone()
        both = database.execute("SELECT 1 FROM memories JOIN forgotten USING (owner, named, thread)").fetchall()
    outcome.vectors += vectors
    now = held(path)
    hits = found(Memories(path, embedder=Letters()))
    outcome.wrong += [f"integrity: {sound}"] * (sound != "ok")
    outcome.wrong += ["other memories than were acknowledged"] * (now not in possible)
    outcome.wrong += ["a memory that is forgotten"] * len(both)
    outcome.wrong += ["the index disagrees with the data"] * (hits != made_anew(path))
    outcome.wrong += ["the index has other memories"] * ({name: text for name, text, _ in hits} != now)
    return now


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    outcome, state = Outcome(), State()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "memories.sqlite"
        for number in range(args.kills):
            said = killed(path, args.seed + number)
            state = check(path, said, state, outcome)
    print(
        f"{args.kills} kills, {outcome.amid} amid a write, after {outcome.done} acknowledged writes; "
        f"{outcome.vectors} vectors met, {len(state)} memories at the end; wrong: {len(outcome.wrong)}"
    )
    for one in sorted(set(outcome.wrong)):
        print(one)
    sys.exit(bool(outcome.wrong))


if __name__ == "__main__":
    main()
