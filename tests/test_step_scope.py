"""Through one step everything stays: role, checklist, tools, and what is added to the system instruction."""

from __future__ import annotations

import asyncio
import json
import runpy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents import BaseAgent, LlmAgent, LoopAgent, ParallelAgent, SequentialAgent
from google.adk.sessions import InMemorySessionService
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from google.adk.tools.long_running_tool import LongRunningFunctionTool
from google.adk.tools.tool_context import ToolContext
from google.genai import types
from pydantic import BaseModel
from restarting import Restarting, same_requests
from scripted import Chat, Scripted, call, grow, new_store, results, set_state, state_of, was_cut
from teams import DEPRECATED
from wording import CONTRACT_OPENING

from aether_context import Manifest, PackPolicy
from aether_context.adk import AcceptanceGate, context_tools, evidence_tools, memory_tools, planning_tools
from aether_context.plans import without_plan
from aether_context.store.replay import Replayer

REPORT = "https://rivals.example/report"
PLAN: dict[str, Any] = {
    "task_id": "7",
    "task": "Compare the rivals",
    "steps": [
        {
            "id": "find",
            "text": "Find five differences between the rivals",
            "role": "Operator",
            "tools": ["look", "read"],
            "acceptance": [{"id": "sources", "text": "each difference has a source", "needs_evidence": True}],
        },
        {
            "id": "check",
            "text": "Check the differences",
            "role": "Reviewer",
            "acceptance": ["each difference is checked"],
            "depends_on": ["find"],
        },
    ],
}
OPERATOR, REVIEWER = "You are the Operator", "You are the Reviewer"
WORK = [
    call("look", query="rivals"),
    call("record_evidence", uri=REPORT, summary="Prices differ by a third", covers=["sources"]),
    call("complete_step", step_id="find"),
]


def look(query: str) -> dict[str, str]:
    """Looks in the web."""
    return {"result": "\n".join(f"{at}: {query} number {at} costs {at * 613 % 997}" for at in range(300))}


def read(path: str) -> str:
    """Reads a file."""
    return f"{path} is empty"


def delete(path: str) -> str:
    """Deletes a file."""
    return f"{path} is gone"


def replan(tool_context: ToolContext) -> str:
    """Writes another plan."""
    steps = [{"id": "sing", "text": "Sing a song", "role": "Singer", "acceptance": ["It rhymes"]}]
    tool_context.state["plan"] = {"task": "Sing", "steps": steps}
    return "written"


def all_tools() -> list[Any]:
    return [look, read, delete, replan, *planning_tools(), *evidence_tools(), *memory_tools(), *context_tools()]


def agent(name: str, script: Sequence[Any], **settings: Any) -> LlmAgent:
    return LlmAgent(
        name=name,
        model=Scripted(script=list(script), sent=[]),
        **{"tools": all_tools(), "instruction": name, **settings},
    )


def work(*agents: BaseAgent, plan: Any = PLAN, **settings: Any) -> Chat:
    root = agents[0] if len(agents) == 1 else SequentialAgent(name="team", sub_agents=[*agents])
    state = {} if plan is None else {"plan": plan}
    return Chat(agent=root, state=state, **{"policy": PackPolicy(max_input_tokens=64_000), **settings})


def packs(chat: Chat, name: str) -> list[Manifest]:
    return sorted((one for one in chat.manifests() if one.agent == name), key=lambda one: one.number)


def sents(chat: Chat, name: str) -> list[Any]:
    return [one for one in chat.sent if one.agent == name]


# A completed step.


