"""Adds what was said in an invocation to the app's memory service, at the invocation's end."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from google.adk.agents.invocation_context import InvocationContext
from google.adk.events.event import Event
from google.adk.memory.base_memory_service import BaseMemoryService
from google.genai import types

from aether_context.adk.bounds import within
from aether_context.adk.call import SessionKey, caller_of, session_key
from aether_context.adk.services.memory import HybridMemoryService, text_of_parts
from aether_context.redaction import Masker
from aether_context.retrieval.ranking import without_small_talk
from aether_context.tokens.counters import SharedLRU

_MOST_SESSIONS, _MOST_EVENTS = 4_096, 200
_SECONDS = 5.0


class MemoryWriter:
    """Gives a memory service the messages and final answers of each invocation, once.

    Small talk, thoughts, calls and results are left out, and so is what an agent says that runs as another one's tool.
    What a service did not take is given to it again at the end of the session's next invocation.

    Args:
        mask: masks the texts.
        report: is told each failure.
    """

    def __init__(self, mask: Masker, report: Callable[[str], None]) -> None:
        self._mask, self._report = mask, report
        self._added: SharedLRU[SessionKey, tuple[str, set[str]]] = SharedLRU(_MOST_SESSIONS)
        """The latest invocation of a session, and the ids of those of its events that were read."""
        self._untaken: SharedLRU[SessionKey, list[Event]] = SharedLRU(_MOST_SESSIONS)

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
        spoken = [*(self._untaken.pop(session) or ()), *filter(None, map(self._spoken, events))]
        if not spoken:
            return
        try:
            await within(_SECONDS, _give(service, session, spoken))
        except NotImplementedError:
            self._report(f"retrieval.remember has no effect: {type(service).__name__} takes whole sessions only")
        except Exception as error:
            self._untaken.put(session, spoken[-_MOST_EVENTS:])
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
        words = types.Part(text=self._mask(text_of_parts(event.content)))
        return Event(
            id=event.id,
            invocation_id=event.invocation_id,
            author=event.author,
            timestamp=event.timestamp,
            content=types.Content(role=event.content.role, parts=[words]),
        )


async def _give(service: BaseMemoryService, session: SessionKey, events: Sequence[Event]) -> None:
    app, user, session_id = session
    add = service.remember if isinstance(service, HybridMemoryService) else service.add_events_to_memory
    await add(app_name=app, user_id=user, events=events, session_id=session_id)
