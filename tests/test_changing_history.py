"""Cuts, and what changes under the plugin: history by rewinds and edits, tools, and state made to harm."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from google.adk.agents.callback_context import CallbackContext
from google.adk.models.llm_request import LlmRequest
from google.genai import types
from plans import PLAN, loop, messages, planned, small, turns
from scripted import Chat, faults, look_up, set_state, state_of, was_cut

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
    assert chat.latest().epoch.cut_count > 1
    held = asyncio.run(chat.held())
    second = [event for event in held.events if event.author == "user"][1]
    asyncio.run(
        chat.runner.rewind_async(user_id="ann", session_id="s1", rewind_before_invocation_id=second.invocation_id)
    )
    chat.say("a new question")
    manifest = chat.latest()
    assert [content.parts[0].text for content in chat.sent[-1].contents] == [turns(9)[0], "ok", "a new question"]
    assert manifest.epoch.cut_count == 0
    assert manifest.prefix.broken_by is not None
    chat.replays()


@pytest.mark.parametrize("answer", ["ok", "distinct"])
@pytest.mark.parametrize("drop", [1, 2, 3, 5])
@pytest.mark.rows(3)
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
    assert ("edited" in replayed.request) == ("edited" in "".join(chat.sent[4].wires))


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


async def poison(chat: Chat, key_prefix: str, value: Any) -> None:
    session = await chat.held()
    keys = [key for key in session.state if key.startswith(key_prefix)]
    assert keys
    for key in keys:
        await set_state(chat, **{key: value(session.state[key]) if callable(value) else value})


BAD_EPOCHS: list[Any] = [
    "junk", 7, [], {}, {"session": "s1"}, lambda held: {**held, "number": "many"},
    lambda held: {**held, "number": -3}, lambda held: {**held, "cut_count": -4},
    lambda held: {**held, "cut_count": 10**12}, lambda held: {**held, "cut_count": 10**12, "kept": [[0, 10**12]]},
    lambda held: {**held, "cut_count": 3, "cut_hash": ""}, lambda held: {**held, "kept": [[-5, 2]]},
    lambda held: {**held, "kept": [[0, 2], [0, 2], [1, 2]]}, lambda held: {**held, "kept": [[4, 1]]},
    lambda held: {**held, "kept": "0-3"}, lambda held: {**held, "kept": [[0, 1], [0]]},
    lambda held: {**held, "forms": {"sha256:zz": ["extract", -5]}}, lambda held: {**held, "forms": ["x"]},
    lambda held: {**held, "cut_count": 0, "forms": {"sha256:zz": 5}},
    lambda held: {**held, "payloads": ["gone", "../../etc"]},
    lambda held: {**held, "payloads": held["payloads"] * 3}, lambda held: {**held, "marks": {"step": 3}},
    lambda held: {**held, "marks": {}}, lambda held: {**held, "session": "another"},
    lambda held: {**held, "unknown": 1}, lambda held: None,
]  # fmt: skip


@pytest.mark.parametrize("value", BAD_EPOCHS)
@pytest.mark.rows(5, slow=7)
def test_a_malformed_epoch_in_state_is_ignored_or_survived(value: Any) -> None:
    chat = Chat(policy=small(1_500), state=planned(), script=[])
    chat.say(*turns(4, 300))
    assert chat.latest().epoch.cut_count > 0
    asyncio.run(poison(chat, "aether:epoch:", value))
    chat.say("and now?", "and then?")
    for one, manifest in zip(chat.sent[-2:], chat.manifests()[-2:], strict=True):
        assert faults(one.contents) == []
        assert manifest.request_tokens <= 1_500
        assert one.human().endswith(("and now?", "and then?"))
        positions = [at for start, stop in manifest.positions for at in range(start, stop)]
        assert positions == sorted(set(positions))
        assert min(positions) >= 0
    chat.replays()


def test_the_epoch_of_another_session_is_not_this_ones() -> None:
    """ADK copies a parent's state into child sessions."""
    parent = Chat(state=planned())
    parent.say("Hello")
    child = Chat(state=state_of(parent), session="child")
    child.say("Hello")
    assert child.manifests()[0].epoch_reason == "first_call"


@pytest.mark.parametrize(
    "value",
    [
        "junk", None, {}, lambda held: {**held, "used": {"memory": -1_000_000}},
        lambda held: {**held, "used": {"memory": 10**15}}, lambda held: {**held, "text": 5},
        lambda held: {**held, "text": [10**5_000]}, lambda held: {**held, "text": [-(10**5_000)]},
        lambda held: {**held, "text": "", "split": 0}, lambda held: {**held, "invocation": "another"},
    ],
)  # fmt: skip
def test_a_malformed_packed_message_in_state_is_ignored_or_survived(value: Any) -> None:
    chat = Chat(policy=small(4_000), state=planned(), script=[])
    chat.say("one", "two")
    asyncio.run(poison(chat, "aether:payload:", value))
    chat.say("three", "four")
    assert len(chat.sent) > 1
    for one, manifest in zip(chat.sent[-2:], chat.manifests()[-2:], strict=True):
        assert faults(one.contents) == []
        assert manifest.request_tokens <= 4_000
        assert sum(account.used for account in manifest.allocation.values()) >= 0
        assert all(account.used >= 0 for account in manifest.allocation.values())
    chat.replays()


