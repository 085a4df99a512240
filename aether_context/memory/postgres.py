"""The rows of memories in PostgreSQL, whose server may be slow or away.

Connections are opened by the threads that need them, so that whoever asks learns why there is none. All that is set is
set for one transaction, which poolers between here and the server let pass. Every statement names the owner, a hash of
app and user, and row level security holds it to that.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import psycopg
from psycopg import conninfo, sql
from psycopg.pq import Conninfo, TransactionStatus

from aether_context.errors import SearchIndexError, StoreError, StoreUnavailable
from aether_context.memory import rows
from aether_context.memory.places import without

T = TypeVar("T")
_logger = logging.getLogger("aether_context")

SCHEMA = "aether_context"
"""Where the tables stand, unless a URI names another schema."""
STEPS = (
    rows.TABLES.format(bytes="bytea")
    + """
    ALTER TABLE memories ENABLE ROW LEVEL SECURITY;
    ALTER TABLE memories FORCE ROW LEVEL SECURITY;
    CREATE POLICY of_owner ON memories USING (owner = current_setting('aether_context.owner', true));
    """,
)
"""From each version of the tables to the next. Never changed once they are out: what is new is a step of its own."""

READ_SECONDS, WRITE_SECONDS = 5.0, 30.0
"""Deadlines of one statement."""
_CONNECT_SECONDS = 5
_GRACE_SECONDS = 1.0
"""So much longer a statement is waited for, since a server that is there cancels it by itself."""
_PAUSE_SECONDS = 3.0
"""So long nothing is asked of a server that was away; then one asks, and the others when that has succeeded."""
_MOST_CONNECTIONS = 8
_GOING = (psycopg.errors.AdminShutdown, psycopg.errors.CrashShutdown, psycopg.errors.CannotConnectNow)
"""What a server says that stops or starts."""
_SETTINGS = """SELECT set_config('aether_context.owner', %s, true), set_config('search_path', %s, true),
    set_config('statement_timeout', %s, true), set_config('jit', 'off', true)"""


class PostgresRows:
    """One schema of a database, as threads, forked processes and machines share it.

    A server that is away when this is made is asked again later.

    Args:
        uri: as libpq takes it, ``postgresql://user:password@host:port/database``, with libpq's options behind it, and
            ``schema``, where the tables stand; it is made where it is not there.

    Raises:
        SearchIndexError: the URI has an option that is none.
        StoreError: the URI cannot be read, the schema is of a later version, or the role may not make it.
    """

    def __init__(self, uri: str) -> None:
        place, options = without(uri, ["schema"])
        rest = without(place, [option.keyword.decode() for option in Conninfo.get_defaults()])[0]
        if unknown := rest.partition("?")[2]:
            name = unknown.partition("=")[0]
            raise SearchIndexError(f"memory URI option {name!r} is unknown: it is schema, or a parameter of libpq")
        try:
            given: dict[str, Any] = conninfo.conninfo_to_dict(place)
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
        }
        self._schema = options.get("schema", SCHEMA)
        host = given.get("host") or given.get("hostaddr") or "localhost"
        port = f":{given['port']}" if given.get("port") else ""
        self.name = f"postgresql://{host}{port}/{given.get('dbname') or ''}"
        self._lock = threading.Lock()
        self._begin()
        try:
            self.run(lambda connection: None)
        except StoreUnavailable as error:
            _logger.warning("%s", error)

    def _begin(self) -> None:
        self._process = os.getpid()
        self._free = threading.BoundedSemaphore(_MOST_CONNECTIONS)
        self._idle: list[_Connection] = []
        self._is_prepared = False
        self._paused_until = 0.0
        self._inherited: list[_Connection] = []

    def run(self, work: Callable[[rows.Connection], T], *, owner: str = "", writes: bool = False) -> T:
        """What work in one transaction gives; where the connection was lost, the work is done again on a new one.

        Args:
            work: leaves the same behind when it is done twice.
            owner: whose rows it may see and write.
            writes: False sends statements together where that is possible.

        Raises:
            StoreUnavailable: the server is away, or did not answer in time; asked again at once, it raises at once.
                Or all connections were busy.
            StoreError: the server refused a statement.
        """
        self._admit()
        try:
            try:
                found = self._done(work, owner, writes)
            except _Lost:
                found = self._done(work, owner, writes)
        except _Lost as lost:
            self._paused_until = time.monotonic() + _PAUSE_SECONDS
            raise StoreUnavailable(f"the memories in {self.name} cannot be reached: {_first_line(lost)}") from lost
        except psycopg.Error as error:
            self._paused_until = 0.0
            kind = StoreUnavailable if isinstance(error, psycopg.OperationalError) else StoreError
            raise kind(f"the memories in {self.name} cannot be used: {_first_line(error)}") from error
        self._paused_until = 0.0
        return found

    def purge(self) -> None:
        """Leaves it to the server's vacuum."""

    def close(self) -> None:
        """Closes what is idle. What is used later opens connections anew."""
        with self._lock:
            idle, self._idle = self._idle, []
        if self._process == os.getpid():
            for connection in idle:
                connection.close()

    def _admit(self) -> None:
        with self._lock:
            if self._process != os.getpid():
                # A fork must neither use its parent's connections nor close them, which would end them for both.
                inherited = [*self._inherited, *self._idle]
                self._begin()
                self._inherited = inherited
            now = time.monotonic()
            if self._paused_until > now:
                raise StoreUnavailable(f"the memories in {self.name} were away a moment ago: they are asked again soon")
            if self._paused_until:
                self._paused_until = now + _PAUSE_SECONDS  # this one asks, the others wait for what it learns

    def _done(self, work: Callable[[rows.Connection], T], owner: str, writes: bool) -> T:
        with self._connected() as connection:
            connection.seconds = WRITE_SECONDS
            path = sql.Identifier(self._schema).as_string(connection)
            if not self._is_prepared:
                with connection.transaction():
                    connection.execute(_SETTINGS, ("", path, str(int(1_000 * WRITE_SECONDS))))
                    self._prepare(connection)
                self._is_prepared = True
            connection.seconds = WRITE_SECONDS if writes else READ_SECONDS
            settings = (owner, path, str(int(1_000 * connection.seconds)))
            if writes:
                with connection.transaction():
                    connection.execute(_SETTINGS, settings)
                    return work(_Statements(connection))
            with connection.pipeline(), connection.transaction():
                connection.execute(_SETTINGS, settings)
                return work(_Statements(connection))

    def _prepare(self, connection: _Connection) -> None:
        """Brings the schema up to this version's tables. Processes that start at once do so one after the other."""
        if _version(connection, self._schema) == len(STEPS):
            return
        connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (f"aether_context {self._schema}",))
        version = _version(connection, self._schema)
        if version > len(STEPS):
            raise StoreError(
                f"the schema {self._schema} in {self.name} has version {version}, and this release knows {len(STEPS)}:"
                " update it"
            )
        try:
            if not connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (self._schema,)).fetchone():
                connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(self._schema)))
            connection.execute("CREATE TABLE IF NOT EXISTS migrations (version int PRIMARY KEY)")
            for number, step in enumerate(STEPS[version:], version + 1):
                connection.execute(step.encode())
                connection.execute("INSERT INTO migrations VALUES (%s)", (number,))
        except psycopg.errors.InsufficientPrivilege as error:
            raise StoreError(
                f"this role cannot make the tables in {self.name} ({_first_line(error)}): an administrator runs"
                f" CREATE SCHEMA {self._schema} AUTHORIZATION the_role; in that database"
            ) from error

    @contextmanager
    def _connected(self) -> Iterator[_Connection]:
        """A connection for this thread alone.

        Raises:
            StoreUnavailable: all are busy.
            _Lost: there is none, or it was lost.
        """
        free = self._free
        if not free.acquire(timeout=READ_SECONDS):
            raise StoreUnavailable(
                f"all of {_MOST_CONNECTIONS} connections to {self.name} were busy for {READ_SECONDS:g} s"
            )
        connection = None
        try:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                connection = _Connection.connect(**self._parameters, autocommit=True, prepare_threshold=None)
                # Under a stricter level of the role's, one who waits for an owner's row would be refused.
                connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
            yield connection
        except (psycopg.OperationalError, psycopg.InterfaceError) as error:
            if connection is not None and not connection.closed and not isinstance(error, _GOING):
                raise  # the server is there, and refused or cancelled something
            if connection is not None:
                connection.close()
            self.close()  # what else is idle was opened before and is lost as well
            raise _Lost(_first_line(error)) from error
        finally:
            try:
                if connection is not None and not connection.closed:
                    if connection.info.transaction_status == TransactionStatus.IDLE:
                        with self._lock:
                            self._idle.append(connection)
                    else:
                        connection.close()
            finally:
                free.release()


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


class _Statements:
    """Takes statements as SQLite takes them, with question marks for values."""

    def __init__(self, connection: _Connection) -> None:
        self._cursor = connection.cursor(binary=True)

    def execute(self, statement: str, values: Sequence[Any] = ()) -> Any:
        return self._cursor.execute(statement.replace("?", "%s").encode(), values)

    def executemany(self, statement: str, values: Iterable[Sequence[Any]]) -> Any:
        return self._cursor.executemany(statement.replace("?", "%s").encode(), values)


def _version(connection: _Connection, schema: str) -> int:
    """That of the tables in a schema, 0 where there are none."""
    query = "SELECT 1 FROM pg_tables WHERE schemaname = %s AND tablename = 'migrations'"
    if not connection.execute(query, (schema,)).fetchone():
        return 0
    row = connection.execute("SELECT max(version) FROM migrations").fetchone()
    return int(row[0] or 0) if row else 0


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
