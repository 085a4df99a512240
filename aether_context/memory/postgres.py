"""Memories in PostgreSQL, whose server may be slow or away: found by pgvector and by words, ranked as a file's are.

All that is set is set for one transaction, which poolers between here and the server let pass. Every statement names
the owner, a hash of app and user. Texts stand in one table, which row level security holds to that; what they are
searched by, hashes and vectors, in another one, whose rows mean nothing without the first.

The hashes of an owner's terms begin with the owner's, so that the index over words holds each owner's apart. Vectors of
an owner's first `FEW` memories are compared one by one, those beyond stand in an HNSW index.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar

import numpy as np
import psycopg
from psycopg import conninfo, sql
from psycopg.pq import Conninfo
from psycopg_pool import ConnectionPool, PoolTimeout

from aether_context.canonical import canonical_json
from aether_context.errors import SearchIndexError, StoreError, StoreUnavailable
from aether_context.memory.records import (
    EMBEDDED_AT_ONCE,
    FIELDS,
    LONGEST_PREFERENCE,
    MOST_PREFERENCES,
    Found,
    Make,
    Memory,
    Searched,
    batches,
    entry_of,
    is_change,
    made_by,
    table_of,
    tables,
    thread_of,
)
from aether_context.retrieval import Entry
from aether_context.retrieval.embedders import Embedder
from aether_context.retrieval.pool import Places, Pool, Rows
from aether_context.retrieval.terms import hash_of, query_terms
from aether_context.text.spellings import is_preference
from aether_context.tokens.counters import sound

T = TypeVar("T")
_logger = logging.getLogger("aether_context")

SCHEMA = "aether_context"
"""Where the tables stand, unless a URI names another schema."""
FEW = 50_000
"""So many vectors of an owner are compared one by one, all of them where pgvector is older than 0.8."""
READ_SECONDS, WRITE_SECONDS = 5.0, 30.0
"""Deadlines of one statement."""

_FORM = 1
_CONNECT_SECONDS = 4
_LOOK_SECONDS = 0.05
_GRACE_SECONDS = 1.0
"""So much longer a statement is waited for, since a server that is there cancels it by itself."""
_PAUSE_SECONDS = 3.0
"""So long nothing is asked of a server that was away; then one asks, and the others when that has succeeded."""
_MOST_CONNECTIONS = 8
_CANDIDATES = 100
"""So many are ranked that were found by words, and so many by meaning."""
_LISTED = 1_000
"""So many memories with one term are looked at; which has more of them says little."""
_WRITTEN_AT_ONCE = 1_000
_MOST_TERMS, _MOST_ASKED = 20_000, 64
"""Of a text, and of a query, whose longest are taken."""
_MOST_DIMENSIONS = 4_000
"""What an HNSW index takes."""
_GOING = (psycopg.errors.AdminShutdown, psycopg.errors.CrashShutdown, psycopg.errors.CannotConnectNow)
"""What a server says that stops or starts."""
_SNAPSHOT = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY"
_SETTINGS = """SELECT set_config('aether_context.owner', %s, true), set_config('search_path', %s, true),
    set_config('statement_timeout', %s, true), set_config('jit', 'off', true)"""
_SCAN = "SELECT set_config('hnsw.iterative_scan', 'relaxed_order', true), set_config('hnsw.ef_search', '200', true)"
_TABLES = f"""
CREATE TABLE form (version int NOT NULL);
INSERT INTO form VALUES ({_FORM});
CREATE TABLE owners (
    owner text PRIMARY KEY, app text NOT NULL, user_id text NOT NULL, memories bigint NOT NULL, last bigint NOT NULL);
CREATE TABLE memories (
    owner text NOT NULL, number bigint NOT NULL, key text NOT NULL, digest text,
    session text NOT NULL, name text NOT NULL, text text, role text, author text, timestamp text, metadata text,
    standing boolean NOT NULL, PRIMARY KEY (owner, key), UNIQUE (owner, number));
