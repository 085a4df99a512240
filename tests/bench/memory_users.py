"""Writes and searches the memories of many users: PostgreSQL, the file, and ADK's own service in a file.

    python memory_users.py locomo.json [--users 1000] [--each 1000] [--peers 100] [--uri postgresql://…] [--folder PATH]

The texts are those of memory_scale.py, 20 a session. A user's memories are one write; to ADK's service they go by
sessions. Then 500 other turns are asked, each of a user drawn by chance, through ADK's interface, in the
process that wrote. Without a URI a server of `pgserver` is started, as it comes. ``--peers`` is how many of the users
are given to the other services, 0 none. Searches are in milliseconds of elapsed time.

add        memories a second
first      the first search of all
p50, p95   of all others
share      of the answers that hold a memory of the user who is asked and of no other one; ADK's entries name no user,
           so that the texts do
MB         in the database, or in the file
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from google.adk.events.event import Event
from google.adk.memory import BaseMemoryService
from google.adk.sessions.session import Session
from google.genai import types
from memory_scale import AT_ONCE, memories, said

from aether_context.adk import HybridMemoryService
from aether_context.memory import Memory

COLUMNS = ("what", "users", "memories", "add", "first", "p50", "p95", "share", "MB")
SEARCHES = 500


def texts_of(spoken: list[list[str]], users: int, each: int) -> Iterator[tuple[str, list[str]]]:
    """Each user's texts, which hold the user's name."""
    all_texts = memories(spoken, users * each)
    for number in range(users):
        yield f"user{number}", [f"{next(all_texts)} of user{number}" for _ in range(each)]


def stamp(number: int) -> float:
    return 1_600_000_000.0 + 60 * number


async def add_batch(service: HybridMemoryService, user: str, texts: Sequence[str]) -> None:
    await asyncio.to_thread(
        service.memories.add,
        "bench",
        user,
        [
            Memory(
                name=f"m{number}",
                text=text,
                session=f"s{number // AT_ONCE}",
                author="Ann",
                timestamp=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(stamp(number))),
            )
            for number, text in enumerate(texts)
        ],
    )


async def add_sessions(service: BaseMemoryService, user: str, texts: Sequence[str]) -> None:
    for first in range(0, len(texts), AT_ONCE):
        events = [
            Event(
                id=f"m{number}",
                invocation_id="i",
                author="Ann",
                timestamp=stamp(number),
                content=types.Content(role="user", parts=[types.Part(text=texts[number])]),
            )
            for number in range(first, min(first + AT_ONCE, len(texts)))
        ]
        await service.add_session_to_memory(
            Session(id=f"{user}-{first}", app_name="bench", user_id=user, events=events, last_update_time=0.0)
        )


async def measure(
    name: str, service: Any, add: Any, size: Callable[[], float], spoken: list[list[str]], users: int, each: int
) -> list[str]:
    spent = 0.0
    for user, texts in texts_of(spoken, users, each):
        began = time.perf_counter()
        await add(service, user, texts)
        spent += time.perf_counter() - began
    choice = random.Random(1)
    questions = [" ".join(words) for words in spoken]
    elapsed, right = [], 0
    for _ in range(SEARCHES + 1):
        user, question = f"user{choice.randrange(users)}", choice.choice(questions)
        began = time.perf_counter()
        found = await service.search_memory(app_name="bench", user_id=user, query=question)
        elapsed.append(1_000 * (time.perf_counter() - began))
        entries = [entry.content.parts[0].text for entry in found.memories]
        right += bool(entries) and all(text.endswith(f" of {user}") for text in entries)
    first, *others = elapsed
    others.sort()
    return [
        name,
        f"{users:,}",
        f"{users * each:,}",
        f"{users * each / spent:,.0f}",
        f"{first:.1f}",
        f"{others[len(others) // 2]:.1f}",
        f"{others[int(0.95 * len(others))]:.1f}",
        f"{right / len(elapsed):.3f}",
        f"{size():,.0f}",
    ]


@contextlib.contextmanager
def server(uri: str | None) -> Iterator[str]:
    if uri:
        yield uri
        return
    import pgserver

    with tempfile.TemporaryDirectory(prefix="postgres-", ignore_cleanup_errors=True) as folder:
        started = pgserver.get_server(folder, cleanup_mode="stop")
        try:
            yield started.get_uri()
        finally:
            started.cleanup()


async def rows(args: argparse.Namespace, folder: Path) -> None:
    spoken = said(args.path)

    def show(cells: Sequence[str]) -> None:
        print("| " + " | ".join(cells) + " |", flush=True)

    show(COLUMNS)
    show(["---"] * len(COLUMNS))
    with server(args.uri) as uri:
        service = HybridMemoryService(uri)

        def in_database() -> float:
            query = "SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE relkind = 'r' AND relname = 'memories'"
            return float(service.memories.database.run(lambda one: one.execute(query).fetchone()[0])) / 2**20

        show(await measure("PostgreSQL", service, add_batch, in_database, spoken, args.users, args.each))
        await service.close()
    if not args.peers:
        return
    from google.adk.memory import _sqlite_memory_service as of_adk

    def in_folder(name: str) -> Callable[[], float]:
        return lambda: sum(one.stat().st_size for one in folder.glob(f"{name}*")) / 2**20

    file = HybridMemoryService(folder / "file.sqlite")
    show(await measure("the file", file, add_batch, in_folder("file"), spoken, args.peers, args.each))
    await file.close()
    adk = of_adk.SqliteMemoryService(folder / "adk.sqlite")
    show(await measure("`SqliteMemoryService`", adk, add_sessions, in_folder("adk"), spoken, args.peers, args.each))
    await adk.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--users", type=int, default=1_000)
    parser.add_argument("--each", type=int, default=1_000, help="memories of a user")
    parser.add_argument("--peers", type=int, default=100, help="so many of the users for the other services")
    parser.add_argument("--uri", help="of a database; its tables are left")
    parser.add_argument("--folder", type=Path, help="where files are made and left (default: a temporary one)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        asyncio.run(rows(args, args.folder or Path(temporary)))


if __name__ == "__main__":
    main()
