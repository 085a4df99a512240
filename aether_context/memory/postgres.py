"""The memories of all users in PostgreSQL, found by the vectors and words that the database compares.

A search reads a user's rows without their texts: what of the query each says, how near its vector is, its time and its
session. From that this package ranks them, as it ranks those of a file, and reads the texts of the best. So a search
takes time in proportion to the user's memories, and none for those of others.

Every statement names the owner, a hash of app and user, and row level security holds it to that.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields, replace
from typing import Any
from uuid import UUID

import numpy as np

from aether_context.canonical import canonical_json
from aether_context.errors import EmbeddingError, StoreError, StoreUnavailable
from aether_context.memory.connections import Connection, Database, parsed
from aether_context.memory.database import Memory
from aether_context.memory.library import COMPARED, Remembered, entry_of, remembered
from aether_context.memory.migrations import prepare
from aether_context.retrieval.embedders import Embedder, Vectors, embedder_for, quantized
from aether_context.retrieval.pool import Entry, Floats, Places, Pool, Rows
from aether_context.retrieval.terms import hashed
from aether_context.text.spellings import is_preference
from aether_context.tokens.counters import sound

_logger = logging.getLogger(__name__)

SCHEMA = "aether_context"
"""Where the tables stand, unless a URI names another schema."""

_AT_ONCE = 1_000
_MOST_PREFERENCES, _LONGEST_PREFERENCE = 20, 2_000
_FIELDS = tuple(field.name for field in fields(Memory))
_COLUMNS = ", ".join(_FIELDS)
_INSERT = f"""
    INSERT INTO memories (owner, key, digest, {_COLUMNS}, standing, thread, said_at, terms, vector)
    SELECT %s, key, digest, {_COLUMNS}, standing, thread, said_at, terms, vector::vector
    FROM unnest(%s::uuid[], %s::bytea[], {", ".join("%s::text[]" for _ in _FIELDS)}, %s::boolean[], %s::bigint[],
        %s::double precision[], %s::bytea[], %s::text[]) WITH ORDINALITY
        AS new (key, digest, {_COLUMNS}, standing, thread, said_at, terms, vector, place)
    ORDER BY place
    ON CONFLICT (owner, key) DO UPDATE SET (number, digest, {_COLUMNS}, standing, thread, said_at, terms, vector) =
        (excluded.number, excluded.digest, {", ".join(f"excluded.{name}" for name in _FIELDS)}, excluded.standing,
        excluded.thread, excluded.said_at, excluded.terms, excluded.vector)"""
_POOL = """
    SELECT string_agg(int8send(number) || int8send(coalesce(thread, -1)) || float8send(coalesce(said_at, 'NaN'))
        || float8send(coalesce(1 - (vector <=> %s::vector), 0)) || int4send(octet_length(terms)), ''),
        string_agg(terms, '')
    FROM (SELECT * FROM memories WHERE owner = %s AND text IS NOT NULL ORDER BY number) AS pool"""
"""All rows in one value, as `_ROW` reads them: to make objects of ten thousand rows takes longer than to find them."""
_ROW = np.dtype([("number", ">i8"), ("thread", ">i8"), ("said_at", ">f8"), ("cosine", ">f8"), ("terms", ">i4")])


class PostgresMemories:
    """The memories of all users in one schema of a database; nothing of one is ever found for another.

    Threads, processes and machines may share it. A server that is away when this is made is asked again later.

    Args:
        uri: as libpq takes it, ``postgresql://user:password@host:port/database``.
        embedder: a name, an embedder, or None for the default; ``"none"`` finds by words alone. All who use a schema
            give the same.
        redact: masks what must be neither searched by, nor embedded, nor sent to an embedding service. It masks what is
            written from then on.
        schema: where the tables stand; it is made where it is not there.

    Raises:
        StoreUnavailable: by every method: the server is away, or too late. Nothing of the call was written.
        StoreError: the database has no pgvector, or the schema is of a later version or made with another embedder.
        PolicyError: no embedder of that name is known.
        MissingExtra: the embedder needs a package that is not installed.
    """

    def __init__(
        self,
        uri: str,
        *,
        embedder: str | Embedder | None = None,
        redact: Callable[[str], str] | None = None,
        schema: str = SCHEMA,
    ) -> None:
        self._embedder = embedder_for(embedder)
        self._redact = redact or str
        settings = {"embedder": self.encoder}
        self.database = Database(
            parsed(uri), lambda connection: prepare(connection, schema, settings, self.database.name)
        )
        try:
            self.database.prepare()
        except StoreUnavailable as error:
            _logger.warning("%s", error)

    @property
    def encoder(self) -> str:
        """Identity of the embedder whose vectors memories are found by, ``none`` without one."""
        return "none" if self._embedder is None else self._embedder.name

    def add(self, app: str, user: str, memories: Iterable[Memory], *, revive: bool = False) -> int:
        """Writes memories, all or none; the number of those that were new or other than before.

        What an embedding service could not embed is found by its words, and embedded when the user's next memories
        are added.

        Args:
            revive: whether what was deleted may be written again.
        """
        owner, new = owner_of(app, user), {}
        for memory in map(_sound, memories):
            new[_hash(memory.session, memory.name)] = memory
        digests = {key: _digest(memory) for key, memory in new.items()}
        if not new:
            return 0

        def changed(known: dict[UUID, bytes | None]) -> list[UUID]:
            return [
                key for key in new if key not in known or (revive if known[key] is None else known[key] != digests[key])
            ]

        def read(connection: Connection) -> dict[UUID, bytes | None]:
            query = "SELECT key, digest FROM memories WHERE owner = %s AND key = ANY(%s)"
            return dict(connection.cursor(binary=True).execute(query, (owner, list(new))).fetchall())

        # What another process writes in between is embedded in vain, and no more.
        wanted = changed(self.database.run(read, owner=owner))
        if not wanted:
            return 0
        rows = dict(zip(wanted, self._rows([(key, digests[key], new[key]) for key in wanted]), strict=True))

        def write(connection: Connection) -> int:
            # The owner's row is locked until the end, so that numbers grow in the order of the transactions.
            connection.execute(
                """INSERT INTO owners (owner, app, user_id) VALUES (%s, %s, %s)
                ON CONFLICT (owner) DO UPDATE SET app = excluded.app""",
                (owner, _escaped(sound(app)), _escaped(sound(user))),
            )
            known = read(connection)
            keys = [key for key in changed(known) if key in rows]
            for first in range(0, len(keys), _AT_ONCE):
                columns = zip(*(rows[key] for key in keys[first : first + _AT_ONCE]), strict=True)
                connection.execute(_INSERT, (owner, *map(list, columns)))
            living = sum(known.get(key) is None for key in keys)
            connection.execute("UPDATE owners SET memories = memories + %s WHERE owner = %s", (living, owner))
            return len(keys)

        changed_rows = self.database.run(write, owner=owner, writes=True)
        with contextlib.suppress(StoreError):  # what was asked for is written; this is tried again by the next one
            self._embed_missing(owner)
        return changed_rows

    def delete(self, app: str, user: str, *, name: str | None = None, session: str | None = None) -> int:
        """Deletes a user's memories of a name, of a session, of both, or all; the number of those there were."""
        owner = owner_of(app, user)
        given = {"name": name, "session": session}
        wanted = {column: _escaped(sound(value)) for column, value in given.items() if value is not None}
        gone = ", ".join(
            f"{column} = NULL"
            for column in ("digest", *_FIELDS, "thread", "said_at", "terms", "vector")
            if column not in ("name", "session")
        )
        where = "".join(f" AND {column} = %s" for column in wanted)

        def write(connection: Connection) -> int:
            connection.execute("SELECT 1 FROM owners WHERE owner = %s FOR UPDATE", (owner,))
            deleted = connection.execute(
                f"UPDATE memories SET {gone}, standing = false WHERE owner = %s AND text IS NOT NULL{where}",
                (owner, *wanted.values()),
            ).rowcount
            connection.execute("UPDATE owners SET memories = memories - %s WHERE owner = %s", (deleted, owner))
            return deleted

        return self.database.run(write, owner=owner, writes=True)

    def search(self, app: str, user: str, query: str, limit: int = 10) -> list[Remembered]:
        """A user's best memories for a query, best first; as `HybridIndex.search` finds them."""
        if limit <= 0:
            return []
        owner, asked = owner_of(app, user), self._redact(query)
        vector = self._asked(asked)

        def read(connection: Connection) -> list[Remembered]:
            packed, said = connection.cursor(binary=True).execute(_POOL, (vector, owner)).fetchall()[0]
            if packed is None:
                return []
            rows = np.frombuffer(packed, dtype=_ROW)
            pool = _ComparedPool(self._embedder, np.nan_to_num(rows["cosine"].astype(np.float64)))  # NaN is of zeros
            ends = np.cumsum(rows["terms"]).tolist()
            each = [said[first:last] for first, last in zip([0, *ends], ends, strict=False)]
            pool.extend(each, [], rows["said_at"].tolist(), rows["thread"].tolist())
            alone, scores = pool.answers(asked, [])
            memories: dict[str, Memory] = {}
            places: dict[str, int] = {}

            def entries(places_: Places) -> list[Entry]:
                wanted = rows["number"][places_].tolist()
                found = self._texts(connection, owner, wanted)
                made = [entry_of(found[number]) for number in wanted]
                memories.update((entry.id, found[number]) for entry, number in zip(made, wanted, strict=True))
                places.update((entry.id, number) for entry, number in zip(made, wanted, strict=True))
                return made

            hits = pool.ranked(asked, max(limit, COMPARED), entries, alone, scores)
            return remembered(hits, memories, places, query, self._redact)[:limit]

        return self.database.run(read, owner=owner)

    def preferences(self, app: str, user: str) -> list[Memory]:
        """A user's preferences, the newest first; the longest are passed over."""
        owner = owner_of(app, user)
        query = f"""SELECT {_COLUMNS} FROM memories WHERE owner = %s AND standing AND length(text) <= %s
            ORDER BY number DESC LIMIT %s"""
        wanted = (owner, _LONGEST_PREFERENCE, _MOST_PREFERENCES)
        return self.database.run(
            lambda connection: [_memory(row) for row in connection.execute(query, wanted).fetchall()], owner=owner
        )

    def all(self, app: str, user: str) -> Iterator[Memory]:
        """A user's memories in the order in which they were added or last changed."""
        owner = owner_of(app, user)
        query = f"""SELECT number, {_COLUMNS} FROM memories WHERE owner = %s AND number > %s AND text IS NOT NULL
            ORDER BY number LIMIT %s"""
        last = -1
        while True:
            page = (owner, last, _AT_ONCE)
            rows = self.database.run(
                lambda connection, page=page: connection.execute(query, page).fetchall(),  # type: ignore[misc]
                owner=owner,
            )
            if not rows:
                return
            yield from (_memory(row) for _, *row in rows)
            last = rows[-1][0]

    def users(self) -> list[tuple[str, str, int]]:
        """App, user and number of memories of all that have any, in order."""
        query = "SELECT app, user_id, memories FROM owners WHERE memories > 0"
        rows = self.database.run(lambda connection: connection.execute(query).fetchall())
        return sorted((_unescaped(app), _unescaped(user), count) for app, user, count in rows)

    def close(self) -> None:
        """Closes the connections."""
        self.database.close()

    def _rows(self, memories: Sequence[tuple[UUID, bytes, Memory]]) -> Iterator[tuple[Any, ...]]:
        """What is written of memories, by the columns of `_INSERT`."""
        searched = [self._redact(entry_of(memory).searched) for _, _, memory in memories]
        for (key, digest, memory), text, vector in zip(memories, searched, self._vectors(searched), strict=True):
            values = (*(getattr(memory, name) for name in _FIELDS[:-1]), canonical_json(dict(memory.metadata)))
            yield (
                key,
                digest,
                *(None if value is None else _escaped(value) for value in values),
                is_preference(memory.metadata),
                _thread(memory.session),
                memory.time,
                hashed(text),
                vector,
            )

    def _vectors(self, texts: Sequence[str]) -> Sequence[str | None]:
        """Vectors as pgvector reads them; None of those that a service could not make.

        Raises:
            EmbeddingError: a local embedder failed.
        """
        if self._embedder is None:
            return [None] * len(texts)
        try:
            return _written(self._embedder.embed(texts))
        except EmbeddingError:
            if self._embedder.local:
                raise
            return [None] * len(texts)

    def _asked(self, query: str) -> str | None:
        """The vector of a query; None where nothing is compared."""
        if self._embedder is None:
            return None
        try:
            return _written(self._embedder.embed([query], purpose="query"))[0]
        except EmbeddingError:
            if self._embedder.local:
                raise
            return None

    def _embed_missing(self, owner: UUID) -> None:
        """Embeds what a service could not embed when it was written."""
        if self._embedder is None or self._embedder.local:
            return
        query = f"""SELECT key, digest, {_COLUMNS} FROM memories
            WHERE owner = %s AND vector IS NULL AND text IS NOT NULL ORDER BY number LIMIT %s"""
        rows = self.database.run(
            lambda connection: connection.cursor(binary=True).execute(query, (owner, _AT_ONCE)).fetchall(), owner=owner
        )
        vectors = self._vectors([self._redact(entry_of(_memory(row)).searched) for _, _, *row in rows])
        made = [(vector, owner, *row[:2]) for row, vector in zip(rows, vectors, strict=True) if vector is not None]
        if made:
            update = "UPDATE memories SET vector = %s::vector WHERE owner = %s AND key = %s AND digest = %s"
            self.database.run(
                lambda connection: connection.cursor().executemany(update, made), owner=owner, writes=True
            )

    def _texts(self, connection: Connection, owner: UUID, numbers: Sequence[int]) -> dict[int, Memory]:
        query = f"SELECT number, {_COLUMNS} FROM memories WHERE owner = %s AND number = ANY(%s)"
        rows = connection.cursor(binary=True).execute(query, (owner, numbers)).fetchall()
        return {number: _memory(row) for number, *row in rows}