CREATE INDEX ON memories (owner, number) WHERE standing;
ALTER TABLE memories ENABLE ROW LEVEL SECURITY;
ALTER TABLE memories FORCE ROW LEVEL SECURITY;
CREATE POLICY of_owner ON memories USING (owner = current_setting('aether_context.owner', true));
CREATE TABLE searched (
    owner text NOT NULL, number bigint NOT NULL, thread bigint NOT NULL, said_at double precision, terms bytea NOT NULL,
    words tsvector NOT NULL, embedder text NOT NULL, vector halfvec, indexed boolean NOT NULL,
    PRIMARY KEY (owner, number));
CREATE INDEX ON searched USING gin (words);
CREATE INDEX ON searched (owner, embedder, indexed);
"""
_MEMORY = ", ".join(FIELDS)
_PUT = f"""INSERT INTO memories (owner, number, key, digest, {_MEMORY}, standing)
    SELECT %s, * FROM unnest(%s::bigint[], {", ".join(["%s::text[]"] * (2 + len(FIELDS)))}, %s::boolean[])
    ON CONFLICT (owner, key) DO UPDATE SET
    {", ".join(f"{column} = excluded.{column}" for column in ("number", "digest", *FIELDS, "standing"))}"""
_PUT_SEARCHED = """INSERT INTO searched SELECT %s, * FROM unnest(%s::bigint[], %s::bigint[], %s::double precision[],
    %s::bytea[], %s::tsvector[], %s::text[], %s::halfvec[], %s::boolean[])"""
_BY_WORDS = """
    SELECT number FROM said JOIN (
        SELECT asked, ln(((SELECT memories FROM owners WHERE owner = %(owner)s) + 1.0) / count(*)) AS weight
        FROM said GROUP BY asked) AS worth USING (asked)
    GROUP BY number ORDER BY sum(weight) DESC, number DESC LIMIT %(most)s"""
_BY_MEANING = """
    SELECT number FROM searched WHERE owner = %(owner)s AND embedder = %(embedder)s AND NOT indexed
    ORDER BY (vector <=> %(vector)s::halfvec) + 0 LIMIT %(most)s"""
_BY_INDEX = """
    SELECT number FROM searched WHERE owner = %(owner)s AND embedder = %(embedder)s AND indexed
    AND EXISTS (SELECT FROM searched WHERE owner = %(owner)s AND embedder = %(embedder)s AND indexed)
    ORDER BY vector::halfvec({dimensions}) <=> %(vector)s::halfvec({dimensions}) LIMIT %(most)s"""
_CANDIDATE = """WITH said AS MATERIALIZED (
        SELECT asked, number FROM unnest(%(terms)s::tsquery[]) AS asked, LATERAL (
            SELECT number FROM searched WHERE owner = %(owner)s AND words @@ asked LIMIT %(listed)s) AS found)
    SELECT number, thread, said_at, terms, embedder, halfvec_send(vector) FROM searched
    WHERE owner = %(owner)s AND number IN (SELECT number FROM ({ways}) AS chosen) ORDER BY number"""


class PostgresMemories:
    """A `Backend` in one schema of a database, as threads, forked processes and machines share it.

    A server that is away when this is made is asked again later. Methods raise `StoreUnavailable` where it is away or
    did not answer in time, at once where they ask again at once, and where all connections are busy.

    Args:
        uri: as libpq takes it, ``postgresql://user:password@host:port/database``, with libpq's options behind it.
        schema: where the tables stand; it is made where it is not there.

    Raises:
        SearchIndexError: the URI has an option that is none.
        StoreError: the URI cannot be read, the schema holds something else, the role may not make it, or the server
            has no pgvector.
    """

    def __init__(self, uri: str, embedder: Embedder | None, schema: str = SCHEMA) -> None:
        known = {option.keyword.decode() for option in Conninfo.get_defaults()}
        for option in filter(None, uri.partition("?")[2].split("&")):
            if (name := option.partition("=")[0]) not in known:
                raise SearchIndexError(f"memory URI option {name!r} is unknown: it is schema, or a parameter of libpq")
        try:
            given: dict[str, Any] = conninfo.conninfo_to_dict(uri)
        except psycopg.Error:  # without a word of the URI, since a password may stand anywhere in it
            raise StoreError(
                "the PostgreSQL URI cannot be read: write it as postgresql://user:password@host:port/database, with"
                " %-codes for what is not a letter or a digit in user and password"
            ) from None
        self._parameters: dict[str, Any] = {
            "connect_timeout": _CONNECT_SECONDS,
            "application_name": "aether-context",
            **given,
            "client_encoding": "utf8",
            "autocommit": True,
            "prepare_threshold": None,
        }
        self._embedder, self._schema = embedder, schema
        self._made_by = made_by(embedder)
        host = given.get("host") or given.get("hostaddr") or "localhost"
        port = f":{given['port']}" if given.get("port") else ""
        self.name = f"postgresql://{host}{port}/{given.get('dbname') or ''}"
        self._inherited: list[ConnectionPool[_Connection]] = []
        self._begin()
        try:
            self._run("", lambda connection: None)
        except StoreUnavailable as error:
            _logger.warning("%s", error)

    def digests(self, owner: str, keys: Sequence[str]) -> dict[str, str | None]:
        query = "SELECT key, digest FROM memories WHERE owner = %s AND key = ANY(%s)"
        return dict(self._read(query, owner, list(keys)))

    def put(self, owner: str, app: str, user: str, memories: Sequence[tuple[Memory, Searched]], *, revive: bool) -> int:
        given = {memory.key: (memory, searched) for memory, searched in memories}

        def write(connection: _Connection) -> int:
            self._index([searched.vector for _, searched in memories], connection)
            names = (owner, _escaped(sound(app)), _escaped(sound(user)))
            connection.execute("INSERT INTO owners VALUES (%s, %s, %s, 0, 0) ON CONFLICT DO NOTHING", names)
            last, count = _counted(connection, owner)
            query = "SELECT key, digest, number FROM memories WHERE owner = %s AND key = ANY(%s)"
            there = connection.execute(query, (owner, list(given))).fetchall()
            digests = {key: digest for key, digest, _ in there}
            rows: list[tuple[Any, ...]] = []
            by: list[tuple[Any, ...]] = []
            for key, (memory, searched) in given.items():
                if not is_change(memory, digests, revive=revive):
                    continue
                last += 1
                indexed = self._is_indexed and count >= FEW
                count += digests.get(key) is None
                texts = [getattr(memory, name) for name in FIELDS[:-1]] + [canonical_json(dict(memory.metadata))]
                texts = [None if text is None else _escaped(text) for text in texts]
                rows.append((last, key, memory.digest, *texts, is_preference(memory.metadata)))
                words, vector = _words(owner, searched.terms), _halfvec(searched.vector)
                by.append(
                    (last, thread_of(memory), memory.time, searched.terms, words, searched.embedder, vector, indexed)
                )
            written = {row[1] for row in rows}
            old = [number for key, _, number in there if key in written]
            connection.execute("DELETE FROM searched WHERE owner = %s AND number = ANY(%s)", (owner, old))
            for statement, values in ((_PUT, rows), (_PUT_SEARCHED, by)):
                for some in batches(values, _WRITTEN_AT_ONCE):
                    connection.execute(statement, (owner, *map(list, zip(*some, strict=True))))
            _count(connection, owner, last, count)
            return len(rows)

        return self._run(owner, write, writes=True)

    def delete(self, owner: str, *, name: str | None, session: str | None) -> int:
        given = {column: value for column, value in (("name", name), ("session", session)) if value is not None}
        cleared = ", ".join(f"{column} = NULL" for column in ("digest", "text", "role", "author", "timestamp"))
        forget = f"""UPDATE memories SET {cleared}, metadata = NULL, standing = false WHERE owner = %s
            AND text IS NOT NULL{"".join(f" AND {column} = %s" for column in given)} RETURNING number"""

        def write(connection: _Connection) -> int:
            last, count = _counted(connection, owner)
            values = (owner, *(_escaped(sound(value)) for value in given.values()))
            gone = [number for (number,) in connection.execute(forget.encode(), values).fetchall()]
            connection.execute("DELETE FROM searched WHERE owner = %s AND number = ANY(%s)", (owner, gone))
            _count(connection, owner, last, count - len(gone))
            return len(gone)

        return self._run(owner, write, writes=True)

    def search(self, owner: str, asked: str, vectors: Sequence[Rows | None], limit: int, make: Make) -> list[Found]:
        wanted = None
        if vectors and vectors[0] is not None:
            self._complete(owner, make)
            wanted = np.hstack([rows for rows in vectors if rows is not None])[0]

        def work(connection: _Connection) -> list[Found]:
            if self._is_indexed:
                connection.execute(_SCAN)
            ranked, numbers = Pool(self._embedder), np.empty(0, dtype=np.int64)
            if rows := self._candidates(connection, owner, asked, wanted, limit):
                found, threads, times, said, makers, sent = zip(*rows, strict=True)
                read = [_quantized(one) if of == self._made_by else None for one, of in zip(sent, makers, strict=True)]
                ranked.extend(said, tables(table_of(read)[0], ranked), times, threads)
                numbers = np.array(found, dtype=np.int64)
            memories: dict[str, tuple[int, Memory]] = {}

            def entries(places: Places) -> list[Entry]:
                query = f"SELECT number, {_MEMORY} FROM memories WHERE owner = %s AND number = ANY(%s)"
                rows = _rows(connection, query, (owner, numbers[places].tolist()))
                there = {number: _memory(row) for number, *row in rows}
                memories.update({entry_of(memory).id: (number, memory) for number, memory in there.items()})
                return [entry_of(there[number]) for number in numbers[places].tolist()]

            hits = ranked.ranked(asked, limit, entries, *ranked.answers(asked, vectors))
            return [Found(hit, *memories[hit.id]) for hit in hits]

        return self._run(owner, work)

    def preferences(self, owner: str) -> list[Memory]:
        query = f"""SELECT {_MEMORY} FROM memories WHERE owner = %s AND standing AND length(text) <= %s
            ORDER BY number DESC LIMIT %s"""
        return list(map(_memory, self._read(query, owner, LONGEST_PREFERENCE, MOST_PREFERENCES)))

    def page(self, owner: str, since: int) -> list[tuple[int, Memory]]:
        query = f"""SELECT number, {_MEMORY} FROM memories
            WHERE owner = %s AND number > %s AND text IS NOT NULL ORDER BY number LIMIT 1000"""
        return [(row[0], _memory(row[1:])) for row in self._read(query, owner, since)]

    def users(self) -> list[tuple[str, str, int]]:
        query = "SELECT app, user_id, memories FROM owners WHERE memories > 0"
        rows = self._run("", lambda connection: _rows(connection, query, ()))
        return [(_unescaped(app), _unescaped(user), count) for app, user, count in rows]

    def close(self) -> None:
        """Closes what is idle. What is used later opens connections anew."""
        with self._lock:
            if self._process == os.getpid():
                pool, self._pool = self._pool, None
                if pool is not None:
                    pool.close(timeout=1.0)

    def _candidates(
        self, connection: _Connection, owner: str, asked: str, wanted: Rows | None, limit: int
    ) -> list[tuple[Any, ...]]:
        """What is ranked for a query, in the order of its numbers."""
        ways = [_BY_WORDS]
        if wanted is not None and wanted.any():
            ways.append(_BY_MEANING)
            if self._is_indexed and len(wanted) <= _MOST_DIMENSIONS:
                ways.append(_BY_INDEX.format(dimensions=len(wanted)))
        query = _CANDIDATE.format(ways=" UNION ".join(f"({way})" for way in ways))
        values = {
            "owner": owner,
            "terms": [owner[:8] + hash_of(term).hex() for term in sorted(query_terms(asked), key=len)[-_MOST_ASKED:]],
            "listed": max(_LISTED, limit),
            "most": max(_CANDIDATES, limit),
            "embedder": self._made_by,
            "vector": None if wanted is None else str(wanted.tolist()),
        }
        return _rows(connection, query, values)

    def _complete(self, owner: str, make: Make) -> None:
        """Embeds what has no vector of this embedder; what a service cannot embed now is left for the next time."""
        lacking = " UNION ALL ".join(
            f"(SELECT number FROM searched WHERE owner = %s AND embedder {sign} %s LIMIT {EMBEDDED_AT_ONCE})"
            for sign in "<>"
        )
        query = f"SELECT number, {_MEMORY} FROM memories WHERE owner = %s AND number = ANY(%s)"
        keep = """UPDATE searched SET embedder = %s, vector = made.vector
            FROM unnest(%s::bigint[], %s::halfvec[]) AS made (number, vector)
            WHERE owner = %s AND searched.number = made.number"""
        while rows := self._read(lacking, owner, self._made_by, owner, self._made_by):
            found = {number: _memory(row) for number, *row in self._read(query, owner, [number for (number,) in rows])}
            made = {
                number: searched.vector
                for number, searched in zip(found, make(list(found.values())), strict=True)
                if searched.vector is not None
            }
            if not made:
                return
            values = (self._made_by, list(made), list(map(_halfvec, made.values())), owner)

            def write(connection: _Connection, made: dict[int, bytes] = made, values: tuple[Any, ...] = values) -> None:
                self._index(list(made.values()), connection)
                _counted(connection, owner)  # one who writes these rows in another order would wait for this
                connection.execute(keep, values)

            try:
                self._run(owner, write, writes=True)
            except StoreError as error:
                _logger.warning("vectors are not kept: %s", error)
                return

    def _index(self, vectors: Sequence[bytes | None], connection: _Connection) -> None:
        """Makes the index of this embedder's vectors before the first of them are written."""
        dimensions = max((len(vector) for vector in vectors if vector), default=0)
        if self._has_index or not self._is_indexed or not 0 < dimensions <= _MOST_DIMENSIONS:
            return
        name = "searched_" + hashlib.blake2b(self._made_by.encode(), digest_size=8).hexdigest()
        there = "SELECT to_regclass(%s)"
        if connection.execute(there, (name,)).fetchone() != (None,):
            self._has_index = True
            return
        connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (name,))
        if connection.execute(there, (name,)).fetchone() == (None,):
            statement = sql.SQL(
                "CREATE INDEX {} ON searched USING hnsw ((vector::halfvec({})) halfvec_cosine_ops)"
                " WITH (m = 8, ef_construction = 32) WHERE embedder = {} AND indexed"
            )
            names = (sql.Identifier(name), sql.Literal(dimensions), sql.Literal(self._made_by))
            connection.execute(statement.format(*names))

    def _read(self, query: str, owner: str, *values: object) -> list[tuple[Any, ...]]:
        return self._run(owner, lambda connection: _rows(connection, query, (owner, *values)))

    def _begin(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._pool: ConnectionPool[_Connection] | None = None
        self._paused_until = self._refused_at = 0.0
        self._path = ""
        self._is_indexed = self._has_index = False

    def _run(self, owner: str, work: Callable[[_Connection], T], *, writes: bool = False) -> T:
        """What work in one transaction gives; where the connection was lost, the work is done again on a new one.

        Args:
            owner: whose rows it may see and write.
            work: leaves the same behind when it is done twice.
        """
        self._admit()
        try:
            try:
                found = self._done(owner, work, writes)
            except _Lost:
                self.close()  # what else is idle was opened before and is lost as well
                found = self._done(owner, work, writes)
        except _Lost as lost:
            self._paused_until = time.monotonic() + _PAUSE_SECONDS
            raise StoreUnavailable(f"the memories in {self.name} cannot be reached: {_first_line(lost)}") from lost
        except psycopg.Error as error:
            self._paused_until = 0.0
            kind = StoreUnavailable if isinstance(error, psycopg.OperationalError) else StoreError
            raise kind(f"the memories in {self.name} cannot be used: {_first_line(error)}") from error
        self._paused_until = 0.0
        return found

    def _admit(self) -> None:
        if self._process != os.getpid():
            # A fork must neither use its parent's connections nor close them, which would end them for both.
            self._inherited += filter(None, [self._pool])
            self._begin()
        with self._lock:
            now = time.monotonic()
            if self._paused_until > now:
                raise StoreUnavailable(f"the memories in {self.name} were away a moment ago: they are asked again soon")
            if self._paused_until:
                self._paused_until = now + _PAUSE_SECONDS  # this one asks, the others wait for what it learns

    def _done(self, owner: str, work: Callable[[_Connection], T], writes: bool) -> T:
        pool, connection = self._taken()
        try:
            if not self._path:
                connection.seconds = WRITE_SECONDS
                with connection.transaction():
                    path = self._prepared(connection)
                self._path = path
            connection.seconds = WRITE_SECONDS if writes else READ_SECONDS
            # What is read is sent together as far as that goes, and read as of one moment.
            together: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
            if not writes:
                together = connection.pipeline()
            with together, connection.transaction():
                if not writes:
                    connection.execute(_SNAPSHOT)
                connection.execute(_SETTINGS, (owner, self._path, str(int(1_000 * connection.seconds))))
                return work(connection)
        except (psycopg.OperationalError, psycopg.InterfaceError) as error:
            if not connection.closed and not isinstance(error, _GOING):
                raise  # the server is there, and refused or cancelled something
            connection.close()
            raise _Lost(_first_line(error)) from error
        finally:
            pool.putconn(connection)

    def _taken(self) -> tuple[ConnectionPool[_Connection], _Connection]:
        """A connection for this thread alone, and the pool that it goes back to.

        Raises:
            StoreUnavailable: all are busy.
            _Lost: there is none.
        """
        with self._lock:
            if self._pool is None:
                self._pool = ConnectionPool(
                    connection_class=_Connection,
                    kwargs=self._parameters,
                    configure=_configure,
                    min_size=0,
                    max_size=_MOST_CONNECTIONS,
                    num_workers=1,
                    reconnect_timeout=0.0,
                    reconnect_failed=self._refuse,
                    open=True,
                )
            pool, began = self._pool, time.monotonic()
        while True:
            try:
                return pool, pool.getconn(timeout=_LOOK_SECONDS)
            except PoolTimeout:
                if self._refused_at > began:
                    raise _Lost("no connection, and the log of psycopg.pool says why") from None
                if time.monotonic() > began + READ_SECONDS:
                    raise StoreUnavailable(
                        f"all of {_MOST_CONNECTIONS} connections to {self.name} were busy for {READ_SECONDS:g} s"
                    ) from None
            except psycopg.Error as error:  # another thread has closed the pool
                raise _Lost(_first_line(error)) from error

    def _refuse(self, pool: object) -> None:
        self._refused_at = time.monotonic()

    def _prepared(self, connection: _Connection) -> str:
        """Makes the tables where there are none; the path to them. Processes that start at once take turns."""
        name = f"aether_context {self._schema}"
        connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (name,))
        found = "SELECT extversion, extnamespace::regnamespace::text FROM pg_extension WHERE extname = 'vector'"
        try:
            if not (row := connection.execute(found).fetchone()):
                connection.execute("CREATE EXTENSION vector")
                row = connection.execute(found).fetchone()
            assert row is not None
            version = tuple(int(number) for number in re.findall(r"\d+", row[0])[:2])
            if version < (0, 7):
                raise StoreError(f"pgvector {row[0]} in {self.name} is too old: update the extension to 0.8 or later")
            path = f"{sql.Identifier(self._schema).as_string(connection)}, {row[1]}"
            connection.execute(_SETTINGS, ("", path, str(int(1_000 * WRITE_SECONDS))))
            query = "SELECT tablename FROM pg_tables WHERE schemaname = %s"
            tables = {table for (table,) in connection.execute(query, (self._schema,)).fetchall()}
            if not tables & {"form", "owners", "memories", "searched"}:
                there = "SELECT 1 FROM pg_namespace WHERE nspname = %s"
                if not connection.execute(there, (self._schema,)).fetchone():
                    connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(self._schema)))
                connection.execute(_TABLES.encode())
            elif "form" not in tables or connection.execute("SELECT version FROM form").fetchone() != (_FORM,):
                raise StoreError(
                    f"the schema {self._schema} in {self.name} holds tables of another form than {_FORM}: name a schema"
                    " of its own with ?schema=NAME, or drop that one"
                )
        except psycopg.errors.InsufficientPrivilege as error:
            raise StoreError(
                f"this role cannot make the tables in {self.name} ({_first_line(error)}): an administrator runs"
                f" CREATE EXTENSION vector; CREATE SCHEMA {self._schema} AUTHORIZATION the_role; in that database"
            ) from error
        except (psycopg.errors.FeatureNotSupported, psycopg.errors.UndefinedFile) as error:
            raise StoreError(
                f"the server of {self.name} has no pgvector ({_first_line(error)}): install its extension vector"
            ) from error
        self._is_indexed = version >= (0, 8)
        return path


