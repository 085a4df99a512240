"""Nothing that a policy asks for is passed over in silence, and an error says in our words what may stand there."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.base_toolset import BaseToolset
from google.adk.tools.function_tool import FunctionTool
from google.adk.tools.google_search_tool import google_search
from google.adk.workflow import START, Workflow
from scripted import Chat, Scripted, big_file, call, look_up, send_mail

from aether_context import PackPolicy, PackStore
from aether_context.errors import PolicyError, StoreError

WORDS_OF_OTHERS = ("Input should", "valid", "literal[", "dictionary", "Protocol not known", "instance of")
"""Of pydantic and fsspec."""


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.name == "aether_context"]


@pytest.mark.parametrize(
    ("settings", "cure"),
    [
        ({"max_input_tokens": "32k"}, "= '32k': give a whole number, without quotes, or 'model'"),
        ({"max_input_tokens": {"gemini": 3}}, ".gemini = 3: give a number greater than or equal to 256, or 'model'"),
        ({"conversation": {"last_turns": 1.5}}, "give a whole number, without quotes"),
        ({"conversation": {"compact_at": "0.5"}}, "give a number, without quotes"),
        ({"conversation": {"compact_at": 2}}, "give a number less than or equal to 1"),
        ({"conversation": {"anchors": {"mine": 3}}}, ".mine = 'mine': give 'system_message', 'latest_tool_result'"),
        ({"agents": {"clerk": "reserch"}}, "agents.clerk = 'reserch': give 'chat', 'coding', 'research'"),
        ({"agents": {"clerk": 5}}, "or 'test_cases', or a table"),
        ({"record": "all"}, "give 'full', 'hashes' or 'off'"),
        ({"retrieval": {"recall": "maybe"}}, "give true or false"),
        ({"retrieval": 3}, "retrieval = 3: give a table"),
        ({"planners": "boss"}, "give a list"),
        ({"offload": {"tools": {"read": 5}}}, "offload.tools.read = 5: give a text, in quotes"),
    ],
)
def test_an_error_of_a_value_says_what_may_stand_there(settings: dict[str, Any], cure: str):
    with pytest.raises(PolicyError) as raised:
        PackPolicy(**settings)
    assert cure in str(raised.value)
    assert not any(words in str(raised.value) for words in WORDS_OF_OTHERS)


def test_an_error_of_a_store_says_what_may_stand_there():
    with pytest.raises(StoreError, match=r"s4:// is none of fsspec's protocols: give a folder, or a URL such as s3://"):
        PackStore("s4://packs")


def test_a_counter_whose_library_is_absent_is_told_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    chat = Chat(policy=PackPolicy(tokens={"counter": "tiktoken"}))
    chat.say("one", "two")
    chat.say("three", session="s2")
    assert [told.endswith(": pip install tiktoken") for told in warnings_of(caplog)] == [True]


def test_a_page_answers_what_adk_advises_where_agents_can_transfer(caplog: pytest.LogCaptureFixture):
    sub = LlmAgent(name="teller", model=Scripted(), description="Tells.")
    Chat(agent=LlmAgent(name="lead", model=Scripted(), sub_agents=[sub]), app_name="advised")  # told once an app
    (advice,) = [record.message for record in caplog.records if "context_cache_config" in record.message]
    assert "can transfer between agents" in advice
    page = (Path(__file__).parent.parent / "docs" / "providers.md").read_text(encoding="utf-8")
    assert "If agents can transfer, ADK advises at each start to set `App(context_cache_config=…)`." in page


def lacking(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [told for told in warnings_of(caplog) if told.startswith("the policy names")]


def test_names_that_no_agent_has_are_told_once_at_the_first_call(caplog: pytest.LogCaptureFixture):
    policy = PackPolicy(
        agents={"clark": "research", "helper": "coding"},
        limits={"agents": {"*": {"total_tokens": 90_000}, "boss": {"total_tokens": 9_000}}},
        tools={"always": ["look_up"]},
        offload={"tools": {"lookup": "keep", "send_mail": "whole"}},
    )
    helper = AgentTool(LlmAgent(name="helper", model=Scripted(script=["ok"], sent=[]), tools=[send_mail]))
    chat = Chat([call("helper", request="help"), "ok"], [look_up, helper], policy)
    chat.say("one")
    names = ("agent 'boss'", "agent 'clark'", "tool 'lookup'")
    assert [told.partition(", which app 'shop' lacks: ")[0] for told in lacking(caplog)] == [
        f"the policy names the {name}" for name in names
    ]
    assert lacking(caplog)[1].endswith("did you mean 'clerk'?")
    chat.say("two", session="s2")
    assert len(lacking(caplog)) == 3


class Tools(BaseToolset):
    """Its tools change with each call where ``by_turns`` says so."""

    def __init__(self, *by_turns: Any) -> None:
        super().__init__()
        self.by_turns = [*by_turns]

    async def get_tools(self, readonly_context: Any = None) -> list[Any]:
        return [FunctionTool(self.by_turns.pop(0) if self.by_turns else look_up)]

    async def close(self) -> None:
        return None


def test_a_tool_is_missed_when_all_toolsets_have_told_theirs(caplog: pytest.LogCaptureFixture):
    sub = LlmAgent(name="teller", model=Scripted(script=["ok"], sent=[]), description="Tells.", tools=[Tools()])
    root = Scripted(script=["ok", call("transfer_to_agent", agent_name="teller")], sent=[])
    lead = LlmAgent(name="lead", model=root, tools=[Tools()], sub_agents=[sub])
    chat = Chat(agent=lead, policy=PackPolicy(offload={"tools": {"look_up": "keep", "lock_up": "keep"}}))
    chat.say("one")
    assert lacking(caplog) == []
    chat.say("two")
    assert lacking(caplog) == ["the policy names the tool 'lock_up', which app 'shop' lacks: did you mean 'look_up'?"]


def test_no_name_is_missed_that_a_call_does_not_show(caplog: pytest.LogCaptureFixture):
    own = ("google_search", "send_mail", "find_tools", "read_artifact", "delete_all")
    policy = PackPolicy(tools={"always": own}, offload={"tools": {"big_file": "keep"}})
    tools = [google_search, Tools(send_mail, look_up, big_file)]
    agent = LlmAgent(name="clerk", model=Scripted(script=["ok"] * 4, sent=[]), tools=tools)
    Chat(agent=agent, policy=policy).say("one", "two", "three", "four")
    assert lacking(caplog) == [], "a toolset may give any other at the next call"


def test_a_workflow_in_which_no_agent_sees_the_others_misses_none(caplog: pytest.LogCaptureFixture):
    clerk, travel = (LlmAgent(name=name, model=Scripted(script=["ok"], sent=[])) for name in ("clerk", "travel"))
    flow: Any = Workflow(name="flow", edges=[(START, clerk), (clerk, travel)])
    Chat(agent=flow, policy=PackPolicy(agents={"travel": "research"})).say("one")
    assert lacking(caplog) == []
