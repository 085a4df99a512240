"""`aether-context inspect`, `replay` and `diff`: a recorded pack, its request built again, and two packs compared."""

from __future__ import annotations

import click

from aether_context.cli import packs
from aether_context.cli.rendering import difference_json, print_difference, print_pack, print_request
from aether_context.cli.terminal import FAILED, NOT_THERE, print_json, say, tell
from aether_context.errors import ChecksumMismatch, PackNotFound
from aether_context.policy import PackPolicy
from aether_context.reading import (
    Difference,
    call_titles,
    difference,
    read_view,
    session_packs,
    view_of,
    view_under,
)
from aether_context.reading.sessions import read_back
from aether_context.store import Manifest
from aether_context.store.manifest import ContentList
from aether_context.store.replay import Replayer
from aether_context.store.verification import Verifier


def show(url: str, pack: str | None, *, session: str | None, everything: bool, as_json: bool) -> int:
    """Prints a pack.

    What is missing or unreadable is reported on stderr. Where a pack before it is, only its own rows are shown.
    """
    store, place = packs.locate(url, pack, session)
    manifest, replayer = store.read(place), Replayer(store)
    gaps: tuple[str, ...] = ()
    if as_json:
        resolved = replayer.resolve(manifest)
        # The manifest as it would be at the head of a chain, except for its digest, which is that of the stored one.
        contents = ContentList(added=resolved.contents, ranges=((0, len(resolved.contents)),))
        rows = tuple(resolved.rows.values())
        filled = manifest.model_copy(update={"contents": contents, "rows": rows, "counts": dict(resolved.counts)})
        print_json(filled.model_dump(mode="json"))
    else:
        view = read_view(replayer, manifest, request=False)
        calls = session_packs(store, app=manifest.app, user=manifest.user, session=manifest.session)
        title = call_titles(calls).get(manifest.pack_id, "")
        print_pack(view, title=title, reads=read_back(store, calls), everything=everything)
        gaps = view.gaps
    return _faults(manifest, gaps)


def _faults(manifest: Manifest, gaps: tuple[str, ...]) -> int:
    """Reports what could not be read of a pack, and whether it verifies; returns the exit code."""
    for gap in gaps:
        tell(gap, "red")
    try:
        manifest.verify()
    except ChecksumMismatch as error:
        tell(error, "red")
        return FAILED
    return NOT_THERE if gaps else 0


def show_replay(
    url: str, pack: str, *, session: str | None, policy: str | None, everything: bool, as_json: bool
) -> int:
    """Prints a request that was built again, or how another policy's request differs from it."""
    other_policy = PackPolicy.load(policy) if policy is not None else None
    store, place = packs.locate(url, pack, session)
    manifest, replayer = store.read(place), Replayer(store)
    replayed = replayer.replay(manifest)
    view, fault = view_of(replayed.pack, manifest), Verifier(store).fault(place, chain=True)
    if other_policy is not None:
        _show_difference(difference(view, view_under(replayer, manifest, other_policy)), everything, as_json)
    elif as_json:
        click.echo(replayed.request.encode())
    else:
        print_request(view, everything=everything)
        if not fault:
            what = "recorded one, in which secrets are masked" if manifest.masked_checksum else "recorded one"
            digest = manifest.masked_checksum or manifest.checksum
            checked = f"{manifest.request_tokens:,} tokens; the request is the {what}: {digest}"
            say(checked, "green")
    if fault:
        problem = "nobody can tell whether this is what was sent, since the pack does not verify"
        tell(f"Error: {problem}: {fault}", "red")
    return FAILED if fault else 0


def show_difference(
    url: str, before: str | None, after: str | None, *, session: str | None, everything: bool, as_json: bool
) -> int:
    """Prints how two packs differ, or a pack and the one before it."""
    store, place = packs.locate(url, after or before, session)
    manifest, replayer = store.read(place), Replayer(store)
    if after is not None:
        earlier_place = packs.find(store, before, session)
    elif manifest.call_before is not None:
        earlier_place = f"{place.rpartition('/')[0]}/{manifest.call_before}"
    else:
        raise PackNotFound(f"{manifest.pack_id} says of no pack before it: name the one to compare it with")
    views = read_view(replayer, store.read(earlier_place)), read_view(replayer, manifest)
    result = difference(*views)
    _show_difference(result, everything, as_json)
    faults = [_faults(view.manifest, view.gaps) for view in views]
    return NOT_THERE if any(faults) else 0 if result.same else FAILED


def _show_difference(result: Difference, everything: bool, as_json: bool) -> None:
    if as_json:
        print_json(difference_json(result))
    else:
        print_difference(result, everything=everything)
