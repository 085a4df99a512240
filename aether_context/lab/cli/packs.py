"""Finds packs in a store by place or by part of their id, and `aether-context list`."""

from __future__ import annotations

from contextlib import suppress

from aether_context.canonical import JSON
from aether_context.errors import AetherContextError, PackNotFound, StoreError
from aether_context.lab.cli.terminal import (
    NOT_THERE,
    moment,
    one_line,
    print_json,
    print_table,
    say,
    watched,
)
from aether_context.lab.reading.cache import CacheWitness, PricedLoss
from aether_context.store import Manifest, PackStore
from aether_context.store.files import File
from aether_context.store.packs import name_of
from aether_context.usage import Totals

_MOST_DIGITS = 6
"""Digits of a call's number; what has more is a hash."""
_LEAST_DIGITS = 4
"""Digits of a number that no call has from which on it is taken for the beginning of a hash."""
_MOST_STEPS = 8
"""So often a call is looked for where its number says, from the newest one on; then in all of the session."""
_COLUMNS = (">call", "pack", "time (UTC)", "app", "user", "session", "agent", ">tokens / window", ">cost")

# Finding packs. See `PackStore` for what a place is.


def require(store: PackStore) -> PackStore:
    """The store; `StoreError` where it does not exist."""
    if not store.files.is_there():
        raise StoreError(f"no packs in {store.url}: there is no such store. Name another with --store URL")
    return store


def whose(**selection: str | None) -> str:
    """The selection of app, user and session for the middle of a sentence; empty where there is none."""
    selected = [(name, selection.get(name)) for name in ("app", "user", "session")]
    words = " ".join(f"{name} {value!r}" for name, value in selected if value is not None)
    return f" of {words}" if words else ""


def selected_packs(store: PackStore, *, newest: int | None = None, **selection: str | None) -> dict[str, File]:
    """The packs of a selection, or so many of the newest, by their places; `PackNotFound` where there is none."""
    if not (packs := require(store).listed(**selection, newest=newest)):
        raise PackNotFound(f"no packs{whose(**selection)} in {store.url}")
    return packs


def find(store: PackStore, pack: str | None, session: str | None = None) -> str:
    """The place of a pack.

    Args:
        pack: the number of a call in a session, an id, its beginning, or the hash at its end; None or ``latest`` for
            the newest one.
        session: the session whose calls are numbered; None takes that of the newest pack.
    """
    is_number = pack is not None and pack.isdecimal() and len(pack) <= _MOST_DIGITS
    if pack not in (None, "latest") and not is_number:
        return require(store).find(pack)
    if not (newest := [*require(store).listed(session=session, newest=1)]):
        raise PackNotFound(f"no packs{whose(session=session)} in {store.url}")
    if pack is None or not is_number:
        return newest[0]
    if path := _numbered(store, int(pack), newest[0], session):
        return path
    if session is None and len(pack) >= _LEAST_DIGITS:
        return store.find(pack)
    owner = f"session {session!r}" if session is not None else "the session of the newest pack"
    raise PackNotFound(
        f"{owner} has no call {pack}: `{store.command('list')}` shows what is there, --session names another"
    )


def _numbered(store: PackStore, number: int, newest: str, session: str | None) -> str:
    """The place of a session's call with a number, the latest one; empty where there is none. The session is that of
    the newest pack, and where that ran as a tool and was not asked for, its caller's."""
    manifest = store.read(newest)
    owner = manifest.session_key if session is not None else manifest.caller or manifest.session_key
    places = store.places(*owner)
    at = len(places) - 1
    with suppress(IndexError, PackNotFound):
        for _ in range(_MOST_STEPS):
            if not (ahead := store.read(places[at]).number - number):
                return places[at]
            at = at - ahead if at >= ahead else len(places)
    return next((path for path in reversed(store.listed(*owner)) if store.read(path).number == number), "")


def locate(url: str, pack: str | None, session: str | None = None) -> tuple[PackStore, str]:
    """The store and the place of a pack, given what `find` takes."""
    store = PackStore(url)
    return store, find(store, pack, session)


# `aether-context list`: a row per pack.


def show_list(url: str, *, limit: int | None, as_json: bool, **selection: str | None) -> int:
    listed = selected_packs(store := PackStore(url), newest=limit and limit + 1, **selection)
    rows, values, unreadable = list[tuple[object, ...]](), list[JSON](), dict[str, AetherContextError]()
    off, witness = dict[str, tuple[str, ...]](), CacheWitness()
    shown = dict(list(listed.items())[-limit:]) if limit else listed
    for place, manifest, outcome in watched(store.calls(shown, outcomes=True), len(shown)):
        if isinstance(manifest, AetherContextError):
            unreadable[name_of(place)] = manifest
            values.append({"pack_id": name_of(place), "error": one_line(manifest)})
            continue
        used = Totals.of(call := manifest.usage(outcome))
        off[manifest.app], loss = manifest.off, witness.add(manifest, call)
        rows.append(_row(manifest, used, loss))
        values.append(_value(store, manifest, used, loss))
    if as_json:
        print_json(values)
    else:
        print_table((*_COLUMNS, "cache lost", "epoch", "asked"), rows)
        for app, agent in ((app, agent) for app, agents in off.items() for agent in agents):
            agent = "every other agent" if agent == "*" else agent
            say(f"{agent} of {app} is off (enabled = false): its requests are left alone, and not recorded")
        for name, problem in unreadable.items():
            say(f"{name} unreadable: {problem}", "red")
        if len(listed) > len(shown):
            say("… and earlier ones")
    return NOT_THERE if unreadable else 0


def _row(manifest: Manifest, used: Totals, loss: PricedLoss | None) -> tuple[object, ...]:
    time, epoch = moment(manifest.last_event_time), f"{manifest.epoch_number} {manifest.epoch_reason or ''}"
    room = f"{manifest.request_tokens:,} / {manifest.window:,}" + " over" * bool(manifest.over_window)
    agent = manifest.agent if manifest.caller is None else f"{manifest.agent}, a tool of {manifest.caller[2]}"
    names, user_words = (manifest.pack_id, time, *manifest.session_key, agent), one_line(manifest.words, 60)
    return manifest.number, *names, room, used.cost_text, loss or "", epoch, user_words


def _value(store: PackStore, manifest: Manifest, used: Totals, loss: PricedLoss | None) -> JSON:
    names: tuple[str, ...] = ("pack_id", "number", "app", "user", "session", "invocation", "agent", "branch", "call")
    names += ("model", "window", "off", "counted_tokens", "request_tokens", "request_tokens_method", "over_window")
    names += ("last_event_time", "validity", "epoch_reason", "words")
    return {name: getattr(manifest, name) for name in names} | {
        **used.cost_fields,
        "cache_loss": loss.to_json() if loss is not None else None,
        "epoch": manifest.epoch_number,
        "events": len(manifest.truncation_events),
        "uri": store.uri(manifest),
    }
