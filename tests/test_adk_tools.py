"""Planner and operator inside ADK's Runner: what their calls do to the board, and how the packs follow."""

from __future__ import annotations

import json
from typing import Any

import pytest
from google.adk.agents import LlmAgent, SequentialAgent
from google.adk.tools.function_tool import FunctionTool
from google.genai import types
from scripted import Chat, Scripted, call, look_up, results, state_of

from aether_context.adk import evidence_tools, planning_tools
from aether_context.state import read_state
from aether_context.state.board import TaskBoard
from aether_context.store.replay import Replayer

BOARD = {
    "task": "Write the guide",
    "steps": [
        {"id": "s1", "text": "Find the rules", "acceptance": [{"id": "s1.a1", "text": "Listed"}]},
        {"id": "s2", "text": "Draft the guide", "acceptance": ["Drafted"], "depends_on": ["s1"]},
    ],
}


def board_of(state: Any) -> TaskBoard:
    return TaskBoard.read(state["plan"])


@pytest.mark.filterwarnings("ignore:.*is deprecated in favor of Workflow:DeprecationWarning")
def test_a_planner_plans_an_operator_works_and_the_pack_follows() -> None:
    planner_script = [
        call("add_step", step_id="s1", text="Find the rules", acceptance=["The rules are listed"], needs_evidence=True),
        call("add_step", step_id="s2", text="Draft the guide", acceptance=["It is drafted"], depends_on=["s1"]),
        "Plan.",
    ]
    operator_script = [
        call("claim_step", step_id="s1"),
        call("complete_step", step_id="s1", notes=[]),
        call("record_evidence", uri="artifact://rules.md", summary="Rule 4 names the limit", covers=["s1.a1"]),
        call("add_note", text="The clerk of the shop is Bo", step_id="s1"),
        call("complete_step", step_id="s1", notes=["The limit for refunds is 200"]),
        call("claim_step", step_id="s2"),
        "Working on it.",
    ]
    planner_llm = Scripted(model="gemini-2.5-flash", script=planner_script, sent=[])
    operator_llm = Scripted(model="gemini-2.5-flash", script=operator_script, sent=[])
    planner = LlmAgent(name="planner", model=planner_llm, tools=[*planning_tools()])
    operator = LlmAgent(name="operator", model=operator_llm, tools=[look_up, *planning_tools(), *evidence_tools()])
    chat = Chat(agent=SequentialAgent(name="team", sub_agents=[planner, operator]))
    events = chat.say("Write the refund guide. The rules are in artifact://rules.md.")
    answers = results(events)
    assert [list(one) for one in answers] == [
        ["added"],
        ["added"],
        ["claimed"],
        ["error"],
        ["recorded", "covers"],
        ["noted"],
        ["done", "can_be_claimed"],
        ["claimed"],
    ]
    assert "no evidence covers s1.a1" in answers[3]["error"]
    assert answers[6]["can_be_claimed"] == ["s2"]

    state = state_of(chat)
    board = board_of(state)
    assert [(step.id, step.status, step.claimed_by) for step in board.steps] == [
        ("s1", "done", "operator"),
        ("s2", "claimed", "operator"),
    ]
    assert board.step("s1").notes == ("The limit for refunds is 200", "The clerk of the shop is Bo")
    assert state["knowledge"]["notes"] == []
    json.dumps(state)

    first, last = operator_llm.sent[0].text, operator_llm.sent[-1].text
    assert "STEP:\n- s1: Find the rules" in first
    assert "- [ ] s1.a1: The rules are listed (needs evidence)" in first
    assert "STEP:\n- s2: Draft the guide" in last
    assert "s1: Find the rules" not in last.partition("USER REQUEST:")[0]
    evidence, note, other = read_state(state).candidates
    assert (evidence.layer, note.text, other.text) == (
        "evidence",
        "The limit for refunds is 200",
        "The clerk of the shop is Bo",
    )
    rows = Replayer(chat.store).resolve(chat.manifests()[-1]).rows
    assert rows[note.id].form == "left_out"
    steps = [one.step_id for one in chat.manifests() if one.agent == "operator"]
    assert steps == ["s1"] * 5 + ["s2"] * 2
    changes = [one.epoch_reason for one in chat.manifests() if one.agent == "operator"]
    assert changes[0] == "first_call"
    assert changes[5] == "step_changed"
    chat.replays()


