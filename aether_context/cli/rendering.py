"""How commands print packs: one in full, its request, and two side by side."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from operator import itemgetter

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from aether_context.canonical import JSON, short
from aether_context.cli.terminal import Screen, bar, cell, grid, increase, moment, percent, plain
from aether_context.pack import LAYERS, CandidateOutcome
from aether_context.store import Manifest
from aether_context.views import Comparison, Difference, Fate, PackView, Piece, TextChange
from aether_context.views.difference import common_characters

_FEW = 12
"""Rows and tools that are shown without --all."""
_LONG = 140
"""Characters of a line that are shown without --all."""


def print_pack(view: PackView, *, everything: bool) -> None:
    """Prints a pack in sections with titles; empty ones are left out."""
    out, manifest = Screen(), view.manifest
    superseded = manifest.superseded.items()
    sections: dict[str, Sequence[RenderableType]] = {
        f"PACK {plain(manifest.pack_id)}": [_facts(manifest)],
        "LAYERS": [_layers(manifest, 32 if out.width >= 96 else 16)],
        "SIGNALS": [_signals(manifest)],
        "CACHE": [_cache(manifest, view.outcome)],
        "CANDIDATES": list(_candidates(view, everything, out.width - 2)),
        "TRUNCATION EVENTS": [_events(manifest, everything)] if manifest.truncation_events else ["none"],
        "TOOLS": list(_tools(manifest, everything)),
        "EVIDENCE NEEDED": [cell(f"- {item}") for item in manifest.evidence_needed],
        "SUPERSEDED EVIDENCE": [cell(f"{uri} by {later}", "yellow") for uri, later in superseded],
        "DEGRADATIONS": [cell(f"- {note}", "yellow") for note in manifest.degradations],
    }
    _print_sections(out, sections)


def _print_sections(out: Screen, sections: Mapping[str, Sequence[RenderableType]]) -> None:
    for title, parts in sections.items():
        if parts:
            out.print_heading(title)
            for part in parts:
                out.print(Padding(part, (0, 0, 0, 2), expand=False))
            out.print()


def _facts(manifest: Manifest) -> RenderableType:
    plan_fields = (("task", manifest.task_id), ("step", manifest.step_id), ("role", manifest.role))
    plan = manifest.validity + (f": {manifest.invalid_reason}" if manifest.invalid_reason else "")
    branch = f" · branch {manifest.branch}" if manifest.branch else ""
    over = f", {manifest.over_window:,} over it" if manifest.over_window else ""
    other_encoders = (("memories", manifest.memory_encoder), ("tools", manifest.tools.encoder))
    encoders = [("candidates", manifest.encoder), *(pair for pair in other_encoders if pair[1])]
    mark = f" ({manifest.window_mark})" if manifest.window_mark else ""
    facts = {
        "session": f"{manifest.app} · {manifest.user} · {manifest.session}",
        "call": f"agent {manifest.agent}{branch} · invocation {manifest.invocation} · call {manifest.call}",
        "time": f"{moment(manifest.last_event_time)} UTC",
        "plan": " · ".join([plan, *(f"{label} {value}" for label, value in plan_fields if value)]),
        "model": f"{manifest.model} · window {manifest.window:,}{mark}",
        "request": f"{manifest.request_tokens:,} tokens ({manifest.request_tokens_method}, by {manifest.counter})"
        f" · {percent(manifest.request_tokens, manifest.window)} of the window{over}",
        "meaning": " · ".join(f"{compared} by {encoder}" for compared, encoder in encoders),
        "policy": f"{manifest.profile} · {short(manifest.policy)}",
        "epoch": f"{manifest.epoch.number}, "
        + (f"begun here: {manifest.epoch_reason}" if manifest.epoch_reason else "going on"),
        "record": ("texts recorded" if manifest.texts else "hashes only")
        + (f" · extends {manifest.extends}" if manifest.extends else " · stands alone"),
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
        figures = [f"{tokens.floor:,}", f"{tokens.nominal:,}", increase(0, tokens.lent), f"{tokens.final:,}"]
        table.add_row(layer, share, *figures, Text(f"{tokens.used:,}", style="red" if over else ""))
    final, used = (sum(getattr(tokens, name) for _, tokens in layers) for name in ("final", "used"))
    total_bar = bar(used, final, manifest.window, cells)
    table.add_row("all", total_bar, "", "", "", f"{final:,}", f"{used:,}", style="dim")
    return table


def _signals(manifest: Manifest) -> RenderableType:
    table = grid("signal", "value")
    for name, value in manifest.signals.items():
        shown_value = f"{value:.3g}" if isinstance(value, float) else value
        table.add_row(cell(name), cell(shown_value) if value is not None else Text("neutral ½ (unknown)", style="dim"))
    shares = " · ".join(f"{layer} {weight:.0%}" for layer, weight in manifest.weights.items())
    table.add_row("shares that they led to", cell(shares))
    return table


def _cache(manifest: Manifest, outcome: JSON) -> RenderableType:
    """What a prefix cache could serve, and what the provider reported."""
    shared, broken = manifest.prefix.shared_tokens, manifest.prefix.broken_by
    if shared is None:
        why = "this is the first request" if broken is None else "the request before is not known"
        servable = Text(f"unknown: {why}")
    else:
        total = f"{manifest.counted_tokens or manifest.request_tokens:,}"
        prefix_end = f"broken by {broken}" if broken else "nothing broke the prefix"
        text = f"{shared:,} of {total} counted tokens in common with the request before; {prefix_end}"
        servable = Text(text, style="yellow" if broken else "")
    table = grid("", "")
    table.add_row("could be served", servable)
    if not isinstance(outcome, dict):
        table.add_row("provider served", "unknown: no outcome is recorded")
        return table
    cached_tokens, input_tokens, output_tokens = (
        value if isinstance(value := outcome.get(name), int) else None
        for name in ("cached_tokens", "input_tokens", "output_tokens")
    )
    if cached_tokens is None:
        table.add_row("provider served", "unknown: the provider said nothing")
    else:
        table.add_row(
            "provider served",
            f"{cached_tokens:,}" + (f" of {input_tokens:,} input tokens" if input_tokens is not None else ""),
        )
    if input_tokens is not None:
        table.add_row("estimate", f"{manifest.request_tokens:,} for {input_tokens:,} input tokens reported")
    finish = outcome.get("error_code") or outcome.get("finish_reason")
    if finish is not None:
        table.add_row(
            "answer", cell(f"{'unknown' if output_tokens is None else format(output_tokens, ',')} tokens · {finish}")
        )
    acceptance = outcome.get("acceptance")
    items, fabricated = (
        values if isinstance(acceptance, dict) and isinstance(values := acceptance.get(name), list) else []
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


def _candidates(view: PackView, everything: bool, width: int) -> Iterator[RenderableType]:
    """A line for each candidate, with further details and its text below.

    In a layer with many candidates, those that were kept whole are summed up in one line.
    """
    rows, texts = view.rows.values(), view.texts
    states = Counter(row.state for row in rows)
    counts = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    yield cell(f"{len(rows):,} in all: {counts}" if rows else "none")
    titles = [Text(title, style="dim") for title in ("layer", "id", "source", "tokens", "state", "reason")]
    entries: list[tuple[CandidateOutcome, list[Text]] | Text] = []
    table = [titles]
    for layer in LAYERS:
        members = [row for row in rows if row.layer == layer]
        kept = [row for row in members if row.state == "kept" and row.sent_tokens is None]
        collapsed = len(members) > _FEW and len(kept) > 1 and not everything
        for row in members:
            if collapsed and row.state == "kept" and row.sent_tokens is None:
                continue
            colour = {"kept": "green", "dropped": "red"}.get(row.state, "yellow")
            sent = f" → {row.sent_tokens:,}" if row.sent_tokens is not None else ""
            names = [Text(row.layer), cell(row.id, limit=40), cell(row.source, limit=24)]
            table.append(
                [*names, Text(f"{row.tokens:,}" + sent), Text(row.state, style=colour), Text(row.reason or "")]
            )
            entries.append((row, table[-1]))
        if collapsed:
            tokens = f"{sum(row.tokens for row in kept):,}"
            note = f"{layer}: … and {len(kept):,} kept whole (--all shows them), {tokens} tokens"
            entries.append(Text(note, style="dim"))
    widths = [max(text.cell_len for text in column) for column in zip(*table, strict=True)]
    if len(table) > 1:
        yield _aligned(titles, widths)
    for entry in entries:
        if isinstance(entry, Text):
            yield entry
            continue
        row, cells = entry
        line = _aligned(cells, widths)
        scores = " ".join(f"{name} {value:.3g}" for name, value in sorted(row.scores.items()))
        covers = f"covers {', '.join(row.covers)}" if row.covers else ""
        details = plain(" · ".join(filter(None, (scores, moment(row.time), row.uri, covers))))
        if details and len(details) <= width - line.cell_len - 2:
            line.append(f"  {details}")
            details = ""
        yield line
        yield from (cell(f"    {piece}", "dim") for piece in textwrap.wrap(details, width - 4, break_on_hyphens=False))
        if row.id in texts:
            yield cell(f"    “{plain(texts[row.id])}”", limit=None if everything else width)


def _aligned(cells: Sequence[Text], widths: Sequence[int]) -> Text:
    """Cells in columns, the fourth one of numbers."""
    line = Text()
    for index, (text, width) in enumerate(zip(cells, widths, strict=True)):
        gap = " " * (width - text.cell_len)
        line = Text.assemble(line, *((gap, text) if index == 3 else (text, gap)), "  ")
    line.rstrip()
    return line


def _events(manifest: Manifest, everything: bool) -> RenderableType:
    table = grid(">#", "layer", "stage", "reason", ">tokens", "items")
    for number, event in enumerate(manifest.truncation_events, start=1):
        items = _listed(event.item_ids, None if everything else 3)
        tokens = f"{event.tokens_before:,} → {event.tokens_after:,}"
        stage = f"{event.stage} ({event.strategy})" if event.strategy else event.stage
        table.add_row(str(number), event.layer, cell(stage), event.reason, tokens, cell(items))
    return table


def _tools(manifest: Manifest, everything: bool) -> Iterator[RenderableType]:
    tools, limit = manifest.tools, None if everything else _FEW
    if not tools.sent and not tools.left_out:
        return
    reasons = {
        name: f"{reason}, score {tools.scores[name]:.3f}" if name in tools.scores else reason
        for name, reason in {**tools.left_out, **tools.kept}.items()
    }
    yield cell(f"{len(tools.sent):,} declared (scope {tools.mode}): {_listed(tools.sent, limit)}")
    if tools.allowed is not None:
        yield cell(f"calls restricted to: {', '.join(tools.allowed) or 'none'}")
    if tools.kept:
        yield cell(", ".join(f"{name} ({reasons[name]})" for name in tools.kept))
    out = list(tools.left_out)[:limit]
    for name in out:
        yield cell(f"left out: {name} ({reasons[name]})", "yellow")
    if len(out) < len(tools.left_out):
        yield cell(f"left out: {len(tools.left_out) - len(out):,} more", "yellow")


def _listed(names: Sequence[str], limit: int | None) -> str:
    """The first names, and the number of further ones."""
    first_names = names[:limit]
    return ", ".join(first_names) + (
        f" and {len(names) - len(first_names):,} more" if len(names) > len(first_names) else ""
    )


# The request.


def print_request(view: PackView, *, everything: bool) -> None:
    """Prints a request; long texts are shortened unless ``everything`` is set."""
    out, allowed = Screen(), view.manifest.tools.allowed
    tools = [piece for piece in view.request or () if piece.part == "tool"]
    out.print_heading(f"REQUEST of {view.manifest.pack_id}")
    shortened = []
    for piece in view.request or ():
        if piece.part != "tool":
            out.print(cell(_title(piece), "cyan"))
            shortened.append(_print_text(out, piece.text, everything))
        if piece.part == "system":
            out.print(Text(f"tools · {len(tools)}", style="cyan"))
            names = ", ".join(tool.name or "one that is no function" for tool in tools)
            for text in (tool.wire for tool in tools) if everything else (names,):
                shortened.append(_print_text(out, text, everything))
            if allowed is not None:
                _print_text(out, f"calls restricted to: {', '.join(allowed)}", everything)
    if any(shortened):
        out.print(Text("long texts are shortened: --all shows them whole", style="dim"))
    out.print()


def _title(piece: Piece) -> str:
    label = {"system": "system", "tool": f"tool {piece.name}", "content": f"[{piece.at}] {piece.name}"}[piece.part]
    return f"{label} · {piece.tokens:,} tokens" + (f" · {piece.outcome}" if piece.outcome else "")


def _print_text(out: Screen, text: str, everything: bool) -> bool:
    return _print_lines(out, [("", line, "") for line in text.split("\n")] if text else [], everything)


def _print_lines(out: Screen, lines: Sequence[tuple[str, str, str]], everything: bool) -> bool:
    """Prints lines, given as mark, text and style. They are indented, so that none can be taken for a heading.

    Of many lines only the first and the last four are printed, of long lines the beginning. Returns whether anything
    was left out.
    """
    selected = list(lines)
    if len(lines) > 10 and not everything:
        selected = [*lines[:4], ("", f"… {len(lines) - 8:,} lines …", "dim"), *lines[-4:]]
    for mark, line, style in selected:
        text = Text(f"    {mark}{plain(line, None if everything else _LONG)}", style=style)
        if everything:
            out.print(text, soft_wrap=True)
        else:
            out.print(text, no_wrap=True, overflow="ellipsis", crop=True)
    return not everything and (len(selected) < len(lines) or any(len(line) > _LONG for _, line, _ in lines))


# Two packs side by side.


def print_difference(difference: Difference, *, everything: bool) -> None:
    """Prints what differs: the packs' facts, layers, the end of the common prefix, candidates and texts."""
    out = Screen()
    sections: dict[str, Sequence[RenderableType]] = {
        "TWO PACKS": [_who(difference)],
        "LAYERS": [_layer_changes(difference)],
        "PREFIX": list(_prefix(difference)),
    }
    if difference.same:
        sections["REQUEST"] = [Text("both send the same request", style="green")]
    sections["CANDIDATES"] = list(_candidate_changes(difference, everything))
    _print_sections(out, sections)
    changed = [text for text in difference.texts if not text.same]
    if not difference.texts and not difference.same:
        out.print_line("texts cannot be compared: those of one pack are not known", "yellow")
    if changed:
        out.print_heading("TEXTS")
        same_count = len(difference.texts) - len(changed)
        out.print(
            Text(f"  {same_count:,} of {len(difference.texts):,} pieces are in both requests as they are", style="dim")
        )
        shortened = [_print_change(out, text, everything) for text in changed]
        if any(shortened):
            out.print(Text("long texts are shortened: --all shows them whole", style="dim"))


