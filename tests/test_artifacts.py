"""Artifacts: ADK's contract over its own services and over ours on every backend, and nothing outside its folder."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import threading
from pathlib import Path

import pytest
from adk_server import api_server
from artifact_checks import ARTIFACT_CHECKS
from failing import FailingFileSystem
from google.adk.artifacts import FileArtifactService, InMemoryArtifactService
from google.genai import types
from hypothesis import given
from hypothesis import strategies as st
from pack_inputs import recording

from aether_context import PackStore
from aether_context.adk import FsspecArtifactService
from aether_context.adk.services.artifacts import resolve
from aether_context.canonical import hash_bytes
from aether_context.errors import ArtifactError, StoreError
from aether_context.evidence import EvidenceRecord, evidence_uri
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


def test_savers_in_many_threads_and_loops_get_versions_of_their_own(place):
    url, options = place
    numbers = []

    def save(at):
        service = FsspecArtifactService(url, **options)

        async def several():
            for _ in range(3):
                numbers.append(await service.save_artifact(**HERE, filename="a", artifact={"text": f"{at}"}))

        asyncio.run(several())

    savers = [threading.Thread(target=save, args=(at,)) for at in range(4)]
    for one in savers:
        one.start()
    for one in savers:
        one.join()
    assert sorted(numbers) == list(range(12))


# names and places


def odd(generator: random.Random) -> str:
    """A name made to lead elsewhere."""
    pieces = [
        "..",
        ".",
        "/",
        "\\",
        "%2e%2e",
        "%2f",
        "\0",
        "\n",
        "~",
        "bob",
        "packs",
        "C:",
        "//",
        "\u202e",
        "A",
        "ß",
        "x" * 300,
    ]
    return "".join(generator.choice(pieces) for _ in range(generator.randint(1, 8)))


@pytest.mark.slow
def test_ten_thousand_hostile_names_stay_in_their_session(tmp_path):
    """Whatever names an artifact, its app, user or session: nothing but that session's folder is written or read."""
    root = tmp_path / "inner" / "store"
    generator = random.Random(7)
    service = FsspecArtifactService(root)
    asyncio.run(
        service.save_artifact(app_name="app", user_id="bob", session_id="s", filename="own", artifact={"text": "t"})
    )
    mine, others = root / "app" / "ann" / "s1" / "artifacts", {root / "app" / "bob" / "s" / "artifacts" / "own" / "0"}

    async def attack():
        for _ in range(10_000):
            name = odd(generator)
            try:
                await service.save_artifact(**HERE, filename=name.removeprefix("user:"), artifact={"text": name[:9]})
                part = await service.load_artifact(**HERE, filename=name)
            except ValueError:
                continue
            assert part.text == name[:9]

    asyncio.run(attack())
    written = {path for path in tmp_path.rglob("*") if path.is_file()}
    assert len(written) > 1_000
    assert {path for path in written if mine not in path.parents} == others


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


def test_symbolic_links_in_a_local_store_lead_nowhere(tmp_path):
    outside, root = tmp_path / "outside", tmp_path / "store"
    (outside / "0").mkdir(parents=True)
    (outside / "secret").write_text("secret")
    session = root / "app" / "ann" / "s1"
    (session / "artifacts" / "a.txt").mkdir(parents=True)
    (session / "artifacts" / "folder").symlink_to(outside)
    (session / "artifacts" / "a.txt" / "0").symlink_to(outside / "secret")
    (root / "app" / "eve").symlink_to(root / "app" / "ann")
    service = FsspecArtifactService(root)

    async def work():
        assert await service.list_artifact_keys(**HERE) == []
        for name, version in (("a.txt", 0), ("a.txt", None), ("folder", 0)):
            with contextlib.suppress(StoreError):
                assert await service.load_artifact(**HERE, filename=name, version=version) is None
        with pytest.raises(StoreError, match="symbolic link"):
            await service.save_artifact(**HERE, filename="folder", artifact={"text": "x"})
        with pytest.raises(StoreError, match="symbolic link"):
            await service.save_artifact(**{**HERE, "user_id": "eve"}, filename="new", artifact={"text": "x"})

    asyncio.run(work())
    assert sorted(path.name for path in outside.iterdir()) == ["0", "secret"]
    assert (outside / "secret").read_text() == "secret"


# one file a version


