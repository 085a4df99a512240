"""An ADK memory service that finds by words and meaning: in a process, a file or a database that several share."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from google.adk.agents.invocation_context import InvocationContext
from google.adk.events.event import Event
from google.adk.memory.base_memory_service import BaseMemoryService, SearchMemoryResponse
from google.adk.memory.memory_entry import MemoryEntry
from google.adk.sessions.session import Session
from google.genai import types
from typing_extensions import override

from aether_context.adk.bounds import in_thread
from aether_context.adk.call import SessionKey, caller_of, session_key
from aether_context.canonical import JSON, hash_json, plain, short
from aether_context.errors import SearchIndexError, StoreUnavailable
from aether_context.pack import values_of
from aether_context.redaction import Masker
from aether_context.retrieval.ranking import similarity, without_small_talk
from aether_context.tokens.counters import SharedLRU

if TYPE_CHECKING:
    from aether_context.memory import Memory, Remembered
    from aether_context.retrieval.embedders import Embedder

_logger = logging.getLogger("aether_context")

SCHEME = "hybrid"
"""What a URI of such a service begins with, once `register_memory_service` was called."""

SCORE = "aether_score"
"""The key of an entry's metadata under which its score stands, 0 to 1."""

_OPTIONS = ("embedder", "limit", "redact")
_POSTGRES = f"{SCHEME}+postgresql"


class HybridMemoryService(BaseMemoryService):
    """Remembers what was said, by app and user, and finds it by BM25 and vectors together.

    What is written is durable when the call returns, and in all processes that share the file or the database is found
    by the next search. What is deleted is gone from there and, at the next search, from every index, and adding its
    session again does not bring it back.

    Args:
        path: a file, a folder for one, ``file:///absolute/path``, or ``hybrid://relative/path``, with options
            behind a question mark (``?embedder=none&limit=30``); None or ``hybrid://`` keeps all in this process.
            Or ``postgresql://user:password@host/database``, with or without ``hybrid+`` before it; ``schema`` and
            libpq's parameters are options, too.
        embedder: a name, an embedder, or None for the default; ``"none"`` finds by words alone.
        limit: most memories that a search returns to those who do not say how many they want, as ADK's tools do.
        redact: names of rules or groups, or regular expressions: what is masked in what is added, in queries and in
            what is embedded. A service that has none takes over its app's policy's at the first model call; one that
            takes in sessions before that needs it here, or in the URI (``?redact=secrets,personal``).
        max_users: so many users' indexes are kept in memory at once.
        agents_dir: where a relative path of a URI begins; ADK gives it.

    Raises:
        SearchIndexError: the URI is of another scheme, or has an option that is none.
        StoreError: the file cannot be opened, or is none of this format; the database cannot be used.
        MissingExtra: a package is not installed that the database or the embedder needs.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        embedder: str | Embedder | None = None,
        limit: int = 20,
        redact: Sequence[str] = (),
        max_users: int = 64,
        agents_dir: str | None = None,
    ) -> None:
        from aether_context.memory import Memories

        address, options = parse_address(os.fspath(path or ""), agents_dir)
        number = options.get("limit", str(limit))
        if not number.isdecimal() or int(number) < 1:
            raise SearchIndexError(f"limit={number!r} of a memory service is no whole number above 0")
        self.limit = int(number)
        embedder = options.get("embedder", embedder)
        redact = options["redact"].split(",") if "redact" in options else redact
        self.memories = Memories(address or None, embedder=embedder, redact=redact, max_users=max_users)

    @override
    async def add_session_to_memory(self, session: Session) -> None:
        """Adds the events of a session that are new or other than before. None that is there is taken out."""
        await self.add_events_to_memory(
            app_name=session.app_name, user_id=session.user_id, events=session.events, session_id=session.id
        )

    @override
    async def add_events_to_memory(
        self,
        *,
        app_name: str,
        user_id: str,
        events: Sequence[Event],
        session_id: str | None = None,
        custom_metadata: Mapping[str, object] | None = None,
    ) -> None:
        """Adds events beside those of the session that are there; the metadata comes back with each of them."""
        memories = _memories_of(events, session_id or "", plain(custom_metadata or {}))
        await asyncio.to_thread(self.memories.add, app_name, user_id, memories)

    async def remember(self, *, app_name: str, user_id: str, events: Sequence[Event], session_id: str) -> None:
        """Adds events as `add_events_to_memory` does; one in which an author says the same words again, in whatever
        session, takes the place of the earlier one."""
        memories = _memories_of(events, session_id, {})
        await asyncio.to_thread(self.memories.add, app_name, user_id, memories, once=True)

    @override
    async def add_memory(
        self,
        *,
        app_name: str,
        user_id: str,
        memories: Sequence[MemoryEntry],
        custom_metadata: Mapping[str, object] | None = None,
    ) -> None:
        """Adds memories as they are, or writes those of the same id anew, deleted ones too.

        One without an id is known by its content, so that writing it twice leaves one; without text it is an error.
        """
        by_name = {
            memory.name: memory for memory in (_memory_of_entry(entry, custom_metadata or {}) for entry in memories)
        }
        await asyncio.to_thread(self.memories.add, app_name, user_id, list(by_name.values()), revive=True)

    async def correct(self, *, app_name: str, user_id: str, old: str, memory: MemoryEntry) -> int:
        """Writes a memory that takes the place of those in which the user's old words stand: they are found with the
        time until which they held. Returns how many these are; without any nothing is written."""
        return await asyncio.to_thread(self.memories.correct, app_name, user_id, old, _memory_of_entry(memory, {}))

    @override
    async def search_memory(
        self, *, app_name: str, user_id: str, query: str, limit: int | None = None
    ) -> SearchMemoryResponse:
        """The best memories for a query, best first, each with its score in its metadata; the service's number of them
        where no limit is given.

        A database that is away finds nothing, and a warning is logged: an exception in a tool would end the agent's
        run.
        """
        try:
            hits = await self.find(app_name, user_id, query, self.limit if limit is None else limit)
        except StoreUnavailable as error:
            _logger.warning("no memories: %s", error)
            hits = []
        entries = [
            MemoryEntry(
                id=hit.memory.name,
                content=types.Content(role=hit.memory.role, parts=[types.Part(text=hit.memory.text)]),
                author=hit.memory.author,
                timestamp=hit.memory.timestamp,
                custom_metadata={**hit.memory.metadata, SCORE: similarity(hit.score)},
            )
            for hit in hits
        ]
        return SearchMemoryResponse(memories=entries)

    async def find(
        self, app_name: str, user_id: str, query: str, limit: int, *, without_session: str | None = None
    ) -> list[Remembered]:
        """Searches as `search_memory` does, without ADK's types, which cost more than the search, and without the
        memories of a session."""
        return await in_thread(
            partial(self.memories.search, app_name, user_id, query, limit, without_session=without_session)
        )

    async def preferences(self, app_name: str, user_id: str) -> list[Memory]:
        """A user's preferences, the newest first: memories whose metadata has ``"kind": "preference"``."""
        return await in_thread(partial(self.memories.preferences, app_name, user_id))

    @override
    async def delete_memory(self, *, app_name: str, user_id: str, memory_id: str | None = None) -> None:
        """Deletes what a search returned under an id; an id that is not there is passed over."""
        if memory_id:
            await asyncio.to_thread(self.memories.delete, app_name, user_id, name=memory_id)

    async def delete_session_from_memory(self, *, app_name: str, user_id: str, session_id: str) -> None:
        """Deletes all that was remembered of a session."""
        await asyncio.to_thread(self.memories.delete, app_name, user_id, session=session_id)

    async def delete_user_from_memory(self, *, app_name: str, user_id: str) -> None:
        """Deletes all that was remembered of a user."""
        await asyncio.to_thread(self.memories.delete, app_name, user_id)

    async def close(self) -> None:
        """Closes the file."""
        await asyncio.to_thread(self.memories.close)


