"""What a manifest says of a request is true of it, and what differs between two packs."""

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
from scripted import Chat, Scripted, Sent, big_file, call, faults, look_up, send_mail
from wording import HISTORY

from aether_context import PackPolicy
from aether_context.lab.reading import PackView, difference, read_view, why
from aether_context.store.replay import Replayer

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


ADDRESS = re.compile(r"artifact://\w[\w./-]*\w")


def addresses(sent: Sent) -> set[str]:
    """Every address of an artifact that the model got, whatever it stands in."""
    wire = json.dumps([content.model_dump(mode="json", exclude_none=True) for content in sent.contents])
    return set(ADDRESS.findall(f"{wire} {sent.system}")) - {HISTORY}


def test_a_manifest_names_every_address_in_its_request_that_the_session_knows() -> None:
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
    for sent, manifest in zip(chat.sent, chat.manifests(), strict=True):
        said = {"artifact://rules.md", "artifact://tasks/42/step-1/notes.md", "artifact://tasks/7/old.md"}
        assert set(manifest.artifact_uris) == addresses(sent) - said
    assert len(chat.latest().artifact_uris) == 3
    chat.replays()


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
    assert chat.latest().epoch.cut_count
    assert all(one.degradations == () for one in chat.manifests())

    async def partly(message: str) -> None:
        config = RunConfig(get_session_config=GetSessionConfig(num_recent_events=most))
        content = types.UserContent(parts=[types.Part(text=message)])
        async for _ in chat.runner.run_async(user_id="ann", session_id="s1", new_message=content, run_config=config):
            pass
        chat.check()

    for at in range(3):
        asyncio.run(partly(f"later {at}"))
        assert missing in " ".join(chat.latest().degradations)
        assert missing or not chat.latest().degradations
        assert set(faults(chat.sent[-1].contents)) <= set(faults(chat.raw[-1].contents))
    chat.say("and with all of them again")
    assert "events" not in " ".join(chat.latest().degradations)
    chat.replays()


NARROW = PackPolicy(max_input_tokens=2_000)


def looking_up(count: int) -> list[Any]:
    """What a model answers to so many questions, each after a look-up."""
    return [reply for at in range(count) for reply in ([call("look_up", key=f"k{at}")], f"answer {at}")]


def views(chat: Chat) -> list[PackView]:
    replayer = Replayer(chat.store)
    return [read_view(replayer, manifest) for manifest in chat.manifests()]


@pytest.fixture(scope="module")
def cut() -> list[PackView]:
    """The packs of a conversation that is cut once."""
    chat = Chat(tools=[look_up], policy=NARROW, script=looking_up(8))
    chat.say(*(f"question {at}" for at in range(8)))
    found = views(chat)
    assert [view.manifest.epoch_reason for view in found].count("high_water") == 1
    return found


def test_views_hold_the_request_as_it_was_sent(cut: list[PackView]) -> None:
    for view in cut:
        assert view.request is not None
        assert view.gaps == ()
        assert sum(piece.tokens for piece in view.request) == view.manifest.counted_tokens
        assert {name for piece in view.request for name in piece.rows} <= view.rows.keys()
    assert cut[1].request is not None
    assert [piece.text for piece in cut[1].request if piece.part == "content"][:2] == [
        "question 0",
        'call look_up: {"key":"k0"}',
    ]
    assert isinstance(cut[0].outcome, dict)


def test_a_cut_says_what_it_took_and_where_the_prefix_ends(cut: list[PackView]) -> None:
    at = next(at for at, view in enumerate(cut) if view.manifest.epoch_reason == "high_water")
    found = difference(cut[at - 1], cut[at])
    taken = {name for event in cut[at].manifest.truncation_events if event.stage == "cut" for name in event.item_ids}
    of_cut = [one for one in found.candidates if one.id in taken]
    assert {one.id for one in of_cut} == taken
    assert {(one.change, one.after.form) for one in of_cut} == {("left", "summarized"), ("resized", "extract")}
    assert all(one.after.reason is not None for one in of_cut)
    assert found.parting is not None
    assert (found.parting.part, found.parting.at, found.parting.character) == ("content", 0, 0)
    assert found.parting.reason == cut[at].manifest.prefix.broken_by == "cut"
    assert found.shared_tokens == cut[at].manifest.prefix.shared_tokens


def test_two_sessions_part_at_the_very_character() -> None:
    one, other = (
        Chat(instruction=f"You help. The shop opens at {hour} o'clock.", app_name="shop") for hour in ("nine", "ten")
    )
    for chat in (one, other):
        chat.say("when?")
    found = difference(views(one)[-1], views(other)[-1])
    assert found.parting is not None
    assert (found.parting.part, found.parting.at) == ("system", 0)
    assert found.parting.common.endswith("The shop opens at ")
    assert found.parting.before.startswith("nine o'clock")
    assert found.parting.after.startswith("ten o'clock")
    assert found.parting.character == len("You help. The shop opens at ")
    assert found.shared_tokens == 0
    (text,) = [text for text in found.texts if not text.same]
    assert [kind for kind, _ in text.lines][:2] == ["-", "+"]


@pytest.mark.parametrize("model", ["gemini-2.5-flash", "anthropic/claude-sonnet-4-5"])
def test_each_result_is_labelled_by_the_arguments_of_its_own_call(model: str) -> None:
    """With ids and without them: ADK takes its own ids out of what most models are sent."""
    keys = [["a"], ["b", "c"], ["b"], ["d", "a", "e"], ["f"]]
    script = [reply for group in keys for reply in ([call("look_up", key=key) for key in group], "Done.")]
    chat = Chat(script, [look_up], offloading(max_input_tokens=2_500), model=model)
    chat.say(*(f"Look {', '.join(group)} up." for group in keys))
    labels = set[str]()
    for manifest in chat.manifests():
        view = read_view(Replayer(chat.store), manifest)
        assert not view.gaps
        for name, label in view.tools.items():
            row, text = view.rows[name], view.texts[name]
            asked = re.findall(r"look_up\(key: (\w)\)", label)
            answered = re.findall(r'"key":"(\w)"', text)
            assert asked == answered, (row, label, text)
            labels.add(label)
    assert "look_up(key: d), look_up(key: a), look_up(key: e)" in labels
    places = why(chat.store, "line 17 of d").places
    assert [place.who for place in places if place.kind == "tool result"] == [
        "look_up(key: d), look_up(key: a), look_up(key: e)"
    ]
