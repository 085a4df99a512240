"""`adk api_server` over SQLite, stopped in the middle of a session: what the provider is sent before and after."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import httpx
import pytest
from adk_server import api_server
from scripted import sound, was_cut
from wire.servers import Reply, serving
from wire.sessions import CLIENTS, NATIVE, Scenario, answers, asks, calls, clerk, run, words

from aether_context import PackStore

pytestmark = pytest.mark.integration

AGENT = """
import os

from google.adk.apps import App
from wire.sessions import CLIENTS, clerk

from aether_context import PackPolicy
from aether_context.adk import ContextPackPlugin

root_agent = clerk(CLIENTS[os.environ["CLIENT"]].model(os.environ["PROVIDER"]), thinks=True)
plugin = ContextPackPlugin(policy=PackPolicy(max_input_tokens=8_000), store=os.environ["PACKS"])
app = App(name="river", root_agent=root_agent, plugins=[plugin])
"""
BEFORE, AFTER = 9, 4
"""Turns before and after the restart: the first cut comes in the ninth."""
WINDOW = 8_000


def turn(at: int) -> tuple[str, list[Reply]]:
    """A question, a call under a signed thought, and its answer."""
    thought = words(f"thought {at}", 60)
    return asks(at), [calls(f"k{at}", thought=thought), answers(at)._replace(thought=thought)]


def say(client: httpx.Client, text: str) -> None:
    message = {"role": "user", "parts": [{"text": text}]}
    body = {"appName": "river", "userId": "ann", "sessionId": "s1", "newMessage": message}
    events = client.post("/run", json=body).raise_for_status().json()
    assert "is sound" in str(events[-1])


@pytest.mark.parametrize("name", NATIVE)
def test_a_session_goes_on_in_the_next_process_as_in_the_one_before(name: str, tmp_path: Path) -> None:
    turns = [turn(at) for at in range(BEFORE + AFTER)]
    with run(name, Scenario(lambda llm: clerk(llm, thinks=True), turns)) as done:
        unbroken = done.server.requests
    folder = tmp_path / "agents" / "river"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("from . import agent\n")
    (folder / "agent.py").write_text(AGENT)
    options = (f"--session_service_uri=sqlite:///{tmp_path}/sessions.db", "--artifact_service_uri=memory://")
    with serving(CLIENTS[name].server(window=WINDOW)) as provider:
        paths = os.pathsep.join(path for path in sys.path if path)  # where the suite finds its own modules
        given = {"PYTHONPATH": paths, "CLIENT": name, "PROVIDER": provider.url, "PACKS": str(tmp_path / "packs")}
        for part in (turns[:BEFORE], turns[BEFORE:]):
            with api_server(folder.parent, *options, folder=tmp_path, env={**os.environ, **given}) as client:
                if not provider.requests:
                    client.post("/apps/river/users/ann/sessions/s1", json={}).raise_for_status()
                for text, replies in part:
                    provider.script[:] = replies
                    say(client, text)
        assert provider.faults == []
        assert provider.over == []
        assert [request.usage for request in provider.requests] == [request.usage for request in unbroken]
        assert [request.body for request in provider.requests] == [request.body for request in unbroken]
    manifests = sound(PackStore(tmp_path / "packs"))
    assert len(manifests) == len(unbroken)
    assert any(map(was_cut, manifests[: 2 * BEFORE]))
