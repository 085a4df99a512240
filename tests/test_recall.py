"""Turns that a cut took come back when they are asked about, and other candidates are ranked by the same search."""

from __future__ import annotations

import re
import threading
import time
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from failing import short_waits
from hypothesis import given
from hypothesis import strategies as st
from packs import pack_input
from packs import said as spoken
from plans import small
from scripted import Chat, call, inside, look_up, was_cut
from wording import FIRST_LINE, SUMMARY_TITLE

from aether_context import Manifest, PackPolicy
from aether_context.adk import bounds
from aether_context.canonical import hash_text
from aether_context.pack import Step
from aether_context.retrieval import query_for, register_embedder
from aether_context.retrieval.call_indexes import passages, recalled, turn_entries
from aether_context.retrieval.embedders import Vectors
from aether_context.store.replay import Replayer
from aether_context.text.shorten import sentences

FACTS = [
    "My sister Ada keeps bees behind the old mill.",
    "The spare key hangs behind the kitchen clock.",
    "We fly to Lisbon on the ninth, with the early plane.",
    "The plumber's name is Fennimore and he comes on Tuesdays.",
    "Our cat is called Biscuit and eats nothing but sardines.",
]
ASKED = [
    "Where does Ada keep bees?",
    "Where is the spare key?",
    "When do we fly to Lisbon?",
    "What is the plumber's name?",
]


def chatter(count: int) -> list[str]:
    """Messages about nothing that is asked for later."""
    return [
        f"Number {at}: the weather stays grey, and the garden needs rain, leaf {at} of many; so it is, and so it was "
        "all the week, and nobody here expects that it will be otherwise before the next."
        for at in range(count)
    ]


def talk(window: int = 1_200, more: int = 20, **settings: Any) -> Chat:
    """A conversation that begins with the facts and goes on until they have been cut."""
    script = [f"I see, number {at}." for at in range(more + len(FACTS))]
    chat = Chat(policy=small(window, **settings), script=script)
    chat.say(*FACTS, *chatter(more))
    last = chat.latest()
    assert last.epoch.cut_count > 2 * len(FACTS)
    return chat


def turns_of(chat: Chat, manifest: Manifest) -> list[Any]:
    rows = Replayer(chat.store).resolve(manifest).rows.values()
    return [row for row in rows if row.source == "conversation"]


def memory_of(text: str) -> str:
    found = re.search(r"MEMORY:\n(.*?)USER REQUEST:", text, re.DOTALL)
    return found.group(1) if found else ""


def test_what_was_cut_comes_back_word_for_word_with_speaker_and_date() -> None:
    chat = talk(conversation={"summary_share": 0})
    for question, fact in zip(ASKED, FACTS, strict=False):
        assert fact not in chat.sent[-1].text or fact in memory_of(chat.sent[-1].human())
        chat.say(question)
        said = rf"- \d+ [A-Z][a-z]+ \d{{4}}, user: {re.escape(fact)}\n"
        assert re.search(said, chat.sent[-1].text)
    for manifest in chat.manifests():
        assert inside(manifest, manifest.window)
    chat.replays()


def test_a_turn_stands_in_memory_or_in_the_summary_of_the_same_request_not_in_both() -> None:
    chat = Chat(policy=small(60_000), script=[f"I see, number {number}." for number in range(200)])
    chat.say(*FACTS, *chatter(32))
    chat.policy = small(1_600)  # so that one call cuts, summarizes and recalls
    chat.restart()
    chat.say(ASKED[0])
    summary = chat.sent[-1].text.partition(SUMMARY_TITLE)[2].partition(FIRST_LINE)[0]
    assert FACTS[0] not in summary
    assert FACTS[0] in memory_of(chat.sent[-1].human())
    assert FACTS[1] in summary
    chat.say(ASKED[1])  # what it asks for stands in the summary, which stays
    assert FACTS[1] not in memory_of(chat.sent[-1].human())
    assert FACTS[1] in chat.sent[-1].text
    said = [row for row in turns_of(chat, chat.latest()) if row.hash == hash_text(f"user: {FACTS[1]}")]
    assert [(row.form, row.reason) for row in said] == [("left_out", "already_in_conversation")]
    chat.replays()


def test_what_comes_back_at_a_cut_stands_in_the_summary_where_that_has_room_so_that_it_outlasts_the_memory() -> None:
    long_answer = "The harbour is calm, and the boats are in. " * 30
    chat = Chat(policy=small(60_000), script=[f"{number}: {long_answer}" for number in range(5)])
    chat.say(*FACTS)
    chat.policy = small(1_600)  # so that one call cuts, summarizes and recalls
    chat.restart()
    chat.say(ASKED[0])
    assert was_cut(chat.latest())
    assert FACTS[0] in chat.sent[-1].text
    chat.say("Who else knows that?", "And since when?", "ok")  # the words of the last one find nothing
    assert FACTS[0] in chat.sent[-1].text
    chat.replays()


