"""Answers the press, and again where the acceptance gate finds something missing: a loop of a writer and the gate."""

from __future__ import annotations

from pathlib import Path

from documents import Documents
from google.adk.agents import LlmAgent, LoopAgent
from google.adk.agents.callback_context import CallbackContext
from google.adk.apps import App
from scripted_model import Play, call, model, say

from aether_context.adk import AcceptanceGate, ContextPackPlugin, evidence_tools
from aether_context.pack import AcceptanceItem, Step

PLAN = {
    "task_id": "press",
    "goal": "A reply to a journalist in which each figure can be checked.",
    "step": {
        "id": "reply",
        "text": "Answer the journalist's question from the documents.",
        "role": "Writer",
        "acceptance": [
            {"id": "proof", "text": "The figures are proven.", "needs_evidence": True},
            {"id": "short", "text": "The reply has at most 60 words."},
        ],
    },
}

documents = Documents(Path(__file__).parent / "documents")


def begin(callback_context: CallbackContext) -> None:
    """Puts the plan into a new session."""
    if "plan" not in callback_context.state:
        callback_context.state["plan"] = PLAN


def short(item: AcceptanceItem, answer: str, step: Step) -> bool | None:
    """A check of one's own: it looks at the item ``short`` alone."""
    return len(answer.split()) <= 60 if item.id == "short" else None


def script(asked: str) -> Play:
    found = yield call("search_documents", words=asked)
    place, number, text = found.splitlines()[0].split(":", 2)
    fact, uri = text.strip("- "), f"artifact://documents/{place}"
    yield call("record_evidence", uri=uri, summary=f"line {number}: {fact}", covers=["proof"])
    missing = yield say(fact)
    return f"{fact} ({uri})" if "proof" in missing else fact


writer = LlmAgent(
    name="writer",
    model=model(script),
    instruction="You answer journalists from documents. Record proof, then answer in a few words and cite it.",
    tools=[documents.list_documents, documents.search_documents, *evidence_tools()],
)
agent = LoopAgent(
    name="press_office",
    sub_agents=[writer, AcceptanceGate(name="gate", most_repairs=2)],
    max_iterations=3,
    before_agent_callback=begin,
)
app = App(name="press_office", root_agent=agent, plugins=[ContextPackPlugin(policy="research", checks=[short])])
