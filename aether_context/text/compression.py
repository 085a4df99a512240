"""Shorter text that never paraphrases: lines of a long text, and summaries made of a conversation's own lines."""

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
"""So many words are looked for one by one before a line is taken apart; of more each would cost a pass over it."""
LONG_LINE, PIECE = 2_000, 400


class Counts(Protocol):
    """Counts the tokens of a text."""

    def count(self, text: str) -> int: ...


class CountsAhead(Counts, Protocol):
    """One that can be told what it is likely to be asked."""

    def count_ahead(self, texts: Sequence[str]) -> None:
        """Counts texts in one pass that are likely to be asked for one by one, where that is the cheaper way."""


# Lines of a long text.


def extract(text: str, *, max_tokens: int, counter: Counts, query: str = "") -> str:
    """The head, the tail and the most relevant lines of a text, within a budget.

    Half of the budget goes to lines that share rare words with ``query``, the other half to the head and the tail,
    two to one. Lines of more than 2,000 characters are taken in pieces of 400. Every gap leaves a note with the
    numbers of the missing lines. A text that fits comes back as it is.

    Args:
        max_tokens: ceiling for the result, notes included. Under about 30 nothing but a note fits.
    """
    whole = counter.count(text)
    if whole <= max_tokens:
        return text
    lines = lines_of(text)
    per_character = whole / max(1, len(text))
    cost = [len(line) * per_character + 1 for line in lines]
    rankings = [(0.5, most_relevant(lines, query))]
    found = fitting(
        lambda budget: pick(cost, rankings, budget),
        lambda chosen: with_gaps(lines, range(len(lines)), len(lines), chosen, f" of {len(lines)} left out"),
        max_tokens=max_tokens,
        counter=counter,
    )
    return found[0] if found is not None else f"[{len(lines)} lines left out]"


def fitting(
    choose: Callable[[float], set[int]], render: Callable[[set[int]], str], *, max_tokens: int, counter: Counts
) -> tuple[str, set[int]] | None:
    """The text of what is chosen for the largest budget whose text fits, with that choice; None where none does."""
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
    """Lines by each ranking for its share of the budget; the head and the tail, two to one, for the rest.

    Args:
        cost: tokens of each line.
        rankings: shares, and lines from the best to the worst. A line that does not fit is passed over.
        last: a ranking for what head and tail leave.
        note: tokens of the note of a gap.
        first_whole: whether the first line of a ranking may take half of what is left, however small its share.
    """
    chosen: set[int] = set()
    left = budget - note

    def take_best(ranked: Sequence[int], room: float) -> float:
        """Takes the best lines that fit, with the notes of the gaps that they make; returns what they cost."""
        unused = room
        for at in ranked:
            if unused < note:
                break
            extra = cost[at] + (0 if at - 1 in chosen or at + 1 in chosen else note)
            if at not in chosen and extra <= unused:
                chosen.add(at)
                unused -= extra
        return room - unused

    def take_in_order(order: Iterable[int], room: float) -> float:
        """Takes lines until one does not fit; returns what they cost."""
        used = 0.0
        for at in order:
            if at in chosen:
                continue
            if used + cost[at] > room:
                break
            chosen.add(at)
            used += cost[at]
        return used

    most = left
    for part, ranked in rankings:
        if first_whole:
            left -= take_best(ranked[:1], left / 2)
        left -= take_best(ranked, min(most * part, left))
    left -= take_in_order(range(len(cost)), left * 2 / 3)
    left -= take_in_order(range(len(cost) - 1, -1, -1), left)
    take_best(last, left)
    return chosen


def relevance(lines: Sequence[str], query: str) -> list[float]:
    """How many of the query's words a line holds, each weighed by how rare it is in the text."""
    wanted = _vocabulary(query)
    few = len(wanted) <= _FEW_WORDS
    found: list[Sequence[str]] = []
    for line in lines:
        folded = line.casefold()
        if few and not any(word in folded for word in wanted):
            found.append(())
        else:
            found.append(sorted({word.casefold() for word in _WORD.findall(line)} & wanted))
    frequency = Counter(word for words in found for word in words)
    return [sum(1 / frequency[word] for word in words) for words in found]


def most_relevant(lines: Sequence[str], query: str) -> list[int]:
    """The places of the lines that share words with the query, the most relevant first."""
    worth = relevance(lines, query)
    return sorted((at for at in range(len(lines)) if worth[at] > 0), key=lambda at: (-worth[at], at))


@lru_cache(maxsize=64)
def _vocabulary(query: str) -> frozenset[str]:
    return frozenset(word.casefold() for word in _WORD.findall(query))


