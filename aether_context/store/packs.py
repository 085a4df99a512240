"""Packs on any fsspec URL: manifests written once, content by its hash, nothing named by a model or a tool.

    {base}/{app}/{user}/{session}/packs/{pack_id}.json.gz    a pack: manifest, texts and outcome, see `pack_file`
    {base}/{app}/{user}/{session}/messages/{hash}.txt        what was taken out of an oversized message
    {base}/{app}/{user}/{session}/evidence/{hash}.json       what is known of a tool's result
    {base}/{app}/{user}/evidence/{h}/{hash}.bin              the result itself, by content
    {base}/{app}/{user}/blobs/{h}/{hash}.json.gz             settings and policies by content
    {base}/{app}/{user}/calibration/{model}.json             how counted tokens relate to those a provider reports
    {base}/{app}/{user}/summaries/{h}/{hash}.txt             summaries by a model, by the hash of its prompt
    {base}/{app}/{user}/vectors/{encoder}/{hash}.bin         a batch of vectors of the user's texts
    {base}/hours/{day}/{hour}/{app}/{user}/{session}         which sessions have packs of that hour

A path segment is the name itself where that is safe in a path, else a readable stub with a hash; ``name.json`` in the
folder then holds the name.

A pack's *place* is the path of its file without the ending.
"""

from __future__ import annotations

