"""What is taken out of a store is told: each kind of file that a manifest names, under numbers that are given once; and
what the package itself forgot is not missed."""

from __future__ import annotations

import asyncio
import json
import os
import stat
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from failing import FailingFileSystem
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.sessions import InMemorySessionService
from google.genai import types
from packs import paths_of, recording
from scripted import Chat, big_file, call
from terminal import run
from upkeep import by_kind, delete_older, forget
from wording import SPOOL_FOLDER

from aether_context import PackPolicy, PackStore, verify
from aether_context.adk import ContextPackPlugin, FsspecArtifactService, HybridMemoryService
from aether_context.pack import METADATA
from aether_context.store.files import File, Files
from aether_context.store.spool import Spool, SpooledFiles, spool_of

KEY = "AETHER_CONTEXT_KEY"


@pytest.fixture
def store(tmp_path: Path) -> PackStore:
    return PackStore(tmp_path / "store")


def chat_of(store: PackStore, turns: int = 5, **more: object) -> Chat:
    """A conversation with a result and a message too long to be sent whole, and turns that the store keeps."""
    policy = PackPolicy(max_input_tokens=4_000)
    script = [call("big_file", name="a", lines=300), "done", *("ok" for _ in range(turns))]
    plugin = ContextPackPlugin(policy=policy, store=store, on_error="raise")
    return Chat(plugin=plugin, tools=[big_file], script=script, **more)  # type: ignore[arg-type]


def talk(chat: Chat, turns: int = 5, recent_events: int | None = 6) -> None:
    messages = ["go", "word " * 9_000, *(f"message {at} of the day" for at in range(turns - 2))]
    for message in messages:
        chat.say(message, recent_events=recent_events)


def files(store: PackStore, kind: str) -> list[File]:
    return by_kind(store).get(kind, [])


@pytest.mark.parametrize("kind", ["pack", "segment", "message", "record", "evidence", "turns", "artifact"])
@pytest.mark.rows(2)
def test_each_file_that_is_taken_out_is_told(store: PackStore, kind: str) -> None:
    artifacts = FsspecArtifactService(store.url)
    chat = chat_of(store, artifacts=artifacts)
    owner = {"app_name": chat.app_name, "user_id": chat.user, "session_id": chat.session}
    saved = artifacts.save_artifact(**owner, filename="plans/report.md", artifact=types.Part(text="All is well."))
    asyncio.run(saved)
    talk(chat)
    saved_by_app = Event(author="app", actions=EventActions(artifact_delta={"plans/report.md": 0}))
    asyncio.run(chat.sessions.append_event(asyncio.run(chat.held()), saved_by_app))
    chat.say("See artifact://plans/report.md for it.", recent_events=6)
    chat.say("Thanks.", recent_events=6)
    assert verify(store, asyncio.run(chat.held()), replays=True).faults == {}
    found = files(store, kind)
    assert found
    for file in found[:-1] if kind == "pack" else found:  # the last of these is told by the session alone
        data = store.files.read(file.path)
        store.files.delete(file.path)
        assert verify(store).faults, file.path
        store.files.create(file.path, data)
    assert verify(store).faults == {}
    if kind == "pack":
        store.files.delete(found[-1].path)
        assert verify(store).faults == {}
        assert "is missing" in str(verify(store, asyncio.run(chat.held())).faults)


@pytest.mark.parametrize("whole_user", [True, False])
def test_after_forget_on_a_live_session_nothing_is_missed(store: PackStore, whole_user: bool) -> None:
    chat = chat_of(store, turns=12)
    talk(chat)
    forget(store, "shop", "ann", None if whole_user else "s1")
    assert store.files.below(store.files.root) == []
    for at in range(4):
        chat.say(f"question {at}", recent_events=6)
        held = asyncio.run(chat.held())
        assert verify(store, replays=True).faults == {}
        assert verify(store, held).faults == {}
    first = next(store.manifests())
    assert (first.number, first.first_number, first.extends) == (7, 7, None)
    last = list(store.manifests())[-1]
    store.files.delete(paths_of(store, last)[0])
    assert "number 10 is missing" in str(verify(store, held).faults)


def test_forget_in_the_middle_of_a_run_breaks_no_chain(store: PackStore) -> None:
    def forget_me() -> str:
        """Forgets what is stored."""
        forget(store, "shop", "ann")
        return "gone"

    script = [call("forget_me"), call("big_file", name="a", lines=9), "done", "ok"]
    plugin = ContextPackPlugin(store=store, on_error="raise")
    chat = Chat(plugin=plugin, tools=[big_file, forget_me], script=script)
    chat.say("zero", "go", "on")
    assert verify(store, asyncio.run(chat.held()), replays=True).faults == {}


