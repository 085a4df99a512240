"""`aether-context inspect`: everything that a manifest says about one pack."""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from aether_context.canonical import JSON, hash_text, short
from aether_context.cli import packs
from aether_context.cli.terminal import (
    FAILED,
    NOT_THERE,
    Screen,
    bar,
    cell,
    difference,
    grid,
    moment,
    percent,
    plain,
    print_json,
    tell,
)
from aether_context.conversation.content_json import content_from_wire
from aether_context.errors import AetherContextError, ChecksumMismatch, StoreError
from aether_context.pack import LAYERS, CandidateOutcome
from aether_context.store import Manifest, PackStore
from aether_context.store.replay import Replayer, wires

_FEW = 12
"""Rows and tools that are shown without --all."""


def show(url: str, pack_id: str | None, *, everything: bool, as_json: bool) -> int:
    """Prints a pack.

    What is missing or unreadable is told on stderr; where an ancestor is, the rows are the manifest's own.
    """
    store = PackStore(url)
    manifest = store.read(packs.find(store, pack_id))
    replayer = Replayer(store)
    gaps = []
    if as_json:
        resolved = replayer.resolve(manifest)
        # The manifest as it would be without a parent, except for its digest, which stays that of the stored one.
        contents = manifest.contents.model_copy(update={"head": 0, "added": resolved.contents, "tail": 0})
        rows = tuple(resolved.rows.values())
        filled = manifest.model_copy(update={"contents": contents, "rows": rows, "counts": dict(resolved.counts)})
        print_json(filled.model_dump(mode="json"))
    else:
        rows, texts, outcome = manifest.rows, {}, None
        try:
            rows = tuple(replayer.resolve(manifest).rows.values())
        except (AetherContextError, ValueError, LookupError) as error:
            gaps.append(f"{error}: rows of earlier packs are not shown")
        else:
            try:
                texts = _texts(replayer, manifest, rows)
            except (AetherContextError, ValueError, LookupError, TypeError, AttributeError) as error:
                gaps.append(f"{error}: texts are not shown")
        try:
            outcome = store.outcome(manifest)
        except StoreError as error:
            gaps.append(str(error))
        print_manifest(manifest, rows, texts, outcome, everything)
    for gap in gaps:
        tell(gap, "red")
    try:
        manifest.verify()
    except ChecksumMismatch as error:
        tell(error, "red")
        return FAILED
    return NOT_THERE if gaps else 0


def _texts(replayer: Replayer, manifest: Manifest, rows: Sequence[CandidateOutcome]) -> dict[str, str]:
    """The texts that rows stand for, by the rows' ids, from the manifest's recording and those of its ancestors."""
    wanted = {row.id: row.hash for row in rows}
    found: dict[str, str] = {}
    for link in replayer.line(manifest):
        if not link.texts or found.keys() == wanted.keys():
            break
        recorded = json.loads(replayer.store.blob(link, link.texts[0]))
        candidates = {candidate["id"]: candidate["text"] for candidate in recorded.get("candidates", ())}
        contents = {hash_text(wire): wire for wire in wires(recorded)}
        for name in wanted.keys() - found.keys():
            if name in candidates:
                found[name] = candidates[name]
            elif wanted[name] in contents:
                parts = content_from_wire(contents[wanted[name]]).parts
                found[name] = " ".join(part.text for part in parts if part.text)
    return found


def print_manifest(
    manifest: Manifest, rows: Sequence[CandidateOutcome], texts: Mapping[str, str], outcome: JSON, everything: bool
) -> None:
    """Titles and what stands under them; a section with nothing in it is left out.

    Args:
        rows: with those of the manifest's ancestors.
        texts: what rows stand for, by their ids, as far as it was recorded.
        outcome: what the model answered, None where that is not recorded.
    """
    out = Screen()
    superseded = manifest.superseded.items()
    sections: dict[str, Sequence[RenderableType]] = {
        f"PACK {plain(manifest.pack_id)}": [_facts(manifest)],
        "LAYERS": [_layers(manifest, 32 if out.width >= 96 else 16)],
        "SIGNALS": [_signals(manifest)],
        "CACHE": [_cache(manifest, outcome)],
        "CANDIDATES": list(_candidates(rows, texts, everything, out.width - 2)),
        "TRUNCATION EVENTS": [_events(manifest, everything)] if manifest.truncation_events else ["none"],
        "TOOLS": list(_tools(manifest, everything)),
        "EVIDENCE NEEDED": [cell(f"- {item}") for item in manifest.evidence_needed],
        "SUPERSEDED EVIDENCE": [cell(f"{uri} by {later}", "yellow") for uri, later in superseded],
        "DEGRADATIONS": [cell(f"- {note}", "yellow") for note in manifest.degradations],
    }
    for title, parts in sections.items():
        if parts:
            out.print_heading(title)
            for part in parts:
                out.print(Padding(part, (0, 0, 0, 2), expand=False))
            out.print()


