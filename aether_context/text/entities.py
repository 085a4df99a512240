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
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple, TypeAlias

from aether_context.canonical import JSON
from aether_context.pack import Content
from aether_context.text.compression import Counts
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
_FOLDER = "artifact://evidence/"
_ADDRESSES = 0.34
"""What addresses may take beside the entities, as a share of what those may; each is as long as six of them."""
_ADDRESS = re.compile(rf"{_FOLDER}[0-9a-f]{{16}}\.[a-z]{{2,4}}")
_TELLING = re.compile(r"[\d/\\_@]")
_NAMING = re.compile(r"[\d/@]")
_MARKS = "@#$~.+:%&?=-"
_ENTITY = re.compile(
    r"""
      \\+[abfnrtv"']?                                       # an escape in quoted text: its letter is part of no word
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
    counter: Counts,
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
    here = {entity for found in _mentioned((*contents, *present))[len(contents) :] for entity, _ in found}
    here.update(text for content in present if _calls(content) for text in whole_arguments(content))
    said, left = known, max_tokens
    for_addresses = int(_ADDRESSES * max_tokens)
    too_long = math.inf  # characters of the shortest address that found no room
    lines: list[str] = []
    for rank, entities in ranked(contents, parse(earlier), present, known).items():
        chosen: list[str] = []
        left -= counter.count(_TITLES[rank])
        for entity in entities:
            if entity in here or entity in said:
                continue
            is_address = _FOLDER in entity
            if is_address and len(entity) >= too_long:
                continue
            cost = counter.count(_BETWEEN + entity)
            if is_address:
                if cost > for_addresses:
                    too_long = len(entity)
                    continue
                for_addresses -= cost
            elif cost > left:
                break
            else:
                left -= cost
            chosen.append(entity)
            said += f"\n{entity}"
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


def ranked(
    contents: Sequence[Content],
    earlier: Mapping[Rank, Sequence[str]],
    present: Sequence[Content] = (),
    known: str = "",
) -> dict[Rank, list[str]]:
    """Every entity once, in its strongest rank, the latest mentioned first.

    Args:
        present: contents after these, where an argument may be repeated and a number may have changed.
        known: tables that stay; a key that has another number there is not known by its key alone.
    """
    calls = [content for content in (*contents, *present) if _calls(content)]
    repeated = Counter(text for content in calls for text in set(whole_arguments(content)))
    mentioned = _mentioned((*contents, *present))
    best: dict[str, Rank] = {}
    for content, found in zip(reversed(contents), reversed(mentioned[: len(contents)]), strict=True):
        again = [(text, RANKS[0]) for text in whole_arguments(content) if repeated[text] > 1] if _calls(content) else []
        for entity, rank in (*reversed(again), *found):
            held = best.get(entity)
            if held is None:
                best[entity] = rank
            elif held != rank:
                best[entity] = _stronger(held, rank)
    for rank in RANKS:
        for entity in earlier.get(rank, ()):
            best[entity] = _stronger(best.get(entity, rank), rank)
    later = [entity for found in reversed(mentioned[len(contents) :]) for entity, _ in found]
    before = [entity for entities in parse(known).values() for entity in entities]
    stale = _stale([*later, *best, *before])
    ranks: dict[Rank, list[str]] = {rank: [] for rank in RANKS}
    for entity, rank in best.items():
        if entity not in stale:
            ranks[rank].append(entity)
    return ranks


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
    """The numbers that are not known to hold: of a record that has a later one, or of a key that has several.

    Args:
        entities: the latest mentioned first.
    """
    numbers: dict[str, dict[str, str]] = defaultdict(dict)
    named: set[str] = set()
    for entity in entities:
        found = _number(entity)
        if found is not None:
            numbers[found.subject].setdefault(found.number, entity)
            if found.named:
                named.add(found.subject)
    return {
        entity
        for subject, held in numbers.items()
        if len(held) > 1
        for entity in list(held.values())[1 if subject in named else 0 :]
    }


def _mentioned(contents: Sequence[Content]) -> list[tuple[tuple[str, Rank], ...]]:
    """What each content mentions, its results as those of the calls among the contents before."""
    waiting: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    called: set[tuple[str, str]] = set()
    found: list[tuple[tuple[str, Rank], ...]] = []
    for content in contents:
        exchanged: list[tuple[str, tuple[str, str, str], str]]
        if content.agent:
            exchanged = [(quote.kind, (quote.agent, quote.name, ""), quote.text) for quote in content.quotes]
        else:
            exchanged = [(part.kind, ("", part.name, part.call_id), part.text) for part in content.parts]
        answers = Counter(call for kind, call, _ in exchanged if kind == "response")
        owners: list[str] = []
        # Which of several calls without ids a result answers is known only where all are answered at once, in order.
        clear = {call for call, count in answers.items() if len(waiting[call]) == count}
        for call in {call for kind, call, _ in exchanged if kind == "call"}:
            waiting[call].clear()  # the answers to earlier ones are not here
        for kind, call, text in exchanged:
            if kind == "call":
                called.add(call[:2])
                waiting[call].append(label_of(parsed(text)))
            elif kind == "response":
                owners.append(waiting[call].pop(0) if call in clear else "")
        for call in answers.keys() - clear:
            waiting[call].clear()
        entities = mentions(content, tuple(owners) if any(owners) else ())
        if any(call[:2] in called for call in answers.keys() - clear):
            # The call that it answers is not here: what it asked about is not known, and others ask about other things.
            entities = tuple(one for one in entities if (number := _number(one[0])) is None or " " in number.subject)
        found.append(entities)
    return found


@lru_cache(maxsize=4_096)
def mentions(content: Content, owners: Sequence[str] = ()) -> tuple[tuple[str, Rank], ...]:
    """The entities that a content mentions, in the order of their first mention, each in its strongest rank.

    Args:
        owners: a tuple of what each of its results belongs to; empty where that is not known.
    """
    found: dict[str, Rank] = {}
    responses = 0
    for held in _held(content):
        owner = ""
        if held.kind == "response":
            owner = owners[responses] if owners else ""
            responses += 1
        for leaf in leaves(held.value, owner):
            if leaf.key:
                entity = f"{leaf.record} {leaf.key}: {leaf.text}".lstrip()
                if len(entity) <= _LONGEST:
                    found[entity] = _stronger(found.get(entity, held.rank), held.rank)
                continue
            rank = "seen" if held.kind == "call" and len(leaf.text) > _LONG_ARGUMENT else held.rank
            about = leaf.record if leaf.record != owner or len(leaf.text) <= _ANSWER else ""
            for entity in _of_text(_ESCAPED.sub(r"\1", leaf.text), about, sparing=rank == "seen"):
                if held.kind == "response" and _ADDRESS.fullmatch(entity):
                    found.setdefault(f"{held.name}: {entity}" if held.name else entity, RANKS[0])
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
    with; another number with the words before it.

    Args:
        record: what the whole text belongs to.
        sparing: whether a number that stands with no name is left out.
    """
    label = opener = ""
    for line in text.split("\n"):
        bare = line.strip()
        if not bare:
            label = opener = ""
            continue
        if bare[0] in "{[":
            value = read(bare.rstrip(","))
            if value is not None:
                for leaf in leaves(value, record):
                    if leaf.key:
                        yield f"{leaf.record} {leaf.key}: {leaf.text}".lstrip()
                    else:
                        yield from (entity for entity in entities_of(leaf.text) if not is_number(entity))
                continue
        field = _FIELD.match(line)
        if field is None or field["entry"]:
            label = opener = ""
        opens = field is not None and is_id(field["key"]) and (not label or field["key"] == opener)
        if opens and field is not None:
            label, opener = "", field["key"]
        name, name_end = "", 0
        for match in _ENTITY.finditer(line):
            if match["key"]:
                key, number = match["key"], match["number"].rstrip(".,:")
                if not _AMOUNT.fullmatch(number):
                    yield f"{key}: {number}"
                elif is_id(key):
                    yield f"{key}: {number}"
                    if opens and not label:
                        label = f"{key} {number}"
                elif is_label(key):
                    yield f"{key}: {number}"
                    if line[match.start() - 1 : match.start()] not in ("'", '"'):
                        name, name_end = key, match.end()
                else:
                    if name and not _follows(line, name_end, match.start()):
                        name = label = ""
                    yield f"{short_label(name or label) or record} {key}: {number}".lstrip()
            elif match["word"]:
                word = match["word"].rstrip(_MARKS).strip(".:-=&?")
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
                if is_label(word) and _names(line, match.start(), match.end()):
                    name, name_end = word, match.end()
                    if not label and (opens or field is None):
                        label = word


def _names(line: str, start: int, end: int) -> bool:
    """Whether a word at a place of a line may name what follows: in the notation of JSON only as the value of an id."""
    if _JSON_KEY.match(line, end):
        return False
    field = _JSON_FIELD.search(line, max(0, start - _BEFORE), start)
    return field is None or is_id(field["key"])


def _follows(line: str, end: int, start: int) -> bool:
    """Whether what starts at a place of a line may belong to the name that ends at another."""
    return start - end <= _NEAR and line.find("{", end, start) < 0 and line.find("}", end, start) < 0


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
        near = [at for at, word in enumerate(words[-_MOST_WORDS_TO_LABEL:]) if name in word]
        if near:
            return " ".join(words[-_MOST_WORDS_TO_LABEL:][near[-1] :])
    words = words[-_MOST_WORDS:]
    return " ".join(words) if any(str.isalpha(letter) for word in words for letter in word) else ""


@lru_cache(maxsize=4_096)
def whole_arguments(content: Content) -> tuple[str, ...]:
    """The arguments of calls that are a line of several words: commands, queries."""
    arguments = [text for held in _held(content) if held.kind == "call" for text in texts(held.value)]
    return tuple(
        text
        for text in arguments
        if len(text) <= _LONGEST and " " in text and "\n" not in text and _BETWEEN not in text and ": " not in text
    )


class _Held(NamedTuple):
    """What a part of a content says, calls with or answers, whoever's it is, with the rank of what it mentions."""

    kind: Literal["said", "call", "response"]
    rank: Rank
    value: JSON
    name: str = ""


def _held(content: Content) -> Iterator[_Held]:
    """What a content holds; of another agent's turn what is quoted, and nothing of what the host wrote around it."""
    for quote in content.quotes:
        if quote.kind == "said":
            yield _Held("said", "written", quote.text)
        else:
            value = parsed(quote.text)
            yield _of_tool(quote.kind, quote.name, quote.text if value is None else value)
    for part in () if content.agent else content.parts:
        if part.kind == "text":
            yield _Held("said", "used" if content.role == "user" else "written", part.text)
        elif part.kind == "call" or part.kind == "response":
            yield _of_tool(part.kind, part.name, json.loads(part.text))


def _of_tool(kind: Literal["call", "response"], name: str, value: JSON) -> _Held:
    return _Held(kind, "used" if kind == "call" else "seen", value, name)


def _calls(content: Content) -> bool:
    return bool(content.calls) or any(quote.kind == "call" for quote in content.quotes)


def entities_of(text: str) -> Iterator[str]:
    """The entities in a text, in their order, a repeated one each time."""
    for match in _ENTITY.finditer(text):
        if match["key"]:
            yield f"{match['key']}: {match['number'].rstrip('.,:')}"
        elif match["word"]:
            word = match["word"].rstrip(_MARKS).strip(".:-=&?")
            if _SHORTEST <= len(word) <= _LONGEST and _TELLING.search(word):
                yield word
