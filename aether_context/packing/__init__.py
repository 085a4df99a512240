"""One pack from its input: the stages in order, pure and synchronous.

I/O happens before it (the edge gathers memory hits, evidence, state) and after it (the store writes).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy

from aether_context.conversation import strategies_of
from aether_context.pack import Outgoing, Pack, PackInput
from aether_context.packing.carryover import measure, restore_forms
from aether_context.packing.compaction import bring_within_window, compact, settle
from aether_context.packing.compression import allocate, compress, tighten
from aether_context.packing.draft import Draft
from aether_context.packing.inputs import next_input
from aether_context.packing.rendering import recount, render
from aether_context.packing.selection import choose, fill
from aether_context.packing.tools import select_tools
from aether_context.policy import PackPolicy
from aether_context.tokens import TokenCounter, counter_for, framing_of
from aether_context.tokens.cache import PackCounter, TokenCache

__all__ = ["build_pack", "next_input", "recount"]

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
    cached = PackCounter(counter or counter_for(model), cache, recorded, framing=framing_of(model))
    draft = Draft(input=source, policy=policy, counter=cached)
    pack = _built(draft)
    for _ in range(_MOST_ROUNDS):
        payload_tokens = _payload_tokens(pack)
        if payload_tokens <= draft.payload_tokens or not _matters(draft, payload_tokens):
            break
        draft.payload_tokens = payload_tokens
        pack = _built(draft)
    while (over := _over(pack)) > 0 and draft.reserve < 2 * source.window:
        draft.reserve += over
        again = _built(draft)
        if _over(again) >= over:
            break
        pack = again
    return pack


def _built(draft: Draft) -> Pack:
    """The pack of a draft; made anew where what it leaves out is no longer in the conversation."""
    source = draft.input
    given = _given(draft)
    made = _fitted(given, given.items, source.epoch.summary)
    chosen_alone = given.begins and not given.keeps and made.stands_alone
    at_cut = bool(made.cut) and (given.scope.stands or (bool(source.candidates) and not chosen_alone))
    if at_cut:
        draft = copy(draft)
        draft.at_cut = True
        given = _given(draft)
    judged: Sequence[Outgoing] = given.items
    for at in range(_MOST_ROUNDS):
        if not (at_cut and at == 0) and (made.stands_alone or not _lost(judged, made.items)):
            break
        judged = made.items
        made = _fitted(given, judged, "" if at_cut else source.epoch.summary)
    return render(made)


def _given(draft: Draft) -> Draft:
    """What the call and its epoch determine, before anything is chosen."""
    draft = copy(draft)
    select_tools(draft)
    restore_forms(draft)
    settle(draft)
    measure(draft)
    return draft


def _fitted(draft: Draft, judged: Sequence[Outgoing], summary: str) -> Draft:
    """What is chosen beside these contents and this summary, and all of it within the window."""
    draft = copy(draft)
    choose(draft, judged, summary)
    fill(draft)
    tighten(draft)
    allocate(draft)
    compress(draft)
    compact(draft)
    bring_within_window(draft)
    return draft


def _over(pack: Pack) -> int:
    """Tokens by which what leaves passes the input budget, after everything."""
    used = sum(layer.used for layer in pack.allocation.layers.values())
    return 0 if pack.source.host.passthrough_reason else used - pack.allocation.budget


def _payload_tokens(pack: Pack) -> int:
    """What the payload that a pack makes adds to the human message, where early strategies have yet to count it.

    They decide at an invocation's first call; a payload that a later one makes changes nothing of that.
    """
    human = pack.source.request.human
    if human is None or not pack.chose or not pack.source.request.first_call:
        return 0
    outcome = pack.outcomes[human]
    return outcome.sent_tokens - outcome.tokens if outcome.sent_tokens is not None else 0


def _matters(draft: Draft, payload_tokens: int) -> bool:
    """Whether early strategies decide otherwise with a payload of so many tokens."""
    early = any(strategy.early for strategy in strategies_of(draft.policy.conversation))
    if draft.input.host.passthrough_reason or not early:
        return False
    before = _given(draft)
    other = copy(draft)
    other.payload_tokens = payload_tokens
    after = _given(other)
    return before.hidden != after.hidden or _lost(before.incoming, after.incoming)


def _lost(before: Sequence[Outgoing], after: Sequence[Outgoing]) -> bool:
    """Whether contents that stood in the conversation do not stand there any longer, or in another form."""
    sent = {item.origin: item.content.digest for item in after}
    return any(sent.get(item.origin) != item.content.digest for item in before)
