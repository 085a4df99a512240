"""Packs on any fsspec URL: manifests written once, content by its hash, nothing named by a model or a tool.

    {base}/{app}/{user}/{session}/packs/{pack_id}/manifest.json    the receipt, exclusive create
    {base}/{app}/{user}/{session}/packs/{pack_id}/outcome.json     what the model answered, exclusive create
    {base}/{app}/{user}/{session}/messages/{hash}.txt              what was taken out of an oversized message
    {base}/{app}/{user}/{session}/evidence/{hash}.json             what is known of a tool's result
    {base}/{app}/{user}/evidence/{h}/{hash}.bin                    the result itself, by content
    {base}/{app}/{user}/blobs/{h}/{hash}.json                      texts, settings and policies by content
    {base}/{app}/{user}/calibration/{model}.json                   how counted tokens become reported ones
    {base}/{app}/{user}/summaries/{h}/{hash}.txt                   what a model wrote, by what it was asked
    {base}/{app}/{user}/vectors/{encoder}/{hash}.bin              vectors of a user's texts, a batch each
    {base}/hours/{day}/{hour}/{app}/{user}/{session}               which sessions have packs of that hour

A path segment is the name itself where that is safe, else a readable stub with a hash; ``name.json`` in the folder
then holds the name.
"""

from __future__ import annotations

import copy
import json
import os
import re
import shlex
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from cachetools import LRUCache

from aether_context.canonical import HASH_TAG, JSON, canonical_json, hash_bytes, short
from aether_context.errors import BlobNotFound, ChecksumMismatch, ManifestError, PackNotFound, StoreError
from aether_context.evidence import EvidenceRecord
from aether_context.store.files import File, Files, segment
from aether_context.store.manifest import Manifest
from aether_context.store.recording import Recording

__all__ = ["DEFAULT_STORE", "HOUR", "PackStore", "segment"]

_NO_SESSIONS = ("blobs", "summaries", "vectors", "calibration", "evidence", "artifacts")
_HOURS = "hours"
DEFAULT_STORE = "artifacts"
"""The store where a plugin names none; the command line has the same."""
HOUR = re.compile(r"pack_(\d{8})T(\d{2})")
"""How a pack's id begins: with the day and the hour of the session's last event, in UTC."""
_MESSAGE = re.compile(r"messages/[0-9a-f]{16}\.txt")
_MOST_KNOWN = 10_000
_KNOWN_SECONDS = 900.0


