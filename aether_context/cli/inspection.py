"""`aether-context inspect`: everything that a manifest says about one pack."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.text import Text

from aether_context.canonical import JSON, canonical_json, short
from aether_context.cli import packs
from aether_context.cli.terminal import (
    bar,
    cell,
    console,
    difference,
    grid,
    heading,
    moment,
    number,
    percent,
    plain,
    print_json,
    tell,
)
from aether_context.conversation.content_json import content_from_wire
from aether_context.errors import AetherContextError, ChecksumMismatch, StoreError
from aether_context.pack import LAYERS, CandidateOutcome
from aether_context.store import Manifest, PackStore, ToolScope
from aether_context.store.replay import Resolved, Resolver

_FEW = 12
_FEW_ITEMS = 3
_BAR, _ROOM_FOR_BAR = 32, 96
"""Cells of a bar, and the columns from which on there is room for all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """A manifest, its rows with those of its ancestors, and what the model answered.

    ``texts`` are those that the rows stand for, by row, as far as they were recorded. ``gaps`` say what is missing or
    unreadable; where an ancestor is, the rows are the manifest's own. ``fault`` says that the manifest is not what was
    written.
    """

    manifest: Manifest
    rows: tuple[CandidateOutcome, ...]
    outcome: Mapping[str, JSON] | None
    texts: Mapping[str, str] = field(default_factory=dict)
    gaps: tuple[str, ...] = ()
    fault: str = ""


def show(url: str, pack_id: str | None, *, everything: bool, as_json: bool) -> str:
    """Prints a pack.

    Returns:
        ``gap`` where part of it is missing or unreadable, ``fault`` where its manifest is not what was written, else
        nothing.

    Raises:
        PackNotFound: there is no such pack, or, where JSON is asked for, an ancestor is missing.
    """
    store = PackStore(url)
    manifest = store.read(packs.find(store, pack_id))
    resolver = Resolver(store)
    if as_json:
        fault = _fault(manifest)
        print_json(_filled(resolver.resolve(manifest)).model_dump(mode="json"))
        gaps: tuple[str, ...] = ()
    else:
        seen = _see(store, resolver, manifest)
        _show(seen, everything)
        fault, gaps = seen.fault, seen.gaps
    for problem in (*gaps, fault):
        if problem:
            tell(problem, "red")
    return "fault" if fault else "gap" if gaps else ""


def show_alone(manifest: Manifest, *, everything: bool, as_json: bool) -> None:
    """Prints a manifest that stands alone and is in no store."""
    if as_json:
        print_json(manifest.model_dump(mode="json"))
    else:
        _show(_Seen(manifest=manifest, rows=manifest.rows, outcome=None), everything)


def _show(seen: _Seen, everything: bool) -> None:
    out = console()
    for title, parts in _sections(seen, everything, out.width):
        _print(out, title, parts)


def _filled(resolved: Resolved) -> Manifest:
    """The manifest as it would be without a parent, except for its digest, which stays that of the stored one."""
    one = resolved.manifest
    contents = one.contents.model_copy(update={"head": 0, "added": resolved.contents, "tail": 0})
    return one.model_copy(
        update={"contents": contents, "rows": tuple(resolved.rows.values()), "counts": dict(resolved.counts)}
    )


def _see(store: PackStore, resolver: Resolver, manifest: Manifest) -> _Seen:
    rows, outcome, texts, gaps = manifest.rows, None, {}, []
    try:
        rows = tuple(resolver.resolve(manifest).rows.values())
    except (AetherContextError, ValueError, LookupError) as error:
        gaps.append(f"{error}: rows of earlier packs are not shown")
    else:
        try:
            texts = _texts(store, resolver, manifest, rows)
        except (AetherContextError, ValueError, LookupError, TypeError, AttributeError) as error:
            gaps.append(f"{error}: texts are not shown")
    try:
        outcome = store.outcome(manifest)
    except StoreError as error:
        gaps.append(str(error))
    return _Seen(
        manifest=manifest,
        rows=rows,
        outcome=outcome if isinstance(outcome, dict) else None,
        texts=texts,
        gaps=tuple(gaps),
        fault=_fault(manifest),
    )


def _fault(manifest: Manifest) -> str:
    try:
        manifest.verify()
    except ChecksumMismatch as error:
        return str(error)
    return ""


