"""The task board: what may follow what, what a state holds afterwards, who wins a race, and what agents do with it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents import LlmAgent, SequentialAgent
from google.adk.errors._stale_session_error import StaleSessionError
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.sessions.base_session_service import BaseSessionService
from google.adk.sessions.database_session_service import DatabaseSessionService
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from google.adk.sessions.state import State
from google.adk.tools.function_tool import FunctionTool
from google.genai import types
from hypothesis import given
from hypothesis import strategies as st
from scripted import Chat, Scripted, call, look_up, results, state_of

from aether_context.adk import evidence_tools, planning_tools
from aether_context.errors import BoardError
from aether_context.state import read_state
from aether_context.state.board import TaskBoard, change_plan
from aether_context.store.replay import Replayer


def plan(**more: Any) -> dict[str, Any]:
    """A board of three steps, the last of which waits for the first."""
    return {
        "task": "Write the guide",
        "steps": [
            {"id": "find", "text": "Find the rules", "acceptance": ["The rules are listed"], "colour": "red"},
            {"id": "ask", "text": "Ask the clerk", "acceptance": ["The clerk has answered"]},
            {"id": "draft", "text": "Draft it", "acceptance": ["It is drafted"], "depends_on": ["find"]},
        ],
        **more,
    }


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda board: board.claim("find", by="bob"), "step 'find' is claimed by 'ann': claim one of 'ask'"),
        (lambda board: board.complete("find", by="bob"), "claimed by 'ann', not by 'bob'"),
        (lambda board: board.complete("find", by="ann").claim("find", by="ann"), "step 'find' is done: claim one of"),
        (lambda board: board.complete("find", by="ann").complete("find", by="ann"), "is done already"),
        (lambda board: board.add({"id": "end", "depends_on": ["fly"]}), "depends on 'fly', not on the board"),
        (lambda board: board.add({"id": "x", "status": "lost"}), "not a step: status"),
    ],
)
def test_what_is_not_allowed_says_what_is(change: Callable[[TaskBoard], TaskBoard], said: str) -> None:
    board = TaskBoard.read(plan()).claim("find", by="ann")
    with pytest.raises(BoardError, match=said):
        change(board)


@pytest.mark.parametrize(
    ("held", "said"),
    [
        ("a plan", "not a plan"),
        ({"steps": [{"id": "a"}, {"id": "a"}]}, "2 steps are named 'a'"),
        ({"steps": ["Just do it"]}, "has no name"),
        ({"steps": [{"id": "a", "depends_on": ["b"]}, {"id": "b", "depends_on": "a"}, {"id": "c"}]}, "'a', 'b' wait"),
        ({"steps": [{"id": "a", "depends_on": ["a"]}]}, "'a' wait"),
        ({"steps": [{"id": "a", "status": "asleep"}]}, "steps.0.status"),
    ],
)
def test_what_is_no_board_is_an_error_that_does_not_quote_it(held: object, said: str) -> None:
    with pytest.raises(BoardError, match=said) as caught:
        TaskBoard.read(held)
    assert "asleep" not in str(caught.value)


_KEYS = st.sampled_from(["id", "text", "steps", "status", "depends_on", "current_step", "notes", "acceptance", "step"])
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS | st.text(max_size=3), inner, max_size=5),
    max_leaves=12,
)


@given(_JSON, _JSON)
def test_any_plan_is_read_and_is_a_board_or_an_error(held: Any, knowledge: Any) -> None:
    state = {"plan": held, "knowledge": knowledge}
    read_state(state)
    try:
        board = TaskBoard.read(held)
    except BoardError:
        return
    for step in board.ready():
        changed = change_plan(state, lambda board, step=step: board.claim(step.id, by="w"))  # type: ignore[misc]
        assert changed.step(step.id).status == "claimed"
        assert read_state(state, worker="w").problems is not None
        break


@pytest.mark.parametrize("kind", ["database", "sqlite"])
def test_of_two_processes_on_one_database_one_wins_and_the_other_is_told(tmp_path: Path, kind: str) -> None:
    """Two services stand for two processes: they share nothing but the file."""

    def service() -> BaseSessionService:
        file = tmp_path / "sessions.db"
        if kind == "sqlite":
            return SqliteSessionService(db_path=str(file))
        return DatabaseSessionService(f"sqlite+aiosqlite:///{file}")

    names: dict[str, Any] = {"app_name": "shop", "user_id": "ann", "session_id": "s1"}

    async def claim(of: BaseSessionService, step: str, by: str) -> Callable[[], Any]:
        """Claims in a copy of the session; returns what persists it."""
        session = await of.get_session(**names)
        assert session is not None
        delta: dict[str, Any] = {}
        change_plan(State(session.state, delta), lambda board: board.claim(step, by=by))
        event = Event(author=by, invocation_id=f"i-{by}", actions=EventActions(state_delta=delta))
        return lambda: of.append_event(session, event)

    async def race() -> dict[str, Any]:
        one, other = service(), service()
        await one.create_session(**names, state={"plan": plan(owner="ann")})
        first, second = await claim(one, "find", "ann"), await claim(other, "find", "bob")
        await first()
        with pytest.raises((StaleSessionError, ValueError), match=r"stale|modified"):
            await second()
        with pytest.raises(BoardError, match="claimed by 'ann'"):
            await claim(other, "find", "bob")
        await (await claim(other, "ask", "bob"))()
        held = await one.get_session(**names)
        assert held is not None
        for each in (one, other):
            if isinstance(each, DatabaseSessionService):
                await each.close()
        return dict(held.state)

    board = TaskBoard.read(asyncio.run(race())["plan"])
    assert [(step.id, step.claimed_by) for step in board.steps] == [("find", "ann"), ("ask", "bob"), ("draft", "")]


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
    assert steps == ["s1"] * 6 + ["s2"]
    changes = [one.epoch_reason for one in chat.manifests() if one.agent == "operator"]
    assert changes[0] == "first_call"
    assert changes[1:] == [None] * 5 + ["step_changed"]
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