class _Lost(Exception):
    """There is no connection, or not any more."""


class _Connection(psycopg.Connection[tuple[Any, ...]]):
    """Waits no longer than its deadline for a statement, whatever becomes of the server."""

    seconds = WRITE_SECONDS

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._process = os.getpid()

    def wait(self, gen: Generator[Any, Any, T], *args: Any, **kwargs: Any) -> T:
        return super().wait(self._until(gen, time.monotonic() + self.seconds + _GRACE_SECONDS), *args, **kwargs)

    def _until(self, gen: Generator[Any, Any, T], deadline: float) -> Generator[Any, Any, T]:
        try:
            waits = next(gen)
            while True:
                ready = yield waits
                if not ready and time.monotonic() > deadline:
                    self.pgconn.finish()
                    raise psycopg.OperationalError(f"no answer within {self.seconds:g} s")
                waits = gen.send(ready)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]

    def __del__(self, *args: Any) -> None:
        if self._process == os.getpid() and not self.closed:
            self.close()


def _configure(connection: _Connection) -> None:
    # Under a stricter level of the role's, one who waits for an owner's row would be refused.
    connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED


def _rows(connection: _Connection, query: str, values: Any) -> list[tuple[Any, ...]]:
    return connection.cursor(binary=True).execute(query.encode(), values).fetchall()


