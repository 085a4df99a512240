"""A store as its operator sees it: the kinds of its files, and what is forgotten or deleted for its age."""

from __future__ import annotations

from aether_context import PackStore
from aether_context.store.files import File
from aether_context.store.retention import all_of, carry_out, older_than

_KINDS = {"turns": "turns", "messages": "message", "summaries": "summary", "calibration": "calibration"}
_KINDS |= {"index": "index", "artifacts": "artifact", "log": "segment"}
_OF_PACKS = {"manifest.json": "pack", "forgotten.json": "forgotten", "name.json": "name"}


def kind_of(file: File) -> str:
    """The kind of a file of a store, by its path."""
    *folders, name = file.path.split("/")
    if "evidence" in folders:
        return "record" if name.endswith(".json") else "evidence"
    return _OF_PACKS.get(name) or next(_KINDS[folder] for folder in folders if folder in _KINDS)


def by_kind(store: PackStore) -> dict[str, list[File]]:
    """The files of a store by their kind."""
    kinds: dict[str, list[File]] = {}
    for file in store.files.below(store.files.root):
        kinds.setdefault(kind_of(file), []).append(file)
    return kinds


def forget(store: PackStore, app: str, user: str, session: str | None = None) -> list[str]:
    """Deletes all of a user, or of one session, as ``aether-context forget`` does. The paths of what went."""
    plan = all_of(store, app, user, session)
    carry_out(store, plan)
    return [file.path for file in plan.files]


def delete_older(store: PackStore, seconds: float, now: float) -> list[str]:
    """Deletes what is older than so many seconds of the one user in a store, as ``aether-context prune`` does. The
    paths of what went."""
    (owner,) = store.owners()
    plan = older_than(store, owner, seconds, now)
    carry_out(store, plan)
    return [file.path for file in plan.files]
