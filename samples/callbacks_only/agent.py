"""A plain chat agent with the packs' callbacks on it: no app, no plan, one line more.

Its window is small on purpose: at the second question the first answer's search no longer fits, and is cut.
"""

from __future__ import annotations

from pathlib import Path

from documents import Documents
from google.adk.agents import LlmAgent
from scripted_model import Play, call, model

from aether_context import PackPolicy
from aether_context.adk import context_pack_callbacks

documents = Documents(Path(__file__).parent / "documents")


def script(asked: str) -> Play:
    found = yield call("search_documents", words=asked)
    return f"The handbook says: {found.splitlines()[0]}"


root_agent = LlmAgent(
    name="gardener",
    model=model(script),
    instruction="You answer questions on the garden from its handbook, and name the line.",
    tools=[documents.search_documents],
    **context_pack_callbacks(policy=PackPolicy(max_input_tokens=900)),
)
