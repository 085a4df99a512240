"""Exchanges, turns, and cuts that never tear them: what of the history is still sent.

An *exchange* is a model content with function calls and the contents that answer them: whole or absent. So are a call
and its response that are quoted from another agent's turn. A *turn* is a human message up to the next one. A cut leaves
whole units out from the oldest, once, down to a target.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from operator import attrgetter
from typing import Literal, NamedTuple, TypeAlias

from aether_context.pack import Content, Part
from aether_context.text.pairing import pair_results

UnitKind: TypeAlias = Literal["human", "instruction", "exchange", "message"]
_CALLED = attrgetter("call_id", "name")


class Unit(NamedTuple):
    """Contents that stay or go together, by index, and the turn (from 0) they belong to.

    ``from_agent`` is set where they hold the last that another agent said or did in the turn: what was handed over.
    """

    kind: UnitKind
    indices: tuple[int, ...]
    turn: int
    from_agent: bool = False


INSTRUCTION = "The text between <<<BEGIN_SYSTEM_INSTRUCTION>>>"
"""What ADK lets an agent's instruction begin with where it stands among the contents, behind a static one."""


def is_instruction(content: Content) -> bool:
    """Tells whether a content is the agent's instruction, which no act takes or shortens."""
    return content.role == "user" and content.text.startswith(INSTRUCTION)


def is_human(content: Content) -> bool:
    """Tells whether a content is somebody's words to the model, not a tool's answer or another agent's turn."""
    return content.role == "user" and not content.responses and not content.calls and not content.agent


def other_turns(contents: Sequence[Content]) -> frozenset[int]:
    """The indices of other agents' turns, but for what they handed over: the last that each of them said before the
    agent of this history went on. What others did before a person spoke again was handed to nobody."""
    hidden, run = set[int](), list[int]()
    for at, content in enumerate((*contents, None)):
        if content is not None and content.agent:
            run.append(at)
            continue
        hidden.update(run)
        if run and (content is None or not is_human(content)):
            last_said = {contents[turn].agent: turn for turn in run if contents[turn].words.strip()}
            hidden.difference_update(last_said.values() or run[-1:])
        run = []
    return frozenset(hidden)


TRANSFER = "transfer_to_agent"
_BARE = re.compile(r"\{'agent_name': '[^']*'\}|\{'result': None\}")
"""The arguments and the result of a transfer that say no more."""


def bare_transfers(contents: Sequence[Content], positions: Sequence[int]) -> Mapping[int, tuple[int, ...]]:
    """The places of the parts that say only that another agent handed over, by the index of their content.

    Whose words stand beside them says as much. Where nothing else stands between two contents of the agent's own, or
    what its tools gave it, they stay: they say why the model is asked again. A run of others' contents ends with the
    agent's next answer, so that each later call finds the same.

    Args:
        positions: the places of the contents in the host's list.
    """
    bare, end = dict[int, tuple[int, ...]](), 0

    def goes_on(at: int) -> bool:
        """Tells whether the content at an index follows on one of others, and is one itself."""
        return positions[at] == positions[at - 1] + 1 and all(
            content.role == "user" and not content.responses for content in contents[at - 1 : at + 1]
        )

    for at in [at for at, content in enumerate(contents) for quote in content.quotes if quote.name == TRANSFER]:
        if at < end:
            continue
        start = next((index for index in range(at, 0, -1) if not goes_on(index)), 0)
        end = next((index for index in range(at + 1, len(contents)) if not goes_on(index)), len(contents))
        run = {index: contents[index] for index in range(start, end)}
        quotes = {index: [quote for quote in run[index].quotes if quote.name == TRANSFER] for index in run}
        telling = {quote.agent for index in run for quote in quotes[index] if not _BARE.fullmatch(quote.text)}
        places = {index: tuple(quote.at for quote in quotes[index] if quote.agent not in telling) for index in run}
        if any(
            len(content.parts) > 1 + len(places[index]) if content.agent else not is_instruction(content)
            for index, content in run.items()
        ):
            bare |= {index: places[index] for index in run if places[index]}
    return bare