@DEPRECATED
def test_a_completed_step_stays_until_the_answer_and_the_next_agent_gets_the_next_one() -> None:
    chat = work(agent("operator", [*WORK, call("add_note", text="done"), "Found."]), agent("reviewer", ["Checked."]))
    events = chat.say(f"Compare the rivals with {REPORT}")
    assert {"done": "find", "can_be_claimed": ["check"]} in results(events)
    assert [one.step_id for one in packs(chat, "operator")] == ["find"] * 5
    assert all(OPERATOR in one.text and REVIEWER not in one.text for one in sents(chat, "operator"))
    assert [one.epoch_reason for one in packs(chat, "operator")] == ["first_call", *[None] * 4]
    assert [one.prefix.broken_by for one in packs(chat, "operator")[1:]] == [None] * 4
    assert grow(sents(chat, "operator"))
    assert "- [ ] sources: each difference has a source" in sents(chat, "operator")[-1].text
    assert [one.step_id for one in packs(chat, "reviewer")] == ["check"]
    assert REVIEWER in sents(chat, "reviewer")[0].text
    chat.replays()


@DEPRECATED
def test_an_agent_that_a_loop_calls_again_gets_the_next_step() -> None:
    operator = agent("operator", [*WORK, "Found.", "Checked."])
    chat = work(LoopAgent(name="loop", sub_agents=[operator], max_iterations=2))
    chat.say(f"Compare {REPORT}")
    assert len({one.invocation for one in chat.manifests()}) == 1
    assert [one.step_id for one in packs(chat, "operator")] == ["find"] * 4 + ["check"]
    assert packs(chat, "operator")[-1].epoch_reason == "step_changed"
    chat.replays()


@DEPRECATED
def test_the_next_step_has_the_memories_that_answer_it() -> None:
    operator = agent("operator", [*WORK, "Found.", "Checked."])
    texts = ("Five differences between the rivals are in Mona's book", "Thora says how to check each difference")
    state = {"plan": PLAN, "knowledge": {"memories": [{"text": text} for text in texts]}}
    policy = PackPolicy(max_input_tokens=64_000, retrieval={"memory_k": 1})
    chat = Chat(agent=LoopAgent(name="loop", sub_agents=[operator], max_iterations=2), state=state, policy=policy)
    chat.say("Go on.")
    assert [("Mona" in sent.text, "Thora" in sent.text) for sent in chat.sent] == [(True, False)] * 4 + [(False, True)]
    chat.replays()


def test_the_next_message_brings_the_next_step_also_where_the_last_run_did_not_answer() -> None:
    broken = [*WORK, RuntimeError("away"), "Checked."]
    chat = work(agent("operator", broken))
    with pytest.raises(RuntimeError):
        chat.say(f"Compare {REPORT}")
    chat.say("And now?")
    assert [one.step_id for one in packs(chat, "operator")][-1] == "check"


def test_an_agent_that_claims_another_step_works_at_that() -> None:
    script = [*WORK, call("claim_step", step_id="check"), call("read", path="a"), "Checked."]
    chat = work(agent("operator", script))
    chat.say(f"Compare {REPORT}")
    assert [one.step_id for one in packs(chat, "operator")] == ["find"] * 4 + ["check"] * 2


def test_a_plan_that_is_rewritten_after_the_step_waits_for_the_answer() -> None:
    plan = {**PLAN, "steps": [{**PLAN["steps"][0], "tools": ["look", "read", "replan"]}, PLAN["steps"][1]]}
    chat = work(agent("operator", [*WORK, call("replan"), call("read", path="a"), "Found.", "La."]), plan=plan)
    chat.say(f"Compare {REPORT}")
    assert [one.step_id for one in packs(chat, "operator")] == ["find"] * 6
    assert [one.prefix.broken_by for one in packs(chat, "operator")[1:]] == [None] * 5
    chat.say("Go on.")
    assert packs(chat, "operator")[-1].step_id == "sing"
    chat.replays()


