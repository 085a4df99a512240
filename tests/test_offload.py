"""Offload and the way back through ADK's own Runner: of one result, of hundreds, and of facts in up to 5 MB."""

from __future__ import annotations

import asyncio
import gc
import json
import random
import threading
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.artifacts import InMemoryArtifactService
from google.adk.tools.agent_tool import AgentTool
from plans import aether
from scripted import Chat, Scripted, big_file, call, results, state_of

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


def test_a_list_of_objects_becomes_an_extract_where_a_table_of_the_same_size_stays_whole():
    terms = {"kind": "usual", "days": [14, 30], "note": "in the shop, at the terms that all parts have", "open": True}
    parts = [{"name": f"part {at}", "stock": at * 37, "terms": terms} for at in range(50)]
    row = " | ".join(map(str, terms.values()))
    texts = {
        "objects": json.dumps(parts),
        "table": "\n".join(f"{part['name']} | {part['stock']} | {row} | {row}" for part in parts),
    }
    assert all(2_400 < size / 1.1 < 3_600 for size in counter_for("").count_all([*texts.values()]))

    def list_parts(form: str) -> str:
        """Lists the parts."""
        return texts[form]

    talk = chat([call("list_parts", form="objects"), call("list_parts", form="table"), "done"], tools=[list_parts])
    talk.say("which parts are there?")
    shown, whole = talk.sent[-1].answers("list_parts")
    assert "artifact" in shown
    assert all(f'"{part["name"]}"' in shown["result"] for part in parts), "each of them"
    assert whole == {"result": texts["table"]}


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
    assert all(one.readers == ("read_artifact", "search_artifact") for one in talk.sent[1:])
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
    talk = chat([call("read_log", name="a"), "seen", [*calls, *bare], "done"])
    talk.say("go", "read them")
    answers = [one for name in ("read_artifact", "search_artifact") for one in talk.sent[-1].answers(name)]
    assert len(answers) == len(calls) + len(bare)
    assert all(one["error"] and len(one["error"]) < 400 for one in answers)
    assert not any("no tool with that name" in one["error"] for one in answers)
    assert sum("it begins with artifact://" in one["error"] for one in answers) == 6


def test_an_address_is_read_with_the_words_and_marks_around_it_that_models_copy() -> None:
    talk = chat([call("read_log", name="a"), "seen"])
    talk.say("go")
    named, uri = talk.sent[-1].answers("read_log")[-1]["artifact"], uri_of(talk)
    assert named != uri
    past = talk.sent[-1].answers("read_log")[-1]["more_results"]
    copied = [named, f"`{uri}`", f"[the log]({uri}).", f"{uri}#L5", past]
    talk.llm.script += [[call("read_artifact", uri=words, max_lines=1) for words in copied], "done"]
    talk.say("read it")
    *results, of_past = (answer["text"] for answer in talk.sent[-1].answers("read_artifact"))
    assert results == [ROWS[0]] * 4
    assert "user: go" in of_past


def test_files_of_the_session_and_of_its_user_are_read_by_either_kind_of_address():
    files = InMemoryArtifactService()
    for name in ("a/b.md", "user:c.md"):
        place = {"app_name": "shop", "user_id": "ann", "session_id": "s1", "filename": name}
        for version in range(2):
            asyncio.run(files.save_artifact(**place, artifact={"text": f"{name} {version}"}))
    ours = "artifact://apps/shop/users/ann"
    uris = ["artifact://a/b.md", f"{ours}/sessions/s1/artifacts/a/b.md/versions/0", f"{ours}/artifacts/c.md/versions/1"]
    talk = chat([call("read_log", name="a"), "seen", [call("read_artifact", uri=uri) for uri in uris], "done"])
    talk.runner.artifact_service = files
    talk.say("go", "read them")
    texts = [one["text"] for one in talk.sent[-1].answers("read_artifact")]
    assert texts == ["a/b.md 1", "a/b.md 0", "user:c.md 1"]


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