def _facts(manifest: Manifest) -> RenderableType:
    named = (("task", manifest.task_id), ("step", manifest.step_id), ("role", manifest.role))
    plan = manifest.validity + (f": {manifest.invalid_reason}" if manifest.invalid_reason else "")
    branch = f" · branch {manifest.branch}" if manifest.branch else ""
    over = f", {manifest.over_window:,} over it" if manifest.over_window else ""
    others = (("memories", manifest.memory_encoder), ("tools", manifest.tools.encoder))
    encoders = [("candidates", manifest.encoder), *(pair for pair in others if pair[1])]
    facts = {
        "session": f"{manifest.app} · {manifest.user} · {manifest.session}",
        "call": f"agent {manifest.agent}{branch} · invocation {manifest.invocation} · call {manifest.call}",
        "time": f"{moment(manifest.last_event_time)} UTC",
        "plan": " · ".join([plan, *(f"{label} {value}" for label, value in named if value)]),
        "model": f"{manifest.model} · window {manifest.window:,}",
        "request": f"{manifest.request_tokens:,} tokens ({manifest.request_tokens_method}, by {manifest.counter})"
        f" · {percent(manifest.request_tokens, manifest.window)} of the window{over}",
        "meaning": " · ".join(f"{compared} by {encoder}" for compared, encoder in encoders),
        "policy": f"{manifest.profile} · {short(manifest.policy)}",
        "epoch": f"{manifest.epoch.number}, "
        + (f"begun here: {manifest.epoch_reason}" if manifest.epoch_reason else "going on"),
        "record": ("texts recorded" if manifest.texts else "hashes only")
        + (f" · extends {manifest.parent}" if manifest.parent else " · stands alone"),
        "checksum": manifest.checksum,
    }
    table = grid("", "")
    for label, fact in facts.items():
        table.add_row(Text(label, style="dim"), cell(fact))
    return table


def _layers(manifest: Manifest, cells: int) -> RenderableType:
    table = grid("layer", "of the window", ">floor", ">nominal", ">lent", ">final", ">used")
    layers = [(layer, manifest.allocation[layer]) for layer in LAYERS if layer in manifest.allocation]
    for layer, tokens in layers:
        over = tokens.used > tokens.final
        share = Text(bar(tokens.used, tokens.final, manifest.window, cells), style="red" if over else "cyan")
        figures = [f"{tokens.floor:,}", f"{tokens.nominal:,}", difference(0, tokens.lent), f"{tokens.final:,}"]
        table.add_row(layer, share, *figures, Text(f"{tokens.used:,}", style="red" if over else ""))
    final, used = (sum(getattr(tokens, name) for _, tokens in layers) for name in ("final", "used"))
    whole = bar(used, final, manifest.window, cells)
    table.add_row("all", whole, "", "", "", f"{final:,}", f"{used:,}", style="dim")
    return table


def _signals(manifest: Manifest) -> RenderableType:
    table = grid("signal", "value")
    for name, value in manifest.signals.items():
        known = f"{value:.3g}" if isinstance(value, float) else value
        table.add_row(cell(name), cell(known) if value is not None else Text("neutral ½ (unknown)", style="dim"))
    shares = " · ".join(f"{layer} {weight:.0%}" for layer, weight in manifest.weights.items())
    table.add_row("shares that they led to", cell(shares))
    return table


def _cache(manifest: Manifest, outcome: JSON) -> RenderableType:
    """What a prefix cache could serve, and what the provider says of the answer."""
    shared, broken = manifest.prefix.shared_tokens, manifest.prefix.broken_by
    if shared is None:
        why = "this is the first request" if broken is None else "the request before is not known"
        servable = Text(f"unknown: {why}")
    else:
        whole = f"{manifest.counted_tokens or manifest.request_tokens:,}"
        end = f"broken by {broken}" if broken else "nothing broke the prefix"
        text = f"{shared:,} of {whole} counted tokens in common with the request before; {end}"
        servable = Text(text, style="yellow" if broken else "")
    table = grid("", "")
    table.add_row("could be served", servable)
    if not isinstance(outcome, dict):
        table.add_row("provider served", "unknown: no outcome is recorded")
        return table
    cached, read, answered = (
        value if isinstance(value := outcome.get(name), int) else None
        for name in ("cached_tokens", "input_tokens", "output_tokens")
    )
    if cached is None:
        table.add_row("provider served", "unknown: the provider said nothing")
    else:
        table.add_row("provider served", f"{cached:,}" + (f" of {read:,} input tokens" if read is not None else ""))
    if read is not None:
        table.add_row("estimate", f"{manifest.request_tokens:,} for {read:,} input tokens reported")
    finish = outcome.get("error_code") or outcome.get("finish_reason")
    if finish is not None:
        table.add_row("answer", cell(f"{'unknown' if answered is None else format(answered, ',')} tokens · {finish}"))
    acceptance = outcome.get("acceptance")
    items, fabricated = (
        found if isinstance(acceptance, dict) and isinstance(found := acceptance.get(name), list) else []
        for name in ("items", "fabricated")
    )
    for item in items:
        if isinstance(item, dict):
            passed = item.get("passed")
            verdict = "met" if passed is True else "not met" if passed is False else "not looked at"
            reason = f": {item.get('reason')}" if item.get("reason") else ""
            table.add_row("acceptance", cell(f"{item.get('id')} {verdict} (by {item.get('by')}){reason}"))
    for uri in fabricated:
        table.add_row("acceptance", cell(f"{uri} was never in the request"))
    return table


