"""A coordinator asks an agent as a tool, puts a step on the board and hands over; one plugin packs the calls of all."""

from __future__ import annotations

from pathlib import Path

from documents import Documents
from google.adk.agents import LlmAgent
from google.adk.apps import App
from google.adk.tools.agent_tool import AgentTool
from scripted_model import Play, call, model

from aether_context import PackPolicy
from aether_context.adk import ContextPackPlugin, planning_tools

documents = Documents(Path(__file__).parent / "documents")
TOPICS = {"accounts": "passwords, logins and accounts", "hardware": "laptops, printers and monitors"}


def librarian_script(asked: str) -> Play:
    found = yield call("search_documents", words=asked)
    return found.splitlines()[0]


def coordinator_script(asked: str) -> Play:
    found = yield call("librarian", request=asked)
    topic = next((name for name in TOPICS if found.startswith(f"{name}.md:")), None)
    if topic is not None:
        yield call("add_step", step_id=topic, text=f"Answer: {asked}", acceptance=["It is answered from a document."])
        yield call("transfer_to_agent", agent_name=topic)
    return "No document says anything about it."


def specialist_script(topic: str, asked: str) -> Play:
    found = yield call("search_documents", words=asked)
    own = [line for line in found.splitlines() if line.startswith(f"{topic}.md:")]
    if not own:
        yield call("transfer_to_agent", agent_name="coordinator")
    yield call("claim_step", step_id=topic)
    yield call("complete_step", step_id=topic, notes=own[:1])
    return own[0].partition(": ")[2]


librarian = LlmAgent(
    name="librarian",
    model=model(librarian_script),
    description="Finds the line of a document that has to do with a request.",
    instruction="Search, and answer with the best line as it is, document and number included.",
    tools=[documents.search_documents],
)
specialists = [
    LlmAgent(
        name=name,
        model=model(lambda asked, topic=name: specialist_script(topic, asked)),
        description=f"Answers questions on {about}.",
        instruction=f"You answer questions on {about} from {name}.md: claim the step, complete it and answer. Hand "
        "questions on anything else back to the coordinator.",
        tools=[documents.search_documents, *planning_tools()],
    )
    for name, about in TOPICS.items()
]
coordinator = LlmAgent(
    name="coordinator",
    model=model(coordinator_script),
    instruction="Ask the librarian where a question belongs, add a step for it, and transfer to the agent for it.",
    tools=[AgentTool(librarian), *planning_tools()],
    sub_agents=[*specialists],
)
policy = PackPolicy(agents={"librarian": "research"})
app = App(name="team", root_agent=coordinator, plugins=[ContextPackPlugin(policy=policy)])
