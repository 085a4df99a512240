"""What became of a call: usage, the pack's name on the answer, and what is recorded."""

from __future__ import annotations

from typing import Any

from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.plugins.base_plugin import BasePlugin
from google.genai import types
from plans import loop, planned, turns, words
from scripted import Chat, look_up

from aether_context import PackPolicy


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
    assert said["aether_context"]["usage"][0][:2] == [1, 33]
    assert all("aether_context" not in (event.custom_metadata or {}) for event in events[:-1])


def test_every_answer_names_its_pack_and_every_pack_has_its_outcome() -> None:
    chat = Chat(script=[*loop(2), "done"], tools=[look_up], state=planned())
    events = chat.say("go")
    named = [event.custom_metadata["aether_context"]["pack_id"] for event in events if event.custom_metadata]
    manifests = chat.manifests()
    assert named == [manifest.pack_id for manifest in manifests]
    for manifest in manifests:
        outcome = chat.store.outcome(manifest)
        assert outcome is not None
        reported = outcome["input_tokens"]
        assert reported > 50
        assert (outcome["cached_tokens"], outcome["output_tokens"]) == (reported // 3, 7)


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
