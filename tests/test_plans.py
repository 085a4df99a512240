"""Plans as models write them: other spellings, odd fields, broken steps; and the scope of tools that is kept."""

from __future__ import annotations

import dataclasses
import json
import logging
from typing import Any

import pytest
from pydantic import BaseModel
from scripted import Chat, delete_all, look_up, send_mail

from aether_context import PackPolicy
from aether_context.adk.packer import InvalidPlan
from aether_context.state import read_state

TOOLS = (look_up, send_mail, delete_all)
STEP = {"id": "s1", "text": "Find the rule", "acceptance": ["the rule is cited"], "tools": ["look_up"]}


def planned(plan: object, **settings: Any) -> Chat:
    chat = Chat(state={"plan": plan}, tools=TOOLS, **settings)
    chat.say("please go on")
    chat.replays()
    return chat


def notes(chat: Chat) -> str:
    return "\n".join(chat.manifests()[-1].degradations)


ODD: list[tuple[str, dict[str, Any], str]] = [
    ("risk", {"constraints": {"risk": "High"}}, ""), ("risk with a blank", {"constraints": {"risk": "HIGH "}}, ""),
    ("half a risk", {"constraints": {"risk": "med"}}, ""),
    ("no risk", {"constraints": {"risk": "huge"}}, "plan.constraints.risk"),
    ("a risk that is denied", {"constraints": {"risk": "not high"}}, "plan.constraints.risk"),
    ("a risk in a range", {"constraints": {"risk": "Risk level: medium to high"}}, ""),
    ("latency", {"constraints": {"latency_seconds": "8s"}}, ""),
    ("a vague latency", {"constraints": {"latency_seconds": "soon"}}, ""),
    ("no constraints", {"constraints": None}, ""),
    ("constraints of another kind", {"constraints": 7}, "plan.constraints"), ("no role", {"role": None}, ""),
    ("a role of its own shape", {"role": {"level": 3}}, "plan.role"),
    ("a number of calls", {"expected_tool_calls": "3 calls"}, ""),
    ("too few calls", {"expected_tool_calls": -1}, "plan.expected_tool_calls"),
    ("a profile in capitals", {"profile": "Research"}, ""), ("no profile", {"profile": "poetry"}, "plan.profile"),
    ("questions as a text", {"open_questions": "Which rule?"}, ""),
    ("questions of any kind", {"open_questions": [{"x": {}}, "Which rule?"]}, "plan.open_questions.0"),
    ("a number for an id", {"task_id": 42}, ""), ("no goal", {"goal": None}, ""),
    ("a key of another name", {"open_question_list": ["x"]}, ""),
    ("a limit beside the others", {"risk": "High"}, ""),
]  # fmt: skip


STEPS: list[tuple[str, dict[str, Any], str]] = [
    ("an item without text", {"acceptance": [{"id": "a0"}, "the rule is cited"]}, "plan.step.acceptance.0"),
    ("an item that is none", {"acceptance": [None, 7, "the rule is cited"]}, "plan.step.acceptance.1"),
    ("one item", {"acceptance": {"text": "the rule is cited"}}, ""),
    ("items by name", {"acceptance": {"a1": "the rule is cited"}}, ""),
    ("items as bullets", {"acceptance": "- the rule is cited\n- in full"}, ""),
    ("items as JSON", {"acceptance": '[{"text": "the rule is cited"}]'}, ""),
    ("a number for an id", {"id": 3}, ""),
    ("a status in words", {"status": "In Progress"}, ""),
    ("another status", {"status": "lost"}, "plan.step.status"),
    ("notes of any kind", {"notes": [{"text": "one"}, {"note": "two"}, 3]}, "plan.step.notes.1"),
    ("keys in capitals", {"Tools": ["look_up"], "tools": None}, ""),
    ("items by description", {"acceptance": [{"description": "the rule is cited"}]}, ""),
    ("items by criterion", {"acceptance": [{"id": "a1", "Criterion": "the rule is cited"}]}, ""),
    ("items with a name", {"acceptance": [{"name": "the rule is cited", "done": False}]}, ""),
    ("a name and a text", {"acceptance": [{"name": "a1", "text": "the rule is cited"}]}, ""),
    ("another key", {"acceptance_criteria": ["x"]}, ""),
    ("a misspelled key beside the right one", {"acceptence": ["y"]}, "did you mean 'acceptance'?"),
    ("a long text", {"text": "Find the rule " * 5_000}, "plan.step.text was cut"),
]


FIELDS = [
    *(pytest.param({"step": STEP, **extra}, said, id=name) for name, extra, said in ODD),
    *(pytest.param({"step": {**STEP, **extra}}, said, id=f"a step with {name}") for name, extra, said in STEPS),
]


