"""The choice of notes, memories and evidence that could enter a pack: ranked, diverse, at most k."""

from __future__ import annotations

import heapq
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import lru_cache
from heapq import nsmallest
from typing import NamedTuple

from aether_context.pack import RECALLED, Candidate, CandidateKind, PackInput, Reason
from aether_context.policy import PackPolicy, RetrievalSettings
from aether_context.redaction import masker
from aether_context.text.patterns import pattern
from aether_context.text.shorten import sentences

_WORD = pattern(r"[^\W_]+")
_POOR_MATCH, _GOOD_MATCH = 0.1, 0.4
"""The similarity of a memory that hardly has to do with what is asked, and about what the best match reaches, in
meaning as in all that a ranking adds up."""
_LASTING = pattern(
    r"(?i)\b(?:always|never|allerg\w*|prefer\w*|immer|niemals|toujours|jamais|siempre|nunca|alérgic\w*)\b|总是|过敏|必ず"
)
"""A word of what holds whatever is asked. A memory with one passes the floor, though not the other memories."""
_SIGNED = pattern(r"(?s)(?:([^\W\d]\w{0,60}): (?=\S))?(.*)")
LEAST_QUOTED = 12
"""Characters; what is shorter stands in other text by chance."""
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
    turns_k: int = 0,
    is_short: bool = False,
    tail: str = "",
    sent: Collection[str] = (),
    now: float = 0.0,
) -> Ranking:
    """Orders one layer's candidates by their ``similarity``; ties break on id.

    What the app put into the session's state comes first and passes no floor, and neither does evidence: both are there
    on purpose. A memory that a search found has to answer the request by itself, however well others do: a term that
    one memory shares with the request by chance says nothing of the others. A turn of this session has to answer not
    far worse than the best turn.

    Args:
        k: how many are chosen by relevance and diversity, of what the app put there and of what was found each; 0
            chooses none. Of evidence that was recorded on purpose all is chosen.
        turns_k: the same of this session's turns.
        is_short: whether the memories that were found are so few and short that all of them stand.
        tail: text that is sent anyway; what stands in it verbatim is left out, but for evidence with an address.
        sent: ids of candidates that are sent anyway, with all their passages.
        now: seconds since 1970; what expired before it is left out.
    """
    rejected: list[Left] = []
    fresh: list[Candidate] = []
    expired = {candidate.id for candidate in candidates if candidate.expires is not None and candidate.expires < now}
    # Of those that say the same the latest stays: what is said again holds again.
    live = [candidate for candidate in candidates if candidate.id not in expired]
    repeated = _repeated(sorted(live, key=lambda candidate: (rank(candidate), -(candidate.time or 0), candidate.id)))
    for candidate in sorted(candidates, key=lambda candidate: (rank(candidate), candidate.id)):
        reason: Reason | None = None
        fixed = candidate.kind == "preference"
        listed = candidate.layer == "evidence" and candidate.uri
        if candidate.id.partition("#")[0] in sent:
            reason = "already_in_conversation"
        elif candidate.id in expired:
            reason = "expired"
        elif candidate.id in repeated:
            reason = "duplicate"
        elif tail and not (fixed or listed) and len(candidate.text) >= LEAST_QUOTED and candidate.text in tail:
            reason = "already_in_conversation"
        if reason is None:
            fresh.append(candidate)
        else:
            rejected.append(Left(candidate=candidate, reason=reason))
    notes = [candidate for candidate in fresh if candidate.kind == "app_note"]
    turns = [candidate for candidate in fresh if candidate.source == RECALLED]
    hits = [candidate for candidate in fresh if not candidate.kind and candidate.source != RECALLED]
    best_turn = max([_POOR_MATCH, *(candidate.score for candidate in turns)])
    weak = {turn.id for turn in turns if turn.score < settings.floor * FLOOR_OF_TURNS * best_turn}
    # Without meanings to compare, words alone tell whether a memory has anything to do with the request.
    match = _GOOD_MATCH if any(memory.scores.get("cosine") for memory in hits) else _POOR_MATCH
    for memory in hits if not is_short else ():
        similarity = max(memory.score, memory.scores.get("cosine", 0.0))
        if memory.layer == "memory" and similarity < settings.floor * match and not _LASTING.search(memory.text):
            weak.add(memory.id)
    picks = [candidate for candidate in fresh if candidate.kind == "preference"] if k else []
    # Evidence that somebody recorded is for whoever works next, however much of it there is.
    recorded = sum(candidate.layer == "evidence" for candidate in notes)
    for group, limit in ((notes, max(k, recorded)), (hits, k), (turns, turns_k)):
        passing = [candidate for candidate in group if candidate.id not in weak]
        picks += diversify(passing, k=limit, diversity=settings.diversity)
    names = {candidate.id for candidate in picks}
    rejected += [
        Left(candidate=candidate, reason="below_floor" if candidate.id in weak else "beyond_k")
        for candidate in fresh
        if candidate.id not in names
    ]
    return Ranking(chosen=tuple(picks), left=tuple(rejected))


