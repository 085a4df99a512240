"""A pack as one file, ``{pack_id}.json.gz``: lines of JSON, compressed.

1. The manifest. Of one that extends others there is only what differs from the first of its chain, which ``base``
   names: a field that is not there is as in that pack's manifest, and so is a layer that is not there in ``allocation``
   or ``layer_budgets``; null is a field's default.
2. The texts that are new with the pack; an empty line where none are recorded.
3. The outcome, once the model has answered.

The outcome is a gzip member of its own behind the first: the file before it came is the beginning of the file with it.
``zcat`` shows all lines.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from aether_context.canonical import JSON, canonical_json
from aether_context.errors import ManifestError, SchemaVersionError

SCHEMA_VERSION = 1
BY_LAYER = ("allocation", "layer_budgets")
"""Fields that hold a value for each layer."""
ENDING = ".json.gz"
BASE = "base"
_FEW_BYTES, _MOST_BYTES = 8_192, 512 * 2**20
"""What is read of a file to begin with, and the most that its members hold."""


_OWN = ("rows", "contents", "counts")
"""Fields that are each pack's own: long, and never as in another."""
_OPEN = ("epoch", "epoch_before")
"""Fields that hold what strategies keep, any JSON: 1, 1.0 and true are equal there, and written otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """The first manifest of a chain, which the others are written against: its pack and its fields.

    It is kept as long as its chain goes on, so of what is each pack's own only the names are.
    """

    pack_id: str
    fields: Mapping[str, JSON]

    @classmethod
    def of(cls, fields: Mapping[str, JSON]) -> Base:
        return cls(pack_id=fields["pack_id"], fields={**fields, **{name: None for name in _OWN if name in fields}})


def manifest_line(fields: Mapping[str, JSON], base: Base) -> bytes:
    """What is written of a manifest; all of it where it is the base itself."""
    if base.pack_id != fields["pack_id"]:
        written: dict[str, JSON] = dict.fromkeys(base.fields.keys() - fields.keys())
        for name, field in fields.items():
            before = base.fields.get(name)
            if field == before and (name not in _OPEN or canonical_json(field) == canonical_json(before)):
                continue
            if name in BY_LAYER and isinstance(before, dict) and before.keys() == field.keys():
                field = {layer: value for layer, value in field.items() if before[layer] != value}
            written[name] = field
        # Who does not know the version must not need the base to see that.
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
    """What gzip members hold; `ManifestError` where they are damaged, or larger than a pack can be."""
    members: list[bytes] = []
    room = _MOST_BYTES
    while data:
        stream = zlib.decompressobj(zlib.MAX_WBITS + 16)
        try:
            members.append(stream.decompress(data, room + 1))
        except zlib.error as error:
            raise ManifestError(f"damaged: {error}") from error
        room -= len(members[-1])
        if room < 0:
            raise ManifestError(f"damaged: it holds more than {_MOST_BYTES:,} bytes")
        if not stream.eof:
            raise ManifestError("damaged: it ends too soon")
        data = stream.unused_data
    return b"".join(members)


def read_lines(data: bytes) -> tuple[bytes, bytes, bytes | None]:
    """Manifest, texts and outcome of a file, None without an outcome; `ManifestError` where it is damaged."""
    lines = decompressed(data).split(b"\n")
    if len(lines) not in (3, 4) or lines[-1]:
        raise ManifestError(f"not a manifest: {len(lines) - 1} lines")
    return lines[0], lines[1], lines[2] if len(lines) == 4 else None


def read_manifest(data: bytes) -> bytes:
    """The first line of a file; what stands behind it is not looked at."""
    stream = zlib.decompressobj(zlib.MAX_WBITS + 16)
    try:
        found = stream.decompress(data, _FEW_BYTES)
        while b"\n" not in found and stream.unconsumed_tail and len(found) < _MOST_BYTES:
            found += stream.decompress(stream.unconsumed_tail, 16 * _FEW_BYTES)
    except zlib.error as error:
        raise ManifestError(f"damaged: {error}") from error
    line, end, _ = found.partition(b"\n")
    if not end:
        raise ManifestError("damaged: it ends in its first line")
    return line


def merged(fields: Mapping[str, JSON], base: Mapping[str, JSON]) -> dict[str, JSON]:
    """The fields of a manifest, from what its file says and those of its base."""
    whole = {**base, **fields}
    del whole[BASE]
    for name in [name for name, value in fields.items() if value is None]:
        del whole[name]
    for name in BY_LAYER:
        if isinstance(whole.get(name), dict) and isinstance(base.get(name), dict):
            whole[name] = {**base[name], **whole[name]}
    return whole


def fields_of(text: str | bytes) -> dict[str, JSON]:
    """The fields in the JSON of a manifest, or of what it differs in from another.

    Raises:
        SchemaVersionError: it was written by a later version.
        ManifestError: it is not a manifest.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"not a manifest: {error}") from error
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
