"""What holds of memories wherever they are kept, in a process, in a file, in PostgreSQL; and of the file.

PostgreSQL is among them with ``-m integration``.
"""

from __future__ import annotations

import asyncio
import random
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.adk.cli.service_registry import get_service_registry
from google.adk.events.event import Event
from google.adk.memory.memory_entry import MemoryEntry
from google.adk.sessions.session import Session
from google.genai import types

from aether_context.adk import HybridMemoryService, register_memory_service
from aether_context.errors import SearchIndexError, StoreError
from aether_context.memory import Memories, Memory
from aether_context.retrieval.embedders import unit

WORKER = Path(__file__).parent / "memory_worker.py"
WHO = {"app_name": "app", "user_id": "ann"}
POSTGRES = pytest.param("postgres", marks=pytest.mark.integration)

Open = Callable[..., HybridMemoryService]


@pytest.fixture(params=["process", "file", POSTGRES])
def uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of an empty place on each backend."""
    if request.param == "process":
        return ""
    return str(tmp_path / "m.sqlite") if request.param == "file" else request.getfixturevalue("postgres").uri()


@pytest.fixture(params=["file", POSTGRES])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of an empty place that several processes can use."""
    return str(tmp_path / "m.sqlite") if request.param == "file" else request.getfixturevalue("postgres").uri()


@pytest.fixture
def opened(uri: str) -> Iterator[Open]:
    """Opens a service on the place; a second one is another one where the place can be shared, else the same."""
    services: list[HybridMemoryService] = []

    def open_(**more: Any) -> HybridMemoryService:
        if uri or not services:
            services.append(HybridMemoryService(uri, **more))
        return services[-1]

    yield open_
    for service in services:
        asyncio.run(service.close())


@pytest.fixture
def memories(opened: Open) -> Memories:
    return opened().memories


def event(name: str, text: str, author: str = "Ann", at: float = 1_700_000_000.0, **more: Any) -> Event:
    content = types.Content(role="user", parts=[types.Part(text=text)]) if text else None
    return Event(id=name, invocation_id="i", author=author, timestamp=at, content=content, **more)


def session(*events: Event, name: str = "s1", user: str = "ann") -> Session:
    return Session(id=name, app_name="app", user_id=user, events=list(events), last_update_time=0.0)


def entry(text: str, **more: Any) -> MemoryEntry:
    return MemoryEntry(content=types.Content(role="user", parts=[types.Part(text=text)]), **more)


async def found(service: HybridMemoryService, query: str, **who: str) -> list[str]:
    response = await service.search_memory(**{**WHO, **who}, query=query)
    return [one.content.parts[0].text for one in response.memories]


def names(memories: Memories, query: str = "code", user: str = "ann", limit: int = 20_000) -> list[str]:
    return sorted(one.memory.name for one in memories.search("app", user, query, limit))


def test_the_same_words_said_again_take_the_place_of_the_earlier_ones(opened: Open) -> None:
    async def run() -> None:
        first, second = opened(), opened()
        who = {"app_name": "app", "user_id": "ann"}
        await first.remember(
            **who, events=[event("e1", "I live in Bergen."), event("e2", "In a house.")], session_id="s1"
        )
        await second.remember(**who, events=[event("e3", "i live  in Bergen", at=1_800_000_000.0)], session_id="s2")
        stored = {one.name: one.session for one in first.memories.all("app", "ann")}
        assert stored == {"e2": "s1", "e3": "s2"}
        assert sorted(await found(first, "Where do I live, in Bergen or in a house?")) == [
            "In a house.",
            "i live  in Bergen",
        ]
        await first.add_session_to_memory(session(event("e1", "I live in Bergen.")))
        assert {one.name for one in second.memories.all("app", "ann")} == {"e2", "e3"}

    asyncio.run(run())


