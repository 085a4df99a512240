"""The task board: what may follow what, what a state holds afterwards, and who wins a race."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from google.adk.errors._stale_session_error import StaleSessionError
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.sessions.base_session_service import BaseSessionService
from google.adk.sessions.database_session_service import DatabaseSessionService
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from google.adk.sessions.state import State
from hypothesis import given
from hypothesis import strategies as st

from aether_context.errors import BoardError
from aether_context.policy import RetrievalSettings
from aether_context.retrieval import retrieve
from aether_context.state import read_state
from aether_context.state.board import TaskBoard, change_plan


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


def names(steps: Any) -> list[str]:
    return [step.id for step in steps]


# what may follow what


def test_a_step_goes_from_ready_to_claimed_to_done() -> None:
    board = TaskBoard.read(plan())
    assert names(board.ready()) == ["find", "ask"]
    board = board.claim("find", by="ann")
    assert (board.step("find").status, board.step("find").claimed_by) == ("claimed", "ann")
    assert board.plan.current_step == "find"
    assert names(board.ready()) == ["ask"]
    board = board.complete("find", by="ann", notes=["Rule 4 names the limit"])
    assert board.step("find").status == "done"
    assert board.step("find").notes == ("Rule 4 names the limit",)
    assert board.plan.current_step == ""
    assert names(board.ready()) == ["ask", "draft"]


def test_a_released_step_is_ready_again() -> None:
    board = TaskBoard.read(plan()).claim("find", by="ann").release("find", by="ann")
    assert names(board.ready()) == ["find", "ask"]
    assert board.step("find").claimed_by == ""


def test_claiming_ones_own_step_again_changes_nothing() -> None:
    board = TaskBoard.read(plan()).claim("find", by="ann")
    assert board.claim("find", by="ann") == board


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda board: board.claim("find", by="bob"), "step 'find' is claimed by 'ann': claim one of 'ask'"),
        (lambda board: board.claim("draft", by="bob"), "step 'draft' waits for 'find': claim one of 'ask'"),
        (lambda board: board.claim("fly", by="bob"), "no step 'fly': the steps are 'find', 'ask', 'draft'"),
        (lambda board: board.complete("find", by="bob"), "claimed by 'ann', not by 'bob'"),
        (lambda board: board.complete("ask", by="bob"), "step 'ask' is not claimed: claim it first"),
        (lambda board: board.release("ask", by="bob"), "claim it first"),
        (lambda board: board.complete("find", by="ann").claim("find", by="ann"), "step 'find' is done: claim one of"),
        (lambda board: board.complete("find", by="ann").complete("find", by="ann"), "is done already"),
        (lambda board: board.add({"id": "find", "text": "Again"}), "2 steps are named 'find'"),
        (lambda board: board.add({"id": "end", "depends_on": ["fly"]}), "depends on 'fly', not on the board"),
        (lambda board: board.add({"text": "Nameless"}), "has no name"),
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


def test_no_plan_is_an_empty_board() -> None:
    assert TaskBoard.read(None).steps == ()


def test_items_that_need_evidence_are_unproven_until_it_covers_them() -> None:
    items = [{"id": "x", "text": "one", "needs_evidence": True}, {"text": "two"}]
    board = TaskBoard.read({"steps": [{"id": "s", "acceptance": items}]})
    assert [item.id for item in board.unproven("s", [])] == ["x"]
    assert board.unproven("s", ["x"]) == ()


# what a state holds afterwards


def test_a_change_leaves_what_it_does_not_know_and_assigns_the_key_anew() -> None:
    held = plan(owner="ann", goal="A guide")
    state = {"plan": held}
    before = copy.deepcopy(held)
    change_plan(state, lambda board: board.claim("find", by="ann"))
    assert held == before
    assert state["plan"] is not held
    assert state["plan"]["owner"] == "ann"
    step = state["plan"]["steps"][0]
    assert step == {**before["steps"][0], "status": "claimed", "claimed_by": "ann"}
    assert state["plan"]["steps"][1:] == before["steps"][1:]
    change_plan(state, lambda board: board.release("find", by="ann"))
    assert TaskBoard.read(state["plan"]) == TaskBoard.read(before)
    json.dumps(state)


def test_a_change_that_is_not_allowed_leaves_the_state_as_it_was() -> None:
    state = {"plan": plan()}
    before = copy.deepcopy(state)
    with pytest.raises(BoardError):
        change_plan(state, lambda board: board.claim("draft", by="ann"))
    with pytest.raises(BoardError, match="20000"):
        change_plan(state, lambda board: board.claim("find", "ann").complete("find", "ann", ["x" * 20_001]))
    assert state == before


def test_a_first_step_makes_a_plan() -> None:
    state: dict[str, Any] = {}
    change_plan(state, lambda board: board.add({"id": "s1", "text": "Begin", "acceptance": ["Begun"]}))
    assert state == {"plan": {"steps": [{"id": "s1", "text": "Begin", "acceptance": [{"text": "Begun"}]}]}}


def test_working_notes_of_a_step_go_with_it_when_it_is_done() -> None:
    notes = [
        {"id": "n1", "text": "The limit is 200", "step_id": "find"},
        "A note of the whole task",
        {"id": "n2", "text": "The clerk is Bo", "step_id": "ask"},
        {"id": "n3", "step_id": "find"},
    ]
    state = {"plan": plan(), "knowledge": {"notes": notes, "more": 1}}
    change_plan(state, lambda board: board.claim("find", "ann"))
    assert state["knowledge"]["notes"] is notes
    change_plan(state, lambda board: board.complete("find", "ann", ["Rule 4", "The limit is 200"]))
    assert state["plan"]["steps"][0]["notes"] == ["Rule 4", "The limit is 200"]
    assert state["knowledge"] == {"notes": [notes[1], notes[2], notes[3]], "more": 1}


# what is read of it


def test_the_current_step_is_the_named_one_else_the_first_claimed_else_the_first_ready() -> None:
    held = plan()
    assert read_state({"plan": held}).step.step_id == "find"
    held["steps"][0]["status"] = "done"
    assert read_state({"plan": held}).step.step_id == "ask"
    held["steps"][2] |= {"status": "claimed", "claimed_by": "bob"}
    assert read_state({"plan": held}).step.step_id == "draft"
    held["current_step"] = "ask"
    assert read_state({"plan": held}).step.step_id == "ask"
    assert read_state({"plan": held}, worker="bob").step.step_id == "draft"
    held["step"] = "Something else"
    assert read_state({"plan": held}).step.text == "Something else"


def test_a_board_without_a_step_left_is_valid_and_one_without_steps_is_not() -> None:
    held = plan()
    for step in held["steps"]:
        step["status"] = "done"
    read = read_state({"plan": held})
    assert (read.validity, read.step.text, read.step.task) == ("valid", "", "Write the guide")
    assert read_state({"plan": {"task": "Write", "steps": []}}).invalid_reason.startswith("the plan has no step")
    assert (
        read_state({"plan": {"steps": [{"id": "a", "text": "A"}]}}).invalid_reason == "the plan has no acceptance list"
    )


def test_a_step_says_more_than_the_plan() -> None:
    own = {"expected_tool_calls": 2, "open_questions": ["Which?"], "next": "Rest"}
    held = {"expected_tool_calls": 9, "open_questions": [], "next": ["Go on"], "stop_when": "Lost"}
    read = read_state({"plan": {**held, "steps": [{"id": "a", "text": "A", "acceptance": ["x"], **own}]}})
    step = read.step
    assert (step.expected_tool_calls, step.open_questions, step.next, step.stop_when) == (
        2,
        ("Which?",),
        ("Rest",),
        ("Lost",),
    )
    step = read_state({"plan": {**held, "steps": [{"id": "a", "text": "A", "acceptance": ["x"]}]}}).step
    assert (step.expected_tool_calls, step.open_questions, step.next) == (9, (), ("Go on",))


def test_a_step_that_cannot_be_read_costs_no_other() -> None:
    held = plan(current_step="gone")
    held["steps"][0]["status"] = "secret"
    read = read_state({"plan": held})
    assert read.step.step_id == "find"
    assert read.problems == (
        "state plan.steps.0.status was ignored: it should be 'ready', 'claimed' or 'done'",
        "state plan.steps.0.colour is unknown and was not read",
        "state plan.current_step was ignored: no step has that name",
    )
    held["steps"][2]["depends_on"] = ["flight"]
    assert "state plan.steps.2 never gets ready: it depends on a step that is not there" in read_state(
        {"plan": held}
    ).problems
    read = read_state({"plan": plan(steps={"a": 1})})
    assert read.validity == "invalid"
    assert read.problems == ("state plan.steps.0 was ignored: it is neither a mapping nor a text",)


def test_a_note_expires_with_its_step_or_its_time() -> None:
    held = plan()
    held["steps"][0]["status"] = "done"
    notes = [
        {"id": "done", "text": "about the rules", "step_id": "find"},
        {"id": "open", "text": "about the clerk", "step_id": "ask"},
        {"id": "old", "text": "about the day", "time": 1_000.0, "ttl_seconds": 60},
        {"id": "both", "text": "about the hour", "time": 1_000.0, "ttl_seconds": 600, "expires": 1_010.0},
        {"id": "timeless", "text": "about nothing", "ttl_seconds": 60},
    ]
    read = read_state({"plan": held, "knowledge": {"notes": notes}})
    assert "state knowledge.notes.4.ttl_seconds was ignored: the note has no time" in read.problems
    ends = {one.id: one.expires for one in read.candidates}
    assert (ends["open"], ends["old"], ends["both"], ends["timeless"]) == (None, 1_060.0, 1_010.0, None)
    assert ends["done"] is not None
    assert ends["done"] < 0
    found = retrieve(read.candidates, settings=RetrievalSettings(), k=9, now=500.0, tail="")
    assert [one.candidate.id for one in found.left if one.reason == "expired"] == ["done"]


def test_a_checkpoint_is_read_by_the_step_that_depends_on_it() -> None:
    held = plan()
    held["steps"][0] |= {"status": "done", "notes": ["Rule 4 names the limit"]}
    assert [one.text for one in read_state({"plan": {**held, "current_step": "ask"}}).candidates] == []
    read = read_state({"plan": {**held, "current_step": "draft"}})
    assert [(one.layer, one.text) for one in read.candidates] == [("memory", "Rule 4 names the limit")]


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


# races


def test_of_two_tasks_that_claim_one_step_one_gets_it() -> None:
    state = {"plan": plan()}

    async def claim(by: str) -> str:
        await asyncio.sleep(0)
        try:
            change_plan(state, lambda board: board.claim("find", by=by))
        except BoardError as error:
            return str(error)
        return "won"

    async def race() -> list[str]:
        return list(await asyncio.gather(claim("ann"), claim("bob")))

    results = asyncio.run(race())
    assert sorted(results, key=len)[0] == "won"
    assert "is claimed by" in max(results, key=len)


def test_of_many_threads_each_step_goes_to_one_and_no_change_is_lost() -> None:
    steps = [{"id": f"s{at}", "text": "x", "acceptance": ["y"]} for at in range(20)]
    state = State({"plan": {"steps": steps}}, {})
    start = Barrier(8)

    def work(by: str) -> list[str]:
        start.wait()
        won = []
        for step in steps:
            try:
                change_plan(state, lambda board, step=step: board.claim(step["id"], by=by))  # type: ignore[misc]
            except BoardError:
                continue
            won.append(step["id"])
        return [str(name) for name in won]

    with ThreadPoolExecutor(8) as pool:
        wins = list(pool.map(work, [f"w{at}" for at in range(8)]))
    assert sorted(name for won in wins for name in won) == sorted(str(step["id"]) for step in steps)
    board = TaskBoard.read(state["plan"])
    assert all(step.claimed_by == f"w{at}" for at, won in enumerate(wins) for step in board.steps if step.id in won)


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
