"""Memories in PostgreSQL: the walls between users, versions of the tables, and servers that are away."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest
from google.adk.tools import load_memory, preload_memory
from plans import messages
from postgres_server import Server
from scripted import Chat, call

from aether_context import PackPolicy
from aether_context.adk import HybridMemoryService
from aether_context.errors import StoreError, StoreUnavailable
from aether_context.memory import Memory

pytestmark = pytest.mark.integration

KEY = Memory(name="key", text="The spare key hangs behind the clock.")
ASK = "Where is the spare key?"


@pytest.fixture
def service(postgres: Server) -> Iterator[HybridMemoryService]:
    service = HybridMemoryService(postgres.uri())
    yield service
    service.memories.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deadlines and pauses of a moment, so that no test waits for them."""
    from aether_context.memory import postgres

    for name, seconds in {
        "READ_SECONDS": 0.5,
        "_WAIT_SECONDS": 0.5,
        "_GRACE_SECONDS": 0.1,
        "_PAUSE_SECONDS": 0.05,
    }.items():
        monkeypatch.setattr(postgres, name, seconds)


def test_a_correction_of_this_session_dates_the_memory_that_it_corrects(service: HybridMemoryService) -> None:
    chat = Chat(memory=service, policy=PackPolicy(retrieval={"remember": True}), script=["Noted."] * 4)
    chat.say("I am a vegetarian and eat no fish.", session="before")
    chat.say("Since last month I eat fish.", "What do I eat, fish or no fish?")
    line = next(line for line in chat.sent[-1].human().splitlines() if "vegetarian" in line)
    assert " until " in line


def names(service: HybridMemoryService, user: str = "ann", query: str = "code key") -> list[str]:
    return sorted(one.memory.name for one in service.memories.search("shop", user, query, 100_000))


