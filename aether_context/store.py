"""Packs on any fsspec URL: manifests written once, content by its hash, nothing named by a model or a tool.

    {base}/{app}/{user}/{session}/packs/{pack_id}/manifest.json    the receipt, exclusive create
    {base}/{app}/{user}/{session}/packs/{pack_id}/outcome.json     what the model answered, exclusive create
    {base}/{app}/{user}/{session}/messages/{hash}.txt              what was taken out of an oversized message
    {base}/{app}/{user}/{session}/evidence/{hash}.json             what is known of a tool's result
    {base}/{app}/{user}/evidence/{h}/{hash}.bin                    the result itself, by content
    {base}/{app}/{user}/blobs/{h}/{hash}.json                      texts, settings and policies by content
    {base}/{app}/{user}/calibration/{model}.json                   how counted tokens become reported ones
    {base}/{app}/{user}/summaries/{h}/{hash}.txt                   what a model wrote, by what it was asked

A path segment is the name itself where that is safe, else a readable stub with a hash; ``name.json`` in the folder
then holds the name.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFile, MemoryFileSystem

from aether_context.canonical import JSON, canonical_json, hash_bytes, hash_text, short
from aether_context.errors import BlobNotFound, ChecksumMismatch, MissingExtra, PackNotFound, StoreError
from aether_context.evidence import EvidenceRecord
from aether_context.manifest import Manifest, Recording

_SAFE = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d|blobs|packs|messages|summaries|calibration|evidence)(\..*)?")
_NO_SESSIONS = ("blobs", "summaries", "calibration", "evidence")
_MESSAGE = re.compile(r"[0-9a-f]{16}\.txt")
_MOST_KNOWN = 10_000
_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs"}


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
        self.url = os.fspath(url)
        protocol = self.url.split("://", 1)[0] if "://" in self.url else "file"
        try:
            self._fs, root = fsspec.core.url_to_fs(self.url, **options)
        except ImportError as error:
            raise MissingExtra(_EXTRAS.get(protocol, protocol), f"a store on {protocol}://") from error
        except ValueError as error:
            raise StoreError(f"store {self.url!r} cannot be opened: {error}") from error
        self._root = root.rstrip("/")
        self._known: OrderedDict[str, None] = OrderedDict()

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
        for digest, data in recording.blobs.items():
            path = self._blob_path(manifest.app, manifest.user, digest)
            if path not in self._known:
                self._create(path, data)
                self._know(path)
        for uri, text in recording.saved.items():
            name = uri.rsplit("/", 1)[-1]
            self._create(f"{self._session(manifest)}/messages/{name}", text.encode("utf-8", "surrogatepass"))
        self._name(manifest)
        return self._write_manifest(manifest, recording.text)

    def write_outcome(self, manifest: Manifest, outcome: Mapping[str, JSON]) -> None:
        """Writes what became of a pack's model call. A second outcome for the same pack is ignored.

        Raises:
            StoreError: the store could not be written.
        """
        self._create(f"{self._folder(manifest)}/outcome.json", canonical_json(dict(outcome)).encode())

    def write_summary(self, app: str, user: str, key: str, text: str) -> None:
        """Keeps a summary that a model wrote, under the hash over what it was asked with.

        Raises:
            StoreError: the store could not be written.
        """
        self._create(self._summary_path(app, user, key), text.encode("utf-8", "surrogatepass"))

    def summary(self, app: str, user: str, key: str) -> str | None:
        """A summary that a model wrote for this user, None where there is none.

        Raises:
            StoreError: the store could not be read.
        """
        path = self._summary_path(app, user, key)
        try:
            data: bytes = self._fs.cat_file(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(f"{path} could not be read: {error}") from error
        return data.decode("utf-8", "surrogatepass")

    def write_evidence(self, app: str, user: str, session: str, record: EvidenceRecord, data: bytes) -> None:
        """Keeps a piece of evidence and what is known of it; the same once more changes nothing.

        Raises:
            StoreError: the store could not be written.
        """
        path = self._evidence_path(app, user, record.digest)
        if path not in self._known:
            self._create(path, data)
            self._know(path)
        value = record.model_dump(mode="json", exclude_defaults=True)
        self._create(f"{self._evidence_folder(app, user, session)}/{record.name}.json", canonical_json(value).encode())

    def evidence(self, app: str, user: str, session: str) -> list[EvidenceRecord]:
        """What is known of a session's evidence, in the order in which it came.

        Raises:
            StoreError: the store could not be read, or holds what is not a record.
        """
        folder = self._evidence_folder(app, user, session)
        try:
            paths = [entry["name"] for entry in self._fs.ls(folder, detail=True, refresh=True)]
            found = [EvidenceRecord.model_validate_json(self._fs.cat_file(path)) for path in paths]
        except FileNotFoundError:
            return []
        except (OSError, ValueError) as error:
            raise StoreError(f"{folder} could not be read: {error}") from error
        return sorted(found, key=lambda one: (one.time or 0.0, one.name))

    def evidence_data(self, app: str, user: str, digest: str) -> bytes:
        """The bytes of a piece of evidence, checked against their hash.

        Raises:
            BlobNotFound: they are not there, or not any more.
            ChecksumMismatch: they changed.
            StoreError: the store could not be read.
        """
        path = self._evidence_path(app, user, digest)
        try:
            data: bytes = self._fs.cat_file(path)
        except FileNotFoundError as error:
            raise BlobNotFound(f"{digest} is not in {self.url}") from error
        except OSError as error:
            raise StoreError(f"{path} could not be read: {error}") from error
        if hash_bytes(data) != digest:
            raise ChecksumMismatch(f"{path} does not hold what its name says")
        return data

    def message(self, app: str, user: str, session: str, name: str) -> str | None:
        """What was taken out of an oversized message of a session, by the end of its address; None where it is not
        there.

        Raises:
            StoreError: the store could not be read.
        """
        if not _MESSAGE.fullmatch(name):
            return None
        path = f"{'/'.join([self._root, *map(segment, (app, user, session))])}/messages/{name}"
        try:
            data: bytes = self._fs.cat_file(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(f"{path} could not be read: {error}") from error
        return data.decode("utf-8", "surrogatepass")

    def write_calibration(self, app: str, user: str, model: str, value: JSON) -> None:
        """Keeps what a user's usage of a model has taught, in the place of what was kept before.

        Raises:
            StoreError: the store could not be written.
        """
        self._replace(self._calibration_path(app, user, model), canonical_json(value).encode())

    def calibration(self, app: str, user: str, model: str) -> JSON:
        """What `write_calibration` kept last, None where there is nothing to be read.

        Raises:
            StoreError: the store could not be read.
        """
        path = self._calibration_path(app, user, model)
        try:
            return json.loads(self._fs.cat_file(path))
        except (FileNotFoundError, ValueError):
            return None
        except OSError as error:
            raise StoreError(f"{path} could not be read: {error}") from error

    def _write_manifest(self, manifest: Manifest, text: str) -> Manifest:
        wanted = manifest
        number = 1
        while not self._create(f"{self._folder(wanted)}/manifest.json", text.encode()):
            held = self._read_manifest(f"{self._folder(wanted)}/manifest.json")
            if held.digest == wanted.digest:
                return held
            number += 1
            wanted, text = manifest.model_copy(update={"pack_id": f"{manifest.pack_id}-{number}"}).sealed()
        return wanted

    def _know(self, path: str) -> None:
        """Remembers that a blob is there; blobs never change, so there is no need to look again."""
        self._known[path] = None
        if len(self._known) > _MOST_KNOWN:
            self._known.popitem(last=False)

    def _create(self, path: str, data: bytes) -> bool:
        """Writes a file that is not there yet, whole or not at all; False where it is there already."""
        try:
            if isinstance(self._fs, LocalFileSystem):
                return _create_local(Path(path), data)
            if isinstance(self._fs, MemoryFileSystem):
                return _create_in_memory(self._fs, path, data)
            if self._fs.exists(path):
                return False
            self._fs.pipe_file(path, data, mode="create")
        except FileExistsError:
            return False
        except (OSError, ValueError) as error:
            raise StoreError(f"{self.url}: {path} could not be written: {error}") from error
        return True

    def _replace(self, path: str, data: bytes) -> None:
        """Writes a file in the place of another, whole or not at all."""
        try:
            if isinstance(self._fs, LocalFileSystem):
                Path(path).parent.mkdir(parents=True, exist_ok=True)
                with _draft(Path(path), data) as draft:
                    os.replace(draft, path)
            else:
                self._fs.pipe_file(path, data)
        except (OSError, ValueError) as error:
            raise StoreError(f"{self.url}: {path} could not be written: {error}") from error

    def _name(self, manifest: Manifest) -> None:
        folder = self._root
        for name in (manifest.app, manifest.user, manifest.session):
            folder = f"{folder}/{segment(name)}"
            if segment(name) != name:
                self._create(f"{folder}/name.json", canonical_json({"name": name}).encode())

    # reading

    def manifests(
        self, app: str | None = None, user: str | None = None, session: str | None = None
    ) -> Iterator[Manifest]:
        """Manifests in the order in which their packs were built, all or those of one app, user or session.

        Raises:
            StoreError: the store could not be read.
        """
        for _, folders in groupby(self.folders(app, user, session), key=_moment):
            found = [self.read(folder) for folder in folders]
            yield from sorted(found, key=lambda one: (one.last_event_time, one.call, one.pack_id))

    def manifest(self, pack_id: str, *, app: str | None = None, user: str | None = None) -> Manifest:
        """The manifest of a pack; the id may be cut short where it stays unique.

        Raises:
            PackNotFound: there is none, or more than one.
            StoreError: the store could not be read.
        """
        found = [path for path in self.folders(app, user) if path.rsplit("/", 1)[-1].startswith(pack_id)]
        exact = [path for path in found if path.endswith(f"/{pack_id}")]
        if len(exact or found) > 1:
            names = ", ".join(sorted(path.rsplit("/", 1)[-1] for path in found)[:3])
            raise PackNotFound(f"{pack_id!r} names {len(found)} packs ({names}, …): give more of the id")
        if not found:
            raise PackNotFound(f"no pack {pack_id!r} in {self.url}: `aether-context list` shows what is there")
        return self.read((exact or found)[0])

    def parent(self, manifest: Manifest) -> Manifest | None:
        """The manifest that this one extends, None where it stands alone.

        Raises:
            PackNotFound: it is named and not there.
        """
        if manifest.parent is None:
            return None
        path = f"{self._session(manifest)}/packs/{manifest.parent}/manifest.json"
        if not self._fs.exists(path):
            raise PackNotFound(f"{manifest.pack_id} extends {manifest.parent}, which is not in {self.url}")
        return self._read_manifest(path)

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
            data: bytes = self._fs.cat_file(path)
        except FileNotFoundError as error:
            raise BlobNotFound(f"{manifest.pack_id} names {digest}, which is not in {self.url}") from error
        except OSError as error:
            raise StoreError(f"{path} could not be read: {error}") from error
        if hash_bytes(data) != digest:
            raise ChecksumMismatch(f"{path} does not hold what its name says")
        return data

    def outcome(self, manifest: Manifest) -> dict[str, JSON] | None:
        """What became of a pack's model call; None where nothing was written."""
        path = f"{self._folder(manifest)}/outcome.json"
        try:
            return json.loads(self._fs.cat_file(path)) if self._fs.exists(path) else None
        except (OSError, ValueError) as error:
            raise StoreError(f"{path} could not be read: {error}") from error

    def uri(self, manifest: Manifest) -> str:
        """Where the manifest is, as a URL."""
        return str(self._fs.unstrip_protocol(f"{self._folder(manifest)}/manifest.json"))

    def _read_manifest(self, path: str) -> Manifest:
        try:
            return Manifest.parse(self._fs.cat_file(path))
        except FileNotFoundError as error:
            raise PackNotFound(f"{path} is not there") from error
        except OSError as error:
            raise StoreError(f"{path} could not be read: {error}") from error

    def folders(self, app: str | None = None, user: str | None = None, session: str | None = None) -> list[str]:
        """The folders of packs, by the times in their names.

        Raises:
            StoreError: the store could not be listed.
        """
        folders = [self._root]
        for name in (app, user, session):
            if name is None:
                folders = [inner for folder in folders for inner in self._subfolders(folder)]
            else:
                folders = [f"{folder}/{segment(name)}" for folder in folders]
        return sorted((pack for folder in folders for pack in self._subfolders(f"{folder}/packs")), key=_order)

    def read(self, folder: str) -> Manifest:
        """The manifest in a pack's folder.

        Raises:
            PackNotFound: there is none.
            ManifestError: it is not a manifest.
        """
        return self._read_manifest(f"{folder}/manifest.json")

    def _subfolders(self, folder: str) -> list[str]:
        try:
            found = self._fs.ls(folder, detail=True, refresh=True)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StoreError(f"{folder} could not be listed: {error}") from error
        names = [entry["name"].rstrip("/") for entry in found if entry["type"] == "directory"]
        return [name for name in names if name.rsplit("/", 1)[-1] not in _NO_SESSIONS]

    def _session(self, manifest: Manifest) -> str:
        return "/".join([self._root, *map(segment, (manifest.app, manifest.user, manifest.session))])

    def _folder(self, manifest: Manifest) -> str:
        return f"{self._session(manifest)}/packs/{manifest.pack_id}"

    def _blob_path(self, app: str, user: str, digest: str) -> str:
        return f"{self._by_hash(app, user, 'blobs', digest)}.json"

    def _evidence_path(self, app: str, user: str, digest: str) -> str:
        return f"{self._by_hash(app, user, 'evidence', digest)}.bin"

    def _evidence_folder(self, app: str, user: str, session: str) -> str:
        return "/".join([self._root, *map(segment, (app, user, session)), "evidence"])

    def _summary_path(self, app: str, user: str, key: str) -> str:
        return f"{self._by_hash(app, user, 'summaries', key)}.txt"

    def _calibration_path(self, app: str, user: str, model: str) -> str:
        return f"{self._root}/{segment(app)}/{segment(user)}/calibration/{segment(model)}.json"

    def _by_hash(self, app: str, user: str, folder: str, digest: str) -> str:
        name = short(digest, 64)
        return f"{self._root}/{segment(app)}/{segment(user)}/{folder}/{name[0]}/{name}"


