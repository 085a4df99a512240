"""What keeps memories: a file, or a database."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Protocol
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from aether_context.errors import MissingExtra, SearchIndexError
from aether_context.memory.database import Memory
from aether_context.memory.library import Remembered

if TYPE_CHECKING:
    from aether_context.memory.postgres import PostgresMemories
    from aether_context.retrieval.embedders import Embedder

_SCHEMES = ("postgresql://", "postgres://")


class MemoryBackend(Protocol):
    """The memories of all users; nothing of one is ever found for another.

    Every method raises `StoreError` where they cannot be read or written.
    """

    @property
    def encoder(self) -> str:
        """Identity of the embedder whose vectors memories are found by, ``none`` without one."""

    def add(self, app: str, user: str, memories: Iterable[Memory], *, revive: bool = False) -> int:
        """Writes memories, all or none; the number of those that were new or other than before.

        When it returns they are kept, whatever becomes of the process.

        Args:
            revive: whether what was deleted may be written again.
        """

    def delete(self, app: str, user: str, *, name: str | None = None, session: str | None = None) -> int:
        """Deletes a user's memories of a name, of a session, of both, or all; the number of those there were."""

    def search(self, app: str, user: str, query: str, limit: int = 10) -> list[Remembered]:
        """A user's best memories for a query, best first."""

    def preferences(self, app: str, user: str) -> list[Memory]:
        """A user's preferences, the newest first; the longest are passed over."""

    def users(self) -> list[tuple[str, str, int]]:
        """App, user and number of memories of all that have any, in order."""

    def all(self, app: str, user: str) -> Iterator[Memory]:
        """A user's memories in the order in which they were added or last changed."""

    def close(self) -> None:
        """Gives back what it holds."""


def is_postgres(uri: str) -> bool:
    """Whether a URI names a database of PostgreSQL."""
    return uri.startswith(_SCHEMES)


def shown(uri: str) -> str:
    """A path or URI as it may be printed: without user and password."""
    parts = urlsplit(uri)
    if "://" not in uri or "@" not in parts.netloc:
        return uri
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query=""))


def postgres(
    uri: str, *, embedder: str | Embedder | None = None, redact: Callable[[str], str] | None = None
) -> PostgresMemories:
    """The memories in a PostgreSQL database.

    Args:
        uri: as libpq takes it; ``schema`` in its query names the schema of the tables.

    Raises:
        MissingExtra: the client library is not installed.
        SearchIndexError: the URI has an option that is none.
        StoreError: as `PostgresMemories` raises it.
    """
    if find_spec("psycopg") is None:
        raise MissingExtra("postgres", "a memory service on PostgreSQL")
    from psycopg.pq import Conninfo

    from aether_context.memory.postgres import SCHEMA, PostgresMemories

    parts = urlsplit(uri)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    schema = options.pop("schema", SCHEMA)
    known = {option.keyword.decode() for option in Conninfo.get_defaults()}
    if unknown := sorted(options.keys() - known):
        raise SearchIndexError(f"memory URI option {unknown[0]!r} is unknown: it is schema, or a parameter of libpq")
    return PostgresMemories(
        urlunsplit(parts._replace(query=urlencode(options))), embedder=embedder, redact=redact, schema=schema
    )