def test_a_session_is_found_by_words_and_by_meaning(opened: Open) -> None:
    async def run() -> None:
        service = opened()
        thought = types.Content(role="model", parts=[types.Part(text="secret musing", thought=True)])
        await service.add_session_to_memory(
            session(
                event("e1", "My automobile is in the garage."),
                event("e2", "Soup on Fridays.", "Ben"),
                event("e3", ""),
                event("e4", "My automo", partial=True),
                Event(id="e5", invocation_id="i", author="agent", content=thought),
            )
        )
        response = await service.search_memory(**WHO, query="where is the car?")
        best = response.memories[0]
        assert best.content.parts[0].text == "My automobile is in the garage."
        assert (best.id, best.author, best.timestamp) == ("e1", "Ann", "2023-11-14T22:13:20+00:00")
        assert 0 < best.custom_metadata["aether_score"] < 1
        assert set(await found(service, "musing automo")) == {"My automobile is in the garage.", "Soup on Fridays."}

    asyncio.run(run())


def test_the_memories_of_a_session_take_no_others_place(memories: Memories) -> None:
    own = [Memory(name=f"o{at}", text=f"the red door of house {at}", session="now") for at in range(120)]
    memories.add("app", "ann", [*own, Memory(name="before", text="a door that Ilse painted", session="then")])
    with_all = memories.search("app", "ann", "the red door", 5)
    assert {hit.memory.session for hit in with_all} == {"now"}
    without = memories.search("app", "ann", "the red door", 5, without_session="now")
    assert [hit.memory.name for hit in without] == ["before"]


def test_deltas_grow_a_session_and_writing_twice_changes_nothing(opened: Open) -> None:
    async def run() -> None:
        service = opened()
        await service.add_session_to_memory(session(event("e1", "the red door")))
        await service.add_events_to_memory(
            **WHO, events=[event("e2", "the blue door")], session_id="s1", custom_metadata={"kind": "delta"}
        )
        await service.add_session_to_memory(session(event("e1", "the red door"), event("e3", "the green door")))
        assert sorted(await found(service, "door")) == ["the blue door", "the green door", "the red door"]
        (blue,) = [one for one in (await service.search_memory(**WHO, query="blue")).memories if one.id == "e2"]
        assert blue.custom_metadata["kind"] == "delta"
        again = [Memory(name="e9", text="the grey door", session="s1", author="Ann", metadata={"n": [1, None]})]
        assert [service.memories.add("app", "ann", again) for _ in range(2)] == [1, 0]
        await service.add_session_to_memory(session(event("e1", "the violet gate")))
        assert "the violet gate" in await found(service, "violet")
        assert "the red door" not in await found(service, "red door")

    asyncio.run(run())


def test_preferences_are_read_without_a_search(memories: Memories) -> None:
    wishes = [
        Memory(name=f"w{at}", text=f"Wish number {at}.", metadata={"kind": "preference"} if at % 2 else {"kind": "a"})
        for at in range(50)
    ]
    memories.add("app", "ann", [*wishes, Memory(name="long", text="x" * 2_001, metadata={"kind": "preference"})])
    memories.delete("app", "ann", name="w49")
    assert [one.name for one in memories.preferences("app", "ann")] == [f"w{at}" for at in range(47, 8, -2)]
    assert memories.preferences("app", "ben") == []


def test_what_was_added_comes_back_whole_and_in_order(memories: Memories) -> None:
    told = [
        Memory(name="a", text="first \x00 \x01 0", session="s\x00", author="Bé", metadata={"deep": {"x": [1, "\x00"]}}),
        Memory(name="b", text="second", role="model", timestamp="not a time"),
        Memory(name="\x01", text="third", session="s" * 5_000, timestamp="2024-05-01"),
    ]
    memories.add("app", "ann", told[:1])
    memories.add("app", "ann", told[1:])
    assert list(memories.all("app", "ann")) == told
    memories.add("app", "ann", [Memory(name="b", text="second again")])
    memories.delete("app", "ann", name="a")
    assert [one.text for one in memories.all("app", "ann")] == ["third", "second again"]
    assert list(memories.all("app", "ben")) == []