def test_a_chain_of_a_day_begins_anew(store: PackStore, monkeypatch: pytest.MonkeyPatch) -> None:
    chat = chat_of(store)
    chat.say("one", "two", "three")
    first, *_ = manifests = list(store.manifests())
    assert manifests[-1].extends
    for path in paths_of(store, first):  # as a rule of a bucket does it with what is older than some days
        store.files.delete(path)
    monkeypatch.setattr("aether_context.adk.services.recorder._DAY_SECONDS", 0.0)
    chat.say("four")
    last = list(store.manifests())[-1]
    assert (last.number, last.extends) == (len(manifests) + 1, None)
    assert "number 1 is missing" in str(verify(store).faults)
    run("replay", last.number, store=store, code=None)


def test_what_was_forgotten_for_its_age_is_not_missed_with_a_key_either(
    store: PackStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY, "of the operator")
    chat = chat_of(store)
    talk(chat)
    manifests = list(store.manifests())
    second = next(at for at, one in enumerate(manifests) if at and one.extends is None)
    names, below = {one.pack_id for one in manifests[:second]}, store.files.below
    monkeypatch.setattr(store.files, "below", lambda path: [
        file._replace(modified=0.0) if file.path.split("/")[-2] in names or "/turns/" in file.path else file
        for file in below(path)
    ])  # fmt: skip
    delete_older(store, 30 * 86_400, 31 * 86_400)
    assert files(store, "turns") == []
    assert verify(store, replays=True).faults == {}
    chat.say("go on", recent_events=6)
    assert verify(store, replays=True).faults == {}
    (forgotten,) = files(store, "forgotten")
    data = store.files.read(forgotten.path)
    monkeypatch.delenv(KEY)
    store.note_forgotten("shop", "ann", "s1", store.forgotten("shop", "ann", "s1")._replace(packs=[1, 2, 3, 4]))
    monkeypatch.setenv(KEY, "of the operator")
    assert "is not signed" in str(verify(store).faults)
    store.files.replace(forgotten.path, data)
    assert verify(store).faults == {}


def test_what_somebody_made_without_the_key_is_not_read(store: PackStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY, "of the operator")
    chat = chat_of(store)
    talk(chat)
    (message,) = files(store, "message")
    name = "/".join(message.path.rsplit("/", 2)[1:])
    records = store.evidence("shop", "ann", "s1")
    assert records
    assert b"word word" in (store.message("shop", "ann", "s1", name) or b"")
    assert verify(store).faults == {}
    for kind in ("turns", "record", "message"):  # a signed file of another session is none of this one either
        (file, *_) = files(store, kind)
        other = file.path.replace("/s1/", "/s2/")
        store.files.create(other, store.files.read(file.path))
        assert "s2" in str(verify(store).faults)
        store.files.delete(other)
    monkeypatch.setenv(KEY, "another")
    assert store.evidence("shop", "ann", "s1") == []
    with pytest.raises(Exception, match="signed with another key"):
        store.message("shop", "ann", "s1", name)
    monkeypatch.delenv(KEY)
    assert store.evidence("shop", "ann", "s1") == records


def test_verify_of_one_session_and_as_json(store: PackStore) -> None:
    store.write(recording(session="good"))
    bad = store.write(recording("Another", session="bad"))
    Path(paths_of(store, bad)[1]).write_bytes(b"no gzip")
    report = json.loads(run("verify", "--json", store=store, code=1).stdout)
    assert (report["packs"], report["passed"]) == (2, 1)
    assert list(report["faults"]) == [
        store.files.below_base(path) for path in (paths_of(store, bad)[1], store.place(bad))
    ]
    for session, code in {"good": 0, "bad": 1, "none": 3}.items():
        run("verify", "--session", session, store=store, code=code)


# numbers


def test_workers_that_take_turns_on_a_session_give_each_number_once(store: PackStore) -> None:
    sessions = InMemorySessionService()
    workers = [Chat(store=store, sessions=sessions, script=["ok"] * 9) for _ in range(2)]
    for at in range(6):
        workers[at % 2].say(f"message {at}")
    manifests = list(store.manifests())
    assert [(one.number, one.turn) for one in manifests] == [(at, at) for at in range(1, 7)]
    session = asyncio.run(workers[1].held())
    assert verify(store, session, replays=True).faults == {}
    store.files.delete(paths_of(store, manifests[-1])[0])
    assert "number 6 is missing" in str(verify(store, session).faults)


