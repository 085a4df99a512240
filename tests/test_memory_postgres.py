"""Memories in PostgreSQL: the walls between users, versions of the tables, and servers that are away."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from google.adk.cli.service_registry import get_service_registry
from google.adk.memory.memory_entry import MemoryEntry
from google.adk.tools import load_memory, preload_memory
from google.genai import types
from plans import messages
from postgres_server import Server
from scripted import Chat, call

from aether_context.adk import HybridMemoryService, register_memory_service
from aether_context.errors import EmbeddingError, SearchIndexError, StoreError, StoreUnavailable
from aether_context.memory import Memory
from aether_context.retrieval.embedders import unit

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

    for name, seconds in {"READ_SECONDS": 0.5, "_GRACE_SECONDS": 0.1, "_PAUSE_SECONDS": 0.05}.items():
        monkeypatch.setattr(postgres, name, seconds)


def names(service: HybridMemoryService, user: str = "ann", query: str = "code key") -> list[str]:
    return sorted(one.memory.name for one in service.memories.search("shop", user, query, 100_000))


# who may see what


def test_the_database_shows_a_transaction_the_rows_of_its_owner_alone(service: HybridMemoryService) -> None:
    from aether_context.memory.rows import owner_of

    memories = service.memories
    for user in ("ann", "ben"):
        memories.add("shop", user, [Memory(name="m", text=f"The code of {user}.")])
    database = memories.database
    everything = "SELECT text FROM memories"

    def seen(owner: str) -> list[Any]:
        return database.run(lambda connection: connection.execute(everything).fetchall(), owner=owner)

    assert seen(owner_of("shop", "ann")) == [("The code of ann.",)]
    assert seen(owner_of("shop", "eve")) == seen("") == []
    forged = "INSERT INTO memories (owner, number, key, session, name, standing) VALUES (?, 9, 'x', '', 'x', 0)"
    with pytest.raises(StoreError, match="row-level security"):
        database.run(
            lambda connection: connection.execute(forged, (owner_of("shop", "ben"),)),
            owner=owner_of("shop", "ann"),
            writes=True,
        )
    taken = database.run(
        lambda connection: connection.execute("UPDATE memories SET text = ''").rowcount,
        owner=owner_of("shop", "ann"),
        writes=True,
    )
    assert taken == 1


# the tables


def test_services_that_start_at_once_make_the_tables_once(postgres: Server) -> None:
    uri = postgres.uri("at_once")
    services: list[HybridMemoryService] = []
    threads = [threading.Thread(target=lambda: services.append(HybridMemoryService(uri))) for _ in range(6)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert [one.memories.add("shop", "ann", [KEY]) for one in services] == [1, 0, 0, 0, 0, 0]
    assert postgres.execute("SELECT version FROM at_once.migrations") == [(1,)]
    for one in services:
        one.memories.close()


def test_tables_are_brought_up_to_a_later_version_which_an_earlier_release_leaves_alone(
    postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    from aether_context.memory import postgres as rows

    uri = postgres.uri("versions")
    earlier = HybridMemoryService(uri)
    earlier.memories.add("shop", "ann", [KEY])
    with monkeypatch.context() as patch:
        patch.setattr(rows, "STEPS", (*rows.STEPS, "ALTER TABLE memories ADD COLUMN colour text"))
        later = HybridMemoryService(uri)
        assert names(later) == ["key"]
        assert names(earlier) == ["key"]  # it goes on until it is started anew
        later.memories.close()
    with pytest.raises(StoreError, match="has version 2, and this release knows 1: update it"):
        HybridMemoryService(uri)
    earlier.memories.close()


def test_a_step_that_fails_leaves_the_tables_as_they_were(postgres: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    from aether_context.memory import postgres as rows

    uri = postgres.uri("failed")
    HybridMemoryService(uri).memories.close()
    with monkeypatch.context() as patch:
        patch.setattr(rows, "STEPS", (*rows.STEPS, "CREATE TABLE half (x int)", "SELECT nonsense"))
        with pytest.raises(StoreError, match="nonsense"):
            HybridMemoryService(uri)
    assert postgres.execute("SELECT count(*) FROM pg_tables WHERE tablename = 'half'") == [(0,)]
    HybridMemoryService(uri).memories.close()


def test_missing_rights_say_what_an_administrator_runs(postgres: Server) -> None:
    postgres.execute("REVOKE CREATE ON DATABASE postgres FROM shop")
    try:
        with pytest.raises(StoreError, match="CREATE SCHEMA closed AUTHORIZATION"):
            HybridMemoryService(postgres.uri("closed"))
        postgres.execute("CREATE SCHEMA closed AUTHORIZATION shop")
        HybridMemoryService(postgres.uri("closed")).memories.close()
    finally:
        postgres.execute("GRANT CREATE ON DATABASE postgres TO shop")


def test_another_embedder_makes_its_vectors_anew(postgres: Server) -> None:
    uri, found = postgres.uri("embedded"), []
    for embedder in ("none", "static", "none", "static"):
        service = HybridMemoryService(uri, embedder=embedder)
        service.memories.add("shop", "ann", [KEY])
        (hit,) = service.memories.search("shop", "ann", ASK)
        found.append(bool(hit.scores["cosine"]))
        service.memories.close()
    assert found == [False, True, False, True]


class Away:
    """An embedding service that may be away."""

    name = "away"
    fails = False

    def embed(self, texts: Any, *, purpose: str = "entry") -> Any:
        if self.fails:
            raise EmbeddingError(self.name, "no answer")
        return unit(np.array([[text.count(one) for one in "abcdefgh"] for text in texts], dtype=np.float64))


def test_what_a_service_could_not_embed_is_found_by_words_and_embedded_later(postgres: Server) -> None:
    embedder = Away()
    service = HybridMemoryService(postgres.uri(), embedder=embedder)

    def cosines() -> dict[str, bool]:
        found = service.memories.search("shop", "ann", "a badge of code", 10)
        return {one.memory.name: bool(one.scores["cosine"]) for one in found}

    embedder.fails = True
    service.memories.add("shop", "ann", [Memory(name="m1", text="The code is abc.")])
    assert cosines() == {"m1": False}
    embedder.fails = False
    assert cosines() == {"m1": True}
    service.memories.add("shop", "ann", [Memory(name="m2", text="A code is badge.")])
    assert cosines() == {"m1": True, "m2": True}
    service.memories.close()


# URIs


def test_uris_are_understood_and_wrong_ones_say_so_without_a_password(
    postgres: Server, caplog: pytest.LogCaptureFixture
) -> None:
    register_memory_service()
    create = get_service_registry().create_memory_service
    service = create(f"hybrid+{postgres.uri('by_uri')}&limit=3&embedder=none", agents_dir="/nowhere")
    assert isinstance(service, HybridMemoryService)
    service.memories.add("shop", "ann", [Memory(name=f"m{at}", text=f"door {at}") for at in range(9)])
    found = asyncio.run(service.search_memory(app_name="shop", user_id="ann", query="door"))
    assert (len(found.memories), service.memories.encoder) == (3, "none")
    assert postgres.execute("SELECT memories FROM by_uri.owners") == [(9,)]
    service.memories.close()

    wrong = {
        "postgresql://ann:secret@localhost/x?limits=3": "option 'limits' is unknown",
        "postgresql://ann:secret@localhost/x?limit=many": "limit='many'",
        "postgresql://ann:secret@local host:port/x?sslmode=require": "cannot be read",
        "hybrid+redis://ann:secret@localhost": r"hybrid\+redis:// is unknown",
        "redis://ann:secret@localhost": "redis:// is unknown",
    }
    for uri, text in wrong.items():
        with pytest.raises((SearchIndexError, StoreError), match=text) as raised:
            HybridMemoryService(uri)
        assert "secret" not in str(raised.value)
    with caplog.at_level(logging.DEBUG):
        away = HybridMemoryService("postgresql://ann:secret@localhost:1/x")
        with pytest.raises(StoreUnavailable, match="postgresql://localhost:1/x were away") as refused:
            away.memories.search("shop", "ann", "x")
    assert "postgresql://localhost:1/x cannot be reached: " in caplog.text
    for text in (caplog.text, str(refused.value), repr(away), repr(vars(away.memories)), repr(away.memories.database)):
        assert "secret" not in text


# servers that are away


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


def test_a_service_that_starts_before_its_server_finds_it_later(postgres: Server, impatient: None) -> None:
    uri = postgres.uri()
    first = HybridMemoryService(uri)
    first.memories.add("shop", "ann", [KEY])
    postgres.kill()
    early = HybridMemoryService(uri)
    with pytest.raises(StoreUnavailable):
        early.memories.users()
    postgres.start()
    until_found(early)
    until_found(first)
    assert names(early) == names(first) == ["key"]
    for one in (early, first):
        one.memories.close()


def test_a_server_that_hangs_costs_its_deadline_and_then_nothing(
    postgres: Server, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from aether_context.memory import postgres as rows

    service = HybridMemoryService(postgres.uri())
    service.memories.add("shop", "ann", [KEY])
    (process,) = service.memories.database.run(
        lambda connection: connection.execute("SELECT pg_backend_pid()").fetchone()
    )
    monkeypatch.setattr(rows, "_PAUSE_SECONDS", 1_000)
    # The process that serves the only connection stands still: it takes what is sent, and answers nothing.
    os.kill(process, signal.SIGSTOP)
    try:
        monkeypatch.setattr(rows._Connection, "connect", refuse)
        with pytest.raises(StoreUnavailable, match="cannot be reached"):
            service.memories.search("shop", "ann", ASK)
        with pytest.raises(StoreUnavailable, match="were away a moment ago"):
            service.memories.search("shop", "ann", ASK)
    finally:
        os.kill(process, signal.SIGCONT)
    monkeypatch.undo()
    service.memories.database._paused_until = 0.1  # the pause is over
    assert names(service) == ["key"]
    service.memories.close()


def test_busy_connections_are_no_reason_to_pause(
    service: HybridMemoryService, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from aether_context.memory import postgres as rows

    monkeypatch.setattr(rows, "_PAUSE_SECONDS", 1_000)
    service.memories.add("shop", "ann", [KEY])
    busy = service.memories.database._free
    for _ in range(8):
        busy.acquire()
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match=r"all of 8 connections to postgresql://.* were busy"):
            service.memories.search("shop", "ann", ASK)
    for _ in range(8):
        busy.release()
    assert names(service) == ["key"]


def test_rows_of_a_backup_are_found_after_one_search(postgres: Server) -> None:
    uri = postgres.uri("restored")
    service = HybridMemoryService(uri)
    memories = [Memory(name=f"m{at}", text=f"A key of door {at}.") for at in range(4)]
    for memory in memories:
        service.memories.add("shop", "ann", [memory])
    assert len(names(service)) == 4
    postgres.execute("DELETE FROM restored.memories WHERE number > 1")
    postgres.execute("UPDATE restored.owners SET last = 1, memories = 1")
    service.memories.add("shop", "ann", [Memory(name="new", text="A key of the gate.")])
    service.memories.search("shop", "ann", "key")
    assert names(service) == ["m0", "new"]
    service.memories.close()


def refuse(*args: Any, **kwargs: Any) -> Any:
    import psycopg

    raise psycopg.OperationalError("connection refused")


def test_a_connection_that_the_server_closed_is_not_noticed(postgres: Server, service: HybridMemoryService) -> None:
    service.memories.add("shop", "ann", [KEY])
    close = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'shop'"
    assert postgres.execute(close)
    assert names(service) == ["key"]
    assert postgres.execute(close)
    assert service.memories.add("shop", "ann", [Memory(name="m", text="A code.")]) == 1


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


def test_an_entry_that_is_not_written_raises_out_of_the_service(postgres: Server, impatient: None) -> None:
    service = HybridMemoryService("postgresql://shop@localhost:1/x")
    told = types.Content(role="user", parts=[types.Part(text="My key.")])
    with pytest.raises(StoreUnavailable):
        asyncio.run(service.add_memory(app_name="shop", user_id="ann", memories=[MemoryEntry(content=told)]))
    found = asyncio.run(service.search_memory(app_name="shop", user_id="ann", query="key"))
    assert found.memories == []