@pytest.mark.parametrize("line", ["- messages left out: ", "- messages left out: many", "- messages left out: 9 more"])
@pytest.mark.rows(1)
def test_a_user_who_writes_like_a_summary_does_not_break_the_next_cut(line: str) -> None:
    chat = Chat(policy=small(1_200), script=[f"answer\n{line}"] * 40)
    chat.say(*[f"{line}\n{text}" for text in turns(10, 60)])
    asyncio.run(poison(chat, "aether:summary:", line))
    chat.say(*turns(6, 60))
    assert len(chat.sent) == 16
    assert any(map(was_cut, chat.manifests()[10:]))
    assert all(faults(one.contents) == [] for one in chat.sent)


MALFORMED: list[tuple[str, Any]] = [
    ("plan", "just text"), ("plan", [5]), ("plan", 5), ("plan", {"step": {"text": [{}]}}),
    ("plan", {"step": "x", "acceptance": [{"id": "a"}]}),
    ("plan", {"step": "x", "acceptance": "y", "profile": "poetry"}),
    ("plan", {"step": "x", "acceptance": "y", "constraints": {"risk": "huge"}}),
    ("plan", {"step": "x", "acceptance": "y", "expected_tool_calls": -1}),
    ("plan", {"step": "x" * 50_000, "acceptance": "y"}), ("tools", 5), ("tools", [{"a": 1}]), ("knowledge", "text"),
    ("knowledge", {"notes": [{"id": "x"}]}), ("knowledge", {"evidence": [5.5]}),
]  # fmt: skip


@pytest.mark.parametrize(("key", "value"), MALFORMED)
def test_malformed_state_is_ignored_and_reported(key: str, value: Any) -> None:
    chat = Chat(state={key: value}, tools=[look_up])
    chat.say("go")
    assert chat.sent[0].human().endswith("go")
    assert f"state {key}" in messages(chat.manifests()[0].degradations)
    chat.replays()


ODD: list[dict[str, Any]] = [
    {"tools": []},
    {"tools": {"names": ["look_up"]}},
    {"plan": {}},
    {"plan": {**PLAN, "task_id": 42, "step": {**PLAN["step"], "id": 3}}},  # type: ignore[dict-item]
    {"plan": {**PLAN, "task_id": "../../etc/passwd", "step": {"id": "a/b\0c", "text": "x", "acceptance": "y"}}},
    {"plan": {**PLAN, "constraints": {"token_budget": 10**30, "latency_seconds": 1e300}}},
    {"plan": {**PLAN, "step": {"id": "1", "text": "x", "acceptance": ["a", "a", "a"]}}},
    {"plan": {**PLAN, "step": {"text": "x", "acceptance": [{"id": "s", "text": "a"}, {"id": "s", "text": "b"}]}}},
    {"plan": {**PLAN, "step": {"text": "x", "acceptance": ["", " ", "\n"]}}},
    {"plan": {**PLAN, "open_questions": "which?", "next": "that", "stop_when": ["never"]}},
    {"knowledge": {"notes": ["the tax rate is 19"] * 5}},
    {"knowledge": {"notes": [{"id": "n", "text": "the tax rate is 19"}, {"id": "n", "text": "the tax rate is 7"}]}},
    {"knowledge": {"notes": [{"text": "the tax rate is 19", "time": 1741514400000}]}},
    {"knowledge": {"notes": [{"text": "the tax rate is 19", "time": -1e12}]}},
    {"knowledge": {"notes": [{"text": "the tax rate is 19", "time": 1e300}]}},
    {"knowledge": {"notes": [{"text": "the tax rate is 19", "time": float("nan")}]}},
    {"knowledge": {"notes": [{"text": "the tax rate is 19", "time": float("inf")}]}},
    {"knowledge": {"notes": [{"text": "the tax rate is 19", "expires": float("nan")}]}},
    {"knowledge": {"notes": [{"text": "the tax rate is 19", "expires": float("inf")}]}},
    {"knowledge": {"evidence": [{"uri": "artifact://a", "summary": "rate", "time": 1741514400000}]}},
    {"knowledge": {"evidence": [{"uri": "artifact://a", "summary": "rate", "time": float("nan")}]}},
    {"knowledge": {"evidence": [{"uri": "artifact://a", "summary": "rate", "time": float("-inf")}]}},
    {"knowledge": {"evidence": ["artifact://a", "artifact://a", ""]}},
    {"knowledge": {"notes": ["", " "], "memories": ["\n"]}},
    {"knowledge": {"notes": [{"id": "c0_deadbeef", "text": "the tax rate is 19"}]}},
    {"knowledge": {"notes": [{"text": "the tax\0rate"}], "evidence": [{"uri": "a b\nc", "summary": "the tax rate"}]}},
]


@pytest.mark.parametrize("state", ODD, ids=[str(at) for at in range(len(ODD))])
@pytest.mark.rows(10)
def test_odd_but_readable_state_never_ends_a_run(state: dict[str, Any]) -> None:
    chat = Chat(state=state, tools=[look_up], script=[*loop(1), "done", "ok"])
    chat.say("What is the tax rate?", "And now?")
    assert chat.sent[0].human().endswith("What is the tax rate?")
    assert len(chat.manifests()) == 3
    chat.replays()
