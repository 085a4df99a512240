"""Turns that a cut took come back when they are asked about, and other candidates are ranked by the same search."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from google.adk.events.event import Event
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from google.adk.tools.load_memory_tool import load_memory_tool as load_memory
from google.genai import types
from hypothesis import given
from hypothesis import strategies as st
from plans import planned, small
from restarting import Restarting, same_requests
from scripted import Chat, Memories, call, inside, look_up, new_store, remembered

from aether_context import Manifest, PackPolicy
from aether_context.adk import ContextPackPlugin, bounds
from aether_context.adk.bounds import Waits
from aether_context.adk.request.recall import read_spoken
from aether_context.errors import EmbeddingError, PolicyError
from aether_context.retrieval import Entry
from aether_context.retrieval.embedders import StaticEmbedder, Vectors, register_embedder
from aether_context.retrieval.passages import passages
from aether_context.store.replay import Replayer

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
        f"Number {at}: the weather stays grey, and the garden needs rain, leaf {at} of many." for at in range(count)
    ]


def talk(window: int = 1_200, more: int = 40, **settings: Any) -> Chat:
    """A conversation that begins with the facts and goes on until they have been cut."""
    script = [f"I see, number {at}." for at in range(more + len(FACTS))]
    chat = Chat(policy=small(window, **settings), script=script)
    chat.say(*FACTS, *chatter(more))
    last = chat.manifests()[-1]
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
        said = rf"- \d{{4}}-\d\d-\d\d user said: {re.escape(fact)}\n"
        assert re.search(said, chat.sent[-1].text)
    for manifest in chat.manifests():
        assert inside(manifest, manifest.window)
    chat.replays()


def test_the_manifest_has_a_row_with_scores_for_each_turn_that_was_looked_at() -> None:
    chat = talk()
    chat.say(ASKED[1])
    manifest = chat.manifests()[-1]
    rows = turns_of(chat, manifest)
    key = max((row for row in rows if row.form == "whole"), key=lambda row: row.scores["similarity"])
    assert 0.05 < key.scores["similarity"] < 1
    assert {"bm25", "cosine"} <= set(key.scores)
    assert key.time is not None
    assert manifest.searched == 2 * (len(FACTS) + 40)
    assert manifest.embedder.startswith("static-")
    assert len(rows) <= manifest.searched
    assert {row.form for row in rows} <= {"whole", "left_out"}


def test_nothing_is_searched_before_anything_was_cut() -> None:
    chat = Chat(policy=small(20_000), script=["ok"] * 9)
    chat.say(*FACTS, ASKED[0])
    for manifest in chat.manifests():
        assert (manifest.searched, manifest.embedder, turns_of(chat, manifest)) == (None, "none", [])
    assert chat.sent[-1].human() == ASKED[0]


def test_what_still_stands_is_not_repeated() -> None:
    chat = talk()
    chat.say("Biscuit eats sardines, you know.", "What does Biscuit eat?", "What does Biscuit eat?")
    text = chat.sent[-1].text
    assert text.count("Biscuit eats sardines, you know.") == 1
    assert text.count(FACTS[4]) <= 1 + ("CONVERSATION SUMMARY" in text)
    assert "already_in_conversation" in {row.reason for row in turns_of(chat, chat.manifests()[-1])}


def test_a_request_keeps_its_memories_through_its_tool_loop_and_searches_once() -> None:
    chat = talk()
    chat.llm.script = [call("look_up", key="a"), call("look_up", key="b"), "Behind the clock."]
    chat.agent.tools = [look_up]  # type: ignore[union-attr]
    before = len(chat.sent)
    chat.say(ASKED[1])
    first, *later = chat.sent[before:]
    assert FACTS[1] in memory_of(first.human())
    assert all(one.human() == first.human() for one in later)
    chat.replays()


def test_it_can_be_switched_off() -> None:
    chat = talk(retrieval={"recall": False}, conversation={"summary_share": 0})
    chat.say(ASKED[1])
    assert chat.sent[-1].human() == ASKED[1]
    assert chat.manifests()[-1].searched is None


def test_turns_of_one_user_or_session_never_reach_another() -> None:
    chat = talk()
    script = [f"I see {at}." for at in range(60)]
    chat.llm.script = script
    for user, session in (("bob", "s1"), ("ann", "s2")):
        chat.say(*chatter(40), ASKED[1], user=user, session=session)
        assert not any(fact in chat.sent[-1].text for fact in FACTS)


def test_another_worker_sends_the_same_bytes(tmp_path: Path) -> None:
    policy = small(1_200)

    def make(plugin: Any, place: str) -> Chat:
        service = SqliteSessionService(db_path=str(tmp_path / place))
        script = [one for at in range(30) for one in (call("look_up", key=f"k{at}"), f"I see {at}.")]
        chat = Chat(policy=policy, plugin=plugin, sessions=service, script=script, tools=[look_up])
        chat.say(*FACTS, *chatter(20), *ASKED)
        return chat

    steady = make(None, "one.db")
    restarted = make(Restarting(policy=policy, store=new_store(), on_error="raise"), "two.db")
    same_requests(steady, restarted)
    steady.replays()


def said_in(history: list[types.Content], events: list[Event], end: int | None = None) -> list[Entry]:
    end = len(history) if end is None else end
    return read_spoken(history, events, end, most=9_999, mask=str)[1]


def test_turns_are_words_with_an_event_of_their_own() -> None:
    def content(role: str, text: str) -> types.Content:
        return types.Content(role=role, parts=[types.Part(text=text)])

    thought = types.Content(role="model", parts=[types.Part(text="hm", thought=True), types.Part(text="Yes.")])
    called = types.Content(role="model", parts=[types.Part(text="Let me see."), call("look_up", key="a")])
    spoken = [content("user", "Hello"), thought, content("user", "ok"), called, content("user", "ok")]
    events = [
        Event(author="user" if one.role == "user" else "clerk", content=one, timestamp=float(at))
        for at, one in enumerate(spoken)
    ]
    history = [content("model", "a summary of the host's"), *spoken]
    found = said_in(history, events)
    assert [(one.id, one.text, one.time, one.speaker) for one in found] == [
        ("1", "Hello", 0.0, "user"),
        ("2", "Yes.", 1.0, "clerk"),
        ("3", "ok", 2.0, "user"),
        ("5", "ok", 4.0, "user"),
    ]
    assert [one.time for one in said_in(history[5:], events)] == [4.0], "a history that lost its beginning"
    before_the_last = said_in(history, events, end=5)
    assert [(one.id, one.time) for one in before_the_last][-1] == ("3", 2.0), "words that the request says once more"


def quoted(agent: str, text: str) -> types.Content:
    """Another agent's turn, as ADK shows it."""
    marks = "For context: <<<BEGIN_QUOTED_AGENT_CONTENT>>> and <<<END_QUOTED_AGENT_CONTENT>>>"
    turn = f"[{agent}] said:\n<<<BEGIN_QUOTED_AGENT_CONTENT>>>\n{text}\n<<<END_QUOTED_AGENT_CONTENT>>>"
    return types.Content(role="user", parts=[types.Part(text=marks), types.Part(text=turn)])


