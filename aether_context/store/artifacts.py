"""Named, versioned artifacts of sessions and users on any fsspec URL, and the URIs that refer to them.

    {base}/{app}/{user}/{session}/artifacts/{name}/{version}    of a session
    {base}/{app}/{user}/artifacts/{name}/{version}              of a user, in all sessions

A version is one file, created exclusively: a line of canonical JSON that describes it, then its bytes. Segments are
those of `aether_context.store.files.segment`; ``name.json`` in a folder holds a name that is not safe as a segment.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote

from aether_context.canonical import JSON, canonical_json, hash_bytes
from aether_context.errors import ArtifactError
from aether_context.store.files import Files, segment
from aether_context.text.entities import SCHEME

_VERSION = re.compile(r"0|[1-9]\d{0,17}")
_ABSOLUTE = re.compile(
    rf"{SCHEME}apps/([^/]+)/users/([^/]+)(?:/sessions/([^/]+))?/artifacts/(.+)/versions/(\d{{1,18}})", re.DOTALL
)
_HEAD_BYTES = 4_096
_MOST_ATTEMPTS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactOwner:
    """Who has artifacts: a session, or where ``session`` is None a user, who has them in all sessions."""

    app: str
    user: str
    session: str | None

    @property
    def names(self) -> tuple[str, ...]:
        return (self.app, self.user) if self.session is None else (self.app, self.user, self.session)


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One version of an artifact: its number from 0, the fields that describe it, and its bytes where requested."""

    number: int
    head: Mapping[str, JSON]
    data: bytes = field(default=b"", repr=False)


class ArtifactFiles:
    """Artifacts below a base URL. Each method raises `StoreError` where the store cannot be read or written."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def save(self, owner: ArtifactOwner, name: str, head: Mapping[str, JSON], data: bytes) -> int:
        """Writes a new version and returns its number. Two writers at the same moment get different numbers."""
        for path, names in self._name_files(owner, name).items():
            self._files.create(path, names)
        content = _content({**head, "name": name}, data)
        first = max(self.versions(owner, name), default=-1) + 1
        for number in range(first, first + _MOST_ATTEMPTS):
            if self._files.create(f"{self._folder(owner, name)}/{number}", content):
                return number
        raise ArtifactError(f"artifact {name!r}: {_MOST_ATTEMPTS} other versions were saved meanwhile; save it again")

    def load(self, owner: ArtifactOwner, name: str, number: int | None, *, with_data: bool = True) -> Version | None:
        """A version, the last one where ``number`` is None. None where it does not exist, `ArtifactError` where it is
        damaged."""
        number = max(self.versions(owner, name), default=-1) if number is None else number
        if number < 0:
            return None
        path = f"{self._folder(owner, name)}/{number}"
        try:
            content = b"" if with_data else self._files.read(path, 0, _HEAD_BYTES)
            if b"\n" not in content:
                content = self._files.read(path)
        except FileNotFoundError:
            return None
        line, _, data = content.partition(b"\n")
        try:
            head = json.loads(line)
        except ValueError:
            head = None
        if not isinstance(head, dict):
            raise ArtifactError(f"artifact {name!r}, version {number}, is damaged: delete it or save it again")
        return Version(number=number, head=head, data=data if with_data else b"")

    def described(self, owner: ArtifactOwner, name: str) -> list[Version]:
        """All versions without their bytes, in order."""
        numbers = self.versions(owner, name)
        versions = self._files.at_once(lambda number: self.load(owner, name, number, with_data=False), numbers)
        return [version for version in versions if version is not None]

    def versions(self, owner: ArtifactOwner, name: str) -> list[int]:
        """The numbers of the versions, ascending."""
        files = self._files.files(self._folder(owner, name))
        return sorted(int(file.name) for file in files if _VERSION.fullmatch(file.name))

    def names(self, owner: ArtifactOwner) -> list[str]:
        """The names of an owner's artifacts, sorted."""
        names = self._files.at_once(self._name_of, self._files.folders(self._base(owner)))
        return sorted(name for name in names if name is not None)

    def delete(self, owner: ArtifactOwner, name: str) -> None:
        """Deletes all versions; an artifact that does not exist is no error."""
        files = self._files.files(self._folder(owner, name))
        for file in sorted(files, key=lambda file: file.name == "name.json"):
            self._files.delete(file.path)

    def _base(self, owner: ArtifactOwner) -> str:
        return f"{self._files.place(*owner.names)}/artifacts"

    def _folder(self, owner: ArtifactOwner, name: str) -> str:
        return f"{self._base(owner)}/{segment(name)}"

    def _name_files(self, owner: ArtifactOwner, name: str) -> dict[str, bytes]:
        """The paths of the ``name.json`` files on the way to an artifact, and their contents."""
        files = self._files.name_files(*owner.names)
        if segment(name) != name:
            files[f"{self._folder(owner, name)}/name.json"] = canonical_json({"name": name}).encode()
        return files

    def _name_of(self, folder: str) -> str | None:
        """The name of the artifact in a folder; None where it has no version, or its ``name.json`` does not fit."""
        folder_name = folder.rsplit("/", 1)[-1]
        if not any(_VERSION.fullmatch(file.name) for file in self._files.files(folder)):
            return None
        if "~" not in folder_name:
            return folder_name
        try:
            name = json.loads(self._files.read(f"{folder}/name.json"))["name"]
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None
        return name if isinstance(name, str) and segment(name) == folder_name else None


