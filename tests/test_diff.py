"""`aether-context diff` over packs that ADK's own Runner recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import packs
import pytest
from click.testing import CliRunner, Result
from scripted import Chat, call, look_up

from aether_context import Manifest, PackPolicy, PackStore
from aether_context.cli import main

HOSTILE = "[red]x[/red]\nFORGED  \x1b[31m\u202e"


def diff(*arguments: object, store: PackStore | None = None, code: int) -> Result:
    """Runs the command and checks its exit code."""
    url = ["--store", store.url] if store is not None else []
    result = CliRunner().invoke(main, ["diff", *map(str, arguments), *url])
    assert result.exit_code == code, result.output
    return result


def chat(folder: Path, *messages: str, **options: Any) -> Chat:
    made = Chat(store=PackStore(folder), **options)
    made.say(*messages)
    return made


@pytest.fixture(scope="module")
def cut(tmp_path_factory: pytest.TempPathFactory) -> tuple[PackStore, list[Manifest]]:
    """A conversation of 16 calls that is cut once."""
    script = [reply for at in range(8) for reply in ([call("look_up", key=f"k{at}")], f"answer {at}")]
    policy = PackPolicy(max_input_tokens=2_000)
    questions = [f"question {at}" for at in range(8)]
    made = chat(tmp_path_factory.mktemp("cut") / "packs", *questions, tools=[look_up], policy=policy, script=script)
    return made.store, made.manifests()


def at_cut(manifests: list[Manifest]) -> Manifest:
    return next(one for one in manifests if one.epoch_reason == "high_water")


def test_the_same_request_is_exit_code_0(cut: tuple[PackStore, list[Manifest]]) -> None:
    store, manifests = cut
    output = diff("latest", manifests[-1].pack_id, store=store, code=0).stdout
    assert "both send the same request" in output
    assert "none differs" in output
    assert "TEXTS" not in output


def test_a_pack_is_compared_with_the_one_before_it(cut: tuple[PackStore, list[Manifest]]) -> None:
    store, manifests = cut
    output = diff(at_cut(manifests).pack_id, store=store, code=1).stdout
    before = manifests[manifests.index(at_cut(manifests)) - 1]
    assert before.pack_id in output
    assert "they part in content 0 (user), after 0 of its characters: cut" in output
    left = [line.split() for line in output.splitlines() if line.split()[:1] == ["left"]]
    assert len(left) == len([row for row in at_cut(manifests).rows if row.form == "summarized"])
    assert all(words[-2:] == ["summarized,", "window"] for words in left)
    assert "    - question 0\n" in output
    assert "    + CONVERSATION SUMMARY" in output
    change = f"{before.request_tokens:,} → {at_cut(manifests).request_tokens:,}"
    assert any(change in line for line in output.splitlines() if line.split()[:1] == ["request"])


def test_without_names_it_is_the_newest_pack(cut: tuple[PackStore, list[Manifest]]) -> None:
    store, manifests = cut
    output = diff(store=store, code=1).stdout
    assert all(manifest.pack_id in output for manifest in manifests[-2:])
    assert "one request begins with the whole other one" in output


def test_packs_may_be_abbreviated_or_paths(cut: tuple[PackStore, list[Manifest]], tmp_path: Path) -> None:
    store, manifests = cut
    first, last = manifests[0], manifests[-1]
    path = Path(store.uri(first).removeprefix("file://"))
    assert path.is_file()
    by_id = diff(first.pack_id, last.pack_id, store=store, code=1).stdout
    assert diff(first.pack_id[-8:], "latest", store=store, code=1).stdout == by_id
    assert diff(path, last.pack_id, store=store, code=1).stdout == by_id
    assert diff(path, Path(store.uri(last).removeprefix("file://")), code=1).stdout == by_id
    copy = tmp_path / "copy.json"
    copy.write_text(last.to_json())
    assert diff(path, copy, store=store, code=1).stdout == by_id
    for command in ("inspect", "replay"):
        shown = [CliRunner().invoke(main, [command, str(one), "--store", store.url]) for one in (path, first.pack_id)]
        assert shown[0].stdout == shown[1].stdout
        assert shown[0].exit_code == 0


def test_packs_of_two_stores_part_at_the_character(tmp_path: Path) -> None:
    one, other = (
        chat(tmp_path / hour, "when?", instruction=f"The shop opens at {hour} o'clock.") for hour in ("nine", "ten")
    )
    paths = [made.store.uri(made.manifests()[0]).removeprefix("file://") for made in (one, other)]
    output = diff(*paths, code=1).stdout
    assert "they part in the system instruction, after 18 of its characters" in output
    assert "'The shop opens at '" in output
    assert "- \"nine o'clock" in output
    assert "+ \"ten o'clock" in output


def test_json_holds_all_of_it(cut: tuple[PackStore, list[Manifest]]) -> None:
    store, manifests = cut
    taken = at_cut(manifests)
    value = json.loads(diff(taken.pack_id, "--json", store=store, code=1).stdout)
    assert (value["before"]["pack_id"], value["after"]["checksum"]) == (taken.call_before, taken.checksum)
    assert (value["parting"]["part"], value["parting"]["at"], value["parting"]["reason"]) == ("content", 0, "cut")
    assert value["shared_tokens"] == taken.prefix.shared_tokens
    used = {layer["layer"]: layer["after"]["used"] for layer in value["layers"]}
    assert used == {layer: tokens.used for layer, tokens in taken.allocation.items()}
    reasons = {change["after"]["reason"] for change in value["candidates"] if change["change"] == "left"}
    assert reasons == {"window"}
    assert sum(text["after"]["tokens"] for text in value["texts"] if text["after"]) == taken.counted_tokens
    same = json.loads(diff("latest", "latest", "--json", store=store, code=0).stdout)
    assert same["same"]
    assert same["parting"] is None


def test_long_changes_are_shown_whole_on_request(tmp_path: Path) -> None:
    one, other = (chat(tmp_path / end, f"{'the same words ' * 40}{end}") for end in ("apples", "pears"))
    paths = [made.store.uri(made.manifests()[0]).removeprefix("file://") for made in (one, other)]
    assert "--all shows them whole" in diff(*paths, code=1).stdout
    assert "the same words " * 40 + "pears" in diff(*paths, "--all", code=1).stdout.replace("\n", "")


def test_hostile_text_is_made_visible(tmp_path: Path) -> None:
    made = chat(tmp_path / "packs", "Hello", HOSTILE, script=[HOSTILE, "ok"], instruction="You help.")
    assert made.manifests()[-1].call_before
    for options in ([], ["--all"]):
        output = diff(*options, store=made.store, code=1).stdout
        assert not any(line.startswith("FORGED") for line in output.splitlines())
        assert not {"\x1b", "\u202e"} & set(output)
        assert r"FORGED  \x1b[31m\u202e" in output
        assert "[red]x[/red]" in output


def test_hashes_alone_tell_layers_and_candidates(tmp_path: Path) -> None:
    made = chat(tmp_path / "packs", "one", "two", policy=PackPolicy(record="hashes"))
    result = diff(store=made.store, code=1)
    assert "texts cannot be compared" in result.stdout
    assert "unknown: the texts of one pack are not known" in result.stdout
    assert any(line.split()[:1] == ["entered"] for line in result.stdout.splitlines())
    assert not result.stderr
    diff("latest", "latest", store=made.store, code=0)


def test_what_is_not_what_was_written_is_no_answer(tmp_path: Path) -> None:
    made = chat(tmp_path / "packs", "one", "two")
    first, second = made.manifests()
    packs.rewrite(made.store, second, lambda line: line.replace(second.invocation.encode(), b"i7"))
    assert "the manifest's hash is" in diff(second.pack_id, store=made.store, code=3).stderr
    packs.rewrite(made.store, first, lambda line: line.replace(b'"text":"one"', b'"text":"won"'), line=1)
    assert "the request is not shown" in diff(first.pack_id, first.pack_id, store=made.store, code=3).stderr


def test_what_is_not_there_is_exit_code_3(tmp_path: Path) -> None:
    made = chat(tmp_path / "packs", "one")
    assert "says of no pack before it" in diff(store=made.store, code=3).stderr
    assert "no pack 'nope'" in diff("nope", "latest", store=made.store, code=3).stderr
    text = tmp_path / "notes.md"
    text.write_text("notes")
    assert "it holds no manifest" in diff(text, "latest", store=made.store, code=3).stderr
    assert "no such store" in diff(store=PackStore(tmp_path / "none"), code=3).stderr
    assert "diff [OPTIONS]" in diff("a", "b", "c", store=made.store, code=2).stderr
