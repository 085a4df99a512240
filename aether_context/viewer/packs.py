"""What the page of a pack shows: the request as it was sent, each candidate and what became of it, and why."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

from aether_context.canonical import JSON
from aether_context.errors import AetherContextError, ChecksumMismatch
from aether_context.pack import LAYERS, CandidateOutcome, Layer, LayerTokens, Reason, State
from aether_context.packing import payload
from aether_context.store import Manifest
from aether_context.store.replay import Replayer
from aether_context.viewer.rows import Row
from aether_context.views import PackView, Parting, Piece, difference, read_view

MOST_CHARACTERS = 4_000
"""Characters of a text that are shown where not the whole of it is asked for."""
_MANY = 60
"""Messages up to which each has a line among the candidates."""
_UNSENT: tuple[State, ...] = ("dropped", "hidden", "in_tail", "redacted")
_LAYERS: Mapping[str, Layer] = {
    "EVIDENCE": "evidence",
    "TOP EVIDENCE": "evidence",
    "MEMORY": "memory",
    "CONVERSATION SUMMARY": "conversation",
}
"""The sections of a payload that are of another layer than the task."""
_HEADER = re.compile(rf"^(?:{'|'.join(payload.HEADERS)}):\n", re.MULTILINE)
_BULLET = re.compile(r"^(?=- )", re.MULTILINE)

REASONS: Mapping[Reason, str] = {
    "below_floor": "scored below the floor",
    "beyond_k": "beyond the best few",
    "duplicate": "said already",
    "expired": "expired",
    "over_allocation": "no room in its layer",
    "high_water": "the conversation passed its mark",
    "byte_net": "too many bytes without reported usage",
    "window": "too large for the window",
    "compression_off": "no room, and nothing is shortened",
    "already_in_conversation": "stands in the conversation anyway",
    "not_in_scope": "not among the tools in scope",
    "no_message": "no message to put it into",
    "threshold": "beyond the strategy's threshold",
    "turn_budget": "beyond the turns that are kept",
    "middle": "between head and tail",
    "by_hand": "cut by hand",
    "strategy": "left out by a strategy",
}
"""Why something was reduced or left out, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A stretch of a request: its layer, what it is, its text, and the row that it stands for, empty without one."""

    layer: Layer
    label: str
    text: str
    row: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A piece of a request and its stretches."""

    piece: Piece
    spans: tuple[Span, ...]

    @property
    def layers(self) -> list[Layer]:
        return [layer for layer in LAYERS if any(span.layer == layer for span in self.spans)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that may explain an answer: what happened, why, and the rows or the part of the page to look at."""

    layer: Layer
    what: str
    why: str = ""
    rows: tuple[str, ...] = ()
    part: str = ""
    tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """Those of a layer: ``kept`` further ones are sent as they are, with so many ``tokens`` together."""

    layer: Layer
    rows: Sequence[CandidateOutcome]
    kept: int
    tokens: int


@dataclass(frozen=True)
class PackPage:
    """A pack. ``line`` are the rows of its agent's packs in the session, the oldest first, as far as they are known."""

    view: PackView
    line: Sequence[Row] = ()
    parting: Parting | None = None
    parting_gap: str = ""

    @property
    def manifest(self) -> Manifest:
        return self.view.manifest

    @cached_property
    def fault(self) -> str:
        """Why the manifest is not what was written; empty where it is."""
        try:
            self.manifest.verify()
        except ChecksumMismatch as error:
            return str(error)
        return ""

    @cached_property
    def neighbours(self) -> tuple[Row | None, Row | None]:
        """The rows before and after it."""
        names = [row.pack_id for row in self.line]
        if self.manifest.pack_id not in names:
            return None, None
        at = names.index(self.manifest.pack_id)
        return (self.line[at - 1] if at else None), (self.line[at + 1] if at + 1 < len(names) else None)

    @cached_property
    def messages(self) -> list[Message]:
        """The request as it was sent."""
        return [Message(piece=piece, spans=tuple(spans(piece, self.view))) for piece in self.view.request or ()]

    @property
    def tool_messages(self) -> list[Message]:
        return [message for message in self.messages if message.piece.part == "tool"]

    @cached_property
    def linked(self) -> frozenset[str]:
        """The rows that stretches of the request stand for."""
        return frozenset(span.row for message in self.messages for span in message.spans if span.row)

    @cached_property
    def allocation(self) -> list[tuple[Layer, LayerTokens]]:
        return [(layer, self.manifest.allocation[layer]) for layer in LAYERS if layer in self.manifest.allocation]

    @cached_property
    def candidates(self) -> list[Candidates]:
        """Rows by layer: what was chosen from first, then the messages; of many messages those not sent as they are."""
        order: Sequence[Layer] = ("memory", "evidence", "task", "conversation", *LAYERS)
        rows = sorted(self.view.rows.values(), key=lambda row: order.index(row.layer))
        found = []
        for layer, of_layer in groupby(rows, key=lambda row: row.layer):
            all_of = list(of_layer)
            kept = [row for row in all_of if row.state == "kept" and row.sent_tokens is None]
            if layer != "conversation" or len(all_of) <= _MANY:
                kept = []
            whole = {row.id for row in kept}
            shown = [row for row in all_of if row.id not in whole]
            found.append(Candidates(layer=layer, rows=shown, kept=len(kept), tokens=sum(row.tokens for row in kept)))
        return found

    @cached_property
    def listed(self) -> frozenset[str]:
        """The candidates that have a line of their own."""
        return frozenset(row.id for found in self.candidates for row in found.rows)

    @property
    def outcome(self) -> Mapping[str, JSON]:
        return self.view.outcome or {}

    @property
    def acceptance(self) -> Mapping[str, JSON]:
        found = self.outcome.get("acceptance")
        return found if isinstance(found, dict) else {}

    @cached_property
    def findings(self) -> list[Finding]:
        """What may explain an answer, the gravest first."""
        return list(_findings(self))


def pack_page(replayer: Replayer, manifest: Manifest, line: Sequence[Row]) -> PackPage:
    """The values of a pack's page, with where its prefix broke."""
    view = read_view(replayer, manifest)
    parting, gap = None, ""
    if manifest.previous and manifest.prefix.broken_by is not None and view.request is not None:
        folder = replayer.store.place(manifest).rpartition("/")[0]
        try:
            before = read_view(replayer, replayer.store.read(f"{folder}/{manifest.previous}"))
            parting = difference(before, view).parting
        except AetherContextError as error:
            gap = str(error)
    return PackPage(view=view, line=line, parting=parting, parting_gap=gap)


def spans(piece: Piece, view: PackView) -> Iterator[Span]:
    """The stretches of a piece; of a packed message one for each section, and for each line of evidence and memory."""
    if piece.part != "content":
        layer: Layer = "system" if piece.part == "system" else "tools"
        yield Span(layer=layer, label=piece.name or "system", text=piece.text)
        return
    row = next((name for name in piece.rows if name in view.rows), "")
    layer = view.rows[row].layer if row else "conversation"
    label = piece.outcome if piece.outcome not in (None, "verbatim", "payload") else layer
    before, packed, after = piece.text.partition(f"{payload.FIRST_LINE}\n")
    if piece.outcome not in ("payload", "merged") or not packed:
        yield Span(layer=layer, label=label or layer, text=piece.text, row=row)
        return
    if before:
        yield Span(layer=layer, label=label or layer, text=before, row=row)
    yield from _sections(packed + after, row, view)


def _sections(text: str, row: str, view: PackView) -> Iterator[Span]:
    """The sections of a payload, which nothing in it can forge: what is not the project's own is indented."""
    sent = [
        (candidate, " ".join(view.texts.get(candidate.id, "").split())[:80])
        for candidate in view.rows.values()
        if candidate.layer in ("evidence", "memory") and candidate.state not in _UNSENT
    ]
    marks = [found.start() for found in _HEADER.finditer(text)]
    asked = [at for at in marks if text.startswith((payload.REQUEST, payload.HANDED), at)][:1]
    marks = [at for at in marks if not asked or at <= asked[0]]
    yield Span(layer="task", label="task", text=text[: marks[0] if marks else len(text)])
    for at, end in zip(marks, [*marks[1:], len(text)], strict=True):
        section = text[at:end]
        header = section.partition(":")[0]
        layer = _LAYERS.get(header, "task")
        if layer not in ("evidence", "memory"):
            yield Span(layer=layer, label=header.lower(), text=section, row=row if [at] == asked else "")
            continue
        head, *bullets = _BULLET.split(section)
        yield Span(layer=layer, label=header.lower(), text=head)
        for bullet in bullets:
            yield Span(layer=layer, label=header.lower(), text=bullet, row=_stands_for(bullet, layer, sent))


def _stands_for(bullet: str, layer: Layer, sent: Sequence[tuple[CandidateOutcome, str]]) -> str:
    """The candidate that a line of a payload shows; empty where none is found."""
    words = " ".join(bullet.split())
    for candidate, text in sent:
        if candidate.layer == layer and (
            (candidate.uri and " ".join(candidate.uri.split()) in words) or (text and text in words)
        ):
            return candidate.id
    return ""


def _findings(page: PackPage) -> Iterator[Finding]:
    manifest = page.manifest
    if page.fault:
        yield Finding(layer="slack", what="The manifest is not what was written", why=page.fault)
    for gap in page.view.gaps:
        yield Finding(layer="slack", what="Not everything could be read", why=gap)
    if manifest.over_window:
        yield Finding(layer="slack", what="The request passes its window", tokens=manifest.over_window, part="layers")
    if manifest.validity == "invalid":
        yield Finding(layer="task", what="The plan is invalid", why=manifest.invalid_reason, part="facts")
    since = _same_step(page)
    if since is not None:
        first, messages = since
        yield Finding(
            layer="task",
            what=f"The plan stands where it stood {messages} messages of the user ago",
            why=f"step {manifest.step_id or manifest.task_id} since {first.pack_id.rsplit('_', 1)[-1]}",
            part="request",
        )
    for item in manifest.evidence_needed:
        yield Finding(layer="evidence", what="Evidence is missing", why=item, part="evidence")
    for uri, later in manifest.superseded.items():
        yield Finding(layer="evidence", what="Superseded evidence is in the request", why=f"{uri}, by {later}")
    yield from _left_out(page.view)
    tools = manifest.tools.left_out
    for reason in dict.fromkeys(tools.values()):
        names = [name for name in tools if tools[name] == reason]
        yield Finding(
            layer="tools",
            what=f"{len(names)} {'tool' if len(names) == 1 else 'tools'} left out",
            why=f"{_words(reason)}: {', '.join(names[:6])}{', …' if len(names) > 6 else ''}",
            part="tools",
        )
    for note in manifest.degradations:
        yield Finding(layer="slack", what="Not done as asked", why=note)
    broken = manifest.prefix.broken_by
    if broken is not None:
        yield Finding(layer="slack", what="The common prefix ended", why=broken.replace("_", " "), part="prefix")
    error = page.outcome.get("error_code")
    if error:
        yield Finding(layer="slack", what="The call failed", why=str(error), part="outcome")


_DONE: Mapping[State, str] = {
    "dropped": "left out",
    "hidden": "not sent this time",
    "placeholder": "replaced by a placeholder",
    "extract": "cut to an extract",
    "summary": "shortened",
    "redacted": "redacted",
}


def _left_out(view: PackView) -> Iterator[Finding]:
    """Candidates that were not sent whole, by layer, state and reason."""
    groups: dict[tuple[int, State, str], list[CandidateOutcome]] = {}
    for row in view.rows.values():
        if row.state in _DONE:
            groups.setdefault((LAYERS.index(row.layer), row.state, row.reason or ""), []).append(row)
        elif row.layer == "task" and row.sent_tokens is not None and row.sent_tokens < row.tokens:
            groups.setdefault((LAYERS.index(row.layer), "extract", row.reason or "window"), []).append(row)
    for (layer, state, reason), rows in sorted(groups.items(), key=lambda item: item[0]):
        kind = {"memory": "memory", "evidence": "evidence", "task": "message"}.get(LAYERS[layer], "message")
        many = {"memory": "memories", "evidence": "pieces of evidence"}.get(kind, "messages")
        one = {"evidence": "piece of evidence"}.get(kind, kind)
        yield Finding(
            layer=LAYERS[layer],
            what=f"{len(rows)} {one if len(rows) == 1 else many} {_DONE[state]}",
            why=_words(reason),
            rows=tuple(row.id for row in rows[:4]),
            tokens=sum(row.tokens - (row.sent_tokens or 0) for row in rows),
        )


def _words(reason: str) -> str:
    words: Mapping[str, str] = REASONS  # type: ignore[assignment]
    return words.get(reason, reason.replace("_", " "))


def _same_step(page: PackPage) -> tuple[Row, int] | None:
    """The first pack of the step that a pack is for, and how many messages ago that was; None for less than two."""
    here = page.manifest
    if not (here.step_id or here.task_id):
        return None
    first, invocations = None, dict.fromkeys([here.invocation])
    until = [row for row in page.line if (row.time, row.call) <= (here.last_event_time, here.call)]
    for row in reversed(until):
        if (row.task, row.step) != (here.task_id, here.step_id):
            break
        first = row
        invocations[row.invocation] = None
    messages = len(invocations) - 1
    return (first, messages) if first is not None and messages >= 2 else None
