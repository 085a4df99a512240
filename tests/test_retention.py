"""What a store forgets: by age in whole chains, of a user, of a session with its tools, and only what is ours."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import packs
import pytest
from click.testing import CliRunner
from packs import recording
from scripted import Chat, call

from aether_context import Manifest, PackStore
from aether_context.adk import ContextPackPlugin
from aether_context.cli import main
from aether_context.store.retention import DAY_SECONDS, all_of, carry_out, older_than
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


def big() -> str:
    """Returns much."""
    return "\n".join(f"line {at} of the long report says {at * 7}" for at in range(9_000))


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
