"""`aether-context verify` and `forget`: whether a store holds what was written, and deleting what it holds."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial

from aether_context.canonical import JSON
from aether_context.errors import PackNotFound, PolicyError, StoreError
from aether_context.lab.cli import packs
from aether_context.lab.cli.terminal import (
    FAILED,
    NOT_THERE,
    print_json,
    print_table,
    progress,
    say,
    say_error,
    watched,
)
from aether_context.store import PackStore
from aether_context.store.packs import name_of
from aether_context.store.retention import DAY_SECONDS, Removal, all_of, carry_out, older_than
from aether_context.store.spool import spool_of
from aether_context.store.verification import Verification, Verifier, verify

_MOST_SHOWN = 20


def show_verification(
    url: str, pack_ids: Sequence[str], *, replays: bool, as_json: bool, **selection: str | None
) -> int:
    store = PackStore(url)
    places = [packs.find(store, pack_id, selection["session"]) for pack_id in pack_ids]
    if places:
        verifier = Verifier(store, replays=replays)
        faults = {
            store.files.below_base(name): fault
            for name in watched(sorted(places), len(places))
            if (fault := verifier.fault(name))
        }
        verification = Verification(packs=len(places), faults=faults, unrecorded=verifier.unrecorded)
    else:
        verification = verify(store, replays=replays, selection=selection, advance=progress)
    if not verification.packs and not verification.faults:
        raise PackNotFound(f"no packs{packs.whose(**selection)} in {packs.require(store).url}")
    failed = sum("/packs/" in path for path in verification.faults)
    if as_json:
        print_json(asdict(verification) | {"passed": verification.packs - failed})
        return FAILED if verification.faults else 0
    for path, fault in sorted(verification.faults.items()):
        say(f"failed  {name_of(path)}: {fault}", "red")
    for path in verification.foreign[:_MOST_SHOWN]:
        say(f"not ours  {path}")
    if len(verification.foreign) > _MOST_SHOWN:
        say(f"not ours  … and {len(verification.foreign) - _MOST_SHOWN:,} more")
    what = "every byte, and replays" if replays else "every byte"
    summary = f"{verification.packs - failed:,} of {verification.packs:,} packs passed ({what})"
    if other_faults := len(verification.faults) - failed:
        summary += f"; {other_faults:,} other faults"
    say(summary, "red" if verification.faults else "green")
    if verification.unrecorded:
        say(f"{verification.unrecorded:,} could not be replayed: hashes only were recorded")
    if not places:
        say("Not checked: whether a session's last packs are missing. verify(store, session) in Python checks it.")
    return FAILED if verification.faults else 0


def forget_files(
    url: str, *, app: str | None, user: str | None, session: str | None, days: float | None, delete: bool, as_json: bool
) -> int:
    store = PackStore(url)
    whose = packs.whose(app=app, user=user, session=session)
    if days is not None:
        packs.require(store)
        if session is not None:
            raise PolicyError("--session goes without --older-than: a session is forgotten whole", field="session")
        owners = store.owners(app, user)
        plans = {owner: older_than(store, owner, days * DAY_SECONDS, time.time()) for owner in owners}
    else:
        if session is not None and (app is None or user is None):
            app, user = _owner_of(store, app, user, session)
        if app is None or user is None:
            raise PolicyError("name --app and --user, or --session, or give --older-than DAYS", field="user")
        try:
            plans = {store.files.place(app, user): all_of(store, app, user, session)}
        except StoreError:  # what waits on this machine goes all the same
            if delete and (spool := spool_of(store.files)) is not None:
                spool.forget([store.files.place(*filter(None, (app, user, session)))])
            raise
        if not any(plan.files for plan in plans.values()):
            packs.require(store)
            raise PackNotFound(f"nothing{whose} is in {store.url}")
    for plan in plans.values() if delete else ():
        carry_out(store, plan, partial(progress, noun="files"))
    _show(store, plans, whose, delete, as_json)
    if delete and days is None:
        say_error("sessions and memories in ADK's services stay: delete them there, too")
    return NOT_THERE if any(plan.unreadable for plan in plans.values()) else 0


def _owner_of(store: PackStore, app: str | None, user: str | None, session: str) -> tuple[str, str]:
    """The app and the user of the one session with an id.

    Raises:
        PackNotFound: there is none.
        PolicyError: several have it.
    """
    whose = packs.whose(app=app, user=user, session=session)
    sessions = {place.rpartition("/packs/")[0]: place for place in packs.require(store).listed(app, user, session)}
    owners = sorted(store.read(place).session_key[:2] for place in sessions.values())
    if not owners:
        raise PackNotFound(f"no packs{whose} in {store.url}: name --app and --user, too, to delete what else is there")
    if len(owners) > 1:
        named = ", ".join(f"--app {app} --user {user}" for app, user in owners[:3])
        raise PolicyError(f"{len(owners)} sessions are{whose}: name one of {named}", field="session")
    return owners[0]


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
        say_error("nothing was deleted: add --yes")
