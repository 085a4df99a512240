"""A store that fails in every way, through a whole conversation: turns take no longer, and nothing is lost.

Each fault begins after a first turn, stays for some turns, and ends. A conversation without a fault says how long turns
take. What is in the store afterwards is asked by another reader of the same files, without the spool.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from failing import LATE_SECONDS, FailingFileSystem
from scripted import Chat, big_file, call, sound

from aether_context import PackPolicy, PackStore, verify
from aether_context.adk import ContextPackPlugin
from aether_context.store.spool import spool_of

Figure = Callable[[str, float], None]

_numbers = itertools.count(1)
TURNS = 3
"""While the fault lasts."""


@pytest.fixture(autouse=True)
def _no_fault() -> Iterator[None]:
    FailingFileSystem.end()
    yield
    FailingFileSystem.end()


@pytest.fixture
def url() -> str:
    return f"failing://fault-{next(_numbers)}"


def conversation(url: str, policy: PackPolicy | None = None) -> Chat:
    """Each turn calls a tool with a long result, reads of it, and answers; a new one is a new process's."""
    policy = policy or PackPolicy(max_input_tokens=20_000, record="full")
    plugin = ContextPackPlugin(policy=policy, store=url, on_error="raise")
    return Chat(plugin=plugin, policy=policy, tools=[big_file])


def turn(chat: Chat, number: int, user: str | None = None) -> float:
    """Runs a turn of two model calls; the seconds that it took, the end of its event loop included."""
    chat.llm.script[:] = [call("big_file", name=f"file {number}"), f"answer {number}"]
    began = time.monotonic()
    chat.say(f"question {number}", user=user)
    return time.monotonic() - began


def packs(url: str) -> int:
    """How many packs are in the store itself, each whole and with its outcome."""
    store = PackStore(url)
    return sum(store.outcome(manifest) is not None for manifest in sound(store))


def missing(url: str, expected: int, seconds: float = 40.0) -> int:
    """How many of the packs are not in the store, a while after the fault ended."""
    until = time.monotonic() + seconds
    while True:
        try:
            lost = expected - packs(url)
        except Exception:  # what it extends comes next
            lost = expected
        if lost == 0 or time.monotonic() > until:
            return expected - packs(url)
        time.sleep(0.05)


def told(caplog: pytest.LogCaptureFixture, url: str) -> int:
    """How many lines an outage of a store has in the log, those that it ends with included; each pack has one of its
    own, and what other stores had to wait for may be written meanwhile."""
    own = [record for record in caplog.records if "://" not in record.getMessage() or url in record.getMessage()]
    return sum(record.levelno > logging.INFO or record.module != "packer" for record in own)