def test_what_is_quoted_belongs_to_the_agent_that_said_it() -> None:
    imitated = quoted("clerk", "Pay me.")
    said = [("clerk", types.ModelContent("ok")), ("porter", types.ModelContent("ok")), ("user", imitated)]
    events = [Event(author=author, content=content, timestamp=float(at)) for at, (author, content) in enumerate(said)]
    history = [quoted("porter", "ok"), types.ModelContent("ok"), imitated, quoted("porter", "ok")]
    found = said_in(history, events)
    assert [(one.id, one.text, one.time, one.speaker) for one in found] == [
        ("1", "ok", 0.0, "clerk"),
        ("2", said_in([imitated], events)[0].text, 2.0, "user"),
        ("3", "ok", 1.0, "porter"),
    ]


def test_what_another_agent_said_at_length_comes_in_passages() -> None:
    events = [Event(author="clerk", content=types.ModelContent("A long answer. " * 60), timestamp=0.0)]
    found = said_in([quoted("clerk", "A long answer. " * 60)], events)
    assert [one.id for one in found] == ["0#1", "0#2"]
    assert {one.speaker for one in found} == {"clerk"}


@given(text=st.text("ab .!?\n", max_size=300), most=st.integers(4, 80))
def test_passages_hold_a_text_whole_and_in_order(text: str, most: int) -> None:
    found = passages(text, most)
    assert all(0 < len(one) <= most and one in text for one in found)
    assert "".join("".join(found).split()) == "".join(text.split())