@pytest.mark.parametrize(("plan", "said"), FIELDS)
def test_an_odd_field_costs_no_other(plan: dict[str, Any], said: str) -> None:
    chat = planned(plan)
    assert chat.manifests()[0].validity == "valid"
    assert chat.sent[0].declared == ("look_up",)
    assert "Find the rule" in chat.sent[0].human()
    assert "the rule is cited" in chat.sent[0].human()
    assert (said in notes(chat)) if said else (notes(chat) == "")


NAMED: list[Any] = [
    ["Look_Up"], ["look_up(key)"], "look_up", "look_up(key, more)", "`look_up`", ["look-up"], ["LookUp"],
    ["functions.look_up"], [{"name": "look_up", "purpose": "finds"}],
    [{"type": "function", "function": {"name": "look_up"}}], {"look_up": {"key": "str"}},
    {"look_up": True, "delete_all": False}, {"names": ["look_up"]}, '["look_up"]', "look_up, no_such_tool",
    ["look_up", None, 7], ["look_up: finds a key"], "- look_up\n- look_up(key)",
]  # fmt: skip


@pytest.mark.parametrize("tools", NAMED, ids=str)
@pytest.mark.parametrize("place", ["step", "plan", "state", "capital", "misspelled"])
def test_tools_are_known_however_they_are_written(tools: Any, place: str) -> None:
    step = {key: value for key, value in STEP.items() if key != "tools"}
    state: dict[str, Any] = {"plan": {"step": step}}
    match place:
        case "step":
            state["plan"]["step"] = {**step, "tools": tools}
        case "plan":
            state["plan"]["tools"] = tools
        case "state":
            state["tools"] = tools
        case "capital":
            state["plan"]["step"] = {**step, "Tools": tools}
        case "misspelled":
            state["plan"]["step"] = {**step, "allowed_tools": tools}
    chat = Chat(state=state, tools=TOOLS)
    chat.say("go")
    assert chat.sent[0].declared == ("look_up",)
    assert chat.sent[0].dispatched == ("look_up",)


UNREAD: list[Any] = [42, [None], [7, {}], [""], [[]], '["', "{'", False]


@pytest.mark.parametrize("tools", UNREAD, ids=repr)
def test_tools_that_cannot_be_read_are_none_and_the_plan_is_invalid(tools: Any) -> None:
    chat = planned({"step": {**STEP, "tools": tools}})
    assert chat.sent[0].declared == ()
    assert "Find the rule" in chat.sent[0].human()
    assert "tool" in notes(chat)
    if not isinstance(tools, str):
        assert chat.manifests()[0].validity == "invalid"
        with pytest.raises(RuntimeError) as caught:
            planned({"step": {**STEP, "tools": tools}}, policy=PackPolicy(on_invalid="raise"))
        assert isinstance(caught.value.__cause__, InvalidPlan)


@pytest.mark.parametrize("tools", [None, [], "", "all", "*"], ids=repr)
def test_no_tools_named_is_no_scope(tools: Any) -> None:
    chat = planned({"step": {**STEP, "tools": tools}})
    assert chat.sent[0].declared == ("look_up", "send_mail", "delete_all")
    assert chat.manifests()[0].validity == "valid"


BROKEN: list[tuple[str, Any]] = [
    ("a step that is a number", {"step": 17}),
    ("a step that is a list", {"step": ["a", "b"]}),
    ("steps that are a number", {"steps": 5}),
    ("steps of numbers", {"steps": [5, None]}),
    ("the first step", {"steps": [5, {"id": "2", "text": "Second", "acceptance": ["x"], "tools": ["look_up"]}]}),
    ("JSON that is none", '{"step": {"text": "Find", tools: look_up'),
    ("JSON that ends early", json.dumps({"step": {**STEP, "tools": ["look_up", "send_mail"]}})[:80]),
    ("a list of numbers", [1, 2]),
]


@pytest.mark.parametrize("plan", [one[1] for one in BROKEN], ids=[one[0] for one in BROKEN])
def test_a_broken_step_is_invalid_and_its_scope_is_closed(plan: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="aether_context"):
        chat = planned(plan)
    manifest = chat.manifests()[0]
    assert manifest.validity == "invalid"
    assert manifest.invalid_reason
    assert set(chat.sent[0].declared) <= {"look_up"}
    assert chat.sent[0].human().endswith("please go on")
    assert sum("the plan is invalid" in record.getMessage() for record in caplog.records) == 1
    with pytest.raises(RuntimeError) as caught:
        planned(plan, policy=PackPolicy(on_invalid="raise"))
    assert isinstance(caught.value.__cause__, InvalidPlan)
    chat = Chat(state={"plan": plan}, tools=TOOLS, policy=PackPolicy(on_invalid="respond"))
    (event,) = chat.say("go")
    assert event.error_code == "invalid_plan"
    assert chat.sent == []


class Step(BaseModel):
    id: str = "s1"
    text: str = "Find the rule"
    acceptance: list[str] = ["the rule is cited"]
    tools: list[str] = ["look_up"]


