"""Which notes, memories and evidence could enter a pack: ranked, diverse, above a floor, at most k."""

from __future__ import annotations

import heapq
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from aether_context.pack import Candidate, Reason
from aether_context.policy import RetrievalSettings
from aether_context.redaction import masker

_WORD = re.compile(r"[^\W_]+", re.UNICODE)
_K1, _B = 1.5, 0.75
_ENOUGH_WORDS = 8
_STOP_WORDS = frozenset(
    re.findall(
        r"\w+",
        """a about all an and any are as at be but by can do does for from had has have he her his how i if in into is
        it its me my no not of on or our she so than that the their them then there these they this to was we were what
        when where which who will with would you your""",
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """A candidate that did not enter, and why."""

    candidate: Candidate
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Candidates of one layer, best first, and those left out."""

    chosen: tuple[Candidate, ...]
    left: tuple[Left, ...]


def retrieve(
    candidates: Sequence[Candidate],
    query: str,
    *,
    k: int,
    settings: RetrievalSettings,
    tail: str = "",
    now: float = 0.0,
) -> Found:
    """Ranks one layer's candidates for a query.

    Candidates that carry a recorded ``similarity`` keep it; the others are scored by BM25. Memories under the floor
    stay out; evidence has none, since its records were made on purpose. Ties break on id.

    Args:
        tail: text that is sent anyway; what stands in it verbatim is left out.
        now: seconds since 1970; what expired before it is left out.
    """
    ordered = sorted(candidates, key=lambda one: one.id)
    left: list[Left] = []
    fresh: list[Candidate] = []
    seen: set[str] = set()
    for candidate in ordered:
        reason = _outright(candidate, seen, tail, now)
        seen.add(candidate.digest)
        if reason is None:
            fresh.append(candidate)
        else:
            left.append(Left(candidate=candidate, reason=reason))
    relevant = []
    for candidate in score(fresh, query, masker(settings.redact_before_retrieval)):
        if candidate.layer == "memory" and candidate.score < settings.floor:
            left.append(Left(candidate=candidate, reason="below_floor"))
        else:
            relevant.append(candidate)
    ranked = diversify(relevant, weight=settings.mmr_lambda, k=k)
    names = {candidate.id for candidate in ranked}
    left += [Left(candidate=one, reason="beyond_k") for one in relevant if one.id not in names]
    return Found(chosen=tuple(ranked), left=tuple(left))


def _outright(candidate: Candidate, seen: set[str], tail: str, now: float) -> Reason | None:
    if candidate.expires is not None and candidate.expires < now:
        return "expired"
    if candidate.digest in seen:
        return "duplicate"
    if tail and len(candidate.text) >= 12 and candidate.text in tail:
        return "already_in_conversation"
    return None


def score(candidates: Sequence[Candidate], query: str, mask: Callable[[str], str] = str) -> list[Candidate]:
    """The candidates with ``bm25`` and ``similarity`` among their scores, in the order given.

    Args:
        mask: what texts and query are put through before they are compared.
    """
    missing = [candidate for candidate in candidates if "similarity" not in candidate.scores]
    if not missing:
        return list(candidates)
    scores = bm25(tuple(mask(one.text) for one in missing), mask(query))
    found = dict(zip((one.id for one in missing), scores, strict=True))
    return [_scored(one, found[one.id]) if one.id in found else one for one in candidates]


def _scored(candidate: Candidate, found: tuple[float, float]) -> Candidate:
    raw, similarity = found
    return replace(candidate, scores={**candidate.scores, "bm25": round(raw, 6), "similarity": round(similarity, 6)})


@lru_cache(maxsize=32)
def bm25(texts: tuple[str, ...], query: str) -> tuple[tuple[float, float], ...]:
    """BM25 of each text, raw and as a share (at most 1) of what a text reaches that says the query's rarest words.

    The latest pools are remembered: a pack that is built again, after a cut or with a summary, ranks the same.

    Eight words are enough for a full share, so that a long query asks no more of a text than a short one. The weights
    come from rank-bm25's ``BM25Plus`` idf, ``log((N + 1) / n)``, which stays positive in small pools.
    """
    words = set(tokenize(query))
    words = words - _STOP_WORDS or words
    documents = [tokenize(text) for text in texts]
    if not words or not any(documents):
        return ((0.0, 0.0),) * len(texts)
    from rank_bm25 import BM25Plus

    index = BM25Plus([document or [""] for document in documents], k1=_K1, b=_B, delta=0)
    known = sorted(word for word in words if word in index.idf)
    unseen = math.log(len(documents) + 1)
    weights = sorted((index.idf.get(word, unseen) for word in words), reverse=True)
    limit = (_K1 + 1) * sum(weights[:_ENOUGH_WORDS])
    raw = [float(value) for value in index.get_scores(known)] if known else [0.0] * len(documents)
    return tuple((value, min(1.0, value / limit) if limit else 0.0) for value in raw)


def diversify(candidates: Sequence[Candidate], *, weight: float, k: int) -> list[Candidate]:
    """At most ``k`` candidates by maximal marginal relevance, best first.

    ``weight * similarity - (1 - weight) * overlap`` with overlap the highest Jaccard index of words with one already
    chosen (Carbonell and Goldstein, 1998). What covers an acceptance item comes before what covers none.
    """
    held = [_Ranked(one, weight) for one in candidates]
    heapq.heapify(held)
    chosen: list[Candidate] = []
    while held and len(chosen) < k:
        best = held[0]
        if best.compared < len(chosen) and weight < 1:
            best.compare(chosen)
            heapq.heapreplace(held, best)
            continue
        heapq.heappop(held)
        chosen.append(replace(best.candidate, scores={**best.candidate.scores, "mmr": round(best.marginal, 6)}))
    return chosen


class _Ranked:
    """A candidate with its marginal relevance among those it was compared with, which bounds what it is (Minoux, 1978)."""

    def __init__(self, candidate: Candidate, weight: float) -> None:
        self.candidate = candidate
        self.compared = 0
        self._weight = weight
        self._overlap = 0.0

    @property
    def marginal(self) -> float:
        return self._weight * self.candidate.score - (1 - self._weight) * self._overlap

    def compare(self, chosen: Sequence[Candidate]) -> None:
        """Takes the overlap with those chosen since the last time into account."""
        words = _vocabulary(self.candidate.text)
        since = chosen[self.compared :]
        self._overlap = max(self._overlap, *(_jaccard(words, _vocabulary(one.text)) for one in since))
        self.compared = len(chosen)

    def __lt__(self, other: _Ranked) -> bool:
        return self._order < other._order

    @property
    def _order(self) -> tuple[bool, float, str]:
        return (not self.candidate.covers, -self.marginal, self.candidate.id)


def _jaccard(a: frozenset[str], b: frozenset[str]) -> float:
    shared = len(a & b)
    return shared / (len(a) + len(b) - shared) if a or b else 0.0


@lru_cache(maxsize=1_000)
def _vocabulary(text: str) -> frozenset[str]:
    return frozenset(tokenize(text))


@lru_cache(maxsize=1_000)
def tokenize(text: str) -> tuple[str, ...]:
    """Lower-case words; the parts of identifiers are words of their own."""
    return tuple(word.casefold() for word in _WORD.findall(text))


def query_of(pieces: Iterable[str]) -> str:
    """One query from the request, the step and its checklist."""
    return "\n".join(piece for piece in pieces if piece)