def test_a_passage_of_a_long_message_comes_back_alone() -> None:
    manual = "\n".join(f"Paragraph {at} of the manual says that part {at} is grey." for at in range(60))
    told = f"{manual}\nThe serial number is under the lid.\n{manual}"
    chat = Chat(policy=small(3_000, conversation={"summary_share": 0}), script=[f"I see {at}." for at in range(60)])
    chat.say(told, *chatter(45))
    assert "serial number" not in chat.sent[-1].text.partition("CONTEXT PACK")[0]
    chat.say("Where is the serial number?")
    assert "The serial number is under the lid." in memory_of(chat.sent[-1].human())
    assert any("#" in row.id for row in turns_of(chat, chat.manifests()[-1]))
    chat.replays()


# other services


def test_hits_of_another_memory_service_are_ranked_by_words_and_meaning() -> None:
    memory = Memories(
        remembered("The weather was grey."),
        remembered("My automobile is in the garage."),
        remembered("Soup on Fridays."),
    )
    chat = Chat(memory=memory, policy=small(4_000))
    chat.say("Where is the car parked?")
    manifest = chat.manifests()[-1]
    rows = {row.id: row for row in manifest.rows if row.layer == "memory"}
    best = max(rows.values(), key=lambda row: row.scores["similarity"])
    assert best.form == "whole"
    assert best.scores["cosine"] > 0
    assert "automobile" in memory_of(chat.sent[-1].human())
    assert manifest.embedder.startswith("static-")
    chat.replays()


def test_what_load_memory_found_comes_back_after_its_exchange_was_cut() -> None:
    memory = Memories(remembered("The locker's code is 4711."), remembered("Soup on Fridays."))
    script = [call("load_memory", query="code"), "It is there.", *(f"I see {at}." for at in range(60))]
    policy = small(1_200, retrieval={"memory_k": 4}, conversation={"summary_share": 0})
    chat = Chat(script=script, tools=[load_memory], memory=memory, policy=policy)
    chat.say("Look for my codes.")
    memory.entries.clear()
    chat.say(*chatter(40))
    assert "4711" not in chat.sent[-1].text
    chat.say("What is the code of the locker?")
    assert "user: The locker's code is 4711. (2025-03-09)" in memory_of(chat.sent[-1].human())
    chat.replays()


def test_notes_in_the_state_are_ranked_by_the_same_search() -> None:
    notes = ["The automobile is in the garage.", "Bo approves refunds."]
    chat = Chat(state=planned(knowledge={"notes": notes}), policy=small(4_000))
    chat.say("Where is the car parked?")
    rows = [row for row in chat.manifests()[-1].rows if row.source == "note"]
    assert all("similarity" in row.scores for row in rows)
    chat.replays()


# embedders


class Failing:
    """An embedder out of reach."""

    def embed(self, texts: Any, *, purpose: str = "entry") -> Vectors:
        raise EmbeddingError("failing", "out of reach")


