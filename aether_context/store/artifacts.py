"""Named, versioned artifacts of sessions and users on any fsspec URL, and the URIs that refer to them.

    {base}/{app}/{user}/{session}/artifacts/{name}/{version}    of a session
    {base}/{app}/{user}/artifacts/{name}/{version}              of a user, in all sessions

A version is one file, created exclusively: a line of canonical JSON that describes it, then its bytes. Segments are
those of `aether_context.store.files.segment`; ``name.json`` in a folder holds a name that is not safe as a segment.
Nothing here needs google-adk: the viewer reads artifacts without it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple, TypeAlias
from urllib.parse import unquote

from aether_context.canonical import JSON, canonical_json, hash_bytes
from aether_context.errors import ArtifactError
from aether_context.store.files import Files, segment
from aether_context.text.entities import SCHEME

Owner: TypeAlias = tuple[str, ...]
"""App, user and session; app and user alone own what a user has in all sessions."""

_VERSION = re.compile(r"0|[1-9]\d{0,17}")
_ABSOLUTE = re.compile(
    rf"{SCHEME}apps/([^/]+)/users/([^/]+)(?:/sessions/([^/]+))?/artifacts/(.+)/versions/(\d{{1,18}})", re.DOTALL
)
_HEAD_BYTES = 4_096
_MOST_ATTEMPTS = 100


class Version(NamedTuple):
    """One version of an artifact: its number from 0, the fields that describe it, and its bytes where requested."""

    number: int
    head: Mapping[str, JSON]
    data: bytes = b""


class ArtifactFiles:
    """Artifacts below a base URL. Each method raises `StoreError` where the store cannot be read or written."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def save(self, owner: Owner, name: str, head: Mapping[str, JSON], data: bytes) -> int:
        """Writes a new version and returns its number. Two writers at the same moment get different numbers."""
        folder, names = self._folder(owner, name), self._files.name_files(*owner)
        if segment(name) != name:
            names[f"{folder}/name.json"] = canonical_json({"name": name}).encode()
        for path, content in names.items():
            self._files.create(path, content)
        content = _content({**head, "name": name}, data)
        first = max(self.versions(owner, name), default=-1) + 1
        for number in range(first, first + _MOST_ATTEMPTS):
            if self._files.create(f"{folder}/{number}", content):
                return number
        raise ArtifactError(f"artifact {name!r}: {_MOST_ATTEMPTS} other versions were saved meanwhile; save it again")

    def load(self, owner: Owner, name: str, number: int | None, *, with_data: bool = True) -> Version | None:
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
        head = None
        with suppress(ValueError):
            head = json.loads(line)
        if not isinstance(head, dict):
            raise ArtifactError(f"artifact {name!r}, version {number}, is damaged: delete it or save it again")
        return Version(number, head, data if with_data else b"")

    def described(self, owner: Owner, name: str) -> list[Version]:
        """All versions without their bytes, in order."""
        numbers = self.versions(owner, name)
        versions = self._files.at_once(lambda number: self.load(owner, name, number, with_data=False), numbers)
        return [version for version in versions if version is not None]

    def versions(self, owner: Owner, name: str) -> list[int]:
        """The numbers of the versions, ascending."""
        files = self._files.files(self._folder(owner, name))
        return sorted(int(file.name) for file in files if _VERSION.fullmatch(file.name))

    def names(self, owner: Owner) -> list[str]:
        """The names of an owner's artifacts, sorted."""
        names = self._files.at_once(self._name_of, self._files.folders(f"{self._files.place(*owner)}/artifacts"))
        return sorted(name for name in names if name is not None)

    def delete(self, owner: Owner, name: str) -> None:
        """Deletes all versions; an artifact that does not exist is no error."""
        files = self._files.files(self._folder(owner, name))
        # The name goes last: without it, versions that are still there could not be listed.
        for file in sorted(files, key=lambda file: file.name == "name.json"):
            self._files.delete(file.path)

    def _folder(self, owner: Owner, name: str) -> str:
        return f"{self._files.place(*owner)}/artifacts/{segment(name)}"

    def _name_of(self, folder: str) -> str | None:
        """The name of the artifact in a folder; None where it has no version, or its ``name.json`` does not fit."""
        folder_name = folder.rsplit("/", 1)[-1]
        if not any(_VERSION.fullmatch(file.name) for file in self._files.files(folder)):
            return None
        if "~" not in folder_name:
            return folder_name
        with suppress(FileNotFoundError, ValueError, KeyError, TypeError):
            name = json.loads(self._files.read(f"{folder}/name.json"))["name"]
            return name if isinstance(name, str) and segment(name) == folder_name else None
        return None


def _content(head: Mapping[str, JSON], data: bytes) -> bytes:
    """The file of a version: its head with the hash of all of it, and its bytes."""
    digest = hash_bytes(canonical_json(dict(head)).encode() + data)
    return canonical_json({**head, "hash": digest}).encode() + b"\n" + data


def is_artifact(content: bytes) -> bool:
    """Tells whether a file holds a version as it was written."""
    line, _, data = content.partition(b"\n")
    head = json.loads(line)
    return _content({key: value for key, value in head.items() if key != "hash"}, data) == content


def artifact_owner(uri: str, session: Owner) -> tuple[Owner, str, int | None]:
    """Owner, name and version of what an ``artifact://`` URI stands for in a session; without a version, the last one.

    The URI is relative to the session (``artifact://tasks/42/report.md``), or absolute as ADK writes it
    (``artifact://apps/{app}/users/{user}[/sessions/{session}]/artifacts/{name}/versions/{version}``).

    Raises:
        ArtifactError: it is neither, belongs to another app, user or session, leaves the session, or hides a separator.
    """
    if not uri.startswith(SCHEME):
        raise ArtifactError(f"artifact URI {uri!r}: it begins with {SCHEME}")
    owner, name, version = session, uri.removeprefix(SCHEME), None
    if (match := _ABSOLUTE.fullmatch(uri)) is not None:
        owner, version = tuple(part for part in match.groups()[:3] if part is not None), int(match[5])
        if owner not in (session, session[:2]):
            raise ArtifactError(f"artifact URI {uri!r} is not of this session: name one of its own")
        name = match[4].removeprefix("user:")
    decoded = name
    for _ in range(3):  # it may be encoded more than once
        decoded = unquote(decoded, errors="replace")
    segments = re.split(r"[/\\]", decoded)
    if any(part in ("", ".", "..") for part in segments):
        raise ArtifactError(f"artifact URI {uri!r} is no path inside its session: name it as {SCHEME}folder/file")
    if "\\" in decoded or len(segments) != name.count("/") + 1 or any(ord(character) < 32 for character in decoded):
        raise ArtifactError(f"artifact URI {uri!r} holds an encoded separator or a control character: write it plainly")
    if segments[0].endswith(":") or name.startswith("user:"):
        raise ArtifactError(f"artifact URI {uri!r} is not of its session: name it as {SCHEME}folder/file")
    return owner, name, version
