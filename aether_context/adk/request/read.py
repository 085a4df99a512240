"""A call's contents, each with its entry: all of a session's, or the part of it that its host loads."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from google.adk.events.event import Event
from google.adk.sessions.base_session_service import GetSessionConfig
from google.adk.sessions.state import State
from google.genai import types

from aether_context.adk.bounds import Waits, aside
from aether_context.adk.call import ModelCall, looks_quoted
from aether_context.adk.request.archive import Archive
from aether_context.adk.request.entries import CallHistory, extended, first_position, origins_of, same_until
from aether_context.adk.request.host_request import HostRequest, host_request, request_index_of
from aether_context.adk.request.reader import Authors, Reader, is_answer, is_message
from aether_context.adk.request.sessions import AgentSession
from aether_context.adk.session import Records, live_events, load_epoch
from aether_context.conversation.epoch import live_positions
from aether_context.pack import NOTHING, Epoch, Identity, noted

CHILDS_ARTIFACTS = "ForwardingArtifactService"
"""The artifact service that ADK gives to agents that run as tools, and to nothing else."""
CONTENT_CHARACTERS = 500
"""What a content is taken to have."""


@dataclass(slots=True)
class CallReading:
    """A call's request, its contents in their places, and the epoch that its session is in.

    ``request_index`` is the place of the message that is answered, ``last_answer`` the number of the loaded contents up
    to the model's last one. Contents before ``begin`` are not sent, since ``unsent`` is what is missing, in words.
    ``rewound`` is the event that last rewrote the session. ``loads`` names the part of the session that the host
    loaded, empty for all; ``is_tracked`` is set where places are counted from the session's beginning.
    """

    identity: Identity
    host: HostRequest
    history: CallHistory
    epoch: Epoch
    rewound: str
    request_index: int | None
    last_answer: int
    begin: int
    unsent: Sequence[str]
    loads: str
    is_tracked: bool


class HistoryReader:
    """Reads what hosts show of sessions; what they do not load any more, out of the archive."""

    def __init__(self, reader: Reader, archive: Archive, waits: Waits) -> None:
        self._reader, self._archive, self._waits = reader, archive, waits

    async def read(self, call: ModelCall, session: AgentSession, records: Records) -> CallReading:
        """Reads a call of an agent."""
        session.read_for(call.model)
        events, identity = call.context.session.events, _identity(call, records)
        live, is_behind = records.live(events)
        setting = getattr(call.invocation.run_config, "get_session_config", None)
        loads = _loads(call, setting) if setting is not None else ""
        rewound = "" if loads else _rewound(call, events)
        if not loads:
            self._archive.begin(session, rewound)
        # Where the host loads a part of the events, an index says nothing.
        indexed = AgentSession(session.key, session.owner, session.cache) if loads else session
        host = host_request(call, self._reader, indexed)
        raw, request_index, last_answer = host.contents, host.request_index, host.last_answer
        if loads and is_behind:
            start = min(origins_of(raw, live), default=request_index or 0)
            raw, last_answer = raw[start:], max(0, last_answer - start)
            request_index = request_index_of(raw, call.context.user_content)
        is_tracked = _is_tracked(call, raw, loads)
        begin, unsent = _unloaded(call, raw, loads) if loads else (0, list[str]())
        message = call.context.user_content
        quotes = [*records.user_quotes, *([message] if message is not None and looks_quoted(message) else ())]
        authors = Authors(records.authors, [content.parts for content in quotes])
        history = CallHistory(raw, 0, indexed.entries, self._reader, call.model, authors.authored)
        same = host.same
        if loads and is_tracked:
            epoch = load_epoch(call.state, identity, lambda message: message.of)
            rewound = await self._follow(call, session, epoch, raw, live)
            history.entries, first = session.entries, first_position(raw, live, identity.agent, identity.branch)
            if first is None:
                history.entries = await self._archive.load(session, session.entries[: session.stable_end], None, call)
            history.first = len(history.entries) if first is None else first
            if history.first or first is not None:
                begin, unsent = await self.load(call, session, history, live_positions(epoch, history.first))
            same = same_until(history.entries, raw, self._reader, history.first)
        elif loads:
            rewound = _rewound(call, events)
        # Off the event loop where many contents are new.
        extend = partial(extended, history.entries, raw, tuple(live), same, self._reader, history.first)
        history.entries = await aside(CONTENT_CHARACTERS * (history.count - same), extend)
        epoch = load_epoch(call.state, identity, history.original_text)
        # Where the last cut was made is not looked at before the loaded contents.
        history.digests = {**dict(epoch.anchors), epoch.cut_count - 1: epoch.cut_hash}
        request_index = request_index + history.first if request_index is not None else None
        return CallReading(
            identity, host, history, epoch, rewound, request_index, last_answer, begin, unsent, loads, is_tracked
        )

    async def load(
        self, call: ModelCall, session: AgentSession, history: CallHistory, positions: Collection[int]
    ) -> tuple[int, list[str]]:
        """Puts the contents at places before the loaded ones into a history, as they were sent last or as the store
        holds them; returns the first that is sent, a user's message where some are lost, and what is lost, in words."""
        history.entries = await self._archive.load(session, history.entries, history.first, call, positions)
        loaded_before = enumerate(history.entries[: history.first])
        history.earlier = {at: entry.raw for at, entry in loaded_before if entry and entry.raw}
        history.clear()
        missing = [at for at in positions if at not in history.earlier]
        begin = max(missing, default=-1) + 1
        # A history that few events began may open in the middle of a turn.
        if missing or (history.first and 0 in positions):
            begin = next((at for at in range(begin, history.count) if is_message(history.raw(at))), begin)
        problem = f"{len(missing):,} contents before the loaded events are not sent: {session.problem}"
        return begin, [problem] if missing else []

    async def _follow(
        self, call: ModelCall, session: AgentSession, epoch: Epoch, raw: Sequence[types.Content], live: Sequence[Event]
    ) -> str:
        """Lets a session's entries begin with the event that last rewrote it, and returns that event's id."""
        if session.rewound is None or not session.is_placed:
            session.forget()
            self._archive.begin(session, epoch.rewound)
        rewound = _rewound(call, call.context.session.events)
        is_placed = first_position(raw, live, call.key[4], call.key[3]) is not None
        if is_placed and session.rewound == rewound:
            return rewound
        # The host loads a part of the events. All are read once, to see what is left of those that are not loaded.
        adk_session, within = call.context.session, partial(self._waits.within, "rewind", call.invocation.invocation_id)
        load = partial(call.invocation.session_service.get_session, app_name=adk_session.app_name)
        try:
            entries = await self._archive.load(session, session.entries[: session.stable_end], None, call)
            if not entries:
                self._archive.begin(session, rewound)
                return rewound
            whole = await within(load(user_id=adk_session.user_id, session_id=adk_session.id))
            events = whole.events if whole is not None else ()
            rewound = _rewound(call, events)
            every = live_events(events)[0]
            compactions = [event.actions.compaction for event in every if event.actions.compaction]
            until = max((compaction.end_timestamp for compaction in compactions), default=0.0)
            live_ids = {event.id for event in every if event.timestamp > until}
            await within(self._archive.survive(session, entries, rewound, live_ids))
        except Exception as error:  # nothing from before the loaded events is sent, then
            self._archive.begin(session, rewound)
            session.problem = f"what a rewind or a compaction left could not be read ({type(error).__name__})"
        return rewound


