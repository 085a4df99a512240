"""A session's log: what its packs need beside their manifests, each text once.

    {base}/{app}/{user}/{session}/log/{number}-{hash8}.jsonl.gz

A segment is what one pack adds, with gzip: a line with its record, and a line for each text that its writer did not
know to be in the log. Each line is canonical JSON, and named by its hash; what is no JSON is a JSON string, and named
by its own hash. So whoever knows a name knows whether a line is what was written. ``number`` is that of the pack, and
``hash8`` is that of the file's bytes, so that a process that was killed, or a second one that records the same call,
leaves nothing that contradicts the manifest.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence

from aether_context.canonical import hash_bytes, hash_text, short
from aether_context.errors import AetherContextError, ManifestError, PackNotFound
from aether_context.store.files import Files
from aether_context.store.pack_file import gunzip_bytes, gzip_bytes

LOG = "log"
SEGMENT = re.compile(r"(\d{6,})-[0-9a-f]{8}\.jsonl\.gz")
_MOST_BYTES = 256 * 2**20
"""Text that is kept of a log; where more was read, what is asked for next is read again."""


def segment_name(number: int, digits: str) -> str:
    """The name of a segment by the number of its pack and the digits of the hash of its bytes."""
    return f"{number:06}-{digits}.jsonl.gz"


def segment_beside(manifest_path: str, manifest: bytes) -> str:
    """The path of the segment that the pack of a manifest wrote, by the manifest's path and file."""
    fields = json.loads(manifest)
    return f"{manifest_path.rsplit('/', 3)[0]}/{LOG}/{segment_name(fields['number'], fields['segment'])}"


def segment_number(name: str) -> int:
    """The number in the name of a segment."""
    return int(name.partition("-")[0])


def segment_of(lines: Iterable[str]) -> tuple[bytes, str]:
    """The bytes of a segment, and the digits of their hash."""
    data = gzip_bytes("\n".join(lines).encode())
    return data, short(hash_bytes(data))


def lines_of(data: bytes) -> dict[str, str]:
    """The texts in a segment by their names; `ManifestError` where it is damaged."""
    try:
        lines = gunzip_bytes(data).decode().split("\n")
        texts = [json.loads(line) if line.startswith('"') else line for line in lines]
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"damaged: {error}") from error
    return {hash_text(text): text for text in texts}


class Log:
    """The log of one session, of which each segment is read once. Its folder is that of the session."""

    def __init__(self, files: Files, folder: str) -> None:
        self._files, self._folder = files, f"{folder}/{LOG}"
        self._paths: dict[int, list[str]] = {}
        self._faults: dict[int, list[AetherContextError]] = {}
        """The faults of the segments that were read, by number."""
        self._asked: Iterable[int] = ()
        self._size = 0
        self.texts: dict[str, str] = {}
        """The texts of all segments that were read, by their names."""

    def load(self, numbers: Sequence[int]) -> Log:
        """The log, with segments read that were not, by their numbers."""
        self._asked, unread = numbers, {number for number in numbers if number not in self._faults}
        if self._size > _MOST_BYTES and unread:
            self._faults, self.texts, self._size, unread = {}, {}, 0, set(numbers)
        if not unread <= self._paths.keys():
            self._paths = {}
            for file in self._files.files(self._folder):
                if (name := SEGMENT.fullmatch(file.name)) is not None:
                    self._paths.setdefault(int(name[1]), []).append(file.path)
        absent = [PackNotFound(f"what was written to {self._folder} is not there")]
        self._faults |= {number: [] if number in self._paths else [*absent] for number in unread}
        paths = [(number, path) for number in sorted(unread) for path in self._paths.get(number, ())]
        segments = self._files.at_once(self._load, [path for _, path in paths])
        for (number, _), texts in zip(paths, segments, strict=True):
            if isinstance(texts, AetherContextError):
                self._faults[number].append(texts)
            else:
                self._size += sum(map(len, texts.values()))
                self.texts |= texts
        return self

    def _load(self, path: str) -> dict[str, str] | AetherContextError:
        if (data := self._files.get(path)) is None:
            return PackNotFound(f"{path} is not there")
        try:
            return lines_of(data)
        except ManifestError as error:
            return ManifestError(f"{path} does not hold what was written: {error}")

    def text(self, name: str) -> str:
        """A text by its name, that one of the segments holds which were asked for last.

        Raises:
            PackNotFound: it is not there.
            ManifestError: a segment is damaged.
        """
        if name in self.texts:
            return self.texts[name]
        faults = (fault for number in self._asked for fault in self._faults[number])
        raise next(faults, PackNotFound(f"{self._folder} does not hold {name}"))
