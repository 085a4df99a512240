"""Verification of a store: every byte of every file of ours, and no pack that is missing."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, count
from typing import Any, Protocol

from aether_context.canonical import canonical_json, hash_bytes, hash_text, short
from aether_context.errors import AetherContextError, ChecksumMismatch, PackNotFound, ReplayIncomplete
from aether_context.evidence import EvidenceRecord, evidence_key
from aether_context.pack import NOTHING, pack_of_event
from aether_context.store.artifacts import ArtifactFiles, artifact_owner, is_artifact
from aether_context.store.files import File, segment
from aether_context.store.index import INDEX, block_began, read_block, write_time
from aether_context.store.layout import StoreEntry, entry_of, is_pack_folder
from aether_context.store.manifest import Manifest
from aether_context.store.pack_file import gunzip_bytes, read_record, record_file, remove_hash
from aether_context.store.packs import NO_SESSIONS, PackStore, name_of
from aether_context.store.replay import Replayer

_DIGITS = 16
"""Digits of the hash in the name of a message, and in an address of evidence."""


class HostSession(Protocol):
    """A session as ADK has it. The event with a model's answer names the pack of its call."""

    app_name: str
    user_id: str
    id: str
    events: Sequence[Any]


@dataclass(slots=True)
class Verification:
    """The findings of a verification.

    Attributes:
        packs: number of packs that were checked.
        faults: what is wrong, by the path below the base of the store: of a file, or of the folder that lacks one.
        foreign: paths of files that are not this package's. They are no fault.
        unrecorded: number of packs that cannot be replayed, since their policy records hashes only.
    """

    packs: int = 0
    faults: dict[str, str] = field(default_factory=dict)
    foreign: list[str] = field(default_factory=list)
    unrecorded: int = 0


class Verifier:
    """Checks packs of one store; what packs of a session share is checked once.

    Args:
        replays: whether to build each request again and compare it with the recorded one.
    """

    def __init__(self, store: PackStore, *, replays: bool = False) -> None:
        self.unrecorded = 0
        self._replays = replays
        self.store = store
        self._replayer = Replayer(store)
        self._checked: dict[str, Manifest | AetherContextError] = {}
        self.outcomes: defaultdict[str, str | None] = defaultdict(lambda: None)
        """The names of the lines with the outcomes of packs that were checked, empty where there is none, and None
        where nobody can tell."""

    def faults(self, places: Sequence[str], advance: Callable[[], object] = lambda: None) -> dict[str, str]:
        """Describes the faults of a session's packs, by their places; empty for each without any.

        Args:
            advance: called behind each pack.
        """
        self._replayer, self._checked, faults = Replayer(self.store), {}, {}
        for pack_path, manifest in zip(places, self.store.files.at_once(self._check, places), strict=True):
            self._checked[pack_path] = manifest
            faults[pack_path] = self.fault(pack_path)
            advance()
        return faults

    def fault(self, pack_path: str, *, of_size: bool = True) -> str:
        """Describes the fault of the pack at a place; empty where there is none.

        Args:
            pack_path: it is fastest to check the places of one session one after the other.
            of_size: whether it is a fault that the request passes the window.
        """
        manifest, over = self.checked(pack_path), ""
        if isinstance(manifest, AetherContextError):
            return str(manifest)
        try:
            outcomes = self._replayer.log(manifest).outcomes([manifest])
            self.outcomes[manifest.pack_id] = name = outcomes.name(manifest)
            if name:
                outcomes.of(manifest)
            if manifest.over_window and of_size:
                over = f"the request passes the window by {manifest.over_window:,} tokens"
            if missing := self._replayer.missing(manifest):
                return f"its session's log lacks {len(missing):,} of its texts, the first {missing[0]}"
            if self._replays:
                self._replayer.replay(manifest)
        except ReplayIncomplete as error:
            if manifest.texts:
                return str(error)
            self.unrecorded += 1
        except (AetherContextError, ValueError, LookupError) as error:  # a record may hold anything
            return str(error)
        return over

    def checked(self, pack_path: str) -> Manifest | AetherContextError:
        """The manifest at a place; what is wrong where it is not there, or its file is not what was written."""
        if pack_path not in self._checked:
            self._checked[pack_path] = self._check(pack_path)
        return self._checked[pack_path]

    def _check(self, pack_path: str) -> Manifest | AetherContextError:
        try:
            manifest = self.store.read_sound(pack_path)
        except AetherContextError as error:
            return error
        if self.store.place(manifest).lstrip("/") != pack_path.lstrip("/"):
            return PackNotFound(f"the manifest of {manifest.pack_id} stands in another pack's place")
        return manifest


