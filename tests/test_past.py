"""``artifact://history``: all that an agent was shown in its session, read and searched by the agent itself."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from google.adk.agents import LlmAgent, ParallelAgent
from google.adk.apps.app import EventsCompactionConfig
from google.adk.apps.llm_event_summarizer import LlmEventSummarizer
from google.adk.plugins.base_plugin import BasePlugin
from google.genai import types
from plans import small, turns
from scripted import Chat, Scripted, big_file, call, grow
from wording import HISTORY, SUMMARY_TITLE

from aether_context import verify, why


def weigh(item: str) -> dict[str, Any]:
    """Weighs an item, or fails."""
    if item == "ghost":
        return {"error": "scale E-4711: nothing on the plate"}
    return {"grams": len(item) * 137}


def search(query: str) -> Any:
    return call("search_artifact", uri=HISTORY, query=query)


def found(chat: Chat, tool: str = "search_artifact") -> str:
    """The latest answer of a reader, as it was sent."""
    return str(chat.sent[-1].answers(tool)[-1])


def long_session(**settings: Any) -> Chat:
    """A session that is cut, in whose beginning an item was weighed."""
    script = [call("weigh", item="anchor"), "It weighs 822 grams.", call("weigh", item="ghost"), "It failed."]
    chat = Chat(script=script, tools=[weigh], policy=small(4_000, **settings))
    chat.say("Weigh the anchor, order ZX-99.", "Weigh the ghost.", *turns(16))
    return chat


def test_a_summary_names_the_past_and_words_a_call_and_a_date_find_it():
    chat = long_session()
    assert HISTORY in chat.sent[-1].text[chat.sent[-1].text.index(SUMMARY_TITLE) :]
    assert all(len(sent.readers) == 2 for sent in chat.sent), (
        "from the first call on, so that no cut ends a prefix twice"
    )
    today = datetime.now(UTC).date().isoformat()
    for query, words in (
        ("E-4711", "weigh gave"),
        ("call 1", "order ZX-99"),
        ("anchor", "822"),
        (today, "order ZX-99"),
    ):
        chat.llm.script[:] = [search(query), "Found."]
        chat.say("Look it up.")
        assert words in found(chat), query
    assert "call 10," not in found(chat).split("order ZX-99")[0]
    chat.llm.script[:] = [call("read_artifact", uri=HISTORY, start_line=1, max_lines=2), "Read."]
    chat.say("Read it.")
    lines = found(chat, "read_artifact")
    assert re.search(r"call 1, \d{4}-\d\d-\d\d \d\d:\d\d, user: Weigh the anchor, order ZX-99\.", lines)
    assert "clerk called weigh" in lines
    assert "search_artifact" not in lines


def list_lots() -> str:
    """Lists the lots."""
    return "\n".join(f"lot {at}: crate {at * 37 % 911} of figs, bay {at % 9}" for at in range(600))


def test_a_search_with_the_users_question_finds_what_answers_it():
    chat = Chat(script=[call("weigh", item="anchor"), "Done."], tools=[weigh], policy=small(4_000))
    chat.say("Weigh the anchor.", *turns(16))
    question = "How many grams did the anchor have?"
    chat.llm.script[:] = [search(question), "Found."]
    chat.say(question)
    assert "822" in found(chat)
    assert question not in found(chat)


def test_a_hit_in_a_stored_result_names_its_address():
    chat = Chat(script=[call("list_lots"), "Done."], tools=[list_lots], policy=small(8_000))
    chat.say("List the lots.", *turns(18))
    chat.llm.script[:] = [search("lot 412"), "Found."]
    chat.say("Where is lot 412?")
    address = re.search(r"list_lots gave (artifact://evidence/\w+\.\w+)", found(chat))
    assert address is not None
    chat.llm.script[:] = [call("search_artifact", uri=address[1], query="lot 412"), "Found."]
    chat.say("And there?")
    assert "lot 412: crate" in found(chat)


def test_what_is_found_in_one_result_comes_together_in_its_order():
    chat = Chat(script=[call("list_lots"), "Done."], tools=[list_lots], policy=small(8_000))
    chat.say("List the lots.", *turns(18))
    chat.llm.script[:] = [search("crates of figs in bay 3, lot 412 and lot 97"), "Found."]
    chat.say("Where are they?")
    passages = chat.sent[-1].answers("search_artifact")[-1]["found"]
    (lots,) = (passage for passage in passages if "crate" in passage["text"])
    ranges = [[int(number) for number in places.split("-")] for places in lots["lines"].split(", ")]
    assert ranges == sorted(ranges)
    parts = lots["text"].split("\n…\n")
    assert [part.count("\n") for part in parts] == [places[-1] - places[0] for places in ranges]
    assert len(parts) > 1
    assert len({passage["of"] for passage in passages if "of" in passage}) == sum("of" in one for one in passages)


def test_the_first_extract_of_an_agent_names_the_past_and_no_other():
    script = [call("big_file", name="a"), call("big_file", name="b"), "Read."]
    chat = Chat(script=script, tools=[big_file], policy=small(16_000))
    chat.say("Read both.", *turns(2))
    chat.restart()
    chat.say("Go on.")
    for sent in chat.sent[2:]:
        assert [HISTORY in str(answer) for answer in sent.answers("big_file")] == [True, False]
    assert grow(chat.sent)
    chat.llm.script[:] = [search("207: value in b"), "Found."]
    chat.say("What is in line 207 of b?")
    assert f"207: value {207 * 37 % 1009} in b" in found(chat)


def test_why_says_that_the_past_was_read_back():
    chat = long_session()
    chat.llm.script[:] = [search("ZX-99"), "Found."]
    chat.say("Look it up.")
    asyncio.run(chat.plugin.close())
    answer = why(chat.store, "order ZX-99")
    place = next(place for place in answer.places if place.kind == "message" and "Weigh the anchor" in place.text)
    assert place.read_back, place


def test_an_agent_without_tools_gets_the_readers_with_its_first_cut():
    chat = Chat(policy=small(4_000))
    chat.say(*turns(16))
    first = next(at for at, sent in enumerate(chat.sent) if SUMMARY_TITLE in sent.text)
    assert [len(sent.readers) for sent in chat.sent] == [0] * first + [2] * (len(chat.sent) - first)
    assert HISTORY in chat.sent[first].text
    assert HISTORY not in chat.sent[first - 1].text


def test_a_window_too_small_for_the_readers_names_no_address():
    chat = Chat(policy=small(2_000))
    chat.say(*turns(16))
    assert SUMMARY_TITLE in chat.sent[-1].text
    assert HISTORY not in chat.sent[-1].text
    assert not chat.sent[-1].readers


@pytest.mark.parametrize("record", ["full", "hashes", "off"])
@pytest.mark.rows(2)
def test_without_a_store_the_past_is_read_from_the_loaded_events(record: str):
    chat = Chat(policy=small(4_000, record=record))
    chat.say("My boat is called Wanda.", *turns(16))
    chat.llm.script[:] = [search("Wanda"), "Found."]
    chat.say("And my boat?")
    assert "My boat is called Wanda." in found(chat)


def test_what_the_host_does_not_load_is_read_from_the_store():
    chat = Chat(policy=small(4_000))
    chat.say("My boat is called Wanda.", *turns(16), recent_events=8)
    chat.llm.script[:] = [search("boat is called"), "Found."]
    chat.say("And my boat?", recent_events=8)
    assert found(chat).count("My boat is called Wanda.") == 1
    chat.llm.script[:] = [call("read_artifact", uri=HISTORY, start_line=-6), "Read."]
    chat.say("And the end?", recent_events=8)
    assert "And my boat?" in found(chat, "read_artifact")


def test_a_deleted_sessions_words_do_not_come_back_to_one_of_the_same_id():
    """The host loads a part of the events, and a new process knows of a session what the store holds."""
    chat = Chat(tools=[weigh], policy=small(8_000))

    def play(thing: str) -> None:
        for at in range(8):
            chat.llm.script[:] = [call("weigh", item=f"{thing} {at}"), "It is heavy."]
            chat.say(f"My {thing} is number {at}.", recent_events=6)

    play("kayak")
    before = len(chat.sent)
    asyncio.run(chat.sessions.delete_session(app_name=chat.app_name, user_id=chat.user, session_id=chat.session))
    chat.begun.clear()
    chat.restart()
    play("tent")
    chat.restart()
    chat.llm.script[:] = [search("My tent is number 0."), search("kayak"), "Found."]
    chat.say("And what is mine?", recent_events=6)
    assert "kayak" not in found(chat)
    assert "number 0" in str(chat.sent[-2].answers("search_artifact"))
    assert not any("My kayak" in sent.text for sent in chat.sent[before:])
    assert all(f"My tent is number {at}." in chat.sent[-1].text for at in range(8))
    assert verify(chat.store, replays=True).faults == {}


def test_the_past_is_this_sessions_and_masked_as_it_is_recorded():
    chat = Chat(policy=small(4_000, redact=["email"]))
    chat.say("I am eve@example.org, call me Eve.", *turns(16), user="eve", session="e1")
    chat.say("I am bob.", *turns(16), user="bob", session="b1")
    for uri in (HISTORY, f"{HISTORY}/eve/e1", "artifact://history?user=eve", "artifact://../eve/e1/history"):
        chat.llm.script[:] = [call("search_artifact", uri=uri, query="Eve"), "Found."]
        chat.say("Who am I?", user="bob", session="b1")
        assert "call me Eve" not in found(chat)
    chat.llm.script[:] = [search("call me Eve"), "Found."]
    chat.say("Who am I?", user="eve", session="e1")
    assert "call me Eve" in found(chat)
    assert "eve@example.org" not in found(chat)


def test_an_agent_that_is_shown_no_history_reads_none():
    writer = LlmAgent(name="writer", model=Scripted(script=["Noted."], sent=[]), include_contents="none")
    chat = Chat(agent=writer, policy=small(4_000))
    chat.say("My boat is called Wanda.")
    model = writer.model
    assert isinstance(model, Scripted)
    model.script[:] = [search("Wanda"), "Found."]
    chat.say("And my boat?")
    assert "Wanda" not in str([sent.answers() for sent in chat.sent])


@pytest.mark.filterwarnings("ignore:ParallelAgent is deprecated")
def test_agents_that_run_side_by_side_read_none_of_each_others_past():
    """ADK shows an agent no turn of another branch."""
    models = [Scripted(script=[words], sent=[]) for words in ("The pelican is mine.", "The walrus is mine.")]
    agents = [LlmAgent(name=f"keeper_{at}", model=model, tools=[weigh]) for at, model in enumerate(models)]
    chat = Chat(agent=ParallelAgent(name="both", sub_agents=agents), policy=small(4_000))
    chat.say("Which animal is yours?")
    for model in models:
        model.script[:] = [search("is mine."), "Found."]
    chat.say("Whose is which?")
    answers = [str(model.sent[-1].answers("search_artifact")) for model in models]
    assert [("pelican" in answer, "walrus" in answer) for answer in answers] == [(True, False), (False, True)]


def test_thoughts_are_not_of_the_past_and_words_are_their_speakers():
    thought = [types.Part(text="Hmm, marmalade.", thought=True), types.Part(text="Yes, the marmot sleeps.")]
    beside = [types.Part(text="Let me see the marabou."), call("weigh", item="anchor")]
    chat = Chat(script=[thought, beside, "Done."], tools=[weigh], policy=small(4_000))
    chat.say("Does the marmot sleep?", "Weigh it.", *turns(16))
    for query, speaker in (("marmot", "clerk: "), ("marabou", "clerk: "), ("marmalade", "")):
        chat.llm.script[:] = [search(query), "Found."]
        chat.say("Look it up.")
        assert speaker in found(chat)
        assert "Hmm" not in found(chat)


def test_a_turn_of_another_agent_that_is_not_loaded_is_not_the_users():
    """Who wrote it is read off the words that ADK puts before another agent's turn."""
    model = Scripted(script=["Code 4711 is the planner's."], sent=[])
    planner = LlmAgent(name="planner", model=model)
    clerk = LlmAgent(name="clerk", model=Scripted(sent=[]), tools=[weigh], sub_agents=[planner])
    chat = Chat(policy=small(4_000), agent=clerk)
    chat.agent.model.script[:] = [call("transfer_to_agent", agent_name="planner")]
    chat.say("Plan it.")
    model.script[:] = [call("transfer_to_agent", agent_name="clerk")]
    chat.say("My boat is called Wanda.", *turns(10), recent_events=6)
    chat.agent.model.script[:] = [search("Code 4711"), "Found."]
    chat.say("Which code?", recent_events=6)
    assert "planner: " in found(chat).partition("Code 4711")[0]


