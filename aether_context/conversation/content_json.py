"""Contents from their wire form: the JSON of google-genai's ``Content``, snake case, fields that are None left out.

Binary data is replaced by a tagged hash. A part of a kind that is not known here is carried as it is and counted by
its JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from aether_context.canonical import canonical_json, hash_text, without_surrogates
from aether_context.pack import Content, Part, PartKind

_MEDIA = ("inline_data", "file_data")


def content_from_wire(wire: str) -> Content:
    """The content of a canonical wire text."""
    value = json.loads(wire)
    parts = tuple(part_of(part) for part in value.get("parts") or ())
    return _content(value.get("role") or "", parts, wire)


@lru_cache(maxsize=4)
def text_part(text: str) -> Part:
    """A part of this package's own, with escapes for lone surrogates: it quotes what was not read from a content."""
    return part_of({"text": without_surrogates(text)})


def part_of(value: Mapping[str, Any], **fields: Any) -> Part:
    """A part from its JSON.

    Args:
        fields: those that tell of its binary data, of which the JSON has the hash: ``size_bytes``, ``media_tokens``,
            ``media_count``, ``pages`` and ``shape``.
    """
    wire = text = canonical_json(value)
    kind: PartKind = "other"
    if (call := value.get("function_call")) is not None:
        kind, text = "call", canonical_json(call.get("args") or {})
    elif (call := value.get("function_response")) is not None:
        kind, text = "response", canonical_json(call.get("response"))
    elif (medium := next((value[name] for name in _MEDIA if value.get(name) is not None), None)) is not None:
        kind, text, fields["mime_type"] = "media", "", medium.get("mime_type") or ""
    elif isinstance(value.get("text"), str) and value.keys() <= {"text", "thought", "thought_signature"}:
        kind, text = "thought" if value.get("thought") else "text", value["text"]
    if call is not None:
        fields |= {"name": call.get("name") or "", "call_id": call.get("id") or ""}
    return Part(kind=kind, text=text, wire=wire, is_signed=bool(value.get("thought_signature")), **fields)


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
        has_media=any(part.media_count or part.kind == "media" for part in parts),
        signed_thoughts=sum(part.is_signed and part.is_thought for part in parts),
    )
