"""The command line over stores that are built here: what it prints, what it returns, and what it does not load."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import types
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import jsonschema  # type: ignore[import-untyped]
import packs
import pytest
from click.testing import CliRunner, Result

from aether_context import Manifest, PackPolicy, PackStore, __version__
from aether_context.canonical import canonical_json, hash_text
from aether_context.cli import main
from aether_context.cli.terminal import aligned, moment, plain
from aether_context.packing import build_pack
from aether_context.store import schema

_numbers = itertools.count(1)


@pytest.fixture(params=["memory", "folder"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> PackStore:
    """An empty store that no other test sees, in memory and in a folder."""
    folder = tmp_path / "packs"
    return PackStore(f"memory://cli-{next(_numbers)}" if request.param == "memory" else folder)


def run(*arguments: str, store: PackStore | None = None, code: int = 0) -> Result:
    """Runs a command and checks its exit code."""
    url = ["--store", store.url] if store is not None else []
    result = CliRunner().invoke(main, [*arguments, *url])
    assert result.exit_code == code, result.output
    return result


def change(store: PackStore, manifest: Manifest, before: bytes, after: bytes) -> None:
    """Replaces bytes in a stored manifest."""
    packs.rewrite(store, manifest, lambda line: line.replace(before, after))


def delete(store: PackStore, manifest: Manifest) -> None:
    """Removes a pack."""
    fs, path = fsspec.core.url_to_fs(store.uri(manifest))
    fs.rm(path)


def blob_uri(store: PackStore, digest: str) -> str:
    fs, root = fsspec.core.url_to_fs(store.url)
    (path,) = [path for path in fs.find(root) if digest.removeprefix("sha256:") in path]
    return str(fs.unstrip_protocol(path))


# list


def test_list_has_a_row_per_pack_in_order(store: PackStore) -> None:
    manifests = packs.talk(store)
    rows = run("list", store=store).stdout.splitlines()[1:]
    assert [row.split()[0] for row in rows] == [one.pack_id for one in manifests]
    cut = next(at for at, one in enumerate(manifests) if one.epoch_reason == "high_water")
    assert f"{manifests[cut].epoch.number} high_water" in rows[cut]
    assert f"{manifests[0].request_tokens:,} / 2,000" in rows[0]


def test_list_as_json_says_the_same(store: PackStore) -> None:
    manifests = packs.talk(store)
    values = json.loads(run("list", "--json", store=store).stdout)
    assert [one["pack_id"] for one in values] == [one.pack_id for one in manifests]
    assert values[-1]["request_tokens"] == manifests[-1].request_tokens
    assert sum(one["events"] for one in values) == sum(len(one.truncation_events) for one in manifests) > 0


def test_list_takes_one_session_and_the_newest(store: PackStore) -> None:
    packs.talk(store, turns=3)
    other = packs.chain(store, 4, identity=packs.IDENTITY._replace(session="s2"))
    named = json.loads(run("list", "--session", "s2", "--json", store=store).stdout)
    assert [one["pack_id"] for one in named] == [one.pack_id for one in other]
    output = run("list", "--app", "shop", "--user", "ada", "--session", "s2", "--limit", "1", store=store).stdout
    assert other[-1].pack_id in output
    assert other[-2].pack_id not in output
    assert "… and earlier ones" in output


def test_list_of_nothing_says_so(store: PackStore) -> None:
    assert "no packs in" in run("list", store=store, code=3).stderr
    packs.chain(store, 1)
    assert f"no packs of app 'other' in {store.url}" in run("list", "--app", "other", store=store).stderr
    assert json.loads(run("list", "--app", "other", "--json", store=store).stdout) == []


def test_list_shows_whose_pack_it_is(store: PackStore) -> None:
    packs.chain(store, 1)
    packs.chain(store, 1, identity=packs.IDENTITY._replace(app="desk", session="s2"))
    lines = run("list", store=store).stdout.splitlines()
    assert len(lines) == 3
    assert {tuple(line.split()[3:5]) for line in lines[1:]} == {("shop", "s1"), ("desk", "s2")}


def test_list_goes_on_after_an_unreadable_manifest(store: PackStore) -> None:
    manifests = packs.talk(store, turns=3)
    change(store, manifests[1], b'"schema_version":1', b'"schema_version":9')
    output = run("list", store=store, code=3).stdout
    assert "unreadable: this manifest has schema version 9" in " ".join(output.split())
    assert manifests[2].pack_id in output
    assert "error" in json.loads(run("list", "--json", store=store, code=3).stdout)[1]


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


def test_inspect_shows_a_cut_with_what_it_took(store: PackStore) -> None:
    manifests = packs.talk(store)
    cut = [one for one in manifests if one.truncation_events][-1]
    output = run("inspect", cut.pack_id, "--all", store=store).stdout
    (event,) = cut.truncation_events
    assert f"{event.tokens_before:,} → {event.tokens_after:,}" in output
    assert "broken by cut" in output
    joined = "".join(output.split())
    assert all(item in joined for item in event.item_ids)
    gone = [line for line in output.splitlines() if line.split()[-2:] == ["summarized", event.reason]]
    assert len(gone) == len(event.item_ids)


def test_inspect_follows_the_chain_and_collapses_what_was_kept(store: PackStore) -> None:
    manifest = packs.chain(store, 12)[-1]
    assert len(manifest.rows) == 2
    output = run("inspect", store=store).stdout
    assert "23 in all: 23 whole" in output
    assert "… and 22 kept whole (--all shows them)" in output
    everything = run("inspect", "--all", store=store).stdout
    assert sum(line.strip().startswith("conversation  c") for line in everything.splitlines()) == 22


def test_inspect_as_json_is_a_manifest_that_stands_alone(store: PackStore) -> None:
    stored = packs.chain(store, 5)[-1]
    resolved = Manifest.parse(run("inspect", "--json", store=store).stdout)
    assert len(resolved.rows) == len(resolved.contents.added) == 9
    assert (resolved.pack_id, resolved.checksum, resolved.digest) == (stored.pack_id, stored.checksum, stored.digest)


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
        store.write_outcome(manifest, outcome)
    output = run("inspect", store=store).stdout
    assert f"provider served  {said}" in output
    assert "could be served  unknown: this is the first request" in output


def test_ids_may_be_abbreviated(store: PackStore) -> None:
    manifests = packs.chain(store, 3)
    wanted = manifests[1].pack_id
    for piece in (wanted, wanted[:-3], wanted.removeprefix("pack_")[:-3], wanted[-8:], wanted[-8:-2]):
        assert run("inspect", piece, store=store).stdout.startswith(f"PACK {wanted}\n")
    error = run("inspect", "pack_", store=store, code=3).stderr
    assert "stands for 3 packs" in error


def test_an_unknown_pack_is_one_line_on_stderr(store: PackStore) -> None:
    packs.chain(store, 1)
    for command in (["inspect", "nope"], ["replay", "nope"], ["diff", "nope"], ["verify", "nope"]):
        result = run(*command, store=store, code=3)
        assert result.stderr.startswith("Error: no pack 'nope' in ")
        assert result.stderr.count("\n") == 1
        assert not result.stdout


def test_an_empty_store_has_nothing_to_inspect_or_verify(store: PackStore) -> None:
    for command in ("inspect", "verify"):
        assert "no packs in" in run(command, store=store, code=3).stderr


def test_inspect_names_a_missing_parent_and_shows_the_rest(store: PackStore) -> None:
    manifests = packs.chain(store, 4)
    delete(store, manifests[1])
    result = run("inspect", manifests[3].pack_id, store=store, code=3)
    assert f"extends {manifests[1].pack_id}, which is not in" in result.stderr
    assert "LAYERS" in result.stdout
    assert manifests[1].pack_id in run("inspect", manifests[3].pack_id, "--json", store=store, code=3).stderr


def test_inspect_shows_the_text_of_each_candidate(store: PackStore) -> None:
    packs.remembering(store)
    lines = run("inspect", store=store).stdout.splitlines()
    for memory in packs.MEMORIES:
        (at,) = [at for at, line in enumerate(lines) if line.split()[1:2] == [memory.id]]
        assert f"“{memory.text}”" in lines[at + 1]
    assert any("“Rules of approval, section 4”" in line for line in lines)
    assert any("“Who approves refunds above 200 euros?”" in line for line in lines)


def test_inspect_shows_texts_that_earlier_packs_recorded(store: PackStore) -> None:
    packs.chain(store, 6)
    assert "“Find out who approves refunds.”" in run("inspect", "--all", store=store).stdout


def test_inspect_shows_what_it_can_of_hashes_alone(store: PackStore) -> None:
    packs.chain(store, 2, PackPolicy(record="hashes"))
    assert "CANDIDATES" in run("inspect", store=store).stdout


def test_inspect_says_that_a_manifest_is_not_what_was_written(store: PackStore) -> None:
    manifest = packs.chain(store, 1)[0]
    change(store, manifest, b'"model":"gemini-2.5-flash"', b'"model":"gemini-2.5-pro"')
    result = run("inspect", store=store, code=1)
    assert "LAYERS" in result.stdout
    assert f"{manifest.pack_id}: the manifest's hash is" in result.stderr
    assert "the manifest's hash is" in run("inspect", "--json", store=store, code=1).stderr


def test_inspect_goes_on_after_an_unreadable_outcome(store: PackStore) -> None:
    manifest = packs.chain(store, 1)[0]
    store.write_outcome(manifest, {"input_tokens": 3})
    packs.rewrite(store, manifest, lambda line: b'{"input_', line=2)
    result = run("inspect", store=store, code=3)
    assert "LAYERS" in result.stdout
    assert "could not be read" in result.stderr


# replay


def test_replay_prints_the_request_and_that_it_is_the_recorded_one(store: PackStore) -> None:
    manifest = packs.remembering(store)
    output = run("replay", manifest.pack_id, store=store).stdout
    assert "[0] user · " in output
    assert "    CONTEXT PACK\n" in output
    assert output.endswith(f"the request is the recorded one: {manifest.checksum}\n")


def test_replay_as_json_is_canonical(store: PackStore) -> None:
    manifest = packs.chain(store, 3)[-1]
    output = run("replay", manifest.pack_id, "--json", store=store).stdout
    request = json.loads(output)
    assert output == canonical_json(request) + "\n"
    assert len(request["contents"]) == 5
    assert [tool["name"] for tool in request["tools"]] == ["search", "read_file"]


def test_replay_shortens_long_texts(store: PackStore) -> None:
    session = packs.Session(store)
    session.ask(packs.lines("a", 40) + "\n" + "b" * 1_000)
    output = run("replay", session.manifests[-1].pack_id, store=store).stdout
    assert "    … 33 lines …\n" in output
    assert max(map(len, output.splitlines())) <= 160


def test_replay_shows_all_that_was_sent(store: PackStore) -> None:
    session = packs.Session(store, tools=[packs.tool("search", "finds " + "what is looked for " * 60)])
    session.ask(packs.lines("a", 40) + "\n" + "b" * 1_000)
    pack_id = session.manifests[-1].pack_id
    assert "--all shows them whole" in run("replay", pack_id, store=store).stdout
    output = run("replay", pack_id, "--all", store=store).stdout
    assert all(f"    {line}\n" in output for line in [*packs.lines("a", 40).split("\n"), "b" * 1_000])
    assert "what is looked for " * 60 in output
    assert "--all" not in output


@pytest.mark.parametrize("options", [[], ["--json"], ["--all"], ["--policy", "research"]])
def test_replay_of_what_verify_refuses_fails(store: PackStore, options: list[str]) -> None:
    manifest = packs.chain(store, 2)[0]
    change(store, manifest, b'"agent":"writer"', b'"agent":"critic"')
    result = run("replay", manifest.pack_id, *options, store=store, code=1)
    assert "the recorded one" not in result.output
    assert "does not verify" in result.stderr
    assert "the manifest's hash is" in result.stderr


def test_replay_of_what_extends_a_changed_pack_fails(store: PackStore) -> None:
    first, second = packs.chain(store, 2)
    change(store, first, b'"call":1,', b'"call":7,')
    result = run("replay", second.pack_id, store=store, code=1)
    assert f"it extends {first.pack_id}, which failed" in result.stderr
    assert "the recorded one" not in result.output


def test_replay_names_the_stage_that_differs(store: PackStore) -> None:
    manifest = packs.chain(store, 1)[0]
    change(store, manifest, manifest.checksum.encode(), hash_text("another request").encode())
    assert "stage 'write' differs" in run("replay", manifest.pack_id, store=store, code=1).stderr


def test_replay_of_hashes_says_what_is_missing(store: PackStore) -> None:
    manifest = packs.chain(store, 1, PackPolicy(record="hashes"))[0]
    error = run("replay", manifest.pack_id, store=store, code=3).stderr
    assert "the recording lacks what a replay needs" in error
    assert "the policy recorded hashes only" in error
    assert error.count("\n") == 1


def test_replay_with_another_policy_shows_what_it_would_send(store: PackStore, tmp_path: Path) -> None:
    manifest = packs.remembering(store)
    policy = tmp_path / "narrow.toml"
    policy.write_text("max_input_tokens = 4000\n[retrieval]\nmemory_k = 1\n")
    arguments = ("replay", manifest.pack_id, "--policy", str(policy))
    output = run(*arguments, store=store).stdout
    (left,) = [line.split() for line in output.splitlines() if line.split()[:1] == ["left"]]
    assert left[1] == "memory"
    assert any(word.startswith("beyond_k") for word in left)
    assert "entered" not in output
    value = json.loads(run(*arguments, "--json", store=store).stdout)
    assert (value["before"]["window"], value["after"]["window"]) == (16_000, 4_000)
    assert [one["change"] for one in value["candidates"] if one["layer"] == "memory"] == ["left"]
    (memory,) = [layer for layer in value["layers"] if layer["layer"] == "memory"]
    assert memory["after"]["used"] < memory["before"]["used"]
    assert not value["same"]
    (message,) = [text for text in value["texts"] if not text["same"]]
    assert json.loads(message["after"]["wire"])["parts"]


def test_replay_with_an_equal_policy_sends_the_same(store: PackStore) -> None:
    manifest = packs.chain(store, 1)[0]
    assert "both send the same request" in run("replay", manifest.pack_id, "--policy", "chat", store=store).stdout


@pytest.mark.parametrize(
    ("text", "window"), [("", 2_000), ("max_input_tokens = 1000", 1_000), ("max_input_tokens = 50_000", 50_000)]
)
def test_the_window_is_the_recorded_one_unless_the_policy_states_one(tmp_path: Path, text: str, window: int) -> None:
    store = PackStore(tmp_path / "packs")
    manifest = packs.talk(store, turns=1)[0]
    (tmp_path / "policy.toml").write_text(text)
    arguments = ("replay", manifest.pack_id, "--policy", str(tmp_path / "policy.toml"), "--json")
    assert json.loads(run(*arguments, store=store).stdout)["after"]["window"] == window


def test_a_wrong_policy_is_wrong_usage(store: PackStore) -> None:
    manifest = packs.chain(store, 1)[0]
    error = run("replay", manifest.pack_id, "--policy", "reserch", store=store, code=2).stderr
    assert "did you mean 'research'?" in error


# verify


def test_verify_passes_what_was_written(store: PackStore) -> None:
    packs.talk(store)
    packs.chain(store, 5, identity=packs.IDENTITY._replace(session="s2"))
    assert run("verify", store=store).stdout.startswith("17 of 17 packs passed (every byte)\n")
    assert run("verify", "--replay", store=store).stdout.startswith("17 of 17 packs passed (every byte, and replays)\n")


def test_verify_names_a_changed_manifest_and_goes_on(store: PackStore) -> None:
    manifests = packs.chain(store, 4)
    change(store, manifests[1], b'"call":2', b'"call":7')
    output = run("verify", store=store, code=1).stdout
    assert f"failed  {manifests[1].pack_id}: {manifests[1].pack_id}: the manifest's hash is" in output
    assert "3 of 4 packs passed" in output
    run("verify", manifests[0].pack_id, store=store)
    run("verify", manifests[0].pack_id, manifests[1].pack_id, store=store, code=1)


def test_verify_with_replay_fails_what_extends_a_changed_manifest(store: PackStore) -> None:
    manifests = packs.chain(store, 4)
    change(store, manifests[1], b'"call":2', b'"call":7')
    output = run("verify", "--replay", store=store, code=1).stdout
    assert f"failed  {manifests[3].pack_id}: it extends {manifests[1].pack_id}, which failed" in output
    assert "1 of 4 packs passed" in output


def test_verify_names_what_is_no_manifest(store: PackStore) -> None:
    manifests = packs.chain(store, 2)
    with fsspec.open(store.uri(manifests[1]), "wb") as file:
        file.write(b"{")
    output = run("verify", store=store, code=1).stdout
    assert f"failed  {manifests[1].pack_id}: damaged" in output
    assert "1 of 2" in output
    packs.rewrite(store, manifests[0], lambda line: b"{")
    output = run("verify", store=store, code=1).stdout
    assert f"failed  {manifests[0].pack_id}: not a manifest" in output


def test_verify_finds_changed_and_missing_texts(store: PackStore) -> None:
    manifests = packs.chain(store, 3)
    packs.rewrite(store, manifests[0], lambda line: b"{}", line=1)
    packs.rewrite(store, manifests[1], lambda line: b"", line=1)
    output = run("verify", store=store, code=1).stdout
    assert f"failed  {manifests[0].pack_id}: " in output
    assert f"are not {manifests[0].texts}" in output
    assert f"are not {manifests[1].texts}" in output
    assert "1 of 3" in output


def test_verify_names_a_deleted_parent(store: PackStore) -> None:
    manifests = packs.chain(store, 3)
    delete(store, manifests[0])
    output = run("verify", "--replay", store=store, code=1).stdout
    assert f"failed  {manifests[1].pack_id}: it extends {manifests[0].pack_id}, which is not there" in output
    assert f"failed  {manifests[2].pack_id}: it extends {manifests[0].pack_id}, which is not there" in output


def test_verify_finds_a_manifest_in_another_packs_folder(store: PackStore) -> None:
    first, second = packs.talk(store, turns=2)
    with fsspec.open(store.uri(first), "rb") as source, fsspec.open(store.uri(second), "wb") as target:
        target.write(source.read())
    output = run("verify", store=store, code=1).stdout
    assert f"failed  {second.pack_id}: the manifest of {first.pack_id} stands in another pack's place" in output


def test_verify_does_not_fail_what_was_recorded_as_hashes(store: PackStore) -> None:
    packs.chain(store, 3, PackPolicy(record="hashes"))
    run("verify", store=store)
    output = run("verify", "--replay", store=store).stdout
    assert "3 of 3 packs passed" in output
    assert "3 could not be replayed: hashes only were recorded" in output


def test_verify_finds_a_request_that_is_not_the_recorded_one(store: PackStore) -> None:
    source = packs.pack_input([packs.said("Hello")], candidates=packs.MEMORIES)
    pack = build_pack(source, PackPolicy())._replace(checksum=hash_text("another request"))
    manifest = packs.write(store, pack)
    run("verify", store=store)
    output = run("verify", "--replay", store=store, code=1).stdout
    assert f"failed  {manifest.pack_id}: stage 'write' differs" in output


# a bad day: stores and manifests that are not what they should be

LOOKING = [
    "list",
    "inspect",
    "replay p",
    "diff p",
    "diff",
    "verify",
    "usage",
    "forget --older-than 30",
    "forget --older-than 30 --yes",
    "forget --app a --user b",
]
LOOKING += [
    "list --json",
    "usage --json",
    "forget --older-than 30 --json",
    "list --limit 2 --app a",
]


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


@pytest.mark.parametrize("command", ["inspect x", "replay x", "diff x", "verify x"])
def test_hints_keep_the_store(command: str, tmp_path: Path) -> None:
    store = PackStore(tmp_path / "my packs")
    packs.chain(store, 1)
    assert f"`aether-context list --store '{store.url}'`" in run(*command.split(), store=store, code=3).stderr


@pytest.mark.parametrize("place", ["notes.txt", "notes.txt/inside", "/proc/none"])
def test_what_cannot_be_written_is_an_error(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("notes")
    result = run("demo", "--store", place, code=3)
    assert place in result.stderr
    assert result.stderr.startswith("Error: ")
    assert not result.stdout


BROKEN = {
    "truncated": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "no text": lambda data: b"\xff\xfe\x00" + data,
    "a list": lambda data: b"[1, 2]",
    "null": lambda data: b"null",
    "nested": lambda data: b"[" * 100_000,
    "later": lambda data: data.replace(b'"schema_version":1', b'"schema_version":99'),
    "without version": lambda data: data.replace(b'"schema_version":1', b'"other":1'),
    "wrong type": lambda data: data.replace(b'"model":"gemini-2.5-flash"', b'"model":7'),
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
    for command in (
        ["inspect"],
        ["replay", name],
    ):
        error = run(*command, store=store, code=3).stderr
        assert error.startswith("Error: ")
        assert f"pack {name}, {store.uri(manifest)}" in error
    for command in (["list"], ["usage"], ["forget", "--older-than", "30"]):
        result = run(*command, store=store, code=3)
        assert name in result.output
        assert "unreadable" in result.output
    assert name in run("verify", store=store, code=1).output


@pytest.mark.parametrize("way", ["truncated", "empty"])
def test_a_broken_text_is_an_error(way: str, tmp_path: Path) -> None:
    store = PackStore(tmp_path / "packs")
    manifest = packs.chain(store, 1)[0]
    packs.rewrite(store, manifest, lambda line: BROKEN[way](line) or b" ", line=1)
    for command in (
        ["replay", manifest.pack_id],
        ["verify"],
    ):
        result = CliRunner().invoke(main, [*command, "--store", store.url])
        assert result.exit_code in (1, 3), result.output
        assert isinstance(result.exception, SystemExit)
        assert manifest.texts in result.output
    run("inspect", store=store, code=3)


FIELDS = [
    "texts",
    "contents",
    "rows",
    "positions",
    "human",
    "counts",
    "stages",
    "allocation",
    "epoch",
    "extends",
    "number",
]


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("value", [None, [], {}, 7, "x", [[0, 99]], ["sha256:" + "0" * 64]], ids=str)
def test_no_change_of_a_manifest_gives_a_traceback(field: str, value: Any, tmp_path: Path) -> None:
    store = PackStore(tmp_path / "packs")
    manifest = packs.chain(store, 2)[1]
    spoil(store, manifest, lambda data: canonical_json({**json.loads(data), field: value}).encode())
    name = manifest.pack_id
    for command in (["list"], ["inspect"], ["inspect", "--json"], ["replay", name], ["verify", "--replay"], ["usage"]):
        result = CliRunner().invoke(main, [*command, "--store", store.url])
        assert result.exception is None or isinstance(result.exception, SystemExit), (command, result.exception)
    more = ["diff", name], ["diff", name, name]
    for command in (["forget", "--older-than", "30"], *more):
        result = CliRunner().invoke(main, [*command, "--store", store.url])
        assert result.exception is None or isinstance(result.exception, SystemExit), (command, result.exception)


@pytest.mark.parametrize("name", [b'"id":"cx_', b'"id":"', b'"id":"c99999999999_'])
def test_a_row_of_another_name_is_no_traceback(name: bytes, tmp_path: Path) -> None:
    store = PackStore(tmp_path / "packs")
    manifest = packs.chain(store, 2)[1]
    spoil(store, manifest, lambda data: data.replace(b'"id":"c1_', name))
    for command in (["usage"], ["inspect"], ["diff"]):
        result = CliRunner().invoke(main, [*command, "--store", store.url])
        assert result.exception is None or isinstance(result.exception, SystemExit), (command, result.exception)


@pytest.mark.parametrize(
    "command",
    [
        "gc --pack-days nan",
        "gc --grace-minutes nan",
        "gc --evidence-days -1",
        "gc --max-bytes many",
        "list --limit many",
        "demo --window 0",
        "demo --window wide",
        "usage --by week",
        "preview",
        "preview s.json --db sqlite:///x",
        "preview --db sqlite:///x",
        "forget --app a",
        "tokens",
        "replay p --policy none.toml",
        "diff p p p",
    ],
)
def test_wrong_options_are_wrong_usage(command: str, tmp_path: Path) -> None:
    store = PackStore(tmp_path / "packs")
    packs.chain(store, 1)
    result = CliRunner().invoke(
        main, command.replace(" p ", " pack_ ").split(), env={"AETHER_CONTEXT_STORE": store.url}
    )
    assert result.exit_code == 2, result.output
    assert "Error: " in result.stderr


def test_preview_of_what_is_no_session_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_bytes(b'{"id": "s1", "events": [')
    (tmp_path / "other.json").write_bytes(b"\xff\x00")
    for name in ("none.json", "broken.json", "other.json", "."):
        error = run("preview", str(tmp_path / name), code=3).stderr
        assert error.startswith(f"Error: {tmp_path / name}")


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
    assert all(json.loads(run(*command, "--json", store=store).stdout) for command in (["list"], ["inspect"]))


def test_lone_surrogates_can_be_printed(store: PackStore) -> None:
    session = packs.Session(store, identity=packs.IDENTITY._replace(session="s\ud800"))
    name = session.ask("broken \ud800 text").pack_id
    assert r"broken \ud800 text" in run("replay", name, store=store).stdout
    assert json.loads(run("replay", name, "--json", store=store).stdout)
    assert r"s\ud800" in run("inspect", store=store).stdout


# schema, demo, usage


def test_the_schema_describes_what_inspect_prints(store: PackStore) -> None:
    packs.remembering(store)
    jsonschema.validate(json.loads(run("inspect", "--json", store=store).stdout), schema())


def test_demo_hands_on_its_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AETHER_CONTEXT_STORE", raising=False)
    given: list[dict[str, Any]] = []

    def run_demo(**options: Any) -> int:
        given.append(options)
        return 1

    fake = types.ModuleType("aether_context.cli.demonstration")
    vars(fake)["run_demo"] = run_demo
    monkeypatch.setitem(sys.modules, "aether_context.cli.demonstration", fake)
    run("demo", code=1)
    run("demo", "--model", "m", "--store", "memory://d", "--window", "4000", code=1)
    assert given == [
        {"model": None, "url": "artifacts", "window": 16_000},
        {"model": "m", "url": "memory://d", "window": 4_000},
    ]


def test_every_command_has_examples() -> None:
    looking = {"list", "inspect", "preview", "replay", "usage", "verify", "demo", "diff"}
    assert main.commands.keys() >= looking | {"forget", "serve", "tune"}
    for command in ([], *([name] for name in main.commands)):
        assert "Examples:\n    aether-context " in run(*command, "--help").stdout


def test_version() -> None:
    assert run("--version").stdout == f"aether-context, version {__version__}\n"


@pytest.mark.parametrize(
    "arguments", [["nope"], ["list", "--limit", "0"], ["replay"], ["schema", "x"], ["list", "--store", "nope://x"]]
)
def test_wrong_usage(arguments: list[str]) -> None:
    code = 3 if "nope://x" in arguments else 2
    result = run(*arguments, code=code)
    assert "Error: " in result.stderr
    assert "Traceback" not in result.output


def test_the_store_comes_from_the_environment(store: PackStore) -> None:
    packs.chain(store, 1)
    result = CliRunner().invoke(main, ["verify"], env={"AETHER_CONTEXT_STORE": store.url})
    assert "1 of 1 packs passed" in result.stdout


# search


# usage


def answered(store: PackStore, manifest: Manifest, read: int | None, **more: Any) -> None:
    """Records what became of a pack's call."""
    store.write_outcome(manifest, {"input_tokens": read, "output_tokens": 10, "cached_tokens": None, **more})


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
    assert rows[1][-2] == "unknown"
    assert rows[2][-2] == f"{sum(one.request_tokens // 2 for one in first) / reported:.0%}"
    assert "1 packs have no answer on record" in run("usage", store=store).stdout