def compacted_session(recent: int | None) -> Chat:
    """A session in which ADK's own compaction replaced the turns many times."""
    summarizer = LlmEventSummarizer(llm=Scripted(script=["They talked."] * 99, sent=[]))
    compaction = EventsCompactionConfig(summarizer=summarizer, compaction_interval=3, overlap_size=1)
    chat = Chat(tools=[weigh], policy=small(4_000), app_settings={"events_compaction_config": compaction})
    chat.say("My boat is called Wanda.", *turns(16), recent_events=recent)
    assert sum(bool(event.actions.compaction) for event in asyncio.run(chat.held()).events) > 4
    return chat


def look_up(chat: Chat, query: str, recent: int | None) -> str:
    chat.llm.script[:] = [search(query), "Found."]
    chat.say("Look it up.", recent_events=recent)
    return found(chat)


@pytest.mark.parametrize("recent", [8, pytest.param(12, marks=pytest.mark.slow), None])
@pytest.mark.rows(1)
def test_what_the_hosts_compaction_replaced_is_in_the_past(recent: int | None):
    chat = compacted_session(recent)
    for words in ("My boat is called Wanda.", *(f"question {at}:" for at in (0, 9, 15))):
        assert look_up(chat, words, recent).count(words) == 1, "once"
    chat.restart()
    assert "My boat is called Wanda." in look_up(chat, "boat is called", recent)


