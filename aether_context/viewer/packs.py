"""The page of a pack: the request as it was sent, and each candidate with what became of it and why."""

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
"""Characters of a text that are shown where its whole is not requested."""
_MANY = 60
"""Up to this many messages each has a line among the candidates."""
_UNSENT: tuple[State, ...] = ("dropped", "hidden", "in_tail")
_LAYERS: Mapping[str, Layer] = {
    "EVIDENCE": "evidence",
    "TOP EVIDENCE": "evidence",
    "MEMORY": "memory",
    "CONVERSATION SUMMARY": "conversation",
}
"""The sections of a payload that belong to another layer than the task."""
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
    """A section of a request: its layer, label and text, and the id of the row that it shows, empty without one."""

    layer: Layer
    label: str
    text: str
    row: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A piece of a request and its sections."""

    piece: Piece
    spans: tuple[Span, ...]

    @property
    def layers(self) -> list[Layer]:
        return [layer for layer in LAYERS if any(span.layer == layer for span in self.spans)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that may explain an answer: what happened, why, and the rows or the part of the page with details."""

    layer: Layer
    what: str
    why: str = ""
    rows: tuple[str, ...] = ()
    part: str = ""
    tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """The candidates of a layer. ``kept`` further ones are sent unchanged and not listed, with ``tokens`` in total."""

    layer: Layer
    rows: Sequence[CandidateOutcome]
    kept: int
    tokens: int


@dataclass(frozen=True)
class PackPage:
    """A pack. ``line`` are the known rows of its agent's packs in the session, the oldest first."""

    view: PackView
    line: Sequence[Row] = ()
    parting: Parting | None = None
    parting_gap: str = ""

    @property
    def manifest(self) -> Manifest:
        return self.view.manifest

    @cached_property
    def fault(self) -> str:
        """Why the manifest does not verify; empty where it does."""
        try:
            self.manifest.verify()
        except ChecksumMismatch as error:
            return str(error)
        return ""

    @cached_property
    def neighbours(self) -> tuple[Row | None, Row | None]:
        """The rows of the packs before and after it."""
        names = [row.pack_id for row in self.line]
        if self.manifest.pack_id not in names:
            return None, None
        index = names.index(self.manifest.pack_id)
        return (self.line[index - 1] if index else None), (self.line[index + 1] if index + 1 < len(names) else None)

    @cached_property
    def messages(self) -> list[Message]:
        """The request as it was sent."""
        return [Message(piece=piece, spans=tuple(spans(piece, self.view))) for piece in self.view.request or ()]

    @property
    def tool_messages(self) -> list[Message]:
        return [message for message in self.messages if message.piece.part == "tool"]

    @cached_property
    def linked(self) -> frozenset[str]:
        """Ids of the rows that sections of the request show."""
        return frozenset(span.row for message in self.messages for span in message.spans if span.row)

    @cached_property
    def allocation(self) -> list[tuple[Layer, LayerTokens]]:
        return [(layer, self.manifest.allocation[layer]) for layer in LAYERS if layer in self.manifest.allocation]

    @cached_property
    def candidates(self) -> list[Candidates]:
        """Rows by layer: memories and evidence first, then messages; of many messages only those that were changed."""
        order: Sequence[Layer] = ("memory", "evidence", "task", "conversation", *LAYERS)
        rows = sorted(self.view.rows.values(), key=lambda row: order.index(row.layer))
        groups = []
        for layer, layer_rows in groupby(rows, key=lambda row: row.layer):
            members = list(layer_rows)
            kept = [row for row in members if row.state == "kept" and row.sent_tokens is None]
            if layer != "conversation" or len(members) <= _MANY:
                kept = []
            collapsed = {row.id for row in kept}
            listed = [row for row in members if row.id not in collapsed]
            groups.append(Candidates(layer=layer, rows=listed, kept=len(kept), tokens=sum(row.tokens for row in kept)))
        return groups

    @cached_property
    def listed(self) -> frozenset[str]:
        """The candidates that have a line of their own."""
        return frozenset(row.id for group in self.candidates for row in group.rows)

    @property
    def outcome(self) -> Mapping[str, JSON]:
        return self.view.outcome or {}

    @property
    def acceptance(self) -> Mapping[str, JSON]:
        acceptance = self.outcome.get("acceptance")
        return acceptance if isinstance(acceptance, dict) else {}

    @cached_property
    def findings(self) -> list[Finding]:
        """What may explain an answer, the most serious first."""
        return list(_findings(self))


