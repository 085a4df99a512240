"""`aether-context verify` and `aether-context replay`: whether packs are what was written, and again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from rich.console import Console, RenderableType
from rich.text import Text

from aether_context.canonical import JSON, short
from aether_context.cli import packs
from aether_context.cli.terminal import (
    cell,
    console,
    difference,
    grid,
    heading,
    number,
    plain,
    print_canonical,
    print_json,
    print_line,
    progress,
    tell,
)
from aether_context.errors import AetherContextError, ManifestError, PackNotFound, ReplayIncomplete
from aether_context.pack import LAYERS, CandidateOutcome, Pack, Part
from aether_context.packing import build_pack
from aether_context.policy import PackPolicy
from aether_context.store import Manifest, PackStore
from aether_context.store.replay import Replayer, request_json

# `aether-context verify`: whether packs are what was written.


class Verifier:
    """Checks packs of one store; what they share is checked once.

    ``unrecorded`` counts packs that cannot be replayed, since their texts were never recorded.
    """

    def __init__(self, store: PackStore) -> None:
        self.unrecorded = 0
        self._store = store
        self._replayer = Replayer(store)
        self._session = ""
        self._over: dict[str, int] = {}
        self._faults: dict[str, str] = {}
        self._manifests: dict[str, Manifest] = {}
        self._lines: set[str] = set()
        self._blobs: set[tuple[str, str, str]] = set()

    def fault(self, place: str, *, replays: bool) -> str:
        """What is wrong with the pack at a place; empty where nothing is.

        Args:
            place: places of one session are best checked one after the other, since what they share is kept meanwhile.
        """
        session = place.rsplit("/", 1)[0]
        if session != self._session:
            self._session, self._replayer = session, Replayer(self._store)
            self._faults, self._manifests, self._lines = {}, {}, set()
        return self._stored(place) or (self._replayed(place) if replays else "")

    def over_window(self, place: str) -> int:
        """Tokens by which the request of a pack passed its window; 0 where it did not, or nobody can tell."""
        return self._over.get(place, 0)

    def _stored(self, place: str) -> str:
        if place not in self._faults:
            try:
                manifest = self._store.read(place)
                self._check(place, manifest)
            except AetherContextError as error:
                self._faults[place] = str(error)
            else:
                self._faults[place], self._manifests[place] = "", manifest
                self._over[place] = manifest.over_window
        return self._faults[place]

    def _check(self, place: str, manifest: Manifest) -> None:
        manifest.verify()
        if not self._store.uri(manifest).endswith(f"{place.lstrip('/')}/manifest.json"):
            raise PackNotFound(f"the manifest of {manifest.pack_id} stands in another pack's folder")
        self._check_parent(manifest)
        for digest in manifest.blobs:
            blob = (manifest.app, manifest.user, digest)
            if blob not in self._blobs:
                self._store.blob(manifest, digest)
                self._blobs.add(blob)

    def _check_parent(self, manifest: Manifest) -> None:
        """Whether the parent is there; one that is there and broken fails for itself."""
        if f"{self._session}/{manifest.parent}" not in self._faults:
            with suppress(ManifestError):
                self._store.parent(manifest)

    def _replayed(self, place: str) -> str:
        broken = self.broken_line(place)
        if broken:
            return broken
        manifest = self._manifests[place]
        try:
            self._replayer.replay(manifest)
        except ReplayIncomplete as error:
            if not self._is_recorded(place):
                self.unrecorded += 1
                return ""
            return str(error)
        except AetherContextError as error:
            return str(error)
        return ""

    def _ancestors(self, place: str) -> Iterator[str]:
        """Places of a pack's ancestors, the nearest first, up to one that is broken."""
        while (manifest := self._manifests.get(place)) is not None and manifest.parent is not None:
            place = f"{self._session}/{manifest.parent}"
            yield place

    def broken_line(self, place: str) -> str:
        """Which ancestor is broken; empty where the line is sound."""
        line = [place]
        for ancestor in self._ancestors(place):
            if ancestor in self._lines:
                break
            if self._stored(ancestor):
                return f"it extends {packs.pack_name(ancestor)}, which failed"
            line.append(ancestor)
        self._lines.update(line)
        return ""

    def _is_recorded(self, place: str) -> bool:
        return all(self._manifests[one].texts for one in (place, *self._ancestors(place)))


