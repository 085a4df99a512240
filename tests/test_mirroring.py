"""Manifests among the app's own artifacts: there at the end of a run, never in its way."""

from __future__ import annotations

import asyncio
import json
import time

import pytest
from google.adk.agents import LlmAgent
from google.adk.artifacts import FileArtifactService, InMemoryArtifactService
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.genai import types
from scripted import Chat, Scripted, call, look_up, new_store

from aether_context import Manifest
from aether_context.adk import ContextPackPlugin, FsspecArtifactService, context_pack_callbacks
from aether_context.adk.services.artifacts import resolve

PLACE = {"app_name": "shop", "user_id": "ann", "session_id": "s1"}


def mirrored(service, calls=3, **given):
    plugin = ContextPackPlugin(store=new_store(), on_error="raise", mirror_artifacts=True)
    script = [*(call("look_up", key=str(at)) for at in range(calls - 1)), "done"]
    chat = Chat(plugin=plugin, script=script, tools=[look_up], **given)
    chat.runner.artifact_service = service
    return chat


@pytest.mark.parametrize("kind", ["memory", "file", "ours"])
def test_manifests_are_artifacts_of_their_session(kind, tmp_path):
    services = {"memory": InMemoryArtifactService, "file": lambda: FileArtifactService(tmp_path)}
    service = services.get(kind, lambda: FsspecArtifactService(tmp_path))()
    chat = mirrored(service)
    chat.say("go")
    manifests = list(chat.store.manifests())
    assert len(manifests) == 3
    keys = asyncio.run(service.list_artifact_keys(**PLACE))
    assert keys == sorted(f"packs/{one.pack_id}.json" for one in manifests)
    for one in manifests:
        uri = f"artifact://packs/{one.pack_id}.json"
        data = asyncio.run(resolve(uri, app="shop", user="ann", session="s1", artifacts=service))
        held = Manifest.parse(data)
        held.verify()
        assert held == one
        found = asyncio.run(service.get_artifact_version(**PLACE, filename=f"packs/{one.pack_id}.json"))
        assert found.custom_metadata["checksum"] == one.checksum


def test_events_tell_of_what_was_saved():
    def work(key: str) -> str:
        """A tool that takes its time."""
        time.sleep(0.2)
        return key

    plugin = ContextPackPlugin(store=new_store(), on_error="raise", mirror_artifacts=True)
    chat = Chat(plugin=plugin, script=[*(call("work", key=str(at)) for at in range(4)), "done"], tools=[work])
    chat.runner.artifact_service = InMemoryArtifactService()
    chat.say("go")
    told = {name for event in asyncio.run(chat.held()).events for name in event.actions.artifact_delta}
    known = {f"packs/{one.pack_id}.json" for one in chat.store.manifests()}
    assert told
    assert told <= known


def test_without_it_there_are_none():
    service = InMemoryArtifactService()
    chat = Chat(plugin=ContextPackPlugin(store=new_store(), on_error="raise"))
    chat.runner.artifact_service = service
    chat.say("go")
    assert asyncio.run(service.list_artifact_keys(**PLACE)) == []


class Failing(InMemoryArtifactService):
    async def save_artifact(self, **given):
        raise OSError("no room")


class Hanging(InMemoryArtifactService):
    async def save_artifact(self, **given):
        await asyncio.sleep(600)


class Late(InMemoryArtifactService):
    """Saves nothing before the model has been called so often."""

    calls: int
    sent: list = []

    async def save_artifact(self, **given):
        while len(self.sent) < self.calls:
            await asyncio.sleep(0.01)
        return await super().save_artifact(**given)


@pytest.mark.parametrize("service", [Failing(), pytest.param(Hanging(), marks=pytest.mark.slow), None])
def test_a_service_that_fails_never_reaches_the_run(service, caplog):
    chat = mirrored(service)
    began = time.monotonic()
    assert chat.say("go")[-1].content.parts[0].text == "done"
    assert time.monotonic() - began < 60
    assert "mirrored" in caplog.text
    assert len(list(chat.store.manifests())) == 3


def test_saving_takes_no_time_from_the_calls():
    service = Late(calls=10)
    chat = mirrored(service, calls=10)
    service.sent = chat.llm.sent
    chat.say("go")
    assert len(asyncio.run(service.list_artifact_keys(**PLACE))) == 10


def test_callbacks_of_an_agent_mirror_too():
    store, service = new_store(), InMemoryArtifactService()
    settings = dict(context_pack_callbacks(store=store, on_error="raise", mirror_artifacts=True))
    agent = LlmAgent(name="clerk", model=Scripted(script=["done"]), **settings)
    runner = Runner(
        app_name="shop",
        agent=agent,
        session_service=InMemorySessionService(),
        artifact_service=service,
        auto_create_session=True,
    )

    async def work():
        message = types.Content(role="user", parts=[types.Part(text="go")])
        async for _ in runner.run_async(user_id="ann", session_id="s1", new_message=message):
            pass

    asyncio.run(work())
    (manifest,) = store.manifests()
    (key,) = asyncio.run(service.list_artifact_keys(**PLACE))
    part = asyncio.run(service.load_artifact(**PLACE, filename=key))
    assert json.loads(part.inline_data.data)["pack_id"] == manifest.pack_id
