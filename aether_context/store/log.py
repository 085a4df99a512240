"""A session's log as it is read: see `pack_file` for its segments."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from aether_context.errors import AetherContextError, ManifestError, PackNotFound
from aether_context.store.files import Files
from aether_context.store.pack_file import LOG, SEGMENT, lines_of

_AHEAD = 64
"""So many more segments are read for whoever goes through a log."""
_MOST_BYTES = 256 * 2**20
"""Text that is kept of a log; where more was read, what is asked for next is read again."""


class Log:
    """The log of one session, of which each segment is read once. Its folder is that of the session."""

    def __init__(self, files: Files, folder: str) -> None:
        self._files, self._folder = files, f"{folder}/{LOG}"
        self._paths: dict[int, list[str]] = {}
        self._faults: dict[int, AetherContextError | None] = {}
        """The faults of the segments that were read, by number; None for those without."""
        self._asked: Sequence[int] = ()
        self._size = 0
        self.texts: dict[str, str] = {}
        """The texts of all segments that were read, by their names."""

    def load(self, numbers: Sequence[int]) -> Log:
        """The log, with segments read that were not, by their numbers; whoever reads on gets the next ones, too."""
        self._asked, unread = numbers, {*numbers} - self._faults.keys()
        if self._size > _MOST_BYTES and unread:
            self._faults, self.texts, self._size, unread = {}, {}, 0, {*numbers}
        if not unread <= self._paths.keys():
            self._paths = {}
            for file in sorted(self._files.files(self._folder), key=lambda file: file.path):
                if (name := SEGMENT.fullmatch(file.name)) is not None:
                    self._paths.setdefault(int(name[1]), []).append(file.path)
        if unread and self._faults:
            next_numbers = (number for number in self._paths if number > max(numbers))
            unread.update(islice(next_numbers, _AHEAD))
        self._faults |= zip(unread, self._files.at_once(self._fault, unread), strict=True)
        return self

    def _fault(self, number: int) -> AetherContextError | None:
        """Reads the segments with a number, whatever another one is; why the last one cannot be read."""
        subject = f"segment {number:,} of {self._folder}"
        fault: AetherContextError | None = PackNotFound(f"{subject} is not there")
        for path in self._paths.get(number, ()):
            try:
                texts = lines_of(self._files.read(path))
                self._size += sum(map(len, texts.values()))
                self.texts |= texts
                fault = None
            except FileNotFoundError:  # it was deleted since
                pass
            except ManifestError as error:
                fault = ManifestError(f"{subject} is not what was written: {error}")
        return fault

    def text(self, name: str) -> str:
        """A text by its name, that one of the segments holds which were asked for last.

        Raises:
            PackNotFound: it is not there.
            ManifestError: a segment is damaged.
        """
        if name in self.texts:
            return self.texts[name]
        faults = filter(None, map(self._faults.get, self._asked))
        raise next(faults, PackNotFound(f"{self._folder} does not hold {name}"))
