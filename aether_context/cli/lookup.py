"""Packs of a store by place or by a piece of their id. A place is the folder of one pack."""

from __future__ import annotations

from aether_context.errors import PackNotFound, StoreError
from aether_context.store import PackStore
from aether_context.store.packs import HOUR


def pack_name(place: str) -> str:
    """The id of the pack at a place."""
    return place.rsplit("/", 1)[-1]


def require(store: PackStore) -> PackStore:
    """The store, where it is there.

    Raises:
        StoreError: it is not there, or is a file.
    """
    if not store.files.is_there():
        raise StoreError(f"no packs in {store.url}: there is no such store")
    return store


def whose(*, app: str | None, user: str | None, session: str | None) -> str:
    """Those whose packs are meant, as the middle of a sentence; empty where it is everybody."""
    names = (("app", app), ("user", user), ("session", session))
    told = " ".join(f"{name} {value!r}" for name, value in names if value is not None)
    return f" of {told}" if told else ""


def find(store: PackStore, pack_id: str | None) -> str:
    """The place of the pack with this id, or of the newest one.

    Args:
        pack_id: an id, its beginning, or the hash at its end.

    Raises:
        PackNotFound: there is none, or more than one.
    """
    known = store.folders(newest=1) if pack_id is None else _among(store, pack_id)
    if not known:
        raise PackNotFound(f"no packs in {require(store).url}")
    if pack_id is None:
        return known[-1]
    exact = [place for place in known if pack_name(place) == pack_id]
    found = exact or [place for place in known if _abbreviates(pack_id, pack_name(place))]
    if not found:
        raise PackNotFound(f"no pack {pack_id!r} in {store.url}: `{store.command('list')}` shows what is there")
    if len(found) > 1:
        some = ", ".join(pack_name(place) for place in found[:3])
        raise PackNotFound(f"{pack_id!r} stands for {len(found)} packs ({some}, …): give more of the id")
    return found[0]


def _among(store: PackStore, pack_id: str) -> list[str]:
    """The packs of one hour where the id names it, else all."""
    begins = pack_id if pack_id.startswith("pack_") else f"pack_{pack_id}"
    return (HOUR.match(begins) and store.folders(begins=begins)) or store.folders()


def _abbreviates(piece: str, whole: str) -> bool:
    return bool(piece) and (whole.startswith((piece, f"pack_{piece}")) or whole.rsplit("_", 1)[-1].startswith(piece))
