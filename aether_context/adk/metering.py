"""What providers report, kept for the next estimate: an anchor for each conversation, a ratio for each user and model.

A ratio stands in the session's state and, across sessions, in the store. The anchor stands in the metadata of the last
answer, so that it costs no state, and every process goes on from it alike: what this process remembers of a
conversation counts only where its events say nothing.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from google.adk.events.event import Event
from google.adk.sessions.state import State

from aether_context.adk.bounded import keep
from aether_context.adk.epochs import Scope, scope_key
from aether_context.adk.usage import METADATA
from aether_context.canonical import JSON, hash_text, short
from aether_context.errors import AetherContextError
from aether_context.pack import Calibration, Identity, Ingredients, Pack
from aether_context.policy import UsageSettings
from aether_context.store import PackStore
from aether_context.usage.calibration import Anchor, TokenRatio, calibration, report

_STATE_KEY = "aether:calibration"
_MOST_SCOPES = 2_048
_MOST_RATIOS = 4_096
_STORE_SECONDS = 0.5
_UNSEEN_SHARE = 0.5


class _Owner(NamedTuple):
    """Whose ratio: ``by`` names the model and the counter, since a ratio holds between these two."""

    app: str
    user: str
    by: str


@dataclass(slots=True)
class _Meter:
    """One conversation's anchor. ``unseen`` belongs to ``invocation``; ``reported_in`` is where usage came last."""

    anchor: Anchor | None = None
    reported_in: str = ""
    invocation: str = ""
    unseen: int = 0


class Meters:
    """Learns from usage, and says what the next estimate stands on. Safe to share between sessions and event loops.

    Args:
        write: queues a user's ratio for the store.
    """

    def __init__(self, store: PackStore, write: Callable[[Identity, str, JSON], None]) -> None:
        self._store = store
        self._write = write
        self._meters: OrderedDict[Scope, _Meter] = OrderedDict()
        self._ratios: OrderedDict[_Owner, TokenRatio] = OrderedDict()
        self._written: dict[_Owner, TokenRatio] = {}
        self._lock = threading.Lock()

    async def begin(self, source: Ingredients, counter: str, state: Mapping[str, Any]) -> None:
        """Reads the ratio that another process may have left, where this one knows none yet. Never raises."""
        owner = _owner(source, counter)
        if owner in self._ratios:
            return
        held = TokenRatio.from_json(_held(state.get(_STATE_KEY)).get(owner.by))
        try:
            async with asyncio.timeout(_STORE_SECONDS):
                stored = TokenRatio.from_json(await asyncio.to_thread(self._store.calibration, *owner))
        except (AetherContextError, TimeoutError):
            stored = None
        found = [ratio for ratio in (held, stored) if ratio is not None]
        best = max(found, key=lambda ratio: ratio.samples, default=TokenRatio())
        keep(self._ratios, owner, best, _MOST_RATIOS)

    def calibration(
        self, source: Ingredients, counter: str, settings: UsageSettings, events: list[Event]
    ) -> Calibration | None:
        """What this request is estimated by, after what the session's events say of the last one."""
        identity, owner = source.identity, _owner(source, counter)
        meter = self._meter(identity, events)
        if not (settings.anchor or settings.calibrate):
            return None
        anchor = meter.anchor if settings.anchor else None
        ratio = self._ratios.get(owner, TokenRatio()) if settings.calibrate else TokenRatio()
        if meter.invocation != identity.invocation:
            beyond = anchor.beyond if anchor is not None else 0
            meter.invocation = identity.invocation
            meter.unseen = max(0, min(beyond, int(_UNSEEN_SHARE * source.window)))
        here = meter.reported_in == identity.invocation
        return calibration(anchor, ratio, model=owner.by, epoch=source.epoch.number, here=here, unseen=meter.unseen)

    def reported(self, pack: Pack, counter: str, tokens: int, settings: UsageSettings) -> None:
        """Takes in what the provider reported for a pack: input tokens, cached ones included."""
        identity, owner = pack.identity, _owner(pack.source, counter)
        meter = self._meters.get(scope_key(identity))
        if meter is None or tokens > 2 * pack.source.window:
            return
        ratio = self._ratios.get(owner, TokenRatio())
        with self._lock:
            meter.anchor, learned = report(
                meter.anchor,
                ratio,
                model=owner.by,
                epoch=pack.epoch.number,
                counted=pack.counted_tokens,
                reported=tokens,
                learns=settings.calibrate,
            )
            meter.reported_in = identity.invocation
            if learned is not ratio:
                keep(self._ratios, owner, learned, _MOST_RATIOS)

    def note(self, pack: Pack) -> dict[str, JSON]:
        """What an answer's event says of its request: the estimate, and what another process goes on from."""
        meter = self._meters.get(scope_key(pack.identity))
        noted: dict[str, JSON] = {"request_tokens": pack.request_tokens}
        if meter is not None and meter.anchor is not None:
            held = {"anchor": meter.anchor.to_json(), "invocation": meter.reported_in, "unseen": meter.unseen}
            noted["meter"] = held
        return noted

    def _meter(self, identity: Identity, events: list[Event]) -> _Meter:
        """The conversation's meter as its events have it; as it is remembered where they have none."""
        scope = scope_key(identity)
        held = self._meters.get(scope)
        found = _meter_of(events, identity, latest=held is not None) or held or _Meter()
        if found is not held:
            keep(self._meters, scope, found, _MOST_SCOPES)
        return found

    def save(self, source: Ingredients, counter: str, state: State, *, store: bool) -> None:
        """Puts a ratio that moved into the session's state and, where ``store`` says so, into the store's queue."""
        owner = _owner(source, counter)
        ratio = self._ratios.get(owner)
        if ratio is None or not ratio.samples:
            return
        held = _held(state.get(_STATE_KEY))
        if ratio.moved(TokenRatio.from_json(held.get(owner.by))):
            state[_STATE_KEY] = {**held, owner.by: ratio.to_json()}
        if store and ratio.moved(self._written.get(owner)):
            self._written[owner] = ratio
            self._write(source.identity, owner.by, ratio.to_json())


def _owner(source: Ingredients, counter: str) -> _Owner:
    by = f"{source.request.model}-{short(hash_text(counter), 6)}"
    return _Owner(source.identity.app, source.identity.user, by)


def _meter_of(events: list[Event], identity: Identity, *, latest: bool) -> _Meter | None:
    """What the last answer of this agent noted, or with ``latest`` false an earlier one; None where none did."""
    for event in reversed(events):
        if event.author != identity.agent or (event.branch or "") != identity.branch:
            continue
        noted = (event.custom_metadata or {}).get(METADATA)
        meter = noted.get("meter") if isinstance(noted, Mapping) else None
        if isinstance(meter, Mapping):
            unseen, reported_in = meter.get("unseen"), meter.get("invocation")
            return _Meter(
                anchor=Anchor.from_json(meter.get("anchor")),
                reported_in=reported_in if isinstance(reported_in, str) else "",
                invocation=event.invocation_id,
                unseen=unseen if type(unseen) is int and unseen >= 0 else 0,
            )
        if latest and event.content is not None and event.content.role == "model":
            return None
    return None


def _held(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