def test_usage_as_json_has_totals_shares_and_cost(store: PackStore) -> None:
    manifests = packs.chain(store, 2)
    answered(store, manifests[0], 1_000_000, cached_tokens=500_000, tool_use_tokens=0)
    answered(store, manifests[1], 1_000_000, cached_tokens=None)
    found = json.loads(run("usage", "--by", "model", "--json", store=store).stdout)
    (group,) = found["groups"]
    assert group["model"] == packs.MODEL
    assert {key: group[key] for key in found["all"]} == found["all"]
    assert (group["calls"], group["input_tokens"], group["output_tokens"]) == (2, 2_000_000, 20)
    assert (group["cached_tokens"], group["cached_share"]) == (500_000, 0.5)
    assert group["cost_usd"] == pytest.approx(0.3 * 1.5 + 0.03 * 0.5 + 20 * 2.5 / 1e6)
    assert group["estimate"]["reported_tokens"] == 2_000_000
    assert group["system_tokens"] == sum(one.allocation["system"].used for one in manifests)


def test_usage_leaves_out_failures_and_estimates_what_was_not_reported(store: PackStore) -> None:
    manifests = packs.chain(store, 3)
    answered(store, manifests[0], None, output_tokens=None, error_code="UNAVAILABLE")
    answered(store, manifests[1], None, output_tokens=None, error_code=None)
    answered(store, manifests[2], 50, error_code="SAFETY", output_tokens=0)
    found = json.loads(run("usage", "--json", store=store).stdout)["all"]
    assert (found["calls"], found["failed"], found["unanswered"]) == (2, 1, 0)
    assert found["input_tokens"] == manifests[1].request_tokens + 50
    assert (found["unreported_inputs"], found["unreported_outputs"]) == (1, 1)
    assert found["estimate"]["calls"] == 1
    output = run("usage", store=store).stdout
    assert f"~{manifests[1].request_tokens + 50:,}" in output
    assert "1 calls failed and are not counted" in output


