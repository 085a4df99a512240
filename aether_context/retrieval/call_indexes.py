"""The indexes of one model call: over its tools, its candidates, and what was said before.

Each is of one call or one session, so that there is nothing that a session, a user or a process could find of another.
"""

from __future__ import annotations

import json
import math
import re
import threading
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import lru_cache

from aether_context.canonical import hash_text, utf8_size
from aether_context.pack import RECALLED, Candidate, Layer, PackInput, Tool, recalled_id
from aether_context.policy import PackPolicy
from aether_context.redaction import masker
from aether_context.retrieval.embedders import Embedder, known_words
from aether_context.retrieval.pool import Entry, Hit, HybridIndex
from aether_context.retrieval.ranking import (
    BYTES_PER_TOKEN,
    FLOOR_OF_TURNS,
    asks_for_first,
    breadth_of,
    clauses_of,
    most_turns,
    query_for,
    question_of,
    similarity,
)
from aether_context.retrieval.terms import USER
from aether_context.text.shorten import sentences

# Tools are few and chosen before a call, so that the static model compares them, whatever compares memories.


def tool_scores(tools: tuple[Tool, ...], query: str, redact: tuple[str, ...] = ()) -> dict[str, float]:
    """Scores each tool against a query, by name: 0 and more, in the order of the tools; all are 0 where no tool has a
    word of a query in another language than the table of words knows, since meanings would be compared by chance.

    Args:
        redact: patterns of what is masked before anything is compared.
    """
    scores = dict.fromkeys((tool.name for tool in tools), 0.0)
    hits = _tool_index(tools, redact).search(query, limit=len(scores)) if query else []
    if not any(hit.scores["bm25"] for hit in hits) and not known_words(query):
        return scores
    return scores | {hit.id: round(hit.score, 6) for hit in hits}


@lru_cache(maxsize=16)
def _tool_index(tools: tuple[Tool, ...], redact: tuple[str, ...]) -> HybridIndex:
    """The index of a set of tools; the latest sets are remembered."""
    texts = {tool.name: described(tool) for tool in tools}
    entries = (Entry(id=name, text=text) for name, text in texts.items())
    return HybridIndex(entries, redact=masker(redact))


def described(tool: Tool) -> str:
    """The text that a tool is found by: name, description, then name and description of each parameter."""
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
    candidates: Sequence[Candidate], query: str, *, asked: float, embedder: Embedder | None, redact: Sequence[str] = ()
) -> tuple[Candidate, ...]:
    """The candidates with scores, each layer's against each other; those that have a similarity keep it.

    Args:
        asked: when the query is asked, seconds since 1970 UTC.
        embedder: compares meanings; None ranks by words alone.
        redact: patterns of what is masked before anything is compared.

    Raises:
        EmbeddingError: the embedder failed.
    """
    layers: dict[Layer, dict[str, Candidate]] = {}
    for number, candidate in enumerate(candidates):
        if "similarity" not in candidate.scores:
            layers.setdefault(candidate.layer, {})[str(number)] = candidate
    result, mask = list(candidates), masker(redact) if redact else None
    for layer in layers.values():
        entries = [
            Entry(id=key, text=candidate.text, time=candidate.time, speaker=candidate.speaker or None)
            for key, candidate in layer.items()
        ]
        index = HybridIndex(entries, embedder or "none", redact=mask)
        # Also of those that say no more of it than any other: whether a memory may enter is not for the others to say.
        for hit in index.search(query, len(entries), asked=asked, every=True):
            key, candidate = int(hit.entry.id), layer[hit.entry.id]
            result[key] = replace(candidate, scores={**candidate.scores, **scores_of(hit)})
    return tuple(result)


def scores_of(hit: Hit) -> dict[str, float]:
    """A hit's scores as a candidate carries them: ``similarity`` is what it is ranked by, on a scale of 0 to 1."""
    names = ("bm25", "cosine", "neighbours", "time", "recency", "weight")
    scores = {name: hit.scores[name] for name in names if hit.scores.get(name, 0) not in (0, 1)}
    return scores | {"similarity": similarity(hit.score)}


