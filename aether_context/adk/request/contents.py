"""The state of an agent between its calls: its contents as they were read, each once, and what was made of them.

ADK copies every content for every call, and callbacks may edit what it copied from. So a content is compared with a
snapshot, field by field: strings are compared by identity first, which costs next to nothing, and nothing is hashed or
written out. A comparison takes 1 µs where a hash takes 12.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from google.genai import types
from pydantic import BaseModel

from aether_context.adk.call import AgentKey, Contents, PreviousCall
from aether_context.adk.request.history import AgentHistory
from aether_context.adk.request.reader import Reader, key_of, usual_fields
from aether_context.adk.second_try import FirstTry
from aether_context.pack import Content, Pack
from aether_context.tokens.cache import TokenCache
from aether_context.tokens.counters import SharedLRU

_DEEPEST = 100
_MOST_AGENTS = 512
_MOST_BYTES = 16_000_000
"""Of all agents together."""
_CONTENT_BYTES, _ROW_BYTES, _TOKEN_BYTES = 3_500, 500, 12
"""Bytes, about, of a content that is sent, of one that an agent's history names, and of a token that is sent: its text
stands three times beside the host's."""
_Snapshot: TypeAlias = list[Any] | tuple[object, ...]
"""The fields of a content, its own containers apart from ADK's; a key where they hold what cannot be compared."""


class _Entry(NamedTuple):
    """A content as it was read. ``escaped`` is what is sent of it, None where that is the host's own."""

    snapshot: _Snapshot
    content: Content
    escaped: types.Content | None


class AgentContents:
    """The contents of one agent in one session and branch, by position, from call to call.

    A call that comes beside another one is safe: nothing is taken over that does not equal what the host shows now.
    """

    def __init__(self) -> None:
        self.model = ""
        """The model that they were read for, whose rule counts media."""
        self.entries: dict[int, _Entry] = {}
        self.answered_until = 0
        """Calls in the contents before this one have answers."""
        self.request: tuple[list[str | None], int] = ([], -1)
        """The texts of the message that was answered last, and the content that holds just them."""

    def is_known(self, at: int, content: types.Content) -> bool:
        """Tells whether the content at a position is as it was read."""
        entry = self.entries.get(at)
        return entry is not None and _is_same(content, entry.snapshot)


class CallContents(dict[int, Content]):
    """The contents of one call by position. One that was read before is taken over, others are read when asked for.

    Args:
        agent_contents: what was read at earlier calls; takes in what is read here.
        contents: those that the host shows, with the position of the first of them.
        authored: gives a content that shows another agent's turn to its author.
        earlier: reads a content before the first one.
    """

    def __init__(
        self,
        agent_contents: AgentContents,
        reader: Reader,
        model: str,
        contents: Contents,
        authored: Callable[[types.Content, Content], Content],
        earlier: Callable[[int], Content],
    ) -> None:
        if agent_contents.model != model:
            agent_contents.entries, agent_contents.answered_until, agent_contents.model = {}, 0, model
        self._contents, self._reader, self._model = agent_contents, reader, model
        self._loaded, self._first = contents.loaded, contents.first
        self._authored, self._earlier = authored, earlier
        self._escaped: dict[int, types.Content] = {}
        self.has_changed = False
        """Whether the host shows something else in the place of a content that an earlier call answered."""

    def __missing__(self, at: int) -> Content:
        if at < self._first:
            content = self._earlier(at)
        else:
            raw, entries = self._loaded[at - self._first], self._contents.entries
            entry = entries.get(at)
            if entry is None or not _is_same(raw, entry.snapshot):
                # What no answer follows yet, as an instruction among the contents, may stand elsewhere at each call.
                is_answered = at - self._first < self._contents.answered_until
                self.has_changed = self.has_changed or (entry is not None and is_answered)
                entry = entries[at] = _Entry(_snapshot(raw), *self._reader.freeze(raw, self._model))
            if entry.escaped is not None:
                self._escaped[at] = entry.escaped
            content = self._authored(raw, entry.content) if entry.content.agent else entry.content
        self[at] = content
        return content

    def take_over(self, positions: Iterable[int]) -> None:
        """Takes over what stands at these positions as an earlier call read it, in one pass; the rest is read when it
        is asked for, and so is what its author or a reader has to look at again."""
        entries, loaded, first = self._contents.entries, self._loaded, self._first
        for at in positions:
            entry = entries.get(at) if at >= first else None
            if entry is None or entry.content.agent or entry.escaped:
                continue
            if entry.snapshot == _fields(loaded[at - first]):
                self[at] = entry.content

    def sent_of(self, contents: Contents, positions: Iterable[int]) -> list[types.Content]:
        """Contents that were read, as they are sent: with escapes in the place of what nobody sees, where others
        wrote."""
        first, loaded, escaped = self._first, self._loaded, self._escaped
        return [
            escaped.get(at) or loaded[at - first] if at >= first else self._reader.sent_of(contents[at], self._model)
            for at in positions
        ]

    def forget_others(self) -> None:
        """Forgets what earlier calls read and this one did not."""
        if len(self._contents.entries) > 2 * len(self) + 100:
            self._contents.entries = {at: entry for at, entry in self._contents.entries.copy().items() if at in self}


