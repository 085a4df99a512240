"""Vectors of one user's texts: in memory, and in a few files of the pack store.

New vectors go into the store in batches, each a file that is written once, so that several processes can write at the
same time, and one that dies leaves whole batches. Where there are many batches, those of one day are merged. Only those
of one day, since retention deletes batches by age: no vector is kept more than a day longer than its own age asks for.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import TypeAlias

import numpy as np
from cachetools import LRUCache

from aether_context.canonical import digest_of
from aether_context.errors import StoreError
from aether_context.retrieval.embedders import Embedder, Purpose, Vectors, quantized, unit
from aether_context.store.files import File
from aether_context.store.packs import PackStore

MOST_VECTORS = 10_000
"""The most vectors of a user that are kept in memory, those used last."""

Later: TypeAlias = Callable[[Callable[[], None]], None]
"""Runs a write in the background."""

_MOST_SMALL, _WHOLE_BYTES = 16, 2**20
_MOST_FILES, _MOST_BYTES = 64, 16 * 2**20
_DAY_SECONDS = 86_400.0
_RETRY_SECONDS = 60.0
_DIGEST_BYTES = 16


class UserVectors:
    """An embedder that makes the vectors of one user's texts once; those of queries it makes each time.

    What comes back is whole numbers at length 1, new or kept, so that a vector that was kept ranks as a new one does.
    The first text starts to read the store in the background, and waits at most ``wait_seconds``. Where the store fails
    or is slow, vectors are made again. Threads may share it.

    Args:
        embedder: makes those that are not kept.
        store: None keeps them in memory alone.
    """

    def __init__(
        self,
        embedder: Embedder,
        app: str,
        user: str,
        store: PackStore | None,
        later: Later,
        *,
        wait_seconds: float = 0.5,
    ) -> None:
        self.name, self.local = embedder.name, embedder.local
        self._embedder = embedder
        self._place = (app, user, embedder.name)
        self._store = store
        self._later = later
        self._wait_seconds = wait_seconds
        self._cache: LRUCache[bytes, bytes] = LRUCache(MOST_VECTORS)
        self._unwritten: dict[bytes, bytes] = {}
        self._batches = 0
        self._reading: threading.Thread | None = None
        self._read_again = 0.0
        self._lock = threading.Lock()

    @property
    def count(self) -> int:
        """How many vectors are in memory."""
        return len(self._cache)

    def embed(self, texts: Sequence[str], *, purpose: Purpose = "entry") -> Vectors:
        """As of `Embedder`."""
        if purpose == "query" or not texts:
            return self._embedder.embed(texts, purpose=purpose)
        digests = [digest_of(text) for text in texts]
        known = self._known(digests)
        if missing := {digest: text for digest, text in zip(digests, texts, strict=True) if digest not in known}:
            rows = quantized(self._embedder.embed(list(missing.values())))
            fresh = {digest: row.tobytes() for digest, row in zip(missing, rows, strict=True)}
            with self._lock:
                self._cache.update(fresh)
                self._unwritten.update(fresh if self._store is not None else {})
            if self._store is not None:
                self._later(partial(self._write, self._store))
            known |= fresh
        return unit(np.stack([np.frombuffer(known[digest], dtype=np.int8) for digest in digests]))

    def _known(self, digests: Sequence[bytes]) -> dict[bytes, bytes]:
        """The vectors in memory of those texts that have one."""
        with self._lock:
            reading = None
            if self._store is not None and self._reading is None and time.monotonic() >= self._read_again:
                target, name = partial(self._read, self._store), "aether-context-vectors"
                reading = self._reading = threading.Thread(target=target, name=name, daemon=True)
        if reading is not None:
            reading.start()
            reading.join(self._wait_seconds)
        with self._lock:
            return {digest: self._cache[digest] for digest in digests if digest in self._cache}

    def _read(self, store: PackStore) -> None:
        """Loads the vectors in the store; where that fails, it is tried again after a minute."""
        try:
            files = store.vector_files(*self._place)
            batches = store.vectors(_within(files))
        except StoreError:
            with self._lock:
                self._reading, self._read_again = None, time.monotonic() + _RETRY_SECONDS
            return
        with self._lock:
            self._batches += len(files)
            existing = dict(self._cache)
            for batch in reversed(batches):
                self._cache.update(_unpacked(batch))
            self._cache.update(existing)

    def _write(self, store: PackStore) -> None:
        """Writes the vectors that are not in the store yet. Where that fails, they stay in memory alone."""
        with self._lock:
            vectors, self._unwritten = self._unwritten, {}
        if not vectors:
            return
        with contextlib.suppress(StoreError):
            store.write_vectors(*self._place, _packed(vectors))
            self._batches += 1
            if self._batches > _MOST_SMALL:
                self._batches = tidy(store, *self._place)


def tidy(store: PackStore, app: str, user: str, encoder: str) -> int:
    """Merges the small batches of the newest batch's day, and deletes the oldest beyond what a user may have.

    Returns how many small batches there are.
    """

    def day(file: File) -> int:
        return -1 if file.modified is None else int(file.modified // _DAY_SECONDS)

    files = store.vector_files(app, user, encoder)
    kept_files = _within(files)
    for file in files[len(kept_files) :]:
        store.files.delete(file.path)
    small = [file for file in kept_files if file.size < _WHOLE_BYTES and day(file) == day(kept_files[0])]
    if len(small) <= _MOST_SMALL:
        return len(small)
    vectors: dict[bytes, bytes] = {}
    for batch in store.vectors(small):
        vectors |= _unpacked(batch)
    if not vectors:
        return len(small)
    new_path = store.write_vectors(app, user, encoder, _packed(vectors))
    paths = {file.path for file in store.vector_files(app, user, encoder)}
    if new_path is not None and not paths.issuperset(file.path for file in small):
        store.files.delete(new_path)  # `forget` deleted them meanwhile, so the merged batch has to go as well
        return 0
    for file in small:
        store.files.delete(file.path)
    return 1


def _within(files: Sequence[File]) -> list[File]:
    """The first files, up to the number and the size that a user may have."""
    sizes = accumulate(file.size for file in files[:_MOST_FILES])
    return [file for file, size in zip(files, sizes, strict=False) if size <= _MOST_BYTES]


def _packed(vectors: Mapping[bytes, bytes]) -> bytes:
    """Vectors as bytes, the same for the same vectors: a line of JSON with types and shapes, digests, and vectors."""
    digests = sorted(vectors)
    rows = [vectors[digest] for digest in digests]
    width = len(rows[0]) if rows else 0
    head = [["digests", "|u1", [len(digests), _DIGEST_BYTES]], ["vectors", "|i1", [len(digests), width]]]
    return b"".join([json.dumps(head).encode(), b"\n", *digests, *rows])


def _unpacked(data: bytes | None) -> dict[bytes, bytes]:
    """The vectors of a batch; none where it is not there.

    Raises:
        ValueError, TypeError: the bytes are others.
    """
    if data is None:
        return {}
    head, _, body = data.partition(b"\n")
    (_, _, (count, size)), (_, _, (_, width)) = json.loads(head)
    if len(body) != count * (size + width):
        raise ValueError(f"{len(body)} bytes are not {count} digests and vectors")
    rows = body[count * size :]
    return {body[at * size : (at + 1) * size]: rows[at * width : (at + 1) * width] for at in range(count)}
