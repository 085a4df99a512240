"""What production does to a session and no unit test does: workers take turns on one database, a clock is set back, and
users have ids of any kind."""

from __future__ import annotations

import asyncio
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import postgres_server
import pytest
from google.adk.platform.time import reset_time_provider, set_time_provider
from google.adk.sessions import DatabaseSessionService
from scripted import Chat, call, results, sound, was_cut

from aether_context import PackPolicy, PackStore
from aether_context.adk import HybridMemoryService

Figure = Callable[[str, float], None]

IDS = [
    "ann", "Ann", "ANN", "ann ", " ann", "ann.", "a/b", "a\\b", "..", ".", "../ann", "ann/../bob", "/etc/passwd",
    "con", "NUL", "packs", "evidence", "name.json", "ann?x=1", "ann#1", "ann%2Fbob", "ann*", "a:b", "a|b", "user:ann",
    "app:ann", "é", "e\u0301", "ß", "ss", "İ", "i̇", "用户", "пользователь", "مستخدم", "👩\u200d👧", "\u200bann", "a\nb",
    "a\tb", "'; DROP TABLE x; --", "x" * 300, "0",
]  # fmt: skip


def marker(at: int) -> str:
    return f"MARK-{at:03}-{at * 7919 % 100_003}"


@pytest.mark.slow
def test_users_with_odd_ids_see_their_own_alone(tmp_path: Path, figure: Figure) -> None:
    assert len(set(IDS)) == len(IDS) == 42
    assert len({unicodedata.normalize("NFC", name) for name in IDS}) == 41

    def fetch(name: str) -> dict[str, Any]:
        """Fetches a file."""
        return {"result": f"{name} says " + "\n".join(f"line {at} of {name}" for at in range(1_500))}

    store, memory = PackStore(tmp_path / "packs"), HybridMemoryService(path=str(tmp_path / "memory"))
    policy = PackPolicy(max_input_tokens=6_000)
    chats = [Chat(tools=[fetch], store=store, policy=policy, memory=memory, user=name) for name in IDS]
    for at, chat in enumerate(chats):
        chat.llm.script += [call("fetch", name=marker(at)), "read"]
        chat.say(f"My secret is {marker(at)}. Read my file.")
        asyncio.run(memory.add_session_to_memory(asyncio.run(chat.held())))
    uris = [next(iter(store.evidence("shop", name, "s1"))).uri for name in IDS]
    foreign = 0
    for at, chat in enumerate(chats):
        other = uris[(at + 1) % len(uris)]
        chat.llm.script += [[call("read_artifact", uri=other), call("read_artifact", uri=uris[at], max_lines=1)], "ok"]
        denied, own = results(chat.say("What is my secret, in which file?", session="s1"))
        assert "error" in denied
        assert marker(at) in own["text"]
        chat.say("What was my secret, in the other session?", session="s2")
        sent = "\n".join(part for request in chat.sent for part in request.wires)
        foreign += sum(marker(number) in sent for number in range(len(IDS)) if number != at)
        packs = list(store.manifests(app="shop", user=IDS[at]))
        assert len(packs) == len(chat.sent)
        assert {manifest.user for manifest in packs} == {IDS[at]}
    figure("foreign", foreign)
    figure("isolation_runs", len(chats))
    assert foreign == 0


def test_a_clock_that_is_set_back_between_restarts_loses_nothing(tmp_path: Path, figure: Figure) -> None:
    chat = Chat(store=PackStore(tmp_path / "packs"), policy=PackPolicy(max_input_tokens=1_500))
    answers = 0
    try:
        for start in (2_000_000_000.0, 1_999_900_000.0, 1_500_000_000.0, 2_000_000_100.0):
            now = [start]

            def clock(now: list[float] = now) -> float:
                now[0] += 1
                return now[0]

            set_time_provider(clock)
            for turn in range(5):
                chat.llm.script.append(f"answer {answers} " + "word " * 120)
                chat.say(f"question {answers} of turn {turn}")
                answers += 1
            chat.restart()
    finally:
        reset_time_provider()
    manifests = sound(chat.store)
    figure("lost", answers - len(manifests))
    assert len(manifests) == answers
    assert any(map(was_cut, manifests))
    assert all(sent.faults == () for sent in chat.sent)
    assert "question 19" in chat.sent[-1].human()


@pytest.mark.integration
def test_two_workers_take_turns_on_one_database(
    postgres: postgres_server.Server, tmp_path: Path, figure: Figure
) -> None:
    uri = postgres.admin.replace("postgresql://", "postgresql+psycopg://")
    policy, store = PackPolicy(max_input_tokens=2_000), PackStore(tmp_path / "packs")

    def worker(uri: str | None) -> Chat:
        sessions = {"sessions": DatabaseSessionService(db_url=uri)} if uri else {}
        return Chat(store=store if uri else PackStore(tmp_path / "alone"), policy=policy, **sessions)

    async def go() -> tuple[list[Chat], Chat]:
        workers, alone = [worker(uri), worker(uri)], worker(None)
        for turn in range(24):
            question, answer = f"Question {turn}: " + f"word{turn} " * 40, f"answer {turn} " + "and more " * 60
            for chat in (workers[turn % 2], alone):
                chat.llm.script.append(answer)
                await chat.tell(question)
        for chat in workers:
            assert isinstance(chat.sessions, DatabaseSessionService)
            await chat.sessions.db_engine.dispose()
        return workers, alone

    workers, alone = asyncio.run(go())
    together = [sent for pair in zip(workers[0].sent, workers[1].sent, strict=True) for sent in pair]
    figure("lost", len(alone.sent) - len(sound(store)))
    assert len(sound(store)) == 24
    assert any(map(was_cut, store.manifests()))
    assert all(sent.faults == () for sent in together)
    assert [sent.human() for sent in together] == [sent.human() for sent in alone.sent]
