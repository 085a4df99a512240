"""Deletion from a store: what is older than an age, or all files of a user or of one session.

Only files whose names are ours are deleted, see `layout`; others are left and counted. Agents may write meanwhile.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from aether_context.errors import AetherContextError, StoreError
from aether_context.store.files import File
from aether_context.store.index import read_block, write_time
from aether_context.store.layout import StoreEntry, entry_of
from aether_context.store.manifest import Manifest
from aether_context.store.pack_file import MANIFEST, numbers_of
from aether_context.store.packs import Forgotten, PackStore, name_of
from aether_context.store.spool import SpooledFiles, spool_of

DAY_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """The files that would be deleted of one user.

    Attributes:
        files: the files to delete, a manifest before all that it names.
        foreign: number of files in the same folders that are not ours.
        forgotten: what goes for its age, by its session: app, user, session.
        folders: those of which everything goes, what is on its way to the store included.
        unreadable: packs that could not be read. Nobody knows what they need, so they stay, with all of their session.
    """

    files: tuple[File, ...]
    foreign: int = 0
    forgotten: tuple[tuple[tuple[str, str, str], Forgotten], ...] = ()
    folders: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Bytes that would be freed."""
        return sum(file.size for file in self.files)


def older_than(store: PackStore, owner: str, seconds: float, now: float) -> Removal:
    """The files older than ``seconds`` of one user, whose folder is ``owner``.

    What was taken out of messages and results, and a segment of a log, goes where no pack that stays needs it, the rest
    by its own age.

    Args:
        now: seconds since 1970 UTC.
    """
    entries, foreign = _entries(store, owner)
    sessions: dict[str, list[StoreEntry]] = defaultdict(list)
    for entry in entries:
        sessions[entry.session].append(entry)

    def is_old(entry: StoreEntry) -> bool:
        return entry.file.modified is not None and now - entry.file.modified >= seconds

    removed: list[StoreEntry] = []
    forgotten, unreadable = [], []
    for session, of_session in sessions.items():
        packs = [entry for entry in of_session if entry.kind == "pack"]
        manifests, damaged = _manifests(store, packs)
        unreadable += damaged
        old = [] if damaged and not all(map(is_old, packs)) else [*filter(is_old, packs)]
        names = {entry.stem for entry in old}
        stay = [manifests[entry.stem] for entry in packs if entry.stem in manifests and entry.stem not in names]
        removed += old
        aged = [*filter(is_old, of_session)]
        segments = [(entry, numbers_of(entry.file.name)) for entry in aged if entry.kind == "segment"]
        last = max((numbers[-1] for _, numbers in segments if numbers), default=0)
        needed = {pack.number for pack in stay}
        for start, stop in (limits for pack in stay for limits in pack.segments):
            needed.update(range(max(start, 0), min(stop, last + 1)))
        if len(stay) == len(packs) - len(old):  # else nobody knows what some need
            removed += [entry for entry, numbers in segments if needed.isdisjoint(numbers)]
        turns = [entry for entry in aged if entry.kind == "turns"]
        removed += turns
        if len(old) == len(packs):  # nothing of the session is left to be numbered
            removed += [entry for entry in of_session if session and entry.kind in ("name", "forgotten") and packs]
        elif stay and (old or turns):
            stops: dict[str, int] = {}
            for entry in turns:
                scope, stop = entry.place.rsplit("/", 1)[-1], int(entry.stem.split("-")[2])
                stops[scope] = max(stops.get(scope, 0), stop)
            numbers = sorted(manifests[name].number for name in names & manifests.keys())
            forgotten.append((stay[0].session_key, Forgotten(numbers, stops)))
        named = {name.rsplit("/", 1)[-1] for pack in stay for name in (*pack.artifact_uris, *pack.saved, *pack.stored)}
        for entry in aged if not damaged else ():
            if entry.kind in ("message", "record"):
                begins = entry.file.name if entry.kind == "message" else _digest_of(store, entry)[:16]
                removed += [] if any(name.startswith(begins) for name in named) else [entry]
    stay_places = {entry.place for entry in entries if entry.kind == "pack"} - {entry.place for entry in removed}
    blocks = [entry for entry in entries if entry.kind == "index"]
    removed += [block for block in blocks if not _indexed_places(store, block) <= stay_places]
    removed += [entry for entry in entries if entry.kind in ("summary", "calibration") and is_old(entry)]
    proven = {_digest_of(store, entry) for entry in entries if entry.kind == "record" and entry not in removed}
    removed += [entry for entry in entries if entry.kind == "evidence" and is_old(entry) and entry.stem not in proven]
    return Removal(
        files=_in_order(removed), foreign=foreign, forgotten=tuple(forgotten), unreadable=tuple(sorted(unreadable))
    )