class PackStore:
    """Reads and writes packs below a base URL.

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

    @property
    def url(self) -> str:
        """The base URL."""
        return self.files.url

    def through(self, files: Files) -> PackStore:
        """The same store, read and written through other files."""
        other = copy.copy(self)
        other.files = files
        other._known = LRUCache(_MOST_KNOWN)
        return other

    def command(self, words: str) -> str:
        """A line that runs a command on this store."""
        option = "" if self.url == DEFAULT_STORE else f" --store {shlex.quote(self.url)}"
        return f"aether-context {words}{option}"

    def __repr__(self) -> str:
        return f"PackStore({self.url!r})"

    # writing

    def write(self, recording: Recording) -> Manifest:
        """Writes a recording: blobs first, the manifest last, so that a manifest never names what is not there.

        Writing an equal recording again changes nothing. Where the id is taken by another pack, the next free number
        is appended to it.

        Returns:
            The manifest as it is in the store.

        Raises:
            StoreError: the store could not be written.
        """
        manifest = recording.manifest
        blobs = {self._blob_path(manifest.app, manifest.user, name): data for name, data in recording.blobs.items()}
        there = [path for path, data in blobs.items() if not self._create_known(path, data)]
        for uri, text in recording.saved.items():
            name = uri.rsplit("/", 1)[-1]
            self.files.create(f"{self._session(manifest)}/messages/{name}", text.encode("utf-8", "surrogatepass"))
        self._name(manifest)
        self._create_known(self.hour_entry(manifest), b"{}")
        written = self._write_manifest(manifest, recording.text)
        for path in there:  # a `gc` that had not seen the manifest yet may have taken it
            self.files.create(path, blobs[path])
        return written

    def write_outcome(self, manifest: Manifest, outcome: Mapping[str, JSON]) -> None:
        """Writes what became of a pack's model call. A second outcome for the same pack is ignored.

        Raises:
            StoreError: the store could not be written.
        """
        self.files.create(f"{self._folder(manifest)}/outcome.json", canonical_json(dict(outcome)).encode())

    def write_summary(self, app: str, user: str, key: str, text: str) -> None:
        """Keeps a summary that a model wrote, under the hash over what it was asked with.

        Raises:
            StoreError: the store could not be written.
        """
        self.files.create(self._summary_path(app, user, key), text.encode("utf-8", "surrogatepass"))

    def summary(self, app: str, user: str, key: str) -> str | None:
        """A summary that a model wrote for this user, None where there is none.

        Raises:
            StoreError: the store could not be read.
        """
        path = self._summary_path(app, user, key)
        try:
            return self.files.read(path).decode("utf-8", "surrogatepass")
        except FileNotFoundError:
            return None

    def write_vectors(self, app: str, user: str, encoder: str, data: bytes) -> str | None:
        """Keeps a batch of vectors of a user's texts; its path, None where the same was there already.

        Args:
            encoder: what made the vectors.

        Raises:
            StoreError: the store could not be written.
        """
        path = f"{self._vectors_folder(app, user, encoder)}/{short(hash_bytes(data), 64)}.bin"
        return path if self.files.create(path, data) else None

    def vector_files(self, app: str, user: str, encoder: str) -> list[File]:
        """The batches of vectors that are kept of a user's texts, those written last first.

        Raises:
            StoreError: the store could not be listed.
        """
        found = self.files.files(self._vectors_folder(app, user, encoder))
        return sorted(found, key=lambda one: (-(one.modified or 0.0), one.path))

    def vectors(self, files: Sequence[File]) -> list[bytes | None]:
        """The batches in files; None for one that is not there any more, or not what was written.

        Raises:
            StoreError: the store could not be read.
        """
        return self.files.at_once(self._batch, [file.path for file in files])

    def _batch(self, path: str) -> bytes | None:
        try:
            data = self.files.read(path)
        except FileNotFoundError:
            return None
        return data if _name(path) == f"{short(hash_bytes(data), 64)}.bin" else None

    def message(self, app: str, user: str, session: str, name: str) -> bytes | None:
        """What was taken out of an oversized message, by the name in its URI; None where there is nothing.

        Args:
            name: ``messages/{hash}.txt``; any other names nothing.

        Raises:
            StoreError: the store could not be read.
        """
        if not _MESSAGE.fullmatch(name):
            return None
        try:
            return self.files.read("/".join([self.files.root, *map(segment, (app, user, session)), name]))
        except FileNotFoundError:
            return None

    def write_evidence(self, app: str, user: str, session: str, record: EvidenceRecord, data: bytes) -> None:
        """Keeps a piece of evidence and what is known of it; the same once more changes nothing.

        Raises:
            StoreError: the store could not be written.
        """
        self._create_known(self._evidence_path(app, user, record.digest), data)
        value = record.model_dump(mode="json", exclude_defaults=True)
        self.files.create(
            f"{self._evidence_folder(app, user, session)}/{record.name}.json", canonical_json(value).encode()
        )

    def evidence(self, app: str, user: str, session: str) -> list[EvidenceRecord]:
        """What is known of a session's evidence, in the order in which it came.

        Raises:
            StoreError: the store could not be read, or holds what is not a record.
        """
        found = self.evidence_files(app, user, session)
        return sorted(found.values(), key=lambda one: (one.time or 0.0, one.name))

    def evidence_files(self, app: str, user: str, session: str) -> dict[str, EvidenceRecord]:
        """What is known of a session's evidence, by the path of the file that says it.

        Raises:
            StoreError: the store could not be read, or holds what is not a record.
        """
        folder = self._evidence_folder(app, user, session)
        paths = [file.path for file in self.files.files(folder)]
        try:
            held = self.files.at_once(self.files.read, paths)
            return {path: EvidenceRecord.model_validate_json(data) for path, data in zip(paths, held, strict=True)}
        except (FileNotFoundError, ValueError) as error:
            raise StoreError(f"{folder} could not be read: {error}") from error

    def evidence_data(self, app: str, user: str, digest: str) -> bytes:
        """The bytes of a piece of evidence, checked against their hash.

        Raises:
            BlobNotFound: they are not there, or not any more.
            ChecksumMismatch: they changed.
            StoreError: the store could not be read.
        """
        path = self._evidence_path(app, user, digest)
        try:
            data = self.files.read(path)
        except FileNotFoundError as error:
            raise BlobNotFound(f"{digest} is not in {self.url}") from error
        if hash_bytes(data) != digest:
            raise ChecksumMismatch(f"{path} does not hold what its name says")
        return data

    def write_calibration(self, app: str, user: str, model: str, value: JSON) -> None:
        """Keeps what a user's usage of a model has taught, in the place of what was kept before.

        Raises:
            StoreError: the store could not be written.
        """
        self.files.replace(self._calibration_path(app, user, model), canonical_json(value).encode())

    def calibration(self, app: str, user: str, model: str) -> JSON:
        """What `write_calibration` kept last, None where there is nothing to be read.

        Raises:
            StoreError: the store could not be read.
        """
        path = self._calibration_path(app, user, model)
        try:
            value: JSON = json.loads(self.files.read(path))
        except (FileNotFoundError, ValueError):
            return None
        return value

    def _write_manifest(self, manifest: Manifest, text: str) -> Manifest:
        wanted = manifest
        number = 1
        while not self.files.create(f"{self._folder(wanted)}/manifest.json", text.encode()):
            held = self._read_manifest(f"{self._folder(wanted)}/manifest.json")
            if held.digest == wanted.digest:
                return held
            number += 1
            wanted, text = manifest.model_copy(update={"pack_id": f"{manifest.pack_id}-{number}"}).sealed()
        return wanted

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

    def _name(self, manifest: Manifest) -> None:
        folder = self.files.root
        for name in (manifest.app, manifest.user, manifest.session):
            folder = f"{folder}/{segment(name)}"
            if segment(name) != name:
                self.files.create(f"{folder}/name.json", canonical_json({"name": name}).encode())

    # reading

    def manifests(
        self, app: str | None = None, user: str | None = None, session: str | None = None
    ) -> Iterator[Manifest]:
        """Manifests in the order in which their packs were built, all or those of one app, user or session.

        Raises:
            StoreError: the store could not be read.
        """
        for _, folders in groupby(self.folders(app, user, session), key=_moment):
            found = self._there(folders)
            yield from sorted(found, key=lambda one: (one.last_event_time, one.call, one.pack_id))

    def _there(self, folders: Iterable[str]) -> Iterator[Manifest]:
        """The manifests in folders, those left out that were deleted since the folders were listed."""
        for folder in folders:
            try:
                yield self.read(folder)
            except PackNotFound:
                continue

    def manifest(self, pack_id: str, *, app: str | None = None, user: str | None = None) -> Manifest:
        """The manifest of a pack; the id may be cut short where it stays unique.

        Raises:
            PackNotFound: there is none, or more than one.
            StoreError: the store could not be read.
        """
        found = self.folders(app, user, begins=pack_id)
        exact = [path for path in found if path.endswith(f"/{pack_id}")]
        if len(exact or found) > 1:
            names = ", ".join(sorted(path.rsplit("/", 1)[-1] for path in found)[:3])
            raise PackNotFound(f"{pack_id!r} names {len(found)} packs ({names}, …): give more of the id")
        if not found:
            raise PackNotFound(f"no pack {pack_id!r} in {self.url}: `{self.command('list')}` shows what is there")
        return self.read((exact or found)[0])

    def parent(self, manifest: Manifest) -> Manifest | None:
        """The manifest that this one extends, None where it stands alone.

        Raises:
            PackNotFound: it is named and not there.
        """
        if manifest.parent is None:
            return None
        try:
            return self._read_manifest(f"{self._session(manifest)}/packs/{manifest.parent}/manifest.json")
        except PackNotFound as error:
            raise PackNotFound(f"{manifest.pack_id} extends {manifest.parent}, which is not in {self.url}") from error

    def chain(self, manifest: Manifest) -> list[Manifest]:
        """The manifest and its ancestors, the oldest first.

        Raises:
            PackNotFound: an ancestor is missing.
        """
        chain = [manifest]
        while (parent := self.parent(chain[-1])) is not None:
            chain.append(parent)
        return chain[::-1]

    def blob(self, manifest: Manifest, digest: str) -> bytes:
        """A blob that a manifest names, checked against its hash.

        Raises:
            BlobNotFound: it is not there.
            ChecksumMismatch: its bytes changed.
        """
        path = self._blob_path(manifest.app, manifest.user, digest)
        try:
            data = self.files.read(path)
        except FileNotFoundError as error:
            raise BlobNotFound(f"{manifest.pack_id} names {digest}, which is not in {self.url}") from error
        if hash_bytes(data) != digest:
            raise ChecksumMismatch(f"{path} does not hold what its name says")
        return data

    def outcome(self, manifest: Manifest) -> dict[str, JSON] | None:
        """What became of a pack's model call; None where nothing was written."""
        path = f"{self._folder(manifest)}/outcome.json"
        try:
            found: dict[str, JSON] = json.loads(self.files.read(path))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise StoreError(f"{path} could not be read: {error}") from error
        return found

    # what a pack consists of

    def named_by(self, manifest: Manifest) -> tuple[str, ...]:
        """The blobs that a manifest names, by hash."""
        return (manifest.policy, *((manifest.setting, *manifest.texts) if manifest.texts else ()))

    def blob_path(self, manifest: Manifest, digest: str) -> str:
        """Where a blob of the manifest's user is."""
        return self._blob_path(manifest.app, manifest.user, digest)

    def beside(self, manifest: Manifest) -> list[str]:
        """Where else a pack has files: names, its hour, outcome, and last of all the manifest."""
        session, names = self._session(manifest), []
        folder = self.files.root
        for piece in session.removeprefix(f"{folder}/").split("/"):
            folder = f"{folder}/{piece}"
            names.append(f"{folder}/name.json")
        pack = self._folder(manifest)
        return [*names, self.hour_entry(manifest), f"{pack}/outcome.json", f"{pack}/manifest.json"]

    def message_path(self, manifest: Manifest, uri: str) -> str | None:
        """Where what was taken out of a message of the manifest's session is; None for an address of something else."""
        name = uri.removeprefix("artifact://")
        return f"{self._session(manifest)}/{name}" if _MESSAGE.fullmatch(name) else None

    def evidence_path(self, manifest: Manifest, digest: str) -> str:
        """Where a piece of evidence of the manifest's user is."""
        return self._evidence_path(manifest.app, manifest.user, digest)

    def evidence_digests(self, manifest: Manifest, digits: str) -> list[str]:
        """The hashes of the user's evidence that begin with the digits of an address.

        Raises:
            StoreError: the store could not be listed.
        """
        folder = self.evidence_path(manifest, digits).rsplit("/", 1)[0]
        names = sorted(_name(file.path).removesuffix(".bin") for file in self.files.files(folder))
        return [f"{HASH_TAG}{name}" for name in names if name.startswith(digits)]

    def uri(self, manifest: Manifest) -> str:
        """Where the manifest is, as a URL."""
        return self.uri_of(manifest.app, manifest.user, manifest.session, manifest.pack_id)

    def uri_of(self, app: str, user: str, session: str, pack_id: str) -> str:
        """Where the manifest of a pack is, or will be, as a URL."""
        folder = "/".join([self.files.root, *map(segment, (app, user, session))])
        return self.files.url_of(f"{folder}/packs/{pack_id}/manifest.json")

    def _read_manifest(self, path: str) -> Manifest:
        try:
            return Manifest.parse(self.files.read(path))
        except FileNotFoundError as error:
            raise PackNotFound(f"{path} is not there") from error
        except ManifestError as error:
            raise type(error)(f"{error} (pack {path.split('/')[-2]}, {self.files.url_of(path)})") from error

    def folders(
        self,
        app: str | None = None,
        user: str | None = None,
        session: str | None = None,
        *,
        begins: str = "",
        newest: int | None = None,
    ) -> list[str]:
        """The folders of packs, by the times in their names.

        Args:
            begins: those alone whose id begins so; one with day and hour is found without a look at other hours.
            newest: so many of them at most, the last ones.

        Raises:
            StoreError: the store could not be listed.
        """
        found = self._recent(app, user, session, begins, newest)
        if found is None:
            found = self._packs_of(self._sessions(app, user, session))
        found = sorted((pack for pack in found if _name(pack).startswith(begins)), key=lambda pack: (_name(pack), pack))
        return found[-newest:] if newest else found

    def _recent(
        self, app: str | None, user: str | None, session: str | None, begins: str, newest: int | None
    ) -> list[str] | None:
        """The packs of so many of the last hours as hold what is asked for; None where the hours cannot tell."""
        hour = HOUR.match(begins)
        if session is not None or not (hour or newest):
            return None
        found: list[str] = []
        for folder in [f"{self.files.root}/{_HOURS}/{hour[1]}/{hour[2]}"] if hour else self._hours():
            sessions = [file.path.removeprefix(f"{folder}/") for file in self.files.below(folder)]
            sessions = [name for name in sessions if _belongs(name, app, user)]
            stamp = "pack_{}T{}".format(*folder.rsplit("/", 2)[1:])
            there = self._packs_of([f"{self.files.root}/{name}" for name in sessions])
            found += [pack for pack in there if _name(pack).startswith(stamp)]
            if newest and len(found) >= newest:
                return found
        return found if hour and found else None

    def _hours(self) -> Iterator[str]:
        """The folders of hours in which there are packs, the last one first."""
        for day in sorted(self.files.folders(f"{self.files.root}/{_HOURS}"), reverse=True):
            yield from sorted(self.files.folders(day), reverse=True)

    def _packs_of(self, sessions: list[str]) -> list[str]:
        found = self.files.at_once(lambda one: self.files.folders(f"{one}/packs"), sessions)
        return [pack for packs in found for pack in packs]

    def owners(self, app: str | None = None, user: str | None = None) -> list[str]:
        """The folders of users.

        Raises:
            StoreError: the store could not be listed.
        """
        return self._inside([self.files.root], ((app, (_HOURS,)), (user, ())))

    def _sessions(self, app: str | None, user: str | None, session: str | None) -> list[str]:
        """The folders of sessions."""
        return self._inside(self.owners(app, user), ((session, _NO_SESSIONS),))

    def _inside(self, folders: list[str], names: Sequence[tuple[str | None, Sequence[str]]]) -> list[str]:
        """Folders so many levels down, of a name or all but some."""
        for name, others in names:
            if name is not None:
                folders = [f"{folder}/{segment(name)}" for folder in folders]
            else:
                found = self.files.at_once(self.files.folders, folders)
                folders = [inner for listed in found for inner in listed if _name(inner) not in others]
        return folders

    def hour_entry(self, manifest: Manifest) -> str:
        """The path by which an hour tells that the manifest's session has packs of it."""
        return f"{self.hour_of(manifest.pack_id)}/{self._session(manifest).removeprefix(self.files.root + '/')}"

    def hour_of(self, pack: str) -> str:
        """The folder of the hour of a pack, by its id or its folder."""
        found = HOUR.match(_name(pack))
        day, hour = (found[1], found[2]) if found else ("19700101", "00")
        return f"{self.files.root}/{_HOURS}/{day}/{hour}"

    def read(self, folder: str) -> Manifest:
        """The manifest in a pack's folder.

        Raises:
            PackNotFound: there is none.
            ManifestError: it is not a manifest.
        """
        return self._read_manifest(f"{folder}/manifest.json")

    def _session(self, manifest: Manifest) -> str:
        return "/".join([self.files.root, *map(segment, (manifest.app, manifest.user, manifest.session))])

    def _folder(self, manifest: Manifest) -> str:
        return f"{self._session(manifest)}/packs/{manifest.pack_id}"

    def _blob_path(self, app: str, user: str, digest: str) -> str:
        return f"{self._by_hash(app, user, 'blobs', digest)}.json"

    def _evidence_path(self, app: str, user: str, digest: str) -> str:
        return f"{self._by_hash(app, user, 'evidence', digest)}.bin"

    def _evidence_folder(self, app: str, user: str, session: str) -> str:
        return "/".join([self.files.root, *map(segment, (app, user, session)), "evidence"])

    def _summary_path(self, app: str, user: str, key: str) -> str:
        return f"{self._by_hash(app, user, 'summaries', key)}.txt"

    def _vectors_folder(self, app: str, user: str, encoder: str) -> str:
        return f"{self.files.root}/{segment(app)}/{segment(user)}/vectors/{segment(encoder)}"

    def _calibration_path(self, app: str, user: str, model: str) -> str:
        return f"{self.files.root}/{segment(app)}/{segment(user)}/calibration/{segment(model)}.json"

    def _by_hash(self, app: str, user: str, folder: str, digest: str) -> str:
        name = short(digest, 64)
        return f"{self.files.root}/{segment(app)}/{segment(user)}/{folder}/{name[0]}/{name}"


def _name(path: str) -> str:
    return path.rsplit("/", 1)[-1]


def _belongs(session: str, app: str | None, user: str | None) -> bool:
    """Whether ``app/user/session`` is one of this app and user."""
    of_app, of_user, _ = session.split("/", 2)
    return (app is None or of_app == segment(app)) and (user is None or of_user == segment(user))


def _moment(path: str) -> str:
    """The time in a pack's name."""
    return _name(path).split("_")[1]
