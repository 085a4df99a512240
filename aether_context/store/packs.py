"""Packs on any fsspec URL: written once, and nothing named by a model or a tool.

    {base}/{app}/{user}/{session}/packs/{pack_id}/…          a pack's manifest, see `pack_file`
    {base}/{app}/{user}/{session}/log/…                      records and outcomes of packs and their texts
    {base}/{app}/{user}/{session}/turns/{scope}/…            what an agent was shown, by position, see `turns`
    {base}/{app}/{user}/{session}/messages/{hash}.txt        what was taken out of an oversized message
    {base}/{app}/{user}/{session}/evidence/{hash}.json       what is known of a tool's result
    {base}/{app}/{user}/evidence/{h}/{hash}.bin              the result itself, by content
    {base}/{app}/{user}/calibration/{model}-{hash}.json      how counted tokens relate to those a provider reports
    {base}/{app}/{user}/summaries/{h}/{hash}.txt             summaries by a model, by the hash of its prompt
    {base}/{app}/{user}/index/…                              copies of many manifests in one file, see `index`

A path segment is the name itself where that is safe in a path, else a readable stub with a hash; ``name.json`` in the
folder then holds the name.

A pack's *place* is the path of its folder. A pack is there where its manifest is.
"""

from __future__ import annotations

import copy
import json
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, groupby
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from aether_context.canonical import HASH_TAG, JSON, canonical_json, hash_bytes, hash_text, short
from aether_context.errors import (
    AetherContextError,
    BlobNotFound,
    ChecksumMismatch,
    ManifestError,
    PackNotFound,
    StoreError,
)
from aether_context.evidence import EvidenceRecord
from aether_context.pack import NOTHING
from aether_context.store import pack_file
from aether_context.store.files import File, Files, segment
from aether_context.store.index import INDEX, CallCopy, IndexReader, IndexWriter
from aether_context.store.layout import FORGOTTEN, entry_of, is_pack_folder, is_segment, pack_at
from aether_context.store.log import Log, Outcomes
from aether_context.store.recording import Recording
from aether_context.text.entities import SCHEME

if TYPE_CHECKING:
    from aether_context.store.manifest import Manifest

Answered: TypeAlias = "tuple[Manifest, Mapping[str, JSON]]"
"""A pack's manifest, and how its model call ended."""
NO_SESSIONS = ("summaries", "calibration", "evidence", "artifacts", INDEX)
_MANY = 256
"""So many calls are read at a time, where many are."""
DEFAULT_STORE = "artifacts"
"""The store where a plugin names none; the command line has the same."""
_MESSAGE = re.compile(r"messages/[0-9a-f]{16}\.txt")
_MOST_CALIBRATION_BYTES = 65_536


class StoredCall(NamedTuple):
    """The place of a pack, its manifest or what reading the pack raised, and how the model call ended where that was
    asked for; None where nobody knows."""

    place: str
    manifest: Manifest | AetherContextError
    outcome: dict[str, JSON] | None = None


