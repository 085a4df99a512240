"""What is shown of a long output: chosen lines, by extractors of the package or from outside."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from heapq import nsmallest
from itertools import accumulate
from typing import NamedTuple, Protocol

from aether_context.errors import PolicyError, near_names
from aether_context.evidence.lines import KEYED, LEAST_ROWS, Kind, View, data_type, rendered, view_of
from aether_context.text.compression import Counts, fitting, most_relevant, pick, with_gaps
from aether_context.text.entities import entities_of
from aether_context.tokens import TokenCounter

# Extractors from outside, by name.

RULES = ("never", "threshold", "always")
"""What a policy can say of a tool without an extractor."""


class Extractor(Protocol):
    """Chooses what is shown of a long output.

    Equal arguments have to give equal texts. What it gives should be the output's own lines.
    """

    def __call__(self, text: str, *, max_tokens: int, counter: Counts, query: str) -> str: ...


_EXTRACTORS: dict[str, Extractor] = {}


def register_extractor(name: str, extractor: Extractor) -> None:
    """Makes an extractor known to policies under a name.

    Raises:
        PolicyError: the name is one of a rule's.
    """
    if name in RULES:
        raise PolicyError(f"{name!r} is a rule: give the extractor another name", field="offload.tools")
    _EXTRACTORS[name] = extractor


def extractor(name: str) -> Extractor:
    """The extractor of a name.

    Raises:
        PolicyError: there is none.
    """
    if name not in _EXTRACTORS:
        known = (*RULES, *sorted(_EXTRACTORS))
        hint = near_names(name, known)
        raise PolicyError(
            f"offload.tools: {name!r} is neither a rule nor a registered extractor: {hint}", field="offload"
        )
    return _EXTRACTORS[name]


def check_rules(names: Collection[str]) -> None:
    """Checks that every rule is one.

    Raises:
        PolicyError: one is not.
    """
    for name in names:
        if name not in RULES:
            extractor(name)


# What is shown of a long output: its own lines, chosen for what an agent needs next, and notes of what is missing.

_COUNTED, _SAMPLED = 20_000, 9_000
_PROSE = 100
_ERROR = re.compile(
    r"\b(?:[Ee]rror|ERROR|[Ff]ailed|FAILED|FAILURE|[Ff]ailure|FATAL|[Ff]atal|CRITICAL|[Tt]raceback|panicked?|"
    r"[A-Z]\w*(?:Error|Exception))\b"
)
_ERROR_HINTS = ("rror", "RROR", "ail", "AIL", "atal", "ATAL", "CRITICAL", "raceback", "panic", "xception")
_ERROR_WORDS = ("ERROR", "Traceback", "FATAL", "FAILED", "Error:", "Exception")
_CONTINUED = re.compile(r"\s+\S|Caused by|\.\.\. \d+ more")
_LONGEST_ERROR = 12
_CAMEL = re.compile(r"\b[A-Za-z]?[a-z]+[A-Z]\w*")
_DEFINITION = re.compile(
    r"\s{0,4}(?:export |public |private |protected |static |async |abstract |default )*"
    r"(?:class|def|function|interface|struct|enum|type|impl|trait|fn|func)\s+\w"
)
_NAMING = re.compile(r"(?:^|[^a-z])(?:ids?|name|key|code|number|path|file|url|uri|title)$")
_TIME = re.compile(r"\d{4}-\d\d-\d\d|\d\d:\d\d")
_LETTER, _DIGIT, _UPPER = re.compile(r"[^\W\d_]"), re.compile(r"\d"), re.compile("[A-Z]")
_WIDEST, _CLIPPED = 240, 200
_NAMES_SHARE = 0.35
_LONGEST_NAME = 60
_MOST_CHARACTERS = 24
_NOTE_TOKENS = 8.0
_SHARES: dict[str, tuple[float, float, float]] = {"log": (0.5, 0.2, 0.1), "code": (0.1, 0.3, 0.3)}
_USUAL_SHARES = (0.15, 0.3, 0.3)
"""What errors, lines about the query and dense lines take of an extract; head and tail take the rest."""


class Shown(NamedTuple):
    """What is shown of an output. ``kept`` of its ``total`` lines stand in it; all of them where nothing is missing.

    ``names`` are identifiers and numbers in lines that do not. ``ends_early`` says that the output was cut off before.
    """

    text: str
    kind: Kind
    kept: int
    total: int
    names: str = ""
    ends_early: bool = False

    @property
    def is_whole(self) -> bool:
        return self.kept == self.total


def show(
    text: str, *, extract_tokens: int, whole_tokens: int, data_tokens: int, counter: TokenCounter, query: str = ""
) -> Shown:
    """An output as a model is to read it: whole where it is short enough without its envelope, else an extract.

    The extract takes lines with errors, lines with the query's rare words, and lines that are dense with names and
    numbers, each for a share of the budget, and the head and the tail for the rest. A share of it names what stands in
    other lines. A long output is searched but not read line by line.

    Args:
        extract_tokens: ceiling of an extract, notes included.
        whole_tokens: tokens up to which an output stays whole.
        data_tokens: the same for tables and lists, and for JSON that is not mostly prose.
        query: what the agent is after: the request and the arguments of the call.
    """
    view = view_of(text)
    if view.kind == "data":
        described = f"[{data_type(text[:200])}, {len(text)} characters of encoded data]"
        return Shown(text=described, kind="data", kept=0, total=text.count("\n") + 1)
    total = len(view.lines)
    # Of rows and of the values of JSON any one may be needed, unlike of the prose in it.
    prose = sum(len(line.text) for line in view.outline if line.text.startswith('"') and len(line.text) > _PROSE)
    is_data = view.kind in ("table", "list", "json") and prose * 2 <= sum(len(line.text) for line in view.outline)
    whole = view.whole or text
    if tokens_of(whole, counter) <= (max(whole_tokens, data_tokens) if is_data else whole_tokens):
        return Shown(text=whole, kind=view.kind, kept=total, total=total, ends_early=view.ends_early)
    return _extract(view, extract_tokens, counter, query)


def tokens_of(text: str, counter: TokenCounter) -> int:
    """The tokens of a text; those of a long one by samples of its beginning, its middle and its end."""
    if len(text) <= _COUNTED:
        return counter.count(text)
    return round(_per_character(text, counter) * len(text))


def _per_character(text: str, counter: TokenCounter) -> float:
    """Tokens for each character of a text, by samples of a long one."""
    size = _SAMPLED // 3
    middle = len(text) // 2
    samples = (text[:size], text[middle : middle + size], text[-size:]) if len(text) > _SAMPLED else (text,)
    return sum(counter.count_all(samples)) / max(1, sum(map(len, samples)))


# The lines of a long text that are worth a look, found without reading all of it line by line.

_READ_WHOLE, _HEAD_CHARACTERS, _TAIL_CHARACTERS = 40_000, 12_000, 4_000
_MOST_WORDS, _MOST_QUERY_WORDS = 12, 200
_HITS_A_WORD, _LINES_A_HIT = 4, 5
_WORD = re.compile(r"[\w./@-]{4,60}")


def sampled(lines: Sequence[str], words: Iterable[str]) -> list[int]:
    """The places of the head, the tail, and of lines with the first and the last places of words; all of a short text.

    Args:
        words: those looked for, the most telling first; at most 12 of them, each as it is and in lower case. The lines
            after each place come with it.
    """
    starts = [0, *accumulate(len(line) + 1 for line in lines)]
    total = len(lines)
    if starts[-1] <= _READ_WHOLE:
        return list(range(total))
    text = "\n".join(lines)
    head = bisect_right(starts, _HEAD_CHARACTERS, hi=total) - 1
    tail = max(head, bisect_right(starts, len(text) - _TAIL_CHARACTERS, hi=total))
    numbers = {*range(head), *range(tail, total)}
    for word in list(dict.fromkeys(words))[:_MOST_WORDS]:
        places: list[int] = []
        for form in dict.fromkeys((word, word.lower())):
            # A character is found sooner than a word, and most words are not there.
            at = starts[head] if all(mark in text for mark in form) else -1
            while at >= 0 and len(places) < _HITS_A_WORD and (at := text.find(form, at, starts[tail])) >= 0:
                places.append(at)
                at += len(form)
            if places and (last := text.rfind(form, starts[head], starts[tail])) >= 0:
                places.append(last)
        for at in places:
            number = bisect_right(starts, at, hi=total) - 1
            numbers.update(range(number, min(number + _LINES_A_HIT, tail)))
    return sorted(numbers)


def query_words(query: str) -> list[str]:
    """The words of a query, at most 200, the longest first: they tell the most."""
    return nsmallest(_MOST_QUERY_WORDS, set(_WORD.findall(query)), key=lambda word: (-len(word), word))


# Which of the lines are taken.


def _extract(view: View, max_tokens: int, counter: TokenCounter, query: str) -> Shown:
    words = query_words(query)
    total = len(view.lines)
    numbers = sampled(view.lines, [*_ERROR_WORDS, *words])
    texts = [_clipped(view.line(number), words) for number in numbers]
    per_character = _per_character("\n".join(texts), counter)
    cost = [len(text) * per_character + 1 for text in texts]
    mentioned = [tuple(dict.fromkeys(entities_of(text))) for text in texts]
    dense = _dense(texts, mentioned, cost)
    shares = _SHARES.get(view.kind, _USUAL_SHARES)
    rankings = list(zip(shares, (_errors(texts), most_relevant(texts, query), dense), strict=True))
    if view.outline and len(numbers) < total:
        # The first and the last one of many records say what they hold.
        parents = [view.outline[number].parent for number in numbers]
        ((parent, _),) = Counter(parents).most_common(1)
        records = [at for at in range(len(numbers)) if parents[at] == parent and texts[at] not in ("]", "}")]
        rankings[2:2] = [(0.0, [at]) for at in (records[0], records[-1])]

    def written(chosen: set[int]) -> str:
        if view.outline:
            return rendered(view.outline, {numbers[at] for at in chosen})
        return with_gaps(texts, numbers, total, chosen)

    found = fitting(
        lambda budget: pick(cost, rankings, budget, last=dense, note=_NOTE_TOKENS, first_whole=True),
        written,
        max_tokens=int(max_tokens * (1 - _NAMES_SHARE)),
        counter=counter,
    )
    text, chosen = found if found is not None else (f"[{total} lines left out]", set())
    left_out = (name for at, entities in enumerate(mentioned) if at not in chosen for name in entities)
    names = unshown_names(left_out, text, max_tokens=max_tokens - counter.count(text), count_all=counter.count_all)
    return Shown(text=text, kind=view.kind, kept=len(chosen), total=total, names=names, ends_early=view.ends_early)


def unshown_names(
    entities: Iterable[str], shown: str, *, max_tokens: int, count_all: Callable[[Sequence[str]], list[int]]
) -> str:
    """The entities that are missing in what is shown, as many as fit: identifiers, then paths and words, then bare
    numbers, each in their order."""
    names: dict[str, None] = {}
    size = 0
    for name in entities:
        if name not in names and len(name) <= _LONGEST_NAME and name not in shown:
            names[name] = None
            size += len(name) + 2
            if size > max_tokens * _MOST_CHARACTERS:
                break
    left = max_tokens - 4
    found = sorted(names, key=_rank)[: max(0, left)]
    costs = accumulate(count_all([f", {name}" for name in found]))
    return ", ".join(name for name, cost in zip(found, costs, strict=True) if cost <= left)


def _rank(name: str) -> int:
    if _TIME.match(name) or not (name[0] == "#" or _LETTER.search(name)):
        return 2
    return 0 if _DIGIT.search(name) else 1


def _clipped(line: str, words: Sequence[str]) -> str:
    """A line of bounded width: of a longer one the columns around the first of the words that it holds."""
    if len(line) <= _WIDEST:
        return line
    place = next((at for word in words if (at := line.find(word)) >= 0), 0)
    start = max(0, min(place - _CLIPPED // 3, len(line) - _CLIPPED))
    clipped = line[start : start + _CLIPPED]
    return f"{'… ' if start else ''}{clipped}{' …' if start + _CLIPPED < len(line) else ''}"


def _errors(texts: Sequence[str]) -> list[int]:
    """Errors with the lines that belong to them; of those that differ only in numbers the last one."""
    together = "\n".join(texts)
    if not any(hint in together for hint in _ERROR_HINTS):
        return []
    found: dict[str, list[int]] = {}
    at = 0
    while at < len(texts):
        if not _ERROR.search(texts[at]):
            at += 1
            continue
        block = [at]
        while len(block) < _LONGEST_ERROR and block[-1] + 1 < len(texts) and _CONTINUED.match(texts[block[-1] + 1]):
            block.append(block[-1] + 1)
        shape = re.sub(r"\d+", "0", texts[at])
        found.pop(shape, None)
        found[shape] = block
        at = block[-1] + 1
    return [line for block in found.values() for line in block]


def _dense(texts: Sequence[str], mentioned: Sequence[Sequence[str]], cost: Sequence[float]) -> list[int]:
    """Lines by the names and numbers in them that stood in no line before, for what each costs.

    A line whose key other lines have, too, is part of a record and counts more, most of all by a key for names. A time
    counts little.
    """
    keys = [found[1].casefold() if (found := KEYED.match(text)) is not None else "" for text in texts]
    repeated = Counter(keys)
    seen: set[str] = set()
    worth: list[float] = []
    for text, entities, tokens, key in zip(texts, mentioned, cost, keys, strict=True):
        names = {*entities, *_CAMEL.findall(text)} - seen if _UPPER.search(text) else {*entities} - seen
        seen |= names
        score = float(sum(6 if _TIME.match(name) else min(len(name), 24) for name in names))
        if key and names and repeated[key] >= LEAST_ROWS:
            score *= 3 if _NAMING.search(key) else 2
        worth.append((score + (24 if _DEFINITION.match(text) else 0)) / (tokens + _NOTE_TOKENS))
    return sorted((at for at in range(len(texts)) if worth[at] > 0), key=lambda at: (-worth[at], at))
