"""Which messages of earlier invocations go on in their packed text, and which return to the user's own words.

A request needs one pack, the current one. An earlier message that returns to its own words is shorter in every request
from then on, but a provider's cache has to read all that stands behind it once more. Where the prefix ends anyway, or
the pack speaks of another plan, there is nothing to weigh.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aether_context.build.room import input_budget
from aether_context.conversation.turns import is_human
from aether_context.pack import Content, Ingredients, PackedMessage
from aether_context.policy import PackPolicy
from aether_context.tokens.cache import Tally

_LEAST_CALLS = 20
"""Model calls that a conversation is expected to go on for; one that had more is expected to have as many again."""


def gain(*, saved: float, calls: float, resent: float, cached_price: float) -> float:
    """What a break of the cached prefix is worth, in tokens at the price of uncached input.

    Args:
        saved: tokens that each later call sends less, at the cached price.
        calls: how many calls that lasts.
        resent: tokens behind the break, which cost the difference between both prices once.
        cached_price: price of cached input as a share of that of uncached input, over 0 and up to 1.
    """
    return cached_price * saved * calls - (1 - cached_price) * resent


def price_of_cached(source: Ingredients, policy: PackPolicy) -> float:
    """The policy's word on what cached input costs, else the list's."""
    return policy.conversation.cached_price or source.cached_price


def matched(source: Ingredients) -> dict[int, PackedMessage]:
    """The packed form of each human message that has one, by index.

    A message that others equal takes the one that was made at its own place; where history moved since, the latest take
    theirs first.
    """
    request, here = source.request, source.identity.invocation
    left = [one for one in source.epoch.payloads if one.before]
    found: dict[int, PackedMessage] = {}
    for in_place in (True, False):
        for index in range(len(request.contents) - 1, -1, -1):
            raw = request.contents[index]
            current = index == request.human
            if not left or index in found or not (current or is_human(raw)):
                continue
            match = next(
                (
                    one
                    for one in reversed(left)
                    if one.of == raw.digest
                    and (one.invocation == here) == current
                    and (not in_place or one.place == request.positions[index])
                ),
                None,
            )
            if match is not None:
                left.remove(match)
                found[index] = match
    return found


def still_packed(
    source: Ingredients,
    policy: PackPolicy,
    past: Mapping[int, PackedMessage],
    sent: Mapping[int, Content],
    plan: str,
    tally: Tally,
) -> Sequence[int]:
    """The indices in ``past`` of earlier messages that keep their packed text, where the prefix goes on.

    A break spares what stands before it, so the messages that keep it are the earliest ones. It is made where it gains
    most, for as many calls as the conversation is expected to have before it is cut.

    Args:
        past: earlier messages that were sent packed last.
        sent: those messages in their packed form.
        plan: the digest of the plan's part in a payload of now.
    """
    places = sorted(past)
    if not places or policy.conversation.past_payloads == "raw":
        return ()
    other = next((at for at, index in enumerate(places) if past[index].plan != plan), len(places))
    stay = places[:other]
    if policy.conversation.past_payloads == "packed" or not stay:
        return stay
    contents, human = source.request.contents, source.request.human
    raw = tally.contents(contents)
    surplus = {index: tally.content(sent[index]) - raw[index] for index in places}
    end = places[other] if other < len(places) else _unsent(contents, len(contents) if human is None else human)
    spoken = sum(raw) + sum(surplus.values())
    said = max(1, sum(content.role == "model" for content in contents))
    room = max(0, input_budget(source, policy) - spoken)
    calls = min(max(_LEAST_CALLS, said), room * said / max(1, spoken))

    def gained(start: int) -> float:
        return gain(
            saved=sum(surplus[index] for index in stay[start:]),
            calls=calls,
            resent=sum(raw[stay[start] : end]),
            cached_price=price_of_cached(source, policy),
        )

    best = max(range(len(stay)), key=gained)
    return stay[:best] if gained(best) > 0 else stay


def _unsent(contents: Sequence[Content], human: int) -> int:
    """The index from which no earlier request can have held a content: the last thing that the model said."""
    return next((at for at in range(human - 1, -1, -1) if contents[at].role == "model"), human)
