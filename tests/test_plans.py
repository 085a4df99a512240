"""Plans as models write them: other spellings, odd fields, broken steps; and the scope of tools that is kept."""

from __future__ import annotations

import dataclasses
import json
import logging
from typing import Any

import pytest
from pydantic import BaseModel
from scripted import Chat, call, delete_all, look_up, send_mail

from aether_context import PackPolicy
from aether_context.adk.packer import InvalidPlan
from aether_context.adk.tools import planning_tools
from aether_context.errors import StepTooLarge
from aether_context.state import read_state
from aether_context.state.board import TaskBoard, change_plan

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
    ("risk", {"constraints": {"risk": "High"}}, ""),
    ("risk with a blank", {"constraints": {"risk": "HIGH "}}, ""),
    ("half a risk", {"constraints": {"risk": "med"}}, ""),
    ("no risk", {"constraints": {"risk": "huge"}}, "plan.constraints.risk"),
    ("a risk that is denied", {"constraints": {"risk": "not high"}}, "plan.constraints.risk"),
    ("a risk in a range", {"constraints": {"risk": "Risk level: medium to high"}}, ""),
    ("latency", {"constraints": {"latency_seconds": "8s"}}, ""),
    ("a vague latency", {"constraints": {"latency_seconds": "soon"}}, "plan.constraints.latency_seconds"),
    ("no constraints", {"constraints": None}, ""),
    ("constraints of another kind", {"constraints": 7}, "plan.constraints"),
    ("no role", {"role": None}, ""),
    ("a role of its own shape", {"role": {"level": 3}}, "plan.role"),
    ("a number of calls", {"expected_tool_calls": "3 calls"}, ""),
    ("too few calls", {"expected_tool_calls": -1}, "plan.expected_tool_calls"),
    ("a profile in capitals", {"profile": "Research"}, ""),
    ("no profile", {"profile": "poetry"}, "plan.profile"),
    ("questions as a text", {"open_questions": "Which rule?"}, ""),
    ("questions of any kind", {"open_questions": [{"x": {}}, "Which rule?"]}, "plan.open_questions.0"),
    ("a number for an id", {"task_id": 42}, ""),
    ("no goal", {"goal": None}, ""),
    ("a key of another name", {"open_question_list": ["x"]}, ""),
    ("a limit beside the others", {"risk": "High"}, ""),
    ("a key with a slip", {"expected_tool_cals": 3}, "did you mean 'expected_tool_calls'"),
    ("a key of the application's", {"colour": "red"}, "plan.colour is unknown and was not read"),
]


@pytest.mark.parametrize(("extra", "said"), [one[1:] for one in ODD], ids=[one[0] for one in ODD])
def test_an_odd_field_costs_no_other(extra: dict[str, Any], said: str) -> None:
    chat = planned({"step": STEP, **extra})
    manifest = chat.manifests()[0]
    assert manifest.validity == "valid"
    assert chat.sent[0].declared == ("look_up",)
    assert "Find the rule" in chat.sent[0].human()
    assert "the rule is cited" in chat.sent[0].human()
    assert (said in notes(chat)) if said else (notes(chat) == "")


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


@pytest.mark.parametrize(("extra", "said"), [one[1:] for one in STEPS], ids=[one[0] for one in STEPS])
def test_an_odd_field_of_a_step_costs_no_other(extra: dict[str, Any], said: str) -> None:
    chat = planned({"step": {**STEP, **extra}})
    assert chat.manifests()[0].validity == "valid"
    assert chat.sent[0].declared == ("look_up",)
    assert "Find the rule" in chat.sent[0].human()
    assert "the rule is cited" in chat.sent[0].human()
    assert (said in notes(chat)) if said else (notes(chat) == "")


NAMED: list[Any] = [
    ["Look_Up"],
    ["look_up(key)"],
    "look_up",
    "look_up(key, more)",
    "`look_up`",
    ["look-up"],
    ["LookUp"],
    ["functions.look_up"],
    [{"name": "look_up", "purpose": "finds"}],
    [{"type": "function", "function": {"name": "look_up"}}],
    {"look_up": {"key": "str"}},
    {"look_up": True, "delete_all": False},
    {"names": ["look_up"]},
    '["look_up"]',
    "look_up, no_such_tool",
    ["look_up", None, 7],
    ["look_up: finds a key"],
    "- look_up\n- look_up(key)",
]


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


