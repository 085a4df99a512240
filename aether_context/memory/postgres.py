"""Memories in PostgreSQL, whose server may be slow or away: found by pgvector and by words, ranked as a file's are.

All that is set is set for one transaction, which poolers between here and the server let pass. Every statement names
the owner, a hash of app and user; the terms that the index over words holds begin with it.

Vectors are compared in two steps: all of an owner's by one bit a dimension, which the index ``by_owner`` holds, and the
nearest of these whole. An index that finds near ones (HNSW) takes ten times as long to write as all else.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import psycopg
from psycopg import conninfo, sql
from psycopg_pool import ConnectionPool, PoolTimeout

from aether_context.errors import StoreError, StoreUnavailable
from aether_context.memory.backend import Backend
from aether_context.memory.records import Candidates, MemoryRow, Remembered, made_by
from aether_context.retrieval.embedders import Embedder, Rows
from aether_context.retrieval.terms import hash_of, query_terms

T = TypeVar("T")
_logger = logging.getLogger("aether_context")

READ_SECONDS, WRITE_SECONDS = 5.0, 30.0
"""Deadlines of one statement."""

_WAIT_SECONDS = 2.0
"""So long a connection is waited for, be it that all are busy or that the server is away."""
_GRACE_SECONDS = 1.0
"""So much longer a statement is waited for, since a server that is there cancels it by itself."""
_PAUSE_SECONDS = 5.0
"""So long nothing is asked of a server that could not be reached."""
_MOST_CONNECTIONS, _POOL = 8, "aether_context"
_CANDIDATES = 100
"""So many are ranked that were found by words, and so many by meaning, as many with one term are looked at: which has
more of them says little."""
_MOST_TERMS, _MOST_ASKED = 20_000, 32
"""Of a text, and of a query, whose longest are taken."""
_SETTINGS = """SELECT set_config('search_path', %s || current_setting('search_path'), true),
    set_config('statement_timeout', %s, true), set_config('jit', 'off', true),
    set_config('enable_seqscan', 'off', true), set_config('gin_fuzzy_search_limit', '1000', true)"""
_FORMAT = 1
"""The comment of the table that is made last names it; without a comment it is the first one."""
_TABLES = f"""
CREATE TABLE owners (owner uuid PRIMARY KEY, who text NOT NULL);
CREATE TABLE memories (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, owner uuid NOT NULL, named bigint NOT NULL,
    thread bigint NOT NULL, standing boolean NOT NULL, said_at double precision, record text NOT NULL,
    terms bytea NOT NULL, embedder bigint NOT NULL, vector halfvec, words tsvector NOT NULL,
    bits bit varying GENERATED ALWAYS AS (binary_quantize(vector)) STORED, UNIQUE (owner, named, thread));