def segment(name: str) -> str:
    """A safe path segment of at most 64 characters: lower-case names as they are, others as a stub and a hash."""
    if _SAFE.fullmatch(name) and not _RESERVED.fullmatch(name) and not name.endswith("."):
        return name
    stub = re.sub(r"[^a-z0-9]+", "-", name.lower())[:40].strip("-")
    return f"{stub}~{short(hash_text(name), 16)}"


def _order(path: str) -> tuple[str, str]:
    name = path.rsplit("/", 1)[-1]
    return name, path


def _moment(path: str) -> str:
    """The time in a pack's name."""
    return path.rsplit("/", 1)[-1].split("_")[1]


def _create_in_memory(fs: MemoryFileSystem, path: str, data: bytes) -> bool:
    """What the in-memory file system does for a new file, without its walk over all files for each parent folder."""
    if path in fs.store:
        return False
    fs.store[path] = MemoryFile(fs, path, data)
    return True


def _create_local(path: Path, data: bytes) -> bool:
    """A new file with these bytes, complete the moment it appears."""
    if path.exists():
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    with _draft(path, data) as draft:
        try:
            os.link(draft, path)
        except FileExistsError:
            return False
        except OSError:
            os.replace(draft, path)
    return True


@contextmanager
def _draft(path: Path, data: bytes) -> Iterator[str]:
    """A file with these bytes beside ``path``, gone afterwards where it is still there."""
    handle, draft = tempfile.mkstemp(dir=path.parent, prefix=".draft-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(draft, 0o644)
        yield draft
    finally:
        Path(draft).unlink(missing_ok=True)
