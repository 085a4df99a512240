"""The tools that a step names: what a model is shown, what it may call, and what an agent has afterwards."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.tools import google_search
from google.genai import types
from plans import NARROW, messages, planned
from scripted import Chat, Scripted, call, delete_all, look_up, send_mail

from aether_context import PackPolicy


def test_prune_takes_tools_away_in_both_places() -> None:
    chat = Chat(
        script=[call("delete_all"), call("look_up", key="a"), "done"],
        tools=[look_up, send_mail, delete_all],
        state=planned(NARROW),
    )
    events = chat.say("go")
    assert len(chat.sent) == 3
    for one in chat.sent:
        assert one.declared == ("look_up",)
        assert one.dispatched == ("look_up",)
    answers = [answer for event in events for answer in event.get_function_responses()]
    assert "gone" not in json.dumps(answers[0].response)
    assert answers[1].response["key"] == "a"
    assert chat.manifests()[0].tools.left_out == {"send_mail": "not_in_scope", "delete_all": "not_in_scope"}
    assert "look_up(key: string): Looks a key up." in chat.sent[0].human()
    assert "send_mail" not in chat.sent[0].human()
    chat.replays()


def test_tools_that_are_not_functions_stay() -> None:
    chat = Chat(tools=[look_up, send_mail, google_search], state=planned(NARROW))
    chat.say("go")
    assert chat.sent[0].declared == ("look_up",)
    assert len(chat.sent[0].other_tools) == 1
    assert "google_search" in chat.sent[0].other_tools[0]
    chat.replays()


def family(root_script: list[Any], **settings: Any) -> tuple[Chat, Scripted, Scripted]:
    parent, child = Scripted(script=root_script, sent=[]), Scripted(script=["child speaks"], sent=[])
    sub = LlmAgent(name="helper", model=child, description="Helps.", tools=[look_up, send_mail])
    root = LlmAgent(name="boss", model=parent, instruction="Lead.", sub_agents=[sub], tools=[look_up, send_mail])
    return Chat(agent=root, **settings), parent, child


def test_transfer_to_agent_is_never_narrowed_and_the_sub_agent_gets_its_own_pack() -> None:
    chat, parent, child = family([[call("transfer_to_agent", agent_name="helper")]], state=planned(NARROW))
    chat.say("help me")
    assert sorted(chat.sent[0].declared) == ["look_up", "transfer_to_agent"]
    assert "transfer_to_agent" in chat.sent[0].dispatched
    assert len(parent.sent) == len(child.sent) == 1
    assert "transfer_to_agent" in child.sent[0].declared
    assert "CONTEXT PACK" in child.sent[0].text
    manifests = chat.manifests()
    assert [manifest.agent for manifest in manifests] == ["boss", "helper"]
    assert [manifest.call for manifest in manifests] == [1, 1]
    assert len({manifest.pack_id for manifest in manifests}) == 2
    held = asyncio.run(chat.held())
    assert len([key for key in held.state if key.startswith("aether:epoch:")]) == 2
    chat.replays()


def test_mask_restricts_calls_and_never_forces_one() -> None:
    chat = Chat(
        tools=[look_up, send_mail, delete_all], state=planned(NARROW), policy=PackPolicy(tools={"scope": "mask"})
    )
    chat.say("go")
    one = chat.sent[0]
    assert one.declared == one.dispatched == ("look_up", "send_mail", "delete_all")
    calling = one.tool_config.function_calling_config
    assert calling.mode == types.FunctionCallingConfigMode.VALIDATED
    assert calling.allowed_function_names == ["look_up", *one.readers]
    assert chat.manifests()[0].tools.allowed == ("look_up", *one.readers)


@pytest.mark.parametrize("model", ["claude-sonnet-4-5", "openai/gpt-5", "unknown"])
def test_mask_falls_back_with_a_record_where_a_model_takes_no_names(model: str) -> None:
    chat = Chat(
        tools=[look_up, send_mail], state=planned(NARROW), policy=PackPolicy(tools={"scope": "mask"}), model=model
    )
    chat.say("go")
    assert chat.sent[0].tool_config is None
    assert chat.sent[0].declared == ("look_up", "send_mail")
    manifest = chat.manifests()[0]
    assert manifest.tools.mode == "off"
    assert "mask" in messages(manifest.degradations)
