"""All that is kept of sessions and of the agents in them, and what a call is packed from."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from google.adk.agents.callback_context import CallbackContext

from aether_context.adk.call import AgentKey, Caller, ModelCall, PreviousCall, SessionKey, session_key
from aether_context.adk.request.entries import CallHistory, Entries
from aether_context.adk.second_try import FirstTry
from aether_context.adk.session import Records
from aether_context.adk.windows import Taught
from aether_context.canonical import JSON
from aether_context.errors import BudgetExceededError
from aether_context.pack import NOTHING, Epoch, Pack, PackInput
from aether_context.store.turns import TurnFiles
from aether_context.tokens.cache import TokenCache
from aether_context.tokens.counters import SharedLRU
from aether_context.usage import CallUsage, TokenLedger
from aether_context.usage.cache import CachedCall
from aether_context.usage.calibration import Reports

if TYPE_CHECKING:
    from aether_context.retrieval.call_indexes import TurnIndex

_MOST_SESSIONS = 512
_MOST_BYTES, _MOST_LEDGER_BYTES = 16_000_000, 6_000_000
"""Of the conversations of all sessions together, and of their ledgers: one of many calls has up to 50 KB."""
_CONTENT_BYTES, _ENTRY_BYTES, _TOKEN_BYTES = 3_500, 500, 12
"""Bytes, about, of a content that is sent, of an entry, and of a token that is sent: its text stands three times beside
the host's."""


class OpenCall(NamedTuple):
    """The latest call of one agent and branch, from its request to its answer.

    ``expected`` is its usage as far as it is estimated before it, ``passed`` a limit that it passes all the same.
    """

    invocation: str
    model: str
    time: float
    expected: CallUsage
    passed: BudgetExceededError | None = None


@dataclass(slots=True, eq=False)
class AgentSession:
    """All that is kept of one agent in one session and branch, beside ADK's own.

    A call that comes beside another one is safe: it works on the entries that it began with, and nothing is taken over
    that does not equal what the host shows now.

    ``owner`` is the session that it is in, ``cache`` holds what packs derived of its conversation. ``growth`` is by how
    much the session grows, as the named invocation found it. ``size`` are the bytes that it takes, about;
    ``is_answering`` is set from a request on until the model's answer is known.
    """

    key: AgentKey
    owner: Session
    cache: TokenCache
    last: PreviousCall | None = None
    begun: OpenCall | None = None
    first_try: FirstTry | None = None
    entries: Entries = ()
    read_places: Collection[int] = ()
    """Places of the entries that its last call read."""
    model: str = ""
    """The model that its contents were read for, whose rule counts media."""
    stable_end: int = 0
    """The number of entries up to the model's last answer; each call in them has an answer. What follows may stand
    elsewhere at the next call."""
    request: tuple[list[str | None], int] = field(default_factory=lambda: ([], -1))
    """The texts of the message that was answered last, and the content that holds just them."""
    indexes: dict[str, TurnIndex] = field(default_factory=dict)
    """Of its turns by embedders, which may hang: each has its own."""
    rewound: str | None = None
    """The id of the event with which the entries begin, as `turns_begin` gives it; empty for none, None before the
    first call."""
    files: TurnFiles | None = None
    """The files of the store that keep the entries since that event."""
    is_placed: bool = True
    """Whether the entries are counted from the session's beginning."""
    asked_until: int = 0
    """Entries before this one were looked for in the store."""
    problem: str = ""
    """Why what was looked for in the store last is not known."""
    archived_end: int = 0
    """The first content that was not queued for the store."""
    growth: tuple[str, int | None] = ("", None)
    reports: Reports | None = None
    """What its estimates stand on, between a request and its answer."""
    cached: tuple[str, CachedCall] | None = None
    """The pack that was answered last, by name, and what a cache had of its call."""
    logged_marks: set[str] = field(default_factory=set)
    """The origins of its window that the log has."""
    size: int = 0
    is_answering: bool = False

    def read_for(self, model: str) -> None:
        """Reads all contents anew where they were read for another model."""
        if self.model != model:
            for entry in filter(None, self.entries):
                entry.frozen = None
            self.model = model

    def keep(self, history: CallHistory, last_answer: int, unloaded: Collection[int]) -> None:
        """Keeps the entries of a call, and lets go of what earlier calls read and it did not.

        Args:
            last_answer: the number of loaded contents up to the model's last one.
            unloaded: places of contents that the host may not load again.
        """
        entries = history.entries
        if unloaded:
            live = frozenset(unloaded)
            for at, entry in enumerate(entries):
                if entry is not None:
                    entry.raw = history.raw(at) if at in live else None
        for at in set(self.read_places).difference(history):
            if at < len(entries) and (entry := entries[at]) is not None:
                entry.frozen = None
        self.read_places = tuple(history)
        self.entries, self.stable_end = entries, history.first + last_answer

    def forget(self) -> None:
        """Forgets its conversation: its next call reads all of it, as after a restart."""
        self.entries, self.stable_end, self.asked_until = (), 0, 0
        self.rewound, self.files, self.indexes, self.is_placed = None, None, {}, True

    def measure(self, pack: Pack) -> None:
        """Takes its size after a pack."""
        contents = len(pack.source.request.contents)
        self.size = _TOKEN_BYTES * pack.tokens.counted + _CONTENT_BYTES * contents + _ENTRY_BYTES * len(self.entries)