def _who(difference: Difference) -> RenderableType:
    table = grid("", "before", "after")
    sides = [view.manifest for view in (difference.before, difference.after)]
    facts = {
        "pack": [manifest.pack_id for manifest in sides],
        "session": [" · ".join(manifest.session_key) for manifest in sides],
        "call": [f"{manifest.agent} · {manifest.invocation} · {manifest.call}" for manifest in sides],
        "policy": [f"{manifest.profile} · {short(manifest.policy)}" for manifest in sides],
        "model": [f"{manifest.model} · window {manifest.window:,}" for manifest in sides],
        "request": [f"{manifest.request_tokens:,} tokens" for manifest in sides],
    }
    for label, (before, after) in facts.items():
        style = "" if before == after and label != "pack" else "yellow"
        table.add_row(Text(label, style="dim"), cell(before), cell(after, style))
    return table


def _layer_changes(difference: Difference) -> RenderableType:
    table = grid("layer", ">nominal", ">lent", ">final", ">used", ">difference")
    for layer in difference.layers:
        sides = [{} if side is None else asdict(side) for side in (layer.before, layer.after)]
        figures = [_arrow(*(side.get(name, 0) for side in sides)) for name in ("nominal", "lent", "final", "used")]
        table.add_row(layer.layer, *figures, increase(*(side.get("used", 0) for side in sides)))
    tokens = [view.manifest.request_tokens for view in (difference.before, difference.after)]
    table.add_row("request", "", "", "", _arrow(*tokens), increase(*tokens), style="bold")
    return table


