"""Exchanges, turns, and cuts that never tear them: what of the history is still sent.

An *exchange* is a model content with function calls and the contents that answer them: whole or absent. So are a call
and its response that are quoted from another agent's turn. A *turn* is a human message up to the next one. A cut leaves
whole units out from the oldest, once, down to a target.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple, TypeAlias

from aether_context.canonical import short
from aether_context.pack import Content, Epoch

UnitKind: TypeAlias = Literal["human", "exchange", "message"]


class Unit(NamedTuple):
    """Contents that stay or go together, by index, and the turn (from 0) they belong to.

    ``handed`` is set where they hold the last that another agent said or did in the turn: what was handed over.
    """

    kind: UnitKind
    indices: tuple[int, ...]
    turn: int
    handed: bool = False


class _Waiting:
    """Calls that wait for their answers, with their units, the earliest first.

    Each is looked up by what can name it, so that thousands that share a name cost no more than as many that do not.
    """

    def __init__(self) -> None:
        self._units: list[int] = []
        self._answered: set[int] = set()
        self._queues: defaultdict[tuple[str, str, str], deque[int]] = defaultdict(deque)

    def add(self, unit: int, *names: tuple[str, str, str]) -> None:
        for name in names:
            self._queues[name].append(len(self._units))
        self._units.append(unit)

    def take(self, *names: tuple[str, str, str]) -> int | None:
        """The unit of the earliest call with one of these names, which waits no longer; None where none waits."""
        queues = [self._queues[name] for name in names]
        for queue in queues:
            while queue and queue[0] in self._answered:
                queue.popleft()
        first = min((queue[0] for queue in queues if queue), default=None)
        if first is None:
            return None
        self._answered.add(first)
        return self._units[first]


_PERSON = "user"
"""The agent that is named where a person answers another agent's call."""


def is_human(content: Content) -> bool:
    """Whether a content is somebody's words to the model, not a tool's answer or another agent's turn."""
    return content.role == "user" and not content.responses and not content.calls and not content.agent


def units(contents: Sequence[Content]) -> tuple[Unit, ...]:
    """The units of a history, in order of their first content.

    A response belongs to the call with its id; without an id, to the earliest waiting call with its name. A quoted one
    belongs to a quoted call of the same agent. Answers that arrive late, or apart from each other, join their exchange
    wherever they stand. A response that answers nothing is a message of its own.
    """
    joined: list[int] = []  # for each unit the one that it was merged into, itself where it was not
    kinds: list[UnitKind] = []
    turns: list[int] = []
    unit_by_content: list[int] = []  # for each content its unit
    waiting = _Waiting()
    turn = -1
    for content in contents:
        matched_units = [
            waiting.take(("id", part.call_id, ""), ("no id", "", part.name))
            if part.call_id
            else waiting.take(("name", "", part.name))
            for part in content.responses
        ]
        matched_units += [
            waiting.take(("name", quote.agent, quote.name)) for quote in content.quotes if quote.kind == "response"
        ]
        answered = {_last(joined, unit) for unit in matched_units if unit is not None}
        if answered:
            first = min(answered)
            for unit in answered:
                joined[unit] = first
            unit_by_content.append(first)
            continue
        human = is_human(content)
        if turn < 0 or (human and kinds[-1] != "human"):
            turn += 1
        quoted_calls = [quote for quote in content.quotes if quote.kind == "call"]
        unit = len(kinds)
        joined.append(unit)
        kinds.append("human" if human else "exchange" if content.calls or quoted_calls else "message")
        turns.append(turn)
        unit_by_content.append(unit)
        for call in content.calls:
            waiting.add(
                unit,
                ("name", "", call.name),
                ("id", call.call_id, "") if call.call_id else ("no id", "", call.name),
            )
        for quote in quoted_calls:
            waiting.add(unit, ("name", quote.agent, quote.name), ("name", _PERSON, quote.name))
    members: dict[int, list[int]] = {}
    for index, unit in enumerate(unit_by_content):
        members.setdefault(_last(joined, unit), []).append(index)
    handed = _handed(contents, members, turns)
    return tuple(
        Unit(kind=kinds[unit], indices=tuple(indices), turn=turns[unit], handed=unit in handed)
        for unit, indices in sorted(members.items())
    )


