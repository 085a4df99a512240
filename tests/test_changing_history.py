"""Cuts, and histories that change under the plugin: rewinds, edits, other tools, other instructions."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from google.adk.agents.callback_context import CallbackContext
from google.adk.models.llm_request import LlmRequest
from google.genai import types
from plans import PLAN, loop, planned, small, turns, words
from scripted import Chat, big_file, call, delete_all, exact, faults, look_up

from aether_context.store.replay import Replayer

# cuts


def long_chat(count: int = 14, tokens: int = 2_000, **settings: Any) -> Chat:
    chat = Chat(policy=small(tokens), **settings)
    chat.say(*turns(count))
    return chat


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


def test_the_boundary_only_moves_forward() -> None:
    chat = long_chat(24, 1_500)
    counts = [manifest.epoch.cut_count for manifest in chat.manifests()]
    assert counts == sorted(counts)
    assert counts[-1] > 0


def test_a_tool_loop_that_outgrows_the_window_stays_inside_it() -> None:
    chat = Chat(
        script=[*[call("big_file", name=f"f{at}", lines=60) for at in range(12)], "done"],
        tools=[big_file],
        policy=small(3_000),
    )
    chat.say("read them all")
    assert len(chat.sent) == 13
    for manifest in chat.manifests():
        assert manifest.request_tokens <= 2_700
    assert all(one.contents[-1].parts[0].function_response for one in chat.sent[1:])
    chat.replays()


# history that changes under the plugin


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


def test_a_rewind_before_the_boundary_keeps_it() -> None:
    chat = Chat(policy=small(1_500))
    chat.say(*turns(9))
    held = asyncio.run(chat.held())
    last = [event for event in held.events if event.author == "user"][-1]
    asyncio.run(
        chat.runner.rewind_async(user_id="ann", session_id="s1", rewind_before_invocation_id=last.invocation_id)
    )
    chat.say("another last question")
    after = chat.manifests()[-1]
    assert after.epoch.cut_count > 0
    assert turns(9)[-1] not in chat.sent[-1].text
    assert after.request_tokens <= 1_500
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
        assert "question 8:" in one.text or any(event.stage == "cut" for event in manifest.truncation_events)
    if drop > 1:
        assert chat.manifests()[-2].epoch_reason is not None or chat.manifests()[-2].degradations
    chat.replays()


def test_equal_messages_do_not_confuse_the_boundary() -> None:
    chat = Chat(policy=small(1_200), script=["yes"] * 40)
    chat.say(*["go on " + words(30)] * 30)
    assert len(chat.sent) == 30
    assert all(faults(one.contents) == [] for one in chat.sent)
    assert all(manifest.request_tokens <= 1_200 for manifest in chat.manifests())
    counts = [manifest.epoch.cut_count for manifest in chat.manifests()]
    assert counts == sorted(counts)
    chat.replays()


def test_an_edit_of_an_old_content_in_place_is_seen() -> None:
    changing: list[int] = []

    def alter(_: CallbackContext, request: LlmRequest) -> None:
        if changing:
            first = request.contents[0]
            request.contents[0] = types.Content(role=first.role, parts=[types.Part(text="rewritten by the host")])

    chat = Chat(alter=alter, script=[*loop(3), "done"], tools=[look_up])
    chat.say("hello")
    changing.append(1)
    chat.say("again")
    assert chat.sent[-1].contents[0].parts[0].text == "rewritten by the host"
    assert chat.manifests()[-1].prefix.broken_by is not None
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
                            name=part.function_response.name,
                            id=part.function_response.id,
                            response={"edited": True},
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
    resolved = chat.manifests()
    assert resolved
    from aether_context.store.recording import request_json

    replayed = Replayer(chat.store).replay(manifest)
    assert ("edited" in request_json(replayed.pack)) == ("edited" in "".join(chat.sent[4].wires))


# live state


def test_a_plan_that_changes_in_the_middle_of_a_loop_is_followed() -> None:
    def next_step(tool_context: Any) -> str:
        """Goes to the next step."""
        tool_context.state["plan"] = {
            **PLAN,
            "step": {"id": "4", "text": "Write the report", "acceptance": ["It is written"]},
        }
        return "ok"

    chat = Chat(
        script=[call("next_step"), call("look_up", key="a"), "done"], tools=[next_step, look_up], state=planned()
    )
    chat.say("go")
    assert "Find the tax rate" in chat.sent[0].contents[0].parts[0].text
    assert "Write the report" in chat.sent[1].contents[0].parts[0].text
    assert chat.sent[2].wires[: len(chat.sent[1].wires)] == chat.sent[1].wires
    assert [manifest.epoch_reason for manifest in chat.manifests()] == ["first_call", "step_changed", None]
    assert [manifest.step_id for manifest in chat.manifests()] == ["3", "4", "4"]
    chat.replays()


def test_the_system_instruction_may_change_between_calls() -> None:
    calls = [0]

    def alter(_: CallbackContext, request: LlmRequest) -> None:
        calls[0] += 1
        request.config.system_instruction = f"It is {calls[0]} o'clock."

    chat = Chat(alter=alter, script=[*loop(2), "done"], tools=[look_up])
    chat.say("go")
    assert [one.system for one in chat.sent] == [f"It is {at} o'clock." for at in (1, 2, 3)]
    reasons = [manifest.epoch_reason for manifest in chat.manifests()]
    assert reasons == ["first_call", "system_changed", "system_changed"]
    assert [manifest.prefix.broken_by for manifest in chat.manifests()] == [None, "system_changed", "system_changed"]


def test_a_system_instruction_that_is_not_text_is_left_alone() -> None:
    content = types.Content(role="system", parts=[types.Part(text="You help.")])

    def alter(_: CallbackContext, request: LlmRequest) -> None:
        request.config.system_instruction = content

    chat = Chat(alter=alter, state=planned())
    chat.say("go")
    assert chat.sent[0].system == content
    assert "CONTEXT PACK" in chat.sent[0].text
    chat.replays()


def test_tools_that_appear_between_calls_begin_an_epoch() -> None:
    calls = [0]

    def alter(_: CallbackContext, request: LlmRequest) -> None:
        calls[0] += 1
        if calls[0] > 1:
            from google.adk.tools import FunctionTool

            request.append_tools([FunctionTool(delete_all)])

    chat = Chat(alter=alter, script=[*loop(2), "done"], tools=[look_up])
    chat.say("go")
    assert [one.declared for one in chat.sent] == [("look_up",), ("look_up", "delete_all"), ("look_up", "delete_all")]
    assert [manifest.epoch_reason for manifest in chat.manifests()] == ["first_call", "tools_changed", None]
    chat.replays()


def test_a_tool_result_that_is_no_json_passes() -> None:
    def odd() -> dict[str, Any]:
        """Returns what JSON cannot hold."""
        return {"nan": float("nan"), "bytes": b"\xff\x00", "deep": [[[[{"x": (1, 2)}]]]], "key": {1: "one"}}

    chat = Chat(script=[call("odd"), "done", "ok"], tools=[odd], state=planned(), policy=small(1_500))
    chat.say("go", words(600))
    assert "nan" in exact(chat.sent[1].contents[-1])
    assert len(chat.manifests()) == 3
    chat.replays()


def test_run_in_a_new_event_loop_each_time_and_in_threads() -> None:
    chat = Chat(state=planned(), script=["a"] * 10)
    for at in range(5):
        run = (
            chat.runner.run(
                user_id="ann", session_id="s1", new_message=types.UserContent(parts=[types.Part(text=f"m{at}")])
            )
            if at
            else None
        )
        if run is None:
            chat.say("m0")
        else:
            assert list(run)
    assert len(chat.manifests()) == 5
    chat.replays()


def test_it_logs_one_line_a_pack_without_content(caplog: pytest.LogCaptureFixture) -> None:
    chat = Chat(state=planned())
    with caplog.at_level(logging.INFO, logger="aether_context"):
        chat.say("my secret question")
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.INFO]
    assert len(lines) == 1
    assert chat.manifests()[0].pack_id in lines[0]
    assert "secret" not in lines[0]
    assert "tax" not in lines[0]


def test_a_log_that_fails_leaves_the_request_as_it_was_packed(caplog: pytest.LogCaptureFixture) -> None:
    class Strict(logging.Filter):
        def filter(self, record: logging.LogRecord) -> bool:
            if record.levelno == logging.INFO:
                raise ValueError("this host's logs are structured")
            return True

    logger, strict = logging.getLogger("aether_context"), Strict()
    quiet = Chat(state=planned())
    chat = Chat(state=planned(), on_error="passthrough")
    quiet.say("hello")
    logger.addFilter(strict)
    try:
        with caplog.at_level(logging.INFO, logger="aether_context"):
            chat.say("hello")
    finally:
        logger.removeFilter(strict)
    assert chat.llm.sent[0].wires == quiet.llm.sent[0].wires
    assert len(chat.manifests()) == 1
    chat.replays()
