"""The calls of sessions for pages that list them: each with its manifest, what was reported of it, and flags."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from cachetools import LRUCache

from aether_context.errors import ChecksumMismatch, StoreError
from aether_context.pack import NOTHING
from aether_context.reading import Comparison
from aether_context.store import Manifest, PackStore
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


class Session:
    """The calls of a session, the oldest first, their totals, and the manifest of the last one that could be read."""

    def __init__(self, calls: Sequence[Call]) -> None:
        self.calls = sorted(calls, key=lambda call: (call.pack_id[:28], call.manifest.call if call.manifest else 0))
        self.owner, self.last, self.totals = calls[-1].names[:3], calls[-1].manifest, Totals()
        self.flags = Counter(flag for call in calls for flag in call.flags)
        for call in self.calls:
            if call.manifest is not None:
                self.owner, self.last = call.names[:3], call.manifest
            if call.answer is not None:
                self.totals = self.totals.plus(Totals.of(call.answer))

    @property
    def compared(self) -> Comparison:
        """The input of the calls with their packs, and an estimate of it without."""
        compared = Comparison()
        for call in self.calls:
            if call.manifest is not None:
                compared.add(call.manifest, call.answer)
        return compared


class CallReader:
    """The calls of a store. Those that are answered are read once: their packs are not written again."""

    def __init__(self, store: PackStore) -> None:
        self._store = store
        self._answered: LRUCache[str, Call] = LRUCache(_MOST_CALLS)

    def of(self, places: Iterable[str]) -> list[Call]:
        calls = {place: self._answered.get(place) for place in places}
        missing = [place for place, call in calls.items() if call is None]
        for place, call in zip(missing, self._store.files.at_once(self._read, missing), strict=True):
            calls[place] = call
            if call.answer is not None:
                self._answered[place] = call
        return [call for call in calls.values() if call is not None]

    def _read(self, place: str) -> Call:
        *_, app, user, session, _, pack_id = place.split("/")
        try:
            manifest, outcome, fault = self._store.read(place), None, ""
            try:
                outcome = self._store.outcome(manifest)
                manifest.verify()
            except (ChecksumMismatch, StoreError) as error:
                fault = str(error)
            answer = None if outcome is None else CallUsage.of_outcome(outcome, manifest.request_tokens)
            answer = None if answer is None else answer.priced(manifest.model, manifest.last_event_time)
        except Exception as error:  # whoever can write into the store can put anything into its files
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