def pack_page(replayer: Replayer, manifest: Manifest, line: Sequence[Row]) -> PackPage:
    """The values of a pack's page, with where its prefix broke."""
    view = read_view(replayer, manifest)
    parting, gap = None, ""
    if manifest.call_before and manifest.prefix.broken_by is not None and view.request is not None:
        folder = replayer.store.place(manifest).rpartition("/")[0]
        try:
            before = read_view(replayer, replayer.store.read(f"{folder}/{manifest.call_before}"))
            parting = difference(before, view).parting
        except AetherContextError as error:
            gap = str(error)
    return PackPage(view=view, line=line, parting=parting, parting_gap=gap)


def spans(piece: Piece, view: PackView) -> Iterator[Span]:
    """The sections of a piece; a packed message has one for each of its sections and each line of evidence and
    memory."""
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
    """The sections of a payload. Its content cannot imitate their headers, since text from outside is indented."""
    candidates = [
        (candidate, " ".join(view.texts.get(candidate.id, "").split())[:80])
        for candidate in view.rows.values()
        if candidate.layer in ("evidence", "memory") and candidate.state not in _UNSENT
    ]
    section_starts = [match.start() for match in _HEADER.finditer(text)]
    request_starts = [start for start in section_starts if text.startswith((payload.REQUEST, payload.HANDED), start)][
        :1
    ]
    section_starts = [start for start in section_starts if not request_starts or start <= request_starts[0]]
    yield Span(layer="task", label="task", text=text[: section_starts[0] if section_starts else len(text)])
    for start, end in zip(section_starts, [*section_starts[1:], len(text)], strict=True):
        section = text[start:end]
        header = section.partition(":")[0]
        layer = _LAYERS.get(header, "task")
        if layer not in ("evidence", "memory"):
            yield Span(layer=layer, label=header.lower(), text=section, row=row if [start] == request_starts else "")
            continue
        head, *bullets = _BULLET.split(section)
        yield Span(layer=layer, label=header.lower(), text=head)
        for bullet in bullets:
            yield Span(layer=layer, label=header.lower(), text=bullet, row=_candidate_shown(bullet, layer, candidates))


def _candidate_shown(bullet: str, layer: Layer, candidates: Sequence[tuple[CandidateOutcome, str]]) -> str:
    """The id of the candidate that a line of a payload shows; empty where none matches."""
    words = " ".join(bullet.split())
    for candidate, text in candidates:
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
    same_step = _same_step(page)
    if same_step is not None:
        first, messages = same_step
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
            why=f"{_in_words(reason)}: {', '.join(names[:6])}{', …' if len(names) > 6 else ''}",
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


_STATE_WORDS: Mapping[State, str] = {
    "dropped": "left out",
    "hidden": "not sent this time",
    "placeholder": "replaced by a placeholder",
    "extract": "cut to an extract",
    "summary": "shortened",
}


def _left_out(view: PackView) -> Iterator[Finding]:
    """Candidates that were not sent whole, by layer, state and reason."""
    groups: dict[tuple[int, State, str], list[CandidateOutcome]] = {}
    for row in view.rows.values():
        if row.state in _STATE_WORDS:
            groups.setdefault((LAYERS.index(row.layer), row.state, row.reason or ""), []).append(row)
        elif row.layer == "task" and row.sent_tokens is not None and row.sent_tokens < row.tokens:
            groups.setdefault((LAYERS.index(row.layer), "extract", row.reason or "window"), []).append(row)
    for (layer, state, reason), rows in sorted(groups.items(), key=lambda item: item[0]):
        noun = {"memory": "memory", "evidence": "evidence", "task": "message"}.get(LAYERS[layer], "message")
        plural = {"memory": "memories", "evidence": "pieces of evidence"}.get(noun, "messages")
        singular = {"evidence": "piece of evidence"}.get(noun, noun)
        yield Finding(
            layer=LAYERS[layer],
            what=f"{len(rows)} {singular if len(rows) == 1 else plural} {_STATE_WORDS[state]}",
            why=_in_words(reason),
            rows=tuple(row.id for row in rows[:4]),
            tokens=sum(row.tokens - (row.sent_tokens or 0) for row in rows),
        )


def _in_words(reason: str) -> str:
    words: Mapping[str, str] = REASONS  # type: ignore[assignment]
    return words.get(reason, reason.replace("_", " "))


def _same_step(page: PackPage) -> tuple[Row, int] | None:
    """The first pack of the pack's step, and how many of the user's messages ago that was; None for fewer than two."""
    manifest = page.manifest
    if not (manifest.step_id or manifest.task_id):
        return None
    first, invocations = None, dict.fromkeys([manifest.invocation])
    earlier_rows = [row for row in page.line if (row.time, row.call) <= (manifest.last_event_time, manifest.call)]
    for row in reversed(earlier_rows):
        if (row.task, row.step) != (manifest.task_id, manifest.step_id):
            break
        first = row
        invocations[row.invocation] = None
    messages = len(invocations) - 1
    return (first, messages) if first is not None and messages >= 2 else None
