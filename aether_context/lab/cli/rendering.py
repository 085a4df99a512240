"""Packs as commands print them: one in full, its request, and two side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import groupby

from aether_context.canonical import JSON, short
from aether_context.lab.cli.terminal import aligned, head, increase, moment, one_line, percent, print_table, say
from aether_context.lab.reading import Comparison, Difference, Fate, PackView, Piece, TextChange
from aether_context.lab.reading.sessions import reads_told
from aether_context.pack import LAYERS, LayerTokens, Row
from aether_context.store import Manifest

_FEW = 12
"""Rows and tools that are shown without --all."""
_LONG = 140
"""Characters of a line that are shown without --all."""
_BAR = 32

Lines = Sequence[str]


def print_pack(
    view: PackView, *, title: str = "", reads: Mapping[str, Sequence[int]] | None = None, everything: bool
) -> None:
    """Prints a pack in sections with titles; ``reads`` says before which calls addresses were read back, if known."""
    manifest = view.manifest
    if title:
        head(f"call {manifest.number} of session {manifest.session}: {title}")
    say(view.in_short)
    say()
    sections = {
        f"PACK {manifest.pack_id}": _facts(view),
        "LAYERS": _layers(manifest),
        "SIGNALS": _signals(manifest),
        "CACHE": _cache(manifest, view.outcome),
        "CANDIDATES": list(_candidates(view, reads, everything)),
        "TRUNCATION EVENTS": _events(manifest, everything),
        "TOOLS": list(_tools(manifest, everything)),
        "EVIDENCE NEEDED": [f"- {item}" for item in manifest.evidence_needed],
        "SUPERSEDED EVIDENCE": [f"{uri} by {later}" for uri, later in manifest.superseded.items()],
        "DEGRADATIONS": [f"- {note}" for note in manifest.degradations],
    }
    _print_sections(sections)


def _print_sections(sections: Mapping[str, Lines]) -> None:
    for title, lines in sections.items():
        if lines:
            head(title)
            for line in lines:
                say(f"  {line}")
            say()


def _facts(view: PackView) -> Lines:
    manifest, settings = view.manifest, view.settings
    plan_fields = (("task", manifest.task_id), ("step", manifest.step_id), ("role", manifest.role))
    plan = manifest.validity + (f": {manifest.invalid_reason}" if manifest.invalid_reason else "")
    branch = f" · branch {manifest.branch}" if manifest.branch else ""
    hidden = f" · {manifest.hidden_turns:,} messages of other agents left out" if manifest.hidden_turns else ""
    over = f", {manifest.over_window:,} over it" if manifest.over_window else ""
    encoders = [("candidates", manifest.embedder)]
    encoders += [("memories", manifest.memory_embedder)] if manifest.memory_embedder else []
    mark = f" ({manifest.window_mark})" if manifest.window_mark else ""
    listed_settings = " · ".join(f"{name} {value}" for name, value in (settings or {}).items())
    facts = {
        "session": f"{manifest.app} · {manifest.user} · {manifest.session}",
        "call": f"agent {manifest.agent}{branch} · invocation {manifest.invocation} · call {manifest.call}{hidden}",
        "time": f"{moment(manifest.last_event_time)} UTC",
        "plan": " · ".join([plan, *(f"{label} {value}" for label, value in plan_fields if value)]),
        "model": f"{manifest.model} · window {manifest.window:,}{mark}",
        "request": f"{manifest.request_tokens:,} tokens expected ({manifest.request_tokens_method}) · "
        f"{percent(manifest.request_tokens, manifest.window)} of the window{over} · counted by {manifest.counter}",
        "meaning": " · ".join(f"{compared} by {encoder}" for compared, encoder in encoders),
        "policy": f"{manifest.profile} · {short(manifest.policy)} · "
        + ("texts recorded" if manifest.texts else "hashes only recorded"),
        "settings": "unknown" if settings is None else one_line(listed_settings),
        "epoch": f"{manifest.epoch_number}, "
        + (f"begun here: {manifest.epoch_reason}" if manifest.epoch_reason else "begun before"),
        "checksum": manifest.checksum,
    }
    return aligned(("", ""), facts.items())


def _layers(manifest: Manifest) -> Lines:
    layers = {layer: manifest.allocation[layer] for layer in LAYERS if layer in manifest.allocation}
    rows: list[tuple[object, ...]] = []
    for layer, share in layers.items():
        sizes = (share.floor, share.nominal, increase(0, share.lent), share.final, manifest.expected(share.used))
        rows.append((layer, *sizes, _bar(share, manifest.window)))
    rows.append(("all", "", "", "", sum(share.final for share in layers.values()), manifest.request_tokens, ""))
    return aligned(("layer", ">floor", ">nominal", ">lent", ">final", ">expected", "expected of the window"), rows)


def _bar(tokens: LayerTokens, window: int) -> str:
    """The used part of the layer's tokens, both as shares of the window."""
    filled_cells, total = (min(_BAR, -(-_BAR * max(0, part) // max(1, window))) for part in (tokens.used, tokens.final))
    return "#" * filled_cells + "." * (total - filled_cells)


def _signals(manifest: Manifest) -> Lines:
    rows = [
        (name, "neutral ½ (unknown)" if value is None else f"{value:.3g}" if isinstance(value, float) else value)
        for name, value in manifest.signals.items()
    ]
    shares = " · ".join(f"{layer} {weight:.0%}" for layer, weight in manifest.weights.items())
    return aligned(("", ""), [*rows, ("shares that they led to", shares)])


def _cache(manifest: Manifest, outcome: JSON) -> Lines:
    """Describes what a prefix cache could serve, what the provider reported, and how the answer ended."""
    shared, broken = manifest.prefix.shared_tokens, manifest.prefix.broken_by
    servable = f"unknown: {'the request before is not known' if broken else 'this is the first request'}"
    if shared is not None:
        common = (
            f"{manifest.expected(shared):,} of {manifest.request_tokens:,} tokens in common with the request before"
        )
        servable = f"{common}; {f'broken by {broken}' if broken else 'nothing broke the prefix'}"
    facts = [("could be served", servable)]
    if not isinstance(outcome, dict):
        return aligned(("", ""), [*facts, ("provider served", "unknown: no outcome is recorded")])
    numbers = {name: value for name, value in outcome.items() if isinstance(value, int)}
    cached, read_tokens, answered = map(numbers.get, ("cached_tokens", "input_tokens", "output_tokens"))
    of_input = "" if read_tokens is None else f" of {read_tokens:,} input tokens"
    served_note = "unknown: the provider said nothing" if cached is None else f"{cached:,}{of_input}"
    facts.append(("provider served", served_note))
    if read_tokens is not None:
        facts.append(("reported", f"{read_tokens:,} input tokens, for {manifest.request_tokens:,} expected"))
    finish = outcome.get("error_code") or outcome.get("finish_reason")
    if finish is not None:
        facts.append(("answer", f"{'unknown' if answered is None else format(answered, ',')} tokens · {finish}"))
    acceptance = outcome.get("acceptance")
    items, fabricated = (
        values if isinstance(acceptance, dict) and isinstance(values := acceptance.get(name), list) else []
        for name in ("items", "fabricated")
    )
    for item in (item for item in items if isinstance(item, dict)):
        passed = item.get("passed")
        verdict = "met" if passed is True else "not met" if passed is False else "not looked at"
        reason = f": {item.get('reason')}" if item.get("reason") else ""
        facts.append(("acceptance", f"{item.get('id')} {verdict} (by {item.get('by')}){reason}"))
    facts += [("acceptance", f"{uri} was never in the request") for uri in fabricated]
    return aligned(("", ""), facts)


def _candidates(view: PackView, reads: Mapping[str, Sequence[int]] | None, everything: bool) -> Iterator[str]:
    """A line for each candidate, with its text below.

    In a layer with many candidates, those that were kept whole are summed up in one line.
    """
    shown_rows, notes = list[Row](), dict[int, str]()
    for layer in LAYERS:
        members = [row for row in view.all_rows if row.layer == layer]
        whole_rows = [row for row in members if row.form == "whole" and row.sent_tokens is None]
        if len(members) > _FEW and len(whole_rows) > 1 and not everything:
            members = [row for row in members if row not in whole_rows]
            tokens = f"{view.manifest.expected(sum(row.tokens for row in whole_rows)):,}"
            more = f"… and {len(whole_rows):,} kept whole (--all shows them), {tokens} tokens"
            notes[len(shown_rows) + len(members)] = f"{layer}: {more}"
        shown_rows += members
    rows = (_candidate(row, view, reads) for row in shown_rows)
    lines = aligned(("layer", "id", "source", ">tokens", "form", "reason", "more"), rows)
    yield from lines[:1] if shown_rows else ()
    for number, row in enumerate(shown_rows):
        if note := notes.pop(number, ""):
            yield note
        yield lines[number + 1]
        if row.id in view.texts:
            yield f"    “{one_line(view.texts[row.id], None if everything else _LONG)}”"
    yield from notes.values()
    if not everything and any(len(view.texts.get(row.id, "")) > _LONG for row in shown_rows):
        yield "long texts are shortened: --all shows them whole"


def _candidate(row: Row, view: PackView, reads: Mapping[str, Sequence[int]] | None) -> tuple[str, ...]:
    scores = " ".join(f"{name} {value:.3g}" for name, value in sorted(row.scores.items()))
    covers = f"covers {', '.join(row.covers)}" if row.covers else ""
    read_note = f", {reads_told(reads.get(row.uri, ()))}" if reads is not None and row.form == "offloaded" else ""
    details = " · ".join(filter(None, (scores, moment(row.time), row.uri + read_note, covers)))
    sizes = (row.tokens,) if row.sent_tokens is None else (row.tokens, row.sent_tokens)
    tokens = " → ".join(f"{view.manifest.expected(size):,}" for size in sizes)
    return row.layer, row.id, view.tools.get(row.id, row.source), tokens, row.form, row.reason or "", details


def _events(manifest: Manifest, everything: bool) -> Lines:
    rows = []
    for event in manifest.truncation_events:
        tokens = f"{manifest.expected(event.tokens_before):,} → {manifest.expected(event.tokens_after):,}"
        stage = f"{event.stage} ({event.strategy})" if event.strategy else event.stage
        rows.append((event.layer, stage, event.reason, tokens, _listed(event.item_ids, None if everything else 3)))
    return aligned(("layer", "stage", "reason", ">tokens", "items"), rows) if rows else ["none"]


def _tools(manifest: Manifest, everything: bool) -> Iterator[str]:
    tools, limit = manifest.tools, None if everything else _FEW
    if not tools.sent and not tools.left_out:
        return
    yield f"{len(tools.sent):,} declared (scope {tools.mode}): {_listed(tools.sent, limit)}"
    if tools.allowed is not None:
        yield f"calls restricted to: {', '.join(tools.allowed) or 'none'}"
    for name, reason in list(tools.left_out.items())[:limit]:
        yield f"left out: {name} ({reason})"
    if limit is not None and len(tools.left_out) > limit:
        yield f"left out: {len(tools.left_out) - limit:,} more"


def _listed(names: Sequence[str], limit: int | None) -> str:
    """The first names, and the number of further ones."""
    more = len(names) - len(names[:limit])
    return ", ".join(names[:limit]) + (f" and {more:,} more" if more else "")


# The request.


def print_request(view: PackView, *, everything: bool) -> None:
    """Prints a request; long texts are shortened unless ``everything`` is set."""
    allowed = view.manifest.tools.allowed
    tools = [request_piece for request_piece in view.request or () if request_piece.part == "tool"]
    head(f"REQUEST of {view.manifest.pack_id}")
    shortened = []
    for request_piece in view.request or ():
        if request_piece.part != "tool":
            say(_title(request_piece, view.manifest), "cyan")
            shortened.append(_print_text(request_piece.text, everything))
        if request_piece.part == "system":
            say(f"tools · {len(tools)}", "cyan")
            names = ", ".join(tool.name or "one that is no function" for tool in tools)
            texts = [tool.wire for tool in tools] if everything else [names]
            shortened += [_print_text(text, everything) for text in texts]
            if allowed is not None:
                say(f"    calls restricted to: {', '.join(allowed)}")
    if any(shortened):
        say("long texts are shortened: --all shows them whole")
    say()


def _title(part: Piece, manifest: Manifest) -> str:
    label = {"system": "system", "tool": f"tool {part.name}", "content": f"[{part.at}] {part.name}"}[part.part]
    return f"{label} · {manifest.expected(part.tokens):,} tokens" + (f" · {part.form}" if part.form else "")


def _print_text(text: str, everything: bool) -> bool:
    return _print_lines([("", line) for line in text.split("\n")] if text else [], everything)


_COLOURS = {"-": "red", "+": "green", "~": "yellow"}


def _print_lines(lines: Sequence[tuple[str, str]], everything: bool) -> bool:
    """Prints lines, given as mark and text. They are indented, so that none can be taken for a heading.

    Of many lines only the first and the last four are printed, of long lines the beginning. Returns whether anything
    was left out.
    """
    selected = list(lines)
    if len(lines) > 10 and not everything:
        selected = [*lines[:4], ("", f"… {len(lines) - 8:,} lines …"), *lines[-4:]]
    for mark, line in selected:
        say(f"    {mark}{one_line(line, None if everything else _LONG)}", _COLOURS.get(mark[:1]))
    return not everything and (len(selected) < len(lines) or any(len(line) > _LONG for _, line in lines))


# Two packs side by side.


def print_difference(difference: Difference, *, everything: bool) -> None:
    """Prints what differs: the packs' facts, layers, the end of the common prefix, candidates and texts."""
    sections = {
        "TWO PACKS": _who(difference),
        "LAYERS": _layer_changes(difference),
        "PREFIX": list(_prefix(difference)),
        "REQUEST": ["both send the same request"] if difference.same else [],
        "CANDIDATES": _candidate_changes(difference, everything),
    }
    _print_sections(sections)
    changed_texts = [text for text in difference.texts if not text.same]
    if not difference.texts and not difference.same:
        say("texts cannot be compared: those of one pack are not known", "yellow")
    if changed_texts:
        head("TEXTS")
        same_count = len(difference.texts) - len(changed_texts)
        say(f"  {same_count:,} of {len(difference.texts):,} pieces are in both requests as they are")
        shortened = [_print_change(text, difference, everything) for text in changed_texts]
        if any(shortened):
            say("long texts are shortened: --all shows them whole")


def _who(difference: Difference) -> Lines:
    rows = []
    for manifest in (difference.before.manifest, difference.after.manifest):
        call = " · ".join((*manifest.session_key, manifest.agent, manifest.invocation, str(manifest.call)))
        policy, model = f"{manifest.profile} {short(manifest.policy)}", f"{manifest.model} {manifest.window:,}"
        rows.append((manifest.pack_id, call, policy, model))
    return aligned(("pack", "call", "policy", "model, window"), rows)


def _layer_changes(difference: Difference) -> Lines:
    rows: list[tuple[object, ...]] = []
    manifests = (difference.before.manifest, difference.after.manifest)
    for change in difference.layers:
        sides = (change.before, change.after)
        final = [side.final if side is not None else 0 for side in sides]
        counted = [side.used if side is not None else 0 for side in sides]
        used = [manifest.expected(tokens) for manifest, tokens in zip(manifests, counted, strict=True)]
        rows.append((change.layer, _arrow(*final), _arrow(*used), increase(*used)))
    tokens = [manifest.request_tokens for manifest in manifests]
    rows.append(("all", "", _arrow(*tokens), increase(*tokens)))
    return aligned(("layer", ">final", ">used", ">difference"), rows)


def _arrow(old_tokens: int | None, new_tokens: int | None) -> str:
    before_text, after_text = ("unknown" if number is None else f"{number:,}" for number in (old_tokens, new_tokens))
    return after_text if before_text == after_text else f"{before_text} → {after_text}"


def _prefix(difference: Difference) -> Iterator[str]:
    parting, tokens = difference.parting, difference.shared_tokens
    if tokens is None:
        yield "unknown: the texts of one pack are not known"
        return
    yield f"{difference.after.manifest.expected(tokens):,} tokens in common from the beginning"
    if parting is None:
        yield "one request begins with the whole other one" if not difference.same else "nothing differs"
        return
    places = {"system": "the system instruction", "tool": f"the declarations, at {parting.at} ({parting.name})"}
    part_name = places.get(parting.part, f"content {parting.at} ({parting.name})")
    reason = f": {parting.reason}" if parting.reason else ""
    yield f"they part in {part_name}, after {parting.character:,} of its characters{reason}"
    if parting.common:
        yield f"  {parting.common!r}"
    for mark, text in (("-", parting.before), ("+", parting.after)):
        yield f"{mark} {text!r}" if text else f"{mark} it ends there"


def _candidate_changes(difference: Difference, everything: bool) -> Lines:
    if not difference.candidates:
        return ["none differs"]
    rows, views = list[tuple[str, ...]](), (difference.before, difference.after)
    for (layer, change), group in groupby(difference.candidates, key=lambda item: (item.layer, item.change)):
        changes = list(group)
        for item in changes if everything else changes[:_FEW]:
            sizes = (item.before.tokens, item.after.tokens)
            tokens = _arrow(*(size and side.manifest.expected(size) for side, size in zip(views, sizes, strict=True)))
            rows.append((change, layer, item.id, item.source, tokens, _fate(item.before), _fate(item.after)))
        if len(changes) > _FEW and not everything:
            rows.append((f"… {len(changes) - _FEW:,}", layer, "more (--all shows them)", "", "", "", ""))
    return aligned(("", "layer", "id", "source", ">tokens", "before", "after"), rows)


def _fate(fate: Fate) -> str:
    scores = " ".join(f"{name} {value:.3g}" for name, value in sorted(fate.scores.items()))
    return ", ".join(filter(None, (fate.form, fate.reason, scores)))


def _print_change(text: TextChange, difference: Difference, everything: bool) -> bool:
    """Prints the lines of a piece that differ; returns whether any were shortened."""
    sides = ((text.before, difference.before), (text.after, difference.after))
    titles = dict.fromkeys(_title(part, view.manifest) for part, view in sides if part is not None)
    mark = "-" if text.after is None else "+" if text.before is None else "~"
    say(f"  {mark} {' → '.join(titles)}", _COLOURS[mark])
    lines = [(f"{kind} ", line) for kind, line in text.lines if everything or kind != " "]
    return _print_lines(lines, everything)


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


def print_comparison(compared: Comparison, *, in_short: bool = False) -> None:
    """Prints what calls read and cost with packs and without; what was not sent is estimated."""
    sides = (compared.packed, compared.unpacked)
    columns = (">with packs, estimated", ">without") if compared.observed else (">with packs", ">without, estimated")
    rows = [
        ("model calls", *(side.totals.calls for side in sides)),
        ("input tokens", *(side.totals.input_tokens for side in sides)),
        ("largest request", *(side.largest for side in sides)),
        ("larger than the window", *(f"{side.over_window:,} calls" for side in sides)),
        ("same beginning as the call before", *(percent(side.shared, side.totals.input_tokens) for side in sides)),
        ("cost", *(side.totals.cost_text for side in sides)),
    ]
    print_table(("", *columns), rows[1:] if in_short else rows, "  ")
    if in_short:
        return
    say(f"  {'would have saved' if compared.observed else 'saved'}: {compared.saved}")
    say("  Without packs the same calls read the whole history, every declaration and whole results, and have no tools")
    say("  that read results back. Costs are list prices of what was reported; where it was not, they are estimated.")
    say("  A cache serves as much of each shared beginning as the provider reported; all of it where it said nothing.")
    say("  A model with this window would have refused the calls that are larger than it.")