def _identity(call: ModelCall, records: Records) -> Identity:
    """Whose model call this is; the call's number is read off the session's events."""
    invocation, events, last = call.invocation.invocation_id, call.context.session.events, call.last
    app, user, session, branch, agent = call.key
    previous = last.pack.identity if last is not None and last.pack.identity.invocation == invocation else None
    number = 1
    for event in reversed(events):
        if previous is not None and event.id == previous.last_event_id:
            number += previous.call - 1  # those up to here were counted for the call before
            break
        if event.invocation_id != invocation:
            break
        number += is_answer(event, agent, branch)
    return Identity(
        app,
        user,
        session,
        invocation,
        agent,
        branch,
        number + call.is_second_try,
        last_event_id=events[-1].id if events else "",
        last_event_time=records.time(events),
        caller=call.caller.session if call.caller is not None else None,
    )


def _loads(call: ModelCall, setting: GetSessionConfig) -> str:
    """Names the part of a session's events that the host loaded; empty where it loaded all."""
    events, limit = call.context.session.events, setting.num_recent_events
    # The message that began this invocation is appended to those that were loaded.
    count = sum(event.invocation_id != call.invocation.invocation_id for event in events) if limit is not None else 0
    if limit is not None and count >= limit:
        return f"only the last {limit} events"
    return "only later events" if setting.after_timestamp is not None else ""