def test_tools_that_no_agent_has_leave_the_essential_ones_and_those_of_the_policy() -> None:
    policy = PackPolicy(tools={"always": ["send_mail"]}, offload={"tools": {"send_mail": "always"}})
    chat = planned({"step": {**STEP, "tools": ["fly"]}}, policy=policy)
    assert set(chat.sent[0].declared) == {"send_mail", "read_artifact", "search_artifact"}
    assert "not declared: fly" in notes(chat)


@pytest.mark.parametrize("tools", [None, [], "", "all", "*"], ids=repr)
def test_no_tools_named_is_no_scope(tools: Any) -> None:
    chat = planned({"step": {**STEP, "tools": tools}})
    assert chat.sent[0].declared == ("look_up", "send_mail", "delete_all")
    assert chat.manifests()[0].validity == "valid"


def test_two_tools_that_are_spelled_alike_are_told_apart_by_their_capitals() -> None:
    def lookup(key: str) -> str:
        """Looks up."""
        return key

    chat = Chat(state={"plan": {"step": {**STEP, "tools": ["LOOKUP"]}}}, tools=[look_up, lookup, send_mail])
    chat.say("go")
    assert chat.sent[0].declared == ()
    chat = Chat(state={"plan": {"step": {**STEP, "tools": ["lookup"]}}}, tools=[look_up, lookup, send_mail])
    chat.say("go")
    assert chat.sent[0].declared == ("lookup",)


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


def test_the_answer_to_a_planner_names_the_fields() -> None:
    step = {"id": "s1", "sentence": "Find the rule", "acceptance": [{"id": "a1"}]}
    chat = Chat(state={"plan": {"step": step}}, policy=PackPolicy(on_invalid="respond"))
    (event,) = chat.say("go")
    assert event.content is not None
    text = (event.content.parts or [])[0].text or ""
    assert "no step and no acceptance list" in text
    assert "plan.step.sentence is unknown and was not read" in text
    assert "plan.step.acceptance.0 was ignored: it has no text" in text


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


@pytest.mark.parametrize("value", ["premium", "We first search, then write.", 5, True, "", {}, []], ids=repr)
def test_what_is_no_plan_closes_nothing(value: Any) -> None:
    chat = Chat(state={"plan": value}, tools=TOOLS)
    chat.say("go")
    assert chat.sent[0].declared == ("look_up", "send_mail", "delete_all")
    manifest = chat.manifests()[0]
    assert manifest.validity == ("unplanned" if value in ("", []) else "invalid")


CURRENT: list[Any] = [
    "s2",
    "S2",
    " s2 ",
    "s-2",
    2,
    "2",
    "step 2",
    "Step_2",
    "#2",
    "Write it",
    "s2: Write it",
    {"id": "s2"},
]


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


def test_constraints_that_are_no_fields_are_shown_as_they_stand() -> None:
    limits = {"max_cost": "$0.20", "latency_seconds": "8s", "Risk": "High", "regions": ["EU", "US"], "deadline": "soon"}
    chat = planned({"step": STEP, "constraints": limits})
    text = chat.sent[0].human()
    for line in ("max_cost: $0.20", "latency: at most 8 s", "risk: high", "deadline: soon"):
        assert f"- {line}" in text
    assert "EU" in text
    assert "US" in text
    chat = planned({"step": STEP, "constraints": [{"name": "cost", "value": "$0.20"}, {"risk": "High"}, "no guesses"]})
    assert "- cost: $0.20" in chat.sent[0].human()
    assert "- no guesses" in chat.sent[0].human()
    assert read_state({"plan": {"step": STEP, "constraints": [{"risk": "High"}]}}).step.risk == "high"


