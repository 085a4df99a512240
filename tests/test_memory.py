"""Long-term memory: the file, the index that follows it, and the ADK service over both."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from click.testing import CliRunner
from google.adk.agents import LlmAgent
from google.adk.apps import App
from google.adk.cli.service_registry import get_service_registry
from google.adk.events.event import Event
from google.adk.memory.memory_entry import MemoryEntry
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.adk.sessions.session import Session
from google.adk.tools import load_memory, preload_memory
from google.genai import types
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import new_store

from aether_context import PackPolicy
from aether_context.adk import ContextPackPlugin, HybridMemoryService, register_memory_service
from aether_context.canonical import digest_of
from aether_context.cli import main
from aether_context.errors import SearchIndexError, StoreError
from aether_context.memory import Memories, Memory, library
from aether_context.retrieval.embedders import StaticEmbedder, unit
from aether_context.store.replay import Replayer

WORKER = Path(__file__).parent / "memory_worker.py"
WHO = {"app_name": "app", "user_id": "ann"}


def event(name, text, author="Ann", at=1_700_000_000.0, **more):
    content = types.Content(role="user", parts=[types.Part(text=text)]) if text else None
    return Event(id=name, invocation_id="i", author=author, timestamp=at, content=content, **more)


def session(*events, name="s1", user="ann"):
    return Session(id=name, app_name="app", user_id=user, events=list(events), last_update_time=0.0)


def entry(text, **more):
    return MemoryEntry(content=types.Content(role="user", parts=[types.Part(text=text)]), **more)


async def found(service, query, **who):
    response = await service.search_memory(**{**WHO, **who}, query=query)
    return [one.content.parts[0].text for one in response.memories]


def names(memories, query="code", user="ann", limit=20_000):
    return sorted(one.memory.name for one in memories.search("app", user, query, limit))


def said(count, user="ann"):
    return [Memory(name=f"m{at}", text=f"The code of {user} is number{at}.") for at in range(count)]


# the service


@pytest.mark.parametrize("kept", [False, True])
def test_a_session_is_found_by_words_and_by_meaning(kept, tmp_path):
    async def run():
        service = HybridMemoryService(tmp_path if kept else "")
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
        assert await found(service, "musing automo") == ["My automobile is in the garage.", "Soup on Fridays."]
        await service.close()

    asyncio.run(run())


def test_deltas_grow_a_session_and_writing_twice_changes_nothing(tmp_path):
    async def run():
        service = HybridMemoryService(tmp_path / "m.sqlite")
        await service.add_session_to_memory(session(event("e1", "the red door")))
        await service.add_events_to_memory(
            **WHO, events=[event("e2", "the blue door")], session_id="s1", custom_metadata={"kind": "delta"}
        )
        await service.add_session_to_memory(session(event("e1", "the red door"), event("e3", "the green door")))
        assert sorted(await found(service, "door")) == ["the blue door", "the green door", "the red door"]
        (blue,) = [one for one in (await service.search_memory(**WHO, query="blue")).memories if one.id == "e2"]
        assert blue.custom_metadata["kind"] == "delta"
        before = service.memories.file.changes("app", "ann", 0)
        await service.add_session_to_memory(session(event("e1", "the red door"), event("e3", "the green door")))
        assert service.memories.file.changes("app", "ann", 0) == before
        await service.add_session_to_memory(session(event("e1", "the violet gate")))
        assert "the violet gate" in await found(service, "violet")
        assert "the red door" not in await found(service, "red door")

    asyncio.run(run())


def test_explicit_memories_are_known_by_id_or_by_content():
    async def run():
        service = HybridMemoryService()
        likes = entry("Ann likes tea.", author="Ben", timestamp="2024-05-01", custom_metadata={"source": "form"})
        await service.add_memory(**WHO, memories=[likes, likes], custom_metadata={"batch": 7})
        (one,) = (await service.search_memory(**WHO, query="tea")).memories
        assert (one.author, one.timestamp) == ("Ben", "2024-05-01")
        assert {**one.custom_metadata, "aether_score": None} == {"source": "form", "batch": 7, "aether_score": None}
        await service.add_memory(**WHO, memories=[entry("Ann likes coffee.", id=one.id)])
        assert await found(service, "likes") == ["Ann likes coffee."]
        with pytest.raises(SearchIndexError, match="'m9' has no text"):
            await service.add_memory(**WHO, memories=[MemoryEntry(id="m9", content=types.Content(parts=[]))])

    asyncio.run(run())


@pytest.mark.parametrize("kept", [False, True])
def test_what_is_deleted_is_gone_everywhere_and_stays_so(kept, tmp_path):
    async def run():
        path = tmp_path / "m.sqlite" if kept else ""
        service = HybridMemoryService(path)
        other = HybridMemoryService(path) if kept else service
        whole = session(event("e1", "the zanzibar door"), event("e2", "the blue door"))
        await service.add_session_to_memory(whole)
        assert len(await found(other, "door")) == 2
        await service.delete_memory(**WHO, memory_id="e1")
        await service.delete_memory(**WHO, memory_id="unknown")
        await service.delete_memory(**WHO)
        await service.add_session_to_memory(whole)
        assert await found(other, "zanzibar door") == ["the blue door"]
        if kept:
            files = [one.read_bytes() for one in tmp_path.iterdir()]
            assert not any(b"zanzibar" in one for one in files)
        await service.add_memory(**WHO, memories=[entry("the zanzibar door again", id="e1")])
        assert "the zanzibar door again" in await found(other, "zanzibar")
        await service.delete_session_from_memory(**WHO, session_id="s1")
        assert await found(other, "door") == ["the zanzibar door again"]
        await service.delete_user_from_memory(**WHO)
        assert await found(other, "door") == []
        assert other.memories.users() == []

    asyncio.run(run())


def test_dialogue_is_found_by_the_turn_before():
    async def run():
        service = HybridMemoryService()
        filler = [event(f"f{at}", f"Filler sentence about weather {at}.") for at in range(20)]
        asked = [event("q", "Where do you hide the spare key?"), event("a", "Under the third flowerpot.", "Ben")]
        await service.add_session_to_memory(session(*filler[:10], *asked, *filler[10:]))
        assert "Under the third flowerpot." in (await found(service, "hide spare key"))[:3]

    asyncio.run(run())


def test_uris_are_understood_and_wrong_ones_say_so(tmp_path):
    async def run():
        register_memory_service()
        create = get_service_registry().create_memory_service
        service = create(f"hybrid://{tmp_path}/memories?embedder=none&limit=3", agents_dir="/nowhere")
        assert service.memories.file.path == tmp_path / "memories" / "memories.sqlite"
        await service.add_memory(**WHO, memories=[entry(f"door {at}") for at in range(9)])
        assert len(await found(service, "door")) == 3
        assert create("hybrid://data/m.db", agents_dir=str(tmp_path)).memories.file.path == tmp_path / "data" / "m.db"
        assert create("hybrid://").memories.file.path is None

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


def test_what_is_masked_is_neither_searched_nor_embedded(tmp_path):
    memories = Memories(tmp_path, redact=lambda text: text.replace("hunter2", "[masked]"))
    memories.add("app", "ann", [Memory(name="m", text="My password is hunter2.")])
    assert memories.search("app", "ann", "hunter2")[0].scores["lexical"] > 0
    assert memories.search("app", "ann", "password")[0].memory.text == "My password is hunter2."
    scores = memories._of("app", "ann")._index._texts.lexical.scores
    assert scores(["hunter2"])[0].max() == 0 < scores(["password"])[0].max()


def test_odd_texts_are_kept_and_found(tmp_path):
    memories = Memories(tmp_path)
    memories.add("a\0pp", "an\ud800n", [Memory(name="n\0\ud800", text="a \0 lone \ud800 surrogate", session="s\0")])
    assert [one.memory.text for one in memories.search("a\0pp", "an\ud800n", "lone")] == ["a \0 lone \ufffd surrogate"]


# with a runner


class Answer(BaseLlm):
    """Calls a tool if it is told to, then answers; keeps what it was asked."""

    model: str = "gemini-2.5-flash"
    calls: list = []
    seen: list = []

    async def generate_content_async(self, llm_request, stream=False):
        self.seen.append(
            "\n".join(
                part.text or str(part.function_response or "")
                for content in llm_request.contents
                for part in content.parts
            )
        )
        part = types.Part(text="noted")
        if self.calls:
            part = types.Part(function_call=types.FunctionCall(name="load_memory", args={"query": self.calls.pop()}))
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


async def ask(service, text, *, tools=(), calls=(), plugins=()):
    model = Answer(calls=list(calls), seen=[])
    app = App(name="app", root_agent=LlmAgent(name="agent", model=model, tools=list(tools)), plugins=list(plugins))
    runner = Runner(app=app, session_service=InMemorySessionService(), memory_service=service)
    held = await runner.session_service.create_session(app_name="app", user_id="ann")
    async for _ in runner.run_async(user_id="ann", session_id=held.id, new_message=types.UserContent(text)):
        pass
    return model.seen


def remembering(count=0, embedder=None):
    service = HybridMemoryService(embedder=embedder)
    service.memories.add("app", "ann", [Memory(name="key", text="The spare key hangs behind the clock."), *said(count)])
    return service


def test_adks_own_tools_use_the_service():
    loaded = asyncio.run(ask(remembering(), "Hello", tools=[load_memory], calls=["spare key"]))
    assert "behind the clock" not in loaded[0]
    assert "behind the clock" in loaded[1]
    assert "behind the clock" in asyncio.run(ask(remembering(), "spare key?", tools=[preload_memory]))[0]


def test_the_pack_ranks_by_the_services_scores_and_replays():
    store = new_store()
    plugin = ContextPackPlugin(policy=PackPolicy(max_input_tokens=4_000), store=store)
    (seen,) = asyncio.run(ask(remembering(), "Where is the timepiece for the spare key?", plugins=[plugin]))
    assert "behind the clock" in seen
    (manifest,) = store.manifests()
    (fate,) = [one for one in manifest.rows if one.id == "mem_key"]
    assert set(fate.scores) == {"similarity", "mmr"}
    assert (manifest.encoder, manifest.memory_encoder) == ("none", StaticEmbedder().name)
    assert Replayer(store).replay(manifest).matches


def test_the_manifest_keeps_what_compared_memories_at_later_calls_and_where_nothing_did():
    store = new_store()
    plugin = ContextPackPlugin(policy=PackPolicy(max_input_tokens=4_000), store=store)
    asyncio.run(ask(remembering(), "The spare key?", tools=[load_memory], calls=["key"], plugins=[plugin]))
    assert [one.memory_encoder for one in store.manifests()] == [StaticEmbedder().name] * 2
    asyncio.run(ask(remembering(embedder="none"), "The spare key?", plugins=[plugin]))
    *_, manifest = store.manifests()
    assert manifest.memory_encoder == "none"


def test_further_memories_fill_what_is_left_and_no_more():
    service = remembering(300)

    def packed(window, **retrieval):
        store = new_store()
        policy = PackPolicy(max_input_tokens=window, retrieval=retrieval)
        asyncio.run(ask(service, "What is the code of ann?", plugins=[ContextPackPlugin(policy=policy, store=store)]))
        (manifest,) = store.manifests()
        return manifest, [one for one in manifest.rows if one.layer == "memory" and one.state == "kept"]

    manifest, few = packed(1_500)
    assert 12 < len(few) < 100
    assert 750 < manifest.request_tokens <= 0.9 * 1_500
    assert len(packed(16_000)[1]) == 150
    assert len(packed(16_000, memory_fill_k=0)[1]) == 12
    assert len(packed(16_000, memory_k=0)[1]) == 0


def test_of_long_memories_only_the_best_are_looked_at():
    service = HybridMemoryService(embedder="none")
    essays = [entry(f"essay {at} on rivers, " + f"and the sea of {at} " * 100, id=f"m{at}") for at in range(40)]
    asyncio.run(service.add_memory(**WHO, memories=essays))
    store = new_store()
    plugin = ContextPackPlugin(policy=PackPolicy(max_input_tokens=4_000), store=store)
    asyncio.run(ask(service, "What of rivers?", plugins=[plugin]))
    (manifest,) = store.manifests()
    assert len([one for one in manifest.rows if one.layer == "memory"]) == PackPolicy().retrieval.memory_k


# the file


def test_two_processes_write_and_read_one_file(tmp_path):
    path = tmp_path / "m.sqlite"
    workers = [
        subprocess.Popen([sys.executable, WORKER, path, user, "0", "60"], stdout=subprocess.DEVNULL)
        for user in ("ann", "ben")
    ]
    memories = Memories(path)
    seen = 0
    while any(one.poll() is None for one in workers):
        count = len(names(memories))
        assert count >= seen
        seen = count
        memories.add("app", "ann", [Memory(name=f"here{seen}", text="The code from here.")])
        time.sleep(0.01)
    assert [one.wait() for one in workers] == [0, 0]
    assert {f"m{at}" for at in range(60)} < set(names(memories))
    assert names(memories, user="ben") == sorted(f"m{at}" for at in range(60))
    assert names(Memories(path)) == names(memories)


def test_what_was_acknowledged_survives_a_kill(tmp_path):
    path = tmp_path / "m.sqlite"
    written = 0
    for at in range(5):
        worker = subprocess.Popen(
            [sys.executable, WORKER, path, "ann", str(written), "100000"], stdout=subprocess.PIPE, text=True
        )
        for _ in range(3 + 7 * at):
            written = int(worker.stdout.readline()) + 1
        worker.kill()
        rest = worker.stdout.read().split("\n")[:-1]
        worker.wait()
        worker.stdout.close()
        written = int(rest[-1]) + 1 if rest else written
    with sqlite3.connect(path) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    memories = Memories(path)
    held = set(names(memories))
    assert {f"m{at}" for at in range(written)} <= held <= {f"m{at}" for at in range(written + 1)}
    assert names(memories, f"number{written - 1}")[0]


def test_a_failed_write_leaves_nothing(tmp_path):
    memories = Memories(tmp_path)
    memories.add("app", "ann", said(2))
    with pytest.raises(TypeError):
        memories.add(
            "app", "ann", [Memory(name="new", text="code"), Memory(name="bad", text="code", metadata={"x": {1}})]
        )
    assert names(memories) == ["m0", "m1"]


def test_an_index_that_follows_ranks_like_one_made_anew(tmp_path):
    path = tmp_path / "m.sqlite"
    following, writing = Memories(path), Memories(path)
    for at in range(0, 60, 6):
        texts = [f"turn {n} of the talk about {'tea' if n % 3 else 'coffee'}" for n in range(at, at + 6)]
        writing.add("app", "ann", [Memory(name=f"t{at + n}", text=text, session="s") for n, text in enumerate(texts)])
        writing.delete("app", "ann", name=f"t{at + 2}")
        writing.add("app", "ann", [Memory(name=f"t{at + 1}", text=f"changed to coffee {at}", session="s")])
        following.search("app", "ann", "coffee")
    asked = [(one.memory, one.score) for one in following.search("app", "ann", "the talk about coffee", 100)]
    assert asked == [
        (one.memory, one.score) for one in Memories(path).search("app", "ann", "the talk about coffee", 100)
    ]
    assert len(asked) == 50


WRITES = st.lists(
    st.tuples(
        st.sampled_from(["add", "delete", "search"]),
        st.sampled_from(["ann", "ben"]),
        st.sampled_from(["app", "ann"]),
        st.sampled_from(["m1", "m2", "m3"]),
    ),
    max_size=25,
)


@settings(max_examples=40)
@given(WRITES)
def test_no_user_finds_what_is_anothers(writes):
    memories = Memories(embedder="none", max_users=2)
    there = {}
    for act, user, app, name in writes:
        if act == "add":
            memories.add(app, user, [Memory(name=name, text=f"secret of {app} {user}", session="s")], revive=True)
            there[app, user, name] = True
        elif act == "delete":
            memories.delete(app, user, name=name)
            there.pop((app, user, name), None)
        got = memories.search(app, user, "secret of app ann ben")
        assert {one.memory.text for one in got} <= {f"secret of {app} {user}"}
        assert sorted(one.memory.name for one in got) == sorted(n for a, u, n in there if (a, u) == (app, user))


def test_threads_of_many_users_never_mix(tmp_path):
    memories = Memories(tmp_path, embedder="none", max_users=3)
    wrong = []

    def work(user):
        for at in range(25):
            memories.add("app", user, [Memory(name=f"m{at}", text=f"The code of {user} is number{at}.")])
            got = memories.search("app", user, "code", 100)
            if len(got) != at + 1 or any(user not in one.memory.text for one in got):
                wrong.append((user, at))

    threads = [threading.Thread(target=work, args=(f"user{at}",)) for at in range(6)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert wrong == []


def test_ten_thousand_memories_are_written_found_and_read_again(tmp_path):
    memories = Memories(tmp_path)
    assert memories.add("app", "ann", said(10_000)) == 10_000
    assert memories.add("app", "ann", said(10_000)) == 0
    assert memories.search("app", "ann", "number7341", 1)[0].memory.name == "m7341"
    memories.delete("app", "ann", name="m7341")
    again = Memories(tmp_path)
    assert again.search("app", "ann", "number7340", 1)[0].memory.name == "m7340"
    assert all(one.memory.name != "m7341" for one in again.search("app", "ann", "number7341", 50))
    assert again.users() == [("app", "ann", 9_999)]


# what is kept beside the rows


class Letters:
    """A dimension a letter; counts what it embeds to be found."""

    local = True

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


def test_the_packaged_models_vectors_are_kept_too(tmp_path):
    with closing(Memories(tmp_path)) as memories:
        memories.add("app", "ann", badges(*range(10)))
        before = scored(memories)
    with sqlite3.connect(tmp_path / "memories.sqlite") as database:
        (lengths,) = database.execute("SELECT group_concat(DISTINCT length(vector)) FROM vectors").fetchone()
        assert (lengths, database.execute("SELECT count(*) FROM vectors").fetchone()) == ("256", (10,))
    in_process = Memories()
    in_process.add("app", "ann", badges(*range(10)))
    assert before == scored(in_process)
    with closing(Memories(tmp_path)) as memories:
        assert before == scored(memories)


def test_masked_otherwise_other_vectors_are_made(tmp_path):
    for redact, embedded in ((None, 100), (str.upper, 100), (str.upper, 100), (None, 0)):
        embedder = Letters()
        with closing(Memories(tmp_path, embedder=embedder, redact=redact)) as memories:
            memories.add("app", "ann", badges(*range(100)))
            assert len(scored(memories)) == 100
        assert embedder.entries == embedded


def test_a_file_that_takes_no_vectors_is_searched(tmp_path):
    with closing(Memories(tmp_path, embedder="none")) as memories:
        memories.add("app", "ann", badges(*range(10)))
    with sqlite3.connect(tmp_path / "memories.sqlite") as database:
        database.execute("CREATE TRIGGER full BEFORE INSERT ON vectors BEGIN SELECT RAISE(ABORT, 'disk full'); END")
    with closing(Memories(tmp_path, embedder=Letters())) as memories:
        assert len(scored(memories)) == 10


FORMER = """
CREATE TABLE memories (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    app TEXT NOT NULL, user TEXT NOT NULL, session TEXT NOT NULL, name TEXT NOT NULL,
    text TEXT, role TEXT, author TEXT, timestamp TEXT, metadata TEXT, digest BLOB, origin INTEGER,
    UNIQUE (app, user, session, name));
