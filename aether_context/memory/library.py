"""Memories of many users: masked, hashed and embedded here, kept and found by a backend."""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING
from urllib.parse import unquote_plus

from aether_context.errors import EmbeddingError, MissingExtra, StoreError
from aether_context.memory.file import MemoryFile, memory_path
from aether_context.memory.records import (
    CORRECTED,
    Memory,
    MemoryRow,
    Remembered,
    made_by,
    memory_of,
    new_or_changed,
    number_of,
    owner_of,
    row_of,
    who_of,
)
from aether_context.plans.spellings import is_preference
from aether_context.redaction import masker
from aether_context.retrieval.embedders import Embedder, embedder_for, vectors_of
from aether_context.retrieval.ranking import LEAST_QUOTED
from aether_context.retrieval.terms import hash_terms

if TYPE_CHECKING:
    from aether_context.memory.postgres import PostgresMemories

logger = logging.getLogger("aether_context")

_SCHEMES = ("postgresql://", "postgres://")


class Memories:
    """The memories of all users; nothing of one is ever found for another.

    Threads and processes may share a file, and machines a database. Every method raises `StoreError` where rows cannot
    be read or written, and `StoreUnavailable` where a server is away or too late: nothing of the call was written then.

    Args:
        address: a file, a folder for one, or the URI of a PostgreSQL database; None keeps all in this process.
        embedder: a name, an embedder, or None for the default; ``"none"`` finds by words alone. All who use a place
            give the same one: what another one has made is made anew by whoever finds it.
        redact: names of rules or groups, or regular expressions, as in a policy: what is masked in texts and metadata
            that are added from then on, in queries, and in what is embedded.
        max_users: so many users' indexes are kept of a file, fewer where they hold more than a million memories
            together; another one is made from the rows when it is asked for.

    Raises:
        StoreError: the file cannot be opened, or is none of this format; the database cannot be used.
        PolicyError: no embedder of that name is known.
        MissingExtra: the database or the embedder needs a package that is not installed.
    """

    def __init__(
        self,
        address: str | os.PathLike[str] | None = None,
        *,
        embedder: str | Embedder | None = None,
        redact: Sequence[str] = (),
        max_users: int = 64,
    ) -> None:
        self._embedder = embedder_for(embedder)
        self.mask = masker(redact)
        """A mask that masks nothing may be replaced by another."""
        self.database: MemoryFile | PostgresMemories
        if isinstance(address, str) and is_postgres(address):
            if find_spec("psycopg_pool") is None:
                raise MissingExtra("postgres", "a memory service on PostgreSQL")
            from aether_context.memory.postgres import PostgresMemories

            uri, options = without(address, ["schema"])
            self.database = PostgresMemories(uri, self._embedder, **options)
        else:
            self.database = MemoryFile(None if address is None else memory_path(address), self._embedder, max_users)

    @property
    def embedder(self) -> str:
        """Identity of the embedder whose vectors memories are found by, ``none`` without one."""
        return "none" if self._embedder is None else self._embedder.name

    def add(self, app: str, user: str, memories: Iterable[Memory], *, revive: bool = False, once: bool = False) -> int:
        """Writes memories, all or none; the number of those that were new or other than before.

        When it returns they are kept, whatever becomes of the process. What could not be embedded is embedded when
        the user is searched.

        Args:
            revive: whether what was deleted may be written again.
            once: whether a memory of a session takes the place of those in which the same author says the same words.
        """
        owner, masked = owner_of(app, user), list(map(self._masked, memories))
        if once:
            masked = list({memory.words: memory for memory in masked}.values())
        rows = {row[:2]: row for row in map(row_of, masked)}
        stored = self.database.stored_records(owner, [named for named, _ in rows])
        # What another process writes in between is embedded in vain, and no more.
        if not (new := new_or_changed(rows.values(), stored, revive=revive)):
            return 0
        return self.database.put(owner, who_of(app, user), self._searched(new), revive=revive, once=once)

    def correct(self, app: str, user: str, old: str, memory: Memory) -> int:
        """Writes a memory in the place of those of the old words, which are found with the time until which they held.

        Where no memory has just these words, the best is taken that holds them, or that they hold. A preference makes
        the new memory one.

        Returns:
            How many have the old words; of none nothing is written.
        """
        words = Memory(name="", text=self.mask(old)).words[1]
        hits = [hit.memory for hit in self.search(app, user, old) if hit.memory.words != memory.words]
        same = [hit for hit in hits if hit.words[1] == words]
        long = [hit for hit in hits if min(len(words), len(hit.words[1])) >= LEAST_QUOTED]
        same = same or [hit for hit in long if words in hit.words[1] or hit.words[1] in words][:1]
        kind = next(({"kind": hit.metadata["kind"]} for hit in same if is_preference(hit.metadata)), {})
        metadata = {CORRECTED: memory.timestamp, "kind": ""}
        ended = [replace(hit, metadata={**hit.metadata, **metadata}) for hit in same]
        if ended:
            self.add(app, user, [*ended, replace(memory, metadata={**memory.metadata, **kind})], revive=True)
        return len(ended)

    def _masked(self, memory: Memory) -> Memory:
        mask = self.mask
        return replace(memory, text=mask(memory.text), metadata=mask.json(dict(memory.metadata))) if mask else memory

    def delete(self, app: str, user: str, *, name: str | None = None, session: str | None = None) -> int:
        """Deletes a user's memories of a name, of a session, of both, or all; the number of those there were."""
        named, thread = (None if text is None else number_of(text) for text in (name, session))
        return self.database.delete(owner_of(app, user), named=named, thread=thread)

    def search(
        self, app: str, user: str, query: str, limit: int = 10, *, without_session: str | None = None
    ) -> list[Remembered]:
        """A user's best memories for a query, best first.

        What another process writes meanwhile is found as it was before or as it is after.

        Args:
            without_session: one whose memories are not returned, and take no other's place.
        """
        if limit <= 0:
            return []
        owner, masked = owner_of(app, user), self.mask(query)
        vector = vectors_of(None, [masked])
        with contextlib.suppress(EmbeddingError):  # words alone find then
            vector = vectors_of(self._embedder, [masked], "query")
        if vector.size:
            self._complete(owner)
        thread = None if without_session is None else number_of(without_session)
        return self.database.search(owner, masked, vector, limit, thread)

    def preferences(self, app: str, user: str) -> list[Memory]:
        """A user's preferences, the newest first; the longest are passed over."""
        memories = map(memory_of, self.database.preferences(owner_of(app, user)))
        return [memory for memory in memories if memory.text]

    def all(self, app: str, user: str) -> Iterator[Memory]:
        """A user's memories in the order in which they were added or last changed."""
        owner, last = owner_of(app, user), 0
        while page := self.database.page(owner, last):
            yield from (memory for _, record in page if (memory := memory_of(record)).text)
            last = page[-1][0]

    def users(self) -> list[tuple[str, str, int]]:
        """App, user and number of memories of all that have any, in order."""
        return sorted((*json.loads(who), count) for who, count in self.database.users())

    def close(self) -> None:
        """Closes the file, or the connections to the database."""
        self.database.close()

    def _complete(self, owner: str) -> None:
        """Embeds what has no vector of this embedder; what a service cannot embed now is left for the next time."""
        while lacking := self.database.lacking(owner, made_by(self._embedder)):
            rows = self._searched([row_of(memory_of(record)) for _, record in lacking])
            numbered = zip(rows, lacking, strict=True)
            vectors = [(row.embedder, row.vector, number) for row, (number, _) in numbered if row.vector is not None]
            if not vectors:
                return
            try:
                self.database.keep(owner, vectors)
            except StoreError as error:
                logger.warning("vectors are not kept: %s", error)
                return

    def _searched(self, rows: Sequence[MemoryRow]) -> list[MemoryRow]:
        """Rows with what they are searched by; without vectors where these cannot be made now."""
        memories = [memory_of(row.record) for row in rows]
        texts = [self.mask(memory.text) for memory in memories]
        with_terms = [
            row._replace(terms=hash_terms(text, memory.author))
            for row, text, memory in zip(rows, texts, memories, strict=True)
        ]
        with contextlib.suppress(EmbeddingError):
            if (vectors := vectors_of(self._embedder, texts)).shape[1]:
                name, pairs = made_by(self._embedder), zip(with_terms, vectors, strict=True)
                return [row._replace(embedder=name, vector=vector.tobytes()) for row, vector in pairs]
        return with_terms


def is_postgres(uri: str) -> bool:
    """Tells whether a URI names a database of PostgreSQL."""
    return uri.startswith(_SCHEMES)


def without(uri: str, names: Collection[str]) -> tuple[str, dict[str, str]]:
    """A URI without the options of some names, and these."""
    base, _, query = uri.partition("?")
    options = [option.partition("=") for option in query.split("&") if option]
    remaining = "&".join("".join(option) for option in options if option[0] not in names)
    values = {name: unquote_plus(value) for name, _, value in options if name in names}
    return "?".join(filter(None, [base, remaining])), values
