"""Artifacts: ADK's contract over its own services and over ours on every backend, and nothing outside its folder."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from adk_server import api_server
from artifact_checks import ARTIFACT_CHECKS
from google.adk.artifacts import FileArtifactService, InMemoryArtifactService
from hypothesis import given
from hypothesis import strategies as st
from packs import recording

from aether_context import PackStore
from aether_context.adk import FsspecArtifactService
from aether_context.adk.services.artifacts import resolve
from aether_context.errors import ArtifactError, StoreError
from aether_context.store.artifacts import located

HERE = {"app_name": "app", "user_id": "ann", "session_id": "s1"}


def name_of(check):
    return check.__name__


@pytest.mark.parametrize("check", ARTIFACT_CHECKS, ids=name_of)
def test_adk_keeps_its_own_contract(check, tmp_path):
    asyncio.run(check(InMemoryArtifactService()))
    asyncio.run(check(FileArtifactService(tmp_path)))


@pytest.mark.parametrize("check", ARTIFACT_CHECKS, ids=name_of)
def test_ours_keeps_it_on_every_backend(check, place):
    url, options = place
    asyncio.run(check(FsspecArtifactService(url, **options)))


@given(st.text(min_size=1, max_size=80), st.text(max_size=40))
def test_names_come_back_as_they_were_given(name, user):
    service = FsspecArtifactService(f"memory://names-{hash((name, user))}")
    place = {"app_name": "app", "user_id": f"u{user}", "session_id": "s"}

    async def work():
        try:
            await service.save_artifact(**place, filename=name, artifact={"text": "x"})
        except ValueError:
            return
        assert await service.list_artifact_keys(**place) == [name]
        await service.delete_artifact(**place, filename=name)
        assert await service.list_artifact_keys(**place) == []

    asyncio.run(work())


@pytest.mark.parametrize(
    "uri",
    [
        "artifact://", "artifact://../other", "artifact://a/../../b", "artifact:///etc/passwd", "artifact://a//b",
        "artifact://a/%2e%2e/b", "artifact://%252e%252e/b", "artifact://a%2fb", "artifact://a\\..\\b",
        "artifact://C:/windows", "artifact://user:profile", "artifact://a\x00b", "file:///etc/passwd", "",
    ],
)  # fmt: skip
def test_uris_that_lead_elsewhere_are_refused(uri):
    with pytest.raises(ArtifactError, match="artifact URI"):
        located(uri, ("app", "ann", "s1"))


def service_of(kind, tmp_path):
    services = {"memory": InMemoryArtifactService, "file": lambda: FileArtifactService(tmp_path / "file")}
    return services.get(kind, lambda: FsspecArtifactService(tmp_path / "ours"))()


@pytest.mark.parametrize("kind", ["memory", "file", "ours"])
def test_uris_of_both_kinds_resolve(kind, tmp_path):
    service = service_of(kind, tmp_path)
    absolute = "artifact://apps/app/users/ann/sessions/s1/artifacts/tasks/42/report.md/versions/0"
    of_user = "artifact://apps/app/users/ann/artifacts/profile/versions/0"

    def found(uri, **other):
        place = {"app": "app", "user": "ann", "session": "s1", **other}
        return asyncio.run(resolve(uri, **place, artifacts=service))

    async def save():
        for text in ("first", "second"):
            await service.save_artifact(**HERE, filename="tasks/42/report.md", artifact={"text": text})
        await service.save_artifact(**HERE, filename="user:profile", artifact={"text": "of ann"})
        blob = {"data": b"\x00\x01", "mime_type": "image/png"}
        await service.save_artifact(**HERE, filename="a.png", artifact={"inline_data": blob})

    asyncio.run(save())
    assert found("artifact://tasks/42/report.md") == b"second"
    assert found(absolute) == b"first"
    assert found(of_user, session="s2") == b"of ann"
    assert found("artifact://a.png") == b"\x00\x01"
    for uri, other in ((absolute, {"session": "s2"}), (absolute, {"user": "bob"}), (of_user, {"app": "x"})):
        with pytest.raises(ArtifactError, match="not of this session"):
            found(uri, **other)
    for uri in ("artifact://nowhere", absolute.replace("versions/0", "versions/9")):
        with pytest.raises(ArtifactError, match="not there"):
            found(uri)


def test_what_a_message_lost_resolves_from_the_store(tmp_path):
    made = recording()
    uri = "artifact://messages/0123456789abcdef.txt"
    store = PackStore(tmp_path)
    manifest = store.write(made._replace(saved={uri: "the middle"}))
    place = {"app": manifest.app, "user": manifest.user, "session": manifest.session}
    assert asyncio.run(resolve(uri, **place, store=store)) == b"the middle"
    with pytest.raises(ArtifactError, match="not there"):
        asyncio.run(resolve(uri, **{**place, "session": "other"}, store=store))


def test_uris_say_where_and_how(tmp_path):
    assert FsspecArtifactService("fsspec+memory://a/b").url == "memory://a/b"
    assert FsspecArtifactService("fsspec+file:///abs/x").url == "file:///abs/x"
    assert FsspecArtifactService("fsspec+file://near/x", agents_dir=str(tmp_path)).url == str(tmp_path / "near" / "x")
    service = FsspecArtifactService("fsspec+file:///abs/x?auto_mkdir=true")
    assert service._artifacts._files.fs.auto_mkdir is True
    for uri in ("fsspec+", "fsspec+nosuch://x"):
        with pytest.raises(StoreError):
            FsspecArtifactService(uri)


@pytest.mark.integration
def test_adk_serves_artifacts_from_it(tmp_path):
    """`adk api_server` with the URI scheme: an artifact saved over HTTP is there for another process."""
    agents = tmp_path / "agents"
    (agents / "shop").mkdir(parents=True)
    (agents / "shop" / "__init__.py").write_text("from . import agent\n")
    (agents / "shop" / "agent.py").write_text(
        "from google.adk.agents import LlmAgent\nroot_agent = LlmAgent(name='shop', model='gemini-2.5-flash')\n"
    )
    (agents / "services.py").write_text(
        "from aether_context.adk import register_artifact_service\n\nregister_artifact_service()\n"
    )
    uri = f"fsspec+file://{tmp_path / 'kept'}"
    services = ["--session_service_uri=memory://", f"--artifact_service_uri={uri}"]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    with api_server(agents, *services, folder=tmp_path, env=env) as client:
        client.post("/apps/shop/users/ann/sessions/s1", json={}).raise_for_status()
        base = "/apps/shop/users/ann/sessions/s1/artifacts"
        body = {"filename": "report.md", "artifact": {"text": "of the day"}, "customMetadata": {"step": "1"}}
        saved = client.post(base, json=body).raise_for_status().json()
        assert saved["canonicalUri"].startswith("artifact://apps/shop/users/ann/sessions/s1/artifacts/report.md")
        assert client.get(base).json() == ["report.md"]
        assert client.get(f"{base}/report.md").json()["text"] == "of the day"
        assert client.get(f"{base}/report.md/versions").json() == [0]
    service = FsspecArtifactService(tmp_path / "kept")
    place = {"app_name": "shop", "user_id": "ann", "session_id": "s1"}
    assert asyncio.run(service.load_artifact(**place, filename="report.md")).text == "of the day"
    found = asyncio.run(service.get_artifact_version(**place, filename="report.md"))
    assert found.custom_metadata == {"step": "1"}