def owner_of(app: str, user: str) -> UUID:
    """What an app's user is known by in the database."""
    return _hash(sound(app), sound(user))


class _ComparedPool(Pool):
    """A pool whose vectors the database has compared."""

    def __init__(self, embedder: Embedder | None, cosines: Floats) -> None:
        super().__init__(embedder)
        self._compared = cosines

    def _cosines(self, asked: Sequence[Rows | None]) -> Floats:
        return self._compared


def _written(vectors: Vectors) -> list[str]:
    """Vectors as pgvector reads them: whole numbers, whose products every machine gives alike."""
    return [str(row).replace(" ", "") for row in quantized(vectors).tolist()]


def _thread(session: str) -> int | None:
    """What the turns of a session are known by, from 0 up."""
    digest = hashlib.blake2b(session.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1 if session else None


def _hash(*parts: str) -> UUID:
    text = "".join(f"{len(part)}:{part}" for part in parts)
    return UUID(bytes=hashlib.blake2b(text.encode(), digest_size=16).digest())


def _digest(memory: Memory) -> bytes:
    values = [getattr(memory, name) for name in _FIELDS[:-1]] + [dict(memory.metadata)]
    return hashlib.blake2b(canonical_json(values).encode(), digest_size=16).digest()


def _sound(memory: Memory) -> Memory:
    """The memory without lone surrogates, which have no place in UTF-8."""
    given = {name: getattr(memory, name) for name in _FIELDS[:-1]}
    changed: dict[str, Any] = {name: sound(value) for name, value in given.items() if value is not None}
    return replace(memory, **changed)


def _memory(row: Sequence[Any]) -> Memory:
    given: dict[str, Any] = {
        name: value if value is None else _unescaped(value) for name, value in zip(_FIELDS, row, strict=True)
    }
    return Memory(**{**given, "metadata": json.loads(given["metadata"])})


_ESCAPE = "\x01"


def _escaped(text: str) -> str:
    """A text as PostgreSQL can hold it, which has no place for the character 0."""
    return text if text.isprintable() else text.replace(_ESCAPE, 2 * _ESCAPE).replace("\0", f"{_ESCAPE}0")


def _unescaped(text: str) -> str:
    if _ESCAPE not in text:
        return text
    return re.sub(f"{_ESCAPE}(.)", lambda pair: "\0" if pair[1] == "0" else pair[1], text)
