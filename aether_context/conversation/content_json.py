"""Contents from their wire form, the JSON of google-genai's ``Content``, and the quotes of other agents' turns in them.

The JSON is in snake case, fields that are None left out. Binary data is replaced by a tagged hash. A part of a kind
that is not known here is carried as it is and counted by its JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from aether_context.canonical import canonical_json, hash_text
from aether_context.pack import Content, Part, Quote

_MEDIA = ("inline_data", "file_data")


def content_from_wire(wire: str) -> Content:
    """The content of a canonical wire text."""
    value = json.loads(wire)
    parts = tuple(part_of(part) for part in value.get("parts") or ())
    return _content(value.get("role") or "", parts, wire)


def text_part(text: str) -> Part:
    return part_of({"text": text})


def part_of(value: Mapping[str, Any], *, size_bytes: int = 0, media_tokens: int = 0) -> Part:
    """A part from its JSON.

    Args:
        size_bytes: size of its binary data, which the JSON names only by hash.
        media_tokens: what that data counts by the provider's rule.
    """
    wire, is_signed = canonical_json(value), bool(value.get("thought_signature"))
    part = Part(
        kind="other", text=wire, wire=wire, size_bytes=size_bytes, media_tokens=media_tokens, is_signed=is_signed
    )
    if (call := value.get("function_call")) is not None:
        part = replace(part, kind="call", text=canonical_json(call.get("args") or {}))
    elif (call := value.get("function_response")) is not None:
        part = replace(part, kind="response", text=canonical_json(call.get("response")))
    if call is not None:
        return replace(part, name=call.get("name") or "", call_id=call.get("id") or "")
    if (media := next((value[name] for name in _MEDIA if value.get(name) is not None), None)) is not None:
        return replace(part, kind="media", text="", mime_type=media.get("mime_type") or "")
    if isinstance(value.get("text"), str) and value.keys() <= {"text", "thought", "thought_signature"}:
        return replace(part, kind="thought" if value.get("thought") else "text", text=value["text"])
    return part


def content_of_parts(role: str, parts: list[Part]) -> Content:
    """A content with its wire form and digest."""
    wire = f'{{"parts":[{",".join(part.wire for part in parts)}],"role":{canonical_json(role)}}}'
    return _content(role, tuple(parts), wire)


def _content(role: str, parts: tuple[Part, ...], wire: str) -> Content:
    return Content(
        role=role,
        parts=parts,
        wire=wire,
        digest=hash_text(wire),
        calls=tuple(part for part in parts if part.kind == "call"),
        responses=tuple(part for part in parts if part.kind == "response"),
    )


# Other agents' turns, which ADK shows an agent as user messages that quote them between two marks.
#
# A quoted message opens with a part that explains the marks; each further part is what the agent said, what it called,
# or what a tool gave it. Only the form is read here: whether another agent wrote a message or a user imitates the form,
# the session's events decide.

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
