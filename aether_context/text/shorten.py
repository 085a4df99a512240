"""Shortens texts without paraphrasing: to lines of their own, or to sentences on one line."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from heapq import nsmallest
from itertools import accumulate, chain, islice, pairwise
from typing import NamedTuple

from aether_context.canonical import JSON
from aether_context.text import Counts
from aether_context.text.decoding import decoded, printable, read_inside, read_json, read_python
from aether_context.text.digest import digest
from aether_context.text.entities import entities_of
from aether_context.text.json_lines import (
    LEAST_ROWS,
    Line,
    compact_json,
    outlined,
    rendered,
    span,
    tabled,
    text_lines,
    unfolded,
)
from aether_context.text.unlike import column_names, headings, odd_lines, yaml_entries

# The lines in which a text is shown, read and searched: the same ones, by the same numbers, everywhere.

_MOST_WRITTEN, _MOST_DECODED, _MOST_JSON = 40_000, 400_000, 1_000_000
"""Characters of the longest text whose JSON is written in fewer, of the longest one that is decoded, and of the longest
JSON that is read; others are shown in their own lines."""


class View(NamedTuple):
    """A text in lines, numbered from 1. ``outline`` holds them where they are JSON, ``whole`` the shortest text that
    says the same; it is empty where that is the text itself. ``ends_early`` says that the JSON was cut off before it
    came here. ``value`` is that of the JSON."""

    lines: Sequence[str]
    outline: Sequence[Line] = ()
    whole: str = ""
    ends_early: bool = False
    value: JSON = None

    def line(self, at: int) -> str:
        """A line as it is shown; the first one is 0."""
        return printable(self.lines[at])


def lines_view(text: str, *, keeps_words: bool = False) -> View:
    """A text in lines: those of the JSON or the text that it holds, long ones in pieces.

    Args:
        keeps_words: whether words around JSON stay words, as those of a message have to, and are not read with it.
    """
    is_long = len(text) > _MOST_WRITTEN
    inside = text if len(text) > _MOST_DECODED else decoded(text)
    parsed = read_json(inside) if len(text) <= _MOST_JSON else None
    # ``str`` of a tool's rows; what was written by hand has lines, and comments in them.
    if parsed is None and inside[:1] in ("[", "{") and "\n" not in inside:
        parsed = (rows, True) if (rows := read_python(inside)) is not None else None
    if parsed is None and not keeps_words and len(text) <= _MOST_JSON:
        parsed = (framed, True) if (framed := read_inside(inside)) is not None else None
    if parsed is None:
        return View(lines=text_lines(inside), whole=inside if inside != text and not is_long else "")
    value, is_complete = unfolded(parsed[0]), parsed[1]
    outline = outlined(value)
    whole = "" if is_long else min(compact_json(value), compact_json(tabled(value)), key=len)
    whole = whole if len(whole) < len(text) else ""
    lines = rendered(outline, range(len(outline))).split("\n")
    return View(lines=lines, outline=outline, whole=whole, ends_early=not is_complete, value=value)


# An excerpt: lines chosen for what an agent needs next, and notes of what is missing.

_SAMPLED, _COUNTED = 9_000, 20_000
"""Characters of the samples of a long text, and of the longest one that is counted whole."""
_NOTE_TOKENS = 8.0
_NAMES_SHARE, _DIGEST_NAMES, _DIGEST_SHARE = 0.35, 0.1, 0.93
"""The share of an extract for names from other lines, the same beside a digest, and that of the digest's records."""
_MOST_ODD, _MOST_HEADS = 60, 200
_ODDEST, _FOR_ODD, _MOST_FOR_ODD = 2, 0.3, 0.5
"""Blocks of odd lines that are shown whole, the share of all such lines, and the most of it where these blocks need
more: an error often has its place in its last line."""


class Excerpt(NamedTuple):
    """The shown part of a text. ``kept`` of its ``total`` lines stand in it; all of them where nothing is missing.

    ``names`` are identifiers and numbers in lines that do not. ``ends_early`` says that the text is JSON that was cut
    off before it came here; ``records`` are those of the longest list in JSON, of the outermost one in YAML.
    """

    text: str
    kept: int
    total: int
    names: str = ""
    ends_early: bool = False
    records: int = 0

    @property
    def is_whole(self) -> bool:
        return self.kept == self.total


