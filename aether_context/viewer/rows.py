"""A small row for each pack of a store, for pages that show many packs. Each file is read once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from sys import intern
from typing import Annotated, Any, ClassVar, TypeAlias

from cachetools import LRUCache
from pydantic import ConfigDict, Field, FiniteFloat, TypeAdapter, ValidationError

from aether_context.canonical import JSON, canonical_json, hash_text
from aether_context.errors import AetherContextError, ChecksumMismatch, ManifestError, PackNotFound
from aether_context.pack import LAYERS
from aether_context.policy import PackPolicy
from aether_context.store import Manifest, PackStore
from aether_context.store.files import File
from aether_context.store.pack_file import ENDING, fields_of, parsed
from aether_context.store.replay import Replayer
from aether_context.usage import CallUsage

MOST_PACKS = 20_000
"""The most rows that are kept, those of the newest packs: about 20 MB."""
_PLANNED = ("cut", "new_invocation")
"""Expected reasons for the end of a common prefix."""
_LISTING_PAUSE_FACTOR = 10
"""Packs are listed again at the earliest after this many times the seconds that the last listing took."""
_INVALID_FIELDS = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
"""The exceptions that reading fields raises where they are not those of a manifest."""
_MOST = 10**15
_Number: TypeAlias = Annotated[int, Field(ge=-_MOST, le=_MOST)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One pack in a list.

    Attributes:
        place: its place below the store's base: ``app/user/session/packs/pack_id`` in safe names.
        stamp: size and time of its file when it was read.
        fault: why it does not verify or could not be read; empty where it is valid.
        budget: the most tokens of the request: the window without the slack.
        used: tokens by layer, in the order of `LAYERS`.
        left_out: number of declarations that were not sent.
        cut: stage, reason and freed tokens of each truncation event.
        answered: the reported usage, None where no answer is recorded or the call failed.
        error: the error code of a call that failed.
    """

    __pydantic_config__: ClassVar[ConfigDict] = {"revalidate_instances": "always", "strict": True}

    place: str
    stamp: tuple[int, float | None]
    pack_id: str
    app: str = ""
    user: str = ""
    session: str = ""
    agent: str = ""
    branch: str = ""
    invocation: str = ""
    call: _Number = 0
    time: FiniteFloat = 0.0
    task: str = ""
    step: str = ""
    model: str = ""
    window: _Number = 0
    budget: _Number = 0
    policy: str = ""
    previous: str = ""
    used: tuple[_Number, ...] = (0,) * len(LAYERS)
    estimate: _Number = 0
    counted: _Number = 0
    over_window: _Number = 0
    validity: str = ""
    degradations: _Number = 0
    needed: _Number = 0
    left_out: _Number = 0
    shared: _Number | None = None
    broken_by: str = ""
    epoch: _Number = 0
    epoch_reason: str = ""
    cut: tuple[tuple[str, str, _Number], ...] = ()
    answered: CallUsage | None = None
    error: str = ""
    fault: str = ""

    @property
    def session_place(self) -> str:
        return self.place.rsplit("/", 2)[0]

    @property
    def cost(self) -> Decimal | None:
        return self.answered.cost_usd if self.answered is not None else None

    @property
    def flags(self) -> tuple[str, ...]:
        """The names in `FLAGS` that apply to it."""
        holds_by_flag = {
            "over": self.over_window > 0,
            "degraded": self.degradations > 0,
            "invalid": self.validity == "invalid",
            "unverified": bool(self.fault),
            "broken": self.broken_by not in ("", *_PLANNED),
            "needed": self.needed > 0,
            "failed": bool(self.error),
        }
        return tuple(name for name, holds in holds_by_flag.items() if holds)


_ROW = TypeAdapter(Row)

FLAGS: Mapping[str, str] = {
    "over": "over the window",
    "degraded": "degraded",
    "invalid": "invalid plan",
    "unverified": "not verified",
    "broken": "prefix broken",
    "needed": "evidence missing",
    "failed": "call failed",
}


@dataclass(slots=True)
class PackRows:
    """The rows of a store's newest packs. A file is read only when it is new or was changed.

    ``unread`` is the number of packs that are listed but not read yet, ``older`` of those beyond the newest ``most``.
    """

    store: PackStore
    most: int = MOST_PACKS
    unread: int = 0
    older: int = 0
    _rows: dict[str, Row] = field(default_factory=dict)
    _list_after: float = 0.0

    def all(self, *, most_seconds: float | None = None) -> list[Row]:
        """Rows of all packs, the newest first, as far as they could be read within ``most_seconds``."""
        if self.unread == 0 and time.monotonic() < self._list_after:
            return self._newest(self._rows.values())
        began = time.monotonic()
        sessions = self.store.sessions()
        listings = self.store.files.at_once(self.store.pack_files, sessions)
        files = sorted((file for files in listings for file in files), key=lambda file: file.name, reverse=True)
        seconds = time.monotonic() - began
        self._list_after = time.monotonic() + _LISTING_PAUSE_FACTOR * seconds
        self.older = max(0, len(files) - self.most)
        files_by_place = {self._place(file): file for file in files[: self.most]}
        self._rows = {place: row for place, row in self._rows.items() if place in files_by_place}
        self.unread = self._read(files_by_place, most_seconds)
        return self._newest(self._rows.values())

    def of_session(self, place: str, *, most_seconds: float | None = None) -> tuple[list[Row], int]:
        """Rows of a session's packs, the newest first, and the number of packs that are not read yet."""
        files = sorted(self.store.pack_files(f"{self.store.files.root}/{place}"), key=lambda file: file.name)
        files_by_place = {self._place(file): file for file in files[-self.most :][::-1]}
        deleted = [
            name for name, row in self._rows.items() if row.session_place == place and name not in files_by_place
        ]
        for name in deleted:
            del self._rows[name]
        unread = self._read(files_by_place, most_seconds)
        return self._newest(row for name in files_by_place if (row := self._rows.get(name)) is not None), unread

    def _place(self, file: File) -> str:
        return file.path.removeprefix(f"{self.store.files.root}/").removesuffix(ENDING)

    def _read(self, files_by_place: Mapping[str, File], most_seconds: float | None) -> int:
        """Reads the files that are new or changed, in their order; returns how many are left unread."""
        deadline = None if most_seconds is None else time.monotonic() + most_seconds
        unread = 0
        for place, file in files_by_place.items():
            stamp = (file.size, file.modified)
            row_before = self._rows.get(place)
            if row_before is not None and row_before.stamp == stamp:
                continue
            if deadline is not None and time.monotonic() > deadline:
                unread += 1
                continue
            row = read_row(self.store, place, stamp)
            if row is not None:
                self._rows[place] = row
        return unread

    @staticmethod
    def _newest(rows: Iterable[Row]) -> list[Row]:
        return sorted(rows, key=lambda row: (row.time, row.call, row.pack_id), reverse=True)


