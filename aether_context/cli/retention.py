"""`aether-context forget`: deleting what a store holds."""

from __future__ import annotations

import time

from aether_context.canonical import JSON
from aether_context.cli import packs
from aether_context.cli.terminal import NOT_THERE, print_json, print_table, progress, say, tell
from aether_context.errors import PackNotFound, PolicyError
from aether_context.store import PackStore
from aether_context.store.retention import DAY_SECONDS, Removal, all_of, carry_out, older_than


def forget_files(
    url: str, *, app: str | None, user: str | None, session: str | None, days: float | None, delete: bool, as_json: bool
) -> int:
    """Prints what would be deleted, and deletes it where ``delete`` is set."""
    store = packs.require(PackStore(url))
    whose = packs.whose(app=app, user=user, session=session)
    if days is not None:
        if session is not None:
            raise PolicyError("--session goes without --older-than: a session is forgotten whole", field="session")
        owners = store.owners(app, user)
        plans = {owner: older_than(store, owner, days * DAY_SECONDS, time.time()) for owner in owners}
    else:
        if app is None or user is None:
            raise PolicyError("name --app and --user, or give --older-than DAYS", field="user")
        plans = {store.files.place(app, user): all_of(store, app, user, session)}
        if not any(plan.files for plan in plans.values()):
            raise PackNotFound(f"nothing{whose} is in {store.url}")
    if delete:
        with progress("deleting", sum(len(plan.files) for plan in plans.values())) as step:
            for plan in plans.values():
                carry_out(store, plan, step)
    _show(store, plans, whose, delete, as_json)
    return NOT_THERE if any(plan.unreadable for plan in plans.values()) else 0


def _show(store: PackStore, plans: dict[str, Removal], whose: str, delete: bool, as_json: bool) -> None:
    rows: list[dict[str, JSON]] = [
        {
            "user": owner.removeprefix(f"{store.files.root}/"),
            "files": len(plan.files),
            "bytes": plan.size,
            "foreign": plan.foreign,
            "unreadable": list(plan.unreadable),
        }
        for owner, plan in plans.items()
        if plan.files or plan.foreign or plan.unreadable
    ]
    if as_json:
        print_json({"store": store.url, "deleted": delete, "users": rows})
        return
    if len(rows) > 1:
        print_table(("app / user", ">files", ">bytes"), [(row["user"], row["files"], row["bytes"]) for row in rows])
    for row in rows:
        for path in row["unreadable"]:
            say(f"unreadable: {path}: the packs of its session stay", "red")
    files, size, foreign = (sum(row[name] for row in rows) for name in ("files", "bytes", "foreign"))
    done = "deleted" if delete else "would be deleted"
    say(f"{files:,} files, {size:,} bytes{whose} {done}")
    if foreign:
        say(f"{foreign:,} files that are not ours {'were left' if delete else 'stay'}")
    if not delete:
        tell("nothing was deleted: add --yes")
