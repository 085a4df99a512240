"""The memory service under `adk web`, chosen by its URI: two runs of the server share one file."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from pathlib import Path

import httpx
import pytest
from adk_server import api_server

from aether_context.memory import Memories

AGENT = '''
from google.adk.agents import LlmAgent
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.adk.tools import load_memory
from google.genai import types


class Keeper(BaseLlm):
    """Looks up what it is asked, and says what it was told."""

    async def generate_content_async(self, llm_request, stream=False):
        last = llm_request.contents[-1].parts[-1]
        if last.function_response:
            part = types.Part(text=f"I remember: {last.function_response.response}")
        elif last.text.endswith("?"):
            call = types.FunctionCall(name="load_memory", args={"query": last.text})
            part = types.Part(function_call=call)
        else:
            part = types.Part(text="Noted.")
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


root_agent = LlmAgent(name="keeper", model=Keeper(model="scripted"), tools=[load_memory])
'''
SERVICES = """
from aether_context.adk import register_memory_service

register_memory_service()
"""


@pytest.fixture
def agents(tmp_path: Path) -> Path:
    """A folder of one agent, and of the services that it may use."""
    folder = tmp_path / "agents"
    (folder / "keeper").mkdir(parents=True)
    (folder / "keeper" / "__init__.py").write_text("from . import agent\n")
    (folder / "keeper" / "agent.py").write_text(AGENT)
    (folder / "services.py").write_text(SERVICES)
    return folder


def serving(agents: Path, memory: str) -> AbstractContextManager[httpx.Client]:
    """`adk web` on a free port, while it runs."""
    others = [f"--{service}_service_uri=memory://" for service in ("session", "artifact")]
    options = (f"--memory_service_uri={memory}", *others)
    return api_server(agents, *options, folder=agents.parent, command="web")


def session(client: httpx.Client) -> str:
    return client.post("/apps/keeper/users/ann/sessions", json={}).raise_for_status().json()["id"]


def say(client: httpx.Client, held: str, text: str) -> str:
    """What the agent answers."""
    message = {"role": "user", "parts": [{"text": text}]}
    body = {"appName": "keeper", "userId": "ann", "sessionId": held, "newMessage": message}
    events = client.post("/run", json=body).raise_for_status().json()
    return "".join(part.get("text", "") for part in events[-1]["content"]["parts"])


@pytest.mark.integration
@pytest.mark.parametrize("place", ["file", "postgres"])
def test_adk_web_remembers_across_its_runs(agents: Path, place: str, request: pytest.FixtureRequest) -> None:
    kept, uri = "", "hybrid://kept/memories.sqlite?limit=3"
    if place == "postgres":
        kept = request.getfixturevalue("postgres").uri()
        uri = f"hybrid+{kept}&limit=3"
    with serving(agents, uri) as client:
        first = session(client)
        assert say(client, first, "My automobile is in the garage behind the mill.") == "Noted."
        assert "garage" not in say(client, session(client), "Where is the car?")
        client.patch("/apps/keeper/users/ann/memory", json={"session_id": first}).raise_for_status()
        assert "garage behind the mill" in say(client, session(client), "Where is the car?")
    with serving(agents, uri) as client:
        assert "garage behind the mill" in say(client, session(client), "Where is the car?")
    where = kept if place == "postgres" else str(agents / "kept" / "memories.sqlite")
    with contextlib.closing(Memories(where)) as memories:
        assert memories.users() == [("keeper", "ann", 2)]
