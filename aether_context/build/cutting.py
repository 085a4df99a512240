"""One cut of the conversation: which contents go, which of those that stay are shortened, and what stands for the rest.

Sizes are tokens. A cut is judged like an order in stock-keeping: it costs what has to be sent uncached again, and saves
the cached price of what it frees for as long as that room lasts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from aether_context.build.carry import summary_tokens
from aether_context.build.returning import gain
from aether_context.build.rewriting import asked, response_tokens, shortened
from aether_context.conversation import turns
from aether_context.conversation.summary import MOST_TOKENS, recap
from aether_context.pack import Outgoing
from aether_context.policy import PackPolicy
from aether_context.text.compression import Summaries, level
from aether_context.tokens.cache import Tally

_BULLET = "- a"
LEAST_EXTRACT = 48
"""Tokens under which a response is not shortened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remainder:
    """What a cut leaves: contents that stay, contents that go, the recap that stands for those, and the token ceilings
    of responses that it shortened, by digest."""

    items: tuple[Outgoing, ...]
    cut: tuple[Outgoing, ...] = ()
    summary: str = ""
    extracts: Mapping[str, int] = field(default_factory=dict)


def cut_to(
    low: int,
    items: Sequence[Outgoing],
    human: int | None,
    policy: PackPolicy,
    tally: Tally,
    *,
    ceiling: int,
    room: int,
    earlier: str,
    summaries: Summaries,
) -> Remainder:
    """The conversation within ``low``, recap included, where what may leave holds enough.

    Args:
        items: all contents that are sent so far, in the host's order.
        human: index of the final human message, which is not counted.
        ceiling: what the conversation may hold at most.
        room: the recap's most, within ``low``.
        earlier: the recap of earlier cuts.
        summaries: a model's, for the recap.
    """
    room = min(room, MOST_TOKENS)
    responses = [response_tokens(item.content, tally) for item in items]
    tokens = [0 if at == human else item.tokens for at, item in enumerate(items)]
    parts = turns.units([item.content for item in items])
    worth = turns.Worth(
        superseded=turns.superseded(parts, [item.raw for item in items]),
        stands_at=turns.outliving(parts, [item.raw for item in items], tokens),
        spare={at: sum(_spare(responses[index]) for index in unit.indices) for at, unit in enumerate(parts)},
    )

    def chosen(target: int, neighbours: bool) -> turns.Cut:
        return turns.cut(
            parts,
            tokens,
            target=target,
            human=human,
            last_turns=policy.conversation.last_turns,
            neighbours=neighbours,
            worth=worth,
        )

    left = Remainder(items=tuple(items))
    for reserved in (room, None):
        target = max(0, low - (summary_tokens(left.summary, policy, tally) if reserved is None else reserved))
        made = chosen(target, True)
        if sum(tokens) - sum(tokens[index] for index in made.gone) - made.excess > ceiling:
            made = chosen(target, False)
        kept = sum(tokens) - sum(tokens[index] for index in made.gone) - made.excess
        left = _left(
            items,
            responses,
            made,
            tally,
            room=min(room, ceiling - kept - _frame(policy, tally)),
            earlier=earlier,
            summaries=summaries if reserved is None else Summaries("", {}),
        )
    return left


def _frame(policy: PackPolicy, tally: Tally) -> int:
    """Tokens of a recap besides its own words."""
    return summary_tokens(_BULLET, policy, tally) - tally.count(_BULLET)


def pays(*, freed: int, kept: int, growth: float, cached_price: float) -> bool:
    """Whether freeing tokens saves more than sending those that stay once more without the cache.

    ``freed`` tokens last for ``freed / growth`` calls, half of them on average, each call at the cached price; what is
    ``kept`` costs the difference between both prices once. (Wilson's rule for the size of an order.)

    Args:
        growth: tokens that a model call adds.
        cached_price: price of cached input as a share of that of uncached input, over 0 and up to 1.
    """
    if not growth:
        return True
    return gain(saved=freed / 2, calls=freed / growth, resent=kept, cached_price=cached_price) >= 0


def _spare(responses: Sequence[int]) -> int:
    return max(0, sum(responses) - LEAST_EXTRACT * len(responses))


def _left(
    items: Sequence[Outgoing],
    responses: Sequence[Sequence[int]],
    made: turns.Cut,
    tally: Tally,
    *,
    room: int,
    earlier: str,
    summaries: Summaries,
) -> Remainder:
    out = set(made.gone)
    ceiling = _ceiling([tokens for index in made.shortened for tokens in responses[index]], made.excess)
    raws = [item.raw for item in items]
    short = {
        index: shortened(
            items[index].content if items[index].members else raws[index], ceiling, asked(raws, index), tally
        )
        for index in made.shortened
        if responses[index]
    }
    stay = tuple(
        replace(item, content=short[index], outcome="extract", tokens=tally.content(short[index]))
        if index in short
        else item
        for index, item in enumerate(items)
        if index not in out
    )
    reduced = {item.raw.digest for item in stay if item.outcome == "extract"}
    lost = [raw for index, raw in enumerate(raws) if index in out or raw.digest in reduced]
    said = ""
    if room > 0:
        still = [item.content for item in stay]
        said = recap(lost, still, max_tokens=room, counter=tally, summaries=summaries, earlier=earlier)
    return Remainder(
        items=stay,
        cut=tuple(items[index] for index in made.gone),
        summary=said,
        extracts={raws[index].digest: ceiling for index in short},
    )


def _ceiling(sizes: Sequence[int], excess: int) -> int:
    return max(LEAST_EXTRACT, level(sizes, sum(sizes) - excess))