def test_a_step_that_another_worker_has_is_neither_claimed_nor_released() -> None:
    plan = {"steps": [{**BOARD["steps"][0], "status": "claimed", "claimed_by": "other"}, BOARD["steps"][1]]}  # type: ignore[dict-item]
    chat = Chat(
        script=[[call("claim_step", step_id="s1"), call("release_step", step_id="s1")], "ok"],
        tools=planning_tools(),
        state={"plan": plan},
    )
    claimed, released = results(chat.say("Go."))
    assert claimed == {"error": "step 's1' is claimed by 'other': no step can be claimed now"}
    assert released == {"error": "step 's1' is claimed by 'other', not by 'clerk'"}
    assert state_of(chat)["plan"] == plan


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (call("claim_step", step_id="s2"), "waits for 's1': claim one of 's1'"),
        (call("claim_step", step_id="zz"), "the steps are 's1', 's2'"),
        (call("claim_step", step_id=None), "the steps are 's1', 's2'"),
        (call("claim_step"), "step_id"),
        (call("complete_step", step_id="s1", notes=["x"]), "is not claimed: claim it first"),
        (call("release_step", step_id="s1"), "is not claimed: claim it first"),
        (call("add_step", step_id="s3", text="x", acceptance=[]), "at least one acceptance item"),
        (call("add_step", step_id="s3", text=None, acceptance=None), "at least one acceptance item"),
        (call("add_step", step_id="s1", text="x", acceptance=["y"]), "2 steps are named 's1'"),
        (call("add_step", step_id="s3", text="x", acceptance=["y"], depends_on=["s3"]), "wait for each other"),
        (call("add_step", step_id="", text="x", acceptance=["y"]), "has no name"),
        (call("add_note", text=""), "needs a text"),
        (call("add_note", text="x", step_id="s9"), "the steps are 's1', 's2'"),
        (call("add_note", text="x", keep_seconds="soon"), "ttl_seconds"),
        (call("record_evidence", uri="artifact://x", summary="x", covers=["s9"]), "covers takes 's1.a1', 'a1'"),
        (call("record_evidence", uri="", summary="x", covers=[]), "needs a uri"),
        (call("record_evidence", uri="artifact://y", summary="x", covers=[]), "nothing has that uri"),
        (call("record_evidence", uri="artifact://x", summary=7, covers={"a": 1}), "covers takes"),
    ],
)
def test_a_call_that_cannot_be_carried_out_says_what_to_do(made: types.Part, said: str) -> None:
    chat = Chat(script=[made, "ok"], tools=[*planning_tools(), *evidence_tools()], state={"plan": BOARD})
    (answer,) = results(chat.say("Go. See artifact://x."))
    assert list(answer) == ["error"]
    assert said in answer["error"]
    state = state_of(chat)
    assert state["plan"] == BOARD
    assert "knowledge" not in state


def test_every_tool_tells_the_model_what_it_does_and_takes() -> None:
    tools = [*planning_tools(), *evidence_tools()]
    assert all(isinstance(tool, FunctionTool) for tool in tools)
    for tool in tools:
        declaration = tool._get_declaration()
        assert declaration is not None
        schema = declaration.parameters_json_schema or {}
        assert "tool_context" not in schema.get("properties", {})
        assert all(f"    {name}: " in (declaration.description or "") for name in schema.get("properties", {}))
        assert len(declaration.description or "") < 700
