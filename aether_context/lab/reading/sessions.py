"""The calls of a session in their order, and what they are called."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial

from aether_context.conversation.content_json import content_from_wire
from aether_context.errors import AetherContextError, PackNotFound
from aether_context.evidence.record import READERS
from aether_context.pack import Part
from aether_context.store import Manifest, PackStore
from aether_context.store.index import write_time
from aether_context.text.entities import artifact_uris


def session_packs(
    store: PackStore, *, app: str | None = None, user: str | None = None, session: str | None = None
) -> list[Manifest]:
    """The packs of one session, and of those that ran as its tools, in the order in which they were built.

    Raises:
        PackNotFound: there is none.
    """
    newest = next(iter(store.listed(app, user, session, newest=1)), None)
    if newest is None:
        raise PackNotFound(f"no packs of such a session in {store.url}: `{store.command('list')}` shows what is there")
    latest = store.read(newest)
    owner = latest.caller or latest.session_key
    keys, places = dict.fromkeys([owner, latest.session_key]), store.places(*owner) or [newest]
    # A session names no agent that ran as its tool: each of these names it, in packs that are made while it runs.
    heads = {_folder(path): path for path in reversed(store.places(*owner[:2]))}.values()
    concurrent = sorted(
        (path for path in heads if write_time(places[0]) <= write_time(path) <= write_time(places[-1])), key=write_time
    )
    for manifest in filter(None, store.files.at_once(partial(_read, store), concurrent)):
        if manifest.caller in keys:
            keys[manifest.session_key] = None
    manifests = [manifest for key in keys for manifest in store.manifests(*key)]
    # A forged manifest may name a session that is not there.
    return sorted(
        manifests or store.manifests(app, user, session),
        key=lambda manifest: (manifest.last_event_time, manifest.call, manifest.pack_id),
    )


def _read(store: PackStore, path: str) -> Manifest | None:
    """The manifest of a pack's folder; None where it is not there, or not yet."""
    with suppress(PackNotFound):
        return store.read(path)
    return None


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


def read_back(store: PackStore, manifests: Iterable[Manifest]) -> dict[str, tuple[int, ...]]:
    """Before which calls the model had read an address again, by address; packs without texts tell nothing."""
    calls: dict[str, tuple[int, ...]] = {}
    names = set[str]()
    for manifest in manifests:
        texts: Mapping[str, str] = {}
        with suppress(AetherContextError):
            texts = store.log(manifest).texts if manifest.texts else {}
        new = [text for name, text in texts.items() if name not in names and any(reader in text for reader in READERS)]
        names |= texts.keys()
        parts = list[Part]()
        for text in new:
            with suppress(ValueError, AttributeError):  # it is no content
                parts += [part for part in content_from_wire(text).calls if part.name in READERS]
        for uri in {uri for part in parts for uri in artifact_uris(part.text)}:
            calls[uri] = (*calls.get(uri, ()), manifest.number)
    return calls


def reads_told(calls: Sequence[int]) -> str:
    """``read back before call 5, 9``."""
    return f"read back before call {', '.join(map(str, calls))}" if calls else "never read back"


def call_title(manifest: Manifest) -> str:
    """``turn 4, call 2 of researcher``; a turn is what follows one message of the user."""
    called = f" as a tool of session {manifest.caller[2]}" if manifest.caller is not None else ""
    return f"turn {manifest.turn}, call {manifest.call} of {manifest.agent}{called}"
