"""A user's standing orders: sentences that ask for something, forbid it or correct it for good, in the user's words.

Which words make a sentence an order, or take one back, is in orders.toml. An order goes where the user takes it back,
says the same again, or gives another value of the same kind, like the language of answers. Where a sentence takes back
a part of it, or may take it back, both sentences stay, in their order.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from functools import cache, lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from aether_context.conversation.turns import is_human, is_instruction
from aether_context.pack import Content, with_content
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
_STEMMERS = {"en": "english", "de": "german", "es": "spanish", "fr": "french", "pt": "portuguese"}
"""The languages whose words are compared by their stems, with the names of their stemmers."""
MOST_REQUESTS, _MOST_LINES = 24, 5
"""The requests of a long message, and the lines of a paragraph that holds nothing else."""
_WORD, _UNSPACED = re.compile(r"\w+"), "\u0e00"
"""A word, and where scripts begin that put no spaces between words."""
_QUOTED = re.compile(r"(?ms)^```.*?(?:^```|\Z)|^ {0,3}>[^\n]*")
_WRAPPED = re.compile(r"(?<=[^\n.!?:;]{40})\n(?=[a-zß-ÿ])")
"""Where a long line ends in the middle of a sentence."""
_CLAUSE = re.compile(r"[,;:(–—，；：]|\b(?:because|since|as)\b")
_TAGS = re.compile(r"^(?:<[\w:-]{1,40}>\s*)+|(?:\s*</[\w:-]{1,40}>)+$")
"""Tags around a text, as in ``<question>Who is it?</question>``."""
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
def _stop_words() -> frozenset[str]:
    """The words that say nothing of what an order is about."""
    return frozenset(word for table in _tables().values() for word in table.get("stop", "").split())


def standing_orders(earlier: Sequence[str], contents: Iterable[Content]) -> list[str]:
    """The orders that hold after these contents, the oldest first.

    Args:
        earlier: those that held before them.
    """
    orders, last_message = dict.fromkeys(earlier), tuple[tuple[str, bool], ...]()
    for content in contents:
        if is_human(content) and not is_instruction(content):
            message = _sentences(content)
            for at, (sentence, is_order) in enumerate(message):
                _apply(orders, sentence, is_order, (*last_message, *message[:at]))
            last_message = message
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


def requests_in(text: str) -> list[str]:
    """The lines of a long message that ask or order, at most 24, without what it quotes: first those of paragraphs of
    few lines, then questions in others.

    Of a line that is longer than an order, the sentences are looked at.
    """
    requests: tuple[list[str], list[str]] = ([], [])
    looked_at = 0
    for paragraph in _QUOTED.sub("\n", text).split("\n\n"):
        lines = paragraph.strip().splitlines()
        is_long = len(lines) > _MOST_LINES
        texts = chain.from_iterable([line] if len(line) <= _LONGEST else sentences(line) for line in lines)
        for words in (_TAGS.sub("", line_text.strip()) for line_text in texts):
            is_request = words.endswith(("?", "？", "؟"))
            if not (is_request or is_long) and looked_at < _MOST_SCANNED:
                looked_at += 1
                is_request = any(rule(use).search(words[:_LONGEST]) for use in ("requests", "bids"))
            if is_request and len(words) <= _LONGEST:
                requests[is_long].append(words)
    return [*dict.fromkeys([*requests[0], *requests[1]])][:MOST_REQUESTS]


@with_content
def _sentences(message: Content) -> tuple[tuple[str, bool], ...]:
    """The sentences of a message, and whether each is an order; without what it quotes."""
    text = _WRAPPED.sub(" ", _QUOTED.sub("\n", message.text))
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


class _Traits(NamedTuple):
    """A sentence as others are compared with it.

    ``hits`` counts its stop words by language. ``scopes`` holds by each kind of value in it what stands beside those,
    ``kinds`` are these kinds without numbers.
    """

    hits: tuple[int, ...]
    scopes: Mapping[str, str]
    negates: bool
    kinds: frozenset[str]


@lru_cache(maxsize=4_096)
def _traits(sentence: str) -> _Traits:
    text, tables = sentence.replace("’", "'"), _tables()
    words = set(_WORD.findall(text.casefold()))
    kinds = [kind for kind in tables["exclusive"] if rule(kind).search(text)]
    return _Traits(
        tuple(len(words.intersection(tables[name]["stop"].split())) for name in _STEMMERS),
        {kind: rule("number").sub(" ", rule(kind).sub(" ", text)) for kind in kinds},
        rule("negates").search(text) is not None,
        frozenset(kinds) - {"number"},
    )


@lru_cache(maxsize=1_024)
def _language(hits: tuple[int, ...], other_hits: tuple[int, ...]) -> str:
    """The language of two sentences, whose stop words they have most of."""
    return max(zip(map(operator.add, hits, other_hits), _STEMMERS, strict=True), key=operator.itemgetter(0))[1]


@lru_cache(maxsize=4_096)
def _subject(text: str, language: str) -> frozenset[str]:
    """The words that say what a text is about, by their stems in a language."""
    from aether_context.retrieval.terms import stem, terms  # loads numpy, which a chat without a cut does not need

    words = (word for word in _WORD.findall(text.casefold()) if word not in _stop_words())
    stems = (terms(word) if max(word) >= _UNSPACED else [stem(word, _STEMMERS[language])] for word in words)
    telling = (term for word_stems in stems for term in word_stems if term not in _stop_words())
    return frozenset(term for term in telling if not rule("particles").search(term))


@lru_cache(maxsize=4_096)
def _uses(words: str) -> frozenset[str]:
    """The tables of which words are in a sentence, of those that say what it does to orders; "once" alone where it is
    about one time."""
    if rule("once").search(words) and not rule("strong").search(words):
        return frozenset(("once",))
    tells = words.endswith(("?", "？")) or rule("reports").search(words)
    return frozenset(use for use in ("lifts", "permits", "frees", "changes") if not tells and rule(use).search(words))


def _apply(orders: dict[str, None], sentence: str, is_order: bool, earlier: Sequence[tuple[str, bool]]) -> None:
    """Adds a sentence where it is an order, and removes the orders that it repeats, replaces or takes back.

    It stands behind an order of which it takes a part back, or may take all of it back.

    Args:
        earlier: the sentences of the user since the beginning of the message before.
    """
    words = sentence.replace("’", "'")
    uses = _uses(words)
    if "once" in uses:
        return
    if "lifts" in uses and all(rule(use).search(words) for use in ("heading", "all", "forgets")):
        orders.clear()
        return
    effects = {order: _effect(order, sentence, uses) for order in orders} if uses or is_order else {}
    if earlier and rule("undoes").fullmatch(words):
        orders_before = [order for order, was_order in earlier if was_order and order in orders]
        effects |= dict.fromkeys(orders_before[-1:], "lifts" if earlier[-1][1] else "touches")
    for order, effect in effects.items():
        if effect in ("lifts", "replaces"):
            del orders[order]
    if not {"replaces", "touches"}.isdisjoint(effects.values()) or (is_order and "lifts" not in effects.values()):
        orders.pop(sentence, None)
        orders[sentence] = None
    if len(orders) > _MOST_ORDERS:
        del orders[next(iter(orders))]


def _effect(order: str, sentence: str, uses: Set[str]) -> str:
    """The effect of a sentence on an order before it: it "lifts" or "replaces" it where that is sure, and "touches" it
    where it may change it, or changes a part of it; otherwise empty.

    Args:
        uses: the tables of which words are in the sentence.
    """
    earlier, later = _traits(order), _traits(sentence)
    language = _language(earlier.hits, later.hits)
    about = _subject(order, language)
    if not uses and earlier.kinds.isdisjoint(
        later.kinds
    ):  # as of most pairs: each order is compared with each sentence
        return "replaces" if about and about == _subject(sentence, language) else ""
    lifted, is_taken = list[Set[str]](), False
    # "You can push to main" lifts a ban, "you need not push to main" lifts none.
    undoing = {"lifts", "permits" if earlier.negates else "frees"}
    is_own = any(word in order.casefold() for word in rule("takes").findall(sentence.casefold()))
    if not uses.isdisjoint(undoing):
        words = rule("takes").sub(" ", sentence)
        is_taken = _uses(words.replace("’", "'")).isdisjoint(undoing)
        # "Never drop the table" ends where one can be dropped.
        words = sentence if is_own and not is_taken else words
        lifted = [_subject(clause, language) for clause in (words, *_CLAUSE.split(words))]
    if about and about in lifted[:1]:
        limit = rule("limits").search(sentence)
        is_limited = limit is not None and limit[0].casefold() not in order.casefold()
        # "No emojis" does not end by "drop the emojis", nor "never drop the table" where one is dropped.
        return "touches" if is_limited or (is_taken and earlier.negates) else "lifts"
    if about and about == _subject(sentence, language) and uses.isdisjoint({"permits", "frees"}):
        return "touches" if is_own and earlier.negates is not later.negates else "replaces"
    is_touched = any(clause and _is_near(clause, about) for clause in lifted)
    # A ban goes on beside a wish: "never answer in French", "answer in German".
    kinds = earlier.scopes.keys() & later.scopes.keys() if earlier.negates is later.negates else ()
    for kind in kinds if not rule("adds").search(sentence) else ():
        scope, new_scope = (_subject(traits.scopes[kind], language) for traits in (earlier, later))
        if scope == new_scope and (uses or kind != "number"):
            return "replaces"
        is_touched |= bool(uses) and _is_near(new_scope, scope) and (kind != "number" or bool(new_scope))
    return "touches" if is_touched else ""


_LEAST_STEM = 4
"""Letters of a stem that another one may begin with: "sign" in "signature"."""


def _is_near(words: Set[str], about: Set[str]) -> bool:
    """Tells whether some words are all among others, or both share half of themselves."""
    begun = [about_word for about_word in about if len(about_word) >= _LEAST_STEM]
    shared = {word for word in words if word in about or any(map(word.startswith, begun))}
    return len(shared) == len(words) or 2 * len(shared) >= max(len(words), len(about))
