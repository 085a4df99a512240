"""Scores for one pack's candidates by the same search as an index of their own gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from aether_context.embedding import Embedder
from aether_context.pack import Candidate, Layer
from aether_context.redaction import masker
from aether_context.retrieval.entries import Entry, Hit
from aether_context.retrieval.index import HybridIndex

_TOLD = ("bm25", "cosine", "neighbours", "time", "recency")


def ranked(
    candidates: Sequence[Candidate],
    query: str,
    *,
    asked: float,
    embedder: Embedder | None,
    redact: tuple[str, ...] = (),
) -> tuple[Candidate, ...]:
    """The candidates with scores, each layer's against each other; those that have a similarity keep it.

    Args:
        asked: when the query is asked, seconds since 1970 UTC.
        embedder: compares meanings; None ranks by words alone.
        redact: patterns of what is masked before anything is compared.

    Raises:
        EmbeddingError: a local embedder failed.
    """
    layers: dict[Layer, list[Candidate]] = {}
    for one in candidates:
        if "similarity" not in one.scores:
            layers.setdefault(one.layer, []).append(one)
    found: dict[str, Mapping[str, float]] = {}
    for pool in layers.values():
        index = HybridIndex(embedder or "none", redact=masker(redact))
        index.add(Entry(id=one.id, text=one.text, time=one.time, speaker=one.speaker or None) for one in pool)
        found |= {hit.id: told(hit) for hit in index.search(query, len(pool), asked=asked)}
        found |= {one.id: {"similarity": 0.0} for one in pool if one.id not in found}
    return tuple(replace(one, scores={**one.scores, **found.get(one.id, {})}) for one in candidates)


def told(hit: Hit) -> dict[str, float]:
    """A hit's scores as a candidate carries them: ``similarity`` is what it is ranked by, on a scale of 0 to 1."""
    parts = {name: hit.scores[name] for name in _TOLD if hit.scores.get(name)}
    return {**parts, "similarity": similarity(hit.score)}


def similarity(score: float) -> float:
    """A score on a scale of 0 to 1, in the same order."""
    return round(score / (1 + score), 6)