def _candidates(
    rows: Sequence[CandidateOutcome], texts: Mapping[str, str], everything: bool, width: int
) -> Iterator[RenderableType]:
    """A line for each candidate, and below it what that line has no room for, and its text.

    Of a layer with many candidates those that were kept whole are summed up.
    """
    states = Counter(row.state for row in rows)
    counts = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    yield cell(f"{len(rows):,} in all: {counts}" if rows else "none")
    titles = [Text(title, style="dim") for title in ("layer", "id", "source", "tokens", "state", "reason")]
    shown: list[tuple[CandidateOutcome, list[Text]] | Text] = []
    table = [titles]
    for layer in LAYERS:
        here = [row for row in rows if row.layer == layer]
        kept = [row for row in here if row.state == "kept" and row.sent_tokens is None]
        collapsed = len(here) > _FEW and len(kept) > 1 and not everything
        for row in here:
            if collapsed and row.state == "kept" and row.sent_tokens is None:
                continue
            colour = {"kept": "green", "dropped": "red", "redacted": "red"}.get(row.state, "yellow")
            sent = f" → {row.sent_tokens:,}" if row.sent_tokens is not None else ""
            names = [Text(row.layer), cell(row.id, limit=40), cell(row.source, limit=24)]
            table.append(
                [*names, Text(f"{row.tokens:,}" + sent), Text(row.state, style=colour), Text(row.reason or "")]
            )
            shown.append((row, table[-1]))
        if collapsed:
            tokens = f"{sum(row.tokens for row in kept):,}"
            note = f"{layer}: … and {len(kept):,} kept whole (--all shows them), {tokens} tokens"
            shown.append(Text(note, style="dim"))
    widths = [max(text.cell_len for text in column) for column in zip(*table, strict=True)]
    if len(table) > 1:
        yield _aligned(titles, widths)
    for entry in shown:
        if isinstance(entry, Text):
            yield entry
            continue
        row, cells = entry
        line = _aligned(cells, widths)
        scores = " ".join(f"{name} {value:.3g}" for name, value in sorted(row.scores.items()))
        covers = f"covers {', '.join(row.covers)}" if row.covers else ""
        later = f"superseded by {row.superseded_by}" if row.superseded_by else ""
        more = plain(" · ".join(filter(None, (scores, moment(row.time), row.uri, covers, later))))
        if more and len(more) <= width - line.cell_len - 2:
            line.append(f"  {more}")
            more = ""
        yield line
        yield from (cell(f"    {piece}", "dim") for piece in textwrap.wrap(more, width - 4, break_on_hyphens=False))
        if row.id in texts:
            yield cell(f"    “{plain(texts[row.id])}”", limit=None if everything else width)


def _aligned(cells: Sequence[Text], widths: Sequence[int]) -> Text:
    """Cells in columns, the fourth one of numbers."""
    line = Text()
    for at, (text, width) in enumerate(zip(cells, widths, strict=True)):
        gap = " " * (width - text.cell_len)
        line = Text.assemble(line, *((gap, text) if at == 3 else (text, gap)), "  ")
    line.rstrip()
    return line


def _events(manifest: Manifest, everything: bool) -> RenderableType:
    table = grid(">#", "layer", "stage", "reason", ">tokens", "items")
    for at, event in enumerate(manifest.truncation_events, start=1):
        items = _listed(event.item_ids, None if everything else 3)
        tokens = f"{event.tokens_before:,} → {event.tokens_after:,}"
        stage = f"{event.stage} ({event.strategy})" if event.strategy else event.stage
        table.add_row(str(at), event.layer, cell(stage), event.reason, tokens, cell(items))
    return table


def _tools(manifest: Manifest, everything: bool) -> Iterator[RenderableType]:
    tools, most = manifest.tools, None if everything else _FEW
    if not tools.sent and not tools.left_out:
        return
    reasons = {
        name: f"{reason}, score {tools.scores[name]:.3f}" if name in tools.scores else reason
        for name, reason in {**tools.left_out, **tools.kept}.items()
    }
    yield cell(f"{len(tools.sent):,} declared (scope {tools.mode}): {_listed(tools.sent, most)}")
    if tools.allowed is not None:
        yield cell(f"calls restricted to: {', '.join(tools.allowed) or 'none'}")
    if tools.kept:
        yield cell(", ".join(f"{name} ({reasons[name]})" for name in tools.kept))
    out = list(tools.left_out)[:most]
    for name in out:
        yield cell(f"left out: {name} ({reasons[name]})", "yellow")
    if len(out) < len(tools.left_out):
        yield cell(f"left out: {len(tools.left_out) - len(out):,} more", "yellow")


def _listed(names: Sequence[str], most: int | None) -> str:
    """The first of several names, and how many more there are."""
    shown = names[:most]
    return ", ".join(shown) + (f" and {len(names) - len(shown):,} more" if len(names) > len(shown) else "")