def _repeated(candidates: Sequence[Candidate]) -> frozenset[str]:
    """The ids of those that say what one before them says: memories by their words, whoever keeps them, evidence by
    address and summary. What two speakers said in the same words stays twice."""
    authors: dict[str, str] = {}
    repeated = set[str]()
    for candidate in candidates:
        # A memory of ADK's own block has its author in its text.
        is_unsigned = candidate.source == "memory" and not candidate.speaker
        author, text = _SIGNED.findall(candidate.text)[0] if is_unsigned else (candidate.speaker, candidate.text)
        text = " ".join(unicodedata.normalize("NFKC", text).casefold().split()).strip("\"'“”„‘’«»")
        names = [text.rstrip(".!;, ") or text] if candidate.layer == "memory" else [candidate.digest]
        names = [f"{author}: {names[0]}", *names] if author else names
        earlier = next((authors[name] for name in names if name in authors), None)
        if earlier is not None and (not author or earlier in ("", author)):
            repeated.add(candidate.id)
        authors.update((name, author) for name in names if name not in authors)
    return frozenset(repeated)


def rank(candidate: Candidate) -> int:
    """The place of a candidate's kind: wishes that hold always, then what the app put there, then what was found."""
    return _RANKS[candidate.kind]


def answers(candidate: Candidate, settings: RetrievalSettings) -> bool:
    """Tells whether a candidate has something to do with the request."""
    return candidate.score >= settings.floor * _POOR_MATCH


def similarity(score: float) -> float:
    """A score on a scale of 0 to 1, in the same order."""
    return round(score / (1 + score), 6)


def diversify(candidates: Sequence[Candidate], *, k: int, diversity: float) -> list[Candidate]:
    """At most ``k`` candidates by maximal marginal relevance, best first.

    ``(1 - diversity) * similarity - diversity * overlap`` with overlap the highest Jaccard index of words with one
    already chosen (Carbonell and Goldstein, 1998, whose lambda is ``1 - diversity``). What covers an acceptance item
    comes before what covers none. A marginal only falls, so what it was bounds what it is, and only the highest bound
    is compared anew (Minoux, 1978).
    """
    words = [_vocabulary(candidate.text) for candidate in candidates]
    overlap = [0.0] * len(candidates)
    compared = [0] * len(candidates)
    queue = [
        (not candidate.covers, (diversity - 1) * candidate.score, candidate.id, index)
        for index, candidate in enumerate(candidates)
    ]
    heapq.heapify(queue)
    picks: list[int] = []
    ranked: list[Candidate] = []
    while queue and len(picks) < k:
        covers, marginal, name, index = queue[0]
        if compared[index] < len(picks):
            for earlier in picks[compared[index] :]:
                if shared := len(words[index] & words[earlier]):
                    union = len(words[index]) + len(words[earlier]) - shared
                    overlap[index] = max(overlap[index], shared / union)
            compared[index] = len(picks)
            marginal = diversity * overlap[index] + (diversity - 1) * candidates[index].score
            heapq.heapreplace(queue, (covers, marginal, name, index))
            continue
        heapq.heappop(queue)
        picks.append(index)
        candidate = candidates[index]
        ranked.append(replace(candidate, scores={**candidate.scores, "mmr": round(-marginal, 6)}))
    return ranked


