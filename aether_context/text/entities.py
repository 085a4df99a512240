"""The entity table: identifiers, paths and values of a conversation that outlive the text they stood in.

An entity is a word that can be known but not composed: it holds a digit, a slash, an underscore or an at sign. What a
call was given or a person said comes first, then what a model wrote, then what only stood in results; within each the
latest mention first. Of another agent's turn only what is quoted counts, as that agent's calls, words and results. The
address of a result that was kept whole counts as what a call was given, and stands with the tool's name, so that it can
be read when the result is gone. An argument that calls repeat stands whole.

A number stands with its key and the record it belongs to, as `aether_context.text.leaves` finds them, or with the words
before it. A result that names no record belongs to what its call asked about. A key that no record is known for stands
with its number only while it has one.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple, TypeAlias

from aether_context.canonical import JSON
from aether_context.pack import Content
from aether_context.text.compression import CountsAhead
from aether_context.text.leaves import (
    NUMBER,
    is_id,
    is_label,
    is_number,
    label_of,
    leaves,
    parsed,
    read,
    short_label,
    texts,
)

Rank: TypeAlias = Literal["used", "written", "seen"]
RANKS: tuple[Rank, ...] = ("used", "written", "seen")
"""Whose mention an entity is known by, the strongest first: a call or a person, the model, a result."""

_TITLES: Mapping[Rank, str] = {rank: f"- {rank}: " for rank in RANKS}
_BETWEEN = ", "
_SHORTEST, _LONGEST = 4, 160
_LONG_ARGUMENT = 240
_LEAST_TOKENS = 4
"""Of an entity and what stands between it and the next one: hardly any is less."""
SCHEME = "artifact://"
_FOLDER = f"{SCHEME}evidence/"
_ADDRESSES = 0.34
"""What addresses may take beside the entities, as a share of what those may; each is as long as six of them."""
_ADDRESS = re.compile(rf"{_FOLDER}[0-9a-f]{{16}}\.[a-z]{{2,4}}")
_TELLING = re.compile(r"[\d/\\_@]")
_NAMING = re.compile(r"[\d/@]")
_MARKS = "@#$~.+:%&?=-"
_ENTITY = re.compile(
    r"""
      (?:[A-Za-z][A-Za-z.?-]*+                              # words that are neither entity nor key, in one step
      (?![\w@#$~/+:%&=] | ["']?[ ]?[:=])[^\w@#$~./+:%&?=\\-]*+)++
    | \\+[abfnrtv"']?                                       # an escape in quoted text: its letter is part of no word
    | (?P<key>[^\W\d][\w-]{1,40})["']?[ ]?[:=][ ]?["']?     # a key, and a number that is worth its key
      (?P<number>[+-]?\d[\w.,:%+-]{2,40})
    | (?P<word>[A-Za-z]:\\[\w\\.~-]*\w | [@#$~.+:%&?=-]*[\w/][\w@#$~./+:%&?=-]*)
    | [@#$~.+:%&?=-]+                                       # marks without a word, at once rather than one by one
    """,
    re.VERBOSE,
)
_FIELD = re.compile(r"\s*(?P<entry>[-*]\s+)?[\"']?(?P<key>[^\W\d][\w-]{0,40})[\"']?\s?[:=](?!/)")
_AMOUNT = re.compile(rf"[+-]?{NUMBER}(?:%|ms|s|px|[kKMGT]i?B?)?")
_ESCAPED = re.compile(r"""(?<!\\)\\+(["'])""")
_CLAUSE = re.compile(r".*(?:[.;!?:]\s|, |[(\[{])", re.DOTALL)
_GAPS = re.compile(r"[\s,|\"'()\[\]{}<>=\\]+")
_JSON_KEY = re.compile(r"""["']\s?:""")
_JSON_FIELD = re.compile(r"""["'](?P<key>[\w-]{1,40})\\*["']\s?:\s?\\*["']?$""")
_NEAR = 400
"""Characters between a name and the key of a number that belongs to it."""
_BEFORE = 80
"""Characters before a number in which the words that it stands with are looked for."""
_MOST_WORDS, _MOST_WORDS_TO_LABEL = 3, 7
_ANSWER = 60
"""Characters of a result that is an answer about what its call names."""
_NOTE = 200
"""Characters of a text in a record that is about that record."""


def entity_table(
    contents: Sequence[Content],
    *,
    max_tokens: int,
    counter: CountsAhead,
    earlier: str = "",
    present: Sequence[Content] = (),
    known: str = "",
) -> str:
    """The entities of contents that leave, a line for each rank; empty where none fits.

    Args:
        contents: in their order.
        max_tokens: of entities. The addresses of what was kept whole take up to a third of that besides, so that they
            push out no identifier.
        earlier: the tables of earlier cuts, the latest last; their entities were mentioned before all others.
        present: contents that stay; what they mention needs no place in the table.
        known: text that stands beside the table; what is in it needs no place either.
    """
    repeated = Counter(text for content in (*contents, *present) for text in set(whole_arguments(content)))
    mentioned = _mentioned((*contents, *present))
    later = mentioned[len(contents) :]
    here = {entity for found in later for entity, _ in found}
    here.update(text for content in present for text in whole_arguments(content))
    best: dict[str, Rank] = {}  # each entity in its strongest rank, the latest mentioned first
    for content, found in zip(reversed(contents), reversed(mentioned[: len(contents)]), strict=True):
        again: list[tuple[str, Rank]] = [(text, "used") for text in whole_arguments(content) if repeated[text] > 1]
        for entity, rank in (*reversed(again), *found):
            best[entity] = _stronger(best.get(entity, rank), rank)
    for rank, entities in parse(earlier).items():
        for entity in entities:
            best[entity] = _stronger(best.get(entity, rank), rank)
    before = [entity for entities in parse(known).values() for entity in entities]
    stale = _stale([*(entity for found in reversed(later) for entity, _ in found), *best, *before])
    seen, left, left_for_addresses = known, max_tokens, int(_ADDRESSES * max_tokens)
    too_long = math.inf  # characters of the shortest address that found no room
    lines: list[str] = []
    for rank in RANKS:
        chosen: list[str] = []
        left -= counter.count(_TITLES[rank])
        entities = [
            name for name, strongest in best.items() if strongest == rank and name not in stale and name not in here
        ]
        counter.count_ahead([_BETWEEN + entity for entity in entities[: max(0, left) // _LEAST_TOKENS]])
        for entity in entities:
            is_address = _FOLDER in entity
            if entity in seen or (is_address and len(entity) >= too_long):
                continue
            cost = counter.count(_BETWEEN + entity)
            if not is_address:
                if cost > left:
                    break
                left -= cost
            elif cost > left_for_addresses:
                too_long = len(entity)
                continue
            else:
                left_for_addresses -= cost
            chosen.append(entity)
            seen += f"\n{entity}"
        if chosen:
            lines.append(_TITLES[rank] + _BETWEEN.join(chosen))
    return "\n".join(lines)


def is_entry(bullet: str) -> bool:
    """Whether a bullet is a line of an entity table."""
    return bullet.startswith(tuple(_TITLES.values()))


def parse(tables: str) -> dict[Rank, list[str]]:
    """The entities of tables, by rank, the latest mentioned first."""
    found: dict[Rank, list[str]] = {rank: [] for rank in RANKS}
    for line in reversed(tables.splitlines()):
        for rank, title in _TITLES.items():
            if line.startswith(title):
                found[rank] += line.removeprefix(title).split(_BETWEEN)
    return found


def _stronger(one: Rank, other: Rank) -> Rank:
    return one if one == other or RANKS.index(one) < RANKS.index(other) else other


class _Number(NamedTuple):
    """An entity that is a number: what stands before it, and whether that names a record."""

    subject: str
    number: str
    named: bool


def _number(entity: str) -> _Number | None:
    """An entity as a number with its key; None where it is none, or one that names a record itself."""
    subject, _, number = entity.rpartition(": ")
    if not subject or not (is_number(number) or all(map(_AMOUNT.fullmatch, number.split(" ")))):
        return None
    record, _, key = subject.rpartition(" ")
    return None if is_id(key) and not record else _Number(subject, number, _NAMING.search(record) is not None)


def _stale(entities: Sequence[str]) -> set[str]:
    """The numbers, of entities from the latest on, that a record has a later one for, or a key several ones."""
    numbers: dict[tuple[str, bool], dict[str, str]] = defaultdict(dict)
    for entity in entities:
        if (found := _number(entity)) is not None:
            numbers[found.subject, found.named].setdefault(found.number, entity)
    return {
        entity
        for (_, named), by_number in numbers.items()
        if len(by_number) > 1
        for entity in list(by_number.values())[1 if named else 0 :]
    }


def _mentioned(contents: Sequence[Content]) -> list[tuple[tuple[str, Rank], ...]]:
    """What each content mentions, its results as those of the calls among the contents before."""
    waiting: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    called: set[tuple[str, str]] = set()
    mentioned: list[tuple[tuple[str, Rank], ...]] = []
    for content in contents:
        if not (content.agent or content.calls or content.responses):
            mentioned.append(mentions(content))
            continue
        exchanged: list[tuple[str, tuple[str, str, str], str]]
        if content.agent:
            exchanged = [(quote.kind, (quote.agent, quote.name, ""), quote.text) for quote in content.quotes]
        else:
            exchanged = [(part.kind, ("", part.name, part.call_id), part.text) for part in content.parts]
        answers: dict[tuple[str, str, str], int] = {}
        for kind, call, _ in exchanged:
            if kind == "response":
                answers[call] = answers.get(call, 0) + 1
        owners: list[str] = []
        # Which of several calls without ids a result answers is known only where all are answered at once, in order.
        clear = {call for call, count in answers.items() if len(waiting[call]) == count}
        for call in {call for kind, call, _ in exchanged if kind == "call"}:
            waiting[call].clear()  # the answers to earlier ones are not here
        for kind, call, text in exchanged:
            if kind == "call":
                called.add(call[:2])
                waiting[call].append(_asked_about(text))
            elif kind == "response":
                owners.append(waiting[call].pop(0) if call in clear and waiting[call] else "")
        unclear = answers.keys() - clear
        for call in unclear:
            waiting[call].clear()
        entities = mentions(content, tuple(owners)) if any(owners) else mentions(content)
        if any(call[:2] in called for call in unclear):
            # The call that it answers is not here: what it asked about is not known, and others ask about other things.
            entities = tuple(
                (entity, rank)
                for entity, rank in entities
                if (number := _number(entity)) is None or " " in number.subject
            )
        mentioned.append(entities)
    return mentioned


@lru_cache(maxsize=4_096)
def _asked_about(arguments: str) -> str:
    return label_of(parsed(arguments))


@lru_cache(maxsize=20_000)  # a first cut of a long session asks for all of them twice
def mentions(content: Content, owners: tuple[str, ...] = ()) -> tuple[tuple[str, Rank], ...]:
    """The entities that a content mentions, in the order of their first mention, each in its strongest rank.

    ``owners`` are what its results belong to, where that is known.
    """
    found: dict[str, Rank] = {}
    names = iter(owners)
    for kind, tool, value, usual_rank in _said(content):
        owner = next(names, "") if kind == "response" else ""
        for leaf in leaves(value, owner):
            if leaf.key:
                entity = f"{leaf.record} {leaf.key}: {leaf.text}".lstrip()
                if len(entity) <= _LONGEST:
                    found[entity] = _stronger(found.get(entity, usual_rank), usual_rank)
                continue
            rank = "seen" if kind == "call" and len(leaf.text) > _LONG_ARGUMENT else usual_rank
            about = leaf.record if leaf.record != owner or len(leaf.text) <= _ANSWER else ""
            text = _ESCAPED.sub(r"\1", leaf.text) if "\\" in leaf.text else leaf.text
            for entity in _of_text(text, about, sparing=rank == "seen"):
                if kind == "response" and _ADDRESS.fullmatch(entity):
                    found.setdefault(f"{tool}: {entity}" if tool else entity, "used")
                    continue
                found[entity] = _stronger(found.get(entity, rank), rank)
    numbers: dict[str, list[str]] = defaultdict(list)
    for entity in found:
        number = _number(entity)
        if number is not None and number.named:
            numbers[number.subject].append(entity)
    unclear = {entity for entities in numbers.values() if len(entities) > 1 for entity in entities}
    return tuple((entity, rank) for entity, rank in found.items() if entity not in unclear)


def _of_text(text: str, record: str, sparing: bool) -> Iterator[str]:
    """The entities in a text, numbers with what they belong to, a repeated one each time.

    A key and a number stand with the name before them in their line, or with the one that the lines of a record begin
    with; another number with the words before it, or not at all in a ``sparing`` reading. The text is of a ``record``.
    """
    label = opener = ""
    for line in text.split("\n"):
        bare = line.strip()
        if not bare:
            label = opener = ""
            continue
        if bare[0] in "{[" and (value := read(bare.rstrip(","))) is not None:
            for leaf in leaves(value, record):
                if leaf.key:
                    yield f"{leaf.record} {leaf.key}: {leaf.text}".lstrip()
                else:
                    yield from (entity for entity in entities_of(leaf.text) if not is_number(entity))
            continue
        field = _FIELD.match(line)
        opens = False
        if field is None or field["entry"]:
            label = opener = ""
        if field is not None and is_id(field["key"]) and (not label or field["key"] == opener):
            opens, label, opener = True, "", field["key"]
        if not _TELLING.search(line):
            continue  # every entity and every name has one of these characters
        name, name_end = "", 0
        for match in _ENTITY.finditer(line):
            if key := match["key"]:
                number = match["number"].rstrip(".,:")
                entity = f"{key}: {number}"
                if _AMOUNT.fullmatch(number):
                    if is_id(key):
                        if opens and not label:
                            label = f"{key} {number}"
                    elif is_label(key):
                        if line[match.start() - 1 : match.start()] not in ("'", '"'):
                            name, name_end = key, match.end()
                    else:
                        between = line[name_end : match.start()]
                        if name and (len(between) > _NEAR or "{" in between or "}" in between):
                            name = label = ""
                        entity = f"{short_label(name or label) or record} {entity}".lstrip()
                yield entity
            elif (word := match["word"]) and _TELLING.search(word):
                word = word.rstrip(_MARKS).strip(".:-=&?")
                if is_number(word.lstrip("~=")):
                    if len(word) >= _SHORTEST:
                        words = _words_before(line, match.start(), name, name_end)
                        named = bool(name) and name in words
                        owner = record if not named and len(text) <= _NOTE else ""
                        if owner or (words and (named or not sparing)):
                            yield " ".join(filter(None, (owner, words, word)))
                    continue
                if _SHORTEST <= len(word) <= _LONGEST and _TELLING.search(word):
                    yield word
                if is_label(word) and not _JSON_KEY.match(line, match.end()):
                    # In the notation of JSON only the value of an id names what follows.
                    of_key = _JSON_FIELD.search(line, max(0, match.start() - _BEFORE), match.start())
                    if of_key is None or is_id(of_key["key"]):
                        name, name_end = word, match.end()
                        if not label and (opens or field is None):
                            label = word


def _words_before(line: str, start: int, name: str, name_end: int) -> str:
    """The words that a number at a place of a line stands with; from the name before it on, where that is near."""
    begin = max(0, start - _BEFORE)
    before = line[begin:start]
    clause = _CLAUSE.match(before)
    before = before[clause.end() :] if clause is not None else before
    words = [word for word in _GAPS.split(before) if word]
    if begin and clause is None:
        words = words[1:]  # the first one may be cut
    if name and start - name_end < len(before) + len(name):
        nearest = words[-_MOST_WORDS_TO_LABEL:]
        named = [at for at, word in enumerate(nearest) if name in word]
        if named:
            return " ".join(nearest[named[-1] :])
    found = " ".join(words[-_MOST_WORDS:])
    return found if any(map(str.isalpha, found)) else ""


@lru_cache(maxsize=4_096)
def whole_arguments(content: Content) -> tuple[str, ...]:
    """The arguments of calls that are a line of several words: commands, queries."""
    calls = [part.text for part in content.calls] + [quote.text for quote in content.quotes if quote.kind == "call"]
    return tuple(
        text
        for call in calls
        for text in texts(_value(call))
        if len(text) <= _LONGEST and " " in text and "\n" not in text and _BETWEEN not in text and ": " not in text
    )


def _value(text: str) -> JSON:
    value = parsed(text)
    return text if value is None else value


_Kind: TypeAlias = Literal["said", "call", "response"]
_TOOL_RANKS: Mapping[_Kind, Rank] = {"call": "used", "response": "seen"}


def _said(content: Content) -> Iterator[tuple[_Kind, str, JSON, Rank]]:
    """What each part of a content is: words, a call's arguments or a tool's answer, with its tool's name and its rank.

    Of another agent's turn that is what is quoted, and nothing of what the host wrote around it.
    """
    for quote in content.quotes:
        value = quote.text if quote.kind == "said" else _value(quote.text)
        yield quote.kind, quote.name, value, _TOOL_RANKS.get(quote.kind, "written")
    for part in () if content.agent else content.parts:
        if part.kind == "text":
            yield "said", "", part.text, "used" if content.role == "user" else "written"
        elif part.kind == "call" or part.kind == "response":
            yield part.kind, part.name, json.loads(part.text), _TOOL_RANKS[part.kind]


_URI = re.compile(rf"""(?<="){SCHEME}[^"\\\n]{{1,200}}\.\w{{1,8}}(?=")|{SCHEME}\w[^\s"'`<>()\[\]{{}}|\\^,;#]*""")
"""An address as a whole JSON string, which may hold blanks, or up to the next character that no address has."""

_GOES_ON = re.compile(r"[./-]?\w")


def artifact_uris(text: str, known: Iterable[str] = ()) -> list[str]:
    """Every address of an artifact in a text, whoever made it, in their order; a repeated one each time.

    Args:
        known: addresses that are read whole wherever they stand, whatever characters they hold.
    """
    if SCHEME not in text:
        return []
    unusual = {uri for uri in known if uri.startswith(SCHEME) and artifact_uris(uri) != [uri]}
    lengths = sorted(set(map(len, unusual)), reverse=True)
    found: list[str] = []
    at = text.find(SCHEME)
    while at >= 0:
        end = next((at + size for size in lengths if text[at : at + size] in unusual and _ends(text, at + size)), 0)
        if end:
            found.append(text[at:end])
        elif (match := _URI.match(text, at)) is not None:
            end = match.end()
            found.append(match.group().rstrip(".:!?*_~…"))
        at = text.find(SCHEME, end or at + len(SCHEME))
    return found


def _ends(text: str, at: int) -> bool:
    """Whether an address that ends at a place of a text does not go on there."""
    return _GOES_ON.match(text, at) is None


def entities_of(text: str) -> Iterator[str]:
    """The entities in a text, in their order, a repeated one each time."""
    for match in _ENTITY.finditer(text):
        if match["key"]:
            yield f"{match['key']}: {match['number'].rstrip('.,:')}"
        elif (word := match["word"]) and _TELLING.search(word):
            word = word.rstrip(_MARKS).strip(".:-=&?")
            if _SHORTEST <= len(word) <= _LONGEST and _TELLING.search(word):
                yield word
