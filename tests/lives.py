"""Lives of a process that serves an app, each ended by ``kill -9`` at a moment of chance: for `trust/test_kills`.

    python lives.py FOLDER < lines of a `Life` as JSON

The server imports all that a first life had loaded and forks the others from itself, before any thread has begun: a
life then costs no imports. A life is a Runner with the plugin, with sessions, packs and memories on the disk. It says
through a pipe what was acknowledged: the packs and the evidence of a run once the run has ended, memories once the
service has returned. The server prints this as a line of JSON.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    from aether_context import PackStore

APP, USER = "shop", "Ann/ü"
_ADDRESS = re.compile(r"artifact://evidence/([0-9a-f]{16})")


class Life(TypedDict):
    """What a life was told and what it said.

    ``house`` is the folder of its house, ``bucket`` the URL of its store, the options for it and the server's process;
    None for a folder. It is killed ``seconds`` after it has said ``lines`` lines, and never where
    that is None: then it ends after ``turns``. ``down`` are moments, in seconds after the same, at which the store goes
    away or comes back; where the first is 0 it is away from the beginning on.
    """

    house: str
    bucket: tuple[str, dict[str, Any], int] | None
    seed: int
    lines: int
    seconds: float | None
    down: list[float]
    turns: int
    said: list[dict[str, Any]]


class House:
    """Where lives keep all they have. The store is a link to a folder; while it is down the link leads to a file. Or it
    is a bucket, whose server then hangs."""

    def __init__(self, folder: Path, bucket: tuple[str, dict[str, Any], int] | None = None) -> None:
        self.bucket = bucket
        self.link = folder / "packs"
        self.folder = folder / "the-folder"
        self.sessions = folder / "sessions.db"
        self.memories = folder / "memories.sqlite"
        self.spool = folder / "spool"
        self._nothing = folder / "nothing"

    def build(self) -> None:
        self.folder.mkdir(parents=True)
        self._nothing.touch()
        self.open(True)

    def open(self, is_up: bool) -> None:
        """Lets the store be there or not, from one moment to the next."""
        if self.bucket is not None:
            os.killpg(self.bucket[2], signal.SIGCONT if is_up else signal.SIGSTOP)
            return
        link = self.link.with_suffix(".new")
        link.symlink_to(self.folder if is_up else self._nothing)
        os.replace(link, self.link)

    def store(self) -> PackStore:
        """The store as a process meets it that has just begun."""
        from aether_context import PackStore

        url, options, _ = self.bucket or (str(self.link), {}, 0)
        return PackStore(url, **options)


# in the server


def serve(folder: str) -> None:
    House(Path(folder)).build()
    once = {"seed": -1, "lines": 1, "seconds": None, "down": [], "turns": 2, "said": []}
    first = lived({"house": folder, "bucket": None, **once})
    for name in first[-1]["modules"]:
        with suppress(ImportError):
            importlib.import_module(name)
    counter_for("").count("It takes its vocabulary from the disk once.")
    print("ready", flush=True)
    for line in sys.stdin:
        life: Life = json.loads(line)
        assert threading.active_count() == 1, "a process with threads must not be forked"
        life["said"] = lived(life)
        print(json.dumps(life), flush=True)


def lived(life: Life) -> list[dict[str, Any]]:
    """Forks a life, kills it, and gives what it said."""
    house = House(Path(life["house"]), life["bucket"])
    house.open(not life["down"] or life["down"][0] > 0)
    into, out = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(into)
            os.environ[SPOOL_FOLDER] = str(house.spool)
            asyncio.run(live(house, life, lambda said: os.write(out, json.dumps(said).encode() + b"\n")))
            status = 0
        finally:
            os._exit(status)
    os.close(out)
    with open(into, "rb") as said:
        first = [said.readline() for _ in range(life["lines"])]
        begun = time.monotonic()
        moments = [(moment, bool(at % 2)) for at, moment in enumerate(life["down"])]
        for moment, is_up in moments:
            if life["seconds"] is None or moment < life["seconds"]:
                time.sleep(max(0.0, begun + moment - time.monotonic()))
                house.open(is_up)
        if life["seconds"] is not None:
            time.sleep(max(0.0, begun + life["seconds"] - time.monotonic()))
            os.kill(child, signal.SIGKILL)
        lines = [*first, *said.read().split(b"\n")]
    _, status = os.waitpid(child, 0)
    house.open(True)
    if os.WIFSIGNALED(status) is (life["seconds"] is None):
        raise SystemExit(f"a life ended otherwise than it should: {status}")
    return [json.loads(line) for line in lines if line.strip()]


# in a life


async def live(house: House, life: Life, say: Any) -> None:
    from google.adk.sessions.sqlite_session_service import SqliteSessionService
    from scripted import Chat, big_file, call

    from aether_context import PackPolicy
    from aether_context.adk import HybridMemoryService
    from aether_context.pack import METADATA

    choice = random.Random(life["seed"])
    store = house.store()
    memory = HybridMemoryService(house.memories, embedder="none")
    sessions = SqliteSessionService(str(house.sessions))
    policy = PackPolicy(max_input_tokens=6_000, offload={"extract_tokens": 640})
    chat = Chat(policy=policy, store=store, memory=memory, sessions=sessions, tools=[big_file], app_name=APP, user=USER)
    say({"begun": life["seed"]})

    async def converse(session: str) -> None:
        for turn in range(life["turns"]):
            number = f"{life['seed']}-{session}-{turn}"
            if choice.random() < 0.5:
                chat.llm.script.insert(0, call("big_file", name=number, lines=choice.choice([3, 60, 120])))
            events = await chat.tell(f"What does note {number} say? " + "It is long. " * 20, session=session)
            named = [(event.custom_metadata or {}).get(METADATA, {}).get("pack_id") for event in events]
            last = [sent for sent in chat.sent if sent.session == f"{USER}/{session}"][-1]
            shown = sorted(set(_ADDRESS.findall("".join(last.wires))))
            say({"session": session, "packs": [name for name in named if name], "evidence": shown})
            held = await chat.held(session=session)
            await memory.add_session_to_memory(held)
            say({"memories": [event.id for event in held.events if event.content and event.content.parts[0].text]})

    await asyncio.gather(*(converse(f"s{life['seed'] // 8}-{at}") for at in range(2)))
    await chat.runner.close()
    say({"modules": sorted(name for name in sys.modules if not name.startswith(("_", "test")))})


# in the test


@contextmanager
def server(folder: Path) -> Iterator[Callable[..., Life]]:
    """A function that lets a life be lived, and gives it back with what it said."""
    log, command = folder / "log", [sys.executable, "-W", "ignore", __file__, str(folder / "first")]
    piped: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with log.open("w") as written, subprocess.Popen(command, stderr=written, **piped) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", log.read_text()[-4_000:]

        def live(house: House, **told: Any) -> Life:
            life = {
                "house": str(house.link.parent),
                "bucket": house.bucket,
                "lines": 1,
                "seconds": None,
                "down": [],
                "turns": 1_000,
                **told,
            }
            process.stdin.write(json.dumps(life) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
            assert line, log.read_text()[-4_000:]
            done: Life = json.loads(line)
            return done

        try:
            yield live
        finally:
            process.stdin.close()
            process.kill()


if __name__ == "__main__":
    from wording import SPOOL_FOLDER

    from aether_context.tokens import counter_for

    serve(sys.argv[1])
