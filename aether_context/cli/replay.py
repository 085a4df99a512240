"""`aether-context verify` and `aether-context replay`: whether packs are what was written, and again."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import click
from rich.text import Text

from aether_context.canonical import JSON, short
from aether_context.cli import packs
from aether_context.cli.terminal import FAILED, Screen, cell, difference, grid, plain, print_json, progress, tell
from aether_context.errors import AetherContextError, ManifestError, PackNotFound, ReplayIncomplete
from aether_context.pack import LAYERS, CandidateOutcome, Pack
from aether_context.packing import build_pack
from aether_context.policy import PackPolicy
from aether_context.store import Manifest, PackStore
from aether_context.store.replay import Replayer, request_json

# `aether-context verify`: whether packs are what was written.


class Verifier:
    """Checks packs of one store; what they share is checked once.

    ``unrecorded`` counts packs that cannot be replayed, since their texts were never recorded. ``over_window`` has the
    tokens by which requests passed their window, by the pack's place.
    """

    def __init__(self, store: PackStore) -> None:
        self.unrecorded = 0
        self.over_window: dict[str, int] = {}
        self._store = store
        self._replayer = Replayer(store)
        self._session = ""
        self._checked: dict[str, Manifest | AetherContextError] = {}
        self._blobs: set[tuple[str, str, str]] = set()

    def fault(self, place: str, *, line: bool = False, replays: bool = False) -> str:
        """What is wrong with the pack at a place; empty where nothing is.

        Args:
            place: places of one session are best checked one after the other, since what they share is kept meanwhile.
            line: whether the packs that it extends have to be sound as well, as they have to be for a replay.
        """
        session = place.rsplit("/", 1)[0]
        if session != self._session:
            self._session, self._replayer, self._checked = session, Replayer(self._store), {}
        try:
            links = [self._manifest(place)]
            while (line or replays) and (parent := links[-1].parent) is not None:
                try:
                    links.append(self._manifest(f"{session}/{parent}"))
                except AetherContextError:
                    return f"it extends {parent}, which failed"
            if replays:
                self._replayer.replay(links[0])
        except ReplayIncomplete as error:
            if all(link.texts for link in links):
                return str(error)
            self.unrecorded += 1
        except AetherContextError as error:
            return str(error)
        return ""

    def _manifest(self, place: str) -> Manifest:
        """The manifest at a place, where it is what was written."""
        if place not in self._checked:
            try:
                self._checked[place] = self._check(place)
            except AetherContextError as error:
                self._checked[place] = error
        found = self._checked[place]
        if isinstance(found, AetherContextError):
            raise found
        return found

    def _check(self, place: str) -> Manifest:
        manifest = self._store.read(place)
        manifest.verify()
        if self._store.place(manifest).lstrip("/") != place.lstrip("/"):
            raise PackNotFound(f"the manifest of {manifest.pack_id} stands in another pack's place")
        if f"{self._session}/{manifest.parent}" not in self._checked:
            with suppress(ManifestError):  # a parent that is there and broken fails for itself
                self._store.parent(manifest)
        for digest in manifest.blobs:
            blob = (manifest.app, manifest.user, digest)
            if blob not in self._blobs:
                self._store.blob(manifest, digest)
                self._blobs.add(blob)
        if manifest.over_window:
            self.over_window[place] = manifest.over_window
        return manifest


def show_verification(url: str, pack_ids: Sequence[str], *, replays: bool) -> int:
    """Prints which packs failed and how many passed."""
    store = PackStore(url)
    places = [packs.find(store, pack_id) for pack_id in pack_ids] or store.places()
    if not places:
        raise PackNotFound(f"no packs in {packs.require(store).url}")
    verifier = Verifier(store)
    faults = {}
    with progress("checking", len(places)) as step:
        for place in sorted(places):
            faults[place] = verifier.fault(place, replays=replays)
            if not faults[place] and place in verifier.over_window:
                faults[place] = f"the request passes the window by {verifier.over_window[place]:,} tokens"
            step(place)
    out = Screen()
    failed = {place: fault for place, fault in faults.items() if fault}
    for place, fault in failed.items():
        out.print_line(f"failed  {packs.pack_name(place)}: {fault}", "red")
    what = "manifests, texts and replays" if replays else "manifests and texts"
    passed = f"{len(faults) - len(failed):,} of {len(faults):,} packs passed ({what})"
    out.print(cell(passed, "red" if failed else "green"))
    if verifier.unrecorded:
        out.print(f"{verifier.unrecorded:,} could not be replayed: hashes only were recorded")
    return FAILED if failed else 0


# `aether-context replay`: a request again, and what another policy would have made of the same material.


def show_replay(url: str, pack_id: str, *, policy: str | None, everything: bool, as_json: bool) -> int:
    """Prints a request that was built again, or how another policy's request differs from it."""
    other = PackPolicy.load(policy) if policy is not None else None
    store = PackStore(url)
    place = packs.find(store, pack_id)
    manifest = store.read(place)
    replayer = Replayer(store)
    replayed = replayer.replay(manifest)
    fault = Verifier(store).fault(place, line=True)
    if other is not None:
        source = replace(replayer.pack_input(manifest), window=_window(manifest, other))
        rebuilt = build_pack(source, other, recorded=replayer.resolve(manifest).counts)
        _show_other(replayed.pack, rebuilt, other, as_json)
    elif as_json:
        click.echo(replayed.request.encode())
    else:
        pack = replayed.pack
        show_request(pack, manifest.pack_id, everything=everything)
        if not fault:
            checked = f"{pack.request_tokens:,} tokens; the request is the recorded one: {pack.checksum}"
            Screen().print(Text(checked, style="green"))
    if fault:
        problem = "nobody can tell whether this is what was sent, since the pack does not verify"
        tell(f"Error: {problem}: {fault}", "red")
    return FAILED if fault else 0