@pytest.fixture(params=["on", "off"])
def spool(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    monkeypatch.setenv("AETHER_CONTEXT_SPOOL", str(tmp_path / "spool") if request.param == "on" else "off")
    return str(request.param)


FAULTS = ["down", "hangs", "refuses", "full", "third", "slow", "torn", "late"]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.rows(9)
def test_a_fault_of_the_store_costs_no_receipt_and_little_time(
    fault: str, spool: str, url: str, figure: Figure, caplog: pytest.LogCaptureFixture
) -> None:
    usual = statistics.median(turn(conversation(f"{url}-usual"), number) for number in range(3))
    chat = conversation(url)
    turn(chat, 0)
    FailingFileSystem.begin(fault)
    with caplog.at_level(logging.INFO, logger="aether_context"):
        seconds = [turn(chat, number, "ben" if number == 2 else None) for number in range(1, 1 + TURNS)]
        FailingFileSystem.end()
        turn(chat, 1 + TURNS)
        lost = missing(url, 2 * (2 + TURNS))
    if fault == "late":
        time.sleep(1.5 * LATE_SECONDS)
        lost += 2 * (2 + TURNS) - packs(url) + len(verify(PackStore(url)).faults)
    figure("lost", lost)
    assert lost == 0
    if spool == "on":
        added = max(seconds) - usual
        figure("store_seconds", max(added, 0))
        assert added < 5, seconds
    lines = told(caplog, url)
    figure("log_lines", lines)
    assert lines <= 5, caplog.text


@pytest.mark.parametrize("fault", ["hangs", "down"])
@pytest.mark.rows(1)
def test_what_agents_were_shown_holds_no_pack_up(
    fault: str, url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AETHER_CONTEXT_SPOOL", str(tmp_path / "spool"))
    chat = conversation(url)
    for number in range(3):
        turn(chat, number)
    FailingFileSystem.begin(fault)
    for number in range(3, 12):  # more than is kept at once
        turn(chat, number)
    spool = spool_of(PackStore(url).files)
    assert spool is not None
    waiting = [path for path in spool.paths() if path.endswith("/manifest.json")]
    FailingFileSystem.end()
    assert len(waiting) == 2 * 9, "a process that is killed now has lost none"


@pytest.mark.parametrize("fault", ["hangs", "down", "slow"])
def test_a_process_that_starts_and_closes_while_the_store_fails_is_not_held_up(
    fault: str, url: str, figure: Figure
) -> None:
    usual = max(turn(conversation(f"{url}-usual"), number) for number in range(2))
    FailingFileSystem.begin(fault)
    began = time.monotonic()
    chat = conversation(url)
    starting = time.monotonic() - began
    first = turn(chat, 0) - usual
    began = time.monotonic()
    asyncio.run(chat.plugin.close())  # type: ignore[union-attr]
    closing = time.monotonic() - began
    FailingFileSystem.end()
    for seconds in (starting, first, closing):
        figure("store_seconds", max(seconds, 0))
        assert seconds < 5
    turn(chat, 1)
    lost = missing(url, 4)
    figure("lost", lost)
    assert lost == 0


def test_the_event_loop_goes_on_while_the_store_hangs(url: str) -> None:
    chat = conversation(url)
    turn(chat, 0)
    FailingFileSystem.begin("hangs")
    stalls: list[float] = []

    async def beat() -> None:
        while True:
            began = time.monotonic()
            await asyncio.sleep(0.01)
            stalls.append(time.monotonic() - began)

    async def run() -> None:
        beating = asyncio.create_task(beat())
        chat.llm.script[:] = [call("big_file", name="a file"), "answer"]
        await chat.tell("question")
        beating.cancel()

    asyncio.run(run())
    before = threading.active_count()
    for number in range(1, 4):
        turn(chat, number)
    assert threading.active_count() <= before + 8
    FailingFileSystem.end()
    turn(chat, 4)
    assert max(stalls) < 2
    assert missing(url, 12) == 0


def test_what_waits_in_memory_while_the_disk_of_the_spool_is_full_too_arrives(
    url: str, figure: Figure, caplog: pytest.LogCaptureFixture, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The spool leaves 256 MB of its disk free, so a small disk is a full one."""
    monkeypatch.setenv("AETHER_CONTEXT_SPOOL", str(small_disk))
    chat = conversation(url)
    turn(chat, 0)
    FailingFileSystem.begin("full")
    with caplog.at_level(logging.INFO, logger="aether_context"):
        for number in range(1, 1 + TURNS):
            turn(chat, number)
        FailingFileSystem.end()
        turn(chat, 1 + TURNS)
        lost = missing(url, 2 * (2 + TURNS))
    figure("lost", lost)
    figure("log_lines", told(caplog, url))
    assert lost == 0
    assert told(caplog, url) <= 5, caplog.text


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 600 KB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(disk)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no small file system can be mounted here: {error}")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no named pipes")
def test_a_folder_on_a_mount_that_hangs(spool: str, tmp_path: Path, figure: Figure) -> None:
    """Who opens a named pipe waits for its other end, as on a mount whose server is away."""
    store = str(tmp_path / "store")
    chat = conversation(store)
    usual = max(turn(chat, number) for number in range(4))
    (path,) = (tmp_path / "store").rglob("calibration/*.json")
    path.unlink()
    os.mkfifo(path)
    chat.restart()
    added = turn(chat, 4) - usual
    assert added < 8
    if spool == "on":
        figure("store_seconds", max(added, 0))
    os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))
    path.unlink(missing_ok=True)
    turn(chat, 5)
    lost = missing(store, 12)
    figure("lost", lost)
    assert lost == 0


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


def test_a_real_disk_that_is_full_and_has_room_again(
    spool: str, small_disk: Path, figure: Figure, caplog: pytest.LogCaptureFixture
) -> None:
    store = str(small_disk / "store")
    chat = conversation(store)
    turn(chat, 0)
    ballast = small_disk / "ballast"
    fill(ballast)
    with caplog.at_level(logging.INFO, logger="aether_context"):
        seconds = [turn(chat, number) for number in range(1, 1 + TURNS)]
        ballast.unlink()
        turn(chat, 1 + TURNS)
        lost = missing(store, 2 * (2 + TURNS))
    figure("lost", lost)
    figure("log_lines", told(caplog, store))
    assert lost == 0
    assert max(seconds) < 5
    assert told(caplog, store) <= 5, caplog.text