AT_ONCE = 15
MOST_BYTES = 10_000
POLICY = PackPolicy(max_input_tokens=500_000, offload={"extract_tokens": 40})


def read_numbers(name: str) -> dict[str, Any]:
    """Reads a log, which is long."""
    return {"result": "\n".join(f"{at}: step {at * 37 % 1009} of {name} took {at * 11} ms" for at in range(240))}


def shown(chat: Chat) -> dict[str, str]:
    """The addresses that results in the last request name, by the log; empty where one is sent whole."""
    parts = [part for content in chat.sent[-1].contents for part in content.parts or ()]
    calls = [part.function_call for part in parts if part.function_call and part.function_call.name == "read_numbers"]
    return {
        str((asked.args or {})["name"]): str(answer.get("artifact", "")).split(" ")[0]
        for asked, answer in zip(calls, chat.sent[-1].answers("read_numbers"), strict=True)
    }


def say_all(chat: Chat, names: list[str]) -> None:
    for first in range(0, len(names), AT_ONCE):
        chat.llm.script.extend([[call("read_numbers", name=name) for name in names[first : first + AT_ONCE]], "read"])
        chat.say(f"Read the logs from {names[first]} on.")


def read(chat: Chat, uri: str) -> dict[str, Any]:
    chat.llm.script.extend([call("read_artifact", uri=uri, start_line=200, lines=3), "seen"])
    return results(chat.say(f"What does {uri} say?"))[-1]


@pytest.mark.parametrize(
    ("again", "count"),
    [(False, 40), pytest.param(False, 300, marks=pytest.mark.slow), (True, 20)],
    ids=["one process", "more in one process", "a new one each time"],
)
def test_the_state_of_a_session_stays_small_and_nothing_is_lost(again: bool, count: int) -> None:
    names = [f"log-{at}" for at in range(count)]
    chat = Chat(tools=[read_numbers], policy=POLICY)
    half = len(names) // 2
    say_all(chat, names[:half])
    if again:
        chat.restart()
    say_all(chat, names[half:])
    after = aether(state_of(chat))
    assert len(after) <= 6
    assert len(json.dumps(after)) < MOST_BYTES
    if again:
        chat.restart()
        chat.say("And now?")
    addresses = shown(chat)
    assert list(addresses) == names
    assert all(addresses.values())
    assert "199: step" in str(read(chat, addresses[names[0]]))
    assert "199: step" in str(read(chat, addresses[names[-1]]))
    chat.replays()


def test_results_of_agents_that_run_side_by_side_as_tools_reach_their_caller() -> None:
    def reader(name: str) -> LlmAgent:
        names = [f"{name}-{at}" for at in range(16)]
        script = [[call("read_numbers", name=one) for one in names], f"{name} has read them"]
        return LlmAgent(name=name, model=Scripted(script=script, sent=[]), tools=[read_numbers])

    model = Scripted(script=[[call("left", request="read"), call("right", request="read")], "done"], sent=[])
    tools: list[Any] = [AgentTool(agent=reader(name)) for name in ("left", "right")]
    chat = Chat(agent=LlmAgent(name="clerk", model=model, tools=tools), policy=POLICY)
    chat.say("Read all logs.")
    children = [sent for sent in chat.sent if sent.agent in ("left", "right")]
    answers = [answer for sent in children for answer in sent.answers()]
    addresses = {str(answer["artifact"]).split(" ")[0] for answer in answers if "artifact" in answer}
    assert len(addresses) == 32
    for uri in sorted(addresses)[::7]:
        model.script.extend([call("read_artifact", uri=uri, start_line=200, lines=3), "seen"])
        assert "199: step" in str(results(chat.say(f"What does {uri} say?"))[-1])
    assert len(json.dumps(aether(state_of(chat)))) < MOST_BYTES


_SIZES = (8_000, 500_000)
_KINDS = ("json", "log", "code", "text", "minified")
_FACTS = [(kind, size, share) for kind in _KINDS for size in _SIZES for share in (0.31, 0.83)]
_FACTS += [(kind, 5_000_000, 0.83) for kind in ("json", "minified")]
_THINGS = (
    "warehouse", "voucher", "timetable", "parcel", "contract", "engine", "harbour", "museum", "orchard", "ledger",
)  # fmt: skip


