"""Nothing that a policy asks for is passed over in silence, and an error says in our words what may stand there."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from scripted import Chat, Scripted

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
    Chat(agent=LlmAgent(name="lead", model=Scripted(), sub_agents=[sub]))
    (advice,) = [record.message for record in caplog.records if "context_cache_config" in record.message]
    assert "can transfer between agents" in advice
    page = (Path(__file__).parent.parent / "docs" / "providers.md").read_text(encoding="utf-8")
    assert "If agents can transfer, ADK advises at each start to set `App(context_cache_config=…)`." in page