@DEPRECATED
def test_a_worker_keeps_a_step_that_another_worker_completes() -> None:
    async def others_answer() -> None:
        for _ in range(200):
            await asyncio.sleep(0)

    plan = {**PLAN, "steps": [{**PLAN["steps"][0], "acceptance": ["five are found"]}, PLAN["steps"][1]]}
    script = [call("read", path="a"), call("read", path="b"), "I read."]
    model = Scripted(script=script, sent=[], waits=others_answer)
    slow = LlmAgent(name="slow", model=model, tools=all_tools())
    fast = agent("fast", [call("complete_step", step_id="find"), "Found."])
    chat = work(ParallelAgent(name="both", sub_agents=[fast, slow]), plan=plan)
    chat.say("Compare them.")
    assert state_of(chat)["plan"]["steps"][0]["claimed_by"] == "fast"
    assert [one.step_id for one in packs(chat, "slow")] == ["find"] * 3
    assert [one.prefix.broken_by for one in packs(chat, "slow")[1:]] == [None] * 2
    assert {one.step_id for one in packs(chat, "fast")} == {"find"}


def test_a_new_process_at_every_call_keeps_the_step_as_well() -> None:
    chats = []
    for restarts in (False, True):
        store, policy = new_store(), PackPolicy(max_input_tokens=64_000)
        plugin = {"plugin": Restarting(policy=policy, store=store)} if restarts else {}
        chat = work(agent("operator", [*WORK, call("read", path="a"), "Found."]), store=store, policy=policy, **plugin)
        chat.say(f"Compare {REPORT}")
        chats.append(chat)
    same_requests(*chats)
    assert [one.step_id for one in packs(chats[1], "operator")] == ["find"] * 5


@pytest.mark.parametrize("service", ["memory", "sqlite"])
def test_a_result_that_comes_later_on_another_worker_finds_the_step(service: str, tmp_path: Path) -> None:
    def approve() -> None:
        """Asks a person, which takes days."""

    plan = {**PLAN, "steps": [{**PLAN["steps"][0], "tools": ["look", "approve"]}, PLAN["steps"][1]]}
    tools = [*all_tools(), LongRunningFunctionTool(approve)]
    sessions = InMemorySessionService() if service == "memory" else SqliteSessionService(str(tmp_path / "s.db"))
    operator = agent("operator", [*WORK, call("approve"), "Found.", "Checked."], tools=tools)
    chat = work(operator, plan=plan, sessions=sessions)
    events = chat.say(f"Compare {REPORT}")
    (asked,) = [one for event in events for one in event.get_function_calls() if one.name == "approve"]
    chat.restart()
    answer = types.FunctionResponse(id=asked.id, name="approve", response={"approved": True})
    chat.say(types.Content(role="user", parts=[types.Part(function_response=answer)]))
    assert [one.step_id for one in packs(chat, "operator")] == ["find"] * 5
    chat.say("And now?")
    assert packs(chat, "operator")[-1].step_id == "check"


@DEPRECATED
def test_a_repair_is_of_the_step_that_was_answered() -> None:
    operator = agent("operator", [*WORK, "Found five.", f"Found five, see {REPORT}."])
    gate = AcceptanceGate(name="gate", most_repairs=1)
    chat = work(LoopAgent(name="loop", sub_agents=[operator, gate], max_iterations=3))
    chat.say(f"Compare {REPORT}")
    assert [one.step_id for one in packs(chat, "operator")] == ["find"] * 5


@DEPRECATED
def test_an_agent_that_handed_over_gets_the_next_step_when_it_is_called_again() -> None:
    script = [WORK[1], [WORK[2], call("transfer_to_agent", agent_name="helper")], "All is done."]
    helper = agent("helper", [call("transfer_to_agent", agent_name="operator")])
    operator = agent("operator", script, sub_agents=[helper])
    chat = work(operator)
    chat.say(f"Compare {REPORT}")
    assert [one.step_id for one in packs(chat, "operator")] == ["find", "find", "check"]


# The system instruction.


