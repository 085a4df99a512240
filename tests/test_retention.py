"""What a store forgets: by age in whole chains, of a user, of a session with its tools, and only what is ours."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable

import packs
import pytest
from click.testing import CliRunner
from failing import FailingFileSystem
from google.adk.agents import LlmAgent
from google.adk.tools.agent_tool import AgentTool
from pack_inputs import recording
from scripted import Chat, Scripted, call

from aether_context import Manifest, PackStore
from aether_context.adk import ContextPackPlugin
from aether_context.cli import main
from aether_context.store.pack_file import ENDING
from aether_context.store.retention import DAY_SECONDS, all_of, carry_out, older_than
from aether_context.store.spool import spool_of
from aether_context.store.verification import verify


@pytest.fixture
def store(place):
    url, options = place
    return PackStore(url, **options)


def paths(store: PackStore) -> set[str]:
    return {file.path.removeprefix(store.files.root) for file in store.files.below(store.files.root)}


def age(store: PackStore, monkeypatch: pytest.MonkeyPatch, days: Callable[[str], float]) -> None:
    """Makes files look as old as ``days`` says of their paths."""
    below = store.files.below

    def aged(path):
        return [file._replace(modified=time.time() - days(file.path) * DAY_SECONDS) for file in below(path)]

    monkeypatch.setattr(store.files, "below", aged)


def forget_older(store: PackStore, days: float = 30) -> None:
    (owner,) = store.owners()
    carry_out(store, older_than(store, owner, days * DAY_SECONDS, time.time()))


def sound(store: PackStore) -> int:
    """How many packs there are; all verify and replay, and none is missed."""
    found = verify(store, replays=True)
    assert found.faults == {}
    return found.packs


# by age


def test_what_is_young_stays(store):
    packs.talk(store, turns=3)
    (owner,) = store.owners()
    assert older_than(store, owner, DAY_SECONDS, time.time() + 3_600).files == ()


def test_what_is_old_goes_and_leaves_nothing(store):
    store.write(recording())
    manifest = store.write(recording("Another", session="Odd Session", call=2))
    store.write_outcome(manifest, {"input_tokens": 1})
    store.write_calibration("app", "user", "model", {})
    store.write_summary("app", "user", "sha256:" + "1" * 64, "short")
    (owner,) = store.owners()
    before = paths(store)
    found = older_than(store, owner, 30 * DAY_SECONDS, time.time() + 31 * DAY_SECONDS)
    assert paths(store) == before
    carry_out(store, found)
    assert paths(store) == set()


def test_a_chain_that_goes_on_stays_with_its_first_pack(store, monkeypatch):
    first, *others, last = packs.chain(store, 4)
    age(store, monkeypatch, lambda path: 1 if last.pack_id in path else 40)
    forget_older(store)
    assert sound(store) == 2 + len(others)
    assert first.extends is None
    age(store, monkeypatch, lambda path: 40)
    forget_older(store)
    assert paths(store) == set()


def test_chains_that_are_over_go_one_by_one(store, monkeypatch):
    manifests = packs.talk(store, turns=16)
    begins = [at for at, one in enumerate(manifests) if one.extends is None]
    for begin in begins[1:]:
        old = {one.pack_id for one in manifests[:begin]}
        age(store, monkeypatch, lambda path, old=old: 40 if any(name in path for name in old) else 1)
        forget_older(store)
        assert sound(store) == len(manifests) - begin


def test_what_was_taken_out_stays_while_a_pack_that_stays_names_it(store, monkeypatch):
    chat = Chat(plugin=ContextPackPlugin(store=store, on_error="raise"), tools=[big], script=[call("big"), "done"])
    chat.say("go")
    last = list(store.manifests())[-1]
    assert last.artifact_uris
    age(store, monkeypatch, lambda path: 1 if last.pack_id in path else 40)
    before = paths(store)
    forget_older(store)
    assert paths(store) == before
    age(store, monkeypatch, lambda path: 40)
    forget_older(store)
    assert paths(store) == set()


def test_bytes_of_evidence_stay_while_another_session_speaks_of_them(store, monkeypatch):
    chat = Chat(plugin=ContextPackPlugin(store=store, on_error="raise"), tools=[big], script=[call("big"), "done"])
    chat.say("go")
    chat.llm.script[:] = [call("big"), "done"]
    chat.say("go", session="s2")
    assert len([path for path in paths(store) if path.endswith(".bin")]) == 1
    carry_out(store, all_of(store, "shop", "ann", "s1"))
    assert len([path for path in paths(store) if path.endswith(".bin")]) == 1
    carry_out(store, all_of(store, "shop", "ann", "s2"))
    assert paths(store) == set()


def big() -> str:
    """Returns much."""
    return "\n".join(f"line {at} of the long report says {at * 7}" for at in range(9_000))


def test_a_torn_pack_keeps_its_session_until_all_of_it_is_old(store, monkeypatch):
    first, second = packs.chain(store, 2)
    torn = f"{store.place(first)}{ENDING}"
    store.files.replace(torn, b"{broken")
    age(store, monkeypatch, lambda path: 1 if second.pack_id in path else 40)
    (owner,) = store.owners()
    found = older_than(store, owner, 30 * DAY_SECONDS, time.time())
    assert (found.files, found.unreadable) == ((), (torn,))
    age(store, monkeypatch, lambda path: 40)
    forget_older(store)
    assert paths(store) == set()


def test_artifacts_of_an_app_are_never_touched_for_their_age(store):
    store.write(recording())
    path = f"{store.files.root}/app/user/session/artifacts/report.md/0"
    store.files.create(path, b"{}\ntext")
    (owner,) = store.owners()
    carry_out(store, older_than(store, owner, 0, time.time() + 400 * DAY_SECONDS))
    assert store.files.get(path) is not None


# a user, a session


def test_forgetting_a_user_leaves_nothing_of_them(store):
    for user in ("ann", "Bob Ä", "anna", "an"):
        store.write(recording(user=user))
        store.write_summary("app", user, "sha256:" + "1" * 64, "x")
    carry_out(store, all_of(store, "app", "Bob Ä"))
    assert not [one for one in paths(store) if "bob" in one]
    assert all_of(store, "app", "Bob Ä").files == ()
    carry_out(store, all_of(store, "app", "ann"))
    assert {one.user for one in store.manifests()} == {"an", "anna"}
    assert not [one for one in paths(store) if "/ann/" in one]
    assert sound(store) == 2


@pytest.mark.parametrize("session", ["s1", "s2"])
def test_an_agent_that_is_running_while_its_user_is_forgotten_records_whole_packs_again(store, session):
    """In the session that was forgotten, and in one that begins then."""
    chat = Chat(plugin=ContextPackPlugin(store=store, on_error="raise"))
    chat.say("one", "two")
    carry_out(store, all_of(store, "shop", "ann"))
    chat.say("three", "four", session=session)
    manifests: list[Manifest] = list(store.manifests())
    assert [one.extends is None for one in manifests] == [True, False]
    chat.replays()


def test_forgetting_a_session_leaves_the_others_whole(store):
    for at in range(3):
        store.write(recording(f"The secret of {at}", session=f"s{at}", call=at + 1))
    carry_out(store, all_of(store, "app", "user", "s1"))
    assert [one.session for one in store.manifests()] == ["s0", "s2"]
    assert sound(store) == 2
    held = [line for one in store.manifests() for line in packs.lines_of(store, one)]
    assert not [line for line in held if b"secret of 1" in line]
    assert [line for line in held if b"secret of 2" in line]


# sessions of agents that run as tools


def team(depth: int, plugin: ContextPackPlugin | None = None, **settings) -> Chat:
    """An agent with an agent as a tool, which has one too, ``depth`` deep, all asked once for each message."""
    agent = LlmAgent(name="agent0", model=Scripted(model="m", script=["the secret of 0"] * 9, sent=[]))
    for at in range(1, depth):
        script = [call(agent.name, request="go on"), f"the secret of {at}"] * 4
        agent = LlmAgent(name=f"agent{at}", model=Scripted(model="m", script=script, sent=[]), tools=[AgentTool(agent)])
    return Chat(agent=agent, plugin=plugin, **settings)


@pytest.mark.parametrize("depth", [2, 4])
def test_forgetting_a_session_takes_those_of_agents_that_ran_as_its_tools(store, depth):
    chat = team(depth, ContextPackPlugin(store=store, on_error="raise"))
    chat.say("one", "two")
    chat.say("mine", session="s2")
    sessions = {one.session: one.caller for one in store.manifests()}
    assert len(sessions) == 3 * (depth - 1) + 2
    assert sessions["s1"] is sessions["s2"] is None
    carry_out(store, all_of(store, "shop", "ann", "s1"))
    left = list(store.manifests())
    assert len({one.session for one in left}) == depth
    assert sound(store) == len(left)
    carry_out(store, all_of(store, "shop", "ann", "s2"))
    assert not [file for file in store.files.below(store.files.root) if b"secret" in store.files.read(file.path)]
    assert list(store.manifests()) == []


def test_forgetting_a_session_finds_its_tools_sessions_that_wait_on_this_machine():
    FailingFileSystem.down = True
    store = PackStore("failing://tools")
    try:
        team(3, ContextPackPlugin(store=store, on_error="raise")).say("one")
    finally:
        FailingFileSystem.down = False
    spool = spool_of(store.files)
    assert len([path for path in spool.paths() if "/packs/" in path]) == 5
    carry_out(store, all_of(store, "shop", "ann", "s1"))
    assert not [path for path in spool.paths() if "/packs/" in path]


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
    carry_out(store, all_of(store, "shop", "ann", "s1"))
    assert {one.session for one in store.manifests()} == {"diary", "after"}
    assert sound(store) == 3


# on the command line


def run(*words: object) -> tuple[int, str]:
    result = CliRunner().invoke(main, [*map(str, words)])
    return result.exit_code, result.output


def test_forget_by_age_shows_before_it_deletes(tmp_path):
    store = PackStore(tmp_path)
    store.write(recording())
    before = paths(store)
    code, output = run("forget", "--older-than", 1, "--store", tmp_path)
    assert (code, "0 files, 0 bytes would be deleted" in output) == (0, True)
    code, output = run("forget", "--older-than", 0, "--store", tmp_path)
    assert "1 files, " in output
    assert "nothing was deleted: add --yes" in output
    assert paths(store) == before
    code, output = run("forget", "--older-than", 0, "--store", tmp_path, "--yes", "--json")
    (user,) = json.loads(output)["users"]
    assert (user["user"], user["files"], user["unreadable"]) == ("app/user", 1, [])
    assert paths(store) == set()


def test_forget_says_what_it_cannot_read(tmp_path):
    store = PackStore(tmp_path)
    manifests = packs.chain(store, 2)
    store.files.replace(f"{store.place(manifests[0])}{ENDING}", b"{")
    code, output = run("forget", "--older-than", 100, "--store", tmp_path)
    assert code == 3
    assert "the packs of its session stay" in output


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "name --app and --user"),
        (("--app", "app"), "name --app and --user"),
        (("--older-than", "1", "--session", "s"), "a session is forgotten whole"),
        (("--older-than", "nan"), "is not a number"),
    ],
)
def test_forget_says_what_it_needs(tmp_path, words, told):
    PackStore(tmp_path).write(recording())
    code, output = run("forget", "--store", tmp_path, *words)
    assert code == 2
    assert told in " ".join(output.replace("│", "").split())


def test_forget_asks_for_a_yes(tmp_path):
    store = PackStore(tmp_path)
    store.write(recording(user="ann"))
    whose = ["--app", "app", "--user", "ann"]
    code, output = run("forget", "--store", tmp_path, *whose)
    assert code == 0
    assert "would be deleted" in output
    assert len(list(store.manifests())) == 1
    code, output = run("forget", "--store", tmp_path, *whose, "--yes", "--json")
    (user,) = json.loads(output)["users"]
    assert (user["files"], paths(store)) == (1, set())
    code, output = run("forget", "--store", tmp_path, *whose)
    assert code == 3
    assert "nothing of app 'app' user 'ann'" in output


def test_forget_leaves_what_is_not_ours(tmp_path):
    store = PackStore(tmp_path)
    store.write(recording(user="ann"))
    for path in ("app/ann/notes.txt", "app/ann/evidence/report.json", "app/ann/session/packs/.DS_Store"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("somebody's")
    code, output = run("forget", "--store", tmp_path, "--app", "app", "--user", "ann", "--yes")
    assert code == 0
    assert "3 files that are not ours were left" in output
    assert len(paths(store)) == 3
