"""Long-term memory: the file, the index that follows it, and the ADK service over both."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing

import numpy as np
import pytest
from google.adk.cli.service_registry import get_service_registry
from google.adk.memory.memory_entry import MemoryEntry
from google.genai import types

from aether_context.adk import HybridMemoryService, register_memory_service
from aether_context.errors import SearchIndexError, StoreError
from aether_context.memory import Memories, Memory
from aether_context.retrieval.embedders import unit

WHO = {"app_name": "app", "user_id": "ann"}


def entry(text, **more):
    return MemoryEntry(content=types.Content(role="user", parts=[types.Part(text=text)]), **more)


async def found(service, query, **who):
    response = await service.search_memory(**{**WHO, **who}, query=query)
    return [one.content.parts[0].text for one in response.memories]


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