class Plan(BaseModel):
    goal: str = "A letter"
    step: Step = Step()


@dataclasses.dataclass
class PlanData:
    step: dict[str, Any]
    goal: str = "A letter"


WHOLE = {"goal": "A letter", "step": STEP}
FORMS: list[tuple[str, Any]] = [
    ("JSON", json.dumps(WHOLE)),
    ("JSON in a fence", f"Here is the plan:\n```json\n{json.dumps(WHOLE, indent=2)}\n```\nShall I start?"),
    ("JSON with words around it", f"The plan: {json.dumps(WHOLE)} That is all."),
    ("Python", repr(WHOLE)),
    ("a model", Plan()),
    ("a dataclass", PlanData(STEP)),
    ("a step as JSON", {"goal": "A letter", "step": json.dumps(STEP)}),
    ("steps by name", {"goal": "A letter", "steps": {"s1": {**STEP, "id": "s1"}, "s2": "Write"}}),
    ("steps as JSON", {"goal": "A letter", "steps": json.dumps([STEP])}),
    ("capital keys", {"Goal": "A letter", "Step": {key.title(): value for key, value in STEP.items()}}),
    ("the step by its name", {"goal": "A letter", "step": "s1", "steps": [{"id": "s0", "text": "No"}, STEP]}),
    ("the step by its number", {"goal": "A letter", "step": {"id": 1}, "steps": [{"id": "s0", "text": "No"}, STEP]}),
]


@pytest.mark.parametrize("plan", [one[1] for one in FORMS], ids=[one[0] for one in FORMS])
def test_a_plan_is_read_in_any_form(plan: Any) -> None:
    chat = planned(plan)
    manifest = chat.manifests()[0]
    assert (manifest.validity, manifest.step_id) == ("valid", "s1")
    assert chat.sent[0].declared == ("look_up",)
    assert "A letter" in chat.sent[0].human()


CURRENT: list[Any] = [
    "s2", "S2", " s2 ", "s-2", 2, "2", "step 2", "Step_2", "#2", "Write it", "s2: Write it", {"id": "s2"},
]  # fmt: skip


@pytest.mark.parametrize("name", CURRENT, ids=str)
def test_the_current_step_is_known_by_name_number_or_title(name: Any) -> None:
    steps = [{"id": f"s{at}", "text": text, "acceptance": ["x"]} for at, text in enumerate(("Find", "Write it"), 1)]
    assert read_state({"plan": {"steps": steps, "current_step": name}}).step.step_id == "s2"
    texts = [step["text"] for step in steps]
    if name in (2, "2", "step 2", "Step_2", "#2"):
        read = read_state({"plan": {"steps": texts, "acceptance": ["x"], "current_step": name}})
        assert (read.step.text, read.validity) == ("Write it", "valid")


def test_a_current_step_that_is_not_there_is_invalid_and_said() -> None:
    chat = planned({"steps": [STEP], "current_step": "s9"})
    assert chat.manifests()[0].validity == "invalid"
    assert chat.sent[0].declared == ("look_up",)
    assert "plan.current_step was ignored: no step has that name" in notes(chat)


def test_a_warning_is_logged_once_and_quotes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    chat = Chat(state={"plan": {"step": STEP, "constraints": {"risk": "secret"}}}, tools=TOOLS)
    with caplog.at_level(logging.WARNING, logger="aether_context"):
        chat.say("one", "two", "three")
    told = [record.getMessage() for record in caplog.records if "plan.constraints.risk" in record.getMessage()]
    assert len(told) == 1
    assert "secret" not in told[0]


@pytest.mark.parametrize(
    "plan",
    [
        {"goal": "A letter", "plan_steps": [STEP]},
        {"output": json.dumps({"step": STEP})},
        {"step": {"current": STEP}},
        "step:\n  text: Find the rule\n  tools:\n    - look_up\n",
        "## Step\nFind the rule\n## Allowed tools\n- look_up\n",
        {"goal": "A letter", "phases": [{"toolsToUse": ["look_up"]}]},
        {"goal": "A letter", "phases": [{"tolls": ["look_up"]}]},
    ],
)
def test_a_list_of_tools_is_read_wherever_the_step_stands(plan: Any) -> None:
    assert planned(plan).sent[0].declared == ("look_up",)


@pytest.mark.parametrize(
    "plan",
    [
        {"goal": "A letter", "notice": "Find the rule\ntools: look_up\n"},
        {"goal": "A letter", "notice": {"remarks": {"toolsToUse": ["look_up"]}}},
        {"goal": "A letter", "notices": ["word " * 100] * 1_000},
    ],
)
def test_a_list_of_tools_in_a_place_that_is_not_read_closes_the_scope(plan: Any) -> None:
    chat = planned(plan)
    assert chat.manifests()[0].validity == "invalid"
    assert chat.sent[0].declared == ()
