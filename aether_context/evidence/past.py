"""A session's past as one text, as its agent was shown it: what ``artifact://history`` stands for.

A line begins with the number of the model call that read it first, its time, and who said it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Literal, NamedTuple, TypeAlias

from aether_context.canonical import JSON, canonical_json
from aether_context.evidence.record import READ, SEARCH

PastPart: TypeAlias = tuple[Literal["text", "call", "response"], str, JSON]
"""A part's kind, the tool's name, and its text, or the arguments or the response as JSON."""


class PastTurn(NamedTuple):
    """A message of the past, without thoughts.

    ``time`` is in seconds since 1970 UTC; ``number`` is that of the call that gave it, 0 where that is not known.
    """

    author: str
    time: float | None
    is_model: bool
    parts: Sequence[PastPart]
    number: int = 0


def past_lines(turns: Iterable[PastTurn], agent: str, written: Callable[[JSON], str]) -> Iterator[list[str]]:
    """The entries of each turn. What was read back has none, since it stands where it is from.

    Args:
        agent: the one that was shown the turns.
        written: gives the text of a response, behind its address where it was stored.
    """
    last = 0
    for turn in turns:
        is_answer = turn.author == agent and turn.is_model
        number = max(turn.number, last + 1) if is_answer else last + 1
        last = number if is_answer else last
        moment = f"{datetime.fromtimestamp(turn.time, UTC):%Y-%m-%d %H:%M}" if turn.time is not None else "earlier"
        entries = list[str]()
        for kind, name, value in turn.parts:
            if kind == "text":
                entries.append(f"{turn.author}: {value}")
            elif name not in (READ, SEARCH):
                is_call = kind == "call"
                result = (written(value) if value else "nothing") if not is_call else canonical_json(value)
                entries.append(f"{turn.author} called {name} {result}" if is_call else f"{name} gave {result}")
        yield [f"call {number}, {moment}, " + entry.replace("\n", "\n  ") for entry in entries]
