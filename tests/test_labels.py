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
from google.adk.tools import google_search
from google.adk.tools.tool_context import ToolContext
from google.genai import types
from pydantic import BaseModel
from scripted import Chat, Scripted, Sent, big_file, call, faults, look_up, send_mail

from aether_context import PackPolicy
from aether_context.adk import keep_evidence
from aether_context.packing.payload import sections

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


# budgets


def test_a_budget_is_what_a_layer_may_use_and_not_what_it_wants() -> None:
    chat = Chat(policy=PackPolicy(max_input_tokens=8_000), state={"plan": PLAN})
    chat.say("begin")
    manifest = chat.manifests()[0]
    budgets = manifest.layer_budgets
    assert budgets["evidence"].tokens == manifest.allocation["evidence"].nominal > 0
    assert sum(one.tokens for one in budgets.values()) == 8_000
    assert budgets["slack"].share == 0.1


@pytest.mark.parametrize("window", [2_000, 4_000, 16_000])
def test_what_one_layer_borrows_another_one_lends(window: int) -> None:
    notes = [f"note {at}: " + "the tables differ in many rows " * 8 for at in range(30)]
    policy = PackPolicy(max_input_tokens=window)
    answers = [f"answer {at} " + "word " * 300 for at in range(8)]
    chat = Chat(answers, policy=policy, state={"knowledge": {"notes": notes}})
    chat.llm.usage = False  # what a provider counts less than is counted here would be lent beyond the window
    chat.say(*(f"question {at} about the tables" for at in range(8)))
    for manifest in chat.manifests():
        budgets, accounts = manifest.layer_budgets, manifest.allocation
        assert sum(one.tokens for one in budgets.values()) <= window
        assert sum(one.nominal for one in accounts.values()) <= window
        assert sum(one.share for one in budgets.values()) <= 1 + 1e-9
        for layer, one in accounts.items():
            assert one.used <= one.final == one.nominal + one.lent == budgets[layer].tokens
        assert sum(one.lent for one in accounts.values()) == 0
    chat.replays()


# reasons


@pytest.mark.parametrize("strategy", ["epochs", "heads_tails", "summarize"])
def test_a_cut_that_the_byte_net_makes_says_so(strategy: str) -> None:
    policy = PackPolicy(
        max_input_tokens=6_000,
        conversation={"strategy": (strategy,)},
    )
    chat = Chat(["=" * 2_000] * 20, policy=policy)
    chat.llm.usage = False
    chat.say(*("=" * 2_000 for _ in range(12)))
    cuts = [one for one in chat.manifests() if any(event.stage == "cut" for event in one.truncation_events)]
    assert cuts
    first = cuts[0]
    assert first.request_tokens < 0.8 * 0.9 * first.window
    assert {event.reason for event in first.truncation_events if event.stage == "cut"} == {"byte_net"}
    assert first.epoch_reason == "byte_net"
    assert {row.reason for row in first.rows if row.form == "summarized" and row.layer == "conversation"} == {
        "byte_net"
    }
    chat.replays()


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


def test_a_manifest_names_the_addresses_that_a_recap_holds() -> None:
    script = [f"artifact://notes/{at}.md says this: " + "word " * 150 for at in range(30)]
    chat = Chat(script, policy=PackPolicy(max_input_tokens=3_000))
    chat.say(*(f"look at artifact://asked/{at}.md for me" for at in range(30)))
    assert any(event.stage == "cut" for one in chat.manifests() for event in one.truncation_events)
    true_of(chat)


def test_a_manifest_names_other_addresses_of_evidence_in_the_payload() -> None:
    evidence = [
        {"uri": "https://example.org/a(1)", "summary": "a page"},
        {"uri": "artifact://my report.md", "summary": "a file with a space in its name"},
    ]
    chat = Chat([call("big_file", name="a"), "done"], tools=[big_file], state={"knowledge": {"evidence": evidence}})
    chat.say("compare")
    for manifest in chat.manifests():
        assert set(manifest.artifact_uris) >= {"https://example.org/a(1)", "artifact://my report.md"}
        assert "artifact://my" not in manifest.artifact_uris


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


