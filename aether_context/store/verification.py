"""Whether a store holds what was written: every byte of every file of ours, and no pack that is missing."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from aether_context.canonical import canonical_json, hash_bytes, hash_json, short
from aether_context.errors import AetherContextError, ChecksumMismatch, PackNotFound, ReplayIncomplete, StoreError
from aether_context.evidence import EvidenceRecord
from aether_context.pack import pack_of_event
from aether_context.store.artifacts import is_artifact
from aether_context.store.files import segment
from aether_context.store.layout import Entry, entry_of
from aether_context.store.manifest import Manifest
from aether_context.store.pack_file import ENDING
from aether_context.store.packs import PackStore, unhashed
from aether_context.store.replay import Replayer


class HostSession(Protocol):
    """A session as ADK has it. The event with a model's answer names the pack of its call."""

    app_name: str
    user_id: str
    id: str
    events: Sequence[Any]


@dataclass(slots=True)
class Verification:
    """What was found.

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
        self._store = store
        self._folder = ""
        self._replayer = Replayer(store)
        self._checked: dict[str, Manifest | AetherContextError] = {}
        self._sound: set[str] = set()
        """Packs whose chains are sound up to them."""

    def fault(self, place: str, *, chain: bool = False) -> str:
        """What is wrong with the pack at a place; empty where nothing is.

        Args:
            place: it is fastest to check the places of one session one after the other.
            chain: whether only a replay is asked for: the packs before it in its chain must be sound then as well, and
                its size does not matter.
        """
        folder = place.rsplit("/", 1)[0]
        if folder != self._folder:
            self._folder, self._replayer, self._checked, self._sound = folder, Replayer(self._store), {}, set()
        over = ""
        try:
            manifest = self.manifest(place)
            if manifest.over_window and not chain:
                over = f"the request passes the window by {manifest.over_window:,} tokens"
            if manifest.extends is not None and (fault := self._chain_fault(manifest.extends, chain or self._replays)):
                return fault
            if self._replays:
                self._replayer.replay(manifest)
        except ReplayIncomplete as error:
            if manifest.texts:
                return str(error)
            self.unrecorded += 1
        except AetherContextError as error:
            return str(error)
        return over

    def _chain_fault(self, extended: str | None, whole: bool) -> str:
        """What is wrong with the pack that another one extends, and where ``whole`` is set with those before it."""
        below: list[str] = []
        while extended is not None and extended not in self._sound and extended not in below:
            try:
                manifest = self.manifest(f"{self._folder}/{extended}")
            except PackNotFound:
                return f"it extends {extended}, which is not there"
            except AetherContextError:
                return f"it extends {extended}, which failed" if whole else ""
            if not whole:
                return ""
            below.append(extended)
            extended = manifest.extends
        self._sound.update(below)
        return ""

    def manifest(self, place: str) -> Manifest:
        """The manifest at a place; raises where it is not there, or anything in its file is not what was written."""
        if place not in self._checked:
            try:
                self._checked[place] = self._check(place)
            except AetherContextError as error:
                self._checked[place] = error
        checked = self._checked[place]
        if isinstance(checked, AetherContextError):
            raise checked
        return checked

    def _check(self, place: str) -> Manifest:
        manifest, texts, _ = self._store.parts(place)
        if self._store.place(manifest).lstrip("/") != place.lstrip("/"):
            raise PackNotFound(f"the manifest of {manifest.pack_id} stands in another pack's place")
        if manifest.settings is not None and hash_json(manifest.settings) != manifest.policy:
            raise ChecksumMismatch(f"its settings are not those of policy {manifest.policy}")
        if self._replays and manifest.texts:
            self._replayer.take(manifest, texts)
        return manifest


def verify(store: PackStore | str, session: HostSession | None = None, *, replays: bool = False) -> Verification:
    """Checks every file of a store, or of one session with those that its user's sessions share.

    A file that was changed is found by its hash, a pack that is missing by the numbers of those around it, and one in
    the place of another by the hash that the next one holds. A missing end is found only with a session, whose events
    name their packs. Who can write to the store can make all hashes anew; where ``AETHER_CONTEXT_KEY`` is set, packs
    and outcomes are signed, and one that was made without the key is a fault.

    Args:
        replays: whether to build each request again and compare it with the recorded one, too.
    """
    store = store if isinstance(store, PackStore) else PackStore(store)
    root, found, verifier = store.files.root, Verification(), Verifier(store, replays=replays)
    names = () if session is None else (session.app_name, session.user_id, session.id)
    of_session = store.files.place(*names).removeprefix(f"{root}/") if names else ""
    last_number = max((pack_of_event(event)[0] for event in session.events), default=0) if session is not None else 0
    entries: dict[str, list[Entry]] = defaultdict(list)
    for file in store.files.below(store.files.place(*names[:2]) if names else root):
        entry = entry_of(file, root)
        if entry is None:
            found.foreign.append(file.path.removeprefix(f"{root}/"))
        elif not names or entry.session in ("", of_session):
            entries[entry.session].append(entry)
    for folder, of_folder in sorted(entries.items()):
        manifests: list[Manifest] = []
        damaged = 0
        faults: dict[str, str] = {}
        for entry in of_folder:
            if entry.kind == "pack":
                place = entry.file.path.removesuffix(ENDING)
                faults[entry.file.path] = verifier.fault(place)
                found.packs += 1
                try:
                    manifests.append(verifier.manifest(place))
                except AetherContextError:
                    damaged += 1
        saved = {uri.rsplit("/", 1)[-1]: digest for manifest in manifests for uri, digest in manifest.saved.items()}
        for entry in of_folder:
            if entry.kind != "pack" and not (damaged and entry.kind == "message" and entry.file.name not in saved):
                faults[entry.file.path] = _file_fault(store, entry, saved)
        last = last_number if folder == of_session else 0
        faults[f"{root}/{folder}"] = _gaps(store, manifests, damaged, last)
        found.faults |= {path.removeprefix(f"{root}/"): fault for path, fault in faults.items() if fault}
    if last_number and of_session not in entries:
        found.faults[of_session] = f"none of its {last_number:,} packs is there"
    found.unrecorded = verifier.unrecorded
    return found


def _gaps(store: PackStore, manifests: Sequence[Manifest], damaged: int, last: int) -> str:
    """Which packs of a session are not there, or are others than those that were followed; empty where none.

    Args:
        damaged: number of packs that are there and cannot be read, which may be some of those that are missed.
        last: the number of the session's last pack; 0 where that is unknown.
    """
    if not manifests:
        return ""
    digests: dict[int, set[str]] = defaultdict(set)
    for manifest in manifests:
        digests[manifest.number].add(manifest.digest)
    try:
        forgotten = store.forgotten(*manifests[0].session_key)
    except StoreError as error:
        return str(error)
    numbers = range(1, max(last, *digests) + 1)
    missing = [number for number in numbers if number not in digests and number not in forgotten]
    if len(missing) > damaged:
        shown = ", ".join(f"{number:,}" for number in missing[:10])
        return f"of its {numbers[-1]:,} packs number {shown}{', …' if len(missing) > 10 else ''} is missing"
    for manifest in manifests:
        before = digests.get(manifest.number - 1)
        if manifest.before and before and manifest.before not in before:
            return f"the pack before {manifest.pack_id} is not the one that it followed"
    return ""


def _file_fault(store: PackStore, entry: Entry, saved: Mapping[str, str]) -> str:
    """What is wrong with a file that is no pack; empty where nothing is. ``saved`` are the hashes of the session's
    messages by their file's name."""
    try:
        data = store.files.read(entry.file.path)
        if entry.kind == "evidence":
            is_sound = short(hash_bytes(data), 64) == entry.stem
        elif entry.kind == "message":
            is_sound = saved.get(entry.file.name) == hash_bytes(data)
        elif entry.kind == "record":
            record = EvidenceRecord.model_validate_json(data)
            is_sound = record.name == entry.stem and record.to_json().encode() == data
        elif entry.kind == "name":
            name = str(json.loads(data)["name"])
            folder = entry.file.path.rsplit("/", 2)[-2]
            is_sound = segment(name) == folder and canonical_json({"name": name}).encode() == data
        elif entry.kind == "turns":
            is_sound = short(hash_bytes(data)) == entry.stem.rpartition("-")[2]
        elif entry.kind == "artifact":
            is_sound = is_artifact(data)
        else:
            unhashed(data)
            is_sound = True
    except FileNotFoundError:
        return ""  # deleted meanwhile
    except (ValueError, LookupError, TypeError, AetherContextError):
        is_sound = False
    return "" if is_sound else "it does not hold what was written"
