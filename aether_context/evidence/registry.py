"""Extractors from outside, by name."""

from __future__ import annotations

import difflib
from collections.abc import Collection
from typing import Protocol

from aether_context.errors import PolicyError
from aether_context.text.compression import Counts

RULES = ("never", "threshold", "always")
"""What a policy can say of a tool without an extractor."""


class Extractor(Protocol):
    """Chooses what is shown of a long output.

    Equal arguments have to give equal texts. What it gives should be the output's own lines.
    """

    def __call__(self, text: str, *, max_tokens: int, counter: Counts, query: str) -> str: ...


_EXTRACTORS: dict[str, Extractor] = {}


def register_extractor(name: str, extractor: Extractor) -> None:
    """Makes an extractor known to policies under a name.

    Raises:
        PolicyError: the name is one of a rule's.
    """
    if name in RULES:
        raise PolicyError(f"{name!r} is a rule: give the extractor another name", field="offload.tools")
    _EXTRACTORS[name] = extractor


def extractor(name: str) -> Extractor:
    """The extractor of a name.

    Raises:
        PolicyError: there is none.
    """
    if name not in _EXTRACTORS:
        known = (*RULES, *sorted(_EXTRACTORS))
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "it is one of " + ", ".join(known)
        raise PolicyError(
            f"offload.tools: {name!r} is neither a rule nor a registered extractor: {hint}", field="offload"
        )
    return _EXTRACTORS[name]


def check_rules(names: Collection[str]) -> None:
    """Checks that every rule is one.

    Raises:
        PolicyError: one is not.
    """
    for name in names:
        if name not in RULES:
            extractor(name)
