"""The questions of an exam, made from raw texts by a reading of their own.

Nothing here, and nothing that this imports, chooses, shortens, searches or packs texts: what is examined does not
write its own questions. The import contract in ``pyproject.toml`` holds it to that.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from aether_context.canonical import JSON, hash_text
from aether_context.pack import Content

Kind: TypeAlias = Literal["value", "date", "decision", "order", "file", "error", "todo"]
"""``value``: a number or identifier beside the record that it belongs to; ``date``: one beside what it is about;
``order``: a sentence of the user that is to hold from now on; ``file``: one that a call changed; ``error``: the line
that says what failed; ``todo``: an item that is open."""
KINDS: tuple[Kind, ...] = get_args(Kind)

ADDRESS = re.compile(r"artifact://[\w./~%+-]*\w")
_GAP = 200
"""Characters between an answer and its record, at most, for the two to stand together."""
_MOST: Mapping[Kind, int] = {"value": 4, "date": 3, "decision": 2, "order": 4, "file": 4, "error": 2, "todo": 6}
"""Questions that one message gives, at most: a listing of a thousand lines would outweigh all else."""
_MOST_SEEN, _MOST_DEPTH = 200, 50
"""Occurrences of an answer that are looked at, and the depth down to which JSON is read."""
_ENOUGH = 0.8
"""The share of a sentence's words that stand together where the sentence does."""

_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")
_WORD = re.compile(r"[^\W\d_]{4,}|\w*\d\w*")
_TOKEN = re.compile(r"[$€£]?\w[\w.,/@#:%+-]*")
_FIGURE = re.compile(r"[$€£]?\d[\d,]*\d(?:\.\d+)?%?|\d\.\d+%?")
_IDENTIFIER = re.compile(r"(?=.{4})[A-Za-z](?=.*(?:[\d_/]|[.-]\w|[a-z][A-Z])).*")
_LINE_NUMBER = re.compile(r"^\s*\d+[:|\t→]")
_MONTHS = "(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*"
_DATE = re.compile(
    rf"\b(?:\d{{4}}-\d\d-\d\d|\d{{1,2}}/\d{{1,2}}/\d{{2,4}}|\d{{1,2}}(?:st|nd|rd|th)? {_MONTHS}(?:,? \d{{4}})?"
    rf"|{_MONTHS} \d{{1,2}}(?:st|nd|rd|th)?(?:,? \d{{4}})?)\b"
)
_DECIDES = re.compile(
    r"\b(?:decided|decision|let's (?:go|use|keep)|(?:we|i)(?:'ll| will| are going to)? (?:go with|use|keep|take)|going"
    r" with|agreed|settled on|chose|opted)\b",
    re.IGNORECASE,
)
_FAILS = re.compile(
    r"^\s*(?:[\w.]*(?:Error|Exception)\b\s*[:(]|(?:error|fatal|panic|fail(?:ed|ure)?)\b\s*[:!]|\[ERROR\])"
    r"|: (?:fatal )?error:|command not found|No such file|permission denied"
    r"|exit(?:ed)?(?: with)? (?:code|status) [1-9]|BUILD FAILURE|\btimed out\b",
    re.IGNORECASE,
)
_CHANGES = re.compile(
    r"write|edit|creat|patch|replace|insert|append|save|rename|delet|remov|\bmove|modif", re.IGNORECASE
)
_SHELL_CHANGES = re.compile(r"\b(?:create|edit|sed -i|str_replace|insert|mv|rm|tee)\b|>>?\s*[\w/.]")
_CHANGED = ("writ", "wrote", "edit", "creat", "chang", "modif", "updat", "patch", "replac", "insert", "sav", "renam",
            "delet", "remov", "mov", "append")  # fmt: skip
