"""What differs between two packs: two of one session, of two sessions, or one and what another policy makes of it."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Literal, TypeAlias, get_args

from aether_context.pack import LAYERS, CandidateOutcome, Layer, LayerTokens, PrefixBreak, State
from aether_context.views.packs import PackView, Piece, PiecePart

_AROUND = 40
"""Characters that are shown on either side of where two requests part."""

UNSENT = ("hidden", "dropped", "in_tail", "redacted")


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerChange:
    """One layer's tokens; None where a pack has no account of it."""

    layer: Layer
    before: LayerTokens | None
    after: LayerTokens | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fate:
    """What became of a candidate in one pack.

    Attributes:
        state: ``absent`` where it was no candidate.
        reason: why it was not sent whole, one of `Reason`; ``cut_earlier`` where it is absent since an earlier cut took
            it; of a tool also why it was declared, one of `Keep`.
        tokens: what was sent of it or in its place, 0 where nothing was; None where that is not recorded.
    """

    state: State | Literal["absent"]
    reason: str | None = None
    tokens: int | None = 0
    scores: Mapping[str, float] = field(default_factory=dict)

    @property
    def sent(self) -> bool:
        """Whether anything is sent of it."""
        return self.state != "absent" and self.state not in UNSENT


Change: TypeAlias = Literal["left", "entered", "resized", "fate"]
"""``left`` and ``entered``: sent in one of the packs only; ``resized``: sent in both with other tokens; ``fate``: a
candidate of both, of which as much is sent, in another state or for another reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateChange:
    """A candidate whose fate differs. Declarations of tools are candidates, too."""

    id: str
    layer: Layer
    source: str
    change: Change
    before: Fate
    after: Fate


@dataclass(frozen=True, slots=True, kw_only=True)
class TextChange:
    """A piece of one request beside that of the other which stands for the same; None where there is none."""

    before: Piece | None
    after: Piece | None

    @property
    def same(self) -> bool:
        """Whether both send the same."""
        return self.before is not None and self.after is not None and self.before.digest == self.after.digest

    @property
    def lines(self) -> Iterator[tuple[Literal[" ", "-", "+"], str]]:
        """The lines of both, in their order: in both, in the first only, in the second only."""
        old, new = _texts(self.before, self.after)
        before, after = old.split("\n") if self.before else [], new.split("\n") if self.after else []
        for kind, start, stop, first, last in SequenceMatcher(None, before, after).get_opcodes():
            if kind == "equal":
                yield from ((" ", line) for line in before[start:stop])
                continue
            yield from (("-", line) for line in before[start:stop])
            yield from (("+", line) for line in after[first:last])


@dataclass(frozen=True, slots=True, kw_only=True)
class Parting:
    """Where two requests are the same no longer, in the order in which a provider's prefix cache reads them.

    Attributes:
        at: the piece's index among those of its part.
        name: the tool's name or the content's role.
        character: the characters of the piece that are the same. They are those of the text as people read it, of its
            canonical JSON where that text is the same in both.
        common: the last of these characters.
        before: what follows in the first request; empty where it ends there.
        after: what follows in the second one.
        reason: why, as recorded; None where the first request is not the one before the second.
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
        layers: all layers that either accounts for.
        candidates: those whose fate differs, by layer.
        texts: all pieces of both requests, aligned; empty where a request is unknown.
        shared_tokens: counted tokens that both requests begin with; None where one is unknown.
        parting: None where one of the requests begins with the whole other one, or is unknown.
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
    """What differs between two packs."""
    old, new = before.manifest, after.manifest
    pairs: tuple[TextChange, ...] = ()
    shared, parting = None, None
    if before.request is not None and after.request is not None:
        pairs = tuple(_aligned(before.request, after.request))
        same = 0
        for one, other in zip(before.request, after.request, strict=False):
            if one.digest != other.digest:
                break
            same += 1
        shared = sum(piece.tokens for piece in after.request[:same])
        reason = new.prefix.broken_by if new.previous == old.pack_id and old.session_key == new.session_key else None
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


def _candidates(before: PackView, after: PackView) -> Iterator[CandidateChange]:
    """Those whose fate differs, in the order of layers, of changes, and of the host's list or the rows."""
    found: list[tuple[int, CandidateChange]] = []
    for one, other in _pairs(before, after):
        row = other or one
        assert row is not None
        old, new = _fate(one) or _absence(before, after, row), _fate(other) or _absence(after, before, row)
        if (change := _change(old, new)) is not None:
            given = CandidateChange(id=row.id, layer=row.layer, source=row.source, change=change, before=old, after=new)
            found.append((place_of(row), given))
    found += [(-1, change) for change in _tools(before, after)]
    order = get_args(Change)
    found.sort(key=lambda placed: (LAYERS.index(placed[1].layer), order.index(placed[1].change), placed[0]))
    yield from (change for _, change in found)


