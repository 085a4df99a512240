"""Reading back: some lines of a stored output, and what in it answers a query, within a budget of tokens."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import accumulate, takewhile
from typing import TYPE_CHECKING, Any

from aether_context.canonical import strings
from aether_context.evidence.record import HEAD
from aether_context.pack import Part
from aether_context.text import Counts
from aether_context.text.json_lines import LinePiece
from aether_context.text.shorten import View, beginning

if TYPE_CHECKING:
    from aether_context.retrieval import Entry, HybridIndex

_AROUND = 2
_MOST_HITS = 200
_FIRST, _WORDS_OF_A_NAME, _SHORT_LINE = 4, 2, 40
_PASSAGE_LINES, _PASSAGE_CHARACTERS = 10, 300
_LONGEST_CALL = 120
"""Characters of a call in a session's past by which its result is found, too. Of what recorded runs of Toolathlon went
on to use and a request lacked, a search of the past gives 82 of 161 so, and 73 by half as many."""
_MOST_PASSAGES, _MOST_COMPARED = 1_000, 300
_RANKED = 80
"""Passages that are ranked: 85 of these 161 are found so, 82 with 40; 87 where those that repeat better ones come last.
"""
_MOSTLY = 0.8
"""The share of a passage from which on it counts as in the request: of 322 values that searches of a past look for they
give 167 so, and 165 where all of it has to stand there."""
_LEAST_PASSAGE = 64
"""Tokens under which no further passage is begun; a line hardly ever has more."""
_WORD = re.compile(r"[^\W_][\w./@:-]{2,}")
_CALL = re.compile(r"\W*(?:model )?calls?\s*(?:no\.?|number|#)?\s*(\d{1,9})\W*", re.IGNORECASE)
"""A query that asks for a call by its number."""
_NOTES = {
    "literal": "{matches} of {total} lines hold the query",
    "words": "no line holds the query as it is; {matches} of {total} hold its words",
    "ranked": "none of {total} lines holds the query as it is; these come nearest",
}
_MOST_OF_QUERY = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """Lines of an output from ``start`` to before ``stop``, counted from 0."""

    start: int
    stop: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """The results of a search: passages in the order of their worth, how they were found, and the number of lines that
    match."""

    passages: tuple[Passage, ...]
    how: str
    matches: int


def read_lines(view: View, start: int, count: int, *, max_tokens: int, counter: Counts) -> Passage:
    """As many of ``count`` lines from ``start`` on as the budget takes; of the first one at least the beginning."""
    stop = min(len(view.lines), start + count)
    used = accumulate(counter.count(view.line(at)) + 1 for at in range(start, stop))
    at = start + len([*takewhile(lambda tokens: tokens <= max_tokens, used)])
    if at > start or start >= stop:
        return Passage(start=start, stop=at, text="\n".join(map(view.line, range(start, at))))
    return Passage(start=start, stop=start + 1, text=beginning(view.line(start), max_tokens, counter))


class Searcher:
    """Finds lines of one output: those that hold the query's words as they stand, then passages by relevance.

    The passages are indexed once, at the first search that needs them.

    Args:
        redact: masks what is compared by words and by meaning.
        embedder: that of the index.
    """

    def __init__(self, view: View, *, redact: Callable[[str], str] | None = None, embedder: str | None = None) -> None:
        self.view = view
        self._redact = redact
        self._embedder = embedder

    def search(
        self, query: str, *, max_tokens: int, counter: Counts, sent_text: str = "", asking: str = ""
    ) -> Findings:
        """Passages that answer a query, as many as the budget takes.

        Lines with the query itself come first, upper and lower case alike, else those with all its words, else with
        most of them; a few lines around each are shown. Passages by relevance follow, then more such lines. A name that
        stands somewhere, of two words at most, is looked for as it is alone.

        Args:
            sent_text: what the model has before it; passages by relevance that stand in it come last.
            asking: the words with which the search is made, which are no answer to it.
        """
        matching, how = self._matching(query)
        looked_at = dict.fromkeys([*matching[:_MOST_HITS], *matching[-_MOST_HITS:]])
        repeated = {at for at in looked_at if self._stands_in(asking, at)}
        matching = [at for at in matching if at not in repeated]
        # Of many lines the first and the last ones come before those between.
        order = [*dict.fromkeys([*matching[:3], *matching[-1:], *matching[3:_MOST_HITS]])]
        places = [(max(0, at - _AROUND), min(len(self.view.lines), at + _AROUND + 1)) for at in order]
        if not matching or how != "literal" or len(query.split()) > _WORDS_OF_A_NAME:
            ranked = [span for span in self._ranked(query) if not self._stand_in(asking, span)]
            places[_FIRST:_FIRST] = [_trimmed(span, partial(self._stands_in, asking)) for span in ranked]
            hits = places[:_FIRST] if how == "literal" else []
            repeats = {span: self._stand_in(sent_text, span) for span in places[len(hits) :]}
            trimmed = [_trimmed(span, partial(self._stands_in, sent_text)) for span in repeats if not repeats[span]]
            places = [*hits, *trimmed, *filter(repeats.get, repeats)]
        passages: list[Passage] = []
        shown_lines, room = set[int](), max_tokens
        for begin, end in places:
            numbers = [at for at in range(begin, end) if at not in shown_lines]
            if not numbers or room < _LEAST_PASSAGE:
                continue
            passage = read_lines(self.view, numbers[0], numbers[-1] + 1 - numbers[0], max_tokens=room, counter=counter)
            room -= counter.count(passage.text) + 4
            shown_lines.update(range(passage.start, passage.stop))
            passages.append(passage)
        return Findings(passages=tuple(passages), how=how if matching else "ranked", matches=len(matching))

    def head(self, at: int) -> str:
        """The head of the entry of a session's past that a line belongs to; empty in other texts."""
        match = HEAD.match(self.view.lines[self._starts[at]])
        return match[0].rstrip(": ") if match else ""

    def _stand_in(self, text: str, span: tuple[int, int]) -> bool:
        """Tells whether the lines of a passage stand in a text, by four fifths of their characters at least."""
        sizes = {at: len(self.view.lines[at].strip()) for at in range(*span)} if text else {}
        size_in_text = sum(size for at, size in sizes.items() if self._stands_in(text, at))
        return bool(text) and size_in_text >= _MOSTLY * sum(sizes.values())

    def _stands_in(self, text: str, at: int) -> bool:
        """Tells whether a line stands in a text, a short one as a line of it."""
        line = HEAD.sub("", self.view.lines[at].strip()).removesuffix(",") if text else "\n"
        return line in text and (len(line) > _SHORT_LINE or f"\n{line}\n" in f"\n{text}\n")

    def _matching(self, query: str) -> tuple[list[int], str]:
        """Lines with the query, or with the most of its words, and which of the two."""
        whole = query.strip().strip("\"'").casefold()
        matching_lines = [at for at, count in enumerate(self._counts({whole})) if count] if whole else []
        if matching_lines:
            return matching_lines, "literal"
        words = {word.casefold().rstrip(".:") for word in _WORD.findall(query)}
        counts = self._counts(words) if len(words) > 1 else []
        highest = max(counts, default=0)
        if not highest or highest < min(len(words), max(2, len(words) / 2)):
            return [], ""
        return [at for at, count in enumerate(counts) if count == highest], "words"

    def _counts(self, texts: set[str]) -> list[int]:
        """Counts how many of some texts each line holds.

        A piece of a longer line also holds what begins there and ends in the next pieces, and counts for it and the
        next one together where each of the two has what the other lacks.
        """
        counts: list[int] = []
        reach, following, below = max(map(len, texts)), "", set[str]()
        is_json = bool(self.view.outline)  # where each piece is a text, in quotation marks
        rows = [row.text for row in self.view.outline] if is_json else self.view.lines
        for row, line in zip(reversed(rows), map(str.casefold, reversed(self.view.lines)), strict=True):
            bare, goes_on = line.removesuffix(",")[1:-1] if is_json else line, isinstance(row, LinePiece)
            joined = bare + following if goes_on else bare
            contained = {text for text in texts if text in line or 0 <= joined.find(text) < len(bare)}
            counts.append(len(contained | below if goes_on and contained - below else contained))
            following, below = joined[:reach], contained
        return counts[::-1]

    def _ranked(self, query: str) -> list[tuple[int, int]]:
        """Passages by words and meaning, the best first."""
        from aether_context.retrieval import HybridIndex

        passages, index = self._passages, self._index
        if index is None:
            # Of very many those are compared that hold the rarest of the query's words.
            worth = defaultdict[int, float](float)
            for word in sorted({word.casefold().rstrip(".:") for word in _WORD.findall(query)}):
                holders = [at for at, text in enumerate(self._texts) if word in text]
                for at in holders:
                    worth[at] += 1 / len(holders)
            best = sorted(worth, key=lambda at: (-worth[at], at))[:_MOST_COMPARED]
            index = HybridIndex(map(self._entry, best), self._embedder, redact=self._redact)
        return self._new_first([passages[int(hit.id)] for hit in index.search(query, limit=_RANKED)])

    def _new_first(self, spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Passages in their order, but those of which more than half stands in better ones behind all others."""
        fresh, repeated, better_lines = list[tuple[int, int]](), list[tuple[int, int]](), set[str]()
        for span in spans:
            lines = {HEAD.sub("", self.view.lines[at].strip()) for at in range(*span)}
            size_of_new = sum(map(len, lines - better_lines))
            (fresh if 2 * size_of_new >= sum(map(len, lines)) else repeated).append(span)
            better_lines |= lines
        return fresh + repeated

    def _entry(self, at: int) -> Entry:
        from aether_context.retrieval import Entry

        begin, end = self._passages[at]
        lines = map(self.view.line, range(begin, end))
        text = "\n".join(filter(None, (self._calls[begin], *lines)))
        # Beside those of its entry: what answers a question often stands next to the words of it.
        return Entry(id=str(at), text=text, thread=self.head(begin) or None)

    @cached_property
    def _starts(self) -> list[int]:
        """For each line the one that begins its entry of a session's past; the first one in other texts."""
        return [*accumulate((at if HEAD.match(line) else 0 for at, line in enumerate(self.view.lines)), max)]

    @cached_property
    def _calls(self) -> list[str]:
        """In a session's past, for each line of a result the tool and the beginning of its call; else nothing."""
        result, calls, head = list[str](), dict[str, str](), ""
        for line in self.view.lines:
            if match := HEAD.match(line):
                # Behind the number of the call and the time.
                entry, title = line.split(", ", 2)[2], match[0].split(", ", 2)[2]
                tool, is_result, _ = title.partition(" gave ")
                head = f"{calls.get(tool, '')} {tool}" if is_result else ""
                if " called " in title:
                    calls[title.split()[-1]] = entry[:_LONGEST_CALL]
            result.append(head)
        return result

    @cached_property
    def _passages(self) -> list[tuple[int, int]]:
        passages: list[tuple[int, int]] = []
        begin = size = 0
        for at, line in enumerate(self.view.lines):
            if at > begin and (at - begin >= _PASSAGE_LINES or size + len(line) > _PASSAGE_CHARACTERS):
                passages.append((begin, at))
                begin, size = at, 0
            size += len(line)
        return [*passages, (begin, len(self.view.lines))]

    @cached_property
    def _texts(self) -> list[str]:
        """The passages with the calls that they answer, lower case."""
        lines, calls = self.view.lines, self._calls
        return ["\n".join([calls[begin], *lines[begin:end]]).casefold() for begin, end in self._passages]

    @cached_property
    def _index(self) -> HybridIndex | None:
        """The passages by words and meaning; None for an output of too many of them."""
        from aether_context.retrieval import HybridIndex

        if len(self._passages) > _MOST_PASSAGES:
            return None
        return HybridIndex(map(self._entry, range(len(self._passages))), self._embedder, redact=self._redact)


def _trimmed(span: tuple[int, int], is_known: Callable[[int], bool]) -> tuple[int, int]:
    """A passage without the lines at its two ends that are known."""
    numbers = [at for at in range(*span) if not is_known(at)]
    return (numbers[0], numbers[-1] + 1) if numbers else span


def search_answer(
    searcher: Searcher,
    query: str,
    *,
    is_past: bool,
    max_tokens: int,
    counter: Counts,
    sent_parts: Sequence[Part],
    asking: str,
) -> dict[str, Any]:
    """The answer of ``search_artifact``: passages with the numbers of their lines, and a note how they were found.

    Args:
        is_past: whether the text is a session's past, of which a query may name a call by its number.
        sent_parts: those of the agent's last request.
        asking: see `Searcher.search`.
    """
    lines, total = searcher.view.lines, len(searcher.view.lines)
    if is_past and (number := _CALL.fullmatch(query)):
        query = f"call {number[1]}, "
    sent_texts = [part.text for part in sent_parts]
    sent_texts += [text for part in sent_parts if part.kind == "response" for _, text in strings(json.loads(part.text))]
    findings = searcher.search(
        query[:_MOST_OF_QUERY],
        max_tokens=max_tokens,
        counter=counter,
        sent_text="\n".join(sent_texts),
        asking=asking,
    )
    if not findings.passages:
        return {"found": [], "note": f"nothing in its {total} lines answers this: try other words"}
    entries = defaultdict[str | int, list[Passage]](list)
    for passage in findings.passages:
        entries[(is_past and searcher.head(passage.start)) or passage.start].append(passage)
    return {
        "found": [_entry_of(lines, head, passages) for head, passages in entries.items()],
        "note": _NOTES[findings.how].format(matches=findings.matches, total=total),
    }


def _entry_of(lines: Sequence[str], head: str | int, passages: list[Passage]) -> dict[str, str]:
    """Passages of one entry of the past, in its order, those that follow each other as one; or one of another text."""
    joined = list[Passage]()
    for passage in sorted(passages, key=lambda passage: passage.start):
        if joined and joined[-1].stop == passage.start:
            last = joined.pop()
            passage = Passage(start=last.start, stop=passage.stop, text=f"{last.text}\n{passage.text}")
        joined.append(passage)
    texts = {"lines": ", ".join(map(line_range, joined)), "text": "\n…\n".join(passage.text for passage in joined)}
    return texts | ({"of": head} if isinstance(head, str) and not HEAD.match(lines[joined[0].start]) else {})


def line_range(passage: Passage) -> str:
    """The numbers of a passage's lines, counted from 1."""
    is_one = passage.stop - passage.start == 1
    return str(passage.start + 1) if is_one else f"{passage.start + 1}-{passage.stop}"
