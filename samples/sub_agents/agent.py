"""A coordinator that asks an agent as a tool and hands over to sub-agents; one plugin packs the calls of all."""

from __future__ import annotations

from pathlib import Path

from documents import Documents
from google.adk.agents import LlmAgent
from google.adk.apps import App
from google.adk.tools.agent_tool import AgentTool
from scripted_model import Play, call, model

from aether_context import PackPolicy
from aether_context.adk import ContextPackPlugin

documents = Documents(Path(__file__).parent / "documents")
TOPICS = {"accounts": "passwords, logins and accounts", "hardware": "laptops, printers and monitors"}


def librarian_script(asked: str) -> Play:
    found = yield call("search_documents", words=asked)
    return found.splitlines()[0]


def coordinator_script(asked: str) -> Play:
    found = yield call("librarian", request=asked)
    topic = next((name for name in TOPICS if found.startswith(f"{name}.md:")), None)
    if topic is not None:
        yield call("transfer_to_agent", agent_name=topic)
    return "No document says anything about it."


def specialist_script(topic: str, asked: str) -> Play:
    found = yield call("search_documents", words=asked)
    own = [line for line in found.splitlines() if line.startswith(f"{topic}.md:")]
    if not own:
        yield call("transfer_to_agent", agent_name="coordinator")
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
        instruction=f"You answer questions on {about} from {name}.md. Hand others back to the coordinator.",
        tools=[documents.search_documents],
    )
    for name, about in TOPICS.items()
]
coordinator = LlmAgent(
    name="coordinator",
    model=model(coordinator_script),
    instruction="Ask the librarian where a question belongs, then transfer to the agent for it.",
    tools=[AgentTool(librarian)],
    sub_agents=[*specialists],
)
policy = PackPolicy(agents={"librarian": "research"})
app = App(name="sub_agents", root_agent=coordinator, plugins=[ContextPackPlugin(policy=policy)])