def _pairs(before: PackView, after: PackView) -> Iterator[tuple[CandidateOutcome | None, CandidateOutcome | None]]:
    """The rows of two packs that stand for the same: by their ids, else by what they hold."""
    left: defaultdict[str, deque[CandidateOutcome]] = defaultdict(deque)
    for row in before.rows.values():
        if row.id not in after.rows:
            left[row.hash].append(row)
    for row in after.rows.values():
        others = left[row.hash]
        yield before.rows.get(row.id) or (others.popleft() if others else None), row
    for others in left.values():
        yield from ((row, None) for row in others)


def _fate(row: CandidateOutcome | None) -> Fate | None:
    if row is None:
        return None
    tokens = row.tokens if row.sent_tokens is None else row.sent_tokens
    tokens = 0 if row.state in UNSENT else tokens
    return Fate(state=row.state, reason=row.reason, tokens=tokens, scores=row.scores)


def _absence(view: PackView, other: PackView, row: CandidateOutcome) -> Fate:
    """The fate of what is a candidate of the other pack only: of the same session, a cut may have taken it."""
    place, epoch = place_of(row), view.manifest.epoch
    is_cut = (
        view.manifest.session_key == other.manifest.session_key
        and 0 <= place < epoch.cut_count
        and not any(start <= place < stop for start, stop in epoch.kept)
    )
    return Fate(state="absent", reason="cut_earlier" if is_cut else None)


def place_of(row: CandidateOutcome) -> int:
    """The index of a content in the host's list, -1 of what is none."""
    place = row.id.removeprefix("c").partition("_")[0]
    return int(place) if row.layer in ("conversation", "task") and place.isdecimal() else -1


def _change(before: Fate, after: Fate) -> Change | None:
    if before.sent != after.sent:
        return "entered" if after.sent else "left"
    if before.tokens != after.tokens:
        return "resized"
    other = (before.state, before.reason) != (after.state, after.reason)
    return "fate" if other and "absent" not in (before.state, after.state) else None


def _tools(before: PackView, after: PackView) -> Iterator[CandidateChange]:
    """Declarations, in the order in which they are sent."""
    names = dict.fromkeys(name for view in (before, after) for name in view.manifest.tools.sent)
    names |= dict.fromkeys(name for view in (before, after) for name in view.manifest.tools.left_out)
    tokens: list[dict[str, int]] = [
        {piece.name: piece.tokens for piece in view.request or () if piece.part == "tool"} for view in (before, after)
    ]
    for name in names:
        old, new = (_tool_fate(view, name, of.get(name)) for view, of in zip((before, after), tokens, strict=True))
        if (change := _change(old, new)) is not None:
            yield CandidateChange(id=name, layer="tools", source="", change=change, before=old, after=new)


def _tool_fate(view: PackView, name: str, tokens: int | None) -> Fate:
    tools = view.manifest.tools
    scores = {"relevance": tools.scores[name]} if name in tools.scores else {}
    if name in tools.sent:
        return Fate(state="kept", reason=tools.kept.get(name), tokens=tokens, scores=scores)
    if name in tools.left_out:
        return Fate(state="dropped", reason=tools.left_out[name], scores=scores)
    return Fate(state="absent")


# texts


def _aligned(before: Sequence[Piece], after: Sequence[Piece]) -> Iterator[TextChange]:
    """The pieces of both, by what they stand for; what stands in the same place for something else is paired, too."""
    matcher = SequenceMatcher(None, [_key(piece) for piece in before], [_key(piece) for piece in after], autojunk=False)
    for kind, start, stop, first, last in matcher.get_opcodes():
        old, new = before[start:stop], after[first:last]
        in_pairs = kind == "equal" or [(piece.part, piece.name) for piece in old] == [
            (piece.part, piece.name) for piece in new
        ]
        if in_pairs:
            yield from (TextChange(before=one, after=other) for one, other in zip(old, new, strict=True))
        else:
            yield from (TextChange(before=piece, after=None) for piece in old)
            yield from (TextChange(before=None, after=piece) for piece in new)


def _key(piece: Piece) -> tuple[str, ...]:
    """What a piece stands for, whatever is sent of it."""
    if piece.part == "tool":
        return (piece.part, piece.name or piece.digest)
    return (piece.part, *(piece.sources or (piece.outcome or "",)))


def _texts(before: Piece | None, after: Piece | None) -> tuple[str, str]:
    """Two pieces as they are compared: as people read them, as they are sent where that is the same."""
    old, new = before.text if before else "", after.text if after else ""
    return (before.wire, after.wire) if before and after and old == new else (old, new)


def _parting(before: Sequence[Piece], after: Sequence[Piece], reason: PrefixBreak | None) -> Parting | None:
    """Where they part, given what comes behind the pieces that both begin with."""
    if not before or not after:
        return None
    one, other = before[0], after[0]
    same_part = one.part == other.part
    old, new = _texts(one, other) if same_part else (one.text, other.text)
    same = common_characters(old, new) if same_part else 0
    return Parting(
        part=other.part,
        at=other.at,
        name=other.name,
        character=same,
        common=new[max(0, same - _AROUND) : same],
        before=old[same : same + _AROUND],
        after=new[same : same + _AROUND],
        reason=reason,
    )


def common_characters(one: str, other: str) -> int:
    """So many characters two texts begin with alike."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (left, right) in pairs if left != right), min(len(one), len(other)))
