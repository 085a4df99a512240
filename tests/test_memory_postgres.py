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

    for name, seconds in {
        "READ_SECONDS": 0.5,
        "_WAIT_SECONDS": 0.5,
        "_GRACE_SECONDS": 0.1,
        "_PAUSE_SECONDS": 0.05,
    }.items():
        monkeypatch.setattr(postgres, name, seconds)


def names(service: HybridMemoryService, user: str = "ann", query: str = "code key") -> list[str]:
    return sorted(one.memory.name for one in service.memories.search("shop", user, query, 100_000))


# who may see what


def test_no_way_of_finding_candidates_reaches_another_owner(postgres: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even where hashes of owners begin alike, as the terms do then that the index over words holds."""
    from aether_context.memory.records import owner_of

    monkeypatch.setattr("aether_context.memory.library.owner_of", lambda app, user: "0" * 24 + owner_of(app, user)[:8])
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


def test_of_many_memories_the_best_are_among_the_candidates(service: HybridMemoryService) -> None:
    places = ["harbour", "library", "orchard", "station", "theatre", "museum", "bakery"]
    said = [f"Note {at}: {places[at % 7]} and {places[at % 5]} at {100 + at}." for at in range(3_000)]
    in_process = HybridMemoryService()
    for one in (service, in_process):
        one.memories.add("shop", "ann", [Memory(name=f"m{at}", text=text) for at, text in enumerate(said)])
    for query in ("the orchard at 1507", "what of 2222?", "note 17, museum"):
        here, there = (one.memories.search("shop", "ann", query, 5) for one in (in_process, service))
        assert there[0].memory == here[0].memory


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
    for one in services:
        one.memories.close()


def test_tables_that_cannot_be_made_leave_nothing(postgres: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    from aether_context.memory import postgres as backend

    uri = postgres.uri("failed")
    with monkeypatch.context() as patch:
        patch.setattr(backend, "_TABLES", "CREATE TABLE half (x int); SELECT nonsense")
        with pytest.raises(StoreError, match="nonsense"):
            HybridMemoryService(uri)
    assert postgres.execute("SELECT count(*) FROM pg_tables WHERE tablename = 'half'") == [(0,)]
    HybridMemoryService(uri).memories.close()


def test_missing_rights_say_what_an_administrator_runs(postgres: Server) -> None:
    postgres.execute("REVOKE CREATE ON DATABASE postgres FROM shop")
    try:
        with pytest.raises(StoreError, match='CREATE SCHEMA "closed" AUTHORIZATION'):
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
    assert (len(found.memories), service.memories.embedder) == (3, "none")
    assert postgres.execute("SELECT count(*) FROM by_uri.memories") == [(9,)]
    service.memories.close()

    wrong = {
        "postgresql://ann:secret@localhost/x?limits=3": "options are schema and libpq's",
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
    assert "no connection to postgresql://localhost:1/x within 2 s" in caplog.text
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


def test_busy_connections_are_no_reason_to_pause(
    service: HybridMemoryService, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from aether_context.memory import postgres as backend

    monkeypatch.setattr(backend, "_PAUSE_SECONDS", 1_000)
    service.memories.add("shop", "ann", [KEY])
    pool = service.memories.database._pool()
    taken = [pool.getconn() for _ in range(8)]
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match=r"no connection to postgresql://.* within"):
            service.memories.search("shop", "ann", ASK)
    for connection in taken:
        pool.putconn(connection)
    assert names(service) == ["key"]


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