def test_the_manifest_has_a_row_with_scores_for_each_turn_that_was_looked_at() -> None:
    chat = talk(conversation={"summary_share": 0})
    chat.say(ASKED[1])
    manifest = chat.latest()
    rows = turns_of(chat, manifest)
    key = max((row for row in rows if row.form == "whole"), key=lambda row: row.scores["similarity"])
    assert 0.05 < key.scores["similarity"] < 1
    assert {"bm25", "cosine"} <= set(key.scores)
    assert key.time is not None
    assert manifest.searched == 2 * (len(FACTS) + 20)
    assert manifest.embedder.startswith("static-")
    assert len(rows) <= manifest.searched
    assert {row.form for row in rows} <= {"whole", "left_out"}


def test_a_request_keeps_its_memories_through_its_tool_loop_and_searches_once() -> None:
    chat = talk(conversation={"summary_share": 0})
    chat.llm.script = [call("look_up", key="a"), call("look_up", key="b"), "Behind the clock."]
    chat.agent.tools = [look_up]  # type: ignore[union-attr]
    before = len(chat.sent)
    chat.say(ASKED[1])
    first, *later = chat.sent[before:]
    assert FACTS[1] in memory_of(first.human())
    assert all(one.human() == first.human() for one in later)
    chat.replays()


@given(text=st.text("ab .!?\n", max_size=300), most=st.integers(4, 80))
def test_passages_hold_a_text_whole_and_in_order(text: str, most: int) -> None:
    found = passages(text, most)
    assert all(0 < len(one) <= 2 * most and one in text for one in found)
    assert all(len(one) <= most or len(sentences(one)) == 1 for one in found)
    assert "".join("".join(found).split()) == "".join(text.split())


def test_a_heading_stands_in_the_passage_of_what_it_heads() -> None:
    chapters = [
        f"Chapter {at}\nThe hero of it is H{at}. He walks {at * 137} miles and finds a stone." for at in range(60)
    ]
    found = passages("\n".join(chapters), 200)
    assert all(any(chapter in one for one in found) for chapter in chapters)


def test_passages_and_their_room_are_measured_in_bytes() -> None:
    """A character of Chinese is a token, four of English are."""
    clauses = [f"第{at}条：甲方应在{at}天内支付货款，编号QX-{at * 7919 % 10_007}。" for at in range(1, 91)]
    turns = turn_entries(0, "\n".join(clauses), time=0.0, speaker="user")
    assert max(len(turn.text.encode()) for turn in turns) <= 600
    source = pack_input([spoken("第84条关于付款怎么说？")])
    found = recalled(turns, source, PackPolicy(), str, tokens=300, embedder=None)
    assert clauses[83] in found[0].text
    assert sum(len(turn.text.encode()) for turn in found) <= 4 * 300


def test_who_said_it_is_heeded_where_the_question_says_so() -> None:
    def found(question: str, most: int = 5, step: Step | None = None) -> set[str | None]:
        source, policy = pack_input([spoken(question)], step=step), PackPolicy(retrieval={"memory_k": most})
        return {hit.speaker for hit in recalled(said, source, policy, str, tokens=9_000, embedder=None)}

    talk = ["Is the boat trip to Lisbon too long?", "I suggest the boat trip to Porto."] * 6
    said = [
        entry
        for at, text in enumerate(talk)
        for entry in turn_entries(at, f"{text} {at}", time=0.0, speaker="agent" if at % 2 else "user")
    ]
    assert found("Which boat trip is it?") == {"user", "agent"}
    assert found("In which order have I brought up each boat trip?") == {"user"}
    assert found("Which boat trip did you suggest?") == {"agent"}
    assert found("Which boat trip did you suggest?", most=1) == {"agent"}
    assert found("What boat trip did you suggest when I asked about Lisbon?") == {"user", "agent"}
    assert found("May I ask which boat trip it is?") == {"user", "agent"}
    step = Step(text="Say which boat trip I have brought up", goal="In which order did I bring up each trip?")
    assert found("Which boat trip is it?", step=step) == {"user", "agent"}, "a step is not what the user asks"
    assert found("Who should I talk to about the boat trip?") == {"user", "agent"}
    assert found("I was told to take a boat trip: which?") == {"user", "agent"}
    assert found("error: no trip 'bota trip'. Did you mean 'boat trip'?") == {"user", "agent"}
    assert found("Did you get which boat trip I want?") == {"user", "agent"}


