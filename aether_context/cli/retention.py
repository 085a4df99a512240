"""`aether-context gc` and `forget`: deleting packs and other files from a store."""

from __future__ import annotations

import time

from aether_context.canonical import JSON
from aether_context.cli import packs
from aether_context.cli.terminal import NOT_THERE, Screen, cell, grid, print_json, progress, tell
from aether_context.errors import PackNotFound
from aether_context.store import PackStore
from aether_context.store.retention import DAY_SECONDS, Rules, carry_out, carry_out_forgetting, forget, plan


def collect(
    url: str,
    *,
    app: str | None,
    user: str | None,
    pack_days: float,
    evidence_days: float,
    cache_days: float,
    max_bytes: int | None,
    grace_minutes: float,
    delete: bool,
    as_json: bool,
) -> int:
    """Prints what the rules delete, and deletes it where ``delete`` is set."""
    rules = Rules(
        packs_seconds=pack_days * DAY_SECONDS,
        evidence_seconds=evidence_days * DAY_SECONDS,
        caches_seconds=cache_days * DAY_SECONDS,
        most_bytes=max_bytes,
        grace_seconds=grace_minutes * 60,
    )
    store = packs.require(PackStore(url))
    plans = [plan(store, owner, rules, time.time()) for owner in store.owners(app, user)]
    plans = [planned for planned in plans if planned.files or planned.kept_bytes]  # the others are not of this package
    if delete:
        with progress("deleting", sum(len(planned.files) for planned in plans)) as step:
            plans = [carry_out(store, planned, step) for planned in plans]
    kinds = ("packs", "blobs", "evidence", "caches")
    rows: list[dict[str, JSON]] = [
        {
            "user": planned.owner.removeprefix(f"{store.files.root}/"),
            **{kind: len(getattr(planned, kind)) for kind in kinds},
            "bytes": planned.size,
            "kept_bytes": planned.kept_bytes,
            "unreadable": list(planned.unreadable),
        }
        for planned in plans
    ]
    strays = sum(planned.strays for planned in plans)
    unreadable = [path for row in rows for path in row["unreadable"]]
    if as_json:
        print_json({"store": store.url, "deleted": delete, "strays": strays, "users": rows})
    else:
        out = Screen()
        table = grid("app / user", *(f">{kind}" for kind in kinds), ">bytes", ">kept bytes")
        for row in rows:
            table.add_row(cell(row["user"]), *(f"{row[name]:,}" for name in (*kinds, "bytes", "kept_bytes")))
        out.print(table)
        for path in unreadable:
            out.print_line(f"unreadable: {path}: no text of this user is deleted", "red")
        _print_done(
            sum(len(planned.files) for planned in plans), sum(planned.size for planned in plans), "", delete, strays
        )
    return NOT_THERE if unreadable else 0


def forget_all(url: str, *, app: str, user: str, session: str | None, delete: bool, as_json: bool) -> None:
    """Prints what the store keeps of a user or a session, and deletes it where ``delete`` is set."""
    store = packs.require(PackStore(url))
    files = forget(store, app, user, session)
    whose = packs.whose(app=app, user=user, session=session)
    if not files:
        raise PackNotFound(f"nothing{whose} is in {store.url}")
    if delete:
        with progress("deleting", len(files)) as step:
            carry_out_forgetting(store, files, step)
    size = sum(file.size for file in files)
    folder = store.files.place(*(name for name in (app, user, session) if name is not None))
    strays = len({file.path for file in store.files.below(folder)} - {file.path for file in files})
    if as_json:
        owner = {"app": app, "user": user, "session": session}
        print_json(
            {"store": store.url, "deleted": delete, **owner, "files": len(files), "bytes": size, "strays": strays}
        )
    else:
        _print_done(len(files), size, whose, delete, strays)


def _print_done(files: int, size: int, whose: str, delete: bool, strays: int) -> None:
    done = "deleted" if delete else "would be deleted"
    Screen().print(cell(f"{files:,} files, {size:,} bytes{whose} {done}"))
    if strays:
        Screen().print(f"{strays:,} files that are not of this package are left")
    if not delete:
        tell("nothing was deleted: add --yes")
