"""Search: an index of texts, and the ranking of one pack's candidates."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from aether_context.retrieval.ranking import Left, Ranking, answers, query_for, rank, retrieve, telling_words

if TYPE_CHECKING:
    from aether_context.retrieval.call_indexes import ranked, tool_scores
    from aether_context.retrieval.embedders import register_embedder
    from aether_context.retrieval.pool import Entry, Hit, HybridIndex

__all__ = [
    "Entry",
    "Hit",
    "HybridIndex",
    "Left",
    "Ranking",
    "answers",
    "query_for",
    "rank",
    "ranked",
    "register_embedder",
    "retrieve",
    "telling_words",
    "tool_scores",
]

_NEED_NUMPY = {
    "Entry": "pool",
    "Hit": "pool",
    "HybridIndex": "pool",
    "ranked": "call_indexes",
    "register_embedder": "embedders",
    "tool_scores": "call_indexes",
}
"""Where names stand that are loaded when they are asked for."""


def __getattr__(name: str) -> Any:
    if name not in _NEED_NUMPY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_NEED_NUMPY[name]}"), name)
    globals()[name] = value
    return value
