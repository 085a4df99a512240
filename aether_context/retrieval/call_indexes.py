"""The indexes of one model call: over its tools, its candidates, and what was said before."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from cachetools import LRUCache

from aether_context.canonical import JSON
from aether_context.pack import Candidate, Layer, Tool
from aether_context.redaction import masker
from aether_context.retrieval.embedders import Embedder, embedder_for
from aether_context.retrieval.index import Entry, Hit, HybridIndex

# Tools found by what they are for: their names, descriptions and parameters as texts of an index.

_EMBEDDER = "static"
"""Whatever a policy compares memories by: the tools of an agent are few, and chosen before a call."""

_SCHEMAS = ("parameters", "parameters_json_schema")


def tool_scores(tools: tuple[Tool, ...], query: str, redact: tuple[str, ...] = ()) -> dict[str, float]:
    """How well each tool answers a query, by name: 0 and more, in the order of the tools.

    Args:
        redact: patterns of what is masked before anything is compared.
    """
    scores = dict.fromkeys((tool.name for tool in tools), 0.0)
    hits = _index(tools, redact).search(query, limit=len(scores)) if query else []
    return scores | {hit.id: round(hit.score, 6) for hit in hits}


def tool_encoder() -> str:
    """Identity of the embedder that `tool_scores` compares meanings by."""
    embedder = embedder_for(_EMBEDDER)
    return "none" if embedder is None else embedder.name


def described(tool: Tool) -> str:
    """What a tool is found by: name, description, then name and description of each parameter."""
    wire = json.loads(tool.wire)
    said = [tool.name, str(wire.get("description") or "")]
    for key in _SCHEMAS:
        said += _parameters(wire.get(key))
    return "\n".join(text for text in said if text)


def _parameters(schema: JSON) -> Iterator[str]:
    properties = schema.get("properties") if isinstance(schema, dict) else None
    for name, schema in (properties if isinstance(properties, dict) else {}).items():
        description = schema.get("description") if isinstance(schema, dict) else None
        yield f"{name}: {description}" if isinstance(description, str) else str(name)


@lru_cache(maxsize=16)
def _index(tools: tuple[Tool, ...], redact: tuple[str, ...]) -> HybridIndex:
    """The index of a set of tools; the latest sets are remembered."""
    index = HybridIndex(_EMBEDDER, redact=masker(redact))
    texts = {tool.name: described(tool) for tool in tools}
    index.add_texts(list(texts), list(texts.values()))
    return index


# Scores for one pack's candidates by the same search as an index of their own gives.

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
    for candidate in candidates:
        if "similarity" not in candidate.scores:
            layers.setdefault(candidate.layer, []).append(candidate)
    found: dict[str, Mapping[str, float]] = {}
    for pool in layers.values():
        index = HybridIndex(embedder or "none", redact=masker(redact))
        index.add(
            Entry(id=candidate.id, text=candidate.text, time=candidate.time, speaker=candidate.speaker or None)
            for candidate in pool
        )
        found |= {hit.id: told(hit) for hit in index.search(query, len(pool), asked=asked)}
        found |= {candidate.id: {"similarity": 0.0} for candidate in pool if candidate.id not in found}
    return tuple(
        replace(candidate, scores={**candidate.scores, **found.get(candidate.id, {})}) for candidate in candidates
    )


def told(hit: Hit) -> dict[str, float]:
    """A hit's scores as a candidate carries them: ``similarity`` is what it is ranked by, on a scale of 0 to 1."""
    parts = {name: hit.scores[name] for name in _TOLD if hit.scores.get(name)}
    return {**parts, "similarity": similarity(hit.score)}


def similarity(score: float) -> float:
    """A score on a scale of 0 to 1, in the same order."""
    return round(score / (1 + score), 6)


# What was said in sessions, found again: an index for each session, kept while it is in use.
#
# An index holds nothing that its session's history does not say, so any process that is given the history finds the
# same.


class SessionIndexes:
    """Indexes by session, the least recently used forgotten first. Threads may share it.

    Args:
        max_entries: so many entries are kept in all, those of the session in use aside.
    """

    def __init__(self, *, max_entries: int = 50_000) -> None:
        self._indexes: LRUCache[Hashable, _SessionIndex] = LRUCache(
            max_entries, lambda index: min(max(len(index), 1), max_entries)
        )
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._indexes)

    def search(
        self,
        session: Hashable,
        history: Sequence[Entry],
        query: str,
        limit: int,
        *,
        asked: float,
        embedder: Embedder | str,
        redact: Callable[[str], str],
    ) -> list[Hit]:
        """The best entries of a session's history for a query, best first.

        Args:
            session: all that tells it from others: whose it is, and what is masked and embedded.
            history: every entry, in order.

        Raises:
            EmbeddingError: a local embedder failed.
        """
        with self._lock:
            index = self._indexes.get(session)
            if index is None:
                index = self._indexes[session] = _SessionIndex(lambda: HybridIndex(embedder, redact=redact))
        found = index.search(history, query, limit, asked)
        with self._lock:
            self._indexes.pop(session, None)  # or its old size would count as well
            self._indexes[session] = index
        return found


class _SessionIndex:
    """The index of one history, which mostly grows."""

    def __init__(self, make: Callable[[], HybridIndex]) -> None:
        self._make = make
        self._index = make()
        self._history: list[Entry] = []
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._history)

    def search(self, history: Sequence[Entry], query: str, limit: int, asked: float) -> list[Hit]:
        """Adds what is new; where history is not what it was, begins anew."""
        with self._lock:
            have = len(self._history)
            if list(history[:have]) != self._history:
                self._index, self._history, have = self._make(), [], 0
            self._index.add(history[have:])
            self._history = list(history)
            return self._index.search(query, limit, asked=asked)
