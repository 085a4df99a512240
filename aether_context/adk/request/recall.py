"""Turns that are not sent whole any more, looked for again when a user asks, and the ranking of other candidates."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import threading
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextvars import ContextVar
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Any

from cachetools import LRUCache
from google.adk.memory.memory_entry import MemoryEntry
from google.genai import types
from pydantic import ValidationError

from aether_context.adk.bounds import LeftOut, Waits, failure, in_background, in_thread
from aether_context.adk.call import ReadCall, agent_key, masked_aside
from aether_context.adk.request.reader import found_memories
from aether_context.adk.request.spoken import LOADER, read_spoken
from aether_context.errors import EmbeddingError
from aether_context.pack import Candidate, Content, Identity
from aether_context.redaction import masker
from aether_context.retrieval import query_for
from aether_context.retrieval.ranking import LEAST_TOKENS
from aether_context.state import unique

if TYPE_CHECKING:
    from aether_context.retrieval.call_indexes import SessionIndexes
    from aether_context.retrieval.embedders import Embedder, Purpose, Vectors

_MOST_VECTORS, _MOST_USERS = 10_000, 64


class UserEmbedders:
    """Embedders by user: what one user's texts led to is kept apart from every other user's. 64 users' are kept."""

    def __init__(self) -> None:
        self._by_user: LRUCache[tuple[str, ...], Embedder] = LRUCache(_MOST_USERS)
        self._lock = threading.Lock()

    def of(self, embedder: Embedder, identity: Identity) -> Embedder:
        """An embedder as it is where it remembers nothing, else one that remembers for this user alone."""
        from aether_context.retrieval.embedders import CachedEmbedder

        if not isinstance(embedder, CachedEmbedder):
            return embedder
        with self._lock:
            key = (identity.app, identity.user, embedder.name)
            return self._by_user.setdefault(key, CachedEmbedder(embedder.embedder, max_texts=_MOST_VECTORS))


_INSTANT = ("static", "none")
"""Embedders that need no deadline."""

_FAILURES: ContextVar[list[str] | None] = ContextVar("failures", default=None)