def test_no_way_of_finding_candidates_reaches_another_owner(postgres: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even where hashes of owners begin alike, as the terms do then that the index over words holds."""

    hashes = {"ann": "a1" * 4, "ben": "b2" * 4, "cay": "c3" * 4}
    monkeypatch.setattr("aether_context.memory.library.owner_of", lambda app, user: "0" * 24 + hashes[user])
    service = HybridMemoryService(postgres.uri())
    for user in ("ann", "ben", "cay"):
        said = [Memory(name=f"{user}{at}", text=f"The code of {user} is number{at}.") for at in range(40)]
        service.memories.add("shop", user, said)
    for user in ("ann", "ben", "cay"):
        assert names(service, user, "the code of ann") == sorted(f"{user}{at}" for at in range(40))
        by_meaning = names(service, user, "a pin")
        assert by_meaning
        assert all(name.startswith(user) for name in by_meaning)
    service.memories.close()


def test_kill_9_of_the_server_loses_nothing_acknowledged_and_agents_keep_running(
    postgres: Server, impatient: None
) -> None:
    service = HybridMemoryService(postgres.uri())
    memories = service.memories
    memories.add("shop", "ann", [KEY])
    acknowledged: list[int] = []
    enough, dead = threading.Event(), threading.Event()

    def write() -> None:
        for number in range(100_000):
            try:
                memories.add("shop", "ann", [Memory(name=f"m{number}", text=f"The code is number{number}.")])
            except StoreError:
                dead.set()
                return
            acknowledged.append(number)
            if number == 20:
                enough.set()

    writer = threading.Thread(target=write)
    writer.start()
    assert enough.wait(120)
    postgres.kill()
    assert dead.wait(120)
    writer.join()

    chat = Chat(memory=service, script=["I do not know."])
    chat.say(ASK)
    degradations = messages(chat.manifests()[0].degradations)
    assert "memory search failed" in degradations
    assert any("StoreUnavailable" in str(one) for one in chat.manifests()[0].degradations)
    tools = Chat(
        memory=service,
        script=[call("load_memory", query="key"), "Nothing."],
        tools=[load_memory, preload_memory],
        session="s2",
        use_plugin=False,
    )
    events = tools.say(ASK)
    assert events[-1].content.parts[0].text == "Nothing."
    with pytest.raises(StoreUnavailable):
        memories.delete("shop", "ann", name="key")

    postgres.start()
    again = Chat(memory=service, script=["Behind the clock."], session="s3")
    until_found(service)
    again.say(ASK)
    assert "behind the clock" in again.sent[0].text
    there = set(names(service))
    assert {"key", *(f"m{number}" for number in acknowledged)} <= there
    assert there <= {"key", *(f"m{number}" for number in range(len(acknowledged) + 1))}
    memories.close()


def until_found(service: HybridMemoryService) -> None:
    """Searches until the server answers; a service asks it again after a pause, by itself."""
    for _ in range(100_000):
        with contextlib.suppress(StoreUnavailable):
            assert service.memories.search("shop", "ann", ASK)
            return
    pytest.fail("the server did not come back")


def test_a_server_process_that_hangs_costs_a_deadline_and_its_connection(postgres: Server, impatient: None) -> None:
    service = HybridMemoryService(postgres.uri())
    service.memories.add("shop", "ann", [KEY])
    ((process,),) = service.memories.database.read("SELECT pg_backend_pid()")
    # The process that serves the only connection stands still: it takes what is sent, and answers nothing.
    os.kill(process, signal.SIGSTOP)
    try:
        with pytest.raises(StoreUnavailable, match="no connection to"):
            service.memories.search("shop", "ann", ASK)
        until_found(service)
    finally:
        os.kill(process, signal.SIGCONT)
    assert names(service) == ["key"]
    service.memories.close()


def test_a_forked_process_has_connections_of_its_own(service: HybridMemoryService) -> None:
    service.memories.add("shop", "ann", [KEY])
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()

    def child() -> None:
        service.memories.add("shop", "ann", [Memory(name="child", text="A code.")])
        theirs.send(names(service))
        service.memories.close()

    process = context.Process(target=child)
    process.start()
    assert ours.poll(60)
    assert ours.recv() == ["child", "key"]
    process.join()
    assert process.exitcode == 0
    assert names(service) == ["child", "key"]


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [("shop@", "nobody@", 'role "nobody" does not exist'), ("/postgres?", "/none?", 'database "none" does not exist')],
)
def test_the_reason_of_a_server_that_lets_nobody_in_is_named(
    postgres: Server, impatient: None, old: str, new: str, reason: str
) -> None:
    uri = postgres.uri()
    assert old in uri
    service = HybridMemoryService(uri.replace(old, new))
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match=reason):
            service.memories.search("shop", "ann", ASK, 5)
    service.memories.close()


def test_tables_of_a_later_version_are_refused_by_name(postgres: Server) -> None:
    uri = postgres.uri("of_later")
    HybridMemoryService(uri).memories.close()
    assert postgres.execute("SELECT obj_description('of_later.forgotten'::regclass)") == [("format 1",)]
    postgres.execute("COMMENT ON TABLE of_later.forgotten IS 'format 2'")
    with pytest.raises(StoreError, match="are of format 2, not 1: a later version reads them"):
        HybridMemoryService(uri)
    postgres.execute("COMMENT ON TABLE of_later.forgotten IS NULL")  # as of those that had no version yet
    HybridMemoryService(uri).memories.close()


def test_a_read_only_server_is_read_and_nothing_is_made_there(postgres: Server) -> None:
    uri = postgres.uri()
    read_only = f"{uri}&options=-c%20default_transaction_read_only%3Don"
    with pytest.raises(StoreError, match="has no tables and is read-only"):
        HybridMemoryService(read_only)
    service = HybridMemoryService(uri)
    service.memories.add("shop", "ann", [KEY])
    service.memories.close()
    service = HybridMemoryService(read_only)
    assert names(service) == ["key"]
    chat = Chat(memory=service, script=["Behind the clock."])
    chat.say(ASK)
    assert KEY.text in chat.sent[0].text
    with pytest.raises(StoreError, match="read-only transaction"):
        service.memories.add("shop", "ann", [Memory(name="other", text="The door is blue.")])
    service.memories.close()


def test_the_pools_own_warnings_come_once(postgres: Server, impatient: None, caplog: pytest.LogCaptureFixture) -> None:
    service = HybridMemoryService(postgres.uri().replace("shop@", "nobody@"))
    for _ in range(6):
        with pytest.raises(StoreUnavailable):
            service.memories.search("shop", "ann", ASK, 5)
        time.sleep(0.1)
    service.memories.close()
    messages_of_pool = [record.msg for record in caplog.records if record.name == "psycopg.pool"]
    assert len(messages_of_pool) == len({*messages_of_pool})
    logging.getLogger("psycopg.pool").warning("error connecting in %r: %s", "another", "away")
    logging.getLogger("psycopg.pool").warning("error connecting in %r: %s", "another", "away")
    assert caplog.text.count("'another'") == 2
