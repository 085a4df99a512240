"""Waiting for what others wrote, no longer than was said."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")

_left: set[asyncio.Task[Any]] = set()
"""Work that was late; the event loop itself holds only weak references to it."""


async def within(seconds: float, work: Coroutine[Any, Any, _T]) -> _T:
    """What work gives by a deadline. Work that is late is cancelled and left to itself.

    `asyncio.timeout` and `asyncio.wait_for` wait until cancelled work has ended, which is never for work that catches
    its cancellation and goes on.

    Raises:
        TimeoutError: it was late.
    """
    task = asyncio.ensure_future(work)
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
        if not done:
            raise TimeoutError(f"no answer within {seconds:g} s")
        return task.result()
    finally:
        if not task.done():
            task.cancel()
            _left.add(task)
        task.add_done_callback(_forget)


def _forget(ended: asyncio.Task[Any]) -> None:
    _left.discard(ended)
    if not ended.cancelled():
        ended.exception()  # of no interest any more; one that nobody asks for is logged
