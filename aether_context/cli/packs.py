"""Packs of a store by place or a piece of their id, and `aether-context list`."""

from __future__ import annotations

from rich.text import Text

from aether_context.canonical import JSON
from aether_context.cli.terminal import (
    cell,
    console,
    grid,
    moment,
    number,
    percent,
    plain,
    print_json,
    print_line,
    tell,
)
from aether_context.errors import AetherContextError, PackNotFound, StoreError
from aether_context.store import Manifest, PackStore

# Packs of a store by place or by a piece of their id. A place is the folder of one pack.


def pack_name(place: str) -> str:
    """The id of the pack at a place."""
    return place.rsplit("/", 1)[-1]


def require(store: PackStore) -> PackStore:
    """The store, where it is there.

    Raises:
        StoreError: it is not there, or is a file.
    """
    if not store.files.is_there():
        raise StoreError(f"no packs in {store.url}: there is no such store")
    return store


def whose(*, app: str | None, user: str | None, session: str | None) -> str:
    """Those whose packs are meant, as the middle of a sentence; empty where it is everybody."""
    names = (("app", app), ("user", user), ("session", session))
    told = " ".join(f"{name} {value!r}" for name, value in names if value is not None)
    return f" of {told}" if told else ""


def find(store: PackStore, pack_id: str | None) -> str:
    """The place of the pack with this id, or of the newest one.

    Args:
        pack_id: an id, its beginning, or the hash at its end.

    Raises:
        PackNotFound: there is none, or more than one.
    """
    require(store)
    if pack_id is not None:
        return store.find(pack_id)
    newest = store.folders(newest=1)
    if not newest:
        raise PackNotFound(f"no packs in {store.url}")
    return newest[0]


# `aether-context list`: a row per pack.

_ROOM_FOR_ALL = 130
"""Columns from which on a row shows whole ids."""
_ROOM_FOR_EPOCHS = 96
_UNBOUNDED = 1_000
"""The width of a table that is piped: wide enough that nothing is folded."""


def show(url: str, *, app: str | None, user: str | None, session: str | None, limit: int | None, as_json: bool) -> bool:
    """Prints the list; False where a manifest in it could not be read.

    Raises:
        StoreError: the store is not there, or could not be listed.
    """
    store = require(PackStore(url))
    known = store.folders(app=app, user=user, session=session, newest=limit + 1 if limit else None)
    shown = known[-limit:] if limit else known
    found = [(place, _read(store, place)) for place in shown]
    if as_json:
        print_json([_value(store, place, one) for place, one in found])
    elif not found:
        tell(f"no packs{whose(app=app, user=user, session=session)} in {store.url}")
    else:
        _print(found, len(known) > len(shown))
    return not any(isinstance(one, AetherContextError) for _, one in found)


def _read(store: PackStore, place: str) -> Manifest | AetherContextError:
    try:
        return store.read(place)
    except AetherContextError as error:
        return error


def _print(found: list[tuple[str, Manifest | AetherContextError]], earlier: bool) -> None:
    """A row each. On a terminal the pack is the hash at the end of its id, by which it is found as well."""
    out = console()
    narrow = out.width < _ROOM_FOR_ALL
    whole = not narrow and not out.is_terminal
    if whole:
        out.width = _UNBOUNDED
    only_wide = (">call", ">full", ">events", "validity", *(("epoch",) if out.width < _ROOM_FOR_EPOCHS else ()))
    columns = ("pack", "time (UTC)", "app", "session", "agent", ">call", ">tokens / window", ">full", "epoch")
    shown = [name for name in (*columns, ">events", "validity") if not (narrow and name in only_wide)]
    table = grid(*shown)
    unreadable = []
    for place, one in found:
        name = pack_name(place) if whole else pack_name(place).rsplit("_", 1)[-1]
        if isinstance(one, AetherContextError):
            table.add_row(cell(name), Text("unreadable", style="red"))
            unreadable.append(f"{name} unreadable: {one}")
            continue
        epoch_style = "yellow" if one.epoch_reason else ""
        cells: dict[str, Text | str] = {
            "pack": cell(name),
            "time (UTC)": moment(one.last_event_time),
            "app": cell(one.app, limit=60 if whole else 12),
            "session": cell(one.session, limit=60 if whole else 9 if narrow else 20),
            "agent": cell(one.agent, limit=24 if whole else 14),
            ">call": number(one.call),
            ">tokens / window": f"{number(one.request_tokens)} / {number(one.window)}",
            ">full": cell(
                f"{percent(one.request_tokens, one.window)}{' over' if one.over_window else ''}",
                "red" if one.over_window else "",
            ),
            "epoch": cell(" ".join(filter(None, (str(one.epoch.number), one.epoch_reason))), epoch_style),
            ">events": number(len(one.truncation_events)),
            "validity": cell(one.validity, "red" if one.validity == "invalid" else ""),
        }
        table.add_row(*(cells[column] for column in shown))
    out.print(table)
    for line in unreadable:
        print_line(out, line, "red")
    if earlier:
        out.print("… and earlier ones")


def _value(store: PackStore, place: str, one: Manifest | AetherContextError) -> JSON:
    if isinstance(one, AetherContextError):
        return {"pack_id": pack_name(place), "error": plain(one)}
    same = ("pack_id", "parent", "app", "user", "session", "invocation", "agent", "branch", "call", "model", "window")
    tokens = ("request_tokens", "request_tokens_method", "over_window", "last_event_time", "validity", "epoch_reason")
    return {field: getattr(one, field) for field in (*same, *tokens)} | {
        "epoch": one.epoch.number,
        "events": len(one.truncation_events),
        "uri": store.uri(one),
    }