TALK = [
    Memory(
        name=f"t{at}",
        text=f"{'Ann moved to' if at % 9 == 0 else 'turn'} {at} of the talk about {'tea' if at % 3 else 'coffee'}",
        session=f"s{at // 15}" if at % 5 else "",
        author="Ann" if at % 2 else None,
        timestamp=f"2024-{1 + at % 12:02}-03T10:00:00+00:00" if at % 4 else None,
    )
    for at in range(3_000)
]


@pytest.mark.parametrize("embedder", ["static", "none"])
def test_a_file_finds_what_a_process_does(tmp_path: Path, embedder: str) -> None:
    services = [HybridMemoryService(path=path, embedder=embedder) for path in (None, tmp_path.as_uri())]
    for service in services:
        for first in range(0, len(TALK), 1_000):
            service.memories.add("app", "ann", TALK[first : first + 1_000])
        service.memories.add("app", "ann", [Memory(name="t40", text="changed to coffee", session="s2")], revive=True)
        service.memories.delete("app", "ann", name="t41")
        service.memories.delete("app", "ann", session="s7")
    here, there = services
    for query in ("the talk about coffee", "where did Ann move?", "turn 1234 in May 2024", "what is latest?", "x", ""):
        assert there.memories.search("app", "ann", query, 50) == here.memories.search("app", "ann", query, 50)
    for service in services:
        asyncio.run(service.close())


def test_what_is_deleted_is_gone_everywhere_and_stays_so(opened: Open) -> None:
    async def run() -> None:
        service, other = opened(), opened()
        whole = session(event("e1", "the zanzibar door"), event("e2", "the blue door"))
        await service.add_session_to_memory(whole)
        assert len(await found(other, "door")) == 2
        await service.delete_memory(**WHO, memory_id="e1")
        await service.delete_memory(**WHO, memory_id="unknown")
        await service.delete_memory(**WHO)
        await service.add_session_to_memory(whole)
        assert await found(other, "zanzibar door") == ["the blue door"]
        await service.add_memory(**WHO, memories=[entry("the zanzibar door again", id="e1")])
        assert "the zanzibar door again" in await found(other, "zanzibar")
        await service.delete_session_from_memory(**WHO, session_id="s1")
        assert await found(other, "door") == ["the zanzibar door again"]
        await service.delete_user_from_memory(**WHO)
        assert await found(other, "door") == []
        assert other.memories.users() == []

    asyncio.run(run())


@pytest.mark.slow
def test_several_processes_write_and_read_one_place(shared: str) -> None:
    workers = [
        subprocess.Popen([sys.executable, WORKER, shared, user, first, last], stdout=subprocess.DEVNULL)
        for user, first, last in (("ann", "0", "60"), ("ben", "0", "60"))
    ]
    with closing(HybridMemoryService(shared).memories) as memories:
        seen = 0
        while any(one.poll() is None for one in workers):
            count = len(names(memories))
            assert count >= seen
            seen = count
            memories.add("app", "ann", [Memory(name=f"here{seen}", text="The code from here.")])
        assert [one.wait() for one in workers] == [0, 0]
        assert {f"m{at}" for at in range(60)} < set(names(memories))
        assert names(memories, user="ben") == sorted(f"m{at}" for at in range(60))


APPS, USERS, SESSIONS, NAMES = ("app", "ann", "ap"), ("ann", "ben", "pann", ""), ("", "s", "s1"), ("m1", "m2", "1m1")


