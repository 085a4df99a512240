"""Packs on any fsspec URL: manifests written once, content by its hash, nothing named by a model or a tool.

    {base}/{app}/{user}/{session}/packs/{pack_id}.json.gz    a pack: manifest, texts and outcome, see `pack_file`
    {base}/{app}/{user}/{session}/messages/{hash}.txt        what was taken out of an oversized message
    {base}/{app}/{user}/{session}/evidence/{hash}.json       what is known of a tool's result
    {base}/{app}/{user}/evidence/{h}/{hash}.bin              the result itself, by content
    {base}/{app}/{user}/blobs/{h}/{hash}.json.gz             settings and policies by content
    {base}/{app}/{user}/calibration/{model}.json             how counted tokens become reported ones
    {base}/{app}/{user}/summaries/{h}/{hash}.txt             what a model wrote, by what it was asked
    {base}/{app}/{user}/vectors/{encoder}/{hash}.bin         vectors of a user's texts, a batch each
    {base}/hours/{day}/{hour}/{app}/{user}/{session}         which sessions have packs of that hour

A path segment is the name itself where that is safe, else a readable stub with a hash; ``name.json`` in the folder
then holds the name.

Earlier versions wrote a folder for each pack, with ``manifest.json`` and ``outcome.json``, its texts as blobs, and
blobs as they are. Such packs are read like others. A pack's place is the path of its file without the ending, or of
its folder.
"""

from __future__ import annotations

import copy
import json
import os
import re
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING, Any

from cachetools import LRUCache

from aether_context.canonical import HASH_TAG, JSON, canonical_json, hash_bytes, short
from aether_context.errors import BlobNotFound, ChecksumMismatch, ManifestError, PackNotFound, StoreError
from aether_context.evidence import EvidenceRecord
from aether_context.store.files import File, Files, segment
from aether_context.store.pack_file import (
    BASE,
    ENDING,
    compressed,
    decompressed,
    fields_of,
    merged,
    read_lines,
    read_manifest,
    with_outcome,
)
from aether_context.store.recording import Recording
from aether_context.text.entities import SCHEME

if TYPE_CHECKING:
    from aether_context.store.manifest import Manifest

_NO_SESSIONS = ("blobs", "summaries", "vectors", "calibration", "evidence", "artifacts")
_HOURS = "hours"
DEFAULT_STORE = "artifacts"
"""The store where a plugin names none; the command line has the same."""
HOUR = re.compile(r"pack_(\d{8})T(\d{2})")
"""How a pack's id begins: with the day and the hour of the session's last event, in UTC."""
_MESSAGE = re.compile(r"messages/[0-9a-f]{16}\.txt")
_MOST_KNOWN = 10_000
_KNOWN_SECONDS = 900.0
_MOST_BASES = 64


