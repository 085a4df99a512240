"""Strategies by name: the package's own, and those that are registered from outside."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import TypeAlias

from aether_context.errors import PolicyError
from aether_context.policy import ConversationSettings
from aether_context.strategies.epochs import Epochs
from aether_context.strategies.guarded import Guarded
from aether_context.strategies.heads_tails import HeadsTails
from aether_context.strategies.sliding_turns import SlidingTurns
from aether_context.strategies.stable_prefix import StablePrefix
from aether_context.strategies.strategy import Strategy
from aether_context.strategies.summarizing import Summarize
from aether_context.strategies.untouched import Untouched

Factory: TypeAlias = Callable[[ConversationSettings], Strategy]

BUILT_IN: dict[str, Factory] = {
    "epochs": lambda settings: Epochs(settings=settings),
    "stable_prefix": lambda settings: StablePrefix(settings=settings),
    "sliding_turns": lambda settings: SlidingTurns(settings=settings),
    "heads_tails": lambda settings: HeadsTails(settings=settings),
    "summarize": lambda settings: Summarize(settings=settings),
    "none": lambda settings: Untouched(settings=settings),
}
_REGISTERED: dict[str, Factory] = {}


def register_strategy(name: str, factory: Factory) -> None:
    """Makes a strategy available to policies under a name; one of that name is replaced.

    A replay needs the same registration, since a policy holds the name only. A decision that would tear an exchange,
    take what the model has yet to answer, or leave a request that begins with the model's words is not taken; the
    manifest says so.

    Args:
        factory: makes the strategy from the policy's settings; its own are in ``settings.custom[name]``.

    Raises:
        PolicyError: the name is empty or one of the package's own.
    """
    if not name.strip() or name in BUILT_IN:
        raise PolicyError(f"strategy name {name!r} is empty or taken: choose another one", field="name")
    _REGISTERED[name] = factory


def unregister_strategy(name: str) -> None:
    """Takes a registered strategy away again; one that is not there is no error."""
    _REGISTERED.pop(name, None)


def strategy_names() -> tuple[str, ...]:
    """The names that policies can give, the package's own first."""
    return (*BUILT_IN, *sorted(_REGISTERED))


def strategies_of(settings: ConversationSettings) -> tuple[Strategy, ...]:
    """A policy's strategies in their order.

    Raises:
        PolicyError: a name is unknown, or one that looks at what the host sent stands after one that waits for the
            water marks.
    """
    found = tuple(_make(name, settings) for name in settings.strategy)
    late = next((at for at, one in enumerate(found) if not one.early), len(found))
    misplaced = next((one.name for one in found[late:] if one.early), None)
    if misplaced is not None:
        raise PolicyError(
            f"conversation.strategy = {list(settings.strategy)}: {misplaced!r} looks at what the host sent, so it has "
            f"to stand before {found[late].name!r}",
            field="conversation.strategy",
        )
    return found


def _make(name: str, settings: ConversationSettings) -> Strategy:
    if name in BUILT_IN:
        return BUILT_IN[name](settings)
    if name in _REGISTERED:
        return Guarded(strategy=_REGISTERED[name](settings))
    known = strategy_names()
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    cure = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
    raise PolicyError(
        f"conversation.strategy = {name!r} is unknown: {cure} A strategy of your own needs register_strategy first",
        field="conversation.strategy",
    )