@lru_cache(maxsize=200)
def _vocabulary(text: str) -> frozenset[str]:
    """The words of a text in lower case; the parts of identifiers are words of their own."""
    return frozenset(word.casefold() for word in _WORD.findall(text))


def query_for(source: PackInput, redact: Sequence[str] = ()) -> str:
    """The query of a pack: the request or what another agent said in its place, the step and its checklist, the telling
    words of long ones.

    Args:
        redact: patterns of what is masked in long texts; a part of a secret may not be known for one.
    """
    request, step = source.request, source.step
    user_message = request.contents[request.request_index].words if request.request_index is not None else ""
    pieces = (user_message, step.text, step.goal, *(item.text for item in step.acceptance))
    return searched("\n".join(telling_words(part, tuple(redact)) for part in pieces if part))


_LONGEST_QUERY, _EDGE = 8_000, 1_000
"""Characters of the longest text that is searched by as it is, as many as the packaged model reads; of a longer one
those of its beginning and of its end."""
_ASKS = ("? ", "?\n", "？", "؟", "lease ", "itte ", "por favor", "s'il ", "пожалуйста", "ください", "请")
"""A mark of a sentence that asks or orders, "please" among them. To find these words is many times as fast as a regular
expression."""
_MOST_ASKED, _ASKED_CHARACTERS, _REACH = 12, 4_000, 200
"""So many places of each mark are looked at from either end, and so many sentences taken; characters of all of them,
and of one before its mark and behind it."""
_MOST_RARE, _LONGEST_RARE = 200, 60
_COUNTED, _COUNTED_AT_A_TIME = 500_000, 20_000
"""Characters from either end whose words are counted, and words of them at a time, so that other threads have their
turn in between."""


@lru_cache(maxsize=8)
def telling_words(text: str, redact: tuple[str, ...] = ()) -> str:
    """A text to search by: of a long one what `asking_words` takes, and its rarest words, names and numbers before
    others.

    Args:
        redact: as of `query_for`.
    """
    if len(text) <= _LONGEST_QUERY:
        return text
    masked = masker(redact)(text)
    uncounted = masked[:_COUNTED] + masked[_COUNTED:][-_COUNTED:]
    counts = Counter[str]()
    while uncounted:
        *words, uncounted = [*uncounted.split(None, _COUNTED_AT_A_TIME), ""][: _COUNTED_AT_A_TIME + 1]
        counts.update(words)
    words = [word for word in counts if 4 <= len(word) <= _LONGEST_RARE]
    highest = sorted(counts[word] for word in words)[:_MOST_RARE][-1:]
    rare = nsmallest(
        _MOST_RARE,
        (word for word in words if [counts[word]] <= highest),
        key=lambda word: (counts[word], word.strip("\"'.,;:!?()").isalpha() and word[1:].islower(), -len(word), word),
    )
    return f"{asking_words(masked)}\n{' '.join(rare)}"[:_LONGEST_QUERY]


@lru_cache(maxsize=8)
def asking_words(text: str) -> str:
    """A text that a question is read off: of a long one its beginning, its end, and sentences between that ask or
    order, the first and the last of them."""
    if len(text) <= _LONGEST_QUERY:
        return text
    places = set[int]()
    for mark in _ASKS:
        first, last = _EDGE - 1, len(text) - _EDGE
        for _ in range(_MOST_ASKED):
            first, last = text.find(mark, first + 1), text.rfind(mark, 0, last)
            places |= {first, last}
            if first < 0 or last < 0:
                break
    inside = sorted(at for at in places if _EDGE <= at < len(text) - _EDGE)
    asking = (
        "".join((*sentences(text[at - _REACH : at])[-1:], *sentences(text[at : at + _REACH])[:1])).strip()
        for at in dict.fromkeys((*inside[:_MOST_ASKED], *inside[-_MOST_ASKED:]))
    )
    return "\n".join((text[:_EDGE], "\n".join(dict.fromkeys(asking))[:_ASKED_CHARACTERS], text[-_EDGE:]))


