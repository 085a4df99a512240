"""The calls of a session in their order, and what they are called."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from aether_context.errors import PackNotFound
from aether_context.store import Manifest, PackStore


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
