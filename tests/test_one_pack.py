"""One pack in a request: what becomes of the packed messages of earlier invocations, through ADK's own Runner."""

from __future__ import annotations

from typing import Any

import pytest
from google.adk.tools.tool_context import ToolContext
from plans import cached_input_costs, loop, planned
from scripted import Chat, Sent, call, look_up

from aether_context import PackPolicy

NEXT_STEP = {"id": "4", "text": "Write the letter", "acceptance": ["The letter has a date"]}


def packs_in(one: Sent) -> int:
    return sum(text.startswith("CONTEXT PACK\n") for text in humans(one))


def humans(one: Sent) -> list[str]:
    texts = [content.parts[0].text for content in one.contents if content.role == "user" and content.parts]
    return [text for text in texts if text]


def go_on(tool_context: ToolContext) -> str:
    """Goes on to the next step."""
    tool_context.state["plan"] = {**tool_context.state["plan"], "step": NEXT_STEP}
    return "changed"


def short_turns(count: int, **settings: Any) -> Chat:
    chat = Chat(script=[f"answer {at}" for at in range(count)], state=planned(), **settings)
    chat.llm.usage = False
    chat.say(*(f"question {at}" for at in range(count)))
    return chat


def test_short_turns_at_one_step_send_one_pack_a_request_and_the_users_own_words_before_it() -> None:
    chat = short_turns(8)
    assert [packs_in(one) for one in chat.sent] == [1] * 8
    assert humans(chat.sent[-1])[:-1] == [f"question {at}" for at in range(7)]
    assert humans(chat.sent[-1])[-1].endswith("USER REQUEST:\nquestion 7")
    assert all(one.epoch_reason is None for one in chat.manifests()[1:])
    assert {one.prefix.broken_by for one in chat.manifests()[1:]} == {"new_invocation"}
    chat.replays()


@pytest.mark.parametrize("window", [16_000, 1_000_000])
def test_after_a_long_tool_loop_the_packed_text_stays_and_the_prefix_goes_on(window: int) -> None:
    chat = Chat(
        script=[*loop(6), "found", "more"], tools=[look_up], state=planned(), policy=PackPolicy(max_input_tokens=window)
    )
    chat.say("look them up", "and then?", "thanks")
    second = chat.manifests()[7]
    assert second.prefix.broken_by is None
    assert chat.sent[7].wires[: len(chat.sent[6].wires)] == chat.sent[6].wires
    assert [packs_in(one) for one in chat.sent] == [1] * 7 + [2, 2]
    assert humans(chat.sent[-1])[1] == "and then?", "the short turn after the long one returns to its own words"
    chat.replays()


def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@cached_input_costs(1.0)
def test_where_nothing_is_cached_every_past_message_returns() -> None:
    chat = Chat(script=[*loop(6), "found"], tools=[look_up], state=planned())
    chat.say("look them up", "thanks")
    assert packs_in(chat.sent[-1]) == 1


@pytest.mark.parametrize("strategy", ["epochs", "stable_prefix", "sliding_turns", "heads_tails", "summarize", "none"])
def test_when_the_step_changes_no_other_step_is_left_in_the_request(strategy: str) -> None:
    script = [*loop(6), "found", call("go_on"), "next", "done"]
    policy = PackPolicy(conversation={"strategy": strategy})
    chat = Chat(script=script, tools=[look_up, go_on], state=planned(), policy=policy)
    chat.say("look them up", "write it", "thanks")
    for one in chat.sent[8:]:
        assert packs_in(one) == 1
        packed = next(text for text in humans(one) if text.startswith("CONTEXT PACK"))
        assert "Write the letter" in packed
        assert "Find the tax rate" not in packed
        assert one.text.count("ACCEPTANCE:") == 1
    chat.replays()


@pytest.mark.parametrize("change", ["system", "tools"])
def test_where_the_prefix_ends_anyway_past_messages_return(change: str) -> None:
    chat = Chat(script=[*loop(6), "found"], tools=[look_up], state=planned())
    chat.say("look them up")
    if change == "system":
        chat.agent.instruction = "You help kindly."
    else:
        chat.agent.tools.append(add)
    chat.say("thanks")
    assert packs_in(chat.sent[-1]) == 1
