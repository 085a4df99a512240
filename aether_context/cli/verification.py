"""`aether-context verify`: whether a store holds what was written."""

from __future__ import annotations

from collections.abc import Sequence

from aether_context.cli import packs
from aether_context.cli.terminal import FAILED, progress, say
from aether_context.errors import PackNotFound
from aether_context.store import PackStore
from aether_context.store.pack_file import ENDING
from aether_context.store.packs import name_of
from aether_context.store.verification import Verification, Verifier, verify

_MOST_SHOWN = 20


def show_verification(url: str, pack_ids: Sequence[str], *, replays: bool) -> int:
    """Prints what is wrong, and how many packs are sound."""
    store = PackStore(url)
    places = [packs.find(store, pack_id) for pack_id in pack_ids]
    if places:
        found = _of_packs(store, places, replays)
    else:
        with progress("checking", len(store.places())) as step:
            found = verify(store, replays=replays, step=step)
    if not found.packs:
        raise PackNotFound(f"no packs in {packs.require(store).url}")
    for path, fault in sorted(found.faults.items()):
        say(f"failed  {name_of(path.removesuffix(ENDING))}: {fault}", "red")
    for path in found.foreign[:_MOST_SHOWN]:
        say(f"not ours  {path}")
    if len(found.foreign) > _MOST_SHOWN:
        say(f"not ours  … and {len(found.foreign) - _MOST_SHOWN:,} more")
    failed = sum(path.endswith(ENDING) for path in found.faults)
    what = "every byte, and replays" if replays else "every byte"
    summary = f"{found.packs - failed:,} of {found.packs:,} packs passed ({what})"
    if others := len(found.faults) - failed:
        summary += f"; {others:,} other faults"
    say(summary, "red" if found.faults else "green")
    if found.unrecorded:
        say(f"{found.unrecorded:,} could not be replayed: hashes only were recorded")
    if not places:
        say("Whether the last packs of a session are there was not checked: verify(store, session) tells it.")
    return FAILED if found.faults else 0


def _of_packs(store: PackStore, places: Sequence[str], replays: bool) -> Verification:
    verifier, found = Verifier(store, replays=replays), Verification()
    for place in sorted(places):
        found.packs += 1
        if fault := verifier.fault(place):
            found.faults[f"{place}{ENDING}"] = fault
    found.unrecorded = verifier.unrecorded
    return found
