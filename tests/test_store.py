"""The store: written once, whole or not at all, by content, inside its own folder."""

from __future__ import annotations

import json
import threading
import time

import fsspec
import packs
import pytest
from failing import FailingFileSystem
from hypothesis import given
from hypothesis import strategies as st
from pack_inputs import recording
from plans import loop, turns
from scripted import Chat, look_up

from aether_context import Manifest, PackPolicy, PackStore, replay
from aether_context.errors import (
    ManifestError,
    PackNotFound,
    ReplayIncomplete,
    ReplayMismatch,
    SchemaVersionError,
    StoreError,
)
from aether_context.store import schema
from aether_context.store.files import Files, segment
from aether_context.store.replay import Replayer
from aether_context.store.verification import Verifier


@pytest.fixture
def store(place):
    url, options = place
    return PackStore(url, **options)


def test_a_pack_comes_back_as_it_was_written(store):
    written = store.write(recording())
    (read,) = store.manifests()
    assert read == written
    read.verify()
    assert store.manifest(written.pack_id[:-3]) == written
    assert store.manifest(written.pack_id, app=written.app, user=written.user) == written
    for other in ({"user": "somebody"}, {"app": "another"}):
        with pytest.raises(PackNotFound):
            store.manifest(written.pack_id, **other)


def test_writing_again_changes_nothing(store):
    assert store.write(recording()) == store.write(recording())
    assert len(list(store.manifests())) == 1


def test_another_pack_under_the_same_id_gets_the_next_number(store):
    first = store.write(recording())
    second = store.write(recording("What is my cat called?"))
    assert second.pack_id == first.pack_id + "-2"
    assert replay(second, store).matches
    assert len(list(store.manifests())) == 2


def test_manifests_come_in_the_order_of_their_packs(store):
    for at in (3, 1, 2):
        store.write(recording(last_event_time=1_768_900_000.0 + at, call=at))
    assert [one.call for one in store.manifests()] == [1, 2, 3]


def test_manifests_are_filtered_by_app_user_and_session(store):
    for user in ("ann", "bob"):
        for session in ("s1", "s2"):
            store.write(recording(user=user, session=session))
    assert len(list(store.manifests(user="ann"))) == 2
    assert [one.session for one in store.manifests(app="app", user="bob", session="s2")] == ["s2"]
    assert list(store.manifests(user="eve")) == []


@given(st.text(max_size=200), st.text(max_size=200))
def test_segments_are_safe_bounded_and_tell_names_apart(one, other):
    name = segment(one)
    assert 0 < len(name) <= 64
    assert "/" not in name
    assert "\\" not in name
    assert not name.startswith(".")
    assert name.isascii()
    if one != other:
        assert segment(one).casefold() != segment(other).casefold()


@pytest.mark.parametrize(
    "name", ["../../etc", "a/b", "..", ".", "", "CON", "nul.txt", "x" * 5_000, "Ärger", "a\0b", "blobs", "packs"]
)
def test_hostile_names_stay_inside_the_store(tmp_path, name):
    root = tmp_path / "inner" / "packs"
    store = PackStore(root)
    store.write(recording(app=name, user=name, session=name))
    (manifest,) = store.manifests(app=name, user=name, session=name)
    assert (manifest.app, manifest.user, manifest.session) == (name, name, name)
    outside = [path for path in tmp_path.rglob("*") if path.is_file() and root not in path.parents]
    assert outside == []
    named = [json.loads(path.read_text())["name"] for path in root.rglob("name.json")]
    assert named == [name] * 3


def test_a_flipped_bit_of_a_pack_is_found_wherever_it_is(tmp_path):
    store = PackStore(tmp_path)
    manifest = store.write(recording(), {"input_tokens": 5})
    (path,) = tmp_path.rglob("pack_*.json.gz")
    good = path.read_bytes()
    for at in range(len(good)):
        path.write_bytes(good[:at] + bytes([good[at] ^ (1 << at % 8)]) + good[at + 1 :])
        assert Verifier(store).fault(store.place(manifest))
    path.write_bytes(good)
    assert not Verifier(store).fault(store.place(manifest))