def planted(kind: str, size: int, share: float) -> tuple[str, str, str]:
    """An output, what to search for in it, and the fact: a value that stands nowhere else."""
    draw = random.Random(f"{kind}{size}{share}")
    thing = draw.choice(_THINGS)
    number, value = draw.randint(1_000_000, 9_999_999), f"V{draw.randint(10**7, 10**8)}"
    lines = {"json": _row, "log": _log, "code": _code, "text": _text, "minified": _code}[kind]
    width = len(lines(0, thing, ""))
    count = max(4, size // width)
    made = [lines(at, thing, "") for at in range(count)]
    made[int(count * share)] = lines(number, thing, value)
    if kind == "json":
        return f"[{','.join(made)}]", str(number), value
    return ("" if kind == "minified" else "\n").join(made), str(number), value


def _row(at: int, thing: str, value: str) -> str:
    return json.dumps({"id": f"{thing}_{at}", "state": "open", "note": value or f"n{at * 37 % 1009}", "count": at % 89})


def _log(at: int, thing: str, value: str) -> str:
    return f"2025-01-01 10:{at // 60 % 60:02d}:{at % 60:02d} INFO {thing} {at} was checked: {value or 'in order'}"


def _code(at: int, thing: str, value: str) -> str:
    return f"function {thing}_{at}(a,b){{return a*{at % 97}+b}}/*{value}*/;"


def _text(at: int, thing: str, value: str) -> str:
    return f"Paragraph {at} of the handbook tells what the {thing} is for and whom to ask about it. {value}"


def read_output(name: str) -> str:
    """Reads an output."""
    kind, size, share = name.split()
    return planted(kind, int(size), float(share))[0]


@pytest.mark.parametrize(("kind", "size", "share"), _FACTS)
@pytest.mark.rows(7)
def test_a_planted_fact_is_found_in_at_most_two_calls(kind, size, share):
    _, wanted, value = planted(kind, size, share)
    name = f"{kind} {size} {share}"
    policy = PackPolicy(max_input_tokens=16_000, offload={"tools": {"read_output": "always"}})
    talk = Chat(script=[call("read_output", name=name), "seen"], tools=[read_output], policy=policy)
    talk.say("go")
    if value in said(talk):
        return
    (uri,) = {one["artifact"].split(" ")[0] for one in talk.sent[-1].answers()}
    talk.llm.script += [call("search_artifact", uri=uri, query=wanted), "seen"]
    talk.say(f"what is {wanted}?")
    if value not in said(talk):
        line = int(talk.sent[-1].answers()[-1]["found"][0]["lines"].split("-")[0])
        talk.llm.script += [call("read_artifact", uri=uri, start_line=line, max_lines=8), "done"]
        talk.say("read on")
    assert value in said(talk)


def said(talk: Chat) -> str:
    """What the tools have answered so far."""
    return json.dumps(talk.sent[-1].answers(), ensure_ascii=False)


NAMES, CITIES = ("Ann", "Bob", "Cid", "Dee", "Eve"), ("Oslo", "Bonn", "Lund", "Genoa")
FIRST = (*NAMES, "Fay", "Gus", "Hal", "Ida", "Jon")
PEERS = ("Kim", "Lee", "Moe", "Nye", "Orr", "Poe", "Ray", "Sue", "Tan", "Voss")


@pytest.mark.parametrize(
    ("text", "question", "answer"),
    [
        (
            "id,name,amount\n" + "".join(f"{n},{NAMES[n % 5]} {n},{1.5 * n}\n" for n in range(600)),
            "What is the name and the amount of id 150?",
            "150,Ann 150,225.0",
        ),
        (
            "# Stock\n\n| Product | Price | Stock |\n|---|---|---|\n"
            + "".join(f"| Widget {n} | {2 * n}.50 | {n % 9} |\n" for n in range(400)),
            "What are price and stock of the product Widget 222?",
            "| Widget 222 | 444.50 | 6 |",
        ),
        (
            "Employee\tCity\tSalary\n"
            + "".join(f"{NAMES[n % 5]} of unit {n // 5}\t{CITIES[n % 4]}\t{100 * n}\n" for n in range(400)),
            "Which salary and city has employee Dee of unit 31?",
            "Dee of unit 31\tLund\t15800",
        ),
        (
            " id  | customer | total\n-----+----------+------\n"
            + "".join(f" {n:<4}| {NAMES[n % 5]:<9}| {3.5 * n}\n" for n in range(600)),
            "What are customer and total of id 277?",
            "277 | Cid      | 969.5",
        ),
        (
            "。".join(f"第{n}条规定,供应商应在{3 * n}天内交付,违约金为{10 * n}元" for n in range(300)),
            "第123条的违约金是多少?",
            "第123条规定,供应商应在369天内交付,违约金为1230元",
        ),
        (
            "\n".join(f"{n}回目の会議。担当は{NAMES[n % 5]}さん、予算は{12 * n}万円です。" for n in range(300)),
            "77回目の会議の予算はいくらですか",
            "予算は924万円",
        ),
        (
            "".join(
                f"BEGIN:VEVENT\nUID:{n}@cal\nSUMMARY:Meeting with {FIRST[n // 10]} {PEERS[n % 10]}\n"
                f"DTSTART:202611{n % 28 + 1:02}T100000Z\nLOCATION:Room {3 * n}\nEND:VEVENT\n"
                for n in range(100)
            ),
            "Where is the meeting with Eve Tan?",
            "LOCATION:Room 144",
        ),
        (
            json.dumps(
                {
                    "status": 200,
                    "body": json.dumps({"items": [{"sku": f"S-{n}", "price": 1.1 * n} for n in range(400)]}),
                }
            ),
            "What does S-144 cost?",
            '["S-144",158.4]',
        ),
    ],
    ids=["csv", "markdown", "tab", "sql", "chinese", "japanese", "calendar", "json"],
)
def test_an_extract_has_what_a_question_asks_for_in_words_that_other_lines_share(text, question, answer):
    def fetch() -> str:
        return text

    talk = Chat(script=[call("fetch")], tools=[fetch], policy=PackPolicy(max_input_tokens=8_000))
    talk.say(question)
    assert answer in talk.sent[-1].answers("fetch")[-1]["result"]
    talk.replays()


def test_what_two_tools_give_alike_is_offloaded_of_both() -> None:
    def page(name: str) -> str:
        """Shows a page."""
        return str(big_file(name)["result"])

    def source(name: str) -> str:
        """Shows the source of a page."""
        return page(name)

    def kept(name: str) -> str:
        """Shows a page, which stays."""
        return page(name)

    script = [[call(name, name="p1") for name in ("page", "source", "kept")], "read", call("source", name="p1")]
    policy = PackPolicy(max_input_tokens=30_000, offload={"tools": {"kept": "whole"}})
    chat = Chat(script=script, tools=[page, source, kept], policy=policy)
    chat.say("What does it say?", "And now?")
    assert ["artifact" in answer for answer in chat.sent[-1].answers()] == [True, True, False, True]
    chat.replays()


def test_a_run_that_is_cancelled_leaves_no_exception_to_nobody(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        chat = Chat(script=[[call("read_log", name=f"log {at}") for at in range(4)], "done"], tools=[read_log])
        begun, free = asyncio.Event(), threading.Event()
        loop = asyncio.get_running_loop()

        def write(*_: Any) -> None:
            loop.call_soon_threadsafe(begun.set)
            free.wait(10)

        chat.store.write_evidence = write  # type: ignore[method-assign]
        task = asyncio.ensure_future(chat.tell("go"))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        free.set()

    asyncio.run(run())
    gc.collect()
    assert "never retrieved" not in caplog.text