def with_gaps(texts: Sequence[str], numbers: Sequence[int], total: int, chosen: set[int], note: str = "") -> str:
    """Chosen lines, by their ``numbers`` of ``total``, and a note in each gap that begins with what is missing."""
    out: list[str] = []
    following = 0
    for at in sorted(chosen):
        if numbers[at] > following:
            out.append(f"[… {span(following, numbers[at])}{note} …]")
        out.append(texts[at])
        following = numbers[at] + 1
    if following < total:
        out.append(f"[… {span(following, total)}{note} …]")
    return "\n".join(out)


def span(start: int, stop: int) -> str:
    """Some lines by their numbers from 1."""
    return f"line {start + 1}" if stop - start == 1 else f"lines {start + 1}-{stop}"


# Sentences of a short text.

_SENTENCE = re.compile(r"(?<=[.!?;。！？])\s*|\n+")


def shorten(text: str, *, max_tokens: int, counter: Counts, query: str = "") -> str:
    """A short text's most relevant sentences, in their order, with an ellipsis for each gap; whole where it fits.

    Sentences count by the query's words in them, rare ones more, the first sentence before others of equal worth.
    Where not even one sentence fits, the beginning of the best one is taken.
    """
    if counter.count(text) <= max_tokens:
        return text
    sentences, ranked = _sentences(text, query)
    chosen: set[int] = set()
    for at in ranked:
        if counter.count(_joined(sentences, chosen | {at})) <= max_tokens:
            chosen.add(at)
        elif chosen:
            break
    if chosen:
        return _joined(sentences, chosen)
    best = sentences[ranked[0]] if ranked else text
    per_character = counter.count(best) / max(1, len(best))
    keep = int(max_tokens / max(per_character, 1e-9))
    while keep > 1 and counter.count(best[:keep] + "…") > max_tokens:
        keep = keep * 9 // 10
    return best[: max(1, keep)] + "…"


