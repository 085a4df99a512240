"""A session's log as it is read: see `pack_file` for its segments."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING

from aether_context.canonical import JSON, hash_text
from aether_context.errors import AetherContextError, ManifestError, PackNotFound
from aether_context.store.files import Files
from aether_context.store.pack_file import LOG, numbers_of, read_outcome, read_segment

if TYPE_CHECKING:
    from aether_context.store.manifest import Manifest

_AHEAD = 64
"""So many more segments are read for whoever goes through a log."""
_MOST_BYTES = 256 * 2**20
"""Text that is kept of a log; where more was read, what is asked for next is read again."""


class Outcomes(dict[str, "str | ManifestError"]):
    """The lines of outcomes by the digests of manifests, or why a segment cannot be read that may have the line."""

    def of(self, manifest: Manifest) -> dict[str, JSON] | None:
        """How the model call of a pack ended; None where nobody says.

        Raises:
            ManifestError: a segment of the log is damaged that may say it.
            ChecksumMismatch: a key is set that did not sign it.
        """
        line = self.get(manifest.digest)
        if isinstance(line, ManifestError):
            raise line
        return None if line is None else read_outcome(line)

    def name(self, manifest: Manifest) -> str | None:
        """The name of the line; empty where there is none, None where nobody can tell."""
        line = self.get(manifest.digest, "")
        return None if isinstance(line, ManifestError) else line and hash_text(line)


class Log:
    """The log of one session, of which each segment is read once. Its folder is that of the session."""

    def __init__(self, files: Files, folder: str) -> None:
        self._files, self._folder = files, f"{folder}/{LOG}"
        self._paths: dict[int, list[str]] = {}
        """The segments that may hold lines of a pack, by its number."""
        self._faults: dict[str, AetherContextError | None] = {}
        """The faults of the segments that were read, by path; None for those without."""
        self._ends: dict[tuple[int, str], str] = {}
        """The lines of outcomes, by the numbers and records of their packs."""
        self._asked: Sequence[int] = ()
        self._size = 0
        self.texts: dict[str, str] = {}
        """The texts of all segments that were read, by their names."""

    def load(self, numbers: Sequence[int]) -> Log:
        """The log, with segments read that were not, by the numbers of packs; whoever reads on gets the next, too."""
        self._asked, unread = numbers, {*self._segments(numbers)} - self._faults.keys()
        if self._size > _MOST_BYTES and unread:
            self._faults, self.texts, self._size, unread = {}, {}, 0, {*self._segments(numbers)}
        if unread and self._faults:
            ahead = islice((number for number in self._paths if number > max(numbers)), _AHEAD)
            unread |= {*self._segments([*ahead])} - self._faults.keys()
        self._faults |= zip(unread, self._files.at_once(self._fault, unread), strict=True)
        return self

    def _segments(self, numbers: Collection[int]) -> list[str]:
        """The paths of the segments that may hold lines of packs, in order."""
        if not self._paths.keys() >= {*numbers}:
            self._paths = {}
            for path in sorted(file.path for file in self._files.files(self._folder)):
                for number in numbers_of(path.rpartition("/")[2]):
                    self._paths.setdefault(number, []).append(path)
        return [*dict.fromkeys(chain.from_iterable(self._paths.get(number, ()) for number in sorted(numbers)))]

    def _fault(self, path: str) -> AetherContextError | None:
        """Reads a segment; why it cannot be read."""
        try:
            texts, outcomes = read_segment(self._files.read(path))
        except FileNotFoundError:  # it was deleted since
            return PackNotFound(f"{path} is not there")
        except ManifestError as error:
            return ManifestError(f"{path} is not what was written: {error}")
        self._size += sum(map(len, texts.values()))
        self.texts |= texts
        for pack, line in outcomes.items():  # of two of one pack always the same
            self._ends[pack] = min(line, self._ends.get(pack, line))
        return None

    def text(self, name: str) -> str:
        """A text by its name, that one of the segments holds which were asked for last.

        Raises:
            PackNotFound: it is not there.
            ManifestError: a segment is damaged.
        """
        if name in self.texts:
            return self.texts[name]
        faults = filter(None, map(self._faults.get, self._segments(self._asked)))
        raise next(faults, PackNotFound(f"{self._folder}: {name}, which pack {self._asked[0]:,} needs, is not there"))

    def outcomes(self, manifests: Collection[Manifest]) -> Outcomes:
        """The outcomes of packs of the session."""
        self.load([manifest.number for manifest in manifests])
        outcomes = Outcomes()
        for manifest in manifests:
            faults = map(self._faults.get, self._paths.get(manifest.number, ()))
            damaged = next((fault for fault in faults if isinstance(fault, ManifestError)), None)
            if end := self._ends.get((manifest.number, manifest.record)) or damaged:
                outcomes[manifest.digest] = end
        return outcomes