@pytest.mark.parametrize("answered_before", [True, False])
def test_a_call_without_an_event_has_a_number_that_no_call_of_another_worker_has(
    store: PackStore, answered_before: bool
) -> None:
    sessions = InMemorySessionService()
    answers: list[str | Exception] = ["ok"] * answered_before
    failing = Chat(store=store, sessions=sessions, script=[*answers, RuntimeError("away"), RuntimeError("away"), "ok"])
    other = Chat(store=store, sessions=sessions, script=["ok"] * 9)
    for _ in answers:
        failing.say("first")
    for _ in range(2):
        with pytest.raises(RuntimeError):
            failing.say("are you there?")
    other.say("and you?")
    failing.say("again?")
    other.say("well")
    numbers = [manifest.number for manifest in store.manifests()]
    assert numbers == list(range(1, len(numbers) + 1))
    assert verify(store, asyncio.run(other.held()), replays=True).faults == {}


# the address


def test_the_address_of_a_manifest_stands_in_event_and_log_and_is_read_in_its_own_session_alone(
    store: PackStore, caplog: pytest.LogCaptureFixture
) -> None:
    chat = chat_of(store)
    with caplog.at_level("INFO", logger="aether_context"):
        (event,) = chat.say("hello")[-1:]
    (manifest,) = list(store.manifests())[-1:]
    uri = event.custom_metadata[METADATA]["manifest"]
    assert uri == manifest.uri == f"artifact://packs/{manifest.pack_id}/manifest.json"
    assert uri in caplog.text
    chat.llm.script[:] = [call("read_artifact", uri=uri, max_lines=400), "read"]
    chat.say("What were you sent?")
    (answer,) = chat.llm.sent[-1].answers("read_artifact")
    assert manifest.checksum in answer["text"]
    chat.llm.script[:] = [call("big_file", name="b", lines=300), call("read_artifact", uri=uri), "read"]
    chat.say("What was the other sent?", session="s2")
    assert "error" in chat.llm.sent[-1].answers("read_artifact")[-1]


# whole or absent, in a spool


def test_a_manifest_waits_in_the_spool_for_its_segment_of_the_log(tmp_path: Path) -> None:
    url = "failing://removal-order"
    spool = Spool(tmp_path / "spool")
    files, there = SpooledFiles(Files(url), spool), PackStore(url)
    files.deliver = lambda: None  # type: ignore[method-assign]
    made = recording()
    try:
        FailingFileSystem.down = True
        manifest = there.through(files).write(made)
        FailingFileSystem.down = False
        FailingFileSystem.refused = ("/log/",)
        files._pause = 10.0  # it was tried for long
        for _ in range(4):
            files._deliver_all()
        assert there.places() == []
        other = there.through(files).write(recording("Another", call=2))
        assert there.places() == []
        FailingFileSystem.refused = ()
        while not spool.is_empty():
            files._deliver_all()
        assert {one.pack_id for one in there.manifests()} == {manifest.pack_id, other.pack_id}
        assert verify(there, replays=True).faults == {}
    finally:
        FailingFileSystem.end()


def test_a_manifest_whose_segment_is_damaged_in_the_spool_is_set_aside_with_it(tmp_path: Path) -> None:
    url = "failing://removal-damaged"
    spool = Spool(tmp_path / "spool")
    files, there = SpooledFiles(Files(url), spool), PackStore(url)
    files.deliver = lambda: None  # type: ignore[method-assign]
    try:
        FailingFileSystem.down = True
        there.through(files).write(recording())
        first = min((spool.path / "waiting").iterdir())
        first.write_bytes(first.read_bytes()[:-1])
        FailingFileSystem.down = False
        assert files._deliver_all()
        assert there.files.below(there.files.root) == []
        assert len(list(spool.listed("aside"))) == 2
    finally:
        FailingFileSystem.end()


# forget, and what waits


