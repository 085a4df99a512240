"""What the viewer's pages take over a large store: rows in Markdown, processor time of the server in milliseconds.

    PYTHONPATH=tests python tests/bench/viewer_speed.py [FOLDER] [--packs 10000] [--rounds 9]

One session has a tenth of the packs, at most 1,000; the others have 50 each. All of them are chains as the plugin
writes them, with windows of 16,000 tokens, so that a chain is cut every twenty calls or so. Without a folder they go to
a temporary one; packs that are there from an earlier run stay and are measured. A server reads for a page what it has
not read yet; the second figure is the median of the rounds that follow.
"""

from __future__ import annotations

import argparse
import gc
import re
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from urllib.parse import urlencode

from packs import IDENTITY, Session, lines, tool
from starlette.testclient import TestClient

from aether_context import PackStore
from aether_context.viewer import create_app

WINDOW = 16_000
OF_A_SESSION = 50


def fill(store: PackStore, packs: int) -> None:
    """Writes the packs: one long session, and short ones of eight users."""
    long = min(1_000, packs // 10)
    write(store, "long", "ann", long)
    for at in range((packs - long) // OF_A_SESSION):
        write(store, f"short-{at}", f"user-{at % 8}", OF_A_SESSION)


def write(store: PackStore, name: str, user: str, calls: int) -> None:
    tools = [tool("search"), tool("read_file")]
    session = Session(store, identity=IDENTITY._replace(session=name, user=user), window=WINDOW, tools=tools)
    while len(session.manifests) < calls:
        session.ask(f"Question {len(session.manifests)}: {lines('refunds', 3)}")
        for _ in range(min(3, calls - len(session.manifests))):
            session.use("search", lines(f"result {len(session.manifests)}", 5))
        session.answer(lines("approval", 3))
    for manifest in session.manifests:
        tokens = manifest.request_tokens
        store.write_outcome(manifest, {"input_tokens": tokens, "cached_tokens": tokens // 2, "output_tokens": 60})


def taken(act: Callable[[], object], rounds: int = 1) -> float:
    times = []
    for _ in range(rounds):
        began = time.process_time()
        act()
        times.append(time.process_time() - began)
    return 1_000 * statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?")
    parser.add_argument("--packs", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=9)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = PackStore(given.folder or folder)
        if not store.places(newest=1):
            fill(store, given.packs)
        measure(store, given.rounds)


def measure(store: PackStore, rounds: int) -> None:
    print("| page | for the first time | again |")
    print("| --- | --- | --- |")

    def show(name: str, path: str) -> str:
        client = TestClient(create_app(store))

        def opened() -> str:
            answer = client.get(path)
            assert answer.status_code == 200, answer.status_code
            return answer.text

        print(f"| {name} | {taken(opened):,.0f} | {taken(opened, rounds):,.0f} |")
        return opened()

    show("25 sessions", "/")
    show("25 sessions, found by a word", "/?words=short")
    session = f"/session?{urlencode({'app': IDENTITY.app, 'user': 'ann', 'session': 'long'})}"
    packs = re.findall(r'href="(/pack/[^"#]+)"', show("a session's last 200 calls", session))
    last = packs[-1].replace("&amp;", "&")
    show("a pack", last)
    show("two packs side by side", f"{last}&beside={packs[0].partition('?')[0].removeprefix('/pack/')}")
    client = TestClient(create_app(store))
    for path in ("/", session):
        client.get(path)
    gc.collect()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for at in range(20 * rounds):
        client.get(packs[at * 7 % len(packs)].replace("&amp;", "&"))
        client.get("/" if at % 2 else session)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"| memory in MB, and after {40 * rounds} further pages | {before / 1024:,.0f} | {after / 1024:,.0f} |")


if __name__ == "__main__":
    main()
