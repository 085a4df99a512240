"""Files of other programs beside those of a store, in the folder ``artifacts`` of a project: none is lost, and none
breaks a command."""

from __future__ import annotations

import asyncio
import gzip
import os
import time
from pathlib import Path

import pytest
from google.genai import types
from scripted import Chat, big_file, call
from terminal import run, told

from aether_context import PackPolicy
from aether_context.adk import ContextPackPlugin, FsspecArtifactService

STORE = "artifacts"
OURS = f"{STORE}/shop/ann"
IN_A_FOLDER = {
    ".DS_Store": b"\0\0\0\1Bud1", "Thumbs.db": b"\xd0\xcf\x11\xe0", "desktop.ini": b"[.ShellClassInfo]",
    "notes.txt": b"mine", "notes.json.gz": gzip.compress(b'{"schema_version":1}\n\n'),
    "pack_notes.json.gz": b"torn", "report.json": b'{"digest":"sha256:1"}', "name.json": b'{"name":"my package"}',
    "0": b"a number", "A folder/0.txt": b"inside", "a-folder.json.gz/inside.txt": b"inside",
    ".hidden/packs/x.json.gz": b"hidden",
}  # fmt: skip
PLACES = (
    "", "shop/", "shop/ann/", "shop/ann/s1/", "shop/ann/s1/packs/", "shop/ann/s1/evidence/", "shop/ann/s1/messages/",
    "shop/ann/blobs/", "shop/ann/blobs/a/", "shop/ann/evidence/", "shop/ann/evidence/a/", "shop/ann/summaries/",
    "shop/ann/summaries/x/", "shop/ann/vectors/", "shop/ann/vectors/enc/", "shop/ann/calibration/",
    "shop/ann/artifacts/", "shop/ann/s1/artifacts/", "hours/", "hours/20250101/", "hours/20250101/12/",
    "hours/notes/12/shop/", "hours/20250101/12/shop/", "hours/20250101/12/shop/ann/",
    "site/dist/", "site/dist/evidence/", "site/dist/packs/", "site/dist/summaries/", "site/dist/calibration/",
    "site/dist/evidence/old/", "site/dist/run/packs/", "site/dist/run/evidence/", "users/ann/sessions/s1/artifacts/x/",
    "My Project/out/evidence/", ".git/objects/blobs/", "node_modules/react/summaries/",
)  # fmt: skip
ELSEWHERE = {
    "shop/ann/memory.sqlite": b"SQLite format 3\0",
    "shop/ann/calibration/camera.json": b'{"fx":500}',
    "shop/ann/summaries/a/x.txt": b"a summary",
    f"shop/ann/evidence/a/{'a' * 63}.bin": b"a hash that is too short",
    f"shop/ann/s1/evidence/{'a' * 16}.json~": b"a backup",
    f"site/dist/x~{'a' * 16}.json": b"{}",
    "data.csv": b"1,2",
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[Path, bytes]:
    """A project in whose folder ``artifacts`` two sessions were recorded, and other programs have files, all of them
    old; these files with their contents."""
    monkeypatch.chdir(tmp_path)
    script = [call("big_file", name="log"), "read", "The end."] * 2
    policy = PackPolicy(max_input_tokens=12_000)
    chat = Chat(
        plugin=ContextPackPlugin(policy=policy, store=STORE, on_error="raise"),
        script=script,
        tools=[big_file],
        artifacts=FsspecArtifactService(STORE),
    )
    chat.say("Read the log.", "Thanks.")
    chat.say("Read it again.", session="A Session")
    for session in ("s1", "A Session"):
        saved = chat.runner.artifact_service.save_artifact(
            app_name="shop", user_id="ann", session_id=session, filename="my.txt", artifact=types.Part(text="saved")
        )
        asyncio.run(saved)
    foreign: dict[Path, bytes] = {}
    for place in PLACES:
        foreign |= {tmp_path / STORE / place / name: data for name, data in IN_A_FOLDER.items()}
    foreign |= {tmp_path / STORE / name: data for name, data in ELSEWHERE.items()}
    pack = next((tmp_path / OURS / "s1" / "packs").glob("pack_*Z_*/manifest.json"))
    for name in (f"{pack.name}~", f".{pack.name}.swp", f"{pack.name}.bak", f"{pack.stem} (1).json", "replay-x.json.gz"):
        foreign[pack.with_name(name)] = pack.read_bytes()
    for path, data in foreign.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    outside = tmp_path / "outside"
    outside.mkdir()
    foreign[outside / "kept.json"] = b"{}"
    (outside / "kept.json").write_bytes(b"{}")
    for place in ("shop/ann/s1/packs", "shop/ann", "shop/ann/evidence", "shop", ""):
        (tmp_path / STORE / place / "link").symlink_to(outside)
    long_ago = time.time() - 400 * 86_400
    for path in (tmp_path / STORE).rglob("*"):
        if not path.is_symlink():
            os.utime(path, (long_ago, long_ago))
    return foreign


def lost(foreign: dict[Path, bytes]) -> list[Path]:
    return [path for path, data in foreign.items() if not path.is_file() or path.read_bytes() != data]


def ours_left(foreign: dict[Path, bytes]) -> set[str]:
    every = (path for path in Path(STORE).absolute().rglob("*") if path.is_file() and not path.is_symlink())
    return {str(path) for path in every if path not in foreign and "link" not in path.parts}


@pytest.mark.parametrize("days", ["30", "0"])
def test_old_files_of_the_package_alone_are_taken(project: dict[Path, bytes], days: str) -> None:
    found = told("forget", "--older-than", days)
    assert [row["user"] for row in found["users"] if row["files"]] == ["shop/ann"]
    foreign = sum(row["foreign"] for row in found["users"])
    assert foreign > 100
    assert f"{foreign} files that are not ours were left" in run("forget", "--older-than", days, "--yes").stdout
    assert lost(project) == []
    assert not [path for path in ours_left(project) if "/packs/" in path]
    assert len([path for path in ours_left(project) if "/artifacts/my.txt/0" in path]) == 2
    assert not [row for row in told("forget", "--older-than", days)["users"] if row["files"]]


@pytest.mark.parametrize("session", ["s1", "A Session"])
def test_forget_takes_the_packages_own_files_alone(project: dict[Path, bytes], session: str) -> None:
    output = run("forget", "--app", "shop", "--user", "ann", "--session", session, "--yes").stdout
    assert "files that are not ours were left" in output
    assert lost(project) == []
    run("verify", "--replay")
    assert len([path for path in ours_left(project) if "/artifacts/my.txt/0" in path]) == 1
    run("forget", "--app", "shop", "--user", "ann", "--yes")
    assert lost(project) == []
    assert ours_left(project) == set()
    run("forget", "--app", "site", "--user", "dist", "--yes", code=3)
    assert lost(project) == []


def test_every_command_passes_over_them(project: dict[Path, bytes]) -> None:
    assert len(told("list")) == 5
    for words in (
        "list", "list --limit 2", "list --app shop --user ann --session s1", "usage", "usage --by session --json",
        "inspect", "diff", "replay latest", "verify --replay", "forget --older-than 30",
        "tune artifacts --jobs 1",
    ):  # fmt: skip
        run(*words.split(), code=None if words == "diff" else 0)
    assert "5 of 5 packs passed" in run("verify").stdout
    assert lost(project) == []
