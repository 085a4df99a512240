"""`aether-context inspect`, `replay`, `diff`, `why` and `preview`: a recorded pack, its request built again, two packs
compared, what became of some words, and a pack that was not sent yet."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict, replace
from typing import Any

import click

from aether_context.errors import ChecksumMismatch, PackNotFound
from aether_context.lab.cli import packs
from aether_context.lab.cli.rendering import difference_json, print_difference, print_pack, print_request
from aether_context.lab.cli.terminal import FAILED, NOT_THERE, head, one_line, print_json, say, say_error
from aether_context.lab.reading import (
    Answer,
    Difference,
    Span,
    call_title,
    difference,
    read_view,
    session_packs,
    view_of,
    view_under,
    why,
)
from aether_context.lab.reading.packs import settings_of
from aether_context.lab.reading.sessions import read_back, reads_told
from aether_context.packing.payload import minute
from aether_context.policy import PackPolicy
from aether_context.store import Manifest, PackStore
from aether_context.store.manifest import ContentList
from aether_context.store.recording import request_json
from aether_context.store.replay import Replayer
from aether_context.store.verification import Verifier


def show_pack(url: str, pack: str | None, *, session: str | None, everything: bool, as_json: bool) -> int:
    """Prints a pack.

    What is missing or unreadable is reported on stderr.
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
        whose = {"app": manifest.app, "user": manifest.user, "session": manifest.session}
        names_stored = any(row.form == "offloaded" for row in view.rows.values())
        reads = read_back(store, session_packs(store, **whose)) if names_stored else {}
        print_pack(view, title=call_title(manifest), reads=reads, everything=everything)
        gaps = view.gaps
    return _faults(manifest, gaps)


def _faults(manifest: Manifest, gaps: tuple[str, ...]) -> int:
    """Reports what could not be read of a pack, and whether it verifies; returns the exit code."""
    for gap in gaps:
        say_error(gap, "red")
    try:
        manifest.verify()
    except ChecksumMismatch as error:
        say_error(error, "red")
        return FAILED
    return NOT_THERE if gaps else 0


def show_replay(
    url: str, pack: str, *, session: str | None, policy: str | None, everything: bool, as_json: bool
) -> int:
    """Prints a request that was built again, or how another policy's request differs from it."""
    other_policy = PackPolicy.load(policy) if policy is not None else None
    store, path = packs.locate(url, pack, session)
    manifest, replayer = store.read(path), Replayer(store)
    replayed = replayer.replay(manifest)
    view, fault = view_of(replayed.pack, manifest), Verifier(store).fault(path, of_size=False)
    if other_policy is not None:
        other_view = view_under(replayer, manifest, other_policy)
        if not as_json:
            before, after = (side.manifest.request_tokens for side in (view, other_view))
            head(f"{before:,} → {after:,} tokens")
            *_, first = replayer.line(manifest)
            was_cut = first.epoch_before is not None and first.epoch.cut_count > first.epoch_before.cut_count
            if was_cut and first.number != manifest.number:
                command = store.command(f"replay {first.number} --policy {policy} --session {manifest.session}")
                cut = f"the cut before call {first.number}"
                say(f"{cut} stays made here: `{command}` shows whether this policy makes it")
        _show_difference(difference(view, other_view), everything, as_json)
    elif as_json:
        click.echo(replayed.request.encode())
    else:
        print_request(view, everything=everything)
        if not fault:
            what = "recorded one, in which secrets are masked" if manifest.masked_checksum else "recorded one"
            digest = manifest.masked_checksum or manifest.checksum
            say(f"{manifest.request_tokens:,} tokens; the request is the {what}: {digest}", "green")
    if fault:
        say_error(f"Error: nobody can tell whether this was sent, since the pack does not verify: {fault}", "red")
    return FAILED if fault else 0


def show_difference(
    url: str, before: str | None, after: str | None, *, session: str | None, everything: bool, as_json: bool
) -> int:
    store, path = packs.locate(url, after or before, session)
    manifest, replayer = store.read(path), Replayer(store)
    if after is not None:
        earlier_place = packs.find(store, before, session)
    elif manifest.call_before is not None:
        earlier_place = f"{path.rpartition('/')[0]}/{manifest.call_before}"
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


# `aether-context why`: what became of some words, call by call.

_FEW, _MOST_PACKS = 6, 500


def show_places(
    url: str, text: str, *, call: int | None, everything: bool, as_json: bool, **selection: str | None
) -> int:
    try:
        most_packs = sys.maxsize if everything else _MOST_PACKS
        answer = why(packs.require(PackStore(url)), text, call=call, most_packs=most_packs, **selection)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    if as_json:
        print_json(asdict(answer))
    else:
        _print_answer(answer, everything)
    return 0 if answer.places else FAILED


def _print_answer(answer: Answer, everything: bool) -> None:
    for sentence in answer.sentences:
        head(sentence)
    if answer.places and not answer.exact:
        say("no place holds the text as it is; these hold all of its words", "yellow")
    for spot in answer.places if everything else answer.places[:_FEW]:
        who, when = spot.who != spot.kind and f" of {spot.who}", spot.time and f", {minute(spot.time)}"
        head(f"{spot.kind}{who or ''}, for {spot.agent} in session {spot.session}{when or ''}")
        say(f"  “{one_line(answer.excerpt(spot))}”")
        for span in spot.spans:
            say(f"  {_span(span)}", "green" if span.holds else "yellow")
        if spot.uri:
            say(f"  all of it is at {spot.uri}: {reads_told(spot.read_back)}")
        elif spot.read_back:
            say(f"  {reads_told(spot.read_back)}, from the session's past")
    if len(answer.places) > _FEW and not everything:
        say(f"… and {len(answer.places) - _FEW} more places (--all shows them)")
    for note in answer.notes:
        say_error(note)


def _span(span: Span) -> str:
    calls = f"call {span.first}" if span.first == span.last else f"calls {span.first}-{span.last}"
    if span.form == "whole" and span.holds is not False:
        return f"{calls}: whole"
    words = {True: "the words stand there", False: "without these words", None: "its text is not recorded"}[span.holds]
    form_note = {"absent": "not in the request", "left_out": "left out"}.get(span.form, f"{span.form}, {words}")
    elsewhere = f"; the words also stand in {', '.join(span.elsewhere[:3])}" if span.elsewhere else ""
    act = f": {span.act}" if span.act else ""
    return f"{calls}: {form_note}{act}{elsewhere}"


# `aether-context preview`: what the next model call of a session would be sent.


def show_preview(
    *,
    path: str,
    case: str | None,
    policy: str | None,
    window: int | None,
    request: bool,
    everything: bool,
    as_json: bool,
    **call: Any,
) -> None:
    """Prints the next pack, or its request.

    Args:
        case: as of `read_session`.
        call: arguments of `preview`: the message, and the agent's name, model and instruction.
    """
    from aether_context.lab.preview import preview, read_session

    session = read_session(path, case)
    overrides = {"max_input_tokens": window} if window is not None else {}
    loaded_policy = PackPolicy.load(policy or os.environ.get("AETHER_CONTEXT_POLICY") or None, **overrides)
    pack, manifest = preview(session, policy=loaded_policy, **call)
    if as_json and request:
        click.echo(request_json(pack).encode())
    elif as_json:
        print_json(manifest.model_dump(mode="json"))
    elif request:
        print_request(view_of(pack, manifest), everything=everything)
    else:
        view = replace(view_of(pack, manifest), settings=settings_of(loaded_policy.for_agent(manifest.agent)))
        print_pack(view, everything=everything)
