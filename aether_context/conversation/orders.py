"""A user's standing orders: sentences that ask for something, forbid it or correct it for good, in the user's words.

Which words make a sentence an order, or take one back, is in orders.toml. An order goes where the user takes it back,
says the same again, or gives another of a kind of which one alone can hold, like the language of answers. Where the
user takes back a part of it, both sentences stay, in their order.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from aether_context.conversation.turns import is_human, is_instruction
from aether_context.pack import Content
from aether_context.text import Counts
from aether_context.text.shorten import sentences

TITLE = "- orders of the user, which hold until the user takes them back:"
_OLDER = re.compile(r"  \((\d{1,6}) older ones are left out\)")
_MOST_SCANNED, _EDGE = 4_000, 1_000
"""Characters of a message that are read whole; of a longer one, which quotes something, its beginning and its end."""
_LONGEST = 300
"""Characters of an order."""
_MOST_ORDERS = 200
"""So many are held; of more the latest."""
_KEY = 5
"""The first letters of a word, by which forms of it are one in any language."""
_QUOTED = re.compile(r"(?ms)^```.*?(?:^```|\Z)|^ {0,3}>[^\n]*")
_WRAPPED = re.compile(r"(?<=[^\n.!?:;]{40})\n(?=[a-zß-ÿ])")
"""Where a long line ends in the middle of a sentence."""
_CLAUSE = re.compile(r"[,;:(–—，；：]|\b(?:because|since|as)\b")
_ITEM = re.compile(r"\s*(?:[-*•–]|\d{1,3}[.)])\s*(.+)")


@cache
def _tables() -> Mapping[str, Any]:
    import tomllib

    return tomllib.loads(Path(__file__).with_name("orders.toml").read_text(encoding="utf-8"))


@cache
def rule(use: str) -> re.Pattern[str]:
    """The words of all languages for one use, as one pattern."""
    listed = (table[use] for table in _tables().values() if use in table)
    words = (word for words in listed for word in (words if isinstance(words, list) else [words]))
    return re.compile("|".join(f"(?:{word})" for word in words), re.IGNORECASE)


@cache
def _stop_terms() -> frozenset[str]:
    """The terms that say nothing of what an order is about."""
    from aether_context.retrieval.terms import terms  # loads numpy, which a chat without a cut does not need

    return frozenset(term for table in _tables().values() for term in terms(table.get("stop", "")))


def standing_orders(earlier: Sequence[str], contents: Iterable[Content]) -> list[str]:
    """The orders that hold after these contents, the oldest first.

    Args:
        earlier: those that held before them.
    """
    orders = dict.fromkeys(earlier)
    for content in contents:
        if is_human(content) and not is_instruction(content):
            for sentence, is_order in _sentences(content.text):
                if not _take_back(orders, sentence) and is_order:
                    _add(orders, sentence)
    return list(orders)


def split_orders(summary: str) -> tuple[list[str], int, str]:
    """The orders at the beginning of a summary, the number of older ones that it left out, and what follows them."""
    if not summary.startswith(f"{TITLE}\n"):
        return [], 0, summary
    lines = summary.split("\n")
    end = next((at for at in range(1, len(lines)) if not lines[at].startswith("  ")), len(lines))
    older = _OLDER.fullmatch(lines[1])
    orders = [line[2:] for line in lines[1 + (older is not None) : end]]
    return orders, int(older[1]) if older is not None else 0, "\n".join(lines[end:])


def orders_text(orders: Sequence[str], older: int, *, max_tokens: int, counter: Counts) -> str:
    """The orders as the first lines of a summary; the latest, where there is no room for all, and empty where there is
    none for one.

    Args:
        older: the number of those that earlier summaries left out.
    """
    lines, room = list[str](), max_tokens - counter.count(TITLE) - 10
    for order in reversed(orders):
        room -= counter.count(order) + 2
        if room < 0:
            break
        lines.insert(0, f"  {order}")
    if not lines:
        return ""
    if missing := older + len(orders) - len(lines):
        lines.insert(0, f"  ({missing} older ones are left out)")
    return "\n".join([TITLE, *lines])


@lru_cache(maxsize=2_048)
def _sentences(text: str) -> tuple[tuple[str, bool], ...]:
    """The sentences of a message, and whether each is an order; without what it quotes."""
    text = _WRAPPED.sub(" ", _QUOTED.sub("\n", text))
    if len(text) <= _MOST_SCANNED:
        return tuple(_judged_sentences(text))
    # A sentence of which a part alone is read says something else than the whole.
    return (*tuple(_judged_sentences(text[:_EDGE]))[:-1], *tuple(_judged_sentences(text[-_EDGE:]))[1:])


def _judged_sentences(text: str) -> Iterator[tuple[str, bool]]:
    listed: bool | None = None  # whether the items of a list are orders; None outside one
    for line in text.splitlines():
        item = _ITEM.fullmatch(line[: 2 * _LONGEST])
        if listed is not None and item:
            yield _on_line(item[1]), listed
            continue
        end = line[-_LONGEST:]
        announces = line.rstrip().endswith((":", "：")) and bool(rule("heading").search(end))
        listed = not rule("theirs").search(end) if announces else None
        for sentence in sentences(item[1] if item else line):
            words = _on_line(sentence).replace("’", "'")
            is_order = bool(
                rule("strong").search(words) or (rule("bids").search(words) and not rule("story").search(words))
            )
            if words.endswith(("?", "？")):
                is_order = is_order and bool(rule("asks").search(words))
            yield _on_line(sentence), is_order and not announces and not rule("reports").search(words)


def _on_line(sentence: str) -> str:
    line = " ".join(sentence[: 2 * _LONGEST].split())
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"


@lru_cache(maxsize=4_096)
def _subject(sentence: str) -> frozenset[str]:
    """The words that say what a sentence is about."""
    from aether_context.retrieval.terms import terms

    telling = (term for term in terms(sentence.casefold()) if term not in _stop_terms())
    return frozenset(term[:_KEY] for term in telling if not rule("particles").search(term))


def _take_back(orders: dict[str, None], sentence: str) -> bool:
    """Takes orders back that a sentence lifts, and tells whether it lifts any; one that lifts a part of some stands
    behind them."""
    words = sentence.replace("’", "'")
    if not orders or not rule("lifts").search(words) or words.endswith(("?", "？")):
        return False
    if rule("heading").search(words) and rule("all").search(words) and rule("forgets").search(words):
        orders.clear()
        return True
    clauses = [_subject(clause) for clause in (sentence, *_CLAUSE.split(sentence), "")]
    subjects = {order: _subject(order) for order in orders}
    # The sentence has to be about little else: "you can see in the log that somebody pushed to main" lifts nothing.
    shared = {
        order: max(len(about & clause) for clause in clauses if 2 * len(about & clause) >= len(clause))
        for order, about in subjects.items()
    }
    whole = [order for order, about in subjects.items() if about and shared[order] == len(about)]
    is_part = any(0 < len(about) <= 2 * shared[order] and order not in whole for order, about in subjects.items())
    for order in whole:
        del orders[order]
    if is_part:
        orders[sentence] = None
    return is_part or bool(whole)


def _add(orders: dict[str, None], sentence: str) -> None:
    """Adds an order behind the others, in the place of those that it repeats or replaces."""
    about = _subject(sentence)
    kinds = [kind for kind in _tables()["exclusive"] if rule(kind).search(sentence)]
    negates = bool(rule("negates").search(sentence))
    for order in list(orders):
        # A ban goes on beside a wish: "never answer in French", "answer in German".
        is_replaced = bool(rule("negates").search(order)) is negates and any(rule(kind).search(order) for kind in kinds)
        if is_replaced or (about and _subject(order) == about):
            del orders[order]
    orders[sentence] = None
    if len(orders) > _MOST_ORDERS:
        del orders[next(iter(orders))]
