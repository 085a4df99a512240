"""Turns interviews into requirements: a task board of two steps, each with a role and tools of its own."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from documents import Documents
from google.adk.agents import LlmAgent
from google.adk.agents.callback_context import CallbackContext
from google.adk.apps import App
from google.adk.tools.tool_context import ToolContext
from google.genai import types
from scripted_model import Play, call, model

from aether_context.adk import ContextPackPlugin, planning_tools
from aether_context.state.knowledge import add_evidence

PLAN: dict[str, Any] = {
    "task_id": "reservations",
    "goal": "Requirements for the library's reservation page.",
    "profile": "requirements",
    "steps": [
        {
            "id": "draft",
            "text": "Write a requirement for each wish in the documents, with its source.",
            "role": "Operator",
            "acceptance": [
                {"id": "sources", "text": "Each requirement names document and line.", "needs_evidence": True},
                {"id": "all", "text": "Every document is covered."},
            ],
            "tools": ["list_documents", "read_document", "add_requirement", "read_requirements"],
            "next": ["Another role reviews the list."],
        },
        {
            "id": "review",
            "text": "Check that each requirement can be tested, and hand the list over.",
            "role": "Reviewer",
            "acceptance": ["Each requirement says how much, how fast or who."],
            "tools": ["read_requirements"],
            "depends_on": ["draft"],
        },
    ],
}
WISHES = (" must ", " may ", " within ", " want ", " uses ", " is deleted ")
"""What the script takes for a wish; a model reads instead."""

documents = Documents(Path(__file__).parent / "documents")


def begin(callback_context: CallbackContext) -> None:
    """Puts the plan into a new session."""
    if "plan" not in callback_context.state:
        callback_context.state["plan"] = PLAN
        callback_context.state["requirements"] = []


async def add_requirement(text: str, document: str, line: int, tool_context: ToolContext) -> str:
    """Adds a requirement to the list, with the document and the line that ask for it."""
    source = documents.lines(document)[max(0, line - 1) : line]
    if not source:
        return f"{document!r} has no line {line}."
    state = tool_context.state
    state["requirements"] = [*state["requirements"], f"{text} ({document}:{line})"]
    await tool_context.save_artifact("requirements.md", types.Part(text=read_requirements(tool_context)))
    proof = f"{document}:{line}: {source[0]}"
    add_evidence(state, uri="artifact://requirements.md", summary=proof, covers=["sources"], time=time.time())
    return f"R{len(state['requirements'])} is on the list."


def read_requirements(tool_context: ToolContext) -> str:
    """Reads the list of requirements."""
    return "\n".join(f"R{at}. {text}" for at, text in enumerate(tool_context.state["requirements"], start=1))


def script(asked: str) -> Play:
    written = yield call("read_requirements")
    if not written:
        yield call("claim_step", step_id="draft")
        listing = yield call("list_documents")
        for document in (line.split()[0] for line in listing.splitlines()):
            text = yield call("read_document", document=document)
            for number, line in enumerate(text.splitlines(), start=1):
                if any(word in line for word in WISHES):
                    yield call("add_requirement", text=line, document=document, line=number)
        yield call("complete_step", step_id="draft")
        yield call("claim_step", step_id="review")
        written = yield call("read_requirements")
    return f"The list has {len(written.splitlines())} requirements:\n{written}"


agent = LlmAgent(
    name="writer",
    model=model(script),
    instruction="You write requirements: one sentence each, that a test can fail. Claim and complete each step.",
    tools=[documents.list_documents, documents.read_document, add_requirement, read_requirements, *planning_tools()],
    before_agent_callback=begin,
)
app = App(name="requirements_writer", root_agent=agent, plugins=[ContextPackPlugin()])
