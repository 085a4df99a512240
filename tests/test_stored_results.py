"""What tools gave and is not sent any more is listed by its address; what somebody recorded always is."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from google.adk.agents import LlmAgent, SequentialAgent
from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.tool_context import ToolContext
from google.genai import types
from scripted import Chat, Scripted, call, results, state_of, was_cut

from aether_context import PackPolicy
from aether_context.adk import evidence_tools, planning_tools

pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated in favor of Workflow:DeprecationWarning")

LINE = re.compile(r"^- (artifact://evidence/\w+\.\w+) \(summary: (.*(?:\n  .*)*)\)$", re.MULTILINE)
LAST = "what is the retention period of the archive?"


def read_log(name: str) -> str:
    """Reads a log of 200 lines, such as artifact://logs/example.txt."""
    rows = [f"10:{at // 60:02d}:{at % 60:02d} INFO {name} step {at} took {at * 37 % 1009} ms" for at in range(200)]
    rows[70] = f"10:01:10 INFO the archive {name} has a retention period of 41 days"
    return "\n".join(rows)


def small(window: int = 4_000, **settings: Any) -> PackPolicy:
    return PackPolicy(max_input_tokens=window, **settings)


def talk(count: int = 14, name: str = "question") -> list[str]:
    return [f"{name} {at}: " + f"word{at} " * 60 for at in range(count)]


def long_chat(script: list[Any], **settings: Any) -> Chat:
    script = [*script, *(f"answer {at} " + f"text{at} " * 120 for at in range(60))]
    return Chat(**{"script": script, "tools": [read_log], "policy": small(), **settings})


def listed(text: str) -> dict[str, str]:
    """The stored results that a payload lists, with their summaries."""
    return dict(LINE.findall(text.partition("\nUSER REQUEST:\n")[0]))


def uri_of(chat: Chat, name: str = "") -> str:
    held = state_of(chat)["aether:evidence"].values()
    return str(next(record["uri"] for record in held if name in record["query"]))


def test_a_result_is_listed_once_its_extract_is_not_sent_any_more() -> None:
    chat = long_chat([call("read_log", name="a"), "read"])
    chat.say("read log a", *talk(), LAST)
    uri = uri_of(chat)
    manifests = chat.manifests()
    cut = next(at for at, manifest in enumerate(manifests) if was_cut(manifest))
    for sent, manifest in zip(chat.sent[2:cut], manifests[2:cut], strict=True):
        assert uri in str(sent.answers("read_log"))
        assert listed(sent.human()) == {}
        assert [(row.form, row.reason) for row in manifest.rows if row.uri == uri and row.layer == "evidence"] == [
            ("left_out", "already_in_conversation")
        ]
    for sent, manifest in zip(chat.sent[cut:], manifests[cut:], strict=True):
        assert sent.answers("read_log") == []
        assert "\nEVIDENCE:\n- artifact://" in sent.human()
        assert list(listed(sent.human())) == [uri]
        assert uri in manifest.artifact_uris
        (row,) = [row for row in manifest.rows if row.layer == "evidence"]
        assert (row.uri, row.form, row.source) == (uri, "whole", "read_log")
        assert manifest.allocation["evidence"].used == row.tokens <= 120
    summary = listed(chat.sent[-1].human())[uri]
    assert summary.startswith('read_log {"name":"a"}\n')
    assert "a retention period of 41 days" in summary
    chat.replays()


def test_the_address_of_a_listed_result_can_be_read() -> None:
    chat = long_chat([call("read_log", name="a"), "read"])
    chat.say("read log a", *talk())
    uri = next(iter(listed(chat.sent[-1].human())))
    chat.llm.script[:] = [call("read_artifact", uri=uri, start_line=71, max_lines=1), "41 days"]
    (answer,) = results(chat.say(LAST))
    assert answer["text"] == "10:01:10 INFO the archive a has a retention period of 41 days"


def test_a_cut_inside_a_loop_lists_what_it_takes_and_the_payload_stays_between_cuts() -> None:
    script = [call("read_log", name=f"n{at}") for at in range(16)]
    chat = Chat([*script, "done"], tools=[read_log], policy=small())
    chat.say("Read the logs n0 to n15.")
    manifests = chat.manifests()
    cuts = [at for at, manifest in enumerate(manifests) if was_cut(manifest)]
    assert cuts
    for at, (sent, manifest) in enumerate(zip(chat.sent, manifests, strict=True)):
        answered = {uri.split(" ")[0] for answer in sent.answers("read_log") if (uri := answer.get("artifact"))}
        lines = listed(sent.text)
        assert not answered & lines.keys()
        assert bool(lines) is (at >= cuts[0])
        assert manifest.allocation["evidence"].used <= 160
        if at and at not in cuts:
            assert lines == listed(chat.sent[at - 1].text)
        assert manifest.request_tokens <= 4_000
    assert listed(chat.sent[cuts[0]].text)
    chat.replays()


