"""Named, versioned artifacts of sessions and users on any fsspec URL, and the URIs by which they are asked for.

    {base}/{app}/{user}/{session}/artifacts/{name}/{version}    of a session
    {base}/{app}/{user}/artifacts/{name}/{version}              of a user, in all sessions

A version is one file, created exclusively: a line of canonical JSON that describes it, then its bytes. Segments are
those of `aether_context.store.files.segment`; ``name.json`` in a folder holds a name that is no safe segment itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from urllib.parse import unquote

from aether_context.canonical import JSON, canonical_json
from aether_context.errors import ArtifactError
from aether_context.store.files import Files, segment

SCHEME = "artifact://"
_VERSION = re.compile(r"0|[1-9]\d{0,17}")
_ABSOLUTE = re.compile(
    rf"{SCHEME}apps/([^/]+)/users/([^/]+)(?:/sessions/([^/]+))?/artifacts/(.+)/versions/(\d{{1,18}})", re.DOTALL
)
_HEAD_BYTES = 4_096
_MOST_HEAD_BYTES = 2**24
_MOST_ATTEMPTS = 100
_FOLDER = "artifacts"
_NAME = "name.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactOwner:
    """Whose artifacts: those of a session, or with ``session`` None those that a user has in all sessions."""

    app: str
    user: str
    session: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One version of an artifact: its number from 0, what describes it, and its bytes where they were asked for."""

    number: int
    head: Mapping[str, JSON]
    data: bytes = field(default=b"", repr=False)


class ArtifactFiles:
    """Artifacts below a base URL."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def save(self, scope: ArtifactOwner, name: str, head: Mapping[str, JSON], data: bytes) -> int:
        """Writes a new version and gives its number. Of two writers at the same moment each gets its own.

        Raises:
            StoreError: it could not be written.
            ArtifactError: a hundred others came first.
        """
        folder = self._folder(scope, name)
        self._tell_names(scope, name)
        content = canonical_json({**head, "name": name}).encode("utf-8", "surrogatepass") + b"\n" + data
        first = max(self.versions(scope, name), default=-1) + 1
        for number in range(first, first + _MOST_ATTEMPTS):
            if self._files.create(f"{folder}/{number}", content):
                return number
        raise ArtifactError(f"artifact {name!r}: {_MOST_ATTEMPTS} other versions were saved meanwhile; save it again")

    def load(self, scope: ArtifactOwner, name: str, number: int | None) -> Version | None:
        """A version with its bytes, None where there is none; the last one where ``number`` is None.

        Raises:
            StoreError: it could not be read.
            ArtifactError: it is damaged.
        """
        number = self._latest(scope, name) if number is None else number
        if number is None or number < 0:
            return None
        try:
            content = self._files.read(f"{self._folder(scope, name)}/{number}")
        except FileNotFoundError:
            return None
        line, _, data = content.partition(b"\n")
        return Version(number=number, head=_head(line, name, number), data=data)

    def describe(self, scope: ArtifactOwner, name: str, number: int | None) -> Version | None:
        """A version without its bytes, None where there is none; the last one where ``number`` is None.

        Raises:
            StoreError: it could not be read.
            ArtifactError: it is damaged.
        """
        number = self._latest(scope, name) if number is None else number
        if number is None or number < 0:
            return None
        path, wanted = f"{self._folder(scope, name)}/{number}", _HEAD_BYTES
        while True:
            try:
                content = self._files.read(path, 0, wanted)
            except FileNotFoundError:
                return None
            line, end, _ = content.partition(b"\n")
            if end or len(content) < wanted or wanted > _MOST_HEAD_BYTES:
                return Version(number=number, head=_head(line, name, number))
            wanted *= 16

    def described(self, scope: ArtifactOwner, name: str) -> list[Version]:
        """All versions without their bytes, the first one first.

        Raises:
            StoreError: they could not be read.
        """
        found = self._files.at_once(lambda number: self.describe(scope, name, number), self.versions(scope, name))
        return [one for one in found if one is not None]

    def paths(self, scope: ArtifactOwner, name: str, number: int | None) -> list[str]:
        """The file of a version, the last one where ``number`` is None, behind those that hold names on the way to it.

        Empty where there is no such version.

        Raises:
            StoreError: the folder could not be listed.
        """
        number = self._latest(scope, name) if number is None else number
        if number is None or number not in self.versions(scope, name):
            return []
        names = [f"{folder}/{_NAME}" for folder, hidden in self._named(scope, name) if segment(hidden) != hidden]
        return [*names, f"{self._folder(scope, name)}/{number}"]

    def versions(self, scope: ArtifactOwner, name: str) -> list[int]:
        """The numbers of the versions that are there, ascending.

        Raises:
            StoreError: the folder could not be listed.
        """
        names = [one.path.rsplit("/", 1)[-1] for one in self._files.files(self._folder(scope, name))]
        return sorted(int(one) for one in names if _VERSION.fullmatch(one))

    def names(self, scope: ArtifactOwner) -> list[str]:
        """The names of a scope's artifacts, sorted.

        Raises:
            StoreError: the folder could not be listed.
        """
        found = self._files.at_once(self._name_of, self._files.folders(self._base(scope)))
        return sorted(name for name in found if name is not None)

    def delete(self, scope: ArtifactOwner, name: str) -> None:
        """Deletes all versions; an artifact that is not there is passed over.

        Raises:
            StoreError: one could not be deleted.
        """
        there = self._files.files(self._folder(scope, name))
        for one in sorted(there, key=lambda file: file.path.endswith(f"/{_NAME}")):
            self._files.delete(one.path)

    def _latest(self, scope: ArtifactOwner, name: str) -> int | None:
        return max(self.versions(scope, name), default=None)

    def _base(self, scope: ArtifactOwner) -> str:
        owners = [scope.app, scope.user, *([] if scope.session is None else [scope.session])]
        return "/".join([self._files.root, *map(segment, owners), _FOLDER])

    def _folder(self, scope: ArtifactOwner, name: str) -> str:
        return f"{self._base(scope)}/{segment(name)}"

    def _tell_names(self, scope: ArtifactOwner, name: str) -> None:
        """Writes down the names that segments do not show."""
        for folder, hidden in self._named(scope, name):
            if segment(hidden) != hidden:
                told = canonical_json({"name": hidden}).encode("utf-8", "surrogatepass")
                self._files.create(f"{folder}/{_NAME}", told)

    def _named(self, scope: ArtifactOwner, name: str) -> list[tuple[str, str]]:
        """The folders on the way to an artifact's versions, each with the name that it stands for."""
        owners = [scope.app, scope.user, *([] if scope.session is None else [scope.session])]
        path = list(accumulate(map(segment, owners), "{}/{}".format, initial=self._files.root))[1:]
        return [*zip(path, owners, strict=True), (self._folder(scope, name), name)]

    def _name_of(self, folder: str) -> str | None:
        """The name of the artifact in a folder; None where it has no version, or hides its name."""
        held = {one.path.rsplit("/", 1)[-1] for one in self._files.files(folder)}
        if not any(_VERSION.fullmatch(one) for one in held):
            return None
        shown = folder.rsplit("/", 1)[-1]
        if "~" not in shown:
            return shown
        try:
            name = json.loads(self._files.read(f"{folder}/{_NAME}").decode("utf-8", "surrogatepass"))["name"]
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None
        return name if isinstance(name, str) and segment(name) == shown else None