def test_a_plan_that_comes_later_leaves_the_system_instruction_and_explains_itself() -> None:
    chat = work(agent("operator", ["a", "b", "c", "d"]), plan=None)
    chat.say("What is a rival?", "Which ones are there?")
    asyncio.run(set_state(chat, plan=PLAN))
    chat.say("Compare them.", "And prices?")
    assert len({one.system for one in chat.sent}) == 1
    assert "CONTEXT PACK" not in chat.sent[-1].system
    for one in chat.sent[2:]:
        assert one.text.count("TASK, STEP and ACCEPTANCE are authoritative for the current step") == 1
    first = packs(chat, "operator")[2]
    assert (first.epoch_reason, first.prefix.broken_by) == ("step_changed", "tools_changed")
    assert first.prefix.shared_tokens > 0
    chat.replays()


def test_the_place_of_the_contract_outlives_cuts_changed_tools_and_the_plans_end() -> None:
    policy = PackPolicy(max_input_tokens=3_000)
    for plan, is_added in ((PLAN, True), (None, False)):
        chat = work(agent("operator", ["x " * 900] * 9, tools=[look, read, delete]), plan=plan, policy=policy)
        chat.say("What is a rival?")
        asyncio.run(set_state(chat, plan=None if plan else PLAN))
        chat.say(*(f"And number {at}? {'y ' * 900}" for at in range(5)))
        asyncio.run(set_state(chat, plan=PLAN))
        chat.say("And now?")
        assert any(map(was_cut, chat.manifests()))
        assert "tools_changed" in {one.prefix.broken_by for one in chat.manifests()}
        assert {one.system.count(CONTRACT_OPENING) for one in chat.sent} == {int(is_added)}
        chat.replays()


@DEPRECATED
def test_each_agent_of_a_session_has_a_contract_of_its_own() -> None:
    chat = work(agent("early", ["a", "b"]), plan=None)
    chat.say("What is a rival?")
    asyncio.run(set_state(chat, plan=PLAN))
    late = agent("late", ["c", "d"])
    team = work(chat.agent.clone(), late, plan=None, sessions=chat.sessions, store=chat.store)
    team.say("Compare them.", "Again.")
    assert {(one.agent, CONTRACT_OPENING in one.system) for one in team.sent} == {("early", False), ("late", True)}


def test_without_a_plan_nothing_is_said_of_a_step() -> None:
    for contract in ("system", "payload"):
        settings = {"payload": {"contract": contract}, "max_input_tokens": 64_000}
        chat = Chat(state={"knowledge": {"notes": ["Rivals are cheap."]}}, policy=PackPolicy(**settings))
        chat.say("Compare the rivals.")
        assert "STEP" not in f"{chat.sent[0].system}{chat.sent[0].text}"
        assert "all that is asked now" in chat.sent[0].text


# The tools of a step.

OURS = {tool.name for tool in [*planning_tools(), *evidence_tools(), *memory_tools(), *context_tools()]}


@pytest.mark.parametrize("window", [4_000, 16_000, 200_000])
@pytest.mark.parametrize("needs_evidence", [True, False])
@pytest.mark.rows(3)
def test_within_a_step_the_declared_tools_do_not_change(window: int, needs_evidence: bool) -> None:
    item = {"id": "sources", "text": "each difference has a source", "needs_evidence": needs_evidence}
    plan = {**PLAN, "steps": [{**PLAN["steps"][0], "acceptance": [item]}, PLAN["steps"][1]]}
    kept = call("keep_evidence", text="Prices differ.", source="a.md", covers=[])
    script = [call("read", path="a"), kept, *WORK, call("look", query="prices"), "Found."]
    chat = work(agent("operator", script), plan=plan, policy=PackPolicy(max_input_tokens=window))
    answers = results(chat.say(f"Compare {REPORT}"))
    assert not [answer for answer in answers if "error" in answer]
    (declared,) = {(*one.declared, *one.readers) for one in chat.sent}
    assert {*declared} - OURS == {"look", "read", "read_artifact", "search_artifact"}
    assert {*declared} & OURS == {"complete_step", "record_evidence"}
    assert {one.prefix.broken_by for one in packs(chat, "operator")[1:]} <= {None, "cut"}
    chat.replays()


