"""Memories as rows of a database: the tables, and the statements that SQLite and PostgreSQL both understand.

Each user's rows have numbers that only grow: what is written anew gets a new one, so that the rows above a number are
the changes since. Of what is deleted the name stays, without a word of its content, so that an index elsewhere learns
of it and a session that is added again does not bring it back.

A row holds what is searched by beside the text: hashes of its terms, and its vectors in one byte a dimension.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol, TypeVar

from aether_context.canonical import JSON, canonical_json
from aether_context.text.spellings import is_preference
from aether_context.tokens.counters import sound

T = TypeVar("T")

TABLES = """
CREATE TABLE owners (
    owner text PRIMARY KEY, app text NOT NULL, user_id text NOT NULL, memories bigint NOT NULL, last bigint NOT NULL);
CREATE TABLE memories (
    owner text NOT NULL, number bigint NOT NULL, key text NOT NULL, digest text,
    session text NOT NULL, name text NOT NULL, text text, role text, author text, timestamp text, metadata text,
    standing smallint NOT NULL, thread bigint, said_at double precision, terms {bytes}, embedder text, vector {bytes},
    PRIMARY KEY (owner, number), UNIQUE (owner, key));
CREATE INDEX memories_standing ON memories (owner, number) WHERE standing = 1;
"""
_MOST_PREFERENCES, _LONGEST_PREFERENCE = 20, 2_000
_READ_AT_ONCE, _NAMED_AT_ONCE, _WRITTEN_AT_ONCE = 8_192, 500, 50
"""Rows. SQLite of before 2020 takes 999 values a statement."""


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
        return _hash(canonical_json([*(getattr(self, name) for name in _FIELDS[:-1]), dict(self.metadata)]))


class Change(NamedTuple):
    """What became of a memory, as it is searched; of a deleted one ``terms`` is None.

    Attributes:
        thread: a number for its session, None where it belongs to none.
        embedder: what made its vector, empty where there is none.
    """

    number: int
    key: str
    thread: int | None
    said_at: float | None
    terms: bytes | None
    embedder: str
    vector: bytes | None


class Searched(NamedTuple):
    """What a memory is searched by: the hashes of its terms, and its vector with the name of what made it."""

    terms: bytes
    embedder: str = ""
    vector: bytes | None = None


_FIELDS = tuple(field.name for field in fields(Memory))
_MEMORY = ", ".join(_FIELDS)
_COLUMNS = ("owner", "number", "key", "digest", *_FIELDS, "standing", "thread", "said_at", *Searched._fields)


class Connection(Protocol):
    """What `sqlite3.Connection` has, and what stands for it on PostgreSQL."""

    def execute(self, statement: str, values: Sequence[Any] = ..., /) -> Any: ...

    def executemany(self, statement: str, values: Iterable[Sequence[Any]], /) -> Any: ...


def owner_of(app: str, user: str) -> str:
    """What an app's user is known by."""
    return _hash(sound(app), sound(user))


def digests(connection: Connection, owner: str, keys: Sequence[str]) -> dict[str, str | None]:
    """The digests of those memories that are there, by their keys; None of a deleted one."""
    found: dict[str, str | None] = {}
    for some in _batches(keys, _NAMED_AT_ONCE):
        query = f"SELECT key, digest FROM memories WHERE owner = ? AND key IN ({_marks(some)})"
        found.update(connection.execute(query, (owner, *some)).fetchall())
    return found


def put(
    connection: Connection,
    owner: str,
    app: str,
    user: str,
    memories: Iterable[tuple[Memory, Searched]],
    *,
    revive: bool,
) -> int:
    """Writes those memories that are new or other than before; how many these are.

    The owner's row is locked until the end, so that numbers grow in the order of the transactions.
    """
    connection.execute(
        "INSERT INTO owners VALUES (?, ?, ?, 0, 0) ON CONFLICT DO NOTHING",
        (owner, _escaped(sound(app)), _escaped(sound(user))),
    )
    last, count = _locked(connection, owner)
    given = {memory.key: (memory, searched) for memory, searched in memories}
    known = digests(connection, owner, list(given))
    rows = []
    for key, (memory, searched) in given.items():
        if is_change(memory, known, revive=revive):
            last += 1
            count += known.get(key) is None
            values = [getattr(memory, name) for name in _FIELDS[:-1]] + [canonical_json(dict(memory.metadata))]
            texts = [None if value is None else _escaped(value) for value in values]
            standing = int(is_preference(memory.metadata))
            rows.append(
                (owner, last, key, memory.digest, *texts, standing, _thread(memory.session), memory.time, *searched)
            )
    _write(connection, owner, rows, last, count)
    return len(rows)


def is_change(memory: Memory, known: Mapping[str, str | None], *, revive: bool) -> bool:
    """Whether a memory is to be written where some are known by `digests`."""
    digest = known.get(memory.key, "")
    return revive if digest is None else digest != memory.digest


def delete(connection: Connection, owner: str, *, name: str | None, session: str | None) -> int:
    """Deletes memories of a name, of a session, of both, or all; the number of those there were."""
    last, count = _locked(connection, owner)
    given = {column: value for column, value in {"name": name, "session": session}.items() if value is not None}
    where = "".join(f" AND {column} = ?" for column in given)
    gone = connection.execute(
        f"SELECT key, session, name FROM memories WHERE owner = ? AND text IS NOT NULL{where} ORDER BY number",
        (owner, *(_escaped(sound(value)) for value in given.values())),
    ).fetchall()
    rows = []
    for number, (key, of_session, of_name) in enumerate(gone, last + 1):
        kept = {"owner": owner, "number": number, "key": key, "session": of_session, "name": of_name, "standing": 0}
        rows.append([kept.get(column) for column in _COLUMNS])
    _write(connection, owner, rows, last + len(gone), count - len(gone))
    return len(gone)


