"""Results are offloaded as the session holds them when the agent's next model call looks, whoever put them there."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.agents.callback_context import CallbackContext
from google.adk.events.event import Event
from google.adk.models.llm_response import LlmResponse
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.tools.function_tool import FunctionTool
from google.adk.tools.long_running_tool import LongRunningFunctionTool
from google.genai import types
from scripted import Chat, Failure, Scripted, call, results, state_of

from aether_context import PackPolicy
from aether_context.adk import evidence
from aether_context.adk.call import ESSENTIAL_MARK
from aether_context.adk.preview import preview
from aether_context.errors import StoreError

LOG = "\n".join(f"10:{at // 60:02d}:{at % 60:02d} INFO step {at} took {at * 37 % 1009} ms" for at in range(200))
IMAGE = types.Part.from_bytes(data=b"\x89PNG\r\n\x1a\n" + bytes(9_000), mime_type="image/png")


def read_log(name: str) -> str:
    """Reads a log of about 4,000 tokens."""
    return f"{LOG}\nend of {name}"


def order(item: str) -> dict[str, str]:
    """Orders an item; it takes days."""
    return {"status": "pending"}


def chat(script: Any, **settings: Any) -> Chat:
    policy = PackPolicy(max_input_tokens=16_000)
    return Chat(script=script, **{"tools": [read_log], "policy": policy, **settings})


def shown(talk: Chat, at: int = -1) -> list[dict[str, Any]]:
    """What the tools gave, as a request has it."""
    parts = [part for content in talk.sent[at].contents for part in content.parts or ()]
    return [dict(part.function_response.response or {}) for part in parts if part.function_response]


def records(talk: Chat) -> list[Any]:
    return talk.store.evidence("shop", "ann", "s1")


def posted(call_id: str | None, name: str, response: dict[str, Any]) -> types.Content:
    answer = types.FunctionResponse(id=call_id, name=name, response=response)
    return types.Content(role="user", parts=[types.Part(function_response=answer)])


def held(talk: Chat) -> list[Event]:
    return list(asyncio.run(talk.held()).events)


def test_a_result_that_was_posted_later_has_an_address() -> None:
    talk = chat([call("order", item="tea"), "ordered", "it came"], tools=[LongRunningFunctionTool(order)])
    events = talk.say("order tea")
    asked = next(one for event in events for one in event.get_function_calls())
    talk.say(posted(asked.id, "order", {"result": LOG}))
    (answer,) = shown(talk)
    (record,) = [one for one in records(talk) if one.form == "extract"]
    assert str(answer["artifact"]).startswith(record.uri)
    assert (record.source, record.agent) == ("order", "clerk")
    assert talk.store.evidence_data("shop", "ann", record.digest).decode() == LOG
    talk.replays()


@pytest.mark.parametrize("again", ["same process", "new process"])
def test_a_result_whose_call_failed_is_offloaded_by_the_next_one(again: str) -> None:
    talk = chat([call("read_log", name="a"), Failure("down"), "seen", "done"])
    with pytest.raises(Failure):
        talk.say("go")
    assert "aether:evidence" not in state_of(talk)
    if again == "new process":
        talk.restart()
    talk.say("and now?")
    assert "artifact" in shown(talk)[0]
    assert "aether:evidence" in state_of(talk)
    before = talk.sent[-1]
    talk.say("thanks")
    assert talk.sent[-1].wires[: len(before.wires)] == before.wires


def test_what_a_store_that_was_down_did_not_take_stays_whole_in_a_new_process_too() -> None:
    talk = chat([call("read_log", name="a"), "seen", "one", call("read_log", name="b"), "two"])
    write = talk.store.write_evidence

    def down(*_: Any) -> None:
        raise StoreError("away")

    talk.store.write_evidence = down  # type: ignore[method-assign]
    talk.say("go")
    talk.store.write_evidence = write  # type: ignore[method-assign]
    talk.restart()
    talk.say("on", "once more")
    assert shown(talk, -2) == [{"result": read_log("a")}]
    assert ["artifact" in one for one in shown(talk)] == [False, True]
    assert [one.lines for one in records(talk)] == [201]


def test_results_that_come_at_once_go_to_the_store_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    talk = chat([[call("read_log", name=name) for name in "abc"], "done"])
    together, write = threading.Barrier(3, timeout=30), talk.store.write_evidence

    def wait(*given: Any) -> None:
        together.wait()
        write(*given)

    talk.store.write_evidence = wait  # type: ignore[method-assign]
    monkeypatch.setattr(evidence, "STORE_SECONDS", 60.0)
    talk.say("go")
    assert all("artifact" in answer for answer in shown(talk))
    talk.replays()


@pytest.mark.parametrize("error", [OSError("disk"), ValueError("bug")])
def test_a_write_that_fails_leaves_its_own_result_whole_alone(error: Exception) -> None:
    talk = chat([[call("read_log", name=name) for name in "ab"], "done"], on_error="passthrough")
    write = talk.store.write_evidence

    def fail(*given: Any) -> None:
        if given[-1].endswith(b"end of a"):
            raise error
        write(*given)

    talk.store.write_evidence = fail  # type: ignore[method-assign]
    talk.say("go")
    assert ["artifact" in answer for answer in shown(talk)] == [False, True]
    assert any(f"not offloaded: {type(error).__name__}" in one for one in talk.manifests()[-1].degradations)
    talk.replays()


def test_an_essential_tool_stays_whole_for_the_agent_that_is_handed_its_result() -> None:
    tool = FunctionTool(read_log)
    tool.custom_metadata = {ESSENTIAL_MARK: True}
    llm = Scripted(model="gemini-2.5-flash", script=[], sent=[])
    helper = LlmAgent(name="helper", model=llm, description="Helps.", instruction="You help.")
    lead = LlmAgent(name="lead", model=llm, instruction="You lead.", tools=[tool], sub_agents=[helper])
    talk = chat([], agent=lead)
    llm.script += [[call("read_log", name="a"), call("transfer_to_agent", agent_name="helper")], "helped"]
    talk.say("go")
    assert "step 100 " in talk.sent[-1].text
    assert not records(talk)


def test_a_store_that_does_not_answer_leaves_results_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()

    def end(callback_context: CallbackContext, llm_response: LlmResponse) -> None:
        if len(talk.sent) == 2:
            ended.set()  # the event loop waits for its threads when it closes

    script = [[call("read_log", name=name) for name in "ab"], "done"]
    talk = chat(script, settings={"after_model_callback": end})
    talk.store.write_evidence = lambda *_: ended.wait(60)  # type: ignore[assignment, method-assign, misc]
    monkeypatch.setattr(evidence, "STORE_SECONDS", 0.05)
    talk.say("go")
    assert shown(talk) == [{"result": read_log(name)} for name in "ab"]
    assert any("not offloaded: TimeoutError" in one for one in talk.manifests()[-1].degradations)


@pytest.mark.parametrize("callback", [True, False])
def test_media_are_offloaded_behind_other_callbacks(callback: bool) -> None:
    def draw() -> dict[str, Any]:
        """Draws."""
        return {"label": "plan", "image": IMAGE, "more": {"images": [{"image": IMAGE}]}}

    def look(**_: Any) -> None:
        return None

    settings = {"after_tool_callback": look} if callback else {}
    policy = PackPolicy(max_input_tokens=16_000, offload={"extract_tokens": 160, "tools": {"draw": "always"}})
    model = "gemini-3-pro-preview"
    talk = chat([call("draw"), "done"], tools=[draw], settings=settings, policy=policy, model=model)
    talk.say("go")
    (answer,) = shown(talk)
    assert [text.split(" ")[0] for text in answer["media"]] == [record.uri for record in records(talk) if record.piece]
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
    last = held(talk)[-1].invocation_id
    asyncio.run(talk.runner.rewind_async(user_id="ann", session_id="s1", rewind_before_invocation_id=last))
    talk.store.files.fs.rm(talk.store.files.root, recursive=True)
    talk.say("read the other")
    (record,) = records(talk)
    assert talk.store.evidence_data("shop", "ann", record.digest).decode() == read_log("b")


def test_an_agent_looks_at_what_the_one_before_it_did_not_come_to() -> None:
    llm = Scripted(model="gemini-2.5-flash", script=[], sent=[])
    helper = LlmAgent(name="helper", model=llm, description="Helps.", instruction="You help.")
    lead = LlmAgent(name="lead", model=llm, instruction="You lead.", tools=[read_log], sub_agents=[helper])
    talk = chat([], agent=lead)
    llm.script += [[call("read_log", name="a"), call("transfer_to_agent", agent_name="helper")], "helped", "on"]
    talk.say("go")
    assert talk.sent[-1].agent == "helper"
    (record,) = records(talk)
    assert record.agent == "lead"
    assert record.uri in talk.sent[-1].text
    assert "step 100 " not in talk.sent[-1].text
    talk.say("and on")
    assert len(records(talk)) == 1


class Rewrites(BasePlugin):
    """Gives another answer, so that ADK asks no callback behind it."""

    async def after_model_callback(
        self, *, callback_context: CallbackContext, llm_response: LlmResponse
    ) -> LlmResponse | None:
        return llm_response.model_copy()


def test_results_are_looked_at_once_where_answers_do_not_name_their_packs() -> None:
    talk = chat([call("read_log", name="a"), *(call("read_log", name=name) for name in "bcd"), "done"])
    talk.runner.plugin_manager.plugins.insert(0, Rewrites(name="rewrites"))
    written: list[str] = []
    write = talk.store.write_evidence

    def count(*given: Any) -> None:
        written.append(given[-2].digest)
        write(*given)

    talk.store.write_evidence = count  # type: ignore[method-assign]
    talk.say("go")
    assert not any((event.custom_metadata or {}).get("aether_context") for event in held(talk))
    assert len(written) == len(set(written)) == 4


def test_the_history_of_an_app_that_takes_the_plugin_later_is_offloaded() -> None:
    before = Chat(script=[call("read_log", name="a"), "done"], tools=[read_log], use_plugin=False)
    assert results(before.say("go")) == [{"result": read_log("a")}]
    talk = chat(["seen"], sessions=before.sessions)
    talk.say("and now?")
    assert "artifact" in shown(talk)[0]


def test_only_the_latest_of_very_many_results_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "_MOST_AT_ONCE", 2)
    talk = chat(
        [[call("read_log", name=name) for name in "abc"], "done", "on"], policy=PackPolicy(max_input_tokens=32_000)
    )
    talk.say("go", "and on")
    for at in (-2, -1):
        assert ["artifact" in one for one in shown(talk, at)] == [False, True, True]


def test_a_preview_shows_extracts_and_keeps_nothing() -> None:
    talk = chat([call("read_log", name="a"), Failure("down")])
    with pytest.raises(Failure):
        talk.say("go")
    session = asyncio.run(talk.held())
    pack = preview(session, policy=talk.policy, tools=[read_log]).pack
    assert "artifact://evidence/" in str(pack.contents)
    from aether_context.adk.preview import _Packing  # where a preview's own store is

    store = _Packing(talk.policy).packer.store
    assert store.evidence("shop", "ann", "s1") == []


class Alters(BasePlugin):
    """An app's own plugin behind this one, which takes a word out of every result."""

    async def after_tool_callback(self, **given: Any) -> dict[str, Any]:
        return {"result": str(given["result"]).replace("INFO", "[level]")}


def test_what_a_later_plugin_makes_of_a_result_is_what_is_kept() -> None:
    talk = chat([call("read_log", name="a"), "done"])
    talk.runner.plugin_manager.register_plugin(Alters(name="alters"))
    talk.say("go")
    (record,) = records(talk)
    assert "INFO" not in talk.store.evidence_data("shop", "ann", record.digest).decode()
    assert "[level]" in str(shown(talk))
