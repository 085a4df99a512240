"""Other agents' turns, which ADK shows an agent as user messages that quote them between two marks.

A quoted message opens with a part that explains the marks; each further part is what the agent said, what it called, or
what a tool gave it. Only the form is read here: whether another agent wrote a message or a user imitates the form, the
session's events decide.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

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
    quoted = [_quote(part.text, at) for at, part in enumerate(content.parts) if at and part.kind == "text"]
    quotes = [quote for quote in quoted if quote is not None]
    if len(content.parts) < 2 or len(quotes) < len(quoted) or content.calls or content.responses:
        return content
    return replace(content, agent=quotes[0].agent if quotes else NAMELESS, quotes=tuple(quotes))


def opens(text: str | None) -> bool:
    """Tells whether a part's text is the explanation that a quoted message opens with."""
    return text is not None and text.startswith(OPENING) and BEGIN in text and END in text


def quote_of(texts: Sequence[str]) -> Quote | None:
    """All that a quoted message says, by its parts' texts; None where it is none, or quotes a call or a response."""
    if len(texts) < 2 or not opens(texts[0]):
        return None
    words = [quote for text in texts[1:] if (quote := _quote(text)) is not None and quote.kind == "said"]
    if len(words) < len(texts) - 1:
        return None
    return words[0]._replace(text="\n".join(quote.text for quote in words).strip())


def says(texts: Sequence[str | None]) -> bool:
    """Tells whether a quoted message, by the texts of its parts, holds words of an agent, and not only calls or
    results."""
    return any((quote := _quote(text or "")) is not None and quote.kind == "said" for text in texts)


def requoted(part: Part, text: str) -> str:
    """The text of a quoting part with other words between its marks."""
    head = part.text.partition(f"{BEGIN}\n")[0]
    return f"{head}{BEGIN}\n{text}\n{END}"


def _quote(text: str, at: int = 0) -> Quote | None:
    """Reads the quote in the part at a place; None where it is no quote."""
    head, _, quoted = text.partition(f":\n{BEGIN}\n")
    match = _HEAD.fullmatch(head)
    if match is None or not quoted.endswith(f"\n{END}"):
        return None
    name = match["call"] if match["response"] is None else match["response"]
    kind: Literal["said", "call", "response"] = "said"
    if name is not None:
        kind = "call" if match["response"] is None else "response"
    return Quote(kind=kind, agent=match["agent"], text=quoted.removesuffix(f"\n{END}"), at=at, name=name or "")
