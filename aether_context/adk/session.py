"""The state that a session holds between calls: small, plain JSON under ``aether:`` keys, written only where it
changed.

    aether:epoch:{scope}                 boundary, marks, extract ceilings, how many of the next two there are
    aether:summary:{scope}:{number}      a part of the summary of what was cut: what a cut added to it, or all of it
    aether:payload:{scope}:{number}      a packed message, written once an invocation
    aether:line:{scope}:{number}         a long line of packed messages, such as a recalled turn, written once
    aether:thoughts:{scope}              the request before, by a hash, where the model binds its thoughts to it
    aether:tools:{scope}                 the declarations that are sent where not all are, written when they change
    aether:evidence                      what is known of results that are not shown whole, by their addresses' digits

``scope`` stands for agent and branch. An epoch that another session left there (ADK copies a parent's state into child
sessions) is not this session's and is ignored. All but evidence begins with ``temp:`` in the session of an agent that
runs as a tool, since ADK writes what else is in there into the state of the caller.

Whatever a later call has to send again stands here as plain text, since a store can be away, or another worker's own.
Of a packed message that ends in the message it stands for only what comes before that is written: the session has the
message itself. Of evidence the latest records stand here alone: the session's events hold what they wrote into its
state, and so all that has left it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, TypeAlias

from google.adk.agents.callback_context import CallbackContext
from google.adk.events.event import Event
from google.adk.sessions.state import State
from google.genai import types
from pydantic import BaseModel, TypeAdapter

from aether_context.adk.call import AgentKey, ModelCall, agent_key, caller_of, looks_quoted, session_key
from aether_context.canonical import canonical_json, hash_json, hash_text, short
from aether_context.errors import StateError
from aether_context.evidence import EvidenceRecord, evidence_key, superseded
from aether_context.pack import Epoch, Identity, Keep, PackedMessage, valid
from aether_context.plans import PlanShape, parse_plan
from aether_context.text.entities import SCHEME

# The epoch.

_MOST_PAYLOADS = 64
_MOST_PARTS = 16
_MOST_LINES, _LONG_LINE = 128, 60
"""Lines of packed messages that have a key of their own, and the characters from which on they have one."""
_EPOCH, _MESSAGE, _TOOLS = TypeAdapter(Epoch), TypeAdapter(PackedMessage), TypeAdapter(Mapping[str, Keep])
_ELSEWHERE = {"summary", "tools", "payloads", "last_request", "refusals"}
"""Fields of an epoch that have keys of their own."""
_ESCAPE = "json:"

OriginalOf: TypeAlias = Callable[[PackedMessage], str]
"""The text of the message that a packed one stands for, as the user wrote it; empty where the host does not show it."""


def load_epoch(state: Mapping[str, Any], identity: Identity, original_of: OriginalOf) -> Epoch:
    """The epoch that a session's state holds for an agent and branch; a new one where it holds none that is sound.

    A packed message whose own message the host does not show now is left out: there is nothing that it could stand for.
    """
    key = _keys(agent_key(identity))
    fields = _fields(state, key("epoch"), identity)
    count = fields.pop("payloads", 0)
    if not fields or type(count) is not int or not 0 <= count <= _MOST_PAYLOADS:
        return Epoch(number=0)
    parts, digest = fields.pop("summary_parts", None), fields.pop("summary_digest", None)
    summary = _summary(state, key("summary"), parts, digest) if fields.get("cut_count") else ""
    if summary is None:  # nothing would tell of what was cut: all of it is sent again instead
        return Epoch(number=0)
    fields["summary"] = summary
    if not fields.get("cut_count"):
        fields["summary_place"] = 0
    slots = (_fields(state, f"{key('payload')}:{slot}", identity) for slot in range(count))
    messages = map(partial(_message, state=state, line_key=key("line"), original_of=original_of), slots)
    fields["payloads"] = tuple(message for message in messages if message is not None)
    fields["tools"] = valid(_TOOLS, _fields(state, key("tools"), identity).get("kept")) or {}
    epoch = valid(_EPOCH, fields | _fields(state, key("thoughts"), identity))
    if epoch is None:
        return Epoch(number=0)
    # What is kept has to ascend below the boundary, so that no content can be sent twice.
    ends = [0, *(end for pair in epoch.kept for end in pair), epoch.cut_count]
    if ends != sorted(ends) or any(start >= stop for start, stop in epoch.kept):
        return Epoch(number=0)
    return epoch


def _fields(state: Mapping[str, Any], key: str, identity: Identity) -> dict[str, Any]:
    """Reads the fields of a key of a session's state beside the session's name; none where that is another's."""
    value = state.get(key)
    if not isinstance(value, Mapping) or value.get("session") != identity.session:
        return {}
    return {name: field for name, field in value.items() if name != "session"}