def _texts(
    store: PackStore, resolver: Resolver, manifest: Manifest, rows: Sequence[CandidateOutcome]
) -> dict[str, str]:
    """The texts that rows stand for, by the rows' ids, from the manifest's recording and those of its ancestors."""
    wanted = {row.id: row.hash for row in rows}
    found: dict[str, str] = {}
    for one in resolver.line(manifest):
        if not one.texts or found.keys() == wanted.keys():
            break
        held = json.loads(store.blob(one, one.texts[0]))
        candidates = {candidate["id"]: candidate["text"] for candidate in held["candidates"]}
        contents = {name: value for name, value in held.get("contents", {}).items() if name in wanted.values()}
        for name, digest in wanted.items():
            if name in found:
                continue
            if name in candidates:
                found[name] = candidates[name]
            elif digest in contents:
                parts = content_from_wire(canonical_json(contents[digest])).parts
                found[name] = " ".join(part.text for part in parts if part.text)
    return found


def _print(out: Console, title: str, parts: Sequence[RenderableType]) -> None:
    if not parts:
        return
    heading(out, title)
    for part in parts:
        out.print(Padding(part, (0, 0, 0, 2), expand=False))
    out.print()


def _sections(seen: _Seen, everything: bool, width: int) -> Iterator[tuple[str, Sequence[RenderableType]]]:
    """Titles and what stands under them; a section with nothing in it is left out."""
    one = seen.manifest
    yield f"PACK {cell(one.pack_id).plain}", [_facts(one)]
    yield "LAYERS", [_layers(one, _BAR if width >= _ROOM_FOR_BAR else _BAR // 2)]
    yield "SIGNALS", [_signals(one)]
    yield "CACHE", [_cache(seen)]
    yield "CANDIDATES", list(_candidates(seen, everything, width - 2))
    yield "TRUNCATION EVENTS", [_events(one, everything)] if one.truncation_events else ["none"]
    yield "TOOLS", list(_tools(one, everything))
    yield "EVIDENCE NEEDED", [cell(f"- {item}") for item in one.evidence_needed]
    yield "SUPERSEDED EVIDENCE", [cell(f"{uri} by {later}", "yellow") for uri, later in one.superseded.items()]
    yield "DEGRADATIONS", [cell(f"- {note}", "yellow") for note in one.degradations]


def _facts(one: Manifest) -> RenderableType:
    table = grid("", "")
    named = (("task", one.task_id), ("step", one.step_id), ("role", one.role))
    step = " · ".join(f"{label} {value}" for label, value in named if value)
    plan = one.validity + (f": {one.invalid_reason}" if one.invalid_reason else "")
    branch = f" · branch {one.branch}" if one.branch else ""
    parent = f"extends {one.parent}" if one.parent else "stands alone"
    facts = {
        "session": f"{one.app} · {one.user} · {one.session}",
        "call": f"agent {one.agent}{branch} · invocation {one.invocation} · call {one.call}",
        "time": f"{moment(one.last_event_time)} UTC",
        "plan": f"{plan} · {step}" if step else plan,
        "model": f"{one.model} · window {number(one.window)}",
        "request": f"{number(one.request_tokens)} tokens ({one.request_tokens_method}, by {one.counter}) · "
        f"{percent(one.request_tokens, one.window)} of the window"
        + (f", {number(one.over_window)} over it" if one.over_window else ""),
        "meaning": " · ".join(f"{what} by {name}" for what, name in _encoders(one)),
        "policy": f"{one.profile} · {short(one.policy)}",
        "epoch": f"{one.epoch.number}, " + (f"begun here: {one.epoch_reason}" if one.epoch_reason else "going on"),
        "record": ("texts recorded" if one.texts else "hashes only") + f" · {parent}",
        "checksum": one.checksum,
    }
    for label, value in facts.items():
        table.add_row(Text(label, style="dim"), cell(value))
    return table


def _encoders(one: Manifest) -> Iterator[tuple[str, str]]:
    """What was compared by meaning, each with the embedder."""
    yield "candidates", one.encoder
    for what, name in (("memories", one.memory_encoder), ("tools", one.tools.encoder)):
        if name:
            yield what, name


def _layers(one: Manifest, cells: int) -> RenderableType:
    table = grid("layer", "of the window", ">floor", ">nominal", ">lent", ">final", ">used")
    for layer in (layer for layer in LAYERS if layer in one.allocation):
        tokens = one.allocation[layer]
        lent = difference(0, tokens.lent)
        over = tokens.used > tokens.final
        used = Text(number(tokens.used), style="red" if over else "")
        picture = Text(bar(tokens.used, tokens.final, one.window, cells), style="red" if over else "cyan")
        table.add_row(layer, picture, number(tokens.floor), number(tokens.nominal), lent, number(tokens.final), used)
    final = sum(tokens.final for tokens in one.allocation.values())
    used_whole = sum(tokens.used for tokens in one.allocation.values())
    table.add_row(
        "all", bar(used_whole, final, one.window, cells), "", "", "", number(final), number(used_whole), style="dim"
    )
    return table


def _signals(one: Manifest) -> RenderableType:
    table = grid("signal", "value")
    for name, value in one.signals.items():
        known = f"{value:.3g}" if isinstance(value, float) else value
        table.add_row(cell(name), cell(known) if value is not None else Text("neutral ½ (unknown)", style="dim"))
    shares = " · ".join(f"{layer} {weight:.0%}" for layer, weight in one.weights.items())
    table.add_row("shares that they led to", cell(shares))
    return table


def _cache(seen: _Seen) -> RenderableType:
    one = seen.manifest
    table = grid("", "")
    table.add_row("could be served", _prefix(one))
    outcome = seen.outcome
    if outcome is None:
        table.add_row("provider served", "unknown: no outcome is recorded")
        return table
    served, read = _count(outcome.get("cached_tokens")), _count(outcome.get("input_tokens"))
    said = f"{number(served)} of {number(read)} input tokens" if read is not None else number(served)
    table.add_row("provider served", said if served is not None else "unknown: the provider said nothing")
    if read is not None:
        table.add_row("estimate", f"{number(one.request_tokens)} for {number(read)} input tokens reported")
    finish = outcome.get("error_code") or outcome.get("finish_reason")
    if finish is not None:
        table.add_row("answer", cell(f"{number(_count(outcome.get('output_tokens')))} tokens · {finish}"))
    for line in _accepted(outcome.get("acceptance")):
        table.add_row("acceptance", cell(line))
    return table


def _accepted(verdict: JSON) -> Iterator[str]:
    """What came of the answer's acceptance, a line for each item and for each fabricated URI."""
    if not isinstance(verdict, dict):
        return
    items, invented = verdict.get("items"), verdict.get("fabricated")
    for item in items if isinstance(items, list) else ():
        if isinstance(item, dict):
            passed = item.get("passed")
            said = "met" if passed is True else "not met" if passed is False else "not looked at"
            reason = f": {item.get('reason')}" if item.get("reason") else ""
            yield f"{item.get('id')} {said} (by {item.get('by')}){reason}"
    yield from (f"{uri} was never in the request" for uri in (invented if isinstance(invented, list) else ()))


def _count(value: JSON) -> int | None:
    return value if isinstance(value, int) else None


def _prefix(one: Manifest) -> Text:
    shared, broken = one.prefix.shared_tokens, one.prefix.broken_by
    if shared is None:
        why = "this is the first request" if broken is None else "the request before is not known"
        return Text(f"unknown: {why}")
    end = f"broken by {broken}" if broken else "nothing broke the prefix"
    whole = one.counted_tokens or one.request_tokens
    text = f"{number(shared)} of {number(whole)} counted tokens in common with the request before; {end}"
    return Text(text, style="yellow" if broken else "")


def _candidates(seen: _Seen, everything: bool, width: int) -> Iterator[RenderableType]:
    """A line for each candidate, and below it what that line has no room for, and its text."""
    rows = seen.rows
    counts: dict[str, int] = {}
    for row in rows:
        counts[row.state] = counts.get(row.state, 0) + 1
    counter = ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))
    yield cell(f"{number(len(rows))} in all: {counter}" if rows else "none")
    lines: list[tuple[list[Text], CandidateOutcome] | Text] = []
    for layer in LAYERS:
        here = [row for row in rows if row.layer == layer]
        kept = [row for row in here if row.state == "kept" and row.sent_tokens is None]
        collapsed = len(here) > _FEW and len(kept) > 1 and not everything
        for row in here:
            if not collapsed or row not in kept:
                lines.append((_cells(row), row))
        if collapsed:
            tokens = number(sum(row.tokens for row in kept))
            note = f"{layer}: … and {number(len(kept))} kept whole (--all shows them), {tokens} tokens"
            lines.append(Text(note, style="dim"))
    titles = [Text(title, style="dim") for title in ("layer", "id", "source", "tokens", "state", "reason")]
    table = [titles, *(line[0] for line in lines if not isinstance(line, Text))]
    if len(table) == 1:
        yield from (line for line in lines if isinstance(line, Text))
        return
    widths = [max(one.cell_len for one in column) for column in zip(*table, strict=True)]
    yield _aligned(titles, widths)
    for entry in lines:
        if isinstance(entry, Text):
            yield entry
            continue
        cells, row = entry
        line, more = _aligned(cells, widths), _more(row)
        room = width - line.cell_len - 2
        if more and len(more) <= room:
            line.append(f"  {more}")
            more = ""
        yield line
        yield from (cell(f"    {piece}", "dim") for piece in textwrap.wrap(more, width - 4, break_on_hyphens=False))
        if row.id in seen.texts:
            yield cell(f"    “{plain(seen.texts[row.id])}”", limit=None if everything else width)