_MANY = pattern(
    r"\b(?:all|altogether|each|every|everything|list|order|overall|sequence|summar\w+|throughout|timeline|total)\b",
    re.IGNORECASE,
)
_SAID = r"(?:ask|br(?:ing|ought)|discuss|mention|rais|said|say|talk|tell|told|start|begin|began)"
_ORDER = pattern(
    rf"""\b(?:in\ (?:what|which)\ order|order\ (?:in\ which|that)\ (?:I|we|you) | en\ qu[eé]\ orden | dans\ quel\ ordre
      | in\ welcher\ reihenfolge)\b
    | \b(?:chronolog\w*|sequence|timeline)\W+(?:(?:for|in|of)\W+)?(?:all|everything|how|what|when|which)\b
      [^.?!\n]{{0,60}} \b(?:I|we|you)\b [^.?!\n]{{0,60}} \b{_SAID}
    | (?P<first>
      \b(?:what|where|which|who|whom)\b [^.?!\n]{{0,40}}
        \b(?:earliest|first|initially|originally)\b(?!\ (?:of\ all|time))\W+(?:\w+\W+){{0,4}}?
        (?:I|we|you)\W+(?:\w+\W+){{0,2}}?{_SAID}
      | \b(?:did|have|had)\W+(?:I|we|you)\W+(?:first|initially|originally)\W+(?:\w+\W+)?{_SAID}
      | \b(?:did|have|had)\W+(?:I|we|you)\W+(?:\w+\W+)?{_SAID}\w*\W+(?:\w+\W+){{0,3}}?(?:first|initially|originally)\b
      | \b(?:ich|wir)\W+(?:\w+\W+){{0,2}}?(?:zuerst|als\ erstes)\b | \bpremi[eè]re\ chose\ que\b
      | \b(?:lo\ primero|primera\ cosa)\ que\b)
    | 順番 | 順序 | 顺序 | 순서 | 先后""",
    re.IGNORECASE | re.VERBOSE,
)
"""In a question for the order of what was said, or for the first of it, which nearness alone does not answer."""
_ASKED_WITHIN = 1_000
_CLAUSE_END, _MOST_CLAUSES = pattern(r"[;:、；]|,(?!\d)|\b(?:then|finally)\b"), 9
_TIMES_MANY, _TIMES_ORDER, FLOOR_OF_TURNS = 3, 6, 0.7
"""The floor of this session's turns is a share of that of memories: what a cut took was of one conversation."""


def question_of(source: PackInput) -> str:
    """The words of the user's request in which it asks; empty where another agent's stand in its place."""
    request = source.request
    is_asked = request.request_index is not None and not request.from_agent
    return asking_words(request.contents[request.request_index or 0].words) if is_asked else ""


def breadth_of(source: PackInput) -> int:
    """The factor for a question for many things, a larger one where it is for their order; 1 for any other. A goal or a
    step that asks for many changes nothing."""
    words = question_of(source)
    return _TIMES_ORDER if asks_for_order(words) else _TIMES_MANY if _MANY.search(words) else 1


def asks_for_order(question: str) -> bool:
    """Tells whether a question is for the order of what was said, or for the first of it."""
    return _order_asked(question) is not None


def _order_asked(question: str) -> re.Match[str] | None:
    """The words that ask for an order, in the first or the last thousand characters of a message."""
    is_long = len(question) > 2 * _ASKED_WITHIN
    return _ORDER.search(f"{question[:_ASKED_WITHIN]}\n{question[-_ASKED_WITHIN:]}" if is_long else question)


def clauses_of(question: str) -> list[str]:
    """The parts of a question for an order, each of which may name another thing; none of any other question."""
    parts = [part.strip() for part in _CLAUSE_END.split(question)] if asks_for_order(question) else []
    return list(dict.fromkeys(part for part in parts if len(part.split()) > 1))[:_MOST_CLAUSES]


def asks_for_first(question: str) -> bool:
    """Tells whether a question is for the first of what was said in a conversation."""
    match = _order_asked(question)
    return match is not None and match["first"] is not None


