"""The text that a cut leaves in the place of what it takes: a summary and an entity table, which mostly grows.

The text stands where the first content went, behind what stays in front of that, so a cut that only adds to it leaves
both inside the provider's cached prefix. Once there is no room left for an addition, everything is ranked anew in a
part of it, so that the next cuts can add again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Literal, NamedTuple

from aether_context.canonical import hash_json
from aether_context.conversation.acts import acts_of, fitting, is_act
from aether_context.conversation.extracts import mark_of
from aether_context.conversation.orders import orders_text, rule, split_orders, standing_orders
from aether_context.conversation.todo import list_text, split_list
from aether_context.pack import NOTHING, Content, SummaryRequest
from aether_context.retrieval.ranking import is_telling, without_small_talk
from aether_context.text import Counts
from aether_context.text.entities import ADDRESS_SHARE, HISTORY, calls_line, entity_table, is_entry
from aether_context.text.shorten import level, sentences, shorten_line

SUMMARY_TITLE = "CONVERSATION SUMMARY (earlier messages that are no longer in full)"


def summary_message(summary: str) -> str:
    """The text of the part that holds a summary."""
    return f"{SUMMARY_TITLE}:\n{fenced(summary)}"


def fenced(text: str) -> str:
    """Text whose every line is a bullet or indented."""
    return "\n".join(line if line.startswith(("- ", "  ")) else f"  {line}" for line in text.splitlines())


MOST_TOKENS = 4_000
"""A recap's ceiling whatever the window: it lies in session state, where 12 KB of text are 4 KB or less."""

_LEAST_SHARE = 15


