"""A store that is away for a while: runs go on, and everything is there when it is back."""

from __future__ import annotations

import asyncio
import itertools
import logging
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from failing import FailingFileSystem
from object_stores import FakeGcs, Seaweed
from pack_inputs import recording
from scripted import Chat, call, look_up

from aether_context import PackStore
from aether_context.adk import ContextPackPlugin
from aether_context.adk.services.recorder import Recorder
from aether_context.canonical import hash_bytes
from aether_context.errors import StoreError
from aether_context.evidence import EvidenceRecord, evidence_uri
from aether_context.store.files import Files
from aether_context.store.replay import Replayer
from aether_context.store.retention import all_of, carry_out
from aether_context.store.spool import ASIDE, Spool, SpooledFiles, Write, spool_of

_numbers = itertools.count(1)


@pytest.fixture
def url():
    restore()
    yield f"failing://store-{next(_numbers)}"
    restore()


def restore() -> None:
    FailingFileSystem.down, FailingFileSystem.refused = False, ()
    FailingFileSystem.exits, FailingFileSystem.delay_seconds = 0, 0.0


def loop(calls: int) -> list:
    return [call("look_up", key=str(at)) for at in range(calls)]


def spooled(url, tmp_path) -> tuple[SpooledFiles, Spool]:
    spool = Spool(tmp_path / "spool" / "one")
    return SpooledFiles(Files(url), spool), spool


def wait_until(found, seconds=60):
    until = time.monotonic() + seconds
    while not found():
        assert time.monotonic() < until
        time.sleep(0.01)


def check(store: PackStore, packs: int) -> None:
    """So many packs are there, each with its outcome, unchanged, and with the same request when it is built again."""
    manifests = list(store.manifests())
    assert len(manifests) == packs
    replayer = Replayer(store)
    for manifest in manifests:
        manifest.verify()
        assert store.outcome(manifest) is not None
        assert replayer.replay(manifest).matches


def test_a_run_goes_on_while_the_store_is_away_and_nothing_is_lost(url, caplog):
    plugin = ContextPackPlugin(store=url, on_error="raise")
    chat = Chat(plugin=plugin, script=[*loop(3), "one", *loop(3), "two", *loop(3), "three"], tools=[look_up])
    chat.say("first")
    FailingFileSystem.down = True
    began = time.monotonic()
    with caplog.at_level(logging.WARNING, logger="aether_context"):
        chat.say("second")
    assert time.monotonic() - began < 60
    assert sum("packs wait in" in one.message for one in caplog.records) == 1
    FailingFileSystem.down = False
    chat.say("third")
    wait_until(spool_of(plugin.store.files).is_empty)
    check(plugin.store, 12)


def test_what_waits_is_written_without_another_run(url):
    plugin = ContextPackPlugin(store=url, on_error="raise")
    FailingFileSystem.down = True
    Chat(plugin=plugin).say("one")
    assert not spool_of(plugin.store.files).is_empty()
    FailingFileSystem.down = False
    wait_until(spool_of(plugin.store.files).is_empty)
    check(plugin.store, 1)


def test_the_next_process_writes_what_one_left_behind(url):
    FailingFileSystem.down = True
    store = PackStore(url)
    files = SpooledFiles(store.files, spool_of(store.files))
    files.deliver = lambda: None  # a process that ends before the store is back
    manifest = store.through(files).write(recording())
    assert PackStore(url).through(files).read(store.place(manifest)) == manifest
    FailingFileSystem.down = False
    assert list(store.manifests()) == []
    recorder = Recorder(PackStore(url))
    assert asyncio.run(recorder.flush())
    assert list(store.manifests()) == [manifest]


def test_what_was_spooled_arrives_in_its_order(url, tmp_path):
    files, spool = spooled(url, tmp_path)
    FailingFileSystem.down = True
    for at in range(50):
        files.create(f"{files.root}/{at % 7}/{at}", b"%d" % at)
    FailingFileSystem.down = False
    wait_until(spool.is_empty)
    arrived = [int(data) for path, data in FailingFileSystem.held.items() if path.startswith(f"{files.root}/")]
    assert arrived == list(range(50))


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


