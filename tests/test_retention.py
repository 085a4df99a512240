"""What a store forgets and what it hands on: by age, size and reference, with agents writing to it meanwhile."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import threading
import time
from dataclasses import replace

import fsspec
import pytest
from click.testing import CliRunner
from failing import FailingFileSystem
from google.adk.agents import LlmAgent
from google.adk.tools.agent_tool import AgentTool
from pack_inputs import recording
from scripted import Chat, Scripted, call, look_up

from aether_context import PackPolicy, PackStore, replay
from aether_context.adk import ContextPackPlugin
from aether_context.cli.commands import main, size
from aether_context.store.replay import Replayer
from aether_context.store.retention import DAY_SECONDS, Rules, carry_out, carry_out_forgetting, forget, plan
from aether_context.store.spool import spool_of
from aether_context.usage.calibration import RATIO, TokenRatio


@pytest.fixture
def store(place):
    url, options = place
    return PackStore(url, **options)


def chained(store: PackStore, calls: int = 3) -> list:
    """Packs of one run, each but the first extending the one before it."""
    script = [*(call("look_up", key=str(at)) for at in range(calls - 1)), "done"]
    chat = Chat(plugin=ContextPackPlugin(store=store, on_error="raise"), script=script, tools=[look_up])
    chat.say("go")
    manifests = list(store.manifests())
    assert [one.parent for one in manifests] == [None, *(one.pack_id for one in manifests[:-1])]
    return manifests


def paths(store: PackStore) -> set[str]:
    return {file.path.removeprefix(store.files.root) for file in store.files.below(store.files.root)}


def days(count: float) -> float:
    return time.time() + count * DAY_SECONDS


def whole(store: PackStore) -> int:
    """How many packs verify and replay; all that are there have to."""
    replayer = Replayer(store)
    manifests = list(store.manifests())
    for manifest in manifests:
        manifest.verify()
        assert replayer.replay(manifest).matches
    return len(manifests)


def age(store: PackStore, monkeypatch, folders: dict[str, float]) -> None:
    """Makes files below some folders look as old as so many days."""
    below = store.files.below

    def aged(path):
        found = below(path)
        for at, file in enumerate(found):
            for piece, old in folders.items():
                if piece in file.path:
                    found[at] = file._replace(modified=time.time() - old * DAY_SECONDS)
        return found

    monkeypatch.setattr(store.files, "below", aged)


# gc


def test_what_is_young_stays(store):
    chained(store)
    (owner,) = store.owners()
    found = plan(store, owner, Rules(), days(6))
    assert found.files == ()
    assert found.kept_bytes > 0


def test_what_is_old_goes_and_leaves_nothing(store):
    store.write(recording())
    manifest = store.write(recording("Another", session="Odd Session", call=2))
    store.write_outcome(manifest, {"input_tokens": 1})
    store.write_calibration("app", "user", "model", RATIO.dump_python(TokenRatio()))
    (owner,) = store.owners()
    before = paths(store)
    found = plan(store, owner, Rules(), days(31))
    assert len(found.packs) == 2
    assert paths(store) == before
    carry_out(store, found)
    assert paths(store) == set()


def test_ages_are_by_kind(store):
    store.write(recording()._replace(saved={"artifact://messages/0123456789abcdef.txt": "long"}))
    store.write_summary("app", "user", "sha256:" + "1" * 64, "short")
    (owner,) = store.owners()
    found = plan(store, owner, Rules(), days(8))
    assert [len(one) for one in (found.packs, found.blobs, found.evidence, found.caches)] == [0, 0, 0, 1]
    found = plan(store, owner, Rules(), days(15))
    assert [len(one) for one in (found.packs, found.blobs, found.evidence, found.caches)] == [0, 0, 1, 1]
    carry_out(store, found)
    assert whole(store) == 1


def test_ancestors_outlive_their_age(store, monkeypatch):
    manifests = chained(store, 4)
    (owner,) = store.owners()
    old = {one.pack_id: 40.0 for one in manifests[:3]}
    age(store, monkeypatch, {**old, "/blobs/": 40.0})
    found = plan(store, owner, Rules(), time.time())
    assert found.packs == {}
    assert found.blobs == ()
    age(store, monkeypatch, {manifests[3].pack_id: 40.0})
    found = plan(store, owner, Rules(), time.time())
    assert [one.rsplit("/", 1)[1] for one in found.packs] == [one.pack_id for one in reversed(manifests)]
    carry_out(store, found)
    assert list(store.manifests()) == []


def test_a_text_stays_while_a_pack_names_it(store, monkeypatch):
    first = store.write(recording(policy=PackPolicy(max_input_tokens=15_000)))
    store.write(recording("Another question", session="later", call=2))
    (owner,) = store.owners()
    age(store, monkeypatch, {first.pack_id: 40.0, "/blobs/": 40.0})
    found = plan(store, owner, Rules(), time.time())
    assert [one.rsplit("/", 1)[1] for one in found.packs] == [first.pack_id]
    assert len(found.blobs) >= 1
    carry_out(store, found)
    assert whole(store) == 1


def test_bytes_of_evidence_stay_while_a_session_speaks_of_them(store, monkeypatch):
    base = f"{store.files.root}/app/user"
    for digest in ("a" * 64, "b" * 64):
        store.files.create(f"{base}/evidence/{digest[0]}/{digest}.bin", b"raw output")
    store.files.create(f"{base}/s1/evidence/{'1' * 16}.json", json.dumps({"digest": "sha256:" + "a" * 64}).encode())
    store.files.create(f"{base}/s2/evidence/{'2' * 16}.json", json.dumps({"digest": "sha256:" + "b" * 64}).encode())
    (owner,) = store.owners()
    age(store, monkeypatch, {"/user/evidence/": 20.0, "/s1/": 20.0})
    carry_out(store, plan(store, owner, Rules(), time.time()))
    assert paths(store) == {f"/app/user/evidence/b/{'b' * 64}.bin", f"/app/user/s2/evidence/{'2' * 16}.json"}
    carry_out_forgetting(store, forget(store, "app", "user", "s2"))
    assert paths(store) == set()


def test_nothing_goes_within_the_grace_period(store):
    chained(store)
    (owner,) = store.owners()
    rules = Rules(packs_seconds=0, evidence_seconds=0, caches_seconds=0, most_bytes=0)
    assert plan(store, owner, rules, time.time()).files == ()
    assert len(plan(store, owner, replace(rules, grace_seconds=0), days(0.01)).packs) == 3


def test_a_quota_takes_the_chains_written_to_longest_ago(store, monkeypatch):
    made = [store.write(recording(f"Question {at}", session=f"s{at}", call=at)) for at in range(5)]
    (owner,) = store.owners()
    age(store, monkeypatch, {one.pack_id: 5.0 - at for at, one in enumerate(made)} | {"/blobs/": 5.0})
    everything = plan(store, owner, Rules(), time.time()).kept_bytes
    found = plan(store, owner, Rules(most_bytes=everything // 2), time.time())
    gone = {one.rsplit("/", 1)[1] for one in found.packs}
    assert gone == {one.pack_id for one in made[: len(gone)]}
    assert 0 < len(gone) < 5
    assert found.kept_bytes <= everything // 2
    carry_out(store, found)
    assert whole(store) == 5 - len(gone)


def test_a_pack_written_meanwhile_keeps_what_it_needs(store, monkeypatch):
    """Between plan and deletion an agent extends an old pack and names old texts."""
    manifests = chained(store, 3)
    (owner,) = store.owners()
    *older, last = manifests
    held = store.files.read(f"{store.place(last)}.json.gz")
    store.files.delete(f"{store.place(last)}.json.gz")
    found = plan(store, owner, Rules(), days(31))
    assert len(found.packs) >= 2
    assert found.blobs
    found = replace(found, links={pack: link for pack, link in found.links.items() if pack != store.place(last)})
    store.files.create(f"{store.place(last)}.json.gz", held)
    carried = carry_out(store, found)
    assert not [pack for pack in carried.packs if pack.endswith(tuple(one.pack_id for one in older))]
    assert whole(store) == 3


def test_a_text_named_in_the_moment_of_its_deletion_is_put_back(store):
    made = recording()
    store.write(made)
    (owner,) = store.owners()
    found = plan(store, owner, Rules(), days(31))
    again = recording("What is my dog called?", session="new", call=9)
    written = []

    def agent(file):
        if "/blobs/" in file.path and not written:
            written.append(PackStore.write(store, again))  # it has seen the other texts and does not write them again

    carry_out(store, found, agent)
    assert written
    assert replay(written[0], store).matches


def test_agents_that_write_meanwhile_lose_nothing(tmp_path):
    """Agents write packs whose texts are those of old packs, while these are collected again and again."""
    texts = [f"Question {at}" for at in range(40)]
    for at, text in enumerate(texts):
        PackStore(tmp_path).write(recording(text, session="old", call=at + 1))
    long_ago = time.time() - 40 * DAY_SECONDS
    for path in tmp_path.rglob("*.json.gz"):
        os.utime(path, (long_ago, long_ago))
    failures = []

    def agent(number: int) -> None:
        for at, text in enumerate(texts):
            try:  # a process of its own each time, which knows of nothing that is there
                PackStore(tmp_path).write(recording(text, session=f"new-{number}", call=at + 1))
            except Exception as error:
                failures.append(error)

    agents = [threading.Thread(target=agent, args=(number,)) for number in range(3)]
    for one in agents:
        one.start()
    store = PackStore(tmp_path)
    (owner,) = store.owners()
    collected = 0
    while any(one.is_alive() for one in agents):
        collected += len(carry_out(store, plan(store, owner, Rules(), time.time())).files)
    assert failures == []
    assert collected >= 40
    assert whole(PackStore(tmp_path)) == 120


def test_an_unreadable_manifest_keeps_all_texts(store):
    store.write(recording())
    other = store.write(recording("Another", call=2))
    store.files.replace(f"{store.place(other)}.json.gz", b"{broken")
    (owner,) = store.owners()
    found = plan(store, owner, Rules(), days(10))
    assert [one.rsplit("/", 1)[1] for one in found.unreadable] == [other.pack_id]
    assert found.blobs == ()
    assert found.packs == {}


def test_artifacts_of_an_app_are_never_touched(store):
    store.write(recording())
    path = f"{store.files.root}/app/user/session/artifacts/report.md/0"
    store.files.create(path, b"{}\ntext")
    (owner,) = store.owners()
    carry_out(store, plan(store, owner, Rules(), days(400)))
    assert store.files.get(path) is not None


# forget


def test_forgetting_a_user_leaves_nothing_of_them(store):
    for user in ("ann", "Bob Ä", "anna", "an"):
        store.write(recording(user=user))
        store.write_summary("app", user, "sha256:" + "1" * 64, "x")
    files = forget(store, "app", "Bob Ä")
    carry_out_forgetting(store, files)
    assert not [one for one in paths(store) if "bob" in one]
    assert forget(store, "app", "Bob Ä") == ()
    carry_out_forgetting(store, forget(store, "app", "ann"))
    assert {one.user for one in store.manifests()} == {"an", "anna"}
    assert not [one for one in paths(store) if "/ann/" in one]
    assert whole(store) == 2


@pytest.mark.parametrize("session", ["s1", "s2"])
def test_an_agent_that_is_running_while_its_user_is_forgotten_records_whole_packs_again(store, session):
    """In the session that was forgotten, and in one that begins then."""
    chat = Chat(plugin=ContextPackPlugin(store=store, on_error="raise"))
    chat.say("one", "two")
    carry_out_forgetting(store, forget(store, "shop", "ann"))
    chat.say("three", "four", session=session)
    manifests = list(store.manifests())
    assert [one.parent is None for one in manifests] == [True, False]
    assert whole(store) == 2
    assert [one.pack_id for one in manifests] == [store.read(one).pack_id for one in store.places(newest=2)]


def test_forgetting_a_session_leaves_the_others_whole(store):
    for at in range(3):
        store.write(recording(f"The secret of {at}", session=f"s{at}", call=at + 1))
    carry_out_forgetting(store, forget(store, "app", "user", "s1"))
    assert [one.session for one in store.manifests()] == ["s0", "s2"]
    assert whole(store) == 2
    held = [
        gzip.decompress(store.files.read(one.path))
        for one in store.files.below(store.files.root)
        if one.path.endswith(".gz")
    ]
    assert not [data for data in held if b"secret of 1" in data]
    assert [data for data in held if b"secret of 2" in data]


def team(depth: int, plugin: ContextPackPlugin | None = None, **settings) -> Chat:
    """An agent with an agent as a tool, which has one too, ``depth`` deep, all asked once for each message."""
    agent = LlmAgent(name="agent0", model=Scripted(model="m", script=["the secret of 0"] * 9, sent=[]))
    for at in range(1, depth):
        script = [call(agent.name, request="go on"), f"the secret of {at}"] * 4
        agent = LlmAgent(name=f"agent{at}", model=Scripted(model="m", script=script, sent=[]), tools=[AgentTool(agent)])
    return Chat(agent=agent, plugin=plugin, **settings)


def contents(store: PackStore) -> list[bytes]:
    held = [(one.path, store.files.read(one.path)) for one in store.files.below(store.files.root)]
    return [gzip.decompress(data) if path.endswith(".gz") else data for path, data in held]


@pytest.mark.parametrize("depth", [2, 4])
def test_forgetting_a_session_takes_those_of_agents_that_ran_as_its_tools(store, depth):
    chat = team(depth, ContextPackPlugin(store=store, on_error="raise"))
    chat.say("one", "two")
    chat.say("mine", session="s2")
    sessions = {one.session: one.caller for one in store.manifests()}
    assert len(sessions) == 3 * (depth - 1) + 2
    assert sessions["s1"] is sessions["s2"] is None
    carry_out_forgetting(store, forget(store, "shop", "ann", "s1"))
    left = list(store.manifests())
    assert len({one.session for one in left}) == depth
    assert whole(store) == len(left)
    assert not [
        path for path in paths(store) if "/hours/" in path and path.rsplit("/", 1)[1] not in str(store.places())
    ]
    carry_out_forgetting(store, forget(store, "shop", "ann", "s2"))
    assert not [data for data in contents(store) if b"secret" in data]
    assert list(store.manifests()) == []


def test_forgetting_a_session_finds_its_tools_sessions_that_wait_on_this_machine(tmp_path):
    fsspec.register_implementation("failing", FailingFileSystem, clobber=True)
    FailingFileSystem.down = True
    store = PackStore("failing://tools")
    try:
        team(3, ContextPackPlugin(store=store, on_error="raise")).say("one")
    finally:
        FailingFileSystem.down = False
    spool = spool_of(store.files)
    assert len([path for path in spool.paths() if "/packs/" in path]) == 5
    carry_out_forgetting(store, forget(store, "shop", "ann", "s1"))
    assert not [path for path in spool.paths() if "/packs/" in path or "/hours/" in path]


def test_a_session_of_its_own_that_a_tool_also_talks_to_stays(store):
    """A tool runs an agent in a session that goes on without it; after the tool, no session is anybody's tool."""
    plugin = ContextPackPlugin(store=store, on_error="raise")
    other = Chat(plugin=plugin, script=["noted"] * 4)

    async def tell_the_other() -> str:
        await other.tell("from a tool", session="diary")
        return "told"

    chat = Chat(plugin=plugin, script=[call("tell_the_other"), "done"] * 2, tools=[tell_the_other])

    async def all_in_one_task() -> None:
        await other.tell("my own words", session="diary")
        await chat.tell("go", session="s1")
        await other.tell("later", session="after")

    asyncio.run(all_in_one_task())
    assert {one.session for one in store.manifests() if one.caller} == {"diary"}
    carry_out_forgetting(store, forget(store, "shop", "ann", "s1"))
    assert {one.session for one in store.manifests()} == {"diary", "after"}
    assert whole(store) == 3


