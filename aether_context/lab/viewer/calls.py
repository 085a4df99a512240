"""Values that pages show: the calls of sessions, each with its manifest, what was reported of it, and flags; and of a
pack the request in stretches, lines that differ, and raw evidence."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from typing import NamedTuple

from cachetools import LRUCache

from aether_context.errors import AetherContextError, ArtifactError
from aether_context.evidence import evidence_key
from aether_context.lab.reading import Comparison, PackView, Piece, TextChange
from aether_context.lab.reading.cache import CacheWitness, PricedLoss
from aether_context.lab.reading.difference import UNSENT
from aether_context.lab.reading.tools import ToolUses
from aether_context.pack import NOTHING, Layer
from aether_context.packing import payload
from aether_context.store import Manifest, PackStore
from aether_context.store.artifacts import ArtifactFiles, artifact_owner
from aether_context.store.log import Outcomes
from aether_context.store.replay import Replayer
from aether_context.usage import CallUsage, Totals

_PLANNED = (None, "cut", "new_invocation")
"""Ends of a common prefix that are expected."""
_MOST_CALLS = 20_000
_MAPPINGS = ("counts", "stages", "weights", "signals", "layer_budgets")
_UNLISTED: Mapping[str, object] = {**dict.fromkeys(_MAPPINGS, NOTHING), "rows": (), "epoch": None}
"""Large fields that no list shows; without them a call takes 5 KB of memory."""


class Call(NamedTuple):
    """One call. Without a manifest it cannot be read; ``fault`` says why, or that it is not what was written.

    ``names`` begin with app, user and session.
    """

    pack_id: str
    names: tuple[str, str, str, *tuple[str, ...]]
    manifest: Manifest | None = None
    answer: CallUsage | None = None
    flags: Sequence[str] = ()
    fault: str = ""


class SessionView:
    """The calls of a session, the oldest first, their totals, and the manifest of the last one that could be read."""

    def __init__(self, calls: Sequence[Call]) -> None:
        self.calls = sorted(calls, key=lambda call: (call.pack_id[:28], call.manifest.call if call.manifest else 0))
        self.owner, self.last, self.totals = calls[-1].names[:3], calls[-1].manifest, Totals()
        self.flags = Counter(flag for call in calls for flag in call.flags)
        self.witness, self.losses = CacheWitness(), dict[str, PricedLoss | None]()
        for call in self.calls:
            if call.manifest is not None:
                self.owner, self.last = call.names[:3], call.manifest
                self.losses[call.pack_id] = self.witness.add(call.manifest, call.answer)
            if call.answer is not None:
                self.totals = self.totals.plus(Totals.of(call.answer))

    @property
    def compared(self) -> Comparison:
        """The calls with their packs, and an estimate of them without."""
        return Comparison((call.manifest, call.answer) for call in self.calls if call.manifest is not None)


def tool_rows(store: PackStore, calls: Iterable[Call]) -> list[tuple[str, int, int, int, str]]:
    """The tools of calls, as `ToolUses.rows`; what cannot be read is left out."""
    uses, replayer = ToolUses(), Replayer(store)
    for call in calls:
        with suppress(Exception):  # whoever can write into the store can put anything into its files
            if call.manifest is not None:
                uses.add(replayer, call.manifest.model_copy(), call.answer)
    return uses.rows


class CallReader:
    """The calls of a store. Those that are answered are read once: their packs are not written again."""

    def __init__(self, store: PackStore) -> None:
        self._store = store
        self._answered: LRUCache[str, Call] = LRUCache(_MOST_CALLS)

    def of(self, places: Iterable[str]) -> list[Call]:
        calls = {place: self._answered.get(place) for place in places}
        missing = [place for place, call in calls.items() if call is None]
        manifests = self._store.files.at_once(self._read, missing)
        outcomes = self._store.outcomes(filter(None, manifests))
        for path, manifest in zip(missing, manifests, strict=True):
            calls[path] = call = self._call(path, manifest, outcomes)
            if call.answer is not None:
                self._answered[path] = call
        return [call for call in calls.values() if call is not None]

    def _read(self, place: str) -> Manifest | None:
        with suppress(Exception):  # whoever can write into the store can put anything into its files
            return self._store.read(place)
        return None

    def _call(self, place: str, manifest: Manifest | None, outcomes: Outcomes) -> Call:
        *_, app, user, session, _, pack_id = place.split("/")
        outcome, fault = None, ""
        try:
            manifest = manifest or self._store.read(place)
            try:
                outcome = outcomes.of(manifest)
                manifest.verify()
            except AetherContextError as error:
                fault = str(error)
            answer = manifest.usage(outcome)
        except Exception as error:
            fault = (str(error) or type(error).__name__)[:500]
            return Call(pack_id, (app, user, session), flags=("cannot be read",), fault=fault)
        flags = {
            "not what was written": fault,
            "over the window": manifest.over_window,
            "invalid plan": manifest.validity == "invalid",
            "call failed": outcome is not None and outcome.get("error_code") is not None,
            "not done as asked": manifest.degradations,
            "evidence missing": manifest.evidence_needed,
            "prefix broken": manifest.prefix.broken_by not in _PLANNED,
        }
        names = (*manifest.session_key, manifest.agent, manifest.model, manifest.task_id, manifest.step_id)
        shown_flags = [flag for flag, holds in flags.items() if holds]
        return Call(pack_id, names, manifest.model_copy(update=_UNLISTED), answer, shown_flags, fault)


def by_session(places: Iterable[str]) -> list[list[str]]:
    """The places of packs by session, the session with the newest pack first."""
    sessions = [[*group] for _, group in groupby(sorted(places), key=lambda path: path.rsplit("/", 2)[0])]
    return sorted(sessions, key=lambda session: session[-1].rsplit("/", 1)[-1], reverse=True)


# The page of a pack.

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
