"""Verification: every byte of every file, packs that are missing, and packs that somebody else made."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import packs
import pytest
from google.genai import types
from scripted import Chat, big_file, call

from aether_context import PackPolicy, PackStore
from aether_context.adk import ContextPackPlugin, FsspecArtifactService
from aether_context.store.files import File
from aether_context.store.layout import FORGOTTEN, entry_of
from aether_context.store.pack_file import ENDING, member, with_outcome
from aether_context.store.retention import carry_out, older_than
from aether_context.store.verification import verify


@pytest.fixture
def store(tmp_path: Path) -> PackStore:
    return PackStore(tmp_path / "store")


def talked(store: PackStore, turns: int = 4, **settings: object) -> Chat:
    plugin = ContextPackPlugin(policy=PackPolicy(max_input_tokens=4_000), store=store, on_error="raise")
    script = [call("big_file", name="a", lines=300), "done", *("ok" for _ in range(turns))]
    chat = Chat(plugin=plugin, tools=[big_file], script=script, **settings)  # type: ignore[arg-type]
    chat.say("go", "word " * 9_000, *(f"message {at}" for at in range(turns - 2)))
    return chat


def held(chat: Chat) -> Any:
    return asyncio.run(chat.held())


def everything(store: PackStore) -> dict[str, list[File]]:
    """The files of a store by their kind."""
    kinds: dict[str, list[File]] = {}
    for file in store.files.below(store.files.root):
        entry = entry_of(file, store.files.root)
        assert entry is not None, file.path
        kinds.setdefault(entry.kind, []).append(file)
    return kinds


def test_a_flipped_bit_is_found_in_every_kind_of_file(store: PackStore) -> None:
    artifacts = FsspecArtifactService(store.url)
    chat = talked(store, user="Ann Ä", artifacts=artifacts)
    report = types.Part(text="All is well.")
    owner = {"app_name": chat.app_name, "user_id": chat.user, "session_id": chat.session}
    asyncio.run(artifacts.save_artifact(**owner, filename="report Q1.md", artifact=report))
    store.write_summary("shop", "Ann Ä", "sha256:" + "1" * 64, "A summary.")
    store.write_calibration("shop", "Ann Ä", "model", {"ratio": 1.1})
    store.note_forgotten("shop", "Ann Ä", "old", [1, 2])
    assert verify(store, replays=True).faults == {}
    kinds = everything(store)
    assert kinds.keys() == {
        "pack", "message", "record", "evidence", "artifact", "name", "summary", "calibration", "forgotten"
    }  # fmt: skip
    chance = random.Random(1)
    for files in kinds.values():
        data = store.files.read(files[0].path)
        for at in chance.sample(range(len(data)), min(len(data), 25)):
            store.files.replace(
                files[0].path, data[:at] + bytes([data[at] ^ (1 << chance.randrange(8))]) + data[at + 1 :]
            )
            assert list(verify(store).faults) == [files[0].path.removeprefix(f"{store.files.root}/")], at
        store.files.replace(files[0].path, data)
    assert verify(store).faults == {}


def test_a_pack_in_the_place_of_another_is_told_by_the_next(store: PackStore) -> None:
    talked(store)
    other = PackStore(f"{store.url}-other")
    talked(other)
    second = list(store.manifests())[1]
    twin = next(one for one in other.manifests() if one.number == 2)
    store.files.delete(f"{store.place(second)}{ENDING}")
    store.files.create(f"{store.place(twin)}{ENDING}", other.files.read(f"{other.place(twin)}{ENDING}"))
    faults = verify(store).faults
    assert "is not the one that it followed" in faults["shop/ann/s1"]


def test_what_was_forgotten_for_its_age_is_not_missed(store: PackStore) -> None:
    manifests = packs.talk(store, turns=16)
    assert [one.extends is None for one in manifests].count(True) > 2
    (owner,) = store.owners()
    second = next(at for at, one in enumerate(manifests) if at and one.extends is None)
    below = store.files.below

    def aged(path: str) -> list[File]:
        old = {one.pack_id for one in manifests[:second]}
        return [
            file._replace(modified=file.modified - 40 * 86_400) if file.modified and name(file) in old else file
            for file in below(path)
        ]

    def name(file: File) -> str:
        return file.name.removesuffix(ENDING)

    store.files.below = aged  # type: ignore[method-assign]
    now = max(file.modified or 0 for file in below(store.files.root))
    carry_out(store, older_than(store, owner, 30 * 86_400, now))
    assert [one.number for one in store.manifests()] == [*range(second + 1, 17)]
    assert verify(store, replays=True).faults == {}
    assert any(file.name == FORGOTTEN for file in below(store.files.root))
    rest = list(store.manifests())
    store.files.delete(f"{store.place(rest[1])}{ENDING}")
    assert f"number {rest[1].number} is missing" in verify(store).faults["shop/ada/s1"]


def test_a_forged_pack_is_told_where_a_key_is_set(store: PackStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AETHER_CONTEXT_KEY", "a secret of the operator")
    chat = talked(store)
    assert verify(store, held(chat)).faults == {}
    first, *_ = manifests = list(store.manifests())
    outcome = store.outcome(first)
    # Whoever has no key can make all hashes anew, and cannot sign.
    monkeypatch.delenv("AETHER_CONTEXT_KEY")
    forged, fields = first.model_copy(update={"role": "Admin", "signature": ""}).sealed()
    packs.rewrite(store, first, lambda _: forged.to_json().encode())
    assert fields["digest"] == forged.digest
    monkeypatch.setenv("AETHER_CONTEXT_KEY", "a secret of the operator")
    assert "the manifest is not signed" in str(verify(store).faults)
    packs.rewrite(store, first, lambda _: manifests[0].to_json().encode())
    assert verify(store).faults == {}
    monkeypatch.setenv("AETHER_CONTEXT_KEY", "another secret")
    assert "was signed with another key, or forged" in str(verify(store).faults)
    assert len(verify(store).faults) == len(manifests)
    monkeypatch.setenv("AETHER_CONTEXT_KEY", "a secret of the operator")
    data = store.files.read(f"{store.place(first)}{ENDING}")
    monkeypatch.delenv("AETHER_CONTEXT_KEY")
    assert outcome is not None
    lines = packs.lines_of(store, first)
    bare = b"".join(map(member, lines[:2]))
    store.files.replace(
        f"{store.place(first)}{ENDING}", with_outcome(bare, first.digest, {**outcome, "input_tokens": 1})
    )
    monkeypatch.setenv("AETHER_CONTEXT_KEY", "a secret of the operator")
    assert "the outcome is not signed" in str(verify(store).faults)
    store.files.replace(f"{store.place(first)}{ENDING}", data)
    assert verify(store).faults == {}