def _summary(state: Mapping[str, Any], key: str, parts: object, digest: object) -> str | None:
    """The summary in so many parts; None where that is not what was written."""
    if type(parts) is not int or not 0 <= parts <= _MOST_PARTS:
        return None
    part_texts = (state.get(f"{key}:{number}") for number in range(parts))
    summary = "".join(_plain(part) for part in part_texts if isinstance(part, str))
    return summary if short(hash_text(summary)) == digest else None


def _message(
    fields: dict[str, Any], state: Mapping[str, Any], line_key: str, original_of: OriginalOf
) -> PackedMessage | None:
    """A packed message from what state holds of it, its long lines under keys of their own; None where that is not
    what was written."""
    text, goes_on = fields.pop("text", None), fields.pop("goes_on", False)
    message = valid(_MESSAGE, {**fields, "text": ""})
    original = original_of(message) if message is not None and goes_on else ""
    rows = text if isinstance(text, list) else [text]
    stored = [
        state.get(f"{line_key}:{row}") if isinstance(row, int) and abs(row) < _MOST_LINES else row for row in rows
    ]
    whole = [_plain(row) for row in stored if isinstance(row, str)]
    if message is None or len(whole) < len(rows) or (goes_on and not original):
        return None
    return replace(message, text="\n".join(whole) + original, covers=tuple(map(_plain, message.covers)))


def has_cut(state: Mapping[str, Any], agent: AgentKey) -> bool:
    """Tells whether a session's state holds a cut of an agent's conversation."""
    value = state.get(_keys(agent)("epoch"))
    if not isinstance(value, Mapping) or value.get("session") != agent[2]:
        return False
    forms = value.get("forms")
    # A cut may have taken media alone.
    return bool(value.get("cut_count")) or (isinstance(forms, Mapping) and ["extract", 0] in forms.values())


def save_epoch(state: State, identity: Identity, previous: Epoch, current: Epoch, original_of: OriginalOf) -> None:
    """Writes what changed from one epoch to the next."""
    key = _keys(agent_key(identity))
    if previous.last_request != current.last_request:
        thoughts = {"last_request": list(current.last_request), "refusals": current.refusals}
        state[key("thoughts")] = {"session": identity.session, **thoughts}
    if replace(previous, last_request=current.last_request) == current:
        return
    stored: object = state.get(key("epoch"))
    saved: Mapping[str, Any] = stored if isinstance(stored, Mapping) else {}
    payloads = current.payloads[-_MOST_PAYLOADS:]
    # Where one could not be read, the others stand in slots other than theirs.
    saved_payloads = previous.payloads if saved.get("payloads") == len(previous.payloads) else ()
    used = {line for message in payloads for line in message.text.split("\n")}
    line_key = key("line")
    lines = ((number, state.get(f"{line_key}:{number}")) for number in range(_MOST_LINES))
    numbers = {line: number for number, row in lines if isinstance(row, str) and (line := _plain(row)) in used}
    free = iter(sorted(set(range(_MOST_LINES)).difference(numbers.values())))

    def as_stored(line: str) -> object:
        """A line, by its number where it is long: turns that are recalled are so by one question after another."""
        if line not in numbers and len(line) >= _LONG_LINE and (number := next(free, None)) is not None:
            numbers[line] = number
            state[f"{line_key}:{number}"] = _escaped(line)
        return numbers.get(line, _escaped(line))

    for slot, message in enumerate(payloads):
        if saved_payloads[slot : slot + 1] != (message,):
            written = _MESSAGE.dump_python(message, mode="json", exclude_defaults=True)
            original = original_of(message)
            goes_on = bool(original) and message.text.endswith(original)
            text = message.text.removesuffix(original) if goes_on else message.text
            written |= {"text": [*map(as_stored, text.split("\n"))]}
            if goes_on:
                written |= {"goes_on": True}
            if message.covers:
                written |= {"covers": [*map(_escaped, message.covers)]}
            state[f"{key('payload')}:{slot}"] = {"session": identity.session, **written}
    slots = saved.get("payloads")
    for slot in range(len(payloads), min(slots, _MOST_PAYLOADS) if type(slots) is int else 0):
        state[f"{key('payload')}:{slot}"] = None
    if current.tools != previous.tools:
        state[key("tools")] = {"session": identity.session, "kept": dict(current.tools)}
    fields = {
        "session": identity.session,
        **_EPOCH.dump_python(current, mode="json", exclude=_ELSEWHERE, exclude_defaults=True),
        "summary_parts": _save_summary(state, key("summary"), saved, previous.summary, current.summary),
        "summary_digest": short(hash_text(current.summary)),
        "payloads": len(payloads),
    }
    if fields != saved:
        state[key("epoch")] = fields


