"""The command line over stores that are built here: what it prints, what it returns, and what it does not load."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import packs
import pytest
from failing import FailingFileSystem
from google.adk.models.llm_response import LlmResponse
from scripted import Chat, call, look_up
from terminal import run, told

from aether_context import Manifest, PackPolicy, PackStore
from aether_context.lab.cli import main
from aether_context.lab.reading import view_under
from aether_context.policy import PRESETS
from aether_context.store.replay import Replayer
from aether_context.store.spool import Write, spool_of

ROOT = Path(__file__).parents[1]
_numbers = itertools.count(1)


@pytest.fixture(params=["memory", "folder"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> PackStore:
    """An empty store that no other test sees, in memory and in a folder."""
    folder = tmp_path / "packs"
    return PackStore(f"memory://cli-{next(_numbers)}" if request.param == "memory" else folder)


@pytest.fixture
def failing() -> Iterator[type[FailingFileSystem]]:
    """The file system that fails, which works when the test is done."""
    yield FailingFileSystem
    FailingFileSystem.end()


def change(store: PackStore, manifest: Manifest, before: bytes, after: bytes) -> None:
    """Replaces bytes in a stored manifest."""
    packs.rewrite(store, manifest, lambda line: line.replace(before, after))


@pytest.mark.parametrize("command", ["list", "usage", "verify", "exam", "compare", "inspect"])
def test_a_session_that_is_not_there_is_told_alike(command: str, store: PackStore) -> None:
    packs.talk(store)
    refused = run(command, "--session", "nobody", store=store, code=3)
    assert refused.stderr.startswith("Error: no ")
    assert not refused.stdout


@pytest.mark.parametrize("command", ["inspect", "replay", "verify", "list"])
def test_a_folder_named_in_hex_digits_is_the_store(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (manifest, *_) = packs.talk(PackStore("feed"))
    packs.talk(PackStore("artifacts"))
    run(command, "feed")
    if command != "list":
        run(command, manifest.pack_id.rpartition("_")[2], "feed")
        run(command, "1")


# list


def test_list_has_a_row_per_pack_in_order(store: PackStore) -> None:
    manifests = packs.talk(store)
    rows = run("list", store=store).stdout.splitlines()[1:]
    assert [row.split()[:2] for row in rows] == [[str(one.number), one.pack_id] for one in manifests]
    cut = next(at for at, one in enumerate(manifests) if one.epoch_reason == "high_water")
    assert f"{manifests[cut].epoch.number} high_water" in rows[cut]
    assert f"{manifests[0].counted_tokens:,} / 2,000" in rows[0]


# inspect


def test_inspect_shows_the_whole_receipt(store: PackStore) -> None:
    manifest = packs.remembering(store)
    output = run("inspect", store=store).stdout
    for heading in ("LAYERS", "SIGNALS", "CACHE", "CANDIDATES", "TRUNCATION EVENTS", "TOOLS", "EVIDENCE NEEDED"):
        assert f"\n{heading}\n" in output
    lines = {line.split()[1]: line for line in output.splitlines() if len(line.split()) > 1}
    assert "below_floor" in lines["m_lunch"]
    assert "left_out" in lines["m_lunch"]
    assert "whole" in lines["m_limit"]
    assert "covers a1" in lines["ev_rules"]
    assert "neutral ½ (unknown)" in output
    assert "left out: delete_all (not_in_scope)" in output
    assert "begun here: first_call" in output
    assert "candidates by none" in output
    assert "task 42 · step 3 · role Operator" in output
    assert "  - a2\n" in output
    assert manifest.checksum in output


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        (None, "unknown: no outcome is recorded"),
        ({"cached_tokens": None, "input_tokens": 500}, "unknown: the provider said nothing"),
        ({"cached_tokens": 0, "input_tokens": 500}, "0 of 500 input tokens"),
        ({"cached_tokens": 1024, "input_tokens": 1500, "finish_reason": "STOP"}, "1,024 of 1,500 input tokens"),
    ],
)
def test_inspect_tells_unknown_from_nothing_cached(outcome: dict[str, Any] | None, said: str) -> None:
    store = PackStore(f"memory://cli-{next(_numbers)}")
    manifest = packs.chain(store, 1)[0]
    if outcome is not None:
        store.write_all([], [(manifest, outcome)])
    output = run("inspect", store=store).stdout
    assert f"provider served  {said}" in output
    assert "could be served  unknown: this is the first request" in output


def test_ids_may_be_abbreviated(store: PackStore) -> None:
    manifests = packs.chain(store, 3)
    wanted = manifests[1].pack_id
    for piece in (wanted, wanted[:-3], wanted.removeprefix("pack_")[:-3], wanted[-8:], wanted[-8:-2]):
        assert run("inspect", piece, store=store).stdout.splitlines()[3] == f"PACK {wanted}"
    error = run("inspect", "pack_", store=store, code=3).stderr
    assert "stands for 3 packs" in error


def test_a_call_by_its_number_is_that_of_the_latest_run_of_a_session(store: PackStore) -> None:
    """Where sessions are kept in the process alone, each run of it writes under the same id."""
    for words in ("the first run", "the second run"):
        Chat(store=store).say(words)
    newest = list(store.manifests())[-1]
    for session in ([], ["--session", "s1"]):
        assert f"PACK {newest.pack_id}" in run("inspect", "1", *session, store=store).stdout


def test_a_search_for_no_word_is_wrong_usage(store: PackStore) -> None:
    packs.chain(store, 1)
    assert "'…': give some words to look for" in run("why", "…", store=store, code=2).stderr


def test_an_unknown_pack_is_one_line_on_stderr(store: PackStore) -> None:
    packs.chain(store, 1)
    for command in (["inspect", "nope"], ["replay", "nope"], ["diff", "nope"], ["verify", "nope"]):
        result = run(*command, store=store, code=3)
        assert result.stderr.startswith("Error: no pack 'nope' in ")
        assert result.stderr.count("\n") == 1
        assert not result.stdout


def test_inspect_says_that_a_manifest_is_not_what_was_written(store: PackStore) -> None:
    manifest = packs.chain(store, 1)[0]
    change(store, manifest, b'"model": "gemini-2.5-flash"', b'"model": "gemini-2.5-pro"')
    result = run("inspect", store=store, code=1)
    assert "LAYERS" in result.stdout
    assert f"{manifest.pack_id}: the manifest's hash is" in result.stderr
    assert "the manifest's hash is" in run("inspect", "--json", store=store, code=1).stderr


# replay


@pytest.mark.parametrize("options", [[], ["--json"], ["--all"], ["--policy", "research"]])
def test_replay_of_what_verify_refuses_fails(store: PackStore, options: list[str]) -> None:
    manifest = packs.chain(store, 2)[0]
    change(store, manifest, b'"agent": "writer"', b'"agent": "critic"')
    result = run("replay", manifest.pack_id, *options, store=store, code=1)
    assert "the recorded one" not in result.output
    assert "does not verify" in result.stderr
    assert "the manifest's hash is" in result.stderr


def test_replay_with_another_policy_shows_what_it_would_send(store: PackStore, tmp_path: Path) -> None:
    manifest = packs.remembering(store)
    policy = tmp_path / "narrow.toml"
    policy.write_text("max_input_tokens = 4000\n[retrieval]\nmemory_k = 1\n")
    arguments = ("replay", manifest.pack_id, "--policy", str(policy))
    output = run(*arguments, store=store).stdout
    assert re.match(rf"{manifest.request_tokens:,} → [\d,]+ tokens\n", output)
    (left,) = [line.split() for line in output.splitlines() if line.split()[:1] == ["left"]]
    assert left[1] == "memory"
    assert any(word.startswith("beyond_k") for word in left)
    assert "entered" not in output
    value = told(*arguments, store=store)
    assert (value["before"]["window"], value["after"]["window"]) == (16_000, 4_000)
    assert [one["change"] for one in value["candidates"] if one["layer"] == "memory"] == ["left"]
    (memory,) = [layer for layer in value["layers"] if layer["layer"] == "memory"]
    assert memory["after"]["used"] < memory["before"]["used"]
    assert not value["same"]
    (message,) = [text for text in value["texts"] if not text["same"]]
    assert json.loads(message["after"]["wire"])["parts"]


def test_replay_with_a_preset_keeps_the_recorded_settings_beneath_it(store: PackStore) -> None:
    manifest = packs.remembering(store)
    recorded = Replayer(store).policy(manifest)
    changed = view_under(Replayer(store), manifest, PackPolicy.load("cost_first")).manifest
    assert changed.policy == recorded.changed(preset="cost_first", **PRESETS["cost_first"]).digest
    assert changed.window == manifest.window
    assert view_under(Replayer(store), manifest, PackPolicy()).manifest.policy == manifest.policy


# verify


def test_verify_passes_what_was_written(store: PackStore) -> None:
    packs.talk(store)
    packs.chain(store, 5, identity=packs.IDENTITY._replace(session="s2"))
    assert run("verify", store=store).stdout.startswith("17 of 17 packs passed (every byte)\n")
    assert run("verify", "--replay", store=store).stdout.startswith("17 of 17 packs passed (every byte, and replays)\n")


def test_verify_names_a_changed_manifest_and_goes_on(store: PackStore) -> None:
    manifests = packs.chain(store, 4)
    change(store, manifests[1], b'"call": 2', b'"call": 7')
    output = run("verify", store=store, code=1).stdout
    assert f"failed  {manifests[1].pack_id}: {manifests[1].pack_id}: the manifest's hash is" in output
    assert "3 of 4 packs passed" in output
    run("verify", manifests[0].pack_id, store=store)
    run("verify", manifests[0].pack_id, manifests[1].pack_id, store=store, code=1)


def test_verify_finds_changed_and_missing_texts(store: PackStore) -> None:
    manifests = packs.chain(store, 3)
    packs.rewrite(store, manifests[0], lambda text: text + b" ", file=1)
    packs.rewrite(store, manifests[1], lambda text: b"", file=1)
    output = run("verify", store=store, code=1).stdout
    assert f"failed  {manifests[0].pack_id}: " in output
    assert output.count("it does not hold what was written") == 2
    assert "0 of 3 packs passed (every byte); 2 other faults" in output


def test_verify_does_not_fail_what_was_recorded_as_hashes(store: PackStore) -> None:
    packs.chain(store, 3, PackPolicy(record="hashes"))
    run("verify", store=store)
    output = run("verify", "--replay", store=store).stdout
    assert "3 of 3 packs passed" in output
    assert "3 could not be replayed: hashes only were recorded" in output


# a bad day: stores and manifests that are not what they should be

LOOKING = [
    "list", "inspect", "replay p", "diff p", "diff", "verify", "usage", "forget --older-than 30",
    "forget --older-than 30 --yes", "forget --app a --user b",
]  # fmt: skip


LOOKING += ["list --json", "usage --json", "forget --older-than 30 --json", "list --limit 2 --app a"]


@pytest.mark.parametrize("command", LOOKING)
def test_a_store_that_is_not_there_is_an_error(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("notes")
    for url in ("none", "notes.txt/none", "memory://none", "/proc/none"):
        result = run(*command.split(), "--store", url, code=3)
        assert "there is no such store" in result.stderr
        assert not result.stdout
    result = run(*command.split(), "--store", "notes.txt", code=3)
    assert "notes.txt is a file" in result.stderr
    assert not result.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


BROKEN = {
    "truncated": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "no text": lambda data: b"\xff\xfe\x00" + data,
    "a list": lambda data: b"[1, 2]",
    "null": lambda data: b"null",
    "nested": lambda data: b"[" * 100_000,
    "later": lambda data: data.replace(b'"schema_version": 1', b'"schema_version": 99'),
    "without version": lambda data: data.replace(b'"schema_version": 1', b'"other": 1'),
    "wrong type": lambda data: data.replace(b'"model": "gemini-2.5-flash"', b'"model": 7'),
}


def spoil(store: PackStore, manifest: Manifest, way: Callable[[bytes], bytes]) -> None:
    """Replaces a stored manifest."""
    packs.rewrite(store, manifest, way)


@pytest.mark.parametrize("way", BROKEN)
def test_a_broken_manifest_is_named_with_its_file(way: str, tmp_path: Path) -> None:
    store = PackStore(tmp_path / "packs")
    manifest = packs.chain(store, 1)[0]
    spoil(store, manifest, BROKEN[way])
    name = manifest.pack_id
    for command in (["inspect"], ["replay", name]):
        error = run(*command, store=store, code=3).stderr
        assert error.startswith("Error: ")
        assert f"pack {name}, {store.uri(manifest)}" in error
    for command in (["list"], ["usage"], ["forget", "--older-than", "30"]):
        result = run(*command, store=store, code=3)
        assert name in result.output
        assert "unreadable" in result.output
    assert name in run("verify", store=store, code=1).output


@pytest.mark.parametrize(
    "command",
    [
        "gc --pack-days nan", "gc --grace-minutes nan", "gc --evidence-days -1", "gc --max-bytes many",
        "list --limit many", "demo --window 0", "demo --window wide", "usage --by week", "preview",
        "preview s.json --db sqlite:///x", "preview --db sqlite:///x", "forget --app a", "tokens",
        "replay p --policy none.toml", "diff p p p p",
    ],
)  # fmt: skip
def test_wrong_options_are_wrong_usage(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = PackStore(tmp_path / "packs")
    packs.chain(store, 1)
    monkeypatch.setenv("AETHER_CONTEXT_STORE", store.url)
    assert "Error: " in run(*command.replace(" p ", " pack_ ").split(), code=2).stderr


# diff


def test_diff_compares_a_pack_with_the_one_before_it() -> None:
    script = [reply for at in range(8) for reply in ([call("look_up", key=f"k{at}")], f"answer {at}")]
    chat = Chat(script, [look_up], PackPolicy(max_input_tokens=1_800))
    chat.say(*(f"question {at}" for at in range(8)))
    manifests = chat.manifests()
    at = next(at for at, one in enumerate(manifests) if one.epoch_reason == "high_water")
    before, cut = manifests[at - 1 : at + 1]
    output = run("diff", cut.pack_id, store=chat.store, code=1).stdout
    assert before.pack_id in output
    assert "they part in content 0 (user), after 0 of its characters: cut" in output
    left = [line.split() for line in output.splitlines() if line.split()[:1] == ["left"]]
    assert len(left) == len([row for row in cut.rows if row.form == "summarized"])
    assert all(words[-2:] == ["summarized,", "window"] for words in left)
    assert "    - question 0\n" in output
    assert "    + CONVERSATION SUMMARY" in output
    change = f"{before.request_tokens:,} → {cut.request_tokens:,}"
    assert any(change in line for line in output.splitlines() if line.split()[:1] == ["all"])


def test_diff_of_what_is_not_there(store: PackStore, tmp_path: Path) -> None:
    packs.chain(store, 1)
    assert "says of no pack before it" in run("diff", store=store, code=3).stderr
    text = tmp_path / "notes.md"
    text.write_text("notes")
    assert "no pack" in run("diff", str(text), "latest", store=store, code=3).stderr
    assert "diff [OPTIONS]" in run("diff", "a", "b", "c", store=store, code=2).stderr


# one way to name a store


READING = [
    "list", "inspect", "inspect 2", "replay", "replay 2", "diff", "diff 2", "diff 1 3", "why question", "verify",
    "verify 1 2", "usage", "regrets", "exam", "tune --profile none --jobs 1",
    "check --jobs 1", "forget --app shop --user ann",
    "serve --session s1",
]  # fmt: skip


def test_every_command_that_reads_a_store_is_among_these() -> None:
    named = {command.split()[0] for command in READING} | {"demo", "compare", "doctor"}
    assert named == {
        name for name, one in main.commands.items() if "--store" in {opt for p in one.params for opt in p.opts}
    }
    assert named == main.commands.keys() - {"preview"}


@pytest.mark.parametrize("command", READING)
def test_a_store_is_named_by_option_place_or_environment(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = Chat(store=PackStore(tmp_path / "packs"))
    chat.say("question one", "question two", "question three")
    words, url = command.split(), chat.store.url
    ways = [run(*way, code=None) for way in ([*words, "--store", url], [*words, url])]
    monkeypatch.setenv("AETHER_CONTEXT_STORE", url)
    ways.append(run(*words, code=None))
    assert len({(one.exit_code, one.output) for one in ways}) == 1, [one.output for one in ways]
    expected = {"serve": 2, "diff": 1, "tune": 3}.get(words[0], 0)
    assert ways[0].exit_code == expected, ways[0].output
    if words[0] not in ("serve", "tune"):
        assert "there is no such store" in run(*words, "memory://elsewhere", code=3).stderr, "before the environment"
        assert run(*words, url, "--store", url, code=None).exit_code in (2, 3), "twice is once too many"


# names that would forge output


def test_names_cannot_forge_output(store: PackStore) -> None:
    hostile = "[red]x[/red]\nFORGED  \x1b[31m\u202e"
    session = packs.Session(
        store,
        identity=packs.IDENTITY._replace(session=hostile, agent=hostile, user=hostile),
        candidates=[packs.memory(f"{hostile}1", "Hello there, says the memory"), packs.memory(hostile, "zebra")],
        tools=[packs.tool(hostile), packs.tool("search")],
        step=replace(packs.STEP, tools=("search",), role=hostile, task_id=hostile),
        problems=(hostile,),
    )
    session.ask(f"Hello there\n{hostile}")
    name = session.manifests[0].pack_id
    shown = ["list"], ["inspect"], ["replay", name], ["replay", name, "--policy", "research"], ["verify"]
    for command in (*shown, ["diff", name, name]):
        output = run(*command, store=store).output
        assert not any(line.startswith("FORGED") for line in output.splitlines())
        assert "\x1b" not in output
        assert "\u202e" not in output
    assert r"[red]x[/red]\nFORGED  \x1b[31m\u202e" in run("inspect", store=store).stdout
    assert all(told(*command, store=store) for command in (["list"], ["inspect"]))


# schema, demo, usage


def test_every_command_has_examples() -> None:
    looking = {"list", "inspect", "preview", "replay", "usage", "verify", "demo", "diff"}
    assert main.commands.keys() >= looking | {"forget", "serve", "tune"}
    for command in ([], *([name] for name in main.commands)):
        assert "Examples:\n    aether-context " in run(*command, "--help").stdout


def test_help_shows_each_command_once_everyday_ones_first() -> None:
    every_day, other = run("--help").stdout.split("Every day:\n")[1].split("Now and then:\n")
    groups = [re.findall(r"^  (\w+)  ", group.partition("\n\n")[0], re.MULTILINE) for group in (every_day, other)]
    assert groups[0][:2] == ["demo", "doctor"]
    assert sorted(groups[0] + groups[1]) == sorted(main.commands)


# doctor


def test_the_doctor_finds_nothing_wrong_where_all_works(store: PackStore) -> None:
    chat = Chat(store=store)
    chat.say("hello")
    lines = run("doctor", store=store).stdout.splitlines()
    assert len(lines) <= 10
    (manifest,) = chat.manifests()
    for words in ("google-adk", "python 3", store.url, manifest.pack_id, manifest.counter, manifest.embedder):
        assert any(words in line for line in lines), words
    assert lines[-1].startswith("no problem: ")
    found = told("doctor", store=store)
    assert (found["packs"], found["problems"]) == ("1", [])


def test_the_doctor_says_where_no_extra_is_installed(store: PackStore, monkeypatch: pytest.MonkeyPatch) -> None:
    packs.talk(store, 1)
    monkeypatch.setattr("aether_context.lab.cli.doctor.find_spec", lambda _: None)
    assert re.search("^extras +none is installed$", run("doctor", store=store).stdout, re.MULTILINE)


def test_the_doctor_knows_every_extra_for_users(store: PackStore, monkeypatch: pytest.MonkeyPatch) -> None:
    packs.talk(store, 1)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    monkeypatch.setattr("aether_context.lab.cli.doctor.find_spec", lambda module: module)
    assert sorted(told("doctor", store=store)["extras"]) == sorted(extras.keys() - {"test", "dev"})


def test_the_doctor_names_what_recent_packs_could_not_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = PackPolicy(tokens={"files": {"gemini": str(tmp_path / "none.json")}})
    chat = Chat(policy=policy, store=PackStore(tmp_path / "packs"))
    chat.say("hello")
    answered(chat.store, packs.chain(chat.store, 1)[0], 9, error_code="429")
    monkeypatch.setenv("AETHER_CONTEXT_POLICY", "nope")
    output = run("doctor", store=chat.store, code=1).stdout
    assert "no problem" not in output
    lines = [line for line in output.splitlines() if "problem: " in line]
    for words in ("none.json cannot be read", "a call of gemini-2.5-flash failed: 429", "'nope' is neither a profile"):
        assert sum(words in line for line in lines) == 1, lines


def test_the_doctor_tells_a_store_that_cannot_be_written_or_read(tmp_path: Path) -> None:
    store = PackStore(tmp_path / "packs")
    output = run("doctor", store=store, code=1).stdout
    assert "there is no such store" in output
    assert "--store" in output, "what to do"
    assert not (tmp_path / "packs").exists()
    manifest = packs.chain(store, 1)[0]
    spoil(store, manifest, BROKEN["truncated"])
    assert f"{manifest.pack_id} unreadable" in run("doctor", store=store, code=1).stdout
    spool = spool_of(store.files)
    assert spool is not None
    spool.add(f"{store.files.root}/a/b", b"c", Write.CREATE)
    assert "1 writes wait on this machine" in run("doctor", store=store, code=1).stdout


def test_the_doctor_tells_a_store_that_refuses_writes(failing: type[FailingFileSystem]) -> None:
    store = PackStore(f"failing://cli-{next(_numbers)}")
    packs.chain(store, 2)
    run("doctor", store=store)
    failing.begin("refuses")
    told = run("doctor", store=store, code=1).stdout
    assert "could not be written" in told
    assert re.search(r"packs +2", told), "it is read all the same"


def test_a_store_that_is_copied_elsewhere_goes_on_there(tmp_path: Path) -> None:
    """As docs/manifest.md says: the files under their names, and the app with the other URL."""
    chat = Chat(["one", "two", "three"], store=PackStore(tmp_path / "packs"))
    chat.say("question one", "question two")
    moved = PackStore(f"memory://moved-{next(_numbers)}")
    for path in filter(Path.is_file, (tmp_path / "packs").rglob("*")):
        moved.files.create(f"{moved.files.root}/{path.relative_to(tmp_path / 'packs')}", path.read_bytes())
    shutil.rmtree(tmp_path / "packs")
    chat.store = moved
    chat.restart()
    chat.say("question three")
    assert [manifest.number for manifest in chat.manifests()] == [1, 2, 3]
    assert "3 of 3 packs passed" in run("verify", "--replay", store=moved).stdout
    run("doctor", store=moved)


# usage


def answered(store: PackStore, manifest: Manifest, read: int | None, **more: Any) -> None:
    """Records what became of a pack's call."""
    outcome = {"input_tokens": read, "output_tokens": 10, "cached_tokens": None, **more}
    store.write_all([], [(manifest, outcome)])