def units(contents: Sequence[Content]) -> tuple[Unit, ...]:
    """The units of a history, in order of their first content.

    Answers that arrive late, or apart from each other, join their exchange wherever they stand. A response that answers
    nothing is a message of its own.
    """
    joined: list[int] = []  # for each unit the one that it was merged into, itself where it was not
    kinds: list[UnitKind] = []
    turns: list[int] = []
    unit_by_content: list[int] = []  # for each content its unit
    turn = -1
    for content, results in zip(contents, pair_results(contents), strict=True):
        answered = {_last(joined, unit_by_content[result.call.at]) for result in results if result.call is not None}
        if answered:
            first = min(answered)
            for unit in answered:
                joined[unit] = first
            unit_by_content.append(first)
            continue
        human = is_human(content)
        if turn < 0 or (human and kinds[-1] != "human"):
            turn += 1
        calls = content.calls or any(quote.kind == "call" for quote in content.quotes)
        joined.append(len(kinds))
        unit_by_content.append(len(kinds))
        kind: UnitKind = "instruction" if is_instruction(content) else "human"
        kinds.append(kind if human else "exchange" if calls else "message")
        turns.append(turn)
    members: dict[int, list[int]] = {}
    for index, unit in enumerate(unit_by_content):
        members.setdefault(_last(joined, unit), []).append(index)
    from_agent = _handoff(contents, members, turns)
    return tuple(
        Unit(kind=kinds[unit], indices=tuple(indices), turn=turns[unit], from_agent=unit in from_agent)
        for unit, indices in sorted(members.items())
    )


def _last(joined: list[int], unit: int) -> int:
    """The unit that a unit was merged into in the end."""
    while joined[unit] != unit:
        joined[unit] = joined[joined[unit]]
        unit = joined[unit]
    return unit


def _handoff(contents: Sequence[Content], members: Mapping[int, Sequence[int]], turns: Sequence[int]) -> frozenset[int]:
    """The units with the last that each other agent said, and the last that it did, in each turn."""
    latest: dict[tuple[int, str, bool], tuple[int, int]] = {}
    for unit, indices in members.items():
        for index in indices:
            content = contents[index]
            if not content.agent:
                continue
            has_words = any(quote.kind == "said" for quote in content.quotes)
            for key in ((turns[unit], content.agent, False), (turns[unit], content.agent, True))[: 1 + has_words]:
                latest[key] = max(latest.get(key, (-1, -1)), (index, unit))
    return frozenset(unit for _, unit in latest.values())


def turn_start(contents: Sequence[Content], request_index: int | None) -> int:
    """The index at which the model's present turn begins: the last user contents in a row without a tool's result.

    Providers join consecutive contents of a role. So a message directly behind a tool's result, as after a run that
    broke off, does not end the turn, and Claude refuses its calls without the thoughts before them.
    """
    end = request_index or 0
    while end > 0:
        start = next((at for at in range(end, 0, -1) if contents[at - 1].role == "model"), 0)
        if not any(content.responses for content in contents[start : end + 1]):
            return start
        end = next((at for at in range(start - 1, -1, -1) if contents[at].role != "model"), 0)
    return 0


def unread_exchange(parts: Sequence[Unit], request_index: int | None) -> Unit | None:
    """The unit that the model has yet to answer: the last one, or the last of the loop behind the final human message,
    whatever the host puts behind that for one call alone."""
    loop = [unit for unit in parts if unit.kind in ("exchange", "message") and unit.indices[-1] > (request_index or 0)]
    return max(loop if request_index is not None and loop else parts, key=lambda unit: unit.indices[-1], default=None)


def protected(parts: Sequence[Unit], request_index: int | None) -> frozenset[int]:
    """Positions in ``parts`` that no cut takes: the agent's instruction, the final human message, what other agents
    handed over since then, the last exchange while nothing of the model's follows it, that is, while the model has yet
    to read it, and what stands behind that."""
    last = unread_exchange(parts, request_index)
    end = last.indices[-1] if last is not None else 0
    request = {at for at, unit in enumerate(parts) if request_index in unit.indices}
    turn = min((parts[at].turn for at in request), default=parts[-1].turn if parts else 0)
    handovers = {at for at, unit in enumerate(parts) if unit.from_agent and unit.turn >= turn}
    stays = {at for at, unit in enumerate(parts) if unit.kind == "instruction" or unit.indices[-1] >= end}
    return frozenset(stays | request | handovers)


def latest_answer(parts: Sequence[Unit]) -> frozenset[int]:
    """Positions of the model's last answer before the latest turn and of the human messages of its turn; empty where
    there is none."""
    places = (at for at in range(len(parts) - 1, -1, -1) if parts[at].turn < parts[-1].turn)
    answer = next((at for at in places if parts[at].kind == "message"), None)
    if answer is None:
        return frozenset()
    turn = parts[answer].turn
    return frozenset(at for at, unit in enumerate(parts) if at == answer or (unit.turn, unit.kind) == (turn, "human"))


