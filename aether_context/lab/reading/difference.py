"""The difference of two packs: of one session, of two sessions, or of a pack and what another policy makes of it."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from itertools import takewhile
from typing import Literal, TypeAlias, get_args

from aether_context.conversation.epoch import is_live
from aether_context.lab.reading.packs import PackView, Piece, PiecePart
from aether_context.pack import LAYERS, Form, Layer, LayerTokens, PrefixBreak, Row, content_place
from aether_context.store.recording import is_content

_AROUND = 40
"""Characters that are shown on either side of where two requests begin to differ."""

UNSENT = ("left_out", "summarized")


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerChange:
    """One layer's tokens; None where a pack does not have the layer."""

    layer: Layer
    before: LayerTokens | None
    after: LayerTokens | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fate:
    """The outcome of a candidate in one pack.

    Attributes:
        form: ``absent`` where it was no candidate.
        reason: why it was not sent whole, one of `Reason`; ``cut_earlier`` where it is absent since an earlier cut
            removed it; of a tool also why it was declared, one of `Keep`.
        tokens: tokens that were sent for it, 0 where none were; None where that is not recorded.
    """

    form: Form | Literal["absent"]
    reason: str | None = None
    tokens: int | None = 0
    scores: Mapping[str, float] = field(default_factory=dict)

    @property
    def sent(self) -> bool:
        """Tells whether it is sent, whole or in part."""
        return self.form != "absent" and self.form not in UNSENT


Change: TypeAlias = Literal["left", "entered", "resized", "fate"]
"""``left``: sent only in the first pack; ``entered``: only in the second; ``resized``: sent in both with other tokens;
``fate``: a candidate in both with the same tokens, in another state or for another reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateChange:
    """A candidate whose fate differs. Tool declarations count as candidates."""

    id: str
    layer: Layer
    source: str
    change: Change
    before: Fate
    after: Fate


@dataclass(frozen=True, slots=True, kw_only=True)
class TextChange:
    """A piece of one request with the corresponding one of the other; None where there is none."""

    before: Piece | None
    after: Piece | None

    @property
    def same(self) -> bool:
        """Tells whether both send the same."""
        return self.before is not None and self.after is not None and self.before.digest == self.after.digest

    @property
    def lines(self) -> Iterator[tuple[Literal[" ", "-", "+"], str]]:
        """The lines of both, in order: `` `` in both, ``-`` only in the first, ``+`` only in the second."""
        before_text, after_text = _texts(self.before, self.after)
        before_lines = before_text.split("\n") if self.before else []
        after_lines = after_text.split("\n") if self.after else []
        for kind, start, stop, first, last in SequenceMatcher(None, before_lines, after_lines).get_opcodes():
            if kind == "equal":
                yield from ((" ", line) for line in before_lines[start:stop])
                continue
            yield from (("-", line) for line in before_lines[start:stop])
            yield from (("+", line) for line in after_lines[first:last])


@dataclass(frozen=True, slots=True, kw_only=True)
class Parting:
    """The first difference of two requests, in the order in which a provider's prefix cache reads them.

    Attributes:
        at: the piece's index among those of its part.
        name: the tool's name or the content's role.
        character: how many characters of the piece are the same, in the text for people or, where that is the same in
            both, in the canonical JSON.
        common: the last of these characters.
        before: the text that follows in the first request; empty where it ends there.
        after: the text that follows in the second one.
        reason: the recorded reason; None where the first request is not the one before the second.
    """

    part: PiecePart
    at: int
    name: str
    character: int
    common: str
    before: str
    after: str
    reason: PrefixBreak | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Two packs side by side.

    Attributes:
        same: whether the same request is sent.
        layers: all layers of either pack.
        candidates: those whose fate differs, by layer.
        texts: all pieces of both requests, aligned; empty where a request is unknown.
        shared_tokens: counted tokens of the pieces that both requests begin with; None where one is unknown.
        parting: None where one of the requests begins with the whole other one, or one is unknown.
    """

    before: PackView
    after: PackView
    same: bool
    layers: tuple[LayerChange, ...]
    candidates: tuple[CandidateChange, ...]
    texts: tuple[TextChange, ...]
    shared_tokens: int | None
    parting: Parting | None


