"""A planner writes a plan, a worker takes its steps with evidence, and a gate holds the answer to the checklist."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

from documents import Documents
from google.adk.agents import LlmAgent, LoopAgent, SequentialAgent
from google.adk.apps import App
from google.genai import types
from scripted_model import Play, call, model, say

from aether_context.adk import AcceptanceGate, ContextPackPlugin, evidence_tools, planning_tools
from aether_context.pack import AcceptanceItem, Step

documents = Documents(Path(__file__).parent / "documents")


def short(item: AcceptanceItem, answer: str, step: Step) -> bool | None:
    """A check of one's own: it looks at the length of the answer, where the checklist asks for it."""
    return len(answer.split()) <= 60 if "60 words" in item.text else None


def planner_script(asked: str) -> Play:
    steps = yield call("list_steps")
    if "facts" not in steps:
        proven = ["Its range is proven.", "Its costs are proven."]
        yield call("add_step", step_id="facts", text="Find range and costs.", acceptance=proven, needs_evidence=True)
        cited = ["The answer cites proof, in at most 60 words."]
        yield call(
            "add_step", step_id="answer", text="Answer.", acceptance=cited, needs_evidence=True, depends_on=["facts"]
        )
    return "The plan stands."


def prove(words: str, item: str) -> Generator[types.Part, str, tuple[str, str]]:
    """Searches the documents, records the best line as evidence for an item, and gives the line and the address by
    which its result can be cited."""
    found = yield call("search_documents", words=words)
    best, *_, uri = found.splitlines()
    document, number, text = best.split(":", 2)
    fact = text.strip("- ")
    yield call("record_evidence", uri=uri, summary=f"{document}, line {number}: {fact}", covers=[item])
    return fact, uri


def worker_script(asked: str) -> Play:
    steps = yield call("list_steps")
    if "'done'" not in steps:
        yield call("claim_step", step_id="facts")
        yield from prove("coldest day range crossings", "facts.a1")
        yield from prove("electric ferry electricity maintenance", "facts.a2")
        yield call("complete_step", step_id="facts")
        yield call("claim_step", step_id="answer")
    fact, uri = yield from prove(asked, "answer.a1")
    missing = yield say(fact)
    return f"{fact} ({uri})" if "cites no" in missing else fact


planner = LlmAgent(
    name="planner",
    model=model(planner_script),
    instruction="You write the plan: steps with an acceptance list each. Where there is one, leave it as it is.",
    tools=[*planning_tools()],
)
worker = LlmAgent(
    name="worker",
    model=model(worker_script),
    instruction="Claim and complete each step. Keep proof as evidence, then answer in a few words and cite it.",
    tools=[documents.list_documents, documents.search_documents, *planning_tools(), *evidence_tools()],
)
loop = LoopAgent(name="work", sub_agents=[worker, AcceptanceGate(name="gate", most_repairs=2)], max_iterations=3)
agent = SequentialAgent(name="planned", sub_agents=[planner, loop])
app = App(name="planned", root_agent=agent, plugins=[ContextPackPlugin(policy="research", checks=[short])])
