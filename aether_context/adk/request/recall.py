"""Turns that are not sent whole any more, looked for again when a user asks, and the ranking of other candidates."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextvars import ContextVar
from functools import lru_cache
from typing import NamedTuple, TypeVar

from cachetools import LRUCache
from google.adk.events.event import Event
from google.adk.memory.memory_entry import MemoryEntry
from google.genai import types
from pydantic import ValidationError

from aether_context.adk.call import ReadCall, agent_key
from aether_context.adk.request.reader import found_memories
from aether_context.canonical import hash_text
from aether_context.conversation.quotes import Said
from aether_context.conversation.quotes import said as quoted_words
from aether_context.errors import EmbeddingError
from aether_context.pack import RECALLED, Candidate, Content, Identity, PackInput, recalled_id
from aether_context.policy import MEMORY_FILL, PackPolicy, RetrievalSettings
from aether_context.redaction import masker
from aether_context.retrieval import Entry, Hit, query_for
from aether_context.retrieval.call_indexes import SessionIndexes, ranked, told
from aether_context.retrieval.embedders import CachedEmbedder, Embedder, Purpose, StoredVectors, Vectors, embedder_for
from aether_context.state import unique
from aether_context.store import PackStore
from aether_context.store.vectors import UserVectors

# Vectors that were costly to make, kept for the user whose texts they are of.

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
        self._held: LRUCache[tuple[str, ...], tuple[UserVectors, Embedder]] = LRUCache(_MOST_VECTORS, _shelf_size)
        self._lock = threading.Lock()

    def of(self, embedder: Embedder, identity: Identity, policy: PackPolicy) -> Embedder:
        """An embedder as it is where it remembers nothing, else one that remembers for this user alone."""
        if not isinstance(embedder, CachedEmbedder):
            return embedder
        key = (identity.app, identity.user, embedder.name, policy.record)
        with self._lock:
            # Taken out and put again, since it has grown, and its old size would count as well.
            shelf = self._held.pop(key, None) or self._made(embedder.embedder, identity, policy)
            self._held[key] = shelf
        return shelf[1]

    def _made(self, embedder: Embedder, identity: Identity, policy: PackPolicy) -> tuple[UserVectors, Embedder]:
        vectors = UserVectors(
            identity.app,
            identity.user,
            embedder.name,
            self._store if policy.record == "full" else None,
            self._later,
            wait_seconds=_SHARE_OF_DEADLINE * policy.retrieval.memory_timeout_seconds,
        )
        return vectors, StoredVectors(CachedEmbedder(embedder, max_texts=_MOST_QUERIES), vectors)


def _shelf_size(shelf: tuple[UserVectors, Embedder]) -> int:
    """Vectors of a user, within what the cache counts: one user's may fill it, and it holds at most so many users."""
    return min(max(len(shelf[0]), _MOST_VECTORS // _MOST_SHELVES), _MOST_VECTORS)


_T = TypeVar("_T")
_INSTANT = ("static", "none")
"""Embedders that need no deadline."""

_LOADER = "load_memory"
_TOKEN_CHARACTERS = 4
_LEAST_TOKENS = 256
"""Room for recalled turns under which none are: the frame of a payload and the text that explains it take 150."""
_LONG_TURN, _LONGEST_HELD = 600, 4_000
_SENTENCE = re.compile(r"[^\n.!?]*(?:[.!?]+|\n|$)\s*")

_FAILURES: ContextVar[list[str] | None] = ContextVar("failures", default=None)


class Recall:
    """Ranks candidates by words and meaning. Safe to share between sessions and event loops.

    Args:
        shelves: keep vectors that are costly to make.
    """

    def __init__(self, shelves: Shelves) -> None:
        self._shelves = shelves
        self._sessions = SessionIndexes()
        self._embedders: dict[str, Embedder | None] = {}

    def check(self, name: str) -> None:
        """Raises what is wrong with an embedder's name, or with what it needs."""
        if name not in _INSTANT:
            self._embedder(name)

    async def rank(self, read: ReadCall) -> ReadCall:
        """The input with scores for the candidates that have none."""
        source, policy = read.source, read.call.policy
        query = query_for(source)
        if source.passthrough_reason or not query or all("similarity" in one.scores for one in source.candidates):
            return read

        def scored(embedder: Embedder | None) -> tuple[Candidate, ...]:
            asked, redact = source.identity.last_event_time, policy.retrieval.redact_before_retrieval
            return ranked(source.candidates, query, asked=asked, embedder=embedder, redact=redact)

        candidates, encoder, problems = await self._compared(source, policy, scored)
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
        source, policy, history = read.source, read.call.policy, read.history
        human, query, settings, model = source.request.human, query_for(source), policy.retrieval, read.call.model
        if not settings.recall or not settings.memory_k or source.passthrough_reason or human is None or not query:
            return read
        earlier = history[: source.request.positions[human]]
        told = [told_of(content) for content in earlier]
        room = _room(earlier, told, MEMORY_FILL * source.window)
        room = room if most is None else min(room, max(most, _LEAST_TOKENS))
        entries = said(told, read.call.context.session.events) if room else []
        if all(_place(entry.id) in sent for entry in entries):
            entries = []
        known = {candidate.id for candidate in source.candidates}
        gone = [frozen(earlier[at], model) for at, content in enumerate(told) if content.loads and at not in sent]
        memories = [memory for memory in unique(loaded(gone)) if memory.id not in known]
        if not entries and not memories:
            return read

        def found(embedder: Embedder | None) -> tuple[Candidate, ...]:
            asked, redact = source.identity.last_event_time, settings.redact_before_retrieval
            hits = self._search(source, settings, entries, embedder) if entries else []
            turns: list[Candidate] = []
            characters = room * _TOKEN_CHARACTERS
            for hit in hits:
                if len(hit.text) <= characters:
                    characters -= len(hit.text)
                    turns.append(_candidate(hit, frozen(history[_place(hit.id)], model)))
            return (*ranked(memories, query, asked=asked, embedder=embedder, redact=redact), *turns)

        candidates, encoder, problems = await self._compared(source, policy, found)
        return read.with_source(
            candidates=(*source.candidates, *candidates),
            searched=len(entries),
            encoder=source.encoder if encoder == "none" else encoder,
            problems=source.problems + problems,
        )

    def _search(
        self, source: PackInput, settings: RetrievalSettings, entries: Sequence[Entry], embedder: Embedder | None
    ) -> list[Hit]:
        """The best turns of a session, by an index that nobody else's turns are in."""
        name = embedder.name if embedder is not None else ""
        return self._sessions.search(
            (*agent_key(source.identity), settings.redact_before_retrieval, name),
            entries,
            query_for(source),
            settings.most_memories(source.window),
            asked=source.identity.last_event_time,
            embedder=embedder or "none",
            redact=masker(settings.redact_before_retrieval),
        )

    async def _compared(
        self, source: PackInput, policy: PackPolicy, act: Callable[[Embedder | None], _T]
    ) -> tuple[_T, str, tuple[str, ...]]:
        """What an act gives with the policy's embedder, or without one where that fails or takes too long; with it
        what compared the meanings, and what failed."""
        settings = policy.retrieval
        failures: list[str] = []
        token = _FAILURES.set(failures)
        limit = None if settings.embedder in _INSTANT else settings.memory_timeout_seconds
        try:
            embedder = self._embedder_of(source, policy)
            value = await asyncio.wait_for(asyncio.to_thread(act, embedder), limit)
            encoder = embedder.name if embedder is not None else "none"
        except Exception as error:  # whatever an embedder raises, and a timeout
            failures.append(f"the embedder {settings.embedder} failed ({type(error).__name__}): ranked by words alone")
            value, encoder = await asyncio.to_thread(act, None), "none"
        finally:
            _FAILURES.reset(token)
        return value, encoder, tuple(dict.fromkeys(failures))

    def _embedder_of(self, source: PackInput, policy: PackPolicy) -> Embedder | None:
        """The policy's embedder for the user whose texts it is to compare."""
        found = self._embedder(policy.retrieval.embedder)
        if found is None:
            return None
        found = self._shelves.of(found, source.identity, policy)
        return found if found.local else _Watched(found)

    def _embedder(self, name: str) -> Embedder | None:
        if name not in self._embedders:
            self._embedders[name] = embedder_for(name)
        return self._embedders[name]


class _Watched:
    """A remote embedder whose failures are noted: an index covers for them, and a manifest has to say so."""

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


def said(history: Sequence[Told], events: Sequence[Event]) -> list[Entry]:
    """The turns of a history that are words alone, with the time and the author of the events that they came from.

    Ids are places in the history; long turns come in passages, whose ids go on with a number.
    A content without an event, like an instruction or a summary of the host's, is no turn. Of events that say the same
    the latest belong to the latest contents, since histories lose their beginning first. What ADK quotes of another
    agent belongs to that agent's event; a user's message that only looks like that belongs to the user's.
    """
    waiting: dict[str, dict[str, list[tuple[int, Event]]]] = {}
    for number, event in enumerate(events):
        if event.content is not None and not event.partial and (text := words_of(event.content)):
            waiting.setdefault(text, {}).setdefault(event.author, []).append((number, event))
    latest_first = range(len(history) - 1, -1, -1)
    sources: dict[int, tuple[str, Event]] = {}
    for place in latest_first:
        text, quoted = history[place].words, history[place].quoted
        if quoted is not None and text not in waiting and (left := waiting.get(quoted.words, {}).get(quoted.agent)):
            sources[place] = (quoted.words, left.pop()[1])
    for place in latest_first:
        text = history[place].words
        if place not in sources and (found := [left for left in waiting.get(text, {}).values() if left]):
            sources[place] = (text, max(found, key=lambda left: left[-1][0]).pop()[1])
    return [entry for place in sorted(sources) for entry in _entries(place, *sources[place])]


def _entries(place: int, text: str, source: Event) -> tuple[Entry, ...]:
    turn = _turn if len(text) <= _LONGEST_HELD else _turn.__wrapped__
    return turn(place, text, source.timestamp, source.author)


@lru_cache(maxsize=16_384)
def _turn(place: int, text: str, time: float, author: str) -> tuple[Entry, ...]:
    """One turn, in passages where it is long. A history that grew gives the same entries, not only equal ones."""
    pieces = passages(text)
    names = [str(place)] if len(pieces) == 1 else [f"{place}#{number}" for number in range(1, len(pieces) + 1)]
    return tuple(
        Entry(id=name, text=piece, time=time, speaker=author, thread="")
        for name, piece in zip(names, pieces, strict=True)
    )


def loaded(contents: Iterable[Content]) -> Iterator[Candidate]:
    """The memories that ADK's ``load_memory`` brought into a conversation."""
    return found_memories(_loaded_entries(contents))


def _loaded_entries(contents: Iterable[Content]) -> Iterator[MemoryEntry]:
    for content in contents:
        for response in content.responses:
            held = json.loads(response.text) if response.name == _LOADER else None
            held = held.get("result", held) if isinstance(held, dict) else None
            memories = held.get("memories") if isinstance(held, dict) else None
            for one in memories if isinstance(memories, list) else ():
                try:
                    yield MemoryEntry.model_validate(one)
                except ValidationError:
                    continue


def passages(text: str, most: int = _LONG_TURN) -> list[str]:
    """A text in pieces of at most so many characters, each of whole lines or sentences while those are no longer."""
    if len(text) <= most:
        return [text.strip()] if text.strip() else []
    pieces: list[str] = []
    held = ""
    for piece in _pieces(text, most):
        if held and len(held) + len(piece) > most:
            pieces.append(held)
            held = ""
        held += piece
    return [piece.strip() for piece in (*pieces, held) if piece.strip()]


def _pieces(text: str, most: int) -> Iterator[str]:
    """Sentences and lines with what is behind them, the long ones in parts."""
    for sentence in _SENTENCE.findall(text):
        for start in range(0, len(sentence), most):
            yield sentence[start : start + most]


def _place(id: str) -> int:
    return int(id.partition("#")[0])


def words_of(content: types.Content) -> str:
    """The text of a content without thoughts; nothing of one that calls or answers a call."""
    return told_of(content).words


class Told(NamedTuple):
    """What of a content can be told at a glance.

    ``words`` are as of `words_of`, ``quoted`` what they quote of another agent, ``least_characters`` what `_characters`
    gives, or less: of calls and answers only the texts that stand at their top. ``loads`` is whether it holds what
    ``load_memory`` found.
    """

    words: str
    quoted: Said | None
    least_characters: int
    loads: bool


def told_of(content: types.Content) -> Told:
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
        for held in (call and call.args, response and response.response):
            for one in held.values() if held else ():
                size += len(one) if isinstance(one, str) else 0
    if exchanges or not texts:
        return Told("", None, size, loads)
    return Told("\n".join(texts).strip(), quoted_words(texts), size, loads)


def _room(history: Sequence[types.Content], told: Sequence[Told], most: float) -> int:
    """Tokens for recalled turns, of at most so many; 0 where they would be too few for any.

    To write out calls and results takes long, and mostly they are so many that their texts alone leave too little.
    """
    spoken = sum(len(one.words) for one in told)

    def share(whole: int) -> int:
        return int((spoken / max(1, whole)) ** 2 * most)

    if share(sum(one.least_characters for one in told)) < _LEAST_TOKENS:
        return 0
    room = share(sum(map(_characters, history)))
    return room if room >= _LEAST_TOKENS else 0


def _characters(content: types.Content) -> int:
    """How long a content is, what it calls and answers included; at least 1."""
    size = 1
    for part in content.parts or ():
        call, response = part.function_call, part.function_response
        exchanged = (call and call.args, response and response.response)
        size += len(part.text or "") + sum(len(repr(value)) for value in exchanged if value)
    return size


def _candidate(hit: Hit, content: Content) -> Candidate:
    entry = hit.entry
    place, passage, number = entry.id.partition("#")
    return Candidate(
        id=f"{recalled_id(int(place), content)}{passage}{number}",
        layer="memory",
        source=RECALLED,
        text=entry.text,
        speaker=entry.speaker or "",
        digest=hash_text(f"{entry.speaker}: {entry.text}" if entry.speaker else entry.text),
        time=entry.time,
        scores=told(hit),
    )
