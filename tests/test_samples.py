"""The agents in samples/ run as they stand: on a runner, under `adk run` and under `adk api_server`.

The last two start processes and are left to ``pytest -m integration``.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import httpx
import pytest
from adk_server import ADK, api_server
from google.adk.apps import App
from google.adk.artifacts import InMemoryArtifactService
from google.adk.cli.utils.agent_loader import AgentLoader
from google.adk.events.event import Event
from google.adk.memory import InMemoryMemoryService
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.genai import types

from aether_context import Manifest, PackStore
from aether_context.store.replay import Replayer

ROOT = Path(__file__).parents[1]
SAMPLES = ROOT / "samples"
# ADK 2 warns of its own LoopAgent, which the range that the package takes still has nothing in the place of.
pytestmark = pytest.mark.filterwarnings("ignore:.*LoopAgent is deprecated:DeprecationWarning")


class Sample(NamedTuple):
    """What a sample is asked, what its answers say, and in how many packs at least."""

    question: str
    answer: str
    again: str
    answer_again: str
    packs: int


EXPECTED = {
    "research_analyst": Sample(
        "Should the town buy the electric ferry?", "artifact://evidence/trial.md-7.txt", "What does it cost?", "145", 8
    ),
    "requirements_writer": Sample("Write the requirements.", "librarian.md:4", "Go on.", "R1.", 8),
    "test_case_builder": Sample(
        "Test the postage code against the tariff.", "500 g inland, expected 180: FAILED", "Again.", "8 cases", 8
    ),
    "callbacks_only": Sample("When is the water turned on?", "1 April", "And the compost?", "left bay", 2),
    "sub_agents": Sample(
        "The printer on the second floor jams, what now?", "open flap B", "I have forgotten my password.", "desk", 6
    ),
    "press_office": Sample(
        "How large are losses in the network?",
        "from 11% to 8% after the mains in the old town were replaced. (artifact://documents/water_works.md)",
        "And the hardness in hill villages?",
        "14 degrees",
        8,
    ),
}
PLANNED = ("research_analyst", "requirements_writer", "test_case_builder", "press_office")


def checked(store: PackStore) -> list[Manifest]:
    """The packs of a store, each of which verifies and replays."""
    replayer = Replayer(store)
    manifests = list(store.manifests())
    for manifest in manifests:
        manifest.verify()
        assert replayer.replay(manifest).matches
    return manifests


def environment(store: Path) -> dict[str, str]:
    """An environment without a key, in which the samples write their packs to a folder."""
    held = {name: value for name, value in os.environ.items() if not name.startswith(("GOOGLE_", "AETHER_CONTEXT_"))}
    paths = [str(ROOT), *filter(None, [held.get("PYTHONPATH")])]
    return {
        **held,
        "AETHER_CONTEXT_STORE": str(store),
        "ADK_DISABLE_LOAD_DOTENV": "1",
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONUNBUFFERED": "1",
    }


# on a runner


class Spoken(NamedTuple):
    """A conversation of two messages with a sample."""

    events: tuple[list[Event], list[Event]]
    artifacts: list[str]
    store: PackStore


@pytest.fixture(scope="module", params=EXPECTED)
def spoken(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Spoken]]:
    name, store = request.param, tmp_path_factory.mktemp("packs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", list(sys.path))
        patch.delenv("GOOGLE_API_KEY", raising=False)
        patch.delenv("AETHER_CONTEXT_POLICY", raising=False)
        patch.setenv("AETHER_CONTEXT_STORE", str(store))
        patch.setenv("ADK_DISABLE_LOAD_DOTENV", "1")
        # A process may come to a sample twice: what it loaded before writes to the store of that time.
        for loaded in [one for one, module in sys.modules.items() if is_sample(module)]:
            patch.delitem(sys.modules, loaded)
        events, artifacts = asyncio.run(converse(name, EXPECTED[name]))
        yield name, Spoken(events, artifacts, PackStore(store))


def is_sample(module: ModuleType) -> bool:
    return SAMPLES in Path(getattr(module, "__file__", None) or "/").parents


async def converse(name: str, sample: Sample) -> tuple[tuple[list[Event], list[Event]], list[str]]:
    loaded = AgentLoader(str(SAMPLES)).load_agent(name)
    app = loaded if isinstance(loaded, App) else App(name=name, root_agent=loaded)
    artifacts = InMemoryArtifactService()
    runner = Runner(
        app=app,
        session_service=InMemorySessionService(),
        artifact_service=artifacts,
        memory_service=InMemoryMemoryService(),
    )
    session = await runner.session_service.create_session(app_name=name, user_id="ann")
    first, second = [
        [event async for event in runner.run_async(user_id="ann", session_id=session.id, new_message=said(words))]
        for words in (sample.question, sample.again)
    ]
    kept = await artifacts.list_artifact_keys(app_name=name, user_id="ann", session_id=session.id)
    await runner.close()
    return (first, second), kept


def said(words: str) -> types.Content:
    return types.Content(role="user", parts=[types.Part(text=words)])


def answer_of(events: list[Event]) -> str:
    finals = [event for event in events if event.is_final_response() and event.content is not None]
    return "".join(part.text or "" for part in finals[-1].content.parts or ())


def test_it_answers_both_messages(spoken: tuple[str, Spoken]) -> None:
    name, talk = spoken
    first, second = talk.events
    assert EXPECTED[name].answer in answer_of(first)
    assert EXPECTED[name].answer_again in answer_of(second)


def test_every_model_call_is_a_pack_that_verifies_and_replays(spoken: tuple[str, Spoken]) -> None:
    name, talk = spoken
    manifests = checked(talk.store)
    named = [
        event.custom_metadata["aether_context"]["pack_id"]
        for events in talk.events
        for event in events
        if event.content is not None and event.content.role == "model" and event.author != "gate"
    ]
    assert len(manifests) >= EXPECTED[name].packs
    assert set(named) <= {one.pack_id for one in manifests}
    assert [note for one in manifests for note in one.degradations] == []


def test_plans_are_valid_and_evidence_completes_them(spoken: tuple[str, Spoken]) -> None:
    name, talk = spoken
    manifests = list(talk.store.manifests())
    assert {one.validity for one in manifests} == {"valid" if name in PLANNED else "unplanned"}
    if name in PLANNED:
        assert manifests[0].evidence_needed
        assert not manifests[-1].evidence_needed
        assert any(row.layer == "evidence" for one in manifests for row in one.rows)
        assert manifests[-1].profile == manifests[0].profile != "chat"


def test_requirements_pass_through_both_steps(spoken: tuple[str, Spoken]) -> None:
    name, talk = spoken
    if name == "requirements_writer":
        manifests = list(talk.store.manifests())
        assert {(one.step_id, one.role) for one in manifests} == {("draft", "Operator"), ("review", "Reviewer")}
        assert {one.epoch_reason for one in manifests if one.step_id == "review"} >= {"step_changed"}
        assert "read_requirements" in manifests[-1].tools.sent
        assert "add_requirement" in manifests[-1].tools.left_out
        assert talk.artifacts == ["requirements.md"]


def test_sub_agents_are_packed_by_one_plugin(spoken: tuple[str, Spoken]) -> None:
    name, talk = spoken
    if name == "sub_agents":
        manifests = list(talk.store.manifests())
        assert {one.agent for one in manifests} == {"coordinator", "librarian", "hardware", "accounts"}
        assert {one.agent for one in manifests if one.profile == "research"} == {"librarian"}


def test_the_chat_is_cut_to_its_window(spoken: tuple[str, Spoken]) -> None:
    name, talk = spoken
    if name == "callbacks_only":
        manifests = list(talk.store.manifests())
        assert {event.stage for one in manifests for event in one.truncation_events} == {"cut"}
        assert all(one.request_tokens <= one.window == 900 for one in manifests)


def test_the_gate_asks_for_what_is_missing(spoken: tuple[str, Spoken]) -> None:
    name, talk = spoken
    if name == "press_office":
        verdicts = [
            event.custom_metadata["aether_context"]["acceptance"]["passed"]
            for event in talk.events[0]
            if event.author == "writer" and event.is_final_response()
        ]
        assert verdicts == [False, True]


def test_the_readme_names_every_sample_and_its_question() -> None:
    rows = re.findall(r"^\| `(\w+)` \|.*\| ([^|]+) \|$", (SAMPLES / "README.md").read_text("utf-8"), re.MULTILINE)
    assert dict(rows) == {name: sample.question for name, sample in EXPECTED.items()}
    assert {path.parent.name for path in SAMPLES.glob("*/agent.py")} == set(EXPECTED)


# under `adk run`


@pytest.mark.integration
@pytest.mark.parametrize("name", EXPECTED)
def test_adk_run_answers_what_is_typed(name: str, tmp_path: Path) -> None:
    sample, store = EXPECTED[name], tmp_path / "packs"
    done = subprocess.run(
        [*ADK, "run", "--in_memory", str(SAMPLES / name)],
        input=f"{sample.question}\n{sample.again}\nexit\n",
        env=environment(store),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert sample.answer in done.stdout
    assert sample.answer_again in done.stdout.partition(sample.answer)[2]
    assert len(checked(PackStore(store))) >= sample.packs


# under `adk api_server`


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[httpx.Client, PackStore]]:
    """The samples behind ADK's own server on a free port, and the store that it writes to."""
    folder = tmp_path_factory.mktemp("server")
    services = [f"--{service}_service_uri=memory://" for service in ("session", "artifact", "memory")]
    with api_server(SAMPLES, *services, folder=folder, env=environment(folder / "packs")) as client:
        yield client, PackStore(folder / "packs")


