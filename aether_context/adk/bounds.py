"""Bounds: waits no longer than was said, and failures that go no further."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Literal, TypeAlias, TypeVar

from aether_context.errors import BudgetExceededError, PolicyError

logger = logging.getLogger("aether_context")

# Waiting for what others wrote.

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
    def forget(ended: asyncio.Task[Any]) -> None:
        _left.discard(ended)
        if not ended.cancelled():
            ended.exception()  # of no interest any more; one that nobody asks for is logged

    task.cancel()
    _left.add(task)
    task.add_done_callback(forget)


# Failures at the edge: the call goes on, and the log says so once.

OnError: TypeAlias = Literal["passthrough", "raise"]
_MOST_TOLD = 1_000


class Failures:
    """Reports failures, each kind of it once; under ``raise`` they are the caller's.

    Args:
        on_error: ``passthrough`` lets a call go on whatever fails, ``raise`` does not.
    """

    def __init__(self, on_error: OnError) -> None:
        if on_error not in ("passthrough", "raise"):
            raise PolicyError(f"on_error = {on_error!r}: it is 'passthrough' or 'raise'", field="on_error")
        self.on_error = on_error
        self._told: set[str] = set()

    def report(self, reason: str, error: Exception | None = None) -> None:
        self.warn_once(f"a request could not be packed in full: {reason}", error)

    def caught(self, error: Exception, about: str = "") -> None:
        """Reports an error that was caught, or raises it again; called where it is handled."""
        if self.on_error == "raise":
            raise error
        self.report(f"{about}{type(error).__name__}: {error}", error)

    def guarded(self, act: Callable[[], _T], otherwise: _T) -> _T:
        """What accounting gives; where it fails, the request is packed all the same."""
        try:
            return act()
        except BudgetExceededError:
            raise
        except Exception as error:
            self.caught(error)
            return otherwise

    def warn_once(self, message: str, error: Exception | None = None) -> None:
        if message not in self._told and len(self._told) < _MOST_TOLD:
            self._told.add(message)
            logger.warning("%s", message, exc_info=error)
