"""A pack as one file: little is written, and all of it is read."""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path
from typing import Any

import packs
import pytest
from failing import FailingFileSystem
from pack_inputs import recording
from scripted import Chat, call, look_up

from aether_context import PackPolicy, PackStore
from aether_context.adk import ContextPackPlugin
from aether_context.adk.services.recorder import Recorder
from aether_context.canonical import hash_bytes
from aether_context.errors import ManifestError, PackNotFound
from aether_context.store.files import Files
from aether_context.store.pack_file import ENDING, compressed, read_lines
from aether_context.store.replay import Replayer
from aether_context.store.retention import DAY_SECONDS, Rules, carry_out, plan
from aether_context.store.spool import Spool, SpooledFiles


def lines(store: PackStore, manifest: Any) -> tuple[bytes, bytes, bytes | None]:
    return read_lines(store.files.read(f"{store.place(manifest)}{ENDING}"))


def whole(store: PackStore) -> int:
    """How many packs verify and replay; all have to."""
    replayer, count = Replayer(store), 0
    for manifest in store.manifests():
        manifest.verify()
        assert replayer.replay(manifest).matches
        count += 1
    return count


@pytest.fixture
def store(tmp_path: Path) -> PackStore:
    return PackStore(tmp_path / "store")


def test_a_manifest_that_extends_others_is_written_as_what_differs_and_read_as_a_whole(store: PackStore) -> None:
    first, *others = packs.chain(store, 6)
    assert lines(store, first)[0].decode() == first.to_json()
    for manifest in others:
        written = json.loads(lines(store, manifest)[0])
        assert written["base"] == first.pack_id
        assert not {"app", "session", "model", "policy", "setting", "tools", "counter"} & written.keys()
        assert "system" not in written["allocation"]
        assert store.read(store.place(manifest)) == manifest
        assert len(store.files.read(f"{store.place(manifest)}{ENDING}")) < len(manifest.to_json()) / 3
    assert whole(store) == 6
    assert len(store.files.below(store.files.root)) == 6 + 3  # policy, setting, and the hour


def test_a_field_that_only_the_base_has_is_at_its_default(store: PackStore) -> None:
    chat = Chat(plugin=ContextPackPlugin(store=store, on_error="raise"), script=[call("look_up", key="1"), "done"])
    chat.tools = [look_up]
    chat.say("go")
    first, second = store.manifests()
    assert first.epoch_reason == "first_call"
    assert second.epoch_reason is None
    assert json.loads(lines(store, second)[0])["epoch_reason"] is None


def test_the_texts_of_a_pack_stand_behind_its_manifest(store: PackStore) -> None:
    first, second = packs.chain(store, 2)
    for manifest in (first, second):
        texts = lines(store, manifest)[1]
        assert manifest.texts == (hash_bytes(texts),)
        assert store.blob(manifest, manifest.texts[0]) == texts
    assert b"result 1" in lines(store, second)[1]
    assert b"Find out" not in lines(store, second)[1]
    assert not any("result 1" in str(store.files.read(one.path)) for one in store.files.below(store.files.root))


def test_hashes_alone_leave_no_text(store: PackStore) -> None:
    manifests = packs.chain(store, 3, PackPolicy(record="hashes"))
    assert [lines(store, one)[1] for one in manifests] == [b"", b"", b""]
    assert [one.texts for one in store.manifests()] == [(), (), ()]


def test_each_chain_replays_without_those_before_it(store: PackStore) -> None:
    manifests = packs.talk(store, turns=16)
    begins = [at for at, one in enumerate(manifests) if one.parent is None]
    assert len(begins) > 2
    for one in manifests[: begins[-1]]:
        store.files.delete(f"{store.place(one)}{ENDING}")
    assert whole(PackStore(store.url)) == len(manifests) - begins[-1]


def test_a_file_that_holds_more_than_a_pack_can_is_damaged(store: PackStore, monkeypatch: pytest.MonkeyPatch) -> None:
    (manifest,) = packs.chain(store, 1)
    path = f"{store.place(manifest)}{ENDING}"
    whole = store.files.read(path)
    store.files.delete(path)
    store.files.create(path, whole[:-20])
    with pytest.raises(ManifestError, match="ends too soon"):
        PackStore(store.url).blob(manifest, manifest.texts[0])
    monkeypatch.setattr("aether_context.store.pack_file._MOST_BYTES", 100_000)
    store.files.delete(path)
    store.files.create(path, whole + compressed(bytes(100_000)))
    with pytest.raises(ManifestError, match="more than 100,000 bytes"):
        PackStore(store.url).blob(manifest, manifest.texts[0])
    store.files.delete(path)
    store.files.create(path, compressed(b"x" * 200_000))
    with pytest.raises(ManifestError, match="first line"):
        PackStore(store.url).read(store.place(manifest))