@pytest.mark.parametrize("operations", [300, pytest.param(10_000, marks=pytest.mark.slow)])
def test_no_user_ever_sees_what_is_anothers(opened: Open, operations: int) -> None:
    service = opened(embedder="none", max_users=2)
    backends = [service.memories, opened(embedder="none", max_users=2).memories]
    choice = random.Random(operations)
    there: dict[tuple[str, str], dict[tuple[str, str], str]] = {}
    deleted: dict[tuple[str, str], set[tuple[str, str]]] = {}
    for number in range(operations):
        backend = choice.choice(backends)
        who = app, user = choice.choice(APPS), choice.choice(USERS)
        held, gone = there.setdefault(who, {}), deleted.setdefault(who, set())
        key = session, name = choice.choice(SESSIONS), choice.choice(NAMES)
        act = choice.choice(["add", "add", "add", "revive", "forget name", "forget session", "forget all", *"ssspul"])
        if act in ("add", "revive"):
            metadata = {"kind": "preference"} if choice.random() < 0.3 else {}
            text = f"secret {number} of app {app}, user {user}."
            memory = Memory(name=name, text=text, session=session, metadata=metadata)
            written = backend.add(app, user, [memory], revive=act == "revive")
            assert written == int(act == "revive" or key not in gone)
            if written:
                held[key] = text
                gone.discard(key)
        elif act.startswith("forget") and not (act == "forget all" and choice.random() < 0.8):
            wanted = {"name": name} if act == "forget name" else {"session": session} if act == "forget session" else {}
            matching = [
                one for one in held if one[1] == wanted.get("name", one[1]) and one[0] == wanted.get("session", one[0])
            ]
            assert backend.delete(app, user, **wanted) == len(matching)
            for one in matching:
                gone.add(one)
                del held[one]
        elif act == "s":
            query = f"secret of app {choice.choice(APPS)} user {choice.choice(USERS)}"
            assert sorted(one.memory.text for one in backend.search(app, user, query)) == sorted(held.values())
        elif act == "p":
            assert {one.text for one in backend.preferences(app, user)} <= set(held.values())
        elif act == "l":
            assert sorted(one.text for one in backend.all(app, user)) == sorted(held.values())
        elif act == "u":
            owners = sorted((*one, len(texts)) for one, texts in there.items() if texts)
            assert backend.users() == owners


def test_memories_move_from_anywhere_to_anywhere(memories: Memories) -> None:
    odd = "a \0 lone \ud800 \u2028 line\nbreak"
    with closing(Memories(embedder="none")) as source:
        source.add(
            "app", "ann", [Memory(name="b", text="second by name", metadata={"kind": "preference", "deep": [{}]})]
        )
        source.add("app", "ann", [Memory(name="a", text=odd, session="s\0", author="Bén", timestamp="no time")])
        source.add("app", "ben", [Memory(name="a", text="Ben's", role="model", timestamp="2024-05-01T00:00:00Z")])
        source.add("a\0pp", "an\ud800n", [Memory(name="n\0", text="of odd names")])
        owners = [(app, user) for app, user, _ in source.users()]
        held = {owner: list(source.all(*owner)) for owner in owners}

        def moved(**options: Any) -> int:
            return sum(memories.add(*owner, source.all(*owner), **options) for owner in owners)

        assert moved() == 4
        assert {(app, user): list(memories.all(app, user)) for app, user, _ in memories.users()} == held
        assert moved() == 0
        assert memories.delete("app", "ann", name="b") == 1
        assert moved() == 0
        assert [memory.name for memory in memories.all("app", "ann")] == ["a"]
        assert moved(revive=True) == 1
        assert [memory.name for memory in memories.all("app", "ann")] == ["a", "b"]


def test_uris_are_understood_and_wrong_ones_say_so(tmp_path):
    async def run():
        register_memory_service()
        create = get_service_registry().create_memory_service
        service = create(f"hybrid://{tmp_path}/memories?embedder=none&limit=3", agents_dir="/nowhere")
        assert service.memories.database.path == tmp_path / "memories" / "memories.sqlite"
        await service.add_memory(**WHO, memories=[entry(f"door {at}") for at in range(9)])
        assert len(await found(service, "door")) == 3
        assert (
            create("hybrid://data/m.db", agents_dir=str(tmp_path)).memories.database.path == tmp_path / "data" / "m.db"
        )
        assert create("hybrid://").memories.database.path is None

    asyncio.run(run())
    with pytest.raises(SearchIndexError, match="option 'limits' is unknown"):
        HybridMemoryService("hybrid://m?limits=3")
    with pytest.raises(SearchIndexError, match="limit='many'"):
        HybridMemoryService("hybrid://m?limit=many")
    with pytest.raises(SearchIndexError, match="begins with hybrid://"):
        HybridMemoryService("redis://m")


