"""What a memory service finds, in the payload: once an invocation, within its deadline, whatever it raises."""

from __future__ import annotations

import pytest
from google.adk.tools.preload_memory_tool import PreloadMemoryTool
from plans import loop
from scripted import Chat, Memories, call, grow, look_up, remembered

from aether_context import PackPolicy


def test_memory_hits_stand_in_the_payload_with_author_and_date() -> None:
    memory = Memories(remembered("the tax rate is 19 percent"), remembered("likes tea", author=None))
    chat = Chat(memory=memory, script=[call("look_up", key="a"), "done"], tools=[look_up])
    chat.say("What is the tax rate?")
    assert "MEMORY:\n- 9 March 2025, user: the tax rate is 19 percent" in chat.sent[0].human()
    assert memory.queries == [("shop", "ann", "What is the tax rate?")]
    assert chat.sent[1].wires[0] == chat.sent[0].wires[0]
    chat.replays()


@pytest.mark.parametrize("timestamp", [None, "", "yesterday", "2025-03-09", "1741514400", "99999-01-01", "0001-01-01"])
def test_any_timestamp_of_a_memory_is_taken(timestamp: str | None) -> None:
    chat = Chat(memory=Memories(remembered("the tax rate is 19 percent", timestamp=timestamp)))
    chat.say("What is the tax rate?")
    assert "the tax rate is 19 percent" in chat.sent[0].human()


def test_preloaded_memories_are_taken_over_and_not_repeated() -> None:
    memory = Memories(
        remembered("the tax rate is 19 percent"), remembered("the tax office opens at nine\nand closes at five")
    )
    chat = Chat(
        memory=memory,
        script=[*loop(2), "done", "ok"],
        tools=[look_up, PreloadMemoryTool()],
        policy=PackPolicy(retrieval={"floor": 0.0}),
    )
    chat.say("What is the tax rate?", "And the tax office?")
    assert len(chat.sent) == 4
    for raw, left in zip(chat.raw, chat.sent, strict=True):
        assert "PAST_CONVERSATIONS" in raw.text
        assert "PAST_CONVERSATIONS" not in left.text
    assert chat.sent[0].text.count("9 March 2025: user: the tax rate is 19 percent") == 1
    assert "closes at five" in chat.sent[0].text
    assert grow(chat.sent[:3])
    assert len(memory.queries) == len(chat.sent)
    chat.replays()


def test_memory_is_asked_once_an_invocation() -> None:
    memory = Memories()
    chat = Chat(memory=memory, script=[*loop(3), "a", "b"], tools=[look_up])
    chat.say("one", "two")
    assert [query for _, _, query in memory.queries] == ["one", "two"]
