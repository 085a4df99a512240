"""Offload and the way back through ADK's own Runner."""

from __future__ import annotations

import asyncio
import json

import pytest
from google.adk.agents import LlmAgent
from scripted import Chat, Scripted, call

from aether_context import PackPolicy
from aether_context.evidence import offload
from aether_context.tokens import counter_for

ROWS = [
    f"2025-01-01 10:{at // 60 % 60:02d}:{at % 60:02d} INFO step {at} took {at * 37 % 1009} ms" for at in range(3_000)
]
ROWS[1_700] = "2025-01-01 10:28:20 INFO the retention period is 41 days"
LOG = "\n".join(ROWS)


def read_log(name: str) -> str:
    """Reads a log."""
    return f"{LOG}\nend of {name}"


def read_note(name: str) -> str:
    """Reads a note."""
    return f"{name} is short"


def policy(**changes):
    return PackPolicy(max_input_tokens=16_000, offload=changes)


def chat(script, **settings):
    settings = {"tools": [read_log, read_note], "policy": policy(), **settings}
    return Chat(script=script, **settings)


def uri_of(talk) -> str:
    return talk.sent[-1].answers("read_log")[-1]["artifact"].split(" ")[0]


def test_a_long_result_is_shown_as_an_extract_and_kept_whole():
    talk = chat([call("read_log", name="a"), call("read_note", name="n"), "done"])
    talk.say("what is the retention period?", "thanks")
    assert [one.declared for one in talk.sent] == [("read_log", "read_note")] * 4
    assert all("artifact" in one.answers("read_log")[0] for one in talk.sent[1:]), "from its first request on"
    shown, note = talk.sent[-1].answers()
    assert note == {"result": "n is short"}
    assert ROWS[1_700] in shown["result"]
    assert "[… lines " in shown["result"]
    assert len(json.dumps(shown)) < len(LOG) / 50
    (record,) = talk.store.evidence("shop", "ann", "s1")
    assert shown["artifact"].startswith(f"{record.uri} has all 3001 lines")
    assert (record.source, record.form) == ("read_log", "extract")
    assert talk.store.evidence_data("shop", "ann", record.digest).decode() == read_log("a")
    given = [one for event in asyncio.run(talk.held()).events for one in event.get_function_responses()]
    assert [one.response for one in given if one.name == "read_log"] == [{"result": read_log("a")}]
    assert all(one.readers == ("read_artifact", "search_artifact") for one in talk.sent)
    assert all(one.wires[1:2] == talk.sent[-1].wires[1:2] for one in talk.sent[1:])
    talk.replays()


def test_the_model_reads_lines_and_finds_words():
    talk = chat([call("read_log", name="a"), "seen"])
    talk.say("go")
    uri = uri_of(talk)
    talk.llm.script += [
        call("search_artifact", uri=uri, query="retention PERIOD"),
        call("read_artifact", uri=uri, start_line=1_699, max_lines=3),
        call("read_artifact", uri=uri, start_line=-1),
        "done",
    ]
    talk.say("and now?")
    searched = talk.sent[-1].answers("search_artifact")[0]
    assert ROWS[1_700] in searched["found"][0]["text"]
    middle, last = talk.sent[-1].answers("read_artifact")
    assert middle == {"lines": "1699-1701 of 3001", "text": "\n".join(ROWS[1_698:1_701])}
    assert last["text"] == "end of a"


BAD = [
    "artifact://evidence/0123456789abcdef.txt", "artifact://evidence/../../../etc/passwd",
    "artifact://../shop/bob/s1/evidence.txt", "artifact://%2e%2e%2fx", "artifact:///etc/passwd", "/etc/passwd",
    "file:///etc/passwd", "artifact://user:secret.txt",
    "artifact://apps/shop/users/bob/sessions/s1/artifacts/x/versions/0", "artifact://messages/../evidence/x.json",
    "artifact://a\0b", "x" * 100_000, "",
]  # fmt: skip


