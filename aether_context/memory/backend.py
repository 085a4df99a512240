"""Backends of memories: what a file and a database do alike."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from aether_context.memory.records import MemoryRow, StoredRecords, memory_of, new_or_changed

MOST_PREFERENCES, AT_ONCE = 20, 1_000


class Backend(ABC):
    """Three tables: ``owners``, ``memories`` with the columns of a `MemoryRow`, and ``forgotten``, keys that are gone.

    An owner is an app's user, as of `owner_of`; every statement about memories names one. Methods raise `StoreError`
    where rows cannot be read or written; nothing of the call was written then.
    """

    name: str
    mark = "?"
    """Where a statement has a value."""
    numbers = "SELECT value FROM json_each(?)"
    """Those of a JSON list."""

    @abstractmethod
    def transaction(self, owner: str = "") -> AbstractContextManager[Any]:
        """A cursor in a transaction, the one that is under way in this thread if there is; of a writer for an owner."""

    @abstractmethod
    def insert(self, cursor: Any, owner: str, rows: Sequence[MemoryRow]) -> None:
        """Writes rows that are not there."""

    def stored_records(self, owner: str, names: Sequence[int]) -> StoredRecords:
        """The stored memories of some names."""
        where = f"WHERE owner = ? AND named IN ({self.numbers})"
        there = self.read(f"SELECT named, thread, record FROM memories {where}", owner, json.dumps(names))
        deleted = self.read(f"SELECT named, thread, NULL FROM forgotten {where}", owner, json.dumps(names))
        return {(named, thread): record for named, thread, record in (*there, *deleted)}

    def put(self, owner: str, who: str, rows: Sequence[MemoryRow], *, revive: bool, once: bool = False) -> int:
        """Writes those that are new or other than before, all or none; how many these are.

        Args:
            once: whether they take the place of those of sessions that say the same, by `Memory.words`.
        """
        with self.transaction(owner) as cursor:
            cursor.execute(self.sql("INSERT INTO owners VALUES (?, ?) ON CONFLICT DO NOTHING"), (owner, who))
            stored = self.stored_records(owner, [row.named for row in rows])
            new = new_or_changed(rows, stored, revive=revive)
            for table in ("memories", "forgotten"):
                old = [(owner, *row[:2]) for row in new if row[:2] in stored]
                cursor.executemany(self.sql(f"DELETE FROM {table} WHERE owner = ? AND named = ? AND thread = ?"), old)
            for named, thread in self._repeated(owner, new) if once else ():
                Backend.delete(self, owner, named=named, thread=thread)  # within this transaction
            self.insert(cursor, owner, new)
            return len(new)

    def _repeated(self, owner: str, rows: Sequence[MemoryRow]) -> list[tuple[int, int]]:
        """The stored memories of sessions that say the same as one of some rows, by `Memory.words`."""
        query = "SELECT named, thread, record FROM memories WHERE owner = ? AND terms = ? AND thread >= 0"
        return [
            (named, thread)
            for row in rows
            for named, thread, record in self.read(query, owner, row.terms)
            if memory_of(record).words == memory_of(row.record).words
        ]

    def delete(self, owner: str, *, named: int | None, thread: int | None) -> int:
        """Deletes memories of a name, of a session, of both, or all; the number of those there were."""
        filters = {column: value for column, value in (("named", named), ("thread", thread)) if value is not None}
        where = "FROM memories WHERE owner = ?" + "".join(f" AND {column} = ?" for column in filters)
        with self.transaction(owner) as cursor:
            values = (owner, *filters.values())
            cursor.execute(self.sql(f"INSERT INTO forgotten SELECT owner, named, thread {where}"), values)
            return int(cursor.execute(self.sql(f"DELETE {where}"), values).rowcount)

    def lacking(self, owner: str, embedder: int) -> list[tuple[int, str]]:
        """The next records whose vectors another embedder or none has made, with their numbers."""
        some = f"SELECT number FROM memories WHERE owner = ? AND embedder {{}} ? LIMIT {AT_ONCE}"
        unions = " UNION ALL ".join(f"SELECT * FROM ({some.format(sign)}) AS found" for sign in "<>")
        query = f"SELECT number, record FROM memories WHERE owner = ? AND number IN ({unions}) ORDER BY number"
        return self.read(query, owner, owner, embedder, owner, embedder)

    def keep(self, owner: str, vectors: Sequence[tuple[int, Any, int]]) -> None:
        """Writes vectors: what made them, they, and the numbers of their memories."""
        with self.transaction(owner) as cursor:
            statement = self.sql("UPDATE memories SET embedder = ?, vector = ? WHERE owner = ? AND number = ?")
            cursor.executemany(statement, [(*vector, owner, number) for *vector, number in vectors])

    def preferences(self, owner: str) -> list[str]:
        """Records of the newest 20 preferences, the newest first."""
        query = "SELECT record FROM memories WHERE owner = ? AND standing ORDER BY number DESC LIMIT ?"
        return [record for (record,) in self.read(query, owner, MOST_PREFERENCES)]

    def page(self, owner: str, since: int) -> list[tuple[int, str]]:
        """The next records behind a number, with their numbers."""
        query = "SELECT number, record FROM memories WHERE owner = ? AND number > ? ORDER BY number LIMIT ?"
        return self.read(query, owner, since, AT_ONCE)

    def users(self) -> list[tuple[str, int]]:
        """The owners of memories, as of `who_of`, and how many each has."""
        return self.read("SELECT who, count(*) FROM owners JOIN memories USING (owner) GROUP BY who")

    def sql(self, query: str) -> Any:
        """A statement whose values are question marks, as the cursor takes it."""
        return query.replace("?", self.mark)

    def read(self, query: str, *values: object) -> list[Any]:
        """The rows that a query gives."""
        with self.transaction() as cursor:
            return list(cursor.execute(self.sql(query), values).fetchall())
