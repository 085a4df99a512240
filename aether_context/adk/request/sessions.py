"""The sessions of agents, and what a call of one is packed from."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from aether_context.adk.call import AgentKey, ModelCall, PreviousCall
from aether_context.adk.request.entries import CallHistory, Entries
from aether_context.adk.second_try import FirstTry
from aether_context.pack import NOTHING, Epoch, Pack, PackInput
from aether_context.store.turns import TurnFiles
from aether_context.tokens.cache import TokenCache
from aether_context.tokens.counters import SharedLRU
from aether_context.usage.cache import CachedCall
from aether_context.usage.calibration import Reports

if TYPE_CHECKING:
    from aether_context.retrieval.call_indexes import TurnIndex

_MOST_SESSIONS = 512
_MOST_BYTES = 16_000_000
"""Of all sessions together."""
_CONTENT_BYTES, _ENTRY_BYTES, _TOKEN_BYTES = 3_500, 500, 12
"""Bytes, about, of a content that is sent, of an entry, and of a token that is sent: its text stands three times beside
the host's."""


@dataclass(slots=True, eq=False)
class AgentSession:
    """All that is kept of one agent in one session and branch, beside ADK's own.

    A call that comes beside another one is safe: it works on the entries that it began with, and nothing is taken over
    that does not equal what the host shows now.

    ``cache`` holds what packs derived of its conversation. ``growth`` is by how much the session grows, as the named
    invocation found it. ``size`` are the bytes that it takes, about; ``is_answering`` is set from a request on until
    the model's answer is known.
    """

    key: AgentKey
    cache: TokenCache
    last: PreviousCall | None = None
    first_try: FirstTry | None = None
    entries: Entries = ()
    read_places: frozenset[int] = frozenset()
    """Places of the entries that its last call read."""
    model: str = ""
    """The model that its contents were read for, whose rule counts media."""
    stable_end: int = 0
    """The number of entries up to the model's last answer; each call in them has an answer."""
    request: tuple[list[str | None], int] = field(default_factory=lambda: ([], -1))
    """The texts of the message that was answered last, and the content that holds just them."""
    indexes: dict[str, TurnIndex] = field(default_factory=dict)
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
    size: int = 0
    is_answering: bool = False

    @property
    def stable(self) -> Entries:
        """The entries up to the model's last answer: what follows may stand elsewhere at the next call."""
        return self.entries[: self.stable_end]

    def read_for(self, model: str) -> None:
        """Reads all contents anew where they were read for another model."""
        if self.model != model:
            for entry in filter(None, self.entries):
                entry.frozen = None
            self.model = model

    def index(self, embedder: str) -> TurnIndex:
        """The index of its turns by an embedder, which may hang: each has its own."""
        from aether_context.retrieval.call_indexes import TurnIndex

        return self.indexes.setdefault(embedder, TurnIndex())

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
        for at in self.read_places - history.keys():
            if at < len(entries) and (entry := entries[at]) is not None:
                entry.frozen = None
        self.read_places = frozenset(history)
        self.entries, self.stable_end = entries, history.first + last_answer

    def forget(self) -> None:
        """Forgets its conversation: its next call reads all of it, as after a restart."""
        self.entries, self.stable_end, self.asked_until = (), 0, 0
        self.rewound, self.files, self.indexes, self.is_placed = None, None, {}, True

    def measure(self, pack: Pack) -> None:
        """Takes its size after a pack."""
        contents = len(pack.source.request.contents)
        self.size = _TOKEN_BYTES * pack.tokens.counted + _CONTENT_BYTES * contents + _ENTRY_BYTES * len(self.entries)


class AgentSessions:
    """The sessions of the agents that were at work last. Safe to share between threads.

    Args:
        cache: the counts of all of them.
    """

    def __init__(self, cache: TokenCache) -> None:
        self._sessions: SharedLRU[AgentKey, AgentSession] = SharedLRU(_MOST_SESSIONS)
        self._cache = cache

    def of(self, key: AgentKey) -> AgentSession:
        """The session of an agent, which is the same object from call to call while it is kept."""
        return self._sessions.get_or_put(key, lambda key: AgentSession(key, TokenCache(self._cache)))

    def bound(self) -> None:
        """Forgets the agents that were at work longest ago while all take too much together. They go on as after a
        restart; one whose model has yet to answer keeps the pack that it answers."""
        sessions = self._sessions.values()
        excess = sum(session.size for session in sessions) - _MOST_BYTES
        for session in (session for session in sessions[:-1] if session.size):
            if excess <= 0:
                return
            excess -= session.size
            session.forget()
            session.cache, session.size = TokenCache(self._cache), 0
            if not session.is_answering:
                session.last = session.reports = None


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
