"""Long-term memory: the file, the index that follows it, and the ADK service over both."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from google.adk.agents import LlmAgent
from google.adk.apps import App
from google.adk.cli.service_registry import get_service_registry
from google.adk.memory.memory_entry import MemoryEntry
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.adk.tools import load_memory, preload_memory
from google.genai import types
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import new_store

from aether_context import PackPolicy
from aether_context.adk import ContextPackPlugin, HybridMemoryService, register_memory_service
from aether_context.errors import EmbeddingError, SearchIndexError, StoreError
from aether_context.memory import Memories, Memory, file
from aether_context.memory.records import owner_of
from aether_context.retrieval.embedders import StaticEmbedder, unit
from aether_context.store.replay import Replayer

WHO = {"app_name": "app", "user_id": "ann"}


def entry(text, **more):
    return MemoryEntry(content=types.Content(role="user", parts=[types.Part(text=text)]), **more)


async def found(service, query, **who):
    response = await service.search_memory(**{**WHO, **who}, query=query)
    return [one.content.parts[0].text for one in response.memories]


def said(count, user="ann"):
    return [Memory(name=f"m{at}", text=f"The code of {user} is number{at}.") for at in range(count)]


# the service


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


def test_what_is_masked_is_neither_searched_nor_embedded(tmp_path):
    memories = Memories(tmp_path, redact=["password"])
    memories.add("app", "ann", [Memory(name="m", text="My password is hunter2")])
    assert memories.search("app", "ann", "hunter2") == []
    assert memories.search("app", "ann", "password")[0].memory.text == "My password is [password]"
    memories.close()
    assert not any(b"hunter2" in path.read_bytes() for path in tmp_path.iterdir())


@pytest.mark.parametrize("deletes", [False, True])
def test_a_process_goes_on_where_a_backup_gives_the_numbers_of_rows_again(tmp_path, deletes):
    path = tmp_path / "memories.sqlite"
    here, there = Memories(path), Memories(path)
    here.add("app", "ann", [Memory(name="a", text="The keys lie under the sofa.")])
    with closing(sqlite3.connect(path)) as file, closing(sqlite3.connect(tmp_path / "backup")) as backup:
        file.backup(backup)
        here.add("app", "ann", [Memory(name="b", text="The bike is red."), Memory(name="c", text="My sister sails.")])
        assert here.search("app", "ann", "sister")[0].memory.name == "c"
        backup.backup(file)
    there.add("app", "ann", [Memory(name="x", text="A parrot named Coco.")])
    if deletes:
        there.delete("app", "ann", name="x")
    else:
        there.add("app", "ann", [Memory(name="y", text="The pin is 4711.")])
    here.search("app", "ann", "sister bike")
    found = here.search("app", "ann", "parrot Coco" if not deletes else "keys", limit=1)
    assert [hit.memory.name for hit in found] == ["a" if deletes else "x"]


class Failing(StaticEmbedder):
    """Embeds texts, and fails at queries."""

    def embed(self, texts, *, purpose="entry"):
        if purpose == "query":
            raise EmbeddingError("static", "out of memory")
        return super().embed(texts, purpose=purpose)


def test_words_alone_find_where_a_query_cannot_be_embedded(tmp_path):
    memories = Memories(tmp_path, embedder=Failing())
    memories.add("app", "ann", [Memory(name="a", text="The keys lie under the sofa.")])
    assert [hit.memory.name for hit in memories.search("app", "ann", "keys")] == ["a"]


def test_indexes_of_others_make_room_for_a_user_with_many_memories(monkeypatch, tmp_path):
    monkeypatch.setattr("aether_context.memory.file._MOST_KEPT", 5)
    memories = Memories(tmp_path, embedder="none")
    for user in ("ann", "ben", "cay"):
        memories.add("app", user, [Memory(name=f"m{at}", text=f"Key {at} of {user} is red.") for at in range(3)])
    for user in ("ann", "ben", "ann", "cay", "ben"):
        assert {hit.memory.text[-len("ann is red.") :][:3] for hit in memories.search("app", user, "red key")} == {user}
        assert memories.database._indexes.keys() <= {owner_of("app", name) for name in ("ann", "ben", "cay")}
    memories.search("app", "ben", "key")
    assert list(memories.database._indexes) == [owner_of("app", "ben")]


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
    assert (manifest.embedder, manifest.memory_embedder) == ("none", StaticEmbedder().name)
    assert Replayer(store).replay(manifest).matches


def test_the_manifest_keeps_what_compared_memories_at_later_calls_and_where_nothing_did():
    store = new_store()
    plugin = ContextPackPlugin(policy=PackPolicy(max_input_tokens=4_000), store=store)
    asyncio.run(ask(remembering(), "The spare key?", tools=[load_memory], calls=["key"], plugins=[plugin]))
    assert [one.memory_embedder for one in store.manifests()] == [StaticEmbedder().name] * 2
    asyncio.run(ask(remembering(embedder="none"), "The spare key?", plugins=[plugin]))
    *_, manifest = store.manifests()
    assert manifest.memory_embedder == "none"


def test_further_memories_fill_what_is_left_and_no_more():
    service = remembering(300)

    def packed(window, **retrieval):
        store = new_store()
        policy = PackPolicy(max_input_tokens=window, retrieval=retrieval)
        asyncio.run(ask(service, "What is the code of ann?", plugins=[ContextPackPlugin(policy=policy, store=store)]))
        (manifest,) = store.manifests()
        return manifest, [one for one in manifest.rows if one.layer == "memory" and one.form == "whole"]

    manifest, few = packed(1_500)
    assert 12 < len(few) < 100
    assert 750 < manifest.request_tokens <= 0.9 * 1_500
    assert len(packed(16_000)[1]) == 150
    assert len(packed(16_000, memory_k=11)[1]) == 11
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


def test_words_that_are_deleted_are_in_no_file(tmp_path):
    memories = Memories(tmp_path / "m.sqlite")
    memories.add("app", "ann", [Memory(name="e1", text="the zanzibar door"), Memory(name="e2", text="the blue door")])
    memories.search("app", "ann", "zanzibar")
    memories.delete("app", "ann", name="e1")
    assert not any(b"zanzibar" in one.read_bytes() for one in tmp_path.iterdir())


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


# what is kept beside the rows


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


def test_the_packaged_models_vectors_are_kept_too(tmp_path):
    with closing(Memories(tmp_path)) as memories:
        memories.add("app", "ann", badges(*range(10)))
        before = scored(memories)
    with sqlite3.connect(tmp_path / "memories.sqlite") as database:
        assert database.execute("SELECT length(vector), count(*) FROM memories GROUP BY 1").fetchall() == [(256, 10)]
    in_process = Memories()
    in_process.add("app", "ann", badges(*range(10)))
    assert before == scored(in_process)
    with closing(Memories(tmp_path)) as memories:
        assert before == scored(memories)


def test_a_mask_holds_for_what_is_written_from_then_on(tmp_path):
    for redact, embedded in (((), 100), ([r"number\d+"], 0)):
        embedder = Letters()
        with closing(Memories(tmp_path, embedder=embedder, redact=redact)) as memories:
            memories.add("app", "ann", badges(*range(100)))
            assert len(scored(memories)) == 100
        assert embedder.entries == embedded


def test_a_file_that_takes_no_vectors_is_searched(tmp_path):
    with closing(Memories(tmp_path, embedder="none")) as memories:
        memories.add("app", "ann", badges(*range(10)))
    with sqlite3.connect(tmp_path / "memories.sqlite") as database:
        database.execute("CREATE TRIGGER full BEFORE UPDATE ON memories BEGIN SELECT RAISE(ABORT, 'disk full'); END")
    with closing(Memories(tmp_path, embedder=Letters())) as memories:
        assert len(scored(memories)) == 10


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
                database.execute("UPDATE memories SET embedder = '', vector = NULL")
                database.commit()
    expected = scored(plain, query)
    assert scored(memories, query) == expected
    assert scored(Memories(path, embedder=Letters()), query) == expected


def test_a_writer_that_is_killed_leaves_a_sound_file():
    script = Path(__file__).parent / "memory_kills.py"
    done = subprocess.run([sys.executable, script, "--kills", "12"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("12 kills, ")


def test_more_than_a_file_is_made_for_names_the_engine_once(tmp_path, caplog):
    with patch.object(file, "MANY", 20):
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
