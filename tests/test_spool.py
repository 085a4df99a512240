"""A store that is away for a while: runs go on, and everything is there when it is back."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from failing import FailingFileSystem, wait_until
from packs import recording
from scripted import Chat, call, sound
from upkeep import forget

from aether_context import PackStore, verify
from aether_context.adk import ContextPackPlugin
from aether_context.canonical import hash_bytes
from aether_context.errors import StoreError
from aether_context.evidence import EvidenceRecord, evidence_uri
from aether_context.store.files import Files
from aether_context.store.spool import ASIDE, Spool, SpooledFiles, Write, spool_of

_numbers = itertools.count(1)


@pytest.fixture
def url():
    yield f"failing://store-{next(_numbers)}"
    FailingFileSystem.end()


def spooled(url, tmp_path) -> tuple[SpooledFiles, Spool]:
    spool = Spool(tmp_path / "spool" / "one")
    return SpooledFiles(Files(url), spool), spool


def test_the_next_process_writes_what_one_left_behind(url):
    FailingFileSystem.down = True
    store = PackStore(url)
    files = SpooledFiles(store.files, spool_of(store.files))
    files.deliver = lambda: None  # a process that ends before the store is back
    manifest = store.through(files).write(recording())
    assert PackStore(url).through(files).read(store.place(manifest)) == manifest
    FailingFileSystem.down = False
    assert list(store.manifests()) == []
    asyncio.run(ContextPackPlugin(store=url).close())
    assert list(store.manifests()) == [manifest]


def test_a_damaged_or_conflicting_write_is_set_aside(url, tmp_path, caplog):
    files, spool = spooled(url, tmp_path)
    FailingFileSystem.down = True
    files.deliver = lambda: None
    names = [f"{files.root}/{name}" for name in ("damaged", "conflict", "equal", "good")]
    for name in names:
        files.create(name, name.encode())
    damaged = min((spool.path / "waiting").iterdir())
    damaged.write_bytes(damaged.read_bytes()[:-1])
    FailingFileSystem.down = False
    FailingFileSystem.held.update({names[1]: b"another", names[2]: names[2].encode()})
    assert files._deliver_all()
    assert spool.is_empty()
    told = [line for line in caplog.messages if "set aside" in line]
    assert [line.split(" is set aside")[0] for line in told] == names[:2]
    assert [line.rsplit(": ", 1)[1] for line in told] == ["it was damaged", "another file is in its place"]
    assert set(spool.paths()) == set(names[:2])
    assert FailingFileSystem.held[names[1]] == b"another"
    assert FailingFileSystem.held[names[3]] == names[3].encode()


def test_one_file_that_the_store_refuses_goes_on_waiting_and_holds_nothing_back(url, tmp_path):
    FailingFileSystem.refused = ("never",)
    files, spool = spooled(url, tmp_path)
    never, other, later = (f"{files.root}/{name}" for name in ("never", "other", "later"))
    files.create(never, b"never")
    files.create(other, b"other")
    wait_until(lambda: FailingFileSystem.held.get(other) == b"other")
    wait_until(lambda: not spool.holds_back())
    assert files.create(later, b"later")
    assert FailingFileSystem.held[later] == b"later"
    assert files.read(never) == b"never"
    FailingFileSystem.refused = ()
    wait_until(lambda: FailingFileSystem.held.get(never) == b"never")
    wait_until(spool.is_empty)


def test_a_spool_is_private_and_only_made_when_it_is_needed(url, tmp_path):
    files, spool = spooled(url, tmp_path)
    files.create(f"{files.root}/a", b"x")
    assert not spool.path.parent.exists()
    FailingFileSystem.down = True
    files.create(f"{files.root}/b", b"x")
    made = [spool.path.parent, *spool.path.parent.rglob("*")]
    assert len([path for path in made if path.is_file()]) == 1
    assert not [path for path in made if path.stat().st_mode & 0o077]


def test_what_waits_of_a_user_who_is_forgotten_never_arrives(url):
    """Nor does it stay in the spool, set aside or not; what waits of others arrives."""
    store = PackStore(url)
    spool = spool_of(store.files)
    files = SpooledFiles(store.files, spool)
    files.deliver = lambda: None
    FailingFileSystem.down = True
    whose = [("ann", "s1"), ("ann", "s2"), ("ben", "s1")]
    packs = {who: store.through(files).write(recording(user=who[0], session=who[1])) for who in whose}
    FailingFileSystem.down = False
    kept = f"{store.place(packs['ann', 's1'])}/manifest.json"
    (name,) = (name for name in spool.listed("waiting") if spool.read(name)[0] == kept)
    spool.take_out(name, folder=ASIDE)

    assert kept in forget(store, "app", "ann", "s1")
    assert [path for path in spool.paths() if "/ann/s1" in path] == []
    assert [path for path in spool.paths() if "/ann/s2" in path] != []
    forget(store, "app", "ann")
    assert [path for path in spool.paths() if "/ann" in path] == []
    assert forget(store, "app", "ann") == []
    assert files._deliver_all()
    assert list(store.manifests()) == [packs["ben", "s1"]]


def evidence(number: int) -> tuple[EvidenceRecord, bytes]:
    data = f"{number} ".encode() * 2_000
    digest = hash_bytes(data)
    return EvidenceRecord(uri=evidence_uri(digest, "txt"), digest=digest, size_bytes=len(data), time=number), data


def recorder_of(store: PackStore) -> Any:
    """What a plugin writes through."""
    return ContextPackPlugin(store=store)._packer._parts.recorder


def put_evidence(recorder: Any, count: int) -> None:
    for number in range(count):
        recorder.later(partial(recorder.store.write_evidence, "shop", "ann", "s1", *evidence(number)))


def test_a_burst_that_a_slow_store_cannot_take_waits_on_the_disk(url):
    store = PackStore(url)
    recorder = recorder_of(store)
    FailingFileSystem.delay_seconds = 0.05
    put_evidence(recorder, 200)
    wait_until(lambda: not recorder._waiting, 60)
    assert not spool_of(store.files).is_empty()
    FailingFileSystem.delay_seconds = 0.0
    wait_until(spool_of(store.files).is_empty, 60)
    assert len(PackStore(url).evidence("shop", "ann", "s1")) == 200


def test_a_full_disk_is_left_alone(url, tmp_path, monkeypatch):
    FailingFileSystem.down = True
    files, _ = spooled(url, tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=200 * 2**20))
    with pytest.raises(StoreError, match="disk is full"):
        files.create(f"{url}/one", b"text")
    recorder = recorder_of(PackStore(url))
    put_evidence(recorder, 1)
    assert not asyncio.run(recorder.flush(1))
    assert recorder._waiting


@pytest.mark.parametrize("exits", [1, 5])
def test_an_exit_out_of_a_store_ends_nothing_else(url, exits):
    plugin = ContextPackPlugin(store=url, on_error="raise")
    chat = Chat(plugin=plugin, script=["one", "two"])
    FailingFileSystem.exits = exits
    chat.say("first", "second")
    wait_until(lambda: not plugin._packer._parts.recorder._waiting and spool_of(plugin.store.files).is_empty())
    assert len([one for one in sound(plugin.store) if plugin.store.outcome(one)]) == 2


def test_what_waits_is_delivered_in_time_that_grows_with_its_number(url, tmp_path):
    seconds = []
    for count in (100, 400):
        files = SpooledFiles(Files(f"{url}-{count}"), Spool(tmp_path / f"{count}"))
        FailingFileSystem.down = True
        for number in range(count):
            files.spool.add(f"{files.root}/{number}", b"%d" % number * 2_000, Write.CREATE)
        FailingFileSystem.down = False
        began = time.process_time()
        files.deliver()
        wait_until(files.spool.is_empty)
        seconds.append(time.process_time() - began)
    assert seconds[1] < 10 * seconds[0]


# batches


def batched(url: str, meanwhile: Callable[[], object] = lambda: None) -> Chat:
    """A chat whose second message leads to three calls, between which something happens; its store is no folder."""

    def wait(number: int) -> str:
        """Waits."""
        if number == 2:
            meanwhile()
        return f"waited {number}"

    script = ["hello", call("wait", number=1), call("wait", number=2), "done", "bye"]
    return Chat(plugin=ContextPackPlugin(store=url, on_error="raise"), tools=[wait], script=script)


def delivered(url: str) -> list[str]:
    session = PackStore(url).files.place("shop", "ann", "s1")
    return sorted(path.rpartition("/")[2] for path in FailingFileSystem.held if path.startswith(f"{session}/"))


def checked(chat: Chat, packs: int) -> None:
    """So many packs are in the store, each with its outcome, and nothing is missed or waits."""
    wait_until(spool_of(PackStore(chat.store.url).files).is_empty)
    store = PackStore(chat.store.url)
    manifests = sound(store)
    assert len([manifest for manifest in manifests if store.outcome(manifest)]) == len(manifests) == packs
    assert verify(store, asyncio.run(chat.held())).faults == {}
    assert spool_of(store.files).paths() == {}


def test_a_run_adds_one_segment_to_the_log_and_a_manifest_a_call(url):
    seen = []
    chat = batched(url, lambda: seen.append(delivered(url)))
    chat.say("hi")
    wait_until(lambda: len(delivered(url)) == 2)
    first = delivered(url)
    assert [name[:14] for name in first] == ["000001-000001-", "manifest.json"]
    chat.say("wait")
    assert seen == [first]
    wait_until(lambda: len(delivered(url)) == 6)
    assert [name[:14] for name in delivered(url)] == ["000001-000001-", "000002-000004-", *["manifest.json"] * 4]
    checked(chat, 4)


def test_a_run_that_takes_long_is_written_meanwhile(url, monkeypatch):
    monkeypatch.setattr("aether_context.adk.services.recorder._BATCH_SECONDS", 0.0)
    chat = batched(url, lambda: wait_until(lambda: delivered(url).count("manifest.json") >= 3))
    chat.say("hi", "wait")
    checked(chat, 4)


@pytest.mark.parametrize("is_killed", [True, False])
def test_a_process_that_starts_writes_the_batches_of_others(url, is_killed):
    """Of one that was killed, and of one that goes on: what both write is the same."""
    chat = batched(url, lambda: ContextPackPlugin(store=url) if not is_killed else None)
    chat.say("hi")
    recorder = chat.plugin._packer._parts.recorder
    if is_killed:
        recorder._finish = lambda *_, **__: None
    chat.say("wait")
    if is_killed:
        assert delivered(url).count("manifest.json") == 1
        assert len(recorder._batching.paths()) == 3 * 3
        asyncio.run(ContextPackPlugin(store=url).close())
    checked(chat, 4)


@pytest.mark.parametrize("machine", ["this", "another"])
def test_a_session_that_is_forgotten_in_a_run_goes_on_anew(url, machine):
    """What another machine cannot forget is what waits here: it is whole by itself."""

    def forget_all() -> None:
        wait_until(lambda: not chat.plugin._packer._parts.recorder._waiting)
        if machine == "this":
            forget(PackStore(url), "shop", "ann")
        user = PackStore(url).files.place("shop", "ann")
        for path in [path for path in FailingFileSystem.held if path.startswith(f"{user}/")]:
            del FailingFileSystem.held[path]

    chat = batched(url, forget_all)
    chat.say("hi", "wait", "go on")
    checked(chat, {"this": 2, "another": 4}[machine])
