"""The indexes of one model call: over its tools, its candidates, and what was said before."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from cachetools import LRUCache

from aether_context.canonical import hash_text
from aether_context.pack import RECALLED, Candidate, Content, Layer, Tool, recalled_id
from aether_context.redaction import masker
from aether_context.retrieval.embedders import Embedder, StaticEmbedder
from aether_context.retrieval.index import HybridIndex
from aether_context.retrieval.passages import passages
from aether_context.retrieval.pool import Entry, Hit
from aether_context.retrieval.ranking import similarity

# Tools are few and chosen before a call, so that the static model compares them, whatever compares memories.


def tool_scores(tools: tuple[Tool, ...], query: str, redact: tuple[str, ...] = ()) -> dict[str, float]:
    """How well each tool answers a query, by name: 0 and more, in the order of the tools.

    Args:
        redact: patterns of what is masked before anything is compared.
    """
    scores = dict.fromkeys((tool.name for tool in tools), 0.0)
    hits = _tool_index(tools, redact).search(query, limit=len(scores)) if query else []
    return scores | {hit.id: round(hit.score, 6) for hit in hits}


def tool_encoder() -> str:
    """Identity of the embedder that `tool_scores` compares meanings by."""
    return StaticEmbedder().name


@lru_cache(maxsize=16)
def _tool_index(tools: tuple[Tool, ...], redact: tuple[str, ...]) -> HybridIndex:
    """The index of a set of tools; the latest sets are remembered."""
    index = HybridIndex(StaticEmbedder(), redact=masker(redact), passages=False)
    texts = {tool.name: described(tool) for tool in tools}
    index.add_texts(list(texts), list(texts.values()))
    return index


def described(tool: Tool) -> str:
    """What a tool is found by: name, description, then name and description of each parameter."""
    wire = json.loads(tool.wire)
    texts = [tool.name, str(wire.get("description") or "")]
    for key in ("parameters", "parameters_json_schema"):
        schema = wire.get(key)
        properties = schema.get("properties") if isinstance(schema, dict) else None
        for name, parameter in properties.items() if isinstance(properties, dict) else ():
            description = parameter.get("description") if isinstance(parameter, dict) else None
            texts.append(f"{name}: {description}" if isinstance(description, str) else str(name))
    return "\n".join(text for text in texts if text)


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
    scores: dict[str, Mapping[str, float]] = {}
    for pool in layers.values():
        index = HybridIndex(embedder or "none", redact=masker(redact), passages=False)
        index.add(
            Entry(id=candidate.id, text=candidate.text, time=candidate.time, speaker=candidate.speaker or None)
            for candidate in pool
        )
        scores |= {candidate.id: {"similarity": 0.0} for candidate in pool}
        scores |= {hit.id: scores_of(hit) for hit in index.search(query, len(pool), asked=asked)}
    return tuple(
        replace(candidate, scores={**candidate.scores, **scores.get(candidate.id, {})}) for candidate in candidates
    )


def scores_of(hit: Hit) -> dict[str, float]:
    """A hit's scores as a candidate carries them: ``similarity`` is what it is ranked by, on a scale of 0 to 1."""
    names = ("bm25", "cosine", "neighbours", "time", "recency")
    return {name: hit.scores[name] for name in names if hit.scores.get(name)} | {"similarity": similarity(hit.score)}


class SessionIndexes:
    """Indexes of what was said, by session, the least recently used forgotten first. Threads may share it.

    An index holds nothing that its session's history does not say, so any process that is given the history finds the
    same.

    Args:
        max_entries: so many entries are kept in all, those of the session in use aside.
    """

    def __init__(self, *, max_entries: int = 50_000) -> None:
        self._sessions: LRUCache[Hashable, tuple[HybridIndex, threading.Lock]] = LRUCache(
            max_entries, lambda known: min(max(len(known[0]), 1), max_entries)
        )
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._sessions)

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
            known = self._sessions.get(session)
            if known is None:
                known = self._sessions[session] = HybridIndex(embedder, redact=redact), threading.Lock()
        index, lock = known
        with lock:
            if list(history[: len(index)]) != index.entries:
                index.remove([entry.id for entry in index.entries])
            index.add(history[len(index) :])
            found = index.search(query, limit, asked=asked)
        with self._lock:
            self._sessions.pop(session, None)  # or its old size would count as well
            self._sessions[session] = index, lock
        return found


# Turns that are not sent whole any more, as memories.

MORE_HITS = 4
"""So many times as many turns are looked at as could return."""
_TELLING = 0.2
"""The share of the best turn's score under which no turn returns."""
_LEAST_WEIGHT = 0.25
_USER = "user"
_TOKEN_CHARACTERS = 4


def turn_entries(place: int, words: str, *, time: float, speaker: str) -> list[Entry]:
    """A turn as entries of an index, in passages where it is long. Ids are its place in the history, with ``#`` and a
    number for a passage."""
    pieces = passages(words)
    names = [str(place)] if len(pieces) == 1 else [f"{place}#{number}" for number in range(1, len(pieces) + 1)]
    return [
        Entry(id=name, text=piece, time=time, speaker=speaker, thread="")
        for name, piece in zip(names, pieces, strict=True)
    ]


def recalled(
    hits: Sequence[Hit], content_at: Callable[[int], Content], *, most: int, tokens: int
) -> tuple[Candidate, ...]:
    """The turns that tell most, as candidates for memory, best first.

    Args:
        hits: of `turn_entries`.
        content_at: the content at a place.
        most: so many at most.
        tokens: what they may take together.
    """
    turns: list[Candidate] = []
    characters = tokens * _TOKEN_CHARACTERS
    for hit in _telling(hits)[:most]:
        if len(hit.text) > characters:
            continue
        characters -= len(hit.text)
        place, passage, number = hit.id.partition("#")
        turns.append(
            Candidate(
                id=f"{recalled_id(int(place), content_at(int(place)))}{passage}{number}",
                layer="memory",
                source=RECALLED,
                text=hit.text,
                speaker=hit.entry.speaker or "",
                digest=hash_text(hit.entry.searched),
                time=hit.entry.time,
                scores=scores_of(hit),
            )
        )
    return tuple(turns)


def _telling(hits: Sequence[Hit]) -> list[Hit]:
    """The hits that tell something beside the best of them, best first.

    What the user said comes before what is as near and was said by somebody who says more: of ten times as many words
    ten times as many are near by chance. What the user said is also what later questions are about.
    """
    said: Counter[str | None] = Counter()
    for hit in hits:
        said[hit.entry.speaker] += len(hit.text)
    users = said[_USER] or max(said.values(), default=0)
    weighted = [
        replace(hit, score=hit.score * max(_LEAST_WEIGHT, min(1.0, users / said[hit.entry.speaker]))) for hit in hits
    ]
    weighted.sort(key=lambda hit: (-hit.score, hit.id))
    return [hit for hit in weighted if hit.score >= _TELLING * weighted[0].score]