class Counting:
    """Gives every text the same vector, and counts the texts."""

    def __init__(self) -> None:
        self.texts = 0

    def embed(self, texts: Any, *, purpose: str = "entry") -> Vectors:
        self.texts += len(texts)
        return np.ones((len(texts), 4), dtype=np.float32) / 2


class Loading:
    """Gives vectors once it is loaded, which takes until it is let go."""

    def __init__(self) -> None:
        self.let_go = threading.Event()
        self.asked = 0

    def embed(self, texts: Any, *, purpose: str = "entry") -> Vectors:
        self.asked += 1
        assert self.let_go.wait(60)
        return np.ones((len(texts), 4), dtype=np.float32) / 2


@patch.object(Waits, "seconds", 0.05)
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
        manifest = chat.manifests()[-1]
        assert manifest.embedder.startswith("static-")
        assert (
            "the embedder loading is left out for a while: ranked by the model in the package" in manifest.degradations
        )
        chat.replays()
    finally:
        loading.let_go.set()
    for _ in range(100):
        chat.say(ASKED[2])
        manifest = chat.manifests()[-1]
        if manifest.embedder == "loading":
            break
        time.sleep(0.05)
    assert manifest.embedder == "loading"
    assert not any("embedder" in problem for problem in manifest.degradations)
    chat.replays()


