"""Further memories for the part of a window that nothing else asks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from aether_context.build.carry import Carried
from aether_context.build.choice import Chosen
from aether_context.build.demand import demand, latest_need
from aether_context.build.room import input_budget
from aether_context.pack import Candidate, Ingredients
from aether_context.policy import PackPolicy
from aether_context.retrieval import Left


def fill(source: Ingredients, policy: PackPolicy, carried: Carried, chosen: Chosen, *, at_cut: bool = False) -> Chosen:
    """The choice with its memories beyond ``memory_k`` only where they find room whole.

    Room is what all layers together leave of ``memory_fill`` of the window, so a further memory takes nothing from
    another layer and shortens nothing. At a cut memories alone may take as much, and the conversation's latest turns
    find room beside them: how much more of it stays follows from what the other layers leave.
    """
    most = policy.retrieval.memory_k
    first, more = chosen.memory.chosen[:most], chosen.memory.chosen[most:]
    if not more:
        return chosen
    asked = demand(source, policy, carried, replace(chosen, memory=replace(chosen.memory, chosen=first)))
    others = sum(asked.measured.values()) + sum(asked.wanted.values()) - asked.wanted["conversation"]
    if at_cut:
        beside = input_budget(source, policy) - others - latest_need(source, policy, carried)
        room = min(_free(source, policy) - asked.wanted["memory"], beside)
    else:
        room = _free(source, policy) - others - asked.wanted["conversation"]
    taken = _fitting(more, room)
    names = {one.id for one in taken}
    left = tuple(Left(candidate=one, reason="beyond_k") for one in more if one.id not in names)
    return replace(chosen, memory=replace(chosen.memory, chosen=(*first, *taken), left=(*chosen.memory.left, *left)))


def _free(source: Ingredients, policy: PackPolicy) -> int:
    """Tokens up to which the window may be filled; none where layers do not lend."""
    if not policy.budget.lending:
        return 0
    return min(input_budget(source, policy), int(source.window * policy.retrieval.memory_fill))


def _fitting(candidates: Sequence[Candidate], room: int) -> list[Candidate]:
    """Those that fit, in their order; one that does not is passed over."""
    taken = []
    for one in candidates:
        if one.tokens <= room:
            taken.append(one)
            room -= one.tokens
    return taken
