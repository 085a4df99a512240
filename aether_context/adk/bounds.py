"""Bounds: tables that forget what was longest unused, and waits no longer than was said."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Coroutine
from typing import Any, TypeVar

# Tables that forget what was longest unused.

_K = TypeVar("_K")
_V = TypeVar("_V")


def keep(table: OrderedDict[_K, _V], key: _K, value: _V, most: int) -> _V:
    """Puts a value at the end of a table, and takes the first one out where it holds more than ``most``."""
    table[key] = value
    table.move_to_end(key)
    if len(table) > most:
        table.popitem(last=False)
    return value


# Waiting for what others wrote, and no longer than was said.

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
