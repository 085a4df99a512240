"""Beside what else ADK offers, a request that fits is the one that would have been sent without the plugin."""

from __future__ import annotations

import re
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.apps import ResumabilityConfig
from google.adk.artifacts import InMemoryArtifactService
from google.adk.code_executors import BuiltInCodeExecutor, UnsafeLocalCodeExecutor
from google.adk.planners import BuiltInPlanner, PlanReActPlanner
from google.adk.tools import FunctionTool, LongRunningFunctionTool
from google.genai import types
from pydantic import BaseModel
from scripted import Chat, Scripted, call, exact, look_up

from aether_context import PackPolicy

OPTIONS = {"temperature": 0, "max_output_tokens": 900, "labels": {"team": "desk"}}


class Order(BaseModel):
    status: str


def pay(amount: int) -> dict[str, Any]:
    """Pays an amount."""
    return {"paid": amount}


def start(job: str) -> dict[str, Any]:
    """Starts a long job."""
    return {"status": "pending"}


def thought(text: str) -> types.Part:
    return types.Part(text=text, thought=True, thought_signature=b"signed")


LOOKING = [call("look_up", key="k"), "done"]
CASES: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "plan and react": (["/*PLANNING*/ look\n/*FINAL_ANSWER*/ it is so"], {"planner": PlanReActPlanner()}),
    "thoughts": (
        [[thought("hm"), call("look_up", key="k")], [thought("ah"), types.Part(text="done")]],
        {"planner": BuiltInPlanner(thinking_config=types.ThinkingConfig(include_thoughts=True))},
    ),
    "code here": (["```python\nprint(7)\n```", "seven"], {"tools": [], "code_executor": UnsafeLocalCodeExecutor()}),
    "code there": (
        [[types.Part(executable_code=types.ExecutableCode(code="print(7)", language=types.Language.PYTHON)), "seven"]],
        {"tools": [], "code_executor": BuiltInCodeExecutor()},
    ),
    "schema": ([call("look_up", key="k"), call("set_model_response", status="open")], {"output_schema": Order}),
    "static": (LOOKING, {"static_instruction": "You are kind.", "instruction": "It is {day?} today."}),
    "no history": (LOOKING, {"include_contents": "none"}),
    "options": (LOOKING, {"generate_content_config": types.GenerateContentConfig(**OPTIONS)}),
    "confirmed": ([call("pay", amount=7), "paid"], {"tools": [FunctionTool(pay, require_confirmation=True)]}),
    "long-running": ([call("start", job="j"), "started", "done"], {"tools": [LongRunningFunctionTool(start)]}),
}


def sent(script: list[Any], settings: dict[str, Any], *, resumable: bool, use_plugin: bool) -> list[Any]:
    """What the model is sent in three turns; a call that waits for somebody is answered, with a new plugin."""
    tools = {"tools": [look_up], **settings}
    agent = LlmAgent(**{"name": "clerk", "model": (llm := Scripted(script=script * 3, sent=[])), **tools})
    app = {"resumability_config": ResumabilityConfig(is_resumable=True)} if resumable else {}
    chat = Chat(
        agent=agent,
        app_settings=app,
        policy=PackPolicy(max_input_tokens=64_000),
        use_plugin=use_plugin,
        artifacts=InMemoryArtifactService(),
    )
    for at in range(3):
        events = chat.say(f"Question {at}?")
        for waiting in [
            one for event in events for one in event.get_function_calls() if one.name.startswith(("adk_", "start"))
        ]:
            if use_plugin:
                chat.restart()
            answer = types.FunctionResponse(id=waiting.id, name=waiting.name, response={"confirmed": True})
            chat.say(types.UserContent(parts=[types.Part(function_response=answer)]))
    if use_plugin:
        chat.replays()
        assert len(chat.manifests()) == len(llm.sent)
    wires = [(exact(one.system), one.declared, one.wires) for one in llm.sent]
    return [re.sub(r"adk-[0-9a-f-]{36}", "id", repr(wire)) for wire in wires]


@pytest.mark.filterwarnings("ignore:.*EXPERIMENTAL.*:UserWarning")
@pytest.mark.parametrize("resumable", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_what_fits_is_sent_as_without_the_plugin(name: str, resumable: bool) -> None:
    script, settings = CASES[name]
    ours, plain = (sent(script, settings, resumable=resumable, use_plugin=use) for use in (True, False))
    assert len(ours) >= 3
    assert ours == plain
