"""What keeps memories: a file, or a database."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Protocol
from urllib.parse import unquote_plus

from aether_context.errors import MissingExtra, SearchIndexError
from aether_context.memory.database import Memory
from aether_context.memory.library import Memories, Remembered

if TYPE_CHECKING:
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


def opened(
    place: str,
    *,
    embedder: str | Embedder | None = None,
    redact: Callable[[str], str] | None = None,
    max_users: int = 64,
) -> MemoryBackend:
    """The memories in a PostgreSQL database or in a file, for an empty place those of this process.

    Raises:
        StoreError: as `Memories` or `PostgresMemories` raises it; so are the other errors.
    """
    if is_postgres(place):
        return _postgres(place, embedder, redact)
    return Memories(place or None, embedder=embedder, redact=redact, max_users=max_users)


def shown(uri: str) -> str:
    """A path or URI as it may be printed: that of a database without user, password and options."""
    scheme, mark, rest = uri.partition("://")
    if not is_postgres(uri.removeprefix("hybrid+")):
        return uri
    return scheme + mark + rest.rpartition("@")[2].partition("?")[0]


def without(uri: str, names: Collection[str]) -> tuple[str, dict[str, str]]:
    """A URI without the options of some names, and these."""
    base, _, query = uri.partition("?")
    options: dict[str, str] = {}
    others: list[str] = []
    for option in filter(None, query.split("&")):
        name, _, value = option.partition("=")
        if name in names:
            options[name] = unquote_plus(value)
        else:
            others.append(option)
    return "?".join(filter(None, [base, "&".join(others)])), options


def _postgres(uri: str, embedder: str | Embedder | None, redact: Callable[[str], str] | None) -> MemoryBackend:
    """The memories in a database; ``schema`` in the URI's query names the schema of the tables.

    Raises:
        MissingExtra: the client library is not installed.
        SearchIndexError: the URI has an option that is none.
    """
    if find_spec("psycopg") is None:
        raise MissingExtra("postgres", "a memory service on PostgreSQL")
    from psycopg.pq import Conninfo

    from aether_context.memory.postgres import SCHEMA, PostgresMemories

    _, given = without(uri, [option.keyword.decode() for option in Conninfo.get_defaults()])
    place, options = without(uri, ["schema"])
    if unknown := without(place, given)[0].partition("?")[2]:
        name = unknown.partition("=")[0]
        raise SearchIndexError(f"memory URI option {name!r} is unknown: it is schema, or a parameter of libpq")
    return PostgresMemories(place, embedder=embedder, redact=redact, schema=options.get("schema", SCHEMA))
