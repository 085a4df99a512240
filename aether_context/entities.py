"""The entity table: identifiers, paths and values of a conversation that outlive the text they stood in.

An entity is a word that can be known but not composed: it holds a digit, a slash, an underscore or an at sign. What a
call was given or a person said comes first, then what a model wrote, then what only stood in results; within each the
latest mention first. Of another agent's turn only what is quoted counts, as that agent's calls, words and results. The
address of a result that was kept whole counts as what a call was given, and stands with the tool's name, so that it can
be read when the result is gone. A number stands with the key it was found under, and an argument that calls repeat
stands whole.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple, Protocol, TypeAlias

from aether_context.canonical import JSON
from aether_context.pack import Content
from aether_context.records import parsed

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


class Counts(Protocol):
    """Counts the tokens of a text."""

    def count(self, text: str) -> int: ...


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
    here = {entity for content in present for entity, _ in mentions(content)}
    here.update(text for content in present if _calls(content) for text in whole_arguments(content))
    said, left = known, max_tokens
    for_addresses = int(_ADDRESSES * max_tokens)
    too_long = math.inf  # characters of the shortest address that found no room
    lines: list[str] = []
    for rank, entities in ranked(contents, parse(earlier), present).items():
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
    contents: Sequence[Content], earlier: Mapping[Rank, Sequence[str]], present: Sequence[Content] = ()
) -> dict[Rank, list[str]]:
    """Every entity once, in its strongest rank, the latest mentioned first.

    Args:
        present: contents after these, where an argument may be repeated.
    """
    calls = [content for content in (*contents, *present) if _calls(content)]
    repeated = Counter(text for content in calls for text in set(whole_arguments(content)))
    best: dict[str, Rank] = {}
    for content in reversed(contents):
        again = [(text, RANKS[0]) for text in whole_arguments(content) if repeated[text] > 1] if _calls(content) else []
        for entity, rank in (*reversed(again), *mentions(content)):
            held = best.get(entity)
            if held is None:
                best[entity] = rank
            elif held != rank:
                best[entity] = _stronger(held, rank)
    for rank in RANKS:
        for entity in earlier.get(rank, ()):
            best[entity] = _stronger(best.get(entity, rank), rank)
    found: dict[Rank, list[str]] = {rank: [] for rank in RANKS}
    for entity, rank in best.items():
        found[rank].append(entity)
    return found


def _stronger(one: Rank, other: Rank) -> Rank:
    return one if one == other or RANKS.index(one) < RANKS.index(other) else other


@lru_cache(maxsize=4_096)
def mentions(content: Content) -> tuple[tuple[str, Rank], ...]:
    """The entities that a content mentions, in the order of their first mention, each in its strongest rank."""
    found: dict[str, Rank] = {}
    for held in _held(content):
        for text in _leaves(held.value):
            rank = "seen" if held.kind == "call" and len(text) > _LONG_ARGUMENT else held.rank
            for entity in entities_of(text):
                if held.kind == "response" and _ADDRESS.fullmatch(entity):
                    found.setdefault(f"{held.name}: {entity}" if held.name else entity, RANKS[0])
                    continue
                found[entity] = _stronger(found.get(entity, rank), rank)
    return tuple(found.items())


@lru_cache(maxsize=4_096)
def whole_arguments(content: Content) -> tuple[str, ...]:
    """The arguments of calls that are a line of several words: commands, queries."""
    texts = [text for held in _held(content) if held.kind == "call" for text in _leaves(held.value)]
    return tuple(
        text
        for text in texts
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


def _leaves(value: JSON, key: str = "") -> Iterator[str]:
    """The scalar values in a JSON value, numbers with the key that they stand under."""
    if isinstance(value, dict):
        for name, held in value.items():
            yield from _leaves(held, str(name))
    elif isinstance(value, list):
        for held in value:
            yield from _leaves(held, key)
    elif isinstance(value, str):
        yield value
    elif value is not None and not isinstance(value, bool):
        yield f"{key}: {value}"


def entities_of(text: str) -> Iterator[str]:
    """The entities in a text, in their order, a repeated one each time."""
    for match in _ENTITY.finditer(text):
        if match["key"]:
            yield f"{match['key']}: {match['number'].rstrip('.,:')}"
        elif match["word"]:
            word = match["word"].rstrip(_MARKS).strip(".:-=&?")
            if _SHORTEST <= len(word) <= _LONGEST and _TELLING.search(word):
                yield word
