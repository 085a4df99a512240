"""Which notes, memories and evidence could enter a pack: ranked, diverse, at most k."""

from __future__ import annotations

import heapq
import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from aether_context.pack import Candidate, CandidateKind, PackInput, Reason
from aether_context.policy import RetrievalSettings
from aether_context.text.shorten import sentences

_WORD = re.compile(r"[^\W_]+")
_POOR_MATCH = 0.1
"""The similarity of a memory that hardly has to do with what is asked."""
LEAST_QUOTED = 12
"""Characters; what is shorter stands in other text by chance."""
MMR_LAMBDA = 0.85
"""Weight of relevance against diversity in MMR (maximal marginal relevance): 1 is relevance alone."""
_RANKS: dict[CandidateKind, int] = {"preference": 0, "app_note": 1, "": 2}


class Left(NamedTuple):
    """A candidate that did not enter, and why."""

    candidate: Candidate
    reason: Reason


class Ranking(NamedTuple):
    """Candidates of one layer, best first, and those left out."""

    chosen: tuple[Candidate, ...]
    left: tuple[Left, ...]


def retrieve(
    candidates: Sequence[Candidate],
    *,
    k: int,
    settings: RetrievalSettings,
    tail: str = "",
    sent: Collection[str] = (),
    now: float = 0.0,
) -> Ranking:
    """Orders one layer's candidates by their ``similarity``; ties break on id.

    What the app put into the session's state comes first and passes no floor, and neither does evidence: both are there
    on purpose. A memory that a search found has to answer the request, and not far worse than the best of them.

    Args:
        k: how many are chosen by relevance and diversity, of what the app put there and of what was found each; 0
            chooses none. Of evidence that was recorded on purpose all is chosen.
        tail: text that is sent anyway; what stands in it verbatim is left out, but for evidence with an address.
        sent: ids of candidates that are sent anyway, with all their passages.
        now: seconds since 1970; what expired before it is left out.
    """
    left: list[Left] = []
    fresh: list[Candidate] = []
    expired = {candidate.id for candidate in candidates if candidate.expires is not None and candidate.expires < now}
    # Of those that say the same the latest stays: what is said again holds again.
    stays: dict[str, str] = {}
    for candidate in sorted(candidates, key=lambda candidate: (rank(candidate), -(candidate.time or 0), candidate.id)):
        if candidate.id not in expired:
            stays.setdefault(candidate.digest, candidate.id)
    for candidate in sorted(candidates, key=lambda candidate: (rank(candidate), candidate.id)):
        reason: Reason | None = None
        standing = candidate.kind == "preference"
        listed = candidate.layer == "evidence" and candidate.uri
        if candidate.id.partition("#")[0] in sent:
            reason = "already_in_conversation"
        elif candidate.id in expired:
            reason = "expired"
        elif candidate.id != stays[candidate.digest]:
            reason = "duplicate"
        elif tail and not (standing or listed) and len(candidate.text) >= LEAST_QUOTED and candidate.text in tail:
            reason = "already_in_conversation"
        if reason is None:
            fresh.append(candidate)
        else:
            left.append(Left(candidate=candidate, reason=reason))
    own = [candidate for candidate in fresh if candidate.kind == "app_note"]
    found = [candidate for candidate in fresh if not candidate.kind]
    floor = settings.floor * max([_POOR_MATCH, *(candidate.score for candidate in found)])
    weak = {candidate.id for candidate in found if candidate.layer == "memory" and candidate.score < floor}
    chosen = [candidate for candidate in fresh if candidate.kind == "preference"] if k else []
    # Evidence that somebody recorded is for whoever works next, however much of it there is.
    chosen += diversify(own, k=max(k, sum(candidate.layer == "evidence" for candidate in own)))
    chosen += diversify([candidate for candidate in found if candidate.id not in weak], k=k)
    names = {candidate.id for candidate in chosen}
    left += [
        Left(candidate=candidate, reason="below_floor" if candidate.id in weak else "beyond_k")
        for candidate in fresh
        if candidate.id not in names
    ]
    return Ranking(chosen=tuple(chosen), left=tuple(left))


def rank(candidate: Candidate) -> int:
    """The place of a candidate's kind: wishes that hold always, then what the app put there, then what was found."""
    return _RANKS[candidate.kind]


