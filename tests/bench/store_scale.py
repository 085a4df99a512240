"""What a store with many packs takes: rows in Markdown, milliseconds.

    PYTHONPATH=tests python tests/bench/store_scale.py [URL] [--packs 100000] [--sessions 1000] [--rounds 9]

The packs are one manifest under other names, spread evenly over the sessions of ten users, a session's packs within an
hour and the sessions over sixty days. Without a URL they go to a temporary folder; packs that are there from an earlier
run stay and are measured. Each row is the median of the rounds, in a store opened anew each time.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count

from pack_inputs import recording

from aether_context import Manifest, PackStore
from aether_context.cli import packs as lookup

BEGIN = 1_735_700_000.0
DAYS = 60
USERS = 10
_numbers = count()


def fill(store: PackStore, packs: int, sessions: int) -> float:
    """Writes the packs; packs in a second."""
    made = recording()
    each = packs // sessions
    began = time.monotonic()
    with ThreadPoolExecutor(16) as pool:
        for session in range(sessions):
            list(pool.map(lambda call, at=session: store.write(named(made, at, call, sessions)), range(each)))
    return packs / (time.monotonic() - began)


def named(made, session: int, call: int, sessions: int):
    """The recording as the pack of another call of another session."""
    moment = BEGIN + session * DAYS * 86_400 / sessions + call
    stamp = time.strftime("%Y%m%dT%H%M%S.000000Z", time.gmtime(moment))
    return made.changed(
        pack_id=f"pack_{stamp}_{session:04x}{call:04x}",
        user=f"user-{session % USERS}",
        session=f"session-{session}",
        call=call + 1,
        last_event_time=moment,
    )


def median_ms(act: Callable[[PackStore], object], opened: Callable[[], PackStore], rounds: int) -> float:
    times = []
    for _ in range(rounds):
        store = opened()
        began = time.perf_counter()
        act(store)
        times.append(time.perf_counter() - began)
    return 1_000 * statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", nargs="?")
    parser.add_argument("--packs", type=int, default=100_000)
    parser.add_argument("--sessions", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=9)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measure(given.url or folder, given.packs, given.sessions, given.rounds)


def measure(url: str, packs: int, sessions: int, rounds: int) -> None:
    def opened() -> PackStore:
        return PackStore(url)

    if not opened().places(newest=1):
        print(f"{fill(opened(), packs, sessions):,.0f} packs written in a second\n")
    known = opened().places()
    middle = opened().read(known[len(known) // 2])
    made = recording()

    def write(store: PackStore) -> Manifest:
        return store.write(named(made, sessions - 1, 60_000 + next(_numbers), sessions))

    acts: dict[str, Callable[[PackStore], object]] = {
        "write a pack": write,
        "the newest pack (`inspect`)": lambda store: store.read(lookup.find(store, None)),
        "the 20 newest (`list --limit 20`)": lambda store: [store.read(one) for one in store.places(newest=20)],
        "a pack by its id": lambda store: store.manifest(middle.pack_id),
        "a pack by the hash at its end": lambda store: lookup.find(store, middle.pack_id[-8:]),
        "a session's packs": lambda store: list(store.manifests(middle.app, middle.user, middle.session)),
        "names of all packs": lambda store: store.places(),
    }
    print(f"| {len(known):,} packs, {sessions:,} sessions | ms |\n| --- | ---: |")
    for name, act in acts.items():
        few = 3 if "all" in name or "hash" in name else rounds
        print(f"| {name} | {median_ms(act, opened, few):,.1f} |", flush=True)


if __name__ == "__main__":
    main()
