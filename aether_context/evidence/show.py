"""The kind of text that a tool's output is, told from its beginning, and the shown part of it, by the package or by
extractors from outside."""

from __future__ import annotations

import re
from collections import Counter
from typing import Literal, Protocol, TypeAlias

from aether_context.errors import PolicyError, near_names
from aether_context.text import Counts
from aether_context.text.json_lines import LEAST_ROWS
from aether_context.text.shorten import Excerpt, lines_view, query_words, sampled, shorten, shorten_line, tokens_of
from aether_context.tokens import TokenCounter

# The kind of text.

Kind: TypeAlias = Literal["json", "table", "list", "text", "data"]
"""``list`` has a path or an address at the head of each line, or records of lines with keys; ``data`` is binary data
written as text."""

MEDIA_TYPES: dict[Kind, tuple[str, str]] = {
    "json": ("application/json", "json"),
    "table": ("text/csv", "csv"),
    "list": ("text/plain", "txt"),
    "text": ("text/plain", "txt"),
    "data": ("application/octet-stream", "bin"),
}
"""The media type of a kind, and the ending of its name."""

_TEXT = re.compile(
    r"text/.+|image/svg\+xml|application/(?:[\w.+-]+\+)?(?:json|xml|yaml|x-yaml|toml|javascript|sql|x-sh|x-ndjson)"
)
_LOOKED_AT = 20_000
_LEAST_KEYS = 3
_LEAST_DATA = 400
_DATA_URI = re.compile(r"data:([\w.+-]+/[\w.+-]+)?(;[\w=.-]+)*;base64,")
_ENCODED = re.compile(r"[A-Za-z0-9+/_\s-]{400,}={0,2}")
_KEYED = re.compile(r"""\s*(?:[-*]\s+)?["']?([^\W\d][\w .-]{0,30}?)["']?\s?[:=]\s*\S""")
_LISTED = re.compile(r"\s*(?:[-*] )?(?=\S*[^\W\d])(?:https?:/|[\w.~@-]*)(?:/[\w.~@+%-]+)+(?:[\s:,(]|$)")


def is_text(media_type: str) -> bool:
    """Tells whether bytes of a media type are read and searched as text."""
    return _TEXT.fullmatch(media_type.partition(";")[0].strip().lower()) is not None


def kind_of(text: str) -> Kind:
    """The kind of a text that has been decoded."""
    head = text[:_LOOKED_AT]
    start = head.lstrip()[:1]
    if is_data(head):
        return "data"
    if start in ("{", "[") and re.match(r'\s*[{\[]\s*["{\[\]}\d-]', head):
        return "json"
    lines = [line for line in head.split("\n")[:60] if line.strip()]
    if len(lines) < 3:
        return "text"
    for mark in ("|", "\t", ",", ";"):
        columns = Counter(line.count(mark) for line in lines)
        ((usual, count),) = columns.most_common(1)
        if usual >= (1 if mark in "|\t" else 2) and count * 4 >= len(lines) * 3:
            return "table"
    keys = Counter(keyed[1].casefold() for line in lines if (keyed := _KEYED.match(line)) is not None)
    repeated = [count for count in keys.values() if count >= LEAST_ROWS]
    in_records = sum(repeated) if len(repeated) >= _LEAST_KEYS else 0
    if max(in_records, sum(_LISTED.match(line) is not None for line in lines)) * 4 >= len(lines) * 3:
        return "list"
    return "text"


def is_data(text: str) -> bool:
    """Tells whether a text is binary data in base64, in hexadecimal, or as it came."""
    if _DATA_URI.match(text):
        return True
    if len(text) >= _LEAST_DATA and _ENCODED.fullmatch(text.rstrip()):
        longest = max(map(len, text.split(None, 200)[:200]))
        return longest >= 60 and len(set(text)) > 9 and not text.isdigit()
    strange = text.count("\0") + text.count("\ufffd")
    return strange * 20 > len(text) > 0


def data_type(text: str) -> str:
    """The media type that a data URI names; of unknown data otherwise."""
    match = _DATA_URI.match(text)
    return (match.group(1) if match is not None else None) or MEDIA_TYPES["data"][0]


# Extractors from outside, by name.

UNSHORTENED = ("whole", "keep", "instructs")
"""The rules under which a result is not shortened when it comes."""
RULES = (*UNSHORTENED, "threshold", "always", "acts")
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


def extractor_of(rule: str) -> Extractor | None:
    """The extractor that a policy's rule names; None for one of `RULES`.

    Raises:
        PolicyError: it is neither.
    """
    if rule not in RULES and rule not in _EXTRACTORS:
        hint = near_names(rule, (*RULES, *sorted(_EXTRACTORS)))
        raise PolicyError(
            f"offload.tools: {rule!r} is neither a rule nor a registered extractor: {hint}", field="offload"
        )
    return _EXTRACTORS.get(rule)


# What is shown of an output.

_PROSE = 100
_RECORDS_SHARE = 0.6
"""The share of ``data_tokens`` up to which JSON with many objects stays whole, since an extract tells them apart. With
all of it requests of recorded runs cost 1.6 % more, and less of what an agent goes on to use stood in them."""


def show(
    text: str, *, extract_tokens: int, whole_tokens: int, data_tokens: int, counter: TokenCounter, query: str = ""
) -> tuple[Excerpt, Kind]:
    """An output as a model is to read it, whole where it is short enough without its envelope, and its kind.

    Args:
        extract_tokens: ceiling of an extract, notes included.
        whole_tokens: tokens up to which an output stays whole.
        data_tokens: the same for tables and lists, and for JSON that is not mostly prose; where that has many objects,
            three fifths of it.
        query: what the agent is after: the request and the arguments of the call.
    """
    view = lines_view(text)
    whole = view.whole or text
    kind = "json" if view.outline else kind_of(whole)
    if kind == "data":
        described = f"[{data_type(text[:200])}, {len(text)} characters of encoded data]"
        return Excerpt(text=described, kept=0, total=text.count("\n") + 1), kind
    # Of rows and of the values of JSON any one may be needed, unlike of the prose in it.
    prose = sum(len(line.text) for line in view.outline if line.text.startswith('"') and len(line.text) > _PROSE)
    is_data = kind in ("table", "list", "json") and prose * 2 <= sum(len(line.text) for line in view.outline)
    if sum(line.text.startswith("{") for line in view.outline) >= LEAST_ROWS:
        data_tokens = int(_RECORDS_SHARE * data_tokens)
    if tokens_of(whole, counter) <= (max(whole_tokens, data_tokens) if is_data else whole_tokens):
        total = len(view.lines)
        return Excerpt(text=whole, kept=total, total=total, ends_early=view.ends_early), kind
    return shorten(view, extract_tokens, counter=counter, query=query, names=True), kind


_SUMMARY_TOKENS = 48


def summary_of(data: bytes, counter: TokenCounter, query: str) -> str:
    """The lines of a stored text that answer a query best, in at most 48 tokens."""
    # Without what databases refuse in the JSON of a session's state.
    lines = lines_view(data.decode("utf-8", "replace").replace("\0", "\ufffd")).lines
    text = "\n".join(lines[at] for at in sampled(lines, query_words(query)))
    return shorten_line(text, _SUMMARY_TOKENS, counter=counter, query=query)
