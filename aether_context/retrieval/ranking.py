"""Which notes, memories and evidence could enter a pack: ranked, diverse, above a floor, at most k."""

from __future__ import annotations

import heapq
import math
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import attrgetter

from aether_context.pack import Candidate, Ingredients, Reason
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
    more: int = 0,
    tail: str = "",
    standing: Collection[str] = (),
    now: float = 0.0,
) -> Found:
    """Ranks one layer's candidates for a query.

    Candidates that carry a recorded ``similarity`` keep it; the others are scored by BM25. Memories under the floor
    stay out; evidence has none, since its records were made on purpose. Ties break on id.

    Args:
        k: how many are chosen by relevance and diversity.
        more: how many are chosen behind these by relevance alone.
        tail: text that is sent anyway; what stands in it verbatim is left out.
        standing: ids of candidates that are sent anyway, with all their passages.
        now: seconds since 1970; what expired before it is left out.
    """
    ordered = sorted(candidates, key=attrgetter("id"))
    left: list[Left] = []
    fresh: list[Candidate] = []
    seen: set[str] = set()
    for candidate in ordered:
        reason = _outright(candidate, seen, tail, now)
        if standing and candidate.id.partition("#")[0] in standing:
            reason = "already_in_conversation"
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
    rest = sorted((one for one in relevant if one.id not in names), key=lambda one: (-one.score, one.id))
    ranked += rest[:more]
    names |= {candidate.id for candidate in ranked}
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
    scores = bm25(tuple(mask(one.said) for one in missing), mask(query))
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
    chosen (Carbonell and Goldstein, 1998). What covers an acceptance item comes before what covers none. A marginal
    only falls, so what it was bounds what it is, and only the highest bound is compared anew (Minoux, 1978).
    """
    words = [_vocabulary(candidate.text) for candidate in candidates]
    scores = [candidate.score for candidate in candidates]
    overlap = [0.0] * len(candidates)
    compared = [0] * len(candidates)
    held = [(not one.covers, -weight * scores[place], one.id, place) for place, one in enumerate(candidates)]
    heapq.heapify(held)
    chosen: list[int] = []
    ranked: list[Candidate] = []
    while held and len(chosen) < k:
        covers, marginal, name, place = held[0]
        if weight < 1 and compared[place] < len(chosen):
            since = [words[one] for one in chosen[compared[place] :]]
            overlap[place] = max(overlap[place], _overlap(words[place], since))
            compared[place] = len(chosen)
            marginal = (1 - weight) * overlap[place] - weight * scores[place]
            heapq.heapreplace(held, (covers, marginal, name, place))
            continue
        heapq.heappop(held)
        chosen.append(place)
        one = candidates[place]
        ranked.append(replace(one, scores={**one.scores, "mmr": round(-marginal, 6)}))
    return ranked


def _overlap(words: frozenset[str], others: Sequence[frozenset[str]]) -> float:
    """The highest Jaccard index of a set of words with others; 0 between empty ones."""
    size = len(words)
    highest = 0.0
    for other in others:
        shared = len(words & other)
        if shared:
            highest = max(highest, shared / (size + len(other) - shared))
    return highest


@lru_cache(maxsize=1_000)
def _vocabulary(text: str) -> frozenset[str]:
    return frozenset(tokenize(text))


@lru_cache(maxsize=1_000)
def tokenize(text: str) -> tuple[str, ...]:
    """Lower-case words; the parts of identifiers are words of their own."""
    return tuple(word.casefold() for word in _WORD.findall(text))


def query_for(source: Ingredients) -> str:
    """What is looked for: the request, the step and its checklist."""
    request, step = source.request, source.step
    wish = request.contents[request.human].text if request.human is not None else ""
    pieces = (wish, step.text, step.goal, *(item.text for item in step.acceptance))
    return "\n".join(piece for piece in pieces if piece)