def shorten(
    text: str | View,
    max_tokens: int,
    *,
    counter: Counts,
    query: str = "",
    names: bool = False,
    pinned: Sequence[str] = (),
) -> Excerpt:
    """A text in lines of its own, within a budget; unchanged where it fits.

    Lines with the query's rare words, lines unlike the rest, lines with errors, and lines that are dense with names and
    numbers take a share of the budget each, the head and the tail the rest. JSON stays JSON. A text of much more than
    the budget is searched but not read line by line. Where not one line fits, it is the beginning of the best.

    Args:
        text: a text, or its lines where these are known; then it is not asked whether all of it fits.
        max_tokens: the most tokens of the result, notes and names included.
        query: what the agent is after.
        names: whether a third of the budget names what stands in other lines.
        pinned: texts whose lines come first, the most important ones before the others, in a fifth of the budget.
    """
    if isinstance(text, str):
        if counter.count(text) <= max_tokens:
            size = text.count("\n") + 1
            return Excerpt(text=text, kept=size, total=size)
        view = lines_view(text, keeps_words=True)
        lines, places, total = _renumbered(view.lines)
        if view.whole and counter.count(view.whole) <= max_tokens:
            return Excerpt(text=view.whole, kept=total, total=total, ends_early=view.ends_early)
    else:
        view = text
        lines, places, total = view.lines, range(len(view.lines)), len(view.lines)
    outline, records, shorter = view.outline, _records(view.outline), None
    if records:
        room = int(_DIGEST_SHARE * max_tokens)
        shorter = digest(view.value, outline, records, max_tokens=room, counter=counter, query=query)
    if shorter is not None:
        outline, records = shorter.outline, _records(shorter.outline)
        lines = rendered(outline, range(len(outline))).split("\n")
    sample = _sample(lines, max_tokens, counter, query, pinned, is_json=bool(outline))
    rankings, every = sample.rankings, set(range(len(sample.numbers)))
    if records and (shorter is not None or len(every) < total):
        # The first and the last one of many records say what they hold.
        begins = frozenset(records)
        rows = [at for at, number in enumerate(sample.numbers) if number in begins]
        rankings = [*rankings[:4], *((0.0, [at]) for at in (*rows[:1], *rows[-1:])), *rankings[4:]]

    def written(indices: set[int]) -> str:
        if outline:
            in_outline = {sample.numbers[at] for at in indices}
            return rendered(outline, in_outline, shorter.places if shorter is not None else ())
        return _with_gaps(sample.texts, [places[number] for number in sample.numbers], total, indices)

    for_names = 0
    if names:
        all_names = ", ".join(dict.fromkeys(chain.from_iterable(sample.names)))
        share = _NAMES_SHARE if shorter is None else _DIGEST_NAMES
        for_names = min(int(share * max_tokens), counter.count(all_names) + 4)
    if shorter is not None and counter.count(all_rows := written(every)) <= max_tokens:
        shown_text, indices = all_rows, every
    else:

        def pick(budget: float) -> set[int]:
            picks = _pick(sample.cost, rankings, budget)
            return picks if outline else _without_small_gaps(picks, sample.cost, sample.numbers)

        fitting = _fitting(pick, written, max_tokens=max_tokens - for_names, counter=counter)
        best = next((ranked[0] for _, ranked in rankings if ranked), 0)
        begun = sample.texts[best] if sample.texts else view.line(0)
        shown_text, indices = fitting or (beginning(begun, max_tokens, counter), set())
    unshown = ""
    if names:
        other_names = (name for at, of_line in enumerate(sample.names) if at not in indices for name in of_line)
        left_out = chain(() if shorter is None else shorter.left_out_fields, sample.heads, other_names)
        unshown = _unshown_names(left_out, shown_text, max_tokens - counter.count(shown_text), counter)
    # A digest is never whole: its records have fewer fields.
    kept_lines = min(len(indices), total - (shorter is not None))
    count = len(records) if outline else yaml_entries("\n".join(lines))
    return Excerpt(
        text=shown_text, kept=kept_lines, total=total, names=unshown, ends_early=view.ends_early, records=count
    )


class _Sample(NamedTuple):
    """The lines of a text that are read for an excerpt, by their numbers: each with its words, tokens and names.

    ``rankings`` are the shares of the budget, each with the indices of the lines that it is for, the best first;
    ``heads`` are names of headings.
    """

    numbers: Sequence[int]
    texts: Sequence[str]
    cost: Sequence[float]
    names: Sequence[Sequence[str]]
    heads: Sequence[str]
    rankings: Sequence[tuple[float, Sequence[int]]]