def test_usage_of_a_model_without_a_price_is_unknown(monkeypatch: pytest.MonkeyPatch, store: PackStore) -> None:
    monkeypatch.setattr(packs, "MODEL", "something-unknown")
    manifest = packs.chain(store, 1)[0]
    answered(store, manifest, 100)
    assert json.loads(run("usage", "--json", store=store).stdout)["all"]["cost_usd"] is None
    output = run("usage", store=store).stdout
    assert output.splitlines()[1].split()[-1] == "unknown"
    assert "1 calls are of models without a known price" in output


def test_usage_takes_one_session_and_groups_by_several_names(store: PackStore) -> None:
    packs.chain(store, 2)
    (other,) = packs.chain(store, 1, identity=packs.IDENTITY._replace(session="s2"))
    answered(store, other, 70)
    found = json.loads(
        run("usage", "--session", "s2", "--by", "session", "--by", "agent", "--json", store=store).stdout
    )
    assert found["by"] == ["session", "agent"]
    assert [(one["session"], one["agent"], one["calls"]) for one in found["groups"]] == [("shop/ada/s2", "writer", 1)]


def test_usage_goes_on_after_an_unreadable_manifest(store: PackStore) -> None:
    manifests = packs.talk(store, turns=3)
    for manifest in manifests:
        answered(store, manifest, 100)
    change(store, manifests[1], b'"schema_version":1', b'"schema_version":9')
    result = run("usage", store=store, code=3)
    assert "this manifest has schema version 9" in result.stderr
    assert json.loads(run("usage", "--json", store=store, code=3).stdout)["all"]["calls"] == 2