def test_a_base_that_is_gone_is_named(store: PackStore) -> None:
    first, second, _ = packs.chain(store, 3)
    store.files.delete(f"{store.place(first)}{ENDING}")
    fresh = PackStore(store.url)
    named = f"{second.pack_id} extends {first.pack_id}, which is not in"
    with pytest.raises(PackNotFound, match=named):
        fresh.read(store.place(second))
    with pytest.raises(PackNotFound, match=named):
        list(fresh.manifests())


def test_a_pack_under_another_id_is_still_the_base_of_its_chain(store: PackStore) -> None:
    packs.chain(store, 1, window=9_000)  # takes the id
    session = packs.Session(store, tools=[packs.tool("search")])
    first = session.ask("Find out who approves refunds.")
    assert first.pack_id.endswith("-2")
    session._tip = recording_tip(session, first.pack_id)
    second = session.use("search", "nobody")
    assert second.parent == first.pack_id
    assert json.loads(lines(store, second)[0])["base"] == first.pack_id
    assert whole(store) == 3


def recording_tip(session: packs.Session, pack_id: str) -> Any:
    from aether_context.store import record
    from aether_context.tokens import counter_for

    made = record(session.packs[-1], session.policy, counter_for(packs.MODEL).name, None)
    return made.changed(pack_id=pack_id).tip


# outcomes


def test_an_outcome_is_added_to_the_file_of_its_pack(store: PackStore) -> None:
    manifest = store.write(recording())
    path = f"{store.place(manifest)}{ENDING}"
    before = store.files.read(path)
    store.write_outcome(manifest, {"input_tokens": 5})
    store.write_outcome(manifest, {"input_tokens": 7})
    assert store.outcome(manifest) == {"input_tokens": 5}
    assert store.files.read(path).startswith(before)
    assert whole(store) == 1


def test_an_outcome_that_is_known_goes_with_its_pack(store: PackStore) -> None:
    recorder = Recorder(store)
    replaced: list[str] = []
    recorder.store.files.replace = lambda path, data: replaced.append(path)  # type: ignore[method-assign]
    chat = Chat(plugin=ContextPackPlugin(store=store, on_error="raise"), script=["done"])
    chat.plugin._packer._recorder = recorder
    chat.say("go")
    (manifest,) = store.manifests()
    assert store.outcome(manifest) is not None
    assert not [path for path in replaced if ENDING in path]


def test_an_outcome_brings_no_deleted_pack_back(store: PackStore) -> None:
    made = recording()
    manifest = store.write(made)
    store.files.delete(f"{store.place(manifest)}{ENDING}")
    with pytest.raises(PackNotFound):
        store.write_outcome(manifest, {"input_tokens": 5})
    store.write_outcome(manifest, {"input_tokens": 5}, made.data)
    assert store.places() == []


def test_an_outcome_spares_another_pack_in_its_place(store: PackStore) -> None:
    made = recording()
    other = store.write(recording("Another question"))
    store.write_outcome(made.manifest, {"input_tokens": 5}, made.data)
    assert store.outcome(other) is None
    assert whole(store) == 1


@pytest.mark.parametrize("down", ["before", "between", "while it is delivered"])
def test_an_outcome_finds_its_pack_through_an_outage(down: str, tmp_path: Path) -> None:
    url = f"failing://outcome-{down.replace(' ', '-')}"
    spool = Spool(tmp_path / "spool.sqlite")
    files = SpooledFiles(Files(url), spool)
    files.deliver = lambda: None  # type: ignore[method-assign]
    there, store = PackStore(url), PackStore(url).through(files)
    made = recording()
    try:
        FailingFileSystem.down = down != "between"
        manifest = store.write(made)
        if down == "while it is delivered":  # the first version arrives, and is not yet taken out of the spool
            FailingFileSystem.down = False
            for path in list(there.files.fs.find(there.files.root)):
                there.files.delete(path)
            PackStore(url).write(made)
        FailingFileSystem.down = True
        store.write_outcome(manifest, {"input_tokens": 5}, made.data)
        assert store.outcome(manifest) == {"input_tokens": 5}
        FailingFileSystem.down = False
        assert files._deliver_all()
        assert spool.paths() == {}
        assert there.outcome(manifest) == {"input_tokens": 5}
        assert whole(there) == 1
    finally:
        FailingFileSystem.down = False


