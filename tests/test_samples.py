"""The samples: each answers as its page says, and leaves packs that replay. `test_readme` runs the quickstart."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from adk_server import ADK, api_server
from google.adk.apps import App
from google.adk.cli.utils.agent_loader import AgentLoader
from google.adk.events.event import Event
from google.adk.runners import InMemoryRunner
from scripted import sound

from aether_context import Manifest, PackStore

SAMPLES = Path(__file__).parents[1] / "samples"
# ADK warns of its own loops and sequences, which the range that the package takes still has nothing in the place of.
pytestmark = pytest.mark.filterwarnings("ignore:.*Agent is deprecated:DeprecationWarning")


class Sample(NamedTuple):
    """What a sample is asked, what its answers say, and in how many packs at least."""

    question: str
    answer: str
    again: str
    answer_again: str
    packs: int


EXPECTED = {
    "team": Sample(
        "The printer on the second floor jams, what now?", "open flap B", "I have forgotten my password.", "desk", 12
    ),
    "planned": Sample(
        "What are the costs of the electric ferry: electricity, maintenance?",
        "electricity 145,000, maintenance 90,000, harbour fees 19,000. (artifact://evidence/",
        "And its range on the coldest day?",
        "eight crossings. The reserve was never touched. (artifact://evidence/",
        18,
    ),
}


def environment(store: Path) -> dict[str, str]:
    paths = os.pathsep.join(path for path in sys.path if path)
    given = {name: value for name, value in os.environ.items() if not name.startswith(("AETHER_", "GOOGLE_"))}
    return {
        **given,
        "PYTHONPATH": paths,
        "PYTHONWARNINGS": "ignore",
        "AETHER_CONTEXT_STORE": str(store),
        "ADK_DISABLE_LOAD_DOTENV": "1",
    }


def spoken(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[tuple[list[Event], list[Event]], list[Manifest]]:
    """The events of a sample's two questions, and its packs."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    for variable in ("GOOGLE_API_KEY", "AETHER_CONTEXT_POLICY"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("AETHER_CONTEXT_STORE", str(folder))
    monkeypatch.setenv("ADK_DISABLE_LOAD_DOTENV", "1")
    app = AgentLoader(str(SAMPLES)).load_agent(name)
    assert isinstance(app, App)
    runner = InMemoryRunner(app=app)

    async def converse() -> tuple[list[Event], list[Event]]:
        first = await runner.run_debug(EXPECTED[name].question, quiet=True)
        second = await runner.run_debug(EXPECTED[name].again, quiet=True)
        await runner.close()
        return first, second

    return asyncio.run(converse()), sound(PackStore(folder))


def answer_of(events: list[Event]) -> str:
    finals = [event for event in events if event.is_final_response() and event.content is not None]
    return "".join(part.text or "" for part in finals[-1].content.parts or ())


def test_a_team_shares_a_board_and_one_plugin_packs_all_of_its_agents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (first, second), manifests = spoken("team", tmp_path, monkeypatch)
    assert EXPECTED["team"].answer in answer_of(first)
    assert EXPECTED["team"].answer_again in answer_of(second)
    assert len(manifests) >= EXPECTED["team"].packs
    assert {one.agent for one in manifests} == {"coordinator", "librarian", "hardware", "accounts"}
    assert {one.agent for one in manifests if one.profile == "research"} == {"librarian"}
    assert {one.step_id for one in manifests if one.agent == "hardware"} >= {"hardware"}
    assert [note for one in manifests for note in one.degradations] == []


def test_a_plan_is_written_worked_with_evidence_and_its_answer_sent_back_for_proof(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    talks, manifests = spoken("planned", tmp_path, monkeypatch)
    for events, answer in zip(talks, (EXPECTED["planned"].answer, EXPECTED["planned"].answer_again), strict=True):
        assert answer in answer_of(events)
        verdicts = [
            event.custom_metadata["aether_context"]["acceptance"]["passed"]
            for event in events
            if event.author == "worker" and event.is_final_response()
        ]
        assert verdicts == [False, True]
    worked = [one for one in manifests if one.agent == "worker"]
    assert {one.validity for one in worked} == {"valid"}
    assert [one.step_id for one in worked[:2]] + [worked[-1].step_id] == ["facts", "facts", "answer"]
    assert worked[0].evidence_needed == ("facts.a1", "facts.a2")
    assert not worked[-1].evidence_needed
    assert any(row.layer == "evidence" for one in worked for row in one.rows)
    assert [note for one in manifests for note in one.degradations] == []


def test_the_readme_names_every_sample_and_its_question() -> None:
    rows = dict(re.findall(r"^\| `([\w.]+)` \|.*\| ([^|]+) \|$", (SAMPLES / "README.md").read_text("utf-8"), re.M))
    assert rows.pop("quickstart.py")
    assert rows == {name: sample.question for name, sample in EXPECTED.items()}
    assert {path.parent.name for path in SAMPLES.glob("*/agent.py")} == set(EXPECTED)


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
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert sample.answer_again in done.stdout.partition(sample.answer)[2]
    assert len(sound(PackStore(store))) >= sample.packs


@pytest.mark.integration
def test_adks_server_answers_with_packs(tmp_path: Path) -> None:
    services = [f"--{service}_service_uri=memory://" for service in ("session", "artifact", "memory")]
    with api_server(SAMPLES, *services, folder=tmp_path, env=environment(tmp_path / "packs")) as client:
        assert set(client.get("/list-apps").json()) == set(EXPECTED)
        for name, sample in EXPECTED.items():
            session = client.post(f"/apps/{name}/users/ann/sessions", json={}).raise_for_status().json()["id"]
            body = {"appName": name, "userId": "ann", "sessionId": session}
            message = {"newMessage": {"role": "user", "parts": [{"text": sample.question}]}}
            events = client.post("/run", json=body | message).raise_for_status().json()
            finals = [one for one in events if "content" in one and one["author"] != "gate"]
            assert sample.answer in "".join(part.get("text", "") for part in finals[-1]["content"]["parts"])
            assert finals[-1]["customMetadata"]["aether_context"]["pack_id"]
    assert len(sound(PackStore(tmp_path / "packs"))) > 12
