"""What the ledger adds to a model call: medians of CPU time in microseconds, in ADK's runner, with a scripted model.

    PYTHONPATH=tests python tests/bench/ledger_speed.py [CALLS]

One invocation of so many model calls (200 by default), each with a tool call, without limits and under limits on every
scope and measure. `check` is the pure budget check; `enter` and `admit` run before a model call, `track` after it.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from google.adk.agents.run_config import RunConfig
from google.genai import types
from scripted import Chat, call, look_up

from aether_context import PackPolicy
from aether_context.policy import LimitSettings
from aether_context.usage import CallUsage, TokenLedger
from aether_context.usage.prices import prices_of

MOST = {"input_tokens": 10**12, "output_tokens": 10**12, "total_tokens": 10**12, "cost_usd": 10**9}
LIMITS = PackPolicy(limits=dict.fromkeys(("session", "invocation", "agent"), MOST)).limits


def timed(act: Callable[..., Any], spent: list[float]) -> Callable[..., Any]:
    def measured(*arguments: Any) -> Any:
        began = time.thread_time()
        try:
            return act(*arguments)
        finally:
            spent.append(1e6 * (time.thread_time() - began))

    return measured


def inside_the_runner(calls: int, limits: LimitSettings) -> dict[str, float]:
    """Medians over the last hundred calls of a long invocation."""
    spent: dict[str, list[float]] = defaultdict(list)
    script = [call("look_up", key=f"k{at}") for at in range(calls - 1)]
    chat = Chat(script=[*script, "done"], tools=[look_up], policy=PackPolicy(limits=limits, record="off"))
    ledgers = chat.plugin._packer.ledgers
    for name in ("enter", "admit", "track"):
        setattr(ledgers, name, timed(getattr(ledgers, name), spent[name]))

    async def converse() -> None:
        await chat.sessions.create_session(app_name=chat.app_name, user_id=chat.user, session_id=chat.session)
        config = RunConfig(max_llm_calls=calls + 1)
        message = types.UserContent("go")
        async for _ in chat.runner.run_async(
            user_id=chat.user, session_id=chat.session, new_message=message, run_config=config
        ):
            pass

    asyncio.run(converse())
    return {name: statistics.median(values[-100:]) for name, values in spent.items()}


def pure_check(agents: int = 50, times: int = 1_000) -> float:
    """The check alone, in a session of many agents and with a price."""
    ledger = TokenLedger()
    for at in range(20 * agents):
        usage = CallUsage(input_tokens=10_000 + at, output_tokens=300)
        ledger.track(usage, invocation=f"i{at // 30}", agent=f"a{at % agents}")
    prices = prices_of("gemini-2.5-flash")
    spent: list[float] = []
    check = timed(
        lambda: ledger.check(ledger.estimate(9_000, prices=prices), LIMITS, invocation="i1", agent="a1"), spent
    )
    for _ in range(times):
        check()
    return statistics.median(spent)


def main() -> None:
    calls = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    print(f"{'check, 50 agents, 1,000 calls booked':40s} {pure_check():8.1f} µs")
    for about, limits in (("no limits", PackPolicy().limits), ("12 limits", LIMITS)):
        for name, median in inside_the_runner(calls, limits).items():
            print(f"{f'{name}, {about}, after {calls:,} calls':40s} {median:8.1f} µs")


if __name__ == "__main__":
    main()