def test_limits_that_cannot_be_read_are_shown_and_said() -> None:
    chat = planned({"step": STEP, "constraints": {"latency_seconds": "under a minute", "token_budget": "40k"}})
    assert "- latency_seconds: under a minute" in chat.sent[0].human()
    assert "- token budget: 40000" in chat.sent[0].human()
    assert "plan.constraints.latency_seconds" in notes(chat)


def test_a_warning_is_logged_once_and_quotes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    chat = Chat(state={"plan": {"step": STEP, "constraints": {"risk": "secret"}}}, tools=TOOLS)
    with caplog.at_level(logging.WARNING, logger="aether_context"):
        chat.say("one", "two", "three")
    told = [record.getMessage() for record in caplog.records if "plan.constraints.risk" in record.getMessage()]
    assert len(told) == 1
    assert "secret" not in told[0]


def test_evidence_covers_the_item_that_stood_at_its_place() -> None:
    plan = {"step": {**STEP, "acceptance": [{"id": "x"}, "the rule is cited", "in full"]}}
    assert [item.id for item in read_state({"plan": plan}).step.acceptance] == ["a2", "a3"]


def test_a_board_that_a_model_wrote_can_be_worked_on() -> None:
    plan = json.dumps(
        {"Steps": {"s1": {**STEP, "Status": "TODO"}, "S2": {"text": "Write", "depends_on": "S1"}}, "more": 1}
    )
    chat = Chat(
        script=[call("claim_step", step_id="s1"), call("complete_step", step_id="s1"), call("list_steps"), "ok"],
        tools=planning_tools(),
        state={"plan": plan},
    )
    events = chat.say("go")
    answers = [one.response for event in events for one in event.get_function_responses()]
    assert "claimed" in answers[0]
    assert answers[1]["done"] == "s1"
    assert answers[2]["can_be_claimed"] == ["S2"]


def test_a_change_keeps_what_it_does_not_read() -> None:
    state: dict[str, Any] = {"plan": {"risk": 1, "constraints": {"risk": "odd"}, "steps": [{**STEP, "colour": "red"}]}}
    change_plan(state, lambda board: board.claim("s1", by="ann"))
    assert state["plan"]["constraints"] == {"risk": "odd"}
    assert state["plan"]["steps"][0]["colour"] == "red"
    assert TaskBoard.read(state["plan"]).step("s1").status == "claimed"


def test_knowledge_is_read_item_by_item() -> None:
    knowledge = {
        "notes": ["one", {"text": "two", "time": "2026-01-20", "ttl_seconds": "1 hour"}, {"remark": "x"}, 7],
        "memories": "User prefers concise output",
        "entities": {"Acme": "a customer"},
        "evidence": [{"uri": "artifact://a.md", "covers": "a1, a2", "time": "2026-01-20T10:00:00Z"}, {"url": "b"}],
    }
    read = read_state({"knowledge": json.dumps(knowledge)})
    assert [one.text for one in read.candidates if one.source == "note"] == ["one", "two"]
    assert [one.text for one in read.candidates if one.source == "entity"] == ["Acme: a customer"]
    assert [one.text for one in read.candidates if one.source == "memory"] == ["User prefers concise output"]
    evidence = [one for one in read.candidates if one.layer == "evidence"]
    assert evidence[0].covers == ("a1", "a2")
    assert evidence[0].time == 1_768_903_200.0
    said = "\n".join(read.problems)
    assert "knowledge.notes.2 was ignored: it has no text" in said
    assert "knowledge.notes.3 was ignored" in said
    assert [one.uri for one in evidence] == ["artifact://a.md", "b"]


def test_hostile_plans_are_read_fast_and_reported_briefly() -> None:
    for plan in (
        "[" * 100_000,
        '{"a":' * 50_000,
        {"step": {f"textt{n}": n for n in range(20_000)}},
        ["- " * 50_000] * 3,
    ):
        read = read_state({"plan": plan})
        assert len(read.problems) <= 60
        assert sum(map(len, read.problems)) < 20_000


class Phase(BaseModel):
    name: str = "search"
    tools: list[str] = ["look_up"]


@dataclasses.dataclass
class Stage:
    name: str = "search"
    tools: tuple[str, ...] = ("look_up",)


