"""What a memory service finds, in the payload: once an invocation, within its deadline, whatever it raises."""

from __future__ import annotations

import time
from unittest.mock import patch

import pytest
from google.adk.tools.preload_memory_tool import PreloadMemoryTool
from plans import loop, messages
from scripted import Chat, Failure, Memories, call, look_up, remembered

from aether_context import PackPolicy
from aether_context.adk.bounds import Waits


def test_memory_hits_stand_in_the_payload_with_author_and_date() -> None:
    memory = Memories(remembered("the tax rate is 19 percent"), remembered("likes tea", author=None))
    chat = Chat(memory=memory, script=[call("look_up", key="a"), "done"], tools=[look_up])
    chat.say("What is the tax rate?")
    assert "MEMORY:\n- user: the tax rate is 19 percent (2025-03-09)" in chat.sent[0].human()
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
    assert chat.sent[0].text.count("the tax rate is 19 percent (2025-03-09)") == 1
    assert "closes at five" in chat.sent[0].text
    for earlier, later in zip(chat.sent[:3], chat.sent[1:3], strict=False):
        assert later.wires[: len(earlier.wires)] == earlier.wires
    assert len(memory.queries) == len(chat.sent)
    chat.replays()


def test_a_user_who_quotes_the_block_keeps_every_word() -> None:
    quote = (
        "The following content is from your previous conversations with the user.\nThey may be useful.\n"
        "<PAST_CONVERSATIONS>\nTime: 2020\nuser: my secret\n</PAST_CONVERSATIONS>\nWhat is this?"
    )
    chat = Chat(script=[*loop(1), "it is a block"], tools=[look_up])
    chat.say(quote, "thanks")
    assert [one.wires for one in chat.raw] == [one.wires for one in chat.sent]


@pytest.mark.parametrize("error", [Failure("down"), ValueError("no")])
def test_a_memory_service_that_raises_costs_nothing(error: Exception) -> None:
    chat = Chat(memory=Memories(error=error))
    chat.say("hello")
    assert chat.sent[0].wires == chat.raw[0].wires
    assert "memory search failed" in messages(chat.manifests()[0].degradations)


def test_a_memory_service_that_times_out_by_itself_costs_nothing() -> None:
    chat = Chat(memory=Memories(error=TimeoutError()))
    chat.say("hello")
    assert "memory search failed: TimeoutError" in chat.manifests()[0].degradations


@patch.object(Waits, "seconds", 0.05)
def test_a_memory_service_that_hangs_costs_its_deadline() -> None:
    memory = Memories(remembered("late"), delay_seconds=600)
    chat = Chat(memory=memory)
    began = time.monotonic()
    chat.say("hello")
    assert time.monotonic() - began < 60
    assert chat.sent[0].wires == chat.raw[0].wires
    assert "memory search failed: TimeoutError" in chat.manifests()[0].degradations


def test_memory_is_asked_once_an_invocation() -> None:
    memory = Memories()
    chat = Chat(memory=memory, script=[*loop(3), "a", "b"], tools=[look_up])
    chat.say("one", "two")
    assert [query for _, _, query in memory.queries] == ["one", "two"]
