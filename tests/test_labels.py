"""What a manifest says of a request is true of the request that the model got."""

from __future__ import annotations

import asyncio
import json
import re
import warnings
from typing import Any

import pytest
from google.adk.agents import LlmAgent, SequentialAgent
from google.adk.agents.run_config import RunConfig
from google.adk.sessions.base_session_service import GetSessionConfig
from google.genai import types
from pydantic import BaseModel
from scripted import Chat, Scripted, Sent, big_file, call, faults, send_mail

from aether_context import PackPolicy

PLAN = {
    "task_id": "42",
    "goal": "Compare the two tables",
    "step": {
        "id": "3",
        "text": "Read both tables and list what differs",
        "acceptance": [
            {"id": "a1", "text": "every difference is listed", "needs_evidence": True},
            {"id": "a2", "text": "every source is cited", "needs_evidence": True},
        ],
    },
}


def offloading(**more: Any) -> PackPolicy:
    """A policy under which every answer of a page is shown in part."""
    return PackPolicy(**{"max_input_tokens": 16_000, **more}, offload={"extract_tokens": 80})


# addresses

ADDRESS = re.compile(r"artifact://\w[\w./-]*\w")


def addresses(sent: Sent) -> set[str]:
    """Every address that the model got, whatever it stands in."""
    wire = json.dumps([content.model_dump(mode="json", exclude_none=True) for content in sent.contents])
    return set(ADDRESS.findall(f"{wire} {sent.system}"))


def true_of(chat: Chat) -> None:
    """Every manifest names the addresses of its request, and no other."""
    for sent, manifest in zip(chat.sent, chat.manifests(), strict=True):
        assert set(manifest.artifact_uris) == addresses(sent)


def test_a_manifest_names_every_address_in_its_request() -> None:
    script = [
        call("big_file", name="a"),
        call("big_file", name="b"),
        "see artifact://tasks/42/step-1/notes.md, and the two above.",
        "done",
        "done",
    ]
    evidence = [{"uri": "artifact://tasks/42/report.md", "summary": "the report", "covers": ["a1"]}]
    state = {"plan": PLAN, "knowledge": {"evidence": evidence}}
    chat = Chat(
        script, tools=[big_file], policy=offloading(), state=state, instruction="See artifact://rules.md first."
    )
    chat.say("compare a and b", "and artifact://tasks/7/old.md?", "well?")
    true_of(chat)
    last = chat.manifests()[-1].artifact_uris
    assert len(last) == 6
    assert {"artifact://rules.md", "artifact://tasks/42/step-1/notes.md", "artifact://tasks/7/old.md"} <= set(last)
    chat.replays()


# evidence that is needed


def proofs(*uris: str, size: int = 0) -> list[dict[str, Any]]:
    return [
        {"uri": uri, "summary": f"proof {at}: " + "long " * size, "covers": [f"a{at}"]}
        for at, uri in enumerate(uris, start=1)
    ]


@pytest.mark.parametrize("uris", [("artifact://one.md", "artifact://two.md"), ("https://x.org/1", ""), ("", "")])
def test_an_item_whose_proof_is_sent_is_not_needed_at_any_call(uris: tuple[str, str]) -> None:
    state = {"plan": PLAN, "knowledge": {"evidence": proofs(*uris)}}
    chat = Chat([call("big_file", name="a"), call("big_file", name="b"), "done", "done"], tools=[big_file], state=state)
    chat.say("compare", "and now?")
    assert [one.evidence_needed for one in chat.manifests()] == [()] * 4


@pytest.mark.parametrize("uris", [("artifact://one.md", "artifact://two.md"), ("", "")])
def test_an_item_whose_only_proof_was_dropped_is_needed(uris: tuple[str, str]) -> None:
    policy = PackPolicy(max_input_tokens=1_600, compress={"enabled": False})
    state = {"plan": PLAN, "knowledge": {"evidence": proofs(*uris, size=600)}}
    chat = Chat([call("send_mail", to="bo"), "done", "done"], tools=[send_mail], policy=policy, state=state)
    chat.say("compare", "and now?")
    rows = [row for row in chat.manifests()[0].rows if row.layer == "evidence"]
    assert {row.form for row in rows} == {"left_out", "whole"}
    dropped = {item for row in rows if row.form == "left_out" for item in row.covers}
    needed = [{item for item in one.evidence_needed if item in ("a1", "a2")} for one in chat.manifests()]
    assert needed == [dropped] * 3


# readers


def shown(sent: Sent) -> set[str]:
    return {uri for uri in addresses(sent) if uri.startswith(("artifact://evidence/", "artifact://messages/"))}


def test_an_agent_that_can_declare_no_reader_is_shown_the_results_themselves() -> None:
    class Verdict(BaseModel):
        same: bool

    judge_model = Scripted(script=['{"same": false}'], sent=[])
    judge = LlmAgent(name="judge", model=judge_model, instruction="You judge.", output_schema=Verdict)
    reader_model = Scripted(script=[call("big_file", name="a"), "read"], sent=[])
    reader = LlmAgent(name="reader", model=reader_model, instruction="You read.", tools=[big_file])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        team = SequentialAgent(name="team", sub_agents=[reader, judge])
    policy = PackPolicy(max_input_tokens=16_000, offload={"extract_tokens": 160})
    chat = Chat(agent=team, policy=policy, state={"plan": PLAN})
    chat.say("compare", "once more")
    assert any(shown(sent) for sent in chat.sent)
    assert all("399: value 637 in a" in sent.text for sent in chat.sent if sent.agent == "judge")
    for sent, manifest in zip(chat.sent, chat.manifests(), strict=True):
        assert not shown(sent) or {"read_artifact", "search_artifact"} <= set(sent.readers)
        assert set(manifest.artifact_uris) == addresses(sent)
    chat.replays()


# events that were not loaded


@pytest.mark.parametrize(("most", "missing"), [(0, "2 contents"), (3, "1 contents"), (10, "")])
def test_a_manifest_says_what_the_host_did_not_load_and_nobody_has_kept(most: int, missing: str) -> None:
    words = "word " * 120
    chat = Chat([f"answer {at} {words}" for at in range(20)], policy=PackPolicy(max_input_tokens=2_000))
    chat.say(*(f"question {at}: {words}" for at in range(12)))
    assert chat.manifests()[-1].epoch.cut_count
    assert all(one.degradations == () for one in chat.manifests())

    async def partly(message: str) -> None:
        config = RunConfig(get_session_config=GetSessionConfig(num_recent_events=most))
        content = types.UserContent(parts=[types.Part(text=message)])
        async for _ in chat.runner.run_async(user_id="ann", session_id="s1", new_message=content, run_config=config):
            pass
        chat.check()

    for at in range(3):
        asyncio.run(partly(f"later {at}"))
        assert missing in " ".join(chat.manifests()[-1].degradations)
        assert missing or not chat.manifests()[-1].degradations
        assert set(faults(chat.sent[-1].contents)) <= set(faults(chat.raw[-1].contents))
    chat.say("and with all of them again")
    assert "events" not in " ".join(chat.manifests()[-1].degradations)
    chat.replays()
