"""What the plugin leaves as it found it, beside whatever else ADK offers."""

from __future__ import annotations

import asyncio
import copy
import math
import re
from collections.abc import Mapping
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.agents.callback_context import CallbackContext
from google.adk.agents.invocation_context import InvocationContext
from google.adk.agents.live_request_queue import LiveRequestQueue
from google.adk.apps import ResumabilityConfig
from google.adk.artifacts import InMemoryArtifactService
from google.adk.code_executors import BuiltInCodeExecutor, UnsafeLocalCodeExecutor
from google.adk.events.event import Event
from google.adk.models.llm_request import LlmRequest
from google.adk.planners import BuiltInPlanner, PlanReActPlanner
from google.adk.sessions import InMemorySessionService
from google.adk.sessions.session import Session
from google.adk.tools import FunctionTool, LongRunningFunctionTool
from google.genai import types
from plans import messages, planned, small, words
from pydantic import BaseModel
from scripted import Chat, Scripted, call, exact, look_up, new_store

from aether_context import PackPolicy, PackStore
from aether_context.adk import ContextPackPlugin


def test_thought_signatures_thoughts_and_code_parts_are_carried() -> None:
    signed = types.Part(
        function_call=types.FunctionCall(name="look_up", args={"key": "a"}), thought_signature=b"\x00signature\xff"
    )
    thought = types.Part(text="let me think", thought=True, thought_signature=b"\xfe")
    code = types.Part(executable_code=types.ExecutableCode(code="print(1)", language=types.Language.PYTHON))
    result = types.Part(code_execution_result=types.CodeExecutionResult(outcome=types.Outcome.OUTCOME_OK, output="1"))
    script = [[thought, signed], [code, result, types.Part(text="so: 1", thought_signature=b"\x01\x80")], "later"]
    chat = Chat(script=script, tools=[look_up], state=planned())
    chat.say("look", "and now?")
    assert len(chat.sent) == 3
    for raw, left in zip(chat.raw, chat.sent, strict=True):
        models = [exact(content) for content in left.contents if content.role == "model"]
        assert models == [exact(content) for content in raw.contents if content.role == "model"]
    assert "signature" in exact(chat.sent[1].contents[1])
    chat.replays()


def test_a_thought_that_nobody_signed_is_masked_where_the_prompt_is() -> None:
    thought = types.Part(text="ask ann@example.com", thought=True)
    chat = Chat(script=[[thought, call("look_up", key="a")], "done"], tools=[look_up], policy=MASKED)
    chat.say("look")
    assert chat.sent[1].contents[1].parts[0].text == "ask [email]"
    chat.replays()


MASKED = PackPolicy(redact=("personal",), redact_prompt=True)


class HologramPart(types.Part):
    """A part of a kind that does not exist yet."""

    hologram: dict[str, Any] | None = None


class Estimating(Scripted):
    """Reports a usage that it does not read off the request, since Python does not write some."""

    def reported(self, llm_request: LlmRequest) -> int:
        return 100


@pytest.mark.parametrize("recent", [None, 4])
def test_an_integer_that_python_does_not_write_is_sent_as_it_came(recent: int | None) -> None:
    def factorial(number: int) -> dict[str, Any]:
        """Computes a factorial."""
        return {"value": math.factorial(number), "digits": [-math.factorial(number)]}

    model = Estimating(script=[call("factorial", number=2_000), "It is large."], sent=[])
    agent = LlmAgent(name="clerk", model=model, tools=[factorial])
    chat = Chat(agent=agent, policy=small(60_000))
    chat.say("What is 2000!?", *(f"question {at} " * 40 for at in range(6)), recent_events=recent)
    assert chat.sent[1].answers("factorial")[0]["value"] == math.factorial(2_000)
    assert len(chat.manifests()) == len(chat.sent)
    chat.replays()


def test_a_part_of_a_kind_that_does_not_exist_yet_passes() -> None:
    part = HologramPart(hologram={"beam": [1, 2, 3]})
    odd = types.Content.model_construct(role="user", parts=[part])

    def alter(_: CallbackContext, request: LlmRequest) -> None:
        request.contents.insert(0, odd)

    chat = Chat(alter=alter, state=planned(), policy=small(1_500))
    chat.say("hello", "again")
    assert len(chat.sent) == 2
    for one in chat.sent:
        assert one.contents[0].parts[0].hologram == {"beam": [1, 2, 3]}


def context_of(
    user_text: str = "hello", state: Mapping[str, Any] | None = None, **fields: Any
) -> tuple[CallbackContext, Session]:
    asked = types.Content(role="user", parts=[types.Part(text=user_text)])
    session = Session(id="s1", app_name="shop", user_id="ann", state=dict(state or {}))
    session.events.append(Event(author="user", invocation_id="i1", content=asked))
    invocation = InvocationContext(
        session_service=InMemorySessionService(),
        invocation_id="i1",
        agent=LlmAgent(name="clerk", model="gemini-2.5-flash"),
        session=session,
        user_content=asked,
        **fields,
    )
    return CallbackContext(invocation), session


def request_of(context: CallbackContext, **fields: Any) -> LlmRequest:
    return LlmRequest(
        model="gemini-2.5-flash",
        contents=[copy.copy(event.content) for event in context.session.events if event.content is not None],
        config=types.GenerateContentConfig(system_instruction="You help."),
        **fields,
    )


def left_alone(context: CallbackContext, request: LlmRequest, store: PackStore) -> str:
    before = (exact(request), [id(content) for content in request.contents], dict(context.session.state))

    async def go() -> None:
        plugin = ContextPackPlugin(store=store, on_error="raise", policy=small(256))
        assert await plugin.before_model_callback(callback_context=context, llm_request=request) is None
        await plugin.close()

    asyncio.run(go())
    assert before == (exact(request), [id(content) for content in request.contents], dict(context.session.state))
    assert context.actions.state_delta == {}
    (manifest,) = store.manifests()
    return messages(manifest.degradations)


def test_live_mode_is_left_alone_with_a_record() -> None:
    async def queue() -> LiveRequestQueue:
        return LiveRequestQueue()

    context, _ = context_of(words(800), planned(), live_request_queue=asyncio.run(queue()))
    assert "live mode" in left_alone(context, request_of(context), new_store())


def test_the_interactions_api_is_left_alone_with_a_record() -> None:
    context, _ = context_of(words(800), planned())
    request = request_of(context, previous_interaction_id="interaction-7")
    assert "interactions API" in left_alone(context, request, new_store())


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
@pytest.mark.rows(11)
def test_what_fits_is_sent_as_without_the_plugin(name: str, resumable: bool) -> None:
    script, settings = CASES[name]
    ours, plain = (sent(script, settings, resumable=resumable, use_plugin=use) for use in (True, False))
    assert len(ours) >= 3
    assert ours == plain
