"""Images, sound, video and other data inside a tool's result, and the few words that stand for them in a prompt."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from aether_context.canonical import JSON, Path
from aether_context.evidence.lines import is_text
from aether_context.evidence.record import READ, EvidenceRecord, size_words
from aether_context.tokens.media import sniffed

UNKNOWN = "application/octet-stream"
_TYPE = re.compile(r"[\w.+-]{1,60}/[\w.+-]{1,80}")
_TYPE_KEYS = ("mimeType", "mime_type", "mimetype", "mediaType", "media_type")
_DATA_KEYS = ("data", "blob")
_URI = re.compile(r"data:([^;,\s]{0,160})(?:;[\w=.-]{1,60}){0,4};base64,")
_LEAST = 64
_DEEPEST = 50
_SHOWN = re.compile(r"image/(?:png|jpeg|webp|heic|heif|gif)|audio/.+|video/.+|application/pdf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Medium:
    """Bytes of a media type. ``path`` leads to them in the JSON that they were found in, where ``written`` stands."""

    data: bytes
    media_type: str
    path: Path = ()
    written: str = ""


def media_in(value: object, path: Path = ()) -> Iterator[Medium]:
    """What in a result is no text: base64 beside its media type, data URIs, and bytes as they are.

    Base64 stands under ``data`` or ``blob``, as the Model Context Protocol and the providers' APIs write it.
    """
    if len(path) > _DEEPEST:
        return
    if isinstance(value, dict):
        kind = _type_beside(value)
        for key, one in value.items():
            yield from _leaf(one, kind if key in _DATA_KEYS else "", (*path, key)) or media_in(one, (*path, key))
    elif isinstance(value, list):
        for at, one in enumerate(value):
            yield from _leaf(one, "", (*path, at)) or media_in(one, (*path, at))


def typed(said: object, data: bytes) -> str:
    """The media type that a tool gave, in lower case; where that is none, what the first bytes tell."""
    kind = said.partition(";")[0].strip().lower() if isinstance(said, str) else ""
    return kind if _TYPE.fullmatch(kind) else sniffed(data) or UNKNOWN


def can_be_shown(media_type: str) -> bool:
    """Whether models take a media type beside a text."""
    return _SHOWN.fullmatch(media_type) is not None


def mark(record: EvidenceRecord, earlier: str = "") -> str:
    """What stands in the place of a medium: its address, its type and its size, and the address that it supersedes."""
    said = f"{record.uri} ({record.media_type}, {size_words(record.size_bytes)})"
    said = f"{said}, supersedes {earlier}" if earlier else said
    return f"{said}: {READ} shows it" if can_be_shown(record.media_type) else said


def _type_beside(value: Mapping[str, JSON]) -> str:
    """The media type that an object names for its data; empty where that is text or none."""
    said = next((value[key] for key in _TYPE_KEYS if isinstance(value.get(key), str)), "")
    kind = str(said).partition(";")[0].strip().lower()
    return kind if _TYPE.fullmatch(kind) and not is_text(kind) else ""


def _leaf(value: object, kind: str, path: Path) -> list[Medium]:
    """A medium where a value is one."""
    if isinstance(value, (bytes, bytearray)):
        data = bytes(value)
        written = base64.b64encode(data).decode()
        return [Medium(data=data, media_type=kind or typed("", data), path=path, written=written)]
    if not isinstance(value, str) or len(value) < _LEAST:
        return []
    found = _URI.match(value)
    if found is None and not kind:
        return []
    decoded = _decoded(value[found.end() :] if found is not None else value)
    if decoded is None:
        return []
    said = found.group(1) if found is not None else kind
    return [Medium(data=decoded, media_type=typed(said, decoded), path=path, written=value)]


def _decoded(text: str) -> bytes | None:
    """The bytes of base64 in either alphabet, line breaks left out; None where it is none."""
    for marks in (b"+/", b"-_"):
        try:
            return base64.b64decode("".join(text.split()), altchars=marks, validate=True)
        except (binascii.Error, ValueError):
            continue
    return None