class Cut(NamedTuple):
    """The contents that a cut leaves out, by index, unit by unit in the order in which they leave, a turn's human
    message with the last of its answers. ``over`` are the tokens by which the rest is above the target, below it where
    negative."""

    leaving: tuple[tuple[int, ...], ...] = ()
    over: int = 0

    @property
    def indices(self) -> tuple[int, ...]:
        return tuple(sorted(index for indices in self.leaving for index in indices))


def cut(
    units: Sequence[Unit],
    tokens: Sequence[int],
    *,
    target: int,
    max_tokens: int | None = None,
    keep_first: int = 0,
    keep_last: int = 0,
    room: int | None = None,
    stay: Collection[int] = (),
    last_turns: int = 1,
) -> Cut:
    """Chooses the units to leave out so that the rest holds at most ``target`` tokens: whole units, the oldest first.

    What another agent said last in a turn outlives the rest of the turn. A turn's human message outlives its answers,
    so what stays always begins with a human message; only those of the last turn go without, last of all. Fewer tokens
    than asked for leave where only units that stay are left.

    Args:
        tokens: tokens of each content.
        max_tokens: human messages of the last turn leave only where more tokens are left than these; ``target`` by
            default.
        keep_first: number of units at the beginning that stay.
        keep_last: number of units at the end that stay.
        room: tokens that all that stays may take; where it is not enough, fewer units at the end stay, then fewer at
            the beginning. ``target`` by default.
        stay: positions in ``units`` that stay whatever they take.
        last_turns: number of turns, the latest among them, whose messages leave after all exchanges.
    """
    over = sum(tokens) - target
    if over <= 0 or not units:
        return Cut(over=over)
    sizes = [sum(tokens[index] for index in unit.indices) for unit in units]
    staying, free = set(stay), target if room is None else room
    free -= sum(sizes[at] for at in staying)
    ends = (*range(min(keep_first, len(units))), *range(len(units) - 1, max(len(units) - keep_last, 0) - 1, -1))
    for at in dict.fromkeys(ends):
        if at not in staying:
            free -= sizes[at]
            if free < 0:
                break
            staying.add(at)
    latest = units[-1].turn
    questions: dict[int, list[int]] = {}
    for at, unit in enumerate(units):
        if unit.kind == "human" and at not in staying:
            questions.setdefault(unit.turn, []).append(at)
    last_questions = questions.pop(latest, [])
    counts = Counter(unit.turn for unit in units if unit.kind != "human")
    order = [at for at, unit in enumerate(units) if unit.kind != "human" and at not in staying]
    leaving: list[tuple[int, ...]] = []
    named = [unit.kind == "message" and latest - last_turns < unit.turn < latest for unit in units]
    for at in sorted(order, key=lambda at: (named[at], units[at].turn, units[at].from_agent, at)):
        if over <= 0:
            break
        turn = units[at].turn
        counts[turn] -= 1
        together = [at, *(questions.get(turn, ()) if not counts[turn] else ())]
        leaving.append(tuple(index for position in together for index in units[position].indices))
        over -= sum(sizes[position] for position in together)
    spare = 0 if max_tokens is None else max(0, max_tokens - target)
    for at in last_questions:
        if over > spare:
            leaving.append(units[at].indices)
            over -= sizes[at]
    return Cut(leaving=tuple(leaving), over=over)


def unpaired(contents: Sequence[Content]) -> frozenset[int]:
    """Indices of calls without a response, and of responses without a call."""
    calls = (unit.indices for unit in units(contents) if any(contents[at].calls for at in unit.indices))
    unanswered = (at for indices in calls if not any(contents[at].responses for at in indices) for at in indices)
    return frozenset([*unanswered, *torn(contents)])


def torn(contents: Sequence[Content]) -> tuple[int, ...]:
    """Indices of contents with a response that answers no call among them."""
    if _are_paired_simply(contents):
        return ()
    singles = {unit.indices[0] for unit in units(contents) if unit.kind == "message"}
    return tuple(index for index, content in enumerate(contents) if index in singles and content.responses)


def _are_paired_simply(contents: Sequence[Content]) -> bool:
    """Tells whether the responses of each content answer the calls of the one before it, one by one.

    So it nearly always is, and seen without the history of every pair: no response takes a call behind its own, so
    that its own still waits for it, whatever earlier calls are left over.
    """
    calls: tuple[Part, ...] = ()
    for content in contents:
        if content.responses and [*map(_CALLED, content.responses)] != [*map(_CALLED, calls)]:
            return False
        calls = content.calls
    return True
