"""One pack from its ingredients: the stages in order, pure and synchronous.

I/O happens before it (the edge gathers memory hits, evidence, state) and after it (the store writes).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aether_context.build.assembly import assemble
from aether_context.build.carry import Carried, carry
from aether_context.build.choice import Chosen, choose
from aether_context.build.filling import fill
from aether_context.build.fit import fit
from aether_context.build.growth import extend_pack
from aether_context.build.recount import recount
from aether_context.build.scope import narrow
from aether_context.build.shares import share
from aether_context.build.tightening import tighten
from aether_context.build.trimming import trim
from aether_context.counting import Memo, Tally
from aether_context.pack import Ingredients, Outgoing, Pack
from aether_context.policy import PackPolicy
from aether_context.tokens import TokenCounter, counter_for, framing_of

__all__ = ["build_pack", "extend_pack", "recount"]

_MOST_ROUNDS = 3


def build_pack(
    source: Ingredients,
    policy: PackPolicy,
    *,
    counter: TokenCounter | None = None,
    memo: Memo | None = None,
    recorded: Mapping[str, int] | None = None,
) -> Pack:
    """Builds the request of one model call, with the account of it.

    Equal arguments give equal packs, byte for byte, on every machine. Where a cut is made, candidates are chosen once
    more: what stood in the conversation may not stand there any longer; and again where those that are chosen push
    more of it out. So are relevant tools: the prefix ends anyway.

    Args:
        counter: counts tokens; the built-in estimate for the request's model by default.
        memo: counts and shortened contents by digest, kept between packs for speed.
        recorded: counts of an earlier build, by short digest; they come before the counter's.

    Raises:
        StepTooLarge: system, task and tools alone exceed the input budget, and the policy's ``on_invalid`` is not
            ``warn``.
    """
    model = source.request.model
    tally = Tally(counter or counter_for(model), memo, recorded, framing=framing_of(model))
    scope = narrow(source, policy, tally)
    carried = carry(source, policy, scope, tally)
    chosen = choose(source, policy, carried, carried.settled.sent, source.epoch.summary, tally)
    chosen = fill(source, policy, carried, chosen)
    tight = tighten(source, policy, scope, carried, chosen, tally)
    shares = share(source, policy, tight, chosen, tally)
    fitted = fit(source, policy, tight, chosen, shares, tally, trim=trim)
    chooses_again = bool(source.candidates) and not _final(carried, chosen)
    if fitted.cut and (chooses_again or scope.stands):
        scope = narrow(source, policy, tally, afresh=True)
        carried = carry(source, policy, scope, tally, afresh=True)
        for _ in range(_MOST_ROUNDS):
            tail = fitted.items
            chosen = choose(source, policy, carried, tail, "", tally)
            chosen = fill(source, policy, carried, chosen, at_cut=True)
            tight = tighten(source, policy, scope, carried, chosen, tally, at_cut=True)
            shares = share(source, policy, tight, chosen, tally, at_cut=True)
            fitted = fit(source, policy, tight, chosen, shares, tally, trim=trim)
            if chosen.stands_alone or not _lost(tail, fitted.items):
                break
    return assemble(source, policy, tight, chosen, shares, fitted, tally)


def _lost(before: Sequence[Outgoing], after: Sequence[Outgoing]) -> bool:
    """Whether contents that stood in the conversation do not stand there any longer."""
    return not {item.origin for item in before} <= {item.origin for item in after}


def _final(carried: Carried, chosen: Chosen) -> bool:
    """Whether a cut leaves the choice as it is: made for this pack, at an epoch's beginning, beside no conversation."""
    return carried.begins and not carried.keeps and chosen.stands_alone