def show_verification(url: str, pack_ids: Sequence[str], *, replays: bool) -> bool:
    """Prints which packs failed and how many passed; False where any failed.

    Raises:
        PackNotFound: a pack that was named is not there, or there are none at all.
    """
    store = PackStore(url)
    places = [packs.find(store, one) for one in pack_ids] or store.folders()
    if not places:
        raise PackNotFound(f"no packs in {packs.require(store).url}")
    verifier = Verifier(store)
    faults = {}
    with progress("checking", len(places)) as step:
        for place in sorted(places):
            faults[place] = verifier.fault(place, replays=replays)
            step(place)
    out = console()
    failed = 0
    for place, fault in faults.items():
        over = verifier.over_window(place)
        if fault or over:
            fault = fault or f"the request passes the window by {number(over)} tokens"
            failed += 1
            print_line(out, f"failed  {packs.pack_name(place)}: {fault}", "red")
    what = "manifests, texts and replays" if replays else "manifests and texts"
    passed = f"{number(len(faults) - failed)} of {number(len(faults))} packs passed ({what})"
    out.print(cell(passed, "red" if failed else "green"))
    if verifier.unrecorded:
        out.print(f"{number(verifier.unrecorded)} could not be replayed: hashes only were recorded")
    return not failed


# `aether-context replay`: a request again, and what another policy would have made of the same material.

_MOST_LINES, _MOST_CHARACTERS = 8, 140


def show_replay(url: str, pack_id: str, *, policy: str | None, everything: bool, as_json: bool) -> bool:
    """Prints a request that was built again, or how another policy's request differs from it.

    Args:
        everything: whether texts are printed whole.

    Returns:
        Whether what was replayed is what was written; False where `verify` would refuse the pack.

    Raises:
        ReplayError: what is recorded cannot be built from.
        PolicyError: the other policy is none.
        ReplayIncomplete: the recording lacks what a replay needs.
        ReplayMismatch: a stage gave another result than the recorded one.
        StepTooLarge: the other policy leaves too little room for system, task and tools, and has it raise.
    """
    other = PackPolicy.load(policy) if policy is not None else None
    store = PackStore(url)
    place = packs.find(store, pack_id)
    manifest = store.read(place)
    replayer = Replayer(store)
    replayed = replayer.replay(manifest)
    verifier = Verifier(store)
    fault = verifier.fault(place, replays=False) or verifier.broken_line(place)
    if other is not None:
        _show_other(replayed.pack, _rebuilt(replayer, manifest, other), other, as_json)
    elif as_json:
        print_canonical(replayed.request)
    else:
        pack = replayed.pack
        show_request(pack, plain(replayed.manifest.pack_id), everything=everything)
        if not fault:
            checked = f"{number(pack.request_tokens)} tokens; the request is the recorded one: {pack.checksum}"
            console().print(Text(checked, style="green"))
    if fault:
        told = f"Error: nobody can tell whether this is what was sent, since the pack does not verify: {fault}"
        tell(told, "red")
    return not fault


def _rebuilt(replayer: Replayer, manifest: Manifest, policy: PackPolicy) -> Pack:
    source = replace(replayer.pack_input(manifest), window=_window(manifest, policy))
    return build_pack(source, policy, recorded=replayer.resolve(manifest).counts)


def _window(manifest: Manifest, policy: PackPolicy) -> int:
    """The recorded window, unless the policy states one."""
    stated, cap = policy.windows.get(manifest.model), policy.max_input_tokens
    if cap is None:
        return stated or manifest.window
    if stated is None and cap > manifest.window:
        from aether_context.tokens.model_limits import model_window

        stated = max(manifest.window, model_window(manifest.model).input_tokens)
    return min(cap, stated or manifest.window)


def show_request(pack: Pack, name: str, *, everything: bool) -> None:
    """Prints a request, long texts shortened unless ``everything`` is asked for."""
    out = console()
    heading(out, f"REQUEST of {name}")
    out.print(Text(f"system · {number(pack.sent.system.tokens)} tokens", style="cyan"))
    cut = [_print_text(out, pack.system, everything)]
    out.print(Text(f"tools · {len(pack.sent.tools)}", style="cyan"))
    if everything:
        for tool in pack.tools:
            _print_text(out, tool.wire, everything)
    else:
        cut = [_print_text(out, ", ".join(tool.name for tool in pack.tools), everything), *cut]
    if pack.allowed_tools is not None:
        _print_text(out, f"calls restricted to: {', '.join(pack.allowed_tools)}", everything)
    for at, one in enumerate(pack.contents):
        title = f"[{at}] {one.content.role} · {number(one.tokens)} tokens · {one.outcome}"
        out.print(cell(title, "cyan"))
        cut += [_print_text(out, _said(part), everything) for part in one.content.parts]
    if any(cut):
        out.print(Text("long texts are shortened: --all shows them whole", style="dim"))
    out.print()


