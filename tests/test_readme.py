"""What README.md says is run: its Python against a fake model, its TOML, its commands, links and manifest excerpt.

``python tests/test_readme.py`` writes the pack in artifacts/sample again.
"""

from __future__ import annotations

import ast
import asyncio
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from google.adk.agents import LlmAgent
from google.adk.apps import App
from google.adk.events.event import Event
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import InMemoryRunner
from google.genai import types
from plans import words
from scripted import Chat
from terminal import run, told

from aether_context import Manifest, PackPolicy, PackStore, replay

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SAMPLE = ROOT / "artifacts" / "sample"


class Answering(BaseLlm):
    """Answers every request with the same line."""

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        usage = types.GenerateContentResponseUsageMetadata(prompt_token_count=0)
        answer = types.Content(role="model", parts=[types.Part(text="The deadline is on 14 May.")])
        yield LlmResponse(content=answer, usage_metadata=usage)


def blocks(language: str, page: str = README) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("source", blocks("python"))
def test_python_runs_as_it_stands(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(SAMPLE, tmp_path / "artifacts" / "sample")
    live = '"gemini-flash-latest"'
    fake = Answering(model="gemini-flash-latest-fake")
    exec(compile(source.replace(f"model={live}", "model=fake"), "README.md", "exec"), {"fake": fake})
    if "ContextPackPlugin" in source:
        packs = list(PackStore("artifacts").manifests(app="notes"))
        assert packs
        assert all(replay(one, "artifacts").matches for one in packs)


@pytest.mark.parametrize("source", blocks("python"))
def test_python_imports_public_names(source: str) -> None:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("aether_context"):
            module = importlib.import_module(node.module or "")
            assert {alias.name for alias in node.names} <= set(module.__all__)


def test_the_attach_example_is_short() -> None:
    assert len(blocks("python")[0].splitlines()) <= 15


def test_the_policy_example_loads(tmp_path: Path) -> None:
    (source,) = blocks("toml")
    path = tmp_path / "policy.toml"
    path.write_text(source, encoding="utf-8")
    policy = PackPolicy.load(path)
    said = tomllib.loads(source)
    held = policy.model_dump()
    assert policy.profile == said["profile"]
    for section, values in said.items():
        if isinstance(values, dict) and section != "budget":
            assert values.items() <= held[section].items()


def test_the_excerpt_is_from_the_sample_pack() -> None:
    (manifest,) = PackStore(SAMPLE).manifests()
    held = json.loads(manifest.to_json())
    (source,) = blocks("json")
    assert json.loads(source)
    for name, value in json.loads(source).items():
        if isinstance(value, list):
            assert all(one in held[name] for one in value)
        else:
            assert held[name] == value


def test_the_sample_pack_is_small_verifies_and_replays() -> None:
    store = PackStore(SAMPLE)
    (manifest,) = store.manifests()
    manifest.verify()
    assert all(replay(manifest, place).matches for place in (store, str(SAMPLE), SAMPLE))
    assert store.manifest(manifest.pack_id[:8]) == manifest
    assert sum(path.stat().st_size for path in SAMPLE.rglob("*") if path.is_file()) < 20_000


def test_the_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(SAMPLE, tmp_path / "artifacts" / "sample")
    lines = [line.split("#")[0].strip() for source in blocks("shell") for line in source.splitlines()]
    printed: dict[str, str] = {}
    for line in lines:
        if line.startswith("echo "):
            subprocess.run(line, shell=True, check=True)
        elif line.startswith("aether-context "):
            printed[line] = run(*line.split()[1:]).output
    assert len(printed) == 6
    verdict, cure, place, *_ = printed["aether-context why printer --store artifacts/sample"].splitlines()
    assert verdict == "At call 1 writer did not read it: it had expired."
    assert cure.startswith("kept with these words in knowledge.notes, without expires: +")
    assert place.startswith("note, for writer in session one")
    (other,) = (output for line, output in printed.items() if "--policy" in line)
    assert re.search(r"entered +conversation +c0_a546a499", other), "under that policy the oldest message is not cut"


def test_the_first_settings_change_what_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "first-settings.md").read_text(encoding="utf-8")
    (settings,) = re.findall(r"^```toml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (command,) = re.findall(r"`aether-context (replay \d+ --policy my\.toml)`", page)
    monkeypatch.chdir(tmp_path)
    Path("my.toml").write_text(settings, encoding="utf-8")
    policy = PackPolicy(max_input_tokens=2_000)
    chat = Chat(store=PackStore(tmp_path / "packs"), policy=policy, model="gemini-flash-latest")
    chat.say(*(f"Note {at}: {words(120, f'n{at}w')}" for at in range(8)))
    found = told(*command.split(), "--store", "packs")
    assert not found["same"]
    assert found["after"]["window"] == 32_000


def test_the_quickstart_prints_what_is_shown(tmp_path: Path) -> None:
    (shown,) = blocks("text", (ROOT / "samples" / "README.md").read_text(encoding="utf-8"))
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("GOOGLE_", "AETHER_"))}
    done = subprocess.run(
        [sys.executable, str(ROOT / "samples" / "quickstart.py")],
        env={**environment, "PYTHONPATH": os.pathsep.join(sys.path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == shown
    rows = [[int(word.replace(",", "")) for word in line.split()] for line in shown.splitlines()[2:]]
    assert any(packed < whole / 2 for _, whole, packed in rows), "it shows a difference"
    manifests = list(PackStore(tmp_path / "artifacts").manifests(app="minutes"))
    assert len(manifests) == len(rows)
    assert {event.stage for one in manifests for event in one.truncation_events} == {"cut"}


def test_the_tests_are_told_with_their_time() -> None:
    assert re.search(r"minutes on two cores.*architecture\.md#run-it", README, re.DOTALL)


def test_the_extras_are_those_of_the_package() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    listed = re.findall(r"^- (`.*?):", README.split("## Extras")[1], re.MULTILINE)
    assert set(re.findall(r"`([\w-]+)`", " ".join(listed))) == set(extras)


def test_it_is_two_screens() -> None:
    assert len(README.splitlines()) <= 100


# the sample pack

_LONG_AGO = 1_741_600_000.0
_TALK = (
    ("user", "Read me the minutes of the kick-off."),
    ("model", "Minutes of the kick-off. " + "The team went through scope, budget and staffing, item by item. " * 24),
    ("user", "And those of the second meeting?"),
    ("model", "Minutes of the second meeting. " + "Work packages were assigned, and risks were listed. " * 24),
    ("user", "Who takes part?"),
    ("model", "Six people: two from design, three from engineering, one from finance."),
)
_STATE = {
    "plan": {
        "task_id": "42",
        "goal": "A grant application that meets the call.",
        "step": {
            "id": "3",
            "text": "Name the application deadline.",
            "acceptance": [{"id": "date", "text": "The date is proven.", "needs_evidence": True}],
        },
    },
    "knowledge": {
        "memories": [{"id": "m1", "text": "The application deadline was moved once before.", "time": _LONG_AGO}],
        "notes": [{"id": "n1", "text": "The form is at the printer's.", "time": _LONG_AGO, "ttl_seconds": 86_400}],
        "evidence": [
            {
                "id": "call",
                "uri": "artifact://tasks/42/step-3/call.txt",
                "summary": "The call for applications: submit by 14 May, 17:00.",
                "covers": ["date"],
                "time": _LONG_AGO,
            }
        ],
    },
}


def write_sample(folder: Path) -> list[Manifest]:
    """One model call of a small agent with some history in a window of 1,000 tokens."""
    return asyncio.run(_write_sample(folder))


async def _write_sample(folder: Path) -> list[Manifest]:
    from aether_context.adk import ContextPackPlugin

    policy = PackPolicy.load("research", max_input_tokens=1_000, retrieval={"recall": False})
    agent = LlmAgent(name="writer", model=Answering(model="gemini-flash-latest-fake"), instruction="Answer briefly.")
    plugin = ContextPackPlugin(policy=policy, store=str(folder), on_error="raise")
    runner = InMemoryRunner(app=App(name="sample", root_agent=agent, plugins=[plugin]))
    sessions = runner.session_service
    session = await sessions.create_session(app_name="sample", user_id="reader", session_id="one", state=_STATE)
    for at, (role, text) in enumerate(_TALK):
        content = types.Content(role=role, parts=[types.Part(text=text)])
        author = "user" if role == "user" else "writer"
        event = Event(author=author, invocation_id=f"past-{at // 2}", content=content, timestamp=_LONG_AGO + at)
        await sessions.append_event(session, event)
    question = types.Content(role="user", parts=[types.Part(text="When is the application deadline?")])
    async for _ in runner.run_async(user_id="reader", session_id="one", new_message=question):
        pass
    await runner.close()
    return list(PackStore(folder).manifests())


if __name__ == "__main__":
    shutil.rmtree(SAMPLE, ignore_errors=True)
    write_sample(SAMPLE)
