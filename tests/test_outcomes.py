"""What became of a call, and that nothing which fails inside, in the store or in the model reaches a run."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from google.adk.agents.callback_context import CallbackContext
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.plugins.base_plugin import BasePlugin
from google.genai import types
from plans import loop, messages, planned, small, turns, words
from scripted import Chat, Failure, call, faults, look_up

from aether_context import PackPolicy, PackStore
from aether_context.adk import ContextPackPlugin
from aether_context.errors import StoreError


def chunk(text: str, partial: bool | None, tokens: int) -> LlmResponse:
    return LlmResponse(
        content=types.Content(role="model", parts=[types.Part(text=text)]),
        partial=partial,
        usage_metadata=types.GenerateContentResponseUsageMetadata(
            prompt_token_count=tokens, cached_content_token_count=0, candidates_token_count=3
        ),
        finish_reason=None if partial else types.FinishReason.STOP,
        model_version="gemini-2.5-flash-001",
        custom_metadata={"host": "kept"},
    )


def test_a_stream_has_one_outcome_with_the_final_usage() -> None:
    stream = (chunk("He", True, 11), chunk("llo", True, 22), chunk("Hello", None, 33))
    chat = Chat(script=[stream])
    events = chat.say("hi", stream=True)
    (manifest,) = chat.manifests()
    outcome = chat.store.outcome(manifest)
    assert outcome is not None
    assert outcome["input_tokens"] == 33
    assert outcome["cached_tokens"] == 0
    assert outcome["finish_reason"] == "STOP"
    assert outcome["model_version"] == "gemini-2.5-flash-001"
    said = events[-1].custom_metadata or {}
    assert said["host"] == "kept"
    assert said["aether_context"]["pack_id"] == manifest.pack_id
    assert said["aether_context"]["request_tokens"] == manifest.request_tokens
    assert said["aether_context"]["usage"]["session"]["input_tokens"] == 33
    assert said["aether_context"]["reports"]["baseline"]["reported"] == 33
    assert all("aether_context" not in (event.custom_metadata or {}) for event in events[:-1])


def test_an_outcome_of_an_answer_by_another_plugin_is_not_taken_for_the_models() -> None:
    class Refuses(BasePlugin):
        async def before_model_callback(self, *, callback_context: Any, llm_request: LlmRequest) -> LlmResponse:
            return LlmResponse(content=types.Content(role="model", parts=[types.Part(text="no")]))

    chat = Chat(script=["yes"])
    chat.runner.plugin_manager.plugins.append(Refuses(name="refuses"))
    chat.say("hello")
    (manifest,) = chat.manifests()
    assert chat.store.outcome(manifest) is None


def test_record_off_writes_nothing_and_hashes_keeps_no_text() -> None:
    chat = Chat(policy=PackPolicy(record="off"), state=planned())
    chat.say("hello secret-word")
    assert chat.manifests() == []
    chat = Chat(policy=PackPolicy(record="hashes", max_input_tokens=800), state=planned())
    chat.say("hello secret-word", *turns(8), words(2_000, "secret-word"))
    files = chat.store.files.fs.find(chat.store.files.root)
    assert files
    assert not any(b"secret-word" in chat.store.files.fs.cat_file(path) for path in files)
    assert "artifact://messages" not in chat.sent[-1].text


class Broken(PackStore):
    """A store whose writes fail."""

    def __init__(self, error: Exception) -> None:
        super().__init__("memory://broken")
        self.error = error

    def write(self, recording: Any, outcome: Any = None) -> Any:
        raise self.error


@pytest.mark.parametrize("error", [StoreError("full"), OSError("gone"), RuntimeError("what"), MemoryError()])
@pytest.mark.parametrize("on_error", ["passthrough", "raise"])
def test_a_store_that_fails_never_reaches_the_run(error: Exception, on_error: str) -> None:
    plugin = ContextPackPlugin(store=Broken(error), on_error=on_error)  # type: ignore[arg-type]
    chat = Chat(plugin=plugin, state=planned(), script=[call("look_up", key="a"), "done"], tools=[look_up])
    assert chat.say("go")[-1].content.parts[0].text == "done"
    assert len(chat.sent) == 2
    assert all("CONTEXT PACK" in one.text for one in chat.sent)


class Hostile(dict[str, Any]):
    """A mapping that cannot be read."""

    def items(self) -> Any:
        raise Failure("unreadable")


def unreadable(context: CallbackContext, _: LlmRequest) -> None:
    context.session.state["plan"] = Hostile(step="x")


def test_a_failure_inside_never_reaches_the_run_and_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    chat = Chat(alter=unreadable, on_error="passthrough", script=[*loop(2), "done"], tools=[look_up])
    with caplog.at_level(logging.WARNING, logger="aether_context"):
        events = chat.say("go")
    assert events[-1].content.parts[0].text == "done"
    assert [one.wires for one in chat.sent] == [one.wires for one in chat.raw]
    assert len([record for record in caplog.records if "unreadable" in record.getMessage()]) == 1


def test_a_failure_inside_ends_the_run_where_it_is_told_to() -> None:
    chat = Chat(alter=unreadable)
    with pytest.raises(RuntimeError, match="unreadable"):
        chat.say("go")


def test_after_a_failure_the_request_still_fits_the_window_and_has_a_manifest() -> None:
    late: list[bool] = []

    def alter(context: CallbackContext, request: LlmRequest) -> None:
        if late:
            unreadable(context, request)

    chat = Chat(policy=small(1_500), on_error="passthrough", alter=alter)
    chat.say(*turns(12))
    usual = max(len(one.text) for one in chat.sent)
    count = len(chat.manifests())
    late.append(True)
    chat.say("last question")
    assert faults(chat.sent[-1].contents) == []
    assert chat.sent[-1].contents[-1].parts[0].text == "last question"
    assert len(chat.sent[-1].text) <= 1.1 * usual
    assert len(chat.manifests()) == count + 1
    told = messages(chat.latest().degradations)
    assert "unreadable" in told or "Failure" in told


def test_state_that_a_failed_call_lost_does_not_break_the_next_one() -> None:
    chat = Chat(script=[*loop(1), "a", Failure("x"), "b", "c"], tools=[look_up], state=planned(), policy=small(1_500))
    chat.say("first")
    with pytest.raises(Failure):
        chat.say("second")
    chat.say("third", "fourth")
    before = chat.sent[-2].wires[:-1]
    assert chat.sent[-1].wires[: len(before)] == before
    chat.replays()


def test_nothing_that_was_said_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    chat = Chat(policy=small(3_000, usage={"gate": 0}), tools=[look_up], script=[*loop(25), "done"])
    with caplog.at_level(logging.DEBUG, logger="aether_context"):
        chat.say("the secret word is xylophone")
    told = "\n".join(one.getMessage() for one in caplog.records if one.name.startswith("aether_context"))
    assert told
    assert "xylophone" not in told