def _window(manifest: Manifest, policy: PackPolicy) -> int:
    """The recorded window, unless the policy states one."""
    stated, cap = policy.windows.get(manifest.model), policy.max_input_tokens
    if cap is None:
        return stated or manifest.window
    if stated is None and cap > manifest.window:
        from aether_context.tokens.model_limits import model_window

        stated = max(manifest.window, model_window(manifest.model))
    return min(cap, stated or manifest.window)


def show_request(pack: Pack, name: str, *, everything: bool) -> None:
    """Prints a request, long texts shortened unless ``everything`` is asked for."""
    out = Screen()
    out.print_heading(f"REQUEST of {name}")
    out.print(Text(f"system · {pack.sent.system.tokens:,} tokens", style="cyan"))
    cut = [_print_text(out, pack.system, everything)]
    out.print(Text(f"tools · {len(pack.sent.tools)}", style="cyan"))
    if everything:
        for tool in pack.tools:
            _print_text(out, tool.wire, everything)
    else:
        cut.append(_print_text(out, ", ".join(tool.name for tool in pack.tools), everything))
    if pack.allowed_tools is not None:
        _print_text(out, f"calls restricted to: {', '.join(pack.allowed_tools)}", everything)
    for at, item in enumerate(pack.contents):
        out.print(cell(f"[{at}] {item.content.role} · {item.tokens:,} tokens · {item.outcome}", "cyan"))
        for part in item.content.parts:
            text = part.text
            if part.kind in ("call", "response"):
                text = f"{part.kind} {part.name}: {text}"
            elif part.kind == "media":
                text = f"media {part.mime_type}, {part.media_tokens:,} tokens"
            elif part.kind != "text":
                text = f"{part.kind}: {text}"
            cut.append(_print_text(out, text, everything))
    if any(cut):
        out.print(Text("long texts are shortened: --all shows them whole", style="dim"))
    out.print()


def _print_text(out: Screen, text: str, everything: bool) -> bool:
    """Prints the lines of a text, set in, so that none of them can pass for a heading; whether any were shortened.

    Of a long text the first and the last four lines are shown, and the beginning of long lines.
    """
    whole = text.split("\n") if text else []
    if everything:
        for line in whole:
            out.print(Text(f"    {plain(line)}"), soft_wrap=True)
        return False
    lines = whole
    if len(whole) > 10:
        lines = [*whole[:4], f"… {len(whole) - 8:,} lines …", *whole[-4:]]
    for line in lines:
        out.print(Text(f"    {plain(line, 140)}"), no_wrap=True, overflow="ellipsis", crop=True)
    return lines != whole or any(len(line) > 140 for line in whole)


def _show_other(recorded: Pack, other: Pack, policy: PackPolicy, as_json: bool) -> None:
    """Prints what two policies make of the same material."""
    same = recorded.checksum == other.checksum
    lost, gained = _only(recorded, other), _only(other, recorded)
    layers = {layer: (recorded.allocation.layers[layer], other.allocation.layers[layer]) for layer in LAYERS}
    if as_json:

        def both(value: JSON, another: JSON) -> JSON:
            return {"recorded": value, "other": another}

        print_json(
            {
                "policy": policy.digest,
                "profile": policy.profile,
                "same": same,
                "window": both(recorded.source.window, other.source.window),
                "request_tokens": both(recorded.request_tokens, other.request_tokens),
                "layers": {
                    layer: both(*({"final": tokens.final, "used": tokens.used} for tokens in pair))
                    for layer, pair in layers.items()
                },
                "only_recorded": [outcome.id for outcome, _ in lost],
                "only_other": [outcome.id for outcome, _ in gained],
                "checksum": both(recorded.checksum, other.checksum),
                "request": request_json(other),
            }
        )
        return
    out = Screen()
    out.print_heading(f"RECORDED POLICY and {policy.profile} {short(policy.digest)}")
    table = grid("layer", ">recorded: final", ">used", ">other: final", ">used", ">difference")
    for layer, (before, after) in layers.items():
        numbers = (f"{tokens:,}" for tokens in (before.final, before.used, after.final, after.used))
        table.add_row(layer, *numbers, difference(before.used, after.used))
    totals = [f"{tokens:,}" for pack in (recorded, other) for tokens in (pack.source.window, pack.request_tokens)]
    change = difference(recorded.request_tokens, other.request_tokens)
    table.add_row("window, request", *totals, change, style="bold")
    out.print(table)
    out.print()
    if same:
        out.print(Text("both send the same request", style="green"))
        return
    for title, rows in (("RECORDED", lost), ("OTHER", gained)):
        out.print_heading(f"SENT BY THE {title} POLICY ONLY")
        table = grid("layer", "id", "source", ">tokens", "the other's reason")
        for outcome, reason in rows:
            names = cell(outcome.id, limit=60), cell(outcome.source, limit=24)
            table.add_row(outcome.layer, *names, f"{outcome.tokens:,}", reason)
        out.print(table if rows else "nothing")
        out.print()


def _only(pack: Pack, other: Pack) -> list[tuple[CandidateOutcome, str]]:
    """What one pack sends and the other does not, with the reason there."""
    unsent = ("dropped", "redacted")
    there = {outcome.id: outcome for outcome in other.outcomes}
    found: list[tuple[CandidateOutcome, str]] = []
    for outcome in pack.outcomes:
        elsewhere = there.get(outcome.id)
        if outcome.state not in unsent and (elsewhere is None or elsewhere.state in unsent):
            found.append((outcome, elsewhere.reason or elsewhere.state if elsewhere else "not a candidate"))
    return found