def distrust_thoughts(state: State, identity: Identity) -> dict[str, Any]:
    """Writes that a signed thought of an agent's was refused, so that all of them leave with its next request; returns
    what was written."""
    key = _keys(agent_key(identity))("thoughts")
    refusals = _fields({key: state.get(key)}, key, identity).get("refusals")
    state[key] = {"session": identity.session, "refusals": (refusals if type(refusals) is int else 0) + 1}
    return {key: state[key]}


def _save_summary(state: State, key: str, saved: Mapping[str, Any], previous_summary: str, new_summary: str) -> int:
    """Writes what a summary has more than the one before it, or all of it; returns in how many parts it is now."""
    parts = saved.get("summary_parts")
    there = parts if type(parts) is int and 0 <= parts <= _MOST_PARTS else 0
    saved_parts = there if previous_summary else 0  # else they are of something that could not be read
    if new_summary == previous_summary and (saved_parts or not new_summary):
        return saved_parts
    if 0 < saved_parts < _MOST_PARTS and new_summary.startswith(previous_summary):
        state[f"{key}:{saved_parts}"] = _escaped(new_summary.removeprefix(previous_summary))
        return saved_parts + 1
    for number in range(bool(new_summary), there):
        state[f"{key}:{number}"] = None
    if not new_summary:
        return 0
    state[f"{key}:0"] = _escaped(new_summary)
    return 1


def _keys(agent: AgentKey) -> Callable[[str], str]:
    """The keys of an agent and branch, by their kind. A session that began in an agent's call ends with it, and so do
    its keys."""
    caller = caller_of(agent[:3])
    prefix = "temp:" if caller is not None and caller.is_agent else ""
    return f"{prefix}aether:{{}}:{_scope(*agent[3:])}".format


@lru_cache(maxsize=512)
def _scope(branch: str, agent: str) -> str:
    return short(hash_json([branch, agent]), 8)


def _escaped(text: str) -> str:
    """A text that any session store takes, from which `_plain` gives the same text again."""
    sound = storable(text) == text and not text.startswith(_ESCAPE)
    return text if sound else _ESCAPE + json.dumps(text)


def _plain(stored: str) -> str:
    if not stored.startswith(_ESCAPE):
        return stored
    try:
        text = json.loads(stored.removeprefix(_ESCAPE))
    except ValueError:
        return stored
    return text if isinstance(text, str) else stored


def storable(text: str) -> str:
    """Text that any session store takes: lone surrogates and NUL become replacement characters."""
    if text.isascii() and "\0" not in text:
        return text
    return text.encode("utf-8", "replace").decode("utf-8").replace("\0", "\ufffd")


# The records of evidence.

_STATE = "aether:evidence"
ANCHORS = "aether:anchors"
"""A key of the session's state, and of an event's ``custom_metadata``: what is to be kept longer than others."""
_MOST_EVIDENCE = 5_600
"""Characters of JSON of the records in a session's state, those of the latest call aside."""
_RECORD = TypeAdapter(EvidenceRecord)
_TICK, _DAY = 1e-5, 86_400
"""Seconds, the first between events while a clock that was set back has not caught up."""


