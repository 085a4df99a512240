"""Additions to a request: none that its provider refuses beside what the app asks for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from google.adk.agents.callback_context import CallbackContext
from google.adk.models.llm_request import LlmRequest
from google.adk.tools import google_search
from google.genai import types
from plans import NARROW, planned, small, turns
from scripted import Chat, call, delete_all, look_up, send_mail
from wording import HISTORY

READERS = ("read_artifact", "search_artifact")
JSON = {"response_mime_type": "application/json"}


def settings(**values: Any) -> Callable[[CallbackContext, LlmRequest], None]:
    """An app's callback that sets these of a request's settings."""

    def alter(context: CallbackContext, request: LlmRequest) -> None:
        for name, value in values.items():
            setattr(request.config, name, value)

    return alter


OWN_CACHE = settings(cached_content="cachedContents/7", system_instruction=None, tools=None, tool_config=None)


def calling(mode: str, *names: str) -> types.ToolConfig:
    return types.ToolConfig(
        function_calling_config=types.FunctionCallingConfig(mode=mode, allowed_function_names=list(names) or None)
    )


@pytest.mark.parametrize(
    ("chat", "readers"),
    [
        ({}, READERS), ({"alter": OWN_CACHE}, ()), ({"alter": settings(**JSON)}, ()),
        ({"alter": settings(response_mime_type="text/x.enum")}, ()),
        ({"alter": settings(**JSON), "model": "gemini-flash-latest"}, READERS),
        ({"alter": settings(**JSON), "model": "gemini/gemini-2.5-pro"}, ()),
        ({"alter": settings(**JSON), "tools": [look_up]}, READERS),
        ({"alter": settings(response_modalities=["TEXT", "IMAGE"])}, ()),
        ({"alter": settings(tool_config=calling("NONE"))}, ()), ({"tools": [google_search]}, ()),
        ({"model": "ollama_chat/gemma3:27b"}, ()), ({"model": "ollama_chat/llama3.1:8b"}, READERS),
    ],
)  # fmt: skip
@pytest.mark.rows(4)
def test_a_cut_brings_readers_where_the_request_takes_functions(chat: dict[str, Any], readers: tuple[str, ...]) -> None:
    talk = Chat(policy=small(4_000), **chat)
    talk.say(*turns(7, 280))
    last = talk.sent[-1]
    assert talk.manifests()[-1].epoch.cut_count
    assert last.readers == readers
    assert (HISTORY in last.text) is bool(readers)
    talk.replays()


def test_beside_a_cache_of_the_apps_own_stand_contents_alone() -> None:
    talk = Chat(
        script=[call("big_file", name="a"), "It is long."] * 3,
        tools=[look_up, delete_all],
        state=planned(NARROW),
        policy=small(6_000, tools={"scope": "mask"}),
    )
    talk.say(*turns(7, 400))
    assert (talk.sent[-1].readers, HISTORY in talk.sent[-1].text) == (READERS, True)
    talk.before.alter = OWN_CACHE
    talk.say("And now?", "Really?")
    for sent in talk.sent[-2:]:
        assert (sent.system, sent.declared, sent.readers, sent.tool_config) == (None, (), (), None)
        assert HISTORY not in sent.text
        assert "INTERPRETATION RULES" in sent.text, "the message says what the instruction cannot"
    talk.before.alter = None
    talk.say("And again?")
    assert talk.sent[-1].readers == READERS
    talk.replays()


@pytest.mark.parametrize("tools", [[delete_all, look_up, send_mail], [delete_all, look_up]])
def test_a_step_spares_the_tools_that_a_request_forces(tools: list[Any]) -> None:
    force = settings(tool_config=calling("ANY", "delete_all"))
    talk = Chat(script=[call("delete_all")], tools=tools, state=planned(NARROW), alter=force)
    talk.say("go")
    assert talk.sent[0].declared == ("delete_all", "look_up")
    assert talk.sent[0].tool_config == calling("ANY", "delete_all")
    talk.replays()


def test_of_many_tools_those_are_declared_that_a_request_forces() -> None:
    def tool(at: int) -> Callable[[str], str]:
        def act(name: str) -> str:
            return "done"

        act.__name__, act.__doc__ = f"tool_{at}", f"Does the work that is the {at}th of many. " + "It takes care. " * 40
        return act

    force = settings(tool_config=calling("VALIDATED", "tool_39"))
    talk = Chat(tools=[tool(at) for at in range(40)], policy=small(8_000), alter=force)
    talk.say("go")
    assert "tool_39" in talk.sent[0].declared


def test_no_tool_config_is_left_where_a_step_leaves_no_tool() -> None:
    plan = planned(NARROW)
    plan["plan"]["step"]["tools"] = ["send_mail"]
    talk = Chat(tools=[look_up], state=plan, alter=settings(tool_config=calling("ANY")))
    talk.say("go")
    assert talk.sent[0].declared == ()
    assert talk.sent[0].tool_config is None or talk.sent[0].tool_config.function_calling_config is None
