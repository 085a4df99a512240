"""A process that serves thousands of calls holds no more than one that serves some."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path

import pytest
from scripted import Chat

from aether_context import PackPolicy
from aether_context.adk import ContextPackPlugin

MOST_MEGABYTES = 40.0


def resident() -> float:
    """What the process holds, in megabytes."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4_096 / 1e6


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the system does not say what a process holds")
@pytest.mark.parametrize(
    "calls", [pytest.param(400, marks=pytest.mark.slow), pytest.param(5_000, marks=pytest.mark.soak)]
)
def test_many_sessions_leave_nothing_behind(calls: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("packer._MOST_CALLS", "services.recorder._MOST_CHAINS"):
        monkeypatch.setattr(f"aether_context.adk.{name}", 20)
    policy = PackPolicy(max_input_tokens=4_000)
    chat = Chat(plugin=ContextPackPlugin(policy=policy, store=str(tmp_path), on_error="raise"))
    held: list[float] = []

    async def go() -> None:
        for number in range(calls // 4):
            session = f"s{number}"
            for turn in range(4):
                chat.llm.script.append(f"answer {number} {turn} " + "word " * 200)
                await chat.tell(
                    f"question {number} {turn} " + "and more " * 200, user=f"u{number % 50}", session=session
                )
            await chat.sessions.delete_session(app_name="shop", user_id=f"u{number % 50}", session_id=session)
            for witness in (chat.before, chat.after, chat.llm):
                witness.sent.clear()
            chat.checked = 0
            held.append(resident())

    asyncio.run(go())
    assert held[-1] - held[len(held) // 2] < MOST_MEGABYTES, [round(one) for one in held[:: max(1, len(held) // 10)]]