def test_a_step_may_name_more_of_this_packages_tools_and_the_host_keeps_its_own() -> None:
    steps = [{**PLAN["steps"][0], "tools": ["look", "claim_step"]}, PLAN["steps"][1]]
    helper = agent("helper", [])
    operator = agent(
        "operator", ["Found."], tools=[look, delete, *planning_tools(), *evidence_tools()], sub_agents=[helper]
    )
    policy = PackPolicy(max_input_tokens=64_000, tools={"always": ("add_note",)})
    chat = work(operator, plan={**PLAN, "steps": steps}, policy=policy)
    chat.say("Compare them.")
    assert {*chat.sent[0].declared} == {
        "look",
        "claim_step",
        "complete_step",
        "record_evidence",
        "add_note",
        "transfer_to_agent",
    }


def test_without_evidence_tools_of_both_kinds_the_one_that_is_there_stays() -> None:
    keep = [tool for tool in evidence_tools() if tool.name == "keep_evidence"]
    chat = work(agent("operator", ["Found."], tools=[look, *keep]))
    chat.say("Compare them.")
    assert chat.sent[0].declared == ("look", "keep_evidence")


def test_a_step_that_names_no_tools_leaves_all_of_them() -> None:
    chat = work(agent("operator", ["Found."]), plan={"steps": [{**PLAN["steps"][0], "tools": None}]})
    chat.say("Compare them.")
    assert OURS < {*chat.sent[0].declared}


def test_where_no_step_is_told_this_packages_tools_stay() -> None:
    state = {"tools": ["look"]}
    chat = Chat(agent=agent("operator", ["Found."]), state=state, policy=PackPolicy(max_input_tokens=64_000))
    chat.say("Compare them.")
    assert OURS | {"look"} == {*chat.sent[0].declared}


def test_what_is_not_declared_of_this_package_can_still_be_called() -> None:
    script = [call("claim_step", step_id="find"), call("delete", path="a"), "Found."]
    chat = work(agent("operator", script))
    claimed, refused = results(chat.say("Compare them."))
    assert claimed["claimed"]["claimed_by"] == "operator"
    assert "no tool with that name is available" in refused["error"]
    assert [one.step_id for one in packs(chat, "operator")] == ["find"] * 3


def test_a_reviewer_without_tools_has_the_readers_where_its_step_needs_evidence() -> None:
    chat = work(agent("reviewer", ["a", "b"], tools=[]), policy=PackPolicy(max_input_tokens=8_000))
    chat.say("Check them.", "Again.")
    assert [one.readers for one in chat.sent] == [("read_artifact", "search_artifact")] * 2


# The plan as its planner wrote it.

WRITTEN = json.dumps(PLAN)
FENCED = f"Here is my plan; mind the rebate of 7 crowns.\n```json\n{json.dumps(PLAN, indent=1)}\n```\n"


def left_out(chat: Chat, name: str) -> list[tuple[str, str]]:
    replayer = Replayer(chat.store)
    rows = replayer.resolve(packs(chat, name)[-1]).rows.values()
    return [(row.source, row.form) for row in rows if row.reason == "in_payload"]


