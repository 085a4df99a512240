"""Vectors that were costly to make: kept for one user, in memory and in the store, and never needed."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest
from failing import FailingFileSystem
from hypothesis import given, settings
from hypothesis import strategies as st
from packs import IDENTITY
from scripted import Chat, Memories, new_store, remembered

from aether_context import PackPolicy, PackStore
from aether_context.adk import ContextPackPlugin
from aether_context.adk.request import recall
from aether_context.canonical import digest_of
from aether_context.retrieval import HybridIndex
from aether_context.retrieval.embedders import (
    CachedEmbedder,
    Purpose,
    StaticEmbedder,
    Vectors,
    register,
)
from aether_context.store import vectors as shelf
from aether_context.store.retention import DAY_SECONDS, Rules, carry_out, carry_out_forgetting, forget, plan
from aether_context.store.vectors import UserVectors, tidy

TEXTS = ["The keys are under the mat.", "My automobile is in the garage.", "Soup on Fridays.", ""]
ENCODER = "sentence-transformers:some/model"
static = StaticEmbedder()
_numbers = itertools.count(1)


class Costly:
    """The static model under another name; ``asked`` are the entries that it embedded."""

    local, name = True, ENCODER

    def __init__(self) -> None:
        self.asked: list[str] = []

    def embed(self, texts: Sequence[str], *, purpose: Purpose = "entry") -> Vectors:
        if purpose == "entry":
            self.asked += texts
        return static.embed(texts)


def at_once(write: Callable[[], None]) -> None:
    write()


def opened(store: PackStore | None, user: str = "ann", **settings: float) -> tuple[UserVectors, Costly]:
    """What a process has of a user's vectors, as if it had just begun."""
    costly = Costly()
    return UserVectors(costly, "shop", user, store, at_once, **settings), costly


def batches(store: PackStore, user: str = "ann") -> list[str]:
    return [file.path for file in store.vector_files("shop", user, ENCODER)]


@pytest.fixture
def store(place) -> PackStore:
    url, options = place
    return PackStore(url, **options)


@pytest.fixture
def failing() -> Iterator[PackStore]:
    FailingFileSystem.down, FailingFileSystem.refused = False, ()
    yield PackStore(f"failing://vectors-{next(_numbers)}")
    FailingFileSystem.down, FailingFileSystem.refused = False, ()


def test_another_process_embeds_nothing_again(store):
    first, costly = opened(store)
    made = first.embed(TEXTS)
    assert costly.asked == TEXTS
    assert len(batches(store)) == 1
    second, costly = opened(store)
    assert second.embed(TEXTS[::-1]).tobytes() == made[::-1].tobytes()
    assert second.embed([]).shape == (0, 256)
    assert costly.asked == []
    second.embed([*TEXTS, "One more."])
    assert costly.asked == ["One more."]
    assert len(batches(store)) == 2


def test_what_is_kept_ranks_as_what_is_made(store):
    texts = [f"Note {at}: {word} and {other}." for at, (word, other) in enumerate(itertools.permutations("abcde", 2))]
    names = [str(at) for at in range(len(texts))]
    embedders = [Costly(), opened(store)[0], opened(store)[0]]
    found = [
        HybridIndex.from_texts(names, texts, embedder=one).search("a with c, note 7", limit=20) for one in embedders
    ]
    assert [hit.scores for hit in found[0]] == [hit.scores for hit in found[1]] == [hit.scores for hit in found[2]]
    assert [hit.id for hit in found[0]] == [hit.id for hit in found[2]]
    assert any(hit.scores["cosine"] for hit in found[0])


@settings(max_examples=30)
@given(st.lists(st.tuples(st.sampled_from(["ann", "bob", "Ann", "ann/bob"]), st.sampled_from(TEXTS)), max_size=12))
def test_nobody_finds_the_vectors_of_another_user(asked):
    store = new_store()
    said: dict[str, set[str]] = {}
    for user, text in asked:
        embedder, costly = opened(store, user)
        embedder.embed([text])
        assert costly.asked == ([] if text in said.setdefault(user, set()) else [text])
        said[user].add(text)


