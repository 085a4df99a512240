"""The raw artifact behind an address in a pack, where the store holds it."""

from __future__ import annotations

from aether_context.errors import ArtifactError
from aether_context.evidence.record import evidence_key
from aether_context.store import Manifest, PackStore
from aether_context.store.artifacts import ArtifactFiles, ArtifactOwner, absolute, relative_name


def raw_of(store: PackStore, manifest: Manifest, uri: str) -> bytes | None:
    """What an address stands for in the session of a pack; None where the store does not hold it.

    Never of another user: what an address names beyond the pack's own app and user is not looked for.
    """
    digits = evidence_key(uri)
    if digits is not None:
        found = store.evidence_digests(manifest.app, manifest.user, digits)
        return store.evidence_data(manifest.app, manifest.user, found[0]) if found else None
    here = ArtifactOwner(app=manifest.app, user=manifest.user, session=manifest.session)
    try:
        owner, name, number = absolute(uri) or (here, relative_name(uri), None)
    except ArtifactError:
        return None
    if owner == here and number is None and (data := store.message(*manifest.session_key, name)) is not None:
        return data
    if (owner.app, owner.user, owner.session or here.session) != (here.app, here.user, here.session):
        return None
    version = ArtifactFiles(store.files).load(owner, name, number)
    return version.data if version is not None else None
