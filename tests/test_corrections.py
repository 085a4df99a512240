"""A memory that contradicts an earlier one stands before it, and the earlier one says so; both stay."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest
from google.adk.events.event import Event
from google.adk.memory.memory_entry import MemoryEntry
from google.adk.sessions.session import Session
from google.adk.tools import preload_memory
from google.genai import types
from hypothesis import given
from hypothesis import strategies as st
from packs import memory
from scripted import Chat, Memories, remembered

from aether_context import PackPolicy
from aether_context.adk import HybridMemoryService
from aether_context.pack import Candidate
from aether_context.packing.payload import SUPERSEDED, sections
from aether_context.policy import RetrievalSettings
from aether_context.retrieval import newest_first, retrieve
from aether_context.retrieval.corrections import Statement, corrections, raised

JASMINE, OOLONG = "Tyler's favourite tea is jasmine.", "Tyler now prefers oolong tea; the jasmine was given up."
ROOIBOS = "Tyler's favourite tea is rooibos."
ASKED = "What is Tyler's favourite tea?"
OTHERS = (
    "Tyler works at the city archive.",
    "Tyler's sister is a vet.",
    "Nora's favourite tea is mint.",
    "Tyler bought a teapot in Lisbon.",
)


def entry(text: str, day: int | None) -> MemoryEntry:
    timestamp = None if day is None else f"2026-03-{day:02}T10:00:00+00:00"
    return MemoryEntry(content=types.UserContent(text), timestamp=timestamp)


def told(*texts: str, dated: bool = True) -> HybridMemoryService:
    """A service that was told so, a day apart or on no day."""
    service = HybridMemoryService()
    for day, text in enumerate(texts, start=1):
        memories = [entry(text, day if dated else None)]
        asyncio.run(service.add_memory(app_name="shop", user_id="ann", memories=memories))
    return service


def lines(chat: Chat) -> list[str]:
    """The lines of memory in the latest request."""
    return sections(chat.sent[-1].human())["MEMORY"].splitlines()


def superseded(texts: Sequence[str], query: str) -> dict[str, str]:
    """What a later one takes the place of, and that one, of texts in the order in which they were said."""
    said = [Statement(text=text, place=place, score=1.0) for place, text in enumerate(texts, start=1)]
    return {texts[at]: texts[later] for at, later in corrections(said, query).items()}


@pytest.mark.parametrize("dated", [True, False])
def test_a_correction_stands_before_what_it_corrects_and_that_is_marked(dated: bool) -> None:
    chat = Chat(memory=told(JASMINE, *OTHERS, OOLONG, dated=dated))
    chat.say(ASKED)
    held = lines(chat)
    at = held.index(f"- {OOLONG}" + (" (2026-03-06)" if dated else ""))
    assert held[at + 1] == f"- {JASMINE} ({'2026-03-01, ' if dated else ''}{SUPERSEDED})"
    assert [line for line in held if line.endswith(f"{SUPERSEDED})")] == [line for line in held if JASMINE in line]
    assert {text for text in OTHERS if any(text in line for line in held)} == set(OTHERS)
    rows = {row.id: row for row in chat.manifests()[0].rows if row.layer == "memory"}
    (old,) = [row for row in rows.values() if row.superseded_by]
    assert rows[old.superseded_by].scores["similarity"] >= old.scores["similarity"]
    chat.replays()


def test_of_three_versions_the_newest_stands_first_and_the_others_are_marked() -> None:
    chat = Chat(memory=told(JASMINE, *OTHERS, ROOIBOS, OOLONG))
    chat.say(ASKED)
    held = lines(chat)
    assert [name for line in held for name in (OOLONG, ROOIBOS, JASMINE) if name in line] == [OOLONG, ROOIBOS, JASMINE]
    assert [line for line in held if SUPERSEDED in line] == [
        line for line in held if JASMINE in line or ROOIBOS in line
    ]


def test_what_is_said_again_holds_again() -> None:
    again = [
        MemoryEntry(id=str(day), content=types.UserContent(text), timestamp=f"2026-03-{day:02}T10:00:00+00:00")
        for day, text in enumerate([JASMINE, ROOIBOS, JASMINE, *OTHERS], start=1)
    ]
    chat = Chat(memory=Memories(*again))
    chat.say(ASKED)
    of_tyler = [line for line in lines(chat) if "Tyler's favourite" in line]
    assert of_tyler == [f"- {JASMINE} (2026-03-03)", f"- {ROOIBOS} (2026-03-02, {SUPERSEDED})"]
    chat.replays()


def test_what_users_say_in_later_sessions_corrects_what_they_said_in_earlier_ones() -> None:
    service = HybridMemoryService()
    said = ("My favourite tea is jasmine.", "I cycle to work.", "My favourite tea is oolong these days.")
    for number, text in enumerate(said):
        event = Event(author="user", timestamp=1_772_000_000.0 + 86_400 * number, content=types.UserContent(text))
        session = Session(id=f"s{number}", app_name="shop", user_id="ann", events=[event])
        asyncio.run(service.add_session_to_memory(session))
    chat = Chat(memory=service)
    chat.say("Which is my favourite tea?")
    held = lines(chat)
    at = held.index("- user: My favourite tea is oolong these days. (2026-02-27)")
    assert held[at + 1] == f"- user: My favourite tea is jasmine. (2026-02-25, {SUPERSEDED})"


@pytest.mark.parametrize("tools", [[], [preload_memory]])
def test_memories_of_any_service_are_corrected_by_their_dates(tools: list[object]) -> None:
    old, new = remembered(JASMINE, None, "2026-03-01T10:00:00"), remembered(OOLONG, None, "2026-04-01T10:00:00")
    chat = Chat(memory=Memories(old, new), tools=tools)
    chat.say(ASKED)
    assert lines(chat) == [f"- {OOLONG} (2026-04-01)", f"- {JASMINE} (2026-03-01, {SUPERSEDED})"]
    chat.replays()


def test_without_dates_nothing_of_another_service_is_later() -> None:
    chat = Chat(memory=Memories(remembered(JASMINE, None, None), remembered(OOLONG, None, None)))
    chat.say(ASKED)
    assert SUPERSEDED not in chat.sent[0].human()


def test_where_room_is_short_the_corrected_memory_goes_first() -> None:
    policy = PackPolicy(retrieval={"memory_k": 1, "memory_fill_k": 0})
    chat = Chat(memory=told(JASMINE, *OTHERS, OOLONG), policy=policy)
    chat.say(ASKED)
    assert lines(chat) == [f"- {OOLONG} (2026-03-06)"]


def test_a_search_gives_the_correction_first_and_names_it() -> None:
    service = told(JASMINE, *OTHERS, OOLONG)

    async def search(limit: int) -> list[MemoryEntry]:
        found = await service.search_memory(app_name="shop", user_id="ann", query=ASKED, limit=limit)
        return found.memories

    entries = {memory.content.parts[0].text: memory for memory in asyncio.run(search(20))}
    names = list(entries)
    assert names.index(OOLONG) < names.index(JASMINE)
    assert entries[JASMINE].custom_metadata["aether_superseded_by"] == entries[OOLONG].id
    assert entries[OOLONG].custom_metadata["aether_score"] >= entries[JASMINE].custom_metadata["aether_score"]
    assert [text for text in names if "aether_superseded_by" in entries[text].custom_metadata] == [JASMINE]
    assert [memory.content.parts[0].text for memory in asyncio.run(search(1))] == [OOLONG]


@pytest.mark.parametrize(
    ("texts", "query"),
    [
        (["Nora's favourite tea is mint.", "Tyler's favourite tea is jasmine."], "What is Nora's favourite tea?"),
        (["Nora works at Mercer Hospital.", "Tyler works at Mercer Hospital."], "Where does Nora work?"),
        (["Mia, Tyler's daughter, plays the flute.", "Zoe, Tyler's daughter, plays drums."], "What does Mia play?"),
        (["Tyler's mother is from Ghana.", "Tyler's bicycle has a flat tyre."], "Where is Tyler's mother from?"),
        ([JASMINE, JASMINE.upper()], ASKED),
        ([JASMINE, "Is Tyler's favourite tea oolong?"], ASKED),
        (["Thanks Tyler, that sounds great!", "Thanks Tyler, I appreciate it!"], "What did I say to Tyler?"),
        ([JASMINE, f"{OOLONG} {'He said so over and over. ' * 20}"], ASKED),
    ],
)
def test_what_only_looks_like_a_correction_is_left_alone(texts: list[str], query: str) -> None:
    assert superseded(texts, query) == {}


@pytest.mark.parametrize(
    ("old", "new", "others", "query"),
    [
        (
            "小明住在北京。",
            "小明现在住在上海。",
            ["小明喜欢足球。", "小明的妹妹是医生。"],
            "小明住在哪里？",
        ),
        ("Анна живёт в Москве.", "Анна теперь живёт в Казани.", ["Анна играет на скрипке."], "Где живёт Анна?"),
        ("تعيش سارة في القاهرة.", "تعيش سارة الآن في دبي.", ["سارة تحب القهوة."], "أين تعيش سارة؟"),
        ("민수는 서울에 산다.", "민수는 지금 부산에 산다.", ["민수는 고양이를 좋아한다."], "민수는 어디에 사나요?"),
        ("Anna wohnt in Berlin.", "Anna wohnt jetzt in Hamburg.", ["Anna spielt Geige."], "Wo wohnt Anna?"),
    ],
)
def test_corrections_are_told_in_any_script(old: str, new: str, others: list[str], query: str) -> None:
    assert superseded([old, *others, new], query) == {old: new}


def test_only_what_is_known_to_be_later_and_of_the_same_speaker_corrects() -> None:
    def found(**later: object) -> dict[int, int]:
        first = Statement(text=JASMINE, time=1_000.0, place=1, speaker="ann", score=1.0)
        second = Statement(**{"text": OOLONG, "time": 2_000.0, "place": 2, "speaker": "ann", "score": 1.0, **later})
        return corrections([first, second], ASKED)

    assert found() == {0: 1}
    assert found(time=1_000.0) == {0: 1}
    assert found(time=None) == {0: 1}
    assert found(time=500.0) == {1: 0}
    assert found(speaker="ben") == {}
    assert found(time=None, place=0) == {}
    assert found(score=0.0) == {}


def test_what_is_masked_corrects_nothing_by_what_it_says() -> None:
    service = HybridMemoryService(redact=[r"Tyler\S*", r"\bfavourite", r"\btea", "oolong|jasmine|rooibos"])
    for day, text in enumerate((JASMINE, ROOIBOS), start=1):
        asyncio.run(service.add_memory(app_name="shop", user_id="ann", memories=[entry(text, day)]))
    found = service.memories.search("shop", "ann", ASKED)
    assert len(found) == 2
    assert not any(one.superseded_by for one in found)


def test_a_correction_comes_along_though_diversity_left_it_out() -> None:
    old, new = memory("old", "tea is jasmine", 1.0), memory("new", "tea is oolong", 2.0)
    others = [memory(f"m{number}", f"tea {number} {'x' * number}", 3.0) for number in range(6)]
    scored = [memory_of(found, score) for found, score in zip((new, old, *others), (0.2, 0.9, *[0.5] * 6), strict=True)]
    scored[1] = memory_of(scored[1], 0.9, superseded_by="new")
    chosen = retrieve(scored, "tea", k=3, settings=RetrievalSettings()).chosen
    assert [candidate.id for candidate in chosen][:2] == ["new", "old"]
    assert len(chosen) == 3


def memory_of(candidate: Candidate, similarity: float, superseded_by: str = "") -> Candidate:
    return replace(candidate, scores={"similarity": similarity}, superseded_by=superseded_by)


@given(st.dictionaries(st.integers(0, 9), st.integers(0, 9)), st.lists(st.floats(0, 1), min_size=10, max_size=10))
def test_whatever_takes_a_place_everything_stays_and_comes_once(links: dict[int, int], scores: list[float]) -> None:
    names = [str(number) for number in range(10)]
    superseded = {str(at): str(later) for at, later in links.items()}
    ordered = newest_first(names, superseded)
    assert sorted(ordered) == names
    higher = raised(scores, links)
    assert all(after >= before for before, after in zip(scores, higher, strict=True))
    assert all(higher[later] >= higher[at] for at, later in links.items())