# Turns that are not sent whole any more, as memories.

_MORE_HITS = 8
"""So many times as many turns are looked at as could return."""
_EARLIEST = 3
"""So many of the first turns are candidates where the first is asked for."""
_LEAST_WEIGHT = 0.25
_LONGEST_PASSAGE, _LONGEST_HEADING = 600, 60
"""Bytes of a passage, and of a line that heads what follows it."""
_ENDS = (".", "!", "?", ";", ",", "。", "！", "？", "；")
_BY_USER = re.compile(
    r"(?i)\bdid I (?:\w+ )?(?:ask|bring|descri|discuss|mention|say|talk|tell)|(?<!was )\bI (?!am |was (?:asked|told))"
    r"(?:\w+ ){0,2}(?:(?:ask|describ|discuss|mention|talk)(?:ed|ing)|brought up|said|saying|told|telling)\b"
)
_BY_AGENT = re.compile(
    r"(?i)\bdid you\b(?! (?:get|hear|know|mean|notice|read|receive|remember|see)\b)|\byou(?:'d|'ve)? (?:\w+ )?"
    r"(?:advised|described|explained|gave|listed|made|mentioned|proposed|recommended|said|suggested|told|wrote)\b"
)
"""In a question for what the user said, and in one for what an agent did."""
_SHARE_OF_AGENTS = 3
"""What agents say is long: a third as many passages of theirs."""


def passages(text: str, limit: int = _LONGEST_PASSAGE) -> list[str]:
    """A text in pieces of whole lines of at most so many bytes in UTF-8, a heading with the line under it. A line that
    is longer is cut behind sentences, and a sentence at twice as many characters."""
    if utf8_size(text) <= limit:
        return [text.strip()] if text.strip() else []
    pieces = [""]
    for line in text.splitlines(keepends=True):
        for sentence in sentences(line) if utf8_size(line) > limit else [line]:
            for start in range(0, len(sentence), 2 * limit):
                part = sentence[start : start + 2 * limit]
                if utf8_size(pieces[-1]) + utf8_size(part) > limit:
                    body, heading = _headed(pieces.pop(), limit - utf8_size(part))
                    pieces += [body, heading]
                pieces[-1] += part
    return [bit.strip() for bit in pieces if bit.strip()]


def _headed(passage: str, room: int) -> tuple[str, str]:
    """A passage without the heading at its end, and that, where it has room for what follows."""
    *lines, last = passage.splitlines(keepends=True) or [""]
    is_heading = utf8_size(last) <= min(_LONGEST_HEADING, room) and not last.rstrip().endswith(_ENDS)
    return ("".join(lines), last) if lines and is_heading else (passage, "")


def turn_entries(position: int, words: str, *, time: float, speaker: str) -> list[Entry]:
    """A turn as entries of an index, in passages where it is long. Ids are its place in the history, with ``#`` and a
    number for a passage."""
    pieces = passages(words)
    names = [str(position)] if len(pieces) == 1 else [f"{position}#{number}" for number in range(1, len(pieces) + 1)]
    named = zip(names, pieces, strict=True)
    return [Entry(id=name, text=part, time=time, speaker=speaker, thread="") for name, part in named]