@pytest.mark.parametrize(("line", "fault"), [(0, "its digest says"), (1, "are not sha256:")])
def test_a_line_that_was_written_anew_is_found(tmp_path, line, fault):
    store = PackStore(tmp_path)
    manifest = store.write(recording())
    packs.rewrite(store, manifest, lambda text: text.replace(b"user", b"usor", 1), line)
    assert fault in Verifier(store).fault(store.place(manifest))


def test_hashes_only_keeps_no_text(store):
    secret = "my dog Fenris bites"
    manifest = store.write(recording(secret, PackPolicy(record="hashes")))
    held = store.files.below(store.files.root)
    assert len(held) >= 1
    assert not any(b"Fenris" in store.files.read(one.path) for one in held)
    manifest.verify()
    with pytest.raises(ReplayIncomplete, match="recorded hashes only"):
        replay(manifest, store)


def test_a_replay_with_another_policy_says_what_it_would_have_sent(store):
    manifest = store.write(recording())
    again = replay(manifest, store, PackPolicy(retrieval={"memory_k": 0}, max_input_tokens=16_000))
    assert not again.matches
    assert "Rex" not in again.request
    assert "Rex" in replay(manifest, store).request


def test_each_pack_of_a_chain_replays_alone_where_several_hold_no_new_text():
    script = [step for _ in range(3) for step in (*loop(2), "done")]  # the same calls and results in each turn
    chat = Chat(script=script, tools=[look_up], policy=PackPolicy(max_input_tokens=2_500))
    chat.say(*turns(3))
    texts = [manifest.texts for manifest in chat.manifests()]
    assert len(set(texts)) < len(texts)
    for manifest in chat.manifests():
        assert replay(manifest, chat.store).matches


def test_a_replay_names_the_stage_that_differs(store):
    made = recording()
    manifest = store.write(made.changed(window=9_000))
    with pytest.raises(ReplayMismatch) as caught:
        Replayer(store).replay(manifest.model_copy(update={"checksum": "sha256:0"}))
    assert caught.value.stage == "allocate"


def test_a_later_schema_is_refused_by_name():
    text = recording().manifest.to_json().replace('"schema_version":1', '"schema_version":99')
    with pytest.raises(SchemaVersionError, match="99"):
        Manifest.parse(text)


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", '{"schema_version":1}', '{"schema_version":"x"}'])
def test_what_is_no_manifest_is_refused(text):
    with pytest.raises(ManifestError):
        Manifest.parse(text)


def test_the_published_schema_takes_a_manifest():
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.validate(json.loads(recording().manifest.to_json()), schema())


def test_an_unknown_protocol_is_refused():
    with pytest.raises(StoreError, match="nosuch"):
        PackStore("nosuch://x")


def test_a_pack_that_is_not_there_is_named(store):
    with pytest.raises(PackNotFound, match="pack_nowhere"):
        store.manifest("pack_nowhere")


def test_of_many_writers_each_pack_is_there_once_and_whole(place):
    url, options = place
    made = [recording(call=at, last_event_time=float(at)) for at in range(20)]

    def work() -> None:
        store = PackStore(url, **options)
        for one in made:
            store.write(one)

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    store = PackStore(url, **options)
    found = list(store.manifests())
    assert len(found) == 20
    for one in found:
        one.verify()
        assert replay(one, store).matches
    assert not [one for one in store.files.below(store.files.root) if ".draft-" in one.path]


def test_an_outcome_is_written_once(store):
    manifest = store.write(recording())
    assert store.outcome(manifest) is None
    store.write_outcome(manifest, {"input_tokens": 5})
    store.write_outcome(manifest, {"input_tokens": 7})
    assert store.outcome(manifest) == {"input_tokens": 5}


def test_the_memory_protocol_sees_what_was_written(tmp_path):
    store = PackStore(f"memory://{tmp_path.name}-seen")
    store.write(recording())
    fs = fsspec.filesystem("memory")
    assert any(path.endswith(".json.gz") for path in fs.find(f"/{tmp_path.name}-seen"))


def test_of_two_that_create_the_same_file_one_does(place):
    url, options = place
    won = []

    def create(at: int) -> None:
        files = Files(url, options)
        won.extend(name for name in range(12) if files.create(f"{files.root}/{name}", b"%d" % at))

    makers = [threading.Thread(target=create, args=(at,)) for at in range(5)]
    for one in makers:
        one.start()
    for one in makers:
        one.join()
    assert sorted(won) == list(range(12))


