"""The task board: what may follow what, what a state holds afterwards, and who wins a race."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
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
