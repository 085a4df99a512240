"""What differs between two packs, of conversations through ADK's own Runner."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import packs
import pytest
from scripted import Chat, call, look_up, new_store, send_mail

from aether_context import PackPolicy
from aether_context.reading import CandidateChange, PackView, difference, read_view, view_under
from aether_context.store.replay import Replayer

NARROW = PackPolicy(max_input_tokens=2_000)


def looking_up(count: int) -> list[Any]:
    """What a model answers to so many questions, each after a look-up."""
    return [reply for at in range(count) for reply in ([call("look_up", key=f"k{at}")], f"answer {at}")]


def views(chat: Chat) -> list[PackView]:
    replayer = Replayer(chat.store)
    return [read_view(replayer, manifest) for manifest in chat.manifests()]


@pytest.fixture(scope="module")
def cut() -> list[PackView]:
    """The packs of a conversation that is cut once."""
    chat = Chat(tools=[look_up], policy=NARROW, script=looking_up(8))
    chat.say(*(f"question {at}" for at in range(8)))
    found = views(chat)
    assert [view.manifest.epoch_reason for view in found].count("high_water") == 1
    return found


def cut_at(found: list[PackView]) -> int:
    return next(at for at, view in enumerate(found) if view.manifest.epoch_reason == "high_water")


def fates(changes: Iterable[CandidateChange], change: str) -> set[tuple[str, str | None]]:
    return {(one.id.partition("_")[0], one.after.reason) for one in changes if one.change == change}


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


def test_a_pack_does_not_differ_from_itself(cut: list[PackView]) -> None:
    found = difference(cut[3], cut[3])
    assert found.same
    assert found.parting is None
    assert found.candidates == ()
    assert all(text.same for text in found.texts)
    assert all(layer.before == layer.after for layer in found.layers)
    assert found.shared_tokens == cut[3].manifest.counted_tokens


def test_what_is_appended_enters_and_breaks_nothing(cut: list[PackView]) -> None:
    found = difference(cut[0], cut[1])
    assert not found.same
    assert found.parting is None
    assert found.shared_tokens == cut[1].manifest.prefix.shared_tokens == cut[0].manifest.counted_tokens
    assert fates(found.candidates, "entered") == {("c1", None), ("c2", None)}
    assert [(text.before is None, text.after is None) for text in found.texts if not text.same] == [(True, False)] * 2


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


def test_what_an_earlier_cut_took_is_told_from_what_was_never_there(cut: list[PackView]) -> None:
    found = difference(cut[0], cut[-1])
    assert fates(found.candidates, "left") == {("c0", "cut_earlier")}
    back = difference(cut[-1], cut[0])
    assert {one.after.reason for one in back.candidates if one.change == "left"} == {None}
    assert {one.before.reason for one in back.candidates if one.change == "entered"} == {"cut_earlier"}
    assert found.parting is not None
    assert found.parting.reason is None


def test_candidates_stand_in_the_order_of_layers_and_of_the_conversation(cut: list[PackView]) -> None:
    entered = [one for one in difference(cut[0], cut[-1]).candidates if one.change == "entered"]
    places = [int(one.id[1:].partition("_")[0]) for one in entered if one.layer == "conversation"]
    assert places == sorted(places)


def test_another_policy_of_the_same_material(cut: list[PackView]) -> None:
    chat = Chat(tools=[look_up], policy=NARROW, script=looking_up(4))
    chat.say(*(f"question {at}" for at in range(4)))
    replayer, manifest = Replayer(chat.store), chat.manifests()[-1]
    before = read_view(replayer, manifest)
    same = difference(before, view_under(replayer, manifest, NARROW))
    assert same.same
    assert same.candidates == ()
    after = view_under(replayer, manifest, PackPolicy(max_input_tokens=800))
    found = difference(before, after)
    assert after.manifest.window == 800
    assert not found.same
    assert any(one.change == "left" and one.after.reason is not None for one in found.candidates)
    assert found.parting is not None
    assert (found.parting.part, found.parting.reason) == ("content", None)
    conversation = next(layer for layer in found.layers if layer.layer == "conversation")
    assert conversation.before is not None
    assert conversation.after is not None
    assert conversation.after.final < conversation.before.final


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


def test_a_message_in_the_same_place_is_set_beside_the_other() -> None:
    one, other = Chat(), Chat()
    one.say("first", "the red one", "last")
    other.say("first", "the blue one", "last")
    found = difference(views(one)[-1], views(other)[-1])
    changed = [text for text in found.texts if not text.same]
    assert [(text.before and text.before.text, text.after and text.after.text) for text in changed] == [
        ("the red one", "the blue one")
    ]
    assert found.parting is not None
    assert (found.parting.part, found.parting.at, found.parting.character) == ("content", 2, len("the "))
    # The same question stands in both, whatever place it has.
    assert {(one.change, one.id.partition("_")[0]) for one in found.candidates} == {("left", "c2"), ("entered", "c2")}


def test_declarations_are_candidates() -> None:
    one, other = Chat(tools=[look_up, send_mail]), Chat(tools=[look_up])
    for chat in (one, other):
        chat.say("hello")
    found = difference(views(one)[-1], views(other)[-1])
    assert [(change.id, change.layer, change.change) for change in found.candidates] == [("send_mail", "tools", "left")]
    assert found.candidates[0].before.tokens
    assert found.parting is not None
    assert (found.parting.part, found.parting.name) == ("content", "user")


def test_a_tool_left_out_keeps_its_reason() -> None:
    store = new_store()
    all_tools = packs.remembering(store, PackPolicy(tools={"scope": "off"}))
    pruned = packs.remembering(store, identity=packs.IDENTITY._replace(session="s2"))
    replayer = Replayer(store)
    found = difference(read_view(replayer, all_tools), read_view(replayer, pruned))
    (tool,) = [change for change in found.candidates if change.layer == "tools"]
    assert (tool.id, tool.change, tool.after.reason) == ("delete_all", "left", "not_in_scope")


def test_what_differs_in_the_wire_alone_parts_there() -> None:
    store, replayer = new_store(), None
    texts = []
    for number in ("1", "2"):
        session = packs.Session(store, identity=packs.IDENTITY._replace(session=f"s{number}"))
        session.history += [
            packs.said("go"),
            packs.called("f", f"id-{number}"),
            packs.answered("f", f"id-{number}", "x"),
        ]
        replayer = Replayer(store)
        texts.append(read_view(replayer, session.ask("and?")))
    found = difference(*texts)
    assert found.parting is not None
    assert (found.parting.part, found.parting.at) == ("content", 1)
    assert found.parting.before.startswith('1","name"')
    assert found.parting.after.startswith('2","name"')


def test_hashes_alone_still_tell_layers_and_candidates() -> None:
    chat = Chat(tools=[look_up], policy=NARROW.model_copy(update={"record": "hashes"}), script=looking_up(8))
    chat.say(*(f"question {at}" for at in range(8)))
    found = views(chat)
    assert all(view.request is None and view.gaps == () for view in found)
    at = cut_at(found)
    changed = difference(found[at - 1], found[at])
    assert any(one.change == "left" and one.after.reason for one in changed.candidates)
    assert (changed.texts, changed.parting, changed.shared_tokens) == ((), None, None)
    assert not changed.same


def test_what_cannot_be_read_is_a_gap() -> None:
    chat = Chat()
    chat.say("one", "two")
    first, second = chat.manifests()
    packs.rewrite(chat.store, first, lambda line: line.replace(b"one", b"won"), line=1)
    broken = read_view(Replayer(chat.store), second)
    assert broken.request is None
    assert any("the request is not shown" in gap for gap in broken.gaps)
    assert broken.rows
