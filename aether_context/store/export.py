"""Copies a pack from one store to another, with its ancestors and all that they refer to."""

from __future__ import annotations

from dataclasses import dataclass

from aether_context.canonical import hash_bytes
from aether_context.errors import ArtifactError, ChecksumMismatch, StoreError
from aether_context.evidence import EvidenceRecord, evidence_key
from aether_context.store.artifacts import ArtifactFiles, ArtifactOwner, absolute, relative_name
from aether_context.store.manifest import Manifest
from aether_context.store.pack_file import ENDING
from aether_context.store.packs import PackStore
from aether_context.text.entities import SCHEME


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What was copied: the manifests, the oldest first, and how many files and bytes are new in the target.

    ``raw`` are the ``artifact://`` URIs in these manifests whose content is in the target, ``missing`` those whose
    content the source does not hold: it expired, or another artifact service keeps it.
    """

    manifests: tuple[Manifest, ...]
    files: int
    size: int
    raw: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


def export_pack(store: PackStore, manifest: Manifest, target: PackStore, *, raw: bool = True) -> Exported:
    """Copies a pack, its ancestors, and the texts and outcomes of each, under the same names.

    The content of their ``artifact://`` URIs is copied, too, where the source holds it: evidence with its records,
    texts cut out of messages, and artifacts. Files that the target has already stay as they are. The manifests come
    last, the oldest first, so that the target never holds one whose parent or texts it lacks.

    Args:
        raw: False leaves out the content of the URIs. The packs verify and replay without it.

    Raises:
        StoreError: an ancestor or a text is missing, or the target holds another pack under the same id.
        ChecksumMismatch: a manifest, a text or a piece of evidence is not what was written.
    """
    chain = store.chain(manifest)
    for link in chain:
        link.verify()
    copying = _Copying(store, target)
    addresses = {uri for link in chain for uri in (*link.artifact_uris, *link.superseded.values())} if raw else set()
    copied: dict[str, bool] = {}
    records: dict[str, EvidenceRecord] = {}
    if any(evidence_key(uri) for uri in addresses):
        records = store.evidence_files(*manifest.session_key)
    for uri in sorted(uri for uri in addresses if uri.startswith(SCHEME)):
        digits = evidence_key(uri)
        if digits is not None:
            matching = {path: record for path, record in records.items() if record.uri == uri}
            copied[uri] = copying.evidence(manifest, digits, matching)
        else:
            copied[uri] = copying.artifact(manifest, uri)
    for link in chain:
        copying.pack(link)
    return Exported(
        manifests=tuple(chain),
        files=copying.files,
        size=copying.size,
        raw=tuple(uri for uri, is_copied in copied.items() if is_copied),
        missing=tuple(uri for uri, is_copied in copied.items() if not is_copied),
    )


@dataclass(slots=True)
class _Copying:
    """Copies files from one store to the same paths in another, and counts those that are new there."""

    store: PackStore
    target: PackStore
    files: int = 0
    size: int = 0

    def copy(self, path: str, digest: str | None = None) -> bool:
        """Copies a file, whose bytes must have the given hash; False where it is not there."""
        data = self.store.files.get(path)
        if data is None:
            return False
        if digest is not None and hash_bytes(data) != digest:
            raise ChecksumMismatch(f"{path} does not hold what its name says")
        if self.target.files.create(self._target_path(path), data):
            self.files, self.size = self.files + 1, self.size + len(data)
        return True

    def pack(self, manifest: Manifest) -> None:
        """Copies the files of one pack, its manifest last."""
        store, place = self.store, self.store.place(manifest)
        for digest in manifest.blobs:
            store.blob(manifest, digest)  # raises where it is damaged
            path = store.blob_path(manifest, digest)
            for version in (path, path.removesuffix(".gz")):
                self.copy(version)
        for path in (*store.files.name_files(*manifest.session_key), store.hour_entry(manifest)):
            self.copy(path)
        for path in (f"{place}{ENDING}", f"{place}/outcome.json", f"{place}/manifest.json"):
            if self.copy(path):  # a file that the target has already may lack the outcome
                self.target.files.extend(self._target_path(path), store.files.read(path))
        if self.target.fields(self._target_path(place)) != store.fields(place):
            raise StoreError(f"{self.target.url} holds another pack {manifest.pack_id}: export to an empty place")

    def evidence(self, manifest: Manifest, digits: str, records: dict[str, EvidenceRecord]) -> bool:
        """Copies the bytes of one address, and its records, given by their paths; False where the bytes are missing.

        The session may have no record, as when an agent got the address from the one that called it as a tool. The
        bytes are then looked for in all of the user's evidence.
        """
        app, user = manifest.app, manifest.user
        digests = sorted({record.digest for record in records.values()})
        digests = digests or self.store.evidence_digests(app, user, digits)
        copied = [self.copy(self.store.evidence_path(app, user, digest), digest) for digest in digests]
        for path in sorted(records) if any(copied) else ():
            self.copy(path)
        return any(copied)

    def artifact(self, manifest: Manifest, uri: str) -> bool:
        """Copies the text that was cut out of a message, or an artifact that an app saved in the same store."""
        session_owner = ArtifactOwner(app=manifest.app, user=manifest.user, session=manifest.session)
        try:
            owner, name, number = absolute(uri) or (session_owner, relative_name(uri), None)
        except ArtifactError:
            return False
        if owner == session_owner and number is None and self.store.message(*manifest.session_key, name) is not None:
            return self.copy(f"{self.store.files.place(*manifest.session_key)}/{name}")
        if (owner.app, owner.user, owner.session or session_owner.session) != (
            session_owner.app,
            session_owner.user,
            session_owner.session,
        ):
            return False
        paths = ArtifactFiles(self.store.files).paths(owner, name, number)
        return [self.copy(path) for path in paths][-1:] == [True]

    def _target_path(self, path: str) -> str:
        return self.target.files.root + path.removeprefix(self.store.files.root)