class Forgotten(NamedTuple):
    """The part of a session that was deleted for its age: the numbers of packs, and of each agent's turns the position
    up to which they were, by the folder."""

    packs: Sequence[int] = ()
    turns: Mapping[str, int] = NOTHING


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
        self._index = IndexWriter()

    @classmethod
    def of(cls, store: PackStore | str | None) -> PackStore:
        """The store that is given, else the environment's, else the default one."""
        url = os.environ.get("AETHER_CONTEXT_STORE") or DEFAULT_STORE
        return store if isinstance(store, PackStore) else cls(store or url)

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
        """Writes a recording, as `write_all` does.

        Args:
            outcome: how the model call ended, where that is known already.
        """
        return self.write_all([recording], [(recording.manifest, outcome)] if outcome is not None else [])[0]

    def write_all(self, recordings: Sequence[Recording], outcomes: Sequence[Answered] = ()) -> list[Manifest]:
        """Writes recordings of a session and how model calls of it ended, the manifests last, so that they never name
        what is not there.

        Writing an equal recording again changes nothing. Where another pack has the id of one, the next free number is
        appended to its id; the manifests that are returned have the new ids.
        """
        for path, data in self.files_of(recordings, outcomes).items():
            self.files.create(path, data)
        manifests = list(map(self._claim, recordings))
        for manifest, outcome in outcomes:
            line = pack_file.outcome_line(manifest.number, manifest.record, outcome)
            self._index.add_outcome(self.place(manifest), line)
        return manifests

    def files_of(self, recordings: Sequence[Recording], outcomes: Sequence[Answered]) -> dict[str, bytes]:
        """The files that recordings and outcomes of a session bring, by their paths, but for manifests."""
        manifests = [*(recording.manifest for recording in recordings), *(manifest for manifest, _ in outcomes)]
        if not manifests:
            return {}
        session = manifests[0].session_key
        folder, files = self.files.place(*session), self.files.name_files(*session)
        lines: list[str] = []
        for recording in recordings:
            lines += recording.lines
            for uri, text in recording.saved.items():
                path = f"{folder}/{uri.removeprefix(SCHEME)}"
                files[path] = self._hashed(path, text.encode("utf-8", "surrogatepass"))
        lines += (pack_file.outcome_line(manifest.number, manifest.record, outcome) for manifest, outcome in outcomes)
        name, data = pack_file.segment_of([manifest.number for manifest in manifests], lines)
        return files | {f"{folder}/{pack_file.LOG}/{name}": data}

    def _claim(self, recording: Recording) -> Manifest:
        """Writes the manifest of a recording, under the first id that no other pack has."""
        pack_id, number = recording.manifest.pack_id, 1
        while True:
            pack_path, stored = self.place(recording.manifest), ""
            if self.files.create(f"{pack_path}/{pack_file.MANIFEST}", recording.data):
                self._index.add(self.files, pack_path, recording.data)
                return recording.manifest
            with suppress(ManifestError, PackNotFound):  # one that cannot be read is another one, and blocks no write
                stored = self.read(pack_path).digest
            if stored == recording.manifest.digest:
                return recording.manifest
            number += 1
            recording = recording.changed(pack_id=f"{pack_id}-{number}")

    def manifests(
        self, app: str | None = None, user: str | None = None, session: str | None = None
    ) -> Iterator[Manifest]:
        """Manifests in the order in which their packs were built, all or those of one app, user or session."""
        for _, manifests in groupby(self._read_all(app, user, session), key=lambda pack: pack.pack_id.split("_")[1]):
            yield from sorted(manifests, key=lambda pack: (pack.last_event_time, pack.call, pack.pack_id))

    def _read_all(self, *names: str | None) -> Iterator[Manifest]:
        for call in self.calls(self.listed(*names)):
            if not isinstance(call.manifest, AetherContextError):
                yield call.manifest
            elif not isinstance(call.manifest, PackNotFound):  # that one was deleted since the packs were listed
                raise call.manifest

    def calls(self, listed: Mapping[str, File], *, outcomes: bool = False) -> Iterator[StoredCall]:
        """The calls of packs that `listed` gave, in this order: from the index where it holds them, else from their
        files, many of which are read at once.

        Args:
            outcomes: whether to read how the model calls ended, too.
        """
        places = list(listed)
        index = IndexReader(self.files, places) if places else None

        def read_call(pack_path: str, copy: CallCopy | None = None) -> StoredCall:
            try:
                manifest = self._parse(pack_path, copy.manifest) if copy else self.read(pack_path)
                outcome = pack_file.read_outcome(copy.outcome) if outcomes and copy and copy.outcome else None
                return StoredCall(pack_path, manifest, outcome)
            except AetherContextError as error:
                return read_call(pack_path) if copy else StoredCall(pack_path, error)

        for start in range(0, len(places), _MANY):
            chunk = places[start : start + _MANY]
            in_blocks = zip(chunk, index.copies(chunk) if index else [], strict=True)
            copies = {path: copy for path, copy in in_blocks if copy and copy.is_of(listed[path])}
            uncopied = [pack_path for pack_path in chunk if pack_path not in copies]
            direct = dict(zip(uncopied, self.files.at_once(read_call, uncopied), strict=True))
            calls = [direct[path] if path in direct else read_call(path, copies[path]) for path in chunk]
            unknown = [pack for _, pack, outcome in calls if not (outcome or isinstance(pack, AetherContextError))]
            ends = self.outcomes(unknown if outcomes else ())
            for call in calls:
                try:
                    if not (call.outcome or isinstance(call.manifest, AetherContextError)):
                        call = call._replace(outcome=ends.of(call.manifest))
                    yield call
                except AetherContextError as error:
                    yield StoredCall(call.place, error)

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
        names = {pack_path: name_of(pack_path) for pack_path in self.places(app, user)}
        matches = [pack_path for pack_path, name in names.items() if name == pack_id] or [
            pack_path
            for pack_path, name in names.items()
            if pack_id and (name.startswith(prefix) or name.rsplit("_", 1)[-1].startswith(pack_id))
        ]
        if not matches:
            raise PackNotFound(f"no pack {pack_id!r} in {self.url}: `{self.command('list')}` shows what is there")
        if len(matches) > 1:
            examples = ", ".join(names[pack_path] for pack_path in matches[:3])
            raise PackNotFound(f"{pack_id!r} stands for {len(matches)} packs ({examples}, …): give more of the id")
        return matches[0]

    def read(self, pack_path: str) -> Manifest:
        """The manifest of the pack at a place; `PackNotFound` where it is not there, `ManifestError` where damaged."""
        return self._parse(pack_path, self._data(f"{pack_path}/{pack_file.MANIFEST}"))

    def _parse(self, pack_path: str, data: str | bytes) -> Manifest:
        from aether_context.store.manifest import Manifest

        try:
            return Manifest.of(pack_file.fields_of(data), self.fill)
        except ManifestError as error:
            path = self.files.url_of(f"{pack_path}/{pack_file.MANIFEST}")
            raise type(error)(f"{error} (pack {name_of(pack_path)}, {path})") from error

    def read_sound(self, pack_path: str) -> Manifest:
        """The manifest of the pack at a place where its file is what was written; errors as for `read`."""
        data = self._data(f"{pack_path}/{pack_file.MANIFEST}")
        manifest = self._parse(pack_path, data)
        if data != manifest.to_json().encode():
            raise ManifestError("the manifest is not as it was written")
        manifest.verify()
        return manifest

    def _data(self, path: str) -> bytes:
        data = self.files.get(path)
        if data is None:
            raise PackNotFound(f"{path} is not there")
        return data

    def log(self, manifest: Manifest) -> Log:
        """The log of a pack's session, with the segments read that hold lines of this pack."""
        return Log(self.files, self.files.place(*manifest.session_key)).load([manifest.number])

    def fill(self, manifest: Manifest) -> None:
        """Reads the record of a manifest; `PackNotFound` where it is not there, `ManifestError` where damaged."""
        from aether_context.store.manifest import Record

        manifest.fill(Record.from_line(self.log(manifest).text(manifest.record)))

    def outcome(self, manifest: Manifest) -> dict[str, JSON] | None:
        """The end of a pack's model call; None where no outcome was written."""
        return self.outcomes([manifest]).of(manifest)

    def outcomes(self, manifests: Iterable[Manifest]) -> Outcomes:
        """The ends of model calls, for which each segment of a log is read once."""
        by_folder: dict[str, list[Manifest]] = {}
        for manifest in manifests:
            by_folder.setdefault(self.files.place(*manifest.session_key), []).append(manifest)
        outcomes = Outcomes()
        for of_session in self.files.at_once(lambda at: Log(self.files, at).outcomes(by_folder[at]), by_folder):
            outcomes.update(of_session)
        return outcomes

    def receipt(self, app: str, user: str, session: str, name: str) -> bytes | None:
        """The manifest of a pack of a session, by its address there, ``packs/{id}/manifest.json``; None where there is
        none."""
        pack_id = pack_at(name)
        pack_path = f"{self.files.place(app, user, session)}/packs/{pack_id}"
        return None if pack_id is None else self.files.get(f"{pack_path}/{pack_file.MANIFEST}")

    def message(self, app: str, user: str, session: str, name: str) -> bytes | None:
        """The text cut out of an oversized message, by its name, ``messages/{hash}.txt``; None where there is none.

        `ChecksumMismatch` where it is not what was written.
        """
        path = f"{self.files.place(app, user, session)}/{name}"
        return self._unhashed(path) if _MESSAGE.fullmatch(name) else None

    # evidence

    def write_evidence(self, app: str, user: str, session: str, record: EvidenceRecord, data: bytes) -> None:
        """Writes a piece of evidence and its record. Writing the same again changes nothing."""
        self.files.create(self.evidence_path(app, user, record.digest), data)
        folder = self.files.place(app, user, session)
        path = f"{folder}/evidence/{record.name}.json"
        self.files.create(path, pack_file.record_file(record, self.files.below_base(path)))
        self.files.note_written(folder, record.uri)

    def evidence(self, app: str, user: str, session: str) -> list[EvidenceRecord]:
        """The records of a session's evidence, the oldest first, without those that a key that is set did not sign."""
        folder = f"{self.files.place(app, user, session)}/evidence"
        entries = (entry_of(file, self.files.root) for file in self.files.files(folder))
        paths = [entry.file.path for entry in entries if entry is not None]
        records: list[EvidenceRecord] = []
        try:
            for path, data in zip(paths, self.files.at_once(self.files.read, paths), strict=True):
                with suppress(ChecksumMismatch):
                    records.append(pack_file.read_record(data, self.files.below_base(path)))
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
        path = self._by_hash(app, user, "summaries", key, ".txt")
        self.files.create(path, self._hashed(path, text.encode("utf-8", "surrogatepass")))

    def summary(self, app: str, user: str, key: str) -> str | None:
        """The summary that `write_summary` wrote under a key, None where there is none."""
        with suppress(ChecksumMismatch):
            data = self._unhashed(self._by_hash(app, user, "summaries", key, ".txt"))
            return None if data is None else data.decode("utf-8", "surrogatepass")
        return None

    def write_calibration(self, app: str, user: str, model: str, value: JSON) -> None:
        """Writes the calibration of a model's token counts for a user, in the place of the one before."""
        path = self._calibration_path(app, user, model)
        self.files.replace(path, self._hashed(path, canonical_json(value).encode()))

    def calibration(self, app: str, user: str, model: str) -> JSON:
        """The calibration that `write_calibration` wrote last, None where there is none, or it cannot be read."""
        with suppress(ChecksumMismatch, ValueError):
            data = self._unhashed(self._calibration_path(app, user, model), _MOST_CALIBRATION_BYTES)
            return None if data is None else json.loads(data)
        return None

    # what was forgotten for its age

    def forgotten(self, app: str, user: str, session: str) -> Forgotten:
        """The part of a session that was deleted for its age; `ChecksumMismatch` where that is not what was written."""
        data = self._unhashed(f"{self.files.place(app, user, session)}/{FORGOTTEN}")
        return Forgotten() if data is None else Forgotten(**json.loads(data))

    def note_forgotten(self, app: str, user: str, session: str, more: Forgotten) -> None:
        """Adds what was deleted for its age, so that it is not looked for."""
        prior = self.forgotten(app, user, session)
        numbers = sorted({*prior.packs, *more.packs})
        stops = {scope: max(prior.turns.get(scope, 0), stop) for scope, stop in ({**prior.turns, **more.turns}).items()}
        path = f"{self.files.place(app, user, session)}/{FORGOTTEN}"
        self.files.replace(path, self._hashed(path, canonical_json({"packs": numbers, "turns": stops}).encode()))

    def _hashed(self, path: str, data: bytes) -> bytes:
        return pack_file.add_hash(data, self.files.below_base(path))

    def _unhashed(self, path: str, end: int | None = None) -> bytes | None:
        data = self.files.get(path, end)
        return None if data is None else pack_file.remove_hash(data, self.files.below_base(path))

    # paths

    def place(self, manifest: Manifest) -> str:
        """The place of a pack."""
        return f"{self.files.place(*manifest.session_key)}/packs/{manifest.pack_id}"

    def uri(self, manifest: Manifest) -> str:
        """The URL of the manifest."""
        return self.files.url_of(f"{self.place(manifest)}/{pack_file.MANIFEST}")

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
        """The places of packs, sorted by id, which begins with the time; a pack may be deleted, or not there yet."""
        folders = chain.from_iterable(self.files.at_once(self.files.folders, self._above_packs(app, user, session)))
        return sorted(filter(is_pack_folder, folders), key=lambda folder: (name_of(folder), folder))

    def listed(
        self, app: str | None = None, user: str | None = None, session: str | None = None, *, newest: int | None = None
    ) -> dict[str, File]:
        """The files of manifests by the places of their packs, sorted by id, which begins with the time.

        Args:
            newest: so many packs, those with the last ids, for which few folders are listed; None for all.
        """
        if newest is None:
            return self._listings(self.files.below, self._above_packs(app, user, session))
        places, listed = self.places(app, user, session), dict[str, File]()
        while places and len(listed) < newest:
            last = places[len(listed) - newest :]
            listed = self._listings(self.files.files, last) | listed
            del places[-len(last) :]
        return listed

    def _listings(self, files_of: Callable[[str], list[File]], folders: Sequence[str]) -> dict[str, File]:
        files = chain.from_iterable(self.files.at_once(files_of, folders))
        manifests = (file for file in files if file.name == pack_file.MANIFEST and entry_of(file, self.files.root))
        listed = {file.path.rpartition("/")[0]: file for file in manifests}
        return dict(sorted(listed.items(), key=lambda pack: (name_of(pack[0]), pack[0])))

    def _above_packs(self, app: str | None, user: str | None, session: str | None) -> list[str]:
        """The folders that hold those of the packs of sessions."""
        return [f"{folder}/packs" for folder in self._inside(self.owners(app, user), session, NO_SESSIONS)]

    def _inside(self, folders: list[str], name: str | None, excluded: Sequence[str] = ()) -> list[str]:
        """In each folder the one that a name leads to, or all that a name could lead to but those excluded."""
        if name is not None:
            return [f"{folder}/{segment(name)}" for folder in folders]
        listings = self.files.at_once(self.files.folders, folders)
        inner = (folder for listing in listings for folder in listing if name_of(folder) not in excluded)
        return [folder for folder in inner if is_segment(name_of(folder))]


def name_of(path: str) -> str:
    """The last segment of a path: of a pack's place its id."""
    return path.rsplit("/", 1)[-1]
