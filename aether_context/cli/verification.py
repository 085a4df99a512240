"""`aether-context verify`: whether packs are what was written."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from aether_context.canonical import canonical_json
from aether_context.cli import packs
from aether_context.cli.terminal import FAILED, Screen, cell, progress
from aether_context.errors import AetherContextError, ManifestError, PackNotFound, ReplayIncomplete
from aether_context.store import Manifest, PackStore
from aether_context.store.pack_file import parsed
from aether_context.store.replay import Replayer
from aether_context.store.retention import strays


class Verifier:
    """Checks packs of one store; what packs share is checked once.

    ``unrecorded`` counts packs that cannot be replayed because their texts were not recorded. ``over_window`` has the
    tokens by which requests exceed their window, by the pack's place.
    """

    def __init__(self, store: PackStore) -> None:
        self.unrecorded = 0
        self.over_window: dict[str, int] = {}
        self._store = store
        self._replayer = Replayer(store)
        self._session = ""
        self._checked: dict[str, Manifest | AetherContextError] = {}
        self._blobs: set[tuple[str, str, str]] = set()

    def fault(self, place: str, *, line: bool = False, replays: bool = False) -> str:
        """What is wrong with the pack at a place; empty where nothing is.

        Args:
            place: it is fastest to check the places of one session one after the other.
            line: whether the packs that it extends must verify as well, as they must for a replay.
        """
        session = place.rsplit("/", 1)[0]
        if session != self._session:
            self._session, self._replayer, self._checked = session, Replayer(self._store), {}
        try:
            links = [self._manifest(place)]
            while (line or replays) and (parent := links[-1].parent) is not None:
                try:
                    links.append(self._manifest(f"{session}/{parent}"))
                except AetherContextError:
                    return f"it extends {parent}, which failed"
            if replays:
                self._replayer.replay(links[0])
        except ReplayIncomplete as error:
            if all(link.texts for link in links):
                return str(error)
            self.unrecorded += 1
        except AetherContextError as error:
            return str(error)
        return ""

    def _manifest(self, place: str) -> Manifest:
        """The manifest at a place; raises where it does not verify."""
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
        manifest = self._store.read(place)
        manifest.verify()
        lines = self._store.lines(place)
        if lines is not None and lines[0] != canonical_json(parsed(lines[0])).encode():
            raise ManifestError(f"{manifest.pack_id}: its first line is not as it was written")
        self._store.outcome(manifest)
        if self._store.place(manifest).lstrip("/") != place.lstrip("/"):
            raise PackNotFound(f"the manifest of {manifest.pack_id} stands in another pack's place")
        if f"{self._session}/{manifest.parent}" not in self._checked:
            with suppress(ManifestError):  # a parent that exists and is damaged fails in its own check
                self._store.parent(manifest)
        for digest in manifest.blobs:
            blob = (manifest.app, manifest.user, digest)
            if blob not in self._blobs:
                self._store.blob(manifest, digest)
                self._blobs.add(blob)
        if manifest.over_window:
            self.over_window[place] = manifest.over_window
        return manifest


def show_verification(url: str, pack_ids: Sequence[str], *, replays: bool) -> int:
    """Prints which packs failed and how many passed."""
    store = PackStore(url)
    places = [packs.find(store, pack_id) for pack_id in pack_ids] or store.places()
    if not places:
        raise PackNotFound(f"no packs in {packs.require(store).url}")
    verifier = Verifier(store)
    faults = {}
    with progress("checking", len(places)) as step:
        for place in sorted(places):
            faults[place] = verifier.fault(place, replays=replays)
            if not faults[place] and place in verifier.over_window:
                faults[place] = f"the request passes the window by {verifier.over_window[place]:,} tokens"
            step(place)
    out = Screen()
    failed = {place: fault for place, fault in faults.items() if fault}
    for place, fault in failed.items():
        out.print_line(f"failed  {packs.pack_name(place)}: {fault}", "red")
    what = "manifests, texts and replays" if replays else "manifests and texts"
    passed = f"{len(faults) - len(failed):,} of {len(faults):,} packs passed ({what})"
    out.print(cell(passed, "red" if failed else "green"))
    for path in () if pack_ids else strays(store):
        out.print_line(f"not of this package, and left alone: {path}", "dim")
    if verifier.unrecorded:
        out.print(f"{verifier.unrecorded:,} could not be replayed: hashes only were recorded")
    return FAILED if failed else 0
