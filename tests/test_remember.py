"""`retrieval.remember`: what is said in an invocation is in the app's memory service when it ends, once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.apps.app import EventsCompactionConfig
from google.adk.apps.llm_event_summarizer import LlmEventSummarizer
from google.adk.memory import InMemoryMemoryService
from google.adk.memory.base_memory_service import BaseMemoryService
from google.adk.tools.agent_tool import AgentTool
from google.genai import types
from scripted import Chat, Scripted, call

from aether_context import PackPolicy
from aether_context.adk import ContextPackPlugin, HybridMemoryService
from aether_context.memory import Memory

REMEMBER = PackPolicy(retrieval={"remember": True})


class Deltas(BaseMemoryService):
    """A service of others that takes events, and fails as often as it is told."""

    def __init__(self, fails: int = 0) -> None:
        self.fails = fails
        self.ids: list[str] = []
        self.texts: list[str] = []

    async def add_session_to_memory(self, session: Any) -> None:
        raise AssertionError("whole sessions are not given")

    async def add_events_to_memory(self, *, events: Any, **_: Any) -> None:
        if self.fails:
            self.fails -= 1
            raise ConnectionError("away")
        self.ids += [event.id for event in events]
        self.texts += [part.text for event in events for part in event.content.parts]

    async def search_memory(self, **_: Any) -> Any:
        from google.adk.memory.base_memory_service import SearchMemoryResponse

        return SearchMemoryResponse(memories=[])


class WholeSessions(InMemoryMemoryService):
    """A service that takes whole sessions only, as ADK's base class does."""

    add_events_to_memory = BaseMemoryService.add_events_to_memory


def weather(city: str) -> str:
    """The weather of a city."""
    return f"It rains in {city}."


def stored(service: HybridMemoryService, user: str = "ann") -> list[Memory]:
    return list(service.memories.all("shop", user))


def texts(service: HybridMemoryService) -> list[str]:
    return [memory.text for memory in stored(service)]


def test_messages_and_final_answers_are_remembered_without_tools_and_thoughts() -> None:
    thought = [types.Part(text="Rain again.", thought=True), types.Part(text="It rains in Bergen.")]
    service = HybridMemoryService()
    chat = Chat(script=[call("weather", city="Bergen"), thought], tools=[weather], policy=REMEMBER, memory=service)
    chat.say("How is the weather in Bergen on Friday?")
    assert texts(service) == ["How is the weather in Bergen on Friday?", "It rains in Bergen."]
    assert [(memory.author, memory.session) for memory in stored(service)] == [("user", "s1"), ("clerk", "s1")]


def test_without_the_setting_nothing_is_remembered() -> None:
    service = HybridMemoryService()
    Chat(script=["Noted."], memory=service).say("My sister lives in Bergen.")
    assert not texts(service)


def test_another_session_reads_what_was_remembered() -> None:
    service = HybridMemoryService()
    Chat(script=["I'll keep that in mind."], policy=REMEMBER, memory=service).say("My sister Mia lives in Bergen.")
    later = Chat(script=["In Bergen."], policy=REMEMBER, memory=service, session="s2")
    later.say("In which city does my sister live?")
    assert "My sister Mia lives in Bergen." in later.sent[-1].text


def test_what_stands_in_the_conversation_takes_no_older_memorys_place() -> None:
    policy = PackPolicy(max_input_tokens=100_000, retrieval={"remember": True, "memory_k": 3})
    chat = Chat(memory=HybridMemoryService(), policy=policy, script=["Noted."] * 12)
    chat.say("The roses in my garden were planted by Ilse.", session="before")
    for place in ("hedge", "lawn", "pond", "shed", "bench"):
        chat.say(f"In my garden I looked at the roses by the {place}.")
    chat.say("What do you know of the roses in my garden by the hedge?")
    assert "planted by Ilse" in chat.sent[-1].human()


@pytest.mark.parametrize("what", ["no contents", "compacted"])
def test_memories_bring_back_what_an_agent_is_not_shown_of_its_session(what: str) -> None:
    summarizer = LlmEventSummarizer(llm=Scripted(model="gemini-2.5-flash", script=["About family."] * 9, sent=[]))
    compaction = EventsCompactionConfig(compaction_interval=2, overlap_size=0, summarizer=summarizer)
    settings = {"include_contents": "none"} if what == "no contents" else {}
    app_settings = {"events_compaction_config": compaction} if what == "compacted" else {}
    options: dict[str, Any] = {"settings": settings, "app_settings": app_settings}
    chat = Chat(memory=HybridMemoryService(), policy=REMEMBER, script=["Noted."] * 9, **options)
    chat.say("My sister Mia lives in Bergen.", "I like red roses.", "I like tea.", "Where does my sister Mia live?")
    assert "Bergen" in chat.sent[-1].human()