def test_a_file_of_something_else_is_left_alone(tmp_path):
    text = tmp_path / "notes.txt"
    text.write_text("not a database, and long enough to be taken for one" * 40)
    with pytest.raises(StoreError, match="cannot be opened"):
        Memories(text)
    with sqlite3.connect(tmp_path / "other.sqlite") as database:
        database.execute("CREATE TABLE accounts (name TEXT)")
    with pytest.raises(StoreError, match="something else than memories"):
        Memories(tmp_path / "other.sqlite")


def test_words_that_are_deleted_are_in_no_file(tmp_path):
    memories = Memories(tmp_path / "m.sqlite")
    memories.add("app", "ann", [Memory(name="e1", text="the zanzibar door"), Memory(name="e2", text="the blue door")])
    memories.search("app", "ann", "zanzibar")
    memories.delete("app", "ann", name="e1")
    assert not any(b"zanzibar" in one.read_bytes() for one in tmp_path.iterdir())


class Letters:
    """A dimension a letter; counts what it embeds to be found."""

    def __init__(self, name="letters"):
        self.name = name
        self.entries = 0

    def embed(self, texts, *, purpose="entry"):
        self.entries += len(texts) if purpose == "entry" else 0
        return unit(np.array([[text.count(one) for one in "abcdefgh"] for text in texts], dtype=np.float64))


def badges(*numbers, session="", text="The badge of guest{0} is a{1}b"):
    return [
        Memory(name=f"m{at}", text=text.format(at, at % 7), session=session, author="Ann", timestamp="2025-03-01")
        for at in numbers
    ]


def scored(memories, query="the badge of guest3 and a5b", user="ann"):
    return [(one.memory, one.score) for one in memories.search("app", user, query, 1_000)]


def test_a_file_opens_without_making_its_vectors_again(tmp_path):
    with closing(Memories(tmp_path, embedder=Letters())) as memories:
        memories.add("app", "ann", badges(*range(100), session="s"))
        memories.add("app", "ben", badges(1))
        before = scored(memories)
    for name, embedded in (("letters", 0), ("others", 100), ("others", 0)):
        embedder = Letters(name)
        with closing(Memories(tmp_path, embedder=embedder)) as memories:
            assert scored(memories) == before
        assert embedder.entries == embedded


@pytest.mark.parametrize(
    "record", ["{", '{"name": "k1", "text": "The code is 7.", "later": 1}', '{"name": "k1", "text": 7}']
)
def test_a_record_that_cannot_be_read_is_left_out_alone(
    memories: Memories, record: str, caplog: pytest.LogCaptureFixture
) -> None:
    wish = {"kind": "preference"}
    added = [Memory(name=f"k{at}", text=f"The code of door {at} is {at * 7}.", metadata=wish) for at in range(1, 6)]
    memories.add("app", "ann", added)
    statement = memories.database.sql("UPDATE memories SET record = ? WHERE record LIKE ?")
    with memories.database.transaction("owner") as cursor:
        cursor.execute(statement, (record, '%"k1"%'))
    for _ in range(2):
        assert names(memories) == ["k2", "k3", "k4", "k5"]
        assert [memory.name for memory in memories.all("app", "ann")] == ["k2", "k3", "k4", "k5"]
        assert [memory.name for memory in memories.preferences("app", "ann")] == ["k5", "k4", "k3", "k2"]
    assert caplog.text.count("is left out") <= 1
    memories.add("app", "ann", [Memory(name="k6", text="The code of door 6 is 42.", session="s")])
    assert "k6" in names(memories)
