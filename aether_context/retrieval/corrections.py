"""Corrections by their words: a later statement gives the subject of an older one another value of the same kind.

"The budget was cut to 31,500 euros" corrects "The budget is 40,000 euros", whatever the verb: the subject is there, and
behind it and "to" another number of euros. Values, and the words that link them to a subject, are in corrections.toml.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from itertools import chain, pairwise
from pathlib import Path
from typing import NamedTuple

from aether_context.retrieval import terms


class _Token(NamedTuple):
    """A value or a word. The kind of a number has its unit, or the noun that it numbers."""

    kind: str
    value: str
    content: frozenset[str]
    """The terms that say what it is about; of a value its text."""
    start: int
    end: int


class _Fact(NamedTuple):
    """A statement of what holds: the values behind its verb, the terms of its subject, and all of its tokens."""

    values: Sequence[_Token]
    subject: frozenset[str]
    verb: _Token
    tokens: Sequence[_Token]


@cache
def _table() -> dict[str, str]:
    import tomllib

    return tomllib.loads(Path(__file__).with_name("corrections.toml").read_text(encoding="utf-8"))


@cache
def _listed(*uses: str) -> frozenset[str]:
    return frozenset(word for use in uses for word in _table()[use].casefold().split())


@cache
def _pattern(use: str) -> re.Pattern[str]:
    return re.compile(_table()[use], re.IGNORECASE | re.VERBOSE)


def replaces(later: str, older: str) -> bool:
    """Tells whether a statement gives the subject of an older one another value of the same kind."""
    fact, tokens = _fact_of(older), _tokens(later)
    if _pattern("unsure").search(later) or _is_question(older):
        return False
    # "I eat fish", and then "I don't eat fish any more".
    old, new = _content(_tokens(older)), _content(tokens)
    if _pattern("lapsed").search(later) and old <= new and new - old <= _listed("more"):
        return True
    if fact is None:
        return False
    # "Version 1.2 is live", and then "Version 1.3 is live now".
    new -= _listed("now")
    is_series = fact.verb.value in _listed("unique") and old & new and old & new <= _listed("series")
    if is_series and [[word[0].isdigit() for word in words] for words in (old - new, new - old)] == [[True], [True]]:
        return not _pattern("denies").search(later)
    # "My editor is vim", and then "I use helix as my editor".
    match = _pattern("as").search(later)
    if match and fact.subject <= _content(_tokens(match[1])):
        words = _content(fact.tokens[fact.tokens.index(fact.verb) + 1 :])
        is_other = not words & (_content(tokens) - fact.subject) or _pattern("switches").search(later) is not None
        return fact.verb.value in _listed("unique") and is_other
    return any(_has_another(kind, fact, tokens, later) for kind in {value.kind for value in fact.values})


def is_about_another(later: str, older: str) -> bool:
    """Tells whether a statement is about another thing or person than an older one: somebody else does the same, or the
    words before both verbs have some in common, and each some of its own, as "server alpha" and "server beta"."""
    fact, new_fact = _fact_of(older), _fact_of(later)
    if fact is None or new_fact is None:
        return False
    words, new_words = _content(fact.tokens) | _listed("now"), _content(new_fact.tokens)
    fronts = [statement.tokens[: statement.tokens.index(statement.verb)] for statement in (fact, new_fact)]
    doer, new_doer = (_content(front) - _listed("now", "speakers") for front in fronts)
    is_another = not new_doer & words and not all(_listed("speakers") & _words(front) for front in fronts)
    repeats_verb = fact.verb.content == new_fact.verb.content
    # "I play tennis", "I play chess now"
    is_beside = fact.verb.value in _listed("several") and not _pattern("only").search(later)
    if is_beside and repeats_verb and not (words & new_words) - doer - fact.verb.content - _listed("now"):
        return True
    is_same_verb = not doer or repeats_verb
    if new_doer and is_another and is_same_verb and new_fact.verb.value not in _listed("unique"):
        return True  # "I weigh 82 kg", "my bike weighs 9 kg"
    if fact.subject <= new_words:
        verb, subject = new_fact.verb, fact.subject  # "at Bosch" makes of "I work" no other subject
        places = [at for at, token in enumerate(new_fact.tokens) if token.content & subject and token != verb]
        return bool(places) and _is_of_another(places, 0, words, new_fact.tokens)
    return bool(doer & new_doer and new_doer - words)


def _has_another(kind: str, fact: _Fact, tokens: Sequence[_Token], text: str) -> bool:
    """Tells whether a statement has another value of a kind where the fact has its own."""
    olds = {value.value for value in fact.values if value.kind == kind}
    repeated = [token for token in tokens if token.kind == kind and token.value in olds]
    if not all(
        _pattern("replaces").search(text[: at.start]) or _pattern("ends").match(text[at.end :]) for at in repeated
    ):
        return False
    if repeated and kind == "name" and _pattern("switches").search(text):  # "We switched from Jenkins to Buildkite"
        return all(_listed("our") & _words(statement) for statement in (fact.tokens, tokens))
    # What else has a name is a part of the subject.
    subject = fact.subject | _content(value for value in fact.values if value.kind == "name" != kind)
    is_verb = kind == "name" and subject == fact.verb.content and not repeated  # "I speak French"
    if is_verb or not subject or not subject <= _content(tokens) or (not repeated and _pattern("denies").search(text)):
        return False
    places = [at for at, token in enumerate(tokens) if token.content & subject]
    states, ignored = _listed("states") | {fact.verb.value}, _content(fact.tokens) | _listed("now")
    # Names of places have the same word before them, names of people the verb: "in Berlin", "in Madrid".
    leads = {first.value for first, second in pairwise(fact.tokens) if second.value in olds} | _listed("now")
    for at, token in enumerate(tokens):
        if token.kind not in (kind, f"{kind.partition(':')[0]}:") or token.value in olds:
            continue
        nearest = max((spot for spot in places if spot < at), default=places[0])
        between = tokens[min(at, nearest) + 1 : max(at, nearest)]
        is_linked = not any(
            item.kind == "end" or item.content - ignored for item in between if item.value not in states
        )
        is_linked &= bool(states & _words(between)) or (kind in ("state", "name") and not between)
        says_no_more = _content(tokens) <= ignored | token.content and (
            bool(states & _words(tokens)) or kind == "state"
        )
        has_lead = kind != "name" or nearest > at or tokens[at - 1].value in leads
        goes_to = nearest < at and bool(_listed("to") & _words(tokens[max(0, at - 2) : at]))
        if repeated or goes_to or (has_lead and (says_no_more or is_linked)):
            return not _is_of_another(places, at, ignored, tokens)
    return False


def _is_of_another(places: Sequence[int], value: int, ignored: frozenset[str], tokens: Sequence[_Token]) -> bool:
    """Tells whether a subject is somebody else's, or has a word beside it that makes it another one; where it has a new
    ``value``, so does "a" behind a verb."""
    articles = _listed("articles", "any")
    for at in places:
        links = [token for token in tokens[at + 1 : at + 4] if token.value not in articles]
        is_linked = links and links[0].value in _listed("links")
        if is_linked and any(link.kind in ("word", "name") and link.content - ignored for link in links[1:2]):
            return True
        front = max((near for near in range(at) if tokens[near].value not in articles | _listed("now")), default=value)
        word, is_first = tokens[front], front == 0 or tokens[front - 1].kind == "end"
        is_beside = is_first or tokens[front - 1].value in articles or word.value.endswith(("'s", "’s"))
        if (front != value and is_beside and word.content - ignored) or (
            value and at > 1 and tokens[at - 1].value in _listed("any") and tokens[at - 2].value in _listed("states")
        ):
            return True
        if word.value in _listed("theirs") or (at == places[0] and word.value in _listed("under")):
            return True
    return False


@lru_cache(maxsize=500)
def _fact_of(text: str) -> _Fact | None:
    """The fact that a statement tells; None of a question, and where no verb is known for one of the present."""
    tokens = _tokens(text)
    # A verb is listed, or stands behind "I" or "we", or ends in an s behind a noun.
    nouns = {at for at, token in enumerate(tokens, 1) if token.value in _listed("determiners")}  # "my son", no verb
    listed = (at for at, token in enumerate(tokens) if token.value in _listed("states") and at not in nouns)
    behind = (at for at, token in enumerate(tokens[1:], 1) if token.value not in _listed("now"))
    by_speakers = behind if _listed("speakers") & _words(tokens[:1]) else ()
    pairs = enumerate(pairwise(tokens), 1)
    endings = (at for at, (noun, word) in pairs if noun.content and word.kind == "word" and word.value[-1] == "s")
    verb = next(chain(listed, by_speakers, endings), 0)
    if not verb or _is_question(text):
        return None
    front, back = tokens[:verb], tokens[verb + 1 :]
    is_unique = tokens[verb].value in _listed("unique") and _listed("articles") & _words(back[:1])
    if is_unique and {token.kind.partition(":")[0] for token in front} <= {"name", "number"}:  # "Paula is the lead"
        front, back = back, front
    values = [token for token in back if token.kind not in ("word", "unit", "end")]
    words = (token for token in back if token.kind == "word")
    subject = _content(front) or _content(words) or tokens[verb].content
    return _Fact(values, subject - _listed("spare"), tokens[verb], tokens)


@lru_cache(maxsize=500)
def _tokens(text: str) -> tuple[_Token, ...]:
    tokens = list[_Token]()
    for match in _pattern("value").finditer(text):
        kind, value, start = str(match.lastgroup), match[0].casefold(), match.start()
        content = frozenset(terms.terms(value)) - terms.GRAMMAR if kind in ("word", "end") else frozenset([value])
        last = tokens[-1] if tokens and tokens[-1].end >= start - 1 else None
        if len(value) == 1 and match[0].isupper() and value != "i" and last and last.content:  # "room A"
            content = frozenset([value])
        if kind == "word" and last and last.kind.startswith("number") and (content or value in "%$€£"):
            if not content <= _listed("now"):
                tokens[-1] = last._replace(kind=f"number:{min(content, default=value)}")
                kind, content = "unit", frozenset()
        elif kind == "word" and content and match[0][0].isupper():
            kind = "name"
            if last and last.kind == "name":
                tokens.pop()
                value, content, start = f"{last.value} {value}", last.content | content, last.start
        elif kind == "number":
            is_numbered = last and last.kind in ("word", "name") and last.value not in _listed("states")
            kind += f":{min(last.content, default='') if last and is_numbered else ''}"
        elif kind == "state":
            value = "good" if match["good"] else "bad"
        tokens.append(_Token(kind, value, content, start, match.end()))
    return tuple(tokens)


def _is_question(text: str) -> bool:
    return text.rstrip().endswith(("?", "？"))


def _content(tokens: Iterable[_Token]) -> frozenset[str]:
    return frozenset[str]().union(*(token.content for token in tokens))


def _words(tokens: Iterable[_Token]) -> frozenset[str]:
    return frozenset(token.value for token in tokens)
