"""The files of a pack, and those of records of evidence.

    packs/{pack_id}/manifest.json               the receipt, for people and tools: JSON, written once, and last
    log/{first}-{last}-{hash8}.jsonl.gz         how model calls ended, and what only a replay reads

A segment of the log is what one or more packs of a session add, with gzip: for each a line with its record, a line for
each text that its writer did not know to be in the log, and a line with its outcome, which may come in a later segment.
Each line is canonical JSON, and named by its hash; what is no JSON is a JSON string, and named by its own hash. So
whoever knows a name knows whether a line is what was written. ``first`` and ``last`` are the numbers of the packs, and
``hash8`` is that of the file's bytes, so that a process that was killed, or a second one that records the same call,
leaves nothing that contradicts the manifest.
"""

from __future__ import annotations

import hmac
import json
import math
import os
import re
import zlib
from collections.abc import Collection, Iterable, Mapping

from aether_context.canonical import JSON, canonical_json, hash_bytes, hash_json, hash_text, readable_json, short
from aether_context.errors import ChecksumMismatch, ManifestError, SchemaVersionError
from aether_context.evidence import EvidenceRecord

SCHEMA_VERSION = 1
MANIFEST = "manifest.json"
GZIP_ENDING = ".json.gz"
LOG, SEGMENT = "log", re.compile(r"(\d{6,})-(\d{6,})-[0-9a-f]{8}\.jsonl\.gz")
_OUTCOME = '{"number":'
"""The beginning of the line of an outcome, as of no other."""
MOST_TEXT_BYTES = 512 * 2**20
"""The most bytes that a file with gzip may hold."""
_WELL_COMPRESSED = 250_000
"""Bytes up to which a file is made as small as it gets: more are a fifth larger in a quarter of the time."""
_MOST_DIGITS = 100
TEXT_DIGITS = 4_301
"""The most characters of a number in what tools and models said: more Python itself does not write."""
_SEAL = ("digest", "signature")
_FIRST = (
    "pack_id", "model", "window", "layer_budgets", "truncation_events", "artifact_uris", "checksum", "signals"
)  # fmt: skip
"""The fields that a manifest begins with."""


def gzip_bytes(data: bytes) -> bytes:
    """Data with gzip, without a time, so that equal data give equal bytes."""
    deflate = zlib.compressobj(6 if len(data) <= _WELL_COMPRESSED else 1, zlib.DEFLATED, zlib.MAX_WBITS | 16)
    return deflate.compress(data) + deflate.flush()


def gunzip_bytes(data: bytes, most_bytes: int = MOST_TEXT_BYTES) -> bytes:
    """Undoes `gzip_bytes`; `ManifestError` where the data is damaged or too long."""
    inflate = zlib.decompressobj(zlib.MAX_WBITS | 16)
    try:
        text = inflate.decompress(data, most_bytes + 1)
    except zlib.error as error:
        raise ManifestError(f"damaged: {error}") from error
    if len(text) > most_bytes:
        raise ManifestError(f"damaged: it holds more than {most_bytes:,} bytes")
    if not inflate.eof or inflate.unused_data:
        raise ManifestError("damaged: it does not end where it should")
    return text


def segment_of(numbers: Collection[int], lines: Iterable[str]) -> tuple[str, bytes]:
    """The name of a segment that packs with these numbers write, and its bytes."""
    data = gzip_bytes("\n".join(dict.fromkeys(lines)).encode())
    return f"{min(numbers):06}-{max(numbers):06}-{short(hash_bytes(data))}.jsonl.gz", data


def numbers_of(segment: str) -> range:
    """The numbers of the packs whose lines a segment may hold, by its name; none where it is no segment's."""
    name = SEGMENT.fullmatch(segment)
    numbers = range(0) if name is None else range(int(name[1]), int(name[2]) + 1)
    return numbers if len(numbers) <= 1_000 else range(0)  # whoever can write to a store can name a file


def read_segment(data: bytes) -> tuple[dict[str, str], dict[tuple[int, str], str]]:
    """The texts in a segment by their names, and the lines of outcomes by the numbers and records of their packs.

    Raises:
        ManifestError: it is damaged.
    """
    try:
        lines = gunzip_bytes(data).decode().split("\n")
        texts = [json.loads(line) if line.startswith('"') else line for line in lines]
        parsed = [(parse_json(line), line) for line in lines if line.startswith(_OUTCOME)]
        outcomes = {(fields["number"], fields["record"]): line for fields, line in parsed}
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise ManifestError(f"damaged: {error}") from error
    return {hash_text(text): text for text in texts}, outcomes