@DEPRECATED
@pytest.mark.parametrize("answer", [WRITTEN, FENCED, f"```\n{WRITTEN}\n```"])
@pytest.mark.parametrize("window", [4_000, 64_000])
@pytest.mark.rows(3)
def test_the_plan_is_not_sent_beside_the_pack_that_was_made_of_it(answer: str, window: int) -> None:
    planner = agent("planner", [answer, answer], tools=[], output_key="plan")
    operator, reviewer = agent("operator", [*WORK, "Found."]), agent("reviewer", ["Checked."])
    chat = work(planner, operator, reviewer, plan=None, policy=PackPolicy(max_input_tokens=window))
    chat.say(f"Compare {REPORT}")
    assert '"needs_evidence"' in chat.raw[-1].text
    for one in (*sents(chat, "operator"), *sents(chat, "reviewer")):
        assert "needs_evidence" not in one.text
        assert ("mind the rebate of 7 crowns" in one.text) == (answer is FENCED)
        assert not one.faults
    for name in ("operator", "reviewer"):
        assert left_out(chat, name) == [("planner", "extract" if answer is FENCED else "left_out")]
    assert {one.prefix.broken_by for one in packs(chat, "operator")[1:]} <= {None, "cut"}
    chat.say("Thank you. Again.")
    assert "needs_evidence" not in sents(chat, "operator")[-1].text
    chat.replays()


@DEPRECATED
def test_a_plan_that_an_application_takes_from_a_named_planners_answer_is_not_sent_either() -> None:
    def put(callback_context: Any) -> None:
        callback_context.state["plan"] = PLAN

    planner = agent("planner", [FENCED], tools=[], after_agent_callback=put)
    policy = PackPolicy(max_input_tokens=64_000, planners=("planner",))
    chat = work(planner, agent("operator", [*WORK, "Found."]), plan=None, policy=policy)
    chat.say(f"Compare {REPORT}")
    assert all("needs_evidence" not in one.text for one in sents(chat, "operator"))
    assert left_out(chat, "operator") == [("planner", "extract")]


@DEPRECATED
@pytest.mark.parametrize(
    ("answer", "state"),
    [
        ('{"steps": [{"text": "Find them", "tools": 7}]}', {"output_key": "plan"}),
        (WRITTEN, {}),
        ("The rivals sell tea.", {"output_key": "plan"}),
        (WRITTEN[:-9], {"output_key": "plan"}),
    ],
    ids=["no acceptance list", "no plan in state", "no plan at all", "not complete"],
)
def test_what_no_pack_was_made_of_stays(answer: str, state: dict[str, Any]) -> None:
    chat = work(agent("planner", [answer], tools=[], **state), agent("operator", ["Found."]), plan=None)
    chat.say("Compare them.")
    assert answer in sents(chat, "operator")[0].text
    assert left_out(chat, "operator") == []


@DEPRECATED
def test_what_a_worker_answers_in_the_form_of_a_plan_stays() -> None:
    found = json.dumps({"step": "Find five differences between the rivals", "result": "They differ in price."})
    steps = json.dumps({"steps": [{"id": "find", "text": "Find five differences", "status": "done"}]})
    chat = work(agent("operator", [found, steps]), agent("reviewer", ["a", "b"]))
    chat.say("Compare them.", "Again.")
    assert found in sents(chat, "reviewer")[-1].text
    assert steps in sents(chat, "reviewer")[-1].text


@DEPRECATED
def test_calls_that_a_planner_makes_beside_its_plan_stay_whole() -> None:
    planner = agent("planner", [[WRITTEN, call("read", path="a.md")], WRITTEN], tools=[read], output_key="plan")
    chat = work(planner, agent("operator", ["Found."]), plan=None)
    chat.say("Compare them.")
    (one,) = sents(chat, "operator")
    assert "needs_evidence" not in one.text
    assert "called tool `read`" in one.text
    assert "`read` tool returned result" in one.text


@DEPRECATED
def test_a_plan_that_was_replaced_does_not_come_back() -> None:
    second = json.dumps({**PLAN, "steps": [{**PLAN["steps"][1], "id": "weigh", "depends_on": []}]})
    planner = agent("planner", [WRITTEN, second], tools=[], output_key="plan")
    chat = work(
        planner, agent("operator", [call("look", query="a"), "Found.", call("read", path="a"), "Weighed."]), plan=None
    )
    chat.say("Compare them.", "Weigh them.")
    assert [one.step_id for one in packs(chat, "operator")] == ["find", "find", "weigh", "weigh"]
    for one in sents(chat, "operator"):
        assert '"steps"' not in one.text
    assert left_out(chat, "operator") == [("planner", "left_out")] * 2
    chat.replays()