def _content(head: Mapping[str, JSON], data: bytes) -> bytes:
    """The file of a version: its head with the hash of all of it, and its bytes."""
    digest = hash_bytes(canonical_json(dict(head)).encode() + data)
    return canonical_json({**head, "hash": digest}).encode() + b"\n" + data


def is_artifact(content: bytes) -> bool:
    """Whether a file holds a version as it was written."""
    line, _, data = content.partition(b"\n")
    head = json.loads(line)
    return _content({key: value for key, value in head.items() if key != "hash"}, data) == content


def relative_name(uri: str) -> str:
    """The artifact's name in a session-relative URI: ``artifact://tasks/42/report.md`` is ``tasks/42/report.md``.

    Raises:
        ArtifactError: the URI has another scheme, is absolute, leaves its session, or hides a separator.
    """
    if not uri.startswith(SCHEME):
        raise ArtifactError(f"artifact URI {uri!r}: it begins with {SCHEME}")
    name = uri.removeprefix(SCHEME)
    decoded = name
    for _ in range(3):  # it may be encoded more than once
        decoded = unquote(decoded, errors="replace")
    segments = re.split(r"[/\\]", decoded)
    if not name or any(part in ("", ".", "..") for part in segments):
        raise ArtifactError(f"artifact URI {uri!r} is no path inside its session: name it as {SCHEME}folder/file")
    if "\\" in decoded or len(segments) != name.count("/") + 1 or any(ord(character) < 32 for character in decoded):
        raise ArtifactError(f"artifact URI {uri!r} holds an encoded separator or a control character: write it plainly")
    if segments[0].endswith(":") or name.startswith("user:"):
        raise ArtifactError(f"artifact URI {uri!r} is not of its session: name it as {SCHEME}folder/file")
    return name


def absolute(uri: str) -> tuple[ArtifactOwner, str, int] | None:
    """Owner, name and version in an absolute URI as ADK writes it; None where the URI is not of that form.

    ``artifact://apps/{app}/users/{user}[/sessions/{session}]/artifacts/{name}/versions/{version}``
    """
    match = _ABSOLUTE.fullmatch(uri)
    if match is None:
        return None
    app, user, session, name, version = match.groups()
    return ArtifactOwner(app=app, user=user, session=session), name.removeprefix("user:"), int(version)