def verify(
    store: PackStore | str,
    session: HostSession | None = None,
    *,
    replays: bool = False,
    selection: Mapping[str, str | None] = NOTHING,
    advance: Callable[[int, int], object] = lambda done, total: None,
) -> Verification:
    """Checks every file of a store, or of one session with those that its user's sessions share.

    A file that was changed is found by its hash. What was deleted is found by what names it: a pack by the numbers of
    those around it, a segment of the log by the packs that need it, an outcome by the manifest that follows, messages,
    evidence, turns and artifacts by the manifests of their session. A missing end is found only with a session, whose
    events name their packs. Who can write to the store can make all hashes anew; where ``AETHER_CONTEXT_KEY`` is set,
    what was written without the key is a fault.

    Args:
        replays: whether to build each request again and compare it with the recorded one, too.
        selection: by ``app``, ``user`` and ``session``, whose sessions to check; a session that is not named in it, or
            is None, is any.
        advance: called with the number of packs that are done, and of all.
    """
    store = store if isinstance(store, PackStore) else PackStore(store)
    root, findings, verifier = store.files.root, Verification(), Verifier(store, replays=replays)
    if session is not None:
        selection = {"app": session.app_name, "user": session.user_id, "session": session.id}
    event_packs = [pack_of_event(event) for event in session.events] if session is not None else []
    entries: dict[str, list[StoreEntry]] = defaultdict(list)
    app, user, name = map(selection.get, ("app", "user", "session"))
    owners = [root] if app is user is name is None else store.owners(app, user)
    for file in chain.from_iterable(_files_of(store, owner, name and segment(name)) for owner in owners):
        entry = entry_of(file, root)
        if entry is None:
            findings.foreign.append(store.files.below_base(file.path))
        else:
            entries[entry.session].append(entry)
    other_files = _OtherFiles(store, entries)
    total, done = sum(entry.kind == "pack" for of_folder in entries.values() for entry in of_folder), count(1)
    for folder, of_folder in sorted(entries.items()):
        places = [entry.place for entry in of_folder if entry.kind == "pack"]
        faults = verifier.faults(places, lambda: advance(next(done), total))
        manifests = [manifest for manifest in map(verifier.checked, places) if isinstance(manifest, Manifest)]
        findings.packs += len(places)
        damaged = len(places) - len(manifests)
        for entry in of_folder:
            if entry.kind != "pack":
                faults[entry.file.path] = _file_fault(store, entry)
        faults |= other_files.contradictions(manifests, verifier.outcomes)
        gaps = _gaps(verifier, manifests, damaged, event_packs) if manifests else ""
        faults[f"{root}/{folder}"] = gaps or other_files.missing(folder, manifests)
        findings.faults |= {store.files.below_base(path): fault for path, fault in faults.items() if fault}
    if session is not None and (number := max(event_packs, default=(0, ""))[0]):
        of_session = store.files.below_base(store.files.place(session.app_name, session.user_id, session.id))
        if not any(entry.kind == "pack" for entry in entries.get(of_session, ())):
            findings.faults[of_session] = f"none of its {number:,} packs is there"
    findings.unrecorded = verifier.unrecorded
    return findings