def _arrow(before: int | None, after: int | None) -> str:
    before_text, after_text = ("unknown" if number is None else f"{number:,}" for number in (before, after))
    return after_text if before_text == after_text else f"{before_text} → {after_text}"


def _prefix(difference: Difference) -> Iterator[RenderableType]:
    parting, tokens = difference.parting, difference.shared_tokens
    if tokens is None:
        yield Text("unknown: the texts of one pack are not known", style="yellow")
        return
    yield f"{tokens:,} counted tokens in common from the beginning"
    if parting is None:
        yield "one request begins with the whole other one" if not difference.same else "nothing differs"
        return
    places = {"system": "the system instruction", "tool": f"the declarations, at {parting.at} ({parting.name})"}
    place = places.get(parting.part, f"content {parting.at} ({parting.name})")
    reason = f": {parting.reason}" if parting.reason else ""
    yield cell(f"they part in {place}, after {parting.character:,} of its characters{reason}", "yellow")
    if parting.common:
        yield cell(f"  {parting.common!r}", "dim")
    for mark, text, style in (("-", parting.before, "red"), ("+", parting.after, "green")):
        yield cell(f"{mark} {text!r}" if text else f"{mark} it ends there", style)


def _candidate_changes(difference: Difference, everything: bool) -> Iterator[RenderableType]:
    if not difference.candidates:
        yield "none differs"
        return
    table = grid("", "layer", "id", "source", ">tokens", "before", "after")
    colours = {"left": "red", "entered": "green", "resized": "yellow", "fate": "yellow"}
    for (layer, change), group in groupby(
        difference.candidates, key=lambda candidate: (candidate.layer, candidate.change)
    ):
        changes = list(group)
        for candidate in changes if everything else changes[:_FEW]:
            names = cell(candidate.id, limit=40), cell(candidate.source, limit=24)
            tokens = _arrow(candidate.before.tokens, candidate.after.tokens)
            fates = cell(_fate(candidate.before)), cell(_fate(candidate.after))
            table.add_row(Text(change, style=colours[change]), layer, *names, tokens, *fates)
        if len(changes) > _FEW and not everything:
            table.add_row(
                Text(f"… {len(changes) - _FEW:,}", style="dim"), layer, cell("more (--all shows them)", "dim")
            )
    yield table