def test_an_item_whose_proof_was_dropped_is_needed_though_somebody_spoke_of_it() -> None:
    policy = PackPolicy(max_input_tokens=1_000, compress={"enabled": False})
    state = {"plan": PLAN, "knowledge": {"evidence": proofs("artifact://one.md", "artifact://two.md", size=900)}}
    chat = Chat(["artifact://one.md and artifact://two.md say so.", "done"], policy=policy, state=state)
    chat.say("compare", "sure?")
    assert set(chat.manifests()[-1].evidence_needed) == {"a1", "a2"}


def test_a_proof_that_was_kept_a_call_ago_stands_in_the_request() -> None:
    async def prove(tool_context: ToolContext) -> dict[str, Any]:
        """Proves the first item."""
        record = await keep_evidence(tool_context, "the tables differ in row 7", source="tables", covers=["a1"])
        return {"kept": record.uri}

    chat = Chat([call("prove"), "done", "done"], tools=[prove], state={"plan": PLAN})
    chat.say("compare", "and now?")
    assert [one.evidence_needed for one in chat.manifests()] == [("a1", "a2"), ("a2",), ("a2",)]


def test_the_hash_of_what_a_record_stands_for_is_in_the_manifest() -> None:
    held: list[str] = []

    async def keep_page(tool_context: ToolContext) -> dict[str, Any]:
        """Keeps a page."""
        held.append((await keep_evidence(tool_context, "row 7 differs", source="tables")).uri)
        return {"kept": held[0]}

    hashed = "sha256:" + "ab" * 32
    evidence = [{"uri": "artifact://report.md", "summary": "a report", "hash": hashed}]
    state = {"plan": PLAN, "knowledge": {"evidence": evidence}}
    chat = Chat([call("keep_page"), "done", "done"], tools=[keep_page], state=state)
    chat.say("compare", "and now?")
    hashes = {row.uri: row.content_hash for row in chat.manifests()[-1].rows if row.layer == "evidence"}
    digests = {record.uri: record.digest for record in chat.store.evidence("shop", "ann", "s1")}
    assert len(hashes) == 2
    assert hashes.items() <= {"artifact://report.md": hashed, **digests}.items()


# a step that is sent


def checklist(count: int, words: int) -> dict[str, Any]:
    items = [{"id": f"item{at}", "text": f"number {at} " + "and so on " * words} for at in range(count)]
    return {"task_id": "1", "step": {"id": "s", "text": "Do all of it", "acceptance": items}}


@pytest.mark.parametrize("window", [600, 900, 1_200, 8_000])
def test_a_step_is_valid_where_its_whole_checklist_is_sent(window: int) -> None:
    chat = Chat(["ok"] * 4, policy=PackPolicy(max_input_tokens=window), state={"plan": checklist(20, 20)})
    chat.say("begin", "go on")
    for sent, manifest in zip(chat.sent, chat.manifests(), strict=True):
        items = re.findall(
            r"^- \[ \] item\d+: .*and so on$", sections(sent.human()).get("ACCEPTANCE", ""), re.MULTILINE
        )
        assert manifest.validity == ("valid" if len(items) == 20 else "invalid")
        assert manifest.validity == "valid" or f"{len(items)} of 20" in manifest.invalid_reason
    assert (chat.manifests()[0].validity == "valid") == (window == 8_000)
    chat.replays()


# tools without a record


def test_a_tool_is_named_where_nothing_was_recorded_of_it() -> None:
    script = [call("big_file", name="a"), call("send_mail", to="bo"), "done"]
    chat = Chat(script, tools=[big_file, send_mail], policy=offloading(), state={"plan": PLAN})
    chat.say("compare")
    assert chat.manifests()[-1].evidence_needed == ("a1", "a2", "tool:big_file", "tool:send_mail")


