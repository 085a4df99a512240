"""Packs on any fsspec URL: written once, and nothing named by a model or a tool.

    {base}/{app}/{user}/{session}/packs/{pack_id}.json.gz    a pack: manifest, texts and outcome, see `pack_file`
    {base}/{app}/{user}/{session}/turns/{scope}/…            what an agent was shown, by position, see `turns`
    {base}/{app}/{user}/{session}/messages/{hash}.txt        what was taken out of an oversized message
    {base}/{app}/{user}/{session}/evidence/{hash}.json       what is known of a tool's result
    {base}/{app}/{user}/evidence/{h}/{hash}.bin              the result itself, by content
    {base}/{app}/{user}/calibration/{model}-{hash}.json      how counted tokens relate to those a provider reports
    {base}/{app}/{user}/summaries/{h}/{hash}.txt             summaries by a model, by the hash of its prompt

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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from typing import TYPE_CHECKING, Any

from aether_context.canonical import HASH_TAG, JSON, canonical_json, hash_bytes, hash_text, short
from aether_context.errors import BlobNotFound, ChecksumMismatch, ManifestError, PackNotFound, StoreError
from aether_context.evidence import EvidenceRecord
from aether_context.store.files import Files, segment
from aether_context.store.layout import FORGOTTEN, entry_of, is_segment
from aether_context.store.pack_file import (
    ENDING,
    MANIFEST_BYTES,
    TEXT_DIGITS,
    fields_of,
    parsed,
    read_lines,
    read_member,
    read_outcome,
    with_outcome,
)
from aether_context.store.recording import Recording
from aether_context.text.entities import SCHEME

if TYPE_CHECKING:
    from aether_context.store.manifest import Manifest

_NO_SESSIONS = ("summaries", "calibration", "evidence", "artifacts")
DEFAULT_STORE = "artifacts"
"""The store where a plugin names none; the command line has the same."""
_MESSAGE = re.compile(r"messages/[0-9a-f]{16}\.txt")
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

    @property
    def url(self) -> str:
        """The base URL."""
        return self.files.url

    def through(self, files: Files) -> PackStore:
        """The same store, read and written through other files."""
        copied = copy.copy(self)
        copied.files = files
        return copied

    def command(self, words: str) -> str:
        """A line that runs a command on this store."""
        is_default = self.url == DEFAULT_STORE and not os.environ.get("AETHER_CONTEXT_STORE")
        option = "" if is_default else f" --store {shlex.quote(self.url)}"
        return f"aether-context {words}{option}"

    def __repr__(self) -> str:
        return f"PackStore({self.url!r})"

    # packs

    def write(self, recording: Recording, outcome: Mapping[str, JSON] | None = None) -> Manifest:
        """Writes a recording, the pack last, so that a manifest never names a text that is not there.

        Writing an equal recording again changes nothing. Where another pack has the id, the next free number is
        appended to the id of this one; the manifest that is returned has the new id.

        Args:
            outcome: how the model call ended, where that is known already.
        """
        manifest, pack_id, number = recording.manifest, recording.manifest.pack_id, 1
        folder, files = self.files.place(*manifest.session_key), self.files.name_files(*manifest.session_key)
        for uri, text in recording.saved.items():
            files[f"{folder}/{uri.removeprefix(SCHEME)}"] = text.encode("utf-8", "surrogatepass")
        for path, data in files.items():
            self.files.create(path, data)
        while not self._create(recording, outcome):
            stored = ""
            with suppress(ManifestError, PackNotFound):  # one that cannot be read is another one, and blocks no write
                stored = self.read(self.place(recording.manifest)).digest
            if stored == recording.manifest.digest:
                if outcome is not None:
                    self.write_outcome(recording.manifest, outcome)
                break
            number += 1
            recording = recording.changed(pack_id=f"{pack_id}-{number}")
        return recording.manifest

    def _create(self, recording: Recording, outcome: Mapping[str, JSON] | None) -> bool:
        data = recording.data if outcome is None else with_outcome(recording.data, recording.manifest.digest, outcome)
        return self.files.create(f"{self.place(recording.manifest)}{ENDING}", data)

    def manifests(
        self, app: str | None = None, user: str | None = None, session: str | None = None
    ) -> Iterator[Manifest]:
        """Manifests in the order in which their packs were built, all or those of one app, user or session."""
        for _, places in groupby(self.places(app, user, session), key=lambda place: name_of(place).split("_")[1]):
            manifests = []
            for place in places:
                with suppress(PackNotFound):  # deleted since the packs were listed
                    manifests.append(self.read(place))
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
        places = self.places(app, user)
        matches = [place for place in places if name_of(place) == pack_id] or [
            place
            for place in places
            if pack_id and (name_of(place).startswith(prefix) or name_of(place).rsplit("_", 1)[-1].startswith(pack_id))
        ]
        if not matches:
            raise PackNotFound(f"no pack {pack_id!r} in {self.url}: `{self.command('list')}` shows what is there")
        if len(matches) > 1:
            names = ", ".join(map(name_of, matches[:3]))
            raise PackNotFound(f"{pack_id!r} stands for {len(matches)} packs ({names}, …): give more of the id")
        return matches[0]

    def read(self, place: str) -> Manifest:
        """The manifest of the pack at a place; `PackNotFound` where it is not there, `ManifestError` where damaged."""
        from aether_context.store.manifest import Manifest

        try:
            return Manifest.parse(read_member(self._data(place), MANIFEST_BYTES)[0])
        except ManifestError as error:
            raise type(error)(f"{error} (pack {name_of(place)}, {self.files.url_of(place + ENDING)})") from error

    def parts(self, place: str) -> tuple[Manifest, dict[str, JSON], dict[str, JSON] | None]:
        """Manifest, texts and outcome of the pack at a place, each as it was written; errors as for `read`."""
        from aether_context.store.manifest import Manifest

        data = self._data(place)
        line, texts, outcome = read_lines(data)
        fields = fields_of(line)
        if line != canonical_json(fields).encode():
            raise ManifestError("the manifest is not as it was written")
        manifest = Manifest.of(fields)
        manifest.verify()
        return (
            manifest,
            _texts(manifest, texts) if manifest.texts else {},
            None if outcome is None else read_outcome(outcome, manifest.digest),
        )

    def _data(self, place: str) -> bytes:
        data = self.files.get(f"{place}{ENDING}")
        if data is None:
            raise PackNotFound(f"{place}{ENDING} is not there")
        return data

    def extended(self, manifest: Manifest) -> Manifest:
        """The manifest that this one extends; `PackNotFound` where it is missing."""
        try:
            return self.read(f"{self.place(manifest).rpartition('/')[0]}/{manifest.extends}")
        except PackNotFound as error:
            raise PackNotFound(f"{manifest.pack_id} extends {manifest.extends}, which is not in {self.url}") from error

    def texts(self, manifest: Manifest) -> dict[str, JSON]:
        """The texts that are new with a pack; empty where none are recorded.

        Raises:
            PackNotFound: the pack is not there.
            ChecksumMismatch: they are not those that the manifest names.
        """
        if not manifest.texts:
            return {}
        place = self.place(manifest)
        data = self._data(place)
        try:
            _, line, _ = read_lines(data)
        except ManifestError as error:
            raise ChecksumMismatch(f"the texts in {place}{ENDING} are not what was written: {error}") from error
        return _texts(manifest, line)

    def write_outcome(self, manifest: Manifest, outcome: Mapping[str, JSON], data: bytes | None = None) -> None:
        """Adds how the model call ended to a pack. A second outcome for the same pack is ignored.

        Args:
            data: the pack's file without an outcome; None reads it.

        Raises:
            PackNotFound: the pack is not there.
        """
        place = self.place(manifest)
        if data is None:
            data = self._data(place)
            if read_lines(data)[2] is not None:
                return
        self.files.extend(f"{place}{ENDING}", with_outcome(data, manifest.digest, outcome))

    def outcome(self, manifest: Manifest) -> dict[str, JSON] | None:
        """How a pack's model call ended; None where no outcome was written."""
        place = self.place(manifest)
        data = self.files.get(f"{place}{ENDING}")
        try:
            line = None if data is None else read_lines(data)[2]
            return None if line is None else read_outcome(line, manifest.digest)
        except (ManifestError, ChecksumMismatch) as error:
            raise StoreError(f"the outcome of {place} could not be read: {error}") from error

    def message(self, app: str, user: str, session: str, name: str) -> bytes | None:
        """The text cut out of an oversized message, by its name, ``messages/{hash}.txt``; None where there is none."""
        return self.files.get(f"{self.files.place(app, user, session)}/{name}") if _MESSAGE.fullmatch(name) else None

    # evidence

    def write_evidence(self, app: str, user: str, session: str, record: EvidenceRecord, data: bytes) -> None:
        """Writes a piece of evidence and its record. Writing the same again changes nothing."""
        self.files.create(self.evidence_path(app, user, record.digest), data)
        path = f"{self.files.place(app, user, session)}/evidence/{record.name}.json"
        self.files.create(path, record.to_json().encode())

    def evidence(self, app: str, user: str, session: str) -> list[EvidenceRecord]:
        """The records of a session's evidence, the oldest first."""
        folder = f"{self.files.place(app, user, session)}/evidence"
        entries = (entry_of(file, self.files.root) for file in self.files.files(folder))
        paths = [entry.file.path for entry in entries if entry is not None]
        try:
            records = [EvidenceRecord.model_validate_json(data) for data in self.files.at_once(self.files.read, paths)]
        except (FileNotFoundError, ValueError) as error:
            raise StoreError(f"{folder} could not be read: {error}") from error
        return sorted(records, key=lambda record: (record.time or 0.0, record.name))

    def evidence_data(self, app: str, user: str, digest: str) -> bytes:
        """The bytes of a piece of evidence; `BlobNotFound` where it is gone, `ChecksumMismatch` where it changed."""
        path = self.evidence_path(app, user, digest)
        data = self.files.get(path)
        if data is None:
            raise BlobNotFound(f"{digest} is not in {self.url}")
        if hash_bytes(data) != digest:
            raise ChecksumMismatch(f"{path} does not hold what its name says")
        return data

    def evidence_digests(self, app: str, user: str, digits: str) -> list[str]:
        """The hashes of a user's evidence that begin with the digits in an ``artifact://`` address."""
        folder = self.evidence_path(app, user, digits).rsplit("/", 1)[0]
        names = sorted(file.name.removesuffix(".bin") for file in self.files.files(folder))
        return [f"{HASH_TAG}{name}" for name in names if name.startswith(digits) and len(name) == 64]

    # caches

    def write_summary(self, app: str, user: str, key: str, text: str) -> None:
        """Writes a summary that a model made. ``key`` is the hash over what the model was asked with."""
        data = hashed(text.encode("utf-8", "surrogatepass"))
        self.files.create(self._by_hash(app, user, "summaries", key, ".txt"), data)

    def summary(self, app: str, user: str, key: str) -> str | None:
        """The summary that `write_summary` wrote under a key, None where there is none."""
        data = self.files.get(self._by_hash(app, user, "summaries", key, ".txt"))
        with suppress(ChecksumMismatch):
            return None if data is None else unhashed(data).decode("utf-8", "surrogatepass")
        return None

    def write_calibration(self, app: str, user: str, model: str, value: JSON) -> None:
        """Writes the calibration of a model's token counts for a user, in the place of the one before."""
        path = self._calibration_path(app, user, model)
        self.files.replace(path, hashed(canonical_json(value).encode()))

    def calibration(self, app: str, user: str, model: str) -> JSON:
        """The calibration that `write_calibration` wrote last, None where there is none, or it cannot be read."""
        data = self.files.get(self._calibration_path(app, user, model), _MOST_CALIBRATION_BYTES)
        with suppress(ChecksumMismatch, ValueError):
            return None if data is None else json.loads(unhashed(data))
        return None

    # what was forgotten for its age

    def forgotten(self, app: str, user: str, session: str) -> frozenset[int]:
        """The numbers of the packs of a session that were deleted for their age."""
        data = self.files.get(f"{self.files.place(app, user, session)}/{FORGOTTEN}")
        return frozenset() if data is None else frozenset(json.loads(unhashed(data)))

    def note_forgotten(self, app: str, user: str, session: str, numbers: Iterable[int]) -> None:
        """Adds numbers to those of packs that were deleted for their age, so that they are not looked for."""
        known = self.forgotten(app, user, session)
        path = f"{self.files.place(app, user, session)}/{FORGOTTEN}"
        self.files.replace(path, hashed(canonical_json(sorted({*known, *numbers})).encode()))

    # paths

    def place(self, manifest: Manifest) -> str:
        """The place of a pack."""
        return f"{self.files.place(*manifest.session_key)}/packs/{manifest.pack_id}"

    def uri(self, manifest: Manifest) -> str:
        """The URL of the pack's file."""
        return self.uri_of(*manifest.session_key, manifest.pack_id)

    def uri_of(self, app: str, user: str, session: str, pack_id: str) -> str:
        """The URL of a pack's file, which need not exist yet."""
        return self.files.url_of(f"{self.files.place(app, user, session)}/packs/{pack_id}{ENDING}")

    def evidence_path(self, app: str, user: str, digest: str) -> str:
        """The path of a piece of a user's evidence."""
        return self._by_hash(app, user, "evidence", digest, ".bin")

    def _calibration_path(self, app: str, user: str, model: str) -> str:
        return f"{self.files.place(app, user)}/calibration/{segment(model)}-{short(hash_text(model))}.json"

    def _by_hash(self, app: str, user: str, folder: str, digest: str, ending: str) -> str:
        name = short(digest, 64)
        return f"{self.files.place(app, user)}/{folder}/{name[0]}/{name}{ending}"

    def owners(self, app: str | None = None, user: str | None = None) -> list[str]:
        """The folders of users."""
        return self._inside(self._inside([self.files.root], app), user)

    def places(self, app: str | None = None, user: str | None = None, session: str | None = None) -> list[str]:
        """The places of packs, sorted by id, which begins with the time."""
        sessions = self._inside(self.owners(app, user), session, _NO_SESSIONS)
        listings = self.files.at_once(lambda folder: self.files.files(f"{folder}/packs"), sessions)
        entries = (entry_of(file, self.files.root) for files in listings for file in files)
        packs = [entry.file.path.removesuffix(ENDING) for entry in entries if entry is not None]
        return sorted(packs, key=lambda pack: (name_of(pack), pack))

    def _inside(self, folders: list[str], name: str | None, excluded: Sequence[str] = ()) -> list[str]:
        """In each folder the one that a name leads to, or all that a name could lead to but those excluded."""
        if name is not None:
            return [f"{folder}/{segment(name)}" for folder in folders]
        listings = self.files.at_once(self.files.folders, folders)
        inner = (folder for listing in listings for folder in listing if name_of(folder) not in excluded)
        return [folder for folder in inner if is_segment(name_of(folder))]


def hashed(data: bytes) -> bytes:
    """Data behind a line with its hash."""
    return b"%b\n%b" % (hash_bytes(data).encode(), data)


def unhashed(data: bytes) -> bytes:
    """The data that `hashed` was given; `ChecksumMismatch` where it is other data."""
    line, _, rest = data.partition(b"\n")
    if line != hash_bytes(rest).encode():
        raise ChecksumMismatch("it does not hold what was written")
    return rest


def _texts(manifest: Manifest, line: bytes) -> dict[str, JSON]:
    if hash_bytes(line) != manifest.texts:
        raise ChecksumMismatch(f"the texts of {manifest.pack_id} are not {manifest.texts}")
    texts: dict[str, JSON] = parsed(line, TEXT_DIGITS)
    return texts


def name_of(path: str) -> str:
    """The last segment of a path: of a pack's place its id."""
    return path.rsplit("/", 1)[-1]