def test_usage_of_nothing_says_so(store: PackStore) -> None:
    assert "no packs in" in run("usage", store=store, code=3).stderr
    packs.chain(store, 1)
    assert "no packs of user 'eve' in" in run("usage", "--user", "eve", store=store).stderr
    assert json.loads(run("usage", "--user", "eve", "--json", store=store).stdout)["groups"] == []


# pieces


def test_times_that_no_calendar_holds_are_seconds() -> None:
    assert moment(packs.BEGIN) == "2025-01-01 02:53:20"
    assert moment(1e30) == "1e+30 s"
    assert moment(None) == ""


def test_columns_are_aligned_and_long_cells_are_cut_but_the_last() -> None:
    lines = aligned(("name", ">tokens", "text"), [("a", "1,000", "b" * 200), ("名前\x1b" + "c" * 100, "7", "d")])
    assert lines[0].split() == ["name", "tokens", "text"]
    assert lines[1].endswith("b" * 200)
    assert lines[2].startswith("名前\\x1bcc")
    assert "c" * 80 not in lines[2]
    assert lines[1].index("b") == lines[2].index("d") + 2  # two characters that take two columns each
    assert aligned(("", ""), [("a", "b"), ("long", "c")]) == ["a     b", "long  c"]
    assert aligned(("name", ""), []) == ["name"]


