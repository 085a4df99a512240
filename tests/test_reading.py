"""What differs between two packs of conversations through ADK's own Runner, and `aether-context diff` of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from scripted import Chat, call, look_up

from aether_context import PackPolicy, PackStore
from aether_context.cli import main
from aether_context.reading import PackView, difference, read_view
from aether_context.store.replay import Replayer

NARROW = PackPolicy(max_input_tokens=2_000)


def looking_up(count: int) -> list[Any]:
    """What a model answers to so many questions, each after a look-up."""
    return [reply for at in range(count) for reply in ([call("look_up", key=f"k{at}")], f"answer {at}")]


def views(chat: Chat) -> list[PackView]:
    replayer = Replayer(chat.store)
    return [read_view(replayer, manifest) for manifest in chat.manifests()]


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> Chat:
    """A conversation of 16 calls that is cut once."""
    store = PackStore(tmp_path_factory.mktemp("cut") / "packs")
    made = Chat(store=store, tools=[look_up], policy=NARROW, script=looking_up(8))
    made.say(*(f"question {at}" for at in range(8)))
    assert [one.epoch_reason for one in made.manifests()].count("high_water") == 1
    return made


@pytest.fixture(scope="module")
def cut(chat: Chat) -> list[PackView]:
    return views(chat)


def cut_at(found: list[PackView]) -> int:
    return next(at for at, view in enumerate(found) if view.manifest.epoch_reason == "high_water")


def test_views_hold_the_request_as_it_was_sent(cut: list[PackView]) -> None:
    for view in cut:
        assert view.request is not None
        assert view.gaps == ()
        assert sum(piece.tokens for piece in view.request) == view.manifest.counted_tokens
        assert {name for piece in view.request for name in piece.rows} <= view.rows.keys()
    assert cut[1].request is not None
    assert [piece.text for piece in cut[1].request if piece.part == "content"][:2] == [
        "question 0",
        'call look_up: {"key":"k0"}',
    ]
    assert isinstance(cut[0].outcome, dict)


def test_a_cut_says_what_it_took_and_where_the_prefix_ends(cut: list[PackView]) -> None:
    at = cut_at(cut)
    found = difference(cut[at - 1], cut[at])
    taken = {name for event in cut[at].manifest.truncation_events if event.stage == "cut" for name in event.item_ids}
    of_cut = [one for one in found.candidates if one.id in taken]
    assert {one.id for one in of_cut} == taken
    assert {(one.change, one.after.form) for one in of_cut} == {("left", "summarized"), ("resized", "extract")}
    assert all(one.after.reason is not None for one in of_cut)
    assert found.parting is not None
    assert (found.parting.part, found.parting.at, found.parting.character) == ("content", 0, 0)
    assert found.parting.reason == cut[at].manifest.prefix.broken_by == "cut"
    assert found.shared_tokens == cut[at].manifest.prefix.shared_tokens


def test_two_sessions_part_at_the_very_character() -> None:
    one, other = (
        Chat(instruction=f"You help. The shop opens at {hour} o'clock.", app_name="shop") for hour in ("nine", "ten")
    )
    for chat in (one, other):
        chat.say("when?")
    found = difference(views(one)[-1], views(other)[-1])
    assert found.parting is not None
    assert (found.parting.part, found.parting.at) == ("system", 0)
    assert found.parting.common.endswith("The shop opens at ")
    assert found.parting.before.startswith("nine o'clock")
    assert found.parting.after.startswith("ten o'clock")
    assert found.parting.character == len("You help. The shop opens at ")
    assert found.shared_tokens == 0
    (text,) = [text for text in found.texts if not text.same]
    assert [kind for kind, _ in text.lines][:2] == ["-", "+"]


def diff(*arguments: object, store: PackStore | None = None, code: int) -> Result:
    """Runs the command and checks its exit code."""
    url = ["--store", store.url] if store is not None else []
    result = CliRunner().invoke(main, ["diff", *map(str, arguments), *url])
    assert result.exit_code == code, result.output
    return result


def test_a_pack_is_compared_with_the_one_before_it(chat: Chat, cut: list[PackView]) -> None:
    at, manifests = cut_at(cut), chat.manifests()
    before, after = manifests[at - 1], manifests[at]
    output = diff(after.pack_id, store=chat.store, code=1).stdout
    assert before.pack_id in output
    assert "they part in content 0 (user), after 0 of its characters: cut" in output
    left = [line.split() for line in output.splitlines() if line.split()[:1] == ["left"]]
    assert len(left) == len([row for row in after.rows if row.form == "summarized"])
    assert all(words[-2:] == ["summarized,", "window"] for words in left)
    assert "    - question 0\n" in output
    assert "    + CONVERSATION SUMMARY" in output
    change = f"{before.counted_tokens:,} → {after.counted_tokens:,}"
    assert any(change in line for line in output.splitlines() if line.split()[:1] == ["all"])


def test_what_is_not_there_is_exit_code_3(tmp_path: Path) -> None:
    made = Chat(store=PackStore(tmp_path / "packs"))
    made.say("one")
    assert "says of no pack before it" in diff(store=made.store, code=3).stderr
    assert "no pack 'nope'" in diff("nope", "latest", store=made.store, code=3).stderr
    text = tmp_path / "notes.md"
    text.write_text("notes")
    assert "it holds no manifest" in diff(text, "latest", store=made.store, code=3).stderr
    assert "no such store" in diff(store=PackStore(tmp_path / "none"), code=3).stderr
    assert "diff [OPTIONS]" in diff("a", "b", "c", store=made.store, code=2).stderr