def test_a_backend_that_refuses_what_is_there_is_not_asked_before(place):
    url, options = place
    files = Files(url, options)
    asked = []
    call = files._call
    files._call = lambda name, *given, **more: (asked.append(name), call(name, *given, **more))[1]
    assert files.create(f"{files.root}/a", b"x")
    assert files.refuses is (True if url.startswith(("s3", "gs")) else None)
    asked.clear()
    assert all(files.create(f"{files.root}/{name}", b"x") for name in "bc")
    assert "exists" not in asked
    assert not any(files.create(f"{files.root}/{name}", b"y") for name in "abc")
    assert files.read(f"{files.root}/a") == b"x"


def test_a_backend_that_refuses_nothing_is_asked_before_each_file():
    class Careless(FailingFileSystem):
        protocol = "careless"

        def pipe_file(self, path, value, mode="overwrite", **more):
            super().pipe_file(path, value, **more)

    fsspec.register_implementation("careless", Careless, clobber=True)
    files = Files("careless://store")
    assert files.create(f"{files.root}/a", b"x")
    assert files.refuses is False
    assert not files.create(f"{files.root}/a", b"y")
    assert files.read(f"{files.root}/a") == b"x"


def test_files_are_listed_with_size_and_time(place):
    url, options = place
    files = Files(url, options)
    began = time.time()
    for name, data in (("a/b", b"1"), ("a/c/d", b"22"), ("e", b"333")):
        files.create(f"{files.root}/{name}", data)
    files.replace(f"{files.root}/e", b"4444")
    assert [(one.path.removeprefix(f"{files.root}/"), one.size) for one in files.below(files.root)] == [
        ("a/b", 1),
        ("a/c/d", 2),
        ("e", 4),
    ]
    assert all(
        one.modified is not None and began - 5 < one.modified < time.time() + 5 for one in files.below(files.root)
    )
    assert [one.path for one in files.files(f"{files.root}/a")] == [f"{files.root}/a/b"]
    assert files.folders(f"{files.root}/a") == [f"{files.root}/a/c"]
    assert files.folders(f"{files.root}/nowhere") == files.below(f"{files.root}/nowhere") == []
    assert files.read(f"{files.root}/e", 1, 3) == b"44"
    for name in ("a/c/d", "a/c/d", "nowhere"):
        files.delete(f"{files.root}/{name}")
    assert files.below(f"{files.root}/a/c") == []
    with pytest.raises(FileNotFoundError):
        files.read(f"{files.root}/a/c/d")


def test_drafts_are_no_files_but_a_folder_may_be_named_like_one(tmp_path):
    files = Files(tmp_path / ".draft-2" / "store")
    files.create(f"{files.root}/a/b", b"1")
    (tmp_path / ".draft-2" / "store" / "a" / ".draft-x").write_bytes(b"unfinished")
    for found in (files.below(files.root), files.files(f"{files.root}/a")):
        assert [file.path for file in found] == [f"{files.root}/a/b"]


def test_what_a_backend_raises_becomes_an_error_of_ours():
    FailingFileSystem.down = True
    try:
        store = PackStore("failing://errors")
        asked = [
            lambda: store.write(recording()),
            lambda: store.places(),
            lambda: store.summary("app", "user", "sha256:" + "0" * 64),
            lambda: store.write_calibration("app", "user", "model", {}),
        ]
        for one in asked:
            with pytest.raises(StoreError, match="the store is down"):
                one()
    finally:
        FailingFileSystem.down = False


def test_symbolic_links_lead_nowhere(tmp_path):
    outside, root = tmp_path / "outside", tmp_path / "store"
    PackStore(outside).write(recording(user="bob"))
    store = PackStore(root)
    store.write(recording(user="ann"))
    (root / "app" / "bob").symlink_to(outside / "app" / "bob")
    assert [one.user for one in store.manifests()] == ["ann"]
    with pytest.raises(StoreError, match="symbolic link"):
        list(store.manifests(user="bob"))
    with pytest.raises(StoreError, match="symbolic link"):
        store.write(recording("Another question", user="bob", call=2))
    assert len(list(PackStore(outside).manifests())) == 1