def test_plain_text_stays_on_one_line() -> None:
    assert plain("a\nb\u2028c\u202ed\x07é½") == "a\\nb\\u2028c\\u202ed\\x07é½"
    assert plain("abcdef", 4) == "abc…"


# what is loaded

_HEAVY = {"google", "numpy", "torch", "genai_prices", "rank_bm25", "sentence_transformers"}


@pytest.fixture
def loaded(tmp_path: Path) -> Callable[[str], set[str]]:
    """Runs statements in a new interpreter; returns the top-level packages that it then has loaded."""

    def ran(statements: str) -> set[str]:
        code = f"{statements}\nimport sys; print('\\n' + ' '.join(name.split('.')[0] for name in sys.modules))"
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment, cwd=tmp_path
        )
        return set(done.stdout.splitlines()[-1].split())

    return ran


def test_importing_the_command_line_loads_next_to_nothing(loaded: Callable[[str], set[str]]) -> None:
    found = loaded("import aether_context.cli")
    assert "click" in found
    assert not found & (_HEAVY | {"pydantic", "fsspec"})


def test_inspect_loads_no_provider(loaded: Callable[[str], set[str]], tmp_path: Path) -> None:
    store = PackStore(tmp_path / "packs")
    packs.chain(store, 3)
    command = ["inspect", "--store", store.url]
    assert not loaded(f"from aether_context.cli import main; main({command}, standalone_mode=False)") & _HEAVY


def test_output_fits_an_encoding_without_signs(tmp_path: Path) -> None:
    store = PackStore(tmp_path / "packs")
    packs.chain(store, 12, identity=packs.IDENTITY._replace(agent="Zoë"))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONIOENCODING": "latin-1"}
    command = [sys.executable, "-m", "aether_context", "inspect", "--store", store.url]
    done = subprocess.run(command, capture_output=True, check=True, env=environment)
    output = done.stdout.decode("latin-1")
    assert "neutral ½ (unknown)" in output
    assert "agent Zoë" in output
    assert r"\u2026 and 22 kept whole" in output
    assert json.loads(subprocess.run([*command, "--json"], capture_output=True, check=True, env=environment).stdout)