@pytest.mark.integration
def test_the_server_lists_the_samples(server: tuple[httpx.Client, PackStore]) -> None:
    client, _ = server
    assert set(client.get("/list-apps").json()) == set(EXPECTED)


@pytest.mark.integration
@pytest.mark.parametrize("name", EXPECTED)
def test_the_server_answers_with_packs(name: str, server: tuple[httpx.Client, PackStore]) -> None:
    client, store = server
    sample = EXPECTED[name]
    session = client.post(f"/apps/{name}/users/ann/sessions", json={}).raise_for_status().json()["id"]
    for question, answer in ((sample.question, sample.answer), (sample.again, sample.answer_again)):
        events = [one for one in run(client, name, session, question) if "content" in one]
        assert answer in "".join(part.get("text", "") for part in events[-1]["content"]["parts"])
        assert events[-1]["customMetadata"]["aether_context"]["pack_id"]
    manifests = list(store.manifests(app=name))
    assert len(manifests) >= sample.packs
    replayer = Replayer(store)
    for manifest in manifests:
        manifest.verify()
        assert replayer.replay(manifest).matches


def run(client: httpx.Client, name: str, session: str, question: str) -> list[dict]:
    body = {
        "appName": name,
        "userId": "ann",
        "sessionId": session,
        "newMessage": {"role": "user", "parts": [{"text": question}]},
    }
    return client.post("/run", json=body).raise_for_status().json()
