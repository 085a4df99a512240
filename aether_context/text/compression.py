"""Shortens texts without paraphrasing: lines of a long text, sentences of a short one, a conversation's own lines."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Literal, Protocol

from aether_context.canonical import hash_json
from aether_context.pack import Content, SummaryRequest

_WORD = re.compile(r"[^\W_]{2,}", re.UNICODE)
_FEW_WORDS = 64
"""Up to this many query words are first searched for in a line one by one, before it is split into words."""
LONG_LINE, PIECE = 2_000, 400


class Counts(Protocol):
    """Counts the tokens of a text."""

    def count(self, text: str) -> int: ...


# Lines of a long text.


def extract(text: str, *, max_tokens: int, counter: Counts, query: str = "") -> str:
    """The head, the tail and the most relevant lines of a text, within a budget.

    Half of the budget goes to lines that share rare words with ``query``, the other half to the head and the tail, two
    to one. Lines of more than 2,000 characters are split into pieces of 400. In each gap a note gives the numbers of
    the missing lines. A text that fits is returned unchanged.

    Args:
        max_tokens: the most tokens of the result, notes included. Below about 30 only a note fits.
    """
    total_tokens = counter.count(text)
    if total_tokens <= max_tokens:
        return text
    lines = lines_of(text)
    per_character = total_tokens / max(1, len(text))
    cost = [len(line) * per_character + 1 for line in lines]
    rankings = [(0.5, most_relevant(lines, query))]
    result = fitting(
        lambda budget: pick(cost, rankings, budget),
        lambda chosen: with_gaps(lines, range(len(lines)), len(lines), chosen, f" of {len(lines)} left out"),
        max_tokens=max_tokens,
        counter=counter,
    )
    return result[0] if result is not None else f"[{len(lines)} lines left out]"


def fitting(
    choose: Callable[[float], set[int]], render: Callable[[set[int]], str], *, max_tokens: int, counter: Counts
) -> tuple[str, set[int]] | None:
    """Lowers the budget until the text rendered from the choice fits; returns both, None where none fits.

    Args:
        choose: the indices of lines for a budget in tokens.
        render: the text of chosen lines.
    """
    budget = float(max_tokens)
    while budget >= 8:
        chosen = choose(budget)
        text = render(chosen)
        used = counter.count(text)
        if used <= max_tokens:
            return text, chosen
        budget *= min(0.98, max_tokens / used)
    return None


def lines_of(text: str) -> list[str]:
    """The lines of a text, those of more than 2,000 characters in pieces of 400."""
    lines: list[str] = []
    for line in text.split("\n"):
        if len(line) <= LONG_LINE:
            lines.append(line)
        else:
            lines += [line[start : start + PIECE] for start in range(0, len(line), PIECE)]
    return lines


def pick(
    cost: Sequence[float],
    rankings: Sequence[tuple[float, Sequence[int]]],
    budget: float,
    *,
    last: Sequence[int] = (),
    note: float = 14.0,
    first_whole: bool = False,
) -> set[int]:
    """Chooses lines: for each ranking within its share of the budget, then head and tail, two to one, with the rest.

    Args:
        cost: tokens of each line.
        rankings: shares of the budget, each with line indices from best to worst. A line that does not fit is skipped.
        last: a ranking for the tokens that head and tail leave.
        note: tokens of the note in a gap.
        first_whole: whether the first line of a ranking may take half of what is left, however small its share.
    """
    chosen: set[int] = set()
    remaining = budget - note

    def take_best(ranked: Sequence[int], limit: float) -> float:
        """Takes the best lines that fit, with the notes in the gaps before them; returns the tokens used."""
        unused = limit
        for index in ranked:
            if unused < note:
                break
            extra = cost[index] + (0 if index - 1 in chosen or index + 1 in chosen else note)
            if index not in chosen and extra <= unused:
                chosen.add(index)
                unused -= extra
        return limit - unused

    def take_in_order(indices: Iterable[int], limit: float) -> float:
        """Takes lines until one does not fit; returns the tokens used."""
        used = 0.0
        for index in indices:
            if index in chosen:
                continue
            if used + cost[index] > limit:
                break
            chosen.add(index)
            used += cost[index]
        return used

    total = remaining
    for share, ranked in rankings:
        if first_whole:
            remaining -= take_best(ranked[:1], remaining / 2)
        remaining -= take_best(ranked, min(total * share, remaining))
    remaining -= take_in_order(range(len(cost)), remaining * 2 / 3)
    remaining -= take_in_order(range(len(cost) - 1, -1, -1), remaining)
    take_best(last, remaining)
    return chosen


def relevance(lines: Sequence[str], query: str) -> list[float]:
    """For each line the sum over the query's words in it, each weighted by how rare the word is in the text."""
    folded = [line.casefold() for line in lines]
    together = "\n".join(folded)
    # Most words of a query are nowhere, which is told sooner than where each one is.
    query_words = {word for word in _vocabulary(query) if word in together}
    shared_words: list[Sequence[str]] = []
    for line, text in zip(lines, folded, strict=True):
        if len(query_words) <= _FEW_WORDS and not any(word in text for word in query_words):
            shared_words.append(())
        else:
            words = _WORD.findall(text) if line.isascii() else [word.casefold() for word in _WORD.findall(line)]
            shared_words.append(sorted(query_words.intersection(words)))
    frequency = Counter(word for words in shared_words for word in words)
    return [sum(1 / frequency[word] for word in words) for words in shared_words]


