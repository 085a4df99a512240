"""Cuts, and histories that change under the plugin: rewinds, edits, other tools, other instructions."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from google.adk.agents.callback_context import CallbackContext
from google.adk.models.llm_request import LlmRequest
from google.genai import types
from plans import loop, small, turns
from scripted import Chat, look_up, was_cut

from aether_context.store.recording import request_json
from aether_context.store.replay import Replayer


def test_cuts_are_rare_and_go_down_in_one_act() -> None:
    chat = Chat(policy=small(2_000, retrieval={"recall": False}))
    chat.say(*turns(40, 25))
    cuts = [manifest for manifest in chat.manifests() if manifest.truncation_events]
    assert 1 <= len(cuts) <= 4
    assert all(manifest.epoch_reason == "high_water" for manifest in cuts)
    for earlier, later, manifest in zip(chat.sent, chat.sent[1:], chat.manifests()[1:], strict=False):
        if manifest not in cuts:
            assert later.wires[: len(earlier.wires)] == earlier.wires
            assert manifest.prefix.broken_by is None
    assert chat.sent[-1].contents[-1].parts[0].text == turns(40, 25)[-1]
    chat.replays()


def test_a_rewind_behind_the_boundary_begins_a_new_epoch_with_its_reason() -> None:
    chat = Chat(policy=small(1_500))
    chat.say(*turns(9))
    assert chat.manifests()[-1].epoch.cut_count > 1
    held = asyncio.run(chat.held())
    second = [event for event in held.events if event.author == "user"][1]
    asyncio.run(
        chat.runner.rewind_async(user_id="ann", session_id="s1", rewind_before_invocation_id=second.invocation_id)
    )
    chat.say("a new question")
    manifest = chat.manifests()[-1]
    assert [content.parts[0].text for content in chat.sent[-1].contents] == [turns(9)[0], "ok", "a new question"]
    assert manifest.epoch.cut_count == 0
    assert manifest.prefix.broken_by is not None
    chat.replays()


@pytest.mark.parametrize("answer", ["ok", "distinct"])
@pytest.mark.parametrize("drop", [1, 2, 3, 5])
def test_contents_removed_at_the_head_move_the_boundary_or_reset_it(drop: int, answer: str) -> None:
    removing: list[int] = []

    def alter(_: CallbackContext, request: LlmRequest) -> None:
        if removing:
            summary = types.Content(role="model", parts=[types.Part(text="earlier: they asked things")])
            request.contents = [summary, *request.contents[drop:]]

    script = [answer if answer == "ok" else f"answer {at}" for at in range(20)]
    chat = Chat(policy=small(1_500, retrieval={"recall": False}), alter=alter, script=script)
    chat.say(*turns(9))
    removing.append(1)
    chat.say("after the host's compaction", "and one more")
    for one, manifest in zip(chat.sent[-2:], chat.manifests()[-2:], strict=True):
        assert manifest.request_tokens <= 1_500
        assert one.contents[-1].parts[0].text in ("after the host's compaction", "and one more")
        assert "question 8:" in one.text or was_cut(manifest)
    if drop > 1:
        assert chat.manifests()[-2].epoch_reason is not None or chat.manifests()[-2].degradations
    chat.replays()


@pytest.mark.parametrize("position", [0, 1, 2, 3, 4])
def test_an_edit_in_the_middle_of_a_tool_loop_is_seen(position: int) -> None:
    """A host that rewrites an earlier content between two calls is never shadowed by what was read before."""
    calls = [0]

    def alter(_: CallbackContext, request: LlmRequest) -> None:
        calls[0] += 1
        if calls[0] == 5 and position < len(request.contents):
            held = request.contents[position]
            parts = [
                types.Part(text="edited")
                if part.text is not None
                else part.model_copy(
                    update={
                        "function_response": types.FunctionResponse(
                            name=part.function_response.name, id=part.function_response.id, response={"edited": True}
                        )
                    }
                )
                if part.function_response
                else part
                for part in held.parts or ()
            ]
            request.contents[position] = types.Content(role=held.role, parts=parts)

    chat = Chat(alter=alter, script=[*loop(5), "done"], tools=[look_up])
    chat.say("hello")
    assert chat.sent[4].wires == chat.raw[4].wires
    manifest = chat.manifests()[4]
    replayed = Replayer(chat.store).replay(manifest)
    assert ("edited" in request_json(replayed.pack)) == ("edited" in "".join(chat.sent[4].wires))


@pytest.mark.parametrize("field", ["description", "schema", "new"])
def test_a_changed_declaration_is_sent_and_counted(field: str) -> None:
    def alter(context: Any, request: Any) -> None:
        declared = request.config.tools[0].function_declarations
        if len(chat.raw) < 3:
            return
        if field == "description":
            declared[0].description = "edited " * 50
        elif field == "schema":
            declared[0].parameters_json_schema = {"type": "object", "properties": {"edited": {"type": "string"}}}
            declared[0].parameters = None
        else:
            declared.append(types.FunctionDeclaration(name="edited", description="A new one."))

    chat = Chat(script=[*loop(5), "done"], tools=[look_up], alter=alter)
    chat.say("look them up")
    manifests = chat.manifests()
    assert manifests[2].allocation["tools"].used != manifests[3].allocation["tools"].used
    chat.replays()