REFUSED = """
import sys, time
from pathlib import Path
from aether_context.store.files import Files
from aether_context.store.spool import Spool, SpooledFiles
spool = Spool(Path(sys.argv[2]))
files = SpooledFiles(Files(sys.argv[1]), spool)
files.create(f"{files.root}/refused/a", b"x")
while spool.holds_back():
    time.sleep(0.01)
"""


def test_what_was_refused_is_written_by_the_next_process(tmp_path):
    """Nothing can be written below a file that is in the place of a folder."""
    store, spool = tmp_path / "store", Spool(tmp_path / "spool")
    store.mkdir()
    (store / "refused").write_bytes(b"")
    subprocess.run([sys.executable, "-c", REFUSED, str(store), str(spool.path)], check=True, timeout=60)
    (store / "refused").unlink()
    SpooledFiles(Files(store), spool).deliver()
    wait_until(spool.is_empty)
    assert (store / "refused" / "a").read_bytes() == b"x"


def test_packs_after_one_that_the_store_refuses_stand_without_it_and_all_arrive(url):
    chat = Chat(plugin=ContextPackPlugin(store=url, on_error="raise"))
    FailingFileSystem.refused = ("/packs/",)
    chat.say("one")
    spool = spool_of(chat.store.files)
    wait_until(lambda: not spool.holds_back())
    assert not spool.is_empty()
    chat.say("two")
    assert {manifest.extends for manifest in chat.manifests()} <= {None}
    FailingFileSystem.refused = ()
    chat.say("three")
    wait_until(spool.is_empty)
    check(chat.store, 3)


def test_the_last_of_what_replaces_itself_arrives(url, tmp_path):
    files, spool = spooled(url, tmp_path)
    FailingFileSystem.down = True
    for at in range(5):
        files.replace(f"{files.root}/x", b"%d" % at)
    assert files.read(f"{files.root}/x") == b"4"
    FailingFileSystem.down = False
    wait_until(spool.is_empty)
    assert FailingFileSystem.held[f"{files.root}/x"] == b"4"


@pytest.mark.parametrize("content", [b"", b"no write at all" * 100, b"\xff" * 10 + b"\n", b"[" * 100_000])
def test_a_file_that_holds_no_write_is_set_aside(url, tmp_path, content, caplog):
    files, spool = spooled(url, tmp_path)
    FailingFileSystem.down = True
    files.deliver = lambda: None
    files.create(f"{files.root}/a", b"x")
    files.create(f"{files.root}/b", b"x")
    min((spool.path / "waiting").iterdir()).write_bytes(content)
    FailingFileSystem.down = False
    assert files._deliver_all()
    assert f"{files.root}/b" in FailingFileSystem.held
    assert "it was damaged" in caplog.text
    assert [path.read_bytes() for path in (spool.path / "aside").iterdir()] == [content]


def test_what_a_process_left_that_was_killed_while_it_wrote_is_no_write_and_is_forgotten(url, tmp_path):
    files, spool = spooled(url, tmp_path)
    FailingFileSystem.down = True
    files.deliver = lambda: None
    files.create(f"{files.root}/a", b"x")
    draft = spool.path / "waiting" / ".draft-0"
    draft.write_bytes(b"of anybody")
    assert set(spool.paths()) == {f"{files.root}/a"}
    spool.drop([f"{files.root}/a"])
    assert not [path for path in spool.path.rglob("*") if path.is_file()]


def test_what_comes_for_a_path_that_the_store_refuses_waits_behind_it(url, tmp_path):
    FailingFileSystem.refused = ("never",)
    files, spool = spooled(url, tmp_path)
    files.create(f"{files.root}/never", b"begins")
    wait_until(lambda: not spool.holds_back())
    files.extend(f"{files.root}/never", b"begins, and goes on")
    assert files.read(f"{files.root}/never") == b"begins, and goes on"
    FailingFileSystem.refused = ()
    wait_until(spool.is_empty)
    assert FailingFileSystem.held[f"{files.root}/never"] == b"begins, and goes on"