def test_a_damaged_version_says_so_and_spares_the_others(tmp_path):
    service = FsspecArtifactService(tmp_path)

    async def work():
        for text in ("one", "two"):
            await service.save_artifact(**HERE, filename="a", artifact={"text": text})
        path = tmp_path / "app" / "ann" / "s1" / "artifacts" / "a" / "1"
        path.write_bytes(b"no json\nbytes")
        with pytest.raises(ArtifactError, match="version 1, is damaged"):
            await service.load_artifact(**HERE, filename="a")
        assert (await service.load_artifact(**HERE, filename="a", version=0)).text == "one"

    asyncio.run(work())


def test_parts_keep_what_else_they_hold(place):
    url, options = place
    service = FsspecArtifactService(url, **options)
    blob = types.Blob(data=b"\n\x00", mime_type="image/png", display_name="a")
    part = types.Part(inline_data=blob, thought_signature=b"\xff\x00")
    titled = types.Part(text="a caption", inline_data=types.Blob(data=b"\xff\x00", mime_type="image/png"))
    file = types.Part(file_data=types.FileData(file_uri="gs://bucket/x.pdf", mime_type="application/pdf"))

    async def work():
        for saved in (part, titled, file):
            await service.save_artifact(**HERE, filename="a", artifact=saved)
            assert await service.load_artifact(**HERE, filename="a") == saved
        found = await service.get_artifact_version(**HERE, filename="a")
        assert found.mime_type == "application/pdf"

    asyncio.run(work())


def test_the_event_loop_goes_on_while_a_store_is_slow(monkeypatch):
    monkeypatch.setattr(FailingFileSystem, "delay_seconds", 0.5)
    service = FsspecArtifactService("failing://slow")

    async def work():
        saving = asyncio.create_task(service.save_artifact(**HERE, filename="a", artifact={"text": "x"}))
        rounds = 0
        while not saving.done():
            await asyncio.sleep(0.01)
            rounds += 1
        assert await saving == 0
        assert rounds > 10

    asyncio.run(work())


# URIs


@pytest.mark.parametrize(
    "uri",
    [
        "artifact://",
        "artifact://../other",
        "artifact://a/../../b",
        "artifact:///etc/passwd",
        "artifact://a//b",
        "artifact://a/%2e%2e/b",
        "artifact://%252e%252e/b",
        "artifact://a%2fb",
        "artifact://a\\..\\b",
        "artifact://C:/windows",
        "artifact://user:profile",
        "artifact://a\x00b",
        "file:///etc/passwd",
        "",
    ],
)
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


def test_our_canonical_uris_resolve(tmp_path):
    service = FsspecArtifactService(tmp_path)

    async def work():
        for name in ("a.txt", "folder/b.txt", "user:c.txt"):
            await service.save_artifact(**HERE, filename=name, artifact={"text": name})
            found = await service.get_artifact_version(**HERE, filename=name)
            assert (
                await resolve(found.canonical_uri, app="app", user="ann", session="s1", artifacts=service)
                == name.encode()
            )

    asyncio.run(work())


def test_what_a_message_lost_resolves_from_the_store(tmp_path):
    made = recording()
    uri = "artifact://messages/0123456789abcdef.txt"
    store = PackStore(tmp_path)
    manifest = store.write(made._replace(saved={uri: "the middle"}))
    place = {"app": manifest.app, "user": manifest.user, "session": manifest.session}
    assert asyncio.run(resolve(uri, **place, store=store)) == b"the middle"
    with pytest.raises(ArtifactError, match="not there"):
        asyncio.run(resolve(uri, **{**place, "session": "other"}, store=store))


def test_an_offloaded_result_resolves_in_its_session_alone(tmp_path):
    store = PackStore(tmp_path)
    data = b"a long result"
    uri = evidence_uri(hash_bytes(data), "txt")
    record = EvidenceRecord(uri=uri, digest=hash_bytes(data), size_bytes=len(data), source="search")
    store.write_evidence("app", "ann", "s1", record, data)
    assert asyncio.run(resolve(uri, app="app", user="ann", session="s1", store=store)) == data
    for other in ({"session": "s2"}, {"user": "bob"}):
        with pytest.raises(ArtifactError, match="not there"):
            asyncio.run(resolve(uri, **{"app": "app", "user": "ann", "session": "s1", **other}, store=store))
    for file in (tmp_path / "app" / "ann" / "evidence").rglob("*.bin"):
        file.unlink()
    with pytest.raises(ArtifactError, match="call search again"):
        asyncio.run(resolve(uri, app="app", user="ann", session="s1", store=PackStore(tmp_path)))


# under `adk`


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