def test_what_was_rewound_behind_a_compaction_is_not():
    chat = compacted_session(8)
    last = chat.say("My dog is called Rex.", recent_events=8)[-1].invocation_id
    names = {"user_id": chat.user, "session_id": chat.session}
    asyncio.run(chat.runner.rewind_async(**names, rewind_before_invocation_id=last))
    chat.say(*turns(5), recent_events=8)
    assert "Rex" not in look_up(chat, "dog is called", 8)
    assert "My boat is called Wanda." in look_up(chat, "boat is called", 8)


def test_where_the_session_service_fails_the_loaded_events_are_read():
    chat = compacted_session(8)

    class Away(BasePlugin):
        async def before_tool_callback(self, *, tool: Any, tool_args: Any, tool_context: Any) -> None:
            async def away(**names: str) -> None:
                raise OSError("away")

            tool_context._invocation_context.session_service = SimpleNamespace(get_session=away)

        async def after_tool_callback(self, *, tool: Any, tool_args: Any, tool_context: Any, result: Any) -> None:
            tool_context._invocation_context.session_service = chat.sessions

    chat.runner.plugin_manager.plugins.append(Away(name="away"))
    assert "question 15:" in look_up(chat, "question 15:", 8)
    assert "Wanda" not in look_up(chat, "boat is called", 8)