class Records:
    """The records of one session, and which of them a later reading supersedes.

    `update` works only where something changed since it was called last, and puts new mappings in the place of the old
    ones. What is edited in place is not noticed: ADK keeps what is put into a state.
    """

    def __init__(self) -> None:
        self.by_digits: Mapping[str, EvidenceRecord] = {}
        """The records by the digits of their addresses."""
        self.readings: Mapping[str, str] = {}
        """The addresses, each with that of a later reading that differs, empty where there is none."""
        self.artifacts: set[str] = set()
        """The addresses of the files that were saved in the session, as the session's events name them."""
        self.compacted_until = -1.0
        """The time of the last event that a summary of the host's stands for."""
        self.marked: set[str] = set()
        """Ids of the events that are marked to be kept longer than others."""
        self.planners: set[str] = set()
        """The agents whose answer ADK took over as the plan."""
        self.has_rewind = False
        """Whether a rewind is among the session's events."""
        self.authors: set[str] = set()
        """Of all of the session's events."""
        self.user_quotes: list[types.Content] = []
        """Messages of the user that open as ADK lets another agent's turn open."""
        self.told: dict[str, object] = {}
        """What the session's events hold, by digits."""
        self._held: object = None
        self._values: Mapping[str, object] = {}
        self._read, self._last_event = 0, ""
        self._time = self._latest_time = 0.0
        self._live: tuple[list[Event], bool] | None = None

    @classmethod
    def of(cls, context: CallbackContext) -> Records:
        """Those of a session, read anew."""
        records = cls()
        records.update(context.session.state, context.session.events)
        return records

    def update(self, state: Mapping[str, Any], events: Sequence[Event] = ()) -> None:
        """Takes over what a session's state and its events say now."""
        saved = state.get(_STATE)
        if not self._read_events(events) and saved == self._held:
            return
        previous_values, by_digits = self._values, self.by_digits
        self._held, self._values = saved, {**self.told, **(saved if isinstance(saved, Mapping) else {})}
        if self._values == previous_values:
            return
        records = {
            key: by_digits[key] if key in by_digits and previous_values[key] == value else valid(_RECORD, value)
            for key, value in self._values.items()
        }
        self.by_digits = {key: record for key, record in records.items() if record is not None}
        in_order = sorted(self.by_digits.values(), key=_moment)
        self.readings = dict.fromkeys((record.uri for record in in_order), "") | superseded(in_order)

    def _read_events(self, events: Sequence[Event]) -> bool:
        """Reads on in a session's events, or all of them anew where they are others than they were; of what a rewind
        took back nothing is known any more. Tells whether there are any that were not read."""
        is_continued = [event.id for event in events[self._read - 1 : self._read]] == [self._last_event]
        if (is_continued and len(events) == self._read) or (not events and not self.told):
            return False
        if not is_continued:
            self._read, self._time, self._latest_time, self._live = 0, 0.0, 0.0, None
            self.authors, self.user_quotes = set(), []
        new = list(events[self._read :])
        for event in new:
            self.authors.add(event.author)
            self._time = _next_time(self._time, event.timestamp)
            self._latest_time = max(self._latest_time, event.timestamp)
            if event.author == "user" and event.content is not None and looks_quoted(event.content):
                self.user_quotes.append(event.content)
        is_rewound = any(event.actions.rewind_before_invocation_id for event in new)
        if is_rewound or not is_continued:
            self.told, self.marked, self.artifacts, self.compacted_until, new = {}, set(), set(), -1.0, []
            self.planners, self.has_rewind = set(), False
            for event in events:
                if rewound := event.actions.rewind_before_invocation_id:
                    self.has_rewind = True
                    new = new[: next((at for at, old in enumerate(new) if old.invocation_id == rewound), len(new))]
                new.append(event)
            self._live = live_events(events) if self.has_rewind else None
        elif self._live is not None:
            self._live[0].extend(new)
        self._read, self._last_event = len(events), events[-1].id if events else ""
        for event in new:
            saved = event.actions.state_delta.get(_STATE)
            self.told.update(saved if isinstance(saved, Mapping) else {})
            if (event.custom_metadata or {}).get(ANCHORS):
                self.marked.add(event.id)
            if "plan" in event.actions.state_delta and _wrote_plan(event):
                self.planners.add(event.author)
            if event.actions.compaction:
                self.compacted_until = max(self.compacted_until, event.actions.compaction.end_timestamp)
            self.artifacts.update(f"{SCHEME}{name.removeprefix('user:')}" for name in event.actions.artifact_delta)
        return True

    def live(self, events: Sequence[Event]) -> tuple[Sequence[Event], bool]:
        """The events, which were read, as `live_events` has them."""
        return self._live or (events, False)

    def time(self, events: Sequence[Event]) -> float:
        """The time of the last event, at least that of those before it: ids stand in the order of calls, although a
        clock may have been set back, by a day at most."""
        if not events or self._latest_time <= (latest := events[-1].timestamp + _DAY):
            return self._time
        time = 0.0
        for event in events:
            time = _next_time(time, event.timestamp if event.timestamp <= latest else -1.0)
        return time

    def results(self, call: ModelCall) -> list[EvidenceRecord]:
        """The results of tools in a session since the host compacted it last; in that of an agent that runs as a tool,
        whose state begins as its caller's, those of its own tools."""
        invocation = call.context.invocation_id if call.caller is not None and call.caller.is_agent else ""
        return [
            record
            for record in self.by_digits.values()
            if record.limit and invocation in ("", record.invocation) and (record.time or 0.0) > self.compacted_until
        ]

    def earlier(self, uri: str) -> str:
        """The address of the last reading before that of an address, which differs; empty where there is none."""
        record = self.by_digits.get(evidence_key(uri) or "")
        if record is None or not record.source:
            return ""
        equal = sorted((other for other in self.by_digits.values() if other.call == record.call), key=_moment)
        return equal[at - 1].uri if (at := equal.index(record)) else ""


