"""The page of a pack: the request in stretches, lines that differ, and raw evidence."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from aether_context.errors import ArtifactError
from aether_context.evidence.record import evidence_key
from aether_context.pack import Layer
from aether_context.packing import payload
from aether_context.reading import PackView, Piece, TextChange
from aether_context.reading.difference import UNSENT
from aether_context.store import Manifest, PackStore
from aether_context.store.artifacts import ArtifactFiles, artifact_owner

_LAYERS: Mapping[str, Layer] = {"EVIDENCE": "evidence", "TOP EVIDENCE": "evidence", "MEMORY": "memory"}
"""The sections of a payload that belong to another layer than the task."""
_SECTION = re.compile(rf"^(?=(?:{'|'.join(payload.HEADERS)}):\n)", re.MULTILINE)
_BULLET = re.compile(r"^(?=- )", re.MULTILINE)
_MOST_LINES = 1_500
"""Most lines of two texts that are compared; of longer ones the beginnings are shown."""


class TextSpan(NamedTuple):
    """A stretch of a request: its layer and text, and the id of the row that it shows, empty without one."""

    layer: Layer
    text: str
    row: str = ""


def spans(request_piece: Piece, view: PackView) -> Iterator[TextSpan]:
    """The stretches of a piece; a packed message has one for each section and each line of evidence and memory."""
    if request_piece.part != "content":
        yield TextSpan("system" if request_piece.part == "system" else "tools", request_piece.text)
        return
    summary_id = view.summary.id if view.summary and request_piece.form == "summary" else ""
    row = next((name for name in request_piece.rows if name in view.rows), summary_id)
    layer: Layer = view.rows[row].layer if row in view.rows else "conversation"
    text_before, packed_text, text_after = request_piece.text.partition(f"{payload.FIRST_LINE}\n")
    if request_piece.form not in ("payload", "merged") or not packed_text:
        yield TextSpan(layer, request_piece.text, row)
        return
    if text_before:
        yield TextSpan(layer, text_before, row)
    # Content cannot imitate the headers of sections, since text from outside is indented.
    head, *sections = _SECTION.split(packed_text + text_after)
    yield TextSpan("task", head)
    for index, section in enumerate(sections):
        if section.startswith((payload.REQUEST, payload.HANDED_OVER)):
            yield TextSpan("task", "".join(sections[index:]), row)
            return
        layer = _LAYERS.get(section.partition(":")[0], "task")
        head, *bullets = _BULLET.split(section) if layer in ("evidence", "memory") else (section,)
        yield TextSpan(layer, head)
        yield from (TextSpan(layer, bullet, _candidate_shown(bullet, layer, view)) for bullet in bullets)


def _candidate_shown(bullet: str, layer: Layer, view: PackView) -> str:
    """The id of the candidate that a line of a payload shows; empty where none matches."""
    words = " ".join(bullet.split())
    for row in view.rows.values():
        if row.layer == layer and row.form not in UNSENT:
            text = " ".join(view.texts.get(row.id, "").split())[:80]
            if (row.uri and " ".join(row.uri.split()) in words) or (text and text in words):
                return row.id
    return ""


def changed_lines(change: TextChange) -> Sequence[tuple[str, str]]:
    """The lines that only one of two texts has, marked ``-`` or ``+``."""
    sides = [(mark, side.text) for mark, side in (("-", change.before), ("+", change.after)) if side is not None]
    if sum(text.count("\n") for _, text in sides) > _MOST_LINES:
        return [(mark, f"{text[:2_000]} … {len(text):,} characters") for mark, text in sides]
    return [(mark, line) for mark, line in change.lines if mark != " "]


def raw_of(store: PackStore, manifest: Manifest, uri: str) -> bytes | None:
    """The content of an address in the session of a pack; None where the store does not hold it.

    An address of another app, user or session is never looked up.
    """
    digits = evidence_key(uri)
    if digits is not None:
        digests = store.evidence_digests(manifest.app, manifest.user, digits)
        return store.evidence_data(manifest.app, manifest.user, digests[0]) if digests else None
    try:
        owner, name, number = artifact_owner(uri, manifest.session_key)
    except ArtifactError:
        return None
    for reading in (store.message, store.receipt) if number is None else ():
        if (data := reading(*manifest.session_key, name)) is not None:
            return data
    version = ArtifactFiles(store.files).load(owner, name, number)
    return version.data if version is not None else None