def difference(before: PackView, after: PackView) -> Difference:
    """Compares two packs."""
    old, new = before.manifest, after.manifest
    pairs: tuple[TextChange, ...] = ()
    shared, parting = None, None
    if before.request is not None and after.request is not None:
        pairs = tuple(_aligned(before.request, after.request))
        both = zip(before.request, after.request, strict=False)
        same = len([*takewhile(lambda pair: pair[0].digest == pair[1].digest, both)])
        shared = sum(part.tokens for part in after.request[:same])
        reason = new.prefix.broken_by if new.call_before == old.pack_id and old.session_key == new.session_key else None
        parting = _parting(before.request[same:], after.request[same:], reason)
    return Difference(
        before=before,
        after=after,
        same=old.checksum == new.checksum,
        layers=tuple(
            LayerChange(layer=layer, before=old.allocation.get(layer), after=new.allocation.get(layer))
            for layer in LAYERS
            if layer in old.allocation or layer in new.allocation
        ),
        candidates=tuple(_candidates(before, after)),
        texts=pairs,
        shared_tokens=shared,
        parting=parting,
    )


# candidates


def _candidates(older: PackView, newer: PackView) -> Iterator[CandidateChange]:
    """The candidates whose fate differs, by layer, kind of change, and index in the host's list."""
    changes: list[tuple[int, CandidateChange]] = []
    for before_row, after_row in _pairs(older, newer):
        row = after_row or before_row
        assert row is not None
        old = _fate(before_row) or _absence(older, newer, row)
        new = _fate(after_row) or _absence(newer, older, row)
        if (change := _change(old, new)) is not None:
            layer, source = row.layer, row.source
            entry = CandidateChange(id=row.id, layer=layer, source=source, change=change, before=old, after=new)
            changes.append((place_of(row), entry))
    changes += [(-1, change) for change in _tools(older, newer)]
    order = get_args(Change)
    changes.sort(key=lambda item: (LAYERS.index(item[1].layer), order.index(item[1].change), item[0]))
    yield from (change for _, change in changes)


def _pairs(older: PackView, newer: PackView) -> Iterator[tuple[Row | None, Row | None]]:
    """The corresponding rows of two packs: those with the same id, else those with the same content."""
    unmatched: defaultdict[str, deque[Row]] = defaultdict(deque)
    for row in older.rows.values():
        if row.id not in newer.rows:
            unmatched[row.hash].append(row)
    for row in newer.rows.values():
        same_hash = unmatched[row.hash]
        yield older.rows.get(row.id) or (same_hash.popleft() if same_hash else None), row
    for same_hash in unmatched.values():
        yield from ((row, None) for row in same_hash)


def _fate(row: Row | None) -> Fate | None:
    if row is None:
        return None
    tokens = row.tokens if row.sent_tokens is None else row.sent_tokens
    tokens = 0 if row.form in UNSENT else tokens
    return Fate(form=row.form, reason=row.reason, tokens=tokens, scores=row.scores)


def _absence(view: PackView, other_view: PackView, row: Row) -> Fate:
    """The fate of a candidate of the other pack only. Within a session, an earlier cut may have removed it."""
    spot, same_session = place_of(row), view.manifest.session_key == other_view.manifest.session_key
    is_cut = same_session and spot >= 0 and not is_live(view.manifest.epoch, spot)
    return Fate(form="absent", reason="cut_earlier" if is_cut else None)


def place_of(row: Row) -> int:
    """The index of a row's content in the host's list, -1 where the row is not a content."""
    return content_place(row.id) if is_content(row) else -1


