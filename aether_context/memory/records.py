"""What is remembered, by what it is known, and by what it is searched."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from aether_context.canonical import JSON, canonical_json
from aether_context.retrieval.embedders import Embedder, StaticEmbedder
from aether_context.retrieval.pool import Entry, Hit, Pool, Rows
from aether_context.tokens.counters import sound

T = TypeVar("T")

MOST_PREFERENCES, LONGEST_PREFERENCE = 20, 2_000
EMBEDDED_AT_ONCE = 1_000


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
        try:
            moment = datetime.fromisoformat(self.timestamp or "")
            return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            return None

    @property
    def key(self) -> str:
        """What it is known by among those of its user."""
        return _hash(self.session, self.name)

    @property
    def digest(self) -> str:
        """What all of it is known by."""
        return _hash(canonical_json([*(getattr(self, name) for name in FIELDS[:-1]), dict(self.metadata)]))


class Searched(NamedTuple):
    """What a memory is searched by: the hashes of its terms, and its vector with the name of what made it."""

    terms: bytes
    embedder: str = ""
    vector: bytes | None = None


class Found(NamedTuple):
    """A memory that was found; of two of a user the later one has the higher number."""

    hit: Hit
    number: int
    memory: Memory


Make: TypeAlias = Callable[[Sequence[Memory]], list[Searched]]
"""Gives what memories are searched by; without vectors where these cannot be made now."""


class Backend(Protocol):
    """Where memories are kept. An owner is an app's user, as of `owner_of`; nothing of another one is ever touched.

    Every method raises `StoreError` where rows cannot be read or written; nothing of the call was written then.
    """

    name: str

    def digests(self, owner: str, keys: Sequence[str]) -> dict[str, str | None]:
        """The digests of those memories that are there, by their keys; None of a deleted one."""

    def put(self, owner: str, app: str, user: str, memories: Sequence[tuple[Memory, Searched]], *, revive: bool) -> int:
        """Writes those memories that are new or other than before, all or none; how many these are."""

    def delete(self, owner: str, *, name: str | None, session: str | None) -> int:
        """Deletes memories of a name, of a session, of both, or all; the number of those there were."""

    def search(self, owner: str, asked: str, vectors: Sequence[Rows | None], limit: int, make: Make) -> list[Found]:
        """The best memories for a masked query, best first.

        Args:
            vectors: of the query, as of `Pool.embedded`.
            make: embeds what has no vector of the embedder.
        """

    def preferences(self, owner: str) -> list[Memory]:
        """The newest 20 preferences, the newest first; the longest are passed over."""

    def page(self, owner: str, since: int) -> list[tuple[int, Memory]]:
        """The next thousand memories after a number, each behind its own."""

    def users(self) -> list[tuple[str, str, int]]:
        """App, user and number of memories of all that have any."""

    def close(self) -> None:
        """Closes what is open."""


FIELDS = tuple(field.name for field in fields(Memory))


def owner_of(app: str, user: str) -> str:
    """What an app's user is known by."""
    return _hash(sound(app), sound(user))


def is_change(memory: Memory, known: Mapping[str, str | None], *, revive: bool) -> bool:
    """Whether a memory is to be written where some are known by their digests."""
    digest = known.get(memory.key, "")
    return revive if digest is None else digest != memory.digest


def cleaned(memory: Memory) -> Memory:
    """The memory without lone surrogates, which have no place in UTF-8."""
    given = {name: getattr(memory, name) for name in FIELDS[:-1]}
    changed: dict[str, Any] = {name: sound(value) for name, value in given.items() if value is not None}
    return replace(memory, **changed)


def entry_of(memory: Memory) -> Entry:
    """A memory as it is ranked."""
    return Entry(
        id=f"{len(memory.session)}:{memory.session}{memory.name}",
        text=memory.text,
        time=memory.time,
        speaker=memory.author,
        thread=memory.session or None,
    )


def thread_of(memory: Memory) -> int:
    """What the turns of a session are known by, from 0 up; -1 where there is none."""
    digest = hashlib.blake2b(memory.session.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1 if memory.session else -1


def made_by(embedder: Embedder | None) -> str:
    """What rows name as the maker of their vectors, empty where there is none."""
    return "+".join(one.name for one in Pool(embedder).embedders)


def tables(vectors: Rows, pool: Pool) -> list[Rows | None]:
    """Vectors as rows hold them, by what made them: behind those of a service stand the static model's."""
    if not vectors.shape[1]:
        return [None] * len(pool.embedders)
    if len(pool.embedders) == 1:
        return [vectors]
    own = vectors.shape[1] - StaticEmbedder().dimensions
    return [vectors[:, :own], vectors[:, own:]]


def table_of(vectors: Sequence[bytes | None], width: int = 0) -> tuple[Rows, NDArray[np.bool_]]:
    """Rows of vectors, of zeros where there is none, and which those are that there are.

    Args:
        width: what vectors have; 0 takes that of the longest.
    """
    width = width or max((len(vector) for vector in vectors if vector), default=0)
    there = np.array([len(vector or b"") == width > 0 for vector in vectors], dtype=np.bool_)
    rows = np.zeros((len(vectors), width), dtype=np.int8)
    kept = b"".join(vector for vector, has in zip(vectors, there, strict=True) if vector and has)
    rows[there] = np.frombuffer(kept, dtype=np.int8).reshape(int(there.sum()), width)
    return rows, there


def batches(items: Sequence[T], most: int) -> Iterator[Sequence[T]]:
    """Items in their order, so many at once."""
    return (items[first : first + most] for first in range(0, len(items), most))


def _hash(*parts: str) -> str:
    text = "".join(f"{len(part)}:{part}" for part in parts)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