def test_usage_compares_estimates_with_reports_by_agent_and_day(store: PackStore) -> None:
    first = packs.chain(store, 3)
    later = packs.IDENTITY._replace(agent="critic", session="s2")
    second = packs.chain(store, 2, identity=later)
    for manifest in first:
        answered(store, manifest, manifest.request_tokens + 4, cached_tokens=manifest.request_tokens // 2)
    answered(store, second[0], second[0].request_tokens)
    rows = [line.split() for line in run("usage", store=store).stdout.splitlines()]
    assert rows[0][:3] == ["agent", "day", "calls"]
    assert [row[:3] for row in rows[1:3]] == [["critic", "2025-01-01", "1"], ["writer", "2025-01-01", "3"]]
    assert rows[3][:2] == ["all", "4"]
    estimated, reported = sum(one.request_tokens for one in first), sum(one.request_tokens + 4 for one in first)
    assert rows[2][3:5] == [f"{estimated:,}", f"{reported:,}"]
    assert rows[2][7].startswith("-")
    assert rows[1][5:8] == ["0.0%", "0.0%", "+0.0%"]
    assert rows[1][-3] == "unknown"
    assert rows[1][-1] == rows[3][-1] == "estimated", "no cached tokens were reported of one call"
    assert "estimated" not in rows[2]
    assert rows[2][-2] == f"{sum(one.request_tokens // 2 for one in first) / reported:.0%}"
    assert "packs without an answer on record, not counted: 1" in run("usage", store=store).stdout


def test_usage_knows_no_closeness_of_estimates_where_no_provider_reported_any(store: PackStore) -> None:
    packs.talk(store, 1)
    header, row, all_calls = [line.split() for line in run("usage", store=store).stdout.splitlines()[:3]]
    at = header.index("estimated")
    assert row[at : at + 5] == all_calls[at - 1 : at + 4] == ["unknown"] * 5


def test_usage_names_calls_that_failed_in_a_sentence_for_any_number_of_them() -> None:
    chat = Chat(script=["fine", LlmResponse(error_code="OVERLOADED", error_message="try later")])
    chat.say("one", "two")
    assert "calls that failed, not counted: 1" in run("usage", store=chat.store).stdout.splitlines()


def test_an_advised_command_names_its_store_where_the_environment_has_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("AETHER_CONTEXT_STORE", raising=False)
    assert PackStore("artifacts").command("list") == "aether-context list"
    monkeypatch.setenv("AETHER_CONTEXT_STORE", "elsewhere")
    assert PackStore("artifacts").command("list") == "aether-context list --store artifacts"


def test_inspect_names_the_settings_that_differ_from_the_profile() -> None:
    policy = PackPolicy.load("research", max_input_tokens=9_000, conversation={"compact_at": 0.7})
    chat = Chat(policy=policy)
    chat.say("hello")
    lines = run("inspect", "1", store=chat.store).stdout.splitlines()
    (line,) = [line.split() for line in lines if line.split()[:1] == ["settings"]]
    expected = "profile research · conversation.compact_at 0.7 · max_input_tokens 9000 · offload.mode off"
    assert set(" ".join(line[1:]).split(" · ")) <= set(expected.split(" · "))
    assert "conversation.compact_at 0.7" in " ".join(line)


# progress, and Ctrl-C


@pytest.fixture(scope="module")
def long_store(tmp_path_factory: pytest.TempPathFactory) -> PackStore:
    """A store with two sessions in a folder."""
    store = PackStore(tmp_path_factory.mktemp("long") / "packs")
    packs.chain(store)
    packs.chain(store, identity=packs.IDENTITY._replace(session="s2"))
    return store


_SLOW = """
import os, signal, sys, time
from aether_context.lab.cli import main, terminal

class Slow(type(terminal.progress)):
    def __call__(self, done, total, noun="packs"):
        super().__call__(done, total, noun)
        if done == 1 and "--stop" in sys.argv:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # where the tests run in the background it is ignored
    terminal.progress.__class__ = Slow
    main([argument for argument in sys.argv[1:] if argument != "--stop"])
"""
_LONG_COMMANDS = {
    "verify": (["verify"], "packs"),
    "exam": (["exam"], "packs"),
    "tune": (["tune", "--jobs", "1"], "sessions"),
    "check": (["check", "--jobs", "1"], "sessions"),
    "forget": (["forget", "--older-than", "0", "--yes"], "files"),
}


def _on_terminal(arguments: list[str], store: PackStore) -> tuple[int, str, str]:
    """The exit code, the stdout, and what a terminal on stderr shows, of the real command line."""
    pty = pytest.importorskip("pty")
    shown, stderr = pty.openpty()
    command, environment = [sys.executable, "-c", _SLOW, *arguments], {**os.environ, "AETHER_CONTEXT_STORE": store.url}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=stderr) as process:
        os.close(stderr)
        text = b""
        try:
            while piece := os.read(shown, 4_096):
                text += piece
        except OSError:  # the end of a terminal
            pass
        output = process.stdout.read() if process.stdout is not None else b""
    os.close(shown)
    return process.returncode, output.decode(), text.decode()


@pytest.mark.parametrize("name", _LONG_COMMANDS)
@pytest.mark.rows(1)
def test_ctrl_c_says_how_far_a_long_command_came(name: str, long_store: PackStore, tmp_path: Path) -> None:
    arguments, noun = _LONG_COMMANDS[name]
    store = PackStore(shutil.copytree(long_store.url, tmp_path / "packs"))
    code, output, shown = _on_terminal([*arguments, "--stop"], store)
    assert (code, output) == (130, "")
    assert re.search(rf"\r\x1b\[K\d+ of [\d,]+ {noun}", shown)
    assert re.search(rf"stopped after 1 of [\d,]+ {noun}\r\n", shown)


def test_figures_of_a_long_command_go_with_its_end_and_stand_on_a_terminal_alone(long_store: PackStore) -> None:
    code, output, shown = _on_terminal(["verify"], long_store)
    assert (code, "packs passed" in output) == (0, True)
    assert re.search(r"\r\x1b\[K\d+ of \d+ packs.*\r\x1b\[K$", shown, re.DOTALL)
    assert run("verify", store=long_store).stderr == ""