def test_the_store_holds_no_word_and_one_byte_a_dimension(store):
    opened(store)[0].embed(TEXTS)
    (file,) = store.vector_files("shop", "ann", ENCODER)
    (data,) = store.vectors([file])
    assert file.size == len(data) < len(TEXTS) * (256 + 16) + 200
    assert b"keys" not in data
    assert "/shop/ann/vectors/" in file.path


def test_many_small_batches_become_one(store, monkeypatch):
    monkeypatch.setattr(shelf, "_MOST_SMALL", 4)
    embedder, _ = opened(store)
    for at in range(12):
        embedder.embed([f"text {at}"])
        assert len(batches(store)) <= 5
    again, costly = opened(store)
    again.embed([f"text {at}" for at in range(12)])
    assert costly.asked == []
    for at in range(12):  # each process writes one batch, and knows of the others
        opened(store)[0].embed([f"word {at}"])
    assert len(batches(store)) <= 6


def test_batches_of_another_day_are_left_to_their_age(monkeypatch):
    store = new_store()
    monkeypatch.setattr(shelf, "_MOST_SMALL", 2)
    for at in range(3):
        store.write_vectors("shop", "ann", ENCODER, shelf._packed({bytes([at] * 16): bytes(4)}))
    held = store.vector_files("shop", "ann", ENCODER)
    aged = [*held[:1], *(file._replace(modified=file.modified - DAY_SECONDS) for file in held[1:])]
    monkeypatch.setattr(store, "vector_files", lambda *_: aged)
    assert tidy(store, "shop", "ann", ENCODER) == 1
    monkeypatch.undo()
    assert len(batches(store)) == 3


def test_the_oldest_batches_go(monkeypatch):
    store = new_store()
    monkeypatch.setattr(shelf, "_MOST_FILES", 2)
    paths = [store.write_vectors("shop", "ann", ENCODER, bytes([at])) for at in range(4)]
    assert tidy(store, "shop", "ann", ENCODER) == 2
    assert batches(store) == [paths[3], paths[2]]


def test_what_is_forgotten_while_batches_become_one_stays_forgotten(monkeypatch):
    store = new_store()
    monkeypatch.setattr(shelf, "_MOST_SMALL", 2)
    for at in range(4):
        store.write_vectors("shop", "ann", ENCODER, shelf._packed({bytes([at] * 16): bytes(4)}))
    written = store.write_vectors

    def forgotten(*args):
        carry_out_forgetting(store, forget(store, "shop", "ann"))
        return written(*args)

    monkeypatch.setattr(store, "write_vectors", forgotten)
    assert tidy(store, "shop", "ann", ENCODER) == 0
    assert batches(store) == []


def test_a_damaged_batch_is_passed_over(store):
    embedder, _ = opened(store)
    embedder.embed(TEXTS[:2])
    embedder.embed(TEXTS[2:])
    store.files.replace(batches(store)[0], b"no batch")
    again, costly = opened(store)
    again.embed(TEXTS)
    assert costly.asked in (TEXTS[:2], TEXTS[2:])


def test_what_is_used_stays_in_memory_and_the_rest_goes(monkeypatch):
    monkeypatch.setattr(shelf, "MOST_VECTORS", 3)
    embedder, costly = opened(None)
    embedder.embed(["a", "b", "c"])
    embedder.embed(["a"])
    embedder.embed(["d"])
    embedder.embed(["a", "c", "d"])
    assert costly.asked == ["a", "b", "c", "d"]
    embedder.embed(["b"])
    assert costly.asked[-1] == "b"


def test_a_store_that_is_down_costs_vectors_made_again(failing, monkeypatch):
    opened(failing)[0].embed(TEXTS)
    FailingFileSystem.down = True
    embedder, costly = opened(failing)
    embedder.embed(TEXTS)
    embedder.embed(TEXTS)
    assert costly.asked == TEXTS
    FailingFileSystem.down = False
    embedder.embed(["later"])
    assert len(batches(failing)) == 2
    monkeypatch.setattr(shelf.time, "monotonic", lambda: 1e12)
    embedder.embed(TEXTS)
    assert costly.asked == [*TEXTS, "later"]