def test_what_readers_answer_is_bounded_and_never_offloaded():
    talk = chat([call("read_log", name="a"), "seen"], policy=policy(extract_tokens=160))
    talk.say("go")
    talk.llm.script += [call("read_artifact", uri=uri_of(talk), max_lines=2_000), "done"]
    talk.say("all of it")
    (answer,) = talk.sent[-1].answers("read_artifact")
    assert "artifact" not in answer
    assert "start_line=" in answer["note"]
    assert 2_000 < len(answer["text"]) < 12_000
    assert len([one for one in talk.store.evidence("shop", "ann", "s1") if one.source == "read_artifact"]) == 0


def test_what_is_not_there_is_answered_clearly():
    calls = [call("read_artifact", uri=uri) for uri in BAD] + [
        call("search_artifact", uri=uri, query="x") for uri in BAD
    ]
    bare = [call("read_artifact"), call("search_artifact", uri="artifact://a.txt"), call("read_artifact", uri=7)]
    talk = chat([[*calls, *bare], "done"])
    talk.say("go")
    answers = talk.sent[-1].answers()
    assert len(answers) == len(calls) + len(bare)
    assert all(one["error"] and len(one["error"]) < 400 for one in answers)


def test_arguments_that_make_no_sense_are_answered_clearly():
    talk = chat([call("read_log", name="a"), "seen"])
    talk.say("go")
    uri = uri_of(talk)
    odd = [
        {"start_line": "1e999"},
        {"start_line": 99_999},
        {"start_line": True},
        {"max_lines": -5},
        {"start_line": "12"},
    ]
    talk.llm.script += [
        [*(call("read_artifact", uri=uri, **one) for one in odd), call("search_artifact", uri=uri, query=" ")],
        call("search_artifact", uri=uri, query="zzzz_nowhere_9"),
        "done",
    ]
    talk.say("on")
    answers = talk.sent[-1].answers()[1:]
    assert "1 to 3001" in answers[1]["error"]
    assert answers[4]["lines"].startswith("12-")
    assert "query" in answers[5]["error"]
    assert "note" in answers[6]


def test_every_agent_that_can_see_an_address_can_read_it():
    llm = Scripted(model="gemini-2.5-flash", script=[], sent=[])
    helper = LlmAgent(name="helper", model=llm, description="Helps.", instruction="You help.")
    lead = LlmAgent(name="lead", model=llm, instruction="You lead.", tools=[read_log], sub_agents=[helper])
    talk = chat([], agent=lead)
    llm.script += [call("read_log", name="a"), "seen"]
    talk.say("go")
    uri = uri_of(talk)
    llm.script += [
        call("transfer_to_agent", agent_name="helper"),
        call("search_artifact", uri=uri, query="retention period"),
        "done",
    ]
    talk.say("let the helper look")
    assert talk.sent[-1].agent == "helper"
    assert talk.sent[-1].readers == ("read_artifact", "search_artifact")
    assert ROWS[1_700] in talk.sent[-1].answers("search_artifact")[-1]["found"][0]["text"]
    assert len(talk.sent[-1].text) < len(LOG) / 10


@pytest.mark.parametrize("text", [LOG, json.dumps({"log": LOG}), json.dumps([LOG])], ids=["text", "object", "list"])
def test_what_an_mcp_result_says_twice_is_shown_once(text: str) -> None:
    structured = json.loads(text) if text.startswith("{") else {"result": json.loads(text) if text[0] == "[" else text}
    result = {"content": [{"type": "text", "text": text}], "structuredContent": structured, "isError": False}

    settings = policy().offload.for_window(16_000)
    counter = counter_for("")
    shown = offload(result, "read", settings, counter=counter)
    once = offload({**result, "structuredContent": None}, "read", settings, counter=counter)
    assert shown.record.form == "extract"
    assert "structuredContent" not in shown.response
    assert shown.response["content"] == once.response["content"]
    assert shown.shown_tokens < 1.2 * once.shown_tokens
    other = offload({**result, "structuredContent": {"log": "another"}}, "read", settings, counter=counter)
    assert "structuredContent" in other.response or other.record.form == "verbatim"
