"""`aether-context list`: a row per pack."""

from __future__ import annotations

from rich.text import Text

from aether_context.canonical import JSON
from aether_context.cli import lookup
from aether_context.cli.terminal import cell, console, grid, moment, number, percent, plain, print_json
from aether_context.errors import AetherContextError
from aether_context.manifest import Manifest
from aether_context.store import PackStore

_ROOM_FOR_IDS = 130
"""Columns from which on a row shows the whole id."""


def show(url: str, *, app: str | None, user: str | None, session: str | None, limit: int | None, as_json: bool) -> bool:
    """Prints the list; False where a manifest in it could not be read."""
    store = PackStore(url)
    known = store.folders(app=app, user=user, session=session, newest=limit + 1 if limit else None)
    shown = known[-limit:] if limit else known
    found = [(place, _read(store, place)) for place in shown]
    if as_json:
        print_json([_value(store, place, one) for place, one in found])
    elif not found:
        console(stderr=True).print(cell(f"no packs in {store.url}"))
    else:
        _print(found, len(known) > len(shown))
    return not any(isinstance(one, AetherContextError) for _, one in found)


def _read(store: PackStore, place: str) -> Manifest | AetherContextError:
    try:
        return store.read(place)
    except AetherContextError as error:
        return error


def _print(found: list[tuple[str, Manifest | AetherContextError]], earlier: bool) -> None:
    out = console()
    narrow = out.width < _ROOM_FOR_IDS
    table = grid("pack", "time (UTC)", "agent", ">call", ">tokens / window", ">full", "epoch", ">events", "validity")
    for place, one in found:
        if isinstance(one, AetherContextError):
            table.add_row(_named(place, narrow), cell(f"unreadable: {one}", "red"))
            continue
        table.add_row(
            _named(place, narrow),
            moment(one.last_event_time),
            cell(one.agent, limit=24),
            number(one.call),
            f"{number(one.request_tokens)} / {number(one.window)}",
            percent(one.request_tokens, one.window),
            cell(f"{one.epoch.number} {one.epoch_reason or ''}".rstrip(), "yellow" if one.epoch_reason else ""),
            number(len(one.truncation_events)),
            cell(one.validity, "red" if one.validity == "invalid" else ""),
        )
    out.print(table)
    if earlier:
        out.print("… and earlier ones")


def _named(place: str, narrow: bool) -> Text:
    """The id, or, where a line is too short for it, the hash at its end, by which a pack is found as well."""
    return cell(lookup.name(place).rsplit("_", 1)[-1] if narrow else lookup.name(place))


def _value(store: PackStore, place: str, one: Manifest | AetherContextError) -> JSON:
    if isinstance(one, AetherContextError):
        return {"pack_id": lookup.name(place), "error": plain(one)}
    same = ("pack_id", "parent", "app", "user", "session", "invocation", "agent", "branch", "call", "model", "window")
    tokens = ("request_tokens", "request_tokens_method", "last_event_time", "validity", "epoch_reason")
    return {field: getattr(one, field) for field in (*same, *tokens)} | {
        "epoch": one.epoch.number,
        "events": len(one.truncation_events),
        "uri": store.uri(one),
    }
