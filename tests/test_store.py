"""The store: written once, whole or not at all, by content, inside its own folder; and what it forgets."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import packs
import pytest
from failing import FailingFileSystem
from hypothesis import given
from hypothesis import strategies as st
from packs import recording
from scripted import Chat, call, sound
from terminal import run
from upkeep import delete_older, forget
from wording import FORGOTTEN

from aether_context import Manifest, PackStore, verify
from aether_context.adk import ContextPackPlugin
from aether_context.errors import PackNotFound, StoreError
from aether_context.store import schema
from aether_context.store.files import Files, segment


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
    for name in packs.paths_of(store, manifest):
        good = Path(name).read_bytes()
        for at in range(0, len(good), 11):
            Path(name).write_bytes(good[:at] + bytes([good[at] ^ (1 << at % 8)]) + good[at + 1 :])
            assert verify(store).faults, (name, at)
        Path(name).write_bytes(good)
    assert verify(store).faults == {}


def test_the_published_schema_takes_a_manifest():
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.validate(json.loads(recording().manifest.to_json()), schema())
    assert all(field.get("description") for field in schema()["properties"].values())


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


def test_a_call_for_which_there_is_no_thread_can_be_tried_again(tmp_path):
    files = Files(tmp_path, timeout_seconds=5.0)
    threading.stack_size(1 << 46)
    try:
        with pytest.raises(StoreError, match="cannot be called"):
            files.create(f"{files.root}/a", b"a")
    finally:
        threading.stack_size(0)
    assert files.create(f"{files.root}/a", b"a")


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


def paths(store: PackStore) -> set[str]:
    return {file.path.removeprefix(store.files.root) for file in store.files.below(store.files.root)}


def age(store: PackStore, monkeypatch: pytest.MonkeyPatch, days: Callable[[str], float]) -> None:
    """Makes files look as old as ``days`` says of their paths."""
    below = store.files.below

    def aged(path):
        return [file._replace(modified=time.time() - days(file.path) * 86_400) for file in below(path)]

    monkeypatch.setattr(store.files, "below", aged)


def forget_older(store: PackStore, days: float = 30) -> None:
    delete_older(store, days * 86_400, time.time())


def verified(store: PackStore) -> int:
    """How many packs there are; all verify and replay, and none is missed."""
    found = verify(store, replays=True)
    assert found.faults == {}
    return found.packs


def test_what_is_old_goes_and_leaves_nothing(store):
    store.write(recording())
    manifest = store.write(recording("Another", session="Odd Session", call=2))
    store.write_all([], [(manifest, {"input_tokens": 1})])
    store.write_calibration("app", "user", "model", {})
    store.write_summary("app", "user", "sha256:" + "1" * 64, "short")
    assert delete_older(store, 30 * 86_400, time.time() + 29 * 86_400) == []
    delete_older(store, 30 * 86_400, time.time() + 31 * 86_400)
    assert paths(store) == set()


def test_a_segment_stays_while_a_pack_that_stays_needs_it(store, monkeypatch):
    *others, last = packs.talk(store)
    segments = [packs.paths_of(store, manifest)[1].removeprefix(store.files.root) for manifest in others]
    age(store, monkeypatch, lambda path: 1 if last.pack_id in path else 40)
    forget_older(store)
    assert verified(store) == 1
    assert {segment in paths(store) for segment in segments} == {True, False}
    age(store, monkeypatch, lambda path: 40)
    forget_older(store)
    assert paths(store) == set()


def test_what_was_taken_out_stays_while_a_pack_that_stays_names_it(store, monkeypatch):
    chat = Chat(plugin=ContextPackPlugin(store=store, on_error="raise"), tools=[big], script=[call("big"), "done"])
    chat.say("go")
    first, last = store.manifests()
    assert last.artifact_uris
    age(store, monkeypatch, lambda path: 1 if last.pack_id in path else 40)
    before = {path for path in paths(store) if first.pack_id not in path}
    forget_older(store)
    assert paths(store) - before == {f"/shop/ann/s1/{FORGOTTEN}"}
    assert before - paths(store) == set()
    assert verified(store) == 1
    age(store, monkeypatch, lambda path: 40)
    forget_older(store)
    assert paths(store) == set()


def big() -> str:
    """Returns much."""
    return "\n".join(f"line {at} of the long report says {at * 7}" for at in range(9_000))


def test_forgetting_a_user_leaves_nothing_of_them(store):
    for user in ("ann", "Bob Ä", "anna", "an"):
        store.write(recording(user=user))
        store.write_summary("app", user, "sha256:" + "1" * 64, "x")
    forget(store, "app", "Bob Ä")
    assert not [one for one in paths(store) if "bob" in one]
    assert forget(store, "app", "Bob Ä") == []
    assert forget(store, "app", "ann", "a session that is not there") == []
    forget(store, "app", "ann")
    assert {one.user for one in store.manifests()} == {"an", "anna"}
    assert not [one for one in paths(store) if "/ann/" in one]
    assert verified(store) == 2


@pytest.mark.parametrize("session", ["s1", "s2"])
def test_an_agent_that_is_running_while_its_user_is_forgotten_records_whole_packs_again(store, session):
    """In the session that was forgotten, and in one that begins then."""
    chat = Chat(plugin=ContextPackPlugin(store=store, on_error="raise"))
    chat.say("one", "two")
    forget(store, "shop", "ann")
    chat.say("three", "four", session=session)
    manifests: list[Manifest] = list(store.manifests())
    assert [one.extends is None for one in manifests] == [True, False]
    chat.replays()


@pytest.mark.parametrize("fault", ["is spared", "does not say"])
def test_where_the_store_is_slow_an_agent_whose_user_is_forgotten_records_whole_packs_again(
    tmp_path, monkeypatch, fault
):
    store, read = PackStore(tmp_path), Files.read
    chat = Chat(plugin=ContextPackPlugin(store=store, on_error="raise"))
    chat.say("one", "two")
    forget(store, "shop", "ann")

    def silent(files, path, start=None, end=None):
        if end == 1:
            raise StoreError("it is busy")
        return read(files, path, start, end)

    with monkeypatch.context() as patched:
        if fault == "is spared":
            chat.plugin._packer._parts.recorder._spooled.spare()
        else:
            patched.setattr(Files, "read", silent)
        chat.say("three")
        manifests = list(store.manifests())
    assert [one.extends for one in manifests] == [None]
    chat.replays()


def test_forgetting_a_user_names_what_it_leaves_to_adks_services(tmp_path):
    store = PackStore(tmp_path)
    store.write(recording())
    words = ("forget", "--app", "app", "--user", "user")
    assert "ADK's services" not in run(*words, store=store).stderr
    assert "sessions and memories in ADK's services stay" in run(*words, "--yes", store=store).stderr


def test_forget_by_age_shows_before_it_deletes(tmp_path):
    store = PackStore(tmp_path)
    store.write(recording())
    before = paths(store)
    assert "0 files, 0 bytes would be deleted" in run("forget", "--older-than", 1, store=store).output
    output = run("forget", "--older-than", 0, store=store).output
    assert "2 files, " in output
    assert "nothing was deleted: add --yes" in output
    assert paths(store) == before
    result = run("forget", "--older-than", 0, "--yes", "--json", store=store)
    assert "ADK" not in result.stderr
    (user,) = json.loads(result.stdout)["users"]
    assert (user["user"], user["files"], user["unreadable"]) == ("app/user", 2, [])
    assert paths(store) == set()


@pytest.mark.parametrize(
    ("words", "needs"),
    [
        ((), "name --app and --user"),
        (("--app", "app"), "name --app and --user"),
        (("--older-than", "1", "--session", "s"), "a session is forgotten whole"),
        (("--older-than", "nan"), "is not a number"),
    ],
)
def test_forget_says_what_it_needs(tmp_path, words, needs):
    PackStore(tmp_path).write(recording())
    output = run("forget", "--store", tmp_path, *words, code=2).output
    assert needs in " ".join(output.replace("│", "").split())


@pytest.mark.parametrize("package", ["duckdb", "polars", "pandas"])
def test_other_programs_make_a_table_of_all_manifests(package, tmp_path, monkeypatch):
    pytest.importorskip(package)
    page = (Path(__file__).parents[1] / "docs" / "manifest.md").read_text(encoding="utf-8")
    (source,) = (block for block in page.split("```") if "manifest.json" in block and "duckdb" in block)
    others = {"duckdb", "polars", "pandas"} - {package}
    lines = [line for line in source.splitlines()[1:] if not any(other in line for other in others)]
    monkeypatch.chdir(tmp_path)
    chat = Chat(plugin=ContextPackPlugin(store="artifacts"), tools=[big], script=[call("big"), "done"])
    chat.say("go", "and now?")
    packs.chain(PackStore("artifacts"), 3)
    names = {}
    exec("\n".join([*lines[:-1], f"table = {lines[-1]}"]), names)
    table = names["table"].fetchall() if package == "duckdb" else names["table"]
    assert len(table) == (2 if package == "duckdb" else 6)


def test_a_profile_of_s3_holds_and_times_are_read_in_every_form(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("s3fs")
    config = tmp_path / "config"
    config.write_text("[profile shop]\nregion = eu-north-1\n", encoding="utf-8")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    session = PackStore("s3://bucket/packs", profile="shop").files.fs.session
    assert session.get_config_variable("region") == "eu-north-1"
    assert PackStore("s3://bucket/packs").files.fs.session is not session
    parser = session.get_component("response_parser_factory").create_parser("rest-xml")
    for text in ("2026-11-27T09:31:47.000Z", "Fri, 27 Nov 2026 09:31:47 GMT", "1795771907"):
        assert parser._timestamp_parser(text).timestamp() == 1_795_771_907


class NoBucket(BaseHTTPRequestHandler):
    """Answers as S3 does where the bucket is not there."""

    def answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = b"<Error><Code>NoSuchBucket</Code><Message>The specified bucket does not exist</Message></Error>"
        self.send_response(404)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_HEAD = do_PUT = answer  # noqa: N815

    def log_message(self, *args: Any) -> None:
        """Says nothing."""


def test_a_bucket_that_is_not_there_is_an_outage_and_no_empty_store() -> None:
    pytest.importorskip("s3fs")
    with ThreadingHTTPServer(("127.0.0.1", 0), NoBucket) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        files = PackStore("s3://bucket/packs", key="key", secret="secret", endpoint_url=url).files
        for look in (files.is_there, partial(files.get, f"{files.root}/a"), partial(files.files, files.root)):
            with pytest.raises(StoreError, match="bucket does not exist"):
                look()
        server.shutdown()
