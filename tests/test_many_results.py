"""Results that are read back: hundreds of long ones, and facts planted in outputs of 1 KB to 5 MB."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.tools.agent_tool import AgentTool
from plans import aether
from scripted import Chat, Scripted, call, results, state_of

from aether_context import PackPolicy

AT_ONCE = 15
MOST_BYTES = 10_000
POLICY = PackPolicy(max_input_tokens=500_000, offload={"extract_tokens": 40})


def read_log(name: str) -> dict[str, Any]:
    """Reads a log, which is long."""
    return {"result": "\n".join(f"{at}: step {at * 37 % 1009} of {name} took {at * 11} ms" for at in range(240))}


def shown(chat: Chat) -> dict[str, str]:
    """The addresses that results in the last request name, by the log; empty where one is sent whole."""
    parts = [part for content in chat.sent[-1].contents for part in content.parts or ()]
    calls = [part.function_call for part in parts if part.function_call and part.function_call.name == "read_log"]
    return {
        str((asked.args or {})["name"]): str(answer.get("artifact", "")).split(" ")[0]
        for asked, answer in zip(calls, chat.sent[-1].answers("read_log"), strict=True)
    }


def say_all(chat: Chat, names: list[str]) -> None:
    for first in range(0, len(names), AT_ONCE):
        chat.llm.script.extend([[call("read_log", name=name) for name in names[first : first + AT_ONCE]], "read"])
        chat.say(f"Read the logs from {names[first]} on.")


def read(chat: Chat, uri: str) -> dict[str, Any]:
    chat.llm.script.extend([call("read_artifact", uri=uri, start_line=200, lines=3), "seen"])
    return results(chat.say(f"What does {uri} say?"))[-1]


@pytest.mark.parametrize(
    ("again", "count"),
    [(False, 120), pytest.param(False, 300, marks=pytest.mark.slow), (True, 30)],
    ids=["one process", "more in one process", "a new one each time"],
)
def test_the_state_of_a_session_stays_small_and_nothing_is_lost(again: bool, count: int) -> None:
    names = [f"log-{at}" for at in range(count)]
    chat = Chat(tools=[read_log], policy=POLICY)
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
        script = [[call("read_log", name=one) for one in names], f"{name} has read them"]
        return LlmAgent(name=name, model=Scripted(script=script, sent=[]), tools=[read_log])

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