def test_what_is_added_while_an_earlier_form_of_it_is_delivered_is_not_lost(url, tmp_path):
    files, spool = spooled(url, tmp_path)
    path = f"{files.root}/a"
    FailingFileSystem.down = True
    files.deliver = lambda: None
    files.create(path, b"begins")
    (name,) = spool.listed("waiting")
    path, data, is_sound = spool.read(name)
    files.extend(path, b"begins, and goes on")
    FailingFileSystem.down = False
    assert files._deliver(name, path, data, is_sound)
    assert FailingFileSystem.held[path] == b"begins"
    assert files._deliver_all()
    assert FailingFileSystem.held[path] == b"begins, and goes on"
    assert spool.paths() == {}


def test_what_takes_the_place_of_a_write_comes_before_what_follows_it(url, tmp_path):
    files, _ = spooled(url, tmp_path)
    FailingFileSystem.down = True
    files.deliver = lambda: None
    paths = [f"{files.root}/{name}" for name in ("a", "b", "c")]
    for path in paths:
        files.create(path, b"begins")
    FailingFileSystem.down = False
    send = files._send

    def extend_and_send(path, *write):
        if path == paths[0]:
            files.extend(paths[1], b"begins, and goes on")
        return send(path, *write)

    files._send = extend_and_send
    assert files._deliver_all()
    assert [path for path in FailingFileSystem.held if path in paths] == paths
    assert FailingFileSystem.held[paths[1]] == b"begins, and goes on"


def test_a_spool_that_cannot_be_used_stands_in_nobodys_way(url, tmp_path, caplog):
    files, spool = spooled(url, tmp_path)
    spool.path.parent.mkdir()
    spool.path.write_bytes(b"")
    assert files.create(f"{files.root}/a", b"x")
    assert files.read(f"{files.root}/a") == b"x"
    assert files.flush(1)
    assert caplog.text.count("the spool is left alone") == 1
    FailingFileSystem.down = True
    with pytest.raises(StoreError, match="cannot be used"):
        files.create(f"{files.root}/b", b"x")
    FailingFileSystem.down = False
    time.sleep(0.6)
    assert files.create(f"{files.root}/b", b"x")


def test_threads_and_processes_may_share_a_spool(url, tmp_path):
    FailingFileSystem.down = True
    both = [spooled(url, tmp_path)[0] for _ in range(2)]

    def work(files, at):
        for number in range(20):
            files.create(f"{files.root}/{at}/{number}", b"x")

    workers = [threading.Thread(target=work, args=(files, at)) for at, files in enumerate(both)]
    for one in workers:
        one.start()
    for one in workers:
        one.join()
    FailingFileSystem.down = False
    wait_until(both[0].spool.is_empty)
    assert sum(path.startswith(f"{both[0].root}/") for path in FailingFileSystem.held) == 40


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
    kept = f"{store.place(packs['ann', 's1'])}.json.gz"
    (name,) = (name for name in spool.listed("waiting") if spool.read(name)[0] == kept)
    spool.take_out(name, ASIDE)

    gone = all_of(store, "app", "ann", "s1")
    assert kept in {file.path for file in gone.files}
    carry_out(store, gone)
    assert [path for path in spool.paths() if "/ann/s1" in path] == []
    assert [path for path in spool.paths() if "/ann/s2" in path] != []
    carry_out(store, all_of(store, "app", "ann"))
    assert [path for path in spool.paths() if "/ann" in path] == []
    assert all_of(store, "app", "ann").files == ()
    assert files._deliver_all()
    assert list(store.manifests()) == [packs["ben", "s1"]]


