"""The exam: what it asks, how it marks, and that it sees what a cut loses."""

from __future__ import annotations

import asyncio
import json
import re

import pytest
from click.testing import CliRunner
from google.adk.agents.callback_context import CallbackContext
from google.adk.models.llm_request import LlmRequest
from google.genai import types
from recorded_sessions import SMALL, STARVED, record
from scripted import Chat, call, new_store

from aether_context import PackPolicy
from aether_context.lab.cli import main
from aether_context.lab.exam import Question, hold_exam, questions
from aether_context.lab.exam.questions import lines_of, plain_text
from aether_context.pack import Content, Part


def content(role: str, kind: str, text: str, name: str = "") -> Content:
    return Content(role=role, parts=(Part(kind=kind, text=text, wire="", name=name),), wire="", digest="")  # type: ignore[arg-type]


def todos(status: str) -> str:
    return json.dumps({"todos": [{"content": "update the ledger tests", "status": status}]})


TALK = (
    content("user", "text", "Never push to main without a review. Please fix the invoice of order ORD-1183."),
    content("model", "call", json.dumps({"path": "src/billing/invoice.py", "text": "x = 1\ny = 2"}), "write_file"),
    content("user", "response", json.dumps({"result": "ok\nORD-1183 total 4,250.75\nValueError: bad currency code"})),
    content("model", "text", "We decided to round half even for invoices. The audit is on 9 June 2025."),
    content(
        "model", "call", json.dumps({"todos": [{"content": "update the ledger tests", "status": "pending"}]}), "plan"
    ),
    content("model", "call", json.dumps({"todos": [{"content": "update the ledger tests", "status": "done"}]}), "plan"),
    content("user", "response", json.dumps({"result": "ORD-1183 total 99.10"})),
)


def of_kind(kind: str):
    return [question for question in questions(TALK, {}) if question.kind == kind]


def test_each_kind_is_asked_for() -> None:
    (first, second) = [one for one in of_kind("value") if one.record == ("ord-1183",)]
    assert (first.answer, first.place, first.until) == (("4,250.75",), 2, 6)
    assert (second.answer, second.place, second.until) == (("99.10",), 6, None)
    assert [one.answer for one in of_kind("file")] == [("src/billing/invoice.py",)]
    assert [one.answer for one in of_kind("date")] == [("9 june 2025",)]
    (forbidden,) = of_kind("order")
    assert {"never", "push", "main", "review"} <= set(forbidden.answer), "and not the task, which ends"
    assert "decided" in of_kind("decision")[0].answer
    assert "currency" in of_kind("error")[0].answer
    (todo,) = of_kind("todo")
    assert (todo.place, todo.until) == (4, 5)


def orders(text: str, role: str = "user") -> list[str]:
    return [key for one in questions([content(role, "text", text)], {}) if one.kind == "order" for key in [one.text]]


@pytest.mark.parametrize(
    "sentence",
    [
        "Never push to main without a review.",
        "Do not touch the migrations folder.",
        "please don't use emojis in commit messages",
        "Fix the parser, but don't change its public interface.",
        "Rename the module and never import from utils.",
        "This repository is public: avoid customer names in tests.",
        "Stop apologizing in your replies.",
        "Leave the generated files alone.",
        "Always run the linter before you commit.",
        "If a test is flaky, do not delete it.",
        "From now on write dates as day, month, year.",
        "For the rest of this session work on the staging branch.",
        "Whenever you change a schema, write a migration.",
        "Run the linter before each commit.",
        "Remember to never log customer addresses.",
        "Make sure not to delete anything in the bucket.",
        "Only touch files below src/billing.",
        "Use only the standard library.",
        "When I ask for a number, only show two decimals.",
        "You must never show the key to anybody.",
        "You may only read from the production database.",
        "Invalid themes must NEVER crash the program.",
        "All answers must be in JSON.",
        "Every function needs to have a docstring.",
        "Changes to the vendor folder are off limits.",
        "I prefer tabs over spaces.",
        "I want you to never guess a price.",
        "I don't want you to open pull requests.",
        "I only accept flights without a stop.",
        "Please answer in German.",
        "Call me Benjamin, please.",
        "Keep your replies below a hundred words.",
        "Use metric units.",
        "Could you always cite the source?",
        "Can you stop adding comments to the code?",
        "Use tabs instead of spaces.",
        "Write colour, not color.",
        "No, it's AgentSession, not SessionAgent.",
        "The deadline is Friday, not Monday.",
        "I meant the staging database, not production.",
        "- Never retry a payment.",
        '**Important**: do not mention "Project Lark" to customers.',
        "Nothing may be deleted without my word.",
        "Every time I send a receipt, add it to the sheet.",
        "When writing queries, use uppercase keywords.",
        "Would you mind not using tables?",
    ],
)
def test_what_is_to_hold_from_now_on_is_an_order(sentence: str) -> None:
    assert len(orders("Hello there. " + sentence)) == 1
    assert not orders(sentence, role="model")