def _last(joined: list[int], unit: int) -> int:
    """The unit that a unit was merged into in the end."""
    while joined[unit] != unit:
        joined[unit] = joined[joined[unit]]
        unit = joined[unit]
    return unit


def _handed(contents: Sequence[Content], members: Mapping[int, Sequence[int]], turns: Sequence[int]) -> frozenset[int]:
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


def protected(parts: Sequence[Unit], human: int | None, *, neighbours: bool = True) -> frozenset[int]:
    """Positions in ``parts`` that no cut takes: the final human message with its neighbours, what other agents handed
    over since then, and the last exchange.

    Neighbours are human messages with nothing of the model's in between. The last exchange is protected while nothing
    of the model's follows it, that is, while the model has yet to read it.
    """
    latest = parts[-1].turn if parts else 0
    kept = {at for at, unit in enumerate(parts) if unit.handed and unit.turn == latest}
    final = next((at for at, unit in enumerate(parts) if human is not None and human in unit.indices), None)
    if final is not None:
        kept.add(final)
        for step in (-1, 1) if neighbours else ():
            at = final + step
            while 0 <= at < len(parts) and parts[at].kind == "human" and parts[at].turn == parts[final].turn:
                kept.add(at)
                at += step
    last = max(range(len(parts)), key=lambda at: parts[at].indices[-1], default=None)
    if last is not None:
        kept.add(last)
    return frozenset(kept)


class Cut(NamedTuple):
    """What a cut does: indices of the contents that go, and of those whose responses free ``excess`` tokens more."""

    gone: tuple[int, ...] = ()
    shortened: tuple[int, ...] = ()
    excess: int = 0


def cut(
    parts: Sequence[Unit],
    tokens: Sequence[int],
    *,
    target: int,
    human: int | None,
    neighbours: bool = True,
    spare: Callable[[int], int] | None = None,
    stay: Collection[int] = (),
) -> Cut:
    """What to leave out so that the rest holds at most ``target`` tokens.

    Whole units go, the oldest first. What another agent said last in a turn outlives the rest of the turn. A turn's
    human message outlives its answers and goes with the last of them, so what stays always begins with a human message;
    only messages beside the final one go without, and last of all. An exchange that would free more than is asked for,
    and whose responses can free as much, stays with shortened responses.

    Args:
        tokens: tokens of each content.
        human: index of the final human message, which stays, like the exchange that the model has yet to read.
        neighbours: whether human messages right beside it stay as well.
        spare: gives the tokens that a unit can give up without leaving, by position. It is asked only about units that
            may have as many as are still asked for.
        stay: positions in ``parts`` that stay besides.

    Returns:
        Fewer tokens than asked for are freed where only protected units are left.
    """
    excess = sum(tokens) - target
    if excess <= 0 or not parts:
        return Cut()
    sizes = [sum(tokens[index] for index in unit.indices) for unit in parts]
    stay = protected(parts, human, neighbours=neighbours).union(stay)
    questions: dict[int, list[int]] = {}
    for at, unit in enumerate(parts):
        if unit.kind == "human":
            questions.setdefault(unit.turn, []).append(at)
    answers = Counter(unit.turn for unit in parts if unit.kind != "human")
    leaving_units: list[int] = []
    shortened: tuple[int, ...] = ()
    leaving = [at for at, unit in enumerate(parts) if unit.kind != "human" and at not in stay]
    for at in sorted(leaving, key=lambda at: (parts[at].turn, parts[at].handed, at)):
        if excess <= 0:
            break
        unit = parts[at]
        if spare is not None and excess <= _MOST_SPARE * sizes[at] and excess <= spare(at):
            shortened = unit.indices
            break
        answers[unit.turn] -= 1
        leaving_together = [at]
        if not answers[unit.turn]:
            leaving_together += [question for question in questions.get(unit.turn, ()) if question not in stay]
        leaving_units += leaving_together
        excess -= sum(sizes[position] for position in leaving_together)
    final = next((unit.turn for unit in parts if human is not None and human in unit.indices), None)
    for at in questions.get(final, ()) if final is not None and not shortened else ():
        if excess > 0 and at not in stay and at not in leaving_units:
            leaving_units.append(at)
            excess -= sizes[at]
    gone = tuple(sorted(index for at in leaving_units for index in parts[at].indices))
    return Cut(gone=gone, shortened=shortened, excess=excess if shortened else 0)