def _files_of(store: PackStore, owner: str, session: str | None) -> Iterable[File]:
    """The files below a folder; where a session is named those of a user's that has it, without what other sessions'
    packs alone are in."""
    if session is None:
        return store.files.below(owner)
    folders = [folder for folder in store.files.folders(owner) if name_of(folder) in (session, *NO_SESSIONS)]
    if f"{owner}/{session}" not in folders:
        return ()
    files = chain(store.files.files(owner), chain.from_iterable(map(store.files.below, folders)))
    times = sorted(map(write_time, filter(is_pack_folder, store.files.folders(f"{owner}/{session}/packs")))) or [""]
    in_index = f"{owner}/{INDEX}/"
    return (file for file in files if not file.path.startswith(in_index) or block_began(file, times[0], times[-1]))


def _gaps(
    verifier: Verifier, manifests: Sequence[Manifest], damaged: int, event_packs: Sequence[tuple[int, str]]
) -> str:
    """Finds packs of a session that are not there, or are others than those that were followed; empty where none.

    Args:
        damaged: number of packs that are there and cannot be read, which may be some of those that are missed.
        event_packs: numbers and ids of packs by the events of the session; empty where these are unknown.
    """
    numbered: dict[int, list[Manifest]] = defaultdict(list)
    for manifest in manifests:
        numbered[manifest.number].append(manifest)
    try:
        forgotten = verifier.store.forgotten(*manifests[0].session_key).packs
    except (AetherContextError, TypeError, ValueError) as error:
        return f"what was forgotten for its age cannot be read: {error}"
    first = max(manifest.first_number for manifest in manifests)
    ids = {manifest.pack_id for manifest in manifests}
    named = {number for number, name in event_packs if number and name not in ids}
    numbers = range(first, max(*numbered, *(number for number, _ in event_packs), 0) + 1)
    missing = [at for at in numbers if (at not in numbered or at in named) and at not in forgotten]
    if len(missing) > damaged:
        numbers_shown = ", ".join(f"{number:,}" for number in missing[:10])
        return f"of its {numbers[-1]:,} packs number {numbers_shown}{', …' if len(missing) > 10 else ''} is missing"
    for manifest in manifests:
        predecessors = numbered.get(manifest.number - 1, [])
        if manifest.before and predecessors and manifest.before not in {earlier.digest for earlier in predecessors}:
            return f"the pack before {manifest.pack_id} is not the one that it followed"
        hashes = {verifier.outcomes[earlier.pack_id] for earlier in predecessors}
        if manifest.outcome_before and predecessors and not {manifest.outcome_before, None} & hashes:
            fault = "not the one that was written" if any(hashes) else "missing"
            return f"the outcome of {predecessors[0].pack_id} is {fault}"
    return ""