CREATE TABLE vectors (
    digest BLOB NOT NULL, embedder TEXT NOT NULL, vector BLOB NOT NULL, PRIMARY KEY (digest, embedder)) WITHOUT ROWID;
CREATE TABLE blocks (
    id INTEGER PRIMARY KEY, app TEXT NOT NULL, user TEXT NOT NULL, made TEXT NOT NULL,
    first INTEGER NOT NULL, last INTEGER NOT NULL, rows INTEGER NOT NULL, digest TEXT NOT NULL, data BLOB NOT NULL);
CREATE INDEX blocks_by_rows ON blocks (app, user, first, last, made, rows);
CREATE TRIGGER memories_gone AFTER DELETE ON memories BEGIN
    DELETE FROM blocks WHERE app = old.app AND user = old.user AND first <= old.number AND last >= old.number;
    END;
PRAGMA user_version = 2;
"""
"""What made a file of the format before this one, whose rows had numbers of their origins and blocks of an index."""


def test_a_file_of_the_former_format_loses_nothing(tmp_path):
    path = tmp_path / "m.sqlite"
    with closing(sqlite3.connect(path)) as database:
        database.executescript(FORMER)
        for memory in badges(*range(30), session="s"):
            database.execute(
                """INSERT INTO memories
                (app, user, session, name, text, role, author, timestamp, metadata, origin, digest)
                VALUES ('app', 'ann', ?, ?, ?, ?, ?, ?, '{"a":1}', 7, ?)""",
                (
                    *(memory.session, memory.name, memory.text, memory.role, memory.author, memory.timestamp),
                    digest_of(f"Ann: {memory.text}"),
                ),
            )
        database.execute("INSERT INTO memories (app, user, session, name) VALUES ('app', 'ann', 's', 'gone')")
        database.execute("INSERT INTO blocks VALUES (1, 'app', 'ann', '[]', 1, 31, 30, 'x', 'the blocks of before')")
        database.commit()
    fresh = Memories(embedder=Letters())
    fresh.add("app", "ann", [replace(memory, metadata={"a": 1}) for memory in badges(*range(30), session="s")])
    with closing(Memories(path, embedder=Letters())) as memories:
        assert scored(memories) == scored(fresh)
        memories.add("app", "ann", [Memory(name="gone", text="back", session="s")])
        assert scored(memories) == scored(fresh)
        for one in (memories, fresh):
            one.add("app", "ann", badges(3, session="s", text="a badge that is new"))
            one.delete("app", "ann", name="m4")
        assert scored(memories) == scored(fresh)
    with closing(sqlite3.connect(path)) as database:
        names = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
        assert not names & {"blocks", "blocks_by_rows", "memories_gone"}
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert not any(b"the blocks of before" in one.read_bytes() for one in tmp_path.iterdir())
    with closing(Memories(path, embedder=Letters())) as memories:
        assert scored(memories) == scored(fresh)


ACTS = st.lists(
    st.tuples(st.sampled_from(["add", "change", "delete", "search", "reopen", "lose"]), st.integers(0, 12)), max_size=30
)


@settings(max_examples=60)
@given(ACTS)
def test_what_is_found_does_not_depend_on_who_wrote_it_or_what_is_kept(tmp_path_factory, acts):
    path = tmp_path_factory.mktemp("acts") / "m.sqlite"
    memories, other = Memories(path, embedder=Letters()), Memories(path, embedder=Letters())
    plain = Memories(embedder=Letters())
    query = "badge 3 change"
    for act, at in acts:
        if act in ("add", "change"):
            new = [Memory(name=f"m{at}", text=f"badge {at} {act}", session="s" if at % 2 else "")]
            for one in (memories, plain):
                one.add("app", "ann", new, revive=True)
        elif act == "delete":
            for one in (other, plain):
                one.delete("app", "ann", name=f"m{at}")
        elif act == "search":
            assert scored(other, query) == scored(plain, query)
        elif act == "reopen":
            memories.close()
            memories = Memories(path, embedder=Letters())
        else:
            with closing(sqlite3.connect(path)) as database:
                database.execute("DELETE FROM vectors")
                database.commit()
    expected = scored(plain, query)
    assert scored(memories, query) == expected
    assert scored(Memories(path, embedder=Letters()), query) == expected


def test_a_writer_that_is_killed_leaves_a_sound_file():
    script = Path(__file__).parent / "bench" / "memory_kills.py"
    done = subprocess.run([sys.executable, script, "--kills", "12"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("12 kills, ")


def test_more_than_a_file_is_made_for_names_the_engine_once(tmp_path, caplog):
    with patch.object(library, "MANY", 20):
        for where, lines in ((tmp_path, 1), (None, 0)):
            caplog.clear()
            with closing(Memories(where, embedder="none")) as memories:
                memories.add("app", "ann", badges(*range(15)))
                assert len(scored(memories)) == 15
                assert not caplog.records
                memories.add("app", "ann", badges(*range(15, 40)))
                assert len(scored(memories)) == 40
            assert [record.levelname for record in caplog.records] == ["WARNING"] * lines
            assert caplog.text.count('HybridMemoryService("postgresql://') == lines


def test_the_command_line_searches_a_services_file(tmp_path):
    def run(*arguments, code=0):
        result = CliRunner().invoke(main, ["search", "key", *arguments])
        assert result.exit_code == code, result.output
        return result

    memories = Memories(tmp_path / "m.sqlite")
    memories.add("app", "ann", said(3))
    memories.add("app", "ben", [Memory(name="key", text="The key is behind the clock.", author="Ben")])
    where = ("--memory", str(tmp_path / "m.sqlite"))
    (hit,) = json.loads(run(*where, "--user", "ben", "--json").stdout)
    assert (hit["id"], hit["speaker"], hit["text"]) == ("key", "Ben", "The key is behind the clock.")
    assert "holds the memories of 2 users that fit" in run(*where, code=3).stderr
    assert "--app app --user ben" in run(*where, code=3).stderr
