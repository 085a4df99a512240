"""Long-term memory: the file, the index that follows it, and the ADK service over both."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

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
from aether_context.cli import main
from aether_context.errors import SearchIndexError, StoreError
from aether_context.memory import Memories, Memory
from aether_context.retrieval.embedders import StaticEmbedder
from aether_context.retrieval.lexical import key_of
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
    index = memories._of("app", "ann")._index
    terms = index.part(index.living)["terms"]
    assert key_of("hunter2") not in terms
    assert key_of("password") in terms


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