def _sample(
    lines: Sequence[str], max_tokens: int, counter: Counts, query: str, pinned: Sequence[str], *, is_json: bool
) -> _Sample:
    """The lines that are read for an excerpt: all, or of many a sample with what is looked for, odd or a heading."""
    words = query_words(query)
    numbers = sampled(lines, [*_ERROR_WORDS, *words], max(_READ_WHOLE, _CHARACTERS_A_TOKEN * max_tokens))
    pinned_lines = [at for text in pinned for at, line in enumerate(lines) if text in line]
    odd_blocks = odd_lines(lines)
    odd = list(islice(chain.from_iterable(odd_blocks), _MOST_ODD))
    columns, heads = ([], []) if is_json else (column_names(lines), headings(lines)[:_MOST_HEADS])
    numbers = sorted({*numbers, *odd, *columns, *heads, *pinned_lines})
    texts = [printable(lines[number]) for number in numbers]
    per_character = tokens_per_character("\n".join(texts), counter)
    cost = [len(text) * per_character + 1 for text in texts]
    names = [tuple(dict.fromkeys(entities_of(text))) for text in texts]
    worth = _relevance(texts, query)
    # What is not taken by errors, by lines about the query and by dense lines is left to the head and the tail.
    indices = {number: at for at, number in enumerate(numbers)}
    oddest = (cost[indices[number]] for number in chain.from_iterable(odd_blocks[:_ODDEST]))
    oddest_share = sum(oddest) / ((1 - _NAMES_SHARE) * max_tokens - 2 * _NOTE_TOKENS)
    # Names of columns, which look unlike a row, have a share of their own; a question about a row names them, too.
    shapes = {number: [_row_of(line.strip()) for line in lines[number : number + 2]] for number in columns}
    ranked = sorted(_best_first(worth), key=lambda at: len({*shapes.get(numbers[at], ())}) > 1)
    rankings = [
        (0.2, [indices[number] for number in dict.fromkeys(pinned_lines)]),
        (0.3, ranked if is_json else _with_neighbours(ranked, worth, texts, numbers, frozenset(heads))),
        (min(_MOST_FOR_ODD, max(_FOR_ODD, oddest_share)), [indices[number] for number in odd]),
        (0.15, _errors(texts)),
        *((0.0, [indices[number]]) for number in columns),
        (0.3, _dense(names, cost)),
    ]
    return _Sample(numbers, texts, cost, names, [name for at in heads for name in names[indices[at]][-1:]], rankings)


def tokens_per_character(text: str, counter: Counts) -> float:
    """Tokens for each character of a text; of a long one by samples of its beginning, its middle and its end."""
    size = _SAMPLED // 3
    middle = len(text) // 2
    samples = (text[:size], text[middle : middle + size], text[-size:]) if len(text) > _SAMPLED else (text,)
    return sum(counter.count_all(samples)) / max(1, sum(map(len, samples)))


def tokens_of(text: str, counter: Counts) -> int:
    """The tokens of a text; those of a long one by samples of its beginning, its middle and its end."""
    if len(text) <= _COUNTED:
        return counter.count(text)
    return round(tokens_per_character(text, counter) * len(text))


def beginning(text: str, max_tokens: int, counter: Counts) -> str:
    """The beginning of a text that is too long, with an ellipsis behind it; at least a character of it."""
    length = min(len(text), 8 * max(1, max_tokens))
    while length > 1 and counter.count(f"{text[:length]}…") > max_tokens:
        length = length * 9 // 10
    return f"{text[:length]}…"


def level(sizes: Sequence[int], limit: int) -> int:
    """The largest ceiling at which sizes that are cut down to it sum to at most ``limit``."""
    remaining = limit
    for position, size in enumerate(sorted(sizes)):
        share = remaining // (len(sizes) - position)
        if size > share:
            return max(0, share)
        remaining -= size
    return max(sizes, default=0)


# Sentences on one line.

_SENTENCE = re.compile(r"[.!?;。！？\n](?:(?<=[.!?;])\s+|(?<=[。！？])\s*|(?<=\n)\n*)")
"""The last character of a sentence and the white space behind it."""


def sentences(text: str) -> list[str]:
    """The sentences of a text, each with the white space behind it."""
    ends = [match.end() for match in _SENTENCE.finditer(text)]
    return [text[start:end] for start, end in pairwise((0, *ends, len(text))) if start < end]


