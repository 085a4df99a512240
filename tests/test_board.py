"""The task board, notes and evidence: what a state holds afterwards, who wins a race, and what agents do with it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Mapping
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents import LlmAgent, SequentialAgent
from google.adk.errors._stale_session_error import StaleSessionError
from google.adk.sessions.base_session_service import BaseSessionService
from google.adk.sessions.database_session_service import DatabaseSessionService
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from google.adk.tools.function_tool import FunctionTool
from google.genai import types
from hypothesis import given, settings
from hypothesis import strategies as st
from plans import planned
from scripted import Chat, Scripted, call, look_up, results, state_of

from aether_context import replay
from aether_context.adk import evidence_tools, planning_tools
from aether_context.state import read_state


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


def worked(state: dict[str, Any], *calls: types.Part, **settings: Any) -> list[dict[str, Any]]:
    """What the tools answer, of calls one after the other."""
    return results(Chat(script=[*calls, "ok"], tools=planning_tools(), state=state, **settings).say("Go."))


def test_what_is_done_is_neither_claimed_nor_completed_again() -> None:
    steps = [call(f"{verb}_step", step_id="find") for verb in ("claim", "complete") * 2]
    listed, *_, claimed, completed = worked({"plan": plan()}, call("list_steps"), *steps)
    assert listed["can_be_claimed"] == ["find", "ask"], "and not what waits for one"
    assert claimed["error"].startswith("step 'find' is done: claim one of")
    assert "is done already" in completed["error"]


@pytest.mark.parametrize(
    ("held", "said"),
    [
        ("a plan", "not a plan"),
        ({"steps": [{"id": "a"}, {"id": "a"}]}, "2 steps are named 'a'"),
        ({"steps": ["Just do it"]}, "has no name"),
        ({"steps": [{"id": "a", "depends_on": ["b"]}, {"id": "b", "depends_on": "a"}, {"id": "c"}]}, "'a', 'b' wait"),
        ({"steps": [{"id": "a", "depends_on": ["a"]}]}, "'a' wait"),
        ({"steps": [{"id": "a", "depends_on": ["z"]}]}, "depends on 'z', not on the board"),
        ({"steps": [{"id": "a", "status": "asleep"}]}, "steps.0.status"),
    ],
)
def test_what_is_no_board_is_an_error_that_does_not_quote_it(held: object, said: str) -> None:
    for answer in worked({"plan": held}, call("list_steps"), call("claim_step", step_id="a")):
        assert said in answer["error"]
        assert "asleep" not in answer["error"]


_KEYS = st.sampled_from(["id", "text", "steps", "status", "depends_on", "current_step", "notes", "acceptance", "step"])
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS | st.text(max_size=3), inner, max_size=5),
    max_leaves=12,
)


@given(_JSON, _JSON)
@settings(max_examples=50)
def test_any_plan_is_read(held: Any, knowledge: Any) -> None:
    assert read_state({"plan": held, "knowledge": knowledge}, worker="w").problems is not None


@given(_JSON)
@settings(max_examples=15)
def test_any_plan_is_a_board_or_an_error(held: Any) -> None:
    (answer,) = worked({"plan": held}, call("list_steps"))
    assert list(answer) in (["error"], ["steps", "can_be_claimed"])


@pytest.mark.parametrize("kind", ["database", "sqlite"])
def test_of_two_processes_on_one_database_one_wins_and_the_other_is_told(tmp_path: Path, kind: str) -> None:
    """Two services stand for two processes: they share nothing but the file."""

    def chat(name: str, *steps: str, alter: Any = None) -> Chat:
        file = tmp_path / "sessions.db"
        service: BaseSessionService = SqliteSessionService(db_path=str(file))
        if kind == "database":
            service = DatabaseSessionService(f"sqlite+aiosqlite:///{file}")
        script = [[call("claim_step", step_id=step) for step in steps], "ok"]
        agent = LlmAgent(name=name, model=Scripted(script=script, sent=[]), tools=[*planning_tools()])
        return Chat(agent=agent, sessions=service, state={"plan": plan(owner="ann")}, alter=alter)

    async def then_closed(of: Chat, act: Awaitable[Any]) -> Any:
        try:
            return await act
        finally:
            if isinstance(of.sessions, DatabaseSessionService):
                await of.sessions.close()

    def run(of: Chat) -> list[dict[str, Any]]:
        return results(asyncio.run(then_closed(of, of.tell("Go."))))

    def meanwhile(context: Any, request: Any) -> None:
        """Ann's whole run, while Bob's model is about to be called."""
        aside = threading.Thread(target=run, args=[chat("ann", "find")])
        aside.start()
        aside.join()

    with pytest.raises((StaleSessionError, ValueError), match=r"stale|modified"):
        run(chat("bob", "find", alter=meanwhile))
    find, ask = run(chat("bob", "find", "ask"))
    assert "claimed by 'ann'" in find["error"]
    assert ask["claimed"]["id"] == "ask"
    reader = chat("eve")
    steps = asyncio.run(then_closed(reader, reader.held())).state["plan"]["steps"]
    assert [step.get("claimed_by") for step in steps] == ["ann", "bob", None]


BOARD = {
    "task": "Write the guide",
    "steps": [
        {"id": "s1", "text": "Find the rules", "acceptance": [{"id": "s1.a1", "text": "Listed"}]},
        {"id": "s2", "text": "Draft the guide", "acceptance": ["Drafted"], "depends_on": ["s1"]},
    ],
}


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
    first_step, second_step = state["plan"]["steps"]
    assert (first_step["status"], first_step["claimed_by"]) == ("done", "operator")
    assert (second_step["status"], second_step["claimed_by"]) == ("claimed", "operator")
    assert first_step["notes"] == ["The limit for refunds is 200", "The clerk of the shop is Bo"]
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
    (row,) = [row for row in replay(chat.latest(), chat.store).pack.rows if row.id == note.id]
    assert row.form == "left_out"
    steps = [one.step_id for one in chat.manifests() if one.agent == "operator"]
    assert steps == ["s1"] * 6 + ["s2"]
    changes = [one.epoch_reason for one in chat.manifests() if one.agent == "operator"]
    assert changes[0] == "first_call"
    assert changes[1:] == [None] * 5 + ["step_changed"]
    chat.replays()


def test_a_step_that_another_worker_has_is_neither_claimed_nor_released() -> None:
    plan = {"steps": [{**BOARD["steps"][0], "status": "claimed", "claimed_by": "other"}, BOARD["steps"][1]]}  # type: ignore[dict-item]
    chat = Chat(
        script=[[call(f"{verb}_step", step_id="s1") for verb in ("claim", "release", "complete")], "ok"],
        tools=planning_tools(),
        state={"plan": plan},
    )
    claimed, released, completed = results(chat.say("Go."))
    assert claimed == {"error": "step 's1' is claimed by 'other': no step can be claimed now"}
    assert released == completed == {"error": "step 's1' is claimed by 'other', not by 'clerk'"}
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


# notes and evidence


PLAN: dict[str, Any] = {
    "steps": [
        {"id": "find", "text": "Find", "acceptance": ["Found", {"id": "cited", "text": "Cited"}], "status": "done"},
        {"id": "draft", "text": "Draft", "acceptance": [{"id": "whole", "text": "Whole"}]},
    ]
}


def written(tool: str, state: Mapping[str, Any] | None = None, **arguments: Any) -> tuple[dict[str, Any], Any]:
    """The answer of a tool that writes into the state, and the state."""
    chat = Chat(
        script=[call(tool, **arguments), "ok"],
        tools=evidence_tools(),
        state=planned(PLAN) if state is None else state,
    )
    (answer,) = results(chat.say("Go. See artifact://r.md."))
    return answer, {key: value for key, value in state_of(chat).items() if key in ("plan", "knowledge")}


def test_a_note_is_read_as_it_was_written() -> None:
    answer, state = written("add_note", text="The limit is 200", keep_seconds=60, step_id="draft")
    read = read_state(state)
    assert read.problems == ()
    (note,) = read.candidates
    assert (note.id, note.text) == (answer["noted"], "The limit is 200")
    assert note.time is not None
    assert note.expires == note.time + 60
    assert json.loads(json.dumps(state)) == state


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"text": "  "}, "needs a text"),
        ({"text": "x" * 20_001}, "20000"),
        ({"text": "x", "keep_seconds": -5}, "greater than 0"),
        ({"text": "x", "step_id": "fly"}, "no step 'fly': the steps are 'find', 'draft'"),
        ({"text": "x", "step_id": "find"}, "step 'find' is done"),
    ],
)
def test_a_wrong_note_is_not_written(arguments: dict[str, Any], said: str) -> None:
    answer, state = written("add_note", **arguments)
    assert said in answer["error"]
    assert state == planned(PLAN)


@pytest.mark.parametrize("knowledge", ["text", {"notes": "text"}, {"evidence": 3}])
def test_knowledge_that_is_none_is_an_error_that_names_the_key(knowledge: object) -> None:
    other = isinstance(knowledge, dict) and "evidence" in knowledge
    tool = ("record_evidence", {"uri": "artifact://r.md", "summary": "x", "covers": []}) if other else ("add_note", {})
    answer, state = written(tool[0], {"knowledge": knowledge}, **(tool[1] or {"text": "x"}))
    assert "state['knowledge']" in answer["error"]
    assert state["knowledge"] == knowledge


def test_evidence_is_read_as_it_was_written() -> None:
    answer, state = written("record_evidence", uri="artifact://r.md", summary="Who approves", covers=["whole"])
    assert answer["covers"] == ["whole"]
    (record,) = read_state(state).candidates
    assert (record.id, record.uri) == (answer["recorded"], "artifact://r.md")
    assert (record.text, record.covers) == ("Who approves", ("whole",))


def test_an_unknown_item_is_an_error_that_names_the_known_ones() -> None:
    unknown = {"uri": "artifact://r.md", "summary": "x", "covers": ["whole", "a9"]}
    answer, state = written("record_evidence", **unknown)
    assert "no acceptance item is named 'a9': covers takes 'whole', 'a1', 'cited'" in answer["error"]
    assert state == planned(PLAN)
    answer, _ = written("record_evidence", {}, **unknown)
    assert "no acceptance items: leave covers empty" in answer["error"]