def test_a_passage_of_a_long_message_comes_back_alone() -> None:
    manual = "\n".join(f"Paragraph {at} of the manual says that part {at} is grey." for at in range(60))
    told = f"{manual}\nThe serial number is under the lid.\n{manual}"
    chat = Chat(policy=small(3_000, conversation={"summary_share": 0}), script=[f"I see {at}." for at in range(60)])
    chat.say(told, *chatter(25))
    assert "serial number" not in chat.sent[-1].text.partition("CONTEXT PACK")[0]
    chat.say("Where is the serial number?")
    assert "The serial number is under the lid." in memory_of(chat.sent[-1].human())
    assert any("#" in row.id for row in turns_of(chat, chat.latest()))
    chat.replays()


def lookup(topic: str) -> str:
    """Looks a topic up."""
    return " ".join(
        f"{topic} line {at} says the committee agreed on the matter of roofs and fairs." for at in range(55)
    )


def test_many_questions_of_one_kind_do_not_keep_what_they_ask_for_out() -> None:
    clauses = [
        f"Clause {at}: party {at * 7 % 97} pays within {at * 3 % 41 + 5} days for item QX-{at * 7919 % 10_007}."
        for at in range(41)
    ]
    done = "Done with that part. " + "The committee met and the matter was settled as described. " * 8
    work = [item for at in range(6) for item in (call("lookup", topic=f"t{at}"), call("lookup", topic=f"u{at}"), done)]
    chat = Chat(policy=small(8_000), script=["Noted.", *work, *[done] * 10], tools=[lookup])
    chat.say("\n".join(("Keep this.", *clauses)), *(f"Go on with part {at} of the documents." for at in range(6)))
    for at in (3, 17, 29, 4, 38, 7, 22, 31, 12, 40):
        chat.say(f"Was sagt Clause {at} zur Zahlung?")
        assert clauses[at] in chat.sent[-1].text, at


# embedders


class Loading:
    """Gives vectors once it is loaded, which takes until it is let go."""

    def __init__(self) -> None:
        self.let_go = threading.Event()
        self.asked = 0

    def embed(self, texts: Any, *, purpose: str = "entry") -> Vectors:
        self.asked += 1
        assert self.let_go.wait(60)
        return np.ones((len(texts), 4), dtype=np.float32) / 2


PASTED = "".join(f"Row {at} of the export says that nothing happened, see x.org/a?b={at}.\n" for at in range(1_500))
"""A text of 100 KB that asks nothing."""


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (f"{ASKED[0]}\n{PASTED}", ASKED[0]),
        (f"{PASTED}{ASKED[0]}", ASKED[0]),
        (f"{PASTED}\n{ASKED[0]}\n\n{PASTED}", ASKED[0]),
        (f"{PASTED}Please tell me about Ada and her bees.\n{PASTED}", "Please tell me about Ada and her bees."),
        (f"{PASTED}It came from Mühlenbach-am-Wehr-4711-Ostflügel.\n{PASTED}", "Mühlenbach-am-Wehr-4711-Ostflügel"),
    ],
    ids=["at its beginning", "at its end", "between", "as an order", "as a rare name"],
)
def test_a_long_message_is_searched_by_what_it_asks_and_names(message: str, words: str) -> None:
    assert words in query_for(pack_input([spoken(message)]))


def test_a_query_is_bounded_and_a_short_one_is_the_message_itself() -> None:
    for message in (ASKED[0], PASTED[:8_000], "漢字" * 4_000):
        assert query_for(pack_input([spoken(message)])) == message
    for message in (PASTED * 20, "漢字。" * 100_000, "x" * 500_000, "? " * 100_000, "請您看 please " * 30_000):
        query = query_for(pack_input([spoken(f"{message}\nWhere is Ada?")]))
        assert len(query) <= 8_000
        assert "Where is Ada?" in query


def test_a_secret_of_a_long_message_is_no_query() -> None:
    key = "-----BEGIN RSA PRIVATE KEY-----\n" + "\n".join(hash_text(str(at))[7:] for at in range(20))
    message = f"{PASTED}password: hunter2secret\n{key}\n-----END RSA PRIVATE KEY-----\n{PASTED}"
    query = query_for(pack_input([spoken(message)]), ("secrets",))
    assert "hunter2secret" not in query
    assert not any(line in query for line in key.splitlines()[1:])


