"""A session that one process began, another goes on with, and a third reads: on SQLite, PostgreSQL and Redis.

``pytest -m integration`` starts these processes and servers; it needs the extra ``integration`` and Debian's
``redis-server``.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scripted import new_store
from session_worker import chat_of, sent

from aether_context import Manifest, PackStore

pytestmark = pytest.mark.integration

WORKER = Path(__file__).parent / "session_worker.py"
MESSAGES = [f"question {at}: " + "what does the page say of the river? " * 12 for at in range(12)]
SCRIPT = [word for at in range(len(MESSAGES)) for word in (f"page_{at}a", f"page_{at}b", f"answer {at}")]
HALF = 7


# servers


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    pytest.importorskip("redis")
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("redis-server is not installed")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    folder = tmp_path_factory.mktemp("redis")
    settings = [f"--port {port}", "--bind 127.0.0.1", "--save ''", "--appendonly no", f"--dir {folder}"]
    process = subprocess.Popen([program, *" ".join(settings).split()], stdout=subprocess.DEVNULL)
    try:
        wait_for(port)
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        process.terminate()
        process.wait(timeout=10)


def wait_for(port: int, seconds: float = 20) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    pytest.fail(f"nothing answers at port {port}")


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def sessions(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a session service that several processes can reach."""
    if request.param == "sqlite":
        return f"sqlite://{tmp_path / 'sessions.db'}"
    if request.param == "postgres":
        pytest.importorskip("asyncpg")
        admin: str = request.getfixturevalue("postgres").admin
        return admin.replace("postgresql://", "postgresql+asyncpg://")
    url: str = request.getfixturevalue(request.param)
    return url


# the three processes


def process(task: str, **job: Any) -> list[Any]:
    """What a process of its own prints."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", WORKER, task],
        input=json.dumps(job),
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-4_000:]
    found: list[Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def whole() -> tuple[list[Any], list[Manifest]]:
    """The same conversation in one process: the contents of its requests, and its manifests."""
    chat = chat_of(SCRIPT, new_store())
    chat.say(*MESSAGES)
    chat.replays()
    return json.loads(json.dumps(sent(chat))), chat.manifests()


def course(manifests: list[Manifest]) -> list[tuple[Any, ...]]:
    """What of a session's epochs does not depend on its ids."""
    return [(one.call, one.epoch.number, one.epoch_reason, one.epoch.cut_count) for one in manifests]


def test_another_process_continues_the_epoch_and_a_third_reads_its_packs(
    sessions: str, tmp_path: Path, whole: tuple[list[Any], list[Manifest]]
) -> None:
    session, place = f"parted-{tmp_path.name}", str(tmp_path / "packs")
    common = {"sessions": sessions, "store": place, "session": session}
    first = process("say", **common, messages=MESSAGES[:HALF], script=SCRIPT[: 3 * HALF])
    second = process("say", **common, messages=MESSAGES[HALF:], script=SCRIPT[3 * HALF :])
    requests, manifests = whole
    assert first + second == requests, "a process that goes on sends what one process would have sent"

    held = list(PackStore(place).manifests(session=session))
    assert course(held) == course(manifests)
    begun, continued = held[len(first) - 1], held[len(first)]
    assert begun.epoch.cut_count > 0
    assert continued.epoch.number == begun.epoch.number
    assert continued.epoch_reason is None

    assert process("read", store=place, session=session) == requests
