"""The entity table: identifiers, paths and values that are kept when the text that mentions them is removed.

An entity is a word that a model cannot make up again: it has a digit, a slash, an underscore, an at sign, or a capital
behind a small letter, unless it is a key of JSON. Entities are ranked by where they occur: first in a call's arguments
or a person's words, then in a model's text, then only in results; within each rank the first four of each content, then
the others, the latest mention first. Long names come behind those of all ranks. In another agent's turn only what is
quoted counts, as that agent's calls, words and results. The address of a result that was kept whole has the first rank
and is listed with the tool's name, so that the result can still be read.

A value is listed with its key and the record it was returned with, as `text.json_lines` finds them, in a text with the
label before it; where neither names one, that is what the call's arguments name. Where no record is known for a key,
its number is listed only while the key has a single one.
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from functools import lru_cache, partial
from itertools import chain
from operator import itemgetter
from typing import Literal, NamedTuple, TypeAlias

from aether_context.canonical import JSON
from aether_context.pack import Content, with_content
from aether_context.text import Counts
from aether_context.text.json_lines import NUMBER, is_id, is_label, is_number, leaves, read
from aether_context.text.pairing import pair_results
from aether_context.text.patterns import pattern

Rank: TypeAlias = Literal["used", "written", "seen"]
RANKS: tuple[Rank, ...] = ("used", "written", "seen")
"""Where an entity was mentioned, the strongest rank first: by a call or a person, by the model, in a result."""

_CALL_CHARACTERS = 120
_TITLES: Mapping[Rank, str] = {rank: f"- {rank}: " for rank in RANKS}
_FIRST_OF_EACH = 4
"""So many entities of each content come before all others, as far as their rank allows."""
_BETWEEN, _FIELDS = "; ", ", "
"""What stands between entities, and between the fields of one record."""
_SHORTEST, _LONGEST = 4, 160
_LONG_ARGUMENT = 240
_GAP, _JSON_GAP = "[… ", "… line"
"""What a note begins with that says which lines an excerpt leaves out, and one among the values of JSON."""
SCHEME = "artifact://"
HISTORY = f"{SCHEME}history"
"""The address of all that an agent was shown in its session."""
_EVIDENCE_PREFIX = f"{SCHEME}evidence/"
ADDRESS_SHARE = 0.34
"""Tokens for addresses in addition to those for other entities, as a share of these. An address is as long as six
entities."""
_ADDRESS = pattern(rf"{_EVIDENCE_PREFIX}[0-9a-f]{{16}}\.[a-z]{{2,4}}")
_MARKED = pattern(r"[\d/\\_@]")
_TELLING = pattern(rf"{_MARKED.pattern}|[a-z][A-Z]")
"""With names in camel case requests hold 10 more of 321 values that recorded runs of Toolathlon go on to use."""
_NAMES_RECORD = pattern(r"[\d/@]")
_MARKS = "@#$~.+:%&?=-"
_ENTITY = pattern(
    r"""
      (?:(?=[A-Za-z])[A-Z]*+[a-z.?-]*+                      # words that are neither entity nor key, in one step
      (?![\w@#$~/+:%&=] | ["']?[ ]?[:=])[^\w@#$~./+:%&?=\\-]*+)++
    | \\+[abfnrtv"']?                                       # an escape in quoted text: its letter belongs to no word
    | (?P<key>[^\W\d][\w-]{1,40})["']?[ ]?[:=][ ]?["']?     # a key with a number
      (?P<number>[+-]?\d[\w.,:%+-]{2,40})
    | (?P<word>[A-Za-z]:\\[\w\\.~-]*\w | [@#$~.+:%&?=-]*[\w/][\w@#$~./+:%&?=-]*)
    | [@#$~.+:%&?=-]+                                       # marks without a word, at once rather than one by one
    """,
    re.VERBOSE,
)
_WORD = pattern(r"[^\W_]+")
_FEWEST_ASKED = 5
"""Records of which the user's words name a number, from which on their other fields give way to it in a table: with it
16 of 16 look-ups have all values, without it 15."""
_FIELD = pattern(r"\s*[\"']?(?P<key>[^\W\d][\w-]{0,40})[\"']?\s?[:=](?!/)")
_JSON_KEY = pattern(r"""["']\s?:""")
_AMOUNT = pattern(rf"[+-]?{NUMBER}(?:%|ms|s|px|[kKMGT]i?B?)?")
_ESCAPED = pattern(r"""(?<!\\)\\+(["'])""")
_LONGEST_VALUE = 48
"""Characters of the longest text that is listed with its key. A longer name, mostly a path or a web address, takes the
room of five and comes behind all others. So requests hold 187 of 321 values that recorded runs of Toolathlon go on to
use, and 180 where a long name keeps the place of its rank."""
_SEPARATED = pattern(r"[,;:] |\n")
_TITLED = pattern(r"\W{0,8}((?:[^\W\d_][\w.'-]*\ ){1,4}[^\W\d_][\w.'-]*)\ ?[(\[]")
"""A name before the bracket with the id of its record."""
_KEY_BEFORE = pattern(r"([^\W\d][\w-]{0,40})[\"']?\s?[:=]\s?[\"']?$")
_KEY_END = frozenset(":=")
"""A key that ends where its value begins; one of these is among the last three characters."""


def entity_table(
    contents: Sequence[Content],
    *,
    max_tokens: int,
    counter: Counts,
    earlier: str = "",
    present: Sequence[Content] = (),
    known: str = "",
    prepare: Callable[[Sequence[str]], object] | None = None,
) -> str:
    """The entities of contents that are removed, a line for each rank; empty where none fits.

    Args:
        contents: the removed contents, in their order.
        max_tokens: most tokens of entities. Addresses of results that were kept whole may take a third of that in
            addition, so that they displace no identifier.
        earlier: the tables of earlier cuts, the latest last; their entities count as mentioned before all others.
        present: contents that are kept; their entities are not listed.
        known: text next to the table; entities in it are not listed.
        prepare: counts texts in one pass that ``counter`` is likely to be asked for. At a cut of 16,000 tokens a pass
            for each of some 350 entities took three tenths of the time.
    """
    present_mentions = [mentions(content, subjects) for content, subjects in _with_subjects(present)]
    present_entities = {entity for ranked in present_mentions for entity, _ in ranked}
    removed = [mentions(content, subjects) for content, subjects in reversed([*_with_subjects(contents)])]
    tabled = [[(entity, rank) for entity in entities] for rank, entities in parse(earlier).items()]
    # Of each content some come first, so that the latest ones do not take all room from the others.
    in_turn = [*(ranked[:_FIRST_OF_EACH] for ranked in removed), *(ranked[_FIRST_OF_EACH:] for ranked in removed)]
    best: dict[str, Rank] = {}  # each entity with its strongest rank, in the order in which they are listed
    for entity, rank in chain.from_iterable([*in_turn, *tabled]):
        best[entity] = min(best.get(entity, rank), rank, key=RANKS.index)
    latest_first = [entity for ranked in (*reversed(present_mentions), *removed, *tabled) for entity, _ in ranked]
    unlisted = _outdated([*latest_first, *chain.from_iterable(parse(known).values())]) | present_entities
    asked_words = {word for content in present if content.role == "user" for word in _words(content.words)}
    tokens_left, address_tokens_left = max_tokens, int(ADDRESS_SHARE * max_tokens)
    shortest_rejected = math.inf  # characters of the shortest address that found no room
    ordered: list[tuple[Rank, str]] = []
    known_lines: dict[Rank, str] = {}  # for each rank what is named already
    for number, rank in enumerate(RANKS, start=1):
        # What a weaker line names goes with that line where room gets short.
        weaker = tuple(_TITLES[other] for other in RANKS[number:])
        known_lines[rank] = "\n".join(line for line in known.splitlines() if not line.startswith(weaker))
        tokens_left -= counter.count(_TITLES[rank])
        entities = [name for name, strongest in best.items() if strongest == rank and name not in unlisted]
        records = _asked_records(entities, asked_words)
        ordered += ((rank, name) for name in sorted(entities, key=partial(_order, words=asked_words, records=records)))
    ordered.sort(key=lambda ranked: _is_long(ranked[1]))
    chosen_names: dict[Rank, dict[str, list[str]]] = {rank: {} for rank in RANKS}
    listed = ""
    for at, (rank, entity) in enumerate(ordered):
        is_address = _EVIDENCE_PREFIX in entity
        if tokens_left < _LEAST_COST and not is_address:
            continue
        if prepare is not None and at % _BATCH == 0:
            prepare([*_written(ordered[at : at + _BATCH], chosen_names)])
        if entity in listed or entity in known_lines[rank] or (is_address and len(entity) >= shortest_rejected):
            continue
        record, field = _of_record(entity)
        cost = counter.count(*_written([(rank, entity)], chosen_names))
        if not is_address:
            if cost > tokens_left:
                continue
            tokens_left -= cost
        elif cost > address_tokens_left:
            shortest_rejected = len(entity)
            continue
        else:
            address_tokens_left -= cost
        chosen_names[rank].setdefault(record or entity, []).extend([field] if record else [])
        listed += f"\n{entity}"
    lines: list[str] = []
    for rank, names in filter(itemgetter(1), chosen_names.items()):
        fields_shown = {name: map(_without_key, fields, ["", *fields]) for name, fields in names.items()}
        items = (f"{name} {_FIELDS.join(fields)}".rstrip() for name, fields in fields_shown.items())
        lines.append(_TITLES[rank] + _BETWEEN.join(items))
    return "\n".join(lines)


_BATCH, _LEAST_COST = 64, 4
"""Entities that are counted in one pass, and tokens that each of them takes at least."""


def _written(
    entities: Iterable[tuple[Rank, str]], chosen_names: Mapping[Rank, Mapping[str, Sequence[str]]]
) -> Iterator[str]:
    """The text that each entity adds to the line of its rank, behind the last field of its record where it has one."""
    last_fields: dict[tuple[Rank, str], str] = {}
    for rank, entity in entities:
        record, field = _of_record(entity)
        last = last_fields.get((rank, record)) or next(reversed(chosen_names[rank].get(record, ())), None)
        yield _BETWEEN + entity if last is None else _FIELDS + _without_key(field, last)
        if record:
            last_fields[rank, record] = field


def _of_record(entity: str) -> tuple[str, str]:
    """The record of an entity and the field that it is; no record where it names none."""
    subject, _, value = entity.rpartition(": ")
    record, _, key = subject.rpartition(" ")
    return (record, f"{key}: {value}") if record else ("", entity)


def _without_key(field: str, preceding_text: str) -> str:
    """A field as it is written behind another one of its record: without its key where it has the same."""
    return field.removeprefix(f"{preceding_text.partition(': ')[0]}: ") if preceding_text else field


def _words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())


def _asked_records(entities: Iterable[str], words: Set[str]) -> Set[str]:
    """The records of which the user's words name a number, where these are several."""
    split = (_of_record(entity) for entity in entities if is_number(entity.rpartition(": ")[2]))
    records = {record for record, field in split if not words.isdisjoint(_words(field.partition(": ")[0]))} - {""}
    return records if len(records) >= _FEWEST_ASKED else frozenset()


def _order(entity: str, words: Set[str], records: Set[str]) -> int:
    """The place of an entity: behind others what the user's words do not name of records of which they name a number,
    and last a field with neither a name nor an identifier nor a number of some digits."""
    record, field = _of_record(entity)
    key, _, value = field.rpartition(": ")
    if key != "name" and (len(value) < _SHORTEST or not _TELLING.search(value)):
        return 2
    return int(record in records and key != "name" and words.isdisjoint(_words(key)))


def _is_long(entity: str) -> bool:
    """Tells whether a name is so long that it gives way to shorter ones of any rank."""
    return len(entity.rpartition(": ")[2]) > _LONGEST_VALUE and _EVIDENCE_PREFIX not in entity


def _with_subjects(contents: Sequence[Content]) -> Iterator[tuple[Content, tuple[str, ...]]]:
    """Each content with the records that its responses are about, as the calls that they answer name them."""
    for content, results in zip(contents, pair_results(contents), strict=True):
        calls = [result.call for result in results[: len(content.responses)]]
        yield content, tuple(_subject(call.part.text) if call is not None else "" for call in calls)


@lru_cache(maxsize=512)
def _subject(arguments: str) -> str:
    """The record that a call's arguments name; empty where they name none or several."""
    labels = {
        leaf.text if is_label(leaf.text) else f"{leaf.key} {leaf.text}"
        for leaf in leaves(json.loads(arguments))
        if is_label(leaf.text) or (is_id(leaf.key) and is_number(leaf.text))
    }
    return labels.pop() if len(labels) == 1 else ""


def is_entry(bullet: str) -> bool:
    """Tells whether a bullet is a line of an entity table."""
    return bullet.startswith(tuple(_TITLES.values()))


def calls_line(contents: Sequence[Content], *, max_tokens: int, counter: Counts) -> str:
    """The calls of contents that say nothing else, the latest first, as a table of what was used, while they fit."""
    calls = (call for content in reversed(contents) for call in reversed(content.calls))
    line = ""
    for name in dict.fromkeys(f"{call.name} {call.text}"[:_CALL_CHARACTERS] for call in calls):
        longer = f"{line}{_BETWEEN}{name}" if line else _TITLES["used"] + name
        if counter.count(longer) > max_tokens:
            break
        line = longer
    return line


def parse(tables: str) -> dict[Rank, list[str]]:
    """The entities of tables, by rank, the latest mentioned first."""
    by_rank: dict[Rank, list[str]] = {rank: [] for rank in RANKS}
    for line in reversed(tables.splitlines()):
        for rank, title in _TITLES.items():
            if line.startswith(title):
                for item in line.removeprefix(title).split(_BETWEEN):
                    record = key = ""
                    for field in item.split(_FIELDS):
                        entity = f"{record} {field if ': ' in field or not key else f'{key}: {field}'}".lstrip()
                        record, key = _of_record(entity)[0], entity.rpartition(": ")[0].rpartition(" ")[2]
                        by_rank[rank].append(entity)
    return by_rank


class _Number(NamedTuple):
    """An entity that is a number: the words before it, and whether these name a record."""

    subject: str
    number: str
    named: bool


def _number(entity: str) -> _Number | None:
    """An entity as a number with its key; None where it is no number, or is itself the id of a record."""
    subject, _, number = entity.rpartition(": ")
    if not subject or not (is_number(number) or all(map(_AMOUNT.fullmatch, number.split(" ")))):
        return None
    record, _, key = subject.rpartition(" ")
    return None if is_id(key) and not record else _Number(subject, number, _NAMES_RECORD.search(record) is not None)


def _outdated(entities: Sequence[str]) -> set[str]:
    """The numbers that are out of date, among entities given from the latest to the earliest.

    Where a record has several numbers for a key, all but the latest; where no record is known, all of the key's
    numbers.
    """
    numbers: dict[tuple[str, bool], dict[str, str]] = defaultdict(dict)
    for entity in entities:
        if (number := _number(entity)) is not None:
            numbers[number.subject, number.named].setdefault(number.number, entity)
    return {
        entity
        for (_, names_record), by_number in numbers.items()
        if len(by_number) > 1
        for entity in list(by_number.values())[1 if names_record else 0 :]
    }


def read_mentions(contents: Sequence[Content]) -> None:
    """Reads what contents mention before a cut asks for it, which would take a third of its time to read it."""
    for content, subjects in _with_subjects(contents):
        mentions(content, subjects)


@with_content
def mentions(content: Content, subjects: tuple[str, ...] = ()) -> tuple[tuple[str, Rank], ...]:
    """The entities that a content mentions, in the order of their first mention, each with its strongest rank.

    Args:
        subjects: the record that each response of the content is about, as its call names it; empty for none.
    """
    ranks: dict[str, Rank] = {}
    about = iter(subjects)
    for kind, tool, value, usual_rank in _parts_with_rank(content):
        for leaf in leaves(value, next(about, "") if kind == "response" else ""):
            if leaf.text.startswith(_JSON_GAP):
                continue
            is_field = kind == "response" and leaf.record and leaf.key and _is_value(leaf.text)
            if is_field or is_number(leaf.text.strip()):
                entity = f"{leaf.record} {leaf.key}: {' '.join(leaf.text.split())}".lstrip()
                if len(entity) <= _LONGEST:
                    ranks[entity] = min(ranks.get(entity, usual_rank), usual_rank, key=RANKS.index)
                continue
            if kind == "response" and (address := _ADDRESS.match(leaf.text)):  # what follows it says how to read it
                ranks.setdefault(f"{tool}: {address.group()}" if tool else address.group(), "used")
                continue
            rank = "seen" if kind == "call" and len(leaf.text) > _LONG_ARGUMENT else usual_rank
            text = _ESCAPED.sub(r"\1", leaf.text) if "\\" in leaf.text else leaf.text
            for entity in _entities_with_context(text, leaf.record, in_records=kind == "response"):
                if kind == "response" and _ADDRESS.fullmatch(entity):
                    ranks.setdefault(f"{tool}: {entity}" if tool else entity, "used")
                    continue
                ranks[entity] = min(ranks.get(entity, rank), rank, key=RANKS.index)
    numbers: dict[str, list[str]] = defaultdict(list)
    for entity in ranks:
        number = _number(entity)
        if number is not None and number.named:
            numbers[number.subject].append(entity)
    ambiguous = {entity for entities in numbers.values() if len(entities) > 1 for entity in entities}
    return tuple((entity, rank) for entity, rank in ranks.items() if entity not in ambiguous)


def _is_value(text: str) -> bool:
    """Tells whether a text is one value, short enough to be listed with its key, and no sentence about others."""
    if len(text) > _LONGEST_VALUE or _SEPARATED.search(text):
        return False
    return all(entity == text or is_number(entity) or not _MARKED.search(entity) for entity in entities_of(text))


def _entities_with_context(text: str, record: str, in_records: bool) -> Iterator[str]:
    """The entities in a text of a ``record``, in order and with repetitions.

    A key and its number get the label before them in their line, else the one that the lines around them begin with,
    else the record; so do a key and its identifier ``in_records``. Another number gets the label before it in its
    line; without one it is no entity.
    """
    label = label_key = naming = ""
    for line in text.split("\n"):
        stripped = line.strip()
        field = _FIELD.match(line)
        key = field["key"] if field is not None else ""
        is_json = _JSON_KEY.search(line) is not None  # where what comes first need not name the rest
        # A line that is no field begins a record. So does the id of one, but not an id inside of it.
        begins = not key or (is_id(key) and (not label or key == label_key))
        if begins or is_json:
            label, label_key = "", key
        if stripped.startswith(_GAP):
            continue
        if stripped.startswith(("{", "[")) and (value := read(stripped.rstrip(","))) is not None:
            for leaf in leaves(value, record):
                if is_number(leaf.text.strip()):
                    yield f"{leaf.record} {leaf.key}: {leaf.text}".lstrip()
                else:
                    yield from (entity for entity in entities_of(leaf.text) if not is_number(entity))
            continue
        if not _TELLING.search(line):
            continue  # without one of these characters there is no entity
        nearest = ""
        for match in _ENTITY.finditer(line):
            entity = _entity(match)
            owner = (nearest or label or record) if in_records else ""
            if match["key"] and not _AMOUNT.fullmatch(match["number"].rstrip(".,:")):
                yield f"{owner} {entity}".lstrip()
            elif match["key"] and is_id(match["key"]):
                yield f"{record} {entity}".lstrip()
                label = label or (entity.replace(":", "") if begins and not is_json else "")
            elif match["key"]:
                yield f"{nearest or label or record} {entity}".lstrip()
            elif not is_number(entity.lstrip("~=")):
                start = match.start()
                has_key = in_records and not _KEY_END.isdisjoint(line[max(0, start - 3) : start])
                key_match = _KEY_BEFORE.search(line, max(0, start - 50), start) if has_key else None
                own_key = key_match[1] if key_match is not None else ""
                if entity:
                    yield f"{owner} {own_key}: {entity}" if own_key and owner not in ("", entity) else entity
                if is_label(entity) and not is_json and (not own_key or (is_id(own_key) and naming in ("", own_key))):
                    naming = naming or own_key
                    if not label and in_records and (titled := _TITLED.match(line, 0, match.start())):
                        yield f"{entity} name: {titled[1]}"
                    nearest, label = entity, label or (entity if begins else "")
            elif nearest:
                yield f"{nearest} {entity}"


_Kind: TypeAlias = Literal["said", "call", "response"]
_TOOL_RANKS: Mapping[_Kind, Rank] = {"call": "used", "response": "seen"}


def _parts_with_rank(content: Content) -> Iterator[tuple[_Kind, str, JSON, Rank]]:
    """The parts of a content, each with its kind, the tool's name, the value and the rank of the entities in it.

    Of another agent's turn these are the quotes, without what the host wrote around them.
    """
    for quote in content.quotes:
        value = None if quote.kind == "said" else read(quote.text)
        value = quote.text if value is None else value
        yield quote.kind, quote.name, value, _TOOL_RANKS.get(quote.kind, "written")
    for part in () if content.agent else content.parts:
        if part.kind == "text":
            yield "said", "", part.text, "used" if content.role == "user" else "written"
        elif part.kind == "call" or part.kind == "response":
            yield part.kind, part.name, json.loads(part.text), _TOOL_RANKS[part.kind]


_URI = rf"""(?<="){SCHEME}[^"\\\n]{{1,200}}\.\w{{1,8}}(?=")|{SCHEME}\w[^\s"'`<>()\[\]{{}}|\\^,;#]*"""
"""An address that fills a JSON string, and may hold blanks, or that ends at the next character no address has."""


def artifact_uris(text: str, known_uris: Iterable[str] = ()) -> list[str]:
    """All addresses of artifacts in a text, in order and with repetitions.

    Args:
        known_uris: addresses that are recognized whatever characters they hold.
    """
    if SCHEME not in text:
        return []
    unusual = {uri for uri in known_uris if uri.startswith(SCHEME) and artifact_uris(uri) != [uri]}
    written = "|".join(map(re.escape, sorted(unusual, key=len, reverse=True)))
    pattern = rf"({written})(?![./-]?\w)|{_URI}" if unusual else _URI
    return [match[0] if match.lastindex else match[0].rstrip(".:!?*_~…") for match in re.finditer(pattern, text)]


def entities_of(text: str) -> Iterator[str]:
    """The entities in a text, in order and with repetitions."""
    return filter(None, map(_entity, _ENTITY.finditer(text)))


def _entity(match: re.Match[str]) -> str:
    """The entity in a match, a number with its key; empty where there is none."""
    if match["key"]:
        return f"{match['key']}: {match['number'].rstrip('.,:')}"
    word = (match["word"] or "").rstrip(_MARKS).strip(".:-=&?")
    if word.startswith("/") and match.string[match.start("word") - 1 : match.start("word")] == "<":
        return ""  # the end of an element of HTML or XML
    telling = _MARKED if match.string.startswith('":', match.end()) else _TELLING
    return word if _SHORTEST <= len(word) <= _LONGEST and telling.search(word) else ""