def _locked(connection: Connection, owner: str) -> tuple[int, int]:
    """The last number of an owner's rows, and how many memories there are; others that write wait from here on."""
    connection.execute("UPDATE owners SET last = last WHERE owner = ?", (owner,))
    row = connection.execute("SELECT last, memories FROM owners WHERE owner = ?", (owner,)).fetchone()
    return (int(row[0]), int(row[1])) if row else (0, 0)


def _write(connection: Connection, owner: str, rows: Sequence[Sequence[Any]], last: int, count: int) -> None:
    changed = ", ".join(f"{column} = excluded.{column}" for column in _COLUMNS)
    for some in _batches(rows, _WRITTEN_AT_ONCE):
        marks = ", ".join([f"({_marks(_COLUMNS)})"] * len(some))
        connection.execute(
            f"INSERT INTO memories ({', '.join(_COLUMNS)}) VALUES {marks}"
            f" ON CONFLICT (owner, key) DO UPDATE SET {changed}",
            [value for row in some for value in row],
        )
    connection.execute("UPDATE owners SET last = ?, memories = ? WHERE owner = ?", (last, count, owner))


def changes(connection: Connection, owner: str, since: int) -> list[Change]:
    """What changed after a number, in the order in which it did; at most 8,192."""
    query = f"""SELECT {", ".join(Change._fields)} FROM memories
        WHERE owner = ? AND number > ? ORDER BY number LIMIT ?"""
    return [Change._make(row) for row in connection.execute(query, (owner, since, _READ_AT_ONCE)).fetchall()]


def read(connection: Connection, owner: str, numbers: Sequence[int]) -> dict[int, Memory]:
    """Those of some memories that are there, by number."""
    found = {}
    for some in _batches(numbers, _NAMED_AT_ONCE):
        query = f"""SELECT number, {_MEMORY} FROM memories
            WHERE owner = ? AND text IS NOT NULL AND number IN ({_marks(some)})"""
        found.update({row[0]: _memory(row[1:]) for row in connection.execute(query, (owner, *some)).fetchall()})
    return found


def page(connection: Connection, owner: str, since: int) -> list[tuple[int, Memory]]:
    """The next thousand memories after a number."""
    query = f"""SELECT number, {_MEMORY} FROM memories
        WHERE owner = ? AND number > ? AND text IS NOT NULL ORDER BY number LIMIT 1000"""
    return [(row[0], _memory(row[1:])) for row in connection.execute(query, (owner, since)).fetchall()]


def preferences(connection: Connection, owner: str) -> list[Memory]:
    """The newest 20 preferences, the newest first; the longest are passed over."""
    query = f"""SELECT {_MEMORY} FROM memories WHERE owner = ? AND standing = 1 AND length(text) <= ?
        ORDER BY number DESC LIMIT ?"""
    return list(map(_memory, connection.execute(query, (owner, _LONGEST_PREFERENCE, _MOST_PREFERENCES)).fetchall()))


def users(connection: Connection) -> list[tuple[str, str, int]]:
    """App, user and number of memories of all that have any, in order."""
    rows = connection.execute("SELECT app, user_id, memories FROM owners WHERE memories > 0").fetchall()
    return sorted((_unescaped(app), _unescaped(user), count) for app, user, count in rows)


def keep_vectors(connection: Connection, owner: str, vectors: Iterable[tuple[int, str, bytes]]) -> None:
    """Keeps the vectors of rows, by number, each with the name of what made it."""
    _locked(connection, owner)  # one who writes these rows in another order would wait for this, and this for it
    connection.executemany(
        "UPDATE memories SET embedder = ?, vector = ? WHERE owner = ? AND number = ?",
        [(embedder, vector, owner, number) for number, embedder, vector in vectors],
    )


def cleaned(memory: Memory) -> Memory:
    """The memory without lone surrogates, which have no place in UTF-8."""
    given = {name: getattr(memory, name) for name in _FIELDS[:-1]}
    changed: dict[str, Any] = {name: sound(value) for name, value in given.items() if value is not None}
    return replace(memory, **changed)


def _memory(row: Sequence[Any]) -> Memory:
    given: dict[str, Any] = {
        name: value if value is None else _unescaped(value) for name, value in zip(_FIELDS, row, strict=True)
    }
    return Memory(**{**given, "metadata": json.loads(given["metadata"])})


def _hash(*parts: str) -> str:
    text = "".join(f"{len(part)}:{part}" for part in parts)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _thread(session: str) -> int | None:
    """What the turns of a session are known by, from 0 up."""
    digest = hashlib.blake2b(session.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1 if session else None


def _batches(items: Sequence[T], most: int) -> Iterator[Sequence[T]]:
    return (items[first : first + most] for first in range(0, len(items), most))


def _marks(values: Sequence[object]) -> str:
    return ", ".join("?" * len(values))


_ESCAPE = "\x01"


def _escaped(text: str) -> str:
    """A text as PostgreSQL can hold it, which has no place for the character 0."""
    return text if text.isprintable() else text.replace(_ESCAPE, 2 * _ESCAPE).replace("\0", f"{_ESCAPE}0")


def _unescaped(text: str) -> str:
    if _ESCAPE not in text:
        return text
    return re.sub(f"{_ESCAPE}(.)", lambda pair: "\0" if pair[1] == "0" else pair[1], text)
