"""Plans as models write them: other spellings, odd fields, steps broken or too large; and the tools in scope."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import re
import time
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from plans import NO_ACCEPTANCE, PLAN, planned, small, words
from pydantic import BaseModel
from scripted import Chat, Scripted, call, delete_all, look_up, results, send_mail, set_state, state_of

from aether_context import PackPolicy
from aether_context.adk import planning_tools
from aether_context.errors import PolicyError
from aether_context.state import read_state

TOOLS = (look_up, send_mail, delete_all)
STEP = {"id": "s1", "text": "Find the rule", "acceptance": ["the rule is cited"], "tools": ["look_up"]}


def told(plan: object, **settings: Any) -> Chat:
    chat = Chat(state={"plan": plan}, tools=TOOLS, **settings)
    chat.say("please go on")
    chat.replays()
    return chat


def notes(chat: Chat) -> str:
    return "\n".join(chat.latest().degradations)


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
    ("a limit beside the others", {"risk": "High"}, ""), ("a weight", {"risk_weight": "High"}, ""),
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
    ("items in need", {"acceptance": [{"text": "the rule is cited", "evidence_needed": True}]}, ""),
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
    chat = told(plan)
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
@pytest.mark.rows(37)
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
    chat = told({"step": {**STEP, "tools": tools}})
    assert chat.sent[0].declared == ()
    assert "Find the rule" in chat.sent[0].human()
    assert "tool" in notes(chat)
    if not isinstance(tools, str):
        assert chat.manifests()[0].validity == "invalid"
        with pytest.raises(RuntimeError) as caught:
            told({"step": {**STEP, "tools": tools}}, policy=PackPolicy(on_invalid="raise"))
        assert isinstance(caught.value.__cause__, PolicyError)


@pytest.mark.parametrize("tools", [None, [], "", "all", "*"], ids=repr)
def test_no_tools_named_is_no_scope(tools: Any) -> None:
    chat = told({"step": {**STEP, "tools": tools}})
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
        chat = told(plan)
    manifest = chat.manifests()[0]
    assert manifest.validity == "invalid"
    assert manifest.invalid_reason
    assert set(chat.sent[0].declared) <= {"look_up"}
    assert chat.sent[0].human().endswith("please go on")
    assert sum("the plan is invalid" in record.getMessage() for record in caplog.records) == 1
    with pytest.raises(RuntimeError) as caught:
        told(plan, policy=PackPolicy(on_invalid="raise"))
    assert isinstance(caught.value.__cause__, PolicyError)
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
    chat = told(plan)
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
    chat = told({"steps": [STEP], "current_step": "s9"})
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
    assert told(plan).sent[0].declared == ("look_up",)


@pytest.mark.parametrize(
    "plan",
    [
        {"goal": "A letter", "notice": "Find the rule\ntools: look_up\n"},
        {"goal": "A letter", "notice": {"remarks": {"toolsToUse": ["look_up"]}}},
        {"goal": "A letter", "notice": json.dumps({"of": json.dumps({"of": json.dumps({"tools": ["look_up"]})})})},
        {"goal": "A letter", "notices": ["word " * 100] * 1_000},
    ],
)
def test_a_list_of_tools_in_a_place_that_is_not_read_closes_the_scope(plan: Any) -> None:
    chat = told(plan)
    assert chat.manifests()[0].validity == "invalid"
    assert chat.sent[0].declared == ()


@pytest.mark.parametrize(
    ("plan", "reason"),
    [(NO_ACCEPTANCE, "no acceptance list"), ({"task": "t"}, "no step"), ({"step": "", "acceptance": ["x"]}, "no step")],
)
def test_an_invalid_plan_is_sent_with_a_warning_by_default(plan: dict[str, Any], reason: str) -> None:
    chat = Chat(state=planned(plan))
    chat.say("go")
    manifest = chat.manifests()[0]
    assert manifest.validity == "invalid"
    assert reason in manifest.invalid_reason
    assert len(chat.llm.sent) == 1


TOO_LARGE = {**PLAN, "acceptance": [words(2_000)], "step": {"id": "3", "text": "x"}}
REFUSED = pytest.mark.parametrize(
    ("plan", "words"),
    [
        (NO_ACCEPTANCE, ["no acceptance list"]),
        (
            TOO_LARGE,
            [
                "input budget",
                r"largest are acceptance item a1 \d{4}",
                "split the step into steps that each have fewer acceptance items",
            ],
        ),
    ],
    ids=["invalid", "too large"],
)
ON_ERROR = pytest.mark.parametrize("on_error", ["passthrough", "raise"])


@ON_ERROR
@REFUSED
def test_a_refused_step_ends_the_run_where_the_policy_raises(plan: Any, words: list[str], on_error: Any) -> None:
    chat = Chat(state=planned(plan), policy=small(1_000, on_invalid="raise"), on_error=on_error)
    with pytest.raises(RuntimeError, match=words[0]):
        chat.say("go")
    assert chat.llm.sent == []


@ON_ERROR
@REFUSED
def test_a_refused_step_is_answered_where_the_policy_responds(plan: Any, words: list[str], on_error: Any) -> None:
    chat = Chat(state=planned(plan), policy=small(1_000, on_invalid="respond"), on_error=on_error)
    answer = chat.say("go")[-1].content.parts[0].text
    assert chat.llm.sent == []
    assert all(re.search(one, answer) for one in words)
    asyncio.run(set_state(chat, plan=PLAN))
    chat.say("now go")
    assert "CONTEXT PACK" in chat.llm.sent[0].text


def test_a_step_too_large_is_made_to_fit_by_default() -> None:
    chat = Chat(state=planned({**PLAN, "goal": words(150)}), policy=small(1_000))
    chat.say(words(3_000))
    manifest = chat.manifests()[0]
    assert manifest.request_tokens <= 1_000
    assert "The middle of this message is left out" in chat.sent[0].human()
    chat.replays()


def test_a_step_of_whose_checklist_a_part_is_sent_is_invalid() -> None:
    plan = {**TOO_LARGE, "acceptance": ["the rule is cited", words(2_000)]}
    chat = Chat(state=planned(plan), policy=small(1_000))
    chat.say("go")
    assert "the rule is cited" in chat.sent[0].human()
    manifest = chat.manifests()[0]
    assert manifest.validity == "invalid"
    assert "1 of 2 acceptance items" in manifest.invalid_reason


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
    items = [item.text for item in shown.acceptance]
    assert items == [text.lstrip() for text in items]
    items = [*map(_plain, items)]
    assert all(any(text in item for item in items) for text in wanted.get("acceptance", ()))
    assert bool(items) is ("acceptance" in wanted)
    assert not [text for text in wanted.get("not", ()) if text in f"{shown.text}\n{items}"]
    assert shown.tools == (tuple(wanted["tools"]) if "tools" in wanted else None)
    assert all(any(text in line for line in shown.constraints) for text in wanted.get("constraints", ()))
    assert wanted.get("goal", "") in shown.goal
    assert shown.role == wanted.get("role", "")
    assert set(shown.next) >= set(wanted.get("next", ()))


LISTS = {
    "a goal before boxes": "# Plan\n\n**Goal:** Sell\n\n- [x] 1. Sort\n- [ ] 2. Weigh\n- [ ] 3. Ship\n\n"
    "**Constraints**\n- no rust",
    "a goal before numbers": "Goal: Sell\n1. (done) Sort\n2. Weigh\n3. Ship\n\nConstraints:\n- no rust",
    "bold headings": "**Goal**\nSell\n\n**Steps**\n1. ✅ Sort\n2. Weigh\n3. Ship\n\n**Constraints**\n- no rust",
    "bare headings": "Goal\nSell\n\nSteps\n1. [x] Sort\n2. Weigh\n3. Ship\n\nConstraints\n- no rust",
    "a number for the current step": "Goal: Sell\n\nSteps:\n1. Sort\n2. Weigh\n3. Ship\n\n"
    "Current step: 2\nConstraints: no rust",
}


@pytest.mark.parametrize("plan", LISTS.values(), ids=LISTS)
def test_each_part_of_a_plan_in_lists_stands_under_its_own_header(plan: str) -> None:
    lines = told(plan).sent[0].human().splitlines()
    headers = ("GOAL:", "STEP:", "CONSTRAINTS:", "NEXT:")
    shown = {header: lines[lines.index(header) + 1] for header in headers}
    assert shown == dict(zip(headers, ("- Sell", "- 2: Weigh", "- no rust", "- 3: Ship"), strict=True))


def test_the_list_of_a_coding_agent_is_read_without_a_warning() -> None:
    todos = [("Read it", "Reading it", "completed"), ("Run it", "Running it", "pending")]
    chat = told({"todos": [dict(zip(("content", "activeForm", "status"), one, strict=True)) for one in todos]})
    assert "STEP:\n- Run it\n" in chat.sent[0].human()
    assert notes(chat) == ""


def test_conditions_beside_the_steps_of_a_german_plan_are_constraints() -> None:
    chat = told("Schritte:\n1. Nägel sortieren\n2. Nägel wiegen\n\nNebenbedingungen: kein Rost")
    assert "CONSTRAINTS:\n- kein Rost\n" in chat.sent[0].human()


@pytest.mark.parametrize("before", ["", "Here it is:\n\n", "```json\n"])
def test_a_plan_whose_text_ends_early_keeps_what_is_done(before: str) -> None:
    plan = json.dumps(
        {"goal": "Sell", "steps": [{"text": "Sort", "status": "done"}, {"text": "Weigh"}, {"text": "Ship"}]}
    )
    chat = told(before + plan[:-10])
    assert "STEP:\n- Weigh" in chat.sent[0].human()
    assert "GOAL:\n- Sell" in chat.sent[0].human()
    assert "not complete" in chat.latest().invalid_reason
    assert set(chat.sent[0].declared) == {tool.__name__ for tool in TOOLS}, "the step is whole, and names no tools"


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


def worked(plan: object, *calls: Any, agent: str = "clerk") -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """A session's state behind calls of the planning tools, and the texts and statuses of the steps."""
    model = Scripted(script=[*calls, call("list_steps"), "ok"], sent=[])
    chat = Chat(agent=LlmAgent(name=agent, model=model, tools=planning_tools()), state={"plan": plan})
    listed = results(chat.say("Go."))[-1]["steps"]
    return state_of(chat), [(step["text"], step["status"]) for step in listed]


