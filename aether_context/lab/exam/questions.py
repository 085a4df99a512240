"""The questions of an exam, made from raw texts by a reading of their own: what calls used of what came before.

A question is a pair of a model call and a need: a value or a quoted line in the arguments of the call's own tool calls,
or a value in its words, that first stood in a tool's result or a person's message, that is telling, and that nobody has
mentioned lately.

Nothing here, and nothing that this imports, chooses, shortens, searches or packs texts: what is examined does not
write its own questions. The import contract in ``pyproject.toml`` holds it to that.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, islice
from typing import Literal, NamedTuple, TypeAlias, get_args

from aether_context.canonical import JSON, hash_text
from aether_context.pack import Content, Part

Kind: TypeAlias = Literal["line", "argument", "text"]
"""``line``: a line that a call's arguments quote; ``argument``: a value in them; ``text``: one in the call's words."""
KINDS: tuple[Kind, ...] = get_args(Kind)
Source: TypeAlias = Literal["results", "acts", "people"]
"""Where a need first stood: in a tool's result, in a short one, such as an act gives, or in a person's message."""
SOURCES: tuple[Source, ...] = get_args(Source)

ADDRESS = re.compile(r"artifact://[\w./~%+-]*\w")
_GAP = 200
"""Characters between a value and a word of its line, at most, for the two to stand together."""
_MOST_OF_CALL, _MOST_OF_SESSION = 3, 40
"""Questions of one call, and of one agent's session: a session of a thousand calls would outweigh all else."""
_MOST_MESSAGES = 6
"""Messages that hold a need, at most: of more of them one or another always stands in a request."""
_SHORT_RESULT = 400
"""Characters of a result that is what an act gave: a booking's number, the id of what was made."""
_SHORTEST, _LONGEST, _SHORTEST_LINE, _LONGEST_LINE = 4, 120, 30, 300
_MOST_DEPTH = 50
"""The depth down to which JSON is read."""
_CHARACTERS_OF_QUERY = 300
_TOKEN_BYTES = 4