def _print_text(out: Console, text: str, everything: bool) -> bool:
    """Prints the lines of a text, set in, so that none of them can pass for a heading; whether any were shortened."""
    whole = [plain(line) for line in text.split("\n")] if text else []
    lines = whole if everything else _shortened(text)
    for line in lines:
        shown = Text(f"    {line}")
        if everything:
            out.print(shown, soft_wrap=True)
        else:
            out.print(shown, no_wrap=True, overflow="ellipsis", crop=True)
    return lines != whole


def _said(part: Part) -> str:
    if part.kind in ("call", "response"):
        return f"{part.kind} {part.name}: {part.text}"
    if part.kind == "media":
        return f"media {part.mime_type}, {number(part.media_tokens)} tokens"
    return part.text if part.kind == "text" else f"{part.kind}: {part.text}"


def _shortened(text: str) -> list[str]:
    """The first and the last lines of a text, long ones cut, with a note of what lies between."""
    lines = text.split("\n") if text else []
    if len(lines) > _MOST_LINES + 2:
        half = _MOST_LINES // 2
        gap = f"… {number(len(lines) - 2 * half)} lines …"
        lines = [*lines[:half], gap, *lines[-half:]]
    return [plain(line, _MOST_CHARACTERS) for line in lines]


def _show_other(recorded: Pack, other: Pack, policy: PackPolicy, as_json: bool) -> None:
    if as_json:
        print_json(_comparison(recorded, other, policy))
        return
    out = console()
    heading(out, f"RECORDED POLICY and {policy.profile} {short(policy.digest)}")
    out.print(_layers(recorded, other))
    out.print()
    if recorded.checksum == other.checksum:
        out.print(Text("both send the same request", style="green"))
        return
    for title, rows in (
        ("SENT BY THE RECORDED POLICY ONLY", _only(recorded, other)),
        ("SENT BY THE OTHER POLICY ONLY", _only(other, recorded)),
    ):
        heading(out, title)
        out.print(_outcomes(rows) if rows else "nothing")
        out.print()


def _layers(recorded: Pack, other: Pack) -> RenderableType:
    table = grid("layer", ">recorded: final", ">used", ">other: final", ">used", ">difference")
    pairs = [(layer, recorded.allocation.layers[layer], other.allocation.layers[layer]) for layer in LAYERS]
    for layer, a, b in pairs:
        numbers = (number(value) for value in (a.final, a.used, b.final, b.used))
        table.add_row(layer, *numbers, difference(a.used, b.used))
    change = difference(recorded.request_tokens, other.request_tokens)
    cells = [number(value) for pack in (recorded, other) for value in (pack.source.window, pack.request_tokens)]
    table.add_row("window, request", *cells, change, style="bold")
    return table


def _outcomes(rows: Sequence[tuple[CandidateOutcome, CandidateOutcome | None]]) -> RenderableType:
    table = grid("layer", "id", "source", ">tokens", "the other's reason")
    for outcome, there in rows:
        reason = "not a candidate" if there is None else (there.reason or there.state)
        table.add_row(
            outcome.layer, cell(outcome.id, limit=60), cell(outcome.source, limit=24), number(outcome.tokens), reason
        )
    return table


def _only(pack: Pack, other: Pack) -> list[tuple[CandidateOutcome, CandidateOutcome | None]]:
    """What one pack sends and the other does not, with what became of it there."""
    there = {outcome.id: outcome for outcome in other.outcomes}
    sent = (outcome for outcome in pack.outcomes if _is_sent(outcome))
    return [
        (outcome, there.get(outcome.id))
        for outcome in sent
        if outcome.id not in there or not _is_sent(there[outcome.id])
    ]


def _is_sent(outcome: CandidateOutcome) -> bool:
    return outcome.state not in ("dropped", "redacted")


def _comparison(recorded: Pack, other: Pack, policy: PackPolicy) -> JSON:
    def tokens() -> Iterator[tuple[str, JSON]]:
        for layer in LAYERS:
            pair = {"recorded": recorded.allocation.layers[layer], "other": other.allocation.layers[layer]}
            yield layer, {name: {"final": one.final, "used": one.used} for name, one in pair.items()}

    return {
        "policy": policy.digest,
        "profile": policy.profile,
        "same": recorded.checksum == other.checksum,
        "window": {"recorded": recorded.source.window, "other": other.source.window},
        "request_tokens": {"recorded": recorded.request_tokens, "other": other.request_tokens},
        "layers": dict(tokens()),
        "only_recorded": [outcome.id for outcome, _ in _only(recorded, other)],
        "only_other": [outcome.id for outcome, _ in _only(other, recorded)],
        "checksum": {"recorded": recorded.checksum, "other": other.checksum},
        "request": request_json(other),
    }