def test_where_spools_are(monkeypatch, tmp_path):
    monkeypatch.setenv("AETHER_CONTEXT_SPOOL", "off")
    assert spool_of(Files("failing://x")) is None
    monkeypatch.setenv("AETHER_CONTEXT_SPOOL", str(tmp_path))
    one, other = spool_of(Files("failing://x")), spool_of(Files("failing://y"))
    assert one.path.parent == other.path.parent == tmp_path
    assert one.path != other.path
    assert spool_of(Files("memory://x")) is None
    monkeypatch.delenv("AETHER_CONTEXT_SPOOL")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert spool_of(Files("failing://x")).path.parent == tmp_path / "state" / "aether-context" / "spool"


def long_run(store: PackStore, seconds: float, server: Seaweed | FakeGcs) -> tuple[int, float]:
    """A run of tool calls in whose middle the server is killed for a while; packs, and the longest call in seconds."""
    calls = 40
    times: list[float] = []

    def work(key: str) -> str:
        """A tool that takes its time."""
        times.append(time.monotonic())
        if len(times) == 10:
            server.kill()
        if len(times) == 30:
            server.start()
        time.sleep(seconds / 20 if 10 <= len(times) < 30 else 0.02)
        return f"value of {key}"

    plugin = ContextPackPlugin(store=store, on_error="raise")
    script = [call("work", key=str(at)) for at in range(calls)]
    chat = Chat(plugin=plugin, script=[*script, "done"], tools=[work])
    assert chat.say("go")[-1].content.parts[0].text == "done"
    wait_until(spool_of(store.files).is_empty, 60)
    pauses = [later - earlier for earlier, later in itertools.pairwise(times[:29])]
    return calls + 1, max(pauses) - seconds / 20


SERVERS = [pytest.param(Seaweed, "s3://bucket/packs", id="s3"), pytest.param(FakeGcs, "gs://bucket/packs", id="gcs")]


@pytest.mark.integration
@pytest.mark.parametrize(("make", "url"), SERVERS)
def test_an_object_store_is_killed_in_the_middle_of_a_run(make, url: str, tmp_path: Path):
    server = make(tmp_path)
    try:
        server.start()
        store = PackStore(url, **server.options)
        packs, held_up = long_run(store, 6.0, server)
        assert held_up < 3.0
        check(store, packs)
    finally:
        server.kill()


def evidence(number: int) -> tuple[EvidenceRecord, bytes]:
    data = f"{number} ".encode() * 2_000
    digest = hash_bytes(data)
    return EvidenceRecord(uri=evidence_uri(digest, "txt"), digest=digest, size_bytes=len(data), time=number), data


def put_evidence(recorder: Recorder, count: int) -> None:
    for number in range(count):
        recorder.later(partial(recorder.store.write_evidence, "shop", "ann", "s1", *evidence(number)))


def test_a_burst_that_a_slow_store_cannot_take_waits_on_the_disk(url):
    store = PackStore(url)
    recorder = Recorder(store)
    FailingFileSystem.delay_seconds = 0.05
    put_evidence(recorder, 200)
    wait_until(lambda: not recorder._waiting, 60)
    assert not spool_of(store.files).is_empty()
    FailingFileSystem.delay_seconds = 0.0
    wait_until(spool_of(store.files).is_empty, 60)
    assert len(PackStore(url).evidence("shop", "ann", "s1")) == 200


def test_what_a_slow_store_lacks_at_the_end_is_on_the_disk(url):
    store = PackStore(url)
    recorder = Recorder(store)
    FailingFileSystem.delay_seconds = 0.2
    put_evidence(recorder, 20)
    assert not asyncio.run(recorder.flush(0.5))
    wait_until(lambda: not recorder._waiting)
    FailingFileSystem.delay_seconds = 0.0
    wait_until(spool_of(store.files).is_empty)
    assert len(PackStore(url).evidence("shop", "ann", "s1")) == 20


def test_a_flush_fails_by_no_attempt_that_began_before_it(url):
    recorder = Recorder(PackStore(url))
    began, ends = threading.Event(), threading.Event()

    def fails_once():
        if not began.is_set():
            began.set()
            ends.wait()
            raise StoreError("the store is down")

    async def flushed():
        assert began.wait(30)
        flushing = asyncio.create_task(recorder.flush(30))
        await asyncio.sleep(0)
        ends.set()
        return await flushing

    recorder.later(fails_once)
    assert asyncio.run(flushed())


