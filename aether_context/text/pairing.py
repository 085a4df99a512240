"""Tool results and the calls that they answer, by id, else by name and order; nothing else pairs them."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

from aether_context.pack import Content, Part, Quote

_PERSON = "user"
"""The agent that is named where a person answers another agent's call."""

_Name: TypeAlias = tuple[str, str, str]


class ToolCall(NamedTuple):
    """A tool call, or one that is quoted from another agent's turn; ``number`` counts the calls from 0, and ``at`` is
    the index of its content."""

    number: int
    at: int
    part: Part | Quote


class PairedResult(NamedTuple):
    """A tool result, or a quoted one, and the call that it answers; None where it answers none."""

    part: Part | Quote
    call: ToolCall | None


def pair_results(contents: Iterable[Content], *, again: bool = False) -> list[list[PairedResult]]:
    """The results in each content, its own and then those that it quotes, with the calls that they answer.

    A result answers the call with its id; without an id, the earliest waiting call with its name. A quoted one answers
    a quoted call of the same agent. Results may come late, or apart from each other.

    Args:
        again: whether a result for which no call waits answers the first of its calls over again.
    """
    calls, answered, pairs = list[ToolCall](), set[int](), list[list[PairedResult]]()
    # Calls are looked up by what can name them, so that thousands that share a name cost no more than others.
    waiting: defaultdict[_Name, deque[int]] = defaultdict(deque)

    def wait(at: int, part: Part | Quote, *names: _Name) -> None:
        for name in names:
            waiting[name].append(len(calls))
        calls.append(ToolCall(len(calls), at, part))

    def paired(part: Part | Quote, *names: _Name) -> PairedResult:
        queues = [waiting[name] for name in names]
        for queue in queues:
            while queue and queue[0] in answered and not (again and answered.issuperset(queue)):
                number = queue.popleft()
                queue.extend([number] if again else ())
        heads = sorted((queue[0] in answered, queue[0]) for queue in queues if queue)
        if not heads:
            return PairedResult(part, None)
        answered.add(heads[0][1])
        for queue in queues if again else ():
            if queue and queue[0] == heads[0][1]:
                queue.rotate(-1)
        return PairedResult(part, calls[heads[0][1]])

    for at, content in enumerate(contents):
        results = []
        for part in content.responses:
            by_id: tuple[_Name, ...] = (("id", part.call_id, ""), ("no id", "", part.name))
            results.append(paired(part, *(by_id if part.call_id else [("name", "", part.name)])))
        quotes = [quote for quote in content.quotes if quote.kind != "said"]
        results += [paired(quote, ("name", quote.agent, quote.name)) for quote in quotes if quote.kind == "response"]
        pairs.append(results)
        for call in content.calls:
            pair_key = ("id", call.call_id, "") if call.call_id else ("no id", "", call.name)
            wait(at, call, ("name", "", call.name), pair_key)
        for quote in quotes:
            if quote.kind == "call":
                wait(at, quote, ("name", quote.agent, quote.name), ("name", _PERSON, quote.name))
    return pairs
