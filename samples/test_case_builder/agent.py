"""Derives test cases from a tariff and runs them on the code; its policy is a TOML file."""

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
from aether_context.state.knowledge import add_evidence

from .documents.postage import postage

PLAN = {
    "task_id": "postage",
    "goal": "Test cases that find where the code and the tariff differ.",
    "step": {
        "id": "limits",
        "text": "Test each weight limit of the tariff: at the limit, and one gram above it.",
        "role": "Tester",
        "acceptance": [
            {"id": "limits", "text": "Each limit has a case on it and one above it.", "needs_evidence": True},
            {"id": "abroad", "text": "One case goes abroad.", "needs_evidence": True},
        ],
    },
    "constraints": {"risk": "high"},
    "expected_tool_calls": 10,
}

here = Path(__file__).parent
documents = Documents(here / "documents")


def begin(callback_context: CallbackContext) -> None:
    """Puts the plan into a new session."""
    if "plan" not in callback_context.state:
        callback_context.state["plan"] = PLAN


async def run_case(grams: int, abroad: bool, expected: str, tool_context: ToolContext) -> str:
    """Runs a test case on the code and records it. expected is the price in cents, or refused."""
    try:
        got = str(postage(grams, abroad))
    except ValueError:
        got = "refused"
    verdict = "passed" if got == expected else f"FAILED, the code says {got}"
    where = "abroad" if abroad else "inland"
    case, name = f"{grams} g {where}, expected {expected}: {verdict}", f"cases/{grams}-{where}.txt"
    await tool_context.save_artifact(name, types.Part(text=case))
    covers = ["abroad" if abroad else "limits"]
    add_evidence(tool_context.state, id=name, uri=f"artifact://{name}", summary=case, covers=covers, time=time.time())
    return case


def script(asked: str) -> Play:
    yield call("read_document", document="tariff.md")
    cases = []
    for grams, abroad, expected in (
        (20, False, "95"),
        (21, False, "110"),
        (50, False, "110"),
        (51, False, "180"),
        (500, False, "180"),
        (501, False, "refused"),
        (0, False, "refused"),
        (20, True, "190"),
    ):
        cases.append((yield call("run_case", grams=grams, abroad=abroad, expected=expected)))
    failed = sum("FAILED" in case for case in cases)
    return "\n".join([f"{len(cases)} cases, {failed} failed:", *(f"- {case}" for case in cases)])


agent = LlmAgent(
    name="tester",
    model=model(script),
    instruction="You derive test cases from a tariff and run them. Report each case, and name those that failed.",
    tools=[documents.list_documents, documents.read_document, run_case],
    before_agent_callback=begin,
)
app = App(name="test_case_builder", root_agent=agent, plugins=[ContextPackPlugin(policy=here / "policy.toml")])