def test_an_outcome_reaches_a_pack_that_a_failed_attempt_has_written(store: PackStore) -> None:
    made = recording()
    store.write(made)
    assert store.write(made, {"input_tokens": 5}) == made.manifest
    assert store.outcome(made.manifest) == {"input_tokens": 5}
    store.write(made, {"input_tokens": 7})
    assert store.outcome(made.manifest) == {"input_tokens": 5}
    assert whole(store) == 1


def test_what_cannot_be_read_in_a_packs_place_holds_nothing_back(store: PackStore) -> None:
    made = recording()
    store.files.create(f"{store.place(made.manifest)}{ENDING}", made.data[:40])
    manifest = store.write(made)
    assert manifest.pack_id == f"{made.manifest.pack_id}-2"
    assert store.read(store.place(manifest)) == manifest


def test_an_outcome_that_waited_brings_no_deleted_pack_back(tmp_path: Path) -> None:
    files = SpooledFiles(Files("failing://outcome-deleted"), Spool(tmp_path / "spool.sqlite"))
    files.deliver = lambda: None  # type: ignore[method-assign]
    there, store = PackStore(files.url), PackStore(files.url).through(files)
    made = recording()
    manifest = store.write(made)
    try:
        FailingFileSystem.down = True
        store.write_outcome(manifest, {"input_tokens": 5}, made.data)
    finally:
        FailingFileSystem.down = False
    there.files.delete(f"{there.place(manifest)}{ENDING}")
    assert files._deliver_all()
    assert (there.places(), files.spool.paths()) == ([], {})


def test_a_pack_that_waited_spares_what_another_process_made_of_it(tmp_path: Path) -> None:
    files = SpooledFiles(Files("failing://outcome-faster"), Spool(tmp_path / "spool.sqlite"))
    files.deliver = lambda: None  # type: ignore[method-assign]
    there, made = PackStore(files.url), recording()
    try:
        FailingFileSystem.down = True
        PackStore(files.url).through(files).write(made)
    finally:
        FailingFileSystem.down = False
    there.write_outcome(there.write(made), {"input_tokens": 5})
    assert files._deliver_all()
    assert files.spool.paths() == {}
    assert there.outcome(made.manifest) == {"input_tokens": 5}


def test_an_outcome_goes_with_a_pack_that_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aether_context.adk.services.recorder._MOST_WAITING", 10)
    monkeypatch.setenv("AETHER_CONTEXT_SPOOL", "off")
    plugin = ContextPackPlugin(store="failing://given-up")
    recorder = plugin._packer._recorder
    chat = Chat(plugin=plugin, on_error="passthrough")
    try:
        FailingFileSystem.down = True
        chat.say(*(f"message {at}" for at in range(30)))
        assert len(recorder._waiting) <= 10
        assert len(recorder._outcomes) <= 10
    finally:
        FailingFileSystem.down = False
    asyncio.run(plugin.close())
    assert not recorder._outcomes


# what is deleted


def test_the_first_pack_of_a_chain_stays_while_another_is_read_by_it(store: PackStore) -> None:
    first, second, third = packs.chain(store, 3)
    store.files.delete(f"{store.place(second)}{ENDING}")
    now = time.time() + 20 * DAY_SECONDS
    os.utime(f"{store.place(third)}{ENDING}", (now, now))
    (owner,) = store.owners()
    for rules in (Rules(packs_seconds=10 * DAY_SECONDS), Rules(most_bytes=100_000)):
        carry_out(store, plan(store, owner, rules, now))
        assert {place.rsplit("/", 1)[-1] for place in store.places()} == {first.pack_id, third.pack_id}
    assert PackStore(store.url).read(store.place(third)) == third


def test_packs_with_texts_and_without_are_deleted_alike(store: PackStore) -> None:
    session = packs.Session(store, tools=[packs.tool("search")])
    session.ask("Find out who approves refunds.")
    session.policy = PackPolicy(record="hashes")
    assert session.use("search", "nobody").texts == ()
    (owner,) = store.owners()
    assert plan(store, owner, Rules(), time.time()).unreadable == ()
    carry_out(store, plan(store, owner, Rules(), time.time() + 40 * DAY_SECONDS))
    assert store.files.below(store.files.root) == []


def test_of_what_is_each_packs_own_a_chain_keeps_nothing(store: PackStore) -> None:
    session = packs.Session(store, tools=[packs.tool("search")])
    session.ask("Find out who approves refunds.")
    base = recording_tip(session, "pack_x").base
    assert base.fields.keys() >= {"rows", "contents", "tools"}
    assert base.fields["rows"] == base.fields["contents"] is None
