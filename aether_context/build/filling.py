"""Memories by the room that there is: fewer where it is short, more where nothing else asks for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from aether_context.build.carry import Carried
from aether_context.build.choice import Chosen
from aether_context.build.demand import demand, latest_need
from aether_context.build.room import input_budget
from aether_context.pack import Candidate, Ingredients
from aether_context.policy import PackPolicy
from aether_context.retrieval import Left, weakest


def fill(source: Ingredients, policy: PackPolicy, carried: Carried, chosen: Chosen, *, at_cut: bool = False) -> Chosen:
    """The choice without memories under the floor where room is short, and with those beyond ``memory_k`` where they
    find room whole.

    Room is short where not all that the layers ask for finds some, and at every cut. For further memories room is what
    all layers together leave of ``memory_fill`` of the window, so a further memory takes nothing from another layer and
    shortens nothing. At a cut memories alone may take as much, and the conversation's latest turns find room beside
    them: how much more of it stays follows from what the other layers leave.
    """
    first, more = chosen.memory.chosen, chosen.memory.more
    weak = weakest(first, policy.retrieval)
    if not (more or weak):
        return chosen
    asked = demand(source, policy, carried, chosen)
    others = sum(asked.measured.values()) + sum(asked.wanted.values()) - asked.wanted["conversation"]
    left: list[Left] = []
    if weak and (at_cut or others + asked.wanted["conversation"] > input_budget(source, policy)):
        names = {one.id for one in weak}
        first = tuple(one for one in first if one.id not in names)
        left += [Left(candidate=one, reason="below_floor") for one in weak]
        asked = demand(source, policy, carried, replace(chosen, memory=replace(chosen.memory, chosen=first)))
        others = sum(asked.measured.values()) + sum(asked.wanted.values()) - asked.wanted["conversation"]
    if at_cut:
        beside = input_budget(source, policy) - others - latest_need(source, policy, carried)
        room = min(_free(source, policy) - asked.wanted["memory"], beside)
    else:
        room = _free(source, policy) - others - asked.wanted["conversation"]
    taken = _that_fit(more, room)
    names = {one.id for one in taken}
    left += [Left(candidate=one, reason="beyond_k") for one in more if one.id not in names]
    memory = replace(chosen.memory, chosen=(*first, *taken), more=(), left=(*chosen.memory.left, *left))
    return replace(chosen, memory=memory)


def _free(source: Ingredients, policy: PackPolicy) -> int:
    """Tokens up to which the window may be filled; none where layers do not lend."""
    if not policy.budget.lending:
        return 0
    return min(input_budget(source, policy), int(source.window * policy.retrieval.memory_fill))


def _that_fit(candidates: Sequence[Candidate], room: int) -> list[Candidate]:
    """Those that fit, in their order; one that does not is passed over."""
    taken = []
    for one in candidates:
        if one.tokens <= room:
            taken.append(one)
            room -= one.tokens
    return taken