def manifest_file(fields: Mapping[str, JSON]) -> bytes:
    """The file of a manifest: the fields of the founding documents first, what seals it last."""
    first = {name: fields[name] for name in _FIRST if name in fields}
    last = {name: fields[name] for name in _SEAL if name in fields}
    return readable_json(first | {name: value for name, value in fields.items() if name not in last} | last).encode()


def outcome_line(number: int, record: str, outcome: Mapping[str, JSON]) -> str:
    """The line of an outcome, which names its pack by the number and the hash of the record."""
    value: dict[str, JSON] = {"outcome": dict(outcome), "number": number, "record": record}
    return canonical_json(value | signed(hash_json(value)))


def read_outcome(line: str) -> dict[str, JSON]:
    """The outcome in a line; `ChecksumMismatch` where a key is set that did not sign it."""
    fields = parse_json(line)
    signature = fields.pop("signature", "")
    check_signature(hash_json(fields), signature, "the outcome")
    outcome = fields["outcome"]
    return outcome if isinstance(outcome, dict) else {}


KEY = "AETHER_CONTEXT_KEY"
"""The environment variable with the key that what is written is signed with."""


def signed(digest: str, path: str = "") -> dict[str, str]:
    """The field with the signature of a digest; none where no key is set.

    Args:
        path: where below the base of the store it is written, for what does not say itself whose it is: a file of
            another session is not taken for one of this, then.
    """
    key, text = os.environ.get(KEY, ""), f"{digest} {path}" if path else digest
    signature = hmac.new(key.encode("utf-8", "surrogateescape"), text.encode(), "sha256").hexdigest()
    return {"signature": signature} if key else {}


def check_signature(digest: str, signature: JSON, what: str, path: str = "") -> None:
    """Raises `ChecksumMismatch` where a key is set and the signature was not made with it."""
    expected = signed(digest, path).get("signature", "")
    if expected and not hmac.compare_digest(expected.encode(), str(signature).encode("utf-8", "surrogatepass")):
        fault = "is not signed" if not signature else "was signed with another key, or forged"
        raise ChecksumMismatch(f"{what} {fault}: {KEY} is set")


def add_hash(data: bytes, path: str) -> bytes:
    """Data behind a line with its hash, and where a key is set with its signature for the place that it is for."""
    digest = hash_bytes(data)
    return b"%b\n%b" % (" ".join([digest, *signed(digest, path).values()]).encode(), data)


def remove_hash(data: bytes, path: str) -> bytes:
    """The data that `add_hash` was given; `ChecksumMismatch` where it is other data, or a key is set that did not sign
    it for this place."""
    line, _, content = data.partition(b"\n")
    digest, _, signature = line.decode("utf-8", "replace").partition(" ")
    if digest != hash_bytes(content):
        raise ChecksumMismatch("it does not hold what was written")
    check_signature(digest, signature, "it", path)
    return content


def record_file(record: EvidenceRecord, signed_path: str) -> bytes:
    """The file of a record of evidence: its JSON, where a key is set with its signature for the place that it is
    for."""
    fields = json.loads(record.to_json())
    return canonical_json(fields | signed(hash_json(fields), signed_path)).encode()


def read_record(data: bytes, signed_path: str) -> EvidenceRecord:
    """The record in a file; `ValueError` where it is none, `ChecksumMismatch` where a key is set that did not sign it
    for this place."""
    fields = dict(json.loads(data))
    signature = fields.pop("signature", "")
    check_signature(hash_json(fields), signature, "the record", signed_path)
    return EvidenceRecord.model_validate(fields)


_ALL_ZEROS = bytes.maketrans(b"123456789", b"0" * 9)


def parse_json(text: str | bytes, most_digits: int = _MOST_DIGITS) -> JSON:
    """The value of a JSON text; `ManifestError` where it is none, or holds a number that no pack has."""

    def number(text: str) -> float:
        is_whole = text.lstrip("-").isdecimal()
        if len(text) > most_digits or not (is_whole or math.isfinite(float(text))):
            raise ValueError(f"{text[:_MOST_DIGITS]} is no number of a pack")
        return int(text) if is_whole else float(text)

    try:
        data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
        # A call into Python for each whole number takes longer than all else that is read of a manifest, and a regular
        # expression for so many digits takes as long.
        whole = number if b"0" * most_digits in data.translate(_ALL_ZEROS) else int
        return json.loads(
            data.decode("utf-8", "surrogatepass"), parse_int=whole, parse_float=number, parse_constant=number
        )
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"not a manifest: {error}") from error


def fields_of(text: str | bytes) -> dict[str, JSON]:
    """The fields in the JSON of a manifest.

    Raises:
        SchemaVersionError: it was written by a later version.
        ManifestError: it is not a manifest.
    """
    value = parse_json(text)
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