def relative_name(uri: str) -> str:
    """The name that a session-relative URI means: ``artifact://tasks/42/report.md`` is ``tasks/42/report.md``.

    Raises:
        ArtifactError: it is of another scheme, absolute, leaves its session, or hides a separator.
    """
    if not uri.startswith(SCHEME):
        raise ArtifactError(f"artifact URI {uri!r}: it begins with {SCHEME}")
    name = uri.removeprefix(SCHEME)
    decoded = name
    for _ in range(3):  # what was encoded more than once is looked at as well
        decoded = unquote(decoded, errors="replace")
    pieces = re.split(r"[/\\]", decoded)
    if not name or any(piece in ("", ".", "..") for piece in pieces):
        raise ArtifactError(f"artifact URI {uri!r} is no path inside its session: name it as {SCHEME}folder/file")
    if "\\" in decoded or len(pieces) != name.count("/") + 1 or any(ord(one) < 32 for one in decoded):
        raise ArtifactError(f"artifact URI {uri!r} holds an encoded separator or a control character: write it plainly")
    if pieces[0].endswith(":") or name.startswith("user:"):
        raise ArtifactError(f"artifact URI {uri!r} is not of its session: name it as {SCHEME}folder/file")
    return name


def absolute(uri: str) -> tuple[ArtifactOwner, str, int] | None:
    """Whose artifact, its name and its version, of a URI as ADK writes it; None where it is none.

    ``artifact://apps/{app}/users/{user}[/sessions/{session}]/artifacts/{name}/versions/{version}``
    """
    found = _ABSOLUTE.fullmatch(uri)
    if found is None:
        return None
    app, user, session, name, version = found.groups()
    return ArtifactOwner(app=app, user=user, session=session), name.removeprefix("user:"), int(version)


def _head(line: bytes, name: str, number: int) -> Mapping[str, JSON]:
    try:
        head = json.loads(line.decode("utf-8", "surrogatepass"))
    except ValueError as error:
        raise ArtifactError(f"artifact {name!r}, version {number}, is damaged: delete it or save it again") from error
    if not isinstance(head, dict):
        raise ArtifactError(f"artifact {name!r}, version {number}, is damaged: delete it or save it again")
    return head
