"""One pack from its input: the stages in order, pure and synchronous.

I/O happens before it (the edge gathers memory hits, evidence, state) and after it (the store writes).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aether_context.conversation import strategies_of
from aether_context.pack import Outgoing, Pack, PackInput
from aether_context.packing.assembly import assemble, recount
from aether_context.packing.carryover import Carried, carry
from aether_context.packing.choice import Chosen, choose, fill
from aether_context.packing.emergency import within_window
from aether_context.packing.fit import fit
from aether_context.packing.growth import extend_pack
from aether_context.packing.late_strategies import trim
from aether_context.packing.shares import share, tighten
from aether_context.packing.tools import narrow
from aether_context.policy import PackPolicy
from aether_context.tokens import TokenCounter, counter_for, framing_of
from aether_context.tokens.cache import CachedCounter, TokenCache

__all__ = ["build_pack", "extend_pack", "recount"]

_MOST_ROUNDS = 3


def build_pack(
    source: PackInput,
    policy: PackPolicy,
    *,
    counter: TokenCounter | None = None,
    cache: TokenCache | None = None,
    recorded: Mapping[str, int] | None = None,
) -> Pack:
    """Builds the request of one model call, with the account of it.

    Equal arguments give equal packs, byte for byte, on every machine. Where a cut is made, candidates are chosen once
    more: what stood in the conversation may not stand there any longer; and again where those that are chosen push
    more of it out. So are relevant tools: the prefix ends anyway. Where a content is shortened without a cut, what was
    left out because it stood there is chosen once more, too. Strategies that look at what the host sent do so before
    there is a payload; where they decide otherwise with what it takes, the pack is built with that. What leaves is
    counted once more: where it is over the input budget, the pack is built again with so much less room.

    Args:
        counter: counts tokens; the built-in estimate for the request's model by default.
        cache: counts and shortened contents by digest, kept between packs for speed.
        recorded: counts of an earlier build, by short digest; they come before the counter's.

    Raises:
        StepTooLarge: system, task and tools alone exceed the input budget, and the policy's ``on_invalid`` is not
            ``warn``.
    """
    model = source.request.model
    cached = CachedCounter(counter or counter_for(model), cache, recorded, framing=framing_of(model))
    pack, payload_tokens = _built(source, policy, cached, 0, 0), 0
    for _ in range(_MOST_ROUNDS):
        before, payload_tokens = payload_tokens, _payload_tokens(pack)
        if payload_tokens <= before or not _matters(source, policy, cached, before, payload_tokens):
            payload_tokens = before
            break
        pack = _built(source, policy, cached, 0, payload_tokens)
    reserve = 0
    while (over := _over(pack)) > 0 and reserve < 2 * source.window:
        reserve += over
        again = _built(source, policy, cached, reserve, payload_tokens)
        if _over(again) >= over:
            break
        pack = again
    return pack


def _over(pack: Pack) -> int:
    """Tokens by which what leaves passes the input budget, after everything."""
    used = sum(one.used for one in pack.allocation.layers.values())
    return 0 if pack.source.passthrough_reason else used - pack.allocation.budget


def _payload_tokens(pack: Pack) -> int:
    """What the payload that a pack makes adds to the human message, where early strategies have yet to count it.

    They decide at an invocation's first call; a payload that a later one makes changes nothing of that.
    """
    human = pack.source.request.human
    if human is None or not pack.chose or not pack.source.first_call:
        return 0
    outcome = pack.outcomes[human]
    return outcome.sent_tokens - outcome.tokens if outcome.sent_tokens is not None else 0


def _matters(source: PackInput, policy: PackPolicy, counter: CachedCounter, before: int, payload_tokens: int) -> bool:
    """Whether early strategies decide otherwise with a payload of so many tokens."""
    if source.passthrough_reason or not any(one.early for one in strategies_of(policy.conversation)):
        return False
    scope = narrow(source, policy, counter)
    one, other = (
        carry(source, policy, scope, counter, payload_tokens=size).settled for size in (before, payload_tokens)
    )
    return one.hidden != other.hidden or _lost(one.items, other.items)


def _built(source: PackInput, policy: PackPolicy, counter: CachedCounter, reserve: int, payload_tokens: int) -> Pack:
    """The stages in their order.

    Args:
        reserve: tokens that stages could not foresee, and that have to stay free.
        payload_tokens: what early strategies take a payload to add to the human message.
    """
    scope = narrow(source, policy, counter)
    carried = carry(source, policy, scope, counter, payload_tokens=payload_tokens)
    chosen = choose(source, policy, carried, carried.settled.sent, source.epoch.summary, counter)
    chosen = fill(source, policy, carried, chosen)
    tight = tighten(source, policy, scope, carried, chosen, counter)
    shares = share(source, policy, tight, chosen, counter)
    fitted = fit(source, policy, tight, chosen, shares, counter, trim=trim, reserve=reserve)
    fitted = within_window(source, policy, tight.carried, fitted, counter)
    at_cut = bool(fitted.cut) and (scope.stands or (bool(source.candidates) and not _final(carried, chosen)))
    if at_cut:
        scope = narrow(source, policy, counter, afresh=True)
        carried = carry(source, policy, scope, counter, afresh=True, payload_tokens=payload_tokens)
    summary = "" if at_cut else source.epoch.summary
    judged = () if at_cut else carried.settled.sent
    for _ in range(_MOST_ROUNDS):
        if not at_cut and (chosen.stands_alone or not _lost(judged, fitted.items)):
            break
        judged = fitted.items
        chosen = choose(source, policy, carried, judged, summary, counter)
        chosen = fill(source, policy, carried, chosen, at_cut=at_cut)
        tight = tighten(source, policy, scope, carried, chosen, counter, at_cut=at_cut)
        shares = share(source, policy, tight, chosen, counter, at_cut=at_cut)
        fitted = fit(source, policy, tight, chosen, shares, counter, trim=trim, reserve=reserve)
        fitted = within_window(source, policy, tight.carried, fitted, counter)
        if chosen.stands_alone or not _lost(judged, fitted.items):
            break
    return assemble(source, policy, tight, chosen, shares, fitted, counter)


def _lost(before: Sequence[Outgoing], after: Sequence[Outgoing]) -> bool:
    """Whether contents that stood in the conversation do not stand there any longer, or in another form."""
    sent = {item.origin: item.content.digest for item in after}
    return any(sent.get(item.origin) != item.content.digest for item in before)


def _final(carried: Carried, chosen: Chosen) -> bool:
    """Whether a cut leaves the choice as it is: made for this pack, at an epoch's beginning, beside no conversation."""
    return carried.begins and not carried.keeps and chosen.stands_alone
