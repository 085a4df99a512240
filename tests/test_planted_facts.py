"""A scripted agent that has to read back: facts planted in outputs of 1 KB to 5 MB, each found in at most two calls."""

from __future__ import annotations

import json
import random

import pytest
from scripted import Chat, call

from aether_context import PackPolicy

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
