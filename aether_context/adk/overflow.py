"""The model's window, read off a provider's refusal of a request that is too long; and refusals of signed thoughts.

Errors are read by their messages and status, in the words of each provider and as LiteLLM, google-genai, anthropic and
openai wrap them; none of these packages is imported. An error may repeat what the request said, so words that stand in
the request are no provider's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from aether_context.tokens.model_limits import LimitKind

_MOST_CHARACTERS = 4_000
"""So much of an error is read: what follows the provider's own words may repeat the request."""
_MOST_CAUSES = 3
_OVERFLOW = "ContextWindowExceededError"
"""LiteLLM's class for it."""

_OF_ANSWERS = re.compile(r"output|completion|max(?:imum)?[\s_](?:\w+_)?tokens")
"""Words of a sentence whose numbers are about the answer."""
_LEAST_LIMIT = 1_024
"""Smaller numbers are limits of a name or a setting."""

_KINDS: Mapping[str, LimitKind] = {"bytes": "bytes", "media": "media", "pages": "pages"}


class Overflow(NamedTuple):
    """A refusal of a request for its length, for its bytes, media or pages, or for its signed thoughts.

    Attributes:
        limit: the most input tokens; None where the refusal has no number.
        sent_tokens: the input tokens of the request, as the provider counted them; None where it does not say.
        answer: tokens that were kept for the answer and are not in ``limit``, though they share one window with it.
        kind: the unit of ``limit``.
        of_thoughts: set where the refusal is of a signed thought that does not belong to what stands before it.
        is_echo: set where the request itself holds the words of the refusal, so that they may be nobody's verdict.
        numbers: what may be the limit where the words that hold it are not known, each with its unit.
        is_known: set where the error is known to be about length; else one of ``numbers`` may say so.
    """

    limit: int | None = None
    sent_tokens: int | None = None
    answer: int = 0
    kind: LimitKind = "tokens"
    of_thoughts: bool = False
    is_echo: bool = False
    numbers: tuple[tuple[LimitKind, int], ...] = ()
    is_known: bool = True


def overflow_of(error: BaseException | str, request: str = "") -> Overflow | None:
    """Reads an error, or its message, as the refusal of a request that was too long, or of its signed thoughts; None
    where it is about anything else.

    An error that was raised from another one is read with it.

    Args:
        request: the texts of the request that was refused.
    """
    texts, is_overflow, is_refused = [error] if isinstance(error, str) else [], False, False
    cause = None if isinstance(error, str) else error
    for _ in range(_MOST_CAUSES):
        if cause is None:
            break
        holders = (cause, getattr(cause, "response", None))
        named = [getattr(holder, name, None) for holder in holders for name in ("status_code", "code")]
        if next((status for status in named if type(status) is int), None) == 429:
            return None
        is_refused |= not {400, 413}.isdisjoint(status for status in named if type(status) is int)
        if 413 in named:
            texts.append("request_too_large")
        texts += [str(cause)[:_MOST_CHARACTERS], *(code[:100] for code in named[1:2] if isinstance(code, str))]
        is_overflow |= any(kind.__name__ == _OVERFLOW for kind in type(cause).__mro__)
        cause = cause.__cause__
    text = " ".join(" ".join(texts).lower()[:_MOST_CHARACTERS].split())
    if not text or _matches("others", "rate", text):
        return None
    echoes = _words(request)

    def first(table: str, kind: str, *, is_echo: bool = False) -> re.Match[str] | None:
        """The first words of a kind that the request holds, or that it does not."""
        return next((match for match in _matches(table, kind, text) if (_words(match[0]) in echoes) is is_echo), None)

    kinds = [(is_echo, kind) for is_echo in (False, True) for kind in _words_of()["refusals"]]
    refusals = ((kind, is_echo, first("refusals", kind, is_echo=is_echo)) for is_echo, kind in kinds)
    kind, is_echo, match = next((refusal for refusal in refusals if refusal[2]), ("tokens", False, None))
    numbers = _numbers(text, echoes) if is_refused else ()
    if match is None:
        return Overflow(numbers=numbers, is_known=is_overflow) if is_overflow or numbers else None
    limit = _number(match)
    if limit is None or kind != "tokens":
        limit = limit and limit << 20 * (" mb limit" in match[0])
        numbers = () if limit or kind == "thoughts" else numbers
        return Overflow(
            limit, kind=_KINDS.get(kind, "tokens"), of_thoughts=kind == "thoughts", is_echo=is_echo, numbers=numbers
        )
    answer, sent_tokens = (_number(first("counts", kind)) for kind in ("answer", "sent"))
    answer = answer if answer and answer < limit else 0  # what takes all of it leaves nothing to learn but the limit
    return Overflow(limit - answer, sent_tokens, answer, is_echo=is_echo)


@cache
def _words_of() -> dict[str, dict[str, Any]]:
    import tomllib  # needed where a provider refuses a request alone

    return tomllib.loads(resources.files(__package__).joinpath("refusals.toml").read_text("utf-8"))


def _matches(table: str, kind: str, text: str) -> list[re.Match[str]]:
    patterns = (pattern.replace("NUMBER", r"(\d[\d,_]{0,15})") for pattern in _words_of()[table][kind])
    return [match for pattern in patterns for match in re.finditer(pattern, text)]


def _numbers(text: str, echoes: str) -> tuple[tuple[LimitKind, int], ...]:
    """The numbers beside words for a size, but in sentences about the answer and in what the request holds."""
    text = " ".join(sentence for sentence in re.split(r"[.;] ", text) if not _OF_ANSWERS.search(sentence))
    kinds: tuple[LimitKind, ...] = ("bytes", "tokens")
    matches = [(kind, match) for kind in kinds for match in _matches("numbers", kind, text)]
    units = {"kb": 10, "kib": 10, "mb": 20, "mib": 20}
    sizes = [
        (kind, (_number(match) or 0) << units.get(text[match.end(1) : match.end()].strip(), 0))
        for kind, match in matches
        if _words(match[0]) not in echoes
    ]
    return tuple((kind, size) for kind, size in sizes if size >= _LEAST_LIMIT)


def _number(match: re.Match[str] | None) -> int | None:
    digits = re.sub(r"\D", "", match[1]) if match is not None and match.re.groups else ""
    return int(digits) if 0 < len(digits) < 12 else None


def _words(text: str) -> str:
    """A text as its words alone, so that quotes, escapes and line ends hide no echo."""
    return re.sub(r"(?:\\+[nrt]|[\W_])+", " ", f" {text.lower()} ")
