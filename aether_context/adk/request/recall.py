"""Turns that are not sent whole any more, looked for again when a user asks, and the ranking of other candidates."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import replace
from functools import cache, cached_property, lru_cache
from typing import TYPE_CHECKING

from cachetools import LRUCache
from google.adk.events.event import Event
from google.adk.memory.memory_entry import MemoryEntry
from google.genai import types
from pydantic import ValidationError

from aether_context.adk.call import Outline, ReadCall, agent_key
from aether_context.adk.request.reader import found_memories
from aether_context.canonical import hash_text
from aether_context.conversation.quotes import said as quoted_words
from aether_context.errors import EmbeddingError
from aether_context.pack import RECALLED, Candidate, Content, Identity, recalled_id
from aether_context.policy import MEMORY_FILL, PackPolicy
from aether_context.redaction import masker
from aether_context.retrieval import query_for
from aether_context.state import unique
from aether_context.store import PackStore

if TYPE_CHECKING:
    from aether_context.retrieval import Entry
    from aether_context.retrieval.call_indexes import SessionIndexes
    from aether_context.retrieval.embedders import Embedder, Purpose, Vectors
    from aether_context.store.vectors import UserVectors

_MOST_VECTORS, _MOST_SHELVES = 50_000, 512
_MOST_QUERIES = 64
_SHARE_OF_DEADLINE = 0.25


class Shelves:
    """Embedders by user. What one user's texts led to is kept apart from every other user's.

    In memory 50,000 vectors of 512 users are kept, those of the user in use aside; where a policy records texts, the
    store keeps them, too.

    Args:
        later: carries out a write to the store, off this path.
    """

    def __init__(self, store: PackStore, later: Callable[[Callable[[], None]], None]) -> None:
        self._store = store
        self._later = later
        # A shelf counts as many as it holds, within bounds: one user's may fill the cache, which holds at most so many.
        self._shelves: LRUCache[tuple[str, ...], tuple[UserVectors, Embedder]] = LRUCache(
            _MOST_VECTORS, lambda shelf: min(max(len(shelf[0]), _MOST_VECTORS // _MOST_SHELVES), _MOST_VECTORS)
        )
        self._lock = threading.Lock()

    def of(self, embedder: Embedder, identity: Identity, policy: PackPolicy) -> Embedder:
        """An embedder as it is where it remembers nothing, else one that remembers for this user alone."""
        from aether_context.retrieval.embedders import CachedEmbedder, StoredVectors
        from aether_context.store.vectors import UserVectors

        if not isinstance(embedder, CachedEmbedder):
            return embedder
        key = (identity.app, identity.user, embedder.name, policy.record)
        with self._lock:
            # Taken out and put again, since it has grown, and its old size would count as well.
            shelf = self._shelves.pop(key, None)
            if shelf is None:
                vectors = UserVectors(
                    identity.app,
                    identity.user,
                    embedder.name,
                    self._store if policy.record == "full" else None,
                    self._later,
                    wait_seconds=_SHARE_OF_DEADLINE * policy.retrieval.memory_timeout_seconds,
                )
                shelf = vectors, StoredVectors(CachedEmbedder(embedder.embedder, max_texts=_MOST_QUERIES), vectors)
            self._shelves[key] = shelf
        return shelf[1]


_INSTANT = ("static", "none")
"""Embedders that need no deadline."""

_LOADER = "load_memory"
_TOKEN_CHARACTERS = 4
_LEAST_TOKENS = 256
"""Room for recalled turns under which none are: the frame of a payload and the text that explains it take 150."""
_LONG_TURN, _LONGEST_REMEMBERED = 600, 4_000
_SENTENCE = re.compile(r"[^\n.!?]*(?:[.!?]+|\n|$)\s*")

_FAILURES: ContextVar[list[str] | None] = ContextVar("failures", default=None)


class Recall:
    """Ranks candidates by words and meaning. Safe to share between sessions and event loops.

    Args:
        shelves: keep vectors that are costly to make.
    """

    def __init__(self, shelves: Shelves) -> None:
        self._shelves = shelves
        self._embedder = cache(_embedder)

    @cached_property
    def _sessions(self) -> SessionIndexes:
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

            asked, redact = source.identity.last_event_time, read.call.policy.retrieval.redact_before_retrieval
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
        earlier = read.history[: source.request.positions[human]]
        outlines = read.outlines
        if outlines is None:  # else an earlier look of this call has read them
            outlines = tuple(outline_of(content) for content in earlier)
            read = replace(read, outlines=outlines)
        room = _room(earlier, outlines, MEMORY_FILL * source.window)
        room = room if most is None else min(room, max(most, _LEAST_TOKENS))
        entries = spoken_turns(outlines, read.call.context.session.events) if room else []
        if all(int(entry.id.partition("#")[0]) in sent for entry in entries):
            entries = []
        gone = [frozen(earlier[at], model) for at, outline in enumerate(outlines) if outline.loads and at not in sent]
        known = {candidate.id for candidate in source.candidates}
        memories = [memory for memory in unique(loaded(gone)) if memory.id not in known]
        if not entries and not memories:
            return read
        asked, redact = source.identity.last_event_time, settings.redact_before_retrieval

        def found(embedder: Embedder | None) -> tuple[Candidate, ...]:
            from aether_context.retrieval.call_indexes import ranked, scores_of

            turns: list[Candidate] = []
            characters = room * _TOKEN_CHARACTERS
            hits = []
            if entries:
                # An index of this agent's session, which nobody else's turns are in.
                session = (*agent_key(source.identity), redact, "" if embedder is None else embedder.name)
                limit = settings.most_memories(source.window)
                hits = self._sessions.search(
                    session, entries, query, limit, asked=asked, embedder=embedder or "none", redact=masker(redact)
                )
            for hit in hits:
                if len(hit.text) <= characters:
                    characters -= len(hit.text)
                    place, passage, number = hit.id.partition("#")
                    content = frozen(earlier[int(place)], model)
                    turns.append(
                        Candidate(
                            id=f"{recalled_id(int(place), content)}{passage}{number}",
                            layer="memory",
                            source=RECALLED,
                            text=hit.text,
                            speaker=hit.entry.speaker or "",
                            digest=hash_text(hit.entry.searched),
                            time=hit.entry.time,
                            scores=scores_of(hit),
                        )
                    )
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
        """What an act gives with the policy's embedder, or without one where that fails or takes too long.

        Returns:
            It, what compared the meanings, and what failed.
        """
        policy = read.call.policy
        name = policy.retrieval.embedder
        failures: list[str] = []
        token = _FAILURES.set(failures)
        limit = None if name in _INSTANT else policy.retrieval.memory_timeout_seconds
        try:
            embedder = self._embedder(name)
            if embedder is not None:
                embedder = self._shelves.of(embedder, read.source.identity, policy)
                embedder = embedder if embedder.local else _Watched(embedder)
            candidates = await asyncio.wait_for(asyncio.to_thread(act, embedder), limit)
            encoder = "none" if embedder is None else embedder.name
        except Exception as error:  # whatever an embedder raises, and a timeout
            failures.append(f"the embedder {name} failed ({type(error).__name__}): ranked by words alone")
            candidates, encoder = await asyncio.to_thread(act, None), "none"
        finally:
            _FAILURES.reset(token)
        return candidates, encoder, tuple(dict.fromkeys(failures))


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


def spoken_turns(history: Sequence[Outline], events: Sequence[Event]) -> list[Entry]:
    """The turns of a history that are words alone, with the time and the author of the events that they came from.

    Ids are places in the history; long turns come in passages, whose ids go on with a number.
    A content without an event, like an instruction or a summary of the host's, is no turn. Of events that say the same
    the latest belong to the latest contents, since histories lose their beginning first. What ADK quotes of another
    agent belongs to that agent's event; a user's message that only looks like that belongs to the user's.
    """
    waiting: dict[str, dict[str, list[tuple[int, Event]]]] = {}
    for number, event in enumerate(events):
        if event.content is not None and not event.partial and (text := outline_of(event.content).words):
            waiting.setdefault(text, {}).setdefault(event.author, []).append((number, event))
    latest_first = range(len(history) - 1, -1, -1)
    sources: dict[int, tuple[str, Event]] = {}
    for place in latest_first:
        text, quoted = history[place].words, history[place].quoted
        if quoted is not None and text not in waiting and (left := waiting.get(quoted.words, {}).get(quoted.agent)):
            sources[place] = (quoted.words, left.pop()[1])
    for place in latest_first:
        text = history[place].words
        if place not in sources and (of_text := [left for left in waiting.get(text, {}).values() if left]):
            sources[place] = (text, max(of_text, key=lambda left: left[-1][0]).pop()[1])
    entries: list[Entry] = []
    for place, (text, event) in sorted(sources.items()):
        turn = _turn if len(text) <= _LONGEST_REMEMBERED else _turn.__wrapped__
        entries += turn(place, text, event.timestamp, event.author)
    return entries


@lru_cache(maxsize=16_384)
def _turn(place: int, text: str, time: float, author: str) -> tuple[Entry, ...]:
    """One turn, in passages where it is long. A history that grew gives the same entries, not only equal ones."""
    from aether_context.retrieval import Entry

    pieces = passages(text)
    names = [str(place)] if len(pieces) == 1 else [f"{place}#{number}" for number in range(1, len(pieces) + 1)]
    return tuple(
        Entry(id=name, text=piece, time=time, speaker=author, thread="")
        for name, piece in zip(names, pieces, strict=True)
    )


def loaded(contents: Iterable[Content]) -> Iterator[Candidate]:
    """The memories that ADK's ``load_memory`` brought into a conversation."""

    def entries() -> Iterator[MemoryEntry]:
        for content in contents:
            for response in content.responses:
                result = json.loads(response.text) if response.name == _LOADER else None
                result = result.get("result", result) if isinstance(result, dict) else None
                memories = result.get("memories") if isinstance(result, dict) else None
                for memory in memories if isinstance(memories, list) else ():
                    with contextlib.suppress(ValidationError):
                        yield MemoryEntry.model_validate(memory)

    return found_memories(entries())  # which looks at the first ones alone