def all_of(store: PackStore, app: str, user: str, session: str | None = None) -> Removal:
    """Everything of a user, or of one session with those of the agents that ran as tools for it.

    What waits on this machine to be written is among it. A user's summaries and calibration go with any session, since
    nobody knows which one they came from; evidence stays that other sessions of the user name.
    """
    owner = store.files.place(app, user)
    spool = spool_of(store.files)
    store = store if spool is None else store.through(SpooledFiles(store.files, spool))
    entries, foreign = _entries(store, owner)
    folders = [owner]
    if session is not None:
        sessions = _with_called(store, entries, store.files.place(app, user, session))
        session_entries = [entry for entry in entries if entry.session in sessions]
        remaining = [entry for entry in entries if entry.session not in sessions]
        named = {_digest_of(store, entry) for entry in session_entries if entry.kind == "record"}
        named -= {_digest_of(store, entry) for entry in remaining if entry.kind == "record"}
        shared = [entry for entry in remaining if entry.kind in ("summary", "calibration") or entry.stem in named]
        stay = {entry.place for entry in remaining if entry.kind == "pack"}
        shared += [entry for entry in remaining if entry.kind == "index" and not _indexed_places(store, entry) <= stay]
        entries = session_entries + [entry for entry in shared if session_entries and entry.session == ""]
        folders = [f"{store.files.root}/{folder}" for folder in sorted(sessions)]
    return Removal(files=_in_order(entries), foreign=foreign, folders=tuple(folders))


def carry_out(
    store: PackStore, plan: Removal, advance: Callable[[int, int], object] = lambda done, total: None
) -> None:
    """Deletes the files of a plan; first what waits on this machine to be written there.

    Args:
        advance: called with the number of files that are gone, and of all.
    """
    if (spool := spool_of(store.files)) is not None:
        spool.forget(plan.folders)
        spool.drop(file.path for file in plan.files)
    for key, of_session in plan.forgotten:
        store.note_forgotten(*key, of_session)
    for done, file in enumerate(plan.files, start=1):
        store.files.delete(file.path)
        advance(done, len(plan.files))


def _entries(store: PackStore, owner: str) -> tuple[list[StoreEntry], int]:
    """The files of ours in a user's folder, with those that wait on this machine, and how many others there are."""
    files = {file.path: file for file in store.files.below(owner)}
    spool = spool_of(store.files)
    for path, size in (spool.paths() if spool is not None else {}).items():
        if path.startswith(f"{owner}/"):
            files.setdefault(path, File(path=path, size=size, modified=None))
    entries = [entry_of(file, store.files.root) for file in files.values()]
    ours = [entry for entry in entries if entry is not None]
    return ours, len(entries) - len(ours)


def _with_called(store: PackStore, entries: Sequence[StoreEntry], session: str) -> set[str]:
    """A session's folder, and those of the sessions that ran only as tools of it, or of one of these."""
    root = f"{store.files.root}/"
    folders = {session.removeprefix(root)}
    manifests, _ = _manifests(store, [entry for entry in entries if entry.kind == "pack"])
    callers: dict[str, set[str]] = defaultdict(set)
    for manifest in manifests.values():
        caller = store.files.place(*manifest.caller).removeprefix(root) if manifest.caller else ""
        callers[store.files.place(*manifest.session_key).removeprefix(root)].add(caller)
    while more := {folder for folder, of_folder in callers.items() if of_folder <= folders} - folders:
        folders |= more
    return folders


def _indexed_places(store: PackStore, block: StoreEntry) -> set[str]:
    """The places of the packs that a block of the index holds; one that is nowhere for a block that is damaged."""
    with suppress(AetherContextError, FileNotFoundError):
        return {*read_block(store.files, block.file.path)}
    return {""}


def _in_order(entries: Iterable[StoreEntry]) -> tuple[File, ...]:
    """Files in the order in which they go: manifests from the newest, and the names of folders last."""
    newest_first = sorted(entries, key=lambda entry: entry.file.path, reverse=True)
    ordered = sorted(newest_first, key=lambda entry: (entry.kind != "pack", entry.kind == "name"))
    return tuple(entry.file for entry in ordered)


def _manifests(store: PackStore, packs: Sequence[StoreEntry]) -> tuple[dict[str, Manifest], list[str]]:
    """The manifests of packs by their names, and the paths of those that cannot be read.

    One that was deleted meanwhile, or waits on this machine only, is in neither.
    """
    manifests: dict[str, Manifest] = {}
    damaged: list[str] = []
    in_order = sorted(packs, key=lambda entry: write_time(entry.place))
    for pack_path, manifest, _ in store.calls({entry.place: entry.file for entry in in_order}):
        if not isinstance(manifest, AetherContextError):
            manifests[name_of(pack_path)] = manifest
        elif not isinstance(manifest, StoreError):
            damaged.append(f"{pack_path}/{MANIFEST}")
    return manifests, damaged


def _digest_of(store: PackStore, record: StoreEntry) -> str:
    """The digits of the hash of the bytes that a record of evidence names; empty where it cannot be read."""
    with suppress(FileNotFoundError, ValueError, LookupError, TypeError):
        return str(json.loads(store.files.read(record.file.path))["digest"]).rsplit(":", 1)[-1]
    return ""