def shorten_line(text: str, max_tokens: int, *, counter: Counts, query: str = "") -> str:
    """A text's most relevant sentences, in their order, with an ellipsis for each gap; unchanged where it fits.

    Where no sentence fits, it is the beginning of the best one.
    """
    tokens = counter.count(text)
    if tokens <= max_tokens:
        return text
    parts = [part for sentence in sentences(text) if (part := sentence.strip())] or [text]
    scores = _relevance(parts, query)
    ranked = sorted(range(len(parts)), key=lambda at: (-scores[at], at))
    cost = [len(part) * tokens / len(text) for part in parts]

    def choose(budget: float) -> set[int]:
        chosen_pieces: set[int] = set()
        for at in ranked:
            if budget < 1:
                break
            if cost[at] <= budget:
                chosen_pieces.add(at)
                budget -= cost[at]
        return chosen_pieces

    def written(chosen_pieces: set[int]) -> str:
        joined, previous = "", -1
        for at in sorted(chosen_pieces):
            joined += ("" if not at else " " if at == previous + 1 else " … ") + parts[at]
            previous = at
        return joined.lstrip() + (" …" if previous < len(parts) - 1 else "")

    fitting = _fitting(choose, written, max_tokens=max_tokens, counter=counter)
    return fitting[0] if fitting is not None else beginning(parts[ranked[0]], max_tokens, counter)


# The lines of a long text that are worth a look, found without reading all of it line by line.

_READ_WHOLE, _CHARACTERS_A_TOKEN = 40_000, 10
_HEAD, _TAIL = 0.3, 0.1
"""Of the characters up to which a text is read whole, those of a longer one's head and tail that are read."""
_MOST_WORDS, _MOST_QUERY_WORDS = 12, 200
_HITS_A_WORD, _LINES_A_HIT, _LINES_BEFORE = 4, 5, 4
_QUERY_WORD = re.compile(r"[\w./@-]{3,60}")
_ERROR_WORDS = ("ERROR", "Traceback", "FATAL", "FAILED", "Error:", "Exception")


def sampled(lines: Sequence[str], words: Iterable[str], whole: int = _READ_WHOLE) -> list[int]:
    """The places of the head, the tail, and of lines with the first and the last places of words; all of a short text.

    Args:
        words: those looked for, the most telling first; at most 12 of them, each as it is and in lower case. Four lines
            before each place and four behind it come with it.
        whole: characters up to which a text is short.
    """
    starts = [0, *accumulate(len(line) + 1 for line in lines)]
    total = len(lines)
    if starts[-1] <= whole:
        return list(range(total))
    head = bisect_right(starts, _HEAD * whole, hi=total) - 1
    tail = max(head, bisect_right(starts, starts[-1] - _TAIL * whole, hi=total))
    numbers = {*range(head), *range(tail, total)}
    for word in list(dict.fromkeys(words))[:_MOST_WORDS]:
        lower = word.lower()
        places = [at for at in range(head, tail) if word in lines[at] or lower in lines[at]]
        for at in (*places[:_HITS_A_WORD], *places[-1:]):
            numbers.update(range(max(head, at - _LINES_BEFORE), min(at + _LINES_A_HIT, tail)))
    return sorted(numbers)


def query_words(query: str) -> list[str]:
    """The words of a query, at most 200, the longest first: they tell the most."""
    return nsmallest(_MOST_QUERY_WORDS, set(_QUERY_WORD.findall(query)), key=lambda word: (-len(word), word))


# How much a line is worth.

_WORD = re.compile(r"[^\W_]{2,}", re.UNICODE)
_MARKED = re.compile(r"(?<![^\W_])[^\W_]++(?:[-_./:@][^\W_]++)+")
"""A name with marks in it, which counts as a whole and by its words: ``S-144`` is no ``144.10``."""
_PAIR = re.compile(r"(?=((?<!\d)\d{2,}|[^\W\0-\u0dff](?:\d+|[^\W\0-\u0dff])))")
"""In a script that puts no spaces between words a number, and a character with the one or the number behind it."""
_ERROR = re.compile(
    r"\b(?:[Ee]rror|ERROR|[Ff]ailed|FAILED|FAILURE|[Ff]ailure|FATAL|[Ff]atal|CRITICAL|[Tt]raceback|panicked?|"
    r"[A-Z]\w*(?:Error|Exception))\b"
)
_ERROR_HINTS = ("rror", "RROR", "ail", "AIL", "atal", "ATAL", "CRITICAL", "raceback", "panic", "xception")
_CONTINUED = re.compile(r"\s+\S|Caused by|\.\.\. \d+ more")
_LONGEST_ERROR = 12
_SURE, _AHEAD, _AROUND = 0.5, 1.5, 5
"""The least worth of a line that is surely looked for, in itself or as a multiple of the next best one's, and the lines
on either side of it that may belong to it."""
_ROW = re.compile(r"(?:\|\s*)?(?=\S*\d|.{0,60}[|;,\t])\S+")
_LONGEST_NAME = 60


