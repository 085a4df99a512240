"""A session as an agent was shown it, kept by position, so that a host need not load all of it at each call.

    {base}/{app}/{user}/{session}/turns/{scope}/{number}-{start}-{stop}-{hash}.json.gz

A file holds contents at positions from ``start`` to before ``stop``: with gzip, a line with the hash of what follows,
signed where a key is set, and a line of JSON. ``scope`` stands for agent and branch, and for the event with which the
turns begin, the session's last rewind or compaction, else its first where a host loads a part of the events: what stood
there before is in no file that is read after it. Of two files that hold a position the one with the higher number is
right, so that equal ones may be there twice, and what the host changed is written once more. Numbers are seconds since
1970 UTC, or follow on a higher one. Each write takes in the files beside it that are not much longer, so that there are
about as many as the number of contents has binary digits; where the store is away it takes in none, and waits in the
spool like a pack.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, TypeAlias

from aether_context.canonical import canonical_json, hash_bytes, hash_json, short
from aether_context.errors import ManifestError, StoreError
from aether_context.store.files import Files
from aether_context.store.pack_file import GZIP_ENDING, add_hash, gunzip_bytes, gzip_bytes, remove_hash

Stored: TypeAlias = Mapping[str, Any]
"""A content as it is stored: ``at`` is its position, ``content`` the content, other fields are its writer's."""
_DECODER, _MOST_LISTINGS = json.JSONDecoder(), 5
_NAME = re.compile(rf"(\d{{6,}})-(\d{{8,}})-(\d{{8,}})-[0-9a-f]{{8}}{re.escape(GZIP_ENDING)}")


class _Segment(NamedTuple):
    number: int
    start: int
    stop: int
    path: str


class TurnFiles:
    """The files of one agent's turns, each method with `StoreError` where the store cannot do it."""

    def __init__(
        self, files: Files, app: str, user: str, session: str, branch: str, agent: str, rewound: str = ""
    ) -> None:
        self._files, self._names = files, (app, user, session)
        self.is_begun = False
        """Whether this process knows what the files hold."""
        scope = short(hash_json([branch, agent, *filter(None, [rewound])]), 16)
        self._session = files.place(app, user, session)
        self._folder = f"{self._session}/turns/{scope}"
        self._place = files.below_base(self._folder)

    def _listed(self, size: int | None = None) -> list[_Segment]:
        files = self._files.files(self._folder, size)
        named = ((name, file.path) for file in files if (name := _NAME.fullmatch(file.name)))
        return sorted(_Segment(int(name[1]), int(name[2]), int(name[3]), path) for name, path in named)

    def _beside_writes(self) -> list[_Segment]:
        """The files, none where the store is away: a write fails for no reason for which that of a pack does not, since
        the packs behind it would wait in memory."""
        with suppress(StoreError):
            return self._listed(0)
        return []

    def end(self) -> int:
        """The position behind the last content; 0 where the store is away."""
        return max((segment.stop for segment in self._beside_writes()), default=0)

    def read(self, start: int = 0, stop: int = 2**62, take: Callable[[Stored], Any] = dict) -> dict[int, Any]:
        """Reads contents by position from all files that hold one of these; without damaged files."""
        for _ in range(_MOST_LISTINGS):  # what was listed may be merged and deleted meanwhile
            with suppress(FileNotFoundError):
                files = [file for file in self._listed() if file.start < stop and start < file.stop]
                return self._load(files, [], take)
        return {}

    def _load(self, segments: list[_Segment], damaged: list[_Segment], take: Callable[[Stored], Any]) -> dict[int, Any]:
        contents: dict[int, Any] = {}
        data = self._files.at_once(self._files.read, [segment.path for segment in segments])
        for segment, of_segment in zip(segments, data, strict=True):
            try:
                text, end = remove_hash(gunzip_bytes(of_segment), self._place).decode("utf-8", "surrogatepass"), 0
                while end + 1 < len(text):  # one content after the other, since they are many, behind "[" or ","
                    stored, end = _DECODER.raw_decode(text, end + 1)
                    contents[stored["at"]] = take(stored)
            except (ManifestError, ValueError):
                damaged.append(segment)
        return contents

    def add(self, contents: Mapping[int, Stored]) -> None:
        """Writes contents, with those of smaller files beside them."""
        listed, merged, damaged = self._beside_writes(), list[_Segment](), list[_Segment]()
        number = max([int(time.time()), *(segment.number + 1 for segment in listed)])
        start, stop = min(contents), max(contents) + 1

        def is_taken_in(file: _Segment) -> bool:
            is_beside = file.start <= stop and start <= file.stop
            overlaps = file.start < stop and start < file.stop
            return file not in merged and is_beside and (overlaps or file.stop - file.start <= 2 * (stop - start))

        while neighbour := next(filter(is_taken_in, listed), None):
            merged.append(neighbour)
            start, stop = min(start, neighbour.start), max(stop, neighbour.stop)
        try:
            by_place = {**self._load(sorted(merged), damaged, dict), **contents}
        except (StoreError, FileNotFoundError):  # they stay, then
            by_place, merged = dict(contents), []
        text = canonical_json([by_place[at] for at in sorted(by_place)])
        data = gzip_bytes(add_hash(text.encode("utf-8", "surrogatepass"), self._place))
        name = f"{number:06}-{min(by_place):08}-{max(by_place) + 1:08}-{short(hash_bytes(data))}{GZIP_ENDING}"
        self._files.create(f"{self._folder}/{name}", data)
        written = f"{self._folder}/{min(contents):08}-{max(contents) + 1:08}"
        self._files.note_written(self._session, written.removeprefix(f"{self._session}/"))
        for path, named in self._files.name_files(*self._names).items():
            self._files.create(path, named)
        with suppress(StoreError, FileNotFoundError):
            if merged and Files.read(self._files, f"{self._folder}/{name}", 0, 1):  # not in a spool alone
                for segment in merged:
                    if segment not in damaged:
                        self._files.delete(segment.path)
