"""The state that a process keeps of each agent between its calls: a cache, which a new process goes on without."""

from __future__ import annotations

from dataclasses import dataclass, field

from aether_context.adk.call import AgentKey, PreviousCall
from aether_context.adk.request.contents import AgentContents
from aether_context.adk.request.history import History
from aether_context.adk.second_try import FirstTry
from aether_context.tokens.counters import SharedLRU

_MOST_AGENTS = 512
_MOST_CONTENTS = 200_000
"""Of all agents together. A content takes about 1,300 bytes, and its text."""


@dataclass(slots=True, eq=False)
class AgentState:
    """The state of one agent in one session and branch. ``archived_end`` is the first content of its history that
    was not queued for the store; ``growth`` by how much its session grows, as the named invocation found it."""

    key: AgentKey
    last: PreviousCall | None = None
    first_try: FirstTry | None = None
    history: History | None = None
    contents: AgentContents = field(default_factory=AgentContents)
    archived_end: int = 0
    growth: tuple[str, int | None] = ("", None)

    @property
    def size(self) -> int:
        """Contents that it holds."""
        return max(len(self.contents.entries), len(self.history.rows) if self.history is not None else 0)


class AgentStates:
    """The states of the agents that were at work last. Safe to share between threads."""

    def __init__(self) -> None:
        self._states: SharedLRU[AgentKey, AgentState] = SharedLRU(_MOST_AGENTS)

    def of(self, key: AgentKey) -> AgentState:
        """The state of an agent, which is the same object from call to call while it is kept."""
        return self._states.get_or_put(key, AgentState)

    def bound(self) -> None:
        """Lets the agents that were at work longest ago forget their contents while all have too many together."""
        states = self._states.values()
        excess = sum(state.size for state in states) - _MOST_CONTENTS
        for state in states[:-1]:
            if excess <= 0:
                return
            excess -= state.size
            state.history, state.contents = None, AgentContents()
