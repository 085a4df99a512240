"""What a session's state knows of its evidence, and a state that is written to."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Set
from typing import Any

from cachetools import LRUCache
from google.adk.agents.callback_context import CallbackContext
from google.adk.sessions.state import State
from pydantic import BaseModel, TypeAdapter

from aether_context.adk.call import SessionKey, session_key
from aether_context.errors import StateError
from aether_context.evidence import EvidenceRecord, evidence_key, superseded
from aether_context.pack import valid

# A session's state, written to by what an agent or an app calls.


class Declared:
    """A session's state that refuses keys which the agent's schema lacks: ADK itself does so only after the tool.

    Args:
        dry: writes go to a copy, to see whether they would be refused.
    """

    def __init__(self, context: CallbackContext, *, dry: bool = False) -> None:
        self._state: State | dict[str, Any] = context.state.to_dict() if dry else context.state
        agent = context.get_invocation_context().agent
        self._schema: type[BaseModel] | None = None
        while agent is not None and self._schema is None:
            self._schema = agent.state_schema
            agent = getattr(agent, "parent_agent", None)

    def get(self, key: str, default: Any = None, /) -> Any:
        return self._state.get(key, default)

    def __setitem__(self, key: str, value: Any, /) -> None:
        if self._schema is not None and key not in self._schema.model_fields:
            raise StateError(f"the application has to declare {key!r} in the agent's state_schema first")
        self._state[key] = value


# What a session's state knows of its evidence.
#
# aether:evidence:{digits} what is known of a result that is not shown whole, by the digits of its address

_STATE = "aether:evidence:"
_RECORD = TypeAdapter(EvidenceRecord)
_MOST_SESSIONS = 64
_MOST_OF_STEP = 50


class Records:
    """The records of one session, and which of them a later reading supersedes.

    `read` works only on what changed since it was called last. A value that is the same object counts as unchanged:
    ADK keeps what is put into a state, not what is edited in one.
    """

    def __init__(self) -> None:
        self._names: Set[str] = frozenset()
        self._held: dict[str, object] = {}
        self._records: dict[str, EvidenceRecord] = {}
        self._calls: dict[str, dict[str, EvidenceRecord]] = {}
        self._later: dict[str, str] = {}

    def read(self, state: Mapping[str, Any]) -> None:
        """Takes over what a state says now."""
        if state.keys() == self._names:
            found = {key: state[key] for key in self._held}
        else:
            found = {key: value for key, value in state.items() if key.startswith(_STATE)}
            self._names = frozenset(state)
        before, self._held = self._held, found
        if found == before:
            return
        changed = [key for key, value in found.items() if before.get(key) is not value and before.get(key) != value]
        changed += before.keys() - found.keys()
        calls: set[str] = set()
        for key in changed:
            calls.add(self._forget(key))
            calls.add(self._learn(key, read_record(found.get(key))))
        for call in calls:
            self._compare(self._calls.get(call, {}))

    def by_digits(self) -> dict[str, EvidenceRecord]:
        """The records by the digits of their addresses."""
        return dict(self._records)

    def readings(self) -> dict[str, str]:
        """The addresses, each with that of a later reading that differs, empty where there is none."""
        return dict(self._later)

    def tools(self) -> frozenset[str]:
        """The tools of whose results the session keeps some."""
        return frozenset(record.source for record in list(self._records.values()) if record.arguments)

    def of_step(self, step: str) -> list[EvidenceRecord]:
        """The latest results that tools gave to a step, in their order, each the last answer to its call."""
        found = [record for record in list(self._records.values()) if record.arguments and record.step == step]
        return sorted((record for record in found if not self._later.get(record.uri)), key=_moment)[-_MOST_OF_STEP:]

    def latest(self, call: str) -> EvidenceRecord | None:
        """The last answer to a call, by `EvidenceRecord.call`; None where there is none."""
        return max(list(self._calls.get(call, {}).values()), key=_moment, default=None)

    def earlier(self, uri: str) -> str:
        """The address of the last reading before that of an address, which differs; empty where there is none."""
        record = self._records.get(evidence_key(uri) or "")
        group = list(self._calls.get(record.call, {}).values()) if record is not None else []
        before = [other for other in group if record is not None and _moment(other) < _moment(record)]
        return max(before, key=_moment).uri if before else ""

    def _forget(self, key: str) -> str:
        """Takes a record out; the call that it answered."""
        record = self._records.pop(key.removeprefix(_STATE), None)
        if record is None:
            return ""
        self._later.pop(record.uri, None)
        self._calls.get(record.call, {}).pop(key, None)
        return record.call

    def _learn(self, key: str, record: EvidenceRecord | None) -> str:
        """Takes a record in; the call that it answers."""
        if record is None:
            return ""
        self._records[key.removeprefix(_STATE)] = record
        self._later[record.uri] = ""
        if not record.source:
            return ""
        self._calls.setdefault(record.call, {})[key] = record
        return record.call

    def _compare(self, records: Mapping[str, EvidenceRecord]) -> None:
        """Notes which answers to one call its last one supersedes."""
        later = superseded(sorted(records.values(), key=_moment))
        for record in records.values():
            self._later[record.uri] = later.get(record.uri, "")


class SessionRecords:
    """The records of the sessions that were looked at last. Safe to share between threads."""

    def __init__(self) -> None:
        self._sessions: LRUCache[SessionKey, Records] = LRUCache(_MOST_SESSIONS)
        self._lock = threading.Lock()

    def of(self, context: CallbackContext) -> Records:
        """Those of a session, as its state has them now."""
        scope = session_key(context)
        with self._lock:
            found = self._sessions.get(scope)
            if found is None:
                found = self._sessions[scope] = Records()
            found.read(context.session.state)
        return found


def state_record(state: Mapping[str, Any], digits: str) -> EvidenceRecord | None:
    """The record of an address in a session's state; None where the session has none."""
    return read_record(state.get(f"{_STATE}{digits}"))


def put_record(context: CallbackContext, record: EvidenceRecord) -> None:
    """Writes what is known of evidence into a session's state; of equal bytes what came first stands.

    An equal call's time is that of its last answer, and a tool's result comes before what was kept by hand, since
    extracts in a request are found by their tool.
    """
    key = f"{_STATE}{evidence_key(record.uri)}"
    earlier = read_record(context.session.state.get(key))
    kept = record
    if earlier is not None and (earlier.arguments or not record.arguments):
        kept = earlier.model_copy(update={"time": record.time}) if earlier.call == record.call else earlier
    if kept != earlier:
        context.state[key] = kept.model_dump(mode="json", exclude_defaults=True)


def read_record(value: object) -> EvidenceRecord | None:
    """A record as it stands in a session's state; None where it is none."""
    return valid(_RECORD, value)


def _moment(record: EvidenceRecord) -> tuple[float, str]:
    return record.time or 0.0, record.uri
