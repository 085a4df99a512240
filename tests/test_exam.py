"""The exam: what it asks, how it marks, and that a model's own search gives what it calls found."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from typing import Any

import pytest
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.tools.tool_context import ToolContext
from recorded_sessions import record, script_of, session_of
from scripted import Chat, call, new_store
from terminal import run, told
from wording import HISTORY

from aether_context import PackPolicy
from aether_context.lab.exam import Exam, Question, hold_exam, questions
from aether_context.pack import Content, Part

WINDOW = PackPolicy(max_input_tokens=4_000, offload={"mode": "off"})


def content(role: str, *parts: tuple[str, Any, str]) -> Content:
    made = tuple(
        Part(kind=kind, text=value if kind == "text" else json.dumps(value), wire="", name=name)  # type: ignore[arg-type]
        for kind, value, name in parts
    )
    calls = tuple(part for part in made if part.kind == "call")
    return Content(role=role, parts=made, wire="", digest="", calls=calls)


LINE = "total = sum(item.price for item in cart.items)"
TALK = (
    content("user", ("text", "Please mend order ORD-1183 in src/cart.py.", "")),
    content("model", ("call", {"path": "src/cart.py"}, "read_file")),
    content("user", ("response", {"result": f"def pay(cart):\n    {LINE}\n    charge(total, KEY_77)"}, "read_file")),
    content("model", ("call", {"uri": "artifact://history", "query": "REF-9001"}, "search_artifact")),
    content("user", ("response", {"found": "REF-5555 stands nowhere else"}, "search_artifact")),
    content("model", ("call", {"order": "ORD-1183", "note": "as asked"}, "book")),
    content("user", ("response", {"booking": "BK-204-X", "state": "open"}, "book")),
    content("model", ("text", "Done so far. " * 40, "")),
    content("user", ("text", "Go on.", "")),
    content(
        "model", ("text", "I cancel BK-204-X of ORD-1183 and REF-5555.", ""),
        ("call", {"path": "src/cart.py", "old": f"    {LINE}\n", "key": "KEY_77", "shop": "main"}, "edit"),
    ),
)  # fmt: skip


def asked(talk: tuple[Content, ...] = TALK, recent_tokens: int = 100, always: str = "") -> dict[str, Question]:
    readers = ("read_artifact", "search_artifact")
    calls = [(place, recent_tokens) for place, item in enumerate(talk) if item.role == "model"]
    return {item.need: item for item in questions(talk, calls, always=always, readers=readers)}


def test_a_question_is_about_what_a_result_had_said_first() -> None:
    found = asked()
    assert {need: (item.kind, item.place, item.source) for need, item in found.items()} == {
        LINE: ("line", 2, "acts"), "KEY_77": ("argument", 2, "acts"), "BK-204-X": ("text", 6, "acts")
    }  # fmt: skip
    assert {item.call for item in found.values()} == {4}
    assert found["BK-204-X"].queries == (
        f"src/cart.py {LINE} KEY_77 main path old key shop", "I cancel of ORD-1183 and REF-5555."
    )  # fmt: skip
    assert "KEY_77" not in asked(always="the key is KEY_77"), "each request has it"
    assert not asked(recent_tokens=10_000), "all was mentioned lately"
    many = tuple(content("user", ("text", f"{at} KEY_77 {'word ' * 100}", "")) for at in range(6))
    assert "KEY_77" not in asked((*TALK[:7], *many, *TALK[7:])), "one or another stands in a request"


def test_a_question_is_about_what_a_person_had_said_first() -> None:
    filler = (TALK[7], TALK[8])
    locker = content("user", ("text", "My locker is LK-88-T, behind the stairs.", ""))
    answer = content("model", ("text", "It is LK-88-T. Ask for form QF-20.", ""))
    found = asked((locker, *filler, answer))
    assert {need: (item.kind, item.place, item.source) for need, item in found.items()} == {
        "LK-88-T": ("text", 0, "people")
    }
    assert found["LK-88-T"].is_answered("- locker: LK-88-T")
    assert "QF-20" not in asked((locker, answer, *filler, answer)), "the model's own words tell nobody's need"


def test_an_answer_stands_beside_a_word_of_its_line() -> None:
    question = asked()["KEY_77"]
    assert question.is_answered("charge with KEY_77")
    assert not question.is_answered(f"charge {'x ' * 200} KEY_77"), "too far away"
    assert not question.is_answered("charge with KEY_778")
    assert asked()[LINE].is_answered(f"12: {LINE}")


def test_odd_texts_are_read_too() -> None:
    odd = [
        '{"status": "pending", broken', "[" * 900 + "]" * 900, '{"a":' * 400 + '{"text": "x"}' + "}" * 400,
        " " * 99_000, "- " * 9_000, "\ud800 12.5 ORD-1", "artifact://" + "." * 100_000, "a" * 99_999 + "=1", '"1"', "",
    ]  # fmt: skip
    for text in odd:
        answer = content("model", ("text", text, ""), ("call", {"text": text, "code": "ORD-1"}, "write"))
        asked((content("user", ("response", {"result": text}, "read")), *[TALK[7]] * 3, answer))


def look(shelf: str) -> str:
    """Looks what is on a shelf."""
    return "\n".join(f"box {shelf}{at}-{at * 37 % 91} holds {at} lamps of kind {shelf}, row {at}" for at in range(60))


def move(box: str, why: str) -> str:
    """Moves a box."""
    return f"moved under slip {hash_of(box)}"


def hash_of(box: str) -> str:
    return f"SL-{sum(map(ord, box)) * 7919 % 100_000}"


SHELVES = "ABCDEF"
BOXES = [look(shelf).splitlines()[4].split()[1] for shelf in SHELVES]


def script() -> list[Any]:
    """Looks at shelves, and then moves boxes of the first ones."""
    moves = [call("move", box=box, why=f"4 lamps of kind {box[0]}, row 4") for box in BOXES[:3]]
    return [*(call("look", shelf=shelf) for shelf in SHELVES), *moves, "I moved them.", "ok"]


def stock(answers: list[Any]) -> Chat:
    chat = Chat(policy=WINDOW, tools=[look, move], script=answers)
    chat.say("Move some boxes.")
    return chat


@pytest.fixture(scope="module")
def examined() -> tuple[Chat, Exam]:
    chat = stock(script())
    return chat, hold_exam(chat.store)


def searched(chat: Chat) -> str:
    """What the last search of a model gave."""
    return "\n".join(passage["text"] for passage in chat.sent[-1].answers("search_artifact")[-1]["found"])


def test_a_scripted_model_gets_what_the_exam_calls_found(examined: tuple[Chat, Exam]) -> None:
    _, exam = examined
    assert not exam.unusable
    marked = exam.total.marked
    assert len(marked) == 3
    for question, mark in [pair for pair in marked if pair[1] != "answered"]:
        queries = [call("search_artifact", uri=HISTORY, query=query) for query in question.queries]
        got = [searched(stock([*script()[: question.call], query, "ok"])) for query in queries]
        assert any(map(question.is_in, got)) == (mark == "found")
    assert exam.total.count("found") > 0


class Searching(BasePlugin):
    """Calls ``search_artifact`` with the words of each question that is not answered, at its call."""

    def __init__(self, exam: Exam) -> None:
        super().__init__(name="searching")
        self.marked, self.call, self.same = exam.total.marked, -1, Counter[bool]()

    async def before_model_callback(self, *, callback_context: Any, llm_request: Any) -> None:
        self.call += 1
        tool = llm_request.tools_dict.get("search_artifact")
        if tool is None:  # nothing was cut yet
            assert not any(question.call == self.call for question, _ in self.marked)
            return
        context = ToolContext(callback_context._invocation_context, function_call_id="exam")
        for question, mark in self.marked:
            if question.call == self.call and mark != "answered":
                got = [
                    await tool.run_async(args={"uri": HISTORY, "query": query}, tool_context=context)
                    for query in question.queries
                ]
                texts = ["\n".join(passage["text"] for passage in answer.get("found", ())) for answer in got]
                self.same[any(map(question.is_in, texts)) == (mark == "found")] += 1


@pytest.mark.slow
def test_of_a_hundred_questions_each_is_found_where_the_tool_finds_it() -> None:
    same = Counter[bool]()
    for number in range(6):
        steps = {"steps": 30, "reach": 20}
        store = new_store()
        session_of(number, store=store, policy=WINDOW, script=script_of(number, **steps))
        searching = Searching(hold_exam(store))
        session_of(number, policy=WINDOW, script=script_of(number, **steps), more_plugins=[searching])
        same += searching.same
    assert same[False] == 0
    assert same[True] >= 100


def test_what_acts_gave_and_what_stands_whole() -> None:
    slip = hash_of(BOXES[0])
    talk = ["word " * 900, "word " * 900, "word " * 900]
    answers = [
        call("move", box="A4-57", why="early"),
        "Done.",
        "ok",
        "ok",
        "ok",
        call("move", box=slip, why="undo"),
        "ok",
    ]
    marks = []
    for window in (4_000, 60_000):
        chat = Chat(store=new_store(), policy=PackPolicy(max_input_tokens=window), tools=[look, move], script=answers)
        chat.say("Move it.", *talk, "Undo it.")
        marks.append(hold_exam(chat.store).total)
    assert [mark for question, mark in marks[0].marked if question.source == "acts"] == ["answered"], (
        "the ledger has it"
    )
    assert not marks[1].marked, "what stands whole is no question"


def test_an_extract_is_asked_about_and_its_stored_text_searched() -> None:
    def listing() -> str:
        return "\n".join(f"ORD-{at} total {at * 7919 % 10_007}.25 of customer C{at * 31}" for at in range(900))

    want = listing().splitlines()[450].split()
    script = [call("listing"), "There are many.", call("move", box=want[-1], why=f"order {want[0]}"), "ok"]
    chat = Chat(store=new_store(), policy=PackPolicy(max_input_tokens=4_000), tools=[listing, move], script=script)
    chat.say("List all orders. " + "word " * 400, "Refund one. " + "word " * 900)
    marked = hold_exam(chat.store, app="shop", user="ann", session="s1").total.marked
    assert (want[-1], True, "found") in [(question.need, question.stored, mark) for question, mark in marked]


def test_a_result_with_any_keys_is_examined() -> None:
    def build() -> dict[str, Any]:
        return {"artifacts": ["a.whl"], "artifact_map": {"id": "BLD-90-X"}, "log": "word " * 300}

    script = [call("build"), "Built.", *["Fine."] * 4, call("move", box="BLD-90-X", why="ship it"), "ok"]
    chat = Chat(store=new_store(), policy=WINDOW, tools=[build, move], script=script)
    chat.say("Build. " + "word " * 200, *[f"And? {'word ' * 900}"] * 4, f"Ship it. {'word ' * 900}")
    exam = hold_exam(chat.store)
    assert not exam.unusable
    assert [question.need for question, _ in exam.total.marked] == ["BLD-90-X"]


@pytest.mark.parametrize("rewrite", ["rewind", "compaction"])
def test_a_rewritten_history_is_examined(rewrite: str) -> None:
    compacted: list[bool] = []

    def alter(_: Any, request: Any) -> None:
        if compacted:
            del request.contents[1:3]

    chat = Chat(policy=WINDOW, tools=[look, move], script=[*script()[:6], "ok", "ok", *script()[6:]], alter=alter)
    chat.say("Look.", "Hello.")
    if rewrite == "rewind":
        last = asyncio.run(chat.held()).events[-1].invocation_id
        asyncio.run(chat.runner.rewind_async(user_id="ann", session_id="s1", rewind_before_invocation_id=last))
    else:
        compacted.append(True)
    chat.say("Move some.")
    exam = hold_exam(chat.store)
    assert not exam.unusable
    assert len(exam.total.marked) == (3 if rewrite == "rewind" else 2), "what the host took away is no source"


def test_the_command_says_what_the_exam_says(examined: tuple[Chat, Exam]) -> None:
    chat, exam = examined

    report = told("exam", store=chat.store)
    assert (report["sessions"], report["requests"]) == (1, len(script()) - 1)
    assert report["rows"]["all"]["asked"] == len(exam.total.marked) > 0
    assert report["rows"]["argument"]["found"]["mean"] == exam.share("found", row="argument").mean
    printed = run("exam", store=chat.store).stdout
    assert re.search(r"^all +[\d,]+ ", printed, re.MULTILINE)
    assert printed.splitlines()[-1] == report["judgement"]
    assert re.match(
        r"Of 3 texts that calls used and cuts or extracts had taken, \d+% stand in the request, ", report["judgement"]
    )
    run("exam", "--session", "nobody", store=chat.store, code=3)


def test_a_wide_window_leaves_nothing_to_ask() -> None:
    store = new_store()
    record(store, 1, steps=8, policy=PackPolicy(max_input_tokens=60_000))
    assert hold_exam(store).total.marked == []
    assert run("exam", store=store).stdout.splitlines()[-1].startswith("Nothing to ask: ")