_MOST_SPARE = 4
"""Times its tokens as they are sent that a unit may give up: responses alone count by their JSON, which escapes."""


# The place of the last cut in a host's list, which may have changed since.


class EpochMatch(NamedTuple):
    """An epoch whose boundary fits the host's list.

    ``rewritten`` is set where the boundary was not found again and everything is live.
    """

    epoch: Epoch
    rewritten: bool = False
    note: str = ""


def align(epoch: Epoch, total: int, digest_at: Callable[[int], str]) -> EpochMatch:
    """Finds the boundary in the host's list by the hash of the last content cut.

    Args:
        total: length of the host's list.
        digest_at: the digest of the content at a position.
    """
    if not epoch.cut_count:
        return EpochMatch(epoch)
    last = epoch.cut_count - 1

    def is_at(shift: int) -> bool:
        """Whether the last content cut, and the other anchors still in the list, are ``shift`` places further."""
        return digest_at(last + shift) == epoch.cut_hash and all(
            short(digest_at(at + shift)) == digest for at, digest in epoch.anchors if at + shift >= 0
        )

    if last < total and is_at(0):
        return EpochMatch(epoch)
    shifts = [at - last for at in range(total) if digest_at(at) == epoch.cut_hash and is_at(at - last)]
    if len(shifts) != 1:
        return reset(epoch, "the boundary of the last cut is gone")
    shift = shifts[0]
    moved = replace(
        epoch,
        cut_count=epoch.cut_count + shift,
        kept=tuple((max(0, start + shift), stop + shift) for start, stop in epoch.kept if stop + shift > 0),
        anchors=tuple((at + shift, digest) for at, digest in epoch.anchors if at + shift >= 0),
        summary_place=max(0, epoch.summary_place + shift) if epoch.summary_place else 0,
        payloads=tuple(
            replace(message, place=max(-1, message.place + shift)) if message.place >= 0 else message
            for message in epoch.payloads
        ),
    )
    return EpochMatch(moved, note=f"the boundary of the last cut moved by {shift}")


def reset(epoch: Epoch, note: str) -> EpochMatch:
    """An epoch that has cut nothing yet, where history is not what its boundary was drawn in."""
    fresh = Epoch(number=epoch.number, contract=epoch.contract, marks=epoch.marks, tools=epoch.tools)
    return EpochMatch(fresh, rewritten=True, note=note)


def live_positions(epoch: Epoch, total: int) -> tuple[int, ...]:
    """Indices in a host's list of ``total`` contents that are still sent."""
    kept_positions = [index for start, stop in epoch.kept for index in range(start, min(stop, total))]
    return (*kept_positions, *range(min(epoch.cut_count, total), total))


def as_ranges(indices: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Sorted indices as half-open ranges."""
    ranges: list[tuple[int, int]] = []
    for index in sorted(indices):
        if ranges and ranges[-1][1] == index:
            ranges[-1] = (ranges[-1][0], index + 1)
        else:
            ranges.append((index, index + 1))
    return tuple(ranges)


def torn(contents: Sequence[Content]) -> tuple[int, ...]:
    """Indices of contents with a response that answers no call among them."""
    if not any(content.responses for content in contents):
        return ()
    parts = units(contents)
    alone = {unit.indices[0] for unit in parts if unit.kind == "message"}
    return tuple(index for index, content in enumerate(contents) if index in alone and content.responses)
