"""A pack as one file, ``{pack_id}.json.gz``: lines of JSON, compressed.

1. The manifest. One that extends others holds only what differs from the first manifest of its chain, which ``base``
   names: a field that is left out is as in that manifest, and so is a layer that is left out of ``allocation`` or
   ``layer_budgets``; null is a field's default.
2. The texts that are new with the pack; an empty line where none are recorded.
3. The outcome, once the model has answered.

The outcome is a gzip member of its own behind the first: a file without an outcome is the beginning of the file with
it. ``zcat`` shows all lines.
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Mapping
from typing import NamedTuple

from aether_context.canonical import JSON, canonical_json
from aether_context.errors import ManifestError, SchemaVersionError

SCHEMA_VERSION = 1
BY_LAYER = ("allocation", "layer_budgets")
"""Fields that hold a value for each layer."""
ENDING = ".json.gz"
BASE = "base"
_MOST_MANIFEST_BYTES, _MOST_BYTES = 64 * 2**20, 512 * 2**20
"""The most that the first line of a file may hold, and all of a file or a blob; what holds more is not read on."""
_FEW_BYTES = 8_192
_MOST_DIGITS = 100

_OWN = ("rows", "contents", "counts")
"""Long fields whose values differ in every pack."""
_OPEN = ("epoch", "epoch_before")
"""Fields that hold the strategies' own JSON. Python takes 1, 1.0 and true for equal, but they are written differently,
so these fields are compared as canonical JSON."""


class Base(NamedTuple):
    """The first manifest of a chain, which the others are written against: its pack and its fields.

    It stays in memory as long as its chain goes on, so the values of the long fields are left out.
    """

    pack_id: str
    fields: Mapping[str, JSON]

    @classmethod
    def of(cls, fields: Mapping[str, JSON]) -> Base:
        return cls(pack_id=fields["pack_id"], fields={**fields, **{name: None for name in _OWN if name in fields}})


def manifest_line(fields: Mapping[str, JSON], base: Base) -> bytes:
    """The line of a manifest: what differs from its base, or all of it where it is the base itself."""
    if base.pack_id != fields["pack_id"]:
        written: dict[str, JSON] = dict.fromkeys(base.fields.keys() - fields.keys())
        for name, field in fields.items():
            base_field = base.fields.get(name)
            if field == base_field and (name not in _OPEN or canonical_json(field) == canonical_json(base_field)):
                continue
            if name in BY_LAYER and isinstance(base_field, dict) and base_field.keys() == field.keys():
                field = {layer: value for layer, value in field.items() if base_field[layer] != value}
            written[name] = field
        # A reader has to see an unknown version without the base.
        fields = {**written, "schema_version": fields["schema_version"], BASE: base.pack_id}
    return canonical_json(fields).encode()


def file_of(manifest: bytes, texts: bytes) -> bytes:
    """The file of a pack without an outcome, from its lines."""
    return compressed(b"%b\n%b\n" % (manifest, texts))


def with_outcome(data: bytes, outcome: Mapping[str, JSON]) -> bytes:
    """The file of a pack with its outcome."""
    return data + compressed(b"%b\n" % canonical_json(dict(outcome)).encode())


def compressed(data: bytes) -> bytes:
    """A gzip member, the same for the same bytes."""
    return gzip.compress(data, compresslevel=6, mtime=0)


def decompressed(data: bytes) -> bytes:
    """The content of gzip members; `ManifestError` where they are damaged, or larger than a pack can be."""
    members: list[bytes] = []
    remaining = _MOST_BYTES
    while data:
        stream = zlib.decompressobj(zlib.MAX_WBITS + 16)
        try:
            members.append(stream.decompress(data, remaining + 1))
        except zlib.error as error:
            raise ManifestError(f"damaged: {error}") from error
        remaining -= len(members[-1])
        if remaining < 0 or len(members) > 2:
            raise ManifestError(f"damaged: it holds more than {_MOST_BYTES:,} bytes, or than two members")
        if not stream.eof:
            raise ManifestError("damaged: it ends too soon")
        data = stream.unused_data
    return b"".join(members)


def read_lines(data: bytes) -> tuple[bytes, bytes, bytes | None]:
    """Manifest, texts and outcome of a file, the outcome None where it has none; `ManifestError` where damaged."""
    read_manifest(data)  # so that no more is read where that alone is too large
    lines = decompressed(data).split(b"\n")
    if len(lines) not in (3, 4) or lines[-1]:
        raise ManifestError(f"not a manifest: {len(lines) - 1} lines")
    return lines[0], lines[1], lines[2] if len(lines) == 4 else None


def read_manifest(data: bytes) -> bytes:
    """The first line of a file; the rest is not read."""
    stream, line, size = zlib.decompressobj(zlib.MAX_WBITS + 16), bytearray(), _FEW_BYTES
    while True:
        try:
            content = stream.decompress(data, size)
        except zlib.error as error:
            raise ManifestError(f"damaged: {error}") from error
        start, end, _ = content.partition(b"\n")
        line += start
        if end:
            return bytes(line)
        if not content:
            raise ManifestError("damaged: it ends in its first line")
        if len(line) > _MOST_MANIFEST_BYTES:
            raise ManifestError(f"damaged: its first line holds more than {_MOST_MANIFEST_BYTES:,} bytes")
        data, size = stream.unconsumed_tail, min(2 * size, 2**20)


def parsed(text: str | bytes) -> JSON:
    """The value of a line; `ManifestError` where it is not JSON, or holds a number that no pack has."""
    try:
        return json.loads(text, parse_int=_number, parse_float=_number, parse_constant=_number)
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"not a manifest: {error}") from error


def _number(text: str) -> float:
    if len(text) > _MOST_DIGITS or not math.isfinite(value := float(text)):
        raise ValueError(f"{text[:_MOST_DIGITS]} is no number of a pack")
    return int(text) if text.lstrip("-").isdecimal() else value


def merged(fields: Mapping[str, JSON], base: Mapping[str, JSON]) -> dict[str, JSON]:
    """All fields of a manifest, from those in its file and those of its base."""
    merged_fields = {**base, **fields}
    del merged_fields[BASE]
    for name in [name for name, value in fields.items() if value is None]:
        del merged_fields[name]
    for name in BY_LAYER:
        if isinstance(merged_fields.get(name), dict) and isinstance(base.get(name), dict):
            merged_fields[name] = {**base[name], **merged_fields[name]}
    return merged_fields


def fields_of(text: str | bytes) -> dict[str, JSON]:
    """The fields in the JSON of a manifest, or of its difference to its base.

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
