"""A pack with everything it stands on, from one store to another."""

from __future__ import annotations

from dataclasses import dataclass

from aether_context.errors import BlobNotFound, StoreError
from aether_context.manifest import Manifest
from aether_context.store import PackStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What a copied pack consists of: manifests, the oldest first, and how many texts and bytes were written anew."""

    manifests: tuple[Manifest, ...]
    files: int
    size: int


def export_pack(store: PackStore, manifest: Manifest, target: PackStore) -> Exported:
    """Copies a pack, its ancestors, and the texts and outcomes of each, under the same names.

    What the target holds already stays as it is; the manifests come last, the oldest first, so that the target never
    holds one whose parent or texts it lacks.

    Raises:
        PackNotFound: an ancestor is missing.
        BlobNotFound: a text is missing.
        ChecksumMismatch: a manifest or a text is not what was written.
        StoreError: a store could not be read or written, or the target holds another pack under the same id.
    """
    chain = store.chain(manifest)
    files = size = 0
    for one in chain:
        one.verify()
        for path, data in _held(store, one):
            if target.files.create(target.files.root + path, data):
                files, size = files + 1, size + len(data)
            elif path.endswith("/manifest.json") and target.files.read(target.files.root + path) != data:
                raise StoreError(f"{target.url} holds another pack {one.pack_id}: export to an empty place")
    return Exported(manifests=tuple(chain), files=files, size=size)


def _held(store: PackStore, manifest: Manifest) -> list[tuple[str, bytes]]:
    """The files of one pack, by their paths below the root, its manifest last."""
    root = store.files.root
    found = [(store.blob_path(manifest, digest), store.blob(manifest, digest)) for digest in store.named_by(manifest)]
    for path in store.beside(manifest):
        try:
            found.append((path, store.files.read(path)))
        except FileNotFoundError as error:
            if path.endswith("/manifest.json"):
                raise BlobNotFound(f"{manifest.pack_id} is not in {store.url} any more") from error
    return [(path.removeprefix(root), data) for path, data in found]
