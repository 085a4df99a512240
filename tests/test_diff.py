"""`aether-context diff` over packs that ADK's own Runner recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from scripted import Chat, call, look_up

from aether_context import Manifest, PackPolicy, PackStore
from aether_context.lab.cli import main


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
    policy = PackPolicy(max_input_tokens=1_800)
    questions = [f"question {at}" for at in range(8)]
    made = chat(tmp_path_factory.mktemp("cut") / "packs", *questions, tools=[look_up], policy=policy, script=script)
    return made.store, made.manifests()


def at_cut(manifests: list[Manifest]) -> Manifest:
    return next(one for one in manifests if one.epoch_reason == "high_water")


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
    assert any(change in line for line in output.splitlines() if line.split()[:1] == ["all"])


def test_what_is_not_there_is_exit_code_3(tmp_path: Path) -> None:
    made = chat(tmp_path / "packs", "one")
    assert "says of no pack before it" in diff(store=made.store, code=3).stderr
    assert "no pack 'nope'" in diff("nope", "latest", store=made.store, code=3).stderr
    text = tmp_path / "notes.md"
    text.write_text("notes")
    assert "no pack" in diff(text, "latest", store=made.store, code=3).stderr
    assert "no such store" in diff(store=PackStore(tmp_path / "none"), code=3).stderr
    assert "diff [OPTIONS]" in diff("a", "b", "c", store=made.store, code=2).stderr