ELSEWHERE: list[tuple[str, Any]] = [
    ("steps by another name", {"goal": "A letter", "plan_steps": [STEP]}),
    ("JSON by another name", {"output": json.dumps({"step": STEP})}),
    ("a step in a step", {"step": {"current": STEP}}),
    ("YAML", "step:\n  text: Find the rule\n  tools:\n    - look_up\n"),
    ("Markdown", "## Step\nFind the rule\n## Allowed tools\n- look_up\n"),
    ("tools by another name", {"goal": "A letter", "phases": [{"toolsToUse": ["look_up"]}]}),
    ("tools with a slip", {"goal": "A letter", "phases": [{"tolls": ["look_up"]}]}),
    ("a model", {"goal": "A letter", "phases": [Phase()]}),
    ("a dataclass", {"goal": "A letter", "phases": [Stage()]}),
]


@pytest.mark.parametrize("plan", [one[1] for one in ELSEWHERE], ids=[one[0] for one in ELSEWHERE])
def test_a_list_of_tools_is_read_wherever_the_step_stands(plan: Any) -> None:
    assert planned(plan).sent[0].declared == ("look_up",)


@pytest.mark.parametrize(
    "plan",
    [
        {"goal": "A letter", "notice": "Find the rule\ntools: look_up\n"},
        {"goal": "A letter", "notice": {"remarks": {"toolsToUse": ["look_up"]}}},
        {"goal": "A letter", "notices": [Phase()]},
        {"goal": "A letter", "notices": ["word " * 100] * 1_000},
    ],
    ids=["in a text", "in a mapping", "in a model", "more than is looked at"],
)
def test_a_list_of_tools_in_a_place_that_is_not_read_closes_the_scope(plan: Any) -> None:
    chat = planned(plan)
    assert chat.manifests()[0].validity == "invalid"
    assert chat.sent[0].declared == ()


@pytest.mark.parametrize("label", [{"kind": "cost"}, ["cost"], 7], ids=["a mapping", "a list", "a number"])
def test_a_limit_whose_name_is_no_text_is_shown_as_it_stands(label: Any) -> None:
    read = read_state({"plan": {"step": STEP, "constraints": {"name": label, "value": "below 5 USD"}}})
    assert read.validity == "valid"
    assert "value: below 5 USD" in read.step.constraints


def test_a_plan_in_a_mapping_of_its_own_is_read() -> None:
    chat = planned({"plan": {"goal": "A letter", "step": {**STEP, "tools": ["look_up"]}}})
    assert chat.manifests()[0].validity == "valid"
    assert chat.sent[0].declared == ("look_up",)
    assert "Find the rule" in chat.sent[0].human()


def test_a_checklist_may_say_by_name_what_is_done() -> None:
    chat = planned({"step": {**STEP, "acceptance": {"the rule is cited": False, "the date is given": True}}})
    assert chat.manifests()[0].validity == "valid"
    assert "a2: the date is given" in chat.sent[0].human()


@pytest.mark.parametrize("tools", ["look_up、send_mail", "look_up，send_mail", ["mail/look_up", "office/send_mail"]])
def test_tools_are_known_between_wide_commas_and_behind_slashes(tools: Any) -> None:
    chat = planned({"step": {**STEP, "tools": tools}})
    assert chat.sent[0].declared == ("look_up", "send_mail")


def test_a_step_that_is_too_large_is_raised_as_what_it_is() -> None:
    plan = {"step": {**STEP, "acceptance": ["word " * 2_000]}}
    with pytest.raises(RuntimeError) as caught:
        planned(plan, policy=PackPolicy(on_invalid="raise", max_input_tokens=600))
    assert isinstance(caught.value.__cause__, StepTooLarge)
    assert caught.value.__cause__.needed > caught.value.__cause__.budget


def test_a_plan_that_stops_before_its_end_is_read_with_half_of_a_surrogate_pair_in_it() -> None:
    state = read_state({"plan": '{"goal": "Write \ud800", "step": {"text": "Draft", "acceptance": ["One page"'})
    assert (state.step.goal, state.step.text) == ("Write ?", "Draft")
