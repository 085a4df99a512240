"""Decisions, entities and memories that agents write: where they go, and that packs show them."""

from __future__ import annotations

from typing import Any

import pytest
from google.adk.memory.memory_entry import MemoryEntry
from scripted import Chat, Memories, call, results, state_of

from aether_context.adk import memory_tools
from aether_context.store.replay import Replayer


class Keeps(Memories):
    """Takes single memories, and finds them for every query."""

    async def add_memory(self, *, app_name: str, user_id: str, memories: Any, custom_metadata: Any = None) -> None:
        if self.error is not None:
            raise self.error
        self.entries += memories


def test_a_decision_and_an_entity_stand_in_later_packs_with_their_source() -> None:
    chat = Chat(
        script=[
            call("record_decision", text="Refunds go out on Fridays", reason="the bank batches them"),
            call("record_entity", name="Bo", text="approves refunds"),
            call("record_entity", name="bo ", text="approves refunds above 200"),
            "Noted.",
            "On Fridays.",
        ],
        tools=memory_tools(),
    )
    chat.say("Who approves refunds, and when do they go out?")
    held = state_of(chat)["knowledge"]
    assert [one["text"] for one in held["decisions"]] == ["Refunds go out on Fridays (because: the bank batches them)"]
    assert [one["text"] for one in held["entities"]] == ["bo: approves refunds above 200"]
    chat.say("When do refunds go out, and who approves them?")
    last = chat.manifests()[-1]
    rows = Replayer(chat.store).resolve(last).rows.values()
    assert {row.source for row in rows if row.layer == "memory"} == {"decision", "entity"}
    assert "Refunds go out on Fridays" in chat.sent[-1].human()
    chat.replays()


def test_what_is_remembered_reaches_the_memory_service_and_a_later_session() -> None:
    memory = Keeps()
    chat = Chat(
        script=[call("remember", text="Ann wants links, not quotes"), "Kept.", "Links."],
        tools=memory_tools(),
        memory=memory,
    )
    answer = results(chat.say("Please always send me links."))[0]
    entry: MemoryEntry = memory.entries[0]
    assert answer == {"remembered": entry.id}
    assert (entry.author, entry.content.parts[0].text) == ("clerk", "Ann wants links, not quotes")
    assert entry.timestamp is not None
    chat.say("Does Ann want links or quotes?", session="s2")
    assert "Ann wants links, not quotes" in chat.sent[-1].human()
    chat.replays()


@pytest.mark.parametrize("memory", [None, Memories(), Keeps(error=ConnectionError("down"))], ids=["none", "no", "down"])
def test_a_memory_that_cannot_be_kept_is_an_answer_and_no_failure(memory: Any) -> None:
    chat = Chat(script=[call("remember", text="Ann wants links"), "Sorry."], tools=memory_tools(), memory=memory)
    assert "was not kept" in results(chat.say("Please always send me links."))[0]["error"]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("remember", {"text": " "}),
        ("record_decision", {"text": None}),
        ("record_entity", {"name": "", "text": "approves"}),
        ("record_entity", {"name": "Bo", "text": ""}),
    ],
)
def test_what_says_nothing_is_refused_with_what_is_missing(name: str, arguments: dict[str, Any]) -> None:
    chat = Chat(script=[call(name, **arguments), "Sorry."], tools=memory_tools(), memory=Keeps())
    assert "needs a" in results(chat.say("Go."))[0]["error"]
    assert "knowledge" not in state_of(chat)