class PackStore:
    """Reads and writes packs below a base URL, each with `StoreError` where that cannot be done.

    Args:
        url: any fsspec URL or a local path: ``artifacts``, ``memory://packs``, ``s3://bucket/prefix``.
        options: storage options of the protocol.

    Raises:
        MissingExtra: the protocol needs a package that is not installed.
        StoreError: the protocol is unknown.
    """

    def __init__(self, url: str | os.PathLike[str], **options: Any) -> None:
        self.files = Files(url, options)
        self._known: LRUCache[str, float] = LRUCache(_MOST_KNOWN)
        self._bases: dict[str, Mapping[str, JSON]] = {}

    @property
    def url(self) -> str:
        """The base URL."""
        return self.files.url

    def through(self, files: Files) -> PackStore:
        """The same store, read and written through other files."""
        other = copy.copy(self)
        other.files = files
        other._known = LRUCache(_MOST_KNOWN)
        other._bases = {}
        return other

    def command(self, words: str) -> str:
        """A line that runs a command on this store."""
        option = "" if self.url == DEFAULT_STORE else f" --store {shlex.quote(self.url)}"
        return f"aether-context {words}{option}"

    def __repr__(self) -> str:
        return f"PackStore({self.url!r})"

    # packs

    def write(self, recording: Recording, outcome: Mapping[str, JSON] | None = None) -> Manifest:
        """Writes a recording: blobs first, the pack last, so that a manifest never names what is not there.

        Writing an equal recording again changes nothing. Where the id is taken by another pack, the next free number
        is appended to it, and the manifest comes back with that.

        Args:
            outcome: what became of the model call, where that is known already.
        """
        manifest, pack_id, number = recording.manifest, recording.manifest.pack_id, 1
        blobs = {self.blob_path(manifest, digest): _compressed(data) for digest, data in recording.blobs.items()}
        there = [path for path, data in blobs.items() if not self._create_known(path, data)]
        for uri, saved in recording.saved.items():
            path = f"{self.files.place(*manifest.session_key)}/{uri.removeprefix(SCHEME)}"
            self.files.create(path, saved.encode("utf-8", "surrogatepass"))
        for path, data in self.files.name_files(*manifest.session_key).items():
            self.files.create(path, data)
        self._create_known(self.hour_entry(manifest), b"{}")
        while not self._create(recording, outcome):
            if self._holds(recording.manifest):
                if outcome is not None:
                    self.write_outcome(recording.manifest, outcome)
                break
            number += 1
            recording = recording.changed(pack_id=f"{pack_id}-{number}")
        for path in there:  # a `gc` that had not seen the manifest yet may have taken it
            self.files.create(path, blobs[path])
        return recording.manifest

    def _create(self, recording: Recording, outcome: Mapping[str, JSON] | None) -> bool:
        data = recording.data if outcome is None else with_outcome(recording.data, outcome)
        return self.files.create(f"{self.place(recording.manifest)}{ENDING}", data)

    def _holds(self, manifest: Manifest) -> bool:
        """Whether an equal manifest is there; what cannot be read is another one, and must hold nothing back."""
        try:
            return self.read(self.place(manifest)).digest == manifest.digest
        except (ManifestError, PackNotFound):
            return False

    def _create_known(self, path: str, data: bytes) -> bool:
        """Creates a file that never changes; False where it was there, and this store did not know.

        For a while there is no need to look again: a `gc` takes nothing that packs of the last hour name.
        """
        now = time.monotonic()
        if now - self._known.get(path, -_KNOWN_SECONDS) < _KNOWN_SECONDS:
            return True
        created = self.files.create(path, data)
        self._known[path] = now
        return created

    def manifests(
        self, app: str | None = None, user: str | None = None, session: str | None = None
    ) -> Iterator[Manifest]:
        """Manifests in the order in which their packs were built, all or those of one app, user or session."""
        for _, places in groupby(self.places(app, user, session), key=lambda place: _name(place).split("_")[1]):
            found = []
            for place in places:
                try:
                    found.append(self.read(place))
                except PackNotFound:
                    if self.lines(place) is not None:  # what it stands on is missing
                        raise
                    continue  # deleted since the packs were listed
            yield from sorted(found, key=lambda manifest: (manifest.last_event_time, manifest.call, manifest.pack_id))

    def manifest(self, pack_id: str, *, app: str | None = None, user: str | None = None) -> Manifest:
        """The manifest of a pack, by whatever `find` takes."""
        return self.read(self.find(pack_id, app=app, user=user))

    def find(self, pack_id: str, *, app: str | None = None, user: str | None = None) -> str:
        """The place of a pack by its id, the beginning of its id, or the hash at the end of it.

        With an app or a user it is one of theirs.

        Raises:
            PackNotFound: there is none, or more than one.
        """
        begins = pack_id if pack_id.startswith("pack_") else f"pack_{pack_id}"
        known = (self.places(app, user, begins=begins) if HOUR.match(begins) else []) or self.places(app, user)
        found = [place for place in known if _name(place) == pack_id] or [
            place
            for place in known
            if pack_id and (_name(place).startswith(begins) or _name(place).rsplit("_", 1)[-1].startswith(pack_id))
        ]
        if not found:
            raise PackNotFound(f"no pack {pack_id!r} in {self.url}: `{self.command('list')}` shows what is there")
        if len(found) > 1:
            names = ", ".join(map(_name, found[:3]))
            raise PackNotFound(f"{pack_id!r} stands for {len(found)} packs ({names}, …): give more of the id")
        return found[0]

    def read(self, place: str) -> Manifest:
        """The whole manifest of the pack at a place.

        Raises:
            PackNotFound: it is not there, or the first pack of its chain is not.
            ManifestError: it is damaged.
        """
        from aether_context.store.manifest import Manifest

        try:
            return Manifest.of(self.filled(place, self.fields(place)))
        except ManifestError as error:
            path = self._path(place)
            raise type(error)(f"{error} (pack {_name(place)}, {self.files.url_of(path)})") from error

    def filled(self, place: str, fields: dict[str, JSON]) -> dict[str, JSON]:
        """The fields of the manifest at a place, from those in its file; errors as for `read`."""
        if BASE in fields:
            return merged(fields, self._base(place, fields[BASE]))
        self._keep_base(place, fields)
        return fields

    def fields(self, place: str) -> dict[str, JSON]:
        """What the file of a pack itself says of its manifest, see `pack_file`; errors as for `read`."""
        data = self.files.get(f"{place}{ENDING}")
        line = read_manifest(data) if data is not None else self.files.get(f"{place}/manifest.json")
        if line is None:
            raise PackNotFound(f"{place}{ENDING} is not there")
        return fields_of(line)

    def _base(self, place: str, base: JSON) -> Mapping[str, JSON]:
        """The fields of the first manifest of a chain, which do not change while it is there."""
        if not isinstance(base, str) or "/" in base:
            raise ManifestError("not a manifest: its base is no pack")
        path = f"{place.rpartition('/')[0]}/{base}"
        found = self._bases.get(path)
        if found is None:
            try:
                found = self.fields(path)
            except PackNotFound as error:
                raise PackNotFound(f"{_name(place)} extends {base}, which is not in {self.url}") from error
            except ManifestError as error:
                raise type(error)(f"it extends {base}, which cannot be read: {error}") from error
            self._keep_base(path, found)
        return found

    def _keep_base(self, place: str, fields: Mapping[str, JSON]) -> None:
        if len(self._bases) >= _MOST_BASES:
            self._bases.clear()
        self._bases[place] = fields

    def lines(self, place: str) -> tuple[bytes, bytes, bytes | None] | None:
        """The manifest as it is written, the texts and the outcome of a pack, None where it is not there."""
        data = self.files.get(f"{place}{ENDING}")
        if data is not None:
            return read_lines(data)
        data = self.files.get(f"{place}/manifest.json")
        return None if data is None else (data, b"", self.files.get(f"{place}/outcome.json"))

    def parent(self, manifest: Manifest) -> Manifest | None:
        """The manifest that this one extends, None where it stands alone; `PackNotFound` where it is missing."""
        if manifest.parent is None:
            return None
        place = f"{self.place(manifest).rpartition('/')[0]}/{manifest.parent}"
        try:
            return self.read(place)
        except PackNotFound as error:
            if self.lines(place) is not None:
                raise
            raise PackNotFound(f"{manifest.pack_id} extends {manifest.parent}, which is not in {self.url}") from error

    def chain(self, manifest: Manifest) -> list[Manifest]:
        """The manifest and its ancestors, the oldest first.

        Raises:
            PackNotFound: one is missing.
            ManifestError: one is damaged, or its own ancestor.
        """
        chain, names = [manifest], {manifest.pack_id}
        while (parent := self.parent(chain[-1])) is not None:
            if parent.pack_id in names:
                raise ManifestError(f"{parent.pack_id} extends itself: its manifest is not what was written")
            chain.append(parent)
            names.add(parent.pack_id)
        return chain[::-1]

    def blob(self, manifest: Manifest, digest: str) -> bytes:
        """A blob that a manifest names; `BlobNotFound` where it is not there, `ChecksumMismatch` where it changed."""
        path = self.blob_path(manifest, digest)
        if digest in manifest.texts:
            lines = self.lines(self.place(manifest))
            if lines is not None and lines[1]:
                if hash_bytes(lines[1]) != digest:
                    raise ChecksumMismatch(f"the texts in {self.place(manifest)}{ENDING} are not {digest}")
                return lines[1]
        elif (data := self.files.get(path)) is not None:
            try:
                data = decompressed(data)
            except ManifestError as error:
                raise ChecksumMismatch(f"{path} does not hold what its name says: {error}") from error
            return _checked(data, digest, path)
        missing = f"{manifest.pack_id} names {digest}, which is not in {self.url}"
        return self._by_digest(path.removesuffix(".gz"), digest, missing)

    def write_outcome(self, manifest: Manifest | str, outcome: Mapping[str, JSON], data: bytes | None = None) -> None:
        """Adds what became of a pack's model call to the pack. A second outcome for the same pack is ignored.

        Args:
            manifest: the pack's, or its place.
            data: the pack's file without an outcome; None looks.

        Raises:
            PackNotFound: the pack is not there.
        """
        path = f"{manifest if isinstance(manifest, str) else self.place(manifest)}{ENDING}"
        if data is None:
            data = self.files.get(path)
            if data is None:
                raise PackNotFound(f"{path} is not there")
            if read_lines(data)[2] is not None:
                return
        self.files.extend(path, with_outcome(data, outcome))

    def outcome(self, manifest: Manifest) -> dict[str, JSON] | None:
        """What became of a pack's model call; None where nothing was written."""
        place = self.place(manifest)
        try:
            lines = self.lines(place)
            found: JSON = None if lines is None or lines[2] is None else json.loads(lines[2])
            if not isinstance(found, dict | None):
                raise ManifestError(f"it is a {type(found).__name__}")
        except (ValueError, RecursionError, ManifestError) as error:
            raise StoreError(f"the outcome of {place} could not be read: {error}") from error
        return found

    def message(self, app: str, user: str, session: str, name: str) -> bytes | None:
        """What was taken out of an oversized message, by its name, ``messages/{hash}.txt``; None where nothing was."""
        return self.files.get(f"{self.files.place(app, user, session)}/{name}") if _MESSAGE.fullmatch(name) else None

    # evidence

    def write_evidence(self, app: str, user: str, session: str, record: EvidenceRecord, data: bytes) -> None:
        """Keeps a piece of evidence and what is known of it; the same once more changes nothing."""
        self._create_known(self.evidence_path(app, user, record.digest), data)
        value = canonical_json(record.model_dump(mode="json", exclude_defaults=True))
        self.files.create(f"{self.files.place(app, user, session)}/evidence/{record.name}.json", value.encode())

    def evidence(self, app: str, user: str, session: str) -> list[EvidenceRecord]:
        """What is known of a session's evidence, in the order in which it came."""
        found = self.evidence_files(app, user, session)
        return sorted(found.values(), key=lambda record: (record.time or 0.0, record.name))

    def evidence_files(self, app: str, user: str, session: str) -> dict[str, EvidenceRecord]:
        """The same by the path of the file that says it."""
        folder = f"{self.files.place(app, user, session)}/evidence"
        paths = [file.path for file in self.files.files(folder)]
        try:
            found = self.files.at_once(self.files.read, paths)
            return {path: EvidenceRecord.model_validate_json(data) for path, data in zip(paths, found, strict=True)}
        except (FileNotFoundError, ValueError) as error:
            raise StoreError(f"{folder} could not be read: {error}") from error

    def evidence_data(self, app: str, user: str, digest: str) -> bytes:
        """The bytes of a piece of evidence; `BlobNotFound` and `ChecksumMismatch` as for `blob`."""
        return self._by_digest(self.evidence_path(app, user, digest), digest, f"{digest} is not in {self.url}")

    def evidence_digests(self, app: str, user: str, digits: str) -> list[str]:
        """The hashes of a user's evidence that begin with the digits of an address."""
        folder = self.evidence_path(app, user, digits).rsplit("/", 1)[0]
        names = sorted(file.name.removesuffix(".bin") for file in self.files.files(folder))
        return [f"{HASH_TAG}{name}" for name in names if name.startswith(digits)]

    def _by_digest(self, path: str, digest: str, missing: str) -> bytes:
        data = self.files.get(path)
        if data is None:
            raise BlobNotFound(missing)
        return _checked(data, digest, path)

    # caches

    def write_summary(self, app: str, user: str, key: str, text: str) -> None:
        """Keeps a summary that a model wrote, under the hash over what it was asked with."""
        self.files.create(self._by_hash(app, user, "summaries", key, ".txt"), text.encode("utf-8", "surrogatepass"))

    def summary(self, app: str, user: str, key: str) -> str | None:
        """A summary that a model wrote for this user, None where there is none."""
        data = self.files.get(self._by_hash(app, user, "summaries", key, ".txt"))
        return None if data is None else data.decode("utf-8", "surrogatepass")

    def write_calibration(self, app: str, user: str, model: str, value: JSON) -> None:
        """Keeps what a user's usage of a model has taught, in the place of what was kept before."""
        path = f"{self.files.place(app, user)}/calibration/{segment(model)}.json"
        self.files.replace(path, canonical_json(value).encode())

    def calibration(self, app: str, user: str, model: str) -> JSON:
        """What `write_calibration` kept last, None where there is nothing to be read."""
        data = self.files.get(f"{self.files.place(app, user)}/calibration/{segment(model)}.json")
        try:
            return None if data is None else json.loads(data)
        except ValueError:
            return None

    def write_vectors(self, app: str, user: str, encoder: str, data: bytes) -> str | None:
        """Keeps a batch of vectors of a user's texts by an encoder; its path, None where the same was there already."""
        path = f"{self.files.place(app, user)}/vectors/{segment(encoder)}/{short(hash_bytes(data), 64)}.bin"
        return path if self.files.create(path, data) else None

    def vector_files(self, app: str, user: str, encoder: str) -> list[File]:
        """The batches of vectors that are kept of a user's texts, those written last first."""
        found = self.files.files(f"{self.files.place(app, user)}/vectors/{segment(encoder)}")
        return sorted(found, key=lambda file: (-(file.modified or 0.0), file.path))

    def vectors(self, files: Sequence[File]) -> list[bytes | None]:
        """The batches in files; None for one that is not there any more, or not what was written."""

        def read(file: File) -> bytes | None:
            data = self.files.get(file.path)
            return data if data is not None and file.name == f"{short(hash_bytes(data), 64)}.bin" else None

        return self.files.at_once(read, files)

    # where what is

    def place(self, manifest: Manifest) -> str:
        """The place of a pack."""
        return f"{self.files.place(*manifest.session_key)}/packs/{manifest.pack_id}"

    def uri(self, manifest: Manifest) -> str:
        """Where the manifest is, as a URL."""
        return self.files.url_of(self._path(self.place(manifest)))

    def _path(self, place: str) -> str:
        """The file that holds the manifest of the pack at a place."""
        return f"{place}/manifest.json" if self.files.files(place) else f"{place}{ENDING}"

    def uri_of(self, app: str, user: str, session: str, pack_id: str) -> str:
        """Where the manifest of a pack is, or will be, as a URL."""
        return self.files.url_of(f"{self.files.place(app, user, session)}/packs/{pack_id}{ENDING}")

    def blob_path(self, manifest: Manifest, digest: str) -> str:
        """Where a blob of the manifest's user is."""
        return self._by_hash(manifest.app, manifest.user, "blobs", digest, ENDING)

    def evidence_path(self, app: str, user: str, digest: str) -> str:
        """Where a piece of a user's evidence is."""
        return self._by_hash(app, user, "evidence", digest, ".bin")

    def _by_hash(self, app: str, user: str, folder: str, digest: str, ending: str) -> str:
        name = short(digest, 64)
        return f"{self.files.place(app, user)}/{folder}/{name[0]}/{name}{ending}"

    def hour_of(self, pack: str) -> str:
        """The folder of the hour of a pack, by its id or its place."""
        found = HOUR.match(_name(pack))
        day, hour = (found[1], found[2]) if found else ("19700101", "00")
        return f"{self.files.root}/{_HOURS}/{day}/{hour}"

    def hour_entry(self, manifest: Manifest) -> str:
        """The path by which an hour tells that the manifest's session has packs of it."""
        session = self.files.place(*manifest.session_key)
        return self.hour_of(manifest.pack_id) + session.removeprefix(self.files.root)

    def owners(self, app: str | None = None, user: str | None = None) -> list[str]:
        """The folders of users."""
        return self._inside(self._inside([self.files.root], app, (_HOURS,)), user)

    def places(
        self,
        app: str | None = None,
        user: str | None = None,
        session: str | None = None,
        *,
        begins: str = "",
        newest: int | None = None,
    ) -> list[str]:
        """The places of packs, by the times in their names: those whose id begins so, and so many of the newest."""
        hour, found = HOUR.match(begins), None
        if session is None and (hour or newest):
            found = self._recent(app, user, hour, newest)
        if found is None:
            found = self._packs_of(self.sessions(app, user, session))
        found = sorted((pack for pack in found if _name(pack).startswith(begins)), key=lambda pack: (_name(pack), pack))
        return found[-newest:] if newest else found

    def _recent(
        self, app: str | None, user: str | None, hour: re.Match[str] | None, newest: int | None
    ) -> list[str] | None:
        """The packs of so many of the last hours as hold what is asked for; None where the hours cannot tell."""
        found: list[str] = []
        for folder in [f"{self.files.root}/{_HOURS}/{hour[1]}/{hour[2]}"] if hour else self._hours():
            sessions = []
            for file in self.files.below(folder):
                name = file.path.removeprefix(f"{folder}/")
                of_app, of_user, _ = name.split("/", 2)
                if (app is None or of_app == segment(app)) and (user is None or of_user == segment(user)):
                    sessions.append(f"{self.files.root}/{name}")
            stamp = "pack_{}T{}".format(*folder.rsplit("/", 2)[1:])
            found += [pack for pack in self._packs_of(sessions) if _name(pack).startswith(stamp)]
            if newest and len(found) >= newest:
                return found
        return found if hour and found else None

    def _hours(self) -> Iterator[str]:
        """The folders of hours in which there are packs, the last one first."""
        for day in sorted(self.files.folders(f"{self.files.root}/{_HOURS}"), reverse=True):
            yield from sorted(self.files.folders(day), reverse=True)

    def sessions(self, app: str | None = None, user: str | None = None, session: str | None = None) -> list[str]:
        """The folders of sessions."""
        return self._inside(self.owners(app, user), session, _NO_SESSIONS)

    def pack_files(self, session: str) -> list[File]:
        """The files of the packs in a session's folder, whose paths without the ending are their places.

        Packs that earlier versions wrote as folders are among them by their manifests.
        """
        folders, files = self.files.inside(f"{session}/packs")
        old = [file for folder in folders for file in self.files.files(folder) if file.name == "manifest.json"]
        return files + [replace(file, path=file.path.rpartition("/")[0]) for file in old]

    def _packs_of(self, sessions: list[str]) -> list[str]:
        found = self.files.at_once(lambda session: self.files.inside(f"{session}/packs"), sessions)
        paths = [path for folders, files in found for path in (*folders, *(file.path for file in files))]
        return [path.removesuffix(ENDING) for path in paths]

    def _inside(self, folders: list[str], name: str | None, others: Sequence[str] = ()) -> list[str]:
        """In each folder the one of a name, or all but some."""
        if name is not None:
            return [f"{folder}/{segment(name)}" for folder in folders]
        found = self.files.at_once(self.files.folders, folders)
        return [inner for listed in found for inner in listed if _name(inner) not in others]


_compressed = lru_cache(maxsize=64)(compressed)


def _checked(data: bytes, digest: str, path: str) -> bytes:
    if hash_bytes(data) != digest:
        raise ChecksumMismatch(f"{path} does not hold what its name says")
    return data


def _name(path: str) -> str:
    return path.rsplit("/", 1)[-1]
