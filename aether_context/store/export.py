"""A pack with everything it stands on, from one store to another."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from aether_context.canonical import hash_bytes
from aether_context.errors import ArtifactError, BlobNotFound, ChecksumMismatch, StoreError
from aether_context.evidence import EvidenceRecord, evidence_key
from aether_context.store.artifacts import SCHEME, ArtifactFiles, ArtifactOwner, absolute, relative_name
from aether_context.store.manifest import Manifest
from aether_context.store.packs import PackStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What a copied pack consists of: manifests, the oldest first, and how many files and bytes were written anew.

    ``raw`` are the ``artifact://`` URIs of its manifests whose whole is in the target, ``missing`` those whose whole
    the source does not hold: it expired, or is kept by another artifact service.
    """

    manifests: tuple[Manifest, ...]
    files: int
    size: int
    raw: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


def export_pack(store: PackStore, manifest: Manifest, target: PackStore, *, raw: bool = True) -> Exported:
    """Copies a pack, its ancestors, and the texts and outcomes of each, under the same names.

    With them goes what their ``artifact://`` URIs stand for, as far as the source holds it: evidence with its records,
    what was taken out of messages, and artifacts. What the target holds already stays as it is; the manifests come
    last, the oldest first, so that the target never holds one whose parent or texts it lacks.

    Args:
        raw: False leaves out what the URIs stand for. The packs verify and replay without it.

    Raises:
        PackNotFound: an ancestor is missing.
        BlobNotFound: a text is missing.
        ChecksumMismatch: a manifest, a text or a piece of evidence is not what was written.
        StoreError: a store could not be read or written, or the target holds another pack under the same id.
    """
    chain = store.chain(manifest)
    for one in chain:
        one.verify()
    copying = _Copying(store, target)
    copied, missing = _copy_raw(copying, chain) if raw else ([], [])
    for one in chain:
        _copy_pack(copying, one)
    return Exported(
        manifests=tuple(chain), files=copying.files, size=copying.size, raw=tuple(copied), missing=tuple(missing)
    )


class _Copying:
    """Copies files from one store to another, and counts those that are new there."""

    def __init__(self, store: PackStore, target: PackStore) -> None:
        self.store = store
        self.target = target
        self.files = 0
        self.size = 0

    def copy(self, path: str, digest: str | None = None) -> bool:
        """Copies a file; False where it is not there.

        Raises:
            ChecksumMismatch: its bytes have not the given hash.
            StoreError: a store could not be read or written.
        """
        try:
            data = self.store.files.read(path)
        except FileNotFoundError:
            return False
        if digest is not None and hash_bytes(data) != digest:
            raise ChecksumMismatch(f"{path} does not hold what its name says")
        self.put(path, data)
        return True

    def put(self, path: str, data: bytes) -> bool:
        """Writes a file of the first store to the second; False where it is there already."""
        created = self.target.files.create(self._there(path), data)
        if created:
            self.files, self.size = self.files + 1, self.size + len(data)
        return created

    def held(self, path: str) -> bytes:
        """What the second store has at a path of the first."""
        return self.target.files.read(self._there(path))

    def _there(self, path: str) -> str:
        return self.target.files.root + path.removeprefix(self.store.files.root)


def _copy_pack(copying: _Copying, manifest: Manifest) -> None:
    """Copies the files of one pack, its manifest last."""
    store = copying.store
    for digest in store.named_by(manifest):
        copying.put(store.blob_path(manifest, digest), store.blob(manifest, digest))
    *others, receipt = store.beside(manifest)
    for path in others:
        copying.copy(path)
    try:
        data = store.files.read(receipt)
    except FileNotFoundError as error:
        raise BlobNotFound(f"{manifest.pack_id} is not in {store.url} any more") from error
    if not copying.put(receipt, data) and copying.held(receipt) != data:
        raise StoreError(f"{copying.target.url} holds another pack {manifest.pack_id}: export to an empty place")


def _copy_raw(copying: _Copying, chain: Sequence[Manifest]) -> tuple[list[str], list[str]]:
    """Copies what the URIs of manifests of one session stand for; those that it could copy, and the others."""
    named = {uri for one in chain for uri in (*one.artifact_uris, *one.superseded.values()) if uri.startswith(SCHEME)}
    manifest, store = chain[-1], copying.store
    records: dict[str, EvidenceRecord] = {}
    if any(evidence_key(uri) for uri in named):
        records = store.evidence_files(manifest.app, manifest.user, manifest.session)
    copied: list[str] = []
    missing: list[str] = []
    for uri in sorted(named):
        digits, message = evidence_key(uri), store.message_path(manifest, uri)
        if digits is not None:
            said = {path: record for path, record in records.items() if record.uri == uri}
            is_copied = _copy_evidence(copying, manifest, digits, said)
        elif message is not None:
            is_copied = copying.copy(message)
        else:
            is_copied = _copy_all(copying, _artifact(store, manifest, uri))
        (copied if is_copied else missing).append(uri)
    return copied, missing


def _copy_evidence(copying: _Copying, manifest: Manifest, digits: str, records: dict[str, EvidenceRecord]) -> bool:
    """Copies the bytes and the records of one address.

    Where the session has no record of it, as with what an agent got from the one that called it as a tool, the user's
    evidence is asked.
    """
    store = copying.store
    digests = sorted({one.digest for one in records.values()}) or store.evidence_digests(manifest, digits)
    if True not in [copying.copy(store.evidence_path(manifest, digest), digest) for digest in digests]:
        return False
    _copy_all(copying, sorted(records))
    return True


def _copy_all(copying: _Copying, paths: Collection[str]) -> bool:
    """Copies files; whether there were any, and the last one was there."""
    return [copying.copy(path) for path in paths][-1:] == [True]


def _artifact(store: PackStore, manifest: Manifest, uri: str) -> list[str]:
    """The files of an artifact that an app saved in the same place; none where it did not."""
    here = ArtifactOwner(app=manifest.app, user=manifest.user, session=manifest.session)
    target = absolute(uri)
    try:
        scope, name, number = target or (here, relative_name(uri), None)
    except ArtifactError:
        return []
    if (scope.app, scope.user, scope.session or here.session) != (here.app, here.user, here.session):
        return []
    return ArtifactFiles(store.files).paths(scope, name, number)