@short_waits()
@patch.object(bounds, "RETRY_SECONDS", 600)
def test_an_embedder_loads_behind_calls_that_the_packaged_one_ranks() -> None:
    loading = Loading()
    register_embedder("loading", loading)
    retrieval = {"embedder": "loading"}
    chat = talk(retrieval=retrieval, conversation={"summary_share": 0})
    try:
        chat.say(ASKED[1])
        assert loading.asked == 1, "no call asks again while it loads"
        assert FACTS[1] in memory_of(chat.sent[-1].human())
        manifest = chat.latest()
        assert manifest.embedder.startswith("static-")
        assert (
            "the embedder loading is left out for a while: ranked by the model in the package" in manifest.degradations
        )
        chat.replays()
    finally:
        loading.let_go.set()
    for _ in range(100):
        chat.say(ASKED[2])
        manifest = chat.latest()
        if manifest.embedder == "loading":
            break
        time.sleep(0.05)
    assert manifest.embedder == "loading"
    assert not any("embedder" in problem for problem in manifest.degradations)
    chat.replays()


def test_small_talk_brings_no_memories_and_a_question_for_many_brings_more() -> None:
    chat = talk(conversation={"summary_share": 0}, retrieval={"memory_k": 2})
    for words in ("ok", "Thanks!", "Hello, how are you?"):
        chat.say(words)
        assert not memory_of(chat.sent[-1].human())
        assert chat.latest().searched in (None, 0)
    chat.say("What did I say about the garden?")
    few = memory_of(chat.sent[-1].human()).count("\n")
    chat.say("List all that I said about the garden, in order.")
    assert 0 < few <= 4 < memory_of(chat.sent[-1].human()).count("\n") <= 8


def test_a_question_for_an_order_brings_more_turns_by_their_dates() -> None:
    chat = talk(window=3_000, more=45, conversation={"summary_share": 0}, retrieval={"memory_k": 2})
    chat.say("List all that I said about the garden.")
    all_lines = memory_of(chat.sent[-1].human()).count("\n")
    chat.say("In what order did I mention the leaves of the garden?")
    lines = re.findall(r"Number (\d+): the weather", memory_of(chat.sent[-1].human()))
    assert len(lines) > all_lines
    assert lines == sorted(lines, key=int)


def test_each_part_of_a_question_for_an_order_is_searched_for() -> None:
    chat = talk(conversation={"summary_share": 0}, retrieval={"memory_k": 1})
    question = "In what order did I mention the bees, the spare key, Lisbon; and then the plumber?"
    chat.say(question)
    memory = memory_of(chat.sent[-1].human())
    assert all(fact in memory for fact in FACTS[:4])


def test_the_first_of_a_conversation_comes_back_where_it_has_no_word_of_the_question() -> None:
    chat = talk(conversation={"summary_share": 0}, retrieval={"memory_k": 2})
    chat.say("What was the very first thing I told you?")
    assert FACTS[0] in memory_of(chat.sent[-1].human())


def hits(question: str) -> int:
    """How many turns are found of many that are alike: up to eight, unless a question asks for an order."""
    turns = [turn for at in range(30) for turn in turn_entries(at, f"{question} {at}", time=0.0, speaker="user")]
    source, policy = pack_input([spoken(question)]), PackPolicy(retrieval={"memory_k": 2})
    return len(recalled(turns, source, policy, str, tokens=9_000, embedder=None))


@pytest.mark.parametrize(
    "question",
    [
        "In what order did I bring up the topics?", "List the order in which we discussed the parts of the plan.",
        "What was the first thing I asked you?", "Which city did I first mention?",
        "What did we originally say about the price?", "Give me a timeline of what I told you about the project.",
        "Can you reconstruct the sequence in which I raised these issues?",
        "In welcher Reihenfolge habe ich die Themen genannt?", "¿En qué orden hablamos de los temas?",
        "Dans quel ordre avons-nous parlé de cela ?", "我提到这些的顺序是什么?", "Which city did I mention first?",
        "Was habe ich zuerst gesagt?", "Quelle est la première chose que j'ai dite ?",
        "What's the very first topic that we talked about?",
    ],
)  # fmt: skip
def test_a_question_for_an_order_is_known(question: str) -> None:
    assert hits(question) > 8


@pytest.mark.parametrize(
    "message",
    [
        "Please order two pizzas.", "Write a sequence diagram of the login.", "What is the timeline of the launch?",
        "In order to finish, what do we need?", "What's my first name?", "First, tell me the price.",
        "Put the files in order.", "My first day at work was great, she said I was good.",
        "Use the first approach that we have.", "La orden de compra es la 4711.",
        "First of all, can you and I start with the invoice?", "The first time we met he said so; fix the bug.",
        "Can you put the timeline I asked for into the doc?", "Sequence diagram: show how you start the server.",
    ],
)  # fmt: skip
def test_a_message_with_such_a_word_is_not_taken_for_one(message: str) -> None:
    assert hits(message) <= 8