def test_a_plain_chat_shows_no_evidence_of_its_tools() -> None:
    chat = Chat([call("big_file", name="a"), "read", "done"], tools=[big_file], policy=offloading())
    chat.say("compare", "and now?")
    assert chat.sent[-1].human() == "and now?"
    assert chat.manifests()[-1].evidence_needed == ()


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
        assert not shown(sent) or {"read_artifact", "search_artifact"} <= set(sent.declared)
        assert set(manifest.artifact_uris) == addresses(sent)
    chat.replays()


def test_what_an_agent_keeps_can_be_read_where_results_are_not_offloaded() -> None:
    async def keep_page(tool_context: ToolContext) -> dict[str, Any]:
        """Keeps a page."""
        return {"kept": (await keep_evidence(tool_context, "row 7 differs", source="tables")).uri}

    chat = Chat([call("keep_page"), "done", "done"], tools=[keep_page])
    chat.say("compare", "and now?")
    assert [bool(shown(sent)) for sent in chat.sent] == [False, True, True]
    assert ["read_artifact" in sent.declared for sent in chat.sent] == [False, True, True]


def test_a_message_whose_middle_is_left_out_names_no_address_that_nobody_can_read() -> None:
    words = " ".join(f"word{at}" for at in range(3_000))
    for mode in ("off", "auto"):  # in which an agent with tools has readers beside so long a message
        policy = PackPolicy(max_input_tokens=2_000, offload={"mode": mode})
        chat = Chat(["ok"], policy=policy, tools=[big_file])
        chat.say(words)
        assert "The middle of this message is left out" in chat.sent[0].text
        assert bool(shown(chat.sent[0])) == (mode == "auto")


def test_no_function_is_declared_beside_a_tool_that_the_provider_runs() -> None:
    chat = Chat(["ok"], tools=[google_search], policy=offloading())
    chat.say("what is new?")
    assert chat.sent[0].declared == ()


# events that were not loaded


@pytest.mark.parametrize("most", [0, 3, 10])
def test_a_manifest_says_that_the_host_did_not_load_all_events(most: int) -> None:
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
        assert f"only the last {most} events" in " ".join(chat.manifests()[-1].degradations)
        assert set(faults(chat.sent[-1].contents)) <= set(faults(chat.raw[-1].contents))
    chat.say("and with all of them again")
    assert "events" not in " ".join(chat.manifests()[-1].degradations)
    chat.replays()


@pytest.mark.parametrize("most", [1, 4, 6])
def test_what_lost_its_user_message_is_not_sent_where_the_host_did_not_load_all_events(most: int) -> None:
    script = [one for at in range(6) for one in (call("look_up", key=str(at)), f"answer {at}")]
    chat = Chat(script, tools=[look_up])
    chat.say("question 0", "question 1")

    async def partly(message: str) -> None:
        config = RunConfig(get_session_config=GetSessionConfig(num_recent_events=most))
        content = types.UserContent(parts=[types.Part(text=message)])
        async for _ in chat.runner.run_async(user_id="ann", session_id="s1", new_message=content, run_config=config):
            pass

    for at in range(2, 5):
        asyncio.run(partly(f"question {at}"))
    headless = [sent for sent in chat.raw[4:] if faults(sent.contents)]
    assert bool(headless) is (most != 4)
    assert not any(faults(sent.contents) for sent in chat.sent)
    for sent, manifest in zip(chat.raw, chat.manifests(), strict=True):
        assert ("did not load the user message" in " ".join(manifest.degradations)) is bool(faults(sent.contents))
    chat.replays()


def test_every_call_of_an_invocation_says_that_the_host_did_not_load_all_events() -> None:
    script = [one for at in range(6) for one in (call("look_up", key=str(at)), f"answer {at}")]
    chat = Chat(script, tools=[look_up])
    chat.say("question 0", "question 1")

    async def partly() -> None:
        config = RunConfig(get_session_config=GetSessionConfig(num_recent_events=4))
        content = types.UserContent(parts=[types.Part(text="question 2")])
        async for _ in chat.runner.run_async(user_id="ann", session_id="s1", new_message=content, run_config=config):
            pass

    asyncio.run(partly())
    for manifest in chat.manifests()[4:]:
        assert "only the last 4 events" in " ".join(manifest.degradations)
    chat.replays()