CREATE INDEX by_owner ON memories (owner, embedder, number) INCLUDE (bits, thread);
CREATE INDEX by_standing ON memories (owner, number) WHERE standing;
CREATE INDEX by_words ON memories USING gin (words) WITH (gin_pending_list_limit = 1024);
CREATE TABLE forgotten (owner uuid, named bigint, thread bigint, PRIMARY KEY (owner, named, thread));
COMMENT ON TABLE forgotten IS 'format {_FORMAT}'
"""
_STATE_OF_TABLES = """SELECT to_regclass(%s) IS NOT NULL,
    coalesce(obj_description(to_regclass(%s), 'pg_class'), 'format 1'),
    current_setting('transaction_read_only')"""
_INSERT = f"COPY memories (owner, {', '.join(MemoryRow._fields)}, words) FROM STDIN".encode()
_SEARCH = """WITH by_word AS (
        SELECT number, ln(%(most)s * 1.0 / count(*) OVER (PARTITION BY asked)) AS weight
        FROM unnest(%(terms)s::tsquery[]) AS asked, LATERAL (
            SELECT number FROM memories
            WHERE owner IS NOT DISTINCT FROM %(owner)s AND words @@ asked
            AND thread IS DISTINCT FROM %(without)s::bigint LIMIT %(most)s) AS found),
    by_bits AS (
        SELECT number FROM memories
        WHERE owner = %(owner)s AND embedder = %(embedder)s AND %(vector)s::halfvec IS NOT NULL
        AND thread IS DISTINCT FROM %(without)s::bigint
        ORDER BY bits <~> binary_quantize(%(vector)s::halfvec) LIMIT 4 * %(most)s)
    SELECT number, thread, said_at, terms, embedder, halfvec_send(vector), record FROM memories
    WHERE owner = %(owner)s AND number IN (
        (SELECT number FROM by_word GROUP BY number ORDER BY sum(weight) DESC, number DESC LIMIT %(most)s) UNION ALL
        (SELECT number FROM memories WHERE owner = %(owner)s AND number IN (SELECT number FROM by_bits)
         ORDER BY vector <=> %(vector)s::halfvec LIMIT %(most)s) UNION ALL
        (SELECT number FROM memories WHERE owner = %(owner)s AND embedder = %(embedder)s
         AND %(without)s::bigint IS NOT NULL AND thread = %(without)s::bigint ORDER BY number DESC LIMIT %(most)s))
    ORDER BY number"""
"""The last of them are of the session that is left out: they correct the memories of others."""


class PostgresMemories(Backend):
    """One schema of a database, which threads, forked processes and machines may share.

    A server that is away when this is made is asked again later. Methods raise `StoreUnavailable` where it is away or
    did not answer in time, at once where they ask again at once, and where all connections are busy.

    Args:
        uri: as libpq takes it, ``postgresql://user:password@host:port/database``, with libpq's options behind it.
        schema: where the tables stand; it is made where it is not there.

    Raises:
        StoreError: the URI cannot be read, the role may not make the schema, or the server has no pgvector.
    """

    mark, numbers = "%s", "SELECT value::bigint FROM json_array_elements_text(%s::json) AS value"

    def __init__(self, uri: str, embedder: Embedder | None, schema: str = "aether_context") -> None:
        try:
            self._parameters: dict[str, Any] = {"application_name": "aether-context", **conninfo.conninfo_to_dict(uri)}
        except psycopg.Error:  # without a word of the URI, since a password may stand anywhere in it
            raise StoreError(
                "the PostgreSQL URI cannot be read: write it as postgresql://user:password@host:port/database, with"
                " %-codes for what is not a letter or a digit in user and password; options are schema and libpq's"
            ) from None
        self._embedder, self._has_tables, self._local = embedder, False, threading.local()
        self._path = f"{sql.Identifier(schema).as_string()}, "
        host, port = self._parameters.get("host") or "localhost", self._parameters.get("port")
        self.name = f"postgresql://{host}{f':{port}' if port else ''}/{self._parameters.get('dbname') or ''}"
        self._pools: dict[int, ConnectionPool[_Connection]] = {}  # by process: what a fork inherits it must not close
        self._away_until, self._reason = 0.0, ""
        try:
            self.read("SELECT 1")
        except StoreUnavailable as error:
            _logger.warning("%s", error)

    @contextlib.contextmanager
    def transaction(self, owner: str = "") -> Iterator[psycopg.Cursor[tuple[Any, ...]]]:
        if current := getattr(self._local, "connection", None):
            yield current.cursor()
            return
        if self._away_until > time.monotonic():
            raise StoreUnavailable(
                f"the memories in {self.name} were away a moment ago{self._reason}: they are asked again soon"
            )
        try:
            with self._pool().connection() as connection, connection.cursor() as cursor:
                self._local.connection = connection
                connection.seconds = WRITE_SECONDS if owner else READ_SECONDS
                cursor.execute(_SETTINGS, (self._path, str(int(1_000 * connection.seconds))))
                if not self._has_tables:
                    self._make_tables(cursor)
                if owner:  # other writers of this owner's wait here
                    cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (owner,))
                yield cursor
            self._has_tables = True
        except PoolTimeout as error:
            raise StoreUnavailable(f"no connection to {self.name} within {_WAIT_SECONDS:g} s{self._reason}") from error
        except psycopg.Error as error:
            kind = StoreUnavailable if isinstance(error, psycopg.OperationalError) else StoreError
            raise kind(f"the memories in {self.name} cannot be used: {_first_line(error)}") from error
        finally:
            self._local.connection = None

    def insert(self, cursor: psycopg.Cursor[tuple[Any, ...]], owner: str, rows: Sequence[MemoryRow]) -> None:
        with cursor.copy(_INSERT) as copy:
            for row in rows:
                words = {_word(owner, row.terms[at : at + 4]) for at in range(0, len(row.terms), 4)}
                *fields, vector = row
                copy.write_row((owner, *fields, vector and _halfvec(vector), " ".join(sorted(words)[:_MOST_TERMS])))

    def keep(self, owner: str, vectors: Sequence[tuple[int, bytes, int]]) -> None:
        super().keep(owner, [(embedder, _halfvec(vector), number) for embedder, vector, number in vectors])

    def search(
        self, owner: str, question: str, vector: Rows, limit: int, without_thread: int | None = None
    ) -> list[Remembered]:
        """The best memories for a masked query, as of `Candidates.ranked`."""
        different = dict.fromkeys(query_terms(question))
        values = {
            "owner": owner,
            "terms": [_word(owner, hash_of(term)) for term in sorted(different, key=len)[-_MOST_ASKED:]],
            "most": max(_CANDIDATES, limit),
            "embedder": made_by(self._embedder),
            "vector": _halfvec(vector.tobytes()) if vector.size else None,
            "without": without_thread,
        }
        with self.transaction() as cursor:
            rows = cursor.connection.cursor(binary=True).execute(_SEARCH, values).fetchall()
        candidates = Candidates(self._embedder)
        candidates.take([(*row, blob and _quantized(blob)) for *row, blob, _ in rows])
        records = {number: record for number, *_, record in rows}
        return candidates.ranked(question, vector, limit, without_thread, lambda _: records)

    def close(self) -> None:
        """Closes all connections; what is used later opens new ones."""
        if pool := self._pools.pop(os.getpid(), None):
            pool.close()

    def _pool(self) -> ConnectionPool[_Connection]:
        logging.getLogger("psycopg.pool").addFilter(_is_news)  # which changes nothing where it is there
        pool = self._pools.get(os.getpid()) or self._pools.setdefault(
            os.getpid(),
            ConnectionPool(
                name=f"{_POOL} {self.name}",
                connection_class=_Connection,
                kwargs=self._parameters | {"client_encoding": "utf8", "prepare_threshold": None},
                min_size=0,
                max_size=_MOST_CONNECTIONS,
                timeout=_WAIT_SECONDS,
                check=ConnectionPool.check_connection,
                reconnect_timeout=0.0,
                reconnect_failed=self._leave_alone,
                open=False,
            ),
        )
        pool.open()
        return pool

    def _leave_alone(self, pool: object) -> None:
        """Asks nothing for a while; the pool keeps the server's reason to itself, so that it is asked for once more."""
        self._away_until = time.monotonic() + _PAUSE_SECONDS
        try:
            _Connection.connect(**self._parameters | {"connect_timeout": _WAIT_SECONDS}).close()
        except psycopg.Error as error:
            self._reason = f" ({_first_line(error)})"

    def _make_tables(self, cursor: psycopg.Cursor[Any]) -> None:
        """Makes the tables where there are none, so that a server that cannot be written to is read. Processes that
        start at once take turns."""
        schema = self._path.rstrip(", ")
        table = f"{schema}.forgotten"
        (there, version, read_only), *_ = cursor.execute(_STATE_OF_TABLES, (table, table)).fetchall()
        if there and version == f"format {_FORMAT}":
            return
        if there:
            raise StoreError(f"the tables in {self.name} are of {version}, not {_FORMAT}: a later version reads them")
        if read_only == "on":
            raise StoreError(f"{self.name} has no tables and is read-only: name a server that can be written to, once")
        cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (schema,))
        try:
            cursor.execute("CREATE EXTENSION IF NOT EXISTS vector")
            if cursor.execute("SELECT to_regnamespace(%s)", (schema,)).fetchone() == (None,):
                cursor.execute(f"CREATE SCHEMA {schema}".encode())
            if cursor.execute("SELECT to_regclass(%s)", (table,)).fetchone() == (None,):
                cursor.execute(_TABLES.encode())
        except psycopg.errors.InsufficientPrivilege as error:
            raise StoreError(
                f"this role cannot make the tables in {self.name} ({_first_line(error)}): an administrator runs"
                f" CREATE EXTENSION vector; CREATE SCHEMA {schema} AUTHORIZATION the_role; in that database"
            ) from error


class _Connection(psycopg.Connection[tuple[Any, ...]]):
    """Waits no longer than its deadline for a statement, whatever becomes of the server."""

    seconds = WRITE_SECONDS

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


_warned: set[object] = set()


def _is_news(record: logging.LogRecord) -> bool:
    """Tells whether a line of the pools' log is no warning, of another's pool, or the first of its kind."""
    ours = [arg for arg in record.args or () if isinstance(arg, _Connection) or str(arg).startswith(_POOL)]
    kind = (record.msg, *(arg for arg in ours if isinstance(arg, str)))
    is_news = record.levelno < logging.WARNING or not ours or kind not in _warned
    _warned.add(kind)
    return is_news


def _word(owner: str, term: bytes) -> str:
    return owner[:8] + term.hex()


def _halfvec(vector: bytes) -> str:
    return str(np.frombuffer(vector, dtype=np.int8).tolist())


def _quantized(blob: bytes) -> bytes:
    """A vector as the server sends it: two numbers of 16 bits, then floats of 16 bits."""
    return np.frombuffer(blob, dtype=">f2", offset=4).astype(np.int8).tobytes()


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
