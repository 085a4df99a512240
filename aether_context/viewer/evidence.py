"""The content of an address in a pack, where the store holds it."""

from __future__ import annotations

from aether_context.errors import ArtifactError
from aether_context.evidence.record import evidence_key
from aether_context.store import Manifest, PackStore
from aether_context.store.artifacts import ArtifactFiles, ArtifactOwner, absolute, relative_name


def raw_of(store: PackStore, manifest: Manifest, uri: str) -> bytes | None:
    """The content of an address in the session of a pack; None where the store does not hold it.

    An address of another app or user is never looked up.
    """
    digits = evidence_key(uri)
    if digits is not None:
        digests = store.evidence_digests(manifest.app, manifest.user, digits)
        return store.evidence_data(manifest.app, manifest.user, digests[0]) if digests else None
    session_owner = ArtifactOwner(app=manifest.app, user=manifest.user, session=manifest.session)
    try:
        owner, name, number = absolute(uri) or (session_owner, relative_name(uri), None)
    except ArtifactError:
        return None
    if owner == session_owner and number is None and (data := store.message(*manifest.session_key, name)) is not None:
        return data
    if (owner.app, owner.user, owner.session or session_owner.session) != (
        session_owner.app,
        session_owner.user,
        session_owner.session,
    ):
        return None
    version = ArtifactFiles(store.files).load(owner, name, number)
    return version.data if version is not None else None