def _next_time(time: float, timestamp: float) -> float:
    return timestamp if time <= timestamp else time + _TICK


def live_events(events: Sequence[Event]) -> tuple[list[Event], bool]:
    """The events that no rewind took back, and whether one went back behind the first that is loaded: ADK then shows
    what it took back for as long as that is loaded."""
    if not any(event.actions.rewind_before_invocation_id for event in events):
        return list(events), False
    live, at = list[Event](), len(events) - 1
    while at >= 0:
        if target := events[at].actions.rewind_before_invocation_id:
            begin = next((begin for begin in range(at) if events[begin].invocation_id == target), None)
            if begin is None:
                return live[::-1], True
            at = begin
        else:
            live.append(events[at])
        at -= 1
    return live[::-1], False


def _wrote_plan(event: Event) -> bool:
    """Tells whether ADK put an event's text into the state as the plan, for the ``output_key`` of its agent."""
    plan = event.actions.state_delta.get("plan")
    parts = (event.content.parts if event.content is not None and plan else None) or ()
    text = "".join(part.text or "" for part in parts if not part.thought)
    if not text or text == plan:
        return bool(text)
    written, stored = (parse_plan(value).plan or PlanShape() for value in (text, plan))
    return written.steps == stored.steps


RecordsOf: TypeAlias = Callable[[CallbackContext], Records]
"""What is known of a session's evidence, with what its state has now."""


def put_records(context: CallbackContext, records: Sequence[EvidenceRecord], records_of: RecordsOf) -> None:
    """Writes what is known of evidence into a session's state; of equal bytes what came first stands.

    An equal call's time is that of its last answer, and a tool's result comes before what was kept by hand, since
    extracts in a request are found by their tool. The oldest records leave the state. In the session of an agent that
    runs as a tool its own ones stay, since nothing but the state reaches its caller.
    """
    saved = context.session.state.get(_STATE)
    if not (saved or records):
        return
    index = records_of(context)
    # Tools and models write session state, too: what is no record would end the run where a store has to take it again.
    there = [digits for digits in saved if digits in index.by_digits] if isinstance(saved, Mapping) else ()
    serialized = {digits: index.by_digits[digits].model_dump(mode="json", exclude_defaults=True) for digits in there}
    caller, staying = caller_of(session_key(context)), set[str]()
    for record in records:
        digits = evidence_key(record.uri) or ""
        earlier = valid(_RECORD, serialized.get(digits)) or index.by_digits.get(digits)
        if earlier is not None and (earlier.arguments or not record.arguments):
            record = earlier.model_copy(update={"time": record.time}) if earlier.call == record.call else earlier
        if record != earlier:
            serialized.pop(digits, None)
            serialized[digits] = record.model_dump(mode="json", exclude_defaults=True)
            staying.add(digits)
    if caller is not None and caller.is_agent:
        staying.update(index.told)
    sizes = {digits: len(canonical_json(value)) for digits, value in serialized.items()}
    over = sum(sizes.values()) - _MOST_EVIDENCE
    for digits in sorted(serialized.keys() - staying, key=lambda digits: _moment(valid(_RECORD, serialized[digits]))):
        if over <= 0:
            break
        over -= sizes[digits]
        del serialized[digits]
    serialized = json.loads(storable(json.dumps(serialized, ensure_ascii=False)))
    if serialized != (saved or {}):
        context.state[_STATE] = serialized


def _moment(record: EvidenceRecord | None) -> tuple[float, str]:
    return (record.time or 0.0, record.uri) if record is not None else (0.0, "")


class Declared:
    """A session's state that refuses keys which the agent's schema lacks: ADK itself does so only after the tool. With
    ``dry`` writes go to a copy, to see whether they would be refused."""

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