_PATH = re.compile(r"(?:[\w.@-]*/)+[\w.@-]*\w|\b[\w@-]+\.[A-Za-z]\w{0,4}\b")
_BOX = re.compile(r"^\s*[-*]?\s*\[([ xX])\]\s+(.+)$")
_OPEN, _DONE = {"pending", "in_progress", "open", "todo"}, {"completed", "done", "cancelled", "closed"}
_STOP = frozenset((
    "this", "that", "with", "from", "have", "will", "your", "they", "them", "then", "than", "there", "here", "what",
    "when", "where", "which", "would", "could", "should", "about", "into", "over", "some", "such", "also", "just",
    "like", "been", "were", "does", "done", "make", "made", "more", "most", "much", "very", "only", "other", "these",
    "those", "please", "want", "need", "using", "used",
))  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question about what stood in one message.

    Attributes:
        text: the question in words.
        record: words of which one stands beside the answer; empty where the answer is a sentence.
        answer: the answer; of a sentence its telling words.
        place: the index of the message in the host's list; from the call after it on the answer could be needed.
        until: the index of a later message that says it again, changes it or closes it; None where none does.
        stored: whether the message shows an extract of the text that the question is about.
    """

    kind: Kind
    text: str
    record: tuple[str, ...]
    answer: tuple[str, ...]
    place: int
    until: int | None = None
    stored: bool = False

    def find(self, text: str) -> int:
        """The index at which the answer and its record stand together in a `plain_text`; -1 where they do not."""
        if self.record:
            for at in _occurrences(text, self.answer[0]):
                around = text[max(0, at - _GAP) : at + len(self.answer[0]) + _GAP]
                if any(record in around for record in self.record):
                    return at
            return -1
        size = 2 * sum(map(len, self.answer)) + _GAP
        for term in sorted(self.answer, key=len, reverse=True)[:2]:
            for at in _occurrences(text, term):
                around = text[max(0, at - size) : at + size]
                if sum(other in around for other in self.answer) >= _ENOUGH * len(self.answer):
                    return at
        return -1

    def is_right(self, reply: str) -> bool:
        """Tells whether a reader's reply holds the answer; of a file, whether it says that it was changed."""
        if self.kind == "file":
            if verdict := _VERDICT.match(reply):
                return verdict[1].lower() == "yes"
            return _DENIES.search(reply) is None and _AFFIRMS.search(reply) is not None
        return replace(self, record=("",) if self.record else ()).find(plain_text(reply)) >= 0


_VERDICT = re.compile(r"\W*(yes|no)\b", re.IGNORECASE)
_DENIES = re.compile(r"\b(?:no|not|never|nothing|unclear|unknown|un(?:chang|modif|edit)\w*)\b|n['’]t\b", re.IGNORECASE)
_AFFIRMS = re.compile(rf"\b(?:{'|'.join(_CHANGED)})", re.IGNORECASE)


def _occurrences(text: str, words: str) -> Iterator[int]:
    """The first indices of words in a text that are no part of longer ones."""
    at, seen = text.find(words), 0
    while at >= 0 and (seen := seen + 1) <= _MOST_SEEN:
        end = at + len(words)
        if not text[at - 1 : at].isalnum() and not text[end : end + 1].isalnum():
            yield at
        at = text.find(words, end)


def plain_text(text: str) -> str:
    """A text in one line and lower case; of JSON its keys and values."""
    return " ".join(" ".join(lines_of(text)).lower().split())


def lines_of(text: JSON, depth: int = 0) -> Iterator[str]:
    """The lines of a text; of a JSON object a line for its short values, and then those of the others."""
    if isinstance(text, str):
        value = _parsed(text)
        yield from text.splitlines() if value is None or depth > _MOST_DEPTH else lines_of(value, depth + 1)
    elif depth > _MOST_DEPTH:
        return
    elif isinstance(text, dict):
        short = {key: value for key, value in text.items() if not isinstance(value, (dict, list)) and _is_short(value)}
        if short:
            yield ", ".join(f"{key}: {value}" for key, value in short.items())
        for key in text.keys() - short.keys() if len(text) > len(short) else ():
            yield from lines_of(text[key], depth + 1)
    elif isinstance(text, list):
        for value in text:
            yield from lines_of(value, depth + 1)
    elif text is not None:
        yield str(text)


def _parsed(text: str) -> JSON:
    """The value of a JSON text; None where it is none."""
    try:
        return json.loads(text) if text[:1] in ("{", "[", '"') else None
    except (ValueError, RecursionError):
        return None


def _is_short(value: JSON) -> bool:
    return len(text := str(value)) <= _GAP and "\n" not in text and text[:1] not in ("{", "[")