def most_turns(settings: RetrievalSettings, source: PackInput) -> int:
    """The most turns that are recalled: twice as many as memories, since nobody is found by a name there, and four
    times as many where the user asks for many things.

    Twenty turns, not thirty, find .05 less of LoCoMo's evidence inside one session.
    """
    return settings.memory_k * max(6, 4 * breadth_of(source)) // 3


def recalls(source: PackInput, policy: PackPolicy) -> bool:
    """Tells whether turns may come back: where a policy wants them, and a message asks for anything."""
    settings, is_asked = policy.retrieval, source.request.request_index is not None
    is_wanted = is_asked and settings.recall and settings.memory_k > 0 and not source.host.passthrough_reason
    return is_wanted and query_for(source, policy.redact) != ""


LEAST_ROOM = 256
"""Tokens for recalled turns under which none are: the frame of a payload and the text that explains it take 150."""
_MOST_SHARE, _SHARE_OF_ORDER, _LEAST_SHARE = 0.3, 0.4, 0.06
BYTES_PER_TOKEN = 4
"""Of a turn in UTF-8, about."""


def room_for_turns(sizes: Sequence[tuple[int, int, int]], source: PackInput) -> int:
    """Tokens for recalled turns, no more than all of them take: three tenths of the window at most, four where the
    request asks for an order, six hundredths at least; 0 where they would be too few for any.

    It is as the square of the share that words have in the history: where most of it is calls and their results, a
    search among turns brings little of it back, and the tail is worth more than they are.

    Args:
        sizes: bytes of each content before the request as a turn, and characters of its words, and of all of it.
    """
    if not sizes:
        return 0
    turns, words, whole = map(sum, zip(*sizes, strict=True))
    share = _SHARE_OF_ORDER if breadth_of(source) == _TIMES_ORDER else _MOST_SHARE
    share = min(share, max(_LEAST_SHARE, (words / max(1, whole)) ** 2))
    tokens = int(share * (source.window - source.growth_reserve))
    return min(tokens, turns // BYTES_PER_TOKEN) if tokens >= LEAST_ROOM else 0


# What people say that tells nothing, and what surely tells something; both in English.

_LONGEST_SMALL_TALK = 60
_SMALL_TALK = frozenset(
    _WORD.findall(
        """a afternoon ahead all alright and are awesome bye cheers continue cool danke day done evening everything fine
        for go good goodbye got gracias great haha hello help hey hi hola how i is it k later lol lot merci morning
        much nice night no nope noted of ok okay on perfect please proceed re right see so sounds sure ta thank thanks
        that thx to ty understood very welcome well wonderful yeah yep yes you your"""
    )
)


def searched(text: str) -> str:
    """The query for memories; empty where a text is thanks, a greeting or a word of consent."""
    words = _WORD.findall(text.casefold()) if len(text) <= _LONGEST_SMALL_TALK else ["?"]
    return "" if _SMALL_TALK.issuperset(words) else text


_GREETING = pattern(
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
_PRAISE = pattern(
    r"""\b(?:adorable|amazing|appreciate\w*|awesome|beautiful|blessed|cool|congrat\w*|cute|excit\w+|fantastic|fun|glad|
    great|happy|incredible|inspir\w+|lovely|lucky|nice|priceless|proud|sorry|stoked|sweet|thankful|wonderful|wow)\b""",
    re.VERBOSE | re.IGNORECASE,
)
_TELLING = pattern(
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
    """Tells whether a text holds a number, a name, a date, or words for a wish or a decision."""
    return _TELLING.search(_GREETING.sub(" ", text)) is not None


@lru_cache(maxsize=4_096)
def without_small_talk(text: str) -> str:
    """A text from its first sentence on that is no small talk; empty where all of it is."""
    start = 0
    for sentence in sentences(text):
        words = _GREETING.sub(" ", sentence)
        is_praise = len(words) <= _LONGEST_SMALL_TALK and _PRAISE.search(words) and not _TELLING.search(words)
        if searched(words) and not is_praise:
            return text[start:].strip()
        start += len(sentence)
    return ""