def _relevance(lines: Sequence[str], query: str) -> list[float]:
    """For each line the sum over the query's words in it, each weighted by how rare the word is in the text."""

    def words_of(text: str) -> list[str]:
        folded = text.casefold()
        return [*_WORD.findall(folded), *_MARKED.findall(folded), *(_PAIR.findall(text) if is_unspaced else ())]

    is_unspaced = max(filter(str.isalpha, query), default="") > "\u0dff"
    query_words = set(words_of(query))
    shared_words = [sorted(query_words.intersection(words_of(line))) for line in lines]
    frequency = Counter(word for words in shared_words for word in words)
    return [sum(1 / frequency[word] for word in words) for words in shared_words]


def _best_first(worth: Sequence[float]) -> list[int]:
    """The indices of lines that have any worth."""
    return sorted((at for at in range(len(worth)) if worth[at] > 0), key=lambda at: (-worth[at], at))


def _with_neighbours(
    ranked: list[int], worth: Sequence[float], texts: Sequence[str], numbers: Sequence[int], heads: frozenset[int]
) -> list[int]:
    """The indices of ranked lines; behind the best one, and those of its worth, the last heading above it and the lines
    around it.

    Of an element of XML, or an entry of YAML, one line has the name that is looked for, and the next ones what is said
    of it. A row of a table has all in one line. What is indented belongs to what stands above the blank line before it.
    """
    block = list[int]()
    if not ranked or worth[ranked[0]] < min([_SURE, *(_AHEAD * worth[at] for at in ranked[1:2])]):
        return ranked
    best, row = ranked[0], _row_of(texts[ranked[0]])
    heading = [at for at in range(best) if numbers[at] in heads][-1:]
    for step in (1, -1):
        for at in range(best + step, best + step * (_AROUND + 1), step):
            is_next = 0 <= at < len(texts) and numbers[at] - numbers[best] == at - best
            is_over = is_next and not texts[at].strip() and not (step < 0 and texts[best][:1].isspace())
            if not is_next or is_over or (row and _row_of(texts[at]) == row):
                break
            block.append(at)
    equals = (at for at in ranked if worth[at] == worth[best])
    return list(dict.fromkeys((best, *equals, *heading, *sorted(block, key=lambda at: abs(at - best)), *ranked)))


def _row_of(text: str) -> str:
    """How a row of a table, or a line of a log, begins; empty for other lines."""
    return re.sub(r"\w", "0", match[0]) if (match := _ROW.match(text)) is not None else ""


def _errors(texts: Sequence[str]) -> list[int]:
    """Errors with the lines that belong to them; of those that differ only in numbers the last one."""
    together = "\n".join(texts)
    if not any(hint in together for hint in _ERROR_HINTS):
        return []
    error_lines: dict[str, list[int]] = {}
    block: list[int] = []
    for at, text in enumerate(texts):
        if at - 1 in block[-1:] and len(block) < _LONGEST_ERROR and _CONTINUED.match(text):
            block.append(at)
        elif _ERROR.search(text):
            block, shape = [at], re.sub(r"\d+", "0", text)
            error_lines.pop(shape, None)
            error_lines[shape] = block
    return [line for block in error_lines.values() for line in block]


def _dense(mentioned: Sequence[Sequence[str]], cost: Sequence[float]) -> list[int]:
    """Lines by the names and numbers in them that no line before had, for what each costs."""
    seen_names: set[str] = set()
    worth: list[float] = []
    for entities, tokens in zip(mentioned, cost, strict=True):
        names = {*entities} - seen_names
        seen_names |= names
        worth.append(sum(min(len(name), 24) for name in names) / (tokens + _NOTE_TOKENS))
    return _best_first(worth)


# What is taken, and how it is written.


def _fitting(
    choose: Callable[[float], set[int]], render: Callable[[set[int]], str], *, max_tokens: int, counter: Counts
) -> tuple[str, set[int]] | None:
    """Lowers the budget until the text rendered from the choice fits; returns both, None where none fits."""
    budget = float(max_tokens)
    while indices := choose(budget):
        text = render(indices)
        used = counter.count(text)
        if used <= max_tokens:
            return text, indices
        budget *= min(0.98, max_tokens / used)
    return None