def passages(text: str, most: int = _LONG_TURN) -> list[str]:
    """A text in pieces of at most so many characters, each of whole lines or sentences while those are no longer."""
    if len(text) <= most:
        return [text.strip()] if text.strip() else []
    pieces = [""]
    for sentence in _SENTENCE.findall(text):
        for start in range(0, len(sentence), most):
            part = sentence[start : start + most]
            if len(pieces[-1]) + len(part) > most:
                pieces.append("")
            pieces[-1] += part
    return [piece.strip() for piece in pieces if piece.strip()]


def outline_of(content: types.Content) -> Outline:
    size, exchanges, loads = 1, False, False
    texts: list[str] = []
    for part in content.parts or ():
        if part.text:
            size += len(part.text)
            if not part.thought:
                texts.append(part.text)
        call, response = part.function_call, part.function_response
        if call is None and response is None:
            continue
        exchanges = True
        loads = loads or (response is not None and response.name == _LOADER)
        for values in (call and call.args, response and response.response):
            for value in values.values() if values else ():
                if isinstance(value, str):
                    size += len(value)
    if exchanges or not texts:
        return Outline("", None, size, loads)
    return Outline("\n".join(texts).strip(), quoted_words(texts), size, loads)


def _room(history: Sequence[types.Content], outlines: Sequence[Outline], most: float) -> int:
    """Tokens for recalled turns, of at most so many; 0 where they would be too few for any."""
    spoken = sum(len(outline.words) for outline in outlines)

    def room(whole: int) -> int:
        tokens = int((spoken / max(1, whole)) ** 2 * most)
        return tokens if tokens >= _LEAST_TOKENS else 0

    # To write out calls and results takes long, and mostly they are so many that their texts alone leave too little.
    if not room(sum(outline.least_characters for outline in outlines)):
        return 0
    whole = len(history)
    for part in (part for content in history for part in content.parts or ()):
        call, response = part.function_call, part.function_response
        exchanged = (call and call.args, response and response.response)
        whole += len(part.text or "") + sum(len(repr(value)) for value in exchanged if value)
    return room(whole)