def _aligned(cells: Sequence[Text], widths: Sequence[int]) -> Text:
    """Cells in columns, the fourth one of numbers."""
    line = Text()
    for at, (one, width) in enumerate(zip(cells, widths, strict=True)):
        gap = " " * (width - one.cell_len)
        line = Text.assemble(line, *((gap, one) if at == 3 else (one, gap)), "  ")
    line.rstrip()
    return line


def _cells(row: CandidateOutcome) -> list[Text]:
    colour = {"kept": "green", "dropped": "red", "redacted": "red"}.get(row.state, "yellow")
    sent = f" → {number(row.sent_tokens)}" if row.sent_tokens is not None else ""
    return [
        Text(row.layer),
        cell(row.id, limit=40),
        cell(row.source, limit=24),
        Text(number(row.tokens) + sent),
        Text(row.state, style=colour),
        Text(row.reason or ""),
    ]


def _more(row: CandidateOutcome) -> str:
    """Scores, time, address and what it covers."""
    scores = (f"{name} {value:.3g}" for name, value in sorted(row.scores.items()))
    covers = f"covers {', '.join(row.covers)}" if row.covers else ""
    return plain(" · ".join(piece for piece in (" ".join(scores), moment(row.time), row.uri, covers) if piece))


def _events(one: Manifest, everything: bool) -> RenderableType:
    table = grid(">#", "layer", "stage", "reason", ">tokens", "items")
    for at, event in enumerate(one.truncation_events, start=1):
        shown = event.item_ids if everything else event.item_ids[:_FEW_ITEMS]
        left = len(event.item_ids) - len(shown)
        items = ", ".join(shown) + (f" and {number(left)} more" if left else "")
        tokens = f"{number(event.tokens_before)} → {number(event.tokens_after)}"
        stage = f"{event.stage} ({event.strategy})" if event.strategy else event.stage
        table.add_row(str(at), event.layer, cell(stage), event.reason, tokens, cell(items))
    return table


def _tools(one: Manifest, everything: bool) -> Iterator[RenderableType]:
    tools = one.tools
    if not tools.sent and not tools.left_out:
        return
    shown = tools.sent if everything else tools.sent[:_FEW]
    left = len(tools.sent) - len(shown)
    names = ", ".join(shown) + (f" and {number(left)} more" if left else "")
    yield cell(f"{number(len(tools.sent))} declared (scope {tools.mode}): {names}")
    if tools.allowed is not None:
        yield cell(f"calls restricted to: {', '.join(tools.allowed) or 'none'}")
    if tools.kept:
        yield cell(", ".join(f"{name} ({_why(tools, name)})" for name in tools.kept))
    out = list(tools.left_out) if everything else list(tools.left_out)[:_FEW]
    for name in out:
        yield cell(f"left out: {name} ({_why(tools, name)})", "yellow")
    if len(out) < len(tools.left_out):
        yield cell(f"left out: {number(len(tools.left_out) - len(out))} more", "yellow")


def _why(tools: ToolScope, name: str) -> str:
    """Why a declaration was sent or left out, with its score where it has one."""
    reason = tools.kept.get(name) or tools.left_out[name]
    return f"{reason}, score {tools.scores[name]:.3f}" if name in tools.scores else reason