def read_row(store: PackStore, place: str, stamp: tuple[int, float | None]) -> Row | None:
    """The row of the pack at a place below the store's base; None where it was deleted."""
    store_place = f"{store.files.root}/{place}"
    fault = ""
    try:
        lines = store.lines(store_place)
        if lines is None:
            return None
        fields = store.filled(store_place, fields_of(lines[0]))
        digest = fields.get("digest")
        if hash_text(canonical_json({name: value for name, value in fields.items() if name != "digest"})) != digest:
            manifest = Manifest.of(fields)  # so that the fields at least have the right types
            try:
                manifest.verify()
            except ChecksumMismatch as error:
                fault = str(error)
            fields = manifest.model_dump(mode="json")
        row = _row(place, stamp, fields, parsed(lines[2]) if lines[2] else None, fault)
        return _ROW.validate_python(row)
    except ValidationError as error:
        first = error.errors()[0]
        return _unreadable(place, stamp, f"not a manifest: {first['loc'][0]}: {first['msg']}")
    except (ManifestError, PackNotFound, *_INVALID_FIELDS) as error:
        return _unreadable(place, stamp, str(error) or type(error).__name__)


def policies_of(store: PackStore) -> Callable[[Row], PackPolicy | None]:
    """A function that returns the policy of a row's pack, None where it cannot be read. Each blob is read once."""
    policies: LRUCache[tuple[str, str, str], PackPolicy | None] = LRUCache(256)

    def policy_of(row: Row) -> PackPolicy | None:
        key = (row.app, row.user, row.policy)
        if key not in policies:
            try:
                policies[key] = Replayer(store).policy(store.read(f"{store.files.root}/{row.place}"))
            except (AetherContextError, ValueError):
                policies[key] = None
        return policies[key]

    return policy_of


def _unreadable(place: str, stamp: tuple[int, float | None], fault: str) -> Row:
    app, user, session, _, pack_id = place.split("/")
    return Row(place=place, stamp=stamp, pack_id=pack_id, app=app, user=user, session=session, fault=fault)


def _row(place: str, stamp: tuple[int, float | None], fields: Mapping[str, Any], outcome: JSON, fault: str) -> Row:
    """A row from the fields of a manifest, in which defaults are left out."""
    allocation: Mapping[str, Mapping[str, int]] = fields["allocation"]
    used = tuple(allocation[layer]["used"] if layer in allocation else 0 for layer in LAYERS)
    slack = allocation.get("slack", {}).get("final", 0)
    prefix, tools = fields["prefix"], fields["tools"]
    outcome_fields = outcome if isinstance(outcome, dict) else None
    usage = None if outcome_fields is None else CallUsage.of_outcome(outcome_fields, fields["request_tokens"])
    error = None if outcome_fields is None else outcome_fields.get("error_code")
    events = fields.get("truncation_events", ())
    names = ("app", "user", "session", "agent", "branch", "invocation", "model", "policy")
    return Row(
        place=place,
        stamp=stamp,
        pack_id=fields["pack_id"],
        **{name: intern(fields.get(name, "")) for name in names},
        call=fields["call"],
        time=float(fields.get("last_event_time", 0.0)),
        task=intern(fields.get("task_id", "")),
        step=intern(fields.get("step_id", "")),
        window=fields["window"],
        budget=fields["window"] - slack,
        previous=fields.get("previous") or "",
        used=used,
        estimate=fields["request_tokens"],
        counted=fields.get("counted_tokens", 0),
        over_window=fields.get("over_window", 0),
        validity=intern(fields["validity"]),
        degradations=len(fields.get("degradations", ())),
        needed=len(fields.get("evidence_needed", ())),
        left_out=len(tools.get("left_out", ())),
        shared=prefix.get("shared_tokens"),
        broken_by=intern(prefix.get("broken_by") or ""),
        epoch=fields["epoch"]["number"],
        epoch_reason=intern(fields.get("epoch_reason") or ""),
        cut=tuple(
            (intern(event["stage"]), intern(event["reason"]), event["tokens_before"] - event["tokens_after"])
            for event in events
        ),
        answered=usage and usage.priced(fields["model"], fields.get("last_event_time", 0.0)),
        error="" if error is None else str(error),
        fault=fault,
    )
