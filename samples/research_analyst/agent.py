"""Answers a question from documents and proves each point: plan, notes and evidence are in session state."""

from __future__ import annotations

import time
from pathlib import Path

from documents import Documents
from google.adk.agents import LlmAgent
from google.adk.agents.callback_context import CallbackContext
from google.adk.apps import App
from google.adk.tools.tool_context import ToolContext
from google.genai import types
from scripted_model import Play, call, model

from aether_context.adk import ContextPackPlugin
from aether_context.errors import KnowledgeError
from aether_context.state import knowledge

PLAN = {
    "task_id": "ferry",
    "goal": "One page for the harbour committee in which every point can be checked.",
    "step": {
        "id": "facts",
        "text": "Find out whether the electric ferry can keep the timetable, and what it costs.",
        "role": "Researcher",
        "acceptance": [
            {"id": "range", "text": "Its range in cold weather is proven.", "needs_evidence": True},
            {"id": "charging", "text": "Charging fits the timetable, or where it does not.", "needs_evidence": True},
            {"id": "costs", "text": "Its running costs are proven.", "needs_evidence": True},
        ],
    },
    "constraints": {"risk": "medium", "notes": ["Use the documents only; say unknown where they say nothing."]},
    "expected_tool_calls": 7,
}
KNOWLEDGE = {
    "notes": ["The committee has one page in mind, with the sources of the ferry's costs and range."],
    "evidence": [{"id": "minutes", "summary": "Minutes of the committee, item 3: the decision is due on 12 May."}],
}

documents = Documents(Path(__file__).parent / "documents")


def begin(callback_context: CallbackContext) -> None:
    """Puts the plan into a new session."""
    if "plan" not in callback_context.state:
        callback_context.state["plan"] = PLAN
        callback_context.state["knowledge"] = KNOWLEDGE


async def add_evidence(document: str, line: int, covers: list[str], tool_context: ToolContext) -> str:
    """Keeps a line of a document as proof. covers names the ids of the acceptance items that it proves."""
    lines = documents.lines(document)
    if not 1 <= line <= len(lines):
        return f"{document!r} has no line {line}."
    name, proof = f"evidence/{document}-{line}.txt", lines[line - 1].strip("- ")
    uri = f"artifact://{name}"
    try:
        knowledge.add_evidence(tool_context.state, uri=uri, summary=proof, covers=covers, time=time.time(), text=proof)
    except KnowledgeError as error:
        return str(error)
    await tool_context.save_artifact(name, types.Part(text=proof))
    return uri


def script(asked: str) -> Play:
    yield call("list_documents")
    lines = []
    for item, words in (
        ("range", "coldest range crossings"),
        ("charging", "timetable leaves minutes quay"),
        ("costs", "electric ferry electricity maintenance"),
    ):
        found = yield call("search_documents", words=words)
        document, line, text = found.splitlines()[0].split(":", 2)
        uri = yield call("add_evidence", document=document, line=int(line), covers=[item])
        lines.append(f"- {item}: {text.strip('- ')} ({uri})")
    return "\n".join(["What the documents prove:", *lines])


agent = LlmAgent(
    name="analyst",
    model=model(script),
    instruction="You answer from documents. Record proof for each acceptance item, then answer and cite it.",
    tools=[documents.list_documents, documents.read_document, documents.search_documents, add_evidence],
    before_agent_callback=begin,
)
app = App(name="research_analyst", root_agent=agent, plugins=[ContextPackPlugin(policy="research")])
