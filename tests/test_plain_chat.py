"""A chat without a plan pays nothing for what it does not use, and nobody is told to do what another was asked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.tool_context import ToolContext
from plans import words
from scripted import Chat, Memories, Scripted, Sent, call, look_up, remembered, was_cut

from aether_context import PackPolicy

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
    assert chat.manifests()[-1].epoch.cut_count
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