class _OtherFiles:
    """The files of a store beside packs, to be compared with what manifests name."""

    def __init__(self, store: PackStore, entries: Mapping[str, Sequence[StoreEntry]]) -> None:
        self._store = store
        every = [entry for of_folder in entries.values() for entry in of_folder]
        self._files = {(entry.kind, entry.owner, entry.stem[:_DIGITS]) for entry in every}
        records = ((entry.session, self._record(entry)) for entry in every if entry.kind == "record")
        self._records = {(folder, short(record.digest, _DIGITS)) for folder, record in records if record is not None}
        self._copies: dict[str, list[tuple[str, str, str]]] = defaultdict(list)
        """By the place of a pack: the blocks of the index that hold it, with the hashes of their copies."""
        self._turns: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for entry in every:
            path = entry.file.path
            with suppress(AetherContextError, FileNotFoundError):
                for pack_path, copies in read_block(store.files, path).items() if entry.kind == INDEX else ():
                    manifest, outcome = copies
                    self._copies[pack_path].append((path, hash_text(manifest), hash_text(outcome) if outcome else ""))
            if entry.kind == "turns":
                _, start, stop, _ = entry.stem.split("-")
                self._turns[entry.place].append((int(start), int(stop)))

    def _record(self, entry: StoreEntry) -> EvidenceRecord | None:
        with suppress(FileNotFoundError, ValueError, TypeError, AetherContextError):
            return read_record(self._store.files.read(entry.file.path), self._store.files.below_base(entry.file.path))
        return None

    def contradictions(self, manifests: Sequence[Manifest], outcomes: Mapping[str, str | None]) -> dict[str, str]:
        """Describes the blocks of the index that hold other manifests or outcomes than the packs, by their paths.

        Args:
            outcomes: those of a `Verifier`.
        """
        faults = {}
        for manifest in manifests:
            for path, copy, outcome in self._copies.get(self._store.place(manifest), ()):
                recorded = outcomes[manifest.pack_id]
                if copy != hash_text(manifest.to_json()) or (outcome and recorded is not None and outcome != recorded):
                    faults[path] = f"its copy of {manifest.pack_id} is not what the pack holds"
        return faults

    def missing(self, folder: str, manifests: Sequence[Manifest]) -> str:
        """Lists the files that a session's manifests name and that are not there; empty where nothing is missing."""
        owner = "/".join(folder.split("/")[:2])
        for manifest in manifests:
            for uri in manifest.saved:
                if ("message", owner, uri.rsplit("/", 1)[-1].removesuffix(".txt")) not in self._files:
                    return f"{uri}, which {manifest.pack_id} names, is missing"
            for name in manifest.stored:
                if not self._is_there(folder, owner, name, manifest):
                    return f"{name}, which was there when {manifest.pack_id} was written, is missing"
        return ""

    def _is_there(self, folder: str, owner: str, name: str, manifest: Manifest) -> bool:
        if (digits := evidence_key(name)) is not None:
            return ("evidence", owner, digits) in self._files and (folder, digits) in self._records
        if not name.startswith("turns/"):
            whose, artifact, _ = artifact_owner(name, manifest.session_key)
            return bool(ArtifactFiles(self._store.files).versions(whose, artifact))
        scope, _, positions = name.rpartition("/")
        start, stop = map(int, positions.split("-"))
        forgotten = self._store.forgotten(*manifest.session_key).turns
        reached = max(start, forgotten.get(scope.removeprefix("turns/"), 0))
        for first, last in sorted(self._turns[f"{self._store.files.root}/{folder}/{scope}"]):
            if first <= reached:
                reached = max(reached, last)
        return reached >= stop


def _file_fault(store: PackStore, entry: StoreEntry) -> str:
    """Describes the fault of a file that is no pack; empty where there is none."""
    relative_path = store.files.below_base(entry.file.path)
    try:
        data = store.files.read(entry.file.path)
        if entry.kind == "evidence":
            is_sound = short(hash_bytes(data), 64) == entry.stem
        elif entry.kind == "record":
            record = read_record(data, relative_path)
            is_sound = record.name == entry.stem and record_file(record, relative_path) == data
        elif entry.kind == "name":
            name = str(json.loads(data)["name"])
            folder = entry.file.path.rsplit("/", 2)[-2]
            is_sound = segment(name) == folder and canonical_json({"name": name}).encode() == data
        elif entry.kind in ("turns", "index", "segment"):
            if entry.kind != "segment":  # its lines are named by their hashes
                remove_hash(gunzip_bytes(data), relative_path.rsplit("/", 1)[0])
            is_sound = f"-{short(hash_bytes(data))}." in entry.file.name
        elif entry.kind == "artifact":
            is_sound = is_artifact(data)
        else:
            remove_hash(data, relative_path)
            is_sound = True
    except FileNotFoundError:
        return ""  # deleted meanwhile
    except ChecksumMismatch as error:
        return str(error)
    except (ValueError, LookupError, TypeError, AetherContextError):
        is_sound = False
    return "" if is_sound else "it does not hold what was written"