# on the command line


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, [*map(str, words)])
    return result.exit_code, result.output


def test_gc_shows_before_it_deletes(tmp_path):
    store = PackStore(tmp_path)
    store.write(recording(policy=PackPolicy(max_input_tokens=16_000)))
    before = paths(store)
    old = ["--pack-days", "0", "--cache-days", "0", "--evidence-days", "0", "--grace-minutes", "0"]
    code, output = run("gc", "--store", tmp_path)
    assert code == 0
    assert "0 files, 0 bytes would be deleted" in output
    code, output = run("gc", "--store", tmp_path, "--max-bytes", "0.001kB", "--grace-minutes", "0")
    assert "nothing was deleted: add --yes" in output
    code, output = run("gc", "--store", tmp_path, *old)
    assert "nothing was deleted: add --yes" in output
    assert paths(store) == before
    code, output = run("gc", "--store", tmp_path, *old, "--yes", "--json")
    (user,) = json.loads(output)["users"]
    assert (user["user"], user["packs"], user["unreadable"]) == ("app/user", 1, [])
    assert paths(store) == set()


@pytest.mark.parametrize(
    ("said", "bytes_meant"),
    [
        ("0", 0),
        ("1048576", 1_048_576),
        ("10GB", 10_000_000_000),
        ("500MiB", 500 * 2**20),
        ("1.5 kb", 1_500),
        ("0.5KiB", 512),
        ("2tib", 2 * 2**40),
        ("3B", 3),
        (" 7 MB ", 7_000_000),
    ],
)
def test_sizes_are_read_as_people_write_them(said, bytes_meant):
    assert size(said) == bytes_meant


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("-1", "is no size"),
        ("10 GBytes", "is no size"),
        ("ten", "is no size"),
        ("", "is no size"),
        ("1e9", "is no size"),
        ("nan", "is no size"),
        ("10XB", "with a unit out of B, kB"),
        ("1G", "is no size"),
    ],
)
def test_gc_says_what_is_no_size(tmp_path, said, told):
    code, output = run("gc", "--store", tmp_path, "--max-bytes", said)
    assert code == 2
    assert "--max-bytes" in output
    assert told in " ".join(output.replace("│", "").split())


def test_gc_says_what_it_cannot_read(tmp_path):
    store = PackStore(tmp_path)
    manifest = store.write(recording())
    store.files.replace(f"{store.place(manifest)}.json.gz", b"{")
    code, output = run("gc", "--store", tmp_path)
    assert code == 3
    assert "no text of this user is deleted" in output


def test_forget_asks_for_a_yes(tmp_path):
    store = PackStore(tmp_path)
    store.write(recording(user="ann"))
    whose = ["--app", "app", "--user", "ann"]
    code, output = run("forget", "--store", tmp_path, *whose)
    assert code == 0
    assert "would be deleted" in output
    assert len(list(store.manifests())) == 1
    code, output = run("forget", "--store", tmp_path, *whose, "--yes", "--json")
    assert json.loads(output)["files"] > 3
    assert paths(store) == set()
    code, output = run("forget", "--store", tmp_path, *whose)
    assert code == 3
    assert "nothing of app 'app' user 'ann'" in output