@DEPRECATED
def test_the_plan_of_a_planner_with_a_schema_is_known_as_well() -> None:
    class Written(BaseModel):
        task: str
        steps: list[dict[str, Any]]
        risk: str = "low"

    planner = agent("planner", [WRITTEN], tools=[], output_key="plan", output_schema=Written)
    chat = work(planner, agent("operator", [*WORK, "Found."]), plan=None)
    chat.say(f"Compare {REPORT}")
    assert left_out(chat, "operator") == [("planner", "left_out")]


@DEPRECATED
@pytest.mark.parametrize("strategy", ["epochs", "heads_tails", "sliding_turns", "stable_prefix"])
@pytest.mark.rows(1)
def test_no_strategy_brings_the_plan_back(strategy: str) -> None:
    planner = agent("planner", [WRITTEN] * 6, tools=[], output_key="plan")
    operator = agent("operator", [part for at in range(6) for part in (call("look", query=f"rival {at}"), "ok " * 200)])
    settings = {"strategy": (strategy,), "sliding_turns": {"tokens": 1_500}}
    chat = work(planner, operator, plan=None, policy=PackPolicy(max_input_tokens=4_000, conversation=settings))
    chat.say(*(f"Compare number {at}." for at in range(6)))
    assert all("needs_evidence" not in one.text for one in sents(chat, "operator"))
    assert "needs_evidence" in chat.raw[-1].text
    chat.replays()


@DEPRECATED
def test_a_cut_does_not_bring_the_plan_back() -> None:
    planner = agent("planner", [WRITTEN], tools=[], output_key="plan")
    reads = [call("look", query=f"rival {at}") for at in range(12)]
    policy = PackPolicy(max_input_tokens=4_000, offload={"mode": "off"})
    chat = work(planner, agent("operator", [*reads, "Found."]), plan=None, policy=policy)
    chat.say("Compare them.")
    assert any(map(was_cut, packs(chat, "operator")))
    assert all("needs_evidence" not in one.text for one in sents(chat, "operator"))
    chat.replays()


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        (f"[1] says so. {WRITTEN}", f"[1] says so. {WRITTEN}"), (f"Before {WRITTEN} after", "Before  after"),
        (json.dumps(PLAN["steps"]), ""), ('{"rivals": ["a", "b"]}', '{"rivals": ["a", "b"]}'), ("no data", "no data"),
        ("{" * 5_000, "{" * 5_000), ("", ""),
    ],
)  # fmt: skip
def test_only_the_data_of_a_plan_leaves_a_text(text: str, rest: str) -> None:
    assert without_plan(text) == rest


# The design document's example.


def test_the_documents_example_is_played_to_its_end() -> None:
    example = runpy.run_path(str(Path(__file__).parents[1] / "docs" / "example.py"))
    messages, answer, plan = asyncio.run(example["play"]())
    assert list(messages) == ["planner", "operator", "reviewer"]
    assert [step["status"] for step in plan["steps"]] == ["done", "done"]
    assert answer == "3.a1 met: artifact://tasks/42/step-3/report.md. 4.a1 met."
    assert "ROLE:" not in messages["planner"]
    assert f"ROLE:\n- {OPERATOR}" in messages["operator"]
    assert f"ROLE:\n- {REVIEWER}" in messages["reviewer"]
    pairs = example["compared"](messages["operator"])
    assert "\n".join(line for line, _ in pairs) == example["DOCUMENT"].rstrip()
    with pytest.raises(ValueError, match="no line for"):
        example["compared"](messages["reviewer"].replace("file_read", "read"))