_FIRST_SHARE = 0.7
"""The most that the first line of a ranking takes of what is left: the record that was asked for may be long."""


def _records(outline: Sequence[Line]) -> list[int]:
    """The lines that begin the records of the longest list of objects, or of rows, in JSON."""
    begins = [at for at, line in enumerate(outline) if line.text[:1] in ("{", "[") and line.parent >= 0]
    counts = Counter(outline[at].parent for at in begins if outline[outline[at].parent].text == "[")
    ((parent, count),) = counts.most_common(1) or [(-1, 0)]
    return [at for at in begins if outline[at].parent == parent] if count >= LEAST_ROWS else []


def _pick(cost: Sequence[float], rankings: Sequence[tuple[float, Sequence[int]]], budget: float) -> set[int]:
    """Chooses lines: for each ranking within its share of the budget, then head and tail, two to one, with the rest,
    and what these leave for the last ranking.

    The first line of a ranking may take most of what is left, however small its share.

    Args:
        cost: tokens of each line.
        rankings: shares of the budget, each with line indices from best to worst. A line that does not fit is skipped.
    """
    picks: set[int] = set()
    total = remaining = budget - _NOTE_TOKENS

    def take(indices: Iterable[int], limit: float, *, skips: bool = True) -> None:
        nonlocal remaining
        remaining_tokens = min(limit, remaining)
        for index in indices:
            if index in picks:
                continue
            has_note = skips and index - 1 not in picks and index + 1 not in picks
            extra = cost[index] + (_NOTE_TOKENS if has_note else 0)
            if extra <= remaining_tokens:
                picks.add(index)
                remaining_tokens -= extra
                remaining -= extra
            elif not skips or remaining_tokens < _NOTE_TOKENS:
                break

    for share, ranked in rankings:
        take(ranked[:1], remaining * _FIRST_SHARE)
        take(ranked, total * share)
    take(range(len(cost)), remaining * 2 / 3, skips=False)
    take(range(len(cost) - 1, -1, -1), remaining, skips=False)
    take(rankings[-1][1], remaining)
    return picks


def _without_small_gaps(picks: set[int], cost: Sequence[float], numbers: Sequence[int]) -> set[int]:
    """Chosen lines with those between two of them that take no more than a note of them."""
    between = (
        range(first + 1, second)
        for first, second in pairwise(sorted(picks))
        if numbers[second] - numbers[first] == second - first and sum(cost[first + 1 : second]) <= _NOTE_TOKENS
    )
    return picks.union(*between)


def _with_gaps(texts: Sequence[str], numbers: Sequence[int], total: int, indices: set[int]) -> str:
    """The chosen texts, with a note of the missing lines in each gap.

    ``numbers`` are the texts' line numbers from 0, out of ``total``.
    """
    parts: list[str] = []
    next_number = 0
    for index in sorted(indices):
        if numbers[index] > next_number:
            parts.append(f"[… {span(next_number, numbers[index])} …]")
        parts.append(texts[index])
        next_number = numbers[index] + 1
    if next_number < total:
        parts.append(f"[… {span(next_number, total)} …]")
    return "\n".join(parts)


_NOTE = re.compile(r"\[… lines? (\d{1,9})(?:-(\d{1,9}))? …\]")


def _renumbered(lines: Sequence[str]) -> tuple[Sequence[str], Sequence[int], int]:
    """The lines of what may be an excerpt itself, their numbers in the text that it is of, and how many that has."""
    renumbered_lines: list[str] = []
    numbers: list[int] = []
    total = 0
    for line in lines:
        if (note := _NOTE.fullmatch(line)) is not None:
            total = max(total, int(note[2] or note[1]))
        else:
            renumbered_lines.append(line)
            numbers.append(total)
            total += 1
    return renumbered_lines, numbers, total


def _unshown_names(entities: Iterable[str], shown_text: str, max_tokens: int, counter: Counts) -> str:
    """The entities that are missing in what is shown, in their order, as many as fit."""
    remaining_tokens = max(0, max_tokens - 4)
    shown_names = {*entities_of(shown_text)}  # a search for each name takes seconds in a text of a megabyte
    missing = (name for name in dict.fromkeys(entities) if len(name) <= _LONGEST_NAME and name not in shown_names)
    names = list(islice(missing, remaining_tokens))
    costs = accumulate(counter.count_all([f", {name}" for name in names]))
    return ", ".join(name for name, cost in zip(names, costs, strict=True) if cost <= remaining_tokens)
