"""Results are offloaded as the session holds them when the agent's next model call looks, whoever put them there."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from google.adk.events.event import Event
from google.adk.tools.long_running_tool import LongRunningFunctionTool
from google.genai import types
from scripted import Chat, Failure, call

from aether_context import PackPolicy

LOG = "\n".join(f"10:{at // 60:02d}:{at % 60:02d} INFO step {at} took {at * 37 % 1009} ms" for at in range(200))


def read_log(name: str) -> str:
    """Reads a log of about 4,000 tokens."""
    return f"{LOG}\nend of {name}"


def order(item: str) -> dict[str, str]:
    """Orders an item; it takes days."""
    return {"status": "pending"}


def chat(script: Any, **settings: Any) -> Chat:
    policy = PackPolicy(max_input_tokens=16_000)
    return Chat(script=script, **{"tools": [read_log], "policy": policy, **settings})


def records(talk: Chat) -> list[Any]:
    return talk.store.evidence("shop", "ann", "s1")


def posted(call_id: str | None, name: str, response: dict[str, Any]) -> types.Content:
    answer = types.FunctionResponse(id=call_id, name=name, response=response)
    return types.Content(role="user", parts=[types.Part(function_response=answer)])


def test_a_result_that_was_posted_later_has_an_address() -> None:
    talk = chat([call("order", item="tea"), "ordered", "it came"], tools=[LongRunningFunctionTool(order)])
    events = talk.say("order tea")
    asked = next(one for event in events for one in event.get_function_calls())
    talk.say(posted(asked.id, "order", {"result": LOG}))
    (answer,) = talk.sent[-1].answers()
    (record,) = [one for one in records(talk) if one.form == "extract"]
    assert str(answer["artifact"]).startswith(record.uri)
    assert (record.source, record.agent) == ("order", "clerk")
    assert talk.store.evidence_data("shop", "ann", record.digest).decode() == LOG
    talk.replays()


def test_consent_that_a_person_gives_is_in_no_store() -> None:
    asking = types.Part(function_call=types.FunctionCall(name="adk_request_credential", args={}, id="adk-ask"))
    talk = chat(["hello", "thanks"])
    talk.say("hi")
    session = asyncio.run(talk.held())
    asked = Event(author="clerk", invocation_id="i", content=types.Content(role="model", parts=[asking]))
    asyncio.run(talk.sessions.append_event(session, asked))
    secret = posted("adk-ask", "adk_request_credential", {"exchanged_auth_credential": "s3cret " * 2_000})
    asyncio.run(talk.sessions.append_event(session, Event(author="user", invocation_id="i", content=secret)))
    talk.say("go on")
    assert records(talk) == []


def test_what_was_rewound_is_in_no_store() -> None:
    talk = chat(["hello", call("read_log", name="a"), Failure("down"), call("read_log", name="b"), "done"])
    talk.say("hi")
    with pytest.raises(Failure):
        talk.say("read")
    last = asyncio.run(talk.held()).events[-1].invocation_id
    asyncio.run(talk.runner.rewind_async(user_id="ann", session_id="s1", rewind_before_invocation_id=last))
    talk.store.files.fs.rm(talk.store.files.root, recursive=True)
    talk.say("read the other")
    (record,) = records(talk)
    assert talk.store.evidence_data("shop", "ann", record.digest).decode() == read_log("b")