def test_forget_covers_what_waits_for_a_store_that_is_not_there_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SPOOL_FOLDER, str(tmp_path / "spool"))
    store = PackStore(tmp_path / "mount" / "store")
    spool = spool_of(store.files)
    assert spool is not None
    files = SpooledFiles(store.files, spool)
    files.deliver = lambda: None  # type: ignore[method-assign]
    monkeypatch.setattr(Files, "_create", _not_there)
    for user in ("ann", "ben"):
        store.through(files).write(recording(user=user))
    monkeypatch.undo()
    monkeypatch.setenv(SPOOL_FOLDER, str(tmp_path / "spool"))
    words = ["forget", "--app", "app", "--user", "ann"]
    assert "2 files" in run(*words, store=store).output
    assert len(spool.paths()) == 4
    run(*words, "--yes", store=store)
    assert {path.split("/app/")[1].split("/")[0] for path in spool.paths()} == {"ben"}
    assert files._deliver_all()
    assert [one.user for one in store.manifests()] == ["ben"]


def _not_there(*given: object) -> bool:
    raise OSError("the mount is not there yet")


def test_a_delivery_that_is_under_way_while_its_user_is_forgotten_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = "failing://removal-under-way"
    spool = Spool(tmp_path / "spool")
    files, there = SpooledFiles(Files(url), spool), PackStore(url)
    files.deliver = lambda: None  # type: ignore[method-assign]
    try:
        FailingFileSystem.down = True
        there.through(files).write(recording(user="ann"))
        there.through(files).write(recording(user="ben"))
        FailingFileSystem.down = False
        folder = there.files.place("app", "ann")
        send: Callable[..., str] = files._send

        def forgets_meanwhile(*given: object, **more: object) -> str:
            told = send(*given, **more)
            spool.forget([folder])
            return told

        monkeypatch.setattr(files, "_send", forgets_meanwhile)
        files._deliver_all()
        assert {one.user for one in there.manifests()} == {"ben"}
        assert not [file for file in there.files.below(there.files.root) if "/ann/" in file.path]
    finally:
        FailingFileSystem.end()


# modes


@pytest.mark.skipif(os.name != "posix", reason="modes are those of POSIX")
def test_files_and_folders_are_for_their_owner_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        store = PackStore(tmp_path / "a" / "store")
        memory = HybridMemoryService(tmp_path / "b" / "c" / "memories.sqlite", embedder="none")
        chat = chat_of(store, memory=memory)
        talk(chat)
        asyncio.run(memory.add_session_to_memory(asyncio.run(chat.held())))
    finally:
        os.umask(before)
    assert {entry.name for entry in (tmp_path / "a" / "store" / "shop" / "ann" / "s1").iterdir()} >= {"turns", "packs"}
    for top in ("a", "b"):
        for path in (tmp_path / top, *(tmp_path / top).rglob("*")):
            assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_what_a_pack_without_its_replay_file_says_is_shown(store: PackStore) -> None:
    chat = chat_of(store)
    chat.say("one", "two")
    first, *_, last = store.manifests()
    store.files.delete(paths_of(store, last)[1])
    shown = run("inspect", store=store, code=3)
    assert last.checksum in shown.stdout
    assert "is not there" in shown.stderr
    for words in (["list"], ["usage"], ["replay", first.pack_id]):
        run(*words, store=store)
    assert list(verify(store).faults) == [store.files.below_base(store.place(last))]


def test_a_session_is_forgotten_by_its_id_where_one_has_it(store: PackStore) -> None:
    for user, session in (("ann", "s1"), ("ann", "s2"), ("bob", "s2")):
        Chat(plugin=ContextPackPlugin(store=store), user=user, session=session).say("hello")

    delete = partial(run, "forget", "--yes", store=store)
    assert [line.split()[5] for line in run("list", store=store).stdout.splitlines()[1:]] == ["ann", "ann", "bob"]
    assert "--app shop --user ann, --app shop --user bob" in delete("--session", "s2", code=2).output
    delete("--session", "nope", code=3)
    assert len(list(store.manifests())) == 3
    delete("--session", "s1")
    delete("--session", "s2", "--user", "bob")
    assert [(one.user, one.session) for one in store.manifests()] == [("ann", "s2")]


def test_a_change_of_state_alone_has_no_store_asked_for_the_newest_pack(
    store: PackStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = chat_of(store)
    chat.say("go")

    async def note() -> None:
        event = Event(author="user", invocation_id="by-hand", actions=EventActions(state_delta={"note": 1}))
        await chat.sessions.append_event(await chat.held(), event)

    asyncio.run(note())
    asked = list[str]()
    folders = Files.folders
    monkeypatch.setattr(Files, "folders", lambda self, path, *more: asked.append(path) or folders(self, path, *more))
    chat.say("and now?")
    assert [path for path in asked if path.endswith("/packs")] == []
    numbers = [one.number for one in store.manifests()]
    assert numbers == list(range(1, len(numbers) + 1))