def test_a_spool_takes_more_than_a_number_of_bytes_while_its_disk_has_room(url, tmp_path):
    FailingFileSystem.down = True
    files, spool = spooled(url, tmp_path)
    for number in range(10):
        files.create(f"{url}/{number}", bytes(30 * 2**20))
    assert sum(spool.paths().values()) > 300 * 2**20
    spool.drop(spool.paths())


def test_a_full_disk_is_left_alone(url, tmp_path, monkeypatch):
    FailingFileSystem.down = True
    files, _ = spooled(url, tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=200 * 2**20))
    with pytest.raises(StoreError, match="disk is full"):
        files.create(f"{url}/one", b"text")
    recorder = Recorder(PackStore(url))
    put_evidence(recorder, 1)
    assert not asyncio.run(recorder.flush(1))
    assert recorder._waiting


@pytest.mark.parametrize("exits", [1, 5])
def test_an_exit_out_of_a_store_ends_nothing_else(url, exits):
    plugin = ContextPackPlugin(store=url, on_error="raise")
    chat = Chat(plugin=plugin, script=["one", "two"])
    FailingFileSystem.exits = exits
    chat.say("first", "second")
    wait_until(lambda: not plugin._packer._recorder._waiting and spool_of(plugin.store.files).is_empty())
    check(plugin.store, 2)


def test_an_exit_out_of_a_write_without_a_spool_is_tried_again():
    store = PackStore(f"memory://exits-{next(_numbers)}")
    recorder = Recorder(store)
    raised = []

    def write() -> None:
        if len(raised) < 2:
            raised.append(1)
            raise SystemExit(3)

    recorder.later(write)
    put_evidence(recorder, 3)
    wait_until(lambda: not recorder._waiting)
    assert len(raised) == 2
    assert len(store.evidence("shop", "ann", "s1")) == 3


def test_a_write_that_always_exits_holds_nothing_back():
    store = PackStore(f"memory://exits-{next(_numbers)}")
    recorder = Recorder(store)

    def write() -> None:
        raise KeyboardInterrupt

    recorder.later(write)
    put_evidence(recorder, 3)
    wait_until(lambda: not recorder._waiting)
    assert len(store.evidence("shop", "ann", "s1")) == 3


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no umask")
@pytest.mark.parametrize(("umask", "file", "folder"), [("077", 0o600, 0o700), ("002", 0o664, 0o775)])
def test_files_and_folders_have_the_mode_of_any_new_one_of_the_process(tmp_path, umask, file, folder):
    write = """
import os, sys
os.umask(int(sys.argv[1], 8))
from pathlib import Path
from aether_context import PackStore
from aether_context.memory import Memories
files = PackStore(sys.argv[2] + "/store").files
files.create(f"{files.root}/a/b", b"x")
files.replace(f"{files.root}/a/c", b"x")
Memories(Path(sys.argv[2], "memory", "memories.sqlite")).close()
"""
    subprocess.run([sys.executable, "-c", write, umask, str(tmp_path)], check=True, timeout=60)
    made = list(tmp_path.rglob("*"))
    assert {path.stat().st_mode & 0o777 for path in made if path.is_file()} == {file}
    assert {path.stat().st_mode & 0o777 for path in made if path.is_dir()} == {folder}


def test_what_waits_is_delivered_in_time_that_grows_with_its_number(url, tmp_path):
    seconds = []
    for count in (100, 400):
        files = SpooledFiles(Files(f"{url}-{count}"), Spool(tmp_path / f"{count}"))
        FailingFileSystem.down = True
        for number in range(count):
            files.spool.add(f"{files.root}/{number}", b"%d" % number * 2_000, Write.CREATE)
        FailingFileSystem.down = False
        began = time.monotonic()
        files.deliver()
        wait_until(files.spool.is_empty)
        seconds.append(time.monotonic() - began)
    assert seconds[1] < 40 * max(seconds[0], 0.05)