def _counted(connection: _Connection, owner: str) -> tuple[int, int]:
    """The last number of an owner's rows, and how many memories there are; others that write wait from here on."""
    query = "SELECT last, memories FROM owners WHERE owner = %s FOR UPDATE"
    row = connection.execute(query, (owner,)).fetchone()
    return (row[0], row[1]) if row else (0, 0)


def _count(connection: _Connection, owner: str, last: int, count: int) -> None:
    connection.execute("UPDATE owners SET last = %s, memories = %s WHERE owner = %s", (last, count, owner))


def _words(owner: str, terms: bytes) -> str:
    """A text's terms as a ``tsvector``: hashes behind the owner's, each once."""
    hashes = terms.hex()
    different = {hashes[at : at + 8] for at in range(0, len(hashes), 8)}
    return " ".join(owner[:8] + each for each in sorted(different)[:_MOST_TERMS])


def _halfvec(vector: bytes | None) -> str | None:
    return None if vector is None else str(np.frombuffer(vector, dtype=np.int8).tolist())


def _quantized(sent: bytes | None) -> bytes | None:
    """A vector as the server sends it: two numbers of 16 bits, then floats of 16 bits."""
    return None if sent is None else np.frombuffer(sent, dtype=">f2", offset=4).astype(np.int8).tobytes()


def _memory(row: Sequence[Any]) -> Memory:
    given: dict[str, Any] = {
        name: value if value is None else _unescaped(value) for name, value in zip(FIELDS, row, strict=True)
    }
    return Memory(**{**given, "metadata": json.loads(given["metadata"])})


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


_ESCAPE = "\x01"


def _escaped(text: str) -> str:
    """A text as PostgreSQL can hold it, which has no place for the character 0."""
    return text if text.isprintable() else text.replace(_ESCAPE, 2 * _ESCAPE).replace("\0", f"{_ESCAPE}0")


def _unescaped(text: str) -> str:
    if _ESCAPE not in text:
        return text
    return re.sub(f"{_ESCAPE}(.)", lambda pair: "\0" if pair[1] == "0" else pair[1], text)