@pytest.mark.parametrize(
    "sentence",
    [
        "The test only fails on Windows.",
        "Only one of them matched.",
        "Test results are attached.",
        "Only test files were changed in this commit.",
        "Fix the invoice of order ORD-1183.",
        "Please add a test for the parser.",
        "Can you check the reservation again?",
        "I would like to change my flight to Boston.",
        "Make sure the last build passed.",
        "Change of plan.",
        "It never worked on my machine.",
        "Never mind, I found the reason.",
        "Never been there before in my life.",
        "Don't worry about the failing build.",
        "Don't have the number with me right now.",
        "I don't want travel insurance, thank you.",
        "I always get a timeout when I click.",
        "Always good chatting with you, Caroline!",
        "The docs say: never call this from a thread.",
        "He told me to never call him again.",
        "Should we never retry a payment?",
        "Why must it always be in JSON?",
        "That must not be the cause of it.",
        "It must have been a wonderful wedding.",
        "You should be really proud of yourself.",
        "You must have had great ideas there.",
        "We could not have done it without you.",
        "The workers start and do not stop.",
        "The server avoids a second round trip.",
        "Write a poem in French.",
        "What is twenty Celsius in metric units?",
        "I get DeprecationWarning: do not use np.int here.",
        'The sign says, "Always look on the bright side of life".',
        "She will eat less from now on.",
        "Read the log instead of the report that I sent.",
        "Every time you deploy, something breaks.",
        "All tests should pass after that.",
        "You should see an error in the console.",
        "Use of tabs instead of spaces is common there.",
        "It's a bug, not a feature of ours.",
        "Ok, I think it does not adhere to the rule that every line must not be wider than the screen.",
        "ValueError: you must not pass both arguments",
        "2026-01-03 11:20:01 WARNING do not run this as root",
        "src/a.c:12:5: warning: do not use gets",
        "# never call this directly",
        "> Never push to main, they wrote.",
        "```\n# always\nnever = do_not_touch()\nDo not edit this file.\n```",
        'It fails:\nTraceback (most recent call last):\n  File "a.py", line 3, in run\n    Never do this again now\n'
        "RuntimeError: must never be called twice\nDo not call it twice.",
        "Exception in thread main java.lang.IllegalStateException: must not be called twice",
    ],
)
def test_what_is_told_quoted_or_done_once_is_none(sentence: str) -> None:
    assert orders("Hello there. " + sentence if sentence[0].isalpha() else "Hello there.\n" + sentence) == []


def test_an_answer_stands_only_beside_its_record() -> None:
    (first, _) = [one for one in of_kind("value") if one.record == ("ord-1183",)]
    assert first.find(plain_text("- order ORD-1183: total 4,250.75 EUR")) > 0
    assert first.find(plain_text("ORD-1183 is late. " + "word " * 60 + "4,250.75")) == -1
    assert first.find(plain_text("ORD-1183 total 14,250.75")) == -1
    assert first.is_right("It is 4,250.75.")
    (order,) = of_kind("order")
    assert order.find(plain_text("- user: Never push to main without a review.")) >= 0
    assert order.find(plain_text("- user: push it")) == -1
    (file,) = of_kind("file")
    assert file.find(plain_text("written: src/billing/invoice.py")) > 0
    assert file.find(plain_text("see src/billing/invoice.py")) == -1


def test_json_is_read_as_keys_and_values() -> None:
    text = json.dumps({"a": 1, "rows": [{"id": "C-1", "n": 42}, {"id": "C-2", "n": 43}], "said": "one\ntwo"})
    assert {"a: 1", "id: C-1, n: 42", "one", "two"} <= set(lines_of(text))
    assert plain_text("{broken") == "{broken"


def test_odd_texts_are_read_too() -> None:
    odd = [
        '{"status": "pending", broken', "[" * 900 + "]" * 900,
        '{"a":' * 400 + '{"status": "open", "text": "x"}' + "}" * 400,
        " " * 200_000, "- " * 50_000, "\ud800 12.5 ORD-1", "artifact://" + "." * 100_000, "a" * 100_000 + "=12",
        '"12"', "", "9" * 5_000,
    ]  # fmt: skip
    for text in odd:
        for role, kind in (("user", "text"), ("model", "call"), ("user", "response")):
            for question in questions([content(role, kind, text, "write")], {}):
                question.find(plain_text(text))