@dataclass(slots=True, eq=False)
class AgentState:
    """The state of one agent in one session and branch.

    ``cache`` holds what packs derived of its conversation. ``archived_end`` is the first content of its history that
    was not queued for the store; ``growth`` by how much its session grows, as the named invocation found it. ``size``
    are the bytes that it takes, about; ``is_answering`` is set from a request on until the model's answer is known.
    """

    key: AgentKey
    cache: TokenCache
    last: PreviousCall | None = None
    first_try: FirstTry | None = None
    history: AgentHistory | None = None
    contents: AgentContents = field(default_factory=AgentContents)
    archived_end: int = 0
    growth: tuple[str, int | None] = ("", None)
    size: int = 0
    is_answering: bool = False

    def measure(self, pack: Pack) -> None:
        """Takes the state's size after a pack."""
        rows = self.history.rows if self.history is not None else ()
        contents = len(pack.source.request.contents)
        self.size = _TOKEN_BYTES * pack.tokens.counted + _CONTENT_BYTES * contents + _ROW_BYTES * len(rows)


class AgentStates:
    """The states of the agents that were at work last. Safe to share between threads.

    Args:
        cache: the counts of all of them.
    """

    def __init__(self, cache: TokenCache) -> None:
        self._states: SharedLRU[AgentKey, AgentState] = SharedLRU(_MOST_AGENTS)
        self._cache = cache

    def of(self, key: AgentKey) -> AgentState:
        """The state of an agent, which is the same object from call to call while it is kept."""
        return self._states.get_or_put(key, lambda key: AgentState(key, TokenCache(self._cache)))

    def bound(self) -> None:
        """Forgets the agents that were at work longest ago while all take too much together. They go on as after a
        restart; one whose model has yet to answer keeps the pack that it answers."""
        states = self._states.values()
        excess = sum(state.size for state in states) - _MOST_BYTES
        for state in (state for state in states[:-1] if state.size):
            if excess <= 0:
                return
            excess -= state.size
            if not state.is_answering:
                self._states.pop(state.key)
            else:
                state.history, state.contents, state.cache = None, AgentContents(), TokenCache(self._cache)
                state.size = 0


class _Number:
    """A number or truth value. It equals only what is written alike: 1, 1.0 and True are not."""

    __slots__ = ("kind", "value")

    def __init__(self, value: float) -> None:
        self.kind, self.value = type(value), value

    def __eq__(self, other: object) -> bool:
        if type(other) is not self.kind:
            return False
        return repr(other) == repr(self.value) if self.kind is float else other == self.value

    __hash__ = None  # type: ignore[assignment]


class _Model:
    """The fields of a model of ADK's."""

    __slots__ = ("fields", "kind")

    def __init__(self, kind: type, fields: list[Any]) -> None:
        self.kind, self.fields = kind, fields

    def __eq__(self, other: object) -> bool:
        return type(other) is self.kind and self.fields == [*other.__dict__.values()]

    __hash__ = None  # type: ignore[assignment]


class _IncomparableError(Exception):
    """A value is of a kind whose copies need not be equal, or that can be changed unseen."""


def _snapshot(content: types.Content) -> _Snapshot:
    try:
        return [_copied(field, 0) for field in _fields(content)]
    except _IncomparableError:
        return key_of(content)


def _is_same(content: types.Content, snapshot: _Snapshot) -> bool:
    # The snapshot is asked first, since it knows how to compare.
    return snapshot == _fields(content) or (type(snapshot) is tuple and snapshot == key_of(content))


def _fields(content: types.Content) -> list[Any]:
    """The fields of a content; of the usual one part only those that are set."""
    if (fields := usual_fields(content)) is not None:
        return fields
    parts = content.parts or ()
    flat: list[Any] = [content.role, len(parts), "parts"]
    for part in parts:
        flat += part.__dict__.values()
    return flat


def _copied(value: Any, depth: int) -> Any:
    kind = type(value)
    if value is None or kind in (str, bytes) or isinstance(value, enum.Enum):
        return value
    if kind in (bool, int, float):
        return _Number(value)
    if depth > _DEEPEST:
        raise _IncomparableError
    if kind is dict and all(type(name) is str for name in value):
        return {name: _copied(item, depth + 1) for name, item in value.items()}
    if kind is list:
        return [_copied(item, depth + 1) for item in value]
    if isinstance(value, BaseModel) and not value.__pydantic_extra__:
        return _Model(kind, [_copied(item, depth + 1) for item in value.__dict__.values()])
    raise _IncomparableError
