"""A rewind stays one where the host loads only the latest events, and so does a compaction: nothing that it took back,
or replaced by a summary, is sent again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions, EventCompaction
from google.adk.sessions import InMemorySessionService
from google.adk.sessions.base_session_service import BaseSessionService
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from google.genai import types
from scripted import Chat, Scripted, call, faults, new_store

from aether_context import PackPolicy

Figure = Callable[[str, float], None]
WINDOW = 2_500


def look_up(key: str) -> dict[str, str]:
    """Looks a key up."""
    return {"value": f"{key} is " + f"value of {key}; " * 40}


def services(kind: str, tmp_path: Path) -> BaseSessionService:
    if kind == "sqlite":
        return SqliteSessionService(str(tmp_path / "sessions.db"))
    if kind == "database":
        from google.adk.sessions import DatabaseSessionService

        pytest.importorskip("aiosqlite")
        return DatabaseSessionService(f"sqlite+aiosqlite:///{tmp_path / 'sql.db'}")
    return InMemorySessionService()


class Talk:
    """A conversation of which few events are loaded; tools are called in every second turn."""

    def __init__(self, few: int, sessions: BaseSessionService | None = None, window: int = WINDOW) -> None:
        self.few, self.number = few, 0
        self.chat = Chat(
            tools=[look_up], policy=PackPolicy(max_input_tokens=window), sessions=sessions or InMemorySessionService()
        )
        self.invocations: list[str] = []

    def turns(self, count: int, word: str, loads: int | None = None) -> Talk:
        for _ in range(count):
            number = self.number = self.number + 1
            if number % 2:
                self.chat.llm.script[:] = [call("look_up", key=f"{word}{number}"), f"answer {number} of {word}"]
            text = f"question {number}: {word} " + f"w{number} " * 60
            events = self.chat.say(text, recent_events=loads if loads is not None else self.few)
            self.invocations.append(events[0].invocation_id)
        return self

    def rewind(self, to: int) -> Talk:
        """Goes back to before the turn ``to``, counted from 0."""
        chat = self.chat
        asyncio.run(
            chat.runner.rewind_async(
                user_id=chat.user, session_id=chat.session, rewind_before_invocation_id=self.invocations[to]
            )
        )
        del self.invocations[to:]
        self.begin = len(chat.sent)
        return self

    def text(self) -> str:
        return "\n".join("".join(sent.wires) for sent in self.chat.sent[self.begin :])

    def hold(self, figure: Figure, gone: str = "GIRAFFE") -> None:
        later = self.chat.sent[self.begin :]
        figure("returned", sum(gone in "".join(sent.wires) for sent in later))
        figure("invalid", sum(bool(sent.faults) for sent in later))
        assert not any(gone in "".join(sent.wires) for sent in later)
        assert not any(sent.faults for sent in later)
        self.chat.replays(every=1)


@pytest.mark.parametrize("few", [2, 6, 9, 20])
@pytest.mark.parametrize("kind", ["memory", "sqlite", "database"])
@pytest.mark.rows(2)
def test_what_a_rewind_took_back_never_returns(few: int, kind: str, tmp_path: Path, figure: Figure) -> None:
    sessions = services(kind, tmp_path)
    talk = Talk(few, sessions).turns(4, "LION").turns(7, "GIRAFFE").rewind(4).turns(9, "ZEBRA")
    talk.hold(figure)
    if kind == "database":
        asyncio.run(sessions.close())  # type: ignore[attr-defined]


@pytest.mark.parametrize("few", [6, 20])
def test_what_came_before_a_rewind_is_still_known(few: int, figure: Figure) -> None:
    talk = Talk(few, window=30_000).turns(4, "LION").turns(7, "GIRAFFE").rewind(4).turns(8, "ZEBRA")
    talk.hold(figure)
    assert talk.chat.sent[talk.begin + 1 :]
    for sent in talk.chat.sent[talk.begin + 1 :]:
        assert all(f"question {number}: LION" in sent.text for number in range(1, 5))
        assert "question 12: ZEBRA" in sent.text


@pytest.mark.parametrize("few", [6, 20])
@pytest.mark.parametrize("restarts", [(0,), (1,), (0, 1, 2, 3, 4, 5)])
@pytest.mark.rows(3)
def test_another_process_takes_nothing_back_either(few: int, restarts: tuple[int, ...], figure: Figure) -> None:
    talk = Talk(few, window=30_000).turns(4, "LION").turns(7, "GIRAFFE").rewind(4)
    for at in range(6):
        if at in restarts:
            talk.chat.restart()
        talk.turns(1, "ZEBRA")
    talk.hold(figure)
    assert "question 1: LION" in talk.chat.sent[-1].text


def test_a_process_that_loads_all_rewinds_for_one_that_loads_few(figure: Figure) -> None:
    talk = Talk(6, window=30_000).turns(4, "LION").turns(7, "GIRAFFE").rewind(4).turns(2, "ZEBRA", loads=0)
    talk.chat.restart()
    talk.turns(8, "ZEBRA").hold(figure)


@pytest.mark.parametrize("few", [6, 20])
@pytest.mark.rows(1)
def test_two_rewinds(few: int, figure: Figure) -> None:
    """The second goes back to before what followed the first."""
    talk = Talk(few, window=30_000).turns(4, "LION").turns(5, "GIRAFFE").rewind(4).turns(5, "GIRAFFE").rewind(4)
    talk.turns(8, "ZEBRA").hold(figure)
    assert "question 1: LION" in talk.chat.sent[-1].text


@pytest.mark.parametrize("few", [6, 20])
def test_a_rewind_to_the_first_message(few: int, figure: Figure) -> None:
    Talk(few, window=30_000).turns(9, "GIRAFFE").rewind(0).turns(7, "ZEBRA").hold(figure)


@pytest.mark.parametrize("few", [3, 6])
def test_a_rewind_of_what_is_not_loaded_any_more(few: int, figure: Figure) -> None:
    """Other agents' and the app's events come between."""
    talk = Talk(few, window=30_000).turns(3, "LION").turns(8, "GIRAFFE").rewind(3)
    from scripted import set_state

    for at in range(8):
        asyncio.run(set_state(talk.chat, seen=at))
    talk.turns(6, "ZEBRA").hold(figure)
    assert "question 1: LION" in talk.chat.sent[-1].text


def test_pictures_without_words_are_rewound_with_their_turn(figure: Figure) -> None:
    talk = Talk(6, window=30_000).turns(2, "LION")
    picture = types.Part.from_bytes(data=b"\x89PNG\r\n\x1a\nGIRAFFE", mime_type="image/png")
    events = talk.chat.say(types.UserContent(parts=[picture]), recent_events=6)
    talk.invocations.append(events[0].invocation_id)
    talk.turns(5, "GIRAFFE").rewind(2).turns(6, "ZEBRA").hold(figure)
    assert "question 1: LION" in talk.chat.sent[-1].text


@pytest.mark.parametrize("few", [4, 8])
def test_an_agent_that_comes_later_knows_of_the_rewind(few: int, figure: Figure) -> None:
    """The rewind is not loaded any more when the second agent is called."""

    def desk(name: str, **settings: Any) -> tuple[LlmAgent, Scripted]:
        llm = Scripted(model="gemini-2.5-flash", sent=[], script=[])
        return LlmAgent(name=name, model=llm, instruction="You help.", **settings), llm

    second, second_llm = desk("second")
    first, first_llm = desk("first", sub_agents=[second])
    chat = Chat(agent=first, policy=PackPolicy(max_input_tokens=20_000), store=new_store())
    invocations = []

    def say(text: str, *names: str) -> None:
        for llm in (first_llm, second_llm):
            llm.script[:] = []
        if "to second" in names:
            first_llm.script[:] = [call("transfer_to_agent", agent_name="second")]
        if "to first" in names:
            second_llm.script[:] = [call("transfer_to_agent", agent_name="first")]
        invocations.append(chat.say(text, recent_events=few)[0].invocation_id)

    say("LION one", "to second")
    say("LION two")
    for at in range(4):
        say(f"GIRAFFE {at}")
    say("GIRAFFE back", "to first")
    asyncio.run(chat.runner.rewind_async(user_id="ann", session_id="s1", rewind_before_invocation_id=invocations[2]))
    begin = len(chat.sent)
    for at in range(7):
        say(f"ZEBRA {at}", *(["to first"] if at == 0 else []))
    say("ZEBRA last", "to second")
    say("ZEBRA end")
    later = chat.sent[begin:]
    returned = sum("GIRAFFE" in "".join(sent.wires) for sent in later)
    figure("returned", returned)
    assert returned == 0
    assert not any(faults(sent.contents) for sent in later)


async def compact(chat: Chat) -> None:
    """Replaces all events so far by a summary, as ADK's own compaction does."""
    session = await chat.held()
    compaction = EventCompaction(
        start_timestamp=session.events[0].timestamp,
        end_timestamp=session.events[-1].timestamp,
        compacted_content=types.ModelContent("Digest of what came before."),
    )
    event = Event(author="user", invocation_id="compaction", actions=EventActions(compaction=compaction))
    await chat.sessions.append_event(session, event)


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("few", [3, 6, 20])
@pytest.mark.parametrize("window", [WINDOW, 30_000])
@pytest.mark.rows(2, slow=2)
def test_what_a_compaction_replaced_never_returns(window: int, few: int, restarts: bool, figure: Figure) -> None:
    """Neither while its event is loaded, nor later."""
    talk = Talk(few, window=window).turns(9, "GIRAFFE")
    asyncio.run(compact(talk.chat))
    talk.begin = len(talk.chat.sent)
    for _ in range(9):
        talk.turns(1, "ZEBRA")
        if restarts:
            talk.chat.restart()
    talk.hold(figure)
    assert "question 18: ZEBRA" in talk.chat.sent[-1].text


@pytest.mark.parametrize("few", [6, 20])
@pytest.mark.rows(1)
def test_a_rewind_behind_a_compaction(few: int, figure: Figure) -> None:
    talk = Talk(few, window=30_000).turns(6, "GIRAFFE")
    asyncio.run(compact(talk.chat))
    talk.turns(3, "LION").turns(4, "GIRAFFE").rewind(9).turns(8, "ZEBRA").hold(figure)
    assert "question 16: ZEBRA" in talk.chat.sent[-1].text