def answers(candidate: Candidate, settings: RetrievalSettings) -> bool:
    """Whether a candidate has something to do with the request."""
    return candidate.score >= settings.floor * _POOR_MATCH


def similarity(score: float) -> float:
    """A score on a scale of 0 to 1, in the same order."""
    return round(score / (1 + score), 6)


def diversify(candidates: Sequence[Candidate], *, k: int) -> list[Candidate]:
    """At most ``k`` candidates by maximal marginal relevance, best first.

    ``MMR_LAMBDA * similarity - (1 - MMR_LAMBDA) * overlap`` with overlap the highest Jaccard index of words with one
    already chosen (Carbonell and Goldstein, 1998). What covers an acceptance item comes before what covers none. A
    marginal only falls, so what it was bounds what it is, and only the highest bound is compared anew (Minoux, 1978).
    """
    words = [_vocabulary(candidate.text) for candidate in candidates]
    overlap = [0.0] * len(candidates)
    compared = [0] * len(candidates)
    queue = [
        (not candidate.covers, -MMR_LAMBDA * candidate.score, candidate.id, place)
        for place, candidate in enumerate(candidates)
    ]
    heapq.heapify(queue)
    chosen: list[int] = []
    ranked: list[Candidate] = []
    while queue and len(chosen) < k:
        covers, marginal, name, place = queue[0]
        if compared[place] < len(chosen):
            for earlier in chosen[compared[place] :]:
                if shared := len(words[place] & words[earlier]):
                    union = len(words[place]) + len(words[earlier]) - shared
                    overlap[place] = max(overlap[place], shared / union)
            compared[place] = len(chosen)
            marginal = (1 - MMR_LAMBDA) * overlap[place] - MMR_LAMBDA * candidates[place].score
            heapq.heapreplace(queue, (covers, marginal, name, place))
            continue
        heapq.heappop(queue)
        chosen.append(place)
        candidate = candidates[place]
        ranked.append(replace(candidate, scores={**candidate.scores, "mmr": round(-marginal, 6)}))
    return ranked


@lru_cache(maxsize=1_000)
def _vocabulary(text: str) -> frozenset[str]:
    """The words of a text in lower case; the parts of identifiers are words of their own."""
    return frozenset(word.casefold() for word in _WORD.findall(text))


def query_for(source: PackInput) -> str:
    """What is looked for: the request or what another agent said in its place, the step and its checklist."""
    request, step = source.request, source.step
    user_message = request.contents[request.request_index].words if request.request_index is not None else ""
    pieces = (user_message, step.text, step.goal, *(item.text for item in step.acceptance))
    return searched("\n".join(piece for piece in pieces if piece))


_MANY = re.compile(
    r"\b(?:all|altogether|each|every|everything|list|order|overall|sequence|summar\w+|throughout|timeline|total)\b",
    re.IGNORECASE,
)
_TIMES_MANY, _FLOOR_OF_TURNS = 3, 0.7
"""The floor of this session's turns is a share of that of memories: what a cut took was of one conversation."""


def widened(settings: RetrievalSettings, query: str, *, turns: bool = False) -> RetrievalSettings:
    """Settings for a query: three times as many memories, and a third of the floor, where it asks for many things; else
    half as many again where ``turns`` of a session are among them, since nobody is found by a name there."""
    many = _TIMES_MANY if _MANY.search(query) else 1
    most = settings.memory_k * (3 if turns and many == 1 else 2 * many) // 2
    floor = settings.floor / many * (_FLOOR_OF_TURNS if turns else 1)
    return settings.model_copy(update={"memory_k": most, "floor": floor})


LEAST_TOKENS = 256
"""Room for recalled turns under which none are: the frame of a payload and the text that explains it take 150."""
_MOST_SHARE = 0.3


def room_for_turns(spoken: int, whole: int, most: float) -> int:
    """Tokens for recalled turns, three tenths of so many at most; 0 where they would be too few for any.

    Args:
        spoken: characters of the turns that are words alone.
        whole: characters of the whole history.
    """
    tokens = int(min(_MOST_SHARE, (spoken / max(1, whole)) ** 2) * most)
    return tokens if tokens >= LEAST_TOKENS else 0