_VALUE = re.compile(r"[A-Za-z0-9_@][A-Za-z0-9_./@:#-]{2,}[A-Za-z0-9_]")
_TRIMMED = "./:-#"
_WORD = re.compile(r"[A-Za-z_]{4,}|\d{2,}")
_MIXED = re.compile(r"(?=.*\d)(?=.*[A-Za-z])|.*[/_@]|.*[a-z][A-Z]|\d[\d.,:-]{3}")
_LINE_NUMBER = re.compile(r"^\s*\d+[:|\t→]\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question whether a call could know what it used.

    Attributes:
        call: the index of the call among those of its session.
        need: the value or the line.
        words: words beside it where it first stood, of which one stands beside it where it is answered.
        place: the index of the message in which it first stood.
        stored: whether that message shows an extract of the text.
        source: who told it first.
        queries: the words that the model has at the call, the need itself left out: its arguments with their names, and
            its text.
    """

    kind: Kind
    call: int
    need: str
    words: tuple[str, ...]
    place: int
    stored: bool
    source: Source
    queries: tuple[str, ...]

    def is_in(self, text: str) -> bool:
        """Tells whether the need stands in a text."""
        return next(_occurrences(self.need, text), None) is not None

    def is_answered(self, text: str) -> bool:
        """Tells whether the need stands in a text beside a word of its line, or as a line."""
        for at in _occurrences(self.need, text):
            around = text[max(0, at - _GAP) : at] + " " + text[at + len(self.need) :][:_GAP]
            if self.kind == "line" or not self.words or any(word in around for word in self.words):
                return True
        return False


def _occurrences(need: str, text: str) -> Iterator[int]:
    """The indices of a need in a text where it is no part of a longer word."""
    at = text.find(need)
    while at >= 0:
        end = at + len(need)
        if not text[max(0, at - 1) : at].isalnum() and not text[end : end + 1].isalnum():
            yield at
        at = text.find(need, end)


class _Message(NamedTuple):
    place: int
    text: str
    source: Source | None = None
    is_stored: bool = False


def questions(
    history: Sequence[Content],
    calls: Sequence[tuple[int, int]],
    *,
    always: str = "",
    stored: Mapping[str, str] | None = None,
    readers: Collection[str] = (),
) -> tuple[Question, ...]:
    """The questions about the calls of a session, in their order; of many those that a hash chooses.

    Args:
        calls: for each the number of messages in front of its answer, and the tokens since a need's last mention, which
            no question is about up to then.
        always: what stands in each request, its instruction and declarations.
        stored: whole texts of which messages show extracts, by the address that stands there.
        readers: the tools that read texts again, whose calls and results are nobody's need.
    """
    messages = [_Message(-1, always), *_messages(history, stored or {}, readers)]
    ends = list(accumulate(len(message.text.encode("utf-8", "replace")) // _TOKEN_BYTES + 1 for message in messages))
    needs = [
        (kind, call, need)
        for call, (length, _) in enumerate(calls)
        if length < len(history) and history[length].role == "model"
        for kind, need in _needs(history[length], readers)
    ]
    holders = _holders(messages, {need for _, _, need in needs})
    needs = [key for key in needs if (first := holders.get(key[2])) is not None and messages[first].source]
    needs.sort(key=lambda key: hash_text(f"{key[1]} {key[2]} {key[0]}"))
    taken = defaultdict[int, list[str]](list)

    def asked() -> Iterator[Question]:
        for kind, call, need in needs:
            length, recent_tokens = calls[call]
            if len(taken[call]) == _MOST_OF_CALL or any(need in other for other in taken[call]):
                continue
            past = [at for at, message in enumerate(messages) if message.place < length]
            holding = [at for at in past if next(_occurrences(need, messages[at].text), None) is not None]
            is_recent = not holding or ends[past[-1]] - ends[holding[-1]] <= recent_tokens
            if is_recent or len(holding) > _MOST_MESSAGES or not (source := messages[holding[0]]).source:
                continue
            taken[call].append(need)
            yield Question(
                kind=kind, call=call, need=need, words=_words_beside(need, source.text), place=source.place,
                stored=source.is_stored, source=source.source,
                queries=tuple(_queries(history[length], need, readers)),
            )  # fmt: skip

    return tuple(sorted(islice(asked(), _MOST_OF_SESSION), key=lambda question: (question.call, question.need)))


def _messages(history: Sequence[Content], stored: Mapping[str, str], readers: Collection[str]) -> Iterator[_Message]:
    """The parts of a history as texts; of a result that was stored its whole text, where it first came."""
    read: set[str] = set()
    for place, content in enumerate(history):
        for part in content.parts:
            source = _source(content, part, readers)
            names = ADDRESS.findall(part.text) if source in ("results", "acts") else ()
            address = next((name for name in names if name in stored and name not in read), "")
            read.add(address)
            if address:
                yield _Message(place, plain_text(stored[address]), "results", True)
            else:
                yield _Message(place, said(part), source)


def _source(content: Content, part: Part, readers: Collection[str]) -> Source | None:
    """What tells a need in a part first; None for what the model and other agents say."""
    if part.kind == "response":
        is_short = len(said(part)) <= _SHORT_RESULT
        return None if part.name in readers else "acts" if is_short else "results"
    return "people" if part.kind == "text" and content.role == "user" and not content.agent else None


def _needs(answer: Content, readers: Collection[str]) -> Iterator[tuple[Kind, str]]:
    """The quoted lines and the telling values of an answer, each once."""
    arguments = _arguments(answer, readers)
    lines = (line.strip() for text in arguments for line in text.splitlines())
    needs: dict[str, Kind] = dict.fromkeys(_values(answer.text), "text")
    needs |= {value: "argument" for text in arguments for value in _values(text)}
    needs |= {line: "line" for line in lines if _SHORTEST_LINE <= len(line) <= _LONGEST_LINE}
    yield from ((kind, need) for need, kind in needs.items())


def _arguments(answer: Content, readers: Collection[str]) -> list[str]:
    """The texts and numbers in the arguments of an answer's calls."""
    return [text for part in answer.calls if part.name not in readers for text in _leaves(parsed(part.text))]


def _values(text: str) -> Iterator[str]:
    """Values that a model cannot make up: with a digit and a letter, or a sign of paths and names, or long numbers."""
    for value in (word.strip(_TRIMMED) for word in _VALUE.findall(text)):
        if _SHORTEST <= len(value) <= _LONGEST and _MIXED.match(value):
            yield value


def _holders(messages: Sequence[_Message], wanted: Collection[str]) -> dict[str, int]:
    """The indices of the first messages in which needs stand as words or lines."""
    holders: dict[str, int] = {}
    for at, message in enumerate(messages):
        parts = {word.strip(_TRIMMED) for word in set(_VALUE.findall(message.text))}
        for line in message.text.splitlines():
            parts |= {line.strip(), _LINE_NUMBER.sub("", line).strip()}
        for need in parts & set(wanted):
            holders.setdefault(need, at)
    return holders


def _words_beside(need: str, source: str) -> tuple[str, ...]:
    """Words of the line in which a need stands; of a text that is nothing else, words of its beginning."""
    line = next((line for line in source.splitlines() if need in line), source)
    at = line.find(need)
    near = line[max(0, at - _GAP) : at] + " " + line[at + len(need) :][:_GAP]
    for text in (near, source.replace(need, " ")[: 2 * _GAP]):
        if words := [word for word in _WORD.findall(text) if word.lower() not in need.lower()]:
            return tuple(words[:60])
    return ()


def _queries(answer: Content, need: str, readers: Collection[str]) -> Iterator[str]:
    """The words of an answer without a need: its arguments with their names, and its text."""
    calls = (parsed(part.text) for part in answer.calls if part.name not in readers)
    names = " ".join(name for arguments in calls if isinstance(arguments, dict) for name in arguments)
    values = " ".join(_arguments(answer, readers)).replace(need, " ")[:_CHARACTERS_OF_QUERY]
    for text in (f"{values} {names}", answer.text.replace(need, " ")):
        if len(query := " ".join(text.split())[: 2 * _GAP]) >= _SHORTEST:
            yield query


def texts(content: Content) -> Iterator[str]:
    """All texts in a content: its text parts, and the strings and numbers in calls and responses."""
    for part in content.parts:
        if part.kind in ("call", "response"):
            yield from _leaves(parsed(part.text))
        elif part.kind == "text":
            yield part.text


def _leaves(value: JSON) -> Iterator[str]:
    """The strings and numbers in a JSON value."""
    if isinstance(value, (dict, list)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _leaves(item)
    elif value is not None and not isinstance(value, bool):
        yield str(value)


def said(part: Part) -> str:
    """What a part says, as lines; of arguments and results the keys and values."""
    return plain_text(part.text) if part.kind in ("call", "response") else part.text if part.kind == "text" else ""


def plain_text(text: str) -> str:
    """A text; of JSON its keys and values, as lines."""
    return "\n".join(_lines_of(text))


def _lines_of(text: JSON, depth: int = 0) -> Iterator[str]:
    """The lines of a text; of a JSON object a line for its short values, and then those of the others."""
    if isinstance(text, str):
        value = parsed(text)
        yield from [text] if value is None or depth > _MOST_DEPTH else _lines_of(value, depth + 1)
    elif depth > _MOST_DEPTH:
        return
    elif isinstance(text, dict):
        short = {key: value for key, value in text.items() if not isinstance(value, (dict, list)) and _is_short(value)}
        if short:
            yield ", ".join(f"{key}: {value}" for key, value in short.items())
        for key in (key for key in text if key not in short):
            yield from _lines_of(text[key], depth + 1)
    elif isinstance(text, list):
        for value in text:
            yield from _lines_of(value, depth + 1)
    elif text is not None:
        yield str(text)


@lru_cache(maxsize=4_096)
def parsed(text: str) -> JSON:
    """The value of a JSON text; None where it is none."""
    try:
        return json.loads(text) if text[:1] in ("{", "[", '"') else None
    except (ValueError, RecursionError):
        return None


def _is_short(value: JSON) -> bool:
    return len(text := str(value)) <= _GAP and "\n" not in text and text[:1] not in ("{", "[")
