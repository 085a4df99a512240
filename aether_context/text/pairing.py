"""Tool results and the calls that they answer, by id, else by name and order; nothing else pairs them."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable
from functools import partial
from typing import NamedTuple, TypeAlias

from aether_context.pack import Content, Part, Quote

_PERSON = "user"
"""The agent that is named where a person answers another agent's call."""

_Name: TypeAlias = tuple[str, str, str]


class Call(NamedTuple):
    """A tool call, or one that is quoted from another agent's turn; ``number`` counts the calls from 0, and ``at`` is
    the index of its content."""

    number: int
    at: int
    part: Part | Quote


class Answer(NamedTuple):
    """A tool result, or a quoted one, and the call that it answers; None where it answers none."""

    part: Part | Quote
    call: Call | None


class _Waiting:
    """Calls that wait for their answers, the earliest first.

    Each is looked up by what can name it, so that thousands that share a name cost no more than as many that do not.
    """

    def __init__(self) -> None:
        self._calls: list[Call] = []
        self._answered: set[int] = set()
        self._queues: defaultdict[_Name, deque[int]] = defaultdict(deque)

    def add(self, at: int, part: Part | Quote, *names: _Name) -> None:
        for name in names:
            self._queues[name].append(len(self._calls))
        self._calls.append(Call(len(self._calls), at, part))

    def take(self, *names: _Name, again: bool) -> Call | None:
        """The earliest call with one of these names, which waits no longer; where none waits, None, or ``again`` the
        one that was answered longest ago."""
        queues = [self._queues[name] for name in names]
        for queue in queues:
            for _ in range(len(queue)):
                if queue[0] not in self._answered:
                    break
                if again:
                    queue.rotate(-1)
                else:
                    queue.popleft()
        first = min((queue[0] for queue in queues if queue), default=None, key=lambda at: (at in self._answered, at))
        if first is None:
            return None
        self._answered.add(first)
        for queue in queues if again else ():
            if queue and queue[0] == first:
                queue.rotate(-1)
        return self._calls[first]


def answers(contents: Iterable[Content], *, again: bool = False) -> list[list[Answer]]:
    """The results in each content, its own and then those that it quotes, with the calls that they answer.

    A result answers the call with its id; without an id, the earliest waiting call with its name. A quoted one answers
    a quoted call of the same agent. Results may come late, or apart from each other.

    Args:
        again: whether a result for which no call waits answers the first of its calls over again.
    """
    waiting, found = _Waiting(), list[list[Answer]]()
    take = partial(waiting.take, again=again)
    for at, content in enumerate(contents):
        own = [
            Answer(part, take(("id", part.call_id, ""), ("no id", "", part.name)))
            if part.call_id
            else Answer(part, take(("name", "", part.name)))
            for part in content.responses
        ]
        quoted = (quote for quote in content.quotes if quote.kind == "response")
        found.append([*own, *(Answer(quote, take(("name", quote.agent, quote.name))) for quote in quoted)])
        for call in content.calls:
            known = ("id", call.call_id, "") if call.call_id else ("no id", "", call.name)
            waiting.add(at, call, ("name", "", call.name), known)
        for quote in content.quotes:
            if quote.kind == "call":
                waiting.add(at, quote, ("name", quote.agent, quote.name), ("name", _PERSON, quote.name))
    return found
