"""An index of a user's calls: copies of manifests and outcomes, so that whoever reads many calls opens few files.

    {base}/{app}/{user}/index/{first}-{last}-{hash8}.json.gz

A block holds the manifests and outcomes of 64 calls as they were written, and is named by the times of its first and
last pack and by its content. Nothing is appended or replaced: two writers write two blocks, and a call in both is the
same call twice. Nothing depends on it, either. A copy stands for its file only where the store lists that file, and as
no younger than the block; whatever no block holds is read from its pack. So a block that is missing, damaged or out of
date costs time and changes no answer.
"""

from __future__ import annotations

import json
import re
import threading
from collections import deque
from contextlib import suppress
from itertools import chain
from typing import Any, NamedTuple

from aether_context.canonical import canonical_json, hash_bytes, short
from aether_context.errors import AetherContextError, ManifestError, StoreError
from aether_context.store.files import File, Files
from aether_context.store.pack_file import GZIP_ENDING, MANIFEST, add_hash, gunzip_bytes, gzip_bytes, remove_hash

_BLOCK_CALLS, _LEAST_CALLS, _MOST_WAITING = 64, 16, 2_048
"""Calls of a block; the fewest of one that is written because many calls of all users wait; and so many calls."""
_UNFINISHED_CALLS = 16
"""So many calls wait for their outcomes when a block is written. One that is later is read from its pack."""
INDEX = "index"
_NAME = re.compile(rf"(\d{{8}}T\d{{6}}\.\d{{6}}Z)-(\d{{8}}T\d{{6}}\.\d{{6}}Z)-[0-9a-f]{{8}}{re.escape(GZIP_ENDING)}")


class CallCopy(NamedTuple):
    """A manifest and the line of its outcome as a block holds them, and when that was written, seconds since 1970
    UTC."""

    manifest: str
    outcome: str | None
    modified: float

    def is_of(self, manifest: File) -> bool:
        """Tells whether a copy is as young as the file that it stands for."""
        return manifest.modified is not None and manifest.modified <= self.modified


class IndexWriter:
    """Gathers what is written of packs, by the folder of their user, and writes a block when it has enough of them.

    Threads may share it, as the recorders of a store and of its copies do.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users: dict[str, dict[str, tuple[str, str | None]]] = {}
        self._waiting = 0

    def __deepcopy__(self, memo: object) -> IndexWriter:
        """Itself: the copy of a store writes to the same blocks, and another thread may be adding to them."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Empty: what waits is of other users, too, and stays in this process."""
        return IndexWriter, ()

    def add(self, files: Files, pack_path: str, manifest: bytes) -> None:
        """Takes in a pack that was written to a place."""
        owner = pack_path.rsplit("/", 3)[0]
        with self._lock:
            calls = self._users[owner] = self._users.pop(owner, {})  # the user of the latest call comes last
            self._waiting += pack_path not in calls
            calls[pack_path] = manifest.decode(), None
            count = _BLOCK_CALLS if len(calls) >= _BLOCK_CALLS + _UNFINISHED_CALLS else 0
            if not count and self._waiting > _MOST_WAITING:
                # Of the user with most, the one that called longest ago first.
                owner = max(self._users, key=lambda name: len(self._users[name]))
                calls = self._users.pop(owner)
                count = len(calls)
            self._waiting -= count
            block = [(path.removeprefix(f"{owner}/"), *calls.pop(path)) for path in list(calls)[:count]]
        if count >= _LEAST_CALLS:
            with suppress(StoreError):
                _write_block(files, owner, block)

    def add_outcome(self, pack_path: str, outcome: str) -> None:
        """Takes in the outcome of a pack that waits for its block."""
        with self._lock:
            calls = self._users.get(pack_path.rsplit("/", 3)[0], {})
            if pack_path in calls:
                calls[pack_path] = calls[pack_path][0], outcome


