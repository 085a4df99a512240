"""One pack in a request: what becomes of the packed messages of earlier invocations, through ADK's own Runner."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from google.adk.tools.tool_context import ToolContext
from plans import cached_input_costs
from restarting import Restarting
from scripted import Chat, Memories, Sent, call, look_up, new_store, remembered

from aether_context import PackPolicy

PLAN: Mapping[str, Any] = {
    "task_id": "42",
    "task": "File the tax report",
    "goal": "The report is filed on time",
    "constraints": ["Cite the law"],
    "step": {"id": "3", "text": "Find the tax rate", "acceptance": ["The rate is named", "Its source is cited"]},
}
NEXT_STEP = {"id": "4", "text": "Write the letter", "acceptance": ["The letter has a date"]}


def planned(**changes: Any) -> dict[str, Any]:
    return {"plan": {**copy.deepcopy(dict(PLAN)), **changes}}


def loop(count: int) -> list[Any]:
    return [call("look_up", key=f"k{at}") for at in range(count)]


def packs_in(one: Sent) -> int:
    return sum(text.startswith("CONTEXT PACK\n") for text in humans(one))


def humans(one: Sent) -> list[str]:
    texts = [content.parts[0].text for content in one.contents if content.role == "user" and content.parts]
    return [text for text in texts if text]


def change_plan(tool_context: ToolContext, field: str, value: str) -> str:
    """Changes the plan."""
    changes = {"step": NEXT_STEP} if field == "step" else {field: [value] if field == "constraints" else value}
    tool_context.state["plan"] = {**tool_context.state["plan"], **changes}
    return "changed"


def counted(chat: Chat) -> int:
    return sum(layer.used for one in chat.manifests() for layer in one.allocation.values())


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


@pytest.mark.parametrize("window", [4_000, 16_000, 1_000_000])
def test_twenty_short_turns_cost_no_more_than_one_pack_a_request(window: int) -> None:
    found = short_turns(20, policy=PackPolicy(max_input_tokens=window))
    with cached_input_costs(1.0):
        single = short_turns(20, policy=PackPolicy(max_input_tokens=window))
    assert counted(found) <= 1.05 * counted(single)


@pytest.mark.parametrize("window", [16_000, 1_000_000])
def test_after_a_long_tool_loop_the_packed_text_stays_and_the_prefix_goes_on(window: int) -> None:
    chat = Chat(
        script=[*loop(6), "found", "more"],
        tools=[look_up],
        state=planned(),
        policy=PackPolicy(max_input_tokens=window),
    )
    chat.say("look them up", "and then?", "thanks")
    second = chat.manifests()[7]
    assert second.prefix.broken_by is None
    assert chat.sent[7].wires[: len(chat.sent[6].wires)] == chat.sent[6].wires
    assert [packs_in(one) for one in chat.sent] == [1] * 7 + [2, 2]
    assert humans(chat.sent[-1])[1] == "and then?", "the short turn after the long one returns to its own words"
    chat.replays()


def test_after_one_small_result_it_returns() -> None:
    chat = Chat(script=[call("add", a=1, b=2), "3", "ok"], tools=[add], state=planned())
    chat.say("add one and two", "thanks")
    assert packs_in(chat.sent[-1]) == 1


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
    script = [*loop(6), "found", call("change_plan", field="step", value=""), "next", "done"]
    policy = PackPolicy(conversation={"strategy": strategy})
    chat = Chat(script=script, tools=[look_up, change_plan], state=planned(), policy=policy)
    chat.say("look them up", "write it", "thanks")
    for one in chat.sent[8:]:
        assert packs_in(one) == 1
        packed = next(text for text in humans(one) if text.startswith("CONTEXT PACK"))
        assert "Write the letter" in packed
        assert "Find the tax rate" not in packed
        assert one.text.count("ACCEPTANCE:") == 1
    chat.replays()


@pytest.mark.parametrize(
    ("field", "value"),
    [("role", "reviewer"), ("goal", "The report is filed tomorrow"), ("constraints", "Cite the case")],
)
def test_what_else_changes_in_the_plan_does_not_stand_beside_what_it_was(field: str, value: str) -> None:
    script = [*loop(6), "found", call("change_plan", field=field, value=value), "changed", "done"]
    chat = Chat(script=script, tools=[look_up, change_plan], state=planned(role="operator"))
    chat.say("look them up", "change it", "thanks")
    last = chat.sent[-1]
    assert packs_in(last) == 1
    assert humans(last)[:-1] == ["look them up", "change it"]
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


def test_of_equal_messages_each_keeps_its_own_form() -> None:
    chat = Chat(script=["a", *loop(6), "b", "c", "d"], tools=[look_up], state=planned())
    chat.say("go on", "go on", "go on", "go on")
    assert [text.startswith("CONTEXT PACK") for text in humans(chat.sent[-1])] == [False, True, False, True]
    chat.replays()


def test_every_call_of_an_invocation_begins_with_the_one_before() -> None:
    chat = Chat(script=["a", *loop(3), "b", *loop(2), "c"], tools=[look_up], state=planned())
    chat.say("one", "two", "three")
    for before, after, manifest in zip(chat.sent, chat.sent[1:], chat.manifests()[1:], strict=False):
        if manifest.call > 1:
            assert after.wires[: len(before.wires)] == before.wires


def test_another_process_decides_alike(tmp_path: Any) -> None:
    def run(**settings: Any) -> Sequence[str]:
        script = ["a", *loop(4), "b", "c", *loop(1), "d"]
        chat = Chat(script=script, tools=[look_up], state=planned(), **settings)
        chat.say("one", "two", "three", "four", "five")
        return [one.text for one in chat.sent]

    restarting = Restarting(policy=PackPolicy(), store=new_store(), on_error="raise")
    sessions = SqliteSessionService(str(tmp_path / "sessions.db"))
    assert run() == run(plugin=restarting, sessions=sessions)


def test_memories_of_an_earlier_request_leave_with_its_pack() -> None:
    found = remembered("The tax rate of 2024 was 19 percent")
    chat = Chat(script=["a", "b", "c"], memory=Memories(found), state=planned())
    chat.say("What is the tax rate?", "And the tax rate of 2024?", "Which tax rate?")
    assert [packs_in(one) for one in chat.sent] == [1, 1, 1]
    assert chat.sent[-1].text.count("was 19 percent") == 1