def packed(value: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": json.dumps(value, indent=8)}]}


def read_table(name: str) -> dict[str, Any]:
    """Reads a table in an envelope and with white space that makes up most of it."""
    return packed([{"id": f"{name}{at}", "amount": at * 7919 % 997, "state": "paid"} for at in range(40)])


def test_a_result_that_is_sent_whole_without_its_envelope_is_not_repeated() -> None:
    chat = long_chat([call("read_table", name="t"), "read"], tools=[read_table])
    chat.say("read table t", *talk())
    (record,) = state_of(chat)["aether:evidence"].values()
    assert record["form"] == "whole"
    was_sent = [bool(sent.answers("read_table")) for sent in chat.sent]
    assert [bool(listed(sent.human())) for sent in chat.sent[1:]] == [not was for was in was_sent[1:]]
    assert not was_sent[-1]
    chat.replays()


PLAN = {
    "task_id": "42",
    "goal": "Say how long archives are kept",
    "steps": [
        {
            "id": "s1",
            "text": "Read the log and record the proof",
            "role": "Operator",
            "acceptance": [{"id": "a1", "text": "The period is proven", "needs_evidence": True}],
        },
        {"id": "s2", "text": "Check the proof", "role": "Reviewer", "acceptance": ["Each claim cites its evidence"]},
    ],
}


class Proving(Scripted):
    """Records as evidence what its tool's result is cited as."""

    def see(self, llm_request: Any) -> None:
        super().see(llm_request)
        text = str(llm_request.contents)
        if (uri := re.search(r"artifact://evidence/\w+\.txt", text)) and "record_evidence" not in text:
            covers = ["a1"]
            self.script.insert(
                0, call("record_evidence", uri=uri[0], summary="It is 41 days (line 71).", covers=covers)
            )


@pytest.mark.parametrize("shown", ["default", "none"])
def test_a_reviewer_has_the_line_of_what_the_writer_recorded(shown: Any) -> None:
    writing = [call("read_log", name="a"), call("complete_step", step_id="s1"), "recorded"]
    writer_model = Proving(script=[call("claim_step", step_id="s1"), *writing], sent=[])
    tools = [read_log, *planning_tools(), *evidence_tools()]
    writer = LlmAgent(name="writer", model=writer_model, instruction="You write.", tools=tools)
    reviewer_model = Scripted(script=["41 days"], sent=[])
    reviewer = LlmAgent(name="reviewer", model=reviewer_model, instruction="Cite evidence.", include_contents=shown)
    team = SequentialAgent(name="team", sub_agents=[writer, reviewer])
    chat = Chat(agent=team, policy=small(8_000), state={"plan": PLAN})
    chat.say("How long?")
    uri = state_of(chat)["knowledge"]["evidence"][0]["uri"]
    last = chat.sent[-1]
    assert last.agent == "reviewer"
    assert f"\nEVIDENCE:\n- {uri} [covers a1] (summary: It is 41 days (line 71).)\n" in last.text
    assert last.readers
    manifest = chat.latest()
    assert uri in manifest.artifact_uris
    assert [row.form for row in manifest.rows if row.layer == "evidence"] == ["whole"]
    chat.replays()


def test_an_agent_that_is_shown_nothing_of_a_turn_has_the_results_of_it() -> None:
    reader = LlmAgent(
        name="reader", model=Scripted(script=[call("read_log", name="a"), "read"], sent=[]), tools=[read_log]
    )
    judge = LlmAgent(name="judge", model=Scripted(script=["41"], sent=[]), include_contents="none")
    team = SequentialAgent(name="team", sub_agents=[reader, judge])
    chat = Chat(agent=team, policy=small())
    chat.say(LAST)
    last = chat.sent[-1]
    assert (last.agent, last.readers) == ("judge", ("read_artifact", "search_artifact"))
    ((_, summary),) = listed(last.text).items()
    assert "41 days" in summary
    chat.replays()


def test_an_agent_that_runs_as_a_tool_has_its_own_results_and_its_caller_has_them_too() -> None:
    inner = Scripted(model="small", script=[call("read_log", name="inner"), "41 days"], sent=[])
    outer_script = [call("read_log", name="outer"), call("worker", request="how long?"), "done", "and?"]
    outer = Scripted(model="small", script=outer_script, sent=[])
    worker = LlmAgent(name="worker", model=inner, description="Works.", instruction="You work.", tools=[read_log])
    lead = LlmAgent(name="lead", model=outer, instruction="You lead.", tools=[read_log, AgentTool(worker)])
    chat = Chat(agent=lead, policy=small())
    chat.say("go", "and how long?")
    assert all(not listed(sent.text) for sent in chat.sent if sent.agent == "worker")
    (summary,) = listed(chat.sent[-1].text).values()
    assert summary.startswith('read_log {"name":"inner"}')


def test_users_do_not_see_each_others_results() -> None:
    chat = long_chat([])
    last = {}
    for user, session in (("ann", "s1"), ("ben", "s2")):
        chat.llm.script[:0] = [call("read_log", name=user), "read"]
        chat.say(f"read log {user}", *talk(), LAST, user=user, session=session)
        last[session] = chat.sent[-1].human()
    assert 'read_log {"name":"ann"}' in last["s1"]
    assert 'read_log {"name":"ben"}' in last["s2"]
    assert listed(last["s1"]).keys() & listed(last["s2"]).keys() == set()
    assert "ann" not in last["s2"]


def test_another_process_lists_the_same() -> None:
    chats = [long_chat([call("read_log", name="a"), "read"]) for _ in range(2)]
    for restarts, chat in enumerate(chats):
        for message in ("read log a", *talk(), LAST):
            if restarts:
                chat.restart()
            chat.say(message)
        chat.replays()
    assert listed(chats[0].sent[-1].human()) == listed(chats[1].sent[-1].human()) != {}


@pytest.mark.parametrize(
    "then",
    [
        {"offload": {"extract_tokens": 200}},
        {"offload": {"extract_tokens": 6_000}},
        {"max_input_tokens": 8_000},
        {"max_input_tokens": 200_000},
    ],
)
def test_what_stands_in_a_results_place_stays_under_another_policy(then: dict[str, Any]) -> None:
    chat = Chat(script=[call("read_log", name="a"), "read"], tools=[read_log], policy=small(16_000))
    chat.say("read log a")
    before = chat.sent[-1].answers("read_log")
    chat.policy = chat.policy.changed(**then)
    chat.restart()
    chat.say("and now?")
    assert chat.sent[-1].answers("read_log") == before
    assert "artifact://evidence/" in str(before)
    chat.replays()


def test_results_of_events_that_are_not_loaded_keep_the_summary_of_when_they_came() -> None:
    chat = long_chat([call("read_log", name="a"), "read"])
    chat.say("what is the retention period in log a?", *talk())
    chat.restart()
    chat.say("and so?", recent_events=4)
    (summary,) = listed(chat.sent[-1].human()).values()
    assert "41 days" in summary


def test_a_result_that_the_store_did_not_take_is_not_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    chat = long_chat([call("read_log", name="a"), "read"], policy=small(6_000), on_error="passthrough")

    def refuse(*args: Any) -> None:
        raise OSError("away")

    monkeypatch.setattr(type(chat.store), "write_evidence", refuse)
    chat.say("read log a", *talk(24))
    assert any(map(was_cut, chat.manifests()))
    assert "aether:evidence" not in state_of(chat)
    assert not any("artifact://evidence/" in sent.text for sent in chat.sent)


# many of them, and what was recorded on purpose


def proof(at: int, covers: list[str] | None = None, words: int = 12) -> dict[str, Any]:
    summary = f"proof {at} of " + " ".join(f"fact{at}x{word}" for word in range(words))
    return {"uri": f"artifact://proofs/{at}.md", "summary": summary, "covers": covers or [], "time": 1_000.0 + at}


@pytest.mark.slow
def test_what_was_recorded_has_its_line_beside_as_many_results_as_the_policy_lists() -> None:
    chat = long_chat(
        [*(call("read_log", name=f"n{at}") for at in range(40)), "read"],
        policy=small(8_000, retrieval={"evidence_k": 1}),
        state={"knowledge": {"evidence": [proof(at) for at in range(9)]}},
    )
    chat.say("read the logs", *talk(30), "the archive n17: " + LAST)
    text = chat.sent[-1].human()
    assert [at for at in range(9) if f"- artifact://proofs/{at}.md (summary: proof {at} of fact" in text] == [*range(9)]
    lines = listed(text)
    assert len(lines) == 1
    assert any('"n17"' in summary for summary in lines.values())
    headers = [line for line in text.splitlines() if line in ("EVIDENCE:", "TOP EVIDENCE:")]
    assert headers == ["EVIDENCE:", "TOP EVIDENCE:"]
    chat.replays()


def test_recorded_evidence_stands_although_the_conversation_says_its_summary() -> None:
    evidence = {"evidence": [proof(1), {"summary": proof(2)["summary"]}]}
    chat = Chat(["ok"], state={"knowledge": evidence})
    chat.say(f"{proof(1)['summary']} and {proof(2)['summary']}")
    head = chat.sent[-1].human().partition("USER REQUEST:")[0]
    assert f"EVIDENCE:\n- {proof(1)['uri']} (summary: {proof(1)['summary']})\n" in head
    assert "fact2x1" not in head
    rows = {row.uri: (row.form, row.reason) for row in chat.manifests()[0].rows if row.layer == "evidence"}
    assert rows == {proof(1)["uri"]: ("whole", None), "": ("left_out", "already_in_conversation")}


def test_the_oldest_that_covers_least_goes_where_the_layer_has_no_room() -> None:
    plan = {"step": {"id": "s", "text": "Do it.", "acceptance": [{"id": "a", "text": "done", "needs_evidence": True}]}}
    evidence = [proof(0, ["a"], words=30), *(proof(at, words=30) for at in range(1, 20))]
    policy = small(2_500, compress={"enabled": False})
    chat = Chat(["ok"], policy=policy, state={"plan": plan, "knowledge": {"evidence": evidence}})
    chat.say("go")
    manifest = chat.manifests()[0]
    rows = {row.uri: row.form for row in manifest.rows if row.layer == "evidence"}
    dropped = [int(re.sub(r"\D", "", uri)) for uri, form in rows.items() if form == "left_out"]
    assert sorted(dropped) == [*range(1, len(dropped) + 1)] != []
    (event,) = [one for one in manifest.truncation_events if (one.layer, one.stage) == ("evidence", "drop")]
    assert (len(event.item_ids), event.reason) == (len(dropped), "over_allocation")
    assert manifest.allocation["evidence"].used <= manifest.allocation["evidence"].final


# what is proven, and which addresses there are


def deciding(answer: str, **settings: Any) -> Chat:
    items = [{"id": "a1", "text": "The period is proven.", "needs_evidence": True}]
    plan = {"step": {"id": "s", "text": "Find the period.", "acceptance": items, **settings.pop("step", {})}}
    chat = Chat(**{"script": [answer], **settings, "state": {"plan": plan, **settings.get("state", {})}})
    chat.say("go")
    return chat


def verdict_of(chat: Chat) -> Any:
    outcome = chat.store.outcome(chat.latest())
    assert outcome is not None
    return outcome["acceptance"]


@pytest.mark.parametrize("uri", ["artifact://report.md", "https://example.org/report"])
@pytest.mark.parametrize("records", [[[]], [["a1"]], [["b1"]], [["a1"], []], [["b1"], ["a1"]]])
def test_the_manifest_and_the_verdict_agree_on_what_is_proven(uri: str, records: list[list[str]]) -> None:
    evidence = [
        {"uri": uri, "summary": f"reading {at}: 41 days", "covers": covers} for at, covers in enumerate(records)
    ]
    chat = deciding(f"41 days ({uri}).", state={"knowledge": {"evidence": evidence}})
    is_proven = any("a1" in covers for covers in records)
    assert chat.latest().evidence_needed == (() if is_proven else ("a1",))
    assert verdict_of(chat)["passed"] is is_proven


def note(name: str) -> str:
    """Reads a note, which stays."""
    return f"{name} is short"


def test_no_tool_is_named_as_missing_whose_result_is_stored() -> None:
    plan = {"step": {"id": "s", "text": "Read.", "acceptance": [{"id": "a", "text": "read"}]}}
    script = [call("read_log", name="a"), call("note", name="n"), "done"]
    chat = Chat(script, tools=[read_log, note], policy=small(16_000), state={"plan": plan})
    chat.say("go")
    assert [manifest.evidence_needed for manifest in chat.manifests()] == [(), (), ("tool:note",)]


async def save(name: str, tool_context: ToolContext) -> str:
    """Saves a file."""
    await tool_context.save_artifact(name, types.Part(text="the period is 41 days"))
    return f"saved artifact://{name}"


@pytest.mark.parametrize(
    ("uri", "is_known"), [("artifact://tasks/42/report.md", True), ("artifact://logs/example.txt", False)]
)
def test_an_example_in_the_description_of_a_tool_is_no_address(uri: str, is_known: bool) -> None:
    from google.adk.artifacts import InMemoryArtifactService

    chat = deciding(
        "",
        script=[call("save", name="tasks/42/report.md"), f"41 days ({uri})"],
        tools=[read_log, save],
        artifacts=InMemoryArtifactService(),
        step={"tools": ["read_log", "save"]},
        policy=small(16_000),
    )
    assert "artifact://logs/example.txt" in chat.sent[0].text
    assert "artifact://logs/example.txt" not in chat.latest().artifact_uris
    assert "artifact://tasks/42/report.md" in chat.latest().artifact_uris
    assert verdict_of(chat)["passed"] is is_known
    assert verdict_of(chat).get("fabricated", []) == ([] if is_known else [uri])