def _write_block(files: Files, owner: str, block: list[tuple[str, str, str | None]]) -> None:
    """Writes calls. Those of a session that was forgotten meanwhile, which its first pack tells, are passed over."""
    first_of_session = {pack_path.split("/", 1)[0]: pack_path for pack_path, *_ in reversed(block)}
    manifests = {session: f"{owner}/{pack_path}/{MANIFEST}" for session, pack_path in first_of_session.items()}
    forgotten = {session for session, path in manifests.items() if files.get(path, 1) is None}
    block = [call for call in block if call[0].split("/", 1)[0] not in forgotten]
    if not block:
        return
    folder, times = f"{owner}/{INDEX}", sorted(write_time(pack_path) for pack_path, *_ in block)
    data = gzip_bytes(add_hash(canonical_json(block).encode(), files.below_base(folder)))
    files.create(f"{folder}/{times[0]}-{times[-1]}-{short(hash_bytes(data))}{GZIP_ENDING}", data)


def read_block(files: Files, path: str) -> dict[str, tuple[str, str | None]]:
    """The manifest and the outcome of each pack in a block, by the pack's place.

    Raises:
        FileNotFoundError: it is not there.
        ManifestError: it is damaged.
        ChecksumMismatch: it is not what was written.
    """
    data, folder = files.read(path), path.rpartition("/")[0]
    owner = folder.rpartition("/")[0]
    try:
        calls = json.loads(remove_hash(gunzip_bytes(data), files.below_base(folder)))
        copies = {pack_path: (manifest, outcome) for pack_path, manifest, outcome in calls}
    except (ValueError, TypeError) as error:
        raise ManifestError(f"not a block of calls: {error}") from error
    return {f"{owner}/{pack_path}": copy for pack_path, copy in copies.items()}


class IndexReader:
    """Copies of packs, for a reader that goes from the oldest to the newest; it holds few blocks at a time.

    Args:
        places: the packs that will be asked for, by time.
    """

    def __init__(self, files: Files, places: list[str]) -> None:
        self._files = files
        self._copies: dict[str, CallCopy] = {}
        first, last = (write_time(pack_path) for pack_path in (places[0], places[-1]))
        folders = dict.fromkeys(f"{pack_path.rsplit('/', 3)[0]}/{INDEX}" for pack_path in places)
        listed = chain.from_iterable(files.at_once(files.files, folders))
        named = [(began, file) for file in listed if (began := block_began(file, first, last))]
        # Where there are nearly as many blocks as packs they are not worth reading.
        self._waiting = deque(sorted(named) if 2 * len(named) < len(places) else [])

    def copies(self, places: list[str]) -> list[CallCopy | None]:
        """The copies of the next packs, None for those that no block holds."""
        first, last = write_time(places[0]), write_time(places[-1])
        self._copies = {path: copy for path, copy in self._copies.items() if write_time(path) >= first}
        blocks = list[File]()
        while self._waiting and self._waiting[0][0] <= last:
            blocks.append(self._waiting.popleft()[1])
        for copies in self._files.at_once(self._block_copies, blocks):
            self._copies.update(copies)
        return [self._copies.pop(pack_path, None) for pack_path in places]

    def _block_copies(self, block: File) -> dict[str, CallCopy]:
        with suppress(AetherContextError, FileNotFoundError):
            copies = read_block(self._files, block.path)
            if block.modified is not None:
                return {pack_path: CallCopy(*copy, block.modified) for pack_path, copy in copies.items()}
        return {}


def block_began(block: File, first: str, last: str) -> str:
    """The time of a block's first pack, where it may hold packs from one time to another; empty where it does not."""
    name = _NAME.fullmatch(block.name)
    return name[1] if name is not None and name[1] <= last and first <= name[2] else ""


def write_time(pack_path: str) -> str:
    """The time in the id of a pack, which sorts as it passes."""
    return pack_path.rpartition("/")[2].split("_")[1]