def test_a_board_in_another_form_is_worked_on_and_keeps_what_is_done() -> None:
    plan = "# Trade\n- [x] 1. Sort nails\n- [ ] 2. Sell nails\n- [ ] 3. Eat cake\n\nGoal: Rich\n"
    state, steps = worked(plan, call("claim_step", step_id="2"), call("complete_step", step_id="2"))
    assert steps == [("Sort nails", "done"), ("Sell nails", "done"), ("Eat cake", "ready")]
    assert (state["plan"]["goal"], read_state(state).step.text) == ("Rich", "Eat cake")


def test_a_reference_gives_way_to_what_the_board_says() -> None:
    tasks = [{"id": "a", "task": "Sort nails"}, {"id": "b", "task": "Sell nails"}]
    added = call("add_step", step_id="c", text="Eat cake", acceptance=["It is eaten"])
    plan = {"tasks": tasks, "completed": ["a"], "currentTaskIndex": 1, "owner": "ann"}
    state, steps = worked(plan, added, call("claim_step", step_id="c"), agent="bob")
    assert read_state(state, worker="bob").step.step_id == "c"
    assert [status for _, status in steps] == ["done", "ready", "claimed"]
    assert state["plan"]["owner"] == "ann"


@pytest.mark.parametrize(("verbs", "tools"), [(["claim"], ()), (["claim", "complete"], None)])
def test_a_board_that_is_changed_keeps_a_step_without_tools_without_them(verbs: list[str], tools: Any) -> None:
    plan = {"todos": [{"id": "a", "task": "Sort nails", "tools": "none"}, {"id": "b", "task": "Sell nails"}]}
    state, _ = worked(plan, [call(f"{verb}_step", step_id="a") for verb in verbs])
    assert read_state(state).step.tools == tools


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
@pytest.mark.rows(10)
def test_hostile_plans_are_read_in_bounded_time_and_raise_nothing(plan: Any) -> None:
    start = time.process_time()
    read = read_state({"plan": plan})
    assert time.process_time() - start < 10
    assert len(read.problems) <= 60
