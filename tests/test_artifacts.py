"""Artifacts: ADK's contract over its own services and over ours on every backend, nothing outside its folder, and
manifests among them.

Each check of the contract wants a service that holds nothing. Where ADK's own services differ from each other, either
way passes: whether text has a MIME type, whether a name without a session is of the user or refused, whether ``..`` in
a name is refused or is but a name, and whether a part may refer to a file elsewhere.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from adk_server import api_server
from google.adk.artifacts import FileArtifactService, InMemoryArtifactService
from google.genai import types
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import Chat, call, look_up, new_store

from aether_context import Manifest
from aether_context.adk import ContextPackPlugin, FsspecArtifactService
from aether_context.errors import StoreError

HERE = {"app_name": "app", "user_id": "ann", "session_id": "s1"}


async def versions_count_from_zero(service: Any) -> None:
    for at in range(3):
        assert await _save(service, f"text {at}") == at
    assert await _text(service) == "text 2"
    assert [await _text(service, version=at) for at in range(3)] == ["text 0", "text 1", "text 2"]
    assert await service.list_versions(**HERE, filename="a.txt") == [0, 1, 2]


async def what_is_not_there_is_none(service: Any) -> None:
    assert await service.load_artifact(**HERE, filename="a.txt") is None
    assert await service.get_artifact_version(**HERE, filename="a.txt") is None
    assert await service.list_versions(**HERE, filename="a.txt") == []
    assert await service.list_artifact_versions(**HERE, filename="a.txt") == []
    assert await service.list_artifact_keys(**HERE) == []
    await service.delete_artifact(**HERE, filename="a.txt")
    await _save(service, "one")
    for version in (1, 7, -1):
        assert await service.load_artifact(**HERE, filename="a.txt", version=version) is None
        assert await service.get_artifact_version(**HERE, filename="a.txt", version=version) is None


async def bytes_come_back_as_they_were(service: Any) -> None:
    for at, data in enumerate((b"\x00\xff\r\n\n{}", bytes(range(256)) * 20_000)):
        blob = {"data": data, "mime_type": "image/png", "display_name": "Bild.png"}
        await service.save_artifact(**HERE, filename=f"{at}.png", artifact={"inline_data": blob})
        part = await service.load_artifact(**HERE, filename=f"{at}.png")
        assert part.inline_data.data == data
        assert (part.inline_data.mime_type, part.inline_data.display_name) == ("image/png", "Bild.png")


async def text_comes_back_as_it_was(service: Any) -> None:
    for text in ("", "plain", "Zeile\n日本語 🐈\tend", "x" * 300_000):
        await _save(service, text, filename="t.txt")
        assert await _text(service, filename="t.txt") == text


async def what_was_loaded_is_a_copy(service: Any) -> None:
    blob = {"data": b"abc", "mime_type": "image/png"}
    await service.save_artifact(**HERE, filename="a.png", artifact={"inline_data": blob})
    first = await service.load_artifact(**HERE, filename="a.png")
    first.inline_data.data = b"changed"
    assert (await service.load_artifact(**HERE, filename="a.png")).inline_data.data == b"abc"


async def metadata_is_kept_by_version(service: Any) -> None:
    for at in range(2):
        blob = {"data": b"x", "mime_type": "image/png"}
        metadata = {"step": f"step-{at}", "note": "ü"}
        await service.save_artifact(**HERE, filename="a.png", artifact={"inline_data": blob}, custom_metadata=metadata)
    found = await service.list_artifact_versions(**HERE, filename="a.png")
    assert [version.version for version in found] == [0, 1]
    assert [version.custom_metadata["step"] for version in found] == ["step-0", "step-1"]
    assert {version.mime_type for version in found} == {"image/png"}
    assert len({version.canonical_uri for version in found}) == 2
    assert all(version.create_time > 0 for version in found)
    last = await service.get_artifact_version(**HERE, filename="a.png")
    first = await service.get_artifact_version(**HERE, filename="a.png", version=0)
    assert (last.version, last.custom_metadata["note"]) == (1, "ü")
    assert (first.version, first.custom_metadata["step"]) == (0, "step-0")


async def large_metadata_is_kept(service: Any) -> None:
    metadata = {"note": "n" * 50_000}
    await service.save_artifact(**HERE, filename="a.txt", artifact={"text": "short"}, custom_metadata=metadata)
    assert (await service.get_artifact_version(**HERE, filename="a.txt")).custom_metadata == metadata
    assert await _text(service) == "short"


async def sessions_users_and_apps_are_apart(service: Any) -> None:
    others = {"session_id": "s2"}, {"user_id": "bob"}, {"app_name": "other"}, {"session_id": "S1"}
    places = [HERE, *({**HERE, **other} for other in others)]
    for at, place in enumerate(places):
        await service.save_artifact(**place, filename="a.txt", artifact={"text": f"of {at}"})
    for at, place in enumerate(places):
        part = await service.load_artifact(**place, filename="a.txt")
        assert part.text == f"of {at}"
        assert await service.list_versions(**place, filename="a.txt") == [0]
        assert await service.list_artifact_keys(**place) == ["a.txt"]


async def names_of_users_are_seen_in_all_their_sessions(service: Any) -> None:
    await _save(service, "mine", filename="user:profile.txt")
    other = {**HERE, "session_id": "s2"}
    assert (await service.load_artifact(**other, filename="user:profile.txt")).text == "mine"
    assert await service.save_artifact(**other, filename="user:profile.txt", artifact={"text": "later"}) == 1
    assert await _text(service, filename="user:profile.txt") == "later"
    assert await service.list_artifact_keys(**other) == ["user:profile.txt"]
    owner = {"app_name": "app", "user_id": "ann"}
    assert await service.list_artifact_keys(**owner) == ["user:profile.txt"]
    assert await service.list_artifact_keys(**{**HERE, "user_id": "bob"}) == []
    assert await service.load_artifact(**HERE, filename="profile.txt") is None


async def keys_are_complete_and_sorted(service: Any) -> None:
    names = ["b.txt", "a.txt", "a.txt/inner.txt", "folder/deep/c.txt", "Upper.TXT", "user:u.txt", "user:f/u.txt"]
    for name in (*names, "a.txt"):
        await _save(service, name, filename=name)
    keys = await service.list_artifact_keys(**HERE)
    assert keys == sorted(names)
    assert [await _text(service, filename=key) for key in keys] == keys


async def deleting_takes_all_versions_of_one_name(service: Any) -> None:
    for name in ("doc", "doc", "doc/inner", "docs", "user:doc"):
        await _save(service, name, filename=name)
    await service.delete_artifact(**HERE, filename="doc")
    assert await service.load_artifact(**HERE, filename="doc") is None
    assert await service.list_versions(**HERE, filename="doc") == []
    assert await service.list_artifact_keys(**HERE) == ["doc/inner", "docs", "user:doc"]
    assert await _text(service, filename="doc/inner") == "doc/inner"
    assert await _save(service, "again", filename="doc") == 0
    await service.delete_artifact(**HERE, filename="user:doc")
    assert await service.list_artifact_keys(**HERE) == ["doc", "doc/inner", "docs"]


async def savers_at_the_same_time_get_versions_of_their_own(service: Any) -> None:
    numbers = await asyncio.gather(*(_save(service, f"by {at}") for at in range(10)))
    assert sorted(numbers) == list(range(10))
    assert [await _text(service, version=number) for number in numbers] == [f"by {at}" for at in range(10)]


async def a_rewind_takes_an_artifact_back(service: Any) -> None:
    await _save(service, "one")
    gone = {"inline_data": {"data": b"", "mime_type": "application/octet-stream"}}
    assert await service.save_artifact(**HERE, filename="a.txt", artifact=gone) == 1
    assert await service.load_artifact(**HERE, filename="a.txt") is None
    assert await _text(service, version=0) == "one"


async def references_are_followed_inside_their_session(service: Any) -> None:
    await _save(service, "target")
    own = "artifact://apps/app/users/ann/sessions/s1/artifacts/a.txt/versions/0"
    if not await _takes(service, "ref", own):
        return
    assert await _text(service, filename="ref") == "target"
    foreign = (own.replace("s1", "s2"), own.replace("ann", "bob"), own.replace("apps/app", "apps/x"), "artifact://odd")
    for uri in foreign:
        assert not await _takes(service, "foreign", uri)
    ring = own.replace("a.txt", "ring")
    assert await _takes(service, "ring", ring)
    assert await _refuses(service.load_artifact(**HERE, filename="ring"))


async def odd_names_stay_in_their_session(service: Any) -> None:
    await service.save_artifact(**{**HERE, "session_id": "s2"}, filename="mine", artifact={"text": "untouched"})
    relative = ("../../other/secret.txt", "..", "..\\..\\secret.txt", "%2e%2e%2fsecret.txt", "a/../../../b")
    absolute = ("/etc/passwd", "C:\\windows\\win.ini", "nul.txt", "con", "0", "x" * 3_000, "a\nb", "Ärger 日本.txt")
    for name in (*relative, *absolute, "versions", "metadata.json", "name.json"):
        if await _refuses(service.save_artifact(**HERE, filename=name, artifact={"text": "odd"})):
            continue
        assert await _text(service, filename=name) == "odd"
        assert await service.list_artifact_keys(**HERE) == [name]
        await service.delete_artifact(**HERE, filename=name)
        assert await service.list_artifact_keys(**HERE) == []
    other = {**HERE, "session_id": "s2"}
    assert await service.list_artifact_keys(**other) == ["mine"]
    assert (await service.load_artifact(**other, filename="mine")).text == "untouched"


async def owners_that_lead_elsewhere_are_refused(service: Any) -> None:
    for field in ("app_name", "user_id", "session_id"):
        for name in ("", "..", "../x", "a/../b", "/abs", "a\x00b"):
            place = {**HERE, field: name}
            assert await _refuses(service.save_artifact(**place, filename="a.txt", artifact={"text": "x"}))
            assert await _refuses(service.load_artifact(**place, filename="a.txt"))
            assert await _refuses(service.list_artifact_keys(**place)) or field == "session_id"


async def a_part_with_nothing_to_keep_is_refused(service: Any) -> None:
    assert await _refuses(service.save_artifact(**HERE, filename="a.txt", artifact={}))
    assert await service.list_versions(**HERE, filename="a.txt") == []


async def _save(service: Any, text: str, filename: str = "a.txt") -> Any:
    return await service.save_artifact(**HERE, filename=filename, artifact={"text": text})


async def _text(service: Any, filename: str = "a.txt", version: int | None = None) -> Any:
    return (await service.load_artifact(**HERE, filename=filename, version=version)).text


async def _takes(service: Any, name: str, uri: str) -> bool:
    return not await _refuses(service.save_artifact(**HERE, filename=name, artifact={"file_data": {"file_uri": uri}}))


async def _refuses(asked: Awaitable[Any]) -> bool:
    """Whether a call is refused as wrong; OSError is how a file system refuses a name that is too long."""
    try:
        await asked
    except (ValueError, OSError):
        return True
    return False


ARTIFACT_CHECKS: tuple[Callable[[Any], Awaitable[None]], ...] = tuple(
    check
    for name, check in globals().items()
    if inspect.iscoroutinefunction(check) and check.__module__ == __name__ and not name.startswith("_")
)
"""Every check above, in the order in which a broken service is best understood."""


def name_of(check):
    return check.__name__


@pytest.mark.slow
@pytest.mark.parametrize("check", ARTIFACT_CHECKS, ids=name_of)
def test_adk_keeps_its_own_contract(check, tmp_path):
    asyncio.run(check(InMemoryArtifactService()))
    asyncio.run(check(FileArtifactService(tmp_path)))


@pytest.mark.parametrize("check", ARTIFACT_CHECKS, ids=name_of)
def test_ours_keeps_it_on_every_backend(check, place):
    url, options = place
    asyncio.run(check(FsspecArtifactService(url, **options)))


@given(st.text(min_size=1, max_size=80), st.text(max_size=40))
@settings(max_examples=8)
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


SHOP = {"app_name": "shop", "user_id": "ann", "session_id": "s1"}
ABSOLUTE = "artifact://apps/shop/users/ann/sessions/s1/artifacts/tasks/42/report.md/versions/0"
OF_USER = "artifact://apps/shop/users/ann/artifacts/profile/versions/0"


def read(*uris):
    """What `read_artifact` answers in a session with a report, beside which the user has a profile."""
    service = InMemoryArtifactService()
    for filename, text in (("tasks/42/report.md", "of the day"), ("user:profile", "of the user")):
        asyncio.run(service.save_artifact(**SHOP, filename=filename, artifact=types.Part(text=text)))
    state = {"knowledge": {"evidence": [{"uri": "artifact://tasks/42/report.md", "summary": "It says so."}]}}
    script = [[call("read_artifact", uri=uri) for uri in uris], "done"]
    chat = Chat(script=script, tools=[look_up], state=state, artifacts=service)
    chat.say("go")
    return chat.sent[-1].answers("read_artifact")


def test_uris_that_lead_elsewhere_are_refused():
    uris = [
        "artifact://", "artifact://../other", "artifact://a/../../b", "artifact:///etc/passwd", "artifact://a//b",
        "artifact://a/%2e%2e/b", "artifact://%252e%252e/b", "artifact://a%2fb", "artifact://a\\..\\b",
        "artifact://C:/windows", "artifact://user:profile", "artifact://a\x00b", "file:///etc/passwd",
        "artifact://apps/shop/users/ann/sessions/s1/artifacts/../../s2/artifacts/a/versions/0",
        "artifact://apps/shop/users/ann/artifacts/a/%2e%2e/b/versions/0",
    ]  # fmt: skip
    answers = read(*uris)
    assert len(answers) == len(uris)
    assert [uri for uri, answer in zip(uris, answers, strict=True) if "artifact URI" not in str(answer["error"])] == []


def test_uris_are_relative_to_the_session_or_absolute_as_adk_writes_them():
    others = [ABSOLUTE.replace("s1", "s2"), ABSOLUTE.replace("ann", "bob"), OF_USER.replace("shop", "x")]
    relative, absolute, of_user, *foreign = read("artifact://tasks/42/report.md", ABSOLUTE, OF_USER, *others)
    assert [answer["text"] for answer in (relative, absolute, of_user)] == ["of the day", "of the day", "of the user"]
    assert ["not of this session" in answer["error"] for answer in foreign] == [True] * 3


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


def service_of(kind, tmp_path):
    services = {"memory": InMemoryArtifactService, "file": lambda: FileArtifactService(tmp_path / "file")}
    return services.get(kind, lambda: FsspecArtifactService(tmp_path / "ours"))()


def mirrored(service, calls=3, **given):
    plugin = ContextPackPlugin(store=new_store(), on_error="raise", mirror_artifacts=True)
    script = [*(call("look_up", key=str(at)) for at in range(calls - 1)), "done"]
    chat = Chat(plugin=plugin, script=script, tools=[look_up], **given)
    chat.runner.artifact_service = service
    return chat


@pytest.mark.parametrize("kind", ["memory", "file", "ours"])
def test_manifests_are_artifacts_of_their_session(kind, tmp_path):
    service = service_of(kind, tmp_path)
    chat = mirrored(service)
    chat.say("go")
    manifests = list(chat.store.manifests())
    assert len(manifests) == 3
    keys = asyncio.run(service.list_artifact_keys(**SHOP))
    assert keys == sorted(f"packs/{one.pack_id}/manifest.json" for one in manifests)
    for one in manifests:
        part = asyncio.run(service.load_artifact(**SHOP, filename=f"packs/{one.pack_id}/manifest.json"))
        held = Manifest.parse(part.inline_data.data)
        held.verify()
        assert held == one
        found = asyncio.run(service.get_artifact_version(**SHOP, filename=f"packs/{one.pack_id}/manifest.json"))
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
