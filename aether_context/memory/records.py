"""A memory as it is stored and as it is ranked."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from aether_context.canonical import JSON, canonical_json
from aether_context.errors import EmbeddingError
from aether_context.pack import UNTIL
from aether_context.plans.spellings import is_preference
from aether_context.retrieval import terms
from aether_context.retrieval.corrections import is_about_another, replaces
from aether_context.retrieval.embedders import Embedder, Rows, vectors_of
from aether_context.retrieval.pool import Entry, Places, Pool
from aether_context.tokens.counters import sound

logger = logging.getLogger("aether_context")

StoredRecords: TypeAlias = Mapping[tuple[int, int], str | None]
"""Records by the hashes of name and session; None of deleted ones."""

CORRECTED = "corrected_at"
"""In a memory's metadata: when it was corrected by name, ISO 8601."""
_LONGEST_PREFERENCE = 2_000
_MOST_CORRECTED, _LEAST_CORRECTED = 5, 0.4
"""So many of the best hits bring what was said later against them, if they have this share of the best score."""
_MOST_READ = 2_000
"""Memories of an owner whose records stay read between searches, and as many as one search reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """A remembered text.

    Attributes:
        name: unique among those of its user and session.
        session: the conversation it was said in, empty where it belongs to none.
        timestamp: ISO 8601.
        metadata: plain JSON that goes with it.
    """

    name: str
    text: str
    session: str = ""
    role: str = "user"
    author: str | None = None
    timestamp: str | None = None
    metadata: Mapping[str, JSON] = field(default_factory=dict)

    @property
    def time(self) -> float | None:
        """Seconds since 1970, in UTC where the timestamp names no zone; None where it is none."""
        return _seconds(self.timestamp)

    @property
    def until(self) -> Mapping[str, float]:
        """Until when it held, as a score of its candidate, where it was corrected by name."""
        time = _seconds(self.metadata.get(CORRECTED))
        return {} if time is None else {UNTIL: time}

    @property
    def record(self) -> str:
        """All of it as JSON, which `memory_of` reads, without lone surrogates, which have no place in UTF-8."""
        fields = {name: getattr(self, name) for name in _FIELDS}
        texts = {name: sound(value) for name, value in fields.items() if isinstance(value, str)}
        return canonical_json(fields | texts | {"metadata": dict(self.metadata)})

    @property
    def words(self) -> tuple[str | None, str]:
        """Its author and text, without case and white space, by which it is known to say the same as another one."""
        return self.author, "".join(self.text.casefold().split()).rstrip(".!")

    @property
    def entry(self) -> Entry:
        """It as it is ranked."""
        name = f"{len(self.session)}:{self.session}{self.name}"
        return Entry(id=name, text=self.text, time=self.time, speaker=self.author, thread=self.session or None)


def _seconds(timestamp: object) -> float | None:
    try:
        moment = datetime.fromisoformat(str(timestamp or ""))
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


_FIELDS = tuple(field.name for field in fields(Memory))


class MemoryRow(NamedTuple):
    """A memory as it is kept, known by the hashes of its name and session; and what it is searched by."""

    named: int
    thread: int
    standing: bool
    """Whether it is a preference, and short enough for one."""
    said_at: float | None
    record: str
    terms: bytes = b""
    embedder: int = -1
    vector: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """A memory that was found, with the score it is ranked by and what that was made of, as of `Hit`."""

    memory: Memory
    score: float
    scores: Mapping[str, float] = field(default_factory=dict)


class Candidates:
    """Memories of one owner as they are ranked, in the order of their numbers."""

    def __init__(self, embedder: Embedder | None) -> None:
        self.numbers: Places = np.empty(0, dtype=np.int64)
        self.lacking = 0
        """So many had no vector of this embedder when they were taken in."""
        self.version: tuple[object, ...] = ()
        """What was read last."""
        self._pool, self._embedder, self._made_by = Pool(embedder), embedder, made_by(embedder)
        self._read: dict[int, tuple[Memory, Entry]] = {}

    def take(self, rows: Sequence[tuple[int, int, float | None, bytes, int, bytes | None]]) -> None:
        """Takes in the next: number, thread, time, terms, what made the vector, and the vector."""
        if not rows:
            return
        numbers, threads, times, hashes, makers, vectors = zip(*rows, strict=True)
        pairs = zip(makers, vectors, strict=True)
        blobs = [vector if vector and maker == self._made_by else b"" for maker, vector in pairs]
        width = self._pool.vectors.shape[1] or max(map(len, blobs))
        joined = b"".join(vector if len(vector) == width else bytes(width) for vector in blobs)
        table = np.frombuffer(joined, dtype=np.int8).reshape(len(blobs), width)
        self._pool.extend(hashes, table, times, threads)
        self.numbers = np.concatenate([self.numbers, np.array(numbers, dtype=np.int64)])
        self.lacking += sum(maker != self._made_by for maker in makers)

    def keep(self, mask: NDArray[np.bool_]) -> None:
        """Forgets all others."""
        self._pool.keep(mask)
        self.numbers, self._read = self.numbers[mask], {}

    def ranked(
        self,
        question: str,
        vector: Rows,
        limit: int,
        without_thread: int | None,
        records_of: Callable[[list[int]], Mapping[int, str]],
    ) -> list[Remembered]:
        """The best, best first.

        Args:
            vector: of the query, as of `vectors_of`.
            without_thread: the number of a session whose memories are no hits; they correct others all the same.
            records_of: gives the records of numbers.
        """
        if len(self._read) > _MOST_READ:
            self._read = {}
        cached = self._read  # a record that is written anew has another number
        numbers_by_id: dict[str, int] = {}

        def entries(places: Places) -> list[Entry]:
            numbers = self.numbers[places].tolist()
            if new := [number for number in numbers if number not in cached]:
                records = records_of(new)
                memories = {number: memory_of(records[number]) for number in new}
                cached.update((number, (memory, memory.entry)) for number, memory in memories.items())
            listed = [cached[number][1] for number in numbers]
            numbers_by_id.update(zip((entry.id for entry in listed), numbers, strict=True))
            return listed

        plain, is_named = self._pool.named(question)
        if vector.size and plain != question:
            with contextlib.suppress(EmbeddingError):  # names and all are near enough then
                vector = vectors_of(self._embedder, [plain], "query")
        base, scores = self._pool.score(plain, vector, lambda places: [entry.text for entry in entries(places)])
        hits = self._pool.ranked(question, limit, entries, base, scores, is_named, without_thread=without_thread)
        hits = [hit for hit in hits if cached[numbers_by_id[hit.id]][0].text]
        pairs = [(cached[numbers_by_id[hit.id]][0], hit) for hit in hits]
        result = [
            Remembered(memory=memory, score=hit.score, scores={**hit.scores, **memory.until}) for memory, hit in pairs
        ]
        if not (terms.is_latin(question) and vector.size):
            return result
        min_score = _LEAST_CORRECTED * max((hit.score for hit in hits), default=0.0)
        firsts = [numbers_by_id[hit.id] for hit in hits[:_MOST_CORRECTED] if hit.score >= min_score]

        def memory_at(position: int) -> Memory:
            entries(np.array([position]))
            return cached[int(self.numbers[position])][0]

        return self._corrected(result, np.searchsorted(self.numbers, sorted(firsts)), limit, memory_at)

    def _corrected(
        self, hits: Sequence[Remembered], places: Places, limit: int, memory_at: Callable[[int], Memory]
    ) -> list[Remembered]:
        """Hits with what corrects those at some places behind each, as good as that, in the place of the last of them;
        a corrected one has the time of the correction among its scores."""
        result = list(hits)
        for position, corrections in zip(places.tolist(), self._pool.corrections(places), strict=True):
            corrected = memory_at(position)
            at = next(at for at, hit in enumerate(result) if hit.memory == corrected)
            older = result[at]
            for later, time, is_same in corrections:
                memory = memory_at(later)
                texts = memory.text, corrected.text
                ends = is_same and terms.corrects(*texts) and not is_about_another(*texts)
                if memory.author != corrected.author or not (ends or replaces(*texts)):
                    continue
                result[at] = replace(older, scores={**older.scores, UNTIL: time})
                present = next((hit for hit in result if hit.memory == memory), None)
                if present is None or result.index(present) > at:
                    result = [hit for hit in result if hit.memory != memory]
                    scores = present.scores if present else {}
                    cosine = max(older.scores.get("cosine", 0.0), scores.get("cosine", 0.0))
                    brought = Remembered(memory=memory, score=older.score, scores={**scores, "cosine": cosine})
                    result.insert(min(at + 1, limit - 1), brought)  # before the last one, which would be alone
                break
        return result[:limit]


def memory_of(record: str) -> Memory:
    """The memory that a record holds; one without text, which is left out everywhere, where it cannot be read."""
    try:
        memory = Memory(**json.loads(record))
        if all(isinstance(value, str) for value in (memory.name, memory.text, memory.session)):
            return memory
    except (TypeError, ValueError):  # damaged, or of a later version
        pass
    _tell_unreadable()
    return Memory(name=f"unreadable {number_of(record)}", text="")


@lru_cache
def _tell_unreadable() -> None:
    logger.warning("a memory that is damaged, or of a later version of this package, is left out")


def row_of(memory: Memory) -> MemoryRow:
    """A memory as it is kept, without what it is searched by."""
    preferred = is_preference(memory.metadata) and len(memory.text) <= _LONGEST_PREFERENCE
    return MemoryRow(number_of(memory.name), number_of(memory.session), preferred, memory.time, memory.record)


def new_or_changed(rows: Iterable[MemoryRow], stored: StoredRecords, *, revive: bool) -> list[MemoryRow]:
    """Those rows that are new or other than what is known; deleted ones where they are to be revived."""
    there = ((row, stored.get(row[:2], "")) for row in rows)
    return [row for row, record in there if (revive if record is None else record != row.record)]


def number_of(name: str) -> int:
    """A hash of 63 bits; -1 of no name."""
    digest = hashlib.blake2b(sound(name).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1 if name else -1


def owner_of(app: str, user: str) -> str:
    """The key of an app's user, 32 hexadecimal digits."""
    return hashlib.blake2b(who_of(app, user).encode(), digest_size=16).hexdigest()


def who_of(app: str, user: str) -> str:
    """App and user as JSON."""
    return canonical_json([sound(app), sound(user)])


def made_by(embedder: Embedder | None) -> int:
    """The name of the maker of rows' vectors, as of `number_of`."""
    return number_of("" if embedder is None else embedder.name)
