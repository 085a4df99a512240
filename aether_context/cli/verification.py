"""`aether-context verify`: whether packs are what was written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

from aether_context.cli import lookup
from aether_context.cli.terminal import cell, console, number, print_line, progress
from aether_context.errors import AetherContextError, ManifestError, PackNotFound, ReplayIncomplete
from aether_context.store import Manifest, PackStore
from aether_context.store.replay import Replayer


class Verifier:
    """Checks packs of one store; what they share is checked once.

    ``unrecorded`` counts packs that cannot be replayed, since their texts were never recorded.
    """

    def __init__(self, store: PackStore) -> None:
        self.unrecorded = 0
        self._store = store
        self._replayer = Replayer(store)
        self._session = ""
        self._over: dict[str, int] = {}
        self._faults: dict[str, str] = {}
        self._manifests: dict[str, Manifest] = {}
        self._lines: set[str] = set()
        self._blobs: set[tuple[str, str, str]] = set()

    def fault(self, place: str, *, replays: bool) -> str:
        """What is wrong with the pack at a place; empty where nothing is.

        Args:
            place: places of one session are best checked one after the other, since what they share is kept meanwhile.
        """
        session = place.rsplit("/", 1)[0]
        if session != self._session:
            self._session, self._replayer = session, Replayer(self._store)
            self._faults, self._manifests, self._lines = {}, {}, set()
        return self._stored(place) or (self._replayed(place) if replays else "")

    def over_window(self, place: str) -> int:
        """Tokens by which the request of a pack passed its window; 0 where it did not, or nobody can tell."""
        return self._over.get(place, 0)

    def _stored(self, place: str) -> str:
        if place not in self._faults:
            try:
                manifest = self._store.read(place)
                self._check(place, manifest)
            except AetherContextError as error:
                self._faults[place] = str(error)
            else:
                self._faults[place], self._manifests[place] = "", manifest
                self._over[place] = manifest.over_window
        return self._faults[place]

    def _check(self, place: str, manifest: Manifest) -> None:
        manifest.verify()
        if not self._store.uri(manifest).endswith(f"{place.lstrip('/')}/manifest.json"):
            raise PackNotFound(f"the manifest of {manifest.pack_id} stands in another pack's folder")
        self._check_parent(manifest)
        for digest in self._store.named_by(manifest):
            blob = (manifest.app, manifest.user, digest)
            if blob not in self._blobs:
                self._store.blob(manifest, digest)
                self._blobs.add(blob)

    def _check_parent(self, manifest: Manifest) -> None:
        """Whether the parent is there; one that is there and broken fails for itself."""
        if f"{self._session}/{manifest.parent}" not in self._faults:
            with suppress(ManifestError):
                self._store.parent(manifest)

    def _replayed(self, place: str) -> str:
        broken = self._broken_line(place)
        if broken:
            return broken
        manifest = self._manifests[place]
        try:
            self._replayer.replay(manifest)
        except ReplayIncomplete as error:
            if not self._is_recorded(place):
                self.unrecorded += 1
                return ""
            return str(error)
        except AetherContextError as error:
            return str(error)
        return ""

    def _ancestors(self, place: str) -> Iterator[str]:
        """Places of a pack's ancestors, the nearest first, up to one that is broken."""
        while (manifest := self._manifests.get(place)) is not None and manifest.parent is not None:
            place = f"{self._session}/{manifest.parent}"
            yield place

    def _broken_line(self, place: str) -> str:
        """Which ancestor is broken; empty where the line is sound."""
        line = [place]
        for ancestor in self._ancestors(place):
            if ancestor in self._lines:
                break
            if self._stored(ancestor):
                return f"it extends {lookup.pack_name(ancestor)}, which failed"
            line.append(ancestor)
        self._lines.update(line)
        return ""

    def _is_recorded(self, place: str) -> bool:
        return all(self._manifests[one].texts for one in (place, *self._ancestors(place)))


def show_verification(url: str, pack_ids: Sequence[str], *, replays: bool) -> bool:
    """Prints which packs failed and how many passed; False where any failed.

    Raises:
        PackNotFound: a pack that was named is not there, or there are none at all.
    """
    store = PackStore(url)
    places = [lookup.find(store, one) for one in pack_ids] or store.folders()
    if not places:
        raise PackNotFound(f"no packs in {lookup.require(store).url}")
    verifier = Verifier(store)
    faults = {}
    with progress("checking", len(places)) as step:
        for place in sorted(places):
            faults[place] = verifier.fault(place, replays=replays)
            step(place)
    out = console()
    failed = 0
    for place, fault in faults.items():
        over = verifier.over_window(place)
        if fault or over:
            fault = fault or f"the request passes the window by {number(over)} tokens"
            failed += 1
            print_line(out, f"failed  {lookup.pack_name(place)}: {fault}", "red")
    what = "manifests, texts and replays" if replays else "manifests and texts"
    passed = f"{number(len(faults) - failed)} of {number(len(faults))} packs passed ({what})"
    out.print(cell(passed, "red" if failed else "green"))
    if verifier.unrecorded:
        out.print(f"{number(verifier.unrecorded)} could not be replayed: hashes only were recorded")
    return not failed