@lru_cache(maxsize=500)
def _sentences(text: str, query: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """The sentences of a text, and their places from the most relevant to the least."""
    sentences = tuple(sentence for sentence in _SENTENCE.split(text) if sentence and sentence.strip())
    worth = relevance(sentences, query)
    return sentences, tuple(sorted(range(len(sentences)), key=lambda at: (-worth[at], at)))


def _joined(sentences: Sequence[str], chosen: set[int]) -> str:
    out = ""
    last = -1
    for at in sorted(chosen):
        gap = " " if at == last + 1 else " … "
        out += (gap if out else gap.lstrip()) + sentences[at].strip()
        last = at
    return out + (" …" if last < len(sentences) - 1 else "")


def level(sizes: Sequence[int], room: int) -> int:
    """The ceiling under which sizes sum to at most ``room`` when larger ones are cut down to it."""
    left = room
    for done, size in enumerate(sorted(sizes)):
        share = left // (len(sizes) - done)
        if size > share:
            return max(0, share)
        left -= size
    return max(sizes, default=0)


# Summaries of a conversation: in its own words, and those that a model writes.

_USER = "- user: "
_MISSING = "- messages left out: "
_COUNT = re.compile(rf"^{_MISSING}(\d{{1,9}})$", re.MULTILINE)
_SHARES_OF_A_MESSAGE = 3
_AGENT_CHARACTERS = 300
_OTHER_MEANING = frozenset({"user", "model", "used", "written", "seen"})
"""What a line may begin with besides an agent's name: the speakers of this conversation, the titles of entities."""


def summarize(contents: Sequence[Content], *, max_tokens: int, counter: Counts, earlier: str = "") -> str:
    """What was cut, in the conversation's own words: bullets with the speakers' lines.

    Human messages come first and word for word while they fit, shortened to their own sentences where they are long:
    the first of all, which says what the work is about, then the latest before older ones. The model's and other
    agents' come after them, each in a line of 300 characters. Within the summary they stand in their order. Empty where
    not even one bullet fits.

    Args:
        earlier: the summary of an earlier cut, whose bullets compete with the new ones.
    """
    before = [bullet for bullet in split_bullets(earlier) if not bullet.startswith(_MISSING)]
    spoken = [(content, words) for content in contents if not content.responses and (words := content.words.strip())]
    by_people = [bullet.startswith(_USER) for bullet in before]
    by_people += [content.role == "user" and not content.agent for content, _ in spoken]
    people = [at for at, person in enumerate(by_people) if person]
    agents = [at for at, person in enumerate(by_people) if not person]

    def bullet(at: int) -> str:
        if at < len(before):
            return before[at]
        content, words = spoken[at - len(before)]
        if not by_people[at]:
            line = " ".join(words[: 4 * _AGENT_CHARACTERS].split())
            if len(line) < _AGENT_CHARACTERS < len(words):  # it began with many blanks
                line = " ".join(words.split(None, _AGENT_CHARACTERS))
            return f"- {_speaker(content)}: {line[:_AGENT_CHARACTERS]}"
        words = shorten(words, max_tokens=max_tokens // _SHARES_OF_A_MESSAGE, counter=counter)
        return _USER + "\n  ".join(words.splitlines())

    left = max_tokens - 12
    chosen: dict[int, str] = {}
    for at in (*people[:1], *reversed(people[1:]), *reversed(agents)):
        if left <= 0:
            break
        made = bullet(at)
        # To count takes longer than to see that a bullet is too long: no word is less than a token.
        if len(made.split(None, left)) <= left and (cost := counter.count(made) + 1) <= left:
            chosen[at] = made
            left -= cost
    if not chosen:
        return ""
    missing = sum(int(count) for count in _COUNT.findall(earlier)) + len(by_people) - len(chosen)
    return "\n".join([*(chosen[at] for at in sorted(chosen)), *([f"{_MISSING}{missing}"] if missing else [])])


def split_bullets(text: str) -> list[str]:
    """The bullets of a text, each with the indented lines that belong to it."""
    bullets: list[list[str]] = []
    for line in text.splitlines():
        if bullets and not line.startswith("- "):
            bullets[-1].append(line)
        else:
            bullets.append([line])
    return ["\n".join(lines) for lines in bullets]


def _speaker(content: Content) -> str:
    """Who a content is of: the role, or the other agent whose turn it is."""
    return _named(content.agent) if content.agent else content.role


def _named(agent: str) -> str:
    return f"agent {agent}" if agent in _OTHER_MEANING else agent


_PROMPT_VERSION = 1
_LEAST_WRITTEN = 8
_MOST_CHARACTERS = 120_000


class Summaries:
    """The summarizer of one build: texts that a model has written by now, and requests for those it has not.

    Args:
        by: the model's name; empty where there is none, and nothing is requested.
        written: texts by the keys of earlier requests.
    """

    def __init__(self, by: str, written: Mapping[str, str]) -> None:
        self._by, self._written = by, written
        self._requests: dict[str, SummaryRequest] = {}

    @property
    def summary_requests(self) -> tuple[SummaryRequest, ...]:
        """What was asked for and not there, in that order."""
        return tuple(self._requests.values())

    def line(self, kind: Literal["memory", "evidence"], text: str, *, max_tokens: int, query: str) -> str | None:
        """A model's summary of a text as one line, None where there is none."""
        found = self._find(kind, text, max_tokens=max_tokens, query=query)
        return " ".join(found.split()) or None if found is not None else None

    def conversation(
        self, contents: Sequence[Content], *, max_tokens: int, counter: Counts, earlier: str = ""
    ) -> str | None:
        """A model's summary of what is cut, in bullets; None where there is none or it is longer than it may be.

        Args:
            max_tokens: ceiling; so are the tokens of what it replaces.
            earlier: the summary of an earlier cut, which the new one goes on from.
        """
        if not self._by:
            return None
        text = _transcript(contents)
        found = self._find("conversation", text, max_tokens=max_tokens, earlier=earlier)
        if found is None:
            return None
        lines = [line.strip().lstrip("-*•").strip() for line in found.splitlines()]
        summary = "\n".join(f"- {line}" for line in lines if line)
        ceiling = min(max_tokens, counter.count(text) + counter.count(earlier))
        return summary if summary and counter.count(summary) <= ceiling else None

    def _find(
        self,
        kind: Literal["memory", "evidence", "conversation"],
        text: str,
        *,
        max_tokens: int,
        query: str = "",
        earlier: str = "",
    ) -> str | None:
        if not self._by or max_tokens < _LEAST_WRITTEN or not (text or earlier):
            return None
        text = text[:_MOST_CHARACTERS]
        key = hash_json([_PROMPT_VERSION, self._by, kind, text, max_tokens, query, earlier])
        if key not in self._written:
            self._requests[key] = SummaryRequest(
                key=key, kind=kind, text=text, max_tokens=max_tokens, query=query, earlier=earlier
            )
        return self._written.get(key)


def _transcript(contents: Sequence[Content]) -> str:
    """Contents as a summarizer reads them, a line each part; long parts are cut so that all have room."""
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