def _fate(fate: Fate) -> str:
    scores = " ".join(f"{name} {value:.3g}" for name, value in sorted(fate.scores.items()))
    return ", ".join(filter(None, (fate.state, fate.reason, scores)))


def _print_change(out: Screen, text: TextChange, everything: bool) -> bool:
    """Prints the lines of a piece that differ; returns whether any were shortened."""
    if text.before is None or text.after is None:
        mark, piece = ("-", text.before) if text.after is None else ("+", text.after)
        assert piece is not None
        out.print(cell(f"  {mark} {_title(piece)}", "red" if mark == "-" else "green"))
    else:
        titles = dict.fromkeys(_title(piece) for piece in (text.before, text.after))
        out.print(cell(f"  ~ {' → '.join(titles)}", "yellow"))
    return _print_lines(out, list(_changed_lines(text, everything)), everything)


def _changed_lines(text: TextChange, everything: bool) -> Iterator[tuple[str, str, str]]:
    """Marks, lines and styles. Without ``everything`` a long line begins shortly before its first difference."""
    runs = [(kind, [line for _, line in group]) for kind, group in groupby(text.lines, key=itemgetter(0))]
    for index, (kind, lines) in enumerate(runs):
        if kind == " ":
            yield from ((kind, line, "dim") for line in lines if everything)
            continue
        counterpart = next(
            (
                other_lines
                for other_kind, other_lines in (runs[index - 1 : index] + runs[index + 1 : index + 2])
                if other_kind != " "
            ),
            [],
        )
        for number, line in enumerate(lines):
            counterpart_line = counterpart[number] if number < len(counterpart) else ""
            start = (
                common_characters(line, counterpart_line) - _LONG // 4 if len(line) > _LONG and not everything else 0
            )
            yield f"{kind} ", f"…{line[start:]}" if start > 0 else line, "red" if kind == "-" else "green"