def most_relevant(lines: Sequence[str], query: str) -> list[int]:
    """The indices of the lines that share words with the query, the most relevant first."""
    scores = relevance(lines, query)
    return sorted(
        (index for index in range(len(lines)) if scores[index] > 0), key=lambda index: (-scores[index], index)
    )


@lru_cache(maxsize=64)
def _vocabulary(query: str) -> frozenset[str]:
    return frozenset(word.casefold() for word in _WORD.findall(query))


def with_gaps(texts: Sequence[str], numbers: Sequence[int], total: int, chosen: set[int], note: str = "") -> str:
    """The chosen texts, with a note in each gap that begins with the missing lines.

    ``numbers`` are the texts' line numbers from 0, out of ``total``; ``note`` ends each note.
    """
    parts: list[str] = []
    next_number = 0
    for index in sorted(chosen):
        if numbers[index] > next_number:
            parts.append(f"[… {span(next_number, numbers[index])}{note} …]")
        parts.append(texts[index])
        next_number = numbers[index] + 1
    if next_number < total:
        parts.append(f"[… {span(next_number, total)}{note} …]")
    return "\n".join(parts)


def span(start: int, stop: int) -> str:
    """Words for lines by their numbers from 1: ``line 3``, ``lines 3-7``."""
    return f"line {start + 1}" if stop - start == 1 else f"lines {start + 1}-{stop}"


# Sentences of a short text.

_SENTENCE = re.compile(r"(?<=[.!?;。！？])\s*|\n+")


def shorten(text: str, *, max_tokens: int, counter: Counts, query: str = "") -> str:
    """A short text's most relevant sentences, in their order, with an ellipsis for each gap; the text where it fits.

    Sentences are ranked by the query's words in them, as in `relevance`, and at equal scores by their order. Where no
    sentence fits, the beginning of the best one is taken.
    """
    if counter.count(text) <= max_tokens:
        return text
    sentences, ranked = _sentences(text, query)
    first = 0
    while first < len(ranked) and counter.count(_joined(sentences, {ranked[first]})) > max_tokens:
        first += 1
    # As many as fit, in steps that grow until they do not: a text may have a sentence for every other character.
    size, step, grows = 0, 1, True
    while step:
        more = first + size + step
        if more <= len(ranked) and counter.count(_joined(sentences, set(ranked[first:more]))) <= max_tokens:
            size += step
        else:
            grows = False
        step = 2 * step if grows else step // 2
    if size:
        return _joined(sentences, set(ranked[first : first + size]))
    best = sentences[ranked[0]] if ranked else text
    per_character = counter.count(best) / max(1, len(best))
    length = int(max_tokens / max(per_character, 1e-9))
    while length > 1 and counter.count(best[:length] + "…") > max_tokens:
        length = length * 9 // 10
    return best[: max(1, length)] + "…"


