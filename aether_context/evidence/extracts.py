"""What is shown of a long output: chosen lines, by extractors of the package or from outside."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Protocol

from aether_context.errors import PolicyError
from aether_context.evidence.lines import MOST_DECODED, Kind, View, data_type, kind_of, view_of
from aether_context.evidence.outline import rendered, sampled_rows
from aether_context.evidence.samples import Sample, line_count, query_words, sampled
from aether_context.text.compression import Counts, fitting, pick, relevance, span
from aether_context.text.decoding import printable
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
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "it is one of " + ", ".join(known)
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
_UPPER = re.compile("[A-Z]")
_DIGITS = "0123456789"
_CAMEL = re.compile(r"\b[A-Za-z]?[a-z]+[A-Z]\w*")
_DEFINITION = re.compile(
    r"\s{0,4}(?:export |public |private |protected |static |async |abstract |default )*"
    r"(?:class|def|function|interface|struct|enum|type|impl|trait|fn|func)\s+\w"
)
_KEYED = re.compile(r"""\s*(?:[-*]\s+)?["']?([^\W\d][\w .-]{0,30}?)["']?\s?[:=]\s*\S""")
_NAMING = re.compile(r"(?:^|[^a-z])(?:ids?|name|key|code|number|path|file|url|uri|title)$")
_TIME = re.compile(r"\d{4}-\d\d-\d\d|\d\d:\d\d")
_LETTER, _DIGIT = re.compile(r"[^\W\d_]"), re.compile(r"\d")
_LEAST_RECORDS = 3
_WIDEST, _CLIPPED = 240, 200
_NAMES_SHARE = 0.35
_LONGEST_NAME = 60
_MOST_CHARACTERS = 24
_NOTE_TOKENS = 8.0
_SHARES: dict[str, tuple[float, float, float]] = {"log": (0.5, 0.2, 0.1), "code": (0.1, 0.3, 0.3)}
_USUAL_SHARES = (0.15, 0.3, 0.3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
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
    other lines.

    Args:
        extract_tokens: ceiling of an extract, notes included.
        whole_tokens: tokens up to which an output stays whole.
        data_tokens: the same for tables, and for JSON that is not mostly prose.
        query: what the agent is after: the request and the arguments of the call.
    """
    if len(text) > MOST_DECODED:
        return _of_long(text, extract_tokens, counter, query)
    view = view_of(text)
    if view.kind == "data":
        return _described(text)
    whole = view.whole or text
    ceiling = max(whole_tokens, data_tokens) if _is_data(view) else whole_tokens
    if tokens_of(whole, counter) <= ceiling:
        return Shown(
            text=whole, kind=view.kind, kept=len(view.lines), total=len(view.lines), ends_early=view.ends_early
        )
    lines = Sample(view.lines, range(len(view.lines)), len(view.lines))
    return _extract(lines, view, extract_tokens, counter, query)


def _of_long(text: str, extract_tokens: int, counter: TokenCounter, query: str) -> Shown:
    """An extract of a long output, which is searched but not read line by line."""
    kind = kind_of(text)
    if kind == "data":
        return _described(text)
    if kind == "json":
        rows = sampled_rows(text, query_words(query), max_tokens=extract_tokens, counter=counter)
        if rows is not None:
            return Shown(text=rows[0], kind=kind, kept=rows[1], total=line_count(text))
    view = View(kind=kind, lines=())
    return _extract(sampled(text, [*_ERROR_WORDS, *query_words(query)]), view, extract_tokens, counter, query)


def _described(text: str) -> Shown:
    said = f"[{data_type(text[:200])}, {len(text)} characters of encoded data]"
    return Shown(text=said, kind="data", kept=0, total=text.count("\n") + 1)


def _is_data(view: View) -> bool:
    """Whether every line may be the one that is needed: rows, and the values of JSON, but not the prose in it."""
    if view.kind == "json" and view.outline:
        prose = sum(len(line.text) for line in view.outline if line.text.startswith('"') and len(line.text) > _PROSE)
        return prose * 2 < sum(len(line.text) for line in view.outline)
    return view.kind in ("table", "json")


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


def _extract(sample: Sample, view: View, max_tokens: int, counter: TokenCounter, query: str) -> Shown:
    words = query_words(query)
    texts = [_clipped(printable(text), words) for text in sample.texts]
    sample = replace(sample, texts=texts)
    per_character = _per_character("\n".join(texts), counter)
    cost = [len(text) * per_character + 1 for text in texts]
    mentioned = [tuple(dict.fromkeys(entities_of(text))) for text in texts]
    errors, relevant, dense = _errors(texts), _relevant(texts, query), _dense(texts, mentioned, cost)
    rankings = list(zip(_SHARES.get(view.kind, _USUAL_SHARES), (errors, relevant, dense), strict=True))
    found = fitting(
        lambda budget: pick(cost, rankings, budget, last=dense, note=_NOTE_TOKENS, first_whole=True),
        lambda chosen: _text(sample, view, chosen),
        max_tokens=int(max_tokens * (1 - _NAMES_SHARE)),
        counter=counter,
    )
    said, chosen = found if found is not None else (f"[{sample.total} lines left out]", set())
    names = _names(mentioned, chosen, said, max_tokens - counter.count(said), counter)
    return Shown(
        text=said, kind=view.kind, kept=len(chosen), total=sample.total, names=names, ends_early=view.ends_early
    )


def _names(
    mentioned: Sequence[Sequence[str]], chosen: set[int], said: str, max_tokens: int, counter: TokenCounter
) -> str:
    """The entities of lines that are not shown, as many as the budget takes: identifiers first, then paths and words,
    then bare numbers, each in their order."""
    names: dict[str, None] = {}
    size = 0
    for at, entities in enumerate(mentioned):
        if at in chosen:
            continue
        for name in entities:
            if name not in names and len(name) <= _LONGEST_NAME and name not in said:
                names[name] = None
                size += len(name) + 2
        if size > max_tokens * _MOST_CHARACTERS:
            break
    left = max_tokens - 4
    found = sorted(names, key=_rank)[: max(0, left)]
    costs = accumulate(counter.count_all([f", {name}" for name in found]))
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


def _relevant(texts: Sequence[str], query: str) -> list[int]:
    """Lines that share rare words with the query."""
    wanted = relevance(texts, query)
    return sorted((at for at in range(len(texts)) if wanted[at] > 0), key=lambda at: (-wanted[at], at))


def _errors(texts: Sequence[str]) -> list[int]:
    """Errors with the lines that belong to them; of those that differ only in numbers the last one."""
    found: dict[str, list[int]] = {}
    together = "\n".join(texts)
    if not any(hint in together for hint in _ERROR_HINTS):
        return []
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
    keys = [_key(text) for text in texts]
    repeated = Counter(key for key in keys if key)
    seen: set[str] = set()
    worth: list[float] = []
    for text, entities, tokens, key in zip(texts, mentioned, cost, keys, strict=True):
        names = {*entities, *_CAMEL.findall(text)} - seen if _UPPER.search(text) else {*entities} - seen
        seen |= names
        score = float(sum(6 if name[0] in _DIGITS and _TIME.match(name) else min(len(name), 24) for name in names))
        if key and names and repeated[key] >= _LEAST_RECORDS:
            score *= 3 if _NAMING.search(key) else 2
        worth.append((score + (24 if _DEFINITION.match(text) else 0)) / (tokens + _NOTE_TOKENS))
    return sorted((at for at in range(len(texts)) if worth[at] > 0), key=lambda at: (-worth[at], at))


def _key(text: str) -> str:
    found = _KEYED.match(text)
    return found.group(1).casefold() if found is not None else ""


def _text(sample: Sample, view: View, chosen: set[int]) -> str:
    if view.outline:
        return rendered(view.outline, chosen)
    out: list[str] = []
    next_number = 0
    for at in sorted(chosen):
        number = sample.numbers[at]
        if number > next_number:
            out.append(f"[… {span(next_number, number)} …]")
        out.append(sample.texts[at])
        next_number = number + 1
    if next_number < sample.total:
        out.append(f"[… {span(next_number, sample.total)} …]")
    return "\n".join(out)