def questions(contents: Sequence[Content], stored: Mapping[str, str]) -> tuple[Question, ...]:
    """The questions about messages, in their order.

    Args:
        stored: whole texts of which messages show extracts, by the address that stands there.
    """
    closed: list[Question] = []
    asked: dict[tuple[Kind, str], Question] = {}
    read: set[str] = set()
    for place, content in enumerate(contents):
        fresh: dict[tuple[Kind, str], Question | None] = {}
        for key, question in _of_content(place, content, stored, read):
            is_clear = key not in fresh or ((other := fresh[key]) is not None and other.answer == question.answer)
            fresh[key] = question if is_clear else None
        for key in fresh.keys() & asked.keys():
            closed.append(replace(asked.pop(key), until=place))
        for kind, most in _MOST.items():
            clear = [key for key, question in fresh.items() if question and question.text and key[0] == kind]
            clear.sort(key=lambda key: hash_text(key[1]))  # which of many is chance, and the same at each reading
            asked |= {key: chosen for key in clear[:most] if (chosen := fresh[key])}
    return tuple(
        sorted((*closed, *asked.values()), key=lambda question: (question.place, question.kind, question.text))
    )


_Keyed: TypeAlias = tuple[tuple[Kind, str], Question]


def _of_content(place: int, content: Content, stored: Mapping[str, str], read: set[str]) -> Iterator[_Keyed]:
    """The questions about one message, each with what makes it the same question in a later one."""
    for part in content.parts:
        if part.kind == "call":
            yield from _changed_files(place, part.name, part.text)
            yield from _items(place, part.text)
        elif part.kind == "response":
            address = next((name for name in ADDRESS.findall(part.text) if name in stored and name not in read), "")
            read.add(address)
            lines = list(lines_of(stored.get(address, part.text)))
            found = (*_values(place, lines), *_dates(place, lines), *_sentences(place, "error", lines, _FAILS.search))
            yield from ((key, replace(question, stored=bool(address))) for key, question in found)
        elif part.kind == "text":
            lines = [sentence for line in lines_of(part.text) for sentence in _SENTENCE.split(line)]
            yield from (*_values(place, lines), *_dates(place, lines), *_items(place, part.text))
            yield from _sentences(place, "decision", lines, _DECIDES.search)
            if content.role == "user" and not content.agent:
                own_lines = (each for line in lines_of(own_words(part.text)) for each in _SENTENCE.split(line))
                yield from _sentences(place, "order", own_lines, is_standing_order)


def _values(place: int, lines: Iterable[str]) -> Iterator[_Keyed]:
    """Of each line the first number or identifier behind the record that it belongs to."""
    for line in lines:
        words = _TOKEN.findall(_DATE.sub(" ", _LINE_NUMBER.sub("", line[: 2 * _GAP])))
        tokens = [token.rstrip(".,:;-+#@/") for token in words]
        # A numbered record comes before the name of a field, and that before a plain word.
        for is_record, is_answer in ((_is_numbered, _is_figure), (_is_name, _is_value), (_is_word, _is_value)):
            behind = ((at, token) for at, token in enumerate(tokens) if is_answer(token))
            pairs = ((record, token) for at, token in behind for record in tokens[:at][::-1] if is_record(record))
            if pair := next(pairs, None):
                yield _pair("value", place, *pair)
                break


_is_figure, _is_name = _FIGURE.fullmatch, _IDENTIFIER.fullmatch


def _is_numbered(token: str) -> bool:
    return _is_name(token) is not None and any(map(str.isdigit, token))


def _is_value(token: str) -> bool:
    return _is_figure(token) is not None or _is_numbered(token)


def _is_word(token: str) -> bool:
    return bool(_WORD.fullmatch(token)) and _tells(token) and not token[0].isdigit()