def difference_json(difference: Difference) -> JSON:
    """The whole difference as JSON, with all pieces of both requests."""
    names = ("pack_id", "app", "user", "session", "agent", "profile", "policy", "model", "window", "request_tokens")
    sides = {"before": difference.before, "after": difference.after}
    return {
        "same": difference.same,
        **{side: {name: getattr(view.manifest, name) for name in (*names, "checksum")} for side, view in sides.items()},
        "layers": [asdict(layer) for layer in difference.layers],
        "shared_tokens": difference.shared_tokens,
        "parting": asdict(difference.parting) if difference.parting is not None else None,
        "candidates": [asdict(change) for change in difference.candidates],
        "texts": [asdict(text) | {"same": text.same} for text in difference.texts],
    }


# With packs and without.


def print_comparison(compared: Comparison) -> None:
    """Prints the input of calls with their packs, and what it would have been without."""
    out, sides = Screen(), (compared.packed, compared.unpacked)
    costs = ["unknown" if side.cost_usd is None else f"${side.cost_usd:,.4f}" for side in sides]
    table = grid("", ">with packs", ">without")
    table.add_row("  model calls", *(f"{side.calls:,}" for side in sides))
    table.add_row("  input tokens", *(f"{side.tokens:,}" for side in sides))
    table.add_row("  largest request", *(f"{side.largest:,}" for side in sides))
    table.add_row("  larger than the window", *(f"{side.over_window:,} calls" for side in sides))
    table.add_row("  same beginning as the call before", *(percent(side.shared, side.tokens) for side in sides))
    table.add_row("  cost of the input", *costs)
    out.print(table)
    notes = [
        "Without packs the same calls read the whole history, every declaration and whole results.",
        "The cost is by list price, and as if a cache had served every shared beginning.",
        "A model with this window would have refused the calls that are larger than it.",
    ]
    for note in notes:
        out.print(cell(f"  {note}", "dim"))
