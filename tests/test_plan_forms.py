"""Plans in the forms in which models write them: which step is shown, with which checklist, limits and tools."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from scripted import Chat, call, delete_all, look_up, send_mail

from aether_context import PackPolicy
from aether_context.state import read_state
from aether_context.state.board import TaskBoard, change_plan

PLANS = [
    json.loads(line) for line in (Path(__file__).parent / "plan_forms.jsonl").read_text(encoding="utf-8").splitlines()
]
"""Each with what its author means: the step, and of other fields what is given; ``not`` must not stand there."""


def _plain(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("wanted", PLANS, ids=[wanted["form"] for wanted in PLANS])
def test_the_step_that_its_author_means_is_shown(wanted: dict[str, Any]) -> None:
    shown = read_state({"plan": wanted["plan"]}).step
    assert (wanted["step"] or "") in _plain(shown.text)
    assert bool(shown.text) is bool(wanted["step"])
    items = [_plain(item.text) for item in shown.acceptance]
    assert all(any(text in item for item in items) for text in wanted.get("acceptance", ()))
    assert bool(items) is ("acceptance" in wanted)
    assert not [text for text in wanted.get("not", ()) if text in f"{shown.text}\n{items}"]
    assert shown.tools == (tuple(wanted["tools"]) if "tools" in wanted else None)
    assert all(any(text in line for line in shown.constraints) for text in wanted.get("constraints", ()))
    assert wanted.get("goal", "") in shown.goal
    assert shown.role == wanted.get("role", "")
    assert set(shown.next) >= set(wanted.get("next", ()))


def test_what_a_plan_says_beside_its_fields_is_named_and_read_by_the_model() -> None:
    plan = {
        "step": {"text": "Sell the nails", "acceptance": ["sold"], "why": "the buyer waits at the door"},
        "owner": "ann",
        "substance": {"colour": "red"},
    }
    chat = Chat(state={"plan": plan})
    chat.say("Go on.")
    assert "why: the buyer waits at the door" in chat.sent[0].human()
    told = "\n".join(chat.manifests()[0].degradations)
    assert all(f"{key} is unknown" in told for key in ("plan.step.why", "plan.owner", "plan.substance"))
    chat.replays()


def test_a_text_without_a_step_stays_in_the_request_as_material() -> None:
    text = "I need to know the budget before I can plan how to move the piano."
    chat = Chat(state={"plan": text}, tools=[look_up])
    chat.say("Go on.")
    assert text in chat.sent[0].human()
    assert chat.sent[0].human().index("MEMORY:") < chat.sent[0].human().index(text)
    assert chat.sent[0].declared == ("look_up",)
    chat.replays()


def test_a_board_in_another_form_is_worked_on_and_keeps_what_is_done() -> None:
    state: dict[str, Any] = {
        "plan": "# Trade\n- [x] 1. Sort nails\n- [ ] 2. Sell nails\n- [ ] 3. Eat cake\n\nGoal: Rich\n"
    }
    change_plan(state, lambda board: board.claim("2", by="ann"))
    change_plan(state, lambda board: board.complete("2", by="ann"))
    board = TaskBoard.read(state["plan"])
    assert [(step.text, step.status) for step in board.steps] == [
        ("Sort nails", "done"),
        ("Sell nails", "done"),
        ("Eat cake", "ready"),
    ]
    assert (board.plan.goal, read_state(state).step.text) == ("Rich", "Eat cake")


def test_a_reference_gives_way_to_what_the_board_says() -> None:
    steps = [{"id": "a", "task": "Sort nails"}, {"id": "b", "task": "Sell nails"}]
    state: dict[str, Any] = {"plan": {"tasks": steps, "completed": ["a"], "currentTaskIndex": 1, "owner": "ann"}}
    change_plan(state, lambda board: board.add({"id": "c", "text": "Eat cake"}).claim("c", by="bob"))
    assert read_state(state, worker="bob").step.step_id == "c"
    assert [step.status for step in TaskBoard.read(state["plan"]).steps] == ["done", "ready", "claimed"]
    assert state["plan"]["owner"] == "ann"


def test_a_board_that_is_changed_keeps_a_step_without_tools_without_them() -> None:
    state: dict[str, Any] = {
        "plan": {"todos": [{"id": "a", "task": "Sort nails", "tools": "none"}, {"id": "b", "task": "Sell nails"}]}
    }
    change_plan(state, lambda board: board.claim("a", by="ann"))
    assert read_state(state).step.tools == ()
    change_plan(state, lambda board: board.complete("a", by="ann"))
    assert read_state(state).step.tools is None


@pytest.mark.parametrize("known_by", ["output_key", "planners"])
def test_who_writes_the_plan_is_not_made_its_operator(known_by: str) -> None:
    plan = {"step": {"text": "Find the rule", "tools": ["look_up"]}}
    settings = {"output_key": "plan"} if known_by == "output_key" else {}
    policy = PackPolicy(planners=["clerk"]) if known_by == "planners" else None
    chat = Chat(state={"plan": plan}, tools=[look_up, send_mail], settings=settings, policy=policy)
    chat.say("Plan anew.")
    assert "STEP:" not in chat.sent[0].human()
    assert chat.sent[0].declared == ("look_up", "send_mail")
    assert chat.manifests()[0].validity == "unplanned"
    assert "the plan has no acceptance list" in chat.sent[0].human()


def test_an_operator_goes_on_with_what_a_planner_wrote() -> None:
    answer = "Here it is:\n1. Look the rule up (done)\n2. Mail the rule\n\nTools: send_mail\nDone when: it is sent"
    chat = Chat(script=["ok", call("send_mail", to="a", text="b"), "done"], tools=[look_up, send_mail, delete_all])
    chat.state = {"plan": answer}
    chat.say("Go on.")
    assert chat.sent[0].declared == ("send_mail",)
    assert "Mail the rule" in chat.sent[0].human()


def _cyclic() -> dict[str, Any]:
    plan: dict[str, Any] = {"goal": "g"}
    plan["plan"] = plan
    plan["steps"] = [plan]
    return plan


def _deep(levels: int) -> Any:
    value: Any = {"text": "x"}
    for _ in range(levels):
        value = {"steps": [value]}
    return value


HOSTILE: list[tuple[str, Any]] = [
    ("cyclic", _cyclic()),
    ("deep", _deep(900)),
    ("aliases", "a: &a [x, x]\nb: &b [*a, *a]\nsteps: [*b, *b]\n"),
    ("deep YAML", "steps: " + "[" * 60_000),
    ("deep block", "- " * 30_000),
    ("long YAML", "steps:\n" + "  - a\n" * 9_000),
    ("braces", "{" * 100_000),
    ("open objects", '{"a": ' * 50_000),
    ("fences", "```\n" * 20_000),
    ("tags", "<step>" * 20_000),
    ("entities", '<!DOCTYPE a [<!ENTITY b "xxxxxxxx">]><step>&b;</step>'),
    ("numbers", "1. " * 40_000),
    ("boxes", "- [ ] " * 20_000),
    ("labels", "step: " * 20_000),
    ("arrows", "a ← " * 30_000),
    ("brackets", "(" * 100_000),
    ("strikes", "~~" * 50_000),
    ("steps of any kind", {"steps": [None, 1, 1.5, b"x", [], {}, object(), {"text": {}}, {"text": ["a", {}]}, [1, 2]]}),
    ("keys of any kind", {1: 2, None: 3, (1, 2): [{}], "steps": {None: 1, 2: {"text": "x"}}}),
    (
        "fields of any kind",
        {name: object() for name in ("steps", "step", "done", "edges", "results", "status", "index")},
    ),
    ("many steps", {"steps": [{"text": f"step {at}", "depends_on": [str(at)]} for at in range(1_500)]}),
    ("references", {"steps": [f"Do {at}" for at in range(900)], "done": list(range(900)), "edges": [[1, 2]] * 900}),
]


@pytest.mark.parametrize("plan", [one[1] for one in HOSTILE], ids=[one[0] for one in HOSTILE])
def test_hostile_plans_are_read_in_bounded_time_and_raise_nothing(plan: Any) -> None:
    start = time.process_time()
    read = read_state({"plan": plan})
    assert time.process_time() - start < 10
    assert len(read.problems) <= 60
