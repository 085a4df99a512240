"""Waiting for what others wrote, and no longer than was said."""

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
    except asyncio.CancelledError:
        _leave(task)
        raise
    if done:
        return task.result()
    _leave(task)
    raise TimeoutError(f"no answer within {seconds:g} s")


def _leave(task: asyncio.Task[Any]) -> None:
    task.cancel()
    _left.add(task)
    task.add_done_callback(_forget)


def _forget(task: asyncio.Task[Any]) -> None:
    """Lets a task go that has ended after all; what it raised is of no interest any more."""
    _left.discard(task)
    if not task.cancelled():
        task.exception()