def least_summary(input_budget: int) -> int:
    """Tokens that a recap may take whatever is sent beside it: the orders of the user, the address of the past, marks
    of what people sent and the list of tasks have no other place."""
    return min(input_budget // _LEAST_SHARE, MOST_TOKENS)


_ORDERS = 0.4
"""The most of the user's standing orders, as a share of the recap."""
_LIST_SHARE = 0.25
"""The most of a to-do list."""
_HISTORY_LINE = f'- every earlier turn, word for word: {HISTORY} (search its words, "call 7" or "2025-01-31")'
_LEDGER, _SHORT_RESULTS, _ENTITIES = 0.25, 0.2, 0.7
_LEAST_LEDGER = 160
"""Tokens that acts and errors may take in half of any room: some five of them."""
_FIRST = 0.7
_LEAST_ADDED, _MOST_ADDED = 0.15, 0.3


def without_past(summary: str) -> str:
    """A summary that names no address of the past, for a request without a tool that reads it."""
    return summary.replace(f"{_HISTORY_LINE}\n", "").removesuffix(_HISTORY_LINE)


def recap(
    cut: Sequence[Content],
    staying: Sequence[Content],
    prior: Recap,
    *,
    max_tokens: int,
    counter: Counts,
    prepare: Callable[[Sequence[str]], object] | None = None,
    todo: tuple[str, Sequence[str]] | None = None,
    least_tokens: int = 0,
) -> str:
    """The text that replaces contents that a cut takes; empty where nothing fits.

    Args:
        cut: contents that leave, in their order.
        staying: contents that stay; what they mention is not repeated.
        prior: the recap of earlier cuts, and what this one is made with.
        prepare: that of `entity_table`.
        todo: the latest state of a to-do list, its tool and its items, without items where it is still sent; None
            where nothing is newer than that of earlier cuts.
        least_tokens: tokens that the orders, the address of the past, the marks and the list may take in any room: they
            have no other place.
    """
    orders, older, earlier = split_orders(prior.summary)
    most_tokens = max(max_tokens, least_tokens)
    head = orders_text(standing_orders(orders, cut), older, max_tokens=int(_ORDERS * most_tokens), counter=counter)
    names_past = prior.names_past or earlier.startswith(_HISTORY_LINE)
    earlier = earlier.removeprefix(_HISTORY_LINE).lstrip("\n")
    if names_past and counter.count(f"{head}\n{_HISTORY_LINE}") <= most_tokens:
        head = "\n".join(filter(None, (head, _HISTORY_LINE)))
    earlier, end = split_list(earlier)
    if todo is not None:
        limit = int(_LIST_SHARE * most_tokens)
        end = list_text(*todo, max_tokens=limit, counter=counter) if todo[1] else ""
    fixed_tokens = counter.count(head) + counter.count(end)
    most_tokens, max_tokens = most_tokens - fixed_tokens, max(0, max_tokens - fixed_tokens)
    beside_earlier = max_tokens - counter.count(earlier)
    new_marks = [mark for content in cut for mark in marks_of(content, prior.media)]
    marks = [*dict.fromkeys((*_MARK.findall(earlier), *new_marks))]
    # What people sent keeps its address, whatever is quoted beside it.
    for_marks = min(counter.count(_SENT_MEDIA + ", ".join(marks)) + 2, max_tokens // 2) if marks else 0
    for_new = min(counter.count(_SENT_MEDIA + ", ".join(new_marks)) + 2, max_tokens // 2) if new_marks else 0
    bullets, kept_summary, room = split_bullets(earlier), "", int(_FIRST * (max_tokens - for_marks))
    spare = max_tokens - for_marks - room
    if earlier and beside_earlier - for_new >= _LEAST_ADDED * max_tokens:
        bullets, kept_summary, room = [], earlier, min(beside_earlier - for_new, int(_MOST_ADDED * max_tokens))
        spare = beside_earlier - for_new - room
    entries = "\n".join(bullet for bullet in bullets if is_entry(bullet))
    texts = "\n".join(bullet for bullet in bullets if not (is_entry(bullet) or is_act(bullet)))
    ledger = [*filter(is_act, bullets), *acts_of(cut, prior.acting)]
    for_acts = max(int(_LEDGER * room), min(_LEAST_LEDGER, room // 2))
    acts = fitting(ledger, for_acts, 0, counter=counter)
    # Acts take what later cuts could add before they take what the table has.
    room_beside = room - max(0, counter.count(acts) - spare) - 2
    table = entity_table(
        cut,
        max_tokens=int(min(_ENTITIES * room, room_beside / (1 + ADDRESS_SHARE))),
        counter=counter,
        earlier=entries,
        present=staying,
        known=f"{kept_summary}\n{acts}",
        prepare=prepare,
    )
    limit = room_beside - counter.count(table)
    summary = prior.written.conversation(cut, max_tokens=limit, counter=counter, earlier=texts)
    summary = summary or summarize(
        cut,
        max_tokens=limit,
        counter=counter,
        earlier=texts,
        head=" ".join(head.split()),
        sent_text=prior.sent_text,
        media=prior.media,
    )
    unspent = min(limit - counter.count(summary), int(_SHORT_RESULTS * room))
    lines = fitting(ledger, for_acts, unspent, counter=counter)
    result = "\n".join(filter(None, (summary, lines, table))) or calls_line(cut, max_tokens=room, counter=counter)
    text = "\n".join(filter(None, (kept_summary, result)))
    missing = [mark for mark in marks if mark not in text]
    while missing and counter.count(text) + counter.count(_SENT_MEDIA + ", ".join(missing)) + 2 > most_tokens:
        missing.pop(0)
    return "\n".join(filter(None, (head, text, _SENT_MEDIA + ", ".join(missing) if missing else "", end)))


_SENT_MEDIA = "- sent by the user: "
_MARK = re.compile(r"\[[^\[\]\n]{1,200}\bartifact://evidence/[0-9a-f]{16}\.bin\]")
"""The mark in the place of what people sent."""
_SHOWN_MARKS = ("[picture", "[PDF", "[sound", "[video")


def marks_of(content: Content, media: Mapping[str, str]) -> list[str]:
    """The marks that stand for the media of a content."""
    return [mark for part in content.parts if (mark := mark_of(part, media))]


def can_be_read(content: Content, media: Mapping[str, str]) -> bool:
    """Tells whether a content holds media, all of which a model can be shown again by their marks."""
    marks = marks_of(content, media)
    return bool(marks) and all(_MARK.fullmatch(mark) and mark.startswith(_SHOWN_MARKS) for mark in marks)


# Summaries of a conversation: extractive ones, and those that a model writes.

_USER = "- user: "
_MISSING = "- messages left out: "
_COUNT = re.compile(rf"^{_MISSING}(\d{{1,9}})$", re.MULTILINE)
_SHARES_OF_A_MESSAGE, _LEAST_QUOTED, _MOST_QUOTED = 3, 48, 40_000
"""A message takes at most one of so many shares of a summary, or so many tokens where these are more, out of its first
characters."""
_AGENT_CHARACTERS = 300
_OTHER_MEANING = frozenset({"user", "model", "used", "written", "seen"})
"""First words of lines that are no agents' names: the roles in this conversation, and the titles of entity tables."""


def summarize(
    contents: Sequence[Content],
    *,
    max_tokens: int,
    counter: Counts,
    earlier: str = "",
    head: str = "",
    sent_text: str = "",
    media: Mapping[str, str] = NOTHING,
) -> str:
    """An extractive summary of removed contents: a bullet for each message, in their order, with its speaker.

    Human messages are chosen first: the first of all, which says what the work is about, then those that tell a
    number, a name, a date, a wish or a decision, the latest before older ones, then the others. They are quoted
    verbatim, long ones shortened to sentences of theirs. Messages of the model and of other agents follow in the same
    order while there is room, each cut to 300 characters. Greetings, thanks and praise are left out, and what announces
    a call, which itself says what it does. Empty where no bullet fits.

    Args:
        earlier: the summary of an earlier cut, whose bullets compete with the new ones.
        head: the text above it; messages in it are left out.
        sent_text: text that this one call sends beside it; messages in it come behind others of their kind.
        media: as of `Recap`. A message with such a mark is chosen before others.
    """
    earlier_bullets = [bullet for bullet in split_bullets(earlier) if not bullet.startswith(_MISSING)]
    messages = [
        content for content in contents if not content.responses and (content.words.strip() or marks_of(content, media))
    ]
    by_people = [bullet.startswith(_USER) for bullet in earlier_bullets]
    by_people += [content.role == "user" and not content.agent for content in messages]
    texts = [bullet.partition(": ")[2] for bullet in earlier_bullets]
    for content, is_persons in zip(messages, by_people[len(texts) :], strict=True):
        words = content.words[: _MOST_QUOTED if is_persons else 4 * _AGENT_CHARACTERS]
        texts.append(without_small_talk(_without_announcements(words) if content.calls else words))
    marks = [*(" ".join(_MARK.findall(bullet)) for bullet in earlier_bullets)]
    marks += [" ".join(marks_of(content, media)) for content in messages]

    def stands_in(text: str, index: int) -> bool:
        return bool(text) and not marks[index] and " ".join(texts[index].split()) in text

    def rank(index: int) -> tuple[bool, bool, bool, bool, int]:
        return not by_people[index], not marks[index], stands_in(sent_text, index), not is_telling(texts[index]), -index

    remains = (index for index, text in enumerate(texts) if text or marks[index])
    ranked = sorted((index for index in remains if not stands_in(head, index)), key=rank)

    def bullet(index: int) -> str:
        if index < len(earlier_bullets):
            return earlier_bullets[index]
        text = texts[index]
        if not by_people[index]:
            content = messages[index - len(earlier_bullets)]
            return f"- {_named(content.agent) or content.role}: {' '.join(text.split())[:_AGENT_CHARACTERS]}"
        text = shorten_line(text, quoted, counter=counter)
        return _USER + "\n  ".join([*text.splitlines(), *filter(None, [marks[index]])])

    remaining, quoted = max_tokens - 12, max(_LEAST_QUOTED, max_tokens // _SHARES_OF_A_MESSAGE)
    picks: dict[int, str] = {}
    first = (index for index in sorted(ranked) if by_people[index] and not stands_in(sent_text, index))
    for index in dict.fromkeys((*islice(first, 1), *ranked)):
        if remaining <= 0:
            break
        # Beside others only whole messages find little room. A word is at least a token, so that splitting shows it;
        # two are before each message, and a token ends it.
        whole = texts[index] if by_people[index] else texts[index][:_AGENT_CHARACTERS]
        too_long = picks and remaining < quoted and len(whole.split(None, remaining)) > remaining - 3
        if too_long:
            continue
        if (cost := counter.count(text := bullet(index)) + 1) <= remaining:
            picks[index] = text
            remaining -= cost
    if not picks:
        return ""
    missing = sum(int(count) for count in _COUNT.findall(earlier)) + len(by_people) - len(picks)
    return "\n".join([*(picks[index] for index in sorted(picks)), *([f"{_MISSING}{missing}"] if missing else [])])


def _without_announcements(words: str) -> str:
    """A text without the sentences that only say what the call beside it does."""
    parts = [sentence for sentence in sentences(words) if not rule("announces").search(sentence)]
    return "".join(parts[:-1] if parts and parts[-1].rstrip().endswith((":", "：")) else parts)


def split_bullets(text: str) -> list[str]:
    """The bullets of a text, each with the lines that follow it."""
    return re.split(r"\n(?=- )", text) if text else []


def _named(agent: str) -> str:
    """The name of an agent as a speaker."""
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
    def has_model(self) -> bool:
        return bool(self._model)

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


class Recap(NamedTuple):
    """The summary of what earlier calls cut, and what the next one is made with.

    ``sent_text`` is the text of cut turns that this one call sends beside it. ``written`` holds a
    model's; without one they are quotes. ``names_past`` is set where a tool reads the past, whose address is named
    then, ``media`` are the marks of what people sent, by the hashes of its bytes, and ``acting`` the names of tools
    that the policy says act.
    """

    summary: str = ""
    sent_text: str = ""
    written: Summaries = Summaries("", NOTHING)
    names_past: bool = False
    media: Mapping[str, str] = NOTHING
    acting: frozenset[str] = frozenset()


def _transcript(contents: Sequence[Content]) -> str:
    """Contents as text for a summarizer, a line for each part; long parts are cut so that all have room."""
    lines: list[tuple[str, str]] = []
    for content in contents:
        if content.words:
            lines.append((f"{_named(content.agent) or content.role}: ", content.words))
        for part in (*content.calls, *content.responses):
            lines.append((f"{part.kind} {part.name}: ", part.text))
        for quote in content.quotes:
            if quote.kind != "said":
                lines.append((f"{_named(quote.agent)}'s {quote.kind} {quote.name}: ", quote.text))
    ceiling = level([len(head) + len(text) + 1 for head, text in lines], _MOST_CHARACTERS)
    return "\n".join(head + text[:ceiling] for head, text in lines)