def test_a_correction_of_this_session_dates_the_memory_that_it_corrects() -> None:
    chat = Chat(memory=HybridMemoryService(), policy=REMEMBER, script=["Noted."] * 4)
    chat.say("I am a vegetarian and eat no fish.", session="before")
    chat.say("Since last month I eat fish.", "What do I eat, fish or no fish?")
    line = next(line for line in chat.sent[-1].human().splitlines() if "vegetarian" in line)
    assert " until " in line


def test_small_talk_is_left_out() -> None:
    service = HybridMemoryService()
    chat = Chat(script=["You're welcome!", "Hello!"], policy=REMEMBER, memory=service)
    chat.say("Thanks a lot!", "hi there")
    assert not texts(service)
    chat = Chat(script=["Done."], policy=REMEMBER, memory=service, session="s2")
    chat.say("Thanks! My flight leaves on 3 May.")
    assert "Thanks! My flight leaves on 3 May." in texts(service)


def test_the_same_words_again_make_the_first_newer() -> None:
    service = HybridMemoryService()
    for session in ("s1", "s2"):
        chat = Chat(script=["I use metric units."] * 2, policy=REMEMBER, memory=service, session=session)
        chat.say("I live in Bergen.", "i live in  Bergen")
    assert sorted(texts(service)) == ["I use metric units.", "i live in  Bergen"]
    assert {memory.session for memory in stored(service)} == {"s2"}
    first = Chat(script=["Yes."], policy=REMEMBER, memory=service, session="s1", sessions=chat.sessions)
    asyncio.run(
        service.add_session_to_memory(
            asyncio.run(first.runner.session_service.get_session(app_name="shop", user_id="ann", session_id="s2"))
        )
    )
    assert {memory.session for memory in stored(service)} == {"s2"}


def test_other_words_of_the_same_author_and_the_same_of_another_are_memories_of_their_own() -> None:
    service = HybridMemoryService()
    chat = Chat(script=["I live in Bergen.", "You do."], policy=REMEMBER, memory=service)
    chat.say("I live in Bergen.", "I lived in Bergen.")
    assert sorted(texts(service)) == ["I live in Bergen.", "I live in Bergen.", "I lived in Bergen.", "You do."]


def test_a_memory_that_the_app_wrote_stays_beside_the_same_words() -> None:
    from google.adk.memory.memory_entry import MemoryEntry

    service = HybridMemoryService()
    told = types.Content(role="user", parts=[types.Part(text="I live in Bergen.")])
    entry = MemoryEntry(id="home", author="user", content=told)
    asyncio.run(service.add_memory(app_name="shop", user_id="ann", memories=[entry]))
    Chat(script=["Fine."], policy=REMEMBER, memory=service).say("I live in Bergen.")
    assert "home" in {memory.name for memory in stored(service)}


def test_what_was_deleted_does_not_come_back() -> None:
    service = HybridMemoryService()
    chat = Chat(script=["Fine.", "Right."], policy=REMEMBER, memory=service)
    chat.say("My code is 4711.")
    asyncio.run(service.delete_user_from_memory(app_name="shop", user_id="ann"))
    chat.say("And the door is red.")
    assert texts(service) == ["And the door is red."]


def test_users_are_apart() -> None:
    service = HybridMemoryService()
    for user in ("ann", "bob"):
        Chat(script=["Fine."], policy=REMEMBER, memory=service, user=user).say("I live in Bergen.")
    assert [memory.text for user in ("ann", "bob") for memory in stored(service, user)] == ["I live in Bergen."] * 2


def test_a_file_holds_it_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "memories.sqlite"
    for session in ("s1", "s2"):
        service = HybridMemoryService(path)
        Chat(script=["Fine."], policy=REMEMBER, memory=service, session=session).say("I live in Bergen.")
        asyncio.run(service.close())
    again = HybridMemoryService(path)
    assert [(memory.text, memory.session) for memory in stored(again)] == [("I live in Bergen.", "s2")]
    asyncio.run(again.close())


def test_a_service_of_others_is_given_each_event_once_and_again_where_it_failed() -> None:
    service = Deltas(fails=1)
    chat = Chat(script=["In May.", "By train."], policy=REMEMBER, memory=service, on_error="passthrough")
    chat.say("When do I travel?")
    assert not service.ids
    chat.say("And how do I get there?")
    assert service.texts == ["When do I travel?", "In May.", "And how do I get there?", "By train."]
    assert len(set(service.ids)) == 4


def test_adks_own_service_takes_it() -> None:
    service = InMemoryMemoryService()
    Chat(script=["Fine."], policy=REMEMBER, memory=service).say("I live in Bergen.")
    result = asyncio.run(service.search_memory(app_name="shop", user_id="ann", query="Bergen"))
    assert [entry.content.parts[0].text for entry in result.memories] == ["I live in Bergen."]


def test_a_service_that_takes_whole_sessions_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    chat = Chat(script=["Fine.", "Good."], policy=REMEMBER, memory=WholeSessions(), on_error="passthrough")
    chat.say("I live in Bergen.", "In a red house.")
    assert sum("takes whole sessions only" in record.message for record in caplog.records) == 1


