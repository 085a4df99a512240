"""The payload in the user's message: where it stands, how it grows, what becomes of it; and a chat without a plan."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.tool_context import ToolContext
from plans import cached_input_costs, loop, planned, words
from scripted import Chat, Memories, Scripted, Sent, call, grow, look_up, remembered, was_cut

from aether_context import PackPolicy


def test_the_payload_stands_in_the_human_message_of_every_call_of_a_tool_loop() -> None:
    chat = Chat(script=[*loop(4), "done"], tools=[look_up], state=planned())
    chat.say("What is the rate?")
    first = chat.sent[0].contents[-1]
    assert first.role == "user"
    text = first.parts[0].text
    assert text.startswith("CONTEXT PACK\n")
    assert text.endswith("USER REQUEST:\nWhat is the rate?")
    for header in ("TASK:", "GOAL:", "STEP:", "ACCEPTANCE:"):
        assert f"\n{header}\n" in text
    assert len(chat.sent) == 5
    assert grow(chat.sent)
    assert len({(one.system, one.declared) for one in chat.sent}) == 1
    assert chat.sent[-1].contents[-1].parts[0].function_response is not None
    chat.replays()


@pytest.mark.parametrize("policy", ["chat", "research", "coding"])
def test_requests_only_grow_within_an_epoch_over_several_invocations(policy: str) -> None:
    script = [*loop(2), "a", *loop(2), "b", "c"]
    chat = Chat(script=script, tools=[look_up], state=planned(), policy=PackPolicy.load(policy))
    chat.say("first question", "second question", "third question")
    assert len(chat.sent) == 7
    assert grow(chat.sent)
    for manifest in chat.manifests()[1:]:
        assert manifest.epoch_reason is None
        assert manifest.prefix.broken_by is None


@cached_input_costs(0.001)
def test_past_messages_keep_their_packed_text_where_the_cache_is_cheap() -> None:
    chat = Chat(script=["a", "b"], state=planned())
    chat.say("same words", "same words", "same words")
    humans = [content.parts[0].text for content in chat.sent[-1].contents if content.role == "user"]
    assert len(humans) == 3
    assert all(text.startswith("CONTEXT PACK") and text.endswith("same words") for text in humans)


def test_the_contract_text_stands_once_and_names_headers_that_exist() -> None:
    for place in ("system", "payload"):
        chat = Chat(state=planned(), policy=PackPolicy(payload={"contract": place}))
        chat.say("go", "on")
        assert len(chat.sent) == 2
        for one in chat.sent:
            whole = f"{one.system}\n{one.human()}"
            assert whole.count("USER REQUEST comes last") == 1
            assert whole.count("TASK, STEP and ACCEPTANCE are authoritative for the current step") == 1
            assert whole.count("\n- Where USER REQUEST asks for something beyond STEP, do STEP alone: name in") == 1
            assert "USER REQUEST holds" not in whole
            assert "HANDED OVER" not in whole


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
    assert chat.sent[8:]
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


# where there is no plan


PLAN = {
    "task_id": "42",
    "task": "File the tax report",
    "role": "planner",
    "step": {"id": "3", "text": "Find the tax rate", "acceptance": ["The rate is named"], "tools": ["translator"]},
}


def long_chat(window: int = 3_000, turns: int = 18, **settings: Any) -> Chat:
    """A chat that is cut several times, then asks for what was cut."""
    script = [f"Answer {at} on subject{at}: {words(50, f'a{at}w')}" for at in range(turns)]
    chat = Chat(script=script, policy=PackPolicy(max_input_tokens=window), **settings)
    chat.say(*(f"Please book table {at} for subject{at}: {words(50, f'q{at}w')}" for at in range(turns)))
    chat.say("What was it that I asked about subject2, subject3 and subject1?")
    assert chat.latest().epoch.cut_count
    return chat


def rules_of(one: Sent) -> list[str]:
    found = re.search(r"INTERPRETATION RULES:\n((?:- .*\n)+)", one.human())
    return found.group(1).splitlines() if found else []


def test_cuts_leave_the_system_instruction_of_a_plain_chat_as_it_is() -> None:
    chat = long_chat(tools=[look_up])
    assert {one.system for one in chat.sent} == {one.system for one in chat.raw}
    cuts = [one for one in chat.manifests() if was_cut(one)]
    assert len(cuts) > 2
    assert {one.prefix.broken_by for one in cuts} == {"cut"}
    chat.replays()


@pytest.mark.parametrize("contract", ["system", "payload"])
def test_memories_of_a_plain_chat_are_explained_in_a_line(contract: str) -> None:
    policy = PackPolicy(payload={"contract": contract})
    chat = Chat(memory=Memories(remembered("The user likes short answers")), policy=policy)
    chat.say("How short should answers be?")
    assert chat.sent[0].system == chat.raw[0].system
    assert len(rules_of(chat.sent[0])) == 1


def make_plan(tool_context: ToolContext) -> str:
    """Makes a plan."""
    tool_context.state["plan"] = {**PLAN, "step": {**PLAN["step"], "tools": None}}  # type: ignore[dict-item]
    return "planned"


def test_a_plan_that_comes_later_is_explained_by_its_payloads_to_the_end() -> None:
    chat = Chat(script=["hi", call("make_plan"), "planned", "done"], tools=[make_plan, look_up])
    chat.say("hello", "make a plan", "go on")
    assert {one.system for one in chat.sent} == {chat.raw[0].system}
    assert len(rules_of(chat.sent[-1])) > 2
    assert [one.text.count("INTERPRETATION RULES") for one in chat.sent] == [0, 0, 1, 1]
    chat.agent.instruction = "You help kindly."
    chat.say("and on")
    assert len(rules_of(chat.sent[-1])) > 2
    assert chat.sent[-1].system == chat.raw[-1].system


def family(plan: Mapping[str, Any], *script: Any) -> tuple[Chat, Scripted]:
    """An agent with a translator as a tool, which answers from a script."""
    child = Scripted(script=list(script), sent=[])
    translator = LlmAgent(name="translator", model=child, description="Translates.", tools=[look_up])
    parent = Scripted(script=[call("translator", request="Translate: hello"), "done"], sent=[])
    return Chat(agent=LlmAgent(name="boss", model=parent, tools=[AgentTool(translator)]), state={"plan": plan}), child


def test_an_agent_that_runs_as_a_tool_is_not_given_its_callers_step() -> None:
    chat, child = family(PLAN, call("look_up", key="a"), "Hallo")
    chat.say("What is the rate?")
    assert [one.human() for one in child.sent] == ["Translate: hello"] * 2
    for one in child.sent:
        assert "Planner" not in f"{one.system}{one.text}"
        assert one.declared == ("look_up",), "the caller's step names the caller's tools"
    assert "You are the Planner" in chat.sent[0].text
    chat.replays()
