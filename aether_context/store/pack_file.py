"""A pack as one file, ``{pack_id}.json.gz``: gzip members of one line of JSON each.

1. The manifest.
2. The texts that are new with the pack; an empty line where none are recorded.
3. The outcome, appended once the model has answered: a file without one is the beginning of the file with it.

``zcat`` shows all lines. The header of a member holds, as its comment, the first digits of the hash of the bytes that
follow it. What gzip itself cannot tell from its checksum, such as a header with another time or a reference that leads
to the same letters elsewhere, is told by that.
"""

from __future__ import annotations

import hmac
import json
import math
import os
import struct
import zlib
from collections.abc import Mapping

from aether_context.canonical import JSON, canonical_json, hash_bytes, hash_json, short
from aether_context.errors import ChecksumMismatch, ManifestError, SchemaVersionError

SCHEMA_VERSION = 1
ENDING = ".json.gz"
MANIFEST_BYTES, TEXTS_BYTES = 64 * 2**20, 512 * 2**20
"""The most bytes that a manifest, and any other member of a file, may hold."""
_MOST_DIGITS = 100
TEXT_DIGITS = 4_301
"""The most characters of a number in what tools and models said: more Python itself does not write."""

# A member's header (RFC 1952): deflate, a comment follows, no time, no flags of the compressor, no operating system, so
# that it is the same on every machine.
_HEADER = b"\x1f\x8b\x08\x10\x00\x00\x00\x00\x00\xff"
_DIGITS = 8
_BODY = len(_HEADER) + _DIGITS + 1
_TRAILER = 8


def member(line: bytes) -> bytes:
    """A line as a member of a file."""
    data = line + b"\n"
    deflate = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
    body = deflate.compress(data) + deflate.flush() + struct.pack("<LL", zlib.crc32(data), len(data) & 0xFFFFFFFF)
    return b"%b%b\0%b" % (_HEADER, _comment(body), body)


def read_member(data: bytes, most_bytes: int = TEXTS_BYTES) -> tuple[bytes, bytes]:
    """The line of the first member, and the members behind it; `ManifestError` where it is damaged or too long."""
    if not data.startswith(_HEADER):
        raise ManifestError("damaged: it does not begin as a pack does")
    inflate = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        line = inflate.decompress(data[_BODY:], most_bytes + 2)
    except zlib.error as error:
        raise ManifestError(f"damaged: {error}") from error
    if len(line) > most_bytes + 1:
        raise ManifestError(f"damaged: a line of it holds more than {most_bytes:,} bytes")
    if not inflate.eof or len(inflate.unused_data) < _TRAILER:
        raise ManifestError("damaged: it ends too soon")
    body = data[_BODY : len(data) - len(inflate.unused_data) + _TRAILER]
    if data[len(_HEADER) : _BODY] != _comment(body) + b"\0":
        raise ManifestError("damaged: its bytes are not those that its hash was taken of")
    if line[-1:] != b"\n" or line.count(b"\n") != 1:
        raise ManifestError(f"not a pack: {line.count(10)} lines in the place of one")
    return line[:-1], inflate.unused_data[_TRAILER:]


def _comment(body: bytes) -> bytes:
    return short(hash_bytes(body), _DIGITS).encode()


def file_of(manifest: Mapping[str, JSON], texts: bytes) -> bytes:
    """The file of a pack without an outcome."""
    return member(canonical_json(manifest).encode()) + member(texts)


def with_outcome(data: bytes, digest: str, outcome: Mapping[str, JSON]) -> bytes:
    """The file of a pack with its outcome, which names the manifest that it belongs to by its digest."""
    value = {"outcome": dict(outcome), "pack": digest}
    return data + member(canonical_json({**value, **signed(hash_json(value))}).encode())


def read_outcome(line: bytes, digest: str) -> dict[str, JSON]:
    """The outcome in a file's third line; `ManifestError` where it is none, or that of another manifest."""
    value = parsed(line)
    if not isinstance(value, dict) or not value.keys() >= {"outcome", "pack"}:
        raise ManifestError("not an outcome")
    outcome, pack = value["outcome"], value["pack"]
    if pack != digest or not isinstance(outcome, dict):
        raise ChecksumMismatch(f"the outcome is that of another pack, {pack}")
    check_signature(hash_json({"outcome": outcome, "pack": pack}), value.get("signature"), "the outcome")
    return outcome


KEY = "AETHER_CONTEXT_KEY"
"""The environment variable with the key that manifests and outcomes are signed with."""


def signed(digest: str) -> dict[str, str]:
    """The field with the signature of a digest; none where no key is set."""
    key = os.environ.get(KEY, "")
    return {"signature": hmac.new(key.encode(), digest.encode(), "sha256").hexdigest()} if key else {}


def check_signature(digest: str, signature: JSON, what: str) -> None:
    """Raises `ChecksumMismatch` where a key is set and the signature was not made with it."""
    expected = signed(digest).get("signature", "")
    if expected and not hmac.compare_digest(expected, str(signature)):
        fault = "is not signed" if not signature else "was signed with another key, or forged"
        raise ChecksumMismatch(f"{what} {fault}: {KEY} is set")


def parsed(text: str | bytes, most_digits: int = _MOST_DIGITS) -> JSON:
    """The value of a line; `ManifestError` where it is not JSON, or holds a number that no pack has."""

    def number(text: str) -> float:
        is_whole = text.lstrip("-").isdecimal()
        if len(text) > most_digits or not (is_whole or math.isfinite(float(text))):
            raise ValueError(f"{text[:_MOST_DIGITS]} is no number of a pack")
        return int(text) if is_whole else float(text)

    try:
        return json.loads(text, parse_int=number, parse_float=number, parse_constant=number)
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"not a manifest: {error}") from error


def read_lines(data: bytes) -> tuple[bytes, bytes, bytes | None]:
    """The lines with manifest, texts and outcome of a file, the outcome None where it has none; `ManifestError` where
    they are damaged."""
    manifest, rest = read_member(data, MANIFEST_BYTES)
    texts, rest = read_member(rest)
    if not rest:
        return manifest, texts, None
    outcome, rest = read_member(rest)
    if rest:
        raise ManifestError("not a pack: it has more than three members")
    return manifest, texts, outcome


def fields_of(text: str | bytes) -> dict[str, JSON]:
    """The fields in the JSON of a manifest.

    Raises:
        SchemaVersionError: it was written by a later version.
        ManifestError: it is not a manifest.
    """
    value = parsed(text)
    version = value.get("schema_version") if isinstance(value, dict) else None
    if type(version) is not int or version < 1:
        raise ManifestError("not a manifest: it has no schema_version")
    if version > SCHEMA_VERSION:
        raise SchemaVersionError(
            f"this manifest has schema version {version} and this installation reads up to {SCHEMA_VERSION}: "
            "upgrade aether-context-adk"
        )
    fields: dict[str, JSON] = value
    return fields
