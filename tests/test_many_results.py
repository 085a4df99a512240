"""Hundreds of long results: the session's state stays small, and each of them is still an extract that can be read."""

from __future__ import annotations

import json
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.tools.agent_tool import AgentTool
from plans import aether
from scripted import Chat, Scripted, call, results, state_of

from aether_context import PackPolicy

RESULTS, AT_ONCE = 300, 15
MOST_BYTES = 10_000
POLICY = PackPolicy(max_input_tokens=500_000, offload={"extract_tokens": 40})


def read_log(name: str) -> dict[str, Any]:
    """Reads a log, which is long."""
    return {"result": "\n".join(f"{at}: step {at * 37 % 1009} of {name} took {at * 11} ms" for at in range(240))}


def shown(chat: Chat) -> dict[str, str]:
    """The addresses that results in the last request name, by the log; empty where one is sent whole."""
    parts = [part for content in chat.sent[-1].contents for part in content.parts or ()]
    calls = [part.function_call for part in parts if part.function_call and part.function_call.name == "read_log"]
    return {
        str((asked.args or {})["name"]): str(answer.get("artifact", "")).split(" ")[0]
        for asked, answer in zip(calls, chat.sent[-1].answers("read_log"), strict=True)
    }


def say_all(chat: Chat, names: list[str]) -> None:
    for first in range(0, len(names), AT_ONCE):
        chat.llm.script.extend([[call("read_log", name=name) for name in names[first : first + AT_ONCE]], "read"])
        chat.say(f"Read the logs from {names[first]} on.")


def read(chat: Chat, uri: str) -> dict[str, Any]:
    chat.llm.script.extend([call("read_artifact", uri=uri, start_line=200, lines=3), "seen"])
    return results(chat.say(f"What does {uri} say?"))[-1]


@pytest.mark.parametrize("again", [False, True], ids=["one process", "a new one each time"])
def test_the_state_of_a_session_stays_small_and_nothing_is_lost(again: bool) -> None:
    names = [f"log-{at}" for at in range(30 if again else RESULTS)]
    chat = Chat(tools=[read_log], policy=POLICY)
    half = len(names) // 2
    say_all(chat, names[:half])
    if again:
        chat.restart()
    say_all(chat, names[half:])
    after = aether(state_of(chat))
    assert len(after) <= 6
    assert len(json.dumps(after)) < MOST_BYTES
    if again:
        chat.restart()
        chat.say("And now?")
    addresses = shown(chat)
    assert list(addresses) == names
    assert all(addresses.values())
    assert "199: step" in str(read(chat, addresses[names[0]]))
    assert "199: step" in str(read(chat, addresses[names[-1]]))
    chat.replays()


def test_results_of_agents_that_run_side_by_side_as_tools_reach_their_caller() -> None:
    def reader(name: str) -> LlmAgent:
        names = [f"{name}-{at}" for at in range(16)]
        script = [[call("read_log", name=one) for one in names], f"{name} has read them"]
        return LlmAgent(name=name, model=Scripted(script=script, sent=[]), tools=[read_log])

    model = Scripted(script=[[call("left", request="read"), call("right", request="read")], "done"], sent=[])
    tools: list[Any] = [AgentTool(agent=reader(name)) for name in ("left", "right")]
    chat = Chat(agent=LlmAgent(name="clerk", model=model, tools=tools), policy=POLICY)
    chat.say("Read all logs.")
    children = [sent for sent in chat.sent if sent.agent in ("left", "right")]
    answers = [answer for sent in children for answer in sent.answers()]
    addresses = {str(answer["artifact"]).split(" ")[0] for answer in answers if "artifact" in answer}
    assert len(addresses) == 32
    for uri in sorted(addresses)[::7]:
        model.script.extend([call("read_artifact", uri=uri, start_line=200, lines=3), "seen"])
        assert "199: step" in str(results(chat.say(f"What does {uri} say?"))[-1])
    assert len(json.dumps(aether(state_of(chat)))) < MOST_BYTES
