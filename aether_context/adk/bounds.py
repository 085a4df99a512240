"""Waiting for what others wrote, no longer than was said, and surviving however it ends."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextvars import copy_context
from typing import Any, TypeVar

from aether_context.errors import TokenCountingError
from aether_context.tokens.counters import SharedLRU

_T = TypeVar("_T")

RETRY_SECONDS = 30.0
"""How long a service is left out that was late several times in a row."""
_MOST_LATE = 3
_COUNTING_SECONDS = 10.0
_INSTANT_CHARACTERS = 20_000
_MOST_THREADS, _THREAD = 256, "aether-context-waited"
_going: set[asyncio.Task[Any]] = set()
"""Work that has not ended, in time or late; the event loop itself holds only weak references to it."""


class Ended(Exception):
    """Foreign code ended in a way that it may not: cancelled though nobody asked for it, or by a panic."""


async def within(seconds: float, work: Coroutine[Any, Any, _T]) -> _T:
    """Returns the result of work that ends by a deadline. Work that is late is cancelled and not waited for.

    `asyncio.timeout` and `asyncio.wait_for` wait until cancelled work has ended, which is never for work that catches
    its cancellation and goes on.

    Raises:
        TimeoutError: it was late.
        Ended: it raised what is no `Exception`, a cancellation that is none of its caller's for example.
    """
    task = asyncio.ensure_future(work)
    _going.add(task)
    task.add_done_callback(_forget)
    try:
        await asyncio.wait({task}, timeout=seconds)
        if not task.done():
            raise TimeoutError(f"no answer within {seconds:g} s")
        try:
            return task.result()
        except Exception:
            raise
        except BaseException as error:
            raise failure(error) from error
    finally:
        task.cancel()


_turns: dict[asyncio.AbstractEventLoop, deque[asyncio.Future[None]]] = {}
"""Event loops in whose present round a turn was taken, with those who wait for one."""


async def take_turn() -> None:
    """Waits until the event loop has served others since the last caller went on.

    Where hundreds of sessions wake together, one round of the loop would else hold all of their work. Who waits sleeps:
    if all looked in each round whether it is their turn, hundreds would take more time to look than to pack.
    """
    loop = asyncio.get_running_loop()
    if (waiting := _turns.get(loop)) is not None:
        waiting.append(turn := loop.create_future())
        await turn
    else:
        _turns[loop] = deque()
        loop.call_soon(_next_turn, loop)


def _next_turn(loop: asyncio.AbstractEventLoop) -> None:
    while _turns[loop]:
        if not (turn := _turns[loop].popleft()).done():  # else who waited was cancelled
            turn.set_result(None)
            loop.call_soon(_next_turn, loop)
            return
    del _turns[loop]


def failure(error: BaseException) -> Exception:
    """An error of what others wrote, as one that can be recorded.

    Where it ends this task itself, since the run is cancelled or the process exits, it is raised instead.
    """
    if isinstance(error, Exception):
        return error
    if isinstance(error, (KeyboardInterrupt, SystemExit, GeneratorExit)):
        raise error
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise error
    return Ended(f"{type(error).__name__} {error}".rstrip())


async def in_thread(act: Callable[[], _T]) -> _T:
    """Runs an act in a thread of its own, which neither an event loop that ends nor the process waits for, and returns
    its result.

    Raises:
        Ended: very many such threads have not come to an end, or none can be started.
    """
    if sum(thread.name == _THREAD for thread in threading.enumerate()) >= _MOST_THREADS:
        raise Ended(f"{_MOST_THREADS} earlier ones have not answered")
    future: Future[_T] = Future()
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            future.set_result(act())
        except BaseException as error:
            future.set_exception(error)

    try:
        threading.Thread(target=copy_context().run, args=[run], name=_THREAD, daemon=True).start()
    except RuntimeError as error:
        raise Ended(str(error)) from error
    return await asyncio.wrap_future(future)


async def off_loop(act: Callable[[], _T]) -> _T:
    """Runs an act in a thread of its own, since the host may keep those of the event loop busy; at once where there is
    none."""
    try:
        return await in_thread(act)
    except Ended:
        return act()


async def counted_in_time(counter: str, act: Callable[[], _T]) -> _T:
    """Returns the result of an act that a counter may hold up.

    Raises:
        TokenCountingError: it is late.
    """
    try:
        return await within(_COUNTING_SECONDS, in_thread(act))
    except (TimeoutError, Ended) as error:
        raise TokenCountingError(counter, str(error)) from error


async def aside(characters: int, act: Callable[[], _T]) -> _T:
    """Runs an act on so many characters, off the event loop where it would block that noticeably, and returns its
    result."""
    return act() if characters <= _INSTANT_CHARACTERS else await off_loop(act)


def _forget(ended: asyncio.Task[Any]) -> None:
    _going.discard(ended)
    if not ended.cancelled():
        ended.exception()  # of no interest any more; one that nobody asks for is logged


class LeftOut(TimeoutError):
    """It was late several times in a row, and is asked again in a while."""


class Waits:
    """The time that invocations have waited for each service, and the services that are not asked for a while.

    ``seconds`` are what an invocation waits in all for memory search and embedding.
    """

    seconds = 2.0

    def __init__(self) -> None:
        self._waited: SharedLRU[str, float] = SharedLRU(2_048)
        self._late: SharedLRU[str, tuple[int, float]] = SharedLRU(256)
        """How often a service was late since it answered last, and until when it is left out."""

    async def within(
        self, service: str, invocation: str, work: Coroutine[Any, Any, _T], *, most_late: int = _MOST_LATE
    ) -> _T:
        """As `within`, with `seconds` for all that an invocation waits for; waits side by side count once.

        Args:
            most_late: after so many late answers in a row the service is left out.

        Raises:
            LeftOut: the service was late too often; one caller tries it again every now and then.
        """
        began, waited = time.monotonic(), self._waited.get(invocation) or 0.0
        late_count, until = self._late.get(service) or (0, 0.0)
        if late_count >= most_late and began < until:
            work.close()
            raise LeftOut(f"it was late {late_count} times in a row")
        # Whoever comes while this one tries leaves it out, where it was late too often.
        self.answered(service, late_count, began)
        try:
            result = await within(max(0.0, self.seconds - waited), work)
        except TimeoutError:
            if waited < self.seconds / 2:  # else those before it have taken its time
                self.answered(service, late_count + 1, time.monotonic())
            raise
        finally:
            waited += time.monotonic() - began
            self._waited.put(invocation, max(waited, self._waited.get(invocation) or 0.0))
        self.answered(service)
        return result

    def answered(self, service: str, late_count: int = 0, now: float = 0.0) -> None:
        """Notes how often in a row a service was late by now; that it answered, maybe behind the call that waited."""
        self._late.put(service, (late_count, now + RETRY_SECONDS))
