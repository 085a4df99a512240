"""Transactions on a PostgreSQL server that may be slow or away.

Connections are opened by the threads that need them, so that whoever asks learns why there is none. All that is set is
set for one transaction, which poolers between here and the server let pass.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias, TypeVar
from uuid import UUID

import psycopg
from psycopg import conninfo

from aether_context.errors import StoreError, StoreUnavailable

Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]
T = TypeVar("T")

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


class Database:
    """One database, as threads and forked processes share it.

    Args:
        parameters: of libpq.
        prepare: makes what is needed in the database, in a transaction of its own, before anything else is done; gives
            the search path.
    """

    def __init__(self, parameters: dict[str, Any], prepare: Callable[[Connection], str]) -> None:
        self._parameters = {"connect_timeout": _CONNECT_SECONDS, "application_name": "aether-context", **parameters}
        self.name = _place(parameters)
        """Where it is, without user and password."""
        self._prepare = prepare
        self._lock = threading.Lock()
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._free = threading.BoundedSemaphore(_MOST_CONNECTIONS)
        self._idle: list[_Connection] = []
        self._path = ""
        self._paused_until = 0.0
        self._inherited: list[_Connection] = []

    def prepare(self) -> None:
        """Makes what is needed in the database, if that is not done.

        Raises:
            StoreUnavailable: the server is away.
            StoreError: it is not as it has to be.
        """
        self.run(lambda connection: None)

    def run(self, work: Callable[[Connection], T], *, owner: UUID | None = None, writes: bool = False) -> T:
        """What work in one transaction gives; where the connection was lost, the work is done again on a new one.

        Args:
            work: leaves the same behind when it is done twice.
            owner: whose rows it may see and write.
            writes: False sends statements together where that is possible.

        Raises:
            StoreUnavailable: the server is away, or did not answer in time; asked again at once, it raises at once.
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

    def _done(self, work: Callable[[Connection], T], owner: UUID | None, writes: bool) -> T:
        with self._connected() as connection:
            connection.seconds = WRITE_SECONDS
            if not self._path:
                with connection.transaction():
                    self._path = self._prepare(connection)
            connection.seconds = WRITE_SECONDS if writes else READ_SECONDS
            settings = ("" if owner is None else str(owner), self._path, str(int(1_000 * connection.seconds)))
            # What is read in two statements is of one moment.
            connection.isolation_level = None if writes else psycopg.IsolationLevel.REPEATABLE_READ
            if writes:
                with connection.transaction():
                    connection.execute(_SETTINGS, settings)
                    return work(connection)
            with connection.pipeline(), connection.transaction():
                connection.execute(_SETTINGS, settings)
                return work(connection)

    @contextmanager
    def _connected(self) -> Iterator[_Connection]:
        """A connection for this thread alone.

        Raises:
            _Lost: there is none, or it was lost.
        """
        free = self._free
        if not free.acquire(timeout=READ_SECONDS):
            raise _Lost(f"all of {_MOST_CONNECTIONS} connections were busy for {READ_SECONDS:g} s")
        connection = None
        try:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            connection = connection or _Connection.connect(**self._parameters, autocommit=True, prepare_threshold=None)
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
                    if connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
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
        if not self.closed:
            self.close()


def parsed(uri: str) -> dict[str, Any]:
    """The parameters of libpq that a URI holds.

    Raises:
        StoreError: it is none. The text says no word of it, since a password may stand anywhere in it.
    """
    try:
        return conninfo.conninfo_to_dict(uri)
    except psycopg.Error:
        raise StoreError(
            "the PostgreSQL URI cannot be read: write it as postgresql://user:password@host:port/database, with %-codes"
            " for what is not a letter or a digit in user and password"
        ) from None


def _place(parameters: dict[str, Any]) -> str:
    host = parameters.get("host") or parameters.get("hostaddr") or "localhost"
    port = f":{parameters['port']}" if parameters.get("port") else ""
    return f"postgresql://{host}{port}/{parameters.get('dbname') or ''}"


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
