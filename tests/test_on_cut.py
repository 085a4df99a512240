"""An app is handed a cut before it is made, may keep entries and speak to the user; and what an answer's event tells of
the window."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from plans import words
from scripted import Chat, call, look_up, new_store

from aether_context import PackPolicy
from aether_context.adk import ContextPackPlugin, UpcomingCut, pin

POLICY = PackPolicy(max_input_tokens=2_000, retrieval={"recall": False})
SECRET = "The vault's code is Falcon-7731."


def chat_with(on_cut: Any = None, **settings: Any) -> Chat:
    plugin = ContextPackPlugin(policy=POLICY, store=new_store(), on_error="raise", on_cut=on_cut)
    return Chat(plugin=plugin, policy=POLICY, tools=[look_up], **settings)


def fill(chat: Chat, first: str = SECRET, count: int = 14) -> None:
    chat.say(first, *(f"Note {at}: {words(70, f'n{at}w')}" for at in range(count)))


def texts(chat: Chat) -> set[str | None]:
    """The texts of the last request's parts."""
    return {part.text for content in chat.sent[-1].contents for part in content.parts or ()}


def meters(chat: Chat) -> list[dict[str, Any]]:
    events = asyncio.run(chat.held()).events
    told = [(event.custom_metadata or {}).get("aether_context", {}) for event in events if event.author != "user"]
    return [metadata["meter"] for metadata in told]


def test_a_hook_is_handed_what_a_cut_takes_and_keeps_some_of_it() -> None:
    cuts: list[UpcomingCut] = []

    def keep_the_code(cut: UpcomingCut) -> str:
        cuts.append(cut)
        found = [entry for entry in cut.entries if "Falcon" in entry.words]
        assert all(cut.keep(entry) and cut.keep(entry) for entry in found)
        return "Older messages are summarized now." if found else ""

    kept, free = chat_with(keep_the_code), chat_with()
    fill(kept, count=22)
    fill(free)
    assert (cuts[0].app, cuts[0].user, cuts[0].session, cuts[0].agent) == ("shop", "ann", "s1", "clerk")
    assert cuts[0].entries[0].author == "user"
    assert cuts[0].entries[0].words == SECRET
    assert cuts[0].tokens == sum(entry.tokens for entry in cuts[0].entries[1:]) > 300, "without what is kept"
    assert cuts[0].room == 500 - cuts[0].entries[0].tokens
    assert SECRET in texts(kept), "it stands through every cut that it was kept at"
    assert SECRET not in texts(free)
    assert len(cuts) == sum(manifest.epoch_reason == "high_water" for manifest in kept.manifests()) > 1
    notices = [
        event.custom_metadata["aether_context"].get("notice")
        for event in asyncio.run(kept.held()).events
        if event.author != "user"
    ]
    assert notices.count("Older messages are summarized now.") == len(cuts)
    asked = len(cuts)
    kept.replays()
    assert len(cuts) == asked, "a replay asks nobody"


async def _raising(cut: UpcomingCut) -> None:
    cut.keep(cut.entries[0])
    await asyncio.sleep(0)
    raise LookupError("the app is away")


def _late(cut: UpcomingCut) -> None:
    cut.keep(cut.entries[0])
    time.sleep(0.3)


@pytest.mark.parametrize("hook", [_raising, _late, lambda cut: cut.keep(cut.entries[0]) and cut.missing])
def test_a_hook_that_fails_or_is_late_changes_nothing(hook: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aether_context.adk.on_cut._SECONDS", 0.05)
    failing, free = chat_with(hook), chat_with()
    fill(failing)
    fill(free)
    assert [sent.contents for sent in failing.sent] == [sent.contents for sent in free.sent]


def test_no_more_is_kept_than_there_is_room_for_and_exchanges_are_one_entry() -> None:
    kept = list[bool]()
    cuts = list[UpcomingCut]()

    def keep_all(cut: UpcomingCut) -> None:
        cuts.append(cut)
        kept.extend(map(cut.keep, cut.entries))

    script = [call("look_up", key="first"), "found", *["noted"] * 40]
    chat = chat_with(keep_all, script=script)
    fill(chat, "Look it up.")
    authors = [entry.author for entry in cuts[0].entries]
    assert "calls" in authors
    assert True in kept
    assert False in kept
    assert sum(entry.tokens for entry, is_kept in zip(cuts[0].entries, kept, strict=False) if is_kept) <= 500
    assert all(manifest.request_tokens <= 2_000 for manifest in chat.manifests())


def test_a_pinned_message_outlives_cuts() -> None:
    chat = chat_with()
    chat.say(SECRET)
    session = asyncio.run(chat.held())
    asyncio.run(chat.sessions.append_event(session, pin(session, "Falcon-7731")))
    message = "Never write to the ledger."
    chat.say(message)
    session = asyncio.run(chat.held())
    event = next(event for event in session.events if event.content and event.content.parts[0].text == message)
    asyncio.run(chat.sessions.append_event(session, pin(session, event)))
    fill(chat, "And now the notes.")
    assert {SECRET, message} <= texts(chat)
    for wrong in ("", " "):
        with pytest.raises(ValueError, match="what = "):
            pin(session, wrong)


def test_an_answers_event_tells_how_full_the_window_is() -> None:
    chat = chat_with()
    fill(chat)
    manifests, told = chat.manifests(), meters(chat)
    for manifest, meter in zip(manifests, told, strict=True):
        assert meter["window"] == 2_000
        assert sum(meter["used"].values()) == pytest.approx(manifest.request_tokens, abs=3)
        assert meter["budget"] >= manifest.request_tokens
    left = [meter["until_cut"] for meter in told]
    sent = [manifest.request_tokens for manifest in manifests]
    (cut_at,) = (at for at, manifest in enumerate(manifests) if manifest.epoch_reason == "high_water")
    assert left[cut_at - 1] < 1.5 * (sent[cut_at - 1] - sent[cut_at - 2]), "the call before it tells that a cut is near"
    assert left[cut_at] > left[cut_at - 1]