class Recall:
    """Ranks candidates by words and meaning. Safe to share between sessions and event loops.

    Args:
        waits: what invocations have waited for.
    """

    def __init__(self, waits: Waits) -> None:
        self._embedders = UserEmbedders()
        self._waits = waits
        self._lock = threading.Lock()
        self._embedder = cache(_embedder)
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._loading: dict[str, Future[Vectors]] = {}

    @cached_property
    def _indexes(self) -> SessionIndexes:
        from aether_context.retrieval.call_indexes import SessionIndexes

        return SessionIndexes()

    def check(self, name: str) -> None:
        """Raises what is wrong with an embedder's name, or with what it needs."""
        if name not in _INSTANT:
            self._embedder(name)

    async def rank(self, read: ReadCall) -> ReadCall:
        """The input with scores for the candidates that have none."""
        source = read.source
        query = query_for(source)
        scored = all("similarity" in candidate.scores for candidate in source.candidates)
        if source.passthrough_reason or not query or scored:
            return read

        def rank(embedder: Embedder | None) -> tuple[Candidate, ...]:
            from aether_context.retrieval.call_indexes import ranked

            asked, redact = source.identity.last_event_time, read.call.policy.redact
            return ranked(source.candidates, query, asked=asked, embedder=embedder, redact=redact)

        candidates, encoder, problems = await self._compared(read, rank)
        return read.with_source(candidates=candidates, encoder=encoder, problems=source.problems + problems)

    async def turns(
        self,
        read: ReadCall,
        sent: Collection[int],
        frozen: Callable[[types.Content, str], Content],
        *,
        most: int | None = None,
    ) -> ReadCall:
        """The input with the turns that answer the request best, as they are where no turn was cut.

        Their room is as the square of the share that turns have in the history: where most of it is calls and their
        results, a search among turns brings little of it back, and the tail is worth more than they are. A room of
        little more than a payload's own words is none.

        Args:
            sent: positions of the contents that are sent whole, neither as a placeholder nor as an extract.
            frozen: the frozen form of a content, as it would be sent to a model.
            most: tokens for those turns where they are to have less than the policy's share of the window.
        """
        source, settings, model = read.source, read.call.policy.retrieval, read.call.model
        human, query = source.request.human, query_for(source)
        if not settings.recall or not settings.memory_k or source.passthrough_reason or human is None or not query:
            return read
        spoken = read.spoken
        if spoken is None:  # else an earlier look of this call has read it
            events, mask = tuple(read.call.context.session.events), read.call.policy.mask
            end, most_tokens = source.request.positions[human], source.window - source.kept_free
            spoken = await asyncio.to_thread(read_spoken, read.history, events, end, most=most_tokens, mask=mask)
            read = read._replace(spoken=spoken)
        history, agent = read.history, agent_key(source.identity)
        room = spoken.room if most is None else min(spoken.room, max(most, LEAST_TOKENS))
        entries = spoken.turns
        if all(int(entry.id.partition("#")[0]) in sent for entry in entries):
            entries = []
        gone = [frozen(history[at], model) for at in spoken.loading if at not in sent]
        known = {candidate.id for candidate in source.candidates}
        memories = [memory for memory in unique(loaded(gone)) if memory.id not in known]
        if not entries and not memories:
            return read
        asked, redact = source.identity.last_event_time, read.call.policy.redact
        limit = settings.most_memories(source.window)

        def found(embedder: Embedder | None) -> tuple[Candidate, ...]:
            from aether_context.retrieval.call_indexes import MORE_HITS, ranked, recalled

            hits = []
            if entries:
                # An index of this agent's session, which nobody else's turns are in.
                session = (*agent, redact, "" if embedder is None else embedder.name)
                hits = self._indexes.search(
                    session,
                    entries,
                    query,
                    MORE_HITS * limit,
                    asked=asked,
                    embedder=embedder or "none",
                    redact=masker(redact),
                )
            turns = recalled(hits, lambda place: frozen(history[place], model), most=limit, tokens=room)
            return (*ranked(memories, query, asked=asked, embedder=embedder, redact=redact), *turns)

        candidates, encoder, problems = await self._compared(read, found)
        return read.with_source(
            candidates=(*source.candidates, *candidates),
            searched=len(entries),
            encoder=source.encoder if encoder == "none" else encoder,
            problems=source.problems + problems,
        )

    async def _compared(
        self, read: ReadCall, act: Callable[[Embedder | None], tuple[Candidate, ...]]
    ) -> tuple[tuple[Candidate, ...], str, tuple[str, ...]]:
        """What an act gives with the policy's embedder, or with the packaged one where that fails or takes too long.

        What takes too long goes on behind the call: a model is loaded and a history embedded for the calls to come.

        Returns:
            It, what compared the meanings, and what failed.
        """
        policy = read.call.policy
        name, seconds = policy.retrieval.embedder, policy.retrieval.memory_timeout_seconds
        failures: list[str] = []
        token = _FAILURES.set(failures)
        with self._lock:
            if self._process != os.getpid():  # a forked process has no threads of its parent
                self._begin()
        try:
            embedder = self._embedder(name)
            if embedder is None or name in _INSTANT:
                return await asyncio.to_thread(act, embedder), "none" if embedder is None else embedder.name, ()
            embedder = self._embedders.of(embedder, read.source.identity)
            query = await masked_aside(policy.mask, query_for(read.source))
            within = partial(self._waits.within, name, read.call.invocation.invocation_id, seconds)
            if embedder.local and not await self._is_loaded(name, embedder, query, within):
                problem = "is still loading"
            else:
                embedder = embedder if embedder.local else _Watched(embedder)
                found = await within(in_thread(partial(act, embedder)))
                return found, embedder.name, tuple(dict.fromkeys(failures))
        except LeftOut:
            problem = "is left out for a while"
        except TimeoutError:
            problem = f"takes longer than {seconds:g} s"
        except BaseException as error:  # whatever an embedder raises
            problem = f"failed ({type(failure(error)).__name__})"
        finally:
            _FAILURES.reset(token)
        instead = None if name in _INSTANT else self._embedder("static")
        ranked_by = "words alone" if instead is None else "the model in the package"
        candidates = await asyncio.to_thread(act, instead)
        failures.append(f"the embedder {name} {problem}: ranked by {ranked_by}")
        return candidates, "none" if instead is None else instead.name, tuple(dict.fromkeys(failures))

    async def _is_loaded(
        self, name: str, embedder: Embedder, query: str, within: Callable[[Coroutine[Any, Any, Any]], Awaitable[Any]]
    ) -> bool:
        """Whether an embedder has answered yet. The call that asks it first waits for so long, later ones do not.

        Raises:
            EmbeddingError: it cannot be loaded; the next call tries again.
        """
        with self._lock:
            loading = self._loading.get(name)
            begun = loading is not None
            if loading is None:
                loading = self._loading[name] = in_background(partial(embedder.embed, [query], purpose="query"))
        if not loading.done():
            if begun:
                return False
            with contextlib.suppress(Exception):  # which `loading` holds, too
                await within(in_thread(loading.result))
            if not loading.done():
                return False
        if loading.exception() is not None:
            with self._lock:
                self._loading.pop(name, None)
        loading.result()
        return True


def _embedder(name: str) -> Embedder | None:
    from aether_context.retrieval.embedders import embedder_for

    return embedder_for(name)


class _Watched:
    """A remote embedder whose failures are noted: an index covers for them, and a manifest has to say so.

    They are noted in the context of the call, since an index outlives the call that it is made for.
    """

    local = False

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self.name = embedder.name

    def embed(self, texts: Sequence[str], *, purpose: Purpose = "entry") -> Vectors:
        try:
            return self._embedder.embed(texts, purpose=purpose)
        except EmbeddingError as error:
            failures = _FAILURES.get()
            if failures is not None:
                failures.append(f"the embedder failed, the static one stands in: {error}")
            raise


def loaded(contents: Iterable[Content]) -> Iterator[Candidate]:
    """The memories that ADK's ``load_memory`` brought into a conversation."""

    def entries() -> Iterator[MemoryEntry]:
        for content in contents:
            for response in content.responses:
                result = json.loads(response.text) if response.name == LOADER else None
                result = result.get("result", result) if isinstance(result, dict) else None
                memories = result.get("memories") if isinstance(result, dict) else None
                for memory in memories if isinstance(memories, list) else ():
                    with contextlib.suppress(ValidationError):
                        yield MemoryEntry.model_validate(memory)

    return found_memories(entries())  # which looks at the first ones alone