import copy
import json
import os
import re
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
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
_MOST_CALIBRATION_BYTES = 65_536


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
        copied = copy.copy(self)
        copied.files = files
        copied._known = LRUCache(_MOST_KNOWN)
        copied._bases = {}
        return copied

    def command(self, words: str) -> str:
        """A line that runs a command on this store."""
        option = "" if self.url == DEFAULT_STORE else f" --store {shlex.quote(self.url)}"
        return f"aether-context {words}{option}"

    def __repr__(self) -> str:
        return f"PackStore({self.url!r})"

    # packs

    def write(self, recording: Recording, outcome: Mapping[str, JSON] | None = None) -> Manifest:
        """Writes a recording: blobs first, the pack last, so that a manifest never names a blob that is not there.

        Writing an equal recording again changes nothing. Where another pack has the id, the next free number is
        appended to the id of this one; the manifest that is returned has the new id.

        Args:
            outcome: how the model call ended, where that is known already.
        """
        manifest, pack_id, number = recording.manifest, recording.manifest.pack_id, 1
        blobs = {self.blob_path(manifest, digest): _compressed(data) for digest, data in recording.blobs.items()}
        if manifest.parent is None:  # another process may have forgotten the user since
            for path in (*blobs, self.hour_entry(manifest)):
                self._known.pop(path, None)
        existing = [path for path, data in blobs.items() if not self._create_known(path, data)]
        for uri, text in recording.saved.items():
            path = f"{self.files.place(*manifest.session_key)}/{uri.removeprefix(SCHEME)}"
            self.files.create(path, text.encode("utf-8", "surrogatepass"))
        for path, data in self.files.name_files(*manifest.session_key).items():
            self.files.create(path, data)
        self._create_known(self.hour_entry(manifest), b"{}")
        while not self._create(recording, outcome):
            if self._has_equal(recording.manifest):
                if outcome is not None:
                    self.write_outcome(recording.manifest, outcome)
                break
            number += 1
            recording = recording.changed(pack_id=f"{pack_id}-{number}")
        for path in existing:  # a `gc` that had not seen the manifest yet may have deleted it
            self.files.create(path, blobs[path])
        return recording.manifest

    def _create(self, recording: Recording, outcome: Mapping[str, JSON] | None) -> bool:
        data = recording.data if outcome is None else with_outcome(recording.data, outcome)
        return self.files.create(f"{self.place(recording.manifest)}{ENDING}", data)

    def _has_equal(self, manifest: Manifest) -> bool:
        """Whether an equal manifest is stored. One that cannot be read counts as another, and blocks no write."""
        try:
            return self.read(self.place(manifest)).digest == manifest.digest
        except (ManifestError, PackNotFound):
            return False

    def _create_known(self, path: str, data: bytes) -> bool:
        """Creates a file that never changes; False where it existed, and this store did not know that.

        A path that was written or found in the last 15 minutes is not looked at again: `gc` deletes nothing that packs
        of the last hour name.
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
            manifests = []
            for place in places:
                try:
                    manifests.append(self.read(place))
                except PackNotFound:
                    if self.lines(place) is not None:  # the first pack of its chain is missing
                        raise
                    continue  # deleted since the packs were listed
            yield from sorted(
                manifests, key=lambda manifest: (manifest.last_event_time, manifest.call, manifest.pack_id)
            )

    def manifest(self, pack_id: str, *, app: str | None = None, user: str | None = None) -> Manifest:
        """The manifest of the pack that `find` finds."""
        return self.read(self.find(pack_id, app=app, user=user))

    def find(self, pack_id: str, *, app: str | None = None, user: str | None = None) -> str:
        """The place of a pack by its id, the beginning of its id, or the hash at the end of it.

        With an app or a user, only their packs are searched.

        Raises:
            PackNotFound: there is none, or more than one.
        """
        prefix = pack_id if pack_id.startswith("pack_") else f"pack_{pack_id}"
        places = (self.places(app, user, begins=prefix) if HOUR.match(prefix) else []) or self.places(app, user)
        matches = [place for place in places if _name(place) == pack_id] or [
            place
            for place in places
            if pack_id and (_name(place).startswith(prefix) or _name(place).rsplit("_", 1)[-1].startswith(pack_id))
        ]
        if not matches:
            raise PackNotFound(f"no pack {pack_id!r} in {self.url}: `{self.command('list')}` shows what is there")
        if len(matches) > 1:
            names = ", ".join(map(_name, matches[:3]))
            raise PackNotFound(f"{pack_id!r} stands for {len(matches)} packs ({names}, …): give more of the id")
        return matches[0]

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
            raise type(error)(f"{error} (pack {_name(place)}, {self._url_of(place)})") from error

    def filled(self, place: str, fields: dict[str, JSON]) -> dict[str, JSON]:
        """The whole manifest's fields, given those in the file at a place; errors as for `read`."""
        if BASE in fields:
            return merged(fields, self._base(place, fields[BASE]))
        self._keep_base(place, fields)
        return fields

    def fields(self, place: str) -> dict[str, JSON]:
        """The manifest's fields that the pack's own file holds, see `pack_file`; errors as for `read`."""
        data = self.files.get(f"{place}{ENDING}")
        if data is None:
            raise PackNotFound(f"{place}{ENDING} is not there")
        return fields_of(read_manifest(data))

    def _base(self, place: str, base: JSON) -> Mapping[str, JSON]:
        """The fields of the first manifest of a chain."""
        if not isinstance(base, str) or "/" in base:
            raise ManifestError("not a manifest: its base is no pack")
        path = f"{place.rpartition('/')[0]}/{base}"
        fields = self._bases.get(path)
        if fields is None:
            try:
                fields = self.fields(path)
            except PackNotFound as error:
                raise PackNotFound(f"{_name(place)} extends {base}, which is not in {self.url}") from error
            except ManifestError as error:
                raise type(error)(f"it extends {base}, which cannot be read: {error}") from error
            self._keep_base(path, fields)
        return fields

    def _keep_base(self, place: str, fields: Mapping[str, JSON]) -> None:
        if len(self._bases) >= _MOST_BASES:
            self._bases.clear()
        self._bases[place] = fields

    def lines(self, place: str) -> tuple[bytes, bytes, bytes | None] | None:
        """The lines of a pack's file: manifest, texts and outcome; None where there is no such pack."""
        data = self.files.get(f"{place}{ENDING}")
        return None if data is None else read_lines(data)

    def parent(self, manifest: Manifest) -> Manifest | None:
        """The manifest that this one extends, None where it extends none; `PackNotFound` where it is missing."""
        if manifest.parent is None:
            return None
        place = f"{self.place(manifest).rpartition('/')[0]}/{manifest.parent}"
        try:
            return self.read(place)
        except PackNotFound as error:
            if self.lines(place) is not None:
                raise
            raise PackNotFound(f"{manifest.pack_id} extends {manifest.parent}, which is not in {self.url}") from error

    def blob(self, manifest: Manifest, digest: str) -> bytes:
        """A blob that a manifest names; `BlobNotFound` where it is missing, `ChecksumMismatch` where it changed."""
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
        raise BlobNotFound(f"{manifest.pack_id} names {digest}, which is not in {self.url}")

    def write_outcome(self, manifest: Manifest | str, outcome: Mapping[str, JSON], data: bytes | None = None) -> None:
        """Adds how the model call ended to a pack. A second outcome for the same pack is ignored.

        Args:
            manifest: the pack's manifest, or its place.
            data: the pack's file without an outcome; None reads it.

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
        """How a pack's model call ended; None where no outcome was written."""
        place = self.place(manifest)
        try:
            lines = self.lines(place)
            outcome: JSON = None if lines is None or lines[2] is None else json.loads(lines[2])
            if not isinstance(outcome, dict | None):
                raise ManifestError(f"it is a {type(outcome).__name__}")
        except (ValueError, RecursionError, ManifestError) as error:
            raise StoreError(f"the outcome of {place} could not be read: {error}") from error
        return outcome

    def message(self, app: str, user: str, session: str, name: str) -> bytes | None:
        """The text cut out of an oversized message, by its name, ``messages/{hash}.txt``; None where there is none."""
        return self.files.get(f"{self.files.place(app, user, session)}/{name}") if _MESSAGE.fullmatch(name) else None

    # evidence

    def write_evidence(self, app: str, user: str, session: str, record: EvidenceRecord, data: bytes) -> None:
        """Writes a piece of evidence and its record. Writing the same again changes nothing."""
        self._create_known(self.evidence_path(app, user, record.digest), data)
        value = canonical_json(record.model_dump(mode="json", exclude_defaults=True))
        self.files.create(f"{self.files.place(app, user, session)}/evidence/{record.name}.json", value.encode())

    def evidence(self, app: str, user: str, session: str) -> list[EvidenceRecord]:
        """The records of a session's evidence, the oldest first."""
        folder = f"{self.files.place(app, user, session)}/evidence"
        paths = [file.path for file in self.files.files(folder)]
        try:
            records = [EvidenceRecord.model_validate_json(data) for data in self.files.at_once(self.files.read, paths)]
        except (FileNotFoundError, ValueError) as error:
            raise StoreError(f"{folder} could not be read: {error}") from error
        return sorted(records, key=lambda record: (record.time or 0.0, record.name))

    def evidence_data(self, app: str, user: str, digest: str) -> bytes:
        """The bytes of a piece of evidence; `BlobNotFound` and `ChecksumMismatch` as for `blob`."""
        path = self.evidence_path(app, user, digest)
        data = self.files.get(path)
        if data is None:
            raise BlobNotFound(f"{digest} is not in {self.url}")
        return _checked(data, digest, path)

    def evidence_digests(self, app: str, user: str, digits: str) -> list[str]:
        """The hashes of a user's evidence that begin with the digits in an ``artifact://`` address."""
        folder = self.evidence_path(app, user, digits).rsplit("/", 1)[0]
        names = sorted(file.name.removesuffix(".bin") for file in self.files.files(folder))
        return [f"{HASH_TAG}{name}" for name in names if name.startswith(digits)]

    # caches

    def write_summary(self, app: str, user: str, key: str, text: str) -> None:
        """Writes a summary that a model made. ``key`` is the hash over what the model was asked with."""
        self.files.create(self._by_hash(app, user, "summaries", key, ".txt"), text.encode("utf-8", "surrogatepass"))

    def summary(self, app: str, user: str, key: str) -> str | None:
        """The summary that `write_summary` wrote under a key, None where there is none."""
        data = self.files.get(self._by_hash(app, user, "summaries", key, ".txt"))
        return None if data is None else data.decode("utf-8", "surrogatepass")

    def write_calibration(self, app: str, user: str, model: str, value: JSON) -> None:
        """Writes the calibration of a model's token counts for a user, in the place of the one before."""
        path = f"{self.files.place(app, user)}/calibration/{segment(model)}.json"
        self.files.replace(path, canonical_json(value).encode())

    def calibration(self, app: str, user: str, model: str) -> JSON:
        """The calibration that `write_calibration` wrote last, None where there is none, or it cannot be read."""
        path = f"{self.files.place(app, user)}/calibration/{segment(model)}.json"
        data = self.files.get(path, _MOST_CALIBRATION_BYTES)
        try:
            return None if data is None else json.loads(data)
        except ValueError:
            return None

    def write_vectors(self, app: str, user: str, encoder: str, data: bytes) -> str | None:
        """Writes a batch of vectors by an encoder; returns its path, or None where the same batch existed already."""
        path = f"{self.files.place(app, user)}/vectors/{segment(encoder)}/{short(hash_bytes(data), 64)}.bin"
        return path if self.files.create(path, data) else None

    def vector_files(self, app: str, user: str, encoder: str) -> list[File]:
        """The files of a user's batches of vectors by an encoder, the newest first."""
        files = self.files.files(f"{self.files.place(app, user)}/vectors/{segment(encoder)}")
        return sorted(files, key=lambda file: (-(file.modified or 0.0), file.path))

    def vectors(self, files: Sequence[File]) -> list[bytes | None]:
        """The contents of batches; None for one that was deleted meanwhile or is damaged."""

        def read(file: File) -> bytes | None:
            data = self.files.get(file.path)
            return data if data is not None and file.name == f"{short(hash_bytes(data), 64)}.bin" else None

        return self.files.at_once(read, files)

    # paths

    def place(self, manifest: Manifest) -> str:
        """The place of a pack."""
        return f"{self.files.place(*manifest.session_key)}/packs/{manifest.pack_id}"

    def uri(self, manifest: Manifest) -> str:
        """The URL of the pack's file."""
        return self._url_of(self.place(manifest))

    def uri_of(self, app: str, user: str, session: str, pack_id: str) -> str:
        """The URL of a pack's file, which need not exist yet."""
        return self._url_of(f"{self.files.place(app, user, session)}/packs/{pack_id}")

    def _url_of(self, place: str) -> str:
        return self.files.url_of(f"{place}{ENDING}")

    def blob_path(self, manifest: Manifest, digest: str) -> str:
        """The path of a blob of the manifest's user."""
        return self._by_hash(manifest.app, manifest.user, "blobs", digest, ENDING)

    def evidence_path(self, app: str, user: str, digest: str) -> str:
        """The path of a piece of a user's evidence."""
        return self._by_hash(app, user, "evidence", digest, ".bin")

    def _by_hash(self, app: str, user: str, folder: str, digest: str, ending: str) -> str:
        name = short(digest, 64)
        return f"{self.files.place(app, user)}/{folder}/{name[0]}/{name}{ending}"

    def hour_of(self, pack: str) -> str:
        """The folder of the hour of a pack, by its id or its place."""
        match = HOUR.match(_name(pack))
        day, hour = (match[1], match[2]) if match else ("19700101", "00")
        return f"{self.files.root}/{_HOURS}/{day}/{hour}"

    def hour_entry(self, manifest: Manifest) -> str:
        """The path of the file that lists the manifest's session in the folder of its hour."""
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
        """The places of packs, sorted by id, which begins with the time.

        Args:
            begins: what the pack's id begins with.
            newest: the most places to return, the newest of them; None returns all.
        """
        hour, packs = HOUR.match(begins), None
        if session is None and (hour or newest):
            packs = self._recent(app, user, hour, newest)
        if packs is None:
            packs = self._packs_of(self.sessions(app, user, session))
        packs = sorted((pack for pack in packs if _name(pack).startswith(begins)), key=lambda pack: (_name(pack), pack))
        return packs[-newest:] if newest else packs

    def _recent(
        self, app: str | None, user: str | None, hour: re.Match[str] | None, newest: int | None
    ) -> list[str] | None:
        """The packs of one hour, or of the last hours until there are ``newest``.

        None where the folders of hours list too few.
        """
        packs: list[str] = []
        app, user = (name if name is None else segment(name) for name in (app, user))
        for folder in [f"{self.files.root}/{_HOURS}/{hour[1]}/{hour[2]}"] if hour else self._hours():
            sessions = []
            for file in self.files.below(folder):
                name = file.path.removeprefix(f"{folder}/")
                of_app, _, rest = name.partition("/")
                of_user, is_session, _ = rest.partition("/")
                if is_session and app in (None, of_app) and user in (None, of_user):
                    sessions.append(f"{self.files.root}/{name}")
            stamp = "pack_{}T{}".format(*folder.rsplit("/", 2)[1:])
            packs += [pack for pack in self._packs_of(sessions) if _name(pack).startswith(stamp)]
            if newest and len(packs) >= newest:
                return packs
        return packs if hour and packs else None

    def _hours(self) -> Iterator[str]:
        """The folders of hours in which packs were built, the last one first."""
        for day in sorted(self.files.folders(f"{self.files.root}/{_HOURS}"), reverse=True):
            yield from sorted(self.files.folders(day), reverse=True)

    def sessions(self, app: str | None = None, user: str | None = None, session: str | None = None) -> list[str]:
        """The folders of sessions."""
        return self._inside(self.owners(app, user), session, _NO_SESSIONS)

    def pack_files(self, session: str) -> list[File]:
        """The files of the packs in a session's folder. A file's path without the ending is the pack's place."""
        return self.files.files(f"{session}/packs")

    def _packs_of(self, sessions: list[str]) -> list[str]:
        listings = self.files.at_once(self.pack_files, sessions)
        return [file.path.removesuffix(ENDING) for files in listings for file in files]

    def _inside(self, folders: list[str], name: str | None, excluded: Sequence[str] = ()) -> list[str]:
        """In each folder the one that a name leads to, or all but those excluded."""
        if name is not None:
            return [f"{folder}/{segment(name)}" for folder in folders]
        listings = self.files.at_once(self.files.folders, folders)
        return [inner for listing in listings for inner in listing if _name(inner) not in excluded]


_compressed = lru_cache(maxsize=64)(compressed)


def _checked(data: bytes, digest: str, path: str) -> bytes:
    if hash_bytes(data) != digest:
        raise ChecksumMismatch(f"{path} does not hold what its name says")
    return data


def _name(path: str) -> str:
    return path.rsplit("/", 1)[-1]
