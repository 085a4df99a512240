"""Images, sound, video and other data inside a tool's result, and the few words that stand for them in a prompt."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator
from typing import NamedTuple

from aether_context.canonical import Path
from aether_context.evidence.lines import is_text
from aether_context.evidence.record import READ, EvidenceRecord, size_words
from aether_context.tokens.media import sniffed

_TYPE = re.compile(r"[\w.+-]{1,60}/[\w.+-]{1,80}")
_TYPE_KEYS = ("mimeType", "mime_type", "mimetype", "mediaType", "media_type")
_URI = re.compile(r"data:([^;,\s]{0,160})(?:;[\w=.-]{1,60}){0,4};base64,")
_LEAST = 64
_DEEPEST = 50
_SHOWN = re.compile(r"image/(?:png|jpeg|webp|heic|heif|gif)|audio/.+|video/.+|application/pdf")


class Medium(NamedTuple):
    """Bytes of a media type. ``path`` leads to them in the JSON that they were found in, where ``written`` stands."""

    data: bytes
    media_type: str
    path: Path = ()
    written: str = ""


def media_in(value: object, path: Path = (), media_type: str = "") -> Iterator[Medium]:
    """What in a result is no text: base64 beside its media type, data URIs, and bytes as they are.

    Base64 stands under ``data`` or ``blob``, as the Model Context Protocol and the providers' APIs write it.

    Args:
        path: leads to the value.
        media_type: what the object that holds the value says that it is.
    """
    if isinstance(value, dict) and len(path) <= _DEEPEST:
        given = next((value[key] for key in _TYPE_KEYS if isinstance(value.get(key), str)), "")
        kind = given.partition(";")[0].strip().lower()
        kind = kind if _TYPE.fullmatch(kind) and not is_text(kind) else ""
        for key, item in value.items():
            yield from media_in(item, (*path, key), kind if key in ("data", "blob") else "")
    elif isinstance(value, list) and len(path) <= _DEEPEST:
        for at, item in enumerate(value):
            yield from media_in(item, (*path, at))
    elif isinstance(value, (bytes, bytearray)):
        data = bytes(value)
        written = base64.b64encode(data).decode()
        yield Medium(data=data, media_type=media_type or typed("", data), path=path, written=written)
    elif isinstance(value, str) and len(value) >= _LEAST:
        uri = _URI.match(value)
        decoded = _decoded(value[uri.end() :] if uri is not None else value) if uri is not None or media_type else None
        if decoded is not None:
            kind = typed(uri.group(1) if uri is not None else media_type, decoded)
            yield Medium(data=decoded, media_type=kind, path=path, written=value)


def typed(given: object, data: bytes) -> str:
    """The media type that a tool gave, in lower case; where that is none, what the first bytes tell."""
    kind = given.partition(";")[0].strip().lower() if isinstance(given, str) else ""
    return kind if _TYPE.fullmatch(kind) else sniffed(data) or "application/octet-stream"


def can_be_shown(media_type: str) -> bool:
    """Whether models take a media type beside a text."""
    return _SHOWN.fullmatch(media_type) is not None


def mark(record: EvidenceRecord, earlier: str = "") -> str:
    """What stands in the place of a medium: its address, its type and its size, and the address that it supersedes."""
    text = f"{record.uri} ({record.media_type}, {size_words(record.size_bytes)})"
    text += f", supersedes {earlier}" if earlier else ""
    return f"{text}: {READ} shows it" if can_be_shown(record.media_type) else text


def _decoded(text: str) -> bytes | None:
    """The bytes of base64 in either alphabet, line breaks left out; None where it is none."""
    for marks in (b"+/", b"-_"):
        try:
            return base64.b64decode("".join(text.split()), altchars=marks, validate=True)
        except (binascii.Error, ValueError):
            continue
    return None