def test_an_app_without_a_memory_service_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    chat = Chat(script=["Fine.", "Good."], policy=REMEMBER, on_error="passthrough")
    chat.say("I live in Bergen.", "In a red house.")
    assert sum("no memory service" in record.message for record in caplog.records) == 1


def test_secrets_are_masked_in_any_service() -> None:
    service = Deltas()
    policy = PackPolicy(redact=("personal",), retrieval={"remember": True})
    Chat(script=["Fine."], policy=policy, memory=service).say("My address is ann@example.com, please write.")
    assert service.texts
    assert not any("ann@example.com" in text for text in service.texts)


def test_an_agent_as_a_tool_is_not_remembered() -> None:
    helper = LlmAgent(
        name="helper", model=Scripted(model="gemini-2.5-flash", script=["Bergen has 291,000 people."], sent=[])
    )
    service = Deltas()
    chat = Chat(
        script=[call("helper", request="How many people live in Bergen?"), "About 291,000."],
        tools=[AgentTool(helper)],
        policy=REMEMBER,
        memory=service,
    )
    chat.say("How large is Bergen?")
    assert service.texts == ["How large is Bergen?", "About 291,000."]


def test_an_observing_plugin_adds_nothing() -> None:
    service = HybridMemoryService()
    Chat(
        script=["Fine."],
        plugin=ContextPackPlugin(policy=REMEMBER, store="memory://observed", observe=True),
        memory=service,
    ).say("I live in Bergen.")
    assert not texts(service)


def test_a_run_that_fails_keeps_the_users_words() -> None:
    service = HybridMemoryService()
    chat = Chat(script=[RuntimeError("the model is away")], policy=REMEMBER, memory=service)
    with pytest.raises(RuntimeError):
        chat.say("I live in Bergen.")
    assert texts(service) == ["I live in Bergen."]


def test_the_answer_that_a_limit_gives_in_the_models_place_is_not_remembered() -> None:
    service = HybridMemoryService()
    policy = PackPolicy(limits={"session": {"total_tokens": 20}, "on_budget": "stop"}, retrieval={"remember": True})
    chat = Chat(script=["Fine.", "Never sent."], policy=policy, memory=service)
    chat.say("I live in Bergen.", "And I work in Oslo.")
    assert texts(service) == ["I live in Bergen.", "And I work in Oslo."]


class Slow(Deltas):
    """A service that writes at once and answers late, the first time."""

    async def add_events_to_memory(self, *, events: Any, **more: Any) -> None:
        await super().add_events_to_memory(events=events, **more)
        if len(self.ids) <= 2:
            await asyncio.sleep(0.5)


def test_a_slow_service_is_waited_for_behind_the_run_and_given_nothing_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aether_context.adk.services.memory._SECONDS", 0.05)
    service = Slow()
    chat = Chat(script=["Noted.", "Fine then.", "Good."], policy=REMEMBER, memory=service, on_error="passthrough")

    async def run() -> None:
        await chat.tell("I live in Bergen.")
        assert service.texts == ["I live in Bergen."]
        await chat.tell("And I work in Oslo.")
        await asyncio.sleep(0.6)
        await chat.tell("My boat is red.")

    asyncio.run(run())
    assert len(set(service.ids)) == len(service.ids)
    assert {"I live in Bergen.", "And I work in Oslo.", "My boat is red."} <= set(service.texts)


def test_a_run_that_is_cancelled_while_it_is_remembered_loses_nothing() -> None:
    service = Slow()
    chat = Chat(script=["Noted.", "Fine then."], policy=REMEMBER, memory=service, on_error="passthrough")

    async def run() -> None:
        first = asyncio.create_task(chat.tell("I live in Bergen."))
        while not service.ids:
            await asyncio.sleep(0.01)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await chat.tell("And I work in Oslo.")
        await asyncio.sleep(0.6)

    asyncio.run(run())
    assert len(set(service.ids)) == len(service.ids)
    chat.say("My boat is red.")
    assert {"I live in Bergen.", "And I work in Oslo."} <= set(service.texts)


class Picky(Deltas):
    """A service that never takes one of the invocations."""

    async def add_events_to_memory(self, *, events: Any, **more: Any) -> None:
        if any("Bergen" in part.text for event in events for part in event.content.parts):
            raise ValueError("no Bergen")
        await super().add_events_to_memory(events=events, **more)


def test_an_invocation_that_a_service_refuses_holds_no_other_back() -> None:
    service = Picky()
    chat = Chat(script=["Noted."] * 4, policy=REMEMBER, memory=service, on_error="passthrough")
    chat.say("I live in Bergen.", "I work in Oslo.", "My boat is red.", "My cat is black.")
    chat.say("My dog is old.")
    assert {"I work in Oslo.", "My boat is red.", "My cat is black."} <= set(service.texts)
    assert len(set(service.ids)) == len(service.ids)
