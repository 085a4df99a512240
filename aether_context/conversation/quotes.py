"""Other agents' turns, which ADK shows an agent as user messages that quote them between two marks.

A quoted message opens with a part that explains the marks; each further part is what the agent said, what it called, or
what a tool gave it. Only the form is read here: whether another agent wrote a message or a user imitates the form, the
session's events decide.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from aether_context.pack import Content, Part, Quote

BEGIN = "<<<BEGIN_QUOTED_AGENT_CONTENT>>>"
END = "<<<END_QUOTED_AGENT_CONTENT>>>"
OPENING = "For context:"
NAMELESS = "another agent"
"""Who a quoted message is of where it holds nothing but media."""

_HEAD = re.compile(
    r"\[(?P<agent>[^\]\n]+)\] "
    r"(?:(?:said|thought)|called tool `(?P<call>.*)` with parameters|`(?P<response>.*)` tool returned result)",
    re.DOTALL,
)


def attributed(content: Content) -> Content:
    """A content with the agent that it quotes; itself where it is not a quoted message."""
    first = content.parts[0] if content.parts else None
    if content.role != "user" or first is None or not opens(first.text if first.kind == "text" else None):
        return content
    quotes: list[Quote] = []
    for at, part in enumerate(content.parts[1:], start=1):
        if part.kind in ("call", "response"):
            return content
        if part.kind == "text":
            quote = _quote(part.text, at)
            if quote is None:
                return content
            quotes.append(quote)
    if len(content.parts) < 2:
        return content
    return replace(content, agent=quotes[0].agent if quotes else NAMELESS, quotes=tuple(quotes))


def opens(text: str | None) -> bool:
    """Whether a part's text is the explanation that a quoted message opens with."""
    return text is not None and text.startswith(OPENING) and BEGIN in text and END in text


class Said(NamedTuple):
    """What an agent said in a quoted message that holds nothing else."""

    agent: str
    words: str


def said(texts: Sequence[str]) -> Said | None:
    """What a quoted message says; None where it is none, or quotes a call or a response.

    Args:
        texts: of the message's parts, in their order.
    """
    if len(texts) < 2 or not opens(texts[0]):
        return None
    quotes = [_quote(text, at) for at, text in enumerate(texts[1:], start=1)]
    words = [quote for quote in quotes if quote is not None and quote.kind == "said"]
    if len(words) < len(quotes):
        return None
    return Said(agent=words[0].agent, words="\n".join(quote.text for quote in words).strip())


def says(texts: Sequence[str | None]) -> bool:
    """Whether a quoted message holds words of an agent, and not only calls or results.

    Args:
        texts: of the message's parts, in their order.
    """
    quotes = (_quote(text or "", at) for at, text in enumerate(texts))
    return any(quote is not None and quote.kind == "said" for quote in quotes)


def requoted(part: Part, text: str) -> str:
    """The text of a quoting part with other words between its marks."""
    head = part.text.partition(f"{BEGIN}\n")[0]
    return f"{head}{BEGIN}\n{text}\n{END}"


def _quote(text: str, at: int) -> Quote | None:
    head, mark, quoted = text.partition(f":\n{BEGIN}\n")
    if not mark or not quoted.endswith(f"\n{END}"):
        return None
    match = _HEAD.fullmatch(head)
    if match is None:
        return None
    quoted_text = quoted.removesuffix(f"\n{END}")
    if match["call"] is not None:
        return Quote(kind="call", agent=match["agent"], text=quoted_text, at=at, name=match["call"])
    if match["response"] is not None:
        return Quote(kind="response", agent=match["agent"], text=quoted_text, at=at, name=match["response"])
    return Quote(kind="said", agent=match["agent"], text=quoted_text, at=at)