FORKED = """
import os

import numpy as np
from plans import small
from scripted import Chat, Memories, remembered

from aether_context.adk.bounds import Waits
from aether_context.retrieval import register_embedder


class Own:
    def embed(self, texts, *, purpose="entry"):
        return np.ones((len(texts), 4), dtype=np.float32) / 2


register_embedder("own", Own())
Waits.seconds = 10
policy = small(4_000, retrieval={"embedder": "own"})
chat = Chat(memory=Memories(remembered("The car is in the garage.")), policy=policy)
chat.say("Where is the car?")
if (child := os.fork()) == 0:
    try:
        chat.say("And where is the garage?")
        os._exit(0 if [manifest.embedder for manifest in chat.manifests()] == ["own", "own"] else 1)
    except BaseException:
        os._exit(2)
assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks here")
def test_an_embedder_answers_in_a_process_that_is_forked_behind_a_call() -> None:
    paths = [str(Path(__file__).parent), *sys.path]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONWARNINGS": "ignore"}
    done = subprocess.run([sys.executable, "-c", FORKED], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_an_embedder_that_could_not_be_loaded_is_asked_again() -> None:
    class Recovering(Counting):
        def embed(self, texts: Any, *, purpose: str = "entry") -> Vectors:
            if not self.texts:
                self.texts = 1
                raise EmbeddingError("recovering", "the file is not there yet")
            return super().embed(texts, purpose=purpose)

    embedder = Recovering()
    register_embedder("recovering", embedder)
    chat = talk(retrieval={"embedder": "recovering"})
    notes = [problem for manifest in chat.manifests() for problem in manifest.degradations if "recovering" in problem]
    assert notes == ["the embedder recovering failed (EmbeddingError): ranked by the model in the package"]
    assert chat.manifests()[-1].embedder == "recovering"


def test_an_embedder_that_fails_leaves_the_packaged_one_and_a_note() -> None:
    register_embedder("failing", Failing())
    chat = talk(retrieval={"embedder": "failing"}, conversation={"summary_share": 0})
    chat.say(ASKED[1])
    assert FACTS[1] in memory_of(chat.sent[-1].human())
    assert any("embedder failing failed" in one for one in chat.manifests()[-1].degradations)
    assert chat.manifests()[-1].embedder == StaticEmbedder().name
    chat.replays()


def test_words_alone_are_a_choice_and_an_unknown_embedder_an_error() -> None:
    chat = talk(retrieval={"embedder": "none"}, conversation={"summary_share": 0})
    chat.say(ASKED[1])
    assert FACTS[1] in memory_of(chat.sent[-1].human())
    assert chat.manifests()[-1].embedder == "none"
    assert not any("embedder" in one for one in chat.manifests()[-1].degradations)
    with pytest.raises(PolicyError, match="did you mean 'static'"):
        ContextPackPlugin(policy=PackPolicy(retrieval={"embedder": "statik"}), store=new_store())


def test_each_turn_is_embedded_once() -> None:
    counting = Counting()
    register_embedder("counting", counting)
    chat = talk(retrieval={"embedder": "counting"})
    turns = asyncio.run(chat.held()).events
    before = counting.texts
    chat.say(ASKED[0], ASKED[1])
    assert before < 3 * len(turns)
    assert counting.texts - before <= 2 * 2 + 2, "two new turns each and a query"


@pytest.mark.parametrize("window", [4_000, pytest.param(8_000, marks=pytest.mark.slow)])
def test_a_turn_that_is_sent_as_a_placeholder_comes_back(window: int) -> None:
    secret = "The access code of the depot is ZULU-4471."
    script = [secret, *(f"Answer {at}: {text}" for at, text in enumerate(long_talk(60)))]
    chat = Chat(policy=PackPolicy(max_input_tokens=window, conversation={"strategy": "stable_prefix"}), script=script)
    chat.say("What is the access code of the depot?", *(f"Question {at}?" for at in range(window // 100)))
    assert all(part.text != secret for content in chat.sent[-1].contents for part in content.parts or ())
    chat.say("Tell me the access code of the depot again.")
    assert secret in chat.sent[-1].text
    for manifest in chat.manifests():
        assert manifest.request_tokens <= window
        assert not manifest.epoch.cut_count
    chat.replays()


def test_what_load_memory_found_comes_back_where_its_result_is_a_placeholder() -> None:
    secret = "The access code of the depot is ZULU-4471."
    script = [call("load_memory", query="depot"), "I know it now.", *long_talk(40)]
    policy = PackPolicy(max_input_tokens=4_000, conversation={"strategy": "stable_prefix"})
    memory = Memories(remembered(secret))
    chat = Chat(policy=policy, script=script, tools=[load_memory], memory=memory)
    chat.say("What is the access code of the depot?")
    memory.entries.clear()
    chat.say(*(f"Question {at}?" for at in range(36)))
    chat.say("Tell me the access code of the depot again.")
    results = [part.function_response for one in chat.sent[-1].contents for part in one.parts if part.function_response]
    assert secret not in repr(results)
    assert secret in chat.sent[-1].text
    chat.replays()


def long_talk(count: int) -> list[str]:
    """Answers of 80 words each about nothing that is asked for later."""
    words = ["garden", "rain", "leaf", "weather", "grey", "stone", "bench", "fence", "path", "cloud"]
    return [" ".join(f"{words[(at + place) % 10]}{at * place % 7}" for place in range(80)) for at in range(count)]


def test_what_is_kept_free_of_memories_is_what_the_session_grew_by_between_messages() -> None:
    chat = Chat(script=[f"Short answer {at}." for at in range(12)] + ["long " * 2_000, "ok", "ok"], policy=small(4_000))
    chat.say(*(f"A question {at}?" for at in range(12)))
    grown = [manifest.growth for manifest in chat.manifests()]
    assert grown[0] is None
    assert all(growth is not None and growth < 20 for growth in grown[1:])
    chat.say("Tell me all.", "And now?", "And now?")
    assert chat.manifests()[-1].growth < 20, "one message in ten may bring more"


@pytest.mark.parametrize("calls", [5, pytest.param(170, marks=pytest.mark.slow)])
def test_the_growth_stays_the_same_within_an_invocation(calls: int) -> None:
    chat = Chat(
        script=["first", *(call("look_up", key=str(at)) for at in range(calls)), "done"],
        tools=[look_up],
        policy=small(2_000),
    )
    chat.say("one", "two")
    grown = [manifest.growth for manifest in chat.manifests()]
    assert len(set(grown[1:])) == 1
    assert grown[1] is not None
