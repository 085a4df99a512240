"""The store: written once, whole or not at all, by content, inside its own folder."""

from __future__ import annotations

import json
import threading

import pytest
from failing import FailingFileSystem
from hypothesis import given
from hypothesis import strategies as st
from packs import recording
from scripted import sound

from aether_context import PackStore
from aether_context.errors import PackNotFound, StoreError
from aether_context.store import schema
from aether_context.store.files import segment
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
    "name", ["../../etc", "a/b", "..", ".", "", "CON", "nul.txt", "x" * 5_000, "Ärger", "a\0b", "evidence", "packs"]
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


def test_the_published_schema_takes_a_manifest():
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.validate(json.loads(recording().manifest.to_json()), schema())


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
    assert len(sound(store)) == 20
    assert not [one for one in store.files.below(store.files.root) if ".draft-" in one.path]


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