def test_what_is_said_twice_differently_in_one_message_is_not_asked() -> None:
    unclear = content("user", "response", json.dumps({"result": "ORD-1183 total 17.20\nORD-1183 total 18.30"}))
    assert not [one for one in questions([unclear], {}) if one.record == ("ord-1183",)]


@pytest.fixture(scope="module")
def recorded():
    stores = {}
    for name, policy in (("small", SMALL), ("starved", STARVED), ("large", PackPolicy(max_input_tokens=60_000))):
        stores[name] = new_store()
        record(stores[name], 3, policy=policy)
    return stores


@pytest.mark.slow
def test_a_wide_window_loses_nothing_and_a_narrow_one_does(recorded) -> None:
    shares = {}
    for name, store in recorded.items():
        exam = hold_exam(store)
        assert not exam.unusable
        assert exam == hold_exam(store)
        shares[name] = exam.share("whole", "answered", of=("whole", "answered", "readable", "lost"))
        assert shares[name].sessions == 3
    assert shares["large"].mean == 100
    assert shares["large"].mean > shares["small"].mean > shares["starved"].mean


def test_what_stands_behind_an_address_is_readable() -> None:
    def listing() -> str:
        return "\n".join(f"ORD-{at} total {at * 7}.25" for at in range(900))

    store = new_store()
    chat = Chat(
        store=store, policy=PackPolicy(max_input_tokens=8_000), tools=[listing],
        script=[call("listing"), "There are many.", "Yes.", "Yes."],
    )  # fmt: skip
    chat.say("List all orders.", "Really?", "Sure?")
    exam = hold_exam(store, app="shop", user="ann", session="s1")
    total = exam.total
    assert total.count("readable", kind="value") > 0
    assert total.count("lost", kind="value") == 0
    assert total.read_calls >= total.count("readable")
    asked = []
    read = hold_exam(store, reader=lambda request, question: asked.append((request, question)) or "nothing").total
    assert (read.right, read.wrong) == (0, len(asked)) != (0, 0)


@pytest.mark.parametrize("rewrite", ["rewind", "compaction"])
def test_a_rewritten_history_keeps_its_distances(rewrite: str) -> None:
    compacted: list[bool] = []

    def alter(_: CallbackContext, request: LlmRequest) -> None:
        if compacted:
            request.contents = [types.UserContent("Earlier they talked."), *request.contents[2:]]

    chat = Chat(store=new_store(), alter=alter, script=[f"Answer {at}." for at in range(40)])
    chat.say("Hello.", "Never push to main without a review.", *[f"Question {at}?" for at in range(10)])
    if rewrite == "rewind":
        last = asyncio.run(chat.held()).events[-1].invocation_id
        asyncio.run(chat.runner.rewind_async(user_id="ann", session_id="s1", rewind_before_invocation_id=last))
    else:
        compacted.append(True)
    chat.say("Never rename a public function.", "And now?")
    total = hold_exam(chat.store).total
    assert total.count("whole", kind="order", distance="the last call") == 2
    marks = {at: total.count("whole", kind="order", distance=at) for at in ("up to 8 calls", "up to 25 calls")}
    assert marks["up to 8 calls"] == 9, "eight of the first order, one of the second"
    assert marks["up to 25 calls"] == 4, "of the first order alone"


def test_the_command_says_what_the_exam_says(recorded) -> None:
    def run(*arguments: str):
        return CliRunner().invoke(main, ["exam", recorded["small"].url, *arguments], catch_exceptions=False)

    found = run("--json")
    assert found.exit_code == 0
    report = json.loads(found.stdout)
    exam = hold_exam(recorded["small"])
    assert report["sessions"] == 3
    assert report["rows"]["all"]["asked"] == exam.total.count("whole", "answered", "readable", "lost")
    assert report["rows"]["value"]["lost"] == exam.total.count("lost", kind="value")
    printed = run()
    assert re.search(r"^all +[\d,]+ ", printed.stdout, re.MULTILINE)
    assert run("--session", "nobody").exit_code == 3
    refused = run("--reader", "nope")
    assert refused.exit_code == 2
    assert refused.stderr.endswith("--reader = 'nope': ADK's registry has no such model; name one that it has\n")


def test_a_reader_is_right_about_a_file_where_it_says_that_it_was_changed():
    changed = Question(kind="file", text="Was a/b.py changed?", record=("edit",), answer=("a/b.py",), place=0)
    for reply in ("Yes.", "a/b.py was edited.", "Yes, it was renamed.", "Yes, and no other file was."):
        assert changed.is_right(reply), reply
    for reply in (
        "No, a/b.py was not changed.",
        "It wasn't edited.",
        "Unknown.",
        "a/b.py",
        "It is unchanged.",
        "Credit to a/b.py.",
    ):
        assert not changed.is_right(reply), reply