def register_memory_service() -> None:
    """Puts ``hybrid://`` and ``hybrid+postgresql://`` on offer to ``adk web --memory_service_uri``; to be called in
    ``services.py``."""
    from google.adk.cli.service_registry import get_service_registry  # loads ADK's command line

    for scheme in (SCHEME, _POSTGRES):
        get_service_registry().register_memory_service(scheme, lambda uri, **extra: HybridMemoryService(uri, **extra))


def parse_address(uri: str, agents_dir: str | None = None) -> tuple[str, dict[str, str]]:
    """The path that a URI means, empty for none, or the URI of a database; and the service's own options.

    Raises:
        SearchIndexError: it is neither. The text does not repeat it, since a password may stand in it.
    """
    from aether_context.memory.library import is_postgres, without

    if "://" not in uri:
        return uri, {}
    address, options = without(uri, _OPTIONS)
    if is_postgres(database := address.removeprefix(f"{SCHEME}+")):
        return database, options
    parts = urlsplit(address)
    if parts.scheme not in (SCHEME, "file"):
        raise SearchIndexError(f"a memory URI begins with {SCHEME}:// or {_POSTGRES}://, not with {parts.scheme}://")
    if parts.query:
        unknown = parts.query.partition("=")[0]
        raise SearchIndexError(f"memory URI option {unknown!r} is unknown: it is one of {', '.join(_OPTIONS)}")
    path = unquote(parts.netloc + parts.path)
    return (str(Path(agents_dir or "") / path) if path else ""), options


def _memories_of(events: Sequence[Event], session: str, metadata: Mapping[str, JSON]) -> list[Memory]:
    """The memories of events, the last of those of one id."""
    memories = {event.id: memory for event in events if (memory := _memory_of(event, session, metadata))}
    return list(memories.values())


def _memory_of(event: Event, session: str, metadata: Mapping[str, JSON]) -> Memory | None:
    """The memory of an event; None of one without words, of thoughts, and of one that comes whole later."""
    from aether_context.memory import Memory

    if event.content is None or event.partial or not (text := text_of_parts(event.content)):
        return None
    try:
        timestamp = datetime.fromtimestamp(event.timestamp, UTC).isoformat()
    except (OverflowError, ValueError, OSError):
        timestamp = None
    return Memory(
        name=event.id,
        text=text,
        session=session,
        role=event.content.role or "user",
        author=event.author or None,
        timestamp=timestamp,
        metadata=metadata,
    )


def _memory_of_entry(entry: MemoryEntry, metadata: Mapping[str, object]) -> Memory:
    from aether_context.memory import Memory

    if not (text := text_of_parts(entry.content)):
        raise SearchIndexError(f"memory {entry.id or ''!r} has no text: give its content a part with one")
    return Memory(
        name=entry.id or "told-" + short(hash_json([text, entry.author, entry.timestamp]), 16),
        text=text,
        role=entry.content.role or "user",
        author=entry.author or None,
        timestamp=entry.timestamp,
        metadata=plain({**metadata, **entry.custom_metadata}),
    )


def text_of_parts(content: types.Content) -> str:
    """The texts of a content without thoughts, joined by spaces."""
    return " ".join(part.text for part in content.parts or () if part.text and not part.thought).strip()


# What was said in an invocation, added at its end.

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
        words = types.Content(role=event.content.role, parts=[types.Part(text=self._mask(text))])
        return Event(content=words, **values_of(event, "id", "invocation_id", "author", "timestamp"))