def _change(older: Fate, newer: Fate) -> Change | None:
    if older.sent != newer.sent:
        return "entered" if newer.sent else "left"
    if older.tokens != newer.tokens:
        return "resized"
    differs = (older.form, older.reason) != (newer.form, newer.reason)
    return "fate" if differs and "absent" not in (older.form, newer.form) else None


def _tools(older: PackView, newer: PackView) -> Iterator[CandidateChange]:
    """The tool declarations whose fate differs, in the order in which they are sent."""
    names = dict.fromkeys(name for view in (older, newer) for name in view.manifest.tools.sent)
    names |= dict.fromkeys(name for view in (older, newer) for name in view.manifest.tools.left_out)
    tokens: list[dict[str, int]] = [
        {part.name: part.tokens for part in view.request or () if part.part == "tool"} for view in (older, newer)
    ]
    for name in names:
        old, new = (_tool_fate(view, name, at.get(name)) for view, at in zip((older, newer), tokens, strict=True))
        if (change := _change(old, new)) is not None:
            yield CandidateChange(id=name, layer="tools", source="", change=change, before=old, after=new)


def _tool_fate(view: PackView, name: str, tokens: int | None) -> Fate:
    tools = view.manifest.tools
    if name in tools.sent:
        return Fate(form="whole", reason=tools.kept.get(name), tokens=tokens)
    if name in tools.left_out:
        return Fate(form="left_out", reason=tools.left_out[name])
    return Fate(form="absent")


# texts


def _aligned(older: Sequence[Piece], newer: Sequence[Piece]) -> Iterator[TextChange]:
    """The pieces of both, paired by their sources; others are paired where part and name match in the same place."""
    matcher = SequenceMatcher(None, [_key(part) for part in older], [_key(part) for part in newer], autojunk=False)
    for kind, start, stop, first, last in matcher.get_opcodes():
        before_pieces, after_pieces = older[start:stop], newer[first:last]
        names = [[(part.part, part.name) for part in pieces] for pieces in (before_pieces, after_pieces)]
        if kind == "equal" or names[0] == names[1]:
            pairs = zip(before_pieces, after_pieces, strict=True)
            yield from (TextChange(before=old, after=new) for old, new in pairs)
        else:
            yield from (TextChange(before=part, after=None) for part in before_pieces)
            yield from (TextChange(before=None, after=part) for part in after_pieces)


def _key(part: Piece) -> tuple[str, ...]:
    """The key by which pieces are aligned: the tool, or the host's contents, whatever is sent of them."""
    if part.part == "tool":
        return (part.part, part.name or part.digest)
    return (part.part, *(part.sources or (part.form or "",)))


def _texts(older: Piece | None, newer: Piece | None) -> tuple[str, str]:
    """The texts by which two pieces are compared: those for people or, where these are equal, the canonical JSON."""
    before_text, after_text = older.text if older else "", newer.text if newer else ""
    return (older.wire, newer.wire) if older and newer and before_text == after_text else (before_text, after_text)


def _parting(older: Sequence[Piece], newer: Sequence[Piece], reason: PrefixBreak | None) -> Parting | None:
    """The first difference, given the pieces after those that both requests begin with."""
    if not older or not newer:
        return None
    before_piece, after_piece = older[0], newer[0]
    same_part = before_piece.part == after_piece.part
    before_text, after_text = _texts(before_piece, after_piece) if same_part else (before_piece.text, after_piece.text)
    ends = (at for at, (char, other) in enumerate(zip(before_text, after_text, strict=False)) if char != other)
    same = next(ends, min(len(before_text), len(after_text))) if same_part else 0
    return Parting(
        part=after_piece.part,
        at=after_piece.at,
        name=after_piece.name,
        character=same,
        common=after_text[max(0, same - _AROUND) : same],
        before=before_text[same : same + _AROUND],
        after=after_text[same : same + _AROUND],
        reason=reason,
    )
