"""Manifests among the app's own artifacts: there at the end of a run, never in its way."""

from __future__ import annotations

import asyncio
import time

import pytest
from google.adk.artifacts import FileArtifactService, InMemoryArtifactService
from scripted import Chat, call, look_up, new_store

from aether_context import Manifest
from aether_context.adk import ContextPackPlugin, FsspecArtifactService
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


class Failing(InMemoryArtifactService):
    async def save_artifact(self, **given):
        raise OSError("no room")


class Hanging(InMemoryArtifactService):
    async def save_artifact(self, **given):
        await asyncio.sleep(600)


@pytest.mark.parametrize("service", [Failing(), pytest.param(Hanging(), marks=pytest.mark.slow), None])
def test_a_service_that_fails_never_reaches_the_run(service, caplog):
    chat = mirrored(service)
    began = time.monotonic()
    assert chat.say("go")[-1].content.parts[0].text == "done"
    assert time.monotonic() - began < 60
    assert "mirrored" in caplog.text
    assert len(list(chat.store.manifests())) == 3
