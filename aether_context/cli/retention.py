"""`aether-context gc`, `forget` and `export-pack`: what a store may lose, and what goes to another one."""

from __future__ import annotations

import time
from collections.abc import Sequence

from aether_context.cli import packs
from aether_context.cli.terminal import cell, console, grid, number, print_json, print_line, progress, tell
from aether_context.errors import PackNotFound
from aether_context.store import PackStore
from aether_context.store.export import export_pack
from aether_context.store.retention import Plan, Rules, carry_out, carry_out_forgetting, forget, plan

_KINDS = ("packs", "blobs", "evidence", "caches")


def collect(url: str, rules: Rules, *, app: str | None, user: str | None, delete: bool, as_json: bool) -> bool:
    """Prints what the rules delete, and deletes it where ``delete`` says so; False where a manifest is unreadable.

    Raises:
        StoreError: the store is not there, or could not be read or written.
    """
    store = packs.require(PackStore(url))
    plans = [plan(store, owner, rules, time.time()) for owner in store.owners(app, user)]
    if delete:
        with progress("deleting", sum(len(one.files) for one in plans)) as step:
            plans = [carry_out(store, one, step) for one in plans]
    if as_json:
        print_json({"store": store.url, "deleted": delete, "users": [_value(store, one) for one in plans]})
    else:
        _print(store, plans, delete)
    return not any(one.unreadable for one in plans)


def forget_all(url: str, *, app: str, user: str, session: str | None, delete: bool, as_json: bool) -> None:
    """Prints what the store keeps of a user or a session, and deletes it where ``delete`` says so.

    Raises:
        PackNotFound: it keeps nothing of them.
        StoreError: the store could not be read or written.
    """
    store = packs.require(PackStore(url))
    files = forget(store, app, user, session)
    whose = packs.whose(app=app, user=user, session=session)
    if not files:
        raise PackNotFound(f"nothing{whose} is in {store.url}")
    if delete:
        with progress("deleting", len(files)) as step:
            carry_out_forgetting(store, files, step)
    size = sum(file.size for file in files)
    if as_json:
        owner = {"app": app, "user": user, "session": session}
        print_json({"store": store.url, "deleted": delete, **owner, "files": len(files), "bytes": size})
        return
    done = "deleted" if delete else "would be deleted"
    console().print(cell(f"{number(len(files))} files, {number(size)} bytes{whose} {done}"))
    _hint(delete)


def export(url: str, pack_id: str, target: str, *, raw: bool, as_json: bool) -> None:
    """Copies a pack and what it stands on to another store, with ``raw`` also what its addresses stand for.

    Raises:
        PackNotFound: it, or a pack that it extends, is not there.
        StoreError: a store could not be read or written.
    """
    store, other = packs.require(PackStore(url)), PackStore(target)
    other.files.is_there()  # a file in its place is told before anything is copied
    exported = export_pack(store, store.read(packs.find(store, pack_id)), other, raw=raw)
    names = [one.pack_id for one in exported.manifests]
    if as_json:
        print_json(
            {
                "packs": names,
                "files": exported.files,
                "bytes": exported.size,
                "raw": list(exported.raw),
                "missing": list(exported.missing),
                "target": other.url,
            }
        )
        return
    count = number(len(exported.manifests))
    text = f"{names[-1]} with its chain of {count}: {number(exported.files)} files in {other.url}"
    out = console()
    print_line(out, text)
    if raw:
        print_line(out, f"raw evidence of {number(len(exported.raw))} addresses is there")
    for uri in exported.missing:
        print_line(out, f"not in {store.url} (expired, or kept elsewhere): {uri}", "yellow")


def _value(store: PackStore, one: Plan) -> dict[str, object]:
    return {
        "user": one.owner.removeprefix(f"{store.files.root}/"),
        **{kind: len(getattr(one, kind)) for kind in _KINDS},
        "bytes": one.size,
        "kept_bytes": one.kept_bytes,
        "unreadable": [f"{pack}/manifest.json" for pack in one.unreadable],
    }


def _print(store: PackStore, plans: Sequence[Plan], delete: bool) -> None:
    table = grid("app / user", *(f">{kind}" for kind in _KINDS), ">bytes", ">kept bytes")
    for one in plans:
        counts = [number(len(getattr(one, kind))) for kind in _KINDS]
        table.add_row(
            cell(one.owner.removeprefix(f"{store.files.root}/")), *counts, number(one.size), number(one.kept_bytes)
        )
    out = console()
    out.print(table)
    for pack in (pack for one in plans for pack in one.unreadable):
        print_line(out, f"unreadable: {pack}/manifest.json: no text of this user is deleted", "red")
    size, files = sum(one.size for one in plans), sum(len(one.files) for one in plans)
    out.print(cell(f"{number(files)} files, {number(size)} bytes {'deleted' if delete else 'would be deleted'}"))
    _hint(delete)


def _hint(delete: bool) -> None:
    if not delete:
        tell("nothing was deleted: add --yes")