@lru_cache(maxsize=500)
def _sentences(text: str, query: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """The sentences of a text, and their indices from the most to the least relevant."""
    sentences = tuple(sentence for sentence in _SENTENCE.split(text) if sentence and sentence.strip())
    scores = relevance(sentences, query)
    return sentences, tuple(sorted(range(len(sentences)), key=lambda index: (-scores[index], index)))


def _joined(sentences: Sequence[str], chosen: set[int]) -> str:
    joined = ""
    previous = -1
    for index in sorted(chosen):
        gap = " " if index == previous + 1 else " … "
        joined += (gap if joined else gap.lstrip()) + sentences[index].strip()
        previous = index
    return joined + (" …" if previous < len(sentences) - 1 else "")


def level(sizes: Sequence[int], limit: int) -> int:
    """The largest ceiling at which sizes that are cut down to it sum to at most ``limit``."""
    remaining = limit
    for position, size in enumerate(sorted(sizes)):
        share = remaining // (len(sizes) - position)
        if size > share:
            return max(0, share)
        remaining -= size
    return max(sizes, default=0)


# Summaries of a conversation: extractive ones, and those that a model writes.

_USER = "- user: "
_MISSING = "- messages left out: "
_COUNT = re.compile(rf"^{_MISSING}(\d{{1,9}})$", re.MULTILINE)
_SHARES_OF_A_MESSAGE = 3
_AGENT_CHARACTERS = 300
_OTHER_MEANING = frozenset({"user", "model", "used", "written", "seen"})
"""First words of lines that are no agents' names: the roles in this conversation, and the titles of entity tables."""


def summarize(contents: Sequence[Content], *, max_tokens: int, counter: Counts, earlier: str = "") -> str:
    """An extractive summary of removed contents: a bullet for each message, in their order, with its speaker.

    Human messages are chosen first: the first of all, which says what the work is about, then the latest before older
    ones. They are quoted verbatim, long ones shortened to sentences of theirs. Messages of the model and of other
    agents follow while there is room, each cut to 300 characters. Empty where no bullet fits.

    Args:
        earlier: the summary of an earlier cut, whose bullets compete with the new ones.
    """
    earlier_bullets = [bullet for bullet in split_bullets(earlier) if not bullet.startswith(_MISSING)]
    messages = [(content, words) for content in contents if not content.responses and (words := content.words.strip())]
    by_people = [bullet.startswith(_USER) for bullet in earlier_bullets]
    by_people += [content.role == "user" and not content.agent for content, _ in messages]
    people_indices = [index for index, person in enumerate(by_people) if person]
    agent_indices = [index for index, person in enumerate(by_people) if not person]

    def bullet(index: int) -> str:
        if index < len(earlier_bullets):
            return earlier_bullets[index]
        content, words = messages[index - len(earlier_bullets)]
        if not by_people[index]:
            line = " ".join(words[: 4 * _AGENT_CHARACTERS].split())
            if len(line) < _AGENT_CHARACTERS < len(words):  # the text began with many blanks
                line = " ".join(words.split(None, _AGENT_CHARACTERS))
            return f"- {_speaker(content)}: {line[:_AGENT_CHARACTERS]}"
        words = shorten(words, max_tokens=max_tokens // _SHARES_OF_A_MESSAGE, counter=counter)
        return _USER + "\n  ".join(words.splitlines())

    remaining = max_tokens - 12
    chosen: dict[int, str] = {}
    for index in (*people_indices[:1], *reversed(people_indices[1:]), *reversed(agent_indices)):
        if remaining <= 0:
            break
        text = bullet(index)
        # A word is at least a token, so that splitting shows more cheaply than counting that a bullet is too long.
        if len(text.split(None, remaining)) <= remaining and (cost := counter.count(text) + 1) <= remaining:
            chosen[index] = text
            remaining -= cost
    if not chosen:
        return ""
    missing = sum(int(count) for count in _COUNT.findall(earlier)) + len(by_people) - len(chosen)
    return "\n".join([*(chosen[index] for index in sorted(chosen)), *([f"{_MISSING}{missing}"] if missing else [])])


def split_bullets(text: str) -> list[str]:
    """The bullets of a text, each with the lines that follow it."""
    bullets: list[list[str]] = []
    for line in text.splitlines():
        if bullets and not line.startswith("- "):
            bullets[-1].append(line)
        else:
            bullets.append([line])
    return ["\n".join(lines) for lines in bullets]


def _speaker(content: Content) -> str:
    """The speaker of a content: its role, or the other agent whose turn it is."""
    return _named(content.agent) if content.agent else content.role


def _named(agent: str) -> str:
    return f"agent {agent}" if agent in _OTHER_MEANING else agent


_PROMPT_VERSION = 1
_LEAST_WRITTEN = 8
_MOST_CHARACTERS = 120_000


class Summaries:
    """The model's summaries for one build: those written already, and requests for those that are missing.

    Args:
        model: the model's name; empty where there is none, and nothing is requested.
        written: summaries by the keys of earlier requests.
    """

    def __init__(self, model: str, written: Mapping[str, str]) -> None:
        self._model, self._written = model, written
        self._requests: dict[str, SummaryRequest] = {}

    @property
    def summary_requests(self) -> tuple[SummaryRequest, ...]:
        """Requests for the summaries that were missing, in the order in which they were needed."""
        return tuple(self._requests.values())

    def line(self, kind: Literal["memory", "evidence"], text: str, *, max_tokens: int, query: str) -> str | None:
        """A model's summary of a text as one line, None where there is none."""
        summary = self._find(kind, text, max_tokens=max_tokens, query=query)
        return " ".join(summary.split()) or None if summary is not None else None

    def conversation(
        self, contents: Sequence[Content], *, max_tokens: int, counter: Counts, earlier: str = ""
    ) -> str | None:
        """A model's summary of removed contents, in bullets; None where there is none, or it is too long.

        Args:
            max_tokens: the most tokens; it also must not be longer than what it replaces.
            earlier: the summary of an earlier cut, which the new one continues.
        """
        if not self._model:
            return None
        text = _transcript(contents)
        written = self._find("conversation", text, max_tokens=max_tokens, earlier=earlier)
        if written is None:
            return None
        lines = [line.strip().lstrip("-*•").strip() for line in written.splitlines()]
        summary = "\n".join(f"- {line}" for line in lines if line)
        limit = min(max_tokens, counter.count(text) + counter.count(earlier))
        return summary if summary and counter.count(summary) <= limit else None

    def _find(
        self,
        kind: Literal["memory", "evidence", "conversation"],
        text: str,
        *,
        max_tokens: int,
        query: str = "",
        earlier: str = "",
    ) -> str | None:
        if not self._model or max_tokens < _LEAST_WRITTEN or not (text or earlier):
            return None
        text = text[:_MOST_CHARACTERS]
        key = hash_json([_PROMPT_VERSION, self._model, kind, text, max_tokens, query, earlier])
        if key not in self._written:
            self._requests[key] = SummaryRequest(
                key=key, kind=kind, text=text, max_tokens=max_tokens, query=query, earlier=earlier
            )
        return self._written.get(key)


def _transcript(contents: Sequence[Content]) -> str:
    """Contents as text for a summarizer, a line for each part; long parts are cut so that all have room."""
    lines: list[tuple[str, str]] = []
    for content in contents:
        if content.words:
            lines.append((f"{_speaker(content)}: ", content.words))
        for part in (*content.calls, *content.responses):
            lines.append((f"{part.kind} {part.name}: ", part.text))
        for quote in content.quotes:
            if quote.kind != "said":
                lines.append((f"{_named(quote.agent)}'s {quote.kind} {quote.name}: ", quote.text))
    ceiling = level([len(head) + len(text) + 1 for head, text in lines], _MOST_CHARACTERS)
    return "\n".join(head + text[:ceiling] for head, text in lines)