def _dates(place: int, lines: Iterable[str]) -> Iterator[_Keyed]:
    for line in lines:
        for match in _DATE.finditer(line[: 4 * _GAP]):
            around = line[max(0, match.start() - _GAP // 2) : match.start()] + " " + line[match.end() :][: _GAP // 2]
            words = [word for word in _WORD.findall(around) if _tells(word) and not word.isdigit()]
            if words:
                yield _pair("date", place, max(words, key=len), match.group())


def _tells(word: str) -> bool:
    return word.lower() not in _STOP


def _pair(kind: Kind, place: int, record: str, answer: str) -> _Keyed:
    text = f"Which {'number or identifier' if kind == 'value' else kind} stands with {record}?"
    answers, records = (answer.lower(),), (record.lower(),)
    return (kind, records[0]), Question(kind=kind, text=text, record=records, answer=answers, place=place)


def _sentences(place: int, kind: Kind, lines: Iterable[str], tells: Callable[[str], object]) -> Iterator[_Keyed]:
    """The sentences of which a test is true."""
    for line in lines:
        if 12 <= len(line) <= 2 * _GAP and tells(line):
            yield from _sentence(place, kind, line)


def _sentence(place: int, kind: Kind, line: str) -> Iterator[_Keyed]:
    terms = tuple(dict.fromkeys(word for word in map(str.lower, _WORD.findall(line)) if _tells(word)))[:12]
    if len(terms) > 1:
        text = f"Which {kind} begins {' '.join(line.split()[:4])!r}, and how does it go on?"
        key = kind, " ".join(line.lower().split())
        yield key, Question(kind=kind, text=text, record=(), answer=terms, place=place)


def _changed_files(place: int, name: str, arguments: str) -> Iterator[_Keyed]:
    for line in lines_of(arguments):
        if len(line) <= 2 * _GAP and (_CHANGES.search(name) or _SHELL_CHANGES.search(line)):
            for path in _PATH.findall(line)[:1]:
                text, answer = f"Was {path} changed?", path.lower()
                yield ("file", answer), Question(kind="file", text=text, record=_CHANGED, answer=(answer,), place=place)


def _items(place: int, text: str) -> Iterator[_Keyed]:
    """The open items of lists; an item that is done closes the question about it."""
    pairs = [(box[1].strip() == "", box[2]) for line in lines_of(text) if (box := _BOX.match(line[:_GAP]))]
    if text[:1] == "{" and any(f'"{word}"' in text for word in _OPEN | _DONE):
        pairs += _listed(_parsed(text))
    for is_open, item in pairs:
        for key, question in _sentence(place, "todo", item):
            yield key, question if is_open else replace(question, text="")


def _listed(value: JSON, depth: int = 0) -> Iterator[tuple[bool, str]]:
    """The items in a JSON value, each with whether it is open."""
    if isinstance(value, dict):
        status = str(value.get("status", "")).lower()
        texts = [value[name] for name in ("content", "text", "title", "task", "description") if value.get(name)]
        if status in _OPEN | _DONE and texts and isinstance(texts[0], str):
            yield status in _OPEN, texts[0]
    inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    for item in inner if depth < _MOST_DEPTH else ():
        yield from _listed(item, depth + 1)


# Standing orders in a user's words: sentences of which a reader would say that they hold from now on.
#
# Orders, prohibitions, preferences and corrections are such. The words that make them are in orders.toml, in English.
# A task ends once it is done, and is none, nor is what the user tells, asks or quotes. An order that is overlooked here
# is one question less, and a sentence that is none a wrong question: in doubt a sentence is none.


def own_words(text: str) -> str:
    """A message without what its writer pasted into it."""
    return _patterns()["pasted"].sub("", text)


def is_standing_order(sentence: str) -> bool:
    """Tells whether a user's sentence is to hold from now on."""
    patterns = _patterns()
    sentence = patterns["quoted"].sub("x", sentence).strip(" .!*_\t")
    if patterns["told"].search(sentence) or (sentence.endswith("?") and not patterns["request"].search(sentence)):
        return False
    return any(patterns[use].search(sentence) for use in ("binds", "at_start", "at_clause", "behind_task"))


@cache
def _patterns() -> Mapping[str, re.Pattern[str]]:
    import tomllib

    words = tomllib.loads(Path(__file__).with_name("orders.toml").read_text(encoding="utf-8"))
    texts = {
        use: text if isinstance(text, str) else "|".join(map("(?:{})".format, text)) for use, text in words.items()
    }
    for name in ("TASK", "NEVER", "THING"):
        texts = {use: text.replace(name, texts[name]) for use, text in texts.items()}
    opening, bids = texts["opening"], texts["bids"]
    texts["at_start"] = rf"^\W*(?:\d+[.)] +)?{opening}(?:{bids})"
    texts["at_clause"] = rf"[,;:(–—]\W{{0,3}}{opening}(?:{bids})"
    # "Fix the parser and do not touch its tests", while "the workers start and do not stop" tells.
    texts["behind_task"] = rf"^\W*{opening}{texts['TASK']}.* (?:and|but|or) (?:please )?(?:{bids})"
    return {use: re.compile(text, re.IGNORECASE | re.MULTILINE) for use, text in texts.items()}
