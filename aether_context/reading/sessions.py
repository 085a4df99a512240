"""The calls of a session in their order, and what they are called."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import groupby

from aether_context.conversation.content_json import content_from_wire
from aether_context.errors import AetherContextError, PackNotFound
from aether_context.evidence.record import READ, SEARCH
from aether_context.store import Manifest, PackStore
from aether_context.store.replay import contents_of
from aether_context.text.entities import artifact_uris


def session_packs(
    store: PackStore, *, app: str | None = None, user: str | None = None, session: str | None = None
) -> list[Manifest]:
    """The packs of one session, and of those that ran as its tools, in the order in which they were built.

    Raises:
        PackNotFound: there is none.
    """
    places = store.places(app, user, session)
    if not places:
        raise PackNotFound(f"no packs of such a session in {store.url}: `{store.command('list')}` shows what is there")
    newest = store.read(places[-1])
    owner = newest.caller or newest.session_key
    own = store.places(*owner) or places
    first, last = (_moment(place) for place in (own[0], own[-1]))
    manifests, keys = [*store.files.at_once(store.read, own)], {owner}
    # A session names no agent that ran as its tool: each of these names it, in packs that are made while it runs.
    folders = groupby(sorted(store.places(*owner[:2]), key=_folder), key=_folder)
    others = [list(group) for folder, group in folders if folder != _folder(own[0])]
    for group in sorted(others, key=lambda one: _moment(one[0])):
        if first <= _moment(group[0]) <= last and (head := store.read(group[0])).caller in keys:
            keys.add(head.session_key)
            manifests += store.files.at_once(store.read, group)
    return sorted(manifests, key=lambda manifest: (manifest.last_event_time, manifest.call, manifest.pack_id))


def _folder(place: str) -> str:
    return place.rpartition("/")[0]


def _moment(place: str) -> str:
    """The time in the name of a pack's file, which sorts as it passes."""
    return place.rpartition("/")[2].split("_")[1]


def read_back(store: PackStore, manifests: Iterable[Manifest]) -> dict[str, tuple[int, ...]]:
    """Before which calls the model had read an address again, by address; packs without texts tell nothing."""
    calls: dict[str, tuple[int, ...]] = {}
    known = set[str]()
    for manifest in manifests:
        wires: Mapping[str, str] = {}
        with suppress(AetherContextError):
            wires = contents_of(store.texts(manifest)) if manifest.texts else {}
        new = [wire for digest, wire in wires.items() if digest not in known and (READ in wire or SEARCH in wire)]
        known |= wires.keys()
        parts = [part for wire in new for part in content_from_wire(wire).calls if part.name in (READ, SEARCH)]
        for uri in {uri for part in parts for uri in artifact_uris(part.text)}:
            calls[uri] = (*calls.get(uri, ()), manifest.number)
    return calls


def reads_told(calls: Sequence[int]) -> str:
    """``read back before call 5, 9``."""
    return f"read back before call {', '.join(map(str, calls))}" if calls else "never read back"


def call_titles(manifests: Sequence[Manifest]) -> dict[str, str]:
    """``turn 4, call 2 of researcher`` for each pack by its id; a turn is what follows one message of the user.

    Args:
        manifests: as `session_packs` gives them.
    """
    turns: dict[tuple[tuple[str, str, str], str], int] = {}
    titles: dict[str, str] = {}
    for manifest in manifests:
        key = (manifest.session_key, manifest.invocation)
        turn = turns.setdefault(key, 1 + sum(session == manifest.session_key for session, _ in turns))
        called = f" as a tool of session {manifest.caller[2]}" if manifest.caller is not None else ""
        titles[manifest.pack_id] = f"turn {turn}, call {manifest.call} of {manifest.agent}{called}"
    return titles
