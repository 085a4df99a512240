"""A model that takes less than is known of it: one failed call at most, however its agent is run."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents import LlmAgent, ParallelAgent
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from scripted import Chat, big_file, call, new_store
from strict import Strict, strict, turns
from teams import DEPRECATED

from aether_context import PackPolicy

Figure = Callable[[str, float], None]


def clerk(llm: Strict, **settings: Any) -> LlmAgent:
    return LlmAgent(name="clerk", model=llm, instruction="You help.", **settings)


def take(figure: Figure, chat: Chat, failed: list[int], refused: int = 1) -> None:
    """The figures of a session: what failed, and what went out though it was known to be too long."""
    assert len(failed) <= 1
    figure("failed_calls", len(failed))
    over = sum(manifest.over_window > 0 for manifest in chat.manifests())
    figure("over_window", over + refused - 1)
    assert over == 0


@pytest.mark.parametrize("settings", [{}, {"streams": True}, {"says": True}, {"limit": 6_000}, {"counts": 1.3}])
@pytest.mark.parametrize("window", [None, 60_000])
@pytest.mark.rows(3, slow=2)
def test_a_session_fails_once_at_most(
    settings: dict[str, Any], window: int | None, caplog: pytest.LogCaptureFixture, figure: Figure
) -> None:
    llm = strict(**settings)
    policy = PackPolicy(max_input_tokens=window)
    chat = Chat(agent=clerk(llm), policy=policy)
    with caplog.at_level(logging.WARNING, logger="aether_context"):
        failed = turns(chat, range(16), stream=settings.get("streams", False))
    take(figure, chat, failed, len(llm.refused))
    told = [record for record in caplog.records if "too long" in record.getMessage()]
    assert len(told) == 1
    assert ("the policy's" in told[0].getMessage()) is (window is not None)
    manifests = chat.manifests()
    last = manifests[-1]
    assert (last.window, last.window_mark) == (llm.limit, "learned")
    codes = [chat.store.outcome(manifest).get("error_code") for manifest in manifests]
    assert [code for code in codes if code is not None] == [
        "INVALID_ARGUMENT" if settings.get("says") else "context_window_exceeded"
    ]


def test_what_was_learned_outlives_the_process(tmp_path: Path, figure: Figure) -> None:
    """Also where the process ends with the call that failed."""
    sessions, store = SqliteSessionService(str(tmp_path / "sessions.db")), new_store()

    def process() -> tuple[Chat, Strict]:
        llm = strict()
        agent = clerk(llm)
        return Chat(agent=agent, sessions=sessions, store=store), llm

    number, failed, refused = 0, list[int](), list[object]()
    while not refused:
        chat, llm = process()
        failed, number, refused = turns(chat, range(number, number + 1)), number + 1, llm.refused
    for later in range(number, number + 4):
        chat, llm = process()
        failed += turns(chat, range(later, later + 1))
        assert llm.refused == []
    take(figure, chat, failed)
    assert chat.latest().window_mark == "learned"


def test_a_loop_of_tools_fails_once_at_most(figure: Figure) -> None:
    llm = strict()
    chat = Chat(agent=clerk(llm, tools=[big_file]), policy=PackPolicy(offload={"mode": "off"}))
    failed = list[int]()
    for number in range(10):
        llm.script[:] = [call("big_file", name=f"file {number} {at}", lines=60) for at in range(3)]
        failed += turns(chat, range(number, number + 1))
    take(figure, chat, failed, len(llm.refused))


@DEPRECATED
def test_agents_side_by_side_with_one_model_learn_from_each_other(figure: Figure) -> None:
    llm = strict()
    agents = [LlmAgent(name=name, model=llm, instruction="You help.") for name in ("one", "two")]
    chat = Chat(agent=ParallelAgent(name="both", sub_agents=agents))
    failed = turns(chat, range(12))
    assert len(llm.refused) <= 2  # both may have been on their way
    take(figure, chat, failed)
