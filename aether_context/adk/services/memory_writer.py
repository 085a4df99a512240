"""Adds what was said in an invocation to the app's memory service, at the invocation's end."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial

from google.adk.agents.invocation_context import InvocationContext
from google.adk.events.event import Event
from google.adk.memory.base_memory_service import BaseMemoryService
from google.genai import types

from aether_context.adk.call import SessionKey, caller_of, session_key
from aether_context.adk.services.memory import HybridMemoryService, text_of_parts
from aether_context.redaction import Masker
from aether_context.retrieval.ranking import without_small_talk
from aether_context.tokens.counters import SharedLRU

_MOST_SESSIONS, _MOST_WAITING = 4_096, 50
"""Sessions that are known, and invocations of one that wait to be taken."""
_SECONDS, _LATE_SECONDS = 5.0, 0.3
"""So long does the end of a run wait for a service, and for one that is late already."""


class MemoryWriter:
    """Gives a memory service the messages and final answers of each invocation, once.

    Small talk, thoughts, calls and results are left out, and so is what an agent says that runs as another one's tool.
    A service that is slow is waited for behind the run. What a service did not take is given to it again at the end of
    the session's next invocation.

    Args:
        mask: masks the texts.
        report: is told each failure.
    """

    def __init__(self, mask: Masker, report: Callable[[str], None]) -> None:
        self._mask, self._report = mask, report
        self._added: SharedLRU[SessionKey, tuple[str, set[str]]] = SharedLRU(_MOST_SESSIONS)
        """The latest invocation of a session, and the ids of those of its events that were read."""
        self._waiting: SharedLRU[SessionKey, deque[list[Event]]] = SharedLRU(_MOST_SESSIONS)
        self._deliveries: dict[SessionKey, asyncio.Task[None]] = {}
        self._late: set[asyncio.Task[None]] = set()

    async def add(self, invocation: InvocationContext) -> None:
        """Adds what an invocation has said since it was last asked, and waits for the service a few seconds."""
        service, session = invocation.memory_service, session_key(invocation)
        if service is None:
            self._report("retrieval.remember has no effect: the app has no memory service")
        if service is None or caller_of(session) is not None:
            return
        invocation_id, ids = self._added.get(session) or ("", set())
        if invocation_id != invocation.invocation_id:  # the same one ends twice where it was resumed
            ids = set()
        events = [
            event
            for event in invocation.session.events
            if event.invocation_id == invocation.invocation_id and event.id not in ids
        ]
        self._added.put(session, (invocation.invocation_id, ids.union(event.id for event in events)))
        waiting = self._waiting.get_or_put(session, lambda _: deque())
        if spoken := list(filter(None, map(self._spoken, events))):
            waiting.append(spoken)
        while len(waiting) > _MOST_WAITING:
            waiting.popleft()
            self._report(
                f"{type(service).__name__} took nothing for {_MOST_WAITING} invocations: the oldest are given up"
            )
        running = self._deliveries.get(session)
        if not waiting or (running is not None and not running.done() and not running.get_loop().is_closed()):
            return
        delivery = self._deliveries[session] = asyncio.create_task(self._deliver(service, session, waiting))
        delivery.add_done_callback(partial(self._forget_delivery, session))
        await asyncio.wait({delivery}, timeout=_LATE_SECONDS if self._late else _SECONDS)
        if not delivery.done():
            self._late.add(delivery)
            self._report(f"{type(service).__name__} takes longer than {_SECONDS:g} s to remember an invocation")

    def _forget_delivery(self, session: SessionKey, delivery: asyncio.Task[None]) -> None:
        self._late.discard(delivery)
        if self._deliveries.get(session) is delivery:  # that of a loop that was closed ends late, behind another
            del self._deliveries[session]

    async def _deliver(self, service: BaseMemoryService, session: SessionKey, waiting: deque[list[Event]]) -> None:
        """Gives a service what waits, an invocation at a time. One that it refuses goes behind the others."""
        app, user, session_id = session
        try:
            add = service.remember if isinstance(service, HybridMemoryService) else service.add_events_to_memory
            while waiting:
                events = waiting[0]
                await add(app_name=app, user_id=user, events=events, session_id=session_id)
                if waiting and waiting[0] is events:  # else it was given up meanwhile
                    waiting.popleft()
        except NotImplementedError:
            waiting.clear()
            self._report(f"retrieval.remember has no effect: {type(service).__name__} takes whole sessions only")
        except Exception as error:
            waiting.rotate(-1)
            self._report(f"an invocation is not remembered yet: {type(error).__name__}: {error}")

    def _spoken(self, event: Event) -> Event | None:
        """An event with its words alone, masked; None of one that says nothing to people, tells an error, or is small
        talk."""
        if event.content is None or event.error_code is not None or not event.is_final_response():
            return None
        text = text_of_parts(event.content)
        if not without_small_talk(text):
            return None
        words = types.Part(text=self._mask(text))
        return Event(
            id=event.id,
            invocation_id=event.invocation_id,
            author=event.author,
            timestamp=event.timestamp,
            content=types.Content(role=event.content.role, parts=[words]),
        )