@dataclass(slots=True, eq=False)
class Session:
    """All that is kept of one session for all of its agents, beside ADK's own.

    ``agents`` are its agents' own by branch and name. ``ledger`` is its usage up to the event ``last_event``,
    ``standing`` are the totals that its last answer carries, and ``size`` is the ledger's.
    """

    key: SessionKey
    agents: SharedLRU[tuple[str, str], AgentSession] = field(default_factory=lambda: SharedLRU(_MOST_SESSIONS))
    records: Records = field(default_factory=Records)
    ledger: TokenLedger = field(default_factory=TokenLedger)
    caller: Caller | None = None
    last_event: str = ""
    standing: Mapping[str, JSON] = field(default_factory=dict)
    size: int = 0
    taught: Taught = field(default_factory=dict)
    refused: tuple[str, Mapping[str, Any]] = field(default_factory=lambda: ("", {}))
    """What the last refusal taught, as state, and its invocation: ADK drops the state of a call that fails."""


_Sized = TypeVar("_Sized", AgentSession, Session)


class Sessions:
    """The sessions that were at work last: who leaves takes along all that is kept of it. Safe to share between
    threads.

    Args:
        cache: the counts of all of them.
    """

    def __init__(self, cache: TokenCache) -> None:
        self._sessions: SharedLRU[SessionKey, Session] = SharedLRU(_MOST_SESSIONS)
        self._cache = cache
        self._updating = threading.Lock()

    def get(self, key: SessionKey) -> Session | None:
        return self._sessions.get(key)

    def agent(self, key: AgentKey) -> AgentSession:
        """The session of an agent, which is the same object from call to call while it is kept."""
        owner = self._sessions.get_or_put(key[:3], Session)
        return owner.agents.get_or_put(key[3:], lambda _: AgentSession(key, owner, TokenCache(self._cache)))

    def records(self, context: CallbackContext) -> Records:
        """What is known of a session's evidence, as its state and events have it now."""
        records = self._sessions.get_or_put(session_key(context), Session).records
        with self._updating:
            records.update(context.session.state, context.session.events)
        return records

    def bound(self) -> None:
        """Forgets what was at work longest ago while all takes too much: conversations, but for the pack that a model
        has yet to answer; whole sessions by their ledgers. They go on as after a restart."""
        sessions = self._sessions.values()
        for agent in _excess([agent for session in sessions for agent in session.agents.values()], _MOST_BYTES):
            agent.forget()
            agent.cache, agent.size = TokenCache(self._cache), 0
            if not agent.is_answering:
                agent.last = agent.reports = None
        for session in _excess(sessions, _MOST_LEDGER_BYTES):
            if not any(agent.is_answering for agent in session.agents.values()):
                self._sessions.pop(session.key)


def _excess(sessions: Sequence[_Sized], limit: int) -> Iterator[_Sized]:
    """The first sessions, by which all of them take too much; never the last one."""
    excess = sum(session.size for session in sessions) - limit
    for session in sessions[:-1]:
        if excess > 0 and session.size:
            excess -= session.size
            yield session


class PreparedCall(NamedTuple):
    """A call with what its pack is built from.

    ``history`` are all of the agent's contents, those that are not sent any more included, preloaded memories aside;
    ``source.request.positions`` are places in it. ``length`` is their number without those that ADK gives to this call
    alone, 0 where it is not known; ``stable_end`` is the number of those that stay as they are. ``epoch`` is as the
    session's state holds it. ``counter`` is the identity of the token counter; ``summary_cost`` is what a model's
    summaries cost: requests and tokens; ``notice`` is what the app's ``on_cut`` says to the user.
    """

    call: ModelCall
    source: PackInput
    history: CallHistory
    epoch: Epoch
    length: int = 0
    stable_end: int = 0
    counter: str = ""
    summary_cost: Mapping[str, int] = NOTHING
    notice: str = ""

    def with_source(self, **changes: Any) -> PreparedCall:
        return self._replace(source=self.source._replace(**changes))