# What people say that tells nothing, and what surely tells something; both in English.

_LONGEST_SMALL_TALK = 60
_SMALL_TALK = frozenset(
    _WORD.findall(
        """a afternoon ahead all alright and are awesome bye cheers continue cool danke day done evening everything fine
        for go good goodbye got gracias great haha hello help hey hi hola how i is it k later lol merci morning much
        nice night no nope noted of ok okay on perfect please proceed right see so sounds sure ta thank thanks that thx
        to ty understood very welcome well wonderful yeah yep yes you your"""
    )
)


def searched(text: str) -> str:
    """What memories are searched for; nothing where a text is thanks, a greeting or a word of consent."""
    words = _WORD.findall(text.casefold()) if len(text) <= _LONGEST_SMALL_TALK else ["?"]
    return "" if _SMALL_TALK.issuperset(words) else text


_GREETING = re.compile(
    r"""\b(?:
    (?:aw+|bye|congrat\w*|dear|ha(?:ha)+|hello|hey|hi|oh|oops|thanks|thank\ you|whoa|woo\w*|wow|yay|yeah|yep)\b
      (?:,?\ [A-Z]\w+(?=,?\ [a-z]|[,.!?]|$))?
    | how(?:'s\ (?:it|everything|life)(?:\ going)?|\ (?:have\ you|are\ you|you)\ (?:been|doing))
      (?:\ lately|\ since\ we\ (?:last\ )?\w+)?
    | what(?:'s|\ is)\ (?:up|new|going\ on)(?:\ with\ you)?
    | (?:good|great|nice|lovely)\ to\ (?:see|meet|hear\ from)\ you(?:,\ [A-Z]\w+)?
    | (?:take\ care|stay\ safe|have\ a\ (?:good|great|nice)|talk\ to\ you|see\ ya|catch\ you|good\ luck)\b[^.!?]*
    | keep\ (?:it|going)\ up | (?:chat|see\ you|speak|talk)\ soon | no\ (?:problem|worries) | (?:me|you)\ too
    | same\ here | my\ pleasure | too | so\ much)
    """,
    re.VERBOSE | re.IGNORECASE,
)
_PRAISE = re.compile(
    r"""\b(?:adorable|amazing|appreciate\w*|awesome|beautiful|blessed|cool|congrat\w*|cute|excit\w+|fantastic|fun|glad|
    great|happy|incredible|inspir\w+|lovely|lucky|nice|priceless|proud|sorry|stoked|sweet|thankful|wonderful|wow)\b""",
    re.VERBOSE | re.IGNORECASE,
)
_TELLING = re.compile(
    r"""\d | (?<=[\w)]\ )(?!I\b)[A-ZÀ-ÞΑ-ΩА-Я]\w | \b(?i:
    (?:mon|tues|wednes|thurs|fri|satur|sun)day | january | february | april | june | july | august | september
    | october | november | december | yesterday | tomorrow | today | tonight | ago
    | (?:last|next|this)\ (?:week\w*|month|year|spring|summer|fall|autumn|winter)
    | agreed | decid\w+ | decision | plan(?:s|ned|ning)? | must(?!\ have) | should | prefer\w* | please | instead
    | going\ to | make\ sure | (?:i|we)(?:'ll|\ will) | (?:i|we)\ (?:need|want)\w* | (?:would|i'd)\ like
    | (?:can|could)\ you)\b | (?:^|[.!?]\ )(?i:always|don't|never|remember)\b
    """,
    re.VERBOSE,
)


@lru_cache(maxsize=4_096)
def is_telling(text: str) -> bool:
    """Whether a text holds a number, a name, a date, or words for a wish or a decision."""
    return _TELLING.search(_GREETING.sub(" ", text)) is not None


@lru_cache(maxsize=4_096)
def without_small_talk(text: str) -> str:
    """A text from its first sentence on that is no small talk; empty where all of it is."""
    start = 0
    for sentence in sentences(text):
        rest = _GREETING.sub(" ", sentence)
        is_praise = len(rest) <= _LONGEST_SMALL_TALK and _PRAISE.search(rest) and not _TELLING.search(rest)
        if searched(rest) and not is_praise:
            return text[start:].strip()
        start += len(sentence)
    return ""