class TurnIndex:
    """The index of one conversation's turns by one embedder, which grows with it. Threads may share it: who searches
    holds ``lock``."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._index: HybridIndex | None = None
        self._turns: Sequence[Entry] = ()

    def over(self, turns: Sequence[Entry], embedder: Embedder | None, redact: tuple[str, ...]) -> HybridIndex:
        """The index of turns; as of `recalled`."""
        known = self._turns
        if self._index is None or known != turns[: len(known)]:  # else they begin with those of the last time
            self._index, known = HybridIndex((), embedder or "none", redact=masker(redact)), ()
        self._index.extend(turns[len(known) :])
        self._turns = turns
        return self._index


def recalled(
    turns: Sequence[Entry],
    source: PackInput,
    policy: PackPolicy,
    digest_of: Callable[[int], str],
    *,
    tokens: int,
    embedder: Embedder | None,
    whole: Collection[int] = (),
    index: TurnIndex | None = None,
) -> tuple[Candidate, ...]:
    """The turns that tell most about request and step, as candidates for memory, best first.

    Args:
        turns: all of a session, as of `turn_entries`.
        digest_of: gives the digest of the content at a place.
        tokens: what they may take together.
        embedder: as of `ranked`.
        whole: the places of turns that are sent whole, and need no room here.
        index: the conversation's own; None makes one.

    Raises:
        EmbeddingError: the embedder failed.
    """
    question, most = question_of(source), most_turns(policy.retrieval, source)
    index, is_first = index or TurnIndex(), asks_for_first(question)
    with index.lock:
        limit = len(turns) if is_first else _MORE_HITS * most
        entries, best = index.over(turns, embedder, policy.redact), dict[str, Hit]()
        for clause in dict.fromkeys([query_for(source, policy.redact), *clauses_of(question)]):
            for hit in entries.search(clause, limit, asked=source.identity.last_event_time, every=is_first):
                best[hit.id] = max(hit, best.get(hit.id, hit), key=lambda one: one.score)
    hits = list(best.values())
    result, room = list[Candidate](), tokens * BYTES_PER_TOKEN
    by_user, by_agent = _BY_USER.search(question) is not None, _BY_AGENT.search(question) is not None
    if by_user != by_agent:
        hits = [hit for hit in hits if (hit.entry.speaker == USER) == by_user] or hits
        most = most if by_user else math.ceil(most / _SHARE_OF_AGENTS)
    ranked_hits = _cut_hits(
        whole, _weighted(hits), 0 if is_first else policy.retrieval.floor / breadth_of(source) * FLOOR_OF_TURNS
    )
    if is_first:  # however little they have in common with the question
        places = {entry.id: place for place, entry in enumerate(turns)}
        earliest = sorted(ranked_hits, key=lambda hit: places[hit.id])[:_EARLIEST]
        later_hits = [hit for hit in ranked_hits if hit not in earliest]
        ranked_hits = [*(replace(hit, score=ranked_hits[0].score) for hit in earliest), *later_hits]
    for hit in ranked_hits[:most]:
        if (size := utf8_size(hit.text)) > room:
            continue
        room -= size
        position, passage, number = hit.id.partition("#")
        result.append(
            Candidate(
                id=f"{recalled_id(int(position), digest_of(int(position)))}{passage}{number}",
                layer="memory",
                source=RECALLED,
                text=hit.text,
                speaker=hit.entry.speaker or "",
                digest=hash_text(f"{hit.entry.speaker}: {hit.text}"),
                time=hit.entry.time,
                scores=scores_of(hit),
            )
        )
    return tuple(result)


def _cut_hits(whole: Collection[int], hits: Sequence[Hit], floor: float) -> list[Hit]:
    """The hits in turns that are not sent whole, but for those that answer far worse than the best of all.

    Args:
        whole: the places of those that are.
        hits: the best one first.
        floor: the share of the best similarity under which a turn tells nothing beside it.
    """
    threshold = floor * similarity(hits[0].score) if hits else 0
    return [hit for hit in hits if int(hit.id.partition("#")[0]) not in whole and similarity(hit.score) >= threshold]


def _weighted(hits: Sequence[Hit]) -> list[Hit]:
    """The hits by what they tell, best first.

    What the user said comes before what is as near and was said by somebody who says more: of ten times as many words
    ten times as many are near by chance. What the user said is also what later questions are about.
    """
    counts: Counter[str | None] = Counter()
    for hit in hits:
        counts[hit.entry.speaker] += len(hit.text)
    users = counts[USER] or max(counts.values(), default=0)
    weights = {speaker: max(_LEAST_WEIGHT, min(1.0, users / length)) for speaker, length in counts.items()}
    weighted = [replace(hit, score=hit.score * weights[hit.entry.speaker]) for hit in hits]
    return sorted(weighted, key=lambda hit: (-hit.score, hit.id))