def test_a_store_that_is_slow_is_not_waited_for(monkeypatch):
    store, gate = new_store(), threading.Event()
    opened(store)[0].embed(TEXTS)
    listed = store.vector_files

    def late(*place):
        gate.wait(10)
        return listed(*place)

    monkeypatch.setattr(store, "vector_files", late)
    embedder, costly = opened(store, wait_seconds=0.01)
    embedder.embed(TEXTS[:1])
    assert costly.asked == TEXTS[:1]
    gate.set()
    for thread in threading.enumerate():
        if thread.name == "aether-context-vectors":
            thread.join()
    embedder.embed(TEXTS)
    assert costly.asked == TEXTS[:1]


# retention


def test_they_go_with_age_with_their_user_and_with_any_session(store):
    opened(store)[0].embed(TEXTS)
    opened(store, "bob")[0].embed(TEXTS)
    (found,) = [plan(store, owner, Rules(), now(6)) for owner in store.owners(user="ann")]
    assert found.caches == ()
    (found,) = [plan(store, owner, Rules(), now(8)) for owner in store.owners(user="ann")]
    assert [file.path for file in found.caches] == batches(store)
    carry_out(store, found)
    assert (len(batches(store)), len(batches(store, "bob"))) == (0, 1)
    opened(store)[0].embed(TEXTS)
    carry_out_forgetting(store, forget(store, "shop", "ann", "s1"))
    assert (len(batches(store)), len(batches(store, "bob"))) == (0, 1)
    carry_out_forgetting(store, forget(store, "shop", "bob"))
    assert batches(store, "bob") == []


def now(days: float) -> float:
    return shelf.time.time() + days * DAY_SECONDS


# in a pack


def talk(store: PackStore, costly: Costly, *, user: str = "ann", cached: bool = True, **more: object) -> Chat:
    register("costly", lambda model: CachedEmbedder(costly) if cached else costly)
    policy = PackPolicy(max_input_tokens=4_000, retrieval={"embedder": "costly"}, **more)
    memory = Memories(*map(remembered, TEXTS[:3]))
    plugin = ContextPackPlugin(policy=policy, store=store, on_error="raise")
    return Chat(plugin=plugin, memory=memory, user=user, script=["Fine."] * 4)


def test_a_second_process_takes_the_vectors_of_memories_from_the_store():
    store = new_store()
    first, second, other = Costly(), Costly(), Costly()
    chat = talk(store, first)
    chat.say("Where is the car parked?")
    assert sorted(first.asked) == sorted(f"user: {text}" for text in TEXTS[:3])
    again = talk(store, second)
    again.say("Where is the car parked?")
    assert second.asked == []
    talk(store, other, user="bob").say("Where is the car parked?")
    assert len(other.asked) == 3
    bare = talk(new_store(), Costly(), cached=False)
    bare.say("Where is the car parked?")
    rows = [[(row.id, row.scores, row.state) for row in one.manifests()[-1].rows] for one in (chat, again, bare)]
    assert rows[0] == rows[1] == rows[2]
    assert chat.manifests()[-1].encoder == ENCODER
    chat.replays()


@pytest.mark.parametrize("record", ["hashes", "off"])
def test_a_policy_that_records_no_texts_keeps_vectors_in_memory_alone(record):
    store, costly = new_store(), Costly()
    chat = talk(store, costly, record=record)
    chat.say("Where is the car parked?", "And the keys?")
    assert len(costly.asked) == 3
    assert batches(store) == []


def test_the_model_inside_the_package_is_not_worth_keeping():
    store = new_store()
    chat = Chat(store=store, memory=Memories(*map(remembered, TEXTS[:3])), policy=PackPolicy(max_input_tokens=4_000))
    chat.say("Where is the car parked?")
    assert chat.manifests()[-1].encoder == static.name
    assert not any("/vectors/" in file.path for file in store.files.below(store.files.root))


def test_vectors_are_known_by_every_letter():
    assert len({digest_of(text) for text in ("a", "A", "a ", "", "\ud800")}) == 5
    assert np.unique([len(digest_of(text)) for text in TEXTS]).tolist() == [16]


def test_of_many_users_those_seen_last_are_remembered(monkeypatch):
    monkeypatch.setattr(recall, "_MOST_SHELVES", 2)
    shelves = recall.Shelves(new_store(), at_once)
    embedder = CachedEmbedder(Costly())

    def of(user):
        return shelves.of(embedder, IDENTITY._replace(user=user), PackPolicy())

    first = of("ann")
    assert of("ann") is first
    assert of("bob") is not first
    of("eve")
    assert of("ann") is not first