def _is_tracked(call: ModelCall, contents: Sequence[types.Content], loads: str) -> bool:
    """Tells whether contents are numbered from the session's beginning on.

    Not where the agent is shown a part of the session alone, nor where the host took some of it away: those that are
    shown without a user's message before them may stand behind a compaction's summary.
    """
    agent, events = call.invocation.agent, call.context.session.events
    if call.passthrough_reason or getattr(agent, "include_contents", "default") != "default":
        return False
    if getattr(call.invocation, "isolation_scope", None) is not None:
        return False
    looks_whole = not loads and (not contents or contents[0].role == "user")
    return looks_whole or not any(event.actions.compaction for event in events)


REWOUND = "aether:rewound"


def session_note(state: Mapping[str, Any] | State, key: str, session: str) -> Mapping[str, Any]:
    """A note of this session's in its state; empty where there is none, or it came along from another session."""
    note = state.get(key)
    return note if isinstance(note, Mapping) and note.get("session") == session else NOTHING


def turns_begin(state: Mapping[str, Any] | State, session: str) -> str:
    """The id of the event with which the turns begin that the store keeps of a session; empty where none is noted."""
    return str(session_note(state, REWOUND, session).get("event") or "")


def _rewound(call: ModelCall, events: Sequence[Event]) -> str:
    """The id of the session's last rewind or compaction; of its first event where there was none and the host may load
    a part of the events, else empty.

    It is noted in the session's state at the first call that sees it, since it need not be loaded later. What a
    compaction of the host's replaced by a summary is then as little sent again as what a rewind took back, or as the
    turns of a session that had the same id and was deleted, which the store still holds.
    """
    session = call.key[2]
    noted_id = turns_begin(call.state, session)
    # An answer to an earlier call came with the state in which that call noted what it saw.
    latest = next((event for event in reversed(events) if _rewrites(event) or noted(event)), None)
    setting = getattr(call.invocation.run_config, "get_session_config", None)
    is_child = type(call.invocation.artifact_service).__name__ == CHILDS_ARTIFACTS  # its id is new at each call
    is_new = latest is None and not noted_id and bool(events) and not (is_child or call.passthrough_reason)
    if is_new and setting is not None and not _loads(call, setting):
        call.context.state[REWOUND] = {"session": session, "event": events[0].id, "is_first": True}
        return events[0].id
    if latest is None or not _rewrites(latest) or latest.id == noted_id:
        return noted_id
    if not call.passthrough_reason:
        call.context.state[REWOUND] = {"session": session, "event": latest.id}
    return latest.id


def _rewrites(event: Event) -> bool:
    return bool(event.actions.rewind_before_invocation_id or event.actions.compaction)


def rewrote(call: ModelCall, epoch: Epoch) -> bool:
    """Tells whether the host changed contents that this agent's last answer was given to.

    Compaction and rewinds do, and results that come late, which ADK puts in the place of earlier ones. Read off the
    events, so that every worker comes to the same epoch, whether or not the last request is known there.
    """
    agent, branch = call.context.agent_name, call.invocation.branch or ""
    if not epoch.number or call.passthrough_reason:
        return False
    posted: set[str | None] = set()
    for event in reversed(call.context.session.events):
        if _rewrites(event):
            return True
        if event.author == "user":
            posted |= {response.id for response in event.get_function_responses()}
        posted -= {requested.id for requested in event.get_function_calls()}
        if is_answer(event, agent, branch):
            break
    return bool(posted)


def _unloaded(call: ModelCall, contents: Sequence[types.Content], loads: str) -> tuple[int, list[str]]:
    """Counts the first contents whose user message the host did not load, which are not sent; and says in words what is
    missing.

    Strict providers refuse a request that begins with them. What ADK compacted stands first by right.
    """
    problems = [f"the host loaded {loads}: nothing before them is sent or recalled"]
    if call.passthrough_reason or any(event.actions.compaction for event in call.context.session.events):
        return 0, problems
    headless = next((at for at, content in enumerate(contents) if is_message(content)), 0)
    if headless:
        problems.append(f"{headless} contents are not sent: the host did not load the user message before them")
    return headless, problems
